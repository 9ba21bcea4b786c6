/* SPDX-License-Identifier: MIT */
/* Any bytes as a line of measured runs. */
#include "spec/measured.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_measured_line line;
    arena.limit_bytes = 256 * MP_MIB;
    const enum memplan_status status =
        mp_measured_parse(&arena, "input", 1, (const char *)bytes, length, &line, &err);
    if ((status == MEMPLAN_STATUS_OK) != (line.run != NULL) || status != err.status ||
        line.id == NULL)
        abort();
    for (size_t i = 0; line.run != NULL && line.measured != NULL && i < line.measured->n_phases;
         i++) {
        if (line.measured->phases[i].phase == NULL || line.measured->phases[i].requested < -1)
            abort();
    }
    mp_arena_release(&arena);
    return 0;
}
