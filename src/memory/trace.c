/* SPDX-License-Identifier: MIT */
/* Reads text traces line by line; a line is never longer than LINE_MAX_BYTES, except the
 * configuration. */
#include "memory/trace.h"

#include <inttypes.h>

#include "base/json.h"
#include "base/table.h"

enum { LINE_MAX_BYTES = 1 << 20, MARK_MAX_BYTES = 200 };

/* One line without its end into *line; false at the end of the file. */
static bool read_line(struct mp_source *source, struct mp_strbuf *line)
{
    mp_strbuf_reset(line);
    if (mp_source_peek(source) < 0)
        return false;
    while (mp_source_fill(source)) {
        const uint8_t *newline = memchr(source->at, '\n', (size_t)(source->end - source->at));
        const uint8_t *stop = newline ? newline : source->end;
        mp_strbuf_add(line, source->at, (size_t)(stop - source->at));
        source->at = newline ? newline + 1 : source->end;
        if (newline || line->len > LINE_MAX_BYTES)
            break;
    }
    if (line->len && line->data[line->len - 1] == '\r')
        line->data[--line->len] = '\0';
    return true;
}

/* Keep of the recorder's configuration what decides how the allocator worked. */
static enum memplan_status read_config(struct mp_history *history, const char *origin,
                                       const char *text, struct memplan_error *err)
{
    struct mp_arena arena;
    mp_arena_init(&arena);
    const struct mp_value *config = mp_json_parse(&arena, origin, text, strlen(text), err);
    if (config) {
        static const char *const conf_keys[] = {"alloc_conf", "allocator_conf"};
        for (size_t i = 0; i < MP_ARRAY_LEN(conf_keys); i++) {
            const struct mp_value *conf = mp_value_get(config, conf_keys[i]);
            if (conf && conf->kind == MP_STRING) {
                struct mp_strbuf copy = MP_STRBUF_INIT;
                mp_strbuf_addstr(&copy, conf->as.string.text);
                free(history->conf);
                history->conf = mp_strbuf_detach(&copy);
            }
        }
        double number = 0;
        if (mp_value_number(mp_value_get(config, "limit_gib"), &number) && number > 0 &&
            number < 1e6)
            history->limit_bytes = (uint64_t)(number * (double)MP_GIB);
        if (mp_value_number(mp_value_get(config, "allocator_limit_bytes"), &number) && number > 0 &&
            number < 1e18)
            history->limit_bytes = (uint64_t)number;
    }
    mp_arena_release(&arena);
    return config ? MEMPLAN_STATUS_OK : MEMPLAN_STATUS_INPUT;
}

/* The next word of *at; its length, 0 at the end. */
static size_t next_word(const char **at, const char **word)
{
    *at += strspn(*at, " \t");
    *word = *at;
    const size_t n = strcspn(*at, " \t");
    *at += n;
    return n;
}

static bool read_number(const char **at, unsigned base, uint64_t *value)
{
    const char *word = NULL;
    size_t n = next_word(at, &word);
    if (base == 16 && n > 2 && word[0] == '0' && (word[1] == 'x' || word[1] == 'X')) {
        word += 2;
        n -= 2;
    }
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++) {
        const char c = word[i];
        const unsigned digit = c >= '0' && c <= '9'   ? (unsigned)(c - '0')
                               : c >= 'a' && c <= 'f' ? (unsigned)(c - 'a') + 10
                               : c >= 'A' && c <= 'F' ? (unsigned)(c - 'A') + 10
                                                      : 16;
        if (digit >= base || v > (UINT64_MAX - digit) / base)
            return false;
        v = v * base + digit;
    }
    *value = v;
    return n > 0;
}

static enum memplan_status bad_line(const struct mp_source *source, uint64_t n, const char *line,
                                    const char *what, struct memplan_error *err)
{
    struct mp_strbuf shown = MP_STRBUF_INIT;
    mp_text_escape(&shown, line);
    mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s:%" PRIu64 ": '%.60s': %s", source->origin, n,
                 mp_strbuf_text(&shown), what);
    mp_strbuf_release(&shown);
    return MEMPLAN_STATUS_INPUT;
}

static bool is_word(const char *word, size_t n, const char *text)
{
    return n == strlen(text) && memcmp(word, text, n) == 0;
}

static enum memplan_status read_event(const struct mp_source *source, struct mp_history *history,
                                      const char *line, uint64_t n_line, struct memplan_error *err)
{
    const char *at = line, *word = NULL;
    const size_t n = next_word(&at, &word);
    if (n == 0 || is_word(word, n, "snapshot") || is_word(word, n, "annotate"))
        return MEMPLAN_STATUS_OK;
    if (is_word(word, n, "mark")) {
        at += strspn(at, " \t");
        if (!mp_history_add_mark(history, at, MP_MIN(strlen(at), (size_t)MARK_MAX_BYTES)))
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return MEMPLAN_STATUS_OK;
    }
    const int action = mp_history_action_parse(word, n);
    if (action < 0)
        return bad_line(source, n_line, line,
                        "no event; expected an action (alloc, free_requested, free_completed, "
                        "segment_alloc, ...), a hexadecimal address, bytes and a stream",
                        err);
    struct mp_history_entry entry = {.action = (uint8_t)action};
    uint64_t stream = 0;
    const char *rest = NULL;
    if (!read_number(&at, 16, &entry.address) || !read_number(&at, 10, &entry.bytes) ||
        !read_number(&at, 10, &stream) || next_word(&at, &rest) != 0)
        return bad_line(source, n_line, line,
                        "expected a hexadecimal address, bytes and a stream after the action", err);
    if (!mp_history_add(history, entry, stream))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_trace_read(struct mp_source *source, struct mp_history *history,
                                  struct memplan_error *err)
{
    enum memplan_status status = MEMPLAN_STATUS_OK;
    struct mp_strbuf line = MP_STRBUF_INIT;
    uint64_t n = 0;
    while (status == MEMPLAN_STATUS_OK && read_line(source, &line)) {
        if (source->failed)
            break; /* the line is cut off: what cut it is the problem */
        n++;
        const char *text = mp_strbuf_text(&line);
        if (line.failed)
            status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        else if (strlen(text) != line.len || line.len > LINE_MAX_BYTES)
            status = bad_line(source, n, text, "not a line of text", err);
        else if (strncmp(text, "# config ", 9) == 0)
            status = read_config(history, source->origin, text + 9, err);
        else if (text[0] != '#')
            status = read_event(source, history, text, n, err);
    }
    mp_strbuf_release(&line);
    return source->failed ? MEMPLAN_STATUS_IO : status;
}
