/* SPDX-License-Identifier: MIT */
/*
 * Model families: what a family is, and the pieces that families share.
 *
 * A family is one file, written the way its transformers module is written: configure() reads the keys of config.json, build() is
 * __init__ (parameters in constructor order, with the temporaries of initialisation), forward() is forward(). It is entered in
 * registry.c. docs/architecture.md shows how to add one.
 */
#ifndef MP_ARCH_H
#define MP_ARCH_H

#include "shadow/checkpoint.h"
#include "spec/run.h"

/* ---- a model that was built ---- */

struct mp_family;

struct mp_net {
    const struct mp_family *family;
    const struct mp_run *run;
    const void *config;           /* the family's own sizes */
    void *module;                 /* the family's own parameters */
    enum mp_dtype dtype;          /* of the parameters */
    struct mp_tensor **parameters; /* in the order of model.parameters(); owned */
    int n_parameters, cap_parameters;
    bool *checkpointed;           /* per block; NULL: run->checkpoint decides for all */
};

/* One micro-batch. */
struct mp_inputs {
    struct mp_tensor *input_ids, *labels, *attention_mask; /* mask NULL when none is given */
    int64_t batch, seq;
};

/* A key-value cache: DynamicCache, one pair per block. */
struct mp_kv_cache {
    int n;
    struct mp_tensor **keys, **values; /* owned */
    struct mp_tensor **lengths;        /* a layer with a sliding window counts what it has seen; owned */
};

/* What the model returns; fields die in this order. All owned; all zero is empty. */
struct mp_outputs {
    struct mp_tensor *loss, *logits, *hidden;
    struct mp_kv_cache *cache;
};
void mp_outputs_release(struct mp_runtime *rt, struct mp_outputs *out);

struct mp_family {
    const char *model_type;
    const char *architecture; /* transformers' class */
    /** Sizes from config.json, in the arena; problems go to c. Never NULL unless memory is exhausted. */
    const void *(*configure)(struct mp_arena *arena, struct mp_config *c);
    int64_t (*n_blocks)(const void *config);
    /** Longest sequence; *hard: the position table ends there (else a rotary model, where longer is only unusual). */
    int64_t (*positions)(const void *config, bool *hard);
    void (*build)(struct mp_runtime *rt, struct mp_net *net);
    /** Fills out with floating tensors. */
    void (*forward)(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in, struct mp_outputs *out);
};

/** All families; NULL-terminated. */
const struct mp_family *const *mp_families(void);
/** The family of a model_type; NULL with *err (UNSUPPORTED, lists the supported ones). */
const struct mp_family *mp_family_find(const struct mp_model *model, struct memplan_error *err);

/* ---- building ---- */

/** A new parameter of the model. Owned by the net. */
struct mp_tensor *mp_parameter(struct mp_runtime *rt, struct mp_net *net, const char *name, struct mp_shape shape);
/** A buffer: lives as long as the model, not trained. Owned by nobody: it is never freed. */
struct mp_tensor *mp_buffer(struct mp_runtime *rt, struct mp_shape shape, enum mp_dtype dtype);
/** The last parameter moves to place `at` of the list: registered earlier than it was allocated. */
void mp_parameter_move_last(struct mp_net *net, int at);

struct mp_linear_layer {
    struct mp_tensor *weight, *bias; /* bias NULL: none */
};
struct mp_norm_layer {
    struct mp_tensor *weight, *bias;
};
struct mp_linear_layer mp_linear_new(struct mp_runtime *rt, struct mp_net *net, const char *name, int64_t out, int64_t in, bool bias);
struct mp_norm_layer mp_layer_norm_new(struct mp_runtime *rt, struct mp_net *net, const char *name, int64_t width);
struct mp_tensor *mp_apply_linear(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_linear_layer *layer);
struct mp_tensor *mp_apply_layer_norm(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_norm_layer *layer);
/** The output head: tied to `embedding` (its own weight is made and dropped) or a parameter of its own. Borrowed. */
struct mp_tensor *mp_head_new(struct mp_runtime *rt, struct mp_net *net, struct mp_tensor *embedding, bool tied);

/* ---- running ---- */

enum mp_checkpointing mp_checkpointing_of(const struct mp_net *net, int block);
/** A cache when run.use_cache is set and checkpointing does not forbid it, else NULL. */
struct mp_kv_cache *mp_kv_cache_new(struct mp_runtime *rt, const struct mp_net *net, int n_blocks);
/** Keys and values go through the cache of that block: the frame's variables *k and *v become its tensors. */
void mp_kv_cache_update(struct mp_runtime *rt, struct mp_kv_cache *cache, int block, bool sliding, struct mp_frame *f, struct mp_tensor **k,
                        struct mp_tensor **v);
void mp_kv_cache_release(struct mp_runtime *rt, struct mp_kv_cache *cache);

enum mp_activation { MP_GELU, MP_GELU_NEW, MP_SILU, MP_RELU };
/** hidden_act and its relatives. */
enum mp_activation mp_config_activation(struct mp_config *c, const char *key, enum mp_activation fallback);
struct mp_tensor *mp_activate(struct mp_runtime *rt, enum mp_activation activation, struct mp_tensor *x);

/** Causal language-model loss (transformers' ForCausalLMLoss): logits in float32, labels padded and shifted. */
struct mp_tensor *mp_causal_loss(struct mp_runtime *rt, struct mp_tensor *logits, struct mp_tensor *labels);
/** hidden_states[:, 0:] through the head: logits of the whole sequence. */
struct mp_tensor *mp_causal_head(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head);
/** The end of most causal models: head, loss, outputs. */
void mp_causal_outputs(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head, struct mp_tensor *labels, struct mp_outputs *out);

/** position_ids = torch.arange(seq) + 0, as (1, seq). */
struct mp_tensor *mp_position_ids(struct mp_runtime *rt, int64_t seq);

/* ---- masks (transformers.masking_utils) ---- */

/** What create_causal_mask returns; sliding 0: none. NULL: the kernel masks by itself. */
struct mp_tensor *mp_causal_mask(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in, enum mp_dtype dtype, int64_t sliding);
/** What create_bidirectional_mask returns. */
struct mp_tensor *mp_bidirectional_mask(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in, enum mp_dtype dtype);

/* ---- attention (transformers' attention functions) ---- */

/* How a family's eager attention differs. */
struct mp_eager_style {
    bool float_softmax;    /* softmax(dtype=float32).to(query.dtype) */
    bool to_value_dtype;   /* softmax().to(value.dtype): gpt2 */
    bool keep_transposed;  /* the caller lays the output out */
    bool softcap;          /* gemma2: tanh before the mask */
};
struct mp_attention_args {
    const struct mp_net *net;
    const struct mp_eager_style *style;
    struct mp_tensor *mask;
    double dropout;
    int64_t groups;        /* query heads per key head */
    bool causal;
};
/** q, k, v: [batch, heads, seq, dim]. Output floats, [batch, seq, heads, dim]; *weights gets the attention weights, floating, or NULL. */
struct mp_tensor *mp_attend(struct mp_runtime *rt, const struct mp_attention_args *a, struct mp_tensor *q, struct mp_tensor *k,
                            struct mp_tensor *v, struct mp_tensor **weights);

/* ---- norms and rotary embeddings ---- */

/** LlamaRMSNorm */
struct mp_tensor *mp_rms_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight);
/** Buffers of a rotary embedding over dim: inverse frequencies, their original, and the temporaries of initialisation. */
struct mp_tensor *mp_rotary_new(struct mp_runtime *rt, const struct mp_net *net, int64_t dim);
/** cos and sin tables in dtype, floating. */
void mp_rotary_tables(struct mp_runtime *rt, struct mp_tensor *inverse_frequencies, struct mp_tensor *position_ids, enum mp_dtype dtype,
                      struct mp_tensor **cosine, struct mp_tensor **sine);
/** apply_rotary_pos_emb for q and k; results float. */
void mp_rotary_apply(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k, struct mp_tensor *cosine, struct mp_tensor *sine,
                     struct mp_tensor **q_out, struct mp_tensor **k_out);

#endif
