/* SPDX-License-Identifier: MIT */
/*
 * The caching allocator: PyTorch's CUDACachingAllocator (native backend) without the memory.
 *
 *     request --round--> size --best fit--> block --split--> allocated | rest
 *                                  `--none--> segment (cudaMalloc | mapped pages)
 *                                                `--refused--> release cached, retry, out of memory
 *
 * Feed it mallocs and frees in order; it answers with addresses and keeps PyTorch's statistics.
 * Addresses of new segments come from the placement model, or from a recorded list.
 *
 * Errors: only memory exhaustion of the host (mp_allocator_failed); an out-of-memory of the
 * simulated card is a result. Ownership: the allocator owns its blocks. A struct mp_block * is valid
 * until that block is freed.
 */
#ifndef MP_ALLOCATOR_H
#define MP_ALLOCATOR_H

#include "base/error.h"
#include "base/strbuf.h"

/* Settings of PYTORCH_CUDA_ALLOC_CONF; sizes in bytes. */
struct mp_allocator_conf {
    uint64_t max_split_bytes; /* UINT64_MAX: unlimited */
    uint64_t max_non_split_rounding_bytes;
    uint64_t large_segment_bytes;
    double garbage_collection_threshold; /* 0: off */
    uint32_t roundup_divisions[16]; /* by power of two, 1 MiB … 32 GiB; 0 and 1: plain rounding */
    uint64_t roundup_bypass_bytes;  /* 1.12–2.0 */
    double per_process_memory_fraction; /* 0: not given */
    bool expandable_segments;
    bool backend_async; /* backend:cudaMallocAsync */
};

/* A release of PyTorch whose rules are followed; 0 fields mean the rules of 2.11. major*100+minor:
 * 113, 200 … 212. */
typedef int mp_torch_version;
#define MP_TORCH_DEFAULT 211

/** "2.11", "2.11.0+cu130" → 211. INPUT for what is no version between 1.13 and 2.12. */
enum memplan_status mp_torch_version_parse(const char *text, mp_torch_version *torch,
                                           struct memplan_error *err);

/** Defaults of that version. */
void mp_allocator_conf_init(struct mp_allocator_conf *conf, mp_torch_version torch);
/** Parse "max_split_size_mb:128,expandable_segments:True" (NULL or "": defaults). INPUT names the
 * key, the value and the way out. */
enum memplan_status mp_allocator_conf_parse(const char *text, mp_torch_version torch,
                                            struct mp_allocator_conf *conf,
                                            struct memplan_error *err);

enum mp_stat_kind { MP_STAT_ALL, MP_STAT_SMALL, MP_STAT_LARGE, MP_STAT_KINDS };
struct mp_stat {
    uint64_t current, peak, allocated, freed;
};

/* torch.cuda.memory_stats() */
struct mp_allocator_stats {
    struct mp_stat allocation[MP_STAT_KINDS], segment[MP_STAT_KINDS], active[MP_STAT_KINDS],
        inactive_split[MP_STAT_KINDS], allocated_bytes[MP_STAT_KINDS],
        reserved_bytes[MP_STAT_KINDS], active_bytes[MP_STAT_KINDS],
        inactive_split_bytes[MP_STAT_KINDS], requested_bytes[MP_STAT_KINDS];
    struct mp_stat oversize_allocations, oversize_segments;
    uint64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free;
};

/*
 * A piece of a segment. The first block of a segment keeps its struct as long as the segment lives:
 * a split makes a new struct for the high part, a merge keeps the low one.
 */
struct mp_block {
    uint64_t address;
    uint64_t size;                /* bytes, rounded */
    uint64_t requested_bytes;     /* stale while free, as in PyTorch's snapshots */
    struct mp_block *prev, *next; /* neighbours in the segment, by address */
    uint64_t segment;       /* address of its segment; expandable: of its address range */
    uint64_t gc_base;       /* the pool's count of searches when the block was freed */
    uint32_t client;        /* caller's id while allocated */
    uint32_t stream_uses;   /* bit per stream it was recorded on; bit 31: stream 31 and all above */
    uint32_t segment_index; /* first block of a segment: its place in the table of segments */
    uint16_t stream;
    uint16_t bin;        /* while free: where its set keeps it */
    uint8_t event_count; /* pending record_stream events */
    bool allocated, small, expandable, mapped;
};

/* Where new segments lie. */
struct mp_placement {
    /*
     * PROCESS: the model with the driver's own pieces in torch's process; LOADED: likewise, in one
     * that has loaded its kernels before the first segment (memplan-validate). Tell them of
     * mp_allocator_driver_event()s.
     */
    enum {
        MP_PLACE_MODEL,
        MP_PLACE_RECORDED,
        MP_PLACE_CALLBACK,
        MP_PLACE_PROCESS,
        MP_PLACE_LOADED
    } kind;
    /* RECORDED: addresses of the segment_alloc and segment_map events, in order; then the model
     * takes over. */
    const uint64_t *recorded;
    size_t n_recorded;
    /* CALLBACK: a driver (memplan-validate); 0: out of memory; release gets what allocate gave. */
    uint64_t (*allocate)(void *context, uint64_t bytes);
    void (*release)(void *context, uint64_t address, uint64_t bytes);
    void *context;
};

struct mp_allocator;

struct mp_allocator_options {
    struct mp_allocator_conf conf;
    mp_torch_version torch;
    /* Cap of set_per_process_memory_fraction; 0: none. A cap enables GC and "allowed". */
    uint64_t limit_bytes;
    /* What cudaMalloc can give this process (card minus unavailable); 0: unbounded. Same retry path,
       no GC. */
    uint64_t capacity_bytes;
    uint64_t total_bytes; /* of the card, for the size of expandable address ranges; 0: 1 TiB */
    struct mp_placement placement;
    bool peaks_only; /* count requested, allocated and reserved bytes of both pools together, and nothing else that needs counting */
};

/** UNSUPPORTED for backend:cudaMallocAsync (the driver's own pool), NOMEM. */
struct mp_allocator *mp_allocator_new(const struct mp_allocator_options *options,
                                      struct memplan_error *err);
void mp_allocator_free(struct mp_allocator *a);

/** Block for n bytes on stream, or NULL: out of memory of the card (or of the host:
 * mp_allocator_failed()). n = 0 is a bug. */
struct mp_block *mp_allocator_malloc(struct mp_allocator *a, uint64_t n, unsigned stream,
                                     uint32_t client);
void mp_allocator_release(struct mp_allocator *a, struct mp_block *block); /* torch's free() */

/*
 * Scratch buffers, taken in order and given back at once, the last first: where free blocks serve, the allocator is afterwards as it
 * was, and it is enough to look (allocator_scratch.c).
 */
enum { MP_SCRATCH_MOST = 2 };
struct mp_scratch_look {
    unsigned stream, n;
    uint64_t requested_bytes, allocated_bytes; /* while all are held, with what else is live: a peak */
    uint64_t segment_bytes[MP_SCRATCH_MOST];   /* the new segment that each would need; 0: a free block serves */
    bool small[MP_SCRATCH_MOST];               /* pool */
};
/** False under settings, or in a state, where more than the free blocks counts. */
bool mp_allocator_can_look(const struct mp_allocator *a);
/** How n (at most MP_SCRATCH_MOST) buffers would be served. */
void mp_allocator_look(const struct mp_allocator *a, unsigned stream, const uint64_t *bytes, unsigned n, struct mp_scratch_look *look);
/** Up to here the small pool serves, rounded or not. */
#define MP_SMALL_POOL_BYTES (UINT64_C(1) << 20)
/**
 * From here on the pool is not played: the caller knows that its states repeat, hands it no more requests, and was told by
 * mp_allocator_can_look() that this is possible. Those of the small pool are still counted, by mp_allocator_count_small() (malloc: else
 * free); peaks that are noted after the large one has settled mean nothing.
 */
void mp_allocator_settle(struct mp_allocator *a, bool small);
void mp_allocator_count_small(struct mp_allocator *a, uint64_t bytes, bool malloc);
/** Is the allocator the same after the one and after the other? */
bool mp_scratch_leaves_the_same(const struct mp_scratch_look *x, const struct mp_scratch_look *y);
/** No new segments? */
bool mp_scratch_leaves_nothing(const struct mp_scratch_look *look);
/**
 * Take the buffers and give them back: their segments are new free blocks. Allocated and requested bytes are not counted. False, and
 * nothing has changed (or mp_allocator_failed()), where card or cap would say no.
 */
bool mp_allocator_leave_segments(struct mp_allocator *a, const struct mp_scratch_look *look);
void mp_allocator_record_stream(struct mp_allocator *a, struct mp_block *block, unsigned stream);
/** All outstanding events of that stream are complete: deferred blocks are freed at the next
 * malloc. */
void mp_allocator_complete_stream(struct mp_allocator *a, unsigned stream);
/** Free a deferred block now (a recorded free_completed). */
void mp_allocator_complete_block(struct mp_allocator *a, struct mp_block *block);
void mp_allocator_empty_cache(struct mp_allocator *a);
/** The driver takes or gives back memory of its own (enum mp_driver_event); only placement PROCESS
 * looks at it. */
void mp_allocator_driver_event(struct mp_allocator *a, unsigned event, uint64_t bytes);

/** What cudaMalloc can give changes (0: unbounded): others on the card come and go. */
void mp_allocator_set_capacity(struct mp_allocator *a, uint64_t capacity_bytes);
/** What this allocator holds of the card. */
uint64_t mp_allocator_device_bytes(const struct mp_allocator *a);

const struct mp_allocator_stats *mp_allocator_stats(const struct mp_allocator *a);
/** The two numbers that a caller may want after every event. */
void mp_allocator_current(const struct mp_allocator *a, uint64_t *allocated_bytes,
                          uint64_t *reserved_bytes);
void mp_allocator_reset_peaks(struct mp_allocator *a);
/** The host's memory is exhausted; the allocator can only be freed now. */
bool mp_allocator_failed(const struct mp_allocator *a);

/** Peaks since the last call, for phases: then start anew from the current values. Whole-run peaks
 * in stats are not touched. */
struct mp_allocator_peaks {
    uint64_t allocated_bytes, reserved_bytes, requested_bytes;
};
struct mp_allocator_peaks mp_allocator_take_peaks(struct mp_allocator *a);

/** What happened at the last out-of-memory: for the message and the report. */
struct mp_allocator_oom {
    uint64_t requested_bytes, rounded_bytes, segment_bytes; /* PyTorch prints segment_bytes */
    uint64_t largest_free_bytes; /* largest free block of that pool and stream */
    uint64_t free_bytes;         /* all free blocks of that pool and stream together */
    uint64_t allocated_bytes, reserved_bytes;
};
const struct mp_allocator_oom *mp_allocator_oom(const struct mp_allocator *a);

/** Every segment (or contiguous mapped range) in address order; for its blocks follow block->next.
 * Stops when visit returns false. */
typedef bool mp_segment_visit(void *context, const struct mp_block *first, uint64_t segment_bytes);
enum memplan_status mp_allocator_visit_segments(const struct mp_allocator *a,
                                                mp_segment_visit *visit, void *context);

/**
 * Hash of the whole state that decides the future: free blocks, allocated blocks with key(client),
 * placement holes. Two equal hashes at step ends mean that the next step will repeat the last one.
 */
uint64_t mp_allocator_state_hash(const struct mp_allocator *a,
                                 uint64_t (*key)(void *context, uint32_t client), void *context);
/** Of the blocks of one pool alone; the large one's goes with the placement. */
uint64_t mp_allocator_pool_hash(const struct mp_allocator *a, bool small,
                                uint64_t (*key)(void *context, uint32_t client), void *context);

/** What an observer is told, in PyTorch's order and words
 * (torch.cuda.memory._snapshot()["device_traces"]). */
#define MP_ALLOCATOR_ACTION_MAP(X)                                                                 \
    X(ALLOC, "alloc")                                                                              \
    X(FREE_REQUESTED, "free_requested")                                                            \
    X(FREE_COMPLETED, "free_completed")                                                            \
    X(SEGMENT_ALLOC, "segment_alloc")                                                              \
    X(SEGMENT_FREE, "segment_free")                                                                \
    X(SEGMENT_MAP, "segment_map")                                                                  \
    X(SEGMENT_UNMAP, "segment_unmap")                                                              \
    X(OOM, "oom")

enum mp_allocator_action {
#define X(name, text) MP_ALLOCATOR_##name,
    MP_ALLOCATOR_ACTION_MAP(X)
#undef X
        MP_ALLOCATOR_ACTION_COUNT
};
const char *mp_allocator_action_text(enum mp_allocator_action action);

/* bytes: requested (alloc, free_*), of the segment or mapping (segment_*), rounded (oom, where
 * address is what is free of capacity). */
struct mp_allocator_note {
    enum mp_allocator_action action;
    unsigned stream;
    uint64_t address, bytes;
    uint32_t client; /* alloc, free_* */
};
typedef void mp_allocator_observer(void *context, const struct mp_allocator_note *note);
/** observer NULL: nobody looks. */
void mp_allocator_observe(struct mp_allocator *a, mp_allocator_observer *observer, void *context);
/** Only segment_* and oom: costs the ordinary event nothing. */
void mp_allocator_observe_card(struct mp_allocator *a, mp_allocator_observer *observer,
                               void *context);

/** Defer the free of a block as if another stream still used it: until mp_allocator_complete_block
 * or a synchronisation. */
void mp_allocator_release_deferred(struct mp_allocator *a, struct mp_block *block);

/*
 * A starting state: a segment with its blocks, before the first malloc. The statistics count it as
 * allocated by then. UNMAPPED only in expandable segments, where what follows the last block is
 * unmapped too.
 */
struct mp_seed_block {
    enum { MP_SEED_FREE, MP_SEED_ALLOCATED, MP_SEED_UNMAPPED } kind;
    uint32_t client;
    uint64_t bytes, requested_bytes;
};
struct mp_seed_segment {
    uint64_t address;
    unsigned stream;
    bool small, expandable;
    const struct mp_seed_block *blocks; /* by address, without holes */
    size_t n_blocks;
};
/** blocks: NULL, or n_blocks pointers that are set for allocated blocks. INPUT: sizes that no
 * segment of that pool can have. */
enum memplan_status mp_allocator_seed(struct mp_allocator *a, const struct mp_seed_segment *segment,
                                      struct mp_block **blocks, struct memplan_error *err);

/** The rules alone, for tests and explanations. */
uint64_t mp_allocator_round_size(const struct mp_allocator_conf *conf, mp_torch_version torch,
                                 uint64_t n);
uint64_t mp_allocator_segment_size(const struct mp_allocator_conf *conf, uint64_t rounded);

/** Consistency of every list and counter; false with the first violation in *err. For tests and
 * debug builds. */
bool mp_allocator_check(const struct mp_allocator *a, struct memplan_error *err);

/** torch.cuda.memory_summary(). */
void mp_allocator_summary(const struct mp_allocator_stats *stats, int device, bool abbreviated,
                          struct mp_strbuf *out);

#endif
