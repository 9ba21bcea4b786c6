/* SPDX-License-Identifier: MIT */
/* Arena: zeroed aligned blocks that do not overlap, marks, limits, injected failures. */
#include "base/arena.h"

#include "suites.h"

static bool all_zero(const unsigned char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i])
            return false;
    return true;
}

START_TEST(blocks_are_zeroed_aligned_and_apart)
{
    struct mp_arena arena = {0};
    unsigned char *blocks[500];
    for (size_t i = 0; i < MP_ARRAY_LEN(blocks); i++) {
        blocks[i] = mp_arena_alloc(&arena, i * 3);
        ck_assert_ptr_nonnull(blocks[i]);
        ck_assert_uint_eq((uintptr_t)blocks[i] % 16, 0);
        ck_assert(all_zero(blocks[i], i * 3));
        memset(blocks[i], (int)(i & 0xff), i * 3);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(blocks); i++)
        for (size_t k = 0; k < i * 3; k++)
            ck_assert_uint_eq(blocks[i][k], i & 0xff);
    mp_arena_release(&arena);
    ck_assert_uint_eq(arena.total_bytes, 0);
}
END_TEST

START_TEST(a_released_arena_can_be_used_again)
{
    struct mp_arena arena;
    mp_arena_init(&arena);
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_nonnull(mp_arena_alloc(&arena, 1 << 20));
        mp_arena_release(&arena);
    }
}
END_TEST

START_TEST(a_large_block_has_a_chunk_of_its_own)
{
    struct mp_arena arena = {0};
    unsigned char *const block = mp_arena_alloc(&arena, 32 * 1024 * 1024);
    ck_assert_ptr_nonnull(block);
    block[32 * 1024 * 1024 - 1] = 1;
    ck_assert_ptr_nonnull(mp_arena_alloc(&arena, 16));
    mp_arena_release(&arena);
}
END_TEST

START_TEST(calloc_and_alloc_refuse_overflow)
{
    struct mp_arena arena = {0};
    ck_assert_ptr_null(mp_arena_calloc(&arena, SIZE_MAX / 2, 3));
    ck_assert_ptr_null(mp_arena_alloc(&arena, SIZE_MAX));
    ck_assert_ptr_null(mp_arena_alloc(&arena, SIZE_MAX - 15));
    ck_assert_ptr_nonnull(mp_arena_calloc(&arena, 0, 8));
    ck_assert_ptr_null(mp_arena_alloc(&arena, SIZE_MAX));
    mp_arena_release(&arena);
}
END_TEST

START_TEST(copies_and_formats_strings)
{
    struct mp_arena arena = {0};
    ck_assert_str_eq(mp_arena_strdup(&arena, "rank"), "rank");
    ck_assert_str_eq(mp_arena_strdup(&arena, ""), "");
    ck_assert_str_eq(mp_arena_strndup(&arena, "tensor", 3), "ten");
    ck_assert_str_eq(mp_arena_strndup(&arena, "ab", 10), "ab");
    ck_assert_str_eq(mp_arena_printf(&arena, "layer %d of %s", 3, "gpt2"), "layer 3 of gpt2");
    mp_arena_release(&arena);
}
END_TEST

START_TEST(rewind_takes_back_and_zeroes)
{
    struct mp_arena arena = {0};
    char *const kept = mp_arena_strdup(&arena, "kept");
    const struct mp_arena_mark mark = mp_arena_mark(&arena);
    unsigned char *const first = mp_arena_alloc(&arena, 100);
    memset(first, 0xff, 100);
    mp_arena_rewind(&arena, mark);
    unsigned char *const second = mp_arena_alloc(&arena, 100);
    if (!arena.single_blocks)
        ck_assert_ptr_eq(first, second);
    ck_assert(all_zero(second, 100));
    ck_assert_str_eq(kept, "kept");
    mp_arena_release(&arena);
}
END_TEST

START_TEST(rewind_over_many_chunks_keeps_a_zeroed_spare)
{
    struct mp_arena arena = {0};
    mp_arena_alloc(&arena, 16);
    const struct mp_arena_mark mark = mp_arena_mark(&arena);
    uint64_t held_bytes = 0;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 3000; i++) {
            unsigned char *const block = mp_arena_alloc(&arena, 200);
            ck_assert(all_zero(block, 200));
            memset(block, 0xee, 200);
        }
        if (round == 2)
            held_bytes = arena.total_bytes;
        if (round > 2) /* the spare is large enough by then */
            ck_assert_uint_eq(arena.total_bytes, held_bytes);
        mp_arena_rewind(&arena, mark);
    }
    mp_arena_release(&arena);
    ck_assert_uint_eq(arena.total_bytes, 0);
}
END_TEST

START_TEST(rewind_to_the_empty_arena)
{
    struct mp_arena arena = {0};
    const struct mp_arena_mark mark = mp_arena_mark(&arena);
    memset(mp_arena_alloc(&arena, 1000), 1, 1000);
    mp_arena_rewind(&arena, mark);
    ck_assert(all_zero(mp_arena_alloc(&arena, 1000), 1000));
    mp_arena_release(&arena);
}
END_TEST

START_TEST(the_limit_holds)
{
    struct mp_arena arena = {.limit_bytes = 100 * 1024};
    size_t n = 0;
    while (mp_arena_alloc(&arena, 1024))
        n++;
    ck_assert_uint_gt(n, 50);
    ck_assert_uint_le(n, 100);
    ck_assert_uint_le(arena.total_bytes, arena.limit_bytes);
    mp_arena_release(&arena);
    ck_assert_uint_eq(arena.limit_bytes, 100 * 1024);
}
END_TEST

START_TEST(the_nth_allocation_fails_once)
{
    struct mp_arena arena = {0};
    mp_alloc_fail_after(3);
    ck_assert_ptr_nonnull(mp_arena_alloc(&arena, 8));
    void *const block = mp_malloc(8);
    ck_assert_ptr_nonnull(block);
    ck_assert_ptr_null(mp_realloc(block, 16));
    void *const larger = mp_realloc(block, 16);
    ck_assert_ptr_nonnull(larger);
    ck_assert_uint_eq(mp_alloc_fail_after(0), 4);
    ck_assert_ptr_nonnull(mp_arena_alloc(&arena, 8));
    ck_assert_uint_eq(mp_alloc_fail_after(0), 1);
    free(larger);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(single_blocks_behave_alike)
{
    struct mp_arena arena = {0};
    setenv("MEMPLAN_ARENA", "malloc", 1);
    char *const kept = mp_arena_strdup(&arena, "kept");
    ck_assert(arena.single_blocks);
    const struct mp_arena_mark mark = mp_arena_mark(&arena);
    for (int i = 0; i < 100; i++)
        ck_assert(all_zero(mp_arena_alloc(&arena, 100), 100));
    mp_arena_rewind(&arena, mark);
    ck_assert_ptr_null(arena.spare);
    ck_assert_str_eq(kept, "kept");
    ck_assert_ptr_nonnull(mp_arena_alloc(&arena, 0));
    mp_arena_release(&arena);
    ck_assert_uint_eq(arena.total_bytes, 0);
}
END_TEST

Suite *suite_base_arena(void)
{
    Suite *const suite = suite_create("base_arena");
    TCase *const tc = tcase_create("arena");
    tcase_add_test(tc, blocks_are_zeroed_aligned_and_apart);
    tcase_add_test(tc, a_released_arena_can_be_used_again);
    tcase_add_test(tc, a_large_block_has_a_chunk_of_its_own);
    tcase_add_test(tc, calloc_and_alloc_refuse_overflow);
    tcase_add_test(tc, copies_and_formats_strings);
    tcase_add_test(tc, rewind_takes_back_and_zeroes);
    tcase_add_test(tc, rewind_over_many_chunks_keeps_a_zeroed_spare);
    tcase_add_test(tc, rewind_to_the_empty_arena);
    tcase_add_test(tc, the_limit_holds);
    tcase_add_test(tc, the_nth_allocation_fails_once);
    tcase_add_test(tc, single_blocks_behave_alike);
    suite_add_tcase(suite, tc);
    return suite;
}
