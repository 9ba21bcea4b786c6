/* SPDX-License-Identifier: MIT */
/*
 * GPT-Neo: GPTNeoForCausalLM. A gpt2 block with separate projections, scores in
 * float32 and a boolean mask buffer per block, global or local. Eager attention
 * only.
 */
#include "arch/arch.h"

struct config {
    int64_t vocabulary, positions, hidden, inner, n_blocks, heads;
    double dropout_embedding, dropout_attention, dropout_residual;
    enum mp_activation activation;
    bool tied;
    bool *local; /* per block: attention within a window */
};

struct block {
    struct mp_norm_layer ln_1, ln_2;
    struct mp_linear_layer k, v, q, out;
    struct mp_mlp mlp;
    struct mp_tensor *mask; /* [positions, positions] */
};

struct module {
    struct mp_tensor *wte, *wpe, *head;
    struct mp_norm_layer ln_f;
    struct block *blocks;
};

/* attention_types: [[["global", "local"], 12]] is the pattern, twelve times. */
static void read_attention_types(struct mp_config *c, struct config *m)
{
    const struct mp_value *types = mp_value_get(c->model->config, "attention_types");
    int64_t at = 0;
    for (size_t i = 0; types && types->kind == MP_ARRAY && i < types->as.array.length; i++) {
        const struct mp_value *pair = types->as.array.items[i];
        const bool whole = pair->kind == MP_ARRAY && pair->as.array.length == 2 &&
                           pair->as.array.items[0]->kind == MP_ARRAY &&
                           pair->as.array.items[1]->kind == MP_INT;
        const struct mp_value *kinds = whole ? pair->as.array.items[0] : NULL;
        for (int64_t n = 0; whole && kinds->as.array.length &&
                            n < pair->as.array.items[1]->as.integer && at < m->n_blocks;
             n++)
            for (size_t k = 0; k < kinds->as.array.length && at < m->n_blocks; k++)
                m->local[at++] = kinds->as.array.items[k]->kind == MP_STRING &&
                                 strcmp(kinds->as.array.items[k]->as.string.text, "local") == 0;
    }
    if (types && at < m->n_blocks)
        mp_config_problem(c, "attention_types",
                          "describes %lld of %lld layers, as [[[\"global\", "
                          "\"local\"], 12]] does for 24",
                          (long long)at, (long long)m->n_blocks);
    for (; !types && at < m->n_blocks; at++)
        m->local[at] = at % 2 == 1;
}

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    m->vocabulary = mp_config_size(c, "vocab_size", 50257);
    m->positions = mp_config_size(c, "max_position_embeddings", 2048);
    m->hidden = mp_config_size(c, "hidden_size", 2048);
    m->n_blocks = mp_config_size(c, "num_layers|num_hidden_layers", 24);
    m->heads = mp_config_size(c, "num_heads|num_attention_heads", 16);
    m->inner = mp_config_size_or_null(c, "intermediate_size", 4 * m->hidden);
    m->activation = mp_config_activation(c, "activation_function", MP_GELU_NEW);
    m->dropout_residual = mp_config_probability(c, "resid_dropout", 0);
    m->dropout_embedding = mp_config_probability(c, "embed_dropout", 0);
    m->dropout_attention = mp_config_probability(c, "attention_dropout", 0);
    m->tied = mp_config_bool(c, "tie_word_embeddings", true);
    m->local = mp_arena_calloc(arena, (size_t)m->n_blocks, sizeof *m->local);
    if (!m->local)
        return NULL;
    read_attention_types(c, m);
    if (m->hidden % m->heads)
        mp_config_problem(c, "num_heads", "%lld does not divide hidden_size %lld",
                          (long long)m->heads, (long long)m->hidden);
    return m;
}

static int64_t n_blocks(const void *config)
{
    return ((const struct config *)config)->n_blocks;
}

static int64_t positions(const void *config, bool *hard)
{
    *hard = true;
    return ((const struct config *)config)->positions;
}

/* ---- __init__ ---- */

/* tril of a square of ones; local: xor with the triangle below the window.
 * Owned. */
static struct mp_tensor *mask_new(struct mp_runtime *rt, const struct mp_net *net, bool local)
{
    const struct config *c = net->config;
    const struct mp_shape square = MP_SHAPE(c->positions, c->positions);
    if (net->run->init_cpu)
        return mp_take(rt, mp_empty(rt, square, MP_BOOL));
    struct mp_tensor *ones = mp_empty(rt, square, MP_BOOL);
    struct mp_tensor *lower = mp_take(rt, mp_empty(rt, square, MP_BOOL));
    mp_discard(rt, ones);
    if (!local)
        return lower;
    struct mp_tensor *below = mp_empty(rt, square, MP_BOOL);
    struct mp_tensor *band = mp_take(rt, mp_empty(rt, square, MP_BOOL));
    mp_discard(rt, below);
    mp_tensor_unref(rt, lower);
    return band;
}

static void build_block(struct mp_runtime *rt, struct mp_net *net, struct block *b, bool local)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden;
    b->ln_1 = mp_layer_norm_new(rt, net, "ln_1", h);
    rt->category = MP_CATEGORY_BUFFER;
    b->mask = mp_buffer_register(rt, mask_new(rt, net, local));
    rt->category = MP_CATEGORY_TEMPORARY;
    b->k = mp_linear_new(rt, net, "attn.attention.k_proj", h, h, false);
    b->v = mp_linear_new(rt, net, "attn.attention.v_proj", h, h, false);
    b->q = mp_linear_new(rt, net, "attn.attention.q_proj", h, h, false);
    b->out = mp_linear_new(rt, net, "attn.attention.out_proj", h, h, true);
    b->ln_2 = mp_layer_norm_new(rt, net, "ln_2", h);
    b->mlp.in = mp_linear_new(rt, net, "mlp.c_fc", c->inner, h, true);
    b->mlp.out = mp_linear_new(rt, net, "mlp.c_proj", h, c->inner, true);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->wte = mp_parameter(rt, net, "wte", MP_SHAPE(c->vocabulary, c->hidden));
    m->wpe = mp_parameter(rt, net, "wpe", MP_SHAPE(c->positions, c->hidden));
    m->blocks = mp_runtime_alloc(rt, (size_t)c->n_blocks * sizeof *m->blocks);
    for (int64_t i = 0; i < c->n_blocks; i++) {
        rt->layer = (int)i;
        build_block(rt, net, &m->blocks[i], c->local[i]);
    }
    rt->layer = -1;
    m->ln_f = mp_layer_norm_new(rt, net, "ln_f", c->hidden);
    for (int64_t i = 0; i < c->n_blocks && !net->run->init_cpu;
         i++) /* _init_weights fills the buffers again */
        mp_tensor_unref(rt, mask_new(rt, net, c->local[i]));
    m->head = mp_head_new(rt, net, m->wte, c->tied);
}

/* ---- forward ---- */

static struct mp_tensor *split_heads(struct mp_runtime *rt, struct mp_tensor *x, int64_t heads)
{
    static const int order[] = {0, 2, 1, 3};
    return mp_permute(rt, mp_view(rt, x, MP_SHAPE(mp_dim(x, 0), mp_dim(x, 1), heads, -1)), 4,
                      order);
}

static struct mp_tensor *merge_heads(struct mp_runtime *rt, struct mp_tensor *x)
{
    static const int order[] = {0, 2, 1, 3};
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &x);
    mp_let(&f, &x, mp_contiguous(rt, mp_permute(rt, x, 4, order)));
    return mp_leave(&f, mp_view(rt, x, MP_SHAPE(mp_dim(x, 0), mp_dim(x, 1), -1)));
}

static struct mp_tensor *attend(struct mp_runtime *rt, const struct config *c,
                                const struct block *b, struct mp_tensor *query,
                                struct mp_tensor *key, struct mp_tensor *value,
                                struct mp_tensor *attention_mask, struct mp_tensor **weights_out)
{
    struct mp_tensor *weights = NULL, *mask = NULL, *minimum = NULL, *output = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &query, &key, &value, &attention_mask);
    mp_let(&f, &query, mp_to(rt, query, MP_F32));
    mp_let(&f, &key, mp_to(rt, key, MP_F32));
    mp_let(&f, &weights, mp_matmul(rt, query, mp_transpose(rt, key, -1, -2)));
    const int64_t seq = mp_dim(query, 2), square = c->positions * c->positions;
    const int64_t stride[MP_MAX_DIMS] = {square, square, c->positions, 1};
    mp_let(&f, &mask, mp_alias(rt, b->mask, MP_SHAPE(1, 1, seq, seq), stride, b->mask));
    mp_let(&f, &minimum, mp_empty(rt, MP_SCALAR, (enum mp_dtype)weights->dtype));
    mp_let(&f, &weights, mp_where_scalar(rt, mask, weights));
    if (attention_mask)
        mp_let(&f, &weights, mp_add(rt, weights, attention_mask));
    mp_let(&f, &weights, mp_softmax(rt, weights, -1));
    mp_let(&f, &weights, mp_to(rt, weights, (enum mp_dtype)value->dtype));
    mp_let(&f, &weights, mp_apply_dropout(rt, weights, c->dropout_attention));
    mp_let(&f, &output, mp_matmul(rt, weights, value));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

static struct mp_tensor *self_attention(struct mp_runtime *rt, const struct mp_layer *call,
                                        struct mp_tensor *hidden, struct mp_tensor *mask,
                                        struct mp_tensor **weights_out)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    struct mp_tensor *query = NULL, *key = NULL, *value = NULL, *output = NULL, *weights = NULL,
                     *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask);
    mp_let(&f, &query, mp_apply_linear(rt, hidden, &b->q));
    mp_let(&f, &key, mp_apply_linear(rt, hidden, &b->k));
    mp_let(&f, &value, mp_apply_linear(rt, hidden, &b->v));
    mp_let(&f, &query, split_heads(rt, query, c->heads));
    mp_let(&f, &key, split_heads(rt, key, c->heads));
    mp_let(&f, &value, split_heads(rt, value, c->heads));
    mp_let(&f, &output, attend(rt, c, b, query, key, value, mask, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, merge_heads(rt, output));
    mp_let(&f, &output, mp_apply_linear(rt, output, &b->out));
    mp_let(&f, &output, mp_apply_dropout(rt, output, c->dropout_residual));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    return mp_apply_mlp(rt, hidden, &((const struct module *)net->module)->blocks[call->index].mlp,
                        c->activation, (struct mp_dropout_layer){c->dropout_residual, true});
}

/* GPTNeoAttention */
static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor *mask,
                                   struct mp_tensor **weights_out)
{
    mp_container_begin(rt);
    return mp_container_end(rt, self_attention(rt, call, hidden, mask, weights_out));
}

/* The block returns its attention weights too. */
static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_net *net = call->model;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    const struct mp_gpt_block block = {&b->ln_1, &b->ln_2, mlp, attention};
    out[0] = mp_apply_gpt_block(rt, call, &block, args[0], call->keywords[0], &out[1]);
}

static struct mp_tensor *body(struct mp_runtime *rt, const struct mp_net *net,
                              const struct mp_inputs *in)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    struct mp_tensor *embeds = NULL, *position_ids = NULL, *mask = NULL, *position_embeds = NULL,
                     *hidden = NULL, *outputs[2] = {NULL, NULL};
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_container_begin(rt); /* the model below the head */
    mp_let(&f, &embeds, mp_embed_tokens(rt, net, in->input_ids, m->wte));
    mp_let(&f, &position_ids, mp_position_ids(rt, in->seq));
    mp_let(&f, &mask, mp_causal_mask(rt, net, in, (enum mp_dtype)embeds->dtype, 0));
    mp_let(&f, &position_embeds, mp_embedding(rt, position_ids, m->wpe));
    mp_let(&f, &hidden, mp_add(rt, embeds, position_embeds));
    mp_let(&f, &hidden, mp_apply_dropout(rt, hidden, c->dropout_embedding));
    for (int i = 0; i < (int)c->n_blocks; i++) {
        const struct mp_layer block = {.forward = block_forward, .model = net, .index = i, .n_args = 1, .n_outputs = 2, .keywords = {mask}};
        struct mp_tensor *next[2] = {NULL, NULL};
        mp_block_call(rt, &block, &hidden, next);
        mp_let(&f, &outputs[0], next[0]);
        mp_let(&f, &outputs[1], next[1]);
        mp_let(&f, &hidden, outputs[0]);
    }
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &m->ln_f));
    mp_let(&f, &hidden, mp_view(rt, hidden, hidden->shape));
    return mp_leave(&f, hidden);
}

static void forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in,
                    struct mp_outputs *out)
{
    const struct module *m = net->module;
    mp_causal_outputs(rt, body(rt, net, in), m->head, in, out);
}

const struct mp_family mp_family_gpt_neo = {.model_type = "gpt_neo",
                                            .architecture = "GPTNeoForCausalLM",
                                            .configure = configure,
                                            .n_blocks = n_blocks,
                                            .positions = positions,
                                            .build = build,
                                            .forward = forward,
                                            .eager_only = true,
                                            .no_cache = true};
