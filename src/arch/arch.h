/* SPDX-License-Identifier: MIT */
/*
 * Model families: what a family is, and the pieces that families share.
 *
 * A family is one file, written the way its transformers module is written: configure() reads the
 * keys of config.json, build() is __init__ (parameters in constructor order, with the temporaries of
 * initialisation), forward() is forward(). It is entered in registry.c. docs/architecture.md shows
 * how to add one.
 */
#ifndef MP_ARCH_H
#define MP_ARCH_H

#include "shadow/checkpoint.h"
#include "shadow/module.h"
#include "spec/run.h"

/* ---- a model that was built ---- */

struct mp_family;
struct mp_adapter;   /* arch/lora.h */
struct mp_quantized; /* arch/nf4.h */

struct mp_net {
    const struct mp_family *family;
    const struct mp_run *run;
    const void *config;            /* the family's own sizes */
    void *module;                  /* the family's own parameters */
    enum mp_dtype dtype;           /* of the parameters */
    enum mp_attention attention;   /* the run's, or eager where the family has nothing else */
    struct mp_tensor **parameters; /* in the order of model.parameters(); owned */
    int n_parameters, cap_parameters;
    struct mp_adapter *adapters, *last_adapter; /* LoRA: one per target, in module order */
    struct mp_tensor *quantization_map;         /* nf4: made with the first layer */
};

/* One micro-batch. */
struct mp_inputs {
    struct mp_tensor *input_ids, *labels, *attention_mask; /* mask NULL when none is given */
    struct mp_tensor *pixel_values;                        /* vision models, instead of input_ids */
    int64_t batch, seq;
    enum mp_loss loss; /* other ways than all logits at once */
    bool counted; /* the loss is a sum, divided by the number of tokens on the device (the Trainer does that) */
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
    /** Sizes from config.json, in the arena; problems go to c. NULL only without memory. */
    const void *(*configure)(struct mp_arena *arena, struct mp_config *c);
    int64_t (*n_blocks)(const void *config);
    /**
     * Longest sequence; *hard: the position table ends there (else a rotary model, where longer is
     * only unusual).
     */
    int64_t (*positions)(const void *config, bool *hard);
    void (*build)(struct mp_runtime *rt, struct mp_net *net);
    /** Fills out with floating tensors. */
    void (*forward)(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in,
                    struct mp_outputs *out);
    /** Makes a micro-batch, owned; NULL: token ids that are the labels too. */
    void (*load)(struct mp_runtime *rt, const struct mp_net *net, struct mp_inputs *in);
    bool eager_only;      /* has no sdpa attention */
    bool no_mask;         /* runs with an attention mask are not simulated */
    bool no_cache;        /* runs with a key-value cache are not simulated */
    bool no_trainer;      /* runs of the Trainer are not simulated */
    bool own_loss;        /* not the causal language-model loss of logits as they are: no chunked loss */
    bool fused_loss;      /* Liger has a fused loss for it */
    bool has_experts;
    bool no_nf4;          /* 4-bit weights are not simulated */
    bool has_part[MP_PARTS]; /* which parts of a block can be recomputed alone */
};

/** All families; NULL-terminated. */
const struct mp_family *const *mp_families(void);
/** The family of a model_type; NULL with *err (UNSUPPORTED, lists the supported ones). */
const struct mp_family *mp_family_find(const struct mp_model *model, struct memplan_error *err);

/** Find the run's family and read its sizes: INPUT with every problem of the config. */
enum memplan_status mp_net_open(struct mp_net *net, const struct mp_run *run,
                                struct mp_arena *arena, struct memplan_error *err);
/** The model's constructor, then the adapters of a LoRA run. */
void mp_net_build(struct mp_runtime *rt, struct mp_net *net);
/** The tensors of one micro-batch; a mask is the caller's affair. */
void mp_net_load(struct mp_runtime *rt, const struct mp_net *net, int64_t batch, int64_t seq,
                 struct mp_inputs *in);

/* ---- building ---- */

/** A new parameter of the model. Owned by the net. */
struct mp_tensor *mp_parameter(struct mp_runtime *rt, struct mp_net *net, const char *name,
                               struct mp_shape shape);
/** Put an owned parameter at place `at` of the list. */
void mp_parameter_insert(struct mp_runtime *rt, struct mp_net *net, int at, struct mp_tensor *t);
/** A buffer: lives as long as the model, not trained. Owned by nobody: it is never freed. */
struct mp_tensor *mp_buffer(struct mp_runtime *rt, struct mp_shape shape, enum mp_dtype dtype);
/** The last parameter moves to place `at` of the list: registered earlier than it was allocated. */
void mp_parameter_move_last(struct mp_net *net, int at);

struct mp_linear_layer {
    struct mp_tensor *weight, *bias; /* bias NULL: none */
    struct mp_adapter *adapter;      /* LoRA on top; NULL: none */
    struct mp_quantized *quantized;  /* 4-bit: weight is packed (arch/nf4.h); NULL: as it is */
    int64_t out, in;
    bool is_conv1d;                  /* transformers' Conv1D: weight is [in, out] */
};
struct mp_norm_layer {
    struct mp_tensor *weight, *bias; /* bias NULL: an RMS norm */
    bool offset;                     /* gemma: an RMS norm that multiplies by 1 + weight */
};
/** The parameter just made is filled with a constant (ones of a norm, the zero row of a padding index). */
void mp_filled(struct mp_runtime *rt, const struct mp_net *net);
/** name: as in model.named_modules(), from the block on, such as "self_attn.q_proj". */
struct mp_linear_layer mp_linear_new(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                     int64_t out, int64_t in, bool bias);
struct mp_linear_layer mp_conv1d_new(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                     int64_t in, int64_t out);
struct mp_norm_layer mp_layer_norm_new(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                       int64_t width);
struct mp_norm_layer mp_rms_norm_new(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                     int64_t width);
/**
 * The output head: tied to `embedding` (its own weight is made and dropped) or a parameter of its
 * own. Borrowed.
 */
struct mp_tensor *mp_head_new(struct mp_runtime *rt, struct mp_net *net, struct mp_tensor *embedding,
                              bool tied);

struct mp_tensor *mp_apply_linear(struct mp_runtime *rt, struct mp_tensor *x,
                                  const struct mp_linear_layer *layer);
struct mp_tensor *mp_apply_norm(struct mp_runtime *rt, struct mp_tensor *x,
                                const struct mp_norm_layer *layer);
/** The model's input embedding. */
struct mp_tensor *mp_embed_tokens(struct mp_runtime *rt, const struct mp_net *net,
                                  struct mp_tensor *ids, struct mp_tensor *table);

/* ---- running ---- */

/** Call a block as the run wants it: checkpointed, with its saved tensors on the host, or as it is. */
void mp_block_call(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out);
/** A part of the block at work, checkpointed where the run says so. *weights: floating. */
struct mp_tensor *mp_attention_part(struct mp_runtime *rt, const struct mp_layer *call, union mp_part_forward part, struct mp_tensor *hidden,
                                    struct mp_tensor **weights);
struct mp_tensor *mp_masked_attention_part(struct mp_runtime *rt, const struct mp_layer *call, union mp_part_forward part,
                                           struct mp_tensor *hidden, struct mp_tensor *mask, struct mp_tensor **weights);
struct mp_tensor *mp_mlp_part(struct mp_runtime *rt, const struct mp_layer *call, union mp_part_forward part, struct mp_tensor *hidden);
/** A cache when run.use_cache is set and checkpointing does not forbid it, else NULL. */
struct mp_kv_cache *mp_kv_cache_new(struct mp_runtime *rt, const struct mp_net *net, int n_blocks);
/** Keys and values go through the cache of that block: the frame's variables become its tensors. */
void mp_kv_cache_update(struct mp_runtime *rt, struct mp_kv_cache *cache, int block, bool sliding,
                        struct mp_frame *f, struct mp_tensor **k, struct mp_tensor **v);
void mp_kv_cache_release(struct mp_runtime *rt, struct mp_kv_cache *cache);

enum mp_activation { MP_GELU, MP_GELU_NEW, MP_SILU, MP_RELU };
/** hidden_act and its relatives. */
enum mp_activation mp_config_activation(struct mp_config *c, const char *key,
                                        enum mp_activation fallback);
struct mp_tensor *mp_activate(struct mp_runtime *rt, enum mp_activation activation,
                              struct mp_tensor *x);
/** nn.Dropout, where dropout is a module and not a function. */
struct mp_tensor *mp_apply_dropout(struct mp_runtime *rt, struct mp_tensor *x, double p);
/* Dropout as one or the other; all zero: none. */
struct mp_dropout_layer {
    double p;
    bool is_module;
};
struct mp_tensor *mp_apply_dropout_layer(struct mp_runtime *rt, struct mp_tensor *x,
                                         struct mp_dropout_layer dropout);

/* Two projections with an activation between, then dropout: most plain feed-forward modules. */
struct mp_mlp {
    struct mp_linear_layer in, out;
};
struct mp_tensor *mp_apply_mlp(struct mp_runtime *rt, struct mp_tensor *hidden,
                               const struct mp_mlp *mlp, enum mp_activation activation,
                               struct mp_dropout_layer dropout);

/* down_proj(act_fn(gate_proj(x)) * up_proj(x)) */
struct mp_gated_mlp {
    struct mp_linear_layer gate, up, down;
};
struct mp_gated_mlp mp_gated_mlp_new(struct mp_runtime *rt, struct mp_net *net, int64_t hidden,
                                     int64_t inner, bool bias);
struct mp_tensor *mp_apply_gated_mlp(struct mp_runtime *rt, struct mp_tensor *x,
                                     const struct mp_gated_mlp *mlp, enum mp_activation activation);

/** Causal language-model loss (transformers' ForCausalLMLoss): float logits, shifted labels. */
struct mp_tensor *mp_causal_loss(struct mp_runtime *rt, struct mp_tensor *logits,
                                 const struct mp_inputs *in);
/** hidden_states[:, 0:] through the head: logits of the whole sequence. */
struct mp_tensor *mp_causal_head(struct mp_runtime *rt, struct mp_tensor *hidden,
                                 struct mp_tensor *head);
/** The end of most causal models: head, loss, outputs. */
void mp_causal_outputs(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head,
                       const struct mp_inputs *in, struct mp_outputs *out);

/** position_ids = torch.arange(seq) + 0, as (1, seq). */
struct mp_tensor *mp_position_ids(struct mp_runtime *rt, int64_t seq);

/* ---- masks (transformers.masking_utils) ---- */

/** What create_causal_mask returns; sliding 0: none. NULL: the kernel masks by itself. */
struct mp_tensor *mp_causal_mask(struct mp_runtime *rt, const struct mp_net *net,
                                 const struct mp_inputs *in, enum mp_dtype dtype, int64_t sliding);
/** What create_bidirectional_mask returns. */
struct mp_tensor *mp_bidirectional_mask(struct mp_runtime *rt, const struct mp_net *net,
                                        const struct mp_inputs *in, enum mp_dtype dtype);
/** The additive causal mask of eager attention alone, (batch, 1, seq, seq). */
struct mp_tensor *mp_eager_causal_mask(struct mp_runtime *rt, int64_t batch, int64_t seq,
                                       enum mp_dtype dtype);

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
    struct mp_tensor *bias; /* t5: position bias; NULL: none */
};
/**
 * q, k, v: [batch, heads, seq, dim]. Output floats, [batch, seq, heads, dim]; *weights gets the
 * attention weights, floating, or NULL.
 */
struct mp_tensor *mp_attend(struct mp_runtime *rt, const struct mp_attention_args *a,
                            struct mp_tensor *q, struct mp_tensor *k, struct mp_tensor *v,
                            struct mp_tensor **weights);
/** layer(hidden).view(batch, seq, -1, head_dim).transpose(1, 2) */
struct mp_tensor *mp_project_heads(struct mp_runtime *rt, struct mp_tensor *hidden,
                                   const struct mp_linear_layer *layer, int64_t head_dim);
struct mp_tensor *mp_split_heads(struct mp_runtime *rt, struct mp_tensor *x, int64_t head_dim);
/** output.reshape(batch, seq, -1).contiguous() */
struct mp_tensor *mp_merge_heads(struct mp_runtime *rt, struct mp_tensor *output);

/* norm, attention, dropout, add; norm, feed-forward, dropout, add */
struct mp_pre_norm_block {
    const struct mp_norm_layer *first, *second;
    struct mp_tensor *(*attention)(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor **weights);
    struct mp_tensor *(*mlp)(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden);
    struct mp_dropout_layer dropout;
    bool replaces; /* hidden = dropout(hidden) first: what went in dies before the sum exists */
};
struct mp_tensor *mp_apply_pre_norm_block(struct mp_runtime *rt, const struct mp_layer *call,
                                          const struct mp_pre_norm_block *b, struct mp_tensor *hidden);

/* norm, attention, add; norm, feed-forward, add: what attention returned lives to the block's end. */
struct mp_gpt_block {
    const struct mp_norm_layer *first, *second;
    struct mp_tensor *(*mlp)(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden);
    struct mp_tensor *(*attention)(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor *mask,
                                   struct mp_tensor **weights);
};
/** *weights: floating, for a block that returns them too. */
struct mp_tensor *mp_apply_gpt_block(struct mp_runtime *rt, const struct mp_layer *call,
                                     const struct mp_gpt_block *b, struct mp_tensor *hidden,
                                     struct mp_tensor *mask, struct mp_tensor **weights);

/* ---- norms and rotary embeddings ---- */

/** GemmaRMSNorm: float32 throughout. */
struct mp_tensor *mp_gemma_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight);
/** LlamaRMSNorm */
struct mp_tensor *mp_rms_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight);
/** cos and sin tables in dtype, floating. */
void mp_rotary_tables(struct mp_runtime *rt, struct mp_tensor *inverse_frequencies,
                      struct mp_tensor *position_ids, enum mp_dtype dtype,
                      struct mp_tensor **cosine, struct mp_tensor **sine);
/** apply_rotary_pos_emb for q and k; results float. */
void mp_rotary_apply(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k,
                     struct mp_tensor *cosine, struct mp_tensor *sine, struct mp_tensor **q_out,
                     struct mp_tensor **k_out);
/** Likewise for the first dim elements of each head; the rest passes. */
enum mp_rotary_order {
    MP_ROTARY_Q_THEN_K,   /* phi3: q is put together before k is turned */
    MP_ROTARY_JOIN_LAST   /* gpt_neox: both are turned first */
};
void mp_rotary_apply_partial(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k,
                             struct mp_tensor *cosine, struct mp_tensor *sine, int64_t dim,
                             enum mp_rotary_order order, struct mp_tensor **q_out,
                             struct mp_tensor **k_out);

#endif
