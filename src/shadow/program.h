/* SPDX-License-Identifier: MIT */
/*
 * A program: what a job asks of the memory, in order. The shadow run writes it; ledger, allocator and
 * CUDA executor read it.
 *
 *     ALLOC id bytes stream     a storage comes to life      id: 1, 2, 3, … in order of allocation
 *     FREE  id                  its last reference is gone   (zero-byte storages do not appear)
 *     MARK  phase               a phase ends here            id: index into phases[]
 *     EMPTY_CACHE               torch.cuda.empty_cache()
 *     TAG   id category         the storage turns out to be something else: a temporary that autograd saved
 *                               is an activation from here on; a gradient that is taken over becomes .grad
 *     RECORD_STREAM id stream   the storage is used on another stream
 *     DRIVER kind               the driver takes or gives back memory of its own: where later segments lie changes
 *
 * Operation records (inputs, outputs, attributes) are only kept when asked for (`fit --program`).
 */
#ifndef MP_PROGRAM_H
#define MP_PROGRAM_H

#include "base/arena.h"
#include "base/error.h"

enum mp_event_kind {
    MP_EVENT_ALLOC,
    MP_EVENT_FREE,
    MP_EVENT_MARK,
    MP_EVENT_EMPTY_CACHE,
    MP_EVENT_TAG,
    MP_EVENT_RECORD_STREAM,
    MP_EVENT_DRIVER, /* id: enum mp_driver_event */
    MP_EVENT_OP,     /* id: index into ops[] */
};

/* What takes address space beside the program's own requests, each once. */
enum mp_driver_event {
    MP_DRIVER_FIRST_KERNEL,    /* a page of code */
    MP_DRIVER_LARGER_STACKS,   /* a kernel needs more local memory than any before: other stacks for all threads */
    MP_DRIVER_ASSERTIONS,      /* a kernel checks its indices: host memory for what it has to say */
    MP_DRIVER_HOST_PAGE,       /* the second page of memory that the host shares */
    MP_DRIVER_CODE_PAGE,       /* the third page of code; the second comes with cuBLAS */
    MP_DRIVER_FIRST_CUBLAS,    /* the first thread creates its cuBLAS handle */
    MP_DRIVER_CUBLAS,          /* another thread does */
    MP_DRIVER_FIRST_CUDNN,     /* the first thread creates its cuDNN handle */
    MP_DRIVER_CUDNN,           /* another thread does */
    MP_DRIVER_BACKWARD_THREAD, /* it starts, with a heap of its own */
    MP_DRIVER_NCCL,            /* NCCL starts: its kernels fill all holes */
    MP_DRIVER_QUIET_GROUP,     /* a process group that moves nothing is opened */
    MP_DRIVER_STREAM_POOL,     /* torch makes its pool of side streams */
    MP_DRIVER_NCCL_RANKS,      /* a communicator of several ranks is made */
    MP_DRIVER_NCCL_REDUCE,     /* it reduces for the first time */
    MP_DRIVER_NCCL_BROADCAST,  /* it broadcasts for the first time */
};

/* What a storage is for. Every live byte has one, so the parts at any moment add up to the whole. */
#define MP_CATEGORY_MAP(X)                                                                         \
    X(PARAMETER, "parameters")                                                                     \
    X(BUFFER, "buffers")                                                                           \
    X(GRADIENT, "gradients")                                                                       \
    X(OPTIMIZER_STATE, "optimizer state")                                                          \
    X(ACTIVATION, "activations")                                                                   \
    X(LOGITS, "logits and loss")                                                                   \
    X(TEMPORARY, "temporaries")                                                                    \
    X(WORKSPACE, "workspaces")                                                                     \
    X(COMMUNICATION, "communication buffers")                                                      \
    X(INPUT, "inputs")

enum mp_category {
#define X(name, text) MP_CATEGORY_##name,
    MP_CATEGORY_MAP(X)
#undef X
    MP_CATEGORY_COUNT
};
const char *mp_category_text(enum mp_category category);

struct mp_event {
    uint8_t kind; /* enum mp_event_kind */
    uint8_t category;
    uint8_t stream;
    int16_t layer;  /* block index; -1: outside the blocks */
    int16_t unit;   /* likewise, but what an optimizer does for a parameter counts for the parameter's block */
    uint16_t tag;   /* of the card's answer that the size is; 0: the card has no say in it (shadow/card.h) */
    uint32_t id;
    uint64_t bytes;
    const char *op; /* operation or autograd node that asked; static or arena text */
};

struct mp_phase {
    char name[28];         /* "it0.mb1.bwd" */
    uint32_t event;        /* index of its MARK */
    uint64_t requested_bytes;      /* at its end */
    uint64_t requested_peak_bytes; /* since the previous mark */
    uint32_t collectives;          /* DDP's calls so far, from the first forward on that follows a backward */
};

/* malloc'ed, growing; all zero is empty. */
struct mp_program {
    struct mp_event *events;
    uint32_t n_events, cap_events;
    struct mp_phase *phases;
    uint32_t n_phases, cap_phases;
    uint32_t n_allocs; /* ids 1 … n_allocs */
    uint64_t live_bytes, peak_bytes, peak_since_mark_bytes;
    struct mp_op_record *ops; /* NULL unless recording; shadow/record.h */
    struct mp_op_tensor *op_tensors;
    struct mp_attribute *op_attributes;
    uint32_t n_ops, cap_ops, n_op_tensors, cap_op_tensors, n_op_attributes, cap_op_attributes;
    bool keep_tags, keep_ops; /* what to record beside memory events */
};

/** An empty program, whose arrays grow on the heap until the release; its texts belong to an arena. */
void mp_program_init(struct mp_program *program);
void mp_program_release(struct mp_program *program);

#endif
