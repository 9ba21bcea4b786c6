/* SPDX-License-Identifier: MIT */
/* What each rank of a data-parallel job takes. Ranks that hold the same are one kind, and evaluated once. */
#ifndef MP_RANK_KINDS_H
#define MP_RANK_KINDS_H

#include "plan/evaluate.h"

#define MP_RANK_KINDS_MOST 1024

struct mp_rank_kind {
    const char *ranks; /* "0-5, 7" */
    int64_t first, n;  /* the lowest of them; how many */
    bool fits;         /* in the usual timing */
    uint64_t requested_bytes, allocated_bytes, reserved_bytes, device_used_bytes; /* up to the request that failed */
};

struct mp_rank_kinds {
    struct mp_rank_kind *kinds; /* the worst first; in the arena */
    size_t n;
};

/** RANGE: more than MP_RANK_KINDS_MOST ranks. */
enum memplan_status mp_rank_kinds_evaluate(const struct mp_run *run, struct mp_arena *arena, struct mp_rank_kinds *ranks,
                                      struct memplan_error *err);

#endif
