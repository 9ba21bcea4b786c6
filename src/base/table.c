/* SPDX-License-Identifier: MIT */
/*
 * Text tables: cells are kept as escaped strings in one row-major list, and column widths are found
 * when the table is written.
 */
#include "base/table.h"

#include "base/arena.h"
#include "base/utf8.h"

struct mp_table {
    char align[MP_TABLE_MAX_COLUMNS]; /* 'l' or 'r' */
    size_t n_columns;
    char **cells; /* [n_cells], row by row */
    size_t n_cells, cells_capacity;
    size_t *rules; /* rows that have a rule above them, ascending */
    size_t n_rules, rules_capacity;
    bool failed; /* memory ran out on the way */
};

struct mp_table *mp_table_new(const char *columns)
{
    struct mp_table *const table = mp_malloc(sizeof(*table));
    if (!table)
        return NULL;
    *table = (struct mp_table){0};
    for (; *columns && table->n_columns < MP_TABLE_MAX_COLUMNS; columns++)
        table->align[table->n_columns++] = *columns;
    table->n_columns += !table->n_columns; /* "" is one column, to the left */
    return table;
}

void mp_table_free(struct mp_table *table)
{
    if (!table)
        return;
    for (size_t i = 0; i < table->n_cells; i++)
        free(table->cells[i]);
    free(table->cells);
    free(table->rules);
    free(table);
}

static bool add_cell(struct mp_table *table, char *text)
{
    if (table->n_cells == table->cells_capacity) {
        const size_t capacity = table->cells_capacity ? table->cells_capacity * 2 : 64;
        char **const cells = mp_realloc(table->cells, capacity * sizeof(*cells));
        if (!cells)
            return false;
        table->cells = cells;
        table->cells_capacity = capacity;
    }
    table->cells[table->n_cells++] = text;
    return true;
}

void mp_table_cell(struct mp_table *table, const char *format, ...)
{
    if (!table || table->failed)
        return;
    struct mp_strbuf raw = MP_STRBUF_INIT;
    struct mp_strbuf text = MP_STRBUF_INIT;
    va_list ap;
    va_start(ap, format);
    mp_strbuf_vaddf(&raw, format, ap);
    va_end(ap);
    mp_text_escape(&text, mp_strbuf_text(&raw));
    text.failed |= raw.failed;
    mp_strbuf_release(&raw);
    char *const cell = mp_strbuf_detach(&text);
    if (!cell || !add_cell(table, cell)) {
        free(cell);
        table->failed = true;
    }
}

void mp_table_rule(struct mp_table *table)
{
    if (!table || table->failed)
        return;
    if (table->n_rules == table->rules_capacity) {
        const size_t capacity = table->rules_capacity ? table->rules_capacity * 2 : 8;
        size_t *const rules = mp_realloc(table->rules, capacity * sizeof(*rules));
        if (!rules) {
            table->failed = true;
            return;
        }
        table->rules = rules;
        table->rules_capacity = capacity;
    }
    table->rules[table->n_rules++] = table->n_cells / table->n_columns;
}

static void column_widths(const struct mp_table *table, size_t *widths)
{
    for (size_t column = 0; column < table->n_columns; column++)
        widths[column] = 0;
    for (size_t i = 0; i < table->n_cells; i++) {
        const size_t width = mp_utf8_width(table->cells[i]);
        size_t *const widest = &widths[i % table->n_columns];
        *widest = MP_MAX(*widest, width);
    }
}

static void write_row(const struct mp_table *table, size_t first, const size_t *widths,
                      struct mp_strbuf *out, size_t indent)
{
    size_t owed = indent; /* blanks that stand before the next visible text, if any follows */
    for (size_t column = 0; column < table->n_columns && first + column < table->n_cells;
         column++) {
        const char *const text = table->cells[first + column];
        const size_t missing = widths[column] - mp_utf8_width(text);
        const bool right = table->align[column] == 'r';
        if (*text) {
            mp_strbuf_pad(out, ' ', owed + (right ? missing : 0));
            mp_strbuf_addstr(out, text);
            owed = right ? 0 : missing;
        } else {
            owed += missing;
        }
        owed += 2;
    }
    mp_strbuf_addch(out, '\n');
}

static void write_rule(const struct mp_table *table, const size_t *widths, struct mp_strbuf *out,
                       size_t indent)
{
    size_t width = 2 * (table->n_columns - 1);
    for (size_t column = 0; column < table->n_columns; column++)
        width += widths[column];
    if (width > 0) {
        mp_strbuf_pad(out, ' ', indent);
        mp_strbuf_pad(out, '-', width);
    }
    mp_strbuf_addch(out, '\n');
}

void mp_table_write(const struct mp_table *table, struct mp_strbuf *out, size_t indent)
{
    if (!table || table->failed) {
        out->failed = true;
        return;
    }
    size_t widths[MP_TABLE_MAX_COLUMNS];
    column_widths(table, widths);
    size_t rule = 0;
    for (size_t first = 0; first < table->n_cells; first += table->n_columns) {
        for (; rule < table->n_rules && table->rules[rule] == first / table->n_columns; rule++)
            write_rule(table, widths, out, indent);
        write_row(table, first, widths, out, indent);
    }
    for (; rule < table->n_rules; rule++)
        write_rule(table, widths, out, indent);
}

void mp_text_escape(struct mp_strbuf *out, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        const size_t length = mp_utf8_sequence(text, left);
        const unsigned char byte = (unsigned char)*text;
        /* U+0080 to U+009F are control characters, too: 0xc2 0x80 to 0xc2 0x9f */
        const bool control = byte < 0x20 || byte == 0x7f ||
                             (length == 2 && byte == 0xc2 && (unsigned char)text[1] < 0xa0);
        const size_t step = length ? length : 1;
        if (length && !control)
            mp_strbuf_add(out, text, step);
        else
            for (size_t i = 0; i < step; i++)
                mp_strbuf_addf(out, "\\x%02x", (unsigned)(unsigned char)text[i]);
        text += step;
        left -= step;
    }
}
