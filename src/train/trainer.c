/* SPDX-License-Identifier: MIT */
/*
 * transformers.Trainer._inner_training_loop, line by line:
 *
 *     batch_samples, num_items_in_batch = get_batch_samples()      tokens are counted on the device
 *     for inputs in batch_samples:
 *         loss = compute_loss(model, inputs)                       accelerate: autocast around the model, then float32 outputs
 *         accelerator.backward(loss)
 *     grad_norm = clip_grad_norm_(), optimizer.step(), zero_grad(), maybe evaluate()
 */
#include "train/trainer.h"

/* ---- batches ---- */

static struct mp_tensor *integers(struct mp_runtime *rt, int64_t batch, int64_t seq)
{
    return mp_take(rt, mp_empty(rt, MP_SHAPE(batch, seq), MP_I64));
}

static struct mp_inputs batch_new(struct mp_runtime *rt, const struct mp_trainer *t, int64_t batch)
{
    struct mp_inputs in = {.batch = batch, .seq = t->run->seq, .counted = true};
    mp_driver_event(rt, MP_DRIVER_HOST_PAGE, 0); /* its samples are pinned */
    rt->category = MP_CATEGORY_INPUT;
    in.input_ids = integers(rt, batch, in.seq);
    if (t->run->attention_mask != MP_MASK_NONE)
        in.attention_mask = integers(rt, batch, in.seq);
    in.labels = integers(rt, batch, in.seq);
    rt->category = MP_CATEGORY_TEMPORARY;
    return in;
}

static void batch_release(struct mp_runtime *rt, struct mp_inputs *in)
{
    mp_tensor_unref(rt, in->input_ids);
    mp_tensor_unref(rt, in->attention_mask);
    mp_tensor_unref(rt, in->labels);
    in->input_ids = in->attention_mask = in->labels = NULL;
}

/* labels.ne(-100).sum(); causal models whose class says so leave the first label out */
static struct mp_tensor *count_labels(struct mp_runtime *rt, const struct mp_trainer *t,
                                      int64_t batch)
{
    const bool shifted = strstr(t->net->family->architecture, "ForCausalLM") != NULL;
    struct mp_tensor *counted =
        mp_empty(rt, MP_SHAPE(batch, t->run->seq - (shifted ? 1 : 0)), MP_BOOL);
    mp_driver_event(rt, MP_DRIVER_FIRST_KERNEL, 0);
    struct mp_tensor *sum = mp_empty(rt, MP_SCALAR, MP_I64);
    struct mp_tensor *wide =
        mp_empty(rt, MP_SHAPE(mp_numel(counted)), MP_I64); /* an integer sum casts its operand */
    mp_reduce_take_scratch(rt, wide, 1u);
    mp_checks_indices(rt);
    mp_discard(rt, wide);
    mp_discard(rt, counted);
    return sum;
}

/* sum of the counts: 0 + the first, and so on. Owned. */
static struct mp_tensor *count_items(struct mp_runtime *rt, const struct mp_trainer *t, int64_t n,
                                     int64_t batch)
{
    struct mp_tensor *total = NULL;
    for (int64_t i = 0; i < n; i++) {
        struct mp_tensor *labels = count_labels(rt, t, batch),
                         *sum = mp_take(rt, mp_empty(rt, MP_SCALAR, MP_I64));
        mp_tensor_unref(rt, total);
        mp_discard(rt, labels);
        total = sum;
    }
    return total;
}

/* batch_samples, num_items_in_batch = get_batch_samples(): the old ones die when the new ones are there */
static void fetch(struct mp_runtime *rt, struct mp_trainer *t)
{
    const int64_t n = t->run->accumulate;
    struct mp_inputs *batches = mp_runtime_alloc(rt, (size_t)n * sizeof *batches);
    for (int64_t i = 0; i < n; i++)
        batches[i] = batch_new(rt, t, t->run->batch);
    struct mp_tensor *items = count_items(rt, t, n, t->run->batch);
    for (int64_t i = 0; t->batches && i < n; i++)
        batch_release(rt, &t->batches[i]);
    mp_tensor_unref(rt, t->n_items);
    t->batches = batches;
    t->n_items = items;
}

/* for inputs in batch_samples */
static void set_inputs(struct mp_runtime *rt, struct mp_trainer *t, const struct mp_inputs *in)
{
    struct mp_inputs old = t->last;
    t->last = *in;
    mp_tensor_ref(t->last.input_ids);
    mp_tensor_ref(t->last.attention_mask);
    mp_tensor_ref(t->last.labels);
    if (old.input_ids)
        batch_release(rt, &old);
}

/* ---- forward and backward ---- */

static struct mp_outputs run_model(struct mp_runtime *rt, struct mp_trainer *t,
                                   const struct mp_inputs *in)
{
    const enum mp_amp amp = t->run->trainer->amp;
    struct mp_outputs out = {0};
    struct mp_autocast outer;
    mp_autocast_enter(rt, &outer, amp != MP_AMP_NONE, amp == MP_AMP_FP16 ? MP_F16 : MP_BF16);
    t->net->family->forward(rt, t->net, in, &out);
    out.loss = mp_take(rt, out.loss);
    out.logits = mp_take(rt, out.logits);
    out.hidden = mp_take(rt, out.hidden);
    mp_autocast_exit(rt, &outer);
    return out;
}

/* accelerate's convert_outputs_to_fp32: every half tensor among the outputs is cast */
static struct mp_tensor *to_float(struct mp_runtime *rt, struct mp_tensor *x)
{
    const bool is_half = x && mp_dtype_is_half((enum mp_dtype)x->dtype);
    return mp_take(rt, is_half ? mp_to(rt, x, MP_F32) : x);
}

static struct mp_outputs compute_loss(struct mp_runtime *rt, struct mp_trainer *t,
                                      const struct mp_inputs *in)
{
    struct mp_outputs out = run_model(rt, t, in);
    if (t->run->trainer->amp != MP_AMP_NONE) {
        struct mp_outputs wide = {.cache = out.cache};
        wide.loss = to_float(rt, out.loss);
        wide.logits = to_float(rt, out.logits);
        wide.hidden = to_float(rt, out.hidden);
        mp_tag(rt, wide.logits->storage, MP_CATEGORY_LOGITS);
        out.cache = NULL;
        mp_outputs_release(rt, &out);
        out = wide;
    }
    mp_scale_inplace(rt, out.loss); /* loss *= number of processes */
    return out;
}

static void backward(struct mp_runtime *rt, struct mp_trainer *t, struct mp_tensor *loss)
{
    struct mp_tensor *divided =
        mp_take(rt, mp_div_number(rt, loss, 1)); /* accelerate's own accumulation steps */
    if (t->run->trainer->amp == MP_AMP_FP16) {
        struct mp_tensor *scaled = mp_take(rt, mp_scaler_scale(rt, &t->scaler, divided));
        mp_backward(rt, scaled);
        mp_tensor_unref(rt, scaled);
    } else {
        mp_backward(rt, divided);
    }
    mp_tensor_unref(rt, divided);
}

static void training_step(struct mp_runtime *rt, struct mp_trainer *t, int64_t m)
{
    struct mp_outputs out = compute_loss(rt, t, &t->last);
    struct mp_tensor *loss = mp_tensor_ref(out.loss);
    mp_outputs_release(rt, &out); /* only the loss is taken out */
    mp_mark(rt, "it%lld.mb%lld.fwd", (long long)t->iteration, (long long)m);
    backward(rt, t, loss);
    struct mp_tensor *detached = mp_take(rt, mp_detach(rt, loss));
    mp_tensor_unref(rt, loss);
    mp_tensor_unref(rt, t->step_loss);
    t->step_loss = detached;
}

/* isnan(loss), isinf(loss): the latter takes the absolute value first */
static void check_loss(struct mp_runtime *rt)
{
    mp_scratch(rt, 1);
    struct mp_storage *absolute = mp_storage_new(rt, 4);
    mp_scratch(rt, 1);
    mp_storage_unref(rt, absolute);
}

/* ---- evaluation ---- */

/* prediction_step(): the mean of the loss, which is the loss. Owned. */
static struct mp_tensor *predict(struct mp_runtime *rt, struct mp_trainer *t,
                                 const struct mp_inputs *in)
{
    struct mp_tensor *items = count_items(rt, t, 1, in->batch);
    struct mp_outputs out = compute_loss(rt, t, in);
    struct mp_tensor *mean = mp_take(rt, mp_empty(rt, MP_SCALAR, (enum mp_dtype)out.loss->dtype));
    mp_outputs_release(rt, &out);
    mp_tensor_unref(rt, items);
    return mean;
}

static struct mp_tensor *losses_of(struct mp_runtime *rt, int64_t n)
{
    return mp_take(rt, mp_empty(rt, MP_SHAPE(n), MP_F32));
}

/* The loss of each batch, repeated per sample, is collected on the device. */
static void evaluate(struct mp_runtime *rt, struct mp_trainer *t)
{
    const struct mp_trainer_options *options = t->run->trainer;
    const bool grad_enabled = rt->grad_enabled;
    struct mp_inputs in = {.batch = 0};
    struct mp_tensor *losses = NULL, *all = NULL;
    rt->grad_enabled = rt->training = false;
    for (int64_t done = 0; done < options->eval_samples;) {
        struct mp_inputs old = in;
        const int64_t n = MP_MIN(options->eval_batch, options->eval_samples - done);
        in = batch_new(rt, t, n);
        if (old.input_ids)
            batch_release(rt, &old);
        done += n;
        struct mp_tensor *mean = predict(rt, t, &in), *repeated;
        mp_tensor_unref(rt, losses);
        repeated = losses_of(rt, options->eval_batch);
        mp_tensor_unref(rt, mean);
        losses = repeated;
        struct mp_tensor *joined = all ? losses_of(rt, done) : mp_tensor_ref(losses);
        mp_tensor_unref(rt, all);
        all = joined;
    }
    mp_tensor_unref(rt, all);
    batch_release(rt, &in);
    mp_tensor_unref(rt, losses);
    rt->grad_enabled = grad_enabled;
    rt->training = true;
}

/* ---- the loop ---- */

int64_t mp_trainer_eval_period(const struct mp_run *run)
{
    const int64_t period = run->trainer->eval_steps;
    return run->iterations > 0 ? period : MP_MIN(period, 2);
}

/* get_decay_parameter_names(): matrices decay; norms, and whatever has "bias" in its name, do not */
static bool decays(const struct mp_tensor *parameter)
{
    return parameter->shape.n > 1 && strstr(parameter->name, "bias") == NULL;
}

static void make_groups(struct mp_runtime *rt, struct mp_trainer *t)
{
    const int n = t->net->n_parameters;
    for (int group = 0; group < 2; group++) {
        struct mp_tensor **members = mp_runtime_alloc(rt, (size_t)n * sizeof(struct mp_tensor *));
        int n_members = 0;
        for (int i = 0; i < n; i++)
            if (decays(t->net->parameters[i]) == (group == 0))
                members[n_members++] = t->net->parameters[i];
        mp_optimizer_init(rt, &t->groups[group], t->run->optimizer, members, n_members);
    }
    t->groups[0].next = &t->groups[1];
}

void mp_trainer_begin(struct mp_runtime *rt, struct mp_trainer *t, struct mp_net *net)
{
    *t = (struct mp_trainer){.net = net, .run = net->run};
    t->running_loss = mp_take(rt, mp_empty(rt, MP_SCALAR, MP_F32));
    make_groups(rt, t);
}

static void update(struct mp_runtime *rt, struct mp_trainer *t)
{
    struct mp_net *net = t->net;
    const long long i = (long long)t->iteration;
    const bool scaled = t->run->trainer->amp == MP_AMP_FP16;
    if (scaled)
        mp_scaler_unscale(rt, &t->scaler);
    t->grad_norm = mp_take(rt, mp_clip_grad_norm_total(rt, net->parameters, net->n_parameters));
    mp_mark(rt, "it%lld.clip", i);
    if (scaled)
        mp_scaler_step(rt, &t->scaler, &t->groups[0]);
    else
        mp_optimizer_step(rt, &t->groups[0]);
    mp_mark(rt, "it%lld.opt", i);
    mp_zero_grad(rt, net->parameters, net->n_parameters);
    if ((t->iteration + 1) % t->run->trainer->logging_steps == 0)
        mp_scratch(rt, 4); /* the mean of tr_loss */
    mp_mark(rt, "it%lld.zero", i);
}

void mp_trainer_step(struct mp_runtime *rt, struct mp_trainer *t)
{
    const int64_t period = mp_trainer_eval_period(t->run), number = t->iteration + 1;
    fetch(rt, t);
    for (int64_t m = 0; m < t->run->accumulate; m++) {
        set_inputs(rt, t, &t->batches[m]);
        training_step(rt, t, m);
        check_loss(rt);
        if (m == t->run->accumulate - 1) { /* grad_norm = None */
            mp_tensor_unref(rt, t->grad_norm);
            t->grad_norm = NULL;
        }
        mp_mark(rt, "it%lld.mb%lld.bwd", (long long)t->iteration, (long long)m);
    }
    update(rt, t);
    if (period > 0 && (number % period == 0 || number == t->run->iterations)) {
        evaluate(rt, t);
        mp_mark(rt, "it%lld.eval", (long long)t->iteration);
    }
    t->iteration++;
}

void mp_trainer_end(struct mp_runtime *rt, struct mp_trainer *t)
{
    mp_tensor_unref(rt, t->grad_norm);
    for (int64_t i = 0; t->batches && i < t->run->accumulate; i++)
        batch_release(rt, &t->batches[i]);
    mp_tensor_unref(rt, t->n_items);
    if (t->last.input_ids)
        batch_release(rt, &t->last);
    mp_tensor_unref(rt, t->step_loss);
}
