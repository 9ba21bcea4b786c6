/* SPDX-License-Identifier: MIT */
/*
 * Llama and its relatives: LlamaForCausalLM, MistralForCausalLM,
 * Qwen2ForCausalLM, Qwen3ForCausalLM. RMS norms, rotary positions, grouped
 * heads, a gated MLP. They differ in biases, head norms and the sliding window.
 */
#include "arch/decoder.h"

enum kind { LLAMA, MISTRAL, QWEN2, QWEN3 };

struct config {
    struct mp_decoder_config decoder;
    bool qkv_bias, out_bias, mlp_bias, head_norm;
};

struct block {
    struct mp_rotary_attention attention;
    struct mp_gated_mlp mlp;
    struct mp_norm_layer input_norm, post_norm;
};

struct module {
    struct mp_decoder decoder;
    struct block *blocks;
};

/* qwen: the last blocks only, and only when asked for */
static void read_late_window(struct mp_config *c, struct mp_decoder_config *m)
{
    if (!mp_config_bool(c, "use_sliding_window", false))
        return;
    m->sliding = mp_decoder_sliding(c, 4096);
    m->first_sliding_block = mp_config_size_or_null(c, "max_window_layers", 28);
    if (m->first_sliding_block >= m->n_blocks)
        m->sliding = 0;
}

static const void *configure_as(struct mp_arena *arena, struct mp_config *c, enum kind kind,
                                const struct mp_decoder_defaults *d)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, d);
    m->out_bias =
        kind == LLAMA || kind == QWEN3 ? mp_config_bool(c, "attention_bias", false) : false;
    m->qkv_bias = kind == QWEN2 || m->out_bias;
    m->mlp_bias = kind == LLAMA ? mp_config_bool(c, "mlp_bias", false) : false;
    m->head_norm = kind == QWEN3;
    m->decoder.one_mask = kind == MISTRAL;
    if (kind == MISTRAL)
        m->decoder.sliding = mp_decoder_sliding(c, 4096);
    if (kind == QWEN2 || kind == QWEN3)
        read_late_window(c, &m->decoder);
    return m;
}

static const void *configure_llama(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, LLAMA,
                        &(struct mp_decoder_defaults){32000, 2048, 4096, 11008, 32, 32, 0, 0,
                                                      MP_SILU, false, false});
}

static const void *configure_mistral(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, MISTRAL,
                        &(struct mp_decoder_defaults){32000, 4096 * 32, 4096, 14336, 32, 32, 8, 0,
                                                      MP_SILU, false, false});
}

static const void *configure_qwen2(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, QWEN2,
                        &(struct mp_decoder_defaults){151936, 32768, 4096, 22016, 32, 32, 32, 0,
                                                      MP_SILU, false, false});
}

static const void *configure_qwen3(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, QWEN3,
                        &(struct mp_decoder_defaults){151936, 32768, 4096, 22016, 32, 32, 32, 128,
                                                      MP_SILU, false, false});
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
    const struct mp_decoder_config *c = ((const struct mp_net *)call->model)->config;
    return mp_apply_gated_mlp(rt, hidden, &block_of(call)->mlp, c->activation);
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct block *b = block_of(call);
    out[0] = mp_apply_pre_norm_block(
        rt, call,
        &(struct mp_pre_norm_block){
            .first = &b->input_norm, .second = &b->post_norm, .attention = attention, .mlp = mlp},
        args[0]);
}

/* ---- __init__ ---- */

static void build_block(struct mp_runtime *rt, struct mp_net *net, int64_t i)
{
    const struct config *c = net->config;
    const int64_t h = c->decoder.hidden;
    struct block *b = &((struct module *)net->module)->blocks[i];
    b->attention = mp_rotary_attention_new(rt, net, c->qkv_bias, c->out_bias, c->head_norm);
    b->mlp = mp_gated_mlp_new(rt, net, h, c->decoder.inner, c->mlp_bias);
    b->input_norm = mp_rms_norm_new(rt, net, "input_layernorm", h);
    b->post_norm = mp_rms_norm_new(rt, net, "post_attention_layernorm", h);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->decoder.block = block_forward;
    m->blocks = mp_runtime_alloc(rt, (size_t)c->decoder.n_blocks * sizeof *m->blocks);
    const struct mp_decoder_parts parts = {.block = build_block,
                                           .norm = mp_rms_norm_new,
                                           .norm_name = "norm",
                                           .rotary_dim = c->decoder.head_dim};
    mp_decoder_build(rt, net, &m->decoder, &parts);
}

#define LLAMA_FAMILY(type, class)                                                                  \
    const struct mp_family mp_family_##type = {.model_type = #type,                                \
                                               .architecture = class,                              \
                                               .fused_loss = true,                                 \
                                               .has_part = {true, true},                           \
                                               .configure = configure_##type,                      \
                                               .n_blocks = mp_decoder_n_blocks,                    \
                                               .positions = mp_decoder_positions,                  \
                                               .build = build,                                     \
                                               .forward = mp_decoder_forward};
LLAMA_FAMILY(llama, "LlamaForCausalLM")
LLAMA_FAMILY(mistral, "MistralForCausalLM")
LLAMA_FAMILY(qwen2, "Qwen2ForCausalLM")
LLAMA_FAMILY(qwen3, "Qwen3ForCausalLM")
