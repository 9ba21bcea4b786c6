/* SPDX-License-Identifier: MIT */
/*
 * Reads snapshots.
 *
 *     {'segments': [{'device', 'address', 'total_size', 'stream', 'segment_type', 'is_expandable',
 *                    'blocks': [{'address', 'size', 'requested_size', 'state'}, …]}, …],
 *      'device_traces': [[{'action', 'addr', 'size', 'stream'}, …] for each device],
 *      'allocator_settings': {'PYTORCH_CUDA_ALLOC_CONF': …}}
 *
 * Both forms fill the same flat arrays (struct raw), from which the entries of one device become
 * the history. Keys that are not listed here are passed over, whatever release wrote them.
 */
#include "memory/snapshot.h"

#include <inttypes.h>

#include "base/arena.h"
#include "base/json.h"
#include "memory/pickle.h"

#define WORD_MAP(X)                                                                                \
    X(SEGMENTS, "segments")                                                                        \
    X(DEVICE_TRACES, "device_traces")                                                              \
    X(ALLOCATOR_SETTINGS, "allocator_settings")                                                    \
    X(CONF, "PYTORCH_CUDA_ALLOC_CONF")                                                             \
    X(ALLOC_CONF, "PYTORCH_ALLOC_CONF")                                                            \
    X(MAX_SPLIT_SIZE, "max_split_size")                                                            \
    X(GC_THRESHOLD, "garbage_collection_threshold")                                                \
    X(EXPANDABLE_SEGMENTS, "expandable_segments")                                                  \
    X(DEVICE, "device")                                                                            \
    X(ADDRESS, "address")                                                                          \
    X(TOTAL_SIZE, "total_size")                                                                    \
    X(STREAM, "stream")                                                                            \
    X(SEGMENT_TYPE, "segment_type")                                                                \
    X(IS_EXPANDABLE, "is_expandable")                                                              \
    X(SEGMENT_POOL_ID, "segment_pool_id")                                                          \
    X(BLOCKS, "blocks")                                                                            \
    X(SIZE, "size")                                                                                \
    X(REQUESTED_SIZE, "requested_size")                                                            \
    X(STATE, "state")                                                                              \
    X(HISTORY, "history")                                                                          \
    X(REAL_SIZE, "real_size")                                                                      \
    X(ACTION, "action")                                                                            \
    X(ADDR, "addr")                                                                                \
    X(DEVICE_FREE, "device_free")                                                                  \
    X(POOL_ID, "pool_id")                                                                          \
    X(SMALL, "small")                                                                              \
    X(LARGE, "large")                                                                              \
    X(INACTIVE, "inactive")                                                                        \
    X(ACTIVE_ALLOCATED, "active_allocated")                                                        \
    X(ACTIVE_PENDING_FREE, "active_pending_free")                                                  \
    X(ACTIVE_AWAITING_FREE, "active_awaiting_free")                                                \
    X(ALLOC, "alloc")                                                                              \
    X(FREE_REQUESTED, "free_requested")                                                            \
    X(FREE_COMPLETED, "free_completed")                                                            \
    X(SEGMENT_ALLOC, "segment_alloc")                                                              \
    X(SEGMENT_FREE, "segment_free")                                                                \
    X(SEGMENT_MAP, "segment_map")                                                                  \
    X(SEGMENT_UNMAP, "segment_unmap")                                                              \
    X(OOM, "oom")

enum word {
#define X(name, text) W_##name,
    WORD_MAP(X)
#undef X
        N_WORDS
};

static const char *const words[N_WORDS] = {
#define X(name, text) text,
    WORD_MAP(X)
#undef X
};

/* ---- what both forms are turned into ---- */

struct raw_entry {
    struct mp_history_entry entry;
    uint64_t stream;
};

struct raw {
    struct raw_entry *entries;
    size_t n_entries, cap_entries;
    struct mp_history_segment *segments;
    int *segment_devices;
    size_t n_segments, cap_segments, cap_devices;
    struct mp_history_block *blocks;
    size_t n_blocks, cap_blocks;
    struct {
        size_t first, count;
    } * traces; /* per device: runs of entries */
    size_t n_traces, cap_traces;
    uint64_t history_bytes; /* real_size that the last history entry gave */
};

static bool grow(void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    const size_t grown = *cap ? *cap * 2 : 256;
    void *p = grown > SIZE_MAX / size ? NULL : mp_realloc(*items, grown * size);
    if (!p)
        return false;
    *items = p;
    *cap = grown;
    return true;
}

static bool add_entry(struct raw *raw, struct raw_entry entry)
{
    void *items = raw->entries;
    if (!grow(&items, raw->n_entries, &raw->cap_entries, sizeof(entry)))
        return false;
    raw->entries = items;
    raw->entries[raw->n_entries++] = entry;
    return true;
}

static bool add_block(struct raw *raw, struct mp_history_block block)
{
    void *items = raw->blocks;
    if (!grow(&items, raw->n_blocks, &raw->cap_blocks, sizeof(block)))
        return false;
    raw->blocks = items;
    raw->blocks[raw->n_blocks++] = block;
    return true;
}

static bool add_segment(struct raw *raw, struct mp_history_segment segment, int device)
{
    void *segments = raw->segments, *devices = raw->segment_devices;
    if (!grow(&segments, raw->n_segments, &raw->cap_segments, sizeof(segment)))
        return false;
    raw->segments = segments;
    if (!grow(&devices, raw->n_segments, &raw->cap_devices, sizeof(int)))
        return false;
    raw->segment_devices = devices;
    raw->segments[raw->n_segments] = segment;
    raw->segment_devices[raw->n_segments++] = device;
    return true;
}

static bool add_trace(struct raw *raw, size_t first, size_t count)
{
    void *items = raw->traces;
    if (!grow(&items, raw->n_traces, &raw->cap_traces, sizeof(*raw->traces)))
        return false;
    raw->traces = items;
    raw->traces[raw->n_traces].first = first;
    raw->traces[raw->n_traces++].count = count;
    return true;
}

static void release_raw(struct raw *raw)
{
    free(raw->entries);
    free(raw->segments);
    free(raw->segment_devices);
    free(raw->blocks);
    free(raw->traces);
}

/* Blocks of one segment: addresses by summation where they are missing (2.0), sizes that fill it.
 */
static bool place_blocks(struct raw *raw, struct mp_history_segment *segment)
{
    uint64_t at = segment->address, sum = 0;
    for (size_t i = 0; i < segment->n_blocks; i++) {
        struct mp_history_block *b = &raw->blocks[segment->first_block + i];
        b->address = at;
        if (b->bytes > UINT64_MAX - at || !b->bytes)
            return false;
        at += b->bytes;
        sum += b->bytes;
    }
    return sum == segment->bytes;
}

static int state_of(uint32_t word)
{
    switch (word) {
    case W_INACTIVE: return MP_HISTORY_INACTIVE;
    case W_ACTIVE_ALLOCATED: return MP_HISTORY_ACTIVE;
    case W_ACTIVE_PENDING_FREE:
    case W_ACTIVE_AWAITING_FREE: return MP_HISTORY_PENDING;
    default: return -1;
    }
}

/* ---- a device's part becomes the history ---- */

static int choose_device(const struct raw *raw, int wanted)
{
    if (wanted >= 0)
        return wanted;
    for (size_t i = 0; i < raw->n_traces; i++) {
        if (raw->traces[i].count)
            return (int)i;
    }
    return raw->n_segments ? raw->segment_devices[0] : 0;
}

static bool copy_segments(const struct raw *raw, int device, struct mp_history *h)
{
    for (size_t i = 0; i < raw->n_segments; i++) {
        struct mp_history_segment segment = raw->segments[i];
        if (raw->segment_devices[i] != device)
            continue;
        const size_t first = h->n_blocks;
        for (size_t b = 0; b < segment.n_blocks; b++) {
            if (!mp_history_add_block(h, raw->blocks[segment.first_block + b]))
                return false;
        }
        segment.first_block = first;
        if (!mp_history_add_segment(h, segment))
            return false;
    }
    h->has_segments = true;
    return true;
}

static enum memplan_status to_history(const struct raw *raw, int wanted, const char *origin,
                                      struct mp_history *h, struct memplan_error *err)
{
    const int device = choose_device(raw, wanted);
    int n_devices = (int)MP_MIN(raw->n_traces, (size_t)1024);
    for (size_t i = 0; i < raw->n_segments; i++)
        n_devices = MP_MAX(n_devices, raw->segment_devices[i] + 1);
    if (wanted >= 0 && wanted >= n_devices)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: no device %d; it has %d", origin,
                            wanted, n_devices);
    h->device = device;
    h->n_devices = n_devices;
    bool ok = copy_segments(raw, device, h);
    if (ok && (size_t)device < raw->n_traces) {
        const size_t first = raw->traces[device].first;
        for (size_t i = 0; ok && i < raw->traces[device].count; i++)
            ok = mp_history_add(h, raw->entries[first + i].entry, raw->entries[first + i].stream);
    }
    return ok ? MEMPLAN_STATUS_OK
              : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", origin);
}

/* Settings as a conf string when only the parsed values were recorded. */
static char *conf_from_values(int64_t max_split, double gc, bool expandable)
{
    struct mp_strbuf conf = MP_STRBUF_INIT;
    mp_strbuf_addstr(&conf, "");
    if (max_split > 0)
        mp_strbuf_addf(&conf, "max_split_size_mb:%" PRId64, max_split / (int64_t)MP_MIB);
    if (gc > 0)
        mp_strbuf_addf(&conf, "%sgarbage_collection_threshold:%.17g", conf.len ? "," : "", gc);
    if (expandable)
        mp_strbuf_addf(&conf, "%sexpandable_segments:True", conf.len ? "," : "");
    return mp_strbuf_detach(&conf);
}

/* ---- pickle ---- */

/* What take() took. */
enum { TAKEN_ENTRY = 1, TAKEN_SEGMENT, TAKEN_BLOCK, TAKEN_HISTORY };

static uint64_t uint_of(const struct mp_pickle_dict *d, uint32_t word)
{
    const struct mp_pickle_value v = mp_pickle_get(d, word);
    return v.kind == MP_PICKLE_INT && v.as.integer > 0 ? (uint64_t)v.as.integer : 0;
}

static uint32_t word_of(const struct mp_pickle_dict *d, uint32_t word)
{
    const struct mp_pickle_value v = mp_pickle_get(d, word);
    return v.kind == MP_PICKLE_WORD ? (uint32_t)v.as.ref : MP_PICKLE_OTHER_WORD;
}

static bool bool_of(const struct mp_pickle_dict *d, uint32_t word)
{
    const struct mp_pickle_value v = mp_pickle_get(d, word);
    return v.kind == MP_PICKLE_BOOL && v.as.integer;
}

/* Private pools (CUDA graphs, MemPool) have free lists of their own: their streams get handles of
 * their own. */
static uint64_t handle_of(uint64_t stream, struct mp_pickle_value pool)
{
    if (pool.kind != MP_PICKLE_PAIR || pool.as.integer == 0)
        return stream;
    return stream ^ ((uint64_t)pool.as.integer * UINT64_C(0x9e3779b97f4a7c15) | UINT64_C(1) << 63);
}

static int take_entry(struct raw *raw, const struct mp_pickle_dict *d, uint64_t *index)
{
    const uint32_t action = word_of(d, W_ACTION);
    const int known =
        action < N_WORDS ? mp_history_action_parse(words[action], strlen(words[action])) : -1;
    if (known < 0)
        return 0; /* snapshot, annotate, and what later releases add */
    *index = raw->n_entries;
    const uint64_t address = uint_of(d, known == MP_ALLOCATOR_OOM ? W_DEVICE_FREE : W_ADDR);
    return add_entry(raw, (struct raw_entry){.entry = {.action = (uint8_t)known,
                                                       .address = address,
                                                       .bytes = uint_of(d, W_SIZE)},
                                             .stream = handle_of(uint_of(d, W_STREAM),
                                                                 mp_pickle_get(d, W_POOL_ID))})
               ? TAKEN_ENTRY
               : -1;
}

static int take_block(struct raw *raw, const struct mp_pickle *p, const struct mp_pickle_dict *d,
                      uint64_t *index)
{
    const int state = state_of(word_of(d, W_STATE));
    if (state < 0)
        return 0;
    uint64_t requested = uint_of(d, W_REQUESTED_SIZE);
    const struct mp_pickle_list *history = mp_pickle_list(p, mp_pickle_get(d, W_HISTORY));
    if (!requested && history && history->taken_kind == TAKEN_HISTORY)
        requested = raw->history_bytes;
    *index = raw->n_blocks;
    return add_block(raw, (struct mp_history_block){.bytes = uint_of(d, W_SIZE),
                                                    .requested_bytes = requested,
                                                    .state = (uint8_t)state})
               ? TAKEN_BLOCK
               : -1;
}

static int take_segment(struct raw *raw, const struct mp_pickle *p, const struct mp_pickle_dict *d,
                        uint64_t *index)
{
    struct mp_history_segment segment = {
        .address = uint_of(d, W_ADDRESS),
        .bytes = uint_of(d, W_TOTAL_SIZE),
        .stream_handle = handle_of(uint_of(d, W_STREAM), mp_pickle_get(d, W_SEGMENT_POOL_ID)),
        .small = word_of(d, W_SEGMENT_TYPE) == W_SMALL,
        .expandable = bool_of(d, W_IS_EXPANDABLE),
    };
    const struct mp_pickle_list *blocks = mp_pickle_list(p, mp_pickle_get(d, W_BLOCKS));
    if (blocks && blocks->taken_kind == TAKEN_BLOCK) {
        segment.first_block = (size_t)blocks->first;
        segment.n_blocks = (size_t)blocks->count;
    }
    if (!place_blocks(raw, &segment))
        return 0; /* not filled by its blocks: cannot be used as a state */
    const int device = (int)MP_MIN(uint_of(d, W_DEVICE), UINT64_C(1023));
    *index = raw->n_segments;
    return add_segment(raw, segment, device) ? TAKEN_SEGMENT : -1;
}

static int take(void *context, const struct mp_pickle *p, const struct mp_pickle_dict *d,
                uint64_t *index)
{
    struct raw *raw = context;
    if (mp_pickle_get(d, W_ACTION).kind == MP_PICKLE_WORD)
        return take_entry(raw, d, index);
    if (mp_pickle_get(d, W_STATE).kind == MP_PICKLE_WORD)
        return take_block(raw, p, d, index);
    if (mp_pickle_get(d, W_TOTAL_SIZE).kind == MP_PICKLE_INT)
        return take_segment(raw, p, d, index);
    if (mp_pickle_get(d, W_REAL_SIZE).kind == MP_PICKLE_INT) {
        raw->history_bytes = uint_of(d, W_REAL_SIZE);
        *index = 0;
        return TAKEN_HISTORY;
    }
    return 0;
}

static char *conf_of(const struct mp_pickle *p, const struct mp_pickle_dict *settings)
{
    const char *text = mp_pickle_text(p, mp_pickle_get(settings, W_CONF));
    if (text && *text) {
        struct mp_strbuf copy = MP_STRBUF_INIT;
        mp_strbuf_addstr(&copy, text);
        return mp_strbuf_detach(&copy);
    }
    const struct mp_pickle_value split = mp_pickle_get(settings, W_MAX_SPLIT_SIZE);
    const struct mp_pickle_value gc = mp_pickle_get(settings, W_GC_THRESHOLD);
    return conf_from_values(split.kind == MP_PICKLE_INT ? split.as.integer : -1,
                            gc.kind == MP_PICKLE_FLOAT ? gc.as.real : 0,
                            bool_of(settings, W_EXPANDABLE_SEGMENTS));
}

static bool collect_traces(struct raw *raw, const struct mp_pickle *p,
                           const struct mp_pickle_list *traces)
{
    for (size_t i = 0; traces && i < traces->n_lists; i++) {
        const struct mp_pickle_list *list = mp_pickle_list(p, traces->lists[i]);
        const bool taken = list && list->taken_kind == TAKEN_ENTRY;
        if (!add_trace(raw, taken ? (size_t)list->first : 0, taken ? (size_t)list->count : 0))
            return false;
    }
    return true;
}

enum memplan_status mp_snapshot_read_pickle(struct mp_source *source, int device,
                                            struct mp_history *history, struct memplan_error *err)
{
    struct raw raw = {0};
    const struct mp_pickle_reader reader = {
        .words = words, .n_words = N_WORDS, .text_word = W_CONF, .take = take, .context = &raw};
    enum memplan_status status = MEMPLAN_STATUS_INPUT;
    struct memplan_error own = {0};
    source->err = &own;
    struct mp_pickle *p = mp_pickle_read(&reader, source, &own);
    source->err = err;
    const struct mp_pickle_dict *top = p ? mp_pickle_dict(p, mp_pickle_top(p)) : NULL;
    const struct mp_pickle_list *traces =
        top ? mp_pickle_list(p, mp_pickle_get(top, W_DEVICE_TRACES)) : NULL;
    const struct mp_pickle_list *segments =
        top ? mp_pickle_list(p, mp_pickle_get(top, W_SEGMENTS)) : NULL;
    if (!p) {
        status = mp_error_set(err, own.status, "%s", own.text);
    } else if (!traces && !segments) {
        mp_error_set(err, status,
                     "%s: a pickle, but no memory snapshot: it has neither segments nor "
                     "device_traces; write one with torch.cuda.memory._dump_snapshot()",
                     source->origin);
    } else if (!collect_traces(&raw, p, traces)) {
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", source->origin);
    } else {
        const struct mp_pickle_dict *settings =
            mp_pickle_dict(p, mp_pickle_get(top, W_ALLOCATOR_SETTINGS));
        history->conf = settings ? conf_of(p, settings) : NULL;
        status = to_history(&raw, device, source->origin, history, err);
    }
    mp_pickle_free(p);
    release_raw(&raw);
    return status;
}

/* ---- JSON ---- */

/* A value of the wrong kind ends the reading with its place: taken for 0, it would be another history. */
struct json_reader {
    struct raw *raw;
    const char *origin;
    struct memplan_error *err;
    enum memplan_status status; /* once it is not OK, nothing more is read */
};

static const struct mp_value *json_get(const struct mp_value *v, uint32_t word)
{
    return mp_value_get(v, words[word]);
}

static void json_refuse(struct json_reader *r, const struct mp_value *at, const char *what, const char *wanted)
{
    if (!r->status)
        r->status = mp_error_set(r->err, MEMPLAN_STATUS_INPUT, "%s:%d:%d: %s is not %s", r->origin, at->line, at->column, what, wanted);
}

static void json_keep(struct json_reader *r, bool kept)
{
    if (!kept && !r->status)
        r->status = mp_error_set(r->err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", r->origin);
}

/* The member, or NULL: absent, null, or refused because it is of another kind. */
static const struct mp_value *json_member(struct json_reader *r, const struct mp_value *v, uint32_t word, enum mp_value_kind kind,
                                          const char *wanted)
{
    const struct mp_value *member = json_get(v, word);
    if (!member || member->kind == MP_NULL || member->kind == kind)
        return member && member->kind == kind ? member : NULL;
    json_refuse(r, member, words[word], wanted);
    return NULL;
}

static uint64_t json_uint(struct json_reader *r, const struct mp_value *v, uint32_t word)
{
    static const char *const wanted = "a whole number from 0";
    const struct mp_value *n = json_member(r, v, word, MP_INT, wanted);
    if (n && n->as.integer < 0)
        json_refuse(r, n, words[word], wanted);
    return n && n->as.integer > 0 ? (uint64_t)n->as.integer : 0;
}

static const char *json_text(struct json_reader *r, const struct mp_value *v, uint32_t word)
{
    const struct mp_value *s = json_member(r, v, word, MP_STRING, "a string");
    return s ? s->as.string.text : "";
}

static bool json_is_object(struct json_reader *r, const struct mp_value *v, const char *what)
{
    if (v->kind != MP_OBJECT)
        json_refuse(r, v, what, "an object");
    return v->kind == MP_OBJECT;
}

static uint64_t json_handle(struct json_reader *r, const struct mp_value *v, uint32_t pool_word)
{
    struct mp_pickle_value pool = {.kind = MP_PICKLE_OPAQUE};
    const struct mp_value *pair = json_member(r, v, pool_word, MP_ARRAY, "a pair of numbers");
    if (pair && pair->as.array.length == 2 && pair->as.array.items[0]->kind == MP_INT && pair->as.array.items[1]->kind == MP_INT) {
        pool.kind = MP_PICKLE_PAIR;
        pool.as.integer = (pair->as.array.items[0]->as.integer & 0xfffffff) << 28 |
                          (pair->as.array.items[1]->as.integer & 0xfffffff);
    } else if (pair) {
        json_refuse(r, pair, words[pool_word], "a pair of numbers");
    }
    return handle_of(json_uint(r, v, W_STREAM), pool);
}

static void json_entry(struct json_reader *r, const struct mp_value *v)
{
    if (!json_is_object(r, v, "an entry of device_traces"))
        return;
    const char *action = json_text(r, v, W_ACTION);
    const int known = mp_history_action_parse(action, strlen(action));
    if (known < 0)
        return;
    const uint64_t address = json_uint(r, v, known == MP_ALLOCATOR_OOM ? W_DEVICE_FREE : W_ADDR);
    json_keep(r, add_entry(r->raw, (struct raw_entry){.entry = {.action = (uint8_t)known,
                                                                .address = address,
                                                                .bytes = json_uint(r, v, W_SIZE)},
                                                      .stream = json_handle(r, v, W_POOL_ID)}));
}

static void json_traces(struct json_reader *r, const struct mp_value *top)
{
    const struct mp_value *traces = json_member(r, top, W_DEVICE_TRACES, MP_ARRAY, "a list");
    for (size_t d = 0; traces && d < traces->as.array.length && !r->status; d++) {
        const struct mp_value *list = traces->as.array.items[d];
        const size_t first = r->raw->n_entries;
        if (list->kind != MP_ARRAY)
            json_refuse(r, list, "an item of device_traces", "a list of entries");
        for (size_t i = 0; i < (list->kind == MP_ARRAY ? list->as.array.length : 0) && !r->status; i++)
            json_entry(r, list->as.array.items[i]);
        json_keep(r, add_trace(r->raw, first, r->raw->n_entries - first));
    }
}

static int json_state(const char *text)
{
    static const uint32_t states[] = {W_INACTIVE, W_ACTIVE_ALLOCATED, W_ACTIVE_PENDING_FREE,
                                      W_ACTIVE_AWAITING_FREE};
    for (size_t i = 0; i < MP_ARRAY_LEN(states); i++) {
        if (strcmp(text, words[states[i]]) == 0)
            return state_of(states[i]);
    }
    return -1;
}

static void json_blocks(struct json_reader *r, const struct mp_value *blocks, struct mp_history_segment *segment)
{
    segment->first_block = r->raw->n_blocks;
    for (size_t i = 0; blocks && i < blocks->as.array.length && !r->status; i++) {
        const struct mp_value *v = blocks->as.array.items[i];
        const int state = json_is_object(r, v, "a block") ? json_state(json_text(r, v, W_STATE)) : -1;
        if (state < 0)
            continue;
        json_keep(r, add_block(r->raw, (struct mp_history_block){.bytes = json_uint(r, v, W_SIZE),
                                                                 .requested_bytes = json_uint(r, v, W_REQUESTED_SIZE),
                                                                 .state = (uint8_t)state}));
    }
    segment->n_blocks = r->raw->n_blocks - segment->first_block;
}

static void json_segment(struct json_reader *r, const struct mp_value *v)
{
    if (!json_is_object(r, v, "a segment"))
        return;
    const struct mp_value *expandable = json_member(r, v, W_IS_EXPANDABLE, MP_BOOLEAN, "true or false");
    struct mp_history_segment segment = {
        .address = json_uint(r, v, W_ADDRESS),
        .bytes = json_uint(r, v, W_TOTAL_SIZE),
        .stream_handle = json_handle(r, v, W_SEGMENT_POOL_ID),
        .small = strcmp(json_text(r, v, W_SEGMENT_TYPE), words[W_SMALL]) == 0,
        .expandable = expandable && expandable->as.boolean,
    };
    json_blocks(r, json_member(r, v, W_BLOCKS, MP_ARRAY, "a list"), &segment);
    const int device = (int)MP_MIN(json_uint(r, v, W_DEVICE), UINT64_C(1023));
    if (!r->status && place_blocks(r->raw, &segment))
        json_keep(r, add_segment(r->raw, segment, device));
}

static void json_segments(struct json_reader *r, const struct mp_value *top)
{
    const struct mp_value *segments = json_member(r, top, W_SEGMENTS, MP_ARRAY, "a list");
    for (size_t i = 0; segments && i < segments->as.array.length && !r->status; i++)
        json_segment(r, segments->as.array.items[i]);
}

static char *json_conf(struct json_reader *r, const struct mp_value *settings)
{
    const char *text = json_text(r, settings, W_CONF);
    if (*text) {
        struct mp_strbuf copy = MP_STRBUF_INIT;
        mp_strbuf_addstr(&copy, text);
        return mp_strbuf_detach(&copy);
    }
    const struct mp_value *split = json_member(r, settings, W_MAX_SPLIT_SIZE, MP_INT, "a whole number");
    const struct mp_value *expandable = json_member(r, settings, W_EXPANDABLE_SEGMENTS, MP_BOOLEAN, "true or false");
    double gc = 0;
    mp_value_number(json_get(settings, W_GC_THRESHOLD), &gc);
    return conf_from_values(split ? split->as.integer : -1, gc, expandable && expandable->as.boolean);
}

enum memplan_status mp_snapshot_read_json(struct mp_source *source, int device,
                                          struct mp_history *history, struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    while (mp_source_fill(source)) {
        mp_strbuf_add(&text, source->at, (size_t)(source->end - source->at));
        source->at = source->end;
    }
    struct mp_arena arena;
    mp_arena_init(&arena);
    struct raw raw = {0};
    enum memplan_status status = MEMPLAN_STATUS_INPUT;
    const struct mp_value *top = NULL;
    if (source->failed)
        status = MEMPLAN_STATUS_IO;
    else if (text.failed)
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", source->origin);
    else
        top = mp_json_parse(&arena, source->origin, mp_strbuf_text(&text), text.len, err);
    if (top && !json_get(top, W_SEGMENTS) && !json_get(top, W_DEVICE_TRACES)) {
        mp_error_set(err, status,
                     "%s: no memory snapshot: it has neither segments nor device_traces",
                     source->origin);
    } else if (top) {
        struct json_reader reader = {.raw = &raw, .origin = source->origin, .err = err};
        const struct mp_value *settings = json_member(&reader, top, W_ALLOCATOR_SETTINGS, MP_OBJECT, "an object");
        history->conf = settings ? json_conf(&reader, settings) : NULL;
        json_segments(&reader, top);
        json_traces(&reader, top);
        status = reader.status ? reader.status : to_history(&raw, device, source->origin, history, err);
    }
    release_raw(&raw);
    mp_arena_release(&arena);
    mp_strbuf_release(&text);
    return status;
}
