/* SPDX-License-Identifier: MIT */
/* A value as the JSON it is written as, for comparison. */
#ifndef MP_TEST_VALUE_TEXT_H
#define MP_TEST_VALUE_TEXT_H

#include "base/json.h"

/** In one line; lives in the arena. */
const char *value_text(struct mp_arena *arena, const struct mp_value *value);

#endif
