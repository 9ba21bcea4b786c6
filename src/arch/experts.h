/* SPDX-License-Identifier: MIT */
/* Experts as grouped matrix products or one by one: what mixtral, qwen3_moe and deepseek_v3
 * share. */
#ifndef MP_ARCH_EXPERTS_H
#define MP_ARCH_EXPERTS_H

#include "arch/arch.h"

struct mp_experts {
    struct mp_tensor *gate_up; /* [experts, 2 * inner, hidden] */
    struct mp_tensor *down;    /* [experts, hidden, inner] */
    const struct mp_run *run;
};

struct mp_experts mp_experts_new(struct mp_runtime *rt, struct mp_net *net, int64_t experts,
                                 int64_t hidden, int64_t inner);
/** hidden: [tokens, hidden]; indices and weights: [tokens, experts per token].
 */
struct mp_tensor *mp_apply_experts(struct mp_runtime *rt, const struct mp_experts *e,
                                   enum mp_activation activation, struct mp_tensor *hidden,
                                   struct mp_tensor *indices, struct mp_tensor *weights);

/** Rows of expert i of n when `rows` of them are routed, at most `most` to one expert: even, or the
 * last one with `imbalance` times the mean and the others even. */
int64_t mp_expert_rows(int64_t rows, int64_t most, int64_t n, double imbalance, int64_t i);

#endif
