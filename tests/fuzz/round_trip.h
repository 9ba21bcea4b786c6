/* SPDX-License-Identifier: MIT */
/* Any bytes through a reader of values: what it accepts, the writer must write so that it reads back as JSON. */
#ifndef MP_FUZZ_ROUND_TRIP_H
#define MP_FUZZ_ROUND_TRIP_H

#include "base/json.h"

typedef const struct mp_value *value_reader(struct mp_arena *arena, const char *origin, const char *text, size_t length,
                                            struct memplan_error *err);

static inline int round_trip(value_reader *read, const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {.limit_bytes = 256 * MP_MIB};
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_json_writer w;
    const struct mp_value *const value = read(&arena, "input", (const char *)bytes, length, &err);
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

#endif
