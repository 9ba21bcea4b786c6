/* SPDX-License-Identifier: MIT */
/*
 * Error texts: filled in once by whoever finds the problem, prefixed by whoever knows the context.
 */
#include "base/error.h"

#include <stdarg.h>

/* A text is one line, and a name from a file must not drive the terminal. */
static void disarm(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            *text = '?';
}

enum memplan_status mp_error_set(struct memplan_error *err, enum memplan_status status,
                                 const char *format, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, format);
        vsnprintf(err->text, sizeof(err->text), format, ap);
        va_end(ap);
        disarm(err->text);
        err->status = status;
    }
    return status;
}

void mp_error_prefix(struct memplan_error *err, const char *format, ...)
{
    if (!err)
        return;
    char text[sizeof(err->text)];
    va_list ap;
    va_start(ap, format);
    const int written = vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    if (written < 0)
        return;
    const size_t used = MP_MIN((size_t)written, sizeof(text) - 1);
    /* the old text may be cut here on purpose: its beginning says more than its end */
    if (used + 2 < sizeof(text)) {
        text[used] = ':';
        text[used + 1] = ' ';
        const size_t room = sizeof(text) - used - 3;
        const size_t kept = MP_MIN(strlen(err->text), room);
        memcpy(text + used + 2, err->text, kept);
        text[used + 2 + kept] = '\0';
    }
    disarm(text);
    memcpy(err->text, text, strlen(text) + 1);
}
