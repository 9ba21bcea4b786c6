/* SPDX-License-Identifier: MIT */
/* Recording what a job asks for, and replaying it: mp_evaluate() without the model. */
#include "plan/requests.h"

#include "train/job.h"

/* ---- memory ---- */

void mp_requests_release(struct mp_requests *s)
{
    free(s->requests);
    *s = (struct mp_requests){0};
}

bool mp_requests_reserve(struct mp_requests *s, uint32_t n)
{
    if (n <= s->cap_requests)
        return true;
    const uint32_t wanted = n + n / 2;
    struct mp_request *const requests = mp_realloc(s->requests, wanted * sizeof *requests);
    if (!requests)
        return false;
    s->requests = requests;
    s->cap_requests = wanted;
    return true;
}

void mp_replayer_release(struct mp_replayer *r)
{
    free(r->blocks);
    *r = (struct mp_replayer){0};
}

/* ---- recording ---- */

#define MAX_ITERATIONS 64 /* more are left to mp_evaluate(): every step has ids of its own */

bool mp_requests_applies(const struct mp_run *run)
{
    return run->parallel == MP_PARALLEL_NONE && mp_job_steady_from(run) < INT64_MAX && run->iterations <= MAX_ITERATIONS;
}

/* Ids up to here exist before step number `step`; those of the build before any. */
static uint32_t first_id_of(const struct mp_requests *s, int step)
{
    return step > 0 ? s->steps[step - 1].end_id : s->build_end_id;
}

/*
 * The id that a request of the last recorded step has n steps later. What the step made moves on by a step; what the step before
 * made, as outputs that live on, is made by the step before then, at the same place.
 */
static uint32_t later_id(uint32_t id, uint32_t before, uint32_t first, uint32_t n_ids, uint32_t n)
{
    if (n == 0 || id <= before)
        return id;
    return id > first ? id + n_ids * n : first + n_ids * (n - 1) + (id - before);
}

/* Order of events and ids, from event number `first` on. */
static uint64_t hash_shape(uint64_t hash, const struct mp_program *p, uint32_t first)
{
    for (uint32_t i = first; i < p->n_events; i++) {
        const struct mp_event *const e = &p->events[i];
        hash = (hash ^ ((uint64_t)e->id << 32 | (uint64_t)e->kind << 16 | (uint16_t)e->unit)) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 31;
    }
    return hash;
}

static const struct mp_known_shape *find_shape(const struct mp_known_steps *known, uint64_t hash, int n_steps)
{
    for (int i = 0; known && i < known->n; i++)
        if (known->shapes[i].hash == hash && known->shapes[i].n_steps == n_steps)
            return &known->shapes[i];
    return NULL;
}

/* How step b, which repeats a, can be written down from a; made: ids up to here are older than the step before a. */
static void learn_shape(struct mp_known_steps *known, uint64_t hash, int n_steps, const struct mp_program *p, const struct mp_step_events *a,
                        const struct mp_step_events *b, uint32_t made)
{
    struct mp_known_shape shape = {.hash = hash, .n_steps = n_steps};
    for (uint32_t i = 0; i < a->end - a->first; i++) {
        const struct mp_event *const x = &p->events[a->first + i], *const y = &p->events[b->first + i];
        if (x->kind == MP_EVENT_MARK || x->id > a->first_id || x->id == y->id)
            continue; /* the steps are known to be alike: what a makes, b makes a step later */
        if (x->id <= made || y->id <= a->first_id || shape.n_outputs == MP_KNOWN_OUTPUTS)
            return; /* not simply */
        shape.outputs[shape.n_outputs].from = x->id - made;
        shape.outputs[shape.n_outputs++].to = y->id - a->first_id;
    }
    known->shapes[known->next] = shape;
    known->next = (known->next + 1) % MP_KNOWN_SHAPES;
    known->n = MP_MIN(known->n + 1, MP_KNOWN_SHAPES);
}

static uint32_t next_id(const struct mp_known_shape *shape, const struct mp_step_events *last, uint32_t made, uint32_t id)
{
    if (id > last->first_id)
        return id + (last->end_id - last->first_id);
    for (int i = 0; i < shape->n_outputs; i++)
        if (made + shape->outputs[i].from == id)
            return last->first_id + shape->outputs[i].to;
    return id;
}

/* Write the last step down once more, as the one after it. */
static enum memplan_status write_step(struct mp_program *p, const struct mp_known_shape *shape, const struct mp_step_events *last, uint32_t made,
                                      struct memplan_error *err)
{
    const uint32_t n = last->end - last->first;
    if (p->n_events + n > p->cap_events) {
        struct mp_event *const events = mp_realloc(p->events, (p->n_events + n) * sizeof *events);
        if (!events)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while recording requests");
        p->events = events;
        p->cap_events = p->n_events + n;
    }
    for (uint32_t i = last->first; i < last->end; i++) {
        struct mp_event *const e = &p->events[p->n_events++];
        *e = p->events[i];
        if (e->kind != MP_EVENT_MARK)
            e->id = next_id(shape, last, made, e->id);
    }
    p->n_allocs += last->end_id - last->first_id;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status run_steps(struct mp_job *job, struct mp_program *p, struct mp_requests *s, uint32_t *ends, struct memplan_error *err)
{
    const int64_t wanted = job->run->iterations ? MP_MIN(job->run->iterations, MP_MAX_STEPS) : MP_MAX_STEPS;
    const int64_t steady_from = mp_job_steady_from(job->run);
    struct mp_step_events before = {0}, now = {0};
    uint64_t hash = s->known ? hash_shape(0, p, 0) : 0;
    while (s->n_steps < wanted && !s->steady) {
        const struct mp_known_shape *const shape = find_shape(s->known, hash, s->n_steps + 1);
        const uint32_t made = first_id_of(s, s->n_steps - 2);
        before = now;
        now.first = p->n_events;
        now.first_id = p->n_allocs;
        const enum memplan_status status = shape ? write_step(p, shape, &before, made, err) : mp_job_step(job);
        if (status)
            return status;
        now.end = p->n_events;
        now.end_id = p->n_allocs;
        ends[s->n_steps] = now.end;
        s->steps[s->n_steps++].end_id = now.end_id;
        s->steady = shape || (s->n_steps > steady_from && mp_steps_ask_the_same(p, &before, &now));
        if (s->steady && !shape && s->known)
            learn_shape(s->known, hash, s->n_steps, p, &before, &now, made);
        if (s->known)
            hash = hash_shape(hash, p, now.first);
    }
    return MEMPLAN_STATUS_OK;
}

static bool is_request(const struct mp_event *e)
{
    return e->kind == MP_EVENT_ALLOC || e->kind == MP_EVENT_FREE || e->kind == MP_EVENT_EMPTY_CACHE || e->kind == MP_EVENT_DRIVER;
}

/* Copy what the allocator sees, up to the end of the last step; ends[]: event numbers. */
static void pack(struct mp_requests *s, const struct mp_program *p, uint32_t build_end, const uint32_t *ends)
{
    uint32_t event = 0;
    s->n_requests = 0;
    for (int part = 0; part <= s->n_steps; part++) {
        for (const uint32_t end = part ? ends[part - 1] : build_end; event < end; event++) {
            const struct mp_event *const e = &p->events[event];
            if (is_request(e))
                s->requests[s->n_requests++] = (struct mp_request){e->bytes, e->id, e->kind, e->stream};
        }
        *(part ? &s->steps[part - 1].end : &s->build_end) = s->n_requests;
    }
    s->peak_bytes = MP_MAX(p->peak_bytes, p->peak_since_mark_bytes);
}

enum memplan_status mp_requests_record_program(struct mp_requests *s, const struct mp_run *run, struct mp_program *p, struct memplan_error *err)
{
    struct mp_job job;
    uint32_t ends[MP_MAX_STEPS], build_end = 0;
    s->n_steps = 0;
    s->steady = false;
    enum memplan_status status = mp_job_open(&job, run, p, err);
    if (!status)
        status = mp_job_build(&job);
    if (!status) {
        build_end = p->n_events;
        s->build_end_id = p->n_allocs;
        status = run_steps(&job, p, s, ends, err);
    }
    if (!status && !mp_requests_reserve(s, p->n_events))
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while recording requests");
    if (!status)
        pack(s, p, build_end, ends);
    s->kernels = job.rt.kernels;
    mp_job_close(&job);
    return status;
}

enum memplan_status mp_requests_record(struct mp_requests *s, const struct mp_run *run, struct memplan_error *err)
{
    struct mp_program program;
    mp_program_init(&program);
    const enum memplan_status status = mp_requests_record_program(s, run, &program, err);
    mp_program_release(&program);
    return status;
}

static bool same_requests(const struct mp_request *a, const struct mp_request *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (a[i].bytes != b[i].bytes || a[i].id != b[i].id || a[i].kind != b[i].kind || a[i].stream != b[i].stream)
            return false;
    return true;
}

bool mp_requests_equal(const struct mp_requests *a, const struct mp_requests *b)
{
    if (a->n_requests != b->n_requests || a->peak_bytes != b->peak_bytes || a->n_steps != b->n_steps || a->build_end != b->build_end ||
        a->kernels != b->kernels || a->steady != b->steady)
        return false;
    for (int i = 0; i < a->n_steps; i++)
        if (a->steps[i].end != b->steps[i].end)
            return false;
    return same_requests(a->requests, b->requests, a->n_requests);
}

/* ---- replaying ---- */

struct replay {
    const struct mp_requests *s;
    struct mp_allocator *allocator;
    struct mp_block **blocks; /* by id */
    bool oom;
};

static enum mp_kernel_set kernel_set(unsigned kernels) { return kernels >> MP_KERNEL_CUDNN & 1u ? MP_KERNELS_FUSED : MP_KERNELS_PLAIN; }

static uint64_t card_bytes(const struct mp_run *run, enum mp_kernel_set set)
{
    const uint64_t total = run->gpu->total_bytes.value, taken = run->gpu->unavailable_bytes[set].value + run->used_bytes;
    return total > taken ? total - taken : 0;
}

uint64_t mp_requests_available(const struct mp_run *run, unsigned kernels)
{
    const uint64_t bytes = card_bytes(run, kernel_set(kernels));
    return run->allocator_limit_bytes ? MP_MIN(bytes, run->allocator_limit_bytes) : bytes;
}

/* A stretch of requests as those of a later step; see later_id(). */
struct stretch {
    uint32_t first, end;             /* requests */
    uint32_t before, first_id, n_ids, later;
};

/* False: out of memory of the card, or of the host. */
static bool replay_part(struct replay *r, const struct stretch *part)
{
    for (const struct mp_request *q = &r->s->requests[part->first], *const stop = &r->s->requests[part->end]; q < stop; q++) {
        const uint32_t id = q->kind == MP_EVENT_DRIVER ? 0 : later_id(q->id, part->before, part->first_id, part->n_ids, part->later);
        if (q->kind == MP_EVENT_ALLOC) {
            r->blocks[id] = mp_allocator_malloc(r->allocator, q->bytes, q->stream, id);
            if (!r->blocks[id])
                return false;
        } else if (q->kind == MP_EVENT_FREE) {
            mp_allocator_release(r->allocator, r->blocks[id]);
        } else if (q->kind == MP_EVENT_DRIVER) {
            mp_allocator_driver_event(r->allocator, q->id, q->bytes);
        } else {
            mp_allocator_empty_cache(r->allocator);
        }
    }
    return !mp_allocator_failed(r->allocator);
}

/* Steps as mp_evaluate() runs them: until the allocator's state repeats, or as many as the run has. */
static void replay_steps(struct replay *r, const struct mp_run *run)
{
    const struct mp_requests *const s = r->s;
    const int64_t wanted = run->iterations ? run->iterations : MP_MAX_STEPS, steady_from = mp_job_steady_from(run);
    enum { MAX_REMEMBERED = 64 };
    struct mp_step_state states[MAX_REMEMBERED];
    int64_t n_states = 0;
    uint32_t step_start = s->build_end_id;
    for (int64_t n = 0; n < wanted; n++) {
        const int recorded = (int)MP_MIN(n, (int64_t)s->n_steps - 1);
        struct stretch part = {.first = recorded ? s->steps[recorded - 1].end : s->build_end,
                               .end = s->steps[recorded].end,
                               .before = first_id_of(s, MP_MAX(recorded - 1, 0)), /* the build goes on living */
                               .first_id = first_id_of(s, recorded),
                               .later = (uint32_t)(n - recorded)};
        part.n_ids = s->steps[recorded].end_id - part.first_id;
        if (!replay_part(r, &part)) {
            r->oom = true;
            return;
        }
        if (n + 1 > steady_from && n_states < MAX_REMEMBERED) {
            states[n_states++] = (struct mp_step_state){mp_allocator_state_hash(r->allocator, mp_step_block_key, &step_start), part.n_ids, part.end - part.first};
            if (mp_step_find_period(states, n_states))
                return;
        }
        step_start += part.n_ids;
    }
}

/* Ids of every step that can be replayed. */
static bool reserve_blocks(struct mp_replayer *r, const struct mp_requests *s, const struct mp_run *run)
{
    const int last = s->n_steps - 1;
    const uint32_t per_step = s->steps[last].end_id - (last ? s->steps[last - 1].end_id : s->build_end_id);
    const int64_t more = MP_MIN(run->iterations ? run->iterations : MP_MAX_STEPS, 64 + MP_MAX_STEPS);
    const uint64_t wanted = s->steps[last].end_id + (uint64_t)per_step * (uint64_t)more + 1;
    if (wanted <= r->cap_blocks)
        return true;
    if (wanted > UINT32_MAX)
        return false;
    struct mp_block **const blocks = mp_realloc(r->blocks, wanted * sizeof(struct mp_block *));
    if (!blocks)
        return false;
    r->blocks = blocks;
    r->cap_blocks = (uint32_t)wanted;
    return true;
}

static void conclude(const struct replay *r, const struct mp_run *run, enum mp_kernel_set set, struct mp_verdict *v)
{
    const struct mp_allocator_stats *const stats = mp_allocator_stats(r->allocator);
    v->fits = !r->oom;
    v->requested_bytes = stats->requested_bytes[MP_STAT_ALL].peak;
    v->allocated_bytes = stats->allocated_bytes[MP_STAT_ALL].peak;
    v->reserved_bytes = stats->reserved_bytes[MP_STAT_ALL].peak;
    v->device_used_bytes = v->reserved_bytes + run->gpu->context_bytes[set].value + run->used_bytes;
    v->device_peak_bytes = mp_allocator_device_bytes(r->allocator);
    v->refused = r->oom || stats->num_alloc_retries > 0 || stats->num_device_free > 0;
}

static enum memplan_status trial(const struct mp_requests *s, const struct mp_run *run, enum mp_kernel_set set, struct mp_block **blocks,
                                 struct mp_verdict *v, struct memplan_error *err)
{
    struct replay r = {.s = s, .blocks = blocks, .allocator = mp_evaluate_allocator_new(run, card_bytes(run, set), err)};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (!r.allocator)
        return err->status;
    r.oom = !replay_part(&r, &(struct stretch){.end = s->build_end});
    if (!r.oom)
        replay_steps(&r, run);
    if (mp_allocator_failed(r.allocator))
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
    else
        conclude(&r, run, set, v);
    mp_allocator_free(r.allocator);
    return status;
}

/* As mp_evaluate() does: first with the kernels that a run of this kind loads as a rule, then with those that it did. */
enum memplan_status mp_requests_replay(const struct mp_requests *s, const struct mp_run *run, struct mp_replayer *r, struct mp_verdict *v,
                                       struct memplan_error *err)
{
    if (!reserve_blocks(r, s, run))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
    const enum mp_kernel_set expected = mp_evaluate_expected_kernels(run), actual = kernel_set(s->kernels);
    const enum memplan_status status = trial(s, run, expected, r->blocks, v, err);
    return status || !v->fits || actual == expected ? status : trial(s, run, actual, r->blocks, v, err);
}
