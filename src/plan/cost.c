/* SPDX-License-Identifier: MIT */
/* Plays the operations that a step records on two clocks, the host's and the device's. */
#include "plan/cost.h"

#include <math.h>

#include "train/job.h"

/* ---- a step ---- */

enum phase { FORWARD, BACKWARD, REST };

static enum phase phase_of(const char *name)
{
    const size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".fwd") == 0 ? FORWARD : n > 4 && strcmp(name + n - 4, ".bwd") == 0 ? BACKWARD : REST;
}

struct clocks {
    const struct mp_run *run;
    const struct mp_program *p;
    struct mp_rates rates;
    double host_s, device_s; /* now */
    double last_s;           /* end of the phase before */
    int micro_batch;         /* 0: the first; 1: any other */
    double phases_s[2][3];   /* by micro-batch */
    double busy_s[2][3];
    uint64_t host_bytes;
    int checkpointed[2];     /* block whose checkpoints were charged last, in forward and backward; -1: none */
    double *layers;          /* forward seconds of blocks on the device */
    int64_t n_layers;
};

static uint64_t tensor_bytes(const struct mp_op_tensor *t)
{
    uint64_t bytes = mp_dtype_bytes(t->dtype);
    for (int i = 0; i < t->shape.n; i++)
        bytes *= (uint64_t)t->shape.d[i];
    return bytes;
}

static uint64_t power_of_two(uint64_t bytes)
{
    uint64_t power = 1;
    while (power < bytes)
        power *= 2;
    return power;
}

static double now(const struct clocks *c) { return MP_MAX(c->host_s, c->device_s); }

/* Entering a block costs the host its checkpoints; running it again costs them once more. */
static void enter_block(struct clocks *c, const struct mp_op_record *op, enum phase phase)
{
    if (op->layer < 0 || op->layer == c->checkpointed[phase] || (phase == BACKWARD && !mp_is_recomputed(op->op)))
        return;
    c->checkpointed[phase] = op->layer;
    c->host_s += mp_checkpoint_seconds(c->run, op->layer, phase == BACKWARD);
}

static void add_operation(struct clocks *c, const struct mp_op_record *op, enum phase phase)
{
    const double device_s = mp_device_seconds(&c->rates, c->run, c->p, op);
    enter_block(c, op, phase);
    c->host_s += mp_host_seconds(c->run, op, phase == BACKWARD);
    c->device_s = MP_MAX(c->device_s, c->host_s) + device_s;
    c->busy_s[c->micro_batch][phase] += device_s;
    if (mp_waits(op)) {
        c->host_s = c->device_s;
        c->host_bytes += c->micro_batch == 0 ? power_of_two(tensor_bytes(&c->p->op_tensors[op->first_tensor])) : 0;
    }
    if (c->micro_batch == 0 && phase == FORWARD && op->layer >= 0 && op->layer < c->n_layers)
        c->layers[op->layer] += device_s;
}

/* The update of a parameter. Where all are listed first, the device has nothing to do meanwhile; the rest of the phase is as usual. */
static void add_update(struct clocks *c, const struct mp_op_record *op)
{
    const struct mp_update_cost cost = mp_update_cost(c->run);
    const double device_s = cost.passes * (double)tensor_bytes(&c->p->op_tensors[op->first_tensor]) / c->rates.memory_bytes;
    c->host_s += cost.host_s;
    c->device_s = cost.listed ? MP_MAX(c->device_s, c->last_s) + cost.host_s + device_s : MP_MAX(c->device_s, c->host_s) + device_s;
    c->busy_s[c->micro_batch][REST] += device_s;
}

static void end_phase(struct clocks *c, enum phase phase)
{
    c->phases_s[c->micro_batch][phase] += now(c) - c->last_s;
    c->last_s = now(c);
    if (phase == BACKWARD)
        c->micro_batch = 1;
    c->checkpointed[FORWARD] = c->checkpointed[BACKWARD] = -1;
}

/* The step whose events begin at `first`. */
static void play_step(struct clocks *c, uint32_t first)
{
    const struct mp_program *const p = c->p;
    uint32_t next = 0;
    c->checkpointed[FORWARD] = c->checkpointed[BACKWARD] = -1;
    while (next < p->n_phases && p->phases[next].event < first)
        next++;
    for (uint32_t i = first; i < p->n_events && next < p->n_phases; i++) {
        const struct mp_event *const e = &p->events[i];
        const enum phase phase = phase_of(p->phases[next].name);
        if (e->kind == MP_EVENT_MARK) {
            end_phase(c, phase);
            next++;
        } else if (e->kind == MP_EVENT_OP && phase == REST) {
            add_update(c, &p->ops[e->id]);
        } else if (e->kind == MP_EVENT_OP) {
            add_operation(c, &p->ops[e->id], phase);
        }
    }
}

/* ---- collectives ---- */

static double parameter_bytes(const struct mp_run *run, struct memplan_error *err)
{
    struct mp_program program;
    struct mp_job job;
    double bytes = -1;
    struct mp_run alone = *run;
    alone.parallel = MP_PARALLEL_NONE;
    alone.world = alone.gpus_per_node = 1;
    mp_program_init(&program);
    if (mp_job_open(&job, &alone, &program, err) == MEMPLAN_STATUS_OK && mp_job_build(&job) == MEMPLAN_STATUS_OK) {
        bytes = 0;
        for (int i = 0; i < job.net.n_parameters; i++)
            bytes += (double)mp_nbytes(job.net.parameters[i]);
    }
    mp_job_close(&job);
    mp_program_release(&program);
    return bytes;
}

/*
 * Rings: all-reduce moves every byte twice, reduce-scatter and all-gather once. DDP's and FSDP's hide behind the backward pass (and
 * FSDP's gathers behind the forward); zero1 sends the updated parameters when nothing else runs.
 */
static enum memplan_status add_collectives(const struct mp_run *run, struct mp_step_cost *cost, struct memplan_error *err)
{
    struct mp_rates rates;
    const double ranks = (double)run->world;
    if (run->parallel == MP_PARALLEL_NONE || run->world < 2 || run->no_collectives)
        return MEMPLAN_STATUS_OK;
    enum memplan_status status = mp_rates_read(run->gpu, &rates, err);
    const double bytes = status ? 0 : parameter_bytes(run, err);
    if (status || bytes < 0)
        return status ? status : err->status;
    const double one_way = bytes * (ranks - 1) / ranks / (run->world > run->gpus_per_node ? rates.network_bytes : rates.link_bytes);
    const double all_backward = cost->backward_s, all_forward = cost->forward_s;
    if (run->parallel == MP_PARALLEL_DDP)
        cost->communication_s = fmax(0, 2 * one_way - all_backward);
    else if (run->parallel == MP_PARALLEL_ZERO1)
        cost->communication_s = fmax(0, 2 * one_way - all_backward) + one_way;
    else /* sharded parameters come before every forward and, unless they are kept, every backward */
        cost->communication_s = (double)run->accumulate * (fmax(0, one_way - all_forward) + fmax(0, 2 * one_way - all_backward));
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_cost_of_step(const struct mp_run *run, const struct mp_program *p, uint32_t first, struct mp_arena *arena,
                                    struct mp_step_cost *cost, struct memplan_error *err)
{
    struct clocks c = {.run = run, .p = p, .n_layers = MP_MAX(mp_model_layers(run->model), 0)};
    *cost = (struct mp_step_cost){.n_layers = c.n_layers};
    cost->layer_forward_s = c.layers = mp_arena_calloc(arena, (size_t)cost->n_layers + 1, sizeof *cost->layer_forward_s);
    if (!cost->layer_forward_s)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while timing");
    enum memplan_status status = mp_rates_read(run->gpu, &c.rates, err);
    if (status)
        return status;
    play_step(&c, first);
    const double more = (double)(run->accumulate - 1);
    cost->forward_s = c.phases_s[0][FORWARD];
    cost->backward_s = c.phases_s[0][BACKWARD];
    cost->optimizer_s = c.phases_s[0][REST] + c.phases_s[1][REST];
    cost->again_s = c.phases_s[1][FORWARD] + c.phases_s[1][BACKWARD];
    cost->host_bytes = c.host_bytes;
    cost->device_s = c.busy_s[0][FORWARD] + c.busy_s[0][BACKWARD] + more * (c.busy_s[1][FORWARD] + c.busy_s[1][BACKWARD]) +
                     c.busy_s[0][REST] + c.busy_s[1][REST];
    status = add_collectives(run, cost, err);
    cost->step_s = cost->forward_s + cost->backward_s + more * cost->again_s + cost->optimizer_s + cost->communication_s;
    cost->tokens_per_s = (double)run->batch * (double)run->seq * (double)run->accumulate * (double)run->world / cost->step_s;
    return status;
}

enum memplan_status mp_cost_estimate(const struct mp_run *run, struct mp_arena *arena, struct mp_step_cost *cost, struct memplan_error *err)
{
    struct mp_run few = *run;
    struct mp_program program;
    struct mp_job job;
    few.accumulate = MP_MIN(run->accumulate, 2);
    mp_program_init(&program);
    enum memplan_status status = mp_job_open(&job, &few, &program, err);
    if (!status)
        status = mp_job_build(&job);
    if (!status)
        status = mp_job_step(&job);
    const uint32_t first = program.n_events;
    program.keep_ops = true;
    if (!status)
        status = mp_job_step(&job);
    if (!status)
        status = mp_cost_of_step(run, &program, first, arena, cost, err);
    mp_job_close(&job);
    mp_program_release(&program);
    return status;
}
