/* SPDX-License-Identifier: MIT */
/*
 * A model as its Hugging Face config.json says it. Families (src/arch) read their own keys from it:
 * missing keys take the default given, unknown keys are ignored, null only where allowed. Problems
 * are collected, so that one message lists all of them.
 */
#ifndef MP_MODEL_H
#define MP_MODEL_H

#include "base/arena.h"
#include "base/error.h"
#include "base/value.h"
#include "spec/problems.h"

struct mp_model {
    const char *name;   /* shipped name, path, or "model" */
    const char *origin; /* for messages */
    const char *model_type;
    const struct mp_value *config; /* the object */
};

/** Shipped name ("gpt2"), path of a config.json, or an inline object (value). NULL with *err. Only
 * shape is checked here, not families. */
const struct mp_model *mp_model_read(struct mp_arena *arena, const char *name_or_path,
                                     struct memplan_error *err);
const struct mp_model *mp_model_parse(struct mp_arena *arena, const char *name, const char *origin,
                                      const struct mp_value *value, struct memplan_error *err);

/**
 * Longest position, by the usual keys (max_position_embeddings, n_positions, ...), of the model or
 * of its text part; where the file has none, transformers' default for the family, at last 2048.
 * *table (may be NULL): positions are rows of a learned table, so that a longer sequence cannot
 * run; otherwise (rotary, relative) it can.
 */
int64_t mp_model_positions(const struct mp_model *model, bool *table);
/** Sequence length that follows from the config (vision models: patches and a class token); 0: it is free. */
int64_t mp_model_fixed_seq(const struct mp_model *model);
/**
 * The class that the file's architectures names, when it is another head than the one that is planned for the family ("ForCausalLM"
 * for most), which goes to *planned; else NULL.
 */
const char *mp_model_other_head(const struct mp_model *model, const char **planned);
/** Number of blocks by the usual keys; 0 when the file does not say. */
int64_t mp_model_layers(const struct mp_model *model);
/** First integer of the '|'-separated keys, of the model or of its text part; 0 when there is none.
 * For lists and messages. */
int64_t mp_model_integer(const struct mp_model *model, const char *keys);

/** Reader of keys that collects problems. */
struct mp_config {
    const struct mp_model *model;
    struct memplan_error
        *err; /* INPUT with all problems so far, one after another, separated by "; " */
    int n_problems;
    struct mp_problems problems;
};
void mp_config_open(struct mp_config *c, const struct mp_model *model, struct memplan_error *err);
/** Integer in [1, 2^31-1]; key absent: fallback (0: the key is required). `a|b` as key: the first
 * of the two that is present. */
int64_t mp_config_size(struct mp_config *c, const char *key, int64_t fallback);
/** Likewise, but null or absent gives fallback. */
int64_t mp_config_size_or_null(struct mp_config *c, const char *key, int64_t fallback);
double mp_config_probability(struct mp_config *c, const char *key, double fallback); /* [0, 1) */
double mp_config_number(struct mp_config *c, const char *key, double fallback);
bool mp_config_bool(struct mp_config *c, const char *key, bool fallback); /* null: fallback */
/** One of the '|'-separated choices, index returned; another text is a problem that lists them. */
int mp_config_choice(struct mp_config *c, const char *key, const char *choices, int fallback);
bool mp_config_has(const struct mp_config *c, const char *key); /* present and not null */
void mp_config_problem(struct mp_config *c, const char *key, const char *format, ...)
    MP_PRINTF(3, 4);

#endif
