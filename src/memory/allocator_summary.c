/* SPDX-License-Identifier: MIT */
/*
 * torch.cuda.memory_summary(): the statistics as the table that people paste into bug reports.
 *
 * Every line is '|', 75 columns, '|'. A unit is chosen per column from the group's first row and
 * kept below it, and numbers are floor-divided at each step, as in torch/cuda/memory.py.
 */
#include <inttypes.h>

#include "memory/allocator.h"

enum { WIDTH = 75, COLUMNS = 4 };

static const char *const byte_units[] = {"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"};
static const char *const count_units[] = {" ", "K", "M"};

/* How the numbers of a group are written. */
struct scale {
    const char *const *units;
    size_t n_units;
    uint64_t step, threshold;
    int width;
};

static const struct scale byte_scale = {byte_units, MP_ARRAY_LEN(byte_units), 1024, 768 * 1024, 6};
static const struct scale count_scale = {count_units, MP_ARRAY_LEN(count_units), 1000, 750 * 1000,
                                         7};

static void line_of(struct mp_strbuf *out, char c)
{
    mp_strbuf_addch(out, '|');
    mp_strbuf_pad(out, c, WIDTH);
    mp_strbuf_addstr(out, "|\n");
}

static size_t unit_for(const struct scale *scale, uint64_t value)
{
    size_t unit = 0;
    for (; value >= scale->threshold && unit + 1 < scale->n_units; unit++)
        value /= scale->step;
    return unit;
}

static void add_cell(struct mp_strbuf *out, const struct scale *scale, uint64_t value, size_t unit)
{
    for (size_t i = 0; i < unit; i++)
        value /= scale->step;
    mp_strbuf_addf(out, " | %*" PRIu64 " %s", scale->width, value, scale->units[unit]);
    if (scale == &count_scale)
        mp_strbuf_addch(out, ' ');
}

static void add_row(struct mp_strbuf *out, const char *name, const struct scale *scale,
                    const struct mp_stat *stat, const struct mp_stat *whole)
{
    const uint64_t values[COLUMNS] = {stat->current, stat->peak, stat->allocated, stat->freed};
    const uint64_t deciding[COLUMNS] = {whole->current, whole->peak, whole->allocated,
                                        whole->freed};
    mp_strbuf_addf(out, "| %-21s", name);
    for (int i = 0; i < COLUMNS; i++)
        add_cell(out, scale, values[i], unit_for(scale, deciding[i]));
    mp_strbuf_addstr(out, " |\n");
}

static void add_group(struct mp_strbuf *out, const char *name, const struct scale *scale,
                      const struct mp_stat *stats, bool abbreviated)
{
    const struct mp_stat *whole = &stats[MP_STAT_ALL];
    line_of(out, '-');
    add_row(out, name, scale, whole, whole);
    if (abbreviated)
        return;
    add_row(out, "      from large pool", scale, &stats[MP_STAT_LARGE], whole);
    add_row(out, "      from small pool", scale, &stats[MP_STAT_SMALL], whole);
}

void mp_allocator_summary(const struct mp_allocator_stats *s, int device, bool abbreviated,
                          struct mp_strbuf *out)
{
    line_of(out, '=');
    mp_strbuf_addf(out, "|%18sPyTorch CUDA memory summary, device ID %-17d |\n", "", device);
    line_of(out, '-');
    mp_strbuf_addf(out,
                   "|%12sCUDA OOMs: %-12" PRIu64 " | %7scudaMalloc retries: %-8" PRIu64 "  |\n", "",
                   s->num_ooms, "", s->num_alloc_retries);
    line_of(out, '=');
    mp_strbuf_addstr(
        out, "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n");
    add_group(out, "Allocated memory", &byte_scale, s->allocated_bytes, abbreviated);
    add_group(out, "Active memory", &byte_scale, s->active_bytes, abbreviated);
    add_group(out, "Requested memory", &byte_scale, s->requested_bytes, abbreviated);
    add_group(out, "GPU reserved memory", &byte_scale, s->reserved_bytes, abbreviated);
    add_group(out, "Non-releasable memory", &byte_scale, s->inactive_split_bytes, abbreviated);
    add_group(out, "Allocations", &count_scale, s->allocation, abbreviated);
    add_group(out, "Active allocs", &count_scale, s->active, abbreviated);
    add_group(out, "GPU reserved segments", &count_scale, s->segment, abbreviated);
    add_group(out, "Non-releasable allocs", &count_scale, s->inactive_split, abbreviated);
    add_group(out, "Oversize allocations", &count_scale, &s->oversize_allocations, true);
    add_group(out, "Oversize GPU segments", &count_scale, &s->oversize_segments, true);
    line_of(out, '=');
}
