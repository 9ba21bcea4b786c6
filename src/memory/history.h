/* SPDX-License-Identifier: MIT */
/*
 * A recorded allocation history: what a process asked of the caching allocator, in order, and what
 * the allocator asked of the card. Readers of text traces (trace.h) and of PyTorch's snapshots
 * (snapshot.h) fill it, replay.h plays it.
 *
 *     struct mp_history history = {0};
 *     if (mp_history_read(&history, "run.pickle", -1, &err) == MEMPLAN_STATUS_OK) ...
 *     mp_history_release(&history);
 *
 * Ownership: the caller owns the struct, all zero at first; mp_history_release frees what it holds.
 */
#ifndef MP_HISTORY_H
#define MP_HISTORY_H

#include "memory/allocator.h"

/* Beside the allocator's own actions (enum mp_allocator_action). */
enum { MP_HISTORY_MARK = MP_ALLOCATOR_ACTION_COUNT };

/* What the recording does not say, and mp_history_finish infers. */
enum {
    MP_HISTORY_EMPTY_CACHE = 1, /* empty_cache() just before this entry */
    MP_HISTORY_RETRY = 2, /* cudaMalloc failed once for this allocation, at an unknown limit */
};

struct mp_history_entry {
    uint64_t address;
    uint64_t bytes;  /* alloc, free_*: requested; segment_*: real; oom: rounded */
    uint32_t stream; /* index into streams[] */
    uint32_t id; /* mark: index into labels[]; alloc: 0, 1, 2, …; free_*: of its alloc or seed, or
                    MP_HISTORY_NO_ID */
    uint8_t action; /* enum mp_allocator_action or MP_HISTORY_MARK */
    uint8_t flags;
};

#define MP_HISTORY_NO_ID UINT32_MAX

enum mp_history_state {
    MP_HISTORY_INACTIVE,
    MP_HISTORY_ACTIVE,
    MP_HISTORY_PENDING, /* active_pending_free: another stream still uses it */
};

struct mp_history_block {
    uint64_t address, bytes, requested_bytes;
    uint8_t state; /* enum mp_history_state */
};

/* A segment at the time of the dump. */
struct mp_history_segment {
    uint64_t address, bytes;
    uint64_t stream_handle;
    uint32_t stream; /* index into streams[] */
    bool small, expandable;
    size_t first_block, n_blocks; /* in blocks[] */
};

/* A block or segment that was there before the first entry. */
struct mp_history_seed {
    uint64_t address;
    uint64_t bytes; /* block: 0 when the recording does not say; it is at least the requested size,
                       rounded */
    uint64_t requested_bytes;
    uint32_t id; /* block: what free entries call it */
    uint32_t stream;
    bool small, expandable; /* segments */
};

struct mp_history {
    struct mp_history_entry *entries;
    size_t n_entries, cap_entries;
    uint64_t *streams; /* handles in ascending order, as the allocator orders them */
    size_t n_streams, cap_streams;
    char **labels;
    size_t n_labels, cap_labels;

    bool has_segments; /* the dump says what was there at its end */
    struct mp_history_segment *segments;
    size_t n_segments, cap_segments;
    struct mp_history_block *blocks;
    size_t n_blocks, cap_blocks;

    /* The starting state, by address; empty for a recording from the beginning. Expandable: mapped
     * ranges. */
    struct mp_history_seed *seed_segments, *seed_blocks;
    size_t n_seed_segments, cap_seed_segments, n_seed_blocks, cap_seed_blocks;
    size_t n_unknown_frees; /* of blocks that were there before, in segments that are not known */
    uint32_t n_allocs;      /* ids of allocs; seeds follow */
    uint32_t n_ids;         /* of both */

    char *conf;           /* recorded allocator settings; NULL: not recorded */
    uint64_t limit_bytes; /* recorded cap; 0: none or not recorded */
    int device, n_devices;
    uint64_t peak_reserved_bytes; /* by the recorded segment events (and the starting state) */
    uint64_t
        capacity_bytes; /* what the card could give, as the first recorded oom says; 0: not known */
    size_t n_ooms;
};

/** Any file: pickle, JSON or text, plain or gzip ("-": standard input). device -1: the first with
 * events. */
enum memplan_status mp_history_read(struct mp_history *history, const char *path, int device,
                                    struct memplan_error *err);
/** The same from memory; origin stands in messages. */
enum memplan_status mp_history_parse(struct mp_history *history, const char *origin,
                                     const void *bytes, size_t length, int device,
                                     struct memplan_error *err);
void mp_history_release(struct mp_history *history);

/* For readers. The stream of an entry is a handle until mp_history_finish; false: out of memory. */
bool mp_history_add(struct mp_history *history, struct mp_history_entry entry, uint64_t stream);
bool mp_history_add_mark(struct mp_history *history, const char *label, size_t length);
bool mp_history_add_segment(struct mp_history *history, struct mp_history_segment segment);
bool mp_history_add_block(struct mp_history *history, struct mp_history_block block);
/** Order streams, infer empty_cache and retries. Readers that add entries by hand call it last. */
enum memplan_status mp_history_finish(struct mp_history *history, struct memplan_error *err);
/** Part of mp_history_finish (history_start.c): pair frees with allocs, find what was there before.
 * false: out of memory. */
bool mp_history_find_start(struct mp_history *history);
/** -1: unknown word */
int mp_history_action_parse(const char *text, size_t length);

#endif
