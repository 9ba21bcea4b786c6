/* SPDX-License-Identifier: MIT */
/*
 * Any bytes through the JSON reader: what it accepts, the writer must write so that it reads back.
 */
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_json_writer w;
    arena.limit_bytes = 256 * MP_MIB;
    const struct mp_value *const value =
        mp_json_parse(&arena, "input", (const char *)bytes, length, &err);
    if (!value && err.status == MEMPLAN_STATUS_OK)
        abort(); /* refused without a reason */
    if (value) {
        mp_json_init(&w, &text, 0);
        mp_json_value(&w, NULL, value);
        if (text.failed || !mp_json_parse(&arena, "output", text.data, text.len, &err))
            abort();
    }
    mp_strbuf_release(&text);
    mp_arena_release(&arena);
    return 0;
}
