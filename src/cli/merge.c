/* SPDX-License-Identifier: MIT */
/* `memplan merge`: the parts of a sharded sweep, put together. */
#include <inttypes.h>

#include "cli/cli.h"
#include "report/sweep.h"

struct merge_options {
    const char *output;
};

static const struct mp_option options[] = {
    {.name = "output", .short_name = 'o', .argument = "FILE", .kind = MP_OPTION_OUTPUT, .target = offsetof(struct merge_options, output),
     .group = "Output", .help = "write to FILE, in the format of the parts, instead of standard output"},
};

const struct mp_command mp_command_merge = {
    .name = "merge",
    .operands = "PART...",
    .sentence = "put the parts of a sharded sweep together",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .examples = {"memplan merge part-*.csv -o all.csv"},
    .exits = "  0 done\n  1 points of the grid are in none of the parts; the others were written\n",
    .min_operands = 1,
    .max_operands = -1,
};

static enum memplan_status merge(const struct merge_options *o, const struct mp_operands *parts,
                                 uint64_t *missing, struct memplan_error *err)
{
    enum mp_sweep_format format, wanted = MP_SWEEP_CSV;
    enum memplan_status status = mp_sweep_format_of(parts->items[0], &format, err);
    if (!status)
        status = mp_sweep_format_of(o->output, &wanted, err);
    if (!status && (format == MP_SWEEP_SVG || format == MP_SWEEP_HTML))
        status = mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: a drawing is not a part; parts are .csv, .json or .jsonl", parts->items[0]);
    if (!status && o->output && strcmp(o->output, "-") != 0 && wanted != format)
        status = mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: not in the format of the parts, whose names end as in '%s'", o->output,
                              parts->items[0]);
    struct mp_sink *const sink = status ? NULL : mp_sink_open(o->output, err);
    if (!sink)
        return err->status;
    status = mp_sweep_merge((const char *const *)parts->items, (size_t)parts->n, format, sink, missing, err);
    return mp_sink_close(sink, status, err);
}

int mp_cmd_merge(int argc, char **argv)
{
    struct merge_options o = {0};
    struct mp_operands parts;
    struct memplan_error err = {0};
    uint64_t missing = 0;
    int exit_status;
    if (mp_options_parse(&mp_command_merge, argc, argv, &o, NULL, &parts, &exit_status) == MP_OPTIONS_DONE)
        return exit_status;
    if (merge(&o, &parts, &missing, &err))
        return mp_cli_fail("merge", &err);
    if (missing == 0)
        return MP_EXIT_YES;
    (void)fprintf(stderr, "memplan merge: %" PRIu64 " points of the grid are in none of the parts\n", missing);
    return MP_EXIT_NO;
}
