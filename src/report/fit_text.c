/* SPDX-License-Identifier: MIT */
/*
 * `memplan fit` for people: the assumptions, the verdict, where the peak falls, what it is made of, the phases, what would help.
 */
#include <inttypes.h>

#include "base/table.h"
#include "base/units.h"
#include "report/report.h"

static void bytes_cell(struct mp_table *table, uint64_t bytes)
{
    char space[64]; /* numbers fit: nothing is allocated that could fail unseen */
    struct mp_strbuf text = {space, 0, sizeof space, false};
    mp_bytes_format(&text, bytes);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
}

static void exact_cell(struct mp_table *table, uint64_t bytes)
{
    char space[64]; /* numbers fit: nothing is allocated that could fail unseen */
    struct mp_strbuf text = {space, 0, sizeof space, false};
    mp_grouped_format(&text, bytes);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
}

static void percent_cell(struct mp_table *table, uint64_t part, uint64_t whole)
{
    mp_table_cell(table, "%.1f %%", whole ? 100.0 * (double)part / (double)whole : 0.0);
}

/* ---- parts ---- */

size_t mp_report_parts(const struct mp_fit_report *report, struct mp_part *parts)
{
    const struct mp_evaluation *e = report->evaluation;
    const struct mp_ledger *ledger = report->ledger;
    size_t n = 0;
    for (int i = 0; i < MP_CATEGORY_COUNT; i++)
        if (ledger->by_category[i])
            parts[n++] = (struct mp_part){mp_category_text((enum mp_category)i), ledger->by_category[i]};
    const uint64_t allocated = e->oom ? e->stats.allocated_bytes[MP_STAT_ALL].current : e->peak_allocated_bytes;
    parts[n++] = (struct mp_part){"rounding in blocks", allocated - ledger->total_bytes};
    const uint64_t reserved = e->oom ? e->stats.reserved_bytes[MP_STAT_ALL].current : e->reserved_bytes;
    parts[n++] = (struct mp_part){"reserved, not allocated", reserved - allocated};
    const struct mp_part outside[] = {
        {"context and kernels", e->context_bytes - mp_collectives_bytes(&e->collectives)},
        {"pools of side streams", e->collectives.stream_bytes},
        {"NCCL kernels", e->collectives.process_bytes},
        {"NCCL buffers", e->collectives.buffer_bytes},
    };
    for (size_t i = 0; i < MP_ARRAY_LEN(outside); i++)
        if (i == 0 || outside[i].bytes)
            parts[n++] = outside[i];
    if (e->run->used_bytes)
        parts[n++] = (struct mp_part){"used by others", e->run->used_bytes};
    return n;
}

/* ---- the verdict ---- */

static void write_moment(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    const struct mp_event *event = report->ledger->event;
    const struct mp_evaluation *e = report->evaluation;
    if (e->oom)
        event = &e->program.events[e->oom_event];
    mp_strbuf_addf(out, "%s", report->ledger->phase);
    if (event && event->layer >= 0)
        mp_strbuf_addf(out, ", layer %d", event->layer);
    if (event && event->op[0])
        mp_strbuf_addf(out, ", %s", event->op);
}

static void write_oom(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    const struct mp_evaluation *e = report->evaluation;
    const struct mp_allocator_oom *oom = &e->oom_info;
    mp_strbuf_addstr(out, "It dies in ");
    write_moment(report, out);
    mp_strbuf_addstr(out, ":\n  a request of ");
    mp_bytes_format(out, oom->requested_bytes);
    mp_strbuf_addstr(out, " needs a segment of ");
    mp_bytes_format(out, oom->segment_bytes);
    mp_strbuf_addstr(out, "; ");
    mp_bytes_format(out, oom->reserved_bytes < e->available_bytes ? e->available_bytes - oom->reserved_bytes : 0);
    mp_strbuf_addstr(out, " of the card can still be taken,\n  ");
    if (oom->free_bytes == 0) {
        mp_strbuf_addstr(out, "nothing that is reserved is free.\n");
        return;
    }
    mp_bytes_format(out, oom->free_bytes);
    mp_strbuf_addstr(out, " is reserved and free, in pieces of at most ");
    mp_bytes_format(out, oom->largest_free_bytes);
    mp_strbuf_addstr(out, ".\n");
}

/* What the upper figures are about. */
static const char *other_outcome(const struct mp_run *run)
{
    if (run->parallel == MP_PARALLEL_DDP)
        return run->ddp.compression == MP_COMPRESSION_NONE ? "if its first bucket lives on (timing decides)"
                                                           : "if compressed copies live on (timing decides)";
    return run->parallel == MP_PARALLEL_ZERO1 ? "if its first bucket lives on (timing decides) or on the rank that holds most"
                                              : "on the rank that holds most";
}

/* Timing may change phases without changing a peak. */
static bool shows_upper(const struct mp_evaluation *e)
{
    const struct mp_upper *u = &e->upper;
    return u->requested_bytes > e->requested_bytes || u->allocated_bytes > e->allocated_bytes || u->reserved_bytes > e->reserved_bytes ||
           u->device_used_bytes > e->device_used_bytes;
}

static void write_verdict(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    const struct mp_evaluation *e = report->evaluation;
    const char *const strong = report->color ? (e->fits ? "\033[1;32m" : "\033[1;31m") : "", *const plain = report->color ? "\033[0m" : "";
    mp_strbuf_addf(out, "%s%s%s: ", strong, e->fits ? "Fits" : "Does not fit", plain);
    mp_text_escape(out, e->run->model->name);
    mp_strbuf_addstr(out, " on ");
    mp_text_escape(out, e->run->gpu->name);
    if (e->fits) {
        const uint64_t most = MP_MAX(e->reserved_bytes, e->upper.reserved_bytes);
        mp_strbuf_addstr(out, ", ");
        mp_bytes_format(out, e->available_bytes > most ? e->available_bytes - most : 0);
        mp_strbuf_addstr(out, " to spare");
    }
    mp_strbuf_addstr(out, ".\n");
    if (e->oom)
        write_oom(report, out);
    else if (!e->fits)
        mp_strbuf_addf(out, "As it usually goes it would; %s it runs out of memory.\n", other_outcome(e->run));
    if (e->fits && !e->fits_high)
        mp_strbuf_addstr(
            out,
            "Close: what lies outside the allocator was never measured on this card; at the upper end of its range\nit does not fit.\n");
}

static void write_collectives_range(const struct mp_evaluation *e, struct mp_strbuf *out)
{
    const struct mp_collectives *c = &e->collectives;
    if (c->low_bytes == c->high_bytes)
        return;
    mp_strbuf_addstr(out, "  NCCL and its streams: ");
    mp_bytes_format(out, c->low_bytes);
    mp_strbuf_addstr(out, " to ");
    mp_bytes_format(out, c->high_bytes);
    mp_strbuf_addstr(out, ", by the algorithms it picks and whether multicast is there\n");
}

static void write_numbers(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    const struct mp_evaluation *e = report->evaluation;
    const struct mp_upper *u = &e->upper;
    const bool upper = shows_upper(e);
    const struct { const char *name; uint64_t bytes, upper; const char *note; } rows[] = {
        {"requested", e->requested_bytes, u->requested_bytes, "asked for by tensors"},
        {"allocated", e->allocated_bytes, u->allocated_bytes, "in blocks of the allocator"},
        {"reserved", e->reserved_bytes, u->reserved_bytes, "in segments taken from the card"},
        {"device used", e->device_used_bytes, u->device_used_bytes, "with context, kernels and others"},
        {"capacity", e->total_bytes, e->total_bytes, "of the card"},
    };
    struct mp_table *table = mp_table_new(upper ? "lrrrl" : "lrrl");
    for (size_t i = 0; i < MP_ARRAY_LEN(rows); i++) {
        mp_table_cell(table, "%s", rows[i].name);
        bytes_cell(table, rows[i].bytes);
        exact_cell(table, rows[i].bytes);
        if (upper && rows[i].upper > rows[i].bytes)
            exact_cell(table, rows[i].upper);
        else if (upper)
            mp_table_cell(table, "-");
        mp_table_cell(table, "%s", rows[i].note);
    }
    mp_strbuf_addstr(out, e->oom ? "\nPeaks in bytes, up to the request that failed:\n" : "\nPeaks in bytes:\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
    if (upper)
        mp_strbuf_addf(out, "  third column: %s\n", other_outcome(e->run));
    write_collectives_range(e, out);
    if (e->context_low_bytes != e->context_high_bytes && e->run->gpu->context_bytes[e->kernels].provenance != MP_MEASURED) {
        mp_strbuf_addstr(out, "  context was not measured on this card: ");
        mp_bytes_format(out, e->context_low_bytes);
        mp_strbuf_addstr(out, " to ");
        mp_bytes_format(out, e->context_high_bytes);
        mp_strbuf_addstr(out, " reported, device used accordingly\n");
    }
}

/* ---- what it is made of ---- */

static void write_parts(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    struct mp_part parts[MP_MAX_PARTS];
    const size_t n = mp_report_parts(report, parts);
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += parts[i].bytes;
    mp_strbuf_addstr(out, report->evaluation->oom ? "\nMade of, when it dies (" : "\nMade of, at the peak (");
    write_moment(report, out);
    mp_strbuf_addstr(out, "):\n");
    struct mp_table *table = mp_table_new("lrrr");
    for (size_t i = 0; i < n; i++) {
        mp_table_cell(table, "%s", parts[i].name);
        bytes_cell(table, parts[i].bytes);
        exact_cell(table, parts[i].bytes);
        percent_cell(table, parts[i].bytes, total);
    }
    mp_table_rule(table);
    mp_table_cell(table, report->evaluation->oom ? "device used then" : "device used");
    bytes_cell(table, total);
    exact_cell(table, total);
    mp_table_cell(table, "100.0 %%");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

static void write_activations(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    enum { SHOWN = 8 };
    struct mp_ledger_row rows[64];
    const struct mp_ledger *ledger = report->ledger;
    const size_t n = mp_ledger_by_op(ledger, MP_CATEGORY_ACTIVATION, rows, MP_ARRAY_LEN(rows));
    const uint64_t total = ledger->by_category[MP_CATEGORY_ACTIVATION];
    if (n == 0)
        return;
    uint64_t shown = 0, layers[2] = {0, 0};
    mp_ledger_by_layer(ledger, MP_CATEGORY_ACTIVATION, layers, 1);
    struct mp_table *table = mp_table_new("lrrr");
    for (size_t i = 0; i < n && i < SHOWN; i++) {
        mp_table_cell(table, "%s", rows[i].op);
        mp_table_cell(table, "%" PRIu32 " x", rows[i].n);
        bytes_cell(table, rows[i].bytes);
        percent_cell(table, rows[i].bytes, total);
        shown += rows[i].bytes;
    }
    if (shown < total) {
        mp_table_cell(table, "other");
        mp_table_cell(table, " ");
        bytes_cell(table, total - shown);
        percent_cell(table, total - shown, total);
    }
    mp_strbuf_addf(out, "\nActivations by kind (%d layers", mp_ledger_last_layer(ledger) + 1);
    if (layers[0]) {
        mp_strbuf_addstr(out, ", ");
        mp_bytes_format(out, layers[0]);
        mp_strbuf_addstr(out, " outside them");
    }
    mp_strbuf_addstr(out, "):\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

/* ---- phases ---- */

static bool same_peaks(const struct mp_phase_peaks *a, const struct mp_phase_peaks *b)
{
    return a->requested_bytes == b->requested_bytes && a->requested_peak_bytes == b->requested_peak_bytes &&
           a->allocated_peak_bytes == b->allocated_peak_bytes && a->reserved_peak_bytes == b->reserved_peak_bytes;
}

/* Phases [i, i + n) tell nothing that the n before them did not. */
static bool repeats_last_step(const struct mp_evaluation *e, size_t i, size_t n)
{
    if (i < n || i + n > e->n_phases)
        return false;
    for (size_t k = 0; k < n; k++)
        if (!same_peaks(&e->phases[i + k], &e->phases[i + k - n]))
            return false;
    return true;
}

static void write_phases(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    enum { MAX_ROWS = 60 };
    const struct mp_evaluation *e = report->evaluation;
    struct mp_table *table = mp_table_new("lrrrr");
    static const char *const titles[] = {"phase", "requested at its end", "requested peak", "allocated peak", "reserved peak"};
    size_t per_step = 0, i;
    for (i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    mp_table_rule(table);
    for (i = 0; i < e->n_phases; i++)
        per_step += strncmp(e->phases[i].name, "it0.", 4) == 0;
    for (i = 0; i < e->n_phases && i < MAX_ROWS; i++) {
        const struct mp_phase_peaks *p = &e->phases[i];
        if (per_step && i >= 2 && (i - 2) % per_step == 0 && repeats_last_step(e, i, per_step))
            break;
        mp_table_cell(table, "%s", p->name);
        bytes_cell(table, p->requested_bytes);
        bytes_cell(table, p->requested_peak_bytes);
        bytes_cell(table, p->allocated_peak_bytes);
        bytes_cell(table, p->reserved_peak_bytes);
    }
    mp_strbuf_addf(out, "\nPhases (%" PRId64 " steps simulated", e->steps);
    if (e->period)
        mp_strbuf_addf(out, "; then memory repeats every %s", e->period == 1 ? "step" : "few steps");
    mp_strbuf_addstr(out, "):\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
    if (i < e->n_phases)
        mp_strbuf_addf(out, "  %zu more phases%s are in --json\n", e->n_phases - i, i < MAX_ROWS ? " that repeat these" : "");
}

/* ---- advice ---- */

static void write_advice(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    if (!report->advice)
        return;
    struct mp_table *table = mp_table_new("lrrll");
    static const char *const titles[] = {"change", "saves", "device used", "", "type"};
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    mp_table_rule(table);
    for (size_t i = 0; i < report->n_advice; i++) {
        const struct mp_advice *a = &report->advice[i];
        char space[64];
        struct mp_strbuf saves = {space, 0, sizeof space, false};
        mp_strbuf_addstr(&saves, a->saves_bytes < 0 ? "-" : "");
        mp_bytes_format(&saves, (uint64_t)(a->saves_bytes < 0 ? -a->saves_bytes : a->saves_bytes));
        mp_table_cell(table, "%s", a->what);
        mp_table_cell(table, "%s", mp_strbuf_text(&saves));
        bytes_cell(table, a->device_used_bytes);
        mp_table_cell(table, "%s", a->fits ? "fits" : "no");
        mp_table_cell(table, "%s", a->setting);
    }
    mp_strbuf_addstr(out, "\nWhat would change it (each simulated):\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

/* ---- ranks ---- */

static void write_ranks(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    const struct mp_rank_kinds *ranks = report->ranks;
    if (!ranks)
        return;
    static const char *const titles[] = {"ranks", "", "requested", "reserved", "device used", ""};
    struct mp_table *table = mp_table_new("lrrrrl");
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    mp_table_rule(table);
    for (size_t i = 0; i < ranks->n; i++) {
        const struct mp_rank_kind *kind = &ranks->kinds[i];
        mp_table_cell(table, "%s", kind->ranks);
        mp_table_cell(table, "%" PRId64 " x", kind->n);
        bytes_cell(table, kind->requested_bytes);
        bytes_cell(table, kind->reserved_bytes);
        exact_cell(table, kind->device_used_bytes);
        mp_table_cell(table, kind->fits ? "fits" : "no");
    }
    mp_strbuf_addstr(out, "\nRanks, the worst first:\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

static void write_max_batch(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    if (!report->has_max_batch)
        return;
    if (report->max_batch == 0) {
        mp_strbuf_addstr(out, "Largest micro-batch: none, not even 1 fits\n\n");
        return;
    }
    mp_strbuf_addf(out, "Largest micro-batch: %" PRId64 "; %" PRId64 " does not fit", report->max_batch, report->max_batch + 1);
    if (report->max_batch_again)
        mp_strbuf_addf(out, ", %" PRId64 " fits again", report->max_batch_again);
    mp_strbuf_addstr(out, "\n\n");
}

void mp_report_fit_text(const struct mp_fit_report *report, struct mp_strbuf *out)
{
    const struct mp_run *run = report->evaluation->run;
    mp_strbuf_addstr(out, "Assumed: ");
    mp_run_describe_assumed(run, out);
    mp_strbuf_addstr(out, "\n\n");
    write_max_batch(report, out);
    write_verdict(report, out);
    mp_run_describe_claim(run, out);
    mp_strbuf_addf(out, " profile %s: %s.\n", run->profile->name, run->profile->description);
    write_numbers(report, out);
    write_ranks(report, out);
    write_parts(report, out);
    write_activations(report, out);
    write_phases(report, out);
    write_advice(report, out);
}
