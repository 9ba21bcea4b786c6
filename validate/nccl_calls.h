/* SPDX-License-Identifier: MIT */
/* The few calls of NCCL that are needed, found at run time: the program also runs where NCCL is not installed. */
#ifndef VALIDATE_NCCL_CALLS_H
#define VALIDATE_NCCL_CALLS_H

#include <cuda_runtime.h>
#include <stddef.h>

/* Values of nccl.h, the same in every release 2.x. */
enum { NCCL_SUM = 0 };
enum { NCCL_INT8 = 0, NCCL_FLOAT16 = 6, NCCL_FLOAT32 = 7, NCCL_BFLOAT16 = 9 };

struct nccl_id {
    char bytes[128];
};

struct nccl {
    int version; /* 22809 for 2.28.9 */
    int (*get_id)(struct nccl_id *);
    int (*init_rank)(void **comm, int world, struct nccl_id, int rank);
    int (*all_reduce)(const void *, void *, size_t, int type, int op, void *comm, cudaStream_t);
    int (*broadcast)(const void *, void *, size_t, int type, int root, void *comm, cudaStream_t);
    int (*destroy)(void *comm);
    int (*group_start)(void);
    int (*group_end)(void);
    const char *(*text)(int);
};

/** NULL with the reason in device_error(): not installed. */
const struct nccl *nccl_open(void);
/** 0, or -1 with device_error(): what was tried, what NCCL said. */
int nccl_check(int status, const char *what);

#endif
