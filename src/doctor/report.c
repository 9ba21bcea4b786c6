/* SPDX-License-Identifier: MIT */
/* The text first says where the card's memory is (rows add up), then the verdict with its evidence,
 * then what would help. */
#include "doctor/report.h"

#include <limits.h>

#include "base/json.h"
#include "base/table.h"
#include "base/units.h"

/* ---- text ---- */

static void row(struct mp_table *table, const char *name, struct mp_oom_bytes value,
                const char *note)
{
    if (!value.known) {
        return;
    }
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_bytes_format(&text, value.bytes);
    mp_table_cell(table, "%s", name);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
    mp_table_cell(table, "%s", note);
    mp_strbuf_release(&text);
}

static struct mp_oom_bytes known(uint64_t bytes)
{
    return (struct mp_oom_bytes){true, bytes};
}

/* Capacity minus everything named; small remainders are the rounding of five printed figures. */
static struct mp_oom_bytes unexplained(const struct mp_oom_message *m)
{
    if (!m->capacity.known || !m->free.known || m->outside_is_everyone || !m->this_process.known ||
        m->this_process.bytes == 0) {
        return (struct mp_oom_bytes){0};
    }
    const uint64_t others = mp_oom_message_others(m);
    uint64_t sum;
    if (!mp_add_u64(m->free.bytes, m->this_process.bytes, &sum) || !mp_add_u64(sum, others, &sum) ||
        sum >= m->capacity.bytes || m->capacity.bytes - sum < 32 * MP_MIB) {
        return (struct mp_oom_bytes){0};
    }
    return known(m->capacity.bytes - sum);
}

static void figures(const struct mp_diagnosis *d, struct mp_strbuf *out)
{
    const struct mp_oom_message *const m = &d->c->message;
    struct mp_table *const table = mp_table_new("lrl");
    if (table == NULL) {
        out->failed = true;
        return;
    }
    char others_note[64] = "";
    if (m->n_processes == 1) {
        (void)snprintf(others_note, sizeof others_note, "pid %llu",
                       (unsigned long long)m->processes[0].pid);
    } else if (m->n_processes > 1) {
        (void)snprintf(others_note, sizeof others_note, "%zu processes", m->n_processes);
    }
    row(table, "requested", m->requested, "the segment that was asked of the driver");
    row(table, "capacity", m->capacity, "");
    row(table, "  free", m->free, "");
    if (m->this_process.known && m->this_process.bytes > 0) {
        row(table, "  this process", m->this_process,
            m->self_by_size ? "by its size: the text names it by a foreign pid" : "");
    }
    row(table, "    allocated", m->allocated, "");
    row(table, "    reserved but unallocated", m->unallocated, "");
    row(table, m->outside_is_everyone ? "  outside this allocator" : "    outside the allocator",
        m->outside,
        m->outside_is_everyone ? "context and all other processes" : "context, libraries, NCCL");
    if (m->n_processes > 0) {
        row(table, "  other processes", known(mp_oom_message_others(m)), others_note);
    }
    row(table, "  not explained", unexplained(m), "in use, but by no process named");
    row(table, "reserved", m->reserved, "");
    row(table, "allowed", m->allowed, "by set_per_process_memory_fraction");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

/* The article's rule and the question behind it, in one sentence. */
static void fragmentation(const struct mp_diagnosis *d, struct mp_strbuf *out)
{
    const struct mp_oom_message *const m = &d->c->message;
    if (!m->unallocated.known || !m->reserved.known || m->reserved.bytes == 0) {
        return;
    }
    const double share = 100.0 * (double)m->unallocated.bytes / (double)m->reserved.bytes;
    mp_strbuf_addf(out,
                   "\n  %.0f %% of reserved memory is unallocated (%s the 20 %% rule of thumb)",
                   share, share > 20 ? "above" : "below");
    if (m->requested.known) {
        const uint64_t room = m->unallocated.bytes + (m->free.known ? m->free.bytes : 0);
        mp_strbuf_addstr(
            out, room >= m->requested.bytes
                     ? ";\n  in one piece, with what was free, it would have held the request\n"
                     : ";\n  even in one piece, with what was free, it would not have held the "
                       "request\n");
    } else {
        mp_strbuf_addch(out, '\n');
    }
}

static void recording(const struct mp_diagnosis *d, struct mp_strbuf *out)
{
    const struct mp_doctor_recording *const r = d->recording;
    if (r == NULL) {
        return;
    }
    mp_strbuf_addstr(out, "\nsnapshot\n");
    struct mp_table *const table = mp_table_new("lrl");
    if (table == NULL) {
        out->failed = true;
        return;
    }
    row(table, "peak of live requests", known(r->peak_live_bytes), "");
    row(table, "peak reserved",
        (struct mp_oom_bytes){r->peak_reserved_bytes > 0, r->peak_reserved_bytes}, "");
    if (r->has_segments) {
        row(table, "reserved at the end", known(r->reserved_bytes), "");
        row(table, "  allocated", known(r->allocated_bytes), "");
        row(table, "  free", known(r->unallocated_bytes), "");
        row(table, "    largest piece", known(r->largest_free_bytes), "");
    }
    if (r->failed) {
        row(table, "failed request", known(r->failed_bytes), "");
        row(table, "  free on the card then", known(r->free_bytes), "");
    }
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

/* What the stated job needs, part by part, so that what the text shows beyond it stands out. */
static void prediction(const struct mp_diagnosis *d, struct mp_strbuf *out)
{
    const struct mp_doctor_simulation *const s = d->simulation;
    if (s == NULL || !s->job_known) {
        return;
    }
    mp_strbuf_addf(out, "\nstated job, simulated: %s\n",
                   s->fits ? "it fits this card" : "it does not fit this card");
    struct mp_table *const table = mp_table_new("lrl");
    if (table == NULL) {
        out->failed = true;
        return;
    }
    row(table, "peak allocated", known(s->allocated_bytes), "");
    for (size_t i = 0; i < s->n_components; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "  %s", s->components[i].name);
        row(table, name, known(s->components[i].bytes), "");
    }
    row(table, "peak reserved", known(s->reserved_bytes), "");
    row(table, "outside the allocator", known(s->context_bytes), "");
    mp_table_write(table, out, 2);
    mp_table_free(table);
}

static void indented(struct mp_strbuf *out, const char *text, const char *indent)
{
    while (*text != '\0') {
        const size_t n = strcspn(text, "\n");
        mp_strbuf_addf(out, "%s%.*s\n", indent, (int)n, text);
        text += n + (text[n] == '\n');
    }
}

static void add_fix(const struct mp_fix *fix, struct mp_strbuf *out)
{
    mp_strbuf_addf(out, "  - %s", fix->what);
    if (fix->saves_known) {
        mp_strbuf_addstr(out, fix->simulated ? ": saves " : ": gives back ");
        mp_bytes_format(out, fix->saves_bytes);
        mp_strbuf_addstr(out, fix->simulated ? (fix->fits ? " (simulated; fits)"
                                                          : " (simulated; not enough alone)")
                                             : "");
    }
    mp_strbuf_addch(out, '\n');
    indented(out, fix->setting, "      ");
}

static void add_evidence(const char *text, size_t line, struct mp_strbuf *out)
{
    mp_strbuf_addf(out, "     %s", text);
    if (line > 0) {
        mp_strbuf_addf(out, " (line %zu)", line);
    }
    mp_strbuf_addch(out, '\n');
}

#define EVIDENCE_TOLD 3

/* The strongest observations first. */
static void evidence(const struct mp_diagnosis *d, const struct mp_verdict *v,
                     struct mp_strbuf *out)
{
    int below = INT_MAX;
    size_t told = 0;
    while (told < EVIDENCE_TOLD) {
        int next = 0;
        for (size_t i = 0; i < d->c->n_evidence; i++) {
            const struct mp_evidence *const e = &d->c->evidence[i];
            const int rank = e->cause == v->cause && e->weight > 0 ? mp_evidence_rank(e) : 0;
            next = rank < below && rank > next ? rank : next;
        }
        if (next == 0) {
            break;
        }
        for (size_t i = 0; i < d->c->n_evidence && told < EVIDENCE_TOLD; i++) {
            const struct mp_evidence *const e = &d->c->evidence[i];
            if (e->cause == v->cause && e->weight > 0 && mp_evidence_rank(e) == next) {
                add_evidence(e->text, e->line, out);
                told++;
            }
        }
        below = next;
    }
    if (told == 0 && v->evidence != NULL) {
        add_evidence(v->evidence, v->line, out); /* of `unknown`: why */
    }
}

void mp_diagnosis_text(const struct mp_diagnosis *d, struct mp_strbuf *out)
{
    const struct mp_oom_message *const m = &d->c->message;
    mp_strbuf_addf(out, "%s", mp_oom_format_text(m->format));
    if (m->format != MP_OOM_NONE && m->format != MP_OOM_SNAPSHOT) {
        mp_strbuf_addf(out, ", line %zu", m->line + 1);
    }
    if (m->device_known) {
        mp_strbuf_addf(out, ", GPU %u", m->device);
    }
    if (m->n_found > 1) {
        mp_strbuf_addf(out, " (%u messages in the text; this is the first complete one)",
                       m->n_found);
    }
    mp_strbuf_addstr(out, "\n");
    figures(d, out);
    fragmentation(d, out);
    recording(d, out);
    prediction(d, out);
    mp_strbuf_addstr(out, "\nverdict\n");
    for (size_t i = 0; i < d->n_verdicts; i++) {
        const struct mp_verdict *const v = &d->verdicts[i];
        mp_strbuf_addf(out, "  %zu. %s, %.0f %%: %s\n", i + 1, mp_cause_name(v->cause),
                       100 * v->confidence, mp_cause_text(v->cause));
        evidence(d, v, out);
    }
    if (d->n_fixes > 0) {
        mp_strbuf_addstr(out, "\nwhat would help\n");
        for (size_t i = 0; i < d->n_fixes; i++) {
            add_fix(&d->fixes[i], out);
        }
    }
}

/* ---- JSON ---- */

static void json_bytes(struct mp_json_writer *w, const char *key, struct mp_oom_bytes value)
{
    if (value.known) {
        mp_json_uint(w, key, value.bytes);
    } else {
        mp_json_null(w, key);
    }
}

static void json_message(const struct mp_oom_message *m, struct mp_json_writer *w)
{
    mp_json_object(w, "message");
    mp_json_string(w, "format", mp_oom_format_name(m->format));
    if (m->format == MP_OOM_NONE || m->format == MP_OOM_SNAPSHOT) {
        mp_json_null(w, "line");
    } else {
        mp_json_uint(w, "line", m->line + 1);
    }
    if (m->device_known) {
        mp_json_uint(w, "device", m->device);
    } else {
        mp_json_null(w, "device");
    }
    json_bytes(w, "requested_bytes", m->requested);
    json_bytes(w, "capacity_bytes", m->capacity);
    json_bytes(w, "free_bytes", m->free);
    json_bytes(w, "this_process_bytes", m->this_process);
    mp_json_array(w, "other_processes");
    for (size_t i = 0; i < m->n_processes; i++) {
        mp_json_object(w, NULL);
        mp_json_uint(w, "pid", m->processes[i].pid);
        mp_json_uint(w, "bytes", m->processes[i].bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
    json_bytes(w, "allocated_bytes", m->allocated);
    json_bytes(w, "reserved_bytes", m->reserved);
    json_bytes(w, "reserved_unallocated_bytes", m->unallocated);
    json_bytes(w, "outside_allocator_bytes", m->outside);
    json_bytes(w, "allowed_bytes", m->allowed);
    json_bytes(w, "private_pool_bytes", m->private_pool);
    mp_json_end_object(w);
}

static void json_recording(const struct mp_doctor_recording *r, struct mp_json_writer *w)
{
    if (r == NULL) {
        mp_json_null(w, "snapshot");
        return;
    }
    mp_json_object(w, "snapshot");
    json_bytes(w, "reserved_bytes", (struct mp_oom_bytes){r->has_segments, r->reserved_bytes});
    json_bytes(w, "allocated_bytes", (struct mp_oom_bytes){r->has_segments, r->allocated_bytes});
    json_bytes(w, "unallocated_bytes",
               (struct mp_oom_bytes){r->has_segments, r->unallocated_bytes});
    json_bytes(w, "largest_free_bytes",
               (struct mp_oom_bytes){r->has_segments, r->largest_free_bytes});
    mp_json_uint(w, "peak_live_bytes", r->peak_live_bytes);
    json_bytes(w, "failed_request_bytes", (struct mp_oom_bytes){r->failed, r->failed_bytes});
    mp_json_end_object(w);
}

static void json_prediction(const struct mp_doctor_simulation *s, struct mp_json_writer *w)
{
    if (s == NULL || !s->job_known) {
        mp_json_null(w, "prediction");
        return;
    }
    mp_json_object(w, "prediction");
    mp_json_uint(w, "allocated_bytes", s->allocated_bytes);
    mp_json_uint(w, "reserved_bytes", s->reserved_bytes);
    mp_json_uint(w, "outside_allocator_bytes", s->context_bytes);
    mp_json_bool(w, "fits", s->fits);
    mp_json_array(w, "components");
    for (size_t i = 0; i < s->n_components; i++) {
        mp_json_object(w, NULL);
        mp_json_string(w, "name", s->components[i].name);
        mp_json_uint(w, "bytes", s->components[i].bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
    mp_json_end_object(w);
}

void mp_diagnosis_json(const struct mp_diagnosis *d, struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 2);
    mp_json_object(&w, NULL);
    mp_json_uint(&w, "schema_version", MP_DIAGNOSIS_SCHEMA_VERSION);
    json_message(&d->c->message, &w);
    json_recording(d->recording, &w);
    json_prediction(d->simulation, &w);
    mp_json_array(&w, "causes");
    for (size_t i = 0; i < d->n_verdicts; i++) {
        mp_json_object(&w, NULL);
        mp_json_string(&w, "cause", mp_cause_name(d->verdicts[i].cause));
        mp_json_double(&w, "confidence", d->verdicts[i].confidence);
        mp_json_string(&w, "evidence", d->verdicts[i].evidence);
        if (d->verdicts[i].line > 0) {
            mp_json_uint(&w, "line", d->verdicts[i].line);
        } else {
            mp_json_null(&w, "line");
        }
        mp_json_end_object(&w);
    }
    mp_json_end_array(&w);
    mp_json_array(&w, "fixes");
    for (size_t i = 0; i < d->n_fixes; i++) {
        mp_json_object(&w, NULL);
        mp_json_string(&w, "what", d->fixes[i].what);
        mp_json_string(&w, "setting", d->fixes[i].setting);
        json_bytes(&w, "saves_bytes",
                   (struct mp_oom_bytes){d->fixes[i].saves_known, d->fixes[i].saves_bytes});
        if (d->fixes[i].simulated) {
            mp_json_bool(&w, "fits", d->fixes[i].fits);
        } else {
            mp_json_null(&w, "fits");
        }
        mp_json_end_object(&w);
    }
    mp_json_end_array(&w);
    mp_json_end_object(&w);
    mp_strbuf_addch(out, '\n');
}
