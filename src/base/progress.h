/* SPDX-License-Identifier: MIT */
/* Progress on a terminal's stderr, after a second, with rate and time left; silent elsewhere. */
#ifndef MP_PROGRESS_H
#define MP_PROGRESS_H

#include "base/strbuf.h"

struct mp_progress {
    const char *title;
    uint64_t total, done;
    double started_s, shown_s; /* monotonic seconds */
    bool enabled, visible;
};

/** enabled: the caller's decision (--no-progress); nothing is shown unless stderr is a terminal. */
void mp_progress_start(struct mp_progress *p, const char *title, uint64_t total, bool enabled);
void mp_progress_update(struct mp_progress *p, uint64_t done);
void mp_progress_end(struct mp_progress *p);

/**
 * The line shown at that many seconds after the start: "title: 50% (10 of 20), 5.0/s, 2 s left".
 */
void mp_progress_format(struct mp_strbuf *out, const struct mp_progress *p, double elapsed_s);

#endif
