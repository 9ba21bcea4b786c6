/* SPDX-License-Identifier: MIT */
/* StarCoder2: Starcoder2ForCausalLM. A llama block with layer norms, biases and
 * a plain feed-forward module. */
#include "arch/decoder.h"

struct config {
    struct mp_decoder_config decoder;
    double dropout_embedding, dropout_residual;
    bool bias;
};

struct block {
    struct mp_rotary_attention attention;
    struct mp_mlp mlp;
    struct mp_norm_layer input_norm, post_norm;
};

struct module {
    struct mp_decoder decoder;
    struct block *blocks;
};

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    static const struct mp_decoder_defaults defaults = {49152, 4096, 3072,    12288, 30,   24,
                                                        2,     0,    MP_GELU, true,  false};
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, &defaults);
    m->decoder.one_mask = true;
    m->decoder.sliding = mp_decoder_sliding(c, 0);
    m->dropout_embedding = mp_config_probability(c, "embedding_dropout", 0);
    m->dropout_residual = mp_config_probability(c, "residual_dropout", 0);
    m->bias = mp_config_bool(c, "use_bias", true);
    return m;
}

/* ---- forward ---- */

static const struct block *block_of(const struct mp_layer *call)
{
    return &((const struct module *)((const struct mp_net *)call->model)->module)
                ->blocks[call->index];
}

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor **weights)
{
    return mp_apply_rotary_attention(rt, call, &block_of(call)->attention, &mp_rotary_eager, hidden,
                                     weights);
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct config *c = ((const struct mp_net *)call->model)->config;
    return mp_apply_mlp(rt, hidden, &block_of(call)->mlp, c->decoder.activation,
                        (struct mp_dropout_layer){.p = c->dropout_residual});
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct block *b = block_of(call);
    const struct mp_pre_norm_block block = {
        .first = &b->input_norm, .second = &b->post_norm, .attention = attention, .mlp = mlp};
    out[0] = mp_apply_pre_norm_block(rt, call, &block, args[0]);
}

/* ---- __init__ ---- */

static void build_block(struct mp_runtime *rt, struct mp_net *net, int64_t i)
{
    const struct config *c = net->config;
    const int64_t h = c->decoder.hidden;
    struct block *b = &((struct module *)net->module)->blocks[i];
    b->attention = mp_rotary_attention_new(rt, net, c->bias, c->bias, false);
    b->attention.dropout = c->dropout_residual;
    b->mlp.in = mp_linear_new(rt, net, "mlp.c_fc", c->decoder.inner, h, c->bias);
    b->mlp.out = mp_linear_new(rt, net, "mlp.c_proj", h, c->decoder.inner, c->bias);
    b->input_norm = mp_layer_norm_new(rt, net, "input_layernorm", h);
    b->post_norm = mp_layer_norm_new(rt, net, "post_attention_layernorm", h);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->decoder.block = block_forward;
    m->decoder.dropout.p = c->dropout_embedding;
    m->blocks = mp_runtime_alloc(rt, (size_t)c->decoder.n_blocks * sizeof *m->blocks);
    const struct mp_decoder_parts parts = {.block = build_block,
                                           .norm = mp_layer_norm_new,
                                           .norm_name = "norm",
                                           .rotary_dim = c->decoder.head_dim};
    mp_decoder_build(rt, net, &m->decoder, &parts);
}

const struct mp_family mp_family_starcoder2 = {.model_type = "starcoder2",
                                               .architecture = "Starcoder2ForCausalLM",
                                               .has_part = {true, true},
                                               .configure = configure,
                                               .n_blocks = mp_decoder_n_blocks,
                                               .positions = mp_decoder_positions,
                                               .build = build,
                                               .forward = mp_decoder_forward};
