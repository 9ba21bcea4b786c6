/* SPDX-License-Identifier: MIT */
/* Views and copies: what shares a storage, what has to be laid out anew, and how gradients travel back through them. */
#include "shadow/ops.h"

#include "shadow/module.h"

struct mp_scope mp_begin(struct mp_runtime *rt, const char *op, int n, struct mp_tensor *const *args)
{
    struct mp_scope scope = {.op = rt->op, .n_temporaries = rt->n_temporaries, .n_args = n};
    for (int i = 0; i < n; i++) {
        scope.args[i] = args[i];
        if (args[i] && args[i]->temporary >= 0 && !args[i]->pinned) {
            args[i]->pinned = true;
            scope.pinned |= 1u << i;
        }
    }
    rt->op = op;
    mp_use_begin(rt, n, args, false);
    return scope;
}

struct mp_tensor *mp_end(struct mp_runtime *rt, const struct mp_scope *scope, struct mp_tensor *result)
{
    struct mp_tensor *owned = mp_take(rt, result);
    mp_discard_to(rt, scope->n_temporaries);
    mp_use_end(rt, scope->n_args, scope->args, false);
    for (int i = 0; i < scope->n_args; i++)
        if (scope->pinned & 1u << i) {
            scope->args[i]->pinned = false;
            mp_discard(rt, scope->args[i]);
        }
    rt->op = scope->op;
    return owned ? mp_float(rt, owned) : NULL;
}

/* ---- layout ---- */

static struct mp_shape resolve(struct mp_shape shape, int64_t numel)
{
    int64_t known = 1;
    for (int i = 0; i < shape.n; i++)
        if (shape.d[i] != -1)
            known *= shape.d[i];
    for (int i = 0; i < shape.n; i++)
        if (shape.d[i] == -1)
            shape.d[i] = known ? numel / known : 0;
    return shape;
}

/* at::detail::computeStride: false when the shape needs a copy. */
static bool view_stride(const struct mp_tensor *t, const struct mp_shape *shape, int64_t *stride)
{
    int64_t size[MP_MAX_DIMS], step[MP_MAX_DIMS]; /* old dimensions, merged where contiguous */
    int n = 0;
    for (int i = 0; i < t->shape.n; i++) {
        const int64_t d = t->shape.d[i], s = t->stride[i];
        if (d == 1)
            continue;
        if (n && step[n - 1] == d * s)
            size[n - 1] *= d;
        else
            size[n++] = d;
        step[n - 1] = s;
    }
    if (n == 0 || mp_numel(t) == 0) {
        mp_contiguous_stride(shape, stride);
        return true;
    }
    int i = shape->n - 1;
    for (int c = n - 1; c >= 0; c--) {
        int64_t covered = 1;
        while (i >= 0 && (covered < size[c] || shape->d[i] == 1)) {
            stride[i] = step[c] * covered;
            covered *= shape->d[i--];
        }
        if (covered != size[c])
            return false;
    }
    for (; i >= 0; i--) {
        if (shape->d[i] != 1)
            return false;
        stride[i] = i + 1 < shape->n ? stride[i + 1] * shape->d[i + 1] : 1;
    }
    return true;
}

/* ---- the general view ---- */

static struct mp_tensor *make_view(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape, const int64_t *stride,
                                   const struct mp_node_type *type, struct mp_node **node)
{
    struct mp_tensor *out = mp_alias(rt, x, shape, stride, x->base ? x->base : x);
    struct mp_node *n = mp_node_new(rt, type, MP_TENSORS(x));
    if (n) {
        n->shape = x->shape;
        mp_track(rt, n, out);
    }
    if (node)
        *node = n;
    return out;
}

/* A view of a temporary keeps it as its base; the expression lets go of it. */
static struct mp_tensor *end_view(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *out)
{
    if (out != x)
        mp_discard(rt, x);
    return out;
}

static void view_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_reshape(rt, g[0], n->shape);
}
static const struct mp_node_type view_type = {"ViewBackward0", view_backward};
static const struct mp_node_type unsafe_view_type = {"UnsafeViewBackward0", view_backward};

struct mp_tensor *mp_view(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape)
{
    int64_t stride[MP_MAX_DIMS];
    shape = resolve(shape, mp_numel(x));
    if (!view_stride(x, &shape, stride))
        mp_raise(rt, MEMPLAN_STATUS_INPUT, "a view of incompatible shape was asked for");
    return end_view(rt, x, make_view(rt, x, shape, stride, &view_type, NULL));
}

/* No base: the product it is made from is not seen again. */
struct mp_tensor *mp_unsafe_view(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape)
{
    int64_t stride[MP_MAX_DIMS];
    shape = resolve(shape, mp_numel(x));
    mp_contiguous_stride(&shape, stride);
    struct mp_tensor *out = mp_alias(rt, x, shape, stride, NULL);
    struct mp_node *n = mp_node_new(rt, &unsafe_view_type, MP_TENSORS(x));
    if (n) {
        n->shape = x->shape;
        mp_track(rt, n, out);
    }
    return end_view(rt, x, out);
}

static void clone_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    (void)rt;
    (void)n;
    out[0] = g[0];
}
static const struct mp_node_type clone_type = {"CloneBackward0", clone_backward};

/* stride NULL: memory format preserved */
static struct mp_tensor *clone_strided(struct mp_runtime *rt, struct mp_tensor *x, const int64_t *stride)
{
    struct mp_scope scope = mp_begin(rt, "clone", MP_TENSORS(x));
    struct mp_node *n = mp_node_new(rt, &clone_type, MP_TENSORS(x));
    struct mp_tensor *out = stride ? mp_empty_strided(rt, x->shape, stride, x->dtype) : mp_empty_like(rt, x, x->dtype);
    mp_record_copy(rt, "clone", x, out);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

struct mp_tensor *mp_clone(struct mp_runtime *rt, struct mp_tensor *x) { return clone_strided(rt, x, NULL); }

struct mp_tensor *mp_contiguous(struct mp_runtime *rt, struct mp_tensor *x)
{
    int64_t stride[MP_MAX_DIMS];
    if (mp_is_contiguous(x))
        return x;
    mp_contiguous_stride(&x->shape, stride);
    return clone_strided(rt, x, stride);
}

struct mp_tensor *mp_reshape(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape)
{
    int64_t stride[MP_MAX_DIMS];
    shape = resolve(shape, mp_numel(x));
    if (view_stride(x, &shape, stride))
        return end_view(rt, x, make_view(rt, x, shape, stride, &view_type, NULL));
    return mp_unsafe_view(rt, mp_contiguous(rt, x), shape);
}

/* ---- dimensions ---- */

static void transpose_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_transpose(rt, g[0], (int)n->arg[0], (int)n->arg[1]);
}
static const struct mp_node_type transpose_type = {"TransposeBackward0", transpose_backward};
static const struct mp_node_type t_type = {"TBackward0", transpose_backward};

struct mp_tensor *mp_transpose(struct mp_runtime *rt, struct mp_tensor *x, int a, int b)
{
    struct mp_shape shape = x->shape;
    int64_t stride[MP_MAX_DIMS];
    struct mp_node *n;
    a = a < 0 ? a + shape.n : a;
    b = b < 0 ? b + shape.n : b;
    memcpy(stride, x->stride, sizeof stride);
    shape.d[a] = x->shape.d[b];
    shape.d[b] = x->shape.d[a];
    stride[a] = x->stride[b];
    stride[b] = x->stride[a];
    struct mp_tensor *out = make_view(rt, x, shape, stride, shape.n == 2 ? &t_type : &transpose_type, &n);
    if (n) {
        n->arg[0] = a;
        n->arg[1] = b;
    }
    return end_view(rt, x, out);
}

static void permute_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    int inverse[MP_MAX_DIMS];
    for (int i = 0; i < n->shape.n; i++)
        inverse[n->perm[i]] = i;
    out[0] = mp_permute(rt, g[0], n->shape.n, inverse);
}
static const struct mp_node_type permute_type = {"PermuteBackward0", permute_backward};

struct mp_tensor *mp_permute(struct mp_runtime *rt, struct mp_tensor *x, int count, const int *dims)
{
    struct mp_shape shape = {.n = count};
    int64_t stride[MP_MAX_DIMS];
    struct mp_node *n;
    for (int i = 0; i < count; i++) {
        shape.d[i] = x->shape.d[dims[i]];
        stride[i] = x->stride[dims[i]];
    }
    struct mp_tensor *out = make_view(rt, x, shape, stride, &permute_type, &n);
    if (n)
        memcpy(n->perm, dims, (size_t)count * sizeof *dims);
    return end_view(rt, x, out);
}

static void expand_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_sum_to(rt, g[0], &n->shape);
}
static const struct mp_node_type expand_type = {"ExpandBackward0", expand_backward};

struct mp_tensor *mp_expand(struct mp_runtime *rt, struct mp_tensor *x, struct mp_shape shape)
{
    const int lead = shape.n - x->shape.n;
    int64_t stride[MP_MAX_DIMS];
    for (int i = 0; i < shape.n; i++) {
        const int64_t old = i < lead ? 1 : x->shape.d[i - lead];
        if (shape.d[i] == -1)
            shape.d[i] = old;
        stride[i] = i < lead || (old == 1 && shape.d[i] != 1) ? 0 : x->stride[i - lead];
    }
    return end_view(rt, x, make_view(rt, x, shape, stride, &expand_type, NULL));
}

static void unsqueeze_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_reshape(rt, g[0], n->shape);
}
static const struct mp_node_type unsqueeze_type = {"UnsqueezeBackward0", unsqueeze_backward};

struct mp_tensor *mp_unsqueeze(struct mp_runtime *rt, struct mp_tensor *x, int dim)
{
    struct mp_shape shape = {.n = x->shape.n + 1};
    int64_t stride[MP_MAX_DIMS];
    dim = dim < 0 ? dim + shape.n : dim;
    for (int i = 0; i < shape.n; i++) {
        const int from = i < dim ? i : i - 1;
        shape.d[i] = i == dim ? 1 : x->shape.d[from];
        stride[i] = i == dim ? (dim < x->shape.n ? x->shape.d[dim] * x->stride[dim] : 1) : x->stride[from];
    }
    return end_view(rt, x, make_view(rt, x, shape, stride, &unsqueeze_type, NULL));
}

/* ---- parts ---- */

static void slice_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty(rt, n->shape, g[0]->dtype); /* zeros, then the part is copied in */
    mp_record_node(rt, n, g, out,
                   MP_ATTRIBUTES(mp_integer("dim", n->arg[0]), mp_integer("from", n->arg[1]),
                                 mp_integer("step", n->perm[0])));
}
static void alias_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    (void)n;
    out[0] = mp_is_contiguous(g[0]) ? mp_view(rt, g[0], g[0]->shape) : mp_detach(rt, g[0]);
}
static const struct mp_node_type slice_type = {"SliceBackward0", slice_backward};
static const struct mp_node_type alias_type = {"AliasBackward0", alias_backward};

static void remember_slice(struct mp_node *n, int dim, int64_t from, int step)
{
    if (!n)
        return;
    n->arg[0] = dim;
    n->arg[1] = from;
    n->perm[0] = step;
}

struct mp_tensor *mp_slice(struct mp_runtime *rt, struct mp_tensor *x, int dim, int64_t from, int64_t to)
{
    struct mp_shape shape = x->shape;
    dim = dim < 0 ? dim + shape.n : dim;
    shape.d[dim] = to - from;
    const bool whole = shape.d[dim] == x->shape.d[dim];
    struct mp_node *n;
    struct mp_tensor *out = make_view(rt, x, shape, x->stride, whole ? &alias_type : &slice_type, &n);
    out->offset += from * x->stride[dim];
    remember_slice(n, dim, from, 1);
    return end_view(rt, x, out);
}

static void split_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    int first = 0;
    while (!g[first])
        first++;
    out[0] = mp_empty(rt, n->shape, g[first]->dtype);
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_integer("dim", n->arg[0])));
}
static const struct mp_node_type split_type = {"SplitBackward0", split_backward};

void mp_split(struct mp_runtime *rt, struct mp_tensor *x, int count, int dim, struct mp_tensor **out)
{
    struct mp_shape shape = x->shape;
    dim = dim < 0 ? dim + shape.n : dim;
    shape.d[dim] /= count;
    struct mp_node *n = mp_node_new(rt, &split_type, MP_TENSORS(x));
    if (n) {
        n->shape = x->shape;
        n->arg[0] = dim;
    }
    for (int i = 0; i < count; i++) {
        out[i] = mp_alias(rt, x, shape, x->stride, x->base ? x->base : x);
        out[i]->offset += i * shape.d[dim] * x->stride[dim];
        mp_track(rt, n, out[i]);
    }
    mp_discard(rt, x);
}

int mp_chunk(struct mp_runtime *rt, struct mp_tensor *x, int count, struct mp_tensor **out)
{
    struct mp_shape shape = x->shape;
    const int64_t whole = shape.d[0], size = (whole + count - 1) / count;
    struct mp_node *n = mp_node_new(rt, &split_type, MP_TENSORS(x));
    int made = 0;
    if (n)
        n->shape = x->shape;
    for (int64_t from = 0; from < whole; from += size) {
        shape.d[0] = MP_MIN(size, whole - from);
        out[made] = mp_alias(rt, x, shape, x->stride, x->base ? x->base : x);
        out[made]->offset += from * x->stride[0];
        mp_track(rt, n, out[made++]);
    }
    mp_discard(rt, x);
    return made;
}

static const struct mp_node_type split_sizes_type = {"SplitWithSizesBackward0", split_backward};

void mp_split_sizes(struct mp_runtime *rt, struct mp_tensor *x, int count, const int64_t *sizes, int dim, struct mp_tensor **out)
{
    struct mp_shape shape = x->shape;
    dim = dim < 0 ? dim + shape.n : dim;
    struct mp_node *n = mp_node_new(rt, &split_sizes_type, MP_TENSORS(x));
    if (n) {
        n->shape = x->shape;
        n->arg[0] = dim;
    }
    int64_t from = 0;
    for (int i = 0; i < count; i++) {
        shape.d[dim] = sizes[i];
        out[i] = mp_alias(rt, x, shape, x->stride, x->base ? x->base : x);
        out[i]->offset += from * x->stride[dim];
        from += sizes[i];
        mp_track(rt, n, out[i]);
    }
    mp_discard(rt, x);
}

struct mp_tensor *mp_every_other(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_shape shape = x->shape;
    int64_t stride[MP_MAX_DIMS];
    memcpy(stride, x->stride, sizeof stride);
    shape.d[shape.n - 1] /= 2;
    stride[shape.n - 1] *= 2;
    struct mp_node *n;
    struct mp_tensor *out = make_view(rt, x, shape, stride, &slice_type, &n);
    remember_slice(n, shape.n - 1, 0, 2);
    return end_view(rt, x, out);
}

static const struct mp_node_type select_type = {"SelectBackward0", slice_backward};

struct mp_tensor *mp_select_row(struct mp_runtime *rt, struct mp_tensor *x, int64_t i)
{
    struct mp_shape shape = {.n = x->shape.n - 1};
    int64_t stride[MP_MAX_DIMS] = {0};
    for (int d = 1; d < x->shape.n; d++) {
        shape.d[d - 1] = x->shape.d[d];
        stride[d - 1] = x->stride[d];
    }
    struct mp_tensor *out = make_view(rt, x, shape, stride, &select_type, NULL);
    out->offset += i * x->stride[0];
    return end_view(rt, x, out);
}

struct mp_tensor *mp_select_first(struct mp_runtime *rt, struct mp_tensor *x)
{
    struct mp_shape shape = {.n = x->shape.n - 1, .d = {x->shape.d[0]}};
    int64_t stride[MP_MAX_DIMS] = {x->stride[0]};
    for (int i = 2; i < x->shape.n; i++) {
        shape.d[i - 1] = x->shape.d[i];
        stride[i - 1] = x->stride[i];
    }
    return end_view(rt, x, make_view(rt, x, shape, stride, &select_type, NULL));
}

static void cat_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    int64_t from = 0;
    for (int i = 0; i < n->n_inputs; i++) {
        struct mp_shape shape = g[0]->shape;
        shape.d[n->arg[0]] = n->perm[i];
        out[i] = mp_alias(rt, g[0], shape, g[0]->stride, g[0]->base ? g[0]->base : g[0]);
        out[i]->offset += from * g[0]->stride[n->arg[0]];
        from += n->perm[i];
    }
}
static const struct mp_node_type cat_type = {"CatBackward0", cat_backward};

struct mp_tensor *mp_cat(struct mp_runtime *rt, int count, struct mp_tensor *const *x, int dim)
{
    return mp_cat_as(rt, count, x, dim, mp_promote(count, x));
}

struct mp_tensor *mp_cat_as(struct mp_runtime *rt, int count, struct mp_tensor *const *x, int dim, enum mp_dtype dtype)
{
    struct mp_scope scope = mp_begin(rt, "cat", count, x);
    struct mp_node *n = mp_node_new(rt, &cat_type, count, x);
    struct mp_shape shape = x[0]->shape;
    dim = dim < 0 ? dim + shape.n : dim;
    shape.d[dim] = 0;
    for (int i = 0; i < count; i++) {
        shape.d[dim] += x[i]->shape.d[dim];
        if (n)
            n->perm[i] = (int)x[i]->shape.d[dim];
    }
    struct mp_tensor *out = mp_empty(rt, shape, dtype);
    mp_record(rt, "cat", count, x, MP_TENSORS(out), MP_ATTRIBUTES(mp_integer("dim", dim)));
    if (n)
        n->arg[0] = dim;
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}
