/* SPDX-License-Identifier: MIT */
/*
 * One self-contained HTML page: style and script inside, nothing fetched (a content security policy forbids it), light or dark as the
 * reader's system is, printable. Everything that is text goes through mp_html_text().
 */
#ifndef MP_HTML_H
#define MP_HTML_H

#include "base/strbuf.h"

/* The size that no page exceeds: it has to go through a mail. */
#define MP_HTML_MAX_BYTES 2000000

/** Head, style, textures; the body is open. */
void mp_html_open(struct mp_strbuf *out, const char *title);
/** The script, which reads the element of id "data", and the end; data_json NULL: a page without script. */
void mp_html_close(struct mp_strbuf *out, const char *data_json);

/** Escaped. */
void mp_html_text(struct mp_strbuf *out, const char *text);
/** "<h2 id=...>": sections have names that can be linked to. */
void mp_html_heading(struct mp_strbuf *out, const char *id, const char *text);

/**
 * "17.43 GiB" as a <data> element that carries the exact number, and its key in --json ("reserved_bytes", "parts.3.bytes"; NULL: none).
 */
void mp_html_bytes(struct mp_strbuf *out, const char *key, uint64_t bytes);
/** "18,714,987,520" likewise, without the key. */
void mp_html_exact(struct mp_strbuf *out, uint64_t bytes);
/** A swatch of a band. */
void mp_html_swatch(struct mp_strbuf *out, unsigned band);

/** <table> with a caption, column heads by '|' ("part|bytes|share"; a head that begins with '#' is of numbers). */
void mp_html_table(struct mp_strbuf *out, const char *id, const char *caption, const char *heads);
void mp_html_end_table(struct mp_strbuf *out);

#endif
