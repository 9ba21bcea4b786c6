/* SPDX-License-Identifier: MIT */
/*
 * YAML from libyaml's events.
 *
 * Values are built on the way; the items of unfinished lists and objects wait on one stack and move
 * to the arena when their collection ends. An alias shares the value of its anchor, so a "billion
 * laughs" file costs no memory here, but whoever walks the tree would pay: nodes and depth count as
 * if aliases were written out.
 *
 * libyaml refuses some JSON (surrogate pairs, a tab before the first bracket), so a text that is
 * JSON is read as JSON.
 */
#include "base/yaml.h"

#include <yaml.h>

#include "base/json.h"
#include "base/units.h"

enum { max_anchors = 256 };

/* A value with its cost when written out. */
struct node {
    const struct mp_value *value; /* NULL: failed, *err is filled in */
    size_t n_nodes;
    int depth; /* 1 for a scalar */
};

struct anchor {
    char *name; /* in the arena */
    struct node node;
};

struct reader {
    yaml_parser_t parser;
    struct mp_arena *arena;
    const char *origin;
    struct memplan_error *err;
    struct mp_member *pending; /* of collections not yet ended; items of lists have no key */
    size_t n_pending, capacity;
    struct anchor anchors[max_anchors];
    size_t n_anchors;
};

static const struct node failed = {NULL, 0, 0};

static int line_of(yaml_mark_t mark)
{
    return (int)mark.line + 1;
}

static int column_of(yaml_mark_t mark)
{
    return (int)mark.column + 1;
}

static struct node refuse(const struct reader *r, yaml_mark_t mark, const char *format, ...)
    MP_PRINTF(3, 4);

static struct node refuse(const struct reader *r, yaml_mark_t mark, const char *format, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof(text), format, ap);
    va_end(ap);
    mp_error_set(r->err, MEMPLAN_STATUS_INPUT, "%s:%d:%d: %s", r->origin, line_of(mark),
                 column_of(mark), text);
    return failed;
}

static struct node out_of_memory(const struct reader *r)
{
    mp_error_set(r->err, MEMPLAN_STATUS_NOMEM, "out of memory reading %s", r->origin);
    return failed;
}

/* libyaml's own complaint. A broken encoding has an offset in bytes only. */
static void parser_failed(const struct reader *r)
{
    const yaml_parser_t *const p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR)
        out_of_memory(r);
    else if (p->error == YAML_READER_ERROR)
        mp_error_set(r->err, MEMPLAN_STATUS_INPUT, "%s: %s at byte %zu", r->origin, p->problem,
                     p->problem_offset);
    else
        refuse(r, p->problem_mark, "%s%s%s", p->problem ? p->problem : "not valid YAML",
               p->context ? " " : "", p->context ? p->context : "");
}

static bool next_event(struct reader *r, yaml_event_t *event)
{
    if (!mp_alloc_permitted()) {
        out_of_memory(r);
        return false;
    }
    if (yaml_parser_parse(&r->parser, event))
        return true;
    parser_failed(r);
    return false;
}

static bool is_one_of(const char *text, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(text, words[i]) == 0)
            return true;
    return false;
}

static bool radix_digits(const char *digits, int radix)
{
    static const char all[] = "0123456789abcdefABCDEF";
    const size_t n = strspn(digits, radix == 8 ? "01234567" : all);
    return n > 0 && digits[n] == '\0';
}

static const char *const too_large = "is not finite or too long";

/* 017: YAML 1.1 (PyYAML) reads 15, YAML 1.2 reads 17. */
static bool is_ambiguous(const char *text)
{
    text += text[0] == '-' || text[0] == '+';
    return text[0] == '0' && text[1] != '\0' && text[strspn(text, "0123456789")] == '\0';
}

/* 0o17 and 0x1F. False with *refused, the reason, when the digits are right but too many. */
static bool radix_integer(const char *text, int64_t *integer, const char **refused)
{
    if (text[0] != '0' || (text[1] != 'o' && text[1] != 'x'))
        return false;
    const int radix = text[1] == 'o' ? 8 : 16;
    const char *const digits = text + 2;
    if (!radix_digits(digits, radix))
        return false;
    uint64_t sum = 0;
    for (const char *c = digits; *c; c++) {
        const char digit[2] = {*c, '\0'};
        const uint64_t value = strtoul(digit, NULL, radix);
        if (!mp_mul_u64(sum, (uint64_t)radix, &sum) || !mp_add_u64(sum, value, &sum) ||
            sum > INT64_MAX) {
            *refused = too_large;
            return false;
        }
    }
    *integer = (int64_t)sum;
    return true;
}

/*
 * The YAML 1.2 core schema for a plain scalar. False with *refused, the reason, for a number that
 * we do not take.
 */
static bool resolve_plain(const char *text, size_t length, struct mp_value *value, const char **refused)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    static const char *const trues[] = {"true", "True", "TRUE"};
    static const char *const falses[] = {"false", "False", "FALSE"};
    static const char *const not_finite[] = {".nan",  ".NaN",  ".NAN",  ".inf",  ".Inf",  ".INF",
                                             "+.inf", "+.Inf", "+.INF", "-.inf", "-.Inf", "-.INF"};
    *refused = NULL;
    if (is_ambiguous(text)) {
        *refused = "could be octal (YAML 1.1) or decimal (YAML 1.2); write it without the leading zero, as 0o17, or in quotes";
        return false;
    }
    if (is_one_of(text, nulls, MP_ARRAY_LEN(nulls))) {
        value->kind = MP_NULL;
        return true;
    }
    const bool is_true = is_one_of(text, trues, MP_ARRAY_LEN(trues));
    if (is_true || is_one_of(text, falses, MP_ARRAY_LEN(falses))) {
        value->kind = MP_BOOLEAN;
        value->as.boolean = is_true;
        return true;
    }
    if (mp_integer_parse(text, false, &value->as.integer, NULL) == MEMPLAN_STATUS_OK ||
        radix_integer(text, &value->as.integer, refused)) {
        value->kind = MP_INT;
        return true;
    }
    switch (mp_double_parse(text, length, &value->as.number)) {
    case MEMPLAN_STATUS_OK: value->kind = MP_DOUBLE; return true;
    case MEMPLAN_STATUS_RANGE: *refused = too_large; return false;
    default: break;
    }
    if (is_one_of(text, not_finite, MP_ARRAY_LEN(not_finite)))
        *refused = too_large;
    return false;
}

static struct mp_value *new_value(struct reader *r, yaml_mark_t mark, enum mp_value_kind kind)
{
    struct mp_value *const value = mp_arena_alloc(r->arena, sizeof(*value));
    if (!value) {
        out_of_memory(r);
        return NULL;
    }
    value->kind = kind;
    value->line = line_of(mark);
    value->column = column_of(mark);
    return value;
}

/* The text of a scalar event without tag and inner NUL, or NULL. */
static const char *scalar_text(const struct reader *r, const yaml_event_t *event)
{
    const char *const text = (const char *)event->data.scalar.value;
    if (event->data.scalar.tag) {
        refuse(r, event->start_mark, "tag '%s' is not supported; write the plain value",
               (const char *)event->data.scalar.tag);
        return NULL;
    }
    if (strlen(text) != event->data.scalar.length) {
        refuse(r, event->start_mark, "a NUL character is not allowed in a string");
        return NULL;
    }
    return text;
}

static struct node read_scalar(struct reader *r, const yaml_event_t *event)
{
    const char *const text = scalar_text(r, event);
    if (!text)
        return failed;
    const size_t length = event->data.scalar.length;
    struct mp_value *const value = new_value(r, event->start_mark, MP_STRING);
    if (!value)
        return failed;
    const char *refused = NULL;
    if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
        resolve_plain(text, length, value, &refused))
        return (struct node){value, 1, 1};
    if (refused)
        return refuse(r, event->start_mark, "number %s %s", text, refused);
    value->as.string.text = mp_arena_strdup(r->arena, text);
    value->as.string.length = length;
    return value->as.string.text ? (struct node){value, 1, 1} : out_of_memory(r);
}

static struct node read_alias(const struct reader *r, const yaml_event_t *event)
{
    const char *const name = (const char *)event->data.alias.anchor;
    for (size_t i = r->n_anchors; i-- > 0;)
        if (strcmp(r->anchors[i].name, name) == 0)
            return r->anchors[i].node;
    return refuse(r, event->start_mark, "alias '*%s' has no finished anchor '&%s' before it", name,
                  name);
}

static bool remember_anchor(struct reader *r, const yaml_char_t *name, yaml_mark_t mark,
                            struct node node)
{
    if (r->n_anchors == max_anchors) {
        refuse(r, mark, "more than %d anchors", max_anchors);
        return false;
    }
    char *const copy = mp_arena_strdup(r->arena, (const char *)name);
    if (!copy) {
        out_of_memory(r);
        return false;
    }
    r->anchors[r->n_anchors++] = (struct anchor){copy, node};
    return true;
}

static bool push_pending(struct reader *r, struct mp_member member)
{
    if (r->n_pending == r->capacity) {
        const size_t capacity = r->capacity ? r->capacity * 2 : 64;
        struct mp_member *const pending = mp_realloc(r->pending, capacity * sizeof(*pending));
        if (!pending) {
            out_of_memory(r);
            return false;
        }
        r->pending = pending;
        r->capacity = capacity;
    }
    r->pending[r->n_pending++] = member;
    return true;
}

static struct node read_node(struct reader *r, const yaml_event_t *event, int level);

/* Adds the cost of one more node inside a collection; false when the whole grows too large. */
static bool add_cost(const struct reader *r, yaml_mark_t mark, struct node *sum, struct node node,
                     int level)
{
    sum->n_nodes += node.n_nodes;
    sum->depth = MP_MAX(sum->depth, node.depth + 1);
    if (sum->n_nodes > MP_YAML_MAX_NODES) {
        refuse(r, mark, "more than %d values, aliases written out", MP_YAML_MAX_NODES);
        return false;
    }
    if (level + node.depth > MP_YAML_MAX_DEPTH + 1) {
        refuse(r, mark, "nested deeper than %d levels", MP_YAML_MAX_DEPTH);
        return false;
    }
    return true;
}

/* One event's node; the event is released. */
static struct node read_item(struct reader *r, yaml_event_t *event, struct node *sum, int level)
{
    const yaml_mark_t mark = event->start_mark;
    struct node node = read_node(r, event, level + 1);
    yaml_event_delete(event);
    if (node.value && !add_cost(r, mark, sum, node, level))
        node = failed;
    return node;
}

static struct node read_list(struct reader *r, const yaml_event_t *start, int level)
{
    const size_t first = r->n_pending;
    struct mp_value *const value = new_value(r, start->start_mark, MP_ARRAY);
    struct node sum = {value, 1, 1};
    yaml_event_t event;
    if (!value)
        return failed;
    for (;;) {
        if (!next_event(r, &event))
            return failed;
        if (event.type == YAML_SEQUENCE_END_EVENT) {
            yaml_event_delete(&event);
            break;
        }
        const struct node item = read_item(r, &event, &sum, level);
        if (!item.value || !push_pending(r, (struct mp_member){.value = item.value}))
            return failed;
    }
    const size_t n = r->n_pending - first;
    const struct mp_value **const items = mp_arena_calloc(r->arena, n, sizeof(*items));
    if (!items)
        return out_of_memory(r);
    for (size_t i = 0; i < n; i++)
        items[i] = r->pending[first + i].value;
    r->n_pending = first;
    value->as.array.items = items;
    value->as.array.length = n;
    return sum;
}

/* The key in *member; the event is released. */
static bool read_key(struct reader *r, yaml_event_t *event, struct mp_member *member)
{
    const yaml_mark_t mark = event->start_mark;
    const char *text = NULL;
    if (event->type != YAML_SCALAR_EVENT)
        refuse(r, mark, "a key must be a plain word");
    else if (event->data.scalar.anchor)
        refuse(r, mark, "a key cannot have an anchor");
    else
        text = scalar_text(r, event);
    if (text && strcmp(text, "<<") == 0 && event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        refuse(r, mark, "merge keys ('<<') are not supported; repeat the keys");
        text = NULL;
    }
    const bool taken = text != NULL;
    *member = (struct mp_member){.line = line_of(mark), .column = column_of(mark)};
    if (taken) {
        member->key = mp_arena_strdup(r->arena, text);
        if (!member->key)
            out_of_memory(r);
    }
    yaml_event_delete(event);
    return member->key != NULL;
}

static bool check_keys(const struct reader *r, const struct mp_member *members, size_t n)
{
    const struct mp_member *repeated = NULL;
    if (mp_members_find_repeated(members, n, &repeated) != MEMPLAN_STATUS_OK) {
        out_of_memory(r);
        return false;
    }
    if (!repeated)
        return true;
    mp_error_set(r->err, MEMPLAN_STATUS_INPUT, "%s:%d:%d: key '%s' is given twice", r->origin,
                 repeated->line, repeated->column, repeated->key);
    return false;
}

static struct node read_object(struct reader *r, const yaml_event_t *start, int level)
{
    const size_t first = r->n_pending;
    struct mp_value *const value = new_value(r, start->start_mark, MP_OBJECT);
    struct node sum = {value, 1, 1};
    yaml_event_t event;
    if (!value)
        return failed;
    for (;;) {
        struct mp_member member;
        if (!next_event(r, &event))
            return failed;
        if (event.type == YAML_MAPPING_END_EVENT) {
            yaml_event_delete(&event);
            break;
        }
        if (!read_key(r, &event, &member) || !next_event(r, &event))
            return failed;
        member.value = read_item(r, &event, &sum, level).value;
        if (!member.value || !push_pending(r, member))
            return failed;
    }
    const size_t n = r->n_pending - first;
    struct mp_member *const members = mp_arena_calloc(r->arena, n, sizeof(*members));
    if (!members)
        return out_of_memory(r);
    if (n > 0)
        memcpy(members, r->pending + first, n * sizeof(*members));
    r->n_pending = first;
    if (!check_keys(r, members, n))
        return failed;
    value->as.object.members = members;
    value->as.object.length = n;
    return sum;
}

static struct node read_collection(struct reader *r, const yaml_event_t *event, int level)
{
    const bool list = event->type == YAML_SEQUENCE_START_EVENT;
    const yaml_char_t *const tag =
        list ? event->data.sequence_start.tag : event->data.mapping_start.tag;
    if (tag)
        return refuse(r, event->start_mark, "tag '%s' is not supported; write the plain value",
                      (const char *)tag);
    if (level > MP_YAML_MAX_DEPTH)
        return refuse(r, event->start_mark, "nested deeper than %d levels", MP_YAML_MAX_DEPTH);
    return list ? read_list(r, event, level) : read_object(r, event, level);
}

/* level counts the collections around and including the node: 1 for the top. */
static struct node read_node(struct reader *r, const yaml_event_t *event, int level)
{
    struct node node = failed;
    const yaml_char_t *anchor = NULL;
    switch (event->type) {
    case YAML_ALIAS_EVENT: return read_alias(r, event);
    case YAML_SCALAR_EVENT:
        anchor = event->data.scalar.anchor;
        node = read_scalar(r, event);
        break;
    case YAML_SEQUENCE_START_EVENT:
        anchor = event->data.sequence_start.anchor;
        node = read_collection(r, event, level);
        break;
    case YAML_MAPPING_START_EVENT:
        anchor = event->data.mapping_start.anchor;
        node = read_collection(r, event, level);
        break;
    default: return refuse(r, event->start_mark, "expected a value");
    }
    if (node.value && anchor && !remember_anchor(r, anchor, event->start_mark, node))
        return failed;
    return node;
}

/* The next event, which must be of that type; it is released. */
static bool expect(struct reader *r, yaml_event_type_t type, const char *problem)
{
    yaml_event_t event;
    if (!next_event(r, &event))
        return false;
    const bool as_expected = event.type == type;
    if (!as_expected)
        refuse(r, event.start_mark, "%s", problem);
    yaml_event_delete(&event);
    return as_expected;
}

static const struct mp_value *read_stream(struct reader *r)
{
    yaml_event_t event;
    if (!expect(r, YAML_STREAM_START_EVENT, "not a YAML stream") ||
        !expect(r, YAML_DOCUMENT_START_EVENT, "there is nothing in it") || !next_event(r, &event))
        return NULL;
    const struct node node = read_node(r, &event, 1);
    yaml_event_delete(&event);
    if (!node.value || !expect(r, YAML_DOCUMENT_END_EVENT, "expected the end of the document") ||
        !expect(r, YAML_STREAM_END_EVENT, "a second document; one file holds one"))
        return NULL;
    return node.value;
}

static const struct mp_value *read_as_json(struct mp_arena *arena, const char *origin,
                                           const char *text, size_t length)
{
    size_t n_blanks = 0;
    while (n_blanks < length && strchr(" \t\r\n", text[n_blanks]))
        n_blanks++;
    if (n_blanks >= length || (text[n_blanks] != '{' && text[n_blanks] != '['))
        return NULL;
    const struct mp_arena_mark mark = mp_arena_mark(arena);
    const struct mp_value *const value = mp_json_parse(arena, origin, text, length, NULL);
    if (!value)
        mp_arena_rewind(arena, mark);
    return value;
}

const struct mp_value *mp_yaml_parse(struct mp_arena *arena, const char *origin, const char *text,
                                     size_t length, struct memplan_error *err)
{
    const struct mp_value *value = read_as_json(arena, origin, text, length);
    if (value)
        return value;
    struct reader *const r = mp_malloc(sizeof(*r));
    if (!r || !yaml_parser_initialize(&r->parser)) {
        free(r);
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory reading %s", origin);
        return NULL;
    }
    r->arena = arena;
    r->origin = origin;
    r->err = err;
    r->pending = NULL;
    r->n_pending = r->capacity = r->n_anchors = 0;
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, length);
    value = read_stream(r);
    yaml_parser_delete(&r->parser);
    free(r->pending);
    free(r);
    return value;
}
