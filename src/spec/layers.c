/* SPDX-License-Identifier: MIT */
/* Selections of blocks: numbers as they are, patterns once the model is known. */
#include "spec/layers.h"

#include <inttypes.h>
#include <stdlib.h>

static int compare(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Ascending, each once. */
static bool read_numbers(struct mp_problems *problems, struct mp_arena *arena, const char *name, const struct mp_value *list,
                         struct mp_layer_set *set)
{
    char shown[MP_VALUE_SHOW_MAX];
    if (list->kind != MP_ARRAY || list->as.array.length > MP_LAYERS_MAX) {
        mp_problems_add(problems, list, name, "%s is not a list of at most %d integers", mp_value_show(list, shown), MP_LAYERS_MAX);
        return true;
    }
    const size_t n = list->as.array.length;
    int32_t *const numbers = mp_arena_calloc(arena, n + 1, sizeof *numbers);
    if (!numbers)
        return false;
    for (size_t i = 0; i < n; i++) {
        int64_t number = 0;
        if (!mp_problems_integer(problems, name, list->as.array.items[i], 0, INT32_MAX, &number))
            return true;
        numbers[i] = (int32_t)number;
    }
    if (n > 1)
        qsort(numbers, n, sizeof *numbers, compare);
    size_t unique = 0;
    for (size_t i = 0; i < n; i++)
        if (unique == 0 || numbers[unique - 1] != numbers[i])
            numbers[unique++] = numbers[i];
    *set = (struct mp_layer_set){.layers = numbers, .n = unique};
    return true;
}

static void check_keys(struct mp_problems *problems, const char *name, const char *const *more, const struct mp_value *value)
{
    const char *known[8] = {"layers", "every", "first"};
    size_t n = 3;
    while (*more && n < MP_ARRAY_LEN(known))
        known[n++] = *more++;
    for (size_t i = 0; i < value->as.object.length; i++) {
        size_t k = 0;
        while (k < n && strcmp(value->as.object.members[i].key, known[k]) != 0)
            k++;
        if (k == n)
            mp_problems_add_unknown(problems, &value->as.object.members[i], name, known, n);
    }
}

/* "checkpoint.every" */
static const char *member(char *text, size_t size, const char *name, const char *key)
{
    (void)snprintf(text, size, "%s.%s", name, key);
    return text;
}

static bool read_object(struct mp_problems *problems, struct mp_arena *arena, const char *name, const char *const *known,
                        const struct mp_value *value, struct mp_layer_set *set)
{
    char text[64];
    const struct mp_value *const layers = mp_value_get(value, "layers"), *const every = mp_value_get(value, "every");
    const struct mp_value *const first = mp_value_get(value, "first");
    check_keys(problems, name, known, value);
    if ((layers != NULL) + (every != NULL) + (first != NULL) > 1)
        mp_problems_add(problems, value, name, "give one of layers, every and first");
    if (every)
        (void)mp_problems_integer(problems, member(text, sizeof text, name, "every"), every, 1, MP_LAYERS_MAX, &set->every);
    else if (first)
        (void)mp_problems_integer(problems, member(text, sizeof text, name, "first"), first, 1, MP_LAYERS_MAX, &set->first);
    else if (layers)
        return read_numbers(problems, arena, member(text, sizeof text, name, "layers"), layers, set);
    else if (!*known || value->as.object.length == 0)
        mp_problems_add(problems, value, member(text, sizeof text, name, "layers"), "missing; give a list of block numbers");
    return true;
}

bool mp_layer_set_read(struct mp_problems *problems, struct mp_arena *arena, const char *name, const char *const *known,
                       const struct mp_value *value, struct mp_layer_set *set)
{
    char shown[MP_VALUE_SHOW_MAX];
    if (value->kind == MP_OBJECT)
        return read_object(problems, arena, name, known, value, set);
    if (value->kind == MP_ARRAY)
        return read_numbers(problems, arena, name, value, set);
    if (value->kind == MP_STRING && strcmp(value->as.string.text, "all") == 0)
        set->every = 1;
    else
        mp_problems_add(problems, value, name, "%s is no choice of blocks; give all, a list of numbers, {every: N} or {first: N}",
                        mp_value_show(value, shown));
    return true;
}

bool mp_layer_set_resolve(struct mp_problems *problems, struct mp_arena *arena, const struct mp_value *at, const char *name,
                          const char *model, int64_t n_layers, struct mp_layer_set *set)
{
    char text[64];
    const int64_t end = set->first > 0 ? set->first : n_layers, step = set->every > 0 ? set->every : 1;
    if (set->every <= 0 && set->first <= 0) {
        if (set->n > 0 && n_layers > 0 && set->layers[set->n - 1] >= n_layers)
            mp_problems_add(problems, at, member(text, sizeof text, name, "layers"),
                            "%" PRId32 " is not a block of model '%s'; its blocks are 0 to %" PRId64, set->layers[set->n - 1], model,
                            n_layers - 1);
        return true;
    }
    if (n_layers <= 0 || n_layers > MP_LAYERS_MAX || end > n_layers) {
        mp_problems_add(problems, NULL, member(text, sizeof text, name, set->first > 0 ? "first" : "every"),
                        "model '%s' has %" PRId64 " blocks; name single ones with layers", model, n_layers);
        return true;
    }
    int32_t *const numbers = mp_arena_calloc(arena, (size_t)n_layers, sizeof *numbers);
    if (!numbers)
        return false;
    set->n = 0;
    for (int64_t i = 0; i < end; i += step)
        numbers[set->n++] = (int32_t)i;
    set->layers = numbers;
    return true;
}

bool mp_layer_set_has(const struct mp_layer_set *set, int layer)
{
    for (size_t i = 0; i < set->n; i++)
        if (set->layers[i] == layer)
            return true;
    return false;
}

int mp_layer_set_common(const struct mp_layer_set *a, const struct mp_layer_set *b)
{
    for (size_t i = 0; i < a->n; i++)
        if (mp_layer_set_has(b, a->layers[i]))
            return a->layers[i];
    return -1;
}

void mp_layer_set_text(const struct mp_layer_set *set, struct mp_strbuf *out)
{
    for (size_t i = 0; i < set->n; i++)
        mp_strbuf_addf(out, "%s%" PRId32, i == 0 ? "" : ",", set->layers[i]);
}

void mp_layer_set_write_json(const struct mp_layer_set *set, struct mp_json_writer *w, const char *key)
{
    mp_json_array(w, key);
    for (size_t i = 0; i < set->n; i++)
        mp_json_int(w, NULL, set->layers[i]);
    mp_json_end_array(w);
}
