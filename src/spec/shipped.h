/* SPDX-License-Identifier: MIT */
/* Files that travel inside the program: models, GPUs, profiles. Generated at build time from
 * models/ and configs/. */
#ifndef MP_SHIPPED_H
#define MP_SHIPPED_H

#include "base/value.h"

struct mp_shipped {
    const char *kind; /* "models", "gpus", "frameworks" */
    const char *name; /* file name without .json */
    const char *text;
    size_t length;
};

/* Written by the build from models/ and configs/ (build/<variant>/shipped_table.c), ordered by kind
 * and name. */
extern const struct mp_shipped mp_shipped_table[];
extern const size_t mp_shipped_table_len;

/** All of them, by kind and name. */
const struct mp_shipped *mp_shipped_all(size_t *n);
/** One, name compared without case; NULL when there is none. */
const struct mp_shipped *mp_shipped_find(const char *kind, const char *name);
/** Closest name of that kind for a message, or NULL. */
const char *mp_shipped_closest(const char *kind, const char *name);

/** What mp_shipped_load() found. All texts live in the arena. */
struct mp_shipped_value {
    const char *name;   /* the shipped file's name, or the path */
    const char *origin; /* for messages: "models/gpt2.json", or the path */
    const struct mp_value *value;
};

/**
 * The JSON of a shipped name, or else of the file at that path. An unknown name is INPUT: the
 * message calls it `what` ("model"), names the closest shipped one and the command that lists them.
 */
enum memplan_status mp_shipped_load(struct mp_arena *arena, const char *kind, const char *what,
                                    const char *name_or_path, struct mp_shipped_value *out,
                                    struct memplan_error *err);

#endif
