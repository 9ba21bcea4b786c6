/* SPDX-License-Identifier: MIT */
/*
 * NCCL memory against everything that is known of it: 58 measured settings, the channel counts and connection sets that
 * NCCL's own search gives, figures that users published, and the arithmetic of docs/nccl.md. Sizes are MiB.
 */
#include <check.h>
#include <math.h>

#include "base/file.h"
#include "base/json.h"
#include "memory/nccl.h"
#include "memory/nccl_topology.h"
#include "suites.h"

#define BIT MP_NCCL_BIT
#define AR BIT(MP_NCCL_ALLREDUCE)
#define AG BIT(MP_NCCL_ALLGATHER)
#define RS BIT(MP_NCCL_REDUCESCATTER)
#define BC BIT(MP_NCCL_BROADCAST)
#define SR BIT(MP_NCCL_SENDRECV)
#define A2A BIT(MP_NCCL_ALLTOALL)
#define RING BIT(MP_NCCL_ALGORITHM_RING)
#define TREE BIT(MP_NCCL_ALGORITHM_TREE)
#define NVLS BIT(MP_NCCL_ALGORITHM_NVLS)
#define NVLS_TREE BIT(MP_NCCL_ALGORITHM_NVLS_TREE)
#define PAT BIT(MP_NCCL_ALGORITHM_PAT)
#define ANY UINT64_MAX /* not looked at */

/* A card: what mp_nccl_job_init needs. */
struct card {
    const char *name;
    int capability;
};
static const struct card h200 = {"H200-141G", 90}, h100 = {"H100-80G", 90}, a100 = {"A100-80G", 80},
                         b200 = {"B200-180G", 100}, b300 = {"B300-288G", 103}, gb200 = {"GB200-186G", 100},
                         rtx3090 = {"RTX-3090-24G", 86}, h100_nvl = {"H100-NVL-94G", 90},
                         a100_pcie = {"A100-PCIE-80G", 80};

static void set_env(struct mp_nccl_env *env, const char *assignments)
{
    char copy[256];
    struct memplan_error err = {0};
    (void)snprintf(copy, sizeof copy, "%s", assignments);
    for (char *at = copy, *next; *at != '\0'; at = next) {
        next = at + strcspn(at, " ");
        if (*next == ' ')
            *next++ = '\0';
        ck_assert_msg(mp_nccl_env_set(env, at, &err) == MEMPLAN_STATUS_OK, "%s: %s", at, err.text);
    }
}

static void predict(const char *label, const struct mp_nccl_job *job, struct mp_nccl_result *result)
{
    struct memplan_error err = {0};
    ck_assert_msg(mp_nccl_predict(job, result, &err) == MEMPLAN_STATUS_OK, "%s: %s", label, err.text);
    struct mp_nccl_part sum = {0, 0, 0};
    for (size_t i = 0; i < MP_NCCL_PARTS; i++) {
        sum.init_bytes += result->parts[i].init_bytes;
        sum.low_bytes += result->parts[i].low_bytes;
        sum.high_bytes += result->parts[i].high_bytes;
    }
    ck_assert_msg(sum.init_bytes == result->init_bytes && sum.low_bytes == result->low_bytes &&
                      sum.high_bytes == result->high_bytes,
                  "%s: parts do not add up", label);
    ck_assert_msg(result->init_low_bytes <= result->init_bytes && result->init_low_bytes <= result->low_bytes &&
                      result->low_bytes <= result->high_bytes && result->init_bytes <= result->high_bytes &&
                      result->low_bytes <= result->mean_bytes + 1 && result->mean_bytes <= result->high_bytes,
                  "%s: init, low, mean and high are not in order", label);
}

static void check_mib(const char *label, const char *what, uint64_t bytes, uint64_t expected_mib)
{
    if (expected_mib != ANY)
        ck_assert_msg(bytes == expected_mib * MP_MIB, "%s: %s is %.4f MiB, not %llu", label, what,
                      (double)bytes / (double)MP_MIB, (unsigned long long)expected_mib);
}

/* ---- worked examples: init, and low and high after use ---- */

struct example {
    const char *label;
    const struct card *card;
    int version; /* 0: default */
    uint32_t nodes, per_node;
    const char *env;
    uint32_t collectives, algorithms;
    uint64_t init, low, high;
};

#define NO_NVLS "NCCL_NVLS_ENABLE=0"
static const struct example examples[] = {
    /* two H200 of a node */
    {"a init", &h200, 0, 1, 2, NO_NVLS, 0, 0, 196, 196, 196},
    {"a init, NVLS", &h200, 0, 1, 2, "", 0, 0, 230, 230, 230},
    {"a all-reduce", &h200, 0, 1, 2, NO_NVLS, AR, 0, 196, 484, 484},
    {"a any collective", &h200, 0, 1, 2, NO_NVLS, AR | AG | RS | BC, 0, 196, 484, 484},
    {"a and send/recv", &h200, 0, 1, 2, NO_NVLS, AR | SR, 0, 196, 868, 868},
    {"a NVLS, all-reduce", &h200, 0, 1, 2, "", AR, 0, 230, 518, 518},
    {"a NVLS forced", &h200, 0, 1, 2, "NCCL_ALGO=NVLS", AR, 0, 230, 294, 294},
    /* eight H200 of a node */
    {"b init", &h200, 0, 1, 8, NO_NVLS, 0, 0, 196, 196, 196},
    {"b init, NVLS", &h200, 0, 1, 8, "", 0, 0, 230, 230, 230},
    {"b ring", &h200, 0, 1, 8, NO_NVLS, AR, 0, 196, 484, 484},
    {"b ring and all-to-all", &h200, 0, 1, 8, NO_NVLS, AR | A2A, 0, 196, 3172, 3172},
    {"b NVLS", &h200, 0, 1, 8, "", 0, NVLS, 230, 486, 486},
    {"b NVLS or ring", &h200, 0, 1, 8, "", AR, 0, 230, 486, 774},
    {"b NVLS, ring, all-to-all", &h200, 0, 1, 8, "", AR | AG | A2A, 0, 230, 230 + 288 + 2688, 3462},
    /* eight B200 */
    {"b' init", &b200, 0, 1, 8, "", 0, 0, 246, 246, 246},
    {"b' NVLS, ring", &b200, 0, 1, 8, "", AR, 0, 246, 630, 1014},
    /* four nodes of eight H200 */
    {"c init", &h200, 0, 4, 8, NO_NVLS, 0, 0, 100, 100, 100},
    {"c init, NVLS", &h200, 0, 4, 8, "", 0, 0, 134, 134, 134},
    {"c gather and scatter", &h200, 0, 4, 8, NO_NVLS, AG | RS, 0, 100, 308, 308},
    {"c gather and scatter, NVLS", &h200, 0, 4, 8, "", AG | RS, 0, 134, 342, 342},
    {"c NVLS tree", &h200, 0, 4, 8, "", 0, NVLS_TREE, 134, 710, 1030},
    {"c three sets", &h200, 0, 4, 8, "", 0, RING | TREE | NVLS_TREE, 134, 1090, 1426},
    {"c ring and tree", &h200, 0, 4, 8, NO_NVLS, 0, RING | TREE, 100, 520, 556},
    {"c all-reduce", &h200, 0, 4, 8, "", AR, 0, 134, 342, 1426},
    /* all-to-all of 32 and of 64 ranks */
    {"d 32", &h200, 0, 4, 8, NO_NVLS, A2A, 0, 100, 100 + 168 + 32 + 256, 556},
    {"d 32, NVLS", &h200, 0, 4, 8, "", A2A, 0, 134, 590, 590},
    {"d 32 without PXN", &h200, 0, 4, 8, NO_NVLS " NCCL_PXN_DISABLE=1", A2A, 0, 100, 332, 100 + 168 + 64},
    {"d 64", &h200, 0, 8, 8, NO_NVLS, A2A, 0, 100, 100 + 84 + 32 + 256, 472},
    {"d sockets", &h200, 0, 4, 8, NO_NVLS " NCCL_IB_DISABLE=1", A2A, 0, 100, 268, 268},
    /* buffer sizes */
    {"e ring", &h200, 0, 1, 8, NO_NVLS " NCCL_BUFFSIZE=8388608", AR, 0, 196, 580, 580},
    {"e all-to-all", &h200, 0, 1, 8, NO_NVLS " NCCL_BUFFSIZE=8388608", A2A, 0, 196, 196 + 3584, 196 + 3584},
    {"e four nodes", &h200, 0, 4, 8, NO_NVLS " NCCL_BUFFSIZE=8388608", AG, 0, 100, 380, 380},
    {"e' ring", &h200, 0, 1, 8, NO_NVLS " NCCL_BUFFSIZE=1048576", AR, 0, 196, 436, 436},
    /* without peer access */
    {"f init", &h200, 0, 1, 8, NO_NVLS " NCCL_P2P_DISABLE=1", 0, 0, 28, 28, 28},
    {"f ring", &h200, 0, 1, 8, NO_NVLS " NCCL_P2P_DISABLE=1", AR | A2A, 0, 28, 28, 28},
    {"f init, NVLS", &h200, 0, 1, 8, "NCCL_P2P_DISABLE=1", 0, 0, 134, 134, 134},
    {"f NVLS", &h200, 0, 1, 8, "NCCL_P2P_DISABLE=1", AR | AG | RS, 0, 134, 134, 390},
    /* levers */
    {"max CTAs 8", &h200, 0, 1, 8, "NCCL_MAX_CTAS=8", AG, 0, 52 + 18, 70 + 96, 166},
    {"max CTAs 8, all-to-all", &h200, 0, 1, 8, NO_NVLS " NCCL_MAX_CTAS=8", A2A, 0, 52, 52 + 672, 724},
    {"max channels leave NVLS", &h200, 0, 1, 8, "NCCL_MAX_NCHANNELS=8", AG, 0, 100 + 34, 134 + 96, 230},
    {"protocols cost nothing", &h200, 0, 1, 8, NO_NVLS " NCCL_PROTO=Simple", AR, 0, 196, 484, 484},
    {"an extra pair", &h200, 0, 1, 2, NO_NVLS, SR, 0, 196, 580, 580},
    {"one rank", &h200, 0, 1, 1, "", AR | A2A, 0, 388, 388, 388},
    /* settings of section "measured" that the table of 58 does not spell out */
    {"one rank eager", &h200, 0, 1, 1, "NCCL_RUNTIME_CONNECT=0", 0, 0, 900, 900, 900},
    {"one rank without cuMem", &h200, 0, 1, 1, "NCCL_CUMEM_ENABLE=0", 0, 0, 512, 512, 512},
    {"two ranks eager", &h200, 0, 1, 2, NO_NVLS " NCCL_RUNTIME_CONNECT=0", AR, 0, 740, 740, 740},
    {"two ranks without cuMem", &h200, 0, 1, 2, "NCCL_CUMEM_ENABLE=0", AR, 0, 544, 544, 544},
    /* forced or unusual algorithms */
    {"tree on one node", &h200, 0, 1, 8, NO_NVLS " NCCL_ALGO=Tree", AR, 0, 196, 196 + 288, 196 + 576},
    {"four nodes of one", &h200, 0, 4, 1, "", AR, 0, 28, 28 + 80, 28 + 180},
    {"PAT of four", &h200, 0, 4, 1, "", 0, PAT, 28, 28 + 4 * 3 * 20, 28 + 240},
    {"PAT after ring", &h200, 0, 4, 1, "", AG, 0, 28, 108, 28 + 240},
    {"gather", &h200, 0, 1, 8, NO_NVLS, BIT(MP_NCCL_GATHER), 0, 196, 196 + 32 * 2, 196 + 7 * 320},
    {"scatter", &h200, 0, 1, 8, NO_NVLS, BIT(MP_NCCL_SCATTER), 0, 196, 196 + 320, 196 + 7 * 64},
    {"pipeline over nodes", &h200, 0, 4, 1, "", SR, 0, 28, 28 + 2 * 8, 28 + 16},
    {"pool not shared", &h200, 0, 2, 1, "NCCL_NET_SHARED_BUFFERS=0", SR, 0, 28, 28 + 2 * 20, 68},
    {"read mode of A100", &a100, 0, 1, 8, "", AR, 0, 196, 484, 484},
    {"A100 tree ends", &a100, 0, 1, 8, "", 0, RING | TREE, 196, 196 + 288 + 24 * 6, 196 + 576},
    {"copy engine", &h200, 0, 1, 2, NO_NVLS " NCCL_P2P_USE_CUDA_MEMCPY=1", AR, 0, 196, 196 + 24 * 16, 580},
    {"PCIe, either way", &a100_pcie, 0, 1, 4, "", AR, 0, 16, 16, 16 + 2 * 12},
    {"GeForce", &rtx3090, 0, 1, 4, "", AR | A2A, 0, 16, 16, 16},
};

static struct mp_nccl_job example_job(const struct example *e)
{
    struct mp_nccl_job job;
    mp_nccl_job_init(&job, e->card->name, e->card->capability, e->nodes, e->per_node);
    if (e->version != 0)
        job.version = e->version;
    set_env(&job.env, e->env);
    job.collectives = e->collectives;
    job.algorithms = e->algorithms;
    return job;
}

START_TEST(worked_examples_are_exact)
{
    const struct example *e = &examples[_i];
    const struct mp_nccl_job job = example_job(e);
    struct mp_nccl_result result;
    predict(e->label, &job, &result);
    check_mib(e->label, "init", result.init_bytes, e->init);
    check_mib(e->label, "low", result.low_bytes, e->low);
    check_mib(e->label, "high", result.high_bytes, e->high);
}
END_TEST

/* ---- channel counts ---- */

static const struct {
    const char *label;
    const struct card *card;
    int version;
    enum mp_nccl_fabric fabric; /* MP_NCCL_FABRICS: the card's own */
    uint32_t nvlinks, nodes, per_node;
    const char *env;
    struct mp_nccl_channels channels;
} channel_rows[] = {
    {"one rank", &h200, 0, MP_NCCL_FABRICS, 0, 1, 1, "", {64, 0, 64, 64}},
    {"one rank before 2.25", &h200, 22403, MP_NCCL_FABRICS, 0, 1, 1, "", {32, 0, 32, 32}},
    {"2 H200", &h200, 0, MP_NCCL_FABRICS, 0, 1, 2, "", {24, 16, 32, 32}},
    {"8 H200", &h200, 0, MP_NCCL_FABRICS, 0, 1, 8, "", {24, 16, 32, 32}},
    {"5 H100", &h100, 0, MP_NCCL_FABRICS, 0, 1, 5, "", {24, 16, 32, 32}},
    {"2 A100", &a100, 0, MP_NCCL_FABRICS, 0, 1, 2, "", {24, 0, 32, 32}},
    {"8 A100", &a100, 0, MP_NCCL_FABRICS, 0, 1, 8, "", {24, 0, 32, 32}},
    {"2 B200", &b200, 0, MP_NCCL_FABRICS, 0, 1, 2, "", {32, 24, 32, 32}},
    {"8 B200", &b200, 0, MP_NCCL_FABRICS, 0, 1, 8, "", {32, 24, 32, 32}},
    {"8 B200, 2.26", &b200, 22602, MP_NCCL_FABRICS, 0, 1, 8, "", {32, 32, 32, 32}},
    {"H100 NVL pair", &h100_nvl, 0, MP_NCCL_FABRICS, 0, 1, 2, "", {16, 0, 16, 16}},
    {"4 A100 wired directly", &a100, 0, MP_NCCL_FABRIC_DIRECT, 4, 1, 4, "", {24, 0, 32, 8}},
    {"2 of them", &a100, 0, MP_NCCL_FABRIC_DIRECT, 4, 1, 2, "", {8, 0, 8, 8}},
    {"PCIe", &a100_pcie, 0, MP_NCCL_FABRICS, 0, 1, 8, "", {2, 0, 2, 2}},
    {"2 x 8 H200", &h200, 0, MP_NCCL_FABRICS, 0, 2, 8, "", {16, 16, 16, 2}},
    {"4 x 8 H200", &h200, 0, MP_NCCL_FABRICS, 0, 4, 8, "", {16, 16, 16, 2}},
    {"5 x 8 H200", &h200, 0, MP_NCCL_FABRICS, 0, 5, 8, "", {16, 16, 16, 1}},
    {"16 x 8 H200", &h200, 0, MP_NCCL_FABRICS, 0, 16, 8, "", {16, 16, 16, 1}},
    {"4 x 4 H200", &h200, 0, MP_NCCL_FABRICS, 0, 4, 4, "", {16, 16, 16, 2}},
    {"4 x 2 H200", &h200, 0, MP_NCCL_FABRICS, 0, 4, 2, "", {8, 16, 8, 2}},
    {"4 x 1 H200", &h200, 0, MP_NCCL_FABRICS, 0, 4, 1, "", {4, 0, 4, 2}},
    {"16 x 1 H200", &h200, 0, MP_NCCL_FABRICS, 0, 16, 1, "", {4, 0, 4, 1}},
    {"4 x 8 B200", &b200, 0, MP_NCCL_FABRICS, 0, 4, 8, "", {16, 32, 16, 2}},
    {"4 x 8 H200, 2.30", &h200, 23004, MP_NCCL_FABRICS, 0, 4, 8, "", {16, 16, 16, 4}},
    {"4 x 8 H200, 2.19", &h200, 21903, MP_NCCL_FABRICS, 0, 4, 8, "", {32, 16, 32, 2}},
    {"8 H200 without peers", &h200, 0, MP_NCCL_FABRICS, 0, 1, 8, "NCCL_P2P_DISABLE=1", {4, 16, 4, 2}},
    {"8 A100 without peers", &a100, 0, MP_NCCL_FABRICS, 0, 1, 8, "NCCL_P2P_DISABLE=1", {2, 0, 2, 2}},
    {"at least 32", &h200, 0, MP_NCCL_FABRICS, 0, 1, 2, "NCCL_MIN_NCHANNELS=32 NCCL_NVLS_ENABLE=0", {32, 0, 32, 32}},
    {"one p2p channel", &h200, 0, MP_NCCL_FABRICS, 0, 1, 2, "NCCL_MAX_P2P_NCHANNELS=1 NCCL_NVLS_ENABLE=0",
     {24, 0, 1, 1}},
    {"three p2p channels", &h200, 0, MP_NCCL_FABRICS, 0, 1, 2, "NCCL_MAX_P2P_NCHANNELS=3", {24, 16, 4, 4}},
    {"4 per net peer", &h200, 0, MP_NCCL_FABRICS, 0, 8, 8, "NCCL_NCHANNELS_PER_NET_PEER=4", {16, 16, 16, 4}},
};

START_TEST(channels_are_those_of_nccls_search)
{
    struct mp_nccl_job job;
    struct mp_nccl_result result;
    mp_nccl_job_init(&job, channel_rows[_i].card->name, channel_rows[_i].card->capability, channel_rows[_i].nodes,
                     channel_rows[_i].per_node);
    if (channel_rows[_i].version != 0)
        job.version = channel_rows[_i].version;
    if (channel_rows[_i].fabric != MP_NCCL_FABRICS) {
        job.fabric = channel_rows[_i].fabric;
        job.nvlinks = channel_rows[_i].nvlinks;
    }
    set_env(&job.env, channel_rows[_i].env);
    predict(channel_rows[_i].label, &job, &result);
    const struct mp_nccl_channels got = result.channels, want = channel_rows[_i].channels;
    ck_assert_msg(got.coll == want.coll && got.nvls == want.nvls && got.p2p == want.p2p &&
                      got.p2p_per_peer == want.p2p_per_peer,
                  "%s: %u/%u/%u/%u, not %u/%u/%u/%u", channel_rows[_i].label, got.coll, got.nvls, got.p2p,
                  got.p2p_per_peer, want.coll, want.nvls, want.p2p, want.p2p_per_peer);
}
END_TEST

/* ---- connection sets: smallest, mean and largest over ranks, from NCCL's own search ---- */

static const struct {
    const struct card *card;
    uint32_t nodes, per_node, algorithms;
    uint64_t least, mean, most; /* without tables; the mean is rounded */
} set_rows[] = {
    {&h200, 1, 2, RING, 288, 288, 288},
    {&h200, 1, 2, RING | TREE, 288, 288, 288},
    {&h200, 1, 4, RING, 288, 288, 288},
    {&h200, 1, 4, RING | TREE, 336, 504, 576},
    {&h200, 1, 8, RING, 288, 288, 288},
    {&h200, 1, 8, RING | TREE, 336, 540, 576},
    {&b200, 1, 8, RING, 384, 384, 384},
    {&b200, 1, 8, RING | TREE, 448, 720, 768},
    {&h200, 2, 8, RING, 208, 208, 208},
    {&h200, 2, 8, RING | TREE, 400, 408, 416},
    {&h200, 2, 8, RING | TREE | NVLS_TREE, 660, 668, 676},
    {&h200, 4, 8, RING, 208, 208, 208},
    {&h200, 4, 8, RING | TREE, 420, 438, 456},
    {&h200, 4, 8, RING | TREE | NVLS_TREE, 700, 868, 1036},
    {&h200, 16, 8, RING, 208, 208, 208},
    {&h200, 16, 8, RING | TREE, 420, 453, 476},
    {&h200, 16, 8, RING | TREE | NVLS_TREE, 700, 996, 1096},
    {&h200, 4, 4, RING, 224, 224, 224},
    {&h200, 4, 4, RING | TREE, 496, 536, 576},
    {&h200, 4, 4, RING | TREE | NVLS_TREE, 776, 936, 1136},
    {&h200, 4, 2, RING, 128, 128, 128},
    {&h200, 4, 2, RING | TREE, 256, 296, 336},
    {&h200, 4, 2, RING | TREE | NVLS_TREE, 536, 696, 896},
    {&h200, 4, 1, RING, 80, 80, 80},
    {&h200, 4, 1, RING | TREE, 140, 160, 180},
    {&h200, 16, 1, RING, 80, 80, 80},
    {&h200, 16, 1, RING | TREE, 140, 190, 220},
    /* alone: 16 (2 x 3 x 20 + 2 x 4 x 7 x 12) / 32, and 16 x 2 x 3 x 20 / 4 */
    {&h200, 4, 8, TREE, 376, 396, 416},
    {&h200, 4, 8, NVLS_TREE, 320, 480, 640},
};

START_TEST(connection_sets_are_those_of_nccls_search)
{
    struct mp_nccl_job job;
    struct mp_nccl_result result;
    char label[64];
    mp_nccl_job_init(&job, set_rows[_i].card->name, set_rows[_i].card->capability, set_rows[_i].nodes,
                     set_rows[_i].per_node);
    job.algorithms = set_rows[_i].algorithms;
    (void)snprintf(label, sizeof label, "%u x %u %s, %x", job.nodes, job.ranks_per_node, set_rows[_i].card->name,
                   job.algorithms);
    predict(label, &job, &result);
    const uint64_t rest = result.init_bytes + result.parts[MP_NCCL_PART_NVLS_BUFFERS].high_bytes;
    check_mib(label, "least", result.low_bytes - rest, set_rows[_i].least);
    check_mib(label, "most", result.high_bytes - rest, set_rows[_i].most);
    ck_assert_msg(llround((double)(result.mean_bytes - rest) / (double)MP_MIB) == (long long)set_rows[_i].mean,
                  "%s: mean is %.2f MiB, not %llu", label, (double)(result.mean_bytes - rest) / (double)MP_MIB,
                  (unsigned long long)set_rows[_i].mean);
}
END_TEST

/* Connections come in pairs: what one rank sends, its peer receives, on the same channel. */
START_TEST(every_send_has_its_receive)
{
    static const struct {
        uint32_t nodes, per_node;
        const struct card *card;
    } machines[] = {{1, 2, &h200}, {1, 8, &h200}, {2, 8, &h200}, {3, 8, &h200}, {5, 4, &h200},
                    {7, 3, &h200}, {4, 8, &a100}, {6, 1, &h200}, {4, 5, &b200}, {9, 2, &a100}};
    struct mp_nccl_job job;
    struct mp_nccl_plan plan;
    struct memplan_error err = {0};
    mp_nccl_job_init(&job, machines[_i].card->name, machines[_i].card->capability, machines[_i].nodes,
                     machines[_i].per_node);
    ck_assert(mp_nccl_plan_init(&plan, &job, &err) == MEMPLAN_STATUS_OK);
    struct mp_nccl_connection own[MP_NCCL_MAX_CONNECTIONS], other[MP_NCCL_MAX_CONNECTIONS];
    for (uint32_t algorithm = 0; algorithm < MP_NCCL_ALGORITHMS; algorithm++)
        for (uint32_t channel = 0; channel < plan.channels.coll; channel++)
            for (uint32_t rank = 0; rank < plan.ranks; rank++) {
                const size_t n = mp_nccl_connections(&plan, rank, channel, BIT(algorithm), own);
                for (size_t i = 0; i < n; i++) {
                    ck_assert_msg(own[i].peer < plan.ranks && own[i].peer != rank, "rank %u has peer %u", rank,
                                  own[i].peer);
                    const size_t m = mp_nccl_connections(&plan, own[i].peer, channel, BIT(algorithm), other);
                    size_t j = 0;
                    while (j < m && !(other[j].peer == rank && other[j].send != own[i].send))
                        j++;
                    ck_assert_msg(j < m, "%u x %u, algorithm %u, channel %u: %u -> %u has no other end",
                                  machines[_i].nodes, machines[_i].per_node, algorithm, channel, rank, own[i].peer);
                }
            }
}
END_TEST

/* A ring visits every rank once: follow the sends of a channel. */
START_TEST(a_ring_visits_every_rank)
{
    struct mp_nccl_job job;
    struct mp_nccl_plan plan;
    struct memplan_error err = {0};
    struct mp_nccl_connection c[MP_NCCL_MAX_CONNECTIONS];
    mp_nccl_job_init(&job, "H200-141G", 90, 1 + (uint32_t)_i, 8);
    ck_assert(mp_nccl_plan_init(&plan, &job, &err) == MEMPLAN_STATUS_OK);
    for (uint32_t channel = 0; channel < plan.channels.coll; channel++) {
        uint32_t rank = 0, steps = 0;
        do {
            ck_assert_uint_eq(mp_nccl_connections(&plan, rank, channel, RING, c), 2);
            rank = c[0].send ? c[0].peer : c[1].peer;
            steps++;
        } while (rank != 0 && steps <= plan.ranks);
        ck_assert_uint_eq(steps, plan.ranks);
    }
}
END_TEST

/* The ring that a public log of 2 x 8 H100 shows for channels 1 and 2 (NVIDIA/nccl#1538). */
START_TEST(rings_between_nodes_are_those_of_a_log)
{
    static const uint32_t rings[][16] = {{0, 8, 15, 14, 13, 12, 11, 10, 9, 1, 2, 3, 4, 5, 6, 7},
                                         {0, 7, 6, 5, 4, 3, 11, 12, 13, 14, 15, 8, 9, 10, 2, 1}};
    struct mp_nccl_job job;
    struct mp_nccl_plan plan;
    struct memplan_error err = {0};
    struct mp_nccl_connection c[MP_NCCL_MAX_CONNECTIONS];
    mp_nccl_job_init(&job, "H100-80G", 90, 2, 8);
    ck_assert(mp_nccl_plan_init(&plan, &job, &err) == MEMPLAN_STATUS_OK);
    for (uint32_t channel = 1; channel <= 2; channel++)
        for (size_t i = 0; i < 16; i++) {
            (void)mp_nccl_connections(&plan, rings[channel - 1][i], channel, RING, c);
            ck_assert_uint_eq(c[0].peer, rings[channel - 1][(i + 1) % 16]);
        }
}
END_TEST

/* ---- what users and NVIDIA published ---- */

/* measured against the model: exact, or within a share of the measurement */
static const struct {
    struct example job;
    uint64_t published; /* bytes, of the figure named by the label */
    char field;         /* i: init, l: low, h: high, p: pool, n: NVLS buffers, c: connections only, s: host */
    double within_frac; /* 0: exact */
} published_rows[] = {
    {{"NVIDIA/nccl#964: two A100", &a100, 21803, 1, 2, "", AR, 0, 0, 0, 0}, 544 * MP_MIB, 'l', 0},
    {{"NVIDIA/nccl#964: more, rank 0", &a100, 21803, 1, 4, "", AR, 0, 0, 0, 0}, 688 * MP_MIB, 'l', 0},
    {{"NVIDIA/nccl#2363: one B300", &b300, 22809, 1, 1, "NCCL_RUNTIME_CONNECT=0", 0, 0, 0, 0, 0}, 536870912, 'p', 0},
    {{"vllm#9699: 8 x H200", &h200, 22005, 1, 8, "", AR, 0, 0, 0, 0}, 2415919104, 'n', 0},
    {{"NVIDIA/nccl#660: shared pool", &a100, 22809, 2, 8, "NCCL_PXN_DISABLE=1", SR, 0, 0, 0, 0}, 2 * UINT64_C(33554432), 'p', 0},
    {{"sglang#30908: 8 x GB200", &gb200, 23004, 1, 8, NO_NVLS, AR, 0, 0, 0, 0}, 576 * MP_MIB, 'h', 0.01},
    {{"vllm#51485: TP4, about 1 GiB with process state", &h100, 0, 1, 4, NO_NVLS, AR | AG, 0, 0, 0, 0}, 484 * MP_MIB, 'h', 0},
    {{"NVIDIA/nccl#1685: all-to-all and a ring", &h100, 0, 1, 8, NO_NVLS, AR | A2A, 0, 0, 0, 0}, 3130 * MP_MIB, 'c', 0.07},
    {{"NVIDIA/nccl#864: 1.6 GB, NVLS buffers before 2.20", &h100, 21801, 1, 8, "", AR, 0, 0, 0, 0}, 1600000000, 'n', 0.01},
    {{"DeepSeek-V4.1-Flash-vLLM-DGX-Spark#8: host bytes of a connection", &h200, 0, 2, 1, "NCCL_NET=Socket", 0, RING, 0, 0, 0},
     9641984, 's', 0},
};

START_TEST(published_figures_hold)
{
    const struct mp_nccl_job job = example_job(&published_rows[_i].job);
    const char *label = published_rows[_i].job.label;
    struct mp_nccl_result r;
    predict(label, &job, &r);
    uint64_t model = 0;
    switch (published_rows[_i].field) {
    case 'i':
        model = r.init_bytes;
        break;
    case 'l':
        model = r.low_bytes;
        break;
    case 'h':
        model = r.high_bytes;
        break;
    case 'p':
        model = r.parts[MP_NCCL_PART_POOLS].high_bytes;
        break;
    case 's': { /* of the ring's connections, one sends and one receives on each of the channels */
        struct mp_nccl_job idle = job;
        struct mp_nccl_result none;
        idle.algorithms = 0;
        predict(label, &idle, &none);
        model = (r.host_bytes - none.host_bytes) / (2 * r.channels.coll);
        break;
    }
    case 'n':
        model = r.parts[MP_NCCL_PART_NVLS_BUFFERS].high_bytes;
        break;
    default:
        model = r.high_bytes - r.init_bytes;
        break;
    }
    const double published = (double)published_rows[_i].published;
    ck_assert_msg(fabs((double)model - published) <= published_rows[_i].within_frac * published,
                  "%s: %.2f MiB published, %.2f MiB here", label, published / (double)MP_MIB,
                  (double)model / (double)MP_MIB);
}
END_TEST

static uint64_t high_of(const struct card *card, uint32_t nodes, uint32_t per_node, const char *env, uint32_t collectives)
{
    const struct example e = {"", card, 0, nodes, per_node, env, collectives, 0, 0, 0, 0};
    const struct mp_nccl_job job = example_job(&e);
    struct mp_nccl_result r;
    predict("high_of", &job, &r);
    return r.high_bytes;
}

/* NVIDIA/nccl#2366: an RTX 3090 alone, 996 MiB when everything connects at once and 484 when lazily. */
START_TEST(eager_connection_costs_one_rank_512)
{
    const uint64_t eager = high_of(&rtx3090, 1, 1, "NCCL_RUNTIME_CONNECT=0", 0), lazy = high_of(&rtx3090, 1, 1, "", 0);
    ck_assert_uint_eq(eager - lazy, (996 - 484) * MP_MIB);
    ck_assert_uint_eq(484 * MP_MIB - lazy, 96 * MP_MIB); /* what the process takes beside */
}
END_TEST

/* vllm-project/vllm#46234: TP8 and EP8 groups, 958 MiB per GPU. */
START_TEST(two_groups_of_eight_are_two_communicators)
{
    const uint64_t two = 2 * high_of(&h100, 1, 8, NO_NVLS, AR | AG | RS);
    ck_assert_uint_eq(two, 968 * MP_MIB);
    ck_assert(fabs((double)two / (958.0 * (double)MP_MIB) - 1) < 0.011);
}
END_TEST

/* NVIDIA/nccl#1685: the two sizes of buffers that its log counts. */
START_TEST(a_peer_costs_ten_and_two_mebibytes)
{
    struct mp_nccl_job job;
    struct mp_nccl_result all, none;
    mp_nccl_job_init(&job, "H100-80G", 90, 1, 2);
    job.env.nvls = MP_NCCL_OFF;
    predict("none", &job, &none);
    job.collectives = SR;
    predict("all", &job, &all);
    ck_assert_uint_eq(all.high_bytes - none.high_bytes, 32 * (UINT64_C(10485760) + 2097152));
}
END_TEST

/* NVIDIA/nccl#2060: packing the per-channel tables of a Megatron job's groups saved 1.88 GB; a group has 196 MiB of them. */
START_TEST(tables_of_ten_groups_are_the_saving_of_packing_them)
{
    const double saved = 1.88e9;
    const double group = (double)high_of(&h100, 1, 8, NO_NVLS, 0);
    ck_assert_double_gt(saved / group, 8);
    ck_assert_double_lt(saved / group, 10);
}
END_TEST

/* Host memory instead of device memory: 4 channels of 9.2 MiB. */
START_TEST(without_peer_access_buffers_move_to_the_host)
{
    struct mp_nccl_job job;
    struct mp_nccl_result with, without;
    mp_nccl_job_init(&job, "H200-141G", 90, 1, 8);
    set_env(&job.env, "NCCL_P2P_DISABLE=1 NCCL_NVLS_ENABLE=0");
    predict("idle", &job, &without);
    job.collectives = AR;
    predict("ring", &job, &with);
    ck_assert_uint_eq(with.high_bytes, without.high_bytes);
    ck_assert_uint_eq(with.host_bytes - without.host_bytes, 4 * UINT64_C(9641984));
}
END_TEST

/* What users often believe. */
START_TEST(memory_does_not_grow_with_the_cluster)
{
    const uint64_t small = high_of(&h200, 16, 8, "", AR | AG | RS);
    ck_assert_uint_eq(high_of(&h200, 128, 8, "", AR | AG | RS), small);
    /* tables step up where 608 bytes a rank pass another 2 MiB */
    const uint64_t below = high_of(&h200, 431, 8, "", AG), above = high_of(&h200, 432, 8, "", AG);
    ck_assert_uint_eq(above - below, 16 * 2 * MP_MIB);
}
END_TEST

START_TEST(a_larger_buffsize_costs_a_third_more)
{
    const uint64_t normal = high_of(&h200, 1, 8, NO_NVLS, A2A) - 196 * MP_MIB;
    const uint64_t larger = high_of(&h200, 1, 8, NO_NVLS " NCCL_BUFFSIZE=8388608", A2A) - 196 * MP_MIB;
    ck_assert_uint_eq(3 * larger, 4 * normal);
}
END_TEST

/* ---- 58 measured settings, every stage ---- */

static const struct {
    const char *label, *env;
} settings[] = {
    {"default", ""},
    {"buffsize=1048576", "NCCL_BUFFSIZE=1048576"},
    {"buffsize=2097152", "NCCL_BUFFSIZE=2097152"},
    {"buffsize=8388608", "NCCL_BUFFSIZE=8388608"},
    {"buffsize=16777216", "NCCL_BUFFSIZE=16777216"},
    {"ll_buffsize=1M", "NCCL_LL_BUFFSIZE=1048576"},
    {"ll128_buffsize=1M", "NCCL_LL128_BUFFSIZE=1048576"},
    {"proto=Simple", "NCCL_PROTO=Simple"},
    {"proto=LL", "NCCL_PROTO=LL"},
    {"proto=LL128", "NCCL_PROTO=LL128"},
    {"algo=Ring", "NCCL_ALGO=Ring"},
    {"algo=Tree", "NCCL_ALGO=Tree"},
    {"max_nchannels=1", "NCCL_MAX_NCHANNELS=1"},
    {"max_nchannels=2", "NCCL_MAX_NCHANNELS=2"},
    {"max_nchannels=4", "NCCL_MAX_NCHANNELS=4"},
    {"max_nchannels=8", "NCCL_MAX_NCHANNELS=8"},
    {"min_nchannels=32", "NCCL_MIN_NCHANNELS=32"},
    {"max_ctas=4", "NCCL_MAX_CTAS=4"},
    {"max_p2p_nchannels=1", "NCCL_MAX_P2P_NCHANNELS=1"},
    {"p2p_disable", "NCCL_P2P_DISABLE=1"},
    {"p2p_disable_buff8M", "NCCL_P2P_DISABLE=1 NCCL_BUFFSIZE=8388608"},
    {"net_only", "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1"},
    {"net_only_buff8M", "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_BUFFSIZE=8388608"},
    {"net_noshared", "NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 NCCL_NET_SHARED_BUFFERS=0"},
    {"cumem=0", "NCCL_CUMEM_ENABLE=0"},
    {"cumem=1", "NCCL_CUMEM_ENABLE=1"},
    {"runtime_connect=0", "NCCL_RUNTIME_CONNECT=0"},
    {"p2p_direct_disable", "NCCL_P2P_DIRECT_DISABLE=1"},
    {"pxn_disable", "NCCL_PXN_DISABLE=1"},
    {"single", ""},
};
#define N_MEASURED 58

struct measured {
    const char *label;
    uint32_t ranks;
    const struct mp_value *line;
};

static int64_t stage(const struct measured *m, const char *key)
{
    const struct mp_value *value = mp_value_get(m->line, key);
    ck_assert_msg(value != NULL && value->kind == MP_INT, "%s: no %s", m->label, key);
    return value->as.integer;
}

static void read_measured(struct mp_arena *arena, struct measured *rows)
{
    static const char path[] = "tests/data/nccl/nccl-h200.jsonl";
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    ck_assert_msg(mp_file_read(path, 0, &text, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    size_t n = 0;
    for (const char *at = mp_strbuf_text(&text); *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        ck_assert_uint_lt(n, N_MEASURED);
        const struct mp_value *line = mp_json_parse(arena, path, at, length, &err);
        ck_assert_msg(line != NULL, "%s", err.text);
        const struct mp_value *label = mp_value_get(line, "label"), *ranks = mp_value_get(line, "n");
        ck_assert(label != NULL && ranks != NULL);
        rows[n++] = (struct measured){label->as.string.text, (uint32_t)ranks->as.integer, line};
        at += length + (at[length] == '\n');
    }
    ck_assert_uint_eq(n, N_MEASURED);
    mp_strbuf_release(&text);
}

static struct mp_nccl_result setting_result(const struct measured *m, uint32_t collectives)
{
    struct mp_nccl_job job;
    struct mp_nccl_result result;
    size_t i = 0;
    while (i < MP_ARRAY_LEN(settings) && strcmp(settings[i].label, m->label) != 0)
        i++;
    ck_assert_msg(i < MP_ARRAY_LEN(settings), "setting '%s' is not in the table", m->label);
    mp_nccl_job_init(&job, "H200-141G", 90, 1, m->ranks);
    job.version = 22803;
    job.nvls = MP_NCCL_OFF; /* that machine has no multicast */
    set_env(&job.env, settings[i].env);
    job.collectives = collectives;
    predict(m->label, &job, &result);
    return result;
}

/*
 * The driver keeps its own small blocks (and, without cuMem, NCCL's tables) in slabs of 2 MiB that communicators share: a new
 * communicator may or may not need a new slab.
 */
static bool equal_or_one_slab_more(int64_t measured, uint64_t model)
{
    return measured == (int64_t)model || measured == (int64_t)(model + 2 * MP_MIB);
}

static int64_t mib(int64_t n)
{
    return n * (int64_t)MP_MIB;
}

START_TEST(measured_settings_are_exact)
{
    struct mp_arena arena;
    struct measured rows[N_MEASURED];
    mp_arena_init(&arena);
    read_measured(&arena, rows);
    const struct measured *m = &rows[_i];
    const bool two = m->ranks == 2;
    const uint64_t init = setting_result(m, 0).init_bytes;
    static const char *const creations[] = {"comm2_init", "split_init", "splitshare_init"};
    bool exact = false;
    for (size_t i = 0; i < MP_ARRAY_LEN(creations); i++) {
        const int64_t taken = stage(m, creations[i]);
        ck_assert_msg(equal_or_one_slab_more(taken, init), "%s, %u ranks: %s took %lld, model %llu", m->label,
                      m->ranks, creations[i], (long long)taken, (unsigned long long)init);
        exact |= taken == (int64_t)init;
    }
    ck_assert_msg(exact, "%s: no communicator took exactly %llu", m->label, (unsigned long long)init);
    /* the first communicator also starts the library */
    const int64_t start = (int64_t)mp_nccl_process_bytes(0);
    ck_assert(equal_or_one_slab_more(stage(m, "comm_init") - start, init));

    /* the first collective connects; later ones, of any kind or size, add nothing but kernels */
    const uint64_t ring = setting_result(m, strcmp(m->label, "algo=Tree") == 0 ? AR : AR | AG | RS | BC).high_bytes - init;
    static const char *const uses[] = {"comm2_allreduce_64m", "split_allreduce_64m", "splitshare_allreduce_64m"};
    for (size_t i = 0; i < MP_ARRAY_LEN(uses); i++)
        ck_assert_msg(stage(m, uses[i]) == (int64_t)ring, "%s: %s took %lld, model %llu", m->label, uses[i],
                      (long long)stage(m, uses[i]), (unsigned long long)ring);
    static const char *const free_stages[] = {"stream", "allreduce_1m", "allreduce_64m", "reducescatter_small",
                                              "reducescatter_64m", "allgather_small", "allgather_64m"};
    for (size_t i = 0; i < MP_ARRAY_LEN(free_stages); i++)
        ck_assert_int_eq(stage(m, free_stages[i]), 0);

    /* sends and receives, and all kernels together: 186 + 4 + 58, or 248 when sends come first */
    const uint64_t peers = setting_result(m, A2A).high_bytes - init;
    const int64_t kernels = stage(m, "allreduce_4k") - (int64_t)ring + stage(m, "broadcast_64m") +
                            stage(m, "sendrecv_all_peers") - (int64_t)peers + stage(m, "alltoall");
    const int64_t all_kernels = (int64_t)(mp_nccl_process_bytes(AR | BC | A2A) - mp_nccl_process_bytes(0));
    ck_assert_msg(kernels == all_kernels || (two && strcmp(m->label, "cumem=0") == 0 && kernels == all_kernels + mib(2)),
                  "%s: kernels took %lld MiB", m->label, (long long)(kernels / (int64_t)MP_MIB));
    if (two && strcmp(m->label, "proto=LL128") != 0) {
        ck_assert_int_eq(stage(m, "allreduce_4k") - (int64_t)ring,
                         (int64_t)(mp_nccl_process_bytes(AR) - mp_nccl_process_bytes(0)));
        ck_assert_int_eq(stage(m, "broadcast_64m"),
                         (int64_t)(mp_nccl_process_bytes(AR | BC) - mp_nccl_process_bytes(AR)));
    }
    if (!two) { /* destroying gives back what creating took */
        ck_assert_int_eq(-stage(m, "comm2_destroy"), (int64_t)init);
        ck_assert_uint_eq(ring, 0);
        ck_assert_uint_eq(peers, 0);
    }
    mp_arena_release(&arena);
}
END_TEST

/* The table of the measured machine in round numbers. */
static const struct {
    const char *env;
    uint64_t init, ring, peers;
} two_h200[] = {
    {"", 196, 288, 384},
    {"NCCL_BUFFSIZE=1048576", 196, 240, 320},
    {"NCCL_BUFFSIZE=2097152", 196, 240, 320},
    {"NCCL_BUFFSIZE=8388608", 196, 384, 512},
    {"NCCL_BUFFSIZE=16777216", 196, 576, 768},
    {"NCCL_LL_BUFFSIZE=1048576", 196, 288, 384},
    {"NCCL_LL128_BUFFSIZE=1048576", 196, 192, 256},
    {"NCCL_PROTO=LL", 196, 288, 384},
    {"NCCL_PROTO=LL128", 196, 288, 384},
    {"NCCL_ALGO=Ring", 196, 288, 384},
    {"NCCL_P2P_DIRECT_DISABLE=1", 196, 288, 384},
    {"NCCL_PXN_DISABLE=1", 196, 288, 384},
    {"NCCL_MAX_NCHANNELS=1", 10, 12, 12},
    {"NCCL_MAX_NCHANNELS=2", 16, 24, 24},
    {"NCCL_MAX_NCHANNELS=4", 28, 48, 48},
    {"NCCL_MAX_NCHANNELS=8", 52, 96, 96},
    {"NCCL_MIN_NCHANNELS=32", 196, 384, 384},
    {"NCCL_MAX_CTAS=4", 28, 48, 48},
    {"NCCL_MAX_P2P_NCHANNELS=1", 148, 288, 12},
    {"NCCL_P2P_DISABLE=1", 28, 0, 0},
    {"NCCL_P2P_DISABLE=1 NCCL_BUFFSIZE=16777216", 28, 0, 0},
    {"NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1", 16, 0, 0},
    {"NCCL_RUNTIME_CONNECT=0", 740, 0, 384},
    {"NCCL_CUMEM_ENABLE=0", 544, 0, 384},
};

START_TEST(two_h200_take_what_was_measured)
{
    const char *env = two_h200[_i].env;
    struct example e = {env, &h200, 22803, 1, 2, env, 0, 0, 0, 0, 0};
    struct mp_nccl_job job = example_job(&e);
    struct mp_nccl_result init, ring, peers;
    job.nvls = MP_NCCL_OFF;
    predict(env, &job, &init);
    job.collectives = AR;
    predict(env, &job, &ring);
    job.collectives = SR;
    predict(env, &job, &peers);
    check_mib(env, "init", init.init_bytes, two_h200[_i].init);
    check_mib(env, "ring", ring.high_bytes - init.init_bytes, two_h200[_i].ring);
    check_mib(env, "peers", peers.high_bytes - init.init_bytes, two_h200[_i].peers);
}
END_TEST

/* ---- splitting ---- */

START_TEST(a_sharing_split_pays_only_what_is_new)
{
    struct mp_nccl_job world, tp, dp;
    struct mp_nccl_result r;
    mp_nccl_job_init(&world, "H200-141G", 90, 1, 8);
    world.nvls = MP_NCCL_OFF;
    world.collectives = AR;
    predict("world", &world, &r);
    check_mib("world", "high", r.high_bytes, 484);
    tp = world;
    tp.ranks_per_node = 2;
    predict("a group of its own", &tp, &r);
    check_mib("a group of its own", "high", r.high_bytes, 484);
    tp.parent = &world;
    tp.parent_stride = 1;
    predict("TP2 split", &tp, &r);
    check_mib("TP2 split", "init", r.init_bytes, 132);
    /* neighbours of the parent's ring are connected one way; the way back is new: 10 or 2 MiB a channel */
    check_mib("TP2 split", "low", r.low_bytes, 132 + 24 * 2);
    check_mib("TP2 split", "high", r.high_bytes, 132 + 24 * 10);
    dp = world;
    dp.ranks_per_node = 4;
    dp.parent = &world;
    dp.parent_stride = 2;
    predict("DP4 split", &dp, &r);
    check_mib("DP4 split", "init", r.init_bytes, 132);
    check_mib("DP4 split", "high", r.high_bytes, 132 + 288); /* no rank at distance 2 is a neighbour */
    /* the same ranks again: everything is there */
    dp.ranks_per_node = 8;
    dp.parent_stride = 1;
    predict("copy", &dp, &r);
    check_mib("copy", "high", r.high_bytes, 132);
}
END_TEST

START_TEST(a_split_shares_nvls_only_with_the_same_ranks_of_a_node)
{
    struct mp_nccl_job world, child;
    struct mp_nccl_result r;
    mp_nccl_job_init(&world, "H200-141G", 90, 1, 8);
    world.collectives = AR;
    world.algorithms = RING | NVLS;
    child = world;
    child.parent = &world;
    predict("same", &child, &r);
    check_mib("same", "high", r.high_bytes, 132);
    child.ranks_per_node = 4;
    child.algorithms = RING | NVLS;
    predict("half", &child, &r);
    check_mib("half", "NVLS", r.parts[MP_NCCL_PART_NVLS_BUFFERS].high_bytes, 128);
    check_mib("half", "NVLS tables", r.parts[MP_NCCL_PART_NVLS_TABLES].high_bytes, 34);
}
END_TEST

START_TEST(a_split_must_divide_its_parent)
{
    struct mp_nccl_job world, child;
    struct mp_nccl_result r;
    struct memplan_error err = {0};
    mp_nccl_job_init(&world, "H200-141G", 90, 1, 8);
    child = world;
    child.ranks_per_node = 3;
    child.parent = &world;
    ck_assert_int_eq(mp_nccl_predict(&child, &r, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_str_eq(err.text, "split: 3 ranks at distance 1 do not divide the parent's 8");
}
END_TEST

/* ---- versions ---- */

static const struct example version_rows[] = {
    {"2.18 is eager and without cuMem", &a100, 21801, 1, 8, "", 0, 0, 288 + 288 + 256, 288 + 144 + 256, 832},
    {"2.19 has cuMem: tables of 2 MiB, one fewer", &a100, 21903, 1, 2, "", 0, 0, 194 + 288 + 256, 738, 738},
    {"2.22 connects lazily", &a100, 22203, 1, 2, "", 0, 0, 194, 194, 194},
    {"2.23 has the rank table", &a100, 22304, 1, 2, "", 0, 0, 196, 196, 196},
    {"2.21 NVLS buffers have 2 MiB of flags", &h200, 22105, 1, 8, "", 0, 0, ANY, ANY, ANY},
    {"2.27 has NVLS peers on every channel", &h200, 22705, 1, 8, "", 0, 0, 196 + 50, 246, 246},
    {"2.28 only on NVLS channels", &h200, 22803, 1, 8, "", 0, 0, 230, 230, 230},
    {"2.30", &h200, 23007, 1, 8, "", AG, 0, 230, 518, 518},
    {"one rank of 2.24", &h200, 22403, 1, 1, "", 0, 0, 196, 196, 196},
};

START_TEST(versions_differ_where_nccl_changed)
{
    const struct example *e = &version_rows[_i];
    const struct mp_nccl_job job = example_job(e);
    struct mp_nccl_result r;
    predict(e->label, &job, &r);
    check_mib(e->label, "init", r.init_bytes, e->init);
    check_mib(e->label, "low", r.low_bytes, e->low);
    check_mib(e->label, "high", r.high_bytes, e->high);
}
END_TEST

static const struct {
    int version;
    uint64_t nvls; /* buffers of 8 x H200 */
} nvls_rows[] = {{21801, 16 * 2 * 6 * 8}, {21903, 16 * 2 * 6 * 8}, {22005, 24 * 2 * 6 * 8}, {22105, 24 * 2 * 3 * 8},
                 {22203, 256}, {22809, 256}, {23007, 256}};

START_TEST(nvls_buffers_shrank)
{
    struct mp_nccl_job job;
    struct mp_nccl_result r;
    mp_nccl_job_init(&job, "H200-141G", 90, 1, 8);
    job.version = nvls_rows[_i].version;
    job.collectives = AR;
    predict("NVLS", &job, &r);
    check_mib("NVLS", "buffers", r.parts[MP_NCCL_PART_NVLS_BUFFERS].high_bytes, nvls_rows[_i].nvls);
}
END_TEST

static const struct {
    const char *text;
    enum memplan_status status;
    int version;
} version_texts[] = {
    {"2.28.9", MEMPLAN_STATUS_OK, 22809},    {"2.28", MEMPLAN_STATUS_OK, 22800},
    {"22809", MEMPLAN_STATUS_OK, 22809},     {"2.28.9+cuda13.0", MEMPLAN_STATUS_OK, 22809},
    {"2.17.1", MEMPLAN_STATUS_UNSUPPORTED, 0}, {"2.31.0", MEMPLAN_STATUS_UNSUPPORTED, 0},
    {"", MEMPLAN_STATUS_INPUT, 0},           {"two", MEMPLAN_STATUS_INPUT, 0},
    {"2.28.9.1", MEMPLAN_STATUS_INPUT, 0},   {"2.28x", MEMPLAN_STATUS_INPUT, 0},
    {"-2.28", MEMPLAN_STATUS_INPUT, 0},      {"2.28.999", MEMPLAN_STATUS_UNSUPPORTED, 0},
};

START_TEST(versions_are_read)
{
    int version = 0;
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_nccl_version_parse(version_texts[_i].text, &version, &err), version_texts[_i].status);
    ck_assert_int_eq(version, version_texts[_i].version);
}
END_TEST

/* ---- environment and bad input ---- */

static const struct {
    const char *assignment;
    enum memplan_status status;
    const char *says; /* part of the message */
} bad_env[] = {
    {"NCCL_BUFSIZE=1", MEMPLAN_STATUS_INPUT, "did you mean 'NCCL_BUFFSIZE'?"},
    {"NCCL_NVLS_ENABL=0", MEMPLAN_STATUS_INPUT, "did you mean 'NCCL_NVLS_ENABLE'?"},
    {"BUFFSIZE=1", MEMPLAN_STATUS_INPUT, "did you mean 'NCCL_BUFFSIZE'?"},
    {"NCCL_BUFFSIZE", MEMPLAN_STATUS_INPUT, "no NAME=VALUE"},
    {"=1", MEMPLAN_STATUS_INPUT, "no NAME=VALUE"},
    {"NCCL_BUFFSIZE=8MiB", MEMPLAN_STATUS_INPUT, "no plain integer"},
    {"NCCL_BUFFSIZE=", MEMPLAN_STATUS_INPUT, "no plain integer"},
    {"NCCL_BUFFSIZE=0", MEMPLAN_STATUS_RANGE, "outside 1 to 2147483647"},
    {"NCCL_BUFFSIZE=-5", MEMPLAN_STATUS_RANGE, "outside 1 to"},
    {"NCCL_BUFFSIZE=99999999999", MEMPLAN_STATUS_RANGE, "outside 1 to"},
    {"NCCL_MAX_NCHANNELS=65", MEMPLAN_STATUS_RANGE, "outside 1 to 64"},
    {"NCCL_P2P_DISABLE=yes", MEMPLAN_STATUS_INPUT, "no plain integer"},
    {"NCCL_ALGO=Rings", MEMPLAN_STATUS_INPUT, "'Rings' is none of Tree, Ring"},
    {"NCCL_ALGO=Ring;Tree", MEMPLAN_STATUS_INPUT, "needs a collective and a colon"},
    {"NCCL_ALGO=sum:Ring", MEMPLAN_STATUS_INPUT, "'sum' is none of allreduce"},
    {"NCCL_PROTO=LL256", MEMPLAN_STATUS_INPUT, "'LL256' is none of LL, LL128, Simple"},
    {"NCCL_COLLNET_ENABLE=1", MEMPLAN_STATUS_UNSUPPORTED, "not modelled"},
};

START_TEST(bad_variables_are_explained)
{
    struct mp_nccl_env env = {0};
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_nccl_env_set(&env, bad_env[_i].assignment, &err), bad_env[_i].status);
    ck_assert_msg(strstr(err.text, bad_env[_i].says) != NULL, "%s: '%s'", bad_env[_i].assignment, err.text);
}
END_TEST

START_TEST(variables_without_effect_are_accepted)
{
    static const char *const names[] = {"NCCL_DEBUG=INFO", "NCCL_SOCKET_IFNAME=eth0", "NCCL_IB_HCA=mlx5",
                                        "NCCL_P2P_LEVEL=NVL", "NCCL_P2P_DISABLE=0", "NCCL_NET=IB"};
    for (size_t i = 0; i < MP_ARRAY_LEN(names); i++) {
        struct mp_nccl_env env = {0};
        const struct mp_nccl_env none = {0};
        struct memplan_error err = {0};
        ck_assert_int_eq(mp_nccl_env_set(&env, names[i], &err), MEMPLAN_STATUS_OK);
        ck_assert_msg(memcmp(&env, &none, sizeof env) == 0, "%s changed something", names[i]);
    }
}
END_TEST

START_TEST(algorithms_are_read_like_nccl_reads_them)
{
    struct mp_nccl_env env = {0};
    set_env(&env, "NCCL_ALGO=^NVLS,Tree");
    ck_assert_uint_eq(env.algorithms[MP_NCCL_ALLREDUCE], RING | NVLS_TREE | PAT);
    set_env(&env, "NCCL_ALGO=ring;allreduce:tree,nvlstree");
    ck_assert_uint_eq(env.algorithms[MP_NCCL_ALLREDUCE], TREE | NVLS_TREE);
    ck_assert_uint_eq(env.algorithms[MP_NCCL_ALLGATHER], RING);
}
END_TEST

START_TEST(a_list_that_leaves_no_algorithm_is_refused)
{
    struct mp_nccl_job job;
    struct mp_nccl_result r;
    struct memplan_error err = {0};
    mp_nccl_job_init(&job, "H200-141G", 90, 1, 2);
    set_env(&job.env, "NCCL_ALGO=Tree");
    job.collectives = AG;
    ck_assert_int_eq(mp_nccl_predict(&job, &r, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, "leaves no algorithm for allgather") != NULL, "%s", err.text);
}
END_TEST

static const struct {
    uint32_t nodes, per_node;
    int version;
    enum memplan_status status;
} bad_jobs[] = {
    {0, 8, 22809, MEMPLAN_STATUS_RANGE},      {65537, 8, 22809, MEMPLAN_STATUS_RANGE},
    {4294967295u, 8, 22809, MEMPLAN_STATUS_RANGE}, {1, 0, 22809, MEMPLAN_STATUS_RANGE},
    {1, 257, 22809, MEMPLAN_STATUS_RANGE},    {1, 8, 21700, MEMPLAN_STATUS_UNSUPPORTED},
    {1, 8, 23100, MEMPLAN_STATUS_UNSUPPORTED}, {65536, 256, 22809, MEMPLAN_STATUS_OK},
};

START_TEST(absurd_machines_are_refused)
{
    struct mp_nccl_job job;
    struct mp_nccl_result r;
    struct memplan_error err = {0};
    mp_nccl_job_init(&job, "H200-141G", 90, bad_jobs[_i].nodes, bad_jobs[_i].per_node);
    job.version = bad_jobs[_i].version;
    job.collectives = AR | A2A;
    ck_assert_msg(mp_nccl_predict(&job, &r, &err) == bad_jobs[_i].status, "%s", err.text);
}
END_TEST

START_TEST(given_channels_are_used_and_checked)
{
    struct mp_nccl_job job;
    struct mp_nccl_result r;
    struct memplan_error err = {0};
    mp_nccl_job_init(&job, "H200-141G", 90, 4, 8);
    job.channels_given = true;
    job.channels = (struct mp_nccl_channels){8, 0, 8, 1};
    job.collectives = AG | RS;
    predict("given", &job, &r);
    check_mib("given", "init", r.init_bytes, 6 * 8 + 4);
    check_mib("given", "high", r.high_bytes, 52 + 7 * 12 + 20);
    job.channels.p2p_per_peer = 16;
    ck_assert_int_eq(mp_nccl_predict(&job, &r, &err), MEMPLAN_STATUS_RANGE);
}
END_TEST

START_TEST(collectives_are_named)
{
    enum mp_nccl_collective c;
    struct memplan_error err = {0};
    ck_assert_int_eq(mp_nccl_collective_parse("all_reduce", &c, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(c, MP_NCCL_ALLREDUCE);
    ck_assert_int_eq(mp_nccl_collective_parse("ReduceScatter", &c, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(c, MP_NCCL_REDUCESCATTER);
    ck_assert_int_eq(mp_nccl_collective_parse("alltoal", &c, &err), MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, "did you mean 'alltoall'?") != NULL, "%s", err.text);
}
END_TEST

/* Properties over many machines: parts add up (in predict), more use never takes less, more buffer never takes less. */
START_TEST(more_use_never_takes_less)
{
    static const struct card *const cards[] = {&h200, &a100, &b200, &rtx3090, &a100_pcie, &gb200};
    static const uint32_t shapes[][2] = {{1, 1}, {1, 2}, {1, 3}, {1, 8}, {2, 8}, {3, 8}, {5, 4}, {8, 1}, {9, 3}};
    static const int versions[] = {21801, 21903, 22005, 22105, 22203, 22304, 22501, 22703, 22809, 22907, 23007};
    const struct card *card = cards[_i];
    for (size_t s = 0; s < MP_ARRAY_LEN(shapes); s++)
        for (size_t v = 0; v < MP_ARRAY_LEN(versions); v++) {
            struct mp_nccl_job job;
            struct mp_nccl_result before, after;
            char label[96];
            mp_nccl_job_init(&job, card->name, card->capability, shapes[s][0], shapes[s][1]);
            job.version = versions[v];
            (void)snprintf(label, sizeof label, "%s %u x %u, %d", card->name, shapes[s][0], shapes[s][1], versions[v]);
            predict(label, &job, &before);
            for (int c = 0; c < MP_NCCL_COLLECTIVES; c++) {
                job.collectives |= BIT(c);
                predict(label, &job, &after);
                ck_assert_msg(after.high_bytes >= before.high_bytes && after.low_bytes >= before.low_bytes,
                              "%s: %s takes less", label, mp_nccl_collective_text((enum mp_nccl_collective)c));
                before = after;
            }
            job.env.buff_bytes = 16 * MP_MIB;
            predict(label, &job, &after);
            ck_assert_msg(after.high_bytes >= before.high_bytes, "%s: larger buffers take less", label);
        }
}
END_TEST

Suite *suite_nccl(void)
{
    Suite *const suite = suite_create("nccl");
    TCase *const tc = tcase_create("memory");
    tcase_set_timeout(tc, 60);
#define LOOP(test, rows) tcase_add_loop_test(tc, test, 0, (int)MP_ARRAY_LEN(rows))
    LOOP(worked_examples_are_exact, examples);
    LOOP(channels_are_those_of_nccls_search, channel_rows);
    LOOP(connection_sets_are_those_of_nccls_search, set_rows);
    tcase_add_loop_test(tc, every_send_has_its_receive, 0, 10);
    tcase_add_loop_test(tc, a_ring_visits_every_rank, 0, 6);
    tcase_add_test(tc, rings_between_nodes_are_those_of_a_log);
    LOOP(published_figures_hold, published_rows);
    tcase_add_test(tc, eager_connection_costs_one_rank_512);
    tcase_add_test(tc, two_groups_of_eight_are_two_communicators);
    tcase_add_test(tc, a_peer_costs_ten_and_two_mebibytes);
    tcase_add_test(tc, tables_of_ten_groups_are_the_saving_of_packing_them);
    tcase_add_test(tc, without_peer_access_buffers_move_to_the_host);
    tcase_add_test(tc, memory_does_not_grow_with_the_cluster);
    tcase_add_test(tc, a_larger_buffsize_costs_a_third_more);
    tcase_add_loop_test(tc, measured_settings_are_exact, 0, N_MEASURED);
    LOOP(two_h200_take_what_was_measured, two_h200);
    tcase_add_test(tc, a_sharing_split_pays_only_what_is_new);
    tcase_add_test(tc, a_split_shares_nvls_only_with_the_same_ranks_of_a_node);
    tcase_add_test(tc, a_split_must_divide_its_parent);
    LOOP(versions_differ_where_nccl_changed, version_rows);
    LOOP(nvls_buffers_shrank, nvls_rows);
    LOOP(versions_are_read, version_texts);
    LOOP(bad_variables_are_explained, bad_env);
    tcase_add_test(tc, variables_without_effect_are_accepted);
    tcase_add_test(tc, algorithms_are_read_like_nccl_reads_them);
    tcase_add_test(tc, a_list_that_leaves_no_algorithm_is_refused);
    LOOP(absurd_machines_are_refused, bad_jobs);
    tcase_add_test(tc, given_channels_are_used_and_checked);
    tcase_add_test(tc, collectives_are_named);
    tcase_add_loop_test(tc, more_use_never_takes_less, 0, 6);
#undef LOOP
    suite_add_tcase(suite, tc);
    return suite;
}
