/* SPDX-License-Identifier: MIT */
/*
 * Liger's fused linear cross-entropy (liger_kernel/ops/fused_linear_cross_entropy.py): logits of
 * one chunk of rows at a time, and both gradients in forward.
 *
 *     C = min(next power of two of ceil(N / ceil(V / H)), N) rows to a chunk
 *     forward: d input N*H, d weight V*H (both saved), loss 4*N, and
 *         types as they are:  one C*V for all chunks; in float32 also a product V*H per chunk
 *         under autocast:     per chunk a cast of the head V*H, of the rows C*H, and C*V
 *     backward: the gradients are there
 */
#include "shadow/ops.h"

enum { SAVED_INPUT_GRADIENT, SAVED_WEIGHT_GRADIENT };

/* torch.equal(grad_output, torch.tensor(1.0)); otherwise the gradients are scaled in place */
static void fused_loss_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                                struct mp_tensor **out)
{
    (void)g;
    mp_empty(rt, MP_SCALAR, MP_F32);
    mp_empty(rt, MP_SCALAR, MP_BOOL);
    mp_empty(rt, MP_SCALAR, MP_BOOL);
    out[0] = mp_saved_tensor(n, SAVED_INPUT_GRADIENT);
    out[1] = mp_needs_input(n, 1) ? mp_saved_tensor(n, SAVED_WEIGHT_GRADIENT) : NULL;
}
static const struct mp_node_type fused_loss_type = {"LigerFusedLinearCrossEntropyFunctionBackward",
                                                    fused_loss_backward};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

int64_t mp_fused_loss_chunk(int64_t rows, int64_t hidden, int64_t vocabulary)
{
    const int64_t wanted = ceil_div(rows, ceil_div(vocabulary, hidden));
    int64_t chunk = 1;
    while (chunk < wanted)
        chunk *= 2;
    return MP_MIN(chunk, rows);
}

/* (target != ignore_index).sum().item(): the mask stays */
static void count_targets(struct mp_runtime *rt, struct mp_tensor *target)
{
    mp_empty_like(rt, target, MP_BOOL);
    struct mp_tensor *count = mp_empty(rt, MP_SCALAR, MP_I64);
    struct mp_tensor *wide = mp_empty(rt, MP_SHAPE(mp_numel(target)), MP_I64);
    mp_reduce_take_scratch(rt, wide, 1u);
    mp_discard(rt, wide);
    mp_discard(rt, count);
}

/* The head and the rows are cast for each product; only the second product finds the head in
 * autocast's cache. */
static void chunk_under_autocast(struct mp_runtime *rt, int64_t rows, struct mp_tensor *weight,
                                 bool with_gradient, bool with_weight_gradient)
{
    const enum mp_dtype low = rt->autocast_dtype;
    const struct mp_shape of_rows = MP_SHAPE(rows, mp_dim(weight, 1));
    struct mp_tensor *head = weight->dtype == low ? NULL : mp_empty(rt, weight->shape, low);
    struct mp_tensor *cast = mp_empty(rt, of_rows, low);
    struct mp_tensor *logits = mp_empty(rt, MP_SHAPE(rows, mp_dim(weight, 0)), low);
    mp_gemm_workspace(rt, false);
    mp_discard(rt, cast);
    mp_discard(rt, head);
    if (with_gradient) {
        struct mp_tensor *cached = mp_cast_low(rt, weight);
        struct mp_tensor *product = mp_empty(rt, of_rows, low);
        mp_discard(rt, cached);
        mp_discard(rt, product);
    }
    if (with_weight_gradient)
        mp_discard(rt, mp_empty(rt, of_rows, low));
    mp_discard(rt, logits);
}

/* Parts of one buffer; gradients are added to in place, but for float32 a product is made first. */
static void chunk_in_place(struct mp_runtime *rt, const struct mp_tensor *weight,
                           bool with_weight_gradient)
{
    mp_gemm_workspace(rt, false);
    if (with_weight_gradient && weight->dtype == MP_F32)
        mp_discard(rt, mp_empty(rt, weight->shape, MP_F32));
}

static void run_chunks(struct mp_runtime *rt, struct mp_tensor *input, struct mp_tensor *weight,
                       bool with_gradient, bool with_weight_gradient)
{
    const int64_t rows = mp_dim(input, 0),
                  chunk = mp_fused_loss_chunk(rows, mp_dim(weight, 1), mp_dim(weight, 0));
    const bool casts =
        rt->autocast && (input->dtype != rt->autocast_dtype || weight->dtype != rt->autocast_dtype);
    struct mp_tensor *buffer =
        casts ? NULL
              : mp_empty(rt, MP_SHAPE(chunk, mp_dim(weight, 0)), (enum mp_dtype)input->dtype);
    for (int64_t first = 0; first < rows; first += chunk) {
        if (casts)
            chunk_under_autocast(rt, MP_MIN(chunk, rows - first), weight, with_gradient,
                                 with_weight_gradient);
        else
            chunk_in_place(rt, weight, with_weight_gradient);
    }
    mp_discard(rt, buffer);
}

struct mp_tensor *mp_fused_linear_cross_entropy(struct mp_runtime *rt, struct mp_tensor *input,
                                                struct mp_tensor *weight, struct mp_tensor *target)
{
    struct mp_scope scope =
        mp_begin(rt, "fused_linear_cross_entropy", MP_TENSORS(input, weight, target));
    struct mp_node *n = mp_node_new(rt, &fused_loss_type, MP_TENSORS(input, weight));
    const bool grad_enabled = rt->grad_enabled, with_gradient = mp_needs_input(n, 0),
               with_weight_gradient = mp_needs_input(n, 1);
    const enum mp_category category = rt->category;
    struct mp_tensor *weight_gradient = NULL;
    rt->grad_enabled = false;
    struct mp_tensor *input_gradient =
        mp_keep(mp_empty_like(rt, input, (enum mp_dtype)input->dtype));
    if (with_weight_gradient) {
        rt->category = MP_CATEGORY_GRADIENT;
        weight_gradient = mp_keep(mp_empty_like(rt, weight, (enum mp_dtype)weight->dtype));
    }
    rt->category = MP_CATEGORY_LOGITS;
    struct mp_tensor *losses = mp_keep(mp_empty(rt, MP_SHAPE(mp_dim(input, 0)), MP_F32));
    count_targets(rt, target);
    run_chunks(rt, input, weight, with_gradient, with_weight_gradient);
    struct mp_tensor *loss = mp_reduce(rt, losses, 1u, false);
    rt->category = category;
    rt->grad_enabled = grad_enabled;
    mp_save_output(rt, n, input_gradient);
    if (n && !weight_gradient)
        mp_save(rt, n, NULL);
    else
        mp_save_output(rt, n, weight_gradient);
    mp_track(rt, n, loss);
    return mp_end(rt, &scope, loss);
}
