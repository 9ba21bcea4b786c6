/* SPDX-License-Identifier: MIT */
/* Numbers with units: checked arithmetic, sizes and counts as people write them, and back. */
#ifndef MP_UNITS_H
#define MP_UNITS_H

#include "base/common.h"
#include "base/error.h"
#include "base/strbuf.h"

/** *out = a * b, or a + b; false (and *out untouched) on overflow. */
bool mp_mul_u64(uint64_t a, uint64_t b, uint64_t *out);
bool mp_add_u64(uint64_t a, uint64_t b, uint64_t *out);

/**
 * "80GiB", "80GB", "1.5GiB", "512MiB", "1073741824"; a bare "80G" is refused and both spellings
 * named.
 */
enum memplan_status mp_bytes_parse(const char *text, uint64_t *bytes, struct memplan_error *err);

/** Decimal integer with the whole text used; "4M" = 4*10^6 when suffixes is true (K, M, G). */
enum memplan_status mp_integer_parse(const char *text, bool suffixes, int64_t *value,
                                     struct memplan_error *err);

#define MP_NUMBER_MAX_LENGTH 63

/**
 * A decimal floating-point number, the n bytes of text used whole, with '.' whatever the locale.
 * INPUT when it is none, RANGE when it is not finite or longer than MP_NUMBER_MAX_LENGTH. No
 * message.
 */
enum memplan_status mp_double_parse(const char *text, size_t n, double *number);

/**
 * Shortest text that reads back equal, with '.' whatever the locale: "0.1", "3", "1e+20". Finite
 * numbers only.
 */
void mp_double_format(struct mp_strbuf *out, double number);

/** "17.43 GiB", "3.00 KiB", "512 B": two decimals, binary units. */
void mp_bytes_format(struct mp_strbuf *out, uint64_t bytes);
/** "12,345,678" */
void mp_grouped_format(struct mp_strbuf *out, uint64_t value);

/** The candidate closest to word by edit distance, or NULL when none is near enough to suggest. */
const char *mp_closest(const char *word, const char *const *candidates, size_t n);

#endif
