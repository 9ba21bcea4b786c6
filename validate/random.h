/* SPDX-License-Identifier: MIT */
/* Counter-based random numbers: the same on host and device, in any order. */
#ifndef RANDOM_H
#define RANDOM_H

#include <stdint.h>

#ifdef __CUDACC__
#define RANDOM_FUNCTION __host__ __device__ static inline
#else
#define RANDOM_FUNCTION static inline
#endif

/** splitmix64 of the index-th number of a stream. */
RANDOM_FUNCTION uint64_t random_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15) + index * UINT64_C(0xD1B54A32D192ED03);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/** In [0, 1), 24 bits. */
RANDOM_FUNCTION float random_uniform(uint64_t seed, uint64_t index)
{
    return (float)(random_bits(seed, index) >> 40) * (1.0f / 16777216.0f);
}

#endif
