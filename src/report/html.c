/* SPDX-License-Identifier: MIT */
/* The frame of a page and its small parts. */
#include "report/html.h"

#include <inttypes.h>

#include "base/units.h"
#include "report/assets.h"
#include "report/svg.h"

void mp_html_text(struct mp_strbuf *out, const char *text) { mp_svg_escape(out, text); }

void mp_html_open(struct mp_strbuf *out, const char *title)
{
    mp_strbuf_addstr(out,
                     "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<meta name=\"color-scheme\" content=\"light dark\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
                     "script-src 'unsafe-inline'\">\n<title>");
    mp_html_text(out, title);
    mp_strbuf_addstr(out, "</title>\n<style>\n");
    mp_strbuf_addstr(out, mp_asset_report_css);
    mp_svg_style(out, "", "t");
    mp_svg_style(out, "#timeline .band", "z");
    mp_strbuf_addstr(out, "</style>\n</head>\n<body>\n<svg class=\"textures\" aria-hidden=\"true\" width=\"0\" height=\"0\">\n");
    mp_svg_textures(out, "t");
    mp_svg_textures(out, "z");
    mp_strbuf_addstr(out, "</svg>\n");
}

/* Inside <script> nothing may look like a tag; in JSON such characters only stand in strings. */
static void add_script_data(struct mp_strbuf *out, const char *json)
{
    for (const char *c = json; *c; c++) {
        switch (*c) {
        case '<': mp_strbuf_addstr(out, "\\u003c"); break;
        case '>': mp_strbuf_addstr(out, "\\u003e"); break;
        case '&': mp_strbuf_addstr(out, "\\u0026"); break;
        default: mp_strbuf_addch(out, *c);
        }
    }
}

void mp_html_close(struct mp_strbuf *out, const char *data_json)
{
    if (data_json) {
        mp_strbuf_addstr(out, "<script type=\"application/json\" id=\"data\">");
        add_script_data(out, data_json);
        mp_strbuf_addstr(out, "</script>\n<script>\n");
        mp_strbuf_addstr(out, mp_asset_report_js);
        mp_strbuf_addstr(out, "</script>\n");
    }
    mp_strbuf_addstr(out, "</body>\n</html>\n");
}

void mp_html_heading(struct mp_strbuf *out, const char *id, const char *text)
{
    mp_strbuf_addf(out, "<h2 id=\"%s\">", id);
    mp_html_text(out, text);
    mp_strbuf_addstr(out, "</h2>\n");
}

void mp_html_bytes(struct mp_strbuf *out, const char *key, uint64_t bytes)
{
    mp_strbuf_addf(out, "<data value=\"%" PRIu64 "\"", bytes);
    if (key)
        mp_strbuf_addf(out, " data-key=\"%s\"", key);
    mp_strbuf_addstr(out, " title=\"");
    mp_grouped_format(out, bytes);
    mp_strbuf_addstr(out, " bytes\">");
    mp_bytes_format(out, bytes);
    mp_strbuf_addstr(out, "</data>");
}

void mp_html_exact(struct mp_strbuf *out, uint64_t bytes)
{
    mp_strbuf_addf(out, "<data value=\"%" PRIu64 "\">", bytes);
    mp_grouped_format(out, bytes);
    mp_strbuf_addstr(out, "</data>");
}

void mp_html_swatch(struct mp_strbuf *out, unsigned band)
{
    mp_strbuf_addf(
        out,
        "<svg class=\"swatch\" viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect width=\"12\" height=\"12\" class=\"%s\"/></svg>",
        mp_svg_band_class(band));
}

void mp_html_table(struct mp_strbuf *out, const char *id, const char *caption, const char *heads)
{
    mp_strbuf_addf(out, "<div class=\"scroll\"><table id=\"%s\">\n<caption>", id);
    mp_html_text(out, caption);
    mp_strbuf_addstr(out, "</caption>\n<thead><tr>");
    while (*heads) {
        const size_t length = strcspn(heads, "|");
        const bool number = *heads == '#';
        mp_strbuf_addf(out, "<th scope=\"col\"%s>%.*s</th>", number ? " class=\"n\"" : "", (int)(length - number), heads + number);
        heads += length + (heads[length] == '|');
    }
    mp_strbuf_addstr(out, "</tr></thead>\n<tbody>\n");
}

void mp_html_end_table(struct mp_strbuf *out) { mp_strbuf_addstr(out, "</tbody>\n</table></div>\n"); }
