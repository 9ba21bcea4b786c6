/* SPDX-License-Identifier: MIT */
/* Progress lines, and silence where stderr is no terminal. */
#include "base/progress.h"

#include "suites.h"

static const struct {
    uint64_t total, done;
    double elapsed_s;
    const char *text;
} lines[] = {
    {200, 100, 2, "sweep: 50% (100 of 200), 50/s, 2 s left"},
    {200, 5, 10, "sweep: 2% (5 of 200), 0.5/s, 390 s left"},
    {200, 200, 4, "sweep: 100% (200 of 200), 50/s"},
    {200, 0, 4, "sweep: 0% (0 of 200)"},
    {0, 30, 2, "sweep: 30, 15/s"},
    {0, 30, 0, "sweep: 30"},
};

START_TEST(says_how_far_and_how_fast)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    const struct mp_progress p = {
        .title = "sweep", .total = lines[_i].total, .done = lines[_i].done};
    mp_progress_format(&out, &p, lines[_i].elapsed_s);
    ck_assert_str_eq(mp_strbuf_text(&out), lines[_i].text);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(stays_silent_without_a_terminal)
{
    struct mp_progress p;
    FILE *const file = freopen("/dev/null", "w", stderr);
    ck_assert_ptr_nonnull(file);
    mp_progress_start(&p, "x", 10, true);
    ck_assert(!p.enabled);
    mp_progress_update(&p, 5);
    ck_assert(!p.visible);
    ck_assert_uint_eq(p.done, 5);
    mp_progress_end(&p);
}
END_TEST

Suite *suite_base_progress(void)
{
    Suite *const suite = suite_create("base_progress");
    TCase *const tc = tcase_create("progress");
    tcase_add_loop_test(tc, says_how_far_and_how_fast, 0, (int)MP_ARRAY_LEN(lines));
    tcase_add_test(tc, stays_silent_without_a_terminal);
    suite_add_tcase(suite, tc);
    return suite;
}
