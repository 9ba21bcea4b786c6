/* SPDX-License-Identifier: MIT */
/*
 * Measured runs: JSON Lines, one {"id", "run", "measured"} per line. `run` is a run spec;
 * `measured` may be absent (predict only), and everything in it is optional. Keys that are not
 * known here (tries, params, a note) are ignored.
 */
#ifndef MP_MEASURED_H
#define MP_MEASURED_H

#include "base/arena.h"
#include "base/error.h"
#include "base/value.h"

struct mp_measured_phase {
    const char *phase; /* "it0.mb1.bwd" */
    /* bytes; requested at its end, peaks since the phase before; -1: not given */
    int64_t requested, requested_peak, allocated_peak, reserved_peak;
};

/* Peaks of the whole run in bytes; -1: not given. */
struct mp_measured {
    int oom; /* 0, 1; -1: not given */
    int64_t requested_bytes, allocated_bytes, reserved_bytes, device_used_bytes,
        non_allocator_bytes;
    int64_t max_batch; /* the answer of a bisection; 0: not even one sequence trained */
    const struct mp_measured_phase *phases;
    size_t n_phases;
};

struct mp_measured_line {
    uint64_t number;            /* of the line, from 1 */
    const char *origin;         /* "runs.jsonl:3", for messages and mp_run_source_object() */
    const char *id;             /* "line 3" where the line has none */
    const struct mp_value *run; /* an object; NULL when the line is damaged */
    const struct mp_measured *measured; /* NULL: predict only */
};

/** One line. NULL with *err; *line then has number, origin and, where it could be read, id. All
 * lives in the arena. */
enum memplan_status mp_measured_parse(struct mp_arena *arena, const char *path, uint64_t number,
                                      const char *text, size_t length,
                                      struct mp_measured_line *line, struct memplan_error *err);

/** Lines of a file, plain or gzip, "-" for standard input; memory is bounded by the longest line
 * (64 MiB). */
struct mp_measured_reader;
struct mp_measured_reader *mp_measured_open(const char *path, struct memplan_error *err);
/**
 * The next line that is not blank, into the arena (which the caller may rewind between lines).
 * *end: there was none, because the file is at its end or, with a status, because it cannot be read
 * further. A status without *end: this line is damaged, the next call goes on.
 */
enum memplan_status mp_measured_next(struct mp_measured_reader *reader, struct mp_arena *arena,
                                     struct mp_measured_line *line, bool *end,
                                     struct memplan_error *err);
void mp_measured_close(struct mp_measured_reader *reader);

#endif
