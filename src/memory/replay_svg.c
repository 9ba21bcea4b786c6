/* SPDX-License-Identifier: MIT */
/*
 * A picture of the segments over time.
 *
 *     bytes ▲   ┌───────── one row of pixels is a slice of a segment
 *           │ ██▓▓░░░██████   full: allocated    light: reserved, yet free (a hole)
 *           │ ████████░░░░█   white: not reserved
 *           └──────────────▶ events
 *
 * Two replays: the first finds every segment, when it lives and how large it becomes, and gives it
 * a place on the vertical axis that no other segment has at the same time; the second fills a grid
 * of cells with how much of each is allocated. Runs of equal cells in a row become strokes, one
 * path per shade.
 */
#include <inttypes.h>

#include "base/arena.h"
#include "base/units.h"
#include "memory/replay.h"

enum {
    COLUMNS = 480,
    ROWS = 360,
    CELL_PX = 2,
    LEFT_PX = 70,
    TOP_PX = 40,
    BOTTOM_PX = 50,
    SHADES = 5
};

/* From free to full. */
static const char *const shades[SHADES] = {"#f6d5b0", "#c3cfe2", "#8fb0dc", "#5a8fd0", "#2166ac"};

/* A segment, or the address range of an expandable one. */
struct lane {
    uint64_t address, bytes; /* the most it ever reached */
    uint64_t bottom;         /* place on the vertical axis */
    uint32_t first, last;    /* columns */
};

struct picture {
    struct lane *lanes;
    size_t n_lanes, cap_lanes;
    uint32_t column;
    uint64_t height;     /* bytes of the whole axis */
    uint64_t *allocated; /* per row of the column at hand */
    uint64_t *reserved;
    uint8_t *cells; /* [column][row]; 0: nothing, 1 + shade otherwise */
    bool failed;
};

/* Where the lane of that address is, or belongs: lanes are kept by address. */
static size_t lane_index(const struct picture *p, uint64_t address)
{
    size_t low = 0, high = p->n_lanes;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (p->lanes[middle].address < address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool add_lane(struct picture *p, size_t at, uint64_t address)
{
    if (p->n_lanes == p->cap_lanes) {
        const size_t cap = p->cap_lanes ? p->cap_lanes * 2 : 256;
        struct lane *lanes = mp_realloc(p->lanes, cap * sizeof(*lanes));
        if (!lanes)
            return false;
        p->lanes = lanes;
        p->cap_lanes = cap;
    }
    memmove(&p->lanes[at + 1], &p->lanes[at], (p->n_lanes - at) * sizeof(p->lanes[0]));
    p->lanes[at] = (struct lane){.address = address, .first = p->column};
    p->n_lanes++;
    return true;
}

static bool measure_segment(void *context, const struct mp_block *first, uint64_t bytes)
{
    struct picture *p = context;
    const size_t i = lane_index(p, first->segment);
    const bool known = i < p->n_lanes && p->lanes[i].address == first->segment;
    if (!known && !add_lane(p, i, first->segment)) {
        p->failed = true;
        return false;
    }
    p->lanes[i].bytes = MP_MAX(p->lanes[i].bytes, first->address - first->segment + bytes);
    p->lanes[i].last = p->column;
    return true;
}

static void measure(void *context, const struct mp_allocator *a, size_t entry)
{
    struct picture *p = context;
    (void)entry;
    if (mp_allocator_visit_segments(a, measure_segment, p) != MEMPLAN_STATUS_OK)
        p->failed = true;
    p->column++;
}

static bool meet(const struct lane *a, const struct lane *b)
{
    return a->first <= b->last && b->first <= a->last && a->bottom < b->bottom + b->bytes &&
           b->bottom < a->bottom + a->bytes;
}

/* The lowest place that is free for as long as the segment lives; high addresses, which are the
 * older ones, first. */
static void place_lanes(struct picture *p)
{
    for (size_t i = p->n_lanes; i-- > 0;) {
        struct lane *lane = &p->lanes[i];
        for (size_t k = i + 1; k < p->n_lanes;) {
            if (meet(lane, &p->lanes[k])) {
                lane->bottom = p->lanes[k].bottom + p->lanes[k].bytes;
                k = i + 1;
            } else {
                k++;
            }
        }
        p->height = MP_MAX(p->height, lane->bottom + lane->bytes);
    }
}

/* Add [from, to) of the axis to the rows that it touches. */
static void cover(const struct picture *p, uint64_t *rows, uint64_t from, uint64_t to)
{
    const uint64_t row_bytes = p->height / ROWS + 1;
    while (from < to) {
        const uint64_t row = from / row_bytes;
        const uint64_t end = MP_MIN(to, (row + 1) * row_bytes);
        rows[row] += end - from;
        from = end;
    }
}

static bool paint_segment(void *context, const struct mp_block *first, uint64_t bytes)
{
    struct picture *p = context;
    const size_t i = lane_index(p, first->segment);
    if (i == p->n_lanes || p->lanes[i].address != first->segment)
        return true;
    const struct lane *lane = &p->lanes[i];
    for (const struct mp_block *b = first; b && b->address < first->address + bytes; b = b->next) {
        const uint64_t from = lane->bottom + b->address - b->segment;
        if (from + b->size > lane->bottom + lane->bytes)
            break;
        cover(p, p->reserved, from, from + b->size);
        if (b->allocated)
            cover(p, p->allocated, from, from + b->size);
    }
    return true;
}

static void paint(void *context, const struct mp_allocator *a, size_t entry)
{
    struct picture *p = context;
    (void)entry;
    if (p->column >= COLUMNS)
        return;
    memset(p->allocated, 0, ROWS * sizeof(uint64_t));
    memset(p->reserved, 0, ROWS * sizeof(uint64_t));
    if (mp_allocator_visit_segments(a, paint_segment, p) != MEMPLAN_STATUS_OK)
        p->failed = true;
    const uint64_t row_bytes = p->height / ROWS + 1;
    uint8_t *cells = p->cells + (size_t)p->column * ROWS;
    for (size_t row = 0; row < ROWS; row++) {
        if (p->reserved[row] * 2 < row_bytes)
            continue;
        const double full = (double)p->allocated[row] / (double)p->reserved[row];
        cells[row] = (uint8_t)(1 + MP_MIN((int)(full * (SHADES - 1) + 0.5), SHADES - 1));
    }
    p->column++;
}

static void write_axis(const struct picture *p, const struct mp_history *h, struct mp_strbuf *out)
{
    const int width = COLUMNS * CELL_PX, height = ROWS * CELL_PX;
    for (unsigned i = 0; i <= 4; i++) {
        struct mp_strbuf label = MP_STRBUF_INIT;
        mp_bytes_format(&label, p->height / 4 * i);
        const int y = TOP_PX + height - (int)i * height / 4;
        mp_strbuf_addf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT_PX - 6,
                       y + 4, mp_strbuf_text(&label));
        mp_strbuf_addf(out, "<path d=\"M%d %dh-4\" stroke=\"#555\"/>\n", LEFT_PX, y);
        mp_strbuf_release(&label);
    }
    mp_strbuf_addf(out,
                   "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" "
                   "stroke=\"#999\"/>\n",
                   LEFT_PX, TOP_PX, width, height);
    mp_strbuf_addf(out,
                   "<text x=\"%d\" y=\"%d\">event 0</text>\n"
                   "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%zu</text>\n",
                   LEFT_PX, TOP_PX + height + 16, LEFT_PX + width, TOP_PX + height + 16,
                   h->n_entries);
    static const char *const legend[] = {"reserved, free", NULL, NULL, NULL, "allocated"};
    for (int i = 0, x = LEFT_PX; i < SHADES; i++, x += legend[i - 1] ? 120 : 20) {
        mp_strbuf_addf(out, "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" fill=\"%s\"/>\n", x,
                       TOP_PX + height + 26, shades[i]);
        if (legend[i])
            mp_strbuf_addf(out, "<text x=\"%d\" y=\"%d\">%s</text>\n", x + 20, TOP_PX + height + 37,
                           legend[i]);
    }
}

/* All runs of one shade as strokes. */
static void write_shade(const struct picture *p, int shade, struct mp_strbuf *out)
{
    mp_strbuf_addf(out, "<path stroke=\"%s\" stroke-width=\"%d\" d=\"", shades[shade], CELL_PX);
    for (int row = 0; row < ROWS; row++) {
        const int y = TOP_PX + (ROWS - 1 - row) * CELL_PX + CELL_PX / 2;
        for (int x = 0; x < COLUMNS;) {
            int end = x;
            while (end < COLUMNS && p->cells[end * ROWS + row] == 1 + shade)
                end++;
            if (end > x)
                mp_strbuf_addf(out, "M%d %dh%d", LEFT_PX + x * CELL_PX, y, (end - x) * CELL_PX);
            x = end > x ? end : x + 1;
        }
    }
    mp_strbuf_addstr(out, "\"/>\n");
}

static void write_escaped(struct mp_strbuf *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '<': mp_strbuf_addstr(out, "&lt;"); break;
        case '>': mp_strbuf_addstr(out, "&gt;"); break;
        case '&': mp_strbuf_addstr(out, "&amp;"); break;
        default:
            if ((unsigned char)*text >= ' ')
                mp_strbuf_addch(out, *text);
        }
    }
}

static void write_picture(const struct picture *p, const struct mp_history *h, const char *title,
                          struct mp_strbuf *out)
{
    const int width = LEFT_PX + COLUMNS * CELL_PX + 20;
    const int height = TOP_PX + ROWS * CELL_PX + BOTTOM_PX;
    mp_strbuf_addf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                   "width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"12\">\n"
                   "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
                   "<text x=\"%d\" y=\"24\" font-size=\"15\">",
                   width, height, width, height, width, height, LEFT_PX);
    write_escaped(out, title);
    mp_strbuf_addstr(out, "</text>\n");
    for (int shade = 0; shade < SHADES; shade++)
        write_shade(p, shade, out);
    write_axis(p, h, out);
    mp_strbuf_addstr(out, "</svg>\n");
}

enum memplan_status mp_replay_svg(const struct mp_history *history,
                                  const struct mp_replay_options *options, const char *title,
                                  struct mp_strbuf *out, struct memplan_error *err)
{
    struct picture p = {0};
    struct mp_replay_options o = *options;
    struct mp_replay_result result;
    const size_t cells = (size_t)COLUMNS * ROWS;
    p.allocated = mp_malloc(ROWS * sizeof(uint64_t));
    p.reserved = mp_malloc(ROWS * sizeof(uint64_t));
    p.cells = mp_malloc(cells);
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (!p.allocated || !p.reserved || !p.cells)
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    o.context = &p;
    o.sample_every = history->n_entries / (COLUMNS - 1) + 1;
    if (status == MEMPLAN_STATUS_OK) {
        memset(p.cells, 0, cells);
        o.sample = measure;
        status = mp_replay_run(history, &o, &result, err);
    }
    if (status == MEMPLAN_STATUS_OK) {
        place_lanes(&p);
        p.column = 0;
        o.sample = paint;
        status = mp_replay_run(history, &o, &result, err);
    }
    if (status == MEMPLAN_STATUS_OK && (p.failed || out->failed))
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    if (status == MEMPLAN_STATUS_OK)
        write_picture(&p, history, title, out);
    free(p.lanes);
    free(p.allocated);
    free(p.reserved);
    free(p.cells);
    return status;
}
