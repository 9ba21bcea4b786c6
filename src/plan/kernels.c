/* SPDX-License-Identifier: MIT */
/*
 * Times of single operations, from microbenchmarks.
 *
 * Numbers beside a constant are what was measured: TFLOP/s or TB/s on an H200 (data sheet: 989 TFLOP/s bf16, 67 fp32, 495 tf32,
 * 4.8 TB/s). No constant comes from a training step.
 */
#include "plan/kernels.h"

#include <math.h>

/* ---- matrix products ---- */

#define HALF_SHARE      0.735 /* 727: sizes that are multiples of 8 elements */
#define EVEN_HALF_SHARE 0.26  /* 255: multiples of 2, such as 30522 */
#define ODD_FORWARD     0.095 /* 95: the result is odd, such as 50257 */
#define ODD_BACKWARD    0.145 /* 140 */
#define FP32_SHARE      0.765 /* 51 */
#define TF32_FORWARD    0.72  /* 355 */
#define TF32_BACKWARD   0.50  /* 320 and 200: the gradient of the weight reads both factors across */
#define TF32_ODD        0.24  /* 120 */
#define PRODUCT_BANDWIDTH 0.75 /* of what copies reach */
#define HALF_START_S    2.5e-6
#define FP32_START_S    12e-6

/* ---- attention ---- */

#define ATTENTION_64_SHARE   0.404 /* 400: heads of up to 64, larger ones are padded to the next size */
#define ATTENTION_128_SHARE  0.566 /* 560 */
#define BACKWARD_64_SHARE    0.404 /* 400 */
#define BACKWARD_128_SHARE   0.556 /* 550 */
#define ATTENTION_START_S    10e-6
#define BACKWARD_START_S     40e-6
#define BACKWARD_PASSES      12    /* 6.4 us for a million elements of q: converting and summing up beside the products */
#define DROPOUT_FORWARD      2.2
#define DROPOUT_BACKWARD     1.18
#define FP32_ATTENTION_64    0.40  /* 27 */
#define FP32_ATTENTION_128   0.50  /* 36 and 31 */
enum { ATTENTION_TILE = 128 };     /* a causal mask leaves out whole tiles */

/* ---- the rest ---- */

#define MEMORY_SHARE  0.86   /* 4.13: copies, additions, activations of one type */
#define ELEMENT_RATIO 5.0e-3 /* 0.335 T elements/s, for 67 TFLOP/s of fp32: broadcasts, transposes, slices */
#define HOST_SHARE    0.87   /* 55 GB/s to and from pinned memory, of 63 */
#define LINK_SHARE    0.8    /* not measured */
#define START_S       1.3e-6
#define TRANSFER_START_S 6e-6

struct kind {
    const char *op;
    double bandwidth, elements; /* of memory_bytes and elements; 0: does not limit */
    double passes;              /* over all tensors of the record; 1: each is read or written once */
    double start_s;
};

/* What is not listed reads and writes its tensors once. */
static const struct kind kinds[] = {
    {"NativeLayerNormBackward0", 0.41, 0, 1, 10e-6}, /* 1.7 */
    {"PowBackward0", 1, 0, 7.0 / 3, 4e-6},           /* pow, times exponent, times gradient */
    {"NativeDropoutBackward0", 1, 0, 1, START_S},
    {"SplitBackward0", 1, 0, 1, START_S},
    {"SliceBackward0", 1, 1.3, 1, 2.6e-6},           /* zeros, then a copy */
    {"LogSoftmaxBackward0", 0.69, 0, 1, START_S},    /* 2.85 */
    {"SoftmaxBackward0", 0.53, 0, 1, START_S},       /* 2.2 */
    {"layer_norm", 0.5, 0, 1, 3e-6},                 /* 2.1 */
    {"dropout", 1, 1.4, 1, START_S},                 /* 0.5 T elements/s */
    {"log_softmax", 0.53, 0, 1, START_S},            /* 2.15 */
    {"softmax", 0.6, 0.9, 1, 6e-6},
    {"cat", 1, 0.72, 1, 2e-6},                       /* 0.24 T elements/s */
    {"clone", 1, 1.1, 1, START_S},
    {"sum", 0.65, 0, 1, 9e-6},                       /* 2.7 */
    {"mean", 0.85, 0, 1, 3e-6},
};

enum memplan_status mp_rates_read(const struct mp_gpu *gpu, struct mp_rates *rates, struct memplan_error *err)
{
    const double half = MP_MAX(mp_gpu_rate(gpu, "flops_per_s.bf16"), mp_gpu_rate(gpu, "flops_per_s.fp16"));
    const double fp32 = mp_gpu_rate(gpu, "flops_per_s.fp32"), tf32 = mp_gpu_rate(gpu, "flops_per_s.tf32");
    const double memory = mp_gpu_rate(gpu, "memory_bytes_per_s"), host = mp_gpu_rate(gpu, "host_bytes_per_s");
    const double nvlink = mp_gpu_rate(gpu, "nvlink_bytes_per_s");
    if (!(fp32 > 0) || !(memory > 0))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: rates: missing; give flops_per_s.fp32 and memory_bytes_per_s for step times",
                            gpu->source);
    *rates = (struct mp_rates){
        .half_flops = half > 0 ? half : fp32,
        .fp32_flops = fp32,
        .tf32_flops = tf32 > 0 ? tf32 : fp32,
        .memory_bytes = MEMORY_SHARE * memory,
        .elements = ELEMENT_RATIO * fp32,
        .host_bytes = HOST_SHARE * (host > 0 ? host : 16e9),
    };
    rates->link_bytes = nvlink > 0 ? LINK_SHARE * nvlink : rates->host_bytes;
    rates->network_bytes = MP_MIN(rates->link_bytes, rates->host_bytes); /* a network card of PCIe's speed for each GPU */
    return MEMPLAN_STATUS_OK;
}

/* ---- tensors of a record ---- */

static double n_elements(const struct mp_op_tensor *t)
{
    double n = t->present;
    for (int i = 0; i < t->shape.n; i++)
        n *= (double)t->shape.d[i];
    return n;
}

static double size(const struct mp_op_tensor *t) { return n_elements(t) * (double)mp_dtype_bytes(t->dtype); }

static int64_t last(const struct mp_op_tensor *t) { return t->shape.n > 0 ? t->shape.d[t->shape.n - 1] : 1; }

static double moved(const struct mp_op_tensor *tensors, const struct mp_op_record *op)
{
    double bytes = 0;
    for (uint32_t i = 0; i < op->n_inputs + op->n_outputs; i++)
        bytes += size(&tensors[i]);
    return bytes;
}

static double most_elements(const struct mp_op_tensor *tensors, const struct mp_op_record *op)
{
    double most = 0;
    for (uint32_t i = 0; i < op->n_inputs + op->n_outputs; i++)
        most = MP_MAX(most, n_elements(&tensors[i]));
    return most;
}

static bool attribute_is(const struct mp_program *p, const struct mp_op_record *op, const char *key, bool fallback)
{
    for (uint32_t i = 0; i < op->n_attributes; i++) {
        const struct mp_attribute *const at = &p->op_attributes[op->first_attribute + i];
        if (strcmp(at->key, key) == 0)
            return at->kind == MP_ATTRIBUTE_NUMBER ? at->as.number > 0 : at->as.integer != 0;
    }
    return fallback;
}

/* ---- matrix products ---- */

/* Of b products (m x k)(k x n), the operands have b m k and b k n elements, the result b m n: any two are told by the third. */
static double product_flops(const struct mp_op_tensor *x, const struct mp_op_tensor *y, const struct mp_op_tensor *z)
{
    double batch = 1;
    for (int i = 0; i + 2 < z->shape.n; i++)
        batch *= (double)z->shape.d[i];
    return 2 * sqrt(n_elements(x) * n_elements(y) * n_elements(z) / MP_MAX(batch, 1));
}

/* Rows lie in memory one after the other: their lengths decide how wide a load may be. */
static int64_t alignment(const struct mp_op_tensor *in, uint32_t n)
{
    int64_t common = 8;
    for (uint32_t i = 0; i < n; i++)
        while (in[i].present && last(&in[i]) > 1 && last(&in[i]) % common != 0)
            common /= 2;
    return common;
}

static double product_rate(const struct mp_rates *rates, const struct mp_run *run, enum mp_dtype dtype, int64_t aligned, bool backward)
{
    if (mp_dtype_is_half(dtype)) {
        const double odd = backward ? ODD_BACKWARD : ODD_FORWARD;
        return rates->half_flops * (aligned == 8 ? HALF_SHARE : aligned > 1 ? EVEN_HALF_SHARE : odd);
    }
    if (!run->tf32)
        return FP32_SHARE * rates->fp32_flops;
    return rates->tf32_flops * (aligned < 4 ? TF32_ODD : backward ? TF32_BACKWARD : TF32_FORWARD);
}

/* x, y, z: the matrices of a product, in any order. */
static double product_s(const struct mp_rates *rates, const struct mp_run *run, const struct mp_op_tensor *x, const struct mp_op_tensor *y,
                        const struct mp_op_tensor *z, int64_t aligned, bool backward)
{
    const double flops_s = product_flops(x, y, z) / product_rate(rates, run, x->dtype, aligned, backward);
    const double bytes_s = (size(x) + size(y) + size(z)) / (PRODUCT_BANDWIDTH * rates->memory_bytes);
    return MP_MAX(flops_s, bytes_s) + (mp_dtype_is_half(x->dtype) ? HALF_START_S : FP32_START_S);
}

/* 0: the operation is no product. */
static double products_s(const struct mp_rates *rates, const struct mp_run *run,
                         const struct mp_op_tensor *in, const struct mp_op_record *op)
{
    const struct mp_op_tensor *const out = in + op->n_inputs;
    if (strcmp(op->op, "mm") == 0 || strcmp(op->op, "bmm") == 0)
        return product_s(rates, run, &in[0], &in[1], &out[0], alignment(in, 2), false);
    if ((strcmp(op->op, "addmm") == 0 || strcmp(op->op, "baddbmm") == 0) && op->n_inputs >= 3)
        return product_s(rates, run, &in[1], &in[2], &out[0], alignment(in + 1, 2), false);
    if (strcmp(op->op, "MmBackward0") != 0 && strcmp(op->op, "AddmmBackward0") != 0 && strcmp(op->op, "BmmBackward0") != 0 &&
        strcmp(op->op, "BaddbmmBackward0") != 0)
        return 0;
    double seconds = 0;
    for (uint32_t i = 0; i < op->n_outputs && op->n_inputs >= 3; i++)
        if (out[i].present && out[i].shape.n >= 2)
            seconds += product_s(rates, run, &in[0], &in[1], &in[2], alignment(in, 3), true);
    return seconds;
}

/* ---- attention ---- */

/* Two products forward, five backward; a causal mask leaves half and the tiles on the diagonal. 0: the operation is none. */
static double attention_s(const struct mp_rates *rates, const struct mp_program *p, const struct mp_op_tensor *in,
                          const struct mp_op_record *op)
{
    const bool backward = strncmp(op->op, "ScaledDotProduct", 16) == 0;
    if ((!backward && strcmp(op->op, "attention") != 0) || op->n_inputs < 3)
        return 0;
    const struct mp_op_tensor *const q = &in[backward ? 1 : 0], *const k = q + 1;
    if (q->shape.n != 4 || k->shape.n != 4)
        return 0;
    const double seq = (double)k->shape.d[2], dim = (double)last(q), padded = dim <= 64 ? 64 : ceil(dim / 128) * 128;
    const bool small = dim <= 64, half = mp_dtype_is_half(q->dtype);
    const double computed = attribute_is(p, op, "causal", true) ? MP_MIN(0.5 + 0.5 * ATTENTION_TILE / seq, 1) : 1;
    const double flops = 2 * n_elements(q) / dim * padded * seq * (backward ? 5 : 2) * computed;
    if (!half)
        return flops / (rates->fp32_flops * (small ? FP32_ATTENTION_64 : FP32_ATTENTION_128)) + ATTENTION_START_S;
    const bool dropout = attribute_is(p, op, "p", false);
    if (!backward)
        return (flops / (rates->half_flops * (small ? ATTENTION_64_SHARE : ATTENTION_128_SHARE)) + ATTENTION_START_S) *
               (dropout ? DROPOUT_FORWARD : 1);
    return (flops / (rates->half_flops * (small ? BACKWARD_64_SHARE : BACKWARD_128_SHARE)) +
            BACKWARD_PASSES * size(q) / rates->memory_bytes + BACKWARD_START_S) *
           (dropout ? DROPOUT_BACKWARD : 1);
}

/* ---- the rest ---- */

static bool same_shape(const struct mp_op_tensor *a, const struct mp_op_tensor *b)
{
    if (a->shape.n != b->shape.n)
        return false;
    for (int i = 0; i < a->shape.n; i++)
        if (a->shape.d[i] != b->shape.d[i])
            return false;
    return true;
}

static bool is_float(const struct mp_op_tensor *t) { return mp_dtype_is_half(t->dtype) || t->dtype == MP_F32; }

/* Element-wise kernels read several elements at once where all are of one shape and type, or where a type only shrinks. */
static double shape_elements(const struct mp_op_tensor *tensors, const struct mp_op_record *op)
{
    const uint32_t n = op->n_inputs + op->n_outputs;
    bool broadcast = false, mixed = false;
    for (uint32_t i = 0; i < n; i++) {
        if (!tensors[i].present || n_elements(&tensors[i]) <= 1)
            continue;
        broadcast |= !same_shape(&tensors[i], &tensors[n - 1]);
        mixed |= is_float(&tensors[i]) && tensors[i].dtype != tensors[n - 1].dtype;
    }
    if (n == 2 && mixed) /* a cast */
        return mp_dtype_bytes(tensors[0].dtype) > mp_dtype_bytes(tensors[1].dtype) ? 0 : 1.1;
    return mixed ? 0.75 : broadcast ? 1 : 0;
}

/* The gradient times the other factor, for each factor that wants one; saved factors follow the gradient. */
static double mul_backward_s(const struct mp_rates *rates, const struct mp_op_tensor *in, const struct mp_op_record *op)
{
    const struct mp_op_tensor *const out = in + op->n_inputs;
    double seconds = 0;
    for (uint32_t i = 0; i < op->n_outputs; i++) {
        const struct mp_op_tensor *const factor = i + 1 < op->n_inputs && in[i + 1].present ? &in[i + 1] : &in[0];
        if (!out[i].present)
            continue;
        const double bytes_s = (2 * size(&in[0]) + (factor == &in[0] ? 0 : size(factor))) / rates->memory_bytes;
        const bool plain = same_shape(factor, &in[0]) && factor->dtype == in[0].dtype;
        seconds += MP_MAX(bytes_s, plain ? 0 : n_elements(&in[0]) / rates->elements) + START_S;
    }
    return seconds;
}

/* The sorted indices and the table of zeros beside what is added up. */
static double embedding_backward_s(const struct mp_rates *rates, const struct mp_op_tensor *in, const struct mp_op_record *op)
{
    return 80e-6 + size(&in[op->n_inputs]) / rates->memory_bytes + 15 * size(&in[0]) / rates->memory_bytes;
}

/* Operations whose tensors say little about what they read. -1: the operation is none of them. */
static double special_s(const struct mp_rates *rates, const struct mp_op_tensor *in, const struct mp_op_record *op)
{
    const double result_s = op->n_outputs > 0 ? size(&in[op->n_inputs]) / rates->memory_bytes : 0;
    if (strcmp(op->op, "to_host") == 0 || strcmp(op->op, "to_device") == 0)
        return moved(in, op) / rates->host_bytes + TRANSFER_START_S;
    if (strcmp(op->op, "MulBackward0") == 0)
        return mul_backward_s(rates, in, op);
    if (strcmp(op->op, "EmbeddingBackward0") == 0)
        return embedding_backward_s(rates, in, op);
    if (strcmp(op->op, "NllLossBackward0") == 0) /* zeros */
        return result_s + START_S;
    if (strcmp(op->op, "embedding") == 0) /* rows of the table */
        return 2 * result_s + START_S;
    if (strcmp(op->op, "nll_loss") == 0) /* one number a row */
        return 5e-6;
    return -1;
}

bool mp_is_free(const char *op)
{
    return strcmp(op, "parameter") == 0 || strcmp(op, "input") == 0 || strcmp(op, "split") == 0;
}

double mp_device_seconds(const struct mp_rates *rates, const struct mp_run *run, const struct mp_program *p, const struct mp_op_record *op)
{
    const struct mp_op_tensor *const in = &p->op_tensors[op->first_tensor];
    if (mp_is_free(op->op))
        return 0;
    const double flops_s = MP_MAX(products_s(rates, run, in, op), attention_s(rates, p, in, op));
    if (flops_s > 0)
        return flops_s;
    const double special = special_s(rates, in, op);
    if (special >= 0)
        return special;
    struct kind kind = {op->op, 1, shape_elements(in, op), 1, START_S};
    for (size_t i = 0; i < MP_ARRAY_LEN(kinds); i++)
        if (strcmp(kinds[i].op, op->op) == 0)
            kind = kinds[i];
    const double elements_s = kind.elements > 0 ? most_elements(in, op) / (kind.elements * rates->elements) : 0;
    return MP_MAX(kind.passes * moved(in, op) / (kind.bandwidth * rates->memory_bytes), elements_s) + kind.start_s;
}

/* ---- the host ---- */

/*
 * Microseconds of Python, dispatch and launch on the machine with the H200 (h200-steptimes.jsonl, time-host-* and others that the
 * device waits in): a linear layer with its module, other operators, autocast's casts; nodes of backward; hooks of saved tensors.
 */
static const double host_us[2][3] = {{90, 28, 21}, {91, 35, 18}};
#define RECOMPUTED_S 45e-6  /* more for an operator that backward runs again: its saved tensors go through hooks */
#define CALL_S       370e-6 /* torch.utils.checkpoint around a module: generator states, frame, hooks */
#define CALL_AGAIN_S 900e-6 /* and when it runs again */
#define ZERO_S       5e-6   /* a parameter's gradient is let go of */
#define PACK_S       48e-6
#define UNPACK_S     20e-6

/* An operator of the forward pass, in the backward pass: what nodes run there themselves is not among these. */
bool mp_is_recomputed(const char *op)
{
    static const char *const forward[] = {
        "mm",   "addmm", "bmm",  "mul",  "pow",       "rsqrt",      "mean",    "cat",    "neg",
        "silu", "gelu",  "relu", "tanh", "attention", "layer_norm", "dropout", "softmax"};
    for (size_t i = 0; i < MP_ARRAY_LEN(forward); i++)
        if (strcmp(op, forward[i]) == 0)
            return true;
    return false;
}

static bool is_product(const char *op)
{
    static const char *const products[] = {"mm", "addmm", "bmm", "MmBackward0", "AddmmBackward0", "BmmBackward0"};
    for (size_t i = 0; i < MP_ARRAY_LEN(products); i++)
        if (strcmp(op, products[i]) == 0)
            return true;
    return false;
}

double mp_checkpoint_seconds(const struct mp_run *run, int layer, bool again)
{
    int calls = run->checkpoint == MP_CHECKPOINT_FULL || run->checkpoint == MP_CHECKPOINT_FULL_REENTRANT ||
                mp_layer_set_has(&run->checkpoint_layers, layer);
    for (int part = 0; part < MP_PARTS; part++)
        calls += mp_layer_set_has(&run->recompute[part], layer);
    return calls * (again ? CALL_AGAIN_S : CALL_S);
}

double mp_host_seconds(const struct mp_run *run, const struct mp_op_record *op, bool backward)
{
    if (mp_is_free(op->op))
        return 0;
    if (strcmp(op->op, "to_host") == 0)
        return PACK_S;
    if (strcmp(op->op, "to_device") == 0)
        return UNPACK_S;
    const bool autocast = run->precision == MP_PRECISION_AMP_BF16 || run->precision == MP_PRECISION_AMP_FP16;
    const bool cast = strcmp(op->op, "to") == 0 || strcmp(op->op, "ToCopyBackward0") == 0;
    return host_us[backward][is_product(op->op) ? 0 : cast && autocast ? 2 : 1] * 1e-6 +
           (backward && mp_is_recomputed(op->op) ? RECOMPUTED_S : 0);
}

/* ---- the optimizer ---- */

/* Per parameter of a matrix's size; h200-rates.jsonl, optimizer. */
struct mp_update_cost mp_update_cost(const struct mp_run *run)
{
    const bool half = run->precision == MP_PRECISION_BF16 || run->precision == MP_PRECISION_FP16;
    switch (run->optimizer) {
    case MP_OPTIMIZER_ADAMW_FUSED: return (struct mp_update_cost){half ? 11 : 8.5, 2.6e-6 + ZERO_S, true};
    case MP_OPTIMIZER_ADAMW_FORLOOP: return (struct mp_update_cost){21.5, 72e-6 + ZERO_S, false};
    case MP_OPTIMIZER_SGD: return (struct mp_update_cost){half ? 3.8 : 3.4, 1.4e-6 + ZERO_S, true};
    case MP_OPTIMIZER_SGD_MOMENTUM: return (struct mp_update_cost){half ? 10.6 : 9, 2.4e-6 + ZERO_S, true};
    case MP_OPTIMIZER_ADAFACTOR: return (struct mp_update_cost){34, 190e-6 + ZERO_S, false};
    case MP_OPTIMIZER_NONE: return (struct mp_update_cost){0, 0, false};
    case MP_OPTIMIZER_ADAMW_8BIT:
    case MP_OPTIMIZER_PAGED_ADAMW_8BIT:
    case MP_OPTIMIZER_LION:
    case MP_OPTIMIZER_MUON:
    case MP_OPTIMIZER_ADAMW_FOREACH: break;
    }
    return (struct mp_update_cost){half ? 28 : 23.3, 8.7e-6 + ZERO_S, true};
}
