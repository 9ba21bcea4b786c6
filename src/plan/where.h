/* SPDX-License-Identifier: MIT */
/*
 * Conditions of a grid: `batch * seq <= 65536 and gpu in [T4-16G, L4-24G]`.
 *
 *     or, and, not        = (or ==) != < <= > >= in [a, b]        + - * / %        ( )        8GiB 'text' true
 *
 * A word is a key of the grid, else a text; texts and keys may hold - and . inside, so blanks stand around a minus. A
 * comparison of things of different kinds is false (!= is true).
 */
#ifndef MP_WHERE_H
#define MP_WHERE_H

#include "base/arena.h"
#include "base/error.h"
#include "base/value.h"

struct mp_where; /* in the arena */

/* What a word may be: the index of a key, or -1. A word that is neither is a problem unless known_text says yes. */
struct mp_where_names {
    int (*key)(void *context, const char *word);
    bool (*known_text)(void *context, const char *word);
    void *context;
};

/** NULL with *err: INPUT, the text says what and where; at: prefix of messages ("grid.yaml:3:8: where"). */
const struct mp_where *mp_where_parse(struct mp_arena *arena, const char *text, const char *at, const struct mp_where_names *names,
                                      struct memplan_error *err);
/** values[index of key]; NULL: not given. */
bool mp_where_holds(const struct mp_where *where, const struct mp_value *const *values);

#endif
