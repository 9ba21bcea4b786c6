/* SPDX-License-Identifier: MIT */
/*
 * A sweep: the verdict of `fit` for every point of a grid.
 *
 *     grid ──> groups (points that differ in card, precision, optimizer) ──> request streams ──┬─ folded peak above the card: does not fit
 *                                                                                 └─ replay on the largest card ──> smaller cards
 *
 * A point goes without a replay of its own for one of two reasons: its requested peak alone exceeds what the card gives (folded), or
 * the same stream was replayed for another point whose card never said no and took less than this one gives, so that this one would have
 * answered every request alike (same_stream).
 */
#ifndef MP_SWEEP_H
#define MP_SWEEP_H

#include <signal.h>

#include "plan/grid.h"

#define MP_DECIDED_MAP(X)                                                                          \
    X(NOT, "")         /* not yet */                                                               \
    X(FOLDED, "folded")                                                                            \
    X(REPLAY, "replay")                                                                            \
    X(SAME_STREAM, "same_stream")                                                                  \
    X(ERROR, "error")  /* not a run that can be: see its text */

enum mp_decided {
#define X(name, text) MP_DECIDED_##name,
    MP_DECIDED_MAP(X)
#undef X
    MP_DECIDED_COUNT
};
const char *mp_decided_text(enum mp_decided decided);

/* What is known of a point. FOLDED: requested_bytes is the peak of the whole job, and the other numbers are not known. */
struct mp_sweep_row {
    uint64_t requested_bytes, allocated_bytes, reserved_bytes, device_used_bytes;
    uint32_t error; /* ERROR: index of its text */
    uint8_t decided; /* enum mp_decided */
    bool fits;
};

struct mp_sweep_base; /* model, card and framework, read once */

struct mp_sweep {
    const struct mp_grid *grid;
    struct mp_arena arena;
    struct mp_sweep_base *bases;
    size_t n_bases;
    uint64_t first_group, end_group; /* of this shard */
    uint64_t end_point;              /* of the grid: limit may cut it */
    uint64_t n_kept;                 /* points of the whole grid that the conditions let through */
    uint64_t *offsets;               /* of each group of the shard: its first row; one more at the end */
    struct mp_sweep_row *rows;
    uint64_t n_rows;
    char tag[40];                    /* names the grid and its points: rows of another one are refused */
    const char **errors;
    uint32_t n_errors, cap_errors;
};

/** shard: 1 … n_shards. Reads models and cards; INPUT where one is missing. On failure *sweep needs no release. */
enum memplan_status mp_sweep_open(struct mp_sweep *sweep, const struct mp_grid *grid, int64_t shard, int64_t n_shards,
                                  struct memplan_error *err);
void mp_sweep_release(struct mp_sweep *sweep);

/** The row of a point; NULL: not one of this shard. */
struct mp_sweep_row *mp_sweep_row(struct mp_sweep *sweep, uint64_t point);
/** Bytes of the card that a row of the sweep is about. */
uint64_t mp_sweep_card_bytes(const struct mp_sweep *sweep, uint64_t point);
/** The text of a row's error is `text` (copied); false without memory. */
bool mp_sweep_set_error(struct mp_sweep *sweep, struct mp_sweep_row *row, const char *text);

/** Calls visit for every row of the shard in order. Stops when it returns false. */
typedef bool mp_sweep_visit(void *context, uint64_t point, const struct mp_sweep_row *row);
void mp_sweep_each(const struct mp_sweep *sweep, mp_sweep_visit *visit, void *context);

struct mp_sweep_options {
    int jobs;                          /* threads */
    const volatile sig_atomic_t *stop; /* not 0: finish the groups at hand and return; may be NULL */
    void (*progress)(void *context, uint64_t n_done); /* from the calling thread; may be NULL */
    void *context;
};
/** Fills every row that is not decided yet. *finished: false after a stop. */
enum memplan_status mp_sweep_run(struct mp_sweep *sweep, const struct mp_sweep_options *options, bool *finished,
                                 struct memplan_error *err);

#endif
