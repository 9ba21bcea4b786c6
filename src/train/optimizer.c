/* SPDX-License-Identifier: MIT */
/*
 * Optimizers, clipping, gradient scaling.
 *
 * State is created for all parameters before the first update starts, in the parameter's type and layout. What differs are the
 * temporaries: foreach takes one square root per parameter, all at once; fused takes nothing; a for-loop two of the largest.
 */
#include "train/optimizer.h"

/* torch.optim.Muon takes matrices of hidden layers; embeddings and the output head are left to AdamW. */
static bool is_for_muon(const struct mp_tensor *p)
{
    static const char *const tables[] = {"wte", "wpe", "shared", "lm_head", "relative_attention_bias"};
    if (p->shape.n != 2 || strstr(p->name, "embed") != NULL)
        return false;
    for (size_t i = 0; i < MP_ARRAY_LEN(tables); i++)
        if (strcmp(p->name, tables[i]) == 0)
            return false;
    return true;
}

static void split_for_muon(struct mp_runtime *rt, struct mp_optimizer_instance *o)
{
    struct mp_tensor **const all = o->parameters;
    const int n = o->n_parameters;
    struct mp_tensor **const chosen = mp_runtime_alloc(rt, 2 * (size_t)n * sizeof(struct mp_tensor *)), **const rest = chosen + n;
    int n_chosen = 0, n_rest = 0;
    for (int i = 0; i < n; i++) {
        if (is_for_muon(all[i]))
            chosen[n_chosen++] = all[i];
        else
            rest[n_rest++] = all[i];
    }
    o->parameters = chosen;
    o->n_parameters = n_chosen;
    o->next = mp_runtime_alloc(rt, sizeof *o->next);
    mp_optimizer_init(rt, o->next, MP_OPTIMIZER_ADAMW_FOREACH, rest, n_rest);
}

void mp_optimizer_init(struct mp_runtime *rt, struct mp_optimizer_instance *o, enum mp_optimizer kind, struct mp_tensor **parameters, int n)
{
    *o = (struct mp_optimizer_instance){.kind = kind, .parameters = parameters, .n_parameters = n};
    o->state = mp_runtime_alloc(rt, (size_t)n * sizeof *o->state);
    if (kind == MP_OPTIMIZER_MUON)
        split_for_muon(rt, o);
}

static struct mp_tensor *scalar(struct mp_runtime *rt, enum mp_dtype dtype) { return mp_empty(rt, MP_SCALAR, dtype); }

static struct mp_tensor *like(struct mp_runtime *rt, const struct mp_tensor *t) { return mp_empty_like(rt, t, (enum mp_dtype)t->dtype); }

/* ---- state ---- */

static bool is_adamw(enum mp_optimizer kind)
{
    return kind == MP_OPTIMIZER_ADAMW_FOREACH || kind == MP_OPTIMIZER_ADAMW_FUSED || kind == MP_OPTIMIZER_ADAMW_FORLOOP;
}

static void adafactor_state(struct mp_runtime *rt, const struct mp_tensor *grad, struct mp_tensor **state)
{
    if (grad->shape.n < 2) {
        state[0] = mp_take(rt, like(rt, grad));
        return;
    }
    struct mp_shape rows = grad->shape, columns = grad->shape; /* factored over the last two dimensions */
    rows.d[rows.n - 1] = 1;
    columns.d[columns.n - 2] = 1;
    state[0] = mp_take(rt, mp_empty(rt, rows, (enum mp_dtype)grad->dtype));
    state[1] = mp_take(rt, mp_empty(rt, columns, (enum mp_dtype)grad->dtype));
}

/*
 * bitsandbytes (optim/optimizer.py, Optimizer2State.init_state): below 4,096 elements the state is float32; from there on one byte
 * per element, with a float32 maximum per block of 256. Paged state of 100,000 elements and more is managed memory, which the
 * allocator does not see.
 */
static void eight_bit_state(struct mp_runtime *rt, struct mp_optimizer_instance *o, const struct mp_tensor *p, struct mp_tensor **state)
{
    enum { MIN_8BIT_SIZE = 4096, MIN_PAGED_SIZE = 100000, BLOCK = 256, LEVELS = 256 };
    const int64_t n = mp_numel(p), blocks = (n + BLOCK - 1) / BLOCK;
    const bool paged = o->kind == MP_OPTIMIZER_PAGED_ADAMW_8BIT && n >= MIN_PAGED_SIZE;
    if (n < MIN_8BIT_SIZE) {
        for (int i = 0; i < 2; i++)
            state[i] = mp_take(rt, mp_empty_like(rt, p, MP_F32));
        return;
    }
    for (int i = 0; i < 2 && !o->maps[i]; i++) /* signed and unsigned */
        o->maps[i] = mp_take(rt, mp_empty(rt, MP_SHAPE(LEVELS), MP_F32));
    for (int i = 0; i < 2 && !paged; i++)
        state[i] = mp_take(rt, mp_empty_like(rt, p, MP_U8));
    for (int i = 2; i < 4; i++)
        state[i] = mp_take(rt, mp_empty(rt, MP_SHAPE(blocks), MP_F32));
}

static void create_state(struct mp_runtime *rt, struct mp_optimizer_instance *o)
{
    const enum mp_category category = rt->category;
    rt->category = MP_CATEGORY_OPTIMIZER_STATE;
    for (int i = 0; i < o->n_parameters; i++) {
        const struct mp_tensor *p = o->parameters[i];
        struct mp_tensor **state = o->state[i].tensors;
        if (!p->grad || state[0] || state[3])
            continue;
        rt->unit = p->layer;
        if (o->kind == MP_OPTIMIZER_ADAMW_8BIT || o->kind == MP_OPTIMIZER_PAGED_ADAMW_8BIT) {
            eight_bit_state(rt, o, p, state);
        } else if (o->kind == MP_OPTIMIZER_LION) {
            state[0] = mp_take(rt, mp_empty_like(rt, p, MP_F32)); /* bitsandbytes' Lion with 32 bits */
        } else if (is_adamw(o->kind)) {
            if (o->kind == MP_OPTIMIZER_ADAMW_FUSED)
                state[2] = mp_take(rt, scalar(rt, MP_F32)); /* the step counter; elsewhere a host scalar */
            state[0] = mp_take(rt, like(rt, p));
            state[1] = mp_take(rt, like(rt, p));
            mp_record_fill(rt, state[0], 0);
            mp_record_fill(rt, state[1], 0);
        } else if (o->kind == MP_OPTIMIZER_MUON) {
            state[0] = mp_take(rt, like(rt, p->grad));
            mp_record_fill(rt, state[0], 0);
        } else if (o->kind == MP_OPTIMIZER_SGD_MOMENTUM) {
            state[0] = mp_take(rt, like(rt, p->grad));
            mp_record_copy(rt, "clone", p->grad, state[0]);
        } else if (o->kind == MP_OPTIMIZER_ADAFACTOR) {
            adafactor_state(rt, p->grad, state);
            mp_record_fill(rt, state[0], 0);
            if (state[1])
                mp_record_fill(rt, state[1], 0);
        }
    }
    rt->unit = -1;
    rt->category = category;
}

/* ---- updates ---- */

/* torch._foreach_sqrt(exp_avg_sqs): one tensor per parameter, a list that dies last to first */
static void adamw_foreach(struct mp_runtime *rt, const struct mp_optimizer_instance *o)
{
    const int before = rt->n_temporaries;
    for (int i = 0; i < o->n_parameters; i++) {
        rt->unit = o->parameters[i]->layer;
        if (o->parameters[i]->grad)
            like(rt, o->state[i].tensors[1]);
    }
    rt->unit = -1;
    mp_discard_to(rt, before);
}

/* exp_avg_sq.sqrt(), then the denominator; the variable keeps the last one until the next exists */
static void adamw_forloop(struct mp_runtime *rt, const struct mp_optimizer_instance *o)
{
    struct mp_tensor *denominator = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    for (int i = 0; i < o->n_parameters; i++) {
        if (!o->parameters[i]->grad)
            continue;
        rt->unit = o->parameters[i]->layer;
        struct mp_tensor *root = like(rt, o->parameters[i]);
        struct mp_tensor *sum = like(rt, o->parameters[i]);
        mp_discard(rt, root);
        mp_let(&f, &denominator, sum);
    }
    rt->unit = -1;
    mp_leave(&f, NULL);
}

/* ---- records: one per parameter ---- */

static void record_adamw(struct mp_runtime *rt, const struct mp_optimizer_instance *o, struct mp_tensor *p, struct mp_tensor **state)
{
    mp_record(rt, "adamw", MP_TENSORS(p, p->grad, state[0], state[1], o->found_inf), MP_TENSORS(p, state[0], state[1]),
              MP_ATTRIBUTES(mp_number("lr", 1e-4), mp_number("beta1", 0.9), mp_number("beta2", 0.999), mp_number("eps", 1e-8),
                            mp_number("weight_decay", 0.01), mp_integer("step", o->steps)));
}

static void record_sgd(struct mp_runtime *rt, const struct mp_optimizer_instance *o, struct mp_tensor *p, struct mp_tensor *momentum)
{
    mp_record(rt, "sgd", MP_TENSORS(p, p->grad, momentum, o->found_inf), MP_TENSORS(p, momentum),
              MP_ATTRIBUTES(mp_number("lr", 1e-3), mp_number("momentum", momentum ? 0.9 : 0), mp_boolean("first", o->steps == 1)));
}

static void record_adafactor(struct mp_runtime *rt, const struct mp_optimizer_instance *o, struct mp_tensor *p, struct mp_tensor **state)
{
    mp_record(rt, "adafactor", MP_TENSORS(p, p->grad, state[0], state[1], o->found_inf), MP_TENSORS(p, state[0], state[1]),
              MP_ATTRIBUTES(mp_number("lr", 1e-3), mp_number("beta2_decay", -0.8), mp_number("eps2", 1e-3), mp_number("d", 1),
                            mp_number("weight_decay", 0), mp_integer("step", o->steps)));
}

static void record_updates(struct mp_runtime *rt, struct mp_optimizer_instance *o)
{
    o->steps++;
    for (int i = 0; i < o->n_parameters && mp_recording(rt); i++) {
        struct mp_tensor *p = o->parameters[i], **state = o->state[i].tensors;
        if (!p->grad)
            continue;
        if (is_adamw(o->kind))
            record_adamw(rt, o, p, state);
        else if (o->kind == MP_OPTIMIZER_MUON)
            mp_record(rt, "muon", MP_TENSORS(p, p->grad, state[0]), MP_TENSORS(p, state[0]),
                      MP_ATTRIBUTES(mp_number("lr", 1e-3), mp_number("momentum", 0.95), mp_number("weight_decay", 0.1)));
        else if (o->kind == MP_OPTIMIZER_ADAFACTOR)
            record_adafactor(rt, o, p, state);
        else
            record_sgd(rt, o, p, state[0]);
    }
}

/* A 0-d norm of all elements, with the reduction's scratch. */
static void norm(struct mp_runtime *rt, const struct mp_tensor *t)
{
    const int64_t stride[MP_MAX_DIMS] = {1};
    struct mp_tensor *flat = mp_alias(rt, t, MP_SHAPE(mp_numel(t)), stride, NULL);
    mp_discard(rt, mp_reduce(rt, flat, 1u, false));
    mp_discard(rt, flat);
}

/* norm().clamp(min=eps) */
static void norm_then_clamp(struct mp_runtime *rt, const struct mp_tensor *t)
{
    const int64_t stride[MP_MAX_DIMS] = {1};
    struct mp_tensor *flat = mp_alias(rt, t, MP_SHAPE(mp_numel(t)), stride, NULL);
    struct mp_tensor *length = mp_reduce(rt, flat, 1u, false);
    mp_discard(rt, scalar(rt, (enum mp_dtype)t->dtype));
    mp_discard(rt, length);
    mp_discard(rt, flat);
}

/* torch.optim._adafactor._single_tensor_adafactor: its locals live from one parameter to the next */
static void adafactor(struct mp_runtime *rt, const struct mp_optimizer_instance *o)
{
    struct mp_tensor *row_mean = NULL, *column_mean = NULL, *squared = NULL, *estimate = NULL, *update = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    for (int i = 0; i < o->n_parameters; i++) {
        struct mp_tensor *p = o->parameters[i], *grad = p->grad;
        if (!grad)
            continue;
        rt->unit = p->layer;
        norm(rt, p);
        const int n = p->shape.n;
        if (n > 1) {
            mp_let(&f, &row_mean, mp_reduce(rt, grad, 1u << (n - 1), true));
            mp_let(&f, &column_mean, mp_reduce(rt, grad, 1u << (n - 2), true));
            mp_let(&f, &estimate, mp_empty(rt, p->shape, (enum mp_dtype)grad->dtype));
            mp_gemm_workspace(rt, false);
            mp_discard(rt, mp_reduce(rt, o->state[i].tensors[0], 1u << (n - 2), true));
        } else {
            mp_let(&f, &squared, like(rt, grad));
            mp_let(&f, &estimate, like(rt, grad));
        }
        mp_let(&f, &update, estimate);
        norm(rt, update);
    }
    rt->unit = -1;
    mp_leave(&f, NULL);
}

/*
 * _zeropower_via_newtonschulz in bfloat16: five times a Gram matrix of the shorter side, its polynomial, and the next iterate. The
 * update is held by the caller until the result replaces it.
 */
static struct mp_tensor *newton_schulz(struct mp_runtime *rt, struct mp_tensor *update)
{
    enum { ITERATIONS = 5 };
    const int64_t side = MP_MIN(mp_dim(update, 0), mp_dim(update, 1));
    struct mp_tensor *iterate = NULL, *gram = NULL, *polynomial = NULL;
    struct mp_frame f;
    MP_FUNCTION(rt, &f, &update);
    mp_let(&f, &iterate, update->dtype == MP_BF16 ? update : mp_empty(rt, update->shape, MP_BF16));
    norm_then_clamp(rt, iterate);
    for (int i = 0; i < ITERATIONS; i++) {
        mp_gemm_workspace(rt, false);
        mp_let(&f, &gram, mp_empty(rt, MP_SHAPE(side, side), MP_BF16));
        mp_let(&f, &polynomial, mp_empty(rt, MP_SHAPE(side, side), MP_BF16));
        mp_let(&f, &iterate, mp_empty(rt, update->shape, MP_BF16));
    }
    return mp_leave(&f, iterate);
}

/* torch.optim._muon._single_tensor_muon: the last update lives until the next one exists */
static void muon(struct mp_runtime *rt, const struct mp_optimizer_instance *o)
{
    struct mp_tensor *update = NULL;
    struct mp_frame f;
    mp_enter_empty(rt, &f);
    for (int i = 0; i < o->n_parameters; i++) {
        if (!o->parameters[i]->grad)
            continue;
        rt->unit = o->parameters[i]->layer;
        mp_let(&f, &update, like(rt, o->parameters[i]->grad)); /* grad.lerp(momentum) */
        mp_let(&f, &update, newton_schulz(rt, update));
    }
    rt->unit = -1;
    mp_leave(&f, NULL);
}

static void step_group(struct mp_runtime *rt, struct mp_optimizer_instance *o)
{
    if (o->kind == MP_OPTIMIZER_NONE || o->n_parameters == 0)
        return;
    rt->op = "optimizer.step";
    create_state(rt, o);
    record_updates(rt, o);
    if (o->kind == MP_OPTIMIZER_ADAMW_FOREACH)
        adamw_foreach(rt, o);
    else if (o->kind == MP_OPTIMIZER_ADAMW_FORLOOP)
        adamw_forloop(rt, o);
    else if (o->kind == MP_OPTIMIZER_ADAFACTOR)
        adafactor(rt, o);
    else if (o->kind == MP_OPTIMIZER_MUON)
        muon(rt, o);
    rt->op = "";
}

void mp_optimizer_step(struct mp_runtime *rt, struct mp_optimizer_instance *o)
{
    for (; o; o = o->next)
        step_group(rt, o);
}

void mp_optimizer_zero_grad(struct mp_runtime *rt, struct mp_optimizer_instance *o)
{
    for (; o; o = o->next)
        mp_zero_grad(rt, o->parameters, o->n_parameters);
}

void mp_zero_grad(struct mp_runtime *rt, struct mp_tensor **parameters, int n)
{
    for (int i = 0; i < n; i++) {
        mp_tensor_unref(rt, parameters[i]->grad);
        parameters[i]->grad = NULL;
    }
}

/* ---- clipping ---- */

/* _foreach_norm: chunks of 65,536 elements give partial norms, as many per tensor as the largest needs */
static uint64_t norm_partials_bytes(struct mp_tensor **parameters, int n, int *n_grads)
{
    enum { CHUNK = 65536 };
    int64_t chunks = 0;
    *n_grads = 0;
    for (int i = 0; i < n; i++) {
        if (!parameters[i]->grad)
            continue;
        chunks = MP_MAX(chunks, (mp_numel(parameters[i]->grad) + CHUNK - 1) / CHUNK);
        ++*n_grads;
    }
    return 4 * (uint64_t)*n_grads * (uint64_t)chunks;
}

/* Of norms that cover a rank's shards only: squared, summed over the ranks, rooted. The results die with the stack. */
static void sum_over_ranks(struct mp_runtime *rt, int n_grads, enum mp_dtype dtype)
{
    struct mp_tensor *squares = mp_empty(rt, MP_SHAPE(n_grads), dtype);
    struct mp_tensor *reduced = mp_empty(rt, MP_SHAPE(n_grads), dtype);
    mp_empty(rt, MP_SHAPE(n_grads), dtype);
    mp_discard(rt, squares);
    mp_discard(rt, reduced);
}

static struct mp_tensor *total_norm(struct mp_runtime *rt, struct mp_tensor **parameters, int n, bool sharded, enum mp_dtype *dtype)
{
    int n_grads;
    const int before = rt->n_temporaries;
    const uint64_t partial_bytes = norm_partials_bytes(parameters, n, &n_grads);
    struct mp_storage *partials = mp_storage_new(rt, partial_bytes);
    for (int i = 0; i < n; i++) {
        if (!parameters[i]->grad)
            continue;
        *dtype = (enum mp_dtype)parameters[i]->grad->dtype;
        scalar(rt, *dtype);
    }
    mp_storage_unref(rt, partials);
    const int n_norms = rt->n_temporaries;
    mp_empty(rt, MP_SHAPE(n_grads), *dtype); /* stacked */
    if (sharded)
        sum_over_ranks(rt, n_grads, *dtype);
    struct mp_tensor *total = mp_take(rt, scalar(rt, *dtype));
    mp_discard_to(rt, n_norms);
    mp_discard_to(rt, before);
    return mp_float(rt, total);
}

/* The gradients in order, owned by nobody. */
static struct mp_tensor **gradients(struct mp_runtime *rt, struct mp_tensor **parameters, int n, struct mp_tensor *last, int *count)
{
    struct mp_tensor **grads = mp_runtime_alloc(rt, ((size_t)n + 1) * sizeof(struct mp_tensor *));
    *count = 0;
    for (int i = 0; i < n; i++)
        if (parameters[i]->grad)
            grads[(*count)++] = parameters[i]->grad;
    grads[(*count)++] = last;
    return grads;
}

static void record_clip(struct mp_runtime *rt, struct mp_tensor **parameters, int n, struct mp_tensor *total)
{
    int count;
    struct mp_tensor **grads = gradients(rt, parameters, n, total, &count);
    mp_record(rt, "clip_grad_norm_", count - 1, grads, count, grads, MP_ATTRIBUTES(mp_number("max_norm", 1), mp_number("eps", 1e-6)));
}

static struct mp_tensor *clip(struct mp_runtime *rt, struct mp_tensor **parameters, int n, bool sharded)
{
    enum mp_dtype dtype = MP_F32;
    rt->op = "clip_grad_norm_";
    struct mp_tensor *total = total_norm(rt, parameters, n, sharded, &dtype);
    struct mp_tensor *guarded = scalar(rt, dtype);     /* total + 1e-6 */
    struct mp_tensor *reciprocal = scalar(rt, dtype);
    struct mp_tensor *coefficient = scalar(rt, dtype); /* max_norm * reciprocal */
    mp_discard(rt, reciprocal);
    mp_discard(rt, guarded);
    struct mp_tensor *clamped = scalar(rt, dtype);
    if (mp_recording(rt))
        record_clip(rt, parameters, n, total);
    mp_discard(rt, coefficient);
    mp_discard(rt, clamped);
    rt->op = "";
    return total;
}

struct mp_tensor *mp_clip_grad_norm_total(struct mp_runtime *rt, struct mp_tensor **parameters, int n)
{
    return clip(rt, parameters, n, false);
}

void mp_clip_grad_norm(struct mp_runtime *rt, struct mp_tensor **parameters, int n)
{
    mp_discard(rt, clip(rt, parameters, n, false));
}

void mp_clip_grad_norm_sharded(struct mp_runtime *rt, struct mp_tensor **shards, int n)
{
    mp_discard(rt, clip(rt, shards, n, true));
}

/* ---- gradient scaler ---- */

struct mp_tensor *mp_scaler_scale(struct mp_runtime *rt, struct mp_grad_scaler *s, struct mp_tensor *loss)
{
    if (!s->scale) {
        s->scale = mp_take(rt, scalar(rt, MP_F32));
        s->growth_tracker = mp_take(rt, scalar(rt, MP_F32));
        mp_record_fill(rt, s->scale, 65536);
        mp_record_fill(rt, s->growth_tracker, 0);
    }
    return mp_mul(rt, loss, s->scale);
}

/* found_inf and the inverse of the scale, on the gradients' device */
static void copies_for_device(struct mp_runtime *rt, struct mp_grad_scaler *s)
{
    s->found_inf = mp_take(rt, scalar(rt, MP_F32));
    struct mp_tensor *inverse = scalar(rt, MP_F32);
    if (s->sharded)
        mp_discard(rt, scalar(rt, MP_F32)); /* summed over the ranks */
    mp_discard(rt, inverse);
}

void mp_scaler_unscale(struct mp_runtime *rt, struct mp_grad_scaler *s)
{
    struct mp_storage *doubled = mp_storage_new(rt, 8), *reciprocal = mp_storage_new(rt, 8);
    mp_storage_unref(rt, doubled);
    struct mp_tensor *inverse = scalar(rt, MP_F32);
    mp_storage_unref(rt, reciprocal);
    struct mp_tensor *found = scalar(rt, MP_F32);
    copies_for_device(rt, s);
    mp_discard(rt, inverse);
    mp_discard(rt, found);
}

void mp_scaler_record_unscale(struct mp_runtime *rt, const struct mp_grad_scaler *s, struct mp_tensor **parameters, int n)
{
    int count;
    if (!mp_recording(rt))
        return;
    struct mp_tensor **in = gradients(rt, parameters, n, s->scale, &count), **out = gradients(rt, parameters, n, s->found_inf, &count);
    mp_record(rt, "unscale_", count, in, count, out, MP_NO_ATTRIBUTES);
}

/* The fused kernel unscales by itself; it is handed 0-d tensors, made here when unscale_() was not called. */
static void step_fused(struct mp_runtime *rt, struct mp_grad_scaler *s, struct mp_optimizer_instance *o)
{
    struct mp_tensor *found_sum, *grad_scale = NULL;
    if (!s->found_inf) {
        struct mp_tensor *ones = scalar(rt, MP_F32), *found = scalar(rt, MP_F32);
        copies_for_device(rt, s);
        mp_scaler_record_unscale(rt, s, o->parameters, o->n_parameters);
        mp_discard(rt, ones);
        mp_discard(rt, found);
        found_sum = scalar(rt, MP_F32);
        grad_scale = scalar(rt, MP_F32);
    } else {
        found_sum = scalar(rt, MP_F32);
    }
    o->found_inf = s->found_inf;
    mp_optimizer_step(rt, o);
    mp_discard(rt, grad_scale);
    mp_discard(rt, found_sum);
}

void mp_scaler_step(struct mp_runtime *rt, struct mp_grad_scaler *s, struct mp_optimizer_instance *o)
{
    if (o->kind == MP_OPTIMIZER_ADAMW_FUSED) {
        step_fused(rt, s, o);
    } else {
        if (!s->found_inf) {
            mp_scaler_unscale(rt, s);
            mp_scaler_record_unscale(rt, s, o->parameters, o->n_parameters);
        }
        o->found_inf = s->found_inf;
        mp_optimizer_step(rt, o);
    }
    mp_record(rt, "update_scale_", MP_TENSORS(s->scale, s->growth_tracker, s->found_inf), MP_TENSORS(s->scale, s->growth_tracker),
              MP_ATTRIBUTES(mp_number("growth", 2), mp_number("backoff", 0.5), mp_integer("interval", 2000)));
    mp_tensor_unref(rt, s->found_inf);
    s->found_inf = o->found_inf = NULL;
}
