/* SPDX-License-Identifier: MIT */
/*
 * The verdict of mp_evaluate() and nothing beside it, for searches and advice.
 *
 *     hear(run)       the job is run once              verdict(run on card A), verdict(run on card B): replays
 *
 * Several ranks, lengths that vary, losses kept in a list: every verdict is an evaluation.
 */
#ifndef MP_JUDGE_H
#define MP_JUDGE_H

#include "plan/fold.h"

/* Memory is kept from run to run. */
struct mp_judge {
    const struct mp_model *shorter; /* NULL: models are run in full */
    enum { MP_FOLDING_UNKNOWN, MP_FOLDING_RIGHT, MP_FOLDING_WRONG } folding;
    struct mp_known_steps known;
    struct mp_fold fold;
    struct mp_fold_scratch scratch;
    struct mp_requests requests, whole;
    struct mp_replayer replayer;
    bool heard; /* requests are the job's */
    struct mp_arena arena;
};

/**
 * like: runs will differ from it, and so from each other, in batch and sequence only, and may be
 * folded; the first is run both ways. NULL: in anything.
 */
void mp_judge_init(struct mp_judge *j, const struct mp_run *like);
void mp_judge_release(struct mp_judge *j);

/** Other errors than NOMEM: the run is not one that can be simulated. */
enum memplan_status mp_judge_hear(struct mp_judge *j, const struct mp_run *run, struct memplan_error *err);
/** run: the one heard last, or the same on a card that differs in capacity. refused and device_peak_bytes are not known. */
enum memplan_status mp_judge_verdict(struct mp_judge *j, const struct mp_run *run, struct mp_verdict *v, struct memplan_error *err);

/**
 * Largest micro-batch that fits: doubling from 1, then bisection. 0: not even one. *again: a larger one that fits although
 * *max_batch + 1 does not, 0 when none was seen among the tries.
 */
enum memplan_status mp_max_batch(const struct mp_run *run, int64_t *max_batch, int64_t *again, struct memplan_error *err);

#endif
