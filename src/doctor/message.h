/* SPDX-License-Identifier: MIT */
/*
 * Out-of-memory texts: which kind it is, and every number it states.
 *
 *     struct mp_oom_message m;
 *     mp_oom_message_read(&m, arena, &text);
 *     if (m.requested.known) ... m.requested.bytes ...
 *
 * Reads PyTorch's texts from 0.1 (THCudaCheck) to 2.12, on CUDA, ROCm, XPU and MPS, the
 * cudaMallocAsync backend's, cuBLAS's and NCCL's own, host allocators', and those of other
 * frameworks, inside logs, wrapped, prefixed by ranks, cut at either end.
 */
#ifndef MP_DOCTOR_MESSAGE_H
#define MP_DOCTOR_MESSAGE_H

#include "doctor/text.h"

/* name in JSON, what it is */
#define MP_OOM_FORMAT_MAP(X)                                                                       \
    X(NONE, "none", "no out-of-memory text")                                                       \
    X(TORCH_SHORT, "torch", "PyTorch, without figures beside the request")                         \
    X(TORCH_1_0, "torch-1.0", "PyTorch 1.0 to 1.4 (`cached`)")                                     \
    X(TORCH_1_5, "torch-1.5", "PyTorch 1.5 to 1.9 (`reserved in total by PyTorch`)")               \
    X(TORCH_1_10, "torch-1.10", "PyTorch 1.10 to 2.0 (with the max_split_size_mb hint)")           \
    X(TORCH_2_1, "torch-2.1", "PyTorch 2.1 (`total capacty`)")                                     \
    X(TORCH_2_2, "torch-2.2", "PyTorch 2.2 and later (`has a total capacity of`)")                 \
    X(OVER_1EB, "over-1eb", "a request of more than 1 EB: a size computed wrongly")                \
    X(MALLOC_ASYNC, "cuda-malloc-async", "PyTorch with backend:cudaMallocAsync")                   \
    X(PRELOG, "torch-prelog", "PyTorch 2.12's log line before the error")                          \
    X(MPS, "mps", "PyTorch on Apple GPUs")                                                         \
    X(THC, "thc", "PyTorch before 1.0 (THCudaCheck, cuda runtime error (2))")                      \
    X(CUDA_ERROR, "cuda-error", "a CUDA or HIP call outside the allocator ran out of memory")      \
    X(CUBLAS, "cublas", "cuBLAS, cuDNN or another library could not allocate")                     \
    X(NCCL, "nccl", "NCCL ran out of memory")                                                      \
    X(HOST, "host", "host memory, not the GPU's")                                                  \
    X(OTHER, "other", "another program's out-of-memory text")                                      \
    X(SUMMARY, "memory-summary", "a torch.cuda.memory_summary() table")                            \
    X(SNAPSHOT, "snapshot", "an allocator snapshot")

enum mp_oom_format {
#define X(name, text, what) MP_OOM_##name,
    MP_OOM_FORMAT_MAP(X)
#undef X
        MP_OOM_FORMATS
};

/** A number that the text may not give. */
struct mp_oom_bytes {
    bool known;
    uint64_t bytes;
};

struct mp_oom_process {
    uint64_t pid;
    uint64_t bytes;
};

#define MP_OOM_MAX_PROCESSES 128

struct mp_oom_message {
    enum mp_oom_format format;
    uint32_t seen;     /* bit per mp_oom_format met anywhere in the text */
    uint32_t n_found;  /* messages of the allocator in the text (a log of many ranks has many) */
    size_t begin, end; /* of this message in text->squeezed */
    size_t line;       /* 0-based, where it starts */
    bool hip, windows; /* "HIP out of memory"; signs of Windows or WSL */
    bool device_known;
    uint32_t device;
    struct mp_oom_bytes requested, capacity, free, this_process, allocated, reserved, unallocated;
    struct mp_oom_bytes allowed;      /* the cap of set_per_process_memory_fraction */
    struct mp_oom_bytes private_pool; /* free bytes in pools of CUDA graphs, part of allocated */
    struct mp_oom_bytes
        outside; /* this process's memory outside the allocator (see outside_is_everyone) */
    /* No per-process figure: `outside` is all that is neither free nor this allocator's, other
     * processes included. */
    bool outside_is_everyone;
    /* The text names no process as its own; one of the others was taken for it (containers show
     * foreign process ids). */
    bool self_by_size;
    uint64_t self_pid;
    bool nvml_absurd;   /* a process with 17179869184.00 GiB: the driver does not tell */
    size_t n_processes; /* others, this process excluded */
    struct mp_oom_process processes[MP_OOM_MAX_PROCESSES];
};

const char *mp_oom_format_name(enum mp_oom_format format);
const char *mp_oom_format_text(enum mp_oom_format format);

/** Never fails: what is not there stays unknown, format NONE when nothing is. */
void mp_oom_message_read(struct mp_oom_message *m, const struct mp_doctor_text *text);

/** Sum of what other processes hold, saturated. */
uint64_t mp_oom_message_others(const struct mp_oom_message *m);

/**
 * A size at *at ("23.70gib", "512bytes", "1,024.00mb"): true with *bytes set and *at moved behind
 * it. A size that does not fit 64 bits is read as absurd: true, with *bytes = UINT64_MAX.
 */
bool mp_oom_size_read(const char **at, const char *end, uint64_t *bytes);

#endif
