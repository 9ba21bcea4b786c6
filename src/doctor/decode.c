/* SPDX-License-Identifier: MIT */
/*
 * Three passes, each of which is skipped when its mark is missing: a byte order mark, the first
 * bytes of a notebook, an ampersand. No pass makes the text longer than three bytes for two.
 */
#include "doctor/decode.h"

#define BYTES_OF_TWO 3 /* UTF-8 of a UTF-16 unit at the most */

/* One code point as UTF-8; returns where the next goes. */
static char *put(char *to, uint32_t code)
{
    if (code < 0x80) {
        *to++ = (char)code;
    } else if (code < 0x800) {
        *to++ = (char)(0xC0 | code >> 6);
        *to++ = (char)(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
        *to++ = (char)(0xE0 | code >> 12);
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    } else {
        *to++ = (char)(0xF0 | code >> 18);
        *to++ = (char)(0x80 | (code >> 12 & 0x3F));
        *to++ = (char)(0x80 | (code >> 6 & 0x3F));
        *to++ = (char)(0x80 | (code & 0x3F));
    }
    return to;
}

static bool is_high(uint32_t unit)
{
    return unit >= 0xD800 && unit < 0xDC00;
}

static bool is_low(uint32_t unit)
{
    return unit >= 0xDC00 && unit < 0xE000;
}

static uint32_t unit_at(const unsigned char *at, bool big)
{
    return big ? (uint32_t)at[0] << 8 | at[1] : (uint32_t)at[1] << 8 | at[0];
}

/* UTF-16 with a byte order mark. */
static bool decode_utf16(struct mp_arena *arena, const char **text, size_t *length)
{
    const unsigned char *const in = (const unsigned char *)*text;
    const bool big = *length >= 2 && in[0] == 0xFE && in[1] == 0xFF;
    const bool little = *length >= 2 && in[0] == 0xFF && in[1] == 0xFE;
    if (!big && !little) {
        return true;
    }
    char *const out = mp_arena_alloc(arena, *length / 2 * BYTES_OF_TWO + 1);
    char *to = out;
    if (out == NULL) {
        return false;
    }
    for (size_t i = 2; i + 1 < *length; i += 2) {
        uint32_t unit = unit_at(in + i, big);
        if (is_high(unit) && i + 3 < *length && is_low(unit_at(in + i + 2, big))) {
            unit = 0x10000 + ((unit - 0xD800) << 10) + (unit_at(in + i + 2, big) - 0xDC00);
            i += 2;
        }
        to = put(to, unit);
    }
    *text = out;
    *length = (size_t)(to - out);
    return true;
}

static bool has(const char *text, size_t length, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= length; i++) {
        if (memcmp(text + i, word, n) == 0) {
            return true;
        }
    }
    return false;
}

/* A notebook's file: an object that has cells near its beginning or its format's number at its end. */
static bool is_notebook(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && (text[at] == ' ' || text[at] == '\n' || text[at] == '\r')) {
        at++;
    }
    const size_t reach = MP_MIN(length, (size_t)4096);
    return at < length && text[at] == '{' &&
           (has(text, reach, "\"cells\"") || has(text + (length - reach), reach, "\"nbformat\""));
}

/* The four hexadecimal digits of an escape; false when they are not there. */
static bool hex4(const char *at, const char *end, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++) {
        const char c = at + i < end ? at[i] : '\0';
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) {
            return false;
        }
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}

/* The escapes of JSON's strings, wherever they stand. */
static bool decode_notebook(struct mp_arena *arena, const char **text, size_t *length)
{
    if (!is_notebook(*text, *length)) {
        return true;
    }
    const char *const end = *text + *length;
    char *const out = mp_arena_alloc(arena, *length + 1);
    char *to = out;
    if (out == NULL) {
        return false;
    }
    for (const char *at = *text; at < end; at++) {
        uint32_t code;
        if (*at != '\\' || at + 1 == end) {
            *to++ = *at;
            continue;
        }
        at++;
        if (*at == 'u' && hex4(at + 1, end, &code)) {
            to = put(to, code); /* three bytes at most, for six */
            at += 4;
        } else {
            *to++ = *at == 'n' ? '\n' : *at == 't' ? '\t' : *at == 'r' ? '\r' : *at;
        }
    }
    *text = out;
    *length = (size_t)(to - out);
    return true;
}

/* The character that an entity at `at` stands for, with *n its bytes; 0 when it is none. */
static char entity(const char *at, const char *end, size_t *n)
{
    static const struct {
        const char *name;
        char c;
    } entities[] = {{"&gt;", '>'},    {"&lt;", '<'},   {"&amp;", '&'},
                    {"&quot;", '"'},  {"&#39;", '\''}, {"&#x27;", '\''},
                    {"&apos;", '\''}, {"&nbsp;", ' '}, {"&#34;", '"'}};
    for (size_t i = 0; i < MP_ARRAY_LEN(entities); i++) {
        *n = strlen(entities[i].name);
        if ((size_t)(end - at) >= *n && memcmp(at, entities[i].name, *n) == 0) {
            return entities[i].c;
        }
    }
    return '\0';
}

static bool decode_entities(struct mp_arena *arena, const char **text, size_t *length)
{
    const char *const end = *text + *length;
    size_t n = 0;
    bool any = false;
    for (const char *at = *text; at < end && !any; at++) {
        any = *at == '&' && entity(at, end, &n) != '\0';
    }
    if (!any) {
        return true;
    }
    char *const out = mp_arena_alloc(arena, *length + 1);
    char *to = out;
    if (out == NULL) {
        return false;
    }
    for (const char *at = *text; at < end; at++) {
        const char c = *at == '&' ? entity(at, end, &n) : '\0';
        *to++ = c != '\0' ? c : *at;
        at += c != '\0' ? n - 1 : 0;
    }
    *text = out;
    *length = (size_t)(to - out);
    return true;
}

bool mp_doctor_decode(struct mp_arena *arena, const char **text, size_t *length)
{
    return decode_utf16(arena, text, length) && decode_notebook(arena, text, length) &&
           decode_entities(arena, text, length);
}
