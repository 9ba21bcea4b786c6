/* SPDX-License-Identifier: MIT */
/* Any bytes as a log of NCCL: what is accepted must be predictable, and its parts must add up. */
#include "memory/nccl.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct mp_nccl_job base;
    struct mp_nccl_log log;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    arena.limit_bytes = 256 * MP_MIB;
    mp_nccl_job_init(&base, "H100-80G", 90, 1, 8);
    if (mp_nccl_log_parse(&arena, "input", (const char *)bytes, length, &base, &log, &err) != MEMPLAN_STATUS_OK) {
        if (err.status == MEMPLAN_STATUS_OK)
            abort(); /* refused without a reason */
    } else {
        for (size_t i = 0; i < MP_MIN(log.n_comms, (size_t)16); i++) {
            struct mp_nccl_result r;
            uint64_t sum = 0;
            if (mp_nccl_predict(&log.comms[i].job, &r, &err) != MEMPLAN_STATUS_OK)
                continue;
            for (size_t p = 0; p < MP_NCCL_PARTS; p++)
                sum += r.parts[p].high_bytes;
            if (sum != r.high_bytes)
                abort();
        }
    }
    mp_arena_release(&arena);
    return 0;
}
