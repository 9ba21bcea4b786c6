/* SPDX-License-Identifier: MIT */
/*
 * Byte string that doubles its memory; a failed allocation is remembered instead of reported each
 * time.
 */
#include "base/strbuf.h"

#include "base/arena.h"

void mp_strbuf_release(struct mp_strbuf *sb)
{
    free(sb->data);
    *sb = (struct mp_strbuf)MP_STRBUF_INIT;
}

void mp_strbuf_reset(struct mp_strbuf *sb)
{
    sb->len = 0;
    sb->failed = false;
    if (sb->data)
        sb->data[0] = '\0';
}

/* Room for n more bytes and the NUL. */
static bool reserve(struct mp_strbuf *sb, size_t n)
{
    if (sb->failed)
        return false;
    if (sb->capacity > sb->len && n < sb->capacity - sb->len)
        return true;
    if (n > SIZE_MAX / 4 || sb->len > SIZE_MAX / 4) {
        sb->failed = true;
        return false;
    }
    const size_t capacity = MP_MAX(MP_MAX(sb->capacity * 2, sb->len + n + 1), (size_t)64);
    char *const data = mp_realloc(sb->data, capacity);
    if (!data) {
        sb->failed = true;
        return false;
    }
    sb->data = data;
    sb->capacity = capacity;
    return true;
}

void mp_strbuf_add(struct mp_strbuf *sb, const void *bytes, size_t n)
{
    if (!reserve(sb, n))
        return;
    if (n)
        memcpy(sb->data + sb->len, bytes, n);
    sb->len += n;
    sb->data[sb->len] = '\0';
}

void mp_strbuf_addstr(struct mp_strbuf *sb, const char *text)
{
    mp_strbuf_add(sb, text, strlen(text));
}

void mp_strbuf_addch(struct mp_strbuf *sb, char c)
{
    mp_strbuf_add(sb, &c, 1);
}

void mp_strbuf_pad(struct mp_strbuf *sb, char c, size_t n)
{
    if (!reserve(sb, n))
        return;
    memset(sb->data + sb->len, c, n);
    sb->len += n;
    sb->data[sb->len] = '\0';
}

void mp_strbuf_addf(struct mp_strbuf *sb, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    mp_strbuf_vaddf(sb, format, ap);
    va_end(ap);
}

void mp_strbuf_vaddf(struct mp_strbuf *sb, const char *format, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    const size_t room = sb->failed ? 0 : sb->capacity - sb->len;
    const int length = vsnprintf(room ? sb->data + sb->len : NULL, room, format, ap);
    if (length < 0) {
        sb->failed = true;
    } else if ((size_t)length < room) {
        sb->len += (size_t)length;
    } else if (reserve(sb, (size_t)length)) {
        vsnprintf(sb->data + sb->len, (size_t)length + 1, format, again);
        sb->len += (size_t)length;
    } else if (room) {
        sb->data[sb->len] = '\0'; /* take back the part that fitted */
    }
    va_end(again);
}

const char *mp_strbuf_text(const struct mp_strbuf *sb)
{
    return sb->data ? sb->data : "";
}

char *mp_strbuf_detach(struct mp_strbuf *sb)
{
    mp_strbuf_add(sb, "", 0); /* an empty string has memory, too */
    char *text = NULL;
    if (!sb->failed) {
        text = sb->data;
        sb->data = NULL;
    }
    mp_strbuf_release(sb);
    return text;
}
