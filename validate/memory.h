/* SPDX-License-Identifier: MIT */
/*
 * A program's memory on the real card: memplan's allocator, with segments from cudaMalloc.
 *
 *     program file ──> memory_event() ──> allocator ──> device_malloc(), device_free()
 *                                            └─> addresses of the segments
 *                  ──> memory_predict(): the same at those addresses, without a card
 */
#ifndef VALIDATE_MEMORY_H
#define VALIDATE_MEMORY_H

#include "base/progress.h"
#include "memory/allocator.h"
#include "report/program.h"

/* Peaks since the mark before, current values at the mark. */
struct phase_result {
    char name[28];
    uint64_t requested_peak, allocated_peak, reserved_peak, device_peak;
};

struct outcome {
    bool oom;
    uint32_t oom_event;                      /* the ALLOC that failed */
    uint64_t requested, allocated, reserved; /* peaks */
    struct phase_result *phases;             /* malloc'ed */
    uint32_t n_phases;
};
void outcome_release(struct outcome *o);

struct memory {
    const struct mp_program_file *file;
    struct mp_allocator *allocator;
    struct mp_block **blocks; /* by storage id */
    uint64_t *segments;       /* addresses, as the driver gave them, in order */
    size_t n_segments, cap_segments;
    uint64_t idle_used; /* of the card, before the first segment: by cudaMemGetInfo */
    uint64_t peak_used, phase_used;
    bool failed; /* device_error() has the reason */
    struct outcome outcome;
};

/**
 * Settings of the job's allocator, as the header has them. limit_bytes 0: the header's. UNSUPPORTED
 * for expandable segments.
 */
enum memplan_status memory_options(const struct mp_program_file *file, uint64_t limit_bytes,
                                   struct mp_allocator_options *options, struct memplan_error *err);
/**
 * Has the card the room that the prediction asks for? IO, with who has it, when not; and when the
 * prediction itself is that the job dies, unless a limit was given: then its death is wanted.
 */
enum memplan_status memory_room(const struct mp_program_file *file, uint64_t limit_bytes,
                                struct memplan_error *err);
enum memplan_status memory_open(struct memory *m, const struct mp_program_file *file,
                                uint64_t limit_bytes, struct memplan_error *err);
void memory_close(struct memory *m);
/**
 * Do what event number `index` asks for. IO when the card fails; an out-of-memory is in m->outcome.
 * Operations are the caller's.
 */
enum memplan_status memory_event(struct memory *m, uint32_t index, struct memplan_error *err);
/** After the last event: the peaks. */
enum memplan_status memory_finish(struct memory *m, struct memplan_error *err);
/** Address of a live storage. */
static inline uint64_t memory_address(const struct memory *m, uint32_t storage)
{
    return storage ? m->blocks[storage]->address : 0;
}

/**
 * The program without a card: segments lie at the given addresses. capacity_bytes 0: no card's
 * limit.
 */
enum memplan_status memory_predict(const struct mp_program_file *file, uint64_t limit_bytes,
                                   uint64_t capacity_bytes, const uint64_t *addresses,
                                   size_t n_addresses, struct outcome *o,
                                   struct memplan_error *err);

/** An integer of the header by path, such as "predicted.reserved_bytes"; 0 where there is none. */
uint64_t header_uint(const struct mp_program_file *file, const char *path);
const char *header_text(const struct mp_program_file *file, const char *path);
const struct mp_value *header_value(const struct mp_program_file *file, const char *path);

#endif
