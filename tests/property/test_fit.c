/* SPDX-License-Identifier: MIT */
/* Seeded random runs over six families: what must hold for any of them. MEMPLAN_SEED picks the seed. */
#include <stdlib.h>

#include "report/report.h"
#include "small_run.h"
#include "suites.h"

enum { RUNS = 120 };

static uint64_t seed;
static uint64_t state;
static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    const char *const text = getenv("MEMPLAN_SEED");
    seed = text != NULL ? strtoull(text, NULL, 10) : 20261129;
    state = seed * 2654435761u + 1;
    mp_arena_init(&arena);
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

/* Below n. */
static unsigned draw(unsigned n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)((state >> 33) % n);
}

static const char *pick(const char *const *texts, unsigned n)
{
    return texts[draw(n)];
}

#define PICK(...)                                                                                  \
    pick((const char *const[]){__VA_ARGS__},                                                       \
         (unsigned)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)))

/* Keys of a random run, without the ones that a property sets itself. */
struct drawn {
    size_t family;
    char keys[512];
};

static struct drawn draw_run(void)
{
    struct drawn d = {.family = draw(SMALL_FAMILIES)};
    const int n = snprintf(d.keys, sizeof d.keys,
                           "gpu: %s, batch: %u, seq: %u, precision: %s, attention: %s, optimizer: %s, clip_grad_norm: %s, "
                           "zero_grad: %s, release_outputs: %s, attention_mask: %s, init_device: %s, iterations: 3",
                           PICK("H200-141G", "A100-80G", "RTX4090-24G", "T4-16G", "V100-16G", "B200-180G"), 1 + draw(5), 1 + draw(64),
                           PICK("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"), PICK("sdpa", "eager"),
                           PICK("adamw-foreach", "adamw-fused", "adamw-forloop", "sgd", "sgd-momentum", "adafactor", "none"),
                           PICK("true", "false"), PICK("set_to_none", "keep"), PICK("true", "false"), PICK("false", "true", "padded"),
                           PICK("cuda", "cpu"));
    ck_assert_int_lt(n, (int)sizeof d.keys);
    return d;
}

/* With more keys; what went wrong names the run. */
static const struct mp_run *run_with(const struct drawn *d, const char *more)
{
    struct mp_strbuf keys = MP_STRBUF_INIT;
    mp_strbuf_addf(&keys, "%s%s%s", d->keys, more[0] != '\0' ? ", " : "", more);
    const struct mp_run *const run = small_family_run(&arena, d->family, mp_strbuf_text(&keys));
    mp_strbuf_release(&keys);
    return run;
}

#define MUST(holds, d, what)                                                                       \
    ck_assert_msg(holds, "%s; seed %llu, family %zu, %s", what, (unsigned long long)seed, (d)->family, (d)->keys)

/* ---- each number bounds the one before ---- */

START_TEST(requested_allocated_reserved_device_used)
{
    for (int i = 0; i < RUNS; i++) {
        const struct drawn d = draw_run();
        struct mp_evaluation e;
        small_evaluate(run_with(&d, PICK("", "accumulate: 2", "checkpoint: full", "checkpoint: full-reentrant",
                                         "allocator_conf: 'expandable_segments:True'", "allocator_conf: 'roundup_power2_divisions:4'",
                                         "allocator_conf: 'max_split_size_mb:20'", "used: 1GiB", "allocator_limit_bytes: 70MiB")),
                       true, &e);
        MUST(e.requested_bytes <= e.allocated_bytes, &d, "requested exceeds allocated");
        MUST(e.allocated_bytes <= e.reserved_bytes, &d, "allocated exceeds reserved");
        MUST(e.reserved_bytes <= e.device_used_bytes, &d, "reserved exceeds device used");
        MUST(e.context_low_bytes <= e.context_bytes && e.context_bytes <= e.context_high_bytes, &d, "context is outside its range");
        MUST(e.oom || e.reserved_bytes <= e.available_bytes, &d, "reserved exceeds what is there");
        MUST(e.fits == !e.oom, &d, "fits and dies");
        for (size_t k = 0; k < e.n_phases; k++) {
            const struct mp_phase_peaks *const p = &e.phases[k];
            MUST(p->requested_bytes <= p->requested_peak_bytes && p->requested_peak_bytes <= p->allocated_peak_bytes &&
                     p->allocated_peak_bytes <= p->reserved_peak_bytes,
                 &d, p->name);
        }
        MUST(mp_allocator_check(e.allocator, &err), &d, err.text);
        mp_evaluation_release(&e);
        mp_arena_release(&arena);
    }
}
END_TEST

/* ---- what is allocated is freed ---- */

START_TEST(frees_follow_their_allocations)
{
    for (int i = 0; i < RUNS / 2; i++) {
        const struct drawn d = draw_run();
        struct mp_evaluation e;
        small_evaluate(run_with(&d, PICK("", "accumulate: 3", "checkpoint: full", "checkpoint: full-reentrant", "use_cache: true")), false, &e);
        uint64_t *const bytes = mp_arena_calloc(&arena, e.program.n_allocs + 1, sizeof *bytes);
        uint32_t next = 1;
        uint64_t live = 0;
        for (uint32_t k = 0; k < e.program.n_events; k++) {
            const struct mp_event *const event = &e.program.events[k];
            if (event->kind == MP_EVENT_ALLOC) {
                MUST(event->id == next++ && event->bytes > 0, &d, "an allocation out of order");
                bytes[event->id] = event->bytes;
                live += event->bytes;
            } else if (event->kind == MP_EVENT_FREE) {
                MUST(bytes[event->id] == event->bytes && event->bytes > 0, &d, "a free of what is not alive");
                bytes[event->id] = 0;
                live -= event->bytes;
            }
        }
        MUST(live == e.program.live_bytes, &d, "live bytes are counted wrong");
        mp_evaluation_release(&e);
        mp_arena_release(&arena);
    }
}
END_TEST

/* ---- accumulation ---- */

/* A step of two micro-batches peaks where one of four does: gradients are added in place. */
START_TEST(more_accumulation_moves_no_peak)
{
    for (int i = 0; i < RUNS / 2; i++) {
        const struct drawn d = draw_run();
        struct mp_evaluation two, four;
        small_evaluate(run_with(&d, "accumulate: 2"), false, &two);
        small_evaluate(run_with(&d, "accumulate: 4"), false, &four);
        const uint64_t ids = two.run->batch > 0 ? 8 * (uint64_t)(two.run->batch * two.run->seq) : 0;
        MUST(four.requested_bytes >= two.requested_bytes, &d, "accumulation lowers the peak");
        MUST(four.requested_bytes - two.requested_bytes <= 2 * ids, &d, "accumulation costs more than its data");
        mp_evaluation_release(&two);
        mp_evaluation_release(&four);
        mp_arena_release(&arena);
    }
}
END_TEST

/* ---- checkpointing ---- */

static uint64_t activations_after_forward(const struct mp_run *run)
{
    struct mp_evaluation e;
    uint64_t bytes = 0;
    small_evaluate(run, true, &e);
    for (uint32_t i = 0; i < e.program.n_phases; i++)
        if (strcmp(e.program.phases[i].name, "it0.mb0.fwd") == 0)
            bytes = mp_ledger_at(&e.program, e.program.phases[i].event, &arena, &err)->by_category[MP_CATEGORY_ACTIVATION];
    mp_evaluation_release(&e);
    return bytes;
}

START_TEST(more_recomputation_saves_no_more_activations)
{
    for (int i = 0; i < RUNS / 2; i++) {
        const struct drawn d = draw_run();
        const uint64_t none = activations_after_forward(run_with(&d, ""));
        const uint64_t one = activations_after_forward(run_with(&d, "checkpoint: {layers: [0]}"));
        const uint64_t full = activations_after_forward(run_with(&d, "checkpoint: full"));
        const uint64_t reentrant = activations_after_forward(run_with(&d, "checkpoint: full-reentrant"));
        MUST(full <= one && one <= none, &d, "checkpointing saves more");
        MUST(reentrant <= none, &d, "reentrant checkpointing saves more");
        mp_arena_release(&arena);
    }
}
END_TEST

/* ---- the report ---- */

static void write_report(const struct mp_run *run, struct mp_strbuf *json, struct mp_strbuf *text)
{
    struct mp_evaluation e;
    struct mp_part parts[MP_MAX_PARTS];
    uint64_t sum = 0;
    small_evaluate(run, true, &e);
    const uint32_t moment = e.oom ? (e.oom_event > 0 ? e.oom_event - 1 : 0) : e.peak_event;
    const struct mp_fit_report report = {.evaluation = &e, .ledger = mp_ledger_at(&e.program, moment, &arena, &err)};
    const size_t n = mp_report_parts(&report, parts);
    for (size_t i = 0; i < n; i++)
        sum += parts[i].bytes;
    ck_assert_uint_eq(sum, e.oom ? e.stats.reserved_bytes[MP_STAT_ALL].current + e.context_bytes + run->used_bytes : e.device_used_bytes);
    mp_report_fit_json(&report, json);
    mp_report_fit_text(&report, text);
    mp_evaluation_release(&e);
}

START_TEST(parts_add_up_and_the_same_spec_gives_the_same_bytes)
{
    for (int i = 0; i < RUNS / 2; i++) {
        const struct drawn d = draw_run();
        const char *const more = PICK("", "checkpoint: full", "used: 1GiB", "allocator_limit_bytes: 70MiB", "accumulate: 2");
        struct mp_strbuf json[2] = {MP_STRBUF_INIT, MP_STRBUF_INIT}, text[2] = {MP_STRBUF_INIT, MP_STRBUF_INIT};
        for (int k = 0; k < 2; k++)
            write_report(run_with(&d, more), &json[k], &text[k]);
        MUST(json[0].len > 0 && strcmp(json[0].data, json[1].data) == 0, &d, "the JSON differs");
        MUST(text[0].len > 0 && strcmp(text[0].data, text[1].data) == 0, &d, "the text differs");
        for (int k = 0; k < 2; k++) {
            mp_strbuf_release(&json[k]);
            mp_strbuf_release(&text[k]);
        }
        mp_arena_release(&arena);
    }
}
END_TEST

/* ---- room ---- */

/* Nothing that fits under a cap needs more than the cap, and what it reserves without one is enough. */
START_TEST(a_run_fits_into_what_it_reserves)
{
    for (int i = 0; i < RUNS / 2; i++) {
        const struct drawn d = draw_run();
        struct mp_run run = *run_with(&d, "");
        struct mp_evaluation e;
        bool fits = false;
        small_evaluate(&run, false, &e);
        const uint64_t reserved = e.reserved_bytes;
        mp_evaluation_release(&e);
        run.allocator_limit_bytes = reserved;
        ck_assert_int_eq(mp_fits(&run, &fits, &err), MEMPLAN_STATUS_OK);
        MUST(fits, &d, "does not fit into what it reserves");
        mp_arena_release(&arena);
    }
}
END_TEST

Suite *suite_fit(void)
{
    Suite *const suite = suite_create("fit");
    TCase *const tc = tcase_create("random runs");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, requested_allocated_reserved_device_used);
    tcase_add_test(tc, frees_follow_their_allocations);
    tcase_add_test(tc, more_accumulation_moves_no_peak);
    tcase_add_test(tc, more_recomputation_saves_no_more_activations);
    tcase_add_test(tc, parts_add_up_and_the_same_spec_gives_the_same_bytes);
    tcase_add_test(tc, a_run_fits_into_what_it_reserves);
    suite_add_tcase(suite, tc);
    return suite;
}
