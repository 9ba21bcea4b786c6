/* SPDX-License-Identifier: MIT */
/* Looking into value trees, and repeated keys in small and large objects. */
#include "base/value.h"

#include "suites.h"

static const struct mp_value one = {.kind = MP_INT, .as = {.integer = 1}};
static const struct mp_value half = {.kind = MP_DOUBLE, .as = {.number = 0.5}};
static const struct mp_value word = {.kind = MP_STRING, .as = {.string = {"w", 1}}};

START_TEST(finds_members_by_exact_key)
{
    const struct mp_member members[] = {{"a", 1, 1, &one}, {"A", 1, 1, &half}};
    const struct mp_value object = {.kind = MP_OBJECT, .as = {.object = {members, 2}}};
    ck_assert_ptr_eq(mp_value_get(&object, "a"), &one);
    ck_assert_ptr_eq(mp_value_get(&object, "A"), &half);
    ck_assert_ptr_null(mp_value_get(&object, "b"));
    ck_assert_ptr_null(mp_value_get(&one, "a"));
    ck_assert_ptr_null(mp_value_get(NULL, "a"));
}
END_TEST

START_TEST(numbers_are_integers_and_doubles)
{
    double number = 0;
    ck_assert(mp_value_number(&one, &number));
    ck_assert_double_eq(number, 1);
    ck_assert(mp_value_number(&half, &number));
    ck_assert_double_eq(number, 0.5);
    ck_assert(!mp_value_number(&word, &number));
    ck_assert(!mp_value_number(NULL, &number));
    ck_assert_double_eq(number, 0.5);
}
END_TEST

START_TEST(kinds_have_names)
{
    ck_assert_str_eq(mp_value_kind_text(MP_NULL), "null");
    ck_assert_str_eq(mp_value_kind_text(MP_ARRAY), "a list");
    ck_assert_str_eq(mp_value_kind_text((enum mp_value_kind)77), "an unknown value");
}
END_TEST

/* n members with different keys; then two of them made equal. */
START_TEST(finds_the_first_repeated_key)
{
    static const size_t counts[] = {2, 10, 24, 25, 1000};
    const size_t n = counts[_i];
    char(*const names)[16] = malloc(n * sizeof(*names));
    struct mp_member *const members = calloc(n, sizeof(*members));
    const struct mp_member *repeated = NULL;
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof(names[i]), "key%zu", i * 7919 % 1009);
        members[i] = (struct mp_member){.key = names[i], .value = &one};
    }
    ck_assert_int_eq(mp_members_find_repeated(members, n, &repeated), MEMPLAN_STATUS_OK);
    ck_assert_ptr_null(repeated);
    members[n - 1].key = "key0";
    members[n / 2].key = "key0"; /* key0 is the first one, too */
    ck_assert_int_eq(mp_members_find_repeated(members, n, &repeated), MEMPLAN_STATUS_OK);
    ck_assert_ptr_eq(repeated, &members[n / 2]);
    if (n > 24) {
        mp_alloc_fail_after(1);
        ck_assert_int_eq(mp_members_find_repeated(members, n, &repeated), MEMPLAN_STATUS_NOMEM);
    }
    free(members);
    free(names);
}
END_TEST

Suite *suite_base_value(void)
{
    Suite *const suite = suite_create("base_value");
    TCase *const tc = tcase_create("value");
    tcase_add_test(tc, finds_members_by_exact_key);
    tcase_add_test(tc, numbers_are_integers_and_doubles);
    tcase_add_test(tc, kinds_have_names);
    tcase_add_loop_test(tc, finds_the_first_repeated_key, 0, 5);
    suite_add_tcase(suite, tc);
    return suite;
}
