/* SPDX-License-Identifier: MIT */
/* The attention functions of transformers: sdpa_attention_forward and the families' eager_attention_forward. */
#include "arch/arch.h"

/* repeat_kv(): key and value heads for every query head */
static struct mp_tensor *repeat_kv(struct mp_runtime *rt, struct mp_tensor *x, int64_t times)
{
    if (times == 1)
        return x;
    const int64_t batch = mp_dim(x, 0), heads = mp_dim(x, 1), seq = mp_dim(x, 2), dim = mp_dim(x, 3);
    struct mp_tensor *expanded = mp_expand(rt, mp_unsqueeze(rt, x, 2), MP_SHAPE(batch, heads, times, seq, dim));
    return mp_reshape(rt, expanded, MP_SHAPE(batch, heads * times, seq, dim));
}

static struct mp_tensor *eager(struct mp_runtime *rt, const struct mp_attention_args *a, struct mp_tensor *query, struct mp_tensor *key,
                               struct mp_tensor *value, struct mp_tensor **weights_out)
{
    const struct mp_eager_style *style = a->style;
    struct mp_tensor *keys = NULL, *values = NULL, *weights = NULL, *output = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &query, &key, &value);
    mp_let(&f, &keys, repeat_kv(rt, key, a->groups));
    mp_let(&f, &values, repeat_kv(rt, value, a->groups));
    mp_let(&f, &weights, mp_mul_number(rt, mp_matmul(rt, query, mp_transpose(rt, keys, 2, 3)), 0.125));
    if (style->softcap) {
        mp_let(&f, &weights, mp_div_number(rt, weights, 50));
        mp_let(&f, &weights, mp_tanh(rt, weights));
        mp_let(&f, &weights, mp_mul_number(rt, weights, 50));
    }
    if (a->mask)
        mp_let(&f, &weights, mp_add(rt, weights, a->mask));
    if (style->float_softmax)
        mp_let(&f, &weights, mp_to(rt, mp_softmax(rt, weights, MP_F32), (enum mp_dtype)query->dtype));
    else
        mp_let(&f, &weights, mp_softmax(rt, weights, -1));
    if (style->to_value_dtype)
        mp_let(&f, &weights, mp_to(rt, weights, (enum mp_dtype)value->dtype));
    mp_let(&f, &weights, mp_dropout(rt, weights, a->dropout));
    mp_let(&f, &output, mp_matmul(rt, weights, values));
    mp_let(&f, &output, mp_transpose(rt, output, 1, 2));
    if (!style->keep_transposed)
        mp_let(&f, &output, mp_contiguous(rt, output));
    mp_give(&f, weights_out, weights);
    return mp_leave(&f, output);
}

static struct mp_tensor *sdpa(struct mp_runtime *rt, const struct mp_attention_args *a, struct mp_tensor *query, struct mp_tensor *key,
                              struct mp_tensor *value)
{
    struct mp_tensor *output = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &query, &key, &value);
    /* use_gqa_in_sdpa: grouped heads reach the kernel only without a mask tensor and up to a head size of 256 */
    if (a->groups > 1 && (a->mask || mp_dim(query, 3) > 256)) {
        mp_let(&f, &key, repeat_kv(rt, key, a->groups));
        mp_let(&f, &value, repeat_kv(rt, value, a->groups));
    }
    mp_let(&f, &output, mp_attention(rt, query, key, value, a->mask, a->dropout, a->causal && !a->mask && mp_dim(query, 2) > 1));
    return mp_leave(&f, mp_contiguous(rt, mp_transpose(rt, output, 1, 2)));
}

struct mp_tensor *mp_attend(struct mp_runtime *rt, const struct mp_attention_args *a, struct mp_tensor *q, struct mp_tensor *k,
                            struct mp_tensor *v, struct mp_tensor **weights)
{
    *weights = NULL;
    if (a->net->run->attention == MP_ATTENTION_EAGER)
        return eager(rt, a, q, k, v, weights);
    return sdpa(rt, a, q, k, v);
}
