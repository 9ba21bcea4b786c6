/* SPDX-License-Identifier: MIT */
/*
 * loss: chunked (validate/variants.py, ChunkedLoss): eight chunks of tokens, each of whose logits
 * and cross-entropy is checkpointed; in backward one chunk's logits exist at a time. loss: fused:
 * Liger's, as liger_kernel.transformers.model.*.lce_forward calls it.
 */
#include "arch/losses.h"

enum { CHUNKS = 8 };

/* F.pad(labels, (0, 1)), then labels[:, 1:].contiguous(), as one row */
static struct mp_tensor *shifted_labels(struct mp_runtime *rt, struct mp_tensor *labels)
{
    const int64_t batch = mp_dim(labels, 0), seq = mp_dim(labels, 1);
    struct mp_tensor *const padded = mp_empty(rt, MP_SHAPE(batch, seq + 1), MP_I64);
    return mp_contiguous(rt, mp_slice(rt, padded, 1, 1, seq + 1));
}

/* ---- chunked ---- */

/* of_chunk(row, target): the head's logits in float32, and the sum of their losses */
static void of_chunk(struct mp_runtime *rt, const struct mp_layer *call, struct mp_tensor **args,
                     struct mp_tensor **out)
{
    struct mp_tensor *row = args[0], *target = args[1], *logits = NULL;
    struct mp_tensor *const head = (struct mp_tensor *)(uintptr_t)call->model;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &row, &target);
    const enum mp_category category = rt->category;
    rt->category = MP_CATEGORY_LOGITS;
    mp_let(&f, &logits, mp_to(rt, mp_linear_rows(rt, row, head, NULL), MP_F32));
    rt->category = category;
    out[0] = mp_leave(&f, mp_cross_entropy(rt, logits, target));
}

static struct mp_tensor *sum_chunks(struct mp_runtime *rt, struct mp_tensor *hidden,
                                    struct mp_tensor *head, struct mp_tensor *labels)
{
    struct mp_tensor *targets = NULL, *rows = NULL, *total = NULL, *row[CHUNKS], *target[CHUNKS];
    const double counted = (double)(mp_numel(labels) - mp_dim(labels, 0));
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &hidden, &labels);
    mp_let(&f, &targets, mp_view(rt, shifted_labels(rt, labels), MP_SHAPE(-1)));
    mp_let(&f, &rows, mp_view(rt, hidden, MP_SHAPE(-1, mp_dim(hidden, 2))));
    const int n = mp_chunk(rt, rows, CHUNKS, row);
    mp_chunk(rt, targets, CHUNKS, target);
    for (int i = 0; i < n; i++) {
        row[i] = mp_take(rt, row[i]);
        target[i] = mp_take(rt, target[i]);
    }
    for (int i = 0; i < n; i++) {
        const struct mp_layer chunk = {.forward = of_chunk, .model = head, .index = -1, .n_args = 2, .n_outputs = 1};
        struct mp_tensor *loss;
        mp_layer_call(rt, &chunk, MP_CHECKPOINTING_NON_REENTRANT,
                      (struct mp_tensor *[]){row[i], target[i]}, &loss);
        mp_let(&f, &total, total ? mp_add(rt, total, loss) : mp_add_number(rt, loss, 0));
    }
    for (int i = 0; i < n; i++) {
        mp_tensor_unref(rt, row[i]);
        mp_tensor_unref(rt, target[i]);
    }
    return mp_leave(&f, mp_div_number(rt, total, counted));
}

/* Of the body's outputs only the hidden states are kept. */
static void chunked(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head,
                    const struct mp_inputs *in, struct mp_outputs *out)
{
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &hidden);
    mp_kv_cache_release(rt, out->cache);
    out->cache = NULL;
    struct mp_tensor *const loss = sum_chunks(rt, hidden, head, in->labels);
    mp_give(&f, &out->hidden, hidden);
    out->loss = mp_leave(&f, loss);
}

/* ---- fused ---- */

/* LigerForCausalLMLoss */
static struct mp_tensor *fused_loss(struct mp_runtime *rt, struct mp_tensor *hidden,
                                    struct mp_tensor *head, struct mp_tensor *labels)
{
    const int64_t batch = mp_dim(labels, 0), seq = mp_dim(labels, 1);
    struct mp_tensor *shifted = NULL, *loss = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &hidden, &labels);
    mp_let(&f, &labels, mp_empty(rt, MP_SHAPE(batch, seq + 1), MP_I64));
    mp_let(&f, &shifted, mp_contiguous(rt, mp_slice(rt, labels, 1, 1, seq + 1)));
    mp_let(&f, &hidden, mp_view(rt, hidden, MP_SHAPE(-1, mp_dim(hidden, 2))));
    mp_let(&f, &shifted, mp_view(rt, shifted, MP_SHAPE(-1)));
    mp_let(&f, &loss, mp_fused_linear_cross_entropy(rt, hidden, head, shifted));
    return mp_leave(&f, loss);
}

static void fused(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head,
                  const struct mp_inputs *in, struct mp_outputs *out)
{
    struct mp_tensor *kept = NULL, *loss = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &hidden);
    mp_let(&f, &kept, mp_slice(rt, hidden, 1, 0, mp_dim(hidden, 1)));
    mp_let(&f, &loss, fused_loss(rt, kept, head, in->labels));
    out->loss = mp_leave(&f, loss);
}

bool mp_loss_without_logits(struct mp_runtime *rt, struct mp_tensor *hidden, struct mp_tensor *head,
                            const struct mp_inputs *in, struct mp_outputs *out)
{
    if (in->loss == MP_LOSS_FULL)
        return false;
    if (in->loss == MP_LOSS_CHUNKED)
        chunked(rt, hidden, head, in, out);
    else
        fused(rt, hidden, head, in, out);
    return true;
}
