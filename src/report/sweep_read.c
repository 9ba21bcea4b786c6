/* SPDX-License-Identifier: MIT */
/* Rows of a sweep back from its files, to go on with it or to put parts together. */
#include <inttypes.h>

#include "base/file.h"
#include "base/units.h"
#include "report/sweep.h"

/* ---- lines ---- */

struct lines {
    const char *path;
    struct mp_reader *reader;
    struct mp_strbuf buffer;
    size_t at; /* first byte not handed out yet */
    uint64_t number;
    bool ended;
};

enum { BLOCK_BYTES = 1 << 16, LINE_MAX_BYTES = 1 << 20 };

/* The next line without its end; NULL at the end of the file, or with *err. */
static char *next_line(struct lines *l, size_t *length, struct memplan_error *err)
{
    for (;;) {
        char *const start = l->buffer.data ? l->buffer.data + l->at : NULL;
        const size_t left = l->buffer.len - l->at;
        char *const end = left ? memchr(start, '\n', left) : NULL;
        if (end || (l->ended && left)) {
            *length = end ? (size_t)(end - start) : left;
            start[*length] = '\0';
            l->at += *length + (end ? 1 : 0);
            l->number++;
            return start;
        }
        if (l->ended)
            return NULL;
        if (left > LINE_MAX_BYTES) {
            mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s:%" PRIu64 ": a line of more than %d bytes", l->path, l->number + 1, LINE_MAX_BYTES);
            return NULL;
        }
        char block[BLOCK_BYTES];
        if (left)
            memmove(l->buffer.data, start, left);
        l->buffer.len = left;
        l->at = 0;
        const int64_t got = mp_reader_read(l->reader, block, sizeof block, err);
        if (got < 0)
            return NULL;
        l->ended = got == 0;
        mp_strbuf_add(&l->buffer, block, (size_t)got);
        if (l->buffer.failed) {
            mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory reading '%s'", l->path);
            return NULL;
        }
    }
}

static enum memplan_status bad_line(const struct lines *l, const char *what, struct memplan_error *err)
{
    return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s:%" PRIu64 ": %s", l->path, l->number, what);
}

/* ---- CSV ---- */

enum column { GRID, POINT, FITS, DECIDED_BY, REQUESTED, ALLOCATED, RESERVED, DEVICE_USED, ERROR_TEXT, COLUMNS };
static const char *const column_names[COLUMNS] = {
    [GRID] = "grid", [POINT] = "point", [FITS] = "fits", [DECIDED_BY] = "decided_by", [REQUESTED] = "requested_bytes",
    [ALLOCATED] = "allocated_bytes", [RESERVED] = "reserved_bytes", [DEVICE_USED] = "device_used_bytes", [ERROR_TEXT] = "error"};

enum { CELLS_MAX = MP_RUN_KEYS + COLUMNS };

/* Cuts a line into cells, in place; how many, or -1. */
static int split(char *line, char **cells)
{
    int n = 0;
    for (char *c = line;; c++) {
        if (n == CELLS_MAX)
            return -1;
        cells[n++] = c;
        if (*c == '"') {
            char *to = c++;
            for (; *c && !(c[0] == '"' && c[1] != '"'); c++) {
                if (*c == '"')
                    c++;
                *to++ = *c;
            }
            if (*c != '"')
                return -1;
            c++;
            if (*c && *c != ',')
                return -1;
            const bool last = *c == '\0';
            *to = '\0';
            if (last)
                return n;
        } else {
            c += strcspn(c, ",");
            const bool last = *c == '\0';
            *c = '\0';
            if (last)
                return n;
        }
    }
}

static bool find_columns(char **cells, int n, int *columns)
{
    for (int k = 0; k < COLUMNS; k++) {
        columns[k] = -1;
        for (int i = 0; i < n; i++)
            if (strcmp(cells[i], column_names[k]) == 0)
                columns[k] = i;
        if (columns[k] < 0)
            return false;
    }
    return true;
}

static bool read_u64(const char *text, uint64_t *value)
{
    *value = 0;
    if (!*text)
        return true; /* null */
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || !mp_mul_u64(*value, 10, value) || !mp_add_u64(*value, (uint64_t)(*text - '0'), value))
            return false;
    }
    return true;
}

static bool read_decided(const char *text, uint8_t *decided)
{
    for (int i = MP_DECIDED_NOT + 1; i < MP_DECIDED_COUNT; i++) {
        if (strcmp(text, mp_decided_text((enum mp_decided)i)) == 0) {
            *decided = (uint8_t)i;
            return true;
        }
    }
    return false;
}

static bool read_cells(char **cells, const int *columns, struct mp_sweep_record *r)
{
    r->tag = cells[columns[GRID]];
    r->error = cells[columns[ERROR_TEXT]];
    r->row.fits = strcmp(cells[columns[FITS]], "true") == 0;
    return cells[columns[POINT]][0] && read_u64(cells[columns[POINT]], &r->point) &&
           read_decided(cells[columns[DECIDED_BY]], &r->row.decided) &&
           read_u64(cells[columns[REQUESTED]], &r->row.requested_bytes) &&
           read_u64(cells[columns[ALLOCATED]], &r->row.allocated_bytes) &&
           read_u64(cells[columns[RESERVED]], &r->row.reserved_bytes) &&
           read_u64(cells[columns[DEVICE_USED]], &r->row.device_used_bytes);
}

static enum memplan_status read_csv(struct lines *l, struct mp_strbuf *header, mp_sweep_record_visit *visit, void *context,
                                    struct memplan_error *err)
{
    char *cells[CELLS_MAX];
    int columns[COLUMNS], n_columns = 0;
    size_t length;
    struct mp_strbuf copy = MP_STRBUF_INIT;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    struct memplan_error own = {0};
    for (char *line; !status && (line = next_line(l, &length, &own)) != NULL;) {
        struct mp_sweep_record r = {0};
        if (l->number == 1 && header)
            mp_strbuf_add(header, line, length);
        mp_strbuf_reset(&copy);
        mp_strbuf_add(&copy, line, length);
        const int n = split(line, cells);
        r.text = mp_strbuf_text(&copy);
        r.length = length;
        if (l->number == 1) {
            n_columns = n;
            if (n < 0 || !find_columns(cells, n, columns))
                status = bad_line(l, "no heading of a sweep", err);
        } else if (n != n_columns || !read_cells(cells, columns, &r)) {
            status = bad_line(l, "no row of a sweep", err);
        } else {
            status = visit(context, &r, err);
        }
    }
    mp_strbuf_release(&copy);
    return status ? status : own.status ? mp_error_set(err, own.status, "%s", own.text) : MEMPLAN_STATUS_OK;
}

/* ---- JSON ---- */

static bool json_u64(const struct mp_value *object, const char *key, uint64_t *value)
{
    const struct mp_value *const v = mp_value_get(object, key);
    if (!v || (v->kind != MP_NULL && (v->kind != MP_INT || v->as.integer < 0)))
        return false;
    *value = v->kind == MP_INT ? (uint64_t)v->as.integer : 0;
    return true;
}

static const char *json_text(const struct mp_value *object, const char *key)
{
    const struct mp_value *const v = mp_value_get(object, key);
    return v && v->kind == MP_STRING ? v->as.string.text : NULL;
}

static bool read_object(const struct mp_value *object, struct mp_sweep_record *r)
{
    const struct mp_value *const fits = mp_value_get(object, "fits");
    const char *const decided = json_text(object, "decided_by"), *const error = json_text(object, "error");
    r->tag = json_text(object, "grid");
    r->error = error ? error : "";
    r->row.fits = fits && fits->kind == MP_BOOLEAN && fits->as.boolean;
    return r->tag && decided && read_decided(decided, &r->row.decided) && json_u64(object, "point", &r->point) &&
           json_u64(object, "requested_bytes", &r->row.requested_bytes) && json_u64(object, "allocated_bytes", &r->row.allocated_bytes) &&
           json_u64(object, "reserved_bytes", &r->row.reserved_bytes) && json_u64(object, "device_used_bytes", &r->row.device_used_bytes);
}

/* The lines around the rows of a .json file. */
static bool is_frame(const struct lines *l, const char *line)
{
    return (l->number == 1 && strncmp(line, "{\"schema_version\":", 18) == 0) || strcmp(line, "]}") == 0;
}

static enum memplan_status read_json(struct lines *l, bool framed, mp_sweep_record_visit *visit, void *context, struct memplan_error *err)
{
    size_t length;
    struct mp_arena arena;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    struct memplan_error own = {0};
    mp_arena_init(&arena);
    for (char *line; !status && (line = next_line(l, &length, &own)) != NULL;) {
        struct mp_sweep_record r = {0};
        const struct mp_arena_mark mark = mp_arena_mark(&arena);
        struct memplan_error ignored = {0};
        if (framed && is_frame(l, line))
            continue;
        if (framed && length && line[length - 1] == ',')
            line[--length] = '\0';
        const struct mp_value *const object = mp_json_parse(&arena, l->path, line, length, &ignored);
        r.text = line;
        r.length = length;
        if (!object && ignored.status == MEMPLAN_STATUS_NOMEM)
            status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory reading '%s'", l->path);
        else if (!object || !read_object(object, &r))
            status = bad_line(l, "no row of a sweep", err);
        else
            status = visit(context, &r, err);
        mp_arena_rewind(&arena, mark);
    }
    mp_arena_release(&arena);
    return status ? status : own.status ? mp_error_set(err, own.status, "%s", own.text) : MEMPLAN_STATUS_OK;
}

enum memplan_status mp_sweep_read_rows(const char *path, enum mp_sweep_format format,
                                       struct mp_strbuf *header, mp_sweep_record_visit *visit,
                                       void *context, struct memplan_error *err)
{
    struct memplan_error own = {0};
    struct lines l = {.path = path, .reader = mp_reader_open(path, &own)};
    if (!l.reader) /* a part that is not there is wrong input */
        return own.status == MEMPLAN_STATUS_NOMEM ? mp_error_set(err, own.status, "%s", own.text)
                                                  : mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s", own.text);
    const enum memplan_status status =
        format == MP_SWEEP_CSV ? read_csv(&l, header, visit, context, err) : read_json(&l, format == MP_SWEEP_JSON, visit, context, err);
    mp_reader_close(l.reader);
    mp_strbuf_release(&l.buffer);
    return status;
}

/* ---- putting parts together ---- */

struct part_row {
    uint64_t point;
    const char *text;
    size_t length;
};

struct merger {
    struct mp_arena arena; /* texts */
    struct part_row *rows;
    size_t n, cap;
    char tag[sizeof ((struct mp_sweep *)0)->tag];
    const char *path;       /* of the part at hand */
    const char *first_path; /* that the tag is from */
};

static enum memplan_status add_row(void *context, const struct mp_sweep_record *record, struct memplan_error *err)
{
    struct merger *const m = context;
    if (!m->first_path) {
        m->first_path = m->path;
        (void)snprintf(m->tag, sizeof m->tag, "%s", record->tag);
    }
    if (strcmp(m->tag, record->tag) != 0)
        return mp_error_set(
            err, MEMPLAN_STATUS_INPUT,
            "%s: rows of grid %s, but those of %s are of grid %s; merge parts of one grid only",
            m->path, record->tag, m->first_path, m->tag);
    if (m->n == m->cap) {
        const size_t wanted = m->cap * 2 + 1024;
        struct part_row *const rows = mp_realloc(m->rows, wanted * sizeof *rows);
        if (!rows)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while merging");
        m->rows = rows;
        m->cap = wanted;
    }
    const char *const text = mp_arena_strndup(&m->arena, record->text, record->length);
    if (!text)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while merging");
    m->rows[m->n++] = (struct part_row){record->point, text, record->length};
    return MEMPLAN_STATUS_OK;
}

static int by_point(const void *a, const void *b)
{
    const struct part_row *const x = a, *const y = b;
    return (x->point > y->point) - (x->point < y->point);
}

/* A point that stands in two parts counts once, if both say the same. */
static enum memplan_status drop_repeated(struct merger *m, struct memplan_error *err)
{
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (n && m->rows[n - 1].point == m->rows[i].point) {
            if (strcmp(m->rows[n - 1].text, m->rows[i].text) != 0)
                return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                    "point %" PRIu64 " stands in two parts with different results",
                                    m->rows[i].point);
            continue;
        }
        m->rows[n++] = m->rows[i];
    }
    m->n = n;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status write_merged(const struct merger *m, enum mp_sweep_format format, const char *header, struct mp_sink *sink,
                                        struct memplan_error *err)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (format == MP_SWEEP_JSON)
        mp_strbuf_addf(&out, "{\"schema_version\":%d,\"grid\":\"%s\",\"points\":[\n", MP_SWEEP_SCHEMA_VERSION, m->tag);
    else if (format == MP_SWEEP_CSV)
        mp_strbuf_addf(&out, "%s\n", header);
    for (size_t i = 0; i < m->n && !status; i++) {
        mp_strbuf_add(&out, m->rows[i].text, m->rows[i].length);
        mp_strbuf_addstr(&out, format == MP_SWEEP_JSON && i + 1 < m->n ? ",\n" : "\n");
        if (out.len > MP_MIB)
            status = mp_sink_put(sink, &out, err);
    }
    if (format == MP_SWEEP_JSON)
        mp_strbuf_addstr(&out, "]}\n");
    if (!status)
        status = mp_sink_put(sink, &out, err);
    mp_strbuf_release(&out);
    return status;
}

static enum memplan_status read_parts(struct merger *m, const char *const *paths, size_t n,
                                      enum mp_sweep_format format, struct mp_strbuf *header,
                                      struct memplan_error *err)
{
    struct mp_strbuf own = MP_STRBUF_INIT;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    for (size_t i = 0; i < n && !status; i++) {
        enum mp_sweep_format other;
        m->path = paths[i];
        mp_strbuf_reset(&own);
        status = mp_sweep_format_of(paths[i], &other, err);
        if (!status && other != format)
            status = mp_error_set(
                err, MEMPLAN_STATUS_INPUT,
                "%s: not in the format of the result; parts and result have the same", paths[i]);
        if (!status)
            status = mp_sweep_read_rows(paths[i], format, i ? &own : header, add_row, m, err);
        if (!status && i && format == MP_SWEEP_CSV && strcmp(mp_strbuf_text(&own), mp_strbuf_text(header)) != 0)
            status = mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                  "%s: other columns than in %s; merge parts of one grid only",
                                  paths[i], paths[0]);
    }
    mp_strbuf_release(&own);
    return status;
}

/* "12-0123456789abcdef": the grid has 12 points. */
static uint64_t points_of(const char *tag)
{
    uint64_t n = 0;
    for (; *tag >= '0' && *tag <= '9' && n < UINT64_MAX / 100; tag++)
        n = n * 10 + (uint64_t)(*tag - '0');
    return n;
}

enum memplan_status mp_sweep_merge(const char *const *paths, size_t n, enum mp_sweep_format format, struct mp_sink *sink, uint64_t *missing,
                                   struct memplan_error *err)
{
    struct merger m = {0};
    struct mp_strbuf header = MP_STRBUF_INIT;
    mp_arena_init(&m.arena);
    enum memplan_status status = read_parts(&m, paths, n, format, &header, err);
    if (!status) {
        if (m.n)
            qsort(m.rows, m.n, sizeof *m.rows, by_point);
        status = drop_repeated(&m, err);
    }
    if (!status && m.n > points_of(m.tag))
        status = mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: more rows than grid %s has points", m.first_path, m.tag);
    if (!status) {
        *missing = points_of(m.tag) - m.n;
        status = write_merged(&m, format, mp_strbuf_text(&header), sink, err);
    }
    free(m.rows);
    mp_arena_release(&m.arena);
    mp_strbuf_release(&header);
    return status;
}
