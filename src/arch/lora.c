/* SPDX-License-Identifier: MIT */
/* peft's LoRA on nn.Linear and transformers' Conv1D: creation, forward, frozen
 * base. */
#include "arch/lora.h"
#include "arch/nf4.h"

#include <math.h>

#include "base/strbuf.h"

struct mp_adapter {
    struct mp_adapter *next;
    struct mp_tensor *weight, *bias; /* of the base */
    bool is_conv1d;
    int64_t in, out;
    struct mp_tensor *a, *b; /* [rank, in], [out, rank] */
    double dropout, scaling; /* alpha / rank */
};

/* peft matches a whole name, or its end after a dot. "all-linear" is every
 * layer but the head. */
static bool is_target(const struct mp_lora *lora, const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < lora->n_targets; i++) {
        const char *const target = lora->targets[i];
        const size_t n = strlen(target);
        if (strcmp(target, "all-linear") == 0)
            return true;
        if (n <= length && strcmp(name + length - n, target) == 0 &&
            (n == length || name[length - n - 1] == '.'))
            return true;
    }
    return false;
}

struct mp_adapter *mp_lora_adapter(struct mp_runtime *rt, struct mp_net *net, const char *name,
                                   const struct mp_linear_layer *layer)
{
    const struct mp_lora *const lora = net->run->lora;
    if (!lora || !is_target(lora, name))
        return NULL;
    struct mp_adapter *adapter = mp_runtime_alloc(rt, sizeof *adapter);
    *adapter = (struct mp_adapter){.weight = layer->weight,
                                   .bias = layer->bias,
                                   .is_conv1d = layer->is_conv1d,
                                   .in = layer->in,
                                   .out = layer->out,
                                   .dropout = lora->dropout,
                                   .scaling = lora->alpha / (double)lora->rank};
    *(net->last_adapter ? &net->last_adapter->next : &net->adapters) = adapter;
    net->last_adapter = adapter;
    return adapter;
}

static struct mp_tensor *cast_to_float(struct mp_runtime *rt, struct mp_tensor *t)
{
    if (!mp_dtype_is_half(t->dtype))
        return t;
    struct mp_tensor *wide = mp_take(rt, mp_empty_like(rt, t, MP_F32));
    mp_record_copy(rt, "to", t, wide);
    mp_tensor_unref(rt, t);
    return wide;
}

/* In model.parameters() the matrices follow the base layer, its weight and
 * bias. */
static void list_after_base(struct mp_runtime *rt, struct mp_net *net,
                            const struct mp_adapter *adapter)
{
    int at = 0;
    while (net->parameters[at] != (adapter->bias ? adapter->bias : adapter->weight))
        at++;
    mp_parameter_insert(rt, net, at + 1, adapter->a);
    mp_parameter_insert(rt, net, at + 2, adapter->b);
}

void mp_lora_wrap(struct mp_runtime *rt, struct mp_net *net)
{
    const struct mp_lora *const lora = net->run->lora;
    if (!net->adapters)
        mp_raise(rt, MEMPLAN_STATUS_INPUT,
                 "lora.targets: '%s' is not the name of a linear layer of model '%s'",
                 lora->targets[0], net->run->model->name);
    for (int i = 0; i < net->n_parameters; i++)
        net->parameters[i]->requires_grad = false;
    /* Made in the base's type, or in which 4-bit weights are multiplied; then all cast to float32,
     * one after another. */
    const enum mp_dtype dtype = mp_nf4_wanted(net) ? mp_nf4_compute_dtype(net->run) : net->dtype;
    rt->category = MP_CATEGORY_PARAMETER;
    for (struct mp_adapter *l = net->adapters; l; l = l->next) {
        l->a = mp_take(rt, mp_empty(rt, MP_SHAPE(lora->rank, l->in), dtype));
        l->b = mp_take(rt, mp_empty(rt, MP_SHAPE(l->out, lora->rank), dtype));
        mp_record(rt, "normal", MP_NO_TENSORS, MP_TENSORS(l->a),
                  MP_ATTRIBUTES(mp_number("std", 1 / sqrt((double)l->in))));
        mp_record_fill(rt, l->b, 0);
    }
    for (struct mp_adapter *l = net->adapters; l; l = l->next) {
        l->a = cast_to_float(rt, l->a);
        l->b = cast_to_float(rt, l->b);
        l->a->requires_grad = l->b->requires_grad = true;
        l->a->name = "lora_A";
        l->b->name = "lora_B";
        list_after_base(rt, net, l);
    }
    rt->category = MP_CATEGORY_TEMPORARY;
}

/* peft's Linear4bit clones the base's result; without autocast the update is cast, not the sum */
static struct mp_tensor *forward_4bit(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_linear_layer *layer)
{
    const struct mp_adapter *const l = layer->adapter;
    struct mp_tensor *result = NULL, *output = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    mp_let(&f, &result, mp_nf4_apply(rt, x, layer));
    mp_let(&f, &result, mp_clone(rt, result));
    const enum mp_dtype dtype = (enum mp_dtype)result->dtype;
    if (!rt->autocast)
        mp_let(&f, &x, mp_to(rt, x, MP_F32));
    struct mp_tensor *low = mp_linear(rt, mp_dropout(rt, x, l->dropout), l->a, NULL);
    mp_let(&f, &output, mp_mul_number(rt, mp_linear(rt, low, l->b, NULL), l->scaling));
    if (!rt->autocast)
        mp_let(&f, &output, mp_to(rt, output, dtype));
    mp_let(&f, &result, mp_add(rt, result, output));
    return mp_leave(&f, result);
}

/* result + lora_B(lora_A(dropout(x))) * scaling, in the base's type */
struct mp_tensor *mp_lora_forward(struct mp_runtime *rt, struct mp_tensor *x,
                                  const struct mp_linear_layer *layer,
                                  struct mp_tensor *(*base)(struct mp_runtime *rt,
                                                            struct mp_tensor *x,
                                                            const struct mp_linear_layer *layer))
{
    const struct mp_adapter *const l = layer->adapter;
    struct mp_tensor *result = NULL;
    struct mp_frame f;
    if (layer->quantized)
        return forward_4bit(rt, x, layer);
    MP_MODULE(rt, &f, &x);
    mp_let(&f, &result, base(rt, x, layer));
    const enum mp_dtype dtype = (enum mp_dtype)result->dtype;
    mp_let(&f, &x, mp_to(rt, x, (enum mp_dtype)l->a->dtype));
    struct mp_tensor *low = mp_linear(rt, mp_dropout(rt, x, l->dropout), l->a, NULL);
    struct mp_tensor *update = mp_mul_number(rt, mp_linear(rt, low, l->b, NULL), l->scaling);
    mp_let(&f, &result, mp_add(rt, result, update));
    mp_let(&f, &result, mp_to(rt, result, dtype));
    return mp_leave(&f, result);
}
