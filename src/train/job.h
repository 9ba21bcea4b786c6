/* SPDX-License-Identifier: MIT */
/*
 * A training job: build the model, then iterations of micro-batches, clipping, optimizer step, zero_grad.
 *
 * The loop is the one that was measured (validate/measure.py). Phases: model, data, then itI.mbM.fwd, itI.mbM.bwd, itI.clip,
 * itI.opt, itI.zero.
 */
#ifndef MP_TRAIN_JOB_H
#define MP_TRAIN_JOB_H

#include "arch/arch.h"
#include "shadow/program.h"
#include "spec/run.h"
#include "train/optimizer.h"
#include "train/parallel.h"
#include "train/trainer.h"

/** A job whose iterations are run one at a time. */
struct mp_job {
    struct mp_runtime rt;
    const struct mp_run *run;
    struct mp_net net;
    struct mp_parallel parallel;   /* its parameters are the model's when there is one rank only */
    struct mp_optimizer_instance optimizer;
    struct mp_grad_scaler scaler;
    struct mp_trainer trainer;     /* when the Trainer runs the loop */
    struct mp_inputs *data;        /* all micro-batches that are made; number n of the run uses n modulo n_data */
    int64_t n_data;
    struct mp_outputs out;
    struct mp_tensor *loss;        /* the loop's variable */
    struct mp_tensor **retained;   /* losses kept in a list */
    int n_retained, cap_retained;
    int64_t iteration;             /* number of the next one */
};

/** Ready a job that writes into program. The family's sizes are checked here: INPUT with every problem of the config. */
enum memplan_status mp_job_open(struct mp_job *job, const struct mp_run *run, struct mp_program *program, struct memplan_error *err);
/** Phases `model`, `wrap` (with data parallelism) and `data`. */
enum memplan_status mp_job_build(struct mp_job *job);
/** One optimizer step. */
enum memplan_status mp_job_step(struct mp_job *job);
/* A step in the program: events [first, end), storages made (first_id, end_id]. */
struct mp_step_events {
    uint32_t first, end, first_id, end_id;
};
/** A step that asks for what the last one did: its events are written again, with the step's storages moved on, without running the model. */
enum memplan_status mp_job_repeat_step(struct mp_job *job, const struct mp_step_events *last);
void mp_job_close(struct mp_job *job);

/** From this iteration on a step asks for what the one before did; INT64_MAX: never (lengths vary, losses are kept). */
int64_t mp_job_steady_from(const struct mp_run *run);

/** The rank that holds most: 0, or where parameters are spread whole, the one with most of them. */
enum memplan_status mp_job_fullest_rank(const struct mp_run *run, int64_t *rank, struct memplan_error *err);

/** keys[run->world]: ranks with the same key hold the same (ranks.c). */
enum memplan_status mp_job_rank_keys(const struct mp_run *run, uint64_t *keys, struct memplan_error *err);

/** Tokens of micro-batch n of the run, after padding. */
int64_t mp_job_seq(const struct mp_run *run, int64_t n);

#endif
