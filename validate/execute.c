/* SPDX-License-Identifier: MIT */
/*
 * One function per kind of operation, one table row per name. Inputs and outputs stand in the order
 * in which src/shadow records them: for a node of the graph the gradients first, then what it
 * saved.
 */
#include "execute.h"

#include <string.h>

#include "collective.h"
#include "device.h"
#include "random.h"
#include "ranks.h"

/* The operation at hand. */
struct call {
    struct executor *x;
    const struct mp_program *p;
    const struct mp_op_record *op;
    struct memplan_error *err;
};

struct k_tensor executor_tensor(const struct executor *x, const struct mp_op_tensor *t)
{
    struct k_tensor k = {.dtype = t->dtype, .n = t->shape.n};
    const uint64_t bytes = mp_dtype_bytes((enum mp_dtype)t->dtype);
    k.data =
        (void *)(uintptr_t)(memory_address(x->memory, t->storage) + (uint64_t)t->offset * bytes);
    for (int i = 0; i < t->shape.n; i++) {
        k.shape[i] = t->shape.d[i];
        k.stride[i] = t->stride[i];
    }
    return k;
}

static bool has_input(const struct call *c, uint32_t i)
{
    return mp_op_input(c->p, c->op, i) != NULL;
}
static bool has_output(const struct call *c, uint32_t i)
{
    return mp_op_output(c->p, c->op, i) != NULL;
}

/* A tensor that must be there; an empty one stands in for one that is not. */
static struct k_tensor in(const struct call *c, uint32_t i)
{
    const struct mp_op_tensor *t = mp_op_input(c->p, c->op, i);
    return t ? executor_tensor(c->x, t) : (struct k_tensor){.data = NULL};
}
static struct k_tensor out(const struct call *c, uint32_t i)
{
    const struct mp_op_tensor *t = mp_op_output(c->p, c->op, i);
    return t ? executor_tensor(c->x, t) : (struct k_tensor){.data = NULL};
}
static const struct k_tensor *or_null(const struct k_tensor *t)
{
    return t->data ? t : NULL;
}
static double number(const struct call *c, const char *key, double fallback)
{
    return mp_op_number(c->p, c->op, key, fallback);
}
static int64_t integer(const struct call *c, const char *key, int64_t fallback)
{
    return mp_op_integer(c->p, c->op, key, fallback);
}

/* ---- filling ---- */

static int fill(const struct call *c)
{
    const struct k_tensor o = out(c, 0);
    return k_fill(&o, number(c, "value", 0));
}

static int arange(const struct call *c)
{
    const struct k_tensor o = out(c, 0);
    return k_arange(&o);
}

static int normal(const struct call *c)
{
    const struct k_tensor o = out(c, 0);
    return k_normal(&o, number(c, "std", 1), (uint64_t)integer(c, "seed", 0) + (UINT64_C(1) << 32));
}

static int rotary_frequencies(const struct call *c)
{
    const struct k_tensor o = out(c, 0);
    const char *type = mp_op_text(c->p, c->op, "rope_type", "default");
    if (strcmp(type, "default") != 0)
        return device_fail(
            "rotary embeddings of type '%s' have no kernel; only the default type has", type);
    return k_rotary_frequencies(&o, number(c, "theta", 10000));
}

/* Number of rows of the table that this storage is the index of: ids must stay below it. */
static int64_t vocabulary_of(const struct call *c, uint32_t storage)
{
    for (uint32_t i = 0; i < c->p->n_ops; i++) {
        const struct mp_op_record *op = &c->p->ops[i];
        const struct mp_op_tensor *index = mp_op_input(c->p, op, 0),
                                  *table = mp_op_input(c->p, op, 1);
        if (strcmp(op->op, "embedding") == 0 && index && table && index->storage == storage)
            return table->shape.d[0];
    }
    return 0;
}

static int64_t count(const struct k_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++)
        n *= t->shape[i];
    return n;
}

/* Ranks take turns: what one process would see as micro-batches, they see side by side. */
static uint64_t batch_number(const struct call *c)
{
    return (uint64_t)c->x->n_inputs * (uint64_t)ranks()->world + (uint64_t)ranks()->rank;
}

/*
 * Ids from the file, or drawn; a padding mask leaves out the last eighth of every row, as
 * measure.py does.
 */
static int64_t input_value(const struct call *c, const char *kind, int64_t i, int64_t vocabulary,
                           int64_t row_length)
{
    const struct mp_value *tokens = c->x->tokens;
    if (strcmp(kind, "token_ids") != 0)
        return strcmp(kind, "ones") == 0 || i % row_length < row_length - MP_MAX(row_length / 8, 1);
    if (!tokens)
        return (int64_t)(random_bits(batch_number(c), (uint64_t)i) % (uint64_t)vocabulary);
    return tokens->as.array.items[batch_number(c)]->as.array.items[i]->as.integer;
}

/* Are there as many tokens in the file as the batch wants? */
static bool tokens_suffice(const struct call *c, int64_t n, int64_t vocabulary)
{
    const struct mp_value *tokens = c->x->tokens, *batch;
    if (!tokens)
        return vocabulary > 0;
    if (tokens->kind != MP_ARRAY || batch_number(c) >= tokens->as.array.length)
        return false;
    batch = tokens->as.array.items[batch_number(c)];
    if (batch->kind != MP_ARRAY || batch->as.array.length != (size_t)n)
        return false;
    for (int64_t i = 0; i < n; i++) {
        const struct mp_value *id = batch->as.array.items[i];
        if (id->kind != MP_INT || id->as.integer < 0 || id->as.integer >= vocabulary)
            return false;
    }
    return true;
}

static int input(const struct call *c)
{
    const struct mp_op_tensor *t = mp_op_output(c->p, c->op, 0);
    const struct k_tensor o = out(c, 0);
    const char *kind = mp_op_text(c->p, c->op, "kind", "");
    const bool ids = strcmp(kind, "token_ids") == 0;
    const int64_t n = count(&o), vocabulary = ids ? vocabulary_of(c, t->storage) : 0;
    if (o.dtype != K_I64 || o.n != 2 || (ids && !tokens_suffice(c, n, vocabulary)))
        return device_fail("input: no token ids for batch %llu of this program",
                           (unsigned long long)batch_number(c));
    int64_t *values = malloc((size_t)n * sizeof *values);
    if (!values)
        return device_fail("out of memory on the host");
    for (int64_t i = 0; i < n; i++)
        values[i] = input_value(c, kind, i, vocabulary, o.shape[1]);
    const int status =
        device_from_host((uint64_t)(uintptr_t)o.data, values, (uint64_t)n * sizeof *values);
    free(values);
    c->x->n_inputs += ids;
    return status;
}

/*
 * Weights from the file replace what the program drew. They pass through the card in the
 * parameter's own type.
 */
static uint16_t half_of(float value, int dtype)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == K_BF16)
        return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    const uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x38800000u) /* below 2^-14: weights that small are lost */
        return (uint16_t)sign;
    const uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded >= 0x47800000u ? 0x7c00u : (rounded >> 13) - (112u << 10)));
}

static int parameter(const struct call *c)
{
    const struct k_tensor o = out(c, 0);
    struct executor *x = c->x;
    const uint64_t n = (uint64_t)count(&o);
    if (!x->weights)
        return 0;
    if (n > x->n_weights - x->next_weight)
        return device_fail("--weights: the file ends before parameter %lld",
                           (long long)integer(c, "index", 0));
    const float *from = x->weights + x->next_weight;
    x->next_weight += n;
    if (o.dtype == K_F32)
        return device_from_host((uint64_t)(uintptr_t)o.data, from, n * sizeof *from);
    uint16_t *halves = malloc(n * sizeof *halves);
    if (!halves)
        return device_fail("out of memory on the host");
    for (uint64_t i = 0; i < n; i++)
        halves[i] = half_of(from[i], o.dtype);
    const int status = device_from_host((uint64_t)(uintptr_t)o.data, halves, n * sizeof *halves);
    free(halves);
    return status;
}

/* ---- pointwise ---- */

static int apply_unary(const struct call *c, enum k_unary op, double value)
{
    const struct k_tensor a = in(c, 0), o = out(c, 0);
    return k_unary(op, &a, &o, value);
}

static int copy(const struct call *c)
{
    return apply_unary(c, K_COPY, 0);
}
static int neg(const struct call *c)
{
    return apply_unary(c, K_NEG, 0);
}
static int tanh_(const struct call *c)
{
    return apply_unary(c, K_TANH, 0);
}
static int gelu(const struct call *c)
{
    return apply_unary(c, K_GELU, 0);
}
static int silu(const struct call *c)
{
    return apply_unary(c, K_SILU, 0);
}
static int relu(const struct call *c)
{
    return apply_unary(c, K_RELU, 0);
}
static int sigmoid(const struct call *c)
{
    return apply_unary(c, K_SIGMOID, 0);
}
static int rsqrt(const struct call *c)
{
    return apply_unary(c, K_RSQRT, 0);
}
static int cosine(const struct call *c)
{
    return apply_unary(c, K_COS, 0);
}
static int sine(const struct call *c)
{
    return apply_unary(c, K_SIN, 0);
}
static int power(const struct call *c)
{
    return apply_unary(c, K_POW, number(c, "exponent", 1));
}
static int divide(const struct call *c)
{
    return apply_unary(c, K_DIV_NUMBER, number(c, "number", 1));
}
static int additive_mask(const struct call *c)
{
    return apply_unary(c, K_ADDITIVE_MASK, 0);
}

static int apply_binary(const struct call *c, enum k_binary op, double value)
{
    const struct k_tensor a = in(c, 0), b = in(c, 1), o = out(c, 0);
    return k_binary(op, &a, &b, &o, value);
}

static int add(const struct call *c)
{
    return has_input(c, 1) ? apply_binary(c, K_ADD, 0)
                           : apply_unary(c, K_ADD_NUMBER, number(c, "number", 0));
}
static int sub(const struct call *c)
{
    return apply_binary(c, K_SUB, 0);
}
static int mul(const struct call *c)
{
    return has_input(c, 1) ? apply_binary(c, K_MUL, 0)
                           : apply_unary(c, K_MUL_NUMBER, number(c, "number", 1));
}
static int tanh_backward(const struct call *c)
{
    return apply_binary(c, K_TANH_BACKWARD, 0);
}
static int gelu_backward(const struct call *c)
{
    return apply_binary(c, K_GELU_BACKWARD, 0);
}
static int silu_backward(const struct call *c)
{
    return apply_binary(c, K_SILU_BACKWARD, 0);
}
static int relu_backward(const struct call *c)
{
    return apply_binary(c, K_RELU_BACKWARD, 0);
}
static int sigmoid_backward(const struct call *c)
{
    return apply_binary(c, K_SIGMOID_BACKWARD, 0);
}
static int rsqrt_backward(const struct call *c)
{
    return apply_binary(c, K_RSQRT_BACKWARD, 0);
}
static int pow_backward(const struct call *c)
{
    return apply_binary(c, K_POW_BACKWARD, number(c, "exponent", 1));
}
static int dropout_backward(const struct call *c)
{
    return apply_binary(c, K_DROPOUT_BACKWARD, number(c, "p", 0));
}

/* By a number, or by the other factor: the saved tensors are b (for a's gradient) and a. */
static int mul_backward(const struct call *c)
{
    const struct k_tensor g = in(c, 0);
    if (mp_op_attribute(c->p, c->op, "number"))
        return apply_unary(c, K_MUL_NUMBER, number(c, "number", 1));
    for (uint32_t i = 0; i < 2; i++) {
        const struct k_tensor factor = in(c, 1 + i), o = out(c, i);
        if (o.data && k_binary(K_MUL, &g, &factor, &o, 0))
            return -1;
    }
    return 0;
}

static int dropout(const struct call *c)
{
    const struct k_tensor a = in(c, 0), o = out(c, 0), mask = out(c, 1);
    return k_dropout(&a, &o, &mask, number(c, "p", 0), (uint64_t)integer(c, "seed", 0));
}

/* ---- parts ---- */

/* `from` along a dimension, as long as `length`. */
static struct k_tensor part(const struct k_tensor *t, int dim, int64_t from, int64_t length,
                            int64_t step)
{
    struct k_tensor p = *t;
    p.data =
        (char *)t->data + from * t->stride[dim] * (int64_t)mp_dtype_bytes((enum mp_dtype)t->dtype);
    p.shape[dim] = length;
    p.stride[dim] *= step;
    return p;
}

static int check_part(const struct k_tensor *whole, const struct k_tensor *piece, int64_t dim,
                      int64_t from, int64_t step)
{
    if (dim < 0 || dim >= whole->n || piece->n != whole->n || from < 0 || step < 1 ||
        (piece->shape[dim] > 0 && from + (piece->shape[dim] - 1) * step >= whole->shape[dim]))
        return device_fail("an operation on parts: they do not fit the whole");
    return 0;
}

static int cat(const struct call *c)
{
    const struct k_tensor o = out(c, 0);
    const int64_t dim = integer(c, "dim", 0);
    int64_t from = 0;
    for (uint32_t i = 0; i < c->op->n_inputs; i++) {
        const struct k_tensor a = in(c, i);
        if (check_part(&o, &a, dim, from, 1))
            return -1;
        const struct k_tensor place = part(&o, (int)dim, from, a.shape[dim], 1);
        if (k_unary(K_COPY, &a, &place, 0))
            return -1;
        from += a.shape[dim];
    }
    return 0;
}

/* A gradient that is zero but for one part. */
static int slice_backward(const struct call *c)
{
    const struct k_tensor g = in(c, 0), o = out(c, 0);
    const int64_t dim = integer(c, "dim", 0), from = integer(c, "from", 0),
                  step = integer(c, "step", 1);
    if (check_part(&o, &g, dim, from, step) || k_fill(&o, 0))
        return -1;
    const struct k_tensor place = part(&o, (int)dim, from, g.shape[dim], step);
    return k_unary(K_COPY, &g, &place, 0);
}

/* Parts of equal size; one that got no gradient stays zero. */
static int split_backward(const struct call *c)
{
    const struct k_tensor o = out(c, 0);
    const int64_t dim = integer(c, "dim", 0), parts = c->op->n_inputs;
    if (dim < 0 || dim >= o.n || parts < 1 || k_fill(&o, 0))
        return device_fail("SplitBackward0: it has no such dimension");
    const int64_t length = o.shape[dim] / parts;
    for (uint32_t i = 0; i < c->op->n_inputs; i++) {
        const struct k_tensor g = in(c, i),
                              place = part(&o, (int)dim, (int64_t)i * length, length, 1);
        if (g.data && k_unary(K_COPY, &g, &place, 0))
            return -1;
    }
    return 0;
}

/* At the end of the last dimension. */
static int pad(const struct call *c)
{
    const struct k_tensor a = in(c, 0), o = out(c, 0);
    if (check_part(&o, &a, o.n - 1, 0, 1) || k_fill(&o, number(c, "value", 0)))
        return -1;
    const struct k_tensor place = part(&o, o.n - 1, 0, a.shape[o.n - 1], 1);
    return k_unary(K_COPY, &a, &place, 0);
}

static int pad_backward(const struct call *c)
{
    const struct k_tensor g = in(c, 0), o = out(c, 0);
    if (check_part(&g, &o, g.n - 1, 0, 1))
        return -1;
    const struct k_tensor piece = part(&g, g.n - 1, 0, o.shape[o.n - 1], 1);
    return k_unary(K_COPY, &piece, &o, 0);
}

/* ---- reductions, norms ---- */

static double reduced_elements(const struct k_tensor *t, unsigned dims)
{
    double n = 1;
    for (int i = 0; i < t->n; i++)
        n *= dims >> i & 1u ? (double)t->shape[i] : 1;
    return n;
}

static int sum(const struct call *c)
{
    const struct k_tensor a = in(c, 0), o = out(c, 0);
    return k_sum(&a, &o, (unsigned)integer(c, "dims", 0), 1);
}

static int mean(const struct call *c)
{
    const struct k_tensor a = in(c, 0), o = out(c, 0);
    const unsigned dims = (unsigned)integer(c, "dims", 0);
    return k_sum(&a, &o, dims, 1 / reduced_elements(&a, dims));
}

static int softmax_as(const struct call *c, int logarithm)
{
    const struct k_tensor a = in(c, 0), o = out(c, 0);
    return k_softmax(&a, &o, logarithm);
}
static int softmax(const struct call *c)
{
    return softmax_as(c, 0);
}
static int log_softmax(const struct call *c)
{
    return softmax_as(c, 1);
}

static int softmax_backward_as(const struct call *c, int logarithm)
{
    const struct k_tensor g = in(c, 0), saved = in(c, 1), o = out(c, 0);
    return k_softmax_backward(&g, &saved, &o, logarithm);
}
static int softmax_backward(const struct call *c)
{
    return softmax_backward_as(c, 0);
}
static int log_softmax_backward(const struct call *c)
{
    return softmax_backward_as(c, 1);
}

static int layer_norm(const struct call *c)
{
    const struct k_tensor a = in(c, 0), weight = in(c, 1), bias = in(c, 2), o = out(c, 0),
                          average = out(c, 1), rstd = out(c, 2);
    return k_layer_norm(&a, &weight, &bias, &o, &average, &rstd, number(c, "eps", 1e-5));
}

/* Saved: bias, x, weight, mean, rstd. */
static int layer_norm_backward(const struct call *c)
{
    const struct k_tensor g = in(c, 0), a = in(c, 2), weight = in(c, 3), average = in(c, 4),
                          rstd = in(c, 5);
    const struct k_tensor dx = out(c, 0), dw = out(c, 1), db = out(c, 2);
    return k_layer_norm_backward(&g, &a, &average, &rstd, &weight, or_null(&dx), or_null(&dw),
                                 or_null(&db));
}

/* ---- products ---- */

static struct k_tensor transposed(const struct k_tensor *t)
{
    struct k_tensor r = *t;
    r.shape[t->n - 2] = t->shape[t->n - 1];
    r.shape[t->n - 1] = t->shape[t->n - 2];
    r.stride[t->n - 2] = t->stride[t->n - 1];
    r.stride[t->n - 1] = t->stride[t->n - 2];
    return r;
}

static int gemm(const struct call *c, const struct k_tensor *a, const struct k_tensor *b,
                const struct k_tensor *o, int added)
{
    const uint32_t storage = (uint32_t)integer(c, "workspace", 0);
    const bool known = storage && storage <= c->p->n_allocs && c->x->memory->blocks[storage];
    void *workspace = known ? (void *)(uintptr_t)memory_address(c->x->memory, storage) : NULL;
    if (a->n < 2 || b->n < 2)
        return device_fail("a matrix product: its tensors are no matrices");
    if (c->x->plain)
        return k_gemm_plain(a, b, o, added);
    return k_gemm(a, b, o, added, c->x->tf32, workspace,
                  known ? c->x->memory->file->bytes[storage] : 0);
}

static int mm(const struct call *c)
{
    const struct k_tensor a = in(c, 0), b = in(c, 1), o = out(c, 0);
    return gemm(c, &a, &b, &o, 0);
}

static int addmm(const struct call *c)
{
    const struct k_tensor bias = in(c, 0), a = in(c, 1), b = in(c, 2), o = out(c, 0);
    return k_unary(K_COPY, &bias, &o, 0) ? -1 : gemm(c, &a, &b, &o, 1);
}

/* da = g b', db = a' g */
static int product_backward(const struct call *c, const struct k_tensor *a,
                            const struct k_tensor *b, const struct k_tensor *da,
                            const struct k_tensor *db)
{
    const struct k_tensor g = in(c, 0);
    if (db->data) {
        const struct k_tensor t = transposed(a);
        if (gemm(c, &t, &g, db, 0))
            return -1;
    }
    if (da->data) {
        const struct k_tensor t = transposed(b);
        if (gemm(c, &g, &t, da, 0))
            return -1;
    }
    return 0;
}

/* Saved: b, a. */
static int mm_backward(const struct call *c)
{
    const struct k_tensor b = in(c, 1), a = in(c, 2), da = out(c, 0), db = out(c, 1);
    return product_backward(c, &a, &b, &da, &db);
}

/* Saved: a, b; the bias's gradient is the incoming one. */
static int addmm_backward(const struct call *c)
{
    const struct k_tensor a = in(c, 1), b = in(c, 2), da = out(c, 1), db = out(c, 2);
    return product_backward(c, &a, &b, &da, &db);
}

/* ---- embedding, loss ---- */

static int embedding(const struct call *c)
{
    const struct k_tensor index = in(c, 0), table = in(c, 1), o = out(c, 0);
    return k_embedding(&index, &table, &o);
}

static int embedding_backward(const struct call *c)
{
    const struct k_tensor g = in(c, 0), index = in(c, 1), o = out(c, 0);
    return k_embedding_backward(&g, &index, &o, integer(c, "padding_idx", -1));
}

static int nll_loss(const struct call *c)
{
    const struct k_tensor logp = in(c, 0), target = in(c, 1), loss = out(c, 0), weight = out(c, 1);
    return k_nll_loss(&logp, &target, &loss, &weight, integer(c, "ignore_index", -100));
}

/* Saved: log probabilities, target, total weight. */
static int nll_loss_backward(const struct call *c)
{
    const struct k_tensor g = in(c, 0), target = in(c, 2), weight = in(c, 3), o = out(c, 0);
    return k_nll_loss_backward(&g, &target, &weight, &o, integer(c, "ignore_index", -100));
}

/* ---- attention ---- */

static int attention_mask(const struct call *c)
{
    const struct k_tensor given = in(c, 0), o = out(c, 0);
    return k_attention_mask(or_null(&given), &o, (int)integer(c, "causal", 0),
                            integer(c, "sliding", 0));
}

static struct k_attention attention_rule(const struct call *c)
{
    return (struct k_attention){.scale = number(c, "scale", 1),
                                .p = number(c, "p", 0),
                                .causal = (int)integer(c, "causal", 0),
                                .seed = (uint64_t)integer(c, "seed", 0)};
}

static int attention(const struct call *c)
{
    const struct k_attention rule = attention_rule(c);
    const struct k_tensor q = in(c, 0), k = in(c, 1), v = in(c, 2), mask = in(c, 3), o = out(c, 0),
                          lse = out(c, 1);
    return k_attention(&rule, &q, &k, &v, or_null(&mask), &o, or_null(&lse));
}

static int attention_backward(const struct call *c)
{
    const struct k_attention rule = attention_rule(c);
    const struct k_tensor g = in(c, 0), q = in(c, 1), k = in(c, 2), v = in(c, 3), mask = in(c, 4),
                          o = in(c, 5), lse = in(c, 6);
    const struct k_tensor dq = out(c, 0), dk = out(c, 1), dv = out(c, 2);
    if (!lse.data || !dq.data || !dk.data || !dv.data || has_output(c, 3))
        return device_fail(
            "%s: without row statistics, or with a gradient of the mask, it has no kernel",
            c->op->op);
    return k_attention_backward(&rule, &g, &q, &k, &v, or_null(&mask), &o, &lse, &dq, &dk, &dv);
}

/* ---- optimizers ---- */

static int adamw(const struct call *c)
{
    const struct k_adamw rule = {.lr = number(c, "lr", 0),
                                 .beta1 = number(c, "beta1", 0),
                                 .beta2 = number(c, "beta2", 0),
                                 .eps = number(c, "eps", 0),
                                 .weight_decay = number(c, "weight_decay", 0),
                                 .step = integer(c, "step", 1)};
    const struct k_tensor p = in(c, 0), g = in(c, 1), m = in(c, 2), v = in(c, 3), found = in(c, 4);
    return k_adamw(&rule, &p, &g, &m, &v, or_null(&found));
}

/* The first step's momentum is the gradient, which it was made as. */
static int sgd(const struct call *c)
{
    const struct k_tensor p = in(c, 0), g = in(c, 1), momentum = in(c, 2), found = in(c, 3);
    return k_sgd(&p, &g, or_null(&momentum), or_null(&found), number(c, "lr", 0),
                 number(c, "momentum", 0), (int)integer(c, "first", 0));
}

/* The norm is summed in float32, also where it is a half in the end. */
static int norm_of_inputs(const struct call *c, const struct k_tensor *total)
{
    struct k_tensor sum = *total;
    if ((total->dtype != K_F32 && k_scratch(&sum)) || k_fill(&sum, 0))
        return -1;
    for (uint32_t i = 0; i < c->op->n_inputs; i++) {
        const struct k_tensor g = in(c, i);
        if (k_add_squares(&g, &sum))
            return -1;
    }
    if (k_sqrt_inplace(&sum))
        return -1;
    return total->dtype == K_F32 ? 0 : k_unary(K_COPY, &sum, total, 0);
}

static int clip(const struct call *c)
{
    const uint32_t n = c->op->n_inputs;
    const struct k_tensor total = out(c, n);
    if (!total.data || norm_of_inputs(c, &total))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        const struct k_tensor g = in(c, i);
        if (k_clip(&g, &total, number(c, "max_norm", 1), number(c, "eps", 0)))
            return -1;
    }
    return 0;
}

/* The last input is the scale, the last output found_inf. */
static int unscale(const struct call *c)
{
    const uint32_t n = c->op->n_inputs - 1;
    const struct k_tensor scale = in(c, n), found = out(c, n);
    if (c->op->n_inputs == 0 || !scale.data || !found.data || k_fill(&found, 0))
        return -1;
    for (uint32_t i = 0; i < n; i++) {
        const struct k_tensor g = in(c, i);
        if (k_unscale(&g, &scale, &found))
            return -1;
    }
    return 0;
}

static int update_scale(const struct call *c)
{
    const struct k_tensor scale = in(c, 0), tracker = in(c, 1), found = in(c, 2);
    return k_update_scale(&scale, &tracker, &found, number(c, "growth", 2),
                          number(c, "backoff", 0.5), integer(c, "interval", 2000));
}

/* ---- between ranks ---- */

static int all_reduce(const struct call *c)
{
    const struct k_tensor t = in(c, 0);
    return collective_all_reduce(&t);
}

static int broadcast(const struct call *c)
{
    const struct k_tensor t = in(c, 0);
    return collective_broadcast(&t);
}

/* ---- the table ---- */

static const struct {
    const char *name;
    int (*run)(const struct call *c);
    uint32_t n_inputs, n_outputs; /* that must be there, from the first on */
} rows[] = {
    {"fill", fill, 0, 1},
    {"arange", arange, 0, 1},
    {"normal", normal, 0, 1},
    {"rotary_frequencies", rotary_frequencies, 0, 1},
    {"input", input, 0, 1},
    {"parameter", parameter, 0, 1},
    {"to", copy, 1, 1},
    {"clone", copy, 1, 1},
    {"ToCopyBackward0", copy, 1, 1},
    {"neg", neg, 1, 1},
    {"NegBackward0", neg, 1, 1},
    {"tanh", tanh_, 1, 1},
    {"gelu", gelu, 1, 1},
    {"silu", silu, 1, 1},
    {"relu", relu, 1, 1},
    {"sigmoid", sigmoid, 1, 1},
    {"rsqrt", rsqrt, 1, 1},
    {"cos", cosine, 1, 1},
    {"sin", sine, 1, 1},
    {"pow", power, 1, 1},
    {"div", divide, 1, 1},
    {"DivBackward0", divide, 1, 1},
    {"additive_mask", additive_mask, 1, 1},
    {"add", add, 1, 1},
    {"add_", add, 2, 1},
    {"sub", sub, 2, 1},
    {"mul", mul, 1, 1},
    {"MulBackward0", mul_backward, 1, 0},
    {"TanhBackward0", tanh_backward, 2, 1},
    {"GeluBackward0", gelu_backward, 2, 1},
    {"SiluBackward0", silu_backward, 2, 1},
    {"ReluBackward0", relu_backward, 2, 1},
    {"SigmoidBackward0", sigmoid_backward, 2, 1},
    {"RsqrtBackward0", rsqrt_backward, 2, 1},
    {"PowBackward0", pow_backward, 2, 1},
    {"NativeDropoutBackward0", dropout_backward, 2, 1},
    {"dropout", dropout, 1, 2},
    {"cat", cat, 1, 1},
    {"SliceBackward0", slice_backward, 1, 1},
    {"SplitBackward0", split_backward, 0, 1},
    {"pad", pad, 1, 1},
    {"ConstantPadNdBackward0", pad_backward, 1, 1},
    {"sum", sum, 1, 1},
    {"mean", mean, 1, 1},
    {"softmax", softmax, 1, 1},
    {"log_softmax", log_softmax, 1, 1},
    {"SoftmaxBackward0", softmax_backward, 2, 1},
    {"SafeSoftmaxBackward0", softmax_backward, 2, 1},
    {"LogSoftmaxBackward0", log_softmax_backward, 2, 1},
    {"layer_norm", layer_norm, 3, 3},
    {"NativeLayerNormBackward0", layer_norm_backward, 6, 0},
    {"mm", mm, 2, 1},
    {"bmm", mm, 2, 1},
    {"addmm", addmm, 3, 1},
    {"MmBackward0", mm_backward, 1, 0},
    {"BmmBackward0", mm_backward, 1, 0},
    {"AddmmBackward0", addmm_backward, 1, 0},
    {"embedding", embedding, 2, 1},
    {"EmbeddingBackward0", embedding_backward, 2, 1},
    {"nll_loss", nll_loss, 2, 2},
    {"NllLossBackward0", nll_loss_backward, 4, 1},
    {"attention_mask", attention_mask, 0, 1},
    {"attention", attention, 3, 1},
    {"ScaledDotProductCudnnAttentionBackward0", attention_backward, 4, 3},
    {"ScaledDotProductFlashAttentionBackward0", attention_backward, 4, 3},
    {"ScaledDotProductEfficientAttentionBackward0", attention_backward, 4, 3},
    {"adamw", adamw, 4, 3},
    {"sgd", sgd, 2, 1},
    {"clip_grad_norm_", clip, 1, 1},
    {"unscale_", unscale, 1, 1},
    {"update_scale_", update_scale, 3, 2},
    {"all_reduce_", all_reduce, 1, 1},
    {"broadcast_", broadcast, 1, 1},
};

enum memplan_status executor_open(struct executor *x, struct memory *m, struct memplan_error *err)
{
    *x = (struct executor){.memory = m, .program = &m->file->program};
    x->written = calloc((size_t)x->program->n_allocs + 1, sizeof *x->written);
    x->tf32 = header_value(m->file, "run.tf32") && header_value(m->file, "run.tf32")->as.boolean;
    return x->written ? MEMPLAN_STATUS_OK
                      : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory on the host");
}

void executor_close(struct executor *x)
{
    free(x->written);
}

/* A storage without bytes counts as there. */
static bool has_first(const struct mp_op_tensor *(*get)(const struct mp_program *,
                                                        const struct mp_op_record *, uint32_t),
                      const struct call *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!get(c->p, c->op, i))
            return false;
    return true;
}

/* A family whose operations are not all recorded would compute with what happens to lie there. */
static enum memplan_status check_written(const struct call *c)
{
    for (uint32_t i = 0; i < c->op->n_inputs; i++) {
        const struct mp_op_tensor *t = mp_op_input(c->p, c->op, i);
        if (t && t->storage && !c->x->written[t->storage])
            return mp_error_set(
                c->err, MEMPLAN_STATUS_UNSUPPORTED,
                "%s reads storage %u, which no operation has written: this model has "
                "operations without a kernel; replay runs its memory",
                c->op->op, t->storage);
    }
    return MEMPLAN_STATUS_OK;
}

enum memplan_status executor_run(struct executor *x, uint32_t index, struct memplan_error *err)
{
    const struct call c = {.x = x, .p = x->program, .op = &x->program->ops[index], .err = err};
    size_t row = 0;
    while (row < MP_ARRAY_LEN(rows) && strcmp(rows[row].name, c.op->op) != 0)
        row++;
    if (row == MP_ARRAY_LEN(rows))
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "operation '%s' has no kernel; replay runs the program's memory",
                            c.op->op);
    if (!has_first(mp_op_input, &c, rows[row].n_inputs) ||
        !has_first(mp_op_output, &c, rows[row].n_outputs))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "operation %u, %s: a tensor is missing",
                            index, c.op->op);
    enum memplan_status status = check_written(&c);
    if (!status && rows[row].run(&c))
        status = mp_error_set(err, MEMPLAN_STATUS_IO, "operation %u, %s: %s", index, c.op->op,
                              device_error());
    for (uint32_t i = 0; i < c.op->n_outputs; i++) {
        const struct mp_op_tensor *t = mp_op_output(c.p, c.op, i);
        if (t)
            x->written[t->storage] = true;
    }
    x->ops++;
    return status;
}
