/* SPDX-License-Identifier: MIT */
/* One value of one kind into a run, with a problem that names place, key, value and way out where
 * it is none. */
#include "spec/run_reader.h"

#include "base/units.h"

#define BYTES_MAX (UINT64_C(1) << 50)

static bool is_flag(const char *origin)
{
    return origin != NULL && strncmp(origin, "--", 2) == 0;
}

const char *mp_reader_label(const struct mp_run_reader *r, enum mp_run_key key)
{
    return is_flag(r->problems.origin) ? NULL : mp_run_key_text(key);
}

void mp_reader_integer(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                       int64_t low, int64_t high, int64_t *out)
{
    (void)mp_problems_integer(&r->problems, mp_reader_label(r, key), value, low, high, out);
}

void mp_reader_bool(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                    bool *out)
{
    (void)mp_problems_bool(&r->problems, mp_reader_label(r, key), value, out);
}

int mp_reader_choice(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value)
{
    int index = 0;
    (void)mp_problems_choice(&r->problems, mp_reader_label(r, key), value,
                             mp_run_key_info(key)->values, &index);
    return index;
}

void mp_reader_bytes(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                     uint64_t *out)
{
    if (value->kind != MP_STRING) {
        int64_t bytes = 0;
        if (mp_problems_integer(&r->problems, mp_reader_label(r, key), value, 0, (int64_t)BYTES_MAX,
                                &bytes))
            *out = (uint64_t)bytes;
        return;
    }
    uint64_t bytes = 0;
    struct memplan_error own = {0};
    if (mp_bytes_parse(value->as.string.text, &bytes, &own) != MEMPLAN_STATUS_OK)
        mp_problems_add(&r->problems, value, mp_reader_label(r, key), "%s", own.text);
    else if (bytes > BYTES_MAX)
        mp_problems_add(&r->problems, value, mp_reader_label(r, key),
                        "\"%.40s\" is more than 1 PiB", value->as.string.text);
    else
        *out = bytes;
}

void mp_reader_name(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                    const char **out)
{
    if (mp_problems_string(&r->problems, mp_reader_label(r, key), value, out) && (*out)[0] == '\0')
        mp_problems_add(&r->problems, value, mp_reader_label(r, key),
                        "empty; give a name or a path");
}

/* ---- objects ---- */

/* What a member should have been, as a message says it. */
static const char *member_text(enum mp_value_kind kind)
{
    switch (kind) {
    case MP_NULL: return "true, false or a number of ranks";
    case MP_INT: return "an integer from 1 to 2147483647";
    case MP_DOUBLE: return "a number from 0 up";
    default: return mp_value_kind_text(kind);
    }
}

static bool member_is_ok(enum mp_value_kind kind, const struct mp_value *value)
{
    double number = 0.0;
    if (kind == MP_DOUBLE)
        return mp_value_number(value, &number) && number >= 0.0;
    if (kind == MP_NULL && value->kind == MP_BOOLEAN)
        return true;
    if (kind == MP_INT || kind == MP_NULL)
        return value->kind == MP_INT && value->as.integer >= 1 &&
               value->as.integer <= MP_INT_MAX_VALUE;
    if (kind == MP_ARRAY && value->kind == MP_STRING)
        return true; /* one target */
    return value->kind == kind;
}

void mp_reader_object(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value,
                      const struct mp_reader_member *members, size_t n)
{
    char shown[MP_VALUE_SHOW_MAX];
    const char *names[8];
    if (value->kind != MP_OBJECT) {
        mp_problems_add(&r->problems, value, mp_reader_label(r, key), "%s is not an object",
                        mp_value_show(value, shown));
        return;
    }
    for (size_t i = 0; i < n; i++)
        names[i] = members[i].name;
    for (size_t i = 0; i < value->as.object.length; i++) {
        const struct mp_member *const member = &value->as.object.members[i];
        size_t k = 0;
        while (k < n && strcmp(names[k], member->key) != 0)
            k++;
        char name[64];
        (void)snprintf(name, sizeof name, "%s.%.40s", mp_run_key_text(key), member->key);
        if (k == n)
            mp_problems_add_unknown(&r->problems, member, mp_run_key_text(key), names, n);
        else if (!member_is_ok(members[k].kind, member->value))
            mp_problems_add(&r->problems, member->value, name, "%s is not %s",
                            mp_value_show(member->value, shown), member_text(members[k].kind));
    }
}

bool mp_reader_get_bool(const struct mp_value *object, const char *name)
{
    const struct mp_value *const value = mp_value_get(object, name);
    return value != NULL && value->kind == MP_BOOLEAN && value->as.boolean;
}

int64_t mp_reader_get_integer(const struct mp_value *object, const char *name, int64_t fallback)
{
    const struct mp_value *const value = mp_value_get(object, name);
    return value != NULL && value->kind == MP_INT ? value->as.integer : fallback;
}

double mp_reader_get_number(const struct mp_value *object, const char *name, double fallback)
{
    const struct mp_value *const value = mp_value_get(object, name);
    double number = fallback;
    return value != NULL && mp_value_number(value, &number) ? number : fallback;
}

/* ---- what several keys say together ---- */

const struct mp_value *mp_reader_locate(struct mp_run_reader *r, enum mp_run_key key)
{
    const struct mp_value *const value = r->source->values[key];
    if (r->problems.n == 0)
        r->problems.origin = value != NULL ? r->source->origins[key] : NULL;
    return value;
}

void mp_reader_warn(struct mp_run_reader *r, const char *const text)
{
    const char **const warnings = (const char **)(uintptr_t)r->run->warnings;
    if (text == NULL || warnings == NULL)
        r->no_memory = true;
    else if (r->run->n_warnings < MP_RUN_WARNINGS_MAX)
        warnings[r->run->n_warnings++] = text;
}

/* Losses without logits, 4-bit weights and muon are measured with a loop of one's own on one GPU.
 * */
void mp_reader_refuse_beside(struct mp_run_reader *r, const char *key, const char *value)
{
    const struct mp_run *const run = r->run;
    if (run->trainer != NULL)
        mp_problems_add(&r->problems, NULL, key,
                        "\"%s\" is not supported with framework hf-trainer", value);
    else if (run->parallel != MP_PARALLEL_NONE)
        mp_problems_add(&r->problems, NULL, key, "\"%s\" is not supported with data_parallel: %s",
                        value, mp_parallel_text(run->parallel));
}

enum memplan_status mp_reader_no_memory(struct memplan_error *err)
{
    return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
}
