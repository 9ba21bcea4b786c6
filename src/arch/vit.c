/* SPDX-License-Identifier: MIT */
/*
 * ViT: ViTForImageClassification. An image is cut into patches; their number
 * and a class token make the sequence. Pre-norm blocks without mask, a
 * classifier on the class token.
 */
#include "arch/arch.h"

struct config {
    int64_t hidden, inner, n_blocks, heads, image, patch, channels, labels;
    double dropout, dropout_attention;
    enum mp_activation activation;
    bool qkv_bias;
};

struct block {
    struct mp_linear_layer q, k, v, o;
    struct mp_norm_layer norm_before, norm_after;
    struct mp_mlp mlp;
};

struct module {
    struct mp_tensor *class_token, *positions;
    struct mp_linear_layer patches, classifier; /* patches: a convolution */
    struct mp_norm_layer norm;
    struct block *blocks;
};

/* transformers counts id2label where a config does not say num_labels. */
static int64_t n_labels(struct mp_config *c)
{
    const struct mp_value *names = mp_value_get(c->model->config, "id2label");
    const int64_t named = names && names->kind == MP_OBJECT && names->as.object.length
                              ? (int64_t)names->as.object.length
                              : 2;
    return mp_config_size(c, "num_labels", named);
}

static const void *configure(struct mp_arena *arena, struct mp_config *c)
{
    struct config *m = mp_arena_alloc(arena, sizeof *m);
    if (!m)
        return NULL;
    m->hidden = mp_config_size(c, "hidden_size", 768);
    m->inner = mp_config_size(c, "intermediate_size", 3072);
    m->n_blocks = mp_config_size(c, "num_hidden_layers", 12);
    m->heads = mp_config_size(c, "num_attention_heads", 12);
    m->image = mp_config_size(c, "image_size", 224);
    m->patch = mp_config_size(c, "patch_size", 16);
    m->channels = mp_config_size(c, "num_channels", 3);
    m->labels = n_labels(c);
    m->dropout = mp_config_probability(c, "hidden_dropout_prob", 0);
    m->dropout_attention = mp_config_probability(c, "attention_probs_dropout_prob", 0);
    m->activation = mp_config_activation(c, "hidden_act", MP_GELU);
    m->qkv_bias = mp_config_bool(c, "qkv_bias", true);
    if (m->hidden % m->heads)
        mp_config_problem(c, "num_attention_heads", "%lld does not divide hidden_size %lld",
                          (long long)m->heads, (long long)m->hidden);
    if (m->image < m->patch)
        mp_config_problem(c, "patch_size", "%lld is larger than image_size %lld",
                          (long long)m->patch, (long long)m->image);
    return m;
}

static int64_t n_blocks(const void *config)
{
    return ((const struct config *)config)->n_blocks;
}

static int64_t n_patches(const struct config *c)
{
    return (c->image / c->patch) * (c->image / c->patch);
}

static int64_t positions(const void *config, bool *hard)
{
    *hard = true;
    return n_patches(config) + 1;
}

static void load(struct mp_runtime *rt, const struct mp_net *net, struct mp_inputs *in)
{
    const struct config *c = net->config;
    in->pixel_values =
        mp_take(rt, mp_empty(rt, MP_SHAPE(in->batch, c->channels, c->image, c->image), net->dtype));
    in->labels = mp_take(rt, mp_empty(rt, MP_SHAPE(in->batch), MP_I64));
}

/* ---- __init__ ---- */

static void build_block(struct mp_runtime *rt, struct mp_net *net, struct block *b)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden;
    b->q = mp_linear_new(rt, net, "attention.q_proj", h, h, c->qkv_bias);
    b->k = mp_linear_new(rt, net, "attention.k_proj", h, h, c->qkv_bias);
    b->v = mp_linear_new(rt, net, "attention.v_proj", h, h, c->qkv_bias);
    b->o = mp_linear_new(rt, net, "attention.o_proj", h, h, true);
    b->norm_before = mp_layer_norm_new(rt, net, "layernorm_before", h);
    b->norm_after = mp_layer_norm_new(rt, net, "layernorm_after", h);
    b->mlp.in = mp_linear_new(rt, net, "mlp.fc1", c->inner, h, true);
    b->mlp.out = mp_linear_new(rt, net, "mlp.fc2", h, c->inner, true);
}

static void build(struct mp_runtime *rt, struct mp_net *net)
{
    const struct config *c = net->config;
    const int64_t h = c->hidden;
    struct module *m = net->module = mp_runtime_alloc(rt, sizeof *m);
    m->class_token = mp_parameter(rt, net, "cls_token", MP_SHAPE(1, 1, h));
    m->patches.weight = mp_parameter(rt, net, "patch_embeddings.projection",
                                     MP_SHAPE(h, c->channels, c->patch, c->patch));
    m->patches.bias = mp_parameter(rt, net, "patch_embeddings.projection", MP_SHAPE(h));
    m->positions = mp_parameter(rt, net, "position_embeddings", MP_SHAPE(1, n_patches(c) + 1, h));
    mp_parameter_move_last(net, 1); /* parameters of a module come before those of its children */
    m->blocks = mp_runtime_alloc(rt, (size_t)c->n_blocks * sizeof *m->blocks);
    for (int64_t i = 0; i < c->n_blocks; i++) {
        rt->layer = (int)i;
        build_block(rt, net, &m->blocks[i]);
    }
    rt->layer = -1;
    m->norm = mp_layer_norm_new(rt, net, "layernorm", h);
    m->classifier = mp_linear_new(rt, net, "classifier", c->labels, h, true);
}

/* ---- forward ---- */

/* projection(pixel_values).flatten(2).transpose(1, 2) */
static struct mp_tensor *cut(struct mp_runtime *rt, const struct module *m,
                             struct mp_tensor *pixel_values)
{
    struct mp_module_call call;
    mp_container_begin(rt);
    pixel_values = mp_module_begin(rt, &call, MP_MODULE_LINEAR, m->patches.weight, m->patches.bias, pixel_values);
    struct mp_tensor *maps = mp_module_end(rt, &call, mp_conv2d_patches(rt, pixel_values, m->patches.weight, m->patches.bias));
    struct mp_tensor *columns = mp_view(rt, maps, MP_SHAPE(mp_dim(maps, 0), mp_dim(maps, 1), -1));
    return mp_container_end(rt, mp_transpose(rt, columns, 1, 2));
}

/* ViTEmbeddings: the class token and the positions are its own */
static struct mp_tensor *embed(struct mp_runtime *rt, const struct mp_net *net,
                               const struct mp_inputs *in)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    const struct mp_module embeddings = {MP_MODULE_OTHER, 2, {m->class_token, m->positions}};
    struct mp_tensor *embedded = NULL, *class_tokens = NULL;
    struct mp_module_call call;
    struct mp_frame f;
    struct mp_tensor *const pixels = mp_module_begin_as(rt, &call, &embeddings, in->pixel_values);
    mp_enter_empty(rt, &f);
    mp_child_begin(rt, &call);
    mp_let(&f, &embedded, cut(rt, m, pixels));
    mp_child_end(rt, &call);
    mp_let(&f, &class_tokens, mp_expand(rt, m->class_token, MP_SHAPE(in->batch, -1, -1)));
    mp_let(&f, &embedded, mp_cat(rt, 2, (struct mp_tensor *[]){class_tokens, embedded}, 1));
    mp_let(&f, &embedded, mp_add(rt, embedded, m->positions));
    mp_child_begin(rt, &call);
    mp_let(&f, &embedded, mp_apply_dropout(rt, embedded, c->dropout));
    mp_child_end(rt, &call);
    return mp_module_end(rt, &call, mp_leave(&f, embedded));
}

static struct mp_tensor *attention(struct mp_runtime *rt, const struct mp_layer *call,
                                   struct mp_tensor *hidden, struct mp_tensor **weights_out)
{
    static const struct mp_eager_style style = {.float_softmax = true};
    const struct mp_net *net = call->model;
    const struct config *c = net->config;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    const int64_t head_dim = c->hidden / c->heads;
    struct mp_tensor *query = NULL, *key = NULL, *value = NULL, *output = NULL, *weights = NULL,
                     *returned;
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &query, mp_project_heads(rt, hidden, &b->q, head_dim));
    mp_let(&f, &key, mp_project_heads(rt, hidden, &b->k, head_dim));
    mp_let(&f, &value, mp_project_heads(rt, hidden, &b->v, head_dim));
    const struct mp_attention_args args = {
        .net = net, .style = &style, .dropout = c->dropout_attention, .groups = 1};
    mp_let(&f, &output, mp_attend(rt, &args, query, key, value, &returned));
    mp_let(&f, &weights, returned);
    mp_let(&f, &output, mp_merge_heads(rt, output));
    mp_let(&f, &output, mp_apply_linear(rt, output, &b->o));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

static struct mp_tensor *mlp(struct mp_runtime *rt, const struct mp_layer *call,
                             struct mp_tensor *hidden)
{
    const struct mp_net *net = call->model;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    return mp_apply_mlp(rt, hidden, &b->mlp, ((const struct config *)net->config)->activation,
                        (struct mp_dropout_layer){0});
}

static void block_forward(struct mp_runtime *rt, const struct mp_layer *call,
                          struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_net *net = call->model;
    const struct block *b = &((const struct module *)net->module)->blocks[call->index];
    const double dropout = ((const struct config *)net->config)->dropout;
    const struct mp_pre_norm_block block = {.first = &b->norm_before,
                                            .second = &b->norm_after,
                                            .attention = attention,
                                            .mlp = mlp,
                                            .dropout = {dropout, true},
                                            .replaces = true};
    out[0] = mp_apply_pre_norm_block(rt, call, &block, args[0]);
}

static struct mp_tensor *body(struct mp_runtime *rt, const struct mp_net *net,
                              const struct mp_inputs *in)
{
    const struct config *c = net->config;
    const struct module *m = net->module;
    struct mp_tensor *embedded = NULL, *hidden = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_container_begin(rt); /* the model below the head */
    mp_let(&f, &embedded, embed(rt, net, in));
    mp_let(&f, &hidden, embedded);
    for (int i = 0; i < (int)c->n_blocks; i++) {
        const struct mp_layer block = {.forward = block_forward, .model = net, .index = i, .n_args = 1, .n_outputs = 1};
        struct mp_tensor *next;
        mp_block_call(rt, &block, &hidden, &next);
        mp_let(&f, &hidden, next);
    }
    return mp_leave(&f, mp_apply_norm(rt, hidden, &m->norm));
}

static struct mp_tensor *linear(struct mp_runtime *rt, const struct mp_linear_layer *head,
                                struct mp_tensor *rows)
{
    struct mp_tensor *logits = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &rows);
    mp_let(&f, &logits, mp_linear_rows(rt, rows, head->weight, head->bias));
    return mp_leave(&f, logits);
}

static struct mp_tensor *classify(struct mp_runtime *rt, const struct mp_linear_layer *head,
                                  struct mp_tensor *rows)
{
    struct mp_module_call call;
    rows = mp_module_begin(rt, &call, MP_MODULE_LINEAR, head->weight, head->bias, rows);
    return mp_module_end(rt, &call, linear(rt, head, rows));
}

static void forward(struct mp_runtime *rt, struct mp_net *net, const struct mp_inputs *in,
                    struct mp_outputs *out)
{
    const struct module *m = net->module;
    struct mp_tensor *sequence = NULL, *logits = NULL, *loss = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &sequence, mp_container_end(rt, body(rt, net, in)));
    mp_let(&f, &logits, classify(rt, &m->classifier, mp_select_first(rt, sequence)));
    struct mp_tensor *rows = mp_view(rt, logits, MP_SHAPE(-1, mp_dim(logits, 1)));
    struct mp_tensor *targets = mp_view(rt, in->labels, MP_SHAPE(-1));
    mp_let(&f, &loss, mp_cross_entropy(rt, rows, targets));
    mp_give(&f, &out->logits, logits);
    out->loss = mp_leave(&f, loss);
}

const struct mp_family mp_family_vit = {.model_type = "vit",
                                        .architecture = "ViTForImageClassification",
                                        .no_nf4 = true,
                                        .own_loss = true,
                                        .configure = configure,
                                        .n_blocks = n_blocks,
                                        .positions = positions,
                                        .build = build,
                                        .forward = forward,
                                        .no_trainer = true,
                                        .load = load,
                                        .no_mask = true,
                                        .no_cache = true};
