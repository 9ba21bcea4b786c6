/* SPDX-License-Identifier: MIT */
/* Text traces and what histories infer from them. */
#include <check.h>
#include <inttypes.h>

#include "memory/history.h"
#include "suites.h"

static enum memplan_status parse(const char *text, struct mp_history *h, struct memplan_error *err)
{
    *h = (struct mp_history){0};
    return mp_history_parse(h, "t.txt", text, strlen(text), -1, err);
}

static void parse_good(const char *text, struct mp_history *h)
{
    struct memplan_error err = {0};
    ck_assert_msg(parse(text, h, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
}

START_TEST(events_marks_and_settings_are_read)
{
    struct mp_history h;
    parse_good("# config {\"alloc_conf\": \"max_split_size_mb:64\", \"limit_gib\": 16}\n"
               "# a remark\n"
               "segment_alloc 7f0000000000 2097152 0\n"
               "snapshot 0 512 0\n"
               "alloc 7f0000000000 100 0\r\n"
               "\n"
               "mark it0.fwd\n"
               "free_requested 0x7F0000000000 100 0\n"
               "free_completed 7f0000000000 100 0",
               &h);
    ck_assert_uint_eq(h.n_entries, 5);
    ck_assert_str_eq(h.conf, "max_split_size_mb:64");
    ck_assert_uint_eq(h.limit_bytes, 16 * MP_GIB);
    ck_assert_int_eq(h.entries[1].action, MP_ALLOCATOR_ALLOC);
    ck_assert_uint_eq(h.entries[1].bytes, 100);
    ck_assert_int_eq(h.entries[2].action, MP_HISTORY_MARK);
    ck_assert_str_eq(h.labels[h.entries[2].id], "it0.fwd");
    ck_assert_uint_eq(h.entries[3].address, UINT64_C(0x7f0000000000));
    ck_assert_uint_eq(h.entries[4].id, h.entries[1].id);
    ck_assert_uint_eq(h.n_allocs, 1);
    ck_assert_uint_eq(h.peak_reserved_bytes, 2 * MP_MIB);
    mp_history_release(&h);
}
END_TEST

static const struct {
    const char *text, *error;
} bad[] = {
    {"", "t.txt: empty file"},
    {"# only a remark\n", "t.txt: no allocator events; record with "
                          "torch.cuda.memory._record_memory_history()"},
    {"alloc 7f00 100 0\nmalloc 7f00 1 0\n",
     "t.txt:2: 'malloc 7f00 1 0': no event; expected an action (alloc, free_requested, "
     "free_completed, segment_alloc, ...), a hexadecimal address, bytes and a stream"},
    {"alloc 7f00 100\n", "t.txt:1: 'alloc 7f00 100': expected a hexadecimal address, bytes and a "
                         "stream after the action"},
    {"alloc 7g00 100 0\n", "t.txt:1: 'alloc 7g00 100 0': expected a hexadecimal address, bytes and "
                           "a stream after the action"},
    {"alloc 7f00 99999999999999999999 0\n",
     "t.txt:1: 'alloc 7f00 99999999999999999999 0': expected a hexadecimal address, bytes and a "
     "stream after the action"},
    {"alloc 7f00 1 0 0\n", "t.txt:1: 'alloc 7f00 1 0 0': expected a hexadecimal address, bytes and "
                           "a stream after the action"},
};

START_TEST(bad_lines_are_named)
{
    struct mp_history h;
    struct memplan_error err = {0};
    ck_assert_int_eq(parse(bad[_i].text, &h, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_str_eq(err.text, bad[_i].error);
}
END_TEST

START_TEST(streams_are_ordered_by_handle)
{
    struct mp_history h;
    parse_good("alloc 1000 1 94000\nalloc 2000 1 0\nalloc 3000 1 93000\n", &h);
    ck_assert_uint_eq(h.n_streams, 3);
    ck_assert_uint_eq(h.streams[0], 0);
    ck_assert_uint_eq(h.entries[0].stream, 2);
    ck_assert_uint_eq(h.entries[1].stream, 0);
    ck_assert_uint_eq(h.entries[2].stream, 1);
    mp_history_release(&h);
}
END_TEST

#define SEGMENT_A "segment_alloc a00000 20971520 0\n"
#define FREE_A "segment_free a00000 20971520 0\n"

static const struct {
    const char *name, *text;
    size_t entry; /* where a flag is expected; the first entry that has one */
    int flag;     /* 0: none anywhere */
} inferences[] = {
    {"nobody waits", SEGMENT_A FREE_A "mark zero\nalloc b00000 1 0\n", 1, MP_HISTORY_EMPTY_CACHE},
    {"the end", SEGMENT_A FREE_A, 1, MP_HISTORY_EMPTY_CACHE},
    {"an allocation that needs no memory", SEGMENT_A FREE_A "alloc b00000 1 0\n", 1,
     MP_HISTORY_EMPTY_CACHE},
    {"more than was ever reserved",
     SEGMENT_A FREE_A "segment_alloc c00000 14680064 0\nalloc c00000 14680064 0\n", 3,
     MP_HISTORY_RETRY},
    {"no more than was reserved before",
     "segment_alloc 9000000 41943040 0\nsegment_free 9000000 41943040 0\nmark x\n" SEGMENT_A FREE_A
     "segment_alloc c00000 14680064 0\nalloc c00000 14680064 0\n",
     1, MP_HISTORY_EMPTY_CACHE},
    {"the cap explains it",
     "# config {\"limit_gib\": 0.03}\n" SEGMENT_A FREE_A
     "segment_alloc c00000 14680064 0\nalloc c00000 14680064 0\n",
     0, 0},
    {"out of memory", SEGMENT_A FREE_A "oom 0 1048576000 0\n", 0, 0},
};

START_TEST(releases_find_their_cause)
{
    struct mp_history h;
    parse_good(inferences[_i].text, &h);
    size_t i = 0;
    while (i < h.n_entries && !h.entries[i].flags)
        i++;
    if (inferences[_i].flag) {
        ck_assert_msg(i < h.n_entries, "%s", inferences[_i].name);
        ck_assert_msg(i == inferences[_i].entry, "%s: entry %zu", inferences[_i].name, i);
        ck_assert_int_eq(h.entries[i].flags, inferences[_i].flag);
    } else {
        ck_assert_msg(i == h.n_entries, "%s: entry %zu", inferences[_i].name, i);
    }
    mp_history_release(&h);
}
END_TEST

START_TEST(an_oom_tells_what_the_card_could_give)
{
    struct mp_history h;
    parse_good(SEGMENT_A "oom 100000 52428800 0\n", &h);
    ck_assert_uint_eq(h.n_ooms, 1);
    ck_assert_uint_eq(h.capacity_bytes, 21 * MP_MIB);
    mp_history_release(&h);
}
END_TEST

START_TEST(frees_of_unknown_blocks_are_counted)
{
    struct mp_history h;
    parse_good("free_requested 5000 77 0\nfree_completed 5000 77 0\nalloc 5000 9 0\n", &h);
    ck_assert_uint_eq(h.n_unknown_frees, 1);
    ck_assert_uint_eq(h.n_allocs, 1);
    mp_history_release(&h);
}
END_TEST

Suite *suite_trace(void)
{
    Suite *suite = suite_create("trace");
    TCase *tc = tcase_create("trace");
    tcase_add_test(tc, events_marks_and_settings_are_read);
    tcase_add_loop_test(tc, bad_lines_are_named, 0, (int)MP_ARRAY_LEN(bad));
    tcase_add_test(tc, streams_are_ordered_by_handle);
    tcase_add_loop_test(tc, releases_find_their_cause, 0, (int)MP_ARRAY_LEN(inferences));
    tcase_add_test(tc, an_oom_tells_what_the_card_could_give);
    tcase_add_test(tc, frees_of_unknown_blocks_are_counted);
    suite_add_tcase(suite, tc);
    return suite;
}
