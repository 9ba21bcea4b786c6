/* SPDX-License-Identifier: MIT */
/*
 * Kernels that are easy to read rather than fast: one thread per element, or one warp per row, no
 * shared memory, and but for the norm of all gradients no atomics, so that results do not depend on
 * the order of blocks.
 *
 * Built by a host compiler the same loops run with one thread and a warp of one lane: that is how
 * tests without a GPU reach them.
 */
#include "kernels.h"

#include <math.h>
#include <string.h>

#include "device.h"
#include "random.h"

/* ---- which kernels have run ---- */

static struct k_launches tally[64];
static int n_tally;

static void count_launch(const char *name)
{
    int i = 0;
    while (i < n_tally && strcmp(tally[i].kernel, name) != 0)
        i++;
    if (i == n_tally && n_tally < 64)
        tally[n_tally++].kernel = name;
    if (i < n_tally)
        tally[i].n++;
}

int k_launches(const struct k_launches **launches)
{
    *launches = tally;
    return n_tally;
}

/* ---- one thread, one warp ---- */

#ifdef __CUDACC__
#define KERNEL __global__
#define DEVICE __device__ static inline
#define LANES  32
DEVICE int64_t thread_index()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}
DEVICE int64_t thread_count()
{
    return (int64_t)gridDim.x * blockDim.x;
}
DEVICE int lane()
{
    return (int)(threadIdx.x % 32);
}
DEVICE int64_t warp_index()
{
    return thread_index() / 32;
}
DEVICE int64_t warp_count()
{
    return thread_count() / 32;
}
template <typename T> DEVICE T warp_sum(T x)
{
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
DEVICE float warp_max(float x)
{
    for (int step = 16; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}
static int launched(const char *name)
{
    count_launch(name);
    const cudaError_t status = cudaGetLastError();
    return status == cudaSuccess ? 0
                                 : device_fail("kernel %s: %s", name, cudaGetErrorString(status));
}
enum { THREADS = 256, MOST_BLOCKS = 65536 };
static unsigned blocks_for(int64_t n)
{
    const int64_t blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks > MOST_BLOCKS ? (int64_t)MOST_BLOCKS : blocks);
}
#define LAUNCH(kernel, n, ...) (kernel<<<blocks_for(n), THREADS>>>(__VA_ARGS__), launched(#kernel))
#else
#define KERNEL                 static
#define DEVICE                 static inline
#define LANES                  1
DEVICE int64_t thread_index()
{
    return 0;
}
DEVICE int64_t thread_count()
{
    return 1;
}
DEVICE int lane()
{
    return 0;
}
DEVICE int64_t warp_index()
{
    return 0;
}
DEVICE int64_t warp_count()
{
    return 1;
}
template <typename T> DEVICE T warp_sum(T x)
{
    return x;
}
DEVICE float warp_max(float x)
{
    return x;
}
#define LAUNCH(kernel, n, ...) ((void)(n), count_launch(#kernel), kernel(__VA_ARGS__), 0)
#endif
#define LAUNCH_ROWS(kernel, rows, ...) LAUNCH(kernel, (rows)*LANES, __VA_ARGS__)

/* ---- element types ---- */

DEVICE float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
DEVICE uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

DEVICE uint16_t to_bf16(float value)
{
    const uint32_t bits = float_to_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

DEVICE float from_f16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 0x1fu,
                   mantissa = half & 0x3ffu;
    if (exponent == 31)
        return bits_to_float(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) {
        const float tiny = (float)mantissa * (1.0f / 16777216.0f);
        return sign ? -tiny : tiny;
    }
    return bits_to_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Round to nearest, ties to even. */
DEVICE uint16_t to_f16(float value)
{
    const uint32_t bits = float_to_bits(value), sign = bits >> 16 & 0x8000u,
                   magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x47800000u) /* from 65536 on; what rounds up to it is caught below */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) { /* below 2^-14: a multiple of 2^-24 */
        const float scaled = bits_to_float(magnitude) * 16777216.0f;
        return (uint16_t)(sign | (uint32_t)rintf(scaled));
    }
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | ((rounded >> 13) - (112u << 10)));
}

DEVICE float load(const void *data, int dtype, int64_t i)
{
    switch (dtype) {
    case K_F32: return ((const float *)data)[i];
    case K_BF16: return bits_to_float((uint32_t)((const uint16_t *)data)[i] << 16);
    case K_F16: return from_f16(((const uint16_t *)data)[i]);
    case K_I64: return (float)((const int64_t *)data)[i];
    case K_I32: return (float)((const int32_t *)data)[i];
    default: return (float)((const uint8_t *)data)[i];
    }
}

DEVICE int64_t load_integer(const void *data, int dtype, int64_t i)
{
    switch (dtype) {
    case K_I64: return ((const int64_t *)data)[i];
    case K_I32: return ((const int32_t *)data)[i];
    case K_BOOL:
    case K_U8: return ((const uint8_t *)data)[i];
    default: return (int64_t)load(data, dtype, i);
    }
}

DEVICE void store_integer(void *data, int dtype, int64_t i, int64_t value)
{
    switch (dtype) {
    case K_I64: ((int64_t *)data)[i] = value; break;
    case K_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case K_BOOL: ((uint8_t *)data)[i] = value != 0; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value; break;
    }
}

DEVICE void store(void *data, int dtype, int64_t i, float value)
{
    switch (dtype) {
    case K_F32: ((float *)data)[i] = value; break;
    case K_BF16: ((uint16_t *)data)[i] = to_bf16(value); break;
    case K_F16: ((uint16_t *)data)[i] = to_f16(value); break;
    default: store_integer(data, dtype, i, (int64_t)value); break;
    }
}

DEVICE float smallest(int dtype)
{
    return dtype == K_F16    ? -65504.0f
           : dtype == K_BF16 ? -3.3895313892515355e38f
                             : -3.4028234663852886e38f;
}
static bool is_integer(int dtype)
{
    return dtype < K_F16;
}

/* ---- places ---- */

static int64_t numel(const struct k_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++)
        n *= t->shape[i];
    return n;
}

/* An operand with the result's dimensions: stride 0 where it is broadcast. */
static bool broadcast_to(const struct k_tensor *x, const struct k_tensor *out,
                         struct k_tensor *view)
{
    *view = *out;
    view->data = x->data;
    view->dtype = x->dtype;
    for (int i = 0; i < out->n; i++) {
        const int own = i - (out->n - x->n);
        if (own >= 0 && x->shape[own] != 1 && x->shape[own] != out->shape[i])
            return false;
        view->stride[i] =
            own < 0 || (x->shape[own] == 1 && out->shape[i] != 1) ? 0 : x->stride[own];
    }
    for (int own = 0; own < x->n - out->n; own++) /* more dimensions than the result: only ones */
        if (x->shape[own] != 1)
            return false;
    return true;
}

DEVICE int64_t place(const struct k_tensor &t, int64_t index)
{
    int64_t at = 0;
    for (int i = t.n - 1; i >= 0; i--) {
        at += index % t.shape[i] * t.stride[i];
        index /= t.shape[i];
    }
    return at;
}

static int mismatch(const char *what)
{
    return device_fail("%s: the shapes of its tensors do not go together", what);
}

/* A tensor as rows: all dimensions but the last. */
DEVICE int64_t row_place(const struct k_tensor &t, int64_t row)
{
    int64_t at = 0;
    for (int i = t.n - 2; i >= 0; i--) {
        at += row % t.shape[i] * t.stride[i];
        row /= t.shape[i];
    }
    return at;
}
DEVICE int64_t last_stride(const struct k_tensor &t)
{
    return t.stride[t.n - 1];
}
DEVICE int64_t last_size(const struct k_tensor &t)
{
    return t.shape[t.n - 1];
}

/* ---- filling ---- */

KERNEL void fill_kernel(struct k_tensor out, int64_t n, double value)
{
    for (int64_t i = thread_index(); i < n; i += thread_count())
        store(out.data, out.dtype, place(out, i), (float)value);
}
int k_fill(const struct k_tensor *out, double value)
{
    return LAUNCH(fill_kernel, numel(out), *out, numel(out), value);
}

KERNEL void arange_kernel(struct k_tensor out, int64_t n)
{
    for (int64_t i = thread_index(); i < n; i += thread_count())
        store_integer(out.data, out.dtype, place(out, i), i);
}
int k_arange(const struct k_tensor *out)
{
    return LAUNCH(arange_kernel, numel(out), *out, numel(out));
}

/* Box and Muller. */
KERNEL void normal_kernel(struct k_tensor out, int64_t n, double std, uint64_t seed)
{
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const float u = random_uniform(seed, 2 * (uint64_t)i),
                    v = random_uniform(seed, 2 * (uint64_t)i + 1);
        store(out.data, out.dtype, place(out, i),
              (float)std * sqrtf(-2.0f * logf(1.0f - u)) * cosf(6.283185307f * v));
    }
}
int k_normal(const struct k_tensor *out, double std, uint64_t seed)
{
    return LAUNCH(normal_kernel, numel(out), *out, numel(out), std, seed);
}

KERNEL void frequencies_kernel(struct k_tensor out, int64_t n, double theta)
{
    for (int64_t i = thread_index(); i < n; i += thread_count())
        store(out.data, out.dtype, place(out, i),
              1.0f / powf((float)theta, (float)(2 * i) / (float)(2 * n)));
}
int k_rotary_frequencies(const struct k_tensor *out, double theta)
{
    return LAUNCH(frequencies_kernel, numel(out), *out, numel(out), theta);
}

/* ---- one operand ---- */

DEVICE float gelu(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}
DEVICE float gelu_slope(float x)
{
    return 0.5f * (1.0f + erff(x * 0.70710678118654752f)) +
           x * 0.39894228040143268f * expf(-0.5f * x * x);
}
DEVICE float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
DEVICE float power(float x, float exponent)
{
    return exponent == 2.0f   ? x * x
           : exponent == 3.0f ? x * x * x
           : exponent == 1.0f ? x
                              : powf(x, exponent);
}

DEVICE float unary(int op, float x, float number, int dtype)
{
    switch (op) {
    case K_NEG: return -x;
    case K_TANH: return tanhf(x);
    case K_GELU: return gelu(x);
    case K_SILU: return x * sigmoid(x);
    case K_RELU: return fmaxf(x, 0.0f);
    case K_SIGMOID: return sigmoid(x);
    case K_RSQRT: return 1.0f / sqrtf(x);
    case K_COS: return cosf(x);
    case K_SIN: return sinf(x);
    case K_ADD_NUMBER: return x + number;
    case K_MUL_NUMBER: return x * number;
    case K_DIV_NUMBER: return x / number;
    case K_POW: return power(x, number);
    case K_ADDITIVE_MASK: return x != 0.0f ? 0.0f : smallest(dtype);
    default: return x;
    }
}

KERNEL void unary_kernel(int op, struct k_tensor x, struct k_tensor out, int64_t n, float number)
{
    for (int64_t i = thread_index(); i < n; i += thread_count())
        store(out.data, out.dtype, place(out, i),
              unary(op, load(x.data, x.dtype, place(x, i)), number, out.dtype));
}

KERNEL void integer_kernel(struct k_tensor x, struct k_tensor out, int64_t n, int64_t number)
{
    for (int64_t i = thread_index(); i < n; i += thread_count())
        store_integer(out.data, out.dtype, place(out, i),
                      load_integer(x.data, x.dtype, place(x, i)) + number);
}

int k_unary(enum k_unary op, const struct k_tensor *x, const struct k_tensor *out, double number)
{
    struct k_tensor view;
    if (!broadcast_to(x, out, &view))
        return mismatch("a pointwise operation");
    if (is_integer(x->dtype) && is_integer(out->dtype) && (op == K_COPY || op == K_ADD_NUMBER))
        return LAUNCH(integer_kernel, numel(out), view, *out, numel(out),
                      op == K_COPY ? 0 : (int64_t)number);
    return LAUNCH(unary_kernel, numel(out), (int)op, view, *out, numel(out), (float)number);
}

/* ---- two operands ---- */

DEVICE float binary(int op, float a, float b, float number)
{
    switch (op) {
    case K_ADD: return a + b;
    case K_SUB: return a - b;
    case K_MUL: return a * b;
    case K_TANH_BACKWARD: return a * (1.0f - b * b);
    case K_GELU_BACKWARD: return a * gelu_slope(b);
    case K_SILU_BACKWARD: {
        const float s = sigmoid(b);
        return a * s * (1.0f + b * (1.0f - s));
    }
    case K_RELU_BACKWARD: return b > 0.0f ? a : 0.0f;
    case K_SIGMOID_BACKWARD: return a * b * (1.0f - b);
    case K_RSQRT_BACKWARD: return -0.5f * a * b * b * b;
    case K_POW_BACKWARD: return a * number * power(b, number - 1.0f);
    case K_DROPOUT_BACKWARD: return b != 0.0f ? a / (1.0f - number) : 0.0f;
    default: return 0.0f;
    }
}

KERNEL void binary_kernel(int op, struct k_tensor a, struct k_tensor b, struct k_tensor out,
                          int64_t n, float number)
{
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const float x = load(a.data, a.dtype, place(a, i)), y = load(b.data, b.dtype, place(b, i));
        store(out.data, out.dtype, place(out, i), binary(op, x, y, number));
    }
}

int k_binary(enum k_binary op, const struct k_tensor *a, const struct k_tensor *b,
             const struct k_tensor *out, double number)
{
    struct k_tensor x, y;
    if (!broadcast_to(a, out, &x) || !broadcast_to(b, out, &y))
        return mismatch("a pointwise operation");
    return LAUNCH(binary_kernel, numel(out), (int)op, x, y, *out, numel(out), (float)number);
}

KERNEL void dropout_kernel(struct k_tensor x, struct k_tensor out, struct k_tensor mask, int64_t n,
                           float p, uint64_t seed)
{
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const bool keep = random_uniform(seed, (uint64_t)i) >= p;
        store_integer(mask.data, mask.dtype, place(mask, i), keep);
        store(out.data, out.dtype, place(out, i),
              keep ? load(x.data, x.dtype, place(x, i)) / (1.0f - p) : 0.0f);
    }
}
int k_dropout(const struct k_tensor *x, const struct k_tensor *out, const struct k_tensor *mask,
              double p, uint64_t seed)
{
    struct k_tensor view;
    if (!broadcast_to(x, out, &view) || numel(mask) != numel(out))
        return mismatch("dropout");
    return LAUNCH(dropout_kernel, numel(out), view, *out, *mask, numel(out), (float)p, seed);
}

/* ---- reductions ---- */

/* kept and reduced: x with the other dimensions as 1 */
KERNEL void sum_kernel(struct k_tensor kept, struct k_tensor reduced, struct k_tensor out,
                       int64_t n_out, int64_t n_in, double factor)
{
    for (int64_t row = warp_index(); row < n_out; row += warp_count()) {
        const int64_t start = place(kept, row);
        double sum = 0;
        for (int64_t i = lane(); i < n_in; i += LANES)
            sum += (double)load(kept.data, kept.dtype, start + place(reduced, i));
        sum = warp_sum(sum);
        if (lane() == 0)
            store(out.data, out.dtype, place(out, row), (float)(sum * factor));
    }
}

int k_sum(const struct k_tensor *x, const struct k_tensor *out, unsigned dims, double factor)
{
    struct k_tensor kept = *x, reduced = *x;
    for (int i = 0; i < x->n; i++)
        *((dims >> i & 1u) ? &kept.shape[i] : &reduced.shape[i]) = 1;
    if (numel(&kept) != numel(out))
        return mismatch("a sum");
    return LAUNCH_ROWS(sum_kernel, numel(out), kept, reduced, *out, numel(out), numel(&reduced),
                       factor);
}

KERNEL void softmax_kernel(struct k_tensor x, struct k_tensor out, int64_t rows, int logarithm)
{
    const int64_t n = last_size(x);
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t from = row_place(x, row), to = row_place(out, row);
        float most = -INFINITY, sum = 0.0f;
        for (int64_t i = lane(); i < n; i += LANES)
            most = fmaxf(most, load(x.data, x.dtype, from + i * last_stride(x)));
        most = warp_max(most);
        for (int64_t i = lane(); i < n; i += LANES)
            sum += expf(load(x.data, x.dtype, from + i * last_stride(x)) - most);
        sum = warp_sum(sum);
        for (int64_t i = lane(); i < n; i += LANES) {
            const float d = load(x.data, x.dtype, from + i * last_stride(x)) - most;
            store(out.data, out.dtype, to + i * last_stride(out),
                  logarithm ? d - logf(sum) : expf(d) / sum);
        }
    }
}

static bool same_shape(const struct k_tensor *a, const struct k_tensor *b)
{
    return a->n == b->n && a->n > 0 &&
           memcmp(a->shape, b->shape, (size_t)a->n * sizeof a->shape[0]) == 0;
}
static int64_t rows_of(const struct k_tensor *t)
{
    return t->shape[t->n - 1] ? numel(t) / t->shape[t->n - 1] : 0;
}

int k_softmax(const struct k_tensor *x, const struct k_tensor *out, int logarithm)
{
    if (!same_shape(x, out))
        return mismatch("softmax");
    return LAUNCH_ROWS(softmax_kernel, rows_of(x), *x, *out, rows_of(x), logarithm);
}

/* softmax: y (g - sum(g y)); logarithm: g - exp(y) sum(g) */
KERNEL void softmax_backward_kernel(struct k_tensor g, struct k_tensor y, struct k_tensor out,
                                    int64_t rows, int logarithm)
{
    const int64_t n = last_size(y);
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t g_row = row_place(g, row), y_row = row_place(y, row),
                      to = row_place(out, row);
        double sum = 0;
        for (int64_t i = lane(); i < n; i += LANES) {
            const float grad = load(g.data, g.dtype, g_row + i * last_stride(g));
            sum += (double)(logarithm ? grad
                                      : grad * load(y.data, y.dtype, y_row + i * last_stride(y)));
        }
        const float total = (float)warp_sum(sum);
        for (int64_t i = lane(); i < n; i += LANES) {
            const float grad = load(g.data, g.dtype, g_row + i * last_stride(g)),
                        value = load(y.data, y.dtype, y_row + i * last_stride(y));
            store(out.data, out.dtype, to + i * last_stride(out),
                  logarithm ? grad - expf(value) * total : value * (grad - total));
        }
    }
}
int k_softmax_backward(const struct k_tensor *grad, const struct k_tensor *saved,
                       const struct k_tensor *out, int logarithm)
{
    if (!same_shape(grad, saved) || !same_shape(saved, out))
        return mismatch("the gradient of softmax");
    return LAUNCH_ROWS(softmax_backward_kernel, rows_of(out), *grad, *saved, *out, rows_of(out),
                       logarithm);
}

/* ---- layer norm ---- */

KERNEL void layer_norm_kernel(struct k_tensor x, struct k_tensor weight, struct k_tensor bias,
                              struct k_tensor out, struct k_tensor mean, struct k_tensor rstd,
                              int64_t rows, double eps)
{
    const int64_t n = last_size(x);
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t from = row_place(x, row), to = row_place(out, row);
        double sum = 0, squares = 0;
        for (int64_t i = lane(); i < n; i += LANES)
            sum += (double)load(x.data, x.dtype, from + i * last_stride(x));
        const double average = warp_sum(sum) / (double)n;
        for (int64_t i = lane(); i < n; i += LANES) {
            const double d = (double)load(x.data, x.dtype, from + i * last_stride(x)) - average;
            squares += d * d;
        }
        const float r = (float)(1.0 / sqrt(warp_sum(squares) / (double)n + eps)),
                    m = (float)average;
        for (int64_t i = lane(); i < n; i += LANES) {
            const float normal = (load(x.data, x.dtype, from + i * last_stride(x)) - m) * r;
            const float w = load(weight.data, weight.dtype, i * last_stride(weight)),
                        b = load(bias.data, bias.dtype, i * last_stride(bias));
            store(out.data, out.dtype, to + i * last_stride(out), normal * w + b);
        }
        if (lane() == 0) {
            store(mean.data, mean.dtype, place(mean, row), m);
            store(rstd.data, rstd.dtype, place(rstd, row), r);
        }
    }
}
int k_layer_norm(const struct k_tensor *x, const struct k_tensor *weight,
                 const struct k_tensor *bias, const struct k_tensor *out,
                 const struct k_tensor *mean, const struct k_tensor *rstd, double eps)
{
    if (!same_shape(x, out) || numel(mean) != rows_of(x) || numel(weight) != x->shape[x->n - 1])
        return mismatch("layer_norm");
    return LAUNCH_ROWS(layer_norm_kernel, rows_of(x), *x, *weight, *bias, *out, *mean, *rstd,
                       rows_of(x), eps);
}

KERNEL void layer_norm_dx_kernel(struct k_tensor g, struct k_tensor x, struct k_tensor mean,
                                 struct k_tensor rstd, struct k_tensor weight, struct k_tensor dx,
                                 int64_t rows)
{
    const int64_t n = last_size(x);
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t g_row = row_place(g, row), x_row = row_place(x, row), to = row_place(dx, row);
        const float m = load(mean.data, mean.dtype, place(mean, row)),
                    r = load(rstd.data, rstd.dtype, place(rstd, row));
        double sum = 0, product = 0;
        for (int64_t i = lane(); i < n; i += LANES) {
            const float grad = load(g.data, g.dtype, g_row + i * last_stride(g)) *
                               load(weight.data, weight.dtype, i * last_stride(weight));
            sum += (double)grad;
            product += (double)(grad * (load(x.data, x.dtype, x_row + i * last_stride(x)) - m) * r);
        }
        const float a = (float)(warp_sum(sum) / (double)n),
                    b = (float)(warp_sum(product) / (double)n);
        for (int64_t i = lane(); i < n; i += LANES) {
            const float grad = load(g.data, g.dtype, g_row + i * last_stride(g)) *
                               load(weight.data, weight.dtype, i * last_stride(weight));
            const float normal = (load(x.data, x.dtype, x_row + i * last_stride(x)) - m) * r;
            store(dx.data, dx.dtype, to + i * last_stride(dx), r * (grad - a - normal * b));
        }
    }
}

/* One warp per column; either result may be absent (data NULL). */
KERNEL void layer_norm_dw_kernel(struct k_tensor g, struct k_tensor x, struct k_tensor mean,
                                 struct k_tensor rstd, struct k_tensor dweight,
                                 struct k_tensor dbias, int64_t rows)
{
    const int64_t n = last_size(x);
    for (int64_t column = warp_index(); column < n; column += warp_count()) {
        double dw = 0, db = 0;
        for (int64_t row = lane(); row < rows; row += LANES) {
            const float grad = load(g.data, g.dtype, row_place(g, row) + column * last_stride(g));
            const float m = load(mean.data, mean.dtype, place(mean, row)),
                        r = load(rstd.data, rstd.dtype, place(rstd, row));
            dw +=
                (double)(grad *
                         (load(x.data, x.dtype, row_place(x, row) + column * last_stride(x)) - m) *
                         r);
            db += (double)grad;
        }
        dw = warp_sum(dw);
        db = warp_sum(db);
        if (lane() == 0 && dweight.data)
            store(dweight.data, dweight.dtype, column * last_stride(dweight), (float)dw);
        if (lane() == 0 && dbias.data)
            store(dbias.data, dbias.dtype, column * last_stride(dbias), (float)db);
    }
}
int k_layer_norm_backward(const struct k_tensor *grad, const struct k_tensor *x,
                          const struct k_tensor *mean, const struct k_tensor *rstd,
                          const struct k_tensor *weight, const struct k_tensor *dx,
                          const struct k_tensor *dweight, const struct k_tensor *dbias)
{
    const struct k_tensor none = {};
    if (!same_shape(grad, x) || (dx && !same_shape(x, dx)))
        return mismatch("the gradient of layer_norm");
    if (dx && LAUNCH_ROWS(layer_norm_dx_kernel, rows_of(x), *grad, *x, *mean, *rstd, *weight, *dx,
                          rows_of(x)))
        return -1;
    if (!dweight && !dbias)
        return 0;
    return LAUNCH_ROWS(layer_norm_dw_kernel, x->shape[x->n - 1], *grad, *x, *mean, *rstd,
                       dweight ? *dweight : none, dbias ? *dbias : none, rows_of(x));
}

/* ---- embedding ---- */

KERNEL void embedding_kernel(struct k_tensor index, struct k_tensor table, struct k_tensor out,
                             int64_t rows)
{
    const int64_t n = last_size(out);
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t from = load_integer(index.data, index.dtype, place(index, row)),
                      to = row_place(out, row);
        for (int64_t i = lane(); i < n; i += LANES)
            store(out.data, out.dtype, to + i * last_stride(out),
                  from >= 0 && from < table.shape[0]
                      ? load(table.data, table.dtype, from * table.stride[0] + i * table.stride[1])
                      : NAN);
    }
}
int k_embedding(const struct k_tensor *index, const struct k_tensor *table,
                const struct k_tensor *out)
{
    if (table->n != 2 || out->n < 1 || out->shape[out->n - 1] != table->shape[1] ||
        rows_of(out) != numel(index))
        return mismatch("embedding");
    return LAUNCH_ROWS(embedding_kernel, rows_of(out), *index, *table, *out, rows_of(out));
}

/* One warp per row of the table looks for its index among all: slow, but sums in order. */
KERNEL void embedding_backward_kernel(struct k_tensor g, struct k_tensor index, struct k_tensor out,
                                      int64_t n_index, int64_t padding_index)
{
    for (int64_t row = warp_index(); row < out.shape[0]; row += warp_count()) {
        int64_t count = 0;
        for (int64_t i = lane(); i < n_index; i += LANES)
            count += row != padding_index &&
                     load_integer(index.data, index.dtype, place(index, i)) == row;
        count = warp_sum(count);
        for (int64_t column = lane(); column < out.shape[1]; column += LANES) {
            double sum = 0;
            for (int64_t i = 0; i < n_index && count > 0; i++)
                if (load_integer(index.data, index.dtype, place(index, i)) == row)
                    sum += (double)load(g.data, g.dtype, row_place(g, i) + column * last_stride(g));
            store(out.data, out.dtype, row * out.stride[0] + column * out.stride[1], (float)sum);
        }
    }
}
int k_embedding_backward(const struct k_tensor *grad, const struct k_tensor *index,
                         const struct k_tensor *out, int64_t padding_index)
{
    if (out->n != 2 || grad->shape[grad->n - 1] != out->shape[1] || rows_of(grad) != numel(index))
        return mismatch("the gradient of an embedding");
    return LAUNCH_ROWS(embedding_backward_kernel, out->shape[0], *grad, *index, *out, numel(index),
                       padding_index);
}

/* ---- loss ---- */

KERNEL void nll_loss_kernel(struct k_tensor logp, struct k_tensor target, struct k_tensor loss,
                            struct k_tensor weight, int64_t rows, int64_t ignore)
{
    if (warp_index() > 0)
        return;
    double sum = 0, count = 0;
    for (int64_t row = lane(); row < rows; row += LANES) {
        const int64_t class_index = load_integer(target.data, target.dtype, place(target, row));
        if (class_index == ignore)
            continue;
        sum -= class_index >= 0 && class_index < last_size(logp)
                   ? (double)load(logp.data, logp.dtype,
                                  row_place(logp, row) + class_index * last_stride(logp))
                   : NAN;
        count += 1;
    }
    sum = warp_sum(sum);
    count = warp_sum(count);
    if (lane() == 0) {
        store(loss.data, loss.dtype, 0, (float)(sum / count));
        store(weight.data, weight.dtype, 0, (float)count);
    }
}
int k_nll_loss(const struct k_tensor *logp, const struct k_tensor *target,
               const struct k_tensor *loss, const struct k_tensor *weight, int64_t ignore)
{
    if (logp->n != 2 || numel(target) != logp->shape[0])
        return mismatch("nll_loss");
    return LAUNCH_ROWS(nll_loss_kernel, 1, *logp, *target, *loss, *weight, logp->shape[0], ignore);
}

KERNEL void nll_loss_backward_kernel(struct k_tensor g, struct k_tensor target,
                                     struct k_tensor weight, struct k_tensor out, int64_t n,
                                     int64_t ignore)
{
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const int64_t row = i / out.shape[1], column = i % out.shape[1];
        const int64_t class_index = load_integer(target.data, target.dtype, place(target, row));
        const float slope = -load(g.data, g.dtype, 0) / load(weight.data, weight.dtype, 0);
        store(out.data, out.dtype, row * out.stride[0] + column * out.stride[1],
              class_index == column && class_index != ignore ? slope : 0.0f);
    }
}
int k_nll_loss_backward(const struct k_tensor *grad, const struct k_tensor *target,
                        const struct k_tensor *weight, const struct k_tensor *out, int64_t ignore)
{
    if (out->n != 2 || numel(target) != out->shape[0])
        return mismatch("the gradient of nll_loss");
    return LAUNCH(nll_loss_backward_kernel, numel(out), *grad, *target, *weight, *out, numel(out),
                  ignore);
}

/* ---- attention ---- */

KERNEL void attention_mask_kernel(struct k_tensor given, struct k_tensor out, int64_t n, int causal,
                                  int64_t sliding)
{
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const int64_t keys = last_size(out), queries = out.shape[out.n - 2];
        const int64_t key = i % keys, query = i / keys % queries, batch = i / keys / queries;
        bool allowed = !causal || key <= query;
        if (sliding)
            allowed = allowed && key > query - sliding;
        if (given.data)
            allowed = allowed && load_integer(given.data, given.dtype,
                                              batch * given.stride[0] + key * given.stride[1]) != 0;
        if (out.dtype == K_BOOL)
            store_integer(out.data, out.dtype, place(out, i), allowed);
        else
            store(out.data, out.dtype, place(out, i), allowed ? 0.0f : -INFINITY);
    }
}
int k_attention_mask(const struct k_tensor *given, const struct k_tensor *out, int causal,
                     int64_t sliding)
{
    struct k_tensor none = {}, unique = *out;
    for (int i = 0; i < unique.n - 2; i++)
        if (unique.stride[i] == 0) /* one row for all of a batch */
            unique.shape[i] = 1;
    if (out->n < 2)
        return mismatch("attention_mask");
    return LAUNCH(attention_mask_kernel, numel(&unique), given ? *given : none, unique,
                  numel(&unique), causal, sliding);
}

enum { MAX_HEAD_DIM = 256, PER_LANE = MAX_HEAD_DIM / LANES };

/* One query row of one head against the keys. */
struct pair_rule {
    struct k_tensor q, k, v, mask;
    int64_t heads, queries, keys, dim, group; /* group: query heads per key head */
    float scale, p;
    int causal;
    uint64_t seed;
};

DEVICE float mask_value(const struct pair_rule &r, int64_t batch, int64_t head, int64_t query,
                        int64_t key)
{
    if (!r.mask.data)
        return 0.0f;
    const int64_t at = batch * r.mask.stride[0] + head * r.mask.stride[1] +
                       query * r.mask.stride[2] + key * r.mask.stride[3];
    const float value = load(r.mask.data, r.mask.dtype, at);
    return r.mask.dtype == K_BOOL ? (value != 0.0f ? 0.0f : -INFINITY) : value;
}

DEVICE float kept(const struct pair_rule &r, int64_t batch, int64_t head, int64_t query,
                  int64_t key)
{
    if (r.p <= 0.0f)
        return 1.0f;
    const int64_t index = ((batch * r.heads + head) * r.queries + query) * r.keys + key;
    return random_uniform(r.seed, (uint64_t)index) >= r.p ? 1.0f / (1.0f - r.p) : 0.0f;
}

DEVICE int64_t row_at(const struct k_tensor &t, int64_t batch, int64_t head, int64_t seq)
{
    return batch * t.stride[0] + head * t.stride[1] + seq * t.stride[2];
}

DEVICE void load_row(const struct k_tensor &t, int64_t at, int64_t dim, float *row)
{
    for (int i = 0; i < PER_LANE; i++) {
        const int64_t d = i * LANES + lane();
        row[i] = d < dim ? load(t.data, t.dtype, at + d * t.stride[3]) : 0.0f;
    }
}

DEVICE void store_row(const struct k_tensor &t, int64_t at, int64_t dim, const float *row)
{
    for (int i = 0; i < PER_LANE; i++) {
        const int64_t d = i * LANES + lane();
        if (d < dim)
            store(t.data, t.dtype, at + d * t.stride[3], row[i]);
    }
}

DEVICE float dot(const float *a, const float *b)
{
    float sum = 0.0f;
    for (int i = 0; i < PER_LANE; i++)
        sum += a[i] * b[i];
    return warp_sum(sum);
}

/* Softmax as it goes: what was summed is scaled down whenever a larger score comes. */
KERNEL void attention_kernel(struct pair_rule r, struct k_tensor out, struct k_tensor lse,
                             int64_t rows)
{
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t query = row % r.queries, head = row / r.queries % r.heads,
                      batch = row / r.queries / r.heads;
        const int64_t limit = r.causal ? (query + 1 < r.keys ? query + 1 : r.keys) : r.keys;
        float q[PER_LANE], other[PER_LANE], sum[PER_LANE] = {}, most = -INFINITY, total = 0.0f;
        load_row(r.q, row_at(r.q, batch, head, query), r.dim, q);
        for (int64_t key = 0; key < limit; key++) {
            load_row(r.k, row_at(r.k, batch, head / r.group, key), r.dim, other);
            const float score = dot(q, other) * r.scale + mask_value(r, batch, head, query, key);
            if (score == -INFINITY)
                continue;
            const float larger = fmaxf(most, score), shrink = expf(most - larger),
                        weight = expf(score - larger);
            const float used = weight * kept(r, batch, head, query, key);
            load_row(r.v, row_at(r.v, batch, head / r.group, key), r.dim, other);
            for (int i = 0; i < PER_LANE; i++)
                sum[i] = sum[i] * shrink + used * other[i];
            total = total * shrink + weight;
            most = larger;
        }
        for (int i = 0; i < PER_LANE; i++)
            sum[i] = total > 0.0f ? sum[i] / total : 0.0f;
        store_row(out, row_at(out, batch, head, query), r.dim, sum);
        if (lane() == 0 && lse.data)
            store(lse.data, lse.dtype,
                  batch * lse.stride[0] + head * lse.stride[1] + query * lse.stride[2],
                  total > 0.0f ? most + logf(total) : INFINITY);
    }
}

/* sum over keys of ds * k, where ds = p (dp - sum(grad * out)) scale */
KERNEL void attention_dq_kernel(struct pair_rule r, struct k_tensor grad, struct k_tensor out,
                                struct k_tensor lse, struct k_tensor dq, int64_t rows)
{
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t query = row % r.queries, head = row / r.queries % r.heads,
                      batch = row / r.queries / r.heads;
        const int64_t limit = r.causal ? (query + 1 < r.keys ? query + 1 : r.keys) : r.keys;
        const float norm =
            load(lse.data, lse.dtype,
                 batch * lse.stride[0] + head * lse.stride[1] + query * lse.stride[2]);
        float q[PER_LANE], g[PER_LANE], other[PER_LANE], sum[PER_LANE] = {};
        load_row(r.q, row_at(r.q, batch, head, query), r.dim, q);
        load_row(grad, row_at(grad, batch, head, query), r.dim, g);
        load_row(out, row_at(out, batch, head, query), r.dim, other);
        const float delta = dot(g, other);
        for (int64_t key = 0; key < limit; key++) {
            load_row(r.v, row_at(r.v, batch, head / r.group, key), r.dim, other);
            const float dp = dot(g, other) * kept(r, batch, head, query, key);
            load_row(r.k, row_at(r.k, batch, head / r.group, key), r.dim, other);
            const float p =
                expf(dot(q, other) * r.scale + mask_value(r, batch, head, query, key) - norm);
            const float ds = p * (dp - delta) * r.scale;
            for (int i = 0; i < PER_LANE; i++)
                sum[i] += ds * other[i];
        }
        store_row(dq, row_at(dq, batch, head, query), r.dim, sum);
    }
}

/* The same from the keys' side: one warp per key row, over all queries of its group. */
KERNEL void attention_dkv_kernel(struct pair_rule r, struct k_tensor grad, struct k_tensor out,
                                 struct k_tensor lse, struct k_tensor dk, struct k_tensor dv,
                                 int64_t rows)
{
    const int64_t key_heads = r.heads / r.group;
    for (int64_t row = warp_index(); row < rows; row += warp_count()) {
        const int64_t key = row % r.keys, key_head = row / r.keys % key_heads,
                      batch = row / r.keys / key_heads;
        float k[PER_LANE], v[PER_LANE], q[PER_LANE], g[PER_LANE], o[PER_LANE], sum_k[PER_LANE] = {},
                                                                               sum_v[PER_LANE] = {};
        load_row(r.k, row_at(r.k, batch, key_head, key), r.dim, k);
        load_row(r.v, row_at(r.v, batch, key_head, key), r.dim, v);
        for (int64_t member = 0; member < r.group; member++) {
            const int64_t head = key_head * r.group + member;
            for (int64_t query = r.causal ? key : 0; query < r.queries; query++) {
                const float norm =
                    load(lse.data, lse.dtype,
                         batch * lse.stride[0] + head * lse.stride[1] + query * lse.stride[2]);
                load_row(r.q, row_at(r.q, batch, head, query), r.dim, q);
                load_row(grad, row_at(grad, batch, head, query), r.dim, g);
                load_row(out, row_at(out, batch, head, query), r.dim, o);
                const float keep = kept(r, batch, head, query, key);
                const float p =
                    expf(dot(q, k) * r.scale + mask_value(r, batch, head, query, key) - norm);
                const float ds = p * (dot(g, v) * keep - dot(g, o)) * r.scale;
                for (int i = 0; i < PER_LANE; i++) {
                    sum_k[i] += ds * q[i];
                    sum_v[i] += p * keep * g[i];
                }
            }
        }
        store_row(dk, row_at(dk, batch, key_head, key), r.dim, sum_k);
        store_row(dv, row_at(dv, batch, key_head, key), r.dim, sum_v);
    }
}

static int make_rule(const struct k_attention *a, const struct k_tensor *q,
                     const struct k_tensor *k, const struct k_tensor *v,
                     const struct k_tensor *mask, struct pair_rule *r)
{
    *r = pair_rule();
    if (q->n != 4 || k->n != 4 || v->n != 4 || k->shape[1] < 1 || q->shape[1] % k->shape[1] ||
        q->shape[3] != k->shape[3] || v->shape[3] != q->shape[3])
        return mismatch("attention");
    if (q->shape[3] > MAX_HEAD_DIM)
        return device_fail("attention: head size %lld is more than %d", (long long)q->shape[3],
                           (int)MAX_HEAD_DIM);
    r->q = *q;
    r->k = *k;
    r->v = *v;
    r->heads = q->shape[1];
    r->queries = q->shape[2];
    r->keys = k->shape[2];
    r->dim = q->shape[3];
    r->group = q->shape[1] / k->shape[1];
    r->scale = (float)a->scale;
    r->p = (float)a->p;
    r->causal = a->causal;
    r->seed = a->seed;
    if (mask) {
        struct k_tensor scores = *q;
        scores.shape[3] = k->shape[2];
        if (!broadcast_to(mask, &scores, &r->mask))
            return mismatch("the mask of attention");
    }
    return 0;
}

int k_attention(const struct k_attention *a, const struct k_tensor *q, const struct k_tensor *k,
                const struct k_tensor *v, const struct k_tensor *mask, const struct k_tensor *out,
                const struct k_tensor *lse)
{
    const struct k_tensor none = {};
    struct pair_rule r;
    if (make_rule(a, q, k, v, mask, &r))
        return -1;
    const int64_t rows = q->shape[0] * r.heads * r.queries;
    return LAUNCH_ROWS(attention_kernel, rows, r, *out, lse ? *lse : none, rows);
}

int k_attention_backward(const struct k_attention *a, const struct k_tensor *grad,
                         const struct k_tensor *q, const struct k_tensor *k,
                         const struct k_tensor *v, const struct k_tensor *mask,
                         const struct k_tensor *out, const struct k_tensor *lse,
                         const struct k_tensor *dq, const struct k_tensor *dk,
                         const struct k_tensor *dv)
{
    struct pair_rule r;
    if (make_rule(a, q, k, v, mask, &r))
        return -1;
    const int64_t rows = q->shape[0] * r.heads * r.queries,
                  key_rows = k->shape[0] * k->shape[1] * r.keys;
    if (LAUNCH_ROWS(attention_dq_kernel, rows, r, *grad, *out, *lse, *dq, rows))
        return -1;
    return LAUNCH_ROWS(attention_dkv_kernel, key_rows, r, *grad, *out, *lse, *dk, *dv, key_rows);
}

/* ---- optimizers ---- */

KERNEL void adamw_kernel(struct k_adamw a, struct k_tensor p, struct k_tensor g, struct k_tensor m,
                         struct k_tensor v, struct k_tensor found_inf, int64_t n)
{
    if (found_inf.data && load(found_inf.data, found_inf.dtype, 0) != 0.0f)
        return;
    const double correction1 = 1.0 - pow(a.beta1, (double)a.step),
                 correction2 = 1.0 - pow(a.beta2, (double)a.step);
    const float step_size = (float)(a.lr / correction1), root2 = (float)sqrt(correction2);
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const int64_t at = place(p, i), at_m = place(m, i), at_v = place(v, i);
        const float grad = load(g.data, g.dtype, place(g, i));
        float value = load(p.data, p.dtype, at) * (float)(1.0 - a.lr * a.weight_decay);
        float mean = load(m.data, m.dtype, at_m), square = load(v.data, v.dtype, at_v);
        mean += (grad - mean) * (float)(1.0 - a.beta1);
        square = square * (float)a.beta2 + grad * grad * (float)(1.0 - a.beta2);
        value -= step_size * (mean / (sqrtf(square) / root2 + (float)a.eps));
        store(m.data, m.dtype, at_m, mean);
        store(v.data, v.dtype, at_v, square);
        store(p.data, p.dtype, at, value);
    }
}
int k_adamw(const struct k_adamw *a, const struct k_tensor *p, const struct k_tensor *g,
            const struct k_tensor *m, const struct k_tensor *v, const struct k_tensor *found_inf)
{
    const struct k_tensor none = {};
    if (numel(p) != numel(g) || numel(p) != numel(m) || numel(p) != numel(v))
        return mismatch("adamw");
    return LAUNCH(adamw_kernel, numel(p), *a, *p, *g, *m, *v, found_inf ? *found_inf : none,
                  numel(p));
}

KERNEL void sgd_kernel(struct k_tensor p, struct k_tensor g, struct k_tensor momentum,
                       struct k_tensor found_inf, int64_t n, float lr, float factor, int first)
{
    if (found_inf.data && load(found_inf.data, found_inf.dtype, 0) != 0.0f)
        return;
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        float step = load(g.data, g.dtype, place(g, i));
        if (momentum.data) {
            step = first ? step
                         : factor * load(momentum.data, momentum.dtype, place(momentum, i)) + step;
            store(momentum.data, momentum.dtype, place(momentum, i), step);
        }
        store(p.data, p.dtype, place(p, i), load(p.data, p.dtype, place(p, i)) - lr * step);
    }
}
int k_sgd(const struct k_tensor *p, const struct k_tensor *g, const struct k_tensor *momentum,
          const struct k_tensor *found_inf, double lr, double factor, int first)
{
    const struct k_tensor none = {};
    if (numel(p) != numel(g))
        return mismatch("sgd");
    return LAUNCH(sgd_kernel, numel(p), *p, *g, momentum ? *momentum : none,
                  found_inf ? *found_inf : none, numel(p), (float)lr, (float)factor, first);
}

/* ---- clipping, gradient scaler ---- */

DEVICE void add_to(float *total, float value)
{
#ifdef __CUDACC__
    atomicAdd(total, value); /* the one sum here whose order is open */
#else
    *total += value;
#endif
}

KERNEL void add_squares_kernel(struct k_tensor g, float *total, int64_t n)
{
    double sum = 0;
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const double x = (double)load(g.data, g.dtype, place(g, i));
        sum += x * x;
    }
    sum = warp_sum(sum);
    if (lane() == 0)
        add_to(total, (float)sum);
}

#ifdef __CUDACC__
__device__ float scratch;
#else
static float scratch;
#endif

int k_scratch(struct k_tensor *number)
{
    *number = k_tensor();
    number->dtype = K_F32;
#ifdef __CUDACC__
    const cudaError_t status = cudaGetSymbolAddress(&number->data, scratch);
    if (status != cudaSuccess)
        return device_fail("cudaGetSymbolAddress: %s", cudaGetErrorString(status));
#else
    number->data = &scratch;
#endif
    return 0;
}

int k_add_squares(const struct k_tensor *g, const struct k_tensor *total)
{
    enum { PER_THREAD = 64 };
    if (total->dtype != K_F32)
        return device_fail("a sum of squares: it is not float32");
    return LAUNCH(add_squares_kernel, numel(g) / PER_THREAD, *g, (float *)total->data, numel(g));
}

KERNEL void sqrt_kernel(struct k_tensor total)
{
    if (thread_index() == 0)
        store(total.data, total.dtype, 0, sqrtf(load(total.data, total.dtype, 0)));
}
int k_sqrt_inplace(const struct k_tensor *total)
{
    return LAUNCH(sqrt_kernel, 1, *total);
}

KERNEL void clip_kernel(struct k_tensor g, struct k_tensor total, int64_t n, float max_norm,
                        float eps)
{
    const float factor = fminf(1.0f, max_norm / (load(total.data, total.dtype, 0) + eps));
    for (int64_t i = thread_index(); i < n; i += thread_count())
        store(g.data, g.dtype, place(g, i), load(g.data, g.dtype, place(g, i)) * factor);
}
int k_clip(const struct k_tensor *g, const struct k_tensor *total, double max_norm, double eps)
{
    return LAUNCH(clip_kernel, numel(g), *g, *total, numel(g), (float)max_norm, (float)eps);
}

KERNEL void unscale_kernel(struct k_tensor g, struct k_tensor scale, struct k_tensor found_inf,
                           int64_t n)
{
    const float inverse = 1.0f / load(scale.data, scale.dtype, 0);
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const float value = load(g.data, g.dtype, place(g, i)) * inverse;
        store(g.data, g.dtype, place(g, i), value);
        if (!isfinite(value)) /* all that write here write the same */
            store(found_inf.data, found_inf.dtype, 0, 1.0f);
    }
}
int k_unscale(const struct k_tensor *g, const struct k_tensor *scale,
              const struct k_tensor *found_inf)
{
    return LAUNCH(unscale_kernel, numel(g), *g, *scale, *found_inf, numel(g));
}

KERNEL void update_scale_kernel(struct k_tensor scale, struct k_tensor tracker,
                                struct k_tensor found_inf, float growth, float backoff,
                                int64_t interval)
{
    if (thread_index() > 0)
        return;
    const float value = load(scale.data, scale.dtype, 0),
                count = load(tracker.data, tracker.dtype, 0) + 1.0f;
    const bool found = load(found_inf.data, found_inf.dtype, 0) != 0.0f,
               grows = !found && count >= (float)interval;
    store(scale.data, scale.dtype, 0, found ? value * backoff : grows ? value * growth : value);
    store(tracker.data, tracker.dtype, 0, found || grows ? 0.0f : count);
}
int k_update_scale(const struct k_tensor *scale, const struct k_tensor *tracker,
                   const struct k_tensor *found_inf, double growth, double backoff,
                   int64_t interval)
{
    return LAUNCH(update_scale_kernel, 1, *scale, *tracker, *found_inf, (float)growth,
                  (float)backoff, interval);
}

/* ---- the plain product ---- */

KERNEL void gemm_kernel(struct k_tensor a, struct k_tensor b, struct k_tensor out, int64_t n,
                        int add)
{
    const int o = out.n - 2; /* batch dimension in front, or none */
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        const int64_t column = i % out.shape[o + 1], row = i / out.shape[o + 1] % out.shape[o],
                      batch = i / out.shape[o + 1] / out.shape[o];
        const int64_t at_a = row * a.stride[o] + (o ? batch * a.stride[0] : 0),
                      at_b = column * b.stride[o + 1] + (o ? batch * b.stride[0] : 0);
        float sum = 0.0f;
        for (int64_t k = 0; k < a.shape[o + 1]; k++)
            sum += load(a.data, a.dtype, at_a + k * a.stride[o + 1]) *
                   load(b.data, b.dtype, at_b + k * b.stride[o]);
        const int64_t at = place(out, i);
        store(out.data, out.dtype, at, add ? sum + load(out.data, out.dtype, at) : sum);
    }
}
int k_gemm_plain(const struct k_tensor *a, const struct k_tensor *b, const struct k_tensor *out,
                 int add)
{
    const int o = out->n - 2;
    if (o < 0 || o > 1 || a->n != out->n || b->n != out->n || a->shape[o] != out->shape[o] ||
        b->shape[o + 1] != out->shape[o + 1] || a->shape[o + 1] != b->shape[o])
        return mismatch("a matrix product");
    return LAUNCH(gemm_kernel, numel(out), *a, *b, *out, numel(out), add);
}

/* ---- loading ---- */

int k_load(void)
{
#ifdef __CUDACC__
    const void *const kernels[] = {
        (const void *)fill_kernel,
        (const void *)arange_kernel,
        (const void *)normal_kernel,
        (const void *)frequencies_kernel,
        (const void *)unary_kernel,
        (const void *)integer_kernel,
        (const void *)binary_kernel,
        (const void *)dropout_kernel,
        (const void *)sum_kernel,
        (const void *)softmax_kernel,
        (const void *)softmax_backward_kernel,
        (const void *)layer_norm_kernel,
        (const void *)layer_norm_dx_kernel,
        (const void *)layer_norm_dw_kernel,
        (const void *)embedding_kernel,
        (const void *)embedding_backward_kernel,
        (const void *)nll_loss_kernel,
        (const void *)nll_loss_backward_kernel,
        (const void *)attention_mask_kernel,
        (const void *)attention_kernel,
        (const void *)attention_dq_kernel,
        (const void *)attention_dkv_kernel,
        (const void *)adamw_kernel,
        (const void *)sgd_kernel,
        (const void *)add_squares_kernel,
        (const void *)sqrt_kernel,
        (const void *)clip_kernel,
        (const void *)unscale_kernel,
        (const void *)update_scale_kernel,
        (const void *)gemm_kernel,
    };
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++) {
        struct cudaFuncAttributes attributes;
        const cudaError_t status = cudaFuncGetAttributes(&attributes, kernels[i]);
        if (status != cudaSuccess)
            return device_fail("loading kernels: %s", cudaGetErrorString(status));
    }
#endif
    return 0;
}
