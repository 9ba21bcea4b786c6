/* SPDX-License-Identifier: MIT */
/* `memplan fit --svg`: the timeline as a file of its own, made to be read at the width of a column. */
#include "report/report.h"
#include "report/timeline.h"

enum memplan_status mp_report_fit_svg(const struct mp_fit_report *report, struct mp_strbuf *out, struct memplan_error *err)
{
    struct mp_arena arena;
    struct mp_strbuf title = MP_STRBUF_INIT;
    const struct mp_run *run = report->evaluation->run;
    mp_arena_init(&arena);
    const struct mp_timeline *timeline = mp_timeline_new(report->evaluation, &arena, err);
    if (timeline) {
        mp_strbuf_addf(&title, "Memory of %s on %s", run->model->name, run->gpu->name);
        mp_timeline_draw(timeline, &(struct mp_timeline_view){.width = 380, .plot_height = 190, .font = 9.5, .standalone = true,
                                                              .title = mp_strbuf_text(&title), .evaluation = report->evaluation}, out);
        if (title.failed || out->failed)
            mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing the timeline");
    }
    const bool failed = !timeline || title.failed || out->failed;
    mp_strbuf_release(&title);
    mp_arena_release(&arena);
    return failed ? err->status : MEMPLAN_STATUS_OK;
}
