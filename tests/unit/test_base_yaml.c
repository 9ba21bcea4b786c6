/* SPDX-License-Identifier: MIT */
/* YAML: core scalars, shared anchors, refusals, hostile files. */
#include "base/yaml.h"

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
    return mp_yaml_parse(&arena, "a.yaml", text, strlen(text), &err);
}

static const struct {
    const char *text;
    const char *json;
} accepted[] = {
    {"a: 1\nb: [x, y]\n", "{\"a\": 1, \"b\": [\"x\", \"y\"]}"},
    {"- no\n- on\n- yes\n- off\n", "[\"no\", \"on\", \"yes\", \"off\"]"},
    {"[true, True, FALSE, tRUE]", "[true, true, false, \"tRUE\"]"},
    {"[null, ~, Null, NULL, nULL]", "[null, null, null, null, \"nULL\"]"},
    {"a:\nb: ~\n", "{\"a\": null, \"b\": null}"},
    {"[1, -2, +3, 0, -0, 0.10, 0o17, 0x1F, '010']", "[1, -2, 3, 0, 0, 0.1, 15, 31, \"010\"]"},
    {"[9007199254740993, 9223372036854775807, 9223372036854775808]",
     "[9007199254740993, 9223372036854775807, 9.223372036854776e+18]"},
    {"[1e6, 1.5, .5, 5., -1.5E-2]", "[1000000.0, 1.5, 0.5, 5.0, -0.015]"},
    {"[1_000, 0b1, 12:30, 1.2.3, 0o8, 0xg, '-', 4M, 80GiB]",
     "[\"1_000\", \"0b1\", \"12:30\", \"1.2.3\", \"0o8\", \"0xg\", \"-\", \"4M\", \"80GiB\"]"},
    {"['1', \"true\", 'null', '']", "[\"1\", \"true\", \"null\", \"\"]"},
    {"a: |\n  two\n  lines\nb: >\n  folded\n  text\n",
     "{\"a\": \"two\\nlines\\n\", \"b\": \"folded text\\n\"}"},
    {"base: &x {k: 1}\ncopy: *x\nlist: [*x, *x]\n",
     "{\"base\": {\"k\": 1}, \"copy\": {\"k\": 1}, \"list\": [{\"k\": 1}, {\"k\": 1}]}"},
    {"- &x 1\n- *x\n- &x 2\n- *x\n", "[1, 1, 2, 2]"},
    {"1: one\ntrue: two\n", "{\"1\": \"one\", \"true\": \"two\"}"},
    {"%YAML 1.1\n---\na: 1\n...\n", "{\"a\": 1}"},
    {"# only a comment before\na: 1 # and after\n", "{\"a\": 1}"},
    {"\t{\"a\": \"\\ud83d\\ude00\\/\"}", "{\"a\": \"\xf0\x9f\x98\x80/\"}"},
    {"{a: 1, b: [2]}", "{\"a\": 1, \"b\": [2]}"},
    {"3", "3"},
    {"\"<<\": 1", "{\"<<\": 1}"},
};

START_TEST(reads)
{
    const struct mp_value *const value = parse(accepted[_i].text);
    ck_assert_msg(value != NULL, "'%s': %s", accepted[_i].text, err.text);
    ck_assert_str_eq(value_text(&arena, value), accepted[_i].json);
}
END_TEST

static const struct {
    const char *text;
    const char *message; /* after "a.yaml" */
} refused[] = {
    {"", ":1:1: there is nothing in it"},
    {"# nothing\n", ":2:1: there is nothing in it"},
    {"a: 1\nb: 2\na: 3\n", ":3:1: key 'a' is given twice"},
    {"a: {x: 1, 'x': 2}\n", ":1:11: key 'x' is given twice"},
    {"a: !!str 1\n", ":1:4: tag 'tag:yaml.org,2002:str' is not supported; write the plain value"},
    {"a: !x [1]\n", ":1:4: tag '!x' is not supported; write the plain value"},
    {"--- 1\n--- 2\n", ":2:1: a second document; one file holds one"},
    {"a: *x\n", ":1:4: alias '*x' has no finished anchor '&x' before it"},
    {"a: &x [1, *x]\n", ":1:11: alias '*x' has no finished anchor '&x' before it"},
    {"- &x 1\n- {*x : 2}\n", ":2:4: a key must be a plain word"},
    {"[a]: 1\n", ":1:1: a key must be a plain word"},
    {"&x a: 1\n", ":1:1: a key cannot have an anchor"},
    {"a: {<<: {b: 1}}\n", ":1:5: merge keys ('<<') are not supported; repeat the keys"},
    {"a: .inf\n", ":1:4: number .inf is not finite or too long"},
    {"a: [-.INF]\n", ":1:5: number -.INF is not finite or too long"},
    {"a: .NaN\n", ":1:4: number .NaN is not finite or too long"},
    {"a: 1e999\n", ":1:4: number 1e999 is not finite or too long"},
    {"a: 010\n", ":1:4: number 010 could be octal (YAML 1.1) or decimal (YAML 1.2); write it without the leading zero, as "
                  "0o17, or in quotes"},
    {"[-00]", ":1:2: number -00 could be octal (YAML 1.1) or decimal (YAML 1.2); write it without the leading zero, as 0o17, "
              "or in quotes"},
    {"- 09\n", ":1:3: number 09 could be octal (YAML 1.1) or decimal (YAML 1.2); write it without the leading zero, as 0o17, "
               "or in quotes"},
    {"a: 0x10000000000000000\n", ":1:4: number 0x10000000000000000 is not finite or too long"},
    {"a: \"x\\0y\"\n", ":1:4: a NUL character is not allowed in a string"},
    {"a: [1\n", ":2:1: did not find expected ',' or ']' while parsing a flow sequence"},
    {"a: 1\n b: 2\n", ":2:3: mapping values are not allowed in this context"},
    {"\ta: 1\n",
     ":1:1: found character that cannot start any token while scanning for the next token"},
    {"a: \xc3\n", ": invalid trailing UTF-8 octet at byte 4"},
    {"a: \xe2\x82", ": incomplete UTF-8 octet sequence at byte 3"},
    {"a: \x01\n", ": control characters are not allowed at byte 3"},
    {"{\"a\": 1, \"a\": 2}", ":1:10: key 'a' is given twice"},
};

START_TEST(refuses_with_place_and_reason)
{
    char expected[256];
    snprintf(expected, sizeof(expected), "a.yaml%s", refused[_i].message);
    ck_assert_msg(!parse(refused[_i].text), "'%s' was accepted", refused[_i].text);
    ck_assert_str_eq(err.text, expected);
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
}
END_TEST

START_TEST(keeps_places)
{
    const struct mp_value *const value = parse("a:\n  - 1\n  - b: \xc3\xa9\n    c: [x, 2]\n");
    ck_assert_ptr_nonnull(value);
    const struct mp_value *const item = mp_value_get(value, "a")->as.array.items[1];
    ck_assert_int_eq(item->line, 3);
    ck_assert_int_eq(item->column, 5);
    ck_assert_int_eq(item->as.object.members[1].line, 4);
    ck_assert_int_eq(item->as.object.members[1].column, 5);
    const struct mp_value *const two = mp_value_get(item, "c")->as.array.items[1];
    ck_assert_int_eq(two->line, 4);
    ck_assert_int_eq(two->column, 12);
}
END_TEST

START_TEST(an_alias_shares_the_value_of_its_anchor)
{
    const struct mp_value *const value = parse("a: &x [1, 2]\nb: *x\n");
    ck_assert_ptr_nonnull(value);
    ck_assert_ptr_eq(mp_value_get(value, "a"), mp_value_get(value, "b"));
}
END_TEST

/* "Billion laughs": nine levels of ten aliases. */
START_TEST(alias_bombs_are_refused)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, "l0: &l0 lol\n");
    for (int level = 1; level < 10; level++) {
        mp_strbuf_addf(&text, "l%d: &l%d [", level, level);
        for (int i = 0; i < 10; i++)
            mp_strbuf_addf(&text, "%s*l%d", i ? ", " : "", level - 1);
        mp_strbuf_addstr(&text, "]\n");
    }
    ck_assert_ptr_null(parse(text.data));
    ck_assert_ptr_nonnull(strstr(err.text, "more than 1000000 values, aliases written out"));
    mp_strbuf_release(&text);
}
END_TEST

/* Each level is flat where it stands, but its alias is not. */
START_TEST(depth_counts_through_aliases)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, "- &l0 [x]\n");
    for (int level = 1; level < 100; level++)
        mp_strbuf_addf(&text, "- &l%d [*l%d]\n", level, level - 1);
    ck_assert_ptr_null(parse(text.data));
    ck_assert_str_eq(err.text, "a.yaml:64:9: nested deeper than 64 levels");
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(too_many_anchors_are_refused)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    for (int i = 0; i < 300; i++)
        mp_strbuf_addf(&text, "- &a%d 1\n", i);
    ck_assert_ptr_null(parse(text.data));
    ck_assert_str_eq(err.text, "a.yaml:257:3: more than 256 anchors");
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(nesting_ends_at_64)
{
    static const size_t levels[] = {64, 65, 20000};
    for (size_t i = 0; i < MP_ARRAY_LEN(levels); i++) {
        struct mp_strbuf text = MP_STRBUF_INIT;
        mp_strbuf_pad(&text, '[', levels[i]);
        mp_strbuf_addstr(&text, "a"); /* no JSON */
        mp_strbuf_pad(&text, ']', levels[i]);
        ck_assert_int_eq(parse(text.data) != NULL, levels[i] <= 64);
        mp_strbuf_release(&text);
    }
    ck_assert_str_eq(err.text, "a.yaml:1:65: nested deeper than 64 levels");
}
END_TEST

START_TEST(the_length_counts_not_a_nul)
{
    const struct mp_value *const value = mp_yaml_parse(&arena, "a.yaml", "12345", 2, &err);
    ck_assert_ptr_nonnull(value);
    ck_assert_int_eq(value->as.integer, 12);
}
END_TEST

START_TEST(every_failing_allocation_is_reported)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, "a: &x [1, 2.5, three, ~, {k: []}]\nb: *x\nbig:\n");
    for (int i = 0; i < 70; i++)
        mp_strbuf_addf(&text, "  k%d: v\n", i);
    for (uint64_t n = 1;; n++) {
        struct memplan_error problem = {MEMPLAN_STATUS_OK, ""};
        mp_alloc_fail_after(n);
        const struct mp_value *const value =
            mp_yaml_parse(&arena, "a.yaml", text.data, text.len, &problem);
        const uint64_t n_allocations = mp_alloc_fail_after(0);
        if (value) {
            ck_assert_uint_lt(n_allocations, n);
            ck_assert_uint_gt(n, 200);
            break;
        }
        ck_assert_int_eq(problem.status, MEMPLAN_STATUS_NOMEM);
        ck_assert_str_eq(problem.text, "out of memory reading a.yaml");
        mp_arena_release(&arena);
    }
    mp_strbuf_release(&text);
}
END_TEST

Suite *suite_base_yaml(void)
{
    Suite *const suite = suite_create("base_yaml");
    TCase *const tc = tcase_create("yaml");
    tcase_add_checked_fixture(tc, NULL, release);
    tcase_add_loop_test(tc, reads, 0, (int)MP_ARRAY_LEN(accepted));
    tcase_add_loop_test(tc, refuses_with_place_and_reason, 0, (int)MP_ARRAY_LEN(refused));
    tcase_add_test(tc, keeps_places);
    tcase_add_test(tc, an_alias_shares_the_value_of_its_anchor);
    tcase_add_test(tc, alias_bombs_are_refused);
    tcase_add_test(tc, depth_counts_through_aliases);
    tcase_add_test(tc, too_many_anchors_are_refused);
    tcase_add_test(tc, nesting_ends_at_64);
    tcase_add_test(tc, the_length_counts_not_a_nul);
    tcase_add_test(tc, every_failing_allocation_is_reported);
    suite_add_tcase(suite, tc);
    return suite;
}
