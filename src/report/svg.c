/* SPDX-License-Identifier: MIT */
/*
 * Numbers are written from integers of hundredths, so that no locale puts a comma into a path. The palette is one table, from which
 * the rules for classes and the textures come.
 */
#include "report/svg.h"

#include <inttypes.h>
#include <math.h>

#include "base/table.h"
#include "base/units.h"

/* ---- palette ---- */

enum texture { PLAIN, RISING, FALLING, DOTS, BARS, TEXTURES };

/* Fill, ink of the texture, texture. In grey the order is dark, light, middle, light, … */
static const struct {
    const char *fill, *ink;
    enum texture texture;
} palette[MP_SVG_BANDS] = {
    [MP_CATEGORY_PARAMETER] = {"#0072b2", "#0072b2", PLAIN},
    [MP_CATEGORY_BUFFER] = {"#8c8c8c", "#d9d9d9", BARS},
    [MP_CATEGORY_GRADIENT] = {"#d55e00", "#a84a00", RISING},
    [MP_CATEGORY_OPTIMIZER_STATE] = {"#f2b134", "#c98a12", FALLING},
    [MP_CATEGORY_ACTIVATION] = {"#009e73", "#009e73", PLAIN},
    [MP_CATEGORY_LOGITS] = {"#cc79a7", "#8f4a72", DOTS},
    [MP_CATEGORY_TEMPORARY] = {"#f0e442", "#b8ad17", BARS},
    [MP_CATEGORY_WORKSPACE] = {"#56b4e9", "#2b7fae", RISING},
    [MP_CATEGORY_COMMUNICATION] = {"#6a51a3", "#b6a6d9", FALLING},
    [MP_CATEGORY_INPUT] = {"#7f5539", "#c9a58a", BARS},
    [MP_SVG_BAND_ROUNDING] = {"#555555", "#bbbbbb", DOTS},
    [MP_SVG_BAND_HOLE] = {"#ffffff", "#999999", RISING},
    [MP_SVG_BAND_OUTSIDE] = {"#b0b7bf", "#b0b7bf", PLAIN},
    [MP_SVG_BAND_OTHERS] = {"#d8dce0", "#8a929a", FALLING},
};

static const char *const textures[TEXTURES] = {
    [PLAIN] = "",
    [RISING] = "M-1 7L7-1M-1 1L1-1M5 7L7 5",
    [FALLING] = "M-1-1L7 7M-1 5L1 7M5-1L7 1",
    [DOTS] = "M1.5 1.5h1v1h-1zM4.5 4.5h1v1h-1z",
    [BARS] = "M0 3h6",
};

const char *mp_svg_band_class(unsigned band)
{
    static const char *const names[] = {"b0", "b1", "b2", "b3", "b4", "b5", "b6", "b7", "b8", "b9", "b10", "b11", "b12", "b13"};
    return names[band];
}

void mp_svg_style(struct mp_strbuf *out, const char *selector, const char *prefix)
{
    for (unsigned i = 0; i < MP_SVG_BANDS; i++) {
        if (palette[i].texture == PLAIN)
            mp_strbuf_addf(out, "%s.%s{fill:%s}", selector, mp_svg_band_class(i), palette[i].fill);
        else
            mp_strbuf_addf(out, "%s.%s{fill:url(#%s%u)}", selector, mp_svg_band_class(i), prefix, i);
    }
    mp_strbuf_addch(out, '\n');
}

void mp_svg_textures(struct mp_strbuf *out, const char *prefix)
{
    mp_strbuf_addstr(out, "<defs>\n");
    for (unsigned i = 0; i < MP_SVG_BANDS; i++)
        if (palette[i].texture != PLAIN)
            mp_strbuf_addf(out,
                           "<pattern id=\"%s%u\" class=\"texture\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">"
                           "<rect width=\"6\" height=\"6\" fill=\"%s\"/><path d=\"%s\" stroke=\"%s\" fill=\"none\"/></pattern>\n",
                           prefix, i, palette[i].fill, textures[palette[i].texture], palette[i].ink);
    mp_strbuf_addstr(out, "</defs>\n");
}

/* ---- text and numbers ---- */

void mp_svg_escape(struct mp_strbuf *out, const char *text)
{
    struct mp_strbuf plain = MP_STRBUF_INIT;
    mp_text_escape(&plain, text);
    for (const char *c = mp_strbuf_text(&plain); *c; c++) {
        switch (*c) {
        case '<': mp_strbuf_addstr(out, "&lt;"); break;
        case '>': mp_strbuf_addstr(out, "&gt;"); break;
        case '&': mp_strbuf_addstr(out, "&amp;"); break;
        case '"': mp_strbuf_addstr(out, "&quot;"); break;
        case '\'': mp_strbuf_addstr(out, "&#39;"); break;
        default: mp_strbuf_addch(out, *c);
        }
    }
    out->failed = out->failed || plain.failed;
    mp_strbuf_release(&plain);
}

void mp_svg_number(struct mp_strbuf *out, double number)
{
    const int64_t hundredths = llround(number * 100);
    const uint64_t size = hundredths < 0 ? (uint64_t)-hundredths : (uint64_t)hundredths;
    mp_strbuf_addf(out, "%s%" PRIu64, hundredths < 0 ? "-" : "", size / 100);
    if (size % 100)
        mp_strbuf_addf(out, size % 10 ? ".%02" PRIu64 : ".%" PRIu64, size % 10 ? size % 100 : size % 100 / 10);
}

/* ---- shapes ---- */

static void attribute(struct mp_strbuf *out, const char *name, double value)
{
    mp_strbuf_addf(out, " %s=\"", name);
    mp_svg_number(out, value);
    mp_strbuf_addch(out, '"');
}

static void classed(struct mp_strbuf *out, const char *class_name)
{
    if (class_name)
        mp_strbuf_addf(out, " class=\"%s\"", class_name);
}

void mp_svg_rect(struct mp_strbuf *out, double x, double y, double width, double height, const char *class_name)
{
    mp_strbuf_addstr(out, "<rect");
    attribute(out, "x", x);
    attribute(out, "y", y);
    attribute(out, "width", width);
    attribute(out, "height", height);
    classed(out, class_name);
    mp_strbuf_addstr(out, "/>\n");
}

void mp_svg_line(struct mp_strbuf *out, double x1, double y1, double x2, double y2, const char *class_name)
{
    mp_strbuf_addstr(out, "<line");
    attribute(out, "x1", x1);
    attribute(out, "y1", y1);
    attribute(out, "x2", x2);
    attribute(out, "y2", y2);
    classed(out, class_name);
    mp_strbuf_addstr(out, "/>\n");
}

void mp_svg_text(struct mp_strbuf *out, double x, double y, enum mp_svg_anchor anchor, const char *class_name, const char *text)
{
    mp_strbuf_addstr(out, "<text");
    attribute(out, "x", x);
    attribute(out, "y", y);
    if (anchor != MP_SVG_START)
        mp_strbuf_addf(out, " text-anchor=\"%s\"", anchor == MP_SVG_MIDDLE ? "middle" : "end");
    classed(out, class_name);
    mp_strbuf_addch(out, '>');
    mp_svg_escape(out, text);
    mp_strbuf_addstr(out, "</text>\n");
}

double mp_svg_text_width(const char *text, double font)
{
    size_t characters = 0;
    for (; *text; text++)
        characters += ((unsigned char)*text & 0xc0) != 0x80; /* not the rest of a UTF-8 character */
    return 0.56 * font * (double)characters;
}

/* ---- documents ---- */

/* Colours of a drawing that is a file: ink on white. A page has its own. */
static const char standalone_style[] =
    "text{font-family:\"DejaVu Sans\",Verdana,Arial,sans-serif;fill:#1a1a1a}"
    ".small{font-size:85%}.strong{font-weight:bold}.soft{fill:#555}"
    ".paper{fill:#fff}.halo{stroke:#fff;stroke-width:2.5;paint-order:stroke;stroke-linejoin:round}"
    ".grid{stroke:#ddd;stroke-width:.5}.axis{stroke:#333;stroke-width:.8}.edge{fill:none;stroke:#fff;stroke-width:.4}"
    ".phase{stroke:#888;stroke-width:.5;stroke-dasharray:1.5 1.5}"
    ".reserved{fill:none;stroke:#000;stroke-width:1.1}.capacity{stroke:#b00020;stroke-width:1.2;stroke-dasharray:5 2.5}"
    ".mark{fill:#b00020}.marker{stroke:#b00020;stroke-width:.8}.strip0{fill:#eef1f4}.strip1{fill:#dde3e9}";

void mp_svg_open(struct mp_strbuf *out, const struct mp_svg_document *d)
{
    mp_strbuf_addstr(out, "<svg");
    if (d->standalone)
        mp_strbuf_addstr(out, " xmlns=\"http://www.w3.org/2000/svg\"");
    if (d->id)
        mp_strbuf_addf(out, " id=\"%s\"", d->id);
    mp_strbuf_addstr(out, " viewBox=\"0 0 ");
    mp_svg_number(out, d->width);
    mp_strbuf_addch(out, ' ');
    mp_svg_number(out, d->height);
    mp_strbuf_addch(out, '"');
    if (d->standalone) {
        attribute(out, "width", 2 * d->width);
        attribute(out, "height", 2 * d->height);
    }
    mp_strbuf_addf(out, "%s%s>\n", d->attributes ? " " : " role=\"img\"", d->attributes ? d->attributes : "");
    mp_strbuf_addstr(out, "<title>");
    mp_svg_escape(out, d->title);
    mp_strbuf_addstr(out, "</title>\n<desc>");
    mp_svg_escape(out, d->description);
    mp_strbuf_addstr(out, "</desc>\n");
    if (!d->standalone)
        return;
    mp_strbuf_addf(out, "<style>\n%s\n", standalone_style);
    mp_svg_style(out, "", "t");
    mp_strbuf_addstr(out, "</style>\n");
    mp_svg_textures(out, "t");
    mp_svg_rect(out, 0, 0, d->width, d->height, "paper");
}

void mp_svg_close(struct mp_strbuf *out) { mp_strbuf_addstr(out, "</svg>\n"); }

/* ---- axes ---- */

static uint64_t byte_unit(uint64_t top)
{
    uint64_t unit = 1;
    while (top / unit >= 1024 && unit < UINT64_C(1) << 50)
        unit <<= 10;
    return unit;
}

/* 1, 2, 5, 10, 20, 50, … times the unit, as many as fit. */
static size_t fill_ticks(uint64_t top, uint64_t unit, unsigned want, uint64_t ticks[MP_SVG_MAX_TICKS])
{
    uint64_t step = unit;
    for (int i = 0; top / step > want; i++) {
        const uint64_t next = i % 3 == 1 ? step / 2 * 5 : step * 2;
        if (next < step)
            break;
        step = next;
    }
    size_t n = 0;
    for (uint64_t at = 0; at <= top && n < MP_SVG_MAX_TICKS; at += step) {
        ticks[n++] = at;
        if (at > UINT64_MAX - step)
            break;
    }
    return n;
}

size_t mp_svg_byte_ticks(uint64_t top, unsigned want, uint64_t ticks[MP_SVG_MAX_TICKS])
{
    uint64_t unit = byte_unit(top);
    if (top / unit < 3 && unit > 1)
        unit >>= 10; /* 1.5 GiB: in hundreds of MiB */
    return fill_ticks(top, unit, want, ticks);
}

size_t mp_svg_count_ticks(uint64_t top, unsigned want, uint64_t ticks[MP_SVG_MAX_TICKS]) { return fill_ticks(top, 1, want, ticks); }

void mp_svg_byte_label(struct mp_strbuf *out, uint64_t bytes)
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    unsigned unit = 0;
    if (!bytes) {
        mp_strbuf_addch(out, '0');
        return;
    }
    while (unit + 1 < MP_ARRAY_LEN(names) && bytes % 1024 == 0) {
        bytes >>= 10;
        unit++;
    }
    mp_strbuf_addf(out, "%" PRIu64 " %s", bytes, names[unit]);
}

/* ---- legends ---- */

double mp_svg_legend(struct mp_strbuf *out, double x, double y, double width, double font, const struct mp_svg_legend_entry *entries,
                     size_t n)
{
    const double swatch = font * 0.9, line = font * 1.5;
    double at = x, top = y;
    for (size_t i = 0; i < n; i++) {
        const double wide = swatch + font * 0.45 + mp_svg_text_width(entries[i].text, font) + font;
        if (at > x && at + wide - font > x + width) {
            at = x;
            top += line;
        }
        if (entries[i].line)
            mp_svg_line(out, at, top + swatch / 2, at + swatch * 1.3, top + swatch / 2, entries[i].class_name);
        else
            mp_svg_rect(out, at, top, swatch * 1.3, swatch, entries[i].class_name);
        mp_svg_text(out, at + swatch * 1.3 + font * 0.35, top + swatch * 0.88, MP_SVG_START, NULL, entries[i].text);
        at += wide + swatch * 0.3;
    }
    return top + line - y;
}
