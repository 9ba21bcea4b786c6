/* SPDX-License-Identifier: MIT */
/*
 * The table of keys of a run, the only one: parsing, help, completion, man-page check and `assumed`
 * come from it. Beside it the names of the keys' values, which are the words of the table in the
 * order of the enums.
 */
#include "spec/run.h"

static const char *const key_texts[] = {
#define X(name, text) text,
    MP_RUN_KEY_MAP(X)
#undef X
};

#define GROUP_CARD     "Model and card"
#define GROUP_DATA     "Data"
#define GROUP_TRAINING "Training"
#define GROUP_MEMORY   "Memory"
#define GROUP_PARALLEL "Data parallelism"

static const struct mp_run_key_info key_infos[MP_RUN_KEYS] = {
    [MP_KEY_MODEL] = {"NAME|FILE", NULL, NULL, "shipped model, or a Hugging Face config.json",
                      GROUP_CARD, false},
    [MP_KEY_GPU] = {"NAME|FILE", NULL, NULL, "shipped GPU, a GPU file, or auto (asks nvidia-smi)",
                    GROUP_CARD, false},
    [MP_KEY_FRAMEWORK] = {"NAME|FILE", NULL, "hf", "framework profile", GROUP_CARD, false},
    [MP_KEY_BATCH] = {"N", NULL, "1", "micro-batch per device, in sequences", GROUP_DATA, false},
    [MP_KEY_SEQ] = {"N", NULL, "the longest position, at most 2048", "tokens per sequence",
                    GROUP_DATA, false},
    [MP_KEY_SEQ_LENGTHS] = {"N,N,...", NULL, NULL,
                            "lengths that micro-batches take in turn, instead of --seq", GROUP_DATA,
                            false},
    [MP_KEY_PAD_TO] = {"N", NULL, NULL, "round lengths up to a multiple of N", GROUP_DATA, false},
    [MP_KEY_PRECISION] = {"TYPE", "fp32|bf16|fp16|amp-bf16|amp-fp16",
                          "amp-bf16; amp-fp16 on cards without bfloat16",
                          "type of the weights, amp-* are fp32 weights under autocast",
                          GROUP_TRAINING, false},
    [MP_KEY_TF32] = {NULL, "false|true", "false", "allow TF32 matrix products", GROUP_TRAINING,
                     false},
    [MP_KEY_ATTENTION] = {"KIND", "sdpa|eager", "sdpa", "attention implementation", GROUP_TRAINING,
                          false},
    [MP_KEY_CHECKPOINT] = {"KIND", "none|full|full-reentrant", "none",
                           "recompute blocks in backward; '{layers: [0, 2]}', '{attention: all}'",
                           GROUP_TRAINING, false},
    [MP_KEY_OFFLOAD] = {"BLOCKS", NULL, "none",
                        "save these blocks' tensors on the host: all, '{first: 4}'", GROUP_TRAINING,
                        false},
    [MP_KEY_OPTIMIZER] = {"NAME",
                          "adamw-foreach|adamw-fused|adamw-forloop|sgd|sgd-momentum|adafactor|none|"
                          "adamw-8bit|paged-adamw-8bit|lion|muon",
                          "adamw-foreach", "optimizer and its implementation", GROUP_TRAINING,
                          false},
    [MP_KEY_LOSS] = {"KIND", "full|chunked|fused", "full",
                     "logits at once, or in chunks; fused is Liger's", GROUP_TRAINING, false},
    [MP_KEY_EXPERTS] = {"KIND", "grouped|eager", "grouped",
                        "experts in one grouped product, or one by one", GROUP_TRAINING, false},
    [MP_KEY_EXPERT_IMBALANCE] = {"X", NULL, NULL,
                                 "eager experts: a bound for the busiest at X times the mean",
                                 GROUP_TRAINING, false},
    [MP_KEY_ACCUMULATE] = {"N", NULL, "1", "micro-batches per optimizer step", GROUP_TRAINING,
                           false},
    [MP_KEY_ITERATIONS] = {"N", NULL, "until the allocator's state repeats, at most 10",
                           "optimizer steps", GROUP_TRAINING, false},
    [MP_KEY_CLIP_GRAD_NORM] = {NULL, "false|true", "false",
                               "clip the gradients' norm before the step", GROUP_TRAINING, false},
    [MP_KEY_ZERO_GRAD] = {"HOW", "set_to_none|keep", "set_to_none",
                          "what zero_grad does with gradients", GROUP_TRAINING, false},
    [MP_KEY_RELEASE_OUTPUTS] = {NULL, "false|true", "false",
                                "delete outputs and loss after each backward", GROUP_TRAINING,
                                false},
    [MP_KEY_RETAIN_LOSSES] = {NULL, "false|true", "false", "append every loss to a list (a leak)",
                              GROUP_TRAINING, false},
    [MP_KEY_ATTENTION_MASK] = {NULL, "false|true|padded", "false",
                               "pass a mask of ones, or (padded) with zeros", GROUP_TRAINING,
                               false},
    [MP_KEY_USE_CACHE] = {NULL, "false|true", "false", "keep the key-value cache while training",
                          GROUP_TRAINING, false},
    [MP_KEY_EMPTY_CACHE_EACH_STEP] = {NULL, "false|true", "false",
                                      "torch.cuda.empty_cache() after zero_grad", GROUP_MEMORY,
                                      false},
    [MP_KEY_ALLOCATOR_CONF] = {"TEXT", NULL, NULL,
                               "PYTORCH_CUDA_ALLOC_CONF, such as expandable_segments:True",
                               GROUP_MEMORY, false},
    [MP_KEY_ALLOCATOR_LIMIT_BYTES] = {"BYTES", NULL, NULL, "cap of the allocator, such as 16GiB",
                                      GROUP_MEMORY, false},
    [MP_KEY_INIT_DEVICE] = {"DEVICE", "cuda|cpu", "cuda", "where the model is built",
                            GROUP_TRAINING, false},
    [MP_KEY_USED] = {"BYTES", NULL, NULL, "what others hold on the card, such as 1GiB",
                     GROUP_MEMORY, false},
    [MP_KEY_LORA] = {"OBJECT", NULL, NULL,
                     "adapters: '{rank: 8, targets: [q_proj], alpha: 16, dropout: 0}'",
                     GROUP_TRAINING, false},
    [MP_KEY_QUANTIZATION] = {"KIND", "none|nf4", "as the model's quantization_config says",
                             "4-bit base under adapters (bitsandbytes, double quantisation)",
                             GROUP_TRAINING, false},
    [MP_KEY_DATA_PARALLEL] =
        {"KIND", "none|ddp|zero1|fsdp2|deepspeed-zero1|deepspeed-zero2|deepspeed-zero3", "none",
         "how ranks share the work", GROUP_PARALLEL, false},
    [MP_KEY_WORLD] = {"N", NULL, "1", "ranks", GROUP_PARALLEL, false},
    [MP_KEY_GPUS_PER_NODE] = {"N", NULL, "all ranks, at most 8", "ranks of one host",
                              GROUP_PARALLEL, false},
    [MP_KEY_COLLECTIVES] = {"KIND", "nccl|none", "nccl", "who moves the data between ranks",
                            GROUP_PARALLEL, false},
    [MP_KEY_DDP] = {"OBJECT", NULL, NULL,
                    "'{bucket_cap_mb: 25, gradient_as_bucket_view: false, static_graph: false}'",
                    GROUP_PARALLEL, false},
    [MP_KEY_FSDP] = {"OBJECT", NULL, NULL,
                     "'{reshard_after_forward: true, mixed_precision: false}'", GROUP_PARALLEL,
                     false},
    [MP_KEY_TRAINING_ARGUMENTS] = {"FILE", NULL, NULL,
                                   "TrainingArguments in JSON or YAML, with framework hf-trainer",
                                   GROUP_TRAINING, false},
    [MP_KEY_DEEPSPEED] = {"FILE", NULL, NULL, "ds_config.json: stage, buckets, offload",
                          GROUP_PARALLEL, false},
};

const char *mp_run_key_text(enum mp_run_key key)
{
    return (size_t)key < MP_ARRAY_LEN(key_texts) ? key_texts[key] : "?";
}

const struct mp_run_key_info *mp_run_key_info(enum mp_run_key key)
{
    return &key_infos[key];
}

/* One word of "a|b|c" as a text of its own: the choices are also the names of the enums. */
#define TEXT_FUNCTION(function, type, ...)                                                         \
    const char *function(type value)                                                               \
    {                                                                                              \
        static const char *const texts[] = {__VA_ARGS__};                                          \
        return (size_t)value < MP_ARRAY_LEN(texts) ? texts[value] : "?";                           \
    }
TEXT_FUNCTION(mp_precision_text, enum mp_precision, "fp32", "bf16", "fp16", "amp-bf16", "amp-fp16")
TEXT_FUNCTION(mp_attention_text, enum mp_attention, "sdpa", "eager")
TEXT_FUNCTION(mp_checkpoint_text, enum mp_checkpoint, "none", "full", "full-reentrant", "layers")
TEXT_FUNCTION(mp_block_part_text, enum mp_block_part, "attention", "mlp")
TEXT_FUNCTION(mp_optimizer_text, enum mp_optimizer, "adamw-foreach", "adamw-fused", "adamw-forloop",
              "sgd", "sgd-momentum", "adafactor", "none", "adamw-8bit", "paged-adamw-8bit", "lion",
              "muon")
TEXT_FUNCTION(mp_loss_text, enum mp_loss, "full", "chunked", "fused")
TEXT_FUNCTION(mp_experts_text, enum mp_experts_kind, "grouped", "eager")
TEXT_FUNCTION(mp_quantization_text, enum mp_quantization, "none", "nf4")
TEXT_FUNCTION(mp_parallel_text, enum mp_parallel_kind, "none", "ddp", "zero1", "fsdp2",
              "deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3")
TEXT_FUNCTION(mp_compression_text, enum mp_compression, "none", "fp16", "bf16")

const char *const *mp_run_key_texts(void)
{
    return key_texts;
}

int mp_run_key_index(const char *text)
{
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        if (strcmp(key_texts[key], text) == 0)
            return key;
    }
    return -1;
}

bool mp_run_is_given(const struct mp_run *run, enum mp_run_key key)
{
    return (run->given >> (unsigned)key & 1) != 0;
}
