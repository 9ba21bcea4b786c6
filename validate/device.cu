/* SPDX-License-Identifier: MIT */
/* The card through the CUDA runtime, and what NVML says where it is installed. */
#include "device.h"

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int broken, opened;

static int check(cudaError_t status, const char *what)
{
    if (status == cudaSuccess)
        return 0;
    return device_fail("%s: %s (%s)", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

int device_broken(void)
{
    return broken;
}

/* ---- NVML: the few calls that are needed, found at run time ---- */

struct nvml_memory {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};
static void *nvml;

static void *symbol(const char *name)
{
    return nvml ? dlsym(nvml, name) : NULL;
}

static int open_nvml(void)
{
    typedef int init_call(void);
    if (nvml)
        return 0;
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    init_call *const init = (init_call *)symbol("nvmlInit_v2");
    if (init && init() == 0)
        return 0;
    nvml = NULL;
    return -1;
}

/* NVML counts all cards, CUDA those that it may show: the place on the bus is the same in both. */
static void *nvml_handle(int index)
{
    typedef int handle_call(const char *, void **);
    char place[32];
    void *device = NULL;
    handle_call *const get =
        open_nvml() ? NULL : (handle_call *)symbol("nvmlDeviceGetHandleByPciBusId_v2");
    if (!get || cudaDeviceGetPCIBusId(place, sizeof place, index) != cudaSuccess ||
        get(place, &device))
        return NULL;
    return device;
}

int device_nvml_used(int index, uint64_t *used_bytes)
{
    typedef int memory_call(void *, struct nvml_memory *);
    struct nvml_memory memory = {(unsigned int)(sizeof memory | 2u << 24), 0, 0, 0, 0};
    void *const device = nvml_handle(index);
    memory_call *const get = (memory_call *)symbol("nvmlDeviceGetMemoryInfo_v2");
    if (!device || !get || get(device, &memory))
        return -1;
    *used_bytes = memory.used;
    return 0;
}

static void read_release(char *release, size_t size)
{
    typedef int version_call(char *, unsigned int);
    version_call *const get =
        open_nvml() ? NULL : (version_call *)symbol("nvmlSystemGetDriverVersion");
    if (!get || get(release, (unsigned int)size))
        release[0] = '\0';
}

/* ---- the card ---- */

int device_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

static int explain_missing(cudaError_t status)
{
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    return device_missing((int)status, driver, CUDART_VERSION, cudaGetErrorString(status));
}

int device_open(struct device_facts *facts, int index)
{
    int n = 0;
    struct cudaDeviceProp properties;
    size_t free_bytes, total_bytes;
    memset(facts, 0, sizeof *facts);
    read_release(facts->driver_release, sizeof facts->driver_release);
    cudaError_t status = cudaGetDeviceCount(&n);
    if (status != cudaSuccess || n == 0)
        return explain_missing(status == cudaSuccess ? cudaErrorNoDevice : status);
    if (index >= n)
        return device_too_few(n);
    status = cudaSetDevice(index);
    if (status == cudaSuccess)
        status = cudaFree(NULL); /* the context, if choosing has not made it */
    if (status == cudaErrorMemoryAllocation)
        return device_fail("no room on the GPU for a context: another process fills the card; wait "
                           "for it or choose another card");
    if (check(status, "creating a context") ||
        check(cudaGetDeviceProperties(&properties, index), "reading the card's properties") ||
        check(cudaDriverGetVersion(&facts->driver), "reading the driver's version") ||
        check(cudaRuntimeGetVersion(&facts->runtime), "reading CUDA's version") ||
        check(cudaMemGetInfo(&free_bytes, &total_bytes), "reading the card's memory"))
        return -1;
    snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    facts->compute_capability = 10 * properties.major + properties.minor;
    facts->sms = properties.multiProcessorCount;
    facts->threads_per_sm = properties.maxThreadsPerMultiProcessor;
    facts->total_bytes = total_bytes;
    opened = 1;
    return 0;
}

void device_close(void)
{
    if (opened)
        (void)cudaDeviceSynchronize(); /* the context goes with the process */
}

uint64_t device_malloc(uint64_t bytes)
{
    void *p = NULL;
    const cudaError_t status = cudaMalloc(&p, bytes);
    if (status == cudaSuccess)
        return (uint64_t)(uintptr_t)p;
    (void)cudaGetLastError(); /* cleared: the caller may free and try again */
    if (status != cudaErrorMemoryAllocation)
        broken = check(status, "cudaMalloc");
    return 0;
}

void device_free(uint64_t address)
{
    if (check(cudaFree((void *)(uintptr_t)address), "cudaFree"))
        broken = -1;
}

int device_memory(uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t f, t;
    if (check(cudaMemGetInfo(&f, &t), "reading the card's memory"))
        return -1;
    *free_bytes = f;
    *total_bytes = t;
    return 0;
}

int device_memset(uint64_t address, int byte, uint64_t bytes)
{
    return check(cudaMemsetAsync((void *)(uintptr_t)address, byte, bytes), "cudaMemset");
}

int device_to_host(void *to, uint64_t from, uint64_t bytes)
{
    return check(cudaMemcpy(to, (void *)(uintptr_t)from, bytes, cudaMemcpyDeviceToHost),
                 "copying from the GPU");
}

int device_from_host(uint64_t to, const void *from, uint64_t bytes)
{
    return check(cudaMemcpy((void *)(uintptr_t)to, from, bytes, cudaMemcpyHostToDevice),
                 "copying to the GPU");
}

int device_wait(void)
{
    return check(cudaDeviceSynchronize(), "waiting for the GPU");
}
