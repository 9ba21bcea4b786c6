/* SPDX-License-Identifier: MIT */
/* Any bytes as a recording: refused with a message, or a history that replays without breaking the
 * allocator. */
#include <assert.h>

#include "memory/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_history history = {0};
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    if (mp_history_parse(&history, "input", bytes, length, -1, &err) != MEMPLAN_STATUS_OK) {
        assert(err.text[0] != '\0');
        return 0;
    }
    static const char *const confs[] = {"", "expandable_segments:True", "max_split_size_mb:64"};
    for (size_t i = 0; i < MP_ARRAY_LEN(confs); i++) {
        struct mp_replay_options options = {.limit_bytes = i ? 4 * MP_GIB : 0,
                                            .as_recorded = i == 0};
        struct mp_replay_result result;
        if (mp_allocator_conf_parse(confs[i], 0, &options.conf, &err) == MEMPLAN_STATUS_OK)
            (void)mp_replay_run(&history, &options, &result, &err);
    }
    mp_history_release(&history);
    return 0;
}
