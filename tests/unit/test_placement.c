/* SPDX-License-Identifier: MIT */
/* The placement of segments, against addresses that a card gave. */
#include <check.h>
#include <inttypes.h>

#include "base/file.h"
#include "memory/placement.h"
#include "suites.h"

START_TEST(segments_fill_chunks_from_the_newest_down)
{
    struct mp_heap heap;
    mp_heap_init(&heap, MP_HEAP_TOP);
    const uint64_t a = mp_heap_take(&heap, 20 * MP_MIB);
    const uint64_t b = mp_heap_take(&heap, 22 * MP_MIB);
    ck_assert_uint_eq(a, MP_HEAP_TOP - 32 * MP_MIB);
    ck_assert_uint_eq(b, MP_HEAP_TOP - 64 * MP_MIB);
    ck_assert_uint_eq(mp_heap_take(&heap, 2 * MP_MIB), b + 22 * MP_MIB);
    ck_assert_uint_eq(mp_heap_take(&heap, 10 * MP_MIB), a + 20 * MP_MIB);
    mp_heap_release(&heap);
}
END_TEST

START_TEST(a_free_chunk_is_address_space_again_but_only_with_room_to_spare)
{
    struct mp_heap heap;
    mp_heap_init(&heap, MP_HEAP_TOP);
    const uint64_t a = mp_heap_take(&heap, 64 * MP_MIB);
    const uint64_t b = mp_heap_take(&heap, 32 * MP_MIB);
    mp_heap_give(&heap, a);
    ck_assert_uint_eq(mp_heap_take(&heap, 64 * MP_MIB), b - 64 * MP_MIB);
    ck_assert_uint_eq(mp_heap_take(&heap, 32 * MP_MIB), a + 32 * MP_MIB);
    ck_assert(mp_heap_check(&heap, NULL));
    mp_heap_release(&heap);
}
END_TEST

/* ---- the recorded program ---- */

enum { MAX_PAIRS = 1000 };

/* The driver had chunks of its own before the first call, so addresses agree up to one shift per
   chunk of address space: the test maps real addresses to modelled ones and checks that the
   distance from the first chunk is equal. */
struct recording {
    struct mp_heap heap;
    uint64_t real[MAX_PAIRS], modelled[MAX_PAIRS];
    size_t n_live;
    int64_t shift;
    bool has_shift;
    unsigned n_equal, n_other;
};

static void replay_line(struct recording *r, const char *line, unsigned n)
{
    char action[8];
    uint64_t bytes = 0, address = 0;
    if (sscanf(line, "%7s %" SCNu64 " 0x%" SCNx64, action, &bytes, &address) != 3)
        return;
    if (strcmp(action, "free") == 0) {
        for (size_t i = 0; i < r->n_live; i++) {
            if (r->real[i] != address)
                continue;
            mp_heap_give(&r->heap, r->modelled[i]);
            r->real[i] = r->real[--r->n_live];
            r->modelled[i] = r->modelled[r->n_live];
            break;
        }
        return;
    }
    const uint64_t modelled = mp_heap_take(&r->heap, bytes);
    ck_assert_uint_ne(modelled, 0);
    if (!r->has_shift) {
        r->shift = (int64_t)(address - modelled);
        r->has_shift = true;
    }
    if (modelled + (uint64_t)r->shift == address)
        r->n_equal++;
    else if (r->n_other++ < 5)
        fprintf(stderr, "event %u: %" PRIx64 " modelled as %" PRIx64 "\n", n, address,
                modelled + (uint64_t)r->shift);
    r->real[r->n_live] = address;
    r->modelled[r->n_live++] = modelled;
}

/* Runs the recording from its third allocation on; the first two went into what the context left
 * over. */
START_TEST(every_address_of_a_recorded_program_is_met)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    ck_assert_msg(mp_file_read("tests/data/cudamalloc-addresses.txt", 0, &text, &err) ==
                      MEMPLAN_STATUS_OK,
                  "%s", err.text);
    static struct recording r;
    mp_heap_init(&r.heap, MP_HEAP_TOP);
    unsigned n = 0;
    for (const char *line = text.data; line && *line; line = strchr(line, '\n') + 1) {
        if (*line != '#' && n++ >= 2)
            replay_line(&r, line, n);
        ck_assert(mp_heap_check(&r.heap, NULL));
    }
    ck_assert_uint_eq(r.n_other, 0);
    ck_assert_uint_eq(r.n_equal, 553);
    mp_heap_release(&r.heap);
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(equal_heaps_have_equal_hashes)
{
    struct mp_heap heap;
    mp_heap_init(&heap, MP_HEAP_TOP);
    mp_heap_take(&heap, 20 * MP_MIB);
    const uint64_t before = mp_heap_hash(&heap);
    const uint64_t b = mp_heap_take(&heap, 50 * MP_MIB);
    ck_assert_uint_ne(mp_heap_hash(&heap), before);
    mp_heap_give(&heap, b);
    ck_assert_uint_eq(mp_heap_hash(&heap), before);
    mp_heap_release(&heap);
}
END_TEST

/* ---- what else is in the process ---- */

static struct mp_heap process;

/* With a first segment, below all that the context has. */
static void open_process(void)
{
    ck_assert(mp_heap_init_process(&process));
    ck_assert_uint_ne(mp_heap_take(&process, 64 * MP_MIB), 0);
}

static void happens(enum mp_driver_event event)
{
    ck_assert(mp_heap_driver_event(&process, event, 64 * MP_MIB));
    ck_assert(mp_heap_check(&process, NULL));
}

/* Where a probe of that size would go; the heap stays as it was. */
static uint64_t place_of(uint64_t bytes)
{
    const uint64_t address = mp_heap_take(&process, bytes);
    ck_assert_uint_ne(address, 0);
    mp_heap_give(&process, address);
    return address;
}

/* What an event takes where a page fits: all of it lies in a row in an empty chunk. */
static const struct {
    enum mp_driver_event event;
    uint64_t bytes;
} taken[] = {
    {MP_DRIVER_FIRST_KERNEL, 2 * MP_MIB},
    {MP_DRIVER_HOST_PAGE, 2 * MP_MIB},
    {MP_DRIVER_CODE_PAGE, 2 * MP_MIB},
    {MP_DRIVER_ASSERTIONS, 10 * MP_MIB}, /* 8,654,848 bytes in whole pages */
    {MP_DRIVER_FIRST_CUBLAS, 2 * MP_MIB + 64 * MP_MIB},
    {MP_DRIVER_CUBLAS, 64 * MP_MIB},
    {MP_DRIVER_FIRST_CUDNN, 8 * MP_MIB},
    {MP_DRIVER_CUDNN, 8 * MP_MIB},
    {MP_DRIVER_STREAM_POOL, 64 * MP_MIB},
    {MP_DRIVER_BACKWARD_THREAD, 0}, /* address space, but no piece */
};

static uint64_t bytes_in_use(void)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < process.n_used; i++)
        sum += process.used[i].bytes;
    return sum;
}

START_TEST(an_event_takes_its_pieces)
{
    open_process();
    const uint64_t before = bytes_in_use();
    happens(taken[_i].event);
    ck_assert_uint_eq(bytes_in_use() - before, taken[_i].bytes);
    mp_heap_release(&process);
}
END_TEST

START_TEST(larger_stacks_leave_the_range_of_the_smaller_ones)
{
    open_process();
    const uint64_t lowest = place_of(96 * MP_MIB), before = bytes_in_use();
    happens(MP_DRIVER_LARGER_STACKS);
    ck_assert_uint_eq(bytes_in_use() - before, 504 * MP_MIB + 2 * MP_MIB - 414 * MP_MIB);
    ck_assert_uint_gt(place_of(96 * MP_MIB), lowest); /* in the 416 MiB that came free */
    mp_heap_release(&process);
}
END_TEST

/* A chunk goes into the lone gap, far above the context, while a model is made, and never after the first product. */
START_TEST(the_lone_gap_is_gone_once_cublas_has_started)
{
    open_process();
    const uint64_t lone = place_of(32 * MP_MIB);
    ck_assert_uint_gt(lone, place_of(64 * MP_MIB));
    happens(MP_DRIVER_FIRST_CUBLAS);
    ck_assert_uint_lt(place_of(32 * MP_MIB), lone);
    happens(MP_DRIVER_CUBLAS);
    mp_heap_release(&process);
}
END_TEST

START_TEST(a_chunk_in_the_lone_gap_stays_there)
{
    open_process();
    const uint64_t lone = mp_heap_take(&process, 26 * MP_MIB);
    happens(MP_DRIVER_FIRST_CUBLAS);
    ck_assert_uint_eq(place_of(4 * MP_MIB),
                      lone + 28 * MP_MIB); /* after the page that cuBLAS took */
    mp_heap_release(&process);
}
END_TEST

static const enum mp_driver_event closing[] = {MP_DRIVER_FIRST_CUDNN, MP_DRIVER_NCCL};

START_TEST(no_gap_outlives_what_the_host_maps)
{
    open_process();
    happens(MP_DRIVER_LARGER_STACKS);
    const uint64_t in_the_gap = place_of(64 * MP_MIB);
    happens(closing[_i]);
    ck_assert_uint_lt(place_of(64 * MP_MIB), in_the_gap);
    ck_assert_uint_lt(place_of(32 * MP_MIB), in_the_gap);
    mp_heap_release(&process);
}
END_TEST

START_TEST(the_backward_threads_heap_lies_where_the_next_chunk_would)
{
    open_process();
    const uint64_t before = place_of(160 * MP_MIB);
    happens(MP_DRIVER_BACKWARD_THREAD);
    ck_assert_uint_eq(place_of(160 * MP_MIB), before - 128 * MP_MIB);
    mp_heap_release(&process);
}
END_TEST

Suite *suite_placement(void)
{
    Suite *suite = suite_create("placement");
    TCase *tc = tcase_create("placement");
    tcase_add_test(tc, segments_fill_chunks_from_the_newest_down);
    tcase_add_test(tc, a_free_chunk_is_address_space_again_but_only_with_room_to_spare);
    tcase_add_test(tc, every_address_of_a_recorded_program_is_met);
    tcase_add_test(tc, equal_heaps_have_equal_hashes);
    tcase_add_loop_test(tc, an_event_takes_its_pieces, 0, (int)MP_ARRAY_LEN(taken));
    tcase_add_test(tc, larger_stacks_leave_the_range_of_the_smaller_ones);
    tcase_add_test(tc, the_lone_gap_is_gone_once_cublas_has_started);
    tcase_add_test(tc, a_chunk_in_the_lone_gap_stays_there);
    tcase_add_loop_test(tc, no_gap_outlives_what_the_host_maps, 0, (int)MP_ARRAY_LEN(closing));
    tcase_add_test(tc, the_backward_threads_heap_lies_where_the_next_chunk_would);
    suite_add_tcase(suite, tc);
    return suite;
}
