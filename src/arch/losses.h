/* SPDX-License-Identifier: MIT */
/* Causal language-model losses that never have all logits in memory. */
#ifndef MP_ARCH_LOSSES_H
#define MP_ARCH_LOSSES_H

#include "arch/arch.h"

/** Does the run take this way? Then it fills out, in place of head and loss; hidden is [batch, seq,
 * hidden]. */
bool mp_loss_without_logits(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head,
                            const struct mp_inputs *in, struct mp_outputs *out);

#endif
