/* SPDX-License-Identifier: MIT */
/*
 * NCCL's tuner picks an algorithm per call from message size, topology and its tables of latencies. Memory only asks
 * which ones it can pick for some size: a training job sends small and large messages.
 */
#include "memory/nccl_tuner.h"

#define RING MP_NCCL_BIT(MP_NCCL_ALGORITHM_RING)
#define TREE MP_NCCL_BIT(MP_NCCL_ALGORITHM_TREE)
#define NVLS MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS)
#define NVLS_TREE MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS_TREE)
#define PAT MP_NCCL_BIT(MP_NCCL_ALGORITHM_PAT)

static bool pat_possible(const struct mp_nccl_plan *plan)
{
    const struct mp_nccl_job *job = plan->job;
    return job->version >= 22300 && job->nodes > 1 && job->ranks_per_node == 1 &&
           job->env.pat != MP_NCCL_OFF && !job->env.simple_excluded;
}

/* What NCCL implements for a collective on this machine, chosen by default or not. */
static uint32_t implemented(const struct mp_nccl_plan *plan, enum mp_nccl_collective collective)
{
    const bool one_node = plan->job->nodes == 1;
    const bool nvls = plan->nvls && !plan->job->env.simple_excluded; /* NVLS only speaks Simple */
    switch (collective) {
    case MP_NCCL_ALLREDUCE:
        return RING | TREE | (nvls ? (one_node ? NVLS : NVLS_TREE) : 0);
    case MP_NCCL_ALLGATHER:
    case MP_NCCL_REDUCESCATTER:
        return RING | (nvls && one_node ? NVLS : 0) | (pat_possible(plan) ? PAT : 0);
    default:
        return RING;
    }
}

/* What the default tables pick for some message size (docs/nccl.md has the thresholds). */
static uint32_t picked(const struct mp_nccl_plan *plan, enum mp_nccl_collective collective)
{
    const struct mp_nccl_job *job = plan->job;
    const bool slow_links = plan->transport != MP_NCCL_TRANSPORT_P2P;
    if (collective == MP_NCCL_BROADCAST || collective == MP_NCCL_REDUCE)
        return RING;
    if (collective != MP_NCCL_ALLREDUCE)
        return RING | PAT | (slow_links ? NVLS : 0);
    if (job->nodes == 1) {
        /* up to four Hopper GPUs a ring is as fast as the switch's own reduction */
        const bool few = job->compute_capability < 100 && job->ranks_per_node <= 4;
        return RING | (few && !slow_links ? 0 : NVLS);
    }
    /* two nodes: the NVLS tree beats the ring at every size */
    if (plan->nvls && !job->env.simple_excluded && job->nodes == 2)
        return TREE | NVLS_TREE;
    return RING | TREE | NVLS_TREE;
}

enum memplan_status mp_nccl_choices(const struct mp_nccl_plan *plan, enum mp_nccl_collective collective,
                                    uint32_t *choices, struct memplan_error *err)
{
    *choices = 0;
    if (plan->ranks == 1 || collective >= MP_NCCL_TUNED_COLLECTIVES)
        return MEMPLAN_STATUS_OK;
    const uint32_t possible = implemented(plan, collective);
    const uint32_t allowed =
        plan->job->env.algorithms_given ? plan->job->env.algorithms[collective] : UINT32_MAX;
    *choices = possible & picked(plan, collective) & allowed;
    if (*choices == 0)
        *choices = possible & allowed;
    if (*choices == 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "NCCL_ALGO: leaves no algorithm for %s here, so NCCL would fail; add Ring to the list",
                            mp_nccl_collective_text(collective));
    return MEMPLAN_STATUS_OK;
}

uint32_t mp_nccl_eager_algorithms(const struct mp_nccl_plan *plan)
{
    if (plan->lazy || plan->ranks == 1)
        return 0;
    return RING | TREE | (plan->nvls ? (plan->job->nodes == 1 ? NVLS : NVLS_TREE) : 0) |
           (pat_possible(plan) ? PAT : 0);
}
