/* SPDX-License-Identifier: MIT */
/* Both kinds of checkpointing on blocks small enough to follow by hand. */
#include "shadow/checkpoint.h"

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

/* Parameters of a block. */
struct block {
    struct mp_tensor *w1, *b1, *w2, *b2;
};

/* class MLP(nn.Module): h = fc1(x); h = gelu(h); return fc2(h) */
static void mlp(struct mp_runtime *r, const struct mp_layer *call, struct mp_tensor **args,
                struct mp_tensor **out)
{
    const struct block *const b = call->model;
    struct mp_tensor *x = args[0], *h = NULL;
    struct mp_frame f;
    MP_MODULE(r, &f, &x);
    mp_let(&f, &h, mp_linear(r, x, b->w1, b->b1));
    mp_let(&f, &h, mp_gelu(r, h));
    out[0] = mp_leave(&f, mp_linear(r, h, b->w2, b->b2));
}

static void single_linear(struct mp_runtime *r, const struct mp_layer *call, struct mp_tensor **args,
                          struct mp_tensor **out)
{
    const struct block *const b = call->model;
    out[0] = mp_linear(r, args[0], b->w1, b->b1);
}

static void linear_and_dropout(struct mp_runtime *r, const struct mp_layer *call,
                               struct mp_tensor **args, struct mp_tensor **out)
{
    const struct block *const b = call->model;
    out[0] = mp_dropout(r, mp_linear(r, args[0], b->w1, NULL), 0.1);
}

/* Scales by a keyword argument. */
static void scale(struct mp_runtime *r, const struct mp_layer *call, struct mp_tensor **args,
                  struct mp_tensor **out)
{
    out[0] = mp_mul(r, mp_gelu(r, args[0]), call->keywords[0]);
}

/* (4) -> (8) -> (4) */
static struct block new_block(bool bias)
{
    return (struct block){
        probe_leaf(&probe, MP_SHAPE(8, 4), MP_F32),
        bias ? probe_leaf(&probe, MP_SHAPE(8), MP_F32) : NULL,
        probe_leaf(&probe, MP_SHAPE(4, 8), MP_F32),
        bias ? probe_leaf(&probe, MP_SHAPE(4), MP_F32) : NULL,
    };
}

static struct mp_tensor *call_layer(const struct mp_layer *layer, enum mp_checkpointing mode,
                                    struct mp_tensor *x)
{
    struct mp_tensor *out = NULL;
    mp_layer_call(rt, layer, mode, &x, &out);
    return mp_take(rt, out);
}

/* Forward in span 0, backward in span 1. */
static struct mp_tensor *run_block(const struct mp_layer *layer, enum mp_checkpointing mode)
{
    struct mp_tensor *const x = probe_input(&probe, mp_empty(rt, MP_SHAPE(6, 4), MP_F32));
    probe_begin(&probe);
    struct mp_tensor *const out = call_layer(layer, mode, x);
    probe_end(&probe);
    probe_backward(&probe, out);
    return out;
}

static void expect(const char *forward, const char *backward)
{
    ck_assert_str_eq(probe_text(&probe, 0), forward);
    ck_assert_str_eq(probe_text(&probe, 1), backward);
}

START_TEST(without_checkpointing_what_is_saved_stays)
{
    const struct block b = new_block(true);
    const struct mp_layer layer = {.forward = mlp, .model = &b, .n_args = 1, .n_outputs = 1};
    run_block(&layer, MP_CHECKPOINTING_OFF);
    /* fc2: input, weight, bias, - gelu's result; gelu, - fc2's, - fc1's result; fc1 */
    expect("+192 +192 +96", "+192 +128 +16 -2 +192 -4 -1 +96 +128 +32 -7");
}
END_TEST

START_TEST(non_reentrant_stops_before_the_last_product)
{
    const struct block b = new_block(true);
    const struct mp_layer layer = {.forward = mlp, .model = &b, .n_args = 1, .n_outputs = 1};
    run_block(&layer, MP_CHECKPOINTING_NON_REENTRANT);
    /* again: fc1 and gelu, not fc2; a recomputed tensor dies before the sums and casts of its node */
    expect("+192 +192 -1 +96 -2", "+192 +192 +192 +128 -5 +16 +192 -4 -6 +96 +128 +32 -9");
}
END_TEST

START_TEST(reentrant_runs_the_whole_block_again)
{
    const struct block b = new_block(true);
    const struct mp_layer layer = {.forward = mlp, .model = &b, .n_args = 1, .n_outputs = 1};
    run_block(&layer, MP_CHECKPOINTING_REENTRANT);
    expect("+192 +192 -1 +96 -2", "+192 +192 +96 +192 +128 +16 -5 +192 -7 -4 +96 +128 +32 -10 -6");
}
END_TEST

START_TEST(casts_of_the_last_linear_are_made_its_product_is_not)
{
    const struct block b = new_block(true);
    const struct mp_layer layer = {.forward = single_linear, .model = &b, .n_args = 1, .n_outputs = 1};
    struct mp_autocast outer;
    struct mp_tensor *const x = probe_input(&probe, mp_empty(rt, MP_SHAPE(6, 4), MP_F32));
    probe_begin(&probe);
    mp_autocast_enter(rt, &outer, true, MP_BF16);
    struct mp_tensor *const out = call_layer(&layer, MP_CHECKPOINTING_NON_REENTRANT, x);
    mp_autocast_exit(rt, &outer);
    probe_end(&probe);
    probe_backward(&probe, out);
    /* bias, weight, input; the bias's cast dies with the recomputation's cache */
    expect("+16 +64 +48 +96 -3 -1 -2",
           "+16 +64 +48 -5 +48 +64 -6 -7 +16 +96 -8 +128 -9 +32 -10");
}
END_TEST

START_TEST(weight_casts_of_all_blocks_stay_in_the_cache)
{
    const struct block b = new_block(true);
    const struct mp_layer layer = {.forward = mlp, .model = &b, .n_args = 1, .n_outputs = 1};
    struct mp_autocast outer;
    struct mp_tensor *const x = probe_input(&probe, mp_empty(rt, MP_SHAPE(6, 4), MP_F32));
    for (int mode = MP_CHECKPOINTING_NON_REENTRANT; mode <= MP_CHECKPOINTING_REENTRANT; mode++) {
        uint64_t before = probe.program.live_bytes;
        mp_autocast_enter(rt, &outer, true, MP_BF16);
        struct mp_tensor *const out = call_layer(&layer, (enum mp_checkpointing)mode, x);
        /* casts of (8, 4), (8), (4, 8) and (4), and the result */
        ck_assert_uint_eq(probe.program.live_bytes - before, 64 + 16 + 64 + 8 + 48);
        mp_autocast_exit(rt, &outer);
        ck_assert_uint_eq(probe.program.live_bytes - before, 48);
        mp_tensor_unref(rt, out);
    }
}
END_TEST

START_TEST(a_saved_result_stops_after_its_kernel)
{
    const struct block b = new_block(false);
    const struct mp_layer layer = {.forward = linear_and_dropout, .model = &b, .n_args = 1, .n_outputs = 1};
    run_block(&layer, MP_CHECKPOINTING_NON_REENTRANT);
    /* again: product, mask and result, which is dropped with the product; the mask is wanted */
    expect("+192 +48 +192 -2 -1", "+192 +48 +192 -6 -4 +192 -5 +128 +96 -7");
}
END_TEST

START_TEST(recomputation_makes_workspaces_in_the_backward_thread)
{
    struct probe cold;
    probe_open(&cold, "H200-141G");
    const struct block b = {probe_leaf(&cold, MP_SHAPE(8, 4), MP_F32), probe_leaf(&cold, MP_SHAPE(8), MP_F32),
                            probe_leaf(&cold, MP_SHAPE(4, 8), MP_F32), probe_leaf(&cold, MP_SHAPE(4), MP_F32)};
    const struct mp_layer layer = {.forward = mlp, .model = &b, .n_args = 1, .n_outputs = 1};
    struct mp_tensor *x = probe_input(&cold, mp_empty(&cold.rt, MP_SHAPE(6, 4), MP_F32)), *out = NULL;
    probe_begin(&cold);
    mp_layer_call(&cold.rt, &layer, MP_CHECKPOINTING_NON_REENTRANT, &x, &out);
    out = mp_take(&cold.rt, out);
    probe_end(&cold);
    probe_backward(&cold, out);
    ck_assert_str_eq(probe_text(&cold, 0), "+192 +33554432 +1048576 +192 -1 +96 -4");
    /* both again, although backward's own products never need the second */
    ck_assert_int_eq(strncmp(probe_text(&cold, 1), "+192 +33554432 +1048576 +192 ", 29), 0);
    probe_close(&cold);
}
END_TEST

static const struct {
    enum mp_checkpointing mode;
    bool dies_in_backward;
} closures[] = {{MP_CHECKPOINTING_NON_REENTRANT, true}, {MP_CHECKPOINTING_REENTRANT, false}};

START_TEST(keyword_arguments_live_as_long_as_their_closure)
{
    struct mp_tensor *const keyword = probe_tensor(&probe, MP_SHAPE(1000), MP_F32);
    struct mp_tensor *const x = probe_input(&probe, mp_empty(rt, MP_SHAPE(6, 1000), MP_F32));
    const struct mp_layer layer = {.forward = scale, .n_args = 1, .n_outputs = 1, .keywords = {keyword}};
    struct mp_storage *const storage = keyword->storage;
    struct mp_tensor *const out = call_layer(&layer, closures[_i].mode, x);
    mp_tensor_unref(rt, keyword);
    ck_assert_uint_ne(storage->id, 0);
    const uint32_t id = storage->id;
    probe_backward(&probe, out);
    bool died = false;
    for (uint32_t i = 0; i < probe.program.n_events; i++)
        died = died || (probe.program.events[i].kind == MP_EVENT_FREE && probe.program.events[i].id == id);
    ck_assert_int_eq(died, closures[_i].dies_in_backward);
    mp_tensor_unref(rt, out);
    died = false;
    for (uint32_t i = 0; i < probe.program.n_events; i++)
        died = died || (probe.program.events[i].kind == MP_EVENT_FREE && probe.program.events[i].id == id);
    ck_assert(died);
}
END_TEST

/* Returns its input and a new tensor; only the second is used. */
static void two_results(struct mp_runtime *r, const struct mp_layer *call, struct mp_tensor **args,
                        struct mp_tensor **out)
{
    (void)call;
    out[0] = mp_neg(r, args[0]);
    out[1] = mp_tanh(r, args[0]);
}

START_TEST(a_reentrant_result_without_gradient_gets_zeros)
{
    const struct mp_layer layer = {.forward = two_results, .n_args = 1, .n_outputs = 2};
    struct mp_tensor *x = probe_input(&probe, mp_empty(rt, MP_SHAPE(6, 4), MP_F32)), *out[2] = {NULL, NULL};
    probe_begin(&probe);
    mp_layer_call(rt, &layer, MP_CHECKPOINTING_REENTRANT, &x, out);
    out[0] = mp_take(rt, out[0]);
    out[1] = mp_take(rt, out[1]);
    probe_end(&probe);
    probe_backward(&probe, out[1]);
    /* zeros (3); both results again (4, 5); tanh (6), neg (7), added in place; all of it dies */
    ck_assert_str_eq(probe_text(&probe, 0), "+96 +96");
    ck_assert_int_eq(strncmp(probe_text(&probe, 1), "+96 +96 +96 +96 +96 ", 20), 0);
    ck_assert_uint_eq(probe.program.live_bytes, 33554432 * 2 + 1048576 * 2 + 96 * 5);
}
END_TEST

START_TEST(a_block_remembers_its_layer)
{
    const struct block b = new_block(true);
    const struct mp_layer layer = {.forward = mlp, .model = &b, .n_args = 1, .n_outputs = 1, .index = 7};
    const uint32_t first = probe.program.n_events;
    run_block(&layer, MP_CHECKPOINTING_NON_REENTRANT);
    int n = 0;
    for (uint32_t i = first; i < probe.program.n_events; i++)
        n += probe.program.events[i].layer == 7;
    ck_assert_int_ge(n, 12);
    ck_assert_int_eq(rt->layer, -1);
}
END_TEST

Suite *suite_checkpoint(void)
{
    Suite *const suite = suite_create("checkpoint");
    TCase *const tc = tcase_create("blocks");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, without_checkpointing_what_is_saved_stays);
    tcase_add_test(tc, non_reentrant_stops_before_the_last_product);
    tcase_add_test(tc, reentrant_runs_the_whole_block_again);
    tcase_add_test(tc, casts_of_the_last_linear_are_made_its_product_is_not);
    tcase_add_test(tc, weight_casts_of_all_blocks_stay_in_the_cache);
    tcase_add_test(tc, a_saved_result_stops_after_its_kernel);
    tcase_add_test(tc, recomputation_makes_workspaces_in_the_backward_thread);
    tcase_add_loop_test(tc, keyword_arguments_live_as_long_as_their_closure, 0, (int)MP_ARRAY_LEN(closures));
    tcase_add_test(tc, a_reentrant_result_without_gradient_gets_zeros);
    tcase_add_test(tc, a_block_remembers_its_layer);
    suite_add_tcase(suite, tc);
    return suite;
}
