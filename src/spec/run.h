/* SPDX-License-Identifier: MIT */
/*
 * A run spec: one set of keys for command-line flags, YAML and JSON (flags: `--allocator-conf`,
 * key: `allocator_conf`). The table in run_keys.c is the only list of keys; parsing, help,
 * completion, man-page check and `assumed` come from it.
 */
#ifndef MP_RUN_H
#define MP_RUN_H

#include "base/json.h"
#include "base/strbuf.h"
#include "base/value.h"
#include "spec/deepspeed.h"
#include "spec/layers.h"
#include "spec/gpu.h"
#include "spec/model.h"
#include "spec/profile.h"

#define MP_ACCUMULATE_MAX 65536 /* every micro-batch has a tensor of its own */

enum mp_precision {
    MP_PRECISION_FP32,
    MP_PRECISION_BF16,
    MP_PRECISION_FP16,
    MP_PRECISION_AMP_BF16,
    MP_PRECISION_AMP_FP16
};
enum mp_attention { MP_ATTENTION_SDPA, MP_ATTENTION_EAGER };
enum mp_checkpoint {
    MP_CHECKPOINT_NONE,
    MP_CHECKPOINT_FULL,
    MP_CHECKPOINT_FULL_REENTRANT,
    MP_CHECKPOINT_LAYERS
};
/* Parts of a block that can be recomputed alone: keys of `checkpoint`. */
enum mp_block_part { MP_PART_ATTENTION, MP_PART_MLP, MP_PARTS };
enum mp_optimizer {
    MP_OPTIMIZER_ADAMW_FOREACH,
    MP_OPTIMIZER_ADAMW_FUSED,
    MP_OPTIMIZER_ADAMW_FORLOOP,
    MP_OPTIMIZER_SGD,
    MP_OPTIMIZER_SGD_MOMENTUM,
    MP_OPTIMIZER_ADAFACTOR,
    MP_OPTIMIZER_NONE,
    MP_OPTIMIZER_ADAMW_8BIT, /* bitsandbytes */
    MP_OPTIMIZER_PAGED_ADAMW_8BIT,
    MP_OPTIMIZER_LION,
    MP_OPTIMIZER_MUON /* torch.optim.Muon for hidden matrices, AdamW (foreach) for the rest */
};
enum mp_loss { MP_LOSS_FULL, MP_LOSS_CHUNKED, MP_LOSS_FUSED };
enum mp_experts_kind { MP_EXPERTS_GROUPED, MP_EXPERTS_EAGER };
enum mp_quantization { MP_QUANTIZATION_NONE, MP_QUANTIZATION_NF4 };
enum mp_attention_mask { MP_MASK_NONE, MP_MASK_ONES, MP_MASK_PADDED };
enum mp_parallel_kind {
    MP_PARALLEL_NONE,
    MP_PARALLEL_DDP,
    MP_PARALLEL_ZERO1,
    MP_PARALLEL_FSDP2,
    MP_PARALLEL_DEEPSPEED_ZERO1,
    MP_PARALLEL_DEEPSPEED_ZERO2,
    MP_PARALLEL_DEEPSPEED_ZERO3
};
enum mp_compression { MP_COMPRESSION_NONE, MP_COMPRESSION_FP16, MP_COMPRESSION_BF16 };

/* Arguments of DistributedDataParallel, and how the loop uses it. */
struct mp_ddp_options {
    double bucket_cap_mb; /* 0: PyTorch's own, 1 MiB for the first bucket, 25 MiB for the others */
    bool gradient_as_bucket_view, static_graph, find_unused_parameters;
    bool no_sync;                    /* all micro-batches but the last one run under no_sync() */
    enum mp_compression compression; /* communication hook */
    /*
     * Not a key: backward passes by which the tensors of a collective outlive their usual end: the
     * first iteration's bucket, and a compressing hook's copies. Whether NCCL's process group lets
     * go of them in time is a race with its watchdog; 0 is the usual outcome, 1 and 2 were seen.
     */
    int lingers;
    /*
     * Not a key, likewise: for each collective call after the first backward, how many tensors of
     * earlier ones, the oldest first, the watchdog has seen to be done with since the call before.
     * NULL: as lingers says.
     */
    const uint16_t *wakes;
    size_t n_wakes;
};

/* Arguments of fully_shard, which is called on each block and then on the model. */
struct mp_fsdp_options {
    bool keep_unsharded; /* reshard_after_forward: false */
    /* reshard_after_forward: N, ranks that share the weights between forward and backward; 0: all */
    int64_t reshard_to;
    bool mixed_precision; /* bf16 parameters, fp32 reduction */
    bool offload;         /* CPUOffloadPolicy: shards, gradients and optimizer on the host */
    int64_t replicas;     /* HSDP: groups that hold the same shards; 1: none */
};

/* Low-rank adapters on a frozen base (peft's LoraConfig). */
struct mp_lora {
    int64_t rank;
    const char *const *targets; /* names of linear layers, or their ends after a dot */
    size_t n_targets;
    double alpha, dropout;
};

/* framework hf-trainer: what the Trainer does beside the loop that other keys describe. */
enum mp_amp { MP_AMP_NONE, MP_AMP_BF16, MP_AMP_FP16 };
struct mp_trainer_options {
    enum mp_amp amp;    /* autocast around the model; `precision` is the type of the weights */
    int64_t eval_steps; /* evaluation after every so many steps; 0: none */
    int64_t eval_batch, eval_samples;
    int64_t logging_steps;
};

struct mp_run {
    const struct mp_model *model;
    const struct mp_gpu *gpu;
    const struct mp_profile *profile;
    int64_t batch, seq;
    const int64_t *seq_lengths; /* cycled over the micro-batches; NULL: every one has seq */
    size_t n_seq_lengths;
    int64_t pad_to; /* lengths are rounded up to a multiple; 0: not */
    enum mp_precision precision;
    bool tf32;
    enum mp_attention attention;
    enum mp_checkpoint checkpoint;
    struct mp_layer_set checkpoint_layers; /* LAYERS: which */
    struct mp_layer_set recompute[MP_PARTS]; /* blocks of which this part alone is recomputed;
                                                beside LAYERS or NONE */
    struct mp_layer_set offload; /* blocks whose saved tensors wait in pinned host memory */
    enum mp_optimizer optimizer;
    int64_t accumulate;
    int64_t iterations; /* 0: until the allocator's state repeats, at most 10 */
    bool clip_grad_norm, zero_grad_keep, release_outputs, retain_losses, use_cache,
        empty_cache_each_step;
    enum mp_attention_mask attention_mask;
    enum mp_loss loss;            /* of causal language models */
    enum mp_experts_kind experts; /* how the experts of a layer run */
    double expert_imbalance; /* eager experts: the busiest has so many times the mean; 1: balanced */
    enum mp_quantization quantization;        /* of the frozen linear layers */
    const struct mp_lora *lora;               /* NULL: the whole model is trained */
    const struct mp_trainer_options *trainer; /* NULL: a loop of one's own */
    bool init_cpu;                            /* init_device: cpu */
    const char *allocator_conf;               /* "" when not given */
    uint64_t allocator_limit_bytes;           /* 0: none */
    uint64_t used_bytes;                      /* taken by others: --used */
    enum mp_parallel_kind parallel;
    int64_t world, gpus_per_node; /* ranks; ranks of one host */
    int64_t rank;                 /* whose memory; not a key: 0 unless set by a caller */
    bool no_collectives;          /* collectives: none, a process group that moves nothing */
    struct mp_ddp_options ddp;
    struct mp_fsdp_options fsdp;
    struct mp_deepspeed_options deepspeed;
    const struct mp_value *deepspeed_value; /* as given: a path or the configuration; may be NULL */
    bool max_batch;                         /* look for the largest batch instead */
    uint64_t given; /* bit per key (enum mp_run_key) that the user set; the others were assumed */
    const struct mp_value *model_value;      /* as given: a name, a path or an object */
    const char *gpu_value, *framework_value; /* as given */
    const char *const *warnings; /* what the user should know: one line each, without a full stop */
    size_t n_warnings;
};

/* Keys in the order of help texts. `assumed` prints those whose bit in `given` is clear. */
/* clang-format off */
#define MP_RUN_KEY_MAP(X)                             \
    X(MODEL, "model")                                 \
    X(GPU, "gpu")                                     \
    X(FRAMEWORK, "framework")                         \
    X(BATCH, "batch")                                 \
    X(SEQ, "seq")                                     \
    X(SEQ_LENGTHS, "seq_lengths")                     \
    X(PAD_TO, "pad_to")                               \
    X(PRECISION, "precision")                         \
    X(TF32, "tf32")                                   \
    X(ATTENTION, "attention")                         \
    X(CHECKPOINT, "checkpoint")                       \
    X(OFFLOAD, "offload")                             \
    X(OPTIMIZER, "optimizer")                         \
    X(LOSS, "loss")                                   \
    X(EXPERTS, "experts")                             \
    X(EXPERT_IMBALANCE, "expert_imbalance")           \
    X(ACCUMULATE, "accumulate")                       \
    X(ITERATIONS, "iterations")                       \
    X(CLIP_GRAD_NORM, "clip_grad_norm")               \
    X(ZERO_GRAD, "zero_grad")                         \
    X(RELEASE_OUTPUTS, "release_outputs")             \
    X(RETAIN_LOSSES, "retain_losses")                 \
    X(ATTENTION_MASK, "attention_mask")               \
    X(USE_CACHE, "use_cache")                         \
    X(EMPTY_CACHE_EACH_STEP, "empty_cache_each_step") \
    X(ALLOCATOR_CONF, "allocator_conf")               \
    X(ALLOCATOR_LIMIT_BYTES, "allocator_limit_bytes") \
    X(INIT_DEVICE, "init_device")                     \
    X(USED, "used")                                   \
    X(LORA, "lora")                                   \
    X(QUANTIZATION, "quantization")                   \
    X(DATA_PARALLEL, "data_parallel")                 \
    X(WORLD, "world")                                 \
    X(GPUS_PER_NODE, "gpus_per_node")                 \
    X(COLLECTIVES, "collectives")                     \
    X(DDP, "ddp")                                     \
    X(FSDP, "fsdp")                                   \
    X(DEEPSPEED, "deepspeed")                         \
    X(TRAINING_ARGUMENTS, "training_arguments")
/* clang-format on */
enum mp_run_key {
#define X(name, text) MP_KEY_##name,
    MP_RUN_KEY_MAP(X)
#undef X
    MP_RUN_KEYS
};
const char *mp_run_key_text(enum mp_run_key key);
/** All MP_RUN_KEYS texts, in order. */
const char *const *mp_run_key_texts(void);
/** The key of a text, -1 when there is none. */
int mp_run_key_index(const char *text);

/* What help, completion and the man-page check say of a key. */
struct mp_run_key_info {
    const char *argument; /* "N", "BYTES", "NAME|FILE"; NULL: a switch, whose value may be left out
                             or given as =false */
    const char *values;   /* '|'-separated when only certain texts are allowed, else NULL */
    const char *fallback; /* the default in words; NULL: none */
    const char *help;     /* what it is, without the default */
    const char *group;    /* heading in help texts */
    bool later;           /* read and checked, but not simulated yet: help leaves it out */
};
const struct mp_run_key_info *mp_run_key_info(enum mp_run_key key);

/**
 * A raw spec: key -> value, from any mix of sources; later ones override (seq_lengths and seq
 * replace each other). null is "not given". Everything lives in the arena; values are checked one
 * by one as they come in, together when they are resolved.
 */
struct mp_run_source {
    struct mp_arena *arena;
    const struct mp_value *values[MP_RUN_KEYS];
    const char *origins[MP_RUN_KEYS]; /* file or "--flag", for messages */
    bool max_batch;                   /* copied into the run */
    bool kinds_vary; /* one of several kinds of data parallelism: keys of the others lie idle */
    /* A run whose model, GPU and profile are taken over where the names are the same: a batch of
     * specs then reads each file once. Must outlive the new run; may be NULL. */
    const struct mp_run *like;
};
void mp_run_source_init(struct mp_run_source *source, struct mp_arena *arena);
/** All members of an object (a file, the "run" of a measured line). Unknown keys: INPUT, names the
 * closest; all problems together. */
enum memplan_status mp_run_source_object(struct mp_run_source *source, const char *origin,
                                         const struct mp_value *object, struct memplan_error *err);
/** One key from text, as a flag gives it: "4", "true", "full", "512,2048" for lists, "{layers: [0,
 * 2]}" (YAML flow) for objects. */
enum memplan_status mp_run_source_text(struct mp_run_source *source, const char *key,
                                       const char *origin, const char *text,
                                       struct memplan_error *err);
/** File in YAML or JSON. */
enum memplan_status mp_run_source_file(struct mp_run_source *source, const char *path,
                                       struct memplan_error *err);

/**
 * Resolve: defaults, checks, model, gpu and profile read. seq's default is the model's longest
 * position, at most 2048 (mp_model_positions()). NULL with *err: INPUT with all problems, or
 * UNSUPPORTED for what is not simulated yet.
 */
const struct mp_run *mp_run_resolve(const struct mp_run_source *source, struct memplan_error *err);

/** Whether the user gave the key; otherwise its value was assumed. */
bool mp_run_is_given(const struct mp_run *run, enum mp_run_key key);
/** The value of a key in the run as text ("amp-bf16", "2048", "false"); "" where the key has none.
 * Appends. */
void mp_run_value_text(const struct mp_run *run, enum mp_run_key key, struct mp_strbuf *out);
/** "batch 1, seq 2048, ...; off: tf32, ...": every value that was assumed. */
void mp_run_describe_assumed(const struct mp_run *run, struct mp_strbuf *out);
/** What the figures are: "Exact for", or for experts one by one that they hold for balanced routing
 * or bound an imbalance. A profile's name follows. */
void mp_run_describe_claim(const struct mp_run *run, struct mp_strbuf *out);
/** The whole run as a JSON object that mp_run_source_object() reads back to the same run; the model
 * inline when it was inline. */
void mp_run_write_json(const struct mp_run *run, struct mp_json_writer *w, const char *key);
/** Words of the keys' values, as the table has them. */
const char *mp_precision_text(enum mp_precision p);
const char *mp_attention_text(enum mp_attention a);
const char *mp_checkpoint_text(enum mp_checkpoint c);
/** "attention", "mlp" */
const char *mp_block_part_text(enum mp_block_part part);
/** Whether anything is done to single blocks: their parts are recomputed or their tensors wait on
 * the host. */
bool mp_run_treats_blocks(const struct mp_run *run);
/** Whether that is simulated for the run's framework, wrapper and weights. */
bool mp_run_may_treat_blocks(const struct mp_run *run);
const char *mp_optimizer_text(enum mp_optimizer o);
const char *mp_loss_text(enum mp_loss l);
const char *mp_experts_text(enum mp_experts_kind e);
const char *mp_quantization_text(enum mp_quantization q);
const char *mp_parallel_text(enum mp_parallel_kind p);
const char *mp_compression_text(enum mp_compression c);

#endif
