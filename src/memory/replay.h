/* SPDX-License-Identifier: MIT */
/*
 * Plays a recorded history through the simulated allocator: with the recorded settings and
 * addresses, to see that the simulation is exact, or with other settings, to see what they would
 * have done.
 *
 *     struct mp_replay_options options = {.total_bytes = gpu_bytes};
 *     mp_allocator_conf_parse("expandable_segments:True", torch, &options.conf, &err);
 *     struct mp_replay_result result;
 *     mp_replay_run(&history, &options, &result, &err);
 *
 * A what-if takes requests, frees and empty_cache from the recording and everything else from the
 * rules. It stops at the first request that finds no memory.
 */
#ifndef MP_REPLAY_H
#define MP_REPLAY_H

#include "memory/history.h"

struct mp_replay_options {
    struct mp_allocator_conf conf;
    mp_torch_version torch;
    uint64_t limit_bytes;    /* cap of the process; 0: none */
    uint64_t capacity_bytes; /* what cudaMalloc can give; 0: unbounded */
    uint64_t total_bytes;    /* of the card; 0: 1 TiB */
    bool as_recorded; /* recorded addresses, recorded failures of cudaMalloc; compares every step */
    /* Called every sample_every entries (0: never) and at the end. */
    size_t sample_every;
    void (*sample)(void *context, const struct mp_allocator *a, size_t entry);
    void *context;
};

/* What a recording and its replay do not agree on. */
struct mp_replay_differences {
    size_t addresses;   /* blocks elsewhere than recorded */
    size_t segments;    /* segment_* and oom events that differ, are missing or too many */
    size_t first_entry; /* where the first difference is; SIZE_MAX: none */
};

struct mp_replay_result {
    struct mp_allocator_stats stats;     /* at the end, or at the out-of-memory */
    uint64_t peak_moment_reserved_bytes; /* when allocated_bytes was at its peak */
    /* The most that was reserved but unallocated when a request yet needed new memory:
     * fragmentation at its worst. */
    uint64_t worst_unusable_bytes, worst_reserved_bytes;
    bool oom;
    size_t oom_entry;
    struct mp_allocator_oom oom_info;
    size_t n_survived_ooms; /* recorded out-of-memory errors that did not happen */
    struct mp_replay_differences differences; /* as_recorded only */
};

/** NOMEM; INPUT when the starting state does not fit the settings. */
enum memplan_status mp_replay_run(const struct mp_history *history,
                                  const struct mp_replay_options *options,
                                  struct mp_replay_result *result, struct memplan_error *err);

/** The segments over time, holes visible, as an SVG document. */
enum memplan_status mp_replay_svg(const struct mp_history *history,
                                  const struct mp_replay_options *options, const char *title,
                                  struct mp_strbuf *out, struct memplan_error *err);

#endif
