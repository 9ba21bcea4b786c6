/* SPDX-License-Identifier: MIT */
/*
 * One pass over the entries. An array maps the number of an allocation to its block, so an event
 * costs little more than the allocator itself.
 *
 * A free that the recording completes later (another stream still used the block) is deferred here
 * too, until its free_completed or until the simulated allocator waits for all streams, whichever
 * comes first.
 */
#include "memory/replay.h"

#include "base/arena.h"

struct player {
    const struct mp_history *h;
    const struct mp_replay_options *o;
    struct mp_replay_result *r;
    struct mp_allocator *a;
    struct mp_block **blocks; /* by id; NULL: not live */
    /* By id: 1 + num_sync_all_streams when its free was deferred; 0: not deferred. */
    uint64_t *deferred_at;
    uint64_t *addresses;       /* recorded segment addresses */
    size_t next_segment_entry; /* as_recorded: where the next segment event is expected */
    size_t entry;
    uint64_t reserved_before; /* the request at hand */
};

/* ---- comparing with the recording ---- */

static void differ(struct player *p, size_t *counter)
{
    (*counter)++;
    if (p->r->differences.first_entry == SIZE_MAX)
        p->r->differences.first_entry = p->entry;
}

static bool is_card_action(uint8_t action)
{
    return action >= MP_ALLOCATOR_SEGMENT_ALLOC && action <= MP_ALLOCATOR_OOM;
}

static const struct mp_history_entry *next_expected(struct player *p)
{
    const struct mp_history *h = p->h;
    while (p->next_segment_entry < h->n_entries &&
           !is_card_action(h->entries[p->next_segment_entry].action))
        p->next_segment_entry++;
    return p->next_segment_entry < h->n_entries ? &h->entries[p->next_segment_entry] : NULL;
}

static void compare_note(void *context, const struct mp_allocator_note *note)
{
    struct player *p = context;
    const struct mp_history_entry *expected = next_expected(p);
    if (!expected) {
        differ(p, &p->r->differences.segments);
        return;
    }
    p->next_segment_entry++;
    if (expected->action != note->action || expected->bytes != note->bytes ||
        expected->stream != note->stream ||
        (note->action != MP_ALLOCATOR_OOM && expected->address != note->address))
        differ(p, &p->r->differences.segments);
}

/* ---- the starting state ---- */

/* Bytes of a seed block whose size was not recorded, with `room` up to what follows. */
static uint64_t seed_block_bytes(const struct player *p, const struct mp_history_seed *b,
                                 const struct mp_history_seed *segment, uint64_t room)
{
    if (b->bytes)
        return MP_MIN(b->bytes, room);
    const uint64_t rounded =
        mp_allocator_round_size(&p->o->conf, p->o->torch, MP_MAX(b->requested_bytes, UINT64_C(1)));
    if (rounded >= room)
        return room;
    return !segment->small && !segment->expandable && room - rounded <= MP_MIB ? room : rounded;
}

struct seeds {
    struct mp_seed_block *blocks;
    struct mp_block **out;
    size_t n, cap;
};

static bool add_block(struct seeds *s, int kind, uint64_t bytes, const struct mp_history_seed *b)
{
    if (bytes == 0)
        return true;
    if (s->n == s->cap) {
        const size_t cap = s->cap ? s->cap * 2 : 64;
        struct mp_seed_block *blocks = mp_realloc(s->blocks, cap * sizeof(*blocks));
        if (!blocks)
            return false;
        s->blocks = blocks;
        struct mp_block **out = mp_realloc(s->out, cap * sizeof(struct mp_block *));
        if (!out)
            return false;
        s->out = out;
        s->cap = cap;
    }
    struct mp_seed_block *block = &s->blocks[s->n++];
    *block = (struct mp_seed_block){.bytes = bytes};
    if (b) {
        block->kind = MP_SEED_ALLOCATED;
        block->requested_bytes = b->requested_bytes;
        block->client = b->id;
    } else {
        block->kind = kind == MP_SEED_UNMAPPED ? MP_SEED_UNMAPPED : MP_SEED_FREE;
    }
    return true;
}

/* The blocks of one segment or mapped range, the free ones between them included. *next runs over
 * all seed blocks. */
static bool add_range(const struct player *p, struct seeds *s, const struct mp_history_seed *range,
                      size_t *next)
{
    const struct mp_history *h = p->h;
    uint64_t at = range->address;
    const uint64_t end = range->address + range->bytes;
    for (; *next < h->n_seed_blocks && h->seed_blocks[*next].address < end; (*next)++) {
        const struct mp_history_seed *b = &h->seed_blocks[*next];
        const bool last = *next + 1 == h->n_seed_blocks || h->seed_blocks[*next + 1].address >= end;
        const uint64_t stop = last ? end : h->seed_blocks[*next + 1].address;
        if (b->address < at)
            continue; /* the block before it took the place */
        const uint64_t bytes = seed_block_bytes(p, b, range, stop - b->address);
        if (!add_block(s, MP_SEED_FREE, b->address - at, NULL) ||
            !add_block(s, MP_SEED_ALLOCATED, bytes, b))
            return false;
        at = b->address + bytes;
    }
    return add_block(s, MP_SEED_FREE, end - at, NULL);
}

static enum memplan_status plant(struct player *p, const struct seeds *s,
                                 const struct mp_history_seed *first, struct memplan_error *err)
{
    const struct mp_seed_segment segment = {
        .address = first->address,
        .stream = first->stream,
        .small = first->small,
        .expandable = first->expandable,
        .blocks = s->blocks,
        .n_blocks = s->n,
    };
    const enum memplan_status status = mp_allocator_seed(p->a, &segment, s->out, err);
    for (size_t i = 0; status == MEMPLAN_STATUS_OK && i < s->n; i++) {
        if (s->out[i])
            p->blocks[s->out[i]->client] = s->out[i];
    }
    return status;
}

/* Mapped ranges of one pool and stream belong to one address range, with unmapped pages between
 * them. */
static bool same_range(const struct mp_history_seed *a, const struct mp_history_seed *b)
{
    return a->expandable && b->expandable && a->stream == b->stream && a->small == b->small;
}

static enum memplan_status seed_state(struct player *p, struct memplan_error *err)
{
    const struct mp_history *h = p->h;
    struct seeds s = {0};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    size_t next = 0;
    for (size_t i = 0; i < h->n_seed_segments && status == MEMPLAN_STATUS_OK; i++) {
        const struct mp_history_seed *first = &h->seed_segments[i];
        s.n = 0;
        bool ok = add_range(p, &s, first, &next);
        while (ok && i + 1 < h->n_seed_segments && same_range(first, &h->seed_segments[i + 1])) {
            const struct mp_history_seed *before = &h->seed_segments[i++];
            const struct mp_history_seed *after = &h->seed_segments[i];
            ok = add_block(&s, MP_SEED_UNMAPPED, after->address - before->address - before->bytes,
                           NULL) &&
                 add_range(p, &s, after, &next);
        }
        status = ok ? plant(p, &s, first, err)
                    : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    }
    free(s.blocks);
    free(s.out);
    return status;
}

/* ---- events ---- */

/* The waste that a request met which needed new memory although so much was reserved. */
static void note_growth(struct player *p, uint64_t allocated_before)
{
    struct mp_replay_result *r = p->r;
    const uint64_t unusable = p->reserved_before - allocated_before;
    if (unusable > r->worst_unusable_bytes) {
        r->worst_unusable_bytes = unusable;
        r->worst_reserved_bytes = p->reserved_before;
    }
}

/* malloc, with the failures that the recording shows and no limit explains */
static struct mp_block *request(struct player *p, const struct mp_history_entry *e, uint32_t id)
{
    const bool forced =
        p->o->as_recorded &&
        (e->flags & MP_HISTORY_RETRY || (e->action == MP_ALLOCATOR_OOM && !p->o->limit_bytes));
    if (!forced)
        return mp_allocator_malloc(p->a, e->bytes, e->stream, id);
    /* a retry: too little for the first attempt, enough once anything was given back; an oom:
     * nothing at all */
    const uint64_t rounded = mp_allocator_round_size(&p->o->conf, p->o->torch, e->bytes);
    const uint64_t wanted = mp_allocator_segment_size(&p->o->conf, rounded);
    mp_allocator_set_capacity(
        p->a, e->action == MP_ALLOCATOR_OOM ? 1 : mp_allocator_device_bytes(p->a) + wanted - 1);
    struct mp_block *block = mp_allocator_malloc(p->a, e->bytes, e->stream, id);
    mp_allocator_set_capacity(p->a, p->o->capacity_bytes);
    return block;
}

/* false: the end, out of memory */
static bool play_alloc(struct player *p, const struct mp_history_entry *e)
{
    if (e->bytes == 0)
        return true; /* PyTorch asks for nothing then */
    struct mp_block *block = request(p, e, e->id);
    if (!block) {
        p->r->oom = true;
        p->r->oom_entry = p->entry;
        p->r->oom_info = *mp_allocator_oom(p->a);
        return false;
    }
    p->blocks[e->id] = block;
    p->deferred_at[e->id] = 0;
    if (p->o->as_recorded && block->address != e->address)
        differ(p, &p->r->differences.addresses);
    return true;
}

/* A recorded out-of-memory: it happens again, or the settings at hand survive it. */
static bool play_oom(struct player *p, const struct mp_history_entry *e)
{
    struct mp_block *block = e->bytes ? request(p, e, MP_HISTORY_NO_ID) : NULL;
    if (block) {
        mp_allocator_release(p->a, block);
        p->r->n_survived_ooms++;
        return true;
    }
    p->r->oom = true;
    p->r->oom_entry = p->entry;
    p->r->oom_info = *mp_allocator_oom(p->a);
    return p->o->as_recorded; /* the recorded program went on */
}

static void play_free_requested(struct player *p, size_t i, const struct mp_history_entry *e)
{
    struct mp_block *block = p->blocks[e->id];
    if (!block)
        return;
    const struct mp_history *h = p->h;
    const struct mp_history_entry *next = i + 1 < h->n_entries ? e + 1 : NULL;
    if (next && next->action == MP_ALLOCATOR_FREE_COMPLETED && next->id == e->id) {
        mp_allocator_release(p->a, block);
        p->blocks[e->id] = NULL;
        return;
    }
    mp_allocator_release_deferred(p->a, block);
    p->deferred_at[e->id] = 1 + mp_allocator_stats(p->a)->num_sync_all_streams;
}

static void play_free_completed(struct player *p, const struct mp_history_entry *e)
{
    struct mp_block *block = p->blocks[e->id];
    if (!block)
        return;
    p->blocks[e->id] = NULL;
    if (!p->deferred_at[e->id])
        mp_allocator_release(p->a, block); /* free_requested lies before the recording */
    else if (p->deferred_at[e->id] == 1 + mp_allocator_stats(p->a)->num_sync_all_streams)
        mp_allocator_complete_block(p->a, block);
    p->deferred_at[e->id] = 0;
}

/* false: the replay ends here */
static bool play_entry(struct player *p, size_t i)
{
    const struct mp_history_entry *e = &p->h->entries[i];
    p->entry = i;
    if (e->flags & MP_HISTORY_EMPTY_CACHE)
        mp_allocator_empty_cache(p->a);
    switch (e->action) {
    case MP_ALLOCATOR_ALLOC: return play_alloc(p, e);
    case MP_ALLOCATOR_OOM: return play_oom(p, e);
    case MP_ALLOCATOR_FREE_REQUESTED:
        if (e->id != MP_HISTORY_NO_ID)
            play_free_requested(p, i, e);
        return true;
    case MP_ALLOCATOR_FREE_COMPLETED:
        if (e->id != MP_HISTORY_NO_ID)
            play_free_completed(p, e);
        return true;
    default: return true;
    }
}

/* Allocated and reserved without building the whole of memory_stats. */
static void watch(void *context, const struct mp_allocator_note *note)
{
    struct player *p = context;
    if (p->o->as_recorded)
        compare_note(context, note);
    if (note->action != MP_ALLOCATOR_SEGMENT_ALLOC && note->action != MP_ALLOCATOR_SEGMENT_MAP)
        return;
    const struct mp_allocator_stats *s = mp_allocator_stats(p->a);
    p->reserved_before = s->reserved_bytes[MP_STAT_ALL].current - note->bytes;
    note_growth(p, s->allocated_bytes[MP_STAT_ALL].current);
}

static enum memplan_status play(struct player *p, struct memplan_error *err)
{
    const struct mp_history *h = p->h;
    uint64_t peak = 0, allocated = 0;
    for (size_t i = 0; i < h->n_entries; i++) {
        const bool more = play_entry(p, i);
        if (mp_allocator_failed(p->a))
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        if (!more)
            break;
        if (p->o->sample_every && i % p->o->sample_every == 0)
            p->o->sample(p->o->context, p->a, i);
        if (h->entries[i].action == MP_ALLOCATOR_ALLOC) {
            mp_allocator_current(p->a, &allocated, &p->reserved_before);
            if (allocated > peak) {
                peak = allocated;
                p->r->peak_moment_reserved_bytes = p->reserved_before;
            }
        }
    }
    if (p->o->sample_every)
        p->o->sample(p->o->context, p->a, h->n_entries);
    p->entry = h->n_entries;
    while (p->o->as_recorded && next_expected(p)) {
        p->next_segment_entry++;
        differ(p, &p->r->differences.segments);
    }
    return MEMPLAN_STATUS_OK;
}

/* Recorded addresses of what the card gave, in order. */
static size_t collect_addresses(struct player *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->h->n_entries; i++) {
        const struct mp_history_entry *e = &p->h->entries[i];
        if (e->action == MP_ALLOCATOR_SEGMENT_ALLOC || e->action == MP_ALLOCATOR_SEGMENT_MAP)
            p->addresses[n++] = e->address;
    }
    return n;
}

static bool prepare(struct player *p, struct memplan_error *err)
{
    const size_t n = (size_t)p->h->n_ids + 1;
    p->blocks = mp_malloc(n * sizeof(struct mp_block *));
    p->deferred_at = mp_malloc(n * sizeof(uint64_t));
    p->addresses = mp_malloc((p->h->n_entries + 1) * sizeof(uint64_t));
    if (!p->blocks || !p->deferred_at || !p->addresses) {
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        p->blocks[i] = NULL;
        p->deferred_at[i] = 0;
    }
    struct mp_allocator_options options = {
        .conf = p->o->conf,
        .torch = p->o->torch,
        .limit_bytes = p->o->limit_bytes,
        .capacity_bytes = p->o->capacity_bytes,
        .total_bytes = p->o->total_bytes,
    };
    if (p->o->as_recorded) {
        options.placement.kind = MP_PLACE_RECORDED;
        options.placement.recorded = p->addresses;
        options.placement.n_recorded = collect_addresses(p);
    }
    p->a = mp_allocator_new(&options, err);
    return p->a != NULL;
}

enum memplan_status mp_replay_run(const struct mp_history *history,
                                  const struct mp_replay_options *options,
                                  struct mp_replay_result *result, struct memplan_error *err)
{
    struct memplan_error own = {0};
    struct player p = {.h = history, .o = options, .r = result};
    *result = (struct mp_replay_result){.differences.first_entry = SIZE_MAX};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (!prepare(&p, &own))
        status = own.status;
    if (status == MEMPLAN_STATUS_OK)
        status = seed_state(&p, &own);
    if (status == MEMPLAN_STATUS_OK) {
        mp_allocator_observe_card(p.a, watch, &p);
        status = play(&p, &own);
        result->stats = *mp_allocator_stats(p.a);
    }
    if (status != MEMPLAN_STATUS_OK)
        mp_error_set(err, status, "%s", own.text);
    mp_allocator_free(p.a);
    free(p.blocks);
    free(p.deferred_at);
    free(p.addresses);
    return status;
}
