/* SPDX-License-Identifier: MIT */
/* Attribution: replay allocations, frees and tags up to a moment, then sort what is alive by what it is for. */
#include "memory/ledger.h"

static const char *phase_at(const struct mp_program *program, uint32_t event)
{
    for (uint32_t i = 0; i < program->n_phases; i++)
        if (program->phases[i].event >= event)
            return program->phases[i].name;
    return "after the last phase";
}

static int compare_kind(const void *a, const void *b)
{
    const struct mp_ledger_row *x = a, *y = b;
    if (x->category != y->category)
        return x->category < y->category ? -1 : 1;
    if (x->layer != y->layer)
        return x->layer < y->layer ? -1 : 1;
    return strcmp(x->op, y->op);
}

static int compare_size(const void *a, const void *b)
{
    const struct mp_ledger_row *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return compare_kind(a, b);
}

/* Neighbours of the same kind become one row. */
static size_t merge_rows(struct mp_ledger_row *rows, size_t n)
{
    size_t merged = 0;
    for (size_t i = 0; i < n; i++) {
        if (merged && compare_kind(&rows[merged - 1], &rows[i]) == 0) {
            rows[merged - 1].bytes += rows[i].bytes;
            rows[merged - 1].n += rows[i].n;
        } else {
            rows[merged++] = rows[i];
        }
    }
    return merged;
}

const struct mp_ledger *mp_ledger_at(const struct mp_program *program, uint32_t event, struct mp_arena *arena, struct memplan_error *err)
{
    struct mp_ledger *ledger = mp_arena_alloc(arena, sizeof *ledger);
    struct mp_ledger_row *live = mp_arena_calloc(arena, program->n_allocs + 1, sizeof *live);
    if (!ledger || !live) {
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while attributing the peak");
        return NULL;
    }
    for (uint32_t i = 0; i <= event && i < program->n_events; i++) {
        const struct mp_event *e = &program->events[i];
        if (e->kind == MP_EVENT_ALLOC)
            live[e->id] = (struct mp_ledger_row){(enum mp_category)e->category, e->layer, e->op, e->bytes, 1};
        else if (e->kind == MP_EVENT_FREE)
            live[e->id].n = 0;
        else if (e->kind == MP_EVENT_TAG)
            live[e->id].category = (enum mp_category)e->category;
    }
    size_t n = 0;
    for (uint32_t id = 1; id <= program->n_allocs; id++) {
        if (!live[id].n)
            continue;
        ledger->total_bytes += live[id].bytes;
        ledger->by_category[live[id].category] += live[id].bytes;
        live[n++] = live[id];
    }
    qsort(live, n, sizeof *live, compare_kind);
    ledger->n_rows = merge_rows(live, n);
    qsort(live, ledger->n_rows, sizeof *live, compare_size);
    ledger->rows = live;
    ledger->phase = phase_at(program, event);
    ledger->event = program->n_events ? &program->events[MP_MIN(event, program->n_events - 1)] : NULL;
    return ledger;
}

size_t mp_ledger_by_op(const struct mp_ledger *ledger, enum mp_category category, struct mp_ledger_row *out, size_t max)
{
    size_t n = 0;
    for (size_t i = 0; i < ledger->n_rows; i++) {
        const struct mp_ledger_row *row = &ledger->rows[i];
        if (row->category != category)
            continue;
        size_t at = 0;
        while (at < n && strcmp(out[at].op, row->op) != 0)
            at++;
        if (at == n) {
            if (n == max)
                continue;
            out[n++] = (struct mp_ledger_row){category, -1, row->op, 0, 0};
        }
        out[at].bytes += row->bytes;
        out[at].n += row->n;
    }
    qsort(out, n, sizeof *out, compare_size);
    return n;
}

void mp_ledger_by_layer(const struct mp_ledger *ledger, enum mp_category category, uint64_t *out, size_t n)
{
    memset(out, 0, n * sizeof *out);
    for (size_t i = 0; i < ledger->n_rows; i++) {
        const struct mp_ledger_row *row = &ledger->rows[i];
        if (row->category == category && (size_t)(row->layer + 1) < n)
            out[row->layer + 1] += row->bytes;
    }
}

int mp_ledger_last_layer(const struct mp_ledger *ledger)
{
    int last = -1;
    for (size_t i = 0; i < ledger->n_rows; i++)
        last = MP_MAX(last, ledger->rows[i].layer);
    return last;
}
