/* SPDX-License-Identifier: MIT */
/* A diagnosis as text for people and as JSON for programs: the same facts. */
#ifndef MP_DOCTOR_REPORT_H
#define MP_DOCTOR_REPORT_H

#include "base/strbuf.h"
#include "doctor/fixes.h"
#include "doctor/recording.h"

struct mp_diagnosis {
    const struct mp_doctor_case *c;
    const struct mp_doctor_recording *recording;   /* NULL: none */
    const struct mp_doctor_simulation *simulation; /* NULL: none */
    size_t n_verdicts, n_fixes;
    struct mp_verdict verdicts[MP_CAUSES];
    struct mp_fix fixes[MP_FIXES_MAX];
};

#define MP_DIAGNOSIS_SCHEMA_VERSION 1

void mp_diagnosis_text(const struct mp_diagnosis *d, struct mp_strbuf *out);
void mp_diagnosis_json(const struct mp_diagnosis *d, struct mp_strbuf *out);

#endif
