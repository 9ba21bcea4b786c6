/* SPDX-License-Identifier: MIT */
/*
 * Inverse frequencies of rotary embeddings, plain or scaled (transformers.modeling_rope_utils):
 * what computing them takes, and who computes them again while it trains.
 */
#ifndef MP_ARCH_ROPE_H
#define MP_ARCH_ROPE_H

#include "arch/arch.h"

enum mp_rope_type {
    MP_ROPE_DEFAULT,
    MP_ROPE_LINEAR,
    MP_ROPE_DYNAMIC,
    MP_ROPE_YARN,
    MP_ROPE_LONGROPE,
    MP_ROPE_LLAMA3
};

/* rope_parameters of config.json, or rope_scaling of older files. */
struct mp_rope_config {
    enum mp_rope_type type;
    int64_t positions;          /* that the cache of a dynamic embedding starts with */
    int64_t original_positions; /* longrope: longer sequences take the long factors */
};
/** Problems go to c. */
void mp_rope_configure(struct mp_config *c, struct mp_rope_config *rope, int64_t positions);

/* A rotary embedding: its buffers, owned. */
struct mp_rope {
    struct mp_rope_config config;
    struct mp_tensor *frequencies, *original;
    struct mp_tensor
        *cached; /* dynamic: the longest sequence so far, once it outgrew the model's */
    int64_t cached_positions;
    int64_t dim;
};
void mp_rope_new(struct mp_runtime *rt, const struct mp_net *net,
                 const struct mp_rope_config *config, int64_t dim, struct mp_rope *rope);
/** dynamic_rope_update: at each forward, before the tables are made. */
void mp_rope_update(struct mp_runtime *rt, struct mp_rope *rope, struct mp_tensor *position_ids);

#endif
