/* SPDX-License-Identifier: MIT */
/* Errors: filled in, prefixed, cut, and safe to print. */
#include "base/error.h"

#include "suites.h"

START_TEST(sets_status_and_text)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    ck_assert_int_eq(mp_error_set(&err, MEMPLAN_STATUS_RANGE, "%s: %d", "n_layers", -1),
                     MEMPLAN_STATUS_RANGE);
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_RANGE);
    ck_assert_str_eq(err.text, "n_layers: -1");
}
END_TEST

START_TEST(accepts_no_error)
{
    ck_assert_int_eq(mp_error_set(NULL, MEMPLAN_STATUS_IO, "x"), MEMPLAN_STATUS_IO);
    mp_error_prefix(NULL, "x");
}
END_TEST

START_TEST(prefix_keeps_status_and_old_text)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    mp_error_set(&err, MEMPLAN_STATUS_INPUT, "no such key");
    mp_error_prefix(&err, "reading '%s'", "a.json");
    ck_assert_str_eq(err.text, "reading 'a.json': no such key");
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
}
END_TEST

START_TEST(long_texts_are_cut_at_the_end)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    char longer[2 * sizeof(err.text)];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    mp_error_set(&err, MEMPLAN_STATUS_INPUT, "%s", longer);
    ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
    mp_error_prefix(&err, "place");
    ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
    ck_assert_int_eq(strncmp(err.text, "place: xxx", 10), 0);
    mp_error_prefix(&err, "%s", longer);
    ck_assert_uint_eq(strlen(err.text), sizeof(err.text) - 1);
}
END_TEST

START_TEST(control_characters_are_disarmed)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    mp_error_set(&err, MEMPLAN_STATUS_INPUT, "name '%s'", "a\033[2J\nb\x7f");
    ck_assert_str_eq(err.text, "name 'a?[2J?b?'");
    mp_error_prefix(&err, "x\ny");
    ck_assert_str_eq(err.text, "x?y: name 'a?[2J?b?'");
}
END_TEST

START_TEST(every_status_has_its_text)
{
    ck_assert_str_eq(memplan_status_text(MEMPLAN_STATUS_OK), "success");
    ck_assert_str_eq(memplan_status_text(MEMPLAN_STATUS_SOLVER), "solver failed");
    ck_assert_str_eq(memplan_status_text((enum memplan_status)99), "unknown status");
}
END_TEST

Suite *suite_base_error(void)
{
    Suite *const suite = suite_create("base_error");
    TCase *const tc = tcase_create("error");
    tcase_add_test(tc, sets_status_and_text);
    tcase_add_test(tc, accepts_no_error);
    tcase_add_test(tc, prefix_keeps_status_and_old_text);
    tcase_add_test(tc, long_texts_are_cut_at_the_end);
    tcase_add_test(tc, control_characters_are_disarmed);
    tcase_add_test(tc, every_status_has_its_text);
    suite_add_tcase(suite, tc);
    return suite;
}
