/* SPDX-License-Identifier: MIT */
/*
 * Free blocks of one pool and stream in PyTorch's order: by size, then address
 * (BlockComparatorSize).
 *
 * The search runs millions of times a second, so the set is an array of bins: eight per power of
 * two, each a short array sorted downwards, and a bit per bin that is not empty.
 *
 *     want 3 MiB ──▶ bin of 3 MiB: last entry that fits ──none──▶ next set bit: its last entry
 *
 * Layers of a model leave many free blocks of one size, and the lowest is taken first and soon
 * freed again: at the end of a falling array that moves nothing. Entries carry size and address, so
 * that a search does not touch the blocks. Private to the allocator.
 */
#ifndef MP_FREE_SET_H
#define MP_FREE_SET_H

#include "base/arena.h"
#include "memory/allocator.h"

#define MP_FREE_SET_BINS 512
#define MP_FREE_SET_SCAN 32 /* up to here a bin is searched from its end, above by halves */
#define MP_FREE_SET_WORDS (MP_FREE_SET_BINS / 64)

struct mp_free_entry {
    uint64_t size, address;
    struct mp_block *block;
};

struct mp_free_bin {
    struct mp_free_entry *entries; /* falling size, then address */
    uint32_t n, cap;
};

struct mp_free_set {
    uint64_t occupied[MP_FREE_SET_WORDS];
    struct mp_free_bin bins[MP_FREE_SET_BINS];
    struct mp_block **unmapped; /* expandable segments: blocks without memory, by address */
    uint32_t n_unmapped, cap_unmapped;
};

/* A place in the set; block NULL is the end. */
struct mp_free_place {
    uint32_t bin, index;
    struct mp_block *block;
};

/* Bins grow with size: 512-byte steps up to 8 KiB, then eighths of a power of two. */
static inline uint32_t mp_free_bin_of(uint64_t size)
{
    const uint64_t units = size >> 9;
    if (units < 8)
        return (uint32_t)units;
    const unsigned log2 = 63u - (unsigned)__builtin_clzll(units);
    return (log2 - 2) * 8 + (uint32_t)((units >> (log2 - 3)) & 7);
}

static inline bool mp_free_is_below(const struct mp_free_entry *e, uint64_t size, uint64_t address)
{
    return e->size < size || (e->size == size && e->address < address);
}

/* How many entries are (size, address) or above: the last of them is the smallest that is. */
static inline uint32_t mp_free_count_from(const struct mp_free_bin *bin, uint64_t size,
                                          uint64_t address)
{
    const struct mp_free_entry *e = bin->entries;
    uint32_t n = bin->n;
    if (n > MP_FREE_SET_SCAN) {
        uint32_t low = 0;
        while (low < n) {
            const uint32_t middle = low + (n - low) / 2;
            if (mp_free_is_below(&e[middle], size, address))
                n = middle;
            else
                low = middle + 1;
        }
        return n;
    }
    while (n > 0 && mp_free_is_below(&e[n - 1], size, address))
        n--;
    return n;
}

/* Smallest entry of the first occupied bin from `bin` on. */
static inline struct mp_free_place mp_free_first_from(const struct mp_free_set *set, uint32_t bin)
{
    if (bin < MP_FREE_SET_BINS) {
        uint32_t word = bin / 64;
        uint64_t bits = set->occupied[word] & (~UINT64_C(0) << (bin % 64));
        for (;;) {
            if (bits) {
                bin = word * 64 + (uint32_t)__builtin_ctzll(bits);
                const uint32_t last = set->bins[bin].n - 1;
                return (struct mp_free_place){bin, last, set->bins[bin].entries[last].block};
            }
            if (++word == MP_FREE_SET_WORDS)
                break;
            bits = set->occupied[word];
        }
    }
    return (struct mp_free_place){0, 0, NULL};
}

/* The smallest block of at least size bytes whose address is at least address, if its size is
 * equal. */
static inline struct mp_free_place mp_free_find_from(const struct mp_free_set *set, uint32_t bin,
                                                     uint64_t size, uint64_t address)
{
    const struct mp_free_bin *b = &set->bins[bin];
    const uint32_t n = mp_free_count_from(b, size, address);
    if (n > 0)
        return (struct mp_free_place){bin, n - 1, b->entries[n - 1].block};
    return mp_free_first_from(set, bin + 1);
}

/* The smallest block of at least size bytes; the lowest address among equals. */
static inline struct mp_free_place mp_free_find(const struct mp_free_set *set, uint64_t size)
{
    return mp_free_find_from(set, mp_free_bin_of(size), size, 0);
}

static inline struct mp_free_place mp_free_next(const struct mp_free_set *set,
                                                struct mp_free_place place)
{
    if (place.index > 0) {
        const uint32_t index = place.index - 1;
        return (struct mp_free_place){place.bin, index, set->bins[place.bin].entries[index].block};
    }
    return mp_free_first_from(set, place.bin + 1);
}

static inline void mp_free_remove_at(struct mp_free_set *set, uint32_t bin, uint32_t index)
{
    struct mp_free_bin *b = &set->bins[bin];
    b->n--;
    for (uint32_t i = index; i < b->n; i++)
        b->entries[i] = b->entries[i + 1];
    if (!b->n)
        set->occupied[bin / 64] &= ~(UINT64_C(1) << (bin % 64));
}

/* Where block stands in its bin. Recorded addresses may repeat, two blocks may be equal in both. */
static inline uint32_t mp_free_index(const struct mp_free_bin *bin, const struct mp_block *block)
{
    uint32_t i = bin->n;
    if (i > MP_FREE_SET_SCAN)
        i = mp_free_count_from(bin, block->size, block->address);
    while (bin->entries[--i].block != block)
        ;
    return i;
}

static inline struct mp_free_place mp_free_place_of(const struct mp_free_set *set, struct mp_block *block)
{
    const uint32_t bin = block->bin;
    return (struct mp_free_place){bin, mp_free_index(&set->bins[bin], block), block};
}

static inline void mp_free_remove(struct mp_free_set *set, struct mp_block *block)
{
    const struct mp_free_place place = mp_free_place_of(set, block);
    mp_free_remove_at(set, place.bin, place.index);
}

/* false when memory is exhausted */
bool mp_free_grow(struct mp_free_bin *bin);

static inline bool mp_free_insert(struct mp_free_set *set, struct mp_block *block)
{
    const uint32_t bin = mp_free_bin_of(block->size);
    struct mp_free_bin *b = &set->bins[bin];
    if (b->n == b->cap && !mp_free_grow(b))
        return false;
    const struct mp_free_entry entry = {block->size, block->address, block};
    block->bin = (uint16_t)bin;
    uint32_t i = b->n++;
    for (; i > 0 && mp_free_is_below(&b->entries[i - 1], entry.size, entry.address); i--)
        b->entries[i] = b->entries[i - 1];
    b->entries[i] = entry;
    set->occupied[bin / 64] |= UINT64_C(1) << (bin % 64);
    return true;
}

/*
 * The block at place makes room for one that it contains, or that contains it. Most blocks are cut from a much larger one, or merge
 * with it again: the entry stays where it is.
 */
static inline bool mp_free_replace(struct mp_free_set *set, struct mp_free_place place, struct mp_block *block)
{
    struct mp_free_bin *b = &set->bins[place.bin];
    struct mp_free_entry *e = &b->entries[place.index];
    const uint64_t size = block->size, address = block->address;
    if (mp_free_bin_of(size) == place.bin && (place.index + 1 == b->n || mp_free_is_below(e + 1, size, address)) &&
        (place.index == 0 || !mp_free_is_below(e - 1, size, address))) {
        *e = (struct mp_free_entry){size, address, block};
        block->bin = (uint16_t)place.bin;
        return true;
    }
    mp_free_remove_at(set, place.bin, place.index);
    return mp_free_insert(set, block);
}

/* The entry before place (the last of all when place.block is NULL); block NULL when there is none.
 */
struct mp_free_place mp_free_previous(const struct mp_free_set *set, struct mp_free_place place);

struct mp_free_set *mp_free_set_new(void);
void mp_free_set_free(struct mp_free_set *set);

/* The ordered list of unmapped blocks. */
bool mp_unmapped_insert(struct mp_free_set *set, struct mp_block *block);
void mp_unmapped_remove(struct mp_free_set *set, const struct mp_block *block);

#endif
