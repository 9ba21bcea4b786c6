/* SPDX-License-Identifier: MIT */
/*
 * Writes pickles of plain data, protocol 4 without frames: what Python's pickle.load and PyTorch's
 * memory_viz page read.
 *
 * Containers are opened with a mark and closed with one SETITEMS or APPENDS. A string is written
 * once and memoised; later it is a reference, which keeps a history of a million events small.
 */
#include "memory/pickle.h"

#include "base/arena.h"

struct mp_pickle_word {
    char *text;
    uint32_t memo;
};

static void add_op(struct mp_pickle_writer *w, int op)
{
    mp_strbuf_addch(w->out, (char)op);
}

static void add_uint(struct mp_pickle_writer *w, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        mp_strbuf_addch(w->out, (char)(value >> (8 * i)));
}

static uint32_t memoise(struct mp_pickle_writer *w)
{
    add_op(w, 0x94);
    return w->n_memo++;
}

void mp_pickle_begin(struct mp_pickle_writer *w, struct mp_strbuf *out)
{
    *w = (struct mp_pickle_writer){.out = out};
    add_op(w, 0x80);
    add_uint(w, 4, 1);
}

bool mp_pickle_end(struct mp_pickle_writer *w)
{
    add_op(w, '.');
    for (size_t i = 0; i < w->cap_table; i++)
        free(w->table[i].text);
    free(w->table);
    w->table = NULL;
    w->cap_table = w->n_table = 0;
    return !w->failed && !w->out->failed;
}

void mp_pickle_begin_dict(struct mp_pickle_writer *w)
{
    add_op(w, '}');
    add_op(w, '(');
}

void mp_pickle_end_dict(struct mp_pickle_writer *w)
{
    add_op(w, 'u');
}

uint32_t mp_pickle_begin_list(struct mp_pickle_writer *w)
{
    add_op(w, ']');
    const uint32_t memo = memoise(w);
    add_op(w, '(');
    return memo;
}

void mp_pickle_end_list(struct mp_pickle_writer *w)
{
    add_op(w, 'e');
}

void mp_pickle_again(struct mp_pickle_writer *w, uint32_t memo)
{
    add_op(w, memo < 256 ? 'h' : 'j');
    add_uint(w, memo, memo < 256 ? 1 : 4);
}

static uint64_t hash_text(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * UINT64_C(1099511628211);
    return hash;
}

static struct mp_pickle_word *find_word(struct mp_pickle_word *table, size_t cap, const char *text)
{
    size_t i = (size_t)hash_text(text) & (cap - 1);
    while (table[i].text && strcmp(table[i].text, text) != 0)
        i = (i + 1) & (cap - 1);
    return &table[i];
}

static bool grow_table(struct mp_pickle_writer *w)
{
    if (w->n_table * 2 < w->cap_table)
        return true;
    const size_t cap = w->cap_table ? w->cap_table * 2 : 64;
    struct mp_pickle_word *table = mp_malloc(cap * sizeof(*table));
    if (!table)
        return false;
    for (size_t i = 0; i < cap; i++)
        table[i] = (struct mp_pickle_word){NULL, 0};
    for (size_t i = 0; i < w->cap_table; i++) {
        if (w->table[i].text)
            *find_word(table, cap, w->table[i].text) = w->table[i];
    }
    free(w->table);
    w->table = table;
    w->cap_table = cap;
    return true;
}

void mp_pickle_string(struct mp_pickle_writer *w, const char *text)
{
    if (!grow_table(w)) {
        w->failed = true;
        return;
    }
    struct mp_pickle_word *word = find_word(w->table, w->cap_table, text);
    if (word->text) {
        mp_pickle_again(w, word->memo);
        return;
    }
    const size_t length = strlen(text);
    word->text = mp_malloc(length + 1);
    if (!word->text) {
        w->failed = true;
        return;
    }
    memcpy(word->text, text, length + 1);
    w->n_table++;
    add_op(w, length < 256 ? 0x8c : 'X');
    add_uint(w, length, length < 256 ? 1 : 4);
    mp_strbuf_add(w->out, text, length);
    word->memo = memoise(w);
}

void mp_pickle_int(struct mp_pickle_writer *w, int64_t value)
{
    if (value >= 0 && value < 256) {
        add_op(w, 'K');
        add_uint(w, (uint64_t)value, 1);
    } else if (value >= 0 && value < 65536) {
        add_op(w, 'M');
        add_uint(w, (uint64_t)value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        add_op(w, 'J');
        add_uint(w, (uint64_t)value, 4);
    } else {
        add_op(w, 0x8a);
        add_uint(w, 8, 1);
        add_uint(w, (uint64_t)value, 8);
    }
}

void mp_pickle_real(struct mp_pickle_writer *w, double value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof(bits));
    add_op(w, 'G');
    for (unsigned i = 8; i-- > 0;)
        mp_strbuf_addch(w->out, (char)(bits >> (8 * i)));
}

void mp_pickle_bool(struct mp_pickle_writer *w, bool value)
{
    add_op(w, value ? 0x88 : 0x89);
}

void mp_pickle_pair(struct mp_pickle_writer *w, int64_t first, int64_t second)
{
    mp_pickle_int(w, first);
    mp_pickle_int(w, second);
    add_op(w, 0x86);
}
