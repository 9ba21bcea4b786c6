/* SPDX-License-Identifier: MIT */
#include "value_text.h"

const char *value_text(struct mp_arena *arena, const struct mp_value *value)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_json_writer w;
    mp_json_init(&w, &out, 0);
    mp_json_value(&w, NULL, value);
    const char *const text = mp_arena_strdup(arena, mp_strbuf_text(&out));
    mp_strbuf_release(&out);
    return text;
}
