/* SPDX-License-Identifier: MIT */
/* Looking into value trees. */
#include "base/value.h"

const struct mp_value *mp_value_get(const struct mp_value *value, const char *key)
{
    if (!value || value->kind != MP_OBJECT)
        return NULL;
    for (size_t i = 0; i < value->as.object.length; i++) {
        const struct mp_member *const member = &value->as.object.members[i];
        if (strcmp(member->key, key) == 0)
            return member->value;
    }
    return NULL;
}

const char *mp_value_kind_text(enum mp_value_kind kind)
{
    switch (kind) {
    case MP_NULL: return "null";
    case MP_BOOLEAN: return "a boolean";
    case MP_INT: return "an integer";
    case MP_DOUBLE: return "a number";
    case MP_STRING: return "a string";
    case MP_ARRAY: return "a list";
    case MP_OBJECT: return "an object";
    }
    return "an unknown value";
}

bool mp_value_number(const struct mp_value *value, double *number)
{
    if (!value)
        return false;
    if (value->kind == MP_INT)
        *number = (double)value->as.integer;
    else if (value->kind == MP_DOUBLE)
        *number = value->as.number;
    else
        return false;
    return true;
}

static int compare_keys(const void *a, const void *b)
{
    const struct mp_member *const left = *(const struct mp_member *const *)a;
    const struct mp_member *const right = *(const struct mp_member *const *)b;
    const int order = strcmp(left->key, right->key);
    if (order)
        return order;
    return left < right ? -1 : left > right; /* equal keys in the order of the file */
}

/* Few members: compare all pairs, nothing to allocate. */
static const struct mp_member *first_repeated(const struct mp_member *members, size_t n)
{
    for (size_t i = 1; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(members[i].key, members[k].key) == 0)
                return &members[i];
    return NULL;
}

enum memplan_status mp_members_find_repeated(const struct mp_member *members, size_t n,
                                             const struct mp_member **repeated)
{
    *repeated = NULL;
    if (n <= 24) {
        *repeated = first_repeated(members, n);
        return MEMPLAN_STATUS_OK;
    }
    const struct mp_member **const sorted = mp_malloc(n * sizeof(struct mp_member *));
    if (!sorted)
        return MEMPLAN_STATUS_NOMEM;
    for (size_t i = 0; i < n; i++)
        sorted[i] = &members[i];
    qsort(sorted, n, sizeof(struct mp_member *), compare_keys);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(sorted[i - 1]->key, sorted[i]->key) == 0 &&
            (!*repeated || sorted[i] < *repeated))
            *repeated = sorted[i];
    }
    free(sorted);
    return MEMPLAN_STATUS_OK;
}
