/* SPDX-License-Identifier: MIT */
/*
 * DeepSpeed ZeRO, stages 1 and 2: flat weights, a flat partition of masters, buckets of gradients.
 *
 *     flat weights      |<------------- all parameters in order, padded to a multiple of 2 * ranks ------------->|
 *     partitions        |<-- rank 0 -->|<-- rank 1 -->| …         masters and state: float32, one partition
 *     gradients         copied into a bucket as they come, reduced when it is full, slice by slice to their owners
 *
 * What a rank keeps of the gradients is whole parameters: one that only touches its partition counts in full. Stage 1 leaves
 * gradients where backward put them until the last micro-batch, stage 2 reduces those of every micro-batch.
 *
 * deepspeed/runtime/zero/stage_1_and_2.py (0.19)
 */
#include "train/deepspeed.h"

#include "shadow/module.h"
#include "train/optimizer.h"

enum { ALIGNMENT = 2 }; /* elements per rank: collectives want 4 bytes of half types */

/* Gradients that wait for a reduction. */
struct bucket {
    struct mp_storage *buffers[2]; /* contiguous_gradients; the second one with overlap_comm */
    int index;
    int64_t elements;
    int *members, n_members; /* parameters, in order of arrival */
    bool oversized; /* its only member is larger than a bucket, and stays in its own gradient */
};

struct mp_deepspeed {
    struct mp_zero3 *zero3; /* stage 3: the rest is unused but for run */
    const struct mp_run *run;
    const struct mp_deepspeed_options *options;
    struct mp_tensor **parameters;
    int n;
    int64_t *offsets;                      /* in the flat weights; one more than parameters */
    int64_t world, partition, first, last; /* elements: of a partition; this rank's bounds */
    enum mp_dtype dtype;
    struct mp_storage *flat;
    struct mp_tensor *master; /* float32 */
    struct mp_optimizer_instance optimizer;
    struct bucket bucket;
    bool ready;              /* buffers exist */
    bool boundary;           /* the micro-batch before the step */
    struct mp_storage *kept; /* gradients of this rank's parameters, of this micro-batch */
    int64_t kept_elements;
    /* by parameter: the first micro-batch's gradients, then sums; NULL where not ours. With the optimizer on the host, norms */
    struct mp_tensor **accumulated;
    struct mp_storage *padding; /* zeros behind the last partition's gradients */
    bool have_accumulated;
    struct mp_tensor *norm; /* of the last step, for get_global_grad_norm() */
};

static bool is_mine(const struct mp_deepspeed *z, int i)
{
    return z->offsets[i + 1] > z->first && z->offsets[i] < z->last;
}

static unsigned reduction_stream(const struct mp_deepspeed *z)
{
    return z->options->overlap_comm ? MP_STREAM_REDUCE_SCATTER : MP_STREAM_MAIN;
}

static struct mp_storage *new_on(struct mp_runtime *rt, unsigned stream, uint64_t bytes)
{
    rt->stream = (uint8_t)stream;
    struct mp_storage *storage = mp_storage_new(rt, bytes);
    rt->stream = MP_STREAM_MAIN;
    return storage;
}

/* ---- construction ---- */

/* Parameters become views of the flat weights, and their own storages die in order. */
static void flatten_weights(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    const int64_t step = ALIGNMENT * z->world,
                  aligned = (z->offsets[z->n] + step - 1) / step * step;
    const uint64_t size = mp_dtype_bytes(z->dtype);
    struct mp_storage *padding = mp_storage_new(rt, (uint64_t)(aligned - z->offsets[z->n]) * size);
    rt->category = MP_CATEGORY_PARAMETER;
    z->flat = mp_storage_new(rt, (uint64_t)aligned * size);
    rt->category = MP_CATEGORY_TEMPORARY;
    mp_storage_unref(rt, padding);
    z->partition = aligned / z->world;
    z->first = z->partition * (z->run->rank % z->world);
    z->last = z->first + z->partition;
    for (int i = 0; i < z->n; i++) {
        struct mp_tensor *p = z->parameters[i];
        z->flat->refs++;
        mp_storage_unref(rt, p->storage);
        p->storage = z->flat;
        p->number = i + 1;
    }
}

static void make_master(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    struct mp_storage *clone =
        z->dtype == MP_F32 ? NULL
                           : mp_storage_new(rt, (uint64_t)z->partition * mp_dtype_bytes(z->dtype));
    rt->category = MP_CATEGORY_PARAMETER;
    z->master = mp_take(rt, mp_empty(rt, MP_SHAPE(z->partition), MP_F32));
    rt->category = MP_CATEGORY_TEMPORARY;
    if (clone)
        mp_storage_unref(rt, clone);
    mp_scratch(
        rt,
        4 * (uint64_t)z
                ->partition); /* a gradient of zeros, for optimizers that make their state at once */
}

/* Masters and state live on the host; here is room for the largest parameter's gradient on its way there. */
static void make_host_master(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    int64_t largest = 0;
    for (int i = 0; i < z->n; i++)
        largest = MP_MAX(largest, mp_numel(z->parameters[i]));
    mp_scratch(rt, (uint64_t)z->partition * mp_dtype_bytes(z->dtype));
    rt->category = MP_CATEGORY_COMMUNICATION;
    mp_storage_new(rt, (uint64_t)largest * mp_dtype_bytes(z->dtype));
    rt->category = MP_CATEGORY_TEMPORARY;
}

static void accumulated(struct mp_runtime *rt, void *context, struct mp_tensor *leaf);

struct mp_deepspeed *mp_deepspeed_wrap(struct mp_runtime *rt, const struct mp_run *run,
                                       struct mp_tensor **parameters, int n, struct mp_hooks *hooks)
{
    struct mp_deepspeed *z = mp_runtime_alloc(rt, sizeof *z);
    *z = (struct mp_deepspeed){.run = run,
                               .options = &run->deepspeed,
                               .parameters = parameters,
                               .n = n,
                               .world = run->world};
    if (run->deepspeed.stage == 3) {
        z->zero3 = mp_zero3_wrap(rt, run, parameters, n, hooks);
        return z;
    }
    z->dtype = n ? (enum mp_dtype)parameters[0]->dtype : MP_F32;
    z->offsets = mp_runtime_alloc(rt, ((size_t)n + 1) * sizeof *z->offsets);
    z->bucket.members = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *z->bucket.members);
    z->accumulated = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof(struct mp_tensor *));
    for (int i = 0; i < n; i++)
        z->offsets[i + 1] = z->offsets[i] + mp_numel(parameters[i]);
    rt->op = "deepspeed.initialize";
    mp_empty_cache(rt);
    flatten_weights(rt, z);
    if (z->options->offload_optimizer)
        make_host_master(rt, z);
    else
        make_master(rt, z);
    rt->op = "";
    mp_optimizer_init(rt, &z->optimizer, run->optimizer, &z->master, z->master ? 1 : 0);
    *hooks = (struct mp_hooks){.context = z, .hooks_tensors = true, .accumulated = accumulated};
    rt->hooks = hooks;
    return z;
}

int64_t mp_deepspeed_partition(struct mp_tensor *const *parameters, int n, int64_t world)
{
    const int64_t step = ALIGNMENT * world;
    int64_t total = 0;
    for (int i = 0; i < n; i++)
        total += mp_numel(parameters[i]);
    return MP_MAX((total + step - 1) / step * ALIGNMENT, 1);
}

int64_t mp_deepspeed_fullest_rank(struct mp_tensor *const *parameters, int n, int64_t world)
{
    const int64_t partition = mp_deepspeed_partition(parameters, n, world);
    int64_t best = -1, fullest = 0;
    for (int64_t rank = 0; rank < world; rank++) {
        int64_t offset = 0, kept = 0;
        for (int i = 0; i < n; i++) {
            const int64_t end = offset + mp_numel(parameters[i]);
            if (end > rank * partition && offset < (rank + 1) * partition)
                kept += end - offset;
            offset = end;
        }
        if (kept > best) {
            best = kept;
            fullest = rank;
        }
    }
    return fullest;
}

/* ---- reducing ---- */

static void set_up_buckets(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    if (z->ready)
        return;
    z->ready = true;
    if (!z->options->contiguous_gradients)
        return;
    const enum mp_category category = rt->category;
    rt->category = MP_CATEGORY_COMMUNICATION;
    const uint64_t bytes = (uint64_t)z->options->reduce_bucket_size * mp_dtype_bytes(z->dtype);
    z->bucket.buffers[0] = mp_storage_new(rt, bytes);
    if (z->options->overlap_comm)
        z->bucket.buffers[1] = mp_storage_new(rt, bytes);
    z->bucket.index = 0;
    rt->category = category;
}

/* Slices that are reduced together are flattened first; a single one is flat already, and what is reduced is the bucket itself. */
struct slices {
    int n;
    int64_t elements;
    bool any_alone; /* so far */
};

static void reduce_slices(struct mp_runtime *rt, const struct mp_deepspeed *z, struct slices *s)
{
    if (s->n > 1)
        mp_storage_unref(
            rt,
            new_on(rt, reduction_stream(z), (uint64_t)s->elements * mp_dtype_bytes(z->dtype)));
    *s = (struct slices){0, 0, s->any_alone || s->n == 1};
}

/* The reduction's stream works on what it was given by itself, and writes back what is ours; for the host, it reads all. */
static void note_use(struct mp_deepspeed *z, bool any_alone)
{
    struct bucket *b = &z->bucket;
    bool used = any_alone || z->options->offload_optimizer;
    for (int m = 0; m < b->n_members; m++)
        used |= is_mine(z, b->members[m]);
    if (!used || !z->options->overlap_comm || b->n_members == 0)
        return;
    struct mp_storage *storage =
        b->oversized ? z->parameters[b->members[0]]->grad->storage : b->buffers[b->index];
    storage->shared = true;
}

/* The bucket's range is cut where partitions meet; neighbours of the same partition stay together. */
static void average_bucket(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    struct slices together = {0};
    int64_t slice = 0, owner = -1;
    for (int m = 0; m <= z->bucket.n_members; m++) {
        const bool end = m == z->bucket.n_members;
        const int i = end ? 0 : z->bucket.members[m];
        for (int64_t at = end ? 0 : z->offsets[i]; end || at < z->offsets[i + 1];) {
            const int64_t next_owner = end ? -2 : at / z->partition;
            if (next_owner != owner && owner >= 0) {
                together.n++;
                together.elements += slice;
                slice = 0;
                if (together.elements > z->options->reduce_bucket_size)
                    reduce_slices(rt, z, &together);
            }
            owner = next_owner;
            if (end)
                break;
            const int64_t to = MP_MIN(z->offsets[i + 1], (next_owner + 1) * z->partition);
            slice += to - at;
            at = to;
        }
    }
    reduce_slices(rt, z, &together);
    note_use(z, together.any_alone);
}

/* Without contiguous gradients the bucket is a list of gradients, each of which is written back. */
static void average_list(struct mp_runtime *rt, const struct mp_deepspeed *z)
{
    reduce_slices(rt, z, &(struct slices){.n = z->bucket.n_members, .elements = z->bucket.elements});
    for (int m = 0; m < z->bucket.n_members; m++)
        z->parameters[z->bucket.members[m]]->grad->storage->shared = z->options->overlap_comm;
}

static void clear_gradient(struct mp_runtime *rt, struct mp_tensor *p)
{
    mp_tensor_unref(rt, p->grad);
    p->grad = NULL;
}

static void set_gradient(struct mp_runtime *rt, struct mp_tensor *p, struct mp_storage *storage)
{
    struct mp_tensor *old = p->grad;
    struct mp_tensor *view = mp_take(rt, mp_detach(rt, old));
    mp_storage_unref(rt, view->storage);
    storage->refs++;
    view->storage = storage;
    mp_tensor_unref(rt, view->base);
    view->base = NULL;
    p->grad = view;
    mp_tensor_unref(rt, old);
}

/* Buckets are written again: what is ours moves to a place of its own, whole parameters. */
static void keep_gradient(struct mp_runtime *rt, struct mp_deepspeed *z, struct mp_tensor *p)
{
    if (!z->kept) {
        const enum mp_category category = rt->category;
        uint64_t elements = 0;
        for (int i = 0; i < z->n; i++)
            if (is_mine(z, i))
                elements += (uint64_t)mp_numel(z->parameters[i]);
        rt->category = MP_CATEGORY_GRADIENT;
        z->kept = new_on(rt, reduction_stream(z), elements * mp_dtype_bytes(z->dtype));
        rt->category = category;
    }
    set_gradient(rt, p, z->kept);
}

static int64_t piece_elements(const struct mp_deepspeed *z, int i)
{
    return MP_MIN(z->offsets[i + 1], z->last) - MP_MAX(z->offsets[i], z->first);
}

/* Norms are taken in float64, parameter by parameter; for sizes, an int64 is as good. */
static struct mp_tensor *piece_norm(struct mp_runtime *rt, int64_t elements)
{
    struct mp_tensor *wide = mp_empty(rt, MP_SHAPE(elements), MP_I64);
    struct mp_tensor *norm = mp_reduce(rt, wide, 1u, false);
    mp_discard(rt, wide);
    return norm;
}

/* Its norm, which stays until the step, then a float32 copy that goes to the host. */
static void send_to_host(struct mp_runtime *rt, struct mp_deepspeed *z, int i)
{
    if (!z->boundary)
        return;
    z->accumulated[i] = mp_take(rt, piece_norm(rt, piece_elements(z, i)));
    if (z->dtype != MP_F32)
        mp_scratch(rt, 4 * (uint64_t)piece_elements(z, i));
}

static void reduce_bucket(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    struct bucket *b = &z->bucket;
    if (z->options->contiguous_gradients) {
        average_bucket(rt, z);
    } else {
        average_list(rt, z);
    }
    for (int m = 0; m < b->n_members; m++) {
        struct mp_tensor *p = z->parameters[b->members[m]];
        const bool mine = is_mine(z, b->members[m]);
        rt->stream = (uint8_t)reduction_stream(z);
        if (mine && z->options->offload_optimizer)
            send_to_host(rt, z, b->members[m]);
        rt->stream = MP_STREAM_MAIN;
        if (mine && z->options->offload_optimizer && z->boundary)
            clear_gradient(rt, p);
        if (mine && z->options->offload_optimizer)
            continue;
        if (mine && z->options->contiguous_gradients)
            keep_gradient(rt, z, p);
        else if (!mine && z->options->stage == 2)
            clear_gradient(rt, p);
    }
    b->n_members = 0;
    b->elements = 0;
    b->oversized = false;
}

static void add_to_bucket(struct mp_runtime *rt, struct mp_deepspeed *z, int i)
{
    struct bucket *b = &z->bucket;
    struct mp_tensor *p = z->parameters[i];
    const int64_t elements = mp_numel(p);
    if (b->elements + elements > z->options->reduce_bucket_size) {
        reduce_bucket(rt, z);
        if (z->options->contiguous_gradients && z->options->overlap_comm)
            b->index = 1 - b->index;
    }
    if (z->options->contiguous_gradients && elements > z->options->reduce_bucket_size) {
        if (z->options->offload_optimizer) { /* a copy of its own, for the stream that sends it */
            struct mp_storage *copy = mp_storage_new(rt, (uint64_t)elements * mp_dtype_bytes(z->dtype));
            set_gradient(rt, p, copy);
            mp_storage_unref(rt, copy);
        }
        b->oversized = true;
    } else if (z->options->contiguous_gradients)
        set_gradient(rt, p, b->buffers[b->index]);
    b->elements += elements;
    b->members[b->n_members++] = i;
}

static bool reduces_in_hooks(const struct mp_deepspeed *z)
{
    return z->options->stage == 2 || (z->options->overlap_comm && z->boundary);
}

static void accumulated(struct mp_runtime *rt, void *context, struct mp_tensor *leaf)
{
    struct mp_deepspeed *z = context;
    if (!leaf->number)
        return;
    const char *op = rt->op;
    rt->op = "reduce";
    set_up_buckets(rt, z);
    if (reduces_in_hooks(z))
        add_to_bucket(rt, z, leaf->number - 1);
    rt->op = op;
}

/* ---- the end of backward ---- */

/* Ours, to be added to by the next micro-batch. */
static void accumulate(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    for (int i = 0; i < z->n; i++) {
        if (!is_mine(z, i))
            continue;
        if (!z->have_accumulated)
            z->accumulated[i] = mp_tensor_ref(z->parameters[i]->grad);
        if (!z->accumulated[i]) /* the parameter had no gradient */
            z->accumulated[i] = mp_take(rt, mp_empty_like(rt, z->parameters[i], z->dtype));
    }
    z->have_accumulated = true;
    const int64_t rest = z->last - MP_MAX(MP_MIN(z->offsets[z->n], z->last), z->first);
    if (z->boundary && rest > 0 && !z->padding)
        z->padding = mp_storage_new(rt, (uint64_t)rest * mp_dtype_bytes(z->dtype));
}

static void epilogue(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    if (!reduces_in_hooks(z))
        for (int i = 0; i < z->n; i++)
            if (z->parameters[i]->grad)
                add_to_bucket(rt, z, i);
    reduce_bucket(rt, z);
    if (!z->options->offload_optimizer)
        accumulate(rt, z);
    for (int i = 0; i < 2; i++) {
        if (z->bucket.buffers[i])
            mp_storage_unref(rt, z->bucket.buffers[i]);
        z->bucket.buffers[i] = NULL;
    }
    z->ready = false;
    if (z->kept)
        mp_storage_unref(rt, z->kept);
    z->kept = NULL;
    for (int i = 0; i < z->n; i++)
        clear_gradient(rt, z->parameters[i]);
}

void mp_deepspeed_before_forward(struct mp_runtime *rt, struct mp_deepspeed *z, bool boundary)
{
    if (z->zero3)
        mp_zero3_before_forward(rt, z->zero3, boundary);
}

void mp_deepspeed_after_forward(struct mp_runtime *rt, struct mp_deepspeed *z, struct mp_outputs *out)
{
    if (z->zero3)
        out->loss = mp_container_end(rt, out->loss);
}

void mp_deepspeed_backward(struct mp_runtime *rt, struct mp_deepspeed *z, struct mp_tensor *loss,
                           bool boundary)
{
    z->boundary = boundary;
    struct mp_tensor *share = mp_take(rt, mp_div_number(rt, loss, (double)z->run->accumulate));
    struct mp_tensor *scaled = mp_take(rt, mp_mul_number(rt, share, 1));
    mp_backward(rt, scaled);
    if (!z->zero3 && (z->options->stage == 2 || boundary))
        epilogue(rt, z);
    mp_tensor_unref(rt, scaled);
    mp_tensor_unref(rt, share);
}

/* ---- the step ---- */

static struct mp_tensor *scalar(struct mp_runtime *rt)
{
    return mp_empty(rt, MP_SCALAR, MP_F32);
}

static void global_norm(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    const int before = rt->n_temporaries;
    for (int i = 0; i < z->n; i++)
        if (is_mine(z, i))
            mp_keep(piece_norm(rt, piece_elements(z, i)));
    mp_discard_to(rt, before);
}

/* float32 gradients of the partition: flattened, then cast */
static struct mp_tensor *flat_gradients(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    int n_pieces = z->padding != NULL, only = 0;
    for (int i = 0; i < z->n; i++) {
        if (!z->accumulated[i])
            continue;
        n_pieces++;
        only = i;
    }
    rt->category = MP_CATEGORY_GRADIENT;
    struct mp_tensor *flat = n_pieces == 1 && z->accumulated[only]
                                 ? mp_take(rt, mp_detach(rt, z->accumulated[only]))
                                 : mp_take(rt, mp_empty(rt, MP_SHAPE(z->partition), z->dtype));
    struct mp_tensor *wide = z->dtype == MP_F32
                                 ? mp_tensor_ref(flat)
                                 : mp_take(rt, mp_empty(rt, MP_SHAPE(z->partition), MP_F32));
    rt->category = MP_CATEGORY_TEMPORARY;
    mp_tensor_unref(rt, flat);
    return wide;
}

static void release_accumulated(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    for (int i = 0; i < z->n; i++) {
        mp_tensor_unref(rt, z->accumulated[i]);
        z->accumulated[i] = NULL;
    }
    if (z->padding)
        mp_storage_unref(rt, z->padding);
    z->padding = NULL;
    z->have_accumulated = false;
}

void mp_deepspeed_step(struct mp_runtime *rt, struct mp_deepspeed *z)
{
    if (z->zero3) {
        mp_zero3_step(rt, z->zero3);
        return;
    }
    rt->op = "engine.step";
    if (z->options->offload_optimizer) {
        mp_scratch(rt, 1); /* has anything overflowed? */
        mp_scratch(rt, 4); /* the norms' sum, for the other ranks */
        release_accumulated(rt, z);
        rt->op = "";
        return;
    }
    global_norm(rt, z);
    struct mp_tensor *scaled_norm = mp_take(rt, scalar(rt)),
                     *old = z->norm; /* the engine has the old one until it is through */
    z->norm = mp_take(rt, scalar(rt));
    z->master->grad = flat_gradients(rt, z);
    release_accumulated(rt, z);
    mp_optimizer_step(rt, &z->optimizer);
    mp_tensor_unref(rt, z->master->grad);
    z->master->grad = NULL;
    mp_tensor_unref(rt, scaled_norm);
    mp_tensor_unref(rt, old);
    rt->op = "";
}
