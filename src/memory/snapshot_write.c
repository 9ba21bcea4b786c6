/* SPDX-License-Identifier: MIT */
/*
 * Writes a predicted history as PyTorch would have recorded it, so that its memory_viz page and
 * scripts made for snapshots can be used on a job that never ran.
 *
 * A stack, innermost frame first, is a list of dictionaries; it is written once and referred to by
 * every event that has the same innermost frame.
 */
#include "base/arena.h"
#include "memory/pickle.h"
#include "memory/snapshot.h"

struct written_frame {
    const struct mp_snapshot_frame *frame;
    uint32_t memo;
};

struct writing {
    const struct mp_snapshot *snapshot;
    struct mp_pickle_writer pickle;
    struct written_frame *frames; /* open addressing by address */
    size_t n_frames, cap_frames;
};

static struct written_frame *find_frame(struct written_frame *table, size_t cap,
                                        const struct mp_snapshot_frame *frame)
{
    size_t i = (size_t)((uintptr_t)frame * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (cap - 1);
    while (table[i].frame && table[i].frame != frame)
        i = (i + 1) & (cap - 1);
    return &table[i];
}

static bool grow_frames(struct writing *w)
{
    if (w->n_frames * 2 < w->cap_frames)
        return true;
    const size_t cap = w->cap_frames ? w->cap_frames * 2 : 64;
    struct written_frame *table = mp_malloc(cap * sizeof(*table));
    if (!table)
        return false;
    for (size_t i = 0; i < cap; i++)
        table[i] = (struct written_frame){NULL, 0};
    for (size_t i = 0; i < w->cap_frames; i++) {
        if (w->frames[i].frame)
            *find_frame(table, cap, w->frames[i].frame) = w->frames[i];
    }
    free(w->frames);
    w->frames = table;
    w->cap_frames = cap;
    return true;
}

static void write_int(struct writing *w, const char *key, uint64_t value)
{
    mp_pickle_string(&w->pickle, key);
    mp_pickle_int(&w->pickle, (int64_t)value);
}

static void write_text(struct writing *w, const char *key, const char *value)
{
    mp_pickle_string(&w->pickle, key);
    mp_pickle_string(&w->pickle, value);
}

static void write_bool(struct writing *w, const char *key, bool value)
{
    mp_pickle_string(&w->pickle, key);
    mp_pickle_bool(&w->pickle, value);
}

/* 'frames': the stack; an empty list when there is none. */
static void write_frames(struct writing *w, const struct mp_snapshot_frame *frame)
{
    mp_pickle_string(&w->pickle, "frames");
    if (frame) {
        if (!grow_frames(w)) {
            w->pickle.failed = true;
            return;
        }
        const struct written_frame *known = find_frame(w->frames, w->cap_frames, frame);
        if (known->frame) {
            mp_pickle_again(&w->pickle, known->memo);
            return;
        }
    }
    const uint32_t memo = mp_pickle_begin_list(&w->pickle);
    for (const struct mp_snapshot_frame *f = frame; f; f = f->caller) {
        mp_pickle_begin_dict(&w->pickle);
        write_text(w, "name", f->name);
        write_text(w, "filename", f->filename);
        mp_pickle_string(&w->pickle, "line");
        mp_pickle_int(&w->pickle, f->line);
        mp_pickle_end_dict(&w->pickle);
    }
    mp_pickle_end_list(&w->pickle);
    if (frame) {
        *find_frame(w->frames, w->cap_frames, frame) = (struct written_frame){frame, memo};
        w->n_frames++;
    }
}

static void write_entry(struct writing *w, const struct mp_snapshot_entry *e)
{
    mp_pickle_begin_dict(&w->pickle);
    write_text(w, "action", mp_allocator_action_text(e->action));
    write_int(w, e->action == MP_ALLOCATOR_OOM ? "device_free" : "addr", e->address);
    write_int(w, "size", e->bytes);
    write_int(w, "stream", e->stream);
    write_int(w, "time_us", e->time_us);
    write_text(w, "compile_context", "N/A");
    write_text(w, "user_metadata", "");
    if (e->frame)
        write_frames(w, e->frame);
    mp_pickle_end_dict(&w->pickle);
}

static void write_block(struct writing *w, const struct mp_block *b)
{
    const struct mp_snapshot *s = w->snapshot;
    const bool pending = !b->allocated && b->event_count;
    mp_pickle_begin_dict(&w->pickle);
    write_int(w, "address", b->address);
    write_int(w, "size", b->size);
    write_int(w, "requested_size", b->requested_bytes);
    write_text(w, "state",
               b->allocated ? "active_allocated"
               : pending    ? "active_pending_free"
                            : "inactive");
    write_frames(w, b->allocated && s->frame_of ? s->frame_of(s->context, b->client) : NULL);
    mp_pickle_end_dict(&w->pickle);
}

static bool write_segment(void *context, const struct mp_block *first, uint64_t bytes)
{
    struct writing *w = context;
    uint64_t allocated = 0, active = 0, requested = 0;
    for (const struct mp_block *b = first; b && b->address < first->address + bytes; b = b->next) {
        const bool in_use = b->allocated || b->event_count;
        allocated += b->allocated ? b->size : 0;
        active += in_use ? b->size : 0;
        requested += in_use ? b->requested_bytes : 0;
    }
    mp_pickle_begin_dict(&w->pickle);
    write_int(w, "device", (uint64_t)w->snapshot->device);
    write_int(w, "address", first->address);
    write_int(w, "total_size", bytes);
    write_int(w, "allocated_size", allocated);
    write_int(w, "active_size", active);
    write_int(w, "requested_size", requested);
    write_int(w, "stream", first->stream);
    write_text(w, "segment_type", first->small ? "small" : "large");
    mp_pickle_string(&w->pickle, "segment_pool_id");
    mp_pickle_pair(&w->pickle, 0, 0);
    write_bool(w, "is_expandable", first->expandable);
    write_frames(w, NULL);
    mp_pickle_string(&w->pickle, "blocks");
    mp_pickle_begin_list(&w->pickle);
    for (const struct mp_block *b = first; b && b->address < first->address + bytes; b = b->next)
        write_block(w, b);
    mp_pickle_end_list(&w->pickle);
    mp_pickle_end_dict(&w->pickle);
    return true;
}

static void write_settings(struct writing *w)
{
    struct mp_allocator_conf conf;
    const char *text = w->snapshot->conf ? w->snapshot->conf : "";
    if (mp_allocator_conf_parse(text, 0, &conf, NULL) != MEMPLAN_STATUS_OK)
        mp_allocator_conf_init(&conf, 0);
    mp_pickle_string(&w->pickle, "allocator_settings");
    mp_pickle_begin_dict(&w->pickle);
    write_text(w, "PYTORCH_CUDA_ALLOC_CONF", text);
    mp_pickle_string(&w->pickle, "max_split_size");
    mp_pickle_int(&w->pickle,
                  conf.max_split_bytes > INT64_MAX ? -1 : (int64_t)conf.max_split_bytes);
    mp_pickle_string(&w->pickle, "garbage_collection_threshold");
    mp_pickle_real(&w->pickle, conf.garbage_collection_threshold);
    write_bool(w, "expandable_segments", conf.expandable_segments);
    mp_pickle_end_dict(&w->pickle);
}

enum memplan_status mp_snapshot_write(const struct mp_snapshot *snapshot, struct mp_strbuf *out,
                                      struct memplan_error *err)
{
    struct writing w = {.snapshot = snapshot};
    mp_pickle_begin(&w.pickle, out);
    mp_pickle_begin_dict(&w.pickle);

    mp_pickle_string(&w.pickle, "segments");
    mp_pickle_begin_list(&w.pickle);
    if (snapshot->final &&
        mp_allocator_visit_segments(snapshot->final, write_segment, &w) != MEMPLAN_STATUS_OK)
        w.pickle.failed = true;
    mp_pickle_end_list(&w.pickle);

    mp_pickle_string(&w.pickle, "device_traces");
    mp_pickle_begin_list(&w.pickle);
    for (int device = 0; device <= snapshot->device; device++) {
        mp_pickle_begin_list(&w.pickle);
        for (size_t i = 0; device == snapshot->device && i < snapshot->n_entries; i++)
            write_entry(&w, &snapshot->entries[i]);
        mp_pickle_end_list(&w.pickle);
    }
    mp_pickle_end_list(&w.pickle);

    write_settings(&w);
    mp_pickle_string(&w.pickle, "external_annotations");
    mp_pickle_begin_list(&w.pickle);
    mp_pickle_end_list(&w.pickle);
    mp_pickle_end_dict(&w.pickle);

    free(w.frames);
    if (!mp_pickle_end(&w.pickle))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    return MEMPLAN_STATUS_OK;
}
