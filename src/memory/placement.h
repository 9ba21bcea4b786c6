/* SPDX-License-Identifier: MIT */
/*
 * Where cudaMalloc puts memory: a model of the driver's address choice.
 *
 * The caching allocator breaks ties between free blocks of one size by address, so the addresses of
 * segments reach into its statistics. Give it a heap of these and it meets the same ties as on a
 * card.
 *
 *     struct mp_heap heap;
 *     mp_heap_init(&heap, MP_HEAP_TOP);
 *     uint64_t address = mp_heap_take(&heap, 20 * MP_MIB);
 *     mp_heap_give(&heap, address);
 *     mp_heap_release(&heap);
 *
 * Ownership: the caller owns the struct; mp_heap_release frees what it points to. Failure: address
 * 0 when the host's memory is exhausted.
 */
#ifndef MP_PLACEMENT_H
#define MP_PLACEMENT_H

#include "base/error.h"
#include "shadow/program.h"

#define MP_HEAP_TOP (UINT64_C(1) << 45)          /* below every address seen from a driver */
#define MP_HEAP_CHUNK_BYTES (UINT64_C(32) << 20) /* address space is taken in multiples of it */
#define MP_HEAP_PAGE_BYTES                                                                         \
    (UINT64_C(2) << 20) /* cudaMalloc's granularity for sizes of a MiB and more */

struct mp_heap_range {
    uint64_t address, bytes;
};

/* A piece of address space that cudaMalloc took from the system: pieces in use, and holes between
 * them. */
struct mp_heap_chunk {
    uint64_t address, bytes;
    struct mp_heap_range *holes; /* by address; neighbours are merged */
    uint32_t n_holes, cap_holes;
};

struct mp_heap {
    struct mp_heap_chunk *chunks; /* oldest first */
    uint64_t *largest_hole;       /* of each chunk: the search runs over this array alone */
    uint64_t hole_bound;          /* no hole is larger: most segments are, and need no search */
    size_t n_chunks, cap_chunks;
    struct mp_heap_range *gaps; /* address space given back, by address; neighbours are merged */
    size_t n_gaps, cap_gaps;
    struct mp_heap_range *used; /* what was handed out and not given back; unordered */
    size_t n_used, cap_used;
    uint64_t pool;   /* where the driver has its local memory, once NCCL has made it larger */
    uint64_t bottom; /* nothing below it was ever taken, or all of it was given back */
    bool failed;
};

/** All addresses below top are free. Ends with mp_heap_release(). */
void mp_heap_init(struct mp_heap *heap, uint64_t top);
/**
 * The heap as a process with a CUDA context finds it: what the driver holds lies where measured.
 * Then what it does later: call mp_heap_driver_event() as the events come. False (heap->failed):
 * host memory exhausted.
 */
bool mp_heap_init_process(struct mp_heap *heap);
bool mp_heap_driver_event(struct mp_heap *heap, enum mp_driver_event event, uint64_t bytes); /* bytes: of a cuBLAS handle */
/** The same in a process that had loaded its kernels before; only NCCL's events do something. */
bool mp_heap_nccl_event(struct mp_heap *heap, enum mp_driver_event event);
void mp_heap_release(struct mp_heap *heap);
/** An address for bytes (> 0), or 0: no address space left, or (heap->failed) host memory
 * exhausted. */
uint64_t mp_heap_take(struct mp_heap *heap, uint64_t bytes);
/** Give back what mp_heap_take gave; an unknown address is ignored. */
void mp_heap_give(struct mp_heap *heap, uint64_t address);
/** Hash of the holes, gaps and their order: equal hashes answer equal requests equally. */
uint64_t mp_heap_hash(const struct mp_heap *heap);
/** Consistency, for tests: false with the first violation in *err. */
bool mp_heap_check(const struct mp_heap *heap, struct memplan_error *err);

#endif
