/* SPDX-License-Identifier: MIT */
/*
 * Experts one by one (the forward() of a family's experts class), where memory depends on the
 * routing, and grouped_mm_experts_forward of transformers.integrations.moe: pairs of token and
 * expert are sorted by expert, two grouped products run over the rows, and the results go back to
 * their tokens. Memory does not depend on the routing.
 */
#include "arch/experts.h"

struct mp_experts mp_experts_new(struct mp_runtime *rt, struct mp_net *net, int64_t experts,
                                 int64_t hidden, int64_t inner)
{
    struct mp_experts e;
    e.gate_up =
        mp_parameter(rt, net, "mlp.experts.gate_up_proj", MP_SHAPE(experts, 2 * inner, hidden));
    e.run = net->run;
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

/* A module below the experts. */
struct gate_function {
    enum mp_activation activation;
    const struct mp_module_call *experts;
};

static struct mp_tensor *activate(struct mp_runtime *rt, const struct gate_function *act_fn, struct mp_tensor *gate)
{
    mp_child_begin(rt, act_fn->experts);
    gate = mp_activate(rt, act_fn->activation, gate);
    mp_child_end(rt, act_fn->experts);
    return gate;
}

/* The caller's variables: down(act(gate) * up), rows without an expert set to
 * zero after each product. */
struct product {
    struct mp_tensor *out, *gate, *up;
};

static void multiply(struct mp_runtime *rt, struct mp_frame *f, const struct mp_experts *e,
                     const struct gate_function *act_fn, struct product *p, struct mp_tensor *rows,
                     struct mp_tensor *offsets, struct mp_tensor *sentinel)
{
    struct mp_tensor *part[2];
    mp_let(f, &p->out, mp_grouped_mm(rt, rows, mp_transpose(rt, e->gate_up, 1, 2), offsets));
    mp_let(f, &p->out, mp_masked_fill(rt, p->out, sentinel));
    mp_split(rt, p->out, 2, -1, part);
    mp_let(f, &p->gate, part[0]);
    mp_let(f, &p->up, part[1]);
    mp_let(f, &p->out, mp_mul(rt, activate(rt, act_fn, p->gate), p->up));
    mp_del(f, &p->gate);
    mp_del(f, &p->up);
    mp_let(f, &p->out, mp_grouped_mm(rt, p->out, mp_transpose(rt, e->down, 1, 2), offsets));
    mp_let(f, &p->out, mp_masked_fill(rt, p->out, sentinel));
}

/*
 * ids.sort(): values and indices, and the order to begin with. Up to 4,096 elements are sorted in a block's shared memory, more by
 * CUB, by all 64 bits of the ids.
 */
static void sort_ids(struct mp_runtime *rt, struct mp_frame *f, int64_t rows, struct mp_tensor **ids, struct mp_tensor **order)
{
    enum { LARGEST_SMALL_SORT = 4096, KEY_BITS = 64 };
    mp_let(f, ids, integers(rt, rows, MP_I64));
    mp_let(f, order, integers(rt, rows, MP_I64));
    struct mp_tensor *const unsorted = integers(rt, rows, MP_I64);
    if (rows > LARGEST_SMALL_SORT)
        mp_scratch(rt, mp_sort_temp(rows, KEY_BITS));
    mp_discard(rt, unsorted);
}

/* ---- one by one ---- */

int64_t mp_expert_rows(int64_t rows, int64_t most, int64_t n, double imbalance, int64_t i)
{
    int64_t busiest = 0, others = n;
    if (imbalance > 1.0 &&
        n > 1) { /* last, so that all the others' tensors are there beside its own */
        const double wanted = imbalance * (double)rows / (double)n;
        busiest = wanted < (double)MP_MIN(most, rows) ? (int64_t)wanted : MP_MIN(most, rows);
        others = n - 1;
        if (i == others)
            return busiest;
    }
    return (rows - busiest) * (i + 1) / others - (rows - busiest) * i / others;
}

/* nonzero(): a count, and CUB's temporaries for counting and for selecting (sizes of few elements)
 */
static struct mp_tensor *nonzero(struct mp_runtime *rt, int64_t found, int64_t dims)
{
    enum { COUNT_TEMP = 1, SELECT_TEMP = 1023 };
    struct mp_tensor *const count = mp_empty(rt, MP_SCALAR, MP_I32);
    mp_scratch(rt, COUNT_TEMP);
    struct mp_tensor *const places = mp_empty(rt, MP_SHAPE(found, dims), MP_I64);
    mp_scratch(rt, SELECT_TEMP);
    mp_discard(rt, count);
    return places;
}

/* torch.greater(expert_mask.sum(dim=(-1, -2)), 0).nonzero() */
static struct mp_tensor *find_hit(struct mp_runtime *rt, struct mp_tensor *mask, int64_t experts,
                                  int64_t hit)
{
    const int64_t stride[MP_MAX_DIMS] = {1, experts, experts * mp_dim(mask, 1)};
    struct mp_tensor *const permuted =
        mp_alias(rt, mask, MP_SHAPE(experts, mp_dim(mask, 1), mp_dim(mask, 0)), stride, NULL);
    struct mp_tensor *const sums = mp_reduce(rt, permuted, 6u, false);
    struct mp_tensor *const positive = mp_empty(rt, MP_SHAPE(experts), MP_BOOL);
    mp_discard(rt, sums);
    struct mp_tensor *const places = nonzero(rt, hit, 1);
    mp_discard(rt, positive);
    mp_discard(rt, permuted);
    return places;
}

/* torch.where(expert_mask[i]): the row of the mask is laid out first. [rows, 2] */
static struct mp_tensor *find_rows(struct mp_runtime *rt, const struct mp_tensor *mask,
                                   int64_t rows)
{
    struct mp_tensor *const row = mp_empty(rt, MP_SHAPE(mp_dim(mask, 1), mp_dim(mask, 0)), MP_I64);
    struct mp_tensor *const places = nonzero(rt, rows, 2);
    mp_discard(rt, row);
    return places;
}

static struct mp_tensor *column(struct mp_runtime *rt, struct mp_tensor *pairs)
{
    const int64_t stride[MP_MAX_DIMS] = {2};
    return mp_alias(rt, pairs, MP_SHAPE(mp_dim(pairs, 0)), stride, pairs);
}

static struct mp_tensor *one_by_one(struct mp_runtime *rt, const struct mp_experts *e,
                                    const struct gate_function *act_fn, struct mp_tensor *hidden,
                                    struct mp_tensor *indices, struct mp_tensor *weights)
{
    const int64_t experts = mp_dim(e->gate_up, 0), tokens = mp_dim(hidden, 0),
                  per_token = mp_dim(indices, -1);
    struct mp_tensor *sum = NULL, *mask = NULL, *hit = NULL, *position = NULL, *token = NULL,
                     *state = NULL, *gate = NULL, *up = NULL, *current = NULL, *part[2];
    struct mp_frame f;
    MP_MODULE(rt, &f, &hidden, &indices, &weights);
    mp_let(&f, &sum, mp_empty_like(rt, hidden, (enum mp_dtype)hidden->dtype));
    mp_let(&f, &mask, mp_empty(rt, MP_SHAPE(tokens, per_token, experts), MP_I64)); /* one_hot */
    mp_let(&f, &hit, find_hit(rt, mask, experts, experts));
    for (int64_t i = 0; i < experts; i++) {
        const int64_t rows =
            mp_expert_rows(tokens * per_token, tokens, experts, e->run->expert_imbalance, i);
        if (rows == 0)
            continue;
        mp_scratch(rt, 1); /* expert_idx == num_experts */
        struct mp_tensor *const pairs = mp_take(rt, find_rows(rt, mask, rows));
        mp_let(&f, &position, column(rt, pairs));
        mp_let(&f, &token, column(rt, pairs));
        mp_tensor_unref(rt, pairs);
        mp_let(&f, &state, mp_index_rows(rt, hidden, token));
        mp_split(rt, mp_linear_rows(rt, state, mp_select_row(rt, e->gate_up, i), NULL), 2, -1,
                 part);
        mp_let(&f, &gate, part[0]);
        mp_let(&f, &up, part[1]);
        mp_let(&f, &current, mp_mul(rt, activate(rt, act_fn, gate), up));
        mp_let(&f, &current, mp_linear_rows(rt, current, mp_select_row(rt, e->down, i), NULL));
        struct mp_tensor *const weight =
            mp_index_pairs(rt, mp_unsqueeze(rt, weights, -1), token, position);
        mp_let(&f, &current, mp_mul(rt, current, weight));
        mp_index_add_inplace(rt, sum, token, mp_to(rt, current, (enum mp_dtype)sum->dtype));
    }
    return mp_leave(&f, sum);
}

/* ---- grouped ---- */

static struct mp_tensor *grouped(struct mp_runtime *rt, const struct mp_experts *e,
                                 const struct gate_function *act_fn, struct mp_tensor *hidden,
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
    sort_ids(rt, &f, rows, &ids, &order);
    mp_let(&f, &selected,
           mp_index_rows(rt, hidden, integers(rt, rows, MP_I64))); /* order // per_token */
    mp_let(&f, &selected_weights, mp_index_rows(rt, flat_weights, order));
    group_offsets(rt, &f, rows, experts, &histogram_input, &per_expert, &offsets);
    mp_let(&f, &sentinel,
           mp_unsqueeze(rt, integers(rt, rows, MP_BOOL), 1)); /* rows whose expert is elsewhere */
    mp_let(&f, &selected, mp_masked_fill_inplace(rt, selected, sentinel));
    multiply(rt, &f, e, act_fn, &p, selected, offsets, sentinel);
    mp_let(&f, &weighted, mp_mul(rt, p.out, mp_unsqueeze(rt, selected_weights, 1)));
    mp_let(&f, &inverse, integers(rt, rows, MP_I64));
    mp_discard(rt, integers(rt, rows, MP_I64)); /* arange */
    mp_let(&f, &weighted, mp_index_rows(rt, weighted, inverse));
    mp_let(&f, &sum,
           mp_sum(rt, mp_view(rt, weighted, MP_SHAPE(tokens, per_token, mp_dim(hidden, 1))), 1,
                  false));
    return mp_leave(&f, mp_to(rt, sum, (enum mp_dtype)hidden->dtype));
}

struct mp_tensor *mp_apply_experts(struct mp_runtime *rt, const struct mp_experts *e,
                                   enum mp_activation activation, struct mp_tensor *hidden,
                                   struct mp_tensor *indices, struct mp_tensor *weights)
{
    struct mp_module_call call;
    const struct mp_module experts = {MP_MODULE_OTHER, 2, {e->gate_up, e->down}};
    const struct gate_function act_fn = {activation, &call};
    struct mp_tensor *(*const forward)(struct mp_runtime *, const struct mp_experts *, const struct gate_function *, struct mp_tensor *,
                                       struct mp_tensor *, struct mp_tensor *) = e->run->experts == MP_EXPERTS_EAGER ? one_by_one : grouped;
    hidden = mp_module_begin_as(rt, &call, &experts, hidden);
    weights = mp_module_input(rt, &call, weights);
    return mp_module_end(rt, &call, forward(rt, e, &act_fn, hidden, indices, weights));
}
