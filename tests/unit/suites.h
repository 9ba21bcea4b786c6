/* SPDX-License-Identifier: MIT */
/* Every suite: tests/unit/test_foo.c and tests/property/test_foo.c define suite_foo(). */
#ifndef MP_TEST_SUITES_H
#define MP_TEST_SUITES_H

#include <check.h>

#define X(name) Suite *suite_##name(void);
#include "suites.inc"
#undef X

#endif
