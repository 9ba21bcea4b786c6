/* SPDX-License-Identifier: MIT */
/*
 * Text traces: one allocator event a line.
 *
 *     # config {"alloc_conf": "expandable_segments:True", "limit_gib": 16}
 *     segment_alloc 7fe422000000 155189248 0
 *     alloc 7fe422000000 154389504 0          action, hexadecimal address, bytes, stream
 *     mark it0.mb0.fwd                        a phase ends
 *
 * Bytes of alloc, free_requested and free_completed are the requested size, of segment_* the
 * segment's, of oom the rounded size. Lines that begin with "snapshot" or "annotate" are passed
 * over.
 */
#ifndef MP_TRACE_H
#define MP_TRACE_H

#include "memory/history.h"
#include "memory/source.h"

/** Append the trace to *history; INPUT names the line. mp_history_read calls it for files that are
 * neither pickle nor JSON. */
enum memplan_status mp_trace_read(struct mp_source *source, struct mp_history *history,
                                  struct memplan_error *err);

#endif
