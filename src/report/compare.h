/* SPDX-License-Identifier: MIT */
/*
 * Predicted beside measured: one entry for every line of a measured-run file, and a summary of the errors.
 *
 * Quantities: requested (every phase, current and peak, and the whole run), allocated, reserved, device_used (peaks of the run),
 * oom (died or not), max_batch.
 */
#ifndef MP_COMPARE_H
#define MP_COMPARE_H

#include "base/json.h"
#include "base/table.h"
#include "plan/evaluate.h"
#include "spec/measured.h"

#define MP_COMPARE_SCHEMA_VERSION 1

#define MP_QUANTITY_MAP(X)                                                                         \
    X(REQUESTED, "requested")                                                                      \
    X(ALLOCATED, "allocated")                                                                      \
    X(RESERVED, "reserved")                                                                        \
    X(DEVICE_USED, "device_used")                                                                  \
    X(OOM, "oom")                                                                                  \
    X(MAX_BATCH, "max_batch")

enum mp_quantity {
#define X(name, text) MP_QUANTITY_##name,
    MP_QUANTITY_MAP(X)
#undef X
    MP_QUANTITY_COUNT
};
const char *mp_quantity_text(enum mp_quantity quantity);

/* Errors of one quantity over all runs that measured it. */
struct mp_errors {
    double *values; /* absolute relative errors, one per run; malloc'ed */
    size_t n, capacity;
    size_t n_exact;
};

/** "reserved:1%:95,requested:0:100": at least 95 % of runs within 1 %, all exact. */
struct mp_requirement {
    enum mp_quantity quantity;
    double tolerance; /* 0.01 */
    double percent;   /* 95 */
};
#define MP_MAX_REQUIREMENTS 16
enum memplan_status mp_requirements_parse(const char *text, struct mp_requirement *out, size_t *n, struct memplan_error *err);

struct mp_comparison {
    struct mp_strbuf json;         /* the "runs" array, growing */
    struct mp_json_writer writer;
    struct mp_table *table;
    struct mp_strbuf notes;        /* why lines could not be predicted */
    struct mp_errors errors[MP_QUANTITY_COUNT];
    uint64_t n_lines, n_ok, n_unsupported, n_failed, n_died_unseen; /* measured died, predicted fits */
    uint64_t n_late; /* where DDP's first bucket lived longer than it usually does */
    bool want_json;
};

/** No lines yet. want_json: keep what the JSON report shows of each. Ends with the release. */
void mp_comparison_init(struct mp_comparison *c, bool want_json);
void mp_comparison_release(struct mp_comparison *c);
/** Predict one line and add it. A line that cannot be predicted becomes an entry with its status; only NOMEM is an error. */
enum memplan_status mp_comparison_add(struct mp_comparison *c, const struct mp_measured_line *line, struct mp_arena *arena,
                                      const struct mp_run *like, struct memplan_error *err);
/** A line that could not be read. */
void mp_comparison_add_damaged(struct mp_comparison *c, const struct mp_measured_line *line, const struct memplan_error *why);
/** Finish and append the report. */
void mp_comparison_write(struct mp_comparison *c, struct mp_strbuf *out);
/** How many of the requirements are missed; each miss is a line in *out. */
size_t mp_comparison_check(const struct mp_comparison *c, const struct mp_requirement *requirements, size_t n, struct mp_strbuf *out);

#endif
