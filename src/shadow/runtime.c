/* SPDX-License-Identifier: MIT */
/*
 * Storages, tensors, temporaries and frames: how lifetimes become alloc and free events.
 *
 * Objects come from free lists on the run's arena. A tensor that dies gives up its gradient first, then its graph, its
 * base, and its storage at last; that is the order in which PyTorch's TensorImpl goes.
 */
#include "shadow/runtime.h"

#include <stdarg.h>

#include "shadow/autograd.h"
#include "shadow/module.h"

/* One tensor may not exceed this: PyTorch refuses requests from 1 EiB on before the allocator runs. */
#define MAX_STORAGE_BYTES (UINT64_C(1) << 60)

/* ---- errors ---- */

void mp_raise(struct mp_runtime *rt, enum memplan_status status, const char *format, ...)
{
    char text[sizeof rt->err->text];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    mp_error_set(rt->err, status, "%s", text);
    longjmp(rt->catch_error->jump, (int)status);
}

enum memplan_status mp_runtime_protect(struct mp_runtime *rt, void (*body)(struct mp_runtime *rt, void *context), void *context)
{
    struct mp_catch catch = {.up = rt->catch_error, .frame = rt->frame};
    rt->catch_error = &catch;
    const int status = setjmp(catch.jump);
    if (status == 0)
        body(rt, context);
    rt->catch_error = rt->catch_error->up;
    return (enum memplan_status)status;
}

void *mp_runtime_alloc(struct mp_runtime *rt, size_t size)
{
    void *p = mp_arena_alloc(&rt->arena, size);
    if (!p)
        mp_raise(rt, MEMPLAN_STATUS_NOMEM, "out of memory while running the model");
    return p;
}

/* Room for one more entry in an arena array; the old one is abandoned, doubling bounds the waste. */
static void *grow(struct mp_runtime *rt, void *array, int *capacity, int n, size_t size)
{
    if (n < *capacity)
        return array;
    const int wanted = *capacity ? *capacity * 2 : 64;
    void *bigger = mp_runtime_alloc(rt, (size_t)wanted * size);
    if (n)
        memcpy(bigger, array, (size_t)n * size);
    *capacity = wanted;
    return bigger;
}

struct mp_tensor *mp_buffer_register(struct mp_runtime *rt, struct mp_tensor *t)
{
    rt->buffers = grow(rt, rt->buffers, &rt->cap_buffers, rt->n_buffers, sizeof *rt->buffers);
    rt->buffers[rt->n_buffers++] = t;
    return t;
}

/* ---- free lists ---- */

void *mp_pool_take(struct mp_runtime *rt, struct mp_pool *pool)
{
    void *object = pool->free;
    if (!object)
        return mp_runtime_alloc(rt, pool->size);
    memcpy(&pool->free, object, sizeof pool->free);
    memset(object, 0, pool->size);
    return object;
}

void mp_pool_give(struct mp_pool *pool, void *object)
{
    memcpy(object, &pool->free, sizeof pool->free);
    pool->free = object;
}

void mp_runtime_init(struct mp_runtime *rt, const struct mp_gpu *gpu, struct mp_program *program, struct memplan_error *err)
{
    *rt = (struct mp_runtime){.card = {.gpu = gpu}, .program = program, .err = err, .grad_enabled = true, .training = true, .layer = -1, .unit = -1};
    mp_arena_init(&rt->arena);
    rt->storages.size = sizeof(struct mp_storage);
    rt->tensors.size = sizeof(struct mp_tensor);
    rt->nodes.size = sizeof(struct mp_node);
    rt->outputs.size = (MP_MAX_OUTPUTS - 1) * sizeof(struct mp_meta);
    rt->tasks.size = sizeof(struct mp_task);
    rt->category = MP_CATEGORY_TEMPORARY;
    rt->op = "";
}

void mp_runtime_release(struct mp_runtime *rt) { mp_arena_release(&rt->arena); }

/* ---- events ---- */

static struct mp_event *add_event(struct mp_runtime *rt, enum mp_event_kind kind)
{
    struct mp_program *p = rt->program;
    if (p->n_events == p->cap_events) {
        const uint32_t wanted = p->cap_events ? p->cap_events * 2 : 4096;
        struct mp_event *events = mp_realloc(p->events, wanted * sizeof *events);
        if (!events)
            mp_raise(rt, MEMPLAN_STATUS_NOMEM, "out of memory while recording events");
        p->events = events;
        p->cap_events = wanted;
    }
    struct mp_event *e = &p->events[p->n_events++];
    *e = (struct mp_event){.kind = (uint8_t)kind, .layer = (int16_t)rt->layer, .op = rt->op};
    e->unit = (int16_t)(rt->layer >= 0 ? rt->layer : rt->unit);
    return e;
}

static void emit_free(struct mp_runtime *rt, struct mp_storage *s)
{
    struct mp_event *e = add_event(rt, MP_EVENT_FREE);
    e->id = s->id;
    e->bytes = s->bytes;
    e->category = s->category;
    e->stream = s->stream;
    e->tag = s->tag;
    rt->program->live_bytes -= s->bytes;
    s->id = 0;
}

/* The caching allocator asks whether other streams are done when it is asked for memory, and only then. */
static void free_retired(struct mp_runtime *rt)
{
    for (int i = 0; i < rt->n_retired; i++) {
        emit_free(rt, rt->retired[i]);
        mp_pool_give(&rt->storages, rt->retired[i]);
    }
    rt->n_retired = 0;
}

static void emit_alloc(struct mp_runtime *rt, struct mp_storage *s)
{
    free_retired(rt);
    struct mp_program *p = rt->program;
    struct mp_event *e = add_event(rt, MP_EVENT_ALLOC);
    s->id = ++p->n_allocs;
    e->id = s->id;
    e->bytes = s->bytes;
    e->category = s->category;
    e->stream = s->stream;
    e->tag = s->tag;
    p->live_bytes += s->bytes;
    if (p->live_bytes > p->peak_since_mark_bytes)
        p->peak_since_mark_bytes = p->live_bytes;
}

void mp_tag(struct mp_runtime *rt, struct mp_storage *storage, enum mp_category category)
{
    if (!storage->id || storage->category == (uint8_t)category)
        return;
    storage->category = (uint8_t)category;
    if (!rt->program->keep_tags)
        return;
    struct mp_event *e = add_event(rt, MP_EVENT_TAG);
    e->id = storage->id;
    e->category = (uint8_t)category;
}

void mp_mark(struct mp_runtime *rt, const char *format, ...)
{
    struct mp_program *p = rt->program;
    struct mp_phase new_phase = {.event = p->n_events}; /* named before phases[] moves: arguments may point there */
    va_list ap;
    va_start(ap, format);
    vsnprintf(new_phase.name, sizeof new_phase.name, format, ap);
    va_end(ap);
    if (p->n_phases == p->cap_phases) {
        const uint32_t wanted = p->cap_phases ? p->cap_phases * 2 : 32;
        struct mp_phase *phases = mp_realloc(p->phases, wanted * sizeof *phases);
        if (!phases)
            mp_raise(rt, MEMPLAN_STATUS_NOMEM, "out of memory while recording phases");
        p->phases = phases;
        p->cap_phases = wanted;
    }
    struct mp_phase *phase = &p->phases[p->n_phases];
    *phase = new_phase;
    phase->requested_bytes = p->live_bytes;
    phase->collectives = rt->n_collectives;
    phase->requested_peak_bytes = p->peak_since_mark_bytes;
    if (p->peak_since_mark_bytes > p->peak_bytes)
        p->peak_bytes = p->peak_since_mark_bytes;
    p->peak_since_mark_bytes = p->live_bytes;
    add_event(rt, MP_EVENT_MARK)->id = p->n_phases++;
}

void mp_empty_cache(struct mp_runtime *rt)
{
    free_retired(rt);
    add_event(rt, MP_EVENT_EMPTY_CACHE);
}

void mp_op_event(struct mp_runtime *rt, uint32_t index) { add_event(rt, MP_EVENT_OP)->id = index; }

static void driver_event(struct mp_runtime *rt, enum mp_driver_event event, uint64_t bytes, uint16_t tag)
{
    if (rt->loaded >> event & 1u)
        return;
    rt->loaded |= 1u << event;
    struct mp_event *e = add_event(rt, MP_EVENT_DRIVER);
    e->id = (uint32_t)event;
    e->bytes = bytes;
    e->tag = tag;
}

void mp_driver_event(struct mp_runtime *rt, enum mp_driver_event event, uint64_t bytes) { driver_event(rt, event, bytes, 0); }

void mp_driver_event_asked(struct mp_runtime *rt, enum mp_driver_event event, const struct mp_card_reply *reply, int size)
{
    driver_event(rt, event, reply->bytes[size], mp_card_tag(reply->number, size));
}

void mp_repeat_event(struct mp_runtime *rt, uint32_t index, uint32_t shift)
{
    struct mp_program *p = rt->program;
    struct mp_event *e = add_event(rt, MP_EVENT_ALLOC);
    *e = p->events[index];
    e->id += shift;
    if (e->kind == MP_EVENT_ALLOC) {
        p->n_allocs++;
        p->live_bytes += e->bytes;
        p->peak_since_mark_bytes = MP_MAX(p->peak_since_mark_bytes, p->live_bytes);
    } else if (e->kind == MP_EVENT_FREE) {
        p->live_bytes -= e->bytes;
    }
}

/* ---- storages ---- */

static struct mp_storage *new_storage(struct mp_runtime *rt, uint64_t bytes, uint16_t tag)
{
    if (bytes > MAX_STORAGE_BYTES)
        mp_raise(rt, MEMPLAN_STATUS_RANGE, "a tensor of %llu bytes is more than 2^60; check batch, seq and the model's sizes",
                 (unsigned long long)bytes);
    struct mp_storage *s = mp_pool_take(rt, &rt->storages);
    s->refs = 1;
    s->bytes = bytes;
    s->category = (uint8_t)rt->category;
    s->stream = rt->stream;
    s->tag = tag;
    if (bytes)
        emit_alloc(rt, s);
    return s;
}

static void retire(struct mp_runtime *rt, struct mp_storage *s)
{
    rt->retired = grow(rt, rt->retired, &rt->cap_retired, rt->n_retired, sizeof *rt->retired);
    rt->retired[rt->n_retired++] = s;
}

struct mp_storage *mp_storage_new(struct mp_runtime *rt, uint64_t bytes) { return new_storage(rt, bytes, 0); }

struct mp_storage *mp_storage_asked(struct mp_runtime *rt, const struct mp_card_reply *reply, int size)
{
    return new_storage(rt, reply->bytes[size], mp_card_tag(reply->number, size));
}

void mp_storage_unref(struct mp_runtime *rt, struct mp_storage *s)
{
    if (--s->refs > 0)
        return;
    if (s->lender)
        s->lender->borrower = NULL;
    if (s->id && s->shared) {
        retire(rt, s);
        return;
    }
    if (s->id)
        emit_free(rt, s);
    mp_pool_give(&rt->storages, s);
}

/* The memory lives on in a storage of its own until the other stream is done. */
static void retire_memory(struct mp_runtime *rt, const struct mp_storage *s)
{
    struct mp_storage *memory = mp_pool_take(rt, &rt->storages);
    *memory = *s;
    memory->refs = 0;
    retire(rt, memory);
}

struct mp_storage *mp_storage_borrow(struct mp_runtime *rt, struct mp_storage *s)
{
    if (s->borrower) {
        s->borrower->refs++;
        return s->borrower;
    }
    struct mp_storage *borrower = mp_pool_take(rt, &rt->storages);
    *borrower = (struct mp_storage){.refs = 1, .bytes = s->bytes, .category = s->category, .stream = s->stream, .lender = s};
    s->borrower = borrower;
    return borrower;
}

/* What was lent is the borrower's now. */
static void hand_over(struct mp_storage *s)
{
    s->borrower->id = s->id;
    s->borrower->shared = s->shared;
    s->borrower->tag = s->tag;
    s->borrower->lender = NULL;
    s->borrower = NULL;
}

void mp_storage_resize(struct mp_runtime *rt, struct mp_storage *s, uint64_t bytes)
{
    if (s->id && s->borrower)
        hand_over(s);
    else if (s->id && s->shared)
        retire_memory(rt, s);
    else if (s->id)
        emit_free(rt, s);
    s->id = 0;
    s->shared = false;
    s->bytes = bytes;
    s->tag = 0;
    if (bytes)
        emit_alloc(rt, s);
}

/* ---- layout ---- */

int64_t mp_numel(const struct mp_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->shape.n; i++)
        n *= t->shape.d[i];
    return n;
}

uint64_t mp_nbytes(const struct mp_tensor *t) { return (uint64_t)mp_numel(t) * mp_dtype_bytes(t->dtype); }

void mp_contiguous_stride(const struct mp_shape *shape, int64_t *stride)
{
    int64_t step = 1;
    for (int i = shape->n - 1; i >= 0; i--) {
        stride[i] = step;
        step *= MP_MAX(shape->d[i], 1);
    }
}

bool mp_is_contiguous(const struct mp_tensor *t)
{
    int64_t step = 1;
    for (int i = t->shape.n - 1; i >= 0; i--) {
        if (t->shape.d[i] == 1)
            continue;
        if (t->stride[i] != step)
            return false;
        step *= t->shape.d[i];
    }
    return true;
}

bool mp_is_dense(const struct mp_tensor *t)
{
    /* Dimensions in order of stride must multiply up without gap or overlap. */
    int64_t step = 1;
    unsigned seen = 0;
    for (int count = 0; count < t->shape.n; count++) {
        int next = -1;
        for (int i = 0; i < t->shape.n; i++)
            if (!(seen & 1u << i) && t->shape.d[i] != 1 && (next < 0 || t->stride[i] < t->stride[next]))
                next = i;
        if (next < 0)
            return true;
        if (t->stride[next] != step)
            return false;
        step *= t->shape.d[next];
        seen |= 1u << next;
    }
    return true;
}

bool mp_same_shape(const struct mp_shape *a, const struct mp_shape *b)
{
    return a->n == b->n && memcmp(a->d, b->d, (size_t)a->n * sizeof a->d[0]) == 0;
}

/* ---- temporaries ---- */

struct mp_tensor *mp_float(struct mp_runtime *rt, struct mp_tensor *t)
{
    if (t->temporary >= 0) { /* floats already: one reference is enough */
        t->refs--;
        return t;
    }
    rt->temporaries = grow(rt, rt->temporaries, &rt->cap_temporaries, rt->n_temporaries, sizeof *rt->temporaries);
    t->temporary = rt->n_temporaries;
    rt->temporaries[rt->n_temporaries++] = t;
    return t;
}

static void sink(struct mp_runtime *rt, struct mp_tensor *t)
{
    rt->temporaries[t->temporary] = NULL;
    t->temporary = -1;
    while (rt->n_temporaries && !rt->temporaries[rt->n_temporaries - 1])
        rt->n_temporaries--;
}

struct mp_tensor *mp_take(struct mp_runtime *rt, struct mp_tensor *value)
{
    if (!value)
        return NULL;
    if (value->temporary >= 0 && !value->pinned)
        sink(rt, value);
    else
        value->refs++;
    return value;
}

void mp_discard(struct mp_runtime *rt, struct mp_tensor *value)
{
    if (value && value->temporary >= 0 && !value->pinned) {
        sink(rt, value);
        mp_tensor_unref(rt, value);
    }
}

void mp_discard_to(struct mp_runtime *rt, int n)
{
    while (rt->n_temporaries > n) {
        struct mp_tensor *t = rt->temporaries[rt->n_temporaries - 1];
        t->pinned = false;
        mp_discard(rt, t);
    }
}

/* ---- tensors ---- */

static uint64_t checked_bytes(struct mp_runtime *rt, const struct mp_shape *shape, enum mp_dtype dtype)
{
    uint64_t bytes = mp_dtype_bytes(dtype);
    for (int i = 0; i < shape->n; i++)
        if (__builtin_mul_overflow(bytes, (uint64_t)shape->d[i], &bytes))
            mp_raise(rt, MEMPLAN_STATUS_RANGE, "a tensor is larger than 2^64 bytes; check batch, seq and the model's sizes");
    return bytes;
}

static struct mp_tensor *new_tensor(struct mp_runtime *rt, struct mp_storage *storage, const struct mp_shape *shape, enum mp_dtype dtype)
{
    struct mp_tensor *t = mp_pool_take(rt, &rt->tensors);
    t->refs = 1;
    t->temporary = -1;
    t->storage = storage;
    t->shape = *shape;
    t->dtype = (uint8_t)dtype;
    return mp_float(rt, t);
}

struct mp_tensor *mp_empty(struct mp_runtime *rt, struct mp_shape shape, enum mp_dtype dtype)
{
    struct mp_tensor *t = new_tensor(rt, mp_storage_new(rt, checked_bytes(rt, &shape, dtype)), &shape, dtype);
    mp_contiguous_stride(&shape, t->stride);
    return t;
}

struct mp_tensor *mp_empty_strided(struct mp_runtime *rt, struct mp_shape shape, const int64_t *stride, enum mp_dtype dtype)
{
    struct mp_tensor *t = new_tensor(rt, mp_storage_new(rt, checked_bytes(rt, &shape, dtype)), &shape, dtype);
    memcpy(t->stride, stride, sizeof t->stride);
    return t;
}

struct mp_tensor *mp_alias(struct mp_runtime *rt, const struct mp_tensor *t, struct mp_shape shape, const int64_t *stride, struct mp_tensor *base)
{
    t->storage->refs++;
    struct mp_tensor *view = new_tensor(rt, t->storage, &shape, t->dtype);
    memcpy(view->stride, stride, sizeof view->stride);
    view->offset = t->offset;
    view->base = mp_tensor_ref(base);
    return view;
}

struct mp_tensor *mp_detach(struct mp_runtime *rt, const struct mp_tensor *t)
{
    return mp_alias(rt, t, t->shape, t->stride, t->base);
}

void mp_tensor_unref(struct mp_runtime *rt, struct mp_tensor *t)
{
    if (!t || --t->refs > 0)
        return;
    if (t->grad)
        mp_tensor_unref(rt, t->grad);
    if (t->grad_fn)
        mp_node_unref(rt, t->grad_fn);
    if (t->base)
        mp_tensor_unref(rt, t->base);
    mp_storage_unref(rt, t->storage);
    mp_pool_give(&rt->tensors, t);
}

/* ---- frames ---- */

void mp_enter_empty(struct mp_runtime *rt, struct mp_frame *f)
{
    f->rt = rt;
    f->up = rt->frame;
    f->n_vars = f->n_args = 0;
    f->watched = false;
    rt->frame = f;
}

void mp_enter(struct mp_runtime *rt, struct mp_frame *f, bool module, struct mp_tensor **const *params, size_t n)
{
    mp_enter_empty(rt, f);
    for (size_t i = 0; i < n; i++) {
        *params[i] = mp_take(rt, *params[i]);
        f->vars[f->n_vars++] = params[i];
    }
    if (!module)
        return;
    for (size_t i = 0; i < n; i++)
        f->args[f->n_args++] = mp_tensor_ref(*params[i]);
    f->watched = mp_watches_modules(rt) && rt->leaf == 0;
    if (f->watched)
        mp_container_begin(rt);
}

static void declare(struct mp_frame *f, struct mp_tensor **var)
{
    for (int i = 0; i < f->n_vars; i++)
        if (f->vars[i] == var)
            return;
    f->vars[f->n_vars++] = var;
}

void mp_let(struct mp_frame *f, struct mp_tensor **var, struct mp_tensor *value)
{
    declare(f, var);
    struct mp_tensor *old = *var;
    *var = mp_take(f->rt, value);
    mp_tensor_unref(f->rt, old);
}

void mp_give(struct mp_frame *f, struct mp_tensor **out, struct mp_tensor *value)
{
    *out = value ? mp_float(f->rt, mp_take(f->rt, value)) : NULL;
    if (value && f->watched)
        *out = mp_container_output(f->rt, *out);
}

struct mp_tensor *mp_leave(struct mp_frame *f, struct mp_tensor *value)
{
    struct mp_runtime *rt = f->rt;
    struct mp_tensor *result = mp_take(rt, value);
    rt->frame = f->up;
    if (f->watched)
        result = mp_take(rt, mp_container_end(rt, result ? mp_float(rt, result) : NULL));
    for (int i = 0; i < f->n_vars; i++)
        mp_tensor_unref(rt, *f->vars[i]);
    for (int i = 0; i < f->n_args; i++)
        mp_tensor_unref(rt, f->args[i]);
    return result ? mp_float(rt, result) : NULL;
}

/* ---- early stop ---- */

static void park(struct mp_runtime *rt, struct mp_tensor *t)
{
    if (!t)
        return;
    rt->parked = grow(rt, rt->parked, &rt->cap_parked, rt->n_parked, sizeof *rt->parked);
    rt->parked[rt->n_parked++] = t;
}

/*
 * A Python exception: the value stacks are popped as it passes, so temporaries die at once, the last one first; the
 * traceback keeps the frames, innermost first, until the exception has been handled.
 */
void mp_raise_stop(struct mp_runtime *rt)
{
    struct mp_catch *catch = rt->catch_stop;
    rt->leaf = 0; /* modules are left without a word */
    for (struct mp_frame *f = rt->frame; f != catch->frame; f = f->up) {
        for (int i = 0; i < f->n_vars; i++)
            park(rt, *f->vars[i]);
        for (int i = 0; i < f->n_args; i++)
            park(rt, f->args[i]);
    }
    rt->frame = catch->frame;
    mp_discard_to(rt, catch->n_temporaries);
    longjmp(catch->jump, 1);
}

void mp_release_parked(struct mp_runtime *rt, int from)
{
    for (int i = from; i < rt->n_parked; i++)
        mp_tensor_unref(rt, rt->parked[i]);
    rt->n_parked = from;
}
