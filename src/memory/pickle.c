/* SPDX-License-Identifier: MIT */
/*
 * A pickle is a program for a stack machine. This one has no way to call anything:
 *
 *     }  MARK  'action'  'alloc'  'addr'  139…  SETITEMS        stack: {action: alloc, addr: 139…}
 *
 * Containers are pushed empty and filled later, and Python's pickler puts a container into its
 * parent only when it is full. So a dictionary can be offered to the caller when it goes into a
 * list, and its slot reused: the slots in use are few, whatever the file's size. The memo keeps
 * references of slot and generation; what it finds gone is opaque, which is all that stack frames,
 * the only objects that snapshots share, need to be.
 */
#include "memory/pickle.h"

#include <inttypes.h>

#include "base/arena.h"

enum {
    MAX_DEPTH = 64,
    MAX_STACK = 64 << 20,     /* values; the C++ pickler puts a whole list on the stack */
    MAX_TEXT_BYTES = 1 << 16, /* of a string that is kept */
    MAX_WORD_BYTES = 64,
    PAIR_BITS = 28,
    SLOT_BITS = 28,
};
#define PAIR_LIMIT (INT64_C(1) << PAIR_BITS)
#define SLOT_MASK ((UINT64_C(1) << SLOT_BITS) - 1)

struct slot {
    uint32_t generation;
    uint32_t next_free; /* slot + 1 */
    uint8_t depth;
    bool used, is_list;
    union {
        struct mp_pickle_dict dict;
        struct mp_pickle_list list;
    } as;
};

struct mp_pickle {
    const struct mp_pickle_reader *reader;
    struct mp_source *source;
    struct memplan_error *err;
    struct mp_pickle_value *stack;
    size_t n_stack, cap_stack;
    size_t *marks; /* indices into stack */
    size_t n_marks, cap_marks;
    uint64_t *memo; /* kind << 56 | payload */
    size_t n_memo, cap_memo;
    struct slot *slots;
    size_t n_slots, cap_slots;
    uint32_t free_slot; /* slot + 1 */
    char **texts;
    size_t n_texts, cap_texts;
    struct mp_pickle_value top;
    uint64_t op_offset;
    int op;
};

static const struct {
    uint8_t code;
    const char *name;
} refused[] = {
    {'c', "GLOBAL"},
    {'R', "REDUCE"},
    {'b', "BUILD"},
    {'i', "INST"},
    {'o', "OBJ"},
    {0x81, "NEWOBJ"},
    {0x92, "NEWOBJ_EX"},
    {0x93, "STACK_GLOBAL"},
    {0x82, "EXT1"},
    {0x83, "EXT2"},
    {0x84, "EXT4"},
    {'P', "PERSID"},
    {'Q', "BINPERSID"},
    {'0', "POP"},
    {'1', "POP_MARK"},
    {'2', "DUP"},
    {'B', "BINBYTES"},
    {'C', "SHORT_BINBYTES"},
    {0x8e, "BINBYTES8"},
    {0x8f, "EMPTY_SET"},
    {0x90, "ADDITEMS"},
    {0x91, "FROZENSET"},
    {0x96, "BYTEARRAY8"},
    {0x97, "NEXT_BUFFER"},
    {0x98, "READONLY_BUFFER"},
    {0x8b, "LONG4"},
    {'I', "INT"},
    {'L', "LONG"},
    {'F', "FLOAT"},
    {'S', "STRING"},
    {'T', "BINSTRING"},
    {'U', "SHORT_BINSTRING"},
    {'V', "UNICODE"},
    {'d', "DICT"},
    {'l', "LIST"},
    {'g', "GET"},
    {'p', "PUT"},
};

static bool fail(struct mp_pickle *p, const char *what)
{
    if (!p->source->failed)
        mp_error_set(p->err, MEMPLAN_STATUS_INPUT, "%s: byte %" PRIu64 ": opcode 0x%02x: %s",
                     p->source->origin, p->op_offset, (unsigned)p->op, what);
    return false;
}

static bool out_of_memory(struct mp_pickle *p)
{
    mp_error_set(p->err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", p->source->origin);
    return false;
}

static bool refuse(struct mp_pickle *p)
{
    const char *name = "unknown opcode";
    for (size_t i = 0; i < MP_ARRAY_LEN(refused); i++) {
        if (refused[i].code == p->op)
            name = refused[i].name;
    }
    mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                 "%s: byte %" PRIu64 ": %s (0x%02x) is refused: memory snapshots hold plain data "
                 "and nothing in a file is executed; write it with "
                 "torch.cuda.memory._dump_snapshot()",
                 p->source->origin, p->op_offset, name, (unsigned)p->op);
    return false;
}

static bool grow(struct mp_pickle *p, void **items, size_t n, size_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    const size_t grown = *cap ? *cap * 2 : 64;
    void *items_grown = grown > SIZE_MAX / size ? NULL : mp_realloc(*items, grown * size);
    if (!items_grown)
        return out_of_memory(p);
    *items = items_grown;
    *cap = grown;
    return true;
}

/* ---- stack ---- */

static bool push(struct mp_pickle *p, struct mp_pickle_value value)
{
    if (p->n_stack == MAX_STACK)
        return fail(p, "more values at once than a snapshot has");
    void *items = p->stack;
    if (!grow(p, &items, p->n_stack, &p->cap_stack, sizeof(value)))
        return false;
    p->stack = items;
    p->stack[p->n_stack++] = value;
    return true;
}

static bool push_int(struct mp_pickle *p, int64_t integer)
{
    return push(p, (struct mp_pickle_value){.kind = MP_PICKLE_INT, .as.integer = integer});
}

static bool push_mark(struct mp_pickle *p)
{
    void *items = p->marks;
    if (p->n_marks == MAX_DEPTH)
        return fail(p, "nested too deeply");
    if (!grow(p, &items, p->n_marks, &p->cap_marks, sizeof(*p->marks)))
        return false;
    p->marks = items;
    p->marks[p->n_marks++] = p->n_stack;
    return true;
}

/* Values above the last mark start here; no mark may be in the way of what an opcode takes without
 * one. */
static size_t floor_of(const struct mp_pickle *p)
{
    return p->n_marks ? p->marks[p->n_marks - 1] : 0;
}

/* ---- containers ---- */

static struct slot *slot_of(const struct mp_pickle *p, struct mp_pickle_value value)
{
    if (value.kind != MP_PICKLE_DICT && value.kind != MP_PICKLE_LIST)
        return NULL;
    struct slot *s = &p->slots[value.as.ref & SLOT_MASK];
    const bool current = s->used && s->generation == value.as.ref >> SLOT_BITS;
    return current && s->is_list == (value.kind == MP_PICKLE_LIST) ? s : NULL;
}

static bool push_container(struct mp_pickle *p, bool is_list)
{
    if (!p->free_slot) {
        void *items = p->slots;
        if (p->n_slots == SLOT_MASK)
            return fail(p, "too many containers at once");
        if (!grow(p, &items, p->n_slots, &p->cap_slots, sizeof(*p->slots)))
            return false;
        p->slots = items;
        p->slots[p->n_slots++] = (struct slot){0};
        p->free_slot = (uint32_t)p->n_slots;
    }
    const uint32_t index = p->free_slot - 1;
    struct slot *s = &p->slots[index];
    p->free_slot = s->next_free;
    const uint32_t generation = (s->generation + 1) & 0xffffff;
    if (is_list)
        s->as.list = (struct mp_pickle_list){0};
    else
        s->as.dict.n = 0;
    s->generation = generation;
    s->depth = 1;
    s->used = true;
    s->is_list = is_list;
    return push(p, (struct mp_pickle_value){.kind = is_list ? MP_PICKLE_LIST : MP_PICKLE_DICT,
                                            .as.ref = (uint64_t)generation << SLOT_BITS | index});
}

/* Forget a value and what it holds. A container filled after it was placed can be deeper than
   place_depth saw: what lies below MAX_DEPTH stays until the end. */
static void drop_below(struct mp_pickle *p, struct mp_pickle_value value, unsigned level)
{
    struct slot *s = slot_of(p, value);
    if (!s || level > MAX_DEPTH)
        return;
    s->used = false;
    if (s->is_list) {
        for (size_t i = 0; i < s->as.list.n_lists; i++)
            drop_below(p, s->as.list.lists[i], level + 1);
        free(s->as.list.lists);
    } else {
        for (uint32_t i = 0; i < s->as.dict.n; i++)
            drop_below(p, s->as.dict.values[i], level + 1);
    }
    s->next_free = p->free_slot;
    p->free_slot = (uint32_t)(value.as.ref & SLOT_MASK) + 1;
}

static void drop(struct mp_pickle *p, struct mp_pickle_value value)
{
    drop_below(p, value, 0);
}

/* The depth that parent gets by holding value; false when it is too much (or parent holds itself).
 */
static bool place_depth(struct mp_pickle *p, struct slot *parent, struct mp_pickle_value value)
{
    const struct slot *s = slot_of(p, value);
    if (s == parent)
        return fail(p, "a container inside itself");
    if (s && s->depth >= parent->depth)
        parent->depth = (uint8_t)(s->depth + 1);
    return parent->depth < MAX_DEPTH || fail(p, "nested too deeply");
}

static bool set_item(struct mp_pickle *p, struct mp_pickle_value container,
                     struct mp_pickle_value key, struct mp_pickle_value value)
{
    struct slot *s = slot_of(p, container);
    if (!s || s->is_list)
        return container.kind == MP_PICKLE_DICT || fail(p, "needs a dictionary");
    if (key.kind != MP_PICKLE_WORD || key.as.ref == MP_PICKLE_OTHER_WORD) {
        drop(p, value);
        return true;
    }
    struct mp_pickle_dict *dict = &s->as.dict;
    uint32_t i = 0;
    while (i < dict->n && dict->keys[i] != key.as.ref)
        i++;
    if (i == MP_PICKLE_MAX_KEYS)
        return fail(p, "a dictionary that mixes everything");
    if (i < dict->n)
        return fail(p, "a key given twice");
    if (!place_depth(p, s, value))
        return false;
    dict->n++;
    dict->keys[i] = (uint32_t)key.as.ref;
    dict->values[i] = value;
    return true;
}

/* A dictionary goes into a list: the caller takes it or it is passed over. */
static bool offer(struct mp_pickle *p, struct mp_pickle_list *list, struct mp_pickle_value value)
{
    const struct slot *s = slot_of(p, value);
    uint64_t index = 0;
    const int kind =
        s && s->as.dict.n ? p->reader->take(p->reader->context, p, &s->as.dict, &index) : 0;
    drop(p, value);
    if (kind < 0)
        return out_of_memory(p);
    if (kind == 0)
        return true;
    if (list->count == 0) {
        list->taken_kind = kind;
        list->first = index;
    }
    if (list->taken_kind != kind || list->first + list->count != index)
        return fail(p, "a list of different things");
    list->count++;
    return true;
}

static bool append(struct mp_pickle *p, struct mp_pickle_value container,
                   struct mp_pickle_value value)
{
    struct slot *s = slot_of(p, container);
    if (!s || !s->is_list)
        return container.kind == MP_PICKLE_LIST || fail(p, "needs a list");
    if (value.kind == MP_PICKLE_DICT)
        return offer(p, &s->as.list, value);
    if (value.kind != MP_PICKLE_LIST)
        return true;
    if (!place_depth(p, s, value))
        return false;
    struct mp_pickle_list *list = &s->as.list;
    void *items = list->lists;
    if (!grow(p, &items, list->n_lists, &list->cap_lists, sizeof(value)))
        return false;
    list->lists = items;
    list->lists[list->n_lists++] = value;
    return true;
}

/* ---- memo ---- */

static uint64_t pack(struct mp_pickle_value value)
{
    switch (value.kind) {
    case MP_PICKLE_WORD:
    case MP_PICKLE_TEXT:
    case MP_PICKLE_DICT:
    case MP_PICKLE_LIST: return (uint64_t)value.kind << 56 | value.as.ref;
    case MP_PICKLE_PAIR: return (uint64_t)value.kind << 56 | (uint64_t)value.as.integer;
    default: return (uint64_t)MP_PICKLE_OPAQUE << 56;
    }
}

static struct mp_pickle_value unpack(uint64_t packed)
{
    struct mp_pickle_value value = {.kind = (enum mp_pickle_kind)(packed >> 56)};
    const uint64_t payload = packed & ((UINT64_C(1) << 56) - 1);
    if (value.kind == MP_PICKLE_PAIR)
        value.as.integer = (int64_t)payload;
    else
        value.as.ref = payload;
    return value;
}

static bool put(struct mp_pickle *p, uint64_t index)
{
    if (p->n_stack == floor_of(p))
        return fail(p, "nothing to memoise");
    if (index > p->n_memo)
        return fail(p, "memo numbers out of order");
    if (index == p->n_memo) {
        void *items = p->memo;
        if (!grow(p, &items, p->n_memo, &p->cap_memo, sizeof(*p->memo)))
            return false;
        p->memo = items;
        p->n_memo++;
    }
    p->memo[index] = pack(p->stack[p->n_stack - 1]);
    return true;
}

static bool get(struct mp_pickle *p, uint64_t index)
{
    if (index >= p->n_memo)
        return fail(p, "refers to nothing");
    struct mp_pickle_value value = unpack(p->memo[index]);
    if ((value.kind == MP_PICKLE_DICT || value.kind == MP_PICKLE_LIST) && !slot_of(p, value))
        value.kind = MP_PICKLE_OPAQUE;
    return push(p, value);
}

/* ---- strings and numbers ---- */

static bool take_bytes(struct mp_pickle *p, void *out, uint64_t n)
{
    return mp_source_take(p->source, out, n) || fail(p, "the file ends inside it");
}

static bool take_uint(struct mp_pickle *p, unsigned bytes, uint64_t *value)
{
    uint8_t raw[8];
    if (!take_bytes(p, raw, bytes))
        return false;
    *value = 0;
    for (unsigned i = bytes; i-- > 0;)
        *value = *value << 8 | raw[i];
    return true;
}

static bool keep_text(struct mp_pickle *p, uint64_t length)
{
    if (length > MAX_TEXT_BYTES)
        return fail(p, "settings longer than 64 KiB");
    void *items = p->texts;
    if (!grow(p, &items, p->n_texts, &p->cap_texts, sizeof(char *)))
        return false;
    p->texts = items;
    char *text = mp_malloc((size_t)length + 1);
    if (!text)
        return out_of_memory(p);
    text[length] = '\0';
    p->texts[p->n_texts] = text;
    const uint64_t index = p->n_texts++;
    return take_bytes(p, text, length) &&
           push(p, (struct mp_pickle_value){.kind = MP_PICKLE_TEXT, .as.ref = index});
}

/* Is the value below the key whose text is wanted? */
static bool text_is_wanted(const struct mp_pickle *p)
{
    if (p->n_stack == floor_of(p))
        return false;
    const struct mp_pickle_value *last = &p->stack[p->n_stack - 1];
    return last->kind == MP_PICKLE_WORD && last->as.ref == p->reader->text_word;
}

static bool read_string(struct mp_pickle *p, unsigned length_bytes)
{
    uint64_t length = 0;
    if (!take_uint(p, length_bytes, &length))
        return false;
    if (text_is_wanted(p))
        return keep_text(p, length);
    struct mp_pickle_value value = {.kind = MP_PICKLE_WORD, .as.ref = MP_PICKLE_OTHER_WORD};
    if (length > MAX_WORD_BYTES)
        return take_bytes(p, NULL, length) && push(p, value);
    char word[MAX_WORD_BYTES];
    if (!take_bytes(p, word, length))
        return false;
    for (uint32_t i = 0; i < p->reader->n_words; i++) {
        const char *known = p->reader->words[i];
        if (strlen(known) == length && memcmp(known, word, (size_t)length) == 0) {
            value.as.ref = i;
            break;
        }
    }
    return push(p, value);
}

static bool read_int(struct mp_pickle *p, unsigned bytes)
{
    uint64_t value = 0;
    if (!take_uint(p, bytes, &value))
        return false;
    return push_int(p, bytes == 4 ? (int32_t)(uint32_t)value : (int64_t)value);
}

/* LONG1: two's complement, least byte first, any length up to 255 */
static bool read_long(struct mp_pickle *p)
{
    uint64_t length = 0;
    uint8_t raw[255];
    if (!take_uint(p, 1, &length) || !take_bytes(p, raw, length))
        return false;
    const bool negative = length > 0 && raw[length - 1] & 0x80;
    uint64_t value = negative ? UINT64_MAX : 0;
    bool fits = true;
    for (uint64_t i = length; i-- > 0;) {
        fits &= i < 8 || raw[i] == (negative ? 0xff : 0);
        value = value << 8 | raw[i];
    }
    if (!fits || (value >> 63 != 0) != negative)
        return push(p, (struct mp_pickle_value){.kind = MP_PICKLE_OPAQUE});
    return push_int(p, (int64_t)value);
}

/* BINFLOAT: IEEE 754, greatest byte first */
static bool read_float(struct mp_pickle *p)
{
    uint8_t raw[8];
    if (!take_bytes(p, raw, sizeof(raw)))
        return false;
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(raw); i++)
        bits = bits << 8 | raw[i];
    struct mp_pickle_value value = {.kind = MP_PICKLE_FLOAT};
    memcpy(&value.as.real, &bits, sizeof(bits));
    return push(p, value);
}

static bool make_tuple(struct mp_pickle *p, size_t n)
{
    if (p->n_stack - floor_of(p) < n)
        return fail(p, "the stack is too short");
    struct mp_pickle_value value = {.kind = MP_PICKLE_OPAQUE};
    if (n == 0)
        return push(p, value);
    const struct mp_pickle_value *v = &p->stack[p->n_stack - n];
    if (n == 2 && v[0].kind == MP_PICKLE_INT && v[1].kind == MP_PICKLE_INT &&
        v[0].as.integer >= 0 && v[1].as.integer >= 0 && v[0].as.integer < PAIR_LIMIT &&
        v[1].as.integer < PAIR_LIMIT) {
        value.kind = MP_PICKLE_PAIR;
        value.as.integer = v[0].as.integer << PAIR_BITS | v[1].as.integer;
    }
    for (size_t i = 0; i < n; i++)
        drop(p, v[i]);
    p->n_stack -= n;
    return push(p, value);
}

/* ---- opcodes that take everything above the mark ---- */

static bool pop_mark(struct mp_pickle *p, size_t *from)
{
    if (!p->n_marks)
        return fail(p, "no mark");
    *from = p->marks[--p->n_marks];
    return true;
}

static bool set_items(struct mp_pickle *p, size_t from)
{
    if (from == floor_of(p) || (p->n_stack - from) % 2)
        return fail(p, "keys and values do not pair");
    for (size_t i = from; i < p->n_stack; i += 2) {
        if (!set_item(p, p->stack[from - 1], p->stack[i], p->stack[i + 1]))
            return false;
    }
    p->n_stack = from;
    return true;
}

static bool append_items(struct mp_pickle *p, size_t from)
{
    if (from == floor_of(p))
        return fail(p, "no list");
    for (size_t i = from; i < p->n_stack; i++) {
        if (!append(p, p->stack[from - 1], p->stack[i]))
            return false;
    }
    p->n_stack = from;
    return true;
}

static bool take_marked(struct mp_pickle *p)
{
    size_t from = 0;
    if (!pop_mark(p, &from))
        return false;
    switch (p->op) {
    case 'u': return set_items(p, from);
    case 'e': return append_items(p, from);
    default: /* TUPLE */ return make_tuple(p, p->n_stack - from);
    }
}

static bool take_last(struct mp_pickle *p, size_t n)
{
    if (p->n_stack - floor_of(p) < n + 1)
        return fail(p, "the stack is too short");
    const size_t from = p->n_stack - n;
    return n == 2 ? set_items(p, from) : append_items(p, from);
}

static bool check_protocol(struct mp_pickle *p)
{
    uint64_t protocol = 0;
    if (!take_uint(p, 1, &protocol))
        return false;
    return (protocol >= 2 && protocol <= 5) || fail(p, "protocol is not 2 to 5");
}

static bool put_numbered(struct mp_pickle *p, unsigned bytes)
{
    uint64_t index = 0;
    return take_uint(p, bytes, &index) && put(p, index);
}

static bool get_numbered(struct mp_pickle *p, unsigned bytes)
{
    uint64_t index = 0;
    return take_uint(p, bytes, &index) && get(p, index);
}

static bool run_op(struct mp_pickle *p)
{
    switch (p->op) {
    case 0x80: /* PROTO */ return check_protocol(p);
    case 0x95: /* FRAME: its length only helps readers that buffer */ return take_bytes(p, NULL, 8);
    case '}': /* EMPTY_DICT */
    case ']': /* EMPTY_LIST */ return push_container(p, p->op == ']');
    case '(': /* MARK */ return push_mark(p);
    case 'u': /* SETITEMS */
    case 'e': /* APPENDS */
    case 't': /* TUPLE */ return take_marked(p);
    case 's': /* SETITEM */ return take_last(p, 2);
    case 'a': /* APPEND */ return take_last(p, 1);
    case ')': /* EMPTY_TUPLE */ return make_tuple(p, 0);
    case 0x85: /* TUPLE1 TUPLE2 TUPLE3 */
    case 0x86:
    case 0x87: return make_tuple(p, (size_t)(p->op - 0x84));
    case 0x94: /* MEMOIZE */ return put(p, p->n_memo);
    case 'q': /* BINPUT */ return put_numbered(p, 1);
    case 'r': /* LONG_BINPUT */ return put_numbered(p, 4);
    case 'h': /* BINGET */ return get_numbered(p, 1);
    case 'j': /* LONG_BINGET */ return get_numbered(p, 4);
    case 0x8c: /* SHORT_BINUNICODE */ return read_string(p, 1);
    case 'X': /* BINUNICODE */ return read_string(p, 4);
    case 0x8d: /* BINUNICODE8 */ return read_string(p, 8);
    case 'K': /* BININT1 */ return read_int(p, 1);
    case 'M': /* BININT2 */ return read_int(p, 2);
    case 'J': /* BININT */ return read_int(p, 4);
    case 0x8a: /* LONG1 */ return read_long(p);
    case 'G': /* BINFLOAT */ return read_float(p);
    case 'N': /* NONE */ return push(p, (struct mp_pickle_value){.kind = MP_PICKLE_NONE});
    case 0x88: /* NEWTRUE NEWFALSE */
    case 0x89:
        return push(p,
                    (struct mp_pickle_value){.kind = MP_PICKLE_BOOL, .as.integer = p->op == 0x88});
    default: return refuse(p);
    }
}

static bool run(struct mp_pickle *p)
{
    for (;;) {
        p->op_offset = mp_source_offset(p->source);
        p->op = mp_source_byte(p->source);
        if (p->op < 0) {
            if (!p->source->failed)
                mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                             "%s: byte %" PRIu64 ": the file ends before the pickle does",
                             p->source->origin, p->op_offset);
            return false;
        }
        if (p->op == '.') { /* STOP */
            if (p->n_stack != 1 || p->n_marks)
                return fail(p, "one value should be left");
            p->top = p->stack[0];
            return true;
        }
        if (!run_op(p))
            return false;
    }
}

struct mp_pickle *mp_pickle_read(const struct mp_pickle_reader *reader, struct mp_source *source,
                                 struct memplan_error *err)
{
    struct mp_pickle *p = mp_malloc(sizeof(*p));
    if (!p) {
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", source->origin);
        return NULL;
    }
    *p = (struct mp_pickle){.reader = reader, .source = source, .err = err};
    if (run(p))
        return p;
    mp_pickle_free(p);
    return NULL;
}

void mp_pickle_free(struct mp_pickle *p)
{
    if (!p)
        return;
    for (size_t i = 0; i < p->n_slots; i++) {
        if (p->slots[i].used && p->slots[i].is_list)
            free(p->slots[i].as.list.lists);
    }
    for (size_t i = 0; i < p->n_texts; i++)
        free(p->texts[i]);
    free(p->texts);
    free(p->slots);
    free(p->memo);
    free(p->marks);
    free(p->stack);
    free(p);
}

struct mp_pickle_value mp_pickle_top(const struct mp_pickle *p)
{
    return p->top;
}

const struct mp_pickle_dict *mp_pickle_dict(const struct mp_pickle *p, struct mp_pickle_value value)
{
    const struct slot *s = slot_of(p, value);
    return s && !s->is_list ? &s->as.dict : NULL;
}

const struct mp_pickle_list *mp_pickle_list(const struct mp_pickle *p, struct mp_pickle_value value)
{
    const struct slot *s = slot_of(p, value);
    return s && s->is_list ? &s->as.list : NULL;
}

const char *mp_pickle_text(const struct mp_pickle *p, struct mp_pickle_value value)
{
    return value.kind == MP_PICKLE_TEXT ? p->texts[value.as.ref] : NULL;
}

struct mp_pickle_value mp_pickle_get(const struct mp_pickle_dict *dict, uint32_t word)
{
    for (uint32_t i = 0; dict && i < dict->n; i++) {
        if (dict->keys[i] == word)
            return dict->values[i];
    }
    return (struct mp_pickle_value){.kind = MP_PICKLE_OPAQUE};
}
