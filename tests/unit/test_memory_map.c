/* SPDX-License-Identifier: MIT */
/* The memory map shows all that is reserved, once, and the holes that the allocator has. */
#include "report/memory_map.h"

#include "small_run.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

static const char *const jobs[] = {
    "{model: gpt2, gpu: H200-141G, seq: 256, iterations: 2}",
    "{model: bert-base, gpu: H200-141G, batch: 2, seq: 128, precision: fp32, iterations: 2, allocator_conf: 'expandable_segments:True'}",
    "{model: llama3.2-1b, gpu: RTX4090-24G, batch: 4, seq: 2048, precision: bf16, checkpoint: full}",
    "{model: gpt2, gpu: H200-141G, batch: 8, seq: 1024, allocator_limit_bytes: 5GiB}",
};

static const struct mp_memory_map *map_of(const struct mp_evaluation *e, uint32_t event)
{
    const struct mp_memory_map *const map = mp_memory_map_new(e, event, &arena, &err);
    ck_assert_msg(map != NULL, "%s", err.text);
    return map;
}

/* Segments tile into blocks; places do not overlap; sums are the allocator's. */
static void check_map(const struct mp_memory_map *map)
{
    uint64_t reserved = 0, free_bytes = 0, end = 0;
    size_t next = 0, holes = 0;
    for (size_t i = 0; i < map->n_segments; i++) {
        const struct mp_map_segment *const s = &map->segments[i];
        uint64_t inside = 0, unused = 0;
        for (size_t k = s->first_block; k < s->first_block + s->n_blocks; k++) {
            inside += map->blocks[k].bytes;
            ck_assert_uint_le(map->blocks[k].requested_bytes, map->blocks[k].bytes);
            if (map->blocks[k].op)
                continue;
            unused += map->blocks[k].bytes;
            holes++;
        }
        ck_assert_uint_eq(inside, s->bytes);
        ck_assert_uint_eq(unused, s->free_bytes);
        ck_assert_uint_ge(s->position, end);
        end = s->position + s->bytes;
        reserved += s->bytes;
        free_bytes += unused;
        next += s->n_blocks;
    }
    ck_assert_uint_eq(next, map->n_blocks);
    ck_assert_uint_eq(holes, map->n_holes);
    ck_assert_uint_eq(reserved, map->reserved_bytes);
    ck_assert_uint_eq(free_bytes, map->free_bytes);
    ck_assert_uint_le(end, map->n_rows * map->row_bytes);
    ck_assert_uint_le(map->n_rows, 2 * 32);
}

START_TEST(the_map_is_the_allocators)
{
    struct mp_evaluation e;
    small_evaluate(small_run(&arena, jobs[_i]), true, &e);
    const struct mp_memory_map *const map = map_of(&e, e.oom ? e.oom_event : e.peak_event);
    uint64_t allocated = 0, requested = 0;
    check_map(map);
    for (size_t i = 0; i < map->n_blocks; i++) {
        allocated += map->blocks[i].op ? map->blocks[i].bytes : 0;
        requested += map->blocks[i].requested_bytes;
    }
    ck_assert_uint_eq(allocated + map->free_bytes, map->reserved_bytes);
    ck_assert_uint_eq(allocated, e.oom ? e.oom_info.allocated_bytes : e.peak_allocated_bytes);
    ck_assert_uint_lt(requested, allocated);
    if (e.oom) {
        ck_assert_uint_eq(map->reserved_bytes, e.oom_info.reserved_bytes);
        ck_assert_uint_eq(map->blocks[map->largest_hole].bytes, e.oom_info.largest_free_bytes);
    }
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(a_segment_that_ends_a_row_goes_on_in_the_next)
{
    struct mp_evaluation e;
    small_evaluate(small_run(&arena, jobs[2]), true, &e);
    const struct mp_memory_map *const map = map_of(&e, e.oom_event);
    size_t n_long = 0;
    for (size_t i = 0; i < map->n_segments; i++) {
        const struct mp_map_segment *const s = &map->segments[i];
        const uint64_t first_row = s->position / map->row_bytes, last_row = (s->position + s->bytes - 1) / map->row_bytes;
        ck_assert(s->bytes >= map->row_bytes ? s->position % map->row_bytes == 0 : first_row == last_row);
        n_long += first_row != last_row;
    }
    ck_assert_uint_gt(n_long, 0);
    mp_evaluation_release(&e);
}
END_TEST

START_TEST(before_the_first_allocation_there_is_nothing)
{
    struct mp_evaluation e;
    struct mp_strbuf out = MP_STRBUF_INIT;
    small_evaluate(small_family_run(&arena, 0, "seq: 16, used: 139.05GiB"),
                   true, &e);
    ck_assert(e.oom);
    const struct mp_memory_map *const map = map_of(&e, e.oom_event);
    ck_assert_uint_eq(map->n_segments, 0);
    ck_assert_uint_eq(map->largest_hole, map->n_blocks);
    mp_memory_map_draw(map, "map", NULL, &out);
    mp_memory_map_draw_failure(&e, &out);
    ck_assert(!out.failed);
    ck_assert_ptr_null(strstr(mp_strbuf_text(&out), "nan"));
    mp_strbuf_release(&out);
    mp_evaluation_release(&e);
}
END_TEST

Suite *suite_memory_map(void)
{
    Suite *const suite = suite_create("memory_map");
    TCase *const tc = tcase_create("memory_map");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, the_map_is_the_allocators, 0, (int)MP_ARRAY_LEN(jobs));
    tcase_add_test(tc, a_segment_that_ends_a_row_goes_on_in_the_next);
    tcase_add_test(tc, before_the_first_allocation_there_is_nothing);
    suite_add_tcase(suite, tc);
    return suite;
}
