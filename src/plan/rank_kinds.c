/* SPDX-License-Identifier: MIT */
/* Ranks are told apart by what they hold (train/ranks.c), then one of each kind is evaluated. */
#include "plan/rank_kinds.h"

#include <inttypes.h>

#include "base/strbuf.h"
#include "train/job.h"

/* "0-5, 7": the ranks whose key is that of the first. */
static char *list_ranks(struct mp_arena *arena, const uint64_t *keys, int64_t world, int64_t first, int64_t *n)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    *n = 0;
    for (int64_t rank = first; rank < world; rank++) {
        const int64_t start = rank;
        if (keys[rank] != keys[first])
            continue;
        while (rank + 1 < world && keys[rank + 1] == keys[first])
            rank++;
        mp_strbuf_addf(&text, "%s%" PRId64, *n ? ", " : "", start);
        if (rank > start)
            mp_strbuf_addf(&text, "-%" PRId64, rank);
        *n += rank - start + 1;
    }
    char *copy = text.failed ? NULL : mp_arena_strdup(arena, mp_strbuf_text(&text));
    mp_strbuf_release(&text);
    return copy;
}

static bool seen_before(const uint64_t *keys, int64_t rank)
{
    for (int64_t other = 0; other < rank; other++)
        if (keys[other] == keys[rank])
            return true;
    return false;
}

static enum memplan_status evaluate_kind(const struct mp_run *run, struct mp_rank_kind *kind, struct memplan_error *err)
{
    const struct mp_evaluate_options options = {.one_outcome = true};
    struct mp_run of_rank = *run;
    struct mp_evaluation e;
    of_rank.rank = kind->first;
    const enum memplan_status status = mp_evaluate(&of_rank, &options, &e, err);
    if (status)
        return status;
    kind->fits = e.fits;
    kind->requested_bytes = e.requested_bytes;
    kind->allocated_bytes = e.allocated_bytes;
    kind->reserved_bytes = e.reserved_bytes;
    kind->device_used_bytes = e.device_used_bytes;
    mp_evaluation_release(&e);
    return MEMPLAN_STATUS_OK;
}

static int compare_kinds(const void *a, const void *b)
{
    const struct mp_rank_kind *x = a, *y = b;
    if (x->fits != y->fits)
        return x->fits ? 1 : -1;
    if (x->device_used_bytes != y->device_used_bytes)
        return x->device_used_bytes < y->device_used_bytes ? 1 : -1;
    if (x->requested_bytes != y->requested_bytes)
        return x->requested_bytes < y->requested_bytes ? 1 : -1;
    return (x->first > y->first) - (x->first < y->first);
}

static enum memplan_status out_of_memory(struct memplan_error *err)
{
    return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while comparing ranks");
}

enum memplan_status mp_rank_kinds_evaluate(const struct mp_run *run, struct mp_arena *arena, struct mp_rank_kinds *ranks,
                                      struct memplan_error *err)
{
    const size_t world = (size_t)run->world;
    *ranks = (struct mp_rank_kinds){0};
    if (run->world > MP_RANK_KINDS_MOST)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "per rank: %" PRId64 " ranks are too many, at most %d can be compared; leave it out",
                            run->world, MP_RANK_KINDS_MOST);
    uint64_t *keys = mp_arena_calloc(arena, world, sizeof *keys);
    ranks->kinds = mp_arena_calloc(arena, world, sizeof *ranks->kinds);
    if (!keys || !ranks->kinds)
        return out_of_memory(err);
    enum memplan_status status = mp_job_rank_keys(run, keys, err);
    for (int64_t rank = 0; !status && rank < run->world; rank++) {
        struct mp_rank_kind *kind = &ranks->kinds[ranks->n];
        if (seen_before(keys, rank))
            continue;
        kind->first = rank;
        kind->ranks = list_ranks(arena, keys, run->world, rank, &kind->n);
        if (!kind->ranks)
            return out_of_memory(err);
        status = evaluate_kind(run, kind, err);
        ranks->n++;
    }
    qsort(ranks->kinds, ranks->n, sizeof *ranks->kinds, compare_kinds);
    return status;
}
