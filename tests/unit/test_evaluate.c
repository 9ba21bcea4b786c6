/* SPDX-License-Identifier: MIT */
/* From a run to a verdict: steps that repeat, capacity, and the largest batch. */
#include "plan/judge.h"

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

/* ---- repeated steps ---- */

static const char *const loops[] = {
    "seq: 32, iterations: 12",
    "seq: 32, iterations: 12, batch: 3, accumulate: 2, precision: fp32",
    "seq: 32, iterations: 12, checkpoint: full, release_outputs: true",
    "seq: 32, iterations: 12, checkpoint: full-reentrant, precision: amp-fp16, clip_grad_norm: true",
    "seq: 32, iterations: 12, precision: bf16, use_cache: true, attention: eager",
    "seq: 32, iterations: 12, empty_cache_each_step: true, optimizer: adafactor",
    "seq: 32, iterations: 12, retain_losses: true",
    "seq_lengths: [32, 16, 48], iterations: 12",
    "seq: 32, iterations: 12, allocator_conf: 'expandable_segments:True'",
    "seq: 32, iterations: 12, allocator_conf: 'max_split_size_mb:20', optimizer: none, zero_grad: keep",
    "seq: 32, iterations: 12, attention_mask: padded, optimizer: adamw-fused",
};

/* With and without running every step: all phases, all peaks. */
static void compare_with_every_step(const struct mp_run *run)
{
    const struct mp_evaluate_options every_step = {.every_step = true};
    struct mp_evaluation some, all;
    small_evaluate(run, false, &some);
    ck_assert_msg(mp_evaluate(run, &every_step, &all, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_int_eq(all.steps, 12);
    ck_assert_int_eq(all.period, 0);
    ck_assert_uint_eq(some.n_phases, all.n_phases);
    for (size_t i = 0; i < all.n_phases; i++) {
        const struct mp_phase_peaks *const a = &some.phases[i], *const b = &all.phases[i];
        ck_assert_str_eq(a->name, b->name);
        ck_assert_msg(a->requested_bytes == b->requested_bytes && a->requested_peak_bytes == b->requested_peak_bytes &&
                          a->allocated_peak_bytes == b->allocated_peak_bytes && a->reserved_peak_bytes == b->reserved_peak_bytes,
                      "%s, %s: %llu %llu %llu %llu against %llu %llu %llu %llu", run->model->model_type, a->name,
                      (unsigned long long)a->requested_bytes, (unsigned long long)a->requested_peak_bytes,
                      (unsigned long long)a->allocated_peak_bytes, (unsigned long long)a->reserved_peak_bytes,
                      (unsigned long long)b->requested_bytes, (unsigned long long)b->requested_peak_bytes,
                      (unsigned long long)b->allocated_peak_bytes, (unsigned long long)b->reserved_peak_bytes);
    }
    ck_assert_uint_eq(some.requested_bytes, all.requested_bytes);
    ck_assert_uint_eq(some.allocated_bytes, all.allocated_bytes);
    ck_assert_uint_eq(some.reserved_bytes, all.reserved_bytes);
    mp_evaluation_release(&some);
    mp_evaluation_release(&all);
}

START_TEST(repeated_steps_equal_the_steps_that_were_run)
{
    for (size_t family = 0; family < SMALL_FAMILIES; family++)
        compare_with_every_step(small_family_run(&arena, family, loops[_i]));
}
END_TEST

/* In small models every step lies where the one before did; in these the places alternate, or wander for a while. */
static const char *const wandering[] = {
    "{model: gpt2, gpu: H200-141G, seq: 1024, iterations: 12}",
    "{model: gpt2, gpu: A100-80G, batch: 3, seq: 512, accumulate: 2, iterations: 12}",
    "{model: bert-base, gpu: H200-141G, batch: 5, seq: 384, optimizer: adafactor, iterations: 12}",
    "{model: qwen2-0.5b, gpu: H200-141G, seq: 700, precision: bf16, checkpoint: full, iterations: 12}",
    "{model: llama3.2-1b, gpu: RTX4090-24G, seq: 1000, precision: bf16, iterations: 12, allocator_conf: 'garbage_collection_threshold:0.8'}",
    "{model: gpt-1.3b, gpu: H200-141G, batch: 2, seq: 512, precision: amp-fp16, clip_grad_norm: true, iterations: 12}",
};

START_TEST(so_they_do_where_places_wander)
{
    compare_with_every_step(small_run(&arena, wandering[_i]));
}
END_TEST

START_TEST(simulation_ends_when_the_state_repeats)
{
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 0, "seq: 32, iterations: 1000"), false, &e);
    ck_assert_int_gt(e.period, 0);
    ck_assert_int_lt(e.steps, 100);
    ck_assert_uint_eq(e.n_phases, 2 + 4 * 1000);
    ck_assert_str_eq(e.phases[e.n_phases - 1].name, "it999.zero");
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(at_most_ten_steps_where_nothing_is_said)
{
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 0, "seq: 32, retain_losses: true"), false, &e);
    ck_assert_int_eq(e.steps, MP_MAX_STEPS); /* a leak never repeats */
    ck_assert_int_eq(e.period, 0);
    mp_evaluation_release(&e);
    small_evaluate(small_family_run(&arena, 0, "seq: 32, iterations: 2"), false, &e);
    ck_assert_int_eq(e.steps, 2);
    ck_assert_uint_eq(e.n_phases, 2 + 4 * 2);
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(too_many_phases_are_refused)
{
    struct mp_evaluation e;
    struct mp_run run = *small_family_run(&arena, 0, "seq: 32");
    run.iterations = INT64_C(1) << 40;
    ck_assert_int_eq(mp_evaluate(&run, NULL, &e, &err), MEMPLAN_STATUS_RANGE);
    ck_assert_ptr_nonnull(strstr(err.text, "iterations"));
}
END_TEST

/* ---- peaks ---- */

START_TEST(the_peak_event_is_the_moment_of_the_peak)
{
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 2, "seq: 32, batch: 2"), false, &e);
    uint64_t live = 0, peak = 0, at_event = 0;
    for (uint32_t i = 0; i < e.program.n_events; i++) {
        const struct mp_event *const event = &e.program.events[i];
        if (event->kind == MP_EVENT_ALLOC)
            live += event->bytes;
        else if (event->kind == MP_EVENT_FREE)
            live -= event->bytes;
        peak = MP_MAX(peak, live);
        if (i == e.peak_event)
            at_event = live;
    }
    ck_assert_uint_eq(peak, e.requested_bytes);
    ck_assert_int_eq(e.program.events[e.peak_event].kind, MP_EVENT_ALLOC);
    ck_assert_uint_eq(e.peak_allocated_bytes, e.allocated_bytes);
    ck_assert_uint_le(at_event, e.peak_allocated_bytes);
    ck_assert_uint_ge(at_event, e.peak_allocated_bytes - 512 * e.program.n_allocs);
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(phases_bound_the_whole)
{
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 1, "seq: 32, batch: 2, accumulate: 2"), false, &e);
    uint64_t requested = 0, allocated = 0, reserved = 0;
    for (size_t i = 0; i < e.n_phases; i++) {
        requested = MP_MAX(requested, e.phases[i].requested_peak_bytes);
        allocated = MP_MAX(allocated, e.phases[i].allocated_peak_bytes);
        reserved = MP_MAX(reserved, e.phases[i].reserved_peak_bytes);
        ck_assert_uint_ge(e.phases[i].requested_peak_bytes, e.phases[i].requested_bytes);
    }
    ck_assert_uint_eq(requested, e.requested_bytes);
    ck_assert_uint_eq(allocated, e.allocated_bytes);
    ck_assert_uint_eq(reserved, e.reserved_bytes);
    ck_assert_uint_eq(e.device_used_bytes, e.reserved_bytes + e.context_bytes);
    mp_evaluation_release(&e);
}
END_TEST

/* ---- what is loaded ---- */

static const struct {
    const char *keys;
    enum mp_kernel_set kernels;
} sets[] = {
    {"seq: 32", MP_KERNELS_FUSED},
    {"seq: 32, attention: eager", MP_KERNELS_PLAIN},
    {"seq: 32, precision: fp32", MP_KERNELS_PLAIN},
    {"seq: 1", MP_KERNELS_PLAIN}, /* flash: cuDNN wants more than one query */
};

START_TEST(context_follows_the_kernels_that_run)
{
    struct mp_evaluation e;
    const struct mp_run *const run = small_family_run(&arena, 0, sets[_i].keys);
    small_evaluate(run, false, &e);
    ck_assert_int_eq(e.kernels, sets[_i].kernels);
    ck_assert_uint_eq(e.context_bytes, run->gpu->context_bytes[sets[_i].kernels].value);
    ck_assert_uint_eq(e.available_bytes, run->gpu->total_bytes.value - run->gpu->unavailable_bytes[sets[_i].kernels].value);
    mp_evaluation_release(&e);
}
END_TEST

/* ---- capacity ---- */

START_TEST(others_take_room)
{
    struct mp_evaluation alone, beside;
    small_evaluate(small_family_run(&arena, 0, "seq: 32"), false, &alone);
    small_evaluate(small_family_run(&arena, 0, "seq: 32, used: 1GiB"), false, &beside);
    ck_assert_uint_eq(alone.available_bytes - beside.available_bytes, MP_GIB);
    ck_assert_uint_eq(beside.device_used_bytes - alone.device_used_bytes, MP_GIB);
    ck_assert_uint_eq(alone.reserved_bytes, beside.reserved_bytes);
    ck_assert(alone.fits && beside.fits);
    mp_evaluation_release(&alone);
    mp_evaluation_release(&beside);
}
END_TEST

START_TEST(the_request_that_found_no_room_is_told)
{
    struct mp_evaluation e;
    const struct mp_run *const run = small_family_run(&arena, 0, "seq: 64, batch: 64, allocator_limit_bytes: 100MiB");
    small_evaluate(run, true, &e);
    ck_assert(e.oom && !e.fits);
    const struct mp_event *const event = &e.program.events[e.oom_event];
    ck_assert_int_eq(event->kind, MP_EVENT_ALLOC);
    ck_assert_uint_eq(event->bytes, e.oom_info.requested_bytes);
    ck_assert_uint_le(e.oom_info.reserved_bytes, 100 * MP_MIB);
    ck_assert_uint_gt(e.oom_info.reserved_bytes + e.oom_info.segment_bytes, 100 * MP_MIB);
    ck_assert_uint_le(e.reserved_bytes, 100 * MP_MIB);
    ck_assert_uint_eq(e.available_bytes, 100 * MP_MIB);
    ck_assert_uint_ge(e.stats.num_alloc_retries, 1);
    ck_assert_uint_eq(e.stats.num_ooms, 1);
    /* the phase it dies in was never finished */
    for (size_t i = 0; i < e.n_phases; i++)
        ck_assert_uint_lt(e.program.phases[i].event, e.oom_event);
    ck_assert_uint_lt(e.n_phases, e.program.n_phases);
    mp_evaluation_release(&e);
}
END_TEST

/* The smallest cap under which a run survives is found by bisection; a byte less than its segments kills it. */
START_TEST(a_cap_is_all_or_nothing)
{
    struct mp_run run = *small_family_run(&arena, 2, "seq: 64, batch: 16, iterations: 3");
    struct mp_evaluation e;
    small_evaluate(&run, false, &e);
    const uint64_t free_run = e.reserved_bytes;
    mp_evaluation_release(&e);
    bool fits = false;
    run.allocator_limit_bytes = free_run;
    ck_assert_int_eq(mp_fits(&run, &fits, &err), MEMPLAN_STATUS_OK);
    ck_assert(fits);
    uint64_t low = 34 * MP_MIB, high = free_run; /* dies, fits */
    while (high - low > MP_MIB) {
        run.allocator_limit_bytes = low + (high - low) / 2;
        ck_assert_int_eq(mp_fits(&run, &fits, &err), MEMPLAN_STATUS_OK);
        *(fits ? &high : &low) = run.allocator_limit_bytes;
    }
    run.allocator_limit_bytes = high;
    small_evaluate(&run, false, &e);
    ck_assert(e.fits);
    ck_assert_uint_le(e.reserved_bytes, high);
    ck_assert_uint_ge(e.reserved_bytes, e.allocated_bytes);
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(a_card_that_is_full_takes_nothing)
{
    struct mp_run run = *small_family_run(&arena, 0, "seq: 32");
    struct mp_evaluation e;
    run.used_bytes = run.gpu->total_bytes.value;
    small_evaluate(&run, false, &e);
    ck_assert(e.oom && !e.fits);
    ck_assert_uint_eq(e.available_bytes, 0);
    ck_assert_uint_eq(e.oom_event, 0);
    ck_assert_uint_eq(e.n_phases, 0);
    ck_assert_uint_eq(e.reserved_bytes, 0);
    mp_evaluation_release(&e);
}
END_TEST

/* ---- the largest batch ---- */

static const struct {
    size_t family;
    const char *keys;
} searches[] = {
    {0, "seq: 64, allocator_limit_bytes: 200MiB, iterations: 3"},
    {2, "seq: 64, allocator_limit_bytes: 150MiB, iterations: 3, checkpoint: full"},
    {1, "seq: 64, allocator_limit_bytes: 130MiB, iterations: 2, precision: fp32"},
};

START_TEST(the_largest_batch_fits_and_the_next_does_not)
{
    struct mp_run run = *small_family_run(&arena, searches[_i].family, searches[_i].keys);
    int64_t largest = -1, again = -1;
    bool fits = false;
    ck_assert_int_eq(mp_max_batch(&run, &largest, &again, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_gt(largest, 1);
    run.batch = largest;
    ck_assert_int_eq(mp_fits(&run, &fits, &err), MEMPLAN_STATUS_OK);
    ck_assert(fits);
    run.batch = largest + 1;
    ck_assert_int_eq(mp_fits(&run, &fits, &err), MEMPLAN_STATUS_OK);
    ck_assert(!fits);
    if (again > 0) {
        ck_assert_int_gt(again, largest + 1);
        run.batch = again;
        ck_assert_int_eq(mp_fits(&run, &fits, &err), MEMPLAN_STATUS_OK);
        ck_assert(fits);
    }
}
END_TEST

START_TEST(not_even_one_sequence)
{
    int64_t largest = -1, again = -1;
    const struct mp_run *const run = small_family_run(&arena, 0, "seq: 64, allocator_limit_bytes: 4MiB");
    ck_assert_int_eq(mp_max_batch(run, &largest, &again, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(largest, 0);
    ck_assert_int_eq(again, 0);
}
END_TEST

/* ---- the rest ---- */

struct notes {
    uint64_t allocs, frees, bytes;
};

static void count_notes(void *context, const struct mp_allocator_note *note)
{
    struct notes *const n = context;
    n->allocs += note->action == MP_ALLOCATOR_ALLOC;
    n->frees += note->action == MP_ALLOCATOR_FREE_COMPLETED;
    n->bytes += note->action == MP_ALLOCATOR_SEGMENT_ALLOC ? note->bytes : 0;
}

START_TEST(an_observer_sees_one_trial)
{
    struct notes notes = {0, 0, 0};
    const struct mp_evaluate_options options = {.observer = count_notes, .observer_context = &notes};
    struct mp_evaluation e;
    /* expected to load the fused kernels, which one query does not */
    ck_assert_int_eq(mp_evaluate(small_family_run(&arena, 0, "seq: 1, iterations: 2"), &options, &e, &err), MEMPLAN_STATUS_OK);
    uint64_t frees = 0;
    for (uint32_t i = 0; i < e.program.n_events; i++)
        frees += e.program.events[i].kind == MP_EVENT_FREE;
    ck_assert_uint_eq(notes.allocs, e.program.n_allocs);
    ck_assert_uint_eq(notes.frees, frees);
    ck_assert_uint_eq(notes.bytes, e.reserved_bytes);
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(tags_and_repetition_change_no_number)
{
    for (size_t family = 0; family < SMALL_FAMILIES; family++) {
        struct mp_evaluation plain, tagged;
        const struct mp_run *const run = small_family_run(&arena, family, "seq: 32, checkpoint: full");
        small_evaluate(run, false, &plain);
        small_evaluate(run, true, &tagged);
        ck_assert_uint_eq(plain.requested_bytes, tagged.requested_bytes);
        ck_assert_uint_eq(plain.reserved_bytes, tagged.reserved_bytes);
        ck_assert_int_eq(plain.steps, tagged.steps);
        ck_assert_int_eq(plain.period, tagged.period);
        mp_evaluation_release(&plain);
        mp_evaluation_release(&tagged);
    }
}
END_TEST

/* c_attn has 3 * h * h floats */
static const struct {
    int width;
    const char *says;
} absurd[] = {{1 << 29, "2^60"}, {2147483646, "2^64"}};

START_TEST(a_tensor_too_large_is_an_error_of_the_input)
{
    struct mp_evaluation e;
    char yaml[160];
    snprintf(yaml, sizeof yaml, "{model: {model_type: gpt2, n_layer: 1, n_embd: %d, n_head: 2, n_positions: 8}, gpu: H200-141G, seq: 8}",
             absurd[_i].width);
    ck_assert_int_eq(mp_evaluate(small_run(&arena, yaml), NULL, &e, &err), MEMPLAN_STATUS_RANGE);
    ck_assert_ptr_nonnull(strstr(err.text, absurd[_i].says));
    ck_assert_ptr_nonnull(strstr(err.text, "check batch, seq"));
}
END_TEST

/* ---- without memory ---- */

static const char *const tortured[] = {
    "seq: 16, iterations: 3",
    "seq: 16, iterations: 2, checkpoint: full, precision: amp-fp16",
    "seq: 16, iterations: 1, checkpoint: full-reentrant, use_cache: true",
};

/* Either the failure is told, or nobody needed that allocation and the answer is the right one. */
START_TEST(every_allocation_may_fail)
{
    enum { MOST = 100000 };
    const struct mp_run *const run = small_family_run(&arena, (size_t)_i, tortured[_i]);
    struct mp_evaluation right, e;
    uint64_t n = 0, used = 1, n_told = 0;
    small_evaluate(run, false, &right);
    for (n = 1; used + 1 >= n && n < MOST; n++) { /* the last round used fewer than could fail */
        struct memplan_error why = {MEMPLAN_STATUS_OK, ""};
        mp_alloc_fail_after(n);
        const enum memplan_status status = mp_evaluate(run, NULL, &e, &why);
        used = mp_alloc_fail_after(0);
        ck_assert_int_eq(why.status, status);
        if (status == MEMPLAN_STATUS_OK) {
            ck_assert_uint_eq(e.requested_bytes, right.requested_bytes);
            ck_assert_uint_eq(e.reserved_bytes, right.reserved_bytes);
            ck_assert_uint_eq(e.n_phases, right.n_phases);
            mp_evaluation_release(&e);
            continue;
        }
        n_told++;
        ck_assert_msg(status == MEMPLAN_STATUS_NOMEM, "allocation %llu: status %d: %s", (unsigned long long)n, (int)status,
                      why.text);
        ck_assert_uint_gt(strlen(why.text), 0);
    }
    ck_assert_uint_gt(n_told, 20);
    ck_assert_uint_lt(n, MOST);
    small_evaluate(run, false, &e); /* usable afterwards */
    ck_assert_uint_eq(e.reserved_bytes, right.reserved_bytes);
    mp_evaluation_release(&e);
    mp_evaluation_release(&right);
}
END_TEST

Suite *suite_evaluate(void)
{
    Suite *const suite = suite_create("evaluate");
    TCase *const tc = tcase_create("verdict");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, repeated_steps_equal_the_steps_that_were_run, 0, (int)MP_ARRAY_LEN(loops));
    tcase_add_loop_test(tc, so_they_do_where_places_wander, 0, (int)MP_ARRAY_LEN(wandering));
    tcase_add_test(tc, simulation_ends_when_the_state_repeats);
    tcase_add_test(tc, at_most_ten_steps_where_nothing_is_said);
    tcase_add_test(tc, too_many_phases_are_refused);
    tcase_add_test(tc, the_peak_event_is_the_moment_of_the_peak);
    tcase_add_test(tc, phases_bound_the_whole);
    tcase_add_loop_test(tc, context_follows_the_kernels_that_run, 0, (int)MP_ARRAY_LEN(sets));
    tcase_add_test(tc, others_take_room);
    tcase_add_test(tc, the_request_that_found_no_room_is_told);
    tcase_add_test(tc, a_cap_is_all_or_nothing);
    tcase_add_test(tc, a_card_that_is_full_takes_nothing);
    tcase_add_loop_test(tc, the_largest_batch_fits_and_the_next_does_not, 0, (int)MP_ARRAY_LEN(searches));
    tcase_add_test(tc, not_even_one_sequence);
    tcase_add_test(tc, an_observer_sees_one_trial);
    tcase_add_test(tc, tags_and_repetition_change_no_number);
    tcase_add_loop_test(tc, a_tensor_too_large_is_an_error_of_the_input, 0, (int)MP_ARRAY_LEN(absurd));
    tcase_add_loop_test(tc, every_allocation_may_fail, 0, (int)MP_ARRAY_LEN(tortured));
    suite_add_tcase(suite, tc);
    return suite;
}
