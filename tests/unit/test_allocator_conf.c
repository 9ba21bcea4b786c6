/* SPDX-License-Identifier: MIT */
/* PYTORCH_CUDA_ALLOC_CONF: what each release takes and refuses. */
#include <check.h>
#include <inttypes.h>

#include "memory/allocator.h"
#include "suites.h"

static const struct {
    const char *text;
    mp_torch_version torch;
    const char *error; /* NULL: taken */
} cases[] = {
    {NULL, 211, NULL},
    {"", 211, NULL},
    {" max_split_size_mb : 128 , ", 211, NULL},
    {"max_split_size_mb:20", 211, NULL},
    {"max_split_size_mb:20", 200,
     "allocator conf: max_split_size_mb: '20' is no size in MiB above 20"},
    {"max_split_size_mb:19", 211,
     "allocator conf: max_split_size_mb: '19' is no size in MiB of at least large_segment_size_mb "
     "(20)"},
    {"max_split_size_mb:-1", 211,
     "allocator conf: max_split_size_mb: '-1' is no size in MiB of at least large_segment_size_mb "
     "(20)"},
    {"max_split_size:128", 211,
     "allocator conf: unknown key 'max_split_size'; did you mean 'max_split_size_mb'?"},
    {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", 211,
     "allocator conf: unknown key 'PYTORCH_CUDA_ALLOC_CONF=expandable_segments'; give what stands "
     "behind 'PYTORCH_CUDA_ALLOC_CONF='"},
    {"foo:1", 113,
     "allocator conf: unknown key 'foo'; known are max_split_size_mb, "
     "garbage_collection_threshold, roundup_power2_divisions, roundup_bypass_threshold_mb"},
    {"expandable_segments:true", 211,
     "allocator conf: expandable_segments: 'true' is neither True nor False"},
    {"expandable_segments:True", 200,
     "allocator conf: expandable_segments: torch 2.0 does not know it; torch 2.1 and later do"},
    {"roundup_bypass_threshold_mb:64", 113, NULL},
    {"roundup_bypass_threshold_mb:64", 211,
     "allocator conf: roundup_bypass_threshold_mb: torch 2.11 does not know it; torch 2.0 and "
     "earlier do"},
    {"large_segment_size_mb:32", 210,
     "allocator conf: large_segment_size_mb: torch 2.10 does not know it; torch 2.11 and later do"},
    {"garbage_collection_threshold:0.8", 211, NULL},
    {"garbage_collection_threshold:1.0", 211,
     "allocator conf: garbage_collection_threshold: '1.0' is not between 0 and 1"},
    {"garbage_collection_threshold:nan", 211,
     "allocator conf: garbage_collection_threshold: 'nan' is not between 0 and 1"},
    {"roundup_power2_divisions:3", 211,
     "allocator conf: roundup_power2_divisions: '3' is no power of two"},
    {"roundup_power2_divisions:[256:1,512:2,1024:4,>:8]", 211, NULL},
    {"roundup_power2_divisions:[256:1,512:2,1024:4,>:8", 211,
     "allocator conf: 'roundup_power2_divisions:[256:1,512:2,1024:4,>:8': brackets do not match"},
    {"roundup_power2_divisions:[256]", 211,
     "allocator conf: roundup_power2_divisions: '256' is not size:divisions"},
    {"roundup_power2_divisions:[3:4]", 211,
     "allocator conf: roundup_power2_divisions: '3' is no power of two of MiB"},
    {"backend:cudaMallocAsync", 211, NULL},
    {"backend:async", 211,
     "allocator conf: backend: 'async' is neither native nor cudaMallocAsync"},
    {"pinned_use_cuda_host_register:True,pinned_num_register_threads:8", 211, NULL},
    {"expandable_segments", 211, "allocator conf: 'expandable_segments' is not key:value"},
};

START_TEST(settings_are_taken_or_refused_with_a_reason)
{
    struct mp_allocator_conf conf = {.large_segment_bytes = 77};
    struct memplan_error err = {0};
    const enum memplan_status status =
        mp_allocator_conf_parse(cases[_i].text, cases[_i].torch, &conf, &err);
    if (cases[_i].error) {
        ck_assert_int_eq(status, MEMPLAN_STATUS_INPUT);
        ck_assert_str_eq(err.text, cases[_i].error);
        ck_assert_uint_eq(conf.large_segment_bytes, 77); /* untouched */
    } else {
        ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s", err.text);
    }
}
END_TEST

START_TEST(values_arrive_in_bytes)
{
    struct mp_allocator_conf conf;
    ck_assert_int_eq(
        mp_allocator_conf_parse("max_split_size_mb:128,expandable_segments:True,"
                                "garbage_collection_threshold:0.75,large_segment_size_mb:64,"
                                "per_process_memory_fraction:0.5",
                                211, &conf, NULL),
        MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(conf.max_split_bytes, 128 * MP_MIB);
    ck_assert_uint_eq(conf.large_segment_bytes, 64 * MP_MIB);
    ck_assert_uint_eq(conf.max_non_split_rounding_bytes, 64 * MP_MIB);
    ck_assert(conf.expandable_segments);
    ck_assert_double_eq(conf.garbage_collection_threshold, 0.75);
    ck_assert_double_eq(conf.per_process_memory_fraction, 0.5);
}
END_TEST

START_TEST(a_list_of_divisions_fills_the_buckets_as_the_release_does)
{
    static const uint32_t newer[16] = {4, 4, 0, 2, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
    static const uint32_t older[16] = {4, 4, 0, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
    struct mp_allocator_conf conf;
    const char *text = "roundup_power2_divisions:[2:4,8:2,>:8]";
    ck_assert_int_eq(mp_allocator_conf_parse(text, 211, &conf, NULL), MEMPLAN_STATUS_OK);
    ck_assert_mem_eq(conf.roundup_divisions, newer, sizeof(newer));
    ck_assert_int_eq(mp_allocator_conf_parse(text, 203, &conf, NULL), MEMPLAN_STATUS_OK);
    ck_assert_mem_eq(conf.roundup_divisions, older, sizeof(older));
}
END_TEST

static const struct {
    const char *text;
    int torch; /* 0: refused */
} versions[] = {
    {"1.13", 113},     {"1.13.1", 113}, {"2.0", 200}, {"2.11.0+cu130", 211},
    {"2.12.0a0", 212}, {"2", 0},        {"1.12", 0},  {"1.99", 0},  {"2.15", 0},  {"3.0", 0},
    {"2.99", 0},       {"x", 0},        {"", 0},      {"2.x", 0},
};

START_TEST(torch_versions_are_read_as_people_write_them)
{
    mp_torch_version torch = 0;
    struct memplan_error err = {0};
    const enum memplan_status status = mp_torch_version_parse(versions[_i].text, &torch, &err);
    ck_assert_int_eq(status == MEMPLAN_STATUS_OK, versions[_i].torch != 0);
    ck_assert_int_eq(torch, versions[_i].torch);
}
END_TEST

START_TEST(the_drivers_own_pool_is_refused)
{
    struct mp_allocator_options options = {0};
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_allocator_conf_parse("backend:cudaMallocAsync", 0, &options.conf, &err),
                     MEMPLAN_STATUS_OK);
    ck_assert_ptr_null(mp_allocator_new(&options, &err));
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_UNSUPPORTED);
}
END_TEST

Suite *suite_allocator_conf(void)
{
    Suite *suite = suite_create("allocator_conf");
    TCase *tc = tcase_create("allocator_conf");
    tcase_add_loop_test(tc, settings_are_taken_or_refused_with_a_reason, 0,
                        (int)MP_ARRAY_LEN(cases));
    tcase_add_test(tc, values_arrive_in_bytes);
    tcase_add_test(tc, a_list_of_divisions_fills_the_buckets_as_the_release_does);
    tcase_add_loop_test(tc, torch_versions_are_read_as_people_write_them, 0,
                        (int)MP_ARRAY_LEN(versions));
    tcase_add_test(tc, the_drivers_own_pool_is_refused);
    suite_add_tcase(suite, tc);
    return suite;
}
