/* SPDX-License-Identifier: MIT */
/* The allocator's insides, shared by allocator.c and the file that inspects them. Nobody else
 * includes this. */
#ifndef MP_ALLOCATOR_STATE_H
#define MP_ALLOCATOR_STATE_H

#include "memory/allocator.h"
#include "memory/free_set.h"
#include "memory/placement.h"

#define MIN_BLOCK_BYTES UINT64_C(512)   /* kMinBlockSize */
#define SMALL_BYTES MP_SMALL_POOL_BYTES /* kSmallSize */

/* Kinds in order of cost: every change touches one pool and the sum of both. */
enum { POOL_SMALL, POOL_LARGE, POOL_ALL, POOL_KINDS };

/* A statistic while it runs; `freed` is total - current, the total of both pools their sum. */
struct mp_tally {
    uint64_t current[POOL_KINDS], peak[POOL_KINDS];
    uint64_t total[2]; /* all increases, per pool */
};

/* Statistics whose peaks are also wanted per phase. */
enum { PEAK_ALLOCATED, PEAK_RESERVED, PEAK_REQUESTED, PEAK_KINDS };

struct mp_pool {
    struct mp_free_set **sets; /* by stream; NULL where the stream has none */
    uint32_t n_sets;
    uint64_t n_searches; /* get_free_blocks_call_count: the clock of the garbage collector */
};

/* An ExpandableSegment: an address range whose pages get memory on demand. */
struct mp_virtual_range {
    struct mp_block *first;
    uint64_t bytes, page_bytes;
};

/* An event recorded on a stream for a block whose free waits for it. */
struct mp_deferred {
    struct mp_block *block;
    uint32_t stream;
    bool complete;
};
#define MP_NO_STREAM UINT32_MAX /* complete_stream does not reach it */

struct mp_block_slab {
    struct mp_block_slab *older;
    struct mp_block blocks[127];
};

struct mp_allocator {
    struct mp_pool pools[2]; /* POOL_SMALL, POOL_LARGE */
    struct mp_block *spare;  /* unused blocks, linked by next */
    size_t n_spare;
    struct mp_allocator_conf conf;
    mp_torch_version torch;
    bool plain_rounding; /* no roundup divisions at all */
    bool gc_active;
    bool settled[2]; /* pools that are not played on: mp_allocator_settle() */
    bool peaks_only; /* statistics are those of struct mp_allocator_options */
    bool failed;
    uint64_t limit_bytes, capacity_bytes, total_bytes; /* 0: none, except total */

    struct mp_tally allocation, inactive_split;
    struct mp_tally allocated_bytes, inactive_split_bytes, requested_bytes;
    /* Differ from allocation and allocated_bytes only once a free was deferred; not kept before. */
    struct mp_tally active, active_bytes;
    bool has_deferred;
    struct mp_tally segment, reserved_bytes;
    struct mp_stat oversize_allocations, oversize_segments;
    uint64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
    uint64_t whole_peak[PEAK_KINDS], phase_peak[PEAK_KINDS];
    uint64_t device_bytes; /* taken from the card, in whole pages of 2 MiB */

    struct mp_deferred *deferred; /* oldest first */
    size_t n_deferred, cap_deferred;
    size_t n_complete; /* of them */

    struct mp_block **segments; /* first blocks of what cudaMalloc gave */
    size_t n_segments, cap_segments;
    struct mp_virtual_range *ranges;
    size_t n_ranges, cap_ranges;

    struct mp_heap heap;
    struct mp_placement placement;
    uint64_t *recorded; /* own copy of placement.recorded */
    size_t n_recorded, next_recorded;

    unsigned observed; /* bit per action */
    mp_allocator_observer *observer;
    void *observer_context;
    struct mp_block_slab *slabs;
    struct mp_allocator_oom oom;
    struct mp_allocator_stats *view; /* what mp_allocator_stats hands out */
};

#endif
