/* SPDX-License-Identifier: MIT */
/*
 * Activation checkpointing.
 *
 * Non-reentrant: a hook drops every tensor that the block saves and remembers only its place. The first place that backward asks
 * for runs the block again, in the backward thread, and fills all places; the run stops early, when the last place has been
 * filled: before the kernel if that is a saved input, after it if it is a saved result.
 *
 * Reentrant: the block runs without grad, as one node. Its backward runs the block again with grad and a nested backward through
 * it; the closure lives until the node dies, which is in the next forward.
 *
 * Generator states are host memory: nothing on the device.
 */
#include "shadow/checkpoint.h"

/* The closure of a call: what has to be run again, holding its keyword tensors. */
struct mp_checkpoint_call {
    struct mp_layer block;
    struct mp_checkpoint_call *next_free;
    bool autocast;
    enum mp_dtype autocast_dtype;
    int64_t n_random; /* generator's state: the second run draws the same numbers */
};

static struct mp_checkpoint_call *call_new(struct mp_runtime *rt, const struct mp_layer *block)
{
    struct mp_checkpoint_call *call = mp_runtime_alloc(rt, sizeof *call);
    *call = (struct mp_checkpoint_call){.block = *block,
                                        .autocast = rt->autocast,
                                        .autocast_dtype = rt->autocast_dtype,
                                        .n_random = rt->n_random};
    for (int i = 0; i < MP_MAX_KEYWORDS; i++)
        mp_tensor_ref(call->block.keywords[i]);
    return call;
}

void mp_checkpoint_call_free(struct mp_runtime *rt, struct mp_checkpoint_call *call)
{
    for (int i = 0; i < MP_MAX_KEYWORDS; i++)
        mp_tensor_unref(rt, call->block.keywords[i]);
}

/* A wrapper that hooks into blocks does so inside the checkpoint: it sees the second run too. */
static void run_block(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out)
{
    if (rt->hooks && rt->hooks->block && !block->is_part)
        rt->hooks->block(rt, rt->hooks->context, block, args, out);
    else
        block->forward(rt, block, args, out);
}

/* Run it again under the autocast of the first time, with a cache of its own. */
static void call_again(struct mp_runtime *rt, const struct mp_checkpoint_call *call, struct mp_tensor **args, struct mp_tensor **out,
                       struct mp_autocast *outer)
{
    if (call->autocast)
        mp_autocast_enter(rt, outer, true, call->autocast_dtype);
    run_block(rt, &call->block, args, out);
    if (call->autocast)
        mp_autocast_exit(rt, outer);
}

/* ---- non-reentrant ---- */

struct place {
    bool wanted;              /* a node still refers to it */
    struct mp_tensor *tensor; /* filled by the recomputation */
};

/* One checkpointed call. Owned by the places handed out, and by mp_layer_call() while it runs. */
struct mp_recompute {
    struct mp_saved_hook first, again; /* packing in the first run, and in the second */
    int32_t refs;
    struct mp_checkpoint_call *call;
    int n_args;
    struct mp_tensor *args[MP_MAX_INPUTS];
    struct place *places;
    int n_places, cap_places, n_filled;
    bool done;
};

static struct mp_saved pack_first(struct mp_runtime *rt, struct mp_saved_hook *hook, struct mp_tensor *t, bool *stop)
{
    struct mp_recompute *r = (struct mp_recompute *)(void *)((char *)hook - offsetof(struct mp_recompute, first));
    (void)t;
    (void)stop;
    if (r->n_places == r->cap_places) {
        const int wanted = r->cap_places ? r->cap_places * 2 : 64;
        struct place *bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof *bigger);
        if (r->n_places)
            memcpy(bigger, r->places, (size_t)r->n_places * sizeof *bigger);
        r->places = bigger;
        r->cap_places = wanted;
    }
    r->places[r->n_places].wanted = true;
    r->refs++;
    return (struct mp_saved){.recompute = r, .slot = r->n_places++};
}

static struct mp_saved pack_again(struct mp_runtime *rt, struct mp_saved_hook *hook, struct mp_tensor *t, bool *stop)
{
    struct mp_recompute *r = (struct mp_recompute *)(void *)((char *)hook - offsetof(struct mp_recompute, again));
    struct place *place = &r->places[r->n_filled++];
    struct mp_tensor *detached = mp_take(rt, mp_detach(rt, t));
    if (t->storage->owner) { /* what was detached from a parameter does not follow it */
        mp_storage_unref(rt, detached->storage);
        detached->storage = mp_storage_borrow(rt, t->storage);
    }
    if (detached->storage->category == MP_CATEGORY_TEMPORARY)
        mp_tag(rt, detached->storage, MP_CATEGORY_ACTIVATION);
    if (place->wanted)
        place->tensor = mp_tensor_ref(detached);
    *stop = r->n_filled == r->n_places;
    return (struct mp_saved){.tensor = detached};
}

static void recompute_unref(struct mp_runtime *rt, struct mp_recompute *r)
{
    if (--r->refs > 0)
        return;
    for (int i = 0; i < r->n_args; i++)
        mp_tensor_unref(rt, r->args[i]);
    mp_checkpoint_call_free(rt, r->call);
}

static void recompute(struct mp_runtime *rt, struct mp_recompute *r)
{
    struct mp_tensor *args[MP_MAX_INPUTS], *out[MP_MAX_OUTPUTS] = {NULL};
    struct mp_saved_hook *const hook = rt->saved_hook;
    const bool grad_enabled = rt->grad_enabled;
    const int n_parked = rt->n_parked;
    const int64_t n_random = rt->n_random;
    struct mp_autocast outer;
    struct mp_catch catch = {.up = rt->catch_stop, .frame = rt->frame, .n_temporaries = rt->n_temporaries};
    for (int i = 0; i < r->n_args; i++)
        args[i] = mp_tensor_ref(r->args[i]);
    rt->catch_stop = &catch;
    rt->saved_hook = &r->again;
    rt->grad_enabled = true;
    rt->n_random = r->call->n_random;
    mp_autocast_enter(rt, &outer, r->call->autocast, r->call->autocast_dtype);
    if (setjmp(catch.jump) == 0) {
        run_block(rt, &r->call->block, args, out);
        for (int i = 0; i < r->call->block.n_outputs; i++)
            mp_discard(rt, out[i]);
    } /* else it stopped early: what floated is gone, outputs that were ready among it */
    mp_autocast_exit(rt, &outer);
    rt->catch_stop = catch.up;
    rt->n_random = n_random;
    rt->saved_hook = hook;
    rt->grad_enabled = grad_enabled;
    mp_release_parked(rt, n_parked);
    for (int i = 0; i < r->n_args; i++)
        mp_tensor_unref(rt, args[i]);
    r->done = true;
}

struct mp_tensor *mp_recompute_unpack(struct mp_runtime *rt, struct mp_saved *saved)
{
    struct mp_recompute *r = saved->recompute;
    if (!r->done)
        recompute(rt, r);
    struct mp_tensor *t = r->places[saved->slot].tensor;
    r->places[saved->slot].tensor = NULL;
    return t;
}

void mp_recompute_drop(struct mp_runtime *rt, struct mp_saved *saved)
{
    struct mp_recompute *r = saved->recompute;
    struct place *place = &r->places[saved->slot];
    place->wanted = false;
    mp_tensor_unref(rt, place->tensor);
    place->tensor = NULL;
    recompute_unref(rt, r);
}

static void checkpoint_non_reentrant(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out)
{
    struct mp_recompute *r = mp_runtime_alloc(rt, sizeof *r);
    r->first.pack = pack_first;
    r->again.pack = pack_again;
    r->refs = 1;
    r->call = call_new(rt, block);
    r->n_args = block->n_args;
    for (int i = 0; i < block->n_args; i++)
        r->args[i] = mp_tensor_ref(args[i]);
    r->first.up = rt->saved_hook;
    rt->saved_hook = &r->first;
    run_block(rt, block, args, out);
    rt->saved_hook = r->first.up;
    recompute_unref(rt, r);
}

/* ---- reentrant ---- */

/* The gradient that arrived for output i; zeros where none did and the block has several outputs. */
static struct mp_tensor *output_gradient(struct mp_runtime *rt, const struct mp_node *n, struct mp_tensor **g, int i)
{
    const struct mp_meta *const output = mp_node_output(n, i);
    const bool absent = output->shape.n == 0 && output->dtype == 0;
    if (g[i] || absent)
        return mp_tensor_ref(g[i]);
    struct mp_tensor *zeros = mp_take(rt, mp_empty(rt, output->shape, (enum mp_dtype)output->dtype));
    mp_record_fill(rt, zeros, 0);
    return zeros;
}

static void reentrant_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    const struct mp_checkpoint_call *call = n->call;
    const int n_args = call->block.n_args, n_outputs = call->block.n_outputs;
    struct mp_tensor *grads[MP_MAX_OUTPUTS] = {NULL}, *detached[MP_MAX_INPUTS] = {NULL}, *outputs[MP_MAX_OUTPUTS] = {NULL};
    struct mp_tensor *roots[MP_MAX_OUTPUTS], *root_grads[MP_MAX_OUTPUTS];
    struct mp_autocast outer;
    int n_roots = 0;
    for (int i = 0; i < n_outputs; i++)
        grads[i] = output_gradient(rt, n, g, i);
    for (int i = 0; i < n_args; i++) {
        struct mp_tensor *t = mp_saved_tensor(n, i);
        if (!t)
            continue;
        detached[i] = mp_take(rt, mp_detach(rt, t));
        detached[i]->requires_grad = t->requires_grad;
    }
    const int64_t n_random = rt->n_random;
    rt->grad_enabled = true;
    rt->n_random = call->n_random;
    call_again(rt, call, detached, outputs, &outer);
    rt->n_random = n_random;
    rt->grad_enabled = false;
    for (int i = 0; i < n_outputs; i++) {
        outputs[i] = mp_take(rt, outputs[i]);
        if (outputs[i] && outputs[i]->requires_grad) {
            roots[n_roots] = outputs[i];
            root_grads[n_roots++] = grads[i];
        }
    }
    mp_engine_run(rt, n_roots, roots, root_grads);
    for (int i = 0; i < n_args; i++)
        if (detached[i] && detached[i]->grad)
            out[i] = mp_float(rt, mp_tensor_ref(detached[i]->grad));
    for (int i = 0; i < n_outputs; i++)
        mp_tensor_unref(rt, grads[i]);
    for (int i = 0; i < n_args; i++)
        mp_tensor_unref(rt, detached[i]);
    for (int i = 0; i < n_outputs; i++)
        mp_tensor_unref(rt, outputs[i]);
}
static const struct mp_node_type reentrant_type = {"CheckpointFunctionBackward", reentrant_backward};

/* An output of the Function has no graph of its own; an input that comes back becomes a view of itself. */
static struct mp_tensor *wrap_output(struct mp_runtime *rt, struct mp_tensor *t, int n_args, struct mp_tensor **args)
{
    struct mp_tensor *base = NULL;
    for (int i = 0; i < n_args; i++)
        if (t == args[i])
            base = t->base ? t->base : t;
    struct mp_tensor *wrapped = mp_alias(rt, t, t->shape, t->stride, base);
    mp_discard(rt, t);
    return wrapped;
}

static void checkpoint_reentrant(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out)
{
    struct mp_node *n = mp_node_new(rt, &reentrant_type, block->n_args, args);
    for (int i = 0; i < block->n_args; i++)
        mp_save(rt, n, args[i]);
    if (n)
        n->call = call_new(rt, block);
    const bool grad_enabled = rt->grad_enabled;
    rt->grad_enabled = false;
    run_block(rt, block, args, out);
    rt->grad_enabled = grad_enabled;
    for (int i = 0; n && i < block->n_outputs; i++) {
        if (out[i]) {
            out[i] = wrap_output(rt, out[i], block->n_args, args);
            mp_track(rt, n, out[i]);
        } else {
            mp_track_none(rt, n);
        }
    }
}

/* ---- the call ---- */

void mp_part_call(struct mp_runtime *rt, const struct mp_layer *part, bool checkpointed, struct mp_tensor **args, struct mp_tensor **out)
{
    if (checkpointed && rt->grad_enabled)
        checkpoint_non_reentrant(rt, part, args, out);
    else
        part->forward(rt, part, args, out);
}

void mp_layer_offload(struct mp_runtime *rt, const struct mp_layer *block, struct mp_tensor **args, struct mp_tensor **out)
{
    struct mp_saved_hook hook;
    const int layer = rt->layer;
    rt->layer = block->index;
    mp_host_hook_open(rt, &hook);
    run_block(rt, block, args, out);
    rt->saved_hook = hook.up;
    rt->layer = layer;
}

void mp_layer_call(struct mp_runtime *rt, const struct mp_layer *block, enum mp_checkpointing mode,
                   struct mp_tensor **args, struct mp_tensor **out)
{
    const int layer = rt->layer;
    rt->layer = block->index;
    if (!rt->training) /* nothing is recomputed in evaluation */
        mode = MP_CHECKPOINTING_OFF;
    if (mode == MP_CHECKPOINTING_NON_REENTRANT)
        checkpoint_non_reentrant(rt, block, args, out);
    else if (mode == MP_CHECKPOINTING_REENTRANT)
        checkpoint_reentrant(rt, block, args, out);
    else
        run_block(rt, block, args, out);
    rt->layer = layer;
}
