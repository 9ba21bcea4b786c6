/* SPDX-License-Identifier: MIT */
/* The part of the public API that needs a run: what `memplan fit --json --no-advice` prints, for programs. */
#include "base/yaml.h"
#include "report/report.h"

/* The first moment without room, or the peak: as the command reports it. */
static enum memplan_status report_run(const struct mp_run *run, struct mp_arena *arena, struct mp_strbuf *out, struct memplan_error *err)
{
    struct mp_evaluation e;
    const enum memplan_status status = mp_evaluate(run, &(struct mp_evaluate_options){.keep_tags = true}, &e, err);
    if (status)
        return status;
    const uint32_t moment = e.oom ? (e.oom_event ? e.oom_event - 1 : 0) : e.peak_event;
    const struct mp_fit_report report = {.evaluation = &e, .ledger = mp_ledger_at(&e.program, moment, arena, err)};
    if (report.ledger)
        mp_report_fit_json(&report, out);
    mp_evaluation_release(&e);
    return report.ledger ? MEMPLAN_STATUS_OK : err->status;
}

char *memplan_fit_json(const char *run_text, struct memplan_error *err)
{
    struct memplan_error own = {0};
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_run_source source;
    struct mp_arena arena;
    const struct mp_run *run = NULL;
    mp_arena_init(&arena);
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "run", run_text, strlen(run_text), &own);
    if (value && mp_run_source_object(&source, "run", value, &own) == MEMPLAN_STATUS_OK)
        run = mp_run_resolve(&source, &own);
    if (run && report_run(run, &arena, &out, &own) == MEMPLAN_STATUS_OK && out.failed)
        mp_error_set(&own, MEMPLAN_STATUS_NOMEM, "out of memory while writing the report");
    mp_arena_release(&arena);
    char *const text = own.status == MEMPLAN_STATUS_OK ? mp_strbuf_detach(&out) : NULL;
    mp_strbuf_release(&out);
    if (!text)
        mp_error_set(err, own.status ? own.status : MEMPLAN_STATUS_NOMEM, "%s", own.status ? own.text : "out of memory");
    return text;
}
