/* SPDX-License-Identifier: MIT */
/*
 * A GPU: what the planner must know of a card, each number with its provenance.
 *
 * Files: configs/gpus/NAME.json. A number is {"value": N, "provenance":
 * "measured|reported|derived|vendor", "note": "..."}, with "low" and "high" where a range is known.
 * A bare integer is allowed in a user's own file and counts as reported. Keys that begin with an
 * underscore are comments. What a file leaves out (workspaces, attention kernels) follows from its
 * compute capability.
 */
#ifndef MP_GPU_H
#define MP_GPU_H

#include "base/arena.h"
#include "base/error.h"
#include "base/value.h"

enum mp_provenance { MP_MEASURED, MP_REPORTED, MP_DERIVED, MP_VENDOR };

struct mp_fact {
    uint64_t value, low, high; /* low = high = value unless a range was reported */
    enum mp_provenance provenance;
    const char *note; /* "" when none */
};

/* What the process takes outside the allocator depends on the kernels it loads. */
enum mp_kernel_set {
    MP_KERNELS_FUSED, /* flash or cuDNN attention is used */
    MP_KERNELS_PLAIN, /* eager, math or memory-efficient attention only */
    MP_KERNEL_SETS
};

struct mp_gpu {
    const char *name;       /* "H200-141G" */
    const char *product;    /* "NVIDIA H200" */
    int compute_capability; /* 90 for 9.0 */
    uint32_t sms, threads_per_sm;
    struct mp_fact total_bytes; /* cudaMemGetInfo total */
    struct mp_fact
        context_bytes[MP_KERNEL_SETS]; /* as NVML shows: device_used = peak reserved + this */
    struct mp_fact
        unavailable_bytes[MP_KERNEL_SETS]; /* by cudaMemGetInfo: decides whether a job dies */
    struct mp_fact cublas_workspace_bytes; /* per handle and stream */
    struct mp_fact cublaslt_workspace_bytes;
    bool bf16; /* native bfloat16 (compute capability >= 8.0) */
    bool
        cudnn_attention_first; /* sdpa tries cuDNN before flash (sm_90, sm_100 with cuDNN > 9.15) */
    bool flash_attention, efficient_attention; /* kernels exist for this card */
    const struct mp_value *rates; /* as in the file: flops_per_s by type, memory_bytes_per_s, host
                                     transfer, links; may be NULL */
    const struct mp_value *
        reported_names; /* list of strings: as nvidia-smi calls the card, for `auto`; may be NULL */
    const char *source; /* where it was read from */
};

/** "measured", "reported", "derived", "vendor" */
const char *mp_provenance_text(enum mp_provenance provenance);
/** A value of rates by path, such as "flops_per_s.bf16" or "memory_bytes_per_s"; 0 when the file
 * has none. */
double mp_gpu_rate(const struct mp_gpu *gpu, const char *path);

/** Shipped name ("H200-141G", case-insensitive) or path of a file. NULL with *err; an unknown name
 * lists the closest. */
const struct mp_gpu *mp_gpu_read(struct mp_arena *arena, const char *name_or_path,
                                 struct memplan_error *err);
/** From a parsed value (the file's content). */
const struct mp_gpu *mp_gpu_parse(struct mp_arena *arena, const char *origin,
                                  const struct mp_value *value, struct memplan_error *err);
/**
 * `auto`: the first card that nvidia-smi reports, matched to a shipped file by name; its capacity
 * (total minus the part that the driver reserves, which PyTorch does not see) is taken from the
 * card. INPUT when there is none, no file matches, or nvidia-smi has not answered after limit_ms
 * milliseconds. mp_gpu_read() waits MP_GPU_DETECT_MS: eight cards without persistence mode take
 * seconds to wake, one that has fallen off the bus answers never.
 */
#define MP_GPU_DETECT_MS 30000
const struct mp_gpu *mp_gpu_detect(struct mp_arena *arena, int limit_ms, struct memplan_error *err);

#endif
