/* SPDX-License-Identifier: MIT */
/* What data parallelism takes outside the allocator: NCCL's buffers, its kernels, and pools of streams. */
#ifndef MP_COLLECTIVES_H
#define MP_COLLECTIVES_H

#include "base/error.h"
#include "spec/run.h"

/* Bytes of one rank beyond what a process without a process group takes. */
struct mp_collectives {
    uint64_t stream_bytes;  /* torch's stream pools, made at the first side stream */
    uint64_t process_bytes; /* NCCL's kernels, once per process */
    uint64_t buffer_bytes;  /* of the communicator, after use, without multicast */
    uint64_t low_bytes,
        high_bytes; /* of all three: the tuner's choice of algorithms, and NVLink multicast */
};

static inline uint64_t mp_collectives_bytes(const struct mp_collectives *c)
{
    return c->stream_bytes + c->process_bytes + c->buffer_bytes;
}

/** All zero without data parallelism. */
enum memplan_status mp_collectives_predict(const struct mp_run *run, struct mp_collectives *c,
                                           struct memplan_error *err);

#endif
