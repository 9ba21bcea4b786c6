/* SPDX-License-Identifier: MIT */
/* bitsandbytes.nn.Linear4bit 0.50: quantisation, forward, backward, and when its fused kernel runs.
 */
#include "arch/nf4.h"

#include "arch/lora.h"

enum { BLOCK = 64, NESTED_BLOCK = 256, LEVELS = 16, MAP = 256 };

struct mp_quantized {
    int64_t out, in, n_maxima;
    enum mp_dtype dtype, compute; /* of the weights before, and of the product */
    struct mp_tensor *maxima;     /* a byte per 64 weights */
    struct mp_tensor *offset;     /* their mean */
    struct mp_tensor *nested;     /* a float32 per 256 maxima */
    struct mp_tensor *levels, *map;
};

bool mp_nf4_wanted(const struct mp_net *net)
{
    return net->run->quantization == MP_QUANTIZATION_NF4;
}

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static struct mp_tensor *numbers(struct mp_runtime *rt, int64_t n, enum mp_dtype dtype)
{
    return mp_empty(rt, MP_SHAPE(n), dtype);
}

/* ---- quantisation ---- */

/* get_4bit_type(): 16 levels, divided by the largest */
static struct mp_tensor *make_levels(struct mp_runtime *rt)
{
    struct mp_tensor *const levels = mp_take(rt, numbers(rt, LEVELS, MP_F32));
    struct mp_tensor *const absolute = numbers(rt, LEVELS, MP_F32), *const largest = mp_empty(
                                                                        rt, MP_SCALAR, MP_F32);
    mp_discard(rt, absolute);
    mp_discard(rt, largest);
    return levels;
}

/* quantize_blockwise(maxima - mean, blocksize=256): its map of 256 values is made once and copied
 * for each weight */
static void quantize_maxima(struct mp_runtime *rt, struct mp_net *net, struct mp_quantized *q,
                            struct mp_tensor *maxima)
{
    q->offset = mp_take(rt, mp_reduce(rt, maxima, 1u, false));
    struct mp_tensor *const centred = numbers(rt, q->n_maxima, MP_F32);
    if (!net->quantization_map)
        net->quantization_map = mp_take(rt, numbers(rt, MAP, MP_F32));
    q->nested = mp_take(rt, numbers(rt, ceil_div(q->n_maxima, NESTED_BLOCK), MP_F32));
    q->maxima = mp_take(rt, numbers(rt, q->n_maxima, MP_U8));
    q->map = mp_take(rt, numbers(rt, MAP, MP_F32));
    mp_discard(rt, centred);
}

/* Params4bit._quantize() */
static struct mp_tensor *quantize(struct mp_runtime *rt, struct mp_net *net, struct mp_quantized *q)
{
    rt->category = MP_CATEGORY_TEMPORARY;
    struct mp_tensor *const weight = mp_empty(rt, MP_SHAPE(q->out, q->in), q->dtype);
    struct mp_tensor *const maxima = numbers(rt, q->n_maxima, MP_F32);
    rt->category = MP_CATEGORY_PARAMETER;
    struct mp_tensor *const packed =
        mp_take(rt, mp_empty(rt, MP_SHAPE(ceil_div(q->out * q->in, 2), 1), MP_U8));
    mp_checks_indices(rt);
    q->levels = make_levels(rt);
    quantize_maxima(rt, net, q, maxima);
    rt->category = MP_CATEGORY_TEMPORARY;
    mp_discard(rt, maxima);
    mp_discard(rt, weight);
    return packed;
}

enum mp_dtype mp_nf4_compute_dtype(const struct mp_run *run)
{
    switch (run->precision) {
    case MP_PRECISION_FP32: return MP_F32;
    case MP_PRECISION_FP16:
    case MP_PRECISION_AMP_FP16: return MP_F16;
    case MP_PRECISION_BF16:
    case MP_PRECISION_AMP_BF16: break;
    }
    return MP_BF16;
}

struct mp_linear_layer mp_nf4_linear_new(struct mp_runtime *rt, struct mp_net *net,
                                         const char *name, int64_t out, int64_t in, bool bias)
{
    struct mp_quantized *const q = mp_runtime_alloc(rt, sizeof *q);
    *q = (struct mp_quantized){.out = out,
                               .in = in,
                               .n_maxima = ceil_div(out * in, BLOCK),
                               .dtype = net->dtype,
                               .compute = mp_nf4_compute_dtype(net->run)};
    struct mp_linear_layer layer = {.quantized = q, .out = out, .in = in};
    layer.weight = quantize(rt, net, q);
    layer.weight->name = name;
    mp_parameter_insert(rt, net, net->n_parameters, layer.weight);
    if (bias)
        layer.bias = mp_parameter(rt, net, name, MP_SHAPE(out));
    layer.adapter = mp_lora_adapter(rt, net, name, &layer);
    return layer;
}

/* ---- the fused kernel (backends/cuda/ops.py, _gemm_4bit_use_custom_cuda) ---- */

#define FLOOR 4 /* so few rows it takes always */

struct gemm {
    int64_t n, k, blocks, sms;
    int capability;
    bool is_hbm, is_tall;
};

/* Weights of less than 4 Mi elements. */
static int64_t rows_of_small(const struct gemm *g)
{
    const bool quarter = g->blocks * 4 <= g->sms;
    if (g->k * 2 < g->n) {
        if (g->is_hbm && g->blocks * 3 < g->sms)
            return g->capability == 80 ? 1536 : 512;
        if (g->is_hbm)
            return g->capability == 80 ? 512 : 320;
        if (g->capability == 75)
            return g->blocks >= g->sms * 3 ? 320 : g->k >= 1024 ? 64 : g->k >= 704 ? 96 : 320;
        return g->blocks < g->sms && g->blocks * g->k > g->sms * 320 ? 192 : 320;
    }
    if (g->capability == 80 && quarter)
        return g->k < g->n ? 384 : g->blocks * 8 <= g->sms ? 32 : 128;
    if (g->capability == 75 && g->blocks < g->sms)
        return 64;
    if (quarter)
        return g->k < g->n || g->is_hbm ? 32 : 23;
    return g->blocks * 2 <= g->sms ? 16 : FLOOR;
}

static int64_t rows_sm80(const struct gemm *g)
{
    if (g->blocks >= g->sms * 3)
        return 128;
    if (g->blocks >= g->sms)
        return g->k < g->n ? 64 : 32;
    if (g->k >= g->n * 3 && g->blocks * 4 > g->sms)
        return FLOOR;
    if (g->k == g->n && g->blocks >= 48 && g->blocks * 5 < g->sms * 3)
        return FLOOR;
    if (g->blocks * 2 < g->sms && g->k <= g->n)
        return 128;
    if (g->blocks * 2 < g->sms && g->blocks * 3 >= g->sms)
        return FLOOR;
    return g->blocks >= g->sms / 2 && g->k < g->n ? 128 : 16;
}

static int64_t rows_sm90(const struct gemm *g)
{
    if (g->blocks >= g->sms * 3)
        return 64;
    if (g->blocks >= g->sms * 2)
        return 48;
    if (g->blocks >= g->sms)
        return 32;
    if (g->blocks < g->sms / 2 || (g->k >= g->n && g->blocks * 4 < g->sms * 3))
        return FLOOR;
    return 16;
}

static int64_t rows_sm120(const struct gemm *g)
{
    if (g->blocks >= g->sms * 3)
        return 256;
    if (g->blocks >= g->sms * 2)
        return 128;
    if (g->blocks * 5 >= g->sms * 4)
        return g->k >= g->n ? 96 : 64;
    if (g->blocks >= g->sms / 2)
        return g->k * 2 >= g->n && g->blocks >= 128 ? 64 : 8;
    return g->is_tall && g->blocks > 64 ? 16 : 8;
}

/* 8.9, and whatever has no rules of its own */
static int64_t rows_sm89(const struct gemm *g)
{
    if (g->blocks >= g->sms * 3)
        return 256;
    if (g->blocks >= g->sms * 2)
        return 128;
    if (g->blocks * 5 >= g->sms * 4) {
        if (g->is_tall || g->blocks >= 200)
            return 128;
        return g->k < g->n ? 64 : g->sms >= 60 ? 128 : 32;
    }
    if (g->blocks >= g->sms / 2)
        return g->is_tall ? 64 : g->blocks >= 64 ? 8 : 32;
    if (g->k > g->n && g->blocks <= 48)
        return g->k >= g->n * 3 ? 12 : 10;
    return g->is_tall || g->blocks < 48 ? 16 : 8;
}

static int64_t rows_of_large(const struct gemm *g)
{
    switch (g->capability) {
    case 75:
        if (g->blocks >= g->sms * 3)
            return g->k < g->n ? 128 : 64;
        return g->blocks >= g->sms / 2 ? 64 : 32;
    case 80: return rows_sm80(g);
    case 86: return g->blocks >= g->sms ? 128 : g->blocks >= g->sms / 2 ? 64 : 16;
    case 90: return rows_sm90(g);
    case 120: return rows_sm120(g);
    default: return g->capability == 121 && g->blocks >= g->sms ? 256 : rows_sm89(g);
    }
}

int64_t mp_nf4_fused_rows(const struct mp_gpu *gpu, enum mp_dtype dtype, int64_t out, int64_t in)
{
    const int major = gpu->compute_capability / 10;
    struct gemm g = {
        out,   in,          ceil_div(out, 64), (int64_t)gpu->sms, gpu->compute_capability,
        false, in > out * 2};
    if (major == 9)
        g.capability = 90;
    g.is_hbm = g.capability == 80 || g.capability == 90;
    if (in % BLOCK != 0)
        return 0;
    if (dtype == MP_F32 || major < 7 || (major == 7 && (g.capability < 75 || dtype != MP_F16)))
        return 7;
    if (g.capability == 87 || major == 11)
        return FLOOR;
    if (major == 10)
        return g.blocks >= g.sms * 3 ? 32 : g.blocks >= g.sms && in < out ? 8 : FLOOR;
    return out * in < INT64_C(4) * 1024 * 1024 ? rows_of_small(&g) : rows_of_large(&g);
}

static struct mp_card_answer fused_rows(const struct mp_gpu *gpu, const int64_t *args)
{
    return (struct mp_card_answer){.choice = mp_nf4_fused_rows(gpu, (enum mp_dtype)args[0], args[1], args[2])};
}

/* ---- MatMul4Bit ---- */

/* dequantize_4bit() in the weights' own type, cast to the gradient's */
static void matmul_4bit_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                                 struct mp_tensor **out)
{
    const enum mp_dtype dtype = (enum mp_dtype)n->dtype;
    if (!mp_needs_input(n, 0))
        return;
    struct mp_tensor *const maxima = numbers(rt, n->arg[0], MP_F32);
    struct mp_tensor *const dequantised = mp_empty(rt, n->shape2, dtype);
    mp_discard(rt, maxima);
    struct mp_tensor *const weight = mp_keep(mp_to(rt, dequantised, (enum mp_dtype)g[0]->dtype));
    struct mp_tensor *const rows = mp_reshape(rt, g[0], MP_SHAPE(-1, n->shape2.d[0]));
    out[0] = mp_unsafe_view(rt, mp_mm(rt, rows, weight), n->shape);
}
static const struct mp_node_type matmul_4bit_type = {"MatMul4BitBackward", matmul_4bit_backward};

/* _dequant_linear_fallback(): maxima, maxima plus their mean, weights */
static struct mp_tensor *dequantise_and_multiply(struct mp_runtime *rt, struct mp_tensor *x,
                                                 const struct mp_quantized *q,
                                                 struct mp_tensor *bias)
{
    mp_keep(numbers(rt, q->n_maxima, MP_F32));
    mp_keep(numbers(rt, q->n_maxima, MP_F32));
    struct mp_tensor *const weight =
        mp_keep(mp_empty(rt, MP_SHAPE(q->out, q->in), (enum mp_dtype)x->dtype));
    return mp_linear(rt, x, weight, bias);
}

static struct mp_tensor *matmul_4bit(struct mp_runtime *rt, struct mp_tensor *x,
                                     const struct mp_quantized *q, struct mp_tensor *bias)
{
    struct mp_scope scope = mp_begin(rt, "matmul_4bit", MP_TENSORS(x, bias));
    struct mp_node *const n = mp_node_new(rt, &matmul_4bit_type, MP_TENSORS(x, bias));
    const bool grad_enabled = rt->grad_enabled;
    struct mp_shape shape = x->shape;
    const int64_t rows = mp_numel(x) / q->in;
    if (n) {
        n->shape = x->shape;
        n->shape2 = MP_SHAPE(q->out, q->in);
        n->dtype = (uint8_t)q->dtype;
        n->arg[0] = q->n_maxima;
    }
    shape.d[shape.n - 1] = q->out;
    rt->grad_enabled = false;
    struct mp_tensor *const out =
        rows <= mp_ask(rt, fused_rows, x->dtype, q->out, q->in).choice
            ? mp_empty(rt, shape, (enum mp_dtype)x->dtype)
            : dequantise_and_multiply(rt, x, q, bias);
    rt->grad_enabled = grad_enabled;
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* bias.data = bias.data.to(x.dtype), at the first call */
static void cast_bias(struct mp_runtime *rt, struct mp_tensor *bias, enum mp_dtype dtype)
{
    if (!bias || bias->dtype == (uint8_t)dtype)
        return;
    rt->category = MP_CATEGORY_PARAMETER;
    struct mp_tensor *const cast = mp_take(rt, mp_empty_like(rt, bias, dtype));
    rt->category = MP_CATEGORY_TEMPORARY;
    struct mp_storage *const old = bias->storage;
    bias->storage = cast->storage;
    bias->dtype = (uint8_t)dtype;
    cast->storage = old;
    mp_tensor_unref(rt, cast);
}

struct mp_tensor *mp_nf4_apply(struct mp_runtime *rt, struct mp_tensor *x,
                               const struct mp_linear_layer *layer)
{
    const struct mp_quantized *const q = layer->quantized;
    const enum mp_dtype dtype = (enum mp_dtype)x->dtype;
    struct mp_frame f;
    MP_MODULE(rt, &f, &x);
    mp_let(&f, &x, mp_to(rt, x, q->compute));
    cast_bias(rt, layer->bias, q->compute);
    return mp_leave(&f, mp_to(rt, matmul_4bit(rt, x, q, layer->bias), dtype));
}
