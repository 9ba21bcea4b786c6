/* SPDX-License-Identifier: MIT */
/* bitsandbytes' 8-bit AdamW: which tensors have which state, and where paged state goes. */
#include <check.h>

#include "base/yaml.h"
#include "suites.h"
#include "train/job.h"

static struct mp_job job;
static struct mp_arena arena;
static struct mp_program program;
static struct memplan_error err;

static void setup(void)
{
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
    mp_arena_init(&arena);
    mp_program_init(&program);
}

static void teardown(void)
{
    mp_job_close(&job);
    mp_program_release(&program);
    mp_arena_release(&arena);
}

/* One step of a gpt2 whose token table has 2,048 * 64 elements. */
static const struct mp_run *run_step(const char *optimizer)
{
    char text[300];
    struct mp_run_source source;
    (void)snprintf(text, sizeof text,
                   "{gpu: H200-141G, seq: 16, precision: bf16, optimizer: %s, model: {model_type: "
                   "gpt2, n_embd: 64, "
                   "n_head: 4, n_layer: 1, vocab_size: 2048, n_positions: 16}}",
                   optimizer);
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "run", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    ck_assert_int_eq(mp_run_source_object(&source, "run", value, &err), MEMPLAN_STATUS_OK);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(mp_job_open(&job, run, &program, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_job_build(&job), MEMPLAN_STATUS_OK);
    ck_assert_msg(mp_job_step(&job) == MEMPLAN_STATUS_OK, "%s", err.text);
    return run;
}

static struct mp_tensor **state_of(const char *name)
{
    for (int i = 0; i < job.optimizer.n_parameters; i++)
        if (strcmp(job.optimizer.parameters[i]->name, name) == 0)
            return job.optimizer.state[i].tensors;
    ck_abort_msg("no parameter %s", name);
    return NULL;
}

START_TEST(large_tensors_have_a_byte_per_element_and_maxima)
{
    run_step("adamw-8bit");
    struct mp_tensor **const state = state_of("wte");
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(state[i]->dtype, MP_U8);
        ck_assert_int_eq(mp_numel(state[i]), 2048 * 64);
        ck_assert_int_eq(state[i + 2]->dtype, MP_F32);
        ck_assert_int_eq(mp_numel(state[i + 2]), 2048 * 64 / 256);
    }
}
END_TEST

START_TEST(small_tensors_have_float_state)
{
    run_step("adamw-8bit");
    struct mp_tensor **const state = state_of("wpe"); /* 16 * 64 < 4096 */
    ck_assert_int_eq(state[0]->dtype, MP_F32);
    ck_assert_int_eq(state[1]->dtype, MP_F32);
    ck_assert_ptr_null(state[2]);
}
END_TEST

START_TEST(paged_state_is_not_the_allocators)
{
    const struct mp_run *const run = run_step("paged-adamw-8bit");
    struct mp_tensor **const large = state_of("wte"), **const small = state_of("attn.c_attn");
    ck_assert_ptr_null(large[0]);
    ck_assert_int_eq(mp_numel(large[2]), 2048 * 64 / 256);
    ck_assert_int_eq(small[0]->dtype, MP_U8); /* 64 * 192 < 100,000: as without pages */
    ck_assert_uint_eq(run->n_warnings, 1);
    ck_assert_ptr_nonnull(strstr(run->warnings[0], "managed memory"));
}
END_TEST

Suite *suite_optimizer_8bit(void)
{
    Suite *const suite = suite_create("optimizer_8bit");
    TCase *const tcase = tcase_create("state");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, large_tensors_have_a_byte_per_element_and_maxima);
    tcase_add_test(tcase, small_tensors_have_float_state);
    tcase_add_test(tcase, paged_state_is_not_the_allocators);
    suite_add_tcase(suite, tcase);
    return suite;
}
