/* SPDX-License-Identifier: MIT */
/* Sweeps: every point has the verdict of fit, whoever decided it, in whatever order and however many threads. */
#include "plan/sweep.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/yaml.h"
#include "plan/evaluate.h"
#include "report/sweep.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;
static char folder[64], path[128];

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
    (void)snprintf(folder, sizeof folder, "/tmp/memplan-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
}

static void teardown(void)
{
    static const char *const names[] = {"a.csv", "b.csv", "all.csv", "a.jsonl", "b.jsonl", "all.jsonl", "a.json", "b.json", "all.json", "a.svg", "a.html"};
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
    mp_arena_release(&arena);
}

static const struct mp_grid *read_grid(const char *text)
{
    const struct mp_value *const value = mp_yaml_parse(&arena, "g.yaml", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    const struct mp_grid *const grid = mp_grid_parse(&arena, "g.yaml", value, &err);
    ck_assert_msg(grid != NULL, "%s", err.text);
    return grid;
}

static void open_shard(struct mp_sweep *sweep, const char *text, int64_t shard, int64_t n)
{
    ck_assert_msg(mp_sweep_open(sweep, read_grid(text), shard, n, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
}

static void run(struct mp_sweep *sweep, int jobs)
{
    bool finished = false;
    ck_assert_msg(mp_sweep_run(sweep, &(struct mp_sweep_options){.jobs = jobs}, &finished, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert(finished);
}

#define SMALL "{model_type: gpt2, n_layer: 6, n_embd: 512, n_head: 8, n_positions: 1024, vocab_size: 8192}"

static const char *const grids[] = {
    "{model: gpt2-large, gpu: [T4-16G, RTX3090-24G, A10G-24G, V100-32G, A100-40G, A100-80G, H100-80G], batch: [1, 5, 9], seq: [512, 1024], "
    "precision: [bf16, amp-bf16, fp32]}",
    "{model: gpt2, gpu: [T4-16G, L4-24G, H200-141G], batch: [8, 24], checkpoint: [none, full, {layers: [0, 1]}], attention: [sdpa, eager], "
    "optimizer: [adamw-foreach, sgd, none]}",
    "{model: " SMALL ", gpu: T4-16G, allocator_limit_bytes: {from: 200MiB, to: 1400MiB, step: 100MiB}, batch: [1, 4], seq: 512}",
    "{model: " SMALL ", gpu: T4-16G, used: {from: 0, to: 14GiB, step: 1GiB}, batch: [4, 32], iterations: [0, 1, 3]}",
    "{model: " SMALL ", gpu: [T4-16G, L4-24G], allocator_conf: [null, 'expandable_segments:True', 'max_split_size_mb:64', "
    "'garbage_collection_threshold:0.6'], allocator_limit_bytes: [null, 1GiB], batch: [2, 16]}",
    "{model: " SMALL ", gpu: [L4-24G, A100-40G], retain_losses: [false, true], seq_lengths: [[128, 256], [512]], clip_grad_norm: [false, true]}",
    "{model: " SMALL ", gpu: [A100-40G, A100-80G], data_parallel: [none, ddp, fsdp2], world: [1, 2], seq: 128}",
};

/* The point as fit sees it. */
static void check_point(const struct mp_sweep *sweep, uint64_t point, const struct mp_sweep_row *row)
{
    struct mp_run_source source;
    struct mp_evaluation e;
    struct memplan_error why = {0};
    struct mp_arena own;
    mp_arena_init(&own);
    mp_run_source_init(&source, &own);
    mp_grid_source(sweep->grid, point, &source);
    const struct mp_run *const r = mp_run_resolve(&source, &why);
    if (!r || mp_evaluate(r, NULL, &e, &why)) {
        ck_assert_msg(row->decided == MP_DECIDED_ERROR, "point %" PRIu64, point);
        ck_assert_str_eq(sweep->errors[row->error], why.text);
        mp_arena_release(&own);
        return;
    }
    ck_assert_msg(row->fits == e.fits, "point %" PRIu64 ", %s", point, mp_decided_text((enum mp_decided)row->decided));
    if (row->decided == MP_DECIDED_FOLDED) {
        ck_assert(!e.fits);
        ck_assert_msg(row->requested_bytes > e.available_bytes, "point %" PRIu64, point);
    } else {
        ck_assert_msg(row->requested_bytes == e.requested_bytes && row->allocated_bytes == e.allocated_bytes &&
                          row->reserved_bytes == e.reserved_bytes && row->device_used_bytes == e.device_used_bytes,
                      "point %" PRIu64 ", %s: reserved %" PRIu64 ", fit says %" PRIu64, point, mp_decided_text((enum mp_decided)row->decided),
                      row->reserved_bytes, e.reserved_bytes);
    }
    mp_evaluation_release(&e);
    mp_arena_release(&own);
}

struct sample {
    const struct mp_sweep *sweep;
    uint64_t every, n, decided[MP_DECIDED_COUNT];
};

static bool check_some(void *context, uint64_t point, const struct mp_sweep_row *row)
{
    struct sample *const s = context;
    ck_assert_int_ne(row->decided, MP_DECIDED_NOT);
    s->decided[row->decided]++;
    if (s->n++ % s->every == 0)
        check_point(s->sweep, point, row);
    return true;
}

START_TEST(every_point_has_the_verdict_of_fit)
{
    struct mp_sweep sweep;
    open_shard(&sweep, grids[_i], 1, 1);
    run(&sweep, 1);
    struct sample s = {&sweep, 1, 0, {0}};
    mp_sweep_each(&sweep, check_some, &s);
    ck_assert_uint_eq(s.n, sweep.n_rows);
    if (_i == 0)
        ck_assert_msg(s.decided[MP_DECIDED_FOLDED] && s.decided[MP_DECIDED_REPLAY] && s.decided[MP_DECIDED_SAME_STREAM],
                      "a reason that nothing was decided by");
    mp_sweep_release(&sweep);
}
END_TEST

/* Seeded points of the shipped grid of a million. */
START_TEST(points_of_the_million_have_the_verdict_of_fit)
{
    struct mp_sweep sweep;
    const struct mp_grid *const grid = mp_grid_read(&arena, "configs/grids/million.yaml", &err);
    uint64_t state = 20261129;
    enum { GROUPS = 3, PER_GROUP = 8 };
    ck_assert_msg(grid != NULL, "%s", err.text);
    for (int i = 0; i < GROUPS; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const int64_t group = (int64_t)((state >> 33) % (grid->n_groups - grid->n_groups / 8));
        ck_assert_int_eq(mp_sweep_open(&sweep, grid, group + 1, (int64_t)grid->n_groups, &err), MEMPLAN_STATUS_OK);
        ck_assert_uint_eq(sweep.n_kept, 1000000);
        run(&sweep, 1);
        struct sample s = {&sweep, sweep.n_rows / PER_GROUP + 1, 0, {0}};
        mp_sweep_each(&sweep, check_some, &s);
        ck_assert_uint_eq(s.n, grid->n_inner);
        mp_sweep_release(&sweep);
    }
}
END_TEST

/* ---- files ---- */

static const char *file(const char *name)
{
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void save(const struct mp_sweep *sweep, const char *name)
{
    enum mp_sweep_format format;
    ck_assert_int_eq(mp_sweep_format_of(file(name), &format, &err), MEMPLAN_STATUS_OK);
    struct mp_sink *const sink = mp_sink_open(file(name), &err);
    ck_assert_ptr_nonnull(sink);
    ck_assert_int_eq(mp_sink_close(sink, mp_sweep_write_rows(sweep, format, sink, &err), &err), MEMPLAN_STATUS_OK);
}

static char *read_text(const char *name)
{
    static char text[1 << 20];
    FILE *const f = fopen(file(name), "rb");
    ck_assert_msg(f != NULL, "%s", path);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    (void)fclose(f);
    char *const copy = mp_arena_strdup(&arena, text);
    ck_assert_ptr_nonnull(copy);
    return copy;
}

#define WRITTEN "{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 8, 64], seq: [256, 2000], lora: [null, {rank: 4, targets: [c_attn, c_proj]}]}"
static const char *const ends[] = {"csv", "jsonl", "json"};

/* seq 2000 is beyond gpt2's positions: rows with errors are part of it. */
START_TEST(same_bytes_for_any_number_of_threads)
{
    struct mp_sweep one, four;
    open_shard(&one, WRITTEN, 1, 1);
    open_shard(&four, WRITTEN, 1, 1);
    run(&one, 1);
    run(&four, 4);
    const char *const name = mp_arena_printf(&arena, "a.%s", ends[_i]);
    save(&one, name);
    const char *const first = read_text(name);
    ck_assert(strstr(first, "2000 is above the 1024 positions") != NULL);
    save(&four, name);
    ck_assert_str_eq(first, read_text(name));
    mp_sweep_release(&one);
    mp_sweep_release(&four);
}
END_TEST

START_TEST(parts_merge_into_the_whole)
{
    struct mp_sweep sweep;
    enum mp_sweep_format format = MP_SWEEP_CSV;
    uint64_t missing = 7;
    const char *const whole = mp_arena_printf(&arena, "all.%s", ends[_i]);
    const char *parts[2];
    open_shard(&sweep, WRITTEN, 1, 1);
    run(&sweep, 1);
    save(&sweep, whole);
    const char *const expected = read_text(whole);
    mp_sweep_release(&sweep);
    for (int i = 0; i < 2; i++) {
        const char *const name = mp_arena_printf(&arena, "%c.%s", 'a' + i, ends[_i]);
        open_shard(&sweep, WRITTEN, i + 1, 2);
        run(&sweep, 1);
        save(&sweep, name);
        parts[1 - i] = mp_arena_strdup(&arena, file(name)); /* in any order */
        mp_sweep_release(&sweep);
    }
    ck_assert_int_eq(mp_sweep_format_of(parts[0], &format, &err), MEMPLAN_STATUS_OK);
    struct mp_sink *sink = mp_sink_open(file(whole), &err);
    ck_assert_int_eq(mp_sink_close(sink, mp_sweep_merge(parts, 2, format, sink, &missing, &err), &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(missing, 0);
    ck_assert_str_eq(expected, read_text(whole));

    sink = mp_sink_open(file(whole), &err);
    ck_assert_int_eq(mp_sink_close(sink, mp_sweep_merge(parts, 1, format, sink, &missing, &err), &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(missing, 12);
}
END_TEST

START_TEST(parts_of_another_grid_are_refused)
{
    struct mp_sweep sweep;
    const char *parts[2];
    uint64_t missing;
    for (int i = 0; i < 2; i++) {
        const char *const name = i ? "b.csv" : "a.csv";
        open_shard(&sweep, i ? "{model: gpt2, gpu: T4-16G, batch: [1, 3]}" : "{model: gpt2, gpu: T4-16G, batch: [1, 2]}", i + 1, 2);
        run(&sweep, 1);
        save(&sweep, name);
        parts[i] = mp_arena_strdup(&arena, file(name));
        mp_sweep_release(&sweep);
    }
    struct mp_sink *const sink = mp_sink_open(file("all.csv"), &err);
    ck_assert_int_eq(mp_sink_close(sink, mp_sweep_merge(parts, 2, MP_SWEEP_CSV, sink, &missing, &err), &err), MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, "merge parts of one grid only") != NULL, "%s", err.text);
    ck_assert_int_ne(access(file("all.csv"), F_OK), 0); /* nothing half-done is left */
}
END_TEST

/* Stop after the first group, read what was written, go on: the same file as without a stop. */
struct stopper {
    volatile sig_atomic_t stop;
};

static void stop_now(void *context, uint64_t n_done)
{
    (void)n_done;
    ((struct stopper *)context)->stop = 1;
}

static enum memplan_status keep(void *context, const struct mp_sweep_record *record, struct memplan_error *e)
{
    struct mp_sweep *const sweep = context;
    struct mp_sweep_row *const row = mp_sweep_row(sweep, record->point);
    (void)e;
    ck_assert_str_eq(record->tag, sweep->tag);
    ck_assert_ptr_nonnull(row);
    *row = record->row;
    if (record->row.decided == MP_DECIDED_ERROR)
        ck_assert(mp_sweep_set_error(sweep, row, record->error));
    return MEMPLAN_STATUS_OK;
}

START_TEST(a_stopped_sweep_goes_on)
{
    struct mp_sweep sweep;
    struct stopper stopper = {0};
    enum mp_sweep_format format;
    bool finished = true;
    const char *const name = mp_arena_printf(&arena, "a.%s", ends[_i]);
    open_shard(&sweep, WRITTEN, 1, 1);
    run(&sweep, 1);
    save(&sweep, name);
    const char *const expected = read_text(name);
    mp_sweep_release(&sweep);

    open_shard(&sweep, WRITTEN, 1, 1);
    const struct mp_sweep_options options = {.jobs = 1, .stop = &stopper.stop, .progress = stop_now, .context = &stopper};
    ck_assert_int_eq(mp_sweep_run(&sweep, &options, &finished, &err), MEMPLAN_STATUS_OK);
    ck_assert(!finished);
    save(&sweep, name);
    ck_assert_uint_lt(strlen(read_text(name)), strlen(expected));
    mp_sweep_release(&sweep);

    open_shard(&sweep, WRITTEN, 1, 1);
    ck_assert_int_eq(mp_sweep_format_of(name, &format, &err), MEMPLAN_STATUS_OK);
    ck_assert_msg(mp_sweep_read_rows(file(name), format, NULL, keep, &sweep, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_int_ne(sweep.rows[0].decided, MP_DECIDED_NOT);
    ck_assert_int_eq(sweep.rows[sweep.n_rows - 1].decided, MP_DECIDED_NOT);
    run(&sweep, 2);
    save(&sweep, name);
    ck_assert_str_eq(expected, read_text(name));
    mp_sweep_release(&sweep);
}
END_TEST

static const struct {
    const char *name, *text;
} damaged[] = {
    {"a.csv", "a,b\n1,2\n"},
    {"a.csv", "grid,point,fits,decided_by,requested_bytes,allocated_bytes,reserved_bytes,device_used_bytes,error\nx,y,true,replay,1,1,1,1,\n"},
    {"a.csv", "grid,point,fits,decided_by,requested_bytes,allocated_bytes,reserved_bytes,device_used_bytes,error\nx,1,true,luck,1,1,1,1,\n"},
    {"a.csv", "grid,point,fits,decided_by,requested_bytes,allocated_bytes,reserved_bytes,device_used_bytes,error\nx,1,true\n"},
    {"a.csv", "grid,point,fits,decided_by,requested_bytes,allocated_bytes,reserved_bytes,device_used_bytes,error\n\"x,1\n"},
    {"a.jsonl", "{\"grid\":\"x\"}\n"},
    {"a.jsonl", "{\n"},
    {"a.json", "{\"schema_version\":1,\"grid\":\"x\",\"points\":[\n{\"point\":1}\n]}\n"},
};

START_TEST(damaged_files_are_refused)
{
    enum mp_sweep_format format;
    struct mp_sweep sweep = {0};
    FILE *const f = fopen(file(damaged[_i].name), "wb");
    (void)fputs(damaged[_i].text, f);
    (void)fclose(f);
    ck_assert_int_eq(mp_sweep_format_of(path, &format, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_sweep_read_rows(path, format, NULL, keep, &sweep, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, "of a sweep") != NULL, "%s", err.text);
}
END_TEST

/* ---- which points ---- */

static const struct {
    const char *text;
    uint64_t kept;
} kept[] = {
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2, 3]}", 6},
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2, 3], limit: 3}", 3},
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2, 3], limit: 6}", 6},
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2, 3], limit: 100}", 6},
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2, 3], where: gpu == L4-24G or batch == 2, limit: 3}", 3},
    {"{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 2, 3], where: batch > 5}", 0},
};

struct listing {
    uint64_t points[64], n;
};

static bool list_point(void *context, uint64_t point, const struct mp_sweep_row *row)
{
    struct listing *const l = context;
    (void)row;
    l->points[l->n++] = point;
    return true;
}

/* Shards have every point once, and every row is found by its point. */
START_TEST(shards_share_the_points)
{
    struct mp_sweep sweep;
    struct listing whole = {{0}, 0};
    open_shard(&sweep, kept[_i].text, 1, 1);
    mp_sweep_each(&sweep, list_point, &whole);
    ck_assert_uint_eq(sweep.n_rows, kept[_i].kept);
    ck_assert_uint_eq(whole.n, kept[_i].kept);
    for (uint64_t i = 0; i < whole.n; i++)
        ck_assert_ptr_eq(mp_sweep_row(&sweep, whole.points[i]), &sweep.rows[i]);
    mp_sweep_release(&sweep);
    for (int64_t n = 1; n <= 5; n++) {
        struct listing parts = {{0}, 0};
        for (int64_t i = 1; i <= n; i++) {
            open_shard(&sweep, kept[_i].text, i, n);
            ck_assert_uint_eq(sweep.n_kept, kept[_i].kept);
            mp_sweep_each(&sweep, list_point, &parts);
            mp_sweep_release(&sweep);
        }
        ck_assert_uint_eq(parts.n, whole.n);
        ck_assert_mem_eq(parts.points, whole.points, whole.n * sizeof(uint64_t));
    }
}
END_TEST

START_TEST(missing_files_are_told)
{
    struct mp_sweep sweep;
    ck_assert_int_ne(mp_sweep_open(&sweep, read_grid("{model: gpt2, gpu: [T4-16G, T5-16G]}"), 1, 1, &err), MEMPLAN_STATUS_OK);
    ck_assert_msg(strstr(err.text, "T5-16G") != NULL, "%s", err.text);
}
END_TEST

/* ---- heat maps ---- */

static size_t occurrences(const char *text, const char *what)
{
    size_t n = 0;
    for (const char *c = text; (c = strstr(c, what)) != NULL; c++)
        n++;
    return n;
}

START_TEST(draws_every_point_once)
{
    struct mp_sweep sweep;
    struct mp_sweep_map map;
    struct mp_strbuf out = MP_STRBUF_INIT;
    open_shard(&sweep, "{model: gpt2, gpu: [T4-16G, L4-24G], batch: [1, 16, 64], seq: [256, 512]}", 1, 1);
    run(&sweep, 1);
    ck_assert_int_eq(mp_sweep_map_init(&map, &sweep, _i ? "seq,gpu" : NULL, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_sweep_write_svg(&map, &out, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(occurrences(mp_strbuf_text(&out), "<title>"), 12);
    ck_assert_uint_eq(occurrences(mp_strbuf_text(&out), "class=\"title\""), _i ? 3 : 2); /* panels */
    ck_assert(strstr(mp_strbuf_text(&out), ">seq<") && strstr(mp_strbuf_text(&out), _i ? ">gpu<" : ">batch<"));
    ck_assert(strstr(mp_strbuf_text(&out), "class=\"border\" d=\"M") != NULL); /* 64 x 512 does not fit a T4 */
    mp_strbuf_release(&out);
    mp_sweep_release(&sweep);
}
END_TEST

static const char *const axes[] = {"batch,sequence", "batch,batch", "model,batch", "batch,"};

START_TEST(refuses_axes_that_are_none)
{
    struct mp_sweep sweep;
    struct mp_sweep_map map;
    open_shard(&sweep, "{model: gpt2, gpu: T4-16G, batch: [1, 2], seq: [256, 512]}", 1, 1);
    ck_assert_int_eq(mp_sweep_map_init(&map, &sweep, axes[_i], &err), MEMPLAN_STATUS_INPUT);
    mp_sweep_release(&sweep);
}
END_TEST

Suite *suite_sweep(void)
{
    Suite *const suite = suite_create("sweep");
    TCase *const tc = tcase_create("sweep");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 300);
    tcase_add_loop_test(tc, every_point_has_the_verdict_of_fit, 0, (int)MP_ARRAY_LEN(grids));
    tcase_add_test(tc, points_of_the_million_have_the_verdict_of_fit);
    tcase_add_loop_test(tc, same_bytes_for_any_number_of_threads, 0, (int)MP_ARRAY_LEN(ends));
    tcase_add_loop_test(tc, parts_merge_into_the_whole, 0, (int)MP_ARRAY_LEN(ends));
    tcase_add_test(tc, parts_of_another_grid_are_refused);
    tcase_add_loop_test(tc, a_stopped_sweep_goes_on, 0, (int)MP_ARRAY_LEN(ends));
    tcase_add_loop_test(tc, damaged_files_are_refused, 0, (int)MP_ARRAY_LEN(damaged));
    tcase_add_loop_test(tc, shards_share_the_points, 0, (int)MP_ARRAY_LEN(kept));
    tcase_add_test(tc, missing_files_are_told);
    tcase_add_loop_test(tc, draws_every_point_once, 0, 2);
    tcase_add_loop_test(tc, refuses_axes_that_are_none, 0, (int)MP_ARRAY_LEN(axes));
    suite_add_tcase(suite, tc);
    return suite;
}
