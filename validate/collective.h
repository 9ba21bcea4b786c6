/* SPDX-License-Identifier: MIT */
/*
 * What ranks do together with tensors: through NCCL between GPUs (collective.cu), through MPI in tests without one (device_host.c).
 * Work is queued on the device's one stream. 0, or -1 with device_error().
 */
#ifndef VALIDATE_COLLECTIVE_H
#define VALIDATE_COLLECTIVE_H

#include "kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Join all ranks; each calls it, after device_open(). */
int collective_open(void);
int collective_close(void);
/** Sum over all ranks, in place; float32, float16 or bfloat16, elements side by side. */
int collective_all_reduce(const struct k_tensor *t);
/** The first rank's, for all. */
int collective_broadcast(const struct k_tensor *t);

#ifdef __cplusplus
}
#endif

#endif
