/* SPDX-License-Identifier: MIT */
/*
 * A grid: a run spec in which any value may be a list or a range.
 *
 *     model: gpt-1.3b
 *     gpu: [A100-40G, H100-80G]
 *     batch: {from: 1, to: 64, times: 2}
 *     seq: {from: 512, to: 2048, step: 512}
 *     where: batch * seq <= 65536
 *     limit: 100
 *
 * Points are numbered in the order of the file, the last list fastest; but what may leave the requests as they are (precision,
 * optimizer, gpu, used, allocator_limit_bytes) always comes last, so that points that may share a replay are neighbours: a group.
 * limit keeps the first points that the conditions let through. A list of lists is a list of values for seq_lengths. null: the key
 * is not given.
 */
#ifndef MP_GRID_H
#define MP_GRID_H

#include "plan/where.h"
#include "spec/run.h"

#define MP_GRID_MAX_POINTS UINT64_C(100000000)

struct mp_axis {
    enum mp_run_key key;
    const struct mp_value *const *values; /* NULL where null stands */
    size_t n;
    uint64_t stride; /* of a point's number */
};

struct mp_grid {
    struct mp_arena *arena; /* holds everything */
    const char *origin;
    struct mp_run_source fixed; /* keys with one value */
    struct mp_axis axes[MP_RUN_KEYS]; /* in the order of the file */
    size_t n_axes;
    uint64_t n_points, n_inner, n_groups; /* of all combinations; n_points = n_groups * n_inner, a group being n_inner points in a row */
    uint64_t limit; /* 0: none */
    const struct mp_where **where;
    size_t n_where;
    uint64_t hash; /* of what it says */
};

/** NULL with *err: INPUT, all problems with file, line and key. */
struct mp_grid *mp_grid_read(struct mp_arena *arena, const char *path, struct memplan_error *err);
struct mp_grid *mp_grid_parse(struct mp_arena *arena, const char *origin, const struct mp_value *value, struct memplan_error *err);

/** The value of every key at that point, NULL where not given; index: enum mp_run_key. */
void mp_grid_values(const struct mp_grid *grid, uint64_t point, const struct mp_value **values);
/** Whether the conditions let it through. */
bool mp_grid_keeps(const struct mp_grid *grid, uint64_t point);
/** The point as a run spec, in source's arena (initialised by the caller). */
void mp_grid_source(const struct mp_grid *grid, uint64_t point, struct mp_run_source *source);

/** Whether points that differ in that key alone are of one group. */
bool mp_grid_is_inner_key(enum mp_run_key key);
/** A value as a cell of a table: "4", "bf16", "{layers: [0, 2]}" as JSON; "" when not given. */
void mp_grid_value_text(const struct mp_value *value, struct mp_strbuf *out);

#endif
