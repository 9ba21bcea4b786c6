/* SPDX-License-Identifier: MIT */
/*
 * Histories: storage, choice of reader, and what the recording leaves out.
 *
 * PyTorch records what it asks of the card, not why. A run of segment_free entries is
 *
 *     … free_completed, segment_free segment_free, mark …
 *                             no allocation waits: empty_cache()
 *     … free_completed, segment_free segment_free, segment_alloc alloc …
 *                             a retry, garbage collection, or empty_cache()
 *
 * In the second form the cap decides when it is known: would the allocation have passed it, the
 * replay will free by itself. When it is not known, the card may have been full: that is assumed if
 * the allocation would have taken more than was ever reserved, and marked so that the replay fails
 * that cudaMalloc once. Everything else is empty_cache().
 */
#include "memory/history.h"

#include "base/arena.h"
#include "memory/snapshot.h"
#include "memory/source.h"
#include "memory/trace.h"

/* ---- storage ---- */

static bool grow(void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    const size_t grown = *cap ? *cap * 2 : 256;
    if (grown > SIZE_MAX / size)
        return false;
    void *p = mp_realloc(*items, grown * size);
    if (!p)
        return false;
    *items = p;
    *cap = grown;
    return true;
}

/* Streams are few: the index of a handle by search, latest first. */
static bool stream_index(struct mp_history *h, uint64_t handle, uint32_t *index)
{
    for (size_t i = h->n_streams; i-- > 0;) {
        if (h->streams[i] == handle) {
            *index = (uint32_t)i;
            return true;
        }
    }
    void *items = h->streams;
    if (!grow(&items, h->n_streams, &h->cap_streams, sizeof(*h->streams)))
        return false;
    h->streams = items;
    *index = (uint32_t)h->n_streams;
    h->streams[h->n_streams++] = handle;
    return true;
}

bool mp_history_add(struct mp_history *h, struct mp_history_entry entry, uint64_t stream)
{
    void *items = h->entries;
    if (!grow(&items, h->n_entries, &h->cap_entries, sizeof(entry)))
        return false;
    h->entries = items;
    if (!stream_index(h, stream, &entry.stream))
        return false;
    h->entries[h->n_entries++] = entry;
    return true;
}

bool mp_history_add_mark(struct mp_history *h, const char *label, size_t length)
{
    void *items = h->labels;
    char *copy = mp_malloc(length + 1);
    if (!copy || !grow(&items, h->n_labels, &h->cap_labels, sizeof(char *))) {
        free(copy);
        return false;
    }
    memcpy(copy, label, length);
    copy[length] = '\0';
    h->labels = items;
    h->labels[h->n_labels++] = copy;
    return mp_history_add(
        h, (struct mp_history_entry){.action = MP_HISTORY_MARK, .id = (uint32_t)(h->n_labels - 1)},
        h->n_streams ? h->streams[0] : 0);
}

bool mp_history_add_segment(struct mp_history *h, struct mp_history_segment segment)
{
    void *items = h->segments;
    if (!grow(&items, h->n_segments, &h->cap_segments, sizeof(segment)))
        return false;
    h->segments = items;
    if (!stream_index(h, segment.stream_handle, &segment.stream))
        return false;
    h->segments[h->n_segments++] = segment;
    h->has_segments = true;
    return true;
}

bool mp_history_add_block(struct mp_history *h, struct mp_history_block block)
{
    void *items = h->blocks;
    if (!grow(&items, h->n_blocks, &h->cap_blocks, sizeof(block)))
        return false;
    h->blocks = items;
    h->blocks[h->n_blocks++] = block;
    return true;
}

void mp_history_release(struct mp_history *h)
{
    for (size_t i = 0; i < h->n_labels; i++)
        free(h->labels[i]);
    free(h->labels);
    free(h->entries);
    free(h->streams);
    free(h->segments);
    free(h->blocks);
    free(h->seed_segments);
    free(h->seed_blocks);
    free(h->conf);
    *h = (struct mp_history){0};
}

int mp_history_action_parse(const char *text, size_t length)
{
    for (int i = 0; i < MP_ALLOCATOR_ACTION_COUNT; i++) {
        const char *name = mp_allocator_action_text((enum mp_allocator_action)i);
        if (strlen(name) == length && memcmp(name, text, length) == 0)
            return i;
    }
    return -1;
}

/* ---- finishing ---- */

struct handle_order {
    uint64_t handle;
    uint32_t old;
};

static int by_handle(const void *a, const void *b)
{
    const uint64_t x = ((const struct handle_order *)a)->handle;
    const uint64_t y = ((const struct handle_order *)b)->handle;
    return x < y ? -1 : x > y;
}

/* The allocator orders free blocks by stream handle, so indices follow the handles. */
static bool order_streams(struct mp_history *h)
{
    if (h->n_streams < 2)
        return true;
    struct handle_order *order = mp_malloc(h->n_streams * sizeof(*order));
    uint32_t *now = mp_malloc(h->n_streams * sizeof(*now));
    if (order && now) {
        for (size_t i = 0; i < h->n_streams; i++)
            order[i] = (struct handle_order){h->streams[i], (uint32_t)i};
        qsort(order, h->n_streams, sizeof(*order), by_handle);
        for (size_t i = 0; i < h->n_streams; i++) {
            now[order[i].old] = (uint32_t)i;
            h->streams[i] = order[i].handle;
        }
        for (size_t i = 0; i < h->n_entries; i++)
            h->entries[i].stream = now[h->entries[i].stream];
        for (size_t i = 0; i < h->n_segments; i++)
            h->segments[i].stream = now[h->segments[i].stream];
    }
    const bool ok = order && now;
    free(order);
    free(now);
    return ok;
}

static bool takes(uint8_t action)
{
    return action == MP_ALLOCATOR_SEGMENT_ALLOC || action == MP_ALLOCATOR_SEGMENT_MAP;
}

static bool gives(uint8_t action)
{
    return action == MP_ALLOCATOR_SEGMENT_FREE || action == MP_ALLOCATOR_SEGMENT_UNMAP;
}

/* Reserved bytes before the first entry: what is there at the end minus what the entries brought.
 */
static uint64_t reserved_at_start(const struct mp_history *h)
{
    uint64_t now = 0;
    for (size_t i = 0; i < h->n_segments; i++)
        now += h->segments[i].bytes;
    uint64_t taken = 0, given = 0;
    for (size_t i = 0; i < h->n_entries; i++) {
        taken += takes(h->entries[i].action) ? h->entries[i].bytes : 0;
        given += gives(h->entries[i].action) ? h->entries[i].bytes : 0;
    }
    return now + given > taken ? now + given - taken : 0;
}

/* The request that a run of segment events belongs to: the alloc or oom right behind it, or none.
 */
static const struct mp_history_entry *waiting_request(const struct mp_history *h, size_t i)
{
    while (i < h->n_entries && (gives(h->entries[i].action) || takes(h->entries[i].action)))
        i++;
    if (i == h->n_entries)
        return NULL;
    const struct mp_history_entry *e = &h->entries[i];
    return e->action == MP_ALLOCATOR_ALLOC || e->action == MP_ALLOCATOR_OOM ? e : NULL;
}

/* Why did the allocator give memory back at entry i, with `reserved` bytes before it? */
static void infer_release(struct mp_history *h, size_t i, uint64_t reserved,
                          const struct mp_allocator_conf *conf)
{
    const struct mp_history_entry *request = waiting_request(h, i);
    size_t last = i;
    while (last + 1 < h->n_entries && gives(h->entries[last + 1].action))
        last++;
    const bool needs_memory =
        request && (request->action == MP_ALLOCATOR_OOM || takes(h->entries[last + 1].action));
    if (!needs_memory) {
        h->entries[i].flags |= MP_HISTORY_EMPTY_CACHE;
        return;
    }
    const uint64_t rounded = mp_allocator_round_size(conf, 0, MP_MAX(request->bytes, 1));
    const uint64_t wanted = reserved + mp_allocator_segment_size(conf, rounded);
    const bool collects =
        conf->garbage_collection_threshold > 0 && h->limit_bytes &&
        (double)reserved > conf->garbage_collection_threshold * (double)h->limit_bytes - 1;
    if (request->action == MP_ALLOCATOR_OOM || collects ||
        (h->limit_bytes && wanted > h->limit_bytes))
        return; /* the replay does it by itself */
    if (wanted > h->peak_reserved_bytes)
        h->entries[request - h->entries].flags |= MP_HISTORY_RETRY;
    else
        h->entries[i].flags |= MP_HISTORY_EMPTY_CACHE;
}

enum memplan_status mp_history_finish(struct mp_history *h, struct memplan_error *err)
{
    struct mp_allocator_conf conf;
    if (h->n_streams > UINT16_MAX)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "more than %u streams", UINT16_MAX);
    if (h->n_entries >= MP_HISTORY_NO_ID)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "more than 2^32 events");
    if (!order_streams(h) || !mp_history_find_start(h))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    if (mp_allocator_conf_parse(h->conf, 0, &conf, NULL) != MEMPLAN_STATUS_OK)
        mp_allocator_conf_init(&conf, 0);

    uint64_t reserved = reserved_at_start(h);
    h->peak_reserved_bytes = reserved;
    for (size_t i = 0; i < h->n_entries; i++) {
        const struct mp_history_entry *e = &h->entries[i];
        if (takes(e->action))
            reserved += e->bytes;
        else if (gives(e->action))
            reserved -= MP_MIN(reserved, e->bytes);
        else if (e->action == MP_ALLOCATOR_OOM && h->n_ooms++ == 0)
            h->capacity_bytes = reserved + e->address;
        h->peak_reserved_bytes = MP_MAX(h->peak_reserved_bytes, reserved);
    }
    reserved = reserved_at_start(h);
    for (size_t i = 0; i < h->n_entries; i++) {
        const struct mp_history_entry *e = &h->entries[i];
        if (gives(e->action) && (i == 0 || !gives(h->entries[i - 1].action)))
            infer_release(h, i, reserved, &conf);
        if (takes(e->action))
            reserved += e->bytes;
        else if (gives(e->action))
            reserved -= MP_MIN(reserved, e->bytes);
    }
    return MEMPLAN_STATUS_OK;
}

/* ---- reading ---- */

static enum memplan_status read_source(struct mp_history *h, struct mp_source *source, int device,
                                       struct memplan_error *err)
{
    enum memplan_status status = MEMPLAN_STATUS_OK;
    const int first = mp_source_peek(source);
    if (first < 0 && source->failed)
        status = MEMPLAN_STATUS_IO;
    else if (first < 0)
        status = mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: empty file", source->origin);
    else if (first == 0x80)
        status = mp_snapshot_read_pickle(source, device, h, err);
    else if (first == '{')
        status = mp_snapshot_read_json(source, device, h, err);
    else
        status = mp_trace_read(source, h, err);
    if (status == MEMPLAN_STATUS_OK && h->n_entries == 0 && !h->has_segments)
        status = mp_error_set(err, MEMPLAN_STATUS_INPUT,
                              "%s: no allocator events; record with "
                              "torch.cuda.memory._record_memory_history()",
                              source->origin);
    if (status == MEMPLAN_STATUS_OK)
        status = mp_history_finish(h, err);
    if (status != MEMPLAN_STATUS_OK)
        mp_history_release(h);
    return status;
}

enum memplan_status mp_history_read(struct mp_history *h, const char *path, int device,
                                    struct memplan_error *err)
{
    struct memplan_error own = {0};
    struct mp_reader *reader = mp_reader_open(path, &own);
    if (!reader) /* a file that the user named: bad input, not a failure of the world */
        return mp_error_set(err,
                            own.status == MEMPLAN_STATUS_IO ? MEMPLAN_STATUS_INPUT : own.status,
                            "%s", own.text);
    struct mp_source *source = mp_malloc(sizeof(*source));
    enum memplan_status status = MEMPLAN_STATUS_NOMEM;
    if (source) {
        mp_source_init_reader(source, path, reader, err);
        status = read_source(h, source, device, err);
    } else {
        mp_error_set(err, status, "out of memory");
    }
    free(source);
    mp_reader_close(reader);
    return status;
}

enum memplan_status mp_history_parse(struct mp_history *h, const char *origin, const void *bytes,
                                     size_t length, int device, struct memplan_error *err)
{
    struct mp_source *source = mp_malloc(sizeof(*source));
    if (!source)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    mp_source_init_memory(source, origin, bytes, length, err);
    const enum memplan_status status = read_source(h, source, device, err);
    free(source);
    return status;
}
