/* SPDX-License-Identifier: MIT */
/* Ranks that share the work. */
#ifndef MP_RUN_PARALLEL_H
#define MP_RUN_PARALLEL_H

#include "spec/run_reader.h"

/** One of data_parallel, world, gpus_per_node, collectives, ddp, fsdp, deepspeed. */
void mp_run_parallel_read(struct mp_run_reader *r, enum mp_run_key key,
                          const struct mp_value *value);
/** Joins the DeepSpeed file with the run, then checks ranks and hosts. */
void mp_run_parallel_resolve(struct mp_run_reader *r);
bool mp_run_parallel_is_deepspeed(enum mp_parallel_kind kind);
/** False with UNSUPPORTED for what is not simulated beside DeepSpeed. */
bool mp_run_parallel_is_simulated(const struct mp_run *run, struct memplan_error *err);

#endif
