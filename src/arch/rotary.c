/* SPDX-License-Identifier: MIT */
/* RMS norm and rotary position embeddings, as the llama-like families share them. */
#include "arch/arch.h"

static struct mp_tensor *rms_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight)
{
    struct mp_tensor *variance = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    const enum mp_dtype dtype = (enum mp_dtype)x->dtype;
    mp_let(&f, &x, mp_to(rt, x, MP_F32));
    mp_let(&f, &variance, mp_mean_last(rt, mp_pow(rt, x, 2)));
    mp_let(&f, &x, mp_mul(rt, x, mp_rsqrt(rt, mp_add_number(rt, variance, rt->norm_eps))));
    return mp_leave(&f, mp_mul(rt, weight, mp_to(rt, x, dtype)));
}

struct mp_tensor *mp_rms_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight)
{
    struct mp_module_call call;
    x = mp_module_begin(rt, &call, MP_MODULE_NORM, weight, NULL, x);
    return mp_module_end(rt, &call, rms_norm(rt, x, weight));
}

static struct mp_tensor *normalise(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &x);
    struct mp_tensor *variance = mp_mean_last(rt, mp_pow(rt, x, 2));
    return mp_leave(&f, mp_mul(rt, x, mp_rsqrt(rt, mp_add_number(rt, variance, rt->norm_eps))));
}

static struct mp_tensor *gemma_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight)
{
    struct mp_tensor *output = NULL;
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    mp_let(&f, &output, normalise(rt, mp_to(rt, x, MP_F32)));
    mp_let(&f, &output, mp_mul(rt, output, mp_add_number(rt, mp_to(rt, weight, MP_F32), 1)));
    return mp_leave(&f, mp_to(rt, output, (enum mp_dtype)x->dtype));
}

struct mp_tensor *mp_gemma_norm(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight)
{
    struct mp_module_call call;
    x = mp_module_begin(rt, &call, MP_MODULE_NORM, weight, NULL, x);
    return mp_module_end(rt, &call, gemma_norm(rt, x, weight));
}

/* emb.cos() * attention_scaling, in the type of the hidden states */
static struct mp_tensor *scaled_table(struct mp_runtime *rt, const char *function, struct mp_tensor *angles)
{
    struct mp_tensor *table = mp_pointwise(rt, MP_TENSORS(angles));
    mp_record_copy(rt, function, angles, table);
    return mp_mul_number(rt, table, 1);
}

void mp_rotary_tables(struct mp_runtime *rt, struct mp_tensor *frequencies, struct mp_tensor *position_ids, enum mp_dtype dtype,
                      struct mp_tensor **cosine, struct mp_tensor **sine)
{
    struct mp_tensor *positions = NULL, *freqs = NULL, *angles = NULL, *cos = NULL, *sin = NULL;
    const bool autocast = rt->autocast, grad_enabled = rt->grad_enabled;
    const int64_t batch = mp_dim(position_ids, 0), half = mp_dim(frequencies, 0);
    const int64_t stride[MP_MAX_DIMS] = {0, 1, 1};
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &position_ids);
    mp_container_begin(rt);
    rt->autocast = rt->grad_enabled = false;
    mp_let(&f, &positions, mp_to(rt, mp_unsqueeze(rt, position_ids, 1), MP_F32));
    struct mp_tensor *column = mp_alias(rt, frequencies, MP_SHAPE(batch, half, 1), stride, frequencies);
    mp_let(&f, &freqs, mp_transpose(rt, mp_matmul(rt, column, positions), 1, 2));
    mp_let(&f, &angles, mp_cat(rt, 2, (struct mp_tensor *[]){freqs, freqs}, -1));
    mp_let(&f, &cos, scaled_table(rt, "cos", angles));
    mp_let(&f, &sin, scaled_table(rt, "sin", angles));
    rt->autocast = autocast;
    rt->grad_enabled = grad_enabled;
    mp_give(&f, cosine, mp_to(rt, cos, dtype));
    mp_give(&f, sine, mp_to(rt, sin, dtype));
    mp_leave(&f, NULL);
}

/* cat((-x2, x1)) */
static struct mp_tensor *rotate_half(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_tensor *first = NULL, *second = NULL;
    const int64_t dim = mp_dim(x, -1);
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &x);
    mp_let(&f, &first, mp_slice(rt, x, -1, 0, dim / 2));
    mp_let(&f, &second, mp_slice(rt, x, -1, dim / 2, dim));
    struct mp_tensor *negative = mp_neg(rt, second);
    return mp_leave(&f, mp_cat(rt, 2, (struct mp_tensor *[]){negative, first}, -1));
}

static struct mp_tensor *rotate(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *cosine, struct mp_tensor *sine)
{
    struct mp_tensor *straight = mp_mul(rt, x, cosine);
    struct mp_tensor *turned = mp_mul(rt, rotate_half(rt, x), sine);
    return mp_add(rt, straight, turned);
}

void mp_rotary_apply(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k, struct mp_tensor *cosine, struct mp_tensor *sine,
                     struct mp_tensor **q_out, struct mp_tensor **k_out)
{
    struct mp_tensor *q_embed = NULL, *k_embed = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &q, &k, &cosine, &sine);
    mp_let(&f, &cosine, mp_unsqueeze(rt, cosine, 1));
    mp_let(&f, &sine, mp_unsqueeze(rt, sine, 1));
    mp_let(&f, &q_embed, rotate(rt, q, cosine, sine));
    mp_let(&f, &k_embed, rotate(rt, k, cosine, sine));
    mp_give(&f, q_out, q_embed);
    mp_give(&f, k_out, k_embed);
    mp_leave(&f, NULL);
}

/* The first dim elements of each head turned, joined with the rest. */
static struct mp_tensor *turn(struct mp_runtime *rt, struct mp_tensor *turned, struct mp_tensor *rest, struct mp_tensor *cosine,
                              struct mp_tensor *sine)
{
    struct mp_tensor *parts[2] = {rotate(rt, turned, cosine, sine), rest};
    return mp_cat(rt, 2, parts, -1);
}

void mp_rotary_apply_partial(struct mp_runtime *rt, struct mp_tensor *q, struct mp_tensor *k, struct mp_tensor *cosine,
                             struct mp_tensor *sine, int64_t dim, enum mp_rotary_order order, struct mp_tensor **q_out,
                             struct mp_tensor **k_out)
{
    struct mp_tensor *q_turned = NULL, *q_rest = NULL, *k_turned = NULL, *k_rest = NULL, *q_embed = NULL, *k_embed = NULL;
    const int64_t whole = mp_dim(q, -1);
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &q, &k, &cosine, &sine);
    mp_let(&f, &cosine, mp_unsqueeze(rt, cosine, 1));
    mp_let(&f, &sine, mp_unsqueeze(rt, sine, 1));
    mp_let(&f, &q_turned, mp_slice(rt, q, -1, 0, dim));
    mp_let(&f, &q_rest, mp_slice(rt, q, -1, dim, whole));
    mp_let(&f, &k_turned, mp_slice(rt, k, -1, 0, dim));
    mp_let(&f, &k_rest, mp_slice(rt, k, -1, dim, whole));
    if (order == MP_ROTARY_Q_THEN_K) {
        mp_let(&f, &q_embed, turn(rt, q_turned, q_rest, cosine, sine));
        mp_let(&f, &k_embed, turn(rt, k_turned, k_rest, cosine, sine));
    } else {
        mp_let(&f, &q_embed, rotate(rt, q_turned, cosine, sine));
        mp_let(&f, &k_embed, rotate(rt, k_turned, cosine, sine));
        mp_let(&f, &q_embed, mp_cat(rt, 2, (struct mp_tensor *[]){q_embed, q_rest}, -1));
        mp_let(&f, &k_embed, mp_cat(rt, 2, (struct mp_tensor *[]){k_embed, k_rest}, -1));
    }
    mp_give(&f, q_out, q_embed);
    mp_give(&f, k_out, k_embed);
    mp_leave(&f, NULL);
}
