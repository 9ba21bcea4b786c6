/* SPDX-License-Identifier: MIT */
/*
 * Mixtral and Qwen3-MoE: MixtralForCausalLM, Qwen3MoeForCausalLM. A llama block
 * whose feed-forward module is a router and experts; in qwen3_moe single blocks
 * may stay dense.
 */
#include "arch/decoder.h"
#include "arch/experts.h"

struct config {
    struct mp_decoder_config decoder;
    int64_t experts, per_token, expert_inner, sparse_step;
    const struct mp_value *dense_blocks; /* qwen3_moe: mlp_only_layers */
    bool qwen, bias, normalised;
};

struct block {
    struct mp_rotary_attention attention;
    struct mp_tensor *router; /* NULL: dense */
    struct mp_experts experts;
    struct mp_gated_mlp mlp;
    struct mp_norm_layer input_norm, post_norm;
};

struct module {
    struct mp_decoder decoder;
    struct block *blocks;
};

static void check_experts(struct mp_config *c, const struct config *m)
{
    if (m->per_token > m->experts)
        mp_config_problem(c, "num_experts_per_tok", "%lld of %lld experts", (long long)m->per_token,
                          (long long)m->experts);
    if (mp_config_bool(c, "output_router_logits", false))
        mp_config_problem(c, "output_router_logits",
                          "true adds a loss of the routers, which is not "
                          "supported; leave it out");
}

static const void *configure_mixtral(struct mp_arena *arena, struct mp_config *c)
{
    static const struct mp_decoder_defaults defaults = {32000, 4096 * 32, 4096,    14336, 32,   32,
                                                        8,     0,         MP_SILU, false, false};
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, &defaults);
    m->decoder.one_mask = true;
    m->decoder.sliding = mp_decoder_sliding(c, 0);
    m->experts = mp_config_size(c, "num_local_experts|num_experts", 8);
    m->per_token = mp_config_size(c, "num_experts_per_tok", 2);
    m->expert_inner = m->decoder.inner;
    m->sparse_step = 1;
    m->normalised = true;
    check_experts(c, m);
    return m;
}

static const void *configure_qwen3_moe(struct mp_arena *arena, struct mp_config *c)
{
    static const struct mp_decoder_defaults defaults = {151936, 32768, 2048,    6144,  24,   32,
                                                        4,      0,     MP_SILU, false, false};
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, &defaults);
    m->decoder.one_mask = true;
    if (mp_config_bool(c, "use_sliding_window", false))
        m->decoder.sliding = mp_decoder_sliding(c, 4096);
    m->qwen = true;
    m->bias = mp_config_bool(c, "attention_bias", false);
    m->experts = mp_config_size(c, "num_experts|num_local_experts", 128);
    m->per_token = mp_config_size(c, "num_experts_per_tok", 8);
    m->expert_inner = mp_config_size(c, "moe_intermediate_size", 768);
    m->sparse_step = mp_config_size(c, "decoder_sparse_step", 1);
    m->normalised = mp_config_bool(c, "norm_topk_prob", false);
    m->dense_blocks = mp_value_get(c->model->config, "mlp_only_layers");
    check_experts(c, m);
    return m;
}

static bool is_dense(const struct config *c, int64_t block)
{
    const struct mp_value *list = c->dense_blocks;
    for (size_t i = 0; list && list->kind == MP_ARRAY && i < list->as.array.length; i++)
        if (list->as.array.items[i]->kind == MP_INT && list->as.array.items[i]->as.integer == block)
            return true;
    return (block + 1) % c->sparse_step != 0;
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

/* MixtralTopKRouter, Qwen3MoeTopKRouter: logits, values, indices */
static struct mp_tensor *route(struct mp_runtime *rt, const struct config *c,
                               struct mp_tensor *router, struct mp_tensor *hidden,
                               struct mp_tensor **values_out, struct mp_tensor **indices_out)
{
    struct mp_tensor *logits = NULL, *probabilities = NULL, *values = NULL, *indices = NULL,
                     *top[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &hidden, mp_reshape(rt, hidden, MP_SHAPE(-1, c->decoder.hidden)));
    mp_let(&f, &logits, mp_linear_rows(rt, hidden, router, NULL));
    mp_let(&f, &probabilities, mp_softmax(rt, mp_to(rt, logits, MP_F32), -1));
    mp_topk(rt, probabilities, c->per_token, &top[0], &top[1]);
    mp_let(&f, &values, top[0]);
    mp_let(&f, &indices, top[1]);
    if (c->normalised)
        mp_let(&f, &values, mp_div_inplace(rt, values, mp_sum(rt, values, -1, true)));
    if (c->qwen)
        mp_let(&f, &values, mp_to(rt, values, (enum mp_dtype)logits->dtype));
    mp_give(&f, values_out, values);
    mp_give(&f, indices_out, indices);
    return mp_leave(&f, logits);
}

static struct mp_tensor *moe(struct mp_runtime *rt, const struct config *c, const struct block *b,
                             struct mp_tensor *hidden)
{
    const struct mp_shape shape = hidden->shape;
    struct mp_tensor *logits = NULL, *values = NULL, *indices = NULL, *chosen[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &hidden, mp_view(rt, hidden, MP_SHAPE(-1, c->decoder.hidden)));
    mp_let(&f, &logits, route(rt, c, b->router, hidden, &chosen[0], &chosen[1]));
    mp_let(&f, &values, chosen[0]);
    mp_let(&f, &indices, chosen[1]);
    mp_let(&f, &hidden,
           mp_apply_experts(rt, &b->experts, c->decoder.activation, hidden, indices, values));
    mp_let(&f, &hidden, mp_reshape(rt, hidden, shape));
    return mp_leave(&f, hidden);
}

/* DeepSpeed takes such a module as a whole: DEFAULT_LEAF_MODULE_CLASSES (deepspeed/runtime/zero/leaf_module_config.py) */
static struct mp_tensor *sparse(struct mp_runtime *rt, const struct config *c,
                                const struct block *b, struct mp_tensor *hidden)
{
    struct mp_module_call call;
    const struct mp_module leaf = {MP_MODULE_OTHER, 3, {b->router, b->experts.gate_up, b->experts.down}};
    hidden = mp_module_begin_as(rt, &call, &leaf, hidden);
    return mp_module_end(rt, &call, moe(rt, c, b, hidden));
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct config *c = ((const struct mp_net *)call->model)->config;
    const struct block *b = block_of(call);
    return b->router ? sparse(rt, c, b, hidden)
                     : mp_apply_gated_mlp(rt, hidden, &b->mlp, c->decoder.activation);
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

static void build_mlp(struct mp_runtime *rt, struct mp_net *net, struct block *b, int64_t index)
{
    const struct config *c = net->config;
    const int64_t h = c->decoder.hidden;
    if (is_dense(c, index)) {
        b->mlp = mp_gated_mlp_new(rt, net, h, c->decoder.inner, false);
        return;
    }
    if (c->qwen)
        b->experts = mp_experts_new(rt, net, c->experts, h, c->expert_inner);
    b->router = mp_parameter(rt, net, "mlp.gate", MP_SHAPE(c->experts, h));
    if (!c->qwen)
        b->experts = mp_experts_new(rt, net, c->experts, h, c->expert_inner);
}

static void build_block(struct mp_runtime *rt, struct mp_net *net, int64_t i)
{
    const struct config *c = net->config;
    struct block *b = &((struct module *)net->module)->blocks[i];
    b->attention = mp_rotary_attention_new(rt, net, c->bias, c->bias, c->qwen);
    build_mlp(rt, net, b, i);
    b->input_norm = mp_rms_norm_new(rt, net, "input_layernorm", c->decoder.hidden);
    b->post_norm = mp_rms_norm_new(rt, net, "post_attention_layernorm", c->decoder.hidden);
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

const struct mp_family mp_family_mixtral = {.model_type = "mixtral",
                                            .architecture = "MixtralForCausalLM",
                                            .fused_loss = true,
                                            .has_experts = true,
                                            .has_part = {true, true},
                                            .configure = configure_mixtral,
                                            .n_blocks = mp_decoder_n_blocks,
                                            .positions = mp_decoder_positions,
                                            .build = build,
                                            .forward = mp_decoder_forward};
const struct mp_family mp_family_qwen3_moe = {.model_type = "qwen3_moe",
                                              .architecture = "Qwen3MoeForCausalLM",
                                              .fused_loss = true,
                                              .has_experts = true,
                                              .configure = configure_qwen3_moe,
                                              .n_blocks = mp_decoder_n_blocks,
                                              .positions = mp_decoder_positions,
                                              .build = build,
                                              .forward = mp_decoder_forward};
