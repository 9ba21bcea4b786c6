/* SPDX-License-Identifier: MIT */
/* `memplan sweep`: the verdict of fit for every point of a grid. */
#include <errno.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include "base/progress.h"
#include "base/units.h"
#include "cli/cli.h"
#include "report/sweep.h"

struct sweep_options {
    bool json, resume, no_progress;
    const char *output, *shard, *heatmap;
    int64_t jobs;
};

static const struct mp_option options[] = {
    {.name = "jobs",
     .short_name = 'j',
     .argument = "N",
     .kind = MP_OPTION_INT,
     .target = offsetof(struct sweep_options, jobs),
     .group = "Work",
     .help = "threads (default: one for each processor); the output is the same for any number",
     .low = 1,
     .high = 1024},
    {.name = "shard",
     .argument = "I/N",
     .kind = MP_OPTION_STRING,
     .target = offsetof(struct sweep_options, shard),
     .group = "Work",
     .help = "only part I of N, from 1/N to N/N; memplan merge puts the parts together"},
    {.name = "resume",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct sweep_options, resume),
     .group = "Work",
     .help = "keep the points that the output file has already"},
    {.name = "no-progress",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct sweep_options, no_progress),
     .group = "Work",
     .help = "no progress on the terminal"},
    {.name = "output",
     .short_name = 'o',
     .argument = "FILE",
     .kind = MP_OPTION_OUTPUT,
     .target = offsetof(struct sweep_options, output),
     .group = "Output",
     .help =
         "write to FILE, as .csv, .json, .jsonl, .html or .svg; without it CSV goes to standard output"},
    {.name = "json",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct sweep_options, json),
     .group = "Output",
     .help = "print JSON, not CSV"},
    {.name = "heatmap",
     .argument = "X,Y",
     .kind = MP_OPTION_STRING,
     .target = offsetof(struct sweep_options, heatmap),
     .group = "Output",
     .help =
         "axes of the map in .svg and .html, such as batch,seq (default: the first two lists of numbers)"},
};

const struct mp_command mp_command_sweep = {
    .name = "sweep",
    .operands = "GRID",
    .sentence = "give the verdict of fit for every point of a grid",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .examples = {"memplan sweep configs/grids/gpt-1.3b.yaml -o out.csv", "memplan sweep grid.yaml --heatmap batch,seq -o map.svg"},
    .more_exits = "  3 also: interrupted; the file holds the points that were done, --resume\n"
                  "    goes on\n",
    .min_operands = 1,
    .max_operands = 1,
};

/* Set by a signal, read by the workers. */
static volatile sig_atomic_t stopped;

static void on_signal(int number) { stopped = number; }

/* Once: a second Ctrl-C ends the process as usual. */
static void catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
}

static enum memplan_status parse_shard(const char *text, int64_t *shard, int64_t *n, struct memplan_error *err)
{
    const char *const slash = text ? strchr(text, '/') : NULL;
    char first[24];
    struct memplan_error ignored = {0};
    *shard = *n = 1;
    if (!text)
        return MEMPLAN_STATUS_OK;
    const size_t length = slash ? (size_t)(slash - text) : 0;
    if (slash && length < sizeof first) {
        memcpy(first, text, length);
        first[length] = '\0';
        if (mp_integer_parse(first, false, shard, &ignored) == MEMPLAN_STATUS_OK &&
            mp_integer_parse(slash + 1, false, n, &ignored) == MEMPLAN_STATUS_OK && *shard >= 1 && *shard <= *n)
            return MEMPLAN_STATUS_OK;
    }
    return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--shard: \"%.40s\" is not I/N with I from 1 to N, such as 2/8", text);
}

static bool is_drawing(enum mp_sweep_format format) { return format == MP_SWEEP_SVG || format == MP_SWEEP_HTML; }

static enum memplan_status check(const struct sweep_options *o, enum mp_sweep_format format, struct memplan_error *err)
{
    if (is_drawing(format) && (o->shard || o->resume))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: a drawing cannot be %s; write .csv, .json or .jsonl", o->output,
                            o->shard ? "put together from parts" : "continued");
    if (o->heatmap && !is_drawing(format))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--heatmap: needs -o with a name that ends in .svg or .html");
    if (o->json && o->output && strcmp(o->output, "-") != 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--json: the name after -o says the format; leave one of them out");
    if (o->resume && (!o->output || strcmp(o->output, "-") == 0))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--resume: needs -o FILE, the file to go on with");
    return MEMPLAN_STATUS_OK;
}

/* ---- going on with a file ---- */

struct resumption {
    struct mp_sweep *sweep;
    const char *path;
};

static enum memplan_status keep_row(void *context, const struct mp_sweep_record *record, struct memplan_error *err)
{
    const struct resumption *const r = context;
    if (strcmp(record->tag, r->sweep->tag) != 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "%s: its rows are of grid %s, not of this one (%s); give another -o",
                            r->path, record->tag, r->sweep->tag);
    struct mp_sweep_row *const row = mp_sweep_row(r->sweep, record->point);
    if (!row)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "%s: point %" PRIu64 " is not one of this shard; give another -o",
                            r->path, record->point);
    *row = record->row;
    if (record->row.decided == MP_DECIDED_ERROR && !mp_sweep_set_error(r->sweep, row, record->error))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status take_up(const struct sweep_options *o, enum mp_sweep_format format,
                                   struct mp_sweep *sweep, struct memplan_error *err)
{
    struct resumption r = {sweep, o->output};
    if (!o->resume || access(o->output, F_OK) != 0)
        return MEMPLAN_STATUS_OK;
    return mp_sweep_read_rows(o->output, format, NULL, keep_row, &r, err);
}

/* ---- the whole ---- */

static void report_progress(void *context, uint64_t n_done) { mp_progress_update(context, n_done); }

static enum memplan_status run(const struct sweep_options *o, struct mp_sweep *sweep, bool *finished, struct memplan_error *err)
{
    struct mp_progress progress;
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const struct mp_sweep_options how = {.jobs = (int)(o->jobs ? o->jobs : MP_MAX(online, 1)),
                                         .stop = &stopped,
                                         .progress = report_progress,
                                         .context = &progress};
    /* Every point makes and drops the same few megabytes: keep them, the system would clear them each time. */
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
    (void)mallopt(M_TRIM_THRESHOLD, 512 << 20);
    catch_signals();
    mp_progress_start(&progress, "sweep", sweep->n_rows, !o->no_progress);
    const enum memplan_status status = mp_sweep_run(sweep, &how, finished, err);
    mp_progress_end(&progress);
    return status;
}

static enum memplan_status draw(const struct sweep_options *o, const struct mp_sweep *sweep,
                                enum mp_sweep_format format, struct mp_sink *sink,
                                struct memplan_error *err)
{
    struct mp_sweep_map map;
    struct mp_strbuf out = MP_STRBUF_INIT;
    enum memplan_status status = mp_sweep_map_init(&map, sweep, o->heatmap, err);
    if (!status)
        status = format == MP_SWEEP_SVG ? mp_sweep_write_svg(&map, &out, err) : mp_sweep_write_html(&map, &out, err);
    if (!status)
        status = mp_sink_put(sink, &out, err);
    mp_strbuf_release(&out);
    return status;
}

static enum memplan_status write_output(const struct sweep_options *o, const struct mp_sweep *sweep, enum mp_sweep_format format,
                                        struct memplan_error *err)
{
    struct mp_sink *const sink = mp_sink_open(o->output, err);
    if (!sink)
        return err->status;
    const enum memplan_status status =
        is_drawing(format) ? draw(o, sweep, format, sink, err) : mp_sweep_write_rows(sweep, format, sink, err);
    return mp_sink_close(sink, status, err);
}

/* On standard output, when the rows went elsewhere. */
static void print_summary(const struct sweep_options *o, const struct mp_sweep *sweep)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    if (!o->output || strcmp(o->output, "-") == 0)
        return;
    mp_sweep_write_summary(sweep, &out);
    (void)fputs(mp_strbuf_text(&out), stdout);
    mp_strbuf_release(&out);
}

static enum memplan_status sweep_grid(const struct sweep_options *o, enum mp_sweep_format format,
                                      struct mp_sweep *sweep, struct memplan_error *err)
{
    if (sweep->n_rows == 0 && !o->shard)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "where: no point of the grid meets it");
    bool finished = false;
    struct mp_sweep_map map;
    enum memplan_status status = is_drawing(format) ? mp_sweep_map_init(&map, sweep, o->heatmap, err) : MEMPLAN_STATUS_OK;
    if (!status)
        status = take_up(o, format, sweep, err);
    if (!status)
        status = run(o, sweep, &finished, err);
    if (!status)
        status = write_output(o, sweep, format, err);
    if (status)
        return status;
    print_summary(o, sweep);
    if (!finished)
        return mp_error_set(err, MEMPLAN_STATUS_IO, "interrupted; %s",
                            is_drawing(format) ? "the drawing has only the points that were done"
                            : o->output && !o->resume ? "the same command with --resume goes on"
                                                      : "the same command goes on");
    return MEMPLAN_STATUS_OK;
}

int mp_cmd_sweep(int argc, char **argv)
{
    struct sweep_options o = {0};
    struct mp_operands operands;
    struct memplan_error err = {0};
    struct mp_arena arena;
    struct mp_sweep sweep;
    enum mp_sweep_format format;
    int64_t shard, n_shards;
    int exit_status;
    if (mp_options_parse(&mp_command_sweep, argc, argv, &o, NULL, &operands, &exit_status) == MP_OPTIONS_DONE)
        return exit_status;
    mp_arena_init(&arena);
    enum memplan_status status = mp_sweep_format_of(o.output, &format, &err);
    if (!status && o.json)
        format = MP_SWEEP_JSON;
    if (!status)
        status = check(&o, format, &err);
    if (!status)
        status = parse_shard(o.shard, &shard, &n_shards, &err);
    const struct mp_grid *const grid = status ? NULL : mp_grid_read(&arena, operands.items[0], &err);
    if (grid && mp_sweep_open(&sweep, grid, shard, n_shards, &err) == MEMPLAN_STATUS_OK) {
        (void)sweep_grid(&o, format, &sweep, &err);
        mp_sweep_release(&sweep);
    }
    mp_arena_release(&arena);
    return err.status ? mp_cli_fail("sweep", &err) : MP_EXIT_YES;
}
