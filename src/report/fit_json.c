/* SPDX-License-Identifier: MIT */
/* `memplan fit --json`: the facts of the text report, exact. docs/report.md lists the keys. */
#include "report/report.h"

static void write_moment(struct mp_json_writer *w, const char *key, const struct mp_fit_report *report)
{
    const struct mp_evaluation *e = report->evaluation;
    const struct mp_event *event = e->oom ? &e->program.events[e->oom_event] : report->ledger->event;
    mp_json_object(w, key);
    mp_json_string(w, "phase", report->ledger->phase);
    if (event && event->layer >= 0)
        mp_json_int(w, "layer", event->layer);
    else
        mp_json_null(w, "layer");
    mp_json_string(w, "operation", event ? event->op : NULL);
    mp_json_end_object(w);
}

static void write_parts(struct mp_json_writer *w, const struct mp_fit_report *report)
{
    struct mp_part parts[MP_MAX_PARTS];
    const size_t n = mp_report_parts(report, parts);
    mp_json_array(w, "parts");
    for (size_t i = 0; i < n; i++) {
        mp_json_object(w, NULL);
        mp_json_string(w, "part", parts[i].name);
        mp_json_uint(w, "bytes", parts[i].bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

static void write_rows(struct mp_json_writer *w, const struct mp_fit_report *report)
{
    enum { MAX_ROWS = 4096 };
    const struct mp_ledger *ledger = report->ledger;
    mp_json_array(w, "live");
    for (size_t i = 0; i < ledger->n_rows && i < MAX_ROWS; i++) {
        const struct mp_ledger_row *row = &ledger->rows[i];
        mp_json_object(w, NULL);
        mp_json_string(w, "category", mp_category_text(row->category));
        if (row->layer >= 0)
            mp_json_int(w, "layer", row->layer);
        else
            mp_json_null(w, "layer");
        mp_json_string(w, "operation", row->op);
        mp_json_uint(w, "count", row->n);
        mp_json_uint(w, "bytes", row->bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

static void write_phases(struct mp_json_writer *w, const struct mp_phase_peaks *phases, size_t n)
{
    mp_json_array(w, "phases");
    for (size_t i = 0; i < n; i++) {
        mp_json_object(w, NULL);
        mp_json_string(w, "phase", phases[i].name);
        mp_json_uint(w, "requested", phases[i].requested_bytes);
        mp_json_uint(w, "requested_peak", phases[i].requested_peak_bytes);
        mp_json_uint(w, "allocated_peak", phases[i].allocated_peak_bytes);
        mp_json_uint(w, "reserved_peak", phases[i].reserved_peak_bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

void mp_report_phases_json(struct mp_json_writer *w, const struct mp_evaluation *e)
{
    write_phases(w, e->phases, e->n_phases);
}

void mp_report_upper_json(struct mp_json_writer *w, const struct mp_evaluation *e)
{
    const struct mp_upper *u = &e->upper;
    if (!u->differs) {
        mp_json_null(w, "upper");
        return;
    }
    mp_json_object(w, "upper");
    mp_json_bool(w, "oom", u->oom);
    mp_json_uint(w, "requested_bytes", u->requested_bytes);
    mp_json_uint(w, "allocated_bytes", u->allocated_bytes);
    mp_json_uint(w, "reserved_bytes", u->reserved_bytes);
    mp_json_uint(w, "device_used_bytes", u->device_used_bytes);
    if (u->phases)
        write_phases(w, u->phases, u->n_phases);
    else
        mp_report_phases_json(w, e);
    mp_json_end_object(w);
}

static void write_collectives(struct mp_json_writer *w, const struct mp_evaluation *e)
{
    const struct mp_collectives *c = &e->collectives;
    if (!mp_collectives_bytes(c)) {
        mp_json_null(w, "collectives");
        return;
    }
    mp_json_object(w, "collectives");
    mp_json_uint(w, "buffer_bytes", c->buffer_bytes);
    mp_json_uint(w, "process_bytes", c->process_bytes);
    mp_json_uint(w, "stream_bytes", c->stream_bytes);
    mp_json_uint(w, "low_bytes", c->low_bytes);
    mp_json_uint(w, "high_bytes", c->high_bytes);
    mp_json_end_object(w);
}

static void write_ranks(struct mp_json_writer *w, const struct mp_rank_kinds *ranks)
{
    if (!ranks)
        return;
    mp_json_array(w, "ranks");
    for (size_t i = 0; i < ranks->n; i++) {
        const struct mp_rank_kind *kind = &ranks->kinds[i];
        mp_json_object(w, NULL);
        mp_json_string(w, "ranks", kind->ranks);
        mp_json_int(w, "count", kind->n);
        mp_json_bool(w, "fits", kind->fits);
        mp_json_uint(w, "requested_bytes", kind->requested_bytes);
        mp_json_uint(w, "allocated_bytes", kind->allocated_bytes);
        mp_json_uint(w, "reserved_bytes", kind->reserved_bytes);
        mp_json_uint(w, "device_used_bytes", kind->device_used_bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

static void write_failure(struct mp_json_writer *w, const struct mp_evaluation *e)
{
    if (!e->oom) {
        mp_json_null(w, "failure");
        return;
    }
    mp_json_object(w, "failure");
    mp_json_uint(w, "requested_bytes", e->oom_info.requested_bytes);
    mp_json_uint(w, "segment_bytes", e->oom_info.segment_bytes);
    mp_json_uint(w, "reserved_bytes", e->oom_info.reserved_bytes);
    mp_json_uint(w, "allocated_bytes", e->oom_info.allocated_bytes);
    mp_json_uint(w, "free_in_segments_bytes", e->oom_info.free_bytes);
    mp_json_uint(w, "largest_free_bytes", e->oom_info.largest_free_bytes);
    mp_json_end_object(w);
}

static void write_advice(struct mp_json_writer *w, const struct mp_fit_report *report)
{
    if (!report->advice) {
        mp_json_null(w, "advice");
        return;
    }
    mp_json_array(w, "advice");
    for (size_t i = 0; i < report->n_advice; i++) {
        const struct mp_advice *a = &report->advice[i];
        mp_json_object(w, NULL);
        mp_json_string(w, "what", a->what);
        mp_json_string(w, "setting", a->setting);
        mp_json_bool(w, "fits", a->fits);
        mp_json_uint(w, "device_used_bytes", a->device_used_bytes);
        mp_json_uint(w, "reserved_bytes", a->reserved_bytes);
        mp_json_int(w, "saves_bytes", a->saves_bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

void mp_report_fit_json(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    const struct mp_evaluation *e = report->evaluation;
    struct mp_json_writer w;
    struct mp_strbuf assumed = MP_STRBUF_INIT;
    mp_run_describe_assumed(e->run, &assumed);
    mp_json_init(&w, out, 2);
    mp_json_object(&w, NULL);
    mp_json_int(&w, "schema_version", MP_FIT_SCHEMA_VERSION);
    mp_json_bool(&w, "fits", e->fits);
    mp_json_bool(&w, "fits_at_upper_bound", e->fits_high);
    mp_json_string(&w, "assumed", mp_strbuf_text(&assumed));
    mp_run_write_json(e->run, &w, "run");
    mp_json_string(&w, "profile", e->run->profile->name);
    mp_json_string(&w, "exact_for", e->run->profile->description);
    if (report->has_max_batch) {
        mp_json_int(&w, "max_batch", report->max_batch);
        mp_json_int(&w, "max_batch_again", report->max_batch_again);
    }
    mp_json_uint(&w, "requested_bytes", e->requested_bytes);
    mp_json_uint(&w, "allocated_bytes", e->allocated_bytes);
    mp_json_uint(&w, "reserved_bytes", e->reserved_bytes);
    mp_json_uint(&w, "device_used_bytes", e->device_used_bytes);
    mp_report_upper_json(&w, e);
    mp_json_uint(&w, "context_bytes", e->context_bytes);
    mp_json_uint(&w, "context_low_bytes", e->context_low_bytes);
    mp_json_uint(&w, "context_high_bytes", e->context_high_bytes);
    write_collectives(&w, e);
    mp_json_uint(&w, "capacity_bytes", e->total_bytes);
    mp_json_uint(&w, "available_bytes", e->available_bytes);
    mp_json_uint(&w, "alloc_retries", e->stats.num_alloc_retries);
    write_ranks(&w, report->ranks);
    write_moment(&w, "peak", report);
    write_failure(&w, e);
    write_parts(&w, report);
    write_rows(&w, report);
    mp_json_int(&w, "steps_simulated", e->steps);
    mp_json_int(&w, "period_steps", e->period);
    mp_report_phases_json(&w, e);
    write_advice(&w, report);
    mp_json_end_object(&w);
    mp_strbuf_addch(out, '\n');
    out->failed = out->failed || assumed.failed;
    mp_strbuf_release(&assumed);
}
