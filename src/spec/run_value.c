/* SPDX-License-Identifier: MIT */
/* Every key's reader. Objects and lists have files of their own; here are the keys that are read
 * alone. */
#include "spec/run_value.h"

#include "memory/allocator.h"
#include "spec/run_adapters.h"
#include "spec/run_blocks.h"
#include "spec/run_lengths.h"
#include "spec/run_parallel.h"
#include "spec/run_trainer.h"

#define ITERATIONS_MAX 10000
#define IMBALANCE_MAX  1000

static void read_attention_mask(struct mp_run_reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    if (value->kind == MP_BOOLEAN)
        r->run->attention_mask = value->as.boolean ? MP_MASK_ONES : MP_MASK_NONE;
    else if (value->kind == MP_STRING && strcmp(value->as.string.text, "padded") == 0)
        r->run->attention_mask = MP_MASK_PADDED;
    else
        mp_problems_add(&r->problems, value, mp_reader_label(r, MP_KEY_ATTENTION_MASK),
                        "%s is not one of false, true or padded", mp_value_show(value, shown));
}

static void read_allocator_conf(struct mp_run_reader *r, const struct mp_value *value)
{
    struct mp_allocator_conf conf;
    struct memplan_error own = {0};
    const char *text = "";
    if (!mp_problems_string(&r->problems, mp_reader_label(r, MP_KEY_ALLOCATOR_CONF), value, &text))
        return;
    if (mp_allocator_conf_parse(text, MP_TORCH_DEFAULT, &conf, &own) == MEMPLAN_STATUS_OK) {
        r->run->allocator_conf = text;
        return;
    }
    static const char prefix[] = "allocator conf: "; /* the key says it already */
    const bool prefixed = strncmp(own.text, prefix, sizeof prefix - 1) == 0;
    mp_problems_add(&r->problems, value, mp_reader_label(r, MP_KEY_ALLOCATOR_CONF), "%s",
                    own.text + (prefixed ? sizeof prefix - 1 : 0));
}

static void read_model(struct mp_run_reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    const char *name = NULL;
    r->run->model_value = value;
    if (value->kind == MP_STRING)
        mp_reader_name(r, MP_KEY_MODEL, value, &name);
    else if (value->kind != MP_OBJECT)
        mp_problems_add(&r->problems, value, mp_reader_label(r, MP_KEY_MODEL),
                        "%s is not a shipped name, a path or the object of a config.json",
                        mp_value_show(value, shown));
}

static void read_imbalance(struct mp_run_reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    double times = 0.0;
    if (mp_value_number(value, &times) && times >= 1.0 && times <= IMBALANCE_MAX)
        r->run->expert_imbalance = times;
    else
        mp_problems_add(&r->problems, value, mp_reader_label(r, MP_KEY_EXPERT_IMBALANCE),
                        "%s is not a number from 1 (balanced) to %d", mp_value_show(value, shown),
                        IMBALANCE_MAX);
}

void mp_run_value_read(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value)
{
    struct mp_run *const run = r->run;
    switch (key) {
    case MP_KEY_MODEL: read_model(r, value); break;
    case MP_KEY_GPU: mp_reader_name(r, key, value, &run->gpu_value); break;
    case MP_KEY_FRAMEWORK: mp_reader_name(r, key, value, &run->framework_value); break;
    case MP_KEY_BATCH: mp_reader_integer(r, key, value, 1, MP_INT_MAX_VALUE, &run->batch); break;
    case MP_KEY_SEQ: mp_reader_integer(r, key, value, 1, MP_INT_MAX_VALUE, &run->seq); break;
    case MP_KEY_SEQ_LENGTHS: mp_run_lengths_read(r, value); break;
    case MP_KEY_PAD_TO: mp_reader_integer(r, key, value, 0, MP_INT_MAX_VALUE, &run->pad_to); break;
    case MP_KEY_PRECISION:
        run->precision = (enum mp_precision)mp_reader_choice(r, key, value);
        break;
    case MP_KEY_TF32: mp_reader_bool(r, key, value, &run->tf32); break;
    case MP_KEY_ATTENTION:
        run->attention = (enum mp_attention)mp_reader_choice(r, key, value);
        break;
    case MP_KEY_CHECKPOINT:
        if (value->kind == MP_OBJECT)
            mp_run_blocks_read_checkpoint(r, value);
        else
            run->checkpoint = (enum mp_checkpoint)mp_reader_choice(r, key, value);
        break;
    case MP_KEY_OFFLOAD: mp_run_blocks_read_offload(r, value); break;
    case MP_KEY_OPTIMIZER:
        run->optimizer = (enum mp_optimizer)mp_reader_choice(r, key, value);
        break;
    case MP_KEY_LOSS: run->loss = (enum mp_loss)mp_reader_choice(r, key, value); break;
    case MP_KEY_EXPERTS:
        run->experts = (enum mp_experts_kind)mp_reader_choice(r, key, value);
        break;
    case MP_KEY_EXPERT_IMBALANCE: read_imbalance(r, value); break;
    case MP_KEY_QUANTIZATION:
        run->quantization = (enum mp_quantization)mp_reader_choice(r, key, value);
        break;
    case MP_KEY_ACCUMULATE:
        mp_reader_integer(r, key, value, 1, MP_ACCUMULATE_MAX, &run->accumulate);
        break;
    case MP_KEY_ITERATIONS:
        mp_reader_integer(r, key, value, 0, ITERATIONS_MAX, &run->iterations);
        break;
    case MP_KEY_CLIP_GRAD_NORM: mp_reader_bool(r, key, value, &run->clip_grad_norm); break;
    case MP_KEY_ZERO_GRAD: run->zero_grad_keep = mp_reader_choice(r, key, value) == 1; break;
    case MP_KEY_RELEASE_OUTPUTS: mp_reader_bool(r, key, value, &run->release_outputs); break;
    case MP_KEY_RETAIN_LOSSES: mp_reader_bool(r, key, value, &run->retain_losses); break;
    case MP_KEY_ATTENTION_MASK: read_attention_mask(r, value); break;
    case MP_KEY_USE_CACHE: mp_reader_bool(r, key, value, &run->use_cache); break;
    case MP_KEY_EMPTY_CACHE_EACH_STEP:
        mp_reader_bool(r, key, value, &run->empty_cache_each_step);
        break;
    case MP_KEY_ALLOCATOR_CONF: read_allocator_conf(r, value); break;
    case MP_KEY_ALLOCATOR_LIMIT_BYTES:
        mp_reader_bytes(r, key, value, &run->allocator_limit_bytes);
        break;
    case MP_KEY_INIT_DEVICE: run->init_cpu = mp_reader_choice(r, key, value) == 1; break;
    case MP_KEY_USED: mp_reader_bytes(r, key, value, &run->used_bytes); break;
    case MP_KEY_LORA: mp_run_adapters_read(r, value); break;
    case MP_KEY_DATA_PARALLEL:
    case MP_KEY_WORLD:
    case MP_KEY_GPUS_PER_NODE:
    case MP_KEY_COLLECTIVES:
    case MP_KEY_DDP:
    case MP_KEY_FSDP:
    case MP_KEY_DEEPSPEED: mp_run_parallel_read(r, key, value); break;
    case MP_KEY_TRAINING_ARGUMENTS: mp_run_trainer_read(r, value); break;
    case MP_RUN_KEYS:
    default: break;
    }
}
