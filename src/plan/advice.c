/* SPDX-License-Identifier: MIT */
/*
 * Each piece of advice is a change to the run spec. It is tried like any run: on a card without limit, so that savings can be
 * compared even where neither fits, and on the card itself for the verdict.
 */
#include "plan/advice.h"

#include <inttypes.h>

#include "base/strbuf.h"
#include "plan/judge.h"

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

/* ---- data parallelism ---- */

static bool with_buckets(const struct mp_run *run) { return run->parallel == MP_PARALLEL_DDP || run->parallel == MP_PARALLEL_ZERO1; }

/* "--ddp '{...}'" with every argument that is not the default. */
static void ddp_setting(const struct mp_run *run, char *setting, size_t size)
{
    const struct mp_ddp_options *ddp = &run->ddp;
    char space[160];
    struct mp_strbuf text = {space, 0, sizeof space, false};
    if (ddp->bucket_cap_mb > 0)
        mp_strbuf_addf(&text, ", bucket_cap_mb: %g", ddp->bucket_cap_mb);
    if (ddp->gradient_as_bucket_view)
        mp_strbuf_addstr(&text, ", gradient_as_bucket_view: true");
    if (ddp->static_graph)
        mp_strbuf_addstr(&text, ", static_graph: true");
    if (ddp->find_unused_parameters)
        mp_strbuf_addstr(&text, ", find_unused_parameters: true");
    if (ddp->no_sync)
        mp_strbuf_addstr(&text, ", no_sync: true");
    if (ddp->compression != MP_COMPRESSION_NONE)
        mp_strbuf_addf(&text, ", compression: %s", mp_compression_text(ddp->compression));
    snprintf(setting, size, "--ddp '{%.140s}'", text.len ? mp_strbuf_text(&text) + 2 : "");
}

static bool gradients_as_views(struct mp_run *run, char *setting, size_t size)
{
    if (!with_buckets(run) || run->ddp.gradient_as_bucket_view)
        return false;
    run->ddp.gradient_as_bucket_view = true;
    ddp_setting(run, setting, size);
    return true;
}

static bool small_buckets(struct mp_run *run, char *setting, size_t size)
{
    enum { SMALL_MB = 5 };
    if (!with_buckets(run) || (run->ddp.bucket_cap_mb > 0 && run->ddp.bucket_cap_mb <= SMALL_MB))
        return false;
    run->ddp.bucket_cap_mb = SMALL_MB;
    ddp_setting(run, setting, size);
    return true;
}

static bool compress(struct mp_run *run, char *setting, size_t size)
{
    if (!with_buckets(run) || run->ddp.compression != MP_COMPRESSION_NONE || run->precision == MP_PRECISION_BF16 ||
        run->precision == MP_PRECISION_FP16)
        return false;
    run->ddp.compression = MP_COMPRESSION_FP16;
    ddp_setting(run, setting, size);
    return true;
}

static bool spread_state(struct mp_run *run, char *setting, size_t size)
{
    if (run->parallel != MP_PARALLEL_DDP || run->world < 2 || run->optimizer != MP_OPTIMIZER_ADAMW_FOREACH)
        return false;
    run->parallel = MP_PARALLEL_ZERO1;
    snprintf(setting, size, "--data-parallel zero1");
    return true;
}

static bool scatter_and_gather(struct mp_run *run, char *setting, size_t size)
{
    if (!with_buckets(run) || run->world < 2)
        return false;
    run->parallel = MP_PARALLEL_FSDP2;
    snprintf(setting, size, "--data-parallel fsdp2");
    return true;
}

static bool all_reduce(struct mp_run *run, char *setting, size_t size)
{
    if (run->parallel != MP_PARALLEL_FSDP2 || run->world < 2 || run->fsdp.offload)
        return false;
    run->parallel = MP_PARALLEL_DDP;
    snprintf(setting, size, "--data-parallel ddp");
    return true;
}

/* DeepSpeed keeps fp32 masters beside weights of a half type; autocast is not its way. */
static bool deepspeed_stage(struct mp_run *run, int stage, char *setting, size_t size)
{
    const int now = run->deepspeed.stage;
    const bool half = run->precision == MP_PRECISION_BF16 || run->precision == MP_PRECISION_FP16;
    if (run->parallel == MP_PARALLEL_NONE || run->world < 2 || run->lora || now >= stage || (!half && !run->gpu->bf16))
        return false;
    if (now == 0) {
        mp_deepspeed_options_init(&run->deepspeed, stage);
        run->precision = half ? run->precision : MP_PRECISION_BF16;
    }
    run->deepspeed.stage = stage;
    run->parallel = (enum mp_parallel_kind)(MP_PARALLEL_DEEPSPEED_ZERO1 + stage - 1);
    if (now)
        snprintf(setting, size, "\"stage\": %d in the deepspeed file", stage);
    else
        snprintf(setting, size, "--data-parallel deepspeed-zero%d --precision %s", stage, mp_precision_text(run->precision));
    return true;
}

static bool deepspeed_2(struct mp_run *run, char *setting, size_t size) { return deepspeed_stage(run, 2, setting, size); }

static bool deepspeed_3(struct mp_run *run, char *setting, size_t size) { return deepspeed_stage(run, 3, setting, size); }

/* "--fsdp '{...}'" likewise. */
static void fsdp_setting(const struct mp_run *run, char *setting, size_t size)
{
    const struct mp_fsdp_options *fsdp = &run->fsdp;
    char space[160];
    struct mp_strbuf text = {space, 0, sizeof space, false};
    if (fsdp->reshard_to > 0)
        mp_strbuf_addf(&text, ", reshard_after_forward: %" PRId64, fsdp->reshard_to);
    else if (fsdp->keep_unsharded)
        mp_strbuf_addstr(&text, ", reshard_after_forward: false");
    if (fsdp->mixed_precision)
        mp_strbuf_addstr(&text, ", mixed_precision: true");
    if (fsdp->offload)
        mp_strbuf_addstr(&text, ", offload: true");
    if (fsdp->replicas > 1)
        mp_strbuf_addf(&text, ", replicas: %" PRId64, fsdp->replicas);
    snprintf(setting, size, "--fsdp '{%.140s}'", text.len ? mp_strbuf_text(&text) + 2 : "reshard_after_forward: true");
}

static bool reshard(struct mp_run *run, char *setting, size_t size)
{
    if (run->parallel != MP_PARALLEL_FSDP2 || run->world < 2)
        return false;
    run->fsdp.keep_unsharded = !run->fsdp.keep_unsharded;
    run->fsdp.reshard_to = 0;
    fsdp_setting(run, setting, size);
    return true;
}

static bool fsdp_mixed_precision(struct mp_run *run, char *setting, size_t size)
{
    if (run->parallel != MP_PARALLEL_FSDP2 || run->fsdp.mixed_precision || run->precision != MP_PRECISION_FP32)
        return false;
    run->fsdp.mixed_precision = true;
    fsdp_setting(run, setting, size);
    return true;
}

static bool offload(struct mp_run *run, char *setting, size_t size)
{
    if (run->parallel == MP_PARALLEL_FSDP2 && !run->fsdp.offload) {
        run->fsdp.offload = true;
        fsdp_setting(run, setting, size);
        return true;
    }
    if (run->deepspeed.stage < 2 || run->deepspeed.offload_optimizer)
        return false;
    run->deepspeed.offload_optimizer = true;
    snprintf(setting, size, "\"offload_optimizer\": {\"device\": \"cpu\"} in the deepspeed file");
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
    {"gradients as views of the buckets", gradients_as_views},
    {"small buckets", small_buckets},
    {"gradients compressed for the all-reduce", compress},
    {"optimizer state spread over the ranks", spread_state},
    {"reduce-scatter and all-gather, not all-reduce", scatter_and_gather},
    {"all-reduce, not reduce-scatter and all-gather", all_reduce},
    {"ZeRO stage 2", deepspeed_2},
    {"ZeRO stage 3", deepspeed_3},
    {"reshard after forward, or not", reshard},
    {"bf16 in forward and backward", fsdp_mixed_precision},
    {"weights, gradients or state on the host", offload},
};

/* The card without a limit: what the job would take if it could. */
static struct mp_gpu unlimited(const struct mp_gpu *gpu)
{
    struct mp_gpu copy = *gpu;
    copy.total_bytes.value = UINT64_C(1) << 60;
    return copy;
}

static enum memplan_status measure(struct mp_judge *j, const struct mp_run *run, struct mp_verdict *v, struct memplan_error *err)
{
    enum memplan_status status = mp_judge_hear(j, run, err);
    if (!status)
        status = mp_judge_verdict(j, run, v, err);
    if (status || !v->oom)
        return status;
    /* What did not fit is tried once more with all the room it wants. */
    const struct mp_gpu gpu = unlimited(run->gpu);
    struct mp_run wide = *run;
    wide.gpu = &gpu;
    wide.allocator_limit_bytes = 0;
    status = mp_judge_verdict(j, &wide, v, err);
    v->fits = false;
    return status;
}

static int compare_savings(const void *a, const void *b)
{
    const struct mp_advice *x = a, *y = b;
    if (x->saves_bytes != y->saves_bytes)
        return x->saves_bytes > y->saves_bytes ? -1 : 1;
    return strcmp(x->what, y->what);
}

static enum memplan_status advise(struct mp_judge *j, const struct mp_evaluation *e,
                                  struct mp_advice *out, size_t *n, struct memplan_error *err)
{
    uint64_t before = e->device_used_bytes;
    *n = 0;
    if (e->oom) {
        struct mp_verdict wide;
        const enum memplan_status status = measure(j, e->run, &wide, err);
        if (status)
            return status;
        before = wide.device_used_bytes;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(changes) && *n < MP_MAX_ADVICE; i++) {
        struct mp_run run = *e->run;
        struct mp_verdict tried;
        struct mp_advice *advice = &out[*n];
        if (!changes[i].apply(&run, advice->setting, sizeof advice->setting))
            continue;
        const enum memplan_status status = measure(j, &run, &tried, err);
        if (status == MEMPLAN_STATUS_NOMEM)
            return status;
        if (status)
            continue; /* the changed job is not one that can be run */
        advice->what = changes[i].what;
        advice->device_used_bytes = tried.device_used_bytes;
        advice->reserved_bytes = tried.reserved_bytes;
        advice->saves_bytes = (int64_t)before - (int64_t)tried.device_used_bytes;
        advice->fits = tried.fits;
        ++*n;
    }
    qsort(out, *n, sizeof *out, compare_savings);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_advise(const struct mp_evaluation *e, struct mp_advice *out, size_t *n, struct memplan_error *err)
{
    struct mp_judge j;
    mp_judge_init(&j, NULL);
    const enum memplan_status status = advise(&j, e, out, n, err);
    mp_judge_release(&j);
    return status;
}
