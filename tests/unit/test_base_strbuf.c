/* SPDX-License-Identifier: MIT */
/* Strings that grow, and what happens when memory ends. */
#include "base/strbuf.h"

#include "base/arena.h"
#include "suites.h"

START_TEST(an_empty_one_has_a_text)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    ck_assert_str_eq(mp_strbuf_text(&sb), "");
    char *const text = mp_strbuf_detach(&sb);
    ck_assert_str_eq(text, "");
    free(text);
}
END_TEST

START_TEST(appends_every_way)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_strbuf_addstr(&sb, "ab");
    mp_strbuf_addch(&sb, '-');
    mp_strbuf_addf(&sb, "%05d", 42);
    mp_strbuf_pad(&sb, '.', 3);
    mp_strbuf_add(&sb, "x\0y", 3);
    ck_assert_uint_eq(sb.len, 14);
    ck_assert_mem_eq(sb.data, "ab-00042...x\0y", 15);
    mp_strbuf_reset(&sb);
    ck_assert_str_eq(mp_strbuf_text(&sb), "");
    mp_strbuf_addstr(&sb, "again");
    char *const text = mp_strbuf_detach(&sb);
    ck_assert_str_eq(text, "again");
    ck_assert_ptr_null(sb.data);
    free(text);
}
END_TEST

START_TEST(formats_longer_than_the_room)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    for (int i = 0; i < 1000; i++)
        mp_strbuf_addf(&sb, "%d,", i);
    mp_strbuf_addf(&sb, "%1000d", 7);
    ck_assert_uint_eq(sb.len, 10 * 2 + 90 * 3 + 900 * 4 + 1000);
    ck_assert_uint_eq(strlen(sb.data), sb.len);
    mp_strbuf_release(&sb);
}
END_TEST

START_TEST(a_failed_allocation_is_remembered)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_strbuf_addstr(&sb, "kept");
    mp_alloc_fail_after(1);
    mp_strbuf_addf(&sb, "%100d", 1);
    ck_assert(sb.failed);
    ck_assert_str_eq(mp_strbuf_text(&sb), "kept");
    mp_strbuf_addstr(&sb, "ignored");
    ck_assert_str_eq(mp_strbuf_text(&sb), "kept");
    ck_assert_ptr_null(mp_strbuf_detach(&sb));
    mp_alloc_fail_after(0);
}
END_TEST

START_TEST(refuses_sizes_beyond_memory)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_strbuf_pad(&sb, ' ', SIZE_MAX - 1);
    ck_assert(sb.failed);
    mp_strbuf_release(&sb);
}
END_TEST

Suite *suite_base_strbuf(void)
{
    Suite *const suite = suite_create("base_strbuf");
    TCase *const tc = tcase_create("strbuf");
    tcase_add_test(tc, an_empty_one_has_a_text);
    tcase_add_test(tc, appends_every_way);
    tcase_add_test(tc, formats_longer_than_the_room);
    tcase_add_test(tc, a_failed_allocation_is_remembered);
    tcase_add_test(tc, refuses_sizes_beyond_memory);
    suite_add_tcase(suite, tc);
    return suite;
}
