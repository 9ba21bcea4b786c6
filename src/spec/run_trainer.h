/* SPDX-License-Identifier: MIT */
/* framework hf-trainer beside the keys of a run. */
#ifndef MP_RUN_TRAINER_H
#define MP_RUN_TRAINER_H

#include "spec/run_reader.h"

/** training_arguments: an object, or the file that has it. */
void mp_run_trainer_read(struct mp_run_reader *r, const struct mp_value *value);
/** framework hf-trainer: the arguments fill in what the run does not say. */
void mp_run_trainer_apply(struct mp_run_reader *r);

#endif
