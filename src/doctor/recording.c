/* SPDX-License-Identifier: MIT */
/*
 * What a recorded allocation history shows: how the segments were filled when it ended, what
 * failed, and whether the floor of live memory, the least between two peaks, rises from one stretch
 * of the recording to the next.
 */
#include "doctor/recording.h"

#include "base/units.h"

#define STRETCHES 8

static const char *gib(struct mp_doctor_case *c, uint64_t bytes)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_bytes_format(&sb, bytes);
    const char *const text = mp_arena_strdup(c->arena, mp_strbuf_text(&sb));
    mp_strbuf_release(&sb);
    return text != NULL ? text : "?";
}

static void read_segments(struct mp_doctor_recording *r, const struct mp_history *history)
{
    for (size_t i = 0; i < history->n_segments; i++) {
        const struct mp_history_segment *const s = &history->segments[i];
        r->reserved_bytes += s->bytes;
        for (size_t k = 0; k < s->n_blocks; k++) {
            const struct mp_history_block *const b = &history->blocks[s->first_block + k];
            if (b->state == MP_HISTORY_INACTIVE) {
                r->unallocated_bytes += b->bytes;
                r->largest_free_bytes = MP_MAX(r->largest_free_bytes, b->bytes);
                if (s->n_blocks > 1) {
                    r->split_bytes += b->bytes;
                }
            } else {
                r->allocated_bytes += b->bytes;
            }
        }
    }
}

/* Least live bytes of each of STRETCHES equal parts of the recording, the first part left out: it
 * builds the job up. */
static void read_floors(struct mp_doctor_recording *r, const struct mp_history *history)
{
    int64_t live = 0, peak = 0;
    const size_t n = history->n_entries;
    for (size_t i = 0; i < STRETCHES; i++) {
        r->floor_bytes[i] = INT64_MAX;
    }
    for (size_t i = 0; i < n; i++) {
        const struct mp_history_entry *const e = &history->entries[i];
        if (e->action == MP_ALLOCATOR_ALLOC) {
            live += (int64_t)e->bytes;
        } else if (e->action == MP_ALLOCATOR_FREE_COMPLETED) {
            live -= (int64_t)e->bytes;
        }
        peak = MP_MAX(peak, live);
        const size_t stretch = MP_MIN(i * STRETCHES / n, (size_t)STRETCHES - 1);
        r->floor_bytes[stretch] = MP_MIN(r->floor_bytes[stretch], live);
    }
    r->peak_live_bytes = (uint64_t)peak;
    r->n_floors = n >= 64 * STRETCHES ? STRETCHES : 0;
}

static void read_failure(struct mp_doctor_recording *r, const struct mp_history *history)
{
    for (size_t i = history->n_entries; i-- > 0;) {
        const struct mp_history_entry *const e = &history->entries[i];
        if (e->action == MP_ALLOCATOR_OOM) {
            r->failed = true;
            r->failed_bytes = e->bytes;
            r->free_bytes = e->address; /* an oom entry carries what cudaMemGetInfo had free */
            return;
        }
    }
}

void mp_doctor_recording_read(struct mp_doctor_recording *r, const struct mp_history *history)
{
    *r = (struct mp_doctor_recording){.has_segments = history->has_segments,
                                      .peak_reserved_bytes = history->peak_reserved_bytes};
    read_segments(r, history);
    read_floors(r, history);
    read_failure(r, history);
}

/* The floor of every stretch from the second on is above the one before, and the last is well above
 * the second. */
static bool rises(const struct mp_doctor_recording *r)
{
    if (r->n_floors < STRETCHES) {
        return false;
    }
    for (size_t i = 2; i < r->n_floors; i++) {
        if (r->floor_bytes[i] <= r->floor_bytes[i - 1]) {
            return false;
        }
    }
    const int64_t growth = r->floor_bytes[r->n_floors - 1] - r->floor_bytes[1];
    return growth > (int64_t)(32 * MP_MIB);
}

void mp_evidence_recording(struct mp_doctor_case *c, const struct mp_doctor_recording *r)
{
    if (r->has_segments && r->reserved_bytes > 0) {
        const double share = (double)r->unallocated_bytes / (double)r->reserved_bytes;
        const bool fits = r->failed && r->unallocated_bytes >= r->failed_bytes;
        if (r->failed && fits && r->largest_free_bytes < r->failed_bytes && share >= 0.05) {
            mp_evidence_add(
                c, MP_CAUSE_FRAGMENTATION, MP_EVIDENCE_FIGURE, share >= 0.2 ? 7 : 4, 0,
                "the snapshot has %s free in segments, the largest piece is %s, the request was %s",
                gib(c, r->unallocated_bytes), gib(c, r->largest_free_bytes),
                gib(c, r->failed_bytes));
        } else if (r->failed && !fits) {
            mp_evidence_add(c, MP_CAUSE_FRAGMENTATION, MP_EVIDENCE_FIGURE, -4, 0,
                            "the snapshot has %s free in segments, less than the request of %s",
                            gib(c, r->unallocated_bytes), gib(c, r->failed_bytes));
        } else if (share >= 0.2) {
            mp_evidence_add(c, MP_CAUSE_FRAGMENTATION, MP_EVIDENCE_FIGURE, share >= 0.35 ? 5 : 3, 0,
                            "the snapshot has %s (%.0f %%) of its segments free",
                            gib(c, r->unallocated_bytes), 100 * share);
        }
    }
    if (rises(r)) {
        mp_evidence_add(
            c, MP_CAUSE_LEAK, MP_EVIDENCE_FIGURE, 7, 0,
            "the least live memory rises in every stretch of the recording, by %s in all",
            gib(c, (uint64_t)(r->floor_bytes[r->n_floors - 1] - r->floor_bytes[1])));
    } else if (r->n_floors == STRETCHES) {
        mp_evidence_add(c, MP_CAUSE_LEAK, MP_EVIDENCE_FIGURE, -3, 0,
                        "live memory comes back to the same floor: nothing accumulates");
    }
}
