/* SPDX-License-Identifier: MIT */
/* A run as the JSON object that mp_run_source_object() reads back to the same run. */
#include "spec/run.h"

#include "spec/quantization.h"

static void write_model(const struct mp_run *run, struct mp_json_writer *w)
{
    if (run->model_value != NULL && run->model_value->kind == MP_STRING)
        mp_json_string(w, "model", run->model_value->as.string.text);
    else
        mp_json_value(w, "model", run->model->config);
}

static void write_checkpoint(const struct mp_run *run, struct mp_json_writer *w)
{
    const bool parts = run->recompute[MP_PART_ATTENTION].n > 0 || run->recompute[MP_PART_MLP].n > 0;
    if (run->checkpoint != MP_CHECKPOINT_LAYERS && !parts) {
        mp_json_string(w, "checkpoint", mp_checkpoint_text(run->checkpoint));
    } else {
        mp_json_object(w, "checkpoint");
        if (run->checkpoint == MP_CHECKPOINT_LAYERS)
            mp_layer_set_write_json(&run->checkpoint_layers, w, "layers");
        for (int part = 0; part < MP_PARTS; part++)
            if (run->recompute[part].n > 0)
                mp_layer_set_write_json(&run->recompute[part], w,
                                        mp_block_part_text((enum mp_block_part)part));
        mp_json_end_object(w);
    }
    if (run->offload.n > 0)
        mp_layer_set_write_json(&run->offload, w, "offload");
}

static void write_lengths(const struct mp_run *run, struct mp_json_writer *w)
{
    if (run->n_seq_lengths == 0) {
        mp_json_int(w, "seq", run->seq);
    } else {
        mp_json_array(w, "seq_lengths");
        for (size_t i = 0; i < run->n_seq_lengths; i++)
            mp_json_int(w, NULL, run->seq_lengths[i]);
        mp_json_end_array(w);
    }
    if (run->pad_to > 0)
        mp_json_int(w, "pad_to", run->pad_to);
}

static void write_ddp(const struct mp_ddp_options *ddp, struct mp_json_writer *w)
{
    mp_json_object(w, "ddp");
    if (ddp->bucket_cap_mb > 0)
        mp_json_double(w, "bucket_cap_mb", ddp->bucket_cap_mb);
    mp_json_bool(w, "gradient_as_bucket_view", ddp->gradient_as_bucket_view);
    mp_json_bool(w, "static_graph", ddp->static_graph);
    mp_json_bool(w, "find_unused_parameters", ddp->find_unused_parameters);
    mp_json_bool(w, "no_sync", ddp->no_sync);
    mp_json_string(w, "compression", mp_compression_text(ddp->compression));
    mp_json_end_object(w);
}

static void write_fsdp(const struct mp_fsdp_options *fsdp, struct mp_json_writer *w)
{
    mp_json_object(w, "fsdp");
    if (fsdp->reshard_to > 0)
        mp_json_int(w, "reshard_after_forward", fsdp->reshard_to);
    else
        mp_json_bool(w, "reshard_after_forward", !fsdp->keep_unsharded);
    mp_json_bool(w, "mixed_precision", fsdp->mixed_precision);
    mp_json_bool(w, "offload", fsdp->offload);
    if (fsdp->replicas > 1)
        mp_json_int(w, "replicas", fsdp->replicas);
    mp_json_end_object(w);
}

static void write_lora(const struct mp_run *run, struct mp_json_writer *w)
{
    const struct mp_lora *const lora = run->lora;
    if (lora == NULL)
        return;
    mp_json_object(w, "lora");
    mp_json_int(w, "rank", lora->rank);
    mp_json_array(w, "targets");
    for (size_t i = 0; i < lora->n_targets; i++)
        mp_json_string(w, NULL, lora->targets[i]);
    mp_json_end_array(w);
    mp_json_double(w, "alpha", lora->alpha);
    mp_json_double(w, "dropout", lora->dropout);
    mp_json_end_object(w);
}

static void write_trainer(const struct mp_run *run, struct mp_json_writer *w)
{
    const struct mp_trainer_options *const t = run->trainer;
    if (t == NULL)
        return;
    mp_json_object(w, "training_arguments");
    mp_json_bool(w, "bf16", t->amp == MP_AMP_BF16);
    mp_json_bool(w, "fp16", t->amp == MP_AMP_FP16);
    mp_json_string(w, "eval_strategy", t->eval_steps > 0 ? "steps" : "no");
    if (t->eval_steps > 0)
        mp_json_int(w, "eval_steps", t->eval_steps);
    mp_json_int(w, "per_device_eval_batch_size", t->eval_batch);
    mp_json_int(w, "eval_samples", t->eval_samples);
    mp_json_int(w, "logging_steps", t->logging_steps);
    mp_json_end_object(w);
}

static void write_parallel(const struct mp_run *run, struct mp_json_writer *w)
{
    if (run->parallel == MP_PARALLEL_NONE)
        return;
    mp_json_string(w, "data_parallel", mp_parallel_text(run->parallel));
    mp_json_int(w, "world", run->world);
    mp_json_int(w, "gpus_per_node", run->gpus_per_node);
    mp_json_string(w, "collectives", run->no_collectives ? "none" : "nccl");
    if (run->parallel == MP_PARALLEL_DDP || run->parallel == MP_PARALLEL_ZERO1)
        write_ddp(&run->ddp, w);
    else if (run->parallel == MP_PARALLEL_FSDP2)
        write_fsdp(&run->fsdp, w);
    else if (run->deepspeed_value != NULL)
        mp_json_value(w, "deepspeed", run->deepspeed_value);
}

void mp_run_write_json(const struct mp_run *run, struct mp_json_writer *w, const char *key)
{
    mp_json_object(w, key);
    write_model(run, w);
    mp_json_string(w, "gpu", run->gpu_value);
    mp_json_string(w, "framework", run->framework_value);
    mp_json_int(w, "batch", run->batch);
    write_lengths(run, w);
    mp_json_string(w, "precision", mp_precision_text(run->precision));
    mp_json_bool(w, "tf32", run->tf32);
    mp_json_string(w, "attention", mp_attention_text(run->attention));
    write_checkpoint(run, w);
    mp_json_string(w, "optimizer", mp_optimizer_text(run->optimizer));
    if (run->loss != MP_LOSS_FULL)
        mp_json_string(w, "loss", mp_loss_text(run->loss));
    if (run->experts != MP_EXPERTS_GROUPED)
        mp_json_string(w, "experts", mp_experts_text(run->experts));
    if (run->expert_imbalance > 1.0)
        mp_json_double(w, "expert_imbalance", run->expert_imbalance);
    if (run->quantization != MP_QUANTIZATION_NONE || mp_quantization_is_stored(run->model))
        mp_json_string(w, "quantization", mp_quantization_text(run->quantization));
    mp_json_int(w, "accumulate", run->accumulate);
    mp_json_int(w, "iterations", run->iterations);
    mp_json_bool(w, "clip_grad_norm", run->clip_grad_norm);
    mp_json_string(w, "zero_grad", run->zero_grad_keep ? "keep" : "set_to_none");
    mp_json_bool(w, "release_outputs", run->release_outputs);
    mp_json_bool(w, "retain_losses", run->retain_losses);
    if (run->attention_mask == MP_MASK_PADDED)
        mp_json_string(w, "attention_mask", "padded");
    else
        mp_json_bool(w, "attention_mask", run->attention_mask == MP_MASK_ONES);
    mp_json_bool(w, "use_cache", run->use_cache);
    mp_json_bool(w, "empty_cache_each_step", run->empty_cache_each_step);
    if (run->allocator_conf[0] != '\0')
        mp_json_string(w, "allocator_conf", run->allocator_conf);
    if (run->allocator_limit_bytes > 0)
        mp_json_uint(w, "allocator_limit_bytes", run->allocator_limit_bytes);
    if (run->quantization == MP_QUANTIZATION_NONE) /* else it follows */
        mp_json_string(w, "init_device", run->init_cpu ? "cpu" : "cuda");
    if (run->used_bytes > 0)
        mp_json_uint(w, "used", run->used_bytes);
    write_lora(run, w);
    write_trainer(run, w);
    write_parallel(run, w);
    mp_json_end_object(w);
}
