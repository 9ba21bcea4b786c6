/* SPDX-License-Identifier: MIT */
/* The loop: which phases there are, what lives through them, what each optimizer keeps. */
#include "train/job.h"

#include "memory/ledger.h"
#include "small_run.h"
#include "suites.h"

static struct mp_arena arena;
static struct mp_program program;
static struct mp_job job;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    mp_program_init(&program);
    program.keep_tags = true;
}

static void teardown(void)
{
    mp_job_close(&job);
    mp_program_release(&program);
    mp_arena_release(&arena);
}

/* Build the small gpt2 and run n steps. */
static void run_job(const char *keys, int n)
{
    const struct mp_run *const run = small_family_run(&arena, 0, keys);
    ck_assert_msg(mp_job_open(&job, run, &program, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_int_eq(mp_job_build(&job), MEMPLAN_STATUS_OK);
    for (int i = 0; i < n; i++)
        ck_assert_msg(mp_job_step(&job) == MEMPLAN_STATUS_OK, "%s", err.text);
}

static const struct mp_phase *phase(const char *name)
{
    for (uint32_t i = 0; i < program.n_phases; i++)
        if (strcmp(program.phases[i].name, name) == 0)
            return &program.phases[i];
    ck_abort_msg("no phase is called %s", name);
    return NULL;
}

static uint64_t live(const char *phase_name, enum mp_category category)
{
    const struct mp_ledger *const ledger = mp_ledger_at(&program, phase(phase_name)->event, &arena, &err);
    return ledger->by_category[category];
}

/* ---- phases ---- */

static const struct {
    const char *keys, *phases;
} orders[] = {
    {"seq: 16", "model data it0.mb0.fwd it0.mb0.bwd it0.opt it0.zero"},
    {"seq: 16, accumulate: 2", "model data it0.mb0.fwd it0.mb0.bwd it0.mb1.fwd it0.mb1.bwd it0.opt it0.zero"},
    {"seq: 16, clip_grad_norm: true", "model data it0.mb0.fwd it0.mb0.bwd it0.clip it0.opt it0.zero"},
    {"seq: 16, optimizer: none", "model data it0.mb0.fwd it0.mb0.bwd it0.zero"},
};

START_TEST(phases_follow_the_loop)
{
    struct mp_strbuf names = MP_STRBUF_INIT;
    run_job(orders[_i].keys, 1);
    for (uint32_t i = 0; i < program.n_phases; i++)
        mp_strbuf_addf(&names, "%s%s", i > 0 ? " " : "", program.phases[i].name);
    ck_assert_str_eq(mp_strbuf_text(&names), orders[_i].phases);
    mp_strbuf_release(&names);
}
END_TEST

/* ---- model and data ---- */

/*
 * gpt2 with h = 64, V = 101, 64 positions, 2 layers: (101 + 64) * 64 + 2 * (12 * 64^2 + 13 * 64) + 2 * 64
 * = 110,656 parameters.
 */
enum { PARAMETERS = 110656 };

static const struct {
    const char *precision;
    uint64_t bytes;
} precisions[] = {{"fp32", 4 * PARAMETERS}, {"bf16", 2 * PARAMETERS}, {"amp-bf16", 4 * PARAMETERS}};

START_TEST(the_model_has_its_parameters)
{
    char keys[64];
    snprintf(keys, sizeof keys, "seq: 16, precision: %s", precisions[_i].precision);
    run_job(keys, 0);
    ck_assert_uint_eq(live("model", MP_CATEGORY_PARAMETER), precisions[_i].bytes);
}
END_TEST

static const struct {
    const char *keys;
    uint64_t bytes;
} inputs[] = {
    {"batch: 3, seq: 16", 8 * 3 * 16},
    {"batch: 3, seq: 16, accumulate: 4", 4 * 8 * 3 * 16},
    /* a mask of ids beside them, one for all */
    {"batch: 3, seq: 16, accumulate: 4, attention_mask: true", 5 * 8 * 3 * 16},
    /* lengths cycle: lcm(2, 3) micro-batches, two of each length */
    {"batch: 1, seq_lengths: [8, 16, 32], accumulate: 2", 8 * 2 * (8 + 16 + 32)},
    {"batch: 1, seq_lengths: [8, 16, 30], accumulate: 3, pad_to: 16", 8 * (16 + 16 + 32)},
    /* one mask per length */
    {"batch: 1, seq_lengths: [8, 16, 8], attention_mask: true", 8 * (8 + 16 + 8) + 8 * (8 + 16)},
};

START_TEST(data_are_ids_per_micro_batch)
{
    run_job(inputs[_i].keys, 0);
    ck_assert_uint_eq(live("data", MP_CATEGORY_INPUT), inputs[_i].bytes);
}
END_TEST

/* ---- optimizers: bytes of state after the first step ---- */

/* Tensors of the small gpt2: 2 embeddings, 12 per block, 2 of the last norm. */
enum { TENSORS = 28 };

static const struct {
    const char *optimizer;
    uint64_t state;
} states[] = {
    {"adamw-foreach", 8 * PARAMETERS},
    {"adamw-forloop", 8 * PARAMETERS},
    {"adamw-fused", 8 * PARAMETERS + 4 * TENSORS},
    {"sgd", 0},
    {"sgd-momentum", 4 * PARAMETERS},
    /* rows and columns of each matrix, a copy of each vector */
    {"adafactor", 4 * ((101 + 64) + (64 + 64) +
                       2 * ((64 + 192) + 192 + (64 + 64) + 64 + (64 + 256) + 256 + (256 + 64) + 64 + 4 * 64) + 2 * 64)},
    {"none", 0},
    {"lion", 4 * PARAMETERS},
    /* two maps; matrices 2 bytes per element and 8 per 256 of them, vectors 8 per element */
    {"adamw-8bit", 2048 + (12928 + 208) + (8192 + 128) + 2 * 512 +
                       2 * ((24576 + 384) + 1536 + (8192 + 128) + 512 + (32768 + 512) + 2048 + (32768 + 512) + 512 + 4 * 512)},
};

START_TEST(optimizers_keep_their_state)
{
    char keys[80];
    snprintf(keys, sizeof keys, "seq: 16, precision: fp32, optimizer: %s", states[_i].optimizer);
    run_job(keys, 2);
    ck_assert_uint_eq(live("it0.zero", MP_CATEGORY_OPTIMIZER_STATE), states[_i].state);
    ck_assert_uint_eq(live("it1.zero", MP_CATEGORY_OPTIMIZER_STATE), states[_i].state);
    ck_assert_uint_eq(live("it0.mb0.bwd", MP_CATEGORY_OPTIMIZER_STATE), 0);
}
END_TEST

START_TEST(foreach_adamw_takes_a_root_of_every_state_at_once)
{
    run_job("seq: 16, precision: fp32, optimizer: adamw-foreach", 2);
    const struct mp_phase *const opt = phase("it1.opt");
    ck_assert_uint_eq(opt->requested_peak_bytes - opt->requested_bytes, 4 * PARAMETERS);
}
END_TEST

START_TEST(fused_adamw_takes_nothing_more)
{
    run_job("seq: 16, precision: fp32, optimizer: adamw-fused", 2);
    const struct mp_phase *const opt = phase("it1.opt");
    ck_assert_uint_eq(opt->requested_peak_bytes, opt->requested_bytes);
}
END_TEST

/* ---- gradients ---- */

START_TEST(gradients_go_in_parameter_order)
{
    run_job("seq: 16, precision: fp32", 1);
    const uint32_t from = phase("it0.opt")->event, to = phase("it0.zero")->event;
    uint64_t sizes[TENSORS] = {0};
    int n = 0;
    for (uint32_t i = from; i < to && n < TENSORS; i++)
        if (program.events[i].kind == MP_EVENT_FREE)
            sizes[n++] = program.events[i].bytes;
    ck_assert_int_eq(n, TENSORS);
    ck_assert_uint_eq(sizes[0], 4 * 101 * 64);  /* wte */
    ck_assert_uint_eq(sizes[1], 4 * 64 * 64);   /* wpe */
    ck_assert_uint_eq(sizes[4], 4 * 64 * 192);  /* c_attn of the first block */
    ck_assert_uint_eq(sizes[27], 4 * 64);       /* the last norm's bias */
    ck_assert_uint_eq(live("it0.opt", MP_CATEGORY_GRADIENT), 4 * PARAMETERS);
    ck_assert_uint_eq(live("it0.zero", MP_CATEGORY_GRADIENT), 0);
}
END_TEST

START_TEST(kept_gradients_stay)
{
    run_job("seq: 16, precision: fp32, zero_grad: keep", 2);
    ck_assert_uint_eq(live("it0.zero", MP_CATEGORY_GRADIENT), 4 * PARAMETERS);
    ck_assert_uint_eq(live("it1.mb0.bwd", MP_CATEGORY_GRADIENT), 4 * PARAMETERS);
}
END_TEST

START_TEST(more_accumulation_takes_no_more)
{
    run_job("seq: 16, accumulate: 4", 2);
    ck_assert_uint_eq(phase("it1.mb1.bwd")->requested_peak_bytes, phase("it1.mb3.bwd")->requested_peak_bytes);
    ck_assert_uint_eq(phase("it1.mb1.bwd")->requested_bytes, phase("it1.mb3.bwd")->requested_bytes);
}
END_TEST

/* ---- outputs ---- */

START_TEST(outputs_live_into_the_next_forward)
{
    /* logits (16 x 101 bf16) and two losses of 4 bytes coexist with the second forward */
    run_job("seq: 16", 2);
    ck_assert_uint_ge(live("it0.zero", MP_CATEGORY_LOGITS), 16 * 101 * 2 + 4);
}
END_TEST

START_TEST(released_outputs_do_not)
{
    run_job("seq: 16, release_outputs: true", 2);
    ck_assert_uint_eq(live("it0.zero", MP_CATEGORY_LOGITS), 0);
    ck_assert_uint_eq(live("it1.zero", MP_CATEGORY_ACTIVATION), 0);
}
END_TEST

START_TEST(retained_losses_are_four_bytes_a_step)
{
    run_job("seq: 16, retain_losses: true", 4);
    const uint64_t second = phase("it2.zero")->requested_bytes - phase("it1.zero")->requested_bytes;
    ck_assert_uint_eq(second, 4);
    ck_assert_uint_eq(phase("it3.zero")->requested_bytes - phase("it2.zero")->requested_bytes, 4);
}
END_TEST

START_TEST(a_gradient_scaler_keeps_eight_bytes)
{
    run_job("seq: 16, precision: amp-fp16", 2);
    const uint64_t scaled = phase("it1.zero")->requested_bytes;
    teardown();
    setup();
    run_job("seq: 16, precision: amp-bf16", 2);
    ck_assert_uint_eq(scaled - phase("it1.zero")->requested_bytes, 8);
}
END_TEST

/* Nobody updates the scaler, so nobody would let go of what it found. */
START_TEST(gradients_of_no_optimizer_are_not_unscaled)
{
    run_job("seq: 16, precision: amp-fp16, clip_grad_norm: true, optimizer: none", 3);
    ck_assert_uint_eq(phase("it2.zero")->requested_bytes, phase("it0.zero")->requested_bytes);
}
END_TEST

START_TEST(empty_cache_is_called_each_step)
{
    run_job("seq: 16, empty_cache_each_step: true", 3);
    int n = 0;
    for (uint32_t i = 0; i < program.n_events; i++)
        n += program.events[i].kind == MP_EVENT_EMPTY_CACHE;
    ck_assert_int_eq(n, 3);
}
END_TEST

/* ---- lengths ---- */

static const struct {
    const char *keys;
    int64_t n, seq;
} lengths[] = {
    {"seq: 16", 5, 16},
    {"seq_lengths: [8, 16, 31]", 0, 8},
    {"seq_lengths: [8, 16, 31]", 5, 31},
    {"seq_lengths: [8, 16, 31], pad_to: 8", 2, 32},
};

START_TEST(lengths_cycle_over_micro_batches)
{
    ck_assert_int_eq(mp_job_seq(small_family_run(&arena, 0, lengths[_i].keys), lengths[_i].n), lengths[_i].seq);
}
END_TEST

/* ---- repeated steps ---- */

static const char *const steady_runs[] = {
    "seq: 16",
    "seq: 16, precision: fp32",
    "seq: 16, precision: amp-fp16, clip_grad_norm: true",
    "seq: 16, precision: amp-fp16, optimizer: adamw-fused",
    "seq: 16, accumulate: 3",
    "seq: 16, checkpoint: full",
    "seq: 16, checkpoint: full-reentrant",
    "seq: 16, checkpoint: {layers: [1]}, attention: eager",
    "seq: 16, release_outputs: true, zero_grad: keep",
    "seq: 16, use_cache: true",
    "seq: 16, optimizer: adafactor, attention_mask: padded",
    "seq: 16, empty_cache_each_step: true, optimizer: sgd-momentum",
};

/* Event by event, the step that is copied is the step that the model would have run. */
START_TEST(a_repeated_step_is_the_step_the_model_runs)
{
    enum { RUN = 4, COPIED = 3 };
    for (size_t family = 0; family < SMALL_FAMILIES; family++) {
        const struct mp_run *const run = small_family_run(&arena, family, steady_runs[_i]);
        struct mp_program programs[2];
        for (int copied = 0; copied < 2; copied++) {
            struct mp_job j;
            struct mp_step_events last = {0};
            mp_program_init(&programs[copied]);
            ck_assert_msg(mp_job_open(&j, run, &programs[copied], &err) == MEMPLAN_STATUS_OK, "%s", err.text);
            ck_assert_int_eq(mp_job_build(&j), MEMPLAN_STATUS_OK);
            for (int i = 0; i < RUN + COPIED; i++) {
                const uint32_t first = programs[copied].n_events, first_id = programs[copied].n_allocs;
                const bool copy = copied == 1 && i >= RUN;
                ck_assert_int_eq(copy ? mp_job_repeat_step(&j, &last) : mp_job_step(&j), MEMPLAN_STATUS_OK);
                last = (struct mp_step_events){first, programs[copied].n_events, first_id, programs[copied].n_allocs};
            }
            mp_job_close(&j);
        }
        const struct mp_program *const a = &programs[0], *const b = &programs[1];
        ck_assert_uint_eq(a->n_events, b->n_events);
        ck_assert_uint_eq(a->n_allocs, b->n_allocs);
        for (uint32_t i = 0; i < a->n_events; i++) {
            const struct mp_event *const x = &a->events[i], *const y = &b->events[i];
            ck_assert_msg(x->kind == y->kind && x->id == y->id && x->bytes == y->bytes && x->stream == y->stream,
                          "family %zu, event %u of %u: id %u, %llu bytes against %u, %llu", family, i, a->n_events, x->id,
                          (unsigned long long)x->bytes, y->id, (unsigned long long)y->bytes);
        }
        ck_assert_uint_eq(a->n_phases, b->n_phases);
        for (uint32_t i = 0; i < a->n_phases; i++) {
            ck_assert_str_eq(a->phases[i].name, b->phases[i].name);
            ck_assert_uint_eq(a->phases[i].requested_bytes, b->phases[i].requested_bytes);
            ck_assert_uint_eq(a->phases[i].requested_peak_bytes, b->phases[i].requested_peak_bytes);
        }
        mp_program_release(&programs[0]);
        mp_program_release(&programs[1]);
    }
}
END_TEST

START_TEST(what_changes_from_step_to_step_is_never_copied)
{
    ck_assert_int_eq(mp_job_steady_from(small_family_run(&arena, 0, "seq_lengths: [8, 16]")), INT64_MAX);
    ck_assert_int_eq(mp_job_steady_from(small_family_run(&arena, 0, "seq: 16, retain_losses: true")), INT64_MAX);
    ck_assert_int_lt(mp_job_steady_from(small_family_run(&arena, 0, "seq: 16")), 3);
}
END_TEST

Suite *suite_job(void)
{
    Suite *const suite = suite_create("job");
    TCase *const tc = tcase_create("loop");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, phases_follow_the_loop, 0, (int)MP_ARRAY_LEN(orders));
    tcase_add_loop_test(tc, the_model_has_its_parameters, 0, (int)MP_ARRAY_LEN(precisions));
    tcase_add_loop_test(tc, data_are_ids_per_micro_batch, 0, (int)MP_ARRAY_LEN(inputs));
    tcase_add_loop_test(tc, optimizers_keep_their_state, 0, (int)MP_ARRAY_LEN(states));
    tcase_add_test(tc, foreach_adamw_takes_a_root_of_every_state_at_once);
    tcase_add_test(tc, fused_adamw_takes_nothing_more);
    tcase_add_test(tc, gradients_go_in_parameter_order);
    tcase_add_test(tc, kept_gradients_stay);
    tcase_add_test(tc, more_accumulation_takes_no_more);
    tcase_add_test(tc, outputs_live_into_the_next_forward);
    tcase_add_test(tc, released_outputs_do_not);
    tcase_add_test(tc, retained_losses_are_four_bytes_a_step);
    tcase_add_test(tc, a_gradient_scaler_keeps_eight_bytes);
    tcase_add_test(tc, gradients_of_no_optimizer_are_not_unscaled);
    tcase_add_test(tc, empty_cache_is_called_each_step);
    suite_add_tcase(suite, tc);
    TCase *const steps = tcase_create("steps");
    tcase_add_unchecked_fixture(steps, setup, NULL);
    tcase_add_loop_test(steps, lengths_cycle_over_micro_batches, 0, (int)MP_ARRAY_LEN(lengths));
    tcase_add_loop_test(steps, a_repeated_step_is_the_step_the_model_runs, 0, (int)MP_ARRAY_LEN(steady_runs));
    tcase_add_test(steps, what_changes_from_step_to_step_is_never_copied);
    suite_add_tcase(suite, steps);
    return suite;
}
