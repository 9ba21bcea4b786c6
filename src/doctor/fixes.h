/* SPDX-License-Identifier: MIT */
/*
 * What would help: for the first causes of a verdict, the exact setting to type, and the bytes it
 * saves where they are known.
 *
 * Bytes come from the text (what another process holds) or from simulation: the caller hands in
 * functions that run the job again with one change. A fix that the simulation shows to be no better
 * is dropped, whatever its reputation.
 */
#ifndef MP_DOCTOR_FIXES_H
#define MP_DOCTOR_FIXES_H

#include "doctor/causes.h"

#define MP_DOCTOR_COMPONENTS 16

/** The stated job, simulated. All members may be unset. */
struct mp_doctor_simulation {
    void *context;
    /**
     * Run the job with one change ("checkpoint=full", "allocator_conf=expandable_segments:True";
     * NULL: as stated). True with peak reserved bytes and whether it fits; false when this change
     * cannot be simulated.
     */
    bool (*fit)(void *context, const char *change, uint64_t *reserved_bytes, bool *fits);
    bool job_known;                             /* the job as stated, on a card without end: */
    uint64_t allocated_bytes, reserved_bytes;   /* peaks */
    bool fits;                                  /* on the stated card */
    uint64_t context_bytes, context_high_bytes; /* outside the allocator, NCCL included; high: end
                                                   of the reported range */
    size_t n_components; /* what the peak is made of, largest first; they add up to what is
                            requested there */
    struct mp_doctor_component {
        const char *name;
        uint64_t bytes;
        enum mp_cause cause; /* that a large share of it speaks for; UNKNOWN: none */
    } components[MP_DOCTOR_COMPONENTS];
};

struct mp_fix {
    enum mp_cause cause;
    const char *what;    /* one sentence */
    const char *setting; /* to type; may be several lines */
    bool saves_known;
    uint64_t saves_bytes;
    bool simulated, fits;
};

#define MP_FIXES_MAX 24

/** Evidence from comparing text and prediction (before mp_doctor_rank). */
void mp_evidence_prediction(struct mp_doctor_case *c,
                            const struct mp_doctor_simulation *simulation);

/** Fixes for the causes of the verdict, best first; simulation may be NULL. fixes has MP_FIXES_MAX
 * entries. */
size_t mp_doctor_fixes(const struct mp_doctor_case *c, const struct mp_verdict *verdicts,
                       size_t n_verdicts, const struct mp_doctor_simulation *simulation,
                       struct mp_fix *fixes);

#endif
