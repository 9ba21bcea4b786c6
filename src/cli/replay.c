/* SPDX-License-Identifier: MIT */
/* `memplan replay`: a recorded allocation history under other allocator settings, ranked. */
#include <inttypes.h>

#include "base/file.h"
#include "base/json.h"
#include "base/table.h"
#include "base/units.h"
#include "cli/cli.h"
#include "memory/replay.h"

#define SCHEMA_VERSION 1

struct replay_options {
    bool json;
    struct mp_option_list conf;
    uint64_t limit_bytes;
    const char *torch;
    const char *svg, *html;
    int64_t device;
};

static const struct mp_option options[] = {
    {.name = "conf",
     .argument = "CONF",
     .kind = MP_OPTION_LIST,
     .target = offsetof(struct replay_options, conf),
     .group = "What to try",
     .help =
         "settings as in PYTORCH_CUDA_ALLOC_CONF; may be repeated; default: a list of usual ones"},
    {.name = "limit",
     .argument = "BYTES",
     .kind = MP_OPTION_BYTES,
     .target = offsetof(struct replay_options, limit_bytes),
     .group = "What to try",
     .help = "memory that the process may reserve, as 79GiB; default: what the recording says"},
    {.name = "torch",
     .argument = "VERSION",
     .kind = MP_OPTION_STRING,
     .target = offsetof(struct replay_options, torch),
     .group = "What to try",
     .help = "rules of that release; default 2.11",
     .values = "1.13|2.0|2.1|2.2|2.3|2.4|2.5|2.6|2.7|2.8|2.9|2.10|2.11|2.12"},
    {.name = "device",
     .argument = "N",
     .kind = MP_OPTION_INT,
     .target = offsetof(struct replay_options, device),
     .group = "Input",
     .help = "GPU whose history is taken; default: the first that has one",
     .low = -1,
     .high = 1023},
    {.name = "json",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct replay_options, json),
     .group = "Output",
     .help = "print JSON"},
    {.name = "svg",
     .argument = "FILE",
     .kind = MP_OPTION_OUTPUT,
     .target = offsetof(struct replay_options, svg),
     .group = "Output",
     .help = "draw the segments over time, holes visible (of the first --conf)"},
    {.name = "html",
     .argument = "FILE",
     .kind = MP_OPTION_OUTPUT,
     .target = offsetof(struct replay_options, html),
     .group = "Output",
     .help = "the same as a page"},
};

const struct mp_command mp_command_replay = {
    .name = "replay",
    .operands = "FILE",
    .sentence = "replay a recorded history under other allocator settings",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .examples = {"memplan replay snapshot.pickle",
                 "memplan replay snapshot.pickle --conf expandable_segments:True --limit 79GiB"},
    .exits = "  0 done\n  1 every setting runs out of memory at the limit\n",
    .min_operands = 1,
    .max_operands = 1,
};

/* What is tried when nothing is asked for; settings that the release does not know are left out. */
static const char *const usual[] = {
    "",
    "expandable_segments:True",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:8",
    "large_segment_size_mb:64",
    "garbage_collection_threshold:0.8",
};

enum { MAX_TRIALS = MP_OPTION_LIST_MAX + 8 };

struct trial {
    const char *conf;
    struct mp_replay_options options;
    struct mp_replay_result result;
};

struct session {
    const struct replay_options *o;
    const char *path;
    mp_torch_version torch;
    struct mp_history history;
    struct trial trials[MAX_TRIALS];
    size_t n_trials;
    size_t ranking[MAX_TRIALS];
};

static const char *recorded_conf(const struct session *s)
{
    return s->history.conf ? s->history.conf : "";
}

/* ---- trials ---- */

static bool is_tried(const struct session *s, const char *conf)
{
    for (size_t i = 0; i < s->n_trials; i++) {
        if (strcmp(s->trials[i].conf, conf) == 0)
            return true;
    }
    return false;
}

static enum memplan_status try_conf(struct session *s, const char *conf, bool as_recorded,
                                    struct memplan_error *err)
{
    const struct mp_history *h = &s->history;
    struct trial *t = &s->trials[s->n_trials];
    *t = (struct trial){.conf = conf};
    t->options.torch = s->torch;
    t->options.as_recorded = as_recorded;
    if (as_recorded || !s->o->limit_bytes) {
        t->options.limit_bytes = h->limit_bytes;
        /* without a cap, the recorded failures say what the card could give */
        t->options.capacity_bytes = as_recorded || h->limit_bytes ? 0 : h->capacity_bytes;
    } else {
        t->options.limit_bytes = s->o->limit_bytes;
    }
    const enum memplan_status status =
        mp_allocator_conf_parse(conf, s->torch, &t->options.conf, err);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    if (t->options.conf.backend_async)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "'%s': the driver's own pool is not simulated; try native settings",
                            conf);
    s->n_trials++;
    return mp_replay_run(h, &t->options, &t->result, err);
}

static enum memplan_status try_usual(struct session *s, struct memplan_error *err)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(usual); i++) {
        struct mp_allocator_conf conf;
        const bool known =
            mp_allocator_conf_parse(usual[i], s->torch, &conf, NULL) == MEMPLAN_STATUS_OK;
        const bool limited = s->o->limit_bytes || s->history.limit_bytes;
        if (!known || (conf.garbage_collection_threshold > 0 && !limited) || is_tried(s, usual[i]))
            continue;
        const enum memplan_status status = try_conf(s, usual[i], false, err);
        if (status != MEMPLAN_STATUS_OK)
            return status;
    }
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status run_trials(struct session *s, struct memplan_error *err)
{
    enum memplan_status status = try_conf(s, recorded_conf(s), true, err);
    /* the recorded settings once more where the limit is another than the recorded one */
    if (status == MEMPLAN_STATUS_OK && s->o->limit_bytes &&
        s->o->limit_bytes != s->history.limit_bytes)
        status = try_conf(s, recorded_conf(s), false, err);
    for (size_t i = 0; status == MEMPLAN_STATUS_OK && i < s->o->conf.n; i++)
        status = try_conf(s, s->o->conf.items[i], false, err);
    if (status == MEMPLAN_STATUS_OK && s->o->conf.n == 0)
        status = try_usual(s, err);
    return status;
}

/* Better first: lives, reserves less, retries less. */
static bool is_better(const struct trial *a, const struct trial *b)
{
    const uint64_t x = a->result.stats.reserved_bytes[MP_STAT_ALL].peak;
    const uint64_t y = b->result.stats.reserved_bytes[MP_STAT_ALL].peak;
    if (a->result.oom != b->result.oom)
        return !a->result.oom;
    if (a->result.oom && a->result.oom_entry != b->result.oom_entry)
        return a->result.oom_entry > b->result.oom_entry;
    if (x != y)
        return x < y;
    return a->result.stats.num_alloc_retries < b->result.stats.num_alloc_retries;
}

static void rank(struct session *s)
{
    for (size_t i = 0; i < s->n_trials; i++) {
        size_t k = i;
        for (; k > 0 && is_better(&s->trials[i], &s->trials[s->ranking[k - 1]]); k--)
            s->ranking[k] = s->ranking[k - 1];
        s->ranking[k] = i;
    }
}

/* ---- text ---- */

static const char *shown_conf(const char *conf)
{
    return *conf ? conf : "(defaults)";
}

static void add_bytes(struct mp_table *table, uint64_t bytes)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_bytes_format(&text, bytes);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
    mp_strbuf_release(&text);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole ? 100.0 * (double)part / (double)whole : 0.0;
}

static void add_trial(struct mp_table *table, const struct session *s, size_t place)
{
    const struct trial *t = &s->trials[s->ranking[place]];
    const struct mp_replay_result *r = &t->result;
    const uint64_t allocated = r->stats.allocated_bytes[MP_STAT_ALL].peak;
    mp_table_cell(table, "%zu", place + 1);
    mp_table_cell(table, "%s%s", shown_conf(t->conf), t->options.as_recorded ? " (recorded)" : "");
    add_bytes(table, r->stats.requested_bytes[MP_STAT_ALL].peak);
    add_bytes(table, allocated);
    add_bytes(table, r->stats.reserved_bytes[MP_STAT_ALL].peak);
    mp_table_cell(
        table, "%.1f %%",
        percent(r->peak_moment_reserved_bytes - MP_MIN(allocated, r->peak_moment_reserved_bytes),
                r->peak_moment_reserved_bytes));
    mp_table_cell(table, "%.1f %%", percent(r->worst_unusable_bytes, r->worst_reserved_bytes));
    mp_table_cell(table, "%" PRIu64, r->stats.num_alloc_retries);
    mp_table_cell(table, "%s", r->oom ? "out of memory" : "lives");
}

static void print_table(const struct session *s, struct mp_strbuf *out)
{
    static const char *const titles[] = {"",          "SETTINGS", "REQUESTED",
                                         "ALLOCATED", "RESERVED", "FREE AT PEAK",
                                         "AT WORST",  "RETRIES",  ""};
    struct mp_table *table = mp_table_new("rlrrrrrrl");
    if (!table) {
        out->failed = true;
        return;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    mp_table_rule(table);
    for (size_t i = 0; i < s->n_trials; i++)
        add_trial(table, s, i);
    mp_table_write(table, out, 0);
    mp_table_free(table);
}

static void print_oom(const struct trial *t, struct mp_strbuf *out)
{
    const struct mp_allocator_oom *o = &t->result.oom_info;
    mp_strbuf_addf(out, "%s: event %zu asks for ", shown_conf(t->conf), t->result.oom_entry);
    mp_bytes_format(out, o->requested_bytes);
    mp_strbuf_addstr(out, " (segment ");
    mp_bytes_format(out, o->segment_bytes);
    mp_strbuf_addstr(out, "); free in its pool are ");
    mp_bytes_format(out, o->free_bytes);
    mp_strbuf_addstr(out, ", the largest piece ");
    mp_bytes_format(out, o->largest_free_bytes);
    mp_strbuf_addstr(out, o->free_bytes >= o->rounded_bytes ? ": enough, but in pieces\n"
                                                            : ": not enough even in one piece\n");
}

static void print_start(const struct mp_history *h, struct mp_strbuf *out)
{
    if (h->n_seed_segments == 0 && h->n_unknown_frees == 0)
        return;
    mp_strbuf_addf(
        out,
        "The history starts in the middle: %zu segment%s and %zu block%s were there before. "
        "Their\nage, peaks before the first event and slack inside older blocks cannot be "
        "known.\n",
        h->n_seed_segments, h->n_seed_segments == 1 ? "" : "s", h->n_seed_blocks,
        h->n_seed_blocks == 1 ? "" : "s");
    if (h->n_unknown_frees)
        mp_strbuf_addf(out, "%zu frees concern blocks in unknown segments and are left out.\n",
                       h->n_unknown_frees);
}

/* The limit of the what-ifs, where it is not the recorded one. */
static void print_limit(const struct session *s, struct mp_strbuf *out)
{
    const struct mp_history *h = &s->history;
    if (s->o->limit_bytes) {
        mp_strbuf_addstr(out, "All but the recorded run under a limit of ");
        mp_bytes_format(out, s->o->limit_bytes);
        mp_strbuf_addstr(out, ".\n");
    } else if (!h->limit_bytes && h->capacity_bytes) {
        mp_strbuf_addstr(out, "By the recorded out-of-memory the card could give ");
        mp_bytes_format(out, h->capacity_bytes);
        mp_strbuf_addstr(out, "; that is the limit of all others.\n");
    }
}

static void print_text(const struct session *s, struct mp_strbuf *out)
{
    const struct mp_history *h = &s->history;
    const struct mp_replay_differences *d = &s->trials[0].result.differences;
    mp_strbuf_addf(
        out, "%zu events, %" PRIu32 " allocations on %zu stream%s, device %d; recorded settings: ",
        h->n_entries, h->n_allocs, h->n_streams, h->n_streams == 1 ? "" : "s", h->device);
    mp_text_escape(out, shown_conf(recorded_conf(s)));
    mp_strbuf_addstr(out, h->limit_bytes ? ", limit " : "");
    if (h->limit_bytes)
        mp_bytes_format(out, h->limit_bytes);
    mp_strbuf_addch(out, '\n');
    print_start(h, out);
    if (d->first_entry == SIZE_MAX)
        mp_strbuf_addstr(out, "Replayed as recorded: every block and segment where it was.\n\n");
    else
        mp_strbuf_addf(
            out,
            "Replayed as recorded: %zu blocks and %zu segment events differ, the first at "
            "event %zu.\n\n",
            d->addresses, d->segments, d->first_entry);
    print_limit(s, out);
    print_table(s, out);
    mp_strbuf_addstr(
        out, "\nFREE AT PEAK: reserved but unallocated when allocated memory peaked. AT WORST: "
             "the same\nwhen a request needed new memory although so much was free.\n");
    bool first = true;
    for (size_t i = 0; i < s->n_trials; i++) {
        const struct trial *t = &s->trials[s->ranking[i]];
        if (!t->result.oom)
            continue;
        mp_strbuf_addstr(out, first ? "\n" : "");
        first = false;
        print_oom(t, out);
    }
}

/* ---- JSON ---- */

static void write_stat(struct mp_json_writer *w, const char *key, const struct mp_stat *stat)
{
    mp_json_object(w, key);
    mp_json_uint(w, "current", stat->current);
    mp_json_uint(w, "peak", stat->peak);
    mp_json_uint(w, "allocated", stat->allocated);
    mp_json_uint(w, "freed", stat->freed);
    mp_json_end_object(w);
}

static void write_kinds(struct mp_json_writer *w, const char *key, const struct mp_stat *stats)
{
    mp_json_object(w, key);
    write_stat(w, "all", &stats[MP_STAT_ALL]);
    write_stat(w, "small_pool", &stats[MP_STAT_SMALL]);
    write_stat(w, "large_pool", &stats[MP_STAT_LARGE]);
    mp_json_end_object(w);
}

/* Names of torch.cuda.memory_stats(). */
static void write_stats(struct mp_json_writer *w, const struct mp_allocator_stats *s)
{
    mp_json_object(w, "stats");
    write_kinds(w, "allocation", s->allocation);
    write_kinds(w, "segment", s->segment);
    write_kinds(w, "active", s->active);
    write_kinds(w, "inactive_split", s->inactive_split);
    write_kinds(w, "allocated_bytes", s->allocated_bytes);
    write_kinds(w, "reserved_bytes", s->reserved_bytes);
    write_kinds(w, "active_bytes", s->active_bytes);
    write_kinds(w, "inactive_split_bytes", s->inactive_split_bytes);
    write_kinds(w, "requested_bytes", s->requested_bytes);
    write_stat(w, "oversize_allocations", &s->oversize_allocations);
    write_stat(w, "oversize_segments", &s->oversize_segments);
    mp_json_uint(w, "num_alloc_retries", s->num_alloc_retries);
    mp_json_uint(w, "num_ooms", s->num_ooms);
    mp_json_uint(w, "num_sync_all_streams", s->num_sync_all_streams);
    mp_json_uint(w, "num_device_alloc", s->num_device_alloc);
    mp_json_uint(w, "num_device_free", s->num_device_free);
    mp_json_end_object(w);
}

static void write_limit(struct mp_json_writer *w, uint64_t limit_bytes)
{
    if (limit_bytes)
        mp_json_uint(w, "limit_bytes", limit_bytes);
    else
        mp_json_null(w, "limit_bytes");
}

static void write_recorded(struct mp_json_writer *w, const struct session *s)
{
    const struct mp_history *h = &s->history;
    const struct mp_replay_differences *d = &s->trials[0].result.differences;
    mp_json_object(w, "recorded");
    mp_json_string(w, "conf", h->conf);
    write_limit(w, h->limit_bytes);
    mp_json_int(w, "device", h->device);
    mp_json_uint(w, "events", h->n_entries);
    mp_json_uint(w, "allocations", h->n_allocs);
    mp_json_uint(w, "streams", h->n_streams);
    mp_json_uint(w, "reserved_bytes", h->peak_reserved_bytes);
    mp_json_uint(w, "ooms", h->n_ooms);
    mp_json_bool(w, "from_the_beginning", h->n_seed_segments == 0 && h->n_unknown_frees == 0);
    mp_json_uint(w, "segments_before", h->n_seed_segments);
    mp_json_uint(w, "blocks_before", h->n_seed_blocks);
    mp_json_uint(w, "unknown_frees", h->n_unknown_frees);
    mp_json_bool(w, "exact", d->first_entry == SIZE_MAX);
    mp_json_uint(w, "address_differences", d->addresses);
    mp_json_uint(w, "segment_differences", d->segments);
    mp_json_end_object(w);
}

static void write_result(struct mp_json_writer *w, const struct trial *t)
{
    const struct mp_replay_result *r = &t->result;
    mp_json_object(w, NULL);
    mp_json_string(w, "conf", t->conf);
    write_limit(w, t->options.limit_bytes ? t->options.limit_bytes : t->options.capacity_bytes);
    mp_json_string(w, "addresses", t->options.as_recorded ? "recorded" : "model");
    mp_json_uint(w, "requested_bytes", r->stats.requested_bytes[MP_STAT_ALL].peak);
    mp_json_uint(w, "allocated_bytes", r->stats.allocated_bytes[MP_STAT_ALL].peak);
    mp_json_uint(w, "reserved_bytes", r->stats.reserved_bytes[MP_STAT_ALL].peak);
    mp_json_uint(w, "reserved_at_allocated_peak_bytes", r->peak_moment_reserved_bytes);
    mp_json_uint(w, "worst_unusable_bytes", r->worst_unusable_bytes);
    mp_json_uint(w, "worst_reserved_bytes", r->worst_reserved_bytes);
    mp_json_uint(w, "retries", r->stats.num_alloc_retries);
    mp_json_bool(w, "oom", r->oom);
    if (r->oom) {
        mp_json_object(w, "oom_at");
        mp_json_uint(w, "event", r->oom_entry);
        mp_json_uint(w, "requested_bytes", r->oom_info.requested_bytes);
        mp_json_uint(w, "segment_bytes", r->oom_info.segment_bytes);
        mp_json_uint(w, "free_bytes", r->oom_info.free_bytes);
        mp_json_uint(w, "largest_free_bytes", r->oom_info.largest_free_bytes);
        mp_json_end_object(w);
    }
    write_stats(w, &r->stats);
    mp_json_end_object(w);
}

static void print_json(const struct session *s, struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 2);
    mp_json_object(&w, NULL);
    mp_json_uint(&w, "schema_version", SCHEMA_VERSION);
    write_recorded(&w, s);
    mp_json_array(&w, "results");
    for (size_t i = 0; i < s->n_trials; i++)
        write_result(&w, &s->trials[i]);
    mp_json_end_array(&w);
    mp_json_array(&w, "ranking");
    for (size_t i = 0; i < s->n_trials; i++)
        mp_json_uint(&w, NULL, s->ranking[i]);
    mp_json_end_array(&w);
    mp_json_end_object(&w);
    mp_strbuf_addch(out, '\n');
}

/* ---- picture ---- */

static enum memplan_status draw(const struct session *s, struct memplan_error *err)
{
    /* the first setting that was asked for, or the recorded one */
    size_t chosen = 0;
    while (s->o->conf.n && strcmp(s->trials[chosen].conf, s->o->conf.items[0]) != 0)
        chosen++;
    const struct trial *t = &s->trials[chosen];
    struct mp_strbuf title = MP_STRBUF_INIT, svg = MP_STRBUF_INIT, page = MP_STRBUF_INIT;
    mp_strbuf_addf(&title, "Segments over time: %s", shown_conf(t->conf));
    enum memplan_status status =
        mp_replay_svg(&s->history, &t->options, mp_strbuf_text(&title), &svg, err);
    if (status == MEMPLAN_STATUS_OK && s->o->svg)
        status = mp_file_write(s->o->svg, svg.data, svg.len, err);
    if (status == MEMPLAN_STATUS_OK && s->o->html) {
        mp_strbuf_addstr(&page, "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\">"
                                "<title>memplan replay</title>\n<body>\n");
        mp_strbuf_add(&page, svg.data, svg.len);
        mp_strbuf_addstr(&page, "</body></html>\n");
        status = page.failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory")
                             : mp_file_write(s->o->html, page.data, page.len, err);
    }
    mp_strbuf_release(&title);
    mp_strbuf_release(&svg);
    mp_strbuf_release(&page);
    return status;
}

/* ---- the command ---- */

static bool nothing_lives(const struct session *s)
{
    for (size_t i = 0; i < s->n_trials; i++) {
        if (!s->trials[i].result.oom && !s->trials[i].options.as_recorded)
            return false;
    }
    return s->n_trials > 1 || s->trials[0].result.oom;
}

static enum memplan_status answer(struct session *s, struct memplan_error *err)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    enum memplan_status status = mp_history_read(&s->history, s->path, (int)s->o->device, err);
    if (status == MEMPLAN_STATUS_OK)
        status = run_trials(s, err);
    if (status == MEMPLAN_STATUS_OK) {
        rank(s);
        if (s->o->json)
            print_json(s, &out);
        else
            print_text(s, &out);
        status = out.failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory")
                            : mp_file_write("-", out.data, out.len, err);
    }
    if (status == MEMPLAN_STATUS_OK && (s->o->svg || s->o->html))
        status = draw(s, err);
    mp_strbuf_release(&out);
    return status;
}

int mp_cmd_replay(int argc, char **argv)
{
    struct replay_options o = {.device = -1};
    struct mp_operands operands = {0};
    struct memplan_error err = {0};
    int exit_status = 0;
    if (mp_options_parse(&mp_command_replay, argc, argv, &o, NULL, &operands, &exit_status) ==
        MP_OPTIONS_DONE)
        return exit_status;
    struct session *const s = calloc(1, sizeof(*s));
    if (!s) {
        (void)mp_error_set(&err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return mp_cli_fail("replay", &err);
    }
    s->o = &o;
    s->path = operands.items[0];
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (o.torch)
        status = mp_torch_version_parse(o.torch, &s->torch, &err);
    if (status == MEMPLAN_STATUS_OK)
        status = answer(s, &err);
    exit_status = status != MEMPLAN_STATUS_OK ? mp_cli_fail("replay", &err)
                  : nothing_lives(s)          ? MP_EXIT_NO
                                              : MP_EXIT_YES;
    mp_history_release(&s->history);
    free(s);
    return exit_status;
}
