/* SPDX-License-Identifier: MIT */
/*
 * Random runs on one card, told for another: where the other answers alike, its own run asks for the same to the byte, and where it went
 * along in a replay, its own replay says the same. A failure prints the seed and the spec; SEED=n in the environment runs only that one.
 */
#include "base/yaml.h"
#include "plan/fold.h"
#include "random_spec.h"
#include "suites.h"

enum { RUNS = 250 };

struct count {
    int n, agreed, other_sizes, went_along, stayed_behind;
};

struct pair {
    struct mp_arena arena;
    const struct mp_run *run, *other;
    struct mp_fold fold, own;
    struct mp_fold_scratch scratch;
    struct mp_requests requests, others;
    struct mp_replayer replayer;
    uint64_t *sizes; /* the run's own, then the other's */
    size_t n_sizes;
    struct memplan_error err;
};

static const struct mp_run *resolve(struct pair *p, const char *spec, const char *gpu)
{
    struct mp_run_source source;
    mp_run_source_init(&source, &p->arena);
    const struct mp_value *const value = mp_yaml_parse(&p->arena, "spec", spec, strlen(spec), &p->err);
    if (!value || mp_run_source_object(&source, "spec", value, &p->err) || mp_run_source_text(&source, "gpu", "--gpu", gpu, &p->err))
        return NULL;
    return mp_run_resolve(&source, &p->err);
}

static bool record(struct pair *p, struct mp_fold *fold, const struct mp_run *run)
{
    return mp_fold_record(fold, &p->scratch, run, mp_fold_model(run->model, &p->arena), &p->err) == MEMPLAN_STATUS_OK;
}

/* The verdict on p->run's card of the fold with these sizes, with the other's sizes as companion or without. */
static bool replay(struct pair *p, const uint64_t *sizes, struct mp_companion *companion, struct mp_verdict *v)
{
    mp_fold_resize(&p->fold, sizes);
    return mp_fold_expand(&p->fold, &p->requests, &p->err) == MEMPLAN_STATUS_OK &&
           mp_requests_replay(&p->requests, p->run, &p->replayer, companion, companion != NULL, v, &p->err) == MEMPLAN_STATUS_OK;
}

static bool same_verdict(const struct mp_verdict *a, const struct mp_verdict *b)
{
    return a->fits == b->fits && a->refused == b->refused && a->requested_bytes == b->requested_bytes &&
           a->allocated_bytes == b->allocated_bytes && a->reserved_bytes == b->reserved_bytes &&
           a->device_used_bytes == b->device_used_bytes && a->device_peak_bytes == b->device_peak_bytes;
}

static const char *compare_replays(struct pair *p, struct count *count)
{
    struct mp_companion companion = {.sizes = p->sizes + p->n_sizes};
    struct mp_verdict with, without, own;
    if (!replay(p, p->sizes, NULL, &without) || !replay(p, p->sizes, &companion, &with) || !replay(p, companion.sizes, NULL, &own))
        return p->err.text;
    if (!same_verdict(&with, &without))
        return "a companion changes the verdict";
    *(companion.went_along ? &count->went_along : &count->stayed_behind) += 1;
    if (companion.went_along &&
        (!own.fits || own.refused || own.requested_bytes != companion.peaks.requested_bytes ||
         own.allocated_bytes != companion.peaks.allocated_bytes || own.reserved_bytes != with.reserved_bytes ||
         own.device_peak_bytes != with.device_peak_bytes))
        return "the companion's own replay says something else";
    return NULL;
}

/* NULL: all is well. */
static const char *check(struct pair *p, const char *spec, const char *gpu, const char *other, struct count *count)
{
    p->run = resolve(p, spec, gpu);
    p->other = resolve(p, spec, other);
    if (!p->run || !p->other || !record(p, &p->fold, p->run) || !record(p, &p->own, p->other))
        return p->err.text;
    const struct mp_card_log *const card = &p->fold.recorded.card;
    p->n_sizes = mp_card_log_sizes(card);
    p->sizes = mp_malloc((2 * p->n_sizes + 1) * sizeof *p->sizes);
    count->n++;
    if (!p->sizes || !mp_card_log_agrees(card, p->run->gpu, p->sizes))
        return "the card does not agree with itself";
    if (!mp_card_log_agrees(card, p->other->gpu, p->sizes + p->n_sizes))
        return NULL;
    count->agreed++;
    if (!mp_fold_equal(&p->fold, &p->own))
        return "the cards agree and their folds differ";
    mp_fold_resize(&p->fold, p->sizes + p->n_sizes);
    if (mp_fold_expand(&p->fold, &p->requests, &p->err) || mp_fold_expand(&p->own, &p->others, &p->err))
        return p->err.text;
    if (p->fold.peak_bytes != p->own.peak_bytes || !mp_requests_equal(&p->requests, &p->others))
        return "the other card asks for something else";
    if (memcmp(p->sizes, p->sizes + p->n_sizes, p->n_sizes * sizeof *p->sizes) == 0)
        return NULL;
    count->other_sizes++;
    return compare_replays(p, count);
}

static void release(struct pair *p)
{
    mp_fold_release(&p->fold);
    mp_fold_release(&p->own);
    mp_fold_scratch_release(&p->scratch);
    mp_requests_release(&p->requests);
    mp_requests_release(&p->others);
    mp_replayer_release(&p->replayer);
    free(p->sizes);
    mp_arena_release(&p->arena);
}

START_TEST(cards_that_answer_alike_ask_for_the_same)
{
    const char *const only = getenv("SEED");
    struct count count = {0};
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        struct mp_strbuf spec = MP_STRBUF_INIT;
        struct pair p = {.n_sizes = 0};
        uint64_t state = seed * 104729;
        if (only && strtoull(only, NULL, 10) != seed)
            continue;
        mp_arena_init(&p.arena);
        const char *const gpu = random_card(&state), *const other = random_card(&state);
        random_spec(&state, gpu, &spec);
        const char *const wrong = check(&p, mp_strbuf_text(&spec), gpu, other, &count);
        ck_assert_msg(!wrong, "seed %llu, other card %s: %s\n%s", (unsigned long long)seed, other, wrong, mp_strbuf_text(&spec));
        release(&p);
        mp_strbuf_release(&spec);
    }
    /* every way was gone, and often */
    ck_assert_msg(only || (count.agreed < count.n && count.other_sizes > 20 && count.went_along > 10 && count.stayed_behind > 5),
                  "%d runs, %d agreed, %d with other sizes, %d went along, %d stayed behind", count.n, count.agreed, count.other_sizes,
                  count.went_along, count.stayed_behind);
}
END_TEST

Suite *suite_cards_random(void)
{
    Suite *const suite = suite_create("cards_random");
    TCase *const tc = tcase_create("cards_random");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, cards_that_answer_alike_ask_for_the_same);
    suite_add_tcase(suite, tc);
    return suite;
}
