/* SPDX-License-Identifier: MIT */
/* Causal decoders with rotary positions: configuration, constructor, forward.
 */
#include "arch/decoder.h"

#include "arch/losses.h"

/* ---- config.json ---- */

int64_t mp_decoder_sliding(struct mp_config *c, int64_t fallback)
{
    const struct mp_value *value = mp_value_get(c->model->config, "sliding_window");
    return value && value->kind == MP_NULL ? 0
                                           : mp_config_size_or_null(c, "sliding_window", fallback);
}

void mp_decoder_configure(struct mp_config *c, struct mp_decoder_config *m,
                          const struct mp_decoder_defaults *d)
{
    m->vocabulary = mp_config_size(c, "vocab_size", d->vocabulary);
    m->positions = mp_config_size(c, "max_position_embeddings", d->positions);
    m->hidden = mp_config_size(c, "hidden_size", d->hidden);
    m->inner = mp_config_size(c, "intermediate_size", d->inner);
    m->n_blocks = mp_config_size(c, "num_hidden_layers", d->n_blocks);
    m->heads = mp_config_size(c, "num_attention_heads", d->heads);
    m->kv_heads =
        mp_config_size_or_null(c, "num_key_value_heads", d->kv_heads ? d->kv_heads : m->heads);
    const bool derived_head_dim = !d->head_dim && !mp_config_has(c, "head_dim");
    m->head_dim = mp_config_size_or_null(
        c, "head_dim", d->head_dim ? d->head_dim : MP_MAX(m->hidden / m->heads, 1));
    m->activation = mp_config_activation(c, "hidden_act", d->activation);
    m->dropout_attention = mp_config_probability(c, "attention_dropout", 0);
    m->tied = mp_config_bool(c, "tie_word_embeddings", d->tied);
    m->padding = mp_value_get(c->model->config, "pad_token_id") ? mp_config_has(c, "pad_token_id")
                                                                : d->padding;
    m->sliding_step = 1;
    mp_rope_configure(c, &m->rope, m->positions);
    if (derived_head_dim && m->hidden % m->heads)
        mp_config_problem(c, "num_attention_heads", "%lld does not divide hidden_size %lld",
                          (long long)m->heads, (long long)m->hidden);
    if (m->heads % m->kv_heads)
        mp_config_problem(c, "num_key_value_heads", "%lld does not divide num_attention_heads %lld",
                          (long long)m->kv_heads, (long long)m->heads);
    if (m->head_dim % 2)
        mp_config_problem(c, "head_dim", "%lld is odd; rotary embeddings need an even one",
                          (long long)m->head_dim);
}

int64_t mp_decoder_n_blocks(const void *config)
{
    return ((const struct mp_decoder_config *)config)->n_blocks;
}

int64_t mp_decoder_positions(const void *config, bool *hard)
{
    *hard = false;
    return ((const struct mp_decoder_config *)config)->positions;
}

static bool slides(const struct mp_decoder_config *c, int block)
{
    return c->sliding && block >= c->first_sliding_block &&
           (block - c->first_sliding_block) % c->sliding_step == 0;
}

/* ---- __init__ ---- */

void mp_decoder_build(struct mp_runtime *rt, struct mp_net *net, struct mp_decoder *d,
                      const struct mp_decoder_parts *parts)
{
    const struct mp_decoder_config *c = net->config;
    d->embed = mp_parameter(rt, net, "embed_tokens", MP_SHAPE(c->vocabulary, c->hidden));
    if (c->padding)
        mp_filled(rt, net);
    if (parts->scaled)
        d->embed_scale = mp_buffer(rt, MP_SCALAR, net->dtype);
    for (int64_t i = 0; i < c->n_blocks; i++) {
        rt->layer = (int)i;
        parts->block(rt, net, i);
    }
    rt->layer = -1;
    d->norm = parts->norm(rt, net, parts->norm_name, c->hidden);
    mp_rope_new(rt, net, &c->rope, parts->rotary_dim, &d->rope);
    d->head = mp_head_new(rt, net, d->embed, c->tied);
}

struct mp_rotary_attention mp_rotary_attention_new(struct mp_runtime *rt, struct mp_net *net,
                                                   bool qkv_bias, bool out_bias, bool head_norm)
{
    const struct mp_decoder_config *c = net->config;
    const int64_t h = c->hidden, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    struct mp_rotary_attention a = {.q_norm = NULL};
    a.q = mp_linear_new(rt, net, "self_attn.q_proj", q, h, qkv_bias);
    a.k = mp_linear_new(rt, net, "self_attn.k_proj", kv, h, qkv_bias);
    a.v = mp_linear_new(rt, net, "self_attn.v_proj", kv, h, qkv_bias);
    a.o = mp_linear_new(rt, net, "self_attn.o_proj", h, q, out_bias);
    if (head_norm) {
        a.q_norm = mp_rms_norm_new(rt, net, "self_attn.q_norm", c->head_dim).weight;
        a.k_norm = mp_rms_norm_new(rt, net, "self_attn.k_norm", c->head_dim).weight;
    }
    return a;
}

/* ---- forward ---- */

const struct mp_eager_style mp_rotary_eager = {.float_softmax = true};

struct mp_tensor *mp_finish_attention(struct mp_runtime *rt, const struct mp_layer *call,
                                      const struct mp_eager_style *style, struct mp_frame *f,
                                      struct mp_tensor *query, struct mp_tensor **key,
                                      struct mp_tensor **value, const struct mp_linear_layer *out,
                                      struct mp_tensor **weights)
{
    const struct mp_net *net = call->model;
    const struct mp_decoder_config *c = net->config;
    mp_kv_cache_update(rt, call->cache, call->index, slides(c, call->index), f, key, value);
    const struct mp_attention_args args = {.net = net,
                                           .style = style,
                                           .mask = call->keywords[MP_KEYWORD_MASK],
                                           .dropout = c->dropout_attention,
                                           .groups = mp_dim(query, 1) / mp_dim(*key, 1),
                                           .causal = true};
    struct mp_tensor *returned, *output = NULL;
    struct mp_frame inner;
    mp_enter_empty(rt, &inner);
    mp_let(&inner, &output, mp_attend(rt, &args, query, *key, *value, &returned));
    mp_give(&inner, weights, returned);
    mp_let(&inner, &output, mp_merge_heads(rt, output));
    mp_let(&inner, &output, mp_apply_linear(rt, output, out));
    return mp_leave(&inner, output);
}

/* q_proj(hidden).view(batch, seq, -1, head_dim), normalised per head in qwen3,
 * .transpose(1, 2) */
static struct mp_tensor *project(struct mp_runtime *rt, struct mp_tensor *hidden,
                                 const struct mp_linear_layer *layer, struct mp_tensor *norm,
                                 int64_t head_dim)
{
    struct mp_tensor *x = mp_view(rt, mp_apply_linear(rt, hidden, layer),
                                  MP_SHAPE(mp_dim(hidden, 0), mp_dim(hidden, 1), -1, head_dim));
    return mp_transpose(rt, norm ? mp_rms_norm(rt, x, norm) : x, 1, 2);
}

struct mp_tensor *mp_apply_rotary_attention(struct mp_runtime *rt, const struct mp_layer *call,
                                            const struct mp_rotary_attention *a,
                                            const struct mp_eager_style *style,
                                            struct mp_tensor *hidden, struct mp_tensor **weights)
{
    const struct mp_net *net = call->model;
    const int64_t head_dim = ((const struct mp_decoder_config *)net->config)->head_dim;
    struct mp_tensor *query = NULL, *key = NULL, *value = NULL, *rotated[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &query, project(rt, hidden, &a->q, a->q_norm, head_dim));
    mp_let(&f, &key, project(rt, hidden, &a->k, a->k_norm, head_dim));
    mp_let(&f, &value, project(rt, hidden, &a->v, NULL, head_dim));
    mp_rotary_apply(rt, query, key, call->keywords[MP_KEYWORD_COS], call->keywords[MP_KEYWORD_SIN],
                    &rotated[0], &rotated[1]);
    mp_let(&f, &query, rotated[0]);
    mp_let(&f, &key, rotated[1]);
    return mp_leave(&f, mp_dropout(rt,
                                   mp_finish_attention(rt, call, style, &f, query, &key, &value,
                                                       &a->o, weights),
                                   a->dropout));
}

/* Gemma2TextScaledWordEmbedding multiplies inside the module */
static struct mp_tensor *embed(struct mp_runtime *rt, const struct mp_net *net,
                               const struct mp_decoder *d, const struct mp_inputs *in)
{
    struct mp_tensor *embedded = mp_embed_tokens(rt, net, in->input_ids, d->embed);
    return d->embed_scale ? mp_mul(rt, embedded, d->embed_scale) : embedded;
}

static struct mp_tensor *body(struct mp_runtime *rt, const struct mp_net *net, struct mp_decoder *d,
                              const struct mp_inputs *in, struct mp_outputs *out)
{
    const struct mp_decoder_config *c = net->config;
    struct mp_tensor *embeds = NULL, *position_ids = NULL, *mask = NULL, *sliding_mask = NULL,
                     *hidden = NULL, *table[2], *cosine = NULL, *sine = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_container_begin(rt); /* the model below the head */
    mp_let(&f, &embeds, embed(rt, net, d, in));
    mp_let(&f, &position_ids, mp_position_ids(rt, in->seq));
    out->cache = mp_kv_cache_new(rt, net, (int)c->n_blocks);
    const enum mp_dtype dtype = (enum mp_dtype)embeds->dtype;
    if (!c->one_mask)
        mp_let(&f, &mask, mp_causal_mask(rt, net, in, dtype, 0));
    if (c->one_mask || c->sliding)
        mp_let(&f, &sliding_mask, mp_causal_mask(rt, net, in, dtype, c->sliding));
    if ((mask || sliding_mask) && !in->attention_mask && !net->run->init_cpu)
        mp_driver_event(rt, MP_DRIVER_CODE_PAGE, 0); /* tables, test and mask have many kernels */
    mp_let(&f, &hidden, mp_apply_dropout_layer(rt, embeds, d->dropout));
    mp_rope_update(rt, &d->rope, position_ids);
    mp_rotary_tables(rt, d->rope.frequencies, position_ids, dtype, &table[0], &table[1]);
    mp_let(&f, &cosine, table[0]);
    mp_let(&f, &sine, table[1]);
    for (int i = 0; i < (int)c->n_blocks; i++) {
        const struct mp_layer block = {.forward = d->block, .model = net, .index = i, .n_args = 1, .n_outputs = 1, .keywords = {c->one_mask || slides(c, i) ? sliding_mask : mask, cosine, sine, position_ids}, .cache = out->cache};
        struct mp_tensor *next;
        mp_block_call(rt, &block, &hidden, &next);
        mp_let(&f, &hidden, next);
    }
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &d->norm));
    return mp_leave(&f, hidden);
}

static void soft_cap(struct mp_runtime *rt, struct mp_frame *f, struct mp_tensor **logits)
{
    mp_let(f, logits, mp_div_number(rt, *logits, 30));
    mp_let(f, logits, mp_tanh(rt, *logits));
    mp_let(f, logits, mp_mul_number(rt, *logits, 30));
    mp_tag(rt, (*logits)->storage, MP_CATEGORY_LOGITS);
}

void mp_decoder_forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in,
                        struct mp_outputs *out)
{
    struct mp_decoder *d = net->module;
    struct mp_tensor *hidden = NULL, *logits = NULL, *loss = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &hidden, mp_container_end(rt, body(rt, net, d, in, out)));
    if (mp_loss_without_logits(rt, hidden, d->head, in, out)) {
        mp_leave(&f, NULL);
        return;
    }
    mp_let(&f, &logits, mp_causal_head(rt, hidden, d->head));
    if (d->softcap)
        soft_cap(rt, &f, &logits);
    mp_let(&f, &loss, mp_causal_loss(rt, logits, in));
    mp_give(&f, &out->logits, logits);
    out->loss = mp_leave(&f, loss);
}
