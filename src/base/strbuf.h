/* SPDX-License-Identifier: MIT */
/* Growing byte string, always NUL-terminated (after git's strbuf). */
#ifndef MP_STRBUF_H
#define MP_STRBUF_H

#include <stdarg.h>

#include "base/common.h"

/**
 * MP_STRBUF_INIT, or all zero. After a failed allocation `failed` stays set and further writes do
 * nothing.
 */
struct mp_strbuf {
    char *data; /* NULL while empty and never written */
    size_t len;
    size_t capacity;
    bool failed;
};
/* clang-format off */
#define MP_STRBUF_INIT {NULL, 0, 0, false}
/* clang-format on */

void mp_strbuf_release(struct mp_strbuf *sb);
/** Empty, keeping the memory. */
void mp_strbuf_reset(struct mp_strbuf *sb);
void mp_strbuf_add(struct mp_strbuf *sb, const void *bytes, size_t n);
void mp_strbuf_addstr(struct mp_strbuf *sb, const char *text);
void mp_strbuf_addch(struct mp_strbuf *sb, char c);
void mp_strbuf_addf(struct mp_strbuf *sb, const char *format, ...) MP_PRINTF(2, 3);
void mp_strbuf_vaddf(struct mp_strbuf *sb, const char *format, va_list ap) MP_PRINTF(2, 0);
/** n times c. */
void mp_strbuf_pad(struct mp_strbuf *sb, char c, size_t n);
/** The text, "" when empty. */
const char *mp_strbuf_text(const struct mp_strbuf *sb);
/** Hands the malloc'ed text over to the caller (free()); NULL when an allocation failed. */
char *mp_strbuf_detach(struct mp_strbuf *sb);

#endif
