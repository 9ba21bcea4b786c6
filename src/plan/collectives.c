/* SPDX-License-Identifier: MIT */
/*
 * A process group beside a training process.
 *
 * torch makes 32 streams per priority when the first side stream is asked for, by NCCL's process group or by FSDP2. NCCL's kernels share
 * the reservation for local memory with those of the model: together they take less than apart. Both were measured on an H200
 * (tests/data/parallel: 1,681,915,904 bytes outside the allocator with DDP, 1,677,721,600 with FSDP2, 868,220,928 with FSDP2 and no NCCL,
 * 794,820,608 on one GPU). memplan-validate has one stream, and kernels too small to share anything
 * (validate/results/gpu/h200-probe-ranks.json: 397,410,304 bytes of NCCL stay when the communicator is gone).
 *
 * A group of one rank runs no kernel. DeepSpeed makes a second group of all ranks for its data parallelism, with buffers of its own
 * (validate/results/h200-engines-nccl.jsonl: 2,193,620,992 bytes with two ranks, 1,790,967,808 with one).
 */
#include "plan/collectives.h"

#include "memory/nccl.h"

#define STREAM_POOL_BYTES   (UINT64_C(70) << 20)
#define SHARED_KERNEL_BYTES (UINT64_C(90) << 20)
#define SECOND_GROUP_BYTES  (UINT64_C(4) << 20) /* beside its buffers */

/* The collectives that each kind of data parallelism calls, with those of the loop around it. */
static uint32_t collectives_of(const struct mp_run *run)
{
    const uint32_t loop = MP_NCCL_BIT(MP_NCCL_ALLREDUCE); /* the barrier */
    if (run->parallel == MP_PARALLEL_FSDP2)
        return loop | MP_NCCL_BIT(MP_NCCL_ALLGATHER) | MP_NCCL_BIT(MP_NCCL_REDUCESCATTER);
    if (run->parallel == MP_PARALLEL_DEEPSPEED_ZERO3)
        return loop | MP_NCCL_BIT(MP_NCCL_ALLGATHER) | MP_NCCL_BIT(MP_NCCL_REDUCESCATTER) |
               MP_NCCL_BIT(MP_NCCL_BROADCAST);
    return loop | MP_NCCL_BIT(MP_NCCL_ALLGATHER) | MP_NCCL_BIT(MP_NCCL_BROADCAST);
}

static enum memplan_status predict(const struct mp_run *run, bool multicast,
                                   struct mp_nccl_result *result, struct memplan_error *err)
{
    struct mp_nccl_job job;
    mp_nccl_job_init(&job, run->gpu->name, run->gpu->compute_capability,
                     (uint32_t)(run->world / run->gpus_per_node), (uint32_t)run->gpus_per_node);
    job.nvls = multicast ? MP_NCCL_DEFAULT : MP_NCCL_OFF;
    job.collectives = collectives_of(run);
    return mp_nccl_predict(&job, result, err);
}

/*
 * Multicast needs a fabric manager that hands it out, which most shared machines' does not: it counts in the high end only. The point
 * is the high end without it, since a job sends small and large messages.
 */
enum memplan_status mp_collectives_predict(const struct mp_run *run, struct mp_collectives *c,
                                           struct memplan_error *err)
{
    struct mp_nccl_result without, with;
    *c = (struct mp_collectives){0};
    if (run->parallel == MP_PARALLEL_NONE)
        return MEMPLAN_STATUS_OK;
    const bool torch = !run->profile->validate, engine = run->deepspeed.stage > 0;
    /* without overlap_comm stage 3 works on the main stream alone, stages 1 and 2 make their stream all the same */
    const bool side_streams = !run->no_collectives || run->deepspeed.stage != 3 || run->deepspeed.overlap_comm;
    c->stream_bytes = torch && side_streams ? STREAM_POOL_BYTES : 0;
    if (!run->no_collectives) {
        enum memplan_status status = predict(run, false, &without, err);
        if (!status)
            status = predict(run, true, &with, err);
        if (status)
            return status;
        const uint64_t process = mp_nccl_process_bytes(run->world > 1 ? collectives_of(run) : 0);
        const uint64_t groups = engine ? 2 : 1;
        c->process_bytes = process - (torch ? MP_MIN(process, SHARED_KERNEL_BYTES) : 0);
        c->process_bytes += engine ? SECOND_GROUP_BYTES : 0;
        c->buffer_bytes = groups * without.high_bytes;
        c->low_bytes = groups * without.low_bytes;
        c->high_bytes = groups * MP_MAX(without.high_bytes, with.high_bytes);
    }
    c->low_bytes += c->stream_bytes + c->process_bytes;
    c->high_bytes += c->stream_bytes + c->process_bytes;
    return MEMPLAN_STATUS_OK;
}
