/* SPDX-License-Identifier: MIT */
/*
 * transformers' TrainingArguments, as a JSON or YAML file or an object has them: those that memory
 * depends on. Other keys (paths, learning rates, logging) are read over, those that are not
 * simulated are told.
 */
#ifndef MP_TRAINING_ARGUMENTS_H
#define MP_TRAINING_ARGUMENTS_H

#include "spec/problems.h"
#include "spec/run.h"

/** Read them into *out and the run's own keys, as far as those were not given. value: the object.
 * */
void mp_training_arguments_apply(struct mp_problems *problems, const struct mp_value *value,
                                 struct mp_trainer_options *out, struct mp_run *run);

#endif
