/* SPDX-License-Identifier: MIT */
/*
 * F.scaled_dot_product_attention: which kernel runs, and what it allocates.
 *
 *     cuDNN       half types, head size a multiple of 8 up to 256, where the card prefers it (sm_90 and newer)
 *     flash       the same on other cards from sm_80 on, without a mask
 *     efficient   float32 without grouped heads; half types where flash does not run
 *     math        composed of ordinary operators in float32, everything else
 *
 * The tensors each kernel takes beside q, k and v, and what it saves, are in docs/memory-model.md with the logs that show them.
 */
#include "shadow/ops.h"

enum kernel { KERNEL_CUDNN, KERNEL_FLASH, KERNEL_EFFICIENT, KERNEL_MATH };

struct call {
    struct mp_tensor *q, *k, *v, *mask; /* q: [batch, heads, seq, dim]; k, v may have fewer heads */
    double dropout;
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

static bool fused_shape(const struct call *c)
{
    const int64_t d = mp_dim(c->q, 3);
    return mp_dtype_is_half(c->q->dtype) && d % 8 == 0 && d <= 256;
}

static enum kernel choose(const struct mp_gpu *gpu, const struct call *c)
{
    const struct mp_tensor *mask = c->mask;
    if (mask && mask->stride[mask->shape.n - 1] != 1)
        return KERNEL_MATH; /* every fused kernel wants unit stride there */
    if (mask && mask->requires_grad)
        return is_grouped(c) ? KERNEL_MATH : KERNEL_EFFICIENT;
    if (fused_shape(c) && gpu->cudnn_attention_first)
        return KERNEL_CUDNN;
    if (fused_shape(c) && gpu->flash_attention && !mask)
        return KERNEL_FLASH;
    if (!is_grouped(c) && gpu->efficient_attention)
        return KERNEL_EFFICIENT;
    return KERNEL_MATH;
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
    mp_discard(rt, minimum);
    mp_discard(rt, zero);
    return out;
}

static void pad_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty(rt, n->shape, g[0]->dtype);
}
static const struct mp_node_type pad_type = {"ConstantPadNdBackward0", pad_backward};

/* The memory-efficient kernel reads rows of a mask in steps of 8 elements: else a padded copy, seen through a slice. */
static struct mp_tensor *align_mask(struct mp_runtime *rt, struct mp_tensor *mask)
{
    bool aligned = true;
    for (int i = 0; i < mask->shape.n - 1; i++)
        aligned = aligned && mask->stride[i] % 8 == 0;
    if (aligned)
        return mask;
    const int64_t length = mp_dim(mask, -1);
    struct mp_shape shape = mask->shape;
    shape.d[shape.n - 1] = length + 8 - length % 8;
    struct mp_scope scope = mp_begin(rt, "pad", MP_TENSORS(mask));
    struct mp_node *n = mp_node_new(rt, &pad_type, MP_TENSORS(mask));
    struct mp_tensor *padded = mp_empty(rt, shape, mask->dtype);
    if (n)
        n->shape = mask->shape;
    mp_track(rt, n, padded);
    return mp_end(rt, &scope, mp_slice(rt, padded, -1, 0, length));
}

static struct mp_tensor *expand_mask(struct mp_runtime *rt, struct mp_tensor *mask, const struct call *c)
{
    return mp_expand(rt, align_mask(rt, mask), MP_SHAPE(mp_dim(c->q, 0), mp_dim(c->q, 1), mp_dim(c->q, 2), mp_dim(c->k, 2)));
}

/* ---- what the fused kernels share: mask, k, q, v, then results are saved ---- */

enum { SAVED_MASK, SAVED_K, SAVED_Q, SAVED_V };

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

/* The workspace holds float32 accumulators of dq and the row sums; grouped heads add dk and dv for every query head. */
static void cudnn_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *k = mp_saved_tensor(n, SAVED_K), *q = mp_saved_tensor(n, SAVED_Q), *v = mp_saved_tensor(n, SAVED_V);
    (void)g;
    out[0] = mp_empty_like(rt, q, q->dtype);
    out[1] = mp_empty_like(rt, k, k->dtype);
    out[2] = mp_empty_like(rt, v, v->dtype);
    const uint64_t rows = (uint64_t)(mp_dim(q, 0) * mp_dim(q, 1) * mp_dim(q, 2)), dim = (uint64_t)mp_dim(q, 3);
    uint64_t workspace = 4 * rows * dim + 4 * rows + 256;
    if (mp_dim(k, 1) != mp_dim(q, 1))
        workspace += 2 * rows * dim * mp_dtype_bytes(q->dtype);
    mp_scratch(rt, workspace);
}
static const struct mp_node_type cudnn_type = {"ScaledDotProductCudnnAttentionBackward0", cudnn_backward};

static struct mp_tensor *cudnn_out(struct mp_runtime *rt, const struct call *c)
{
    const int64_t dim = mp_dim(c->v, 3);
    if (dim == mp_dim(c->q, 3))
        return mp_empty_like(rt, c->q, c->q->dtype);
    /* another head size for values: q's order of strides */
    struct mp_tensor shaped = *c->q;
    shaped.shape.d[3] = dim;
    shaped.stride[0] = shaped.stride[1] = 0;
    const int64_t heads = mp_dim(c->q, 1), seq = mp_dim(c->q, 2);
    const bool seq_major = c->q->stride[2] > c->q->stride[1];
    const int64_t bshd[MP_MAX_DIMS] = {seq * heads * dim, dim, heads * dim, 1}, bhsd[MP_MAX_DIMS] = {heads * seq * dim, seq * dim, dim, 1};
    return mp_empty_strided(rt, shaped.shape, seq_major ? bshd : bhsd, c->q->dtype);
}

static struct mp_tensor *cudnn(struct mp_runtime *rt, const struct call *c)
{
    struct mp_node *n = begin_fused(rt, &cudnn_type, c);
    struct mp_tensor *seed = mp_empty(rt, MP_SCALAR, MP_I64);
    struct mp_tensor *offset = mp_empty(rt, MP_SCALAR, MP_I64);
    struct mp_tensor *out = cudnn_out(rt, c);
    struct mp_tensor *lse = n ? mp_empty(rt, MP_SHAPE(mp_dim(c->q, 0), mp_dim(c->q, 1), mp_dim(c->q, 2), 1), MP_F32) : NULL;
    mp_scratch(rt, 256);
    if (n)
        finish_fused(rt, n, lse, out);
    mp_save_output(rt, n, offset);
    mp_save_output(rt, n, seed);
    mp_track(rt, n, out);
    return out;
}

/* ---- memory-efficient ---- */

/*
 * Blocks of bi queries by bj columns: for each a tile of floats with a head of 16 bytes. float32 also computes the row sums of
 * grad * out with ordinary operators; half types do that inside the kernel.
 */
static void efficient_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *k = mp_saved_tensor(n, SAVED_K), *q = mp_saved_tensor(n, SAVED_Q), *v = mp_saved_tensor(n, SAVED_V);
    const int64_t batch = mp_dim(q, 0), heads = mp_dim(q, 1), seq = mp_dim(q, 2), keys = mp_dim(k, 2), dim = mp_dim(q, 3);
    (void)g;
    out[0] = empty_bshd(rt, q, dim);
    out[1] = empty_bshd(rt, k, dim);
    out[2] = empty_bshd(rt, v, mp_dim(v, 3));
    struct mp_tensor *mask_grad = mp_needs_input(n, 3) ? mp_empty(rt, MP_SHAPE(batch, heads, seq, round_up(keys, 16)), q->dtype) : NULL;
    if (q->dtype == MP_F32) {
        struct mp_tensor *product = mp_empty(rt, MP_SHAPE(batch, seq, heads, mp_dim(v, 3)), MP_F32);
        struct mp_tensor *sum = mp_empty(rt, MP_SHAPE(batch, seq, heads), MP_F32);
        mp_empty(rt, MP_SHAPE(batch, heads, seq), MP_F32);
        mp_discard(rt, sum);
        mp_discard(rt, product);
    } else {
        mp_empty(rt, MP_SHAPE(batch, heads, seq), MP_F32);
    }
    const int64_t bi = dim <= 64 ? 64 : 128, bj = q->dtype != MP_F32 && dim > 96 && dim <= 128 ? 128 : 64;
    mp_scratch(rt, (uint64_t)(batch * heads * ceil_div(seq, bi) * ceil_div(dim, bj) * (16 + bi * bj * 4)));
    if (mask_grad) {
        const struct mp_shape shape = MP_SHAPE(batch, heads, seq, keys);
        out[3] = mp_alias(rt, mask_grad, shape, mask_grad->stride, mp_dim(mask_grad, 3) == keys ? NULL : mask_grad);
    }
}
static const struct mp_node_type efficient_type = {"ScaledDotProductEfficientAttentionBackward0", efficient_backward};

static struct mp_tensor *efficient(struct mp_runtime *rt, const struct call *c)
{
    struct mp_node *n = begin_fused(rt, &efficient_type, c);
    struct mp_tensor *out = empty_bshd(rt, c->q, mp_dim(c->v, 3));
    struct mp_tensor *lse = mp_empty(rt, MP_SHAPE(mp_dim(c->q, 0), mp_dim(c->q, 1), n ? round_up(mp_dim(c->q, 2), 32) : 0), MP_F32);
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
    mp_discard(rt, minimum);
    mp_discard(rt, zero);
    mp_discard(rt, lower);
    return bias;
}

/* at::_scaled_dot_product_attention_math */
static struct mp_tensor *math(struct mp_runtime *rt, const struct call *c)
{
    const enum mp_dtype dtype = (enum mp_dtype)c->q->dtype;
    struct mp_tensor *q = NULL, *k = NULL, *v = NULL, *scaled = NULL, *mask = NULL, *keys = NULL, *values = NULL, *attn = NULL, *unused = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    mp_let(&f, &q, mp_to(rt, c->q, MP_F32));
    mp_let(&f, &k, mp_to(rt, c->k, MP_F32));
    mp_let(&f, &v, mp_to(rt, c->v, MP_F32));
    mp_let(&f, &scaled, mp_mul_number(rt, q, 0.5));
    mp_let(&f, &mask, c->mask || !c->causal ? c->mask : causal_bias(rt, mp_dim(q, 2)));
    const int64_t group = mp_dim(q, 1) / mp_dim(k, 1);
    mp_let(&f, &keys, repeat_heads(rt, k, group));
    mp_let(&f, &values, repeat_heads(rt, v, group));
    struct mp_tensor *transposed = mp_mul_number(rt, mp_transpose(rt, keys, -2, -1), 0.5);
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
    struct call c = {.dropout = dropout, .causal = causal};
    c.mask = mask && mask->dtype != MP_BOOL ? mp_keep(mp_cast_low(rt, mask)) : mask;
    c.v = mp_keep(mp_cast_low(rt, v));
    c.k = mp_keep(mp_cast_low(rt, k));
    c.q = mp_keep(mp_cast_low(rt, q));
    const bool autocast = rt->autocast;
    rt->autocast = false;
    const enum kernel kernel = choose(rt->gpu, &c);
    if (c.mask && kernel != KERNEL_MATH)
        c.mask = mp_keep(additive(rt, c.mask, (enum mp_dtype)c.q->dtype));
    if (c.mask && kernel == KERNEL_EFFICIENT)
        c.mask = mp_keep(expand_mask(rt, c.mask, &c));
    struct mp_tensor *out = kernel == KERNEL_CUDNN       ? cudnn(rt, &c)
                            : kernel == KERNEL_EFFICIENT ? efficient(rt, &c)
                                                         : math(rt, &c);
    rt->autocast = autocast;
    return mp_end(rt, &scope, out);
}
