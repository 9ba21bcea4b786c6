/* SPDX-License-Identifier: MIT */
/*
 * Reads run specs: one table of keys, one function that reads a value into a run.
 *
 *     file, flags, "run" of a line --check--> source (key -> value) --resolve--> run
 *
 * A value is read twice: into a scratch run when it comes in, so that all problems of a file stand
 * in one message, and into the true run when the source is resolved.
 */
#include "spec/run.h"

#include <inttypes.h>

#include "base/units.h"
#include "base/yaml.h"
#include "memory/allocator.h"
#include "spec/problems.h"
#include "spec/quantization.h"
#include "spec/training_arguments.h"

#define INT_MAX_VALUE         INT64_C(2147483647)
#define ACCUMULATE_MAX        65536 /* every micro-batch has a tensor of its own */
#define ITERATIONS_MAX        10000
#define RANKS_MAX             1048576
#define LIST_MAX              65536
#define BYTES_MAX             (UINT64_C(1) << 50)
#define DEFAULT_SEQ_MAX       2048
#define WARNINGS_MAX          8
#define IMBALANCE_MAX         1000
#define GPUS_PER_NODE_DEFAULT 8

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
              "sgd", "sgd-momentum", "adafactor", "none", "adamw-8bit", "paged-adamw-8bit", "lion", "muon")
TEXT_FUNCTION(mp_loss_text, enum mp_loss, "full", "chunked", "fused")
TEXT_FUNCTION(mp_experts_text, enum mp_experts_kind, "grouped", "eager")
TEXT_FUNCTION(mp_quantization_text, enum mp_quantization, "none", "nf4")
TEXT_FUNCTION(mp_parallel_text, enum mp_parallel_kind, "none", "ddp", "zero1", "fsdp2",
              "deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3")
TEXT_FUNCTION(mp_compression_text, enum mp_compression, "none", "fp16", "bf16")

static int key_index(const char *text)
{
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        if (strcmp(key_texts[key], text) == 0)
            return key;
    }
    return -1;
}

/* ---- values into a run ---- */

struct reader {
    struct mp_arena *arena;
    struct mp_run *run;
    struct mp_problems problems;
    bool no_memory;
};

static bool is_flag(const char *origin)
{
    return origin != NULL && strncmp(origin, "--", 2) == 0;
}

/* How messages name a key: the origin of a flag already does. */
static const char *label(const struct reader *r, enum mp_run_key key)
{
    return is_flag(r->problems.origin) ? NULL : key_texts[key];
}

static void read_integer(struct reader *r, enum mp_run_key key, const struct mp_value *value,
                         int64_t low, int64_t high, int64_t *out)
{
    (void)mp_problems_integer(&r->problems, label(r, key), value, low, high, out);
}

static void read_bool(struct reader *r, enum mp_run_key key, const struct mp_value *value,
                      bool *out)
{
    (void)mp_problems_bool(&r->problems, label(r, key), value, out);
}

/* One of the key's values: the order in the table is the order of the enum. */
static int read_choice(struct reader *r, enum mp_run_key key, const struct mp_value *value)
{
    int index = 0;
    (void)mp_problems_choice(&r->problems, label(r, key), value, key_infos[key].values, &index);
    return index;
}

/* An integer, or a text such as "1GiB". */
static void read_bytes(struct reader *r, enum mp_run_key key, const struct mp_value *value,
                       uint64_t *out)
{
    if (value->kind != MP_STRING) {
        int64_t bytes = 0;
        if (mp_problems_integer(&r->problems, label(r, key), value, 0, (int64_t)BYTES_MAX, &bytes))
            *out = (uint64_t)bytes;
        return;
    }
    uint64_t bytes = 0;
    struct memplan_error own = {0};
    if (mp_bytes_parse(value->as.string.text, &bytes, &own) != MEMPLAN_STATUS_OK)
        mp_problems_add(&r->problems, value, label(r, key), "%s", own.text);
    else if (bytes > BYTES_MAX)
        mp_problems_add(&r->problems, value, label(r, key), "\"%.40s\" is more than 1 PiB",
                        value->as.string.text);
    else
        *out = bytes;
}

/* A list of integers in the arena; the elements' places are known. */
static const struct mp_value *check_list(struct reader *r, const char *name,
                                         const struct mp_value *value, int64_t low)
{
    char shown[MP_VALUE_SHOW_MAX];
    if (value->kind != MP_ARRAY || value->as.array.length > LIST_MAX) {
        mp_problems_add(&r->problems, value, name, "%s is not a list of at most %d integers",
                        mp_value_show(value, shown), LIST_MAX);
        return NULL;
    }
    const int before = r->problems.n;
    for (size_t i = 0; i < value->as.array.length; i++) {
        int64_t element = 0;
        (void)mp_problems_integer(&r->problems, name, value->as.array.items[i], low, INT_MAX_VALUE,
                                  &element);
    }
    return r->problems.n == before ? value : NULL;
}

static void read_seq_lengths(struct reader *r, const struct mp_value *value)
{
    const char *const name = label(r, MP_KEY_SEQ_LENGTHS);
    const struct mp_value *const list = check_list(r, name, value, 1);
    if (list == NULL)
        return;
    if (list->as.array.length == 0) {
        mp_problems_add(&r->problems, value, name, "an empty list; give at least one length");
        return;
    }
    int64_t *const lengths = mp_arena_calloc(r->arena, list->as.array.length, sizeof *lengths);
    if (lengths == NULL) {
        r->no_memory = true;
        return;
    }
    for (size_t i = 0; i < list->as.array.length; i++)
        lengths[i] = list->as.array.items[i]->as.integer;
    r->run->seq_lengths = lengths;
    r->run->n_seq_lengths = list->as.array.length;
}

/* {layers: [2, 0]} and its like, {attention: all}, {mlp: [1]}. */
static void read_checkpoint_object(struct reader *r, const struct mp_value *value)
{
    static const char *const parts[] = {"attention", "mlp", NULL}, *const none[] = {NULL};
    struct mp_run *const run = r->run;
    bool memory = mp_layer_set_read(&r->problems, r->arena, "checkpoint", parts, value, &run->checkpoint_layers);
    for (int part = 0; part < MP_PARTS; part++) {
        const struct mp_value *const chosen = mp_value_get(value, parts[part]);
        char name[32];
        (void)snprintf(name, sizeof name, "checkpoint.%s", parts[part]);
        if (chosen != NULL)
            memory &= mp_layer_set_read(&r->problems, r->arena, name, none, chosen, &run->recompute[part]);
    }
    const bool blocks = mp_value_get(value, "layers") || mp_value_get(value, "every") || mp_value_get(value, "first");
    run->checkpoint = blocks ? MP_CHECKPOINT_LAYERS : MP_CHECKPOINT_NONE;
    r->no_memory |= !memory;
}

static void read_offload(struct reader *r, const struct mp_value *value)
{
    static const char *const none[] = {NULL};
    if (value->kind == MP_STRING && strcmp(value->as.string.text, "none") == 0)
        return;
    r->no_memory |= !mp_layer_set_read(&r->problems, r->arena, "offload", none, value, &r->run->offload);
}

static void read_attention_mask(struct reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    if (value->kind == MP_BOOLEAN)
        r->run->attention_mask = value->as.boolean ? MP_MASK_ONES : MP_MASK_NONE;
    else if (value->kind == MP_STRING && strcmp(value->as.string.text, "padded") == 0)
        r->run->attention_mask = MP_MASK_PADDED;
    else
        mp_problems_add(&r->problems, value, label(r, MP_KEY_ATTENTION_MASK),
                        "%s is not one of false, true or padded", mp_value_show(value, shown));
}

static void read_allocator_conf(struct reader *r, const struct mp_value *value)
{
    struct mp_allocator_conf conf;
    struct memplan_error own = {0};
    const char *text = "";
    if (!mp_problems_string(&r->problems, label(r, MP_KEY_ALLOCATOR_CONF), value, &text))
        return;
    if (mp_allocator_conf_parse(text, MP_TORCH_DEFAULT, &conf, &own) == MEMPLAN_STATUS_OK) {
        r->run->allocator_conf = text;
        return;
    }
    static const char prefix[] = "allocator conf: "; /* the key says it already */
    const bool prefixed = strncmp(own.text, prefix, sizeof prefix - 1) == 0;
    mp_problems_add(&r->problems, value, label(r, MP_KEY_ALLOCATOR_CONF), "%s",
                    own.text + (prefixed ? sizeof prefix - 1 : 0));
}

/* A name or path that cannot be empty. */
static void read_name(struct reader *r, enum mp_run_key key, const struct mp_value *value,
                      const char **out)
{
    if (mp_problems_string(&r->problems, label(r, key), value, out) && (*out)[0] == '\0')
        mp_problems_add(&r->problems, value, label(r, key), "empty; give a name or a path");
}

static void read_model(struct reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    const char *name = NULL;
    r->run->model_value = value;
    if (value->kind == MP_STRING)
        read_name(r, MP_KEY_MODEL, value, &name);
    else if (value->kind != MP_OBJECT)
        mp_problems_add(&r->problems, value, label(r, MP_KEY_MODEL),
                        "%s is not a shipped name, a path or the object of a config.json",
                        mp_value_show(value, shown));
}

/* An object of arguments: names and kinds are checked here, meanings by its reader. */
struct part_key {
    const char *name;
    enum mp_value_kind kind; /* DOUBLE: not negative; NULL: true, false or a number of ranks */
};

/* What a member should have been, as a message says it. */
static const char *part_text(enum mp_value_kind kind)
{
    switch (kind) {
    case MP_NULL: return "true, false or a number of ranks";
    case MP_INT: return "an integer from 1 to 2147483647";
    case MP_DOUBLE: return "a number from 0 up";
    default: return mp_value_kind_text(kind);
    }
}

static bool part_value_ok(enum mp_value_kind kind, const struct mp_value *value)
{
    double number = 0.0;
    if (kind == MP_DOUBLE)
        return mp_value_number(value, &number) && number >= 0.0;
    if (kind == MP_NULL && value->kind == MP_BOOLEAN)
        return true;
    if (kind == MP_INT || kind == MP_NULL)
        return value->kind == MP_INT && value->as.integer >= 1 &&
               value->as.integer <= INT_MAX_VALUE;
    if (kind == MP_ARRAY && value->kind == MP_STRING)
        return true; /* one target */
    return value->kind == kind;
}

static void read_part(struct reader *r, enum mp_run_key key, const struct mp_value *value,
                      const struct part_key *keys, size_t n)
{
    char shown[MP_VALUE_SHOW_MAX];
    const char *names[8];
    if (value->kind != MP_OBJECT) {
        mp_problems_add(&r->problems, value, label(r, key), "%s is not an object",
                        mp_value_show(value, shown));
        return;
    }
    for (size_t i = 0; i < n; i++)
        names[i] = keys[i].name;
    for (size_t i = 0; i < value->as.object.length; i++) {
        const struct mp_member *const member = &value->as.object.members[i];
        size_t k = 0;
        while (k < n && strcmp(names[k], member->key) != 0)
            k++;
        char name[64];
        (void)snprintf(name, sizeof name, "%s.%.40s", key_texts[key], member->key);
        if (k == n)
            mp_problems_add_unknown(&r->problems, member, key_texts[key], names, n);
        else if (!part_value_ok(keys[k].kind, member->value))
            mp_problems_add(&r->problems, member->value, name, "%s is not %s",
                            mp_value_show(member->value, shown), part_text(keys[k].kind));
    }
}

static bool part_bool(const struct mp_value *part, const char *name)
{
    const struct mp_value *const value = mp_value_get(part, name);
    return value != NULL && value->kind == MP_BOOLEAN && value->as.boolean;
}

static int64_t part_integer(const struct mp_value *part, const char *name, int64_t fallback)
{
    const struct mp_value *const value = mp_value_get(part, name);
    return value != NULL && value->kind == MP_INT ? value->as.integer : fallback;
}

/* One name, or a list of names. */
static void read_lora_targets(struct reader *r, const struct mp_value *value, struct mp_lora *lora)
{
    const struct mp_value *const *const items =
        value->kind == MP_STRING ? &value : value->as.array.items;
    const size_t n = value->kind == MP_STRING ? 1 : value->as.array.length;
    const char **const targets = mp_arena_calloc(r->arena, n + 1, sizeof *targets);
    char shown[MP_VALUE_SHOW_MAX];
    if (targets == NULL) {
        r->no_memory = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (items[i]->kind == MP_STRING && items[i]->as.string.length > 0)
            targets[i] = items[i]->as.string.text;
        else
            mp_problems_add(&r->problems, items[i], "lora.targets",
                            "%s is not the name of a layer, such as q_proj",
                            mp_value_show(items[i], shown));
    }
    if (n == 0)
        mp_problems_add(&r->problems, value, "lora.targets",
                        "an empty list; give at least one layer, such as q_proj");
    lora->targets = targets;
    lora->n_targets = n;
}

static double part_number(const struct mp_value *part, const char *name, double fallback)
{
    const struct mp_value *const value = mp_value_get(part, name);
    double number = fallback;
    return value != NULL && mp_value_number(value, &number) ? number : fallback;
}

static void read_lora(struct reader *r, const struct mp_value *value)
{
    static const struct part_key keys[] = {
        {"rank", MP_INT}, {"targets", MP_ARRAY}, {"alpha", MP_DOUBLE}, {"dropout", MP_DOUBLE}};
    const int before = r->problems.n;
    read_part(r, MP_KEY_LORA, value, keys, MP_ARRAY_LEN(keys));
    if (r->problems.n > before)
        return;
    struct mp_lora *const lora = mp_arena_alloc(r->arena, sizeof *lora);
    if (lora == NULL) {
        r->no_memory = true;
        return;
    }
    lora->rank = part_integer(value, "rank", 8);
    lora->alpha = part_number(value, "alpha", 16);
    lora->dropout = part_number(value, "dropout", 0);
    const struct mp_value *const dropout = mp_value_get(value, "dropout");
    char shown[MP_VALUE_SHOW_MAX];
    if (lora->dropout >= 1)
        mp_problems_add(&r->problems, dropout, "lora.dropout",
                        "%s is not a probability from 0 to below 1",
                        mp_value_show(dropout, shown));
    const struct mp_value *const targets = mp_value_get(value, "targets");
    if (targets == NULL)
        mp_problems_add(&r->problems, value, "lora.targets",
                        "missing; name layers, such as [q_proj, v_proj]");
    else
        read_lora_targets(r, targets, lora);
    r->run->lora = lora;
}

static void read_ddp(struct reader *r, const struct mp_value *value)
{
    static const struct part_key keys[] = {
        {"bucket_cap_mb", MP_DOUBLE}, {"gradient_as_bucket_view", MP_BOOLEAN},
        {"static_graph", MP_BOOLEAN}, {"find_unused_parameters", MP_BOOLEAN},
        {"no_sync", MP_BOOLEAN},      {"compression", MP_STRING}};
    struct mp_ddp_options *const ddp = &r->run->ddp;
    const struct mp_value *const cap = mp_value_get(value, "bucket_cap_mb");
    const struct mp_value *const compression = mp_value_get(value, "compression");
    read_part(r, MP_KEY_DDP, value, keys, MP_ARRAY_LEN(keys));
    if (cap != NULL && mp_value_number(cap, &ddp->bucket_cap_mb) && ddp->bucket_cap_mb > 1 << 20)
        mp_problems_add(&r->problems, cap, "ddp.bucket_cap_mb", "more than 1 TiB");
    ddp->gradient_as_bucket_view = part_bool(value, "gradient_as_bucket_view");
    ddp->static_graph = part_bool(value, "static_graph");
    ddp->find_unused_parameters = part_bool(value, "find_unused_parameters");
    ddp->no_sync = part_bool(value, "no_sync");
    if (compression != NULL && compression->kind == MP_STRING) {
        int index = 0;
        (void)mp_problems_choice(&r->problems, "ddp.compression", compression, "none|fp16|bf16",
                                 &index);
        ddp->compression = (enum mp_compression)index;
    }
}

static void read_fsdp(struct reader *r, const struct mp_value *value)
{
    static const struct part_key keys[] = {{"reshard_after_forward", MP_NULL},
                                           {"mixed_precision", MP_BOOLEAN},
                                           {"offload", MP_BOOLEAN},
                                           {"replicas", MP_INT}};
    struct mp_fsdp_options *const fsdp = &r->run->fsdp;
    const struct mp_value *const reshard = mp_value_get(value, "reshard_after_forward");
    read_part(r, MP_KEY_FSDP, value, keys, MP_ARRAY_LEN(keys));
    fsdp->keep_unsharded = reshard != NULL && reshard->kind == MP_BOOLEAN && !reshard->as.boolean;
    fsdp->reshard_to = part_integer(value, "reshard_after_forward", 0);
    fsdp->mixed_precision = part_bool(value, "mixed_precision");
    fsdp->offload = part_bool(value, "offload");
    fsdp->replicas = part_integer(value, "replicas", 1);
}

/* The object itself, or the path of a file. */
static void read_deepspeed(struct reader *r, const struct mp_value *value)
{
    struct memplan_error own = {0};
    struct mp_strbuf text = MP_STRBUF_INIT;
    const struct mp_value *config = value;
    const char *path = "deepspeed";
    r->run->deepspeed_value = value;
    if (value->kind == MP_STRING) {
        path = value->as.string.text;
        config = NULL;
        if (mp_spec_read_file(path, &text, &own) == MEMPLAN_STATUS_OK) {
            mp_deepspeed_plain_json(text.data, text.len);
            config = mp_json_parse(r->arena, path, mp_strbuf_text(&text), text.len, &own);
        }
    }
    if (config != NULL)
        (void)mp_deepspeed_options_read(&r->run->deepspeed, path, config, &own);
    mp_strbuf_release(&text);
    if (own.status != MEMPLAN_STATUS_OK)
        mp_problems_add(&r->problems, value, label(r, MP_KEY_DEEPSPEED), "%s", own.text);
}

static void read_parallel(struct reader *r, enum mp_run_key key, const struct mp_value *value)
{
    struct mp_run *const run = r->run;
    if (key == MP_KEY_DATA_PARALLEL)
        run->parallel = (enum mp_parallel_kind)read_choice(r, key, value);
    else if (key == MP_KEY_COLLECTIVES)
        run->no_collectives = read_choice(r, key, value) == 1;
    else if (key == MP_KEY_DDP)
        read_ddp(r, value);
    else if (key == MP_KEY_FSDP)
        read_fsdp(r, value);
    else if (key == MP_KEY_DEEPSPEED)
        read_deepspeed(r, value);
    else
        read_integer(r, key, value, 1, RANKS_MAX,
                     key == MP_KEY_WORLD ? &run->world : &run->gpus_per_node);
}

/* An object, or the file that has it. */
static void check_training_arguments(struct reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    const char *path = NULL;
    if (value->kind == MP_STRING)
        read_name(r, MP_KEY_TRAINING_ARGUMENTS, value, &path);
    else if (value->kind != MP_OBJECT)
        mp_problems_add(&r->problems, value, label(r, MP_KEY_TRAINING_ARGUMENTS),
                        "%s is not an object or a file that has one", mp_value_show(value, shown));
}

static void read_imbalance(struct reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    double times = 0.0;
    if (mp_value_number(value, &times) && times >= 1.0 && times <= IMBALANCE_MAX)
        r->run->expert_imbalance = times;
    else
        mp_problems_add(&r->problems, value, label(r, MP_KEY_EXPERT_IMBALANCE),
                        "%s is not a number from 1 (balanced) to %d",
                        mp_value_show(value, shown), IMBALANCE_MAX);
}

static void read_value(struct reader *r, enum mp_run_key key, const struct mp_value *value)
{
    struct mp_run *const run = r->run;
    switch (key) {
    case MP_KEY_MODEL: read_model(r, value); break;
    case MP_KEY_GPU: read_name(r, key, value, &run->gpu_value); break;
    case MP_KEY_FRAMEWORK: read_name(r, key, value, &run->framework_value); break;
    case MP_KEY_BATCH: read_integer(r, key, value, 1, INT_MAX_VALUE, &run->batch); break;
    case MP_KEY_SEQ: read_integer(r, key, value, 1, INT_MAX_VALUE, &run->seq); break;
    case MP_KEY_SEQ_LENGTHS: read_seq_lengths(r, value); break;
    case MP_KEY_PAD_TO: read_integer(r, key, value, 0, INT_MAX_VALUE, &run->pad_to); break;
    case MP_KEY_PRECISION: run->precision = (enum mp_precision)read_choice(r, key, value); break;
    case MP_KEY_TF32: read_bool(r, key, value, &run->tf32); break;
    case MP_KEY_ATTENTION: run->attention = (enum mp_attention)read_choice(r, key, value); break;
    case MP_KEY_CHECKPOINT:
        if (value->kind == MP_OBJECT)
            read_checkpoint_object(r, value);
        else
            run->checkpoint = (enum mp_checkpoint)read_choice(r, key, value);
        break;
    case MP_KEY_OFFLOAD: read_offload(r, value); break;
    case MP_KEY_OPTIMIZER: run->optimizer = (enum mp_optimizer)read_choice(r, key, value); break;
    case MP_KEY_LOSS: run->loss = (enum mp_loss)read_choice(r, key, value); break;
    case MP_KEY_EXPERTS: run->experts = (enum mp_experts_kind)read_choice(r, key, value); break;
    case MP_KEY_EXPERT_IMBALANCE: read_imbalance(r, value); break;
    case MP_KEY_QUANTIZATION:
        run->quantization = (enum mp_quantization)read_choice(r, key, value);
        break;
    case MP_KEY_ACCUMULATE: read_integer(r, key, value, 1, ACCUMULATE_MAX, &run->accumulate); break;
    case MP_KEY_ITERATIONS: read_integer(r, key, value, 0, ITERATIONS_MAX, &run->iterations); break;
    case MP_KEY_CLIP_GRAD_NORM: read_bool(r, key, value, &run->clip_grad_norm); break;
    case MP_KEY_ZERO_GRAD: run->zero_grad_keep = read_choice(r, key, value) == 1; break;
    case MP_KEY_RELEASE_OUTPUTS: read_bool(r, key, value, &run->release_outputs); break;
    case MP_KEY_RETAIN_LOSSES: read_bool(r, key, value, &run->retain_losses); break;
    case MP_KEY_ATTENTION_MASK: read_attention_mask(r, value); break;
    case MP_KEY_USE_CACHE: read_bool(r, key, value, &run->use_cache); break;
    case MP_KEY_EMPTY_CACHE_EACH_STEP: read_bool(r, key, value, &run->empty_cache_each_step); break;
    case MP_KEY_ALLOCATOR_CONF: read_allocator_conf(r, value); break;
    case MP_KEY_ALLOCATOR_LIMIT_BYTES:
        read_bytes(r, key, value, &run->allocator_limit_bytes);
        break;
    case MP_KEY_INIT_DEVICE: run->init_cpu = read_choice(r, key, value) == 1; break;
    case MP_KEY_USED: read_bytes(r, key, value, &run->used_bytes); break;
    case MP_KEY_LORA: read_lora(r, value); break;
    case MP_KEY_DATA_PARALLEL:
    case MP_KEY_WORLD:
    case MP_KEY_GPUS_PER_NODE:
    case MP_KEY_COLLECTIVES:
    case MP_KEY_DDP:
    case MP_KEY_FSDP:
    case MP_KEY_DEEPSPEED: read_parallel(r, key, value); break;
    case MP_KEY_TRAINING_ARGUMENTS: check_training_arguments(r, value); break;
    case MP_RUN_KEYS:
    default: break;
    }
}

/* ---- sources ---- */

void mp_run_source_init(struct mp_run_source *source, struct mp_arena *arena)
{
    *source = (struct mp_run_source){.arena = arena};
}

static void source_set(struct mp_run_source *source, enum mp_run_key key, const char *origin,
                       const struct mp_value *value)
{
    source->values[key] = value;
    source->origins[key] = origin;
    /* The later of the two ways to say how long sequences are replaces the earlier one. */
    const enum mp_run_key other = key == MP_KEY_SEQ ? MP_KEY_SEQ_LENGTHS : MP_KEY_SEQ;
    if ((key == MP_KEY_SEQ || key == MP_KEY_SEQ_LENGTHS) && source->origins[other] != origin)
        source->values[other] = NULL;
}

static enum memplan_status out_of_memory(struct memplan_error *err)
{
    return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
}

/* Ways to share a model that the planner does not know. */
#define NOT_HERE_YET "not here yet; ranks share the work by data_parallel only"
static bool is_other_parallelism(const char *key)
{
    static const char *const keys[] = {"tensor_parallel",  "pipeline_parallel", "context_parallel",
                                       "expert_parallel",  "sequence_parallel"};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

enum memplan_status mp_run_source_object(struct mp_run_source *source, const char *origin,
                                         const struct mp_value *object, struct memplan_error *err)
{
    struct mp_run scratch = {.batch = 1};
    struct reader r = {.arena = source->arena, .run = &scratch};
    const char *const kept = mp_arena_strdup(source->arena, origin);
    if (kept == NULL)
        return out_of_memory(err);
    mp_problems_init(&r.problems, kept, err);
    if (object->kind == MP_NULL)
        mp_problems_add(&r.problems, NULL, NULL, "empty; give at least model and gpu");
    else if (object->kind != MP_OBJECT)
        mp_problems_add(&r.problems, object, NULL,
                        "a run is an object with keys such as model and gpu, not %s",
                        mp_value_kind_text(object->kind));
    if (r.problems.n > 0)
        return mp_problems_status(&r.problems);
    for (size_t i = 0; i < object->as.object.length; i++) {
        const struct mp_member *const member = &object->as.object.members[i];
        const int key = key_index(member->key);
        if (key < 0) {
            if (is_other_parallelism(member->key))
                mp_problems_add(&r.problems, member->value, member->key, NOT_HERE_YET);
            else if (strcmp(member->key, "compile") == 0 || strcmp(member->key, "torch_compile") == 0)
                mp_problems_add(&r.problems, member->value, member->key,
                                "torch.compile is not simulated; leave it out to plan eager mode");
            else if (member->key[0] != '_')
                mp_problems_add_unknown(&r.problems, member, "", key_texts, MP_RUN_KEYS);
            continue;
        }
        if (member->value->kind == MP_NULL)
            continue;
        read_value(&r, (enum mp_run_key)key, member->value);
        source_set(source, (enum mp_run_key)key, kept, member->value);
    }
    return r.no_memory ? out_of_memory(err) : mp_problems_status(&r.problems);
}

enum memplan_status mp_run_source_file(struct mp_run_source *source, const char *path,
                                       struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    enum memplan_status status = mp_spec_read_file(path, &text, err);
    if (status == MEMPLAN_STATUS_OK && strspn(mp_strbuf_text(&text), " \t\r\n") == text.len) {
        status =
            mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: empty; give at least model and gpu", path);
    } else if (status == MEMPLAN_STATUS_OK) {
        struct memplan_error own = {0};
        const struct mp_value *const value =
            mp_yaml_parse(source->arena, path, mp_strbuf_text(&text), text.len, &own);
        if (value != NULL) {
            status = mp_run_source_object(source, path, value, err);
        } else {
            status = own.status;
            if (err != NULL)
                *err = own;
        }
    }
    mp_strbuf_release(&text);
    return status;
}

/* Keys whose text is taken as it stands; the others are read as YAML, so that numbers, switches and
 * objects become what they are. */
static bool is_text_key(enum mp_run_key key)
{
    switch (key) {
    case MP_KEY_MODEL:
    case MP_KEY_GPU:
    case MP_KEY_FRAMEWORK:
    case MP_KEY_PRECISION:
    case MP_KEY_ATTENTION:
    case MP_KEY_OPTIMIZER:
    case MP_KEY_LOSS:
    case MP_KEY_EXPERTS:
    case MP_KEY_QUANTIZATION:
    case MP_KEY_ZERO_GRAD:
    case MP_KEY_ALLOCATOR_CONF:
    case MP_KEY_ALLOCATOR_LIMIT_BYTES:
    case MP_KEY_INIT_DEVICE:
    case MP_KEY_USED:
    case MP_KEY_DATA_PARALLEL:
    case MP_KEY_COLLECTIVES:
    case MP_KEY_DEEPSPEED: return true;
    default: return false;
    }
}

static const struct mp_value *string_value(struct mp_arena *arena, const char *text,
                                           struct memplan_error *err)
{
    struct mp_value *const value = mp_arena_alloc(arena, sizeof *value);
    char *const copy = mp_arena_strdup(arena, text);
    if (value == NULL || copy == NULL) {
        (void)out_of_memory(err);
        return NULL;
    }
    value->kind = MP_STRING;
    value->as.string.text = copy;
    value->as.string.length = strlen(copy);
    return value;
}

/* A text on the command line has no lines and columns worth telling. */
static const struct mp_value *parse_text(struct mp_arena *arena, const char *origin,
                                         const char *text, struct memplan_error *err)
{
    const struct mp_value *const parsed = mp_yaml_parse(arena, origin, text, strlen(text), err);
    if (parsed == NULL)
        return NULL;
    struct mp_value *const value = mp_arena_alloc(arena, sizeof *value);
    if (value == NULL) {
        (void)out_of_memory(err);
        return NULL;
    }
    *value = *parsed;
    value->line = value->column = 0;
    return value;
}

static const struct mp_value *text_value(struct mp_arena *arena, enum mp_run_key key,
                                         const char *origin, const char *text,
                                         struct memplan_error *err)
{
    if (is_text_key(key) && !(key == MP_KEY_MODEL && text[0] == '{'))
        return string_value(arena, text, err);
    if (text[strspn(text, " \t")] == '\0') {
        (void)mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: empty; give a value", origin);
        return NULL;
    }
    if (key == MP_KEY_SEQ_LENGTHS && text[0] != '[') {
        char *const list = mp_arena_printf(arena, "[%s]", text);
        if (list == NULL) {
            (void)out_of_memory(err);
            return NULL;
        }
        return parse_text(arena, origin, list, err);
    }
    return parse_text(arena, origin, text, err);
}

enum memplan_status mp_run_source_text(struct mp_run_source *source, const char *key,
                                       const char *origin, const char *text,
                                       struct memplan_error *err)
{
    const int index = key_index(key);
    if (index < 0 && is_other_parallelism(key))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: " NOT_HERE_YET, origin);
    if (index < 0) {
        const char *const closest = mp_closest(key, key_texts, MP_RUN_KEYS);
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: unknown key '%.80s'%s%s%s", origin, key,
                            closest != NULL ? ", did you mean '" : "",
                            closest != NULL ? closest : "", closest != NULL ? "'?" : "");
    }
    struct mp_run scratch = {.batch = 1};
    struct reader r = {.arena = source->arena, .run = &scratch};
    const char *const kept = mp_arena_strdup(source->arena, origin);
    if (kept == NULL)
        return out_of_memory(err);
    struct memplan_error own = {0};
    const struct mp_value *const value =
        text_value(source->arena, (enum mp_run_key)index, kept, text, &own);
    if (value == NULL) {
        if (err != NULL)
            *err = own;
        return own.status;
    }
    mp_problems_init(&r.problems, kept, err);
    if (value->kind != MP_NULL)
        read_value(&r, (enum mp_run_key)index, value);
    source_set(source, (enum mp_run_key)index, kept, value->kind == MP_NULL ? NULL : value);
    return r.no_memory ? out_of_memory(err) : mp_problems_status(&r.problems);
}

/* ---- resolving ---- */

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
            (void)out_of_memory(err);
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

/* Names the place of a key whose value is wrong beside others: its file or flag. Its value, NULL when
 * it was not given. */
static const struct mp_value *locate(const struct mp_run_source *source, struct reader *r,
                                     enum mp_run_key key)
{
    const struct mp_value *const value = source->values[key];
    if (r->problems.n == 0)
        r->problems.origin = value != NULL ? source->origins[key] : NULL;
    return value;
}

/* Rounds the lengths up to pad_to; seq becomes the longest. */
static void round_lengths(const struct mp_run_source *source, struct reader *r)
{
    struct mp_run *const run = r->run;
    const int64_t to = MP_MAX(run->pad_to, 1);
    int64_t *const lengths =
        run->n_seq_lengths == 0
            ? NULL
            : mp_arena_calloc(source->arena, run->n_seq_lengths, sizeof *lengths);
    if (run->n_seq_lengths > 0 && lengths == NULL) {
        r->no_memory = true;
        return;
    }
    if (run->n_seq_lengths > 0)
        run->seq = 1;
    for (size_t i = 0; i < run->n_seq_lengths; i++) {
        lengths[i] = (run->seq_lengths[i] + to - 1) / to * to;
        run->seq = MP_MAX(run->seq, lengths[i]);
    }
    run->seq_lengths = lengths;
    run->seq = (run->seq + to - 1) / to * to;
    if (run->seq <= INT_MAX_VALUE)
        return;
    const struct mp_value *const at = locate(source, r, MP_KEY_PAD_TO);
    mp_problems_add(&r->problems, at, label(r, MP_KEY_PAD_TO),
                    "rounds %" PRId64 " tokens up past 2147483647", run->seq);
}

/* Images: the sequence follows from the model. */
static void fix_seq(const struct mp_run_source *source, struct reader *r)
{
    static const enum mp_run_key lengths[] = {MP_KEY_SEQ, MP_KEY_SEQ_LENGTHS, MP_KEY_PAD_TO};
    struct mp_run *const run = r->run;
    const int64_t seq = mp_model_fixed_seq(run->model);
    for (size_t i = 0; i < MP_ARRAY_LEN(lengths); i++) {
        const bool same = lengths[i] == MP_KEY_SEQ && run->seq == seq;
        if (!mp_run_is_given(run, lengths[i]) || same)
            continue;
        const struct mp_value *const at = locate(source, r, lengths[i]);
        mp_problems_add(&r->problems, at, label(r, lengths[i]),
                        "the sequence of model '%s' has %" PRId64
                        " positions, by its image_size and patch_size; leave it out",
                        run->model->name, seq);
    }
    run->seq = seq;
}

static void warn(struct reader *r, const char *const text)
{
    const char **const warnings = (const char **)(uintptr_t)r->run->warnings;
    if (text == NULL || warnings == NULL)
        r->no_memory = true;
    else if (r->run->n_warnings < WARNINGS_MAX)
        warnings[r->run->n_warnings++] = text;
}

static void check_positions(const struct mp_run_source *source, struct reader *r,
                            int64_t positions, bool table)
{
    const struct mp_run *const run = r->run;
    const enum mp_run_key key = run->n_seq_lengths > 0 ? MP_KEY_SEQ_LENGTHS : MP_KEY_SEQ;
    if (run->seq <= positions)
        return;
    if (!table) {
        warn(r, mp_arena_printf(r->arena,
                                "seq %" PRId64 " is beyond the %" PRId64
                                " positions that %s was made for",
                                run->seq, positions, run->model->name));
        return;
    }
    const struct mp_value *const at = locate(source, r, key);
    mp_problems_add(&r->problems, at, label(r, key),
                    "%" PRId64 " is above the %" PRId64
                    " positions of model '%s'; give at most %" PRId64,
                    run->seq, positions, run->model->name, positions);
}

static bool is_deepspeed(enum mp_parallel_kind kind)
{
    return kind == MP_PARALLEL_DEEPSPEED_ZERO1 || kind == MP_PARALLEL_DEEPSPEED_ZERO2 ||
           kind == MP_PARALLEL_DEEPSPEED_ZERO3;
}

bool mp_run_treats_blocks(const struct mp_run *run)
{
    return run->recompute[MP_PART_ATTENTION].n > 0 || run->recompute[MP_PART_MLP].n > 0 || run->offload.n > 0;
}

bool mp_run_may_treat_blocks(const struct mp_run *run)
{
    return run->trainer == NULL && !is_deepspeed(run->parallel) && run->quantization == MP_QUANTIZATION_NONE && !run->use_cache;
}

/* A block is recomputed as a whole or in parts, or its tensors go to the host. */
static void check_one_way(struct reader *r)
{
    const struct mp_run *const run = r->run;
    for (int part = 0; part < MP_PARTS; part++) {
        const int both = mp_layer_set_common(&run->checkpoint_layers, &run->recompute[part]);
        if (both >= 0)
            mp_problems_add(&r->problems, NULL, "checkpoint", "block %d is recomputed as a whole; take it out of %s", both,
                            mp_block_part_text((enum mp_block_part)part));
    }
    const struct mp_layer_set *const recomputed[] = {&run->checkpoint_layers, &run->recompute[MP_PART_ATTENTION],
                                                     &run->recompute[MP_PART_MLP]};
    for (size_t i = 0; i < MP_ARRAY_LEN(recomputed); i++) {
        const int both = mp_layer_set_common(&run->offload, recomputed[i]);
        if (both >= 0) {
            mp_problems_add(&r->problems, NULL, "offload", "block %d is in checkpoint too; take it out of one of them", both);
            return;
        }
    }
    if (run->offload.n > 0 && (run->checkpoint == MP_CHECKPOINT_FULL || run->checkpoint == MP_CHECKPOINT_FULL_REENTRANT))
        mp_problems_add(&r->problems, NULL, "offload", "with checkpoint: %s every block is recomputed; name single ones with layers",
                        mp_checkpoint_text(run->checkpoint));
}

static void check_layers(const struct mp_run_source *source, struct reader *r)
{
    struct mp_run *const run = r->run;
    const int64_t layers = mp_model_layers(run->model);
    const char *const model = run->model->name;
    const struct mp_value *at = locate(source, r, MP_KEY_CHECKPOINT);
    bool memory = mp_layer_set_resolve(&r->problems, r->arena, at, "checkpoint", model, layers, &run->checkpoint_layers);
    memory &= mp_layer_set_resolve(&r->problems, r->arena, at, "checkpoint.attention", model, layers, &run->recompute[MP_PART_ATTENTION]);
    memory &= mp_layer_set_resolve(&r->problems, r->arena, at, "checkpoint.mlp", model, layers, &run->recompute[MP_PART_MLP]);
    at = locate(source, r, MP_KEY_OFFLOAD);
    memory &= mp_layer_set_resolve(&r->problems, r->arena, at, "offload", model, layers, &run->offload);
    r->no_memory |= !memory;
    if (memory)
        check_one_way(r);
}

/*
 * train_batch_size = micro-batch x accumulation x ranks: what the file leaves open follows, as in
 * deepspeed/runtime/config.py, and DeepSpeed does not start unless they agree. A batch of the run
 * stands over the file's.
 */
static void join_batches(struct reader *r)
{
    struct mp_run *const run = r->run;
    const struct mp_deepspeed_options *const o = &run->deepspeed;
    const bool own_batch = mp_run_is_given(run, MP_KEY_BATCH);
    int64_t batch = own_batch ? run->batch : o->micro_batch;
    int64_t accumulate = mp_run_is_given(run, MP_KEY_ACCUMULATE) ? run->accumulate : o->accumulate;
    if (accumulate == 0)
        accumulate = o->train_batch > 0 && batch > 0 ? MP_MAX(o->train_batch / batch / run->world, 1) : 1;
    if (batch == 0)
        batch = MP_MAX(o->train_batch / accumulate / run->world, 1);
    run->batch = batch;
    run->accumulate = MP_MIN(accumulate, ACCUMULATE_MAX);
    uint64_t samples = 0;
    const bool whole = mp_mul_u64((uint64_t)batch, (uint64_t)accumulate, &samples) && mp_mul_u64(samples, (uint64_t)run->world, &samples);
    if (!own_batch && o->train_batch > 0 && (!whole || samples != (uint64_t)o->train_batch))
        mp_problems_add(&r->problems, NULL, "deepspeed",
                        "train_batch_size %" PRId64 " is not %" PRId64 " (micro-batch) x %" PRId64 " (accumulation) x %" PRId64
                        " (ranks)",
                        o->train_batch, batch, accumulate, run->world);
}

/* The stage from either side; batch, accumulation, type and optimizer as DeepSpeed's file has them. */
static void join_deepspeed(struct reader *r)
{
    struct mp_run *const run = r->run;
    struct mp_deepspeed_options *const o = &run->deepspeed;
    const int stage =
        is_deepspeed(run->parallel) ? (int)run->parallel - MP_PARALLEL_DEEPSPEED_ZERO1 + 1 : 0;
    if (stage == 0 && o->stage == 0)
        return;
    if (run->parallel != MP_PARALLEL_NONE && stage != o->stage && o->stage != 0)
        mp_problems_add(&r->problems, NULL, "data_parallel",
                        "\"%s\" is not stage %d of the deepspeed file",
                        mp_parallel_text(run->parallel), o->stage);
    if (o->stage == 0)
        mp_deepspeed_options_init(o, stage);
    run->parallel = (enum mp_parallel_kind)(MP_PARALLEL_DEEPSPEED_ZERO1 + o->stage - 1);
    join_batches(r);
    const int64_t hidden = mp_model_integer(run->model, "hidden_size|n_embd|d_model");
    if (hidden > 0)
        mp_deepspeed_options_fill(o, hidden);
    if (!mp_run_is_given(run, MP_KEY_PRECISION) && o->auto_half && !o->half_fp16 && !o->half_bf16)
        mp_problems_add(&r->problems, NULL, "precision",
                        "\"auto\" in the deepspeed file is for the Trainer to fill in; give fp32, bf16 or fp16");
    if (!mp_run_is_given(run, MP_KEY_PRECISION))
        run->precision = o->half_fp16   ? MP_PRECISION_FP16
                         : o->half_bf16 ? MP_PRECISION_BF16
                                        : MP_PRECISION_FP32;
    if (!mp_run_is_given(run, MP_KEY_OPTIMIZER) && o->has_optimizer)
        run->optimizer = o->torch_adam ? MP_OPTIMIZER_ADAMW_FOREACH : MP_OPTIMIZER_ADAMW_FUSED;
}

/* Options of one kind of data parallelism, given for another or for none: they would change nothing. */
static void refuse_idle_options(const struct mp_run_source *source, struct reader *r)
{
    const struct mp_run *const run = r->run;
    const struct {
        enum mp_run_key key;
        bool idle;
        const char *kinds;
    } options[] = {
        {MP_KEY_DDP, run->parallel != MP_PARALLEL_DDP && run->parallel != MP_PARALLEL_ZERO1, "ddp or zero1"},
        {MP_KEY_FSDP, run->parallel != MP_PARALLEL_FSDP2, "fsdp2"},
        {MP_KEY_COLLECTIVES, run->parallel == MP_PARALLEL_NONE && run->no_collectives, "given"},
    };
    for (size_t i = 0; i < MP_ARRAY_LEN(options); i++) {
        const enum mp_run_key key = options[i].key;
        const struct mp_value *const value = source->values[key];
        const bool empty = value == NULL || value->kind == MP_NULL || (value->kind == MP_OBJECT && value->as.object.length == 0);
        if (!options[i].idle || empty || !mp_run_is_given(run, key))
            continue;
        (void)locate(source, r, key);
        mp_problems_add(&r->problems, value, label(r, key),
                        "only with data_parallel%s%s, not \"%s\"; set that, or leave this out",
                        strcmp(options[i].kinds, "given") == 0 ? "" : ": ",
                        strcmp(options[i].kinds, "given") == 0 ? "" : options[i].kinds, mp_parallel_text(run->parallel));
    }
}

/* Ranks, hosts, and who shares what. */
static void check_parallel(const struct mp_run_source *source, struct reader *r)
{
    struct mp_run *const run = r->run;
    join_deepspeed(r);
    if (!source->kinds_vary)
        refuse_idle_options(source, r);
    if (!mp_run_is_given(run, MP_KEY_GPUS_PER_NODE))
        run->gpus_per_node = MP_MIN(run->world, GPUS_PER_NODE_DEFAULT);
    const struct mp_value *at = locate(source, r, MP_KEY_WORLD);
    if (run->parallel == MP_PARALLEL_NONE && run->world > 1)
        mp_problems_add(&r->problems, at, label(r, MP_KEY_WORLD),
                        "%" PRId64 " ranks need data_parallel: ddp, zero1 or fsdp2", run->world);
    if (run->world % run->gpus_per_node != 0)
        mp_problems_add(&r->problems, at, label(r, MP_KEY_WORLD),
                        "%" PRId64 " ranks do not fill hosts of %" PRId64 "; give gpus_per_node",
                        run->world, run->gpus_per_node);
    at = locate(source, r, MP_KEY_FSDP);
    if (run->world % run->fsdp.replicas != 0)
        mp_problems_add(&r->problems, at, "fsdp.replicas",
                        "%" PRId64 " does not divide %" PRId64 " ranks", run->fsdp.replicas,
                        run->world);
    else if (run->fsdp.reshard_to > 0 &&
             run->world / run->fsdp.replicas % run->fsdp.reshard_to != 0)
        mp_problems_add(&r->problems, at, "fsdp.reshard_after_forward",
                        "%" PRId64 " does not divide the %" PRId64 " ranks that share the weights",
                        run->fsdp.reshard_to, run->world / run->fsdp.replicas);
}

/* What is trained is up to the script, not to the file: a checkpoint of one class is often loaded as another. */
static void check_head(struct reader *r)
{
    const char *planned;
    const char *const other = mp_model_other_head(r->run->model, &planned);
    if (other != NULL)
        warn(r, mp_arena_printf(r->arena, "architectures names %.80s; what is planned is %s with the family's %s, which may take more or less",
                                other, r->run->model->model_type, planned));
}

static void check_precision(struct reader *r)
{
    const struct mp_run *const run = r->run;
    const bool bf16 =
        run->precision == MP_PRECISION_BF16 || run->precision == MP_PRECISION_AMP_BF16;
    if (bf16 && !run->gpu->bf16)
        warn(r, mp_arena_printf(r->arena,
                                "%s has no native bfloat16 (compute capability %d.%d): it is "
                                "emulated and slow, amp-fp16 "
                                "is what such cards are used with",
                                run->gpu->name, run->gpu->compute_capability / 10,
                                run->gpu->compute_capability % 10));
}

/* What this release does not simulate. */
static bool check_supported(const struct mp_run *run, struct memplan_error *err)
{
    const bool amp =
        run->precision == MP_PRECISION_AMP_BF16 || run->precision == MP_PRECISION_AMP_FP16;
    if (!is_deepspeed(run->parallel))
        return true;
    if (amp)
        (void)mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                           "precision: \"%s\" is not supported with DeepSpeed; bf16, fp16 and "
                           "fp32 are",
                           mp_precision_text(run->precision));
    else if (run->lora != NULL)
        (void)mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                           "lora: not supported with DeepSpeed; leave it out");
    else
        return true;
    return false;
}

static void check_optimizer(struct reader *r)
{
    if (r->run->optimizer == MP_OPTIMIZER_PAGED_ADAMW_8BIT)
        warn(r,
             "paged-adamw-8bit keeps state of tensors from 100,000 elements up in managed memory, "
             "which moves between host and card and is not counted");
}

/* What transformers has no switch for is measured with a loop of one's own, whole weights and torch's own wrappers. */
static void check_treated_blocks(struct reader *r)
{
    const struct mp_run *const run = r->run;
    const char *const key = run->offload.n > 0 ? "offload" : "checkpoint";
    if (!mp_run_treats_blocks(run))
        return;
    if (run->trainer != NULL)
        mp_problems_add(&r->problems, NULL, key, "parts of blocks and host copies are not supported with framework hf-trainer");
    if (is_deepspeed(run->parallel))
        mp_problems_add(&r->problems, NULL, key, "parts of blocks and host copies are not supported with data_parallel: %s",
                        mp_parallel_text(run->parallel));
    if (run->quantization != MP_QUANTIZATION_NONE)
        mp_problems_add(&r->problems, NULL, key, "parts of blocks and host copies are not supported with quantization: %s",
                        mp_quantization_text(run->quantization));
    if (run->use_cache)
        mp_problems_add(&r->problems, NULL, "use_cache",
                        "a second run of attention would fill the cache twice; leave it out with %s", key);
}

/* Losses without logits, 4-bit weights and muon are measured with a loop of one's own on one GPU. */
static void refuse_beside(struct reader *r, const char *key, const char *value)
{
    const struct mp_run *const run = r->run;
    if (run->trainer != NULL)
        mp_problems_add(&r->problems, NULL, key, "\"%s\" is not supported with framework hf-trainer",
                        value);
    else if (run->parallel != MP_PARALLEL_NONE)
        mp_problems_add(&r->problems, NULL, key, "\"%s\" is not supported with data_parallel: %s",
                        value, mp_parallel_text(run->parallel));
}

static void check_quantization(struct reader *r)
{
    struct mp_run *const run = r->run;
    if (r->problems.n == 0)
        r->problems.origin = run->model->origin;
    if (mp_quantization_apply_stored(&r->problems, run))
        warn(r, "quantization nf4 from the model's quantization_config; weights that are stored in 4 bits load with less than is "
                "predicted for the phase 'model', where they are quantised");
    if (r->problems.n == 0)
        r->problems.origin = NULL;
    if (run->quantization == MP_QUANTIZATION_NONE)
        return;
    refuse_beside(r, "quantization", mp_quantization_text(run->quantization));
    if (run->lora == NULL)
        mp_problems_add(&r->problems, NULL, "quantization",
                        "4-bit weights are not trained themselves; give lora");
    if (mp_run_is_given(run, MP_KEY_INIT_DEVICE) && !run->init_cpu)
        mp_problems_add(&r->problems, NULL, "init_device",
                        "weights are quantised on their way from the host; leave it out");
    run->init_cpu = true;
}

/* Memory of experts that run one by one depends on the routing. */
static void check_experts(struct reader *r)
{
    const struct mp_run *const run = r->run;
    if (run->experts == MP_EXPERTS_GROUPED) {
        if (mp_run_is_given(run, MP_KEY_EXPERT_IMBALANCE))
            mp_problems_add(&r->problems, NULL, "expert_imbalance",
                            "grouped experts do not depend on the routing; give experts: eager or "
                            "leave it out");
        return;
    }
    if (run->expert_imbalance > 1.0)
        warn(r, mp_arena_printf(r->arena,
                                "experts run one by one: requested bytes are a bound for routing "
                                "whose busiest expert has at most %g times the mean",
                                run->expert_imbalance));
    else
        warn(r, "experts run one by one: this is for balanced routing, --expert-imbalance gives a "
                "bound");
}

static void check_variants(struct reader *r)
{
    if (r->run->loss != MP_LOSS_FULL)
        refuse_beside(r, "loss", mp_loss_text(r->run->loss));
    if (r->run->optimizer == MP_OPTIMIZER_MUON)
        refuse_beside(r, "optimizer", mp_optimizer_text(r->run->optimizer));
    check_quantization(r);
    check_experts(r);
    check_treated_blocks(r);
}

static void read_all(const struct mp_run_source *source, struct reader *r)
{
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        if (source->values[key] == NULL)
            continue;
        if (r->problems.n == 0)
            r->problems.origin = source->origins[key];
        read_value(r, (enum mp_run_key)key, source->values[key]);
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

static const struct mp_value *read_arguments_file(struct reader *r, const char *path)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error own = {0};
    const struct mp_value *value = NULL;
    if (mp_spec_read_file(path, &text, &own) == MEMPLAN_STATUS_OK)
        value = mp_yaml_parse(r->arena, path, mp_strbuf_text(&text), text.len, &own);
    mp_strbuf_release(&text);
    if (value == NULL)
        mp_problems_add(&r->problems, NULL, "training_arguments", "%s", own.text);
    else if (value->kind != MP_OBJECT)
        mp_problems_add(&r->problems, NULL, "training_arguments", "%s: not an object", path);
    else if (r->problems.n == 0)
        r->problems.origin = path;
    return value != NULL && value->kind == MP_OBJECT ? value : NULL;
}

/* Keys that describe a loop of one's own, or that are not simulated with the Trainer's. */
static void refuse_what_the_trainer_decides(struct reader *r)
{
    const struct mp_run *const run = r->run;
    const struct {
        enum mp_run_key key;
        bool on;
    } keys[] = {{MP_KEY_DATA_PARALLEL, run->parallel != MP_PARALLEL_NONE},
                {MP_KEY_SEQ_LENGTHS, run->n_seq_lengths > 0},
                {MP_KEY_ZERO_GRAD, run->zero_grad_keep},
                {MP_KEY_RELEASE_OUTPUTS, run->release_outputs},
                {MP_KEY_RETAIN_LOSSES, run->retain_losses},
                {MP_KEY_EMPTY_CACHE_EACH_STEP, run->empty_cache_each_step}};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        if (keys[i].on)
            mp_problems_add(&r->problems, NULL, key_texts[keys[i].key],
                            "not supported with framework hf-trainer");
}

/* framework hf-trainer: the arguments fill in what the run does not say. */
static void apply_trainer(const struct mp_run_source *source, struct reader *r)
{
    static const struct mp_value none = {.kind = MP_OBJECT};
    const struct mp_value *value = source->values[MP_KEY_TRAINING_ARGUMENTS];
    struct mp_run *const run = r->run;
    if (!run->profile->trainer) {
        (void)locate(source, r, MP_KEY_TRAINING_ARGUMENTS);
        if (value != NULL)
            mp_problems_add(&r->problems, value, label(r, MP_KEY_TRAINING_ARGUMENTS),
                            "only for framework hf-trainer");
        return;
    }
    refuse_what_the_trainer_decides(r);
    struct mp_trainer_options *const trainer = mp_arena_alloc(r->arena, sizeof *trainer);
    if (trainer == NULL) {
        r->no_memory = true;
        return;
    }
    (void)locate(source, r, MP_KEY_TRAINING_ARGUMENTS);
    if (value != NULL && value->kind == MP_STRING)
        value = read_arguments_file(r, value->as.string.text);
    else if (value == NULL)
        value = &none;
    if (value != NULL)
        mp_training_arguments_apply(&r->problems, value, trainer, run);
    run->trainer = trainer;
}

/* Defaults that depend on model and GPU, then the checks that need both. */
static void complete(const struct mp_run_source *source, struct reader *r)
{
    struct mp_run *const run = r->run;
    bool table = false;
    const int64_t positions = mp_model_positions(run->model, &table);
    apply_trainer(source, r);
    if (run->trainer == NULL && !mp_run_is_given(run, MP_KEY_PRECISION) && !run->gpu->bf16)
        run->precision = MP_PRECISION_AMP_FP16;
    if (!mp_run_is_given(run, MP_KEY_SEQ))
        run->seq = MP_MIN(positions, DEFAULT_SEQ_MAX);
    if (mp_model_fixed_seq(run->model) > 0)
        fix_seq(source, r);
    else
        round_lengths(source, r);
    check_positions(source, r, positions, table);
    check_layers(source, r);
    check_parallel(source, r);
    check_head(r);
    check_precision(r);
    check_optimizer(r);
    check_variants(r);
}

const struct mp_run *mp_run_resolve(const struct mp_run_source *source, struct memplan_error *err)
{
    struct mp_run *const run = mp_arena_alloc(source->arena, sizeof *run);
    const char **const warnings = mp_arena_calloc(source->arena, WARNINGS_MAX, sizeof *warnings);
    struct reader r = {.arena = source->arena, .run = run};
    if (run == NULL || warnings == NULL) {
        (void)out_of_memory(err);
        return NULL;
    }
    set_defaults(run);
    run->warnings = warnings;
    run->max_batch = source->max_batch;
    mp_problems_init(&r.problems, NULL, err);
    r.problems.origin = "";
    read_all(source, &r);
    if (r.problems.n > 0)
        return NULL;
    if (!read_parts(source, run, err))
        return NULL;
    complete(source, &r);
    if (r.no_memory)
        (void)out_of_memory(err);
    return r.no_memory || r.problems.n > 0 || !check_supported(run, err) ? NULL : run;
}

/* ---- describing ---- */

bool mp_run_is_given(const struct mp_run *run, enum mp_run_key key)
{
    return (run->given >> (unsigned)key & 1) != 0;
}

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
            mp_strbuf_addf(&off, "%s%s", off.len == 0 ? "" : ", ", key_texts[key]);
        else if (text[0] != '\0')
            mp_strbuf_addf(out, "%s%s %s", first ? "" : ", ", key_texts[key], text);
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
                mp_layer_set_write_json(&run->recompute[part], w, mp_block_part_text((enum mp_block_part)part));
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
