/* SPDX-License-Identifier: MIT */
/*
 * The training loop, line by line:
 *
 *     for each iteration:
 *         for each micro-batch:
 *             with autocast: out = model(input_ids, labels); loss = out.loss
 *             loss = loss / accumulate
 *             (scaled) loss.backward()
 *         clip, optimizer.step(), zero_grad()
 *
 * `out` and `loss` are variables: the previous outputs, logits included, live until the new forward has returned.
 */
#include "train/job.h"

#include "train/deepspeed.h"

static bool is_amp(enum mp_precision precision) { return precision == MP_PRECISION_AMP_BF16 || precision == MP_PRECISION_AMP_FP16; }

int64_t mp_job_seq(const struct mp_run *run, int64_t n)
{
    const int64_t seq = run->n_seq_lengths ? run->seq_lengths[(uint64_t)n % run->n_seq_lengths] : run->seq;
    return run->pad_to > 1 ? (seq + run->pad_to - 1) / run->pad_to * run->pad_to : seq;
}

static int64_t gcd(int64_t a, int64_t b) { return b ? gcd(b, a % b) : a; }

/* Lengths cycle over the micro-batches: after the least common multiple of both the same ones come again. */
static int64_t n_batches(struct mp_runtime *rt, const struct mp_run *run)
{
    const int64_t lengths = MP_MAX((int64_t)run->n_seq_lengths, 1), limit = 1 << 20;
    const int64_t rounds = lengths / gcd(lengths, run->accumulate);
    if (rounds > limit / run->accumulate)
        mp_raise(rt, MEMPLAN_STATUS_INPUT, "accumulate: %lld micro-batches over %lld lengths need more than %lld batches in memory",
                 (long long)run->accumulate, (long long)lengths, (long long)limit);
    return rounds * run->accumulate;
}

int64_t mp_job_steady_from(const struct mp_run *run)
{
    const bool evaluates = run->trainer && run->trainer->eval_steps > 0;
    return run->n_seq_lengths > 1 || run->retain_losses || evaluates ? INT64_MAX : mp_parallel_steady_from(run);
}

/* ---- building ---- */

/* One mask for each length. */
static void load_masks(struct mp_runtime *rt, struct mp_job *job)
{
    rt->category = MP_CATEGORY_INPUT;
    for (int64_t n = 0; n < job->n_data; n++) {
        struct mp_inputs *in = &job->data[n];
        for (int64_t other = 0; other < n && !in->attention_mask; other++)
            if (job->data[other].seq == in->seq)
                in->attention_mask = job->data[other].attention_mask;
        if (!in->attention_mask) {
            in->attention_mask = mp_take(rt, mp_empty(rt, MP_SHAPE(in->batch, in->seq), MP_I64));
            mp_record(rt, "input", MP_NO_TENSORS, MP_TENSORS(in->attention_mask), MP_ATTRIBUTES(mp_text("kind", job->run->attention_mask == MP_MASK_PADDED ? "padding_mask" : "ones")));
        }
    }
    rt->category = MP_CATEGORY_TEMPORARY;
}

static void build(struct mp_runtime *rt, void *context)
{
    struct mp_job *job = context;
    const struct mp_run *run = job->run;
    mp_process_group_open(rt, run);
    rt->op = "__init__";
    mp_net_build(rt, &job->net);
    rt->op = "";
    mp_mark(rt, "model");
    if (run->trainer) {
        mp_trainer_begin(rt, &job->trainer, &job->net);
        mp_mark(rt, "data");
        return;
    }
    mp_parallel_wrap(rt, &job->parallel, run, &job->net);
    if (run->parallel != MP_PARALLEL_NONE)
        mp_mark(rt, "wrap");
    job->scaler.sharded = run->parallel == MP_PARALLEL_FSDP2 && run->world > 1;
    mp_optimizer_init(rt, &job->optimizer, run->optimizer, job->parallel.optimized, job->parallel.n_optimized);
    job->n_data = n_batches(rt, run);
    job->data = mp_runtime_alloc(rt, (size_t)job->n_data * sizeof *job->data);
    for (int64_t n = 0; n < job->n_data; n++)
        mp_net_load(rt, &job->net, run->batch, mp_job_seq(run, n), &job->data[n]);
    if (run->attention_mask != MP_MASK_NONE)
        load_masks(rt, job);
    mp_mark(rt, "data");
}

/* ---- one step ---- */

static void set_loss(struct mp_runtime *rt, struct mp_job *job, struct mp_tensor *value)
{
    struct mp_tensor *old = job->loss;
    job->loss = mp_take(rt, value);
    mp_tensor_unref(rt, old);
}

static void forward(struct mp_runtime *rt, struct mp_job *job, int64_t m)
{
    const struct mp_run *run = job->run;
    struct mp_outputs out = {0}, old = job->out;
    struct mp_autocast outer;
    mp_autocast_enter(rt, &outer, is_amp(run->precision), run->precision == MP_PRECISION_AMP_FP16 ? MP_F16 : MP_BF16);
    const int64_t n = (job->iteration * run->accumulate + m) % job->n_data;
    mp_parallel_before_forward(rt, &job->parallel, m);
    job->net.family->forward(rt, &job->net, &job->data[n], &out);
    mp_parallel_after_forward(rt, &job->parallel, &out);
    out.loss = mp_take(rt, out.loss);
    out.logits = mp_take(rt, out.logits);
    out.hidden = mp_take(rt, out.hidden);
    job->out = out;
    mp_outputs_release(rt, &old);
    set_loss(rt, job, out.loss);
    mp_autocast_exit(rt, &outer);
    if (!job->parallel.deepspeed) /* its engine divides */
        set_loss(rt, job, mp_div_number(rt, job->loss, (double)run->accumulate));
}

static void backward(struct mp_runtime *rt, struct mp_job *job)
{
    if (job->run->precision != MP_PRECISION_AMP_FP16) {
        mp_backward(rt, job->loss);
        return;
    }
    struct mp_tensor *scaled = mp_take(rt, mp_scaler_scale(rt, &job->scaler, job->loss));
    mp_backward(rt, scaled);
    mp_tensor_unref(rt, scaled);
}

static void retain_loss(struct mp_runtime *rt, struct mp_job *job)
{
    if (job->n_retained == job->cap_retained) {
        const int wanted = job->cap_retained ? 2 * job->cap_retained : 64;
        struct mp_tensor **bigger = mp_runtime_alloc(rt, (size_t)wanted * sizeof(struct mp_tensor *));
        if (job->n_retained)
            memcpy(bigger, job->retained, (size_t)job->n_retained * sizeof(struct mp_tensor *));
        job->retained = bigger;
        job->cap_retained = wanted;
    }
    job->retained[job->n_retained++] = mp_tensor_ref(job->out.loss);
}

static void micro_batch(struct mp_runtime *rt, struct mp_job *job, int64_t m)
{
    const struct mp_run *run = job->run;
    forward(rt, job, m);
    mp_mark(rt, "it%lld.mb%lld.fwd", (long long)job->iteration, (long long)m);
    if (job->parallel.deepspeed)
        mp_deepspeed_backward(rt, job->parallel.deepspeed, job->loss, m == run->accumulate - 1);
    else
        backward(rt, job);
    mp_mark(rt, "it%lld.mb%lld.bwd", (long long)job->iteration, (long long)m);
    if (run->retain_losses)
        retain_loss(rt, job);
    if (run->release_outputs) {
        mp_outputs_release(rt, &job->out);
        set_loss(rt, job, NULL);
    }
}

/* zero_grad(set_to_none=False) */
static void record_zeroing(struct mp_runtime *rt, const struct mp_parallel *p)
{
    for (int i = 0; i < p->n_parameters; i++)
        if (p->parameters[i]->grad)
            mp_record_fill(rt, p->parameters[i]->grad, 0);
}

static void step(struct mp_runtime *rt, void *context)
{
    struct mp_job *job = context;
    const struct mp_run *run = job->run;
    const long long i = (long long)job->iteration;
    if (run->trainer) {
        mp_trainer_step(rt, &job->trainer);
        job->iteration++;
        return;
    }
    for (int64_t m = 0; m < run->accumulate; m++)
        micro_batch(rt, job, m);
    if (job->parallel.deepspeed) {
        mp_deepspeed_step(rt, job->parallel.deepspeed);
        mp_mark(rt, "it%lld.opt", i);
        job->iteration++;
        return;
    }
    /* without an optimizer there is nothing to unscale for */
    const bool scaled = run->precision == MP_PRECISION_AMP_FP16 && run->optimizer != MP_OPTIMIZER_NONE;
    if (run->clip_grad_norm) {
        if (scaled) {
            mp_scaler_unscale(rt, &job->scaler);
            mp_scaler_record_unscale(rt, &job->scaler, job->parallel.parameters, job->parallel.n_parameters);
        }
        mp_parallel_clip_grad_norm(rt, &job->parallel);
        mp_mark(rt, "it%lld.clip", i);
    }
    if (run->optimizer != MP_OPTIMIZER_NONE) {
        if (scaled)
            mp_scaler_step(rt, &job->scaler, &job->optimizer);
        else
            mp_optimizer_step(rt, &job->optimizer);
        mp_mark(rt, "it%lld.opt", i);
    }
    if (!run->zero_grad_keep && run->optimizer == MP_OPTIMIZER_MUON)
        mp_optimizer_zero_grad(rt, &job->optimizer);
    else if (!run->zero_grad_keep)
        mp_zero_grad(rt, job->parallel.parameters, job->parallel.n_parameters);
    else
        record_zeroing(rt, &job->parallel);
    if (run->empty_cache_each_step)
        mp_empty_cache(rt);
    mp_mark(rt, "it%lld.zero", i);
    job->iteration++;
}

struct repetition {
    struct mp_job *job;
    const struct mp_step_events *last;
};

static void repeat_step(struct mp_runtime *rt, void *context)
{
    const struct repetition *r = context;
    const struct mp_program *p = rt->program;
    const struct mp_step_events last = *r->last;
    const uint32_t shift = last.end_id - last.first_id;
    for (uint32_t i = last.first; i < last.end; i++) {
        const struct mp_event *e = &p->events[i];
        if (e->kind == MP_EVENT_MARK)
            mp_mark(rt, "it%lld.%s", (long long)r->job->iteration, strchr(p->phases[e->id].name, '.') + 1);
        else /* what the step before made dies one step later, too; older storages stay */
            mp_repeat_event(rt, i, e->id > last.first_id - MP_MIN(shift, last.first_id) ? shift : 0);
    }
    r->job->iteration++;
}

enum memplan_status mp_job_repeat_step(struct mp_job *job, const struct mp_step_events *last)
{
    struct repetition r = {job, last};
    return mp_runtime_protect(&job->rt, repeat_step, &r);
}

/* ---- life cycle ---- */

enum memplan_status mp_job_open(struct mp_job *job, const struct mp_run *run, struct mp_program *program, struct memplan_error *err)
{
    *job = (struct mp_job){.run = run};
    mp_runtime_init(&job->rt, run->gpu, program, err);
    return mp_net_open(&job->net, run, &job->rt.arena, err);
}

enum memplan_status mp_job_build(struct mp_job *job) { return mp_runtime_protect(&job->rt, build, job); }

/* The model alone is enough to know. */
static void build_and_choose(struct mp_runtime *rt, void *context)
{
    struct mp_job *job = context;
    job->net.family->build(rt, &job->net);
    if (job->run->parallel == MP_PARALLEL_ZERO1)
        job->iteration = mp_zero1_fullest_rank(rt, job->net.parameters, job->net.n_parameters, job->run->world);
    else
        job->iteration = mp_deepspeed_fullest_rank(job->net.parameters, job->net.n_parameters, job->run->world);
}

enum memplan_status mp_job_fullest_rank(const struct mp_run *run, int64_t *rank, struct memplan_error *err)
{
    struct mp_program program;
    struct mp_job job;
    *rank = 0;
    if (!mp_parallel_ranks_differ(run))
        return MEMPLAN_STATUS_OK;
    mp_program_init(&program);
    enum memplan_status status = mp_job_open(&job, run, &program, err);
    if (!status)
        status = mp_runtime_protect(&job.rt, build_and_choose, &job);
    if (!status)
        *rank = job.iteration;
    mp_job_close(&job);
    mp_program_release(&program);
    return status;
}

enum memplan_status mp_job_step(struct mp_job *job) { return mp_runtime_protect(&job->rt, step, job); }

void mp_job_close(struct mp_job *job) { mp_runtime_release(&job->rt); }
