/* SPDX-License-Identifier: MIT */
/*
 * Looking at an allocator from outside its working path: segments in address order, a hash of its
 * state, and the check that every list and counter agrees with the blocks themselves.
 */
#include <inttypes.h>

#include "base/arena.h"
#include "memory/allocator_state.h"

/* ---- segments in order ---- */

struct found {
    const struct mp_block *first;
    uint64_t bytes;
};

static int by_address(const void *a, const void *b)
{
    const uint64_t x = ((const struct found *)a)->first->address;
    const uint64_t y = ((const struct found *)b)->first->address;
    return x < y ? -1 : x > y;
}

static bool add_found(struct found **list, size_t *n, size_t *cap, struct found item)
{
    if (*n == *cap) {
        const size_t grown = *cap ? *cap * 2 : 64;
        struct found *p = mp_realloc(*list, grown * sizeof(*p));
        if (!p)
            return false;
        *list = p;
        *cap = grown;
    }
    (*list)[(*n)++] = item;
    return true;
}

static bool find_segments(const struct mp_allocator *a, struct found **list, size_t *n)
{
    size_t cap = 0;
    for (size_t i = 0; i < a->n_segments; i++) {
        struct found f = {a->segments[i], 0};
        for (const struct mp_block *b = f.first; b; b = b->next)
            f.bytes += b->size;
        if (!add_found(list, n, &cap, f))
            return false;
    }
    for (size_t i = 0; i < a->n_ranges; i++) {
        struct found f = {NULL, 0};
        for (const struct mp_block *b = a->ranges[i].first;; b = b->next) {
            if (b && b->mapped) {
                f.first = f.first ? f.first : b;
                f.bytes += b->size;
                continue;
            }
            if (f.first && !add_found(list, n, &cap, f))
                return false;
            f = (struct found){NULL, 0};
            if (!b)
                break;
        }
    }
    return true;
}

enum memplan_status mp_allocator_visit_segments(const struct mp_allocator *a,
                                                mp_segment_visit *visit, void *context)
{
    struct found *list = NULL;
    size_t n = 0;
    const bool found = find_segments(a, &list, &n);
    if (found && n > 0) {
        qsort(list, n, sizeof(*list), by_address);
        for (size_t i = 0; i < n && visit(context, list[i].first, list[i].bytes); i++)
            ;
    }
    free(list);
    return found ? MEMPLAN_STATUS_OK : MEMPLAN_STATUS_NOMEM;
}

/* ---- hash ---- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 29);
}

/* Everything about one block that a later request can notice. */
static uint64_t hash_block(const struct mp_allocator *a, const struct mp_block *b,
                           uint64_t (*key)(void *context, uint32_t client), void *context)
{
    uint64_t hash = mix(mix(b->address, b->size), b->segment);
    hash = mix(hash, (uint64_t)b->stream << 8 | (uint64_t)b->allocated << 3 |
                         (uint64_t)b->small << 2 | (uint64_t)b->expandable << 1 | b->mapped);
    if (b->allocated)
        hash = mix(mix(hash, key ? key(context, b->client) : 0), b->stream_uses);
    else if (b->event_count)
        hash = mix(hash, (uint64_t)b->event_count << 1 | 1);
    else if (a->gc_active)
        hash = mix(hash, a->pools[b->small ? POOL_SMALL : POOL_LARGE].n_searches - b->gc_base);
    return hash;
}

/* What is free is what lies between. */
uint64_t mp_allocator_pool_hash(const struct mp_allocator *a, bool small,
                                uint64_t (*key)(void *context, uint32_t client), void *context)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < a->n_segments; i++) {
        const struct mp_block *const first = a->segments[i];
        uint64_t bytes = 0;
        if (first->small != small)
            continue;
        for (const struct mp_block *b = first; b; b = b->next) {
            bytes += b->size;
            if (b->allocated)
                sum += mix(mix(mix(mix(1, b->address), b->size), b->stream), key(context, b->client));
        }
        sum += mix(mix(mix(2, first->address), bytes), first->stream);
    }
    return small ? sum : mix(sum, mp_heap_hash(&a->heap));
}

/* A sum over blocks, so that the order of the tables does not matter; placement and pending events
 * have an order. */
uint64_t mp_allocator_state_hash(const struct mp_allocator *a,
                                 uint64_t (*key)(void *context, uint32_t client), void *context)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < a->n_segments; i++) {
        for (const struct mp_block *b = a->segments[i]; b; b = b->next)
            sum += hash_block(a, b, key, context);
    }
    for (size_t i = 0; i < a->n_ranges; i++) {
        for (const struct mp_block *b = a->ranges[i].first; b; b = b->next)
            sum += hash_block(a, b, key, context);
    }
    uint64_t hash = mix(sum, mp_heap_hash(&a->heap));
    for (size_t i = 0; i < a->n_deferred; i++) {
        const struct mp_deferred *d = &a->deferred[i];
        hash = mix(mix(hash, d->block->address), (uint64_t)d->stream << 1 | d->complete);
    }
    return mix(hash, a->n_recorded - a->next_recorded);
}

/* ---- check ---- */

/* What the blocks add up to, per pool. */
struct sums {
    uint64_t allocated, allocated_bytes, requested_bytes, active, active_bytes;
    uint64_t inactive_split, inactive_split_bytes, segments, reserved_bytes, free_blocks, unmapped;
};

static bool in_free_set(const struct mp_free_set *set, const struct mp_block *b)
{
    const struct mp_free_bin *bin = &set->bins[mp_free_bin_of(b->size)];
    uint32_t n = mp_free_count_from(bin, b->size, b->address);
    while (n > 0 && bin->entries[n - 1].block != b)
        n--;
    return n > 0;
}

static bool in_unmapped(const struct mp_free_set *set, const struct mp_block *b)
{
    for (uint32_t i = 0; i < set->n_unmapped; i++) {
        if (set->unmapped[i] == b)
            return true;
    }
    return false;
}

static bool complain(struct memplan_error *err, const struct mp_block *b, const char *what)
{
    mp_error_set(err, MEMPLAN_STATUS_RANGE, "block 0x%" PRIx64 " of %" PRIu64 " bytes: %s",
                 b->address, b->size, what);
    return false;
}

static bool check_block(const struct mp_allocator *a, const struct mp_block *b, struct sums *s,
                        struct memplan_error *err)
{
    if (b->size == 0)
        return complain(err, b, "empty");
    if (b->prev && b->prev->next != b)
        return complain(err, b, "its neighbour does not know it");
    if (b->next && b->next->address != b->address + b->size)
        return complain(err, b, "does not end where the next one begins");
    const struct mp_pool *pool = &a->pools[b->small ? POOL_SMALL : POOL_LARGE];
    const struct mp_free_set *set = b->stream < pool->n_sets ? pool->sets[b->stream] : NULL;
    if (!set)
        return complain(err, b, "its stream has no free set");
    const bool quiet = !b->allocated && b->event_count == 0;
    if (in_free_set(set, b) != (quiet && b->mapped))
        return complain(err, b, quiet ? "free, yet not in the free set" : "in use, yet free");
    if (in_unmapped(set, b) != (quiet && !b->mapped))
        return complain(err, b, "list of unmapped blocks is wrong");
    if (quiet && b->next && !b->next->allocated && b->next->event_count == 0 &&
        b->next->mapped == b->mapped)
        return complain(err, b, "not merged with the next one");

    const uint64_t in_use = !quiet, split = b->prev || b->next;
    s->active += in_use;
    s->active_bytes += in_use * b->size;
    s->requested_bytes += in_use * b->requested_bytes;
    s->allocated += b->allocated;
    s->allocated_bytes += b->allocated * b->size;
    s->reserved_bytes += b->mapped * b->size;
    s->free_blocks += quiet && b->mapped;
    s->unmapped += !b->mapped;
    if (quiet && split && !b->expandable) {
        s->inactive_split++;
        s->inactive_split_bytes += b->size;
    }
    return true;
}

static bool check_sets(const struct mp_pool *pool, const struct sums *s, struct memplan_error *err)
{
    uint64_t n = 0, unmapped = 0;
    for (uint32_t i = 0; i < pool->n_sets; i++) {
        const struct mp_free_set *set = pool->sets[i];
        for (uint32_t bin = 0; set && bin < MP_FREE_SET_BINS; bin++) {
            const struct mp_free_bin *b = &set->bins[bin];
            const bool bit = set->occupied[bin / 64] >> (bin % 64) & 1;
            if (bit != (b->n > 0))
                return mp_error_set(err, MEMPLAN_STATUS_RANGE, "bin %u: wrong bit", bin), false;
            for (uint32_t k = 1; k < b->n; k++) {
                const struct mp_free_entry *x = &b->entries[k - 1], *y = &b->entries[k];
                if (x->size < y->size || (x->size == y->size && x->address < y->address))
                    return mp_error_set(err, MEMPLAN_STATUS_RANGE, "bin %u: unordered", bin), false;
            }
            n += b->n;
        }
        unmapped += set ? set->n_unmapped : 0;
    }
    if (n != s->free_blocks || unmapped != s->unmapped)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE,
                            "free sets hold %" PRIu64 " blocks, segments %" PRIu64, n,
                            s->free_blocks),
               false;
    return true;
}

static bool check_tally(const struct mp_tally *t, const char *name, uint64_t small, uint64_t large,
                        struct memplan_error *err)
{
    if (t->current[POOL_SMALL] != small || t->current[POOL_LARGE] != large ||
        t->current[POOL_ALL] != small + large || t->peak[POOL_SMALL] < small ||
        t->peak[POOL_LARGE] < large || t->peak[POOL_ALL] < small + large)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE,
                            "%s: counted %" PRIu64 " and %" PRIu64 ", blocks say %" PRIu64
                            " and %" PRIu64,
                            name, t->current[POOL_SMALL], t->current[POOL_LARGE], small, large),
               false;
    return true;
}

static bool check_tallies(const struct mp_allocator *a, const struct sums s[2],
                          struct memplan_error *err)
{
    const struct {
        const char *name;
        const struct mp_tally *tally;
        uint64_t small, large;
    } rows[] = {
        {"allocation", &a->allocation, s[0].allocated, s[1].allocated},
        {"allocated_bytes", &a->allocated_bytes, s[0].allocated_bytes, s[1].allocated_bytes},
        {"active", a->has_deferred ? &a->active : &a->allocation, s[0].active, s[1].active},
        {"active_bytes", a->has_deferred ? &a->active_bytes : &a->allocated_bytes,
         s[0].active_bytes, s[1].active_bytes},
        {"requested_bytes", &a->requested_bytes, s[0].requested_bytes, s[1].requested_bytes},
        {"inactive_split", &a->inactive_split, s[0].inactive_split, s[1].inactive_split},
        {"inactive_split_bytes", &a->inactive_split_bytes, s[0].inactive_split_bytes,
         s[1].inactive_split_bytes},
        {"segment", &a->segment, s[0].segments, s[1].segments},
        {"reserved_bytes", &a->reserved_bytes, s[0].reserved_bytes, s[1].reserved_bytes},
    };
    for (size_t i = 0; i < MP_ARRAY_LEN(rows); i++) {
        if (!check_tally(rows[i].tally, rows[i].name, rows[i].small, rows[i].large, err))
            return false;
    }
    return true;
}

static bool check_overlap(const struct mp_allocator *a, struct memplan_error *err)
{
    struct found *list = NULL;
    size_t n = 0;
    bool ok = find_segments(a, &list, &n);
    if (ok && n > 0)
        qsort(list, n, sizeof(*list), by_address);
    for (size_t i = 1; ok && i < n; i++) {
        if (list[i - 1].first->address + list[i - 1].bytes > list[i].first->address)
            ok = complain(err, list[i].first, "its segment overlaps the one before");
    }
    free(list);
    return ok;
}

bool mp_allocator_check(const struct mp_allocator *a, struct memplan_error *err)
{
    struct sums sums[2] = {{0}, {0}};
    for (size_t i = 0; i < a->n_segments; i++) {
        const struct mp_block *first = a->segments[i];
        if (first->segment_index != i || first->prev)
            return complain(err, first, "not the first block of its segment");
        struct sums *s = &sums[first->small ? POOL_SMALL : POOL_LARGE];
        s->segments++;
        for (const struct mp_block *b = first; b; b = b->next) {
            if (!check_block(a, b, s, err))
                return false;
        }
    }
    for (size_t i = 0; i < a->n_ranges; i++) {
        const struct mp_block *first = a->ranges[i].first;
        struct sums *s = &sums[first->small ? POOL_SMALL : POOL_LARGE];
        uint64_t bytes = 0;
        for (const struct mp_block *b = first; b; b = b->next) {
            bytes += b->size;
            if (!check_block(a, b, s, err))
                return false;
        }
        if (first->prev || bytes != a->ranges[i].bytes)
            return complain(err, first, "range is not filled");
    }
    if (a->capacity_bytes && a->device_bytes > a->capacity_bytes)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "more taken than the card has"), false;
    return check_sets(&a->pools[POOL_SMALL], &sums[0], err) &&
           check_sets(&a->pools[POOL_LARGE], &sums[1], err) && (a->peaks_only || check_tallies(a, sums, err)) &&
           check_overlap(a, err) && mp_heap_check(&a->heap, err);
}
