/* SPDX-License-Identifier: MIT */
/*
 * UTF-8: one sequence at a time, strictly (no overlong forms, no surrogates, nothing above
 * U+10FFFF).
 */
#ifndef MP_UTF8_H
#define MP_UTF8_H

#include "base/common.h"

/** Length (1 to 4) of the valid sequence that text of n bytes begins with, or 0 when it is none. */
size_t mp_utf8_sequence(const char *text, size_t n);

/** Characters (code points) in a text; a stray byte counts as one. */
size_t mp_utf8_width(const char *text);

#endif
