/* SPDX-License-Identifier: MIT */
/* What live bytes are made of: parts that add up at every moment, tags that move bytes between them. */
#include "memory/ledger.h"

#include "small_run.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

/* ---- a program by hand ---- */

static struct mp_event events[] = {
    {.kind = MP_EVENT_ALLOC, .id = 1, .bytes = 100, .category = MP_CATEGORY_PARAMETER, .layer = 0, .op = "w"},
    {.kind = MP_EVENT_ALLOC, .id = 2, .bytes = 50, .category = MP_CATEGORY_PARAMETER, .layer = 1, .op = "w"},
    {.kind = MP_EVENT_MARK, .id = 0},
    {.kind = MP_EVENT_ALLOC, .id = 3, .bytes = 30, .category = MP_CATEGORY_TEMPORARY, .layer = 1, .op = "gelu"},
    {.kind = MP_EVENT_ALLOC, .id = 4, .bytes = 30, .category = MP_CATEGORY_TEMPORARY, .layer = 1, .op = "gelu"},
    {.kind = MP_EVENT_TAG, .id = 3, .category = MP_CATEGORY_ACTIVATION},
    {.kind = MP_EVENT_FREE, .id = 4, .bytes = 30},
    {.kind = MP_EVENT_ALLOC, .id = 5, .bytes = 7, .category = MP_CATEGORY_LOGITS, .layer = -1, .op = "mm"},
    {.kind = MP_EVENT_MARK, .id = 1},
};
static struct mp_phase phases[] = {{.name = "model", .event = 2}, {.name = "it0.mb0.fwd", .event = 8}};
static const struct mp_program program = {
    .events = events, .n_events = MP_ARRAY_LEN(events), .phases = phases, .n_phases = 2, .n_allocs = 5,
};

static const struct {
    uint32_t event;
    uint64_t total, parameters, activations, temporaries, logits;
    const char *phase;
} moments[] = {
    {0, 100, 100, 0, 0, 0, "model"},
    {2, 150, 150, 0, 0, 0, "model"},
    {4, 210, 150, 0, 60, 0, "it0.mb0.fwd"},
    {5, 210, 150, 30, 30, 0, "it0.mb0.fwd"},
    {6, 180, 150, 30, 0, 0, "it0.mb0.fwd"},
    {8, 187, 150, 30, 0, 7, "it0.mb0.fwd"},
};

START_TEST(a_moment_has_its_parts)
{
    const struct mp_ledger *const l = mp_ledger_at(&program, moments[_i].event, &arena, &err);
    ck_assert_ptr_nonnull(l);
    ck_assert_uint_eq(l->total_bytes, moments[_i].total);
    ck_assert_uint_eq(l->by_category[MP_CATEGORY_PARAMETER], moments[_i].parameters);
    ck_assert_uint_eq(l->by_category[MP_CATEGORY_ACTIVATION], moments[_i].activations);
    ck_assert_uint_eq(l->by_category[MP_CATEGORY_TEMPORARY], moments[_i].temporaries);
    ck_assert_uint_eq(l->by_category[MP_CATEGORY_LOGITS], moments[_i].logits);
    ck_assert_str_eq(l->phase, moments[_i].phase);
    ck_assert_ptr_eq(l->event, &events[moments[_i].event]);
}
END_TEST

START_TEST(rows_are_kinds_largest_first)
{
    const struct mp_ledger *const l = mp_ledger_at(&program, 4, &arena, &err);
    ck_assert_uint_eq(l->n_rows, 3);
    ck_assert_uint_eq(l->rows[0].bytes, 100);
    ck_assert_int_eq(l->rows[0].layer, 0);
    ck_assert_uint_eq(l->rows[1].bytes, 60); /* two of the same kind */
    ck_assert_uint_eq(l->rows[1].n, 2);
    ck_assert_str_eq(l->rows[1].op, "gelu");
    ck_assert_uint_eq(l->rows[2].bytes, 50);
    ck_assert_int_eq(mp_ledger_last_layer(l), 1);
}
END_TEST

START_TEST(rows_fold_over_layers_and_operations)
{
    struct mp_ledger_row rows[4];
    uint64_t layers[3] = {9, 9, 9};
    const struct mp_ledger *const l = mp_ledger_at(&program, 8, &arena, &err);
    ck_assert_uint_eq(mp_ledger_by_op(l, MP_CATEGORY_PARAMETER, rows, 4), 1);
    ck_assert_uint_eq(rows[0].bytes, 150);
    ck_assert_uint_eq(rows[0].n, 2);
    ck_assert_uint_eq(mp_ledger_by_op(l, MP_CATEGORY_GRADIENT, rows, 4), 0);
    mp_ledger_by_layer(l, MP_CATEGORY_PARAMETER, layers, 3);
    ck_assert_uint_eq(layers[0], 0);
    ck_assert_uint_eq(layers[1], 100);
    ck_assert_uint_eq(layers[2], 50);
    mp_ledger_by_layer(l, MP_CATEGORY_LOGITS, layers, 3);
    ck_assert_uint_eq(layers[0], 7);
}
END_TEST

START_TEST(an_empty_program_has_nothing)
{
    const struct mp_program empty = {.n_events = 0};
    const struct mp_ledger *const l = mp_ledger_at(&empty, 0, &arena, &err);
    ck_assert_uint_eq(l->total_bytes, 0);
    ck_assert_uint_eq(l->n_rows, 0);
    ck_assert_ptr_null(l->event);
    ck_assert_int_eq(mp_ledger_last_layer(l), -1);
}
END_TEST

START_TEST(a_ledger_without_memory_is_an_error)
{
    for (uint64_t n = 1; n <= 2; n++) {
        struct memplan_error why = {MEMPLAN_STATUS_OK, ""};
        mp_alloc_fail_after(n);
        const struct mp_ledger *const l = mp_ledger_at(&program, 8, &arena, &why);
        mp_alloc_fail_after(0);
        ck_assert(l != NULL || why.status == MEMPLAN_STATUS_NOMEM);
    }
}
END_TEST

/* ---- whole runs ---- */

static const char *const runs[] = {
    "seq: 32, iterations: 2",
    "seq: 32, iterations: 2, checkpoint: full, precision: amp-fp16",
    "seq: 32, iterations: 2, checkpoint: full-reentrant, precision: bf16, optimizer: adafactor",
    "seq: 32, iterations: 2, attention: eager, accumulate: 2, clip_grad_norm: true, zero_grad: keep",
};

/* Sums by category, by row and by operation are the live bytes, at every 50th event. */
static void check_moment(const struct mp_program *p, uint32_t event, uint64_t live)
{
    const struct mp_arena_mark mark = mp_arena_mark(&arena);
    const struct mp_ledger *const l = mp_ledger_at(p, event, &arena, &err);
    uint64_t by_category = 0, by_row = 0;
    ck_assert_uint_eq(l->total_bytes, live);
    for (int c = 0; c < MP_CATEGORY_COUNT; c++) {
        struct mp_ledger_row rows[256];
        uint64_t layers[16], by_op = 0, by_layer = 0;
        const size_t n = mp_ledger_by_op(l, (enum mp_category)c, rows, MP_ARRAY_LEN(rows));
        for (size_t i = 0; i < n; i++)
            by_op += rows[i].bytes;
        mp_ledger_by_layer(l, (enum mp_category)c, layers, MP_ARRAY_LEN(layers));
        for (size_t i = 0; i < MP_ARRAY_LEN(layers); i++)
            by_layer += layers[i];
        ck_assert_uint_eq(by_op, l->by_category[c]);
        ck_assert_uint_eq(by_layer, l->by_category[c]);
        by_category += l->by_category[c];
    }
    for (size_t i = 0; i < l->n_rows; i++) {
        by_row += l->rows[i].bytes;
        ck_assert_uint_gt(l->rows[i].n, 0);
        ck_assert(i == 0 || l->rows[i - 1].bytes >= l->rows[i].bytes);
    }
    ck_assert_uint_eq(by_category, live);
    ck_assert_uint_eq(by_row, live);
    mp_arena_rewind(&arena, mark);
}

START_TEST(parts_add_up_at_every_moment)
{
    for (size_t family = 0; family < SMALL_FAMILIES; family++) {
        struct mp_evaluation e;
        uint64_t live = 0;
        small_evaluate(small_family_run(&arena, family, runs[_i]), true, &e);
        for (uint32_t i = 0; i < e.program.n_events; i++) {
            const struct mp_event *const event = &e.program.events[i];
            if (event->kind == MP_EVENT_ALLOC)
                live += event->bytes;
            else if (event->kind == MP_EVENT_FREE)
                live -= event->bytes;
            if (i % 50 == 0)
                check_moment(&e.program, i, live);
        }
        mp_evaluation_release(&e);
    }
}
END_TEST

/* Nothing that backward needs is called a temporary when a forward has ended. */
START_TEST(at_the_end_of_forward_what_lives_is_named)
{
    for (size_t family = 0; family < SMALL_FAMILIES; family++) {
        struct mp_evaluation e;
        small_evaluate(small_family_run(&arena, family, "seq: 32, iterations: 1, precision: fp32"), true, &e);
        const struct mp_ledger *const l = mp_ledger_at(&e.program, e.program.phases[2].event, &arena, &err);
        ck_assert_str_eq(e.program.phases[2].name, "it0.mb0.fwd");
        ck_assert_uint_gt(l->by_category[MP_CATEGORY_ACTIVATION], 0);
        ck_assert_uint_gt(l->by_category[MP_CATEGORY_PARAMETER], 0);
        ck_assert_uint_eq(l->by_category[MP_CATEGORY_GRADIENT], 0);
        ck_assert_uint_lt(l->by_category[MP_CATEGORY_TEMPORARY], l->by_category[MP_CATEGORY_ACTIVATION] / 10);
        mp_evaluation_release(&e);
    }
}
END_TEST

Suite *suite_ledger(void)
{
    Suite *const suite = suite_create("ledger");
    TCase *const tc = tcase_create("ledger");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, a_moment_has_its_parts, 0, (int)MP_ARRAY_LEN(moments));
    tcase_add_test(tc, rows_are_kinds_largest_first);
    tcase_add_test(tc, rows_fold_over_layers_and_operations);
    tcase_add_test(tc, an_empty_program_has_nothing);
    tcase_add_test(tc, a_ledger_without_memory_is_an_error);
    tcase_add_loop_test(tc, parts_add_up_at_every_moment, 0, (int)MP_ARRAY_LEN(runs));
    tcase_add_test(tc, at_the_end_of_forward_what_lives_is_named);
    suite_add_tcase(suite, tc);
    return suite;
}
