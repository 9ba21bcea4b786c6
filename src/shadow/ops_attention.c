/* SPDX-License-Identifier: MIT */
/*
 * F.scaled_dot_product_attention: which kernel runs, and what it allocates.
 *
 * The first that accepts the call runs. Where the card prefers cuDNN (compute capability 9.x and 10.x) it is tried first, elsewhere
 * never reached:
 *
 *     cuDNN       half types, head size a multiple of 8 up to 256, more than one query, mask with unit stride and without grad
 *     flash       half types from compute capability 8.0 on, no mask, any head size up to 256 (padded to a multiple of 8)
 *     efficient   no grouped heads, aligned head size, mask with unit stride; below 8.0 no bfloat16
 *     math        composed of ordinary operators in float32, everything else
 *
 * Sizes: validate/results/h200-operators.jsonl has 3,200 single calls, h200-kernels.jsonl and its traces whole steps with each
 * kernel forced. docs/memory-model.md explains them.
 */
#include "shadow/ops.h"

#include <math.h>

struct call {
    struct mp_tensor *q, *k, *v, *mask; /* q: [batch, heads, seq, dim]; k, v may have fewer heads */
    double dropout, scale;
    bool causal;
};

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }
static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static bool is_grouped(const struct call *c) { return mp_dim(c->k, 1) != mp_dim(c->q, 1); }

/* [batch, heads, seq, dim] whose memory is [batch, seq, heads, dim] */
static struct mp_tensor *empty_bshd(struct mp_runtime *rt, const struct mp_tensor *q, int64_t dim)
{
    const int64_t heads = mp_dim(q, 1), seq = mp_dim(q, 2);
    const int64_t stride[MP_MAX_DIMS] = {seq * heads * dim, dim, heads * dim, 1};
    return mp_empty_strided(rt, MP_SHAPE(mp_dim(q, 0), heads, seq, dim), stride, q->dtype);
}

/* ---- choice ---- */

/* What the choice depends on beside the card. */
enum { DTYPE, DIM, TRAITS };
enum { SEVERAL_ROWS = 1, MASKED = 2, MASK_LEARNS = 4, LEARNS = 8, DROPS = 16, GROUPED = 32 };

static bool cudnn_accepts(const struct mp_gpu *gpu, const int64_t *args)
{
    return gpu->cudnn_attention_first && mp_dtype_is_half((enum mp_dtype)args[DTYPE]) && args[DIM] % 8 == 0 && args[DIM] <= 256 &&
           (args[TRAITS] & SEVERAL_ROWS) && !(args[TRAITS] & MASK_LEARNS);
}

/* On 8.6, 8.9 and 12.x the backward kernel has not enough shared memory for every head size. */
static bool flash_accepts(const struct mp_gpu *gpu, const int64_t *args)
{
    const int64_t dim = args[DIM];
    const int cc = gpu->compute_capability;
    const bool small_shared_memory = cc == 86 || cc == 89 || cc >= 120;
    if (!gpu->flash_attention || !mp_dtype_is_half((enum mp_dtype)args[DTYPE]) || (args[TRAITS] & MASKED) || dim > 256)
        return false;
    return !(args[TRAITS] & LEARNS) || !small_shared_memory || dim <= 192 || (dim > 224 && !(args[TRAITS] & DROPS));
}

static bool efficient_accepts(const struct mp_gpu *gpu, const int64_t *args)
{
    if (!gpu->efficient_attention || (args[TRAITS] & GROUPED))
        return false;
    if (gpu->compute_capability < 80)
        return args[DTYPE] == MP_F32 || (args[DTYPE] == MP_F16 && args[DIM] % 8 == 0);
    return args[DIM] % (args[DTYPE] == MP_F32 ? 4 : 8) == 0;
}

static struct mp_card_answer first_that_accepts(const struct mp_gpu *gpu, const int64_t *args)
{
    const enum mp_attention_kernel kernel = cudnn_accepts(gpu, args)       ? MP_KERNEL_CUDNN
                                            : flash_accepts(gpu, args)     ? MP_KERNEL_FLASH
                                            : efficient_accepts(gpu, args) ? MP_KERNEL_EFFICIENT
                                                                           : MP_KERNEL_MATH;
    return (struct mp_card_answer){.choice = kernel};
}

static enum mp_attention_kernel choose(struct mp_runtime *rt, const struct call *c)
{
    const struct mp_tensor *mask = c->mask;
    if (mask && mask->stride[mask->shape.n - 1] != 1)
        return MP_KERNEL_MATH; /* every fused kernel wants unit stride there */
    const int64_t traits = (mp_dim(c->q, 2) > 1 ? SEVERAL_ROWS : 0) | (mask ? MASKED : 0) |
                           (mask && mask->requires_grad ? MASK_LEARNS : 0) |
                           (mp_needs_grad(rt, MP_TENSORS(c->q, c->k, c->v)) ? LEARNS : 0) |
                           (c->dropout > 0 ? DROPS : 0) | (is_grouped(c) ? GROUPED : 0);
    return (enum mp_attention_kernel)mp_ask(rt, first_that_accepts, c->q->dtype, mp_dim(c->q, 3), traits).choice;
}

/* ---- masks ---- */

/* A boolean mask becomes an additive one in q's type, anew for every call. */
static struct mp_tensor *additive(struct mp_runtime *rt, struct mp_tensor *mask, enum mp_dtype dtype)
{
    if (mask->dtype != MP_BOOL)
        return mask;
    struct mp_tensor *zero = mp_empty(rt, MP_SCALAR, dtype);
    struct mp_tensor *minimum = mp_empty(rt, MP_SCALAR, dtype);
    struct mp_tensor *out = mp_empty(rt, mask->shape, dtype);
    mp_record_copy(rt, "additive_mask", mask, out);
    mp_discard(rt, minimum);
    mp_discard(rt, zero);
    return out;
}

static void pad_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty(rt, n->shape, g[0]->dtype);
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type pad_type = {"ConstantPadNdBackward0", pad_backward};

/* F.pad of the last dimension. */
static struct mp_tensor *pad_last(struct mp_runtime *rt, struct mp_tensor *x, int64_t length)
{
    struct mp_shape shape = x->shape;
    shape.d[shape.n - 1] = length;
    struct mp_scope scope = mp_begin(rt, "pad", MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, &pad_type, MP_TENSORS(x));
    struct mp_tensor *padded = mp_empty(rt, shape, x->dtype);
    mp_record(rt, "pad", MP_TENSORS(x), MP_TENSORS(padded), MP_ATTRIBUTES(mp_number("value", 0)));
    if (n)
        n->shape = x->shape;
    mp_track(rt, n, padded);
    return mp_end(rt, &scope, padded);
}

/* The memory-efficient kernel reads rows of a mask in steps of 8 elements: else a padded copy, seen through a slice. */
static struct mp_tensor *align_mask(struct mp_runtime *rt, struct mp_tensor *mask)
{
    const int64_t length = mp_dim(mask, -1);
    bool aligned = true;
    for (int i = 0; i < mask->shape.n - 1; i++)
        aligned = aligned && mask->stride[i] % 8 == 0;
    return aligned ? mask : mp_slice(rt, pad_last(rt, mask, length + 8 - length % 8), -1, 0, length);
}

static struct mp_tensor *expand_mask(struct mp_runtime *rt, struct mp_tensor *mask, const struct call *c)
{
    return mp_expand(rt, align_mask(rt, mask), MP_SHAPE(mp_dim(c->q, 0), mp_dim(c->q, 1), mp_dim(c->q, 2), mp_dim(c->k, 2)));
}

/* ---- records: forward q, k, v, mask -> out, row statistics; backward grad, q, k, v, mask, out, statistics -> dq, dk, dv, dmask ---- */

static void record_forward(struct mp_runtime *rt, struct mp_node *n, const struct call *c, const char *kernel, struct mp_tensor *out,
                           struct mp_tensor *lse)
{
    mp_record(rt, "attention", MP_TENSORS(c->q, c->k, c->v, c->mask), MP_TENSORS(out, lse),
              MP_ATTRIBUTES(mp_text("kernel", kernel), mp_number("scale", c->scale), mp_boolean("causal", c->causal),
                            mp_number("p", c->dropout), mp_integer("seed", rt->n_random)));
    if (n) {
        n->scale = c->scale;
        n->number = c->dropout;
        n->arg[0] = c->causal;
        n->arg[1] = rt->n_random;
    }
    rt->n_random += c->dropout > 0;
}

enum { SAVED_MASK, SAVED_K, SAVED_Q, SAVED_V, SAVED_LSE, SAVED_OUT };
/* Saved in the order k, q, v, lse, out, rng, unused. */
enum { FLASH_K, FLASH_Q, FLASH_V, FLASH_LSE, FLASH_OUT };

static void record_backward(struct mp_runtime *rt, const struct mp_node *n, struct mp_tensor *grad, struct mp_tensor **out, bool flash)
{
    struct mp_tensor *const *h = n->held;
    struct mp_tensor *const fused[] = {grad, h[SAVED_Q], h[SAVED_K], h[SAVED_V], h[SAVED_MASK], h[SAVED_OUT], h[SAVED_LSE]};
    struct mp_tensor *const flashed[] = {grad, h[FLASH_Q], h[FLASH_K], h[FLASH_V], NULL, h[FLASH_OUT], h[FLASH_LSE]};
    mp_record(rt, n->type->name, 7, flash ? flashed : fused, n->n_inputs, out,
              MP_ATTRIBUTES(mp_number("scale", n->scale), mp_boolean("causal", n->arg[0] != 0), mp_number("p", n->number),
                            mp_integer("seed", n->arg[1])));
}

/* ---- what the fused kernels share: mask, k, q, v, then results are saved ---- */

static struct mp_node *begin_fused(struct mp_runtime *rt, const struct mp_node_type *type, const struct call *c)
{
    struct mp_tensor *inputs[] = {c->q, c->k, c->v, c->mask};
    const bool mask_grad = c->mask && c->mask->requires_grad;
    struct mp_node *n = mp_node_new(rt, type, mask_grad ? 4 : 3, inputs);
    mp_save(rt, n, c->mask);
    mp_save(rt, n, c->k);
    mp_save(rt, n, c->q);
    mp_save(rt, n, c->v);
    return n;
}

static struct mp_tensor *finish_fused(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *lse, struct mp_tensor *out)
{
    mp_save_output(rt, n, lse);
    mp_save_output(rt, n, out);
    return out;
}

/* ---- cuDNN ---- */

/* One handle per thread, at its first call. */
void mp_cudnn_handle(struct mp_runtime *rt)
{
    mp_driver_event(rt, MP_DRIVER_HOST_PAGE, 0);
    mp_driver_event(rt, rt->thread == MP_THREAD_MAIN ? MP_DRIVER_FIRST_CUDNN : MP_DRIVER_CUDNN, 0);
}

/* The workspace holds float32 accumulators of dq and the row sums; grouped heads add dk and dv for every query head. */
static void cudnn_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *k = mp_saved_tensor(n, SAVED_K), *q = mp_saved_tensor(n, SAVED_Q), *v = mp_saved_tensor(n, SAVED_V);
    out[0] = mp_empty_like(rt, q, q->dtype);
    out[1] = mp_empty_like(rt, k, k->dtype);
    out[2] = mp_empty_like(rt, v, v->dtype);
    const uint64_t rows = (uint64_t)(mp_dim(q, 0) * mp_dim(q, 1) * mp_dim(q, 2)), dim = (uint64_t)mp_dim(q, 3);
    uint64_t workspace = 4 * rows * dim + 4 * rows + 256;
    if (mp_dim(k, 1) != mp_dim(q, 1))
        workspace += 2 * rows * dim * mp_dtype_bytes(q->dtype);
    mp_scratch(rt, workspace);
    mp_cudnn_handle(rt);
    record_backward(rt, n, g[0], out, false);
}
static const struct mp_node_type cudnn_type = {"ScaledDotProductCudnnAttentionBackward0", cudnn_backward};

/* Like q, in q's order of strides; values may have another head size. */
static struct mp_tensor *cudnn_out(struct mp_runtime *rt, const struct call *c)
{
    const int64_t dim = mp_dim(c->v, 3), heads = mp_dim(c->q, 1), seq = mp_dim(c->q, 2);
    if (dim == mp_dim(c->q, 3))
        return mp_empty_like(rt, c->q, c->q->dtype);
    if (c->q->stride[2] > c->q->stride[1])
        return empty_bshd(rt, c->q, dim);
    return mp_empty(rt, MP_SHAPE(mp_dim(c->q, 0), heads, seq, dim), c->q->dtype);
}

static struct mp_tensor *cudnn(struct mp_runtime *rt, const struct call *c)
{
    struct mp_node *n = begin_fused(rt, &cudnn_type, c);
    struct mp_tensor *seed = mp_empty(rt, MP_SCALAR, MP_I64);
    struct mp_tensor *offset = mp_empty(rt, MP_SCALAR, MP_I64);
    struct mp_tensor *out = cudnn_out(rt, c);
    struct mp_tensor *lse = n ? mp_empty(rt, MP_SHAPE(mp_dim(c->q, 0), mp_dim(c->q, 1), mp_dim(c->q, 2), 1), MP_F32) : NULL;
    mp_scratch(rt, 256);
    mp_cudnn_handle(rt);
    record_forward(rt, n, c, "cudnn", out, lse);
    if (n)
        finish_fused(rt, n, lse, out);
    mp_save_output(rt, n, offset);
    mp_save_output(rt, n, seed);
    mp_track(rt, n, out);
    return out;
}

/* ---- flash ---- */

/* Head size as the kernel computes with it. */
static int64_t flash_rounded_dim(int64_t dim) { return round_up(dim, dim <= 128 ? 32 : 64); }

/*
 * num_splits_heuristic: with few query blocks the keys are split over several thread blocks, as long as that fills the card at
 * least 85 % as well as the best split does.
 */
static int64_t best_splits(const struct mp_gpu *gpu, int64_t n, int64_t blocks)
{
    const int64_t sms = 2 * (int64_t)gpu->sms;
    const int64_t most = MP_MIN(MP_MIN(128, sms), n);
    float best = 0, efficiency[129] = {0};
    if ((double)blocks >= 0.8 * (double)sms)
        return 1;
    for (int64_t i = 1; i <= most; i++) {
        if (i > 1 && ceil_div(n, i) == ceil_div(n, i - 1))
            continue; /* not one block fewer than with a split less */
        const float waves = (float)(blocks * i) / (float)sms;
        const float whole = (float)(int64_t)waves;
        efficiency[i] = waves / (whole < waves ? whole + 1 : whole);
        best = MP_MAX(best, efficiency[i]);
    }
    for (int64_t i = 1; i <= most; i++)
        if (efficiency[i] > 0 && efficiency[i] >= 0.85F * best)
            return i;
    return 1;
}

static struct mp_card_answer split_keys(const struct mp_gpu *gpu, const int64_t *args)
{
    return (struct mp_card_answer){.choice = best_splits(gpu, args[0], args[1])};
}

static int64_t flash_splits(struct mp_runtime *rt, const struct call *c, int64_t dim)
{
    const int64_t block_n = dim <= 64 ? 256 : dim <= 128 ? 128 : 64;
    if (c->dropout > 0)
        return 1;
    return mp_ask(rt, split_keys, ceil_div(mp_dim(c->k, 2), block_n),
                  mp_dim(c->q, 0) * mp_dim(c->q, 1) * ceil_div(mp_dim(c->q, 2), 64)).choice;
}

static bool is_transposed_contiguous(const struct mp_tensor *t)
{
    const int64_t heads = mp_dim(t, 1), dim = mp_dim(t, 3);
    return (t->stride[3] == 1 || dim == 1) && (t->stride[1] == dim || heads == 1) && (t->stride[2] == heads * dim || mp_dim(t, 2) == 1) &&
           (t->stride[0] == mp_dim(t, 2) * heads * dim || mp_dim(t, 0) == 1);
}

static void flash_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *k = mp_saved_tensor(n, FLASH_K), *q = mp_saved_tensor(n, FLASH_Q), *v = mp_saved_tensor(n, FLASH_V);
    const int64_t batch = mp_dim(q, 0), heads = mp_dim(q, 1), seq = mp_dim(q, 2), keys = mp_dim(k, 2), dim = mp_dim(q, 3);
    if (!is_transposed_contiguous(g[0]))
        empty_bshd(rt, q, dim);
    if (!is_transposed_contiguous(mp_saved_tensor(n, FLASH_OUT)))
        empty_bshd(rt, q, dim);
    out[0] = mp_empty_like(rt, q, q->dtype);
    out[1] = mp_empty_like(rt, k, k->dtype);
    out[2] = mp_empty_like(rt, v, v->dtype);
    mp_empty(rt, MP_SHAPE(batch, heads, round_up(seq, 128)), MP_F32);                          /* softmax_d */
    mp_empty(rt, MP_SHAPE(batch, round_up(seq, 128), heads, flash_rounded_dim(dim)), MP_F32);  /* dq_accum */
    if (mp_dim(k, 1) != heads) { /* one gradient per query head, then summed */
        mp_empty(rt, MP_SHAPE(batch, keys, heads, dim), q->dtype);
        mp_empty(rt, MP_SHAPE(batch, keys, heads, dim), q->dtype);
    }
    record_backward(rt, n, g[0], out, true);
}
static const struct mp_node_type flash_type = {"ScaledDotProductFlashAttentionBackward0", flash_backward};

static struct mp_tensor *flash_kernel(struct mp_runtime *rt, const struct call *c)
{
    const int64_t batch = mp_dim(c->q, 0), heads = mp_dim(c->q, 1), seq = mp_dim(c->q, 2), dim = mp_dim(c->q, 3);
    struct mp_scope scope = mp_begin(rt, "_flash_attention_forward", MP_TENSORS(c->q, c->k, c->v));
    struct mp_node *n = mp_node_new(rt, &flash_type, MP_TENSORS(c->q, c->k, c->v));
    mp_save(rt, n, c->k);
    mp_save(rt, n, c->q);
    mp_save(rt, n, c->v);
    struct mp_tensor *out = mp_empty_like(rt, c->q, c->q->dtype);
    struct mp_tensor *lse = mp_empty(rt, MP_SHAPE(batch, heads, seq), MP_F32);
    const int64_t splits = flash_splits(rt, c, dim);
    struct mp_tensor *accumulators[2] = {NULL, NULL};
    if (splits > 1) {
        accumulators[0] = mp_empty(rt, MP_SHAPE(splits, batch, heads, seq), MP_F32);
        accumulators[1] = mp_empty(rt, MP_SHAPE(splits, batch, heads, seq, flash_rounded_dim(dim)), MP_F32);
    }
    struct mp_tensor *rng = mp_empty(rt, MP_SHAPE(2), MP_I64);
    struct mp_tensor *unused = mp_empty(rt, MP_SCALAR, MP_I64);
    if (c->dropout > 0) {
        struct mp_tensor *first = rng;
        rng = mp_empty(rt, MP_SHAPE(2), MP_I64);
        mp_discard(rt, first);
    }
    mp_discard(rt, accumulators[0]);
    mp_discard(rt, accumulators[1]);
    record_forward(rt, n, c, "flash", out, lse);
    mp_save_output(rt, n, lse);
    mp_save_output(rt, n, out);
    mp_save_output(rt, n, rng);
    mp_save_output(rt, n, unused);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* Head sizes are padded to a multiple of 8, and the result is cut back: each an operation of its own for autograd. */
static struct mp_tensor *flash(struct mp_runtime *rt, const struct call *c)
{
    const int64_t dim = mp_dim(c->q, 3), padded_dim = round_up(dim, 8);
    if (dim == padded_dim)
        return flash_kernel(rt, c);
    struct call padded = *c;
    padded.q = mp_keep(pad_last(rt, c->q, padded_dim));
    padded.k = mp_keep(pad_last(rt, c->k, padded_dim));
    padded.v = mp_keep(pad_last(rt, c->v, padded_dim));
    return mp_slice(rt, flash_kernel(rt, &padded), -1, 0, dim);
}

/* ---- memory-efficient ---- */

/*
 * Backward works on blocks of bi queries by bj columns: for each a tile of floats with a head of 16 bytes. A kernel whose head size
 * exceeds bi also accumulates dk and dv of half types in float32.
 */
struct tile {
    int64_t bi, bj;
    bool accumulates;
};

/*
 * The kernels are tried in a fixed order: the first that takes the head size and fits the card's shared memory per block, which
 * 8.0, 9.0 and 10.0 have plenty of, 7.x, 8.6, 8.9 and 12.x not.
 */
static struct tile efficient_tile(const struct mp_gpu *gpu, enum mp_dtype dtype, int64_t dim, bool dropout)
{
    const int cc = gpu->compute_capability;
    const bool half = mp_dtype_is_half(dtype), roomy = cc == 80 || cc == 90 || cc == 100 || cc == 103;
    if (dim <= 64 || (!half && !roomy))
        return (struct tile){64, 64, false};
    if (!half)
        return (struct tile){128, 64, false};
    if (dim > 128)
        return (struct tile){128, 64, true};
    if (roomy)
        return (struct tile){128, 128, false};
    const bool narrow = (cc == 86 || cc == 89) && dim <= 96 && !dropout;
    return narrow ? (struct tile){128, 64, false} : (struct tile){64, 64, true};
}

static struct mp_card_answer efficient_workspace(const struct mp_gpu *gpu, const int64_t *args)
{
    const int64_t batch_heads = args[0], seq = args[1], dim = args[2];
    const struct tile t = efficient_tile(gpu, (enum mp_dtype)args[3], dim, args[4] != 0);
    int64_t accumulators = 0;
    if (t.accumulates) { /* for as many key blocks at once as keep the card busy */
        int64_t splits = ceil_div(seq, t.bj);
        if (batch_heads >= 256 && seq <= 2 * t.bj)
            splits = 1;
        splits = MP_MAX(MP_MIN(splits, 200 / batch_heads), 1);
        accumulators = 2 * 4 * splits * t.bj * round_up(dim, t.bi);
    }
    const int64_t bytes = batch_heads * (ceil_div(seq, t.bi) * ceil_div(dim, t.bj) * (16 + 4 * t.bi * t.bj) + accumulators);
    return (struct mp_card_answer){.bytes = {(uint64_t)bytes}};
}

/* sum(grad * out) per row: ordinary operators in float32, inside the kernel in half types. What is left afloat is the result. */
static void row_sums(struct mp_runtime *rt, const struct mp_tensor *q, int64_t value_dim)
{
    const int64_t batch = mp_dim(q, 0), heads = mp_dim(q, 1), seq = mp_dim(q, 2);
    if (q->dtype != MP_F32) {
        mp_empty(rt, MP_SHAPE(batch, heads, seq), MP_F32);
        return;
    }
    struct mp_tensor *product = mp_empty(rt, MP_SHAPE(batch, seq, heads, value_dim), MP_F32);
    struct mp_tensor *sum = mp_empty(rt, MP_SHAPE(batch, seq, heads), MP_F32);
    if (seq > 1 && heads > 1) { /* its transpose is laid out anew */
        mp_empty(rt, MP_SHAPE(batch, heads, seq), MP_F32);
        mp_discard(rt, sum);
    }
    mp_discard(rt, product);
}

static void efficient_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *k = mp_saved_tensor(n, SAVED_K), *q = mp_saved_tensor(n, SAVED_Q), *v = mp_saved_tensor(n, SAVED_V);
    const int64_t keys = mp_dim(k, 2);
    const struct mp_shape mask_shape = MP_SHAPE(mp_dim(q, 0), mp_dim(q, 1), mp_dim(q, 2), keys);
    struct mp_shape aligned = mask_shape;
    struct mp_tensor *mask_grad = NULL;
    out[0] = empty_bshd(rt, q, mp_dim(q, 3));
    out[1] = empty_bshd(rt, k, mp_dim(k, 3));
    out[2] = empty_bshd(rt, v, mp_dim(v, 3));
    aligned.d[3] = round_up(keys, 16);
    if (mp_needs_input(n, 3))
        mask_grad = mp_empty(rt, aligned, q->dtype);
    row_sums(rt, q, mp_dim(v, 3));
    const struct mp_card_reply workspace =
        mp_ask(rt, efficient_workspace, mp_dim(q, 0) * mp_dim(q, 1), mp_dim(q, 2), mp_dim(q, 3), q->dtype, n->arg[0] != 0);
    mp_storage_unref(rt, mp_storage_asked(rt, &workspace, 0));
    if (mask_grad)
        out[3] = mp_alias(rt, mask_grad, mask_shape, mask_grad->stride, aligned.d[3] == keys ? NULL : mask_grad);
    record_backward(rt, n, g[0], out, false);
}
static const struct mp_node_type efficient_type = {"ScaledDotProductEfficientAttentionBackward0", efficient_backward};

static struct mp_tensor *efficient(struct mp_runtime *rt, const struct call *c)
{
    const int64_t batch = mp_dim(c->q, 0), heads = mp_dim(c->q, 1), seq = mp_dim(c->q, 2), dim = mp_dim(c->v, 3);
    struct mp_node *n = begin_fused(rt, &efficient_type, c);
    if (n)
        n->arg[0] = c->dropout > 0;
    struct mp_tensor *out = empty_bshd(rt, c->q, dim);
    struct mp_tensor *lse = mp_empty(rt, MP_SHAPE(batch, heads, n ? round_up(seq, 32) : 0), MP_F32);
    if (mp_dtype_is_half(c->q->dtype) && dim > 128)
        mp_scratch(rt, 4 * (uint64_t)(batch * seq * heads * dim)); /* the output in float32 */
    record_forward(rt, n, c, "efficient", out, n ? lse : NULL);
    if (n)
        finish_fused(rt, n, lse, out);
    mp_track(rt, n, out);
    return out;
}

/* ---- math ---- */

static void safe_softmax_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty(rt, g[0]->shape, g[0]->dtype);
    mp_pointwise(rt, MP_TENSORS(g[0], mp_saved_tensor(n, 0)));
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type safe_softmax_type = {"SafeSoftmaxBackward0", safe_softmax_backward};

/* Rows that are masked altogether give zeros: a test for them, and a selection. */
static struct mp_tensor *safe_softmax(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_scope scope = mp_begin(rt, "_safe_softmax", MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, &safe_softmax_type, MP_TENSORS(x));
    struct mp_tensor *out = mp_empty(rt, x->shape, x->dtype);
    struct mp_shape rows = x->shape;
    rows.n--;
    struct mp_tensor *masked = mp_empty(rt, x->shape, MP_BOOL);
    struct mp_tensor *all = mp_empty(rt, rows, MP_BOOL);
    struct mp_tensor *zero = mp_empty(rt, MP_SCALAR, x->dtype);
    mp_discard(rt, zero);
    mp_discard(rt, all);
    mp_discard(rt, masked);
    mp_record_copy(rt, "softmax", x, out);
    mp_save_output(rt, n, out);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* repeat_interleave over heads: expand, clone, flatten */
static struct mp_tensor *repeat_heads(struct mp_runtime *rt, struct mp_tensor *x, int64_t times)
{
    if (times == 1)
        return x;
    const int64_t batch = mp_dim(x, 0), heads = mp_dim(x, 1), seq = mp_dim(x, 2), dim = mp_dim(x, 3);
    struct mp_tensor *expanded = mp_expand(rt, mp_unsqueeze(rt, x, 2), MP_SHAPE(batch, heads, times, seq, dim));
    return mp_view(rt, mp_contiguous(rt, expanded), MP_SHAPE(batch, heads * times, seq, dim));
}

static struct mp_tensor *causal_bias(struct mp_runtime *rt, int64_t seq)
{
    struct mp_tensor *ones = mp_empty(rt, MP_SHAPE(seq, seq), MP_BOOL);
    struct mp_tensor *lower = mp_empty(rt, MP_SHAPE(seq, seq), MP_BOOL);
    mp_discard(rt, ones);
    struct mp_tensor *zero = mp_empty(rt, MP_SCALAR, MP_F32);
    struct mp_tensor *minimum = mp_empty(rt, MP_SCALAR, MP_F32);
    struct mp_tensor *bias = mp_empty(rt, MP_SHAPE(seq, seq), MP_F32);
    mp_record(rt, "attention_mask", MP_NO_TENSORS, MP_TENSORS(bias), MP_ATTRIBUTES(mp_boolean("causal", true)));
    mp_discard(rt, minimum);
    mp_discard(rt, zero);
    mp_discard(rt, lower);
    return bias;
}

/* at::_scaled_dot_product_attention_math */
static struct mp_tensor *math(struct mp_runtime *rt, const struct call *c)
{
    const enum mp_dtype dtype = (enum mp_dtype)c->q->dtype;
    struct mp_tensor *q = NULL, *k = NULL, *v = NULL, *scaled = NULL, *mask = NULL, *keys = NULL,
                     *values = NULL, *attn = NULL, *unused = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &q, mp_to(rt, c->q, MP_F32));
    mp_let(&f, &k, mp_to(rt, c->k, MP_F32));
    mp_let(&f, &v, mp_to(rt, c->v, MP_F32));
    mp_let(&f, &scaled, mp_mul_number(rt, q, sqrt(c->scale)));
    mp_let(&f, &mask, c->mask || !c->causal ? c->mask : causal_bias(rt, mp_dim(q, 2)));
    const int64_t group = mp_dim(q, 1) / mp_dim(k, 1);
    mp_let(&f, &keys, repeat_heads(rt, k, group));
    mp_let(&f, &values, repeat_heads(rt, v, group));
    struct mp_tensor *transposed = mp_mul_number(rt, mp_transpose(rt, keys, -2, -1), sqrt(c->scale));
    mp_let(&f, &attn, mp_matmul(rt, scaled, transposed));
    if (mask)
        mp_add_inplace(rt, attn, mask);
    mp_let(&f, &attn, safe_softmax(rt, attn));
    mp_let(&f, &attn, mp_dropout(rt, attn, c->dropout));
    mp_let(&f, &unused, dtype == MP_F32 ? attn : mp_empty_like(rt, attn, dtype));
    return mp_leave(&f, mp_to(rt, mp_matmul(rt, attn, values), dtype));
}

/* ---- the operator ---- */

struct mp_tensor *mp_attention(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k, struct mp_tensor *v,
                               struct mp_tensor *mask, double dropout, bool causal)
{
    struct mp_scope scope = mp_begin(rt, "scaled_dot_product_attention", MP_TENSORS(q, k, v, mask));
    struct call c = {.dropout = dropout, .scale = 1 / sqrt((double)mp_dim(q, 3)), .causal = causal};
    c.mask = mask && mask->dtype != MP_BOOL ? mp_keep(mp_cast_low(rt, mask)) : mask;
    c.v = mp_keep(mp_cast_low(rt, v));
    c.k = mp_keep(mp_cast_low(rt, k));
    c.q = mp_keep(mp_cast_low(rt, q));
    const bool autocast = rt->autocast;
    rt->autocast = false;
    const enum mp_attention_kernel kernel = choose(rt, &c);
    rt->kernels |= 1u << kernel;
    if (c.mask)
        c.mask = additive(rt, c.mask, (enum mp_dtype)c.q->dtype);
    if (c.mask && kernel == MP_KERNEL_EFFICIENT) /* a padded copy replaces the mask it was made from */
        c.mask = expand_mask(rt, c.mask, &c);
    mp_keep(c.mask);
    struct mp_tensor *out = NULL;
    switch (kernel) {
    case MP_KERNEL_CUDNN: out = cudnn(rt, &c); break;
    case MP_KERNEL_FLASH: out = flash(rt, &c); break;
    case MP_KERNEL_EFFICIENT: out = efficient(rt, &c); break;
    case MP_KERNEL_MATH: out = math(rt, &c); break;
    }
    rt->autocast = autocast;
    return mp_end(rt, &scope, out);
}
