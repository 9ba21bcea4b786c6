/* SPDX-License-Identifier: MIT */
/*
 * Two allocators get the same random requests. One takes scratch buffers and counts everything; the other looks where it may, and
 * counts peaks only. Their states stay the same, and so do their peaks.
 */
#include "memory/allocator.h"

#include "base/common.h"
#include "suites.h"

enum { SEEDS = 24, MAX_LIVE = 200, N_EVENTS = 2500 };

static const char *const confs[] = {"", "roundup_power2_divisions:8", "large_segment_size_mb:32", "max_split_size_mb:32", "expandable_segments:True"};

struct twins {
    struct mp_allocator *full, *quick;
    struct mp_block *live[2][MAX_LIVE];
    size_t n;
    uint64_t requested_peak, allocated_peak; /* of what was looked at */
    int n_looked, n_new_segments, n_refused;
};

static uint64_t next(uint64_t *state, uint64_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % n;
}

static uint64_t random_size(uint64_t *state) { return 1 + next(state, UINT64_C(1) << next(state, 27)); }

static struct mp_allocator *make(const char *conf, uint64_t capacity_bytes, uint64_t limit_bytes, bool peaks_only)
{
    struct memplan_error err = {0};
    struct mp_allocator_options options = {.capacity_bytes = capacity_bytes, .limit_bytes = limit_bytes, .peaks_only = peaks_only,
                                           .placement = {.kind = MP_PLACE_PROCESS}};
    ck_assert_msg(mp_allocator_conf_parse(conf, 0, &options.conf, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    struct mp_allocator *const a = mp_allocator_new(&options, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    return a;
}

/* malloc all, and free them, the last first; false: the card said no in the end. */
static bool take(struct mp_allocator *a, const uint64_t *bytes, unsigned n)
{
    struct mp_block *const block = mp_allocator_malloc(a, bytes[0], 0, 1000);
    const bool ok = block && (n == 1 || take(a, bytes + 1, n - 1));
    if (block)
        mp_allocator_release(a, block);
    return ok;
}

static void scratch(struct twins *t, uint64_t *state)
{
    const unsigned n = 1 + (unsigned)next(state, 2);
    const uint64_t bytes[MP_SCRATCH_MOST] = {random_size(state), next(state, 2) ? random_size(state) : 24};
    struct mp_scratch_look look, twin;
    (void)take(t->full, bytes, n);
    if (!mp_allocator_can_look(t->quick)) {
        (void)take(t->quick, bytes, n);
        return;
    }
    mp_allocator_look(t->quick, 0, bytes, n, &look);
    mp_allocator_look(t->quick, 0, bytes, n, &twin);
    ck_assert(mp_scratch_leaves_the_same(&look, &twin));
    t->n_looked++;
    t->n_new_segments += !mp_scratch_leaves_nothing(&look);
    if (!mp_scratch_leaves_nothing(&look) && !mp_allocator_leave_segments(t->quick, &look)) {
        t->n_refused++;
        (void)take(t->quick, bytes, n);
        return;
    }
    t->requested_peak = MP_MAX(t->requested_peak, look.requested_bytes);
    t->allocated_peak = MP_MAX(t->allocated_peak, look.allocated_bytes);
}

static void event(struct twins *t, uint64_t *state)
{
    const uint64_t dice = next(state, 100);
    if (dice < 30) {
        scratch(t, state);
    } else if (t->n > 0 && (dice < 62 || t->n == MAX_LIVE)) {
        const size_t i = (size_t)next(state, t->n);
        t->n--;
        mp_allocator_release(t->full, t->live[0][i]);
        mp_allocator_release(t->quick, t->live[1][i]);
        t->live[0][i] = t->live[0][t->n];
        t->live[1][i] = t->live[1][t->n];
    } else {
        const uint64_t bytes = random_size(state);
        struct mp_block *const full = mp_allocator_malloc(t->full, bytes, 0, (uint32_t)dice);
        struct mp_block *const quick = mp_allocator_malloc(t->quick, bytes, 0, (uint32_t)dice);
        ck_assert_int_eq(full != NULL, quick != NULL);
        t->live[0][t->n] = full;
        t->live[1][t->n] = quick;
        t->n += full != NULL;
    }
}

static uint64_t plain_key(void *context, uint32_t client)
{
    (void)context;
    return client;
}

static void compare(const struct twins *t, int seed, int i)
{
    const struct mp_allocator_stats *const full = mp_allocator_stats(t->full), *const quick = mp_allocator_stats(t->quick);
    struct memplan_error err = {0};
    ck_assert_msg(mp_allocator_check(t->quick, &err), "seed %d, event %d: %s", seed, i, err.text);
    ck_assert_msg(mp_allocator_state_hash(t->full, plain_key, NULL) == mp_allocator_state_hash(t->quick, plain_key, NULL),
                  "seed %d, event %d: another state", seed, i);
    ck_assert_uint_eq(full->allocated_bytes[MP_STAT_ALL].current, quick->allocated_bytes[MP_STAT_ALL].current);
    ck_assert_uint_eq(full->requested_bytes[MP_STAT_ALL].current, quick->requested_bytes[MP_STAT_ALL].current);
    ck_assert_uint_eq(full->reserved_bytes[MP_STAT_ALL].peak, quick->reserved_bytes[MP_STAT_ALL].peak);
    ck_assert_uint_eq(full->allocated_bytes[MP_STAT_ALL].peak, MP_MAX(quick->allocated_bytes[MP_STAT_ALL].peak, t->allocated_peak));
    ck_assert_uint_eq(full->requested_bytes[MP_STAT_ALL].peak, MP_MAX(quick->requested_bytes[MP_STAT_ALL].peak, t->requested_peak));
    ck_assert_uint_eq(full->num_alloc_retries, quick->num_alloc_retries);
}

START_TEST(looking_leaves_what_taking_leaves)
{
    const char *const conf = confs[(size_t)_i % MP_ARRAY_LEN(confs)];
    const uint64_t capacity = _i % 2 ? 250 * MP_MIB : 0, limit = _i % 3 == 2 ? 500 * MP_MIB : 0;
    struct twins t = {.full = make(conf, capacity, limit, false), .quick = make(conf, capacity, limit, true)};
    uint64_t state = (uint64_t)_i + 1;
    for (int i = 0; i < N_EVENTS; i++) {
        event(&t, &state);
        compare(&t, _i, i);
    }
    ck_assert_int_eq(t.n_looked > 0, (size_t)_i % MP_ARRAY_LEN(confs) < 3);
    if (t.n_looked)
        ck_assert_int_gt(t.n_new_segments, 0);
    if (t.n_looked && capacity)
        ck_assert_int_gt(t.n_refused, 0);
    mp_allocator_free(t.full);
    mp_allocator_free(t.quick);
}
END_TEST

Suite *suite_scratch(void)
{
    Suite *const suite = suite_create("scratch");
    TCase *const tc = tcase_create("scratch");
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, looking_leaves_what_taking_leaves, 0, SEEDS);
    suite_add_tcase(suite, tc);
    return suite;
}
