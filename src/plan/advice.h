/* SPDX-License-Identifier: MIT */
/* What would help: the same job with one thing changed, each simulated, none quoted. */
#ifndef MP_ADVICE_H
#define MP_ADVICE_H

#include "plan/evaluate.h"

#define MP_MAX_ADVICE 24

struct mp_advice {
    const char *what;    /* "checkpoint every block" */
    char setting[160];   /* "--checkpoint full": what to type */
    uint64_t device_used_bytes, reserved_bytes;
    int64_t saves_bytes; /* of device-used bytes; negative: it takes more */
    bool fits;
};

/** Changes that apply to e's run, in order of what they save; n is set. Those that run out of memory have fits false and no bytes saved. */
enum memplan_status mp_advise(const struct mp_evaluation *e, struct mp_advice *out, size_t *n, struct memplan_error *err);

#endif
