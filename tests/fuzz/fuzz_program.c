/* SPDX-License-Identifier: MIT */
/*
 * Any bytes as a program file: refused with a message, or events whose storages are all accounted
 * for.
 */
#include <assert.h>

#include "report/program.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_program_file file;
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    if (mp_program_file_parse(&file, "input", (const char *)bytes, length, &err) !=
        MEMPLAN_STATUS_OK) {
        assert(err.text[0] != '\0');
        return 0;
    }
    const struct mp_program *p = &file.program;
    for (uint32_t i = 0; i < p->n_events; i++) {
        const struct mp_event *e = &p->events[i];
        if (e->kind == MP_EVENT_ALLOC || e->kind == MP_EVENT_FREE ||
            e->kind == MP_EVENT_RECORD_STREAM)
            assert(e->id >= 1 && e->id <= p->n_allocs);
        if (e->kind == MP_EVENT_OP)
            for (uint32_t n = 0; n < p->ops[e->id].n_inputs; n++) {
                const struct mp_op_tensor *t = mp_op_input(p, &p->ops[e->id], n);
                assert(!t || t->storage <= p->n_allocs);
            }
    }
    assert(p->live_bytes <= p->peak_bytes);
    mp_program_file_release(&file);
    return 0;
}
