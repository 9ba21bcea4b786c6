/* SPDX-License-Identifier: MIT */
/*
 * What was there before the recording began.
 *
 *     before         entries …                              dump
 *     ─ ─ ─ ─ ─ ─ ─ ┬──────────────────────────────────────┬
 *                   │ free_requested X   (no alloc before) │ X lived at the start
 *                   │ segment_alloc S                      │ S was not there at the start
 *                   │ segment_free T     (no alloc before) │ T was there at the start
 *
 * A recording switched on late, or one whose ring buffer dropped its head, says in its free entries
 * and, for a snapshot, in the segments at its end what must have been there: the end state is wound
 * back through the entries. Not knowable are the sizes of blocks that were freed before the dump
 * (the rounded request is taken; in the large pool a rest of at most 1 MiB up to the next block
 * belongs to the block, because the allocator never cuts off so little), how old free blocks are,
 * and peaks that lie before.
 */
#include "base/arena.h"
#include "memory/history.h"

static bool add_seed(struct mp_history_seed **list, size_t *n, size_t *cap,
                     struct mp_history_seed seed)
{
    if (*n == *cap) {
        const size_t grown = *cap ? *cap * 2 : 64;
        struct mp_history_seed *p = mp_realloc(*list, grown * sizeof(*p));
        if (!p)
            return false;
        *list = p;
        *cap = grown;
    }
    (*list)[(*n)++] = seed;
    return true;
}

static int by_address(const void *a, const void *b)
{
    const uint64_t x = ((const struct mp_history_seed *)a)->address;
    const uint64_t y = ((const struct mp_history_seed *)b)->address;
    return x < y ? -1 : x > y;
}

static void sort_seeds(struct mp_history_seed *list, size_t n)
{
    if (n > 1)
        qsort(list, n, sizeof(*list), by_address);
}

/* ---- live blocks by address ---- */

struct live {
    uint64_t address; /* 0: empty */
    uint32_t id;
    bool freed; /* free_requested was seen, free_completed may follow */
};

struct live_table {
    struct live *slots;
    size_t n, cap;
};

static struct live *find_live(const struct live_table *t, uint64_t address)
{
    size_t i = (size_t)((address >> 9) * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (t->cap - 1);
    while (t->slots[i].address && t->slots[i].address != address)
        i = (i + 1) & (t->cap - 1);
    return &t->slots[i];
}

/* Entries stay in the table after a free: addresses repeat, so it does not grow with the history.
 */
static struct live *enter_live(struct live_table *t, uint64_t address)
{
    if (t->n * 2 >= t->cap) {
        struct live_table grown = {.n = t->n, .cap = t->cap ? t->cap * 2 : 1024};
        grown.slots = mp_malloc(grown.cap * sizeof(struct live));
        if (!grown.slots)
            return NULL;
        for (size_t i = 0; i < grown.cap; i++)
            grown.slots[i] = (struct live){0, MP_HISTORY_NO_ID, false};
        for (size_t i = 0; i < t->cap; i++) {
            if (t->slots[i].address)
                *find_live(&grown, t->slots[i].address) = t->slots[i];
        }
        free(t->slots);
        *t = grown;
    }
    struct live *l = find_live(t, address);
    if (!l->address) {
        *l = (struct live){address, MP_HISTORY_NO_ID, false};
        t->n++;
    }
    return l;
}

static bool is_free(uint8_t action)
{
    return action == MP_ALLOCATOR_FREE_REQUESTED || action == MP_ALLOCATOR_FREE_COMPLETED;
}

/* Number the allocations, give every free the number of what it frees; frees of older blocks make
 * seeds. */
static bool pair_entries(struct mp_history *h, struct live_table *live)
{
    for (size_t i = 0; i < h->n_entries; i++) {
        struct mp_history_entry *e = &h->entries[i];
        if (e->action != MP_ALLOCATOR_ALLOC && !is_free(e->action))
            continue;
        if (e->address == 0) { /* no address of a block: an allocation without a free */
            e->id = e->action == MP_ALLOCATOR_ALLOC ? h->n_allocs++ : MP_HISTORY_NO_ID;
            continue;
        }
        struct live *l = enter_live(live, e->address);
        if (!l)
            return false;
        if (e->action == MP_ALLOCATOR_ALLOC) {
            l->id = e->id = h->n_allocs++;
            l->freed = false;
            continue;
        }
        const bool completes = e->action == MP_ALLOCATOR_FREE_COMPLETED;
        if (l->id == MP_HISTORY_NO_ID || (l->freed && !completes)) {
            l->id = (uint32_t)h->n_seed_blocks | UINT32_C(1) << 31; /* numbered for good below */
            if (!add_seed(&h->seed_blocks, &h->n_seed_blocks, &h->cap_seed_blocks,
                          (struct mp_history_seed){.address = e->address,
                                                   .requested_bytes = e->bytes,
                                                   .stream = e->stream}))
                return false;
        }
        e->id = l->id;
        l->freed = true;
        if (completes)
            l->id = MP_HISTORY_NO_ID;
    }
    return true;
}

/* Seeds follow the allocations in numbering. */
static void number_seeds(struct mp_history *h)
{
    for (size_t i = 0; i < h->n_entries; i++) {
        struct mp_history_entry *e = &h->entries[i];
        if (is_free(e->action) && e->id != MP_HISTORY_NO_ID && e->id >> 31)
            e->id = h->n_allocs + (e->id & 0x7fffffff);
    }
    for (size_t i = 0; i < h->n_seed_blocks; i++)
        h->seed_blocks[i].id = h->n_allocs + (uint32_t)i;
}

/* Blocks in use at the dump that no entry allocated lived at the start, too; their size is known.
 */
static bool add_survivors(struct mp_history *h, const struct live_table *live)
{
    for (size_t s = 0; s < h->n_segments; s++) {
        for (size_t i = 0; i < h->segments[s].n_blocks; i++) {
            const struct mp_history_block *b = &h->blocks[h->segments[s].first_block + i];
            if (b->state == MP_HISTORY_INACTIVE)
                continue;
            const struct live *l = live->cap ? find_live(live, b->address) : NULL;
            if (l && l->address)
                continue; /* its last allocation is in the recording, or it is freed there */
            if (!add_seed(&h->seed_blocks, &h->n_seed_blocks, &h->cap_seed_blocks,
                          (struct mp_history_seed){
                              .address = b->address,
                              .bytes = b->bytes,
                              .requested_bytes = b->requested_bytes,
                              .stream = h->segments[s].stream,
                              .id = h->n_allocs + (uint32_t)h->n_seed_blocks,
                          }))
                return false;
        }
    }
    return true;
}

/* ---- segments, wound back ---- */

/* Take [address, address + bytes) out of the list of ranges. */
static bool subtract(struct mp_history *h, uint64_t address, uint64_t bytes)
{
    const uint64_t end = address + bytes;
    for (size_t i = 0; i < h->n_seed_segments; i++) {
        struct mp_history_seed *s = &h->seed_segments[i];
        const uint64_t s_end = s->address + s->bytes;
        if (s_end <= address || s->address >= end)
            continue;
        struct mp_history_seed rest = *s;
        s->bytes = s->address < address ? address - s->address : 0;
        if (s_end > end) {
            rest.address = end;
            rest.bytes = s_end - end;
            if (s->bytes == 0)
                *s = rest;
            else if (!add_seed(&h->seed_segments, &h->n_seed_segments, &h->cap_seed_segments, rest))
                return false;
        } else if (s->bytes == 0) {
            *s = h->seed_segments[--h->n_seed_segments];
            i--;
        }
    }
    return true;
}

static bool wind_back(struct mp_history *h)
{
    for (size_t i = 0; i < h->n_segments; i++) {
        const struct mp_history_segment *s = &h->segments[i];
        if (!add_seed(&h->seed_segments, &h->n_seed_segments, &h->cap_seed_segments,
                      (struct mp_history_seed){.address = s->address,
                                               .bytes = s->bytes,
                                               .stream = s->stream,
                                               .small = s->small,
                                               .expandable = s->expandable}))
            return false;
    }
    for (size_t i = h->n_entries; i-- > 0;) {
        const struct mp_history_entry *e = &h->entries[i];
        if (e->bytes == 0 || e->bytes >> 60 || e->address >> 60)
            continue;
        if (e->action == MP_ALLOCATOR_SEGMENT_ALLOC || e->action == MP_ALLOCATOR_SEGMENT_MAP) {
            if (!subtract(h, e->address, e->bytes))
                return false;
        } else if (e->action == MP_ALLOCATOR_SEGMENT_FREE ||
                   e->action == MP_ALLOCATOR_SEGMENT_UNMAP) {
            if (!add_seed(&h->seed_segments, &h->n_seed_segments, &h->cap_seed_segments,
                          (struct mp_history_seed){.address = e->address,
                                                   .bytes = e->bytes,
                                                   .stream = e->stream,
                                                   .small = e->bytes == 2 * MP_MIB,
                                                   .expandable =
                                                       e->action == MP_ALLOCATOR_SEGMENT_UNMAP}))
                return false;
        }
    }
    return true;
}

/* Blocks outside every known segment cannot be placed: forget them, and say how many. */
static void drop_homeless(struct mp_history *h)
{
    size_t kept = 0, s = 0;
    sort_seeds(h->seed_blocks, h->n_seed_blocks);
    sort_seeds(h->seed_segments, h->n_seed_segments);
    uint64_t end = 0; /* of the block before */
    for (size_t i = 0; i < h->n_seed_blocks; i++) {
        struct mp_history_seed b = h->seed_blocks[i];
        while (s < h->n_seed_segments &&
               h->seed_segments[s].address + h->seed_segments[s].bytes <= b.address)
            s++;
        const struct mp_history_seed *home = s < h->n_seed_segments ? &h->seed_segments[s] : NULL;
        const uint64_t least = b.bytes ? b.bytes : MP_MAX(b.requested_bytes, UINT64_C(1));
        if (!home || b.address < MP_MAX(home->address, end) ||
            least > home->address + home->bytes - b.address) {
            h->n_unknown_frees++;
            continue;
        }
        end = b.address + least;
        h->seed_blocks[kept++] = b;
    }
    h->n_seed_blocks = kept;
}

bool mp_history_find_start(struct mp_history *h)
{
    struct live_table live = {0};
    bool ok = pair_entries(h, &live);
    if (ok) {
        number_seeds(h);
        ok = add_survivors(h, &live) && (!h->has_segments || wind_back(h));
    }
    free(live.slots);
    if (ok) {
        h->n_ids = h->n_allocs + (uint32_t)h->n_seed_blocks;
        drop_homeless(h);
    }
    return ok;
}
