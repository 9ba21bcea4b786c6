/* SPDX-License-Identifier: MIT */
/*
 * Models against transformers' own, built and run on the CPU (tests/data/modules.jsonl, by validate/modules.py): shapes of all
 * parameters, bytes of buffers, and the order in which hooks on every module are called, forwards and backwards.
 */
#include <check.h>

#include "arch/arch.h"
#include "base/file.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "shadow/autograd.h"
#include "shadow/module.h"
#include "suites.h"

enum { LINES = 156 };

struct job {
    const struct mp_run *run;
    const char *head; /* of messages */
    struct mp_net net;
    struct mp_hooks hooks;
    struct mp_strbuf events[2]; /* forward, backward */
    bool in_backward;
};

/* ---- events ---- */

static int by_number(const void *a, const void *b)
{
    const int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

static void tell(struct job *job, char what, const struct mp_module *module)
{
    int numbers[MP_MODULE_PARAMETERS], n = 0;
    struct mp_strbuf *const events = &job->events[job->in_backward];
    for (int k = 0; k < module->n_parameters; k++)
        numbers[n++] = module->parameters[k]->storage->owner - 1;
    if (n == 0 && (what == 'f' || what == 'b'))
        return;
    qsort(numbers, (size_t)n, sizeof *numbers, by_number);
    mp_strbuf_addf(events, "%s%c", events->len ? " " : "", what);
    for (int k = 0; k < n; k++)
        mp_strbuf_addf(events, "%s%d", k ? "," : "", numbers[k]);
}

static void before_forward(struct mp_runtime *rt, void *job, const struct mp_module *module)
{
    (void)rt;
    tell(job, 'F', module);
}

static void after_forward(struct mp_runtime *rt, void *job, const struct mp_module *module)
{
    (void)rt;
    tell(job, 'f', module);
}

static void before_backward(struct mp_runtime *rt, void *job, const struct mp_module *module)
{
    (void)rt;
    tell(job, 'B', module);
}

static void after_backward(struct mp_runtime *rt, void *job, const struct mp_module *module)
{
    (void)rt;
    tell(job, 'b', module);
}

/* ---- the model ---- */

static void build(struct mp_runtime *rt, void *context)
{
    struct job *const job = context;
    mp_net_build(rt, &job->net);
}

/* As the engine calls it. */
static void train(struct mp_runtime *rt, void *context)
{
    struct job *const job = context;
    struct mp_inputs in;
    struct mp_outputs out = {0};
    rt->hooks = &job->hooks;
    for (int i = 0; i < job->net.n_parameters; i++)
        job->net.parameters[i]->storage->owner = i + 1;
    mp_net_load(rt, &job->net, job->run->batch, job->run->seq, &in);
    mp_container_begin(rt);
    job->net.family->forward(rt, &job->net, &in, &out);
    struct mp_tensor *const loss = mp_take(rt, mp_container_end(rt, out.loss));
    job->in_backward = true;
    mp_backward(rt, loss);
}

static bool same_shape(const struct mp_tensor *t, const struct mp_value *shape)
{
    bool same = (size_t)t->shape.n == shape->as.array.length;
    for (size_t k = 0; same && k < shape->as.array.length; k++)
        same = t->shape.d[k] == shape->as.array.items[k]->as.integer;
    return same;
}

static void check_parameters(const struct job *job, const struct mp_value *line)
{
    const struct mp_value *const shapes = mp_value_get(line, "parameters");
    ck_assert_msg((size_t)job->net.n_parameters == shapes->as.array.length, "%s: %d parameters, not %zu", job->head, job->net.n_parameters,
                  shapes->as.array.length);
    for (int i = 0; i < job->net.n_parameters; i++)
        ck_assert_msg(same_shape(job->net.parameters[i], shapes->as.array.items[i]), "%s: parameter %d, %s, has another shape", job->head, i,
                      job->net.parameters[i]->name);
}

static void check_buffers(const struct job *job, const struct mp_runtime *rt, const struct mp_value *line)
{
    int64_t bytes = 0;
    for (int i = 0; i < rt->n_buffers; i++)
        bytes += (int64_t)mp_nbytes(rt->buffers[i]);
    ck_assert_msg(bytes == mp_value_get(line, "buffer_bytes")->as.integer, "%s: %lld bytes of buffers, not %lld", job->head, (long long)bytes,
                  (long long)mp_value_get(line, "buffer_bytes")->as.integer);
}

static void check_events(struct job *job, const struct mp_value *line)
{
    static const char *const keys[] = {"forward", "backward"};
    for (int i = 0; i < 2; i++) {
        const char *const wanted = mp_value_get(line, keys[i])->as.string.text, *const got = mp_strbuf_text(&job->events[i]);
        size_t same = 0;
        while (wanted[same] && wanted[same] == got[same])
            same++;
        ck_assert_msg(wanted[same] == got[same], "%s, %s:\ntransformers %s\nmemplan      %s\nthe same up to %zu", job->head, keys[i], wanted, got,
                      same);
    }
}

/* ---- lines ---- */

static const struct mp_run *run_of(struct mp_arena *arena, const struct mp_value *line, const char *head)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct mp_json_writer w;
    struct mp_run_source source;
    mp_json_init(&w, &text, 0);
    mp_json_object(&w, NULL);
    mp_json_value(&w, "model", mp_value_get(line, "model"));
    mp_json_value(&w, "attention", mp_value_get(line, "attention"));
    mp_json_string(&w, "gpu", "H200-141G");
    mp_json_int(&w, "batch", 2);
    mp_json_int(&w, "seq", strcmp(mp_value_get(mp_value_get(line, "model"), "model_type")->as.string.text, "vit") == 0 ? 17 : 16);
    mp_json_end_object(&w);
    const struct mp_value *const value = mp_json_parse(arena, "run", mp_strbuf_text(&text), text.len, &err);
    ck_assert_msg(value != NULL, "%s: %s", head, err.text);
    mp_run_source_init(&source, arena);
    ck_assert_msg(mp_run_source_object(&source, "run", value, &err) == MEMPLAN_STATUS_OK, "%s: %s", head, err.text);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s: %s", head, err.text);
    mp_strbuf_release(&text);
    return run;
}

static const struct mp_value *read_line(struct mp_arena *arena, int number)
{
    static const char path[] = "tests/data/modules.jsonl";
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_strbuf text = MP_STRBUF_INIT;
    ck_assert_msg(mp_file_read(path, 0, &text, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    const char *line = mp_strbuf_text(&text), *end = NULL;
    for (int i = 0; (end = strchr(line, '\n')) != NULL && i < number; i++)
        line = end + 1;
    ck_assert_msg(end != NULL, "%s: no line %d", path, number + 1);
    ck_assert_msg(number + 1 < LINES || end[1] == '\0', "%s: more than %d lines", path, LINES);
    const struct mp_value *const value = mp_json_parse(arena, path, mp_arena_strndup(arena, line, (size_t)(end - line)), (size_t)(end - line), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    mp_strbuf_release(&text);
    return value;
}

static const char *head_of(struct mp_arena *arena, const struct mp_value *line)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct mp_json_writer w;
    mp_json_init(&w, &text, 0);
    mp_json_value(&w, NULL, mp_value_get(line, "model"));
    const char *const head = mp_arena_strndup(arena, mp_strbuf_text(&text), text.len);
    mp_strbuf_release(&text);
    return head;
}

START_TEST(modules_are_built_and_called_as_in_transformers)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_arena arena;
    struct mp_program program;
    struct mp_runtime rt;
    mp_arena_init(&arena);
    mp_program_init(&program);
    const struct mp_value *const line = read_line(&arena, _i);
    struct job job = {.head = head_of(&arena, line),
                      .hooks = {.context = &job,
                                .before_forward = before_forward,
                                .after_forward = after_forward,
                                .before_backward = before_backward,
                                .after_backward = after_backward},
                      .events = {MP_STRBUF_INIT, MP_STRBUF_INIT}};
    job.run = run_of(&arena, line, job.head);
    mp_runtime_init(&rt, job.run->gpu, &program, &err);
    ck_assert_msg(mp_net_open(&job.net, job.run, &rt.arena, &err) == MEMPLAN_STATUS_OK, "%s: %s", job.head, err.text);
    ck_assert_msg(mp_runtime_protect(&rt, build, &job) == MEMPLAN_STATUS_OK, "%s: %s", job.head, err.text);
    check_parameters(&job, line);
    check_buffers(&job, &rt, line);
    ck_assert_msg(mp_runtime_protect(&rt, train, &job) == MEMPLAN_STATUS_OK, "%s: %s", job.head, err.text);
    check_events(&job, line);
    mp_strbuf_release(&job.events[0]);
    mp_strbuf_release(&job.events[1]);
    mp_runtime_release(&rt);
    mp_program_release(&program);
    mp_arena_release(&arena);
}
END_TEST

Suite *suite_modules(void)
{
    Suite *const suite = suite_create("modules");
    TCase *const tcase = tcase_create("transformers");
    tcase_add_loop_test(tcase, modules_are_built_and_called_as_in_transformers, 0, LINES);
    suite_add_tcase(suite, tcase);
    return suite;
}
