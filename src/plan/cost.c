/* SPDX-License-Identifier: MIT */
/*
 * Adds up the operations that a step records.
 *
 * Shares of a data sheet's rates. The first four and the gap are fitted to ten of the sixteen runs in
 * validate/results/h200-steps.jsonl; the other six set no number, but were looked at while the form was settled. The shares of
 * attention, host and links are assumptions. Other cards are taken to reach the same shares of theirs.
 */
#include "plan/cost.h"

#include <math.h>

#include "shadow/record.h"
#include "train/job.h"

#define HALF_SHARE 0.698      /* matrix products, all sizes multiples of 8 */
#define ODD_HALF_SHARE 0.145  /* any size is not, such as a vocabulary of 50257 */
#define FP32_SHARE 0.780
#define MEMORY_SHARE 0.715
#define GAP_S 12.2e-6         /* per operation: launch, start and tail */
#define ATTENTION_SHARE 0.657 /* fused attention, flops counted for the half that a causal mask leaves */
#define BACKWARD_ATTENTION 0.75 /* of the forward's rate */
#define HOST_SHARE 0.8
#define LINK_SHARE 0.8

/* Passes over a parameter's bytes: torch/optim/adamw.py, _multi_tensor_adamw: eight kernels that read and write 20 times. */
enum { FOREACH_PASSES = 20, FUSED_PASSES = 7 };

enum memplan_status mp_cost_rates_read(const struct mp_gpu *gpu, struct mp_cost_rates *rates, struct memplan_error *err)
{
    const double half = MP_MAX(mp_gpu_rate(gpu, "flops_per_s.bf16"), mp_gpu_rate(gpu, "flops_per_s.fp16"));
    const double fp32 = mp_gpu_rate(gpu, "flops_per_s.fp32"), tf32 = mp_gpu_rate(gpu, "flops_per_s.tf32");
    const double memory = mp_gpu_rate(gpu, "memory_bytes_per_s"), host = mp_gpu_rate(gpu, "host_bytes_per_s");
    const double nvlink = mp_gpu_rate(gpu, "nvlink_bytes_per_s");
    if (!(fp32 > 0) || !(memory > 0))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: rates: missing; give flops_per_s.fp32 and memory_bytes_per_s for step times",
                            gpu->source);
    *rates = (struct mp_cost_rates){
        .half_flops = HALF_SHARE * (half > 0 ? half : fp32),
        .odd_half_flops = ODD_HALF_SHARE * (half > 0 ? half : fp32),
        .fp32_flops = FP32_SHARE * fp32,
        .tf32_flops = HALF_SHARE * (tf32 > 0 ? tf32 : fp32),
        .attention_flops = ATTENTION_SHARE * (half > 0 ? half : fp32),
        .memory_bytes = MEMORY_SHARE * memory,
        .host_bytes = HOST_SHARE * (host > 0 ? host : 16e9),
        .gap_s = GAP_S,
    };
    rates->attention_backward_flops = BACKWARD_ATTENTION * rates->attention_flops;
    rates->link_bytes = nvlink > 0 ? LINK_SHARE * nvlink : rates->host_bytes;
    rates->network_bytes = MP_MIN(rates->link_bytes, rates->host_bytes); /* a network card of PCIe's speed for each GPU */
    return MEMPLAN_STATUS_OK;
}

/* ---- one operation ---- */

struct adder {
    const struct mp_run *run;
    const struct mp_program *p;
    struct mp_cost_rates rates;
};

static double n_elements(const struct mp_op_tensor *t)
{
    double n = 1;
    for (int i = 0; i < t->shape.n; i++)
        n *= (double)t->shape.d[i];
    return n;
}

static double size(const struct mp_op_tensor *t) { return t->present ? n_elements(t) * (double)mp_dtype_bytes(t->dtype) : 0; }

/* Bytes read and written. */
static double moved(const struct adder *a, const struct mp_op_record *op)
{
    double bytes = 0;
    for (uint32_t i = 0; i < op->n_inputs + op->n_outputs; i++)
        bytes += size(&a->p->op_tensors[op->first_tensor + i]);
    return bytes;
}

static bool is_odd(const struct mp_op_tensor *t)
{
    for (int i = MP_MAX(t->shape.n - 2, 0); i < t->shape.n; i++)
        if (t->shape.d[i] > 1 && t->shape.d[i] % 8 != 0)
            return true;
    return false;
}

/* Of b products (m x k)(k x n), the operands have b m k and b k n elements, the result b m n: any two are told by the third. */
static double product_flops(const struct mp_op_tensor *x, const struct mp_op_tensor *y, const struct mp_op_tensor *z)
{
    double batch = 1;
    for (int i = 0; i + 2 < z->shape.n; i++)
        batch *= (double)z->shape.d[i];
    return 2 * sqrt(n_elements(x) * n_elements(y) * n_elements(z) / MP_MAX(batch, 1));
}

static double product_rate(const struct adder *a, const struct mp_op_tensor *x, const struct mp_op_tensor *y)
{
    if (!mp_dtype_is_half(x->dtype))
        return a->run->tf32 ? a->rates.tf32_flops : a->rates.fp32_flops;
    return is_odd(x) || is_odd(y) ? a->rates.odd_half_flops : a->rates.half_flops;
}

/* Floating-point seconds of an operation; 0: it only moves memory. */
static double product_s(const struct adder *a, const struct mp_op_record *op)
{
    const struct mp_op_tensor *const in = &a->p->op_tensors[op->first_tensor], *const out = in + op->n_inputs;
    if (strcmp(op->op, "mm") == 0 || strcmp(op->op, "bmm") == 0)
        return product_flops(&in[0], &in[1], &out[0]) / product_rate(a, &in[0], &in[1]);
    if ((strcmp(op->op, "addmm") == 0 || strcmp(op->op, "baddbmm") == 0) && op->n_inputs >= 3)
        return product_flops(&in[1], &in[2], &out[0]) / product_rate(a, &in[1], &in[2]);
    if (strcmp(op->op, "MmBackward0") != 0 && strcmp(op->op, "AddmmBackward0") != 0 && strcmp(op->op, "BmmBackward0") != 0 &&
        strcmp(op->op, "BaddbmmBackward0") != 0)
        return 0;
    double seconds = 0;
    for (uint32_t i = 0; i < op->n_outputs && op->n_inputs >= 3; i++)
        if (out[i].present && out[i].shape.n >= 2)
            seconds += product_flops(&in[0], &in[1], &in[2]) / product_rate(a, &in[0], &in[1]);
    return seconds;
}

static bool attribute_is(const struct adder *a, const struct mp_op_record *op, const char *key, bool fallback)
{
    for (uint32_t i = 0; i < op->n_attributes; i++) {
        const struct mp_attribute *const at = &a->p->op_attributes[op->first_attribute + i];
        if (strcmp(at->key, key) == 0)
            return at->as.integer != 0;
    }
    return fallback;
}

/* Two products forward, five backward, of which a causal mask leaves half. */
static double attention_s(const struct adder *a, const struct mp_op_record *op)
{
    const bool backward = strncmp(op->op, "ScaledDotProduct", 16) == 0;
    if (!backward && strcmp(op->op, "attention") != 0)
        return 0;
    const struct mp_op_tensor *const q = &a->p->op_tensors[op->first_tensor + (backward ? 1 : 0)];
    const struct mp_op_tensor *const k = q + 1;
    if (op->n_inputs < 3 || q->shape.n != 4 || k->shape.n != 4)
        return 0;
    const double all = 2 * n_elements(q) * (double)k->shape.d[2] * (backward ? 5 : 2);
    const double half = mp_dtype_is_half(q->dtype) ? backward ? a->rates.attention_backward_flops : a->rates.attention_flops
                                                   : a->rates.fp32_flops * (backward ? BACKWARD_ATTENTION : 1);
    return all * (attribute_is(a, op, "causal", true) ? 0.5 : 1) / half;
}

static double update_s(const struct adder *a, const struct mp_op_record *op)
{
    const bool fused = a->run->optimizer == MP_OPTIMIZER_ADAMW_FUSED;
    const double bytes = size(&a->p->op_tensors[op->first_tensor]);
    return (strcmp(op->op, "adamw") == 0 ? bytes * (fused ? FUSED_PASSES : FOREACH_PASSES) : moved(a, op)) / a->rates.memory_bytes;
}

/* Records that stand for no kernel. */
static bool is_free(const char *op)
{
    return strcmp(op, "parameter") == 0 || strcmp(op, "input") == 0 || strcmp(op, "split") == 0;
}

static double operation_s(const struct adder *a, const struct mp_op_record *op, bool in_optimizer)
{
    if (is_free(op->op))
        return 0;
    if (in_optimizer)
        return update_s(a, op); /* all parameters in a few launches */
    const double flops_s = MP_MAX(product_s(a, op), attention_s(a, op));
    return MP_MAX(flops_s, moved(a, op) / a->rates.memory_bytes) + a->rates.gap_s;
}

/* ---- a step ---- */

enum phase { FORWARD, BACKWARD, REST };

static enum phase phase_of(const char *name)
{
    const size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".fwd") == 0 ? FORWARD : n > 4 && strcmp(name + n - 4, ".bwd") == 0 ? BACKWARD : REST;
}

/* Seconds of the step whose events begin at `first`; layers: forward seconds of blocks, added to. */
static void add_step(const struct adder *a, uint32_t first, double *seconds, double *layers, int64_t n_layers)
{
    const struct mp_program *const p = a->p;
    uint32_t next = 0;
    while (next < p->n_phases && p->phases[next].event < first)
        next++;
    for (uint32_t i = first; i < p->n_events && next < p->n_phases; i++) {
        const struct mp_event *const e = &p->events[i];
        if (e->kind == MP_EVENT_MARK) {
            next++;
        } else if (e->kind == MP_EVENT_OP) {
            const enum phase phase = phase_of(p->phases[next].name);
            const struct mp_op_record *const op = &p->ops[e->id];
            const double s = operation_s(a, op, phase == REST);
            seconds[phase] += s;
            if (layers && phase == FORWARD && op->layer >= 0 && op->layer < n_layers)
                layers[op->layer] += s;
        }
    }
}

/* A step of the run with that accumulation, after a first one that makes the optimizer's state. */
static enum memplan_status time_step(const struct mp_run *run, int64_t accumulate, double *seconds, double *layers, int64_t n_layers,
                                     struct memplan_error *err)
{
    struct mp_run few = *run;
    struct mp_program program;
    struct mp_job job;
    struct adder a = {.run = &few, .p = &program};
    few.accumulate = accumulate;
    enum memplan_status status = mp_cost_rates_read(run->gpu, &a.rates, err);
    if (status)
        return status;
    mp_program_init(&program);
    status = mp_job_open(&job, &few, &program, err);
    if (!status)
        status = mp_job_build(&job);
    if (!status)
        status = mp_job_step(&job);
    const uint32_t first = program.n_events;
    program.keep_ops = true;
    if (!status)
        status = mp_job_step(&job);
    if (!status)
        add_step(&a, first, seconds, layers, n_layers);
    mp_job_close(&job);
    mp_program_release(&program);
    return status;
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
    struct mp_cost_rates rates;
    const double ranks = (double)run->world;
    if (run->parallel == MP_PARALLEL_NONE || run->world < 2 || run->no_collectives)
        return MEMPLAN_STATUS_OK;
    enum memplan_status status = mp_cost_rates_read(run->gpu, &rates, err);
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

enum memplan_status mp_cost_estimate(const struct mp_run *run, struct mp_arena *arena, struct mp_step_cost *cost, struct memplan_error *err)
{
    double once[3] = {0}, twice[3] = {0};
    *cost = (struct mp_step_cost){.n_layers = MP_MAX(mp_model_layers(run->model), 0)};
    cost->layer_forward_s = mp_arena_calloc(arena, (size_t)cost->n_layers + 1, sizeof *cost->layer_forward_s);
    if (!cost->layer_forward_s)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while timing");
    enum memplan_status status = time_step(run, 1, once, cost->layer_forward_s, cost->n_layers, err);
    if (!status && run->accumulate > 1)
        status = time_step(run, 2, twice, NULL, 0, err);
    if (status)
        return status;
    cost->forward_s = once[FORWARD];
    cost->backward_s = once[BACKWARD];
    cost->optimizer_s = once[REST];
    cost->again_s = run->accumulate > 1 ? twice[FORWARD] + twice[BACKWARD] - once[FORWARD] - once[BACKWARD] : 0;
    status = add_collectives(run, cost, err);
    cost->step_s = cost->forward_s + cost->backward_s + (double)(run->accumulate - 1) * cost->again_s + cost->optimizer_s +
                   cost->communication_s;
    cost->tokens_per_s = (double)run->batch * (double)run->seq * (double)run->accumulate * (double)run->world / cost->step_s;
    return status;
}
