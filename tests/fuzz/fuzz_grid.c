/* SPDX-License-Identifier: MIT */
/* Any bytes as a grid: what is taken has points, each a run spec or a mistake that is told. No file is opened. */
#include "base/yaml.h"
#include "plan/grid.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check_point(const struct mp_grid *grid, uint64_t point)
{
    struct mp_run_source source;
    struct mp_arena arena = {0};
    struct mp_strbuf text = MP_STRBUF_INIT;
    (void)mp_grid_keeps(grid, point);
    mp_run_source_init(&source, &arena);
    mp_grid_source(grid, point, &source);
    for (size_t i = 0; i < grid->n_axes; i++) {
        const struct mp_axis *const axis = &grid->axes[i];
        require(source.values[axis->key] == axis->values[point / axis->stride % axis->n]);
        mp_grid_value_text(source.values[axis->key], &text);
    }
    mp_strbuf_release(&text);
    mp_arena_release(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    arena.limit_bytes = 256 * MP_MIB;
    const struct mp_value *const value = mp_yaml_parse(&arena, "input", (const char *)bytes, length, &err);
    const struct mp_grid *const grid = value ? mp_grid_parse(&arena, "input", value, &err) : NULL;
    if (grid) {
        require(grid->n_points == grid->n_groups * grid->n_inner && grid->n_points >= 1 && grid->n_points <= MP_GRID_MAX_POINTS);
        for (uint64_t i = 0; i < 16; i++)
            check_point(grid, grid->n_points * i / 16);
        check_point(grid, grid->n_points - 1);
    } else {
        require(err.status != MEMPLAN_STATUS_OK && err.text[0] != '\0');
    }
    mp_arena_release(&arena);
    return 0;
}
