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

enum { CHOICES = MP_PLAN_CHOICES, MAX_CUTS = 64, MAX_OPTIONS = 256, FRONT_STEPS = 8 };

#define LATER_SOLVE_MS 1000 /* once there is a plan, or a bound */
#define PROFILE_ERROR 0.005 /* of what mixtures of choices take (tests/unit/test_plan.c) */

/* What was found out of settings, whatever the allocator's. */
struct known {
    struct mp_run run;
    struct mp_step_cost kept; /* step_s 0: not yet */
    struct mp_plan_profile profile; /* n_layers 0: not yet */
};

struct planner {
    struct mp_plan *plan;
    const struct mp_plan_request *request;
    struct memplan_error *err;
    bool smallest_seen; /* least_bytes is set */
    bool exact;         /* replay every micro-batch */
    struct known *known;
    size_t n_known;
};

static enum memplan_status no_memory(const struct planner *p)
{
    return mp_error_set(p->err, MEMPLAN_STATUS_NOMEM, "out of memory while planning");
}

/* ---- choices of blocks as a run ---- */

static bool is_given(const struct planner *p, enum mp_run_key key) { return mp_run_is_given(p->request->run, key); }

/* The user says what to do with the blocks. */
static bool has_blocks(const struct planner *p) { return is_given(p, MP_KEY_CHECKPOINT) || is_given(p, MP_KEY_OFFLOAD); }

/* All blocks the same way; nothing needs memory then but the list. */
static bool treat_all(const struct planner *p, struct mp_run *run, enum mp_plan_choice choice)
{
    const int n = (int)mp_model_layers(run->model);
    int *const all = mp_arena_calloc(&p->plan->arena, (size_t)MP_MAX(n, 1), sizeof *all);
    for (int l = 0; all && l < n; l++)
        all[l] = (int)choice;
    return all && mp_plan_set_blocks(run, all, n, &p->plan->arena);
}

static void count_blocks(struct mp_plan_option *o)
{
    const struct mp_run *const run = &o->run;
    const int n = (int)mp_model_layers(run->model);
    const bool all = run->checkpoint == MP_CHECKPOINT_FULL || run->checkpoint == MP_CHECKPOINT_FULL_REENTRANT;
    memset(o->n_blocks, 0, sizeof o->n_blocks);
    o->n_blocks[MP_PLAN_RECOMPUTE] = all ? n : (int)run->checkpoint_layers.n;
    o->n_blocks[MP_PLAN_ATTENTION] = (int)run->recompute[MP_PART_ATTENTION].n;
    o->n_blocks[MP_PLAN_MLP] = (int)run->recompute[MP_PART_MLP].n;
    o->n_blocks[MP_PLAN_OFFLOAD] = (int)run->offload.n;
    o->n_blocks[MP_PLAN_KEEP] = n;
    for (int c = MP_PLAN_KEEP + 1; c < CHOICES; c++)
        o->n_blocks[MP_PLAN_KEEP] -= o->n_blocks[c];
}

/* ---- one set of settings ---- */

/* Of a step, all ranks together. */
static double tokens_of(const struct mp_run *run)
{
    return (double)run->batch * (double)run->seq * (double)run->accumulate * (double)run->world;
}

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

/* False: something else than the blocks takes more than the room. */
static bool problem_of(const struct mp_plan_profile *profile, uint64_t room_bytes, uint64_t *room, struct mp_ilp_problem *problem)
{
    *problem = (struct mp_ilp_problem){profile->n_layers, CHOICES, profile->n_instants, profile->cost_s, profile->bytes, room, 0};
    for (int t = 0; t < profile->n_instants; t++) {
        if (room_bytes < profile->base_bytes[t])
            return false;
        room[t] = room_bytes - profile->base_bytes[t];
    }
    return true;
}

/* The user's own choice: nothing to choose. */
static enum memplan_status take_as_given(struct planner *p, struct mp_plan_option *o)
{
    const struct mp_run few = shortened(p, &o->run);
    enum memplan_status status = replay(&few, o, p->err);
    if (!status)
        status = mp_cost_estimate(&o->run, &p->plan->arena, &o->cost, p->err);
    count_blocks(o);
    o->bound_s = o->greedy_s = o->cost.step_s;
    o->optimal = true;
    return status;
}

/*
 * Least memory: every block recomputed, or every block on the host, whatever it costs. The program may have thought that even that
 * does not fit.
 */
static enum memplan_status take_least_memory(struct planner *p, struct mp_plan_option *o)
{
    static const enum mp_plan_choice ways[] = {MP_PLAN_RECOMPUTE, MP_PLAN_OFFLOAD};
    struct mp_plan_option best = *o;
    bool found = false;
    for (size_t i = 0; i < MP_ARRAY_LEN(ways); i++) {
        struct mp_plan_option other = *o;
        if (!mp_plan_may(&o->run, ways[i]))
            continue;
        if (!treat_all(p, &other.run, ways[i]))
            return no_memory(p);
        const struct mp_run few = shortened(p, &other.run);
        const enum memplan_status status = replay(&few, &other, p->err);
        if (status)
            return status;
        if (!found || (other.fits && (!best.fits || other.device_used_bytes < best.device_used_bytes)))
            best = other;
        found = true;
        if (best.fits && p->request->aim != MP_PLAN_MEMORY)
            break; /* recomputing is faster */
    }
    *o = best;
    count_blocks(o);
    o->optimal = o->optimal && !o->fits;
    return mp_cost_estimate(&o->run, &p->plan->arena, &o->cost, p->err);
}

/* Nothing that these settings can do is as fast as what there is already. */
static bool is_beaten(const struct planner *p, const struct mp_plan_option *o)
{
    const struct mp_plan_option *const best = p->plan->best;
    if (p->request->aim == MP_PLAN_MEMORY || p->request->pareto || !best || best == o)
        return false;
    return p->request->tokens_per_step ? o->bound_s >= best->cost.step_s
                                       : o->bound_s / tokens_of(&o->run) >= best->cost.step_s / tokens_of(&best->run);
}

/* What treating a block leaves free at the loss, of block and choice where that is least: the next answer differs by one at least. */
static uint64_t smallest_saving(const struct mp_plan_profile *profile)
{
    const int n = profile->n_layers, loss = n + 1;
    uint64_t least = UINT64_MAX;
    for (int l = 0; l < n; l++) {
        const uint64_t kept = profile->bytes[(l * CHOICES + MP_PLAN_KEEP) * profile->n_instants + loss];
        for (int c = MP_PLAN_KEEP + 1; c < CHOICES; c++) {
            const uint64_t left = profile->bytes[(l * CHOICES + c) * profile->n_instants + loss];
            if (isfinite(profile->cost_s[l * CHOICES + c]) && kept > left)
                least = MP_MIN(least, kept - left);
        }
    }
    return least < UINT64_MAX ? least : 0;
}

/* The program's answer for one size of room, and the replay's word on it. */
struct attempt {
    struct mp_plan_option o;
    bool feasible, beaten;
    uint64_t peak_bytes; /* predicted */
};

static enum memplan_status try_room(struct planner *p, const struct mp_plan_option *from, const struct mp_plan_profile *profile,
                                    uint64_t room_bytes, struct attempt *a)
{
    struct mp_arena *const arena = &p->plan->arena;
    const size_t n = (size_t)profile->n_layers;
    int *const choice = mp_arena_calloc(arena, 2 * n, sizeof *choice), *const greedy = choice ? choice + n : NULL;
    uint64_t *const room = mp_arena_calloc(arena, (size_t)profile->n_instants, sizeof *room);
    const double keep_s = profile->keep.step_s, more = (double)from->run.accumulate;
    struct mp_ilp_problem problem;
    struct mp_ilp_solution s;
    double greedy_s = 0;
    *a = (struct attempt){.o = *from};
    if (!choice || !room)
        return no_memory(p);
    a->o.fits = false;
    a->o.greedy_s = -1;
    if (!problem_of(profile, room_bytes, room, &problem))
        return MEMPLAN_STATUS_OK;
    if (mp_ilp_greedy(&problem, greedy, &greedy_s))
        a->o.greedy_s = keep_s + greedy_s * more;
    problem.limit_ms = p->plan->best || from->n_cuts > 0 ? LATER_SOLVE_MS : 0;
    enum memplan_status status = mp_ilp_solve(&problem, choice, &s, p->err);
    if (status)
        return status;
    a->feasible = s.feasible;
    a->o.optimal = s.optimal;
    if (a->o.n_cuts == 0)
        a->o.bound_s = keep_s + MP_MAX(s.bound_s, 0) * more;
    a->o.beaten = a->beaten = is_beaten(p, &a->o);
    if (a->beaten || !a->feasible)
        return MEMPLAN_STATUS_OK;
    if (!mp_plan_set_blocks(&a->o.run, choice, (int)n, arena))
        return no_memory(p);
    a->peak_bytes = mp_plan_profile_peak(profile, choice);
    const struct mp_run few = shortened(p, &a->o.run);
    return replay(&few, &a->o, p->err);
}

/*
 * The room is cut until the replay fits: by a little three times, then by twice as much each time. What was cut too much in the end
 * is given back by halves, as far as that fits.
 */
static enum memplan_status choose_blocks(struct planner *p, struct mp_plan_option *o,
                                         const struct mp_plan_profile *profile, uint64_t available)
{
    enum { SMALL_CUTS = 3, HALVES = 4 };
    const uint64_t cut = MP_MAX(smallest_saving(profile) / 2, 1);
    uint64_t room = available, fails = 0, step = cut;
    struct attempt a;
    o->cost = profile->keep;
    o->fits = false;
    while (!o->fits) {
        const enum memplan_status status = try_room(p, o, profile, room, &a);
        if (status)
            return status;
        const bool hopeless = !a.feasible || (!a.o.fits && a.o.n_cuts == MAX_CUTS);
        *o = a.o;
        if (a.beaten)
            return MEMPLAN_STATUS_OK;
        if (hopeless)
            return take_least_memory(p, o);
        if (o->fits)
            break;
        fails = a.peak_bytes;
        step = ++o->n_cuts > SMALL_CUTS ? MP_MIN(step, UINT64_MAX / 4) * 2 : cut;
        room = fails - MP_MIN(fails, step);
    }
    for (int i = 0; i < HALVES && step > cut && fails > room; i++) {
        const uint64_t middle = room + (fails - room) / 2;
        const enum memplan_status status = try_room(p, o, profile, middle, &a);
        if (status)
            return status;
        if (a.o.fits) {
            *o = a.o;
            room = middle;
        } else {
            o->n_cuts += a.feasible;
            fails = a.feasible ? MP_MIN(a.peak_bytes, middle) : middle;
        }
    }
    count_blocks(o);
    return mp_cost_estimate(&o->run, &p->plan->arena, &o->cost, p->err);
}

/* What would fit if anything does: every block recomputed, or every block on the host. */
static enum memplan_status try_smallest(struct planner *p, const struct mp_run *run, struct mp_plan_option *o, uint64_t *available)
{
    uint64_t least = UINT64_MAX;
    for (int way = 0; way < 2; way++) {
        struct mp_run small = shortened(p, run);
        uint64_t bytes;
        const enum mp_plan_choice choice = way ? MP_PLAN_OFFLOAD : MP_PLAN_RECOMPUTE;
        if (way && (has_blocks(p) || !mp_plan_may(run, choice) || least <= *available))
            break;
        if (!has_blocks(p) && !treat_all(p, &small, choice))
            return no_memory(p);
        const enum memplan_status status = demand(&small, &bytes, available, p->err);
        if (status)
            return status;
        least = MP_MIN(least, bytes);
    }
    o->proven_too_large = least > *available;
    if (o->proven_too_large && !has_blocks(p) && mp_plan_may(run, MP_PLAN_OFFLOAD)) {
        const struct mp_run few = shortened(p, run);
        struct mp_plan_profile profile;
        const enum memplan_status status = mp_plan_profile_make(&few, &p->plan->arena, &profile, p->err);
        if (status)
            return status;
        const uint64_t mixed = (uint64_t)((double)mp_plan_profile_least(&profile) * (1 - PROFILE_ERROR));
        least = MP_MIN(least, mixed);
        o->proven_too_large = least > *available;
    }
    if (!p->smallest_seen || least < p->plan->least_bytes) {
        p->plan->least_bytes = least;
        p->plan->available_bytes = *available;
        p->smallest_seen = true;
    }
    return MEMPLAN_STATUS_OK;
}

static bool differ_in_allocator_only(const struct mp_run *a, const struct mp_run *b)
{
    return a->batch == b->batch && a->accumulate == b->accumulate && a->precision == b->precision && a->optimizer == b->optimizer &&
           a->parallel == b->parallel && a->world == b->world;
}

/* The entry for these settings, a new one if need be; there is room for one each. */
static struct known *recall(struct planner *p, const struct mp_run *run)
{
    for (size_t i = 0; i < p->n_known; i++)
        if (differ_in_allocator_only(&p->known[i].run, run))
            return &p->known[i];
    p->known[p->n_known] = (struct known){.run = *run};
    return &p->known[p->n_known++];
}

/* Keeping everything is the fastest, whether it fits or not. */
static enum memplan_status time_kept(struct planner *p, struct mp_plan_option *o)
{
    struct known *const known = recall(p, &o->run);
    struct mp_run kept = o->run;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (!has_blocks(p) && !treat_all(p, &kept, MP_PLAN_KEEP))
        return no_memory(p);
    if (!(known->kept.step_s > 0))
        status = mp_cost_estimate(&kept, &p->plan->arena, &known->kept, p->err);
    o->cost = known->kept;
    o->bound_s = o->cost.step_s;
    return status;
}

static enum memplan_status try_option(struct planner *p, struct mp_plan_option *o)
{
    uint64_t available = 0;
    enum memplan_status status = time_kept(p, o);
    o->beaten = !status && is_beaten(p, o);
    if (status || o->beaten)
        return status;
    status = try_smallest(p, &o->run, o, &available);
    if (status || o->proven_too_large)
        return status;
    if (has_blocks(p))
        return take_as_given(p, o);
    if (p->request->aim == MP_PLAN_MEMORY) {
        status = take_least_memory(p, o);
        o->bound_s = o->greedy_s = o->cost.step_s;
        o->optimal = true;
        return status;
    }
    struct mp_plan_profile *const profile = &recall(p, &o->run)->profile;
    if (profile->n_layers == 0)
        status = mp_plan_profile_make(&o->run, &p->plan->arena, profile, p->err);
    return status ? status : choose_blocks(p, o, profile, available);
}

/* ---- which settings ---- */

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
    return n <= MP_ACCUMULATE_MAX ? (int64_t)MP_MAX(n, 1) : 0;
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
        if (p->request->progress)
            p->request->progress(p->request->context, p->plan->n_options);
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

/* Between the least that the blocks can take and what fits, the best for several sizes of room. */
static enum memplan_status add_rooms(struct planner *p, const struct mp_plan_option *from, struct mp_plan_option *out, size_t *n)
{
    struct mp_plan_profile profile;
    struct mp_arena *const arena = &p->plan->arena;
    enum memplan_status status = mp_plan_profile_make(&from->run, arena, &profile, p->err);
    int *const all = status ? NULL : mp_arena_calloc(arena, (size_t)profile.n_layers, sizeof *all);
    if (status || !all)
        return status ? status : no_memory(p);
    uint64_t low = UINT64_MAX;
    for (int c = MP_PLAN_RECOMPUTE; c < CHOICES; c++) {
        for (int l = 0; l < profile.n_layers; l++)
            all[l] = c;
        if (isfinite(profile.cost_s[c]))
            low = MP_MIN(low, mp_plan_profile_peak(&profile, all));
    }
    const uint64_t high = from->requested_bytes;
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
        if (!has_blocks(p) && plan->options[i].run.allocator_conf == plan->best->run.allocator_conf) {
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
    if (!has_blocks(p))
        run.checkpoint = MP_CHECKPOINT_FULL;
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
    int64_t low = 0, high = small->batch;
    if (!is_given(p, MP_KEY_BATCH))
        return;
    while (high - low > 1) {
        struct mp_run run = *small;
        run.batch = low + (high - low) / 2;
        *(fits_somehow(p, &run) ? &low : &high) = run.batch;
    }
    if (low == 0)
        return;
    struct mp_plan_change *const c = next_change(p);
    (void)snprintf(c->what, sizeof c->what, "a micro-batch of %" PRId64, low);
    (void)snprintf(c->setting, sizeof c->setting, "--batch %" PRId64, low);
    p->plan->n_changes++;
}

static void try_given_checkpoint(struct planner *p, const struct mp_run *small)
{
    struct mp_run run = *small;
    if (!has_blocks(p) || small->checkpoint == MP_CHECKPOINT_FULL || !treat_all(p, &run, MP_PLAN_RECOMPUTE))
        return;
    if (!fits_somehow(p, &run))
        return;
    struct mp_plan_change *const c = next_change(p);
    (void)snprintf(c->what, sizeof c->what, "blocks recomputed as the plan chooses, instead of as given");
    (void)snprintf(c->setting, sizeof c->setting, "leave out %s", is_given(p, MP_KEY_CHECKPOINT) ? "--checkpoint" : "--offload");
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
    struct mp_rates rates;
    *plan = (struct mp_plan){.request = *request};
    mp_arena_init(&plan->arena);
    plan->options = mp_arena_calloc(&plan->arena, MAX_OPTIONS, sizeof *plan->options);
    p.known = mp_arena_calloc(&plan->arena, MAX_OPTIONS, sizeof *p.known);
    enum memplan_status status = plan->options && p.known ? mp_rates_read(request->run->gpu, &rates, err) : no_memory(&p);
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
