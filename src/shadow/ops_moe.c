/* SPDX-License-Identifier: MIT */
/*
 * Operators of mixture-of-experts layers: routing, and products with one matrix
 * per expert.
 *
 * Sizes do not depend on the routing: rows are sorted by expert, and one kernel
 * runs over all groups.
 */
#include "shadow/ops.h"

/* ---- topk ---- */

static void topk_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                          struct mp_tensor **out)
{
    out[0] = mp_empty(rt, n->shape, (enum mp_dtype)g[0]->dtype);
}
static const struct mp_node_type topk_type = {"TopkBackward0", topk_backward};

void mp_topk(struct mp_runtime *rt, struct mp_tensor *x, int64_t k, struct mp_tensor **values,
             struct mp_tensor **indices)
{
    struct mp_shape shape = x->shape;
    shape.d[shape.n - 1] = k;
    struct mp_node *n = mp_node_new(rt, &topk_type, MP_TENSORS(x));
    *values = mp_empty(rt, shape, (enum mp_dtype)x->dtype);
    *indices = mp_empty(rt, shape, MP_I64);
    if (n)
        n->shape = x->shape;
    mp_save_output(rt, n, *indices);
    mp_track(rt, n, *values);
    mp_track_none(rt, n);
    mp_discard(rt, x);
}

/* ---- division in place ---- */

enum { SAVED_DIVISOR, SAVED_DIVIDEND };

/* The divisor's gradient, -g * (a / b) / b, comes before the dividend's, g / b.
 */
static void div_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                         struct mp_tensor **out)
{
    struct mp_tensor *divisor = mp_saved_tensor(n, SAVED_DIVISOR),
                     *dividend = mp_saved_tensor(n, SAVED_DIVIDEND);
    struct mp_tensor *quotient = mp_pointwise(rt, MP_TENSORS(dividend, divisor));
    struct mp_tensor *again = mp_pointwise(rt, MP_TENSORS(quotient, divisor));
    struct mp_tensor *negative = mp_pointwise(rt, MP_TENSORS(g[0]));
    out[1] = mp_pointwise(rt, MP_TENSORS(negative, again));
    mp_discard(rt, negative);
    mp_discard(rt, again);
    mp_discard(rt, quotient);
    out[0] = mp_pointwise(rt, MP_TENSORS(g[0], divisor));
}
static const struct mp_node_type div_type = {"DivBackward0", div_backward};

/* The old value is cloned for the gradient of the divisor. */
struct mp_tensor *mp_div_inplace(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "div_", MP_TENSORS(a, b));
    struct mp_node *n = mp_node_new(rt, &div_type, MP_TENSORS(a, b));
    if (n) {
        struct mp_tensor *old = mp_empty_like(rt, a, (enum mp_dtype)a->dtype);
        mp_save(rt, n, b);
        mp_save_output(rt, n, old);
    }
    struct mp_tensor *out = mp_alias(rt, a, a->shape, a->stride, NULL);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- grouped products ---- */

enum { SAVED_WEIGHT, SAVED_OFFSETS, SAVED_ROWS };

static struct mp_card_answer bytes_of_sms(const struct mp_gpu *gpu, const int64_t *args)
{
    return (struct mp_card_answer){.bytes = {(uint64_t)gpu->sms * (uint64_t)args[0]}};
}

/* bf16: CUTLASS takes problem sizes, pointers and strides per group, and a workspace per multiprocessor. Other types: one product
 * after the other. */
static void kernel_temporaries(struct mp_runtime *rt, enum mp_dtype dtype, int64_t experts)
{
    enum { BYTES_PER_GROUP = 60, BYTES_PER_SM = 512 };
    if (dtype != MP_BF16) {
        mp_gemm_workspace(rt, false);
        return;
    }
    struct mp_storage *groups = mp_storage_new(rt, (uint64_t)experts * BYTES_PER_GROUP);
    const struct mp_card_reply per_sm = mp_ask(rt, bytes_of_sms, BYTES_PER_SM);
    mp_storage_unref(rt, mp_storage_asked(rt, &per_sm, 0));
    mp_storage_unref(rt, groups);
}

/* The weight's gradient first, in the layout of the parameter, of which the
 * weight is a transposed view. */
static void grouped_mm_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                                struct mp_tensor **out)
{
    const struct mp_shape *const w = &n->shape2;
    const enum mp_dtype dtype = (enum mp_dtype)g[0]->dtype;
    if (mp_needs_input(n, 1)) {
        out[1] = mp_transpose(rt, mp_empty(rt, MP_SHAPE(w->d[0], w->d[2], w->d[1]), dtype), 1, 2);
        kernel_temporaries(rt, dtype, w->d[0]);
    }
    if (mp_needs_input(n, 0)) {
        out[0] = mp_empty(rt, n->shape, dtype);
        kernel_temporaries(rt, dtype, w->d[0]);
    }
}
static const struct mp_node_type grouped_mm_type = {"GroupedMmBackward0", grouped_mm_backward};

struct mp_tensor *mp_grouped_mm(struct mp_runtime *rt, struct mp_tensor *x,
                                struct mp_tensor *weight, struct mp_tensor *offsets)
{
    struct mp_scope scope = mp_begin(rt, "_grouped_mm", MP_TENSORS(x, weight, offsets));
    struct mp_node *n = mp_node_new(rt, &grouped_mm_type, MP_TENSORS(x, weight));
    mp_save(rt, n, mp_needs_input(n, 0) ? weight : NULL);
    mp_save(rt, n, offsets);
    mp_save(rt, n, mp_needs_input(n, 1) ? x : NULL);
    struct mp_tensor *out =
        mp_empty(rt, MP_SHAPE(mp_dim(x, 0), mp_dim(weight, 2)), (enum mp_dtype)x->dtype);
    kernel_temporaries(rt, (enum mp_dtype)x->dtype, mp_dim(weight, 0));
    if (n) {
        n->shape = x->shape;
        n->shape2 = weight->shape;
    }
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}
