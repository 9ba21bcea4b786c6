/* SPDX-License-Identifier: MIT */
/* Grids: lists and ranges become points, conditions choose among them, mistakes are told with their place. */
#include "plan/grid.h"

#include "base/yaml.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void) { mp_arena_release(&arena); }

static struct mp_grid *read_grid(const char *text)
{
    const struct mp_value *const value = mp_yaml_parse(&arena, "g.yaml", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    return mp_grid_parse(&arena, "g.yaml", value, &err);
}

static uint64_t count(const struct mp_grid *grid)
{
    uint64_t n = 0;
    for (uint64_t p = 0; p < grid->n_points; p++)
        n += mp_grid_keeps(grid, p);
    return n;
}

static const struct {
    const char *text;
    uint64_t points, kept;
} grids[] = {
    {"{model: gpt2, gpu: T4-16G}", 1, 1},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2, 4]}", 3, 3},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 64, times: 2}}", 7, 7},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 32, step: 1}}", 32, 32},
    {"{model: gpt2, gpu: T4-16G, seq: {from: 512, to: 8192, times: 2}}", 5, 5},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 5, to: 5, step: 3}}", 1, 1},
    {"{model: gpt2, gpu: T4-16G, used: {from: 0, to: 4GiB, step: 1GiB}}", 5, 5},
    {"{model: [gpt2, bert-base], gpu: [T4-16G, L4-24G], batch: [1, 2]}", 8, 8},
    {"{model: gpt2, gpu: T4-16G, seq_lengths: [128, 256]}", 1, 1},
    {"{model: gpt2, gpu: T4-16G, seq_lengths: [[128, 256], [512]]}", 2, 2},
    {"{model: gpt2, gpu: T4-16G, checkpoint: [none, full, {layers: [0, 2]}]}", 3, 3},
    {"{model: gpt2, gpu: T4-16G, allocator_conf: [null, 'expandable_segments:True']}", 2, 2},
    {"{model: gpt2, gpu: T4-16G, attention_mask: [false, true, padded]}", 3, 3},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2, 4], seq: [256, 512], where: batch * seq <= 1024}", 6, 5},
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2], where: [batch > 1, gpu == L4-24G]}", 4, 1},
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2], where: \"batch == 1 or gpu in [L4-24G]\"}", 4, 3},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2, 3, 4], where: not (batch % 2 == 0)}", 4, 2},
    {"{model: gpt2, gpu: T4-16G, precision: [bf16, fp32], where: precision != bf16}", 2, 1},
    {"{model: gpt2, gpu: T4-16G, tf32: [false, true], where: tf32}", 2, 1},
    {"{model: gpt2, gpu: T4-16G, used: [1GiB, 2GiB], where: used < 1.5GiB}", 2, 1},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2], where: batch - 1 == 0}", 2, 1},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2, 3], where: -batch < -2}", 3, 1},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2], where: batch / 0 == 1}", 2, 0},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2], where: batch == bf16}", 2, 0},
};

START_TEST(counts_points)
{
    const struct mp_grid *const grid = read_grid(grids[_i].text);
    ck_assert_msg(grid != NULL, "%s: %s", grids[_i].text, err.text);
    ck_assert_msg(grid->n_points == grids[_i].points, "%s: %llu points", grids[_i].text, (unsigned long long)grid->n_points);
    ck_assert_msg(count(grid) == grids[_i].kept, "%s: %llu kept", grids[_i].text, (unsigned long long)count(grid));
}
END_TEST

static const struct {
    const char *text, *message;
} mistakes[] = {
    {"{model: gpt2, gpu: T4-16G, batch: []}", "g.yaml:1:35: batch: an empty list"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 8, to: 4, step: 1}}", "g.yaml:1:35: batch: an empty range: from 8 is above to 4"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 4}}", "g.yaml:1:35: batch.step: missing"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 4, step: 1, times: 2}}", "step or times, not both"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 4, times: 1}}", "g.yaml:1:59: batch.times: 1"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 4, step: 0}}", "g.yaml:1:58: batch.step: 0"},
    {"{model: gpt2, gpu: T4-16G, used: {from: 0, to: 4, times: 2}}", "never grows"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, too: 4, step: 1}}", "did you mean 'to'"},
    {"{model: gpt2, gpu: T4-16G, batch: [1, bf16]}", "g.yaml:1:39: batch: a string in a list that begins with an integer"},
    {"{model: gpt2, gpu: T4-16G, precision: [bf16, 1]}", "precision: an integer in a list that begins with a string"},
    {"{model: gpt2, gpu: T4-16G, batch: [1, 2, 1]}", "g.yaml:1:42: batch: 1 stands twice"},
    {"{model: gpt2, gpu: T4-16G, batch: [1, -2]}", "g.yaml:1:39: batch: -2"},
    {"{model: gpt2, gpu: T4-16G, batch: [[1]]}", "batch: "},
    {"{model: gpt2, gpu: T4-16G, precision: {from: 1, to: 2, step: 1}}", "precision: "},
    {"{model: gpt2, gpu: T4-16G, batchs: [1]}", "g.yaml:1:28: unknown key 'batchs', did you mean 'batch'"},
    {"{model: gpt2, gpu: T4-16G, wher: a}", "did you mean 'where'"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], limit: 0}", "limit: 0"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 10000, step: 1}, seq: {from: 1, to: 60000, step: 1}}", "more than 100000000 points"},
    {"{model: gpt2, gpu: T4-16G, batch: {from: 1, to: 9000000000, step: 1}}", "more than 65536 values"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], where: 7}", "where: 7 is not a condition"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], where: batchs > 1}", "g.yaml:1:47: where: neither a key of this grid nor one of its values at column 1"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], where: seq > 1}", "neither a key"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], where: batch >}", "missing at column 8"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], where: batch + 1}", "a comparison is missing"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], where: (batch > 1}", "')' is missing"},
    {"{model: gpt2, gpu: T4-16G, batch: [1], where: batch > 1 2}", "goes on"},
    {"[1]", "a grid is an object"},
};

START_TEST(refuses_mistakes_with_their_place)
{
    ck_assert_msg(read_grid(mistakes[_i].text) == NULL, "%s: taken", mistakes[_i].text);
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, mistakes[_i].message) != NULL, "%s: %s", mistakes[_i].text, err.text);
}
END_TEST

START_TEST(tells_all_mistakes_together)
{
    ck_assert(read_grid("{model: gpt2, gpu: T4-16G, batch: [], seq: [0], precision: [amp]}") == NULL);
    ck_assert_msg(strstr(err.text, "batch: an empty list") && strstr(err.text, "seq: 0") && strstr(err.text, "precision: "), "%s", err.text);
    ck_assert_msg(strstr(err.text + 1, "g.yaml") == NULL || strstr(strstr(err.text, "g.yaml") + 1, "g.yaml") == NULL, "%s", err.text);
}
END_TEST

/* The last list is fastest, but inner keys come after all others. */
START_TEST(numbers_points_in_order)
{
    const struct mp_value *values[MP_RUN_KEYS];
    const struct mp_grid *const grid = read_grid("{gpu: [T4-16G, L4-24G], batch: [1, 2], model: gpt2, seq: [256, 512]}");
    static const struct { int64_t batch, seq; const char *gpu; } expected[] = {
        {1, 256, "T4-16G"}, {1, 256, "L4-24G"}, {1, 512, "T4-16G"}, {1, 512, "L4-24G"},
        {2, 256, "T4-16G"}, {2, 256, "L4-24G"}, {2, 512, "T4-16G"}, {2, 512, "L4-24G"}};
    ck_assert_msg(grid != NULL, "%s", err.text);
    ck_assert_uint_eq(grid->n_inner, 2);
    ck_assert_uint_eq(grid->n_groups, 4);
    for (size_t p = 0; p < MP_ARRAY_LEN(expected); p++) {
        mp_grid_values(grid, p, values);
        ck_assert_int_eq(values[MP_KEY_BATCH]->as.integer, expected[p].batch);
        ck_assert_int_eq(values[MP_KEY_SEQ]->as.integer, expected[p].seq);
        ck_assert_str_eq(values[MP_KEY_GPU]->as.string.text, expected[p].gpu);
    }
}
END_TEST

START_TEST(points_become_runs)
{
    const struct mp_grid *const grid = read_grid("{model: gpt2, gpu: T4-16G, precision: bf16, batch: [3, 5], lora: [null, {rank: 4, targets: c_attn}]}");
    ck_assert_msg(grid != NULL, "%s", err.text);
    for (uint64_t p = 0; p < 4; p++) {
        struct mp_run_source source;
        mp_run_source_init(&source, &arena);
        mp_grid_source(grid, p, &source);
        const struct mp_run *const run = mp_run_resolve(&source, &err);
        ck_assert_msg(run != NULL, "%s", err.text);
        ck_assert_int_eq(run->precision, MP_PRECISION_BF16);
        ck_assert_int_eq(run->batch, p < 2 ? 3 : 5);
        ck_assert((run->lora != NULL) == (p % 2 == 1));
    }
}
END_TEST

/* The keys of one kind lie idle in the points of another; with one kind they are a mistake. */
START_TEST(kinds_of_data_parallelism_have_their_keys)
{
    static const struct {
        const char *kinds;
        bool resolves;
    } cases[] = {{"[ddp, fsdp2]", true}, {"[none, fsdp2]", true}, {"ddp", false}};
    for (size_t i = 0; i < MP_ARRAY_LEN(cases); i++) {
        char text[160];
        (void)snprintf(text, sizeof text, "{model: gpt2, gpu: T4-16G, world: 1, data_parallel: %s, fsdp: {offload: true}}", cases[i].kinds);
        const struct mp_grid *const grid = read_grid(text);
        ck_assert_msg(grid != NULL, "%s", err.text);
        for (uint64_t p = 0; p < grid->n_points; p++) {
            struct mp_run_source source;
            mp_run_source_init(&source, &arena);
            mp_grid_source(grid, p, &source);
            ck_assert_msg((mp_run_resolve(&source, &err) != NULL) == cases[i].resolves, "%s: %s", cases[i].kinds, err.text);
        }
    }
    ck_assert_msg(strstr(err.text, "fsdp: only with data_parallel: fsdp2") != NULL, "%s", err.text);
}
END_TEST

START_TEST(hash_follows_what_is_said)
{
    const uint64_t first = read_grid("{model: gpt2, gpu: T4-16G, batch: [1, 2]}")->hash;
    ck_assert_uint_eq(first, read_grid("model: gpt2\ngpu: T4-16G\nbatch:\n- 1\n- 2\n")->hash);
    ck_assert_uint_ne(first, read_grid("{model: gpt2, gpu: T4-16G, batch: [1, 3]}")->hash);
    ck_assert_uint_ne(first, read_grid("{model: gpt2, gpu: T4-16G, batch: [1, 2], limit: 1}")->hash);
}
END_TEST

Suite *suite_grid(void)
{
    Suite *const suite = suite_create("grid");
    TCase *const tc = tcase_create("grid");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, counts_points, 0, (int)MP_ARRAY_LEN(grids));
    tcase_add_loop_test(tc, refuses_mistakes_with_their_place, 0, (int)MP_ARRAY_LEN(mistakes));
    tcase_add_test(tc, tells_all_mistakes_together);
    tcase_add_test(tc, numbers_points_in_order);
    tcase_add_test(tc, points_become_runs);
    tcase_add_test(tc, kinds_of_data_parallelism_have_their_keys);
    tcase_add_test(tc, hash_follows_what_is_said);
    suite_add_tcase(suite, tc);
    return suite;
}
