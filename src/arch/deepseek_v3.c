/* SPDX-License-Identifier: MIT */
/*
 * DeepSeek-V3: DeepseekV3ForCausalLM. Latent attention: queries, keys and
 * values come from projections of low rank, and only a part of each head is
 * rotated, by neighbouring pairs. Dense blocks first, then routed experts
 * beside a shared one.
 */
#include "arch/decoder.h"
#include "arch/experts.h"

struct config {
    struct mp_decoder_config decoder;
    int64_t q_rank, kv_rank, nope, rope, value_dim; /* q_rank 0: a full projection */
    int64_t experts, per_token, expert_inner, shared, groups, groups_chosen, first_sparse;
    bool bias, normalised;
};

struct block {
    struct mp_linear_layer q_a, q_b, kv_a, kv_b, o; /* q_b is the whole projection without a rank */
    struct mp_tensor *q_a_norm, *kv_a_norm, *router, *router_bias;
    struct mp_experts experts;
    struct mp_gated_mlp mlp; /* dense, or the shared experts */
    struct mp_norm_layer input_norm, post_norm;
};

struct module {
    struct mp_decoder decoder;
    struct block *blocks;
};

static void check(struct mp_config *c, const struct config *m)
{
    if (m->rope % 2)
        mp_config_problem(c, "qk_rope_head_dim", "%lld is odd; rotary embeddings need an even one",
                          (long long)m->rope);
    if (m->experts % m->groups)
        mp_config_problem(c, "n_group", "%lld does not divide %lld routed experts",
                          (long long)m->groups, (long long)m->experts);
    else if (m->experts / m->groups < 2)
        mp_config_problem(c, "n_group", "%lld groups of %lld experts are smaller than 2",
                          (long long)m->groups, (long long)m->experts);
    if (m->groups_chosen > m->groups)
        mp_config_problem(c, "topk_group", "%lld of %lld groups", (long long)m->groups_chosen,
                          (long long)m->groups);
    if (m->per_token > m->experts)
        mp_config_problem(c, "num_experts_per_tok", "%lld of %lld experts", (long long)m->per_token,
                          (long long)m->experts);
}

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    static const struct mp_decoder_defaults defaults = {129280, 4096, 7168,    18432, 61,   128,
                                                        0,      64,   MP_SILU, false, false};
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    mp_decoder_configure(c, &m->decoder, &defaults);
    const struct mp_value *rank = mp_value_get(c->model->config, "q_lora_rank");
    m->q_rank = rank && rank->kind == MP_NULL ? 0 : mp_config_size(c, "q_lora_rank", 1536);
    m->kv_rank = mp_config_size(c, "kv_lora_rank", 512);
    m->nope = mp_config_size(c, "qk_nope_head_dim", 128);
    m->rope = mp_config_size(c, "qk_rope_head_dim", 64);
    m->value_dim = mp_config_size(c, "v_head_dim", 128);
    m->experts = mp_config_size(c, "n_routed_experts|num_local_experts", 256);
    m->per_token = mp_config_size(c, "num_experts_per_tok", 8);
    m->expert_inner = mp_config_size(c, "moe_intermediate_size", 2048);
    m->shared = mp_config_size(c, "n_shared_experts", 1);
    m->groups = mp_config_size(c, "n_group", 8);
    m->groups_chosen = mp_config_size(c, "topk_group", 4);
    m->first_sparse = (int64_t)mp_config_number(c, "first_k_dense_replace", 3);
    m->bias = mp_config_bool(c, "attention_bias", false);
    m->normalised = mp_config_bool(c, "norm_topk_prob", true);
    check(c, m);
    return m;
}

static const struct config *config_of(const struct mp_layer *call)
{
    return ((const struct mp_net *)call->model)->config;
}

static const struct block *block_of(const struct mp_layer *call)
{
    return &((const struct module *)((const struct mp_net *)call->model)->module)
                ->blocks[call->index];
}

/* ---- attention ---- */

/* (x1 cos - x2 sin, x2 cos + x1 sin) */
static struct mp_tensor *turn_pairs(struct mp_runtime *rt, struct mp_tensor *even,
                                    struct mp_tensor *odd, struct mp_tensor *cosine,
                                    struct mp_tensor *sine)
{
    struct mp_tensor *parts[2];
    struct mp_tensor *a = mp_mul(rt, even, cosine);
    struct mp_tensor *b = mp_mul(rt, odd, sine);
    parts[0] = mp_sub(rt, a, b);
    a = mp_mul(rt, odd, cosine);
    b = mp_mul(rt, even, sine);
    parts[1] = mp_add(rt, a, b);
    return mp_cat(rt, 2, parts, -1);
}

/* apply_rotary_pos_emb_interleave */
static void rotate_pairs(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k,
                         struct mp_tensor *cosine, struct mp_tensor *sine, struct mp_tensor **q_out,
                         struct mp_tensor **k_out)
{
    struct mp_tensor *even[2] = {NULL, NULL}, *odd[2] = {NULL, NULL}, *embed[2] = {NULL, NULL};
    const int64_t half = mp_dim(cosine, -1) / 2;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &q, &k, &cosine, &sine);
    mp_let(&f, &cosine, mp_unsqueeze(rt, cosine, 1));
    mp_let(&f, &sine, mp_unsqueeze(rt, sine, 1));
    mp_let(&f, &cosine, mp_slice(rt, cosine, -1, 0, half));
    mp_let(&f, &sine, mp_slice(rt, sine, -1, 0, half));
    mp_let(&f, &even[0], mp_every_other(rt, q));
    mp_let(&f, &odd[0], mp_every_other(rt, q));
    mp_let(&f, &even[1], mp_every_other(rt, k));
    mp_let(&f, &odd[1], mp_every_other(rt, k));
    mp_let(&f, &embed[0], turn_pairs(rt, even[0], odd[0], cosine, sine));
    mp_let(&f, &embed[1], turn_pairs(rt, even[1], odd[1], cosine, sine));
    mp_give(&f, q_out, embed[0]);
    mp_give(&f, k_out, embed[1]);
    mp_leave(&f, NULL);
}

static struct mp_tensor *query_states(struct mp_runtime *rt, const struct config *c,
                                      const struct block *b, struct mp_tensor *hidden)
{
    if (c->q_rank)
        return mp_apply_linear(
            rt, mp_rms_norm(rt, mp_apply_linear(rt, hidden, &b->q_a), b->q_a_norm), &b->q_b);
    return mp_apply_linear(rt, hidden, &b->q_b);
}

/* Keys are put together in a tensor of their own: the unrotated part per head,
 * the rotated one the same for all heads. */
static struct mp_tensor *expand_kv(struct mp_runtime *rt, const struct config *c,
                                   const struct block *b, struct mp_tensor *latent,
                                   struct mp_tensor *rotated, struct mp_tensor **values_out)
{
    struct mp_tensor *kv = NULL, *k_nope = NULL, *values = NULL, *keys = NULL, *part[2];
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &latent, &rotated);
    mp_let(&f, &kv, mp_project_heads(rt, latent, &b->kv_b, c->nope + c->value_dim));
    mp_split_sizes(rt, kv, 2, (const int64_t[]){c->nope, c->value_dim}, -1, part);
    mp_let(&f, &k_nope, part[0]);
    mp_let(&f, &values, part[1]);
    struct mp_shape shape = k_nope->shape;
    shape.d[3] = -1;
    mp_let(&f, &rotated, mp_expand(rt, rotated, shape));
    shape.d[3] = c->nope + c->rope;
    mp_let(&f, &keys, mp_empty(rt, shape, (enum mp_dtype)k_nope->dtype));
    mp_assign_slice(rt, keys, k_nope);
    mp_assign_slice(rt, keys, rotated);
    mp_give(&f, values_out, values);
    return mp_leave(&f, keys);
}

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor **weights)
{
    const struct config *c = config_of(call);
    const struct block *b = block_of(call);
    const int64_t batch = mp_dim(hidden, 0), seq = mp_dim(hidden, 1);
    struct mp_tensor *q = NULL, *q_pass = NULL, *q_rot = NULL, *compressed = NULL, *k_pass = NULL,
                     *k_rot = NULL, *query = NULL, *key = NULL, *value = NULL, *part[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &q, query_states(rt, c, b, hidden));
    mp_let(&f, &q, mp_split_heads(rt, q, c->nope + c->rope));
    mp_split_sizes(rt, q, 2, (const int64_t[]){c->nope, c->rope}, -1, part);
    mp_let(&f, &q_pass, part[0]);
    mp_let(&f, &q_rot, part[1]);
    mp_let(&f, &compressed, mp_apply_linear(rt, hidden, &b->kv_a));
    mp_split_sizes(rt, compressed, 2, (const int64_t[]){c->kv_rank, c->rope}, -1, part);
    mp_let(&f, &k_pass, part[0]);
    mp_let(&f, &k_rot, part[1]);
    mp_let(&f, &k_pass, mp_rms_norm(rt, k_pass, b->kv_a_norm));
    mp_let(&f, &k_rot, mp_view(rt, k_rot, MP_SHAPE(batch, 1, seq, c->rope)));
    rotate_pairs(rt, q_rot, k_rot, call->keywords[MP_KEYWORD_COS], call->keywords[MP_KEYWORD_SIN],
                 &part[0], &part[1]);
    mp_let(&f, &q_rot, part[0]);
    mp_let(&f, &k_rot, part[1]);
    mp_let(&f, &query, mp_cat(rt, 2, (struct mp_tensor *[]){q_pass, q_rot}, -1));
    mp_let(&f, &key, expand_kv(rt, c, b, k_pass, k_rot, &part[1]));
    mp_let(&f, &value, part[1]);
    return mp_leave(&f, mp_finish_attention(rt, call, &mp_rotary_eager, &f, query, &key, &value,
                                            &b->o, weights));
}

/* ---- experts ---- */

/* Groups of experts by the sum of their two best; the other groups' scores are
 * filled with zeros. */
static struct mp_tensor *mask_groups(struct mp_runtime *rt, const struct config *c,
                                     struct mp_frame *f, struct mp_tensor *choice,
                                     struct mp_tensor *group[4])
{
    const int64_t of_group = c->experts / c->groups;
    struct mp_tensor *top[2];
    mp_topk(rt, mp_view(rt, choice, MP_SHAPE(-1, c->groups, of_group)), 2, &top[0], &top[1]);
    mp_discard(rt, top[1]);
    mp_let(f, &group[0], mp_sum(rt, top[0], -1, false)); /* scores */
    mp_topk(rt, group[0], c->groups_chosen, &top[0], &top[1]);
    mp_discard(rt, top[0]);
    mp_let(f, &group[1], top[1]);                                                      /* indices */
    mp_let(f, &group[2], mp_empty_like(rt, group[0], (enum mp_dtype)group[0]->dtype)); /* mask */
    struct mp_tensor *wide =
        mp_expand(rt, mp_unsqueeze(rt, group[2], -1), MP_SHAPE(-1, c->groups, of_group));
    mp_let(f, &group[3], mp_reshape(rt, wide, MP_SHAPE(-1, c->experts)));
    struct mp_tensor *chosen = mp_to(rt, group[3], MP_BOOL);
    struct mp_tensor *others = mp_pointwise(rt, MP_TENSORS(chosen));
    mp_discard(rt, chosen);
    return mp_masked_fill(rt, choice, others);
}

/* DeepseekV3TopkRouter, in float32 */
static struct mp_tensor *choose(struct mp_runtime *rt, const struct config *c, const struct block *b,
                               struct mp_tensor *hidden, struct mp_tensor **weights_out,
                               struct mp_tensor **indices_out)
{
    struct mp_tensor *logits = NULL, *scores = NULL, *choice = NULL,
                     *group[4] = {NULL, NULL, NULL, NULL}, *indices = NULL, *weights = NULL,
                     *denominator = NULL, *top[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &hidden, mp_view(rt, hidden, MP_SHAPE(-1, c->decoder.hidden)));
    struct mp_tensor *wide = mp_to(rt, hidden, MP_F32);
    mp_let(&f, &logits, mp_linear_rows(rt, wide, mp_to(rt, b->router, MP_F32), NULL));
    mp_let(&f, &scores, mp_sigmoid(rt, logits));
    struct mp_tensor *rows = mp_view(rt, scores, MP_SHAPE(-1, c->experts));
    mp_let(&f, &choice, mp_add(rt, rows, mp_unsqueeze(rt, b->router_bias, 0)));
    mp_let(&f, &choice, mask_groups(rt, c, &f, choice, group));
    mp_topk(rt, choice, c->per_token, &top[0], &top[1]);
    mp_discard(rt, top[0]);
    mp_let(&f, &indices, top[1]);
    mp_let(&f, &weights, mp_gather(rt, scores, indices));
    if (c->normalised) {
        mp_let(&f, &denominator, mp_add_number(rt, mp_sum(rt, weights, -1, true), 1e-20));
        mp_let(&f, &weights, mp_div_inplace(rt, weights, denominator));
    }
    mp_let(&f, &weights, mp_mul_number(rt, weights, 2.5));
    mp_give(&f, weights_out, weights);
    mp_give(&f, indices_out, indices);
    return mp_leave(&f, logits);
}

static struct mp_tensor *route(struct mp_runtime *rt, const struct config *c, const struct block *b,
                               struct mp_tensor *hidden, struct mp_tensor **weights_out,
                               struct mp_tensor **indices_out)
{
    struct mp_module_call call;
    const struct mp_module router = {MP_MODULE_OTHER, 1, {b->router}};
    hidden = mp_module_begin_as(rt, &call, &router, hidden);
    struct mp_tensor *const logits =
        mp_module_end(rt, &call, choose(rt, c, b, hidden, weights_out, indices_out));
    *weights_out = mp_module_output(rt, &call, *weights_out);
    return logits;
}

static struct mp_tensor *sparse(struct mp_runtime *rt, const struct config *c,
                                const struct block *b, struct mp_tensor *hidden)
{
    const struct mp_shape shape = hidden->shape;
    struct mp_tensor *residuals = NULL, *logits = NULL, *weights = NULL, *indices = NULL,
                     *chosen[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &residuals, hidden);
    mp_let(&f, &logits, route(rt, c, b, hidden, &chosen[0], &chosen[1]));
    mp_let(&f, &weights, chosen[0]);
    mp_let(&f, &indices, chosen[1]);
    mp_let(&f, &hidden, mp_view(rt, hidden, MP_SHAPE(-1, c->decoder.hidden)));
    mp_let(
        &f, &hidden,
        mp_view(rt,
                mp_apply_experts(rt, &b->experts, c->decoder.activation, hidden, indices, weights),
                shape));
    mp_let(&f, &hidden,
           mp_add(rt, hidden, mp_apply_gated_mlp(rt, residuals, &b->mlp, c->decoder.activation)));
    return mp_leave(&f, hidden);
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct config *c = config_of(call);
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

static void build_attention(struct mp_runtime *rt, struct mp_net *net, struct block *b)
{
    const struct config *c = net->config;
    const int64_t h = c->decoder.hidden, heads = c->decoder.heads, q = heads * (c->nope + c->rope);
    if (c->q_rank) {
        b->q_a = mp_linear_new(rt, net, "self_attn.q_a_proj", c->q_rank, h, c->bias);
        b->q_a_norm = mp_rms_norm_new(rt, net, "self_attn.q_a_layernorm", c->q_rank).weight;
        b->q_b = mp_linear_new(rt, net, "self_attn.q_b_proj", q, c->q_rank, false);
    } else {
        b->q_b = mp_linear_new(rt, net, "self_attn.q_proj", q, h, false);
    }
    b->kv_a =
        mp_linear_new(rt, net, "self_attn.kv_a_proj_with_mqa", c->kv_rank + c->rope, h, c->bias);
    b->kv_a_norm = mp_rms_norm_new(rt, net, "self_attn.kv_a_layernorm", c->kv_rank).weight;
    b->kv_b = mp_linear_new(rt, net, "self_attn.kv_b_proj", heads * (c->nope + c->value_dim),
                            c->kv_rank, false);
    b->o = mp_linear_new(rt, net, "self_attn.o_proj", h, heads * c->value_dim, c->bias);
}

static void build_block(struct mp_runtime *rt, struct mp_net *net, int64_t i)
{
    const struct config *c = net->config;
    const int64_t h = c->decoder.hidden;
    struct block *b = &((struct module *)net->module)->blocks[i];
    build_attention(rt, net, b);
    if (i >= c->first_sparse) {
        b->experts = mp_experts_new(rt, net, c->experts, h, c->expert_inner);
        b->router = mp_parameter(rt, net, "mlp.gate", MP_SHAPE(c->experts, h));
        b->router_bias = mp_buffer(rt, MP_SHAPE(c->experts), net->dtype);
    }
    b->mlp = mp_gated_mlp_new(
        rt, net, h, i >= c->first_sparse ? c->expert_inner * c->shared : c->decoder.inner, false);
    b->input_norm = mp_rms_norm_new(rt, net, "input_layernorm", h);
    b->post_norm = mp_rms_norm_new(rt, net, "post_attention_layernorm", h);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->decoder.block = block_forward;
    m->blocks = mp_runtime_alloc(rt, (size_t)c->decoder.n_blocks * sizeof *m->blocks);
    const struct mp_decoder_parts parts = {
        .block = build_block, .norm = mp_rms_norm_new, .norm_name = "norm", .rotary_dim = c->rope};
    mp_decoder_build(rt, net, &m->decoder, &parts);
}

const struct mp_family mp_family_deepseek_v3 = {.model_type = "deepseek_v3",
                                                .architecture = "DeepseekV3ForCausalLM",
                                                .fused_loss = true,
                                                .has_experts = true,
                                                .configure = configure,
                                                .n_blocks = mp_decoder_n_blocks,
                                                .positions = mp_decoder_positions,
                                                .build = build,
                                                .forward = mp_decoder_forward};
