/* SPDX-License-Identifier: MIT */
/*
 * Scratch buffers: taken, and given back at once, the last first.
 *
 *     malloc a    ┌──────┬───────────────┐      malloc b, free b, free a
 *                 │  a   │ rest          │      the rest merges back, and the block lies where it lay
 *                 └──────┴───────────────┘
 *
 * Where free blocks serve, nothing is left of it but peaks, so it is enough to look which blocks would. Where one does not, what is
 * left is a free segment, whose size is that of the request in coarse steps. Streams that differ in such sizes alone can therefore go
 * through one replay, for as long as each of them would find blocks where the others do.
 */
#include "memory/allocator_state.h"

bool mp_allocator_can_look(const struct mp_allocator *a)
{
    const bool odd_sizes = a->torch < 204 && !a->plain_rounding; /* one division left sizes as they were */
    return !odd_sizes && !a->gc_active && !a->conf.expandable_segments &&
           a->conf.max_split_bytes == UINT64_MAX && !a->has_deferred && !a->observed &&
           a->placement.kind == MP_PLACE_PROCESS;
}

/* A free block, or what is left of one. */
struct found {
    uint64_t size; /* 0: none */
    const struct mp_block *block;
};

static struct found find_block(const struct mp_pool *pool, unsigned stream, uint64_t rounded, const struct mp_block *taken)
{
    const struct mp_free_set *const set = stream < pool->n_sets ? pool->sets[stream] : NULL;
    if (!set)
        return (struct found){0, NULL};
    struct mp_free_place place = mp_free_find(set, rounded);
    if (place.block && place.block == taken)
        place = mp_free_next(set, place);
    return (struct found){place.block ? place.block->size : 0, place.block};
}

/*
 * Pools share nothing but the card. A pool that is back in a state in which it was before goes through the same states again, and needs
 * no more of the card, for as long as the same requests come round; the other one can be played alone. No card that says no may come
 * in between: both pools would give segments back.
 *
 * What the small pool hands out is the rounded size, so that it can be counted on, for the peaks of both. Where the large one comes
 * round, all peaks have been seen: the small pool holds as much at the same requests of every step.
 */
void mp_allocator_settle(struct mp_allocator *a, bool small) { a->settled[small ? POOL_SMALL : POOL_LARGE] = true; }

void mp_allocator_count_small(struct mp_allocator *a, uint64_t bytes, bool malloc)
{
    const uint64_t rounded = mp_allocator_round_size(&a->conf, a->torch, bytes);
    struct mp_tally *const requested = &a->requested_bytes, *const allocated = &a->allocated_bytes;
    requested->current[POOL_ALL] += malloc ? bytes : -bytes;
    allocated->current[POOL_ALL] += malloc ? rounded : -rounded;
    requested->peak[POOL_ALL] = MP_MAX(requested->peak[POOL_ALL], requested->current[POOL_ALL]);
    allocated->peak[POOL_ALL] = MP_MAX(allocated->peak[POOL_ALL], allocated->current[POOL_ALL]);
}

void mp_allocator_look(const struct mp_allocator *a, unsigned stream, const uint64_t *bytes, unsigned n, struct mp_scratch_look *look)
{
    const struct mp_block *taken = NULL; /* by the buffer before, which left `rest` in its pool */
    uint64_t rest = 0;
    bool rest_small = false;
    *look = (struct mp_scratch_look){
        .stream = stream,
        .n = n,
        .requested_bytes = a->requested_bytes.current[POOL_ALL],
        .allocated_bytes = a->allocated_bytes.current[POOL_ALL],
    };
    for (unsigned i = 0; i < n; i++) {
        const uint64_t rounded = mp_allocator_round_size(&a->conf, a->torch, bytes[i]);
        const bool small = rounded <= SMALL_BYTES;
        look->requested_bytes += bytes[i];
        if (a->settled[small ? POOL_SMALL : POOL_LARGE]) {
            look->allocated_bytes += rounded;
            continue;
        }
        struct found found = find_block(&a->pools[small ? POOL_SMALL : POOL_LARGE], stream, rounded, taken);
        if (rest_small == small && rest >= rounded && (!found.size || rest < found.size))
            found = (struct found){rest, NULL};
        if (!found.size)
            found.size = look->segment_bytes[i] = mp_allocator_segment_size(&a->conf, rounded);
        look->small[i] = small;
        rest = found.size - rounded;
        if (small ? rest < MIN_BLOCK_BYTES : rest <= SMALL_BYTES)
            rest = 0; /* not worth splitting off */
        look->allocated_bytes += found.size - rest;
        taken = found.block;
        rest_small = small;
    }
}

bool mp_scratch_leaves_the_same(const struct mp_scratch_look *x, const struct mp_scratch_look *y)
{
    bool same = x->stream == y->stream;
    for (unsigned i = 0; i < MP_SCRATCH_MOST; i++)
        same = same && x->segment_bytes[i] == y->segment_bytes[i] && (x->segment_bytes[i] == 0 || x->small[i] == y->small[i]);
    return same;
}

bool mp_scratch_leaves_nothing(const struct mp_scratch_look *look)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < look->n; i++)
        bytes += look->segment_bytes[i];
    return bytes == 0;
}
