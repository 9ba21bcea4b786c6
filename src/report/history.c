/* SPDX-License-Identifier: MIT */
/*
 * An observer notes every action of the allocator; afterwards each is given the frames of the storage it belongs to. A segment belongs
 * to the allocation that made the allocator ask for it, which is the next one in the history.
 */
#include "report/history.h"

#include "memory/snapshot.h"

struct recording {
    struct mp_allocator_note *notes; /* malloc'ed */
    size_t n, capacity;
    bool failed;
};

static void record(void *context, const struct mp_allocator_note *note)
{
    struct recording *r = context;
    if (r->failed)
        return;
    if (r->n == r->capacity) {
        const size_t wanted = r->capacity ? r->capacity * 2 : 4096;
        struct mp_allocator_note *notes = mp_realloc(r->notes, wanted * sizeof *notes);
        r->failed = !notes;
        if (!notes)
            return;
        r->notes = notes;
        r->capacity = wanted;
    }
    r->notes[r->n++] = *note;
}

/* ---- frames ---- */

struct frames {
    const struct mp_snapshot_frame **of_client; /* by storage id */
    uint32_t n_clients;
};

/* The phase, and below it the layer: one chain for all storages of the same layer in the same phase. */
static const struct mp_snapshot_frame *outer_frames(struct mp_arena *arena, const char *phase, int layer)
{
    struct mp_snapshot_frame *outer = mp_arena_alloc(arena, sizeof *outer), *inner;
    if (!outer)
        return NULL;
    *outer = (struct mp_snapshot_frame){phase, "phase", 0, NULL};
    if (layer < 0)
        return outer;
    inner = mp_arena_alloc(arena, sizeof *inner);
    if (!inner)
        return NULL;
    *inner = (struct mp_snapshot_frame){mp_arena_printf(arena, "layer %d", layer), "layer", layer, outer};
    return inner->name ? inner : NULL;
}

static enum memplan_status name_frames(const struct mp_program *p, struct mp_arena *arena, struct frames *frames, struct memplan_error *err)
{
    const struct mp_snapshot_frame *outer = NULL;
    const struct mp_snapshot_frame *last = NULL;
    uint32_t phase = 0;
    int layer = -2;
    frames->n_clients = p->n_allocs;
    frames->of_client = mp_arena_calloc(arena, p->n_allocs + 1, sizeof(struct mp_snapshot_frame *));
    for (uint32_t i = 0; i < p->n_events && frames->of_client; i++) {
        const struct mp_event *e = &p->events[i];
        if (e->kind == MP_EVENT_MARK) {
            phase = e->id + 1;
            outer = NULL;
        }
        if (e->kind != MP_EVENT_ALLOC)
            continue;
        if (!outer || layer != e->layer) {
            layer = e->layer;
            last = NULL;
            outer = outer_frames(arena, phase < p->n_phases ? p->phases[phase].name : "end", layer);
        }
        if (outer && (!last || last->name != e->op || last->caller != outer)) {
            struct mp_snapshot_frame *frame = mp_arena_alloc(arena, sizeof *frame);
            if (frame)
                *frame = (struct mp_snapshot_frame){e->op[0] ? e->op : "memplan", "operation", 0, outer};
            last = frame;
        }
        if (!outer || !last)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while naming frames");
        frames->of_client[e->id] = last;
    }
    return frames->of_client ? MEMPLAN_STATUS_OK : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while naming frames");
}

static const struct mp_snapshot_frame *frame_of(void *context, uint32_t client)
{
    const struct frames *frames = context;
    return client <= frames->n_clients ? frames->of_client[client] : NULL;
}

/* ---- entries ---- */

static bool has_client(const struct mp_allocator_note *note)
{
    return note->action == MP_ALLOCATOR_ALLOC || note->action == MP_ALLOCATOR_FREE_REQUESTED || note->action == MP_ALLOCATOR_FREE_COMPLETED;
}

static struct mp_snapshot_entry *make_entries(const struct recording *r, struct frames *frames, struct mp_arena *arena)
{
    struct mp_snapshot_entry *entries = mp_arena_calloc(arena, r->n + 1, sizeof *entries);
    const struct mp_snapshot_frame *next = NULL;
    for (size_t i = r->n; entries && i-- > 0;) {
        const struct mp_allocator_note *note = &r->notes[i];
        if (has_client(note))
            next = frame_of(frames, note->client);
        entries[i] = (struct mp_snapshot_entry){note->action, note->address, note->bytes, note->stream, i, next};
    }
    return entries;
}

enum memplan_status mp_report_snapshot(const struct mp_run *run, struct mp_strbuf *out, struct memplan_error *err)
{
    struct recording r = {0};
    struct mp_evaluation e;
    struct frames frames = {0};
    const struct mp_evaluate_options options = {.observer = record, .observer_context = &r};
    enum memplan_status status = mp_evaluate(run, &options, &e, err);
    if (status) {
        free(r.notes);
        return status;
    }
    status = r.failed ? mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while recording the history")
                      : name_frames(&e.program, &e.arena, &frames, err);
    if (!status) {
        const struct mp_snapshot snapshot = {.entries = make_entries(&r, &frames, &e.arena), .n_entries = r.n, .final = e.allocator,
                                             .frame_of = frame_of, .context = &frames, .conf = run->allocator_conf};
        status = snapshot.entries ? mp_snapshot_write(&snapshot, out, err)
                                  : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing the history");
    }
    mp_evaluation_release(&e);
    free(r.notes);
    return status;
}
