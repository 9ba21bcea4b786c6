/* SPDX-License-Identifier: MIT */
/*
 * Drawings as SVG text: shapes, axes, legends, and one palette.
 *
 * Colours are classes, not attributes: `b0` … `b11` fill a band, mp_svg_style() says with what. The same drawing is then light on a
 * dark page and dark on paper. Neighbouring bands differ in lightness and in texture, not in hue alone, so that they are told apart in
 * grey and by colour-blind readers (the hues are those of Okabe and Ito, 2008).
 *
 *     mp_svg_open(out, &(struct mp_svg_document){.width = 380, .height = 270, .title = "...", .standalone = true});
 *     mp_svg_rect(out, 10, 10, 100, 20, "b1");
 *     mp_svg_close(out);
 */
#ifndef MP_SVG_H
#define MP_SVG_H

#include "base/strbuf.h"
#include "shadow/program.h"

/* Bands beside the categories, whose numbers they follow. */
enum {
    MP_SVG_BAND_ROUNDING = MP_CATEGORY_COUNT, /* allocated, not requested */
    MP_SVG_BAND_HOLE,                         /* reserved, not allocated */
    MP_SVG_BAND_OUTSIDE,                      /* context and kernels */
    MP_SVG_BAND_OTHERS,                       /* used by others */
    MP_SVG_BANDS
};

struct mp_svg_document {
    double width, height;    /* of its coordinates */
    const char *id;          /* of the element; NULL: none */
    const char *title, *description; /* the text alternative */
    const char *attributes;  /* more attributes of the element; NULL: none */
    bool standalone;         /* a file of its own: with namespace, style, textures and background */
};

void mp_svg_open(struct mp_strbuf *out, const struct mp_svg_document *document);
void mp_svg_close(struct mp_strbuf *out);
/**
 * What a document that holds drawings needs: rules for the classes of bands, under a selector ("": everywhere), and the textures they
 * name, an element. A drawing that is stretched has textures of its own, told apart by the prefix of their ids.
 */
void mp_svg_style(struct mp_strbuf *out, const char *selector, const char *prefix);
void mp_svg_textures(struct mp_strbuf *out, const char *prefix);

/** Text with the characters that markup needs escaped, also inside attributes; control characters and bad UTF-8 as \xNN. */
void mp_svg_escape(struct mp_strbuf *out, const char *text);
/** A coordinate: at most two decimals, '.' whatever the locale. */
void mp_svg_number(struct mp_strbuf *out, double number);

void mp_svg_rect(struct mp_strbuf *out, double x, double y, double width, double height, const char *class_name);
void mp_svg_line(struct mp_strbuf *out, double x1, double y1, double x2, double y2, const char *class_name);
enum mp_svg_anchor { MP_SVG_START, MP_SVG_MIDDLE, MP_SVG_END };
void mp_svg_text(struct mp_strbuf *out, double x, double y, enum mp_svg_anchor anchor, const char *class_name, const char *text);
/** "b3" */
const char *mp_svg_band_class(unsigned band);

/**
 * Round values from 0 to at most `top` for an axis: 1, 2 or 5 times a power of ten of the unit that fits (GiB as a rule), `want` of
 * them or a few more or less. Returns how many, at most MP_SVG_MAX_TICKS.
 */
#define MP_SVG_MAX_TICKS 16
size_t mp_svg_byte_ticks(uint64_t top, unsigned want, uint64_t ticks[MP_SVG_MAX_TICKS]);
size_t mp_svg_count_ticks(uint64_t top, unsigned want, uint64_t ticks[MP_SVG_MAX_TICKS]);
/** The label of a tick in the unit of its axis: "20 GiB", "0". */
void mp_svg_byte_label(struct mp_strbuf *out, uint64_t bytes);

struct mp_svg_legend_entry {
    const char *class_name, *text;
    bool line; /* a line, not an area */
};
/** Swatches with names from left to right, wrapped at width. Returns the height that was used. */
double mp_svg_legend(struct mp_strbuf *out, double x, double y, double width, double font, const struct mp_svg_legend_entry *entries,
                     size_t n);
/** A rough width of a text set in `font` units, for wrapping. */
double mp_svg_text_width(const char *text, double font);

#endif
