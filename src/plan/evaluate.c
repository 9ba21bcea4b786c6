/* SPDX-License-Identifier: MIT */
/*
 * The verdict is a trial, not a sum: the request stream of the job runs through the caching allocator, whose cudaMalloc fails
 * beyond what the card can give. Whether the last tensor finds a hole is decided there.
 */
#include "plan/evaluate.h"

#include "train/job.h"

/* ---- replaying events ---- */

struct replay {
    struct mp_evaluation *e;
    struct mp_allocator *allocator;
    struct mp_block **blocks; /* by storage id */
    uint32_t cap_blocks;
    uint32_t next;            /* first event not yet replayed */
    struct mp_phase_peaks *phases; /* one per program phase */
    uint32_t cap_phases;
};

static enum memplan_status reserve_tables(struct replay *r, struct memplan_error *err)
{
    const struct mp_program *p = &r->e->program;
    if (p->n_allocs >= r->cap_blocks) {
        const uint32_t wanted = p->n_allocs + p->n_allocs / 2 + 64;
        struct mp_block **blocks = mp_realloc(r->blocks, wanted * sizeof(struct mp_block *));
        if (!blocks)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
        r->blocks = blocks;
        r->cap_blocks = wanted;
    }
    if (p->n_phases >= r->cap_phases) {
        const uint32_t wanted = p->n_phases + p->n_phases / 2 + 16;
        struct mp_phase_peaks *phases = mp_realloc(r->phases, wanted * sizeof *phases);
        if (!phases)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
        r->phases = phases;
        r->cap_phases = wanted;
    }
    return MEMPLAN_STATUS_OK;
}

static void note_peak(struct replay *r, uint32_t event)
{
    struct mp_evaluation *e = r->e;
    const struct mp_allocator_stats *stats = mp_allocator_stats(r->allocator);
    const uint64_t allocated = stats->allocated_bytes[MP_STAT_ALL].current;
    if (allocated <= e->peak_allocated_bytes)
        return;
    e->peak_event = event;
    e->peak_allocated_bytes = allocated;
    e->peak_requested_bytes = stats->requested_bytes[MP_STAT_ALL].current;
    e->peak_reserved_bytes = stats->reserved_bytes[MP_STAT_ALL].current;
}

static void end_phase(struct replay *r, const struct mp_phase *phase, uint32_t index)
{
    const struct mp_allocator_peaks peaks = mp_allocator_take_peaks(r->allocator);
    r->phases[index] = (struct mp_phase_peaks){NULL, phase->requested_bytes, phase->requested_peak_bytes, peaks.allocated_bytes,
                                               peaks.reserved_bytes};
}

/* False: out of memory of the card (or the host). */
static bool replay_event(struct replay *r, const struct mp_event *event, uint32_t index)
{
    switch ((enum mp_event_kind)event->kind) {
    case MP_EVENT_ALLOC:
        r->blocks[event->id] = mp_allocator_malloc(r->allocator, event->bytes, event->stream, event->id);
        if (!r->blocks[event->id])
            return false;
        note_peak(r, index);
        return true;
    case MP_EVENT_FREE: mp_allocator_release(r->allocator, r->blocks[event->id]); return true;
    case MP_EVENT_MARK: end_phase(r, &r->e->program.phases[event->id], event->id); return true;
    case MP_EVENT_EMPTY_CACHE: mp_allocator_empty_cache(r->allocator); return true;
    case MP_EVENT_RECORD_STREAM: mp_allocator_record_stream(r->allocator, r->blocks[event->id], event->stream); return true;
    case MP_EVENT_TAG:
    case MP_EVENT_OP: return true;
    }
    return true;
}

/* Replay what the job has written since the last call. */
static enum memplan_status replay_new(struct replay *r, struct memplan_error *err)
{
    const struct mp_program *p = &r->e->program;
    const enum memplan_status status = reserve_tables(r, err);
    if (status)
        return status;
    for (; r->next < p->n_events; r->next++) {
        if (replay_event(r, &p->events[r->next], r->next))
            continue;
        if (mp_allocator_failed(r->allocator))
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
        r->e->oom = true;
        r->e->oom_event = r->next;
        r->e->oom_info = *mp_allocator_oom(r->allocator);
        return MEMPLAN_STATUS_OK;
    }
    return MEMPLAN_STATUS_OK;
}

/* ---- steps until the state repeats ---- */

/*
 * What a live block stands for, independent of the step: storages made in the last step are numbered from its start; older ones keep
 * their number, unless the step before made them, in which case they would have been freed by now if steps repeat.
 */
static uint64_t block_key(void *context, uint32_t client)
{
    const uint32_t step_start = *(const uint32_t *)context;
    return client > step_start ? UINT64_C(1) << 32 | (client - step_start) : client;
}

struct step_state {
    uint64_t hash;
    uint32_t n_allocs; /* storages made by the step */
    uint32_t n_events;
};

static bool same_state(const struct step_state *a, const struct step_state *b)
{
    return a->hash == b->hash && a->n_allocs == b->n_allocs && a->n_events == b->n_events;
}

/*
 * How many steps ago the allocator was in the state it is in now; 0: never. Outputs that live into the next step often alternate
 * between two places, so the period need not be 1.
 */
static int64_t find_period(const struct step_state *states, int64_t n)
{
    for (int64_t before = n - 2; before >= 0; before--)
        if (same_state(&states[before], &states[n - 1]))
            return n - 1 - before;
    return 0;
}

static enum memplan_status run_steps(struct mp_job *job, struct replay *r, struct memplan_error *err)
{
    enum { MAX_REMEMBERED = 64 };
    struct mp_evaluation *e = r->e;
    const int64_t wanted = job->run->iterations ? job->run->iterations : MP_MAX_STEPS;
    const int64_t steady_from = mp_job_steady_from(job->run);
    struct step_state states[MAX_REMEMBERED];
    int64_t n_states = 0;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    while (!status && !e->oom && !e->period && e->steps < wanted) {
        uint32_t step_start = e->program.n_allocs;
        const uint32_t first_event = e->program.n_events;
        status = mp_job_step(job);
        if (!status)
            status = replay_new(r, err);
        e->steps++;
        if (status || e->oom || e->steps <= steady_from || n_states == MAX_REMEMBERED)
            continue;
        states[n_states++] = (struct step_state){mp_allocator_state_hash(r->allocator, block_key, &step_start),
                                                 e->program.n_allocs - step_start, e->program.n_events - first_event};
        e->period = find_period(states, n_states);
    }
    return status;
}

/* ---- phases ---- */

/* First phase of step number `step`, and of the one after it. */
static uint32_t step_phases(const struct mp_program *p, int64_t step)
{
    char prefix[24];
    uint32_t i = 0;
    snprintf(prefix, sizeof prefix, "it%lld.", (long long)step);
    while (i < p->n_phases && strncmp(p->phases[i].name, prefix, strlen(prefix)) != 0)
        i++;
    return i;
}

/* Phases whose mark was reached. */
static uint32_t n_reached(const struct mp_evaluation *e)
{
    uint32_t n = e->program.n_phases;
    while (e->oom && n > 0 && e->program.phases[n - 1].event > e->oom_event)
        n--;
    return n;
}

/* Steps that were not simulated repeat those of the last period, under their own names. */
static enum memplan_status fill_phases(struct mp_evaluation *e, const struct replay *r, struct memplan_error *err)
{
    const struct mp_program *p = &e->program;
    const uint32_t n_done = n_reached(e), first = e->period ? step_phases(p, e->steps - e->period) : n_done;
    const size_t per_step = e->period ? (p->n_phases - first) / (size_t)e->period : 0;
    const size_t more = e->period && e->run->iterations > e->steps ? (size_t)(e->run->iterations - e->steps) : 0;
    size_t n;
    if (__builtin_mul_overflow(more, per_step, &n) || n > UINT32_MAX)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "iterations: %lld is too many to list their phases; leave it out",
                            (long long)e->run->iterations);
    e->phases = mp_arena_calloc(&e->arena, n_done + n + 1, sizeof *e->phases);
    if (!e->phases)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while listing phases");
    for (uint32_t i = 0; i < n_done; i++) {
        e->phases[i] = r->phases[i];
        e->phases[i].name = p->phases[i].name;
    }
    for (size_t i = 0; i < n; i++) {
        const size_t source = first + i % (per_step * (size_t)e->period);
        e->phases[n_done + i] = r->phases[source];
        e->phases[n_done + i].name = mp_arena_printf(&e->arena, "it%lld.%s", (long long)(e->steps + (int64_t)(i / per_step)),
                                                     strchr(p->phases[source].name, '.') + 1);
        if (!e->phases[n_done + i].name)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while listing phases");
    }
    e->n_phases = n_done + n;
    return MEMPLAN_STATUS_OK;
}

/* ---- capacity ---- */

static uint64_t subtract(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static struct mp_allocator *new_allocator(const struct mp_run *run, uint64_t available, struct memplan_error *err)
{
    struct mp_allocator_options options = {
        .torch = run->profile->torch_version,
        .limit_bytes = run->allocator_limit_bytes,
        .capacity_bytes = MP_MAX(available, 1),
        .total_bytes = run->gpu->total_bytes.value,
    };
    if (mp_allocator_conf_parse(run->allocator_conf, options.torch, &options.conf, err))
        return NULL;
    if (options.conf.per_process_memory_fraction > 0 && options.conf.per_process_memory_fraction < 1 && !options.limit_bytes)
        options.limit_bytes = (uint64_t)(options.conf.per_process_memory_fraction * (double)run->gpu->total_bytes.value);
    return mp_allocator_new(&options, err);
}

/* ---- the whole ---- */

static void conclude(struct mp_evaluation *e, const struct replay *r)
{
    const struct mp_run *run = e->run;
    const struct mp_fact *context = &run->gpu->context_bytes[e->kernels];
    e->stats = *mp_allocator_stats(r->allocator);
    e->requested_bytes = e->stats.requested_bytes[MP_STAT_ALL].peak;
    e->allocated_bytes = e->stats.allocated_bytes[MP_STAT_ALL].peak;
    e->reserved_bytes = e->stats.reserved_bytes[MP_STAT_ALL].peak;
    e->context_bytes = context->value;
    e->context_low_bytes = context->low;
    e->context_high_bytes = context->high;
    e->total_bytes = run->gpu->total_bytes.value;
    e->device_used_bytes = e->reserved_bytes + e->context_bytes + run->used_bytes;
    e->fits = !e->oom;
}

/* One trial with the kernel set given; *kernels: what attention really ran. */
static enum memplan_status trial(const struct mp_run *run, const struct mp_evaluate_options *options, struct mp_evaluation *e,
                                 unsigned *kernels, struct memplan_error *err)
{
    struct mp_job job;
    struct replay r = {.e = e};
    const uint64_t unavailable = run->gpu->unavailable_bytes[e->kernels].value + run->used_bytes;
    e->available_bytes = subtract(run->gpu->total_bytes.value, unavailable);
    if (run->allocator_limit_bytes)
        e->available_bytes = MP_MIN(e->available_bytes, run->allocator_limit_bytes);
    mp_program_init(&e->program);
    if (options) {
        e->program.keep_tags = options->keep_tags;
        e->program.keep_ops = options->keep_ops;
    }
    r.allocator = e->allocator = new_allocator(run, subtract(run->gpu->total_bytes.value, unavailable), err);
    if (!r.allocator)
        return err->status;
    if (options && options->observer)
        mp_allocator_observe(r.allocator, options->observer, options->observer_context);
    enum memplan_status status = mp_job_open(&job, run, &e->program, err);
    if (!status)
        status = mp_job_build(&job);
    if (!status)
        status = replay_new(&r, err);
    if (!status)
        status = run_steps(&job, &r, err);
    if (!status)
        status = fill_phases(e, &r, err);
    if (!status)
        conclude(e, &r);
    *kernels = job.rt.kernels;
    mp_job_close(&job);
    free(r.blocks);
    free(r.phases);
    return status;
}

static void reset(struct mp_evaluation *e, const struct mp_run *run, enum mp_kernel_set kernels)
{
    *e = (struct mp_evaluation){.run = run, .kernels = kernels};
    mp_arena_init(&e->arena);
}

/*
 * Which kernels are loaded shows only in the run, and decides how much the allocator may take. Half types under sdpa load the fused
 * ones as a rule; where the run turns out otherwise, it is tried again.
 */
enum memplan_status mp_evaluate(const struct mp_run *run, const struct mp_evaluate_options *options, struct mp_evaluation *e,
                                struct memplan_error *err)
{
    unsigned kernels;
    const bool observed = options && options->observer; /* an observer sees one trial only */
    const bool expect_fused = run->attention == MP_ATTENTION_SDPA && run->precision != MP_PRECISION_FP32 && run->gpu->cudnn_attention_first;
    reset(e, run, expect_fused ? MP_KERNELS_FUSED : MP_KERNELS_PLAIN);
    enum memplan_status status = trial(run, observed ? NULL : options, e, &kernels, err);
    const enum mp_kernel_set actual = kernels >> MP_KERNEL_CUDNN & 1u ? MP_KERNELS_FUSED : MP_KERNELS_PLAIN;
    if (!status && (observed || actual != e->kernels)) {
        mp_evaluation_release(e);
        reset(e, run, actual);
        status = trial(run, options, e, &kernels, err);
    }
    if (status)
        mp_evaluation_release(e);
    return status;
}

void mp_evaluation_release(struct mp_evaluation *e)
{
    mp_program_release(&e->program);
    mp_allocator_free(e->allocator);
    mp_arena_release(&e->arena);
    e->allocator = NULL;
}

/* ---- searches ---- */

enum memplan_status mp_fits(const struct mp_run *run, bool *fits, struct memplan_error *err)
{
    struct mp_evaluation e;
    const enum memplan_status status = mp_evaluate(run, NULL, &e, err);
    if (status)
        return status;
    *fits = e.fits;
    mp_evaluation_release(&e);
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status fits_batch(const struct mp_run *run, int64_t batch, bool *fits, struct memplan_error *err)
{
    struct mp_run changed = *run;
    changed.batch = batch;
    changed.max_batch = false;
    return mp_fits(&changed, fits, err);
}

enum memplan_status mp_max_batch(const struct mp_run *run, int64_t *max_batch, int64_t *again, struct memplan_error *err)
{
    enum { LOOK_BEYOND = 3 };
    int64_t low = 0, high = 0; /* low fits; high, once found, does not */
    while (!high || high - low > 1) {
        const int64_t batch = high ? low + (high - low) / 2 : MP_MAX(1, low * 2);
        bool fits;
        if (batch > INT32_MAX)
            break;
        const enum memplan_status status = fits_batch(run, batch, &fits, err);
        if (status)
            return status;
        *(fits ? &low : &high) = batch;
    }
    *max_batch = low;
    *again = 0;
    for (int64_t beyond = 2; low && high && beyond < 2 + LOOK_BEYOND; beyond++) {
        bool fits;
        const enum memplan_status status = fits_batch(run, low + beyond, &fits, err);
        if (status)
            return status;
        if (fits)
            *again = low + beyond;
    }
    return MEMPLAN_STATUS_OK;
}
