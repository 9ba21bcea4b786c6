/* SPDX-License-Identifier: MIT */
/*
 * Llama and its relatives: LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM. RMS norms, rotary
 * positions, grouped heads, a gated MLP. They differ in biases, head norms, the sliding window, and in the order in which the
 * model's locals die.
 */
#include "arch/arch.h"

enum kind { LLAMA, MISTRAL, QWEN2, QWEN3 };

struct config {
    enum kind kind;
    int64_t vocabulary, positions, hidden, inner, n_blocks, heads, kv_heads, head_dim;
    int64_t sliding;             /* width of the window; 0: none */
    int64_t first_sliding_block; /* blocks from here on have it */
    double dropout_attention;
    enum mp_activation activation;
    bool qkv_bias, out_bias, mlp_bias, head_norm, tied;
};

struct block {
    struct mp_linear_layer q, k, v, o, gate, up, down;
    struct mp_tensor *q_norm, *k_norm, *input_norm, *post_norm;
};

struct module {
    struct mp_tensor *embed, *norm, *inverse_frequencies, *head;
    struct block *blocks;
};

/* What a release of the family defaults to. */
struct defaults {
    enum kind kind;
    int64_t vocabulary, positions, hidden, inner, n_blocks, heads, kv_heads, head_dim, sliding;
};

/* Absent: the family's default; null: no window. */
static int64_t sliding_window(struct mp_config *c, int64_t fallback)
{
    const struct mp_value *value = mp_value_get(c->model->config, "sliding_window");
    return value && value->kind == MP_NULL ? 0 : mp_config_size(c, "sliding_window", fallback);
}

static const void *configure_as(struct mp_arena *arena, struct mp_config *c, const struct defaults *d)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    m->kind = d->kind;
    m->vocabulary = mp_config_size(c, "vocab_size", d->vocabulary);
    m->positions = mp_config_size(c, "max_position_embeddings", d->positions);
    m->hidden = mp_config_size(c, "hidden_size", d->hidden);
    m->inner = mp_config_size(c, "intermediate_size", d->inner);
    m->n_blocks = mp_config_size(c, "num_hidden_layers", d->n_blocks);
    m->heads = mp_config_size(c, "num_attention_heads", d->heads);
    m->kv_heads = mp_config_size_or_null(c, "num_key_value_heads", d->kv_heads ? d->kv_heads : m->heads);
    const bool derived_head_dim = !d->head_dim && !mp_config_has(c, "head_dim");
    m->head_dim = mp_config_size_or_null(c, "head_dim", d->head_dim ? d->head_dim : MP_MAX(m->hidden / m->heads, 1));
    m->activation = mp_config_activation(c, "hidden_act", MP_SILU);
    m->dropout_attention = mp_config_probability(c, "attention_dropout", 0);
    m->tied = mp_config_bool(c, "tie_word_embeddings", false);
    m->out_bias = d->kind == LLAMA || d->kind == QWEN3 ? mp_config_bool(c, "attention_bias", false) : false;
    m->qkv_bias = d->kind == QWEN2 || m->out_bias;
    m->mlp_bias = d->kind == LLAMA ? mp_config_bool(c, "mlp_bias", false) : false;
    m->head_norm = d->kind == QWEN3;
    m->sliding = d->kind == MISTRAL ? sliding_window(c, d->sliding) : 0;
    if ((d->kind == QWEN2 || d->kind == QWEN3) && mp_config_bool(c, "use_sliding_window", false)) {
        m->sliding = sliding_window(c, 4096);
        m->first_sliding_block = mp_config_size_or_null(c, "max_window_layers", 28);
        if (m->first_sliding_block >= m->n_blocks)
            m->sliding = 0;
    }
    if (derived_head_dim && m->hidden % m->heads)
        mp_config_problem(c, "num_attention_heads", "%lld does not divide hidden_size %lld", (long long)m->heads, (long long)m->hidden);
    if (m->heads % m->kv_heads)
        mp_config_problem(c, "num_key_value_heads", "%lld does not divide num_attention_heads %lld", (long long)m->kv_heads, (long long)m->heads);
    if (m->head_dim % 2)
        mp_config_problem(c, "head_dim", "%lld is odd; rotary embeddings need an even one", (long long)m->head_dim);
    return m;
}

static const void *configure_llama(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, &(struct defaults){LLAMA, 32000, 2048, 4096, 11008, 32, 32, 0, 0, 0});
}

static const void *configure_mistral(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, &(struct defaults){MISTRAL, 32000, 4096 * 32, 4096, 14336, 32, 32, 8, 0, 4096});
}

static const void *configure_qwen2(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, &(struct defaults){QWEN2, 151936, 32768, 4096, 22016, 32, 32, 32, 0, 0});
}

static const void *configure_qwen3(struct mp_arena *arena, struct mp_config *c)
{
    return configure_as(arena, c, &(struct defaults){QWEN3, 151936, 32768, 4096, 22016, 32, 32, 32, 128, 0});
}

static int64_t n_blocks(const void *config) { return ((const struct config *)config)->n_blocks; }

static int64_t positions(const void *config, bool *hard)
{
    *hard = false;
    return ((const struct config *)config)->positions;
}

/* ---- __init__ ---- */

static void build_block(struct mp_runtime *rt, struct mp_net *net, struct block *b)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    b->q = mp_linear_new(rt, net, "q_proj", q, h, c->qkv_bias);
    b->k = mp_linear_new(rt, net, "k_proj", kv, h, c->qkv_bias);
    b->v = mp_linear_new(rt, net, "v_proj", kv, h, c->qkv_bias);
    b->o = mp_linear_new(rt, net, "o_proj", h, q, c->out_bias);
    if (c->head_norm) {
        b->q_norm = mp_parameter(rt, net, "q_norm", MP_SHAPE(c->head_dim));
        b->k_norm = mp_parameter(rt, net, "k_norm", MP_SHAPE(c->head_dim));
    }
    b->gate = mp_linear_new(rt, net, "gate_proj", c->inner, h, c->mlp_bias);
    b->up = mp_linear_new(rt, net, "up_proj", c->inner, h, c->mlp_bias);
    b->down = mp_linear_new(rt, net, "down_proj", h, c->inner, c->mlp_bias);
    b->input_norm = mp_parameter(rt, net, "input_layernorm", MP_SHAPE(h));
    b->post_norm = mp_parameter(rt, net, "post_attention_layernorm", MP_SHAPE(h));
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->embed = mp_parameter(rt, net, "embed_tokens", MP_SHAPE(c->vocabulary, c->hidden));
    m->blocks = mp_runtime_alloc(rt, (size_t)c->n_blocks * sizeof *m->blocks);
    for (int64_t i = 0; i < c->n_blocks; i++) {
        rt->layer = (int)i;
        build_block(rt, net, &m->blocks[i]);
    }
    rt->layer = -1;
    m->norm = mp_parameter(rt, net, "norm", MP_SHAPE(c->hidden));
    m->inverse_frequencies = mp_rotary_new(rt, net, c->head_dim);
    m->head = mp_head_new(rt, net, m->embed, c->tied);
}

/* ---- forward ---- */

/* q_proj(hidden).view(batch, seq, -1, head_dim), normalised per head in qwen3, .transpose(1, 2) */
static struct mp_tensor *project(struct mp_runtime *rt, const struct config *c, struct mp_tensor *hidden, const struct mp_linear_layer *layer,
                                 struct mp_tensor *norm)
{
    struct mp_tensor *x = mp_view(rt, mp_apply_linear(rt, hidden, layer), MP_SHAPE(mp_dim(hidden, 0), mp_dim(hidden, 1), -1, c->head_dim));
    return mp_transpose(rt, norm ? mp_rms_norm(rt, x, norm) : x, 1, 2);
}

/* Positions of the keyword tensors in a block call. */
enum { KEY_MASK, KEY_COS, KEY_SIN, KEY_POSITION_IDS };

static bool slides(const struct config *c, int block) { return c->sliding && block >= c->first_sliding_block; }

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_net *net, const struct mp_layer *call, struct mp_tensor *hidden,
                                   struct mp_tensor **weights_out)
{
    static const struct mp_eager_style style = {.float_softmax = true};
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    struct mp_tensor *mask = call->keywords[KEY_MASK], *cosine = call->keywords[KEY_COS], *sine = call->keywords[KEY_SIN];
    struct mp_tensor *query = NULL, *key = NULL, *value = NULL, *output = NULL, *weights = NULL, *rotated[2], *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &query, project(rt, c, hidden, &b->q, b->q_norm));
    mp_let(&f, &key, project(rt, c, hidden, &b->k, b->k_norm));
    mp_let(&f, &value, project(rt, c, hidden, &b->v, NULL));
    mp_rotary_apply(rt, query, key, cosine, sine, &rotated[0], &rotated[1]);
    mp_let(&f, &query, rotated[0]);
    mp_let(&f, &key, rotated[1]);
    mp_kv_cache_update(rt, call->cache, call->index, slides(c, call->index), &f, &key, &value);
    const struct mp_attention_args args = {net, &style, mask, c->dropout_attention, c->heads / c->kv_heads, true};
    mp_let(&f, &output, mp_attend(rt, &args, query, key, value, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, mp_contiguous(rt, mp_reshape(rt, output, MP_SHAPE(mp_dim(output, 0), mp_dim(output, 1), -1))));
    mp_let(&f, &output, mp_apply_linear(rt, output, &b->o));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

/* down_proj(act_fn(gate_proj(x)) * up_proj(x)) */
static struct mp_tensor *mlp(struct mp_runtime *rt, const struct config *c, const struct block *b, struct mp_tensor *x)
{
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    struct mp_tensor *gate = mp_activate(rt, c->activation, mp_apply_linear(rt, x, &b->gate));
    struct mp_tensor *up = mp_apply_linear(rt, x, &b->up);
    return mp_leave(&f, mp_apply_linear(rt, mp_mul(rt, gate, up), &b->down));
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_net *net = call->model;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    struct mp_tensor *hidden = args[0], *residual = NULL, *weights = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_rms_norm(rt, hidden, b->input_norm));
    mp_let(&f, &hidden, attention(rt, net, call, hidden, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &hidden, mp_add(rt, residual, hidden));
    mp_let(&f, &residual, hidden);
    mp_let(&f, &hidden, mp_rms_norm(rt, hidden, b->post_norm));
    mp_let(&f, &hidden, mlp(rt, net->config, b, hidden));
    mp_let(&f, &hidden, mp_add(rt, residual, hidden));
    out[0] = mp_leave(&f, hidden);
}

static struct mp_tensor *body(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in, struct mp_outputs *out)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    struct mp_tensor *position_ids = NULL, *embeds = NULL, *mask = NULL, *sliding_mask = NULL, *hidden = NULL, *cosine = NULL, *sine = NULL, *table[2];
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &position_ids, NULL);
    mp_let(&f, &embeds, mp_embedding(rt, in->input_ids, m->embed));
    mp_let(&f, &position_ids, mp_position_ids(rt, in->seq));
    out->cache = mp_kv_cache_new(rt, net, (int)c->n_blocks);
    const enum mp_dtype dtype = (enum mp_dtype)embeds->dtype;
    if (c->kind != MISTRAL) /* one mask for each kind of layer */
        mp_let(&f, &mask, mp_causal_mask(rt, net, in, dtype, 0));
    if (c->kind == MISTRAL || c->sliding)
        mp_let(&f, &sliding_mask, mp_causal_mask(rt, net, in, dtype, c->sliding));
    mp_let(&f, &hidden, embeds);
    mp_rotary_tables(rt, m->inverse_frequencies, position_ids, dtype, &table[0], &table[1]);
    mp_let(&f, &cosine, table[0]);
    mp_let(&f, &sine, table[1]);
    for (int i = 0; i < (int)c->n_blocks; i++) {
        const struct mp_layer block = {block_forward, net, i, 1, 1, {c->kind == MISTRAL || slides(c, i) ? sliding_mask : mask, cosine, sine, position_ids},
                                        out->cache};
        struct mp_tensor *next;
        mp_layer_call(rt, &block, mp_checkpointing_of(net, i), &hidden, &next);
        mp_let(&f, &hidden, next);
    }
    mp_let(&f, &hidden, mp_rms_norm(rt, hidden, m->norm));
    return mp_leave(&f, hidden);
}

static void forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in, struct mp_outputs *out)
{
    const struct module *m = net->module;
    mp_causal_outputs(rt, body(rt, net, in, out), m->head, in->labels, out);
}

const struct mp_family mp_family_llama = {"llama", "LlamaForCausalLM", configure_llama, n_blocks, positions, build, forward};
const struct mp_family mp_family_mistral = {"mistral", "MistralForCausalLM", configure_mistral, n_blocks, positions, build, forward};
const struct mp_family mp_family_qwen2 = {"qwen2", "Qwen2ForCausalLM", configure_qwen2, n_blocks, positions, build, forward};
const struct mp_family mp_family_qwen3 = {"qwen3", "Qwen3ForCausalLM", configure_qwen3, n_blocks, positions, build, forward};
