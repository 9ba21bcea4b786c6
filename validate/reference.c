/* SPDX-License-Identifier: MIT */
/* The formulas in float64, one loop each. */
#include "reference.h"

#include <math.h>
#include <string.h>

#include "random.h"
#include "ranks.h"

struct job {
    const struct mp_program *p;
    const struct mp_op_record *op;
    const struct dense *in, *measured;
    struct dense *out;
};

static double number(const struct job *j, const char *key, double fallback)
{
    return mp_op_number(j->p, j->op, key, fallback);
}
static int64_t integer(const struct job *j, const char *key, int64_t fallback)
{
    return mp_op_integer(j->p, j->op, key, fallback);
}
static bool has_in(const struct job *j, uint32_t i)
{
    return i < j->op->n_inputs && j->in[i].present;
}
static bool has_out(const struct job *j, uint32_t i)
{
    return i < j->op->n_outputs && j->out[i].present;
}

/* Index of x's element for element i of shape: broadcast from the right. */
static int64_t broadcast(const struct dense *x, const struct dense *shape, int64_t i)
{
    int64_t at = 0, step = 1;
    for (int d = shape->n - 1; d >= 0; d--) {
        const int own = d - (shape->n - x->n);
        const int64_t position = i % shape->shape[d];
        i /= shape->shape[d];
        if (own < 0)
            continue;
        at += x->shape[own] == 1 ? 0 : position * step;
        step *= x->shape[own];
    }
    return at;
}

static int64_t last(const struct dense *t)
{
    return t->n ? t->shape[t->n - 1] : 1;
}

/* ---- pointwise ---- */

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}
static double normal_density(double x)
{
    return exp(-x * x / 2) / sqrt(2 * 3.14159265358979323846);
}
static double normal_distribution(double x)
{
    return (1 + erf(x / sqrt(2.0))) / 2;
}

static double of_one(const char *op, double x, double n, int dtype)
{
    if (strcmp(op, "neg") == 0 || strcmp(op, "NegBackward0") == 0)
        return -x;
    if (strcmp(op, "tanh") == 0)
        return tanh(x);
    if (strcmp(op, "gelu") == 0)
        return x * normal_distribution(x);
    if (strcmp(op, "silu") == 0)
        return x / (1 + exp(-x));
    if (strcmp(op, "relu") == 0)
        return x > 0 ? x : 0;
    if (strcmp(op, "sigmoid") == 0)
        return sigmoid(x);
    if (strcmp(op, "rsqrt") == 0)
        return pow(x, -0.5);
    if (strcmp(op, "cos") == 0)
        return cos(x);
    if (strcmp(op, "sin") == 0)
        return sin(x);
    if (strcmp(op, "pow") == 0)
        return pow(x, n);
    if (strcmp(op, "add") == 0)
        return x + n;
    if (strcmp(op, "mul") == 0 || strcmp(op, "MulBackward0") == 0)
        return x * n;
    if (strcmp(op, "div") == 0 || strcmp(op, "DivBackward0") == 0)
        return x / n;
    if (strcmp(op, "additive_mask") == 0)
        return x != 0             ? 0
               : dtype == MP_F16  ? -65504.0
               : dtype == MP_BF16 ? -0x1.fep127
                                  : -0x1.fffffep127;
    return x; /* copies */
}

static double of_two(const char *op, double a, double b, double n)
{
    if (strcmp(op, "add") == 0 || strcmp(op, "add_") == 0)
        return a + b;
    if (strcmp(op, "sub") == 0)
        return a - b;
    if (strcmp(op, "TanhBackward0") == 0)
        return a * (1 - b * b);
    if (strcmp(op, "GeluBackward0") == 0)
        return a * (normal_distribution(b) + b * normal_density(b));
    if (strcmp(op, "SiluBackward0") == 0)
        return a * (sigmoid(b) + b * sigmoid(b) * sigmoid(-b));
    if (strcmp(op, "ReluBackward0") == 0)
        return b > 0 ? a : 0;
    if (strcmp(op, "SigmoidBackward0") == 0)
        return a * (b - b * b);
    if (strcmp(op, "RsqrtBackward0") == 0)
        return -a * pow(b, 3) / 2;
    if (strcmp(op, "PowBackward0") == 0)
        return a * n * pow(b, n - 1);
    if (strcmp(op, "NativeDropoutBackward0") == 0)
        return a * b / (1 - n);
    return a * b;
}

static bool pointwise(const struct job *j)
{
    static const char *const keys[] = {"number", "exponent", "p"};
    const char *const op = j->op->op;
    const bool by_number = mp_op_attribute(j->p, j->op, "number") != NULL,
               two = has_in(j, 1) && !by_number;
    double n = 1;
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        if (mp_op_attribute(j->p, j->op, keys[i]))
            n = number(j, keys[i], 1);
    struct dense *o = &j->out[0];
    for (int64_t i = 0; i < o->count; i++) {
        const double a = j->in[0].v[broadcast(&j->in[0], o, i)];
        o->v[i] = two ? of_two(op, a, j->in[1].v[broadcast(&j->in[1], o, i)], n)
                      : of_one(op, a, n, o->dtype);
    }
    return true;
}

static bool mul_backward(const struct job *j)
{
    if (mp_op_attribute(j->p, j->op, "number"))
        return pointwise(j);
    for (uint32_t k = 0; k < 2; k++) {
        struct dense *o = &j->out[k];
        for (int64_t i = 0; has_out(j, k) && i < o->count; i++)
            o->v[i] = j->in[0].v[broadcast(&j->in[0], o, i)] *
                      j->in[1 + k].v[broadcast(&j->in[1 + k], o, i)];
    }
    return true;
}

static bool dropout(const struct job *j)
{
    const double p = number(j, "p", 0);
    for (int64_t i = 0; i < j->out[0].count; i++) {
        j->out[1].v[i] = j->measured[1].v[i] != 0;
        j->out[0].v[i] = j->out[1].v[i] * j->in[0].v[i] / (1 - p);
    }
    return true;
}

/* ---- filling ---- */

static bool fill(const struct job *j)
{
    for (int64_t i = 0; i < j->out[0].count; i++)
        j->out[0].v[i] = number(j, "value", 0);
    return true;
}

static bool arange(const struct job *j)
{
    for (int64_t i = 0; i < j->out[0].count; i++)
        j->out[0].v[i] = (double)i;
    return true;
}

static bool frequencies(const struct job *j)
{
    for (int64_t i = 0; i < j->out[0].count; i++)
        j->out[0].v[i] = pow(number(j, "theta", 10000), -(double)i / (double)j->out[0].count);
    return true;
}

/* ---- parts: copy a block into, or out of, a larger one ---- */

/* Elements before and after dimension dim. */
static void around(const struct dense *t, int64_t dim, int64_t *before, int64_t *after)
{
    *before = *after = 1;
    for (int i = 0; i < t->n; i++)
        *(i < dim ? before : after) *= i == dim ? 1 : t->shape[i];
}

static void put(struct dense *whole, const struct dense *piece, int64_t dim, int64_t from,
                int64_t step)
{
    int64_t before, after;
    around(whole, dim, &before, &after);
    for (int64_t b = 0; b < before; b++)
        for (int64_t i = 0; i < piece->shape[dim]; i++)
            for (int64_t a = 0; a < after; a++)
                whole->v[(b * whole->shape[dim] + from + i * step) * after + a] =
                    piece->v[(b * piece->shape[dim] + i) * after + a];
}

static void zero(struct dense *t, double value)
{
    for (int64_t i = 0; i < t->count; i++)
        t->v[i] = value;
}

static bool cat(const struct job *j)
{
    const int64_t dim = integer(j, "dim", 0);
    int64_t from = 0;
    for (uint32_t i = 0; i < j->op->n_inputs; i++) {
        put(&j->out[0], &j->in[i], dim, from, 1);
        from += j->in[i].shape[dim];
    }
    return true;
}

static bool slice_backward(const struct job *j)
{
    zero(&j->out[0], 0);
    put(&j->out[0], &j->in[0], integer(j, "dim", 0), integer(j, "from", 0), integer(j, "step", 1));
    return true;
}

static bool split_backward(const struct job *j)
{
    const int64_t dim = integer(j, "dim", 0), length = j->out[0].shape[dim] / j->op->n_inputs;
    zero(&j->out[0], 0);
    for (uint32_t i = 0; i < j->op->n_inputs; i++)
        if (has_in(j, i))
            put(&j->out[0], &j->in[i], dim, (int64_t)i * length, 1);
    return true;
}

static bool pad(const struct job *j)
{
    zero(&j->out[0], number(j, "value", 0));
    put(&j->out[0], &j->in[0], j->out[0].n - 1, 0, 1);
    return true;
}

static bool pad_backward(const struct job *j)
{
    const int64_t wide = last(&j->in[0]), narrow = last(&j->out[0]);
    for (int64_t i = 0; i < j->out[0].count; i++)
        j->out[0].v[i] = j->in[0].v[i / narrow * wide + i % narrow];
    return true;
}

/* ---- reductions, norms ---- */

static bool sum(const struct job *j)
{
    const struct dense *x = &j->in[0];
    const unsigned dims = (unsigned)integer(j, "dims", 0);
    struct dense kept = *x; /* only its shape */
    double factor = 1;
    for (int d = 0; d < x->n; d++)
        if (dims >> d & 1u) {
            factor *= (double)x->shape[d];
            kept.shape[d] = 1;
        }
    zero(&j->out[0], 0);
    for (int64_t i = 0; i < x->count; i++)
        j->out[0].v[broadcast(&kept, x, i)] += x->v[i];
    for (int64_t i = 0; i < j->out[0].count && strcmp(j->op->op, "mean") == 0; i++)
        j->out[0].v[i] /= factor;
    return true;
}

static bool softmax(const struct job *j)
{
    const bool logarithm = strcmp(j->op->op, "log_softmax") == 0;
    const int64_t n = last(&j->in[0]);
    for (int64_t row = 0; n && row < j->in[0].count / n; row++) {
        const double *x = j->in[0].v + row * n;
        double most = x[0], total = 0;
        for (int64_t i = 1; i < n; i++)
            most = fmax(most, x[i]);
        for (int64_t i = 0; i < n; i++)
            total += exp(x[i] - most);
        for (int64_t i = 0; i < n; i++)
            j->out[0].v[row * n + i] =
                logarithm ? x[i] - most - log(total) : exp(x[i] - most) / total;
    }
    return true;
}

static bool softmax_backward(const struct job *j)
{
    const bool logarithm = strcmp(j->op->op, "LogSoftmaxBackward0") == 0;
    const int64_t n = last(&j->in[0]);
    for (int64_t row = 0; n && row < j->in[0].count / n; row++) {
        const double *g = j->in[0].v + row * n, *y = j->in[1].v + row * n;
        double total = 0;
        for (int64_t i = 0; i < n; i++)
            total += logarithm ? g[i] : g[i] * y[i];
        for (int64_t i = 0; i < n; i++)
            j->out[0].v[row * n + i] = logarithm ? g[i] - exp(y[i]) * total : y[i] * (g[i] - total);
    }
    return true;
}

static bool layer_norm(const struct job *j)
{
    const int64_t n = last(&j->in[0]);
    for (int64_t row = 0; row < j->in[0].count / n; row++) {
        const double *x = j->in[0].v + row * n;
        double mean = 0, variance = 0;
        for (int64_t i = 0; i < n; i++)
            mean += x[i] / (double)n;
        for (int64_t i = 0; i < n; i++)
            variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        const double rstd = 1 / sqrt(variance + number(j, "eps", 0));
        for (int64_t i = 0; i < n; i++)
            j->out[0].v[row * n + i] = (x[i] - mean) * rstd * j->in[1].v[i] + j->in[2].v[i];
        j->out[1].v[row] = mean;
        j->out[2].v[row] = rstd;
    }
    return true;
}

static bool layer_norm_backward(const struct job *j)
{
    const struct dense *g = &j->in[0], *x = &j->in[2], *weight = &j->in[3], *mean = &j->in[4],
                       *rstd = &j->in[5];
    const int64_t n = last(x);
    for (uint32_t k = 1; k < 3; k++)
        if (has_out(j, k))
            zero(&j->out[k], 0);
    for (int64_t row = 0; row < x->count / n; row++) {
        double a = 0, b = 0;
        for (int64_t i = 0; i < n; i++) {
            const int64_t at = row * n + i;
            const double normal = (x->v[at] - mean->v[row]) * rstd->v[row],
                         slope = g->v[at] * weight->v[i];
            a += slope / (double)n;
            b += slope * normal / (double)n;
            if (has_out(j, 1))
                j->out[1].v[i] += g->v[at] * normal;
            if (has_out(j, 2))
                j->out[2].v[i] += g->v[at];
        }
        for (int64_t i = 0; i < n && has_out(j, 0); i++) {
            const int64_t at = row * n + i;
            j->out[0].v[at] = rstd->v[row] * (g->v[at] * weight->v[i] - a -
                                              (x->v[at] - mean->v[row]) * rstd->v[row] * b);
        }
    }
    return true;
}

/* ---- products ---- */

/* c[m, n] of each batch = sum over k of a and b, either read transposed. */
static void product(const struct dense *a, bool ta, const struct dense *b, bool tb, struct dense *c)
{
    const int64_t m = c->shape[c->n - 2], n = c->shape[c->n - 1],
                  batches = c->count / MP_MAX(m * n, 1);
    const int64_t k = ta ? a->shape[a->n - 2] : a->shape[a->n - 1];
    for (int64_t batch = 0; batch < batches; batch++)
        for (int64_t row = 0; row < m; row++) {
            double *line = c->v + (batch * m + row) * n;
            memset(line, 0, (size_t)n * sizeof *line);
            for (int64_t i = 0; i < k; i++) {
                const double factor = a->v[batch * m * k + (ta ? i * m + row : row * k + i)];
                const double *other = b->v + batch * k * n;
                for (int64_t column = 0; column < n; column++)
                    line[column] += factor * other[tb ? column * k + i : i * n + column];
            }
        }
}

static bool mm(const struct job *j)
{
    product(&j->in[0], false, &j->in[1], false, &j->out[0]);
    return true;
}

static bool addmm(const struct job *j)
{
    product(&j->in[1], false, &j->in[2], false, &j->out[0]);
    for (int64_t i = 0; i < j->out[0].count; i++)
        j->out[0].v[i] += j->in[0].v[broadcast(&j->in[0], &j->out[0], i)];
    return true;
}

static bool product_backward(const struct job *j, const struct dense *a, const struct dense *b,
                             uint32_t first)
{
    if (has_out(j, first))
        product(&j->in[0], false, b, true, &j->out[first]);
    if (has_out(j, first + 1))
        product(a, true, &j->in[0], false, &j->out[first + 1]);
    return true;
}
static bool mm_backward(const struct job *j)
{
    return product_backward(j, &j->in[2], &j->in[1], 0);
}
static bool addmm_backward(const struct job *j)
{
    return product_backward(j, &j->in[1], &j->in[2], 1);
}

/* ---- embedding, loss ---- */

static bool embedding(const struct job *j)
{
    const int64_t n = last(&j->out[0]);
    for (int64_t i = 0; i < j->in[0].count; i++)
        memcpy(j->out[0].v + i * n, j->in[1].v + (int64_t)j->in[0].v[i] * n,
               (size_t)n * sizeof(double));
    return true;
}

static bool embedding_backward(const struct job *j)
{
    const int64_t n = last(&j->out[0]), padding = integer(j, "padding_idx", -1);
    zero(&j->out[0], 0);
    for (int64_t i = 0; i < j->in[1].count; i++)
        for (int64_t column = 0; column < n && (int64_t)j->in[1].v[i] != padding; column++)
            j->out[0].v[(int64_t)j->in[1].v[i] * n + column] += j->in[0].v[i * n + column];
    return true;
}

static bool nll_loss(const struct job *j)
{
    const int64_t n = last(&j->in[0]);
    double total = 0, weight = 0;
    for (int64_t row = 0; row < j->in[1].count; row++) {
        const int64_t target = (int64_t)j->in[1].v[row];
        if (target == integer(j, "ignore_index", -100))
            continue;
        total -= j->in[0].v[row * n + target];
        weight += 1;
    }
    j->out[0].v[0] = total / weight;
    j->out[1].v[0] = weight;
    return true;
}

static bool nll_loss_backward(const struct job *j)
{
    const int64_t n = last(&j->out[0]);
    zero(&j->out[0], 0);
    for (int64_t row = 0; row < j->in[2].count; row++) {
        const int64_t target = (int64_t)j->in[2].v[row];
        if (target != integer(j, "ignore_index", -100))
            j->out[0].v[row * n + target] = -j->in[0].v[0] / j->in[3].v[0];
    }
    return true;
}

/* ---- attention ---- */

static bool attention_mask(const struct job *j)
{
    struct dense *o = &j->out[0];
    const int64_t keys = last(o), queries = o->shape[o->n - 2], sliding = integer(j, "sliding", 0);
    for (int64_t i = 0; i < o->count; i++) {
        const int64_t key = i % keys, query = i / keys % queries, batch = i / keys / queries;
        bool allowed =
            (!integer(j, "causal", 0) || key <= query) && (!sliding || query - key < sliding);
        if (has_in(j, 0))
            allowed = allowed && j->in[0].v[batch * keys + key] != 0;
        o->v[i] = o->dtype == MP_BOOL ? allowed : allowed ? 0 : -(double)INFINITY;
    }
    return true;
}

/* Dense [batch, heads, seq, dim] */
static const double *head_row(const struct dense *t, int64_t batch, int64_t head, int64_t row)
{
    return t->v + ((batch * t->shape[1] + head) * t->shape[2] + row) * t->shape[3];
}

static double dot(const double *a, const double *b, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < n; i++)
        total += a[i] * b[i];
    return total;
}

struct heads {
    const struct dense *q, *k, *v, *mask;
    struct dense scores; /* only its shape */
    int64_t group;
};

/*
 * Probabilities of one query over the keys, and what dropout leaves of them. False: no key is
 * allowed.
 */
static bool probabilities(const struct job *j, const struct heads *h, int64_t batch, int64_t head,
                          int64_t query, double *p, double *kept, double *lse)
{
    const int64_t keys = h->k->shape[2], dim = h->q->shape[3], queries = h->q->shape[2];
    const double drop = number(j, "p", 0), scale = number(j, "scale", 1);
    double most = -(double)INFINITY, total = 0;
    for (int64_t key = 0; key < keys; key++) {
        const int64_t index = ((batch * h->q->shape[1] + head) * queries + query) * keys + key;
        p[key] = scale * dot(head_row(h->q, batch, head, query),
                             head_row(h->k, batch, head / h->group, key), dim);
        if (h->mask)
            p[key] +=
                h->mask->dtype == MP_BOOL
                    ? (h->mask->v[broadcast(h->mask, &h->scores, index)] != 0 ? 0
                                                                              : -(double)INFINITY)
                    : h->mask->v[broadcast(h->mask, &h->scores, index)];
        if (integer(j, "causal", 0) && key > query)
            p[key] = -(double)INFINITY;
        most = fmax(most, p[key]);
        kept[key] =
            drop <= 0 ? 1
            : random_uniform((uint64_t)integer(j, "seed", 0), (uint64_t)index) >= (float)drop
                ? 1 / (1 - drop)
                : 0;
    }
    for (int64_t key = 0; key < keys; key++)
        total += most > -(double)INFINITY ? exp(p[key] - most) : 0;
    for (int64_t key = 0; key < keys; key++)
        p[key] = total > 0 ? exp(p[key] - most) / total : 0;
    *lse = total > 0 ? most + log(total) : (double)INFINITY;
    return total > 0;
}

static void attend_row(const struct job *j, const struct heads *h, int64_t batch, int64_t head,
                       int64_t query, double *p, double *kept)
{
    const int64_t keys = h->k->shape[2], dim = h->q->shape[3];
    double *o = j->out[0].v + ((batch * h->q->shape[1] + head) * h->q->shape[2] + query) * dim;
    double lse;
    (void)probabilities(j, h, batch, head, query, p, kept, &lse);
    if (has_out(j, 1)) /* rows may be padded */
        j->out[1].v[(batch * h->q->shape[1] + head) * j->out[1].shape[2] + query] = lse;
    memset(o, 0, (size_t)dim * sizeof *o);
    for (int64_t key = 0; key < keys; key++)
        for (int64_t d = 0; d < dim; d++)
            o[d] += p[key] * kept[key] * head_row(h->v, batch, head / h->group, key)[d];
}

static void attend_row_backward(const struct job *j, const struct heads *h, int64_t batch,
                                int64_t head, int64_t query, double *p, double *kept)
{
    const int64_t keys = h->k->shape[2], dim = h->q->shape[3],
                  at = (batch * h->q->shape[1] + head) * h->q->shape[2] + query;
    const double *g = j->in[0].v + at * dim, scale = number(j, "scale", 1);
    double mean = 0, lse;
    (void)probabilities(j, h, batch, head, query, p, kept, &lse);
    for (int64_t key = 0; key < keys; key++)
        mean += p[key] * kept[key] * dot(g, head_row(h->v, batch, head / h->group, key), dim);
    for (int64_t key = 0; key < keys; key++) {
        const int64_t other = ((batch * h->k->shape[1] + head / h->group) * keys + key) * dim;
        const double slope = scale * p[key] * (kept[key] * dot(g, h->v->v + other, dim) - mean);
        for (int64_t d = 0; d < dim; d++) {
            j->out[0].v[at * dim + d] += slope * h->k->v[other + d];
            j->out[1].v[other + d] += slope * h->q->v[at * dim + d];
            j->out[2].v[other + d] += p[key] * kept[key] * g[d];
        }
    }
}

static bool over_rows(const struct job *j, struct heads *h,
                      void (*row)(const struct job *j, const struct heads *h, int64_t batch,
                                  int64_t head, int64_t query, double *p, double *kept))
{
    if (h->q->n != 4 || h->k->n != 4)
        return false;
    double *p = malloc(2 * (size_t)h->k->shape[2] * sizeof *p);
    if (!p)
        return false;
    h->group = h->q->shape[1] / h->k->shape[1];
    h->scores = *h->q;
    h->scores.shape[3] = h->k->shape[2];
    for (int64_t i = 0; i < h->q->shape[0] * h->q->shape[1] * h->q->shape[2]; i++)
        row(j, h, i / h->q->shape[2] / h->q->shape[1], i / h->q->shape[2] % h->q->shape[1],
            i % h->q->shape[2], p, p + h->k->shape[2]);
    free(p);
    return true;
}

/* Padded rows of the statistics are nobody's: no number there. */
static bool attention(const struct job *j)
{
    struct heads h = {
        .q = &j->in[0], .k = &j->in[1], .v = &j->in[2], .mask = has_in(j, 3) ? &j->in[3] : NULL};
    if (has_out(j, 1))
        zero(&j->out[1], (double)NAN);
    return over_rows(j, &h, attend_row);
}

static bool attention_backward(const struct job *j)
{
    struct heads h = {
        .q = &j->in[1], .k = &j->in[2], .v = &j->in[3], .mask = has_in(j, 4) ? &j->in[4] : NULL};
    for (uint32_t i = 0; i < 3; i++)
        zero(&j->out[i], 0);
    return over_rows(j, &h, attend_row_backward);
}

/* ---- optimizers ---- */

static bool adamw(const struct job *j)
{
    const double lr = number(j, "lr", 0), b1 = number(j, "beta1", 0), b2 = number(j, "beta2", 0),
                 step = (double)integer(j, "step", 1);
    if (has_in(j, 4) && j->in[4].v[0] != 0)
        return false;
    for (int64_t i = 0; i < j->out[0].count; i++) {
        const double g = j->in[1].v[i], m = b1 * j->in[2].v[i] + (1 - b1) * g,
                     v = b2 * j->in[3].v[i] + (1 - b2) * g * g;
        const double mean = m / (1 - pow(b1, step)), square = v / (1 - pow(b2, step));
        j->out[0].v[i] = j->in[0].v[i] * (1 - lr * number(j, "weight_decay", 0)) -
                         lr * mean / (sqrt(square) + number(j, "eps", 0));
        j->out[1].v[i] = m;
        j->out[2].v[i] = v;
    }
    return true;
}

static bool sgd(const struct job *j)
{
    if (has_in(j, 3) && j->in[3].v[0] != 0)
        return false;
    for (int64_t i = 0; i < j->out[0].count; i++) {
        double step = j->in[1].v[i];
        if (has_out(j, 1)) {
            step += integer(j, "first", 0) ? 0 : number(j, "momentum", 0) * j->in[2].v[i];
            j->out[1].v[i] = step;
        }
        j->out[0].v[i] = j->in[0].v[i] - number(j, "lr", 0) * step;
    }
    return true;
}

static bool clip(const struct job *j)
{
    double total = 0;
    const uint32_t n = j->op->n_inputs;
    for (uint32_t k = 0; k < n; k++)
        total += dot(j->in[k].v, j->in[k].v, j->in[k].count);
    total = sqrt(total);
    const double factor = fmin(1, number(j, "max_norm", 1) / (total + number(j, "eps", 0)));
    for (uint32_t k = 0; k < n; k++)
        for (int64_t i = 0; i < j->in[k].count; i++)
            j->out[k].v[i] = j->in[k].v[i] * factor;
    j->out[n].v[0] = total;
    return true;
}

static bool unscale(const struct job *j)
{
    const uint32_t n = j->op->n_inputs - 1;
    j->out[n].v[0] = 0;
    for (uint32_t k = 0; k < n; k++)
        for (int64_t i = 0; i < j->in[k].count; i++) {
            j->out[k].v[i] = j->in[k].v[i] / j->in[n].v[0];
            if (!isfinite(j->in[k].v[i]))
                j->out[n].v[0] = 1;
        }
    return true;
}

static bool update_scale(const struct job *j)
{
    const bool found = j->in[2].v[0] != 0,
               grows = !found && j->in[1].v[0] + 1 >= number(j, "interval", 2000);
    j->out[0].v[0] = j->in[0].v[0] * (found   ? number(j, "backoff", 0.5)
                                      : grows ? number(j, "growth", 2)
                                              : 1);
    j->out[1].v[0] = found || grows ? 0 : j->in[1].v[0] + 1;
    return true;
}

/* ---- between ranks ---- */

static bool all_reduce(const struct job *j)
{
    memcpy(j->out[0].v, j->in[0].v, (size_t)j->in[0].count * sizeof(double));
    ranks_sum(j->out[0].v, (size_t)j->in[0].count);
    return true;
}

static bool broadcast_first(const struct job *j)
{
    memcpy(j->out[0].v, j->in[0].v, (size_t)j->in[0].count * sizeof(double));
    ranks_first(j->out[0].v, (size_t)j->in[0].count * sizeof(double));
    return true;
}

/* ---- the table; what is not in it is pointwise ---- */

static bool none(const struct job *j)
{
    (void)j;
    return false;
}

static const struct {
    const char *name;
    bool (*run)(const struct job *j);
} rows[] = {
    {"fill", fill},
    {"arange", arange},
    {"normal", none},
    {"input", none},
    {"parameter", none},
    {"rotary_frequencies", frequencies},
    {"dropout", dropout},
    {"MulBackward0", mul_backward},
    {"cat", cat},
    {"SliceBackward0", slice_backward},
    {"SplitBackward0", split_backward},
    {"pad", pad},
    {"ConstantPadNdBackward0", pad_backward},
    {"sum", sum},
    {"mean", sum},
    {"softmax", softmax},
    {"log_softmax", softmax},
    {"SoftmaxBackward0", softmax_backward},
    {"SafeSoftmaxBackward0", softmax_backward},
    {"LogSoftmaxBackward0", softmax_backward},
    {"layer_norm", layer_norm},
    {"NativeLayerNormBackward0", layer_norm_backward},
    {"mm", mm},
    {"bmm", mm},
    {"addmm", addmm},
    {"MmBackward0", mm_backward},
    {"BmmBackward0", mm_backward},
    {"AddmmBackward0", addmm_backward},
    {"embedding", embedding},
    {"EmbeddingBackward0", embedding_backward},
    {"nll_loss", nll_loss},
    {"NllLossBackward0", nll_loss_backward},
    {"attention_mask", attention_mask},
    {"attention", attention},
    {"ScaledDotProductCudnnAttentionBackward0", attention_backward},
    {"ScaledDotProductFlashAttentionBackward0", attention_backward},
    {"ScaledDotProductEfficientAttentionBackward0", attention_backward},
    {"adamw", adamw},
    {"sgd", sgd},
    {"clip_grad_norm_", clip},
    {"unscale_", unscale},
    {"update_scale_", update_scale},
    {"all_reduce_", all_reduce},
    {"broadcast_", broadcast_first},
};

bool reference_run(const struct mp_program *p, const struct mp_op_record *op,
                   const struct dense *in, const struct dense *measured, struct dense *out)
{
    const struct job j = {p, op, in, measured, out};
    for (size_t i = 0; i < MP_ARRAY_LEN(rows); i++)
        if (strcmp(rows[i].name, op->op) == 0)
            return rows[i].run(&j);
    return pointwise(&j);
}
