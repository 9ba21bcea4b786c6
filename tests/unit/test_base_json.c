/* SPDX-License-Identifier: MIT */
/* JSON: what is read exactly, what is refused and where, and that writing reads back. */
#include "base/json.h"

#include <math.h>

#include "suites.h"
#include "value_text.h"

static struct mp_arena arena;
static struct memplan_error err;

static void release(void)
{
    mp_arena_release(&arena);
}

static const struct mp_value *parse(const char *text)
{
    return mp_json_parse(&arena, "a.json", text, strlen(text), &err);
}

/* written NULL: the same as the text */
static const struct {
    const char *text;
    const char *written;
} accepted[] = {
    {"null", NULL},
    {"true", NULL},
    {"false", NULL},
    {"0", NULL},
    {"-0", "0"},
    {"9007199254740993", NULL}, /* 2^53 + 1, which a double does not hold */
    {"9223372036854775807", NULL},
    {"-9223372036854775808", NULL},
    {"9223372036854775808", "9.223372036854776e+18"},
    {"1.0", NULL},
    {"1e3", "1000.0"},
    {"-1.5E-2", "-0.015"},
    {"1e-400", "0.0"},
    {"100000000000000000000000000000000000000000000000000000000000000", "1e+62"},
    {"\"\"", NULL},
    {"\"caf\xc3\xa9 \xf0\x9f\x98\x80\"", NULL},
    {"\"\\u00e9\\ud83d\\ude00\"", "\"\xc3\xa9\xf0\x9f\x98\x80\""},
    {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u001f\"", "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u001f\""},
    {"[]", NULL},
    {"{}", NULL},
    {"[[], {}, [{}]]", NULL},
    {" \t\r\n[1 , 2]\n ", "[1, 2]"},
    {"{\"a\": 1, \"A\": 2, \"b\": {\"a\": [null]}}", NULL},
    {"{\"\": 1}", NULL},
    {"\xef\xbb\xbf[1]", "[1]"}, /* byte order mark */
};

START_TEST(reads_and_writes)
{
    const struct mp_value *const value = parse(accepted[_i].text);
    ck_assert_msg(value != NULL, "'%s': %s", accepted[_i].text, err.text);
    const char *const expected = accepted[_i].written ? accepted[_i].written : accepted[_i].text;
    ck_assert_str_eq(value_text(&arena, value), expected);
    const struct mp_value *const again = parse(value_text(&arena, value));
    ck_assert_msg(again != NULL, "written '%s': %s", value_text(&arena, value), err.text);
    ck_assert_str_eq(value_text(&arena, again), expected);
}
END_TEST

static const struct {
    const char *text;
    enum memplan_status status;
    const char *message; /* after "a.json:" */
} refused[] = {
    {"", MEMPLAN_STATUS_INPUT, "1:1: expected a value, found the end of the text"},
    {"  \n ", MEMPLAN_STATUS_INPUT, "2:2: expected a value, found the end of the text"},
    {"[1, 2", MEMPLAN_STATUS_INPUT,
     "1:6: expected ',' or ']' after an item, found the end of the text"},
    {"[1,]", MEMPLAN_STATUS_INPUT, "1:4: expected a value, found ']'"},
    {"[,1]", MEMPLAN_STATUS_INPUT, "1:2: expected a value, found ','"},
    {"[1 2]", MEMPLAN_STATUS_INPUT, "1:4: expected ',' or ']' after an item, found '2'"},
    {"[1}", MEMPLAN_STATUS_INPUT, "1:3: expected ',' or ']' after an item, found '}'"},
    {"{\"a\" 1}", MEMPLAN_STATUS_INPUT, "1:6: expected ':' after the key, found '1'"},
    {"{\"a\": 1,}", MEMPLAN_STATUS_INPUT, "1:9: expected a key in double quotes, found '}'"},
    {"{a: 1}", MEMPLAN_STATUS_INPUT, "1:2: expected a key in double quotes, found 'a'"},
    {"{1: 1}", MEMPLAN_STATUS_INPUT, "1:2: expected a key in double quotes, found '1'"},
    {"['a']", MEMPLAN_STATUS_INPUT, "1:2: expected a value, found '''"},
    {"1 x", MEMPLAN_STATUS_INPUT, "1:3: expected nothing more after the value, found 'x'"},
    {"{} {}", MEMPLAN_STATUS_INPUT, "1:4: expected nothing more after the value, found '{'"},
    {"1\f", MEMPLAN_STATUS_INPUT, "1:2: expected nothing more after the value, found byte 0x0c"},
    {"NaN", MEMPLAN_STATUS_INPUT, "1:1: NaN is not a JSON number; write null instead"},
    {"[Infinity]", MEMPLAN_STATUS_INPUT, "1:2: Infinity is not a JSON number; write null instead"},
    {"{\"a\":\n  -Infinity}", MEMPLAN_STATUS_INPUT,
     "2:3: -Infinity is not a JSON number; write null instead"},
    {"tru", MEMPLAN_STATUS_INPUT, "1:1: expected a value, found 't'"},
    {"truex", MEMPLAN_STATUS_INPUT, "1:5: expected nothing more after the value, found 'x'"},
    {"True", MEMPLAN_STATUS_INPUT, "1:1: expected a value, found 'T'"},
    {"01", MEMPLAN_STATUS_INPUT, "1:1: a number must not begin with 0"},
    {"+1", MEMPLAN_STATUS_INPUT, "1:1: expected a value, found '+'"},
    {"-", MEMPLAN_STATUS_INPUT, "1:2: expected a digit, found the end of the text"},
    {"1.", MEMPLAN_STATUS_INPUT, "1:3: expected a digit, found the end of the text"},
    {".5", MEMPLAN_STATUS_INPUT, "1:1: expected a value, found '.'"},
    {"1e", MEMPLAN_STATUS_INPUT, "1:3: expected a digit, found the end of the text"},
    {"0x10", MEMPLAN_STATUS_INPUT, "1:2: expected nothing more after the value, found 'x'"},
    {"[1e999]", MEMPLAN_STATUS_RANGE, "1:2: the number is too large for a double"},
    {"1000000000000000000000000000000000000000000000000000000000000000", MEMPLAN_STATUS_RANGE,
     "1:1: a number of more than 63 characters"},
    {"\"a", MEMPLAN_STATUS_INPUT, "1:3: the string has no closing '\"'"},
    {"\"a\nb\"", MEMPLAN_STATUS_INPUT,
     "1:3: control character in a string; write it as an escape such as \\n"},
    {"\"\\x41\"", MEMPLAN_STATUS_INPUT,
     "1:3: expected an escape after '\\' (one of \" \\ / b f n r t u), found 'x'"},
    {"\"\\", MEMPLAN_STATUS_INPUT,
     "1:3: expected an escape after '\\' (one of \" \\ / b f n r t u), found the end of the text"},
    {"\"\\u12g4\"", MEMPLAN_STATUS_INPUT,
     "1:6: expected four hexadecimal digits after \\u, found 'g'"},
    {"\"\\u0000\"", MEMPLAN_STATUS_INPUT, "1:8: \\u0000 is not allowed in a string"},
    {"\"\\ud800\"", MEMPLAN_STATUS_INPUT, "1:8: half of a surrogate pair in a string"},
    {"\"\\ud800\\u0041\"", MEMPLAN_STATUS_INPUT, "1:14: half of a surrogate pair in a string"},
    {"\"\\udc00\"", MEMPLAN_STATUS_INPUT, "1:8: half of a surrogate pair in a string"},
    {"\"\xc3\"", MEMPLAN_STATUS_INPUT, "1:2: invalid UTF-8 in a string"},
    {"\"\xe2\x82", MEMPLAN_STATUS_INPUT, "1:2: invalid UTF-8 in a string"},
    {"\"\xc3\xa9\xff\"", MEMPLAN_STATUS_INPUT, "1:3: invalid UTF-8 in a string"},
    {"{\"\xc3\xa9\": tru}", MEMPLAN_STATUS_INPUT, "1:7: expected a value, found 't'"},
    {"\xff", MEMPLAN_STATUS_INPUT, "1:1: expected a value, found byte 0xff"},
    {"{\"a\": 1,\n \"b\": 2, \"a\": 3}", MEMPLAN_STATUS_INPUT, "2:10: key 'a' is given twice"},
    {"{\"a\": {\"x\": 1, \"\\u0078\": 2}}", MEMPLAN_STATUS_INPUT, "1:16: key 'x' is given twice"},
};

START_TEST(refuses_with_place_and_reason)
{
    char expected[256];
    snprintf(expected, sizeof(expected), "a.json:%s", refused[_i].message);
    ck_assert_msg(!parse(refused[_i].text), "'%s' was accepted", refused[_i].text);
    ck_assert_str_eq(err.text, expected);
    ck_assert_int_eq(err.status, refused[_i].status);
}
END_TEST

START_TEST(an_inner_nul_ends_nothing)
{
    static const char text[] = "[1]\0[2]";
    ck_assert_ptr_null(mp_json_parse(&arena, "a.json", text, sizeof(text) - 1, &err));
    ck_assert_str_eq(err.text,
                     "a.json:1:4: expected nothing more after the value, found byte 0x00");
    static const char string[] = "\"a\0b\"";
    ck_assert_ptr_null(mp_json_parse(&arena, "a.json", string, sizeof(string) - 1, &err));
}
END_TEST

START_TEST(the_length_counts_not_a_nul)
{
    const struct mp_value *const value = mp_json_parse(&arena, "a.json", "12345", 2, &err);
    ck_assert_ptr_nonnull(value);
    ck_assert_int_eq(value->as.integer, 12);
}
END_TEST

START_TEST(keeps_places_and_order)
{
    const struct mp_value *const value =
        parse("{\n  \"z\": [10,\n    \"\xc3\xa9\", true],\n\t\"a\": {\"k\": -1.5}\n}");
    ck_assert_ptr_nonnull(value);
    ck_assert_int_eq(value->line, 1);
    ck_assert_int_eq(value->column, 1);
    const struct mp_member *const z = &value->as.object.members[0];
    ck_assert_str_eq(z->key, "z");
    ck_assert_int_eq(z->line, 2);
    ck_assert_int_eq(z->column, 3);
    const struct mp_value *const last = z->value->as.array.items[2];
    ck_assert_int_eq(last->kind, MP_BOOLEAN);
    ck_assert_int_eq(last->line, 3);
    ck_assert_int_eq(last->column, 10); /* characters, not bytes */
    const struct mp_value *const k = mp_value_get(mp_value_get(value, "a"), "k");
    ck_assert_int_eq(k->line, 4);
    ck_assert_int_eq(k->column, 13);
    ck_assert_double_eq(k->as.number, -1.5);
    ck_assert_uint_eq(z->value->as.array.items[1]->as.string.length, 2);
}
END_TEST

static char *nested(size_t levels)
{
    char *const text = malloc(2 * levels + 1);
    memset(text, '[', levels);
    memset(text + levels, ']', levels);
    text[2 * levels] = '\0';
    return text;
}

START_TEST(nesting_ends_at_64)
{
    static const size_t levels[] = {64, 65, 100000};
    for (size_t i = 0; i < MP_ARRAY_LEN(levels); i++) {
        char *const text = nested(levels[i]);
        const struct mp_value *const value = parse(text);
        ck_assert_int_eq(value != NULL, levels[i] <= 64);
        free(text);
    }
    ck_assert_str_eq(err.text, "a.json:1:65: nested deeper than 64 levels");
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
}
END_TEST

START_TEST(large_objects_are_checked_for_repeated_keys)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, "{");
    for (int i = 0; i < 50000; i++)
        mp_strbuf_addf(&text, "\"key%d\": %d,\n", i, i);
    const size_t end = text.len;
    mp_strbuf_addstr(&text, "\"last\": 0}");
    const struct mp_value *const value = parse(text.data);
    ck_assert_msg(value != NULL, "%s", err.text);
    ck_assert_uint_eq(value->as.object.length, 50001);
    ck_assert_int_eq(value->as.object.members[40000].value->as.integer, 40000);
    memcpy(text.data + end, "\"key7\"", 6);
    ck_assert_ptr_null(parse(text.data));
    ck_assert_str_eq(err.text, "a.json:50001:1: key 'key7' is given twice");
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(every_failing_allocation_is_reported)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, "{\"list\": [1, 2.5, \"three\", null, true, {\"x\": []}], \"big\": {");
    for (int i = 0; i < 40; i++)
        mp_strbuf_addf(&text, "%s\"k%d\": \"v\"", i ? ", " : "", i);
    mp_strbuf_addstr(&text, "}}");
    for (uint64_t n = 1;; n++) {
        struct memplan_error problem = {MEMPLAN_STATUS_OK, ""};
        mp_alloc_fail_after(n);
        const struct mp_value *const value =
            mp_json_parse(&arena, "a.json", text.data, text.len, &problem);
        const uint64_t n_allocations = mp_alloc_fail_after(0);
        if (value) {
            ck_assert_uint_lt(n_allocations, n);
            ck_assert_uint_gt(n, 100);
            break;
        }
        ck_assert_int_eq(problem.status, MEMPLAN_STATUS_NOMEM);
        ck_assert_str_eq(problem.text, "out of memory reading a.json");
        mp_arena_release(&arena);
    }
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(an_arena_limit_ends_large_texts)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, "[0");
    for (int i = 0; i < 20000; i++)
        mp_strbuf_addstr(&text, ",0");
    mp_strbuf_addstr(&text, "]");
    arena.limit_bytes = 100000;
    ck_assert_ptr_null(parse(text.data));
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_NOMEM);
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(writes_indented)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_json_writer w;
    mp_json_init(&w, &out, 2);
    mp_json_object(&w, NULL);
    mp_json_uint(&w, "total_bytes", UINT64_MAX);
    mp_json_int(&w, "delta", INT64_MIN);
    mp_json_array(&w, "list");
    mp_json_double(&w, NULL, 0.5);
    mp_json_double(&w, NULL, HUGE_VAL);
    mp_json_bool(&w, NULL, true);
    mp_json_string(&w, NULL, "a\"\x01\xff");
    mp_json_string(&w, NULL, NULL);
    mp_json_end_array(&w);
    mp_json_object(&w, "empty");
    mp_json_end_object(&w);
    mp_json_array(&w, "none");
    mp_json_end_array(&w);
    mp_json_null(&w, "nothing");
    mp_json_end_object(&w);
    ck_assert_str_eq(mp_strbuf_text(&out), "{\n"
                                           "  \"total_bytes\": 18446744073709551615,\n"
                                           "  \"delta\": -9223372036854775808,\n"
                                           "  \"list\": [\n"
                                           "    0.5,\n"
                                           "    null,\n"
                                           "    true,\n"
                                           "    \"a\\\"\\u0001\\ufffd\",\n"
                                           "    null\n"
                                           "  ],\n"
                                           "  \"empty\": {},\n"
                                           "  \"none\": [],\n"
                                           "  \"nothing\": null\n"
                                           "}");
    mp_strbuf_release(&out);
}
END_TEST

Suite *suite_base_json(void)
{
    Suite *const suite = suite_create("base_json");
    TCase *const tc = tcase_create("json");
    tcase_add_checked_fixture(tc, NULL, release);
    tcase_add_loop_test(tc, reads_and_writes, 0, (int)MP_ARRAY_LEN(accepted));
    tcase_add_loop_test(tc, refuses_with_place_and_reason, 0, (int)MP_ARRAY_LEN(refused));
    tcase_add_test(tc, an_inner_nul_ends_nothing);
    tcase_add_test(tc, the_length_counts_not_a_nul);
    tcase_add_test(tc, keeps_places_and_order);
    tcase_add_test(tc, nesting_ends_at_64);
    tcase_add_test(tc, large_objects_are_checked_for_repeated_keys);
    tcase_add_test(tc, every_failing_allocation_is_reported);
    tcase_add_test(tc, an_arena_limit_ends_large_texts);
    tcase_add_test(tc, writes_indented);
    suite_add_tcase(suite, tc);
    return suite;
}
