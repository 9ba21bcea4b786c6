/* SPDX-License-Identifier: MIT */
/*
 * How long a step takes: the host puts the operations of the shadow run into a queue, the device works it off.
 *
 *     host    ├op┤├op┤├op┤      ├op┤            an operation begins when the host has asked for it and the device is free;
 *     device     ├───op───┤├op┤    ├op┤         the host waits where a copy to it does, and at the end of the step
 *
 * Recomputation and transfers are in it because the shadow run has them; micro-batches after the second repeat it. Collectives are
 * rings at the speed of their link, beside the backward pass where they can hide.
 */
#ifndef MP_COST_H
#define MP_COST_H

#include "base/arena.h"
#include "plan/kernels.h"

struct mp_step_cost {
    double forward_s, backward_s; /* of one micro-batch, recomputation included */
    double again_s;               /* of each further one: gradients are added up */
    double optimizer_s;           /* clipping and zeroing included */
    double communication_s;       /* of a step, what does not hide behind backward */
    double step_s;
    double tokens_per_s;          /* all ranks together */
    uint64_t host_bytes;          /* pinned: saved tensors of a micro-batch that wait on the host, powers of two as its allocator has it */
    double device_s;              /* of a step, had the device always something to do */
    double *layer_forward_s;      /* of one micro-batch, by block, on the device; in the arena */
    int64_t n_layers;
};

/** Of a step that the program has, from event `first` on: the run's, with at most two of its micro-batches. */
enum memplan_status mp_cost_of_step(const struct mp_run *run, const struct mp_program *p, uint32_t first, struct mp_arena *arena,
                                    struct mp_step_cost *cost, struct memplan_error *err);
/** Of the second step of a run: it has the optimizer's state. */
enum memplan_status mp_cost_estimate(const struct mp_run *run, struct mp_arena *arena,
                                     struct mp_step_cost *cost, struct memplan_error *err);

#endif
