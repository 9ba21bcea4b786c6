/* SPDX-License-Identifier: MIT */
/*
 * What the blocks of a job take, from one shadow run for each choice, which treats all blocks that way.
 *
 *     live bytes │      ╱╲ loss
 *                │    ╱│  │╲        a step up for every block's forward (what it saves), down for its backward; on top of each
 *                │  ╱  │  │  ╲      step what the block needs while it runs
 *                └──────────────▶
 */
#include "plan/plan.h"

#include <math.h>

#include "arch/arch.h"
#include "train/job.h"

enum { CHOICES = MP_PLAN_CHOICES };

/* ---- choices ---- */

const char *mp_plan_choice_text(enum mp_plan_choice choice)
{
    static const char *const texts[] = {"kept", "recomputed", "attention recomputed", "MLP recomputed", "offloaded"};
    return (size_t)choice < MP_ARRAY_LEN(texts) ? texts[choice] : "?";
}

bool mp_plan_may(const struct mp_run *run, enum mp_plan_choice choice)
{
    struct memplan_error ignored = {0};
    if (choice == MP_PLAN_KEEP || choice == MP_PLAN_RECOMPUTE)
        return true;
    const struct mp_family *const family = mp_family_find(run->model, &ignored);
    if (!family || !mp_run_may_treat_blocks(run))
        return false;
    return choice == MP_PLAN_OFFLOAD || family->has_part[choice == MP_PLAN_MLP ? MP_PART_MLP : MP_PART_ATTENTION];
}

static bool collect(struct mp_layer_set *set, const int *choice, int n, enum mp_plan_choice wanted, struct mp_arena *arena)
{
    int32_t *const layers = mp_arena_calloc(arena, (size_t)n + 1, sizeof *layers);
    *set = (struct mp_layer_set){.layers = layers};
    for (int l = 0; layers && l < n; l++)
        if (choice[l] == (int)wanted)
            layers[set->n++] = l;
    return layers != NULL;
}

bool mp_plan_set_blocks(struct mp_run *run, const int *choice, int n_layers, struct mp_arena *arena)
{
    const bool memory = collect(&run->checkpoint_layers, choice, n_layers, MP_PLAN_RECOMPUTE, arena) &&
                        collect(&run->recompute[MP_PART_ATTENTION], choice, n_layers, MP_PLAN_ATTENTION, arena) &&
                        collect(&run->recompute[MP_PART_MLP], choice, n_layers, MP_PLAN_MLP, arena) &&
                        collect(&run->offload, choice, n_layers, MP_PLAN_OFFLOAD, arena);
    const size_t n = run->checkpoint_layers.n;
    run->checkpoint = n == 0 ? MP_CHECKPOINT_NONE : n == (size_t)n_layers ? MP_CHECKPOINT_FULL : MP_CHECKPOINT_LAYERS;
    if (run->checkpoint == MP_CHECKPOINT_FULL)
        run->checkpoint_layers = (struct mp_layer_set){0};
    run->given |= UINT64_C(1) << MP_KEY_CHECKPOINT | (run->offload.n > 0 ? UINT64_C(1) << MP_KEY_OFFLOAD : 0);
    return memory;
}

/* ---- one course ---- */

/* One run of the model, at every instant. */
struct course {
    uint64_t *saved;    /* by block: what its forward leaves behind */
    uint64_t *at_loss[2]; /* by block: what of it lives when head and loss take most, forward (autocast holds cast weights) and backward */
    uint64_t *held;     /* by block: now */
    uint64_t *forward;  /* highest while its forward runs */
    uint64_t *backward;
    uint64_t loss[2];   /* highest between the last block's forward and its backward, in the two phases */
    uint64_t rest;      /* highest before and after the blocks: other micro-batches take no more than the last one */
    int returned;       /* 1 + block that the backward pass has reached; 0: none yet */
};

static bool course_init(struct course *c, struct mp_arena *arena, size_t n)
{
    uint64_t **const arrays[] = {&c->saved, &c->at_loss[0], &c->at_loss[1], &c->held, &c->forward, &c->backward};
    *c = (struct course){0};
    for (size_t i = 0; i < MP_ARRAY_LEN(arrays); i++)
        if ((*arrays[i] = mp_arena_calloc(arena, n, sizeof(uint64_t))) == NULL)
            return false;
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Phases of the last micro-batch: its forward ends at the mark `*forward`, its backward at the next. False: there is none. */
static bool last_micro_batch(const struct mp_program *p, uint32_t *forward)
{
    for (uint32_t i = p->n_phases; i-- > 0;) {
        if (ends_with(p->phases[i].name, ".fwd")) {
            *forward = i;
            return i > 0 && i + 1 < p->n_phases;
        }
    }
    return false;
}

/* Where an event lies. */
enum place { ELSEWHERE, OTHER_MICRO_BATCH, LAST_FORWARD, LAST_BACKWARD };

static enum place place_of(const struct mp_program *p, uint32_t phase, uint32_t forward)
{
    if (phase == forward)
        return LAST_FORWARD;
    if (phase == forward + 1)
        return LAST_BACKWARD;
    if (phase >= p->n_phases)
        return ELSEWHERE;
    return ends_with(p->phases[phase].name, ".fwd") || ends_with(p->phases[phase].name, ".bwd") ? OTHER_MICRO_BATCH : ELSEWHERE;
}

static void note(struct course *c, const struct mp_event *e, uint64_t live, enum place place, int n)
{
    const bool in_block = e->layer >= 0 && e->layer < n;
    const int backward = place == LAST_BACKWARD;
    uint64_t *highest = &c->loss[backward];
    if (place == OTHER_MICRO_BATCH)
        return;
    if (place == LAST_BACKWARD && in_block)
        c->returned = e->layer + 1;
    if (place != ELSEWHERE && in_block)
        highest = backward ? &c->backward[e->layer] : &c->forward[e->layer];
    else if (place == ELSEWHERE)
        highest = &c->rest;
    else if (c->returned > 0) /* between blocks: gathered weights, reduced gradients; then the embedding's */
        highest = &c->backward[c->returned - 1];
    if (live <= *highest)
        return;
    *highest = live;
    if (highest == &c->loss[backward])
        memcpy(c->at_loss[backward], c->held, (size_t)n * sizeof *c->held);
}

/* layers: of each storage that the forward of the last micro-batch made, -1: none. */
static void follow(const struct mp_program *p, uint32_t forward, struct course *c, int16_t *layers, int n)
{
    uint64_t live = 0;
    uint32_t phase = 0;
    for (uint32_t i = 0; i < p->n_events; i++) {
        const struct mp_event *const e = &p->events[i];
        const enum place place = place_of(p, phase, forward);
        if (e->kind == MP_EVENT_MARK) {
            phase++;
        } else if (e->kind == MP_EVENT_ALLOC) {
            live += e->bytes;
            layers[e->id] = place == LAST_FORWARD && e->layer < n ? e->layer : (int16_t)-1;
            if (layers[e->id] >= 0)
                c->held[e->layer] += e->bytes;
            note(c, e, live, place, n);
        } else if (e->kind == MP_EVENT_FREE) {
            live -= e->bytes;
            if (layers[e->id] >= 0)
                c->held[layers[e->id]] -= e->bytes;
        }
        if (e->kind == MP_EVENT_MARK && phase == forward + 1)
            memcpy(c->saved, c->held, (size_t)n * sizeof *c->held);
    }
}

/* What the run takes and how long it does: one shadow run tells both. */
static enum memplan_status run_course(const struct mp_run *run, struct mp_arena *arena, struct course *c, struct mp_step_cost *cost,
                                      int n, struct memplan_error *err)
{
    struct mp_program program;
    struct mp_job job;
    struct mp_run few = *run;
    uint32_t forward = 0, first = 0;
    few.accumulate = MP_MIN(run->accumulate, 2);
    mp_program_init(&program);
    enum memplan_status status = mp_job_open(&job, &few, &program, err);
    if (!status)
        status = mp_job_build(&job);
    for (int step = 0; step < 2 && !status; step++) {
        first = program.n_events;
        program.keep_ops = step == 1;
        status = mp_job_step(&job);
    }
    if (!status && !last_micro_batch(&program, &forward))
        status = mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "framework: plans need a loop with a forward and a backward phase");
    int16_t *const layers = status ? NULL : mp_malloc((program.n_allocs + 1) * sizeof *layers);
    if (!status && (!layers || !course_init(c, arena, (size_t)n)))
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while planning");
    if (!status) {
        follow(&program, forward, c, layers, n);
        status = mp_cost_of_step(run, &program, first, arena, cost, err);
    }
    free(layers);
    mp_job_close(&job);
    mp_program_release(&program);
    return status;
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

static uint64_t *cell(const struct mp_plan_profile *p, int layer, int choice, int instant)
{
    return &p->bytes[(layer * CHOICES + choice) * p->n_instants + instant];
}

/*
 * Instants: 0 … n-1 the blocks' forwards, n head and loss forward, n+1 backward, n+2 … 2n+1 the blocks' backwards in their order; the
 * last one is whatever else a step does.
 */
static void fill(const struct mp_plan_profile *p, const struct course *c, int choice)
{
    const int n = p->n_layers;
    uint64_t before[3] = {0}; /* left by the blocks before: at the loss forward, backward, and after */
    for (int l = 0; l < n; l++) {
        *cell(p, l, choice, l) = less(c->forward[l], before[0]);
        *cell(p, l, choice, n + 2 + l) = less(c->backward[l], before[2]);
        for (int t = l + 1; t <= n; t++)
            *cell(p, l, choice, t) = c->at_loss[0][l];
        *cell(p, l, choice, n + 1) = c->at_loss[1][l];
        for (int t = n + 3 + l; t < 2 * n + 2; t++)
            *cell(p, l, choice, t) = c->saved[l];
        before[0] += c->at_loss[0][l];
        before[1] += c->at_loss[1][l];
        before[2] += c->saved[l];
    }
    for (int i = 0; i < 2; i++)
        p->base_bytes[n + i] = MP_MAX(p->base_bytes[n + i], less(c->loss[i], before[i]));
    p->base_bytes[p->n_instants - 1] = MP_MAX(p->base_bytes[p->n_instants - 1], c->rest);
}

/* A choice costs what its run takes longer than the one that keeps everything, in the proportion of the blocks' forwards. */
static void fill_costs(const struct mp_plan_profile *p, int choice, const struct mp_step_cost *cost)
{
    const struct mp_step_cost *const keep = &p->keep;
    const double more = cost->forward_s + cost->backward_s - keep->forward_s - keep->backward_s;
    double all = 0;
    for (int l = 0; l < p->n_layers; l++)
        all += keep->layer_forward_s[l];
    for (int l = 0; l < p->n_layers; l++)
        p->cost_s[l * CHOICES + choice] = all > 0 && more > 0 ? more * keep->layer_forward_s[l] / all : 0;
}

static enum memplan_status profile_choice(const struct mp_run *run, struct mp_plan_profile *profile, int choice, struct mp_arena *arena,
                                          struct memplan_error *err)
{
    struct course course;
    struct mp_step_cost cost;
    struct mp_run treated = *run;
    int *const all = mp_arena_calloc(arena, (size_t)profile->n_layers, sizeof *all);
    for (int l = 0; all && l < profile->n_layers; l++) {
        all[l] = choice;
        profile->cost_s[l * CHOICES + choice] = INFINITY;
    }
    if (!all || !mp_plan_set_blocks(&treated, all, profile->n_layers, arena))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while planning");
    if (!mp_plan_may(run, (enum mp_plan_choice)choice))
        return MEMPLAN_STATUS_OK;
    const enum memplan_status status = run_course(&treated, arena, &course, &cost, profile->n_layers, err);
    if (status)
        return status;
    if (choice == MP_PLAN_KEEP)
        profile->keep = cost;
    fill(profile, &course, choice);
    fill_costs(profile, choice, &cost);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_plan_profile_make(const struct mp_run *run, struct mp_arena *arena, struct mp_plan_profile *profile,
                                         struct memplan_error *err)
{
    const int n = (int)mp_model_layers(run->model);
    const size_t layers = (size_t)MP_MAX(n, 1), instants = 2 * layers + 3;
    if (n < 1 || n > MP_LAYERS_MAX)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "%s: the file does not say how many blocks there are", run->model->origin);
    *profile = (struct mp_plan_profile){.n_layers = n, .n_instants = (int)instants};
    profile->cost_s = mp_arena_calloc(arena, layers * CHOICES, sizeof(double));
    profile->bytes = mp_arena_calloc(arena, layers * CHOICES * instants, sizeof(uint64_t));
    profile->base_bytes = mp_arena_calloc(arena, instants, sizeof(uint64_t));
    if (!profile->cost_s || !profile->bytes || !profile->base_bytes)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while planning");
    for (int choice = 0; choice < CHOICES; choice++) {
        const enum memplan_status status = profile_choice(run, profile, choice, arena, err);
        if (status)
            return status;
    }
    return MEMPLAN_STATUS_OK;
}

uint64_t mp_plan_profile_peak(const struct mp_plan_profile *p, const int *choice)
{
    uint64_t peak = 0;
    for (int t = 0; t < p->n_instants; t++) {
        uint64_t sum = p->base_bytes[t];
        for (int l = 0; l < p->n_layers; l++)
            sum += *cell(p, l, choice[l], t);
        peak = MP_MAX(peak, sum);
    }
    return peak;
}

uint64_t mp_plan_profile_least(const struct mp_plan_profile *p)
{
    uint64_t peak = 0;
    for (int t = 0; t < p->n_instants; t++) {
        uint64_t sum = p->base_bytes[t];
        for (int l = 0; l < p->n_layers; l++) {
            uint64_t least = UINT64_MAX;
            for (int c = 0; c < CHOICES; c++)
                if (isfinite(p->cost_s[l * CHOICES + c]))
                    least = MP_MIN(least, *cell(p, l, c, t));
            sum += least;
        }
        peak = MP_MAX(peak, sum);
    }
    return peak;
}
