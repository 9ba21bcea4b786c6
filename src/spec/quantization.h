/* SPDX-License-Identifier: MIT */
/*
 * The quantization_config of a config.json: transformers loads such weights quantised without being
 * asked. bitsandbytes' nf4 with double quantisation is what `quantization: nf4` simulates, every
 * other kind is refused.
 */
#ifndef MP_QUANTIZATION_H
#define MP_QUANTIZATION_H

#include "spec/problems.h"
#include "spec/run.h"

/** Whether the model's file has one that is not null. */
bool mp_quantization_is_stored(const struct mp_model *model);

/**
 * Let the model's quantization_config decide what the run does not say; `quantization: none` in the
 * run passes over it. True when run->quantization was set from it. What is not simulated becomes a
 * problem.
 */
bool mp_quantization_apply_stored(struct mp_problems *problems, struct mp_run *run);

#endif
