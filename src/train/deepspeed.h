/* SPDX-License-Identifier: MIT */
/* DeepSpeed's engine: ZeRO stages 1 and 2. */
#ifndef MP_TRAIN_DEEPSPEED_H
#define MP_TRAIN_DEEPSPEED_H

#include "train/parallel.h"

struct mp_deepspeed;

/** deepspeed.initialize(): weights are flattened, this rank's masters made. */
struct mp_deepspeed *mp_deepspeed_wrap(struct mp_runtime *rt, const struct mp_run *run,
                                       struct mp_tensor **parameters, int n,
                                       struct mp_hooks *hooks);
/** engine(inputs) begins, and ends with out. */
void mp_deepspeed_before_forward(struct mp_runtime *rt, struct mp_deepspeed *z, bool boundary);
void mp_deepspeed_after_forward(struct mp_runtime *rt, struct mp_deepspeed *z, struct mp_outputs *out);
/** engine.backward(loss); boundary: engine.step() will update the weights. */
void mp_deepspeed_backward(struct mp_runtime *rt, struct mp_deepspeed *z, struct mp_tensor *loss,
                           bool boundary);
/** Elements of one rank's partition of the flat weights, under stages 1 and 2. */
int64_t mp_deepspeed_partition(struct mp_tensor *const *parameters, int n, int64_t world);
/** Under stages 1 and 2: the rank whose partition touches most, since it keeps whole gradients. */
int64_t mp_deepspeed_fullest_rank(struct mp_tensor *const *parameters, int n, int64_t world);

struct mp_zero3;
/** Stage 3. Backward is the loss's own, after it was divided; hooks do the rest. */
struct mp_zero3 *mp_zero3_wrap(struct mp_runtime *rt, const struct mp_run *run,
                               struct mp_tensor **parameters, int n, struct mp_hooks *hooks);
/** The model is called; boundary: with the last micro-batch before a step. */
void mp_zero3_before_forward(struct mp_runtime *rt, struct mp_zero3 *z, bool boundary);
void mp_zero3_step(struct mp_runtime *rt, struct mp_zero3 *z);

/** engine.step() at the boundary. */
void mp_deepspeed_step(struct mp_runtime *rt, struct mp_deepspeed *z);

#endif
