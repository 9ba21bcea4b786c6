/* SPDX-License-Identifier: MIT */
/* GPT-2: GPT2LMHeadModel. Learned positions, Conv1D projections, one joint q, k, v projection, tied head. */
#include "arch/arch.h"

struct config {
    int64_t vocabulary, positions, hidden, inner, n_blocks, heads;
    double dropout_embedding, dropout_attention, dropout_residual;
    enum mp_activation activation;
    bool tied;
};

struct block {
    struct mp_norm_layer ln_1, ln_2;
    struct mp_linear_layer attn, proj; /* Conv1D */
    struct mp_mlp mlp;
};

struct module {
    struct mp_tensor *wte, *wpe, *head;
    struct mp_norm_layer ln_f;
    struct block *blocks;
};

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    m->vocabulary = mp_config_size(c, "vocab_size", 50257);
    m->positions = mp_config_size(c, "n_positions|max_position_embeddings", 1024);
    m->hidden = mp_config_size(c, "n_embd|hidden_size", 768);
    m->n_blocks = mp_config_size(c, "n_layer|num_hidden_layers", 12);
    m->heads = mp_config_size(c, "n_head|num_attention_heads", 12);
    m->inner = mp_config_size_or_null(c, "n_inner", 4 * m->hidden);
    m->activation = mp_config_activation(c, "activation_function", MP_GELU_NEW);
    m->dropout_residual = mp_config_probability(c, "resid_pdrop", 0.1);
    m->dropout_embedding = mp_config_probability(c, "embd_pdrop", 0.1);
    m->dropout_attention = mp_config_probability(c, "attn_pdrop", 0.1);
    m->tied = mp_config_bool(c, "tie_word_embeddings", true);
    if (m->hidden % m->heads)
        mp_config_problem(c, "n_head", "%lld does not divide n_embd %lld", (long long)m->heads, (long long)m->hidden);
    return m;
}

static int64_t n_blocks(const void *config) { return ((const struct config *)config)->n_blocks; }

static int64_t positions(const void *config, bool *hard)
{
    *hard = true;
    return ((const struct config *)config)->positions;
}

/* ---- __init__ ---- */

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->wte = mp_parameter(rt, net, "wte", MP_SHAPE(c->vocabulary, h));
    m->wpe = mp_parameter(rt, net, "wpe", MP_SHAPE(c->positions, h));
    m->blocks = mp_runtime_alloc(rt, (size_t)c->n_blocks * sizeof *m->blocks);
    for (int64_t i = 0; i < c->n_blocks; i++) {
        struct block *b = &m->blocks[i];
        rt->layer = (int)i;
        b->ln_1 = mp_layer_norm_new(rt, net, "ln_1", h);
        b->attn = mp_conv1d_new(rt, net, "attn.c_attn", h, 3 * h);
        b->proj = mp_conv1d_new(rt, net, "attn.c_proj", h, h);
        b->ln_2 = mp_layer_norm_new(rt, net, "ln_2", h);
        b->mlp.in = mp_conv1d_new(rt, net, "mlp.c_fc", h, c->inner);
        b->mlp.out = mp_conv1d_new(rt, net, "mlp.c_proj", c->inner, h);
    }
    rt->layer = -1;
    m->ln_f = mp_layer_norm_new(rt, net, "ln_f", h);
    m->head = mp_head_new(rt, net, m->wte, c->tied);
}

/* ---- forward ---- */

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden, struct mp_tensor *mask,
                                   struct mp_tensor **weights_out)
{
    static const struct mp_eager_style style = {.to_value_dtype = true, .keep_transposed = true};
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    struct mp_tensor *part[3], *query = NULL, *key = NULL, *value = NULL, *output = NULL, *weights = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask);
    mp_split(rt, mp_apply_linear(rt, hidden, &b->attn), 3, 2, part);
    mp_let(&f, &query, part[0]);
    mp_let(&f, &key, part[1]);
    mp_let(&f, &value, part[2]);
    const int64_t head_dim = c->hidden / c->heads;
    mp_let(&f, &key, mp_split_heads(rt, key, head_dim));
    mp_let(&f, &value, mp_split_heads(rt, value, head_dim));
    mp_let(&f, &query, mp_split_heads(rt, query, head_dim));
    mp_kv_cache_update(rt, call->cache, call->index, false, &f, &key, &value);
    const struct mp_attention_args args = {
        .net = net, .style = &style, .mask = mask, .dropout = c->dropout_attention, .groups = 1, .causal = true};
    mp_let(&f, &output, mp_attend(rt, &args, query, key, value, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, mp_merge_heads(rt, output));
    mp_let(&f, &output, mp_apply_linear(rt, output, &b->proj));
    mp_let(&f, &output, mp_apply_dropout(rt, output, c->dropout_residual));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    return mp_apply_mlp(rt, hidden, &((const struct module *)net->module)->blocks[call->index].mlp, c->activation,
                        (struct mp_dropout_layer){c->dropout_residual, true});
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_net *net = call->model;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    const struct mp_gpt_block block = {&b->ln_1, &b->ln_2, mlp, attention};
    out[0] = mp_apply_gpt_block(rt, call, &block, args[0], args[1], NULL);
}

static struct mp_tensor *body(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in, struct mp_outputs *out)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    struct mp_tensor *embeds = NULL, *position_ids = NULL, *position_embeds = NULL, *hidden = NULL, *mask = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_container_begin(rt); /* the model below the head */
    mp_let(&f, &position_ids, NULL); /* a parameter of forward() */
    mp_let(&f, &embeds, mp_embed_tokens(rt, net, in->input_ids, m->wte));
    mp_let(&f, &position_ids, mp_position_ids(rt, in->seq));
    mp_let(&f, &position_embeds, mp_embedding(rt, position_ids, m->wpe));
    mp_let(&f, &hidden, mp_add(rt, embeds, position_embeds));
    mp_let(&f, &mask, mp_causal_mask(rt, net, in, (enum mp_dtype)embeds->dtype, 0));
    mp_let(&f, &hidden, mp_apply_dropout(rt, hidden, c->dropout_embedding));
    out->cache = mp_kv_cache_new(rt, net, (int)c->n_blocks);
    for (int i = 0; i < (int)c->n_blocks; i++) {
        const struct mp_layer block = {.forward = block_forward, .model = net, .index = i, .n_args = 2, .n_outputs = 1, .keywords = {position_ids}, .cache = out->cache};
        struct mp_tensor *next;
        mp_block_call(rt, &block, (struct mp_tensor *[]){hidden, mask}, &next);
        mp_let(&f, &hidden, next);
    }
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &m->ln_f));
    mp_let(&f, &hidden, mp_view(rt, hidden, hidden->shape));
    return mp_leave(&f, hidden);
}

static void forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in, struct mp_outputs *out)
{
    const struct module *m = net->module;
    mp_causal_outputs(rt, body(rt, net, in, out), m->head, in, out);
}

const struct mp_family mp_family_gpt2 = {.model_type = "gpt2",
                                         .architecture = "GPT2LMHeadModel",
                                         .has_part = {true, true},
                                         .configure = configure,
                                         .n_blocks = n_blocks,
                                         .positions = positions,
                                         .build = build,
                                         .forward = forward};
