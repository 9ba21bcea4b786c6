/* SPDX-License-Identifier: MIT */
/*
 * What a process asks of the GPU's kernel module, in order, beside the segments of its caching
 * allocator: every piece of address space with its address. A library for LD_PRELOAD, by
 * driver_log.py; the file is named by DRIVER_LOG.
 *
 *     range ADDRESS BYTES         address space is taken for one piece of memory (UVM_CREATE_EXTERNAL_RANGE)
 *     free ADDRESS BYTES          and given back (UVM_FREE)
 *     memory CLASS BYTES          the memory that goes there: 40 of the card, 3e of the host
 *     pinned ADDRESS BYTES        memory of the host, likewise
 *     cudaMalloc ADDRESS BYTES    by the caching allocator: the range before it
 *     cudaFree ADDRESS
 *     mark NAME                   a phase ends
 *
 * Numbers are hexadecimal but for BYTES of cudaMalloc. Numbers and structures of requests: NVIDIA's
 * open-gpu-kernel-modules 580, uvm_ioctl.h, nv-ioctl-numbers.h, nvos.h.
 *
 *     gcc -O1 -shared -fPIC -o driver_log.so driver_log.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UVM_FREE = 34, UVM_CREATE_EXTERNAL_RANGE = 73 };
enum { RM_ALLOC_MEMORY = 0x27, RM_ALLOC = 0x2b };
enum { CLASS_SYSTEM = 0x3e, CLASS_LOCAL = 0x40 };
enum { SIZE_WORD = 8 }; /* of NV_MEMORY_ALLOCATION_PARAMS */

static FILE *out;
static pid_t owner; /* whose file it is: processes are forked with this library in them */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
    const char *const path = getenv("DRIVER_LOG");
    va_list list;
    if (!path)
        return;
    va_start(list, format);
    pthread_mutex_lock(&lock);
    if (!out || owner != getpid()) {
        out = fopen(path, "a");
        owner = getpid();
    }
    if (out) {
        vfprintf(out, format, list);
        fflush(out); /* the process may end without asking */
    }
    pthread_mutex_unlock(&lock);
    va_end(list);
}

/* The function that this library stands before: PyTorch loads its libraries late, and not all of
 * them for everybody. */
static void *next(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (!function) {
        void *const cudart = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
        function = cudart ? dlsym(cudart, name) : NULL;
    }
    if (!function) {
        fprintf(stderr, "driver_log: no %s\n", name);
        abort();
    }
    return function;
}

void driver_log_mark(const char *name)
{
    say("mark %s\n", name);
}

/* ---- the kernel module ---- */

static int is_uvm(int fd)
{
    char link[48], name[64] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, name, sizeof name - 1);
    name[n > 0 ? n : 0] = 0;
    return strstr(name, "nvidia-uvm") != NULL;
}

static void note_uvm(unsigned long request, const uint64_t *argument)
{
    if (request == UVM_CREATE_EXTERNAL_RANGE)
        say("range %llx %llx\n", (unsigned long long)argument[0], (unsigned long long)argument[1]);
    else if (request == UVM_FREE)
        say("free %llx %llx\n", (unsigned long long)argument[0], (unsigned long long)argument[1]);
}

/* NVOS02_PARAMETERS, NVOS64_PARAMETERS as they were before the call */
static void note_rm(unsigned number, const uint64_t *argument)
{
    if (number == RM_ALLOC_MEMORY) {
        say("pinned %llx %llx\n", (unsigned long long)argument[3],
            (unsigned long long)argument[4] + 1);
        return;
    }
    const uint32_t class = ((const uint32_t *)argument)[3];
    const uint64_t *const parameters = (const uint64_t *)(uintptr_t)argument[2];
    if (parameters && (class == CLASS_LOCAL || class == CLASS_SYSTEM))
        say("memory %x %llx\n", class, (unsigned long long)parameters[SIZE_WORD]);
}

int ioctl(int fd, unsigned long request, ...)
{
    static int (*real)(int, unsigned long, void *);
    va_list list;
    va_start(list, request);
    void *const argument = va_arg(list, void *);
    va_end(list);
    if (!real)
        real = (int (*)(int, unsigned long, void *))next("ioctl");
    const unsigned number = request & 0xff;
    const int is_rm = (request >> 8 & 0xff) == 'F' && request > 0xffff;
    if (is_rm && argument && (number == RM_ALLOC || number == RM_ALLOC_MEMORY))
        note_rm(number, argument);
    const int result = real(fd, request, argument);
    if (request < 0x1000 && argument && getenv("DRIVER_LOG") && is_uvm(fd))
        note_uvm(request, argument);
    return result;
}

/* ---- the caching allocator ---- */

int cudaMalloc(void **address, size_t bytes)
{
    static int (*real)(void **, size_t);
    if (!real)
        real = (int (*)(void **, size_t))next("cudaMalloc");
    const int result = real(address, bytes);
    if (result == 0)
        say("cudaMalloc %llx %zu\n", (unsigned long long)(uintptr_t)*address, bytes);
    return result;
}

int cudaFree(void *address)
{
    static int (*real)(void *);
    if (!real)
        real = (int (*)(void *))next("cudaFree");
    say("cudaFree %llx\n", (unsigned long long)(uintptr_t)address);
    return real(address);
}
