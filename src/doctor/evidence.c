/* SPDX-License-Identifier: MIT */
/* The list of observations and the names of the causes. */
#include "doctor/evidence.h"

#include <stdarg.h>

#include "base/strbuf.h"

static const struct {
    const char *name, *text;
} causes[] = {
#define X(id, name, text) {name, text},
    MP_CAUSE_MAP(X)
#undef X
};

const char *mp_cause_name(enum mp_cause cause)
{
    return causes[cause].name;
}

const char *mp_cause_text(enum mp_cause cause)
{
    return causes[cause].text;
}

enum mp_cause mp_cause_parse(const char *name, size_t length)
{
    for (int i = 0; i < MP_CAUSES; i++) {
        if (strlen(causes[i].name) == length && memcmp(causes[i].name, name, length) == 0) {
            return (enum mp_cause)i;
        }
    }
    return MP_CAUSES;
}

void mp_evidence_add(struct mp_doctor_case *c, enum mp_cause cause, enum mp_evidence_kind kind,
                     int weight, size_t line, const char *format, ...)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    va_list ap;
    if (c->n_evidence == MP_EVIDENCE_MAX || weight == 0) {
        return;
    }
    va_start(ap, format);
    mp_strbuf_vaddf(&sb, format, ap);
    va_end(ap);
    const char *const text = sb.failed ? NULL : mp_arena_strdup(c->arena, mp_strbuf_text(&sb));
    mp_strbuf_release(&sb);
    if (text == NULL) {
        return;
    }
    c->evidence[c->n_evidence++] = (struct mp_evidence){
        .cause = cause, .kind = kind, .weight = weight, .line = line, .text = text};
}

void mp_evidence_drop_common(struct mp_doctor_case *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_evidence; i++) {
        if (c->evidence[i].kind != MP_EVIDENCE_COMMON) {
            c->evidence[n++] = c->evidence[i];
        }
    }
    c->n_evidence = n;
}

int mp_evidence_rank(const struct mp_evidence *evidence)
{
    if (evidence->kind == MP_EVIDENCE_COMMON) {
        return 1;
    }
    return 2 * evidence->weight + (evidence->kind != MP_EVIDENCE_WORD);
}
