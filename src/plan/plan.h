/* SPDX-License-Identifier: MIT */
/*
 * A plan: the settings of a job that fit the card and take least time.
 *
 *     for each micro-batch, kind of data parallelism, precision, allocator setting:
 *         what each block takes, kept, recomputed, …    a shadow run for each choice
 *         what to do with which block                   integer program
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
    void (*progress)(void *context, uint64_t n_done); /* settings tried so far; may be NULL */
    void *context;
};

/* What can be done with a block's activations. */
enum mp_plan_choice { MP_PLAN_KEEP, MP_PLAN_RECOMPUTE, MP_PLAN_ATTENTION, MP_PLAN_MLP, MP_PLAN_OFFLOAD, MP_PLAN_CHOICES };
/** "kept", "recomputed", "attention recomputed", … */
const char *mp_plan_choice_text(enum mp_plan_choice choice);
/** Whether the run's blocks may be treated that way. */
bool mp_plan_may(const struct mp_run *run, enum mp_plan_choice choice);
/** Write the choices of all blocks into a run; lists live in the arena. False without memory. */
bool mp_plan_set_blocks(struct mp_run *run, const int *choice, int n_layers, struct mp_arena *arena);

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
    int n_blocks[MP_PLAN_CHOICES]; /* how many are treated which way */
    int n_cuts;               /* how often the replay said no */
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

/* What a job's blocks take, as the integer program sees it. */
struct mp_plan_profile {
    int n_layers, n_instants;   /* each block's forward, the loss, each block's backward */
    struct mp_step_cost keep;   /* of the step that keeps everything */
    double *cost_s;             /* [layer][choice], of one micro-batch; infinite: not a choice */
    uint64_t *bytes;            /* [layer][choice][instant] */
    uint64_t *base_bytes;       /* [instant] */
};
enum memplan_status mp_plan_profile_make(const struct mp_run *run, struct mp_arena *arena, struct mp_plan_profile *profile,
                                         struct memplan_error *err);
/** No mixture of choices has a lower predicted peak of requested bytes. */
uint64_t mp_plan_profile_least(const struct mp_plan_profile *profile);
/** Predicted peak of requested bytes for these choices. */
uint64_t mp_plan_profile_peak(const struct mp_plan_profile *profile, const int *choice);

#endif
