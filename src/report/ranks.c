/* SPDX-License-Identifier: MIT */
/* Ranks differ where parameters do not divide evenly, or where whole tensors are dealt out: the last one may hold less. */
#include "report/ranks.h"

static struct mp_rank_numbers numbers_of(const struct mp_evaluation *e)
{
    return (struct mp_rank_numbers){e->run->rank, e->fits, e->requested_bytes, e->allocated_bytes, e->reserved_bytes, e->device_used_bytes};
}

static enum memplan_status evaluate_rank(const struct mp_evaluation *e, int64_t rank, struct mp_rank_numbers *numbers,
                                         struct memplan_error *err)
{
    struct mp_run run = *e->run;
    struct mp_evaluation other;
    run.rank = rank;
    if (rank == e->run->rank) {
        *numbers = numbers_of(e);
        return MEMPLAN_STATUS_OK;
    }
    const enum memplan_status status = mp_evaluate(&run, NULL, &other, err);
    if (status)
        return status;
    *numbers = numbers_of(&other);
    mp_evaluation_release(&other);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_ranks_evaluate(const struct mp_evaluation *e, struct mp_rank_numbers ranks[MP_MOST_RANKS], size_t *n,
                                      struct memplan_error *err)
{
    const int64_t world = e->run->world;
    *n = 0;
    if (e->run->parallel == MP_PARALLEL_NONE || world <= 1)
        return MEMPLAN_STATUS_OK;
    while (*n < MP_MOST_RANKS && (int64_t)*n < world) {
        const int64_t rank = *n + 1 == MP_MOST_RANKS ? world - 1 : (int64_t)*n;
        const enum memplan_status status = evaluate_rank(e, rank, &ranks[*n], err);
        if (status)
            return status;
        ++*n;
    }
    return MEMPLAN_STATUS_OK;
}
