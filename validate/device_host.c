/* SPDX-License-Identifier: MIT */
/* A stand-in for the card in tests without a GPU: the host's memory, with a capacity. */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "collective.h"
#include "kernels.h"
#include "probe.h"
#include "ranks.h"

enum { CAPACITY_MIB = 2048, CONTEXT_MIB = 64, MOST_SEGMENTS = 4096 };

static uint64_t used_bytes = (uint64_t)CONTEXT_MIB << 20;
static struct {
    uint64_t address, bytes;
} segments[MOST_SEGMENTS];

/* HOST_CARD: "none", "old-driver", or what another process has of the card in MiB. */
static int pretended(void)
{
    const char *const card = getenv("HOST_CARD");
    if (!card)
        return 0;
    if (strcmp(card, "none") == 0)
        return device_missing(100, 13000, 13000, "");
    if (strcmp(card, "old-driver") == 0)
        return device_missing(35, 12080, 13000, "");
    if (strcmp(card, "no-driver") == 0)
        return device_missing(35, 0, 13000, "");
    used_bytes += (uint64_t)strtoull(card, NULL, 10) << 20;
    return 0;
}

int device_open(struct device_facts *facts, int index)
{
    (void)index; /* one pretended card for each rank */
    memset(facts, 0, sizeof *facts);
    if (pretended())
        return -1;
    snprintf(facts->name, sizeof facts->name, "host");
    facts->compute_capability = 90;
    facts->sms = 1;
    facts->threads_per_sm = 2048;
    facts->total_bytes = (uint64_t)CAPACITY_MIB << 20;
    return 0;
}

void device_close(void)
{
}
int device_count(void)
{
    return 1;
}
int device_broken(void)
{
    return 0;
}

uint64_t device_malloc(uint64_t bytes)
{
    int i = 0;
    while (i < MOST_SEGMENTS && segments[i].address)
        i++;
    if (i == MOST_SEGMENTS || used_bytes + bytes > (uint64_t)CAPACITY_MIB << 20)
        return 0;
    void *p = NULL;
    if (posix_memalign(&p, 512, bytes))
        return 0;
    segments[i].address = (uint64_t)(uintptr_t)p;
    segments[i].bytes = bytes;
    used_bytes += bytes;
    return segments[i].address;
}

void device_free(uint64_t address)
{
    for (int i = 0; i < MOST_SEGMENTS; i++)
        if (segments[i].address == address) {
            used_bytes -= segments[i].bytes;
            segments[i].address = 0;
            free((void *)(uintptr_t)address);
            return;
        }
}

int device_memory(uint64_t *free_bytes, uint64_t *total_bytes)
{
    *total_bytes = (uint64_t)CAPACITY_MIB << 20;
    *free_bytes = *total_bytes - used_bytes;
    return 0;
}

int device_memset(uint64_t address, int byte, uint64_t bytes)
{
    memset((void *)(uintptr_t)address, byte, bytes);
    return 0;
}

int device_to_host(void *to, uint64_t from, uint64_t bytes)
{
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return 0;
}

int device_from_host(uint64_t to, const void *from, uint64_t bytes)
{
    memcpy((void *)(uintptr_t)to, from, bytes);
    return 0;
}

int device_wait(void)
{
    return 0;
}

int device_nvml_used(int index, uint64_t *bytes)
{
    (void)index;
    (void)bytes;
    return -1;
}

int k_warm(void)
{
    const uint64_t memory = device_malloc(UINT64_C(33) << 20);
    if (!memory)
        return device_fail("no room on the GPU for 33 MiB: another process fills the card; wait "
                           "for it or choose another card");
    device_free(memory);
    return k_load();
}
int k_gemm_open(void)
{
    return 0;
}
void k_gemm_close(void)
{
}

int k_gemm(const struct k_tensor *a, const struct k_tensor *b, const struct k_tensor *out, int add,
           int tf32, void *workspace, uint64_t workspace_bytes)
{
    (void)tf32;
    (void)workspace;
    (void)workspace_bytes;
    return k_gemm_plain(a, b, out, add);
}

/* ---- between ranks: elements as float64 on the wire, each in the order of its place ---- */

int collective_open(void)
{
    return 0;
}
int collective_close(void)
{
    return 0;
}

static int64_t elements(const struct k_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++)
        n *= t->shape[i];
    return n;
}

int collective_all_reduce(const struct k_tensor *t)
{
    const int64_t n = elements(t);
    const struct k_tensor out = {t->data, t->dtype, 1, {n}, {1}};
    const uint64_t size = mp_dtype_bytes((enum mp_dtype)t->dtype);
    double *const values = malloc((size_t)n * sizeof *values);
    float *const sums = malloc((size_t)n * sizeof *sums);
    if (!values || !sums) {
        free(values);
        free(sums);
        return device_fail("out of memory on the host");
    }
    for (int64_t i = 0; i < n; i++)
        values[i] = check_value((const unsigned char *)t->data + (uint64_t)i * size,
                                (enum mp_dtype)t->dtype);
    ranks_sum(values, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        sums[i] = (float)values[i];
    const struct k_tensor in = {sums, K_F32, 1, {n}, {1}};
    const int status = k_unary(K_COPY, &in, &out, 0);
    free(values);
    free(sums);
    return status;
}

int collective_broadcast(const struct k_tensor *t)
{
    ranks_first(t->data, (size_t)elements(t) * mp_dtype_bytes((enum mp_dtype)t->dtype));
    return 0;
}

int probe_measure(struct probe_result *result, struct device_facts *facts, int quick)
{
    (void)quick;
    memset(result, 0, sizeof *result);
    const int status =
        device_open(facts, ranks()->local) || device_fail("this build has no GPU to probe");
    return ranks_all(status == 0) || status ? PROBE_FAILED_TOGETHER : PROBE_OTHERS_FAILED;
}
