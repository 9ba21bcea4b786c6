/* SPDX-License-Identifier: MIT */
/*
 * What probe.cu measures and probe.c writes. Bytes are differences of free memory by cudaMemGetInfo
 * unless they say NVML.
 */
#ifndef VALIDATE_PROBE_H
#define VALIDATE_PROBE_H

#include <stdint.h>

#include "device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PROBE_MAX_STAGES 40
#define PROBE_MAX_PLACES 48
#define PROBE_MAX_RATES  48

/* A step of a process's life, and what is gone of the card after it. */
struct probe_stage {
    char name[48];
    uint64_t used_bytes; /* total minus free */
    uint64_t nvml_bytes; /* of the card, by NVML; 0: unknown */
    uint64_t least_bytes,
        most_bytes; /* over the cards of all ranks; 0: only this one was looked at */
};

struct probe_place {
    uint64_t bytes, address, taken_bytes;
};

struct probe_rate {
    char name[80];
    double per_second; /* operations or bytes */
    double milliseconds;
};

struct probe_result {
    struct probe_stage stages[PROBE_MAX_STAGES];
    int n_stages;
    struct probe_place places[PROBE_MAX_PLACES];
    int n_places;
    struct probe_rate rates[PROBE_MAX_RATES];
    int n_rates;
    int nccl_version;    /* 22809 for 2.28.9; 0: not installed */
    char nccl_note[160]; /* why it was not measured */
    int gpus;            /* that CUDA shows this process */
    int n_ranks;         /* of the communicator that was measured */
};

/*
 * No rank has gone on, this one for its own reason or for another's: nobody waits for this one. Any
 * other failure may leave others waiting.
 */
enum { PROBE_FAILED_TOGETHER = -2, PROBE_OTHERS_FAILED = -3 };
/** Everything in order, in a process that has not touched the card. 0, -1 or one of these. */
int probe_measure(struct probe_result *result, struct device_facts *facts, int quick);

#ifdef __cplusplus
}
#endif

#endif
