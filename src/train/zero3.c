/* SPDX-License-Identifier: MIT */
/*
 * DeepSpeed ZeRO, stage 3: weights are spread too, and gathered operator by operator.
 *
 *     use        fetch what is not there ──> the operator ──> release what is not used again soon
 *     trace      the first micro-batch records the order of uses; from the second on, weights are fetched ahead
 *                (stage3_prefetch_bucket_size, stage3_max_live_parameters) and kept (stage3_max_reuse_distance,
 *                stage3_param_persistence_threshold)
 *     gradients  collected in a bucket that always exists, reduced when it is full, kept as this rank's part
 *
 * A use is an operator that has a parameter among its arguments, or a node that works on one in backward: what DeepSpeed's hooks see of
 * a module. Several parameters that are fetched together go through a flat buffer.
 *
 * deepspeed/runtime/zero/stage3.py, partition_parameters.py, partitioned_param_coordinator.py (0.19)
 */
#include "train/deepspeed.h"

#include "train/optimizer.h"

/* One parameter. */
struct slot {
    int64_t elements, part; /* part: of each rank, rounded up */
    bool available, persistent;
    int active;          /* uses under way */
    int64_t fetched_for; /* last use that a fetch or prefetch was meant for */
};

/* A use: the parameters, in the trace's flat list. */
struct use {
    int first, n;
};

struct mp_zero3 {
    const struct mp_run *run;
    const struct mp_deepspeed_options *options;
    struct mp_tensor **parameters;
    int n;
    struct slot *slots;
    int64_t world, available_elements;
    enum mp_dtype dtype;
    struct mp_tensor *master;
    struct mp_optimizer_instance optimizer;
    struct mp_storage *bucket;
    int64_t bucket_elements;
    int *members, n_members;
    /* the trace */
    bool complete;
    struct use *uses;
    int n_uses, cap_uses;
    int *traced, n_traced, cap_traced;
    int step;  /* the next use */
    int ahead; /* place in traced up to which parameters were fetched or passed */
    struct mp_storage **deferred;
    int n_deferred, cap_deferred;
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

/* ---- fetching ---- */

static uint64_t gathered_bytes(const struct mp_zero3 *z, int i)
{
    return (uint64_t)(z->slots[i].part * z->world) * mp_dtype_bytes(z->dtype);
}

/* Offloaded parts come over one by one. */
static struct mp_storage **parts_from_host(struct mp_runtime *rt, const struct mp_zero3 *z,
                                           const int *which, int n)
{
    struct mp_storage **parts = mp_runtime_alloc(rt, (size_t)n * sizeof(struct mp_storage *));
    for (int k = 0; k < n; k++)
        parts[k] = mp_storage_new(rt, (uint64_t)z->slots[which[k]].part * mp_dtype_bytes(z->dtype));
    return parts;
}

/* Through a flat buffer when there are several; each then gets memory of its own. */
static void fetch(struct mp_runtime *rt, struct mp_zero3 *z, enum mp_stream stream,
                  const int *which, int n)
{
    uint64_t bytes = 0;
    for (int k = 0; k < n; k++) {
        bytes += gathered_bytes(z, which[k]);
        z->slots[which[k]].available = true;
        z->available_elements += z->slots[which[k]].elements;
    }
    if (n == 0 || z->world == 1) /* the only part is the whole */
        return;
    const char *op = rt->op;
    const enum mp_category category = rt->category;
    rt->op = "all_gather";
    rt->category = MP_CATEGORY_COMMUNICATION;
    rt->stream = (uint8_t)stream;
    struct mp_storage **parts = z->options->offload_param ? parts_from_host(rt, z, which, n) : NULL;
    struct mp_storage *flat = n > 1 ? mp_storage_new(rt, bytes) : NULL;
    rt->stream = MP_STREAM_MAIN;
    for (int k = 0; k < n; k++) {
        const int i = which[k];
        z->parameters[i]->storage->stream = (uint8_t)stream;
        mp_storage_resize(rt, z->parameters[i]->storage,
                          n > 1 ? mp_nbytes(z->parameters[i]) : gathered_bytes(z, i));
    }
    if (flat)
        mp_storage_unref(rt, flat);
    for (int k = 0; parts && k < n; k++)
        mp_storage_unref(rt, parts[k]);
    rt->category = category;
    rt->op = op;
}

static void drop(struct mp_runtime *rt, struct mp_zero3 *z, int i)
{
    if (!z->slots[i].available || z->slots[i].active)
        return;
    mp_storage_resize(rt, z->parameters[i]->storage, 0);
    z->slots[i].available = false;
    z->available_elements -= z->slots[i].elements;
}

/* The next uses' parameters, as many as fit into the bucket and the limit. */
static void prefetch(struct mp_runtime *rt, struct mp_zero3 *z)
{
    const int64_t room = MP_MIN(z->options->max_live_parameters - z->available_elements,
                                z->options->prefetch_bucket_size);
    int *which = NULL, n = 0, capacity = 0;
    int64_t elements = 0;
    while (z->ahead < z->n_traced && elements < room) {
        const int i = z->traced[z->ahead++];
        bool twice = false;
        for (int k = 0; k < n; k++)
            twice |= which[k] == i;
        z->slots[i].fetched_for = MP_MAX(z->slots[i].fetched_for, z->ahead);
        if (z->slots[i].available || twice)
            continue;
        which = grown(rt, which, &capacity, n, sizeof *which);
        which[n++] = i;
        elements += z->slots[i].elements;
    }
    fetch(rt, z, MP_STREAM_COPY_IN, which, n);
}

/* Is it needed again before max_reuse_distance elements of other weights have passed? */
static bool is_reused(const struct mp_zero3 *z, int i)
{
    int64_t passed = 0;
    for (int u = z->step; u < z->n_uses && passed < z->options->max_reuse_distance; u++) {
        for (int k = z->uses[u].first; k < z->uses[u].first + z->uses[u].n; k++) {
            if (z->traced[k] == i)
                return true;
            passed += z->slots[z->traced[k]].elements;
        }
    }
    return false;
}

/* ---- uses ---- */

static void release_deferred(struct mp_runtime *rt, struct mp_zero3 *z)
{
    for (int i = 0; i < z->n_deferred; i++)
        mp_storage_unref(rt, z->deferred[i]);
    z->n_deferred = 0;
}

#define MAX_USED 8

/* The parameters among the tensors, each once. */
static int used_parameters(int n, struct mp_tensor *const *tensors, int *which)
{
    int n_used = 0;
    for (int t = 0; t < n && n_used < MAX_USED; t++) {
        if (!tensors[t] || !tensors[t]->storage->owner)
            continue;
        const int i = tensors[t]->storage->owner - 1;
        bool twice = false;
        for (int k = 0; k < n_used; k++)
            twice |= which[k] == i;
        if (!twice)
            which[n_used++] = i;
    }
    return n_used;
}

static void record(struct mp_runtime *rt, struct mp_zero3 *z, const int *which, int n)
{
    z->uses = grown(rt, z->uses, &z->cap_uses, z->n_uses, sizeof *z->uses);
    z->uses[z->n_uses++] = (struct use){z->n_traced, n};
    for (int k = 0; k < n; k++) {
        z->traced = grown(rt, z->traced, &z->cap_traced, z->n_traced, sizeof *z->traced);
        z->traced[z->n_traced++] = which[k];
    }
}

static void begin_use(struct mp_runtime *rt, void *context, int n, struct mp_tensor *const *tensors)
{
    struct mp_zero3 *z = context;
    int which[MAX_USED], missing[MAX_USED], n_missing = 0;
    const int n_used = used_parameters(n, tensors, which);
    bool nested = true;
    for (int k = 0; k < n_used; k++) {
        nested = nested && z->slots[which[k]].active > 0;
        if (!z->slots[which[k]].available)
            missing[n_missing++] = which[k];
        z->slots[which[k]].active++;
    }
    if (n_used == 0 || nested) /* an operator inside the one that was counted */
        return;
    fetch(rt, z, MP_STREAM_COPY_IN, missing, n_missing);
    if (!z->complete) {
        record(rt, z, which, n_used);
        return;
    }
    if (z->step < z->n_uses) {
        const struct use *use = &z->uses[z->step++];
        z->ahead = MP_MAX(z->ahead, use->first + use->n);
    }
    if (z->options->prefetch_bucket_size > 0)
        prefetch(rt, z);
}

static void end_use(struct mp_runtime *rt, void *context, int n, struct mp_tensor *const *tensors)
{
    struct mp_zero3 *z = context;
    int which[MAX_USED];
    const int n_used = used_parameters(n, tensors, which);
    for (int k = 0; k < n_used; k++) {
        struct slot *slot = &z->slots[which[k]];
        if (slot->active > 0 && --slot->active > 0)
            continue;
        release_deferred(rt, z);
        const bool keep = z->complete && (slot->persistent || is_reused(z, which[k]));
        if (!keep)
            drop(rt, z, which[k]);
    }
}

/* A recomputation ends early, inside operators. */
static void stop_uses(struct mp_runtime *rt, void *context)
{
    struct mp_zero3 *z = context;
    for (int i = 0; i < z->n; i++) {
        if (z->slots[i].active == 0)
            continue;
        z->slots[i].active = 0;
        if (!z->complete || (!z->slots[i].persistent && !is_reused(z, i)))
            drop(rt, z, i);
    }
}

/* ---- gradients ---- */

/* The reducing stream copies them: they are free when that is seen to be done, at the next allocation. */
static void defer(struct mp_runtime *rt, struct mp_zero3 *z, struct mp_storage *storage)
{
    z->deferred =
        grown(rt, z->deferred, &z->cap_deferred, z->n_deferred, sizeof(struct mp_storage *));
    storage->refs++;
    z->deferred[z->n_deferred++] = storage;
}

/* reduce_scatter_coalesced(): gradients are laid out by rank, unless one alone divides evenly. */
static void reduce_bucket(struct mp_runtime *rt, struct mp_zero3 *z)
{
    uint64_t elements = 0;
    const bool whole = z->n_members == 1 && z->slots[z->members[0]].elements % z->world == 0;
    for (int m = 0; m < z->n_members; m++)
        elements += (uint64_t)(z->slots[z->members[m]].part * z->world);
    if (z->n_members > 0 && !whole) {
        release_deferred(rt, z);
        rt->stream = MP_STREAM_REDUCE_SCATTER;
        mp_scratch(rt, elements * mp_dtype_bytes(z->dtype));
        rt->stream = MP_STREAM_MAIN;
    }
    for (int m = 0; m < z->n_members; m++) {
        struct mp_tensor *p = z->parameters[z->members[m]];
        if (p->grad->storage != z->bucket)
            defer(rt, z, p->grad->storage);
        mp_tensor_unref(rt, p->grad);
        p->grad = NULL;
    }
    z->n_members = 0;
    z->bucket_elements = 0;
}

/* The gradient moves into the bucket, and its own memory goes. */
static void accumulated(struct mp_runtime *rt, void *context, struct mp_tensor *leaf)
{
    struct mp_zero3 *z = context;
    if (!leaf->number)
        return;
    const int i = leaf->number - 1;
    const int64_t elements = z->slots[i].elements;
    if (z->bucket_elements + elements > z->options->reduce_bucket_size && z->n_members > 0)
        reduce_bucket(rt, z);
    release_deferred(rt, z);
    if (z->bucket && z->bucket_elements + elements <= z->options->reduce_bucket_size) {
        defer(rt, z, leaf->grad->storage);
        mp_storage_unref(rt, leaf->grad->storage);
        z->bucket->refs++;
        leaf->grad->storage = z->bucket;
    }
    z->members[z->n_members++] = i;
    z->bucket_elements += elements;
}

static void backward_done(struct mp_runtime *rt, void *context)
{
    struct mp_zero3 *z = context;
    reduce_bucket(rt, z);
    z->complete = true; /* one forward and backward have been seen */
    z->step = z->ahead = 0;
}

/* ---- construction ---- */

static int64_t all_parts(const struct mp_zero3 *z)
{
    int64_t elements = 0;
    for (int i = 0; i < z->n; i++)
        elements += z->slots[i].part;
    return elements;
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
        parts[i] = mp_storage_new(rt, (uint64_t)slot->part * mp_dtype_bytes(z->dtype));
        mp_storage_resize(rt, p->storage, 0);
    }
    for (int i = 0; i < z->n; i++) /* by way of the host */
        mp_storage_unref(rt, parts[i]);
    mp_empty_cache(rt);
    if (!z->options->offload_param)
        mp_storage_new(rt, (uint64_t)all_parts(z) * mp_dtype_bytes(z->dtype));
}

static void make_masters(struct mp_runtime *rt, struct mp_zero3 *z)
{
    const int64_t elements = all_parts(z);
    if (z->options->offload_optimizer)
        return;
    struct mp_storage *copy = mp_storage_new(rt, 4 * (uint64_t)elements);
    z->master = mp_take(rt, mp_empty(rt, MP_SHAPE(elements), MP_F32));
    mp_storage_unref(rt, copy);
    mp_scratch(rt, 4 * (uint64_t)elements); /* gradients of zeros */
}

/* Each weight is gathered once, to be looked at. */
static void visit_weights(struct mp_runtime *rt, struct mp_zero3 *z)
{
    for (int i = 0; i < z->n; i++) {
        fetch(rt, z, MP_STREAM_MAIN, &i, 1);
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
                           .world = run->world};
    z->dtype = n ? (enum mp_dtype)parameters[0]->dtype : MP_F32;
    z->slots = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *z->slots);
    z->members = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *z->members);
    rt->op = "deepspeed.initialize";
    rt->category = MP_CATEGORY_PARAMETER;
    partition_weights(rt, z);
    if (!z->options->offload_optimizer)
        mp_storage_new(rt, 1); /* the overflow flag */
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
                               .accumulated = accumulated,
                               .backward_done = backward_done,
                               .begin_use = begin_use,
                               .end_use = end_use,
                               .stop_uses = stop_uses};
    rt->hooks = hooks;
    return z;
}

/* ---- the step ---- */

static void norms(struct mp_runtime *rt, const struct mp_zero3 *z)
{
    const int before = rt->n_temporaries;
    for (int i = 0; i < z->n; i++) { /* in float64; for sizes, an int64 is as good */
        struct mp_tensor *wide = mp_empty(rt, MP_SHAPE(z->slots[i].part), MP_I64);
        mp_keep(mp_reduce(rt, wide, 1u, false));
        mp_discard(rt, wide);
    }
    mp_discard_to(rt, before);
}

/* Weights that always stay are gathered again, together. */
static void gather_persistent(struct mp_runtime *rt, struct mp_zero3 *z)
{
    int *which = mp_runtime_alloc(rt, (size_t)MP_MAX(z->n, 1) * sizeof *which), n = 0;
    for (int i = 0; i < z->n; i++) {
        if (!z->slots[i].persistent)
            continue;
        drop(rt, z, i);
        which[n++] = i;
    }
    for (int k = 0; k < n; k++) /* side by side, without a flat buffer */
        fetch(rt, z, MP_STREAM_MAIN, &which[k], 1);
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

void mp_zero3_step(struct mp_runtime *rt, struct mp_zero3 *z)
{
    rt->op = "engine.step";
    struct mp_storage *old = z->norm; /* the engine has it until it is through */
    release_deferred(rt, z);
    for (int i = 0; i < z->n; i++)
        drop(rt, z, i);
    norms(rt, z);
    struct mp_storage *total = mp_storage_new(rt, 8), *scaled = mp_storage_new(rt, 8);
    z->norm = mp_storage_new(rt, 8);
    if (z->master) {
        rt->category = MP_CATEGORY_GRADIENT;
        z->master->grad = flat_gradients(rt, z);
        rt->category = MP_CATEGORY_TEMPORARY;
        mp_optimizer_step(rt, &z->optimizer);
        mp_tensor_unref(rt, z->master->grad);
        z->master->grad = NULL;
    }
    gather_persistent(rt, z);
    mp_storage_unref(rt, scaled);
    mp_storage_unref(rt, total);
    if (old)
        mp_storage_unref(rt, old);
    rt->op = "";
}
