/* SPDX-License-Identifier: MIT */
/*
 * The timeline as a drawing. Bands are painted from the top of the stack down, each from its upper edge to the axis, so that a band costs
 * one edge and not two. Edges are steps: bytes do not change between events.
 *
 *     steps    |  build  |        step 0         |
 *     phases   |m|data   |  fwd  |   bwd   |opt  |
 *     available - - - - - - - - - - - - - - - - - -
 *     reserved        ___________|-----------------
 *     bands    ______/        /\/\/\
 *              0        5,000        10,000   events
 */
#include <math.h>

#include "base/units.h"
#include "report/svg.h"
#include "report/timeline.h"

const uint8_t mp_timeline_stack[MP_TIMELINE_BANDS] = {
    MP_CATEGORY_PARAMETER, MP_CATEGORY_BUFFER, MP_CATEGORY_OPTIMIZER_STATE, MP_CATEGORY_GRADIENT, MP_CATEGORY_COMMUNICATION,
    MP_CATEGORY_WORKSPACE, MP_CATEGORY_INPUT,  MP_CATEGORY_ACTIVATION,      MP_CATEGORY_LOGITS,   MP_CATEGORY_TEMPORARY,
    MP_SVG_BAND_ROUNDING,
};

/* ---- geometry ---- */

struct drawing {
    const struct mp_timeline *t;
    const struct mp_timeline_view *view;
    const struct mp_evaluation *e;
    struct mp_timeline_geometry g;
    struct mp_strbuf *out;
};

static bool band_occurs(const struct mp_timeline *t, unsigned band)
{
    for (size_t i = 0; i < t->n_samples; i++) {
        const struct mp_timeline_sample *s = &t->samples[i];
        if (band == MP_SVG_BAND_ROUNDING ? s->allocated_bytes > mp_timeline_requested(s) : s->live_bytes[band] > 0)
            return true;
    }
    return false;
}

static size_t legend_entries(const struct mp_timeline *t, bool available, struct mp_svg_legend_entry entries[MP_TIMELINE_BANDS + 2])
{
    size_t n = 0;
    for (int i = 0; i < MP_TIMELINE_BANDS; i++) {
        const unsigned band = mp_timeline_stack[i];
        if (band_occurs(t, band))
            entries[n++] = (struct mp_svg_legend_entry){
                mp_svg_band_class(band),
                band == MP_SVG_BAND_ROUNDING ? "rounding in blocks"
                                             : mp_category_text((enum mp_category)band),
                false};
    }
    entries[n++] = (struct mp_svg_legend_entry){"reserved", "reserved", true};
    if (available)
        entries[n++] = (struct mp_svg_legend_entry){"capacity", "available to the allocator", true};
    return n;
}

static double draw_legend(const struct drawing *d, double top, struct mp_strbuf *out)
{
    struct mp_svg_legend_entry entries[MP_TIMELINE_BANDS + 2];
    const size_t n = legend_entries(d->t, d->g.shows_available, entries);
    return mp_svg_legend(out, d->g.left, top, d->g.plot_width, d->view->font, entries, n);
}

/* What has to be seen: reserved bytes, the request that failed, and the line above them unless it is far away. */
static void choose_scale(struct mp_timeline_geometry *g, const struct mp_timeline *t, const struct mp_evaluation *e)
{
    uint64_t top = t->n_samples ? t->samples[t->reserved_peak].reserved_bytes : 0;
    if (t->n_samples)
        top = MP_MAX(top, t->samples[t->peak].allocated_bytes);
    if (e->oom)
        top = MP_MAX(top, e->oom_info.reserved_bytes + e->oom_info.segment_bytes);
    g->shows_available = e->available_bytes / 3 <= top;
    if (g->shows_available)
        top = MP_MAX(top, e->available_bytes);
    g->top_bytes = top + top / 7 + 1;
}

struct mp_timeline_geometry mp_timeline_geometry(const struct mp_timeline *timeline, const struct mp_timeline_view *view)
{
    const double font = view->font;
    struct drawing d = {.t = timeline, .view = view, .e = view->evaluation};
    struct mp_strbuf unused = MP_STRBUF_INIT;
    d.g = (struct mp_timeline_geometry){.width = view->width, .left = font * 4.6, .top = font * 3.2, .plot_height = view->plot_height};
    d.g.plot_width = view->width - d.g.left - font;
    choose_scale(&d.g, timeline, view->evaluation);
    d.g.height = d.g.top + d.g.plot_height + font * 3.6 + draw_legend(&d, 0, &unused);
    mp_strbuf_release(&unused);
    return d.g;
}

static double x_of(const struct drawing *d, uint32_t event) { return d->g.left + d->g.plot_width * event / MP_MAX(d->t->n_events, 1u); }

static double y_of(const struct drawing *d, uint64_t bytes)
{
    return d->g.top + d->g.plot_height * (1 - (double)bytes / (double)d->g.top_bytes);
}

/* ---- curves ---- */

/* The value of a curve at a sample: bands up to `depth` of the stack together, or reserved bytes where depth is MP_TIMELINE_BANDS. */
static uint64_t value_at(const struct mp_timeline_sample *s, int depth)
{
    uint64_t total = 0;
    if (depth == MP_TIMELINE_BANDS)
        return s->reserved_bytes;
    if (depth == MP_TIMELINE_BANDS - 1)
        return s->allocated_bytes;
    for (int i = 0; i <= depth; i++)
        total += s->live_bytes[mp_timeline_stack[i]];
    return total;
}

/* "M x y", then steps. Positions are rounded first and subtracted then, so that errors do not add up. */
static void add_steps(const struct drawing *d, int depth, struct mp_strbuf *out)
{
    const struct mp_timeline *t = d->t;
    double x = round(x_of(d, 0) * 100) / 100, y = round(y_of(d, 0) * 100) / 100;
    mp_strbuf_addch(out, 'M');
    mp_svg_number(out, x);
    mp_strbuf_addch(out, ' ');
    mp_svg_number(out, y);
    for (size_t i = 0; i <= t->n_samples; i++) {
        const double next_x = round(x_of(d, i < t->n_samples ? t->samples[i].event : t->n_events) * 100) / 100;
        const double next_y = i < t->n_samples ? round(y_of(d, value_at(&t->samples[i], depth)) * 100) / 100 : y;
        if (i < t->n_samples && fabs(next_y - y) < 0.005)
            continue;
        if (fabs(next_x - x) >= 0.005) {
            mp_strbuf_addch(out, 'h');
            mp_svg_number(out, next_x - x);
        }
        if (fabs(next_y - y) >= 0.005) {
            mp_strbuf_addch(out, 'v');
            mp_svg_number(out, next_y - y);
        }
        x = next_x;
        y = next_y;
    }
}

static void draw_bands(const struct drawing *d)
{
    for (int depth = MP_TIMELINE_BANDS - 1; depth >= 0; depth--) {
        const unsigned band = mp_timeline_stack[depth];
        if (!band_occurs(d->t, band))
            continue;
        mp_strbuf_addf(d->out, "<path class=\"%s band\" d=\"", mp_svg_band_class(band));
        add_steps(d, depth, d->out);
        mp_strbuf_addch(d->out, 'V');
        mp_svg_number(d->out, y_of(d, 0));
        mp_strbuf_addstr(d->out, "z\"/>\n");
    }
    mp_strbuf_addstr(d->out, "<path class=\"reserved\" d=\"");
    add_steps(d, MP_TIMELINE_BANDS, d->out);
    mp_strbuf_addstr(d->out, "\"/>\n");
}

/* ---- the strip of phases ---- */

static void draw_strip(const struct drawing *d, double y, double height, uint32_t first, uint32_t end, unsigned shade, const char *text)
{
    const double font = d->view->font, x = x_of(d, first), width = x_of(d, end) - x;
    mp_svg_rect(d->out, x, y, width, height, shade ? "strip1" : "strip0");
    if (mp_svg_text_width(text, font * 0.85) + 2 < width)
        mp_svg_text(d->out, x + width / 2, y + height - font * 0.35, MP_SVG_MIDDLE, "small", text);
}

/* "it0.mb0.fwd" without the step, and without the micro-batch where there is only one. */
static const char *short_name(const struct mp_evaluation *e, const char *name)
{
    const char *dot = strncmp(name, "it", 2) == 0 ? strchr(name, '.') : NULL;
    if (dot && e->run->accumulate == 1 && strncmp(dot, ".mb0.", 5) == 0)
        return dot + 5;
    return dot ? dot + 1 : name;
}

static void step_name(const char *phase, char *text, size_t size)
{
    if (strncmp(phase, "it", 2) == 0)
        snprintf(text, size, "step %.*s", (int)strcspn(phase + 2, "."), phase + 2);
    else
        snprintf(text, size, "build");
}

static void draw_phase_lines(const struct drawing *d)
{
    enum { MOST_LINES = 80 };
    const bool all = d->t->n_phases <= MOST_LINES; /* else between steps only, or the lines hide what they divide */
    mp_strbuf_addstr(d->out, "<path class=\"phase\" d=\"");
    for (size_t i = 1; i < d->t->n_phases; i++) {
        char name[32], last[32];
        step_name(d->t->phases[i].name, name, sizeof name);
        step_name(d->t->phases[i - 1].name, last, sizeof last);
        if (!all && strcmp(name, last) == 0)
            continue;
        mp_strbuf_addch(d->out, 'M');
        mp_svg_number(d->out, x_of(d, d->t->phases[i].first));
        mp_strbuf_addch(d->out, ' ');
        mp_svg_number(d->out, d->g.top);
        mp_strbuf_addch(d->out, 'v');
        mp_svg_number(d->out, d->g.plot_height);
    }
    mp_strbuf_addstr(d->out, "\"/>\n");
}

static void draw_strips(const struct drawing *d)
{
    const struct mp_timeline *t = d->t;
    const double height = d->view->font * 1.3;
    unsigned shade = 0;
    if (t->n_phases <= 400)
        for (size_t i = 0; i < t->n_phases; i++)
            draw_strip(d, d->g.top - height - 2, height, t->phases[i].first, t->phases[i].end, i & 1, short_name(d->e, t->phases[i].name));
    for (size_t i = 0; i < t->n_phases;) {
        char name[32], other[32];
        size_t end = i;
        step_name(t->phases[i].name, name, sizeof name);
        do
            step_name(t->phases[MP_MIN(++end, t->n_phases - 1)].name, other, sizeof other);
        while (end < t->n_phases && strcmp(name, other) == 0);
        draw_strip(d, d->g.top - 2 * height - 3, height, t->phases[i].first, t->phases[end - 1].end, shade++ & 1, name);
        i = end;
    }
}

/* ---- axes, lines, flags ---- */

static void draw_y_axis(const struct drawing *d)
{
    uint64_t ticks[MP_SVG_MAX_TICKS];
    const size_t n = mp_svg_byte_ticks(d->g.top_bytes, 6, ticks);
    mp_strbuf_addstr(d->out, "<g class=\"y-axis\">\n");
    for (size_t i = 0; i < n; i++) {
        struct mp_strbuf label = MP_STRBUF_INIT;
        mp_svg_byte_label(&label, ticks[i]);
        mp_svg_line(d->out, d->g.left, y_of(d, ticks[i]), d->g.left + d->g.plot_width, y_of(d, ticks[i]), "grid");
        mp_svg_text(d->out, d->g.left - d->view->font * 0.4, y_of(d, ticks[i]) + d->view->font * 0.33, MP_SVG_END, "small",
                    mp_strbuf_text(&label));
        mp_strbuf_release(&label);
    }
    mp_strbuf_addstr(d->out, "</g>\n");
}

static void draw_x_axis(const struct drawing *d)
{
    const double font = d->view->font, bottom = d->g.top + d->g.plot_height;
    uint64_t ticks[MP_SVG_MAX_TICKS];
    const size_t n = mp_svg_count_ticks(d->t->n_events, 6, ticks);
    mp_svg_line(d->out, d->g.left, bottom, d->g.left + d->g.plot_width, bottom, "axis");
    mp_strbuf_addstr(d->out, "<g class=\"x-axis\">\n");
    for (size_t i = 0; i < n; i++) {
        const double x = x_of(d, (uint32_t)ticks[i]);
        struct mp_strbuf label = MP_STRBUF_INIT;
        mp_grouped_format(&label, ticks[i]);
        mp_svg_line(d->out, x, bottom, x, bottom + font * 0.3, "axis");
        mp_svg_text(d->out, x, bottom + font * 1.25, MP_SVG_MIDDLE, "small", mp_strbuf_text(&label));
        mp_strbuf_release(&label);
    }
    mp_strbuf_addstr(d->out, "</g>\n");
    mp_svg_text(d->out, d->g.left + d->g.plot_width / 2, bottom + font * 2.45, MP_SVG_MIDDLE, "small soft",
                "events of the program: allocations, frees, marks");
}

static void draw_capacity(const struct drawing *d)
{
    const double font = d->view->font, y = y_of(d, d->e->available_bytes);
    const double beside = d->e->oom ? y + font * 1.1 : y - font * 0.35; /* above it is the request that failed */
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, d->g.shows_available ? "available " : "\xe2\x86\x91 available ");
    mp_bytes_format(&text, d->e->available_bytes);
    mp_strbuf_addstr(d->out, "<g class=\"limit\">\n");
    if (d->g.shows_available)
        mp_svg_line(d->out, d->g.left, y, d->g.left + d->g.plot_width, y, "capacity");
    mp_svg_text(d->out, d->g.left + font * 0.5, d->g.shows_available ? beside : d->g.top + font * 1.1, MP_SVG_START, "small halo",
                mp_strbuf_text(&text));
    mp_strbuf_addstr(d->out, "</g>\n");
    mp_strbuf_release(&text);
}

/* Does the curve of reserved bytes, or the line above it, cross the box? */
static bool lines_cross(const struct drawing *d, double left, double right, double top, double bottom)
{
    const struct mp_timeline *t = d->t;
    double last = y_of(d, 0);
    if (d->g.shows_available && y_of(d, d->e->available_bytes) > top && y_of(d, d->e->available_bytes) < bottom)
        return true;
    for (size_t i = 0; i < t->n_samples; i++) {
        const double x = x_of(d, t->samples[i].event), next = i + 1 < t->n_samples ? x_of(d, t->samples[i + 1].event) : right;
        const double y = y_of(d, t->samples[i].reserved_bytes);
        const bool level = next >= left && x <= right && y > top && y < bottom;
        const bool rise = x >= left && x <= right && fmin(y, last) < bottom && fmax(y, last) > top;
        if (level || rise)
            return true;
        last = y;
    }
    return false;
}

/* The lowest line of text above y that nothing crosses; y where there is none. */
static double free_line(const struct drawing *d, double left, double right, double y)
{
    const double font = d->view->font;
    for (double line = y; line > d->g.top + font; line -= font * 0.25)
        if (!lines_cross(d, left, right, line - font * 1.05, line + font * 0.45))
            return line;
    return fmax(y, d->g.top + font);
}

/* The flag at the peak: a staff down to the stack, and the number beside it. */
static void draw_peak(const struct drawing *d)
{
    const struct mp_timeline_sample *peak = &d->t->samples[d->t->peak];
    const double font = d->view->font, x = x_of(d, peak->event), y = y_of(d, peak->allocated_bytes);
    const bool left = x > d->g.left + d->g.plot_width * 0.55;
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_bytes_format(&text, peak->allocated_bytes);
    mp_strbuf_addf(&text, " allocated, %s", d->t->phases[peak->phase].name);
    if (d->e->oom) {
        mp_strbuf_addstr(&text, "; the request needs ");
        mp_bytes_format(&text, d->e->oom_info.segment_bytes);
    }
    const double width = mp_svg_text_width(mp_strbuf_text(&text), font) + font;
    const double label = free_line(d, left ? x - width : x, left ? x : x + width, y - font * 1.1);
    mp_strbuf_addstr(d->out, "<g class=\"peak\">\n");
    mp_svg_line(d->out, x, y, x, label - font * 0.7, "marker");
    mp_strbuf_addstr(d->out, "<path class=\"mark\" d=\"M");
    mp_svg_number(d->out, x);
    mp_strbuf_addch(d->out, ' ');
    mp_svg_number(d->out, y);
    mp_strbuf_addstr(d->out, "l-3-5.5h6z\"/>\n");
    mp_svg_text(d->out, left ? x - font * 0.5 : x + font * 0.5, label, left ? MP_SVG_END : MP_SVG_START, "small strong halo",
                mp_strbuf_text(&text));
    mp_strbuf_addstr(d->out, "</g>\n");
    mp_strbuf_release(&text);
}

/* The segment that the card could not give, on top of what is reserved: it crosses the line. */
static void draw_failure(const struct drawing *d)
{
    const struct mp_allocator_oom *oom = &d->e->oom_info;
    const double x = d->g.left + d->g.plot_width, low = y_of(d, oom->reserved_bytes),
                 high = y_of(d, oom->reserved_bytes + oom->segment_bytes);
    mp_strbuf_addstr(d->out, "<g class=\"failing\">\n");
    mp_svg_rect(d->out, x - 5, high, 5, fmax(low - high, 1), "mark");
    mp_strbuf_addstr(d->out, "</g>\n");
}

static void describe(const struct drawing *d, struct mp_strbuf *out)
{
    const struct mp_timeline_sample *peak = &d->t->samples[d->t->peak];
    mp_strbuf_addf(out, "Live bytes by category over %u events of %lld steps. %s ", (unsigned)d->t->n_events, (long long)d->t->steps,
                   d->e->oom ? "It dies with" : "The peak is");
    mp_bytes_format(out, peak->allocated_bytes);
    mp_strbuf_addf(out, " allocated in %s", d->t->phases[peak->phase].name);
    for (int i = 0; i < MP_CATEGORY_COUNT; i++) {
        if (!peak->live_bytes[i])
            continue;
        mp_strbuf_addf(out, ", %s ", mp_category_text((enum mp_category)i));
        mp_bytes_format(out, peak->live_bytes[i]);
    }
    mp_strbuf_addstr(out, ". Reserved at most ");
    mp_bytes_format(out, d->t->samples[d->t->reserved_peak].reserved_bytes);
    mp_strbuf_addstr(out, " of ");
    mp_bytes_format(out, d->e->available_bytes);
    mp_strbuf_addstr(out, " available");
}

void mp_timeline_draw(const struct mp_timeline *timeline, const struct mp_timeline_view *view, struct mp_strbuf *out)
{
    const struct drawing d = {.t = timeline, .view = view, .e = view->evaluation, .g = mp_timeline_geometry(timeline, view), .out = out};
    struct mp_strbuf text = MP_STRBUF_INIT, attributes = MP_STRBUF_INIT;
    if (!timeline->n_samples)
        return;
    describe(&d, &text);
    mp_strbuf_addf(&attributes, "%s font-size=\"", view->attributes ? view->attributes : "role=\"img\"");
    mp_svg_number(&attributes, view->font);
    mp_strbuf_addch(&attributes, '"');
    mp_svg_open(out, &(struct mp_svg_document){.width = d.g.width, .height = d.g.height, .id = view->id, .title = view->title,
                                               .attributes = mp_strbuf_text(&attributes), .description = mp_strbuf_text(&text),
                                               .standalone = view->standalone});
    mp_strbuf_addstr(out, "<clipPath id=\"plot-clip\">");
    mp_svg_rect(out, d.g.left, d.g.top, d.g.plot_width, d.g.plot_height, NULL);
    mp_strbuf_addstr(out, "</clipPath>\n");
    draw_y_axis(&d);
    mp_strbuf_addstr(out, "<g clip-path=\"url(#plot-clip)\"><g class=\"plot\">\n");
    draw_bands(&d);
    draw_phase_lines(&d);
    mp_strbuf_addstr(out, "</g></g>\n");
    draw_x_axis(&d);
    mp_strbuf_addstr(out, "<g class=\"strips\">\n");
    draw_strips(&d);
    mp_strbuf_addstr(out, "</g>\n");
    draw_capacity(&d);
    if (view->evaluation->oom)
        draw_failure(&d);
    draw_peak(&d);
    draw_legend(&d, d.g.top + d.g.plot_height + view->font * 3.2, out);
    mp_svg_close(out);
    mp_strbuf_release(&text);
    mp_strbuf_release(&attributes);
}
