/* SPDX-License-Identifier: MIT */
/*
 * Pointwise operators and casts: result type, result layout, and which operand backward needs.
 *
 * Layout (at::TensorIterator): contiguous operands of equal shape give a contiguous result; otherwise the result is dense in the
 * operands' order of strides, the first operand deciding, ties going to the next. So rotary embeddings of a transposed
 * (batch, heads, seq, dim) view lie in memory as (batch, seq, heads, dim).
 */
#include "shadow/ops.h"

/* ---- result type and layout ---- */

enum mp_dtype mp_promote(int n, struct mp_tensor *const *x)
{
    int with_dims = -1, scalar = -1;
    for (int i = 0; i < n; i++) {
        int *best = x[i]->shape.n ? &with_dims : &scalar;
        if (*best < 0 || mp_dtype_rank(x[i]->dtype) > mp_dtype_rank((enum mp_dtype)*best))
            *best = x[i]->dtype;
    }
    if (with_dims < 0)
        return (enum mp_dtype)scalar;
    if (scalar >= 0 && mp_dtype_is_floating((enum mp_dtype)scalar) && !mp_dtype_is_floating((enum mp_dtype)with_dims))
        return (enum mp_dtype)scalar;
    return (enum mp_dtype)with_dims;
}

static struct mp_shape broadcast(int n, struct mp_tensor *const *x)
{
    struct mp_shape shape = {0, {0}};
    for (int i = 0; i < n; i++)
        shape.n = MP_MAX(shape.n, x[i]->shape.n);
    for (int d = 0; d < shape.n; d++)
        shape.d[d] = 1;
    for (int i = 0; i < n; i++) {
        const int lead = shape.n - x[i]->shape.n;
        for (int d = 0; d < x[i]->shape.n; d++)
            if (x[i]->shape.d[d] != 1)
                shape.d[lead + d] = x[i]->shape.d[d];
    }
    return shape;
}

/* Byte stride of an operand in dimension d of the result; 0 where it is broadcast. */
static int64_t operand_stride(const struct mp_tensor *x, const struct mp_shape *shape, int d)
{
    const int own = d - (shape->n - x->shape.n);
    if (own < 0 || (x->shape.d[own] == 1 && shape->d[d] != 1))
        return 0;
    return x->stride[own] * (int64_t)mp_dtype_bytes(x->dtype);
}

/* TensorIteratorBase::reorder_dimensions: should dimension a come before b (faster)? -1 yes, 1 no, 0 undecided */
static int compare_dims(int n, struct mp_tensor *const *x, const struct mp_shape *shape, int a, int b)
{
    for (int i = 0; i < n; i++) {
        const int64_t sa = operand_stride(x[i], shape, a), sb = operand_stride(x[i], shape, b);
        if (sa == 0 || sb == 0)
            continue;
        if (sa != sb)
            return sa < sb ? -1 : 1;
        if (shape->d[a] > shape->d[b])
            return 1;
    }
    return 0;
}

static void permuted_stride(int n, struct mp_tensor *const *x, const struct mp_shape *shape, int64_t *stride)
{
    bool plain = true;
    for (int i = 0; i < n && plain; i++)
        plain = mp_same_shape(&x[i]->shape, shape) && mp_is_contiguous(x[i]);
    if (plain) {
        mp_contiguous_stride(shape, stride);
        return;
    }
    int perm[MP_MAX_DIMS] = {0}; /* fastest first; insertion sort as in PyTorch, which is stable only where it decides */
    for (int i = 0; i < shape->n; i++)
        perm[i] = shape->n - 1 - i;
    for (int i = 1; i < shape->n; i++) {
        int at = i;
        for (int before = i - 1; before >= 0; before--) {
            const int order = compare_dims(n, x, shape, perm[before], perm[at]);
            if (order < 0)
                break;
            if (order > 0) {
                const int swapped = perm[before];
                perm[before] = perm[at];
                perm[at] = swapped;
                at = before;
            }
        }
    }
    int64_t step = 1;
    for (int i = 0; i < shape->n; i++) {
        stride[perm[i]] = step;
        step *= shape->d[perm[i]];
    }
}

static struct mp_tensor *pointwise_typed(struct mp_runtime *rt, int n, struct mp_tensor *const *x, enum mp_dtype dtype)
{
    const struct mp_shape shape = broadcast(n, x);
    int64_t stride[MP_MAX_DIMS] = {0};
    permuted_stride(n, x, &shape, stride);
    return mp_empty_strided(rt, shape, stride, dtype);
}

struct mp_tensor *mp_pointwise(struct mp_runtime *rt, int n, struct mp_tensor *const *x)
{
    return pointwise_typed(rt, n, x, mp_promote(n, x));
}

static struct mp_tensor *pointwise1(struct mp_runtime *rt, struct mp_tensor *x) { return mp_pointwise(rt, MP_TENSORS(x)); }

static struct mp_tensor *pointwise2(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    return mp_pointwise(rt, MP_TENSORS(a, b));
}

struct mp_tensor *mp_empty_like(struct mp_runtime *rt, const struct mp_tensor *like, enum mp_dtype dtype)
{
    if (mp_is_dense(like))
        return mp_empty_strided(rt, like->shape, like->stride, dtype);
    struct mp_tensor *operand = (struct mp_tensor *)(uintptr_t)like; /* only read */
    return pointwise_typed(rt, 1, &operand, dtype);
}

/* ---- casts ---- */

static void to_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty_like(rt, g[0], (enum mp_dtype)n->dtype);
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type to_type = {"ToCopyBackward0", to_backward};

struct mp_tensor *mp_to(struct mp_runtime *rt, struct mp_tensor *x, enum mp_dtype dtype)
{
    if (x->dtype == dtype)
        return x;
    struct mp_scope scope = mp_begin(rt, "to", MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, &to_type, MP_TENSORS(x));
    struct mp_tensor *out = mp_empty_like(rt, x, dtype);
    mp_record_copy(rt, "to", x, out);
    if (n)
        n->dtype = x->dtype;
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- binary ---- */

static void add_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    (void)rt;
    for (int i = 0; i < n->n_inputs; i++)
        out[i] = mp_needs_input(n, i) ? g[0] : NULL;
}
static const struct mp_node_type add_type = {"AddBackward0", add_backward};

struct mp_tensor *mp_add(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "add", MP_TENSORS(a, b));
    struct mp_node *n = mp_node_new(rt, &add_type, MP_TENSORS(a, b));
    struct mp_tensor *out = pointwise2(rt, a, b);
    mp_record(rt, "add", MP_TENSORS(a, b), MP_TENSORS(out), MP_NO_ATTRIBUTES);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

void mp_add_inplace(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *y)
{
    struct mp_node *n = mp_node_new(rt, &add_type, MP_TENSORS(x, y));
    mp_record(rt, "add_", MP_TENSORS(x, y), MP_TENSORS(x), MP_NO_ATTRIBUTES);
    if (!n)
        return;
    struct mp_node *old = x->grad_fn;
    mp_track(rt, n, x);
    if (old)
        mp_node_unref(rt, old);
}

static void sub_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_needs_input(n, 0) ? g[0] : NULL;
    out[1] = mp_needs_input(n, 1) ? pointwise1(rt, g[0]) : NULL; /* negated */
    if (out[1])
        mp_record(rt, "neg", MP_TENSORS(g[0]), MP_TENSORS(out[1]), MP_NO_ATTRIBUTES);
}
static const struct mp_node_type sub_type = {"SubBackward0", sub_backward};

struct mp_tensor *mp_sub(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "sub", MP_TENSORS(a, b));
    struct mp_node *n = mp_node_new(rt, &sub_type, MP_TENSORS(a, b));
    struct mp_tensor *out = pointwise2(rt, a, b);
    mp_record(rt, "sub", MP_TENSORS(a, b), MP_TENSORS(out), MP_NO_ATTRIBUTES);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* The gradient of the second factor is computed first (alphabetical order of the formulas: other, self). */
static void mul_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    if (mp_needs_input(n, 1))
        out[1] = pointwise2(rt, g[0], mp_saved_tensor(n, 1));
    if (mp_needs_input(n, 0))
        out[0] = pointwise2(rt, g[0], mp_saved_tensor(n, 0));
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type mul_type = {"MulBackward0", mul_backward};

struct mp_tensor *mp_mul(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "mul", MP_TENSORS(a, b));
    struct mp_node *n = mp_node_new(rt, &mul_type, MP_TENSORS(a, b));
    mp_save(rt, n, mp_needs_input(n, 0) ? b : NULL);
    mp_save(rt, n, mp_needs_input(n, 1) ? a : NULL);
    struct mp_tensor *out = pointwise2(rt, a, b);
    mp_record(rt, "mul", MP_TENSORS(a, b), MP_TENSORS(out), MP_NO_ATTRIBUTES);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- with a number: a Python number neither promotes nor is saved ---- */

static void scale_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = pointwise1(rt, g[0]);
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_number("number", n->number)));
}
static const struct mp_node_type mul_number_type = {"MulBackward0", scale_backward};
static const struct mp_node_type div_number_type = {"DivBackward0", scale_backward};
static const struct mp_node_type neg_type = {"NegBackward0", scale_backward};

struct unary_style {
    bool save_input, save_output;
    const char *attribute; /* name of the number; NULL: the operator has none */
};

static struct mp_tensor *unary(struct mp_runtime *rt, const char *op, const struct mp_node_type *type, struct mp_tensor *x,
                               const struct unary_style style, double number)
{
    struct mp_scope scope = mp_begin(rt, op, MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, type, MP_TENSORS(x));
    if (style.save_input)
        mp_save(rt, n, x);
    struct mp_tensor *out = pointwise1(rt, x);
    mp_record(rt, op, MP_TENSORS(x), MP_TENSORS(out), MP_ATTRIBUTES(mp_number(style.attribute, number)));
    if (n)
        n->number = number;
    if (style.save_output)
        mp_save_output(rt, n, out);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

struct mp_tensor *mp_add_number(struct mp_runtime *rt, struct mp_tensor *x, double number)
{
    return unary(rt, "add", &add_type, x, (struct unary_style){.attribute = "number"}, number);
}

struct mp_tensor *mp_mul_number(struct mp_runtime *rt, struct mp_tensor *x, double number)
{
    return unary(rt, "mul", &mul_number_type, x, (struct unary_style){.attribute = "number"}, number);
}

void mp_scale_inplace(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_node *n = mp_node_new(rt, &mul_number_type, MP_TENSORS(x));
    if (!n)
        return;
    struct mp_node *old = x->grad_fn;
    mp_track(rt, n, x);
    if (old)
        mp_node_unref(rt, old);
}

struct mp_tensor *mp_div_number(struct mp_runtime *rt, struct mp_tensor *x, double number)
{
    return unary(rt, "div", &div_number_type, x, (struct unary_style){.attribute = "number"}, number);
}

struct mp_tensor *mp_neg(struct mp_runtime *rt, struct mp_tensor *x) { return unary(rt, "neg", &neg_type, x, (struct unary_style){0}, -1); }

/* ---- activations: one saved tensor, one product in backward ---- */

static const struct unary_style of_input = {.save_input = true}, of_output = {.save_output = true};

static void saved_product_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = pointwise2(rt, g[0], mp_saved_tensor(n, 0));
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_number(n->number > 0 ? "p" : NULL, n->number)));
}
static const struct mp_node_type tanh_type = {"TanhBackward0", saved_product_backward};
static const struct mp_node_type relu_type = {"ReluBackward0", saved_product_backward};
static const struct mp_node_type sigmoid_type = {"SigmoidBackward0", saved_product_backward};
static const struct mp_node_type gelu_type = {"GeluBackward0", saved_product_backward};
static const struct mp_node_type silu_type = {"SiluBackward0", saved_product_backward};
static const struct mp_node_type dropout_type = {"NativeDropoutBackward0", saved_product_backward};

struct mp_tensor *mp_tanh(struct mp_runtime *rt, struct mp_tensor *x) { return unary(rt, "tanh", &tanh_type, x, of_output, 0); }
struct mp_tensor *mp_relu(struct mp_runtime *rt, struct mp_tensor *x) { return unary(rt, "relu", &relu_type, x, of_output, 0); }
struct mp_tensor *mp_sigmoid(struct mp_runtime *rt, struct mp_tensor *x) { return unary(rt, "sigmoid", &sigmoid_type, x, of_output, 0); }
struct mp_tensor *mp_gelu(struct mp_runtime *rt, struct mp_tensor *x) { return unary(rt, "gelu", &gelu_type, x, of_input, 0); }
struct mp_tensor *mp_silu(struct mp_runtime *rt, struct mp_tensor *x) { return unary(rt, "silu", &silu_type, x, of_input, 0); }

/* native_dropout: a mask of bytes beside the result. Off in evaluation and at p = 0: the input comes back. */
struct mp_tensor *mp_dropout(struct mp_runtime *rt, struct mp_tensor *x, double p)
{
    if (p <= 0 || !rt->training)
        return x;
    struct mp_scope scope = mp_begin(rt, "dropout", MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, &dropout_type, MP_TENSORS(x));
    struct mp_tensor *mask = mp_empty_like(rt, x, MP_BOOL);
    struct mp_tensor *out = mp_empty_like(rt, x, x->dtype);
    mp_record(rt, "dropout", MP_TENSORS(x), MP_TENSORS(out, mask), MP_ATTRIBUTES(mp_number("p", p), mp_integer("seed", rt->n_random)));
    rt->n_random++;
    if (n)
        n->number = p;
    mp_save_output(rt, n, mask);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- powers: autocast runs them in float32 ---- */

/* grad * (exponent * x^(exponent - 1)) */
static void pow_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *x = mp_saved_tensor(n, 0);
    pointwise1(rt, x);
    struct mp_tensor *scaled = pointwise1(rt, x);
    out[0] = pointwise2(rt, g[0], scaled);
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_number("exponent", n->number)));
}
static const struct mp_node_type pow_type = {"PowBackward0", pow_backward};

struct mp_tensor *mp_pow(struct mp_runtime *rt, struct mp_tensor *x, double exponent)
{
    const struct unary_style style = {.save_input = true, .attribute = "exponent"};
    struct mp_scope scope = mp_begin(rt, "pow", MP_TENSORS(x));
    return mp_end(rt, &scope, unary(rt, "pow", &pow_type, mp_cast_float(rt, x), style, exponent));
}

/* -0.5 * grad * result^3 */
static void rsqrt_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *half = pointwise1(rt, g[0]);
    struct mp_tensor *cube = pointwise1(rt, mp_saved_tensor(n, 0));
    out[0] = pointwise2(rt, half, cube);
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type rsqrt_type = {"RsqrtBackward0", rsqrt_backward};

struct mp_tensor *mp_rsqrt(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_scope scope = mp_begin(rt, "rsqrt", MP_TENSORS(x));
    return mp_end(rt, &scope, unary(rt, "rsqrt", &rsqrt_type, mp_cast_float(rt, x), of_output, 0));
}

/* ---- clamping between 0-d tensors ---- */

enum { SAVED_MAXIMUM, SAVED_MINIMUM, SAVED_CLAMPED };

/* clamp_backward: a zero, self >= min, self <= max, then the gradient where both hold */
static void clamp_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    const struct mp_tensor *x = mp_saved_tensor(n, SAVED_CLAMPED);
    mp_empty(rt, MP_SCALAR, (enum mp_dtype)g[0]->dtype);
    mp_empty_like(rt, x, MP_BOOL);
    mp_empty_like(rt, x, MP_BOOL);
    out[0] = pointwise1(rt, g[0]);
}
static const struct mp_node_type clamp_type = {"ClampBackward0", clamp_backward};

struct mp_tensor *mp_clamp(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *minimum, struct mp_tensor *maximum)
{
    struct mp_scope scope = mp_begin(rt, "clamp", MP_TENSORS(x, minimum, maximum));
    struct mp_node *n = mp_node_new(rt, &clamp_type, MP_TENSORS(x));
    mp_save(rt, n, maximum);
    mp_save(rt, n, minimum);
    mp_save(rt, n, x);
    struct mp_tensor *out = pointwise1(rt, x);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}
