/* SPDX-License-Identifier: MIT */
/* `memplan fit`: does the job fit, and what does it take. */
#include "base/file.h"
#include "cli/cli.h"
#include "plan/judge.h"
#include "report/history.h"
#include "report/program.h"
#include "report/report.h"

struct fit_options {
    bool json, no_advice, max_batch, per_rank;
    const char *output, *snapshot, *program, *html, *svg;
    int color;
};

static const struct mp_option options[] = {
    {.name = "max-batch", .kind = MP_OPTION_FLAG, .target = offsetof(struct fit_options, max_batch), .group = "Question",
     .help = "find the largest micro-batch that fits"},
    {.name = "per-rank", .kind = MP_OPTION_FLAG, .target = offsetof(struct fit_options, per_rank), .group = "Question",
     .help = "what every rank takes, the worst first"},
    {.name = "no-advice", .kind = MP_OPTION_FLAG, .target = offsetof(struct fit_options, no_advice), .group = "Question",
     .help = "leave out what would help"},
    {.name = "json", .kind = MP_OPTION_FLAG, .target = offsetof(struct fit_options, json), .group = "Output", .help = "print JSON"},
    {.name = "output", .short_name = 'o', .argument = "FILE", .kind = MP_OPTION_OUTPUT, .target = offsetof(struct fit_options, output),
     .group = "Output", .help = "write the report to FILE instead of standard output"},
    {.name = "snapshot", .argument = "FILE", .kind = MP_OPTION_OUTPUT, .target = offsetof(struct fit_options, snapshot), .group = "Output",
     .help = "write the predicted history as a PyTorch memory snapshot, for its memory viewer"},
    {.name = "program", .argument = "FILE", .kind = MP_OPTION_OUTPUT, .target = offsetof(struct fit_options, program), .group = "Output",
     .help = "write the operations and memory events of the job, for memplan validate"},
    {.name = "html", .argument = "FILE", .kind = MP_OPTION_OUTPUT, .target = offsetof(struct fit_options, html), .group = "Output",
     .help = "write the report as a page with a timeline and a memory map"},
    {.name = "svg", .argument = "FILE", .kind = MP_OPTION_OUTPUT, .target = offsetof(struct fit_options, svg), .group = "Output",
     .help = "write the timeline as a picture"},
    {.name = "color", .argument = "WHEN", .kind = MP_OPTION_CHOICE, .target = offsetof(struct fit_options, color), .group = "Output",
     .help = "when to use colour (default: auto)", .values = "auto|always|never"},
};

const struct mp_command mp_command_fit = {
    .name = "fit",
    .sentence = "say whether a training job fits a GPU, and what it takes",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .takes_run = true,
    .exits = "  0 it fits\n  1 it does not fit\n",
    .examples = {"memplan fit --gpu A100-80G --model gpt-1.3b",
                 "memplan fit --gpu RTX4090-24G --model llama3.2-1b --precision bf16 --max-batch"},
};

/* The run as it was asked for, or with the largest batch that fits. */
static enum memplan_status choose_batch(const struct fit_options *o, struct mp_run *run,
                                        struct mp_fit_report *report, struct memplan_error *err)
{
    if (!o->max_batch)
        return MEMPLAN_STATUS_OK;
    report->has_max_batch = true;
    const enum memplan_status status = mp_max_batch(run, &report->max_batch, &report->max_batch_again, err);
    run->batch = MP_MAX(report->max_batch, 1);
    run->given |= UINT64_C(1) << MP_KEY_BATCH;
    return status;
}

static enum memplan_status write_report(const struct fit_options *o, const struct mp_fit_report *report, struct memplan_error *err)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    if (o->json)
        mp_report_fit_json(report, &out);
    else
        mp_report_fit_text(report, &out);
    const enum memplan_status status = out.failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing the report")
                                                  : mp_file_write(o->output ? o->output : "-", out.data, out.len, err);
    mp_strbuf_release(&out);
    return status;
}

/* A picture of the evaluation as a file; path NULL: not asked for. */
static enum memplan_status write_picture(const char *path, const struct mp_fit_report *report,
                                         enum memplan_status (*draw)(const struct mp_fit_report *,
                                                                     struct mp_strbuf *,
                                                                     struct memplan_error *),
                                         struct memplan_error *err)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    if (!path)
        return MEMPLAN_STATUS_OK;
    enum memplan_status status = draw(report, &out, err);
    if (!status)
        status = mp_file_write(path, out.data, out.len, err);
    mp_strbuf_release(&out);
    return status;
}

static enum memplan_status report_evaluation(const struct fit_options *o, struct mp_arena *arena, const struct mp_fit_report *chosen,
                                             const struct mp_evaluation *e, struct memplan_error *err)
{
    struct mp_fit_report report = *chosen; /* what it points to from here on lives in this function */
    struct mp_rank_kinds ranks;
    struct mp_advice advice[MP_MAX_ADVICE];
    const uint32_t moment = e->oom ? (e->oom_event ? e->oom_event - 1 : 0) : e->peak_event;
    report.evaluation = e;
    report.ledger = mp_ledger_at(&e->program, moment, arena, err);
    if (!report.ledger)
        return err->status;
    if (!o->no_advice) {
        const enum memplan_status status = mp_advise(e, advice, &report.n_advice, err);
        if (status)
            return status;
        report.advice = advice;
    }
    if (o->per_rank) {
        const enum memplan_status compared = mp_rank_kinds_evaluate(e->run, arena, &ranks, err);
        if (compared)
            return compared;
        report.ranks = &ranks;
    }
    report.color = !o->output && mp_cli_color((enum mp_color)o->color, stdout);
    enum memplan_status status = write_report(o, &report, err);
    if (!status)
        status = write_picture(o->html, &report, mp_report_fit_html, err);
    if (!status)
        status = write_picture(o->svg, &report, mp_report_fit_svg, err);
    return status;
}

static enum memplan_status write_snapshot(const char *path, const struct mp_run *run, struct memplan_error *err)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    enum memplan_status status = mp_report_snapshot(run, &out, err);
    if (!status)
        status = mp_file_write(path, out.data, out.len, err);
    mp_strbuf_release(&out);
    return status;
}

static enum memplan_status write_program(const char *path, const struct mp_run *run, struct memplan_error *err)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    enum memplan_status status = mp_report_program(run, &out, err);
    if (!status)
        status = mp_file_write(path, out.data, out.len, err);
    mp_strbuf_release(&out);
    return status;
}

static enum memplan_status fit(const struct fit_options *o, const struct mp_run_source *source, bool *fits, struct memplan_error *err)
{
    struct mp_fit_report report = {0};
    struct mp_evaluation e;
    const struct mp_run *resolved = mp_run_resolve(source, err);
    if (!resolved)
        return err->status;
    for (size_t i = 0; i < resolved->n_warnings; i++)
        mp_cli_warn("fit", resolved->warnings[i]);
    struct mp_run run = *resolved;
    enum memplan_status status = choose_batch(o, &run, &report, err);
    if (!status)
        status = mp_evaluate(&run, &(struct mp_evaluate_options){.keep_tags = true}, &e, err);
    if (status)
        return status;
    *fits = report.has_max_batch ? report.max_batch > 0 : e.fits;
    status = report_evaluation(o, source->arena, &report, &e, err);
    mp_evaluation_release(&e);
    if (!status && o->snapshot)
        status = write_snapshot(o->snapshot, &run, err);
    if (!status && o->program)
        status = write_program(o->program, &run, err);
    return status;
}

/* --max-batch passes over the batch of a run file, but not over what was typed beside it. */
static bool asks_for_two_batches(const struct fit_options *o, const struct mp_run_source *source, int *exit_status)
{
    const bool both = o->max_batch && source->values[MP_KEY_BATCH] != NULL && strcmp(source->origins[MP_KEY_BATCH], "--batch") == 0;
    if (both)
        *exit_status = mp_options_usage_error("fit", "--max-batch looks for the batch; leave --batch out");
    return both;
}

int mp_cmd_fit(int argc, char **argv)
{
    struct fit_options o = {0};
    struct mp_run_source source;
    struct mp_operands operands;
    struct memplan_error err = {0};
    struct mp_arena arena;
    int exit_status;
    bool fits = false;
    mp_arena_init(&arena);
    mp_run_source_init(&source, &arena);
    if (mp_options_parse(&mp_command_fit, argc, argv, &o, &source, &operands, &exit_status) == MP_OPTIONS_DONE ||
        asks_for_two_batches(&o, &source, &exit_status)) {
        mp_arena_release(&arena);
        return exit_status;
    }
    const enum memplan_status status = fit(&o, &source, &fits, &err);
    mp_arena_release(&arena);
    if (status)
        return mp_cli_fail("fit", &err);
    return fits ? MP_EXIT_YES : MP_EXIT_NO;
}
