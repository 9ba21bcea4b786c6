/* SPDX-License-Identifier: MIT */
/* A sweep as one HTML file that needs nothing else: summary, heat maps, the first rows. */
#include <inttypes.h>

#include "base/units.h"
#include "report/sweep.h"

enum { MAX_ROWS = 1000 };

static void add_xml(struct mp_strbuf *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '&')
            mp_strbuf_addstr(out, "&amp;");
        else if (*text == '<')
            mp_strbuf_addstr(out, "&lt;");
        else if (*text == '>')
            mp_strbuf_addstr(out, "&gt;");
        else
            mp_strbuf_addch(out, (unsigned char)*text < ' ' ? ' ' : *text);
    }
}

struct table {
    const struct mp_sweep *sweep;
    struct mp_strbuf *out;
    uint64_t n;
};

static void add_bytes(struct mp_strbuf *out, uint64_t bytes, bool known)
{
    mp_strbuf_addstr(out, "<td>");
    if (known)
        mp_bytes_format(out, bytes);
    mp_strbuf_addstr(out, "</td>");
}

static bool add_row(void *context, uint64_t point, const struct mp_sweep_row *row)
{
    struct table *const t = context;
    struct mp_strbuf *const out = t->out;
    const struct mp_grid *const grid = t->sweep->grid;
    const bool replayed = row->decided == MP_DECIDED_REPLAY || row->decided == MP_DECIDED_SAME_STREAM;
    mp_strbuf_addf(out, "<tr><td>%" PRIu64 "</td>", point);
    for (size_t a = 0; a < grid->n_axes; a++) {
        struct mp_strbuf text = MP_STRBUF_INIT;
        mp_grid_value_text(grid->axes[a].values[point / grid->axes[a].stride % grid->axes[a].n], &text);
        mp_strbuf_addstr(out, "<td>");
        add_xml(out, mp_strbuf_text(&text));
        mp_strbuf_addstr(out, "</td>");
        mp_strbuf_release(&text);
    }
    mp_strbuf_addf(out, "<td class=\"%s\">%s</td><td>%s</td>", row->fits ? "yes" : "no",
                   row->decided == MP_DECIDED_ERROR ? "" : row->fits ? "fits" : "no", mp_decided_text((enum mp_decided)row->decided));
    add_bytes(out, row->requested_bytes, replayed || row->decided == MP_DECIDED_FOLDED);
    add_bytes(out, row->allocated_bytes, replayed);
    add_bytes(out, row->reserved_bytes, replayed);
    add_bytes(out, row->device_used_bytes, replayed);
    mp_strbuf_addstr(out, "<td>");
    if (row->decided == MP_DECIDED_ERROR)
        add_xml(out, t->sweep->errors[row->error]);
    mp_strbuf_addstr(out, "</td></tr>\n");
    return ++t->n < MAX_ROWS;
}

static void add_table(const struct mp_sweep *sweep, struct mp_strbuf *out)
{
    struct table t = {sweep, out, 0};
    mp_strbuf_addstr(out, "<table>\n<tr><th>point</th>");
    for (size_t a = 0; a < sweep->grid->n_axes; a++)
        mp_strbuf_addf(out, "<th>%s</th>", mp_run_key_text(sweep->grid->axes[a].key));
    mp_strbuf_addstr(out, "<th>verdict</th><th>decided by</th><th>requested</th><th>allocated</th>"
                          "<th>reserved</th><th>device used</th><th>error</th></tr>\n");
    mp_sweep_each(sweep, add_row, &t);
    mp_strbuf_addstr(out, "</table>\n");
    if (sweep->n_rows > MAX_ROWS)
        mp_strbuf_addf(out,
                       "<p>The first %d of %" PRIu64
                       " points; all of them are in the output as .csv or .json.</p>\n",
                       MAX_ROWS, sweep->n_rows);
}

enum memplan_status mp_sweep_write_html(const struct mp_sweep_map *map, struct mp_strbuf *out, struct memplan_error *err)
{
    const struct mp_sweep *const sweep = map->sweep;
    mp_strbuf_addstr(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>memplan sweep: ");
    add_xml(out, sweep->grid->origin);
    mp_strbuf_addstr(
        out,
        "</title>\n<style>body{font-family:sans-serif;margin:2em;color:#111}table{border-collapse:collapse;font-size:13px}"
        "td,th{padding:2px 10px;border-bottom:1px solid #ddd;text-align:right}th{background:#f3f3f3}"
        ".yes{background:#d5e8f7}.no{background:#fdd8b5}svg{max-width:100%;height:auto}</style>\n</head>\n<body>\n<h1>");
    add_xml(out, sweep->grid->origin);
    mp_strbuf_addstr(out, "</h1>\n<p>");
    mp_sweep_write_summary(sweep, out);
    mp_strbuf_addf(out, "<br>Grid %s, memplan %s.</p>\n", sweep->tag, memplan_version());
    const enum memplan_status status = mp_sweep_write_svg(map, out, err);
    if (status)
        return status;
    add_table(sweep, out);
    mp_strbuf_addstr(out, "</body>\n</html>\n");
    return out->failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing HTML") : MEMPLAN_STATUS_OK;
}
