/* SPDX-License-Identifier: MIT */
/* The ranks of a data-parallel job side by side: each is evaluated as a job of its own. */
#ifndef MP_RANKS_H
#define MP_RANKS_H

#include "plan/evaluate.h"

#define MP_MOST_RANKS 8 /* shown: the first ones, and the last */

struct mp_rank_numbers {
    int64_t rank;
    bool fits;
    uint64_t requested_bytes, allocated_bytes, reserved_bytes, device_used_bytes;
};

/** Evaluate the ranks of e's run; *n is 0 for a job of one. What e already says is not computed again. */
enum memplan_status mp_ranks_evaluate(const struct mp_evaluation *e, struct mp_rank_numbers ranks[MP_MOST_RANKS], size_t *n,
                                      struct memplan_error *err);

#endif
