/* SPDX-License-Identifier: MIT */
/* Which algorithms a collective may run with. Internal to src/memory/nccl*.c. */
#ifndef MP_NCCL_TUNER_H
#define MP_NCCL_TUNER_H

#include "memory/nccl_topology.h"

/** Bits of the algorithms that NCCL's tuner picks for some message size; INPUT when NCCL_ALGO leaves none. */
enum memplan_status mp_nccl_choices(const struct mp_nccl_plan *plan, enum mp_nccl_collective collective,
                                    uint32_t *choices, struct memplan_error *err);

/** Bits of the algorithms that are connected at creation when nothing is connected lazily. */
uint32_t mp_nccl_eager_algorithms(const struct mp_nccl_plan *plan);

#endif
