/* SPDX-License-Identifier: MIT */
/*
 * T5: T5ForConditionalGeneration. Encoder and decoder, relative positions as a
 * bias on attention scores, norms without mean, the head tied to a scaled
 * output. Decoder blocks are numbered on from the encoder's.
 */
#include "arch/t5_bias.h"

struct config {
    int64_t vocabulary, positions, hidden, head_dim, inner, heads, buckets, n_encoder, n_decoder;
    double dropout;
    enum mp_activation activation;
    bool gated, scaled;
};

struct attention {
    struct mp_linear_layer q, k, v, o;
    struct mp_tensor *relative, *norm; /* relative: the first block of a stack has the table */
};

struct block {
    struct attention self, cross;        /* cross: decoder only */
    struct mp_linear_layer wi, wi_1, wo; /* wi_1: gated variants */
    struct mp_tensor *norm;
};

struct module {
    struct mp_tensor *shared, *head, *final_norm[2];
    struct block *blocks; /* encoder, then decoder */
};

/* feed_forward_proj: "relu", "gated-gelu" */
static void read_feed_forward(struct mp_config *c, struct config *m)
{
    static const enum mp_activation of_choice[] = {MP_RELU,     MP_GELU,     MP_SILU,
                                                   MP_GELU_NEW, MP_GELU_NEW, MP_SILU};
    const int choice = mp_config_choice(c, "feed_forward_proj",
                                        "relu|gelu|silu|gelu_new|gated-gelu|gated-silu", 0);
    m->activation = of_choice[choice];
    m->gated = choice >= 4;
}

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    m->vocabulary = mp_config_size(c, "vocab_size", 32128);
    m->positions = mp_config_size(c, "n_positions", 512);
    m->hidden = mp_config_size(c, "d_model|hidden_size", 512);
    m->head_dim = mp_config_size(c, "d_kv|head_dim", 64);
    m->inner = mp_config_size(c, "d_ff", 2048);
    m->heads = mp_config_size(c, "num_heads|num_attention_heads", 8);
    m->buckets = mp_config_size(c, "relative_attention_num_buckets", 32);
    m->n_encoder = mp_config_size(c, "num_layers|num_hidden_layers", 6);
    m->n_decoder = mp_config_size_or_null(c, "num_decoder_layers", m->n_encoder);
    m->dropout = mp_config_probability(c, "dropout_rate", 0.1);
    /* "false" means that the head's input is not scaled; tied they are either way (T5Config) */
    m->scaled = mp_config_bool(c, "tie_word_embeddings", true);
    read_feed_forward(c, m);
    return m;
}

static int64_t n_blocks(const void *config)
{
    const struct config *c = config;
    return c->n_encoder + c->n_decoder;
}

static int64_t positions(const void *config, bool *hard)
{
    *hard = false;
    return ((const struct config *)config)->positions;
}

/* ---- __init__ ---- */

static void build_attention(struct mp_runtime *rt, struct mp_net *net, struct attention *a,
                            const char *const names[4], bool relative)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden, inner = c->heads * c->head_dim;
    a->q = mp_linear_new(rt, net, names[0], inner, h, false);
    a->k = mp_linear_new(rt, net, names[1], inner, h, false);
    a->v = mp_linear_new(rt, net, names[2], inner, h, false);
    a->o = mp_linear_new(rt, net, names[3], h, inner, false);
    if (relative)
        a->relative =
            mp_parameter(rt, net, "relative_attention_bias", MP_SHAPE(c->buckets, c->heads));
    a->norm = mp_rms_norm_new(rt, net, "layer_norm", h).weight;
}

static void build_block(struct mp_runtime *rt, struct mp_net *net, struct block *b, bool decoder,
                        bool first)
{
    static const char *const self[] = {"SelfAttention.q", "SelfAttention.k", "SelfAttention.v",
                                       "SelfAttention.o"};
    static const char *const cross[] = {"EncDecAttention.q", "EncDecAttention.k",
                                        "EncDecAttention.v", "EncDecAttention.o"};
    const struct config *c = net->config;
    build_attention(rt, net, &b->self, self, first);
    if (decoder)
        build_attention(rt, net, &b->cross, cross, false);
    b->wi = mp_linear_new(rt, net, c->gated ? "DenseReluDense.wi_0" : "DenseReluDense.wi", c->inner,
                          c->hidden, false);
    if (c->gated)
        b->wi_1 = mp_linear_new(rt, net, "DenseReluDense.wi_1", c->inner, c->hidden, false);
    b->wo = mp_linear_new(rt, net, "DenseReluDense.wo", c->hidden, c->inner, false);
    b->norm = mp_rms_norm_new(rt, net, "layer_norm", c->hidden).weight;
}

/* A table that is made and then replaced by the shared one; NULL where the
 * model is built on the host. */
static struct mp_tensor *spare_table(struct mp_runtime *rt, const struct mp_net *net)
{
    const struct config *c = net->config;
    return net->run->init_cpu ? NULL : mp_empty(rt, MP_SHAPE(c->vocabulary, c->hidden), net->dtype);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    const int64_t of_stack[2] = {c->n_encoder, c->n_decoder};
    struct mp_tensor *spare[2];
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    int64_t at = 0;
    m->shared = mp_parameter(rt, net, "shared", MP_SHAPE(c->vocabulary, c->hidden));
    m->blocks = mp_runtime_alloc(rt, (size_t)n_blocks(c) * sizeof *m->blocks);
    for (int stack = 0; stack < 2; stack++) {
        spare[stack] = spare_table(rt, net);
        for (int64_t i = 0; i < of_stack[stack]; i++) {
            rt->layer = (int)at;
            build_block(rt, net, &m->blocks[at++], stack == 1, i == 0);
        }
        rt->layer = -1;
        m->final_norm[stack] = mp_rms_norm_new(rt, net, "final_layer_norm", c->hidden).weight;
    }
    m->head = mp_head_new(rt, net, m->shared, true);
    mp_discard(rt, spare[0]);
    mp_discard(rt, spare[1]);
}

/* ---- forward ---- */

/* T5LayerNorm: the product uses x as it came in, the cast comes after it */
static struct mp_tensor *norm(struct mp_runtime *rt, struct mp_tensor *hidden,
                              struct mp_tensor *weight)
{
    struct mp_tensor *variance = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &variance, mp_mean_last(rt, mp_pow(rt, mp_to(rt, hidden, MP_F32), 2)));
    mp_let(&f, &hidden, mp_mul(rt, hidden, mp_rsqrt(rt, mp_add_number(rt, variance, 1e-6))));
    if (mp_dtype_is_half((enum mp_dtype)weight->dtype))
        mp_let(&f, &hidden, mp_to(rt, hidden, (enum mp_dtype)weight->dtype));
    return mp_leave(&f, mp_mul(rt, weight, hidden));
}

static struct mp_tensor *normalise(struct mp_runtime *rt, struct mp_tensor *hidden,
                                   struct mp_tensor *weight)
{
    struct mp_module_call call;
    hidden = mp_module_begin(rt, &call, MP_MODULE_NORM, weight, NULL, hidden);
    return mp_module_end(rt, &call, norm(rt, hidden, weight));
}

/* What the first block of a stack makes and the others are handed: the bias
 * from the table, or zeros in cross attention. */
static struct mp_tensor *first_bias(struct mp_runtime *rt, const struct mp_net *net,
                                    const struct attention *a, struct mp_tensor *query,
                                    int64_t keys, bool decoder)
{
    const struct config *c = net->config;
    if (a->relative)
        return mp_t5_bias(rt, a->relative, mp_dim(query, 2), !decoder);
    struct mp_tensor *zeros =
        mp_empty(rt, MP_SHAPE(1, c->heads, mp_dim(query, 2), keys), (enum mp_dtype)query->dtype);
    /* so that it may be an output of a checkpoint */
    zeros->requires_grad = net->run->checkpoint != MP_CHECKPOINT_NONE && rt->training;
    return zeros;
}

/* T5Attention. source: the encoder's states, or NULL. *bias comes in and goes
 * out. */
static struct mp_tensor *attend(struct mp_runtime *rt, const struct mp_net *net,
                                const struct attention *a, struct mp_tensor *hidden,
                                struct mp_tensor *mask, struct mp_tensor *source,
                                struct mp_tensor **bias_inout, bool decoder,
                                struct mp_tensor **weights_out)
{
    static const struct mp_eager_style style = {0};
    const struct config *c = net->config;
    struct mp_tensor *bias = *bias_inout, *query = NULL, *current = NULL, *key = NULL,
                     *value = NULL, *output = NULL, *weights = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask, &source, &bias);
    mp_let(&f, &query, mp_project_heads(rt, hidden, &a->q, c->head_dim));
    mp_let(&f, &current, source ? source : hidden);
    mp_let(&f, &key, mp_apply_linear(rt, current, &a->k));
    mp_let(&f, &value, mp_apply_linear(rt, current, &a->v));
    mp_let(&f, &key, mp_split_heads(rt, key, c->head_dim));
    mp_let(&f, &value, mp_split_heads(rt, value, c->head_dim));
    if (!bias)
        mp_let(&f, &bias, first_bias(rt, net, a, query, mp_dim(current, 1), decoder));
    const struct mp_attention_args args = {.net = net,
                                           .style = &style,
                                           .mask = mask,
                                           .bias = bias,
                                           .dropout = c->dropout,
                                           .groups = 1,
                                           .causal = decoder && !source};
    mp_let(&f, &output, mp_attend(rt, &args, query, key, value, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, mp_merge_heads(rt, output));
    mp_let(&f, &output, mp_apply_linear(rt, output, &a->o));
    mp_give(&f, bias_inout, bias);
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

/* T5LayerSelfAttention, T5LayerCrossAttention */
static struct mp_tensor *attention_layer(struct mp_runtime *rt, const struct mp_net *net,
                                         const struct attention *a, struct mp_tensor *hidden,
                                         struct mp_tensor *mask, struct mp_tensor *source,
                                         struct mp_tensor **bias_inout, bool decoder,
                                         struct mp_tensor **weights_out)
{
    const struct config *c = net->config;
    struct mp_tensor *bias = *bias_inout, *normed = NULL, *output = NULL, *weights = NULL, *made,
                     *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask, &source, &bias);
    mp_let(&f, &normed, normalise(rt, hidden, a->norm));
    made = bias;
    mp_let(&f, &output, attend(rt, net, a, normed, mask, source, &made, decoder, &returned));
    mp_let(&f, &bias, made);
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, mp_add(rt, hidden, mp_apply_dropout(rt, output, c->dropout)));
    mp_give(&f, bias_inout, bias);
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

/* T5DenseActDense, T5DenseGatedActDense: wo stays in float32 when the others
 * are half */
static struct mp_tensor *dense(struct mp_runtime *rt, const struct config *c, const struct block *b,
                               struct mp_tensor *hidden)
{
    struct mp_tensor *gate = NULL, *linear = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    if (c->gated) {
        mp_let(&f, &gate, mp_activate(rt, c->activation, mp_apply_linear(rt, hidden, &b->wi)));
        mp_let(&f, &linear, mp_apply_linear(rt, hidden, &b->wi_1));
        mp_let(&f, &hidden, mp_mul(rt, gate, linear));
    } else {
        mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &b->wi));
        mp_let(&f, &hidden, mp_activate(rt, c->activation, hidden));
    }
    mp_let(&f, &hidden, mp_apply_dropout(rt, hidden, c->dropout));
    mp_let(&f, &hidden, mp_to(rt, hidden, (enum mp_dtype)b->wo.weight->dtype));
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &b->wo));
    return mp_leave(&f, hidden);
}

static struct mp_tensor *feed_forward(struct mp_runtime *rt, const struct config *c,
                                      const struct block *b, struct mp_tensor *hidden)
{
    struct mp_tensor *forwarded = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &forwarded, normalise(rt, hidden, b->norm));
    mp_let(&f, &forwarded, dense(rt, c, b, forwarded));
    mp_let(&f, &hidden, mp_add(rt, hidden, mp_apply_dropout(rt, forwarded, c->dropout)));
    return mp_leave(&f, hidden);
}

/* torch.where(torch.isinf(hidden).any(), 64504, 65504): |hidden| == inf, a byte each, is reduced to
 * one; both numbers become tensors for the time. */
static struct mp_tensor *clamp_limit(struct mp_runtime *rt, struct mp_tensor *hidden)
{
    struct mp_tensor *absolute = mp_pointwise(rt, MP_TENSORS(hidden));
    struct mp_tensor *infinite = mp_empty_like(rt, hidden, MP_BOOL);
    mp_discard(rt, absolute);
    struct mp_tensor *any = mp_reduce(rt, infinite, (1u << hidden->shape.n) - 1, false);
    mp_discard(rt, infinite);
    struct mp_tensor *larger = mp_empty(rt, MP_SCALAR, MP_F32);
    struct mp_tensor *smaller = mp_empty(rt, MP_SCALAR, MP_F32);
    struct mp_tensor *limit = mp_empty(rt, MP_SCALAR, MP_F32);
    mp_discard(rt, smaller);
    mp_discard(rt, larger);
    mp_discard(rt, any);
    return limit;
}

/* float16 states are clamped after each part of a block. */
static void clamp(struct mp_runtime *rt, struct mp_frame *f, struct mp_tensor **hidden,
                  struct mp_tensor **limit)
{
    if ((*hidden)->dtype != MP_F16)
        return;
    mp_let(f, limit, clamp_limit(rt, *hidden));
    struct mp_tensor *minimum = mp_neg(rt, *limit);
    mp_let(f, hidden, mp_clamp(rt, *hidden, minimum, *limit));
}

enum { ARG_HIDDEN, ARG_MASK, ARG_BIAS, ARG_ENCODED, ARG_CROSS_BIAS, N_ARGS };
enum { OUT_HIDDEN, OUT_BIAS, OUT_CROSS_BIAS, N_OUTPUTS };

/* T5Block returns the biases, for the next block. */
static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    const bool decoder = call->index >= c->n_encoder;
    struct mp_tensor *hidden = args[ARG_HIDDEN], *mask = args[ARG_MASK], *bias = args[ARG_BIAS],
                     *encoded = args[ARG_ENCODED], *cross_bias = args[ARG_CROSS_BIAS],
                     *weights = NULL, *limit = NULL, *made, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask, &bias, &encoded, &cross_bias);
    made = bias;
    mp_let(&f, &hidden,
           attention_layer(rt, net, &b->self, hidden, mask, NULL, &made, decoder, &returned));
    mp_let(&f, &bias, made);
    mp_let(&f, &weights, returned);
    clamp(rt, &f, &hidden, &limit);
    if (decoder) {
        made = cross_bias;
        mp_let(
            &f, &hidden,
            attention_layer(rt, net, &b->cross, hidden, NULL, encoded, &made, decoder, &returned));
        mp_let(&f, &cross_bias, made);
        mp_let(&f, &weights, returned);
        clamp(rt, &f, &hidden, &limit);
    }
    mp_let(&f, &hidden, feed_forward(rt, c, b, hidden));
    clamp(rt, &f, &hidden, &limit);
    mp_give(&f, &out[OUT_BIAS], bias);
    mp_give(&f, &out[OUT_CROSS_BIAS], cross_bias);
    out[OUT_HIDDEN] = mp_leave(&f, hidden);
}

/* T5Stack */
static struct mp_tensor *run_stack(struct mp_runtime *rt, const struct mp_net *net,
                                   struct mp_tensor *ids, struct mp_tensor *encoded, bool decoder)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    const int first = decoder ? (int)c->n_encoder : 0,
              end = decoder ? (int)n_blocks(c) : (int)c->n_encoder;
    struct mp_tensor *mask = NULL, *embeds = NULL, *bias = NULL, *cross_bias = NULL, *hidden = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &ids, &encoded);
    mp_let(&f, &embeds, mp_embed_tokens(rt, net, ids, m->shared));
    if (decoder && net->attention == MP_ATTENTION_EAGER)
        mp_let(
            &f, &mask,
            mp_eager_causal_mask(rt, mp_dim(ids, 0), mp_dim(ids, 1), (enum mp_dtype)embeds->dtype));
    mp_let(&f, &hidden, mp_apply_dropout(rt, embeds, c->dropout));
    for (int i = first; i < end; i++) {
        const struct mp_layer block = {.forward = block_forward, .model = net, .index = i, .n_args = N_ARGS, .n_outputs = N_OUTPUTS};
        struct mp_tensor *next[N_OUTPUTS] = {NULL};
        mp_block_call(rt, &block,
                      (struct mp_tensor *[]){hidden, mask, bias, encoded, cross_bias}, next);
        mp_let(&f, &hidden, next[OUT_HIDDEN]);
        mp_let(&f, &bias, next[OUT_BIAS]);
        mp_let(&f, &cross_bias, next[OUT_CROSS_BIAS]);
    }
    mp_let(&f, &hidden, normalise(rt, hidden, m->final_norm[decoder]));
    mp_let(&f, &hidden, mp_apply_dropout(rt, hidden, c->dropout));
    return mp_leave(&f, hidden);
}

/* _shift_right(labels): a start token in front, padding where labels are
 * ignored */
static struct mp_tensor *shift_right(struct mp_runtime *rt, const struct mp_inputs *in)
{
    struct mp_tensor *shifted = mp_empty(rt, MP_SHAPE(in->batch, in->seq), MP_I64);
    mp_discard(rt, mp_empty(rt, MP_SHAPE(in->batch, in->seq - 1), MP_I64));
    mp_discard(rt, mp_empty(rt, MP_SHAPE(in->batch, in->seq), MP_BOOL));
    return shifted;
}

static void forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in,
                    struct mp_outputs *out)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    struct mp_tensor *encoded = NULL, *decoder_ids = NULL, *sequence = NULL, *scaled = NULL,
                     *logits = NULL, *loss = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &encoded, run_stack(rt, net, in->input_ids, NULL, false));
    mp_let(&f, &decoder_ids, shift_right(rt, in));
    mp_let(&f, &sequence, run_stack(rt, net, decoder_ids, encoded, true));
    mp_let(&f, &scaled, c->scaled ? mp_mul_number(rt, sequence, 0.05) : sequence);
    mp_let(&f, &logits, mp_linear(rt, scaled, m->head, NULL));
    mp_tag(rt, logits->storage, MP_CATEGORY_LOGITS);
    struct mp_tensor *rows = mp_view(rt, logits, MP_SHAPE(-1, c->vocabulary));
    struct mp_tensor *targets = mp_view(rt, in->labels, MP_SHAPE(-1));
    mp_let(&f, &loss, mp_cross_entropy(rt, rows, targets));
    mp_give(&f, &out->logits, logits);
    mp_give(&f, &out->hidden, encoded);
    out->loss = mp_leave(&f, loss);
}

const struct mp_family mp_family_t5 = {.model_type = "t5",
                                       .architecture = "T5ForConditionalGeneration",
                                       .no_nf4 = true,
                                       .own_loss = true,
                                       .configure = configure,
                                       .n_blocks = n_blocks,
                                       .positions = positions,
                                       .build = build,
                                       .forward = forward,
                                       .no_mask = true,
                                       .no_cache = true};
