/* SPDX-License-Identifier: MIT */
/*
 * bitsandbytes' 4-bit layers under adapters (QLoRA): two weights to a byte, maxima per 64 weights
 * in a byte each, whose own maxima per 256 are float32. Sizes: docs/memory-model.md.
 */
#ifndef MP_ARCH_NF4_H
#define MP_ARCH_NF4_H

#include "arch/arch.h"

/** Is a linear layer that is being made one of bitsandbytes'? */
bool mp_nf4_wanted(const struct mp_net *net);
/** The layer's weight is moved to the card and quantised; out rows of in. */
struct mp_linear_layer mp_nf4_linear_new(struct mp_runtime *rt, struct mp_net *net,
                                         const char *name, int64_t out, int64_t in, bool bias);
/** bnb_4bit_compute_dtype of the run: its 16-bit type, of which adapters are made too. */
enum mp_dtype mp_nf4_compute_dtype(const struct mp_run *run);
/** Linear4bit.forward(). */
struct mp_tensor *mp_nf4_apply(struct mp_runtime *rt, struct mp_tensor *x,
                               const struct mp_linear_layer *layer);
/** Rows from which the weight is dequantised for F.linear instead of being read by the fused
 * kernel. */
int64_t mp_nf4_fused_rows(const struct mp_gpu *gpu, enum mp_dtype dtype, int64_t out, int64_t in);

#endif
