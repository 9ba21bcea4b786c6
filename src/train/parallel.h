/* SPDX-License-Identifier: MIT */
/*
 * Data parallelism: what wraps the model, and what each rank holds for it.
 *
 *     mp_process_group_open()          init_process_group, a barrier
 *     family->build()                  the model
 *     mp_parallel_wrap()               DistributedDataParallel(model), or fully_shard on blocks and model
 *     each micro-batch:
 *         mp_parallel_before_forward()
 *         family->forward()            blocks and backward reach the wrapper through rt->hooks
 *         mp_parallel_after_forward()
 *
 * Nothing is divided by the number of ranks: every buffer is allocated where PyTorch allocates it, on the stream it uses.
 */
#ifndef MP_TRAIN_PARALLEL_H
#define MP_TRAIN_PARALLEL_H

#include "arch/arch.h"

struct mp_ddp;
struct mp_fsdp;
struct mp_deepspeed;

/* Streams of FSDP2; each has free lists of its own in the allocator. */
enum mp_stream {
    MP_STREAM_MAIN,
    MP_STREAM_COPY_IN,
    MP_STREAM_REDUCE_SCATTER,
    MP_STREAM_ALL_REDUCE
};

struct mp_parallel {
    const struct mp_run *run;
    struct mp_ddp *ddp; /* DDP and zero1 */
    struct mp_fsdp *fsdp;
    struct mp_deepspeed *deepspeed; /* its engine runs backward and step */
    struct mp_hooks hooks;
    struct mp_tensor **parameters; /* of the wrapped model: what is clipped and zeroed */
    int n_parameters;
    bool on_host; /* parameters, gradients and optimizer: steps take no device memory */
    struct mp_tensor **optimized; /* the ones whose state this rank holds */
    int n_optimized;
};

/** The process group, its barrier, and the first all-reduce of the measured loop. */
void mp_process_group_open(struct mp_runtime *rt, const struct mp_run *run);
/** dist.barrier() through NCCL: its tensor stays until the next one. */
void mp_process_group_barrier(struct mp_runtime *rt);
/** Wrap the model. Without data parallelism the parameters are the model's own. p must stay where it is. */
void mp_parallel_wrap(struct mp_runtime *rt, struct mp_parallel *p, const struct mp_run *run,
                      struct mp_net *net);
/** Micro-batch m of the step is to run: buckets and buffers of DDP, the root's gather of FSDP2. */
void mp_parallel_before_forward(struct mp_runtime *rt, struct mp_parallel *p, int64_t m);
void mp_parallel_after_forward(struct mp_runtime *rt, struct mp_parallel *p,
                               struct mp_outputs *out);
/** clip_grad_norm_ over the wrapped parameters. */
void mp_parallel_clip_grad_norm(struct mp_runtime *rt, struct mp_parallel *p);
/** Whether some rank may hold more than the first: parameters are spread whole, or count whole. */
static inline bool mp_parallel_ranks_differ(const struct mp_run *run)
{
    return run->parallel == MP_PARALLEL_ZERO1 || run->parallel == MP_PARALLEL_DEEPSPEED_ZERO1 ||
           run->parallel == MP_PARALLEL_DEEPSPEED_ZERO2;
}
/** Optimizer steps after which a step repeats the one before, unless something else changes. */
int64_t mp_parallel_steady_from(const struct mp_run *run);

/* ---- DistributedDataParallel (ddp.c) ---- */

struct mp_ddp *mp_ddp_wrap(struct mp_runtime *rt, const struct mp_run *run, struct mp_tensor **all,
                           int n_all, struct mp_tensor **trainable, int n_trainable,
                           struct mp_hooks *hooks);
void mp_ddp_before_forward(struct mp_runtime *rt, struct mp_ddp *ddp, bool sync);
void mp_ddp_after_forward(struct mp_runtime *rt, struct mp_ddp *ddp, struct mp_outputs *out);

/**
 * Tensors go into buckets in order, one open bucket per type; it is closed when its bytes reach the limit, limits[0] for the first
 * bucket of a type, the last limit from there on. bucket_of[i] gets tensor i's bucket; buckets are numbered in the order in which
 * they close, or (by_first) of their first tensors. Returns their number.
 */
int mp_assign_buckets(struct mp_runtime *rt, struct mp_tensor *const *tensors, int n,
                      const uint64_t *limits, int n_limits, bool by_first, int *bucket_of);

/* ---- ZeroRedundancyOptimizer (zero.c) ---- */

/** Parameters by size, the largest first, each to the rank that has the least so far. Fills mine with rank's, the largest first. */
int mp_zero1_partition(struct mp_runtime *rt, struct mp_tensor *const *parameters, int n,
                       int64_t world, int64_t rank, struct mp_tensor **mine);
/** The rank that gets most. */
int64_t mp_zero1_fullest_rank(struct mp_runtime *rt, struct mp_tensor *const *parameters, int n,
                              int64_t world);

/* ---- fully_shard (fsdp.c) ---- */

struct mp_fsdp *mp_fsdp_wrap(struct mp_runtime *rt, const struct mp_run *run, struct mp_net *net,
                             struct mp_hooks *hooks);
/** The sharded parameters, in the model's order. */
struct mp_tensor **mp_fsdp_parameters(const struct mp_fsdp *fsdp);
void mp_fsdp_before_forward(struct mp_runtime *rt, struct mp_fsdp *fsdp);
void mp_fsdp_after_forward(struct mp_runtime *rt, struct mp_fsdp *fsdp, struct mp_outputs *out);

#endif
