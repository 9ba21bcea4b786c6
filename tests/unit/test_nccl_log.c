/* SPDX-License-Identifier: MIT */
/* Logs of NCCL_DEBUG=INFO: what is read out of them, and what is predicted from it. */
#include <check.h>

#include "base/file.h"
#include "memory/nccl.h"
#include "suites.h"

#define FOLDER "tests/data/nccl/"
#define RING MP_NCCL_BIT(MP_NCCL_ALGORITHM_RING)
#define TREE MP_NCCL_BIT(MP_NCCL_ALGORITHM_TREE)
#define NVLS MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS)

static enum memplan_status parse(struct mp_arena *arena, const char *text, size_t length, struct mp_nccl_log *log,
                                 struct memplan_error *err)
{
    struct mp_nccl_job base;
    mp_nccl_job_init(&base, "H100-80G", 90, 1, 8);
    return mp_nccl_log_parse(arena, "nccl.log", text, length, &base, log, err);
}

static const struct {
    const char *file;
    size_t n_comms, which;
    int version;
    uint32_t rank, nodes, per_node, algorithms, calls;
    struct mp_nccl_channels channels;
    bool sockets;
    uint64_t init_mib, used_mib;
} rows[] = {
    {"8xh200.log", 1, 0, 22809, 0, 1, 8, RING | NVLS, MP_NCCL_BIT(MP_NCCL_ALLTOALL), {24, 16, 32, 32}, false, 230, 3462},
    /* rank 0 of two nodes: its ring and tree, the smallest of the table of connection sets; no rank table before 2.23 */
    {"2x8h100.log", 2, 0, 22203, 0, 2, 8, RING | TREE, 0, {16, 0, 16, 2}, false, 98, 98 + 400},
    {"2x8h100.log", 2, 1, 22203, 0, 1, 2, 0, MP_NCCL_BIT(MP_NCCL_ALLTOALL), {24, 0, 32, 32}, false, 194, 194 + 384},
    /* the figure of NVIDIA/nccl#964 for rank 0 */
    {"8xa100-2.18.log", 1, 0, 21805, 0, 1, 8, RING | TREE, 0, {24, 0, 32, 32}, false, 688, 688},
    {"sockets.log", 1, 0, 22705, 0, 2, 1, RING, 0, {2, 0, 2, 2}, true, 16, 16},
};

START_TEST(logs_are_read_and_predicted)
{
    struct mp_arena arena;
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    struct mp_nccl_log log;
    struct mp_nccl_result r;
    char path[128];
    mp_arena_init(&arena);
    (void)snprintf(path, sizeof path, FOLDER "%s", rows[_i].file);
    ck_assert_msg(mp_file_read(path, 0, &text, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_msg(parse(&arena, mp_strbuf_text(&text), text.len, &log, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(log.n_comms, rows[_i].n_comms);
    ck_assert_int_eq(log.version, rows[_i].version);
    const struct mp_nccl_log_comm *c = &log.comms[rows[_i].which];
    ck_assert_uint_eq(c->rank, rows[_i].rank);
    ck_assert_uint_eq(c->job.nodes, rows[_i].nodes);
    ck_assert_uint_eq(c->job.ranks_per_node, rows[_i].per_node);
    ck_assert_uint_eq(c->job.algorithms, rows[_i].algorithms);
    ck_assert_uint_eq(c->job.collectives, rows[_i].calls);
    ck_assert_mem_eq(&c->job.channels, &rows[_i].channels, sizeof rows[_i].channels);
    ck_assert_int_eq(c->job.sockets, rows[_i].sockets);
    ck_assert_msg(mp_nccl_predict(&c->job, &r, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(r.init_bytes, rows[_i].init_mib * MP_MIB);
    ck_assert_uint_eq(r.high_bytes, rows[_i].used_mib * MP_MIB);
    ck_assert_uint_eq(r.low_bytes, r.high_bytes);
    if (c->nvls_bytes != 0)
        ck_assert_uint_eq(r.parts[MP_NCCL_PART_NVLS_BUFFERS].high_bytes, c->nvls_bytes);
    mp_strbuf_release(&text);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(variables_of_the_log_count)
{
    static const char path[] = FOLDER "sockets.log";
    struct mp_arena arena;
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    struct mp_nccl_log log;
    mp_arena_init(&arena);
    ck_assert(mp_file_read(path, 0, &text, &err) == MEMPLAN_STATUS_OK);
    ck_assert(parse(&arena, mp_strbuf_text(&text), text.len, &log, &err) == MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(log.comms[0].job.env.buff_bytes, 8388608);
    ck_assert_str_eq(log.process, "[1,0]<stdout>:left:5 [0]");
    mp_strbuf_release(&text);
    mp_arena_release(&arena);
}
END_TEST

#define INFO "h:1:2 [0] NCCL INFO "
static const struct {
    const char *text, *says;
} bad[] = {
    {"", "no 'NCCL INFO' line"},
    {"hello\nworld\n", "no 'NCCL INFO' line"},
    {INFO "Bootstrap\n", "no communicator was created"},
    {INFO "24 coll channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer\n", "no communicator was created"},
    {INFO "comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0\n", "no communicator was created"},
    {INFO "comm 0x1 rank 9 nRanks 8 nNodes 1 localRanks 8 localRank 0\n" INFO
          "24 coll channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer\n",
     "no communicator was created"},
    {INFO "comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0\n" INFO
          "99 coll channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer\n",
     "no communicator was created"},
    {INFO "comm 0x1 rank 0 nranks 9 cudaDev 0 - Init START\n" INFO
          "2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer\n" INFO
          "Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n",
     "how its 9 ranks are spread over nodes"},
};

START_TEST(what_is_no_log_is_refused)
{
    struct mp_arena arena;
    struct mp_nccl_log log;
    struct memplan_error err = {0};
    mp_arena_init(&arena);
    ck_assert_int_eq(parse(&arena, bad[_i].text, strlen(bad[_i].text), &log, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, bad[_i].says) != NULL && strncmp(err.text, "nccl.log: ", 10) == 0, "%s", err.text);
    mp_arena_release(&arena);
}
END_TEST

START_TEST(a_cut_log_never_breaks)
{
    struct mp_arena arena;
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    struct mp_nccl_log log;
    ck_assert(mp_file_read(FOLDER "2x8h100.log", 0, &text, &err) == MEMPLAN_STATUS_OK);
    for (size_t n = 0; n < text.len; n += 37) {
        mp_arena_init(&arena);
        (void)parse(&arena, mp_strbuf_text(&text), n, &log, &err);
        mp_arena_release(&arena);
    }
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(failing_memory_is_reported)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    struct mp_nccl_log log;
    ck_assert(mp_file_read(FOLDER "8xh200.log", 0, &text, &err) == MEMPLAN_STATUS_OK);
    for (uint64_t limit = 1; limit < 400 * MP_KIB; limit *= 2) {
        struct mp_arena arena;
        mp_arena_init(&arena);
        arena.limit_bytes = limit;
        const enum memplan_status status = parse(&arena, mp_strbuf_text(&text), text.len, &log, &err);
        ck_assert(status == MEMPLAN_STATUS_OK || status == MEMPLAN_STATUS_NOMEM);
        mp_arena_release(&arena);
    }
    mp_strbuf_release(&text);
}
END_TEST

Suite *suite_nccl_log(void)
{
    Suite *const suite = suite_create("nccl_log");
    TCase *const tc = tcase_create("log");
    tcase_add_loop_test(tc, logs_are_read_and_predicted, 0, (int)MP_ARRAY_LEN(rows));
    tcase_add_test(tc, variables_of_the_log_count);
    tcase_add_loop_test(tc, what_is_no_log_is_refused, 0, (int)MP_ARRAY_LEN(bad));
    tcase_add_test(tc, a_cut_log_never_breaks);
    tcase_add_test(tc, failing_memory_is_reported);
    suite_add_tcase(suite, tc);
    return suite;
}
