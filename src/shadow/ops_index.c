/* SPDX-License-Identifier: MIT */
/* Selecting by index or mask, and assigning to a part of a tensor. */
#include "shadow/ops.h"

/* ---- rows ---- */

static int bits_of(int64_t n)
{
    int bits = 0;
    for (; n > 0; n >>= 1)
        bits++;
    return bits;
}

/* index_put_ with accumulation: linear indices are sorted together with their
 * places. */
static void index_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                           struct mp_tensor **out)
{
    const int64_t count = mp_numel(mp_saved_tensor(n, 0));
    const uint64_t bytes = 8 * (uint64_t)count;
    out[0] = mp_empty(rt, n->shape, (enum mp_dtype)g[0]->dtype);
    struct mp_storage *expanded = mp_storage_new(rt, bytes), *linear = mp_storage_new(rt, bytes);
    mp_storage_unref(rt, expanded);
    struct mp_storage *sorted = mp_storage_new(rt, bytes), *original = mp_storage_new(rt, bytes),
                      *range = mp_storage_new(rt, bytes);
    mp_scratch(rt, mp_sort_temp(count, bits_of(n->shape.d[0] - 1)));
    mp_storage_unref(rt, range);
    mp_storage_unref(rt, original);
    mp_storage_unref(rt, sorted);
    mp_storage_unref(rt, linear);
}
static const struct mp_node_type index_type = {"IndexBackward0", index_backward};

/* An index times its stride; the wrapped index (no negative ones) is gone when it is done. */
static struct mp_storage *wrapped_index(struct mp_runtime *rt, uint64_t bytes)
{
    struct mp_storage *const wrapped = mp_storage_new(rt, bytes), *const strided = mp_storage_new(rt, bytes);
    mp_storage_unref(rt, wrapped);
    return strided;
}

/* The same for two indices: each is wrapped and multiplied, the second joins the first in place. */
static void index_pairs_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                                 struct mp_tensor **out)
{
    const int64_t count = mp_numel(mp_saved_tensor(n, 0));
    const uint64_t bytes = 8 * (uint64_t)count;
    struct mp_storage *sorted[3];
    out[0] = mp_empty(rt, n->shape, (enum mp_dtype)g[0]->dtype);
    struct mp_storage *const linear = wrapped_index(rt, bytes);
    mp_storage_unref(rt, wrapped_index(rt, bytes));
    for (int i = 0; i < 3; i++)
        sorted[i] = mp_storage_new(rt, bytes);
    mp_scratch(rt, mp_sort_temp(count, bits_of(n->shape.d[0] * n->shape.d[1] - 1)));
    for (int i = 2; i >= 0; i--)
        mp_storage_unref(rt, sorted[i]);
    mp_storage_unref(rt, linear);
}
static const struct mp_node_type index_pairs_type = {"IndexBackward0", index_pairs_backward};

struct mp_tensor *mp_index_pairs(struct mp_runtime *rt, struct mp_tensor *x,
                                 struct mp_tensor *first, struct mp_tensor *second)
{
    struct mp_scope scope = mp_begin(rt, "index", MP_TENSORS(x, first, second));
    struct mp_node *n = mp_node_new(rt, &index_pairs_type, MP_TENSORS(x));
    struct mp_shape shape = first->shape;
    mp_save(rt, n, first);
    mp_save(rt, n, second);
    for (int i = 2; i < x->shape.n; i++)
        shape.d[shape.n++] = x->shape.d[i];
    struct mp_tensor *out = mp_empty(rt, shape, (enum mp_dtype)x->dtype);
    if (n)
        n->shape = x->shape;
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* index_add_: the source's gradient is selected, x's passes */
static void index_add_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                               struct mp_tensor **out)
{
    if (mp_needs_input(n, 0))
        out[0] = g[0];
    if (mp_needs_input(n, 1))
        out[1] = mp_empty(rt, n->shape, (enum mp_dtype)g[0]->dtype);
}
static const struct mp_node_type index_add_type = {"IndexAddBackward0", index_add_backward};

void mp_index_add_inplace(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *index,
                          struct mp_tensor *source)
{
    struct mp_scope scope = mp_begin(rt, "index_add_", MP_TENSORS(x, index, source));
    struct mp_node *const n = mp_node_new(rt, &index_add_type, MP_TENSORS(x, source));
    mp_save(rt, n, index);
    mp_save(rt, n, source);
    if (n) {
        struct mp_node *const before = x->grad_fn;
        n->shape = source->shape;
        mp_track(rt, n, x);
        if (before)
            mp_node_unref(rt, before);
    }
    mp_end(rt, &scope, NULL);
}

struct mp_tensor *mp_index_rows(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *index)
{
    struct mp_scope scope = mp_begin(rt, "index", MP_TENSORS(x, index));
    struct mp_node *n = mp_node_new(rt, &index_type, MP_TENSORS(x));
    mp_save(rt, n, index);
    struct mp_shape shape = index->shape;
    for (int i = 1; i < x->shape.n; i++)
        shape.d[shape.n++] = x->shape.d[i];
    struct mp_tensor *out = mp_empty(rt, shape, (enum mp_dtype)x->dtype);
    if (n)
        n->shape = x->shape;
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

static void gather_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                            struct mp_tensor **out)
{
    out[0] = mp_empty(rt, n->shape, (enum mp_dtype)g[0]->dtype);
}
static const struct mp_node_type gather_type = {"GatherBackward0", gather_backward};

struct mp_tensor *mp_gather(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *index)
{
    struct mp_scope scope = mp_begin(rt, "gather", MP_TENSORS(x, index));
    struct mp_node *n = mp_node_new(rt, &gather_type, MP_TENSORS(x));
    mp_save(rt, n, index);
    struct mp_tensor *out = mp_empty(rt, index->shape, (enum mp_dtype)x->dtype);
    if (n)
        n->shape = x->shape;
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

/* ---- masks ---- */

static void fill_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                          struct mp_tensor **out)
{
    (void)n;
    out[0] = mp_pointwise(rt, MP_TENSORS(g[0]));
}
static const struct mp_node_type masked_fill_type = {"MaskedFillBackward0", fill_backward};

static struct mp_tensor *fill(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *mask,
                              bool in_place)
{
    struct mp_scope scope = mp_begin(rt, "masked_fill", MP_TENSORS(x, mask));
    struct mp_node *n = mp_node_new(rt, &masked_fill_type, MP_TENSORS(x));
    mp_save(rt, n, mask);
    struct mp_tensor *out =
        in_place ? mp_alias(rt, x, x->shape, x->stride, NULL) : mp_pointwise(rt, MP_TENSORS(x));
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

struct mp_tensor *mp_masked_fill(struct mp_runtime *rt, struct mp_tensor *x, struct mp_tensor *mask)
{
    return fill(rt, x, mask, false);
}

struct mp_tensor *mp_masked_fill_inplace(struct mp_runtime *rt, struct mp_tensor *x,
                                         struct mp_tensor *mask)
{
    return fill(rt, x, mask, true);
}

/* The other value is a number: a 0-d tensor for the time of the kernel. */
static void where_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                           struct mp_tensor **out)
{
    (void)n;
    mp_empty(rt, MP_SCALAR, (enum mp_dtype)g[0]->dtype);
    out[0] = mp_pointwise(rt, MP_TENSORS(g[0]));
}
static const struct mp_node_type where_type = {"WhereBackward0", where_backward};

static struct mp_tensor *where(struct mp_runtime *rt, struct mp_tensor *mask, struct mp_tensor *x,
                               bool number)
{
    struct mp_scope scope = mp_begin(rt, "where", MP_TENSORS(mask, x));
    struct mp_node *n = mp_node_new(rt, &where_type, MP_TENSORS(x));
    mp_save(rt, n, mask);
    if (number)
        mp_empty(rt, MP_SCALAR, (enum mp_dtype)x->dtype);
    struct mp_tensor *out = mp_pointwise(rt, MP_TENSORS(x));
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

struct mp_tensor *mp_where_number(struct mp_runtime *rt, struct mp_tensor *mask,
                                  struct mp_tensor *x)
{
    return where(rt, mask, x, true);
}
struct mp_tensor *mp_where_scalar(struct mp_runtime *rt, struct mp_tensor *mask,
                                  struct mp_tensor *x)
{
    return where(rt, mask, x, false);
}

/* ---- assignment to a part ---- */

/*
 * CopySlices: a copy of the gradient for what the base was before, with zeros
 * where it was written; the part's own gradient goes to the source. The first
 * assignment to a fresh tensor has no "before".
 */
static void copy_slices_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                                 struct mp_tensor **out)
{
    struct mp_tensor *whole =
        mp_empty_strided(rt, n->shape2, n->stride2, (enum mp_dtype)g[0]->dtype);
    struct mp_tensor *part = mp_empty(rt, n->shape, (enum mp_dtype)g[0]->dtype);
    struct mp_tensor *zeros =
        mp_needs_input(n, 0) ? mp_empty_like(rt, part, (enum mp_dtype)part->dtype) : NULL;
    out[1] = part;
    if (n->dtype != part->dtype) {
        out[1] = mp_empty_like(rt, part, (enum mp_dtype)n->dtype);
        mp_discard(rt, part);
    }
    if (zeros)
        out[0] = whole;
}
static const struct mp_node_type copy_slices_type = {"CopySlices", copy_slices_backward};

void mp_assign_slice(struct mp_runtime *rt, struct mp_tensor *base, struct mp_tensor *source)
{
    struct mp_node *n = mp_node_new(rt, &copy_slices_type, MP_TENSORS(base, source));
    if (!n)
        return;
    n->shape = source->shape;
    n->dtype = source->dtype;
    n->shape2 = base->shape;
    memcpy(n->stride2, base->stride, sizeof n->stride2);
    struct mp_node *const before = base->grad_fn;
    mp_track(rt, n, base);
    if (before)
        mp_node_unref(rt, before);
}
