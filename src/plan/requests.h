/* SPDX-License-Identifier: MIT */
/*
 * The request stream of a job: what it asks of the allocator, step by step, until the steps repeat. Recorded once, it is replayed
 * under any capacity.
 *
 *     run ──> shadow run ──> stream ──┬─ replay on card A
 *                                     └─ replay on card B
 *
 * Only for jobs on one GPU whose steps become the same (mp_requests_applies); the verdict is mp_evaluate()'s to the byte.
 */
#ifndef MP_REQUESTS_H
#define MP_REQUESTS_H

#include "plan/evaluate.h"
#include "shadow/card.h"

/* One event, small enough that a whole job stays in the cache. */
struct mp_request {
    uint64_t bytes;
    uint32_t id;
    uint8_t kind; /* enum mp_event_kind: ALLOC, FREE, EMPTY_CACHE, DRIVER */
    uint8_t stream;
    uint16_t tag; /* of the card's answer that bytes are; 0: of none (shadow/card.h) */
};

struct mp_requests_step {
    uint32_t end;    /* requests[…end) are its own and those before */
    uint32_t end_id; /* ids up to here exist by then */
};

/*
 * What is known of runs like this one, whose events differ in their sizes only: how the step that repeats the one before it can be
 * written down without being run. A shape is the order of events and ids up to there; sizes decide which kernels run, so one
 * kind of run has several.
 */
enum { MP_KNOWN_OUTPUTS = 16, MP_KNOWN_SHAPES = 8 };
struct mp_known_shape {
    uint64_t hash;
    int n_steps; /* recorded; the last one repeats the one before */
    int n_outputs;
    struct {
        uint32_t from, to; /* ids, counted from the start of the step that made them */
    } outputs[MP_KNOWN_OUTPUTS]; /* of the step before the last but one, and of the last but one */
};
struct mp_known_steps {
    int n, next;
    struct mp_known_shape shapes[MP_KNOWN_SHAPES]; /* the oldest makes room */
};

struct mp_requests {
    struct mp_request *requests;
    uint32_t n_requests, cap_requests;
    uint32_t build_end, build_end_id; /* model and data, before the first step */
    struct mp_requests_step steps[MP_MAX_STEPS];
    int n_steps;
    bool steady;         /* further steps ask for what the last one did */
    struct mp_known_steps *known; /* the caller's, of runs like this one; NULL: nothing is known, nothing learnt */
    unsigned kernels;    /* bit per enum mp_attention_kernel */
    struct mp_card_log card; /* what the run asked of its card; empty in streams that were written out */
    uint64_t peak_bytes; /* of requested bytes, all steps */
};

/** All zero is empty. */
void mp_requests_release(struct mp_requests *s);
/** Room for n requests; false without memory. Content is kept. */
bool mp_requests_reserve(struct mp_requests *s, uint32_t n);

bool mp_requests_applies(const struct mp_run *run);
/** Were all steps recorded that a replay of the run may need? */
bool mp_requests_suffice(const struct mp_requests *s, const struct mp_run *run);
/** Run the model; *s is overwritten, its memory reused. Other errors than NOMEM: the run is not one that can be simulated. */
enum memplan_status mp_requests_record(struct mp_requests *s, const struct mp_run *run, struct memplan_error *err);
/** Likewise into a program of the caller's (initialised, empty), for whoever wants to know more of the events than the allocator does. */
enum memplan_status mp_requests_record_program(struct mp_requests *s, const struct mp_run *run,
                                               struct mp_program *p, struct memplan_error *err);
/** Same requests in the same order. */
bool mp_requests_equal(const struct mp_requests *a, const struct mp_requests *b);
/**
 * Likewise, where sizes that are the card's to say are the same answers of the same questions:
 * equal on every card that agrees with both.
 */
bool mp_requests_equal_but_for_card(const struct mp_requests *a, const struct mp_requests *b);

/* What a replay says: the numbers of struct mp_evaluation. */
struct mp_verdict {
    bool fits, oom; /* a job of several ranks may also not fit because it dies under another timing */
    uint64_t requested_bytes, allocated_bytes, reserved_bytes, device_used_bytes;
    uint64_t device_peak_bytes; /* of what cudaMalloc gave, in whole pages */
    bool refused;               /* the card said no at least once, be it before a retry: a smaller card may go another way */
};

/* Tables that replays share, so that none of them asks for memory again. All zero is empty. */
struct mp_replayer {
    struct mp_block **blocks;
    uint32_t cap_blocks;
};
void mp_replayer_release(struct mp_replayer *r);

struct mp_peaks {
    uint64_t requested_bytes, allocated_bytes;
};

/*
 * A stream that differs from another in the sizes of the card's scratch buffers, and goes through its replay: at every such buffer it
 * is looked whether free blocks serve both (memory/allocator_scratch.c). The rest of the two replays is then the same to the address.
 */
struct mp_companion {
    const uint64_t *sizes;    /* by tag, less one */
    size_t stream;            /* the caller's */
    bool went_along;          /* to the end; else it needs a replay of its own */
    struct mp_peaks peaks;    /* all else is the other's */
};

/** The stream on run's card, with n companions (NULL: none). No companion goes along once the card said no. */
enum memplan_status mp_requests_replay(const struct mp_requests *s, const struct mp_run *run,
                                       struct mp_replayer *r, struct mp_companion *companions,
                                       size_t n, struct mp_verdict *v, struct memplan_error *err);
/** What the allocator of that run may take, given the attention kernels that ran. */
uint64_t mp_requests_available(const struct mp_run *run, unsigned kernels);

#endif
