/* SPDX-License-Identifier: MIT */
/* `memplan compare`: predicted beside measured, and the batch interface: JSON Lines in, one process for thousands of specs. */
#include <inttypes.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "report/compare.h"

struct compare_options {
    bool json, no_progress;
    const char *require, *output;
};

static const struct mp_option options[] = {
    {.name = "require",
     .argument = "LIST",
     .kind = MP_OPTION_STRING,
     .target = offsetof(struct compare_options, require),
     .group = "Question",
     .help =
         "QUANTITY:TOLERANCE:PERCENT of runs, comma-separated; exit 1 when one is missed. Quantities: requested, allocated, reserved, "
         "device_used, oom, max_batch"},
    {.name = "json",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct compare_options, json),
     .group = "Output",
     .help = "print one JSON object"},
    {.name = "output",
     .short_name = 'o',
     .argument = "FILE",
     .kind = MP_OPTION_OUTPUT,
     .target = offsetof(struct compare_options, output),
     .group = "Output",
     .help = "write to FILE instead of standard output"},
    {.name = "no-progress",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct compare_options, no_progress),
     .group = "Output",
     .help = "no progress on the terminal"},
};

const struct mp_command mp_command_compare = {
    .name = "compare",
    .operands = "FILE...",
    .sentence = "predict the runs of a measured-run file and show the errors",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .examples = {"memplan compare validate/results/h200-runs.jsonl", "memplan compare runs.jsonl --require reserved:1%:95,requested:0:100"},
    .exits = "  0 done, every requirement met\n  1 a requirement is missed\n",
    .more_exits = "  2 also: a line has errors; the others are predicted all the same\n",
    .min_operands = 1,
    .max_operands = -1,
};

static enum memplan_status compare_file(struct mp_comparison *c, const char *path, struct mp_progress *progress, struct memplan_error *err)
{
    struct mp_measured_reader *reader = mp_measured_open(path, err);
    struct mp_arena arena;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (!reader)
        return err->status;
    mp_arena_init(&arena);
    while (!status) {
        const struct mp_arena_mark mark = mp_arena_mark(&arena);
        struct mp_measured_line line;
        struct memplan_error why = {0};
        bool end = false;
        const enum memplan_status read = mp_measured_next(reader, &arena, &line, &end, &why);
        if (end) {
            if (read)
                status = mp_error_set(err, read, "%s", why.text);
            break;
        }
        if (read == MEMPLAN_STATUS_NOMEM)
            status = mp_error_set(err, read, "%s", why.text);
        else if (read)
            mp_comparison_add_damaged(c, &line, &why);
        else
            status = mp_comparison_add(c, &line, &arena, NULL, err);
        mp_arena_rewind(&arena, mark);
        mp_progress_update(progress, c->n_lines);
    }
    mp_arena_release(&arena);
    mp_measured_close(reader);
    return status;
}

/* Lines with errors are no answer, whatever the others say. */
static int exit_status_of(const struct mp_comparison *c, size_t n_missed)
{
    if (c->n_failed == 0)
        return n_missed == 0 ? MP_EXIT_YES : MP_EXIT_NO;
    (void)fprintf(stderr, "memplan compare: %" PRIu64 " of %" PRIu64 " lines with errors\n", c->n_failed, c->n_lines);
    return MP_EXIT_USAGE;
}

static enum memplan_status compare(const struct compare_options *o, const struct mp_operands *files,
                                   int *exit_status, struct memplan_error *err)
{
    struct mp_requirement requirements[MP_MAX_REQUIREMENTS];
    struct mp_comparison c;
    struct mp_progress progress;
    struct mp_strbuf out = MP_STRBUF_INIT, misses = MP_STRBUF_INIT;
    size_t n_requirements = 0;
    enum memplan_status status = o->require ? mp_requirements_parse(o->require, requirements, &n_requirements, err) : MEMPLAN_STATUS_OK;
    if (status)
        return status;
    mp_comparison_init(&c, o->json);
    mp_progress_start(&progress, "comparing", 0, !o->no_progress);
    for (int i = 0; i < files->n && !status; i++)
        status = compare_file(&c, files->items[i], &progress, err);
    mp_progress_end(&progress);
    if (!status) {
        mp_comparison_write(&c, &out);
        const size_t n_missed = mp_comparison_check(&c, requirements, n_requirements, &misses);
        status = out.failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing the report")
                            : mp_file_write(o->output ? o->output : "-", out.data, out.len, err);
        (void)fputs(mp_strbuf_text(&misses), stderr);
        *exit_status = exit_status_of(&c, n_missed);
    }
    mp_strbuf_release(&out);
    mp_strbuf_release(&misses);
    mp_comparison_release(&c);
    return status;
}

int mp_cmd_compare(int argc, char **argv)
{
    struct compare_options o = {0};
    struct mp_operands files;
    struct memplan_error err = {0};
    int exit_status;
    if (mp_options_parse(&mp_command_compare, argc, argv, &o, NULL, &files, &exit_status) == MP_OPTIONS_DONE)
        return exit_status;
    if (compare(&o, &files, &exit_status, &err))
        return mp_cli_fail("compare", &err);
    return exit_status;
}
