/* SPDX-License-Identifier: MIT */
/* Thinning keeps every peak; samples say what the ledger and the allocator say at that moment. */
#include "report/timeline.h"

#include "memory/ledger.h"
#include "small_run.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

static const struct mp_timeline *timeline_of(const struct mp_evaluation *e)
{
    const struct mp_timeline *const t = mp_timeline_new(e, &arena, &err);
    ck_assert_msg(t != NULL, "%s", err.text);
    return t;
}

/* Few events and many, few phases and more than there may be samples, jobs that live and that die. */
static const struct { const char *keys; bool dies; } jobs[] = {
    {"seq: 32", false},
    {"seq: 32, accumulate: 12, batch: 3, precision: fp32", false},
    {"seq: 64, accumulate: 40, checkpoint: full, iterations: 3", false},
    {"seq: 16, accumulate: 1200, iterations: 2", false},
    {"seq: 32, precision: amp-fp16, attention: eager, empty_cache_each_step: true", false},
    {"seq: 64, batch: 8, allocator_conf: 'expandable_segments:True', accumulate: 9", false},
    {"seq: 64, batch: 64, allocator_limit_bytes: 100MiB", true},
    {"seq: 64, batch: 24, accumulate: 30, retain_losses: true, iterations: 3, allocator_limit_bytes: 50MiB", true},
};

static void check_order(const struct mp_timeline *t)
{
    ck_assert_uint_gt(t->n_samples, 0);
    ck_assert_uint_le(t->n_samples, MP_TIMELINE_MAX_SAMPLES + 1);
    for (size_t i = 0; i < t->n_samples; i++) {
        const struct mp_timeline_sample *const s = &t->samples[i];
        ck_assert(i == 0 || s->event > t->samples[i - 1].event);
        ck_assert_uint_lt(s->event, t->n_events);
        ck_assert_uint_ge(s->event, t->phases[s->phase].first);
        ck_assert_uint_lt(s->event, t->phases[s->phase].end);
        ck_assert_uint_le(mp_timeline_requested(s), s->allocated_bytes);
        ck_assert_uint_le(s->allocated_bytes, s->reserved_bytes);
    }
}

static uint64_t most_allocated(const struct mp_timeline *t, size_t phase)
{
    uint64_t most = 0;
    for (size_t i = 0; i < t->n_samples; i++)
        if (t->samples[i].phase == phase)
            most = MP_MAX(most, t->samples[i].allocated_bytes);
    return most;
}

/* What a phase began with counts towards its peak, but is the last sample before it. */
static uint64_t carried_over(const struct mp_timeline *t, size_t phase)
{
    uint64_t last = 0;
    for (size_t i = 0; i < t->n_samples && t->samples[i].phase < phase; i++)
        last = t->samples[i].allocated_bytes;
    return last;
}

START_TEST(no_peak_is_lost)
{
    for (size_t family = 0; family < SMALL_FAMILIES; family += 2) {
        struct mp_evaluation e;
        uint64_t reserved = 0;
        small_evaluate(small_family_run(&arena, family, jobs[_i].keys), true, &e);
        ck_assert_int_eq(e.oom, jobs[_i].dies);
        const struct mp_timeline *const t = timeline_of(&e);
        check_order(t);
        if (!e.oom) {
            ck_assert_uint_eq(t->samples[t->peak].allocated_bytes, e.peak_allocated_bytes);
            ck_assert_uint_eq(t->samples[t->reserved_peak].reserved_bytes, e.reserved_bytes);
        }
        for (size_t i = 0; i < t->n_samples; i++)
            reserved = MP_MAX(reserved, t->samples[i].reserved_bytes);
        ck_assert_uint_eq(reserved, t->samples[t->reserved_peak].reserved_bytes);
        for (size_t i = 0; i < t->n_phases && i < e.n_phases && t->n_phases <= 500; i++) {
            ck_assert_str_eq(t->phases[i].name, e.phases[i].name);
            ck_assert_msg(MP_MAX(most_allocated(t, i), carried_over(t, i)) == e.phases[i].allocated_peak_bytes, "%s of family %zu",
                          t->phases[i].name, family);
        }
        mp_evaluation_release(&e);
    }
}
END_TEST

/* The bytes of all events, one by one, against the samples: a sample is the state after its event. */
START_TEST(samples_are_what_the_ledger_says)
{
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 2, jobs[_i].keys), true, &e);
    const struct mp_timeline *const t = timeline_of(&e);
    for (size_t i = 0; i < t->n_samples; i += 1 + t->n_samples / 12) {
        const struct mp_timeline_sample *const s = &t->samples[i];
        if (e.oom && s->event == e.oom_event)
            continue;
        const struct mp_ledger *const ledger = mp_ledger_at(&e.program, s->event, &arena, &err);
        ck_assert_ptr_nonnull(ledger);
        ck_assert_uint_eq(mp_timeline_requested(s), ledger->total_bytes);
        for (int c = 0; c < MP_CATEGORY_COUNT; c++)
            ck_assert_uint_eq(s->live_bytes[c], ledger->by_category[c]);
    }
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(the_last_sample_of_a_job_that_dies_is_its_death)
{
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 0, jobs[6].keys), true, &e);
    const struct mp_timeline *const t = timeline_of(&e);
    const struct mp_timeline_sample *const last = &t->samples[t->n_samples - 1];
    ck_assert_uint_eq(last->event, e.oom_event);
    ck_assert_uint_eq(t->peak, t->n_samples - 1);
    ck_assert_uint_eq(last->reserved_bytes, e.oom_info.reserved_bytes);
    ck_assert_uint_eq(last->allocated_bytes, e.oom_info.allocated_bytes);
    ck_assert_uint_eq(t->n_events, e.oom_event + 1);
    mp_evaluation_release(&e);
}
END_TEST

/* ---- the largest tensors ---- */

static void live_sizes(const struct mp_program *p, uint32_t event, uint64_t *sizes)
{
    for (uint32_t i = 0; i <= event; i++) {
        if (p->events[i].kind == MP_EVENT_ALLOC)
            sizes[p->events[i].id] = p->events[i].bytes;
        else if (p->events[i].kind == MP_EVENT_FREE)
            sizes[p->events[i].id] = 0;
    }
}

START_TEST(the_largest_tensors_are_the_largest)
{
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 0, "seq: 48, batch: 2, iterations: 2"), true, &e);
    const struct mp_timeline *const t = timeline_of(&e);
    for (size_t i = 0; i < t->n_samples; i += 1 + t->n_samples / 20) {
        const struct mp_timeline_sample *const s = &t->samples[i];
        uint64_t *const sizes = mp_arena_calloc(&arena, (size_t)e.program.n_allocs + 1, sizeof *sizes);
        uint32_t listed = 0, as_large = 0;
        live_sizes(&e.program, s->event, sizes);
        for (int k = 0; k < s->n_largest; k++) {
            listed += s->largest[k].n;
            ck_assert(k == 0 || t->kinds[s->largest[k].kind].bytes <= t->kinds[s->largest[k - 1].kind].bytes);
        }
        const uint64_t smallest = s->n_largest ? t->kinds[s->largest[s->n_largest - 1].kind].bytes : 0;
        for (uint32_t id = 1; id <= e.program.n_allocs; id++)
            as_large += sizes[id] > smallest;
        for (int k = s->n_largest - 1; k >= 0 && t->kinds[s->largest[k].kind].bytes == smallest; k--)
            listed -= s->largest[k].n;
        ck_assert_uint_eq(listed, as_large); /* everything above the smallest one that is listed is listed too */
    }
    mp_evaluation_release(&e);
}
END_TEST

/* ---- the drawing ---- */

static size_t occurrences(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        n++;
    return n;
}

START_TEST(the_drawing_has_its_parts)
{
    struct mp_evaluation e;
    struct mp_strbuf out = MP_STRBUF_INIT;
    small_evaluate(small_family_run(&arena, 0, jobs[_i].keys), true, &e);
    mp_timeline_draw(timeline_of(&e), &(struct mp_timeline_view){.width = 380, .plot_height = 190, .font = 9.5, .standalone = true,
                                                                .title = "t", .evaluation = &e}, &out);
    const char *const text = mp_strbuf_text(&out);
    ck_assert(!out.failed);
    ck_assert_uint_eq(occurrences(text, "<g class=\"peak\">"), 1);
    ck_assert_uint_eq(occurrences(text, "<path class=\"reserved\""), 1);
    ck_assert_uint_eq(occurrences(text, "<path class=\"b0 band\""), 1);
    ck_assert_uint_eq(occurrences(text, "<g class=\"failing\">"), e.oom);
    if (e.oom) /* and in the legend; far above what lives it is left out */
        ck_assert_uint_eq(occurrences(text, "class=\"capacity\""), 2);
    ck_assert_uint_eq(occurrences(text, "nan"), 0);
    ck_assert_uint_lt(out.len, 400000);
    mp_strbuf_release(&out);
    mp_evaluation_release(&e);
}
END_TEST

Suite *suite_timeline(void)
{
    Suite *const suite = suite_create("timeline");
    TCase *const tc = tcase_create("timeline");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, no_peak_is_lost, 0, (int)MP_ARRAY_LEN(jobs));
    tcase_add_loop_test(tc, samples_are_what_the_ledger_says, 0, (int)MP_ARRAY_LEN(jobs));
    tcase_add_test(tc, the_last_sample_of_a_job_that_dies_is_its_death);
    tcase_add_test(tc, the_largest_tensors_are_the_largest);
    tcase_add_loop_test(tc, the_drawing_has_its_parts, 0, (int)MP_ARRAY_LEN(jobs));
    suite_add_tcase(suite, tc);
    return suite;
}
