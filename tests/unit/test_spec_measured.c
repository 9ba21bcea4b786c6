/* SPDX-License-Identifier: MIT */
/* Measured runs: lines of JSON Lines, whole, damaged, and one after another from a file. */
#include "spec/measured.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "spec/run.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;
static struct mp_measured_line line;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

static enum memplan_status parse(const char *text)
{
    return mp_measured_parse(&arena, "runs.jsonl", 3, text, strlen(text), &line, &err);
}

START_TEST(reads_a_whole_line)
{
    ck_assert_int_eq(parse("{\"id\": \"m-1\", \"run\": {\"model\": \"gpt2\", \"gpu\": "
                           "\"H200-141G\"}, \"measured\": {\"oom\": false, "
                           "\"allocated_bytes\": 5337966080, \"reserved_bytes\": 5651824640, "
                           "\"requested_bytes\": 5336378380, "
                           "\"non_allocator_bytes\": 778043392, \"device_used_bytes\": 6429868032, "
                           "\"params\": 124439808, "
                           "\"phases\": [{\"phase\": \"model\", \"requested\": 1, "
                           "\"requested_peak\": 2, \"allocated_peak\": 512, "
                           "\"reserved_peak\": 2097152}, {\"phase\": \"data\"}]}}"),
                     MEMPLAN_STATUS_OK);
    const struct mp_measured *const m = line.measured;
    ck_assert_str_eq(line.id, "m-1");
    ck_assert_str_eq(line.origin, "runs.jsonl:3");
    ck_assert_int_eq(m->oom, 0);
    ck_assert_int_eq(m->requested_bytes, 5336378380);
    ck_assert_int_eq(m->allocated_bytes, 5337966080);
    ck_assert_int_eq(m->reserved_bytes, 5651824640);
    ck_assert_int_eq(m->device_used_bytes, 6429868032);
    ck_assert_int_eq(m->non_allocator_bytes, 778043392);
    ck_assert_int_eq(m->max_batch, -1);
    ck_assert_uint_eq(m->n_phases, 2);
    ck_assert_str_eq(m->phases[0].phase, "model");
    ck_assert_int_eq(m->phases[0].requested, 1);
    ck_assert_int_eq(m->phases[0].reserved_peak, 2097152);
    ck_assert_int_eq(m->phases[1].requested_peak, -1);
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    ck_assert_int_eq(mp_run_source_object(&source, line.origin, line.run, &err), MEMPLAN_STATUS_OK);
    ck_assert_ptr_nonnull(mp_run_resolve(&source, &err));
}
END_TEST

START_TEST(everything_but_the_run_may_be_absent)
{
    ck_assert_int_eq(parse("{\"run\": {}}"), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(line.id, "line 3");
    ck_assert_ptr_null(line.measured);
    ck_assert_int_eq(parse("{\"run\": {}, \"id\": null, \"measured\": null, \"env\": {}}"),
                     MEMPLAN_STATUS_OK);
    ck_assert_ptr_null(line.measured);
    ck_assert_int_eq(parse("{\"run\": {}, \"measured\": {\"max_batch\": 0}}"), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(line.measured->max_batch, 0);
    ck_assert_int_eq(line.measured->oom, -1);
}
END_TEST

static const struct {
    const char *text, *says;
} mistakes[] = {
    {"", "runs.jsonl:3"},
    {"[1]", "runs.jsonl:3: a line is {\"id\""},
    {"{\"id\": \"a\"}", "runs.jsonl:3: run: missing"},
    {"{\"id\": 3, \"run\": {}}", "id: 3 is not a string"},
    {"{\"run\": 3}", "run: an integer is not an object"},
    {"{\"run\": {}, \"measured\": 3}", "measured: an integer is not an object"},
    {"{\"run\": {}, \"measured\": {\"oom\": 1}}", "measured.oom: 1 is neither true nor false"},
    {"{\"run\": {}, \"measured\": {\"reserved_bytes\": -5}}", "measured.reserved_bytes: -5"},
    {"{\"run\": {}, \"measured\": {\"reserved_bytes\": 1.5}}", "measured.reserved_bytes: 1.5"},
    {"{\"run\": {}, \"measured\": {\"phases\": 3}}", "measured.phases: an integer is not a list"},
    {"{\"run\": {}, \"measured\": {\"phases\": [{}]}}",
     "measured.phases[0]: not an object with the name"},
    {"{\"run\": {}, \"measured\": {\"phases\": [{\"phase\": \"a\", \"requested\": \"b\"}]}}",
     "measured.phases[0].requested: \"b\""},
    {"{\"run\": {}", "runs.jsonl:3"},
    {"{\"run\": {}} x", "runs.jsonl:3"},
};

START_TEST(mistakes_are_told)
{
    ck_assert_int_eq(parse(mistakes[_i].text), MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, mistakes[_i].says) != NULL, "no '%s' in: %s", mistakes[_i].says,
                  err.text);
    ck_assert_ptr_null(line.run);
    ck_assert_ptr_nonnull(line.id);
}
END_TEST

START_TEST(reads_a_file_line_by_line)
{
    char path[] = "/tmp/memplan-test-XXXXXX";
    struct mp_strbuf text = MP_STRBUF_INIT;
    bool end = false;
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    (void)close(fd);
    mp_strbuf_addstr(&text, "{\"id\": \"a\", \"run\": {}}\n\n  \r\n{broken\n{\"id\": \"long\", "
                            "\"run\": {\"model\": \"");
    mp_strbuf_pad(&text, 'x', 300000); /* longer than the reader's buffer */
    mp_strbuf_addstr(&text, "\"}}\n{\"id\": \"last\", \"run\": {}}");
    ck_assert_int_eq(mp_file_write(path, text.data, text.len, &err), MEMPLAN_STATUS_OK);
    mp_strbuf_release(&text);
    struct mp_measured_reader *const reader = mp_measured_open(path, &err);
    (void)unlink(path);
    ck_assert_msg(reader != NULL, "%s", err.text);
    ck_assert_int_eq(mp_measured_next(reader, &arena, &line, &end, &err), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(line.id, "a");
    ck_assert_uint_eq(line.number, 1);
    ck_assert_int_eq(mp_measured_next(reader, &arena, &line, &end, &err), MEMPLAN_STATUS_INPUT);
    ck_assert(!end);
    ck_assert_str_eq(line.id, "line 4");
    ck_assert_int_eq(mp_measured_next(reader, &arena, &line, &end, &err), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(line.id, "long");
    ck_assert_uint_eq(mp_value_get(line.run, "model")->as.string.length, 300000);
    ck_assert_int_eq(mp_measured_next(reader, &arena, &line, &end, &err), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(line.id, "last");
    ck_assert_int_eq(mp_measured_next(reader, &arena, &line, &end, &err), MEMPLAN_STATUS_OK);
    ck_assert(end);
    mp_measured_close(reader);
    mp_measured_close(NULL);
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_bad_input)
{
    ck_assert_ptr_null(mp_measured_open("/nonexistent/runs.jsonl", &err));
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, "/nonexistent/runs.jsonl") != NULL, "%s", err.text);
    ck_assert_ptr_null(mp_measured_open("/tmp", &err));
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
}
END_TEST

Suite *suite_spec_measured(void)
{
    Suite *const suite = suite_create("spec_measured");
    TCase *const tc = tcase_create("measured");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, reads_a_whole_line);
    tcase_add_test(tc, everything_but_the_run_may_be_absent);
    tcase_add_loop_test(tc, mistakes_are_told, 0, (int)MP_ARRAY_LEN(mistakes));
    tcase_add_test(tc, reads_a_file_line_by_line);
    tcase_add_test(tc, a_file_that_cannot_be_read_is_bad_input);
    suite_add_tcase(suite, tc);
    return suite;
}
