/* SPDX-License-Identifier: MIT */
/* Remedies and reports: simulation sifts and measures, text and JSON say the same. */
#include "base/json.h"
#include "doctor/report.h"

#include "suites.h"

static const char fragmented[] =
    "Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 100.00 MiB is "
    "free. Including non-PyTorch memory, this "
    "process has 23.50 GiB memory in use. Of the allocated memory 12.00 GiB is allocated by "
    "PyTorch, and 11.00 GiB is reserved by "
    "PyTorch but unallocated.";
static const char occupied[] =
    "Tried to allocate 260.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 60.31 MiB is "
    "free. Process 9 has 71.97 GiB memory in use. "
    "Including non-PyTorch memory, this process has 7.05 GiB memory in use. Of the allocated "
    "memory 1.51 GiB is allocated by PyTorch, "
    "and 205.02 MiB is reserved by PyTorch but unallocated.";

static void diagnose(struct mp_diagnosis *d, struct mp_arena *arena, const char *text,
                     const struct mp_doctor_simulation *simulation)
{
    struct mp_doctor_case *const c = mp_arena_alloc(arena, sizeof *c);
    ck_assert_ptr_nonnull(c);
    ck_assert(mp_doctor_case_init(c, arena, text, strlen(text)));
    if (simulation != NULL) {
        mp_evidence_prediction(c, simulation);
    }
    *d = (struct mp_diagnosis){.c = c};
    d->n_verdicts = mp_doctor_rank(c, d->verdicts);
    d->n_fixes = mp_doctor_fixes(c, d->verdicts, d->n_verdicts, simulation, d->fixes);
}

static const struct mp_fix *find_fix(const struct mp_diagnosis *d, const char *setting)
{
    for (size_t i = 0; i < d->n_fixes; i++) {
        if (strstr(d->fixes[i].setting, setting) != NULL) {
            return &d->fixes[i];
        }
    }
    return NULL;
}

/* expandable_segments saves, max_split_size_mb:128 and everything else makes it worse. */
static bool split_is_worse(void *context, const char *change, uint64_t *reserved_bytes, bool *fits)
{
    *(int *)context += 1;
    *fits = false;
    *reserved_bytes = 23 * MP_GIB;
    if (change != NULL && strstr(change, "expandable_segments") != NULL) {
        *reserved_bytes = 13 * MP_GIB;
        *fits = true;
    } else if (change != NULL) {
        *reserved_bytes = 25 * MP_GIB;
    }
    return true;
}

static bool split_is_better(void *context, const char *change, uint64_t *reserved_bytes, bool *fits)
{
    (void)context;
    *fits = true;
    *reserved_bytes = change != NULL && strstr(change, "max_split") != NULL    ? 10 * MP_GIB
                      : change != NULL && strstr(change, "expandable") != NULL ? 12 * MP_GIB
                                                                               : 20 * MP_GIB;
    return true;
}

START_TEST(max_split_size_is_not_offered_unless_it_is_simulated)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    mp_arena_init(&arena);
    diagnose(&d, &arena, fragmented, NULL);
    ck_assert_ptr_null(find_fix(&d, "max_split_size_mb"));
    const struct mp_fix *const fix = find_fix(&d, "expandable_segments:True");
    ck_assert_ptr_nonnull(fix);
    ck_assert(!fix->saves_known);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(what_the_simulation_shows_to_be_worse_is_dropped)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    int calls = 0;
    const struct mp_doctor_simulation simulation = {.context = &calls, .fit = split_is_worse};
    mp_arena_init(&arena);
    diagnose(&d, &arena, fragmented, &simulation);
    ck_assert_int_gt(calls, 1);
    ck_assert_ptr_null(find_fix(&d, "max_split_size_mb"));
    const struct mp_fix *const fix = find_fix(&d, "expandable_segments:True");
    ck_assert_ptr_nonnull(fix);
    ck_assert(fix->simulated);
    ck_assert(fix->fits);
    ck_assert_uint_eq(fix->saves_bytes, 10 * MP_GIB);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(what_saves_most_stands_first)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    const struct mp_doctor_simulation simulation = {.fit = split_is_better};
    mp_arena_init(&arena);
    diagnose(&d, &arena, fragmented, &simulation);
    ck_assert_ptr_nonnull(strstr(d.fixes[0].setting, "max_split_size_mb"));
    ck_assert_ptr_nonnull(strstr(d.fixes[1].setting, "expandable_segments"));
    mp_arena_release(&arena);
}
END_TEST

START_TEST(another_process_gives_back_what_it_holds)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    mp_arena_init(&arena);
    diagnose(&d, &arena, occupied, NULL);
    ck_assert_int_eq(d.verdicts[0].cause, MP_CAUSE_OTHER_PROCESS);
    ck_assert(d.fixes[0].saves_known);
    ck_assert_uint_eq(d.fixes[0].saves_bytes, d.c->message.processes[0].bytes);
    mp_arena_release(&arena);
}
END_TEST

static int leak_score(const struct mp_diagnosis *d)
{
    int score = 0;
    for (size_t i = 0; i < d->c->n_evidence; i++) {
        score += d->c->evidence[i].cause == MP_CAUSE_LEAK ? d->c->evidence[i].weight : 0;
    }
    return score;
}

START_TEST(more_than_the_job_needs_is_a_leak)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    struct mp_doctor_simulation simulation = {
        .job_known = true, .allocated_bytes = 6 * MP_GIB, .context_bytes = MP_GIB};
    mp_arena_init(&arena);
    diagnose(&d, &arena, fragmented, &simulation);
    ck_assert_int_ge(leak_score(&d), 5);
    simulation.allocated_bytes = 12 * MP_GIB;
    diagnose(&d, &arena, fragmented, &simulation);
    ck_assert_int_lt(leak_score(&d), 0);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(a_context_larger_than_predicted_is_said)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    const struct mp_doctor_simulation simulation = {
        .job_known = true, .allocated_bytes = 2 * MP_GIB, .context_bytes = 700 * MP_MIB};
    mp_arena_init(&arena);
    diagnose(&d, &arena, occupied, &simulation);
    bool said = false;
    for (size_t i = 0; i < d.c->n_evidence; i++) {
        said = said || (d.c->evidence[i].cause == MP_CAUSE_CONTEXT && d.c->evidence[i].weight > 0);
    }
    ck_assert(said);
    mp_arena_release(&arena);
}
END_TEST

static const struct mp_value *path(const struct mp_value *value, const char *a, const char *b)
{
    return mp_value_get(mp_value_get(value, a), b);
}

START_TEST(json_has_every_figure_and_null_for_what_is_not_there)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    mp_arena_init(&arena);
    diagnose(&d, &arena, occupied, NULL);
    mp_diagnosis_json(&d, &out);
    const struct mp_value *const json = mp_json_parse(&arena, "diagnosis", out.data, out.len, &err);
    ck_assert_msg(json != NULL, "%s", err.text);
    ck_assert_int_eq(mp_value_get(json, "schema_version")->as.integer, MP_DIAGNOSIS_SCHEMA_VERSION);
    ck_assert_str_eq(path(json, "message", "format")->as.string.text, "torch-2.2");
    ck_assert_int_eq(path(json, "message", "requested_bytes")->as.integer, 260 * (int64_t)MP_MIB);
    ck_assert_int_eq(path(json, "message", "allowed_bytes")->kind, MP_NULL);
    ck_assert_uint_eq(path(json, "message", "other_processes")->as.array.length, 1);
    ck_assert_uint_ge(mp_value_get(json, "causes")->as.array.length, 1);
    const struct mp_value *const cause = mp_value_get(json, "causes")->as.array.items[0];
    ck_assert_str_eq(mp_value_get(cause, "cause")->as.string.text, "other_process");
    ck_assert_ptr_nonnull(mp_value_get(cause, "confidence"));
    ck_assert_ptr_nonnull(mp_value_get(cause, "evidence"));
    const struct mp_value *const fix = mp_value_get(json, "fixes")->as.array.items[0];
    ck_assert_int_eq(mp_value_get(fix, "saves_bytes")->kind, MP_INT);
    ck_assert_ptr_nonnull(mp_value_get(fix, "setting"));
    mp_strbuf_release(&out);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(the_text_names_first_cause_and_figures)
{
    struct mp_arena arena;
    struct mp_diagnosis d;
    struct mp_strbuf out = MP_STRBUF_INIT;
    mp_arena_init(&arena);
    diagnose(&d, &arena, occupied, NULL);
    mp_diagnosis_text(&d, &out);
    ck_assert_ptr_nonnull(strstr(out.data, "1. other_process"));
    ck_assert_ptr_nonnull(strstr(out.data, "71.97 GiB"));
    ck_assert_ptr_nonnull(strstr(out.data, "nvidia-smi"));
    mp_strbuf_release(&out);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(failing_allocations_end_in_an_answer_or_a_refusal)
{
    for (uint64_t n = 1; n < 400; n++) {
        struct mp_arena arena;
        mp_arena_init(&arena);
        struct mp_doctor_case *const c = mp_arena_alloc(&arena, sizeof *c);
        ck_assert_ptr_nonnull(c);
        (void)mp_alloc_fail_after(n);
        const bool read = mp_doctor_case_init(c, &arena, occupied, strlen(occupied));
        if (read) {
            struct mp_diagnosis d = {.c = c};
            struct mp_strbuf out = MP_STRBUF_INIT;
            d.n_verdicts = mp_doctor_rank(c, d.verdicts);
            d.n_fixes = mp_doctor_fixes(c, d.verdicts, d.n_verdicts, NULL, d.fixes);
            mp_diagnosis_text(&d, &out);
            mp_strbuf_reset(&out);
            mp_diagnosis_json(&d, &out);
            mp_strbuf_release(&out);
        }
        (void)mp_alloc_fail_after(0);
        mp_arena_release(&arena);
    }
}
END_TEST

Suite *suite_doctor_fixes(void)
{
    Suite *const suite = suite_create("doctor_fixes");
    TCase *const tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, max_split_size_is_not_offered_unless_it_is_simulated);
    tcase_add_test(tcase, what_the_simulation_shows_to_be_worse_is_dropped);
    tcase_add_test(tcase, what_saves_most_stands_first);
    tcase_add_test(tcase, another_process_gives_back_what_it_holds);
    tcase_add_test(tcase, more_than_the_job_needs_is_a_leak);
    tcase_add_test(tcase, a_context_larger_than_predicted_is_said);
    tcase_add_test(tcase, json_has_every_figure_and_null_for_what_is_not_there);
    tcase_add_test(tcase, the_text_names_first_cause_and_figures);
    tcase_add_test(tcase, failing_allocations_end_in_an_answer_or_a_refusal);
    suite_add_tcase(suite, tcase);
    return suite;
}
