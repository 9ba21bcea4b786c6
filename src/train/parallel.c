/* SPDX-License-Identifier: MIT */
/* One place where the training loop meets DDP, ZeroRedundancyOptimizer and fully_shard. */
#include "train/parallel.h"

#include "shadow/ops.h"
#include "train/deepspeed.h"
#include "train/optimizer.h"

void mp_process_group_barrier(struct mp_runtime *rt)
{
    struct mp_storage *before = rt->barrier;
    rt->barrier = mp_storage_new(rt, 1);
    if (before)
        mp_storage_unref(rt, before);
    mp_scratch(rt, 4);
}

/*
 * init_process_group(); dist.barrier(); dist.all_reduce(torch.ones(1 << 20)): the barrier's tensor lives as long as the group.
 * A process group that moves nothing has no barrier. Filling that tensor is the first thing the GPU runs. What NCCL's start takes beside
 * it in torch's process was logged for one rank (validate/results/driver, ddp-* and zero1-*), in memplan-validate's for two.
 */
void mp_process_group_open(struct mp_runtime *rt, const struct mp_run *run)
{
    if (run->parallel == MP_PARALLEL_NONE)
        return;
    const enum mp_category category = rt->category;
    const bool several = run->world > 1 && !run->no_collectives;
    rt->category = MP_CATEGORY_COMMUNICATION;
    rt->op = "init_process_group";
    if (several)
        mp_driver_event(rt, MP_DRIVER_NCCL_RANKS, 0);
    if (!run->no_collectives)
        mp_process_group_barrier(rt);
    struct mp_tensor *ones = mp_take(rt, mp_empty(rt, MP_SHAPE(1 << 20), MP_F32));
    mp_record_fill(rt, ones, 1);
    if (run->no_collectives)
        mp_driver_event(rt, MP_DRIVER_QUIET_GROUP, 0);
    mp_driver_event(rt, MP_DRIVER_FIRST_KERNEL, 0);
    mp_driver_event(rt, MP_DRIVER_LARGER_STACKS, 0);
    if (!run->no_collectives) {
        mp_driver_event(rt, MP_DRIVER_NCCL, 0);
        mp_record(rt, "all_reduce_", MP_TENSORS(ones), MP_TENSORS(ones), MP_NO_ATTRIBUTES);
    }
    if (several)
        mp_driver_event(rt, MP_DRIVER_NCCL_REDUCE, 0);
    mp_tensor_unref(rt, ones);
    rt->category = category;
}

static struct mp_tensor **trainable_parameters(struct mp_runtime *rt, const struct mp_net *net,
                                               int *n)
{
    struct mp_tensor **trainable =
        mp_runtime_alloc(rt, (size_t)MP_MAX(net->n_parameters, 1) * sizeof(struct mp_tensor *));
    *n = 0;
    for (int i = 0; i < net->n_parameters; i++)
        if (net->parameters[i]->requires_grad)
            trainable[(*n)++] = net->parameters[i];
    return trainable;
}

/* What this rank's optimizer holds state for. */
static void choose_optimized(struct mp_runtime *rt, struct mp_parallel *p)
{
    p->optimized = p->parameters;
    p->n_optimized = p->on_host ? 0 : p->n_parameters;
    if (p->run->parallel != MP_PARALLEL_ZERO1)
        return;
    p->optimized =
        mp_runtime_alloc(rt, (size_t)MP_MAX(p->n_parameters, 1) * sizeof(struct mp_tensor *));
    p->n_optimized = mp_zero1_partition(rt, p->parameters, p->n_parameters, p->run->world,
                                        p->run->rank, p->optimized);
}

void mp_parallel_wrap(struct mp_runtime *rt, struct mp_parallel *p, const struct mp_run *run,
                      struct mp_net *net)
{
    *p = (struct mp_parallel){.run = run};
    if (run->parallel == MP_PARALLEL_FSDP2) {
        p->fsdp = mp_fsdp_wrap(rt, run, net, &p->hooks);
        p->parameters = mp_fsdp_parameters(p->fsdp);
        p->n_parameters = net->n_parameters;
        p->on_host = run->fsdp.offload;
    } else {
        p->parameters = trainable_parameters(rt, net, &p->n_parameters);
    }
    if (run->parallel == MP_PARALLEL_DDP || run->parallel == MP_PARALLEL_ZERO1)
        p->ddp = mp_ddp_wrap(rt, run, net->parameters, net->n_parameters, p->parameters,
                             p->n_parameters, &p->hooks);
    if (run->deepspeed.stage > 0)
        p->deepspeed = mp_deepspeed_wrap(rt, run, p->parameters, p->n_parameters, &p->hooks);
    choose_optimized(rt, p);
}

void mp_parallel_before_forward(struct mp_runtime *rt, struct mp_parallel *p, int64_t m)
{
    if (p->ddp)
        mp_ddp_before_forward(rt, p->ddp, !p->run->ddp.no_sync || m == p->run->accumulate - 1);
    else if (p->fsdp) {
        if (p->run->no_collectives) /* NCCL has asked for a stream before */
            mp_driver_event(rt, MP_DRIVER_STREAM_POOL, 0);
        mp_fsdp_before_forward(rt, p->fsdp);
    } else if (p->deepspeed) {
        mp_deepspeed_before_forward(rt, p->deepspeed, m == p->run->accumulate - 1);
    }
}

void mp_parallel_after_forward(struct mp_runtime *rt, struct mp_parallel *p, struct mp_outputs *out)
{
    if (p->ddp)
        mp_ddp_after_forward(rt, p->ddp, out);
    else if (p->fsdp)
        mp_fsdp_after_forward(rt, p->fsdp, out);
    else if (p->deepspeed)
        mp_deepspeed_after_forward(rt, p->deepspeed, out);
}

void mp_parallel_clip_grad_norm(struct mp_runtime *rt, struct mp_parallel *p)
{
    if (p->on_host)
        return;
    if (p->fsdp && p->run->world > 1)
        mp_clip_grad_norm_sharded(rt, p->parameters, p->n_parameters);
    else
        mp_clip_grad_norm(rt, p->parameters, p->n_parameters);
}

/*
 * DDP rebuilds its buckets in the second or (static graph) third forward, and an old one may outlive
 * that by two backward passes. DeepSpeed's stage 3 traces the first micro-batch.
 */
int64_t mp_parallel_steady_from(const struct mp_run *run)
{
    if (run->ddp.wakes)
        return INT64_MAX;
    if (run->parallel == MP_PARALLEL_DDP || run->parallel == MP_PARALLEL_ZERO1)
        return 4;
    return run->parallel == MP_PARALLEL_DEEPSPEED_ZERO3 ? 2 : 1;
}
