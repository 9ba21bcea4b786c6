/* SPDX-License-Identifier: MIT */
/* Matrix products and the workspaces of cuBLAS and cuBLASLt. */
#include "shadow/module.h"
#include "shadow/ops.h"

/* PyTorch's workspace for a cuBLAS handle, and what the handle takes for itself. */
static struct mp_card_answer cublas_workspace(const struct mp_gpu *gpu, const int64_t *args)
{
    (void)args;
    /* with PyTorch's 32 MiB workspace a handle takes 64 MiB of its own, with 8,519,680 bytes 8 MiB (h200-kernels.jsonl, workspace-*) */
    const uint64_t bytes = gpu->cublas_workspace_bytes.value, own_bytes = bytes >= 32 * MP_MIB ? 64 * MP_MIB : 8 * MP_MIB;
    return (struct mp_card_answer){.bytes = {bytes, own_bytes}};
}

static struct mp_card_answer cublaslt_workspace(const struct mp_gpu *gpu, const int64_t *args)
{
    (void)args;
    return (struct mp_card_answer){.bytes = {gpu->cublaslt_workspace_bytes.value}};
}

static void create_handle(struct mp_runtime *rt, const struct mp_card_reply *workspace)
{
    const bool first = !(rt->loaded >> MP_DRIVER_FIRST_CUBLAS & 1u);
    mp_driver_event_asked(rt, first ? MP_DRIVER_FIRST_CUBLAS : MP_DRIVER_CUBLAS, workspace, 1);
}

/*
 * One cuBLAS workspace per handle and stream, at the first product of a thread, never freed; cuBLASLt adds its own at the first
 * addmm with bias. Backward runs on a thread of its own, with handles of its own.
 */
void mp_gemm_workspace(struct mp_runtime *rt, bool lt)
{
    mp_card_question *const questions[2] = {cublas_workspace, cublaslt_workspace};
    for (int i = 0; i <= (lt ? 1 : 0); i++) {
        if (rt->workspace[rt->thread][i])
            continue;
        const struct mp_card_reply workspace = mp_ask(rt, questions[i], 0);
        if (i == 0)
            create_handle(rt, &workspace);
        const enum mp_category category = rt->category;
        rt->category = MP_CATEGORY_WORKSPACE;
        rt->workspace[rt->thread][i] = mp_storage_asked(rt, &workspace, 0);
        rt->category = category;
    }
}

/* ---- layout of gradients: a matrix's gradient has the matrix's own layout ---- */

static bool is_column_major(const struct mp_shape *shape, const int64_t *stride)
{
    return stride[0] == 1 && stride[1] >= shape->d[0] && !(stride[1] == 1 && stride[0] >= shape->d[1]);
}

static struct mp_tensor *gradient_of(struct mp_runtime *rt, const struct mp_shape *shape, const int64_t *stride, enum mp_dtype dtype)
{
    struct mp_tensor *out;
    if (is_column_major(shape, stride))
        out = mp_transpose(rt, mp_empty(rt, MP_SHAPE(shape->d[1], shape->d[0]), dtype), 0, 1);
    else
        out = mp_empty(rt, *shape, dtype);
    mp_gemm_workspace(rt, false);
    return out;
}

static void remember_factors(struct mp_node *n, const struct mp_tensor *a, const struct mp_tensor *b)
{
    if (!n)
        return;
    n->shape = a->shape;
    n->shape2 = b->shape;
    memcpy(n->stride, a->stride, sizeof n->stride);
    memcpy(n->stride2, b->stride, sizeof n->stride2);
}

/* ---- mm ---- */

/* mat2 before self: formulas are evaluated in alphabetical order of their arguments */
static void mm_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    if (mp_needs_input(n, 1))
        out[1] = gradient_of(rt, &n->shape2, n->stride2, g[0]->dtype);
    if (mp_needs_input(n, 0))
        out[0] = gradient_of(rt, &n->shape, n->stride, g[0]->dtype);
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_workspace_attribute(rt, false)));
}
static const struct mp_node_type mm_type = {"MmBackward0", mm_backward};

struct mp_tensor *mp_mm(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "mm", MP_TENSORS(a, b));
    b = mp_cast_low(rt, b);
    a = mp_cast_low(rt, a);
    struct mp_node *n = mp_node_new(rt, &mm_type, MP_TENSORS(a, b));
    mp_save(rt, n, mp_needs_input(n, 0) ? b : NULL);
    mp_save(rt, n, mp_needs_input(n, 1) ? a : NULL);
    remember_factors(n, a, b);
    struct mp_tensor *out = mp_empty(rt, MP_SHAPE(mp_dim(a, 0), mp_dim(b, 1)), a->dtype);
    mp_gemm_workspace(rt, false);
    mp_record(rt, "mm", MP_TENSORS(a, b), MP_TENSORS(out), MP_ATTRIBUTES(mp_workspace_attribute(rt, false)));
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- addmm ---- */

static void addmm_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    if (mp_needs_input(n, 1))
        out[1] = gradient_of(rt, &n->shape, n->stride, g[0]->dtype);
    if (mp_needs_input(n, 2))
        out[2] = gradient_of(rt, &n->shape2, n->stride2, g[0]->dtype);
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_workspace_attribute(rt, false)));
    if (mp_needs_input(n, 0))
        out[0] = g[0]; /* summed over the rows by the engine */
}
static const struct mp_node_type addmm_type = {"AddmmBackward0", addmm_backward};

struct mp_tensor *mp_addmm(struct mp_runtime *rt, struct mp_tensor *bias, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "addmm", MP_TENSORS(bias, a, b));
    b = mp_cast_low(rt, b);
    a = mp_cast_low(rt, a);
    bias = mp_cast_low(rt, bias);
    struct mp_node *n = mp_node_new(rt, &addmm_type, MP_TENSORS(bias, a, b));
    mp_save(rt, n, mp_needs_input(n, 2) ? a : NULL);
    mp_save(rt, n, mp_needs_input(n, 1) ? b : NULL);
    remember_factors(n, a, b);
    struct mp_tensor *out = mp_empty(rt, MP_SHAPE(mp_dim(a, 0), mp_dim(b, 1)), a->dtype);
    mp_gemm_workspace(rt, true);
    mp_record(rt, "addmm", MP_TENSORS(bias, a, b), MP_TENSORS(out), MP_ATTRIBUTES(mp_workspace_attribute(rt, true)));
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- linear: composed of views and a product, with autocast in front of all ---- */

static struct mp_tensor *flatten_rows(struct mp_runtime *rt, struct mp_tensor *x)
{
    return mp_reshape(rt, x, MP_SHAPE(-1, mp_dim(x, -1)));
}

static struct mp_shape replace_last(const struct mp_shape *shape, int64_t last)
{
    struct mp_shape out = *shape;
    out.d[out.n - 1] = last;
    return out;
}

static struct mp_tensor *linear(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias)
{
    struct mp_scope scope = mp_begin(rt, "linear", MP_TENSORS(x, weight, bias));
    bias = mp_keep(mp_cast_low(rt, bias));
    weight = mp_keep(mp_cast_low(rt, weight));
    x = mp_keep(mp_cast_low(rt, x));
    const bool autocast = rt->autocast;
    rt->autocast = false;
    const struct mp_shape shape = replace_last(&x->shape, mp_dim(weight, 0));
    struct mp_tensor *out;
    if (bias) {
        struct mp_tensor *rows = flatten_rows(rt, x);
        struct mp_tensor *transposed = mp_transpose(rt, weight, 0, 1);
        out = mp_view(rt, mp_addmm(rt, bias, rows, transposed), shape);
    } else {
        struct mp_tensor *transposed = mp_transpose(rt, weight, 0, 1);
        struct mp_tensor *rows = flatten_rows(rt, x);
        out = mp_unsafe_view(rt, mp_mm(rt, rows, transposed), shape);
    }
    rt->autocast = autocast;
    return mp_end(rt, &scope, out);
}

/*
 * DeepSpeed's stage 3 puts a function of its own in the place of F.linear: it saves what it was given, not views of it, and
 * adds the bias in place (deepspeed/runtime/zero/linear.py).
 */
static void linear_function_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    struct mp_tensor *rows = mp_keep(flatten_rows(rt, g[0]));
    for (int i = 0; i < 2; i++) {
        if (!mp_needs_input(n, i))
            continue;
        out[i] = mp_keep(mp_empty(rt, i == 0 ? n->shape : n->shape2, g[0]->dtype));
        mp_gemm_workspace(rt, false);
    }
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_workspace_attribute(rt, false)));
    if (mp_needs_input(n, 2))
        out[2] = mp_reduce(rt, rows, 1u, false);
}
static const struct mp_node_type linear_function_type = {"LinearFunctionForZeroStage3Backward", linear_function_backward};

static struct mp_tensor *linear_function(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias)
{
    struct mp_scope scope = mp_begin(rt, "linear", MP_TENSORS(x, weight, bias));
    const bool lt = bias && x->shape.n == 2;
    struct mp_node *n = mp_node_new(rt, &linear_function_type, MP_TENSORS(x, weight, bias));
    struct mp_tensor *out = mp_empty(rt, replace_last(&x->shape, mp_dim(weight, 0)), x->dtype);
    mp_gemm_workspace(rt, lt);
    mp_record(rt, lt ? "addmm" : "mm", MP_TENSORS(x, weight), MP_TENSORS(out), MP_ATTRIBUTES(mp_workspace_attribute(rt, lt)));
    mp_save(rt, n, x); /* setup_context(), after forward() */
    mp_save(rt, n, weight);
    mp_save(rt, n, bias);
    if (n) {
        n->shape = x->shape;
        n->shape2 = weight->shape;
    }
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

struct mp_tensor *mp_linear(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias)
{
    struct mp_module_call call;
    x = mp_module_begin(rt, &call, MP_MODULE_LINEAR, weight, bias, x);
    return mp_module_end(rt, &call, (rt->hooks && rt->hooks->linear_function ? linear_function : linear)(rt, x, weight, bias));
}

struct mp_tensor *mp_linear_rows(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *weight, struct mp_tensor *bias)
{
    if (rt->hooks && rt->hooks->linear_function)
        return linear_function(rt, x, weight, bias);
    struct mp_scope scope = mp_begin(rt, "linear", MP_TENSORS(x, weight, bias));
    bias = mp_keep(mp_cast_low(rt, bias));
    weight = mp_keep(mp_cast_low(rt, weight));
    x = mp_keep(mp_cast_low(rt, x));
    const bool autocast = rt->autocast;
    rt->autocast = false;
    struct mp_tensor *transposed = mp_transpose(rt, weight, 0, 1);
    struct mp_tensor *out = bias ? mp_addmm(rt, bias, x, transposed) : mp_mm(rt, x, transposed);
    rt->autocast = autocast;
    return mp_end(rt, &scope, out);
}

/* ---- batched ---- */

static void bmm_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    if (mp_needs_input(n, 1)) {
        out[1] = mp_empty(rt, n->shape2, g[0]->dtype);
        mp_gemm_workspace(rt, false);
    }
    if (mp_needs_input(n, 0)) {
        out[0] = mp_empty(rt, n->shape, g[0]->dtype);
        mp_gemm_workspace(rt, false);
    }
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_workspace_attribute(rt, false)));
}
static const struct mp_node_type bmm_type = {"BmmBackward0", bmm_backward};

/* Its kernels' code fills the second page, if nothing before has. */
static struct mp_tensor *bmm(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "bmm", MP_TENSORS(a, b));
    struct mp_node *n = mp_node_new(rt, &bmm_type, MP_TENSORS(a, b));
    mp_save(rt, n, mp_needs_input(n, 0) ? b : NULL);
    mp_save(rt, n, mp_needs_input(n, 1) ? a : NULL);
    remember_factors(n, a, b);
    struct mp_tensor *out = mp_empty(rt, MP_SHAPE(mp_dim(a, 0), mp_dim(a, 1), mp_dim(b, 2)), a->dtype);
    mp_gemm_workspace(rt, false);
    mp_driver_event(rt, MP_DRIVER_CODE_PAGE, 0);
    mp_record(rt, "bmm", MP_TENSORS(a, b), MP_TENSORS(out), MP_ATTRIBUTES(mp_workspace_attribute(rt, false)));
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* Leading dimensions broadcast, then merged into one: a copy where the layout does not allow it. */
static struct mp_tensor *batch_matrix(struct mp_runtime *rt, struct mp_tensor *x, const struct mp_shape *lead)
{
    struct mp_shape shape = *lead;
    shape.d[shape.n++] = mp_dim(x, -2);
    shape.d[shape.n++] = mp_dim(x, -1);
    struct mp_tensor *expanded = mp_expand(rt, x, shape);
    return mp_reshape(rt, expanded, MP_SHAPE(-1, mp_dim(x, -2), mp_dim(x, -1)));
}

struct mp_tensor *mp_matmul(struct mp_runtime *rt, struct mp_tensor *a, struct mp_tensor *b)
{
    struct mp_scope scope = mp_begin(rt, "matmul", MP_TENSORS(a, b));
    b = mp_keep(mp_cast_low(rt, b));
    a = mp_keep(mp_cast_low(rt, a));
    const bool autocast = rt->autocast;
    rt->autocast = false;
    struct mp_shape lead = {.n = a->shape.n - 2};
    for (int i = 0; i < lead.n; i++)
        lead.d[i] = MP_MAX(a->shape.d[i], b->shape.d[i]);
    struct mp_shape shape = lead;
    shape.d[shape.n++] = mp_dim(a, -2);
    shape.d[shape.n++] = mp_dim(b, -1);
    struct mp_tensor *left = batch_matrix(rt, a, &lead);
    struct mp_tensor *right = batch_matrix(rt, b, &lead);
    struct mp_tensor *out = mp_unsafe_view(rt, bmm(rt, left, right), shape);
    rt->autocast = autocast;
    return mp_end(rt, &scope, out);
}
