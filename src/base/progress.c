/* SPDX-License-Identifier: MIT */
/* Progress: one line on stderr, rewritten at most ten times a second and wiped at the end. */
#include "base/progress.h"

#include <time.h>
#include <unistd.h>

static double now_s(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void mp_progress_start(struct mp_progress *p, const char *title, uint64_t total, bool enabled)
{
    *p = (struct mp_progress){.title = title, .total = total};
    p->enabled = enabled && isatty(STDERR_FILENO);
    if (p->enabled)
        p->started_s = p->shown_s = now_s();
}

void mp_progress_format(struct mp_strbuf *out, const struct mp_progress *p, double elapsed_s)
{
    mp_strbuf_addf(out, "%s: ", p->title);
    if (p->total)
        mp_strbuf_addf(out, "%.0f%% (%llu of %llu)", 100.0 * (double)p->done / (double)p->total,
                       (unsigned long long)p->done, (unsigned long long)p->total);
    else
        mp_strbuf_addf(out, "%llu", (unsigned long long)p->done);
    if (elapsed_s <= 0 || p->done == 0)
        return;
    const double rate = (double)p->done / elapsed_s;
    mp_strbuf_addf(out, ", %.*f/s", rate < 10 ? 1 : 0, rate);
    if (p->total > p->done)
        mp_strbuf_addf(out, ", %.0f s left", (double)(p->total - p->done) / rate);
}

static void show(struct mp_progress *p, double now)
{
    struct mp_strbuf line = MP_STRBUF_INIT;
    mp_progress_format(&line, p, now - p->started_s);
    fprintf(stderr, "\r%-78.78s", mp_strbuf_text(&line));
    fflush(stderr);
    mp_strbuf_release(&line);
    p->visible = true;
    p->shown_s = now;
}

void mp_progress_update(struct mp_progress *p, uint64_t done)
{
    p->done = done;
    if (!p->enabled)
        return;
    const double now = now_s();
    const double pause_s = p->visible ? 0.1 : 1.0;
    if (now - p->shown_s >= pause_s)
        show(p, now);
}

void mp_progress_end(struct mp_progress *p)
{
    if (p->visible)
        fprintf(stderr, "\r%78s\r", "");
    p->visible = false;
    p->enabled = false;
}
