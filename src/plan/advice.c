/* SPDX-License-Identifier: MIT */
/*
 * Each piece of advice is a change to the run spec. It is tried like any run: on a card without limit, so that savings can be
 * compared even where neither fits, and on the card itself for the verdict.
 */
#include "plan/advice.h"

#include <inttypes.h>

struct change {
    const char *what;
    /** Change run; false: does not apply. Fills setting. */
    bool (*apply)(struct mp_run *run, char *setting, size_t size);
};

static bool checkpoint_full(struct mp_run *run, char *setting, size_t size)
{
    if (run->checkpoint == MP_CHECKPOINT_FULL || run->checkpoint == MP_CHECKPOINT_FULL_REENTRANT)
        return false;
    run->checkpoint = MP_CHECKPOINT_FULL;
    snprintf(setting, size, "--checkpoint full");
    return true;
}

static bool smaller_batch(struct mp_run *run, char *setting, size_t size)
{
    if (run->batch < 2)
        return false;
    const int64_t batch = run->batch;
    run->batch = batch / 2;
    run->accumulate *= 2;
    snprintf(setting, size, "--batch %" PRId64 " --accumulate %" PRId64, run->batch, run->accumulate);
    return true;
}

static bool shorter_sequence(struct mp_run *run, char *setting, size_t size)
{
    if (run->seq < 256 || run->n_seq_lengths)
        return false;
    run->seq /= 2;
    snprintf(setting, size, "--seq %" PRId64, run->seq);
    return true;
}

static bool bf16_autocast(struct mp_run *run, char *setting, size_t size)
{
    if (run->precision != MP_PRECISION_FP32 || !run->gpu->bf16)
        return false;
    run->precision = MP_PRECISION_AMP_BF16;
    snprintf(setting, size, "--precision amp-bf16");
    return true;
}

static bool bf16_weights(struct mp_run *run, char *setting, size_t size)
{
    if (run->precision == MP_PRECISION_BF16 || run->precision == MP_PRECISION_FP16 || !run->gpu->bf16)
        return false;
    run->precision = MP_PRECISION_BF16;
    snprintf(setting, size, "--precision bf16");
    return true;
}

static bool fused_adamw(struct mp_run *run, char *setting, size_t size)
{
    if (run->optimizer != MP_OPTIMIZER_ADAMW_FOREACH)
        return false;
    run->optimizer = MP_OPTIMIZER_ADAMW_FUSED;
    snprintf(setting, size, "--optimizer adamw-fused");
    return true;
}

static bool adafactor(struct mp_run *run, char *setting, size_t size)
{
    if (run->optimizer == MP_OPTIMIZER_ADAFACTOR || run->optimizer == MP_OPTIMIZER_SGD || run->optimizer == MP_OPTIMIZER_NONE)
        return false;
    run->optimizer = MP_OPTIMIZER_ADAFACTOR;
    snprintf(setting, size, "--optimizer adafactor");
    return true;
}

static bool fused_attention(struct mp_run *run, char *setting, size_t size)
{
    if (run->attention == MP_ATTENTION_SDPA)
        return false;
    run->attention = MP_ATTENTION_SDPA;
    snprintf(setting, size, "--attention sdpa");
    return true;
}

static bool release_outputs(struct mp_run *run, char *setting, size_t size)
{
    if (run->release_outputs)
        return false;
    run->release_outputs = true;
    snprintf(setting, size, "--release-outputs (del outputs, loss after backward)");
    return true;
}

static bool no_cache(struct mp_run *run, char *setting, size_t size)
{
    if (!run->use_cache)
        return false;
    run->use_cache = false;
    snprintf(setting, size, "--use-cache=false");
    return true;
}

static bool drop_losses(struct mp_run *run, char *setting, size_t size)
{
    if (!run->retain_losses)
        return false;
    run->retain_losses = false;
    snprintf(setting, size, "--retain-losses=false (append loss.item())");
    return true;
}

static bool has_setting(const struct mp_run *run, const char *key) { return strstr(run->allocator_conf, key) != NULL; }

static bool expandable(struct mp_run *run, char *setting, size_t size)
{
    if (has_setting(run, "expandable_segments") || run->allocator_conf[0])
        return false;
    run->allocator_conf = "expandable_segments:True";
    snprintf(setting, size, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
    return true;
}

static bool max_split(struct mp_run *run, char *setting, size_t size)
{
    if (has_setting(run, "max_split_size_mb") || run->allocator_conf[0])
        return false;
    run->allocator_conf = "max_split_size_mb:128";
    snprintf(setting, size, "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128");
    return true;
}

static const struct change changes[] = {
    {"recompute activations of every block", checkpoint_full},
    {"half the micro-batch, twice the accumulation", smaller_batch},
    {"half the sequence length", shorter_sequence},
    {"mixed precision", bf16_autocast},
    {"weights, gradients and state in bf16", bf16_weights},
    {"AdamW without temporaries", fused_adamw},
    {"factored optimizer state", adafactor},
    {"fused attention", fused_attention},
    {"free outputs after each backward", release_outputs},
    {"no key-value cache while training", no_cache},
    {"do not keep losses with their graphs", drop_losses},
    {"growing segments", expandable},
    {"do not split large blocks", max_split},
};

/* The card without a limit: what the job would take if it could. */
static struct mp_gpu unlimited(const struct mp_gpu *gpu)
{
    struct mp_gpu copy = *gpu;
    copy.total_bytes.value = UINT64_C(1) << 60;
    return copy;
}

static enum memplan_status measure(const struct mp_run *run, struct mp_evaluation *e, struct memplan_error *err)
{
    enum memplan_status status = mp_evaluate(run, NULL, e, err);
    if (status || !e->oom)
        return status;
    /* What did not fit is tried once more with all the room it wants. */
    const struct mp_gpu gpu = unlimited(run->gpu);
    struct mp_run wide = *run;
    wide.gpu = &gpu;
    wide.allocator_limit_bytes = 0;
    mp_evaluation_release(e);
    status = mp_evaluate(&wide, NULL, e, err);
    e->fits = false;
    return status;
}

static int compare_savings(const void *a, const void *b)
{
    const struct mp_advice *x = a, *y = b;
    if (x->saves_bytes != y->saves_bytes)
        return x->saves_bytes > y->saves_bytes ? -1 : 1;
    return strcmp(x->what, y->what);
}

enum memplan_status mp_advise(const struct mp_evaluation *e, struct mp_advice *out, size_t *n, struct memplan_error *err)
{
    uint64_t before = e->device_used_bytes;
    *n = 0;
    if (e->oom) {
        struct mp_evaluation wide;
        const enum memplan_status status = measure(e->run, &wide, err);
        if (status)
            return status;
        before = wide.device_used_bytes;
        mp_evaluation_release(&wide);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(changes) && *n < MP_MAX_ADVICE; i++) {
        struct mp_run run = *e->run;
        struct mp_evaluation tried;
        struct mp_advice *advice = &out[*n];
        if (!changes[i].apply(&run, advice->setting, sizeof advice->setting))
            continue;
        const enum memplan_status status = measure(&run, &tried, err);
        if (status == MEMPLAN_STATUS_NOMEM)
            return status;
        if (status)
            continue; /* the changed job is not one that can be run */
        advice->what = changes[i].what;
        advice->device_used_bytes = tried.device_used_bytes;
        advice->reserved_bytes = tried.reserved_bytes;
        advice->saves_bytes = (int64_t)before - (int64_t)tried.device_used_bytes;
        advice->fits = tried.fits;
        mp_evaluation_release(&tried);
        ++*n;
    }
    qsort(out, *n, sizeof *out, compare_savings);
    return MEMPLAN_STATUS_OK;
}
