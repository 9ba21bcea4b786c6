/* SPDX-License-Identifier: MIT */
/* The page: nothing in it comes from a file unescaped, its figures are those of --json, and no model makes it too large for a mail. */
#include "report/html.h"

#include "report/ranks.h"
#include "report/report.h"
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

/* ---- a report of a run ---- */

struct reported {
    struct mp_evaluation e;
    struct mp_advice advice[MP_MAX_ADVICE];
    struct mp_fit_report report;
};

static void report_run(const struct mp_run *run, bool advise, struct reported *r)
{
    *r = (struct reported){0};
    small_evaluate(run, true, &r->e);
    r->report.evaluation = &r->e;
    r->report.ledger = mp_ledger_at(&r->e.program, r->e.oom ? r->e.oom_event - 1 : r->e.peak_event, &arena, &err);
    ck_assert_ptr_nonnull(r->report.ledger);
    if (!advise)
        return;
    ck_assert_int_eq(mp_advise(&r->e, r->advice, &r->report.n_advice, &err), MEMPLAN_STATUS_OK);
    r->report.advice = r->advice;
}

static void write_page(const struct mp_run *run, bool advise, struct mp_strbuf *page, struct mp_strbuf *json)
{
    struct reported r;
    report_run(run, advise, &r);
    ck_assert_msg(mp_report_fit_html(&r.report, page, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    if (json)
        mp_report_fit_json(&r.report, json);
    mp_evaluation_release(&r.e);
}

/* The text between two marks, as a copy in the arena. */
static const char *between(const char *text, const char *from, const char *to)
{
    const char *const start = strstr(text, from);
    ck_assert_msg(start != NULL, "no %s", from);
    const char *const end = strstr(start + strlen(from), to);
    ck_assert_msg(end != NULL, "no %s after %s", to, from);
    return mp_arena_strndup(&arena, start + strlen(from), (size_t)(end - start) - strlen(from));
}

/* ---- figures ---- */

static const char *const jobs[] = {
    "{model: gpt2, gpu: A100-80G, seq: 512}",
    "{model: llama3.2-1b, gpu: H200-141G, seq: 1024, precision: bf16, checkpoint: full}",
    "{model: llama3.2-1b, gpu: RTX4090-24G, batch: 4, seq: 2048, precision: bf16, checkpoint: full}",
    "{model: gpt-13b, gpu: H100-80G, precision: bf16, used: 1GiB}",
};

/* "parts.3.bytes" in the report; UINT64_MAX: not there. */
static uint64_t look_up(const struct mp_value *value, const char *path)
{
    while (value != NULL && *path != '\0') {
        const size_t length = strcspn(path, ".");
        const char *const key = mp_arena_strndup(&arena, path, length);
        if (value->kind == MP_ARRAY) {
            const unsigned long index = strtoul(key, NULL, 10);
            value = index < value->as.array.length ? value->as.array.items[index] : NULL;
        } else {
            value = mp_value_get(value, key);
        }
        path += length + (path[length] == '.');
    }
    return value != NULL && value->kind == MP_INT ? (uint64_t)value->as.integer : UINT64_MAX;
}

START_TEST(figures_equal_those_of_json)
{
    struct mp_strbuf page = MP_STRBUF_INIT, text = MP_STRBUF_INIT;
    size_t n = 0;
    write_page(small_run(&arena, jobs[_i]), true, &page, &text);
    const struct mp_value *const json = mp_json_parse(&arena, "json", text.data, text.len, &err);
    ck_assert_msg(json != NULL, "%s", err.text);
    for (const char *at = mp_strbuf_text(&page); (at = strstr(at, "<data value=\"")) != NULL; at++) {
        const char *const tag = between(at, "<data value=\"", ">");
        const char *const key = strstr(tag, "data-key=\"");
        if (key == NULL)
            continue;
        const char *const name = between(key, "data-key=\"", "\"");
        ck_assert_msg(look_up(json, name) == strtoull(tag, NULL, 10), "%s: %s", name, tag);
        n++;
    }
    ck_assert_uint_gt(n, 5 + 6 + mp_value_get(json, "advice")->as.array.length);
    ck_assert_uint_ge(n, mp_value_get(json, "parts")->as.array.length);
    mp_strbuf_release(&page);
    mp_strbuf_release(&text);
}
END_TEST

static int64_t sum_of(const struct mp_value *array)
{
    int64_t sum = 0;
    for (size_t i = 0; i < array->as.array.length; i++)
        sum += array->as.array.items[i]->as.integer;
    return sum;
}

/* The differences add up, columns are equally long, and blocks fill their segments. */
START_TEST(the_script_gets_what_the_drawings_show)
{
    static const char *const columns[] = {"event", "phase", "layer", "op", "allocated", "reserved", "list"};
    struct mp_strbuf page = MP_STRBUF_INIT;
    write_page(small_run(&arena, jobs[_i]), false, &page, NULL);
    const char *const text = between(mp_strbuf_text(&page), "id=\"data\">", "</script>");
    const struct mp_value *const data = mp_json_parse(&arena, "data", text, strlen(text), &err);
    ck_assert_msg(data != NULL, "%s", err.text);
    const struct mp_value *const t = mp_value_get(data, "timeline"), *const map = mp_value_get(data, "map");
    const size_t n = mp_value_get(t, "event")->as.array.length;
    for (size_t i = 0; i < MP_ARRAY_LEN(columns); i++)
        ck_assert_uint_eq(mp_value_get(t, columns[i])->as.array.length, n);
    ck_assert_int_lt(sum_of(mp_value_get(t, "event")), mp_value_get(t, "events")->as.integer);
    ck_assert_int_lt(sum_of(mp_value_get(t, "list")), (int64_t)mp_value_get(t, "lists")->as.array.length);
    const struct mp_value *const segments = mp_value_get(map, "segments"), *const blocks = mp_value_get(map, "blocks");
    size_t next = 0;
    for (size_t i = 0; i < segments->as.array.length; i++) {
        const struct mp_value *const *const segment = segments->as.array.items[i]->as.array.items;
        int64_t inside = 0;
        for (int64_t k = 0; k < segment[4]->as.integer; k++)
            inside += blocks->as.array.items[next++]->as.array.items[0]->as.integer;
        ck_assert_int_eq(inside, segment[1]->as.integer);
    }
    ck_assert_uint_eq(next, blocks->as.array.length);
    mp_strbuf_release(&page);
}
END_TEST

/* ---- names from files ---- */

START_TEST(names_are_escaped)
{
    struct mp_strbuf page = MP_STRBUF_INIT;
    struct mp_run run = *small_family_run(&arena, 0, "seq: 16, allocator_limit_bytes: 8MiB");
    struct mp_model model = *run.model;
    struct mp_gpu gpu = *run.gpu;
    model.name = "</title><script>alert('m')</script>\a&";
    gpu.name = "\"><img src=x onerror=alert(1)>";
    run.model = &model;
    run.gpu = &gpu;
    write_page(&run, true, &page, NULL);
    ck_assert_ptr_null(strstr(mp_strbuf_text(&page), "<script>alert"));
    ck_assert_ptr_null(strstr(mp_strbuf_text(&page), "<img"));
    ck_assert_ptr_null(strchr(mp_strbuf_text(&page), '\a'));
    ck_assert_ptr_nonnull(strstr(mp_strbuf_text(&page), "&lt;script&gt;alert(&#39;m&#39;)"));
    mp_strbuf_release(&page);
}
END_TEST

START_TEST(data_cannot_end_the_script)
{
    struct mp_strbuf page = MP_STRBUF_INIT;
    mp_html_open(&page, "t");
    mp_html_close(&page, "{\"op\": \"</script><b>&\"}");
    const char *const data = between(mp_strbuf_text(&page), "id=\"data\">", "</script>");
    const struct mp_value *const value = mp_json_parse(&arena, "data", data, strlen(data), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    ck_assert_str_eq(mp_value_get(value, "op")->as.string.text, "</script><b>&");
    mp_strbuf_release(&page);
}
END_TEST

/* ---- self-contained, with alternatives, and small ---- */

static size_t occurrences(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        n++;
    return n;
}

START_TEST(nothing_is_fetched_and_every_picture_has_words)
{
    static const char *const fetching[] = {"src=", "href=", "@import", "url(h", "url(/", "<link", "<iframe"};
    struct mp_strbuf page = MP_STRBUF_INIT;
    write_page(small_run(&arena, jobs[_i]), true, &page, NULL);
    const char *const text = mp_strbuf_text(&page);
    for (size_t i = 0; i < MP_ARRAY_LEN(fetching); i++)
        ck_assert_msg(strstr(text, fetching[i]) == NULL, "%s", fetching[i]);
    ck_assert_ptr_nonnull(strstr(text, "default-src 'none'"));
    ck_assert_uint_eq(occurrences(text, "<svg"), occurrences(text, "<desc>") + occurrences(text, "aria-hidden=\"true\""));
    ck_assert_uint_eq(occurrences(text, "<table id"), occurrences(text, "<caption>"));
    ck_assert_uint_eq(occurrences(text, "<td"), occurrences(text, "</td>"));
    mp_strbuf_release(&page);
}
END_TEST

/* Many layers, many micro-batches, many steps, many blocks. */
static const char *const large[] = {
    "{model: {model_type: gpt2, n_layer: 400, n_embd: 64, n_head: 4, n_positions: 64, vocab_size: 101}, gpu: H200-141G, seq: 16, accumulate: 6}",
    ("{model: {model_type: llama, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2,"
     " intermediate_size: 96, max_position_embeddings: 64, vocab_size: 101}, gpu: H200-141G, seq: 16, accumulate: 700, iterations: 4}"),
    "{model: gpt-175b, gpu: H200-141G, precision: bf16, optimizer: sgd}",
    "{model: gpt2, gpu: H200-141G, seq: 128, retain_losses: true, accumulate: 30, iterations: 10, precision: fp32}",
};

START_TEST(no_model_makes_the_page_too_large)
{
    struct mp_strbuf page = MP_STRBUF_INIT;
    write_page(small_run(&arena, large[_i]), false, &page, NULL);
    ck_assert_msg(page.len < MP_HTML_MAX_BYTES, "%zu bytes", page.len);
    mp_strbuf_release(&page);
}
END_TEST

START_TEST(ranks_stand_side_by_side)
{
    struct reported r;
    struct mp_rank_numbers ranks[MP_MOST_RANKS];
    struct mp_strbuf page = MP_STRBUF_INIT;
    size_t n;
    report_run(small_family_run(&arena, 2, "seq: 32, data_parallel: zero1, world: 16, gpus_per_node: 8"), false, &r);
    ck_assert_int_eq(mp_ranks_evaluate(&r.e, ranks, &n, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(n, MP_MOST_RANKS);
    ck_assert_int_eq(ranks[n - 1].rank, 15);
    ck_assert_uint_eq(ranks[0].reserved_bytes, r.e.reserved_bytes);
    ck_assert(ranks[0].requested_bytes != ranks[n - 1].requested_bytes); /* whole tensors are dealt out */
    ck_assert_int_eq(mp_report_fit_html(&r.report, &page, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(occurrences(strstr(mp_strbuf_text(&page), "<table id=\"ranks\""), ">fits</td>"), MP_MOST_RANKS);
    mp_strbuf_release(&page);
    mp_evaluation_release(&r.e);
    report_run(small_family_run(&arena, 2, "seq: 32"), false, &r);
    ck_assert_int_eq(mp_ranks_evaluate(&r.e, ranks, &n, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(n, 0);
    mp_evaluation_release(&r.e);
}
END_TEST

START_TEST(the_same_run_gives_the_same_bytes)
{
    struct mp_strbuf a = MP_STRBUF_INIT, b = MP_STRBUF_INIT;
    write_page(small_run(&arena, jobs[0]), false, &a, NULL);
    write_page(small_run(&arena, jobs[0]), false, &b, NULL);
    ck_assert_uint_eq(a.len, b.len);
    ck_assert_int_eq(memcmp(a.data, b.data, a.len), 0);
    mp_strbuf_release(&a);
    mp_strbuf_release(&b);
}
END_TEST

START_TEST(every_allocation_may_fail)
{
    struct reported r;
    struct mp_strbuf right = MP_STRBUF_INIT;
    uint64_t n_told = 0, used = 1;
    report_run(small_family_run(&arena, 0, "seq: 16, iterations: 1"), false, &r);
    ck_assert_int_eq(mp_report_fit_html(&r.report, &right, &err), MEMPLAN_STATUS_OK);
    for (uint64_t n = 1; used + 1 >= n && n < 3000; n += 1 + n / 50) {
        struct memplan_error why = {MEMPLAN_STATUS_OK, ""};
        struct mp_strbuf page = MP_STRBUF_INIT;
        mp_alloc_fail_after(n);
        const enum memplan_status status = mp_report_fit_html(&r.report, &page, &why);
        used = mp_alloc_fail_after(0);
        ck_assert_msg(status == MEMPLAN_STATUS_OK || status == MEMPLAN_STATUS_NOMEM, "%s", why.text);
        ck_assert_int_eq(why.status, status);
        if (status == MEMPLAN_STATUS_OK)
            ck_assert_str_eq(mp_strbuf_text(&page), mp_strbuf_text(&right));
        n_told += status != MEMPLAN_STATUS_OK;
        mp_strbuf_release(&page);
    }
    ck_assert_uint_gt(n_told, 20);
    mp_strbuf_release(&right);
    mp_evaluation_release(&r.e);
}
END_TEST

Suite *suite_html(void)
{
    Suite *const suite = suite_create("html");
    TCase *const tc = tcase_create("html");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 120);
    tcase_add_loop_test(tc, figures_equal_those_of_json, 0, (int)MP_ARRAY_LEN(jobs));
    tcase_add_loop_test(tc, the_script_gets_what_the_drawings_show, 0, (int)MP_ARRAY_LEN(jobs));
    tcase_add_test(tc, names_are_escaped);
    tcase_add_test(tc, data_cannot_end_the_script);
    tcase_add_loop_test(tc, nothing_is_fetched_and_every_picture_has_words, 0, (int)MP_ARRAY_LEN(jobs));
    tcase_add_loop_test(tc, no_model_makes_the_page_too_large, 0, (int)MP_ARRAY_LEN(large));
    tcase_add_test(tc, ranks_stand_side_by_side);
    tcase_add_test(tc, the_same_run_gives_the_same_bytes);
    tcase_add_test(tc, every_allocation_may_fail);
    suite_add_tcase(suite, tc);
    return suite;
}
