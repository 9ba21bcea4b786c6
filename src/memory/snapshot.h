/* SPDX-License-Identifier: MIT */
/*
 * PyTorch's memory snapshots: what torch.cuda.memory._dump_snapshot() writes, its JSON form, and
 * predicted ones in the same format, for PyTorch's memory_viz page.
 */
#ifndef MP_SNAPSHOT_H
#define MP_SNAPSHOT_H

#include "memory/history.h"
#include "memory/source.h"

/** Fill *history with what concerns one device (-1: the first with events). mp_history_read calls
 * these. */
enum memplan_status mp_snapshot_read_pickle(struct mp_source *source, int device,
                                            struct mp_history *history, struct memplan_error *err);
enum memplan_status mp_snapshot_read_json(struct mp_source *source, int device,
                                          struct mp_history *history, struct memplan_error *err);

/* A stack frame, and the one that called it (NULL: the outermost). Frames are told apart by
 * address. */
struct mp_snapshot_frame {
    const char *name, *filename;
    int line;
    const struct mp_snapshot_frame *caller;
};

struct mp_snapshot_entry {
    enum mp_allocator_action action;
    uint64_t address, bytes; /* as in struct mp_allocator_note */
    uint64_t stream;         /* handle, 0: the default stream */
    uint64_t time_us;
    const struct mp_snapshot_frame *frame; /* innermost; may be NULL */
};

/* A history to be written. */
struct mp_snapshot {
    const struct mp_snapshot_entry *entries;
    size_t n_entries;
    const struct mp_allocator *final; /* its segments are written; NULL: none */
    const struct mp_snapshot_frame *(*frame_of)(void *context,
                                                uint32_t client); /* of live blocks; may be NULL */
    void *context;
    const char *conf; /* "" or NULL: defaults */
    int device;
};

/** Append the pickle to *out. NOMEM. */
enum memplan_status mp_snapshot_write(const struct mp_snapshot *snapshot, struct mp_strbuf *out,
                                      struct memplan_error *err);

#endif
