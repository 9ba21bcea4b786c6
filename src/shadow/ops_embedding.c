/* SPDX-License-Identifier: MIT */
/*
 * Embedding: a look-up forwards, a sort of the indices backwards.
 *
 * Up to 3,072 indices a simple kernel adds rows up. Beyond that the indices are sorted, equal ones are cut into segments of at
 * most 10 partial sums, and those are added in one pass with atomics or in two (aten/src/ATen/native/cuda/Embedding.cu,
 * EmbeddingBackwardKernel.cu). Sizes of CUB's temporary storage: from the sizes seen, no rounding of our own.
 */
#include "shadow/module.h"
#include "shadow/ops.h"

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static uint64_t align256(uint64_t n) { return (n + 255) / 256 * 256; }

uint64_t mp_scan_temp(int64_t n, int64_t tile)
{
    const uint64_t tiles = (uint64_t)ceil_div(n, tile);
    return align256(align256((32 + tiles) * 16) + 255) + 255;
}

uint64_t mp_sort_temp(int64_t n, int key_bits)
{
    enum { SINGLE_TILE = 2304, TILE = 4608, DIGIT_BITS = 8 };
    if (n <= SINGLE_TILE)
        return 1;
    const uint64_t passes = (uint64_t)ceil_div(MP_MAX(key_bits, 1), DIGIT_BITS);
    const uint64_t ping_pong = passes > 1 ? 2 * align256(8 * (uint64_t)n) : 0;
    return align256(passes * 256 * 8) + align256((uint64_t)ceil_div(n, TILE) * 1024) + ping_pong + 256 + 255;
}

static struct mp_storage *items(struct mp_runtime *rt, int64_t n) { return mp_storage_new(rt, 8 * (uint64_t)n); }

static struct mp_card_answer leaves_idle(const struct mp_gpu *gpu, const int64_t *args)
{
    return (struct mp_card_answer){.choice = args[0] < 4 * (int64_t)gpu->sms};
}

/* embedding_backward_cuda_kernel: sums over segments of sorted indices */
static void sum_segments(struct mp_runtime *rt, const struct mp_shape *table, int64_t n, enum mp_dtype dtype)
{
    const int64_t rows = table->d[0], width = table->d[1];
    struct mp_storage *offsets = items(rt, n), *count = items(rt, 1), *keys = items(rt, n);
    mp_scratch(rt, mp_scan_temp(n, MP_UNIQUE_TILE));
    mp_storage_unref(rt, keys);
    const int64_t n_segments = MP_MIN(n, rows);
    struct mp_storage *per_segment = items(rt, n_segments), *segment_offset = items(rt, n_segments);
    mp_scratch(rt, mp_scan_temp(n_segments, MP_SCAN_TILE));
    struct mp_storage *n_partial = items(rt, 1);
    const int64_t n_partials = n / 10 + n_segments;
    struct mp_storage *partial_offset = items(rt, n_partials);
    const int64_t warped = ceil_div(width, 32) * 32;
    const int64_t grid = ceil_div(n_segments * warped, MP_MIN(warped, 1024));
    if (n_partials > 4 * grid && mp_ask(rt, leaves_idle, grid).choice) { /* one pass, with atomics */
        struct mp_storage *segment = items(rt, n_partials);
        if (dtype != MP_F32)
            mp_scratch(rt, 4 * (uint64_t)rows * (uint64_t)width);
        mp_storage_unref(rt, segment);
    } else {
        mp_scratch(rt, 4 * (uint64_t)n_partials * (uint64_t)width);
    }
    mp_storage_unref(rt, partial_offset);
    mp_storage_unref(rt, n_partial);
    mp_storage_unref(rt, segment_offset);
    mp_storage_unref(rt, per_segment);
    mp_storage_unref(rt, count);
    mp_storage_unref(rt, offsets);
}

static struct mp_tensor *sorted_backward(struct mp_runtime *rt, const struct mp_shape *table, int64_t n, enum mp_dtype dtype)
{
    struct mp_storage *sorted = items(rt, n), *original = items(rt, n), *range = items(rt, n);
    mp_scratch(rt, mp_sort_temp(n, 64));
    mp_storage_unref(rt, range);
    struct mp_tensor *out = mp_empty(rt, *table, dtype);
    sum_segments(rt, table, n, dtype);
    mp_storage_unref(rt, original);
    mp_storage_unref(rt, sorted);
    return out;
}

static void embedding_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    enum { SIMPLE_KERNEL_MAX = 3072 };
    struct mp_tensor *index = mp_saved_tensor(n, 0), *grad = mp_contiguous(rt, g[0]);
    if (!mp_is_contiguous(index))
        mp_empty(rt, index->shape, index->dtype);
    const int64_t count = mp_numel(index);
    out[0] = count <= SIMPLE_KERNEL_MAX ? mp_empty(rt, n->shape, grad->dtype) : sorted_backward(rt, &n->shape, count, grad->dtype);
    mp_record(rt, n->type->name, MP_TENSORS(grad, index), out[0] ? 1 : 0, out, MP_ATTRIBUTES(mp_integer("padding_idx", n->arg[0] - 1)));
}
static const struct mp_node_type embedding_type = {"EmbeddingBackward0", embedding_backward};

void mp_checks_indices(struct mp_runtime *rt)
{
    mp_driver_event(rt, MP_DRIVER_FIRST_KERNEL, 0);
    mp_driver_event(rt, MP_DRIVER_LARGER_STACKS, 0);
    mp_driver_event(rt, MP_DRIVER_ASSERTIONS, 0);
}

static struct mp_tensor *embedding(struct mp_runtime *rt, struct mp_tensor *index, struct mp_tensor *weight, int64_t padding_index)
{
    struct mp_scope scope = mp_begin(rt, "embedding", MP_TENSORS(index, weight));
    struct mp_node *n = mp_node_new(rt, &embedding_type, MP_TENSORS(weight));
    mp_save(rt, n, index);
    if (n) {
        n->shape = weight->shape;
        n->arg[0] = padding_index + 1;
    }
    if (!mp_is_contiguous(index))
        mp_empty(rt, index->shape, index->dtype);
    struct mp_shape shape = index->shape;
    shape.d[shape.n++] = mp_dim(weight, 1);
    struct mp_tensor *out = mp_empty(rt, shape, weight->dtype);
    mp_checks_indices(rt);
    mp_record(rt, "embedding", MP_TENSORS(index, weight), MP_TENSORS(out), MP_NO_ATTRIBUTES);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

struct mp_tensor *mp_embedding_padded(struct mp_runtime *rt, struct mp_tensor *index, struct mp_tensor *weight, int64_t padding_index)
{
    struct mp_module_call call;
    index = mp_module_begin(rt, &call, MP_MODULE_EMBEDDING, weight, NULL, index);
    return mp_module_end(rt, &call, embedding(rt, index, weight, padding_index));
}

struct mp_tensor *mp_embedding(struct mp_runtime *rt, struct mp_tensor *index, struct mp_tensor *weight)
{
    return mp_embedding_padded(rt, index, weight, -1);
}
