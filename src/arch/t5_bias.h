/* SPDX-License-Identifier: MIT */
/* T5's relative position bias. */
#ifndef MP_ARCH_T5_BIAS_H
#define MP_ARCH_T5_BIAS_H

#include "arch/arch.h"

/** compute_bias(): [1, heads, seq, seq] from a table of [buckets, heads]. */
struct mp_tensor *mp_t5_bias(struct mp_runtime *rt, struct mp_tensor *table, int64_t seq,
                             bool bidirectional);

#endif
