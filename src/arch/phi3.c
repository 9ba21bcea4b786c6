/* SPDX-License-Identifier: MIT */
/* Phi-3: Phi3ForCausalLM. Joint projections for q, k and v and for gate and up,
 * a rotation of a part of each head. */
#include "arch/decoder.h"

struct config {
    struct mp_decoder_config decoder;
    int64_t rotary_dim;
    double dropout;
};

struct block {
    struct mp_linear_layer o, qkv, gate_up, down;
    struct mp_norm_layer input_norm, post_norm;
};

struct module {
    struct mp_decoder decoder;
    struct block *blocks;
};

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    static const struct mp_decoder_defaults defaults = {32064, 4096, 3072,    8192,  32,  32,
                                                        0,     0,    MP_SILU, false, true};
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, &defaults);
    m->decoder.one_mask = true;
    m->decoder.sliding = mp_decoder_sliding(c, 0);
    m->dropout = mp_config_probability(c, "resid_pdrop", 0);
    m->rotary_dim =
        (int64_t)((double)m->decoder.head_dim * mp_config_number(c, "partial_rotary_factor", 1));
    if (m->rotary_dim < 2 || m->rotary_dim > m->decoder.head_dim)
        mp_config_problem(c, "partial_rotary_factor",
                          "gives %lld rotated of %lld elements per head", (long long)m->rotary_dim,
                          (long long)m->decoder.head_dim);
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
    const struct block *b = block_of(call);
    const int64_t dim = c->decoder.head_dim, q = c->decoder.heads * dim,
                  kv = c->decoder.kv_heads * dim;
    struct mp_tensor *qkv = NULL, *query = NULL, *key = NULL, *value = NULL, *rotated[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &qkv, mp_apply_linear(rt, hidden, &b->qkv));
    mp_let(&f, &query, mp_slice(rt, qkv, -1, 0, q));
    mp_let(&f, &key, mp_slice(rt, qkv, -1, q, q + kv));
    mp_let(&f, &value, mp_slice(rt, qkv, -1, q + kv, q + 2 * kv));
    mp_let(&f, &query, mp_split_heads(rt, query, dim));
    mp_let(&f, &key, mp_split_heads(rt, key, dim));
    mp_let(&f, &value, mp_split_heads(rt, value, dim));
    mp_rotary_apply_partial(rt, query, key, call->keywords[MP_KEYWORD_COS],
                            call->keywords[MP_KEYWORD_SIN], c->rotary_dim, MP_ROTARY_Q_THEN_K,
                            &rotated[0], &rotated[1]);
    mp_let(&f, &query, rotated[0]);
    mp_let(&f, &key, rotated[1]);
    return mp_leave(&f, mp_finish_attention(rt, call, &mp_rotary_eager, &f, query, &key, &value,
                                            &b->o, weights));
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct config *c = ((const struct mp_net *)call->model)->config;
    const struct block *b = block_of(call);
    struct mp_tensor *up = NULL, *gate = NULL, *part[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &up, mp_apply_linear(rt, hidden, &b->gate_up));
    mp_split(rt, up, 2, -1, part);
    mp_let(&f, &gate, part[0]);
    mp_let(&f, &up, part[1]);
    mp_let(&f, &up, mp_mul(rt, up, mp_activate(rt, c->decoder.activation, gate)));
    return mp_leave(&f, mp_apply_linear(rt, up, &b->down));
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct config *c = ((const struct mp_net *)call->model)->config;
    const struct block *b = block_of(call);
    const struct mp_pre_norm_block block = {.first = &b->input_norm,
                                            .second = &b->post_norm,
                                            .attention = attention,
                                            .mlp = mlp,
                                            .dropout = {c->dropout, true}};
    out[0] = mp_apply_pre_norm_block(rt, call, &block, args[0]);
}

/* ---- __init__ ---- */

static void build_block(struct mp_runtime *rt, struct mp_net *net, int64_t i)
{
    const struct mp_decoder_config *c = net->config;
    struct block *b = &((struct module *)net->module)->blocks[i];
    b->o = mp_linear_new(rt, net, "self_attn.o_proj", c->hidden, c->heads * c->head_dim, false);
    b->qkv = mp_linear_new(rt, net, "self_attn.qkv_proj",
                           (c->heads + 2 * c->kv_heads) * c->head_dim, c->hidden, false);
    b->gate_up = mp_linear_new(rt, net, "mlp.gate_up_proj", 2 * c->inner, c->hidden, false);
    b->down = mp_linear_new(rt, net, "mlp.down_proj", c->hidden, c->inner, false);
    b->input_norm = mp_rms_norm_new(rt, net, "input_layernorm", c->hidden);
    b->post_norm = mp_rms_norm_new(rt, net, "post_attention_layernorm", c->hidden);
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
                                           .rotary_dim = c->rotary_dim};
    mp_decoder_build(rt, net, &m->decoder, &parts);
}

const struct mp_family mp_family_phi3 = {.model_type = "phi3",
                                         .architecture = "Phi3ForCausalLM",
                                         .fused_loss = true,
                                         .has_part = {true, true},
                                         .configure = configure,
                                         .n_blocks = mp_decoder_n_blocks,
                                         .positions = mp_decoder_positions,
                                         .build = build,
                                         .forward = mp_decoder_forward};
