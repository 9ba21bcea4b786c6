/* SPDX-License-Identifier: MIT */
/* Numbers with units, read and written without losing a byte. */
#include "base/units.h"

#include <math.h>

bool mp_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (a && b > UINT64_MAX / a)
        return false;
    *out = a * b;
    return true;
}

bool mp_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    if (b > UINT64_MAX - a)
        return false;
    *out = a + b;
    return true;
}

static const struct {
    const char *name;
    uint64_t bytes;
} byte_units[] = {
    {"", 1},
    {"B", 1},
    {"KiB", UINT64_C(1) << 10},
    {"MiB", UINT64_C(1) << 20},
    {"GiB", UINT64_C(1) << 30},
    {"TiB", UINT64_C(1) << 40},
    {"PiB", UINT64_C(1) << 50},
    {"EiB", UINT64_C(1) << 60},
    {"kB", UINT64_C(1000)},
    {"KB", UINT64_C(1000)},
    {"MB", UINT64_C(1000000)},
    {"GB", UINT64_C(1000000000)},
    {"TB", UINT64_C(1000000000000)},
    {"PB", UINT64_C(1000000000000000)},
    {"EB", UINT64_C(1000000000000000000)},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static size_t count_digits(const char *text)
{
    size_t n = 0;
    while (is_digit(text[n]))
        n++;
    return n;
}

/* Decimal digits to an integer; false on overflow. */
static bool digits_value(const char *digits, size_t n, uint64_t *value)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!mp_mul_u64(sum, 10, &sum) || !mp_add_u64(sum, (uint64_t)(digits[i] - '0'), &sum))
            return false;
    }
    *value = sum;
    return true;
}

/*
 * floor(0.digits * unit): Horner's rule from the last digit, where cutting off at each step is
 * exact.
 */
static uint64_t fraction_of(const char *digits, size_t n, uint64_t unit)
{
    uint64_t sum = 0;
    while (n-- > 0)
        sum = ((uint64_t)(digits[n] - '0') * unit + sum) / 10;
    return sum;
}

static enum memplan_status unknown_byte_unit(const char *text, const char *unit,
                                             struct memplan_error *err)
{
    if (strlen(unit) == 1 && strchr("kKMGTPE", unit[0])) {
        const int prefix = unit[0];
        const int number = (int)(unit - text);
        return mp_error_set(
            err, MEMPLAN_STATUS_INPUT,
            "'%s' is ambiguous; write %.*s%ciB (powers of 1024) or %.*s%cB (powers of 1000)", text,
            number, text, prefix == 'k' ? 'K' : prefix, number, text, prefix);
    }
    return mp_error_set(
        err, MEMPLAN_STATUS_INPUT,
        "'%s' has an unknown unit '%s'; use B, KiB, MiB, GiB, TiB or kB, MB, GB, TB", text, unit);
}

enum memplan_status mp_bytes_parse(const char *text, uint64_t *bytes, struct memplan_error *err)
{
    const size_t n_whole = count_digits(text);
    const char *rest = text + n_whole;
    const char *fraction = rest;
    size_t n_fraction = 0;
    if (n_whole > 0 && *rest == '.') {
        fraction = rest + 1;
        n_fraction = count_digits(fraction);
        rest = fraction + n_fraction;
    }
    if (n_whole == 0 || (fraction != text + n_whole && n_fraction == 0))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "'%s' is not a size; write for example 80GiB, 512MiB or 1073741824",
                            text);
    if (*rest == ' ')
        rest++;
    for (size_t i = 0; i < MP_ARRAY_LEN(byte_units); i++) {
        const uint64_t unit = byte_units[i].bytes;
        uint64_t whole = 0;
        if (strcmp(rest, byte_units[i].name) != 0)
            continue;
        if (unit == 1 && n_fraction > 0)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                "'%s' is not a whole number of bytes; add a unit such as GiB or GB",
                                text);
        if (!digits_value(text, n_whole, &whole) || !mp_mul_u64(whole, unit, &whole) ||
            !mp_add_u64(whole, fraction_of(fraction, n_fraction, unit), &whole))
            return mp_error_set(err, MEMPLAN_STATUS_RANGE, "'%s' is more than 2^64 - 1 bytes",
                                text);
        *bytes = whole;
        return MEMPLAN_STATUS_OK;
    }
    return unknown_byte_unit(text, rest, err);
}

/* The factor of a count suffix, 1 for none, 0 for an unknown one. */
static uint64_t count_factor(const char *suffix, bool suffixes)
{
    if (*suffix == '\0')
        return 1;
    if (!suffixes || suffix[1] != '\0')
        return 0;
    switch (suffix[0]) {
    case 'k':
    case 'K': return 1000;
    case 'M': return 1000000;
    case 'G': return 1000000000;
    default: return 0;
    }
}

enum memplan_status mp_integer_parse(const char *text, bool suffixes, int64_t *value,
                                     struct memplan_error *err)
{
    const bool negative = text[0] == '-';
    const char *const digits = text + (negative || text[0] == '+');
    const size_t n = count_digits(digits);
    const uint64_t factor = count_factor(digits + n, suffixes);
    if (n == 0 || factor == 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%s' is not an integer%s", text,
                            suffixes ? " (K, M and G stand for 10^3, 10^6 and 10^9)" : "");
    const uint64_t limit = (uint64_t)INT64_MAX + negative;
    uint64_t magnitude = 0;
    if (!digits_value(digits, n, &magnitude) || !mp_mul_u64(magnitude, factor, &magnitude) ||
        magnitude > limit)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "'%s' does not fit 64 bits", text);
    if (!negative)
        *value = (int64_t)magnitude;
    else
        *value = magnitude ? -(int64_t)(magnitude - 1) - 1 : 0;
    return MEMPLAN_STATUS_OK;
}

/*
 * The decimal point of the running locale, found without localeconv(), which threads may not
 * share.
 */
static char decimal_point(void)
{
    char text[8];
    const int n = snprintf(text, sizeof(text), "%.1f", 0.5);
    return n >= 3 ? text[1] : '.';
}

static bool is_decimal_number(const char *text, size_t n)
{
    size_t i = n > 0 && (text[0] == '-' || text[0] == '+');
    size_t n_digits = 0;
    for (; i < n && is_digit(text[i]); i++)
        n_digits++;
    if (i < n && text[i] == '.')
        i++;
    for (; i < n && is_digit(text[i]); i++)
        n_digits++;
    if (n_digits == 0)
        return false;
    if (i < n && (text[i] == 'e' || text[i] == 'E')) {
        i++;
        i += i < n && (text[i] == '-' || text[i] == '+');
        const size_t exponent = i;
        while (i < n && is_digit(text[i]))
            i++;
        if (i == exponent)
            return false;
    }
    return i == n;
}

enum memplan_status mp_double_parse(const char *text, size_t n, double *number)
{
    char copy[MP_NUMBER_MAX_LENGTH + 1];
    if (!is_decimal_number(text, n))
        return MEMPLAN_STATUS_INPUT;
    if (n > MP_NUMBER_MAX_LENGTH)
        return MEMPLAN_STATUS_RANGE;
    memcpy(copy, text, n);
    copy[n] = '\0';
    char *const point = strchr(copy, '.');
    if (point)
        *point = decimal_point();
    const double parsed = strtod(copy, NULL);
    if (!isfinite(parsed))
        return MEMPLAN_STATUS_RANGE;
    *number = parsed;
    return MEMPLAN_STATUS_OK;
}

void mp_double_format(struct mp_strbuf *out, double number)
{
    char text[40];
    /* 15 digits are enough for what people write, 17 for every double; %g drops trailing zeros */
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, number);
        const double back = strtod(text, NULL);
        if (!(back < number) && !(back > number))
            break;
    }
    const char point = decimal_point();
    char *const at = point == '.' ? NULL : strchr(text, point);
    if (at)
        *at = '.';
    mp_strbuf_addstr(out, text);
}

void mp_bytes_format(struct mp_strbuf *out, uint64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        mp_strbuf_addf(out, "%llu B", (unsigned long long)bytes);
        return;
    }
    unsigned shift = 10; /* the unit is 2^shift */
    while (shift < 60 && bytes >> shift >= 1024)
        shift += 10;
    uint64_t remainder = bytes & ((UINT64_C(1) << shift) - 1);
    const unsigned spare = shift == 60 ? 10 : 0; /* so that times 100 does not overflow */
    remainder >>= spare;
    uint64_t hundredths =
        (bytes >> shift) * 100 +
        ((remainder * 100 + (UINT64_C(1) << (shift - spare - 1))) >> (shift - spare));
    if (hundredths >= 102400 && shift < 60) { /* 1023.996 KiB is 1.00 MiB */
        hundredths = 100;
        shift += 10;
    }
    mp_strbuf_addf(out, "%llu.%02u %s", (unsigned long long)(hundredths / 100),
                   (unsigned)(hundredths % 100), names[shift / 10]);
}

void mp_grouped_format(struct mp_strbuf *out, uint64_t value)
{
    char digits[24];
    const int n = snprintf(digits, sizeof(digits), "%llu", (unsigned long long)value);
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            mp_strbuf_addch(out, ',');
        mp_strbuf_addch(out, digits[i]);
    }
}

enum { word_max = 64 };

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool has_prefix(const char *text, const char *prefix)
{
    while (*prefix && lower(*text) == lower(*prefix)) {
        text++;
        prefix++;
    }
    return *prefix == '\0';
}

/* Levenshtein's distance without regard to case; two rows, b at most word_max long. */
static size_t edit_distance(const char *a, const char *b)
{
    size_t row[word_max + 1];
    const size_t n = strlen(b);
    for (size_t k = 0; k <= n; k++)
        row[k] = k;
    for (size_t i = 1; *a; a++, i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t k = 1; k <= n; k++) {
            const size_t replaced = diagonal + (lower(*a) != lower(b[k - 1]));
            const size_t shorter = MP_MIN(row[k], row[k - 1]) + 1;
            diagonal = row[k];
            row[k] = MP_MIN(replaced, shorter);
        }
    }
    return row[n];
}

const char *mp_closest(const char *word, const char *const *candidates, size_t n)
{
    const size_t length = strlen(word);
    if (length == 0 || length > word_max)
        return NULL;
    const char *closest = NULL;
    size_t least = length / 3 + 2; /* a third of the word may be wrong */
    for (size_t i = 0; i < n; i++) {
        if (strlen(candidates[i]) > word_max)
            continue;
        size_t distance = edit_distance(word, candidates[i]);
        if (distance > 1 && length >= 2 && has_prefix(candidates[i], word))
            distance = 1; /* "a100" is on its way to "A100-80G" */
        if (distance < least) {
            least = distance;
            closest = candidates[i];
        }
    }
    return closest;
}
