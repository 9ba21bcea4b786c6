/* SPDX-License-Identifier: MIT */
/*
 * Run specs: from raw values to a run.
 *
 *     file, flags,           key ->         here                run_text.c
 *     "run" of a line ─────> value ──────────────────> run ────────────────> words, JSON
 *                run_source.c                                   run_json.c
 *
 * A value is read twice, by the same reader: into a scratch run when it comes in, so that all
 * problems of a file stand in one message, and into the true run here. Who uses whom:
 *
 *     run_keys <- run_reader <- run_{lengths,blocks,parallel,adapters,trainer} <- run_value <- run_source
 *                                                                              <- run_checks <- run
 */
#include "spec/run.h"

#include "spec/run_blocks.h"
#include "spec/run_checks.h"
#include "spec/run_lengths.h"
#include "spec/run_parallel.h"
#include "spec/run_trainer.h"
#include "spec/run_value.h"

static void set_defaults(struct mp_run *run)
{
    run->batch = 1;
    run->accumulate = 1;
    run->expert_imbalance = 1.0;
    run->precision = MP_PRECISION_AMP_BF16;
    run->allocator_conf = "";
    run->framework_value = "hf";
    run->world = 1;
    run->fsdp.replicas = 1;
}

static bool is_same(const char *a, const char *b)
{
    return a != NULL && b != NULL && strcmp(a, b) == 0;
}

/* Model, GPU and profile from their files, or from the run that went before. */
static bool read_parts(const struct mp_run_source *source, struct mp_run *run,
                       struct memplan_error *err)
{
    const struct mp_run *const like = source->like;
    const struct mp_value *const model = run->model_value;
    struct mp_arena *const arena = source->arena;
    if (model->kind == MP_OBJECT) {
        const char *const origin =
            mp_arena_printf(arena, "%s: model", source->origins[MP_KEY_MODEL]);
        if (origin == NULL) {
            (void)mp_reader_no_memory(err);
            return false;
        }
        run->model = mp_model_parse(arena, "model", origin, model, err);
    } else if (like != NULL && like->model_value->kind == MP_STRING &&
               is_same(like->model_value->as.string.text, model->as.string.text)) {
        run->model = like->model;
    } else {
        run->model = mp_model_read(arena, model->as.string.text, err);
    }
    if (run->model == NULL)
        return false;
    run->gpu = like != NULL && is_same(like->gpu_value, run->gpu_value)
                   ? like->gpu
                   : mp_gpu_read(arena, run->gpu_value, err);
    if (run->gpu == NULL)
        return false;
    run->profile = like != NULL && is_same(like->framework_value, run->framework_value)
                       ? like->profile
                       : mp_profile_read(arena, run->framework_value, err);
    return run->profile != NULL;
}

static void read_all(struct mp_run_reader *r)
{
    const struct mp_run_source *const source = r->source;
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        if (source->values[key] == NULL)
            continue;
        if (r->problems.n == 0)
            r->problems.origin = source->origins[key];
        mp_run_value_read(r, (enum mp_run_key)key, source->values[key]);
        r->run->given |= UINT64_C(1) << key;
    }
    if (r->problems.n == 0)
        r->problems.origin = NULL;
    if (source->values[MP_KEY_MODEL] == NULL)
        mp_problems_add(
            &r->problems, NULL, "model",
            "missing; name one of 'memplan list models' or give the path of a config.json");
    if (source->values[MP_KEY_GPU] == NULL)
        mp_problems_add(&r->problems, NULL, "gpu",
                        "missing; name one of 'memplan list gpus', a GPU file, or auto");
}

/* Defaults that depend on model and GPU, then the checks that need both. */
static void complete(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    mp_run_trainer_apply(r);
    if (run->trainer == NULL && !mp_run_is_given(run, MP_KEY_PRECISION) && !run->gpu->bf16)
        run->precision = MP_PRECISION_AMP_FP16;
    mp_run_lengths_resolve(r);
    mp_run_blocks_resolve(r);
    mp_run_parallel_resolve(r);
    mp_run_check(r);
}

const struct mp_run *mp_run_resolve(const struct mp_run_source *source, struct memplan_error *err)
{
    struct mp_run *const run = mp_arena_alloc(source->arena, sizeof *run);
    const char **const warnings =
        mp_arena_calloc(source->arena, MP_RUN_WARNINGS_MAX, sizeof *warnings);
    struct mp_run_reader r = {.arena = source->arena, .source = source, .run = run};
    if (run == NULL || warnings == NULL) {
        (void)mp_reader_no_memory(err);
        return NULL;
    }
    set_defaults(run);
    run->warnings = warnings;
    run->max_batch = source->max_batch;
    mp_problems_init(&r.problems, NULL, err);
    r.problems.origin = "";
    read_all(&r);
    if (r.problems.n > 0)
        return NULL;
    if (!read_parts(source, run, err))
        return NULL;
    complete(&r);
    if (r.no_memory)
        (void)mp_reader_no_memory(err);
    return r.no_memory || r.problems.n > 0 || !mp_run_parallel_is_simulated(run, err) ? NULL : run;
}
