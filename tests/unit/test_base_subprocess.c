/* SPDX-License-Identifier: MIT */
/* Programs that answer, fail, hang and talk too much. */
#include "base/subprocess.h"

#include <errno.h>
#include <sys/wait.h>

#include "suites.h"

static const struct {
    const char *script;
    int limit_ms;
    enum mp_subprocess_end end;
    const char *out;
} programs[] = {
    {"echo hello", 20000, MP_SUBPROCESS_ANSWERED, "hello\n"},
    {"exit 0", 20000, MP_SUBPROCESS_ANSWERED, ""},
    {"echo 0123456789abcdefghij", 20000, MP_SUBPROCESS_ANSWERED, "0123456789abcde"}, /* what fits */
    {"cat", 20000, MP_SUBPROCESS_ANSWERED, ""},                                        /* nothing to read */
    {"echo hidden >&2; echo \"[$HOME]\"", 20000, MP_SUBPROCESS_ANSWERED, "[]\n"},
    {"echo no; exit 3", 20000, MP_SUBPROCESS_FAILED, "no\n"},
    {"kill -9 $$", 20000, MP_SUBPROCESS_FAILED, ""},
    {"echo part; sleep 30", 1500, MP_SUBPROCESS_TIMED_OUT, "part\n"},
    {"echo all; exec >&-; sleep 30", 1500, MP_SUBPROCESS_TIMED_OUT, "all\n"}, /* closes its output, and stays */
    {"while :; do echo x; done", 1500, MP_SUBPROCESS_TIMED_OUT, "x\nx\nx\nx\nx\nx\nx\nx"},
};

START_TEST(asks_and_leaves_nothing_behind)
{
    char shell[] = "sh", option[] = "-c", out[16], script[64];
    char *const argv[] = {shell, option, script, NULL};
    (void)snprintf(script, sizeof script, "%s", programs[_i].script);
    ck_assert_int_eq(mp_subprocess_ask(argv, programs[_i].limit_ms, out, sizeof out), programs[_i].end);
    ck_assert_str_eq(out, programs[_i].out);
    errno = 0;
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* no child, dead or alive */
    ck_assert_int_eq(errno, ECHILD);
}
END_TEST

START_TEST(a_missing_program_fails)
{
    char name[] = "/nonexistent/program", out[16];
    char *const argv[] = {name, NULL};
    ck_assert_int_eq(mp_subprocess_ask(argv, 20000, out, sizeof out), MP_SUBPROCESS_FAILED);
    ck_assert_str_eq(out, "");
}
END_TEST

Suite *suite_base_subprocess(void)
{
    Suite *const suite = suite_create("base_subprocess");
    TCase *const tc = tcase_create("subprocess");
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, asks_and_leaves_nothing_behind, 0, (int)MP_ARRAY_LEN(programs));
    tcase_add_test(tc, a_missing_program_fails);
    suite_add_tcase(suite, tc);
    return suite;
}
