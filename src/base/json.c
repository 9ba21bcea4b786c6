/* SPDX-License-Identifier: MIT */
/*
 * JSON by two passes over the text, both linear.
 *
 * cJSON builds the tree, decodes strings and converts numbers. It does not tell where a value
 * stood, holds integers as doubles, and is lenient (leading zeros, control characters and broken
 * UTF-8 in strings, text after the value). So a scan of our own goes first: it accepts exactly RFC
 * 8259 within our limits and notes the place of every key and value in the order of the text. Then
 * the cJSON tree is walked in that same order; a place leads back to the text where an integer is
 * read exactly.
 *
 * After the scan cJSON can fail only for want of memory, which it has no other way to say.
 */
#include "base/json.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <math.h>

#include "base/units.h"
#include "base/utf8.h"

struct place {
    size_t offset;
    int line, column;
};

struct scanner {
    const char *origin, *text;
    size_t length, at;
    int line;
    size_t line_start;
    size_t n_continuation; /* bytes of this line so far that continue a character */
    int depth;
    struct place *places; /* keys and values in the order of the text */
    size_t n_places, capacity;
    struct memplan_error *err;
};

/* Failure is false throughout the scan, with *err filled in. */

static struct place current_place(const struct scanner *s)
{
    return (struct place){s->at, s->line, (int)(s->at - s->line_start - s->n_continuation) + 1};
}

static bool refuse_at(const struct scanner *s, struct place place, enum memplan_status status,
                      const char *text)
{
    mp_error_set(s->err, status, "%s:%d:%d: %s", s->origin, place.line, place.column, text);
    return false;
}

static bool refuse(const struct scanner *s, const char *text)
{
    return refuse_at(s, current_place(s), MEMPLAN_STATUS_INPUT, text);
}

static bool out_of_memory(const struct scanner *s)
{
    mp_error_set(s->err, MEMPLAN_STATUS_NOMEM, "out of memory reading %s", s->origin);
    return false;
}

static int peek(const struct scanner *s)
{
    return s->at < s->length ? (unsigned char)s->text[s->at] : -1;
}

static bool refuse_found(const struct scanner *s, const char *expected)
{
    char text[128];
    const int c = peek(s);
    if (c < 0)
        snprintf(text, sizeof(text), "expected %s, found the end of the text", expected);
    else if (c > 0x20 && c < 0x7f)
        snprintf(text, sizeof(text), "expected %s, found '%c'", expected, c);
    else
        snprintf(text, sizeof(text), "expected %s, found byte 0x%02x", expected, (unsigned)c);
    return refuse(s, text);
}

static bool note_place(struct scanner *s)
{
    if (s->n_places == s->capacity) {
        const size_t capacity = s->capacity ? s->capacity * 2 : 64;
        struct place *const places = mp_realloc(s->places, capacity * sizeof(*places));
        if (!places)
            return out_of_memory(s);
        s->places = places;
        s->capacity = capacity;
    }
    s->places[s->n_places++] = current_place(s);
    return true;
}

static void skip_blanks(struct scanner *s)
{
    for (;; s->at++) {
        const int c = peek(s);
        if (c == '\n') {
            s->line++;
            s->line_start = s->at + 1;
            s->n_continuation = 0;
        } else if (c != ' ' && c != '\t' && c != '\r') {
            return;
        }
    }
}

static bool is_digit(int c)
{
    return c >= '0' && c <= '9';
}

static int hex_digit(int c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits of a \u escape, or -1. */
static int scan_hex4(struct scanner *s)
{
    int code = 0;
    for (int i = 0; i < 4; i++) {
        const int digit = hex_digit(peek(s));
        if (digit < 0)
            return -1;
        code = code * 16 + digit;
        s->at++;
    }
    return code;
}

/* After "\u". UTF-16 surrogates come in pairs; NUL would end a C string early. */
static bool scan_unicode_escape(struct scanner *s)
{
    const int code = scan_hex4(s);
    if (code < 0)
        return refuse_found(s, "four hexadecimal digits after \\u");
    if (code == 0)
        return refuse(s, "\\u0000 is not allowed in a string");
    if (code < 0xd800 || code > 0xdfff)
        return true;
    if (code <= 0xdbff && peek(s) == '\\') {
        s->at++;
        if (peek(s) == 'u') {
            s->at++;
            const int low = scan_hex4(s);
            if (low >= 0xdc00 && low <= 0xdfff)
                return true;
        }
    }
    return refuse(s, "half of a surrogate pair in a string");
}

static bool scan_escape(struct scanner *s)
{
    s->at++; /* the backslash */
    const int c = peek(s);
    if (c <= 0 || !strchr("\"\\/bfnrtu", c))
        return refuse_found(s, "an escape after '\\' (one of \" \\ / b f n r t u)");
    s->at++;
    return c != 'u' || scan_unicode_escape(s);
}

static bool scan_string(struct scanner *s)
{
    s->at++; /* the opening quote */
    for (;;) {
        const int c = peek(s);
        if (c == '"') {
            s->at++;
            return true;
        }
        if (c < 0)
            return refuse(s, "the string has no closing '\"'");
        if (c < 0x20)
            return refuse(s, "control character in a string; write it as an escape such as \\n");
        if (c == '\\') {
            if (!scan_escape(s))
                return false;
            continue;
        }
        const size_t length = mp_utf8_sequence(s->text + s->at, s->length - s->at);
        if (length == 0)
            return refuse(s, "invalid UTF-8 in a string");
        s->at += length;
        s->n_continuation += length - 1;
    }
}

static bool scan_digits(struct scanner *s)
{
    if (!is_digit(peek(s)))
        return refuse_found(s, "a digit");
    while (is_digit(peek(s)))
        s->at++;
    return true;
}

static bool starts_with(const struct scanner *s, const char *word)
{
    const size_t n = strlen(word);
    return s->length - s->at >= n && memcmp(s->text + s->at, word, n) == 0;
}

static bool refuse_not_finite(const struct scanner *s, const char *word)
{
    char text[80];
    snprintf(text, sizeof(text), "%s is not a JSON number; write null instead", word);
    return refuse(s, text);
}

static bool scan_number(struct scanner *s)
{
    const struct place start = current_place(s);
    if (starts_with(s, "-Infinity"))
        return refuse_not_finite(s, "-Infinity");
    if (peek(s) == '-')
        s->at++;
    if (peek(s) == '0') {
        s->at++;
        if (is_digit(peek(s)))
            return refuse_at(s, start, MEMPLAN_STATUS_INPUT, "a number must not begin with 0");
    } else if (!scan_digits(s)) {
        return false;
    }
    if (peek(s) == '.') {
        s->at++;
        if (!scan_digits(s))
            return false;
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        s->at++;
        if (peek(s) == '+' || peek(s) == '-')
            s->at++;
        if (!scan_digits(s))
            return false;
    }
    if (s->at - start.offset > MP_NUMBER_MAX_LENGTH) /* cJSON reads no more */
        return refuse_at(s, start, MEMPLAN_STATUS_RANGE, "a number of more than 63 characters");
    return true;
}

static bool scan_word(struct scanner *s, const char *word)
{
    if (!starts_with(s, word))
        return refuse_found(s, "a value");
    s->at += strlen(word);
    return true;
}

static bool scan_value(struct scanner *s);

static bool scan_member(struct scanner *s)
{
    if (peek(s) != '"')
        return refuse_found(s, "a key in double quotes");
    if (!note_place(s) || !scan_string(s))
        return false;
    skip_blanks(s);
    if (peek(s) != ':')
        return refuse_found(s, "':' after the key");
    s->at++;
    return scan_value(s);
}

/* The inside of an object or a list, from its opening to its closing bracket. */
static bool scan_items(struct scanner *s, bool (*scan_item)(struct scanner *s), char closing,
                       const char *expected)
{
    if (++s->depth > MP_JSON_MAX_DEPTH)
        return refuse(s, "nested deeper than 64 levels");
    s->at++;
    skip_blanks(s);
    if (peek(s) != closing) {
        for (;;) {
            if (!scan_item(s))
                return false;
            skip_blanks(s);
            if (peek(s) != ',')
                break;
            s->at++;
            skip_blanks(s);
        }
        if (peek(s) != closing)
            return refuse_found(s, expected);
    }
    s->at++;
    s->depth--;
    return true;
}

static bool scan_value(struct scanner *s)
{
    skip_blanks(s);
    if (!note_place(s))
        return false;
    switch (peek(s)) {
    case '{': return scan_items(s, scan_member, '}', "',' or '}' after a member");
    case '[': return scan_items(s, scan_value, ']', "',' or ']' after an item");
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    case 'N': return starts_with(s, "NaN") ? refuse_not_finite(s, "NaN") : scan_word(s, "null");
    case 'I':
        return starts_with(s, "Infinity") ? refuse_not_finite(s, "Infinity") : scan_word(s, "null");
    default:
        if (peek(s) == '-' || is_digit(peek(s)))
            return scan_number(s);
        return refuse_found(s, "a value");
    }
}

static bool scan_text(struct scanner *s)
{
    if (!scan_value(s))
        return false;
    skip_blanks(s);
    return s->at == s->length || refuse_found(s, "nothing more after the value");
}

/* The walk: cJSON's tree and the noted places go in step. */
struct walker {
    struct mp_arena *arena;
    const struct scanner *scanner;
    size_t next_place;
};

static struct mp_value *new_value(struct walker *w, struct place place, enum mp_value_kind kind)
{
    struct mp_value *const value = mp_arena_alloc(w->arena, sizeof(*value));
    if (!value) {
        out_of_memory(w->scanner);
        return NULL;
    }
    value->kind = kind;
    value->line = place.line;
    value->column = place.column;
    return value;
}

/* True when the number at the place has neither fraction nor exponent and fits int64. */
static bool exact_integer(const struct scanner *s, struct place place, int64_t *integer)
{
    char digits[MP_NUMBER_MAX_LENGTH + 1];
    size_t n = 0;
    for (size_t at = place.offset; at < s->length && n < MP_NUMBER_MAX_LENGTH; at++) {
        const char c = s->text[at];
        if (c == '.' || c == 'e' || c == 'E')
            return false;
        if (c != '-' && !is_digit(c))
            break;
        digits[n++] = c;
    }
    digits[n] = '\0';
    return mp_integer_parse(digits, false, integer, NULL) == MEMPLAN_STATUS_OK;
}

static const struct mp_value *walk_number(struct walker *w, const cJSON *item, struct place place)
{
    struct mp_value *const value = new_value(w, place, MP_INT);
    if (!value || exact_integer(w->scanner, place, &value->as.integer))
        return value;
    if (!isfinite(item->valuedouble)) {
        refuse_at(w->scanner, place, MEMPLAN_STATUS_RANGE, "the number is too large for a double");
        return NULL;
    }
    value->kind = MP_DOUBLE;
    value->as.number = item->valuedouble;
    return value;
}

static const struct mp_value *walk_string(struct walker *w, const cJSON *item, struct place place)
{
    struct mp_value *const value = new_value(w, place, MP_STRING);
    if (!value)
        return NULL;
    value->as.string.text = mp_arena_strdup(w->arena, item->valuestring);
    if (!value->as.string.text) {
        out_of_memory(w->scanner);
        return NULL;
    }
    value->as.string.length = strlen(item->valuestring);
    return value;
}

static const struct mp_value *walk(struct walker *w, const cJSON *item);

static size_t count_children(const cJSON *item)
{
    size_t n = 0;
    for (const cJSON *child = item->child; child; child = child->next)
        n++;
    return n;
}

static const struct mp_value *walk_array(struct walker *w, const cJSON *item, struct place place)
{
    const size_t n = count_children(item);
    struct mp_value *const value = new_value(w, place, MP_ARRAY);
    if (!value)
        return NULL;
    const struct mp_value **const items = mp_arena_calloc(w->arena, n, sizeof(*items));
    if (!items) {
        out_of_memory(w->scanner);
        return NULL;
    }
    size_t i = 0;
    for (const cJSON *child = item->child; child; child = child->next) {
        items[i] = walk(w, child);
        if (!items[i++])
            return NULL;
    }
    value->as.array.items = items;
    value->as.array.length = n;
    return value;
}

static bool check_keys(const struct walker *w, const struct mp_member *members, size_t n)
{
    const struct mp_member *repeated = NULL;
    if (mp_members_find_repeated(members, n, &repeated) != MEMPLAN_STATUS_OK)
        return out_of_memory(w->scanner);
    if (!repeated)
        return true;
    mp_error_set(w->scanner->err, MEMPLAN_STATUS_INPUT, "%s:%d:%d: key '%s' is given twice",
                 w->scanner->origin, repeated->line, repeated->column, repeated->key);
    return false;
}

static const struct mp_value *walk_object(struct walker *w, const cJSON *item, struct place place)
{
    const size_t n = count_children(item);
    struct mp_value *const value = new_value(w, place, MP_OBJECT);
    if (!value)
        return NULL;
    struct mp_member *const members = mp_arena_calloc(w->arena, n, sizeof(*members));
    if (!members) {
        out_of_memory(w->scanner);
        return NULL;
    }
    size_t i = 0;
    for (const cJSON *child = item->child; child; child = child->next) {
        const struct place of_key = w->scanner->places[w->next_place++];
        struct mp_member *const member = &members[i++];
        member->line = of_key.line;
        member->column = of_key.column;
        member->key = mp_arena_strdup(w->arena, child->string);
        if (!member->key) {
            out_of_memory(w->scanner);
            return NULL;
        }
        member->value = walk(w, child);
        if (!member->value)
            return NULL;
    }
    if (!check_keys(w, members, n))
        return NULL;
    value->as.object.members = members;
    value->as.object.length = n;
    return value;
}

static const struct mp_value *walk(struct walker *w, const cJSON *item)
{
    const struct place place = w->scanner->places[w->next_place++];
    if (cJSON_IsObject(item))
        return walk_object(w, item, place);
    if (cJSON_IsArray(item))
        return walk_array(w, item, place);
    if (cJSON_IsString(item))
        return walk_string(w, item, place);
    if (cJSON_IsNumber(item))
        return walk_number(w, item, place);
    struct mp_value *const value = new_value(w, place, cJSON_IsNull(item) ? MP_NULL : MP_BOOLEAN);
    if (value && value->kind == MP_BOOLEAN)
        value->as.boolean = cJSON_IsTrue(item);
    return value;
}

const struct mp_value *mp_json_parse(struct mp_arena *arena, const char *origin, const char *text,
                                     size_t length, struct memplan_error *err)
{
    if (length > INT_MAX) {
        mp_error_set(err, MEMPLAN_STATUS_RANGE, "%s: more than 2 GiB in one value", origin);
        return NULL;
    }
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark says nothing */
        text += 3;
        length -= 3;
    }
    struct scanner scanner = {
        .origin = origin, .text = text, .length = length, .line = 1, .err = err};
    const struct mp_value *value = NULL;
    if (scan_text(&scanner)) {
        cJSON *const tree =
            mp_alloc_permitted() ? cJSON_ParseWithLengthOpts(text, length, NULL, 0) : NULL;
        struct walker walker = {.arena = arena, .scanner = &scanner};
        if (tree)
            value = walk(&walker, tree);
        else
            out_of_memory(&scanner);
        cJSON_Delete(tree);
    }
    free(scanner.places);
    return value;
}

void mp_json_init(struct mp_json_writer *w, struct mp_strbuf *out, int indent)
{
    *w = (struct mp_json_writer){.out = out, .indent = indent, .first = true};
}

static void line_break(struct mp_json_writer *w)
{
    if (w->indent <= 0)
        return;
    mp_strbuf_addch(w->out, '\n');
    mp_strbuf_pad(w->out, ' ', (size_t)w->depth * (size_t)w->indent);
}

static void write_quoted(struct mp_strbuf *out, const char *text)
{
    static const char escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    size_t left = strlen(text);
    mp_strbuf_addch(out, '"');
    while (left > 0) {
        const size_t length = mp_utf8_sequence(text, left);
        const char *escape = escapes;
        while (*escape && *escape != *text)
            escape += 2;
        if (*escape) {
            mp_strbuf_addch(out, '\\');
            mp_strbuf_addch(out, escape[1]);
        } else if ((unsigned char)*text < 0x20) {
            mp_strbuf_addf(out, "\\u%04x", (unsigned)(unsigned char)*text);
        } else if (length == 0) {
            mp_strbuf_addstr(out, "\\ufffd"); /* the replacement character */
        } else {
            mp_strbuf_add(out, text, length);
        }
        const size_t step = length ? length : 1;
        text += step;
        left -= step;
    }
    mp_strbuf_addch(out, '"');
}

/* What stands before a value: a comma, a new line, its key. */
static void before_value(struct mp_json_writer *w, const char *key)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->depth > 0) {
        if (!w->first)
            mp_strbuf_addstr(w->out, w->indent > 0 ? "," : ", ");
        line_break(w);
    }
    w->first = false;
    if (key) {
        write_quoted(w->out, key);
        mp_strbuf_addstr(w->out, ": ");
    }
}

static void begin(struct mp_json_writer *w, const char *key, char bracket)
{
    before_value(w, key);
    mp_strbuf_addch(w->out, bracket);
    w->depth++;
    w->first = true;
}

static void end(struct mp_json_writer *w, char bracket)
{
    w->depth--;
    if (!w->first)
        line_break(w);
    mp_strbuf_addch(w->out, bracket);
    w->first = false;
}

void mp_json_object(struct mp_json_writer *w, const char *key)
{
    begin(w, key, '{');
}

void mp_json_array(struct mp_json_writer *w, const char *key)
{
    begin(w, key, '[');
}

void mp_json_end_object(struct mp_json_writer *w)
{
    end(w, '}');
}

void mp_json_end_array(struct mp_json_writer *w)
{
    end(w, ']');
}

void mp_json_uint(struct mp_json_writer *w, const char *key, uint64_t value)
{
    before_value(w, key);
    mp_strbuf_addf(w->out, "%llu", (unsigned long long)value);
}

void mp_json_int(struct mp_json_writer *w, const char *key, int64_t value)
{
    before_value(w, key);
    mp_strbuf_addf(w->out, "%lld", (long long)value);
}

void mp_json_double(struct mp_json_writer *w, const char *key, double value)
{
    if (!isfinite(value)) {
        mp_json_null(w, key);
        return;
    }
    before_value(w, key);
    const size_t start = w->out->len;
    mp_double_format(w->out, value);
    if (!w->out->failed && !strpbrk(mp_strbuf_text(w->out) + start, ".e"))
        mp_strbuf_addstr(w->out, ".0");
}

void mp_json_bool(struct mp_json_writer *w, const char *key, bool value)
{
    before_value(w, key);
    mp_strbuf_addstr(w->out, value ? "true" : "false");
}

void mp_json_string(struct mp_json_writer *w, const char *key, const char *value)
{
    if (!value) {
        mp_json_null(w, key);
        return;
    }
    before_value(w, key);
    write_quoted(w->out, value);
}

void mp_json_null(struct mp_json_writer *w, const char *key)
{
    before_value(w, key);
    mp_strbuf_addstr(w->out, "null");
}

void mp_json_value(struct mp_json_writer *w, const char *key, const struct mp_value *value)
{
    switch (value->kind) {
    case MP_NULL: mp_json_null(w, key); break;
    case MP_BOOLEAN: mp_json_bool(w, key, value->as.boolean); break;
    case MP_INT: mp_json_int(w, key, value->as.integer); break;
    case MP_DOUBLE: mp_json_double(w, key, value->as.number); break;
    case MP_STRING: mp_json_string(w, key, value->as.string.text); break;
    case MP_ARRAY:
        mp_json_array(w, key);
        for (size_t i = 0; i < value->as.array.length; i++)
            mp_json_value(w, NULL, value->as.array.items[i]);
        mp_json_end_array(w);
        break;
    case MP_OBJECT:
        mp_json_object(w, key);
        for (size_t i = 0; i < value->as.object.length; i++)
            mp_json_value(w, value->as.object.members[i].key, value->as.object.members[i].value);
        mp_json_end_object(w);
        break;
    }
}
