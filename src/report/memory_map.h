/* SPDX-License-Identifier: MIT */
/*
 * The memory map: segments of the allocator at one moment, with the blocks in them and the holes between, to scale.
 *
 *     row 0  ┌──segment──────────┬──segment─────┐      positions run on from row to row,
 *     row 1  ┌──segment──────────────────────────      so that a long segment continues on the next
 *     row 2  ──────────┐┌────────┐
 */
#ifndef MP_MEMORY_MAP_H
#define MP_MEMORY_MAP_H

#include "plan/evaluate.h"

struct mp_map_block {
    uint64_t bytes, requested_bytes; /* a hole requests nothing */
    const char *op;                  /* NULL: a hole */
    enum mp_category category;
    int layer;                       /* -1: outside the blocks */
};

struct mp_map_segment {
    uint64_t bytes, address;
    uint64_t position; /* on the drawing: row * row_bytes + offset in the row */
    uint64_t free_bytes;
    bool small;        /* of the small pool: requests up to 1 MiB */
    unsigned stream;
    size_t first_block, n_blocks;
};

struct mp_memory_map {
    struct mp_map_segment *segments; /* by position */
    size_t n_segments;
    struct mp_map_block *blocks;     /* by segment, then by address; they fill it */
    size_t n_blocks, n_holes;
    uint64_t reserved_bytes, free_bytes;
    size_t largest_hole;             /* index of the block; n_blocks: there is none. After a death: of those that the request could use */
    size_t largest_hole_segment;
    uint64_t row_bytes;
    uint32_t n_rows;
};

/** The map after that event of e (at the failure, if that is the one). Lives in the arena. NULL with *err: NOMEM. */
const struct mp_memory_map *mp_memory_map_new(const struct mp_evaluation *e, uint32_t event, struct mp_arena *arena,
                                              struct memplan_error *err);

/* Where the drawing has its rows, for whoever points at them. */
struct mp_map_geometry {
    double width, height;          /* of the drawing */
    double left, top, row_width;   /* of the rows */
    double row_height, pitch;
};
struct mp_map_geometry mp_memory_map_geometry(const struct mp_memory_map *map);
/** The map as an SVG element; attributes as in struct mp_svg_document. */
void mp_memory_map_draw(const struct mp_memory_map *map, const char *id, const char *attributes, struct mp_strbuf *out);
/** The request that failed beside what there was for it. */
void mp_memory_map_draw_failure(const struct mp_evaluation *e, struct mp_strbuf *out);

#endif
