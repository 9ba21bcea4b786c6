/* SPDX-License-Identifier: MIT */
/* Reads recorded allocator events and finds where a program first differs from
 * them. */
#include "event_log.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"

/* ---- reading ---- */

static struct recorded_event *add_event(struct mp_arena *arena, struct event_log *log)
{
    if (log->n == log->capacity) {
        const size_t wanted = log->capacity > 0 ? 2 * log->capacity : 4096;
        struct recorded_event *const bigger = mp_arena_calloc(arena, wanted, sizeof *bigger);
        if (log->n > 0)
            memcpy(bigger, log->events, log->n * sizeof *bigger);
        log->events = bigger;
        log->capacity = wanted;
    }
    return &log->events[log->n++];
}

/* The whole file, in the arena, as lines that end in NUL. */
static char *read_lines(struct mp_arena *arena, const char *path, size_t *length,
                        struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    char *lines = NULL;
    if (mp_file_read(path, 0, &text, err) == MEMPLAN_STATUS_OK) {
        *length = text.len;
        lines = mp_arena_strndup(arena, mp_strbuf_text(&text), text.len);
        for (size_t i = 0; i < text.len; i++)
            if (lines[i] == '\n')
                lines[i] = '\0';
    }
    mp_strbuf_release(&text);
    return lines;
}

static const char *skip_words(const char *text, int n)
{
    for (; n > 0; n--) {
        text += strcspn(text, " ");
        text += strspn(text, " ");
    }
    return text;
}

static void read_labelled_line(struct mp_arena *arena, struct event_log *log, const char *line,
                               const char **node)
{
    if (line[0] == '@')
        *node = line + 2;
    if (line[0] == '#')
        *node = "";
    if (line[0] != '+' && line[0] != '-')
        return;
    char *end = NULL;
    struct recorded_event *const e = add_event(arena, log);
    e->alloc = line[0] == '+';
    e->id = (uint32_t)strtoul(line + 1, &end, 10);
    e->bytes = strtoull(end, NULL, 10);
    const char *const frames = skip_words(line, e->alloc ? 3 : 2);
    e->label = strcmp(frames, "-") == 0 ? *node : frames;
}

bool event_log_read_labelled(struct mp_arena *arena, const char *path, struct event_log *log,
                             struct memplan_error *err)
{
    size_t length = 0;
    const char *node = "";
    *log = (struct event_log){0};
    const char *const lines = read_lines(arena, path, &length, err);
    if (lines == NULL)
        return false;
    for (size_t at = 0; at < length; at += strlen(lines + at) + 1) {
        const char *const line = lines + at;
        if (strncmp(line, "# {", 3) == 0)
            log->config = mp_json_parse(arena, path, line + 2, strlen(line + 2), err);
        else
            read_labelled_line(arena, log, line, &node);
    }
    return log->config != NULL;
}

/* A block that lives, by its address. */
struct live {
    char address[20];
    uint32_t id;
};

static void read_trace_line(struct mp_arena *arena, struct event_log *log, const char *line,
                            struct live *live, size_t *n_live, uint32_t *n_allocs)
{
    char action[20], address[20];
    uint64_t bytes = 0;
    if (sscanf(line, "%19s %19s %" SCNu64, action, address, &bytes) != 3)
        return;
    if (strcmp(action, "alloc") == 0) {
        memcpy(live[*n_live].address, address, sizeof address);
        live[(*n_live)++].id = ++*n_allocs;
        *add_event(arena, log) =
            (struct recorded_event){true, *n_allocs, bytes, skip_words(line, 4)};
    } else if (strcmp(action, "free_completed") == 0) {
        size_t i = *n_live;
        while (i > 0 && strcmp(live[i - 1].address, address) != 0)
            i--;
        if (i == 0)
            return;
        *add_event(arena, log) =
            (struct recorded_event){false, live[i - 1].id, bytes, skip_words(line, 4)};
        live[i - 1] = live[--*n_live];
    }
}

bool event_log_read_trace(struct mp_arena *arena, const char *path, struct event_log *log,
                          struct memplan_error *err)
{
    size_t length = 0, n_live = 0;
    uint32_t n_allocs = 0;
    *log = (struct event_log){0};
    const char *const lines = read_lines(arena, path, &length, err);
    if (lines == NULL)
        return false;
    struct live *const live = mp_arena_calloc(arena, length / 16 + 1, sizeof *live);
    for (size_t at = 0; at < length; at += strlen(lines + at) + 1) {
        if (strncmp(lines + at, "# config {", 10) == 0)
            log->config = mp_json_parse(arena, path, lines + at + 9, strlen(lines + at + 9), err);
        else
            read_trace_line(arena, log, lines + at, live, &n_live, &n_allocs);
    }
    return log->config != NULL;
}

/* ---- comparing ---- */

struct cursor {
    const struct event_log *log;
    const struct mp_program *program;
    size_t recorded, planned; /* next event of each */
    uint32_t *a, *b;          /* ids of the frees between two allocations */
};

static bool is_memory(const struct mp_event *e)
{
    return e->kind == MP_EVENT_ALLOC || e->kind == MP_EVENT_FREE;
}

static const struct mp_event *planned_event(struct cursor *c)
{
    while (c->planned < c->program->n_events && !is_memory(&c->program->events[c->planned]))
        c->planned++;
    return c->planned < c->program->n_events ? &c->program->events[c->planned] : NULL;
}

static const struct recorded_event *recorded_event(const struct cursor *c)
{
    return c->recorded < c->log->n ? &c->log->events[c->recorded] : NULL;
}

static int compare_ids(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void describe(const struct cursor *c, size_t first_recorded, size_t first_planned,
                     struct mp_strbuf *out)
{
    const struct event_log *const log = c->log;
    mp_strbuf_addf(out, "at recorded event %zu of %zu:\n  recorded:", first_recorded, log->n);
    for (size_t i = first_recorded; i < log->n && i < first_recorded + 8; i++)
        mp_strbuf_addf(out, "\n    %c%" PRIu32 " %" PRIu64 " %.90s",
                       log->events[i].alloc ? '+' : '-', log->events[i].id, log->events[i].bytes,
                       log->events[i].label);
    mp_strbuf_addstr(out, "\n  planned:");
    int shown = 0;
    for (size_t i = first_planned; i < c->program->n_events && shown < 8; i++) {
        const struct mp_event *const e = &c->program->events[i];
        if (!is_memory(e))
            continue;
        mp_strbuf_addf(out, "\n    %c%" PRIu32 " %" PRIu64 " %s, layer %d",
                       e->kind == MP_EVENT_ALLOC ? '+' : '-', e->id, e->bytes, e->op, e->layer);
        shown++;
    }
    mp_strbuf_addch(out, '\n');
}

/* Frees up to the next allocation, on both sides; true when they are the same.
 */
static bool same_frees(struct cursor *c)
{
    size_t n_a = 0, n_b = 0;
    const struct recorded_event *r;
    const struct mp_event *p;
    for (; (r = recorded_event(c)) != NULL && !r->alloc; c->recorded++)
        c->a[n_a++] = r->id;
    for (; (p = planned_event(c)) != NULL && p->kind == MP_EVENT_FREE; c->planned++)
        c->b[n_b++] = p->id;
    qsort(c->a, n_a, sizeof *c->a, compare_ids);
    qsort(c->b, n_b, sizeof *c->b, compare_ids);
    return n_a == n_b && memcmp(c->a, c->b, n_a * sizeof *c->a) == 0;
}

/* One allocation on each side, or the end on both. */
static bool same_alloc(struct cursor *c)
{
    const struct recorded_event *const r = recorded_event(c);
    const struct mp_event *const p = planned_event(c);
    if (r == NULL || p == NULL)
        return r == NULL && p == NULL;
    c->recorded++;
    c->planned++;
    return r->id == p->id && r->bytes == p->bytes;
}

bool event_log_compare(const struct event_log *log, const struct mp_program *program,
                       struct mp_strbuf *difference)
{
    struct cursor c = {.log = log, .program = program};
    c.a = calloc(log->n + 1, sizeof *c.a);
    c.b = calloc((size_t)program->n_events + 1, sizeof *c.b);
    bool same = true;
    while (same && (recorded_event(&c) != NULL || planned_event(&c) != NULL)) {
        size_t recorded = c.recorded, planned = c.planned;
        same = same_frees(&c);
        if (same) {
            recorded = c.recorded;
            planned = c.planned;
            same = same_alloc(&c);
        }
        if (!same)
            describe(&c, recorded, planned, difference);
    }
    free(c.a);
    free(c.b);
    return same;
}
