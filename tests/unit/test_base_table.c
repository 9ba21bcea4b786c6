/* SPDX-License-Identifier: MIT */
/* Tables: alignment by characters, rules, escaping, exhausted memory. */
#include "base/table.h"

#include "base/arena.h"
#include "suites.h"

static struct mp_table *small_table(void)
{
    struct mp_table *const table = mp_table_new("lrl");
    mp_table_cell(table, "what");
    mp_table_cell(table, "GiB");
    mp_table_cell(table, "why");
    mp_table_rule(table);
    mp_table_cell(table, "\xc3\xa9t\xc3\xa9");
    mp_table_cell(table, "%.2f", 12.5);
    mp_table_cell(table, "%s", "");
    mp_table_cell(table, "weights");
    mp_table_cell(table, "1.25");
    mp_table_cell(table, "x\033[31m");
    return table;
}

START_TEST(aligns_columns)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_table *const table = small_table();
    mp_table_write(table, &out, 2);
    ck_assert_str_eq(mp_strbuf_text(&out), "  what       GiB  why\n"
                                           "  -------------------------\n"
                                           "  \xc3\xa9t\xc3\xa9      12.50\n"
                                           "  weights   1.25  x\\x1b[31m\n");
    mp_table_free(table);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(an_unfinished_row_and_no_row)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_table *table = mp_table_new("ll");
    mp_table_write(table, &out, 0);
    ck_assert_str_eq(mp_strbuf_text(&out), "");
    mp_table_cell(table, "a");
    mp_table_write(table, &out, 0);
    ck_assert_str_eq(mp_strbuf_text(&out), "a\n");
    mp_table_free(table);
    mp_table_free(NULL);
    table = mp_table_new("");
    mp_table_cell(table, "one");
    mp_table_rule(table);
    mp_strbuf_reset(&out);
    mp_table_write(table, &out, 0);
    ck_assert_str_eq(mp_strbuf_text(&out), "one\n---\n");
    mp_table_free(table);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(every_failing_allocation_is_reported)
{
    for (uint64_t n = 1; n < 200; n++) {
        struct mp_strbuf out = MP_STRBUF_INIT;
        mp_alloc_fail_after(n);
        struct mp_table *const table = small_table();
        mp_table_write(table, &out, 0);
        const bool reached = mp_alloc_fail_after(0) >= n;
        ck_assert_int_eq(out.failed, reached);
        mp_table_free(table);
        mp_strbuf_release(&out);
        if (!reached)
            return;
    }
    ck_abort_msg("never succeeded");
}
END_TEST

static const struct {
    const char *text;
    const char *escaped;
} escapes[] = {
    {"plain \xc3\xa9", "plain \xc3\xa9"},
    {"a\tb\n", "a\\x09b\\x0a"},
    {"\x7f", "\\x7f"},
    {"\xc2\x9b"
     "31m",
     "\\xc2\\x9b31m"}, /* the one-character CSI */
    {"\xff\xc3", "\\xff\\xc3"},
    {"\xc2\xa0", "\xc2\xa0"},
};

START_TEST(escapes_what_drives_a_terminal)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    mp_text_escape(&out, escapes[_i].text);
    ck_assert_str_eq(mp_strbuf_text(&out), escapes[_i].escaped);
    mp_strbuf_release(&out);
}
END_TEST

Suite *suite_base_table(void)
{
    Suite *const suite = suite_create("base_table");
    TCase *const tc = tcase_create("table");
    tcase_add_test(tc, aligns_columns);
    tcase_add_test(tc, an_unfinished_row_and_no_row);
    tcase_add_test(tc, every_failing_allocation_is_reported);
    tcase_add_loop_test(tc, escapes_what_drives_a_terminal, 0, (int)MP_ARRAY_LEN(escapes));
    suite_add_tcase(suite, tc);
    return suite;
}
