/* SPDX-License-Identifier: MIT */
/*
 * What a sweep writes: rows as CSV, JSON or JSON Lines, and heat maps as SVG or HTML.
 *
 * Rows describe themselves: "grid" names the grid and its number of points, "point" the row. So a file that was cut off can be
 * continued, and parts of one grid put together, while rows of another are refused.
 */
#ifndef MP_REPORT_SWEEP_H
#define MP_REPORT_SWEEP_H

#include "plan/sweep.h"

#define MP_SWEEP_SCHEMA_VERSION 1

enum mp_sweep_format { MP_SWEEP_CSV, MP_SWEEP_JSONL, MP_SWEEP_JSON, MP_SWEEP_SVG, MP_SWEEP_HTML };

/** By the end of the name; CSV for NULL and "-". INPUT for any other end. */
enum memplan_status mp_sweep_format_of(const char *path, enum mp_sweep_format *format, struct memplan_error *err);

/* Where bytes go, piece by piece: a file that appears whole at its end, or standard output. */
struct mp_sink;
struct mp_sink *mp_sink_open(const char *path, struct memplan_error *err);
/** Empties text. */
enum memplan_status mp_sink_put(struct mp_sink *sink, struct mp_strbuf *text, struct memplan_error *err);
/** The file takes its place; with status not OK it is dropped instead, and that status returned. */
enum memplan_status mp_sink_close(struct mp_sink *sink, enum memplan_status status, struct memplan_error *err);

/** Rows that are decided, in order. format: CSV, JSONL or JSON. */
enum memplan_status mp_sweep_write_rows(const struct mp_sweep *sweep, enum mp_sweep_format format, struct mp_sink *sink,
                                        struct memplan_error *err);

/* A row as it stands in a file. Texts live until the next one is read. */
struct mp_sweep_record {
    const char *text; /* the line, without comma and line end */
    size_t length;
    const char *tag;
    uint64_t point;
    struct mp_sweep_row row;
    const char *error; /* of an ERROR row */
};
typedef enum memplan_status mp_sweep_record_visit(void *context, const struct mp_sweep_record *record, struct memplan_error *err);
/** Every row of a file; header (may be NULL): its first line where it is CSV. INPUT with line number for what is no sweep's output. */
enum memplan_status mp_sweep_read_rows(const char *path, enum mp_sweep_format format,
                                       struct mp_strbuf *header, mp_sweep_record_visit *visit,
                                       void *context, struct memplan_error *err);

/** Puts parts of one grid together; *missing: how many of its points are in none. */
enum memplan_status mp_sweep_merge(const char *const *paths, size_t n, enum mp_sweep_format format, struct mp_sink *sink, uint64_t *missing,
                                   struct memplan_error *err);

/* Heat maps. */
struct mp_sweep_map {
    const struct mp_sweep *sweep;
    size_t x, y; /* indices of axes; y SIZE_MAX: one row only */
};
/** "batch,seq", or NULL: the first two lists of numbers, else of anything. INPUT when there is no such list. */
enum memplan_status mp_sweep_map_init(struct mp_sweep_map *map, const struct mp_sweep *sweep, const char *axes, struct memplan_error *err);
/** One panel for each combination of the other lists. INPUT when there are too many to look at. */
enum memplan_status mp_sweep_write_svg(const struct mp_sweep_map *map, struct mp_strbuf *out, struct memplan_error *err);
enum memplan_status mp_sweep_write_html(const struct mp_sweep_map *map, struct mp_strbuf *out, struct memplan_error *err);

/** "6 points: 4 fit, 2 do not; 3 replayed, 1 like another card's, 2 by their requested peak". */
void mp_sweep_write_summary(const struct mp_sweep *sweep, struct mp_strbuf *out);

#endif
