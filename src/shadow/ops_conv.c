/* SPDX-License-Identifier: MIT */
/* The convolution that cuts an image into patches: stride equal to the kernel,
 * no padding. */
#include "shadow/ops.h"

enum { SAVED_INPUT, SAVED_WEIGHT };

/* Channels-last copies of half tensors have their channels padded to a multiple
 * of 8. */
static uint64_t channels_last_elements(const struct mp_tensor *t)
{
    const int64_t channels = mp_dim(t, 1);
    return (uint64_t)(mp_numel(t) / channels * ((channels + 7) / 8 * 8));
}

/* cuDNN lays image, weight and result (or its gradient) out anew */
static void lay_out_anew(struct mp_runtime *rt, const struct mp_tensor *x, const struct mp_tensor *weight, const struct mp_tensor *result)
{
    mp_scratch(rt, 2 * (channels_last_elements(x) + channels_last_elements(weight) + (uint64_t)mp_numel(result)) + 16);
}

static void patches_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                             struct mp_tensor **out)
{
    struct mp_tensor *x = mp_saved_tensor(n, SAVED_INPUT),
                     *weight = mp_saved_tensor(n, SAVED_WEIGHT);
    struct mp_tensor *grad = mp_contiguous(rt, g[0]);
    if (mp_needs_input(n, 1)) {
        out[1] = mp_empty(rt, weight->shape, (enum mp_dtype)weight->dtype);
        if (mp_dtype_is_half(x->dtype))
            lay_out_anew(rt, x, weight, grad);
    }
    mp_cudnn_handle(rt);
    if (grad != g[0])
        mp_discard(rt, grad);
    if (mp_needs_input(n, 2))
        out[2] = mp_reduce(rt, g[0], 1u << 0 | 1u << 2 | 1u << 3, false);
}
static const struct mp_node_type conv_type = {"ConvolutionBackward0", patches_backward};

struct mp_tensor *mp_conv2d_patches(struct mp_runtime *rt, struct mp_tensor *x,
                                    struct mp_tensor *weight, struct mp_tensor *bias)
{
    rt->kernels |= 1u << MP_KERNEL_CUDNN; /* convolutions run in cuDNN, which is loaded for them */
    struct mp_scope scope = mp_begin(rt, "conv2d", MP_TENSORS(x, weight, bias));
    bias = mp_keep(mp_cast_low(rt, bias));
    weight = mp_keep(mp_cast_low(rt, weight));
    x = mp_keep(mp_cast_low(rt, x));
    struct mp_node *n = mp_node_new(rt, &conv_type, MP_TENSORS(x, weight, bias));
    mp_save(rt, n, x);
    mp_save(rt, n, weight);
    const struct mp_shape shape =
        MP_SHAPE(mp_dim(x, 0), mp_dim(weight, 0), mp_dim(x, 2) / mp_dim(weight, 2),
                 mp_dim(x, 3) / mp_dim(weight, 3));
    struct mp_tensor *out = mp_empty(rt, shape, (enum mp_dtype)x->dtype);
    mp_cudnn_handle(rt);
    if (x->dtype == MP_F16) /* bf16 has a kernel for the layout as it is */
        lay_out_anew(rt, x, weight, out);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}
