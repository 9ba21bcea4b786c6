/* SPDX-License-Identifier: MIT */
/*
 * BERT and RoBERTa: BertForMaskedLM, RobertaForMaskedLM. Three embeddings summed, post-norm blocks, a prediction head with a tied
 * decoder. RoBERTa counts positions from the tokens that are not padding.
 */
#include "arch/arch.h"

struct config {
    int64_t vocabulary, positions, types, hidden, inner, n_blocks, heads;
    double dropout_hidden, dropout_attention;
    enum mp_activation activation;
    bool roberta, tied;
};

struct block {
    struct mp_linear_layer query, key, value, attention_out, intermediate, out;
    struct mp_norm_layer attention_norm, norm;
};

struct module {
    struct mp_tensor *words, *positions, *types, *position_ids;
    struct mp_tensor *bias;         /* of the head; without a tied decoder nothing uses it */
    struct mp_linear_layer decoder; /* tied: the words and the head's bias */
    struct mp_norm_layer norm, head_norm;
    struct mp_linear_layer head_dense;
    struct block *blocks;
};

static const void *configure_as(struct mp_arena *arena, struct mp_config *c, bool roberta)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    m->roberta = roberta;
    m->tied = mp_config_bool(c, "tie_word_embeddings", true);
    m->vocabulary = mp_config_size(c, "vocab_size", roberta ? 50265 : 30522);
    m->positions = mp_config_size(c, "max_position_embeddings", 512);
    m->types = mp_config_size(c, "type_vocab_size", 2);
    m->hidden = mp_config_size(c, "hidden_size", 768);
    m->inner = mp_config_size(c, "intermediate_size", 3072);
    m->n_blocks = mp_config_size(c, "num_hidden_layers", 12);
    m->heads = mp_config_size(c, "num_attention_heads", 12);
    m->activation = mp_config_activation(c, "hidden_act", MP_GELU);
    m->dropout_hidden = mp_config_probability(c, "hidden_dropout_prob", 0.1);
    m->dropout_attention = mp_config_probability(c, "attention_probs_dropout_prob", 0.1);
    if (m->hidden % m->heads)
        mp_config_problem(c, "num_attention_heads", "%lld does not divide hidden_size %lld", (long long)m->heads, (long long)m->hidden);
    return m;
}

static const void *configure(struct mp_arena *arena, struct mp_config *c) { return configure_as(arena, c, false); }
static const void *configure_roberta(struct mp_arena *arena, struct mp_config *c) { return configure_as(arena, c, true); }

static int64_t n_blocks(const void *config) { return ((const struct config *)config)->n_blocks; }

static int64_t positions(const void *config, bool *hard)
{
    const struct config *c = config;
    *hard = true;
    return c->roberta ? MP_MAX(c->positions - 2, 1) : c->positions; /* rows 0 and 1 are for padding */
}

/* ---- __init__ ---- */

static void build_block(struct mp_runtime *rt, struct mp_net *net, struct block *b)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden;
    b->query = mp_linear_new(rt, net, "attention.self.query", h, h, true);
    b->key = mp_linear_new(rt, net, "attention.self.key", h, h, true);
    b->value = mp_linear_new(rt, net, "attention.self.value", h, h, true);
    b->attention_out = mp_linear_new(rt, net, "attention.output.dense", h, h, true);
    b->attention_norm = mp_layer_norm_new(rt, net, "attention.output.LayerNorm", h);
    b->intermediate = mp_linear_new(rt, net, "intermediate.dense", c->inner, h, true);
    b->out = mp_linear_new(rt, net, "output.dense", h, c->inner, true);
    b->norm = mp_layer_norm_new(rt, net, "output.LayerNorm", h);
}

/*
 * The decoder is made with a weight and a bias of its own; the weight is tied, the biases are joined: its bias is padded to the
 * vocabulary twice, and the second copy is what stays as the head's bias.
 */
static struct mp_tensor *build_tied_decoder(struct mp_runtime *rt, struct mp_net *net, int first)
{
    const struct config *c = net->config;
    struct mp_tensor *spare[4] = {NULL};
    if (!net->run->init_cpu) {
        spare[0] = mp_empty(rt, MP_SHAPE(c->vocabulary, c->hidden), net->dtype);
        spare[1] = mp_empty(rt, MP_SHAPE(c->vocabulary), net->dtype);
        spare[2] = mp_empty(rt, MP_SHAPE(c->vocabulary), net->dtype);
        mp_discard(rt, spare[0]);
        spare[3] = mp_empty(rt, MP_SHAPE(c->vocabulary), net->dtype);
        mp_discard(rt, spare[1]);
        mp_discard(rt, spare[3]);
    }
    struct mp_tensor *bias = mp_parameter(rt, net, "cls.predictions.bias", MP_SHAPE(c->vocabulary));
    mp_parameter_move_last(net, first);
    mp_discard(rt, spare[2]);
    return bias;
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->words = mp_parameter(rt, net, "word_embeddings", MP_SHAPE(c->vocabulary, h));
    mp_filled(rt, net); /* padding_idx */
    if (!c->roberta)
        m->positions = mp_parameter(rt, net, "position_embeddings", MP_SHAPE(c->positions, h));
    m->types = mp_parameter(rt, net, "token_type_embeddings", MP_SHAPE(c->types, h));
    m->norm = mp_layer_norm_new(rt, net, "embeddings.LayerNorm", h);
    if (c->roberta && net->run->init_cpu) /* a module's children are moved before its buffers */
        m->positions = mp_parameter(rt, net, "position_embeddings", MP_SHAPE(c->positions, h));
    m->position_ids = mp_buffer(rt, MP_SHAPE(1, c->positions), MP_I64);
    mp_record(rt, "arange", MP_NO_TENSORS, MP_TENSORS(m->position_ids), MP_NO_ATTRIBUTES);
    mp_record_fill(rt, mp_buffer(rt, MP_SHAPE(1, c->positions), MP_I64), 0); /* token_type_ids */
    if (!m->positions)
        m->positions = mp_parameter(rt, net, "position_embeddings", MP_SHAPE(c->positions, h));
    m->blocks = mp_runtime_alloc(rt, (size_t)c->n_blocks * sizeof *m->blocks);
    for (int64_t i = 0; i < c->n_blocks; i++) {
        rt->layer = (int)i;
        build_block(rt, net, &m->blocks[i]);
    }
    rt->layer = -1;
    if (!net->run->init_cpu) /* _init_weights fills position_ids */
        mp_discard(rt, mp_empty(rt, MP_SHAPE(1, c->positions), MP_I64));
    const int head = net->n_parameters;
    m->head_dense = mp_linear_new(rt, net, "cls.predictions.transform.dense", h, h, true);
    m->head_norm = mp_layer_norm_new(rt, net, "cls.predictions.transform.LayerNorm", h);
    if (c->tied) {
        m->bias = build_tied_decoder(rt, net, head);
        m->decoder = (struct mp_linear_layer){.weight = m->words, .bias = m->bias};
        return;
    }
    m->decoder.weight = mp_parameter(rt, net, "cls.predictions.decoder", MP_SHAPE(c->vocabulary, h));
    m->decoder.bias = mp_parameter(rt, net, "cls.predictions.decoder", MP_SHAPE(c->vocabulary));
    m->bias = mp_parameter(rt, net, "cls.predictions.bias", MP_SHAPE(c->vocabulary));
    mp_parameter_move_last(net, head);
}

/* ---- forward ---- */

/* create_position_ids_from_input_ids: (cumsum(mask) * mask).long() + padding_idx */
static struct mp_tensor *position_ids_from(struct mp_runtime *rt, const struct mp_inputs *in)
{
    const struct mp_shape shape = MP_SHAPE(in->batch, in->seq);
    struct mp_tensor *unequal = mp_empty(rt, shape, MP_BOOL);
    struct mp_tensor *mask = mp_empty(rt, shape, MP_I32);
    mp_discard(rt, unequal);
    struct mp_tensor *sum = mp_empty(rt, shape, MP_I64);
    struct mp_tensor *wide = mp_empty(rt, shape, MP_I64); /* cumsum of int32 counts in int64 */
    if (in->batch == 1)
        mp_scratch(rt, mp_scan_temp(in->seq, MP_SCAN_TILE));
    mp_discard(rt, wide);
    struct mp_tensor *counted = mp_empty(rt, shape, MP_I32); /* type_as(mask) */
    mp_discard(rt, sum);
    struct mp_tensor *shifted = mp_empty(rt, shape, MP_I32); /* + past_key_values_length */
    mp_discard(rt, counted);
    struct mp_tensor *product = mp_empty(rt, shape, MP_I32);
    mp_discard(rt, shifted);
    struct mp_tensor *ids = mp_add_number(rt, mp_empty(rt, shape, MP_I64), 1);
    mp_discard(rt, product);
    mp_discard(rt, mask);
    return ids;
}

/* Gathered from the buffer: one row, broadcast; RoBERTa gathers for every row. */
static struct mp_tensor *token_type_ids(struct mp_runtime *rt, const struct config *c, const struct mp_inputs *in)
{
    const struct mp_shape shape = MP_SHAPE(in->batch, in->seq);
    struct mp_tensor *gathered = mp_empty(rt, c->roberta ? shape : MP_SHAPE(1, in->seq), MP_I64);
    mp_checks_indices(rt);
    if (c->roberta)
        return gathered;
    mp_record_fill(rt, gathered, 0);
    return mp_expand(rt, gathered, shape);
}

static struct mp_tensor *position_ids(struct mp_runtime *rt, const struct config *c, const struct module *m, const struct mp_inputs *in)
{
    if (c->roberta)
        return position_ids_from(rt, in);
    return mp_alias(rt, m->position_ids, MP_SHAPE(1, in->seq), m->position_ids->stride, m->position_ids);
}

static struct mp_tensor *embed(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    struct mp_tensor *ids = NULL, *type_ids = NULL, *words = NULL, *types = NULL, *sum = NULL, *positions_embedded = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_container_begin(rt);
    mp_let(&f, &ids, position_ids(rt, c, m, in));
    mp_let(&f, &type_ids, token_type_ids(rt, c, in));
    mp_let(&f, &words, mp_embed_tokens(rt, net, in->input_ids, m->words));
    mp_let(&f, &types, mp_embedding(rt, type_ids, m->types));
    mp_let(&f, &sum, mp_add(rt, words, types));
    mp_let(&f, &positions_embedded, mp_embedding(rt, ids, m->positions));
    mp_let(&f, &sum, mp_add(rt, sum, positions_embedded));
    mp_let(&f, &sum, mp_apply_norm(rt, sum, &m->norm));
    mp_let(&f, &sum, mp_container_end(rt, mp_apply_dropout(rt, sum, c->dropout_hidden)));
    return mp_leave(&f, sum);
}

static struct mp_tensor *self_attention(struct mp_runtime *rt, const struct mp_net *net, const struct block *b, struct mp_tensor *hidden,
                                        struct mp_tensor *mask, struct mp_tensor **weights_out)
{
    static const struct mp_eager_style style = {0};
    const struct config *c = net->config;
    struct mp_tensor *query = NULL, *key = NULL, *value = NULL, *output = NULL, *weights = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask);
    mp_let(&f, &query, mp_project_heads(rt, hidden, &b->query, c->hidden / c->heads));
    mp_let(&f, &key, mp_project_heads(rt, hidden, &b->key, c->hidden / c->heads));
    mp_let(&f, &value, mp_project_heads(rt, hidden, &b->value, c->hidden / c->heads));
    const struct mp_attention_args args = {.net = net, .style = &style, .mask = mask, .dropout = c->dropout_attention, .groups = 1};
    mp_let(&f, &output, mp_attend(rt, &args, query, key, value, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, mp_merge_heads(rt, output));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

/* BertSelfOutput and BertOutput: dense, dropout, norm of the sum with the input */
static struct mp_tensor *output(struct mp_runtime *rt, const struct config *c, const struct mp_linear_layer *dense, const struct mp_norm_layer *norm,
                                struct mp_tensor *hidden, struct mp_tensor *input)
{
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &input);
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, dense));
    mp_let(&f, &hidden, mp_apply_dropout(rt, hidden, c->dropout_hidden));
    mp_let(&f, &hidden, mp_apply_norm(rt, mp_add(rt, hidden, input), norm));
    return mp_leave(&f, hidden);
}

static const struct block *block_of(const struct mp_layer *call)
{
    return &((const struct module *)((const struct mp_net *)call->model)->module)->blocks[call->index];
}

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *hidden, struct mp_tensor *mask,
                                   struct mp_tensor **weights_out)
{
    const struct mp_net *net = call->model;
    const struct block *b = block_of(call);
    struct mp_tensor *attended = NULL, *weights = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask);
    mp_let(&f, &attended, self_attention(rt, net, b, hidden, mask, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &attended, output(rt, net->config, &b->attention_out, &b->attention_norm, attended, hidden));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, attended);
}

static struct mp_tensor *intermediate(struct mp_runtime *rt, const struct config *c, const struct block *b, struct mp_tensor *hidden)
{
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &b->intermediate));
    mp_let(&f, &hidden, mp_activate(rt, c->activation, hidden));
    return mp_leave(&f, hidden);
}

static struct mp_tensor *feed_forward(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor *attended)
{
    const struct config *c = ((const struct mp_net *)call->model)->config;
    const struct block *b = block_of(call);
    struct mp_tensor *inner = NULL, *result = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &attended);
    mp_let(&f, &inner, intermediate(rt, c, b, attended));
    mp_let(&f, &result, output(rt, c, &b->out, &b->norm, inner, attended));
    return mp_leave(&f, result);
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args, struct mp_tensor **out)
{
    struct mp_tensor *hidden = args[0], *mask = args[1], *self_attended = NULL, *weights = NULL, *attended = NULL, *result = NULL, *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask);
    mp_let(&f, &self_attended, mp_masked_attention_part(rt, call, (union mp_part_forward){.attend_masked = attention}, hidden, mask, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &attended, self_attended);
    mp_let(&f, &result, mp_mlp_part(rt, call, (union mp_part_forward){.feed = feed_forward}, attended));
    out[0] = mp_leave(&f, result);
}

static struct mp_tensor *encoder(struct mp_runtime *rt, const struct mp_net *net, struct mp_tensor *hidden, struct mp_tensor *mask)
{
    const struct config *c = net->config;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &mask);
    for (int i = 0; i < (int)c->n_blocks; i++) {
        const struct mp_layer block = {.forward = block_forward, .model = net, .index = i, .n_args = 2, .n_outputs = 1};
        struct mp_tensor *next;
        mp_block_call(rt, &block, (struct mp_tensor *[]){hidden, mask}, &next);
        mp_let(&f, &hidden, next);
    }
    return mp_leave(&f, hidden);
}

static struct mp_tensor *body(struct mp_runtime *rt, const struct mp_net *net, const struct mp_inputs *in)
{
    struct mp_tensor *mask = NULL, *embedded = NULL, *sequence = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_container_begin(rt); /* the model below the head */
    mp_let(&f, &mask, NULL); /* attention_mask is a parameter of forward(): it dies first */
    mp_let(&f, &embedded, embed(rt, net, in));
    mp_let(&f, &mask, mp_bidirectional_mask(rt, net, in, (enum mp_dtype)embedded->dtype));
    mp_let(&f, &sequence, encoder(rt, net, embedded, mask));
    return mp_leave(&f, sequence);
}

/* BertPredictionHeadTransform; RobertaLMHead does it by itself, with the function gelu() whatever hidden_act says */
static struct mp_tensor *transform(struct mp_runtime *rt, const struct mp_net *net, struct mp_tensor *hidden)
{
    const struct module *m = net->module;
    const struct config *c = net->config;
    struct mp_frame f;
    mp_enter(rt, &f, !c->roberta, MP_VARS(&hidden), 1);
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &m->head_dense));
    mp_let(&f, &hidden, c->roberta ? mp_gelu(rt, hidden) : mp_activate(rt, c->activation, hidden));
    mp_let(&f, &hidden, mp_apply_norm(rt, hidden, &m->head_norm));
    return mp_leave(&f, hidden);
}

/* BertLMPredictionHead and RobertaLMHead have a bias, which is the decoder's too. */
static struct mp_tensor *predictions(struct mp_runtime *rt, const struct mp_net *net, struct mp_tensor *hidden)
{
    const struct module *m = net->module;
    struct mp_module_call call;
    struct mp_frame f;
    hidden = mp_module_begin_as(rt, &call, &(struct mp_module){MP_MODULE_OTHER, 1, {m->bias}}, hidden);
    mp_child_begin(rt, &call);
    MP_FUNCTION(rt, &f, &hidden);
    mp_let(&f, &hidden, transform(rt, net, hidden));
    mp_let(&f, &hidden, mp_linear(rt, hidden, m->decoder.weight, m->decoder.bias));
    mp_tag(rt, hidden->storage, MP_CATEGORY_LOGITS);
    hidden = mp_leave(&f, hidden);
    mp_child_end(rt, &call);
    return mp_module_end(rt, &call, hidden);
}

/* BertOnlyMLMHead */
static struct mp_tensor *only_head(struct mp_runtime *rt, const struct mp_net *net, struct mp_tensor *hidden)
{
    mp_container_begin(rt);
    return mp_container_end(rt, predictions(rt, net, hidden));
}

static void forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in, struct mp_outputs *out)
{
    const struct config *c = net->config;
    struct mp_tensor *sequence = NULL, *scores = NULL, *loss = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &sequence, mp_container_end(rt, body(rt, net, in)));
    mp_let(&f, &scores, c->roberta ? predictions(rt, net, sequence) : only_head(rt, net, sequence));
    struct mp_tensor *rows = mp_view(rt, scores, MP_SHAPE(-1, c->vocabulary));
    struct mp_tensor *targets = mp_view(rt, in->labels, MP_SHAPE(-1));
    mp_let(&f, &loss, mp_cross_entropy(rt, rows, targets));
    mp_give(&f, &out->logits, scores);
    out->loss = mp_leave(&f, loss);
}

const struct mp_family mp_family_bert = {.model_type = "bert",
                                          .architecture = "BertForMaskedLM",
                                          .no_nf4 = true,
                                          .own_loss = true,
                                          .has_part = {true, true},
                                          .configure = configure,
                                          .n_blocks = n_blocks,
                                          .positions = positions,
                                          .build = build,
                                          .forward = forward};

const struct mp_family mp_family_roberta = {.model_type = "roberta",
                                            .architecture = "RobertaForMaskedLM",
                                            .no_nf4 = true,
                                            .own_loss = true,
                                            .has_part = {true, true},
                                            .configure = configure_roberta,
                                            .n_blocks = n_blocks,
                                            .positions = positions,
                                            .build = build,
                                            .forward = forward};
