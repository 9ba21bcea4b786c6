/* SPDX-License-Identifier: MIT */
/*
 * What the readers of a run's keys share: the run being filled, the problems found so far, and one
 * function for each kind of value. A value that is not what it should be becomes a problem and
 * leaves its target untouched.
 */
#ifndef MP_RUN_READER_H
#define MP_RUN_READER_H

#include "spec/problems.h"
#include "spec/run.h"

#define MP_INT_MAX_VALUE    INT64_C(2147483647)
#define MP_RUN_WARNINGS_MAX 8

struct mp_run_reader {
    struct mp_arena *arena;
    const struct mp_run_source *source; /* all raw values; NULL while they come in one by one */
    struct mp_run *run;
    struct mp_problems problems;
    bool no_memory;
};

/** How messages name a key: NULL where the origin is a flag, which names it already. */
const char *mp_reader_label(const struct mp_run_reader *r, enum mp_run_key key);

/** An integer from low to high, both included. */
void mp_reader_integer(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                       int64_t low, int64_t high, int64_t *out);
void mp_reader_bool(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                    bool *out);
/** One of the key's values in the table: its index, which is that of the enum; 0 after a problem.
 * */
int mp_reader_choice(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value);
/** Bytes, at most 1 PiB: an integer, or a text such as "1GiB". */
void mp_reader_bytes(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                     uint64_t *out);
/** A name or path that cannot be empty. *out lives as long as value. */
void mp_reader_name(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                    const char **out);

/** A member of an object of arguments. */
struct mp_reader_member {
    const char *name;
    enum mp_value_kind kind; /* DOUBLE: not negative; NULL: true, false or a number of ranks */
};
/** Checks names and kinds of an object's members, at most 8 of them; what they mean is up to the
 * caller. */
void mp_reader_object(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                      const struct mp_reader_member *members, size_t n);
/** A member of an object, or what stands for it where it is missing or of another kind. */
bool mp_reader_get_bool(const struct mp_value *object, const char *name);
int64_t mp_reader_get_integer(const struct mp_value *object, const char *name, int64_t fallback);
double mp_reader_get_number(const struct mp_value *object, const char *name, double fallback);

/** The raw value of a key that is wrong beside others, NULL when it was not given; the next
 * problem, if it is the first, names its file or flag. */
const struct mp_value *mp_reader_locate(struct mp_run_reader *r, enum mp_run_key key);
/** One more warning. text lives in the arena; NULL: memory ran out. */
void mp_reader_warn(struct mp_run_reader *r, const char *text);
/** A problem where the Trainer or data parallelism is asked for beside key: value, which is
 * measured with a loop of one's own on one GPU (losses without logits, 4-bit weights, muon). */
void mp_reader_refuse_beside(struct mp_run_reader *r, const char *key, const char *value);
/** NOMEM. */
enum memplan_status mp_reader_no_memory(struct memplan_error *err);

#endif
