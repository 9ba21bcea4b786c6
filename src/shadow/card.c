/* SPDX-License-Identifier: MIT */
/* The questions of a run, each answered once. */
#include "shadow/card.h"

#include <string.h>

enum { FIRST_SLOTS = 128 };

void mp_card_log_release(struct mp_card_log *log)
{
    free(log->asked);
    free(log->slots);
    *log = (struct mp_card_log){0};
}

void mp_card_log_clear(struct mp_card_log *log, const struct mp_gpu *gpu)
{
    log->gpu = gpu;
    log->n = 0;
    log->incomplete = false;
    if (log->slots)
        memset(log->slots, 0, log->n_slots * sizeof *log->slots);
}

static uint64_t hash_of(mp_card_question *question, const int64_t *args)
{
    uint64_t hash = (uint64_t)(uintptr_t)question;
    for (int i = 0; i < MP_CARD_ARGS; i++) {
        hash = (hash ^ (uint64_t)args[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

/* The slot of the question, or the free one where it belongs. */
static uint16_t *find_slot(const struct mp_card_log *log, mp_card_question *question, const int64_t *args)
{
    uint32_t at = (uint32_t)hash_of(question, args) & (log->n_slots - 1);
    for (;; at = (at + 1) & (log->n_slots - 1)) {
        if (!log->slots[at])
            return &log->slots[at];
        const struct mp_card_asked *const a = &log->asked[log->slots[at] - 1];
        if (a->question == question && memcmp(a->args, args, sizeof a->args) == 0)
            return &log->slots[at];
    }
}

/* Room for one more question, with slots twice as many as questions at least. */
static bool reserve(struct mp_card_log *log)
{
    if (log->n == log->cap) {
        const uint32_t wanted = log->cap ? log->cap * 2 : FIRST_SLOTS / 2;
        struct mp_card_asked *const asked = mp_realloc(log->asked, wanted * sizeof *asked);
        if (!asked)
            return false;
        log->asked = asked;
        log->cap = wanted;
    }
    if (log->n * 2 < log->n_slots)
        return true;
    const uint32_t wanted = log->n_slots ? log->n_slots * 2 : FIRST_SLOTS;
    uint16_t *const slots = mp_realloc(log->slots, wanted * sizeof *slots);
    if (!slots)
        return false;
    memset(slots, 0, wanted * sizeof *slots);
    log->slots = slots;
    log->n_slots = wanted;
    for (uint32_t i = 0; i < log->n; i++)
        *find_slot(log, log->asked[i].question, log->asked[i].args) = (uint16_t)(i + 1);
    return true;
}

static struct mp_card_reply reply(const struct mp_card_answer *answer, uint32_t number)
{
    struct mp_card_reply r = {.choice = answer->choice, .number = number};
    memcpy(r.bytes, answer->bytes, sizeof r.bytes);
    return r;
}

struct mp_card_reply mp_card_ask(struct mp_card *card, mp_card_question *question, const int64_t *args, size_t n)
{
    struct mp_card_asked asked = {.question = question};
    struct mp_card_log *const log = card->log;
    for (size_t i = 0; i < n; i++)
        asked.args[i] = args[i];
    if (log && !log->incomplete && !(log->n < MP_CARD_QUESTIONS && reserve(log)))
        log->incomplete = true;
    if (!log || log->incomplete) {
        asked.answer = question(card->gpu, asked.args);
        return reply(&asked.answer, 0);
    }
    uint16_t *const slot = find_slot(log, question, asked.args);
    if (!*slot) {
        asked.answer = question(card->gpu, asked.args);
        log->asked[log->n++] = asked;
        *slot = (uint16_t)log->n;
    }
    return reply(&log->asked[*slot - 1].answer, *slot);
}

bool mp_card_log_agrees(const struct mp_card_log *log, const struct mp_gpu *gpu, uint64_t *sizes)
{
    if (log->incomplete && gpu != log->gpu)
        return false;
    for (uint32_t i = 0; i < log->n; i++) {
        const struct mp_card_asked *const asked = &log->asked[i];
        const struct mp_card_answer answer = asked->question(gpu, asked->args);
        if (answer.choice != asked->answer.choice)
            return false;
        for (int k = 0; k < MP_CARD_SIZES; k++) {
            if ((answer.bytes[k] == 0) != (asked->answer.bytes[k] == 0) || answer.bytes[k] > UINT64_C(1) << 60)
                return false; /* a buffer more or less, or one that ends the run */
            *sizes++ = answer.bytes[k];
        }
    }
    return true;
}

bool mp_card_log_asks_alike(const struct mp_card_log *a, const struct mp_card_log *b, uint16_t tag)
{
    const struct mp_card_asked *const x = &a->asked[(tag - 1) / MP_CARD_SIZES], *const y = &b->asked[(tag - 1) / MP_CARD_SIZES];
    return x->question == y->question && memcmp(x->args, y->args, sizeof x->args) == 0;
}
