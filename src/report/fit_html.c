/* SPDX-License-Identifier: MIT */
/*
 * `memplan fit --html`: the facts of the text report as a page, with the timeline and the memory map. Every number that --json has too
 * carries its key there, which is how tests compare them.
 */
#include <inttypes.h>
#include <math.h>

#include "base/units.h"
#include "memplan.h"
#include "report/fit_html_data.h"
#include "report/html.h"
#include "report/ranks.h"
#include "report/report.h"
#include "report/svg.h"

struct page {
    const struct mp_fit_report *report;
    const struct mp_evaluation *e;
    const struct mp_timeline *timeline;
    struct mp_timeline_view view;
    const struct mp_memory_map *map;
    struct mp_rank_numbers ranks[MP_MOST_RANKS];
    size_t n_ranks;
    struct mp_arena *arena;
    struct mp_strbuf *out;
};

static void add_key_bytes(struct mp_strbuf *out, uint64_t bytes, const char *format, ...) MP_PRINTF(3, 4);

static void add_key_bytes(struct mp_strbuf *out, uint64_t bytes, const char *format, ...)
{
    char key[64];
    va_list ap;
    va_start(ap, format);
    vsnprintf(key, sizeof key, format, ap);
    va_end(ap);
    mp_html_bytes(out, key, bytes);
}

static void number_cell(struct mp_strbuf *out, const char *key, uint64_t bytes)
{
    mp_strbuf_addstr(out, "<td class=\"n\">");
    mp_html_bytes(out, key, bytes);
    mp_strbuf_addstr(out, "</td><td class=\"n exact\">");
    mp_html_exact(out, bytes);
    mp_strbuf_addstr(out, "</td>");
}

static void share_cell(struct mp_strbuf *out, uint64_t part, uint64_t whole)
{
    const uint64_t permille = whole ? (uint64_t)((double)part / (double)whole * 1000 + 0.5) : 0;
    mp_strbuf_addf(out, "<td class=\"n\">%" PRIu64 ".%" PRIu64 " %%</td>", permille / 10, permille % 10);
}

static void text_cell(struct mp_strbuf *out, const char *text)
{
    mp_strbuf_addstr(out, "<td>");
    mp_html_text(out, text);
    mp_strbuf_addstr(out, "</td>");
}

/* ---- the verdict ---- */

static uint64_t spare_bytes(const struct mp_evaluation *e)
{
    return e->available_bytes > e->reserved_bytes ? e->available_bytes - e->reserved_bytes : 0;
}

static void write_moment(const struct page *p)
{
    const struct mp_event *event = p->e->oom ? &p->e->program.events[p->e->oom_event] : p->report->ledger->event;
    mp_html_text(p->out, p->report->ledger->phase);
    if (event && event->layer >= 0)
        mp_strbuf_addf(p->out, ", layer %d", event->layer);
    if (event && event->op && event->op[0]) {
        mp_strbuf_addstr(p->out, ", ");
        mp_html_text(p->out, event->op);
    }
}

static void write_failure(const struct page *p)
{
    const struct mp_allocator_oom *oom = &p->e->oom_info;
    const uint64_t left = p->e->available_bytes > oom->reserved_bytes ? p->e->available_bytes - oom->reserved_bytes : 0;
    mp_strbuf_addstr(p->out, "<p>It dies in <strong>");
    write_moment(p);
    mp_strbuf_addstr(p->out, "</strong>: a request of ");
    mp_html_bytes(p->out, "failure.requested_bytes", oom->requested_bytes);
    mp_strbuf_addstr(p->out, " needs a segment of ");
    mp_html_bytes(p->out, "failure.segment_bytes", oom->segment_bytes);
    mp_strbuf_addstr(p->out, "; ");
    mp_html_bytes(p->out, NULL, left);
    mp_strbuf_addstr(p->out, " of the card can still be taken, ");
    mp_html_bytes(p->out, "failure.free_in_segments_bytes", oom->free_bytes);
    mp_strbuf_addstr(p->out, " is reserved and free");
    if (oom->free_bytes) {
        mp_strbuf_addstr(p->out, ", in pieces of at most ");
        mp_html_bytes(p->out, "failure.largest_free_bytes", oom->largest_free_bytes);
    }
    mp_strbuf_addstr(p->out, ".</p>\n");
    if (oom->free_bytes >= oom->rounded_bytes)
        mp_strbuf_addstr(p->out, "<p>Fragmentation: the free pieces together would be enough, no single one is.</p>\n");
}

static void write_max_batch(const struct page *p)
{
    const struct mp_fit_report *r = p->report;
    if (!r->has_max_batch)
        return;
    if (r->max_batch == 0)
        mp_strbuf_addstr(p->out, "<p>Largest micro-batch: none, not even 1 fits.</p>\n");
    else if (r->max_batch_again)
        mp_strbuf_addf(p->out, "<p>Largest micro-batch: %" PRId64 "; %" PRId64 " does not fit, %" PRId64 " fits again.</p>\n", r->max_batch,
                       r->max_batch + 1, r->max_batch_again);
    else
        mp_strbuf_addf(p->out, "<p>Largest micro-batch: %" PRId64 "; %" PRId64 " does not fit.</p>\n", r->max_batch, r->max_batch + 1);
}

static void write_verdict(const struct page *p)
{
    const struct mp_evaluation *e = p->e;
    mp_strbuf_addstr(p->out, "<header>\n<h1>");
    mp_html_text(p->out, e->run->model->name);
    mp_strbuf_addstr(p->out, " on ");
    mp_html_text(p->out, e->run->gpu->name);
    mp_strbuf_addf(p->out, "</h1>\n<p class=\"verdict %s\" id=\"verdict\">", e->fits ? "yes" : "no");
    if (e->fits) {
        mp_strbuf_addstr(p->out, "<strong>Fits</strong>, ");
        mp_html_bytes(p->out, NULL, spare_bytes(e));
        mp_strbuf_addstr(p->out, " to spare");
    } else {
        mp_strbuf_addstr(p->out, "<strong>Does not fit</strong>");
    }
    mp_strbuf_addstr(p->out, "</p>\n");
    if (e->oom)
        write_failure(p);
    else if (!e->fits)
        mp_strbuf_addstr(p->out, "<p>In another outcome that this job can have, it runs out of memory.</p>\n");
    if (e->fits && !e->fits_high)
        mp_strbuf_addstr(p->out, "<p>Close: what lies outside the allocator was never measured on this card; at the upper end of its "
                                 "range it does not fit.</p>\n");
    write_max_batch(p);
    mp_strbuf_addstr(p->out, "<p class=\"soft\">");
    mp_run_describe_claim(e->run, p->out);
    mp_strbuf_addstr(p->out, " profile ");
    mp_html_text(p->out, e->run->profile->name);
    mp_strbuf_addstr(p->out, ": ");
    mp_html_text(p->out, e->run->profile->description);
    mp_strbuf_addstr(p->out, ".</p>\n</header>\n");
}

/* ---- numbers against capacity ---- */

static unsigned band_of_part(const struct mp_part *part)
{
    static const struct { const char *name; unsigned band; } others[] = {
        {"rounding in blocks", MP_SVG_BAND_ROUNDING},
        {"reserved, not allocated", MP_SVG_BAND_HOLE},
        {"used by others", MP_SVG_BAND_OTHERS},
    };
    for (unsigned i = 0; i < MP_CATEGORY_COUNT; i++)
        if (strcmp(part->name, mp_category_text((enum mp_category)i)) == 0)
            return i;
    for (size_t i = 0; i < MP_ARRAY_LEN(others); i++)
        if (strcmp(part->name, others[i].name) == 0)
            return others[i].band;
    return MP_SVG_BAND_OUTSIDE;
}

/* One bar for the card: what is used, part by part, and what is free. */
static void draw_card(const struct page *p, const struct mp_part *parts, size_t n, uint64_t used)
{
    const double left = 2, width = 956, y = 18, height = 26;
    const uint64_t scale = MP_MAX(p->e->total_bytes, used);
    double x = left;
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_bytes_format(&text, used);
    mp_strbuf_addstr(&text, " used of ");
    mp_bytes_format(&text, p->e->total_bytes);
    mp_svg_open(p->out, &(struct mp_svg_document){.width = 960, .height = 48, .id = "card", .title = "Use of the card",
                                                  .description = mp_strbuf_text(&text)});
    mp_svg_rect(p->out, left, y, width, height, "free");
    for (size_t i = 0; i < n; i++) {
        const double wide = width * (double)parts[i].bytes / (double)scale;
        if (wide >= 0.05)
            mp_svg_rect(p->out, x, y, wide, height, mp_svg_band_class(band_of_part(&parts[i])));
        x += wide;
    }
    mp_svg_rect(p->out, left, y, width, height, "frame");
    mp_svg_text(p->out, left, 12, MP_SVG_START, "small", mp_strbuf_text(&text));
    mp_strbuf_reset(&text);
    mp_bytes_format(&text, p->e->total_bytes);
    mp_svg_text(p->out, left + width, 12, MP_SVG_END, "small soft", mp_strbuf_text(&text));
    mp_svg_close(p->out);
    mp_strbuf_release(&text);
}

static void meter_cell(struct mp_strbuf *out, uint64_t bytes, uint64_t whole)
{
    mp_strbuf_addstr(out, "<td class=\"meter\"><svg viewBox=\"0 0 200 10\" aria-hidden=\"true\">");
    mp_svg_rect(out, 0, 0, 200, 10, "free");
    mp_svg_rect(out, 0, 0, fmin(200 * (double)bytes / (double)MP_MAX(whole, 1u), 200), 10, bytes > whole ? "mark" : "bar");
    mp_strbuf_addstr(out, "</svg></td>");
}

static void write_numbers(const struct page *p)
{
    const struct mp_evaluation *e = p->e;
    const struct { const char *name, *key; uint64_t bytes; const char *note; } rows[] = {
        {"requested", "requested_bytes", e->requested_bytes, "asked for by tensors"},
        {"allocated", "allocated_bytes", e->allocated_bytes, "in blocks of the allocator"},
        {"reserved", "reserved_bytes", e->reserved_bytes, "in segments taken from the card"},
        {"device used", "device_used_bytes", e->device_used_bytes, "with context, kernels and others"},
        {"capacity", "capacity_bytes", e->total_bytes, "of the card"},
    };
    mp_html_table(p->out, "numbers", e->oom ? "Peaks, up to the request that failed" : "Peaks",
                  "what|#bytes|#exact|#share|of the card|what it is");
    for (size_t i = 0; i < MP_ARRAY_LEN(rows); i++) {
        mp_strbuf_addf(p->out, "<tr><th scope=\"row\">%s</th>", rows[i].name);
        number_cell(p->out, rows[i].key, rows[i].bytes);
        share_cell(p->out, rows[i].bytes, e->total_bytes);
        meter_cell(p->out, rows[i].bytes, e->total_bytes);
        mp_strbuf_addf(p->out, "<td class=\"soft\">%s</td></tr>\n", rows[i].note);
    }
    mp_html_end_table(p->out);
    if (e->context_low_bytes != e->context_high_bytes) {
        mp_strbuf_addstr(p->out, "<p class=\"soft\">Context was not measured on this card: ");
        mp_html_bytes(p->out, "context_low_bytes", e->context_low_bytes);
        mp_strbuf_addstr(p->out, " to ");
        mp_html_bytes(p->out, "context_high_bytes", e->context_high_bytes);
        mp_strbuf_addstr(p->out, " reported; device used accordingly.</p>\n");
    }
}

static void write_assumptions(const struct page *p)
{
    const struct mp_run *run = p->e->run;
    struct mp_strbuf value = MP_STRBUF_INIT;
    mp_strbuf_addstr(
        p->out,
        "<details open><summary>Everything that was given or assumed</summary>\n<dl class=\"keys\" id=\"assumptions\">\n");
    for (int pass = 0; pass < 2; pass++)
        for (int key = 0; key < MP_RUN_KEYS; key++) {
            const bool given = mp_run_is_given(run, (enum mp_run_key)key);
            mp_strbuf_reset(&value);
            mp_run_value_text(run, (enum mp_run_key)key, &value);
            if (key == MP_KEY_ITERATIONS && !run->iterations) {
                mp_strbuf_reset(&value);
                mp_strbuf_addstr(&value, "until memory repeats");
            }
            if (given != (pass == 0) || !value.len || (key == MP_KEY_SEQ && run->n_seq_lengths))
                continue;
            mp_strbuf_addf(p->out, "<div class=\"%s\"><dt>%s</dt><dd>", given ? "given" : "assumed", mp_run_key_text((enum mp_run_key)key));
            mp_html_text(p->out, mp_strbuf_text(&value));
            mp_strbuf_addf(p->out, "</dd></div>\n");
        }
    mp_strbuf_addstr(p->out, "</dl>\n<p class=\"soft\">Bold: given. The others are defaults.</p></details>\n");
    mp_strbuf_release(&value);
}

/* ---- timeline ---- */

static void write_timeline(const struct page *p)
{
    const struct mp_timeline *t = p->timeline;
    mp_html_heading(p->out, "timeline-heading", "Timeline");
    mp_strbuf_addstr(p->out, "<p>Live bytes by category over ");
    mp_grouped_format(p->out, t->n_events);
    mp_strbuf_addstr(p->out, " events");
    if (t->n_samples < t->n_events) {
        mp_strbuf_addstr(p->out, ", of which ");
        mp_grouped_format(p->out, t->n_samples);
        mp_strbuf_addstr(p->out, " are drawn: those of the most and the least in every stretch");
    }
    if (t->steps < p->e->steps)
        mp_strbuf_addf(p->out, "; %" PRId64 " of %" PRId64 " simulated steps, the others reach no higher", t->steps, p->e->steps);
    mp_strbuf_addstr(
        p->out,
        ".</p>\n<form class=\"controls\" id=\"controls\" hidden>\n<label>Zoom to <select id=\"zoom\"></select></label>\n"
        "<button type=\"button\" id=\"whole\">Whole run</button>\n<button type=\"button\" id=\"to-peak\">Go to the peak</button>\n"
        "<label id=\"scale-label\" hidden><input type=\"checkbox\" id=\"scale\"> up to what is available</label>\n</form>\n"
        "<figure>\n");
    mp_timeline_draw(t, &p->view, p->out);
    mp_strbuf_addstr(
        p->out,
        "<figcaption class=\"soft\" id=\"timeline-help\" hidden>Point at it, or use the keys: "
        "<kbd>←</kbd> <kbd>→</kbd> one sample, <kbd>Page&nbsp;Up</kbd> <kbd>Page&nbsp;Down</kbd> one phase, <kbd>P</kbd> the peak, "
        "<kbd>Enter</kbd> zoom to the phase, <kbd>Esc</kbd> the whole run; or drag over a stretch.</figcaption>\n</figure>\n"
        "<div id=\"readout\" class=\"readout\" hidden></div>\n");
}

/* ---- what it is made of ---- */

static void write_parts(const struct page *p)
{
    struct mp_part parts[MP_MAX_PARTS];
    const size_t n = mp_report_parts(p->report, parts);
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++)
        total += parts[i].bytes;
    draw_card(p, parts, n, total);
    mp_html_table(p->out, "parts", "By category", "|part|#bytes|#exact|#share");
    for (size_t i = 0; i < n; i++) {
        char key[48];
        snprintf(key, sizeof key, "parts.%zu.bytes", i);
        mp_strbuf_addstr(p->out, "<tr><td>");
        mp_html_swatch(p->out, band_of_part(&parts[i]));
        mp_strbuf_addf(p->out, "</td><th scope=\"row\">%s</th>", parts[i].name);
        number_cell(p->out, key, parts[i].bytes);
        share_cell(p->out, parts[i].bytes, total);
        mp_strbuf_addstr(p->out, "</tr>\n");
    }
    mp_strbuf_addstr(p->out, "<tr class=\"sum\"><td></td><th scope=\"row\">device used</th>");
    number_cell(p->out, NULL, total);
    share_cell(p->out, total, total);
    mp_strbuf_addstr(p->out, "</tr>\n");
    mp_html_end_table(p->out);
}

/* Live bytes of layers next to each other; models with very many layers are shown in groups. */
struct layers {
    int per_group, n_groups;  /* group 0: outside the blocks */
    uint64_t (*bytes)[MP_CATEGORY_COUNT];
    uint64_t most;            /* of a group of layers */
};

enum { MOST_GROUPS = 160 };

static uint64_t total_of(const uint64_t by_category[MP_CATEGORY_COUNT])
{
    uint64_t total = 0;
    for (int c = 0; c < MP_CATEGORY_COUNT; c++)
        total += by_category[c];
    return total;
}

static bool sum_layers(const struct page *p, struct layers *layers)
{
    const struct mp_ledger *ledger = p->report->ledger;
    const int n = mp_ledger_last_layer(ledger) + 1;
    layers->per_group = (n + MOST_GROUPS - 1) / MOST_GROUPS;
    layers->per_group = MP_MAX(layers->per_group, 1);
    layers->n_groups = 1 + (n + layers->per_group - 1) / layers->per_group;
    layers->bytes = mp_arena_calloc(p->arena, (size_t)layers->n_groups, sizeof *layers->bytes);
    for (size_t i = 0; layers->bytes && i < ledger->n_rows; i++) {
        const struct mp_ledger_row *row = &ledger->rows[i];
        layers->bytes[row->layer < 0 ? 0 : 1 + row->layer / layers->per_group][row->category] += row->bytes;
    }
    for (int i = 1; layers->bytes && i < layers->n_groups; i++)
        layers->most = MP_MAX(layers->most, total_of(layers->bytes[i]));
    return layers->bytes != NULL;
}

static void group_name(const struct layers *layers, int group, char *text, size_t size)
{
    const int first = (group - 1) * layers->per_group;
    if (group == 0)
        snprintf(text, size, "outside");
    else if (layers->per_group == 1)
        snprintf(text, size, "%d", first);
    else
        snprintf(text, size, "%d\xe2\x80\x93%d", first, first + layers->per_group - 1);
}

static void draw_layer_axes(const struct layers *layers, double left, double top, double width,
                            double height, double slot, struct mp_strbuf *out)
{
    uint64_t ticks[MP_SVG_MAX_TICKS];
    const size_t n = mp_svg_byte_ticks(layers->most, 4, ticks);
    const int every = (int)(30 / slot) + 1;
    for (size_t i = 0; i < n; i++) {
        const double y = top + height * (1 - (double)ticks[i] / (double)layers->most);
        struct mp_strbuf label = MP_STRBUF_INIT;
        mp_svg_byte_label(&label, ticks[i]);
        mp_svg_line(out, left, y, left + width, y, "grid");
        mp_svg_text(out, left - 5, y + 4, MP_SVG_END, "small", mp_strbuf_text(&label));
        mp_strbuf_release(&label);
    }
    for (int group = 1; group < layers->n_groups; group += every) {
        char name[32];
        group_name(layers, group, name, sizeof name);
        mp_svg_text(out, left + slot * (group - 0.5), top + height + 14, MP_SVG_MIDDLE, "small", name);
    }
    mp_svg_text(out, left + width / 2, top + height + 28, MP_SVG_MIDDLE, "small soft", "layer");
}

static void draw_layers(const struct page *p, const struct layers *layers)
{
    const double left = 64, top = 8, width = 888, height = 170;
    const double slot = fmin(width / (layers->n_groups - 1), 60);
    mp_svg_open(p->out, &(struct mp_svg_document){.width = 960, .height = top + height + 34, .id = "layers", .title = "Live bytes by layer",
                                                  .description = "Stacked by category; the table below has the numbers"});
    draw_layer_axes(layers, left, top, width, height, slot, p->out);
    for (int group = 1; group < layers->n_groups; group++) {
        double y = top + height;
        for (int i = 0; i < MP_TIMELINE_BANDS - 1; i++) {
            const unsigned category = mp_timeline_stack[i];
            const double high = height * (double)layers->bytes[group][category] / (double)MP_MAX(layers->most, 1u);
            y -= high;
            if (high >= 0.1)
                mp_svg_rect(p->out, left + slot * (group - 0.92), y, slot * 0.84, high, mp_svg_band_class(category));
        }
    }
    mp_svg_line(p->out, left, top + height, left + width, top + height, "axis");
    mp_svg_close(p->out);
}

static void write_layer_table(const struct page *p, const struct layers *layers)
{
    struct mp_strbuf heads = MP_STRBUF_INIT;
    const uint64_t *whole = p->report->ledger->by_category;
    mp_strbuf_addstr(&heads, "layer");
    for (int c = 0; c < MP_CATEGORY_COUNT; c++)
        if (whole[c])
            mp_strbuf_addf(&heads, "|#%s", mp_category_text((enum mp_category)c));
    mp_strbuf_addstr(&heads, "|#together");
    mp_strbuf_addstr(p->out, "<details><summary>The layers in numbers</summary>\n");
    mp_html_table(p->out, "layer-table", "Live bytes by layer and category", mp_strbuf_text(&heads));
    for (int group = 0; group < layers->n_groups; group++) {
        char name[32];
        group_name(layers, group, name, sizeof name);
        mp_strbuf_addf(p->out, "<tr><th scope=\"row\">%s</th>", name);
        for (int c = 0; c < MP_CATEGORY_COUNT; c++) {
            if (!whole[c])
                continue;
            mp_strbuf_addstr(p->out, "<td class=\"n\">");
            mp_html_exact(p->out, layers->bytes[group][c]);
            mp_strbuf_addstr(p->out, "</td>");
        }
        mp_strbuf_addstr(p->out, "<td class=\"n\">");
        mp_html_exact(p->out, total_of(layers->bytes[group]));
        mp_strbuf_addstr(p->out, "</td></tr>\n");
    }
    mp_html_end_table(p->out);
    mp_strbuf_addstr(p->out, "</details>\n");
    mp_strbuf_release(&heads);
}

static void write_operations_of(const struct page *p, enum mp_category category)
{
    enum { SHOWN = 12 };
    struct mp_ledger_row rows[64];
    const uint64_t whole = p->report->ledger->by_category[category];
    const size_t n = mp_ledger_by_op(p->report->ledger, category, rows, MP_ARRAY_LEN(rows));
    uint64_t left = whole;
    for (size_t i = 0; i < n && i < SHOWN; i++) {
        mp_strbuf_addstr(p->out, "<tr><td>");
        mp_html_swatch(p->out, category);
        mp_strbuf_addf(p->out, " %s</td>", mp_category_text(category));
        text_cell(p->out, rows[i].op[0] ? rows[i].op : "unnamed");
        mp_strbuf_addf(p->out, "<td class=\"n\">%" PRIu32 "</td>", rows[i].n);
        number_cell(p->out, NULL, rows[i].bytes);
        share_cell(p->out, rows[i].bytes, p->report->ledger->total_bytes);
        mp_strbuf_addstr(p->out, "</tr>\n");
        left -= rows[i].bytes;
    }
    if (!left)
        return;
    mp_strbuf_addstr(p->out, "<tr><td>");
    mp_html_swatch(p->out, category);
    mp_strbuf_addf(p->out, " %s</td><td>others</td><td></td>", mp_category_text(category));
    number_cell(p->out, NULL, left);
    share_cell(p->out, left, p->report->ledger->total_bytes);
    mp_strbuf_addstr(p->out, "</tr>\n");
}

static bool write_composition(const struct page *p)
{
    struct layers layers = {0};
    mp_html_heading(p->out, "composition-heading", p->e->oom ? "What it is made of when it dies" : "What it is made of at the peak");
    mp_strbuf_addstr(p->out, "<p>");
    mp_strbuf_addstr(p->out, p->e->oom
                                 ? "Before the request that failed: "
                                 : "After the allocation at which allocated bytes are highest: ");
    write_moment(p);
    mp_strbuf_addstr(p->out, ".</p>\n");
    write_parts(p);
    if (!sum_layers(p, &layers))
        return false;
    if (layers.n_groups > 1) {
        mp_strbuf_addstr(p->out, "<h3>By layer</h3>\n<p>What belongs to a layer, as far as it was asked for inside one; ");
        mp_html_bytes(p->out, NULL, total_of(layers.bytes[0]));
        mp_strbuf_addstr(p->out, " more was asked for outside: embeddings, head, loss, and all at once by the optimizer.</p>\n");
        draw_layers(p, &layers);
        write_layer_table(p, &layers);
    }
    mp_strbuf_addstr(p->out, "<details><summary>By operation</summary>\n");
    mp_html_table(p->out, "operations", "Live bytes by category and by the operation that asked for them, all layers together",
                  "category|operation|#storages|#bytes|#exact|#share");
    for (int i = 0; i < MP_TIMELINE_BANDS - 1; i++)
        write_operations_of(p, (enum mp_category)mp_timeline_stack[i]);
    mp_html_end_table(p->out);
    mp_strbuf_addstr(p->out, "</details>\n");
    return true;
}

/* ---- memory map ---- */

static void write_map(const struct page *p)
{
    const struct mp_memory_map *map = p->map;
    mp_html_heading(p->out, "map-heading", p->e->oom ? "Memory map when it dies" : "Memory map at the peak");
    mp_strbuf_addf(p->out, "<p>%zu segments, ", map->n_segments);
    mp_html_bytes(p->out, NULL, map->reserved_bytes);
    mp_strbuf_addf(p->out, " reserved at that moment; %zu holes, ", map->n_holes);
    mp_html_bytes(p->out, NULL, map->free_bytes);
    mp_strbuf_addstr(p->out, " together");
    if (map->largest_hole < map->n_blocks) {
        mp_strbuf_addstr(p->out, p->e->oom ? ", the largest that the request could use " : ", the largest ");
        mp_html_bytes(p->out, NULL, map->blocks[map->largest_hole].bytes);
        mp_strbuf_addstr(p->out, " (framed)");
    }
    mp_strbuf_addstr(p->out, ". Colours as in the timeline, holes ");
    mp_html_swatch(p->out, MP_SVG_BAND_HOLE);
    mp_strbuf_addstr(p->out, ".</p>\n<figure>\n");
    if (p->e->oom)
        mp_memory_map_draw_failure(p->e, p->out);
    mp_memory_map_draw(map, "map", "role=\"img\" font-size=\"11\"", p->out);
    mp_strbuf_addstr(
        p->out,
        "<figcaption class=\"soft\" id=\"map-help\" hidden>Point at it, or use the keys: <kbd>←</kbd> <kbd>→</kbd> one block, "
        "<kbd>↑</kbd> <kbd>↓</kbd> one segment, <kbd>H</kbd> the next hole, <kbd>L</kbd> the largest.</figcaption>\n</figure>\n"
        "<p id=\"map-readout\" class=\"readout\" hidden></p>\n");
}

/* ---- phases ---- */

static void write_phases(const struct page *p)
{
    enum { MOST_ROWS = 400 };
    const struct mp_evaluation *e = p->e;
    size_t n = 0;
    while (n < e->n_phases && n < MOST_ROWS &&
           (strncmp(e->phases[n].name, "it", 2) != 0 || strtol(e->phases[n].name + 2, NULL, 10) < p->timeline->steps))
        n++;
    mp_html_heading(p->out, "phases-heading", "Phases");
    mp_html_table(p->out, "phases", "Bytes by phase", "phase|#requested at its end|#requested peak|#allocated peak|#reserved peak");
    for (size_t i = 0; i < n; i++) {
        const struct mp_phase_peaks *phase = &e->phases[i];
        const bool peak = !e->oom && strcmp(phase->name, p->report->ledger->phase) == 0;
        mp_strbuf_addf(p->out, "<tr%s><th scope=\"row\">", peak ? " class=\"at-peak\"" : "");
        mp_html_text(p->out, phase->name);
        mp_strbuf_addstr(p->out, "</th><td class=\"n\">");
        add_key_bytes(p->out, phase->requested_bytes, "phases.%zu.requested", i);
        mp_strbuf_addstr(p->out, "</td><td class=\"n\">");
        add_key_bytes(p->out, phase->requested_peak_bytes, "phases.%zu.requested_peak", i);
        mp_strbuf_addstr(p->out, "</td><td class=\"n\">");
        add_key_bytes(p->out, phase->allocated_peak_bytes, "phases.%zu.allocated_peak", i);
        mp_strbuf_addstr(p->out, "</td><td class=\"n\">");
        add_key_bytes(p->out, phase->reserved_peak_bytes, "phases.%zu.reserved_peak", i);
        mp_strbuf_addstr(p->out, "</td></tr>\n");
    }
    mp_html_end_table(p->out);
    mp_strbuf_addf(p->out, "<p class=\"soft\">%" PRId64 " steps simulated%s.", e->steps, e->period ? "; then memory repeats" : "");
    if (n < e->n_phases)
        mp_strbuf_addf(p->out, " %zu more phases are in --json.", e->n_phases - n);
    mp_strbuf_addstr(p->out, "</p>\n");
}

/* ---- ranks ---- */

static void draw_ranks(const struct page *p)
{
    const double left = 64, width = 800, line = 22;
    uint64_t most = p->e->total_bytes;
    for (size_t i = 0; i < p->n_ranks; i++)
        most = MP_MAX(most, p->ranks[i].device_used_bytes);
    mp_svg_open(p->out, &(struct mp_svg_document){.width = 960, .height = line * (double)p->n_ranks + 22, .id = "rank-bars",
                                                  .title = "Device used by rank", .description = "Bars to the scale of the card; the table "
                                                                                                 "below has the numbers"});
    for (size_t i = 0; i < p->n_ranks; i++) {
        const double y = 4 + line * (double)i, scale = width / (double)most;
        struct mp_strbuf text = MP_STRBUF_INIT;
        mp_strbuf_addf(&text, "rank %" PRId64, p->ranks[i].rank);
        mp_svg_text(p->out, left - 8, y + 12, MP_SVG_END, NULL, mp_strbuf_text(&text));
        mp_svg_rect(p->out, left, y, scale * (double)p->e->total_bytes, 16, "free");
        mp_svg_rect(p->out, left, y, scale * (double)p->ranks[i].device_used_bytes, 16, "b12 framed");
        mp_svg_rect(p->out, left, y, scale * (double)p->ranks[i].reserved_bytes, 16, "b11 framed");
        mp_svg_rect(p->out, left, y, scale * (double)p->ranks[i].allocated_bytes, 16, "bar");
        mp_strbuf_reset(&text);
        mp_bytes_format(&text, p->ranks[i].device_used_bytes);
        mp_svg_text(p->out, left + scale * (double)p->ranks[i].device_used_bytes + 6, y + 12, MP_SVG_START, "strong halo",
                    mp_strbuf_text(&text));
        mp_strbuf_release(&text);
    }
    mp_svg_legend(p->out, left, 8 + line * (double)p->n_ranks, width, 10.5,
                  (const struct mp_svg_legend_entry[]){{"bar", "allocated", false}, {"b11", "reserved, not allocated", false},
                                                       {"b12", "outside the allocator", false}, {"free", "free", false}}, 4);
    mp_svg_close(p->out);
}

static void write_ranks(const struct page *p)
{
    if (!p->n_ranks)
        return;
    mp_html_heading(p->out, "ranks-heading", "Ranks side by side");
    mp_strbuf_addf(p->out, "<p>The peaks of %zu of %" PRId64 " ranks.</p>\n", p->n_ranks, p->e->run->world);
    draw_ranks(p);
    mp_html_table(p->out, "ranks", "Peaks by rank", "rank|#requested|#allocated|#reserved|#device used|");
    for (size_t i = 0; i < p->n_ranks; i++) {
        const struct mp_rank_numbers *r = &p->ranks[i];
        const uint64_t bytes[] = {r->requested_bytes, r->allocated_bytes, r->reserved_bytes, r->device_used_bytes};
        mp_strbuf_addf(p->out, "<tr><th scope=\"row\">%" PRId64 "</th>", r->rank);
        for (size_t k = 0; k < MP_ARRAY_LEN(bytes); k++) {
            mp_strbuf_addstr(p->out, "<td class=\"n\">");
            mp_html_bytes(p->out, NULL, bytes[k]);
            mp_strbuf_addstr(p->out, "</td>");
        }
        mp_strbuf_addf(p->out, "<td class=\"%s\">%s</td></tr>\n", r->fits ? "yes" : "no", r->fits ? "fits" : "does not fit");
    }
    mp_html_end_table(p->out);
}

/* ---- what-ifs ---- */

static void write_advice(const struct page *p)
{
    const struct mp_fit_report *r = p->report;
    if (!r->advice)
        return;
    mp_html_heading(p->out, "advice-heading", "What would change it");
    mp_html_table(p->out, "advice", "The same job with one thing changed, each simulated", "change|#saves|#device used||what to type");
    for (size_t i = 0; i < r->n_advice; i++) {
        const struct mp_advice *a = &r->advice[i];
        mp_strbuf_addstr(p->out, "<tr><th scope=\"row\">");
        mp_html_text(p->out, a->what);
        mp_strbuf_addf(p->out, "</th><td class=\"n\">%s", a->saves_bytes < 0 ? "\xe2\x88\x92" : "");
        mp_html_bytes(p->out, NULL, a->saves_bytes < 0 ? (uint64_t)-a->saves_bytes : (uint64_t)a->saves_bytes);
        mp_strbuf_addstr(p->out, "</td><td class=\"n\">");
        add_key_bytes(p->out, a->device_used_bytes, "advice.%zu.device_used_bytes", i);
        mp_strbuf_addf(p->out, "</td><td class=\"%s\">%s</td><td><code>", a->fits ? "yes" : "no", a->fits ? "fits" : "does not fit");
        mp_html_text(p->out, a->setting);
        mp_strbuf_addstr(p->out, "</code></td></tr>\n");
    }
    mp_html_end_table(p->out);
}

/* ---- the page ---- */

static void write_footer(const struct page *p)
{
    mp_strbuf_addf(
        p->out,
        "<footer class=\"soft\">memplan %s. All numbers are predictions for this run; GiB are 2<sup>30</sup> bytes.</footer>\n",
        memplan_version());
}

static bool write_page(const struct page *p)
{
    struct mp_strbuf title = MP_STRBUF_INIT, data = MP_STRBUF_INIT;
    mp_strbuf_addf(&title, "%s on %s: %s", p->e->run->model->name, p->e->run->gpu->name, p->e->fits ? "fits" : "does not fit");
    mp_html_open(p->out, mp_strbuf_text(&title));
    mp_strbuf_addstr(p->out, "<main>\n");
    write_verdict(p);
    write_numbers(p);
    write_assumptions(p);
    write_timeline(p);
    const bool complete = write_composition(p);
    write_map(p);
    write_phases(p);
    write_ranks(p);
    write_advice(p);
    write_footer(p);
    mp_strbuf_addstr(p->out, "</main>\n");
    mp_fit_html_data(p->timeline, &p->view, p->map, &data);
    mp_html_close(p->out, mp_strbuf_text(&data));
    const bool failed = !complete || title.failed || data.failed || p->out->failed;
    mp_strbuf_release(&title);
    mp_strbuf_release(&data);
    return !failed;
}

enum memplan_status mp_report_fit_html(const struct mp_fit_report *report, struct mp_strbuf *out, struct memplan_error *err)
{
    const struct mp_evaluation *e = report->evaluation;
    struct mp_arena arena;
    struct page page = {.report = report, .e = e, .arena = &arena, .out = out};
    enum memplan_status status = MEMPLAN_STATUS_OK;
    mp_arena_init(&arena);
    page.view = (struct mp_timeline_view){.width = 960,
                                          .plot_height = 340,
                                          .font = 11,
                                          .id = "timeline",
                                          .title = "Timeline",
                                          .evaluation = e};
    page.timeline = mp_timeline_new(e, &arena, err);
    if (page.timeline)
        page.map = mp_memory_map_new(e, e->oom ? e->oom_event : e->peak_event, &arena, err);
    if (!page.timeline || !page.map)
        status = err->status;
    else if (mp_ranks_evaluate(e, page.ranks, &page.n_ranks, err))
        status = err->status;
    else if (!write_page(&page))
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing the page");
    mp_arena_release(&arena);
    return status;
}
