/* SPDX-License-Identifier: MIT */
/*
 * JSON in and out. The only file that sees cJSON.
 *
 * Reading is strict: one value, nothing after it, at most 64 levels (MP_JSON_MAX_DEPTH), no
 * duplicate keys, valid UTF-8, integers kept exact. NaN and Infinity, which Python writes, are
 * refused by name.
 *
 * Writing streams into a strbuf: integers exact, doubles as the shortest text that reads back equal
 * (with ".0" when it would read as an integer), strings escaped.
 */
#ifndef MP_JSON_H
#define MP_JSON_H

#include "base/strbuf.h"
#include "base/value.h"

#define MP_JSON_MAX_DEPTH 64

/**
 * Parse length bytes of text; origin (a path, "line 3 of runs.jsonl") stands in messages. NULL with
 * *err on failure.
 */
const struct mp_value *mp_json_parse(struct mp_arena *arena, const char *origin, const char *text,
                                     size_t length, struct memplan_error *err);

/** Writer: begin/end pairs nest; commas and, with indent > 0, line breaks are supplied. */
struct mp_json_writer {
    struct mp_strbuf *out;
    int indent; /* spaces per level; 0: one line */
    int depth;
    bool first;     /* nothing written yet at this level */
    bool after_key; /* the next value belongs to a key */
};

/** A writer that appends to out, which stays the caller's; indent: blanks a level, 0: one line. */
void mp_json_init(struct mp_json_writer *w, struct mp_strbuf *out, int indent);
/* key NULL, here and below: inside a list or at the top */
void mp_json_object(struct mp_json_writer *w, const char *key);
void mp_json_array(struct mp_json_writer *w, const char *key);
void mp_json_end_object(struct mp_json_writer *w);
void mp_json_end_array(struct mp_json_writer *w);
void mp_json_uint(struct mp_json_writer *w, const char *key, uint64_t value);
void mp_json_int(struct mp_json_writer *w, const char *key, int64_t value);
void mp_json_double(struct mp_json_writer *w, const char *key, double value); /* not finite: null */
void mp_json_bool(struct mp_json_writer *w, const char *key, bool value);
void mp_json_string(struct mp_json_writer *w, const char *key, const char *value); /* NULL: null */
void mp_json_null(struct mp_json_writer *w, const char *key);
/** A whole value tree. */
void mp_json_value(struct mp_json_writer *w, const char *key, const struct mp_value *value);

#endif
