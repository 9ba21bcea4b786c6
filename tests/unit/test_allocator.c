/* SPDX-License-Identifier: MIT */
/*
 * The caching allocator, by small scripts whose outcome PyTorch's rules fix, and by random
 * sequences checked after every event.
 *
 * A script is a list of words: `a=10M+1` allocates, `a=40M!` must fail, `b:1=4M` allocates on
 * stream 1, `-a` frees, `a@1` records a on stream 1, `done@1` completes that stream's events,
 * `empty` is empty_cache.
 */
#include <check.h>
#include <inttypes.h>

#include "base/units.h"
#include "memory/allocator.h"
#include "suites.h"

struct machine {
    struct mp_allocator *a;
    struct mp_block *blocks[26];
};

static struct mp_allocator *make(const char *conf, uint64_t limit, uint64_t capacity)
{
    struct memplan_error err = {0};
    struct mp_allocator_options options = {.limit_bytes = limit, .capacity_bytes = capacity};
    ck_assert_msg(mp_allocator_conf_parse(conf, 0, &options.conf, &err) == MEMPLAN_STATUS_OK, "%s",
                  err.text);
    struct mp_allocator *a = mp_allocator_new(&options, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    return a;
}

/* "20M-512", "513", "10M+1" */
static uint64_t size_of(const char *text, const char **end)
{
    char *rest = NULL;
    uint64_t bytes = strtoull(text, &rest, 10);
    if (*rest == 'M') {
        bytes *= MP_MIB;
        rest++;
    }
    if (*rest == '+' || *rest == '-')
        bytes += (uint64_t)strtoll(rest, &rest, 10);
    *end = rest;
    return bytes;
}

static void step(struct machine *m, const char *name, const char *word)
{
    if (strncmp(word, "empty", 5) == 0) {
        mp_allocator_empty_cache(m->a);
    } else if (strncmp(word, "done@", 5) == 0) {
        mp_allocator_complete_stream(m->a, (unsigned)(word[5] - '0'));
    } else if (word[0] == '-') {
        mp_allocator_release(m->a, m->blocks[word[1] - 'a']);
    } else if (word[1] == '@') {
        mp_allocator_record_stream(m->a, m->blocks[word[0] - 'a'], (unsigned)(word[2] - '0'));
    } else {
        const unsigned stream = word[1] == ':' ? (unsigned)(word[2] - '0') : 0;
        const char *end = NULL;
        const uint64_t n = size_of(strchr(word, '=') + 1, &end);
        struct mp_block *block = mp_allocator_malloc(m->a, n, stream, (uint32_t)(word[0] - 'a'));
        ck_assert_msg((block == NULL) == (*end == '!'), "%s: %s", name, word);
        m->blocks[word[0] - 'a'] = block;
    }
    struct memplan_error err = {0};
    ck_assert_msg(mp_allocator_check(m->a, &err), "%s: after %s: %s", name, word, err.text);
}

static void play(struct machine *m, const char *name, const char *script)
{
    for (const char *word = script; word && *word;) {
        step(m, name, word);
        word = strchr(word, ' ');
        word = word ? word + 1 : NULL;
    }
}

static const struct mp_stat *stat_named(const struct mp_allocator_stats *s, const char *name)
{
    const struct {
        const char *name;
        const struct mp_stat *stat;
    } all[] = {
        {"allocation", s->allocation},
        {"segment", s->segment},
        {"active", s->active},
        {"inactive_split", s->inactive_split},
        {"allocated_bytes", s->allocated_bytes},
        {"reserved_bytes", s->reserved_bytes},
        {"active_bytes", s->active_bytes},
        {"inactive_split_bytes", s->inactive_split_bytes},
        {"requested_bytes", s->requested_bytes},
        {"oversize_allocations", &s->oversize_allocations},
        {"oversize_segments", &s->oversize_segments},
    };
    for (size_t i = 0; i < MP_ARRAY_LEN(all); i++) {
        if (strcmp(all[i].name, name) == 0)
            return all[i].stat;
    }
    return NULL;
}

/* "reserved_bytes 62M 62M; retries 1": current, peak, allocated, freed, as many as are given */
static void expect(const struct mp_allocator_stats *s, const char *name, const char *expected)
{
    const char *at = expected;
    while (*at) {
        char key[40];
        int length = 0;
        ck_assert_int_eq(sscanf(at, " %39[a-z_]%n", key, &length), 1);
        at += length;
        const struct mp_stat *stat = stat_named(s, key);
        const uint64_t numbers[4] = {stat                               ? stat->current
                                     : strcmp(key, "retries") == 0      ? s->num_alloc_retries
                                     : strcmp(key, "ooms") == 0         ? s->num_ooms
                                     : strcmp(key, "syncs") == 0        ? s->num_sync_all_streams
                                     : strcmp(key, "device_alloc") == 0 ? s->num_device_alloc
                                     : strcmp(key, "device_free") == 0  ? s->num_device_free
                                                                        : UINT64_MAX,
                                     stat ? stat->peak : 0, stat ? stat->allocated : 0,
                                     stat ? stat->freed : 0};
        for (unsigned i = 0; *at == ' '; i++) {
            const uint64_t want = size_of(at + 1, &at);
            ck_assert_msg(numbers[i] == want, "%s: %s[%u]: %" PRIu64 ", expected %" PRIu64, name,
                          key, i, numbers[i], want);
        }
        at += *at == ';';
    }
}

/* ---- scripts ---- */

static const struct {
    const char *name, *conf;
    uint64_t limit;
    const char *script, *expected;
} scripts[] = {
    {"T1", "", 0, "a=1 b=513 -a",
     "allocated_bytes 1024 1536 1536 512; requested_bytes 513 514 514 1; reserved_bytes 2097152;"
     "inactive_split 2 2 2 0; inactive_split_bytes 2096128 2096640 2097152 1024"},
    {"T2", "", 0, "a=1048576 b=1048577 c=9M -b",
     "segment 2; reserved_bytes 23068672; inactive_split 3 3 3 0;"
     "inactive_split_bytes 12582912 20971008 22020096 9437184; allocated_bytes 10485760 11534848"},
    {"T3", "", 0, "a=10M b=10M+1 c=33M",
     "segment 3; reserved_bytes 56M; allocated_bytes 56623616; inactive_split_bytes 2096640"},
    {"T4", "", 0, "a=20M-512 -a b=19M-512 -b c=18M",
     "inactive_split 1 1 2 1; inactive_split_bytes 2097152 2097152 3146240 1049088;"
     "allocated_bytes 18M 20M; segment 1"},
    {"T5", "", 0, "a=2M b=2M c=2M -a -c -b",
     "segment 1; inactive_split 0 2 2 2; inactive_split_bytes 0 18874368 23068672 23068672"},
    {"T6", "max_split_size_mb:64", 0, "a=100M -a b=90M",
     "allocated_bytes 104857600; requested_bytes 94371840; segment 1; oversize_allocations 1;"
     "oversize_segments 1"},
    {"T7", "max_split_size_mb:64", 0, "a=100M -a b=80M",
     "reserved_bytes 188743680; segment 2; oversize_allocations 1; oversize_segments 2"},
    {"T8", "max_split_size_mb:64", 0, "a=100M -a b=30M", "reserved_bytes 136314880; segment 2"},
    {"C1", "", 64 * MP_MIB, "a=30M b=30M -a c=31M",
     "reserved_bytes 62M 62M 92M 30M; segment 2 2 3 1; retries 1; ooms 0; syncs 1; device_alloc 3;"
     "device_free 1"},
    {"C2", "", 64 * MP_MIB, "a=40M b=40M!",
     "retries 1; ooms 1; syncs 1; device_free 0; reserved_bytes 40M"},
    {"G1", "garbage_collection_threshold:0.5", 100 * MP_MIB, "a=30M b=30M -a -b c=31M",
     "reserved_bytes 32M 60M 92M 60M; retries 0; syncs 0; device_free 2"},
    {"S1", "", 0, "a=4M a@1 -a",
     "allocation 0; allocated_bytes 0; active 1; active_bytes 4M; requested_bytes 4M;"
     "inactive_split 1; inactive_split_bytes 16M"},
    {"S1 done", "", 0, "a=4M a@1 -a done@1 b=1 -b",
     "active 0 1 2 2; active_bytes 0 4M; requested_bytes 0 4M; inactive_split 0 1"},
    {"own stream", "", 0, "a=4M a@0 -a", "active 0; active_bytes 0"},
    {"two streams", "", 0, "a=4M a@1 a@2 a@1 -a done@1 b=1", "active_bytes 4M+512"},
    {"empty_cache completes", "", 0, "a=4M a@1 -a empty", "reserved_bytes 0; syncs 1; active 0"},
    {"streams keep apart", "", 0, "a=4M -a b:1=4M", "segment 2; reserved_bytes 40M"},
    {"E1", "expandable_segments:True", 0, "a=25M b=20M -a c=10M",
     "reserved_bytes 60M; device_alloc 2; segment 0; inactive_split 0; allocated_bytes 30M"},
    {"E2", "expandable_segments:True", 0, "a=25M b=20M -a c=10M empty",
     "reserved_bytes 60M; device_free 0; syncs 1"},
    {"E3", "expandable_segments:True", 0, "a=25M b=20M -a c=10M empty -b empty",
     "reserved_bytes 20M; device_free 1; syncs 2"},
    {"E all back", "expandable_segments:True", 0, "a=25M b=1 -a -b empty c=1",
     "reserved_bytes 2M 42M; device_alloc 3; device_free 2"},
    {"E retry unmaps", "expandable_segments:True", 60 * MP_MIB, "a=30M b:1=1M+1 -a c:1=19M",
     "reserved_bytes 40M 60M; retries 1; device_free 1"},
    {"oversize released for oversize", "max_split_size_mb:64", 200 * MP_MIB,
     "a=100M b=70M -a -b c=120M", "reserved_bytes 120M 170M; retries 0; syncs 0; device_free 2"},
    {"freed neighbours merge both ways", "", 0, "a=512 b=512 c=512 -a -c -b",
     "inactive_split 0; segment 1; allocated_bytes 0"},
};

START_TEST(scripts_end_with_the_statistics_of_pytorch)
{
    struct machine m = {.a = make(scripts[_i].conf, scripts[_i].limit, 0)};
    play(&m, scripts[_i].name, scripts[_i].script);
    expect(mp_allocator_stats(m.a), scripts[_i].name, scripts[_i].expected);
    mp_allocator_free(m.a);
}
END_TEST

START_TEST(a_full_card_retries_like_a_cap_but_collects_no_garbage)
{
    struct machine m = {.a = make("garbage_collection_threshold:0.5", 0, 64 * MP_MIB)};
    play(&m, "capacity", "a=30M b=30M -a c=31M d=40M!");
    expect(mp_allocator_stats(m.a), "capacity", "reserved_bytes 62M; retries 2; ooms 1; syncs 2");
    const struct mp_allocator_oom *oom = mp_allocator_oom(m.a);
    ck_assert_uint_eq(oom->requested_bytes, 40 * MP_MIB);
    ck_assert_uint_eq(oom->segment_bytes, 40 * MP_MIB);
    ck_assert_uint_eq(oom->reserved_bytes, 62 * MP_MIB);
    mp_allocator_free(m.a);
}
END_TEST

START_TEST(an_oom_says_what_is_free_but_in_pieces)
{
    struct machine m = {.a = make("", 40 * MP_MIB, 0)};
    play(&m, "pieces", "a=9M b=9M c=9M d=9M -a -c e=10M!");
    const struct mp_allocator_oom *oom = mp_allocator_oom(m.a);
    ck_assert_uint_eq(oom->rounded_bytes, 10 * MP_MIB);
    ck_assert_uint_eq(oom->largest_free_bytes, 9 * MP_MIB);
    ck_assert_uint_eq(oom->free_bytes, 22 * MP_MIB);
    mp_allocator_free(m.a);
}
END_TEST

START_TEST(blocks_of_an_expandable_segment_follow_the_recorded_addresses)
{
    struct machine m = {.a = make("expandable_segments:True", 0, 0)};
    play(&m, "E1", "a=25M b=20M -a c=10M");
    const uint64_t base = m.blocks[2]->address;
    ck_assert_uint_eq(base, UINT64_C(0x302000000));
    ck_assert_uint_eq(m.blocks[1]->address, base + 25 * MP_MIB);
    mp_allocator_free(m.a);
}
END_TEST

/* Two recordings in one file: the second has its segments where the first still has its own. */
START_TEST(segments_at_one_recorded_address_keep_their_own_free_blocks)
{
    const uint64_t addresses[] = {UINT64_C(0x7f0000000000), UINT64_C(0x7f0000000000)};
    struct mp_allocator_options options = {
        .placement = {.kind = MP_PLACE_RECORDED, .recorded = addresses, .n_recorded = 2}};
    mp_allocator_conf_init(&options.conf, 0);
    struct machine m = {.a = mp_allocator_new(&options, NULL)};
    ck_assert_ptr_nonnull(m.a);
    for (size_t i = 0; i < 3; i++) /* two fill the first segment, the third opens the second */
        m.blocks[i] = mp_allocator_malloc(m.a, MP_MIB, 0, 0);
    ck_assert_uint_eq(m.blocks[2]->address, m.blocks[0]->address);
    mp_allocator_release(m.a, m.blocks[1]); /* equal in size and address to the second's rest */
    mp_allocator_release(m.a, m.blocks[2]); /* merges with that rest, not with blocks[1] */
    for (size_t i = 1; i < 4; i++)
        m.blocks[i] = mp_allocator_malloc(m.a, MP_MIB, 0, 0);
    ck_assert_ptr_eq(m.blocks[0]->next, m.blocks[1]);
    ck_assert_ptr_eq(m.blocks[2]->next, m.blocks[3]);
    expect(mp_allocator_stats(m.a), "repeated", "allocated_bytes 4M; inactive_split 0; segment 2");
    mp_allocator_free(m.a);
}
END_TEST

START_TEST(more_than_an_exabyte_is_refused_before_bookkeeping)
{
    struct machine m = {.a = make("", 0, 0)};
    ck_assert_ptr_null(mp_allocator_malloc(m.a, UINT64_C(1) << 60, 0, 0));
    expect(mp_allocator_stats(m.a), "exabyte", "ooms 0; retries 0; segment 0");
    ck_assert(!mp_allocator_failed(m.a));
    mp_allocator_free(m.a);
}
END_TEST

/* ---- rounding: R1 ---- */

static const struct {
    const char *conf;
    mp_torch_version torch;
    uint64_t n, rounded;
} roundings[] = {
    {"", 211, 1, 512},
    {"", 211, 512, 512},
    {"", 211, 513, 1024},
    {"", 211, 1200, 1536},
    {"roundup_power2_divisions:4", 211, 1200, 1536},
    {"roundup_power2_divisions:4", 211, 2049, 2560},
    {"roundup_power2_divisions:4", 211, 5000000, 5242880},
    {"roundup_power2_divisions:4", 211, 70 * MP_MIB + 1, 83886080},
    {"roundup_power2_divisions:4", 211, 4 * MP_MIB, 4 * MP_MIB},
    {"roundup_power2_divisions:1", 211, 3000000, 3000320},
    {"roundup_power2_divisions:1", 203, 3000000, 3000000},
    {"roundup_power2_divisions:[2:4,8:2,>:8]", 211, 3 * MP_MIB + 1, 3670016},
    {"roundup_power2_divisions:[2:4,8:2,>:8]", 211, 5 * MP_MIB + 1, 5 * MP_MIB + 512},
    {"roundup_power2_divisions:[2:4,8:2,>:8]", 211, 9 * MP_MIB, 12 * MP_MIB},
    {"roundup_power2_divisions:[2:4,8:2,>:8]", 208, 9 * MP_MIB, 9 * MP_MIB},
    {"roundup_power2_divisions:[2:4,8:2,>:8]", 211, 17 * MP_MIB, 18 * MP_MIB},
    {"roundup_power2_divisions:4,roundup_bypass_threshold_mb:1", 113, 5000000, 5000192},
};

START_TEST(sizes_round_as_the_settings_and_the_release_say)
{
    struct mp_allocator_conf conf;
    struct memplan_error err = {0};
    ck_assert_msg(mp_allocator_conf_parse(roundings[_i].conf, roundings[_i].torch, &conf, &err) ==
                      MEMPLAN_STATUS_OK,
                  "%s", err.text);
    ck_assert_uint_eq(mp_allocator_round_size(&conf, roundings[_i].torch, roundings[_i].n),
                      roundings[_i].rounded);
}
END_TEST

static const struct {
    uint64_t rounded, segment;
} segments[] = {
    {512, 2 * MP_MIB},           {MP_MIB, 2 * MP_MIB},
    {MP_MIB + 512, 20 * MP_MIB}, {10 * MP_MIB - 512, 20 * MP_MIB},
    {10 * MP_MIB, 10 * MP_MIB},  {10 * MP_MIB + 512, 12 * MP_MIB},
};

START_TEST(segments_have_three_kinds_of_size)
{
    struct mp_allocator_conf conf;
    mp_allocator_conf_init(&conf, 0);
    ck_assert_uint_eq(mp_allocator_segment_size(&conf, segments[_i].rounded), segments[_i].segment);
}
END_TEST

/* ---- peaks, states, views ---- */

START_TEST(phase_peaks_start_anew_and_leave_the_run_alone)
{
    struct machine m = {.a = make("", 0, 0)};
    play(&m, "peaks", "a=40M -a b=10M");
    struct mp_allocator_peaks peaks = mp_allocator_take_peaks(m.a);
    ck_assert_uint_eq(peaks.requested_bytes, 40 * MP_MIB);
    peaks = mp_allocator_take_peaks(m.a);
    ck_assert_uint_eq(peaks.requested_bytes, 10 * MP_MIB);
    play(&m, "peaks", "c=12M -c");
    peaks = mp_allocator_take_peaks(m.a);
    ck_assert_uint_eq(peaks.requested_bytes, 22 * MP_MIB);
    expect(mp_allocator_stats(m.a), "peaks", "requested_bytes 10M 40M; allocated_bytes 10M 40M");
    mp_allocator_reset_peaks(m.a);
    expect(mp_allocator_stats(m.a), "reset", "requested_bytes 10M 10M; allocation 1 1");
    mp_allocator_free(m.a);
}
END_TEST

static uint64_t key_of(void *context, uint32_t client)
{
    return client + *(const uint32_t *)context;
}

START_TEST(equal_states_have_equal_hashes)
{
    struct machine m = {.a = make("", 0, 0)};
    uint32_t shift = 7;
    play(&m, "hash", "a=3M b=5M");
    const uint64_t before = mp_allocator_state_hash(m.a, key_of, &shift);
    play(&m, "hash", "c=6M");
    const uint64_t between = mp_allocator_state_hash(m.a, key_of, &shift);
    play(&m, "hash", "-c");
    ck_assert_uint_eq(mp_allocator_state_hash(m.a, key_of, &shift), before);
    ck_assert_uint_ne(between, before);
    shift = 8;
    ck_assert_uint_ne(mp_allocator_state_hash(m.a, key_of, &shift), before);
    mp_allocator_free(m.a);
}
END_TEST

struct listing {
    uint64_t last, bytes;
    unsigned n;
};

static bool list_segment(void *context, const struct mp_block *first, uint64_t bytes)
{
    struct listing *l = context;
    ck_assert_uint_gt(first->address, l->last);
    l->last = first->address;
    l->bytes += bytes;
    l->n++;
    return true;
}

START_TEST(segments_are_visited_in_address_order)
{
    struct machine m = {.a = make("", 0, 0)};
    play(&m, "visit", "a=3M b=50M c=1 d=30M -b");
    struct listing l = {0};
    ck_assert_int_eq(mp_allocator_visit_segments(m.a, list_segment, &l), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(l.n, 4);
    ck_assert_uint_eq(l.bytes, 102 * MP_MIB);
    mp_allocator_free(m.a);
}
END_TEST

/* ---- a starting state ---- */

START_TEST(a_seeded_segment_serves_like_one_that_was_allocated)
{
    struct machine m = {.a = make("", 0, 0)};
    const struct mp_seed_block blocks[] = {
        {.kind = MP_SEED_ALLOCATED, .bytes = 8 * MP_MIB, .requested_bytes = 8 * MP_MIB - 3},
        {.kind = MP_SEED_FREE, .bytes = 12 * MP_MIB},
    };
    struct mp_block *out[2] = {NULL, NULL};
    const struct mp_seed_segment segment = {
        .address = UINT64_C(0x7f0000000000), .blocks = blocks, .n_blocks = 2};
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_allocator_seed(m.a, &segment, out, &err), MEMPLAN_STATUS_OK);
    ck_assert_ptr_null(out[1]);
    play(&m, "seed", "a=9M");
    ck_assert_uint_eq(m.blocks[0]->address, UINT64_C(0x7f0000000000) + 8 * MP_MIB);
    mp_allocator_release(m.a, out[0]);
    play(&m, "seed", "-a");
    expect(mp_allocator_stats(m.a), "seed",
           "reserved_bytes 20M; inactive_split 0; allocated_bytes 0; requested_bytes 0 17M-3");
    mp_allocator_free(m.a);
}
END_TEST

START_TEST(a_seed_that_no_segment_can_be_is_refused)
{
    struct machine m = {.a = make("", 0, 0)};
    const struct mp_seed_block block = {.kind = MP_SEED_FREE, .bytes = MP_MIB};
    const struct mp_seed_segment segment = {
        .address = 4096, .small = true, .blocks = &block, .n_blocks = 1};
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_allocator_seed(m.a, &segment, NULL, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_str_eq(err.text,
                     "segment 0x1000: 1048576 bytes: no size for a segment of the small pool");
    mp_allocator_free(m.a);
}
END_TEST

/* ---- random sequences ---- */

static const char *const random_confs[] = {
    "",
    "max_split_size_mb:32",
    "expandable_segments:True",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.6",
    "max_split_size_mb:64,garbage_collection_threshold:0.8",
    "large_segment_size_mb:32,max_non_split_rounding_mb:64",
};

static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t random_size(uint64_t *state)
{
    const unsigned log2 = (unsigned)(next_random(state) % 27);
    return 1 + next_random(state) % (UINT64_C(1) << log2);
}

enum { MAX_LIVE = 300, N_EVENTS = 3000 };

static void random_event(struct mp_allocator *a, struct mp_block **live, size_t *n, uint64_t *state)
{
    const unsigned dice = (unsigned)(next_random(state) % 100);
    if (dice < 2) {
        mp_allocator_empty_cache(a);
    } else if (dice < 6) {
        mp_allocator_complete_stream(a, (unsigned)(next_random(state) % 3));
    } else if (*n > 0 && (dice < 45 || *n == MAX_LIVE)) {
        const size_t i = (size_t)(next_random(state) % *n);
        if (dice < 12)
            mp_allocator_record_stream(a, live[i], (unsigned)(next_random(state) % 3));
        mp_allocator_release(a, live[i]);
        live[i] = live[--*n];
    } else {
        struct mp_block *block = mp_allocator_malloc(
            a, random_size(state), (unsigned)(next_random(state) % 8 / 6), (uint32_t)*n);
        ck_assert(!mp_allocator_failed(a));
        if (block)
            live[(*n)++] = block;
    }
}

START_TEST(random_sequences_keep_every_list_and_counter_right)
{
    const unsigned seed = (unsigned)_i + 1;
    const char *conf = random_confs[(size_t)_i % MP_ARRAY_LEN(random_confs)];
    struct mp_allocator *a = make(conf, _i % 3 ? 600 * MP_MIB : 0, _i % 2 ? 800 * MP_MIB : 0);
    struct mp_block *live[MAX_LIVE];
    size_t n = 0;
    uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15);
    struct memplan_error err = {0};
    for (unsigned i = 0; i < N_EVENTS; i++) {
        random_event(a, live, &n, &state);
        ck_assert_msg(mp_allocator_check(a, &err), "seed %u, conf '%s', event %u: %s", seed, conf,
                      i, err.text);
        const struct mp_allocator_stats *s = mp_allocator_stats(a);
        ck_assert_uint_le(s->allocated_bytes[0].current, s->active_bytes[0].current);
        ck_assert_uint_le(s->active_bytes[0].current, s->reserved_bytes[0].current);
        ck_assert_uint_le(s->requested_bytes[0].current, s->active_bytes[0].current);
    }
    while (n > 0)
        mp_allocator_release(a, live[--n]);
    mp_allocator_empty_cache(a);
    ck_assert_uint_eq(mp_allocator_stats(a)->reserved_bytes[0].current, 0);
    mp_allocator_free(a);
}
END_TEST

/* ---- memory_summary ---- */

START_TEST(the_summary_has_the_form_of_pytorchs)
{
    struct machine m = {.a = make("", 0, 0)};
    play(&m, "summary", "a=900000 b=30M -b");
    struct mp_strbuf out = MP_STRBUF_INIT;
    mp_allocator_summary(mp_allocator_stats(m.a), 0, false, &out);
    size_t lines = 0;
    for (const char *line = out.data; *line; line = strchr(line, '\n') + 1, lines++)
        ck_assert_uint_eq(strcspn(line, "\n"), 77);
    ck_assert_uint_eq(lines, 47);
    ck_assert_ptr_nonnull(
        strstr(out.data,
               "| Allocated memory      |    879 KiB |  31599 KiB |  31599 KiB |  30720 KiB |\n"));
    ck_assert_ptr_nonnull(
        strstr(out.data,
               "|       from small pool |    879 KiB |    879 KiB |    879 KiB |      0 KiB |\n"));
    ck_assert_ptr_nonnull(
        strstr(out.data,
               "| Allocations           |       1    |       2    |       2    |       1    |\n"));
    mp_strbuf_release(&out);
    mp_allocator_free(m.a);
}
END_TEST

Suite *suite_allocator(void)
{
    Suite *suite = suite_create("allocator");
    TCase *tc = tcase_create("allocator");
    tcase_set_timeout(tc, 60);
    tcase_add_loop_test(tc, scripts_end_with_the_statistics_of_pytorch, 0,
                        (int)MP_ARRAY_LEN(scripts));
    tcase_add_test(tc, a_full_card_retries_like_a_cap_but_collects_no_garbage);
    tcase_add_test(tc, an_oom_says_what_is_free_but_in_pieces);
    tcase_add_test(tc, blocks_of_an_expandable_segment_follow_the_recorded_addresses);
    tcase_add_test(tc, segments_at_one_recorded_address_keep_their_own_free_blocks);
    tcase_add_test(tc, more_than_an_exabyte_is_refused_before_bookkeeping);
    tcase_add_loop_test(tc, sizes_round_as_the_settings_and_the_release_say, 0,
                        (int)MP_ARRAY_LEN(roundings));
    tcase_add_loop_test(tc, segments_have_three_kinds_of_size, 0, (int)MP_ARRAY_LEN(segments));
    tcase_add_test(tc, phase_peaks_start_anew_and_leave_the_run_alone);
    tcase_add_test(tc, equal_states_have_equal_hashes);
    tcase_add_test(tc, segments_are_visited_in_address_order);
    tcase_add_test(tc, a_seeded_segment_serves_like_one_that_was_allocated);
    tcase_add_test(tc, a_seed_that_no_segment_can_be_is_refused);
    tcase_add_loop_test(tc, random_sequences_keep_every_list_and_counter_right, 0, 21);
    tcase_add_test(tc, the_summary_has_the_form_of_pytorchs);
    suite_add_tcase(suite, tc);
    return suite;
}
