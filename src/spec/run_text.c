/* SPDX-License-Identifier: MIT */
/* A run in words: the value of each key, what was assumed, what the figures claim. */
#include "spec/run.h"

#include <inttypes.h>

static void add_bool(struct mp_strbuf *out, bool value)
{
    mp_strbuf_addstr(out, value ? "true" : "false");
}

static void add_lengths(struct mp_strbuf *out, const struct mp_run *run)
{
    for (size_t i = 0; i < run->n_seq_lengths; i++)
        mp_strbuf_addf(out, "%s%" PRId64, i == 0 ? "" : ",", run->seq_lengths[i]);
}

/* "layers 0,2, attention 1,3" */
static void add_checkpoint(struct mp_strbuf *out, const struct mp_run *run)
{
    const bool parts = run->recompute[MP_PART_ATTENTION].n > 0 || run->recompute[MP_PART_MLP].n > 0;
    const char *between = "";
    if (run->checkpoint != MP_CHECKPOINT_NONE || !parts) {
        mp_strbuf_addstr(out, mp_checkpoint_text(run->checkpoint));
        if (run->checkpoint_layers.n > 0)
            mp_strbuf_addstr(out, " ");
        mp_layer_set_text(&run->checkpoint_layers, out);
        between = ", ";
    }
    for (int part = 0; part < MP_PARTS; part++) {
        if (run->recompute[part].n == 0)
            continue;
        mp_strbuf_addf(out, "%s%s ", between, mp_block_part_text((enum mp_block_part)part));
        mp_layer_set_text(&run->recompute[part], out);
        between = ", ";
    }
}

/* "rank 8 on q_proj,v_proj" */
static void add_lora(struct mp_strbuf *out, const struct mp_lora *lora)
{
    mp_strbuf_addf(out, "rank %" PRId64, lora->rank);
    for (size_t i = 0; i < lora->n_targets; i++)
        mp_strbuf_addf(out, "%s%s", i == 0 ? " on " : ",", lora->targets[i]);
}

void mp_run_value_text(const struct mp_run *run, enum mp_run_key key, struct mp_strbuf *out)
{
    switch (key) {
    case MP_KEY_MODEL: mp_strbuf_addstr(out, run->model->name); break;
    case MP_KEY_GPU: mp_strbuf_addstr(out, run->gpu->name); break;
    case MP_KEY_FRAMEWORK: mp_strbuf_addstr(out, run->profile->name); break;
    case MP_KEY_BATCH: mp_strbuf_addf(out, "%" PRId64, run->batch); break;
    case MP_KEY_SEQ: mp_strbuf_addf(out, "%" PRId64, run->seq); break;
    case MP_KEY_SEQ_LENGTHS: add_lengths(out, run); break;
    case MP_KEY_CHECKPOINT: add_checkpoint(out, run); break;
    case MP_KEY_OFFLOAD: mp_layer_set_text(&run->offload, out); break;
    case MP_KEY_PAD_TO:
        if (run->pad_to > 0)
            mp_strbuf_addf(out, "%" PRId64, run->pad_to);
        break;
    case MP_KEY_PRECISION: mp_strbuf_addstr(out, mp_precision_text(run->precision)); break;
    case MP_KEY_TF32: add_bool(out, run->tf32); break;
    case MP_KEY_ATTENTION: mp_strbuf_addstr(out, mp_attention_text(run->attention)); break;
    case MP_KEY_OPTIMIZER: mp_strbuf_addstr(out, mp_optimizer_text(run->optimizer)); break;
    case MP_KEY_LOSS: /* what is rarely changed is only told where it is */
        if (run->loss != MP_LOSS_FULL)
            mp_strbuf_addstr(out, mp_loss_text(run->loss));
        break;
    case MP_KEY_EXPERTS:
        if (run->experts != MP_EXPERTS_GROUPED)
            mp_strbuf_addstr(out, mp_experts_text(run->experts));
        break;
    case MP_KEY_EXPERT_IMBALANCE:
        if (run->expert_imbalance > 1.0)
            mp_strbuf_addf(out, "%g", run->expert_imbalance);
        break;
    case MP_KEY_QUANTIZATION:
        if (run->quantization != MP_QUANTIZATION_NONE)
            mp_strbuf_addstr(out, mp_quantization_text(run->quantization));
        break;
    case MP_KEY_ACCUMULATE: mp_strbuf_addf(out, "%" PRId64, run->accumulate); break;
    case MP_KEY_ITERATIONS: mp_strbuf_addf(out, "%" PRId64, run->iterations); break;
    case MP_KEY_CLIP_GRAD_NORM: add_bool(out, run->clip_grad_norm); break;
    case MP_KEY_ZERO_GRAD:
        mp_strbuf_addstr(out, run->zero_grad_keep ? "keep" : "set_to_none");
        break;
    case MP_KEY_RELEASE_OUTPUTS: add_bool(out, run->release_outputs); break;
    case MP_KEY_RETAIN_LOSSES: add_bool(out, run->retain_losses); break;
    case MP_KEY_ATTENTION_MASK:
        mp_strbuf_addstr(out, run->attention_mask == MP_MASK_PADDED ? "padded"
                              : run->attention_mask == MP_MASK_ONES ? "true"
                                                                    : "false");
        break;
    case MP_KEY_USE_CACHE: add_bool(out, run->use_cache); break;
    case MP_KEY_EMPTY_CACHE_EACH_STEP: add_bool(out, run->empty_cache_each_step); break;
    case MP_KEY_ALLOCATOR_CONF: mp_strbuf_addstr(out, run->allocator_conf); break;
    case MP_KEY_ALLOCATOR_LIMIT_BYTES:
        if (run->allocator_limit_bytes > 0)
            mp_strbuf_addf(out, "%" PRIu64, run->allocator_limit_bytes);
        break;
    case MP_KEY_INIT_DEVICE: mp_strbuf_addstr(out, run->init_cpu ? "cpu" : "cuda"); break;
    case MP_KEY_USED:
        if (run->used_bytes > 0)
            mp_strbuf_addf(out, "%" PRIu64, run->used_bytes);
        break;
    case MP_KEY_DATA_PARALLEL:
        if (run->parallel != MP_PARALLEL_NONE)
            mp_strbuf_addstr(out, mp_parallel_text(run->parallel));
        break;
    case MP_KEY_WORLD:
        if (run->parallel != MP_PARALLEL_NONE)
            mp_strbuf_addf(out, "%" PRId64, run->world);
        break;
    case MP_KEY_GPUS_PER_NODE:
        if (run->parallel != MP_PARALLEL_NONE)
            mp_strbuf_addf(out, "%" PRId64, run->gpus_per_node);
        break;
    case MP_KEY_COLLECTIVES:
        if (run->parallel != MP_PARALLEL_NONE)
            mp_strbuf_addstr(out, run->no_collectives ? "none" : "nccl");
        break;
    case MP_KEY_LORA:
        if (run->lora != NULL)
            add_lora(out, run->lora);
        break;
    case MP_KEY_DDP:
    case MP_KEY_FSDP:
    case MP_KEY_TRAINING_ARGUMENTS:
    case MP_RUN_KEYS:
    default: break;
    }
}

void mp_run_describe_assumed(const struct mp_run *run, struct mp_strbuf *out)
{
    struct mp_strbuf off = MP_STRBUF_INIT;
    bool first = true;
    for (int key = MP_KEY_FRAMEWORK; key < MP_RUN_KEYS; key++) {
        if (mp_run_is_given(run, (enum mp_run_key)key))
            continue;
        if (key == MP_KEY_SEQ && run->n_seq_lengths > 0)
            continue; /* they replace it */
        struct mp_strbuf value = MP_STRBUF_INIT;
        mp_run_value_text(run, (enum mp_run_key)key, &value);
        const char *const text = mp_strbuf_text(&value);
        if (key == MP_KEY_ITERATIONS && run->iterations == 0)
            mp_strbuf_addf(out, "%siterations until memory repeats", first ? "" : ", ");
        else if (strcmp(text, "false") == 0)
            mp_strbuf_addf(&off, "%s%s", off.len == 0 ? "" : ", ", mp_run_key_text(key));
        else if (text[0] != '\0')
            mp_strbuf_addf(out, "%s%s %s", first ? "" : ", ", mp_run_key_text(key), text);
        first = first && out->len == 0;
        out->failed = out->failed || value.failed;
        mp_strbuf_release(&value);
    }
    if (off.len > 0)
        mp_strbuf_addf(out, "%soff: %s", out->len == 0 ? "" : "; ", mp_strbuf_text(&off));
    out->failed = out->failed || off.failed;
    mp_strbuf_release(&off);
}

void mp_run_describe_claim(const struct mp_run *run, struct mp_strbuf *out)
{
    if (run->experts == MP_EXPERTS_GROUPED)
        mp_strbuf_addstr(out, "Exact for");
    else if (run->expert_imbalance > 1.0)
        mp_strbuf_addf(out,
                       "A bound for requested bytes, for at most %g times the mean of tokens on an "
                       "expert, with",
                       run->expert_imbalance);
    else
        mp_strbuf_addstr(out, "For balanced routing, with");
}
