/* SPDX-License-Identifier: MIT */
/*
 * Causal decoders with rotary positions: what llama, mixtral, phi3, starcoder2,
 * gpt_neox, gemma2 and deepseek_v3 have in common. A family's own config and
 * module begin with these structs.
 */
#ifndef MP_ARCH_DECODER_H
#define MP_ARCH_DECODER_H

#include "arch/rope.h"

struct mp_decoder_config {
    int64_t vocabulary, positions, hidden, inner, n_blocks, heads, kv_heads, head_dim;
    int64_t sliding;             /* width of the window; 0: none */
    int64_t first_sliding_block; /* blocks from here on have it, */
    int64_t sliding_step;        /* every one of them or every second */
    bool one_mask;               /* one mask for all blocks, not one for each kind */
    double dropout_attention;
    enum mp_activation activation;
    struct mp_rope_config rope;
    bool tied;
    bool padding; /* the embedding has a padding index, whose row is filled with
                   zeros */
};

/* What transformers' configuration class of a family defaults to. */
struct mp_decoder_defaults {
    int64_t vocabulary, positions, hidden, inner, n_blocks, heads;
    int64_t kv_heads; /* 0: as many as heads */
    int64_t head_dim; /* 0: hidden / heads */
    enum mp_activation activation;
    bool tied, padding;
};

/** Read the common keys; problems go to c. */
void mp_decoder_configure(struct mp_config *c, struct mp_decoder_config *m,
                          const struct mp_decoder_defaults *d);
/** sliding_window: absent gives fallback, null 0. */
int64_t mp_decoder_sliding(struct mp_config *c, int64_t fallback);
int64_t mp_decoder_n_blocks(const void *config);
int64_t mp_decoder_positions(const void *config, bool *hard);

struct mp_decoder {
    struct mp_tensor *embed, *head;
    struct mp_rope rope;
    struct mp_tensor *embed_scale; /* gemma2: a 0-d buffer; NULL: none */
    struct mp_norm_layer norm;
    struct mp_dropout_layer dropout; /* of the embeddings */
    bool softcap;   /* gemma2: tanh on the logits */
    void (*block)(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args,
                  struct mp_tensor **out);
};

/* What a family adds to the order in which a decoder is made. */
struct mp_decoder_parts {
    /** Block i of the family's module, whose array is there already. */
    void (*block)(struct mp_runtime *rt, struct mp_net *net, int64_t i);
    struct mp_norm_layer (*norm)(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                 int64_t width);
    const char *norm_name;
    int64_t rotary_dim; /* elements of a head that are rotated */
    bool scaled;        /* the embeddings, by a buffer */
};
/** embed_tokens, the blocks, the final norm, the rotary buffers, the head. */
void mp_decoder_build(struct mp_runtime *rt, struct mp_net *net, struct mp_decoder *d,
                      const struct mp_decoder_parts *parts);
/** The family's forward(): embeddings, mask, rotary tables, blocks, norm, head,
 * loss. */
void mp_decoder_forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in,
                        struct mp_outputs *out);

/* Keyword tensors of a block call, in their places. */
enum mp_decoder_keyword {
    MP_KEYWORD_MASK,
    MP_KEYWORD_COS,
    MP_KEYWORD_SIN,
    MP_KEYWORD_POSITION_IDS
};

/* Grouped-head attention with rotary positions. */
struct mp_rotary_attention {
    struct mp_linear_layer q, k, v, o;
    struct mp_tensor *q_norm, *k_norm; /* per head, before the rotation; NULL: none */
    double dropout;                    /* of the output */
};
struct mp_rotary_attention mp_rotary_attention_new(struct mp_runtime *rt, struct mp_net *net,
                                                   bool qkv_bias, bool out_bias, bool head_norm);
struct mp_tensor *mp_apply_rotary_attention(struct mp_runtime *rt, const struct mp_layer *call,
                                            const struct mp_rotary_attention *layer,
                                            const struct mp_eager_style *style,
                                            struct mp_tensor *hidden, struct mp_tensor **weights);
/** softmax in float32, back to the query's type: all but gemma2. */
extern const struct mp_eager_style mp_rotary_eager;
/** Attention over heads that are ready, through the cache; then the output
 * projection. */
struct mp_tensor *mp_finish_attention(struct mp_runtime *rt, const struct mp_layer *call,
                                      const struct mp_eager_style *style, struct mp_frame *f,
                                      struct mp_tensor *query, struct mp_tensor **key,
                                      struct mp_tensor **value, const struct mp_linear_layer *out,
                                      struct mp_tensor **weights);

#endif
