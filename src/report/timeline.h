/* SPDX-License-Identifier: MIT */
/*
 * The timeline of a job: live bytes by category after selected events, few enough to draw, and with every peak among them.
 *
 *     program ──replay──> state after each event ──thin──> samples (at most MP_TIMELINE_MAX_SAMPLES)
 *
 * The events of each phase are cut into stretches; of a stretch the moments of most and of least allocated bytes and of most reserved
 * bytes are kept, and of a phase its end. So the highest sample of a phase is the phase's peak, whatever was left out.
 */
#ifndef MP_TIMELINE_H
#define MP_TIMELINE_H

#include "plan/evaluate.h"

#define MP_TIMELINE_MAX_SAMPLES 3000
#define MP_TIMELINE_LARGEST 6

/* Live storages of the same size, category and operation. */
struct mp_timeline_kind {
    enum mp_category category;
    const char *op;
    uint64_t bytes; /* of one */
};

struct mp_timeline_sample {
    uint32_t event; /* the state after it, which lasts until the next sample's */
    uint32_t phase; /* index into phases */
    int layer;      /* of the event; -1: outside the blocks */
    const char *op;
    uint64_t live_bytes[MP_CATEGORY_COUNT]; /* they add up to what is requested */
    uint64_t allocated_bytes, reserved_bytes;
    uint8_t n_largest;
    struct {
        uint32_t kind, n; /* n storages of kinds[kind] */
    } largest[MP_TIMELINE_LARGEST]; /* by size of one, descending */
};

struct mp_timeline_phase {
    const char *name;
    uint32_t first, end; /* events [first, end) */
};

struct mp_timeline {
    struct mp_timeline_sample *samples;
    size_t n_samples;
    struct mp_timeline_phase *phases; /* those that have events here */
    size_t n_phases;
    struct mp_timeline_kind *kinds; /* those that are among the largest somewhere */
    size_t n_kinds;
    uint32_t n_events;     /* shown: up to the failure, or to the end of the step that reaches the last peak */
    int64_t steps;         /* shown; the others that were simulated reach no higher */
    size_t peak;           /* sample of most allocated bytes: the moment of the ledger, or the state before the request that failed */
    size_t reserved_peak;  /* first sample of most reserved bytes */
};

/** Lives in the arena. e must hold the whole program (keep_tags). NULL with *err: NOMEM. */
const struct mp_timeline *mp_timeline_new(const struct mp_evaluation *e, struct mp_arena *arena, struct memplan_error *err);

/* Where the drawing has its plot, for whoever points into it. */
struct mp_timeline_geometry {
    double width, height;                         /* of the drawing */
    double left, top, plot_width, plot_height;
    uint64_t top_bytes;                           /* value at the top of the plot */
    bool shows_available;                         /* the line lies inside */
};

struct mp_timeline_view {
    double width, plot_height, font;              /* in units of the drawing */
    bool standalone;                              /* a document of its own */
    const char *id, *attributes, *title;          /* as in struct mp_svg_document */
    const struct mp_evaluation *evaluation;
};
struct mp_timeline_geometry mp_timeline_geometry(const struct mp_timeline *timeline, const struct mp_timeline_view *view);
/** The timeline as SVG: bands stacked by category, phases, the peak, reserved and available bytes, the request that fails. */
void mp_timeline_draw(const struct mp_timeline *timeline, const struct mp_timeline_view *view, struct mp_strbuf *out);

/* Bands from the axis up: what stays first. MP_TIMELINE_BANDS of them; the last is rounding. */
#define MP_TIMELINE_BANDS (MP_CATEGORY_COUNT + 1)
extern const uint8_t mp_timeline_stack[MP_TIMELINE_BANDS];

/** Bytes requested by live storages at a sample; the rest of allocated_bytes is rounding. */
uint64_t mp_timeline_requested(const struct mp_timeline_sample *sample);

#endif
