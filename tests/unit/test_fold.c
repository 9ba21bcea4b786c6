/* SPDX-License-Identifier: MIT */
/* Folding: what four blocks tell is what all of them ask for, and where they do not, the model is run in full. */
#include "plan/fold.h"

#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void) { mp_arena_release(&arena); }

static const struct mp_run *make_run(const char *const *settings)
{
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    for (size_t i = 0; settings[i]; i += 2)
        ck_assert_msg(mp_run_source_text(&source, settings[i], "--x", settings[i + 1], &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    return run;
}

#define RUN(...) make_run((const char *const[]){__VA_ARGS__, NULL})
#define SMALL "{model_type: gpt2, n_layer: 9, n_embd: 64, n_head: 4, n_positions: 256, vocab_size: 512}"

static const struct {
    const char *settings[13];
    bool folds;
} runs[] = {
    {{"model", "gpt2"}, true},
    {{"model", "gpt2", "checkpoint", "full"}, true},
    {{"model", "gpt2", "checkpoint", "full-reentrant", "precision", "bf16"}, true},
    {{"model", "gpt2", "optimizer", "adafactor"}, true},
    {{"model", "gpt2", "optimizer", "adamw-forloop", "accumulate", "3"}, true},
    {{"model", "gpt2", "attention", "eager", "attention_mask", "padded"}, true},
    {{"model", "gpt2", "precision", "amp-fp16", "optimizer", "adamw-fused"}, true},
    {{"model", "bert-base", "batch", "2"}, true},
    {{"model", "bert-base", "checkpoint", "full"}, true},
    {{"model", "qwen3-0.6b", "seq", "512"}, true},
    {{"model", "llama3.2-1b", "seq", "512", "optimizer", "sgd", "zero_grad", "keep"}, true},
    {{"model", "mistral-7b", "seq", "512", "precision", "bf16", "optimizer", "none"}, true},
    {{"model", SMALL, "iterations", "1"}, true},
    {{"model", SMALL, "iterations", "2", "use_cache", "true"}, true},
    {{"model", SMALL, "empty_cache_each_step", "true"}, true},
    {{"model", SMALL, "init_device", "cpu", "release_outputs", "true"}, true},
    {{"model", "gpt2", "checkpoint", "{layers: [0, 3]}"}, false}, /* blocks differ */
    {{"model", "gpt2", "clip_grad_norm", "true"}, false},        /* sizes depend on their number */
    {{"model", "{model_type: gpt2, n_layer: 4, n_embd: 64, n_head: 4}"}, false}, /* too few */
};

static const struct mp_run *nth_run(int i)
{
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    ck_assert(mp_run_source_text(&source, "gpu", "--gpu", "H200-141G", &err) == MEMPLAN_STATUS_OK);
    for (size_t k = 0; runs[i].settings[k]; k += 2)
        ck_assert_msg(mp_run_source_text(&source, runs[i].settings[k], "--x", runs[i].settings[k + 1], &err) == MEMPLAN_STATUS_OK, "%s",
                      err.text);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    return run;
}

START_TEST(equals_the_whole_run)
{
    struct mp_fold fold = {0};
    struct mp_fold_scratch scratch = {0};
    struct mp_requests whole = {0}, unfolded = {0};
    const struct mp_run *const run = nth_run(_i);
    ck_assert_int_eq(mp_fold_record(&fold, &scratch, run, mp_fold_model(run->model, &arena), &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_requests_record(&whole, run, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_fold_expand(&fold, &unfolded, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(fold.folded, runs[_i].folds);
    ck_assert_uint_eq(fold.peak_bytes, whole.peak_bytes);
    ck_assert(mp_requests_equal(&whole, &unfolded));
    if (fold.folded)
        ck_assert_uint_lt(fold.recorded.n_requests, whole.n_requests);
    mp_fold_release(&fold);
    mp_fold_scratch_release(&scratch);
    mp_requests_release(&whole);
    mp_requests_release(&unfolded);
}
END_TEST

/* A replay of what was recorded says what the evaluation says, which runs model and allocator together. */
START_TEST(replays_like_an_evaluation)
{
    struct mp_requests requests = {0};
    struct mp_replayer replayer = {0};
    struct mp_verdict v;
    struct mp_evaluation e;
    const struct mp_run *const run = nth_run(_i);
    ck_assert(mp_requests_applies(run));
    ck_assert_int_eq(mp_requests_record(&requests, run, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_requests_replay(&requests, run, &replayer, NULL, 0, &v, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_evaluate(run, NULL, &e, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(v.fits, e.fits);
    ck_assert_uint_eq(v.requested_bytes, e.requested_bytes);
    ck_assert_uint_eq(v.allocated_bytes, e.allocated_bytes);
    ck_assert_uint_eq(v.reserved_bytes, e.reserved_bytes);
    ck_assert_uint_eq(v.device_used_bytes, e.device_used_bytes);
    mp_evaluation_release(&e);
    mp_requests_release(&requests);
    mp_replayer_release(&replayer);
}
END_TEST

/* Steps that are written down from an earlier run of another size are those that the model would have run. */
START_TEST(writes_steps_that_it_knows)
{
    struct mp_known_steps known = {0};
    struct mp_requests learnt = {.known = &known}, plain = {0};
    static const char *const batches[] = {"1", "2", "3", "5", "8"};
    for (size_t i = 0; i < MP_ARRAY_LEN(batches); i++) {
        const struct mp_run *const run = RUN("model", "gpt2", "gpu", "A100-40G", "batch", batches[i]);
        ck_assert_int_eq(mp_requests_record(&learnt, run, &err), MEMPLAN_STATUS_OK);
        ck_assert_int_eq(mp_requests_record(&plain, run, &err), MEMPLAN_STATUS_OK);
        ck_assert(mp_requests_equal(&learnt, &plain));
    }
    ck_assert_int_gt(known.n, 0);
    ck_assert_int_lt(known.n, (int)MP_ARRAY_LEN(batches)); /* at least one was not run again */
    mp_requests_release(&learnt);
    mp_requests_release(&plain);
}
END_TEST

static const char *const uneven[] = {
    "{model_type: qwen3, num_hidden_layers: 28, use_sliding_window: true, max_window_layers: 4}",
    "{model_type: qwen3, num_hidden_layers: 8, layer_types: [a, b]}",
    "{model_type: gpt2, n_layer: 4}",
    "{model_type: unknown, n_layer: 40}",
};

START_TEST(leaves_uneven_models_alone)
{
    const struct mp_run *const run = RUN("model", "gpt2", "gpu", "T4-16G");
    struct mp_run_source source;
    struct mp_model model = *run->model;
    mp_run_source_init(&source, &arena);
    ck_assert_int_eq(mp_run_source_text(&source, "model", "--model", uneven[_i], &err), MEMPLAN_STATUS_OK);
    model.config = source.values[MP_KEY_MODEL];
    model.model_type = mp_value_get(model.config, "model_type")->as.string.text;
    ck_assert_ptr_null(mp_fold_model(&model, &arena));
}
END_TEST

START_TEST(peak_is_that_of_an_evaluation)
{
    struct mp_fold fold = {0};
    struct mp_fold_scratch scratch = {0};
    struct mp_evaluation e;
    const struct mp_run *const run = RUN("model", "gpt-1.3b", "gpu", "H200-141G", "batch", "4");
    ck_assert_int_eq(mp_fold_record(&fold, &scratch, run, mp_fold_model(run->model, &arena), &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_evaluate(run, NULL, &e, &err), MEMPLAN_STATUS_OK);
    ck_assert(fold.folded);
    ck_assert_uint_eq(fold.peak_bytes, e.requested_bytes);
    mp_evaluation_release(&e);
    mp_fold_release(&fold);
    mp_fold_scratch_release(&scratch);
}
END_TEST

Suite *suite_fold(void)
{
    Suite *const suite = suite_create("fold");
    TCase *const tc = tcase_create("fold");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, equals_the_whole_run, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_loop_test(tc, replays_like_an_evaluation, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_test(tc, writes_steps_that_it_knows);
    tcase_add_loop_test(tc, leaves_uneven_models_alone, 0, (int)MP_ARRAY_LEN(uneven));
    tcase_add_test(tc, peak_is_that_of_an_evaluation);
    suite_add_tcase(suite, tc);
    return suite;
}
