/* SPDX-License-Identifier: MIT */
/* Numbers, escapes, ticks, legends and the palette of drawings. */
#include "report/svg.h"

#include "suites.h"

static struct mp_strbuf out;

static void setup(void)
{
    out = (struct mp_strbuf)MP_STRBUF_INIT;
}

static void teardown(void)
{
    mp_strbuf_release(&out);
}

static const struct { double number; const char *text; } numbers[] = {
    {0, "0"}, {1, "1"}, {-1, "-1"}, {0.5, "0.5"}, {0.05, "0.05"}, {-0.05, "-0.05"}, {12.345, "12.35"}, {12.3, "12.3"},
    {-0.001, "0"}, {99.999, "100"}, {1234567.89, "1234567.89"}, {10.1, "10.1"}, {10.01, "10.01"},
};

START_TEST(coordinates_have_at_most_two_decimals)
{
    mp_svg_number(&out, numbers[_i].number);
    ck_assert_str_eq(mp_strbuf_text(&out), numbers[_i].text);
}
END_TEST

static const struct { const char *text, *escaped; } escapes[] = {
    {"plain", "plain"},
    {"<script>alert('x')</script>", "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;"},
    {"a & \"b\"", "a &amp; &quot;b&quot;"},
    {"bell\a", "bell\\x07"},
    {"bad \xff byte", "bad \\xff byte"},
    {"\xc3\xa9t\xc3\xa9", "\xc3\xa9t\xc3\xa9"},
    {"", ""},
};

START_TEST(text_is_escaped)
{
    mp_svg_escape(&out, escapes[_i].text);
    ck_assert_str_eq(mp_strbuf_text(&out), escapes[_i].escaped);
}
END_TEST

static const struct { uint64_t top; unsigned want; size_t n; uint64_t step; const char *last; } ticks[] = {
    {80 * MP_GIB, 5, 5, 20 * MP_GIB, "80 GiB"},
    {140 * MP_GIB, 6, 3, 50 * MP_GIB, "100 GiB"},
    {3 * MP_GIB + 5, 6, 4, MP_GIB, "3 GiB"},
    {2 * MP_GIB, 6, 5, 500 * MP_MIB, "2000 MiB"},
    {700 * MP_MIB, 4, 4, 200 * MP_MIB, "600 MiB"},
    {5 * MP_KIB, 6, 6, MP_KIB, "5 KiB"},
    {100, 4, 3, 50, "100 B"},
    {0, 4, 1, 0, "0"},
    {UINT64_C(1) << 62, 4, 5, UINT64_C(1000) << 50, NULL},
};

START_TEST(byte_ticks_are_round_in_their_unit)
{
    uint64_t values[MP_SVG_MAX_TICKS];
    const size_t n = mp_svg_byte_ticks(ticks[_i].top, ticks[_i].want, values);
    ck_assert_uint_eq(n, ticks[_i].n);
    for (size_t i = 0; i < n; i++) {
        ck_assert_uint_eq(values[i], i * ticks[_i].step);
        ck_assert_uint_le(values[i], ticks[_i].top);
    }
    mp_svg_byte_label(&out, values[n - 1]);
    if (ticks[_i].last)
        ck_assert_str_eq(mp_strbuf_text(&out), ticks[_i].last);
}
END_TEST

START_TEST(ticks_end_before_numbers_do)
{
    uint64_t values[MP_SVG_MAX_TICKS];
    ck_assert_uint_le(mp_svg_byte_ticks(UINT64_MAX, 5, values), MP_SVG_MAX_TICKS);
    ck_assert_uint_le(mp_svg_count_ticks(UINT64_MAX, 5, values), MP_SVG_MAX_TICKS);
    ck_assert_uint_eq(mp_svg_count_ticks(1, 5, values), 2);
}
END_TEST

static size_t occurrences(const char *text, const char *part)
{
    size_t n = 0;
    for (const char *at = text; (at = strstr(at, part)) != NULL; at += strlen(part))
        n++;
    return n;
}

START_TEST(a_legend_wraps_at_the_width)
{
    const struct mp_svg_legend_entry entries[] = {{"b0", "parameters", false}, {"b4", "activations", false}, {"reserved", "reserved", true}};
    const double one_line = mp_svg_legend(&out, 0, 0, 1000, 10, entries, 3), three_lines = mp_svg_legend(&out, 0, 0, 20, 10, entries, 3);
    ck_assert(three_lines > 2.9 * one_line);
    ck_assert_uint_eq(occurrences(mp_strbuf_text(&out), "<rect"), 4);
    ck_assert_uint_eq(occurrences(mp_strbuf_text(&out), "<line"), 2);
    ck_assert_uint_eq(occurrences(mp_strbuf_text(&out), "activations</text>"), 2);
}
END_TEST

/* Every band has a rule, and what the rule names is there. */
START_TEST(every_band_has_a_fill)
{
    struct mp_strbuf textures = MP_STRBUF_INIT;
    mp_svg_style(&out, "#x ", "q");
    mp_svg_textures(&textures, "q");
    for (unsigned band = 0; band < MP_SVG_BANDS; band++) {
        char rule[64], id[64];
        snprintf(rule, sizeof rule, "#x .%s{fill:", mp_svg_band_class(band));
        snprintf(id, sizeof id, "url(#q%u)", band);
        ck_assert_msg(strstr(mp_strbuf_text(&out), rule) != NULL, "%s", rule);
        if (strstr(mp_strbuf_text(&out), id) == NULL)
            continue;
        snprintf(id, sizeof id, "<pattern id=\"q%u\"", band);
        ck_assert_msg(strstr(mp_strbuf_text(&textures), id) != NULL, "%s", id);
    }
    mp_strbuf_release(&textures);
}
END_TEST

static double luminance(const char *hex)
{
    const unsigned long rgb = strtoul(hex, NULL, 16);
    return (0.299 * (double)(rgb >> 16 & 255) + 0.587 * (double)(rgb >> 8 & 255) + 0.114 * (double)(rgb & 255)) / 255;
}

/* The fill of a band: plain, or behind its texture. */
static double band_luminance(const char *style, const char *patterns, unsigned band, bool *textured)
{
    char rule[64];
    snprintf(rule, sizeof rule, ".%s{fill:", mp_svg_band_class(band));
    const char *fill = strstr(style, rule) + strlen(rule);
    *textured = *fill != '#';
    if (!*textured)
        return luminance(fill + 1);
    snprintf(rule, sizeof rule, "<pattern id=\"t%u\"", band);
    return luminance(strstr(strstr(patterns, rule), "fill=\"#") + 7);
}

START_TEST(categories_differ_without_colour)
{
    struct mp_strbuf textures = MP_STRBUF_INIT;
    mp_svg_style(&out, "", "t");
    mp_svg_textures(&textures, "t");
    for (unsigned a = 0; a < MP_CATEGORY_COUNT; a++)
        for (unsigned b = a + 1; b < MP_CATEGORY_COUNT; b++) {
            bool ta, tb;
            const double la = band_luminance(mp_strbuf_text(&out), mp_strbuf_text(&textures), a, &ta);
            const double lb = band_luminance(mp_strbuf_text(&out), mp_strbuf_text(&textures), b, &tb);
            ck_assert_msg(ta || tb || la - lb > 0.05 || lb - la > 0.05, "%s and %s look alike in grey", mp_category_text((enum mp_category)a),
                          mp_category_text((enum mp_category)b));
        }
    mp_strbuf_release(&textures);
}
END_TEST

START_TEST(a_document_of_its_own_carries_all_it_needs)
{
    mp_svg_open(&out, &(struct mp_svg_document){.width = 10, .height = 5, .title = "a < b", .description = "c & d", .standalone = true});
    mp_svg_close(&out);
    const char *const text = mp_strbuf_text(&out);
    ck_assert_ptr_nonnull(strstr(text, "xmlns=\"http://www.w3.org/2000/svg\""));
    ck_assert_ptr_nonnull(strstr(text, "<title>a &lt; b</title>"));
    ck_assert_ptr_nonnull(strstr(text, "<desc>c &amp; d</desc>"));
    ck_assert_ptr_nonnull(strstr(text, "<style>"));
    ck_assert_ptr_nonnull(strstr(text, "<pattern id=\"t1\""));
    ck_assert_str_eq(text + out.len - 7, "</svg>\n");
}
END_TEST

Suite *suite_svg(void)
{
    Suite *const suite = suite_create("svg");
    TCase *const tc = tcase_create("svg");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, coordinates_have_at_most_two_decimals, 0, (int)MP_ARRAY_LEN(numbers));
    tcase_add_loop_test(tc, text_is_escaped, 0, (int)MP_ARRAY_LEN(escapes));
    tcase_add_loop_test(tc, byte_ticks_are_round_in_their_unit, 0, (int)MP_ARRAY_LEN(ticks));
    tcase_add_test(tc, ticks_end_before_numbers_do);
    tcase_add_test(tc, a_legend_wraps_at_the_width);
    tcase_add_test(tc, every_band_has_a_fill);
    tcase_add_test(tc, categories_differ_without_colour);
    tcase_add_test(tc, a_document_of_its_own_carries_all_it_needs);
    suite_add_tcase(suite, tc);
    return suite;
}
