/* SPDX-License-Identifier: MIT */
/*
 * What a run asks of its card.
 *
 * A run sees its card through questions alone: pure functions of the card and of a few numbers (a kernel chosen by head size, a scratch
 * buffer by the blocks that keep the multiprocessors busy). An answer has two parts: what the run goes on to do depends on the
 * choice; the sizes are those of scratch buffers and workspaces, and nothing else depends on them. Hence, given the questions of a run:
 *
 *     other card, same choices, same sizes     asks for the same, event by event
 *     other card, same choices, other sizes    likewise, but for the sizes of those buffers
 *     other choices                            nothing is known: run it
 *
 * The proof rests on nobody reading the card in another way: outside this file and the functions handed to mp_ask(), code of shadow/,
 * arch/ and train/ does not (tests/cases/card-questions).
 */
#ifndef MP_CARD_H
#define MP_CARD_H

#include <stdbool.h>

#include "spec/gpu.h"

enum { MP_CARD_ARGS = 6, MP_CARD_SIZES = 2, MP_CARD_QUESTIONS = 16384 };

struct mp_card_answer {
    int64_t choice;
    uint64_t bytes[MP_CARD_SIZES]; /* 0: no such buffer */
};

/** A question. It may read gpu and args[MP_CARD_ARGS], and nothing else. */
typedef struct mp_card_answer mp_card_question(const struct mp_gpu *gpu, const int64_t *args);

struct mp_card_asked {
    mp_card_question *question;
    int64_t args[MP_CARD_ARGS];
    struct mp_card_answer answer;
};

/* Every question of a run, once. Memory is kept from run to run; all zero is empty. */
struct mp_card_log {
    const struct mp_gpu *gpu; /* who answered */
    struct mp_card_asked *asked;
    uint32_t n, cap;
    uint16_t *slots; /* by hash: place in asked, plus one; 0: free */
    uint32_t n_slots;
    bool incomplete; /* more than MP_CARD_QUESTIONS, or no memory: nothing can be told */
};
void mp_card_log_release(struct mp_card_log *log);
/** Ready for the questions of a run on gpu. */
void mp_card_log_clear(struct mp_card_log *log, const struct mp_gpu *gpu);

/* The card of a run. */
struct mp_card {
    const struct mp_gpu *gpu;
    struct mp_card_log *log; /* NULL: nobody wants to know */
};

/* An answer and where it stands in the log. */
struct mp_card_reply {
    int64_t choice;
    uint64_t bytes[MP_CARD_SIZES];
    uint32_t number; /* of the question, from 1; 0: not logged */
};

/** args: up to MP_CARD_ARGS numbers, the rest are 0. */
struct mp_card_reply mp_card_ask(struct mp_card *card, mp_card_question *question, const int64_t *args, size_t n);

/* The name that a request bears whose size is a question's; 0: of a size that the card has no say in. */
static inline uint16_t mp_card_tag(uint32_t number, int size)
{
    return (uint16_t)(number ? (number - 1) * MP_CARD_SIZES + (uint32_t)size + 1 : 0);
}

/** Sizes of all questions: sizes[tag - 1]. */
static inline size_t mp_card_log_sizes(const struct mp_card_log *log) { return (size_t)log->n * MP_CARD_SIZES; }

/** Would gpu have made the same choices? sizes[mp_card_log_sizes()] get what it answers. */
bool mp_card_log_agrees(const struct mp_card_log *log, const struct mp_gpu *gpu, uint64_t *sizes);
/** Does the tag stand for the same question in both? */
bool mp_card_log_asks_alike(const struct mp_card_log *a, const struct mp_card_log *b, uint16_t tag);

#endif
