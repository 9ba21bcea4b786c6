/* SPDX-License-Identifier: MIT */
/*
 * Heat maps of a sweep.
 *
 *     ┌───┬───┬───╥───┐   a cell is a point: how much of the card it uses, in shades; hatched where it does not fit
 *     │   │   │   ║///│   ║ the border between fit and no fit
 *     └───┴───┴───╨───┘   one panel for each combination of the lists that are not axes
 */
#include <inttypes.h>

#include "base/units.h"
#include "report/sweep.h"

enum { MAX_PANELS = 64, MAX_CELLS = 128, LEFT = 76, TOP = 48, BOTTOM = 56, GAP = 28, LEGEND = 64, SHADES = 6 };

static const char *const shades[SHADES] = {"#eff3ff", "#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c"};

/* ---- axes ---- */

static bool is_numeric(const struct mp_axis *axis)
{
    for (size_t i = 0; i < axis->n; i++)
        if (!axis->values[i] || (axis->values[i]->kind != MP_INT && axis->values[i]->kind != MP_DOUBLE))
            return false;
    return true;
}

/* The next axis from `from` on with more than one value; numbers only when asked for. SIZE_MAX: none. */
static size_t next_axis(const struct mp_grid *grid, size_t from, bool numeric, size_t except)
{
    for (size_t i = from; i < grid->n_axes; i++)
        if (i != except && grid->axes[i].n > 1 && (!numeric || is_numeric(&grid->axes[i])))
            return i;
    return SIZE_MAX;
}

static void choose_axes(struct mp_sweep_map *map)
{
    const struct mp_grid *const grid = map->sweep->grid;
    map->x = next_axis(grid, 0, true, SIZE_MAX);
    if (map->x == SIZE_MAX)
        map->x = next_axis(grid, 0, false, SIZE_MAX);
    if (map->x == SIZE_MAX)
        return;
    map->y = next_axis(grid, map->x + 1, true, map->x);
    if (map->y == SIZE_MAX)
        map->y = next_axis(grid, 0, false, map->x);
}

static size_t find_axis(const struct mp_grid *grid, const char *name, size_t n)
{
    for (size_t i = 0; i < grid->n_axes; i++) {
        const char *const text = mp_run_key_text(grid->axes[i].key);
        if (strlen(text) == n && strncmp(text, name, n) == 0)
            return i;
    }
    return SIZE_MAX;
}

enum memplan_status mp_sweep_map_init(struct mp_sweep_map *map, const struct mp_sweep *sweep, const char *axes, struct memplan_error *err)
{
    *map = (struct mp_sweep_map){sweep, SIZE_MAX, SIZE_MAX};
    if (!axes) {
        choose_axes(map);
        return map->x != SIZE_MAX ? MEMPLAN_STATUS_OK
                                  : mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                                 "%s: nothing to draw, no key has several values",
                                                 sweep->grid->origin);
    }
    const size_t n = strcspn(axes, ",");
    map->x = find_axis(sweep->grid, axes, n);
    if (axes[n])
        map->y = find_axis(sweep->grid, axes + n + 1, strlen(axes + n + 1));
    if (map->x == SIZE_MAX || (axes[n] && map->y == SIZE_MAX) || map->x == map->y)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--heatmap: '%.60s' does not name two keys that have several values in %s", axes,
                            sweep->grid->origin);
    return MEMPLAN_STATUS_OK;
}

/* ---- layout ---- */

struct map_cell {
    const struct mp_sweep_row *row; /* NULL: no such point */
    uint64_t card_bytes;
};

struct layout {
    const struct mp_sweep_map *map;
    const struct mp_grid *grid;
    size_t columns, rows;     /* cells of a panel */
    int cell_w, cell_h;
    size_t n_panels, per_row; /* panels side by side */
    int panel_w, panel_h;
    struct map_cell *cells; /* [panel][row][column] */
};

static size_t n_panels(const struct mp_sweep_map *map)
{
    size_t n = 1;
    for (size_t i = 0; i < map->sweep->grid->n_axes; i++)
        if (i != map->x && i != map->y && n <= MAX_PANELS)
            n *= map->sweep->grid->axes[i].n;
    return n;
}

static size_t panel_of(const struct mp_sweep_map *map, uint64_t point)
{
    const struct mp_grid *const grid = map->sweep->grid;
    size_t panel = 0;
    for (size_t i = 0; i < grid->n_axes; i++)
        if (i != map->x && i != map->y)
            panel = panel * grid->axes[i].n + point / grid->axes[i].stride % grid->axes[i].n;
    return panel;
}

static size_t index_on(const struct mp_grid *grid, size_t axis, uint64_t point)
{
    return axis == SIZE_MAX ? 0 : (size_t)(point / grid->axes[axis].stride % grid->axes[axis].n);
}

static struct map_cell *cell(const struct layout *l, size_t panel, size_t row, size_t column)
{
    return &l->cells[(panel * l->rows + row) * l->columns + column];
}

static bool place_row(void *context, uint64_t point, const struct mp_sweep_row *row)
{
    struct layout *const l = context;
    struct map_cell *const c = cell(l, panel_of(l->map, point), index_on(l->grid, l->map->y, point), index_on(l->grid, l->map->x, point));
    *c = (struct map_cell){row, mp_sweep_card_bytes(l->map->sweep, point)};
    return true;
}

static int clamp(size_t value, int low, int high) { return value < (size_t)low ? low : value > (size_t)high ? high : (int)value; }

static enum memplan_status lay_out(struct layout *l, const struct mp_sweep_map *map, struct memplan_error *err)
{
    const struct mp_grid *const grid = map->sweep->grid;
    *l = (struct layout){.map = map, .grid = grid, .columns = grid->axes[map->x].n, .rows = map->y == SIZE_MAX ? 1 : grid->axes[map->y].n};
    l->n_panels = n_panels(map);
    if (l->n_panels > MAX_PANELS)
        return mp_error_set(
            err, MEMPLAN_STATUS_INPUT,
            "%s: a heat map of %s and %s has more than %d panels, one for each combination of the other keys; give those fewer values",
            grid->origin, mp_run_key_text(grid->axes[map->x].key),
            map->y == SIZE_MAX ? "nothing" : mp_run_key_text(grid->axes[map->y].key), MAX_PANELS);
    if (l->columns > MAX_CELLS || l->rows > MAX_CELLS)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "%s: a heat map of more than %d cells a side; give fewer values",
                            grid->origin, MAX_CELLS);
    l->cell_w = clamp(480 / l->columns, 10, 64);
    l->cell_h = clamp(320 / l->rows, 10, 32);
    l->panel_w = LEFT + (int)l->columns * l->cell_w;
    l->panel_h = TOP + (int)l->rows * l->cell_h + BOTTOM;
    l->per_row = (size_t)clamp((size_t)(1200 / (l->panel_w + GAP)), 1, 6);
    l->per_row = MP_MIN(l->per_row, l->n_panels);
    l->cells = mp_malloc(l->n_panels * l->rows * l->columns * sizeof *l->cells);
    if (!l->cells)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing");
    memset(l->cells, 0, l->n_panels * l->rows * l->columns * sizeof *l->cells);
    mp_sweep_each(map->sweep, place_row, l);
    return MEMPLAN_STATUS_OK;
}

/* ---- texts ---- */

static void add_xml(struct mp_strbuf *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&': mp_strbuf_addstr(out, "&amp;"); break;
        case '<': mp_strbuf_addstr(out, "&lt;"); break;
        case '>': mp_strbuf_addstr(out, "&gt;"); break;
        case '"': mp_strbuf_addstr(out, "&quot;"); break;
        default: mp_strbuf_addch(out, (unsigned char)*text < ' ' ? ' ' : *text);
        }
    }
}

static void add_value(struct mp_strbuf *out, const struct mp_value *value)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_grid_value_text(value, &text);
    add_xml(out, value ? mp_strbuf_text(&text) : "not given");
    mp_strbuf_release(&text);
}

/* "precision bf16, gpu T4-16G" */
static void add_panel_title(const struct layout *l, size_t panel, struct mp_strbuf *out)
{
    size_t index[MP_RUN_KEYS], rest = panel;
    bool first = true;
    for (size_t i = l->grid->n_axes; i-- > 0;) {
        if (i == l->map->x || i == l->map->y)
            continue;
        index[i] = rest % l->grid->axes[i].n;
        rest /= l->grid->axes[i].n;
    }
    for (size_t i = 0; i < l->grid->n_axes; i++) {
        if (i == l->map->x || i == l->map->y)
            continue;
        mp_strbuf_addf(out, "%s%s ", first ? "" : ", ", mp_run_key_text(l->grid->axes[i].key));
        add_value(out, l->grid->axes[i].values[index[i]]);
        first = false;
    }
}

/* ---- cells ---- */

static double share_of(const struct map_cell *c) { return (double)c->row->device_used_bytes / (double)MP_MAX(c->card_bytes, 1); }

static const char *fill_of(const struct map_cell *c)
{
    if (!c->row || c->row->decided == MP_DECIDED_NOT)
        return "none";
    if (c->row->decided == MP_DECIDED_ERROR)
        return "#dddddd";
    if (!c->row->fits)
        return "url(#no)";
    const int shade = (int)(share_of(c) * SHADES);
    return shades[shade < 0 ? 0 : shade >= SHADES ? SHADES - 1 : shade];
}

static bool is_fit(const struct mp_sweep_row *row) { return row && row->fits; }
static bool is_no_fit(const struct mp_sweep_row *row)
{
    return row && !row->fits && row->decided != MP_DECIDED_ERROR && row->decided != MP_DECIDED_NOT;
}

static void add_tooltip(struct mp_strbuf *out, const struct mp_sweep_row *row)
{
    const bool replayed = row->decided == MP_DECIDED_REPLAY || row->decided == MP_DECIDED_SAME_STREAM;
    mp_strbuf_addstr(out, row->decided == MP_DECIDED_ERROR ? "cannot be run" : row->fits ? "fits" : "does not fit");
    if (!replayed && row->decided != MP_DECIDED_FOLDED)
        return;
    mp_strbuf_addstr(out, row->fits ? ", device used " : ", requested ");
    mp_bytes_format(out, row->fits ? row->device_used_bytes : row->requested_bytes);
    mp_strbuf_addf(out, " (%s)", mp_decided_text((enum mp_decided)row->decided));
}

static void add_cell(const struct layout *l, size_t panel, size_t row, size_t column, struct mp_strbuf *out)
{
    const struct map_cell *const c = cell(l, panel, row, column);
    const struct mp_sweep_row *const r = c->row;
    const int x = (int)column * l->cell_w, y = (int)(l->rows - 1 - row) * l->cell_h;
    mp_strbuf_addf(out,
                   "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" class=\"cell\">",
                   x, y, l->cell_w, l->cell_h, fill_of(c));
    if (r) {
        mp_strbuf_addstr(out, "<title>");
        add_tooltip(out, r);
        mp_strbuf_addstr(out, "</title>");
    }
    mp_strbuf_addstr(out, "</rect>\n");
    if (!is_fit(r) || l->cell_w < 36 || l->cell_h < 14)
        return;
    mp_strbuf_addf(out, "<text x=\"%d\" y=\"%d\" class=\"%s\">%.1f</text>\n", x + l->cell_w / 2,
                   y + l->cell_h / 2 + 4, share_of(c) > 0.6 ? "light" : "dark",
                   (double)r->device_used_bytes / (double)MP_GIB);
}

/* Lines between neighbours of which one fits and the other does not. */
static void add_border(const struct layout *l, size_t panel, struct mp_strbuf *out)
{
    mp_strbuf_addstr(out, "<path class=\"border\" d=\"");
    for (size_t row = 0; row < l->rows; row++) {
        for (size_t column = 0; column < l->columns; column++) {
            const struct mp_sweep_row *const here = cell(l, panel, row, column)->row;
            const int x = (int)column * l->cell_w, y = (int)(l->rows - 1 - row) * l->cell_h;
            const struct mp_sweep_row *const right = column + 1 < l->columns ? cell(l, panel, row, column + 1)->row : NULL;
            const struct mp_sweep_row *const above = row + 1 < l->rows ? cell(l, panel, row + 1, column)->row : NULL;
            if ((is_fit(here) && is_no_fit(right)) || (is_no_fit(here) && is_fit(right)))
                mp_strbuf_addf(out, "M%d %dv%d", x + l->cell_w, y, l->cell_h);
            if ((is_fit(here) && is_no_fit(above)) || (is_no_fit(here) && is_fit(above)))
                mp_strbuf_addf(out, "M%d %dh%d", x, y, l->cell_w);
        }
    }
    mp_strbuf_addstr(out, "\"/>\n");
}

/* Every how many values one is written, so that they do not run into each other. */
static size_t label_step(size_t n, int cell_px, int text_px)
{
    size_t step = 1;
    while ((int)step * cell_px < text_px && step < n)
        step++;
    return step;
}

static void add_axes(const struct layout *l, struct mp_strbuf *out)
{
    const struct mp_axis *const x = &l->grid->axes[l->map->x];
    const int width = (int)l->columns * l->cell_w, height = (int)l->rows * l->cell_h;
    for (size_t i = 0; i < x->n; i += label_step(x->n, l->cell_w, 40)) {
        mp_strbuf_addf(out, "<text x=\"%d\" y=\"%d\" class=\"mid\">", (int)i * l->cell_w + l->cell_w / 2, height + 16);
        add_value(out, x->values[i]);
        mp_strbuf_addstr(out, "</text>\n");
    }
    mp_strbuf_addf(out, "<text x=\"%d\" y=\"%d\" class=\"mid name\">%s</text>\n", width / 2, height + 36, mp_run_key_text(x->key));
    if (l->map->y == SIZE_MAX)
        return;
    const struct mp_axis *const y = &l->grid->axes[l->map->y];
    for (size_t i = 0; i < y->n; i += label_step(y->n, l->cell_h, 14)) {
        mp_strbuf_addf(out, "<text x=\"-6\" y=\"%d\" class=\"end\">", (int)(l->rows - 1 - i) * l->cell_h + l->cell_h / 2 + 4);
        add_value(out, y->values[i]);
        mp_strbuf_addstr(out, "</text>\n");
    }
    mp_strbuf_addf(out, "<text transform=\"translate(%d %d) rotate(-90)\" class=\"mid name\">%s</text>\n", 14 - LEFT, height / 2,
                   mp_run_key_text(y->key));
}

static void add_panel(const struct layout *l, size_t panel, struct mp_strbuf *out)
{
    const int x = (int)(panel % l->per_row) * (l->panel_w + GAP), y = (int)(panel / l->per_row) * l->panel_h;
    mp_strbuf_addf(out, "<g transform=\"translate(%d %d)\">\n<text x=\"0\" y=\"-10\" class=\"title\">", x + LEFT, y + TOP);
    add_panel_title(l, panel, out);
    mp_strbuf_addstr(out, "</text>\n");
    for (size_t row = 0; row < l->rows; row++)
        for (size_t column = 0; column < l->columns; column++)
            add_cell(l, panel, row, column, out);
    add_border(l, panel, out);
    add_axes(l, out);
    mp_strbuf_addstr(out, "</g>\n");
}

static void add_legend(int y, struct mp_strbuf *out)
{
    mp_strbuf_addf(
        out,
        "<g transform=\"translate(%d %d)\">\n<text x=\"0\" y=\"0\">share of the card in use (numbers: GiB)</text>\n",
        LEFT, y);
    for (int i = 0; i < SHADES; i++)
        mp_strbuf_addf(
            out,
            "<rect x=\"%d\" y=\"8\" width=\"44\" height=\"14\" fill=\"%s\" class=\"cell\"/>"
            "<text x=\"%d\" y=\"36\" class=\"mid\">%d %%</text>\n",
            i * 44, shades[i], i * 44 + 44, (i + 1) * 100 / SHADES);
    mp_strbuf_addf(
        out,
        "<rect x=\"%d\" y=\"8\" width=\"30\" height=\"14\" fill=\"url(#no)\" class=\"cell\"/><text x=\"%d\" y=\"20\">does not fit</text>\n"
        "<path d=\"M%d 8v14\" class=\"border\"/><text x=\"%d\" y=\"20\">border</text>\n"
        "<rect x=\"%d\" y=\"8\" width=\"30\" height=\"14\" fill=\"#dddddd\" class=\"cell\"/>"
        "<text x=\"%d\" y=\"20\">cannot be run</text>\n</g>\n",
        310, 346, 440, 448, 510, 546);
}

enum memplan_status mp_sweep_write_svg(const struct mp_sweep_map *map, struct mp_strbuf *out, struct memplan_error *err)
{
    struct layout l;
    const enum memplan_status status = lay_out(&l, map, err);
    if (status)
        return status;
    const size_t lines = (l.n_panels + l.per_row - 1) / l.per_row;
    const int width = MP_MAX((int)l.per_row * (l.panel_w + GAP), LEFT + 660), height = (int)lines * l.panel_h;
    mp_strbuf_addf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" "
                   "font-size=\"12\">\n",
                   width, height + LEGEND, width, height + LEGEND);
    mp_strbuf_addstr(
        out,
        "<style>.cell{stroke:#ffffff;stroke-width:1}.border{stroke:#b30000;stroke-width:3;fill:none;stroke-linecap:square}"
        ".title{font-weight:bold}.name{font-style:italic}.mid,.dark,.light{text-anchor:middle}.end{text-anchor:end}"
        ".light{fill:#ffffff}.dark{fill:#111111}</style>\n"
        "<defs><pattern id=\"no\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">"
        "<rect width=\"6\" height=\"6\" fill=\"#fdd8b5\"/><path d=\"M0 0v6\" stroke=\"#d9822b\" stroke-width=\"2\"/></pattern></defs>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n");
    for (size_t panel = 0; panel < l.n_panels; panel++)
        add_panel(&l, panel, out);
    add_legend(height + 14, out);
    mp_strbuf_addstr(out, "</svg>\n");
    free(l.cells);
    return out->failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing") : MEMPLAN_STATUS_OK;
}
