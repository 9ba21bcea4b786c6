/* SPDX-License-Identifier: MIT */
/* Problems of one file, collected, so that one message lists all of them: place, key, value and way
 * out. */
#ifndef MP_PROBLEMS_H
#define MP_PROBLEMS_H

#include "base/error.h"
#include "base/strbuf.h"
#include "base/value.h"

struct mp_problems {
    const char *origin;        /* the file, "--flag", "line 3 of runs.jsonl" */
    struct memplan_error *err; /* INPUT with the problems so far, separated by "; "; may be NULL */
    int n;
};

/** No problems yet. origin and err must outlive it; *err is filled in as they come. */
void mp_problems_init(struct mp_problems *problems, const char *origin, struct memplan_error *err);

/** Add "KEY: text", with the line and column of at where they are known. key and at may be NULL. */
void mp_problems_add(struct mp_problems *problems, const struct mp_value *at, const char *key,
                     const char *format, ...) MP_PRINTF(4, 5);

/** OK without problems, else INPUT. */
enum memplan_status mp_problems_status(const struct mp_problems *problems);

/** Unknown member of an object: names the closest of the known keys. */
void mp_problems_add_unknown(struct mp_problems *problems, const struct mp_member *member,
                             const char *prefix, const char *const *known, size_t n_known);

#define MP_VALUE_SHOW_MAX 64
/** The value as a message shows it, at most MP_VALUE_SHOW_MAX - 1 bytes: -3, "amp", a list. Returns
 * buffer. */
const char *mp_value_show(const struct mp_value *value, char buffer[MP_VALUE_SHOW_MAX]);

/** An integer in [low, high], or a problem that says what was expected; false then and *out
 * untouched. */
bool mp_problems_integer(struct mp_problems *problems, const char *key,
                         const struct mp_value *value, int64_t low, int64_t high, int64_t *out);
bool mp_problems_bool(struct mp_problems *problems, const char *key, const struct mp_value *value,
                      bool *out);
/** One of the '|'-separated choices: its index. */
bool mp_problems_choice(struct mp_problems *problems, const char *key, const struct mp_value *value,
                        const char *choices, int *out);
/** Index of text[0..length) in the '|'-separated choices, -1 when it is none of them. */
int mp_choice_index(const char *choices, const char *text, size_t length);
/** "a|b|c" as "a, b or c"; and: the word before the last. */
void mp_choice_list(struct mp_strbuf *out, const char *choices, const char *and_word);
/** A string, NUL-terminated. */
bool mp_problems_string(struct mp_problems *problems, const char *key, const struct mp_value *value,
                        const char **out);

/**
 * The text of a file that a user named. Missing, unreadable, a directory or too large is bad input
 * here (INPUT, exit status 2), not a failure of the world.
 */
enum memplan_status mp_spec_read_file(const char *path, struct mp_strbuf *out,
                                      struct memplan_error *err);

#endif
