/* SPDX-License-Identifier: MIT */
/* The runs that labelled logs were recorded from: their specs, and their loop.
 */
#ifndef MP_TEST_LABELLED_RUN_H
#define MP_TEST_LABELLED_RUN_H

#include "shadow/program.h"
#include "spec/run.h"

/** The run that a log's first line describes; NULL with *err. */
const struct mp_run *labelled_run(struct mp_arena *arena, const struct mp_value *config,
                                  struct memplan_error *err);
/**
 * Two iterations, as recorded: the loss is taken outside autocast and not divided, gradients are
 * always clipped. With training arguments: three steps of the Trainer.
 */
enum memplan_status labelled_loop(const struct mp_run *run, struct mp_program *program,
                                  struct memplan_error *err);

#endif
