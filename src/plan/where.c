/* SPDX-License-Identifier: MIT */
/* Conditions: read by recursive descent into a tree, which is walked for every point. */
#include "plan/where.h"

#include "base/units.h"

enum kind { NUMBER, TEXT, KEY, NOT, AND, OR, EQ, NE, LT, LE, GT, GE, IN, ADD, SUB, MUL, DIV, MOD, NEGATE };

struct mp_where {
    enum kind kind;
    double number;
    const char *text;
    int key;
    const struct mp_where *left, *right; /* IN: right is a list, linked by its own right */
};

/* ---- reading ---- */

struct parser {
    struct mp_arena *arena;
    const char *text, *c, *at;
    const struct mp_where_names *names;
    struct memplan_error *err;
    int depth;
};

enum { MAX_DEPTH = 64, WORD_MAX = 127 };

static const struct mp_where *parse_or(struct parser *p);

static const struct mp_where *fail(struct parser *p, const char *what)
{
    if (p->err && p->err->status == MEMPLAN_STATUS_OK)
        mp_error_set(p->err, MEMPLAN_STATUS_INPUT, "%s: %s at column %d of \"%.80s\"", p->at, what, (int)(p->c - p->text) + 1, p->text);
    return NULL;
}

static struct mp_where *node(struct parser *p, enum kind kind, const struct mp_where *left, const struct mp_where *right)
{
    struct mp_where *const n = mp_arena_alloc(p->arena, sizeof *n);
    if (!n)
        mp_error_set(p->err, MEMPLAN_STATUS_NOMEM, "out of memory");
    else
        *n = (struct mp_where){.kind = kind, .left = left, .right = right};
    return n;
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '-' || c == '.'; }

static void skip_blanks(struct parser *p) { p->c += strspn(p->c, " \t\r\n"); }

/* The sign when it stands next, not as the start of a longer one. */
static bool take(struct parser *p, const char *sign)
{
    skip_blanks(p);
    const size_t n = strlen(sign);
    if (strncmp(p->c, sign, n) != 0 || (is_letter(sign[0]) && is_word(p->c[n])))
        return false;
    p->c += n;
    return true;
}

static const struct mp_where *text_node(struct parser *p, const char *text, size_t n)
{
    struct mp_where *const w = node(p, TEXT, NULL, NULL);
    if (!w)
        return NULL;
    w->text = mp_arena_strndup(p->arena, text, n);
    if (!w->text)
        mp_error_set(p->err, MEMPLAN_STATUS_NOMEM, "out of memory");
    return w->text ? w : NULL;
}

static const struct mp_where *parse_quoted(struct parser *p, char quote)
{
    const char *const start = ++p->c, *const end = strchr(start, quote);
    if (!end)
        return fail(p, "a quote is not closed");
    p->c = end + 1;
    return text_node(p, start, (size_t)(end - start));
}

static const struct mp_where *parse_number(struct parser *p)
{
    char text[WORD_MAX + 1];
    size_t n = 0;
    while (is_word(p->c[n]))
        n++;
    if (n > WORD_MAX)
        return fail(p, "a number is too long");
    memcpy(text, p->c, n);
    text[n] = '\0';
    double number;
    uint64_t bytes;
    if (mp_double_parse(text, n, &number) != MEMPLAN_STATUS_OK) {
        struct memplan_error ignored = {0};
        if (mp_bytes_parse(text, &bytes, &ignored) != MEMPLAN_STATUS_OK)
            return fail(p, "not a number or a size such as 8GiB");
        number = (double)bytes;
    }
    struct mp_where *const w = node(p, NUMBER, NULL, NULL);
    if (!w)
        return NULL;
    p->c += n;
    w->number = number;
    return w;
}

static const struct mp_where *parse_word(struct parser *p, bool literal)
{
    char word[WORD_MAX + 1];
    size_t n = 0;
    while (is_word(p->c[n]))
        n++;
    if (n > WORD_MAX)
        return fail(p, "a word is too long");
    memcpy(word, p->c, n);
    word[n] = '\0';
    const int key = literal ? -1 : p->names->key(p->names->context, word);
    if (key < 0 && !p->names->known_text(p->names->context, word))
        return fail(p, "neither a key of this grid nor one of its values");
    const struct mp_where *w;
    if (key < 0) {
        w = text_node(p, p->c, n);
    } else {
        struct mp_where *const made = node(p, KEY, NULL, NULL);
        if (made)
            made->key = key;
        w = made;
    }
    p->c += n;
    return w;
}

static const struct mp_where *parse_primary(struct parser *p, bool literal)
{
    skip_blanks(p);
    if (*p->c == '\'' || *p->c == '"')
        return parse_quoted(p, *p->c);
    if (is_digit(*p->c))
        return parse_number(p);
    if (is_letter(*p->c))
        return parse_word(p, literal);
    if (literal || !take(p, "("))
        return fail(p, "a key, a number or a text is missing");
    const struct mp_where *const inner = parse_or(p);
    if (inner && !take(p, ")"))
        return fail(p, "')' is missing");
    return inner;
}

static const struct mp_where *parse_unary(struct parser *p)
{
    int minus = 0;
    while (take(p, "-"))
        minus ^= 1;
    const struct mp_where *const inner = parse_primary(p, false);
    return inner && minus ? node(p, NEGATE, inner, NULL) : inner;
}

static const struct mp_where *parse_product(struct parser *p)
{
    static const struct { const char *sign; enum kind kind; } signs[] = {{"*", MUL}, {"/", DIV}, {"%", MOD}};
    const struct mp_where *left = parse_unary(p);
    for (size_t i = 0; left && i < MP_ARRAY_LEN(signs);) {
        if (!take(p, signs[i].sign)) {
            i++;
            continue;
        }
        const struct mp_where *const right = parse_unary(p);
        left = right ? node(p, signs[i].kind, left, right) : NULL;
        i = 0;
    }
    return left;
}

static const struct mp_where *parse_sum(struct parser *p)
{
    const struct mp_where *left = parse_product(p);
    while (left) {
        const bool add = take(p, "+");
        if (!add && !take(p, "-"))
            break;
        const struct mp_where *const right = parse_product(p);
        left = right ? node(p, add ? ADD : SUB, left, right) : NULL;
    }
    return left;
}

/* [a, b]: what an element may be is a number or a text. */
static const struct mp_where *parse_list(struct parser *p)
{
    struct mp_where *first = NULL, *last = NULL;
    if (!take(p, "["))
        return fail(p, "'[' is missing after in");
    do {
        const struct mp_where *const item = parse_primary(p, true);
        struct mp_where *const link = item ? node(p, IN, item, NULL) : NULL;
        if (!link)
            return NULL;
        if (last)
            last->right = link;
        else
            first = link;
        last = link;
    } while (take(p, ","));
    return take(p, "]") ? first : fail(p, "']' is missing");
}

static const struct mp_where *parse_comparison(struct parser *p)
{
    static const struct { const char *sign; enum kind kind; } signs[] = {{"==", EQ}, {"!=", NE}, {"<=", LE}, {">=", GE},
                                                                         {"<", LT},  {">", GT},  {"=", EQ}};
    const struct mp_where *const left = parse_sum(p);
    if (!left)
        return NULL;
    if (take(p, "in")) {
        const struct mp_where *const list = parse_list(p);
        return list ? node(p, IN, left, list) : NULL;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(signs); i++) {
        if (take(p, signs[i].sign)) {
            const struct mp_where *const right = parse_sum(p);
            return right ? node(p, signs[i].kind, left, right) : NULL;
        }
    }
    return left;
}

static const struct mp_where *parse_not(struct parser *p)
{
    bool negated = false;
    while (take(p, "not"))
        negated = !negated;
    const struct mp_where *const inner = parse_comparison(p);
    return inner && negated ? node(p, NOT, inner, NULL) : inner;
}

static const struct mp_where *parse_and(struct parser *p)
{
    const struct mp_where *left = parse_not(p);
    while (left && take(p, "and")) {
        const struct mp_where *const right = parse_not(p);
        left = right ? node(p, AND, left, right) : NULL;
    }
    return left;
}

static const struct mp_where *parse_or(struct parser *p)
{
    if (++p->depth > MAX_DEPTH)
        return fail(p, "too many parentheses");
    const struct mp_where *left = parse_and(p);
    while (left && take(p, "or")) {
        const struct mp_where *const right = parse_and(p);
        left = right ? node(p, OR, left, right) : NULL;
    }
    p->depth--;
    return left;
}

/* A condition answers yes or no. */
static bool is_condition(const struct mp_where *w)
{
    return (w->kind >= NOT && w->kind <= IN) || w->kind == KEY;
}

const struct mp_where *mp_where_parse(struct mp_arena *arena, const char *text, const char *at, const struct mp_where_names *names,
                                      struct memplan_error *err)
{
    struct memplan_error own = {0};
    struct parser p = {arena, text, text, at, names, &own, 0};
    const struct mp_where *where = strlen(text) > 4096 ? fail(&p, "too long a condition") : parse_or(&p);
    if (where) {
        skip_blanks(&p);
        if (*p.c)
            where = fail(&p, "the condition goes on in a way that is not understood");
        else if (!is_condition(where))
            where = fail(&p, "a comparison is missing");
    }
    if (!where && err)
        *err = own;
    return where;
}

/* ---- asking ---- */

struct result {
    enum { IS_NUMBER, IS_TEXT, IS_NOTHING } kind;
    double number;
    const char *text;
};

static struct result of_number(double number) { return (struct result){IS_NUMBER, number, NULL}; }

static struct result of_value(const struct mp_value *value)
{
    double number;
    if (!value)
        return (struct result){IS_NOTHING, 0, NULL};
    if (mp_value_number(value, &number))
        return of_number(number);
    if (value->kind == MP_BOOLEAN)
        return (struct result){IS_TEXT, 0, value->as.boolean ? "true" : "false"};
    if (value->kind == MP_STRING)
        return (struct result){IS_TEXT, 0, value->as.string.text};
    return (struct result){IS_NOTHING, 0, NULL};
}

static bool holds(const struct mp_where *w, const struct mp_value *const *values);

static struct result calculate(const struct mp_where *w, const struct mp_value *const *values);

/* A size given as "8GiB" counts as its bytes beside a number. */
static void match_kinds(struct result *a, struct result *b)
{
    struct result *const text = a->kind == IS_TEXT ? a : b;
    const struct result *const other = text == a ? b : a;
    uint64_t bytes;
    struct memplan_error ignored = {0};
    if (text->kind == IS_TEXT && other->kind == IS_NUMBER && mp_bytes_parse(text->text, &bytes, &ignored) == MEMPLAN_STATUS_OK)
        *text = of_number((double)bytes);
}

static struct result arithmetic(enum kind kind, struct result a, struct result b)
{
    match_kinds(&a, &b);
    if (a.kind != IS_NUMBER || b.kind != IS_NUMBER || ((kind == DIV || kind == MOD) && b.number == 0))
        return (struct result){IS_NOTHING, 0, NULL};
    switch (kind) {
    case ADD: return of_number(a.number + b.number);
    case SUB: return of_number(a.number - b.number);
    case MUL: return of_number(a.number * b.number);
    case DIV: return of_number(a.number / b.number);
    default: {
        const double quotient = a.number / b.number; /* beyond 2^53 a remainder means nothing */
        return quotient > 9e15 || quotient < -9e15 ? of_number(0) : of_number(a.number - b.number * (double)(int64_t)quotient);
    }
    }
}

static struct result calculate(const struct mp_where *w, const struct mp_value *const *values)
{
    switch (w->kind) {
    case NUMBER: return of_number(w->number);
    case TEXT: return (struct result){IS_TEXT, 0, w->text};
    case KEY: return of_value(values[w->key]);
    case NEGATE: return arithmetic(SUB, of_number(0), calculate(w->left, values));
    case ADD:
    case SUB:
    case MUL:
    case DIV:
    case MOD: return arithmetic(w->kind, calculate(w->left, values), calculate(w->right, values));
    default: return (struct result){IS_TEXT, 0, holds(w, values) ? "true" : "false"};
    }
}

static bool compare(enum kind kind, struct result a, struct result b)
{
    match_kinds(&a, &b);
    if (a.kind != b.kind || a.kind == IS_NOTHING)
        return kind == NE;
    const int order = a.kind == IS_TEXT ? strcmp(a.text, b.text) : (a.number > b.number) - (a.number < b.number);
    switch (kind) {
    case EQ: return order == 0;
    case NE: return order != 0;
    case LT: return order < 0;
    case LE: return order <= 0;
    case GT: return order > 0;
    default: return order >= 0;
    }
}

static bool holds(const struct mp_where *w, const struct mp_value *const *values)
{
    switch (w->kind) {
    case NOT: return !holds(w->left, values);
    case AND: return holds(w->left, values) && holds(w->right, values);
    case OR: return holds(w->left, values) || holds(w->right, values);
    case IN: {
        const struct result left = calculate(w->left, values);
        for (const struct mp_where *item = w->right; item; item = item->right)
            if (compare(EQ, left, calculate(item->left, values)))
                return true;
        return false;
    }
    case EQ:
    case NE:
    case LT:
    case LE:
    case GT:
    case GE: return compare(w->kind, calculate(w->left, values), calculate(w->right, values));
    default: {
        const struct result r = calculate(w, values);
        return r.kind == IS_TEXT && strcmp(r.text, "true") == 0;
    }
    }
}

bool mp_where_holds(const struct mp_where *where, const struct mp_value *const *values) { return holds(where, values); }
