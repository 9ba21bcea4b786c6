/* SPDX-License-Identifier: MIT */
/* Lifetimes: temporaries, variables, frames and views die when their Python counterparts do. */
#include "shadow_probe.h"
#include "suites.h"

static struct probe probe;
static struct mp_runtime *const rt = &probe.rt;

static void setup(void)
{
    probe_open(&probe, "H200-141G");
}

static void teardown(void)
{
    probe_close(&probe);
}

/* A floating tensor of n bytes. */
static struct mp_tensor *fresh(int64_t n)
{
    return mp_empty(rt, MP_SHAPE(n), MP_U8);
}

static void expect(const char *events)
{
    probe_end(&probe);
    ck_assert_str_eq(probe_text(&probe, probe.n_spans - 1), events);
}

/* ---- temporaries ---- */

START_TEST(an_argument_that_floats_dies_after_the_result)
{
    probe_begin(&probe);
    mp_take(rt, mp_neg(rt, mp_neg(rt, fresh(1))));
    expect("+1 +1 -1 +1 -2");
}
END_TEST

START_TEST(an_argument_in_a_variable_stays)
{
    struct mp_tensor *const x = probe_tensor(&probe, MP_SHAPE(1), MP_U8);
    probe_begin(&probe);
    mp_take(rt, mp_add(rt, x, mp_neg(rt, x)));
    expect("+1 +1 -1");
}
END_TEST

START_TEST(two_temporaries_die_first_to_last)
{
    probe_begin(&probe);
    struct mp_tensor *const a = fresh(1), *const b = fresh(1);
    mp_take(rt, mp_add(rt, a, b));
    expect("+1 +1 +1 -1 -2");
}
END_TEST

START_TEST(operators_inside_an_operator_do_not_consume_its_arguments)
{
    probe_begin(&probe);
    struct mp_tensor *const x = fresh(4);
    const struct mp_scope scope = mp_begin(rt, "outer", MP_TENSORS(x));
    mp_discard(rt, mp_neg(rt, x));
    ck_assert_ptr_nonnull(x->storage);
    struct mp_tensor *const local = mp_keep(mp_neg(rt, x));
    mp_discard(rt, local); /* kept: nobody drops it but the end of the scope */
    struct mp_tensor *const out = mp_end(rt, &scope, mp_neg(rt, local));
    mp_take(rt, out);
    expect("+4 +4 -2 +4 +4 -3 -1");
}
END_TEST

START_TEST(locals_of_an_operator_die_newest_first)
{
    probe_begin(&probe);
    const struct mp_scope scope = mp_begin(rt, "outer", 0, NULL);
    fresh(1);
    fresh(2);
    struct mp_tensor *const out = fresh(3);
    fresh(4);
    mp_take(rt, mp_end(rt, &scope, out));
    expect("+1 +2 +3 +4 -4 -2 -1");
}
END_TEST

START_TEST(what_nobody_wanted_is_discarded)
{
    probe_begin(&probe);
    fresh(1);
    const int n = rt->n_temporaries;
    fresh(2);
    fresh(3);
    mp_discard_to(rt, n);
    expect("+1 +2 +3 -3 -2");
}
END_TEST

/* ---- frames ---- */

START_TEST(assignment_frees_the_old_value_after_the_new_one_exists)
{
    struct mp_frame f;
    struct mp_tensor *x = NULL;
    probe_begin(&probe);
    mp_enter_empty(rt, &f);
    mp_let(&f, &x, fresh(8));
    mp_let(&f, &x, mp_neg(rt, x));
    mp_leave(&f, NULL);
    expect("+8 +8 -1 -2");
}
END_TEST

START_TEST(variables_die_in_order_of_first_assignment)
{
    struct mp_frame f;
    struct mp_tensor *a = NULL, *b = NULL, *c = NULL, *x = fresh(1), *y = fresh(2);
    probe_begin(&probe);
    MP_FUNCTION(rt, &f, &x, &y);
    mp_let(&f, &c, fresh(3));
    mp_let(&f, &a, fresh(4));
    mp_let(&f, &b, fresh(5));
    mp_let(&f, &c, fresh(6)); /* keeps its place */
    mp_leave(&f, NULL);
    expect("+3 +4 +5 +6 -1 -4 -2 -3");
}
END_TEST

START_TEST(parameters_die_before_other_variables)
{
    struct mp_frame f;
    struct mp_tensor *local = NULL;
    probe_begin(&probe);
    struct mp_tensor *x = fresh(1), *y = fresh(2);
    MP_FUNCTION(rt, &f, &x, &y);
    mp_let(&f, &local, fresh(3));
    mp_let(&f, &x, fresh(4));
    mp_leave(&f, NULL);
    expect("+1 +2 +3 +4 -1 -4 -2 -3");
}
END_TEST

START_TEST(a_deleted_variable_keeps_its_place)
{
    struct mp_frame f;
    struct mp_tensor *a = NULL, *b = NULL;
    probe_begin(&probe);
    mp_enter_empty(rt, &f);
    mp_let(&f, &a, fresh(1));
    mp_let(&f, &b, fresh(2));
    mp_del(&f, &a);
    mp_let(&f, &a, fresh(3));
    mp_leave(&f, NULL);
    expect("+1 +2 -1 +3 -3 -2");
}
END_TEST

static struct mp_tensor *body(struct mp_frame *f, struct mp_tensor **x)
{
    mp_let(f, x, mp_neg(rt, *x));
    mp_let(f, x, mp_neg(rt, *x));
    return mp_leave(f, *x);
}

START_TEST(a_module_keeps_its_arguments)
{
    struct mp_frame f;
    probe_begin(&probe);
    struct mp_tensor *x = fresh(8);
    MP_MODULE(rt, &f, &x);
    mp_take(rt, body(&f, &x));
    expect("+8 +8 +8 -2 -1");
}
END_TEST

START_TEST(a_function_does_not)
{
    struct mp_frame f;
    probe_begin(&probe);
    struct mp_tensor *x = fresh(8);
    MP_FUNCTION(rt, &f, &x);
    mp_take(rt, body(&f, &x));
    expect("+8 +8 -1 +8 -2");
}
END_TEST

START_TEST(a_module_drops_arguments_after_variables)
{
    struct mp_frame f;
    struct mp_tensor *local = NULL;
    probe_begin(&probe);
    struct mp_tensor *x = fresh(1);
    MP_MODULE(rt, &f, &x);
    mp_let(&f, &local, fresh(2));
    mp_del(&f, &x);
    mp_leave(&f, NULL);
    expect("+1 +2 -2 -1");
}
END_TEST

START_TEST(several_results_float_in_the_caller)
{
    struct mp_frame f;
    struct mp_tensor *a = NULL, *b = NULL, *c = NULL, *first = NULL;
    probe_begin(&probe);
    mp_enter_empty(rt, &f);
    mp_let(&f, &a, fresh(1));
    mp_let(&f, &b, fresh(2));
    mp_let(&f, &c, fresh(3));
    mp_give(&f, &first, a);
    struct mp_tensor *const second = mp_leave(&f, b);
    ck_assert_int_ge(first->temporary, 0);
    ck_assert_int_ge(second->temporary, 0);
    mp_discard(rt, second);
    mp_discard(rt, first);
    expect("+1 +2 +3 -3 -2 -1");
}
END_TEST

START_TEST(a_caller_variable_outlives_the_callee)
{
    struct mp_frame outer, inner;
    struct mp_tensor *x = NULL;
    probe_begin(&probe);
    mp_enter_empty(rt, &outer);
    mp_let(&outer, &x, fresh(8));
    struct mp_tensor *parameter = x;
    MP_FUNCTION(rt, &inner, &parameter);
    mp_let(&inner, &parameter, fresh(4));
    mp_leave(&inner, NULL);
    ck_assert_ptr_eq(rt->frame, &outer);
    mp_leave(&outer, NULL);
    expect("+8 +4 -2 -1");
}
END_TEST

/* ---- storages and views ---- */

START_TEST(a_view_holds_the_storage)
{
    struct mp_frame f;
    struct mp_tensor *x = NULL, *view = NULL;
    probe_begin(&probe);
    mp_enter_empty(rt, &f);
    mp_let(&f, &x, fresh(8));
    mp_let(&f, &view, mp_slice(rt, x, 0, 0, 2));
    mp_del(&f, &x);
    ck_assert_ptr_nonnull(view->base);
    mp_let(&f, &x, fresh(1));
    mp_leave(&f, NULL);
    expect("+8 +1 -2 -1");
}
END_TEST

START_TEST(a_view_of_a_view_has_the_first_base)
{
    struct mp_tensor *const x = probe_tensor(&probe, MP_SHAPE(4, 6), MP_F32);
    const struct mp_tensor *const view = mp_transpose(rt, mp_view(rt, x, MP_SHAPE(2, 12)), 0, 1);
    ck_assert_ptr_eq(view->base, x);
    ck_assert_int_eq(x->storage->refs, 2);
}
END_TEST

START_TEST(empty_storages_are_no_events)
{
    probe_begin(&probe);
    struct mp_tensor *const x = mp_take(rt, fresh(0));
    mp_tensor_unref(rt, x);
    mp_scratch(rt, 5);
    expect("+5 -1");
    ck_assert_uint_eq(probe.program.n_allocs, 1);
}
END_TEST

START_TEST(a_storage_can_let_go_and_take_again)
{
    probe_begin(&probe);
    struct mp_tensor *const x = mp_take(rt, fresh(16));
    mp_storage_resize(rt, x->storage, 0);
    mp_storage_resize(rt, x->storage, 8);
    mp_tensor_unref(rt, x);
    expect("+16 -1 +8 -2");
}
END_TEST

START_TEST(gradient_and_graph_die_before_the_storage)
{
    probe_begin(&probe);
    struct mp_tensor *const leaf = probe_leaf(&probe, MP_SHAPE(1), MP_F32);
    struct mp_tensor *const x = mp_take(rt, mp_tanh(rt, mp_gelu(rt, leaf)));
    x->grad = mp_take(rt, mp_empty(rt, MP_SHAPE(3), MP_F32));
    mp_tensor_unref(rt, x);
    expect("+4 +4 +4 -2 +12 -4 -3");
}
END_TEST

/* ---- marks, tags, limits ---- */

START_TEST(a_mark_closes_a_phase)
{
    struct mp_tensor *const a = mp_take(rt, fresh(100));
    struct mp_tensor *const b = mp_take(rt, fresh(50));
    mp_tensor_unref(rt, a);
    mp_mark(rt, "it%d.fwd", 3);
    mp_take(rt, fresh(10));
    mp_tensor_unref(rt, b);
    mp_mark(rt, "end");
    const struct mp_phase *const phases = probe.program.phases;
    ck_assert_uint_eq(probe.program.n_phases, 2);
    ck_assert_str_eq(phases[0].name, "it3.fwd");
    ck_assert_uint_eq(phases[0].requested_bytes, 50);
    ck_assert_uint_eq(phases[0].requested_peak_bytes, 150);
    ck_assert_uint_eq(phases[1].requested_bytes, 10);
    ck_assert_uint_eq(phases[1].requested_peak_bytes, 60);
    ck_assert_uint_eq(probe.program.peak_bytes, 150);
    ck_assert_int_eq(probe.program.events[phases[1].event].kind, MP_EVENT_MARK);
}
END_TEST

START_TEST(tags_are_kept_when_asked_for)
{
    struct mp_tensor *const x = mp_take(rt, fresh(8));
    const uint32_t before = probe.program.n_events;
    mp_tag(rt, x->storage, MP_CATEGORY_ACTIVATION);
    ck_assert_uint_eq(probe.program.n_events, before);
    probe.program.keep_tags = true;
    mp_tag(rt, x->storage, MP_CATEGORY_ACTIVATION); /* no change */
    mp_tag(rt, x->storage, MP_CATEGORY_GRADIENT);
    ck_assert_uint_eq(probe.program.n_events, before + 1);
    ck_assert_int_eq(probe.program.events[before].kind, MP_EVENT_TAG);
    ck_assert_int_eq(probe.program.events[before].category, MP_CATEGORY_GRADIENT);
}
END_TEST

static void too_large(struct mp_runtime *r, void *context)
{
    mp_empty(r, *(const struct mp_shape *)context, MP_F32);
}

static const struct {
    struct mp_shape shape;
    enum memplan_status status;
} limits[] = {
    {{1, {INT64_C(1) << 57}}, MEMPLAN_STATUS_OK},
    {{1, {INT64_C(1) << 58}}, MEMPLAN_STATUS_OK},
    {{2, {INT64_C(1) << 58, 2}}, MEMPLAN_STATUS_RANGE},
    {{3, {INT64_C(1) << 40, INT64_C(1) << 40, 2}}, MEMPLAN_STATUS_RANGE},
};

START_TEST(a_tensor_beyond_2_60_bytes_ends_the_run)
{
    struct mp_shape shape = limits[_i].shape;
    ck_assert_int_eq(mp_runtime_protect(rt, too_large, &shape), limits[_i].status);
    ck_assert_int_eq(probe.err.status, limits[_i].status);
    ck_assert_int_eq(strlen(probe.err.text) > 0, limits[_i].status != MEMPLAN_STATUS_OK);
    ck_assert_ptr_null(rt->catch_error);
}
END_TEST

static const struct {
    struct mp_shape shape;
    int64_t stride[MP_MAX_DIMS];
    bool contiguous, dense;
} layouts[] = {
    {{2, {3, 4}}, {4, 1}, true, true},       {{2, {3, 4}}, {1, 3}, false, true},
    {{2, {3, 4}}, {8, 1}, false, false},     {{2, {1, 4}}, {99, 1}, true, true},
    {{3, {2, 3, 4}}, {4, 8, 1}, false, true}, {{3, {2, 3, 4}}, {12, 4, 1}, true, true},
    {{2, {3, 4}}, {0, 1}, false, false},     {{0, {0}}, {0}, true, true},
};

START_TEST(layouts_are_told_apart)
{
    const struct mp_tensor *const x = mp_empty_strided(rt, layouts[_i].shape, layouts[_i].stride, MP_F32);
    ck_assert_int_eq(mp_is_contiguous(x), layouts[_i].contiguous);
    ck_assert_int_eq(mp_is_dense(x), layouts[_i].dense);
}
END_TEST

START_TEST(repeated_events_belong_to_shifted_storages)
{
    struct mp_tensor *const x = mp_take(rt, fresh(7));
    mp_tensor_unref(rt, x);
    mp_repeat_event(rt, 0, 1);
    mp_repeat_event(rt, 1, 1);
    const struct mp_event *const e = probe.program.events;
    ck_assert_uint_eq(probe.program.n_events, 4);
    ck_assert_uint_eq(e[2].id, 2);
    ck_assert_uint_eq(e[2].bytes, 7);
    ck_assert_int_eq(e[3].kind, MP_EVENT_FREE);
    ck_assert_uint_eq(e[3].id, 2);
    ck_assert_uint_eq(probe.program.n_allocs, 2);
    ck_assert_uint_eq(probe.program.live_bytes, 0);
}
END_TEST

START_TEST(what_another_stream_used_is_gone_at_the_next_allocation)
{
    struct mp_storage *const shared = mp_storage_new(rt, 1), *const own = mp_storage_new(rt, 2);
    probe_begin(&probe);
    shared->shared = true;
    mp_storage_unref(rt, shared);
    ck_assert_uint_eq(probe.program.live_bytes, 3);
    mp_storage_unref(rt, own);
    ck_assert_uint_eq(probe.program.live_bytes, 1);
    mp_storage_new(rt, 4);
    ck_assert_uint_eq(probe.program.live_bytes, 4);
}
END_TEST

START_TEST(a_shared_storage_that_lets_go_keeps_its_memory_until_then)
{
    struct mp_storage *const storage = mp_storage_new(rt, 1);
    storage->shared = true;
    mp_storage_resize(rt, storage, 0);
    ck_assert_uint_eq(probe.program.live_bytes, 1);
    mp_storage_resize(rt, storage, 2); /* for which it is asked again */
    ck_assert_uint_eq(probe.program.live_bytes, 2);
    mp_storage_resize(rt, storage, 0);
    ck_assert_uint_eq(probe.program.live_bytes, 0);
}
END_TEST

START_TEST(a_borrower_keeps_what_the_lender_lets_go)
{
    struct mp_storage *const lender = mp_storage_new(rt, 1), *const borrower = mp_storage_borrow(rt, lender);
    mp_storage_resize(rt, lender, 0);
    ck_assert_uint_eq(probe.program.live_bytes, 1);
    mp_storage_resize(rt, lender, 2);
    ck_assert_uint_eq(probe.program.live_bytes, 3);
    mp_storage_unref(rt, borrower);
    ck_assert_uint_eq(probe.program.live_bytes, 2);
}
END_TEST

START_TEST(a_borrower_that_goes_first_changes_nothing)
{
    struct mp_storage *const lender = mp_storage_new(rt, 1);
    mp_storage_unref(rt, mp_storage_borrow(rt, lender));
    ck_assert_uint_eq(probe.program.live_bytes, 1);
    mp_storage_resize(rt, lender, 0);
    ck_assert_uint_eq(probe.program.live_bytes, 0);
}
END_TEST

Suite *suite_runtime(void)
{
    Suite *const suite = suite_create("runtime");
    TCase *const tc = tcase_create("lifetimes");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, an_argument_that_floats_dies_after_the_result);
    tcase_add_test(tc, an_argument_in_a_variable_stays);
    tcase_add_test(tc, two_temporaries_die_first_to_last);
    tcase_add_test(tc, operators_inside_an_operator_do_not_consume_its_arguments);
    tcase_add_test(tc, locals_of_an_operator_die_newest_first);
    tcase_add_test(tc, what_nobody_wanted_is_discarded);
    tcase_add_test(tc, assignment_frees_the_old_value_after_the_new_one_exists);
    tcase_add_test(tc, variables_die_in_order_of_first_assignment);
    tcase_add_test(tc, parameters_die_before_other_variables);
    tcase_add_test(tc, a_deleted_variable_keeps_its_place);
    tcase_add_test(tc, a_module_keeps_its_arguments);
    tcase_add_test(tc, a_function_does_not);
    tcase_add_test(tc, a_module_drops_arguments_after_variables);
    tcase_add_test(tc, several_results_float_in_the_caller);
    tcase_add_test(tc, a_caller_variable_outlives_the_callee);
    tcase_add_test(tc, a_view_holds_the_storage);
    tcase_add_test(tc, a_view_of_a_view_has_the_first_base);
    tcase_add_test(tc, empty_storages_are_no_events);
    tcase_add_test(tc, a_storage_can_let_go_and_take_again);
    tcase_add_test(tc, gradient_and_graph_die_before_the_storage);
    tcase_add_test(tc, a_mark_closes_a_phase);
    tcase_add_test(tc, tags_are_kept_when_asked_for);
    tcase_add_loop_test(tc, a_tensor_beyond_2_60_bytes_ends_the_run, 0, (int)MP_ARRAY_LEN(limits));
    tcase_add_loop_test(tc, layouts_are_told_apart, 0, (int)MP_ARRAY_LEN(layouts));
    tcase_add_test(tc, repeated_events_belong_to_shifted_storages);
    tcase_add_test(tc, what_another_stream_used_is_gone_at_the_next_allocation);
    tcase_add_test(tc, a_shared_storage_that_lets_go_keeps_its_memory_until_then);
    tcase_add_test(tc, a_borrower_keeps_what_the_lender_lets_go);
    tcase_add_test(tc, a_borrower_that_goes_first_changes_nothing);
    suite_add_tcase(suite, tc);
    return suite;
}
