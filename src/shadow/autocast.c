/* SPDX-License-Identifier: MIT */
/*
 * torch.autocast: casts in front of operators, and the cache of weight casts.
 *
 * Cached is the low-precision copy of a float32 leaf that requires grad and is no view; inputs are cast anew every time. The
 * cache lives until the outermost region ends, so all weight casts of a checkpointed model coexist in it.
 */
#include "shadow/ops.h"

void mp_autocast_enter(struct mp_runtime *rt, struct mp_autocast *outer, bool enabled, enum mp_dtype dtype)
{
    *outer = (struct mp_autocast){rt->autocast, enabled && !rt->cache_open, rt->autocast_dtype};
    rt->autocast = enabled;
    if (!enabled)
        return;
    rt->autocast_dtype = dtype;
    rt->cache_open = true;
}

void mp_autocast_exit(struct mp_runtime *rt, const struct mp_autocast *outer)
{
    rt->autocast = outer->enabled;
    rt->autocast_dtype = outer->dtype;
    if (!outer->owner)
        return;
    for (int i = 0; i < rt->n_cached; i++) {
        struct mp_tensor *leaf = rt->cached[i], *cast = leaf->cast;
        leaf->cast = NULL;
        mp_tensor_unref(rt, cast);
        mp_tensor_unref(rt, leaf);
    }
    rt->n_cached = 0;
    rt->cache_open = false;
}

static void remember(struct mp_runtime *rt, struct mp_tensor *leaf, struct mp_tensor *cast)
{
    if (rt->n_cached == rt->cap_cached) {
        const int wanted = rt->cap_cached ? rt->cap_cached * 2 : 256;
        struct mp_tensor **bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof(struct mp_tensor *));
        if (rt->n_cached)
            memcpy(bigger, rt->cached, (size_t)rt->n_cached * sizeof(struct mp_tensor *));
        rt->cached = bigger;
        rt->cap_cached = wanted;
    }
    leaf->cast = mp_take(rt, cast);
    rt->cached[rt->n_cached++] = mp_tensor_ref(leaf);
}

struct mp_tensor *mp_cast_low(struct mp_runtime *rt, struct mp_tensor *x)
{
    if (!rt->autocast || !x || x->dtype == rt->autocast_dtype || !mp_dtype_is_floating(x->dtype))
        return x;
    if (x->dtype != MP_F32 || !x->requires_grad || x->grad_fn || x->base || !rt->cache_open)
        return mp_to(rt, x, rt->autocast_dtype);
    if (!x->cast)
        remember(rt, x, mp_to(rt, x, rt->autocast_dtype));
    return x->cast;
}

struct mp_tensor *mp_cast_float(struct mp_runtime *rt, struct mp_tensor *x)
{
    if (!rt->autocast || !x || !mp_dtype_is_floating(x->dtype))
        return x;
    return mp_to(rt, x, MP_F32);
}
