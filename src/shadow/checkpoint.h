/* SPDX-License-Identifier: MIT */
/*
 * Blocks and activation checkpointing (torch.utils.checkpoint, both kinds).
 *
 * A block is one transformer layer as transformers' GradientCheckpointingLayer calls it: its positional tensors are saved by a
 * checkpoint, its keyword tensors stay in the closure.
 */
#ifndef MP_CHECKPOINT_H
#define MP_CHECKPOINT_H

#include "shadow/ops.h"

#define MP_MAX_KEYWORDS 5

enum mp_checkpointing { MP_CHECKPOINTING_OFF, MP_CHECKPOINTING_NON_REENTRANT, MP_CHECKPOINTING_REENTRANT };

struct mp_layer {
    /** args[n_args] borrowed; results float in out[n_outputs]. */
    void (*forward)(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out);
    const void *model;
    int index;                /* number of the layer */
    int n_args, n_outputs;
    struct mp_tensor *keywords[MP_MAX_KEYWORDS]; /* NULL where absent */
    void *cache;              /* key-value cache, or NULL */
};

/** Call the block; with checkpointing, drop what it saved and run it again in backward. */
void mp_layer_call(struct mp_runtime *rt, const struct mp_layer *block, enum mp_checkpointing mode, struct mp_tensor **args, struct mp_tensor **out);

#endif
