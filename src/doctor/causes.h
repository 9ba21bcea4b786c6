/* SPDX-License-Identifier: MIT */
/*
 * From evidence to a ranked verdict.
 *
 * A cause's score is the sum of its evidence. Its confidence is its share of all scores plus a
 * constant for what no text tells, so a lone hint stays weak and two equal causes halve each other.
 * `unknown` is ranked first when no cause has even a hint, or the text reports nothing but the
 * failure.
 */
#ifndef MP_DOCTOR_CAUSES_H
#define MP_DOCTOR_CAUSES_H

#include "doctor/evidence.h"

struct mp_verdict {
    enum mp_cause cause;
    int score;
    double confidence;    /* 0 to 1 */
    const char *evidence; /* the strongest observation */
    size_t line;          /* 1-based, 0: the message as a whole */
};

/** Read raw (length bytes, kept by the caller), observe, in that order. False when memory is
 * exhausted. */
bool mp_doctor_case_init(struct mp_doctor_case *c, struct mp_arena *arena, const char *raw,
                         size_t length);

/** Best first; returns how many (at least 1). verdicts has MP_CAUSES entries. */
size_t mp_doctor_rank(const struct mp_doctor_case *c, struct mp_verdict *verdicts);

#endif
