/* SPDX-License-Identifier: MIT */
/* Text and JSON of one evaluation carry the same numbers, and the parts add up. */
#include "report/report.h"

#include "base/units.h"
#include "small_run.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;
static struct mp_evaluation e;
static struct mp_fit_report report;
static struct mp_advice advice[MP_MAX_ADVICE];
static struct mp_strbuf text, json;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
    text = (struct mp_strbuf)MP_STRBUF_INIT;
    json = (struct mp_strbuf)MP_STRBUF_INIT;
}

static void teardown(void)
{
    mp_strbuf_release(&text);
    mp_strbuf_release(&json);
    mp_evaluation_release(&e);
    mp_arena_release(&arena);
}

static void make_report(size_t family, const char *keys)
{
    small_evaluate(small_family_run(&arena, family, keys), true, &e);
    report = (struct mp_fit_report){.evaluation = &e};
    report.ledger = mp_ledger_at(&e.program, e.oom ? (e.oom_event ? e.oom_event - 1 : 0) : e.peak_event, &arena, &err);
    ck_assert_int_eq(mp_advise(&e, advice, &report.n_advice, &err), MEMPLAN_STATUS_OK);
    report.advice = advice;
    mp_report_fit_text(&report, &text);
    mp_report_fit_json(&report, &json);
}

static const struct mp_value *parse(void)
{
    const struct mp_value *const v = mp_json_parse(&arena, "report", json.data, json.len, &err);
    ck_assert_msg(v != NULL, "%s", err.text);
    return v;
}

static uint64_t number(const struct mp_value *v, const char *key)
{
    const struct mp_value *const member = mp_value_get(v, key);
    ck_assert_msg(member != NULL && member->kind == MP_INT, "%s is no integer", key);
    return (uint64_t)member->as.integer;
}

static const char *string(const struct mp_value *v, const char *key)
{
    const struct mp_value *const member = mp_value_get(v, key);
    ck_assert_msg(member != NULL && member->kind == MP_STRING, "%s is no text", key);
    return member->as.string.text;
}

/* The text shows the number in full, with commas. */
static void expect_exact(uint64_t bytes)
{
    struct mp_strbuf grouped = MP_STRBUF_INIT;
    mp_grouped_format(&grouped, bytes);
    ck_assert_msg(strstr(mp_strbuf_text(&text), mp_strbuf_text(&grouped)) != NULL, "the text lacks %s", mp_strbuf_text(&grouped));
    mp_strbuf_release(&grouped);
}

static void expect_rounded(uint64_t bytes)
{
    struct mp_strbuf rounded = MP_STRBUF_INIT;
    mp_bytes_format(&rounded, bytes);
    ck_assert_msg(strstr(mp_strbuf_text(&text), mp_strbuf_text(&rounded)) != NULL, "the text lacks %s", mp_strbuf_text(&rounded));
    mp_strbuf_release(&rounded);
}

static const struct {
    size_t family;
    const char *keys;
} runs[] = {
    {0, "seq: 64, batch: 2"},
    {1, "seq: 64, precision: fp32, attention: eager, used: 3GiB"},
    {2, "gpu: A100-80G, seq: 64, checkpoint: full, accumulate: 2"},
    {3, "gpu: T4-16G, seq: 64, retain_losses: true, iterations: 3"},
    {4, "seq: 64, batch: 16, allocator_limit_bytes: 60MiB"}, /* dies */
    {5, "seq: 64, iterations: 1, optimizer: none, clip_grad_norm: true"},
};

START_TEST(text_and_json_carry_the_same_numbers)
{
    static const char *const totals[] = {"requested_bytes", "allocated_bytes", "reserved_bytes", "device_used_bytes", "capacity_bytes"};
    make_report(runs[_i].family, runs[_i].keys);
    const struct mp_value *const v = parse();
    for (size_t i = 0; i < MP_ARRAY_LEN(totals); i++)
        expect_exact(number(v, totals[i]));
    ck_assert_uint_eq(number(v, "requested_bytes"), e.requested_bytes);
    ck_assert_uint_eq(number(v, "device_used_bytes"), e.device_used_bytes);
    ck_assert_uint_eq(number(v, "schema_version"), MP_FIT_SCHEMA_VERSION);
    ck_assert_int_eq(mp_value_get(v, "fits")->as.boolean, e.fits);
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), e.fits ? "Fits: " : "Does not fit: "));
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), string(v, "assumed")));
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), string(v, "exact_for")));
    const struct mp_value *const peak = mp_value_get(v, "peak");
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), string(peak, "phase")));
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), string(peak, "operation")));
}
END_TEST

START_TEST(parts_are_rows_of_both_and_add_up)
{
    make_report(runs[_i].family, runs[_i].keys);
    const struct mp_value *const parts = mp_value_get(parse(), "parts");
    uint64_t sum = 0;
    for (size_t i = 0; i < parts->as.array.length; i++) {
        const struct mp_value *const part = parts->as.array.items[i];
        sum += number(part, "bytes");
        expect_exact(number(part, "bytes"));
        ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), string(part, "part")));
    }
    ck_assert_uint_eq(sum, e.oom ? e.stats.reserved_bytes[MP_STAT_ALL].current + e.context_bytes + e.run->used_bytes
                                 : e.device_used_bytes);
}
END_TEST

START_TEST(live_rows_add_up_to_the_ledger)
{
    make_report(runs[_i].family, runs[_i].keys);
    const struct mp_value *const live = mp_value_get(parse(), "live");
    uint64_t sum = 0;
    for (size_t i = 0; i < live->as.array.length; i++)
        sum += number(live->as.array.items[i], "bytes");
    ck_assert_uint_eq(sum, report.ledger->total_bytes);
}
END_TEST

START_TEST(phases_are_all_in_json_and_the_new_ones_in_text)
{
    make_report(runs[_i].family, runs[_i].keys);
    const struct mp_value *const phases = mp_value_get(parse(), "phases");
    ck_assert_uint_eq(phases->as.array.length, e.n_phases);
    for (size_t i = 0; i < e.n_phases; i++) {
        const struct mp_value *const phase = phases->as.array.items[i];
        ck_assert_str_eq(string(phase, "phase"), e.phases[i].name);
        ck_assert_uint_eq(number(phase, "requested"), e.phases[i].requested_bytes);
        ck_assert_uint_eq(number(phase, "requested_peak"), e.phases[i].requested_peak_bytes);
        ck_assert_uint_eq(number(phase, "allocated_peak"), e.phases[i].allocated_peak_bytes);
        ck_assert_uint_eq(number(phase, "reserved_peak"), e.phases[i].reserved_peak_bytes);
        expect_rounded(e.phases[i].requested_peak_bytes);
        expect_rounded(e.phases[i].reserved_peak_bytes);
    }
}
END_TEST

START_TEST(advice_is_the_same_in_both)
{
    make_report(runs[_i].family, runs[_i].keys);
    const struct mp_value *const list = mp_value_get(parse(), "advice");
    ck_assert_uint_eq(list->as.array.length, report.n_advice);
    for (size_t i = 0; i < report.n_advice; i++) {
        const struct mp_value *const item = list->as.array.items[i];
        ck_assert_str_eq(string(item, "setting"), advice[i].setting);
        ck_assert_uint_eq(number(item, "device_used_bytes"), advice[i].device_used_bytes);
        ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), advice[i].setting));
        ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), advice[i].what));
        expect_rounded(advice[i].device_used_bytes);
    }
}
END_TEST

START_TEST(a_failure_is_told_in_both)
{
    make_report(4, "seq: 64, batch: 16, allocator_limit_bytes: 60MiB");
    ck_assert(e.oom);
    const struct mp_value *const failure = mp_value_get(parse(), "failure");
    ck_assert_int_eq(failure->kind, MP_OBJECT);
    ck_assert_uint_eq(number(failure, "requested_bytes"), e.oom_info.requested_bytes);
    expect_rounded(number(failure, "requested_bytes"));
    expect_rounded(number(failure, "segment_bytes"));
    expect_rounded(number(failure, "largest_free_bytes"));
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), "It dies in "));
}
END_TEST

START_TEST(without_advice_there_is_none)
{
    small_evaluate(small_family_run(&arena, 0, "seq: 64"), true, &e);
    report = (struct mp_fit_report){.evaluation = &e, .ledger = mp_ledger_at(&e.program, e.peak_event, &arena, &err)};
    mp_report_fit_text(&report, &text);
    mp_report_fit_json(&report, &json);
    ck_assert_int_eq(mp_value_get(parse(), "advice")->kind, MP_NULL);
    ck_assert_ptr_null(strstr(mp_strbuf_text(&text), "What would change it"));
    ck_assert_int_eq(mp_value_get(parse(), "failure")->kind, MP_NULL);
    ck_assert_ptr_null(mp_value_get(parse(), "max_batch"));
}
END_TEST

START_TEST(the_largest_batch_is_told)
{
    small_evaluate(small_family_run(&arena, 0, "seq: 64"), true, &e);
    report = (struct mp_fit_report){.evaluation = &e, .ledger = mp_ledger_at(&e.program, e.peak_event, &arena, &err),
                                    .has_max_batch = true, .max_batch = 17, .max_batch_again = 19};
    mp_report_fit_text(&report, &text);
    mp_report_fit_json(&report, &json);
    ck_assert_uint_eq(number(parse(), "max_batch"), 17);
    ck_assert_uint_eq(number(parse(), "max_batch_again"), 19);
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), "Largest micro-batch: 17; 18 does not fit, 19 fits again"));
}
END_TEST

START_TEST(names_are_escaped)
{
    struct mp_run run = *small_family_run(&arena, 0, "seq: 64");
    struct mp_model model = *run.model;
    model.name = "a\033[31mb\"\\\n";
    run.model = &model;
    small_evaluate(&run, true, &e);
    report = (struct mp_fit_report){.evaluation = &e, .ledger = mp_ledger_at(&e.program, e.peak_event, &arena, &err)};
    mp_report_fit_text(&report, &text);
    mp_report_fit_json(&report, &json);
    ck_assert_ptr_null(strchr(mp_strbuf_text(&text), '\033'));
    ck_assert_ptr_null(strchr(mp_strbuf_text(&json), '\033'));
    parse();
}
END_TEST

START_TEST(colour_is_only_where_it_was_asked_for)
{
    small_evaluate(small_family_run(&arena, 0, "seq: 64"), true, &e);
    report = (struct mp_fit_report){.evaluation = &e, .ledger = mp_ledger_at(&e.program, e.peak_event, &arena, &err)};
    mp_report_fit_text(&report, &text);
    ck_assert_ptr_null(strchr(mp_strbuf_text(&text), '\033'));
    report.color = true;
    mp_strbuf_reset(&text);
    mp_report_fit_text(&report, &text);
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&text), "\033[1;32mFits\033[0m"));
}
END_TEST

/* What is printed reads back to the same run. */
START_TEST(the_run_in_json_gives_the_same_report)
{
    make_report(runs[_i].family, runs[_i].keys);
    struct mp_run_source source;
    struct mp_evaluation second;
    mp_run_source_init(&source, &arena);
    ck_assert_int_eq(mp_run_source_object(&source, "report", mp_value_get(parse(), "run"), &err), MEMPLAN_STATUS_OK);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    small_evaluate(run, true, &second);
    ck_assert_uint_eq(second.requested_bytes, e.requested_bytes);
    ck_assert_uint_eq(second.reserved_bytes, e.reserved_bytes);
    ck_assert_uint_eq(second.device_used_bytes, e.device_used_bytes);
    ck_assert_uint_eq(second.n_phases, e.n_phases);
    ck_assert_int_eq(second.oom, e.oom);
    mp_evaluation_release(&second);
}
END_TEST

/* An allocation that fails is told by the output's flag; else the report is the whole one. */
static void write_without_memory(void (*write)(const struct mp_fit_report *r, struct mp_strbuf *out), const char *right)
{
    enum { MOST = 20000 };
    uint64_t n = 1, used = 1;
    for (; used + 1 >= n && n < MOST; n++) {
        struct mp_strbuf out = MP_STRBUF_INIT;
        mp_alloc_fail_after(n);
        write(&report, &out);
        used = mp_alloc_fail_after(0);
        ck_assert_msg(out.failed || strcmp(mp_strbuf_text(&out), right) == 0, "allocation %llu: an incomplete report",
                      (unsigned long long)n);
        mp_strbuf_release(&out);
    }
    ck_assert_uint_gt(n, 10);
    ck_assert_uint_lt(n, MOST);
}

START_TEST(json_without_memory_is_not_half_a_report)
{
    make_report(0, "seq: 64, iterations: 2");
    write_without_memory(mp_report_fit_json, mp_strbuf_text(&json));
}
END_TEST

START_TEST(text_without_memory_is_not_half_a_report)
{
    make_report(0, "seq: 64, iterations: 2");
    write_without_memory(mp_report_fit_text, mp_strbuf_text(&text));
}
END_TEST

Suite *suite_report(void)
{
    Suite *const suite = suite_create("report");
    TCase *const tc = tcase_create("fit");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, text_and_json_carry_the_same_numbers, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_loop_test(tc, parts_are_rows_of_both_and_add_up, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_loop_test(tc, live_rows_add_up_to_the_ledger, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_loop_test(tc, phases_are_all_in_json_and_the_new_ones_in_text, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_loop_test(tc, advice_is_the_same_in_both, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_test(tc, a_failure_is_told_in_both);
    tcase_add_test(tc, without_advice_there_is_none);
    tcase_add_test(tc, the_largest_batch_is_told);
    tcase_add_test(tc, names_are_escaped);
    tcase_add_test(tc, colour_is_only_where_it_was_asked_for);
    tcase_add_test(tc, json_without_memory_is_not_half_a_report);
    tcase_add_test(tc, text_without_memory_is_not_half_a_report);
    tcase_add_loop_test(tc, the_run_in_json_gives_the_same_report, 0, (int)MP_ARRAY_LEN(runs));
    suite_add_tcase(suite, tc);
    return suite;
}
