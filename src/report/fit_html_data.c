/* SPDX-License-Identifier: MIT */
/* Numbers that change little from sample to sample are written as differences: mostly "0". */
#include "report/fit_html_data.h"

#include "base/json.h"

enum { MOST_BLOCKS = 4000, MOST_SEGMENTS = 3000 }; /* of segments the first, which are the largest */

/* ---- texts that occur often ---- */

/* Distinct texts in order of appearance; a few hundred at most, so a scan is enough. */
struct texts {
    const char **items; /* malloc'ed */
    size_t n, capacity;
    bool failed;
};

static int64_t text_index(struct texts *texts, const char *text)
{
    for (size_t i = texts->n; i-- > 0;)
        if (texts->items[i] == text || strcmp(texts->items[i], text) == 0)
            return (int64_t)i;
    if (texts->n == texts->capacity) {
        const size_t capacity = texts->capacity ? 2 * texts->capacity : 64;
        const char **items = mp_realloc(texts->items, capacity * sizeof(const char *));
        texts->failed = texts->failed || !items;
        if (!items)
            return 0;
        texts->items = items;
        texts->capacity = capacity;
    }
    texts->items[texts->n] = text;
    return (int64_t)texts->n++;
}

static void write_texts(struct mp_json_writer *w, const char *key, struct texts *texts)
{
    mp_json_array(w, key);
    for (size_t i = 0; i < texts->n; i++)
        mp_json_string(w, NULL, texts->items[i]);
    mp_json_end_array(w);
    w->out->failed = w->out->failed || texts->failed;
    free(texts->items);
    *texts = (struct texts){0};
}

/* ---- timeline ---- */

enum column { EVENT, PHASE, LAYER, ALLOCATED, RESERVED, COLUMNS };

static int64_t column_value(const struct mp_timeline_sample *s, enum column column)
{
    switch (column) {
    case EVENT: return s->event;
    case PHASE: return s->phase;
    case LAYER: return s->layer;
    case ALLOCATED: return (int64_t)s->allocated_bytes;
    case RESERVED: return (int64_t)s->reserved_bytes;
    case COLUMNS: break;
    }
    return 0;
}

static void write_columns(struct mp_json_writer *w, const struct mp_timeline *t)
{
    static const char *const names[COLUMNS] = {"event", "phase", "layer", "allocated", "reserved"};
    for (int column = 0; column < COLUMNS; column++) {
        int64_t last = 0;
        mp_json_array(w, names[column]);
        for (size_t i = 0; i < t->n_samples; i++) {
            const int64_t value = column_value(&t->samples[i], (enum column)column);
            mp_json_int(w, NULL, value - last);
            last = value;
        }
        mp_json_end_array(w);
    }
    mp_json_array(w, "live");
    for (int category = 0; category < MP_CATEGORY_COUNT; category++) {
        uint64_t last = 0;
        mp_json_array(w, NULL);
        for (size_t i = 0; i < t->n_samples; i++) {
            mp_json_int(w, NULL, (int64_t)(t->samples[i].live_bytes[category] - last));
            last = t->samples[i].live_bytes[category];
        }
        mp_json_end_array(w);
    }
    mp_json_end_array(w);
}

static bool same_largest(const struct mp_timeline_sample *a, const struct mp_timeline_sample *b)
{
    bool same = a->n_largest == b->n_largest;
    for (int i = 0; same && i < a->n_largest; i++)
        same = a->largest[i].kind == b->largest[i].kind && a->largest[i].n == b->largest[i].n;
    return same;
}

/* Lists, each written once in a row, and which one a sample has. */
static void write_largest(struct mp_json_writer *w, const struct mp_timeline *t)
{
    mp_json_array(w, "lists");
    for (size_t i = 0; i < t->n_samples; i++) {
        const struct mp_timeline_sample *s = &t->samples[i];
        if (i && same_largest(&t->samples[i - 1], s))
            continue;
        mp_json_array(w, NULL);
        for (int k = 0; k < s->n_largest; k++) {
            mp_json_uint(w, NULL, s->largest[k].kind);
            mp_json_uint(w, NULL, s->largest[k].n);
        }
        mp_json_end_array(w);
    }
    mp_json_end_array(w);
    mp_json_array(w, "list");
    for (size_t i = 0; i < t->n_samples; i++)
        mp_json_int(w, NULL, i && !same_largest(&t->samples[i - 1], &t->samples[i]));
    mp_json_end_array(w);
}

static void write_phases(struct mp_json_writer *w, const struct mp_timeline *t)
{
    mp_json_array(w, "phases");
    for (size_t i = 0; i < t->n_phases; i++) {
        mp_json_array(w, NULL);
        mp_json_string(w, NULL, t->phases[i].name);
        mp_json_uint(w, NULL, t->phases[i].first);
        mp_json_uint(w, NULL, t->phases[i].end);
        mp_json_end_array(w);
    }
    mp_json_end_array(w);
}

static void write_operations(struct mp_json_writer *w, const struct mp_timeline *t)
{
    struct texts texts = {0};
    int64_t last = 0;
    mp_json_array(w, "op");
    for (size_t i = 0; i < t->n_samples; i++) {
        const int64_t index = text_index(&texts, t->samples[i].op);
        mp_json_int(w, NULL, index - last);
        last = index;
    }
    mp_json_end_array(w);
    mp_json_array(w, "kinds");
    for (size_t i = 0; i < t->n_kinds; i++) {
        mp_json_array(w, NULL);
        mp_json_int(w, NULL, t->kinds[i].category);
        mp_json_int(w, NULL, text_index(&texts, t->kinds[i].op));
        mp_json_uint(w, NULL, t->kinds[i].bytes);
        mp_json_end_array(w);
    }
    mp_json_end_array(w);
    write_texts(w, "ops", &texts);
}

static void write_timeline(struct mp_json_writer *w, const struct mp_timeline *t, const struct mp_timeline_view *view)
{
    const struct mp_timeline_geometry g = mp_timeline_geometry(t, view);
    mp_json_object(w, "timeline");
    mp_json_uint(w, "events", t->n_events);
    mp_json_uint(w, "peak", t->peak);
    mp_json_bool(w, "failed", view->evaluation->oom);
    mp_json_uint(w, "available", view->evaluation->available_bytes);
    mp_json_object(w, "geometry");
    mp_json_double(w, "left", g.left);
    mp_json_double(w, "top", g.top);
    mp_json_double(w, "width", g.plot_width);
    mp_json_double(w, "height", g.plot_height);
    mp_json_double(w, "font", view->font);
    mp_json_uint(w, "bytes", g.top_bytes);
    mp_json_bool(w, "shows_available", g.shows_available);
    mp_json_end_object(w);
    mp_json_array(w, "stack");
    for (int i = 0; i < MP_TIMELINE_BANDS; i++)
        mp_json_int(w, NULL, mp_timeline_stack[i]);
    mp_json_end_array(w);
    write_phases(w, t);
    write_columns(w, t);
    write_operations(w, t);
    write_largest(w, t);
    mp_json_end_object(w);
}

/* ---- memory map ---- */

static int compare_down(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x > y ? -1 : x < y;
}

/* Blocks below this size are lumped together, so that at most about MOST_BLOCKS are left. */
static uint64_t smallest_block(const struct mp_memory_map *map, bool *failed)
{
    if (map->n_blocks <= MOST_BLOCKS)
        return 0;
    uint64_t *sizes = mp_malloc(map->n_blocks * sizeof *sizes);
    *failed = !sizes;
    if (!sizes)
        return 0;
    for (size_t i = 0; i < map->n_blocks; i++)
        sizes[i] = map->blocks[i].bytes;
    qsort(sizes, map->n_blocks, sizeof *sizes, compare_down);
    const uint64_t limit = sizes[MOST_BLOCKS / 2] + 1; /* the lumps between them count too */
    free(sizes);
    return limit;
}

static void write_lump(struct mp_json_writer *w, uint64_t *bytes, uint64_t *n, uint64_t *written)
{
    if (!*n)
        return;
    mp_json_array(w, NULL);
    mp_json_uint(w, NULL, *bytes);
    mp_json_uint(w, NULL, *n);
    mp_json_end_array(w);
    *bytes = *n = 0;
    ++*written;
}

/* The blocks of a segment; returns how many entries they became. */
static uint64_t write_blocks(struct mp_json_writer *w, const struct mp_memory_map *map, const struct mp_map_segment *s, uint64_t smallest,
                             struct texts *texts)
{
    uint64_t lump_bytes = 0, lump_n = 0, written = 0;
    for (size_t k = s->first_block; k < s->first_block + s->n_blocks; k++) {
        const struct mp_map_block *block = &map->blocks[k];
        if (block->bytes < smallest) {
            lump_bytes += block->bytes;
            lump_n++;
            continue;
        }
        write_lump(w, &lump_bytes, &lump_n, &written);
        mp_json_array(w, NULL);
        mp_json_uint(w, NULL, block->bytes);
        if (block->op) {
            mp_json_uint(w, NULL, block->requested_bytes);
            mp_json_int(w, NULL, block->category);
            mp_json_int(w, NULL, text_index(texts, block->op));
            mp_json_int(w, NULL, block->layer);
        }
        mp_json_end_array(w);
        written++;
    }
    write_lump(w, &lump_bytes, &lump_n, &written);
    return written;
}

static void write_map(struct mp_json_writer *w, const struct mp_memory_map *map)
{
    const struct mp_map_geometry g = mp_memory_map_geometry(map);
    struct texts texts = {0};
    bool failed = false;
    const uint64_t smallest = smallest_block(map, &failed);
    const size_t n_segments = MP_MIN(map->n_segments, MOST_SEGMENTS);
    uint64_t *counts = mp_malloc((n_segments + 1) * sizeof *counts);
    if (!counts || failed) {
        w->out->failed = true;
        free(counts);
        return;
    }
    mp_json_object(w, "map");
    mp_json_object(w, "geometry");
    mp_json_double(w, "left", g.left);
    mp_json_double(w, "top", g.top);
    mp_json_double(w, "width", g.row_width);
    mp_json_double(w, "row_height", g.row_height);
    mp_json_double(w, "pitch", g.pitch);
    mp_json_end_object(w);
    mp_json_uint(w, "row", map->row_bytes);
    mp_json_array(w, "blocks");
    for (size_t i = 0; i < n_segments; i++)
        counts[i] = write_blocks(w, map, &map->segments[i], smallest, &texts);
    mp_json_end_array(w);
    mp_json_array(w, "segments");
    for (size_t i = 0; i < n_segments; i++) {
        const struct mp_map_segment *s = &map->segments[i];
        mp_json_array(w, NULL);
        mp_json_uint(w, NULL, s->position);
        mp_json_uint(w, NULL, s->bytes);
        mp_json_int(w, NULL, s->small);
        mp_json_uint(w, NULL, s->stream);
        mp_json_uint(w, NULL, counts[i]);
        mp_json_end_array(w);
    }
    mp_json_end_array(w);
    write_texts(w, "ops", &texts);
    mp_json_end_object(w);
    free(counts);
}

void mp_fit_html_data(const struct mp_timeline *timeline, const struct mp_timeline_view *view, const struct mp_memory_map *map,
                      struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 0);
    mp_json_object(&w, NULL);
    mp_json_array(&w, "categories");
    for (int i = 0; i < MP_CATEGORY_COUNT; i++)
        mp_json_string(&w, NULL, mp_category_text((enum mp_category)i));
    mp_json_end_array(&w);
    write_timeline(&w, timeline, view);
    write_map(&w, map);
    mp_json_end_object(&w);
}
