/* SPDX-License-Identifier: MIT */
/*
 * GPT-NeoX and Pythia: GPTNeoXForCausalLM. Attention and feed-forward mostly
 * stand side by side on the block's input, one joint projection gives q, k and
 * v, and only a part of each head is rotated.
 */
#include "arch/decoder.h"

struct config {
    struct mp_decoder_config decoder;
    int64_t rotary_dim;
    double dropout;
    bool bias, parallel; /* parallel: feed-forward does not see attention's output */
};

struct block {
    struct mp_norm_layer input_norm, post_norm;
    struct mp_linear_layer qkv, dense;
    struct mp_mlp mlp;
};

struct module {
    struct mp_decoder decoder;
    struct block *blocks;
};

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    static const struct mp_decoder_defaults defaults = {50432, 2048, 6144,    24576, 44,   64,
                                                        0,     0,    MP_GELU, false, false};
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, &defaults);
    m->decoder.kv_heads = m->decoder.heads;
    m->decoder.head_dim = MP_MAX(m->decoder.hidden / m->decoder.heads, 1);
    m->rotary_dim = (int64_t)((double)m->decoder.head_dim *
                              mp_config_number(c, "rotary_pct|partial_rotary_factor", 0.25));
    m->dropout = mp_config_probability(c, "hidden_dropout", 0);
    m->bias = mp_config_bool(c, "attention_bias", true);
    m->parallel = mp_config_bool(c, "use_parallel_residual", true);
    if (m->rotary_dim < 2 || m->rotary_dim > m->decoder.head_dim)
        mp_config_problem(c, "rotary_pct", "gives %lld rotated of %lld elements per head",
                          (long long)m->rotary_dim, (long long)m->decoder.head_dim);
    return m;
}

/* ---- forward ---- */

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor **weights)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    struct mp_tensor *qkv = NULL, *query = NULL, *key = NULL, *value = NULL, *part[3], *rotated[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &qkv, mp_project_heads(rt, hidden, &b->qkv, 3 * c->decoder.head_dim));
    mp_split(rt, qkv, 3, -1, part);
    mp_let(&f, &query, part[0]);
    mp_let(&f, &key, part[1]);
    mp_let(&f, &value, part[2]);
    mp_rotary_apply_partial(rt, query, key, call->keywords[MP_KEYWORD_COS],
                            call->keywords[MP_KEYWORD_SIN], c->rotary_dim, MP_ROTARY_JOIN_LAST,
                            &rotated[0], &rotated[1]);
    mp_let(&f, &query, rotated[0]);
    mp_let(&f, &key, rotated[1]);
    return mp_leave(&f, mp_finish_attention(rt, call, &mp_rotary_eager, &f, query, &key, &value,
                                            &b->dense, weights));
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    return mp_apply_mlp(rt, hidden, &((const struct module *)net->module)->blocks[call->index].mlp,
                        c->decoder.activation, (struct mp_dropout_layer){0});
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    struct mp_tensor *hidden = args[0], *attended = NULL, *weights = NULL, *fed_forward = NULL,
                     *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &attended,
           mp_attention_part(rt, call, (union mp_part_forward){.attend = attention},
                             mp_apply_norm(rt, hidden, &b->input_norm), &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &attended, mp_apply_dropout(rt, attended, c->dropout));
    if (!c->parallel)
        mp_let(&f, &attended, mp_add(rt, attended, hidden));
    struct mp_tensor *normed = mp_apply_norm(rt, c->parallel ? hidden : attended, &b->post_norm);
    mp_let(&f, &fed_forward, mp_mlp_part(rt, call, (union mp_part_forward){.feed = mlp}, normed));
    mp_let(&f, &fed_forward, mp_apply_dropout(rt, fed_forward, c->dropout));
    struct mp_tensor *sum = mp_add(rt, fed_forward, attended);
    mp_let(&f, &hidden, c->parallel ? mp_add(rt, sum, hidden) : sum);
    out[0] = mp_leave(&f, hidden);
}

/* ---- __init__ ---- */

static void build_block(struct mp_runtime *rt, struct mp_net *net, int64_t i)
{
    const struct config *c = net->config;
    const int64_t h = c->decoder.hidden, inner = c->decoder.inner;
    struct block *b = &((struct module *)net->module)->blocks[i];
    b->input_norm = mp_layer_norm_new(rt, net, "input_layernorm", h);
    b->post_norm = mp_layer_norm_new(rt, net, "post_attention_layernorm", h);
    b->qkv = mp_linear_new(rt, net, "attention.query_key_value", 3 * h, h, c->bias);
    b->dense = mp_linear_new(rt, net, "attention.dense", h, h, c->bias);
    b->mlp.in = mp_linear_new(rt, net, "mlp.dense_h_to_4h", inner, h, true);
    b->mlp.out = mp_linear_new(rt, net, "mlp.dense_4h_to_h", h, inner, true);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->decoder.block = block_forward;
    m->decoder.dropout = (struct mp_dropout_layer){c->dropout, true};
    m->blocks = mp_runtime_alloc(rt, (size_t)c->decoder.n_blocks * sizeof *m->blocks);
    const struct mp_decoder_parts parts = {.block = build_block,
                                           .norm = mp_layer_norm_new,
                                           .norm_name = "final_layer_norm",
                                           .rotary_dim = c->rotary_dim};
    mp_decoder_build(rt, net, &m->decoder, &parts);
}

const struct mp_family mp_family_gpt_neox = {.model_type = "gpt_neox",
                                             .architecture = "GPTNeoXForCausalLM",
                                             .has_part = {true, true},
                                             .configure = configure,
                                             .n_blocks = mp_decoder_n_blocks,
                                             .positions = mp_decoder_positions,
                                             .build = build,
                                             .forward = mp_decoder_forward};
