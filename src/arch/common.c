/* SPDX-License-Identifier: MIT */
/* What families share: parameters, projections, heads, activations, loss, the key-value cache. */
#include "arch/arch.h"

#include "arch/lora.h"
#include "arch/losses.h"
#include "arch/nf4.h"

/* ---- building ---- */

static struct mp_tensor *persistent(struct mp_runtime *rt, struct mp_shape shape, enum mp_dtype dtype, enum mp_category category)
{
    const enum mp_category outer = rt->category;
    rt->category = category;
    struct mp_tensor *t = mp_take(rt, mp_empty(rt, shape, dtype));
    rt->category = outer;
    return t;
}

void mp_parameter_insert(struct mp_runtime *rt, struct mp_net *net, int at, struct mp_tensor *t)
{
    if (net->n_parameters == net->cap_parameters) {
        const int wanted = net->cap_parameters ? net->cap_parameters * 2 : 256;
        struct mp_tensor **bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof(struct mp_tensor *));
        if (net->n_parameters)
            memcpy(bigger, net->parameters, (size_t)net->n_parameters * sizeof(struct mp_tensor *));
        net->parameters = bigger;
        net->cap_parameters = wanted;
    }
    struct mp_tensor **const place = &net->parameters[at];
    memmove(place + 1, place, (size_t)(net->n_parameters++ - at) * sizeof(struct mp_tensor *));
    *place = t;
}

/* Matrices are drawn, vectors are zero unless their layer says otherwise. Loaded weights replace both. */
static void record_initial(struct mp_runtime *rt, struct mp_tensor *t)
{
    if (t->shape.n < 2) {
        mp_record_fill(rt, t, 0);
        return;
    }
    mp_record(rt, "normal", MP_NO_TENSORS, MP_TENSORS(t), MP_ATTRIBUTES(mp_number("std", 0.02), mp_integer("seed", rt->n_random)));
    rt->n_random++;
}

struct mp_tensor *mp_parameter(struct mp_runtime *rt, struct mp_net *net, const char *name, struct mp_shape shape)
{
    const char *op = rt->op;
    rt->op = name;
    struct mp_tensor *t = persistent(rt, shape, net->dtype, MP_CATEGORY_PARAMETER);
    rt->op = op;
    t->requires_grad = true;
    t->name = name;
    t->layer = (int16_t)rt->layer;
    record_initial(rt, t);
    mp_parameter_insert(rt, net, net->n_parameters, t);
    if (!net->run->init_cpu)
        mp_driver_event(rt, MP_DRIVER_FIRST_KERNEL, 0); /* random initialisation */
    return t;
}

struct mp_tensor *mp_buffer(struct mp_runtime *rt, struct mp_shape shape, enum mp_dtype dtype)
{
    return mp_buffer_register(rt, persistent(rt, shape, dtype, MP_CATEGORY_BUFFER));
}

void mp_parameter_move_last(struct mp_net *net, int at)
{
    struct mp_tensor *last = net->parameters[net->n_parameters - 1];
    memmove(&net->parameters[at + 1], &net->parameters[at], (size_t)(net->n_parameters - 1 - at) * sizeof(struct mp_tensor *));
    net->parameters[at] = last;
}

struct mp_linear_layer mp_linear_new(struct mp_runtime *rt, struct mp_net *net, const char *name, int64_t out, int64_t in, bool bias)
{
    if (mp_nf4_wanted(net))
        return mp_nf4_linear_new(rt, net, name, out, in, bias);
    struct mp_linear_layer layer = {.weight = mp_parameter(rt, net, name, MP_SHAPE(out, in)), .out = out, .in = in};
    if (bias)
        layer.bias = mp_parameter(rt, net, name, MP_SHAPE(out));
    layer.adapter = mp_lora_adapter(rt, net, name, &layer);
    return layer;
}

struct mp_linear_layer mp_conv1d_new(struct mp_runtime *rt, struct mp_net *net, const char *name, int64_t in, int64_t out)
{
    if (mp_nf4_wanted(net)) /* replaced by a linear layer, its weight transposed */
        return mp_nf4_linear_new(rt, net, name, out, in, true);
    struct mp_linear_layer layer = {.is_conv1d = true, .out = out, .in = in};
    layer.weight = mp_parameter(rt, net, name, MP_SHAPE(in, out));
    layer.bias = mp_parameter(rt, net, name, MP_SHAPE(out));
    layer.adapter = mp_lora_adapter(rt, net, name, &layer);
    return layer;
}

void mp_filled(struct mp_runtime *rt, const struct mp_net *net)
{
    if (!net->run->init_cpu)
        mp_driver_event(rt, MP_DRIVER_LARGER_STACKS, 0);
}

struct mp_norm_layer mp_layer_norm_new(struct mp_runtime *rt, struct mp_net *net, const char *name, int64_t width)
{
    struct mp_norm_layer layer = {.weight = mp_parameter(rt, net, name, MP_SHAPE(width))};
    mp_record_fill(rt, layer.weight, 1);
    mp_filled(rt, net);
    layer.bias = mp_parameter(rt, net, name, MP_SHAPE(width));
    return layer;
}

struct mp_norm_layer mp_rms_norm_new(struct mp_runtime *rt, struct mp_net *net, const char *name, int64_t width)
{
    const struct mp_norm_layer layer = {.weight = mp_parameter(rt, net, name, MP_SHAPE(width))};
    mp_record_fill(rt, layer.weight, 1);
    mp_filled(rt, net);
    return layer;
}

/* transformers' Conv1D: its weight lies the other way round, and it flattens by itself */
static struct mp_tensor *conv1d_forward(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_linear_layer *layer)
{
    struct mp_shape shape = x->shape;
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    shape.d[shape.n - 1] = mp_dim(layer->weight, 1);
    mp_let(&f, &x, mp_addmm(rt, layer->bias, mp_view(rt, x, MP_SHAPE(-1, mp_dim(x, -1))), layer->weight));
    mp_let(&f, &x, mp_view(rt, x, shape));
    return mp_leave(&f, x);
}

static struct mp_tensor *conv1d(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_linear_layer *layer)
{
    struct mp_module_call call;
    x = mp_module_begin(rt, &call, MP_MODULE_LINEAR, layer->weight, layer->bias, x);
    return mp_module_end(rt, &call, conv1d_forward(rt, x, layer));
}

static struct mp_tensor *apply_base(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_linear_layer *layer)
{
    if (layer->quantized)
        return mp_nf4_apply(rt, x, layer);
    return layer->is_conv1d ? conv1d(rt, x, layer) : mp_linear(rt, x, layer->weight, layer->bias);
}

struct mp_tensor *mp_apply_linear(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_linear_layer *layer)
{
    return layer->adapter ? mp_lora_forward(rt, x, layer, apply_base) : apply_base(rt, x, layer);
}

struct mp_tensor *mp_apply_norm(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_norm_layer *layer)
{
    if (layer->bias) {
        struct mp_module_call call;
        x = mp_module_begin(rt, &call, MP_MODULE_NORM, layer->weight, layer->bias, x);
        return mp_module_end(rt, &call, mp_layer_norm(rt, x, layer->weight, layer->bias));
    }
    return layer->offset ? mp_gemma_norm(rt, x, layer->weight) : mp_rms_norm(rt, x, layer->weight);
}

/* The row of the table that gets no gradient; -1: none. */
static int64_t padding_index(const struct mp_net *net)
{
    const struct mp_value *value = mp_value_get(net->run->model->config, "pad_token_id");
    if (strcmp(net->family->model_type, "gpt2") == 0)
        return -1;
    if (value && value->kind == MP_INT)
        return value->as.integer;
    return !value && strcmp(net->family->model_type, "bert") == 0 ? 0 : -1;
}

/* gradient_checkpointing_enable() on a peft model: inputs require grad although the table is frozen, or nothing would flow back */
struct mp_tensor *mp_embed_tokens(struct mp_runtime *rt, const struct mp_net *net, struct mp_tensor *ids, struct mp_tensor *table)
{
    struct mp_tensor *embedded = mp_embedding_padded(rt, ids, table, padding_index(net));
    if (net->run->lora && net->run->checkpoint != MP_CHECKPOINT_NONE)
        embedded->requires_grad = true;
    return embedded;
}

struct mp_tensor *mp_head_new(struct mp_runtime *rt, struct mp_net *net, struct mp_tensor *embedding, bool tied)
{
    if (!tied)
        return mp_parameter(rt, net, "lm_head", embedding->shape);
    if (!net->run->init_cpu) /* nn.Linear makes a weight that tying replaces */
        mp_discard(rt, mp_empty(rt, embedding->shape, net->dtype));
    return embedding;
}

/* ---- blocks ---- */

static enum mp_checkpointing checkpointing_of(const struct mp_run *run, int block)
{
    switch (run->checkpoint) {
    case MP_CHECKPOINT_NONE: return MP_CHECKPOINTING_OFF;
    case MP_CHECKPOINT_FULL: return MP_CHECKPOINTING_NON_REENTRANT;
    case MP_CHECKPOINT_FULL_REENTRANT: return MP_CHECKPOINTING_REENTRANT;
    case MP_CHECKPOINT_LAYERS: break;
    }
    return mp_layer_set_has(&run->checkpoint_layers, block) ? MP_CHECKPOINTING_NON_REENTRANT : MP_CHECKPOINTING_OFF;
}

void mp_block_call(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out)
{
    const struct mp_run *const run = ((const struct mp_net *)block->model)->run;
    if (mp_layer_set_has(&run->offload, block->index))
        mp_layer_offload(rt, block, args, out);
    else
        mp_layer_call(rt, block, checkpointing_of(run, block->index), args, out);
}

/* ---- parts of blocks ---- */

static void forward_attention(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args, struct mp_tensor **out)
{
    out[0] = call->part.attend(rt, call, args[0], &out[1]);
}

static void forward_masked_attention(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args, struct mp_tensor **out)
{
    out[0] = call->part.attend_masked(rt, call, args[0], args[1], &out[1]);
}

static void forward_mlp(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args, struct mp_tensor **out)
{
    out[0] = call->part.feed(rt, call, args[0]);
}

static void call_part(struct mp_runtime *rt, const struct mp_layer *call, struct mp_layer part, enum mp_block_part which, struct mp_tensor **args,
                      struct mp_tensor **out)
{
    const struct mp_run *const run = ((const struct mp_net *)call->model)->run;
    part.model = call->model;
    part.index = call->index;
    part.cache = call->cache;
    part.is_part = true;
    if (which == MP_PART_ATTENTION) /* an MLP gets none of the block's keywords */
        memcpy(part.keywords, call->keywords, sizeof part.keywords);
    mp_part_call(rt, &part, rt->training && mp_layer_set_has(&run->recompute[which], call->index), args, out);
}

struct mp_tensor *mp_attention_part(struct mp_runtime *rt, const struct mp_layer *call, union mp_part_forward part, struct mp_tensor *hidden,
                                    struct mp_tensor **weights)
{
    struct mp_tensor *out[2] = {NULL, NULL};
    call_part(rt, call, (struct mp_layer){.forward = forward_attention, .n_args = 1, .n_outputs = 2, .part = part}, MP_PART_ATTENTION, &hidden,
              out);
    *weights = out[1];
    return out[0];
}

struct mp_tensor *mp_masked_attention_part(struct mp_runtime *rt, const struct mp_layer *call, union mp_part_forward part,
                                           struct mp_tensor *hidden, struct mp_tensor *mask, struct mp_tensor **weights)
{
    struct mp_tensor *args[2] = {hidden, mask}, *out[2] = {NULL, NULL};
    call_part(rt, call, (struct mp_layer){.forward = forward_masked_attention, .n_args = 2, .n_outputs = 2, .part = part}, MP_PART_ATTENTION,
              args, out);
    *weights = out[1];
    return out[0];
}

struct mp_tensor *mp_mlp_part(struct mp_runtime *rt, const struct mp_layer *call, union mp_part_forward part, struct mp_tensor *hidden)
{
    struct mp_tensor *out[1] = {NULL};
    call_part(rt, call, (struct mp_layer){.forward = forward_mlp, .n_args = 1, .n_outputs = 1, .part = part}, MP_PART_MLP, &hidden, out);
    return out[0];
}

/* ---- key-value cache ---- */

struct mp_kv_cache *mp_kv_cache_new(struct mp_runtime *rt, const struct mp_net *net, int n_blocks)
{
    if (!net->run->use_cache || net->run->checkpoint != MP_CHECKPOINT_NONE)
        return NULL;
    struct mp_kv_cache *cache = mp_runtime_alloc(rt, sizeof *cache);
    cache->n = n_blocks;
    cache->keys = mp_runtime_alloc(rt, 3 * (size_t)n_blocks * sizeof(struct mp_tensor *));
    cache->values = cache->keys + n_blocks;
    cache->lengths = cache->values + n_blocks;
    return cache;
}

/* DynamicLayer.update: the first cat, with the layer's empty tensors of the keys' type, copies. */
void mp_kv_cache_update(struct mp_runtime *rt, struct mp_kv_cache *cache, int block, bool sliding, struct mp_frame *f, struct mp_tensor **k,
                        struct mp_tensor **v)
{
    if (!cache)
        return;
    if (sliding)
        cache->lengths[block] = mp_take(rt, mp_empty(rt, MP_SCALAR, MP_I64));
    const enum mp_dtype dtype = (enum mp_dtype)(*k)->dtype;
    cache->keys[block] = mp_take(rt, mp_cat_as(rt, 1, k, 2, dtype));
    cache->values[block] = mp_take(rt, mp_cat_as(rt, 1, v, 2, dtype)); /* converts as it copies */
    mp_let(f, k, cache->keys[block]);
    mp_let(f, v, cache->values[block]);
}

void mp_kv_cache_release(struct mp_runtime *rt, struct mp_kv_cache *cache)
{
    for (int i = 0; cache && i < cache->n; i++) {
        mp_tensor_unref(rt, cache->keys[i]);
        mp_tensor_unref(rt, cache->values[i]);
        mp_tensor_unref(rt, cache->lengths[i]);
    }
}

void mp_outputs_release(struct mp_runtime *rt, struct mp_outputs *out)
{
    const struct mp_outputs dying = *out;
    *out = (struct mp_outputs){0};
    mp_tensor_unref(rt, dying.loss);
    mp_tensor_unref(rt, dying.logits);
    mp_tensor_unref(rt, dying.hidden);
    mp_kv_cache_release(rt, dying.cache);
}

/* ---- activations ---- */

enum mp_activation mp_config_activation(struct mp_config *c, const char *key, enum mp_activation fallback)
{
    static const enum mp_activation of_choice[] = {MP_GELU, MP_GELU, MP_GELU_NEW, MP_SILU, MP_SILU, MP_RELU};
    static const char choices[] = "gelu|gelu_pytorch_tanh|gelu_new|silu|swish|relu";
    int shown = 0;
    while (of_choice[shown] != fallback)
        shown++;
    return of_choice[mp_config_choice(c, key, choices, shown)];
}

/* NewGELUActivation is written out: 0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))) */
static struct mp_tensor *gelu_new(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    struct mp_tensor *half = mp_mul_number(rt, x, 0.5);
    struct mp_tensor *cubic = mp_mul_number(rt, mp_pow(rt, x, 3), 0.044715);
    struct mp_tensor *inner = mp_mul_number(rt, mp_add(rt, x, cubic), 0.7978845608);
    struct mp_tensor *gate = mp_add_number(rt, mp_tanh(rt, inner), 1);
    return mp_leave(&f, mp_mul(rt, half, gate));
}

struct mp_tensor *mp_activate(struct mp_runtime *rt, enum mp_activation activation, struct mp_tensor *x)
{
    if (activation == MP_GELU_NEW) /* its frame is the module's */
        return gelu_new(rt, x);
    mp_container_begin(rt);
    switch (activation) {
    case MP_GELU: x = mp_gelu(rt, x); break;
    case MP_SILU: x = mp_silu(rt, x); break;
    case MP_RELU: x = mp_relu(rt, x); break;
    case MP_GELU_NEW: break;
    }
    return mp_container_end(rt, x);
}

struct mp_tensor *mp_apply_dropout(struct mp_runtime *rt, struct mp_tensor *x, double p)
{
    mp_container_begin(rt);
    return mp_container_end(rt, mp_dropout(rt, x, p));
}

struct mp_tensor *mp_apply_dropout_layer(struct mp_runtime *rt, struct mp_tensor *x, struct mp_dropout_layer dropout)
{
    return dropout.is_module ? mp_apply_dropout(rt, x, dropout.p) : mp_dropout(rt, x, dropout.p);
}

/* ---- feed-forward modules ---- */

struct mp_tensor *mp_apply_mlp(struct mp_runtime *rt, struct mp_tensor *hidden, const struct mp_mlp *mlp, enum mp_activation activation,
                               struct mp_dropout_layer dropout)
{
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden);
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &mlp->in));
    mp_let(&f, &hidden, mp_activate(rt, activation, hidden));
    mp_let(&f, &hidden, mp_apply_linear(rt, hidden, &mlp->out));
    mp_let(&f, &hidden, mp_apply_dropout_layer(rt, hidden, dropout));
    return mp_leave(&f, hidden);
}

struct mp_gated_mlp mp_gated_mlp_new(struct mp_runtime *rt, struct mp_net *net, int64_t hidden, int64_t inner, bool bias)
{
    struct mp_gated_mlp mlp;
    mlp.gate = mp_linear_new(rt, net, "mlp.gate_proj", inner, hidden, bias);
    mlp.up = mp_linear_new(rt, net, "mlp.up_proj", inner, hidden, bias);
    mlp.down = mp_linear_new(rt, net, "mlp.down_proj", hidden, inner, bias);
    return mlp;
}

struct mp_tensor *mp_apply_gated_mlp(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_gated_mlp *mlp, enum mp_activation activation)
{
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    struct mp_tensor *gate = mp_activate(rt, activation, mp_apply_linear(rt, x, &mlp->gate));
    struct mp_tensor *up = mp_apply_linear(rt, x, &mlp->up);
    return mp_leave(&f, mp_apply_linear(rt, mp_mul(rt, gate, up), &mlp->down));
}

/* ---- loss ---- */

/* F.pad(labels, (0, 1)), then labels[:, 1:].contiguous() */
struct mp_tensor *mp_causal_loss(struct mp_runtime *rt, struct mp_tensor *logits, const struct mp_inputs *in)
{
    struct mp_tensor *labels = in->labels, *shifted = NULL, *loss = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &logits, &labels);
    rt->category = MP_CATEGORY_LOGITS;
    mp_let(&f, &logits, mp_to(rt, logits, MP_F32));
    const int64_t batch = mp_dim(labels, 0), seq = mp_dim(labels, 1), vocabulary = mp_dim(logits, -1);
    struct mp_tensor *padded = mp_empty(rt, MP_SHAPE(batch, seq + 1), MP_I64);
    mp_record(rt, "pad", MP_TENSORS(labels), MP_TENSORS(padded), MP_ATTRIBUTES(mp_number("value", -100)));
    mp_let(&f, &labels, padded);
    mp_let(&f, &shifted, mp_contiguous(rt, mp_slice(rt, labels, 1, 1, seq + 1)));
    mp_let(&f, &logits, mp_view(rt, logits, MP_SHAPE(-1, vocabulary)));
    mp_let(&f, &shifted, mp_view(rt, shifted, MP_SHAPE(-1)));
    mp_let(&f, &loss, mp_cross_entropy(rt, logits, shifted));
    if (in->counted)
        mp_let(&f, &loss, mp_div_number(rt, loss, (double)(batch * seq)));
    rt->category = MP_CATEGORY_TEMPORARY;
    return mp_leave(&f, loss);
}

struct mp_tensor *mp_causal_head(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head)
{
    struct mp_tensor *logits = mp_linear(rt, mp_slice(rt, hidden, 1, 0, mp_dim(hidden, 1)), head, NULL);
    mp_tag(rt, logits->storage, MP_CATEGORY_LOGITS);
    return logits;
}

void mp_causal_outputs(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head, const struct mp_inputs *in, struct mp_outputs *out)
{
    struct mp_tensor *logits = NULL, *loss = NULL;
    struct mp_frame f;
    hidden = mp_container_end(rt, hidden); /* the model below the head returns */
    if (mp_loss_without_logits(rt, hidden, head, in, out))
        return;
    MP_FUNCTION(rt, &f, &hidden);
    mp_let(&f, &logits, mp_causal_head(rt, hidden, head));
    mp_let(&f, &loss, mp_causal_loss(rt, logits, in));
    mp_give(&f, &out->logits, logits);
    out->loss = mp_leave(&f, loss);
}

struct mp_tensor *mp_position_ids(struct mp_runtime *rt, int64_t seq)
{
    struct mp_tensor *range = mp_empty(rt, MP_SHAPE(seq), MP_I64);
    mp_record(rt, "arange", MP_NO_TENSORS, MP_TENSORS(range), MP_NO_ATTRIBUTES);
    return mp_unsqueeze(rt, mp_add_number(rt, range, 0), 0);
}
