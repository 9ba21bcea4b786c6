/* SPDX-License-Identifier: MIT */
/*
 * The replay stops at the moment, and the allocator is asked for its segments. Their places are chosen first fit, largest first, which
 * leaves little of the rows empty and puts like beside like.
 */
#include "report/memory_map.h"

enum { MOST_ROWS = 32 }; /* or a few more, where segments leave room in them */

struct builder {
    const struct mp_evaluation *e;
    uint32_t event;
    uint32_t *alloc_of;   /* event by storage id */
    uint8_t *category;    /* by storage id */
    struct mp_memory_map *map;
    bool filling;         /* else counting */
    struct mp_arena *arena;
    bool failed;
};

/* ---- the moment ---- */

static bool add_segment(void *context, const struct mp_block *first, uint64_t bytes)
{
    struct builder *b = context;
    struct mp_memory_map *map = b->map;
    const struct mp_program *p = &b->e->program;
    struct mp_map_segment segment = {.bytes = bytes, .address = first->address, .small = first->small, .stream = first->stream,
                                     .first_block = map->n_blocks};
    for (const struct mp_block *block = first; block && block->address < first->address + bytes; block = block->next) {
        struct mp_map_block copy = {.bytes = block->size, .layer = -1};
        if (block->allocated && b->filling) {
            const struct mp_event *event = &p->events[b->alloc_of[block->client]];
            copy.requested_bytes = event->bytes;
            copy.op = event->op ? event->op : "";
            copy.category = (enum mp_category)b->category[block->client];
            copy.layer = event->layer;
        } else if (!block->allocated) {
            segment.free_bytes += block->size;
        }
        if (b->filling)
            map->blocks[map->n_blocks] = copy;
        map->n_blocks++;
    }
    segment.n_blocks = map->n_blocks - segment.first_block;
    if (b->filling)
        map->segments[map->n_segments] = segment;
    map->n_segments++;
    return true;
}

static bool read_segments(struct builder *b, const struct mp_allocator *allocator)
{
    struct mp_memory_map *map = b->map;
    if (mp_allocator_visit_segments(allocator, add_segment, b))
        return false;
    map->segments = mp_arena_calloc(b->arena, map->n_segments + 1, sizeof *map->segments);
    map->blocks = mp_arena_calloc(b->arena, map->n_blocks + 1, sizeof *map->blocks);
    if (!map->segments || !map->blocks)
        return false;
    map->n_segments = map->n_blocks = 0;
    b->filling = true;
    return mp_allocator_visit_segments(allocator, add_segment, b) == MEMPLAN_STATUS_OK;
}

static bool visit(void *context, const struct mp_evaluation_moment *moment)
{
    struct builder *b = context;
    const struct mp_event *event = &b->e->program.events[moment->event];
    if (event->kind == MP_EVENT_ALLOC)
        b->alloc_of[event->id] = moment->event;
    if (event->kind == MP_EVENT_ALLOC || event->kind == MP_EVENT_TAG)
        b->category[event->id] = event->category;
    if (moment->event < b->event && !moment->failed)
        return true;
    b->failed = !read_segments(b, moment->allocator);
    return false;
}

/* ---- places ---- */

static int compare_segments(const void *a, const void *b)
{
    const struct mp_map_segment *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->address < y->address ? -1 : x->address > y->address;
}

static int compare_positions(const void *a, const void *b)
{
    const struct mp_map_segment *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

/* A power of two: a row is something to count with. */
static uint64_t round_up(uint64_t bytes)
{
    uint64_t power = 1;
    while (power < bytes && power < UINT64_C(1) << 62)
        power <<= 1;
    return power;
}

/* used[row]: bytes from the left that are taken. */
static bool place_segments(struct mp_memory_map *map, struct mp_arena *arena)
{
    const uint64_t row_bytes = map->row_bytes = round_up(map->reserved_bytes / MOST_ROWS + 1);
    const uint64_t most_rows = map->reserved_bytes / row_bytes * 2 + map->n_segments + 2;
    uint64_t *used = mp_arena_calloc(arena, (size_t)most_rows, sizeof *used);
    uint32_t first_open = 0; /* no row before it has room for anything more */
    if (!used)
        return false;
    qsort(map->segments, map->n_segments, sizeof *map->segments, compare_segments);
    for (size_t i = 0; i < map->n_segments; i++) {
        struct mp_map_segment *s = &map->segments[i];
        uint32_t row = s->bytes >= row_bytes ? map->n_rows : first_open;
        while (row < map->n_rows && row_bytes - used[row] < s->bytes)
            row++;
        s->position = row * row_bytes + (row < map->n_rows ? used[row] : 0);
        for (uint64_t left = s->bytes; left > 0; row++) {
            const uint64_t here = MP_MIN(left, row_bytes - used[row]);
            used[row] += here;
            left -= here;
            map->n_rows = MP_MAX(map->n_rows, row + 1);
        }
        while (first_open < map->n_rows && used[first_open] == row_bytes)
            first_open++;
    }
    qsort(map->segments, map->n_segments, sizeof *map->segments, compare_positions);
    return true;
}

static void count_holes(const struct mp_evaluation *e, struct mp_memory_map *map)
{
    const bool small_request = e->oom && e->oom_info.rounded_bytes <= MP_MIB;
    map->largest_hole = map->n_blocks;
    for (size_t i = 0; i < map->n_segments; i++) {
        const struct mp_map_segment *s = &map->segments[i];
        for (size_t k = s->first_block; k < s->first_block + s->n_blocks; k++) {
            const struct mp_map_block *block = &map->blocks[k];
            if (block->op)
                continue;
            map->n_holes++;
            if (e->oom && s->small != small_request)
                continue; /* of no use to that request */
            if (map->largest_hole == map->n_blocks || block->bytes > map->blocks[map->largest_hole].bytes) {
                map->largest_hole = k;
                map->largest_hole_segment = i;
            }
        }
        map->free_bytes += s->free_bytes;
    }
}

const struct mp_memory_map *mp_memory_map_new(const struct mp_evaluation *e, uint32_t event, struct mp_arena *arena,
                                              struct memplan_error *err)
{
    struct builder b = {.e = e, .event = event, .arena = arena, .map = mp_arena_alloc(arena, sizeof *b.map)};
    b.alloc_of = mp_arena_calloc(arena, (size_t)e->program.n_allocs + 1, sizeof *b.alloc_of);
    b.category = mp_arena_alloc(arena, (size_t)e->program.n_allocs + 1);
    if (b.map && b.alloc_of && b.category) {
        if (mp_evaluation_replay(e, visit, &b, err))
            return NULL;
        for (size_t i = 0; i < b.map->n_segments && !b.failed; i++)
            b.map->reserved_bytes += b.map->segments[i].bytes;
        if (!b.failed && place_segments(b.map, arena)) {
            count_holes(e, b.map);
            return b.map;
        }
    }
    mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing the memory map");
    return NULL;
}
