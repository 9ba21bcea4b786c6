/* SPDX-License-Identifier: MIT */
/*
 * Program files: written from a second run of the job that keeps its operations, read back line by
 * line.
 */
#include "report/program.h"

#include "base/file.h"
#include "base/json.h"
#include "report/report.h"
#include "train/job.h"

/* ---- writing ---- */

static void write_int_list(struct mp_json_writer *w, const char *key, const int64_t *values, int n)
{
    mp_json_array(w, key);
    for (int i = 0; i < n; i++)
        mp_json_int(w, NULL, values[i]);
    mp_json_end_array(w);
}

static void write_tensors(struct mp_json_writer *w, const char *key,
                          const struct mp_op_tensor *tensors, uint32_t n)
{
    mp_json_array(w, key);
    for (uint32_t i = 0; i < n; i++) {
        const struct mp_op_tensor *t = &tensors[i];
        if (!t->present) {
            mp_json_null(w, NULL);
            continue;
        }
        mp_json_object(w, NULL);
        mp_json_uint(w, "storage", t->storage);
        mp_json_int(w, "offset", t->offset);
        write_int_list(w, "shape", t->shape.d, t->shape.n);
        write_int_list(w, "strides", t->stride, t->shape.n);
        mp_json_string(w, "dtype", mp_dtype_name((enum mp_dtype)t->dtype));
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

static void write_attribute(struct mp_json_writer *w, const struct mp_attribute *a)
{
    switch (a->kind) {
    case MP_ATTRIBUTE_INT: mp_json_int(w, a->key, a->as.integer); break;
    case MP_ATTRIBUTE_NUMBER: mp_json_double(w, a->key, a->as.number); break;
    case MP_ATTRIBUTE_TEXT: mp_json_string(w, a->key, a->as.text); break;
    case MP_ATTRIBUTE_BOOL: mp_json_bool(w, a->key, a->as.integer != 0); break;
    }
}

static void write_op(struct mp_json_writer *w, const struct mp_program *p,
                     const struct mp_op_record *op, const char *phase)
{
    const struct mp_op_tensor *tensors = &p->op_tensors[op->first_tensor];
    mp_json_string(w, "op", op->op);
    if (mp_op_text(p, op, "name", NULL))
        mp_json_string(w, "name", mp_op_text(p, op, "name", NULL));
    if (op->layer >= 0)
        mp_json_int(w, "layer", op->layer);
    mp_json_string(w, "phase", phase);
    write_tensors(w, "inputs", tensors, op->n_inputs);
    write_tensors(w, "outputs", tensors + op->n_inputs, op->n_outputs);
    mp_json_object(w, "attributes");
    for (uint32_t i = 0; i < op->n_attributes; i++)
        if (strcmp(p->op_attributes[op->first_attribute + i].key, "name") != 0)
            write_attribute(w, &p->op_attributes[op->first_attribute + i]);
    mp_json_end_object(w);
}

/* False: the event does not appear in the file. */
static bool write_event(struct mp_json_writer *w, const struct mp_program *p,
                        const struct mp_event *e, const char *phase)
{
    switch ((enum mp_event_kind)e->kind) {
    case MP_EVENT_ALLOC:
        mp_json_uint(w, "alloc", e->id);
        mp_json_uint(w, "bytes", e->bytes);
        mp_json_uint(w, "stream", e->stream);
        mp_json_string(w, "category", mp_category_text((enum mp_category)e->category));
        return true;
    case MP_EVENT_FREE: mp_json_uint(w, "free", e->id); return true;
    case MP_EVENT_MARK: mp_json_string(w, "mark", p->phases[e->id].name); return true;
    case MP_EVENT_EMPTY_CACHE: mp_json_bool(w, "empty_cache", true); return true;
    case MP_EVENT_RECORD_STREAM:
        mp_json_uint(w, "record_stream", e->id);
        mp_json_uint(w, "stream", e->stream);
        return true;
    case MP_EVENT_OP: write_op(w, p, &p->ops[e->id], phase); return true;
    case MP_EVENT_TAG:
    case MP_EVENT_DRIVER: break;
    }
    return false;
}

static void write_events(const struct mp_program *p, struct mp_strbuf *out)
{
    uint32_t phase = 0;
    for (uint32_t i = 0; i < p->n_events; i++) {
        const struct mp_event *e = &p->events[i];
        if (e->kind == MP_EVENT_TAG || e->kind == MP_EVENT_DRIVER)
            continue;
        struct mp_json_writer w;
        mp_json_init(&w, out, 0);
        mp_json_object(&w, NULL);
        (void)write_event(&w, p, e, phase < p->n_phases ? p->phases[phase].name : "end");
        mp_json_end_object(&w);
        mp_strbuf_addch(out, '\n');
        phase += e->kind == MP_EVENT_MARK;
    }
}

static void write_predicted(struct mp_json_writer *w, const struct mp_evaluation *e)
{
    mp_json_object(w, "predicted");
    mp_json_bool(w, "oom", e->oom);
    mp_json_uint(w, "requested_bytes", e->requested_bytes);
    mp_json_uint(w, "allocated_bytes", e->allocated_bytes);
    mp_json_uint(w, "reserved_bytes", e->reserved_bytes);
    mp_json_uint(w, "context_bytes", e->context_bytes);
    mp_json_uint(w, "device_used_bytes", e->device_used_bytes);
    mp_report_phases_json(w, e);
    mp_json_end_object(w);
}

static void write_header(const struct mp_run *run, const struct mp_evaluation *e, int64_t steps,
                         struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 0);
    mp_json_object(&w, NULL);
    mp_json_int(&w, "schema_version", MP_PROGRAM_SCHEMA_VERSION);
    mp_json_string(&w, "memplan", memplan_version());
    mp_run_write_json(run, &w, "run");
    mp_json_object(&w, "profile");
    mp_json_string(&w, "name", run->profile->name);
    mp_json_string(&w, "description", run->profile->description);
    mp_json_int(&w, "torch_version", run->profile->torch_version);
    mp_json_end_object(&w);
    mp_json_object(&w, "gpu");
    mp_json_string(&w, "name", run->gpu->name);
    mp_json_int(&w, "compute_capability", run->gpu->compute_capability);
    mp_json_uint(&w, "total_bytes", run->gpu->total_bytes.value);
    mp_json_uint(&w, "unavailable_bytes", run->gpu->unavailable_bytes[e->kernels].value);
    mp_json_uint(&w, "context_bytes", run->gpu->context_bytes[e->kernels].value);
    mp_json_end_object(&w);
    mp_json_int(&w, "steps", steps);
    write_predicted(&w, e);
    mp_json_end_object(&w);
    mp_strbuf_addch(out, '\n');
}

static enum memplan_status run_job(const struct mp_run *run, int64_t steps,
                                   struct mp_program *program, struct memplan_error *err)
{
    struct mp_job job;
    mp_program_init(program);
    program->keep_ops = true;
    enum memplan_status status = mp_job_open(&job, run, program, err);
    if (!status)
        status = mp_job_build(&job);
    for (int64_t i = 0; i < steps && !status; i++)
        status = mp_job_step(&job);
    mp_job_close(&job);
    if (status)
        mp_program_release(program);
    return status;
}

enum memplan_status mp_report_program(const struct mp_run *run, struct mp_strbuf *out,
                                      struct memplan_error *err)
{
    struct mp_evaluation e;
    struct mp_program program;
    enum memplan_status status = mp_evaluate(run, NULL, &e, err);
    if (status)
        return status;
    const int64_t steps = run->iterations ? run->iterations : e.steps;
    status = run_job(run, steps, &program, err);
    if (!status) {
        write_header(run, &e, steps, out);
        write_events(&program, out);
        mp_program_release(&program);
        if (out->failed)
            status =
                mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing the program");
    }
    mp_evaluation_release(&e);
    return status;
}

/* ---- operations ---- */

static const struct mp_op_tensor *operand(const struct mp_program *p, const struct mp_op_record *op,
                                          uint32_t first, uint32_t n, uint32_t i)
{
    const struct mp_op_tensor *t = i < n ? &p->op_tensors[op->first_tensor + first + i] : NULL;
    return t && t->present ? t : NULL;
}

const struct mp_op_tensor *mp_op_input(const struct mp_program *p, const struct mp_op_record *op,
                                       uint32_t i)
{
    return operand(p, op, 0, op->n_inputs, i);
}

const struct mp_op_tensor *mp_op_output(const struct mp_program *p, const struct mp_op_record *op,
                                        uint32_t i)
{
    return operand(p, op, op->n_inputs, op->n_outputs, i);
}

const struct mp_attribute *mp_op_attribute(const struct mp_program *p,
                                           const struct mp_op_record *op, const char *key)
{
    for (uint32_t i = 0; i < op->n_attributes; i++)
        if (strcmp(p->op_attributes[op->first_attribute + i].key, key) == 0)
            return &p->op_attributes[op->first_attribute + i];
    return NULL;
}

double mp_op_number(const struct mp_program *p, const struct mp_op_record *op, const char *key,
                    double fallback)
{
    const struct mp_attribute *a = mp_op_attribute(p, op, key);
    if (a && a->kind == MP_ATTRIBUTE_NUMBER)
        return a->as.number;
    return a && a->kind != MP_ATTRIBUTE_TEXT ? (double)a->as.integer : fallback;
}

int64_t mp_op_integer(const struct mp_program *p, const struct mp_op_record *op, const char *key,
                      int64_t fallback)
{
    const struct mp_attribute *a = mp_op_attribute(p, op, key);
    return a && (a->kind == MP_ATTRIBUTE_INT || a->kind == MP_ATTRIBUTE_BOOL) ? a->as.integer
                                                                              : fallback;
}

const char *mp_op_text(const struct mp_program *p, const struct mp_op_record *op, const char *key,
                       const char *fallback)
{
    const struct mp_attribute *a = mp_op_attribute(p, op, key);
    return a && a->kind == MP_ATTRIBUTE_TEXT ? a->as.text : fallback;
}

/* ---- reading ---- */

struct texts {
    const char **items; /* distinct names so far; malloc'ed */
    size_t n, capacity;
};

struct reading {
    struct mp_program_file *file;
    struct texts texts;
    struct mp_arena line; /* of the value at hand */
    uint8_t *live;        /* by storage id; malloc'ed */
    uint32_t cap_storages;
    const char *origin;
    uint64_t number; /* of the line */
    struct memplan_error *err;
};

static enum memplan_status complain(struct reading *r, const char *text)
{
    return mp_error_set(r->err, MEMPLAN_STATUS_INPUT, "%s:%llu: %s", r->origin,
                        (unsigned long long)r->number, text);
}

static enum memplan_status no_memory(struct reading *r)
{
    return mp_error_set(r->err, MEMPLAN_STATUS_NOMEM, "%s: out of memory while reading the program",
                        r->origin);
}

/* One copy of each name. */
static const char *intern(struct reading *r, const char *text)
{
    for (size_t i = r->texts.n; i-- > 0;)
        if (strcmp(r->texts.items[i], text) == 0)
            return r->texts.items[i];
    if (r->texts.n == r->texts.capacity) {
        const size_t wanted = r->texts.capacity ? 2 * r->texts.capacity : 64;
        const char **items = mp_realloc((void *)(uintptr_t)r->texts.items, wanted * sizeof *items);
        if (!items)
            return NULL;
        r->texts.items = items;
        r->texts.capacity = wanted;
    }
    const char *copy = mp_arena_strdup(&r->file->arena, text);
    if (copy)
        r->texts.items[r->texts.n++] = copy;
    return copy;
}

/* Integer member in [0, most]; absent: false. */
static bool member(const struct mp_value *object, const char *key, uint64_t most, uint64_t *out)
{
    const struct mp_value *v = mp_value_get(object, key);
    if (!v || v->kind != MP_INT || v->as.integer < 0 || (uint64_t)v->as.integer > most)
        return false;
    *out = (uint64_t)v->as.integer;
    return true;
}

static bool is_live(const struct reading *r, uint64_t id)
{
    return id && id <= r->file->program.n_allocs && r->live[id];
}

static struct mp_event *add_event(struct reading *r, enum mp_event_kind kind, uint32_t id)
{
    struct mp_program *p = &r->file->program;
    if (p->n_events == p->cap_events) {
        const uint32_t wanted = p->cap_events ? 2 * p->cap_events : 4096;
        struct mp_event *events = mp_realloc(p->events, wanted * sizeof *events);
        if (!events)
            return NULL;
        p->events = events;
        p->cap_events = wanted;
    }
    struct mp_event *e = &p->events[p->n_events++];
    *e = (struct mp_event){.kind = (uint8_t)kind, .layer = -1, .id = id, .op = ""};
    return e;
}

static bool reserve_storages(struct reading *r)
{
    struct mp_program_file *f = r->file;
    if (f->program.n_allocs + 1 < r->cap_storages)
        return true;
    const uint32_t wanted = r->cap_storages ? 2 * r->cap_storages : 4096;
    uint64_t *bytes = mp_arena_calloc(&f->arena, wanted, sizeof *bytes);
    uint8_t *live = bytes ? mp_realloc(r->live, wanted) : NULL;
    if (!live)
        return false;
    if (f->bytes)
        memcpy(bytes, f->bytes, r->cap_storages * sizeof *bytes);
    f->bytes = bytes;
    r->live = live;
    r->cap_storages = wanted;
    return true;
}

static uint8_t category_of(const struct mp_value *line)
{
    const struct mp_value *v = mp_value_get(line, "category");
    for (int i = 0; v && v->kind == MP_STRING && i < MP_CATEGORY_COUNT; i++)
        if (strcmp(v->as.string.text, mp_category_text((enum mp_category)i)) == 0)
            return (uint8_t)i;
    return MP_CATEGORY_TEMPORARY;
}

static enum memplan_status read_alloc(struct reading *r, const struct mp_value *line)
{
    struct mp_program *p = &r->file->program;
    uint64_t id, bytes, stream;
    if (!member(line, "alloc", UINT32_MAX - 1, &id) || id != (uint64_t)p->n_allocs + 1)
        return complain(r, "alloc: storages are numbered 1, 2, 3, in order");
    if (!member(line, "bytes", UINT64_C(1) << 60, &bytes) || bytes == 0)
        return complain(r, "bytes: an integer from 1 to 2^60 is needed");
    if (!member(line, "stream", UINT8_MAX, &stream))
        return complain(r, "stream: an integer from 0 to 255 is needed");
    if (__builtin_add_overflow(p->live_bytes, bytes, &p->live_bytes))
        return complain(r, "bytes: the live storages are more than 2^64 bytes");
    struct mp_event *e = reserve_storages(r) ? add_event(r, MP_EVENT_ALLOC, (uint32_t)id) : NULL;
    if (!e)
        return no_memory(r);
    e->bytes = bytes;
    e->stream = (uint8_t)stream;
    e->category = category_of(line);
    r->file->bytes[id] = bytes;
    r->live[id] = 1;
    p->n_allocs = (uint32_t)id;
    p->peak_since_mark_bytes = MP_MAX(p->peak_since_mark_bytes, p->live_bytes);
    p->peak_bytes = MP_MAX(p->peak_bytes, p->live_bytes);
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status read_free(struct reading *r, const struct mp_value *line)
{
    uint64_t id;
    if (!member(line, "free", UINT32_MAX, &id) || !is_live(r, id))
        return complain(r, "free: not a live storage");
    struct mp_event *e = add_event(r, MP_EVENT_FREE, (uint32_t)id);
    if (!e)
        return no_memory(r);
    e->bytes = r->file->bytes[id];
    r->live[id] = 0;
    r->file->program.live_bytes -= e->bytes;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status read_mark(struct reading *r, const struct mp_value *name)
{
    struct mp_program *p = &r->file->program;
    struct mp_phase *phase;
    if (name->kind != MP_STRING || name->as.string.length >= sizeof phase->name)
        return complain(r, "mark: the name of a phase is needed, at most 27 bytes");
    if (p->n_phases == p->cap_phases) {
        const uint32_t wanted = p->cap_phases ? 2 * p->cap_phases : 32;
        struct mp_phase *phases = mp_realloc(p->phases, wanted * sizeof *phases);
        if (!phases)
            return no_memory(r);
        p->phases = phases;
        p->cap_phases = wanted;
    }
    phase = &p->phases[p->n_phases];
    *phase = (struct mp_phase){.event = p->n_events,
                               .requested_bytes = p->live_bytes,
                               .requested_peak_bytes = p->peak_since_mark_bytes};
    memcpy(phase->name, name->as.string.text, name->as.string.length);
    p->peak_since_mark_bytes = p->live_bytes;
    return add_event(r, MP_EVENT_MARK, p->n_phases++) ? MEMPLAN_STATUS_OK : no_memory(r);
}

static enum memplan_status read_record_stream(struct reading *r, const struct mp_value *line)
{
    uint64_t id, stream;
    if (!member(line, "record_stream", UINT32_MAX, &id) || !is_live(r, id) ||
        !member(line, "stream", UINT8_MAX, &stream))
        return complain(r, "record_stream: a live storage and a stream are needed");
    struct mp_event *e = add_event(r, MP_EVENT_RECORD_STREAM, (uint32_t)id);
    if (!e)
        return no_memory(r);
    e->stream = (uint8_t)stream;
    return MEMPLAN_STATUS_OK;
}

/* ---- one operation ---- */

static int read_dtype(const struct mp_value *v)
{
    for (int i = MP_BOOL; v && v->kind == MP_STRING && i <= MP_F32; i++)
        if (strcmp(v->as.string.text, mp_dtype_name((enum mp_dtype)i)) == 0)
            return i;
    return -1;
}

static bool read_list(const struct mp_value *list, int64_t most, int64_t *out, int *n)
{
    if (!list || list->kind != MP_ARRAY || list->as.array.length > MP_MAX_DIMS)
        return false;
    *n = (int)list->as.array.length;
    for (int i = 0; i < *n; i++) {
        const struct mp_value *v = list->as.array.items[i];
        if (v->kind != MP_INT || v->as.integer < 0 || v->as.integer > most)
            return false;
        out[i] = v->as.integer;
    }
    return true;
}

/* Does the last element end inside the storage? All factors are below 2^60. */
static bool stays_inside(const struct mp_op_tensor *t, uint64_t storage_bytes)
{
    int64_t last = t->offset;
    for (int i = 0; i < t->shape.n; i++) {
        int64_t span;
        if (t->shape.d[i] == 0)
            return true;
        if (__builtin_mul_overflow(t->shape.d[i] - 1, t->stride[i], &span) ||
            __builtin_add_overflow(last, span, &last))
            return false;
    }
    return (uint64_t)last < storage_bytes / mp_dtype_bytes((enum mp_dtype)t->dtype);
}

static enum memplan_status read_tensor(struct reading *r, const struct mp_value *v,
                                       struct mp_op_tensor *t)
{
    const int64_t most = INT64_C(1) << 60;
    const int dtype = read_dtype(mp_value_get(v, "dtype"));
    uint64_t storage, offset;
    int n_strides = 0;
    *t = (struct mp_op_tensor){.present = v->kind != MP_NULL};
    if (!t->present)
        return MEMPLAN_STATUS_OK;
    if (dtype < 0)
        return complain(r, "dtype: a tensor's element type is missing or unknown");
    if (!member(v, "storage", UINT32_MAX, &storage) || (storage && !is_live(r, storage)))
        return complain(r, "storage: a tensor lies in a storage that is not live");
    if (!member(v, "offset", (uint64_t)most, &offset) ||
        !read_list(mp_value_get(v, "shape"), most, t->shape.d, &t->shape.n) ||
        !read_list(mp_value_get(v, "strides"), most, t->stride, &n_strides) ||
        n_strides != t->shape.n)
        return complain(
            r,
            "a tensor needs offset, shape and strides: integers from 0 on, at most 5 dimensions");
    t->storage = (uint32_t)storage;
    t->dtype = (uint8_t)dtype;
    t->offset = (int64_t)offset;
    if (storage && !stays_inside(t, r->file->bytes[storage]))
        return complain(r, "a tensor reaches beyond its storage");
    return MEMPLAN_STATUS_OK;
}

/* Room for one more entry of a doubling array. */
static bool grow(void **array, uint32_t *capacity, uint32_t n, size_t size)
{
    if (n < *capacity)
        return true;
    const uint32_t wanted = *capacity ? 2 * *capacity : 1024;
    void *bigger = mp_realloc(*array, wanted * size);
    if (!bigger)
        return false;
    *array = bigger;
    *capacity = wanted;
    return true;
}

static enum memplan_status read_tensors(struct reading *r, const struct mp_value *list,
                                        uint32_t *count)
{
    struct mp_program *p = &r->file->program;
    if (!list || list->kind != MP_ARRAY)
        return complain(r, "inputs and outputs: lists of tensors are needed");
    for (size_t i = 0; i < list->as.array.length; i++) {
        void *array = p->op_tensors;
        if (!grow(&array, &p->cap_op_tensors, p->n_op_tensors, sizeof *p->op_tensors))
            return no_memory(r);
        p->op_tensors = array;
        const enum memplan_status status =
            read_tensor(r, list->as.array.items[i], &p->op_tensors[p->n_op_tensors]);
        if (status)
            return status;
        p->n_op_tensors++;
        ++*count;
    }
    return MEMPLAN_STATUS_OK;
}

static bool to_attribute(struct reading *r, const char *key, const struct mp_value *v,
                         struct mp_attribute *a)
{
    a->key = intern(r, key);
    switch (v->kind) {
    case MP_INT:
        a->kind = MP_ATTRIBUTE_INT;
        a->as.integer = v->as.integer;
        break;
    case MP_DOUBLE:
        a->kind = MP_ATTRIBUTE_NUMBER;
        a->as.number = v->as.number;
        break;
    case MP_BOOLEAN:
        a->kind = MP_ATTRIBUTE_BOOL;
        a->as.integer = v->as.boolean;
        break;
    case MP_STRING:
        a->kind = MP_ATTRIBUTE_TEXT;
        a->as.text = intern(r, v->as.string.text);
        break;
    case MP_NULL:
    case MP_ARRAY:
    case MP_OBJECT:
        a->kind = MP_ATTRIBUTE_TEXT;
        a->as.text = "";
        break;
    }
    return a->key && (a->kind != MP_ATTRIBUTE_TEXT || a->as.text);
}

static bool add_attribute(struct reading *r, struct mp_op_record *op, const char *key,
                          const struct mp_value *value)
{
    struct mp_program *p = &r->file->program;
    void *array = p->op_attributes;
    if (!grow(&array, &p->cap_op_attributes, p->n_op_attributes, sizeof *p->op_attributes))
        return false;
    p->op_attributes = array;
    op->n_attributes++;
    return to_attribute(r, key, value, &p->op_attributes[p->n_op_attributes++]);
}

static enum memplan_status read_op(struct reading *r, const struct mp_value *line)
{
    struct mp_program *p = &r->file->program;
    const struct mp_value *name = mp_value_get(line, "op"),
                          *attributes = mp_value_get(line, "attributes");
    const struct mp_value *parameter = mp_value_get(line, "name");
    uint64_t layer;
    if (name->kind != MP_STRING)
        return complain(r, "op: a name is needed");
    void *array = p->ops;
    if (!grow(&array, &p->cap_ops, p->n_ops, sizeof *p->ops))
        return no_memory(r);
    p->ops = array;
    struct mp_op_record *op = &p->ops[p->n_ops];
    *op = (struct mp_op_record){.op = intern(r, name->as.string.text),
                                .layer = -1,
                                .first_tensor = p->n_op_tensors,
                                .first_attribute = p->n_op_attributes};
    if (!op->op)
        return no_memory(r);
    if (member(line, "layer", INT16_MAX, &layer))
        op->layer = (int16_t)layer;
    enum memplan_status status = read_tensors(r, mp_value_get(line, "inputs"), &op->n_inputs);
    if (!status)
        status = read_tensors(r, mp_value_get(line, "outputs"), &op->n_outputs);
    if (status)
        return status;
    bool room = !parameter || add_attribute(r, op, "name", parameter);
    for (size_t i = 0;
         room && attributes && attributes->kind == MP_OBJECT && i < attributes->as.object.length;
         i++)
        room = add_attribute(r, op, attributes->as.object.members[i].key,
                             attributes->as.object.members[i].value);
    return room && add_event(r, MP_EVENT_OP, p->n_ops++) ? MEMPLAN_STATUS_OK : no_memory(r);
}

/* ---- lines ---- */

static enum memplan_status read_header(struct reading *r, const char *text, size_t length)
{
    uint64_t version;
    r->file->header = mp_json_parse(&r->file->arena, r->origin, text, length, r->err);
    if (!r->file->header)
        return r->err->status;
    if (!member(r->file->header, "schema_version", INT64_MAX, &version))
        return complain(r, "schema_version: missing; this is no program file");
    if (version != MP_PROGRAM_SCHEMA_VERSION)
        return complain(
            r, "schema_version: written by another version of memplan; write the program again");
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status read_line(struct reading *r, const char *text, size_t length)
{
    const struct mp_arena_mark mark = mp_arena_mark(&r->line);
    const struct mp_value *line = mp_json_parse(&r->line, r->origin, text, length, r->err), *value;
    enum memplan_status status;
    if (!line) {
        mp_error_prefix(r->err, "line %llu", (unsigned long long)r->number);
        return r->err->status;
    }
    if (mp_value_get(line, "alloc"))
        status = read_alloc(r, line);
    else if (mp_value_get(line, "free"))
        status = read_free(r, line);
    else if (mp_value_get(line, "op"))
        status = read_op(r, line);
    else if ((value = mp_value_get(line, "mark")) != NULL)
        status = read_mark(r, value);
    else if (mp_value_get(line, "record_stream"))
        status = read_record_stream(r, line);
    else if (mp_value_get(line, "empty_cache"))
        status = add_event(r, MP_EVENT_EMPTY_CACHE, 0) ? MEMPLAN_STATUS_OK : no_memory(r);
    else
        status =
            complain(r, "no event: op, alloc, free, mark, empty_cache or record_stream is needed");
    mp_arena_rewind(&r->line, mark);
    return status;
}

enum memplan_status mp_program_file_parse(struct mp_program_file *file, const char *origin,
                                          const char *text, size_t length,
                                          struct memplan_error *err)
{
    struct reading r = {.file = file, .origin = origin, .err = err};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    *file = (struct mp_program_file){.header = NULL};
    mp_arena_init(&file->arena);
    mp_arena_init(&r.line);
    for (size_t at = 0; at < length && !status;) {
        const char *end = memchr(text + at, '\n', length - at);
        const size_t n = end ? (size_t)(end - (text + at)) : length - at;
        r.number++;
        if (n > 0)
            status = file->header ? read_line(&r, text + at, n) : read_header(&r, text + at, n);
        at += n + 1;
    }
    if (!status && !file->header)
        status = mp_error_set(err, MEMPLAN_STATUS_INPUT,
                              "%s: empty; `memplan fit --program FILE` writes one", origin);
    mp_arena_release(&r.line);
    free((void *)(uintptr_t)r.texts.items);
    free(r.live);
    if (status)
        mp_program_file_release(file);
    return status;
}

enum memplan_status mp_program_file_read(struct mp_program_file *file, const char *path,
                                         struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    enum memplan_status status = mp_file_read(path, UINT64_C(4) * MP_GIB, &text, err);
    if (!status)
        status = mp_program_file_parse(file, path, mp_strbuf_text(&text), text.len, err);
    mp_strbuf_release(&text);
    return status;
}

void mp_program_file_release(struct mp_program_file *file)
{
    mp_program_release(&file->program);
    mp_arena_release(&file->arena);
    *file = (struct mp_program_file){.header = NULL};
}
