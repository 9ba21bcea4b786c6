/* SPDX-License-Identifier: MIT */
/*
 * Values read from JSON or YAML: one tree for both, with the place each value came from.
 *
 * Values live in the arena they were parsed into and are immutable. Objects keep the order of the
 * file; keys are unique (a duplicate is a parse error).
 */
#ifndef MP_VALUE_H
#define MP_VALUE_H

#include "base/arena.h"
#include "base/error.h"

enum mp_value_kind { MP_NULL, MP_BOOLEAN, MP_INT, MP_DOUBLE, MP_STRING, MP_ARRAY, MP_OBJECT };

struct mp_value {
    enum mp_value_kind kind;
    int line, column; /* 1-based; 0 when unknown */
    union {
        bool boolean;
        int64_t integer; /* JSON integers beyond int64 are MP_DOUBLE */
        double number;
        struct {
            const char *text; /* NUL-terminated, no inner NUL */
            size_t length;
        } string;
        struct {
            const struct mp_value *const *items;
            size_t length;
        } array;
        struct {
            const struct mp_member *members;
            size_t length;
        } object;
    } as;
};

struct mp_member {
    const char *key;
    int line, column; /* of the key */
    const struct mp_value *value;
};

/**
 * Member of an object by exact key; NULL when absent or when value is no object (value may be
 * NULL).
 */
const struct mp_value *mp_value_get(const struct mp_value *value, const char *key);

/**
 * "null", "a boolean", "an integer", "a number", "a string", "a list", "an object": for messages.
 */
const char *mp_value_kind_text(enum mp_value_kind kind);

/** Integer or double as double; false for other kinds. */
bool mp_value_number(const struct mp_value *value, double *number);

/**
 * For readers: the first member whose key stood before, or NULL, in *repeated. NOMEM when there is
 * no memory to find out.
 */
enum memplan_status mp_members_find_repeated(const struct mp_member *members, size_t n,
                                             const struct mp_member **repeated);

#endif
