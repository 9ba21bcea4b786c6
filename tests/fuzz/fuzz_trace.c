/* SPDX-License-Identifier: MIT */
/* Any bytes as a text trace: refused with a message, or a history whose replay keeps its bounds. */
#include <assert.h>

#include "memory/replay.h"
#include "memory/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static struct mp_source source;
    struct mp_history history = {0};
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    mp_source_init_memory(&source, "input", bytes, length, &err);
    if (mp_trace_read(&source, &history, &err) == MEMPLAN_STATUS_OK &&
        mp_history_finish(&history, &err) == MEMPLAN_STATUS_OK) {
        struct mp_replay_options options = {.limit_bytes = MP_GIB};
        struct mp_replay_result result;
        mp_allocator_conf_init(&options.conf, 0);
        if (mp_replay_run(&history, &options, &result, &err) == MEMPLAN_STATUS_OK)
            assert(result.stats.reserved_bytes[MP_STAT_ALL].peak <= MP_GIB);
        options.as_recorded = true;
        mp_replay_run(&history, &options, &result, &err);
    } else {
        assert(err.text[0] != '\0');
    }
    mp_history_release(&history);
    return 0;
}
