/* SPDX-License-Identifier: MIT */
/*
 * DeepSpeed's configuration (ds_config.json), read as it is: what decides about memory, the rest is left to DeepSpeed.
 *
 * "auto" is for transformers to fill in: three sizes by the model's hidden size, the others as the run has them or by default. Switches
 * that change memory in a way that is not modelled are UNSUPPORTED.
 */
#ifndef MP_DEEPSPEED_H
#define MP_DEEPSPEED_H

#include "base/arena.h"
#include "base/error.h"
#include "base/value.h"

struct mp_deepspeed_options {
    int stage; /* 0 when no configuration was given */
    bool overlap_comm, contiguous_gradients, offload_optimizer, offload_param;
    bool memory_efficient_linear; /* stage 3: a function of DeepSpeed's own in place of F.linear */
    bool half_bf16, half_fp16; /* bf16.enabled, fp16.enabled */
    bool auto_half;            /* one of them is "auto" */
    bool torch_adam;           /* optimizer.params.torch_adam: else DeepSpeed's own fused kernel */
    bool has_optimizer;
    int64_t reduce_bucket_size, allgather_bucket_size, prefetch_bucket_size; /* elements */
    int64_t max_live_parameters, max_reuse_distance, persistence_threshold, sub_group_size;
    int64_t micro_batch, accumulate, train_batch; /* 0: not given; train_batch is over all ranks */
    bool auto_reduce_bucket, auto_prefetch_bucket, auto_persistence;
    double gradient_clipping;
};

/**
 * The text of a ds_config.json as JSON: DeepSpeed reads Hjson, so that files have comments and commas before a closing bracket. They
 * become spaces, in place, and lines keep their numbers.
 */
void mp_deepspeed_plain_json(char *text, size_t length);

/** Defaults of a stage. */
void mp_deepspeed_options_init(struct mp_deepspeed_options *options, int stage);
/** Sizes that are "auto", as transformers fills them in. */
void mp_deepspeed_options_fill(struct mp_deepspeed_options *options, int64_t hidden_size);
/** From a parsed configuration. INPUT with all problems, UNSUPPORTED for what is not modelled. */
enum memplan_status mp_deepspeed_options_read(struct mp_deepspeed_options *options,
                                              const char *origin, const struct mp_value *config,
                                              struct memplan_error *err);

#endif
