/* SPDX-License-Identifier: MIT */
/*
 * The memory map as a drawing: one path per band, whatever the number of blocks. Blocks that are narrower than what can be seen are
 * drawn together, in the colour of what most of them are.
 */
#include <math.h>

#include "base/units.h"
#include "report/memory_map.h"
#include "report/svg.h"

static const double FONT = 11, WIDTH = 960, LEFT = 64, RIGHT = 8, TOP = 20;

enum { MOST_RUNS = 12000 };

struct mp_map_geometry mp_memory_map_geometry(const struct mp_memory_map *map)
{
    const double pitch = map->n_rows > 20 ? 14 : 19;
    return (struct mp_map_geometry){.width = WIDTH, .height = TOP + pitch * map->n_rows + FONT, .left = LEFT, .top = TOP,
                                    .row_width = WIDTH - LEFT - RIGHT, .row_height = pitch - 4, .pitch = pitch};
}

/* ---- runs of blocks ---- */

struct run {
    uint64_t position, bytes;
    unsigned band;
};

struct runs {
    struct run *items; /* malloc'ed */
    size_t n, capacity;
    bool failed;
};

static void add_run(struct runs *r, uint64_t position, uint64_t bytes, unsigned band)
{
    struct run *last = r->n ? &r->items[r->n - 1] : NULL;
    if (last && last->band == band && last->position + last->bytes == position && band != MP_SVG_BAND_HOLE) {
        last->bytes += bytes;
        return;
    }
    if (r->n == r->capacity) {
        const size_t capacity = r->capacity ? r->capacity * 2 : 1024;
        struct run *items = mp_realloc(r->items, capacity * sizeof *items);
        r->failed = r->failed || !items;
        if (!items)
            return;
        r->items = items;
        r->capacity = capacity;
    }
    r->items[r->n++] = (struct run){position, bytes, band};
}

/* Blocks that are each too small to see, gathered until they are not. */
struct crowd {
    uint64_t position, bytes, by_band[MP_SVG_BANDS];
};

static void draw_crowd(struct runs *r, struct crowd *crowd)
{
    unsigned most = 0;
    for (unsigned band = 0; band < MP_SVG_BANDS; band++)
        if (crowd->by_band[band] > crowd->by_band[most])
            most = band;
    if (crowd->bytes)
        add_run(r, crowd->position, crowd->bytes, most);
    *crowd = (struct crowd){.position = crowd->position + crowd->bytes};
}

static void runs_of_segment(const struct mp_memory_map *map, const struct mp_map_segment *s, uint64_t visible_bytes, struct runs *r)
{
    struct crowd crowd = {.position = s->position};
    for (size_t k = s->first_block; k < s->first_block + s->n_blocks; k++) {
        const struct mp_map_block *block = &map->blocks[k];
        const unsigned band = block->op ? (unsigned)block->category : MP_SVG_BAND_HOLE;
        if (block->bytes >= visible_bytes) {
            draw_crowd(r, &crowd);
            add_run(r, crowd.position, block->bytes, band);
            crowd.position += block->bytes;
            continue;
        }
        crowd.bytes += block->bytes;
        crowd.by_band[band] += block->bytes;
        if (crowd.bytes >= visible_bytes)
            draw_crowd(r, &crowd);
    }
    draw_crowd(r, &crowd);
}

static struct runs find_runs(const struct mp_memory_map *map)
{
    const double row_width = mp_memory_map_geometry(map).row_width;
    struct runs r = {0};
    for (double visible = 0.5; !r.failed; visible *= 2) {
        r.n = 0;
        for (size_t i = 0; i < map->n_segments; i++)
            runs_of_segment(map, &map->segments[i], (uint64_t)((double)map->row_bytes / row_width * visible) + 1, &r);
        if (r.n <= MOST_RUNS)
            break;
    }
    return r;
}

/* ---- drawing ---- */

/* A stretch of positions as rectangles, one for each row that it touches. */
static void add_boxes(const struct mp_memory_map *map, uint64_t position, uint64_t bytes, struct mp_strbuf *out)
{
    const struct mp_map_geometry g = mp_memory_map_geometry(map);
    const double scale = g.row_width / (double)map->row_bytes;
    while (bytes > 0) {
        const uint64_t row = position / map->row_bytes, offset = position % map->row_bytes;
        const uint64_t here = MP_MIN(bytes, map->row_bytes - offset);
        mp_strbuf_addch(out, 'M');
        mp_svg_number(out, g.left + scale * (double)offset);
        mp_strbuf_addch(out, ' ');
        mp_svg_number(out, g.top + g.pitch * (double)row);
        mp_strbuf_addch(out, 'h');
        mp_svg_number(out, scale * (double)here);
        mp_strbuf_addch(out, 'v');
        mp_svg_number(out, g.row_height);
        mp_strbuf_addch(out, 'h');
        mp_svg_number(out, -scale * (double)here);
        mp_strbuf_addch(out, 'z');
        position += here;
        bytes -= here;
    }
}

static void draw_runs(const struct mp_memory_map *map, struct mp_strbuf *out)
{
    struct runs r = find_runs(map);
    for (unsigned band = 0; band < MP_SVG_BANDS; band++) {
        bool any = false;
        for (size_t i = 0; i < r.n; i++) {
            if (r.items[i].band != band)
                continue;
            if (!any)
                mp_strbuf_addf(out, "<path class=\"%s\" d=\"", mp_svg_band_class(band));
            any = true;
            add_boxes(map, r.items[i].position, r.items[i].bytes, out);
        }
        if (any)
            mp_strbuf_addstr(out, "\"/>\n");
    }
    out->failed = out->failed || r.failed;
    free(r.items);
}

static void draw_outlines(const struct mp_memory_map *map, struct mp_strbuf *out)
{
    const double visible = (double)map->row_bytes / mp_memory_map_geometry(map).row_width * 1.5;
    mp_strbuf_addstr(out, "<path class=\"outline\" d=\"");
    for (size_t i = 0; i < map->n_segments; i++)
        if ((double)map->segments[i].bytes > visible) /* a frame around less would hide it */
            add_boxes(map, map->segments[i].position, map->segments[i].bytes, out);
    mp_strbuf_addstr(out, "\"/>\n");
}

static uint64_t position_of_block(const struct mp_memory_map *map, const struct mp_map_segment *s, size_t block)
{
    uint64_t position = s->position;
    for (size_t k = s->first_block; k < block; k++)
        position += map->blocks[k].bytes;
    return position;
}

static void draw_largest_hole(const struct mp_memory_map *map, struct mp_strbuf *out)
{
    if (map->largest_hole == map->n_blocks)
        return;
    const uint64_t position = position_of_block(map, &map->segments[map->largest_hole_segment], map->largest_hole);
    mp_strbuf_addstr(out, "<path class=\"largest\" d=\"");
    add_boxes(map, position, map->blocks[map->largest_hole].bytes, out);
    mp_strbuf_addstr(out, "\"/>\n");
}

static void draw_scale(const struct mp_memory_map *map, struct mp_strbuf *out)
{
    const struct mp_map_geometry g = mp_memory_map_geometry(map);
    enum { QUARTERS = 4 };
    for (int i = 0; i <= QUARTERS; i++) {
        const double x = g.left + g.row_width * i / QUARTERS;
        struct mp_strbuf label = MP_STRBUF_INIT;
        mp_svg_byte_label(&label, map->row_bytes / QUARTERS * (unsigned)i);
        mp_svg_line(out, x, g.top - 5, x, g.top - 2, "axis");
        mp_svg_text(out, x, g.top - 8, i == 0 ? MP_SVG_START : i == QUARTERS ? MP_SVG_END : MP_SVG_MIDDLE, "small soft",
                    mp_strbuf_text(&label));
        mp_strbuf_release(&label);
    }
    const uint32_t every = map->n_rows > 16 ? 4 : 2;
    for (uint32_t row = 0; row < map->n_rows; row += every) {
        struct mp_strbuf label = MP_STRBUF_INIT;
        mp_svg_byte_label(&label, row * map->row_bytes);
        mp_svg_text(out, g.left - 6, g.top + g.pitch * row + g.row_height * 0.8, MP_SVG_END, "small soft", mp_strbuf_text(&label));
        mp_strbuf_release(&label);
    }
}

static void describe(const struct mp_memory_map *map, struct mp_strbuf *out)
{
    mp_strbuf_addf(out, "%zu segments of ", map->n_segments);
    mp_bytes_format(out, map->reserved_bytes);
    mp_strbuf_addf(out, " in all, to scale, in rows of ");
    mp_svg_byte_label(out, map->row_bytes);
    mp_strbuf_addf(out, "; %zu holes of ", map->n_holes);
    mp_bytes_format(out, map->free_bytes);
    if (map->largest_hole < map->n_blocks) {
        mp_strbuf_addstr(out, ", the largest is ");
        mp_bytes_format(out, map->blocks[map->largest_hole].bytes);
    }
}

void mp_memory_map_draw(const struct mp_memory_map *map, const char *id, const char *attributes, struct mp_strbuf *out)
{
    const struct mp_map_geometry g = mp_memory_map_geometry(map);
    struct mp_strbuf text = MP_STRBUF_INIT;
    describe(map, &text);
    mp_svg_open(out, &(struct mp_svg_document){.width = g.width, .height = g.height, .id = id, .attributes = attributes,
                                               .title = "Memory map", .description = mp_strbuf_text(&text)});
    draw_runs(map, out);
    draw_outlines(map, out);
    draw_largest_hole(map, out);
    draw_scale(map, out);
    mp_svg_close(out);
    mp_strbuf_release(&text);
}

/* ---- the failure ---- */

struct bar {
    const char *name, *class_name;
    uint64_t bytes;
};

static void draw_bar(const struct bar *bar, double y, double scale, struct mp_strbuf *out)
{
    const double left = 250, height = 16;
    struct mp_strbuf label = MP_STRBUF_INIT;
    mp_bytes_format(&label, bar->bytes);
    mp_svg_text(out, left - 8, y + height * 0.75, MP_SVG_END, NULL, bar->name);
    mp_svg_rect(out, left, y, fmax(scale * (double)bar->bytes, 0.5), height, bar->class_name);
    mp_svg_text(out, left + scale * (double)bar->bytes + 6, y + height * 0.75, MP_SVG_START, "strong", mp_strbuf_text(&label));
    mp_strbuf_release(&label);
}

void mp_memory_map_draw_failure(const struct mp_evaluation *e, struct mp_strbuf *out)
{
    const struct mp_allocator_oom *oom = &e->oom_info;
    const uint64_t left = e->available_bytes > oom->reserved_bytes ? e->available_bytes - oom->reserved_bytes : 0;
    const struct bar bars[] = {
        {"the request needs", "mark", oom->segment_bytes},
        {"largest hole it could use", "hole framed", oom->largest_free_bytes},
        {"all holes it could use, together", "hole framed", oom->free_bytes},
        {"what the card can still give", "b12 framed", left},
    };
    uint64_t most = 1;
    for (size_t i = 0; i < MP_ARRAY_LEN(bars); i++)
        most = MP_MAX(most, bars[i].bytes);
    mp_svg_open(out, &(struct mp_svg_document){.width = WIDTH, .height = 22.0 * MP_ARRAY_LEN(bars) + 4, .id = "failure",
                                               .title = "The request that failed, beside what there was for it",
                                               .description = "Bars to one scale; the same numbers stand in the text"});
    for (size_t i = 0; i < MP_ARRAY_LEN(bars); i++)
        draw_bar(&bars[i], 2 + 22 * (double)i, 590 / (double)most, out);
    mp_svg_close(out);
}
