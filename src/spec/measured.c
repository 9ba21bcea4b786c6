/* SPDX-License-Identifier: MIT */
/* Reads measured runs line by line, so that a file of thousands takes no more memory than its
 * longest line. */
#include "spec/measured.h"

#include <inttypes.h>

#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "spec/problems.h"

#define LINE_MAX_BYTES (64 * MP_MIB)
#define READ_BYTES 65536
#define BYTES_MAX (INT64_C(1) << 60)

struct mp_measured_reader {
    struct mp_reader *file;
    char *path;
    struct mp_strbuf line;
    uint64_t number;
    size_t have, used; /* of buffer */
    bool at_end;
    char buffer[READ_BYTES];
};

/* ---- one line ---- */

static int64_t read_bytes(struct mp_problems *problems, const struct mp_value *object,
                          const char *prefix, const char *key)
{
    const struct mp_value *const value = mp_value_get(object, key);
    int64_t bytes = -1;
    char name[96];
    (void)snprintf(name, sizeof name, "%s.%s", prefix, key);
    if (value != NULL && value->kind != MP_NULL)
        (void)mp_problems_integer(problems, name, value, 0, BYTES_MAX, &bytes);
    return bytes;
}

static bool read_phases(struct mp_problems *problems, struct mp_arena *arena,
                        const struct mp_value *list, struct mp_measured *measured)
{
    if (list == NULL || list->kind == MP_NULL)
        return true;
    if (list->kind != MP_ARRAY) {
        mp_problems_add(problems, list, "measured.phases", "%s is not a list",
                        mp_value_kind_text(list->kind));
        return true;
    }
    struct mp_measured_phase *const phases =
        mp_arena_calloc(arena, list->as.array.length, sizeof *phases);
    if (phases == NULL)
        return false;
    for (size_t i = 0; i < list->as.array.length; i++) {
        const struct mp_value *const item = list->as.array.items[i];
        const struct mp_value *const name = mp_value_get(item, "phase");
        char prefix[48];
        (void)snprintf(prefix, sizeof prefix, "measured.phases[%zu]", i);
        if (name == NULL || name->kind != MP_STRING) {
            mp_problems_add(problems, item, prefix, "not an object with the name of a phase");
            continue;
        }
        phases[i].phase = name->as.string.text;
        phases[i].requested = read_bytes(problems, item, prefix, "requested");
        phases[i].requested_peak = read_bytes(problems, item, prefix, "requested_peak");
        phases[i].allocated_peak = read_bytes(problems, item, prefix, "allocated_peak");
        phases[i].reserved_peak = read_bytes(problems, item, prefix, "reserved_peak");
    }
    measured->phases = phases;
    measured->n_phases = list->as.array.length;
    return true;
}

/* NULL: host memory is exhausted. */
static const struct mp_measured *read_measured(struct mp_problems *problems, struct mp_arena *arena,
                                               const struct mp_value *value)
{
    struct mp_measured *const measured = mp_arena_alloc(arena, sizeof *measured);
    if (measured == NULL)
        return NULL;
    measured->oom = -1;
    const struct mp_value *const oom = mp_value_get(value, "oom");
    bool died = false;
    if (oom != NULL && oom->kind != MP_NULL &&
        mp_problems_bool(problems, "measured.oom", oom, &died))
        measured->oom = died;
    measured->requested_bytes = read_bytes(problems, value, "measured", "requested_bytes");
    measured->allocated_bytes = read_bytes(problems, value, "measured", "allocated_bytes");
    measured->reserved_bytes = read_bytes(problems, value, "measured", "reserved_bytes");
    measured->device_used_bytes = read_bytes(problems, value, "measured", "device_used_bytes");
    measured->non_allocator_bytes = read_bytes(problems, value, "measured", "non_allocator_bytes");
    measured->max_batch = read_bytes(problems, value, "measured", "max_batch");
    return read_phases(problems, arena, mp_value_get(value, "phases"), measured) ? measured : NULL;
}

static bool read_members(struct mp_problems *problems, struct mp_arena *arena,
                         const struct mp_value *value, struct mp_measured_line *line)
{
    const struct mp_value *const id = mp_value_get(value, "id");
    const struct mp_value *const run = mp_value_get(value, "run");
    const struct mp_value *const measured = mp_value_get(value, "measured");
    if (id != NULL && id->kind != MP_NULL)
        (void)mp_problems_string(problems, "id", id, &line->id);
    if (run == NULL)
        mp_problems_add(problems, NULL, "run",
                        "missing; a line is {\"id\": ..., \"run\": {...}, \"measured\": {...}}");
    else if (run->kind != MP_OBJECT)
        mp_problems_add(problems, run, "run", "%s is not an object", mp_value_kind_text(run->kind));
    if (measured != NULL && measured->kind != MP_NULL) {
        if (measured->kind != MP_OBJECT)
            mp_problems_add(problems, measured, "measured", "%s is not an object",
                            mp_value_kind_text(measured->kind));
        else if ((line->measured = read_measured(problems, arena, measured)) == NULL)
            return false;
    }
    line->run = problems->n == 0 ? run : NULL;
    return true;
}

enum memplan_status mp_measured_parse(struct mp_arena *arena, const char *path, uint64_t number,
                                      const char *text, size_t length,
                                      struct mp_measured_line *line, struct memplan_error *err)
{
    *line = (struct mp_measured_line){.number = number};
    line->origin = mp_arena_printf(arena, "%s:%" PRIu64, path, number);
    line->id = mp_arena_printf(arena, "line %" PRIu64, number);
    if (line->origin == NULL || line->id == NULL)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    struct memplan_error own = {0};
    const struct mp_value *const value = mp_json_parse(arena, line->origin, text, length, &own);
    if (value == NULL) {
        if (err != NULL)
            *err = own;
        return own.status;
    }
    struct mp_problems problems;
    mp_problems_init(&problems, line->origin, err);
    if (value->kind != MP_OBJECT)
        mp_problems_add(&problems, NULL, NULL,
                        "a line is {\"id\": ..., \"run\": {...}, \"measured\": {...}}, not %s",
                        mp_value_kind_text(value->kind));
    else if (!read_members(&problems, arena, value, line))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    return mp_problems_status(&problems);
}

/* ---- lines of a file ---- */

struct mp_measured_reader *mp_measured_open(const char *path, struct memplan_error *err)
{
    struct mp_measured_reader *const reader = mp_malloc(sizeof *reader);
    const size_t size = strlen(path) + 1;
    char *const copy = mp_malloc(size);
    if (reader == NULL || copy == NULL) {
        free(reader);
        free(copy);
        (void)mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return NULL;
    }
    memcpy(copy, path, size);
    memset(reader, 0, offsetof(struct mp_measured_reader, buffer));
    reader->path = copy;
    struct memplan_error own = {0};
    reader->file = mp_reader_open(path, &own);
    if (reader->file == NULL) {
        /* a file that the user named and that cannot be read is bad input */
        own.status = own.status == MEMPLAN_STATUS_IO ? MEMPLAN_STATUS_INPUT : own.status;
        if (err != NULL)
            *err = own;
        mp_measured_close(reader);
        return NULL;
    }
    return reader;
}

void mp_measured_close(struct mp_measured_reader *reader)
{
    if (reader == NULL)
        return;
    if (reader->file != NULL)
        mp_reader_close(reader->file);
    mp_strbuf_release(&reader->line);
    free(reader->path);
    free(reader);
}

/* More bytes into an empty buffer; *at_end when there are none. */
static enum memplan_status fill(struct mp_measured_reader *reader, struct memplan_error *err)
{
    struct memplan_error own = {0};
    const int64_t n = mp_reader_read(reader->file, reader->buffer, sizeof reader->buffer, &own);
    reader->used = 0;
    reader->have = n > 0 ? (size_t)n : 0;
    reader->at_end = n <= 0;
    if (n >= 0)
        return MEMPLAN_STATUS_OK;
    if (err != NULL)
        *err = own;
    return own.status;
}

/* One line without its end into reader->line. False: the file is at its end (or failed, *status).
 */
static bool read_line(struct mp_measured_reader *reader, enum memplan_status *status,
                      struct memplan_error *err)
{
    mp_strbuf_reset(&reader->line);
    bool any = false;
    for (;;) {
        if (reader->used == reader->have) {
            if (!reader->at_end)
                *status = fill(reader, err);
            if (reader->at_end)
                return any && *status == MEMPLAN_STATUS_OK;
        }
        const char *const start = reader->buffer + reader->used;
        const char *const newline = memchr(start, '\n', reader->have - reader->used);
        const size_t n = newline != NULL ? (size_t)(newline - start) : reader->have - reader->used;
        any = true;
        if (reader->line.len <= LINE_MAX_BYTES) /* the rest of an absurd line is skipped */
            mp_strbuf_add(&reader->line, start, n);
        reader->used += n + (newline != NULL);
        if (newline != NULL)
            return true;
    }
}

static bool is_blank(const struct mp_strbuf *line)
{
    const char *const text = mp_strbuf_text(line);
    return strspn(text, " \t\r") == line->len;
}

enum memplan_status mp_measured_next(struct mp_measured_reader *reader, struct mp_arena *arena,
                                     struct mp_measured_line *line, bool *end,
                                     struct memplan_error *err)
{
    enum memplan_status status = MEMPLAN_STATUS_OK;
    *end = false;
    do {
        if (!read_line(reader, &status, err)) {
            *end = true;
            return status;
        }
        reader->number++;
    } while (is_blank(&reader->line));
    if (reader->line.failed)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    if (reader->line.len > LINE_MAX_BYTES) {
        *line =
            (struct mp_measured_line){.number = reader->number, .origin = reader->path, .id = ""};
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "%s:%" PRIu64 ": the line is longer than 64 MiB", reader->path,
                            reader->number);
    }
    return mp_measured_parse(arena, reader->path, reader->number, mp_strbuf_text(&reader->line),
                             reader->line.len, line, err);
}
