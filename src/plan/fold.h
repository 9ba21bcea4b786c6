/* SPDX-License-Identifier: MIT */
/*
 * Folded evaluation: a model with equal blocks asks for the same things block after block, so a run of its first blocks tells the
 * whole.
 *
 *     4 blocks:   build 0 1 2 3 │ forward 0 1 2 3 │ backward 3 2 1 0 │ optimizer 0 1 2 3 │ …
 *     L blocks:   build 0 1 … L-1 │ …                 the inner block stands for all between the second and the last
 *
 * The peak of requested bytes takes time proportional to the events of one block; the whole stream can be written out for a replay.
 * Both are exact: where inner blocks do not repeat each other, event for event, the model is run in full.
 */
#ifndef MP_FOLD_H
#define MP_FOLD_H

#include "plan/requests.h"

enum { MP_FOLD_BLOCKS = 4 };

/* A piece of the short run: one stretch outside the blocks, or one pass over all of them. */
struct mp_fold_part {
    bool pass, backwards;                /* a pass; from the last block to the first */
    uint32_t first[MP_FOLD_BLOCKS + 1];  /* requests of the n-th block in order of time; [0] and [1] when it is no pass */
    uint32_t n_ids[MP_FOLD_BLOCKS];      /* storages made in each */
    uint32_t long_id;                    /* first id in the whole stream, minus one */
};

/* Where a storage of the short run was made. */
struct mp_fold_birth {
    uint32_t part;
    int32_t block; /* -1: outside the blocks */
    uint32_t nth;  /* within the block's stretch, from 1 */
};

struct mp_fold {
    struct mp_requests recorded; /* of MP_FOLD_BLOCKS blocks, or of all when not folded */
    bool folded;
    int64_t n_blocks;          /* of the whole model */
    uint64_t peak_bytes;       /* of the whole model */
    uint64_t hash;             /* of what was recorded, the card's sizes aside */
    struct mp_fold_part *parts;
    uint32_t n_parts, cap_parts;
    struct mp_fold_birth *births; /* by id */
    uint32_t cap_births;
};

/* What recording needs and folds can share, one after the other. All zero is empty. */
struct mp_fold_scratch {
    struct mp_program program;
    int16_t *units; /* by request */
    uint32_t cap_units;
};
void mp_fold_scratch_release(struct mp_fold_scratch *scratch);

/** All zero is empty. */
void mp_fold_release(struct mp_fold *f);

/** The model with MP_FOLD_BLOCKS blocks, in the arena; NULL: its blocks differ, or are too few to fold (or no memory: nothing is lost). */
const struct mp_model *mp_fold_model(const struct mp_model *model, struct mp_arena *arena);

/** Run the job, short where shorter (from mp_fold_model(), may be NULL) and its events allow it. *f's memory is reused. */
enum memplan_status mp_fold_record(struct mp_fold *f, struct mp_fold_scratch *scratch,
                                   const struct mp_run *run, const struct mp_model *shorter,
                                   struct memplan_error *err);
/** Do both ask for the same on every card that agrees with both? */
bool mp_fold_equal(const struct mp_fold *a, const struct mp_fold *b);
/** From here on the fold is that of a card with these answers: sizes[] of mp_card_log_agrees() on recorded.card. */
void mp_fold_resize(struct mp_fold *f, const uint64_t *sizes);
/** The stream of the whole job. */
enum memplan_status mp_fold_expand(const struct mp_fold *f, struct mp_requests *s, struct memplan_error *err);

#endif
