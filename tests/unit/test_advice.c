/* SPDX-License-Identifier: MIT */
/* Advice is simulated: typing what it says gives the bytes that it told. */
#include "plan/advice.h"

#include <stdlib.h>

#include "base/strbuf.h"
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

static const struct {
    size_t family;
    const char *keys;
} runs[] = {
    {0, "seq: 64, batch: 4"},
    {0, "seq: 64, precision: fp32, optimizer: sgd-momentum, retain_losses: true, iterations: 4"},
    {1, "seq: 32, batch: 2, attention: eager, checkpoint: full"},
    {2, "seq: 64, use_cache: true, precision: bf16, release_outputs: true"},
    {2, "seq: 64, batch: 8, allocator_limit_bytes: 60MiB"}, /* dies */
    {3, "seq: 64, allocator_conf: 'expandable_segments:True'"},
    {4, "gpu: T4-16G, seq: 64, batch: 3"},
    {5, "seq_lengths: [16, 64], accumulate: 2"},
};

static void apply_flag(struct mp_run_source *source, const char *flag, const char *value)
{
    ck_assert_msg(mp_run_source_text(source, flag, "advice", value, &err) == MEMPLAN_STATUS_OK, "%s: %s", flag, err.text);
}

/* "--batch 2 --accumulate 2", "--use-cache=false", "--release-outputs (in words)", "PYTORCH_CUDA_ALLOC_CONF=…" */
static void apply_setting(struct mp_run_source *source, const char *setting)
{
    static const char variable[] = "PYTORCH_CUDA_ALLOC_CONF=";
    char *const text = mp_arena_strdup(&arena, setting);
    if (strncmp(text, variable, sizeof variable - 1) == 0) {
        apply_flag(source, "allocator_conf", text + sizeof variable - 1);
        return;
    }
    const char *key = NULL;
    char *rest = text;
    for (const char *word = strtok_r(rest, " ", &rest); word != NULL && word[0] != '('; word = strtok_r(rest, " ", &rest)) {
        if (word[0] != '-') {
            apply_flag(source, key, word);
            key = NULL;
            continue;
        }
        if (key != NULL)
            apply_flag(source, key, "true");
        char *const name = mp_arena_strdup(&arena, word + 2), *const equals = strchr(name, '=');
        for (char *c = name; *c != '\0'; c++)
            if (*c == '-')
                *c = '_';
        key = name;
        if (equals != NULL) {
            *equals = '\0';
            apply_flag(source, name, equals + 1);
            key = NULL;
        }
    }
    if (key != NULL)
        apply_flag(source, key, "true");
}

/* The run again from its own JSON, with the setting on top. */
static const struct mp_run *retype(const struct mp_run *run, const char *setting)
{
    struct mp_strbuf json = MP_STRBUF_INIT;
    struct mp_json_writer w;
    struct mp_run_source source;
    mp_json_init(&w, &json, 0);
    mp_run_write_json(run, &w, NULL);
    const struct mp_value *const value = mp_json_parse(&arena, "run", mp_strbuf_text(&json), json.len, &err);
    mp_strbuf_release(&json);
    mp_run_source_init(&source, &arena);
    ck_assert_msg(value != NULL && mp_run_source_object(&source, "run", value, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    apply_setting(&source, setting);
    const struct mp_run *const again = mp_run_resolve(&source, &err);
    ck_assert_msg(again != NULL, "%s: %s", setting, err.text);
    return again;
}

START_TEST(a_typed_setting_gives_the_bytes_that_were_told)
{
    struct mp_advice advice[MP_MAX_ADVICE];
    size_t n = 0;
    struct mp_evaluation e;
    const struct mp_run *const run = small_family_run(&arena, runs[_i].family, runs[_i].keys);
    small_evaluate(run, false, &e);
    ck_assert_msg(mp_advise(&e, advice, &n, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_uint_gt(n, 2);
    for (size_t i = 0; i < n; i++) {
        struct mp_evaluation again;
        small_evaluate(retype(run, advice[i].setting), false, &again);
        ck_assert_msg(again.fits == advice[i].fits, "%s: told %d", advice[i].setting, advice[i].fits);
        if (again.fits) {
            ck_assert_msg(again.device_used_bytes == advice[i].device_used_bytes, "%s: told %llu, is %llu", advice[i].setting,
                          (unsigned long long)advice[i].device_used_bytes, (unsigned long long)again.device_used_bytes);
            ck_assert_uint_eq(again.reserved_bytes, advice[i].reserved_bytes);
        }
        if (!e.oom)
            ck_assert_int_eq(advice[i].saves_bytes, (int64_t)e.device_used_bytes - (int64_t)advice[i].device_used_bytes);
        ck_assert(i == 0 || advice[i - 1].saves_bytes >= advice[i].saves_bytes);
        mp_evaluation_release(&again);
    }
    mp_evaluation_release(&e);
}
END_TEST

static bool is_advised(const struct mp_advice *advice, size_t n, const char *setting)
{
    for (size_t i = 0; i < n; i++)
        if (strstr(advice[i].setting, setting) != NULL)
            return true;
    return false;
}

/* What is on already is not advised. */
static const struct {
    const char *keys, *setting;
    bool advised;
} choices[] = {
    {"seq: 64", "--checkpoint full", true},
    {"seq: 64, checkpoint: full", "--checkpoint full", false},
    {"seq: 64, checkpoint: full-reentrant", "--checkpoint full", false},
    {"seq: 64, batch: 1", "--batch", false},
    {"seq: 64, batch: 2", "--batch 1 --accumulate 2", true},
    {"seq: 64", "--precision bf16", true},
    {"seq: 64, precision: bf16", "--precision", false},
    {"gpu: T4-16G, seq: 64", "--precision", false},
    {"seq: 64, precision: fp32", "--precision amp-bf16", true},
    {"seq: 64, optimizer: sgd", "--optimizer", false},
    {"seq: 64, attention: eager", "--attention sdpa", true},
    {"seq: 64", "--attention", false},
    {"seq: 64, use_cache: true", "--use-cache=false", true},
    {"seq: 64, retain_losses: true", "--retain-losses=false", true},
    {"seq: 64", "--release-outputs", true},
    {"seq: 64, release_outputs: true", "--release-outputs", false},
    {"seq: 64", "expandable_segments:True", true},
    {"seq: 64, allocator_conf: 'max_split_size_mb:64'", "PYTORCH_CUDA_ALLOC_CONF", false},
};

START_TEST(only_what_would_change_something_is_advised)
{
    struct mp_advice advice[MP_MAX_ADVICE];
    size_t n = 0;
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 0, choices[_i].keys), false, &e);
    ck_assert_int_eq(mp_advise(&e, advice, &n, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(is_advised(advice, n, choices[_i].setting), choices[_i].advised);
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(advice_without_memory_is_an_error)
{
    struct mp_advice advice[MP_MAX_ADVICE];
    size_t n = 0;
    struct mp_evaluation e;
    small_evaluate(small_family_run(&arena, 0, "seq: 16, iterations: 1"), false, &e);
    for (uint64_t at = 1; at < 2000; at = at * 3 / 2 + 1) {
        mp_alloc_fail_after(at);
        const enum memplan_status status = mp_advise(&e, advice, &n, &err);
        const uint64_t used = mp_alloc_fail_after(0);
        ck_assert_int_eq(status, used >= at ? MEMPLAN_STATUS_NOMEM : MEMPLAN_STATUS_OK);
        err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
    }
    mp_evaluation_release(&e);
}
END_TEST

Suite *suite_advice(void)
{
    Suite *const suite = suite_create("advice");
    TCase *const tc = tcase_create("advice");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, a_typed_setting_gives_the_bytes_that_were_told, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_loop_test(tc, only_what_would_change_something_is_advised, 0, (int)MP_ARRAY_LEN(choices));
    tcase_add_test(tc, advice_without_memory_is_an_error);
    suite_add_tcase(suite, tc);
    return suite;
}
