/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's caching allocator, played without memory.
 *
 * cudaMalloc is slow and cudaFree waits for the device, so PyTorch asks for large segments and cuts
 * them itself:
 *
 *     2 MiB segment of the small pool (requests up to 1 MiB)
 *     ┌──────┬─────┬────────────┬──────────────────────────────────────────┐
 *     │ live │ 512 │    live    │ free: the rest, to be cut by the next    │
 *     └──────┴─────┴────────────┴──────────────────────────────────────────┘
 *     20 MiB segment of the large pool (1 to 10 MiB; above that one of its own, in steps of 2 MiB)
 *     ┌───────────────────────┬──────────────────────┬─────────────────────┐
 *     │ live 9 MiB            │ free 8 MiB           │ live 3 MiB          │
 *     └───────────────────────┴──────────────────────┴─────────────────────┘
 *     8 MiB are reserved and free, yet a request of 9 MiB needs a new segment: fragmentation
 *
 * A malloc is rounded up to 512 bytes and served by the smallest free block that fits, of the same
 * pool and the same stream, the lowest address among equals (get_free_block). What is left of the
 * block is cut off if it is worth keeping (should_split). A free merges with free neighbours in the
 * segment (try_merge_blocks) and goes back to the pool, never to the card. Only when cudaMalloc
 * fails, or would pass the cap, are whole free segments given back and the request tried again
 * (release_cached_blocks); then comes "CUDA out of memory". So reserved only grows while things go
 * well, and how much depends on the order of requests, which is why it is played, not estimated.
 *
 * expandable_segments:True replaces segments by one long address range per pool and stream, whose
 * pages get memory when they are first needed; then only the tail of a range is wasted.
 *
 * Functions carry the names of their counterparts in c10/cuda/CUDACachingAllocator.cpp, or name
 * them where a rule stands. Releases differ in few places, which ask a->torch.
 *
 * Five things are done differently for speed, without a visible difference: free blocks sit in bins
 * (free_set.h) instead of one std::set, and where a block is cut or merges back its entry stays; totals
 * over both pools and `freed` are computed when asked for; active and allocated are one count until a
 * free is first deferred; blocks come from slabs; whoever wants peaks alone gets nothing else counted.
 * A typical event costs about 30 ns (tests/bench/bench_allocator.c). What is taken and given back at
 * once need not be taken at all (allocator_scratch.c).
 */
#include "memory/allocator.h"

#include <inttypes.h>

#include "base/arena.h"
#include "memory/allocator_state.h"

#define SMALL_SEGMENT_BYTES (UINT64_C(2) << 20) /* kSmallBuffer */
#define MIN_OWN_SEGMENT_BYTES                                                                      \
    (UINT64_C(10) << 20) /* kMinLargeAlloc: from here on a segment of its own */
#define SEGMENT_STEP_BYTES (UINT64_C(2) << 20) /* kRoundLarge */
#define REFUSED_BYTES (UINT64_C(1) << 60)      /* "more than 1EB" */
#define VIRTUAL_BASE UINT64_C(0x302000000) /* first cuMemAddressReserve of a process, as recorded  \
                                            */
#define VIRTUAL_ALIGNMENT (UINT64_C(32) << 20)

static uint64_t round_up(uint64_t n, uint64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- statistics: Stat::increase, Stat::decrease ---- */

static inline void increase(struct mp_tally *t, unsigned pool, uint64_t amount)
{
    t->total[pool] += amount;
    t->current[pool] += amount;
    t->current[POOL_ALL] += amount;
    t->peak[pool] = MP_MAX(t->peak[pool], t->current[pool]);
    t->peak[POOL_ALL] = MP_MAX(t->peak[POOL_ALL], t->current[POOL_ALL]);
}

/* Of both pools together, and nothing more. */
static inline void increase_all(struct mp_tally *t, uint64_t amount)
{
    t->current[POOL_ALL] += amount;
    t->peak[POOL_ALL] = MP_MAX(t->peak[POOL_ALL], t->current[POOL_ALL]);
}

static inline void decrease(struct mp_tally *t, unsigned pool, uint64_t amount)
{
    t->current[pool] -= amount;
    t->current[POOL_ALL] -= amount;
}

/* One net change: neighbours that vanish in a merge never show in a peak. */
static inline void change(struct mp_tally *t, unsigned pool, int64_t amount)
{
    if (amount > 0)
        increase(t, pool, (uint64_t)amount);
    else
        decrease(t, pool, (uint64_t)-amount);
}

static void increase_stat(struct mp_stat *s, uint64_t amount)
{
    s->current += amount;
    s->allocated += amount;
    s->peak = MP_MAX(s->peak, s->current);
}

static void decrease_stat(struct mp_stat *s, uint64_t amount)
{
    s->current -= amount;
    s->freed += amount;
}

static struct mp_tally *peak_tally(struct mp_allocator *a, unsigned kind)
{
    struct mp_tally *const tallies[PEAK_KINDS] = {
        [PEAK_ALLOCATED] = &a->allocated_bytes,
        [PEAK_RESERVED] = &a->reserved_bytes,
        [PEAK_REQUESTED] = &a->requested_bytes,
    };
    return tallies[kind];
}

/* Move the running peaks to where whole run and phase keep theirs, and start them anew. */
static void settle_peaks(struct mp_allocator *a)
{
    for (unsigned i = 0; i < PEAK_KINDS; i++) {
        struct mp_tally *t = peak_tally(a, i);
        a->whole_peak[i] = MP_MAX(a->whole_peak[i], t->peak[POOL_ALL]);
        a->phase_peak[i] = MP_MAX(a->phase_peak[i], t->peak[POOL_ALL]);
        t->peak[POOL_ALL] = t->current[POOL_ALL];
    }
}

struct mp_allocator_peaks mp_allocator_take_peaks(struct mp_allocator *a)
{
    settle_peaks(a);
    const struct mp_allocator_peaks peaks = {
        .allocated_bytes = a->phase_peak[PEAK_ALLOCATED],
        .reserved_bytes = a->phase_peak[PEAK_RESERVED],
        .requested_bytes = a->phase_peak[PEAK_REQUESTED],
    };
    for (unsigned i = 0; i < PEAK_KINDS; i++)
        a->phase_peak[i] = peak_tally(a, i)->current[POOL_ALL];
    return peaks;
}

static void reset_tally_peak(struct mp_tally *t)
{
    memcpy(t->peak, t->current, sizeof(t->peak));
}

void mp_allocator_reset_peaks(struct mp_allocator *a)
{
    settle_peaks(a);
    for (unsigned i = 0; i < PEAK_KINDS; i++)
        a->whole_peak[i] = peak_tally(a, i)->current[POOL_ALL];
    struct mp_tally *const tallies[] = {
        &a->allocation,           &a->active,       &a->inactive_split,
        &a->allocated_bytes,      &a->active_bytes, &a->requested_bytes,
        &a->inactive_split_bytes, &a->segment,      &a->reserved_bytes,
    };
    for (size_t i = 0; i < MP_ARRAY_LEN(tallies); i++)
        reset_tally_peak(tallies[i]);
    a->oversize_allocations.peak = a->oversize_allocations.current;
    a->oversize_segments.peak = a->oversize_segments.current;
}

static void view_tally(const struct mp_tally *t, struct mp_stat out[MP_STAT_KINDS])
{
    static const unsigned pool_of[MP_STAT_KINDS] = {
        [MP_STAT_ALL] = POOL_ALL, [MP_STAT_SMALL] = POOL_SMALL, [MP_STAT_LARGE] = POOL_LARGE};
    for (unsigned kind = 0; kind < MP_STAT_KINDS; kind++) {
        const unsigned pool = pool_of[kind];
        const uint64_t total =
            pool == POOL_ALL ? t->total[POOL_SMALL] + t->total[POOL_LARGE] : t->total[pool];
        out[kind] = (struct mp_stat){.current = t->current[pool],
                                     .peak = t->peak[pool],
                                     .allocated = total,
                                     .freed = total - t->current[pool]};
    }
}

const struct mp_allocator_stats *mp_allocator_stats(const struct mp_allocator *a)
{
    struct mp_allocator_stats *v = a->view;
    view_tally(&a->allocation, v->allocation);
    view_tally(&a->segment, v->segment);
    view_tally(a->has_deferred ? &a->active : &a->allocation, v->active);
    view_tally(&a->inactive_split, v->inactive_split);
    view_tally(&a->allocated_bytes, v->allocated_bytes);
    view_tally(&a->reserved_bytes, v->reserved_bytes);
    view_tally(a->has_deferred ? &a->active_bytes : &a->allocated_bytes, v->active_bytes);
    view_tally(&a->inactive_split_bytes, v->inactive_split_bytes);
    view_tally(&a->requested_bytes, v->requested_bytes);
    struct mp_stat *const whole[PEAK_KINDS] = {
        [PEAK_ALLOCATED] = &v->allocated_bytes[MP_STAT_ALL],
        [PEAK_RESERVED] = &v->reserved_bytes[MP_STAT_ALL],
        [PEAK_REQUESTED] = &v->requested_bytes[MP_STAT_ALL],
    };
    for (unsigned i = 0; i < PEAK_KINDS; i++)
        whole[i]->peak = MP_MAX(whole[i]->peak, a->whole_peak[i]);
    if (!a->has_deferred)
        v->active_bytes[MP_STAT_ALL].peak = v->allocated_bytes[MP_STAT_ALL].peak;
    v->oversize_allocations = a->oversize_allocations;
    v->oversize_segments = a->oversize_segments;
    v->num_alloc_retries = a->num_alloc_retries;
    v->num_ooms = a->num_ooms;
    v->num_sync_all_streams = a->num_sync_all_streams;
    v->num_device_alloc = a->num_device_alloc;
    v->num_device_free = a->num_device_free;
    return v;
}

void mp_allocator_current(const struct mp_allocator *a, uint64_t *allocated_bytes,
                          uint64_t *reserved_bytes)
{
    *allocated_bytes = a->allocated_bytes.current[POOL_ALL];
    *reserved_bytes = a->reserved_bytes.current[POOL_ALL];
}

/* ---- sizes ---- */

/* CUDAAllocatorConfig::roundup_power2_divisions(size): bucket 0 is everything below 2 MiB, bucket
 * 15 from 32 GiB on */
static uint32_t divisions_of(const struct mp_allocator_conf *conf, uint64_t n)
{
    const int log2 = 63 - __builtin_clzll(n);
    const int bucket = MP_MIN(MP_MAX(log2 - 20, 0), 15);
    return conf->roundup_divisions[bucket];
}

/* roundup_power2_next_division: the space between two powers of two in d equal steps */
static uint64_t round_to_division(uint64_t n, uint32_t d)
{
    if ((n & (n - 1)) == 0)
        return n;
    const unsigned log2 = 63u - (unsigned)__builtin_clzll(n);
    const uint64_t floor = UINT64_C(1) << log2;
    const unsigned shift = 31u - (unsigned)__builtin_clz(d);
    const uint64_t step = shift > log2 ? 0 : floor >> shift;
    return step == 0 ? floor * 2 : round_up(n, step);
}

uint64_t mp_allocator_round_size(const struct mp_allocator_conf *conf, mp_torch_version torch,
                                 uint64_t n)
{
    if (n < MIN_BLOCK_BYTES)
        return MIN_BLOCK_BYTES;
    const uint32_t d = n > conf->roundup_bypass_bytes ? 0 : divisions_of(conf, n);
    if (d > 1 && n > MIN_BLOCK_BYTES * d)
        return round_to_division(n, d);
    if (d == 1 && torch && torch < 204 && n > MIN_BLOCK_BYTES)
        return n; /* the test was divisions > 0, and one division returned the size as it was */
    return round_up(n, MIN_BLOCK_BYTES);
}

/* get_allocation_size */
uint64_t mp_allocator_segment_size(const struct mp_allocator_conf *conf, uint64_t rounded)
{
    if (rounded <= SMALL_BYTES)
        return SMALL_SEGMENT_BYTES;
    if (rounded < MIN_OWN_SEGMENT_BYTES)
        return conf->large_segment_bytes;
    return round_up(rounded, SEGMENT_STEP_BYTES);
}

/* ---- blocks ---- */

static inline unsigned pool_of(const struct mp_block *block)
{
    return block->small ? POOL_SMALL : POOL_LARGE;
}

static inline struct mp_free_set *set_of(const struct mp_allocator *a, const struct mp_block *block)
{
    return a->pools[pool_of(block)].sets[block->stream];
}

/* Block::is_split */
static inline bool is_split(const struct mp_block *block)
{
    return block->prev || block->next;
}

/* Free, without pending events: may merge and, if mapped, serve. */
static inline bool is_quiet(const struct mp_block *block)
{
    return !block->allocated && block->event_count == 0;
}

static bool add_slab(struct mp_allocator *a)
{
    struct mp_block_slab *slab = mp_malloc(sizeof(*slab));
    if (!slab) {
        a->failed = true;
        return false;
    }
    slab->older = a->slabs;
    a->slabs = slab;
    for (size_t i = MP_ARRAY_LEN(slab->blocks); i-- > 0;) {
        slab->blocks[i].next = a->spare;
        a->spare = &slab->blocks[i];
    }
    a->n_spare += MP_ARRAY_LEN(slab->blocks);
    return true;
}

/* At least n spare blocks; every entry point asks for the most that its path can use up. */
static inline bool reserve_blocks(struct mp_allocator *a, size_t n)
{
    return a->n_spare >= n || add_slab(a);
}

static inline struct mp_block *new_block(struct mp_allocator *a)
{
    struct mp_block *block = a->spare;
    a->spare = block->next;
    a->n_spare--;
    return block;
}

static inline void drop_block(struct mp_allocator *a, struct mp_block *block)
{
    block->next = a->spare;
    a->spare = block;
    a->n_spare++;
}

/* Cut block at `size` bytes; the new high part shares its state and stands in no set yet. */
static inline struct mp_block *cut_block(struct mp_allocator *a, struct mp_block *block,
                                         uint64_t size)
{
    struct mp_block *rest = new_block(a);
    *rest = *block;
    rest->address = block->address + size;
    rest->size = block->size - size;
    rest->prev = block;
    if (rest->next)
        rest->next->prev = rest;
    block->next = rest;
    block->size = size;
    return rest;
}

static inline void insert_free(struct mp_allocator *a, struct mp_block *block)
{
    block->gc_base = a->pools[pool_of(block)].n_searches;
    if (!mp_free_insert(set_of(a, block), block))
        a->failed = true;
}

static inline void replace_free(struct mp_allocator *a, struct mp_free_set *set,
                                struct mp_free_place place, struct mp_block *block)
{
    block->gc_base = a->pools[pool_of(block)].n_searches;
    if (!mp_free_replace(set, place, block))
        a->failed = true;
}

static void insert_unmapped(struct mp_allocator *a, struct mp_block *block)
{
    if (!mp_unmapped_insert(set_of(a, block), block))
        a->failed = true;
}

/*
 * try_merge_blocks: absorb neighbour into block if both are free and alike. The low one of the two
 * survives; block itself stands in no set, the neighbour leaves its own.
 */
static inline struct mp_block *merge_block(struct mp_allocator *a, struct mp_block *block,
                                           struct mp_block *neighbour)
{
    if (!neighbour || !is_quiet(neighbour) || neighbour->mapped != block->mapped)
        return block;
    struct mp_free_set *set = set_of(a, block);
    if (neighbour->mapped)
        mp_free_remove(set, neighbour);
    else
        mp_unmapped_remove(set, neighbour);
    struct mp_block *low = neighbour->address < block->address ? neighbour : block;
    struct mp_block *high = low->next;
    low->requested_bytes = block->requested_bytes;
    low->size += high->size;
    low->next = high->next;
    if (low->next)
        low->next->prev = low;
    drop_block(a, high);
    return low;
}

static inline void note(const struct mp_allocator *a, enum mp_allocator_action action,
                        unsigned stream, uint64_t address, uint64_t bytes, uint32_t client)
{
    if (!(a->observed >> action & 1))
        return;
    const struct mp_allocator_note n = {action, stream, address, bytes, client};
    a->observer(a->observer_context, &n);
}

/* The free set of a pool and stream, made at first use. */
static struct mp_free_set *make_set(struct mp_allocator *a, unsigned pool, unsigned stream)
{
    struct mp_pool *p = &a->pools[pool];
    if (stream >= p->n_sets) {
        struct mp_free_set **sets = mp_realloc(p->sets, (stream + 1) * sizeof(*sets));
        if (!sets) {
            a->failed = true;
            return NULL;
        }
        for (uint32_t i = p->n_sets; i <= stream; i++)
            sets[i] = NULL;
        p->sets = sets;
        p->n_sets = stream + 1;
    }
    if (!p->sets[stream])
        p->sets[stream] = mp_free_set_new();
    if (!p->sets[stream])
        a->failed = true;
    return p->sets[stream];
}

static inline struct mp_free_set *find_set(struct mp_allocator *a, unsigned pool, unsigned stream)
{
    const struct mp_pool *p = &a->pools[pool];
    if (stream < p->n_sets && p->sets[stream])
        return p->sets[stream];
    return make_set(a, pool, stream);
}

/* ---- the search: get_free_block ---- */

/* What an expandable block could grow to. */
static uint64_t expandable_size(const struct mp_block *block)
{
    const struct mp_block *next = block->next;
    return block->size + (next && !next->mapped ? next->size : 0);
}

/* Prefer, among neighbours in the order, blocks that cannot grow; or skip them all when the mode is
 * off. */
static struct mp_free_place pass_over_expandable(const struct mp_allocator *a,
                                                 const struct mp_free_set *set,
                                                 struct mp_free_place place)
{
    if (!a->conf.expandable_segments) {
        while (place.block && place.block->expandable)
            place = mp_free_next(set, place);
        return place;
    }
    while (place.block->expandable) {
        const struct mp_free_place next = mp_free_next(set, place);
        if (!next.block || expandable_size(next.block) >= expandable_size(place.block))
            break;
        place = next;
    }
    return place;
}

/* The block stays in the set until it is known what is left of it. */
static inline struct mp_free_place get_free_block(struct mp_allocator *a, unsigned pool,
                                                  const struct mp_free_set *set, uint64_t rounded)
{
    static const struct mp_free_place none = {0, 0, NULL};
    if (a->gc_active)
        a->pools[pool].n_searches++;
    struct mp_free_place place = mp_free_find(set, rounded);
    if (place.block && place.block->expandable)
        place = pass_over_expandable(a, set, place);
    const struct mp_block *block = place.block;
    if (!block)
        return none;
    const uint64_t max_split = a->conf.max_split_bytes;
    if (rounded < max_split) {
        if (block->size >= max_split)
            return none; /* never cut an oversize block */
    } else if (block->size >= rounded + a->conf.max_non_split_rounding_bytes) {
        return none; /* nor waste much of one */
    }
    return place;
}

/* ---- handing a block out: should_split, alloc_found_block ---- */

static inline bool should_split(const struct mp_allocator *a, const struct mp_block *block,
                                uint64_t rounded)
{
    const uint64_t rest = block->size - rounded;
    if (block->small || a->conf.expandable_segments)
        return rest >= MIN_BLOCK_BYTES;
    return rounded < a->conf.max_split_bytes && rest > SMALL_BYTES;
}

/* A free block (was_split: part of a segment) is about to be handed out, less what was cut off. */
static inline void count_split(struct mp_allocator *a, const struct mp_block *block, bool was_split, const struct mp_block *rest)
{
    const unsigned pool = pool_of(block);
    if (block->expandable)
        return;
    if (rest && was_split) {
        decrease(&a->inactive_split_bytes, pool, block->size);
    } else if (rest) {
        increase(&a->inactive_split_bytes, pool, rest->size);
        increase(&a->inactive_split, pool, 1);
    } else if (was_split) {
        decrease(&a->inactive_split_bytes, pool, block->size);
        decrease(&a->inactive_split, pool, 1);
    }
}

static inline void count_malloc(struct mp_allocator *a, const struct mp_block *block)
{
    const unsigned pool = pool_of(block);
    const uint64_t n = block->requested_bytes;
    if (a->peaks_only) {
        increase_all(&a->allocated_bytes, block->size);
        increase_all(&a->requested_bytes, n);
        return;
    }
    increase(&a->allocation, pool, 1);
    increase(&a->allocated_bytes, pool, block->size);
    increase(&a->requested_bytes, pool, n);
    if (a->has_deferred) {
        increase(&a->active, pool, 1);
        increase(&a->active_bytes, pool, block->size);
    }
    if (block->size >= a->conf.max_split_bytes)
        increase_stat(&a->oversize_allocations, 1);
}

/* set: where the block stands, at place; NULL: it stands in none. */
static inline struct mp_block *alloc_found_block(struct mp_allocator *a, struct mp_free_set *set,
                                                 struct mp_free_place place, uint64_t rounded,
                                                 uint64_t n, uint32_t client)
{
    struct mp_block *block = place.block, *rest = NULL;
    const bool was_split = is_split(block);
    if (should_split(a, block, rounded)) {
        rest = cut_block(a, block, rounded);
        if (set)
            replace_free(a, set, place, rest);
        else
            insert_free(a, rest);
    } else if (set) {
        mp_free_remove_at(set, place.bin, place.index);
    }
    if (!a->peaks_only)
        count_split(a, block, was_split, rest);
    block->allocated = true;
    block->requested_bytes = n;
    block->client = client;
    note(a, MP_ALLOCATOR_ALLOC, block->stream, block->address, n, client);
    count_malloc(a, block);
    return block;
}

/* ---- free: free_block ---- */

/* low takes over the block after it, which stands in no set. */
static inline void absorb_next(struct mp_allocator *a, struct mp_block *low)
{
    struct mp_block *high = low->next;
    low->size += high->size;
    low->next = high->next;
    if (low->next)
        low->next->prev = low;
    drop_block(a, high);
}

/* Of a segment: what merging blocks and a free one more do to the free parts of split segments. */
static void count_merge(struct mp_allocator *a, const struct mp_block *block, int64_t count, int64_t bytes)
{
    const unsigned pool = pool_of(block);
    if (is_split(block)) {
        count++;
        bytes += (int64_t)block->size;
    }
    change(&a->inactive_split, pool, count);
    change(&a->inactive_split_bytes, pool, bytes);
}

static inline bool can_merge(const struct mp_block *neighbour)
{
    return neighbour && is_quiet(neighbour) && neighbour->mapped;
}

/* try_merge_blocks on both sides, where the neighbour's entry in the set becomes the merged block's. */
static void free_block(struct mp_allocator *a, struct mp_block *block)
{
    const unsigned pool = pool_of(block);
    const uint64_t size = block->size, requested = block->requested_bytes;
    struct mp_free_set *set = set_of(a, block);
    struct mp_block *prev = block->prev, *next = block->next;
    note(a, MP_ALLOCATOR_FREE_COMPLETED, block->stream, block->address, requested, block->client);

    block->allocated = false;
    block->stream_uses = 0;
    const bool low = can_merge(prev), high = can_merge(next);
    if (low) {
        if (high) {
            mp_free_remove(set, next);
            absorb_next(a, block);
        }
        const struct mp_free_place place = mp_free_place_of(set, prev);
        absorb_next(a, prev);
        prev->requested_bytes = requested;
        replace_free(a, set, place, prev);
        block = prev;
    } else if (high) {
        const struct mp_free_place place = mp_free_place_of(set, next);
        absorb_next(a, block);
        replace_free(a, set, place, block);
    } else {
        insert_free(a, block);
    }
    if (a->peaks_only) {
        a->requested_bytes.current[POOL_ALL] -= requested;
        return;
    }
    if (!block->expandable)
        count_merge(a, block, -(int64_t)low - (int64_t)high, -(int64_t)(block->size - size));
    decrease(&a->requested_bytes, pool, requested);
    if (a->has_deferred) {
        decrease(&a->active, pool, 1);
        decrease(&a->active_bytes, pool, size);
    }
}

/* ---- other streams: record_stream, insert_events, process_events ---- */

void mp_allocator_record_stream(struct mp_allocator *a, struct mp_block *block, unsigned stream)
{
    (void)a;
    if (stream != block->stream)
        block->stream_uses |= UINT32_C(1) << MP_MIN(stream, 31u);
}

static bool defer(struct mp_allocator *a, struct mp_block *block, uint32_t stream)
{
    if (a->n_deferred == a->cap_deferred) {
        const size_t cap = a->cap_deferred ? a->cap_deferred * 2 : 16;
        struct mp_deferred *list = mp_realloc(a->deferred, cap * sizeof(*list));
        if (!list) {
            a->failed = true;
            return false;
        }
        a->deferred = list;
        a->cap_deferred = cap;
    }
    a->deferred[a->n_deferred++] = (struct mp_deferred){block, stream, false};
    block->event_count++;
    return true;
}

static void insert_events(struct mp_allocator *a, struct mp_block *block)
{
    uint32_t uses = block->stream_uses;
    block->stream_uses = 0;
    for (uint32_t stream = 0; uses; stream++, uses >>= 1) {
        if ((uses & 1) && !defer(a, block, stream))
            return;
    }
}

void mp_allocator_complete_stream(struct mp_allocator *a, unsigned stream)
{
    const uint32_t queue = MP_MIN(stream, 31u);
    for (size_t i = 0; i < a->n_deferred; i++) {
        struct mp_deferred *d = &a->deferred[i];
        if (d->stream == queue && !d->complete) {
            d->complete = true;
            a->n_complete++;
        }
    }
}

/* Take the events out that are complete (all of them when `all`), and free what waits for no more.
 */
static void drain_events(struct mp_allocator *a, bool all)
{
    size_t kept = 0;
    for (size_t i = 0; i < a->n_deferred; i++) {
        const struct mp_deferred d = a->deferred[i];
        if (!all && !d.complete)
            a->deferred[kept++] = d;
        else if (--d.block->event_count == 0)
            free_block(a, d.block);
    }
    a->n_deferred = kept;
    a->n_complete = 0;
}

void mp_allocator_complete_block(struct mp_allocator *a, struct mp_block *block)
{
    size_t kept = 0;
    for (size_t i = 0; i < a->n_deferred; i++) {
        if (a->deferred[i].block != block)
            a->deferred[kept++] = a->deferred[i];
        else if (a->deferred[i].complete)
            a->n_complete--;
    }
    if (kept == a->n_deferred)
        return;
    a->n_deferred = kept;
    block->event_count = 0;
    free_block(a, block);
}

/* DeviceCachingAllocator::free, up to the point where it defers */
static inline void request_free(struct mp_allocator *a, struct mp_block *block)
{
    const unsigned pool = pool_of(block);
    if (a->peaks_only) {
        a->allocated_bytes.current[POOL_ALL] -= block->size;
    } else {
        decrease(&a->allocation, pool, 1);
        decrease(&a->allocated_bytes, pool, block->size);
    }
    note(a, MP_ALLOCATOR_FREE_REQUESTED, block->stream, block->address, block->requested_bytes,
         block->client);
    if (block->size >= a->conf.max_split_bytes)
        decrease_stat(&a->oversize_allocations, 1);
}

/* Until now active was allocated; from here on it is counted for itself. */
static void count_active(struct mp_allocator *a)
{
    if (a->has_deferred)
        return;
    a->has_deferred = true;
    a->active = a->allocation;
    a->active_bytes = a->allocated_bytes;
    a->active_bytes.peak[POOL_ALL] =
        MP_MAX(a->active_bytes.peak[POOL_ALL], a->whole_peak[PEAK_ALLOCATED]);
}

void mp_allocator_release(struct mp_allocator *a, struct mp_block *block)
{
    if (a->failed)
        return; /* its lists are no longer whole */
    if (block->stream_uses) {
        mp_allocator_release_deferred(a, block);
        return;
    }
    request_free(a, block);
    free_block(a, block);
}

void mp_allocator_release_deferred(struct mp_allocator *a, struct mp_block *block)
{
    count_active(a);
    request_free(a, block);
    block->allocated = false;
    if (block->stream_uses)
        insert_events(a, block);
    else
        defer(a, block, MP_NO_STREAM);
}

/* ---- the card: cudaMalloc, cudaFree ---- */

/* Where the next segment lies; 0: the card is full (or, with a->failed, the host). */
static uint64_t place_segment(struct mp_allocator *a, uint64_t bytes)
{
    if (a->placement.kind == MP_PLACE_CALLBACK)
        return a->placement.allocate(a->placement.context, bytes);
    if (a->next_recorded < a->n_recorded)
        return a->recorded[a->next_recorded++];
    const uint64_t address = mp_heap_take(&a->heap, bytes);
    a->failed |= a->heap.failed;
    return address;
}

static bool register_segment(struct mp_allocator *a, struct mp_block *block)
{
    if (a->n_segments == a->cap_segments) {
        const size_t cap = a->cap_segments ? a->cap_segments * 2 : 64;
        struct mp_block **list = mp_realloc(a->segments, cap * sizeof(struct mp_block *));
        if (!list) {
            a->failed = true;
            return false;
        }
        a->segments = list;
        a->cap_segments = cap;
    }
    block->segment_index = (uint32_t)a->n_segments;
    a->segments[a->n_segments++] = block;
    return true;
}

/* Statistics of a segment that came to be. */
static void count_segment(struct mp_allocator *a, unsigned pool, uint64_t bytes)
{
    a->device_bytes += round_up(bytes, MP_HEAP_PAGE_BYTES);
    increase(&a->segment, pool, 1);
    increase(&a->reserved_bytes, pool, bytes);
    if (bytes >= a->conf.max_split_bytes)
        increase_stat(&a->oversize_segments, 1);
}

static bool card_has(const struct mp_allocator *a, uint64_t bytes)
{
    return !a->capacity_bytes ||
           a->device_bytes + round_up(bytes, MP_HEAP_PAGE_BYTES) <= a->capacity_bytes;
}

static struct mp_block *cuda_malloc(struct mp_allocator *a, unsigned pool, unsigned stream,
                                    uint64_t bytes)
{
    if (!card_has(a, bytes))
        return NULL;
    const uint64_t address = place_segment(a, bytes);
    if (!address)
        return NULL;
    struct mp_block *block = new_block(a);
    *block = (struct mp_block){
        .address = address,
        .size = bytes,
        .segment = address,
        .stream = (uint16_t)stream,
        .small = pool == POOL_SMALL,
        .mapped = true,
    };
    if (!register_segment(a, block)) {
        drop_block(a, block);
        return NULL;
    }
    count_segment(a, pool, bytes);
    a->num_device_alloc++;
    note(a, MP_ALLOCATOR_SEGMENT_ALLOC, stream, address, bytes, 0);
    return block;
}

/* release_block: the block is a whole segment and stands in no set any more */
static void release_block(struct mp_allocator *a, struct mp_block *block)
{
    const unsigned pool = pool_of(block);
    a->num_device_free++;
    note(a, MP_ALLOCATOR_SEGMENT_FREE, block->stream, block->address, block->size, 0);
    if (a->placement.kind == MP_PLACE_CALLBACK)
        a->placement.release(a->placement.context, block->address, block->size);
    else
        mp_heap_give(&a->heap, block->address);
    a->failed |= a->heap.failed;
    a->device_bytes -= round_up(block->size, MP_HEAP_PAGE_BYTES);
    decrease(&a->segment, pool, 1);
    decrease(&a->reserved_bytes, pool, block->size);
    if (block->size >= a->conf.max_split_bytes)
        decrease_stat(&a->oversize_segments, 1);
    struct mp_block *last = a->segments[--a->n_segments];
    a->segments[block->segment_index] = last;
    last->segment_index = block->segment_index;
    drop_block(a, block);
}

/* ---- expandable segments ---- */

/* Lowest free address for a range, as the driver hands them out. */
static uint64_t reserve_addresses(const struct mp_allocator *a, uint64_t bytes)
{
    uint64_t address = VIRTUAL_BASE;
    for (size_t i = 0; i < a->n_ranges;) {
        const struct mp_virtual_range *r = &a->ranges[i];
        const uint64_t end = r->first->segment + r->bytes;
        if (address < end && r->first->segment < address + bytes) {
            address = round_up(end, VIRTUAL_ALIGNMENT);
            i = 0; /* look at all of them again */
        } else {
            i++;
        }
    }
    return address;
}

/* A new ExpandableSegment: one unmapped block, 1.125 times the card */
static struct mp_block *add_range(struct mp_allocator *a, unsigned pool, unsigned stream)
{
    if (a->n_ranges == a->cap_ranges) {
        const size_t cap = a->cap_ranges ? a->cap_ranges * 2 : 4;
        struct mp_virtual_range *list = mp_realloc(a->ranges, cap * sizeof(*list));
        if (!list) {
            a->failed = true;
            return NULL;
        }
        a->ranges = list;
        a->cap_ranges = cap;
    }
    const uint64_t page = pool == POOL_SMALL ? SMALL_SEGMENT_BYTES : a->conf.large_segment_bytes;
    const uint64_t bytes = round_up(a->total_bytes + a->total_bytes / 8, page);
    const uint64_t address = a->next_recorded < a->n_recorded ? a->recorded[a->next_recorded]
                                                              : reserve_addresses(a, bytes);
    struct mp_block *block = new_block(a);
    *block = (struct mp_block){
        .address = address,
        .size = bytes,
        .segment = address,
        .stream = (uint16_t)stream,
        .small = pool == POOL_SMALL,
        .expandable = true,
    };
    a->ranges[a->n_ranges++] = (struct mp_virtual_range){block, bytes, page};
    insert_unmapped(a, block);
    return block;
}

/* find_expandable_block: consecutive free or unmapped blocks with room for `rounded` bytes */
static struct mp_block *find_expandable_block(struct mp_allocator *a, unsigned pool,
                                              unsigned stream, uint64_t rounded)
{
    const struct mp_free_set *set = a->pools[pool].sets[stream];
    for (uint32_t i = 0; i < set->n_unmapped; i++) {
        struct mp_block *candidate = set->unmapped[i];
        if (candidate->prev && is_quiet(candidate->prev))
            candidate = candidate->prev;
        uint64_t room = 0;
        for (const struct mp_block *b = candidate; b && is_quiet(b) && room < rounded; b = b->next)
            room += b->size;
        if (room >= rounded)
            return candidate;
    }
    return add_range(a, pool, stream);
}

static uint64_t page_bytes_of(const struct mp_allocator *a, const struct mp_block *block)
{
    return block->small ? SMALL_SEGMENT_BYTES : a->conf.large_segment_bytes;
}

/* map_block: give memory to the first `bytes` of an unmapped block; the free block it became, or
 * NULL when the card is full */
static struct mp_block *map_block(struct mp_allocator *a, struct mp_block *block, uint64_t bytes)
{
    const unsigned pool = pool_of(block);
    const uint64_t mapped = round_up(bytes, page_bytes_of(a, block));
    if (!card_has(a, mapped))
        return NULL;
    mp_unmapped_remove(set_of(a, block), block);
    if (mapped < block->size)
        insert_unmapped(a, cut_block(a, block, mapped));
    if (a->next_recorded < a->n_recorded)
        a->next_recorded++;
    const uint64_t address = block->address;
    block->mapped = true;
    block = merge_block(a, block, block->prev);
    block = merge_block(a, block, block->next);
    insert_free(a, block);
    a->device_bytes += mapped;
    increase(&a->reserved_bytes, pool, mapped);
    a->num_device_alloc++;
    note(a, MP_ALLOCATOR_SEGMENT_MAP, block->stream, address, mapped, 0);
    return block;
}

/* try_allocate_expandable_block; pages mapped before a failure stay as free blocks */
static struct mp_block *expand(struct mp_allocator *a, unsigned pool, unsigned stream,
                               uint64_t rounded)
{
    if (rounded > a->total_bytes)
        return NULL; /* no card has that many pages */
    struct mp_block *block = find_expandable_block(a, pool, stream, rounded);
    if (block && !block->mapped)
        block = map_block(a, block, MP_MIN(block->size, rounded));
    while (block && block->size < rounded) {
        if (!reserve_blocks(a, 4))
            return NULL;
        block = map_block(a, block->next, MP_MIN(rounded - block->size, block->next->size));
    }
    if (!block || a->failed)
        return NULL;
    mp_free_remove(set_of(a, block), block);
    return block;
}

static void drop_range(struct mp_allocator *a, struct mp_block *block)
{
    size_t i = 0;
    while (a->ranges[i].first != block)
        i++;
    mp_unmapped_remove(set_of(a, block), block);
    a->ranges[i] = a->ranges[--a->n_ranges];
    drop_block(a, block);
}

/* unmap_block: whole pages inside a free block lose their memory */
static void unmap_block(struct mp_allocator *a, struct mp_block *block)
{
    const unsigned pool = pool_of(block);
    const uint64_t page = page_bytes_of(a, block);
    const uint64_t begin = block->segment + round_up(block->address - block->segment, page);
    const uint64_t end =
        block->segment + (block->address + block->size - block->segment) / page * page;
    if (begin >= end || !reserve_blocks(a, 4))
        return;
    mp_free_remove(set_of(a, block), block);
    if (end < block->address + block->size)
        insert_free(a, cut_block(a, block, end - block->address));
    if (begin > block->address) {
        struct mp_block *low = block;
        block = cut_block(a, low, begin - low->address);
        insert_free(a, low);
    }
    const unsigned stream = block->stream;
    block->mapped = false;
    block = merge_block(a, block, block->prev);
    block = merge_block(a, block, block->next);
    insert_unmapped(a, block);
    a->device_bytes -= end - begin;
    decrease(&a->reserved_bytes, pool, end - begin);
    a->num_device_free++;
    note(a, MP_ALLOCATOR_SEGMENT_UNMAP, stream, begin, end - begin, 0);
    if (!is_split(block))
        drop_range(a, block);
}

/* ---- giving back: release_cached_blocks, release_available_cached_blocks,
 * garbage_collect_cached_blocks ---- */

/* Whole free segments at once; expandable blocks after them, because unmapping changes the set. */
static void release_blocks(struct mp_allocator *a, unsigned pool)
{
    const struct mp_pool *p = &a->pools[pool];
    for (uint32_t stream = 0; stream < p->n_sets; stream++) {
        struct mp_free_set *set = p->sets[stream];
        struct mp_free_place place = {0, 0, NULL};
        if (set)
            place = mp_free_first_from(set, 0);
        while (place.block) {
            struct mp_block *block = place.block;
            if (block->expandable || is_split(block)) {
                place = mp_free_next(set, place);
                continue;
            }
            const uint64_t size = block->size, address = block->address;
            mp_free_remove_at(set, place.bin, place.index);
            release_block(a, block);
            place = mp_free_find_from(set, place.bin, size, address);
        }
    }
}

static void unmap_blocks(struct mp_allocator *a, unsigned pool)
{
    struct mp_block **list = NULL;
    size_t n = 0, cap = 0;
    const struct mp_pool *p = &a->pools[pool];
    for (uint32_t stream = 0; stream < p->n_sets && a->n_ranges; stream++) {
        const struct mp_free_set *set = p->sets[stream];
        if (!set)
            continue;
        for (struct mp_free_place place = mp_free_first_from(set, 0); place.block;
             place = mp_free_next(set, place)) {
            if (!place.block->expandable)
                continue;
            if (n == cap) {
                cap = cap ? cap * 2 : 64;
                struct mp_block **grown = mp_realloc(list, cap * sizeof(struct mp_block *));
                if (!grown) {
                    a->failed = true;
                    free(list);
                    return;
                }
                list = grown;
            }
            list[n++] = place.block;
        }
    }
    for (size_t i = 0; i < n; i++)
        unmap_block(a, list[i]);
    free(list);
}

static void release_cached_blocks(struct mp_allocator *a)
{
    a->num_sync_all_streams++;
    drain_events(a, true);
    static const unsigned order[] = {POOL_LARGE, POOL_SMALL};
    for (unsigned i = 0; i < 2; i++) {
        release_blocks(a, order[i]);
        unmap_blocks(a, order[i]);
    }
}

void mp_allocator_driver_event(struct mp_allocator *a, unsigned event, uint64_t bytes)
{
    if (a->placement.kind == MP_PLACE_PROCESS)
        (void)mp_heap_driver_event(&a->heap, (enum mp_driver_event)event, bytes);
    else if (a->placement.kind == MP_PLACE_LOADED)
        (void)mp_heap_nccl_event(&a->heap, (enum mp_driver_event)event);
}

void mp_allocator_empty_cache(struct mp_allocator *a)
{
    if (!a->failed && reserve_blocks(a, 4))
        release_cached_blocks(a);
}

/* Oversize blocks only, and no more of them than the request needs. */
static bool release_available_cached_blocks(struct mp_allocator *a, struct mp_free_set *set,
                                            uint64_t rounded)
{
    const uint64_t max_split = a->conf.max_split_bytes;
    if (max_split == UINT64_MAX)
        return false;
    const uint64_t wanted = MP_MAX(rounded, max_split);
    struct mp_free_place place = mp_free_find(set, wanted);
    if (place.block && !place.block->expandable) {
        if (is_split(place.block))
            return false;
        mp_free_remove_at(set, place.bin, place.index);
        release_block(a, place.block);
        return true;
    }
    uint64_t released = 0;
    place = mp_free_previous(set, place);
    while (place.block && released < wanted && place.block->size >= max_split) {
        struct mp_block *block = place.block;
        struct mp_free_place before = mp_free_previous(set, place);
        if (!block->expandable && !is_split(block)) {
            released += block->size;
            mp_free_remove_at(set, place.bin, place.index);
            release_block(a, block);
            if (before.block && before.bin == place.bin)
                before.index--; /* it moved up */
        }
        place = before;
    }
    return released >= wanted;
}

static uint64_t gc_age(const struct mp_allocator *a, const struct mp_block *block)
{
    return a->pools[POOL_LARGE].n_searches - block->gc_base;
}

/* One pass of the collector over the large pool: count what could go, or release what is old
 * enough. */
struct gc_pass {
    double age_threshold;
    uint64_t total_age, n_blocks, reclaimed;
};

static bool collect(struct mp_allocator *a, struct gc_pass *gc, bool release)
{
    bool freed = false;
    const struct mp_pool *p = &a->pools[POOL_LARGE];
    for (uint32_t stream = 0; stream < p->n_sets; stream++) {
        struct mp_free_set *set = p->sets[stream];
        for (uint32_t bin = 0; set && bin < MP_FREE_SET_BINS; bin++) {
            for (uint32_t i = set->bins[bin].n; i-- > 0;) {
                struct mp_block *block = set->bins[bin].entries[i].block;
                if (is_split(block))
                    continue;
                if (!release) {
                    gc->total_age += gc_age(a, block);
                    gc->n_blocks++;
                } else if (!block->expandable && (double)gc_age(a, block) >= gc->age_threshold) {
                    gc->total_age -= gc_age(a, block);
                    gc->n_blocks--;
                    gc->reclaimed += block->size;
                    mp_free_remove_at(set, bin, i);
                    release_block(a, block);
                    freed = true;
                }
            }
        }
    }
    return freed;
}

static void garbage_collect_cached_blocks(struct mp_allocator *a)
{
    const uint64_t threshold =
        (uint64_t)(a->conf.garbage_collection_threshold * (double)a->limit_bytes);
    const uint64_t reserved = a->reserved_bytes.current[POOL_ALL];
    if (reserved <= threshold)
        return;
    const uint64_t target = reserved - threshold;
    struct gc_pass gc = {0};
    collect(a, &gc, false);
    bool freed = true;
    while (gc.reclaimed < target && freed && gc.n_blocks > 0) {
        gc.age_threshold = (double)gc.total_age / (double)gc.n_blocks;
        freed = collect(a, &gc, true);
    }
}

/* ---- malloc ---- */

static struct mp_block *alloc_block(struct mp_allocator *a, unsigned pool, unsigned stream,
                                    uint64_t rounded, bool is_retry)
{
    const uint64_t bytes = mp_allocator_segment_size(&a->conf, rounded);
    if (is_retry)
        a->num_alloc_retries++;
    if (a->limit_bytes && a->reserved_bytes.current[POOL_ALL] + bytes > a->limit_bytes)
        return NULL;
    if (a->conf.expandable_segments)
        return expand(a, pool, stream, rounded);
    return cuda_malloc(a, pool, stream, bytes);
}

static void fill_oom(struct mp_allocator *a, unsigned pool, unsigned stream, uint64_t n,
                     uint64_t rounded)
{
    struct mp_allocator_oom *oom = &a->oom;
    *oom = (struct mp_allocator_oom){
        .requested_bytes = n,
        .rounded_bytes = rounded,
        .segment_bytes = mp_allocator_segment_size(&a->conf, rounded),
        .allocated_bytes = a->allocated_bytes.current[POOL_ALL],
        .reserved_bytes = a->reserved_bytes.current[POOL_ALL],
    };
    const struct mp_free_set *set = a->pools[pool].sets[stream];
    for (uint32_t bin = 0; bin < MP_FREE_SET_BINS; bin++) {
        for (uint32_t i = 0; i < set->bins[bin].n; i++) {
            oom->free_bytes += set->bins[bin].entries[i].size;
            oom->largest_free_bytes =
                MP_MAX(oom->largest_free_bytes, set->bins[bin].entries[i].size);
        }
    }
    a->num_ooms++;
    const uint64_t card_free = a->capacity_bytes ? a->capacity_bytes - a->device_bytes : 0;
    note(a, MP_ALLOCATOR_OOM, stream, card_free, rounded, 0);
}

/* No cached block fits: a new segment, if need be at the price of cached ones. */
static struct mp_block *alloc_new_segment(struct mp_allocator *a, unsigned pool, unsigned stream,
                                          struct mp_free_set *set, uint64_t rounded, uint64_t n)
{
    if (a->gc_active)
        garbage_collect_cached_blocks(a);
    struct mp_block *block = alloc_block(a, pool, stream, rounded, false);
    if (!block && !a->failed && release_available_cached_blocks(a, set, rounded))
        block = alloc_block(a, pool, stream, rounded, false);
    if (!block && !a->failed && reserve_blocks(a, 4)) {
        release_cached_blocks(a);
        if (!a->failed && reserve_blocks(a, 4))
            block = alloc_block(a, pool, stream, rounded, true);
    }
    if (!block && !a->failed)
        fill_oom(a, pool, stream, n, rounded);
    return block;
}

struct mp_block *mp_allocator_malloc(struct mp_allocator *a, uint64_t n, unsigned stream,
                                     uint32_t client)
{
    if (n >= REFUSED_BYTES) { /* "Tried to allocate more than 1EB memory": before any bookkeeping */
        a->oom =
            (struct mp_allocator_oom){.requested_bytes = n, .rounded_bytes = n, .segment_bytes = n};
        return NULL;
    }
    if (a->failed || !reserve_blocks(a, 4))
        return NULL;
    if (a->n_complete)
        drain_events(a, false);
    const uint64_t rounded =
        a->plain_rounding
            ? (n < MIN_BLOCK_BYTES ? MIN_BLOCK_BYTES
                                   : (n + MIN_BLOCK_BYTES - 1) & ~(MIN_BLOCK_BYTES - 1))
            : mp_allocator_round_size(&a->conf, a->torch, n);
    const unsigned pool = rounded <= SMALL_BYTES ? POOL_SMALL : POOL_LARGE;
    struct mp_free_set *set = find_set(a, pool, stream);
    if (!set)
        return NULL;
    struct mp_free_place place = get_free_block(a, pool, set, rounded);
    if (!place.block) {
        place.block = alloc_new_segment(a, pool, stream, set, rounded, n);
        if (!place.block)
            return NULL;
        set = NULL;
    }
    struct mp_block *block = alloc_found_block(a, set, place, rounded, n, client);
    return a->failed ? NULL : block;
}

bool mp_allocator_leave_segments(struct mp_allocator *a, const struct mp_scratch_look *look)
{
    uint64_t bytes = 0, pages = 0;
    for (unsigned i = 0; i < look->n; i++) {
        bytes += look->segment_bytes[i];
        pages += round_up(look->segment_bytes[i], MP_HEAP_PAGE_BYTES);
    }
    if (a->failed || !card_has(a, pages) ||
        (a->limit_bytes && a->reserved_bytes.current[POOL_ALL] + bytes > a->limit_bytes))
        return false;
    for (unsigned i = 0; i < look->n; i++) {
        const unsigned pool = look->small[i] ? POOL_SMALL : POOL_LARGE;
        if (!look->segment_bytes[i])
            continue;
        if (!reserve_blocks(a, 4) || !find_set(a, pool, look->stream))
            return false;
        struct mp_block *block = cuda_malloc(a, pool, look->stream, look->segment_bytes[i]);
        if (!block) {
            a->failed |= i > 0; /* there is no way back to before the first */
            return false;
        }
        insert_free(a, block);
    }
    return !a->failed;
}

/* ---- a starting state ---- */

static bool seed_is_possible(const struct mp_allocator *a, const struct mp_seed_segment *segment,
                             uint64_t *total, struct memplan_error *err)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < segment->n_blocks; i++) {
        const struct mp_seed_block *b = &segment->blocks[i];
        if (!b->bytes || b->bytes >= REFUSED_BYTES || sum >= REFUSED_BYTES ||
            (b->kind == MP_SEED_UNMAPPED && !segment->expandable))
            return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                "segment 0x%" PRIx64 ": block %zu: impossible size",
                                segment->address, i),
                   false;
        sum += b->bytes;
    }
    const uint64_t page = segment->small ? SMALL_SEGMENT_BYTES : a->conf.large_segment_bytes;
    const bool whole =
        segment->expandable ? sum % page == 0 : !segment->small || sum == SMALL_SEGMENT_BYTES;
    if (!sum || !whole || segment->stream > UINT16_MAX)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "segment 0x%" PRIx64 ": %" PRIu64
                            " bytes: no size for a segment of the %s pool",
                            segment->address, sum, segment->small ? "small" : "large"),
               false;
    *total = sum;
    return true;
}

static void seed_block(struct mp_allocator *a, struct mp_block *block,
                       const struct mp_seed_block *seed)
{
    const unsigned pool = pool_of(block);
    block->requested_bytes = seed->requested_bytes;
    block->mapped = seed->kind != MP_SEED_UNMAPPED;
    if (block->mapped && block->expandable) {
        a->device_bytes += block->size;
        increase(&a->reserved_bytes, pool, block->size);
    }
    if (seed->kind == MP_SEED_ALLOCATED) {
        block->allocated = true;
        block->client = seed->client;
        increase(&a->allocation, pool, 1);
        increase(&a->allocated_bytes, pool, block->size);
        increase(&a->requested_bytes, pool, seed->requested_bytes);
        if (block->size >= a->conf.max_split_bytes)
            increase_stat(&a->oversize_allocations, 1);
    } else if (block->mapped) {
        insert_free(a, block);
        if (is_split(block) && !block->expandable) {
            increase(&a->inactive_split, pool, 1);
            increase(&a->inactive_split_bytes, pool, block->size);
        }
    } else {
        insert_unmapped(a, block);
    }
}

/* The block that the seeds are cut from: a segment, or a new range whose end stays unmapped. */
static struct mp_block *seed_whole(struct mp_allocator *a, const struct mp_seed_segment *segment,
                                   uint64_t total)
{
    const unsigned pool = segment->small ? POOL_SMALL : POOL_LARGE;
    if (!make_set(a, pool, segment->stream) || !reserve_blocks(a, 4))
        return NULL;
    if (segment->expandable) {
        struct mp_block *block = add_range(a, pool, segment->stream);
        if (!block)
            return NULL;
        mp_unmapped_remove(set_of(a, block), block);
        struct mp_virtual_range *range = &a->ranges[a->n_ranges - 1];
        range->bytes = block->size = MP_MAX(block->size, total);
        block->address = block->segment = segment->address;
        return block;
    }
    struct mp_block *block = new_block(a);
    *block = (struct mp_block){
        .address = segment->address,
        .size = total,
        .segment = segment->address,
        .stream = (uint16_t)segment->stream,
        .small = segment->small,
        .mapped = true,
    };
    if (!register_segment(a, block))
        return NULL;
    count_segment(a, pool, total);
    return block;
}

enum memplan_status mp_allocator_seed(struct mp_allocator *a, const struct mp_seed_segment *segment,
                                      struct mp_block **blocks, struct memplan_error *err)
{
    uint64_t total = 0;
    if (!seed_is_possible(a, segment, &total, err))
        return MEMPLAN_STATUS_INPUT;
    struct mp_block *block = seed_whole(a, segment, total);
    for (size_t i = 0; block && i < segment->n_blocks && reserve_blocks(a, 4); i++) {
        const struct mp_seed_block *seed = &segment->blocks[i];
        struct mp_block *rest = block->size > seed->bytes ? cut_block(a, block, seed->bytes) : NULL;
        if (blocks)
            blocks[i] = seed->kind == MP_SEED_ALLOCATED ? block : NULL;
        seed_block(a, block, seed);
        block = rest;
    }
    if (block && segment->expandable && !a->failed)
        insert_unmapped(a, block);
    if (a->failed)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    return MEMPLAN_STATUS_OK;
}

/* ---- life ---- */

/* What the settings and the version make of the cap. */
static uint64_t effective_limit(const struct mp_allocator_options *o, uint64_t total_bytes)
{
    if (o->limit_bytes)
        return o->limit_bytes;
    const double fraction = o->conf.per_process_memory_fraction;
    return fraction > 0 && fraction < 1 ? (uint64_t)(fraction * (double)total_bytes) : 0;
}

static bool copy_recorded(struct mp_allocator *a)
{
    if (a->placement.kind != MP_PLACE_RECORDED || !a->placement.n_recorded)
        return true;
    a->recorded = mp_malloc(a->placement.n_recorded * sizeof(*a->recorded));
    if (!a->recorded)
        return false;
    memcpy(a->recorded, a->placement.recorded, a->placement.n_recorded * sizeof(*a->recorded));
    a->n_recorded = a->placement.n_recorded;
    return true;
}

struct mp_allocator *mp_allocator_new(const struct mp_allocator_options *options,
                                      struct memplan_error *err)
{
    if (options->conf.backend_async) {
        mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                     "backend: cudaMallocAsync is the driver's own pool and is not simulated; "
                     "use native");
        return NULL;
    }
    struct mp_allocator *a = mp_malloc(sizeof(*a));
    struct mp_allocator_stats *view = mp_malloc(sizeof(*view));
    if (a)
        *a = (struct mp_allocator){.conf = options->conf, .view = view};
    if (a && view) {
        *view = (struct mp_allocator_stats){0};
        a->torch = options->torch ? options->torch : MP_TORCH_DEFAULT;
        a->total_bytes = options->total_bytes ? options->total_bytes : UINT64_C(1) << 40;
        a->limit_bytes = effective_limit(options, a->total_bytes);
        a->capacity_bytes = options->capacity_bytes;
        a->peaks_only = options->peaks_only;
        a->gc_active = a->limit_bytes && a->conf.garbage_collection_threshold > 0;
        a->plain_rounding = true;
        for (unsigned i = 0; i < 16; i++)
            a->plain_rounding &= a->conf.roundup_divisions[i] == 0;
        a->placement = options->placement;
        if (a->placement.kind == MP_PLACE_PROCESS)
            (void)mp_heap_init_process(&a->heap);
        else
            mp_heap_init(&a->heap, MP_HEAP_TOP);
    }
    if (!a || !view || !copy_recorded(a)) {
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        if (!a)
            free(view);
        mp_allocator_free(a);
        return NULL;
    }
    return a;
}

void mp_allocator_free(struct mp_allocator *a)
{
    if (!a)
        return;
    for (unsigned pool = 0; pool < 2; pool++) {
        for (uint32_t i = 0; i < a->pools[pool].n_sets; i++)
            mp_free_set_free(a->pools[pool].sets[i]);
        free(a->pools[pool].sets);
    }
    if (a->placement.kind == MP_PLACE_CALLBACK && a->placement.release) {
        for (size_t i = 0; i < a->n_segments; i++) {
            uint64_t bytes = 0;
            for (const struct mp_block *b = a->segments[i]; b; b = b->next)
                bytes += b->size;
            a->placement.release(a->placement.context, a->segments[i]->address, bytes);
        }
    }
    while (a->slabs) {
        struct mp_block_slab *older = a->slabs->older;
        free(a->slabs);
        a->slabs = older;
    }
    free(a->deferred);
    free(a->segments);
    free(a->ranges);
    free(a->recorded);
    mp_heap_release(&a->heap);
    free(a->view);
    free(a);
}

void mp_allocator_set_capacity(struct mp_allocator *a, uint64_t capacity_bytes)
{
    a->capacity_bytes = capacity_bytes;
}

uint64_t mp_allocator_device_bytes(const struct mp_allocator *a)
{
    return a->device_bytes;
}

bool mp_allocator_failed(const struct mp_allocator *a)
{
    return a->failed;
}

const struct mp_allocator_oom *mp_allocator_oom(const struct mp_allocator *a)
{
    return &a->oom;
}

void mp_allocator_observe(struct mp_allocator *a, mp_allocator_observer *observer, void *context)
{
    a->observed = observer ? ~0u : 0;
    a->observer = observer;
    a->observer_context = context;
}

void mp_allocator_observe_card(struct mp_allocator *a, mp_allocator_observer *observer,
                               void *context)
{
    mp_allocator_observe(a, observer, context);
    a->observed &= 1u << MP_ALLOCATOR_SEGMENT_ALLOC | 1u << MP_ALLOCATOR_SEGMENT_FREE |
                   1u << MP_ALLOCATOR_SEGMENT_MAP | 1u << MP_ALLOCATOR_SEGMENT_UNMAP |
                   1u << MP_ALLOCATOR_OOM;
}

const char *mp_allocator_action_text(enum mp_allocator_action action)
{
    static const char *const texts[] = {
#define X(name, text) text,
        MP_ALLOCATOR_ACTION_MAP(X)
#undef X
    };
    return (unsigned)action < MP_ARRAY_LEN(texts) ? texts[action] : "?";
}
