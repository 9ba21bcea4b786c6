/* SPDX-License-Identifier: MIT */
/*
 * Which blocks of a model something is done to: `all`, [0, 2], {layers: [0, 2]}, {every: 2}, {first: 12}.
 */
#ifndef MP_LAYERS_H
#define MP_LAYERS_H

#include "base/json.h"
#include "spec/problems.h"

#define MP_LAYERS_MAX 4096

struct mp_layer_set {
    const int32_t *layers; /* ascending, each once; known when the model is */
    size_t n;
    int64_t every, first;  /* as given, where a pattern was; 0: not so */
};

/**
 * Read a selection; problems name `name` ("checkpoint.attention"). `known`: keys that the object may have beside layers, every
 * and first, NULL-terminated; they are left to the caller. False without memory.
 */
bool mp_layer_set_read(struct mp_problems *problems, struct mp_arena *arena, const char *name, const char *const *known,
                       const struct mp_value *value, struct mp_layer_set *set);
/** Turn a pattern into numbers, and check that the model has them. False without memory. */
bool mp_layer_set_resolve(struct mp_problems *problems, struct mp_arena *arena, const struct mp_value *at, const char *name,
                          const char *model, int64_t n_layers, struct mp_layer_set *set);
static inline bool mp_layer_set_is_given(const struct mp_layer_set *set) { return set->n > 0 || set->every > 0 || set->first > 0; }
bool mp_layer_set_has(const struct mp_layer_set *set, int layer);
/** A block that is in both; -1: none. */
int mp_layer_set_common(const struct mp_layer_set *a, const struct mp_layer_set *b);
/** "0,2,4" */
void mp_layer_set_text(const struct mp_layer_set *set, struct mp_strbuf *out);
/** "key": [0, 2, 4] */
void mp_layer_set_write_json(const struct mp_layer_set *set, struct mp_json_writer *w, const char *key);

#endif
