/* SPDX-License-Identifier: MIT */
/* DeepSpeed's engine: ZeRO stages 1 and 2. */
#ifndef MP_TRAIN_DEEPSPEED_H
#define MP_TRAIN_DEEPSPEED_H

#include "train/parallel.h"

struct mp_deepspeed;

/** deepspeed.initialize(): weights are flattened, this rank's masters made. */
struct mp_deepspeed *mp_deepspeed_wrap(struct mp_runtime *rt, const struct mp_run *run, struct mp_tensor **parameters, int n,
                                       struct mp_hooks *hooks);
/** engine.backward(loss); boundary: engine.step() will update the weights. */
void mp_deepspeed_backward(struct mp_runtime *rt, struct mp_deepspeed *z, struct mp_tensor *loss, bool boundary);
/** engine.step() at the boundary. */
void mp_deepspeed_step(struct mp_runtime *rt, struct mp_deepspeed *z);

#endif
