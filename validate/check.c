/* SPDX-License-Identifier: MIT */
/* Inputs are fetched before the kernel runs, since it may write to them; its results after. */
#include "check.h"

#include <math.h>
#include <string.h>

#include "device.h"

static const double tolerance_single = 1e-5, tolerance_half = 2e-2;

void check_init(struct check *c, struct executor *x)
{
    *c = (struct check){.x = x};
}

static void free_dense(struct dense *tensors, uint32_t n)
{
    for (uint32_t i = 0; tensors && i < n; i++)
        free(tensors[i].v);
    free(tensors);
}

void check_release(struct check *c)
{
    free(c->rows);
}

/* ---- fetching ---- */

static double half_value(uint16_t half)
{
    const double sign = half & 0x8000u ? -1 : 1;
    const int exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
    if (exponent == 31)
        return mantissa ? (double)NAN : sign * (double)INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

double check_value(const unsigned char *bytes, enum mp_dtype dtype)
{
    float single;
    uint32_t bits;
    uint16_t half;
    int64_t wide;
    int32_t narrow;
    switch (dtype) {
    case MP_F32: memcpy(&single, bytes, 4); return (double)single;
    case MP_BF16:
        memcpy(&half, bytes, 2);
        bits = (uint32_t)half << 16;
        memcpy(&single, &bits, 4);
        return (double)single;
    case MP_F16: memcpy(&half, bytes, 2); return half_value(half);
    case MP_I64: memcpy(&wide, bytes, 8); return (double)wide;
    case MP_I32: memcpy(&narrow, bytes, 4); return narrow;
    case MP_BOOL:
    case MP_U8: break;
    }
    return bytes[0];
}

static bool shape_of(const struct mp_op_tensor *t, struct dense *d)
{
    *d = (struct dense){.present = t != NULL};
    if (!t)
        return true;
    d->dtype = t->dtype;
    d->n = t->shape.n;
    d->count = 1;
    for (int i = 0; i < d->n; i++) {
        d->shape[i] = t->shape.d[i];
        d->count *= t->shape.d[i];
    }
    d->v = calloc((size_t)MP_MAX(d->count, 1), sizeof *d->v);
    return d->v != NULL;
}

/* Elements from the first to the last of the view, in one piece; then gathered. */
static int fetch(const struct check *c, const struct mp_op_tensor *t, struct dense *d)
{
    if (!shape_of(t, d))
        return device_fail("out of memory on the host");
    if (!t || d->count == 0 || !t->storage)
        return 0;
    const uint64_t size = mp_dtype_bytes((enum mp_dtype)t->dtype);
    int64_t extent = 1;
    for (int i = 0; i < d->n; i++)
        extent += (t->shape.d[i] - 1) * t->stride[i];
    unsigned char *bytes = malloc((size_t)extent * size);
    const struct k_tensor k = executor_tensor(c->x, t);
    if (!bytes)
        return device_fail("out of memory on the host");
    const int status = device_to_host(bytes, (uint64_t)(uintptr_t)k.data, (uint64_t)extent * size);
    for (int64_t i = 0; i < d->count && !status; i++) {
        int64_t rest = i, at = 0;
        for (int dim = d->n - 1; dim >= 0; dim--) {
            at += rest % d->shape[dim] * t->stride[dim];
            rest /= d->shape[dim];
        }
        d->v[i] = check_value(bytes + (uint64_t)at * size, (enum mp_dtype)t->dtype);
    }
    free(bytes);
    return status;
}

/* ---- comparing ---- */

/* unused_is_nan: where the reference is no number, nobody reads. */
static double distance(const struct dense *measured, const struct dense *reference,
                       bool unused_is_nan)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < reference->count; i++) {
        const double m = measured->v[i], r = reference->v[i];
        if (unused_is_nan && isnan(r))
            continue;
        if (m == r) { /* infinities, too */
            norm += isfinite(r) ? r * r : 0;
            continue;
        }
        if (!isfinite(m) || !isfinite(r))
            return (double)INFINITY;
        difference += (m - r) * (m - r);
        norm += r * r;
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static struct check_row *row_for(struct check *c, const char *op, int dtype)
{
    for (size_t i = 0; i < c->n_rows; i++)
        if (c->rows[i].dtype == dtype && strcmp(c->rows[i].op, op) == 0)
            return &c->rows[i];
    if (c->n_rows == c->cap_rows) {
        const size_t wanted = c->cap_rows ? 2 * c->cap_rows : 64;
        struct check_row *rows = realloc(c->rows, wanted * sizeof *rows);
        if (!rows)
            return NULL;
        c->rows = rows;
        c->cap_rows = wanted;
    }
    c->rows[c->n_rows] = (struct check_row){.op = op, .dtype = dtype, .passed = true};
    return &c->rows[c->n_rows++];
}

static bool note(struct check *c, const struct mp_op_record *op, uint32_t index,
                 const struct dense *measured, const struct dense *reference)
{
    const bool half = mp_dtype_is_half((enum mp_dtype)reference->dtype);
    struct check_row *row = row_for(c, op->op, reference->dtype);
    if (!row)
        return false;
    const double error = distance(measured, reference, strcmp(op->op, "attention") == 0);
    row->n++;
    if (!(error <= row->worst)) {
        row->worst = error;
        row->index = index;
    }
    row->passed = row->passed && error < (half ? tolerance_half : tolerance_single);
    return true;
}

bool check_passed(const struct check *c)
{
    for (size_t i = 0; i < c->n_rows; i++)
        if (!c->rows[i].passed)
            return false;
    return true;
}

static int compare(struct check *c, const struct mp_op_record *op, uint32_t index)
{
    const struct mp_program *p = c->x->program;
    for (uint32_t i = 0; i < op->n_outputs; i++)
        if (fetch(c, mp_op_output(p, op, i), &c->measured[i]) ||
            !shape_of(mp_op_output(p, op, i), &c->out[i]))
            return -1;
    if (!reference_run(p, op, c->in, c->measured, c->out))
        return 0;
    for (uint32_t i = 0; i < op->n_outputs; i++)
        if (c->out[i].present && c->out[i].count > 0 &&
            !note(c, op, index, &c->measured[i], &c->out[i]))
            return device_fail("out of memory on the host");
    return 0;
}

enum memplan_status check_run(struct check *c, uint32_t index, struct memplan_error *err)
{
    const struct mp_program *p = c->x->program;
    const struct mp_op_record *op = &p->ops[index];
    enum memplan_status status = MEMPLAN_STATUS_OK;
    int failed = 0;
    c->in = calloc((size_t)op->n_inputs + 1, sizeof *c->in);
    c->out = calloc((size_t)op->n_outputs + 1, sizeof *c->out);
    c->measured = calloc((size_t)op->n_outputs + 1, sizeof *c->measured);
    if (!c->in || !c->out || !c->measured)
        failed = device_fail("out of memory on the host");
    for (uint32_t i = 0; i < op->n_inputs && !failed; i++)
        failed = fetch(c, mp_op_input(p, op, i), &c->in[i]);
    if (!failed)
        status = executor_run(c->x, index, err);
    if (!failed && !status)
        failed = compare(c, op, index);
    if (failed)
        status = mp_error_set(err, MEMPLAN_STATUS_IO, "operation %u, %s: %s", index, op->op,
                              device_error());
    free_dense(c->in, op->n_inputs);
    free_dense(c->out, op->n_outputs);
    free_dense(c->measured, op->n_outputs);
    return status;
}
