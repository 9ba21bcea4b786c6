/* SPDX-License-Identifier: MIT */
/* Predicted beside measured: what counts as exact, which lines become entries, which thresholds are missed. */
#include "report/compare.h"

#include "base/file.h"
#include "small_run.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

/* ---- requirements ---- */

static const struct {
    const char *text;
    size_t n; /* 0: refused */
    enum mp_quantity quantity; /* of the last */
    double tolerance, percent;
    const char *says;
} requirements[] = {
    {"requested:0:100", 1, MP_QUANTITY_REQUESTED, 0, 100, NULL},
    {"reserved:1%:95,requested:0:100", 2, MP_QUANTITY_REQUESTED, 0, 100, NULL},
    {"allocated:0.25%:93.5", 1, MP_QUANTITY_ALLOCATED, 0.0025, 93.5, NULL},
    {"device_used:0.01:0", 1, MP_QUANTITY_DEVICE_USED, 0.01, 0, NULL},
    {"oom:0:100", 1, MP_QUANTITY_OOM, 0, 100, NULL},
    {"max_batch:0:100", 1, MP_QUANTITY_MAX_BATCH, 0, 100, NULL},
    {"reservd:1%:95", 0, MP_QUANTITY_RESERVED, 0, 0, "'reservd:1%:95' is not QUANTITY:TOLERANCE:PERCENT"},
    {"reserved", 0, MP_QUANTITY_RESERVED, 0, 0, "quantities: requested, allocated"},
    {"reserved:1%", 0, MP_QUANTITY_RESERVED, 0, 0, "QUANTITY:TOLERANCE:PERCENT"},
    {"reserved:-1%:95", 0, MP_QUANTITY_RESERVED, 0, 0, "QUANTITY:TOLERANCE:PERCENT"},
    {"reserved:nan:95", 0, MP_QUANTITY_RESERVED, 0, 0, "QUANTITY:TOLERANCE:PERCENT"},
    {"reserved:1%:101", 0, MP_QUANTITY_RESERVED, 0, 0, "0 to 100"},
    {"reserved:1%:-1", 0, MP_QUANTITY_RESERVED, 0, 0, "0 to 100"},
    {"reserved:1%:95%", 0, MP_QUANTITY_RESERVED, 0, 0, "0 to 100"},
    {"reserved:1%:95;oom:0:100", 0, MP_QUANTITY_RESERVED, 0, 0, "0 to 100"},
    {"reserved:1e400:95", 0, MP_QUANTITY_RESERVED, 0, 0, "QUANTITY:TOLERANCE:PERCENT"},
    {"", 0, MP_QUANTITY_RESERVED, 0, 0, "empty; give for example requested:0:100"},
    {":1%:95", 0, MP_QUANTITY_RESERVED, 0, 0, "QUANTITY:TOLERANCE:PERCENT"},
};

START_TEST(requirements_are_read)
{
    struct mp_requirement out[MP_MAX_REQUIREMENTS];
    size_t n = 0;
    const enum memplan_status status = mp_requirements_parse(requirements[_i].text, out, &n, &err);
    if (requirements[_i].n == 0) {
        ck_assert_int_eq(status, MEMPLAN_STATUS_INPUT);
        ck_assert_msg(strstr(err.text, requirements[_i].says) != NULL, "%s", err.text);
        return;
    }
    ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(n, requirements[_i].n);
    ck_assert_int_eq(out[n - 1].quantity, requirements[_i].quantity);
    ck_assert_double_eq_tol(out[n - 1].tolerance, requirements[_i].tolerance, 1e-12);
    ck_assert_double_eq(out[n - 1].percent, requirements[_i].percent);
}
END_TEST

START_TEST(there_are_at_most_sixteen_requirements)
{
    struct mp_requirement out[MP_MAX_REQUIREMENTS];
    struct mp_strbuf text = MP_STRBUF_INIT;
    size_t n = 0;
    for (int i = 0; i < MP_MAX_REQUIREMENTS; i++)
        mp_strbuf_addf(&text, "%soom:0:100", i > 0 ? "," : "");
    ck_assert_int_eq(mp_requirements_parse(mp_strbuf_text(&text), out, &n, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(n, MP_MAX_REQUIREMENTS);
    mp_strbuf_addstr(&text, ",oom:0:100");
    ck_assert_int_eq(mp_requirements_parse(mp_strbuf_text(&text), out, &n, &err), MEMPLAN_STATUS_INPUT);
    mp_strbuf_release(&text);
}
END_TEST

/* ---- one line ---- */

#define RUN                                                                                        \
    "{\"model\": {\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 32, \"n_head\": 2, "       \
    "\"n_positions\": 32, \"vocab_size\": 64}, \"gpu\": \"H200-141G\", \"seq\": 16, \"iterations\": 2"

/* The measured part is made from our own prediction, then changed. */
struct change {
    const char *name;
    int64_t requested, allocated, reserved, device_used; /* added to what is right */
    int64_t phase;                                       /* added to a phase's peak */
    int oom;
    bool phase_missing;
};

static void write_measured(struct mp_strbuf *out, const struct mp_evaluation *e, const struct change *c)
{
    mp_strbuf_addf(out, "{\"id\": \"a\", \"run\": " RUN "}, \"measured\": {\"oom\": %s, ", c->oom ? "true" : "false");
    mp_strbuf_addf(out, "\"requested_bytes\": %lld, \"allocated_bytes\": %lld, ", (long long)e->requested_bytes + c->requested,
                   (long long)e->allocated_bytes + c->allocated);
    mp_strbuf_addf(out, "\"reserved_bytes\": %lld, \"device_used_bytes\": %lld, \"phases\": [",
                   (long long)e->reserved_bytes + c->reserved, (long long)e->device_used_bytes + c->device_used);
    const size_t n = e->n_phases - c->phase_missing;
    for (size_t i = 0; i < n; i++)
        mp_strbuf_addf(out, "%s{\"phase\": \"%s\", \"requested\": %llu, \"requested_peak\": %lld}", i > 0 ? ", " : "",
                       e->phases[i].name, (unsigned long long)e->phases[i].requested_bytes,
                       (long long)e->phases[i].requested_peak_bytes + (i == 3 ? c->phase : 0));
    mp_strbuf_addstr(out, "]}}");
}

static const struct {
    struct change change;
    bool exact[MP_QUANTITY_COUNT]; /* requested, allocated, reserved, device_used, oom */
    size_t n[MP_QUANTITY_COUNT];   /* runs that count */
} lines[] = {
    {{.name = "all right"}, {1, 1, 1, 1, 1}, {1, 1, 1, 1, 1}},
    {{.name = "a byte requested", .requested = 1}, {0, 1, 1, 1, 1}, {1, 1, 1, 1, 1}},
    {{.name = "a byte in one phase", .phase = -1}, {0, 1, 1, 1, 1}, {1, 1, 1, 1, 1}},
    {{.name = "a phase less", .phase_missing = true}, {0, 1, 1, 1, 1}, {1, 1, 1, 1, 1}},
    {{.name = "allocated", .allocated = 512}, {1, 0, 1, 1, 1}, {1, 1, 1, 1, 1}},
    {{.name = "reserved", .reserved = -2097152}, {1, 1, 0, 1, 1}, {1, 1, 1, 1, 1}},
    {{.name = "device used", .device_used = 1}, {1, 1, 1, 0, 1}, {1, 1, 1, 1, 1}},
    {{.name = "died, and we say it runs", .oom = 1}, {0, 0, 0, 0, 0}, {0, 0, 0, 0, 1}},
};

static void add_text(struct mp_comparison *c, const char *text)
{
    struct mp_measured_line line;
    struct memplan_error why = {MEMPLAN_STATUS_OK, ""};
    if (mp_measured_parse(&arena, "a.jsonl", 1, text, strlen(text), &line, &why) != MEMPLAN_STATUS_OK)
        mp_comparison_add_damaged(c, &line, &why);
    else
        ck_assert_msg(mp_comparison_add(c, &line, &arena, NULL, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
}

START_TEST(a_byte_is_a_difference)
{
    struct mp_comparison c;
    struct mp_evaluation e;
    struct mp_strbuf text = MP_STRBUF_INIT;
    small_evaluate(small_run(&arena, RUN "}"), false, &e);
    write_measured(&text, &e, &lines[_i].change);
    mp_comparison_init(&c, false);
    add_text(&c, mp_strbuf_text(&text));
    for (int q = 0; q < MP_QUANTITY_MAX_BATCH; q++) {
        ck_assert_msg(c.errors[q].n == lines[_i].n[q], "%s: %s counts %zu times", lines[_i].change.name,
                      mp_quantity_text((enum mp_quantity)q), c.errors[q].n);
        ck_assert_msg(c.errors[q].n_exact == (size_t)lines[_i].exact[q], "%s: %s", lines[_i].change.name,
                      mp_quantity_text((enum mp_quantity)q));
    }
    ck_assert_uint_eq(c.n_died_unseen, (uint64_t)lines[_i].change.oom);
    mp_comparison_release(&c);
    mp_strbuf_release(&text);
    mp_evaluation_release(&e);
}
END_TEST

/* ---- many lines ---- */

static const char *const mixed[] = {
    "{\"id\": \"predict only\", \"run\": " RUN "}}",
    "{\"id\": \"largest\", \"run\": " RUN ", \"allocator_limit_bytes\": 90000000}, \"measured\": {\"max_batch\": 1}}",
    "{\"id\": \"dies\", \"run\": " RUN ", \"allocator_limit_bytes\": 30000000}, \"measured\": {\"oom\": true}}",
    "{\"id\": \"unknown key\", \"run\": " RUN ", \"batchs\": 3}}",
    "{\"id\": \"unknown family\", \"run\": {\"model\": {\"model_type\": \"rwkv\"}, \"gpu\": \"H200-141G\"}}",
    "{\"id\": \"damaged\", \"run\": ",
    "{\"id\": \"no run\"}",
    "{\"id\": \"esc\\u001b\", \"run\": " RUN "}}",
};

static void compare_mixed(bool json, struct mp_comparison *c, struct mp_strbuf *out)
{
    mp_comparison_init(c, json);
    for (size_t i = 0; i < MP_ARRAY_LEN(mixed); i++)
        add_text(c, mixed[i]);
    mp_comparison_write(c, out);
}

START_TEST(every_line_is_an_entry)
{
    static const char *const statuses[] = {"ok", "ok", "ok", "error", "unsupported", "error", "error", "ok"};
    struct mp_comparison c;
    struct mp_strbuf out = MP_STRBUF_INIT;
    compare_mixed(true, &c, &out);
    const struct mp_value *const v = mp_json_parse(&arena, "report", out.data, out.len, &err);
    ck_assert_msg(v != NULL, "%s", err.text);
    ck_assert_int_eq(mp_value_get(v, "schema_version")->as.integer, MP_COMPARE_SCHEMA_VERSION);
    const struct mp_value *const runs = mp_value_get(v, "runs");
    ck_assert_uint_eq(runs->as.array.length, MP_ARRAY_LEN(mixed));
    for (size_t i = 0; i < MP_ARRAY_LEN(mixed); i++) {
        const struct mp_value *const run = runs->as.array.items[i];
        ck_assert_str_eq(mp_value_get(run, "status")->as.string.text, statuses[i]);
        ck_assert_int_eq(mp_value_get(run, "predicted")->kind, strcmp(statuses[i], "ok") == 0 ? MP_OBJECT : MP_NULL);
    }
    const struct mp_value *const predicted = mp_value_get(runs->as.array.items[0], "predicted");
    ck_assert(!mp_value_get(predicted, "oom")->as.boolean);
    ck_assert_uint_eq(mp_value_get(predicted, "phases")->as.array.length, 2 + 2 * 4);
    static const char *const keys[] = {"requested_bytes", "allocated_bytes", "reserved_bytes", "device_used_bytes"};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        ck_assert_int_gt(mp_value_get(predicted, keys[i])->as.integer, 0);
    ck_assert_int_eq(mp_value_get(mp_value_get(runs->as.array.items[1], "predicted"), "max_batch")->kind, MP_INT);
    ck_assert(mp_value_get(mp_value_get(runs->as.array.items[2], "predicted"), "oom")->as.boolean);
    ck_assert_ptr_nonnull(strstr(mp_value_get(runs->as.array.items[3], "message")->as.string.text, "did you mean 'batch'"));
    const struct mp_value *const summary = mp_value_get(v, "summary");
    ck_assert_int_eq(mp_value_get(summary, "lines")->as.integer, 8);
    ck_assert_int_eq(mp_value_get(summary, "ok")->as.integer, 4);
    ck_assert_int_eq(mp_value_get(summary, "unsupported")->as.integer, 1);
    ck_assert_int_eq(mp_value_get(summary, "errors")->as.integer, 3);
    mp_comparison_release(&c);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(the_table_has_the_same_counts)
{
    struct mp_comparison c;
    struct mp_strbuf out = MP_STRBUF_INIT;
    compare_mixed(false, &c, &out);
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&out), "8 lines: 4 predicted, 1 not supported, 3 with errors"));
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&out), "dies, as measured"));
    ck_assert_ptr_null(strchr(mp_strbuf_text(&out), '\033'));
    mp_comparison_release(&c);
    mp_strbuf_release(&out);
}
END_TEST

/* ---- thresholds ---- */

static const struct {
    const char *text;
    size_t missed;
} thresholds[] = {
    /* errors of 0, 0.1 %, 1 % and 2 % */
    {"reserved:0:25", 0},    {"reserved:0:26", 1},     {"reserved:0.1%:50", 0}, {"reserved:0.1%:51", 1},
    {"reserved:1%:75", 0},   {"reserved:2%:100", 0},   {"reserved:1.9%:76", 1}, {"reserved:0:100,reserved:1%:100", 2},
    {"reserved:0:0", 0},
};

START_TEST(shares_of_runs_are_checked)
{
    static const int64_t measured[] = {1000000, 1001001, 1010101, 1020408};
    struct mp_comparison c;
    struct mp_requirement out[MP_MAX_REQUIREMENTS];
    struct mp_strbuf misses = MP_STRBUF_INIT;
    size_t n = 0;
    double values[MP_ARRAY_LEN(measured)];
    mp_comparison_init(&c, false);
    for (size_t i = 0; i < MP_ARRAY_LEN(measured); i++)
        values[i] = ((double)measured[i] - 1e6) / (double)measured[i];
    c.errors[MP_QUANTITY_RESERVED] = (struct mp_errors){.values = values, .n = MP_ARRAY_LEN(measured), .n_exact = 1};
    ck_assert_int_eq(mp_requirements_parse(thresholds[_i].text, out, &n, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(mp_comparison_check(&c, out, n, &misses), thresholds[_i].missed);
    size_t n_lines = 0;
    for (const char *at = mp_strbuf_text(&misses); *at != '\0'; at++)
        n_lines += *at == '\n';
    ck_assert_uint_eq(n_lines, thresholds[_i].missed);
    c.errors[MP_QUANTITY_RESERVED].values = NULL;
    mp_comparison_release(&c);
    mp_strbuf_release(&misses);
}
END_TEST

START_TEST(a_requirement_that_no_run_measured_is_missed)
{
    struct mp_comparison c;
    struct mp_requirement out[MP_MAX_REQUIREMENTS];
    struct mp_strbuf misses = MP_STRBUF_INIT;
    size_t n = 0;
    mp_comparison_init(&c, false);
    ck_assert_int_eq(mp_requirements_parse("reserved:0:100", out, &n, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(mp_comparison_check(&c, out, n, &misses), 1);
    ck_assert_str_eq(mp_strbuf_text(&misses), "reserved: no run measured it\n");
    mp_comparison_release(&c);
    mp_strbuf_release(&misses);
}
END_TEST

START_TEST(a_comparison_without_memory_is_an_error)
{
    struct memplan_error why;
    struct mp_measured_line line;
    for (uint64_t n = 1; n < 400; n = n * 5 / 4 + 1) {
        struct mp_comparison c;
        const struct mp_arena_mark mark = mp_arena_mark(&arena);
        ck_assert_int_eq(mp_measured_parse(&arena, "a.jsonl", 1, mixed[0], strlen(mixed[0]), &line, &err), MEMPLAN_STATUS_OK);
        mp_comparison_init(&c, false);
        why = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
        mp_alloc_fail_after(n);
        const enum memplan_status status = mp_comparison_add(&c, &line, &arena, NULL, &why);
        mp_alloc_fail_after(0);
        ck_assert(status == MEMPLAN_STATUS_OK || status == MEMPLAN_STATUS_NOMEM);
        mp_comparison_release(&c);
        mp_arena_rewind(&arena, mark);
    }
}
END_TEST

/* ---- steps that were recorded with an attention kernel forced, or a workspace ---- */

static const char *first_text(const struct mp_value *v, const char *key)
{
    const struct mp_value *const member = mp_value_get(v, key);
    return member != NULL && member->kind == MP_STRING ? member->as.string.text : "";
}

/* What validate/measure.py set for the run, as a card of its own. */
static struct mp_gpu card_of(const struct mp_run *run, const struct mp_value *setting)
{
    struct mp_gpu gpu = *run->gpu;
    const struct mp_value *const env = mp_value_get(setting, "env");
    if (first_text(env, "TORCH_CUDNN_SDPA_DEPRIORITIZED")[0] == '1')
        gpu.cudnn_attention_first = false;
    if (mp_value_get(setting, "attention_kernels") != NULL)
        gpu.cudnn_attention_first = gpu.flash_attention = false;
    if (strcmp(first_text(env, "CUBLAS_WORKSPACE_CONFIG"), ":4096:2:16:8") == 0)
        gpu.cublas_workspace_bytes.value = (2 * 4096 + 8 * 16) * MP_KIB;
    return gpu;
}

static bool phases_agree(const struct mp_evaluation *e, const struct mp_measured *m)
{
    if (m->n_phases != e->n_phases)
        return false;
    for (size_t i = 0; i < m->n_phases; i++)
        if ((uint64_t)m->phases[i].requested != e->phases[i].requested_bytes ||
            (uint64_t)m->phases[i].requested_peak != e->phases[i].requested_peak_bytes)
            return false;
    return true;
}

START_TEST(forced_kernels_are_exact_in_every_phase)
{
    struct mp_strbuf text = MP_STRBUF_INIT, wrong = MP_STRBUF_INIT;
    int n = 0, n_wrong = 0;
    ck_assert_msg(mp_file_read("validate/results/h200-kernels.jsonl", 0, &text, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    for (const char *at = mp_strbuf_text(&text); *at != '\0'; at += strcspn(at, "\n") + 1, n++) {
        struct mp_measured_line line;
        struct mp_run_source source;
        struct mp_evaluation e;
        const struct mp_arena_mark mark = mp_arena_mark(&arena);
        const size_t length = strcspn(at, "\n");
        ck_assert_msg(mp_measured_parse(&arena, "kernels", (uint64_t)n + 1, at, length, &line, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
        mp_run_source_init(&source, &arena);
        ck_assert_msg(mp_run_source_object(&source, line.origin, line.run, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
        const struct mp_run *const resolved = mp_run_resolve(&source, &err);
        ck_assert_msg(resolved != NULL, "%s", err.text);
        struct mp_run run = *resolved;
        const struct mp_gpu gpu = card_of(&run, mp_value_get(mp_json_parse(&arena, "line", at, length, &err), "setting"));
        run.gpu = &gpu;
        small_evaluate(&run, false, &e);
        if (!phases_agree(&e, line.measured) && n_wrong++ < 20)
            mp_strbuf_addf(&wrong, " %s", line.id);
        mp_evaluation_release(&e);
        mp_arena_rewind(&arena, mark);
    }
    ck_assert_msg(n_wrong == 0, "%d of %d runs differ:%s", n_wrong, n, mp_strbuf_text(&wrong));
    ck_assert_int_eq(n, 173);
    mp_strbuf_release(&text);
    mp_strbuf_release(&wrong);
}
END_TEST

Suite *suite_compare(void)
{
    Suite *const suite = suite_create("compare");
    TCase *const tc = tcase_create("compare");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 30);
    tcase_add_loop_test(tc, requirements_are_read, 0, (int)MP_ARRAY_LEN(requirements));
    tcase_add_test(tc, there_are_at_most_sixteen_requirements);
    tcase_add_loop_test(tc, a_byte_is_a_difference, 0, (int)MP_ARRAY_LEN(lines));
    tcase_add_test(tc, every_line_is_an_entry);
    tcase_add_test(tc, the_table_has_the_same_counts);
    tcase_add_loop_test(tc, shares_of_runs_are_checked, 0, (int)MP_ARRAY_LEN(thresholds));
    tcase_add_test(tc, a_requirement_that_no_run_measured_is_missed);
    tcase_add_test(tc, a_comparison_without_memory_is_an_error);
    tcase_add_test(tc, forced_kernels_are_exact_in_every_phase);
    suite_add_tcase(suite, tc);
    return suite;
}
