/* SPDX-License-Identifier: MIT */
/*
 * Recorded allocator events, and their comparison with a program.
 *
 * Consecutive frees are compared as a set: no allocation lies between them, so
 * the allocator cannot tell their order.
 */
#ifndef MP_TEST_EVENT_LOG_H
#define MP_TEST_EVENT_LOG_H

#include "base/strbuf.h"
#include "base/value.h"
#include "shadow/program.h"

struct recorded_event {
    bool alloc;
    uint32_t id; /* allocations are numbered from 1 */
    uint64_t bytes;
    const char *label; /* who asked, as the log says; "" where it does not */
};

struct event_log {
    const struct mp_value *config; /* the object of the first line */
    struct recorded_event *events;
    size_t n, capacity;
};

/** A labelled log: "+ID BYTES sSTREAM frames", "-ID BYTES frames", "@ node",
 * "#phase". */
bool event_log_read_labelled(struct mp_arena *arena, const char *path, struct event_log *log,
                             struct memplan_error *err);
/** A recorded trace: "alloc ADDRESS BYTES STREAM FRAMES", "free_completed
 * ADDRESS BYTES STREAM FRAMES"; frames may be absent. */
bool event_log_read_trace(struct mp_arena *arena, const char *path, struct event_log *log,
                          struct memplan_error *err);
/** Event by event; false with the first difference, both sides, in *difference.
 */
bool event_log_compare(const struct event_log *log, const struct mp_program *program,
                       struct mp_strbuf *difference);

#endif
