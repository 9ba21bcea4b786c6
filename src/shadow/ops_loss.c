/* SPDX-License-Identifier: MIT */
/* Cross-entropy: log_softmax and nll_loss, each with a tensor of the logits' size forwards and backwards. */
#include "shadow/ops.h"

#define MP_IGNORE_INDEX (-100)

static void log_softmax_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty(rt, g[0]->shape, g[0]->dtype);
    mp_record_node(rt, n, g, out, MP_NO_ATTRIBUTES);
}
static const struct mp_node_type log_softmax_type = {"LogSoftmaxBackward0", log_softmax_backward};

static void nll_loss_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g, struct mp_tensor **out)
{
    out[0] = mp_empty(rt, n->shape, (enum mp_dtype)n->dtype);
    mp_record_node(rt, n, g, out, MP_ATTRIBUTES(mp_integer("ignore_index", MP_IGNORE_INDEX)));
}
static const struct mp_node_type nll_loss_type = {"NllLossBackward0", nll_loss_backward};

/* F.cross_entropy passes the logits' type on, so autocast leaves log_softmax in it. */
static struct mp_tensor *log_softmax(struct mp_runtime *rt, struct mp_tensor *logits)
{
    struct mp_scope scope = mp_begin(rt, "log_softmax", MP_TENSORS(logits));
    struct mp_node *n = mp_node_new(rt, &log_softmax_type, MP_TENSORS(logits));
    struct mp_tensor *out = mp_empty(rt, logits->shape, logits->dtype);
    mp_driver_event(rt, MP_DRIVER_CODE_PAGE, 0);
    mp_record(rt, "log_softmax", MP_TENSORS(logits), MP_TENSORS(out), MP_NO_ATTRIBUTES);
    mp_save_output(rt, n, out);
    mp_track(rt, n, out);
    return mp_end(rt, &scope, out);
}

static struct mp_tensor *nll_loss(struct mp_runtime *rt, struct mp_tensor *log_probabilities, struct mp_tensor *target)
{
    struct mp_scope scope = mp_begin(rt, "nll_loss", MP_TENSORS(log_probabilities, target));
    log_probabilities = mp_cast_float(rt, log_probabilities);
    struct mp_node *n = mp_node_new(rt, &nll_loss_type, MP_TENSORS(log_probabilities));
    mp_save(rt, n, log_probabilities);
    mp_save(rt, n, target);
    struct mp_tensor *loss = mp_empty(rt, MP_SCALAR, log_probabilities->dtype);
    struct mp_tensor *total_weight = mp_empty(rt, MP_SCALAR, log_probabilities->dtype);
    mp_record(rt, "nll_loss", MP_TENSORS(log_probabilities, target), MP_TENSORS(loss, total_weight),
              MP_ATTRIBUTES(mp_integer("ignore_index", MP_IGNORE_INDEX)));
    mp_save_output(rt, n, total_weight);
    if (n) {
        n->shape = log_probabilities->shape;
        n->dtype = log_probabilities->dtype;
    }
    mp_track(rt, n, loss);
    return mp_end(rt, &scope, loss);
}

struct mp_tensor *mp_cross_entropy(struct mp_runtime *rt, struct mp_tensor *logits, struct mp_tensor *target)
{
    struct mp_scope scope = mp_begin(rt, "cross_entropy", MP_TENSORS(logits, target));
    const enum mp_category category = rt->category;
    rt->category = MP_CATEGORY_LOGITS;
    struct mp_tensor *loss = nll_loss(rt, log_softmax(rt, logits), target);
    rt->category = category;
    return mp_end(rt, &scope, loss);
}
