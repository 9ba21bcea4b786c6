/* SPDX-License-Identifier: MIT */
/*
 * OPT: OPTForCausalLM. Learned positions counted from the attention mask,
 * pre-norm blocks that work on flattened rows after attention, a tied head.
 */
#include "arch/arch.h"

struct config {
    int64_t vocabulary, positions, hidden, inner, n_blocks, heads, embed_dim;
    double dropout, dropout_attention;
    enum mp_activation activation;
    bool tied, bias, norm_first, final_norm;
};

struct block {
    struct mp_linear_layer q, k, v, out, fc1, fc2;
    struct mp_norm_layer attention_norm, final_norm;
};

struct module {
    struct mp_tensor *words, *positions, *head;
    struct mp_linear_layer project_in, project_out; /* opt-350m: embeddings are narrower */
    struct mp_norm_layer final_norm;
    struct block *blocks;
};

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    m->vocabulary = mp_config_size(c, "vocab_size", 50272);
    m->positions = mp_config_size(c, "max_position_embeddings", 2048);
    m->hidden = mp_config_size(c, "hidden_size", 768);
    m->inner = mp_config_size(c, "ffn_dim", 3072);
    m->n_blocks = mp_config_size(c, "num_hidden_layers", 12);
    m->heads = mp_config_size(c, "num_attention_heads", 12);
    m->embed_dim = mp_config_size_or_null(c, "word_embed_proj_dim", m->hidden);
    m->dropout = mp_config_probability(c, "dropout", 0.1);
    m->dropout_attention = mp_config_probability(c, "attention_dropout", 0);
    m->activation = mp_config_activation(c, "activation_function", MP_RELU);
    m->tied = mp_config_bool(c, "tie_word_embeddings", true);
    m->bias = mp_config_bool(c, "enable_bias", true);
    m->norm_first = mp_config_bool(c, "do_layer_norm_before", true);
    m->final_norm = m->norm_first && !mp_config_bool(c, "_remove_final_layer_norm", false);
    if (m->hidden % m->heads)
        mp_config_problem(c, "num_attention_heads", "%lld does not divide hidden_size %lld",
                          (long long)m->heads, (long long)m->hidden);
    if (!mp_config_bool(c, "layer_norm_elementwise_affine", true))
        mp_config_problem(c, "layer_norm_elementwise_affine", "false is not supported");
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

static void build_block(struct mp_runtime *rt, struct mp_net *net, struct block *b)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden;
    b->k = mp_linear_new(rt, net, "self_attn.k_proj", h, h, c->bias);
    b->v = mp_linear_new(rt, net, "self_attn.v_proj", h, h, c->bias);
    b->q = mp_linear_new(rt, net, "self_attn.q_proj", h, h, c->bias);
    b->out = mp_linear_new(rt, net, "self_attn.out_proj", h, h, c->bias);
    b->attention_norm = mp_layer_norm_new(rt, net, "self_attn_layer_norm", h);
    b->fc1 = mp_linear_new(rt, net, "fc1", c->inner, h, c->bias);
    b->fc2 = mp_linear_new(rt, net, "fc2", h, c->inner, c->bias);
    b->final_norm = mp_layer_norm_new(rt, net, "final_layer_norm", h);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    enum { OFFSET = 2 }; /* rows of the position table in front of the first position */
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->words = mp_parameter(rt, net, "embed_tokens", MP_SHAPE(c->vocabulary, c->embed_dim));
    mp_filled(rt, net); /* padding_idx */
    m->positions =
        mp_parameter(rt, net, "embed_positions", MP_SHAPE(c->positions + OFFSET, c->hidden));
    if (c->embed_dim != c->hidden) {
        m->project_out = mp_linear_new(rt, net, "project_out", c->embed_dim, c->hidden, false);
        m->project_in = mp_linear_new(rt, net, "project_in", c->hidden, c->embed_dim, false);
    }
    if (c->final_norm)
        m->final_norm = mp_layer_norm_new(rt, net, "final_layer_norm", c->hidden);
    m->blocks = mp_runtime_alloc(rt, (size_t)c->n_blocks * sizeof *m->blocks);
    for (int64_t i = 0; i < c->n_blocks; i++) {
        rt->layer = (int)i;
        build_block(rt, net, &m->blocks[i]);
    }
    rt->layer = -1;
    m->head = mp_head_new(rt, net, m->words, c->tied);
}

/* ---- forward ---- */

enum { KEY_MASK, KEY_POSITION_IDS };

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor **weights_out)
{
    static const struct mp_eager_style style = {.float_softmax = true};
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    const int64_t head_dim = c->hidden / c->heads;
    struct mp_tensor *query = NULL, *key = NULL, *value = NULL, *output = NULL, *weights = NULL,
                     *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &query, mp_mul_number(rt, mp_apply_linear(rt, hidden, &b->q), 0.125));
    mp_let(&f, &query, mp_split_heads(rt, query, head_dim));
    mp_let(&f, &key, mp_apply_linear(rt, hidden, &b->k));
    mp_let(&f, &value, mp_apply_linear(rt, hidden, &b->v));
    mp_let(&f, &key, mp_split_heads(rt, key, head_dim));
    mp_let(&f, &value, mp_split_heads(rt, value, head_dim));
    mp_kv_cache_update(rt, call->cache, call->index, false, &f, &key, &value);
    const struct mp_attention_args args = {.net = net,
                                           .style = &style,
                                           .mask = call->keywords[KEY_MASK],
                                           .dropout = c->dropout_attention,
                                           .groups = 1,
                                           .causal = true};
    mp_let(&f, &output, mp_attend(rt, &args, query, key, value, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, mp_merge_heads(rt, output));
    mp_let(&f, &output, mp_apply_linear(rt, output, &b->out));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

/* The norm stands before the module, or (opt-350m) after the sum. */
static void norm_if(struct mp_frame *f, struct mp_tensor **hidden, const struct mp_norm_layer *norm,
                    bool here)
{
    if (here)
        mp_let(f, hidden, mp_apply_norm(f->rt, *hidden, norm));
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    struct mp_tensor *hidden = args[0], *residual = NULL, *weights = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &residual, hidden);
    norm_if(&f, &hidden, &b->attention_norm, c->norm_first);
    mp_let(&f, &hidden,
           mp_attention_part(rt, call, (union mp_part_forward){.attend = attention}, hidden,
                             &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &hidden, mp_dropout(rt, hidden, c->dropout));
    mp_let(&f, &hidden, mp_add(rt, residual, hidden));
    norm_if(&f, &hidden, &b->attention_norm, !c->norm_first);
    const struct mp_shape shape = hidden->shape;
    mp_let(&f, &hidden, mp_reshape(rt, hidden, MP_SHAPE(-1, c->hidden)));
    mp_let(&f, &residual, hidden);
    norm_if(&f, &hidden, &b->final_norm, c->norm_first);
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &b->fc1));
    mp_let(&f, &hidden, mp_activate(rt, c->activation, hidden));
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &b->fc2));
    mp_let(&f, &hidden, mp_dropout(rt, hidden, c->dropout));
    mp_let(&f, &hidden, mp_view(rt, mp_add(rt, residual, hidden), shape));
    norm_if(&f, &hidden, &b->final_norm, !c->norm_first);
    out[0] = mp_leave(&f, hidden);
}

/* Positions count the ones of a mask, which is made where none is given:
 * cumsum(mask) * mask - 1. */
static struct mp_tensor *position_ids(struct mp_runtime *rt, const struct mp_inputs *in,
                                      struct mp_tensor *mask)
{
    struct mp_tensor *sum = mp_empty(rt, mask->shape, (enum mp_dtype)mask->dtype);
    if (in->batch == 1)
        mp_scratch(rt, mp_scan_temp(in->seq, MP_SCAN_TILE));
    struct mp_tensor *product = mp_pointwise(rt, MP_TENSORS(sum, mask));
    struct mp_tensor *shifted = mp_pointwise(rt, MP_TENSORS(product));
    mp_discard(rt, product);
    struct mp_tensor *ids = mp_to(rt, shifted, MP_I64);
    mp_discard(rt, sum);
    return ids;
}

static struct mp_tensor *embed_positions(struct mp_runtime *rt, const struct module *m,
                                         struct mp_tensor *ids)
{
    return mp_embedding(rt, mp_add_number(rt, ids, 2), m->positions);
}

static struct mp_tensor *body(struct mp_runtime *rt, const struct mp_net *net,
                              const struct mp_inputs *in, struct mp_outputs *out)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    struct mp_inputs masked = {.batch = in->batch, .seq = in->seq};
    struct mp_tensor *mask = NULL, *embeds = NULL, *ids = NULL, *causal = NULL,
                     *embedded_positions = NULL, *hidden = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_container_begin(rt); /* the model below the head */
    mp_let(&f, &mask, in->attention_mask);
    mp_let(&f, &embeds, mp_embed_tokens(rt, net, in->input_ids, m->words));
    out->cache = mp_kv_cache_new(rt, net, (int)c->n_blocks);
    if (!mask)
        mp_let(&f, &mask, mp_empty(rt, MP_SHAPE(in->batch, in->seq), MP_F32));
    masked.attention_mask = mask;
    mp_let(&f, &ids, position_ids(rt, in, mask));
    mp_let(&f, &causal, mp_causal_mask(rt, net, &masked, (enum mp_dtype)embeds->dtype, 0));
    mp_let(&f, &embedded_positions, embed_positions(rt, m, ids));
    if (m->project_in.weight)
        mp_let(&f, &embeds, mp_apply_linear(rt, embeds, &m->project_in));
    mp_let(&f, &hidden, mp_add(rt, embeds, embedded_positions));
    for (int i = 0; i < (int)c->n_blocks; i++) {
        const struct mp_layer block = {.forward = block_forward, .model = net, .index = i, .n_args = 1, .n_outputs = 1, .keywords = {causal, ids}, .cache = out->cache};
        struct mp_tensor *next;
        mp_block_call(rt, &block, &hidden, &next);
        mp_let(&f, &hidden, next);
    }
    norm_if(&f, &hidden, &m->final_norm, c->final_norm);
    if (m->project_out.weight)
        mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &m->project_out));
    return mp_leave(&f, hidden);
}

static void forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in,
                    struct mp_outputs *out)
{
    const struct module *m = net->module;
    mp_causal_outputs(rt, body(rt, net, in, out), m->head, in, out);
}

const struct mp_family mp_family_opt = {.model_type = "opt",
                                        .architecture = "OPTForCausalLM",
                                        .has_part = {[MP_PART_ATTENTION] = true},
                                        .configure = configure,
                                        .n_blocks = n_blocks,
                                        .positions = positions,
                                        .build = build,
                                        .forward = forward};
