/* SPDX-License-Identifier: MIT */
/*
 * What each operator asks of the allocator, forward and backward: by hand from the rules of
 * docs/memory-model.md, and 3,200 calls as a GPU answered them.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
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

/* ---- single operators, by hand ---- */

typedef struct mp_tensor *function(struct mp_tensor *a, struct mp_tensor *b, struct mp_tensor *c);

#define OPERATOR(name, expression)                                                                 \
    static struct mp_tensor *name(struct mp_tensor *a, struct mp_tensor *b, struct mp_tensor *c)   \
    {                                                                                              \
        (void)a;                                                                                   \
        (void)b;                                                                                   \
        (void)c;                                                                                   \
        return expression;                                                                         \
    }
OPERATOR(op_add, mp_add(rt, a, b))
OPERATOR(op_mul, mp_mul(rt, a, b))
OPERATOR(op_square, mp_mul(rt, a, a))
OPERATOR(op_add_number, mp_add_number(rt, a, 1))
OPERATOR(op_mul_number, mp_mul_number(rt, a, 2))
OPERATOR(op_div_number, mp_div_number(rt, a, 2))
OPERATOR(op_neg, mp_neg(rt, a))
OPERATOR(op_pow, mp_pow(rt, a, 3))
OPERATOR(op_rsqrt, mp_rsqrt(rt, a))
OPERATOR(op_tanh, mp_tanh(rt, a))
OPERATOR(op_relu, mp_relu(rt, a))
OPERATOR(op_gelu, mp_gelu(rt, a))
OPERATOR(op_silu, mp_silu(rt, a))
OPERATOR(op_mean, mp_mean_last(rt, a))
OPERATOR(op_sum, mp_sum(rt, a, 1, false))
OPERATOR(op_softmax, mp_softmax(rt, a, -1))
OPERATOR(op_softmax_float, mp_softmax(rt, a, MP_F32))
OPERATOR(op_to_float, mp_to(rt, a, MP_F32))
OPERATOR(op_to_bf16, mp_to(rt, a, MP_BF16))
OPERATOR(op_dropout, mp_dropout(rt, a, 0.1))
OPERATOR(op_no_dropout, mp_neg(rt, mp_dropout(rt, a, 0)))
OPERATOR(op_layer_norm, mp_layer_norm(rt, a, b, c))
OPERATOR(op_cat, mp_cat(rt, MP_TENSORS(a, b), -1))
OPERATOR(op_slice, mp_slice(rt, a, -1, 1, 3))
OPERATOR(op_whole_slice, mp_slice(rt, a, -1, 0, 4))
OPERATOR(op_view, mp_view(rt, a, MP_SHAPE(6, -1)))
OPERATOR(op_transpose, mp_transpose(rt, a, 0, 1))
OPERATOR(op_unsqueeze, mp_unsqueeze(rt, a, 1))
OPERATOR(op_expand, mp_expand(rt, a, MP_SHAPE(5, 2, 3, 4)))
OPERATOR(op_contiguous, mp_contiguous(rt, a))
OPERATOR(op_contiguous_copy, mp_contiguous(rt, mp_transpose(rt, a, 0, 1)))
OPERATOR(op_split_heads, mp_contiguous(rt, mp_transpose(rt, mp_view(rt, a, MP_SHAPE(2, 3, 2, 2)), 1, 2)))
OPERATOR(op_reshape_copy, mp_reshape(rt, mp_transpose(rt, a, 0, 1), MP_SHAPE(-1)))
OPERATOR(op_embedding, mp_embedding(rt, b, a))
OPERATOR(op_embedding_expanded, mp_embedding(rt, mp_expand(rt, b, MP_SHAPE(2, 3)), a))
OPERATOR(op_mm, mp_mm(rt, a, b))
OPERATOR(op_addmm, mp_addmm(rt, c, a, b))
OPERATOR(op_linear, mp_linear(rt, a, b, c))
OPERATOR(op_linear_no_bias, mp_linear(rt, a, b, NULL))
OPERATOR(op_matmul, mp_matmul(rt, a, b))
OPERATOR(op_matmul_heads, mp_matmul(rt, mp_transpose(rt, a, 1, 2), b))
OPERATOR(op_cross_entropy, mp_cross_entropy(rt, a, b))

static struct mp_tensor *op_split(struct mp_tensor *a, struct mp_tensor *b, struct mp_tensor *c)
{
    struct mp_tensor *parts[2];
    (void)b;
    (void)c;
    mp_split(rt, a, 2, -1, parts);
    return parts[0];
}

/* Elements: 24 in (2, 3, 4). Operands with dtype I64 have no gradient; shape.n = 0 stands for none. */
#define SHAPE(...)                                                                                 \
    {                                                                                              \
        (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), {__VA_ARGS__}                   \
    }
#define NONE                                                                                       \
    {                                                                                              \
        .shape = { .n = 0 }                                                                        \
    }
static const struct {
    const char *name;
    function *call;
    struct {
        enum mp_dtype dtype;
        struct mp_shape shape;
    } operands[3];
    const char *forward, *backward;
} operators[] = {
    {"a + b: the gradient goes on as it is", op_add, {{MP_F32, SHAPE(2, 3, 4)}, {MP_F32, SHAPE(2, 3, 4)}}, "+96", ""},
    {"bf16 + fp32: one gradient is cast", op_add, {{MP_BF16, SHAPE(2, 3, 4)}, {MP_F32, SHAPE(2, 3, 4)}}, "+96", "+48"},
    {"a + row: its gradient is summed", op_add, {{MP_F32, SHAPE(2, 3, 4)}, {MP_F32, SHAPE(4)}}, "+96", "+16"},
    {"fp32 + bf16 row: summed, then cast", op_add, {{MP_F32, SHAPE(2, 3, 4)}, {MP_BF16, SHAPE(4)}}, "+96", "+16 +8 -2"},
    {"a * b: b's gradient first", op_mul, {{MP_F32, SHAPE(2, 3, 4)}, {MP_F32, SHAPE(4)}}, "+96", "+96 +96 +16 -2"},
    {"a * a: added in place", op_square, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96 +96 -2"},
    {"a + number", op_add_number, {{MP_BF16, SHAPE(2, 3, 4)}}, "+48", ""},
    {"a * number", op_mul_number, {{MP_BF16, SHAPE(2, 3, 4)}}, "+48", "+48"},
    {"a / number", op_div_number, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96"},
    {"-a", op_neg, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96"},
    {"pow", op_pow, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96 +96 +96 -3 -2"},
    {"rsqrt", op_rsqrt, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96 +96 +96 -3 -2"},
    {"tanh", op_tanh, {{MP_BF16, SHAPE(2, 3, 4)}}, "+48", "+48"},
    {"relu", op_relu, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96"},
    {"gelu", op_gelu, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96"},
    {"silu", op_silu, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96"},
    {"mean over the last dimension", op_mean, {{MP_F32, SHAPE(2, 3, 4)}}, "+24", "+96"},
    {"sum: its backward is a view", op_sum, {{MP_F32, SHAPE(2, 3, 4)}}, "+32", ""},
    {"softmax", op_softmax, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96 +96 -3"},
    {"softmax(dtype=float32) of bf16: a cast before", op_softmax_float, {{MP_BF16, SHAPE(2, 3, 4)}}, "+96 +96 -1", "+96 +96 -4 +48 -3"},
    {"softmax(dtype=float32) of fp16: fused", op_softmax_float, {{MP_F16, SHAPE(2, 3, 4)}}, "+96", "+48 +96 -3"},
    {"to float32", op_to_float, {{MP_BF16, SHAPE(2, 3, 4)}}, "+96", "+48"},
    {"to bf16", op_to_bf16, {{MP_F32, SHAPE(2, 3, 4)}}, "+48", "+96"},
    {"dropout: a byte per element", op_dropout, {{MP_BF16, SHAPE(2, 3, 4)}}, "+24 +48", "+48 -1"},
    {"dropout of 0 is its input", op_no_dropout, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96"},
    {"layer norm", op_layer_norm, {{MP_F32, SHAPE(2, 3, 4)}, {MP_F32, SHAPE(4)}, {MP_F32, SHAPE(4)}}, "+96 +24 +24", "+96 +16 +16 -2 -3"},
    {"layer norm in bf16: float32 statistics", op_layer_norm, {{MP_BF16, SHAPE(2, 3, 4)}, {MP_BF16, SHAPE(4)}, {MP_BF16, SHAPE(4)}},
     "+48 +24 +24", "+48 +8 +8 -2 -3"},
    {"cat: views of the gradient", op_cat, {{MP_F32, SHAPE(2, 3, 4)}, {MP_F32, SHAPE(2, 3, 2)}}, "+144", ""},
    {"split: one gradient of full size", op_split, {{MP_F32, SHAPE(2, 3, 4)}}, "", "+96"},
    {"slice: a gradient of full size", op_slice, {{MP_F32, SHAPE(2, 3, 4)}}, "", "+96"},
    {"slice of everything", op_whole_slice, {{MP_F32, SHAPE(2, 3, 4)}}, "", ""},
    {"view", op_view, {{MP_F32, SHAPE(2, 3, 4)}}, "", ""},
    {"transpose", op_transpose, {{MP_F32, SHAPE(2, 3, 4)}}, "", ""},
    {"unsqueeze", op_unsqueeze, {{MP_F32, SHAPE(2, 3, 4)}}, "", ""},
    {"expand: the gradient is summed", op_expand, {{MP_F32, SHAPE(2, 3, 4)}}, "", "+96"},
    {"contiguous of contiguous", op_contiguous, {{MP_F32, SHAPE(2, 3, 4)}}, "", ""},
    {"contiguous of transposed", op_contiguous_copy, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", ""},
    {"a gradient that cannot be viewed is copied", op_split_heads, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", "+96"},
    {"reshape that cannot view", op_reshape_copy, {{MP_F32, SHAPE(2, 3, 4)}}, "+96", ""},
    {"embedding", op_embedding, {{MP_F32, SHAPE(10, 4)}, {MP_I64, SHAPE(2, 3)}}, "+96", "+160"},
    {"embedding of expanded indices: copied twice", op_embedding_expanded, {{MP_F32, SHAPE(10, 4)}, {MP_I64, SHAPE(1, 3)}}, "+48 +96 -1", "+48 +160 -3"},
    {"mm: the second factor's gradient first", op_mm, {{MP_F32, SHAPE(6, 4)}, {MP_F32, SHAPE(4, 5)}}, "+120", "+80 +96"},
    {"addmm: mat1, mat2, then the bias", op_addmm, {{MP_F32, SHAPE(6, 4)}, {MP_F32, SHAPE(4, 5)}, {MP_F32, SHAPE(5)}}, "+120", "+96 +80 +20"},
    {"linear with bias: input, weight, bias", op_linear, {{MP_BF16, SHAPE(2, 3, 4)}, {MP_BF16, SHAPE(5, 4)}, {MP_BF16, SHAPE(5)}}, "+60", "+48 +40 +10"},
    {"linear without bias: weight, input", op_linear_no_bias, {{MP_F32, SHAPE(2, 3, 4)}, {MP_F32, SHAPE(5, 4)}}, "+120", "+80 +96"},
    {"matmul of contiguous heads", op_matmul, {{MP_F32, SHAPE(2, 2, 3, 4)}, {MP_F32, SHAPE(2, 2, 4, 5)}}, "+240", "+320 +192"},
    {"matmul of transposed heads: a copy that is saved", op_matmul_heads, {{MP_F32, SHAPE(2, 3, 2, 4)}, {MP_F32, SHAPE(2, 2, 4, 5)}},
     "+192 +240", "+320 +192 -1"},
    {"cross entropy", op_cross_entropy, {{MP_F32, SHAPE(6, 5)}, {MP_I64, SHAPE(6)}}, "+120 +4 +4", "+120 -3 +120 -4 -1"},
    {"cross entropy in bf16: loss and weight too", op_cross_entropy, {{MP_BF16, SHAPE(6, 5)}, {MP_I64, SHAPE(6)}}, "+60 +2 +2", "+60 -3 +60 -4 -1"},
};

static struct mp_tensor *operand(size_t row, int i)
{
    const struct mp_shape shape = operators[row].operands[i].shape;
    const enum mp_dtype dtype = operators[row].operands[i].dtype;
    if (shape.n == 0)
        return NULL;
    struct mp_tensor *const t = probe_tensor(&probe, shape, dtype);
    return mp_dtype_is_floating(dtype) ? probe_input(&probe, t) : t;
}

START_TEST(operators_allocate_and_free_in_order)
{
    struct mp_tensor *const a = operand((size_t)_i, 0), *const b = operand((size_t)_i, 1),
                           *const c = operand((size_t)_i, 2);
    probe_begin(&probe);
    struct mp_tensor *const out = mp_take(rt, operators[_i].call(a, b, c));
    probe_end(&probe);
    probe_backward(&probe, out);
    const char *const forward = probe_text(&probe, 0), *const backward = probe_text(&probe, 1);
    ck_assert_msg(strcmp(forward, operators[_i].forward) == 0, "%s: forward %s, not %s",
                  operators[_i].name, operators[_i].forward, forward);
    ck_assert_msg(strcmp(backward, operators[_i].backward) == 0, "%s: backward %s, not %s",
                  operators[_i].name, operators[_i].backward, backward);
}
END_TEST

/* Without grad nothing is saved: what only backward needs is not made or dies at once. */
static const struct {
    function *call;
    struct mp_shape a, b, c;
    const char *forward;
} without_grad[] = {
    {op_dropout, SHAPE(2, 3, 4), {0}, {0}, "+24 +96 -1"},
    {op_layer_norm, SHAPE(2, 3, 4), SHAPE(4), SHAPE(4), "+96 +24 +24 -3 -2"},
    {op_matmul_heads, SHAPE(2, 3, 2, 4), SHAPE(2, 2, 4, 5), {0}, "+192 +240 -1"},
};

START_TEST(without_grad_nothing_is_saved)
{
    struct mp_tensor *const a = probe_leaf(&probe, without_grad[_i].a, MP_F32);
    struct mp_tensor *const b = probe_leaf(&probe, without_grad[_i].b, MP_F32);
    struct mp_tensor *const c = probe_leaf(&probe, without_grad[_i].c, MP_F32);
    rt->grad_enabled = false;
    probe_begin(&probe);
    const struct mp_tensor *const out = mp_take(rt, without_grad[_i].call(a, b, c));
    probe_end(&probe);
    ck_assert_ptr_null(out->grad_fn);
    ck_assert_str_eq(probe_text(&probe, 0), without_grad[_i].forward);
}
END_TEST

/* ---- layouts ---- */

START_TEST(a_pointwise_result_lies_as_its_operands_do)
{
    struct mp_tensor *const x = probe_tensor(&probe, MP_SHAPE(2, 3, 4, 5), MP_F32);
    const struct mp_tensor *const rotated = mp_neg(rt, mp_transpose(rt, x, 1, 2));
    ck_assert_int_eq(rotated->stride[0], 60);
    ck_assert_int_eq(rotated->stride[1], 5);
    ck_assert_int_eq(rotated->stride[2], 20);
    ck_assert_int_eq(rotated->stride[3], 1);
    /* the first operand decides; a broadcast one has no say */
    struct mp_tensor *const row = probe_tensor(&probe, MP_SHAPE(1, 1, 3, 5), MP_F32);
    const struct mp_tensor *const product = mp_mul(rt, mp_transpose(rt, x, 1, 2), row);
    ck_assert_int_eq(product->stride[1], 5);
    ck_assert_int_eq(product->stride[2], 20);
    /* contiguous results whatever comes in */
    const struct mp_tensor *const soft = mp_softmax(rt, mp_transpose(rt, x, 1, 2), MP_F32);
    ck_assert(mp_is_contiguous(soft));
}
END_TEST

static const struct {
    enum mp_dtype a, b;
    bool scalar; /* b has no dimensions */
    enum mp_dtype result;
} promotions[] = {
    {MP_BF16, MP_F32, false, MP_F32}, {MP_BF16, MP_F32, true, MP_BF16}, {MP_F32, MP_BF16, false, MP_F32},
    {MP_I64, MP_F32, true, MP_F32},   {MP_BOOL, MP_I64, false, MP_I64}, {MP_F16, MP_I64, false, MP_F16},
};

START_TEST(the_higher_type_wins_and_scalars_do_not)
{
    struct mp_tensor *const a = probe_tensor(&probe, MP_SHAPE(2), promotions[_i].a);
    struct mp_tensor *const b =
        probe_tensor(&probe, promotions[_i].scalar ? MP_SCALAR : MP_SHAPE(2), promotions[_i].b);
    ck_assert_int_eq(mp_promote(2, (struct mp_tensor *[]){a, b}), promotions[_i].result);
}
END_TEST

/* ---- reduction scratch ---- */

/*
 * By hand for (2048, 768) summed over rows on 132 multiprocessors of 2,048 threads: 4 outputs a
 * thread, 32 x 4 threads, 6 blocks wide, 512 values a thread, so 32 blocks deep (min(352, 32)):
 * 4 * 768 * 32 * (32 * 4) bytes and 4 * 6. With fewer multiprocessors a wide one is split less, or not.
 */
static const struct {
    const char *gpu;
    enum mp_dtype dtype;
    int64_t rows, columns;
    uint64_t buffer, semaphores; /* 0: none */
} scratches[] = {
    {"H200-141G", MP_BF16, 2048, 768, 12582912, 24},
    {"H200-141G", MP_F32, 2048, 768, 12582912, 24},
    {"A100-80G", MP_BF16, 2048, 768, 12582912, 24},
    {"H200-141G", MP_F32, 1021, 768, 6291456, 24},
    {"H200-141G", MP_F32, 1020, 768, 0, 0},
    {"H200-141G", MP_F32, 2048, 49152, 150994944, 1536},
    {"A100-80G", MP_F32, 2048, 49152, 125829120, 1536},
    {"T4-16G", MP_F32, 2048, 49152, 0, 0},
};

START_TEST(reductions_over_many_rows_take_scratch)
{
    const struct mp_gpu *const gpu = mp_gpu_read(&probe.arena, scratches[_i].gpu, &probe.err);
    const struct mp_tensor *const x =
        probe_tensor(&probe, MP_SHAPE(scratches[_i].rows, scratches[_i].columns), scratches[_i].dtype);
    const struct mp_card_reply scratch = mp_reduce_scratch(&(struct mp_card){.gpu = gpu}, x, 1u);
    ck_assert_uint_eq(scratch.bytes[0], scratches[_i].buffer);
    ck_assert_uint_eq(scratch.bytes[1], scratches[_i].semaphores);
}
END_TEST

START_TEST(a_bias_gradient_shows_the_scratch)
{
    struct mp_tensor *const x = probe_input(&probe, mp_empty(rt, MP_SHAPE(2048, 64), MP_BF16));
    struct mp_tensor *const w = probe_input(&probe, mp_empty(rt, MP_SHAPE(768, 64), MP_BF16));
    struct mp_tensor *const b = probe_input(&probe, mp_empty(rt, MP_SHAPE(768), MP_BF16));
    probe_begin(&probe);
    struct mp_tensor *const out = mp_take(rt, mp_linear(rt, x, w, b));
    probe_end(&probe);
    probe_backward(&probe, out);
    ck_assert_str_eq(probe_text(&probe, 1), "+262144 +98304 +1536 +12582912 +24 -6 -5");
}
END_TEST

/* ---- workspaces: once per thread ---- */

START_TEST(the_first_product_of_a_thread_makes_its_workspace)
{
    struct probe cold;
    probe_open(&cold, "H200-141G");
    struct mp_tensor *const a = probe_input(&cold, mp_empty(&cold.rt, MP_SHAPE(6, 4), MP_F32));
    struct mp_tensor *const b = probe_input(&cold, mp_empty(&cold.rt, MP_SHAPE(4, 5), MP_F32));
    struct mp_tensor *const bias = probe_input(&cold, mp_empty(&cold.rt, MP_SHAPE(5), MP_F32));
    probe_begin(&cold);
    mp_take(&cold.rt, mp_mm(&cold.rt, a, b));
    struct mp_tensor *const out = mp_take(&cold.rt, mp_addmm(&cold.rt, bias, a, b));
    mp_take(&cold.rt, mp_mm(&cold.rt, a, b));
    probe_end(&cold);
    probe_backward(&cold, out);
    ck_assert_str_eq(probe_text(&cold, 0), "+120 +33554432 +120 +1048576 +120");
    ck_assert_str_eq(probe_text(&cold, 1), "+96 +33554432 +80 +20");
    probe_close(&cold);
}
END_TEST

/* ---- autocast ---- */

START_TEST(autocast_casts_last_to_first_and_keeps_weight_casts)
{
    struct mp_autocast outer, inner;
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(5, 4), MP_F32);
    struct mp_tensor *const b = probe_leaf(&probe, MP_SHAPE(5), MP_F32);
    struct mp_tensor *const x = probe_input(&probe, mp_empty(rt, MP_SHAPE(2, 3, 4), MP_F32));
    probe_begin(&probe);
    mp_autocast_enter(rt, &outer, true, MP_BF16);
    mp_take(rt, mp_linear(rt, x, w, b)); /* bias, weight, input, then the product */
    mp_autocast_enter(rt, &inner, true, MP_BF16);
    mp_take(rt, mp_linear(rt, x, w, b)); /* the input once more */
    mp_autocast_exit(rt, &inner);
    probe_end(&probe);
    probe_begin(&probe);
    mp_autocast_exit(rt, &outer); /* the graph holds the weight's cast */
    probe_end(&probe);
    ck_assert_str_eq(probe_text(&probe, 0), "+10 +40 +48 +60 +48 +60");
    ck_assert_str_eq(probe_text(&probe, 1), "-1");
}
END_TEST

START_TEST(autocast_fills_its_cache_without_grad_too)
{
    struct mp_autocast outer;
    struct mp_tensor *const w = probe_leaf(&probe, MP_SHAPE(5, 4), MP_F32);
    struct mp_tensor *const x = probe_tensor(&probe, MP_SHAPE(2, 3, 4), MP_F32);
    rt->grad_enabled = false;
    probe_begin(&probe);
    mp_autocast_enter(rt, &outer, true, MP_BF16);
    mp_take(rt, mp_linear(rt, x, w, NULL));
    mp_take(rt, mp_linear(rt, x, w, NULL));
    mp_autocast_exit(rt, &outer);
    probe_end(&probe);
    ck_assert_str_eq(probe_text(&probe, 0), "+40 +48 +60 -2 +48 +60 -4 -1");
}
END_TEST

static const struct {
    const char *name;
    function *call;
    enum mp_dtype dtype;
    const char *forward;
} autocasts[] = {
    {"layer norm computes in float32", op_layer_norm, MP_BF16, "+96 +96 +24 +24 -1"},
    {"pow computes in float32", op_pow, MP_BF16, "+96 +96"},
    {"softmax computes in float32", op_softmax, MP_BF16, "+96 +96 -1"},
    {"softmax of fp16 fuses the cast", op_softmax, MP_F16, "+96"},
    {"gelu stays in its input's type", op_gelu, MP_BF16, "+48"},
    {"add stays in its inputs' type", op_add, MP_BF16, "+96"},
};

START_TEST(autocast_has_two_lists)
{
    struct mp_autocast outer;
    struct mp_tensor *const a = probe_input(&probe, mp_empty(rt, MP_SHAPE(2, 3, 4), autocasts[_i].dtype));
    struct mp_tensor *const b = probe_leaf(&probe, MP_SHAPE(4), MP_F32);
    struct mp_tensor *const c = probe_leaf(&probe, MP_SHAPE(4), MP_F32);
    mp_autocast_enter(rt, &outer, true, autocasts[_i].dtype);
    probe_begin(&probe);
    mp_take(rt, autocasts[_i].call(a, b, c));
    probe_end(&probe);
    if (autocasts[_i].call == op_layer_norm) /* the cast is saved */
        ck_assert_str_eq(probe_text(&probe, 0), "+96 +96 +24 +24");
    else
        ck_assert_msg(strcmp(probe_text(&probe, 0), autocasts[_i].forward) == 0, "%s: %s",
                      autocasts[_i].name, probe_text(&probe, 0));
}
END_TEST

START_TEST(cross_entropy_of_low_logits_keeps_log_probabilities_twice)
{
    struct mp_autocast outer;
    struct mp_tensor *const logits = probe_input(&probe, mp_empty(rt, MP_SHAPE(6, 5), MP_BF16));
    struct mp_tensor *const target = probe_tensor(&probe, MP_SHAPE(6), MP_I64);
    mp_autocast_enter(rt, &outer, true, MP_BF16);
    probe_begin(&probe);
    struct mp_tensor *const loss = mp_take(rt, mp_cross_entropy(rt, logits, target));
    probe_end(&probe);
    mp_autocast_exit(rt, &outer);
    probe_backward(&probe, loss);
    ck_assert_str_eq(probe_text(&probe, 0), "+60 +120 +4 +4");
    ck_assert_str_eq(probe_text(&probe, 1), "+120 -2 -4 +60 -5 +60 -6 -1");
}
END_TEST

/* ---- attention ---- */

enum mask_kind { NO_MASK, BOOL_MASK, FLOAT_MASK, STRIDED_MASK, GRAD_MASK };

struct attention_case {
    enum mp_dtype dtype;
    int64_t batch, heads, kv_heads, seq, dim;
    enum mask_kind mask;
    double dropout;
    bool no_grad, not_causal;
    const char *layout; /* of q, k, v: "bsad" (a transposed projection), "split" or "bhsd" */
};

static struct mp_tensor *heads_of(struct probe *p, const struct attention_case *c, int64_t heads)
{
    struct mp_runtime *const r = &p->rt;
    struct mp_tensor *x = NULL;
    if (strcmp(c->layout, "bhsd") == 0) {
        x = mp_empty(r, MP_SHAPE(c->batch, heads, c->seq, c->dim), c->dtype);
    } else if (strcmp(c->layout, "split") == 0) {
        struct mp_tensor *parts[3];
        struct mp_tensor *const joint =
            probe_tensor(p, MP_SHAPE(c->batch, c->seq, 3 * heads * c->dim), c->dtype);
        mp_split(r, joint, 3, 2, parts);
        x = mp_transpose(r, mp_view(r, parts[1], MP_SHAPE(c->batch, c->seq, heads, c->dim)), 1, 2);
    } else {
        struct mp_tensor *const memory =
            probe_tensor(p, MP_SHAPE(c->batch, c->seq, heads, c->dim), c->dtype);
        x = mp_transpose(r, memory, 1, 2);
    }
    x = mp_take(r, mp_detach(r, x));
    return c->no_grad ? x : probe_input(p, x);
}

static struct mp_tensor *mask_of(struct probe *p, const struct attention_case *c)
{
    if (c->mask == NO_MASK)
        return NULL;
    const struct mp_shape shape = MP_SHAPE(c->batch, 1, c->seq, c->seq);
    struct mp_tensor *mask =
        probe_tensor(p, shape, c->mask == BOOL_MASK ? MP_BOOL : c->dtype);
    if (c->mask == STRIDED_MASK)
        mask = mp_take(&p->rt, mp_transpose(&p->rt, mask, 2, 3));
    return c->mask == GRAD_MASK ? probe_input(p, mask) : mask;
}

/* Forward in span 0; with grad, backward in span 1. */
static void attend(struct probe *p, const struct attention_case *c)
{
    struct mp_tensor *const q = heads_of(p, c, c->heads), *const k = heads_of(p, c, c->kv_heads),
                           *const v = heads_of(p, c, c->kv_heads), *const mask = mask_of(p, c);
    p->rt.grad_enabled = true;
    probe_begin(p);
    struct mp_tensor *const out = mp_take(
        &p->rt, mp_attention(&p->rt, q, k, v, mask, c->dropout, mask == NULL && !c->not_causal));
    probe_end(p);
    if (!c->no_grad)
        probe_backward(p, out);
}

/* Which kernel runs where: the first in the card's order that accepts the call. */
static const struct {
    const char *gpu;
    enum mp_dtype dtype;
    int64_t heads, kv_heads, seq, dim;
    enum mask_kind mask;
    double dropout;
    enum mp_attention_kernel kernel;
} choices[] = {
    {"H200-141G", MP_BF16, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_CUDNN},
    {"H200-141G", MP_F16, 4, 2, 128, 256, NO_MASK, 0.1, MP_KERNEL_CUDNN},
    {"H200-141G", MP_BF16, 4, 4, 128, 64, BOOL_MASK, 0, MP_KERNEL_CUDNN},
    {"H200-141G", MP_BF16, 4, 4, 128, 20, NO_MASK, 0, MP_KERNEL_FLASH},
    {"H200-141G", MP_BF16, 4, 4, 1, 64, NO_MASK, 0, MP_KERNEL_FLASH},
    {"H200-141G", MP_BF16, 4, 4, 128, 320, NO_MASK, 0, MP_KERNEL_EFFICIENT},
    {"H200-141G", MP_BF16, 4, 2, 128, 320, NO_MASK, 0, MP_KERNEL_MATH},
    {"H200-141G", MP_BF16, 4, 4, 128, 64, STRIDED_MASK, 0, MP_KERNEL_MATH},
    {"H200-141G", MP_BF16, 4, 4, 128, 64, GRAD_MASK, 0, MP_KERNEL_EFFICIENT},
    {"H200-141G", MP_F32, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_EFFICIENT},
    {"H200-141G", MP_F32, 4, 2, 128, 64, NO_MASK, 0, MP_KERNEL_MATH},
    {"H200-141G", MP_F32, 4, 4, 128, 30, NO_MASK, 0, MP_KERNEL_MATH},
    {"B200-180G", MP_BF16, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_CUDNN},
    {"A100-80G", MP_BF16, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_FLASH},
    {"A100-80G", MP_BF16, 4, 2, 128, 64, NO_MASK, 0.1, MP_KERNEL_FLASH},
    {"A100-80G", MP_BF16, 4, 4, 128, 256, NO_MASK, 0.1, MP_KERNEL_FLASH},
    {"A100-80G", MP_BF16, 4, 4, 128, 64, BOOL_MASK, 0, MP_KERNEL_EFFICIENT},
    {"A100-80G", MP_BF16, 4, 2, 128, 64, BOOL_MASK, 0, MP_KERNEL_MATH},
    {"A100-80G", MP_F32, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_EFFICIENT},
    {"RTX4090-24G", MP_BF16, 4, 4, 128, 192, NO_MASK, 0.1, MP_KERNEL_FLASH},
    {"RTX4090-24G", MP_BF16, 4, 4, 128, 200, NO_MASK, 0, MP_KERNEL_EFFICIENT},
    {"RTX4090-24G", MP_BF16, 4, 4, 128, 256, NO_MASK, 0, MP_KERNEL_FLASH},
    {"RTX4090-24G", MP_BF16, 4, 4, 128, 256, NO_MASK, 0.1, MP_KERNEL_EFFICIENT},
    {"RTX5090-32G", MP_BF16, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_FLASH},
    {"T4-16G", MP_F16, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_EFFICIENT},
    {"T4-16G", MP_F16, 4, 2, 128, 64, NO_MASK, 0, MP_KERNEL_MATH},
    {"T4-16G", MP_BF16, 4, 4, 128, 64, NO_MASK, 0, MP_KERNEL_MATH},
    {"V100-16G", MP_F32, 4, 4, 128, 30, NO_MASK, 0, MP_KERNEL_EFFICIENT},
};

START_TEST(each_card_chooses_its_attention_kernel)
{
    struct probe p;
    const struct attention_case c = {choices[_i].dtype, 2, choices[_i].heads, choices[_i].kv_heads,
                                     choices[_i].seq, choices[_i].dim, choices[_i].mask,
                                     choices[_i].dropout, false, false, "bsad"};
    probe_open(&p, choices[_i].gpu);
    probe_warm(&p);
    attend(&p, &c);
    ck_assert_uint_eq(p.rt.kernels, 1u << choices[_i].kernel);
    probe_close(&p);
}
END_TEST

/*
 * Sizes by hand. (2, 4, 128, 64) in half: 131,072 bytes each of q, k, v, out and their gradients; log
 * sum exp 4 * 2 * 4 * 128 = 4,096.
 *   cuDNN     workspace 4 * 2*4*128*64 + 4 * 2*4*128 + 256
 *   flash     row sums 4 * 2*4*128; dq in float32 4 * 2 * 128 * 4 * 64
 *   efficient 2*4 heads, 128 / 64 blocks, a tile of 64 x 64 floats and 16 bytes
 * One sequence of 1,024 with 12 heads is split on 132 multiprocessors (192 blocks of 264 slots: 4
 * splits fill 2.9 of 3 waves), but not on 108 (192 of 216).
 */
static const struct {
    const char *gpu;
    bool no_cudnn;
    struct attention_case call;
    const char *forward, *backward;
} sizes[] = {
    {"H200-141G", false, {MP_BF16, 2, 4, 4, 128, 64, NO_MASK, 0, false, false, "bsad"},
     "+8 +8 +131072 +4096 +256 -5", "+131072 +131072 +131072 +266496 -9 -4 -2 -1"},
    {"H200-141G", false, {MP_BF16, 2, 4, 2, 128, 64, NO_MASK, 0, false, false, "bsad"},
     "+8 +8 +131072 +4096 +256 -5", "+131072 +65536 +65536 +528640 -9 -4 -2 -1"},
    {"A100-80G", false, {MP_BF16, 2, 4, 4, 128, 64, NO_MASK, 0, false, false, "bsad"},
     "+131072 +4096 +16 +8", "+131072 +131072 +131072 +4096 +262144 -9 -8 -2 -3 -4"},
    {"A100-80G", false, {MP_BF16, 1, 12, 12, 1024, 64, NO_MASK, 0, false, false, "bsad"},
     "+1572864 +49152 +16 +8", "+1572864 +1572864 +1572864 +49152 +3145728 -9 -8 -2 -3 -4"},
    {"H200-141G", true, {MP_BF16, 1, 12, 12, 1024, 64, NO_MASK, 0, false, false, "bsad"},
     "+1572864 +49152 +196608 +12582912 +16 +8 -3 -4",
     "+1572864 +1572864 +1572864 +49152 +3145728 -11 -10 -2 -5 -6"},
    {"T4-16G", false, {MP_F16, 2, 4, 4, 128, 64, NO_MASK, 0, false, false, "bsad"},
     "+131072 +4096", "+131072 +131072 +131072 +4096 +262400 -6 -7 -2"},
    {"T4-16G", false, {MP_F32, 2, 4, 4, 128, 64, NO_MASK, 0, false, false, "bsad"},
     "+262144 +4096", "+262144 +262144 +262144 +262144 +4096 +4096 -7 -6 +262400 -8 -9 -2"},
    /* float32 and more than 64 columns: 128 x 64 tiles, where a block has shared memory for them */
    {"A100-80G", false, {MP_F32, 2, 4, 4, 128, 128, NO_MASK, 0, false, false, "bsad"},
     "+524288 +4096", "+524288 +524288 +524288 +524288 +4096 +4096 -7 -6 +524544 -8 -9 -2"},
    {"L4-24G", false, {MP_F32, 2, 4, 4, 128, 128, NO_MASK, 0, false, false, "bsad"},
     "+524288 +4096", "+524288 +524288 +524288 +524288 +4096 +4096 -7 -6 +524800 -8 -9 -2"},
    {"T4-16G", false, {MP_F32, 2, 4, 4, 128, 128, NO_MASK, 0, false, false, "bsad"},
     "+524288 +4096", "+524288 +524288 +524288 +524288 +4096 +4096 -7 -6 +524800 -8 -9 -2"},
};

START_TEST(attention_sizes_by_hand)
{
    struct probe p;
    probe_open(&p, sizes[_i].gpu);
    probe_warm(&p);
    if (sizes[_i].no_cudnn)
        p.gpu.cudnn_attention_first = false;
    attend(&p, &sizes[_i].call);
    ck_assert_str_eq(probe_text(&p, 0), sizes[_i].forward);
    ck_assert_str_eq(probe_sorted(&p, probe_text(&p, 1)), probe_sorted(&p, sizes[_i].backward));
    probe_close(&p);
}
END_TEST

/* ---- calls that were recorded on an H200 ---- */

static int64_t integer(const struct mp_value *v, const char *key, int64_t fallback)
{
    const struct mp_value *const member = mp_value_get(v, key);
    return member != NULL && member->kind == MP_INT ? member->as.integer : fallback;
}

static const char *text(const struct mp_value *v, const char *key, const char *fallback)
{
    const struct mp_value *const member = mp_value_get(v, key);
    return member != NULL && member->kind == MP_STRING ? member->as.string.text : fallback;
}

static bool flag(const struct mp_value *v, const char *key, bool fallback)
{
    const struct mp_value *const member = mp_value_get(v, key);
    return member != NULL && member->kind == MP_BOOLEAN ? member->as.boolean : fallback;
}

static double number(const struct mp_value *v, const char *key)
{
    double value = 0;
    const struct mp_value *const member = mp_value_get(v, key);
    return member != NULL && mp_value_number(member, &value) ? value : 0;
}

static enum mp_dtype dtype_of(const struct mp_value *v)
{
    static const struct {
        const char *name;
        enum mp_dtype dtype;
    } names[] = {{"fp32", MP_F32}, {"bf16", MP_BF16}, {"fp16", MP_F16}, {"bool", MP_BOOL}, {"int64", MP_I64}};
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++)
        if (strcmp(text(v, "dtype", "fp32"), names[i].name) == 0)
            return names[i].dtype;
    ck_abort_msg("unknown type in the recorded calls");
    return MP_F32;
}

static struct mp_shape shape_of(const struct mp_value *v)
{
    struct mp_shape shape = {0, {0}};
    const struct mp_value *const list = mp_value_get(v, "shape");
    for (size_t i = 0; list != NULL && i < list->as.array.length; i++)
        shape.d[shape.n++] = list->as.array.items[i]->as.integer;
    return shape;
}

/* Like torch.backends.cuda.enable_*_sdp: only this kernel, or the card's own order. */
static void enable_kernel(struct probe *p, const char *kernel)
{
    if (strcmp(kernel, "default") == 0)
        return;
    p->gpu.cudnn_attention_first = strcmp(kernel, "cudnn") == 0;
    p->gpu.flash_attention = strcmp(kernel, "flash") == 0;
    p->gpu.efficient_attention = strcmp(kernel, "efficient") == 0;
}

static void call_attention(struct probe *p, const struct mp_value *v)
{
    const int64_t heads = integer(v, "heads", 1);
    const char *const mask = text(v, "mask", "");
    const struct attention_case c = {
        .dtype = dtype_of(v), .batch = integer(v, "batch", 1), .heads = heads,
        .kv_heads = integer(v, "kv_heads", heads), .seq = integer(v, "seq", 1),
        .dim = integer(v, "dim", 1),
        .mask = mask[0] == '\0' ? NO_MASK : strcmp(mask, "bool") == 0 ? BOOL_MASK : FLOAT_MASK,
        .dropout = number(v, "dropout"), .no_grad = !flag(v, "grad", true),
        .not_causal = !flag(v, "causal", true), .layout = text(v, "layout", "bsad"),
    };
    enable_kernel(p, text(v, "kernel", "default"));
    attend(p, &c);
}

static void forward_backward(struct probe *p, function *call, struct mp_tensor *a,
                             struct mp_tensor *b, struct mp_tensor *c)
{
    probe_begin(p);
    struct mp_tensor *const out = mp_take(rt, call(a, b, c));
    probe_end(p);
    probe_backward(p, out);
}

static void call_embedding(struct probe *p, const struct mp_value *v)
{
    struct mp_tensor *const table = probe_input(
        p, mp_empty(rt, MP_SHAPE(integer(v, "rows", 1), integer(v, "dim", 1)), dtype_of(v)));
    struct mp_tensor *const index =
        probe_tensor(p, MP_SHAPE(integer(v, "batch", 1), integer(v, "n", 1)), MP_I64);
    forward_backward(p, op_embedding, table, index, NULL);
}

static void call_layer_norm(struct probe *p, const struct mp_value *v)
{
    const int64_t dim = integer(v, "dim", 1);
    struct mp_tensor *const x =
        probe_input(p, mp_empty(rt, MP_SHAPE(integer(v, "rows", 1), dim), dtype_of(v)));
    struct mp_tensor *const weight = probe_input(p, mp_empty(rt, MP_SHAPE(dim), dtype_of(v)));
    struct mp_tensor *const bias = probe_input(p, mp_empty(rt, MP_SHAPE(dim), dtype_of(v)));
    forward_backward(p, op_layer_norm, x, weight, bias);
}

static void call_linear(struct probe *p, const struct mp_value *v)
{
    const int64_t rows = integer(v, "rows", 1), inner = integer(v, "inner", 1),
                  outer = integer(v, "outer", 1);
    struct mp_tensor *const x = probe_input(p, mp_empty(rt, MP_SHAPE(rows, inner), dtype_of(v)));
    struct mp_tensor *const w = probe_input(p, mp_empty(rt, MP_SHAPE(outer, inner), dtype_of(v)));
    struct mp_tensor *const b =
        flag(v, "bias", false) ? probe_input(p, mp_empty(rt, MP_SHAPE(outer), dtype_of(v))) : NULL;
    forward_backward(p, op_linear, x, w, b);
}

static void call_cross_entropy(struct probe *p, const struct mp_value *v)
{
    struct mp_tensor *const x = probe_input(
        p, mp_empty(rt, MP_SHAPE(integer(v, "rows", 1), integer(v, "classes", 1)), dtype_of(v)));
    struct mp_tensor *const target = probe_tensor(p, MP_SHAPE(integer(v, "rows", 1)), MP_I64);
    forward_backward(p, op_cross_entropy, x, target, NULL);
}

OPERATOR(op_add_zeros, mp_add(rt, a, mp_empty(rt, MP_SHAPE(1), a->dtype)))

static void call_pointwise(struct probe *p, const struct mp_value *v)
{
    static const struct {
        const char *how;
        function *call;
    } functions[] = {
        {"gelu", op_gelu},   {"silu", op_silu},       {"mul", op_square},
        {"dropout", op_dropout}, {"float", op_to_float}, {"half", op_to_bf16},
        {"softmax", op_softmax}, {"softmax32", op_softmax_float}, {"expand", op_add_zeros},
    };
    struct mp_tensor *const x = probe_input(p, mp_empty(rt, shape_of(v), dtype_of(v)));
    for (size_t i = 0; i < MP_ARRAY_LEN(functions); i++)
        if (strcmp(text(v, "how", ""), functions[i].how) == 0)
            forward_backward(p, functions[i].call, x, NULL, NULL);
}

static void call_reduction(struct probe *p, const struct mp_value *v)
{
    const struct mp_value *const list = mp_value_get(v, "dim");
    struct mp_tensor *x = probe_tensor(p, shape_of(v), dtype_of(v));
    unsigned dims = 0;
    for (size_t i = 0; list != NULL && i < list->as.array.length; i++)
        dims |= 1u << list->as.array.items[i]->as.integer;
    if (list == NULL)
        dims = (1u << x->shape.n) - 1;
    probe_begin(p);
    if (x->dtype == MP_BOOL && strcmp(text(v, "how", ""), "sum") == 0) { /* counts in int64 */
        mp_take(rt, mp_empty(rt, MP_SHAPE(1), MP_I64));
        x = mp_to(rt, x, MP_I64);
        mp_reduce_take_scratch(rt, x, dims);
        mp_discard(rt, x);
    } else {
        mp_take(rt, mp_reduce(rt, x, dims, false));
    }
    probe_end(p);
}

/* A cumsum of booleans counts in int64; one row takes CUB's scan over it. */
static void call_cumsum(struct probe *p, const struct mp_value *v)
{
    const int64_t batch = integer(v, "batch", 1), n = integer(v, "n", 1);
    probe_begin(p);
    mp_take(rt, mp_empty(rt, MP_SHAPE(batch, n), MP_I64));
    struct mp_tensor *const cast = dtype_of(v) == MP_I64 ? NULL : mp_empty(rt, MP_SHAPE(batch, n), MP_I64);
    if (batch == 1)
        mp_scratch(rt, mp_scan_temp(n, MP_SCAN_TILE));
    mp_discard(rt, cast);
    probe_end(p);
}

static const struct {
    const char *op;
    void (*call)(struct probe *p, const struct mp_value *v);
} recorded_operators[] = {
    {"attention", call_attention}, {"embedding", call_embedding}, {"layer_norm", call_layer_norm},
    {"linear", call_linear},       {"cross_entropy", call_cross_entropy},
    {"pointwise", call_pointwise}, {"reduction", call_reduction}, {"cumsum", call_cumsum},
};

/* A kernel that was forced and refused must not be what we choose. */
static bool refuses(const struct probe *p, const struct mp_value *v)
{
    const char *const kernel = text(v, "kernel", "");
    const enum mp_attention_kernel forced = strcmp(kernel, "flash") == 0 ? MP_KERNEL_FLASH
                                            : strcmp(kernel, "efficient") == 0
                                                ? MP_KERNEL_EFFICIENT
                                                : MP_KERNEL_CUDNN;
    return !(p->rt.kernels >> forced & 1u);
}

/* What differs from the recording goes into *difference. */
static void check_recorded(const struct mp_value *v, struct mp_strbuf *difference)
{
    probe_open(&probe, "H200-141G");
    probe_warm(&probe);
    for (size_t i = 0; i < MP_ARRAY_LEN(recorded_operators); i++)
        if (strcmp(text(v, "op", ""), recorded_operators[i].op) == 0)
            recorded_operators[i].call(&probe, v);
    ck_assert_int_gt(probe.n_spans, 0);
    if (mp_value_get(v, "refused") != NULL) {
        if (!refuses(&probe, v))
            mp_strbuf_addstr(difference, "the kernel refuses this");
    } else {
        static const char *const names[] = {"forward", "backward"};
        for (int i = 0; i < 2; i++) {
            const char *const ours = i < probe.n_spans ? probe_text(&probe, i) : "";
            const char *const recorded = text(v, names[i], "");
            if (strcmp(probe_sorted(&probe, recorded), probe_sorted(&probe, ours)) != 0)
                mp_strbuf_addf(difference, "%s: recorded %s, ours %s; ", names[i], recorded, ours);
        }
    }
    probe_close(&probe);
}

START_TEST(recorded_calls_event_by_event)
{
    enum { SHOWN = 10 };
    struct mp_strbuf lines = MP_STRBUF_INIT, report = MP_STRBUF_INIT;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    int n = 0, n_wrong = 0;
    ck_assert_msg(mp_file_read("validate/results/h200-operators.jsonl", 0, &lines, &err) == MEMPLAN_STATUS_OK,
                  "%s", err.text);
    const char *at = mp_strbuf_text(&lines);
    for (; *at != '\0'; at += strcspn(at, "\n") + 1) {
        struct mp_arena arena = {0};
        struct mp_strbuf difference = MP_STRBUF_INIT;
        const size_t length = strcspn(at, "\n");
        const struct mp_value *const v = mp_json_parse(&arena, "recording", at, length, &err);
        ck_assert_msg(v != NULL, "%s", err.text);
        if (mp_value_get(v, "profile") == NULL) {
            check_recorded(v, &difference);
            n++;
        }
        if (difference.len > 0 && n_wrong++ < SHOWN)
            mp_strbuf_addf(&report, "%.*s\n  %s\n", (int)MP_MIN(length, 160), at, mp_strbuf_text(&difference));
        mp_strbuf_release(&difference);
        mp_arena_release(&arena);
    }
    ck_assert_msg(n_wrong == 0, "%d of %d calls differ:\n%s", n_wrong, n, mp_strbuf_text(&report));
    ck_assert_int_ge(n, 3200);
    mp_strbuf_release(&lines);
    mp_strbuf_release(&report);
}
END_TEST

Suite *suite_ops(void)
{
    Suite *const suite = suite_create("ops");
    TCase *const tc = tcase_create("operators");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, operators_allocate_and_free_in_order, 0, (int)MP_ARRAY_LEN(operators));
    tcase_add_loop_test(tc, without_grad_nothing_is_saved, 0, (int)MP_ARRAY_LEN(without_grad));
    tcase_add_test(tc, a_pointwise_result_lies_as_its_operands_do);
    tcase_add_loop_test(tc, the_higher_type_wins_and_scalars_do_not, 0, (int)MP_ARRAY_LEN(promotions));
    tcase_add_loop_test(tc, reductions_over_many_rows_take_scratch, 0, (int)MP_ARRAY_LEN(scratches));
    tcase_add_test(tc, a_bias_gradient_shows_the_scratch);
    tcase_add_test(tc, the_first_product_of_a_thread_makes_its_workspace);
    tcase_add_test(tc, autocast_casts_last_to_first_and_keeps_weight_casts);
    tcase_add_test(tc, autocast_fills_its_cache_without_grad_too);
    tcase_add_loop_test(tc, autocast_has_two_lists, 0, (int)MP_ARRAY_LEN(autocasts));
    tcase_add_test(tc, cross_entropy_of_low_logits_keeps_log_probabilities_twice);
    suite_add_tcase(suite, tc);
    TCase *const attention = tcase_create("attention");
    tcase_add_loop_test(attention, each_card_chooses_its_attention_kernel, 0, (int)MP_ARRAY_LEN(choices));
    tcase_add_loop_test(attention, attention_sizes_by_hand, 0, (int)MP_ARRAY_LEN(sizes));
    suite_add_tcase(suite, attention);
    TCase *const recorded = tcase_create("recorded");
    tcase_set_timeout(recorded, 60);
    tcase_add_test(recorded, recorded_calls_event_by_event);
    suite_add_tcase(suite, recorded);
    return suite;
}
