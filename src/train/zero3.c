/* SPDX-License-Identifier: MIT */
/*
 * DeepSpeed ZeRO, stage 3: weights are spread too, and gathered module by module.
 *
 *     a module   fetch its parameters ──> fetch ahead ──> forward, or backward ──> release what is not used again soon
 *     trace      the first micro-batch records the order of modules; from the second on, weights are fetched ahead
 *                (stage3_prefetch_bucket_size, stage3_max_live_parameters) and kept (stage3_max_reuse_distance,
 *                stage3_param_persistence_threshold). Every module fetches ahead, those without parameters too
 *     gradients  collected in a bucket that always exists, reduced when it is full, kept as this rank's part
 *
 * Parameters that are fetched together go through a flat buffer. It is filled when the gather starts; their own memory is taken
 * when the first of them is needed, and the buffer goes when the last of them has been.
 *
 * deepspeed/runtime/zero/stage3.py, partition_parameters.py, parameter_offload.py, partitioned_param_coordinator.py (0.19)
 */
#include "train/deepspeed.h"

#include "shadow/module.h"
#include "train/optimizer.h"

/* Parameters under way. */
struct gather {
    struct mp_storage *flat; /* NULL: a single parameter, in its own memory from the start */
    int *members, n, n_waited_for;
    bool done;
};

enum place { AWAY, IN_FLIGHT, HERE };

/* One parameter. */
struct slot {
    int64_t elements, part; /* part: of each rank, rounded up */
    enum place place;
    bool persistent;
    unsigned active;       /* bit per kind of module that uses it now */
    int64_t fetched_for;   /* last step that a fetch was meant for; -1: none of this micro-batch */
    struct gather *gather; /* while in flight, or until its module has asked for it */
};

/* A module that has been called: its parameters, in the trace's flat list. */
struct use {
    int first, n;
};

/* A parameter's turn in the trace. */
struct turn {
    int parameter, step;
};

struct mp_zero3 {
    const struct mp_run *run;
    const struct mp_deepspeed_options *options;
    struct mp_tensor **parameters;
    int n;
    struct slot *slots;
    int64_t world, rank, available_elements;
    enum mp_dtype dtype;
    unsigned gather_stream, reduce_stream; /* the main stream without overlap_comm */
    struct mp_tensor *master;
    struct mp_optimizer_instance optimizer;
    struct mp_storage *bucket;
    int64_t bucket_elements;
    int *members, n_members, n_accumulated;
    bool boundary;              /* the micro-batch before the step */
    struct mp_storage **norms;  /* offload_optimizer: of this rank's parts, until the step */
    /* the trace */
    bool complete;
    struct use *uses;
    int n_uses, cap_uses;
    struct turn *turns;
    int n_turns, cap_turns;
    int step;  /* modules called so far */
    int ahead; /* turns up to here have been fetched or passed */
    struct mp_module *in_backward; /* entered, and not left yet */
    int n_in_backward, cap_in_backward;
    struct mp_storage *norm;
};

static void *grown(struct mp_runtime *rt, void *array, int *capacity, int n, size_t size)
{
    if (n < *capacity)
        return array;
    const int wanted = *capacity ? *capacity * 2 : 256;
    void *bigger = mp_runtime_alloc(rt, (size_t)wanted * size);
    if (n)
        memcpy(bigger, array, (size_t)n * size);
    *capacity = wanted;
    return bigger;
}

/* ---- gathering ---- */

static uint64_t gathered_bytes(const struct mp_zero3 *z, int i)
{
    return (uint64_t)(z->slots[i].part * z->world) * mp_dtype_bytes(z->dtype);
}

static struct mp_storage *new_on(struct mp_runtime *rt, unsigned stream, uint64_t bytes)
{
    rt->stream = (uint8_t)stream;
    struct mp_storage *storage = mp_storage_new(rt, bytes);
    rt->stream = MP_STREAM_MAIN;
    return storage;
}

/* The parameter takes memory on this stream. */
static void take_memory(struct mp_runtime *rt, const struct mp_zero3 *z, unsigned stream, int i, uint64_t bytes)
{
    z->parameters[i]->storage->stream = (uint8_t)stream;
    mp_storage_resize(rt, z->parameters[i]->storage, bytes);
}

/* Offloaded parts come over one by one. */
static void parts_from_host(struct mp_runtime *rt, const struct mp_zero3 *z, const struct gather *g)
{
    if (!z->options->offload_param)
        return;
    struct mp_storage **parts = mp_runtime_alloc(rt, (size_t)g->n * sizeof(struct mp_storage *));
    for (int k = 0; k < g->n; k++)
        parts[k] = new_on(rt, z->gather_stream, (uint64_t)z->slots[g->members[k]].part * mp_dtype_bytes(z->dtype));
    for (int k = 0; k < g->n; k++)
        mp_storage_unref(rt, parts[k]);
}

static void start_gather(struct mp_runtime *rt, struct mp_zero3 *z, const int *which, int n)
{
    struct gather *g = mp_runtime_alloc(rt, sizeof *g);
    uint64_t bytes = 0;
    *g = (struct gather){.members = mp_runtime_alloc(rt, (size_t)n * sizeof *g->members), .n = n, .n_waited_for = n};
    memcpy(g->members, which, (size_t)n * sizeof *which);
    for (int k = 0; k < n; k++) {
        struct slot *slot = &z->slots[which[k]];
        bytes += gathered_bytes(z, which[k]);
        slot->place = IN_FLIGHT;
        slot->gather = g;
        z->available_elements += slot->elements;
    }
    if (z->world == 1) /* the only part is the whole */
        return;
    if (n > 1)
        g->flat = new_on(rt, z->gather_stream, bytes);
    else
        take_memory(rt, z, z->gather_stream, which[0], bytes);
    parts_from_host(rt, z, g);
}

static int compare_integers(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void gather(struct mp_runtime *rt, struct mp_zero3 *z, int *which, int n)
{
    const char *op = rt->op;
    const enum mp_category category = rt->category;
    if (n == 0)
        return;
    rt->op = "all_gather";
    rt->category = MP_CATEGORY_COMMUNICATION;
    qsort(which, (size_t)n, sizeof *which, compare_integers);
    start_gather(rt, z, which, n);
    rt->category = category;
    rt->op = op;
}

/* The parameter is needed: all that came with it leave the flat buffer. */
static void wait_for(struct mp_runtime *rt, struct mp_zero3 *z, int i)
{
    struct gather *g = z->slots[i].gather;
    const enum mp_category category = rt->category;
    if (!g)
        return;
    rt->category = MP_CATEGORY_COMMUNICATION;
    for (int k = 0; !g->done && k < g->n; k++) {
        if (g->flat)
            take_memory(rt, z, z->gather_stream, g->members[k], mp_nbytes(z->parameters[g->members[k]]));
        z->slots[g->members[k]].place = HERE;
    }
    rt->category = category;
    g->done = true;
    z->slots[i].gather = NULL;
    if (--g->n_waited_for == 0 && g->flat)
        mp_storage_unref(rt, g->flat);
}

/* free_param(): its memory came from the gathering stream and was used on the main one. */
static void drop(struct mp_runtime *rt, struct mp_zero3 *z, int i)
{
    struct slot *slot = &z->slots[i];
    if (slot->place != HERE || slot->active)
        return;
    struct mp_storage *storage = z->parameters[i]->storage;
    storage->shared = storage->stream != MP_STREAM_MAIN;
    mp_storage_resize(rt, storage, 0);
    slot->place = AWAY;
    z->available_elements -= slot->elements;
}

/* ---- modules ---- */

/* Numbers of a module's parameters, ascending. */
static int numbers_of(const struct mp_module *module, int *numbers)
{
    int n = 0;
    for (int k = 0; k < module->n_parameters; k++)
        if (module->parameters[k]->storage->owner)
            numbers[n++] = module->parameters[k]->storage->owner - 1;
    if (n > 1)
        qsort(numbers, (size_t)n, sizeof *numbers, compare_integers);
    return n;
}

static void record(struct mp_runtime *rt, struct mp_zero3 *z, const int *which, int n)
{
    z->uses = grown(rt, z->uses, &z->cap_uses, z->n_uses, sizeof *z->uses);
    for (int k = 0; k < n; k++) {
        z->turns = grown(rt, z->turns, &z->cap_turns, z->n_turns, sizeof *z->turns);
        z->turns[z->n_turns++] = (struct turn){which[k], z->n_uses};
    }
    z->uses[z->n_uses++] = (struct use){z->n_turns - n, n};
}

/* Turns that this module takes now are not to be fetched ahead later. */
static void pass_turns(struct mp_zero3 *z, const int *which, int n)
{
    int n_wanted = 0, n_passed = 0;
    for (int k = 0; k < n; k++)
        n_wanted += z->slots[which[k]].fetched_for < z->step;
    while (n_passed < n_wanted && z->ahead < z->n_turns) {
        const struct turn *turn = &z->turns[z->ahead++];
        z->slots[turn->parameter].fetched_for = turn->step;
        n_passed++;
    }
}

/* The next modules' parameters, as many as fit into the bucket and the limit. */
static void fetch_ahead(struct mp_runtime *rt, struct mp_zero3 *z)
{
    const int64_t room = MP_MIN(z->options->max_live_parameters - z->available_elements, z->options->prefetch_bucket_size);
    int *which = NULL, n = 0, capacity = 0;
    int64_t elements = 0;
    while (z->ahead < z->n_turns && elements < room) {
        const struct turn *turn = &z->turns[z->ahead++];
        struct slot *slot = &z->slots[turn->parameter];
        bool twice = false;
        for (int k = 0; k < n; k++)
            twice |= which[k] == turn->parameter;
        slot->fetched_for = MP_MAX(slot->fetched_for, turn->step);
        if (slot->place != AWAY || twice)
            continue;
        which = grown(rt, which, &capacity, n, sizeof *which);
        which[n++] = turn->parameter;
        elements += slot->elements;
    }
    gather(rt, z, which, n);
}

static void fetch(struct mp_runtime *rt, struct mp_zero3 *z, const struct mp_module *module)
{
    int which[MP_MODULE_PARAMETERS], missing[MP_MODULE_PARAMETERS], n_missing = 0;
    const int n = numbers_of(module, which);
    if (!z->complete)
        record(rt, z, which, n);
    for (int k = 0; k < n; k++)
        if (z->slots[which[k]].place == AWAY)
            missing[n_missing++] = which[k];
    gather(rt, z, missing, n_missing);
    for (int k = 0; k < n; k++) {
        z->slots[which[k]].active |= 1u << module->kind;
        wait_for(rt, z, which[k]);
    }
    if (z->complete) {
        pass_turns(z, which, n);
        if (z->options->prefetch_bucket_size > 0)
            fetch_ahead(rt, z);
    }
    z->step++;
}

/* Is it needed again before max_reuse_distance elements of other weights have passed? */
static bool is_reused(const struct mp_zero3 *z, int i)
{
    int64_t passed = 0;
    for (int u = z->step; u < z->n_uses && passed < z->options->max_reuse_distance; u++) {
        for (int k = z->uses[u].first; k < z->uses[u].first + z->uses[u].n; k++) {
            if (z->turns[k].parameter == i)
                return true;
            passed += z->slots[z->turns[k].parameter].elements;
        }
    }
    return false;
}

static void release(struct mp_runtime *rt, struct mp_zero3 *z, const struct mp_module *module)
{
    int which[MP_MODULE_PARAMETERS];
    const int n = numbers_of(module, which);
    for (int k = 0; k < n; k++) {
        struct slot *slot = &z->slots[which[k]];
        slot->active &= ~(1u << module->kind);
        if (!z->complete || !(slot->persistent || slot->fetched_for > z->step || is_reused(z, which[k])))
            drop(rt, z, which[k]);
    }
}

static void before_forward(struct mp_runtime *rt, void *context, const struct mp_module *module) { fetch(rt, context, module); }
static void after_forward(struct mp_runtime *rt, void *context, const struct mp_module *module) { release(rt, context, module); }

static int place_in_backward(const struct mp_zero3 *z, const struct mp_module *module)
{
    int at = 0;
    while (at < z->n_in_backward && (z->in_backward[at].kind != module->kind || z->in_backward[at].parameters[0] != module->parameters[0]))
        at++;
    return at;
}

static void before_backward(struct mp_runtime *rt, void *context, const struct mp_module *module)
{
    struct mp_zero3 *z = context;
    if (module->n_parameters > 0 && place_in_backward(z, module) == z->n_in_backward) {
        z->in_backward = grown(rt, z->in_backward, &z->cap_in_backward, z->n_in_backward, sizeof *z->in_backward);
        z->in_backward[z->n_in_backward++] = *module;
    }
    fetch(rt, z, module);
}

static void after_backward(struct mp_runtime *rt, void *context, const struct mp_module *module)
{
    struct mp_zero3 *z = context;
    const int at = place_in_backward(z, module);
    if (at < z->n_in_backward)
        memmove(&z->in_backward[at], &z->in_backward[at + 1], (size_t)(--z->n_in_backward - at) * sizeof *z->in_backward);
    release(rt, z, module);
}

/* Modules whose input wanted no gradient have not been left: the embeddings. */
static void release_leftovers(struct mp_runtime *rt, struct mp_zero3 *z)
{
    while (z->n_in_backward > 0) {
        const struct mp_module *module = &z->in_backward[--z->n_in_backward];
        int which[MP_MODULE_PARAMETERS];
        const int n = numbers_of(module, which);
        for (int k = 0; k < n; k++) {
            z->slots[which[k]].active &= ~(1u << module->kind);
            if (!z->slots[which[k]].persistent)
                drop(rt, z, which[k]);
        }
    }
}

/* ---- gradients ---- */

/* The reducing stream has copied it: free when that is seen to be done. */
static void share(const struct mp_zero3 *z, struct mp_storage *storage)
{
    storage->shared = z->reduce_stream != MP_STREAM_MAIN;
}

/* Norms are taken in float64; for sizes, an int64 is as good. */
static struct mp_tensor *part_norm(struct mp_runtime *rt, int64_t elements)
{
    struct mp_tensor *wide = mp_empty(rt, MP_SHAPE(elements), MP_I64);
    struct mp_tensor *norm = mp_reduce(rt, wide, 1u, false);
    mp_discard(rt, wide);
    return norm;
}

/* A part goes to the host in float32, and leaves its norm: (norm ** 2) ** 0.5. */
static void send_to_host(struct mp_runtime *rt, struct mp_zero3 *z, int i)
{
    const int64_t elements = z->slots[i].part;
    struct mp_tensor *norm = part_norm(rt, elements);
    struct mp_storage *square = mp_storage_new(rt, 8);
    mp_discard(rt, norm);
    z->norms[i] = mp_storage_new(rt, 8);
    mp_storage_unref(rt, square);
    if (z->dtype != MP_F32)
        mp_scratch(rt, 4 * (uint64_t)elements);
}

/* Sums live on the host: each part's comes over, the next one's before the last one goes. */
static void add_on_host(struct mp_runtime *rt, struct mp_zero3 *z)
{
    struct mp_storage *sum = NULL;
    for (int m = 0; m < z->n_members; m++) {
        const int i = z->members[m];
        if (z->slots[i].part * z->rank >= z->slots[i].elements)
            continue;
        if (sum)
            mp_storage_unref(rt, sum);
        sum = mp_storage_new(rt, (uint64_t)z->slots[i].part * mp_dtype_bytes(z->dtype));
        if (z->boundary)
            send_to_host(rt, z, i);
    }
    if (sum)
        mp_storage_unref(rt, sum);
}

/* reduce_scatter_coalesced(): gradients are laid out by rank, unless one alone divides evenly. */
static void reduce_bucket(struct mp_runtime *rt, struct mp_zero3 *z)
{
    uint64_t elements = 0;
    const bool whole = z->n_members == 1 && z->slots[z->members[0]].elements % z->world == 0;
    struct mp_storage *flat = NULL;
    qsort(z->members, (size_t)z->n_members, sizeof *z->members, compare_integers);
    for (int m = 0; m < z->n_members; m++)
        elements += (uint64_t)(z->slots[z->members[m]].part * z->world);
    rt->stream = (uint8_t)z->reduce_stream;
    if (z->n_members > 0 && !whole)
        flat = mp_storage_new(rt, elements * mp_dtype_bytes(z->dtype));
    if (z->options->offload_optimizer)
        add_on_host(rt, z);
    if (flat)
        mp_storage_unref(rt, flat);
    rt->stream = MP_STREAM_MAIN;
    for (int m = 0; m < z->n_members; m++) {
        struct mp_tensor *p = z->parameters[z->members[m]];
        if (p->grad->storage != z->bucket)
            share(z, p->grad->storage);
        mp_tensor_unref(rt, p->grad);
        p->grad = NULL;
    }
    z->n_members = 0;
    z->bucket_elements = 0;
}

/* The gradient moves into the bucket, and its own memory goes. With the last one the bucket is reduced. */
static void accumulated(struct mp_runtime *rt, void *context, struct mp_tensor *leaf)
{
    struct mp_zero3 *z = context;
    if (!leaf->number)
        return;
    const int i = leaf->number - 1;
    const int64_t elements = z->slots[i].elements;
    if (z->bucket_elements + elements > z->options->reduce_bucket_size && z->n_members > 0)
        reduce_bucket(rt, z);
    if (z->bucket && z->bucket_elements + elements <= z->options->reduce_bucket_size) {
        share(z, leaf->grad->storage);
        mp_storage_unref(rt, leaf->grad->storage);
        z->bucket->refs++;
        leaf->grad->storage = z->bucket;
    }
    z->members[z->n_members++] = i;
    z->bucket_elements += elements;
    if (++z->n_accumulated == z->n)
        reduce_bucket(rt, z);
}

static void backward_done(struct mp_runtime *rt, void *context)
{
    struct mp_zero3 *z = context;
    reduce_bucket(rt, z);
    release_leftovers(rt, z);
    z->n_accumulated = 0;
}

/* assert_ints_same_as_other_ranks() */
static void agree_on(struct mp_runtime *rt, int n)
{
    mp_scratch(rt, 8);
    mp_scratch(rt, 8 * (uint64_t)n);
}

/* Ranks make sure that they have recorded the same: modules, parameters, and whose they are. */
static void agree_on_trace(struct mp_runtime *rt, const struct mp_zero3 *z)
{
    if (z->complete)
        return;
    agree_on(rt, z->n_uses);
    for (int i = 0; i < 2 && z->n_uses > 0; i++)
        agree_on(rt, z->n_turns);
}

/* reset_step(), before a forward: the first one that follows a backward has the whole trace. */
void mp_zero3_before_forward(struct mp_runtime *rt, struct mp_zero3 *z, bool boundary)
{
    z->boundary = boundary;
    agree_on_trace(rt, z);
    z->complete = z->n_uses > 0;
    z->step = z->ahead = 0;
    z->available_elements = 0;
    for (int i = 0; i < z->n; i++) {
        z->slots[i].fetched_for = -1;
        if (z->slots[i].gather) {
            wait_for(rt, z, i);
            drop(rt, z, i);
        }
    }
    mp_container_begin(rt); /* the model with its head */
}

/* ---- construction ---- */

static int64_t all_parts(const struct mp_zero3 *z)
{
    int64_t elements = 0;
    for (int i = 0; i < z->n; i++)
        elements += z->slots[i].part;
    return elements;
}

static void barrier(struct mp_runtime *rt, const struct mp_zero3 *z)
{
    if (!z->run->no_collectives)
        mp_process_group_barrier(rt);
}

/* Weights are cut one by one, then the parts move together. */
static void partition_weights(struct mp_runtime *rt, struct mp_zero3 *z)
{
    struct mp_storage **parts =
        mp_runtime_alloc(rt, (size_t)MP_MAX(z->n, 1) * sizeof(struct mp_storage *));
    for (int i = 0; i < z->n; i++) {
        struct mp_tensor *p = z->parameters[i];
        struct slot *slot = &z->slots[i];
        slot->elements = mp_numel(p);
        slot->part = (slot->elements + z->world - 1) / z->world;
        slot->persistent = slot->elements <= z->options->persistence_threshold;
        p->number = p->storage->owner = i + 1;
        if (!z->options->offload_param)
            parts[i] = mp_storage_new(rt, (uint64_t)slot->part * mp_dtype_bytes(z->dtype));
        mp_storage_resize(rt, p->storage, 0);
    }
    if (!z->options->offload_optimizer)
        mp_storage_new(rt, 1); /* the overflow flag */
    barrier(rt, z);
    for (int i = 0; i < z->n; i++) /* by way of the host */
        if (parts[i])
            mp_storage_unref(rt, parts[i]);
    if (z->options->offload_param)
        return;
    mp_empty_cache(rt); /* defragment() */
    mp_storage_new(rt, (uint64_t)all_parts(z) * mp_dtype_bytes(z->dtype));
}

static void make_masters(struct mp_runtime *rt, struct mp_zero3 *z)
{
    const int64_t elements = all_parts(z);
    if (z->options->offload_optimizer) {
        barrier(rt, z);
        barrier(rt, z);
        return;
    }
    struct mp_storage *copy = z->dtype == MP_F32 ? NULL : mp_storage_new(rt, 4 * (uint64_t)elements);
    z->master = mp_take(rt, mp_empty(rt, MP_SHAPE(elements), MP_F32));
    if (copy)
        mp_storage_unref(rt, copy);
    barrier(rt, z);
    mp_scratch(rt, 4 * (uint64_t)elements); /* gradients of zeros */
    barrier(rt, z);
}

/* A weight comes by itself, at once. */
static void gather_alone(struct mp_runtime *rt, struct mp_zero3 *z, int i)
{
    const enum mp_category category = rt->category;
    rt->category = MP_CATEGORY_COMMUNICATION;
    z->slots[i].place = HERE;
    z->available_elements += z->slots[i].elements;
    if (z->world > 1)
        take_memory(rt, z, MP_STREAM_MAIN, i, gathered_bytes(z, i));
    rt->category = category;
}

/* Each weight is gathered once, to be looked at. */
static void visit_weights(struct mp_runtime *rt, struct mp_zero3 *z)
{
    for (int i = 0; i < z->n; i++) {
        gather_alone(rt, z, i);
        if (z->options->offload_param && z->world > 1)
            mp_scratch(rt, (uint64_t)z->slots[i].part * mp_dtype_bytes(z->dtype));
        drop(rt, z, i);
        if (z->world == 1)
            mp_scratch(rt, gathered_bytes(z, i));
    }
}

struct mp_zero3 *mp_zero3_wrap(struct mp_runtime *rt, const struct mp_run *run,
                               struct mp_tensor **parameters, int n, struct mp_hooks *hooks)
{
    struct mp_zero3 *z = mp_runtime_alloc(rt, sizeof *z);
    *z = (struct mp_zero3){.run = run,
                           .options = &run->deepspeed,
                           .parameters = parameters,
                           .n = n,
                           .world = run->world,
                           .rank = run->rank};
    z->dtype = n ? (enum mp_dtype)parameters[0]->dtype : MP_F32;
    if (z->options->overlap_comm) {
        z->gather_stream = MP_STREAM_COPY_IN;
        z->reduce_stream = MP_STREAM_REDUCE_SCATTER;
    }
    z->slots = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *z->slots);
    z->members = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *z->members);
    z->norms = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof(struct mp_storage *));
    rt->op = "deepspeed.initialize";
    rt->category = MP_CATEGORY_PARAMETER;
    partition_weights(rt, z);
    make_masters(rt, z);
    rt->category = MP_CATEGORY_COMMUNICATION;
    if (z->options->contiguous_gradients)
        z->bucket =
            mp_storage_new(rt, (uint64_t)z->options->reduce_bucket_size * mp_dtype_bytes(z->dtype));
    rt->category = MP_CATEGORY_GRADIENT;
    if (!z->options->offload_optimizer)
        mp_storage_new(rt, (uint64_t)all_parts(z) * mp_dtype_bytes(z->dtype));
    rt->category = MP_CATEGORY_TEMPORARY;
    visit_weights(rt, z);
    rt->op = "";
    mp_optimizer_init(rt, &z->optimizer, run->optimizer, &z->master, z->master ? 1 : 0);
    *hooks = (struct mp_hooks){.context = z,
                               .hooks_tensors = true,
                               .linear_function = z->options->memory_efficient_linear,
                               .accumulated = accumulated,
                               .backward_done = backward_done,
                               .before_forward = before_forward,
                               .after_forward = after_forward,
                               .before_backward = before_backward,
                               .after_backward = after_backward};
    rt->hooks = hooks;
    return z;
}

/* ---- the step ---- */

static void norms(struct mp_runtime *rt, const struct mp_zero3 *z)
{
    const int before = rt->n_temporaries;
    for (int i = 0; i < z->n; i++)
        mp_keep(part_norm(rt, z->slots[i].part));
    mp_discard_to(rt, before);
}

/* With the optimizer on the host the parts' norms are there already. */
static void add_norms(struct mp_runtime *rt, struct mp_zero3 *z)
{
    struct mp_storage *total = mp_storage_new(rt, 8);
    mp_scratch(rt, 8);
    mp_storage_unref(rt, total);
    mp_scratch(rt, 4);
    for (int i = 0; i < z->n; i++) {
        if (z->norms[i])
            mp_storage_unref(rt, z->norms[i]);
        z->norms[i] = NULL;
    }
}

/* float16: torch.isinf(), by way of the absolute values, and torch.isnan() of all parts, on the stream that reduced them */
static void look_for_overflow(struct mp_runtime *rt, const struct mp_zero3 *z)
{
    if (z->dtype != MP_F16 || z->options->offload_optimizer)
        return;
    rt->stream = (uint8_t)z->reduce_stream;
    for (int isnan = 0; isnan < 2; isnan++) {
        struct mp_tensor *absolute = isnan ? NULL : mp_keep(mp_empty(rt, MP_SHAPE(all_parts(z)), MP_F16));
        struct mp_tensor *found = mp_keep(mp_empty(rt, MP_SHAPE(all_parts(z)), MP_BOOL));
        if (absolute) {
            absolute->pinned = false;
            mp_discard(rt, absolute);
        }
        mp_discard(rt, mp_reduce(rt, found, 1u, false));
        found->pinned = false;
        mp_discard(rt, found);
    }
    struct mp_storage *clone = mp_storage_new(rt, 1), *bytes = mp_storage_new(rt, 1);
    mp_storage_unref(rt, clone);
    mp_storage_unref(rt, bytes);
    rt->stream = MP_STREAM_MAIN;
}

/* Weights that always stay are gathered again, together: side by side, without a flat buffer. */
static void gather_persistent(struct mp_runtime *rt, struct mp_zero3 *z)
{
    struct mp_storage **parts = mp_runtime_alloc(rt, (size_t)MP_MAX(z->n, 1) * sizeof(struct mp_storage *));
    for (int i = 0; i < z->n; i++)
        if (z->slots[i].persistent)
            drop(rt, z, i);
    for (int i = 0; i < z->n; i++)
        if (z->slots[i].persistent && z->options->offload_param && z->world > 1)
            parts[i] = mp_storage_new(rt, (uint64_t)z->slots[i].part * mp_dtype_bytes(z->dtype));
    for (int i = 0; i < z->n; i++)
        if (z->slots[i].persistent)
            gather_alone(rt, z, i);
    for (int i = 0; i < z->n; i++)
        if (parts[i])
            mp_storage_unref(rt, parts[i]);
}

/* float32 gradients: flattened, then cast */
static struct mp_tensor *flat_gradients(struct mp_runtime *rt, const struct mp_zero3 *z)
{
    const uint64_t bytes = (uint64_t)all_parts(z) * mp_dtype_bytes(z->dtype);
    struct mp_storage *flat = z->dtype == MP_F32 ? NULL : mp_storage_new(rt, bytes);
    struct mp_tensor *wide = mp_take(rt, mp_empty(rt, MP_SHAPE(all_parts(z)), MP_F32));
    if (flat)
        mp_storage_unref(rt, flat);
    return wide;
}

static void update(struct mp_runtime *rt, struct mp_zero3 *z)
{
    struct mp_storage *old = z->norm; /* the engine has it until it is through */
    norms(rt, z);
    struct mp_storage *total = mp_storage_new(rt, 8), *scaled = mp_storage_new(rt, 8);
    z->norm = mp_storage_new(rt, 8);
    rt->category = MP_CATEGORY_GRADIENT;
    z->master->grad = flat_gradients(rt, z);
    rt->category = MP_CATEGORY_TEMPORARY;
    mp_optimizer_step(rt, &z->optimizer);
    mp_tensor_unref(rt, z->master->grad);
    z->master->grad = NULL;
    gather_persistent(rt, z);
    mp_storage_unref(rt, scaled);
    mp_storage_unref(rt, total);
    if (old)
        mp_storage_unref(rt, old);
}

void mp_zero3_step(struct mp_runtime *rt, struct mp_zero3 *z)
{
    rt->op = "engine.step";
    for (int i = 0; i < z->n; i++) {
        wait_for(rt, z, i);
        z->slots[i].active = 0;
        drop(rt, z, i);
    }
    look_for_overflow(rt, z);
    if (z->master) {
        update(rt, z);
    } else {
        add_norms(rt, z);
        gather_persistent(rt, z);
    }
    rt->op = "";
}
