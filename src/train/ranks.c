/* SPDX-License-Identifier: MIT */
/*
 * Which ranks of a data-parallel job hold the same: a key for each, made of the sizes of what it holds. Only what is spread whole or
 * row by row can differ: everything else is padded to the same on every rank.
 */
#include "train/deepspeed.h"
#include "train/job.h"

static uint64_t mix(uint64_t key, int64_t value)
{
    key = (key ^ (uint64_t)value) * UINT64_C(0x9e3779b97f4a7c15);
    return key ^ key >> 29;
}

/* fully_shard: rows of each parameter, without padding. */
static uint64_t key_of_rows(const struct mp_net *net, int64_t world, int64_t rank)
{
    uint64_t key = 1;
    for (int i = 0; i < net->n_parameters; i++) {
        const int64_t rows = net->parameters[i]->shape.d[0], padded = (rows + world - 1) / world;
        key = mix(key, MP_MIN(padded, rows - MP_MIN(rank * padded, rows)));
    }
    return key;
}

/* ZeroRedundancyOptimizer: whole parameters. */
static uint64_t key_of_parameters(struct mp_runtime *rt, const struct mp_net *net, int64_t world, int64_t rank)
{
    struct mp_tensor **mine = mp_runtime_alloc(rt, (size_t)MP_MAX(net->n_parameters, 1) * sizeof *mine);
    const int n = mp_zero1_partition(rt, net->parameters, net->n_parameters, world, rank, mine);
    uint64_t key = 1;
    for (int i = 0; i < n; i++)
        key = mix(key, mp_numel(mine[i]));
    return key;
}

/* DeepSpeed, stages 1 and 2: the parameters that a partition touches, and how far. */
static uint64_t key_of_partition(const struct mp_net *net, int64_t world, int64_t rank)
{
    const int64_t partition = mp_deepspeed_partition(net->parameters, net->n_parameters, world), first = rank * partition;
    int64_t offset = 0;
    uint64_t key = 1;
    for (int i = 0; i < net->n_parameters; i++) {
        const int64_t end = offset + mp_numel(net->parameters[i]);
        if (end > first && offset < first + partition)
            key = mix(mix(key, end - offset), MP_MIN(end, first + partition) - MP_MAX(offset, first));
        offset = end;
    }
    return key;
}

struct rank_keys {
    struct mp_job job;
    uint64_t *keys;
};

static void fill_keys(struct mp_runtime *rt, void *context)
{
    const struct rank_keys *all = context;
    const struct mp_run *run = all->job.run;
    struct mp_net *net = &((struct rank_keys *)context)->job.net;
    const int64_t sharing = run->world / run->fsdp.replicas;
    net->family->build(rt, net);
    for (int64_t rank = 0; rank < run->world; rank++) {
        uint64_t *key = &all->keys[rank];
        switch (run->parallel) {
        case MP_PARALLEL_FSDP2: *key = key_of_rows(net, sharing, rank % sharing); break;
        case MP_PARALLEL_ZERO1: *key = key_of_parameters(rt, net, run->world, rank); break;
        case MP_PARALLEL_DEEPSPEED_ZERO1:
        case MP_PARALLEL_DEEPSPEED_ZERO2: *key = key_of_partition(net, run->world, rank); break;
        case MP_PARALLEL_NONE:
        case MP_PARALLEL_DDP:
        case MP_PARALLEL_DEEPSPEED_ZERO3: *key = 0; break;
        }
    }
}

enum memplan_status mp_job_rank_keys(const struct mp_run *run, uint64_t *keys, struct memplan_error *err)
{
    struct mp_program program;
    struct rank_keys all = {.keys = keys};
    mp_program_init(&program);
    enum memplan_status status = mp_job_open(&all.job, run, &program, err);
    if (!status)
        status = mp_runtime_protect(&all.job.rt, fill_keys, &all);
    mp_job_close(&all.job);
    mp_program_release(&program);
    return status;
}
