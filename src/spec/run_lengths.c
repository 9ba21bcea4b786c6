/* SPDX-License-Identifier: MIT */
/* How long sequences are: seq, seq_lengths and pad_to, against the positions of the model. */
#include "spec/run_lengths.h"

#include <inttypes.h>

#define LIST_MAX        65536
#define DEFAULT_SEQ_MAX 2048

/* A list of integers in the arena; the elements' places are known. */
static const struct mp_value *check_list(struct mp_run_reader *r, const char *name,
                                         const struct mp_value *value, int64_t low)
{
    char shown[MP_VALUE_SHOW_MAX];
    if (value->kind != MP_ARRAY || value->as.array.length > LIST_MAX) {
        mp_problems_add(&r->problems, value, name, "%s is not a list of at most %d integers",
                        mp_value_show(value, shown), LIST_MAX);
        return NULL;
    }
    const int before = r->problems.n;
    for (size_t i = 0; i < value->as.array.length; i++) {
        int64_t element = 0;
        (void)mp_problems_integer(&r->problems, name, value->as.array.items[i], low,
                                  MP_INT_MAX_VALUE, &element);
    }
    return r->problems.n == before ? value : NULL;
}

void mp_run_lengths_read(struct mp_run_reader *r, const struct mp_value *value)
{
    const char *const name = mp_reader_label(r, MP_KEY_SEQ_LENGTHS);
    const struct mp_value *const list = check_list(r, name, value, 1);
    if (list == NULL)
        return;
    if (list->as.array.length == 0) {
        mp_problems_add(&r->problems, value, name, "an empty list; give at least one length");
        return;
    }
    int64_t *const lengths = mp_arena_calloc(r->arena, list->as.array.length, sizeof *lengths);
    if (lengths == NULL) {
        r->no_memory = true;
        return;
    }
    for (size_t i = 0; i < list->as.array.length; i++)
        lengths[i] = list->as.array.items[i]->as.integer;
    r->run->seq_lengths = lengths;
    r->run->n_seq_lengths = list->as.array.length;
}

/* Rounds the lengths up to pad_to; seq becomes the longest. */
static void round_lengths(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    const int64_t to = MP_MAX(run->pad_to, 1);
    int64_t *const lengths = run->n_seq_lengths == 0
                                 ? NULL
                                 : mp_arena_calloc(r->arena, run->n_seq_lengths, sizeof *lengths);
    if (run->n_seq_lengths > 0 && lengths == NULL) {
        r->no_memory = true;
        return;
    }
    if (run->n_seq_lengths > 0)
        run->seq = 1;
    for (size_t i = 0; i < run->n_seq_lengths; i++) {
        lengths[i] = (run->seq_lengths[i] + to - 1) / to * to;
        run->seq = MP_MAX(run->seq, lengths[i]);
    }
    run->seq_lengths = lengths;
    run->seq = (run->seq + to - 1) / to * to;
    if (run->seq <= MP_INT_MAX_VALUE)
        return;
    const struct mp_value *const at = mp_reader_locate(r, MP_KEY_PAD_TO);
    mp_problems_add(&r->problems, at, mp_reader_label(r, MP_KEY_PAD_TO),
                    "rounds %" PRId64 " tokens up past 2147483647", run->seq);
}

/* Images: the sequence follows from the model. */
static void fix_seq(struct mp_run_reader *r)
{
    static const enum mp_run_key lengths[] = {MP_KEY_SEQ, MP_KEY_SEQ_LENGTHS, MP_KEY_PAD_TO};
    struct mp_run *const run = r->run;
    const int64_t seq = mp_model_fixed_seq(run->model);
    for (size_t i = 0; i < MP_ARRAY_LEN(lengths); i++) {
        const bool same = lengths[i] == MP_KEY_SEQ && run->seq == seq;
        if (!mp_run_is_given(run, lengths[i]) || same)
            continue;
        const struct mp_value *const at = mp_reader_locate(r, lengths[i]);
        mp_problems_add(&r->problems, at, mp_reader_label(r, lengths[i]),
                        "the sequence of model '%s' has %" PRId64
                        " positions, by its image_size and patch_size; leave it out",
                        run->model->name, seq);
    }
    run->seq = seq;
}

static void check_positions(struct mp_run_reader *r, int64_t positions, bool table)
{
    const struct mp_run *const run = r->run;
    const enum mp_run_key key = run->n_seq_lengths > 0 ? MP_KEY_SEQ_LENGTHS : MP_KEY_SEQ;
    if (run->seq <= positions)
        return;
    if (!table) {
        mp_reader_warn(r, mp_arena_printf(r->arena,
                                          "seq %" PRId64 " is beyond the %" PRId64
                                          " positions that %s was made for",
                                          run->seq, positions, run->model->name));
        return;
    }
    const struct mp_value *const at = mp_reader_locate(r, key);
    mp_problems_add(&r->problems, at, mp_reader_label(r, key),
                    "%" PRId64 " is above the %" PRId64
                    " positions of model '%s'; give at most %" PRId64,
                    run->seq, positions, run->model->name, positions);
}

void mp_run_lengths_resolve(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    bool table = false;
    const int64_t positions = mp_model_positions(run->model, &table);
    if (!mp_run_is_given(run, MP_KEY_SEQ))
        run->seq = MP_MIN(positions, DEFAULT_SEQ_MAX);
    if (mp_model_fixed_seq(run->model) > 0)
        fix_seq(r);
    else
        round_lengths(r);
    check_positions(r, positions, table);
}
