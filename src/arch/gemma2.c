/* SPDX-License-Identifier: MIT */
/*
 * Gemma 2: Gemma2ForCausalLM. Four norms per block in float32 throughout, tanh
 * caps on attention weights and logits, scaled embeddings, a sliding window in
 * every second block.
 */
#include "arch/decoder.h"

struct config {
    struct mp_decoder_config decoder;
    struct mp_eager_style eager;
    bool bias, cap_logits;
};

struct block {
    struct mp_rotary_attention attention;
    struct mp_gated_mlp mlp;
    struct mp_norm_layer input_norm, post_attention_norm, pre_mlp_norm, post_mlp_norm;
};

struct module {
    struct mp_decoder decoder;
    struct block *blocks;
};

/* A cap that is null is off. */
static bool has_cap(const struct mp_config *c, const char *key)
{
    const struct mp_value *value = mp_value_get(c->model->config, key);
    return !value || value->kind != MP_NULL;
}

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    static const struct mp_decoder_defaults defaults = {256000, 8192, 2304,    9216, 26,  8,
                                                        4,      256,  MP_GELU, true, true};
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, &defaults);
    m->decoder.activation = mp_config_activation(c, "hidden_activation", MP_GELU);
    m->decoder.sliding = mp_decoder_sliding(c, 4096);
    m->decoder.sliding_step = 2;
    m->bias = mp_config_bool(c, "attention_bias", false);
    m->eager = (struct mp_eager_style){.float_softmax = true,
                                       .softcap = has_cap(c, "attn_logit_softcapping")};
    m->cap_logits = has_cap(c, "final_logit_softcapping");
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
    const struct config *c = ((const struct mp_net *)call->model)->config;
    return mp_apply_rotary_attention(rt, call, &block_of(call)->attention, &c->eager, hidden,
                                     weights);
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct config *c = ((const struct mp_net *)call->model)->config;
    return mp_apply_gated_mlp(rt, hidden, &block_of(call)->mlp, c->decoder.activation);
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct block *b = block_of(call);
    struct mp_tensor *hidden = args[0], *residual = NULL, *weights = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &b->input_norm));
    mp_let(&f, &hidden,
           mp_attention_part(rt, call, (union mp_part_forward){.attend = attention}, hidden,
                             &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &b->post_attention_norm));
    mp_let(&f, &hidden, mp_add(rt, residual, hidden));
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &b->pre_mlp_norm));
    mp_let(&f, &hidden, mp_mlp_part(rt, call, (union mp_part_forward){.feed = mlp}, hidden));
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &b->post_mlp_norm));
    mp_let(&f, &hidden, mp_add(rt, residual, hidden));
    out[0] = mp_leave(&f, hidden);
}

/* ---- __init__ ---- */

static struct mp_norm_layer norm_new(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                     int64_t width)
{
    struct mp_norm_layer norm = mp_rms_norm_new(rt, net, name, width);
    norm.offset = true;
    return norm;
}

static void build_block(struct mp_runtime *rt, struct mp_net *net, int64_t i)
{
    const struct config *c = net->config;
    struct block *b = &((struct module *)net->module)->blocks[i];
    b->attention = mp_rotary_attention_new(rt, net, c->bias, c->bias, false);
    b->mlp = mp_gated_mlp_new(rt, net, c->decoder.hidden, c->decoder.inner, false);
    b->input_norm = norm_new(rt, net, "input_layernorm", c->decoder.hidden);
    b->post_attention_norm = norm_new(rt, net, "post_attention_layernorm", c->decoder.hidden);
    b->pre_mlp_norm = norm_new(rt, net, "pre_feedforward_layernorm", c->decoder.hidden);
    b->post_mlp_norm = norm_new(rt, net, "post_feedforward_layernorm", c->decoder.hidden);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->decoder.block = block_forward;
    m->decoder.softcap = c->cap_logits;
    m->blocks = mp_runtime_alloc(rt, (size_t)c->decoder.n_blocks * sizeof *m->blocks);
    const struct mp_decoder_parts parts = {.block = build_block,
                                           .norm = norm_new,
                                           .norm_name = "norm",
                                           .rotary_dim = c->decoder.head_dim,
                                           .scaled = true};
    mp_decoder_build(rt, net, &m->decoder, &parts);
}

const struct mp_family mp_family_gemma2 = {.model_type = "gemma2",
                                           .architecture = "Gemma2ForCausalLM",
                                           .own_loss = true,
                                           .fused_loss = true,
                                           .has_part = {true, true},
                                           .configure = configure,
                                           .n_blocks = mp_decoder_n_blocks,
                                           .positions = mp_decoder_positions,
                                           .build = build,
                                           .forward = mp_decoder_forward};
