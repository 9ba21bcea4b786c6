/* SPDX-License-Identifier: MIT */
/*
 * The card, behind plain C: device.cu speaks to CUDA, device_host.c stands in for it in tests
 * without a GPU.
 *
 * Functions return 0, or -1 with a text in device_error(): what was tried, what the driver said,
 * the way out. One stream.
 */
#ifndef DEVICE_H
#define DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct device_facts {
    char name[256];
    int compute_capability; /* 90 for 9.0 */
    int sms, threads_per_sm;
    int driver, runtime;     /* 13000 for 13.0 */
    char driver_release[80]; /* "580.159.04"; "" when unknown */
    uint64_t total_bytes;    /* by cudaMemGetInfo */
};

const char *device_error(void);
/** Fill in the error text; returns -1. For the other files of this folder. */
int device_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/**
 * The texts of a card that cannot be used. status: a cudaError_t, text: its words; driver and
 * built_with: CUDA releases, 13000 for 13.0, driver 0 where there is none.
 */
int device_missing(int status, int driver, int built_with, const char *text);
int device_too_few(int count);

/** Card number `index` of those that CUDA shows: creates the context. */
int device_open(struct device_facts *facts, int index);
void device_close(void);
int device_count(void);

/** cudaMalloc; 0: no memory, which is no error. Any other failure ends up in device_broken(). */
uint64_t device_malloc(uint64_t bytes);
void device_free(uint64_t address);
/** A failure that a callback could not report; 0: none. */
int device_broken(void);
int device_memory(uint64_t *free_bytes, uint64_t *total_bytes);

int device_memset(uint64_t address, int byte, uint64_t bytes);
int device_to_host(void *to, uint64_t from, uint64_t bytes);
int device_from_host(uint64_t to, const void *from, uint64_t bytes);
/** Wait for everything queued. */
int device_wait(void);

/** What NVML says of card number `index`, also before any context. -1: no NVML. */
int device_nvml_used(int index, uint64_t *used_bytes);

#ifdef __cplusplus
}
#endif

#endif
