/* SPDX-License-Identifier: MIT */
/* Verdicts without a report are those of evaluations, whichever way they come about. */
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

static void teardown(void) { mp_arena_release(&arena); }

static void compare(struct mp_judge *j, const struct mp_run *run)
{
    struct mp_verdict v;
    struct mp_evaluation e;
    ck_assert_msg(mp_judge_verdict(j, run, &v, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_msg(mp_evaluate(run, NULL, &e, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_int_eq(v.fits, e.fits);
    ck_assert_int_eq(v.oom, e.oom);
    ck_assert_uint_eq(v.requested_bytes, e.requested_bytes);
    ck_assert_uint_eq(v.allocated_bytes, e.allocated_bytes);
    ck_assert_uint_eq(v.reserved_bytes, e.reserved_bytes);
    ck_assert_uint_eq(v.device_used_bytes, e.device_used_bytes);
    mp_evaluation_release(&e);
}

#define GPT2 "model: {model_type: gpt2, n_layer: 9, n_embd: 512, n_head: 8, n_positions: 1024, vocab_size: 9000}\ngpu: T4-16G\n"

static const struct {
    const char *keys;
    bool heard; /* else every verdict is an evaluation */
} runs[] = {
    {GPT2 "seq: 512", true},
    {GPT2 "seq: 300\nprecision: fp32\noptimizer: adafactor\ncheckpoint: full", true},
    {GPT2 "clip_grad_norm: true\naccumulate: 2", true},                /* cannot be folded */
    {GPT2 "allocator_conf: \"expandable_segments:True\"", true},
    {GPT2 "empty_cache_each_step: true", true},
    {GPT2 "iterations: 2\nzero_grad: keep", true},
    {GPT2 "seq_lengths: [128, 512]", false},
    {GPT2 "iterations: 70", false},
    {GPT2 "retain_losses: true\niterations: 4", false},
    {GPT2 "data_parallel: ddp\nworld: 2", false},
};

START_TEST(verdicts_are_those_of_evaluations)
{
    struct mp_run run = *small_run(&arena, runs[_i].keys);
    struct mp_judge j;
    for (int folds = 0; folds < 2; folds++) {
        mp_judge_init(&j, folds ? &run : NULL);
        for (run.batch = 1; run.batch < 200; run.batch *= 3) {
            ck_assert_msg(mp_judge_hear(&j, &run, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
            ck_assert_int_eq(j.heard, runs[_i].heard);
            compare(&j, &run);
        }
        mp_judge_release(&j);
    }
}
END_TEST

/* Heard once, a run is judged on cards that differ in capacity. */
START_TEST(one_run_is_judged_on_several_cards)
{
    struct mp_run run = *small_run(&arena, GPT2 "batch: 16");
    struct mp_gpu gpu = *run.gpu;
    struct mp_judge j;
    mp_judge_init(&j, NULL);
    ck_assert_int_eq(mp_judge_hear(&j, &run, &err), MEMPLAN_STATUS_OK);
    for (uint64_t gib = 1; gib < 40; gib += 3) {
        gpu.total_bytes.value = gib << 30;
        run.gpu = &gpu;
        compare(&j, &run);
    }
    mp_judge_release(&j);
}
END_TEST

Suite *suite_judge(void)
{
    Suite *const suite = suite_create("judge");
    TCase *const tc = tcase_create("judge");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, verdicts_are_those_of_evaluations, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_test(tc, one_run_is_judged_on_several_cards);
    suite_add_tcase(suite, tc);
    return suite;
}
