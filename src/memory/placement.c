/* SPDX-License-Identifier: MIT */
/*
 * The driver's address choice for cudaMalloc, as an H200 with driver 580 shows it.
 *
 *     high addresses, older chunks                                 low addresses, newer chunks
 *     ┌─────────── 64 MiB chunk ───────────┐┌── 32 MiB chunk ──┐┌── gap ──┐┌── 32 MiB chunk ──┐
 *     │ 46 MiB in use │2│ hole of 16 MiB   ││ 20 in use │ hole ││         ││ in use           │
 *     └────────────────────────────────────┘└──────────────────┘└─────────┘└──────────────────┘
 *
 *  1. A request that fits a hole of a chunk goes there. The newest chunk with room wins, however
 *     well an older one would fit; within the chunk the lowest hole that fits, at its low end.
 *  2. Otherwise a chunk of the size rounded up to 32 MiB is taken from the system, which searches
 *     from the top of the address space downwards: the highest gap wins, and the chunk sits at the
 *     gap's high end. A gap must be larger than the chunk (the driver asks for room to align it),
 *     so one of exactly its size is passed over. Failing that the chunk goes below everything else.
 *  3. A freed piece becomes a hole and merges with holes beside it. A chunk without any piece in
 *     use is given back as a gap; adjacent gaps merge.
 *
 * How it is known: 553 allocations and 105 frees by a plain CUDA program (a fixed cycle of sizes,
 * random sizes with frees, odd sizes) are reproduced to the last address
 * (tests/data/cudamalloc-addresses.txt, test_placement.c). Best fit over all holes explains 430 of
 * them, lowest address first 541.
 *
 * Pieces that the driver and libraries take for themselves lie in the same chunks and shift the
 * addresses of segments; so does what the host maps, for the address space is one.
 * mp_heap_init_process() and mp_heap_driver_event() place what was seen in logs of the process's
 * calls of the kernel module (validate/driver_log.c), for callers who know when it happens. Other
 * drivers may differ.
 */
#include "memory/placement.h"

#include "base/arena.h"

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Room for one more element of size bytes each; false when memory is exhausted. */
static bool reserve(void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    const size_t grown = *cap ? *cap * 2 : 16;
    void *p = mp_realloc(*items, grown * size);
    if (!p)
        return false;
    *items = p;
    *cap = grown;
    return true;
}

void mp_heap_init(struct mp_heap *heap, uint64_t top)
{
    *heap = (struct mp_heap){.bottom = top};
}

void mp_heap_release(struct mp_heap *heap)
{
    for (size_t i = 0; i < heap->n_chunks; i++)
        free(heap->chunks[i].holes);
    free(heap->chunks);
    free(heap->largest_hole);
    free(heap->gaps);
    free(heap->used);
    *heap = (struct mp_heap){0};
}

/* ---- holes of a chunk ---- */

static uint64_t largest_hole(const struct mp_heap_chunk *chunk)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < chunk->n_holes; i++)
        most = MP_MAX(most, chunk->holes[i].bytes);
    return most;
}

static bool insert_hole(struct mp_heap_chunk *chunk, uint32_t at, struct mp_heap_range hole)
{
    size_t cap = chunk->cap_holes;
    void *items = chunk->holes;
    if (!reserve(&items, chunk->n_holes, &cap, sizeof(*chunk->holes)))
        return false;
    chunk->holes = items;
    chunk->cap_holes = (uint32_t)cap;
    memmove(&chunk->holes[at + 1], &chunk->holes[at], (chunk->n_holes - at) * sizeof(hole));
    chunk->holes[at] = hole;
    chunk->n_holes++;
    return true;
}

static void remove_hole(struct mp_heap_chunk *chunk, uint32_t at)
{
    chunk->n_holes--;
    memmove(&chunk->holes[at], &chunk->holes[at + 1],
            (chunk->n_holes - at) * sizeof(chunk->holes[0]));
}

/* The low end of the lowest hole that fits; the caller knows that there is one. */
static uint64_t take_from_chunk(struct mp_heap_chunk *chunk, uint64_t bytes)
{
    uint32_t i = 0;
    while (chunk->holes[i].bytes < bytes)
        i++;
    const uint64_t address = chunk->holes[i].address;
    chunk->holes[i].address += bytes;
    chunk->holes[i].bytes -= bytes;
    if (!chunk->holes[i].bytes)
        remove_hole(chunk, i);
    return address;
}

static bool give_to_chunk(struct mp_heap_chunk *chunk, struct mp_heap_range piece)
{
    uint32_t i = 0;
    while (i < chunk->n_holes && chunk->holes[i].address < piece.address)
        i++;
    if (i > 0 && chunk->holes[i - 1].address + chunk->holes[i - 1].bytes == piece.address) {
        piece.address = chunk->holes[i - 1].address;
        piece.bytes += chunk->holes[i - 1].bytes;
        remove_hole(chunk, --i);
    }
    if (i < chunk->n_holes && piece.address + piece.bytes == chunk->holes[i].address) {
        piece.bytes += chunk->holes[i].bytes;
        remove_hole(chunk, i);
    }
    return insert_hole(chunk, i, piece);
}

/* ---- address space: gaps and chunks ---- */

/* Address for a new chunk: the high end of the highest gap with room to spare, or below everything.
 */
static uint64_t take_address_space(struct mp_heap *heap, uint64_t bytes)
{
    for (size_t i = heap->n_gaps; i-- > 0;) {
        struct mp_heap_range *gap = &heap->gaps[i];
        if (gap->bytes <= bytes)
            continue;
        gap->bytes -= bytes;
        return gap->address + gap->bytes;
    }
    if (heap->bottom <= bytes)
        return 0;
    heap->bottom -= bytes;
    return heap->bottom;
}

static bool give_address_space(struct mp_heap *heap, struct mp_heap_range range)
{
    size_t i = 0;
    while (i < heap->n_gaps && heap->gaps[i].address < range.address)
        i++;
    if (i > 0 && heap->gaps[i - 1].address + heap->gaps[i - 1].bytes == range.address) {
        range.address = heap->gaps[i - 1].address;
        range.bytes += heap->gaps[i - 1].bytes;
        i--;
        memmove(&heap->gaps[i], &heap->gaps[i + 1], (--heap->n_gaps - i) * sizeof(range));
    }
    if (i < heap->n_gaps && range.address + range.bytes == heap->gaps[i].address) {
        range.bytes += heap->gaps[i].bytes;
        memmove(&heap->gaps[i], &heap->gaps[i + 1], (--heap->n_gaps - i) * sizeof(range));
    }
    if (range.address == heap->bottom) {
        heap->bottom += range.bytes;
        return true;
    }
    void *items = heap->gaps;
    if (!reserve(&items, heap->n_gaps, &heap->cap_gaps, sizeof(range)))
        return false;
    heap->gaps = items;
    memmove(&heap->gaps[i + 1], &heap->gaps[i], (heap->n_gaps - i) * sizeof(range));
    heap->gaps[i] = range;
    heap->n_gaps++;
    return true;
}

static bool reserve_chunk(struct mp_heap *heap)
{
    if (heap->n_chunks < heap->cap_chunks)
        return true;
    size_t cap = heap->cap_chunks, cap_largest = heap->cap_chunks;
    void *chunks = heap->chunks, *largest = heap->largest_hole;
    const bool done = reserve(&largest, heap->n_chunks, &cap_largest, sizeof(uint64_t)) &&
                      reserve(&chunks, heap->n_chunks, &cap, sizeof(*heap->chunks));
    heap->largest_hole = largest;
    heap->chunks = chunks;
    if (done)
        heap->cap_chunks = cap;
    return done;
}

static uint64_t take_new_chunk(struct mp_heap *heap, uint64_t bytes)
{
    struct mp_heap_chunk chunk = {.bytes = round_up(bytes, MP_HEAP_CHUNK_BYTES)};
    if (!reserve_chunk(heap)) {
        heap->failed = true;
        return 0;
    }
    chunk.address = take_address_space(heap, chunk.bytes);
    if (!chunk.address)
        return 0;
    const struct mp_heap_range rest = {chunk.address + bytes, chunk.bytes - bytes};
    if (rest.bytes && !insert_hole(&chunk, 0, rest)) {
        heap->failed = true;
        return 0;
    }
    heap->largest_hole[heap->n_chunks] = rest.bytes;
    heap->hole_bound = MP_MAX(heap->hole_bound, rest.bytes);
    heap->chunks[heap->n_chunks++] = chunk;
    return chunk.address;
}

static void drop_chunk(struct mp_heap *heap, size_t at)
{
    const struct mp_heap_range range = {heap->chunks[at].address, heap->chunks[at].bytes};
    free(heap->chunks[at].holes);
    heap->n_chunks--;
    memmove(&heap->chunks[at], &heap->chunks[at + 1],
            (heap->n_chunks - at) * sizeof(heap->chunks[0]));
    memmove(&heap->largest_hole[at], &heap->largest_hole[at + 1],
            (heap->n_chunks - at) * sizeof(heap->largest_hole[0]));
    if (!give_address_space(heap, range))
        heap->failed = true;
}

/* Number of the newest chunk with room, from 1; 0: none has. A search in vain tells how large the largest hole is. */
static size_t newest_with_room(struct mp_heap *heap, uint64_t bytes)
{
    uint64_t largest = 0;
    if (bytes > heap->hole_bound)
        return 0;
    for (size_t i = heap->n_chunks; i > 0; i--) {
        if (heap->largest_hole[i - 1] >= bytes)
            return i;
        largest = MP_MAX(largest, heap->largest_hole[i - 1]);
    }
    heap->hole_bound = largest;
    return 0;
}

/* ---- the two calls ---- */

uint64_t mp_heap_take(struct mp_heap *heap, uint64_t bytes)
{
    if (bytes > MP_HEAP_TOP || heap->failed)
        return 0;
    bytes = round_up(bytes, MP_HEAP_PAGE_BYTES);
    void *items = heap->used;
    if (!reserve(&items, heap->n_used, &heap->cap_used, sizeof(*heap->used))) {
        heap->failed = true;
        return 0;
    }
    heap->used = items;

    uint64_t address = 0;
    const size_t i = newest_with_room(heap, bytes);
    if (i > 0) {
        address = take_from_chunk(&heap->chunks[i - 1], bytes);
        heap->largest_hole[i - 1] = largest_hole(&heap->chunks[i - 1]);
    } else {
        address = take_new_chunk(heap, bytes);
    }
    if (address)
        heap->used[heap->n_used++] = (struct mp_heap_range){address, bytes};
    return address;
}

void mp_heap_give(struct mp_heap *heap, uint64_t address)
{
    size_t u = heap->n_used;
    while (u > 0 && heap->used[u - 1].address != address)
        u--;
    if (u == 0)
        return;
    const struct mp_heap_range piece = heap->used[u - 1];
    heap->used[u - 1] = heap->used[--heap->n_used];

    size_t i = 0;
    while (address - heap->chunks[i].address >= heap->chunks[i].bytes)
        i++;
    struct mp_heap_chunk *chunk = &heap->chunks[i];
    if (!give_to_chunk(chunk, piece)) {
        heap->failed = true;
        return;
    }
    heap->largest_hole[i] = largest_hole(chunk);
    heap->hole_bound = MP_MAX(heap->hole_bound, heap->largest_hole[i]);
    if (heap->largest_hole[i] == chunk->bytes)
        drop_chunk(heap, i);
}

/* ---- a process with a context ---- */

/*
 * Driver 580, H200. At its start the context holds 414 MiB of a range of 13 chunks (the stacks of all
 * threads: 1,472 bytes x 2,048 threads x 144 multiprocessors), and 8 MiB of a chunk above it (the end
 * of a piece of 72 MiB). One lone gap of a chunk's size lies far above everything else, in three of
 * four processes: how much the libraries leave between them depends on where they were loaded.
 */
#define PROCESS_RANGE             (UINT64_C(1) << 44)
#define PROCESS_RANGE_BYTES       (416 * MP_MIB)
#define PROCESS_HELD_BYTES        (414 * MP_MIB)
#define PROCESS_SECOND            (PROCESS_RANGE + 480 * MP_MIB)
#define PROCESS_SECOND_USED_BYTES (8 * MP_MIB)
#define PROCESS_LONE_GAP          (PROCESS_RANGE + 9000 * MP_MIB)

/* What is taken later. Code, and memory that the host shares, comes in pages. */
#define DRIVER_PAGE_BYTES   (2 * MP_MIB)
#define LARGER_STACKS_BYTES (504 * MP_MIB) /* 1,792 bytes for each thread */
#define ASSERTIONS_BYTES                                                                           \
    UINT64_C(8654848) /* host memory: 8 MiB of messages and what goes with them */
#define NCCL_LAST_CHUNK_BYTES (14 * MP_MIB)
#define THREAD_HEAP_BYTES     (128 * MP_MIB) /* glibc reserves twice a heap's 64 MiB, to align it */

/*
 * Measured with recordings of FSDP2 through a process group that moves nothing, two of which get that far: one more such gap lies here.
 * With it and with the pool of streams the 178 segments of the run whose addresses were
 * recorded (tests/data/parallel/segments.txt) lie, pool by pool, in the order in which the driver put them, and all 7,889 blocks in the
 * segments where PyTorch had them.
 */
#define PROCESS_GROUP_GAP (PROCESS_RANGE + 608 * MP_MIB)

/* A chunk at a given address with its first bytes in use. */
static bool add_chunk(struct mp_heap *heap, uint64_t address, uint64_t bytes, uint64_t used)
{
    struct mp_heap_chunk chunk = {.address = address, .bytes = bytes};
    void *items = heap->used;
    if (!reserve_chunk(heap) ||
        !reserve(&items, heap->n_used, &heap->cap_used, sizeof(*heap->used)))
        return false;
    heap->used = items;
    if (used < bytes &&
        !insert_hole(&chunk, 0, (struct mp_heap_range){address + used, bytes - used}))
        return false;
    heap->largest_hole[heap->n_chunks] = bytes - used;
    heap->hole_bound = MP_MAX(heap->hole_bound, bytes - used);
    heap->chunks[heap->n_chunks++] = chunk;
    heap->used[heap->n_used++] = (struct mp_heap_range){address, used};
    return true;
}

/* Room for one chunk: a gap must be larger than the chunk that goes into it. */
static bool give_lone_gap(struct mp_heap *heap, uint64_t address)
{
    return give_address_space(
        heap, (struct mp_heap_range){address, MP_HEAP_CHUNK_BYTES + MP_HEAP_PAGE_BYTES});
}

bool mp_heap_init_process(struct mp_heap *heap)
{
    mp_heap_init(heap, PROCESS_RANGE);
    heap->failed =
        !add_chunk(heap, PROCESS_SECOND, MP_HEAP_CHUNK_BYTES, PROCESS_SECOND_USED_BYTES) ||
        !add_chunk(heap, PROCESS_RANGE, PROCESS_RANGE_BYTES, PROCESS_HELD_BYTES) ||
        !give_lone_gap(heap, PROCESS_LONE_GAP);
    return !heap->failed;
}

/* The host has mapped something there: what was a gap is none any more. */
static void close_gaps(struct mp_heap *heap)
{
    heap->n_gaps = 0;
}

static void close_lone_gap(struct mp_heap *heap)
{
    const size_t last = heap->n_gaps - 1;
    if (heap->n_gaps > 0 && heap->gaps[last].address == PROCESS_LONE_GAP &&
        heap->gaps[last].bytes > MP_HEAP_CHUNK_BYTES)
        heap->n_gaps--;
}

static bool take_pages(struct mp_heap *heap, int n)
{
    for (int i = 0; i < n; i++)
        if (!mp_heap_take(heap, DRIVER_PAGE_BYTES))
            return false;
    return true;
}

/* The range that was held since the start comes free; the new one, 512 MiB with its chunk, does not fit there. */
static bool enlarge_stacks(struct mp_heap *heap)
{
    mp_heap_give(heap, PROCESS_RANGE);
    return mp_heap_take(heap, LARGER_STACKS_BYTES) != 0 && take_pages(heap, 1);
}

/* From then on the lone gap was never taken again. */
static bool start_cublas(struct mp_heap *heap, uint64_t bytes)
{
    close_lone_gap(heap);
    return take_pages(heap, 1) && mp_heap_take(heap, bytes) != 0;
}

/* NCCL's kernels, hundreds of pages, leave nothing behind them but the end of their last chunk. */
static bool start_nccl(struct mp_heap *heap)
{
    for (size_t i = heap->n_chunks; i-- > 0;)
        while (heap->chunks[i].n_holes > 0)
            if (!mp_heap_take(heap, heap->chunks[i].holes[0].bytes))
                return false;
    close_gaps(heap);
    return mp_heap_take(heap, NCCL_LAST_CHUNK_BYTES) != 0;
}

enum { CUDNN_PAGES = 4, STREAMS_OF_A_PRIORITY = 32 };

/* cuDNN loads libraries of 450 MiB, small ones and large ones, which go into the gaps first. */
static bool start_cudnn(struct mp_heap *heap)
{
    close_gaps(heap);
    return take_pages(heap, CUDNN_PAGES);
}

bool mp_heap_driver_event(struct mp_heap *heap, enum mp_driver_event event, uint64_t bytes)
{
    switch (event) {
    case MP_DRIVER_FIRST_KERNEL:
    case MP_DRIVER_HOST_PAGE:
    case MP_DRIVER_CODE_PAGE: return take_pages(heap, 1);
    case MP_DRIVER_LARGER_STACKS: return enlarge_stacks(heap);
    case MP_DRIVER_ASSERTIONS: return mp_heap_take(heap, ASSERTIONS_BYTES) != 0;
    case MP_DRIVER_FIRST_CUBLAS: return start_cublas(heap, bytes);
    case MP_DRIVER_CUBLAS: return mp_heap_take(heap, bytes) != 0;
    case MP_DRIVER_FIRST_CUDNN: return start_cudnn(heap);
    case MP_DRIVER_CUDNN: return take_pages(heap, CUDNN_PAGES);
    case MP_DRIVER_BACKWARD_THREAD: return take_address_space(heap, THREAD_HEAP_BYTES) != 0;
    case MP_DRIVER_NCCL: return start_nccl(heap);
    case MP_DRIVER_QUIET_GROUP: return give_lone_gap(heap, PROCESS_GROUP_GAP);
    case MP_DRIVER_STREAM_POOL: return take_pages(heap, STREAMS_OF_A_PRIORITY);
    case MP_DRIVER_NCCL_RANKS:
    case MP_DRIVER_NCCL_REDUCE:
    case MP_DRIVER_NCCL_BROADCAST: break; /* not known */
    }
    return true;
}

/* ---- NCCL beside kernels that have been loaded ---- */

/*
 * Measured with memplan-validate on two ranks, NCCL 2.28.9 (tests/data/parallel/segments-two-ranks.txt): each new kind of NCCL's
 * kernels wants more local memory. The driver makes a larger pool, and what the one before held comes free as a hole. The first
 * reduction also makes buffers, 24 MiB in each of 14 chunks far below everything else.
 */
#define NCCL_BUFFERS (UINT64_C(1) << 34)
#define NCCL_BUFFER_BYTES (24 * MP_MIB)
enum { NCCL_BUFFER_CHUNKS = 14 };

/* A pool, and what else the driver puts into its chunk. */
static bool grow_pool(struct mp_heap *heap, uint64_t bytes, uint64_t beside)
{
    const uint64_t before = heap->pool;
    heap->pool = mp_heap_take(heap, bytes);
    if (!heap->pool || (beside && !mp_heap_take(heap, beside)))
        return false;
    if (before)
        mp_heap_give(heap, before);
    return !heap->failed;
}

static bool make_buffers(struct mp_heap *heap)
{
    for (uint64_t i = 0; i < NCCL_BUFFER_CHUNKS; i++)
        if (!add_chunk(heap, NCCL_BUFFERS + i * MP_HEAP_CHUNK_BYTES, MP_HEAP_CHUNK_BYTES,
                       NCCL_BUFFER_BYTES))
            return false;
    return true;
}

bool mp_heap_nccl_event(struct mp_heap *heap, enum mp_driver_event event)
{
    switch (event) {
    case MP_DRIVER_NCCL_RANKS: /* before it, what is left of a chunk of the context: 22 MiB */
        return mp_heap_take(heap, 10 * MP_MIB) && grow_pool(heap, 504 * MP_MIB, 8 * MP_MIB);
    case MP_DRIVER_NCCL_REDUCE:
        return make_buffers(heap) && grow_pool(heap, 690 * MP_MIB, 10 * MP_MIB);
    case MP_DRIVER_NCCL_BROADCAST: return grow_pool(heap, 694 * MP_MIB, 0);
    default: return true;
    }
}

/* ---- looking at it ---- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

uint64_t mp_heap_hash(const struct mp_heap *heap)
{
    uint64_t hash = mix(1, heap->bottom);
    for (size_t i = 0; i < heap->n_chunks; i++) {
        const struct mp_heap_chunk *chunk = &heap->chunks[i];
        hash = mix(mix(hash, chunk->address), chunk->bytes);
        for (uint32_t h = 0; h < chunk->n_holes; h++)
            hash = mix(mix(hash, chunk->holes[h].address), chunk->holes[h].bytes);
    }
    for (size_t i = 0; i < heap->n_gaps; i++)
        hash = mix(mix(hash, heap->gaps[i].address), heap->gaps[i].bytes);
    return hash;
}

bool mp_heap_check(const struct mp_heap *heap, struct memplan_error *err)
{
    uint64_t used = 0, chunks = 0, holes = 0;
    for (size_t i = 0; i < heap->n_used; i++)
        used += heap->used[i].bytes;
    for (size_t i = 0; i < heap->n_chunks; i++) {
        const struct mp_heap_chunk *chunk = &heap->chunks[i];
        uint64_t end = chunk->address;
        chunks += chunk->bytes;
        for (uint32_t h = 0; h < chunk->n_holes; h++) {
            const struct mp_heap_range hole = chunk->holes[h];
            if (!hole.bytes || hole.address < end || (h > 0 && hole.address == end))
                return mp_error_set(err, MEMPLAN_STATUS_RANGE, "chunk %zu: holes unordered", i),
                       false;
            end = hole.address + hole.bytes;
            holes += hole.bytes;
        }
        if (end > chunk->address + chunk->bytes)
            return mp_error_set(err, MEMPLAN_STATUS_RANGE, "chunk %zu: hole beyond its end", i),
                   false;
        if (heap->largest_hole[i] != largest_hole(chunk) || heap->largest_hole[i] == chunk->bytes ||
            heap->largest_hole[i] > heap->hole_bound)
            return mp_error_set(err, MEMPLAN_STATUS_RANGE, "chunk %zu: wrong largest hole", i),
                   false;
    }
    if (used + holes != chunks)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "pieces and holes do not fill the chunks"),
               false;
    return true;
}
