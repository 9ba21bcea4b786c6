/* SPDX-License-Identifier: MIT */
/* The slow half of the free set: growth, backward steps, unmapped blocks. */
#include "memory/free_set.h"

bool mp_free_grow(struct mp_free_bin *bin)
{
    const uint32_t cap = bin->cap ? bin->cap * 2 : 4;
    struct mp_free_entry *entries = mp_realloc(bin->entries, cap * sizeof(*entries));
    if (!entries)
        return false;
    bin->entries = entries;
    bin->cap = cap;
    return true;
}

struct mp_free_place mp_free_previous(const struct mp_free_set *set, struct mp_free_place place)
{
    uint32_t bin = place.block ? place.bin : MP_FREE_SET_BINS;
    if (place.block && place.index + 1 < set->bins[bin].n) {
        place.block = set->bins[bin].entries[++place.index].block;
        return place;
    }
    while (bin-- > 0) {
        const struct mp_free_bin *b = &set->bins[bin];
        if (b->n)
            return (struct mp_free_place){bin, 0, b->entries[0].block};
    }
    return (struct mp_free_place){0, 0, NULL};
}

struct mp_free_set *mp_free_set_new(void)
{
    struct mp_free_set *set = mp_malloc(sizeof(*set));
    if (set)
        *set = (struct mp_free_set){0};
    return set;
}

void mp_free_set_free(struct mp_free_set *set)
{
    if (!set)
        return;
    for (size_t i = 0; i < MP_FREE_SET_BINS; i++)
        free(set->bins[i].entries);
    free(set->unmapped);
    free(set);
}

bool mp_unmapped_insert(struct mp_free_set *set, struct mp_block *block)
{
    if (set->n_unmapped == set->cap_unmapped) {
        const uint32_t cap = set->cap_unmapped ? set->cap_unmapped * 2 : 4;
        struct mp_block **list = mp_realloc(set->unmapped, cap * sizeof(struct mp_block *));
        if (!list)
            return false;
        set->unmapped = list;
        set->cap_unmapped = cap;
    }
    uint32_t i = set->n_unmapped++;
    for (; i > 0 && set->unmapped[i - 1]->address > block->address; i--)
        set->unmapped[i] = set->unmapped[i - 1];
    set->unmapped[i] = block;
    return true;
}

void mp_unmapped_remove(struct mp_free_set *set, const struct mp_block *block)
{
    uint32_t i = 0;
    while (set->unmapped[i] != block)
        i++;
    set->n_unmapped--;
    for (; i < set->n_unmapped; i++)
        set->unmapped[i] = set->unmapped[i + 1];
}
