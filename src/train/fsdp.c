/* SPDX-License-Identifier: MIT */
/*
 * fully_shard (FSDP2) on each block, then on the model: who holds which rows, and when they are together.
 *
 *     forward    gather ──> copy-out ──> block ──> reshard
 *     backward   gather ──> copy-out ──> (prefetch of the group before) ──> nodes of the block ──> reshard ──> reduce-scatter
 *
 * Each parameter is cut into rows, padded to the same number on every rank. The gather's output lives until the next group's has been
 * copied out in forward, and dies at once in backward. One reduce-scatter input lives at a time, through the next group's backward; its
 * output, on a stream of its own, is the gradient of the whole group.
 *
 * With one rank nothing is gathered: shards are copied (and cast) one by one.
 *
 * torch/distributed/fsdp/_fully_shard/
 */
#include "train/parallel.h"

#include <math.h>

enum group_state { IDLE, PRE_BACKWARD, POST_BACKWARD };

/* Parameters that are gathered and reduced together. */
struct group {
    struct mp_fsdp *fsdp;
    int n, layer;
    struct mp_tensor *
        *parameters;           /* unsharded; their storages come and go. Borrowed from the model */
    struct mp_tensor **shards; /* this rank's rows. Owned */
    uint64_t *padded;          /* elements of a shard with its padding */
    enum group_state state;
    bool open, gathered;
    struct mp_storage *gather_output; /* gathered, but not copied out yet; NULL with one rank */
    struct mp_storage *
        *kept; /* larger shards that wait for backward (reshard_after_forward: N); NULL: none */
    struct mp_tensor *all_reduce_input; /* HSDP: lives to the end of backward */
    int *uses, n_uses, cap_uses;        /* places in the order of forward */
};

struct mp_fsdp {
    struct mp_runtime *rt;
    const struct mp_fsdp_options *options;
    int64_t world, rank;        /* among the ranks that share the weights */
    enum mp_dtype reduce_dtype; /* with mixed precision */
    struct group *groups;       /* blocks, then the root */
    int n_groups;
    struct mp_tensor **parameters; /* shards in the model's order */
    int n_parameters;
    struct mp_storage *last_output, *reduce_input;
    bool in_forward;
    struct group **order; /* groups as they ran in forward */
    int n_order, cap_order;
};

struct mp_tensor **mp_fsdp_parameters(const struct mp_fsdp *fsdp)
{
    return fsdp->parameters;
}

static struct group *root_of(const struct mp_fsdp *fsdp)
{
    return &fsdp->groups[fsdp->n_groups - 1];
}

/* ---- tables of the copying kernels ---- */

#define TILE_BYTES 2048u /* one thread block's worth: 128 threads of 16 bytes */

static uint64_t tiles(uint64_t bytes)
{
    return (bytes + TILE_BYTES - 1) / TILE_BYTES;
}

static uint64_t unsharded_bytes(const struct group *g, int i)
{
    return g->padded[i] * (uint64_t)g->fsdp->world * mp_dtype_bytes(g->parameters[i]->dtype);
}

/* Among how many ranks parameter i is gathered, and what each brings. */
static uint64_t gathered_ranks(const struct group *g)
{
    return (uint64_t)(g->kept ? g->fsdp->options->reshard_to : g->fsdp->world);
}
static uint64_t gathered_bytes(const struct group *g, int i)
{
    return unsharded_bytes(g, i) / gathered_ranks(g);
}

static struct mp_card_answer resident_blocks(const struct mp_gpu *gpu, const int64_t *args)
{
    (void)args;
    return (struct mp_card_answer){.choice = (int64_t)((uint64_t)gpu->sms * gpu->threads_per_sm / 128 * 2)};
}

/* split_with_sizes_copy: source, destination and size of each part, its first block, and the part that each block works on */
static uint64_t copy_out_table_bytes(const struct group *g)
{
    const uint64_t world = gathered_ranks(g),
                   resident = (uint64_t)mp_ask(g->fsdp->rt, resident_blocks, 0).choice;
    uint64_t all = 0, blocks = 0;
    for (int i = 0; i < g->n; i++)
        all += tiles(gathered_bytes(g, i));
    uint64_t rounds = (all * world + resident - 1) / resident;
    const uint64_t per_rank = MP_MIN((uint64_t)ceil(sqrt((double)rounds)), world);
    rounds = (rounds + per_rank - 1) / per_rank;
    for (int i = 0; i < g->n; i++) {
        const uint64_t bytes = gathered_bytes(g, i);
        blocks += (bytes + TILE_BYTES * rounds - 1) / (TILE_BYTES * rounds);
    }
    return 8 * (3 * (uint64_t)g->n + blocks + (uint64_t)g->n + 1);
}

/* ---- gathering ---- */

static uint64_t all_gathered_bytes(const struct group *g)
{
    uint64_t bytes = 0;
    for (int i = 0; i < g->n; i++)
        bytes += gathered_bytes(g, i);
    return bytes;
}

/* Shards come from the host one by one, and are cast here. */
static void gather_from_host(struct mp_runtime *rt, struct group *g, uint64_t bytes)
{
    struct mp_storage **inputs = mp_runtime_alloc(rt, (size_t)g->n * sizeof(struct mp_storage *));
    for (int i = 0; i < g->n; i++) {
        inputs[i] = mp_storage_new(rt, g->padded[i] * mp_dtype_bytes(g->shards[i]->dtype));
        if (g->shards[i]->dtype == g->parameters[i]->dtype)
            continue;
        struct mp_storage *cast = mp_storage_new(rt, gathered_bytes(g, i));
        mp_storage_unref(rt, inputs[i]);
        inputs[i] = cast;
    }
    g->gather_output = mp_storage_new(rt, bytes * gathered_ranks(g));
    for (int i = g->n - 1; i >= 0; i--)
        mp_storage_unref(rt, inputs[i]);
}

static void gather(struct mp_runtime *rt, struct group *g)
{
    const struct mp_fsdp *fsdp = g->fsdp;
    if (g->gathered || g->open || g->n == 0)
        return;
    g->gathered = true;
    if (fsdp->world == 1)
        return;
    const enum mp_category category = rt->category;
    const int layer = rt->layer;
    rt->category = MP_CATEGORY_COMMUNICATION;
    rt->layer = g->layer;
    rt->stream = MP_STREAM_COPY_IN;
    const uint64_t bytes = all_gathered_bytes(g);
    if (fsdp->options->offload && !g->kept) {
        gather_from_host(rt, g, bytes);
    } else {
        const bool cast = g->parameters[0]->dtype != g->shards[0]->dtype;
        struct mp_storage *flat = cast ? mp_storage_new(rt, bytes) : NULL;
        g->gather_output = mp_storage_new(rt, bytes * gathered_ranks(g));
        if (flat)
            mp_storage_unref(rt, flat);
    }
    rt->stream = MP_STREAM_MAIN;
    rt->category = category;
    rt->layer = layer;
}

/* One rank: casts one by one, each dies when the next exists. */
static void copy_shards(struct mp_runtime *rt, struct group *g)
{
    struct mp_tensor *cast = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    for (int i = 0; i < g->n; i++) {
        const struct mp_tensor *p = g->parameters[i];
        mp_let(&f, &cast,
               p->dtype == g->shards[i]->dtype
                   ? NULL
                   : mp_empty_like(rt, g->shards[i], (enum mp_dtype)p->dtype));
        mp_storage_resize(rt, p->storage, unsharded_bytes(g, i));
    }
    mp_leave(&f, NULL);
}

static void drop_kept(struct mp_runtime *rt, struct group *g)
{
    for (int i = 0; g->kept && i < g->n; i++)
        mp_storage_unref(rt, g->kept[i]);
    g->kept = NULL;
}

static void copy_out(struct mp_runtime *rt, struct group *g, bool forward)
{
    struct mp_fsdp *fsdp = g->fsdp;
    if (!g->gathered)
        return;
    struct mp_storage *previous = forward ? fsdp->last_output : NULL;
    if (fsdp->world == 1) {
        copy_shards(rt, g);
    } else {
        for (int i = 0; i < g->n; i++)
            mp_storage_resize(rt, g->parameters[i]->storage, unsharded_bytes(g, i));
        mp_scratch(rt, copy_out_table_bytes(g));
        drop_kept(rt, g);
    }
    if (previous)
        mp_storage_unref(rt, previous);
    if (forward)
        fsdp->last_output = g->gather_output; /* lets the next gather overlap with this copy */
    else if (g->gather_output)
        mp_storage_unref(rt, g->gather_output);
    g->gather_output = NULL;
    g->gathered = false;
    g->open = true;
}

static void reshard(struct mp_runtime *rt, struct group *g)
{
    if (!g->open)
        return;
    for (int i = 0; i < g->n; i++)
        mp_storage_resize(rt, g->parameters[i]->storage, 0);
    g->open = false;
}

/* reshard_after_forward: N: each parameter is cut into N parts, of which this rank keeps one for backward. */
static void reshard_after_forward(struct mp_runtime *rt, struct group *g)
{
    const struct mp_fsdp *fsdp = g->fsdp;
    if (fsdp->options->reshard_to == 0 || fsdp->options->reshard_to == fsdp->world) {
        reshard(rt, g);
        return;
    }
    const enum mp_category category = rt->category;
    rt->category = MP_CATEGORY_PARAMETER;
    struct mp_storage **kept =
        mp_runtime_alloc(rt, (size_t)MP_MAX(g->n, 1) * sizeof(struct mp_storage *));
    for (int i = 0; i < g->n; i++) {
        kept[i] = mp_storage_new(rt, unsharded_bytes(g, i) / (uint64_t)fsdp->options->reshard_to);
        mp_storage_resize(rt, g->parameters[i]->storage, 0);
    }
    rt->category = category;
    g->kept = kept;
    g->open = false;
}

/* ---- reducing ---- */

/* _chunk_cat */
static uint64_t copy_in_table_bytes(int n, enum mp_dtype dtype, const uint64_t *padded)
{
    uint64_t blocks = 0;
    for (int i = 0; i < n; i++)
        blocks += tiles(padded[i] * mp_dtype_bytes(dtype));
    return 8 * (blocks + 6 * (uint64_t)n + 2);
}

/* Gradients that backward left, taken away from their parameters. */
struct gradients {
    struct mp_tensor **tensors, **shards;
    uint64_t *padded, elements;
    int n;
};

static struct gradients take_gradients(struct mp_runtime *rt, const struct group *g)
{
    struct gradients grads = {.n = 0};
    grads.tensors = mp_runtime_alloc(rt, 2 * (size_t)MP_MAX(g->n, 1) * sizeof(struct mp_tensor *));
    grads.shards = grads.tensors + MP_MAX(g->n, 1);
    grads.padded = mp_runtime_alloc(rt, (size_t)MP_MAX(g->n, 1) * sizeof *grads.padded);
    for (int i = 0; i < g->n; i++) {
        struct mp_tensor *p = g->parameters[i];
        if (!p->grad)
            continue;
        grads.tensors[grads.n] = p->grad;
        grads.shards[grads.n] = g->shards[i];
        grads.padded[grads.n++] = g->padded[i];
        grads.elements += g->padded[i];
        p->grad = NULL;
    }
    return grads;
}

/* The output becomes .grad of every shard, or is added to what is there. */
static void hand_out(struct mp_runtime *rt, const struct gradients *grads, struct mp_tensor *output)
{
    for (int i = 0; i < grads->n; i++) {
        struct mp_tensor *shard = grads->shards[i];
        if (!shard->grad)
            shard->grad = mp_take(rt, mp_alias(rt, output, shard->shape, shard->stride, output));
    }
}

static struct mp_tensor *reduce_scatter(struct mp_runtime *rt, struct group *g,
                                        const struct gradients *grads, enum mp_dtype dtype)
{
    rt->stream = MP_STREAM_REDUCE_SCATTER;
    rt->category = MP_CATEGORY_GRADIENT;
    struct mp_tensor *output = mp_take(rt, mp_empty(rt, MP_SHAPE((int64_t)grads->elements), dtype));
    const enum mp_dtype stored = (enum mp_dtype)grads->shards[0]->dtype;
    if (g->fsdp->options->replicas > 1) {
        g->all_reduce_input = mp_tensor_ref(output);
        rt->stream = MP_STREAM_ALL_REDUCE;
    }
    if (dtype != stored) {
        struct mp_tensor *cast = mp_take(rt, mp_empty_like(rt, output, stored));
        mp_tensor_unref(rt, output);
        output = cast;
    }
    rt->stream = MP_STREAM_MAIN;
    return output;
}

static void post_backward(struct mp_runtime *rt, struct group *g)
{
    struct mp_fsdp *fsdp = g->fsdp;
    const enum mp_category category = rt->category;
    const char *op = rt->op;
    const int layer = rt->layer;
    rt->op = "reduce_scatter";
    rt->layer = g->layer;
    g->state = POST_BACKWARD;
    struct gradients grads = take_gradients(rt, g);
    reshard(rt, g);
    if (grads.n > 0) {
        const enum mp_dtype dtype =
            fsdp->options->mixed_precision ? MP_F32 : (enum mp_dtype)grads.tensors[0]->dtype;
        const uint64_t world = (uint64_t)fsdp->world;
        if (fsdp->reduce_input)
            mp_storage_unref(rt, fsdp->reduce_input);
        /* a loop variable keeps the last gradient until the function returns; with one rank that loop does not run */
        struct mp_tensor *last = fsdp->world > 1 ? mp_tensor_ref(grads.tensors[grads.n - 1]) : NULL;
        rt->category = MP_CATEGORY_COMMUNICATION;
        fsdp->reduce_input = mp_storage_new(rt, grads.elements * world * mp_dtype_bytes(dtype));
        mp_scratch(rt, copy_in_table_bytes(grads.n, dtype, grads.padded));
        for (int i = grads.n - 1; i >= 0; i--)
            mp_tensor_unref(rt, grads.tensors[i]);
        struct mp_tensor *output = reduce_scatter(rt, g, &grads, dtype);
        if (!fsdp->options->offload) /* else it goes to the host */
            hand_out(rt, &grads, output);
        mp_tensor_unref(rt, output);
        mp_tensor_unref(rt, last);
    }
    rt->category = category;
    rt->op = op;
    rt->layer = layer;
}

/* ---- hooks ---- */

static void pre_backward(struct mp_runtime *rt, void *context)
{
    struct group *g = context;
    const char *op = rt->op;
    if (g->state == PRE_BACKWARD)
        return;
    g->state = PRE_BACKWARD;
    rt->op = "all_gather";
    gather(rt, g); /* unless it was prefetched */
    copy_out(rt, g, false);
    if (g->n_uses > 0) {
        const int before = g->uses[--g->n_uses] - 1;
        if (before >= 0)
            gather(rt, g->fsdp->order[before]);
    }
    rt->op = op;
}

/* Runs when the gradients of a block's inputs are complete. */
static void register_post_backward(struct mp_runtime *rt, struct mp_node *n,
                                   struct mp_tensor **grads, struct mp_tensor **out)
{
    post_backward(rt, n->before_context);
    for (int i = 0; i < n->n_inputs; i++)
        out[i] = grads[i];
}
static const struct mp_node_type post_backward_type = {"RegisterPostBackwardFunctionBackward",
                                                       register_post_backward};

/* Inputs that require grad go through the node, which returns them as views. */
static void hook_inputs(struct mp_runtime *rt, struct group *g, int n, struct mp_tensor **args)
{
    struct mp_tensor *inputs[MP_MAX_INPUTS];
    int places[MP_MAX_INPUTS], n_inputs = 0;
    for (int i = 0; i < n; i++) {
        if (!args[i] || !args[i]->requires_grad)
            continue;
        places[n_inputs] = i;
        inputs[n_inputs++] = args[i];
    }
    struct mp_node *node = mp_node_new(rt, &post_backward_type, n_inputs, inputs);
    if (!node)
        return;
    node->before_context = g;
    for (int i = 0; i < n_inputs; i++) {
        struct mp_tensor *t = inputs[i];
        args[places[i]] = mp_alias(rt, t, t->shape, t->stride, t->base ? t->base : t);
        mp_track(rt, node, args[places[i]]);
    }
}

static void hook_output(struct group *g, const struct mp_tensor *t)
{
    if (!t || !t->grad_fn || t->grad_fn->before)
        return;
    t->grad_fn->before = pre_backward;
    t->grad_fn->before_context = g;
}

static void enter_forward(struct mp_runtime *rt, struct group *g)
{
    const char *op = rt->op;
    rt->op = "all_gather";
    gather(rt, g);
    copy_out(rt, g, true);
    rt->op = op;
}

static int *push_int(struct mp_runtime *rt, int *array, int *capacity, int n, int value)
{
    if (n == *capacity) {
        const int wanted = *capacity ? *capacity * 2 : 4;
        int *bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof *bigger);
        if (n)
            memcpy(bigger, array, (size_t)n * sizeof *bigger);
        array = bigger;
        *capacity = wanted;
    }
    array[n] = value;
    return array;
}

static void leave_forward(struct mp_runtime *rt, struct group *g)
{
    struct mp_fsdp *fsdp = g->fsdp;
    if (!fsdp->options->keep_unsharded && fsdp->options->reshard_to != 1)
        reshard_after_forward(rt, g);
    if (fsdp->n_order == fsdp->cap_order) {
        const int wanted = fsdp->cap_order ? fsdp->cap_order * 2 : 64;
        struct group **bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof(struct group *));
        if (fsdp->n_order)
            memcpy(bigger, fsdp->order, (size_t)fsdp->n_order * sizeof(struct group *));
        fsdp->order = bigger;
        fsdp->cap_order = wanted;
    }
    g->uses = push_int(rt, g->uses, &g->cap_uses, g->n_uses, fsdp->n_order);
    g->n_uses++;
    fsdp->order[fsdp->n_order++] = g;
}

static void drop_last_output(struct mp_runtime *rt, struct mp_fsdp *fsdp)
{
    if (fsdp->last_output)
        mp_storage_unref(rt, fsdp->last_output);
    fsdp->last_output = NULL;
}

static void block(struct mp_runtime *rt, void *context, const struct mp_layer *call,
                  struct mp_tensor **args, struct mp_tensor **out)
{
    struct mp_fsdp *fsdp = context;
    struct group *g = &fsdp->groups[call->index];
    struct mp_tensor *inputs[MP_MAX_INPUTS];
    if (g->state == PRE_BACKWARD) { /* a recomputation: the weights are there, and stay */
        call->forward(rt, call, args, out);
        return;
    }
    memcpy(inputs, args, (size_t)call->n_args * sizeof *inputs);
    enter_forward(rt, g);
    hook_inputs(rt, g, call->n_args, inputs);
    call->forward(rt, call, inputs, out);
    if (rt->thread == MP_THREAD_MAIN)
        leave_forward(rt, g);
    if (!fsdp->in_forward) /* the second run of a reentrant checkpoint is a forward of its own */
        drop_last_output(rt, fsdp);
    for (int i = 0; i < call->n_outputs; i++)
        hook_output(g, out[i]);
}

/* Groups whose inputs need no gradient are reduced now, the root among them. */
static void backward_done(struct mp_runtime *rt, void *context)
{
    struct mp_fsdp *fsdp = context;
    for (int i = -1; i < fsdp->n_groups - 1; i++) {
        struct group *g = i < 0 ? root_of(fsdp) : &fsdp->groups[i];
        if (g->state != POST_BACKWARD)
            post_backward(rt, g);
        if (g->gather_output) /* gathered in vain */
            mp_storage_unref(rt, g->gather_output);
        g->gather_output = NULL;
        g->gathered = false;
        mp_tensor_unref(rt, g->all_reduce_input);
        g->all_reduce_input = NULL;
        drop_kept(rt, g);
        g->state = IDLE;
        g->n_uses = 0;
    }
    fsdp->n_order = 0;
    if (fsdp->reduce_input)
        mp_storage_unref(rt, fsdp->reduce_input);
    fsdp->reduce_input = NULL;
}

void mp_fsdp_before_forward(struct mp_runtime *rt, struct mp_fsdp *fsdp)
{
    fsdp->in_forward = true;
    enter_forward(rt, root_of(fsdp));
}

void mp_fsdp_after_forward(struct mp_runtime *rt, struct mp_fsdp *fsdp, struct mp_outputs *out)
{
    leave_forward(rt, root_of(fsdp));
    hook_output(root_of(fsdp), out->loss);
    hook_output(root_of(fsdp), out->logits);
    hook_output(root_of(fsdp), out->hidden);
    drop_last_output(rt, fsdp);
    fsdp->in_forward = false;
}

/* ---- construction ---- */

/* This rank's rows, with the padding behind them. */
static struct mp_tensor *new_shard(struct mp_runtime *rt, const struct mp_fsdp *fsdp,
                                   const struct mp_tensor *p)
{
    struct mp_shape shape = p->shape;
    const int64_t rows = shape.d[0], padded = (rows + fsdp->world - 1) / fsdp->world;
    const int64_t first = MP_MIN(fsdp->rank * padded, rows);
    shape.d[0] = padded;
    struct mp_tensor *shard = mp_take(rt, mp_empty(rt, shape, (enum mp_dtype)p->dtype));
    shard->shape.d[0] = MP_MIN(padded, rows - first);
    if (fsdp->options->offload)
        mp_storage_resize(rt, shard->storage, 0);
    shard->requires_grad = p->requires_grad;
    shard->name = p->name;
    return shard;
}

/* fully_shard(module): shards are made, then the parameters' own storages die, last to first. */
static void shard_group(struct mp_runtime *rt, struct group *g)
{
    const struct mp_fsdp *fsdp = g->fsdp;
    rt->layer = g->layer;
    g->shards = mp_runtime_alloc(rt, (size_t)MP_MAX(g->n, 1) * sizeof(struct mp_tensor *));
    g->padded = mp_runtime_alloc(rt, (size_t)MP_MAX(g->n, 1) * sizeof *g->padded);
    for (int i = 0; i < g->n; i++) {
        g->shards[i] = new_shard(rt, fsdp, g->parameters[i]);
        const int64_t rows = g->parameters[i]->shape.d[0];
        g->padded[i] = (uint64_t)((rows + fsdp->world - 1) / fsdp->world *
                                  (mp_numel(g->parameters[i]) / MP_MAX(rows, 1)));
    }
    for (int i = g->n - 1; i >= 0; i--) {
        struct mp_tensor *p = g->parameters[i];
        mp_storage_unref(rt, p->storage);
        p->storage = mp_storage_new(rt, 0);
        if (fsdp->options->mixed_precision)
            p->dtype = MP_BF16;
    }
}

/* The block that made each parameter, as the program's events say; -1: none. */
static int *layers_of(struct mp_runtime *rt, const struct mp_net *net, int *n_layers)
{
    const struct mp_program *program = rt->program;
    int *layers = mp_runtime_alloc(rt, (size_t)MP_MAX(net->n_parameters, 1) * sizeof *layers);
    int16_t *of_storage =
        mp_runtime_alloc(rt, ((size_t)program->n_allocs + 1) * sizeof *of_storage);
    *n_layers = 0;
    for (uint32_t i = 0; i < program->n_events; i++)
        if (program->events[i].kind == MP_EVENT_ALLOC)
            of_storage[program->events[i].id] = program->events[i].layer;
    for (int i = 0; i < net->n_parameters; i++) {
        layers[i] = of_storage[net->parameters[i]->storage->id];
        *n_layers = MP_MAX(*n_layers, layers[i] + 1);
    }
    return layers;
}

static void fill_group(struct mp_runtime *rt, struct group *g, const struct mp_net *net,
                       const int *layers)
{
    for (int i = 0; i < net->n_parameters; i++)
        g->n += layers[i] == g->layer;
    g->parameters = mp_runtime_alloc(rt, (size_t)MP_MAX(g->n, 1) * sizeof(struct mp_tensor *));
    for (int i = 0, n = 0; i < net->n_parameters; i++)
        if (layers[i] == g->layer)
            g->parameters[n++] = net->parameters[i];
}

/* Shards in the order of model.parameters(). */
static void list_parameters(struct mp_runtime *rt, struct mp_fsdp *fsdp, const struct mp_net *net,
                            const int *layers)
{
    int *next = mp_runtime_alloc(rt, (size_t)fsdp->n_groups * sizeof *next);
    fsdp->n_parameters = net->n_parameters;
    fsdp->parameters =
        mp_runtime_alloc(rt, (size_t)MP_MAX(net->n_parameters, 1) * sizeof(struct mp_tensor *));
    for (int i = 0; i < net->n_parameters; i++) {
        const int number = layers[i] < 0 ? fsdp->n_groups - 1 : layers[i];
        fsdp->parameters[i] = fsdp->groups[number].shards[next[number]++];
    }
}

struct mp_fsdp *mp_fsdp_wrap(struct mp_runtime *rt, const struct mp_run *run, struct mp_net *net,
                             struct mp_hooks *hooks)
{
    struct mp_fsdp *fsdp = mp_runtime_alloc(rt, sizeof *fsdp);
    const enum mp_category category = rt->category;
    const char *op = rt->op;
    int n_layers;
    const int *layers = layers_of(rt, net, &n_layers);
    rt->op = "fully_shard";
    rt->category = MP_CATEGORY_PARAMETER;
    *fsdp = (struct mp_fsdp){.rt = rt,
                             .options = &run->fsdp,
                             .world = run->world / run->fsdp.replicas,
                             .n_groups = n_layers + 1};
    fsdp->rank = run->rank % fsdp->world;
    fsdp->groups = mp_runtime_alloc(rt, (size_t)fsdp->n_groups * sizeof *fsdp->groups);
    for (int i = 0; i < fsdp->n_groups; i++) {
        struct group *g = &fsdp->groups[i];
        g->fsdp = fsdp;
        g->layer = i < n_layers ? i : -1;
        fill_group(rt, g, net, layers);
        shard_group(rt, g);
    }
    list_parameters(rt, fsdp, net, layers);
    *hooks = (struct mp_hooks){.context = fsdp, .block = block, .backward_done = backward_done};
    rt->hooks = hooks;
    rt->category = category;
    rt->layer = -1;
    rt->op = op;
    return fsdp;
}
