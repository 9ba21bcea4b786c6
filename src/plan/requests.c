/* SPDX-License-Identifier: MIT */
/* Recording what a job asks for, and replaying it: mp_evaluate() without the model. */
#include "plan/requests.h"

#include "train/job.h"

/* ---- memory ---- */

void mp_requests_release(struct mp_requests *s)
{
    free(s->requests);
    mp_card_log_release(&s->card);
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

bool mp_requests_suffice(const struct mp_requests *s, const struct mp_run *run)
{
    return s->steady || (run->iterations ? run->iterations : MP_MAX_STEPS) <= s->n_steps;
}

/* Ids up to here exist before step number `step`; those of the build before any. */
static uint32_t first_id_of(const struct mp_requests *s, int step)
{
    return step > 0 ? s->steps[step - 1].end_id : s->build_end_id;
}

/*
 * The id that a request of the last recorded step has n steps later (before: UINT32_MAX for n = 0). What the step made moves on by a
 * step; what the step before made, as outputs that live on, is made by the step before then, at the same place.
 */
static uint32_t later_id(uint32_t id, uint32_t before, uint32_t first, uint32_t n_ids, uint32_t n)
{
    if (id <= before)
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
static void learn_shape(struct mp_known_steps *known, uint64_t hash, int n_steps,
                        const struct mp_program *p, const struct mp_step_events *a,
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
static enum memplan_status write_step(struct mp_program *p, const struct mp_known_shape *shape,
                                      const struct mp_step_events *last, uint32_t made,
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

static enum memplan_status run_steps(struct mp_job *job, struct mp_program *p,
                                     struct mp_requests *s, uint32_t *ends,
                                     struct memplan_error *err)
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
                s->requests[s->n_requests++] = (struct mp_request){e->bytes, e->id, e->kind, e->stream, e->tag};
        }
        *(part ? &s->steps[part - 1].end : &s->build_end) = s->n_requests;
    }
    s->peak_bytes = MP_MAX(p->peak_bytes, p->peak_since_mark_bytes);
}

enum memplan_status mp_requests_record_program(struct mp_requests *s, const struct mp_run *run,
                                               struct mp_program *p, struct memplan_error *err)
{
    struct mp_job job;
    uint32_t ends[MP_MAX_STEPS], build_end = 0;
    s->n_steps = 0;
    s->steady = false;
    mp_card_log_clear(&s->card, run->gpu);
    enum memplan_status status = mp_job_open(&job, run, p, err);
    job.rt.card.log = &s->card;
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

static bool same_outline(const struct mp_requests *a, const struct mp_requests *b)
{
    if (a->n_requests != b->n_requests || a->n_steps != b->n_steps || a->build_end != b->build_end ||
        a->kernels != b->kernels || a->steady != b->steady)
        return false;
    for (int i = 0; i < a->n_steps; i++)
        if (a->steps[i].end != b->steps[i].end)
            return false;
    return true;
}

bool mp_requests_equal(const struct mp_requests *a, const struct mp_requests *b)
{
    return a->peak_bytes == b->peak_bytes && same_outline(a, b) && same_requests(a->requests, b->requests, a->n_requests);
}

bool mp_requests_equal_but_for_card(const struct mp_requests *a, const struct mp_requests *b)
{
    if (a->card.n != b->card.n || a->card.incomplete || b->card.incomplete || !same_outline(a, b))
        return false;
    for (uint32_t i = 0; i < a->n_requests; i++) {
        const struct mp_request *const x = &a->requests[i], *const y = &b->requests[i];
        if (x->id != y->id || x->kind != y->kind || x->stream != y->stream || x->tag != y->tag)
            return false;
        if (x->tag ? !mp_card_log_asks_alike(&a->card, &b->card, x->tag) : x->bytes != y->bytes)
            return false;
    }
    return true;
}

/* ---- replaying ---- */

struct replay {
    const struct mp_requests *s;
    struct mp_allocator *allocator;
    struct mp_block **blocks; /* by id */
    struct mp_companion *companions;
    size_t n_companions;
    bool can_look, may_settle;
    enum { NONE_SETTLED, SMALL_SETTLED, LARGE_SETTLED } settled; /* a pool that is not played on */
    struct mp_peaks seen; /* when the large pool settled */
    struct mp_peaks common, own; /* of buffers that were only looked at: what all companions have alike, and what is this stream's */
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

/* Requests at q that take n scratch buffers and give them back; 0: q does something else. */
static unsigned scratch_at(const struct mp_request *q, const struct mp_request *stop)
{
    if (q + 1 < stop && q[1].kind == MP_EVENT_FREE && q[1].id == q->id)
        return 1;
    return q + 3 < stop && q[1].kind == MP_EVENT_ALLOC && q[2].kind == MP_EVENT_FREE && q[2].id == q[1].id && q[3].kind == MP_EVENT_FREE &&
                   q[3].id == q->id && q[1].stream == q->stream
               ? 2
               : 0;
}

static void leave_behind(struct replay *r)
{
    for (size_t i = 0; i < r->n_companions; i++)
        r->companions[i].went_along = false;
    r->n_companions = 0;
}

static void raise(struct mp_peaks *peaks, uint64_t requested, uint64_t allocated)
{
    peaks->requested_bytes = MP_MAX(peaks->requested_bytes, requested);
    peaks->allocated_bytes = MP_MAX(peaks->allocated_bytes, allocated);
}

static struct mp_peaks peaks_of(const struct mp_allocator *a)
{
    const struct mp_allocator_stats *const stats = mp_allocator_stats(a);
    return (struct mp_peaks){stats->requested_bytes[MP_STAT_ALL].peak, stats->allocated_bytes[MP_STAT_ALL].peak};
}

/* Companions that find blocks where this stream does (or need the same segments) stay. */
static void look_for_companions(struct replay *r, const struct mp_request *q, unsigned n, const struct mp_scratch_look *own)
{
    for (size_t i = 0; i < r->n_companions; i++) {
        struct mp_companion *const c = &r->companions[i];
        struct mp_scratch_look look;
        uint64_t bytes[MP_SCRATCH_MOST];
        if (!c->went_along)
            continue;
        for (unsigned k = 0; k < n; k++)
            bytes[k] = q[k].tag ? c->sizes[q[k].tag - 1] : q[k].bytes;
        mp_allocator_look(r->allocator, q->stream, bytes, n, &look);
        c->went_along = mp_scratch_leaves_the_same(&look, own);
        if (r->settled != LARGE_SETTLED)
            raise(&c->peaks, look.requested_bytes, look.allocated_bytes);
    }
}

/* The n buffers at q without taking them; false: they must be taken. */
static bool look_at_scratch(struct replay *r, const struct mp_request *q, unsigned n)
{
    const uint64_t bytes[MP_SCRATCH_MOST] = {q[0].bytes, q[1].bytes};
    const bool tagged = q[0].tag || (n > 1 && q[1].tag);
    struct mp_scratch_look look;
    mp_allocator_look(r->allocator, q->stream, bytes, n, &look);
    if (tagged)
        look_for_companions(r, q, n, &look);
    if (!mp_scratch_leaves_nothing(&look) && !mp_allocator_leave_segments(r->allocator, &look)) {
        leave_behind(r);
        return false;
    }
    if (r->settled != LARGE_SETTLED)
        raise(tagged ? &r->own : &r->common, look.requested_bytes, look.allocated_bytes);
    return true;
}

/* A request of a pool that has settled. */
static inline bool passes_over(struct replay *r, const struct mp_request *q)
{
    const bool small = q->bytes <= MP_SMALL_POOL_BYTES;
    if (r->settled == NONE_SETTLED || small != (r->settled == SMALL_SETTLED))
        return false;
    if (small)
        mp_allocator_count_small(r->allocator, q->bytes, q->kind == MP_EVENT_ALLOC);
    return true;
}

/* What q takes stays: companions to whom the card gives another size for it go their own way. */
static void part_with_others(struct replay *r, const struct mp_request *q)
{
    for (size_t i = 0; i < r->n_companions; i++) {
        struct mp_companion *const c = &r->companions[i];
        c->went_along = c->went_along && c->sizes[q->tag - 1] == q->bytes;
    }
}

/* Buffers of the card's size are looked at even where their pool has settled: a companion's may belong to the other one. */
static inline bool replay_alloc(struct replay *r, const struct mp_request *q, uint32_t id)
{
    if (q->tag)
        part_with_others(r, q);
    if (q->tag && passes_over(r, q))
        return true;
    r->blocks[id] = mp_allocator_malloc(r->allocator, q->bytes, q->stream, id);
    return r->blocks[id] != NULL;
}

/* False: out of memory of the card, or of the host. */
static bool replay_part(struct replay *r, const struct stretch *part)
{
    for (const struct mp_request *q = &r->s->requests[part->first], *const stop = &r->s->requests[part->end]; q < stop; q++) {
        if (q->kind == MP_EVENT_FREE) {
            if (!passes_over(r, q))
                mp_allocator_release(r->allocator, r->blocks[later_id(q->id, part->before, part->first_id, part->n_ids, part->later)]);
        } else if (q->kind == MP_EVENT_ALLOC) {
            if (!q->tag && passes_over(r, q))
                continue;
            const unsigned n_scratch = r->can_look ? scratch_at(q, stop) : 0;
            if (n_scratch && look_at_scratch(r, q, n_scratch))
                q += 2 * n_scratch - 1;
            else if (!replay_alloc(r, q, later_id(q->id, part->before, part->first_id, part->n_ids, part->later)))
                return false;
        } else if (q->kind == MP_EVENT_DRIVER) {
            if (q->tag)
                part_with_others(r, q);
            mp_allocator_driver_event(r->allocator, q->id, q->bytes);
        } else {
            mp_allocator_empty_cache(r->allocator);
        }
    }
    return !mp_allocator_failed(r->allocator);
}

/* ---- until nothing new happens ---- */

/* States of a pool after steps that ask for the same. */
struct past {
    uint64_t hashes[MP_MAX_STEPS + MAX_ITERATIONS];
    int n;
};

/* Has the pool been in this state before? */
static bool comes_back(struct past *past, uint64_t hash)
{
    for (int i = 0; i < past->n; i++)
        if (past->hashes[i] == hash)
            return true;
    past->hashes[past->n++] = hash;
    return false;
}

static void settle(struct replay *r, bool small)
{
    r->settled = small ? SMALL_SETTLED : LARGE_SETTLED;
    mp_allocator_settle(r->allocator, small);
    if (!small)
        r->seen = peaks_of(r->allocator);
}

/*
 * A step has ended, and those after it ask for the same. True when nothing new can happen. Pools are looked at one by one, where only
 * segments matter to both (allocator_scratch.c); else the whole has to come back.
 */
static bool nothing_new(struct replay *r, struct past *small, struct past *large, uint32_t step_start)
{
    struct mp_allocator *const a = r->allocator;
    if (!r->can_look || !r->may_settle)
        return comes_back(large, mp_allocator_state_hash(a, mp_step_block_key, &step_start));
    const bool small_is_back =
        r->settled == SMALL_SETTLED ||
        comes_back(small, mp_allocator_pool_hash(a, true, mp_step_block_key, &step_start));
    const bool large_is_back =
        r->settled == LARGE_SETTLED ||
        comes_back(large, mp_allocator_pool_hash(a, false, mp_step_block_key, &step_start));
    if (small_is_back != large_is_back && r->settled == NONE_SETTLED)
        settle(r, small_is_back);
    return small_is_back && large_is_back;
}

/* Steps as mp_evaluate() runs them: until the allocator's state repeats, or as many as the run has. */
static void replay_steps(struct replay *r, const struct mp_run *run)
{
    const struct mp_requests *const s = r->s;
    const int64_t wanted = run->iterations ? run->iterations : MP_MAX_STEPS;
    struct past small = {.n = 0}, large = {.n = 0};
    uint32_t step_start = s->build_end_id;
    for (int64_t n = 0; n < wanted; n++) {
        const int recorded = (int)MP_MIN(n, (int64_t)s->n_steps - 1);
        struct stretch part = {
            .first = recorded ? s->steps[recorded - 1].end : s->build_end,
            .end = s->steps[recorded].end,
            .before = n == recorded
                          ? UINT32_MAX
                          : first_id_of(s, MP_MAX(recorded - 1, 0)), /* the build goes on living */
            .first_id = first_id_of(s, recorded),
            .later = (uint32_t)(n - recorded)};
        part.n_ids = s->steps[recorded].end_id - part.first_id;
        if (!replay_part(r, &part)) {
            r->oom = true;
            return;
        }
        if (s->steady && n >= s->n_steps - 2 && nothing_new(r, &small, &large, step_start))
            return;
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
    struct mp_peaks common = r->settled == LARGE_SETTLED ? r->seen : peaks_of(r->allocator), own = r->own;
    raise(&common, r->common.requested_bytes, r->common.allocated_bytes);
    raise(&own, common.requested_bytes, common.allocated_bytes);
    v->fits = !r->oom;
    v->oom = r->oom;
    v->requested_bytes = own.requested_bytes;
    v->allocated_bytes = own.allocated_bytes;
    v->reserved_bytes = stats->reserved_bytes[MP_STAT_ALL].peak;
    v->device_used_bytes = v->reserved_bytes + run->gpu->context_bytes[set].value + run->used_bytes;
    v->device_peak_bytes = mp_allocator_device_bytes(r->allocator);
    v->refused = r->oom || stats->num_alloc_retries > 0 || stats->num_device_free > 0;
    for (size_t i = 0; i < r->n_companions; i++) {
        struct mp_companion *const c = &r->companions[i];
        c->went_along = c->went_along && !v->refused;
        raise(&c->peaks, common.requested_bytes, common.allocated_bytes);
    }
}

static enum memplan_status try_once(const struct mp_requests *s, const struct mp_run *run, enum mp_kernel_set set, struct mp_block **blocks,
                                    struct mp_companion *companions, size_t n, bool may_settle, bool *again, struct mp_verdict *v,
                                    struct memplan_error *err)
{
    struct replay r = {.s = s, .blocks = blocks, .allocator = mp_evaluate_allocator_new(run, card_bytes(run, set), err),
                       .companions = companions, .n_companions = n, .may_settle = may_settle};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (!r.allocator)
        return err->status;
    r.can_look = mp_allocator_can_look(r.allocator);
    for (size_t i = 0; i < n; i++) {
        companions[i].went_along = r.can_look;
        companions[i].peaks = (struct mp_peaks){0, 0};
    }
    r.oom = !replay_part(&r, &(struct stretch){.end = s->build_end, .before = UINT32_MAX});
    if (!r.oom)
        replay_steps(&r, run);
    if (mp_allocator_failed(r.allocator))
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
    else
        conclude(&r, run, set, v);
    mp_allocator_free(r.allocator);
    *again = !status && r.settled && v->refused;
    return status;
}

/* Where the card said no after the small pool had settled, it is told in full. */
static enum memplan_status trial(const struct mp_requests *s, const struct mp_run *run, enum mp_kernel_set set, struct mp_block **blocks,
                                 struct mp_companion *companions, size_t n, struct mp_verdict *v, struct memplan_error *err)
{
    bool again = false;
    const enum memplan_status status = try_once(s, run, set, blocks, companions, n, !run->empty_cache_each_step, &again, v, err);
    return again ? try_once(s, run, set, blocks, companions, n, false, &again, v, err) : status;
}

/* As mp_evaluate() does: first with the kernels that a run of this kind loads as a rule, then with those that it did. */
enum memplan_status mp_requests_replay(const struct mp_requests *s, const struct mp_run *run, struct mp_replayer *r,
                                       struct mp_companion *companions, size_t n, struct mp_verdict *v, struct memplan_error *err)
{
    if (!reserve_blocks(r, s, run))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
    const enum mp_kernel_set expected = mp_evaluate_expected_kernels(run), actual = kernel_set(s->kernels);
    const enum memplan_status status = trial(s, run, expected, r->blocks, companions, n, v, err);
    return status || !v->fits || actual == expected ? status : trial(s, run, actual, r->blocks, companions, n, v, err);
}
