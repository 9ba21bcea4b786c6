/* SPDX-License-Identifier: MIT */
/* Ask another program, without a shell, and do not wait for it for ever. */
#ifndef MP_SUBPROCESS_H
#define MP_SUBPROCESS_H

#include "base/common.h"

enum mp_subprocess_end {
    MP_SUBPROCESS_ANSWERED, /* exit status 0 */
    MP_SUBPROCESS_FAILED,   /* not there, another exit status, or ended by a signal */
    MP_SUBPROCESS_TIMED_OUT,
};

/**
 * Run argv[0], looked up in PATH, with an empty environment and nothing on standard error, and keep what it prints: at most
 * size - 1 bytes in out, NUL-terminated; what is more is read and dropped. After limit_ms milliseconds it is killed, together
 * with the processes that it started.
 */
enum mp_subprocess_end mp_subprocess_ask(char *const argv[], int limit_ms, char *out, size_t size);

#endif
