/* SPDX-License-Identifier: MIT */
/*
 * Measure the card: what a process costs step by step, where cudaMalloc puts segments, how fast the
 * card is.
 *
 * Rates: the median of repeated runs between two events, after warming up.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>

#include "device.h"
#include "kernels.h"

#include "probe.h"

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
    if (device_nvml_used(&stage->nvml_bytes))
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
};

static int timer_open(struct timer *t)
{
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
        if (check(cudaEventRecord(t->start), "timing") || call() ||
            check(cudaEventRecord(t->stop), "timing") ||
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
                        : device_fail("no room on the GPU for 2 GiB");
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
    static const int64_t sizes[] = {1024, 4096, 8192};
    const uint64_t each = UINT64_C(8192) * 8192 * 4, memory = device_malloc(3 * each + (32 << 20));
    int status = memory ? 0 : device_fail("no room on the GPU for 800 MiB");
    for (size_t i = 0; i < 4 && !status; i++)
        for (size_t s = 0; s < 3 && !status; s++) {
            char *const data = (char *)(uintptr_t)memory;
            const int64_t n = sizes[s];
            const struct k_tensor a = matrix(data, types[i].dtype, n, n),
                                  b = matrix(data + each, types[i].dtype, n, n),
                                  c = matrix(data + 2 * each, types[i].dtype, n, n);
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
            snprintf(name, sizeof name, "product %s %lld, operations", types[i].name, (long long)n);
            if (!status)
                add_rate(r, name, 2.0 * (double)n * (double)n * (double)n, ms);
        }
    if (memory)
        device_free(memory);
    return status;
}

/* This program's own kernel: what `train` runs, not what a framework would. */
static int measure_attention(struct probe_result *r, struct timer *t)
{
    enum { BATCH = 4, HEADS = 16, SEQ = 1024, DIM = 64 };
    const int64_t count = (int64_t)BATCH * HEADS * SEQ * DIM;
    const uint64_t memory =
        device_malloc((uint64_t)count * 2 * 5 + (uint64_t)BATCH * HEADS * SEQ * 4);
    const struct k_attention rule = {0.125, 0, 1, 0};
    struct k_tensor part[4];
    double ms = 0;
    int status = memory ? 0 : device_fail("no room on the GPU for 64 MiB");
    for (int i = 0; i < 4; i++) {
        const struct k_tensor p = {(char *)(uintptr_t)memory + (int64_t)i * count * 2,
                                   K_BF16,
                                   4,
                                   {BATCH, HEADS, SEQ, DIM},
                                   {(int64_t)HEADS * SEQ * DIM, (int64_t)SEQ * DIM, DIM, 1}};
        part[i] = p;
        if (!status)
            status = k_normal(&part[i], 1, (uint64_t)i);
    }
    const struct k_tensor lse = {(char *)(uintptr_t)memory + 4 * count * 2,
                                 K_F32,
                                 3,
                                 {BATCH, HEADS, SEQ},
                                 {(int64_t)HEADS * SEQ, SEQ, 1}};
    if (!status)
        status = time_median(
            t, 5,
            [&] { return k_attention(&rule, &part[0], &part[1], &part[2], NULL, &part[3], &lse); },
            &ms);
    if (!status)
        add_rate(r, "attention of this program, bf16, causal, 4x16x1024x64, operations",
                 2.0 * (double)count * SEQ, ms);
    if (memory)
        device_free(memory);
    return status;
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

struct nccl {
    void *library;
    int (*version)(int *);
    int (*init_all)(void **, int, const int *);
    int (*all_reduce)(const void *, void *, size_t, int, int, void *, cudaStream_t);
    int (*destroy)(void *);
    int (*group_start)(void);
    int (*group_end)(void);
    const char *(*text)(int);
};

static bool open_nccl(struct nccl *n)
{
    n->library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!n->library)
        return false;
    n->version = (int (*)(int *))dlsym(n->library, "ncclGetVersion");
    n->init_all = (int (*)(void **, int, const int *))dlsym(n->library, "ncclCommInitAll");
    n->all_reduce = (int (*)(const void *, void *, size_t, int, int, void *, cudaStream_t))dlsym(
        n->library, "ncclAllReduce");
    n->destroy = (int (*)(void *))dlsym(n->library, "ncclCommDestroy");
    n->group_start = (int (*)(void))dlsym(n->library, "ncclGroupStart");
    n->group_end = (int (*)(void))dlsym(n->library, "ncclGroupEnd");
    n->text = (const char *(*)(int))dlsym(n->library, "ncclGetErrorString");
    return n->version && n->init_all && n->all_reduce && n->destroy && n->group_start &&
           n->group_end && n->text;
}

static int check_nccl(const struct nccl *n, int status, const char *what)
{
    return status == 0 ? 0 : device_fail("NCCL: %s: %s", what, n->text(status));
}

enum { MOST_GPUS = 8, NCCL_FLOAT = 7, NCCL_SUM = 0 };

static int reduce(const struct nccl *n, int gpus, void *const *comms, void *const *buffers,
                  cudaStream_t *streams, size_t count)
{
    int status = check_nccl(n, n->group_start(), "starting a group");
    for (int i = 0; i < gpus && !status; i++)
        status = check_nccl(n,
                            n->all_reduce(buffers[i], buffers[i], count, NCCL_FLOAT, NCCL_SUM,
                                          comms[i], streams[i]),
                            "an all-reduce");
    return n->group_end() || status ? -1 : 0;
}

static int measure_communicator(struct probe_result *r, const struct nccl *n, int gpus,
                                const char *label)
{
    enum { BYTES = 64 << 20 };
    void *comms[MOST_GPUS] = {}, *buffers[MOST_GPUS] = {};
    cudaStream_t streams[MOST_GPUS] = {};
    int devices[MOST_GPUS], status = 0;
    char name[48];
    for (int i = 0; i < gpus && !status; i++) {
        devices[i] = i;
        status = check(cudaSetDevice(i), "choosing a GPU") ||
                 check(cudaMalloc(&buffers[i], BYTES), "64 MiB for an all-reduce") ||
                 check(cudaMemset(buffers[i], 0, BYTES), "64 MiB for an all-reduce") ||
                 check(cudaStreamCreate(&streams[i]), "creating a stream");
    }
    (void)cudaSetDevice(0);
    snprintf(name, sizeof name, "NCCL %s: 64 MiB buffer", label);
    if (!status)
        status = note_stage(r, name) ||
                         check_nccl(n, n->init_all(comms, gpus, devices), "making a communicator")
                     ? -1
                     : 0;
    snprintf(name, sizeof name, "NCCL %s: communicator", label);
    if (!status)
        status = note_stage(r, name) || reduce(n, gpus, comms, buffers, streams, 1024) ? -1 : 0;
    snprintf(name, sizeof name, "NCCL %s: all-reduce of 4 KiB", label);
    if (!status)
        status =
            note_stage(r, name) || reduce(n, gpus, comms, buffers, streams, BYTES / sizeof(float))
                ? -1
                : 0;
    snprintf(name, sizeof name, "NCCL %s: all-reduce of 64 MiB", label);
    if (!status)
        status = note_stage(r, name);
    for (int i = 0; i < gpus; i++) {
        (void)cudaSetDevice(i);
        (void)cudaDeviceSynchronize();
        if (comms[i])
            (void)n->destroy(comms[i]);
        if (streams[i])
            (void)cudaStreamDestroy(streams[i]);
        (void)cudaFree(buffers[i]);
    }
    (void)cudaSetDevice(0);
    snprintf(name, sizeof name, "NCCL %s: all given back", label);
    return status ? status : note_stage(r, name);
}

static int measure_nccl(struct probe_result *r)
{
    struct nccl n = {};
    if (!open_nccl(&n)) {
        snprintf(r->nccl_note, sizeof r->nccl_note, "libnccl.so.2 was not found");
        return 0;
    }
    if (check_nccl(&n, n.version(&r->nccl_version), "reading its version") ||
        measure_communicator(r, &n, 1, "1 rank"))
        return -1;
    return r->gpus > 1 ? measure_communicator(r, &n, std::min(r->gpus, (int)MOST_GPUS), "all ranks")
                       : 0;
}

/* ---- all of it ---- */

int probe_measure(struct probe_result *r, struct device_facts *facts, int quick)
{
    memset(r, 0, sizeof *r);
    struct probe_stage *before = &r->stages[r->n_stages++];
    snprintf(before->name, sizeof before->name, "before the context");
    if (device_nvml_used(&before->nvml_bytes))
        before->nvml_bytes = 0;
    if (device_open(facts) || note_stage(r, "context"))
        return -1;
    r->gpus = device_count();
    if (measure_process(r) || measure_places(r))
        return -1;
    if (!quick && (measure_rates(r) || note_stage(r, "rates measured") || measure_nccl(r)))
        return -1;
    k_gemm_close();
    return 0;
}
