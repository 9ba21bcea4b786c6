/* SPDX-License-Identifier: MIT */
/*
 * Blocks and what is done to their activations: checkpointing (torch.utils.checkpoint, both kinds), host copies.
 *
 * A block is one transformer layer as transformers' GradientCheckpointingLayer calls it: its positional tensors are saved by a
 * checkpoint, its keyword tensors stay in the closure.
 */
#ifndef MP_CHECKPOINT_H
#define MP_CHECKPOINT_H

#include "shadow/ops.h"

#define MP_MAX_KEYWORDS 5

enum mp_checkpointing { MP_CHECKPOINTING_OFF, MP_CHECKPOINTING_NON_REENTRANT, MP_CHECKPOINTING_REENTRANT };

struct mp_layer;
/* A part of a block that can be checkpointed alone, as families write it: attention, with and without a mask of its own; MLP. */
union mp_part_forward {
    struct mp_tensor *(*attend)(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden, struct mp_tensor **weights);
    struct mp_tensor *(*attend_masked)(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden, struct mp_tensor *mask,
                                       struct mp_tensor **weights);
    struct mp_tensor *(*feed)(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden);
};

struct mp_layer {
    /** args[n_args] borrowed; results float in out[n_outputs]. */
    void (*forward)(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out);
    const void *model;
    int index;                /* number of the layer */
    int n_args, n_outputs;
    struct mp_tensor *keywords[MP_MAX_KEYWORDS]; /* NULL where absent */
    void *cache;              /* key-value cache, or NULL */
    bool is_part;             /* a part of a block: wrappers of blocks do not see it */
    union mp_part_forward part; /* what forward calls then */
};

/** Call a part of a block, checkpointed or not; args and out as in forward. */
void mp_part_call(struct mp_runtime *rt, const struct mp_layer *part, bool checkpointed, struct mp_tensor **args, struct mp_tensor **out);
/** Call the block with its saved tensors on the host (torch.autograd.graph.save_on_cpu). */
void mp_layer_offload(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out);
/** Call the block; with checkpointing, drop what it saved and run it again in backward. */
void mp_layer_call(struct mp_runtime *rt, const struct mp_layer *block, enum mp_checkpointing mode,
                   struct mp_tensor **args, struct mp_tensor **out);

#endif
