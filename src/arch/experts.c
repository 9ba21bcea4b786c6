/* SPDX-License-Identifier: MIT */
/*
 * grouped_mm_experts_forward of transformers.integrations.moe: pairs of token
 * and expert are sorted by expert, two grouped products run over the rows, and
 * the results go back to their tokens. Memory does not depend on the routing.
 */
#include "arch/experts.h"

struct mp_experts mp_experts_new(struct mp_runtime *rt, struct mp_net *net, int64_t experts,
                                 int64_t hidden, int64_t inner)
{
    struct mp_experts e;
    e.gate_up =
        mp_parameter(rt, net, "mlp.experts.gate_up_proj", MP_SHAPE(experts, 2 * inner, hidden));
    e.down = mp_parameter(rt, net, "mlp.experts.down_proj", MP_SHAPE(experts, hidden, inner));
    return e;
}

static struct mp_tensor *integers(struct mp_runtime *rt, int64_t n, enum mp_dtype dtype)
{
    return mp_empty(rt, MP_SHAPE(n), dtype);
}

/* histc over the expert ids, then a cumulative sum: where each expert's rows
 * end */
static void group_offsets(struct mp_runtime *rt, struct mp_frame *f, int64_t rows, int64_t experts,
                          struct mp_tensor **histogram_input, struct mp_tensor **per_expert,
                          struct mp_tensor **offsets)
{
    enum { SCAN_TEMP_32BIT = 1023 };
    mp_let(f, histogram_input, integers(rt, rows, MP_I32));
    mp_let(f, per_expert, integers(rt, experts, MP_I32));
    mp_let(f, offsets, integers(rt, experts, MP_I32));
    mp_scratch(rt, SCAN_TEMP_32BIT);
}

/* The caller's variables: down(act(gate) * up), rows without an expert set to
 * zero after each product. */
struct product {
    struct mp_tensor *out, *gate, *up;
};

static void multiply(struct mp_runtime *rt, struct mp_frame *f, const struct mp_experts *e,
                     enum mp_activation activation, struct product *p, struct mp_tensor *rows,
                     struct mp_tensor *offsets, struct mp_tensor *sentinel)
{
    struct mp_tensor *part[2];
    mp_let(f, &p->out, mp_grouped_mm(rt, rows, mp_transpose(rt, e->gate_up, 1, 2), offsets));
    mp_let(f, &p->out, mp_masked_fill(rt, p->out, sentinel));
    mp_split(rt, p->out, 2, -1, part);
    mp_let(f, &p->gate, part[0]);
    mp_let(f, &p->up, part[1]);
    mp_let(f, &p->out, mp_mul(rt, mp_activate(rt, activation, p->gate), p->up));
    mp_del(f, &p->gate);
    mp_del(f, &p->up);
    mp_let(f, &p->out, mp_grouped_mm(rt, p->out, mp_transpose(rt, e->down, 1, 2), offsets));
    mp_let(f, &p->out, mp_masked_fill(rt, p->out, sentinel));
}

struct mp_tensor *mp_apply_experts(struct mp_runtime *rt, const struct mp_experts *e,
                                   enum mp_activation activation, struct mp_tensor *hidden,
                                   struct mp_tensor *indices, struct mp_tensor *weights)
{
    const int64_t experts = mp_dim(e->gate_up, 0), per_token = mp_dim(indices, -1),
                  tokens = mp_dim(hidden, 0), rows = tokens * per_token;
    struct mp_tensor *flat_weights = NULL, *ids = NULL, *order = NULL, *selected = NULL,
                     *selected_weights = NULL, *histogram_input = NULL, *per_expert = NULL,
                     *offsets = NULL, *sentinel = NULL, *weighted = NULL, *inverse = NULL,
                     *sum = NULL;
    struct product p = {NULL, NULL, NULL};
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &indices, &weights);
    mp_let(&f, &flat_weights, mp_reshape(rt, weights, MP_SHAPE(-1)));
    mp_let(&f, &ids, integers(rt, rows, MP_I64)); /* sort: values, indices, and a temporary */
    mp_let(&f, &order, integers(rt, rows, MP_I64));
    mp_discard(rt, integers(rt, rows, MP_I64));
    mp_let(&f, &selected,
           mp_index_rows(rt, hidden, integers(rt, rows, MP_I64))); /* order // per_token */
    mp_let(&f, &selected_weights, mp_index_rows(rt, flat_weights, order));
    group_offsets(rt, &f, rows, experts, &histogram_input, &per_expert, &offsets);
    mp_let(&f, &sentinel,
           mp_unsqueeze(rt, integers(rt, rows, MP_BOOL), 1)); /* rows whose expert is elsewhere */
    mp_let(&f, &selected, mp_masked_fill_inplace(rt, selected, sentinel));
    multiply(rt, &f, e, activation, &p, selected, offsets, sentinel);
    mp_let(&f, &weighted, mp_mul(rt, p.out, mp_unsqueeze(rt, selected_weights, 1)));
    mp_let(&f, &inverse, integers(rt, rows, MP_I64));
    mp_discard(rt, integers(rt, rows, MP_I64)); /* arange */
    mp_let(&f, &weighted, mp_index_rows(rt, weighted, inverse));
    mp_let(&f, &sum,
           mp_sum(rt, mp_view(rt, weighted, MP_SHAPE(tokens, per_token, mp_dim(hidden, 1))), 1,
                  false));
    return mp_leave(&f, mp_to(rt, sum, (enum mp_dtype)hidden->dtype));
}
