/* SPDX-License-Identifier: MIT */
/* The attention functions of transformers: sdpa_attention_forward and the families' eager_attention_forward. */
#include "arch/arch.h"

#include <math.h>

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
    mp_let(&f, &weights, mp_mul_number(rt, mp_matmul(rt, query, mp_transpose(rt, keys, 2, 3)), 1 / sqrt((double)mp_dim(query, 3))));
    if (style->softcap) {
        mp_let(&f, &weights, mp_div_number(rt, weights, 50));
        mp_let(&f, &weights, mp_tanh(rt, weights));
        mp_let(&f, &weights, mp_mul_number(rt, weights, 50));
    }
    if (a->bias)
        mp_let(&f, &weights, mp_add(rt, weights, a->bias));
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

/* t5: the position bias is the additive mask; causal attention selects from it. */
static struct mp_tensor *bias_as_mask(struct mp_runtime *rt, struct mp_tensor *bias, bool causal)
{
    if (!causal)
        return bias;
    const int64_t seq = mp_dim(bias, -1);
    struct mp_tensor *rows = mp_empty(rt, MP_SHAPE(seq), MP_I64);
    struct mp_tensor *columns = mp_empty(rt, MP_SHAPE(seq), MP_I64);
    struct mp_tensor *lower = mp_empty(rt, MP_SHAPE(seq, seq), MP_BOOL);
    mp_discard(rt, columns);
    mp_discard(rt, rows);
    return mp_where_number(rt, lower, bias);
}

static struct mp_tensor *sdpa(struct mp_runtime *rt, const struct mp_attention_args *a, struct mp_tensor *query, struct mp_tensor *key,
                              struct mp_tensor *value)
{
    struct mp_tensor *mask = NULL, *output = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &query, &key, &value);
    /* use_gqa_in_sdpa: grouped heads reach the kernel only without a mask tensor and up to a head size of 256 */
    if (a->groups > 1 && (a->mask || mp_dim(query, 3) > 256)) {
        mp_let(&f, &key, repeat_kv(rt, key, a->groups));
        mp_let(&f, &value, repeat_kv(rt, value, a->groups));
    }
    mp_let(&f, &mask, a->bias ? bias_as_mask(rt, a->bias, a->causal) : a->mask);
    mp_let(&f, &output, mp_attention(rt, query, key, value, mask, a->dropout, a->causal && !mask && mp_dim(query, 2) > 1));
    return mp_leave(&f, mp_contiguous(rt, mp_transpose(rt, output, 1, 2)));
}

struct mp_tensor *mp_attend(struct mp_runtime *rt, const struct mp_attention_args *a, struct mp_tensor *q, struct mp_tensor *k,
                            struct mp_tensor *v, struct mp_tensor **weights)
{
    *weights = NULL;
    if (a->net->attention == MP_ATTENTION_EAGER)
        return eager(rt, a, q, k, v, weights);
    return sdpa(rt, a, q, k, v);
}

/* ---- heads ---- */

struct mp_tensor *mp_split_heads(struct mp_runtime *rt, struct mp_tensor *x, int64_t head_dim)
{
    return mp_transpose(rt, mp_view(rt, x, MP_SHAPE(mp_dim(x, 0), mp_dim(x, 1), -1, head_dim)), 1, 2);
}

struct mp_tensor *mp_project_heads(struct mp_runtime *rt, struct mp_tensor *hidden, const struct mp_linear_layer *layer, int64_t head_dim)
{
    return mp_split_heads(rt, mp_apply_linear(rt, hidden, layer), head_dim);
}

struct mp_tensor *mp_merge_heads(struct mp_runtime *rt, struct mp_tensor *output)
{
    return mp_contiguous(rt, mp_reshape(rt, output, MP_SHAPE(mp_dim(output, 0), mp_dim(output, 1), -1)));
}
