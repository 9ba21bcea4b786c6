/* SPDX-License-Identifier: MIT */
/* A snapshot or trace beside the message: fragmentation seen block by block, growth seen over time.
 */
#ifndef MP_DOCTOR_RECORDING_H
#define MP_DOCTOR_RECORDING_H

#include "doctor/evidence.h"
#include "memory/history.h"

struct mp_doctor_recording {
    uint64_t peak_live_bytes;     /* of requests, as far as the history goes back */
    uint64_t peak_reserved_bytes; /* 0: the history has no segment events */
    bool has_segments;
    uint64_t reserved_bytes, allocated_bytes, unallocated_bytes; /* by the segments at the end */
    uint64_t largest_free_bytes;                                 /* block */
    uint64_t split_bytes; /* free in segments that are in use */
    bool failed;          /* the history has an out-of-memory event: the last one */
    uint64_t failed_bytes, free_bytes;
    size_t n_floors; /* 0: too short */
    int64_t floor_bytes[8];
};

void mp_doctor_recording_read(struct mp_doctor_recording *recording,
                              const struct mp_history *history);
void mp_evidence_recording(struct mp_doctor_case *c, const struct mp_doctor_recording *recording);

#endif
