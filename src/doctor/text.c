/* SPDX-License-Identifier: MIT */
/* The two views of a log: one pass over the lines, each cleaned, lowered and copied twice. */
#include "doctor/text.h"

const char *mp_doctor_find(const char *text, size_t length, const char *needle)
{
    const size_t n = strlen(needle);
    if (n == 0 || n > length) {
        return NULL;
    }
    const char *const last = text + (length - n);
    for (const char *at = text; at <= last; at++) {
        at = memchr(at, needle[0], (size_t)(last - at) + 1);
        if (at == NULL) {
            return NULL;
        }
        if (memcmp(at, needle, n) == 0) {
            return at;
        }
    }
    return NULL;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\0';
}

/* "2023-07-04 17:31:27,755" or "17:31:27": how many bytes it takes, 0 when there is none. */
static size_t timestamp_length(const char *s, size_t n)
{
    size_t at = 0, digits = 0, separators = 0;
    while (at < n && at < 32) {
        const char c = s[at];
        if (is_digit(c)) {
            digits++;
        } else if (c == ':' || c == '-' || c == '/') {
            separators++;
        } else if (c == ' ' && at >= 8 && at <= 10 && at + 1 < n && is_digit(s[at + 1])) {
            /* between date and time */
        } else if ((c == '.' || c == ',' || c == 'T' || c == 'Z') && separators >= 2) {
            /* fraction of a second, ISO 8601 letters */
        } else {
            break;
        }
        at++;
    }
    return digits >= 6 && separators >= 2 ? at : 0;
}

/* "[rank0]:", "[default3]:", "[2024-01-01 10:00:00]": launchers and loggers. */
static size_t bracket_length(const char *s, size_t n)
{
    static const char *const names[] = {"rank", "default", "RANK", "Rank", "worker", "node"};
    if (n < 3 || s[0] != '[') {
        return 0;
    }
    bool known = is_digit(s[1]);
    for (size_t i = 0; i < MP_ARRAY_LEN(names) && !known; i++) {
        known = n > strlen(names[i]) + 1 && strncmp(s + 1, names[i], strlen(names[i])) == 0;
    }
    if (!known) {
        return 0;
    }
    for (size_t i = 1; i < n && i < 48; i++) {
        if (s[i] == ']') {
            return i + 1 < n && s[i + 1] == ':' ? i + 2 : i + 1;
        }
    }
    return 0;
}

/* "(RayTrainWorker pid=123, ip=10.0.0.1)" */
static size_t worker_length(const char *s, size_t n)
{
    if (n < 7 || s[0] != '(') {
        return 0;
    }
    for (size_t i = 1; i < n && i < 80; i++) {
        if (s[i] == ')') {
            return mp_doctor_find(s, i, "pid=") != NULL ? i + 1 : 0;
        }
    }
    return 0;
}

/* "0: " (srun), "10.0.0.1: " (pdsh), "worker-3: ": a name that ends in a digit, a colon and a
 * blank. */
static size_t host_length(const char *s, size_t n)
{
    size_t at = 0;
    while (at < n && at < 40 &&
           (is_digit(s[at]) || (s[at] >= 'a' && s[at] <= 'z') || (s[at] >= 'A' && s[at] <= 'Z') ||
            s[at] == '.' || s[at] == '-' || s[at] == '_')) {
        at++;
    }
    if (at == 0 || at + 1 >= n || s[at] != ':' || s[at + 1] != ' ' || !is_digit(s[at - 1])) {
        return 0;
    }
    return at + 1;
}

/* What launchers, loggers, test runners and mail put in front of a line. */
static size_t prefix_length(const char *s, size_t n)
{
    size_t at = 0;
    for (int round = 0; round < 6; round++) {
        while (at < n && is_blank(s[at])) {
            at++;
        }
        const char *const here = s + at;
        const size_t left = n - at;
        size_t skip = 0;
        if (left >= 1 && (here[0] == '>' || here[0] == '|')) {
            skip = 1;
        } else if (left >= 3 && here[0] == 'E' && here[1] == ' ' && here[2] == ' ') {
            skip = 2;
        }
        if (skip == 0) {
            skip = bracket_length(here, left);
        }
        if (skip == 0) {
            skip = worker_length(here, left);
        }
        if (skip == 0) {
            skip = timestamp_length(here, left);
        }
        if (skip == 0) {
            skip = host_length(here, left);
        }
        if (skip == 0) {
            break;
        }
        at += skip;
    }
    return at;
}

/* "\033[31m": bytes of an escape sequence at s, 0 when there is none. */
static size_t escape_length(const char *s, size_t n)
{
    if (n < 2 || s[0] != '\033' || s[1] != '[') {
        return 0;
    }
    size_t at = 2;
    while (at < n && at < 16 && !(s[at] >= '@' && s[at] <= '~')) {
        at++;
    }
    return at < n ? at + 1 : at;
}

/* UTF-8 of U+2500 to U+259F (box drawing, progress bars), U+2771 (the arrow of a boxed traceback),
 * U+00A0: bytes, 0 when none. */
static size_t frame_length(const char *s, size_t n)
{
    const unsigned char *const u = (const unsigned char *)s;
    if (n >= 3 && u[0] == 0xE2 &&
        ((u[1] >= 0x94 && u[1] <= 0x96) || (u[1] == 0x9D && u[2] == 0xB1))) {
        return 3;
    }
    return n >= 2 && u[0] == 0xC2 && u[1] == 0xA0 ? 2 : 0;
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Copy one line into both views. NUL bytes vanish, which also makes UTF-16 logs of Latin text
 * readable. */
static void add_line(struct mp_doctor_text *text, const char *line, size_t n)
{
    size_t at = prefix_length(line, n);
    while (at < n) {
        size_t skip = escape_length(line + at, n - at);
        if (skip > 0) {
            at += skip;
            continue;
        }
        skip = frame_length(line + at, n - at);
        if (skip > 0) {
            text->plain[text->plain_len++] = ' ';
            at += skip;
            continue;
        }
        const char c = lower(line[at++]);
        if (c == '\0') {
            continue;
        }
        const bool space = (unsigned char)c < 0x20 || c == 0x7F || c == ' ';
        text->plain[text->plain_len++] = space ? ' ' : c;
        /* marks of markup and of quoting never belong to a message */
        if (!space && c != '*' && c != '`' && c != '\\' && c != '"' && c != '|') {
            text->squeezed[text->squeezed_len++] = c;
        }
    }
    text->plain[text->plain_len++] = '\n';
}

static size_t count_lines(const char *raw, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        n += raw[i] == '\n';
    }
    return n + 1;
}

bool mp_doctor_text_init(struct mp_doctor_text *text, struct mp_arena *arena, const char *raw,
                         size_t length)
{
    *text = (struct mp_doctor_text){.raw = raw, .raw_len = length};
    const size_t lines = count_lines(raw, length);
    text->plain = mp_arena_alloc(arena, length + lines + 1);
    text->squeezed = mp_arena_alloc(arena, length + 1);
    text->raw_line = mp_arena_calloc(arena, lines + 1, sizeof(size_t));
    text->plain_line = mp_arena_calloc(arena, lines + 1, sizeof(size_t));
    text->squeezed_line = mp_arena_calloc(arena, lines + 1, sizeof(size_t));
    if (text->plain == NULL || text->squeezed == NULL || text->raw_line == NULL ||
        text->plain_line == NULL || text->squeezed_line == NULL) {
        return false;
    }
    size_t start = 0;
    for (size_t i = 0; i < lines; i++) {
        const char *const end = start < length ? memchr(raw + start, '\n', length - start) : NULL;
        const size_t n = end != NULL ? (size_t)(end - (raw + start)) : length - start;
        text->raw_line[i] = start;
        text->plain_line[i] = text->plain_len;
        text->squeezed_line[i] = text->squeezed_len;
        add_line(text, raw + start, n);
        start = MP_MIN(start + n + 1, length);
    }
    text->n_lines = lines;
    text->raw_line[lines] = length;
    text->plain_line[lines] = text->plain_len;
    text->squeezed_line[lines] = text->squeezed_len;
    text->plain[text->plain_len] = '\0';
    text->squeezed[text->squeezed_len] = '\0';
    return true;
}

/* Last line that starts at or before offset. */
static size_t line_of(const size_t *starts, size_t n_lines, size_t offset)
{
    size_t low = 0, high = n_lines;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (starts[middle] <= offset) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

size_t mp_doctor_text_plain_line(const struct mp_doctor_text *text, size_t offset)
{
    return line_of(text->plain_line, text->n_lines, offset);
}

size_t mp_doctor_text_squeezed_line(const struct mp_doctor_text *text, size_t offset)
{
    return line_of(text->squeezed_line, text->n_lines, offset);
}
