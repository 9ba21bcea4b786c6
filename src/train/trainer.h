/* SPDX-License-Identifier: MIT */
/*
 * transformers' Trainer on one GPU, after Trainer.__init__ has moved the model there: what its loop does beside forward,
 * backward and step. Phases: itI.mbM.fwd, itI.mbM.bwd, itI.clip, itI.opt, itI.zero, and itI.eval where it evaluates.
 */
#ifndef MP_TRAIN_TRAINER_H
#define MP_TRAIN_TRAINER_H

#include "arch/arch.h"
#include "train/optimizer.h"

struct mp_trainer {
    struct mp_net *net;
    const struct mp_run *run;
    struct mp_optimizer_instance
        groups[2]; /* with weight decay (matrices), without (biases, norms) */
    struct mp_grad_scaler scaler;
    struct mp_tensor *running_loss; /* tr_loss */

    /* variables of the loop, owned; all lived through from one step to the next */
    struct mp_inputs *batches; /* batch_samples */
    struct mp_inputs last;     /* the loop variable `inputs` */
    struct mp_tensor *n_items, *step_loss, *grad_norm;
    int64_t iteration;
};

/** Trainer.train() begins. The net is built. */
void mp_trainer_begin(struct mp_runtime *rt, struct mp_trainer *t, struct mp_net *net);
/** One optimizer step, with the evaluation that follows it. */
void mp_trainer_step(struct mp_runtime *rt, struct mp_trainer *t);
/** The loop's variables die. */
void mp_trainer_end(struct mp_runtime *rt, struct mp_trainer *t);
/** Evaluation comes after so many steps; 0: never. Where no number of iterations is given, the second step shows it already. */
int64_t mp_trainer_eval_period(const struct mp_run *run);

#endif
