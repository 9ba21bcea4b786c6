/* SPDX-License-Identifier: MIT */
/*
 * How long a step takes: every operation of the shadow run, at what the card achieves.
 *
 *     operation = max(flops / achieved rate, bytes / achieved bandwidth) + time between operations
 *
 * Recomputation is in it because the shadow run recomputes; micro-batches after the second repeat it. Collectives are rings at the
 * speed of their link, beside the backward pass where they can hide.
 */
#ifndef MP_COST_H
#define MP_COST_H

#include "base/arena.h"
#include "spec/run.h"

/* What the card achieves, per second. */
struct mp_cost_rates {
    double half_flops, odd_half_flops; /* matrix products of half types; of sizes that no tensor core takes as they are */
    double fp32_flops, tf32_flops;
    double attention_flops, attention_backward_flops; /* fused kernels, half types */
    double memory_bytes;
    double host_bytes, link_bytes, network_bytes;     /* one direction */
    double gap_s;                                     /* between two operations */
};

struct mp_step_cost {
    double forward_s, backward_s; /* of one micro-batch, recomputation included */
    double again_s;               /* of each further one: gradients are added up */
    double optimizer_s;           /* clipping and zeroing included */
    double communication_s;       /* of a step, what does not hide behind backward */
    double step_s;
    double tokens_per_s;          /* all ranks together */
    double *layer_forward_s;      /* of one micro-batch, by block; in the arena */
    int64_t n_layers;
};

/** From the GPU file's rates and the shares of them that were reached on a card that was measured. UNSUPPORTED: the file has none. */
enum memplan_status mp_cost_rates_read(const struct mp_gpu *gpu, struct mp_cost_rates *rates, struct memplan_error *err);

enum memplan_status mp_cost_estimate(const struct mp_run *run, struct mp_arena *arena, struct mp_step_cost *cost, struct memplan_error *err);

#endif
