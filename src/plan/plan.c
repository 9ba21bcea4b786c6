/* SPDX-License-Identifier: MIT */
/*
 * Tries settings, smallest micro-batch first; for each the integer program chooses blocks, the replay has the last word.
 *
 * A cut is a smaller room: what was tried and did not fit takes as many bytes as predicted, so the next answer must take less. That
 * is an assumption about the allocator, and only about it; the bound that is reported is the first answer's, with all the room there
 * is and no cut.
 */
#include "plan/plan.h"

#include <inttypes.h>
#include <math.h>

#include "spec/shipped.h"

enum { KEEP, RECOMPUTE, CHOICES, MAX_CUTS = 64, MAX_OPTIONS = 256, FRONT_STEPS = 8 };

struct planner {
    struct mp_plan *plan;
    const struct mp_plan_request *request;
    struct memplan_error *err;
    bool smallest_seen; /* least_bytes is set */
    bool exact;         /* replay every micro-batch */
};

static enum memplan_status no_memory(const struct planner *p) { return mp_error_set(p->err, MEMPLAN_STATUS_NOMEM, "out of memory while planning"); }

/* ---- choices of blocks as a run ---- */

static bool set_layers(struct mp_run *run, const int *choice, int n, struct mp_arena *arena)
{
    int32_t *const layers = mp_arena_calloc(arena, (size_t)n + 1, sizeof *layers);
    size_t count = 0;
    if (!layers)
        return false;
    for (int l = 0; l < n; l++)
        if (choice[l] == RECOMPUTE)
            layers[count++] = l;
    run->checkpoint = count == 0 ? MP_CHECKPOINT_NONE : count == (size_t)n ? MP_CHECKPOINT_FULL : MP_CHECKPOINT_LAYERS;
    run->checkpoint_layers.layers = layers;
    run->checkpoint_layers.n = run->checkpoint == MP_CHECKPOINT_LAYERS ? count : 0;
    run->given |= UINT64_C(1) << MP_KEY_CHECKPOINT;
    return true;
}

/* ---- one set of settings ---- */

/* More micro-batches than two take what two do; the last word on a plan has them all. */
static struct mp_run shortened(const struct planner *p, const struct mp_run *run)
{
    struct mp_run few = *run;
    if (!p->exact)
        few.accumulate = MP_MIN(run->accumulate, 2);
    return few;
}

static enum memplan_status replay(const struct mp_run *run, struct mp_plan_option *o, struct memplan_error *err)
{
    struct mp_evaluation e;
    const enum memplan_status status = mp_evaluate(run, NULL, &e, err);
    if (status)
        return status;
    o->fits = e.fits;
    o->requested_bytes = e.requested_bytes;
    o->allocated_bytes = e.allocated_bytes;
    o->reserved_bytes = e.reserved_bytes;
    o->device_used_bytes = e.device_used_bytes;
    mp_evaluation_release(&e);
    return MEMPLAN_STATUS_OK;
}

/* Bytes that tensors ask for at the most, on a card without limit. */
static enum memplan_status demand(const struct mp_run *run, uint64_t *bytes, uint64_t *available, struct memplan_error *err)
{
    struct mp_evaluation e;
    struct mp_gpu gpu = *run->gpu;
    struct mp_run wide = *run;
    enum memplan_status status = mp_evaluate(run, NULL, &e, err);
    if (status)
        return status;
    *available = e.available_bytes;
    *bytes = e.requested_bytes;
    const bool oom = e.oom;
    mp_evaluation_release(&e);
    if (!oom)
        return MEMPLAN_STATUS_OK;
    gpu.total_bytes.value = UINT64_C(1) << 60;
    wide.gpu = &gpu;
    wide.allocator_limit_bytes = 0;
    status = mp_evaluate(&wide, NULL, &e, err);
    if (status)
        return status;
    *bytes = e.requested_bytes;
    mp_evaluation_release(&e);
    return MEMPLAN_STATUS_OK;
}

static struct mp_ilp_problem problem_of(const struct mp_plan_profile *profile, uint64_t room_bytes, uint64_t *room)
{
    for (int t = 0; t < profile->n_instants; t++)
        room[t] = room_bytes > profile->base_bytes[t] ? room_bytes - profile->base_bytes[t] : 0;
    return (struct mp_ilp_problem){profile->n_layers, CHOICES, profile->n_instants, profile->cost_s, profile->bytes, room};
}

/* The user's own checkpointing: nothing to choose. */
static enum memplan_status take_as_given(struct planner *p, struct mp_plan_option *o)
{
    const struct mp_run few = shortened(p, &o->run);
    const bool all = o->run.checkpoint == MP_CHECKPOINT_FULL || o->run.checkpoint == MP_CHECKPOINT_FULL_REENTRANT;
    enum memplan_status status = replay(&few, o, p->err);
    if (!status)
        status = mp_cost_estimate(&o->run, &p->plan->arena, &o->cost, p->err);
    o->n_recomputed = all ? (int)mp_model_layers(o->run.model) : (int)o->run.checkpoint_layers.n;
    o->bound_s = o->greedy_s = o->cost.step_s;
    o->optimal = true;
    return status;
}

/* Least memory: every block recomputed, whatever it costs. The program may have thought that even that does not fit. */
static enum memplan_status recompute_all(struct planner *p, struct mp_plan_option *o)
{
    o->run.checkpoint = MP_CHECKPOINT_FULL;
    o->run.checkpoint_layers.n = 0;
    o->n_recomputed = (int)mp_model_layers(o->run.model);
    const struct mp_run few = shortened(p, &o->run);
    const enum memplan_status status = replay(&few, o, p->err);
    o->optimal = o->optimal && !o->fits;
    return status ? status : mp_cost_estimate(&o->run, &p->plan->arena, &o->cost, p->err);
}

/* Nothing that these settings can do is as fast as what there is already. */
static bool is_beaten(const struct planner *p, const struct mp_plan_option *o)
{
    const struct mp_plan_option *const best = p->plan->best;
    return p->request->aim != MP_PLAN_MEMORY && p->request->tokens_per_step && !p->request->pareto && best && best != o &&
           o->bound_s >= best->cost.step_s;
}

/* What recomputing a block leaves free at the loss, of the block where that is least: the next answer differs by one at least. */
static uint64_t smallest_saving(const struct mp_plan_profile *profile)
{
    const int n = profile->n_layers, loss = n + 1;
    uint64_t least = UINT64_MAX;
    for (int l = 0; l < n; l++) {
        const uint64_t kept = profile->bytes[(l * CHOICES + KEEP) * profile->n_instants + loss];
        const uint64_t left = profile->bytes[(l * CHOICES + RECOMPUTE) * profile->n_instants + loss];
        least = MP_MIN(least, kept > left ? kept - left : 0);
    }
    return least;
}

static enum memplan_status choose_blocks(struct planner *p, struct mp_plan_option *o, const struct mp_plan_profile *profile, uint64_t available)
{
    struct mp_arena *const arena = &p->plan->arena;
    const size_t n = (size_t)profile->n_layers;
    int *const choice = mp_arena_calloc(arena, n, sizeof *choice), *const greedy = mp_arena_calloc(arena, n, sizeof *greedy);
    uint64_t *const room = mp_arena_calloc(arena, (size_t)profile->n_instants, sizeof *room);
    double greedy_s = 0, keep_s = 0;
    if (!choice || !greedy || !room || !set_layers(&o->run, choice, (int)n, arena))
        return no_memory(p);
    enum memplan_status status = mp_cost_estimate(&o->run, arena, &o->cost, p->err); /* everything kept */
    keep_s = o->cost.step_s;
    o->fits = false;
    const uint64_t cut = MP_MAX(smallest_saving(profile) / 2, 1);
    for (uint64_t bytes = available; !status && o->n_cuts <= MAX_CUTS; o->n_cuts++) {
        const struct mp_ilp_problem problem = problem_of(profile, bytes, room);
        struct mp_ilp_solution s;
        const bool by_hand = mp_ilp_greedy(&problem, greedy, &greedy_s);
        status = mp_ilp_solve(&problem, choice, &s, p->err);
        if (status)
            return status;
        o->greedy_s = by_hand ? keep_s + greedy_s * (double)o->run.accumulate : -1;
        if (o->n_cuts == 0)
            o->bound_s = keep_s + MP_MAX(s.bound_s, 0) * (double)o->run.accumulate;
        o->optimal = s.optimal;
        o->beaten = is_beaten(p, o);
        if (o->beaten)
            return MEMPLAN_STATUS_OK;
        if (!s.feasible)
            return recompute_all(p, o);
        if (!set_layers(&o->run, choice, (int)n, arena))
            return no_memory(p);
        const struct mp_run few = shortened(p, &o->run);
        status = replay(&few, o, p->err);
        if (!status && o->fits)
            break;
        bytes = mp_plan_profile_peak(profile, choice);
        bytes -= MP_MIN(bytes, cut);
    }
    if (!status && !o->fits)
        return recompute_all(p, o);
    o->n_recomputed = 0;
    for (size_t l = 0; l < n; l++)
        o->n_recomputed += choice[l] == RECOMPUTE;
    return status ? status : mp_cost_estimate(&o->run, arena, &o->cost, p->err);
}

/* What would fit if anything does: every block recomputed. */
static enum memplan_status try_smallest(struct planner *p, const struct mp_run *run, struct mp_plan_option *o, uint64_t *available)
{
    struct mp_run small = shortened(p, run);
    uint64_t bytes;
    if (!mp_run_is_given(p->request->run, MP_KEY_CHECKPOINT)) {
        small.checkpoint = MP_CHECKPOINT_FULL;
        small.checkpoint_layers.n = 0;
    }
    const enum memplan_status status = demand(&small, &bytes, available, p->err);
    if (status)
        return status;
    o->proven_too_large = bytes > *available;
    if (!p->smallest_seen || bytes < p->plan->least_bytes) {
        p->plan->least_bytes = bytes;
        p->plan->available_bytes = *available;
        p->smallest_seen = true;
    }
    return MEMPLAN_STATUS_OK;
}

/* Recomputing nothing is the fastest, whether it fits or not. */
static enum memplan_status time_kept(struct planner *p, struct mp_plan_option *o)
{
    struct mp_run kept = o->run;
    if (!mp_run_is_given(p->request->run, MP_KEY_CHECKPOINT)) {
        kept.checkpoint = MP_CHECKPOINT_NONE;
        kept.checkpoint_layers.n = 0;
    }
    const enum memplan_status status = mp_cost_estimate(&kept, &p->plan->arena, &o->cost, p->err);
    o->bound_s = o->cost.step_s;
    return status;
}

static enum memplan_status try_option(struct planner *p, struct mp_plan_option *o)
{
    uint64_t available = 0;
    struct mp_plan_profile profile;
    enum memplan_status status = time_kept(p, o);
    o->beaten = !status && is_beaten(p, o);
    if (status || o->beaten)
        return status;
    status = try_smallest(p, &o->run, o, &available);
    if (status || o->proven_too_large)
        return status;
    if (mp_run_is_given(p->request->run, MP_KEY_CHECKPOINT))
        return take_as_given(p, o);
    if (p->request->aim == MP_PLAN_MEMORY) {
        status = recompute_all(p, o);
        o->bound_s = o->greedy_s = o->cost.step_s;
        o->optimal = true;
        return status;
    }
    status = mp_plan_profile_make(&o->run, &p->plan->arena, &profile, p->err);
    return status ? status : choose_blocks(p, o, &profile, available);
}

/* ---- which settings ---- */

static bool is_given(const struct planner *p, enum mp_run_key key) { return mp_run_is_given(p->request->run, key); }

static double value_of(const struct planner *p, const struct mp_plan_option *o)
{
    if (p->request->aim == MP_PLAN_MEMORY)
        return (double)o->device_used_bytes;
    return p->request->tokens_per_step ? o->cost.step_s : 1 / o->cost.tokens_per_s;
}

static bool is_better(const struct planner *p, const struct mp_plan_option *a, const struct mp_plan_option *b)
{
    return a->fits && (!b || value_of(p, a) < value_of(p, b));
}

/* Micro-batches of a step, so that the ranks together see at least the tokens asked for. 0: more than can be. */
static int64_t accumulate_for(const struct planner *p, const struct mp_run *run)
{
    const uint64_t tokens = p->request->tokens_per_step;
    const uint64_t each = (uint64_t)run->batch * (uint64_t)run->seq * (uint64_t)run->world;
    if (is_given(p, MP_KEY_ACCUMULATE) || tokens == 0)
        return p->request->run->accumulate;
    const uint64_t n = (tokens + each - 1) / each;
    return n <= 65536 ? (int64_t)MP_MAX(n, 1) : 0;
}

static struct mp_plan_option *add_option(struct planner *p, const struct mp_run *run)
{
    struct mp_plan *const plan = p->plan;
    if (plan->n_options == MAX_OPTIONS)
        return NULL;
    struct mp_plan_option *const o = &plan->options[plan->n_options++];
    *o = (struct mp_plan_option){.run = *run};
    return o;
}

/* 1, 2, 3, 4, 6, 8, 12, 16, … */
static int64_t next_batch(int64_t batch)
{
    if (batch < 2)
        return batch + 1;
    return (batch & (batch - 1)) == 0 ? batch + batch / 2 : batch / 3 * 4;
}

/* One micro-batch size after the other, until nothing fits any more. */
static enum memplan_status try_batches(struct planner *p, const struct mp_run *base)
{
    const uint64_t samples = p->request->tokens_per_step / (uint64_t)base->seq / (uint64_t)base->world;
    const int64_t last = p->request->tokens_per_step ? (int64_t)MP_MAX(samples, 1) : 4096;
    const int64_t first = is_given(p, MP_KEY_BATCH) ? base->batch : 1;
    for (int64_t batch = first; batch <= MP_MAX(last, first); batch = next_batch(batch)) {
        struct mp_run run = *base;
        run.batch = batch;
        run.accumulate = accumulate_for(p, &run);
        run.given |= UINT64_C(1) << MP_KEY_BATCH | UINT64_C(1) << MP_KEY_ACCUMULATE;
        if (run.accumulate == 0)
            continue;
        struct mp_plan_option *const o = add_option(p, &run);
        const enum memplan_status status = o ? try_option(p, o) : MEMPLAN_STATUS_OK;
        if (status)
            return status;
        if (o && is_better(p, o, p->plan->best))
            p->plan->best = o;
        if (!o || (!o->fits && !o->beaten) || is_given(p, MP_KEY_BATCH) || p->request->aim == MP_PLAN_MEMORY)
            break;
    }
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status try_allocators(struct planner *p, const struct mp_run *base)
{
    static const char *const confs[] = {"", "expandable_segments:True"};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (is_given(p, MP_KEY_ALLOCATOR_CONF))
        return try_batches(p, base);
    for (size_t i = 0; i < MP_ARRAY_LEN(confs) && !status; i++) {
        struct mp_run run = *base;
        run.allocator_conf = confs[i];
        run.given |= i ? UINT64_C(1) << MP_KEY_ALLOCATOR_CONF : 0;
        status = try_batches(p, &run);
    }
    return status;
}

/* AdamW's implementations do the same sums; the fused one takes least of everything. */
static enum memplan_status try_optimizers(struct planner *p, const struct mp_run *base)
{
    struct mp_run run = *base;
    if (!is_given(p, MP_KEY_OPTIMIZER)) {
        run.optimizer = MP_OPTIMIZER_ADAMW_FUSED;
        run.given |= UINT64_C(1) << MP_KEY_OPTIMIZER;
    }
    return try_allocators(p, &run);
}

static enum memplan_status try_precisions(struct planner *p, const struct mp_run *base)
{
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (!p->request->precisions)
        return try_optimizers(p, base);
    for (unsigned i = 0; i < 32 && !status; i++) {
        struct mp_run run = *base;
        if (!(p->request->precisions >> i & 1u))
            continue;
        run.precision = (enum mp_precision)i;
        run.given |= UINT64_C(1) << MP_KEY_PRECISION;
        status = try_optimizers(p, &run);
    }
    return status;
}

static enum memplan_status try_ranks(struct planner *p, int64_t gpus)
{
    static const enum mp_parallel_kind kinds[] = {MP_PARALLEL_FSDP2, MP_PARALLEL_ZERO1, MP_PARALLEL_DDP};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    struct mp_run run = *p->request->run;
    if (gpus == 1 || is_given(p, MP_KEY_DATA_PARALLEL))
        return try_precisions(p, &run);
    for (size_t i = 0; i < MP_ARRAY_LEN(kinds) && !status; i++) {
        run = *p->request->run;
        run.parallel = kinds[i];
        run.world = gpus;
        if (!is_given(p, MP_KEY_GPUS_PER_NODE))
            run.gpus_per_node = gpus % 8 == 0 ? 8 : gpus;
        run.given |= UINT64_C(1) << MP_KEY_DATA_PARALLEL | UINT64_C(1) << MP_KEY_WORLD;
        status = try_precisions(p, &run);
    }
    return status;
}

static enum memplan_status try_all(struct planner *p)
{
    const int64_t gpus = MP_MAX(p->request->gpus, 1);
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (p->request->aim != MP_PLAN_GPUS)
        return try_ranks(p, gpus);
    for (int64_t n = 1; n <= gpus && !status && !p->plan->best; n = n * 2 > gpus && n < gpus ? gpus : n * 2)
        status = try_ranks(p, n);
    return status;
}

/* ---- the last word ---- */

static void find_best(struct planner *p)
{
    struct mp_plan *const plan = p->plan;
    plan->best = NULL;
    for (size_t i = 0; i < plan->n_options; i++)
        if (is_better(p, &plan->options[i], plan->best))
            plan->best = &plan->options[i];
}

/* The best one is replayed with every micro-batch of the step; where that changes the answer, it is planned so once more. */
static enum memplan_status confirm(struct planner *p)
{
    enum memplan_status status = MEMPLAN_STATUS_OK;
    p->exact = true;
    for (find_best(p); p->plan->best && !p->plan->best->confirmed && !status; find_best(p)) {
        struct mp_plan_option *const o = p->plan->best;
        o->confirmed = true;
        if (o->run.accumulate <= 2)
            continue;
        status = replay(&o->run, o, p->err);
        if (status || o->fits)
            continue;
        o->n_cuts = 0;
        status = try_option(p, o);
    }
    return status;
}

/* ---- memory against time ---- */

static int by_memory(const void *a, const void *b)
{
    const struct mp_plan_option *const x = a, *const y = b;
    if (x->device_used_bytes != y->device_used_bytes)
        return x->device_used_bytes < y->device_used_bytes ? -1 : 1;
    return (x->cost.tokens_per_s < y->cost.tokens_per_s) - (x->cost.tokens_per_s > y->cost.tokens_per_s);
}

/* Between everything recomputed and what fits, the best for several sizes of room. */
static enum memplan_status add_rooms(struct planner *p, const struct mp_plan_option *from, struct mp_plan_option *out, size_t *n)
{
    struct mp_plan_profile profile;
    struct mp_arena *const arena = &p->plan->arena;
    enum memplan_status status = mp_plan_profile_make(&from->run, arena, &profile, p->err);
    int *const all = status ? NULL : mp_arena_calloc(arena, (size_t)profile.n_layers, sizeof *all);
    if (status || !all)
        return status ? status : no_memory(p);
    for (int l = 0; l < profile.n_layers; l++)
        all[l] = RECOMPUTE;
    const uint64_t low = mp_plan_profile_peak(&profile, all), high = from->requested_bytes;
    for (int i = 0; i < FRONT_STEPS && low < high && !status; i++) {
        struct mp_plan_option *const o = &out[*n];
        *o = (struct mp_plan_option){.run = from->run};
        status = choose_blocks(p, o, &profile, low + (high - low) / FRONT_STEPS * (uint64_t)i);
        *n += !status && o->fits;
    }
    return status;
}

/* Options that no other one beats in both. */
static enum memplan_status find_front(struct planner *p)
{
    struct mp_plan *const plan = p->plan;
    size_t n = 0, kept = 0;
    struct mp_plan_option *const all = mp_arena_calloc(&plan->arena, plan->n_options * (FRONT_STEPS + 1) + 1, sizeof *all);
    if (!all)
        return no_memory(p);
    for (size_t i = 0; i < plan->n_options; i++) {
        if (!plan->options[i].fits)
            continue;
        all[n++] = plan->options[i];
        if (!is_given(p, MP_KEY_CHECKPOINT) && plan->options[i].run.allocator_conf == plan->best->run.allocator_conf) {
            const enum memplan_status status = add_rooms(p, &plan->options[i], all, &n);
            if (status)
                return status;
        }
    }
    qsort(all, n, sizeof *all, by_memory);
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || 1 / all[i].cost.tokens_per_s < 1 / all[kept - 1].cost.tokens_per_s * (1 - 1e-9))
            all[kept++] = all[i];
    plan->front = all;
    plan->n_front = kept;
    return MEMPLAN_STATUS_OK;
}

/* ---- when nothing fits ---- */

/* The smallest settings there are: one sequence, all recomputed. */
static struct mp_run smallest_run(const struct planner *p)
{
    struct mp_run run = *p->request->run;
    if (!is_given(p, MP_KEY_BATCH))
        run.batch = 1;
    if (!is_given(p, MP_KEY_CHECKPOINT)) {
        run.checkpoint = MP_CHECKPOINT_FULL;
        run.checkpoint_layers.n = 0;
    }
    if (!is_given(p, MP_KEY_OPTIMIZER))
        run.optimizer = MP_OPTIMIZER_ADAMW_FUSED;
    if (p->request->gpus > 1 && !is_given(p, MP_KEY_DATA_PARALLEL)) {
        run.parallel = MP_PARALLEL_FSDP2;
        run.world = p->request->gpus;
        run.gpus_per_node = run.world % 8 == 0 ? 8 : run.world;
    }
    run.accumulate = p->request->tokens_per_step ? 2 : run.accumulate;
    return run;
}

/* Whether it fits, with growing segments too where the allocator is free to choose. Runs that cannot be do not. */
static bool fits_somehow(const struct planner *p, const struct mp_run *run)
{
    struct memplan_error ignored = {0};
    struct mp_run other = *run;
    bool fits = false;
    if (mp_fits(run, &fits, &ignored) == MEMPLAN_STATUS_OK && fits)
        return true;
    if (is_given(p, MP_KEY_ALLOCATOR_CONF))
        return false;
    other.allocator_conf = "expandable_segments:True";
    return mp_fits(&other, &fits, &ignored) == MEMPLAN_STATUS_OK && fits;
}

static struct mp_plan_change *next_change(struct planner *p) { return &p->plan->changes[p->plan->n_changes]; }

static void try_shorter(struct planner *p, const struct mp_run *small)
{
    int64_t low = 0, high = small->seq / 64; /* in multiples of 64 */
    if (small->n_seq_lengths > 0)
        return;
    while (high - low > 1) {
        struct mp_run run = *small;
        const int64_t middle = low + (high - low) / 2;
        run.seq = middle * 64;
        *(fits_somehow(p, &run) ? &low : &high) = middle;
    }
    if (low == 0)
        return;
    struct mp_plan_change *const c = next_change(p);
    (void)snprintf(c->what, sizeof c->what, "sequences of at most %" PRId64 " tokens", low * 64);
    (void)snprintf(c->setting, sizeof c->setting, "--seq %" PRId64, low * 64);
    p->plan->n_changes++;
}

static void try_batch(struct planner *p, const struct mp_run *small)
{
    struct mp_run run = *small;
    if (!is_given(p, MP_KEY_BATCH) || small->batch < 2)
        return;
    for (run.batch = small->batch - 1; run.batch > 0 && !fits_somehow(p, &run); run.batch = run.batch > 8 ? run.batch / 2 : run.batch - 1)
        ;
    if (run.batch == 0)
        return;
    struct mp_plan_change *const c = next_change(p);
    (void)snprintf(c->what, sizeof c->what, "a micro-batch of %" PRId64, run.batch);
    (void)snprintf(c->setting, sizeof c->setting, "--batch %" PRId64, run.batch);
    p->plan->n_changes++;
}

static void try_given_checkpoint(struct planner *p, const struct mp_run *small)
{
    struct mp_run run = *small;
    if (!is_given(p, MP_KEY_CHECKPOINT) || small->checkpoint == MP_CHECKPOINT_FULL)
        return;
    run.checkpoint = MP_CHECKPOINT_FULL;
    run.checkpoint_layers.n = 0;
    if (!fits_somehow(p, &run))
        return;
    struct mp_plan_change *const c = next_change(p);
    (void)snprintf(c->what, sizeof c->what, "blocks recomputed as the plan chooses, instead of as given");
    (void)snprintf(c->setting, sizeof c->setting, "leave out --checkpoint");
    p->plan->n_changes++;
}

static void try_half_weights(struct planner *p, const struct mp_run *small)
{
    struct mp_run run = *small;
    if (!small->gpu->bf16 || small->precision == MP_PRECISION_BF16)
        return;
    run.precision = MP_PRECISION_BF16;
    if (!fits_somehow(p, &run))
        return;
    struct mp_plan_change *const c = next_change(p);
    (void)snprintf(c->what, sizeof c->what, "weights, gradients and optimizer state in bf16");
    (void)snprintf(c->setting, sizeof c->setting, "--precision bf16");
    p->plan->n_changes++;
}

static void try_small_optimizers(struct planner *p, const struct mp_run *small)
{
    static const enum mp_optimizer optimizers[] = {MP_OPTIMIZER_ADAFACTOR, MP_OPTIMIZER_SGD};
    for (size_t i = 0; i < MP_ARRAY_LEN(optimizers); i++) {
        struct mp_run run = *small;
        run.optimizer = optimizers[i];
        if (small->optimizer == optimizers[i] || !fits_somehow(p, &run))
            continue;
        struct mp_plan_change *const c = next_change(p);
        (void)snprintf(c->what, sizeof c->what, "an optimizer with less state");
        (void)snprintf(c->setting, sizeof c->setting, "--optimizer %s", mp_optimizer_text(optimizers[i]));
        p->plan->n_changes++;
        return;
    }
}

static void try_more_gpus(struct planner *p, const struct mp_run *small)
{
    if (is_given(p, MP_KEY_DATA_PARALLEL) && small->parallel != MP_PARALLEL_FSDP2)
        return;
    for (int64_t n = MP_MAX(p->request->gpus, 1) * 2; n <= 64; n *= 2) {
        struct mp_run run = *small;
        run.parallel = MP_PARALLEL_FSDP2;
        run.world = n;
        run.gpus_per_node = n % 8 == 0 ? 8 : n;
        if (!fits_somehow(p, &run))
            continue;
        struct mp_plan_change *const c = next_change(p);
        (void)snprintf(c->what, sizeof c->what, "%" PRId64 " of these cards, sharded (fsdp2)", n);
        (void)snprintf(c->setting, sizeof c->setting, "--gpus %" PRId64, n);
        p->plan->n_changes++;
        return;
    }
}

/* The smallest shipped card on which it fits. */
static void try_other_cards(struct planner *p, const struct mp_run *small)
{
    const struct mp_gpu *best = NULL;
    size_t n = 0;
    const struct mp_shipped *const all = mp_shipped_all(&n);
    for (size_t i = 0; i < n; i++) {
        struct memplan_error ignored = {0};
        struct mp_run run = *small;
        if (strcmp(all[i].kind, "gpus") != 0)
            continue;
        const struct mp_gpu *const gpu = mp_gpu_read(&p->plan->arena, all[i].name, &ignored);
        if (!gpu || gpu->total_bytes.value <= small->gpu->total_bytes.value || (best && gpu->total_bytes.value >= best->total_bytes.value))
            continue;
        run.gpu = gpu;
        if (fits_somehow(p, &run))
            best = gpu;
    }
    if (!best)
        return;
    struct mp_plan_change *const c = next_change(p);
    (void)snprintf(c->what, sizeof c->what, "a larger card: the smallest that does is the %s", best->product);
    (void)snprintf(c->setting, sizeof c->setting, "--gpu %s", best->name);
    p->plan->n_changes++;
}

static enum memplan_status find_changes(struct planner *p)
{
    static void (*const tries[])(struct planner *, const struct mp_run *) = {
        try_given_checkpoint, try_batch, try_shorter, try_half_weights, try_small_optimizers, try_more_gpus, try_other_cards};
    const struct mp_run small = smallest_run(p);
    struct mp_plan *const plan = p->plan;
    plan->changes = mp_arena_calloc(&plan->arena, MP_ARRAY_LEN(tries) + 1, sizeof *plan->changes);
    if (!plan->changes)
        return no_memory(p);
    for (size_t i = 0; i < MP_ARRAY_LEN(tries); i++)
        tries[i](p, &small);
    plan->proven = p->smallest_seen && plan->least_bytes > plan->available_bytes;
    return MEMPLAN_STATUS_OK;
}

/* ---- the whole ---- */

enum memplan_status mp_plan_make(const struct mp_plan_request *request, struct mp_plan *plan, struct memplan_error *err)
{
    struct planner p = {.plan = plan, .request = request, .err = err};
    struct mp_cost_rates rates;
    *plan = (struct mp_plan){.request = *request};
    mp_arena_init(&plan->arena);
    plan->options = mp_arena_calloc(&plan->arena, MAX_OPTIONS, sizeof *plan->options);
    enum memplan_status status = plan->options ? mp_cost_rates_read(request->run->gpu, &rates, err) : no_memory(&p);
    if (!status)
        status = try_all(&p);
    if (!status)
        status = confirm(&p);
    if (!status && !plan->best)
        status = find_changes(&p);
    if (!status && plan->best && request->pareto)
        status = find_front(&p);
    if (status)
        mp_plan_release(plan);
    return status;
}

void mp_plan_release(struct mp_plan *plan)
{
    mp_arena_release(&plan->arena);
    *plan = (struct mp_plan){0};
}
