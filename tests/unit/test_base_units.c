/* SPDX-License-Identifier: MIT */
/* Units: what people write, read exactly or refused, and printed back. */
#include "base/units.h"

#include <float.h>
#include <locale.h>
#include <math.h>

#include "suites.h"

static const struct {
    const char *text;
    enum memplan_status status;
    uint64_t bytes;
} sizes[] = {
    {"80GiB", MEMPLAN_STATUS_OK, UINT64_C(85899345920)},
    {"80GB", MEMPLAN_STATUS_OK, UINT64_C(80000000000)},
    {"80 GiB", MEMPLAN_STATUS_OK, UINT64_C(85899345920)},
    {"1.5GiB", MEMPLAN_STATUS_OK, UINT64_C(1610612736)},
    {"0.1GiB", MEMPLAN_STATUS_OK, UINT64_C(107374182)},
    {"0.30000000000000000000GB", MEMPLAN_STATUS_OK, UINT64_C(300000000)},
    {"512MiB", MEMPLAN_STATUS_OK, UINT64_C(536870912)},
    {"20kB", MEMPLAN_STATUS_OK, 20000},
    {"3KiB", MEMPLAN_STATUS_OK, 3072},
    {"1TiB", MEMPLAN_STATUS_OK, UINT64_C(1099511627776)},
    {"7B", MEMPLAN_STATUS_OK, 7},
    {"0", MEMPLAN_STATUS_OK, 0},
    {"1073741824", MEMPLAN_STATUS_OK, UINT64_C(1073741824)},
    {"18446744073709551615", MEMPLAN_STATUS_OK, UINT64_MAX},
    {"15.999EiB", MEMPLAN_STATUS_OK, UINT64_C(18445591152204944769)},
    {"18446744073709551616", MEMPLAN_STATUS_RANGE, 0},
    {"17EiB", MEMPLAN_STATUS_RANGE, 0},
    {"16EiB", MEMPLAN_STATUS_RANGE, 0},
    {"99999999999999999999999999GB", MEMPLAN_STATUS_RANGE, 0},
    {"80G", MEMPLAN_STATUS_INPUT, 0},
    {"80Gb", MEMPLAN_STATUS_INPUT, 0},
    {"80gib", MEMPLAN_STATUS_INPUT, 0},
    {"", MEMPLAN_STATUS_INPUT, 0},
    {"GiB", MEMPLAN_STATUS_INPUT, 0},
    {"-1GiB", MEMPLAN_STATUS_INPUT, 0},
    {"+1GiB", MEMPLAN_STATUS_INPUT, 0},
    {" 1GiB", MEMPLAN_STATUS_INPUT, 0},
    {"1GiB ", MEMPLAN_STATUS_INPUT, 0},
    {"1.GiB", MEMPLAN_STATUS_INPUT, 0},
    {".5GiB", MEMPLAN_STATUS_INPUT, 0},
    {"1.5", MEMPLAN_STATUS_INPUT, 0},
    {"1.5B", MEMPLAN_STATUS_INPUT, 0},
    {"1,5GiB", MEMPLAN_STATUS_INPUT, 0},
    {"0x10", MEMPLAN_STATUS_INPUT, 0},
    {"1e9", MEMPLAN_STATUS_INPUT, 0},
};

START_TEST(parses_byte_sizes)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    uint64_t bytes = 0;
    ck_assert_msg(mp_bytes_parse(sizes[_i].text, &bytes, &err) == sizes[_i].status, "'%s': %s",
                  sizes[_i].text, err.text);
    ck_assert_msg(bytes == sizes[_i].bytes, "'%s' gave %llu", sizes[_i].text,
                  (unsigned long long)bytes);
    ck_assert_int_eq(err.status, sizes[_i].status);
}
END_TEST

START_TEST(an_ambiguous_size_names_both_spellings)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    uint64_t bytes = 0;
    mp_bytes_parse("80G", &bytes, &err);
    ck_assert_ptr_nonnull(strstr(err.text, "80GiB"));
    ck_assert_ptr_nonnull(strstr(err.text, "80GB"));
}
END_TEST

static const struct {
    const char *text;
    bool suffixes;
    enum memplan_status status;
    int64_t value;
} integers[] = {
    {"0", false, MEMPLAN_STATUS_OK, 0},
    {"-0", false, MEMPLAN_STATUS_OK, 0},
    {"+7", false, MEMPLAN_STATUS_OK, 7},
    {"-12", false, MEMPLAN_STATUS_OK, -12},
    {"4M", true, MEMPLAN_STATUS_OK, 4000000},
    {"2k", true, MEMPLAN_STATUS_OK, 2000},
    {"-3G", true, MEMPLAN_STATUS_OK, INT64_C(-3000000000)},
    {"9223372036854775807", false, MEMPLAN_STATUS_OK, INT64_MAX},
    {"-9223372036854775808", false, MEMPLAN_STATUS_OK, INT64_MIN},
    {"9223372036854775808", false, MEMPLAN_STATUS_RANGE, 99},
    {"-9223372036854775809", false, MEMPLAN_STATUS_RANGE, 99},
    {"9223372036854776K", true, MEMPLAN_STATUS_RANGE, 99},
    {"4M", false, MEMPLAN_STATUS_INPUT, 99},
    {"4MM", true, MEMPLAN_STATUS_INPUT, 99},
    {"M", true, MEMPLAN_STATUS_INPUT, 99},
    {"", true, MEMPLAN_STATUS_INPUT, 99},
    {"-", true, MEMPLAN_STATUS_INPUT, 99},
    {"--1", true, MEMPLAN_STATUS_INPUT, 99},
    {" 1", true, MEMPLAN_STATUS_INPUT, 99},
    {"1 ", true, MEMPLAN_STATUS_INPUT, 99},
    {"1.0", true, MEMPLAN_STATUS_INPUT, 99},
};

START_TEST(parses_integers)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    int64_t value = 99;
    ck_assert_msg(mp_integer_parse(integers[_i].text, integers[_i].suffixes, &value, &err) ==
                      integers[_i].status,
                  "'%s': %s", integers[_i].text, err.text);
    ck_assert_msg(value == integers[_i].value, "'%s' gave %lld", integers[_i].text,
                  (long long)value);
}
END_TEST

static const struct {
    uint64_t bytes;
    const char *text;
} formats[] = {
    {0, "0 B"},
    {512, "512 B"},
    {1023, "1023 B"},
    {1024, "1.00 KiB"},
    {3072, "3.00 KiB"},
    {1536, "1.50 KiB"},
    {1048575, "1.00 MiB"}, /* not 1024.00 KiB */
    {1048570, "1023.99 KiB"},
    {UINT64_C(18715394867), "17.43 GiB"},
    {UINT64_C(85899345920), "80.00 GiB"},
    {UINT64_C(150754820096), "140.40 GiB"},
    {UINT64_C(1099511627776), "1.00 TiB"},
    {UINT64_C(1152921504606846976), "1.00 EiB"},
    {UINT64_MAX, "16.00 EiB"},
};

START_TEST(formats_bytes)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_bytes_format(&sb, formats[_i].bytes);
    ck_assert_str_eq(mp_strbuf_text(&sb), formats[_i].text);
    mp_strbuf_release(&sb);
}
END_TEST

static const struct {
    uint64_t value;
    const char *text;
} groups[] = {
    {0, "0"},
    {999, "999"},
    {1000, "1,000"},
    {12345678, "12,345,678"},
    {UINT64_MAX, "18,446,744,073,709,551,615"},
};

START_TEST(groups_digits)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_grouped_format(&sb, groups[_i].value);
    ck_assert_str_eq(mp_strbuf_text(&sb), groups[_i].text);
    mp_strbuf_release(&sb);
}
END_TEST

START_TEST(arithmetic_reports_overflow)
{
    uint64_t out = 5;
    ck_assert(mp_mul_u64(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &out));
    ck_assert_uint_eq(out, UINT64_MAX - UINT32_MAX);
    out = 5;
    ck_assert(!mp_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &out));
    ck_assert(!mp_add_u64(UINT64_MAX, 1, &out));
    ck_assert_uint_eq(out, 5);
    ck_assert(mp_mul_u64(0, UINT64_MAX, &out));
    ck_assert_uint_eq(out, 0);
    ck_assert(mp_add_u64(UINT64_MAX, 0, &out));
    ck_assert_uint_eq(out, UINT64_MAX);
}
END_TEST

static const struct {
    const char *text;
    enum memplan_status status;
    double number;
} doubles[] = {
    {"1", MEMPLAN_STATUS_OK, 1.0},
    {"-0.5", MEMPLAN_STATUS_OK, -0.5},
    {".5", MEMPLAN_STATUS_OK, 0.5},
    {"5.", MEMPLAN_STATUS_OK, 5.0},
    {"1e6", MEMPLAN_STATUS_OK, 1e6},
    {"+1.25E-2", MEMPLAN_STATUS_OK, 0.0125},
    {"1e999", MEMPLAN_STATUS_RANGE, 99},
    {"1000000000000000000000000000000000000000000000000000000000000000", MEMPLAN_STATUS_RANGE, 99},
    {"", MEMPLAN_STATUS_INPUT, 99},
    {".", MEMPLAN_STATUS_INPUT, 99},
    {"1e", MEMPLAN_STATUS_INPUT, 99},
    {"0x10", MEMPLAN_STATUS_INPUT, 99},
    {"inf", MEMPLAN_STATUS_INPUT, 99},
    {"nan", MEMPLAN_STATUS_INPUT, 99},
    {"1 ", MEMPLAN_STATUS_INPUT, 99},
    {"1,5", MEMPLAN_STATUS_INPUT, 99},
};

START_TEST(parses_doubles)
{
    double number = 99;
    ck_assert_msg(mp_double_parse(doubles[_i].text, strlen(doubles[_i].text), &number) ==
                      doubles[_i].status,
                  "'%s'", doubles[_i].text);
    ck_assert_double_eq(number, doubles[_i].number);
}
END_TEST

static const struct {
    double number;
    const char *text;
} shortest[] = {
    {0.1, "0.1"},
    {3, "3"},
    {1e20, "1e+20"},
    {-2.5, "-2.5"},
    {1.0 / 3, "0.3333333333333333"},
    {0.1 + 0.2, "0.30000000000000004"},
    {DBL_MAX, "1.7976931348623157e+308"},
    {5e-324, "4.94065645841247e-324"},
};

START_TEST(writes_doubles_that_read_back_equal)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    double back = 0;
    mp_double_format(&sb, shortest[_i].number);
    ck_assert_str_eq(mp_strbuf_text(&sb), shortest[_i].text);
    ck_assert_int_eq(mp_double_parse(sb.data, sb.len, &back), MEMPLAN_STATUS_OK);
    ck_assert_double_eq(back, shortest[_i].number);
    mp_strbuf_release(&sb);
}
END_TEST

START_TEST(the_locale_does_not_matter)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    double number = 0;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8"};
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++)
        if (setlocale(LC_NUMERIC, names[i]))
            break;
    ck_assert_int_eq(mp_double_parse("1.5", 3, &number), MEMPLAN_STATUS_OK);
    ck_assert_double_eq(number, 1.5);
    mp_double_format(&sb, 2.5);
    ck_assert_str_eq(mp_strbuf_text(&sb), "2.5");
    mp_strbuf_release(&sb);
}
END_TEST

static const struct {
    const char *word;
    const char *closest;
} words[] = {
    {"A100-80GB", "A100-80G"},
    {"a100-80g", "A100-80G"},
    {"h200", "H200-141G"},
    {"lama", "llama"},
    {"gtp2", "gpt2"},
    {"zebra", NULL},
    {"", NULL},
    {"x", NULL},
    {"batch_miro", "batch_micro"},
};

START_TEST(suggests_the_closest_word)
{
    static const char *const candidates[] = {"A100-40G", "A100-80G", "H200-141G",
                                             "llama",    "gpt2",     "batch_micro"};
    const char *const closest = mp_closest(words[_i].word, candidates, MP_ARRAY_LEN(candidates));
    if (!words[_i].closest)
        ck_assert_msg(!closest, "'%s' gave '%s'", words[_i].word, closest ? closest : "");
    else
        ck_assert_str_eq(closest ? closest : "", words[_i].closest);
}
END_TEST

START_TEST(very_long_words_have_no_suggestion)
{
    static const char *const candidates[] = {"gpt2"};
    char word[5000];
    memset(word, 'g', sizeof(word) - 1);
    word[sizeof(word) - 1] = '\0';
    ck_assert_ptr_null(mp_closest(word, candidates, 1));
    const char *const longer[] = {word};
    ck_assert_ptr_null(mp_closest("ggg", longer, 1));
}
END_TEST

Suite *suite_base_units(void)
{
    Suite *const suite = suite_create("base_units");
    TCase *const tc = tcase_create("units");
    tcase_add_loop_test(tc, parses_byte_sizes, 0, (int)MP_ARRAY_LEN(sizes));
    tcase_add_test(tc, an_ambiguous_size_names_both_spellings);
    tcase_add_loop_test(tc, parses_integers, 0, (int)MP_ARRAY_LEN(integers));
    tcase_add_loop_test(tc, formats_bytes, 0, (int)MP_ARRAY_LEN(formats));
    tcase_add_loop_test(tc, groups_digits, 0, (int)MP_ARRAY_LEN(groups));
    tcase_add_test(tc, arithmetic_reports_overflow);
    tcase_add_loop_test(tc, parses_doubles, 0, (int)MP_ARRAY_LEN(doubles));
    tcase_add_loop_test(tc, writes_doubles_that_read_back_equal, 0, (int)MP_ARRAY_LEN(shortest));
    tcase_add_test(tc, the_locale_does_not_matter);
    tcase_add_loop_test(tc, suggests_the_closest_word, 0, (int)MP_ARRAY_LEN(words));
    tcase_add_test(tc, very_long_words_have_no_suggestion);
    suite_add_tcase(suite, tc);
    return suite;
}
