/* SPDX-License-Identifier: MIT */
/*
 * LoRA as peft puts it on a model: a frozen base, and per target two small
 * matrices in float32.
 *
 * A target is a linear layer whose name ends in one of the run's
 * `lora.targets`. Layers ask for their adapter when they are made; the matrices
 * come after the whole model, in the order of the layers.
 */
#ifndef MP_ARCH_LORA_H
#define MP_ARCH_LORA_H

#include "arch/arch.h"

/** The adapter of a layer that is being made; NULL when the run has none for
 * it. */
struct mp_adapter *mp_lora_adapter(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                   const struct mp_linear_layer *layer);
/** get_peft_model(): freeze the base, make the matrices. Raises when no layer
 * is a target. */
void mp_lora_wrap(struct mp_runtime *rt, struct mp_net *net);
/** The adapted layer's forward(); base computes the layer itself. */
struct mp_tensor *mp_lora_forward(struct mp_runtime *rt, struct mp_tensor *x,
                                  const struct mp_linear_layer *layer,
                                  struct mp_tensor *(*base)(struct mp_runtime *rt,
                                                            struct mp_tensor *x,
                                                            const struct mp_linear_layer *layer));

#endif
