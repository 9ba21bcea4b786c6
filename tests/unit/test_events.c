/* SPDX-License-Identifier: MIT */
/*
 * The event sequence of whole training steps against recordings, allocation by
 * allocation: labelled logs of two-layer models of every family, traces of
 * three steps of full models, two-layer models of what else can be asked for
 * (losses without logits, 4-bit weights, scaled rotary embeddings, other optimizers),
 * and whole runs of all kinds.
 */
#include <check.h>
#include <dirent.h>
#include <stdlib.h>

#include "arch/arch.h"
#include "event_log.h"
#include "labelled_run.h"
#include "spec/measured.h"
#include "suites.h"
#include "train/job.h"

#define RUNS "tests/data/runs/h200-hf.jsonl"

enum { MAX_PATHS = 512, PATH_SIZE = 160 };

/* Filled when the suite is made; tests run in forked copies. */
static struct paths {
    char names[MAX_PATHS][PATH_SIZE];
    int n;
} logs, traces, variants, runs;

static int compare_paths(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void find(struct paths *paths, const char *folder)
{
    DIR *const directory = opendir(folder);
    const struct dirent *entry;
    while (directory != NULL && paths->n < MAX_PATHS && (entry = readdir(directory)) != NULL) {
        const size_t length = strlen(entry->d_name);
        if (length > 7 && strcmp(entry->d_name + length - 7, ".txt.gz") == 0)
            paths->n += snprintf(paths->names[paths->n], PATH_SIZE, "%s/%s", folder, entry->d_name) < PATH_SIZE;
    }
    if (directory != NULL)
        closedir(directory);
    qsort(paths->names, (size_t)paths->n, PATH_SIZE, compare_paths);
}

/* ---- labelled logs ---- */

struct recording {
    struct mp_arena arena;
    struct memplan_error err;
    struct event_log log;
    struct mp_program program;
    struct mp_strbuf difference;
};

static void open_labelled(struct recording *r, const char *path)
{
    *r = (struct recording){.difference = MP_STRBUF_INIT};
    mp_arena_init(&r->arena);
    mp_program_init(&r->program);
    ck_assert_msg(event_log_read_labelled(&r->arena, path, &r->log, &r->err), "%s: %s", path,
                  r->err.text);
    const struct mp_run *const run = labelled_run(&r->arena, r->log.config, &r->err);
    ck_assert_msg(run != NULL, "%s: %s", path, r->err.text);
    ck_assert_msg(labelled_loop(run, &r->program, &r->err) == MEMPLAN_STATUS_OK, "%s: %s", path,
                  r->err.text);
}

static bool is_same(struct recording *r)
{
    return event_log_compare(&r->log, &r->program, &r->difference);
}

static void close_recording(struct recording *r)
{
    mp_strbuf_release(&r->difference);
    mp_program_release(&r->program);
    mp_arena_release(&r->arena);
}

START_TEST(a_labelled_log_is_reproduced)
{
    struct recording r;
    open_labelled(&r, logs.names[_i]);
    ck_assert_msg(is_same(&r), "%s %s", logs.names[_i], mp_strbuf_text(&r.difference));
    close_recording(&r);
}
END_TEST

START_TEST(every_family_has_a_log)
{
    for (const struct mp_family *const *f = mp_families(); *f != NULL; f++) {
        bool found = false;
        for (int i = 0; i < logs.n && !found; i++) {
            const char *const name = strrchr(logs.names[i], '/') + 1;
            const size_t length = strlen((*f)->model_type);
            found = strncmp(name, (*f)->model_type, length) == 0 && name[length] == '-';
        }
        ck_assert_msg(found, "no labelled log of %s", (*f)->model_type);
    }
}
END_TEST

/* ---- the comparison itself ---- */

static const char sample[] = "tests/data/labelled/gpt2-bf16-sdpa-none.txt.gz";

START_TEST(a_changed_size_is_found)
{
    struct recording r;
    open_labelled(&r, sample);
    size_t at = r.log.n / 2;
    while (!r.log.events[at].alloc)
        at++;
    r.log.events[at].bytes++;
    ck_assert(!is_same(&r));
    char planned[40];
    (void)snprintf(planned, sizeof planned, "+%u %llu ", (unsigned)r.log.events[at].id,
                   (unsigned long long)r.log.events[at].bytes - 1);
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&r.difference), planned));
    close_recording(&r);
}
END_TEST

START_TEST(a_missing_free_is_found)
{
    struct recording r;
    open_labelled(&r, sample);
    size_t at = r.log.n / 2;
    while (r.log.events[at].alloc)
        at++;
    memmove(&r.log.events[at], &r.log.events[at + 1], (r.log.n - at - 1) * sizeof *r.log.events);
    r.log.n--;
    ck_assert(!is_same(&r));
    close_recording(&r);
}
END_TEST

START_TEST(a_log_that_goes_on_is_found)
{
    struct recording r;
    open_labelled(&r, sample);
    r.log.n -= 40;
    ck_assert(!is_same(&r));
    close_recording(&r);
}
END_TEST

START_TEST(frees_between_two_allocations_have_no_order)
{
    struct recording r;
    open_labelled(&r, sample);
    size_t at = 1;
    while (r.log.events[at - 1].alloc || r.log.events[at].alloc)
        at++;
    const struct recorded_event first = r.log.events[at - 1];
    r.log.events[at - 1] = r.log.events[at];
    r.log.events[at] = first;
    ck_assert_msg(is_same(&r), "%s", mp_strbuf_text(&r.difference));
    close_recording(&r);
}
END_TEST

/* ---- traces ---- */

static const char *trace_id(const struct recording *r)
{
    const struct mp_value *const id = mp_value_get(r->log.config, "id");
    return id != NULL && id->kind == MP_STRING ? id->as.string.text : "";
}

static const struct mp_run *find_run(struct recording *r, const char *id)
{
    struct mp_measured_reader *const reader = mp_measured_open(RUNS, &r->err);
    const struct mp_run *run = NULL;
    struct mp_measured_line line;
    bool end = false;
    ck_assert_msg(reader != NULL, "%s", r->err.text);
    while (run == NULL &&
           mp_measured_next(reader, &r->arena, &line, &end, &r->err) == MEMPLAN_STATUS_OK && !end) {
        struct mp_run_source source;
        if (strcmp(line.id, id) != 0)
            continue;
        mp_run_source_init(&source, &r->arena);
        if (mp_run_source_object(&source, line.origin, line.run, &r->err) == MEMPLAN_STATUS_OK)
            run = mp_run_resolve(&source, &r->err);
        break;
    }
    mp_measured_close(reader);
    return run;
}

START_TEST(a_trace_is_reproduced)
{
    static struct mp_job job;
    struct recording r = {.difference = MP_STRBUF_INIT};
    mp_arena_init(&r.arena);
    mp_program_init(&r.program);
    ck_assert_msg(event_log_read_trace(&r.arena, traces.names[_i], &r.log, &r.err), "%s: %s",
                  traces.names[_i], r.err.text);
    const struct mp_run *const run = find_run(&r, trace_id(&r));
    ck_assert_msg(run != NULL, "%s: no such run in " RUNS " %s", traces.names[_i], r.err.text);
    ck_assert_int_eq(mp_job_open(&job, run, &r.program, &r.err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_job_build(&job), MEMPLAN_STATUS_OK);
    for (int64_t i = 0; i < run->iterations; i++)
        ck_assert_int_eq(mp_job_step(&job), MEMPLAN_STATUS_OK);
    ck_assert_msg(is_same(&r), "%s %s", traces.names[_i], mp_strbuf_text(&r.difference));
    mp_job_close(&job);
    close_recording(&r);
}
END_TEST

/* What dies when the loop is left is not part of a step. */
static void leave_out_the_end(struct recording *r)
{
    while (r->log.n > 0 && !r->log.events[r->log.n - 1].alloc)
        r->log.n--;
    while (r->program.n_events > 0 &&
           r->program.events[r->program.n_events - 1].kind != MP_EVENT_ALLOC)
        r->program.n_events--;
}

static void open_trace(struct recording *r, const char *path)
{
    *r = (struct recording){.difference = MP_STRBUF_INIT};
    mp_arena_init(&r->arena);
    mp_program_init(&r->program);
    ck_assert_msg(event_log_read_trace(&r->arena, path, &r->log, &r->err), "%s: %s", path, r->err.text);
}

/* The spec stands in the trace. */
static void check_run(struct recording *r, const char *path)
{
    static struct mp_job job;
    struct mp_run_source source;
    const struct mp_value *const spec = mp_value_get(r->log.config, "run");
    ck_assert_ptr_nonnull(spec);
    mp_run_source_init(&source, &r->arena);
    ck_assert_msg(mp_run_source_object(&source, path, spec, &r->err) == MEMPLAN_STATUS_OK, "%s", r->err.text);
    const struct mp_run *const run = mp_run_resolve(&source, &r->err);
    ck_assert_msg(run != NULL, "%s: %s", path, r->err.text);
    ck_assert_int_eq(mp_job_open(&job, run, &r->program, &r->err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_job_build(&job), MEMPLAN_STATUS_OK);
    for (int64_t i = 0; i < run->iterations; i++)
        ck_assert_int_eq(mp_job_step(&job), MEMPLAN_STATUS_OK);
    leave_out_the_end(r);
    ck_assert_msg(is_same(r), "%s %s", path, mp_strbuf_text(&r->difference));
    mp_job_close(&job);
}

START_TEST(a_variant_is_reproduced)
{
    struct recording r;
    open_trace(&r, variants.names[_i]);
    check_run(&r, variants.names[_i]);
    close_recording(&r);
}
END_TEST

/* Of one GPU, with its own kernels; a run that died has not done all that it was asked. */
static bool is_plain(const struct mp_value *config)
{
    const struct mp_value *const run = mp_value_get(config, "run");
    return mp_value_get(config, "setting") == NULL && mp_value_get(run, "data_parallel") == NULL &&
           mp_value_get(run, "allocator_limit_bytes") == NULL;
}

/* measure.py makes all labels of a vision model before its images. */
static bool is_vision(const struct mp_value *config)
{
    const struct mp_value *const model = mp_value_get(mp_value_get(config, "run"), "model");
    return mp_value_get(model, "image_size") != NULL;
}

START_TEST(a_run_is_reproduced)
{
    struct recording r;
    open_trace(&r, runs.names[_i]);
    if (is_plain(r.log.config) && !is_vision(r.log.config))
        check_run(&r, runs.names[_i]);
    close_recording(&r);
}
END_TEST

START_TEST(there_are_variants)
{
    ck_assert_int_ge(variants.n, 52);
}
END_TEST

Suite *suite_events(void)
{
    Suite *const suite = suite_create("events");
    TCase *const compared = tcase_create("comparison");
    find(&logs, "tests/data/labelled");
    find(&logs, "tests/data/labelled-options");
    find(&logs, "tests/data/labelled-trainer");
    find(&traces, "tests/data/traces");
    find(&variants, "tests/data/traces-variants");
    find(&runs, "validate/results/traces");
    tcase_add_test(compared, every_family_has_a_log);
    tcase_add_test(compared, a_changed_size_is_found);
    tcase_add_test(compared, a_missing_free_is_found);
    tcase_add_test(compared, a_log_that_goes_on_is_found);
    tcase_add_test(compared, frees_between_two_allocations_have_no_order);
    suite_add_tcase(suite, compared);
    TCase *const labelled = tcase_create("labelled logs");
    tcase_add_loop_test(labelled, a_labelled_log_is_reproduced, 0, logs.n);
    suite_add_tcase(suite, labelled);
    TCase *const traced = tcase_create("traces");
    tcase_set_timeout(traced, 60);
    tcase_add_loop_test(traced, a_trace_is_reproduced, 0, traces.n);
    suite_add_tcase(suite, traced);
    TCase *const varied = tcase_create("variants");
    tcase_add_test(varied, there_are_variants);
    tcase_add_loop_test(varied, a_variant_is_reproduced, 0, variants.n);
    suite_add_tcase(suite, varied);
    TCase *const whole = tcase_create("runs");
    tcase_set_timeout(whole, 60);
    tcase_add_loop_test(whole, a_run_is_reproduced, 0, runs.n);
    suite_add_tcase(suite, whole);
    return suite;
}
