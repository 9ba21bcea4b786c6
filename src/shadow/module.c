/* SPDX-License-Identifier: MIT */
/* Hooks around modules: the nodes by which backward meets them. */
#include "shadow/module.h"

#include "shadow/autograd.h"

/* What a node knows of its module. */
struct watched {
    struct mp_module module;
    int *n_inputs; /* after_backward: the hook is called for the last of them; NULL: there is one */
    void (*hook)(struct mp_runtime *rt, void *context, const struct mp_module *module);
};

static void tell(struct mp_runtime *rt, void *context)
{
    const struct watched *w = context;
    if (w->n_inputs && --*w->n_inputs > 0)
        return;
    w->hook(rt, rt->hooks->context, &w->module);
}

static void pass_on(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **grads, struct mp_tensor **out)
{
    (void)rt;
    (void)n;
    out[0] = grads[0];
}
static const struct mp_node_type before_type = {"PreBackwardFunctionForModuleBackward", pass_on},
                                 after_type = {"PostBackwardFunctionModuleBackward", pass_on};

/* x.detach(), behind a node whose turn in backward calls the hook. Nothing where no gradient will come. */
static struct mp_tensor *behind_node(struct mp_runtime *rt, const struct mp_node_type *type, const struct watched *w, struct mp_tensor *x)
{
    struct mp_node *n = mp_node_new(rt, type, 1, &x);
    if (!n)
        return x;
    n->before_context = mp_runtime_alloc(rt, sizeof *w);
    memcpy(n->before_context, w, sizeof *w);
    n->before = tell;
    struct mp_tensor *out = mp_alias(rt, x, x->shape, x->stride, NULL);
    mp_track(rt, n, out);
    mp_discard(rt, x);
    return out;
}

static struct mp_tensor *behind_module(struct mp_runtime *rt, const struct mp_module *module, struct mp_tensor *result)
{
    return result ? behind_node(rt, &before_type, &(struct watched){*module, NULL, rt->hooks->before_backward}, result) : NULL;
}

struct mp_tensor *mp_module_begin(struct mp_runtime *rt, struct mp_module_call *call, enum mp_module_kind kind, struct mp_tensor *weight,
                                  struct mp_tensor *bias, struct mp_tensor *x)
{
    return mp_module_begin_as(rt, call, &(struct mp_module){kind, bias ? 2 : 1, {weight, bias}}, x);
}

struct mp_tensor *mp_module_begin_as(struct mp_runtime *rt, struct mp_module_call *call, const struct mp_module *module, struct mp_tensor *x)
{
    call->watched = mp_watches_modules(rt) && rt->leaf == 0;
    if (!call->watched)
        return x;
    call->module = *module;
    call->x = x;
    mp_enter(rt, &call->frame, false, MP_VARS(&call->x), 1);
    rt->hooks->before_forward(rt, rt->hooks->context, &call->module);
    rt->leaf++;
    call->n_inputs = mp_runtime_alloc(rt, sizeof *call->n_inputs);
    *call->n_inputs = 0;
    return mp_module_input(rt, call, call->x);
}

struct mp_tensor *mp_module_input(struct mp_runtime *rt, const struct mp_module_call *call, struct mp_tensor *x)
{
    if (!call->watched || !x->requires_grad)
        return x;
    ++*call->n_inputs;
    return behind_node(rt, &after_type, &(struct watched){call->module, call->n_inputs, rt->hooks->after_backward}, x);
}

struct mp_tensor *mp_module_output(struct mp_runtime *rt, const struct mp_module_call *call, struct mp_tensor *result)
{
    return call->watched ? behind_module(rt, &call->module, result) : result;
}

struct mp_tensor *mp_module_end(struct mp_runtime *rt, struct mp_module_call *call, struct mp_tensor *result)
{
    if (!call->watched)
        return result;
    rt->leaf--;
    rt->hooks->after_forward(rt, rt->hooks->context, &call->module);
    return mp_leave(&call->frame, behind_module(rt, &call->module, result));
}

static const struct mp_module container = {.kind = MP_MODULE_CONTAINER};

void mp_container_begin(struct mp_runtime *rt)
{
    if (mp_watches_modules(rt) && rt->leaf == 0)
        rt->hooks->before_forward(rt, rt->hooks->context, &container);
}

struct mp_tensor *mp_container_end(struct mp_runtime *rt, struct mp_tensor *result)
{
    if (!mp_watches_modules(rt) || rt->leaf > 0)
        return result;
    rt->hooks->after_forward(rt, rt->hooks->context, &container);
    return behind_module(rt, &container, result);
}

struct mp_tensor *mp_container_output(struct mp_runtime *rt, struct mp_tensor *result) { return behind_module(rt, &container, result); }

static bool parameters_among(int n, struct mp_tensor *const *tensors, struct mp_module *module)
{
    *module = (struct mp_module){.kind = MP_MODULE_OTHER};
    for (int i = 0; i < n && module->n_parameters < MP_MODULE_PARAMETERS; i++) {
        bool twice = false;
        for (int k = 0; tensors[i] && k < module->n_parameters; k++)
            twice |= module->parameters[k]->storage == tensors[i]->storage;
        if (tensors[i] && tensors[i]->storage->owner && !twice)
            module->parameters[module->n_parameters++] = tensors[i];
    }
    return module->n_parameters > 0;
}

void mp_use_begin(struct mp_runtime *rt, int n, struct mp_tensor *const *tensors, bool backward)
{
    struct mp_module module;
    if (rt->leaf == 0 && mp_watches_modules(rt) && parameters_among(n, tensors, &module))
        (backward ? rt->hooks->before_backward : rt->hooks->before_forward)(rt, rt->hooks->context, &module);
}

void mp_use_end(struct mp_runtime *rt, int n, struct mp_tensor *const *tensors, bool backward)
{
    struct mp_module module;
    if (rt->leaf == 0 && mp_watches_modules(rt) && parameters_among(n, tensors, &module))
        (backward ? rt->hooks->after_backward : rt->hooks->after_forward)(rt, rt->hooks->context, &module);
}
