/* SPDX-License-Identifier: MIT */
/* Reports of one evaluation: text for people, JSON for programs. Both carry the same facts. */
#ifndef MP_REPORT_H
#define MP_REPORT_H

#include "base/json.h"
#include "memory/ledger.h"
#include "plan/advice.h"
#include "plan/evaluate.h"
#include "plan/rank_kinds.h"

#define MP_FIT_SCHEMA_VERSION 1

struct mp_fit_report {
    const struct mp_evaluation *evaluation;
    const struct mp_ledger *ledger;  /* at the peak, or just before the request that failed */
    const struct mp_advice *advice;  /* NULL: not asked for */
    size_t n_advice;
    const struct mp_rank_kinds *ranks;    /* NULL: not asked for */
    bool has_max_batch;
    int64_t max_batch, max_batch_again;
    bool color;
};

void mp_report_fit_text(const struct mp_fit_report *report, struct mp_strbuf *out);
/** "phases": [...], inside an open object. */
void mp_report_phases_json(struct mp_json_writer *w, const struct mp_evaluation *e);
/** "upper": {...}, or null where no outcome takes more than the point. */
void mp_report_upper_json(struct mp_json_writer *w, const struct mp_evaluation *e);
void mp_report_fit_json(const struct mp_fit_report *report, struct mp_strbuf *out);
/** The timeline as an SVG file, and the whole report as one HTML file. The evaluation must hold the whole program. NOMEM. */
enum memplan_status mp_report_fit_svg(const struct mp_fit_report *report, struct mp_strbuf *out, struct memplan_error *err);
enum memplan_status mp_report_fit_html(const struct mp_fit_report *report, struct mp_strbuf *out, struct memplan_error *err);

/** One of the parts the device-used bytes are made of; they add up to it. */
struct mp_part {
    const char *name;
    uint64_t bytes;
};
#define MP_MAX_PARTS (MP_CATEGORY_COUNT + 7)
size_t mp_report_parts(const struct mp_fit_report *report, struct mp_part *parts);

#endif
