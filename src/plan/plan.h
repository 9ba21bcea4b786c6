/* SPDX-License-Identifier: MIT */
/*
 * A plan: the settings of a job that fit the card and take least time.
 *
 *     for each micro-batch, kind of data parallelism, precision, allocator setting:
 *         what each block takes, kept and recomputed    two shadow runs
 *         which blocks to recompute                     integer program
 *         does it fit?                                  replay ──no──> less room, solve again
 *
 * What the run spec gives stays as it is; the rest is chosen.
 */
#ifndef MP_PLAN_H
#define MP_PLAN_H

#include "plan/cost.h"
#include "plan/evaluate.h"
#include "plan/ilp.h"

enum mp_plan_aim { MP_PLAN_TIME, MP_PLAN_GPUS, MP_PLAN_MEMORY };

struct mp_plan_request {
    const struct mp_run *run;
    uint64_t tokens_per_step; /* of all ranks together; 0: one micro-batch a step */
    int64_t gpus;
    enum mp_plan_aim aim;
    unsigned precisions;      /* bit per enum mp_precision that may be used; 0: the run's */
    bool pareto;
};

/* One set of settings that was tried. */
struct mp_plan_option {
    struct mp_run run;        /* in full; layers in the arena */
    bool fits;                /* by replay */
    bool beaten;              /* its bound is above what the best plan takes: not replayed */
    bool proven_too_large;    /* its tensors alone ask for more than there is, whatever is recomputed */
    struct mp_step_cost cost; /* of run */
    uint64_t requested_bytes, allocated_bytes, reserved_bytes, device_used_bytes;
    double bound_s;           /* no choice of blocks makes a step of these settings shorter */
    double greedy_s;          /* step time of what one would do by hand; negative: that fits nowhere */
    bool optimal;             /* the solver's last answer was proven best */
    bool confirmed;           /* replayed with every micro-batch of the step, not with two */
    int n_recomputed, n_cuts; /* cuts: how often the replay said no */
};

struct mp_plan_change {
    char what[160], setting[160];
};

struct mp_plan {
    struct mp_plan_request request;
    struct mp_plan_option *best;  /* NULL: nothing fits */
    struct mp_plan_option *options;
    size_t n_options;
    struct mp_plan_option *front; /* pareto: least memory first */
    size_t n_front;
    uint64_t least_bytes, available_bytes; /* nothing fits: what the smallest option's tensors ask for, and what there is */
    bool proven;                  /* nothing fits: least_bytes alone say so */
    struct mp_plan_change *changes; /* nothing fits: each of these would, smallest first */
    size_t n_changes;
    struct mp_arena arena;
};

/** SOLVER without GLPK. On failure *plan needs no release. */
enum memplan_status mp_plan_make(const struct mp_plan_request *request, struct mp_plan *plan, struct memplan_error *err);
void mp_plan_release(struct mp_plan *plan);

/* For tests: what a job's blocks take, as the integer program sees it. */
struct mp_plan_profile {
    int n_layers, n_instants;   /* each block's forward, the loss, each block's backward */
    double *cost_s;             /* [layer][keep, recompute], of one micro-batch */
    uint64_t *bytes;            /* [layer][choice][instant] */
    uint64_t *base_bytes;       /* [instant] */
};
enum memplan_status mp_plan_profile_make(const struct mp_run *run, struct mp_arena *arena, struct mp_plan_profile *profile,
                                         struct memplan_error *err);
/** Predicted peak of requested bytes for these choices. */
uint64_t mp_plan_profile_peak(const struct mp_plan_profile *profile, const int *choice);

#endif
