/* SPDX-License-Identifier: MIT */
/* The installed header, used as its example shows. */
#include "memplan.h"

#include "base/json.h"
#include "suites.h"

START_TEST(a_run_is_answered_as_by_the_command)
{
    struct memplan_error err = {MEMPLAN_STATUS_IO, "untouched"};
    char *const text = memplan_fit_json("{\"model\": \"gpt2\", \"gpu\": \"A100-80G\", \"seq\": 64}", &err);
    ck_assert_msg(text != NULL, "%s", err.text);
    ck_assert_str_eq(err.text, "untouched");
    struct mp_arena arena = {0};
    const struct mp_value *const report = mp_json_parse(&arena, "report", text, strlen(text), &err);
    ck_assert_msg(report != NULL, "%s", err.text);
    ck_assert(mp_value_get(report, "fits")->as.boolean);
    ck_assert_int_gt(mp_value_get(report, "device_used_bytes")->as.integer, 0);
    ck_assert_int_eq(mp_value_get(report, "advice")->kind, MP_NULL);
    mp_arena_release(&arena);
    free(text);
}
END_TEST

START_TEST(a_job_that_dies_is_an_answer)
{
    char *const text = memplan_fit_json("model: llama2-7b\ngpu: T4-16G\n", NULL);
    ck_assert_ptr_nonnull(text);
    ck_assert_ptr_nonnull(strstr(text, "\"fits\": false"));
    free(text);
}
END_TEST

static const struct {
    const char *run;
    enum memplan_status status;
    const char *says;
} wrong[] = {
    {"{\"model\": \"gpt2\"", MEMPLAN_STATUS_INPUT, "run:2:1: did not find expected"},
    {"{model: gpt2}", MEMPLAN_STATUS_INPUT, "gpu: missing"},
    {"{model: gpt2, gpu: A100-80G, batches: 2}", MEMPLAN_STATUS_INPUT, "unknown key 'batches'"},
    {"{model: {model_type: rwkv}, gpu: A100-80G}", MEMPLAN_STATUS_UNSUPPORTED, "'rwkv' is not supported"},
};

START_TEST(what_is_wrong_is_told)
{
    struct memplan_error err = {0};
    ck_assert_ptr_null(memplan_fit_json(wrong[_i].run, &err));
    ck_assert_int_eq(err.status, wrong[_i].status);
    ck_assert_msg(strstr(err.text, wrong[_i].says) != NULL, "%s", err.text);
    ck_assert_ptr_null(memplan_fit_json(wrong[_i].run, NULL));
}
END_TEST

Suite *suite_public(void)
{
    Suite *const suite = suite_create("public");
    TCase *const tc = tcase_create("public");
    tcase_set_timeout(tc, 30);
    tcase_add_test(tc, a_run_is_answered_as_by_the_command);
    tcase_add_test(tc, a_job_that_dies_is_an_answer);
    tcase_add_loop_test(tc, what_is_wrong_is_told, 0, (int)MP_ARRAY_LEN(wrong));
    suite_add_tcase(suite, tc);
    return suite;
}
