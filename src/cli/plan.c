/* SPDX-License-Identifier: MIT */
/* `memplan plan`: the settings of a job that fit, and take least time, GPUs or memory. */
#include <inttypes.h>

#include "base/file.h"
#include "base/progress.h"
#include "base/units.h"
#include "cli/cli.h"
#include "report/plan.h"
#include "spec/problems.h"

struct plan_options {
    bool json, pareto, no_progress;
    const char *tokens, *output, *precisions;
    int64_t gpus;
    int minimize;
};

static const struct mp_option options[] = {
    {.name = "tokens-per-step",
     .argument = "N",
     .kind = MP_OPTION_STRING,
     .target = offsetof(struct plan_options, tokens),
     .group = "Question",
     .help =
         "tokens of an optimizer step, all GPUs together, such as 4M (10^6 each; default: one micro-batch)"},
    {.name = "gpus",
     .argument = "N",
     .kind = MP_OPTION_INT,
     .target = offsetof(struct plan_options, gpus),
     .group = "Question",
     .help = "GPUs that may be used (default: 1)",
     .low = 1,
     .high = 1048576},
    {.name = "minimize",
     .argument = "WHAT",
     .kind = MP_OPTION_CHOICE,
     .target = offsetof(struct plan_options, minimize),
     .group = "Question",
     .help = "what to make small (default: time)",
     .values = "time|gpus|memory"},
    {.name = "precisions",
     .argument = "LIST",
     .kind = MP_OPTION_STRING,
     .target = offsetof(struct plan_options, precisions),
     .group = "Question",
     .help =
         "precisions that may be chosen, comma-separated, such as amp-bf16,bf16 (default: the run's only)"},
    {.name = "pareto",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct plan_options, pareto),
     .group = "Question",
     .help = "also list the plans that no other one beats in both memory and time"},
    {.name = "json",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct plan_options, json),
     .group = "Output",
     .help = "print JSON"},
    {.name = "output",
     .short_name = 'o',
     .argument = "FILE",
     .kind = MP_OPTION_OUTPUT,
     .target = offsetof(struct plan_options, output),
     .group = "Output",
     .help = "write to FILE instead of standard output"},
    {.name = "no-progress",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct plan_options, no_progress),
     .group = "Output",
     .help = "no progress on the terminal"},
};

const struct mp_command mp_command_plan = {
    .name = "plan",
    .sentence = "find the settings of a job that fit a GPU and take least time",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .takes_run = true,
    .examples = {"memplan plan --model llama2-7b --gpu A100-80G --seq 4096 --precision bf16 --tokens-per-step 4M",
                 "memplan plan --model gpt-1.3b --gpu A100-40G --pareto"},
    .exits = "  0 there is a plan\n  1 nothing fits\n",
};

static enum memplan_status read_tokens(const char *text, uint64_t *tokens, struct memplan_error *err)
{
    int64_t n = 0;
    if (!text)
        return MEMPLAN_STATUS_OK;
    const enum memplan_status status = mp_integer_parse(text, true, &n, err);
    if (status) {
        mp_error_prefix(err, "--tokens-per-step");
        return status;
    }
    if (n < 1)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--tokens-per-step: \"%.40s\" is not a positive number", text);
    *tokens = (uint64_t)n;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status no_precision(const char *text, size_t n, const char *known, struct memplan_error *err)
{
    struct mp_strbuf list = MP_STRBUF_INIT;
    mp_choice_list(&list, known, "or");
    mp_error_set(err, MEMPLAN_STATUS_INPUT, "--precisions: '%.*s' is not one of %s", (int)MP_MIN(n, 40), text, mp_strbuf_text(&list));
    mp_strbuf_release(&list);
    return MEMPLAN_STATUS_INPUT;
}

static enum memplan_status read_precisions(const char *text, unsigned *mask, struct memplan_error *err)
{
    const char *const known = mp_run_key_info(MP_KEY_PRECISION)->values;
    for (const char *c = text; c && *c;) {
        const size_t n = strcspn(c, ",");
        const int index = mp_choice_index(known, c, n);
        if (index < 0)
            return no_precision(c, n, known, err);
        *mask |= 1u << index;
        c += n + (c[n] == ',');
    }
    return MEMPLAN_STATUS_OK;
}

/* A step is so many micro-batches at most, each a sequence, or what the run gives, on every GPU. */
static enum memplan_status check_tokens(const struct mp_plan_request *request, struct memplan_error *err)
{
    const struct mp_run *const run = request->run;
    const uint64_t batch = mp_run_is_given(run, MP_KEY_BATCH) ? (uint64_t)run->batch : 1, gpus = (uint64_t)MP_MAX(request->gpus, run->world);
    uint64_t most = MP_ACCUMULATE_MAX;
    if (!mp_mul_u64(most, batch, &most) || !mp_mul_u64(most, (uint64_t)run->seq, &most) || !mp_mul_u64(most, gpus, &most) ||
        request->tokens_per_step <= most)
        return MEMPLAN_STATUS_OK;
    return mp_error_set(err, MEMPLAN_STATUS_RANGE,
                        "--tokens-per-step: %" PRIu64 " are more than %d micro-batches of %" PRIu64 " x %" PRId64 " tokens on each of %" PRIu64
                        " GPUs; give at most %" PRIu64 ", or more --gpus",
                        request->tokens_per_step, MP_ACCUMULATE_MAX, batch, run->seq, gpus, most);
}

static enum memplan_status check(const struct mp_plan_request *request, struct memplan_error *err)
{
    const struct mp_run *const run = request->run;
    if (request->tokens_per_step > 0 && mp_run_is_given(run, MP_KEY_ACCUMULATE))
        return mp_error_set(
            err, MEMPLAN_STATUS_INPUT,
            "--tokens-per-step: the accumulation follows from it, and the run gives one; give one of them");
    if (request->precisions && mp_run_is_given(run, MP_KEY_PRECISION))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--precisions: the run gives a precision; give one of them");
    if (run->n_seq_lengths > 0)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "seq_lengths: plans are made for one length; give seq, the longest");
    if (request->gpus > 1 && run->world > 1 && run->world != request->gpus)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--gpus: the run has a world of its own; give one of them");
    if (mp_run_is_given(run, MP_KEY_DATA_PARALLEL) && request->gpus > 1 && run->world == 1)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--data-parallel: give --world too, or leave it out for the plan to choose");
    return check_tokens(request, err);
}

static enum memplan_status write_report(const struct plan_options *o, const struct mp_plan *plan, struct memplan_error *err)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    if (o->json)
        mp_report_plan_json(plan, &out);
    else
        mp_report_plan_text(plan, &out);
    const enum memplan_status status = out.failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing the report")
                                                  : mp_file_write(o->output ? o->output : "-", out.data, out.len, err);
    mp_strbuf_release(&out);
    return status;
}

static void report_progress(void *context, uint64_t n_done) { mp_progress_update(context, n_done); }

static enum memplan_status make(const struct plan_options *o, const struct mp_run_source *source, bool *found, struct memplan_error *err)
{
    struct mp_progress progress;
    struct mp_plan_request request = {.gpus = MP_MAX(o->gpus, 1), .aim = (enum mp_plan_aim)o->minimize, .pareto = o->pareto,
                                      .progress = report_progress, .context = &progress};
    struct mp_plan plan;
    enum memplan_status status = read_tokens(o->tokens, &request.tokens_per_step, err);
    if (!status)
        status = read_precisions(o->precisions, &request.precisions, err);
    request.run = status ? NULL : mp_run_resolve(source, err);
    if (!request.run)
        return err->status;
    for (size_t i = 0; i < request.run->n_warnings; i++)
        mp_cli_warn("plan", request.run->warnings[i]);
    status = check(&request, err);
    mp_progress_start(&progress, "settings tried", 0, !o->no_progress);
    if (!status)
        status = mp_plan_make(&request, &plan, err);
    mp_progress_end(&progress);
    if (status)
        return status;
    *found = plan.best != NULL;
    status = write_report(o, &plan, err);
    mp_plan_release(&plan);
    return status;
}

int mp_cmd_plan(int argc, char **argv)
{
    struct plan_options o = {0};
    struct mp_run_source source;
    struct mp_operands operands;
    struct memplan_error err = {0};
    struct mp_arena arena;
    int exit_status;
    bool found = false;
    mp_arena_init(&arena);
    mp_run_source_init(&source, &arena);
    if (mp_options_parse(&mp_command_plan, argc, argv, &o, &source, &operands, &exit_status) == MP_OPTIONS_DONE) {
        mp_arena_release(&arena);
        return exit_status;
    }
    const enum memplan_status status = make(&o, &source, &found, &err);
    mp_arena_release(&arena);
    if (status)
        return mp_cli_fail("plan", &err);
    return found ? MP_EXIT_YES : MP_EXIT_NO;
}
