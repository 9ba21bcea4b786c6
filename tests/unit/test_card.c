/* SPDX-License-Identifier: MIT */
/* Questions to a card: asked once, and what another card's answers mean. */
#include "shadow/card.h"

#include "base/common.h"
#include "suites.h"

static int n_asked;

/* choice: is the card large? sizes: a buffer of args[0] for every multiprocessor; none below args[1] of them. */
static struct mp_card_answer count_sms(const struct mp_gpu *gpu, const int64_t *args)
{
    n_asked++;
    return (struct mp_card_answer){.choice = gpu->sms >= 100, .bytes = {(int64_t)gpu->sms < args[1] ? 0 : gpu->sms * (uint64_t)args[0], 7}};
}

static struct mp_card_answer capability(const struct mp_gpu *gpu, const int64_t *args)
{
    (void)args;
    return (struct mp_card_answer){.choice = gpu->compute_capability};
}

static struct mp_card_reply ask(struct mp_card *card, int64_t bytes, int64_t least)
{
    const int64_t args[] = {bytes, least};
    return mp_card_ask(card, count_sms, args, MP_ARRAY_LEN(args));
}

static const struct mp_gpu h100 = {.sms = 132, .compute_capability = 90}, a100 = {.sms = 108, .compute_capability = 80},
                           t4 = {.sms = 40, .compute_capability = 75};

START_TEST(a_question_is_put_once)
{
    struct mp_card_log log = {0};
    struct mp_card card = {&h100, &log};
    n_asked = 0;
    mp_card_log_clear(&log, &h100);
    const struct mp_card_reply first = ask(&card, 64, 0), second = ask(&card, 32, 0), again = ask(&card, 64, 0);
    ck_assert_int_eq(n_asked, 2);
    ck_assert_uint_eq(first.number, 1);
    ck_assert_uint_eq(second.number, 2);
    ck_assert_uint_eq(again.number, 1);
    ck_assert_uint_eq(again.bytes[0], 132 * 64);
    ck_assert_uint_eq(mp_card_tag(second.number, 1), 4);
    ck_assert_uint_eq(mp_card_log_sizes(&log), 4);
    for (int64_t i = 0; i < 1000; i++) /* the slots grow */
        ck_assert_uint_eq(ask(&card, i, 1).number, (uint64_t)i + 3);
    ck_assert_uint_eq(ask(&card, 999, 1).number, 1002);
    mp_card_log_release(&log);
}
END_TEST

START_TEST(without_a_log_the_answer_is_the_same)
{
    struct mp_card card = {&t4, NULL};
    const struct mp_card_reply reply = ask(&card, 64, 0);
    ck_assert_uint_eq(reply.bytes[0], 40 * 64);
    ck_assert_uint_eq(reply.number, 0);
    ck_assert_uint_eq(mp_card_tag(reply.number, 1), 0);
}
END_TEST

/* What a run on an H100 asked, and whether another card would have taken it the same way. */
static const struct {
    int64_t least;
    bool asks_capability;
    const struct mp_gpu *other;
    bool agrees;
} others[] = {
    {0, false, &h100, true}, {0, false, &a100, true},
    {0, false, &t4, false},   /* another choice */
    {120, false, &a100, false}, /* a buffer less */
    {0, true, &a100, false},  /* another choice of the second question */
};

START_TEST(cards_agree_when_choices_and_buffers_do)
{
    struct mp_card_log log = {0};
    struct mp_card card = {&h100, &log};
    uint64_t sizes[4];
    mp_card_log_clear(&log, &h100);
    (void)ask(&card, 64, others[_i].least);
    if (others[_i].asks_capability)
        (void)mp_card_ask(&card, capability, NULL, 0);
    ck_assert_int_eq(mp_card_log_agrees(&log, others[_i].other, sizes), others[_i].agrees);
    if (others[_i].agrees) {
        ck_assert_uint_eq(sizes[0], 64 * others[_i].other->sms);
        ck_assert_uint_eq(sizes[1], 7);
    }
    mp_card_log_release(&log);
}
END_TEST

START_TEST(a_log_that_overflowed_speaks_for_its_card_alone)
{
    struct mp_card_log log = {0};
    struct mp_card card = {&h100, &log};
    mp_card_log_clear(&log, &h100);
    for (int64_t i = 0; i <= MP_CARD_QUESTIONS; i++)
        ck_assert_uint_eq(ask(&card, i, 0).number, i < MP_CARD_QUESTIONS ? (uint64_t)i + 1 : 0);
    ck_assert(log.incomplete);
    uint64_t *const sizes = mp_malloc(mp_card_log_sizes(&log) * sizeof *sizes);
    ck_assert(mp_card_log_agrees(&log, &h100, sizes));
    ck_assert(!mp_card_log_agrees(&log, &a100, sizes));
    mp_card_log_clear(&log, &a100);
    ck_assert(!log.incomplete);
    ck_assert_uint_eq(ask(&card, 5, 0).number, 1);
    free(sizes);
    mp_card_log_release(&log);
}
END_TEST

START_TEST(tags_are_alike_when_their_questions_are)
{
    struct mp_card_log a = {0}, b = {0};
    struct mp_card card_a = {&h100, &a}, card_b = {&a100, &b};
    (void)ask(&card_a, 64, 0);
    (void)ask(&card_a, 32, 0);
    (void)ask(&card_b, 64, 0);
    (void)ask(&card_b, 33, 0);
    ck_assert(mp_card_log_asks_alike(&a, &b, mp_card_tag(1, 0)));
    ck_assert(!mp_card_log_asks_alike(&a, &b, mp_card_tag(2, 0)));
    mp_card_log_release(&a);
    mp_card_log_release(&b);
}
END_TEST

Suite *suite_card(void)
{
    Suite *const suite = suite_create("card");
    TCase *const tc = tcase_create("card");
    tcase_add_test(tc, a_question_is_put_once);
    tcase_add_test(tc, without_a_log_the_answer_is_the_same);
    tcase_add_loop_test(tc, cards_agree_when_choices_and_buffers_do, 0, (int)MP_ARRAY_LEN(others));
    tcase_add_test(tc, a_log_that_overflowed_speaks_for_its_card_alone);
    tcase_add_test(tc, tags_are_alike_when_their_questions_are);
    suite_add_tcase(suite, tc);
    return suite;
}
