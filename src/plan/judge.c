/* SPDX-License-Identifier: MIT */
/* Record, fold where that is known to be right, replay. */
#include "plan/judge.h"

void mp_judge_init(struct mp_judge *j, const struct mp_run *like)
{
    *j = (struct mp_judge){.shorter = NULL};
    mp_arena_init(&j->arena);
    if (like)
        j->shorter = mp_fold_model(like->model, &j->arena);
}

void mp_judge_release(struct mp_judge *j)
{
    mp_fold_release(&j->fold);
    mp_fold_scratch_release(&j->scratch);
    mp_requests_release(&j->requests);
    mp_requests_release(&j->whole);
    mp_replayer_release(&j->replayer);
    mp_arena_release(&j->arena);
}

/* The whole run has been recorded, and its fold written out: were they the same? */
static enum memplan_status check_folding(struct mp_judge *j, const struct mp_run *run, struct memplan_error *err)
{
    const enum memplan_status status = mp_requests_record(&j->whole, run, err);
    if (status)
        return status;
    j->folding = mp_requests_equal(&j->whole, &j->requests) ? MP_FOLDING_RIGHT : MP_FOLDING_WRONG;
    if (j->folding == MP_FOLDING_WRONG)
        return mp_requests_record(&j->requests, run, err);
    j->fold.recorded.known = &j->known;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status record(struct mp_judge *j, const struct mp_run *run, struct memplan_error *err)
{
    if (!j->shorter || j->folding == MP_FOLDING_WRONG)
        return mp_requests_record(&j->requests, run, err);
    enum memplan_status status = mp_fold_record(&j->fold, &j->scratch, run, j->shorter, err);
    if (!status)
        status = mp_fold_expand(&j->fold, &j->requests, err);
    return status || !j->fold.folded || j->folding == MP_FOLDING_RIGHT ? status : check_folding(j, run, err);
}

enum memplan_status mp_judge_hear(struct mp_judge *j, const struct mp_run *run, struct memplan_error *err)
{
    j->heard = false;
    if (!mp_requests_applies(run))
        return MEMPLAN_STATUS_OK;
    const enum memplan_status status = record(j, run, err);
    j->heard = !status && mp_requests_suffice(&j->requests, run);
    return status;
}

enum memplan_status mp_judge_verdict(struct mp_judge *j, const struct mp_run *run, struct mp_verdict *v, struct memplan_error *err)
{
    struct mp_evaluation e;
    if (j->heard)
        return mp_requests_replay(&j->requests, run, &j->replayer, NULL, 0, v, err);
    const enum memplan_status status = mp_evaluate(run, NULL, &e, err);
    if (status)
        return status;
    *v = (struct mp_verdict){.fits = e.fits,
                             .oom = e.oom,
                             .requested_bytes = e.requested_bytes,
                             .allocated_bytes = e.allocated_bytes,
                             .reserved_bytes = e.reserved_bytes,
                             .device_used_bytes = e.device_used_bytes};
    mp_evaluation_release(&e);
    return MEMPLAN_STATUS_OK;
}

/* ---- the largest batch ---- */

static enum memplan_status fits_batch(struct mp_judge *j, const struct mp_run *run, int64_t batch, bool *fits, struct memplan_error *err)
{
    struct mp_run changed = *run;
    struct mp_verdict v = {0};
    changed.batch = batch;
    changed.max_batch = false;
    enum memplan_status status = mp_judge_hear(j, &changed, err);
    if (!status)
        status = mp_judge_verdict(j, &changed, &v, err);
    if (!status)
        *fits = v.fits;
    return status;
}

static enum memplan_status search(struct mp_judge *j, const struct mp_run *run, int64_t *max_batch,
                                  int64_t *again, struct memplan_error *err)
{
    enum { LOOK_BEYOND = 3 };
    int64_t low = 0, high = 0; /* low fits; high, once found, does not */
    while (!high || high - low > 1) {
        const int64_t batch = high ? low + (high - low) / 2 : MP_MAX(1, low * 2);
        bool fits;
        if (batch > INT32_MAX)
            break;
        const enum memplan_status status = fits_batch(j, run, batch, &fits, err);
        if (status)
            return status;
        *(fits ? &low : &high) = batch;
    }
    *max_batch = low;
    *again = 0;
    for (int64_t beyond = 2; low && high && beyond < 2 + LOOK_BEYOND; beyond++) {
        bool fits;
        const enum memplan_status status = fits_batch(j, run, low + beyond, &fits, err);
        if (status)
            return status;
        if (fits)
            *again = low + beyond;
    }
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_max_batch(const struct mp_run *run, int64_t *max_batch, int64_t *again, struct memplan_error *err)
{
    struct mp_judge j;
    mp_judge_init(&j, run);
    const enum memplan_status status = search(&j, run, max_batch, again, err);
    mp_judge_release(&j);
    return status;
}
