/* SPDX-License-Identifier: MIT */
/* Runs for tests: a spec as YAML, and models of every family that are small enough to try often. */
#ifndef MP_TEST_SMALL_RUN_H
#define MP_TEST_SMALL_RUN_H

#include "plan/evaluate.h"

#define SMALL_FAMILIES 6

/** "{model: {model_type: gpt2, ...}, gpu: H200-141G, seq: 32, " for family i; the caller closes it. */
const char *small_run_head(size_t family);

/** The run of a spec in the arena; fails the test when there is none. */
const struct mp_run *small_run(struct mp_arena *arena, const char *yaml);
/** A small model of a family with more keys: "batch: 2, seq: 16". */
const struct mp_run *small_family_run(struct mp_arena *arena, size_t family, const char *keys);
/** Evaluate or fail the test. */
void small_evaluate(const struct mp_run *run, bool keep_tags, struct mp_evaluation *e);

#endif
