/* SPDX-License-Identifier: MIT */
/* Errors: the caller owns a struct memplan_error, each layer may say what it was doing. */
#ifndef MP_ERROR_H
#define MP_ERROR_H

#include "base/common.h"
#include "memplan.h"

/**
 * Fill *err (may be NULL) and return status, so that a function can end with `return
 * mp_error_set(...)`. Control characters become '?'.
 */
enum memplan_status mp_error_set(struct memplan_error *err, enum memplan_status status,
                                 const char *format, ...) MP_PRINTF(3, 4);

/** Put "text: " in front of what *err says; the end is cut when it does not fit. */
void mp_error_prefix(struct memplan_error *err, const char *format, ...) MP_PRINTF(2, 3);

#endif
