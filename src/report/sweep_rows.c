/* SPDX-License-Identifier: MIT */
/* Rows of a sweep as CSV (RFC 4180), JSON Lines or one JSON object with a row on every line. */
#include <inttypes.h>

#include "report/sweep.h"

enum memplan_status mp_sweep_format_of(const char *path, enum mp_sweep_format *format, struct memplan_error *err)
{
    static const struct { const char *end; enum mp_sweep_format format; } ends[] = {
        {".csv", MP_SWEEP_CSV}, {".jsonl", MP_SWEEP_JSONL}, {".json", MP_SWEEP_JSON}, {".svg", MP_SWEEP_SVG}, {".html", MP_SWEEP_HTML}};
    const char *const dot = path ? strrchr(path, '.') : NULL;
    *format = MP_SWEEP_CSV;
    if (!path || strcmp(path, "-") == 0 || strncmp(path, "/dev/", 5) == 0)
        return MEMPLAN_STATUS_OK;
    for (size_t i = 0; i < MP_ARRAY_LEN(ends); i++) {
        if (dot && strcmp(dot, ends[i].end) == 0) {
            *format = ends[i].format;
            return MEMPLAN_STATUS_OK;
        }
    }
    return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: the name's end says the format: .csv, .json, .jsonl, .html or .svg", path);
}

/* ---- texts of the axes' values, made once ---- */

struct axis_texts {
    char **texts; /* n of the axis, ready to be put into a row */
};

struct row_writer {
    const struct mp_sweep *sweep;
    enum mp_sweep_format format;
    struct mp_sink *sink;
    struct memplan_error *err;
    enum memplan_status status;
    struct axis_texts axes[MP_RUN_KEYS];
    struct mp_arena arena;
    struct mp_strbuf out;
    bool first;
};

static void add_csv(struct mp_strbuf *out, const char *text)
{
    if (text[strcspn(text, ",\"\r\n")] == '\0') {
        mp_strbuf_addstr(out, text);
        return;
    }
    mp_strbuf_addch(out, '"');
    for (; *text; text++) {
        if (*text == '"')
            mp_strbuf_addch(out, '"');
        mp_strbuf_addch(out, *text == '\n' || *text == '\r' ? ' ' : *text); /* a row is a line */
    }
    mp_strbuf_addch(out, '"');
}

/* ",value" or ",\"key\":value" */
static void add_axis_value(const struct row_writer *w, const struct mp_axis *axis, size_t i, struct mp_strbuf *out)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct mp_json_writer json;
    mp_strbuf_addch(out, ',');
    if (w->format == MP_SWEEP_CSV) {
        mp_grid_value_text(axis->values[i], &text);
        add_csv(out, mp_strbuf_text(&text));
    } else {
        mp_strbuf_addf(out, "\"%s\":", mp_run_key_text(axis->key));
        mp_json_init(&json, &text, 0);
        if (axis->values[i])
            mp_json_value(&json, NULL, axis->values[i]);
        else
            mp_json_null(&json, NULL);
        mp_strbuf_add(out, mp_strbuf_text(&text), text.len);
    }
    mp_strbuf_release(&text);
}

static enum memplan_status make_texts(struct row_writer *w)
{
    const struct mp_grid *const grid = w->sweep->grid;
    struct mp_strbuf text = MP_STRBUF_INIT;
    bool ok = true;
    for (size_t a = 0; a < grid->n_axes && ok; a++) {
        const struct mp_axis *const axis = &grid->axes[a];
        w->axes[a].texts = mp_arena_calloc(&w->arena, axis->n, sizeof(char *));
        ok = w->axes[a].texts != NULL;
        for (size_t i = 0; i < axis->n && ok; i++) {
            mp_strbuf_reset(&text);
            add_axis_value(w, axis, i, &text);
            w->axes[a].texts[i] = mp_arena_strdup(&w->arena, mp_strbuf_text(&text));
            ok = w->axes[a].texts[i] && !text.failed;
        }
    }
    mp_strbuf_release(&text);
    return ok ? MEMPLAN_STATUS_OK : mp_error_set(w->err, MEMPLAN_STATUS_NOMEM, "out of memory while writing rows");
}

/* ---- rows ---- */

static void add_u64(struct mp_strbuf *out, uint64_t value)
{
    char text[20];
    size_t at = sizeof text;
    do {
        text[--at] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    mp_strbuf_add(out, text + at, sizeof text - at);
}

struct number {
    const char *key;
    uint64_t value;
    bool known;
};

static size_t numbers_of(const struct mp_sweep_row *row, struct number *numbers)
{
    const bool replayed = row->decided == MP_DECIDED_REPLAY || row->decided == MP_DECIDED_SAME_STREAM;
    numbers[0] = (struct number){"requested_bytes", row->requested_bytes, replayed || row->decided == MP_DECIDED_FOLDED};
    numbers[1] = (struct number){"allocated_bytes", row->allocated_bytes, replayed};
    numbers[2] = (struct number){"reserved_bytes", row->reserved_bytes, replayed};
    numbers[3] = (struct number){"device_used_bytes", row->device_used_bytes, replayed};
    return 4;
}

static const char *fits_text(const struct mp_sweep_row *row)
{
    return row->decided == MP_DECIDED_ERROR ? NULL : row->fits ? "true" : "false";
}

static void write_csv(struct row_writer *w, uint64_t point, const struct mp_sweep_row *row)
{
    const struct mp_grid *const grid = w->sweep->grid;
    struct number numbers[4];
    const size_t n = numbers_of(row, numbers);
    const char *const fits = fits_text(row);
    mp_strbuf_addstr(&w->out, w->sweep->tag);
    mp_strbuf_addch(&w->out, ',');
    add_u64(&w->out, point);
    for (size_t a = 0; a < grid->n_axes; a++)
        mp_strbuf_addstr(&w->out, w->axes[a].texts[point / grid->axes[a].stride % grid->axes[a].n]);
    mp_strbuf_addch(&w->out, ',');
    mp_strbuf_addstr(&w->out, fits ? fits : "");
    mp_strbuf_addch(&w->out, ',');
    mp_strbuf_addstr(&w->out, mp_decided_text((enum mp_decided)row->decided));
    for (size_t i = 0; i < n; i++) {
        mp_strbuf_addch(&w->out, ',');
        if (numbers[i].known)
            add_u64(&w->out, numbers[i].value);
    }
    mp_strbuf_addch(&w->out, ',');
    if (row->decided == MP_DECIDED_ERROR)
        add_csv(&w->out, w->sweep->errors[row->error]);
    mp_strbuf_addch(&w->out, '\n');
}

static void write_json(struct row_writer *w, uint64_t point, const struct mp_sweep_row *row)
{
    const struct mp_grid *const grid = w->sweep->grid;
    struct number numbers[4];
    const size_t n = numbers_of(row, numbers);
    const char *const fits = fits_text(row);
    if (w->format == MP_SWEEP_JSON && !w->first)
        mp_strbuf_addstr(&w->out, ",\n");
    mp_strbuf_addstr(&w->out, "{\"grid\":\"");
    mp_strbuf_addstr(&w->out, w->sweep->tag);
    mp_strbuf_addstr(&w->out, "\",\"point\":");
    add_u64(&w->out, point);
    for (size_t a = 0; a < grid->n_axes; a++)
        mp_strbuf_addstr(&w->out, w->axes[a].texts[point / grid->axes[a].stride % grid->axes[a].n]);
    mp_strbuf_addstr(&w->out, ",\"fits\":");
    mp_strbuf_addstr(&w->out, fits ? fits : "null");
    mp_strbuf_addstr(&w->out, ",\"decided_by\":\"");
    mp_strbuf_addstr(&w->out, mp_decided_text((enum mp_decided)row->decided));
    mp_strbuf_addch(&w->out, '"');
    for (size_t i = 0; i < n; i++) {
        mp_strbuf_addstr(&w->out, ",\"");
        mp_strbuf_addstr(&w->out, numbers[i].key);
        mp_strbuf_addstr(&w->out, "\":");
        if (numbers[i].known)
            add_u64(&w->out, numbers[i].value);
        else
            mp_strbuf_addstr(&w->out, "null");
    }
    struct mp_json_writer json;
    mp_strbuf_addstr(&w->out, ",\"error\":");
    mp_json_init(&json, &w->out, 0);
    mp_json_string(&json, NULL, row->decided == MP_DECIDED_ERROR ? w->sweep->errors[row->error] : NULL);
    mp_strbuf_addstr(&w->out, w->format == MP_SWEEP_JSON ? "}" : "}\n");
}

static bool write_row(void *context, uint64_t point, const struct mp_sweep_row *row)
{
    struct row_writer *const w = context;
    if (row->decided == MP_DECIDED_NOT)
        return true;
    if (w->format == MP_SWEEP_CSV)
        write_csv(w, point, row);
    else
        write_json(w, point, row);
    w->first = false;
    if (w->out.len > MP_MIB)
        w->status = mp_sink_put(w->sink, &w->out, w->err);
    return w->status == MEMPLAN_STATUS_OK;
}

static void write_head(struct row_writer *w)
{
    const struct mp_grid *const grid = w->sweep->grid;
    if (w->format == MP_SWEEP_JSON)
        mp_strbuf_addf(&w->out, "{\"schema_version\":%d,\"grid\":\"%s\",\"points\":[\n", MP_SWEEP_SCHEMA_VERSION, w->sweep->tag);
    if (w->format != MP_SWEEP_CSV)
        return;
    mp_strbuf_addstr(&w->out, "grid,point");
    for (size_t a = 0; a < grid->n_axes; a++)
        mp_strbuf_addf(&w->out, ",%s", mp_run_key_text(grid->axes[a].key));
    mp_strbuf_addstr(&w->out, ",fits,decided_by,requested_bytes,allocated_bytes,reserved_bytes,device_used_bytes,error\n");
}

enum memplan_status mp_sweep_write_rows(const struct mp_sweep *sweep, enum mp_sweep_format format, struct mp_sink *sink,
                                        struct memplan_error *err)
{
    struct row_writer w = {.sweep = sweep, .format = format, .sink = sink, .err = err, .first = true};
    mp_arena_init(&w.arena);
    w.status = make_texts(&w);
    if (!w.status) {
        write_head(&w);
        mp_sweep_each(sweep, write_row, &w);
    }
    if (!w.status && format == MP_SWEEP_JSON)
        mp_strbuf_addstr(&w.out, w.first ? "]}\n" : "\n]}\n");
    if (!w.status)
        w.status = mp_sink_put(sink, &w.out, err);
    mp_strbuf_release(&w.out);
    mp_arena_release(&w.arena);
    return w.status;
}

/* ---- summary ---- */

struct counts {
    uint64_t fits, decided[MP_DECIDED_COUNT];
};

static bool count_row(void *context, uint64_t point, const struct mp_sweep_row *row)
{
    struct counts *const c = context;
    (void)point;
    c->fits += row->fits;
    c->decided[row->decided]++;
    return true;
}

void mp_sweep_write_summary(const struct mp_sweep *sweep, struct mp_strbuf *out)
{
    struct counts c = {0};
    mp_sweep_each(sweep, count_row, &c);
    const uint64_t n = c.decided[MP_DECIDED_FOLDED] + c.decided[MP_DECIDED_REPLAY] + c.decided[MP_DECIDED_SAME_STREAM];
    mp_strbuf_addf(out, "%" PRIu64 " points: %" PRIu64 " fit, %" PRIu64 " do not", n, c.fits, n - c.fits);
    mp_strbuf_addf(out, "; %" PRIu64 " replayed, %" PRIu64 " as another card's replay, %" PRIu64 " by their requested peak alone",
                   c.decided[MP_DECIDED_REPLAY], c.decided[MP_DECIDED_SAME_STREAM], c.decided[MP_DECIDED_FOLDED]);
    if (c.decided[MP_DECIDED_ERROR])
        mp_strbuf_addf(out, "; %" PRIu64 " cannot be run (see error)", c.decided[MP_DECIDED_ERROR]);
    if (c.decided[MP_DECIDED_NOT])
        mp_strbuf_addf(out, "; %" PRIu64 " left", c.decided[MP_DECIDED_NOT]);
    mp_strbuf_addch(out, '\n');
}
