/* SPDX-License-Identifier: MIT */
/*
 * The verdict is a trial, not a sum: the request stream of the job runs through the caching allocator, whose cudaMalloc fails
 * beyond what the card can give. Whether the last tensor finds a hole is decided there.
 */
#include "plan/evaluate.h"

#include "train/job.h"

/* ---- replaying events ---- */

/* A phase that ended: which of the program's, and the step it was repeated in (-1: its own). */
struct phase_record {
    struct mp_phase_peaks peaks;
    uint32_t phase;
    int64_t step;
};

struct replay {
    struct mp_evaluation *e;
    struct mp_allocator *allocator;
    struct mp_block **blocks; /* by storage id */
    uint32_t cap_blocks;
    uint32_t next;            /* first event not yet replayed */
    uint64_t allocated_bytes; /* in blocks, now */
    struct phase_record *phases;   /* those that ended */
    uint32_t n_phases, cap_phases;
    bool whole;               /* the program must hold every step that is replayed */
    bool every_step;          /* every step is run through the model, whether it repeats or not */
};

/* Room for storages up to last_id, and for more phases. */
static enum memplan_status reserve_tables(struct replay *r, uint32_t last_id, uint32_t n_phases, struct memplan_error *err)
{
    if (last_id >= r->cap_blocks) {
        const uint32_t wanted = last_id + last_id / 2 + 64;
        struct mp_block **blocks = mp_realloc(r->blocks, wanted * sizeof(struct mp_block *));
        if (!blocks)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
        r->blocks = blocks;
        r->cap_blocks = wanted;
    }
    if (r->n_phases + n_phases > r->cap_phases) {
        const uint32_t wanted = 2 * (r->n_phases + n_phases) + 16;
        struct phase_record *phases = mp_realloc(r->phases, wanted * sizeof *phases);
        if (!phases)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
        r->phases = phases;
        r->cap_phases = wanted;
    }
    return MEMPLAN_STATUS_OK;
}

/* Called for every allocation: the allocator's own statistics are too much to ask for each time. */
static void note_allocated(struct replay *r, uint64_t bytes, uint32_t event)
{
    r->allocated_bytes += bytes;
    if (r->allocated_bytes > r->e->peak_allocated_bytes) {
        r->e->peak_allocated_bytes = r->allocated_bytes;
        r->e->peak_event = event;
    }
}

static void end_phase(struct replay *r, uint32_t index, int64_t step)
{
    const struct mp_phase *phase = &r->e->program.phases[index];
    const struct mp_allocator_peaks peaks = mp_allocator_take_peaks(r->allocator);
    r->phases[r->n_phases++] = (struct phase_record){
        {NULL, phase->requested_bytes, phase->requested_peak_bytes, peaks.allocated_bytes, peaks.reserved_bytes}, index, step};
}

/* The event with its storage moved on by `shift`. False: out of memory of the card (or the host). */
static bool replay_event(struct replay *r, const struct mp_event *event, uint32_t shift, uint32_t index, int64_t step)
{
    const uint32_t id = event->id + shift;
    switch ((enum mp_event_kind)event->kind) {
    case MP_EVENT_ALLOC:
        r->blocks[id] = mp_allocator_malloc(r->allocator, event->bytes, event->stream, id);
        if (!r->blocks[id])
            return false;
        note_allocated(r, r->blocks[id]->size, index);
        return true;
    case MP_EVENT_FREE:
        r->allocated_bytes -= r->blocks[id]->size;
        mp_allocator_release(r->allocator, r->blocks[id]);
        return !mp_allocator_failed(r->allocator);
    case MP_EVENT_MARK: end_phase(r, event->id, step); return true;
    case MP_EVENT_EMPTY_CACHE: mp_allocator_empty_cache(r->allocator); return !mp_allocator_failed(r->allocator);
    case MP_EVENT_RECORD_STREAM: mp_allocator_record_stream(r->allocator, r->blocks[id], event->stream); return true;
    case MP_EVENT_DRIVER: mp_allocator_driver_event(r->allocator, event->id, event->bytes); return true;
    case MP_EVENT_TAG:
    case MP_EVENT_OP: return true;
    }
    return true;
}

static enum memplan_status stopped_at(struct replay *r, uint32_t index, struct memplan_error *err)
{
    if (mp_allocator_failed(r->allocator))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
    r->e->oom = true;
    r->e->oom_event = index;
    r->e->oom_info = *mp_allocator_oom(r->allocator);
    return MEMPLAN_STATUS_OK;
}

/* Replay what the job has written since the last call. */
static enum memplan_status replay_new(struct replay *r, struct memplan_error *err)
{
    const struct mp_program *p = &r->e->program;
    const enum memplan_status status = reserve_tables(r, p->n_allocs, p->n_phases - r->n_phases, err);
    if (status)
        return status;
    for (; r->next < p->n_events; r->next++)
        if (!replay_event(r, &p->events[r->next], 0, r->next, -1))
            return stopped_at(r, r->next, err);
    return MEMPLAN_STATUS_OK;
}

/* Replay the events of a step once more, `times` steps after it; what it and the step before made has moved on. */
static enum memplan_status replay_again(struct replay *r, const struct mp_step_events *step, uint32_t times, struct memplan_error *err)
{
    const struct mp_program *p = &r->e->program;
    const uint32_t n_allocs = step->end_id - step->first_id, older = step->first_id - MP_MIN(n_allocs, step->first_id);
    uint32_t last_id;
    if (__builtin_mul_overflow(n_allocs, times, &last_id) || __builtin_add_overflow(last_id, step->end_id, &last_id))
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "iterations: too many to replay; leave it out");
    const enum memplan_status status = reserve_tables(r, last_id, p->n_phases, err);
    if (status)
        return status;
    for (uint32_t i = step->first; i < step->end; i++) {
        const struct mp_event *e = &p->events[i];
        if (!replay_event(r, e, e->id > older ? times * n_allocs : 0, i, r->e->steps))
            return stopped_at(r, i, err);
    }
    return MEMPLAN_STATUS_OK;
}

/* ---- steps until the state repeats ---- */

/*
 * What a live block stands for, independent of the step: storages made in the last step are numbered from its start; older ones keep
 * their number, unless the step before made them, in which case they would have been freed by now if steps repeat.
 */
uint64_t mp_step_block_key(void *context, uint32_t client)
{
    const uint32_t step_start = *(const uint32_t *)context;
    return client > step_start ? UINT64_C(1) << 32 | (client - step_start) : client;
}

static bool same_state(const struct mp_step_state *a, const struct mp_step_state *b)
{
    return a->hash == b->hash && a->n_allocs == b->n_allocs && a->n_events == b->n_events;
}

/*
 * How many steps ago the allocator was in the state it is in now; 0: never. Outputs that live into the next step often alternate
 * between two places, so the period need not be 1.
 */
int64_t mp_step_find_period(const struct mp_step_state *states, int64_t n)
{
    for (int64_t before = n - 2; before >= 0; before--)
        if (same_state(&states[before], &states[n - 1]))
            return n - 1 - before;
    return 0;
}

/*
 * Once two steps in a row have asked for the same, the next one need not be run through the model again: its events are those of
 * the last step, with every storage that a step made moved on by a step.
 */
bool mp_steps_ask_the_same(const struct mp_program *p, const struct mp_step_events *a, const struct mp_step_events *b)
{
    const uint32_t n_allocs = a->end_id - a->first_id;
    if (a->end - a->first != b->end - b->first || n_allocs != b->end_id - b->first_id)
        return false;
    for (uint32_t i = 0; i < a->end - a->first; i++) {
        const struct mp_event *x = &p->events[a->first + i], *y = &p->events[b->first + i];
        if (x->kind != y->kind || x->stream != y->stream || x->tag != y->tag || (x->kind != MP_EVENT_MARK && x->bytes != y->bytes))
            return false;
        if (x->kind == MP_EVENT_MARK)
            continue;
        if (y->id <= a->first_id && x->id != y->id)
            return false; /* older than both steps: must be the same storage */
        if (x->id > a->first_id && y->id != x->id + n_allocs)
            return false; /* made by the step itself: must be its counterpart */
    }
    return true;
}

/* One more step, by whichever way is enough. *repeated counts those that were not run through the model. */
static enum memplan_status run_step(struct mp_job *job, struct replay *r, const struct mp_step_events *steady, uint32_t *repeated,
                                    struct memplan_error *err)
{
    enum memplan_status status;
    if (steady && !r->whole)
        return replay_again(r, steady, ++*repeated, err);
    status = steady ? mp_job_repeat_step(job, steady) : mp_job_step(job);
    return status ? status : replay_new(r, err);
}

static enum memplan_status run_steps(struct mp_job *job, struct replay *r, struct memplan_error *err)
{
    enum { MAX_REMEMBERED = 64 };
    struct mp_evaluation *e = r->e;
    const struct mp_program *p = &e->program;
    const int64_t wanted = job->run->iterations ? job->run->iterations : MP_MAX_STEPS;
    const int64_t steady_from = mp_job_steady_from(job->run);
    struct mp_step_state states[MAX_REMEMBERED];
    int64_t n_states = 0;
    struct mp_step_events before = {0}, now = {0};
    bool steady = false;
    uint32_t repeated = 0;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    while (!status && !e->oom && !e->period && e->steps < wanted) {
        uint32_t step_start = p->n_allocs + repeated * (now.end_id - now.first_id);
        const struct mp_step_events start = {p->n_events, 0, p->n_allocs, 0};
        status = run_step(job, r, steady ? &now : NULL, &repeated, err);
        e->steps++;
        if (p->n_events > start.first) { /* the program has grown */
            before = now;
            now = (struct mp_step_events){start.first, p->n_events, start.first_id, p->n_allocs};
        }
        steady = steady || (!r->every_step && e->steps > steady_from && mp_steps_ask_the_same(p, &before, &now));
        if (status || e->oom || r->every_step || e->steps <= steady_from || n_states == MAX_REMEMBERED)
            continue;
        states[n_states++] = (struct mp_step_state){
            mp_allocator_state_hash(r->allocator, mp_step_block_key, &step_start),
            now.end_id - now.first_id, now.end - now.first};
        e->period = mp_step_find_period(states, n_states);
    }
    return status;
}

/* ---- phases ---- */

static const char *phase_name(struct mp_evaluation *e, const struct phase_record *record, int64_t step)
{
    const char *own = e->program.phases[record->phase].name;
    return step < 0 ? own : mp_arena_printf(&e->arena, "it%lld.%s", (long long)step, strchr(own, '.') + 1);
}

/* How many of the last phases belong to the last n steps. */
static size_t phases_of_last_steps(const struct mp_evaluation *e, const struct replay *r, int64_t n)
{
    size_t count = 0;
    int64_t steps = 0;
    for (uint32_t i = r->n_phases; i-- > 0; count++) {
        const char *name = e->program.phases[r->phases[i].phase].name;
        const size_t length = strlen(name);
        if (length > 5 && strcmp(name + length - 5, ".zero") == 0 && ++steps > n)
            break;
        if (strncmp(name, "it", 2) != 0)
            break;
    }
    return count;
}

/* Steps that were not simulated repeat those of the last period, under their own names. */
static enum memplan_status fill_phases(struct mp_evaluation *e, const struct replay *r, struct memplan_error *err)
{
    const size_t in_period = e->period ? phases_of_last_steps(e, r, e->period) : 0,
                 per_step = e->period ? in_period / (size_t)e->period : 0;
    const size_t more = e->period && e->run->iterations > e->steps ? (size_t)(e->run->iterations - e->steps) : 0;
    size_t n;
    if (__builtin_mul_overflow(more, per_step, &n) || n > UINT32_MAX)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "iterations: %lld is too many to list their phases; leave it out",
                            (long long)e->run->iterations);
    e->phases = mp_arena_calloc(&e->arena, r->n_phases + n + 1, sizeof *e->phases);
    for (size_t i = 0; e->phases && i < r->n_phases + n; i++) {
        const size_t beyond = i - r->n_phases; /* only meaningful past the simulated ones */
        const struct phase_record *record = &r->phases[i < r->n_phases ? i : r->n_phases - in_period + beyond % in_period];
        e->phases[i] = record->peaks;
        e->phases[i].name = phase_name(e, record, i < r->n_phases ? record->step : e->steps + (int64_t)(beyond / per_step));
        if (!e->phases[i].name)
            e->phases = NULL;
    }
    if (!e->phases)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while listing phases");
    e->n_phases = r->n_phases + n;
    return MEMPLAN_STATUS_OK;
}

/* ---- capacity ---- */

static uint64_t subtract(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* What cudaMalloc can give: the card without context and kernels, collectives, and other processes. */
static uint64_t left_by_others(const struct mp_evaluation *e)
{
    const struct mp_run *run = e->run;
    return subtract(run->gpu->total_bytes.value,
                    run->gpu->unavailable_bytes[e->kernels].value + mp_collectives_bytes(&e->collectives) + run->used_bytes);
}

struct mp_allocator *mp_evaluate_allocator_new(const struct mp_run *run, uint64_t available, struct memplan_error *err)
{
    struct mp_allocator_options options = {
        .torch = run->profile->torch_version,
        .limit_bytes = run->allocator_limit_bytes,
        .capacity_bytes = MP_MAX(available, 1),
        .total_bytes = run->gpu->total_bytes.value,
        /* memplan-validate loads its kernels before the first segment: torch's modules do not come in between */
        .placement = {.kind = run->profile->validate ? MP_PLACE_LOADED : MP_PLACE_PROCESS},
        .peaks_only = true,
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
    e->context_bytes = context->value + mp_collectives_bytes(&e->collectives);
    e->context_low_bytes = context->low + e->collectives.low_bytes;
    e->context_high_bytes = context->high + e->collectives.high_bytes;
    e->total_bytes = run->gpu->total_bytes.value;
    e->device_used_bytes = e->reserved_bytes + e->context_bytes + run->used_bytes;
    e->fits = !e->oom;
    e->upper = (struct mp_upper){.oom = e->oom,
                                 .requested_bytes = e->requested_bytes,
                                 .allocated_bytes = e->allocated_bytes,
                                 .reserved_bytes = e->reserved_bytes,
                                 .device_used_bytes = e->device_used_bytes};
}

/* One trial with the kernel set given; *kernels: what attention really ran. */
static enum memplan_status trial(const struct mp_run *run, const struct mp_evaluate_options *options, struct mp_evaluation *e,
                                 unsigned *kernels, struct memplan_error *err)
{
    struct mp_job job;
    struct replay r = {.e = e, .every_step = options && options->every_step};
    if (mp_collectives_predict(run, &e->collectives, err))
        return err->status;
    const uint64_t device_bytes = left_by_others(e);
    e->available_bytes = device_bytes;
    if (run->allocator_limit_bytes)
        e->available_bytes = MP_MIN(e->available_bytes, run->allocator_limit_bytes);
    mp_program_init(&e->program);
    r.whole = options && (options->keep_tags || options->keep_ops || options->observer);
    if (options) {
        e->program.keep_tags = options->keep_tags;
        e->program.keep_ops = options->keep_ops;
    }
    r.allocator = e->allocator = mp_evaluate_allocator_new(run, device_bytes, err);
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

enum mp_kernel_set mp_evaluate_expected_kernels(const struct mp_run *run)
{
    const bool half = run->precision != MP_PRECISION_FP32;
    return run->attention == MP_ATTENTION_SDPA && half && run->gpu->cudnn_attention_first ? MP_KERNELS_FUSED : MP_KERNELS_PLAIN;
}

/*
 * Which kernels are loaded shows only in the run, and decides how much the allocator may take. Half types under sdpa load the fused
 * ones as a rule; where the run turns out otherwise, it is tried again.
 */
static enum memplan_status evaluate_outcome(const struct mp_run *run, const struct mp_evaluate_options *options, struct mp_evaluation *e,
                                            struct memplan_error *err)
{
    unsigned kernels = 0;
    const bool observed = options && options->observer; /* an observer sees one trial only */
    reset(e, run, mp_evaluate_expected_kernels(run));
    enum memplan_status status = trial(run, observed ? NULL : options, e, &kernels, err);
    const enum mp_kernel_set actual = kernels >> MP_KERNEL_CUDNN & 1u ? MP_KERNELS_FUSED : MP_KERNELS_PLAIN;
    const bool other = !e->oom && actual != e->kernels; /* a run that died has not loaded what it would have */
    if (!status && (observed || other)) {
        const enum mp_kernel_set kernel_set = other ? actual : e->kernels;
        mp_evaluation_release(e);
        reset(e, run, kernel_set);
        status = trial(run, options, e, &kernels, err);
    }
    if (status)
        mp_evaluation_release(e);
    return status;
}

/* ---- other outcomes ---- */

static void raise(uint64_t *upper, uint64_t value, bool *differs)
{
    *differs |= value > *upper;
    *upper = MP_MAX(*upper, value);
}

static bool keep_phases(struct mp_evaluation *e, const struct mp_evaluation *o)
{
    struct mp_phase_peaks *phases = mp_arena_calloc(&e->arena, o->n_phases + 1, sizeof *phases);
    for (size_t i = 0; phases && i < o->n_phases; i++) {
        phases[i] = o->phases[i];
        phases[i].name = mp_arena_strdup(&e->arena, o->phases[i].name);
        if (!phases[i].name)
            return false;
    }
    e->upper.phases = phases;
    e->upper.n_phases = o->n_phases;
    return phases != NULL;
}

/* Does it ask for more than every outcome before it: at its peak, or with the same peak (timing) in any phase? */
static bool asks_for_more(const struct mp_evaluation *e, const struct mp_evaluation *o)
{
    const struct mp_upper *u = &e->upper;
    const struct mp_phase_peaks *most = u->phases ? u->phases : e->phases;
    const size_t n = u->phases ? u->n_phases : e->n_phases;
    if (o->requested_bytes != u->requested_bytes)
        return o->requested_bytes > u->requested_bytes;
    if (o->run->rank != e->run->rank)
        return false;
    for (size_t i = 0; i < n && i < o->n_phases; i++)
        if (o->phases[i].requested_peak_bytes > most[i].requested_peak_bytes || o->phases[i].requested_bytes > most[i].requested_bytes)
            return true;
    return false;
}

static enum memplan_status add_outcome(struct mp_evaluation *e, const struct mp_run *other, struct memplan_error *err)
{
    struct mp_evaluation o;
    struct mp_upper *u = &e->upper;
    const enum memplan_status status = evaluate_outcome(other, NULL, &o, err);
    if (status)
        return status;
    if (asks_for_more(e, &o)) {
        u->differs = true;
        if (!keep_phases(e, &o)) {
            mp_evaluation_release(&o);
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while listing phases");
        }
    }
    raise(&u->requested_bytes, o.requested_bytes, &u->differs);
    raise(&u->allocated_bytes, o.allocated_bytes, &u->differs);
    raise(&u->reserved_bytes, o.reserved_bytes, &u->differs);
    raise(&u->device_used_bytes, o.device_used_bytes, &u->differs);
    u->differs |= o.oom && !u->oom;
    u->oom |= o.oom;
    e->fits = e->fits && o.fits;
    mp_evaluation_release(&o);
    return MEMPLAN_STATUS_OK;
}

int mp_evaluate_timings(const struct mp_run *run)
{
    const bool buckets = run->parallel == MP_PARALLEL_DDP || run->parallel == MP_PARALLEL_ZERO1;
    const int seen = run->ddp.compression != MP_COMPRESSION_NONE ? 4 : 3; /* a bucket can be late once, copies pile up */
    return buckets && !run->no_collectives ? seen : 1;
}

/* NCCL's watchdog decides whether DDP's first bucket dies with its views, in the second backward or in the third. */
static enum memplan_status add_lingering(struct mp_evaluation *e, struct memplan_error *err)
{
    for (int lingers = 1; lingers < mp_evaluate_timings(e->run); lingers++) {
        struct mp_run other = *e->run;
        other.ddp.lingers = lingers;
        const enum memplan_status status = add_outcome(e, &other, err);
        if (status)
            return status;
    }
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status add_fullest_rank(struct mp_evaluation *e, struct memplan_error *err)
{
    struct mp_run other = *e->run;
    const enum memplan_status status = mp_job_fullest_rank(e->run, &other.rank, err);
    if (status || other.rank == e->run->rank)
        return status;
    return add_outcome(e, &other, err);
}

/*
 * Where what lies outside the allocator is known as a range only: does the job also fit if it takes
 * the high end, on the smallest such card?
 */
static enum memplan_status try_high_end(struct mp_evaluation *e, struct memplan_error *err)
{
    struct mp_gpu gpu = *e->run->gpu;
    struct mp_run run = *e->run;
    struct mp_evaluation high;
    struct mp_fact *unavailable = &gpu.unavailable_bytes[e->kernels];
    e->fits_high = e->fits;
    if (unavailable->provenance == MP_MEASURED)
        return MEMPLAN_STATUS_OK;
    const uint64_t less = (unavailable->high - unavailable->value) + (gpu.total_bytes.value - gpu.total_bytes.low);
    if (!e->fits || e->reserved_bytes + less <= e->available_bytes)
        return MEMPLAN_STATUS_OK;
    unavailable->value = unavailable->high;
    gpu.total_bytes.value = gpu.total_bytes.low;
    run.gpu = &gpu;
    const enum memplan_status status = evaluate_outcome(&run, NULL, &high, err);
    if (status)
        return status;
    e->fits_high = high.fits;
    mp_evaluation_release(&high);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_evaluate(const struct mp_run *run, const struct mp_evaluate_options *options, struct mp_evaluation *e,
                                struct memplan_error *err)
{
    enum memplan_status status = evaluate_outcome(run, options, e, err);
    if (!status) {
        status = try_high_end(e, err);
        if (status)
            mp_evaluation_release(e);
    }
    if (status || e->oom || (options && options->one_outcome))
        return status;
    if (run->ddp.lingers == 0)
        status = add_lingering(e, err);
    if (!status && mp_parallel_ranks_differ(run))
        status = add_fullest_rank(e, err);
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

/* ---- once more, watched ---- */

enum memplan_status mp_evaluation_replay(const struct mp_evaluation *e, mp_evaluation_visit *visit, void *context,
                                         struct memplan_error *err)
{
    const struct mp_program *p = &e->program;
    struct mp_evaluation scratch = *e; /* takes the peaks that the replay notes */
    struct replay r = {.e = &scratch, .allocator = mp_evaluate_allocator_new(e->run, left_by_others(e), err)};
    if (!r.allocator)
        return err->status;
    enum memplan_status status = reserve_tables(&r, p->n_allocs, p->n_phases, err);
    struct mp_evaluation_moment moment = {.allocator = r.allocator};
    for (bool more = !status; more && moment.event < p->n_events; moment.event++) {
        moment.failed = !replay_event(&r, &p->events[moment.event], 0, moment.event, -1);
        moment.allocated_bytes = r.allocated_bytes;
        if (moment.failed && mp_allocator_failed(r.allocator))
            status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while replaying");
        more = !status && visit(context, &moment) && !moment.failed;
    }
    mp_allocator_free(r.allocator);
    free(r.blocks);
    free(r.phases);
    return status;
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
