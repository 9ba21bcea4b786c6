/* SPDX-License-Identifier: MIT */
/*
 * Reductions: sum, mean, softmax, layer norm, and the scratch buffers of the reduction kernel.
 *
 * A reduction that spreads one output over several thread blocks (aten/src/ATen/native/cuda/Reduce.cuh) takes a buffer for
 * partial results and semaphores, both freed when the kernel has been launched. A bias gradient of 2,048 rows has a scratch buffer as
 * large as an activation, alive together with the largest ones; below about 1,000 rows there is none.
 */
#include "shadow/ops.h"

/* ---- scratch: ReduceConfig of Reduce.cuh ---- */

struct axis {
    int64_t stride, size;
};

/* Reduced (or kept) dimensions by stride, contiguous neighbours merged. */
static int merge_axes(const struct mp_tensor *x, unsigned dims, bool reduced, struct axis *axes)
{
    int n = 0;
    for (int i = 0; i < x->shape.n; i++) {
        if (((dims >> i & 1u) != 0) != reduced || x->shape.d[i] == 1)
            continue;
        int at = n++;
        for (; at > 0 && (axes[at - 1].stride > x->stride[i] ||
                          (axes[at - 1].stride == x->stride[i] && axes[at - 1].size > x->shape.d[i])); at--)
            axes[at] = axes[at - 1];
        axes[at] = (struct axis){x->stride[i], x->shape.d[i]};
    }
    int merged = 0;
    for (int i = 0; i < n; i++) {
        if (merged && axes[merged - 1].stride * axes[merged - 1].size == axes[i].stride)
            axes[merged - 1].size *= axes[i].size;
        else
            axes[merged++] = axes[i];
    }
    return merged;
}

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static int64_t last_pow2(int64_t n)
{
    int64_t p = 1;
    while (p * 2 <= n)
        p *= 2;
    return p;
}

/* Outputs a thread computes at once when the fastest dimension is kept: 4, or what divides every stride. */
static int64_t output_vector(const struct axis *kept, int n_kept, const struct axis *reduced, int n_reduced)
{
    int64_t vector = 4;
    while (kept[0].size % vector)
        vector /= 2;
    for (int i = 0; i < n_reduced; i++)
        while (reduced[i].stride % vector)
            vector /= 2;
    for (int i = 1; i < n_kept; i++)
        while (kept[i].stride % vector)
            vector /= 2;
    return vector;
}

enum { MIN_VALUES = 16, MAX_VALUES = 256 };

/* How many blocks share an output, so that the card is busy. */
static struct mp_card_answer split_over_blocks(const struct mp_gpu *gpu, const int64_t *args)
{
    const int64_t threads = args[0], grid = args[1], values = args[2], bytes_per_block = args[3];
    const int64_t target = (int64_t)gpu->sms * ((int64_t)gpu->threads_per_sm / threads);
    if (grid > target)
        return (struct mp_card_answer){0};
    const int64_t blocks = MP_MAX(MP_MIN(ceil_div(target, grid), ceil_div(values, MIN_VALUES)), ceil_div(values, MAX_VALUES));
    if (blocks <= 1)
        return (struct mp_card_answer){0};
    return (struct mp_card_answer){.bytes = {(uint64_t)(bytes_per_block * blocks), (uint64_t)(4 * grid)}};
}

struct mp_card_reply mp_reduce_scratch(struct mp_card *card, const struct mp_tensor *x, unsigned dims)
{
    enum { MAX_THREADS = 512, WARP = 32 };
    struct axis reduced[MP_MAX_DIMS], kept[MP_MAX_DIMS];
    const int n_reduced = merge_axes(x, dims, true, reduced), n_kept = merge_axes(x, dims, false, kept);
    if (n_reduced == 0 || mp_numel(x) == 0)
        return (struct mp_card_reply){0};
    int64_t n_in = 1;
    for (int i = 0; i < n_reduced; i++)
        n_in *= reduced[i].size;
    const int64_t n_out = mp_numel(x) / n_in;
    const bool fast = n_kept == 0 || reduced[0].stride < kept[0].stride; /* the reduced dimension is the fastest */
    int64_t dim0 = fast ? n_in : n_out;
    const int64_t dim1 = fast ? n_out : n_in;
    int64_t vector = 1;
    if ((fast ? reduced[0].stride : kept[0].stride) == 1) {
        if (fast && dim0 > 128 && n_kept == 0 && n_reduced == 1)
            dim0 /= 4; /* input vectorised */
        else if (!fast) {
            vector = output_vector(kept, n_kept, reduced, n_reduced);
            dim0 /= vector;
        }
    }
    const int64_t max_threads = MAX_THREADS / vector;
    const int64_t p0 = dim0 < max_threads ? last_pow2(MP_MAX(dim0, 1)) : max_threads;
    const int64_t p1 = dim1 < max_threads ? last_pow2(MP_MAX(dim1, 1)) : max_threads;
    int64_t width = MP_MIN(p0, WARP);
    const int64_t height = MP_MIN(p1, max_threads / width);
    width = MP_MIN(p0, max_threads / height);

    int64_t step_in = fast ? width : 1, step_out = fast ? 1 : width;
    const bool split = ceil_div(n_in, step_in) >= MP_MIN(height * MIN_VALUES, MAX_VALUES);
    if (split)
        step_in *= height;
    else
        step_out *= height;
    const int64_t grid = ceil_div(n_out / vector, step_out);
    const int64_t values = ceil_div(n_in, step_in);
    if (!split || values < MAX_VALUES)
        return (struct mp_card_reply){0};
    /* partial results are kept in the type that accumulates: float for half types, one byte for booleans */
    const int64_t item = x->dtype == MP_BOOL ? 1 : MP_MAX(4, (int64_t)mp_dtype_bytes(x->dtype));
    const int64_t args[] = {width * height, grid, values, item * n_out * (fast ? 1 : width * vector)};
    return mp_card_ask(card, split_over_blocks, args, MP_ARRAY_LEN(args));
}

void mp_reduce_take_scratch(struct mp_runtime *rt, const struct mp_tensor *x, unsigned dims)
{
    const struct mp_card_reply scratch = mp_reduce_scratch(&rt->card, x, dims);
    if (!scratch.bytes[0])
        return;
    struct mp_storage *const partial = mp_storage_asked(rt, &scratch, 0);
    mp_storage_unref(rt, mp_storage_asked(rt, &scratch, 1));
    mp_storage_unref(rt, partial);
}

/* TensorIterator::can_use_32bit_indexing */
static bool addressable(const struct mp_tensor *x)
{
    int64_t offset = 0;
    for (int i = 0; i < x->shape.n; i++)
        offset += (x->shape.d[i] - 1) * x->stride[i];
    return offset * (int64_t)mp_dtype_bytes(x->dtype) <= INT32_MAX;
}

/* Kernels index with 32 bits: a larger tensor is halved along its largest extent, and the parts run one after the other. */
static void reduce_kernel(struct mp_runtime *rt, struct mp_tensor x, unsigned dims)
{
    if (!addressable(&x)) {
        int split = 0;
        for (int i = 1; i < x.shape.n; i++)
            if ((x.shape.d[i] - 1) * x.stride[i] > (x.shape.d[split] - 1) * x.stride[split])
                split = i;
        const int64_t whole = x.shape.d[split];
        x.shape.d[split] = whole / 2;
        reduce_kernel(rt, x, dims);
        x.shape.d[split] = whole - whole / 2;
        reduce_kernel(rt, x, dims);
        return;
    }
    mp_reduce_take_scratch(rt, &x, dims);
}

static struct mp_tensor *reduce_as(struct mp_runtime *rt, struct mp_tensor *x, unsigned dims, bool keepdim, enum mp_dtype dtype)
{
    struct mp_shape shape = x->shape, squeezed = {0, {0}};
    for (int i = 0; i < x->shape.n; i++) {
        if (dims >> i & 1u)
            shape.d[i] = 1;
        else
            squeezed.d[squeezed.n++] = shape.d[i];
    }
    struct mp_tensor *out = mp_empty(rt, keepdim ? shape : squeezed, dtype);
    struct mp_storage *accumulator = NULL; /* parts of half types add up in float */
    if (mp_dtype_is_half(x->dtype) && !addressable(x))
        accumulator = mp_storage_new(rt, 4 * (uint64_t)mp_numel(out));
    reduce_kernel(rt, *x, dims);
    if (accumulator)
        mp_storage_unref(rt, accumulator);
    return out;
}

struct mp_tensor *mp_reduce(struct mp_runtime *rt, struct mp_tensor *x, unsigned dims, bool keepdim)
{
    return reduce_as(rt, x, dims, keepdim, (enum mp_dtype)x->dtype);
}

struct mp_tensor *mp_sum_to(struct mp_runtime *rt, struct mp_tensor *t, const struct mp_shape *shape)
{
    if (mp_same_shape(&t->shape, shape))
        return t;
    const int lead = t->shape.n - shape->n;
    unsigned dims = 0;
    for (int i = 0; i < t->shape.n; i++)
        if (i < lead || (shape->d[i - lead] == 1 && t->shape.d[i] != 1))
            dims |= 1u << i;
    struct mp_tensor *sum = dims ? mp_reduce(rt, t, dims, true) : t;
    if (dims)
        mp_record(rt, "sum", MP_TENSORS(t), MP_TENSORS(sum), MP_ATTRIBUTES(mp_integer("dims", dims)));
    return lead ? mp_view(rt, sum, *shape) : sum;
}

/* ---- mean, sum ---- */

static void mean_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_div_number(rt, mp_expand(rt, g[0], n->shape), (double)n->shape.d[n->shape.n - 1]);
}
static const struct mp_node_type mean_type = {"MeanBackward1", mean_backward};

struct mp_tensor *mp_mean_last(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_scope scope = mp_begin(rt, "mean", MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, &mean_type, MP_TENSORS(x));
    struct mp_tensor *out = mp_reduce(rt, x, 1u << (x->shape.n - 1), true);
    mp_record(rt, "mean", MP_TENSORS(x), MP_TENSORS(out), MP_ATTRIBUTES(mp_integer("dims", INT64_C(1) << (x->shape.n - 1))));
    if (n)
        n->shape = x->shape;
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

static void sum_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *x = n->arg[1] ? g[0] : mp_unsqueeze(rt, g[0], (int)n->arg[0]);
    out[0] = mp_expand(rt, x, n->shape);
}
static const struct mp_node_type sum_type = {"SumBackward1", sum_backward};

/* Autocast hands the kernel float32 as its result type: no cast of the operand. */
struct mp_tensor *mp_sum(struct mp_runtime *rt, struct mp_tensor *x, int dim, bool keepdim)
{
    struct mp_scope scope = mp_begin(rt, "sum", MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, &sum_type, MP_TENSORS(x));
    dim = dim < 0 ? dim + x->shape.n : dim;
    const bool widened = rt->autocast && mp_dtype_is_half((enum mp_dtype)x->dtype);
    struct mp_tensor *out = reduce_as(rt, x, 1u << dim, keepdim, widened ? MP_F32 : (enum mp_dtype)x->dtype);
    mp_record(rt, "sum", MP_TENSORS(x), MP_TENSORS(out), MP_ATTRIBUTES(mp_integer("dims", INT64_C(1) << dim)));
    if (n) {
        n->shape = x->shape;
        n->arg[0] = dim;
        n->arg[1] = keepdim;
    }
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- softmax ---- */

/* The input's gradient comes first, then grad * output inside the kernel's wrapper. */
static void softmax_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty(rt, g[0]->shape, (enum mp_dtype)n->dtype);
    mp_pointwise(rt, MP_TENSORS(g[0], mp_saved_tensor(n, 0)));
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type softmax_type = {"SoftmaxBackward0", softmax_backward};

struct mp_tensor *mp_softmax(struct mp_runtime *rt, struct mp_tensor *x, int dtype)
{
    struct mp_scope scope = mp_begin(rt, "softmax", MP_TENSORS(x));
    const enum mp_dtype result = dtype >= 0 ? (enum mp_dtype)dtype : rt->autocast ? MP_F32 : (enum mp_dtype)x->dtype;
    /* float16 to float32 is fused into the kernel, bfloat16 to float32 is a cast of its own */
    struct mp_tensor *t = x->dtype == MP_F16 && result == MP_F32 ? x : mp_to(rt, x, result);
    struct mp_node *n = mp_node_new(rt, &softmax_type, MP_TENSORS(t));
    if (!mp_is_contiguous(t)) {
        int64_t stride[MP_MAX_DIMS];
        mp_contiguous_stride(&t->shape, stride);
        mp_empty_strided(rt, t->shape, stride, t->dtype);
    }
    struct mp_tensor *out = mp_empty(rt, t->shape, result);
    mp_record(rt, "softmax", MP_TENSORS(t), MP_TENSORS(out), MP_NO_ATTRIBUTES);
    if (n)
        n->dtype = t->dtype;
    mp_save_output(rt, n, out);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- layer norm ---- */

/*
 * Gradients of weight and bias of very many short rows: partial sums per group of rows, then a reduction over the groups
 * (layer_norm_kernel.cu, LaunchGammaBetaBackwardCUDAKernel).
 */
static struct mp_card_answer is_wide(const struct mp_gpu *gpu, const int64_t *args)
{
    return (struct mp_card_answer){.choice = args[0] / 32 >= (int64_t)gpu->sms / 2};
}

static void partial_row_gradients(struct mp_runtime *rt, struct mp_node *n, int64_t rows, struct mp_tensor **out)
{
    const int64_t width = n->shape.d[0], warps = (width + 31) / 32;
    if (rows <= 64 * 1024 || mp_ask(rt, is_wide, width).choice)
        return;
    const int64_t groups = MP_MIN(32 * 1024 / warps, (rows + 31) / 32);
    struct mp_tensor *partial[2] = {NULL, NULL};
    for (int i = 0; i < 2; i++)
        partial[i] = mp_empty(rt, MP_SHAPE(groups, width), (enum mp_dtype)n->dtype);
    for (int i = 0; i < 2; i++) {
        struct mp_tensor *sum = mp_reduce(rt, partial[i], 1u, false);
        mp_discard(rt, out[i + 1]);
        out[i + 1] = sum;
    }
}

static void layer_norm_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *x = mp_saved_tensor(n, 1);
    if (mp_needs_input(n, 0))
        out[0] = mp_empty(rt, x->shape, x->dtype);
    for (int i = 1; i < 3; i++)
        if (mp_needs_input(n, i))
            out[i] = mp_empty(rt, n->shape, (enum mp_dtype)n->dtype);
    if (out[1] && out[2])
        partial_row_gradients(rt, n, mp_numel(x) / mp_dim(x, -1), out);
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type layer_norm_type = {"NativeLayerNormBackward0", layer_norm_backward};

/* Statistics are float32 whatever the type. */
struct mp_tensor *mp_layer_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias)
{
    struct mp_scope scope = mp_begin(rt, "layer_norm", MP_TENSORS(x, weight, bias));
    bias = mp_cast_float(rt, bias);
    weight = mp_cast_float(rt, weight);
    x = mp_cast_float(rt, x);
    struct mp_node *n = mp_node_new(rt, &layer_norm_type, MP_TENSORS(x, weight, bias));
    mp_save(rt, n, bias);
    mp_save(rt, n, x);
    mp_save(rt, n, weight);
    struct mp_tensor *out = mp_empty(rt, x->shape, x->dtype);
    const int64_t rows = mp_numel(x) / MP_MAX(mp_dim(x, -1), 1);
    struct mp_tensor *mean = mp_empty(rt, MP_SHAPE(rows), MP_F32);
    struct mp_tensor *rstd = mp_empty(rt, MP_SHAPE(rows), MP_F32);
    mp_record(rt, "layer_norm", MP_TENSORS(x, weight, bias), MP_TENSORS(out, mean, rstd), MP_ATTRIBUTES(mp_number("eps", rt->norm_eps)));
    if (n) {
        n->shape = weight->shape;
        n->dtype = weight->dtype;
    }
    mp_save_output(rt, n, mean);
    mp_save_output(rt, n, rstd);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}
