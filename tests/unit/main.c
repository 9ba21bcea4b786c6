/* SPDX-License-Identifier: MIT */
/*
 * Runs the suites named as arguments, or all, and ends with one line: N passed, N failed, N
 * skipped. --list prints their names.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "suites.h"

static const struct {
    const char *name;
    Suite *(*make)(void);
} suites[] = {
#define X(name) {#name, suite_##name},
#include "suites.inc"
#undef X
};

static const size_t n_suites = sizeof(suites) / sizeof(suites[0]);

static int is_wanted(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], name) == 0)
            return 1;
    return argc == 1;
}

static int is_known(const char *name)
{
    for (size_t i = 0; i < n_suites; i++)
        if (strcmp(suites[i].name, name) == 0)
            return 1;
    return 0;
}

static int list(void)
{
    for (size_t i = 0; i < n_suites; i++)
        puts(suites[i].name);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0)
        return list();
    for (int i = 1; i < argc; i++) {
        if (!is_known(argv[i])) {
            fprintf(stderr, "no suite is called '%s'\n", argv[i]);
            return 2;
        }
    }
    SRunner *const runner = srunner_create(NULL);
    for (size_t i = 0; i < n_suites; i++)
        if (is_wanted(suites[i].name, argc, argv))
            srunner_add_suite(runner, suites[i].make());
    srunner_run_all(runner, CK_ENV);
    const int n_failed = srunner_ntests_failed(runner);
    const int n_passed = srunner_ntests_run(runner) - n_failed;
    srunner_free(runner);
    printf("%d passed, %d failed, 0 skipped\n", n_passed, n_failed);
    return n_failed ? 1 : 0;
}
