/* SPDX-License-Identifier: MIT */
/* Text tables: columns aligned left or right, widths counted in characters, not bytes. */
#ifndef MP_TABLE_H
#define MP_TABLE_H

#include "base/strbuf.h"

#define MP_TABLE_MAX_COLUMNS 16

struct mp_table; /* opaque; one malloc'ed object */

/**
 * Columns by a format string: "lrr" is left, right, right. NULL when memory is exhausted; the other
 * functions take that NULL, and writing it sets out->failed.
 */
struct mp_table *mp_table_new(const char *columns);
void mp_table_free(struct mp_table *table);
/**
 * One cell after another; a row ends when its last column is filled. Control characters are
 * escaped.
 */
void mp_table_cell(struct mp_table *table, const char *format, ...) MP_PRINTF(2, 3);
/** A horizontal rule before the next row. */
void mp_table_rule(struct mp_table *table);
/** Render with every line indented; columns are separated by two blanks, no trailing blanks. */
void mp_table_write(const struct mp_table *table, struct mp_strbuf *out, size_t indent);

/**
 * Append text with control characters and invalid UTF-8 escaped as \xNN, so that a name from a file
 * cannot drive the terminal.
 */
void mp_text_escape(struct mp_strbuf *out, const char *text);

#endif
