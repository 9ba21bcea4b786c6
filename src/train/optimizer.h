/* SPDX-License-Identifier: MIT */
/* Optimizers, gradient clipping and the gradient scaler: what each keeps, and what a step allocates. */
#ifndef MP_TRAIN_OPTIMIZER_H
#define MP_TRAIN_OPTIMIZER_H

#include "shadow/ops.h"
#include "spec/run.h"

/* State per parameter, in the parameters' order; NULL until the first step that has a gradient for it. */
struct mp_optimizer_state {
    struct mp_tensor *tensors[4];
};

struct mp_optimizer_instance {
    enum mp_optimizer kind;
    struct mp_tensor **parameters; /* borrowed */
    int n_parameters;
    struct mp_optimizer_state *state;
    int64_t steps;               /* that were taken */
    struct mp_tensor *found_inf; /* a step is skipped where it is set; NULL: never */
    struct mp_tensor *maps[2];          /* 8-bit optimizers: quantisation maps, one for all */
    struct mp_optimizer_instance *next; /* the next parameter group, stepped by itself; NULL: none */
};

void mp_optimizer_init(struct mp_runtime *rt, struct mp_optimizer_instance *o, enum mp_optimizer kind, struct mp_tensor **parameters, int n);
void mp_optimizer_step(struct mp_runtime *rt, struct mp_optimizer_instance *o);
/** zero_grad(set_to_none=True) of one group after the other. */
void mp_optimizer_zero_grad(struct mp_runtime *rt, struct mp_optimizer_instance *o);
/** zero_grad(set_to_none=True): gradients go in the parameters' order. set_to_none=False needs nothing. */
void mp_zero_grad(struct mp_runtime *rt, struct mp_tensor **parameters, int n);

/** torch.nn.utils.clip_grad_norm_(parameters, 1.0), foreach. */
void mp_clip_grad_norm(struct mp_runtime *rt, struct mp_tensor **parameters, int n);
/** The same, with the total norm, floating. */
struct mp_tensor *mp_clip_grad_norm_total(struct mp_runtime *rt, struct mp_tensor **parameters, int n);
/** The same over parameters that are spread over ranks (DTensors). */
void mp_clip_grad_norm_sharded(struct mp_runtime *rt, struct mp_tensor **shards, int n);

/* torch.amp.GradScaler */
struct mp_grad_scaler {
    struct mp_tensor *scale, *growth_tracker; /* from the first scale() on */
    struct mp_tensor *found_inf;              /* between unscale and update */
    bool sharded;                             /* gradients are spread over ranks, which agree on what they found */
};
/** scaler.scale(loss), floating. */
struct mp_tensor *mp_scaler_scale(struct mp_runtime *rt, struct mp_grad_scaler *s, struct mp_tensor *loss);
void mp_scaler_unscale(struct mp_runtime *rt, struct mp_grad_scaler *s);
/** Record that the gradients of these parameters are divided by the scale. */
void mp_scaler_record_unscale(struct mp_runtime *rt, const struct mp_grad_scaler *s, struct mp_tensor **parameters, int n);
/** scaler.step(optimizer); scaler.update() */
void mp_scaler_step(struct mp_runtime *rt, struct mp_grad_scaler *s, struct mp_optimizer_instance *o);

#endif
