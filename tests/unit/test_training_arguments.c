/* SPDX-License-Identifier: MIT */
/* TrainingArguments turned into a run: what they fill in, what the run's own keys keep, what is told. */
#include <check.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/yaml.h"
#include "spec/run.h"
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

static const struct mp_run *resolve(const char *members)
{
    char text[512];
    struct mp_run_source source;
    (void)snprintf(text, sizeof text, "{model: gpt2, gpu: H200-141G, %s}", members);
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "run", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    if (mp_run_source_object(&source, "run", value, &err) != MEMPLAN_STATUS_OK)
        return NULL;
    return mp_run_resolve(&source, &err);
}

#define WITH(arguments) "framework: hf-trainer, training_arguments: {" arguments "}"

START_TEST(defaults_are_those_of_transformers)
{
    const struct mp_run *const run = resolve("framework: hf-trainer");
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_ptr_nonnull(run->trainer);
    ck_assert_int_eq(run->batch, 8);
    ck_assert_int_eq(run->accumulate, 1);
    ck_assert_int_eq(run->precision, MP_PRECISION_FP32);
    ck_assert_int_eq(run->trainer->amp, MP_AMP_NONE);
    ck_assert_int_eq(run->optimizer, MP_OPTIMIZER_ADAMW_FUSED);
    ck_assert(run->clip_grad_norm && run->init_cpu);
    ck_assert_int_eq(run->trainer->eval_steps, 0);
}
END_TEST

START_TEST(arguments_fill_in_the_run)
{
    const struct mp_run *const run = resolve(
        WITH("output_dir: out, learning_rate: 5.0e-5, per_device_train_batch_size: 4, bf16: true, "
             "gradient_accumulation_steps: 2, gradient_checkpointing: true, optim: adamw_torch, "
             "eval_strategy: steps, eval_steps: 100, per_device_eval_batch_size: 16"));
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->batch, 4);
    ck_assert_int_eq(run->accumulate, 2);
    ck_assert_int_eq(run->trainer->amp, MP_AMP_BF16);
    ck_assert_int_eq(run->checkpoint, MP_CHECKPOINT_FULL);
    ck_assert_int_eq(run->optimizer, MP_OPTIMIZER_ADAMW_FOREACH);
    ck_assert_int_eq(run->trainer->eval_steps, 100);
    ck_assert_int_eq(run->trainer->eval_batch, 16);
}
END_TEST

START_TEST(keys_of_the_run_win)
{
    const struct mp_run *const run = resolve("batch: 2, precision: bf16, optimizer: sgd, " WITH(
        "per_device_train_batch_size: 4, bf16: true, optim: adamw_torch"));
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->batch, 2);
    ck_assert_int_eq(run->precision, MP_PRECISION_BF16); /* of the weights, under autocast */
    ck_assert_int_eq(run->trainer->amp, MP_AMP_BF16);
    ck_assert_int_eq(run->optimizer, MP_OPTIMIZER_SGD);
}
END_TEST

START_TEST(reentrant_checkpointing_is_an_argument_of_its_own)
{
    const struct mp_run *const run = resolve(
        WITH("gradient_checkpointing: true, gradient_checkpointing_kwargs: {use_reentrant: true}"));
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->checkpoint, MP_CHECKPOINT_FULL_REENTRANT);
}
END_TEST

START_TEST(arguments_are_read_from_a_file)
{
    static const char json[] =
        "{\"output_dir\": \"out\", \"fp16\": true, \"report_to\": [\"none\"]}";
    char path[] = "/tmp/memplan-arguments-XXXXXX", members[128];
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_int_eq(mp_file_write(path, json, strlen(json), &err), MEMPLAN_STATUS_OK);
    (void)snprintf(members, sizeof members, "framework: hf-trainer, training_arguments: %s", path);
    const struct mp_run *const run = resolve(members);
    unlink(path);
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->trainer->amp, MP_AMP_FP16);
}
END_TEST

static const struct {
    const char *members, *told;
} mistakes[] = {
    {"training_arguments: {bf16: true}", "training_arguments: only for framework hf-trainer"},
    {WITH("bf16: true, fp16: true"), "training_arguments.fp16"},
    {WITH("bf16: 1"), "training_arguments.bf16"},
    {WITH("optim: adamw_bnb_8bit"), "\"adamw_bnb_8bit\" is not supported; adamw_torch_fused"},
    {WITH("torch_compile: true"), "training_arguments.torch_compile: not supported"},
    {WITH("deepspeed: ds.json"), "training_arguments.deepspeed: not supported"},
    {WITH("gradient_accumulation_steps: 0"), "training_arguments.gradient_accumulation_steps: 0"},
    {"framework: hf-trainer, training_arguments: /nowhere/a.json", "/nowhere/a.json"},
    {"framework: hf-trainer, seq_lengths: [8, 16]",
     "seq_lengths: not supported with framework hf-trainer"},
    {"framework: hf-trainer, retain_losses: true", "retain_losses: not supported"},
    {"framework: hf-trainer, training_arguments: 3", "3 is not an object or a file"},
};

START_TEST(mistakes_are_told)
{
    ck_assert_ptr_null(resolve(mistakes[_i].members));
    ck_assert_msg(strstr(err.text, mistakes[_i].told) != NULL, "%s: %s", mistakes[_i].members,
                  err.text);
}
END_TEST

START_TEST(a_run_writes_what_it_was_told)
{
    struct mp_strbuf first = MP_STRBUF_INIT, second = MP_STRBUF_INIT;
    struct mp_json_writer w;
    const struct mp_run *const run =
        resolve(WITH("bf16: true, eval_strategy: steps, eval_steps: 7, logging_steps: 3"));
    ck_assert_msg(run != NULL, "%s", err.text);
    mp_json_init(&w, &first, 0);
    mp_run_write_json(run, &w, NULL);
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value =
        mp_json_parse(&arena, "written", mp_strbuf_text(&first), first.len, &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    ck_assert_int_eq(mp_run_source_object(&source, "written", value, &err), MEMPLAN_STATUS_OK);
    const struct mp_run *const again = mp_run_resolve(&source, &err);
    ck_assert_msg(again != NULL, "%s", err.text);
    mp_json_init(&w, &second, 0);
    mp_run_write_json(again, &w, NULL);
    ck_assert_str_eq(mp_strbuf_text(&first), mp_strbuf_text(&second));
    ck_assert_int_eq(again->trainer->eval_steps, 7);
    mp_strbuf_release(&first);
    mp_strbuf_release(&second);
}
END_TEST

Suite *suite_training_arguments(void)
{
    Suite *const suite = suite_create("training_arguments");
    TCase *const tcase = tcase_create("arguments");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, defaults_are_those_of_transformers);
    tcase_add_test(tcase, arguments_fill_in_the_run);
    tcase_add_test(tcase, keys_of_the_run_win);
    tcase_add_test(tcase, reentrant_checkpointing_is_an_argument_of_its_own);
    tcase_add_test(tcase, arguments_are_read_from_a_file);
    tcase_add_loop_test(tcase, mistakes_are_told, 0, (int)MP_ARRAY_LEN(mistakes));
    tcase_add_test(tcase, a_run_writes_what_it_was_told);
    suite_add_tcase(suite, tcase);
    return suite;
}
