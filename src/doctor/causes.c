/* SPDX-License-Identifier: MIT */
/* Sum, share, order. */
#include "doctor/causes.h"

#include "doctor/decode.h"

/* A cause with less is not worth naming. */
#define SCORE_LEAST 2
/* What no text tells, in points. */
#define DOUBT 3
/* With no more than words can give, one cause does not stand alone, unless the kind of message or a
 * recording gave it. */
#define SCORE_ALONE 7

bool mp_doctor_case_init(struct mp_doctor_case *c, struct mp_arena *arena, const char *raw,
                         size_t length)
{
    *c = (struct mp_doctor_case){.arena = arena};
    if (!mp_doctor_decode(arena, &raw, &length) ||
        !mp_doctor_text_init(&c->text, arena, raw, length)) {
        return false;
    }
    mp_oom_message_read(&c->message, &c->text);
    mp_doctor_summary_read(&c->summary, &c->text);
    mp_doctor_smi_read(&c->smi, &c->text);
    const bool stated = c->message.format != MP_OOM_NONE && c->message.format != MP_OOM_OTHER;
    if (!stated && c->summary.found && !c->message.requested.known) {
        c->message.format = MP_OOM_SUMMARY;
        c->message.line = c->summary.line;
        c->message.allocated = c->summary.allocated;
        c->message.reserved = c->summary.reserved;
        if (c->summary.allocated.known && c->summary.reserved.known &&
            c->summary.reserved.bytes >= c->summary.allocated.bytes) {
            c->message.unallocated =
                (struct mp_oom_bytes){true, c->summary.reserved.bytes - c->summary.allocated.bytes};
        }
    }
    mp_evidence_words(c);
    mp_evidence_traceback(c);
    mp_evidence_figures(c);
    mp_evidence_together(c);
    return true;
}

/* What was observed goes before what is merely common (which has no line); of equal ones the cause of
 * most failures, a step's activations. */
static bool is_before(const struct mp_verdict *a, const struct mp_verdict *b)
{
    if (a->score != b->score) {
        return a->score > b->score;
    }
    if ((a->line == 0) != (b->line == 0)) {
        return a->line != 0;
    }
    return a->cause == MP_CAUSE_ACTIVATIONS;
}

static void sort(struct mp_verdict *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        const struct mp_verdict moved = v[i];
        size_t at = i;
        while (at > 0 && is_before(&moved, &v[at - 1])) {
            v[at] = v[at - 1];
            at--;
        }
        v[at] = moved;
    }
}

/* Is the best cause worth naming first? It is when anything that speaks for a cause was seen; of a
 * failure that is only named, when the text says what the job does. */
static bool is_told(const struct mp_doctor_case *c, const struct mp_verdict *best)
{
    int seen = 0;
    for (size_t i = 0; i < c->n_evidence; i++) {
        const struct mp_evidence *const e = &c->evidence[i];
        seen += e->kind != MP_EVIDENCE_COMMON ? MP_MAX(e->weight, 0) : 0;
    }
    const bool job = c->training || c->inference || c->pictures || c->speech || c->detection;
    return best->score >= SCORE_LEAST &&
           (seen >= SCORE_LEAST || (c->message.format != MP_OOM_NONE && (seen > 0 || job)));
}

static struct mp_verdict unknown(const struct mp_doctor_case *c, int sum)
{
    const enum mp_oom_format format = c->message.format;
    return (struct mp_verdict){
        .cause = MP_CAUSE_UNKNOWN,
        .score = DOUBT,
        .confidence = (double)DOUBT / sum,
        .evidence = format == MP_OOM_NONE ? "there is no out-of-memory text to go by"
                    : format == MP_OOM_SNAPSHOT
                        ? "the recording shows neither growth nor free memory in pieces"
                        : "the text gives no traceback and no figures that would tell causes apart",
    };
}

/* What it most likely is where the only cause that was told is not it: what a weak word says, else a
 * step's activations, or beside those the weights. */
static void add_second(struct mp_verdict all[2])
{
    if (all[1].score > 0) {
        return;
    }
    const bool weights = all[0].cause == MP_CAUSE_ACTIVATIONS;
    all[1] = (struct mp_verdict){
        .cause = weights ? MP_CAUSE_MODEL_TOO_LARGE : MP_CAUSE_ACTIVATIONS,
        .score = 1,
        .evidence = weights ? "nothing else is told; next to activations, weights are the commonest"
                            : "nothing else is told; a step's activations are the commonest cause",
    };
}

size_t mp_doctor_rank(const struct mp_doctor_case *c, struct mp_verdict *verdicts)
{
    struct mp_verdict all[MP_CAUSES] = {{0}};
    int strongest[MP_CAUSES] = {0};
    for (int i = 0; i < MP_CAUSES; i++) {
        all[i].cause = (enum mp_cause)i;
    }
    for (size_t i = 0; i < c->n_evidence; i++) {
        const struct mp_evidence *const e = &c->evidence[i];
        all[e->cause].score += e->weight;
        if (e->weight > 0 && mp_evidence_rank(e) > strongest[e->cause]) {
            strongest[e->cause] = mp_evidence_rank(e);
            all[e->cause].evidence = e->text;
            all[e->cause].line = e->line;
        }
    }
    all[MP_CAUSE_UNKNOWN].score = 0;
    sort(all, MP_CAUSES);
    int sum = DOUBT;
    size_t n = 0;
    for (size_t i = 0; i < MP_CAUSES && all[i].score >= SCORE_LEAST; i++) {
        sum += all[i].score;
        n++;
    }
    const bool told = is_told(c, &all[0]);
    const enum mp_oom_format format = c->message.format;
    const bool given = format == MP_OOM_NCCL || format == MP_OOM_HOST ||
                       format == MP_OOM_OVER_1EB || format == MP_OOM_SNAPSHOT;
    if (told && !given && n == 1 && all[0].score <= SCORE_ALONE) {
        add_second(all);
        sum += all[1].score;
        n++;
    }
    size_t out = 0;
    if (!told) {
        verdicts[out++] = unknown(c, sum);
    }
    for (size_t i = 0; i < n; i++) {
        all[i].confidence = (double)all[i].score / sum;
        verdicts[out++] = all[i];
    }
    return out;
}
