/* SPDX-License-Identifier: MIT */
/* Collects the problems of one file into one message, and reads single values with such messages.
 */
#include "spec/problems.h"

#include <inttypes.h>
#include <stdarg.h>

#include "base/file.h"
#include "base/units.h"

#define SPEC_FILE_MAX_BYTES (16 * MP_MIB)

void mp_problems_init(struct mp_problems *problems, const char *origin, struct memplan_error *err)
{
    *problems = (struct mp_problems){.origin = origin, .err = err};
}

/* Append to the message; what does not fit is counted by the dots at its end. */
static void append(struct memplan_error *err, const char *text)
{
    static const char dots[] = " ...";
    const size_t size = sizeof err->text;
    const size_t have = strlen(err->text);
    const size_t more = strlen(text);
    if (have + more < size) {
        memcpy(err->text + have, text, more + 1);
        return;
    }
    const size_t end = size - sizeof dots;
    if (have < end)
        memcpy(err->text + have, text, end - have);
    memcpy(err->text + end, dots, sizeof dots);
}

void mp_problems_add(struct mp_problems *problems, const struct mp_value *at, const char *key,
                     const char *format, ...)
{
    problems->n++;
    struct memplan_error *const err = problems->err;
    if (err == NULL)
        return;
    if (problems->n == 1) {
        err->status = MEMPLAN_STATUS_INPUT;
        err->text[0] = '\0';
    } else {
        append(err, "; ");
    }
    char text[sizeof err->text];
    const bool placed = at != NULL && at->line > 0;
    if (problems->n == 1 && problems->origin != NULL) {
        append(err, problems->origin);
        append(err, placed ? ":" : ": ");
    }
    if (placed) {
        (void)snprintf(text, sizeof text, "%d:%d: ", at->line, at->column);
        append(err, text);
    }
    if (key != NULL) {
        append(err, key);
        append(err, ": ");
    }
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    append(err, text);
}

enum memplan_status mp_problems_status(const struct mp_problems *problems)
{
    return problems->n == 0 ? MEMPLAN_STATUS_OK : MEMPLAN_STATUS_INPUT;
}

void mp_problems_add_unknown(struct mp_problems *problems, const struct mp_member *member,
                             const char *prefix, const char *const *known, size_t n_known)
{
    const struct mp_value place = {.line = member->line, .column = member->column};
    const char *const closest = mp_closest(member->key, known, n_known);
    const char *const dot = prefix[0] != '\0' ? "." : "";
    if (closest != NULL) {
        mp_problems_add(problems, &place, NULL, "unknown key '%s%s%.80s', did you mean '%s'?",
                        prefix, dot, member->key, closest);
        return;
    }
    struct mp_strbuf list = MP_STRBUF_INIT;
    for (size_t i = 0; i < n_known; i++)
        mp_strbuf_addf(&list, "%s%s", i == 0 ? "" : ", ", known[i]);
    mp_problems_add(problems, &place, NULL, "unknown key '%s%s%.80s', known are %s", prefix, dot,
                    member->key, mp_strbuf_text(&list));
    mp_strbuf_release(&list);
}

const char *mp_value_show(const struct mp_value *value, char buffer[MP_VALUE_SHOW_MAX])
{
    switch (value->kind) {
    case MP_BOOLEAN:
        (void)snprintf(buffer, MP_VALUE_SHOW_MAX, "%s", value->as.boolean ? "true" : "false");
        break;
    case MP_INT: (void)snprintf(buffer, MP_VALUE_SHOW_MAX, "%" PRId64, value->as.integer); break;
    case MP_DOUBLE: /* 3.0 where an integer was expected must not be shown as 3 */
        (void)snprintf(buffer, MP_VALUE_SHOW_MAX, "%.15g", value->as.number);
        if (buffer[strspn(buffer, "-0123456789")] == '\0')
            (void)snprintf(buffer, MP_VALUE_SHOW_MAX, "%.1f", value->as.number);
        break;
    case MP_STRING:
        (void)snprintf(buffer, MP_VALUE_SHOW_MAX, "\"%.40s\"%s", value->as.string.text,
                       value->as.string.length > 40 ? "..." : "");
        break;
    case MP_NULL:
    case MP_ARRAY:
    case MP_OBJECT:
    default:
        (void)snprintf(buffer, MP_VALUE_SHOW_MAX, "%s", mp_value_kind_text(value->kind));
        break;
    }
    return buffer;
}

bool mp_problems_integer(struct mp_problems *problems, const char *key,
                         const struct mp_value *value, int64_t low, int64_t high, int64_t *out)
{
    if (value->kind == MP_INT && value->as.integer >= low && value->as.integer <= high) {
        *out = value->as.integer;
        return true;
    }
    char shown[MP_VALUE_SHOW_MAX];
    mp_problems_add(problems, value, key, "%s is not an integer from %" PRId64 " to %" PRId64,
                    mp_value_show(value, shown), low, high);
    return false;
}

bool mp_problems_bool(struct mp_problems *problems, const char *key, const struct mp_value *value,
                      bool *out)
{
    if (value->kind == MP_BOOLEAN) {
        *out = value->as.boolean;
        return true;
    }
    char shown[MP_VALUE_SHOW_MAX];
    mp_problems_add(problems, value, key, "%s is neither true nor false",
                    mp_value_show(value, shown));
    return false;
}

int mp_choice_index(const char *choices, const char *text, size_t length)
{
    int index = 0;
    for (const char *c = choices;; index++) {
        const size_t n = strcspn(c, "|");
        if (n == length && memcmp(c, text, n) == 0)
            return index;
        if (c[n] == '\0')
            return -1;
        c += n + 1;
    }
}

void mp_choice_list(struct mp_strbuf *out, const char *choices, const char *and_word)
{
    for (const char *c = choices;;) {
        const size_t n = strcspn(c, "|");
        mp_strbuf_add(out, c, n);
        if (c[n] == '\0')
            return;
        c += n + 1;
        if (strchr(c, '|') != NULL)
            mp_strbuf_addstr(out, ", ");
        else
            mp_strbuf_addf(out, " %s ", and_word);
    }
}

bool mp_problems_choice(struct mp_problems *problems, const char *key, const struct mp_value *value,
                        const char *choices, int *out)
{
    if (value->kind == MP_STRING) {
        const int index = mp_choice_index(choices, value->as.string.text, value->as.string.length);
        if (index >= 0) {
            *out = index;
            return true;
        }
    }
    char shown[MP_VALUE_SHOW_MAX];
    struct mp_strbuf list = MP_STRBUF_INIT;
    mp_choice_list(&list, choices, "or");
    mp_problems_add(problems, value, key, "%s is not one of %s", mp_value_show(value, shown),
                    mp_strbuf_text(&list));
    mp_strbuf_release(&list);
    return false;
}

bool mp_problems_string(struct mp_problems *problems, const char *key, const struct mp_value *value,
                        const char **out)
{
    if (value->kind == MP_STRING) {
        *out = value->as.string.text;
        return true;
    }
    char shown[MP_VALUE_SHOW_MAX];
    mp_problems_add(problems, value, key, "%s is not a string", mp_value_show(value, shown));
    return false;
}

enum memplan_status mp_spec_read_file(const char *path, struct mp_strbuf *out,
                                      struct memplan_error *err)
{
    struct memplan_error own = {0};
    enum memplan_status status = mp_file_read(path, SPEC_FILE_MAX_BYTES, out, &own);
    if (status == MEMPLAN_STATUS_OK)
        return status;
    if (status == MEMPLAN_STATUS_IO || status == MEMPLAN_STATUS_RANGE)
        status = own.status = MEMPLAN_STATUS_INPUT;
    if (err != NULL)
        *err = own;
    return status;
}
