/* SPDX-License-Identifier: MIT */
/*
 * Saved tensors in pinned host memory: torch.autograd.graph.save_on_cpu(pin_memory=True).
 *
 * Everything that an operator saves is copied, each time it is saved: parameters and casts of them too, and a tensor that two
 * operators save twice. The copy on the host is contiguous. What is not contiguous on the device (a transposed weight, heads) is
 * first laid out anew there, for as long as the copy takes. In backward a node's tensors come back one by one, contiguous, before
 * the node runs, and die with it.
 */
#include "shadow/ops.h"

struct mp_host_copy {
    struct mp_shape shape;
    uint8_t dtype;
};

static struct mp_saved pack(struct mp_runtime *rt, struct mp_saved_hook *hook, struct mp_tensor *t, bool *stop)
{
    struct mp_host_copy *const copy = mp_runtime_alloc(rt, sizeof *copy);
    (void)hook;
    (void)stop;
    *copy = (struct mp_host_copy){t->shape, t->dtype};
    struct mp_tensor *const laid_out = mp_is_contiguous(t) ? t : mp_empty(rt, t->shape, (enum mp_dtype)t->dtype);
    if (laid_out != t)
        mp_record_copy(rt, "clone", t, laid_out);
    mp_record(rt, "to_host", MP_TENSORS(laid_out), MP_NO_TENSORS, MP_NO_ATTRIBUTES);
    if (laid_out != t)
        mp_discard(rt, laid_out);
    return (struct mp_saved){.host = copy};
}

void mp_host_hook_open(struct mp_runtime *rt, struct mp_saved_hook *hook)
{
    *hook = (struct mp_saved_hook){.up = rt->saved_hook, .pack = pack};
    rt->saved_hook = hook;
}

struct mp_tensor *mp_host_unpack(struct mp_runtime *rt, const struct mp_host_copy *copy)
{
    struct mp_tensor *const t = mp_take(rt, mp_empty(rt, copy->shape, (enum mp_dtype)copy->dtype));
    mp_tag(rt, t->storage, MP_CATEGORY_ACTIVATION);
    mp_record(rt, "to_device", MP_NO_TENSORS, MP_TENSORS(t), MP_NO_ATTRIBUTES);
    return t;
}
