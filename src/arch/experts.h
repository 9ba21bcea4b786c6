/* SPDX-License-Identifier: MIT */
/* Experts as grouped matrix products: what mixtral, qwen3_moe and deepseek_v3
 * share. */
#ifndef MP_ARCH_EXPERTS_H
#define MP_ARCH_EXPERTS_H

#include "arch/arch.h"

struct mp_experts {
    struct mp_tensor *gate_up; /* [experts, 2 * inner, hidden] */
    struct mp_tensor *down;    /* [experts, hidden, inner] */
};

struct mp_experts mp_experts_new(struct mp_runtime *rt, struct mp_net *net, int64_t experts,
                                 int64_t hidden, int64_t inner);
/** hidden: [tokens, hidden]; indices and weights: [tokens, experts per token].
 */
struct mp_tensor *mp_apply_experts(struct mp_runtime *rt, const struct mp_experts *e,
                                   enum mp_activation activation, struct mp_tensor *hidden,
                                   struct mp_tensor *indices, struct mp_tensor *weights);

#endif
