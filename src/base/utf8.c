/* SPDX-License-Identifier: MIT */
/* UTF-8 sequences by the table of well-formed byte sequences (Unicode 15, table 3-7). */
#include "base/utf8.h"

static bool between(unsigned char c, unsigned char low, unsigned char high)
{
    return c >= low && c <= high;
}

size_t mp_utf8_sequence(const char *text, size_t n)
{
    const unsigned char *const s = (const unsigned char *)text;
    if (n == 0)
        return 0;
    if (s[0] < 0x80)
        return 1;
    if (between(s[0], 0xc2, 0xdf))
        return n >= 2 && between(s[1], 0x80, 0xbf) ? 2 : 0;
    if (between(s[0], 0xe0, 0xef)) {
        const unsigned char low = s[0] == 0xe0 ? 0xa0 : 0x80;  /* below: overlong */
        const unsigned char high = s[0] == 0xed ? 0x9f : 0xbf; /* above: surrogate */
        return n >= 3 && between(s[1], low, high) && between(s[2], 0x80, 0xbf) ? 3 : 0;
    }
    if (between(s[0], 0xf0, 0xf4)) {
        const unsigned char low = s[0] == 0xf0 ? 0x90 : 0x80;
        const unsigned char high = s[0] == 0xf4 ? 0x8f : 0xbf;
        return n >= 4 && between(s[1], low, high) && between(s[2], 0x80, 0xbf) &&
                       between(s[3], 0x80, 0xbf)
                   ? 4
                   : 0;
    }
    return 0;
}

size_t mp_utf8_width(const char *text)
{
    size_t width = 0;
    size_t left = strlen(text);
    while (left > 0) {
        const size_t length = mp_utf8_sequence(text, left);
        const size_t step = length ? length : 1;
        text += step;
        left -= step;
        width++;
    }
    return width;
}
