/* SPDX-License-Identifier: MIT */
/*
 * From a run spec to a verdict: the shadow run writes the program, the allocator replays it under the card's capacity.
 *
 *     run ──> job (build, step, step, …) ──> program ──> allocator ──> fits, peaks, phases, or the request that found no room
 *
 * Steps are simulated until the allocator's state repeats (then the next step would repeat the last one), or as many as the spec says.
 */
#ifndef MP_EVALUATE_H
#define MP_EVALUATE_H

#include "memory/allocator.h"
#include "plan/collectives.h"
#include "shadow/program.h"
#include "spec/run.h"

#define MP_MAX_STEPS 10 /* where the spec says "until the state repeats" */

struct mp_phase_peaks {
    const char *name; /* of the program's phase; for repeated steps their own */
    uint64_t requested_bytes, requested_peak_bytes, allocated_peak_bytes, reserved_peak_bytes;
};

/*
 * The worst of the other outcomes that a run can have: DDP's first bucket may outlive its replacement, and under zero1 another rank may
 * hold more than the one that was asked for.
 */
struct mp_upper {
    bool differs; /* from the point, upwards; else all of it is the point's */
    bool oom;
    uint64_t requested_bytes, allocated_bytes, reserved_bytes, device_used_bytes;
    const struct mp_phase_peaks *phases; /* of the outcome that asks for most; NULL: none asks for more than the point */
    size_t n_phases;
};

struct mp_evaluation {
    const struct mp_run *run;
    struct mp_program program;

    bool oom;
    uint32_t oom_event;              /* the ALLOC that failed */
    struct mp_allocator_oom oom_info;
    bool fits;                       /* not oom, in none of the outcomes */
    struct mp_upper upper;

    uint64_t requested_bytes, allocated_bytes, reserved_bytes; /* peaks of the whole run */
    uint64_t context_bytes;          /* outside the allocator, as NVML shows it; with the collectives' part */
    struct mp_collectives collectives; /* that part */
    uint64_t context_low_bytes, context_high_bytes; /* range, where it was never measured on this card */
    uint64_t device_used_bytes;      /* reserved + context + used by others */
    uint64_t total_bytes;            /* of the card */
    uint64_t available_bytes;        /* to this process's allocator: total - unavailable - used, or the cap */
    enum mp_kernel_set kernels;
    bool fits_high;                  /* would it also fit if everything outside took the high end of its range */

    uint32_t peak_event;             /* the ALLOC after which allocated bytes were highest */
    uint64_t peak_allocated_bytes;   /* at that moment */
    struct mp_allocator_stats stats; /* requested, allocated and reserved bytes of all pools, retries; the rest is not counted */

    struct mp_phase_peaks *phases;   /* in the arena; repeated steps filled in up to run->iterations */
    size_t n_phases;
    int64_t steps;                   /* simulated */
    int64_t period;                  /* the last step's end state equals that of the step `period` before; 0: never seen */
    struct mp_allocator *allocator;  /* its end state; owned */
    struct mp_arena arena;
};

struct mp_evaluate_options {
    bool keep_tags;  /* for attribution */
    bool keep_ops;   /* for --program */
    mp_allocator_observer *observer; /* sees every action of the allocator; may be NULL */
    void *observer_context;
    bool every_step; /* run each step through model and allocator, even where it repeats: for tests */
    bool one_outcome; /* of timing and rank, that of run->ddp.lingers and run->rank: upper is the point */
};

/** Evaluate run (which must outlive *e). options may be NULL. On failure *e needs no release. */
enum memplan_status mp_evaluate(const struct mp_run *run, const struct mp_evaluate_options *options, struct mp_evaluation *e,
                                struct memplan_error *err);
void mp_evaluation_release(struct mp_evaluation *e);

/** In how many ways timing can have run's buckets die: run->ddp.lingers from 0, the usual one, to one less. */
int mp_evaluate_timings(const struct mp_run *run);

/* What a replay shows after one event of the program. */
struct mp_evaluation_moment {
    uint32_t event;                       /* just replayed */
    uint64_t allocated_bytes;             /* in blocks */
    const struct mp_allocator *allocator;
    bool failed;                          /* it found no memory: the last moment there is */
};
typedef bool mp_evaluation_visit(void *context, const struct mp_evaluation_moment *moment);

/**
 * Replay e's program, which must be whole (keep_tags), through an allocator like the trial's, for pictures and explanations. Ends after
 * the last event, at the one that failed, or when visit returns false.
 */
enum memplan_status mp_evaluation_replay(const struct mp_evaluation *e, mp_evaluation_visit *visit, void *context,
                                         struct memplan_error *err);

/** Does it fit? The short way for searches: nothing is kept. */
enum memplan_status mp_fits(const struct mp_run *run, bool *fits, struct memplan_error *err);

/* ---- shared with plan/requests.c, which replays without the model ---- */

/* What the allocator looked like at the end of a step, and what the step asked for. */
struct mp_step_state {
    uint64_t hash;
    uint32_t n_allocs; /* storages made by the step */
    uint32_t n_events;
};
/** How many steps before the n-th state the same one was seen; 0: never. */
int64_t mp_step_find_period(const struct mp_step_state *states, int64_t n);
/** Key for mp_allocator_state_hash(); context: the number of storages made before the step (uint32_t). */
uint64_t mp_step_block_key(void *context, uint32_t client);
struct mp_step_events;
/** Whether two steps in a row ask for the same, so that the next one will, too. */
bool mp_steps_ask_the_same(const struct mp_program *p, const struct mp_step_events *a, const struct mp_step_events *b);
/** The allocator of run's process, where cudaMalloc can give `available` bytes. */
struct mp_allocator *mp_evaluate_allocator_new(const struct mp_run *run, uint64_t available, struct memplan_error *err);


/** Kernels that a run of this kind loads as a rule; they decide how much the allocator may take. */
enum mp_kernel_set mp_evaluate_expected_kernels(const struct mp_run *run);

#endif
