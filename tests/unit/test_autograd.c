/* SPDX-License-Identifier: MIT */
/* Backward passes by hand: who takes a gradient over, who copies it, and what dies when. */
#include "shadow_probe.h"
#include "suites.h"

static struct probe probe;
static struct mp_runtime *const rt = &probe.rt;

static void setup(void)
{
    probe_open(&probe, "H200-141G");
    probe_warm(&probe);
}

static void teardown(void)
{
    probe_close(&probe);
}

/* Span 0 from probe_begin() until here; backward in span 1. */
static void backward(struct mp_tensor *loss)
{
    probe_end(&probe);
    probe_begin(&probe);
    mp_backward(rt, loss);
    probe_end(&probe);
}

static void expect(const char *forward, const char *backward_events)
{
    ck_assert_str_eq(probe_text(&probe, 0), forward);
    ck_assert_str_eq(probe_text(&probe, 1), backward_events);
}

/* ---- gradients of leaves ---- */

START_TEST(a_fresh_gradient_becomes_grad)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const y = mp_take(rt, mp_neg(rt, w));
    backward(y);
    expect("+24", "+24 +24 -2");
    ck_assert_ptr_nonnull(w->grad);
    ck_assert_int_eq(w->grad->storage->category, MP_CATEGORY_GRADIENT);
}
END_TEST

START_TEST(a_gradient_that_somebody_holds_is_copied)
{
    struct mp_tensor *const a = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    struct mp_tensor *const b = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const y = mp_take(rt, mp_add(rt, a, b)); /* the root gradient, twice */
    backward(y);
    expect("+24", "+24 +24 +24 -2");
}
END_TEST

START_TEST(the_second_gradient_is_added_in_place)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    struct mp_tensor *const first = mp_take(rt, mp_neg(rt, w));
    mp_backward(rt, first);
    const struct mp_tensor *const grad = w->grad;
    probe_begin(&probe);
    struct mp_tensor *const second = mp_take(rt, mp_neg(rt, w));
    backward(second);
    expect("+24", "+24 +24 -3 -2");
    ck_assert_ptr_eq(w->grad, grad);
}
END_TEST

START_TEST(a_gradient_in_another_layout_is_copied)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(4, 6), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const y = mp_take(rt, mp_neg(rt, mp_contiguous(rt, mp_transpose(rt, w, 0, 1))));
    backward(y);
    expect("+96 +96 -1", "+96 +96 +96 -4 -3");
    ck_assert_int_eq(w->grad->stride[0], 6);
}
END_TEST

START_TEST(weight_gradients_come_in_the_layout_of_the_weight)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(5, 4), MP_F32);
    struct mp_tensor *const x = probe_tensor(&probe, MP_SHAPE(6, 4), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const y = mp_take(rt, mp_linear(rt, x, w, NULL));
    backward(y);
    expect("+120", "+120 +80 -2");
    ck_assert_int_eq(w->grad->stride[0], 4);
    ck_assert_int_eq(w->grad->stride[1], 1);
}
END_TEST

/* ---- two gradients for one input ---- */

START_TEST(fresh_gradients_are_added_in_place)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const h = mp_tanh(rt, w);
    struct mp_tensor *const y = mp_take(rt, mp_mul(rt, mp_keep(h), h));
    h->pinned = false;
    mp_discard(rt, h);
    backward(y); /* root, other (4), self (5), to which 4 is added; tanh's, then what it saved (1) */
    expect("+24 +24", "+24 +24 +24 -4 +24 -5 -1 -3");
}
END_TEST

START_TEST(a_gradient_that_is_a_view_costs_a_sum)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(2, 3), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const a = mp_take(rt, mp_neg(rt, w));
    struct mp_tensor *const b = mp_take(rt, mp_neg(rt, mp_view(rt, w, MP_SHAPE(3, 2))));
    struct mp_tensor *const y = mp_take(rt, mp_mul(rt, mp_view(rt, a, MP_SHAPE(6)), mp_view(rt, b, MP_SHAPE(6))));
    backward(y);
    /* root, b's and a's; b's neg: through a view of w; a's neg; their sum */
    expect("+24 +24 +24", "+24 +24 +24 +24 -5 +24 -6 +24 -7 -8 -4");
}
END_TEST

/* Tied weights: the head's gradient first, then the embedding's. */
static struct mp_tensor *tied_loss(struct mp_tensor *table, struct mp_tensor *index,
                                   struct mp_tensor *target, struct mp_tensor **logits)
{
    struct mp_tensor *const hidden = mp_embedding(rt, index, table);
    *logits = mp_take(rt, mp_linear(rt, hidden, table, NULL));
    return mp_take(rt, mp_cross_entropy(rt, *logits, target));
}

START_TEST(tied_weights_take_three_gradients_in_float32)
{
    struct mp_tensor *const table = probe_leaf(&probe, MP_SHAPE(10, 4), MP_F32), *logits = NULL;
    struct mp_tensor *const index = probe_tensor(&probe, MP_SHAPE(6), MP_I64);
    probe_begin(&probe);
    struct mp_tensor *const loss = tied_loss(table, index, index, &logits);
    backward(loss);
    /* the head's gradient (9) leaves through a transposed view: 9, 11 and their sum 12 coexist */
    expect("+96 +240 +240 +4 +4",
           "+4 +240 -5 +240 -7 -3 +160 +96 -8 -1 +160 -10 +160 -9 -11 -6");
}
END_TEST

START_TEST(tied_weights_take_two_under_autocast)
{
    struct mp_tensor *const table = probe_leaf(&probe, MP_SHAPE(10, 4), MP_F32), *logits = NULL;
    struct mp_tensor *const index = probe_tensor(&probe, MP_SHAPE(6), MP_I64);
    struct mp_autocast outer;
    probe_begin(&probe);
    mp_autocast_enter(rt, &outer, true, MP_BF16);
    struct mp_tensor *const loss = tied_loss(table, index, index, &logits);
    mp_autocast_exit(rt, &outer);
    backward(loss);
    /* the head's gradient (16) is a cast of its own: the embedding's is added to it */
    expect("+96 +80 +48 +120 -1 +120 +240 +4 +4",
           "+4 +240 -6 -8 +120 -10 +120 -11 -5 +80 +48 -12 -2 -3 +96 -14 +160 -13 +160 -15 -17 -9");
}
END_TEST

/* ---- order ---- */

START_TEST(equal_keys_leave_the_heap_in_libstdc_order)
{
    /* five leaves become ready at once; std::priority_queue hands them out as 1 3 5 2 4 */
    struct mp_tensor *leaves[5];
    for (int i = 0; i < 5; i++)
        leaves[i] = probe_leaf(&probe, MP_SHAPE(2, i + 1), MP_F32);
    struct mp_tensor *const y = mp_take(rt, mp_cat(rt, 5, leaves, 1));
    probe_begin(&probe);
    backward(y); /* views of the gradient are copied */
    ck_assert_str_eq(probe_text(&probe, 1), "+120 +8 +24 +40 +16 +32 -1");
}
END_TEST

START_TEST(later_nodes_run_first)
{
    struct mp_tensor *const a = probe_leaf(&probe, MP_SHAPE(1), MP_F32);
    struct mp_tensor *const b = probe_leaf(&probe, MP_SHAPE(2), MP_F32);
    struct mp_tensor *const x = mp_take(rt, mp_neg(rt, a));
    struct mp_tensor *const y = mp_take(rt, mp_neg(rt, b));
    struct mp_tensor *const loss = mp_take(rt, mp_cat(rt, 2, (struct mp_tensor *[]){y, x}, 0));
    probe_begin(&probe);
    backward(loss); /* y was made after x, so b's gradient of 8 bytes comes first */
    ck_assert_str_eq(probe_text(&probe, 1), "+12 +8 +4 -1");
}
END_TEST

START_TEST(a_graph_dies_iteratively_last_pushed_first)
{
    struct mp_tensor *const a = probe_leaf(&probe, MP_SHAPE(1), MP_F32);
    struct mp_tensor *const b = probe_leaf(&probe, MP_SHAPE(1), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const x = mp_tanh(rt, a), *const y = mp_tanh(rt, b);
    mp_tensor_unref(rt, mp_take(rt, mp_mul(rt, x, y)));
    probe_end(&probe);
    ck_assert_str_eq(probe_text(&probe, 0), "+4 +4 +4 -2 -1 -3");
}
END_TEST

START_TEST(backward_empties_the_graph_and_the_loss_keeps_it)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const y = mp_take(rt, mp_tanh(rt, mp_gelu(rt, mp_neg(rt, w))));
    backward(y);
    probe_begin(&probe);
    mp_tensor_unref(rt, y);
    probe_end(&probe);
    /* neg's result (1) dies with gelu's node */
    expect("+24 +24 +24 -2", "+24 +24 +24 -5 -1 +24 -6 -4");
    ck_assert_str_eq(probe_text(&probe, 2), "-3");
}
END_TEST

/* ---- what is recorded ---- */

START_TEST(nothing_is_recorded_without_need)
{
    struct mp_tensor *const x = probe_tensor(&probe, MP_SHAPE(6), MP_F32);
    ck_assert_ptr_null(mp_neg(rt, x)->grad_fn);
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    const struct mp_tensor *const y = mp_mul(rt, x, w);
    ck_assert_ptr_nonnull(y->grad_fn);
    ck_assert(!mp_needs_input(y->grad_fn, 0) && mp_needs_input(y->grad_fn, 1));
    /* only x is needed to compute w's gradient */
    ck_assert_ptr_null(y->grad_fn->saved[0].tensor);
    ck_assert_ptr_eq(y->grad_fn->saved[1].tensor, x);
    rt->grad_enabled = false;
    ck_assert_ptr_null(mp_neg(rt, w)->grad_fn);
}
END_TEST

START_TEST(only_wanted_gradients_are_computed)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(4, 5), MP_F32);
    struct mp_tensor *const x = probe_tensor(&probe, MP_SHAPE(6, 4), MP_F32);
    probe_begin(&probe);
    struct mp_tensor *const y = mp_take(rt, mp_mm(rt, x, w));
    backward(y);
    expect("+120", "+120 +80 -2");
    ck_assert_ptr_null(x->grad);
}
END_TEST

START_TEST(sequence_numbers_are_taken_when_operators_start)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    const struct mp_tensor *const a = mp_take(rt, mp_neg(rt, w)), *const b = mp_take(rt, mp_neg(rt, w));
    ck_assert_uint_eq(b->grad_fn->sequence_nr, a->grad_fn->sequence_nr + 1);
    ck_assert_ptr_eq(a->grad_fn->inputs[0].node, b->grad_fn->inputs[0].node); /* one accumulator */
}
END_TEST

START_TEST(saved_temporaries_become_activations)
{
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(6), MP_F32);
    struct mp_tensor *const x = mp_neg(rt, w);
    ck_assert_int_eq(x->storage->category, MP_CATEGORY_TEMPORARY);
    struct mp_storage *const storage = x->storage;
    mp_take(rt, mp_gelu(rt, x));
    ck_assert_int_eq(storage->category, MP_CATEGORY_ACTIVATION);
}
END_TEST

static const struct {
    struct mp_shape from, to;
    const char *events;
} sums[] = {
    {{3, {2, 3, 4}}, {3, {2, 3, 4}}, ""},    {{3, {2, 3, 4}}, {1, {4}}, "+16"},
    {{3, {2, 3, 4}}, {3, {1, 3, 1}}, "+12"}, {{3, {1, 3, 4}}, {2, {3, 4}}, "+48"},
    {{3, {2, 3, 4}}, {0, {0}}, "+4"},
};

START_TEST(broadcast_gradients_are_summed_down)
{
    struct mp_tensor *const x = probe_tensor(&probe, sums[_i].from, MP_F32);
    probe_begin(&probe);
    const struct mp_tensor *const sum = mp_take(rt, mp_sum_to(rt, x, &sums[_i].to));
    probe_end(&probe);
    ck_assert(mp_same_shape(&sum->shape, &sums[_i].to));
    ck_assert_str_eq(probe_text(&probe, 0), sums[_i].events);
}
END_TEST

Suite *suite_autograd(void)
{
    Suite *const suite = suite_create("autograd");
    TCase *const tc = tcase_create("backward");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, a_fresh_gradient_becomes_grad);
    tcase_add_test(tc, a_gradient_that_somebody_holds_is_copied);
    tcase_add_test(tc, the_second_gradient_is_added_in_place);
    tcase_add_test(tc, a_gradient_in_another_layout_is_copied);
    tcase_add_test(tc, weight_gradients_come_in_the_layout_of_the_weight);
    tcase_add_test(tc, fresh_gradients_are_added_in_place);
    tcase_add_test(tc, a_gradient_that_is_a_view_costs_a_sum);
    tcase_add_test(tc, tied_weights_take_three_gradients_in_float32);
    tcase_add_test(tc, tied_weights_take_two_under_autocast);
    tcase_add_test(tc, equal_keys_leave_the_heap_in_libstdc_order);
    tcase_add_test(tc, later_nodes_run_first);
    tcase_add_test(tc, a_graph_dies_iteratively_last_pushed_first);
    tcase_add_test(tc, backward_empties_the_graph_and_the_loss_keeps_it);
    tcase_add_test(tc, nothing_is_recorded_without_need);
    tcase_add_test(tc, only_wanted_gradients_are_computed);
    tcase_add_test(tc, sequence_numbers_are_taken_when_operators_start);
    tcase_add_test(tc, saved_temporaries_become_activations);
    tcase_add_loop_test(tc, broadcast_gradients_are_summed_down, 0, (int)MP_ARRAY_LEN(sums));
    suite_add_tcase(suite, tc);
    return suite;
}
