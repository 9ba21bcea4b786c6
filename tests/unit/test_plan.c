/* SPDX-License-Identifier: MIT */
/* Plans: step times against measured ones, what blocks take against a run, and plans that fit when they are run. */
#include "plan/plan.h"

#include <math.h>

#include "base/file.h"
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

/* ---- step times ---- */

struct timed {
    const char *id;
    double measured_s, predicted_s;
};

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of all steps but the first, which loads kernels. */
/* Of the steps from `from` on: the first ones warm up. */
static double median_step(const struct mp_value *steps, size_t from)
{
    double numbers[64];
    size_t n = 0;
    for (size_t i = from; i < steps->as.array.length && n < MP_ARRAY_LEN(numbers); i++)
        n += mp_value_number(steps->as.array.items[i], &numbers[n]);
    ck_assert_uint_gt(n, 0);
    qsort(numbers, n, sizeof numbers[0], compare_numbers);
    return numbers[n / 2];
}

/* Rows of a file whose id begins with `prefix`. */
static size_t read_timed(const char *path, const char *prefix, size_t from, struct timed *rows, size_t max)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    size_t n = 0;
    ck_assert_msg(mp_file_read(path, 0, &text, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    for (char *line = text.data, *end; line && *line && n < max; line = end + 1) {
        struct mp_run_source source;
        struct mp_step_cost cost;
        end = strchr(line, '\n');
        const struct mp_value *const row = mp_json_parse(&arena, path, line, (size_t)(end - line), &err);
        ck_assert_msg(row != NULL, "%s", err.text);
        const char *const id = mp_value_get(row, "id")->as.string.text;
        if (strncmp(id, prefix, strlen(prefix)) != 0)
            continue;
        mp_run_source_init(&source, &arena);
        ck_assert_int_eq(mp_run_source_object(&source, "run", mp_value_get(row, "run"), &err), MEMPLAN_STATUS_OK);
        const struct mp_run *const run = mp_run_resolve(&source, &err);
        ck_assert_msg(run && mp_cost_estimate(run, &arena, &cost, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
        rows[n++] = (struct timed){id, median_step(mp_value_get(mp_value_get(row, "measured"), "step_s"), from), cost.step_s};
    }
    mp_strbuf_release(&text);
    return n;
}

/* What docs/plan.md says of step times that set no constant. */
static const struct {
    const char *path, *prefix;
    size_t from, n, within; /* how many are within 15 % */
    double worst;
    size_t n_wrong; /* pairs in the wrong order */
} judged[] = {
    {"validate/results/h200-steps.jsonl", "step-", 1, 16, 16, 0.09, 0},
    {"validate/results/h200-steptimes.jsonl", "sealed-", 0, 10, 8, 0.30, 0},
    {"validate/results/h200-steptimes.jsonl", "choice-", 0, 9, 9, 0.12, 1},
};

START_TEST(step_times_are_as_good_as_told)
{
    struct timed rows[64];
    const size_t n = read_timed(judged[_i].path, judged[_i].prefix, judged[_i].from, rows, MP_ARRAY_LEN(rows));
    size_t within = 0, n_wrong = 0;
    ck_assert_uint_eq(n, judged[_i].n);
    for (size_t i = 0; i < n; i++) {
        const double off = fabs(rows[i].predicted_s / rows[i].measured_s - 1);
        ck_assert_msg(off <= judged[_i].worst, "%s: %.4f s predicted, %.4f s measured", rows[i].id, rows[i].predicted_s, rows[i].measured_s);
        within += off <= 0.15;
        for (size_t k = 0; k < n; k++)
            n_wrong += rows[i].measured_s > 1.1 * rows[k].measured_s && rows[i].predicted_s <= rows[k].predicted_s;
    }
    ck_assert_uint_ge(within, judged[_i].within);
    ck_assert_uint_le(n_wrong, judged[_i].n_wrong);
}
END_TEST

START_TEST(recomputation_and_accumulation_take_time)
{
    struct mp_step_cost keep, recompute, twice;
    ck_assert_int_eq(mp_cost_estimate(RUN("model", "gpt2", "gpu", "A100-40G", "batch", "8"), &arena, &keep, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_cost_estimate(RUN("model", "gpt2", "gpu", "A100-40G", "batch", "8", "checkpoint", "full"), &arena, &recompute, &err),
                     MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_cost_estimate(RUN("model", "gpt2", "gpu", "A100-40G", "batch", "8", "accumulate", "4"), &arena, &twice, &err),
                     MEMPLAN_STATUS_OK);
    ck_assert_double_gt(recompute.backward_s, keep.backward_s + 0.5 * keep.forward_s);
    ck_assert_double_lt(recompute.backward_s, keep.backward_s + keep.forward_s);
    ck_assert_double_gt(twice.step_s - twice.optimizer_s, 3.9 * (keep.step_s - keep.optimizer_s));
}
END_TEST

/* ---- what blocks take ---- */

static const char *const profiled[][9] = {
    {"model", "gpt2", "batch", "8"},
    {"model", "gpt-1.3b", "batch", "2"},
    {"model", "llama3.2-1b", "batch", "2", "precision", "bf16"},
    {"model", "bert-base", "batch", "16", "attention", "eager"},
    {"model", "qwen3-0.6b", "accumulate", "2", "optimizer", "adafactor"},
};

static int all_kept(int l, int n) { return (void)l, (void)n, MP_PLAN_KEEP; }
static int all_recomputed(int l, int n) { return (void)l, (void)n, MP_PLAN_RECOMPUTE; }
static int every_second(int l, int n) { return (void)n, l % 2 ? MP_PLAN_RECOMPUTE : MP_PLAN_KEEP; }
static int first_third(int l, int n) { return l < n / 3 ? MP_PLAN_RECOMPUTE : MP_PLAN_KEEP; }
static int later_half(int l, int n) { return l >= n / 2 ? MP_PLAN_RECOMPUTE : MP_PLAN_KEEP; }
static int in_turn(int l, int n) { return (void)n, l % MP_PLAN_CHOICES; }
static int in_turn_backwards(int l, int n) { return (n - l) % MP_PLAN_CHOICES; }
static int attention_then_mlp(int l, int n) { return l < n / 2 ? MP_PLAN_ATTENTION : MP_PLAN_MLP; }
static int offloaded_first(int l, int n) { return l < n / 3 ? MP_PLAN_OFFLOAD : l < n / 2 ? MP_PLAN_MLP : MP_PLAN_KEEP; }
static int (*const patterns[])(int l, int n) = {all_kept, all_recomputed,   every_second,      first_third,       later_half,
                                                in_turn,  in_turn_backwards, attention_then_mlp, offloaded_first};

/* Any choice of blocks: the sum of what they take is the peak that the run has. */
START_TEST(profile_tells_the_peak_of_any_choice)
{
    struct mp_plan_profile profile;
    const char *settings[12] = {"gpu", "B200-180G"};
    for (int i = 0; profiled[_i][i]; i++)
        settings[2 + i] = profiled[_i][i];
    const struct mp_run *const run = make_run(settings);
    ck_assert_msg(mp_plan_profile_make(run, &arena, &profile, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    for (size_t pattern = 0; pattern < MP_ARRAY_LEN(patterns); pattern++) {
        int choice[64];
        struct mp_run other = *run;
        struct mp_evaluation e;
        for (int l = 0; l < profile.n_layers; l++)
            choice[l] = patterns[pattern](l, profile.n_layers);
        ck_assert(mp_plan_set_blocks(&other, choice, profile.n_layers, &arena));
        ck_assert_int_eq(mp_evaluate(&other, NULL, &e, &err), MEMPLAN_STATUS_OK);
        const double ratio = (double)mp_plan_profile_peak(&profile, choice) / (double)e.requested_bytes;
        ck_assert_msg(fabs(ratio - 1) < 0.005, "pattern %zu: predicted / true = %f", pattern, ratio);
        mp_evaluation_release(&e);
    }
}
END_TEST

/* ---- plans ---- */

static const struct {
    const char *settings[11];
    uint64_t tokens;
    int64_t gpus;
} planned[] = {
    {{"model", "gpt2", "gpu", "A100-40G", "allocator_limit_bytes", "5GiB"}, 16384, 1},
    {{"model", "gpt2-medium", "gpu", "RTX4090-24G", "seq", "512", "allocator_limit_bytes", "9GiB"}, 8192, 1},
    {{"model", "bert-base", "gpu", "T4-16G", "allocator_limit_bytes", "4GiB"}, 0, 1},
    {{"model", "gpt2", "gpu", "A100-40G", "seq", "512", "allocator_limit_bytes", "4GiB"}, 8192, 2},
};

static void make_plan(int i, struct mp_plan *plan, struct mp_plan_request *request)
{
    *request = (struct mp_plan_request){.run = make_run(planned[i].settings), .tokens_per_step = planned[i].tokens, .gpus = planned[i].gpus,
                                        .pareto = planned[i].gpus == 1};
    ck_assert_msg(mp_plan_make(request, plan, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
}

START_TEST(plans_fit_and_keep_their_word)
{
    struct mp_plan plan;
    struct mp_plan_request request;
    struct mp_evaluation e;
    make_plan(_i, &plan, &request);
    const struct mp_plan_option *const best = plan.best;
    ck_assert_ptr_nonnull(best);
    ck_assert_int_eq(mp_evaluate(&best->run, NULL, &e, &err), MEMPLAN_STATUS_OK);
    ck_assert(e.fits);
    ck_assert_uint_eq(e.reserved_bytes, best->reserved_bytes);
    ck_assert_uint_eq(e.device_used_bytes, best->device_used_bytes);
    mp_evaluation_release(&e);
    if (request.tokens_per_step)
        ck_assert_int_ge(best->run.batch * best->run.seq * best->run.accumulate * best->run.world, (int64_t)request.tokens_per_step);
    ck_assert_int_eq(best->run.world, planned[_i].gpus);
    ck_assert_double_ge(best->cost.step_s, best->bound_s * (1 - 1e-6));
    if (best->greedy_s >= 0)
        ck_assert_double_le(best->cost.step_s, best->greedy_s * (1 + 1e-3));
    for (size_t i = 0; i < plan.n_options; i++)
        if (plan.options[i].fits && request.tokens_per_step)
            ck_assert_double_le(best->cost.step_s, plan.options[i].cost.step_s);
    mp_plan_release(&plan);
}
END_TEST

START_TEST(fronts_trade_memory_for_time)
{
    struct mp_plan plan;
    struct mp_plan_request request;
    make_plan(0, &plan, &request);
    ck_assert_uint_gt(plan.n_front, 2);
    for (size_t i = 1; i < plan.n_front; i++) {
        ck_assert_uint_gt(plan.front[i].device_used_bytes, plan.front[i - 1].device_used_bytes);
        ck_assert_double_gt(plan.front[i].cost.tokens_per_s, plan.front[i - 1].cost.tokens_per_s);
    }
    mp_plan_release(&plan);
}
END_TEST

START_TEST(least_memory_takes_no_more_than_least_time)
{
    struct mp_plan time, memory;
    struct mp_plan_request request = {.run = RUN("model", "gpt2", "gpu", "T4-16G"), .gpus = 1};
    ck_assert_int_eq(mp_plan_make(&request, &time, &err), MEMPLAN_STATUS_OK);
    request.aim = MP_PLAN_MEMORY;
    ck_assert_int_eq(mp_plan_make(&request, &memory, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_lt(memory.best->device_used_bytes, time.best->device_used_bytes);
    mp_plan_release(&time);
    mp_plan_release(&memory);
}
END_TEST

START_TEST(fewest_gpus_are_found)
{
    struct mp_plan plan;
    const struct mp_plan_request request = {.run = RUN("model", "llama2-7b", "gpu", "A100-80G", "seq", "256"), .tokens_per_step = 1024, .gpus = 8,
                                            .aim = MP_PLAN_GPUS};
    ck_assert_int_eq(mp_plan_make(&request, &plan, &err), MEMPLAN_STATUS_OK);
    ck_assert_ptr_nonnull(plan.best);
    ck_assert_int_eq(plan.best->run.world, 2); /* 108 GiB of weights, gradients and state */
    mp_plan_release(&plan);
}
END_TEST

/* Every change that is offered is a change that would do. */
START_TEST(nothing_fits_is_proven_and_helped)
{
    struct mp_plan plan;
    const struct mp_plan_request request = {.run = RUN("model", "llama2-7b", "gpu", "A100-80G"), .gpus = 1};
    ck_assert_int_eq(mp_plan_make(&request, &plan, &err), MEMPLAN_STATUS_OK);
    ck_assert_ptr_null(plan.best);
    ck_assert(plan.proven);
    ck_assert_uint_gt(plan.least_bytes, plan.available_bytes);
    ck_assert_uint_ge(plan.n_changes, 2);
    bool has_card = false, has_precision = false;
    for (size_t i = 0; i < plan.n_changes; i++) {
        has_card |= strcmp(plan.changes[i].setting, "--gpu H200-141G") == 0;
        has_precision |= strcmp(plan.changes[i].setting, "--precision bf16") == 0;
    }
    ck_assert(has_card && has_precision);
    mp_plan_release(&plan);
}
END_TEST

START_TEST(what_is_given_stays)
{
    struct mp_plan plan;
    const struct mp_plan_request request = {
        .run = RUN("model", "gpt2", "gpu", "T4-16G", "batch", "3", "checkpoint", "{first: 2}", "optimizer", "sgd", "allocator_conf", ""), .gpus = 1};
    ck_assert_int_eq(mp_plan_make(&request, &plan, &err), MEMPLAN_STATUS_OK);
    ck_assert_ptr_nonnull(plan.best);
    ck_assert_uint_eq(plan.n_options, 1);
    ck_assert_int_eq(plan.best->run.batch, 3);
    ck_assert_uint_eq(plan.best->run.checkpoint_layers.n, 2);
    ck_assert_int_eq(plan.best->run.optimizer, MP_OPTIMIZER_SGD);
    mp_plan_release(&plan);
}
END_TEST

Suite *suite_plan(void)
{
    Suite *const suite = suite_create("plan");
    TCase *const tc = tcase_create("plan");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, step_times_are_as_good_as_told, 0, (int)MP_ARRAY_LEN(judged));
    tcase_add_test(tc, recomputation_and_accumulation_take_time);
    tcase_add_loop_test(tc, profile_tells_the_peak_of_any_choice, 0, (int)MP_ARRAY_LEN(profiled));
#if MP_HAVE_GLPK
    tcase_add_loop_test(tc, plans_fit_and_keep_their_word, 0, (int)MP_ARRAY_LEN(planned));
    tcase_add_test(tc, fronts_trade_memory_for_time);
    tcase_add_test(tc, least_memory_takes_no_more_than_least_time);
    tcase_add_test(tc, fewest_gpus_are_found);
    tcase_add_test(tc, nothing_fits_is_proven_and_helped);
    tcase_add_test(tc, what_is_given_stays);
#endif
    suite_add_tcase(suite, tc);
    return suite;
}
