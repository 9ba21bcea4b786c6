/* SPDX-License-Identifier: MIT */
/* Spans of a program as text, and inputs whose gradients are captured. */
#include "shadow_probe.h"

#include <check.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/strbuf.h"

void probe_open(struct probe *p, const char *gpu)
{
    *p = (struct probe){.n_spans = 0};
    mp_arena_init(&p->arena);
    const struct mp_gpu *const card = mp_gpu_read(&p->arena, gpu, &p->err);
    ck_assert_msg(card != NULL, "%s", p->err.text);
    p->gpu = *card;
    mp_program_init(&p->program);
    mp_runtime_init(&p->rt, &p->gpu, &p->program, &p->err);
}

void probe_close(struct probe *p)
{
    mp_runtime_release(&p->rt);
    mp_program_release(&p->program);
    mp_arena_release(&p->arena);
}

void probe_warm(struct probe *p)
{
    for (int thread = 0; thread < MP_THREADS; thread++) {
        p->rt.thread = (enum mp_thread)thread;
        mp_gemm_workspace(&p->rt, true);
    }
    p->rt.thread = MP_THREAD_MAIN;
}

void probe_begin(struct probe *p)
{
    ck_assert_int_lt(p->n_spans, PROBE_SPANS);
    p->spans[p->n_spans].from = p->program.n_events;
}

void probe_end(struct probe *p)
{
    p->spans[p->n_spans++].to = p->program.n_events;
}

const char *probe_text(struct probe *p, int span)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    uint32_t *const number = mp_arena_calloc(&p->arena, p->program.n_allocs + 1, sizeof *number);
    uint32_t n = 0;
    ck_assert_int_lt(span, p->n_spans);
    ck_assert_ptr_nonnull(number);
    for (int s = 0; s <= span; s++)
        for (uint32_t i = p->spans[s].from; i < p->spans[s].to; i++) {
            const struct mp_event *const e = &p->program.events[i];
            const char *const gap = text.len > 0 ? " " : "";
            if (e->kind == MP_EVENT_ALLOC)
                number[e->id] = ++n;
            if (s < span)
                continue;
            if (e->kind == MP_EVENT_ALLOC)
                mp_strbuf_addf(&text, "%s+%" PRIu64, gap, e->bytes);
            else if (e->kind == MP_EVENT_FREE && number[e->id] > 0)
                mp_strbuf_addf(&text, "%s-%" PRIu32, gap, number[e->id]);
        }
    const char *const copy = mp_arena_strdup(&p->arena, mp_strbuf_text(&text));
    mp_strbuf_release(&text);
    return copy;
}

static int compare_numbers(const void *a, const void *b)
{
    const unsigned long x = *(const unsigned long *)a, y = *(const unsigned long *)b;
    return (x > y) - (x < y);
}

const char *probe_sorted(struct probe *p, const char *events)
{
    enum { MOST = 64 };
    struct mp_strbuf text = MP_STRBUF_INIT;
    unsigned long frees[MOST];
    size_t n = 0;
    for (const char *at = events;; at += strcspn(at, " ")) {
        at += strspn(at, " ");
        if (*at == '-' && n < MOST) {
            frees[n++] = strtoul(at + 1, NULL, 10);
            continue;
        }
        qsort(frees, n, sizeof *frees, compare_numbers);
        for (size_t i = 0; i < n; i++)
            mp_strbuf_addf(&text, "%s-%lu", text.len > 0 ? " " : "", frees[i]);
        n = 0;
        if (*at == '\0')
            break;
        mp_strbuf_addf(&text, "%s%.*s", text.len > 0 ? " " : "", (int)strcspn(at, " "), at);
    }
    const char *const copy = mp_arena_strdup(&p->arena, mp_strbuf_text(&text));
    mp_strbuf_release(&text);
    return copy;
}

static void capture_backward(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **g,
                             struct mp_tensor **out)
{
    struct probe *const p = (struct probe *)(void *)rt;
    (void)n;
    (void)out;
    p->captured[p->n_captured++] = mp_tensor_ref(g[0]);
}

static const struct mp_node_type capture_type = {"Capture", capture_backward};

struct mp_tensor *probe_leaf(struct probe *p, struct mp_shape shape, enum mp_dtype dtype)
{
    struct mp_tensor *const t = probe_tensor(p, shape, dtype);
    t->requires_grad = true;
    return t;
}

struct mp_tensor *probe_tensor(struct probe *p, struct mp_shape shape, enum mp_dtype dtype)
{
    return mp_take(&p->rt, mp_empty(&p->rt, shape, dtype));
}

struct mp_tensor *probe_input(struct probe *p, struct mp_tensor *t)
{
    struct mp_tensor *const source = probe_leaf(p, MP_SHAPE(0), MP_F32);
    struct mp_tensor *const owned = mp_take(&p->rt, t);
    mp_track(&p->rt, mp_node_new(&p->rt, &capture_type, 1, (struct mp_tensor *[]){source}), owned);
    return owned;
}

void probe_backward(struct probe *p, struct mp_tensor *out)
{
    struct mp_tensor *gradient = mp_take(&p->rt, mp_empty_like(&p->rt, out, out->dtype));
    probe_begin(p);
    mp_engine_run(&p->rt, 1, &out, &gradient);
    probe_end(p);
}
