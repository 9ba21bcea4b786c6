/* SPDX-License-Identifier: MIT */
/*
 * Any bytes through the doctor: reading never fails but for memory, a verdict is always given, the
 * JSON reads back.
 */
#include "base/json.h"
#include "doctor/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct mp_strbuf text = MP_STRBUF_INIT, json = MP_STRBUF_INIT;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    arena.limit_bytes = 256 * MP_MIB;
    struct mp_doctor_case *const c = mp_arena_alloc(&arena, sizeof *c);
    struct mp_diagnosis *const d = mp_arena_alloc(&arena, sizeof *d);
    if (c && d && mp_doctor_case_init(c, &arena, (const char *)bytes, length)) {
        d->c = c;
        d->n_verdicts = mp_doctor_rank(c, d->verdicts);
        d->n_fixes = mp_doctor_fixes(c, d->verdicts, d->n_verdicts, NULL, d->fixes);
        if (d->n_verdicts == 0)
            abort();
        mp_diagnosis_text(d, &text);
        mp_diagnosis_json(d, &json);
        if (text.failed || json.failed ||
            !mp_json_parse(&arena, "diagnosis", json.data, json.len, &err))
            abort();
    }
    mp_strbuf_release(&text);
    mp_strbuf_release(&json);
    mp_arena_release(&arena);
    return 0;
}
