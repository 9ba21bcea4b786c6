/* SPDX-License-Identifier: MIT */
/*
 * DistributedDataParallel: flat buckets beside the gradients.
 *
 *     construction      shapes compared, parameters and buffers broadcast, one bucket per type
 *     first backward    gradients arrive in some order, and are copied into the bucket
 *     second forward    the order is known: buckets of the limit's size replace the first one
 *
 * With gradient_as_bucket_view, .grad becomes a view of its bucket. The old bucket dies with its views, unless the process group
 * still has it on its shelf of running collectives: the watchdog empties that every 100 ms, and only the next collective lets go of
 * what it took off. mp_ddp_options.lingers says for how many backward passes it stays.
 *
 * Operation records have what moves the parameters and gradients: "broadcast_" from the first rank,
 * "mul" by 1/world into the bucket, "all_reduce_" of the bucket, "to" back into .grad.
 *
 * torch/csrc/distributed/c10d/reducer.cpp, torch/nn/parallel/distributed.py
 */
#include "shadow/ops.h"
#include "train/parallel.h"

#define FIRST_BUCKET_BYTES (UINT64_C(1) << 20)
#define BUCKET_BYTES       (UINT64_C(25) << 20)
#define BROADCAST_BYTES    (UINT64_C(250) << 20)
enum { N_DTYPES = MP_F32 + 1 };

struct bucket {
    struct mp_tensor *contents; /* owned */
    int n_parameters, n_pending;
};

/* What the reducer knows of a parameter. */
struct slot {
    int bucket;
    struct mp_tensor *view; /* of the bucket's contents; owned */
};

struct mp_ddp {
    const struct mp_ddp_options *options;
    struct mp_tensor **parameters;
    int n_parameters;
    double share; /* of a gradient in the ranks' mean */
    bool reduces; /* a group that moves nothing reduces nothing */
    struct slot *slots;
    struct bucket *buckets;
    int n_buckets;
    struct mp_tensor **ready; /* parameters in the order in which their gradients came */
    int n_ready;
    bool rebuilt, sync, sync_buffers;
    bool delay; /* static graph, first iteration: everything is reduced at the end of backward */
    /* the process group's shelf */
    struct mp_tensor *lingering; /* the first bucket */
    int lingers;
    struct mp_storage **sent; /* compressed copies, in order */
    int n_sent, cap_sent, n_reduced;
    int64_t passes; /* forwards that followed a backward, this one included */
};

/* ---- buckets ---- */

/* The open bucket of a type. */
struct open_bucket {
    int number, n_limit;
    uint64_t bytes;
    bool used;
};

static void number_by_first(struct mp_runtime *rt, int *bucket_of, int n, int n_buckets)
{
    int *renamed = mp_runtime_alloc(rt, (size_t)MP_MAX(n_buckets, 1) * sizeof *renamed), next = 0;
    for (int i = 0; i < n; i++) {
        if (!renamed[bucket_of[i]])
            renamed[bucket_of[i]] = ++next;
        bucket_of[i] = renamed[bucket_of[i]] - 1;
    }
}

/* Buckets get their numbers when they close; what is still open then, in the order in which the types appeared. */
int mp_assign_buckets(struct mp_runtime *rt, struct mp_tensor *const *tensors, int n,
                      const uint64_t *limits, int n_limits, bool by_first, int *bucket_of)
{
    struct open_bucket open[N_DTYPES] = {{0}};
    int appeared[N_DTYPES], n_types = 0, n_closed = 0;
    for (int i = 0; i < n; i++) {
        struct open_bucket *b = &open[tensors[i]->dtype];
        if (!b->used)
            appeared[n_types++] = tensors[i]->dtype;
        b->used = true;
        b->bytes += mp_nbytes(tensors[i]);
        bucket_of[i] = -1 - tensors[i]->dtype; /* open */
        if (b->bytes < limits[b->n_limit])
            continue;
        for (int j = 0; j <= i; j++)
            if (bucket_of[j] == -1 - tensors[i]->dtype)
                bucket_of[j] = n_closed;
        n_closed++;
        b->bytes = 0;
        b->n_limit = MP_MIN(b->n_limit + 1, n_limits - 1);
    }
    for (int t = 0; t < n_types; t++) {
        bool any = false;
        for (int j = 0; j < n; j++) {
            if (bucket_of[j] == -1 - appeared[t]) {
                bucket_of[j] = n_closed;
                any = true;
            }
        }
        n_closed += any;
    }
    if (by_first)
        number_by_first(rt, bucket_of, n, n_closed);
    return n_closed;
}

static enum mp_dtype sent_type(const struct mp_ddp *ddp)
{
    static const enum mp_dtype types[] = {MP_F32, MP_F16, MP_BF16}; /* enum mp_compression */
    return types[ddp->options->compression];
}

/* Does the hook send a copy? In the bucket's own type it sends the bucket. */
static bool compresses(const struct mp_ddp *ddp, const struct mp_tensor *contents)
{
    return ddp->options->compression != MP_COMPRESSION_NONE && contents->dtype != (uint8_t)sent_type(ddp);
}

static void release_buckets(struct mp_runtime *rt, struct mp_ddp *ddp)
{
    for (int i = 0; i < ddp->n_parameters; i++) {
        mp_tensor_unref(rt, ddp->slots[i].view);
        ddp->slots[i].view = NULL;
    }
    if (ddp->options->lingers && !ddp->rebuilt && ddp->n_buckets > 0 &&
        !compresses(ddp, ddp->buckets[ddp->n_buckets - 1].contents)) { /* the last one launched */
        ddp->lingering = ddp->buckets[ddp->n_buckets - 1].contents;
        ddp->lingers = ddp->options->lingers;
        ddp->n_buckets--;
    }
    for (int i = 0; i < ddp->n_buckets; i++)
        mp_tensor_unref(rt, ddp->buckets[i].contents);
    ddp->n_buckets = 0;
}

/* The gradient is in its bucket now: .grad becomes the view of it. */
static void adopt_view(struct mp_runtime *rt, const struct mp_ddp *ddp, struct mp_tensor *parameter)
{
    const struct slot *slot = &ddp->slots[parameter->number - 1];
    struct mp_tensor *old = parameter->grad;
    if (!ddp->options->gradient_as_bucket_view || !old || old->storage == slot->view->storage)
        return;
    parameter->grad = mp_take(rt, mp_detach(rt, slot->view));
    mp_tensor_unref(rt, old);
}

/* A gradient from before the buckets were rebuilt moves over. */
static void move_gradient(struct mp_runtime *rt, const struct mp_ddp *ddp, struct mp_tensor *parameter)
{
    struct mp_tensor *const view = ddp->slots[parameter->number - 1].view, *const grad = parameter->grad;
    if (ddp->options->gradient_as_bucket_view && grad && grad->storage != view->storage)
        mp_record_copy(rt, "to", grad, view);
    adopt_view(rt, ddp, parameter);
}

/* Contents of every bucket, and the parameters' views of them. */
static void make_buckets(struct mp_runtime *rt, struct mp_ddp *ddp, struct mp_tensor *const *order,
                         int n, const int *bucket_of, int n_buckets)
{
    const enum mp_category category = rt->category;
    rt->category = MP_CATEGORY_COMMUNICATION;
    ddp->buckets = mp_runtime_alloc(rt, (size_t)MP_MAX(n_buckets, 1) * sizeof *ddp->buckets);
    ddp->n_buckets = n_buckets;
    for (int b = 0; b < n_buckets; b++) {
        struct bucket *bucket = &ddp->buckets[b];
        int64_t elements = 0;
        enum mp_dtype dtype = MP_F32;
        for (int i = 0; i < n; i++) {
            if (bucket_of[i] != b)
                continue;
            elements += mp_numel(order[i]);
            dtype = (enum mp_dtype)order[i]->dtype;
            bucket->n_parameters++;
        }
        bucket->contents = mp_take(rt, mp_empty(rt, MP_SHAPE(elements), dtype));
        elements = 0;
        for (int i = 0; i < n; i++) {
            if (bucket_of[i] != b)
                continue;
            struct slot *slot = &ddp->slots[order[i]->number - 1];
            slot->bucket = b;
            slot->view = mp_take(rt, mp_alias(rt, bucket->contents, order[i]->shape,
                                              order[i]->stride, bucket->contents));
            slot->view->offset = elements;
            elements += mp_numel(order[i]);
            move_gradient(rt, ddp, order[i]);
        }
    }
    rt->category = category;
}

static void first_buckets(struct mp_runtime *rt, struct mp_ddp *ddp)
{
    static const uint64_t unlimited[] = {UINT64_MAX}, usual[] = {FIRST_BUCKET_BYTES, BUCKET_BYTES};
    const uint64_t given[] = {(uint64_t)(ddp->options->bucket_cap_mb * 1048576)};
    const int n = ddp->n_parameters;
    int *bucket_of = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *bucket_of);
    int n_buckets;
    if (!ddp->options->find_unused_parameters)
        n_buckets = mp_assign_buckets(rt, ddp->parameters, n, unlimited, 1, true, bucket_of);
    else if (ddp->options->bucket_cap_mb > 0)
        n_buckets = mp_assign_buckets(rt, ddp->parameters, n, given, 1, true, bucket_of);
    else
        n_buckets = mp_assign_buckets(rt, ddp->parameters, n, usual, 2, true, bucket_of);
    for (int i = 0; i < n; i++) /* gradients come from the end */
        bucket_of[i] = n_buckets - 1 - bucket_of[i];
    make_buckets(rt, ddp, ddp->parameters, n, bucket_of, n_buckets);
}

/*
 * What the watchdog has taken off since the last call. Usually a backward takes longer than the watchdog sleeps: the next pass's first
 * collective finds all that was done before.
 */
static int taken_off(const struct mp_ddp *ddp, uint32_t call, bool first)
{
    const struct mp_ddp_options *o = ddp->options;
    if (o->wakes)
        return call < o->n_wakes ? MP_MIN(o->wakes[call], ddp->n_sent) : 0;
    return first && (ddp->passes - 1) % (o->lingers + 1) == 0 ? ddp->n_sent : 0;
}

/* A collective call lets go of that. first: of its kind in this forward or backward. */
static void collective(struct mp_runtime *rt, struct mp_ddp *ddp, bool first)
{
    if (ddp->passes == 0)
        return;
    const int n = taken_off(ddp, rt->n_collectives++, first);
    for (int i = 0; i < n; i++)
        mp_storage_unref(rt, ddp->sent[i]);
    ddp->n_sent -= n;
    if (n > 0)
        memmove(ddp->sent, ddp->sent + n, (size_t)ddp->n_sent * sizeof(struct mp_storage *));
}

static void release_lingering(struct mp_runtime *rt, struct mp_ddp *ddp)
{
    if (!ddp->lingering || ddp->lingers > 0)
        return;
    mp_tensor_unref(rt, ddp->lingering);
    ddp->lingering = NULL;
}

/* Buckets in the order of the gradients; the ranks agree on it first. */
static void rebuild_buckets(struct mp_runtime *rt, struct mp_ddp *ddp)
{
    static const uint64_t usual[] = {FIRST_BUCKET_BYTES, BUCKET_BYTES};
    const uint64_t given[] = {(uint64_t)(ddp->options->bucket_cap_mb * 1048576)};
    const bool capped = ddp->options->bucket_cap_mb > 0;
    const int n = ddp->n_ready;
    int *bucket_of = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *bucket_of);
    const int n_buckets = mp_assign_buckets(rt, ddp->ready, n, capped ? given : usual,
                                            capped ? 1 : 2, false, bucket_of);
    struct mp_storage *indices = mp_storage_new(rt, 4 * ((uint64_t)n + 1));
    collective(rt, ddp, true);
    mp_scratch(rt, 4 * (uint64_t)n_buckets);
    collective(rt, ddp, false);
    mp_storage_unref(rt, indices);
    release_buckets(rt, ddp);
    make_buckets(rt, ddp, ddp->ready, n, bucket_of, n_buckets);
    ddp->rebuilt = true;
}

/* ---- construction ---- */

/* Every rank learns the number of parameters of all, then compares shapes and strides with the first. */
static void verify_parameters(struct mp_runtime *rt, const struct mp_run *run,
                              struct mp_tensor *const *parameters, int n)
{
    uint64_t dims = 0;
    const uint64_t world = (uint64_t)run->world;
    for (int i = 0; i < n; i++)
        dims += (uint64_t)parameters[i]->shape.n;
    struct mp_storage *own = mp_storage_new(rt, 8);
    struct mp_storage **counts = mp_runtime_alloc(rt, (size_t)world * sizeof(struct mp_storage *));
    for (uint64_t i = 0; i < world; i++)
        counts[i] = mp_storage_new(rt, 8);
    mp_scratch(rt, 8 * world);
    mp_scratch(rt, 8 * 2 * dims);
    for (uint64_t i = 0; i < world; i++)
        mp_storage_unref(rt, counts[i]);
    mp_storage_unref(rt, own);
}

/* Flat copies, two under way at most; a bucket of one tensor is its own flat view. */
static void broadcast_coalesced(struct mp_runtime *rt, struct mp_tensor *const *tensors, int n,
                                bool reduces)
{
    static const uint64_t limit[] = {BROADCAST_BYTES};
    const enum mp_category category = rt->category;
    int *bucket_of = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *bucket_of);
    const int n_buckets = mp_assign_buckets(rt, tensors, n, limit, 1, true, bucket_of);
    struct mp_storage *in_flight[2] = {NULL};
    rt->category = MP_CATEGORY_COMMUNICATION;
    for (int b = 0; b < n_buckets; b++) {
        uint64_t bytes = 0;
        int n_tensors = 0;
        for (int i = 0; i < n; i++) {
            if (bucket_of[i] == b) {
                bytes += mp_nbytes(tensors[i]);
                n_tensors++;
            }
        }
        if (in_flight[b % 2])
            mp_storage_unref(rt, in_flight[b % 2]);
        in_flight[b % 2] = n_tensors > 1 ? mp_storage_new(rt, bytes) : NULL;
        if (reduces)
            mp_driver_event(rt, MP_DRIVER_NCCL_BROADCAST, 0);
        for (int i = 0; reduces && i < n; i++)
            if (bucket_of[i] == b)
                mp_record(rt, "broadcast_", MP_TENSORS(tensors[i]), MP_TENSORS(tensors[i]),
                          MP_NO_ATTRIBUTES);
    }
    for (int b = n_buckets; b < n_buckets + 2; b++)
        if (in_flight[b % 2])
            mp_storage_unref(rt, in_flight[b % 2]);
    rt->category = category;
}

/* ---- backward ---- */

/* The gradient's share of the ranks' mean goes into the bucket; a parameter without one adds none. */
static void fill_slot(struct mp_runtime *rt, const struct mp_ddp *ddp, struct mp_tensor *parameter)
{
    struct mp_tensor *view = ddp->slots[parameter->number - 1].view;
    if (parameter->grad)
        mp_record(rt, "mul", MP_TENSORS(parameter->grad), MP_TENSORS(view),
                  MP_ATTRIBUTES(mp_number("number", ddp->share)));
    else
        mp_record_fill(rt, view, 0);
}

/* The mean, back from the bucket, unless .grad is a view of it. */
static void read_slots(struct mp_runtime *rt, const struct mp_ddp *ddp)
{
    for (int i = 0; i < ddp->n_parameters; i++) {
        struct mp_tensor *const view = ddp->slots[i].view, *const grad = ddp->parameters[i]->grad;
        if (grad && grad->storage != view->storage)
            mp_record_copy(rt, "to", view, grad);
    }
}

static void shelve(struct mp_runtime *rt, struct mp_ddp *ddp, struct mp_storage *sent)
{
    if (ddp->n_sent == ddp->cap_sent) {
        const int wanted = ddp->cap_sent ? 2 * ddp->cap_sent : 64;
        struct mp_storage **bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof(struct mp_storage *));
        if (ddp->n_sent)
            memcpy(bigger, ddp->sent, (size_t)ddp->n_sent * sizeof(struct mp_storage *));
        ddp->sent = bigger;
        ddp->cap_sent = wanted;
    }
    ddp->sent[ddp->n_sent++] = sent;
}

/* A compressing hook sends a copy in its own type. It is copied back on a stream of its own, and stays on the shelf. */
static void all_reduce(struct mp_runtime *rt, struct mp_ddp *ddp, struct bucket *bucket)
{
    const enum mp_category category = rt->category;
    struct mp_storage *sent = NULL;
    rt->category = MP_CATEGORY_COMMUNICATION;
    if (compresses(ddp, bucket->contents)) {
        sent = mp_storage_new(rt, (uint64_t)mp_numel(bucket->contents) * mp_dtype_bytes(sent_type(ddp)));
        sent->shared = true;
    }
    rt->category = category;
    if (ddp->reduces)
        mp_record(rt, sent ? "all_reduce_compressed_" : "all_reduce_",
                  MP_TENSORS(bucket->contents), MP_TENSORS(bucket->contents), MP_NO_ATTRIBUTES);
    collective(rt, ddp, ddp->n_reduced == 0);
    if (ddp->n_reduced++ == 0)
        release_lingering(rt, ddp);
    if (sent)
        shelve(rt, ddp, sent);
}

static void mark_ready(struct mp_runtime *rt, struct mp_ddp *ddp, struct mp_tensor *parameter)
{
    struct bucket *bucket = &ddp->buckets[ddp->slots[parameter->number - 1].bucket];
    fill_slot(rt, ddp, parameter);
    adopt_view(rt, ddp, parameter);
    if (--bucket->n_pending == 0)
        all_reduce(rt, ddp, bucket);
}

static void accumulated(struct mp_runtime *rt, void *context, struct mp_tensor *leaf)
{
    struct mp_ddp *ddp = context;
    if (!leaf->number || !ddp->sync || ddp->delay)
        return;
    if (!ddp->rebuilt && !ddp->options->find_unused_parameters)
        ddp->ready[ddp->n_ready++] = leaf;
    mark_ready(rt, ddp, leaf);
}

/* A static graph's first iteration only counts; all buckets are reduced when backward is through. */
static void backward_done(struct mp_runtime *rt, void *context)
{
    struct mp_ddp *ddp = context;
    if (ddp->sync && ddp->delay) {
        for (int i = 0; i < ddp->n_parameters; i++)
            mark_ready(rt, ddp, ddp->parameters[i]);
        ddp->delay = false;
    }
    if (ddp->sync)
        read_slots(rt, ddp);
}

/* ---- forward ---- */

/* Expected to have finished reduction in the prior iteration: DDP waits for a gradient that has not come. */
static void check_all_came(struct mp_runtime *rt, const struct mp_ddp *ddp)
{
    if (ddp->options->static_graph || ddp->n_ready == ddp->n_parameters)
        return;
    bool *const came = mp_runtime_alloc(rt, (size_t)ddp->n_parameters * sizeof *came);
    memset(came, 0, (size_t)ddp->n_parameters * sizeof *came);
    for (int i = 0; i < ddp->n_ready; i++)
        came[ddp->ready[i]->number - 1] = true;
    int first = 0;
    while (came[first])
        first++;
    mp_raise(rt, MEMPLAN_STATUS_INPUT, "ddp: %d of %d parameters get no gradient, '%s' for one; DDP stops at that: give find_unused_parameters: true",
             ddp->n_parameters - ddp->n_ready, ddp->n_parameters, ddp->parameters[first]->name);
}

void mp_ddp_before_forward(struct mp_runtime *rt, struct mp_ddp *ddp, bool sync)
{
    const char *op = rt->op;
    rt->op = "DistributedDataParallel";
    ddp->sync = sync;
    if (ddp->lingering)
        ddp->lingers--;
    ddp->passes += ddp->n_reduced > 0;
    ddp->n_reduced = 0;
    if (ddp->n_ready > 0 && !ddp->rebuilt) {
        check_all_came(rt, ddp);
        rebuild_buckets(rt, ddp);
        if (ddp->lingering)
            ddp->lingers--;
    }
    for (int b = 0; sync && b < ddp->n_buckets; b++)
        ddp->buckets[b].n_pending = ddp->buckets[b].n_parameters;
    if (ddp->sync_buffers && rt->n_buffers > 0) {
        broadcast_coalesced(rt, rt->buffers, rt->n_buffers, ddp->reduces);
        collective(rt, ddp, true);
    }
    ddp->sync_buffers = sync; /* buffers follow a forward whose gradients were reduced */
    rt->op = op;
}

/* _DDPSink: outputs pass through a node of their own, as copies. */
static void sink_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **grads,
                          struct mp_tensor **out)
{
    (void)rt;
    for (int i = 0; i < n->n_inputs; i++)
        out[i] = grads[i];
}
static const struct mp_node_type sink_type = {"_DDPSinkBackward", sink_backward};

void mp_ddp_after_forward(struct mp_runtime *rt, struct mp_ddp *ddp, struct mp_outputs *out)
{
    struct mp_tensor **const fields[] = {&out->loss, &out->logits};
    struct mp_tensor *copies[MP_ARRAY_LEN(fields)] = {NULL};
    if (!ddp->delay && !ddp->options->find_unused_parameters)
        return;
    struct mp_node *sink =
        mp_node_new(rt, &sink_type, 2, (struct mp_tensor *[]){out->loss, out->logits});
    for (size_t i = 0; i < MP_ARRAY_LEN(fields); i++)
        if (*fields[i])
            copies[i] =
                mp_take(rt, mp_empty_like(rt, *fields[i], (enum mp_dtype)(*fields[i])->dtype));
    for (size_t i = 0; i < MP_ARRAY_LEN(fields); i++)
        if (copies[i])
            mp_record_copy(rt, "clone", *fields[i], copies[i]);
    for (size_t i = 0; i < MP_ARRAY_LEN(fields); i++) {
        if (!copies[i])
            continue;
        mp_track(rt, sink, copies[i]);
        mp_discard(rt, *fields[i]);
        *fields[i] = mp_float(rt, copies[i]);
    }
}

struct mp_ddp *mp_ddp_wrap(struct mp_runtime *rt, const struct mp_run *run, struct mp_tensor **all,
                           int n_all, struct mp_tensor **trainable, int n_trainable,
                           struct mp_hooks *hooks)
{
    struct mp_ddp *ddp = mp_runtime_alloc(rt, sizeof *ddp);
    const char *op = rt->op;
    rt->op = "DistributedDataParallel";
    *ddp = (struct mp_ddp){.options = &run->ddp,
                           .parameters = trainable,
                           .n_parameters = n_trainable,
                           .share = 1.0 / (double)run->world,
                           .reduces = !run->no_collectives,
                           .sync_buffers = true};
    ddp->slots = mp_runtime_alloc(rt, (size_t)MP_MAX(n_trainable, 1) * sizeof *ddp->slots);
    ddp->ready = mp_runtime_alloc(rt, (size_t)MP_MAX(n_trainable, 1) * sizeof(struct mp_tensor *));
    for (int i = 0; i < n_trainable; i++)
        trainable[i]->number = i + 1;
    verify_parameters(rt, run, trainable, n_trainable);
    struct mp_tensor **tensors =
        mp_runtime_alloc(rt, (size_t)(n_all + rt->n_buffers + 1) * sizeof(struct mp_tensor *));
    memcpy(tensors, all, (size_t)n_all * sizeof *tensors);
    if (rt->n_buffers)
        memcpy(tensors + n_all, rt->buffers, (size_t)rt->n_buffers * sizeof *tensors);
    broadcast_coalesced(rt, tensors, n_all + rt->n_buffers, ddp->reduces);
    first_buckets(rt, ddp);
    if (run->ddp.static_graph || run->ddp.find_unused_parameters) /* which parameters were used */
        mp_storage_new(rt, 4 * (uint64_t)n_trainable);
    ddp->delay = run->ddp.static_graph;
    *hooks = (struct mp_hooks){
        .context = ddp, .accumulated = accumulated, .backward_done = backward_done};
    rt->hooks = hooks;
    rt->op = op;
    return ddp;
}
