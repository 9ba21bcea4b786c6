/* SPDX-License-Identifier: MIT */
/* Predicted beside measured. A run counts for a quantity if it measured it; unsupported runs are entries, but count for nothing. */
#include "report/compare.h"

#include <inttypes.h>
#include <math.h>

#include "base/units.h"
#include "plan/judge.h"
#include "report/report.h"

const char *mp_quantity_text(enum mp_quantity quantity)
{
    static const char *const texts[] = {
#define X(name, text) text,
        MP_QUANTITY_MAP(X)
#undef X
    };
    return texts[quantity];
}

/* ---- requirements ---- */

static bool parse_quantity(const char *text, size_t length, enum mp_quantity *quantity)
{
    for (int i = 0; i < MP_QUANTITY_COUNT; i++) {
        const char *name = mp_quantity_text((enum mp_quantity)i);
        if (strlen(name) == length && memcmp(name, text, length) == 0) {
            *quantity = (enum mp_quantity)i;
            return true;
        }
    }
    return false;
}

/* "1%", "0.5%", "0": a number; *end after it and its percent sign */
static bool parse_share(const char *text, double *share, const char **end)
{
    char *after;
    *share = strtod(text, &after);
    if (after == text || !(*share >= 0) || isinf(*share))
        return false;
    if (*after == '%') {
        *share /= 100;
        after++;
    }
    *end = after;
    return true;
}

enum memplan_status mp_requirements_parse(const char *text, struct mp_requirement *out, size_t *n, struct memplan_error *err)
{
    *n = 0;
    if (!*text)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--require: empty; give for example requested:0:100");
    for (const char *at = text; *at;) {
        struct mp_requirement *r = &out[*n];
        const char *colon = strchr(at, ':'), *end;
        char *after;
        if (*n == MP_MAX_REQUIREMENTS)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--require: more than %d requirements", MP_MAX_REQUIREMENTS);
        if (!colon || !parse_quantity(at, (size_t)(colon - at), &r->quantity) ||
            !parse_share(colon + 1, &r->tolerance, &end) || *end != ':')
            return mp_error_set(
                err, MEMPLAN_STATUS_INPUT,
                "--require: '%.60s' is not QUANTITY:TOLERANCE:PERCENT, as in reserved:1%%:95; quantities: requested, allocated, "
                "reserved, device_used, oom, max_batch",
                at);
        r->percent = strtod(end + 1, &after);
        if (after == end + 1 || !(r->percent >= 0 && r->percent <= 100) || (*after && *after != ','))
            return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--require: '%.60s': the last number is a percentage of runs, 0 to 100", at);
        ++*n;
        at = *after ? after + 1 : after;
    }
    return MEMPLAN_STATUS_OK;
}

/* ---- errors ---- */

static bool add_error(struct mp_errors *errors, double predicted, double measured)
{
    if (errors->n == errors->capacity) {
        const size_t wanted = errors->capacity ? errors->capacity * 2 : 128;
        double *values = mp_realloc(errors->values, wanted * sizeof *values);
        if (!values)
            return false;
        errors->values = values;
        errors->capacity = wanted;
    }
    const double difference = fabs(predicted - measured);
    errors->values[errors->n++] = difference == 0 ? 0 : measured == 0 ? INFINITY : difference / fabs(measured);
    errors->n_exact += difference == 0;
    return true;
}

static bool add_bytes(struct mp_comparison *c, enum mp_quantity quantity, uint64_t predicted, int64_t measured)
{
    return measured < 0 || add_error(&c->errors[quantity], (double)predicted, (double)measured);
}

static bool phase_agrees(const struct mp_phase_peaks *predicted, const struct mp_measured_phase *measured)
{
    return strcmp(measured->phase, predicted->name) == 0 &&
           (measured->requested < 0 || (uint64_t)measured->requested == predicted->requested_bytes) &&
           (measured->requested_peak < 0 || (uint64_t)measured->requested_peak == predicted->requested_peak_bytes);
}

/* How many phases are right before the first that is not. */
static size_t leading_agreement(const struct mp_evaluation *e, const struct mp_measured *m)
{
    size_t n = 0;
    while (n < m->n_phases && n < e->n_phases && phase_agrees(&e->phases[n], &m->phases[n]))
        n++;
    return n;
}

/* Requested bytes count as exact only if every phase is. */
static bool phases_agree(const struct mp_evaluation *e, const struct mp_measured *m)
{
    return m->n_phases == 0 || (m->n_phases == e->n_phases && leading_agreement(e, m) == m->n_phases);
}

/* The worst relative error of any phase's figures. */
static double worst_phase_error(const struct mp_evaluation *e, const struct mp_measured *m)
{
    double worst = m->n_phases && m->n_phases != e->n_phases ? INFINITY : 0;
    for (size_t i = 0; i < m->n_phases && i < e->n_phases; i++) {
        const struct mp_measured_phase *phase = &m->phases[i];
        const int64_t measured[] = {phase->requested, phase->requested_peak};
        const uint64_t predicted[] = {e->phases[i].requested_bytes, e->phases[i].requested_peak_bytes};
        for (int k = 0; k < 2; k++)
            if (measured[k] > 0)
                worst = MP_MAX(worst, fabs((double)predicted[k] - (double)measured[k]) / (double)measured[k]);
    }
    return worst;
}

static bool requested_agrees(const struct mp_evaluation *e, const struct mp_measured *m)
{
    return (m->requested_bytes < 0 || (uint64_t)m->requested_bytes == e->requested_bytes) && phases_agree(e, m);
}

static bool requested_matches(const struct mp_evaluation *e, const struct mp_measured *m)
{
    return !m || e->oom || m->oom == 1 || requested_agrees(e, m);
}

static bool add_requested(struct mp_comparison *c, const struct mp_evaluation *e, const struct mp_measured *m)
{
    if (m->requested_bytes < 0 && !m->n_phases)
        return true;
    if (requested_agrees(e, m))
        return add_error(&c->errors[MP_QUANTITY_REQUESTED], 0, 0);
    double error = worst_phase_error(e, m);
    if (m->requested_bytes > 0)
        error = MP_MAX(error, fabs((double)e->requested_bytes - (double)m->requested_bytes) / (double)m->requested_bytes);
    return add_error(&c->errors[MP_QUANTITY_REQUESTED], 1 + (error > 0 ? error : 1e-12), 1);
}

/* Where timing decides whether it dies, the outcome that was measured is as good as the other. */
static bool dies(const struct mp_evaluation *e, const struct mp_measured *m)
{
    return e->oom || (m->oom == 1 && e->upper.oom);
}

static bool add_measured(struct mp_comparison *c, const struct mp_evaluation *e, const struct mp_measured *m)
{
    bool ok = true;
    if (m->oom >= 0)
        ok = add_error(&c->errors[MP_QUANTITY_OOM], dies(e, m), m->oom);
    c->n_died_unseen += m->oom == 1 && !dies(e, m);
    if (m->oom == 1 || e->oom)
        return ok;
    return ok && add_requested(c, e, m) && add_bytes(c, MP_QUANTITY_ALLOCATED, e->allocated_bytes, m->allocated_bytes) &&
           add_bytes(c, MP_QUANTITY_RESERVED, e->reserved_bytes, m->reserved_bytes) &&
           add_bytes(c, MP_QUANTITY_DEVICE_USED, e->device_used_bytes, m->device_used_bytes);
}

/* ---- entries ---- */

static void json_head(struct mp_comparison *c, const struct mp_measured_line *line, const char *status)
{
    mp_json_object(&c->writer, NULL);
    mp_json_string(&c->writer, "id", line->id);
    mp_json_string(&c->writer, "status", status);
}

static void json_predicted(struct mp_comparison *c, const struct mp_measured_line *line, const struct mp_evaluation *e, int timing)
{
    struct mp_json_writer *w = &c->writer;
    json_head(c, line, "ok");
    if (timing > 0)
        mp_json_int(w, "timing", timing);
    mp_json_object(w, "predicted");
    mp_json_bool(w, "oom", e->oom);
    mp_json_uint(w, "requested_bytes", e->requested_bytes);
    mp_json_uint(w, "allocated_bytes", e->allocated_bytes);
    mp_json_uint(w, "reserved_bytes", e->reserved_bytes);
    mp_json_uint(w, "device_used_bytes", e->device_used_bytes);
    mp_report_phases_json(w, e);
    if (e->upper.differs)
        mp_report_upper_json(w, e);
    mp_json_end_object(w);
    mp_json_end_object(w);
}

static void error_cell(struct mp_table *table, uint64_t predicted, int64_t measured)
{
    if (measured < 0)
        mp_table_cell(table, "-");
    else if ((uint64_t)measured == predicted)
        mp_table_cell(table, "exact");
    else
        mp_table_cell(table, "%+.4f %%", 100 * ((double)predicted - (double)measured) / (double)MP_MAX(measured, 1));
}

static void text_predicted(struct mp_comparison *c, const struct mp_measured_line *line, const struct mp_evaluation *e, int timing)
{
    static const struct mp_measured nothing = {.oom = -1, .requested_bytes = -1, .allocated_bytes = -1, .reserved_bytes = -1,
                                               .device_used_bytes = -1, .non_allocator_bytes = -1, .max_batch = -1};
    const struct mp_measured *m = line->measured ? line->measured : &nothing;
    struct mp_strbuf bytes = MP_STRBUF_INIT;
    mp_bytes_format(&bytes, e->device_used_bytes);
    mp_table_cell(c->table, "%s", line->id);
    mp_table_cell(c->table, "%s", mp_strbuf_text(&bytes));
    mp_strbuf_release(&bytes);
    if (e->oom || m->oom == 1) {
        mp_table_cell(c->table, m->oom < 0                    ? "dies"
                                : dies(e, m) == (m->oom == 1) ? "dies, as measured"
                                : e->oom                      ? "dies, measured: runs"
                                                              : "runs, measured: DIES");
        for (int i = 0; i < 3; i++)
            mp_table_cell(c->table, " ");
        return;
    }
    if (timing > 0)
        mp_table_cell(c->table, "exact, late");
    else if (m->n_phases && !phases_agree(e, m) && (uint64_t)m->requested_bytes == e->requested_bytes)
        mp_table_cell(c->table, "a phase differs");
    else
        error_cell(c->table, e->requested_bytes, m->requested_bytes);
    error_cell(c->table, e->allocated_bytes, m->allocated_bytes);
    error_cell(c->table, e->reserved_bytes, m->reserved_bytes);
    error_cell(c->table, e->device_used_bytes, m->device_used_bytes);
}

static void add_refused(struct mp_comparison *c, const struct mp_measured_line *line, const struct memplan_error *why)
{
    const bool unsupported = why->status == MEMPLAN_STATUS_UNSUPPORTED;
    ++*(unsupported ? &c->n_unsupported : &c->n_failed);
    if (c->want_json) {
        json_head(c, line, unsupported ? "unsupported" : "error");
        mp_json_null(&c->writer, "predicted");
        mp_json_string(&c->writer, "message", why->text);
        mp_json_end_object(&c->writer);
        return;
    }
    mp_table_cell(c->table, "%s", line->id);
    mp_table_cell(c->table, unsupported ? "unsupported" : "error");
    for (int i = 0; i < 4; i++)
        mp_table_cell(c->table, "-");
    mp_strbuf_addf(&c->notes, "%s: ", line->id);
    mp_text_escape(&c->notes, why->text);
    mp_strbuf_addch(&c->notes, '\n');
}

static enum memplan_status add_max_batch(struct mp_comparison *c, const struct mp_measured_line *line, const struct mp_run *run,
                                         struct memplan_error *err)
{
    int64_t batch, again;
    const enum memplan_status status = mp_max_batch(run, &batch, &again, err);
    if (status)
        return status;
    c->n_ok++;
    if (!add_error(&c->errors[MP_QUANTITY_MAX_BATCH], (double)batch, (double)line->measured->max_batch))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while comparing");
    if (c->want_json) {
        json_head(c, line, "ok");
        mp_json_object(&c->writer, "predicted");
        mp_json_int(&c->writer, "max_batch", batch);
        mp_json_end_object(&c->writer);
        mp_json_end_object(&c->writer);
        return MEMPLAN_STATUS_OK;
    }
    mp_table_cell(c->table, "%s", line->id);
    mp_table_cell(c->table, "max batch %" PRId64, batch);
    mp_table_cell(c->table, batch == line->measured->max_batch ? "exact" : "measured %" PRId64, line->measured->max_batch);
    for (int i = 0; i < 3; i++)
        mp_table_cell(c->table, " ");
    return MEMPLAN_STATUS_OK;
}

/*
 * Timing decides how long DDP's first bucket lives (docs/data-parallel.md), and a compressing
 * hook's copies. If the usual outcome, e, is not what was measured, *late is the one that is: its
 * figures are those to compare. *timing: 0 if there is none, and no *late.
 */
static enum memplan_status find_timing(const struct mp_run *run, const struct mp_measured *m, const struct mp_evaluation *e,
                                       struct mp_evaluation *late, int *timing, struct memplan_error *err)
{
    const struct mp_evaluate_options options = {.one_outcome = true};
    if (!m || e->oom || m->oom == 1 || (m->requested_bytes < 0 && !m->n_phases) || requested_agrees(e, m))
        return MEMPLAN_STATUS_OK;
    /* small models do many steps while the watchdog sleeps */
    const int most = mp_evaluate_timings(run) > 1 ? MP_MAX(mp_evaluate_timings(run), (int)MP_MIN(run->iterations, MP_MAX_STEPS)) : 1;
    for (int lingers = 1; lingers < most; lingers++) {
        struct mp_run other = *run;
        other.ddp.lingers = lingers;
        const enum memplan_status status = mp_evaluate(&other, &options, late, err);
        if (status)
            return status;
        if (!late->oom && requested_agrees(late, m)) {
            *timing = lingers;
            return MEMPLAN_STATUS_OK;
        }
        mp_evaluation_release(late);
    }
    return MEMPLAN_STATUS_OK;
}

/* The collective calls before which the watchdog has been by, as far as they are known. */
struct wakes {
    uint16_t taken[4096];
    const struct mp_measured *measured;
    struct mp_run run; /* with these wakes */
};

static enum memplan_status evaluate_wakes(const struct wakes *w, struct mp_evaluation *e, size_t *agreed, struct memplan_error *err)
{
    const struct mp_evaluate_options options = {.one_outcome = true};
    const enum memplan_status status = mp_evaluate(&w->run, &options, e, err);
    if (!status)
        *agreed = leading_agreement(e, w->measured);
    return status;
}

/* One more wake before one of the calls from `from` to `to`, after which more than `agreed` phases are right: *found if there is one. */
static enum memplan_status add_wake(struct wakes *w, uint32_t from, uint32_t to, size_t agreed, bool *found, struct memplan_error *err)
{
    static const uint16_t all = UINT16_MAX, most = 32; /* more are not under way when the watchdog comes by in the middle of things */
    uint32_t best_call = to;
    uint16_t best_taken = 0;
    for (uint16_t taken = 0; taken < most && best_call == to; taken++) {
        for (uint32_t call = from; call < to; call++) {
            struct mp_evaluation e;
            size_t now;
            if (w->taken[call])
                continue;
            w->taken[call] = taken ? taken : all;
            const enum memplan_status status = evaluate_wakes(w, &e, &now, err);
            w->taken[call] = 0;
            if (status)
                return status;
            mp_evaluation_release(&e);
            if (now > agreed) {
                agreed = now;
                best_call = call;
                best_taken = taken ? taken : all;
            }
        }
    }
    *found = best_call < to;
    if (*found)
        w->taken[best_call] = best_taken;
    return MEMPLAN_STATUS_OK;
}

/*
 * A compressing hook's copies go when the watchdog has been by before some collective call. Find the calls, one by one: each must put
 * right the first phase that is not yet, and leave those before it as they are. *found: *late is what was measured.
 */
static enum memplan_status find_wakes(const struct mp_run *run, const struct mp_measured *m, struct mp_evaluation *late, bool *found,
                                      struct memplan_error *err)
{
    static struct wakes w;
    w = (struct wakes){.measured = m, .run = *run};
    w.run.ddp.wakes = w.taken;
    w.run.ddp.n_wakes = MP_ARRAY_LEN(w.taken);
    for (*found = true; *found;) {
        size_t agreed;
        enum memplan_status status = evaluate_wakes(&w, late, &agreed, err);
        if (status || (!late->oom && requested_agrees(late, m)))
            return status;
        const struct mp_phase *phases = late->program.phases;
        *found = !late->oom && agreed > 0 && agreed < m->n_phases && agreed < late->program.n_phases;
        /* what a call lets go of may be gone for good only in the next phase */
        const uint32_t from = agreed > 1 ? phases[agreed - 2].collectives : 0,
                       to = *found ? MP_MIN(phases[agreed].collectives, (uint32_t)MP_ARRAY_LEN(w.taken)) : from;
        mp_evaluation_release(late);
        if (*found)
            status = add_wake(&w, from, to, agreed, found, err);
        if (status)
            return status;
    }
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status add_run(struct mp_comparison *c, const struct mp_measured_line *line,
                                   const struct mp_run *run, struct memplan_error *err)
{
    struct mp_evaluation e;
    if (line->measured && line->measured->max_batch >= 0)
        return add_max_batch(c, line, run, err);
    struct mp_evaluation late;
    int timing = 0;
    enum memplan_status status = mp_evaluate(run, NULL, &e, err);
    if (!status) {
        status = find_timing(run, line->measured, &e, &late, &timing, err);
        bool found = false;
        if (!status && !timing && run->ddp.compression != MP_COMPRESSION_NONE && !requested_matches(&e, line->measured) &&
            line->measured->n_phases > 0)
            status = find_wakes(run, line->measured, &late, &found, err);
        timing = found ? 1 : timing;
        if (status)
            mp_evaluation_release(&e);
    }
    if (status)
        return status;
    c->n_ok++;
    c->n_late += timing > 0;
    const bool ok = !line->measured || add_measured(c, timing ? &late : &e, line->measured);
    if (c->want_json)
        json_predicted(c, line, &e, timing);
    else
        text_predicted(c, line, timing ? &late : &e, timing);
    if (timing)
        mp_evaluation_release(&late);
    mp_evaluation_release(&e);
    return ok ? MEMPLAN_STATUS_OK : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while comparing");
}

/* ---- life cycle ---- */

void mp_comparison_init(struct mp_comparison *c, bool want_json)
{
    static const char *const titles[] = {"run", "device used", "requested", "allocated", "reserved", "device used"};
    *c = (struct mp_comparison){.want_json = want_json};
    if (want_json) {
        mp_json_init(&c->writer, &c->json, 0);
        mp_json_object(&c->writer, NULL);
        mp_json_int(&c->writer, "schema_version", MP_COMPARE_SCHEMA_VERSION);
        mp_json_array(&c->writer, "runs");
        return;
    }
    c->table = mp_table_new("lrrrrr");
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(c->table, "%s", titles[i]);
    mp_table_rule(c->table);
}

void mp_comparison_release(struct mp_comparison *c)
{
    for (int i = 0; i < MP_QUANTITY_COUNT; i++)
        free(c->errors[i].values);
    mp_strbuf_release(&c->json);
    mp_strbuf_release(&c->notes);
    mp_table_free(c->table);
}

enum memplan_status mp_comparison_add(struct mp_comparison *c, const struct mp_measured_line *line, struct mp_arena *arena,
                                      const struct mp_run *like, struct memplan_error *err)
{
    struct mp_run_source source;
    struct memplan_error why = {0};
    mp_run_source_init(&source, arena);
    source.like = like;
    c->n_lines++;
    enum memplan_status status = mp_run_source_object(&source, line->origin, line->run, &why);
    if (!status) {
        const struct mp_run *run = mp_run_resolve(&source, &why);
        status = run ? add_run(c, line, run, &why) : why.status;
    }
    if (status == MEMPLAN_STATUS_NOMEM)
        return mp_error_set(err, status, "%s", why.text);
    if (status)
        add_refused(c, line, &why);
    return MEMPLAN_STATUS_OK;
}

void mp_comparison_add_damaged(struct mp_comparison *c, const struct mp_measured_line *line, const struct memplan_error *why)
{
    c->n_lines++;
    add_refused(c, line, why);
}

/* ---- summary ---- */

static double share_within(const struct mp_errors *errors, double tolerance)
{
    size_t n = 0;
    for (size_t i = 0; i < errors->n; i++)
        n += errors->values[i] <= tolerance;
    return errors->n ? 100.0 * (double)n / (double)errors->n : 100;
}

static double worst(const struct mp_errors *errors)
{
    double w = 0;
    for (size_t i = 0; i < errors->n; i++)
        w = MP_MAX(w, errors->values[i]);
    return w;
}

static void json_summary(struct mp_comparison *c)
{
    struct mp_json_writer *w = &c->writer;
    mp_json_object(w, "summary");
    mp_json_uint(w, "lines", c->n_lines);
    mp_json_uint(w, "ok", c->n_ok);
    mp_json_uint(w, "unsupported", c->n_unsupported);
    mp_json_uint(w, "errors", c->n_failed);
    mp_json_uint(w, "died_but_predicted_to_fit", c->n_died_unseen);
    mp_json_uint(w, "late", c->n_late);
    for (int i = 0; i < MP_QUANTITY_COUNT; i++) {
        const struct mp_errors *errors = &c->errors[i];
        mp_json_object(w, mp_quantity_text((enum mp_quantity)i));
        mp_json_uint(w, "runs", errors->n);
        mp_json_uint(w, "exact", errors->n_exact);
        mp_json_double(w, "worst_relative_error", worst(errors));
        mp_json_end_object(w);
    }
    mp_json_end_object(w);
}

static void text_summary(const struct mp_comparison *c, struct mp_strbuf *out)
{
    static const double tolerances[] = {0.001, 0.005, 0.01};
    struct mp_table *table = mp_table_new("lrrrrrr");
    static const char *const titles[] = {"quantity", "runs", "exact", "within 0.1 %", "0.5 %", "1 %", "worst"};
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    mp_table_rule(table);
    for (int i = 0; i < MP_QUANTITY_COUNT; i++) {
        const struct mp_errors *errors = &c->errors[i];
        if (!errors->n)
            continue;
        mp_table_cell(table, "%s", mp_quantity_text((enum mp_quantity)i));
        mp_table_cell(table, "%zu", errors->n);
        mp_table_cell(table, "%zu", errors->n_exact);
        for (size_t k = 0; k < MP_ARRAY_LEN(tolerances); k++)
            mp_table_cell(table, "%.1f %%", share_within(errors, tolerances[k]));
        mp_table_cell(table, "%.4f %%", 100 * worst(errors));
    }
    mp_strbuf_addf(out,
                   "\n%" PRIu64 " lines: %" PRIu64 " predicted, %" PRIu64 " not supported, %" PRIu64
                   " with errors",
                   c->n_lines, c->n_ok, c->n_unsupported, c->n_failed);
    if (c->n_died_unseen)
        mp_strbuf_addf(out, "; %" PRIu64 " died that were predicted to fit", c->n_died_unseen);
    if (c->n_late)
        mp_strbuf_addf(out, "\nlate: %" PRIu64 " in which what a collective held outlived its usual end, which timing decides", c->n_late);
    mp_strbuf_addstr(out, "\n\n");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

void mp_comparison_write(struct mp_comparison *c, struct mp_strbuf *out)
{
    if (c->want_json) {
        mp_json_end_array(&c->writer);
        json_summary(c);
        mp_json_end_object(&c->writer);
        mp_strbuf_add(out, c->json.data, c->json.len);
        mp_strbuf_addch(out, '\n');
        out->failed = out->failed || c->json.failed;
        return;
    }
    mp_table_write(c->table, out, 0);
    if (c->notes.len)
        mp_strbuf_addf(out, "\n%s", mp_strbuf_text(&c->notes));
    text_summary(c, out);
}

size_t mp_comparison_check(const struct mp_comparison *c, const struct mp_requirement *requirements, size_t n, struct mp_strbuf *out)
{
    size_t missed = 0;
    for (size_t i = 0; i < n; i++) {
        const struct mp_requirement *r = &requirements[i];
        const double share = share_within(&c->errors[r->quantity], r->tolerance);
        if (c->errors[r->quantity].n && share >= r->percent)
            continue;
        missed++;
        if (c->errors[r->quantity].n == 0)
            mp_strbuf_addf(out, "%s: no run measured it\n", mp_quantity_text(r->quantity));
        else
            mp_strbuf_addf(out, "%s: %.2f %% of %zu runs within %g %%, required %g %%\n", mp_quantity_text(r->quantity), share,
                           c->errors[r->quantity].n, 100 * r->tolerance, r->percent);
    }
    return missed;
}
