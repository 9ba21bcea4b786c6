/* SPDX-License-Identifier: MIT */
/* UTF-8 sequences, well-formed and not. */
#include "base/utf8.h"

#include "suites.h"

static const struct {
    const char *text;
    size_t length;
} sequences[] = {
    {"a", 1},
    {"\x7f", 1},
    {"\xc3\xa9", 2},
    {"\xe2\x82\xac", 3},
    {"\xf0\x9f\x98\x80", 4},
    {"\xf4\x8f\xbf\xbf", 4},
    {"\xed\x9f\xbf", 3},
    {"\xee\x80\x80", 3},
    {"", 0},
    {"\x80", 0},             /* a continuation alone */
    {"\xc3", 0},             /* cut */
    {"\xe2\x82", 0},         /* cut */
    {"\xf0\x9f\x98", 0},     /* cut */
    {"\xc0\x80", 0},         /* overlong NUL */
    {"\xc1\xbf", 0},         /* overlong */
    {"\xe0\x80\xaf", 0},     /* overlong */
    {"\xf0\x80\x80\xaf", 0}, /* overlong */
    {"\xed\xa0\x80", 0},     /* surrogate */
    {"\xf4\x90\x80\x80", 0}, /* above U+10FFFF */
    {"\xf5\x80\x80\x80", 0},
    {"\xff", 0},
    {"\xc3x", 0},
};

START_TEST(recognises_sequences)
{
    ck_assert_uint_eq(mp_utf8_sequence(sequences[_i].text, strlen(sequences[_i].text)),
                      sequences[_i].length);
}
END_TEST

START_TEST(counts_characters)
{
    ck_assert_uint_eq(mp_utf8_width(""), 0);
    ck_assert_uint_eq(mp_utf8_width("abc"), 3);
    ck_assert_uint_eq(mp_utf8_width("\xc3\xa9\xe2\x82\xac"), 2);
    ck_assert_uint_eq(mp_utf8_width("a\xff\xc3"), 3);
}
END_TEST

Suite *suite_base_utf8(void)
{
    Suite *const suite = suite_create("base_utf8");
    TCase *const tc = tcase_create("utf8");
    tcase_add_loop_test(tc, recognises_sequences, 0, (int)MP_ARRAY_LEN(sequences));
    tcase_add_test(tc, counts_characters);
    suite_add_tcase(suite, tc);
    return suite;
}
