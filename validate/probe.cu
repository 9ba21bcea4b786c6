/* SPDX-License-Identifier: MIT */
/*
 * Measure the card: what a process costs step by step, where cudaMalloc puts segments, how fast the
 * card is, what NCCL takes.
 *
 * Rates: the median of repeated runs between two events, after warming up. NCCL: all ranks under mpirun, a GPU each; else all GPUs of
 * this process.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "device.h"
#include "kernels.h"
#include "nccl_calls.h"
#include "probe.h"
#include "ranks.h"

static int check(cudaError_t status, const char *what)
{
    return status == cudaSuccess ? 0 : device_fail("%s: %s", what, cudaGetErrorString(status));
}

static int note_stage(struct probe_result *r, const char *name)
{
    uint64_t free_bytes, total_bytes;
    if (device_wait() || device_memory(&free_bytes, &total_bytes))
        return -1;
    if (r->n_stages == PROBE_MAX_STAGES)
        return 0;
    struct probe_stage *stage = &r->stages[r->n_stages++];
    snprintf(stage->name, sizeof stage->name, "%s", name);
    stage->used_bytes = total_bytes - free_bytes;
    if (device_nvml_used(ranks()->local, &stage->nvml_bytes))
        stage->nvml_bytes = 0;
    return 0;
}

/* ---- what a process costs ---- */

static int measure_streams(struct probe_result *r)
{
    cudaStream_t streams[8];
    int n = 0, status = 0;
    while (n < 8 && !status) {
        status = check(cudaStreamCreate(&streams[n]), "creating a stream");
        n += !status;
    }
    if (!status)
        status = note_stage(r, "8 streams");
    for (int i = 0; i < n; i++)
        (void)cudaStreamDestroy(streams[i]);
    return status;
}

static struct k_tensor matrix(void *data, int dtype, int64_t rows, int64_t columns)
{
    const struct k_tensor t = {data, dtype, 2, {rows, columns}, {columns, 1}};
    return t;
}

/* The first product of each type loads its kernels. */
static int measure_products(struct probe_result *r)
{
    static const struct {
        const char *name;
        int dtype, tf32;
    } types[] = {{"first product, fp32", K_F32, 0},
                 {"first product, tf32", K_F32, 1},
                 {"first product, bf16", K_BF16, 0},
                 {"first product, fp16", K_F16, 0}};
    enum { N = 512, SIZE = N * N * 4 };
    const uint64_t memory = device_malloc(3 * SIZE + (32 << 20));
    int status = memory
                     ? note_stage(r, "35 MiB by cudaMalloc")
                     : device_fail("no room on the GPU for 35 MiB: another process fills the card");
    for (size_t i = 0; i < sizeof types / sizeof types[0] && !status; i++) {
        char *const data = (char *)(uintptr_t)memory;
        const struct k_tensor a = matrix(data, types[i].dtype, N, N),
                              b = matrix(data + SIZE, types[i].dtype, N, N),
                              c = matrix(data + 2 * SIZE, types[i].dtype, N, N);
        status = k_normal(&a, 1, 1) || k_normal(&b, 1, 2) ||
                         k_gemm(&a, &b, &c, 0, types[i].tf32, data + 3 * SIZE, 32 << 20)
                     ? -1
                     : note_stage(r, types[i].name);
    }
    if (memory)
        device_free(memory);
    return status ? status : note_stage(r, "products done, 35 MiB given back");
}

static int measure_process(struct probe_result *r)
{
    const uint64_t memory = device_malloc(1 << 20);
    const struct k_tensor small = {(void *)(uintptr_t)memory, K_F32, 1, {1024}, {1}};
    if (!memory)
        return device_fail("no room on the GPU for 1 MiB: another process fills the card");
    if (note_stage(r, "1 MiB by cudaMalloc") || k_fill(&small, 0) || note_stage(r, "first kernel"))
        return -1;
    device_free(memory);
    if (note_stage(r, "1 MiB given back") || k_load() || note_stage(r, "all kernels loaded") ||
        k_gemm_open() || note_stage(r, "cuBLAS handle"))
        return -1;
    return measure_products(r) || k_warm() || note_stage(r, "ready to train") || measure_streams(r)
               ? -1
               : 0;
}

/* ---- placement ---- */

static int measure_places(struct probe_result *r)
{
    static const uint64_t sizes[] = {1,        512,      1 << 20,       2 << 20,  2 << 20,
                                     2 << 20,  2 << 20,  20 << 20,      20 << 20, 20 << 20,
                                     20 << 20, 34 << 20, 34 << 20,      50 << 20, 100 << 20,
                                     2 << 20,  20 << 20, (2 << 20) + 1, 3 << 20,  10 << 20};
    int status = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && !status; i++) {
        uint64_t before, after, total;
        struct probe_place *place = &r->places[r->n_places];
        status = device_memory(&before, &total);
        place->bytes = sizes[i];
        place->address = device_malloc(sizes[i]);
        if (!place->address)
            break;
        r->n_places++;
        status = status || device_memory(&after, &total) ? -1 : 0;
        place->taken_bytes = before - after;
    }
    for (int i = 0; i < r->n_places; i++)
        device_free(r->places[i].address);
    return status;
}

/* ---- rates ---- */

struct timer {
    cudaEvent_t start, stop;
    cudaStream_t stream; /* NULL: the default one */
};

static int timer_open(struct timer *t)
{
    t->stream = NULL;
    return check(cudaEventCreate(&t->start), "creating an event") ||
           check(cudaEventCreate(&t->stop), "creating an event");
}
static void timer_close(struct timer *t)
{
    (void)cudaEventDestroy(t->start);
    (void)cudaEventDestroy(t->stop);
}

/* Median milliseconds of a call. */
template <typename F>
static int time_median(struct timer *t, int times, F call, double *milliseconds)
{
    float samples[32];
    times = std::min(times, 32);
    for (int i = -2; i < times; i++) {
        float elapsed = 0;
        if (check(cudaEventRecord(t->start, t->stream), "timing") || call() ||
            check(cudaEventRecord(t->stop, t->stream), "timing") ||
            check(cudaEventSynchronize(t->stop), "timing") ||
            check(cudaEventElapsedTime(&elapsed, t->start, t->stop), "timing"))
            return -1;
        if (i >= 0)
            samples[i] = elapsed;
    }
    std::sort(samples, samples + times);
    *milliseconds = (double)samples[times / 2];
    return 0;
}

static void add_rate(struct probe_result *r, const char *name, double amount, double milliseconds)
{
    if (r->n_rates == PROBE_MAX_RATES || milliseconds <= 0)
        return;
    struct probe_rate *rate = &r->rates[r->n_rates++];
    snprintf(rate->name, sizeof rate->name, "%s", name);
    rate->per_second = amount / (milliseconds / 1000);
    rate->milliseconds = milliseconds;
}

static int measure_copies(struct probe_result *r, struct timer *t)
{
    const uint64_t bytes = UINT64_C(1) << 30, a = device_malloc(bytes), b = device_malloc(bytes);
    void *host = NULL;
    double ms = 0;
    int status = a && b ? check(cudaMallocHost(&host, bytes / 4), "pinned host memory")
                        : device_fail("no room on the GPU for 2 GiB to copy: another process "
                                      "fills the card; probe --quick needs 36 MiB");
    if (!status)
        status = device_memset(a, 1, bytes) || device_memset(b, 2, bytes) ? -1 : 0;
    if (!status)
        status = time_median(
            t, 9,
            [&] {
                return check(cudaMemcpyAsync((void *)b, (void *)a, bytes, cudaMemcpyDeviceToDevice),
                             "copying");
            },
            &ms);
    if (!status) {
        add_rate(r, "memory: copy on the card, bytes read and written", 2.0 * (double)bytes, ms);
        status = time_median(
            t, 5,
            [&] {
                return check(cudaMemcpyAsync((void *)a, host, bytes / 4, cudaMemcpyHostToDevice),
                             "copying");
            },
            &ms);
    }
    if (!status) {
        add_rate(r, "host to card, pinned, bytes", (double)bytes / 4, ms);
        status = time_median(
            t, 5,
            [&] {
                return check(cudaMemcpyAsync(host, (void *)a, bytes / 4, cudaMemcpyDeviceToHost),
                             "copying");
            },
            &ms);
    }
    if (!status)
        add_rate(r, "card to host, pinned, bytes", (double)bytes / 4, ms);
    if (a)
        device_free(a);
    if (b)
        device_free(b);
    (void)cudaFreeHost(host);
    return status;
}

static int measure_gemm(struct probe_result *r, struct timer *t)
{
    static const struct {
        const char *name;
        int dtype, tf32;
    } types[] = {{"fp32", K_F32, 0}, {"tf32", K_F32, 1}, {"bf16", K_BF16, 0}, {"fp16", K_F16, 0}};
    static const int64_t sizes[][3] = {/* rows, columns of the factor between, columns */
                                       {1024, 1024, 1024},
                                       {4096, 4096, 4096},
                                       {8192, 8192, 8192},
                                       {8192, 768, 3072},
                                       {2048, 768, 50257}};
    const uint64_t each = UINT64_C(2048) * 50257 * 4, memory = device_malloc(3 * each + (32 << 20));
    int status = memory ? 0
                        : device_fail("no room on the GPU for 1.2 GiB to multiply: another process "
                                      "fills the card; probe --quick needs 36 MiB");
    for (size_t i = 0; i < 4 && !status; i++)
        for (size_t s = 0; s < sizeof sizes / sizeof sizes[0] && !status; s++) {
            char *const data = (char *)(uintptr_t)memory;
            const int64_t rows = sizes[s][0], between = sizes[s][1], columns = sizes[s][2];
            const struct k_tensor a = matrix(data, types[i].dtype, rows, between),
                                  b = matrix(data + each, types[i].dtype, between, columns),
                                  c = matrix(data + 2 * each, types[i].dtype, rows, columns);
            char name[64];
            double ms = 0;
            status = k_normal(&a, 1, 1) || k_normal(&b, 1, 2) ||
                             time_median(
                                 t, 9,
                                 [&] {
                                     return k_gemm(&a, &b, &c, 0, types[i].tf32, data + 3 * each,
                                                   32 << 20);
                                 },
                                 &ms)
                         ? -1
                         : 0;
            if (rows == columns)
                snprintf(name, sizeof name, "product %s %lld, operations", types[i].name,
                         (long long)rows);
            else
                snprintf(name, sizeof name, "product %s %lldx%lldx%lld, operations", types[i].name,
                         (long long)rows, (long long)between, (long long)columns);
            if (!status)
                add_rate(r, name, 2.0 * (double)rows * (double)between * (double)columns, ms);
        }
    if (memory)
        device_free(memory);
    return status;
}

/* This program's own kernel: what `train` runs, not what a framework would. */
static int time_attention(struct probe_result *r, struct timer *t, int dtype, int64_t batch,
                          int64_t heads, int64_t seq, int64_t dim)
{
    const int64_t count = batch * heads * seq * dim, size = dtype == K_F32 ? 4 : 2;
    const uint64_t memory = device_malloc((uint64_t)(count * size * 4 + batch * heads * seq * 4));
    const struct k_attention rule = {0.125, 0, 1, 0};
    struct k_tensor part[4];
    char name[80];
    double ms = 0;
    int status = memory ? 0 : device_fail("no room on the GPU for an attention");
    for (int i = 0; i < 4; i++) {
        const struct k_tensor p = {(char *)(uintptr_t)memory + i * count * size,
                                   dtype,
                                   4,
                                   {batch, heads, seq, dim},
                                   {heads * seq * dim, seq * dim, dim, 1}};
        part[i] = p;
        if (!status)
            status = k_normal(&part[i], 1, (uint64_t)i);
    }
    const struct k_tensor lse = {(char *)(uintptr_t)memory + 4 * count * size,
                                 K_F32,
                                 3,
                                 {batch, heads, seq},
                                 {heads * seq, seq, 1}};
    if (!status)
        status = time_median(
            t, 3,
            [&] { return k_attention(&rule, &part[0], &part[1], &part[2], NULL, &part[3], &lse); },
            &ms);
    snprintf(name, sizeof name,
             "attention of this program, %s, causal, %lldx%lldx%lldx%lld, operations",
             dtype == K_F32 ? "fp32" : "bf16", (long long)batch, (long long)heads, (long long)seq,
             (long long)dim);
    if (!status)
        add_rate(r, name, 2.0 * (double)count * (double)seq, ms);
    if (memory)
        device_free(memory);
    return status;
}

static int measure_attention(struct probe_result *r, struct timer *t)
{
    return time_attention(r, t, K_BF16, 4, 16, 1024, 64) ||
                   time_attention(r, t, K_BF16, 4, 8, 1024, 128) ||
                   time_attention(r, t, K_F32, 4, 16, 1024, 64)
               ? -1
               : 0;
}

static int measure_rates(struct probe_result *r)
{
    struct timer t;
    if (timer_open(&t))
        return -1;
    const int status =
        measure_copies(r, &t) || measure_gemm(r, &t) || measure_attention(r, &t) ? -1 : 0;
    timer_close(&t);
    return status;
}

/* ---- NCCL, if it is installed ---- */

enum { MOST_GPUS = 16, GROUP_BYTES = 64 << 20 };

/* The ranks of a communicator that are in this process: one under mpirun, else one for each GPU. */
struct group {
    const struct nccl *nccl;
    int first_card, n; /* cards of this process */
    int first_rank, world;
    void *comms[MOST_GPUS], *buffers[MOST_GPUS];
    cudaStream_t streams[MOST_GPUS];
};

static int use_card(const struct group *g, int i)
{
    return check(cudaSetDevice(g->first_card + i), "choosing a GPU");
}

/* Used bytes of every rank's card; the table shows this process's first. */
static int note_group_stage(struct probe_result *r, const struct group *g, const char *what)
{
    char name[64];
    uint64_t used[2] = {UINT64_MAX, 0}; /* least, most */
    for (int i = 0; i < g->n; i++) {
        uint64_t free_bytes, total_bytes;
        if (use_card(g, i) || device_wait() || device_memory(&free_bytes, &total_bytes))
            return -1;
        used[0] = std::min(used[0], total_bytes - free_bytes);
        used[1] = std::max(used[1], total_bytes - free_bytes);
    }
    if (use_card(g, 0))
        return -1;
    std::vector<uint64_t> all(2 * (size_t)ranks()->world);
    ranks_gather(used, all.data(), sizeof used);
    snprintf(name, sizeof name, "NCCL, %d rank%s: %s", g->world, g->world == 1 ? "" : "s", what);
    if (note_stage(r, name))
        return -1;
    struct probe_stage *stage = &r->stages[r->n_stages - 1];
    stage->least_bytes = *std::min_element(all.begin(), all.end());
    stage->most_bytes = *std::max_element(all.begin(), all.end());
    return 0;
}

static int open_cards(struct group *g)
{
    for (int i = 0; i < g->n; i++)
        if (use_card(g, i) || check(cudaFree(NULL), "a context on each GPU"))
            return -1;
    return use_card(g, 0);
}

static int open_buffers(struct group *g)
{
    for (int i = 0; i < g->n; i++)
        if (use_card(g, i) || check(cudaMalloc(&g->buffers[i], GROUP_BYTES), "64 MiB for NCCL") ||
            check(cudaMemset(g->buffers[i], 0, GROUP_BYTES), "64 MiB for NCCL") ||
            check(cudaStreamCreate(&g->streams[i]), "creating a stream"))
            return -1;
    return use_card(g, 0);
}

static int open_communicator(struct group *g)
{
    struct nccl_id id = {};
    if (ranks()->rank == 0 && nccl_check(g->nccl->get_id(&id), "making an address for the ranks"))
        return -1;
    ranks_first(&id, sizeof id);
    int status = nccl_check(g->nccl->group_start(), "starting a group");
    for (int i = 0; i < g->n && !status; i++)
        status = use_card(g, i) || nccl_check(g->nccl->init_rank(&g->comms[i], g->world, id,
                                                                 g->first_rank + i),
                                              "making a communicator")
                     ? -1
                     : 0;
    const int ended = nccl_check(g->nccl->group_end(), "making a communicator");
    return status || ended ? -1 : use_card(g, 0);
}

/* Calls of all ranks in this process, as one. */
template <typename F> static int together(struct group *g, const char *what, F call)
{
    int status = nccl_check(g->nccl->group_start(), "starting a group");
    for (int i = 0; i < g->n && !status; i++)
        status = nccl_check(call(i), what);
    const int ended = nccl_check(g->nccl->group_end(), what);
    return status || ended ? -1 : 0;
}

static int all_reduce(struct group *g, size_t count)
{
    return together(g, "an all-reduce", [&](int i) {
        return g->nccl->all_reduce(g->buffers[i], g->buffers[i], count, NCCL_FLOAT32, NCCL_SUM,
                                   g->comms[i], g->streams[i]);
    });
}

static int broadcast(struct group *g, size_t count)
{
    return together(g, "a broadcast", [&](int i) {
        return g->nccl->broadcast(g->buffers[i], g->buffers[i], count, NCCL_FLOAT32, 0, g->comms[i],
                                  g->streams[i]);
    });
}

static int close_group(struct group *g)
{
    int status = 0;
    for (int i = 0; i < g->n && !status; i++)
        status = use_card(g, i) || device_wait() ||
                         nccl_check(g->nccl->destroy(g->comms[i]), "closing a communicator") ||
                         check(cudaStreamDestroy(g->streams[i]), "destroying a stream") ||
                         check(cudaFree(g->buffers[i]), "cudaFree")
                     ? -1
                     : 0;
    return status || use_card(g, 0) ? -1 : 0;
}

/* Bytes of the buffer that a second reduces; between the ranks of one process events of its first. */
static int measure_all_reduce(struct probe_result *r, struct group *g)
{
    struct timer t;
    char name[80];
    double ms = 0;
    if (g->world == 1)
        return 0;
    if (timer_open(&t))
        return -1;
    t.stream = g->streams[0];
    const int status = time_median(
        &t, 9, [&] { return all_reduce(g, GROUP_BYTES / sizeof(float)); }, &ms);
    timer_close(&t);
    snprintf(name, sizeof name, "NCCL, %d ranks: all-reduce of 64 MiB, bytes", g->world);
    if (!status)
        add_rate(r, name, GROUP_BYTES, ms);
    return status;
}

static int measure_group(struct probe_result *r, struct group *g)
{
    return open_cards(g) || note_group_stage(r, g, "a context each") || open_buffers(g) ||
                   note_group_stage(r, g, "64 MiB buffer, stream") || open_communicator(g) ||
                   note_group_stage(r, g, "communicator") || all_reduce(g, 1024) ||
                   note_group_stage(r, g, "all-reduce of 4 KiB") ||
                   all_reduce(g, GROUP_BYTES / sizeof(float)) ||
                   note_group_stage(r, g, "all-reduce of 64 MiB") ||
                   broadcast(g, GROUP_BYTES / sizeof(float)) ||
                   note_group_stage(r, g, "broadcast of 64 MiB") || measure_all_reduce(r, g) ||
                   close_group(g) || note_group_stage(r, g, "all given back")
               ? -1
               : 0;
}

static int measure_nccl(struct probe_result *r)
{
    struct group g = {};
    g.nccl = nccl_open();
    if (!ranks_all(g.nccl != NULL)) {
        snprintf(r->nccl_note, sizeof r->nccl_note, "%s",
                 g.nccl ? "another rank has none" : device_error());
        return 0;
    }
    const bool alone = ranks()->world == 1;
    g.first_card = ranks()->local;
    g.n = alone ? std::min(r->gpus, (int)MOST_GPUS) : 1;
    g.first_rank = ranks()->rank;
    g.world = alone ? g.n : ranks()->world;
    r->nccl_version = g.nccl->version;
    r->n_ranks = g.world;
    return measure_group(r, &g);
}

/* ---- all of it ---- */

/* The first rank's alone: together they would share the way to the host. */
static int measure_rates_in_turn(struct probe_result *r)
{
    const int status = ranks()->rank == 0 ? measure_rates(r) : 0;
    if (!ranks_all(status == 0))
        return status ? status : device_fail("the first rank could not measure rates");
    return ranks()->rank == 0 ? note_stage(r, "rates measured") : 0;
}

/* A context and what stands before it; every rank has its card, or none goes on. */
static int open_card(struct probe_result *r, struct device_facts *facts)
{
    struct probe_stage *before = &r->stages[r->n_stages++];
    snprintf(before->name, sizeof before->name, "before the context");
    if (device_nvml_used(ranks()->local, &before->nvml_bytes))
        before->nvml_bytes = 0;
    return device_open(facts, ranks()->local) || note_stage(r, "context") ? -1 : 0;
}

int probe_measure(struct probe_result *r, struct device_facts *facts, int quick)
{
    memset(r, 0, sizeof *r);
    const int status = open_card(r, facts);
    if (!ranks_all(status == 0))
        return status ? PROBE_FAILED_TOGETHER : PROBE_OTHERS_FAILED;
    r->gpus = device_count();
    if (measure_process(r) || measure_places(r) || (!quick && measure_rates_in_turn(r)) ||
        (!quick && measure_nccl(r)))
        return -1;
    k_gemm_close();
    return 0;
}
