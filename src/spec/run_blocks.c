/* SPDX-License-Identifier: MIT */
/*
 * What is done to single blocks: all or parts of them are recomputed (checkpoint), or their saved
 * tensors wait on the host (offload).
 */
#include "spec/run_blocks.h"

#include "spec/run_parallel.h"

void mp_run_blocks_read_checkpoint(struct mp_run_reader *r, const struct mp_value *value)
{
    static const char *const parts[] = {"attention", "mlp", NULL}, *const none[] = {NULL};
    struct mp_run *const run = r->run;
    bool memory = mp_layer_set_read(&r->problems, r->arena, "checkpoint", parts, value,
                                    &run->checkpoint_layers);
    for (int part = 0; part < MP_PARTS; part++) {
        const struct mp_value *const chosen = mp_value_get(value, parts[part]);
        char name[32];
        (void)snprintf(name, sizeof name, "checkpoint.%s", parts[part]);
        if (chosen != NULL)
            memory &= mp_layer_set_read(&r->problems, r->arena, name, none, chosen,
                                        &run->recompute[part]);
    }
    const bool blocks = mp_value_get(value, "layers") || mp_value_get(value, "every") ||
                        mp_value_get(value, "first");
    run->checkpoint = blocks ? MP_CHECKPOINT_LAYERS : MP_CHECKPOINT_NONE;
    r->no_memory |= !memory;
}

void mp_run_blocks_read_offload(struct mp_run_reader *r, const struct mp_value *value)
{
    static const char *const none[] = {NULL};
    if (value->kind == MP_STRING && strcmp(value->as.string.text, "none") == 0)
        return;
    r->no_memory |=
        !mp_layer_set_read(&r->problems, r->arena, "offload", none, value, &r->run->offload);
}

bool mp_run_treats_blocks(const struct mp_run *run)
{
    return run->recompute[MP_PART_ATTENTION].n > 0 || run->recompute[MP_PART_MLP].n > 0 ||
           run->offload.n > 0;
}

bool mp_run_may_treat_blocks(const struct mp_run *run)
{
    return run->trainer == NULL && !mp_run_parallel_is_deepspeed(run->parallel) &&
           run->quantization == MP_QUANTIZATION_NONE && !run->use_cache;
}

/* A block is recomputed as a whole or in parts, or its tensors go to the host. */
static void check_one_way(struct mp_run_reader *r)
{
    const struct mp_run *const run = r->run;
    for (int part = 0; part < MP_PARTS; part++) {
        const int both = mp_layer_set_common(&run->checkpoint_layers, &run->recompute[part]);
        if (both >= 0)
            mp_problems_add(&r->problems, NULL, "checkpoint",
                            "block %d is recomputed as a whole; take it out of %s", both,
                            mp_block_part_text((enum mp_block_part)part));
    }
    const struct mp_layer_set *const recomputed[] = {
        &run->checkpoint_layers, &run->recompute[MP_PART_ATTENTION], &run->recompute[MP_PART_MLP]};
    for (size_t i = 0; i < MP_ARRAY_LEN(recomputed); i++) {
        const int both = mp_layer_set_common(&run->offload, recomputed[i]);
        if (both >= 0) {
            mp_problems_add(&r->problems, NULL, "offload",
                            "block %d is in checkpoint too; take it out of one of them", both);
            return;
        }
    }
    if (run->offload.n > 0 &&
        (run->checkpoint == MP_CHECKPOINT_FULL || run->checkpoint == MP_CHECKPOINT_FULL_REENTRANT))
        mp_problems_add(
            &r->problems, NULL, "offload",
            "with checkpoint: %s every block is recomputed; name single ones with layers",
            mp_checkpoint_text(run->checkpoint));
}

void mp_run_blocks_resolve(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    const int64_t layers = mp_model_layers(run->model);
    const char *const model = run->model->name;
    const struct mp_value *at = mp_reader_locate(r, MP_KEY_CHECKPOINT);
    bool memory = mp_layer_set_resolve(&r->problems, r->arena, at, "checkpoint", model, layers,
                                       &run->checkpoint_layers);
    memory &= mp_layer_set_resolve(&r->problems, r->arena, at, "checkpoint.attention", model,
                                   layers, &run->recompute[MP_PART_ATTENTION]);
    memory &= mp_layer_set_resolve(&r->problems, r->arena, at, "checkpoint.mlp", model, layers,
                                   &run->recompute[MP_PART_MLP]);
    at = mp_reader_locate(r, MP_KEY_OFFLOAD);
    memory &=
        mp_layer_set_resolve(&r->problems, r->arena, at, "offload", model, layers, &run->offload);
    r->no_memory |= !memory;
    if (memory)
        check_one_way(r);
}

void mp_run_blocks_check(struct mp_run_reader *r)
{
    const struct mp_run *const run = r->run;
    const char *const key = run->offload.n > 0 ? "offload" : "checkpoint";
    if (!mp_run_treats_blocks(run))
        return;
    if (run->trainer != NULL)
        mp_problems_add(
            &r->problems, NULL, key,
            "parts of blocks and host copies are not supported with framework hf-trainer");
    if (mp_run_parallel_is_deepspeed(run->parallel))
        mp_problems_add(&r->problems, NULL, key,
                        "parts of blocks and host copies are not supported with data_parallel: %s",
                        mp_parallel_text(run->parallel));
    if (run->quantization != MP_QUANTIZATION_NONE)
        mp_problems_add(&r->problems, NULL, key,
                        "parts of blocks and host copies are not supported with quantization: %s",
                        mp_quantization_text(run->quantization));
    if (run->use_cache)
        mp_problems_add(
            &r->problems, NULL, "use_cache",
            "a second run of attention would fill the cache twice; leave it out with %s", key);
}
