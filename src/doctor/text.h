/* SPDX-License-Identifier: MIT */
/*
 * A log or report, prepared for reading: what a terminal, a launcher or a web page put around the
 * text is gone.
 *
 * Two views of the same text. `plain` keeps lines and words (lower case, escape codes, frames of
 * boxes and rank prefixes removed): phrases and tracebacks are looked for there. `squeezed` has no
 * white space at all: a message that was wrapped at any column, even in the middle of a number's
 * unit, reads the same there.
 */
#ifndef MP_DOCTOR_TEXT_H
#define MP_DOCTOR_TEXT_H

#include "base/arena.h"

struct mp_doctor_text {
    const char *raw; /* the caller's */
    size_t raw_len;
    char *plain;
    size_t plain_len;
    char *squeezed;
    size_t squeezed_len;
    size_t n_lines;
    /* Start of each line in the three texts; n_lines + 1 entries, the last one is the length. */
    size_t *raw_line, *plain_line, *squeezed_line;
};

/** Prepare length bytes of raw, which must outlive *text. False when the arena is exhausted. */
bool mp_doctor_text_init(struct mp_doctor_text *text, struct mp_arena *arena, const char *raw,
                         size_t length);

/** Line (0-based) that holds an offset of the plain or of the squeezed text. */
size_t mp_doctor_text_plain_line(const struct mp_doctor_text *text, size_t offset);
size_t mp_doctor_text_squeezed_line(const struct mp_doctor_text *text, size_t offset);

/** First place of needle in length bytes of text, or NULL (both may hold any bytes). */
const char *mp_doctor_find(const char *text, size_t length, const char *needle);

#endif
