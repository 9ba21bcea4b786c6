/* SPDX-License-Identifier: MIT */
/* What every file may use: fixed-width types, array length, attributes, the banned functions. */
#ifndef MP_COMMON_H
#define MP_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/banned.h"

#define MP_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))
#define MP_MIN(a, b) ((a) < (b) ? (a) : (b))
#define MP_MAX(a, b) ((a) > (b) ? (a) : (b))

#define MP_KIB (UINT64_C(1) << 10)
#define MP_MIB (UINT64_C(1) << 20)
#define MP_GIB (UINT64_C(1) << 30)

#define MP_PRINTF(text, first) __attribute__((format(printf, text, first)))

#endif
