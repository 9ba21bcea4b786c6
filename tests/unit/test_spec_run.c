/* SPDX-License-Identifier: MIT */
/* Run specs: every key read, every mistake told, defaults from model and card, the same run from
 * flags, YAML and JSON. */
#include "spec/run.h"

#include "base/json.h"
#include "base/yaml.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

/* A run from YAML text; NULL with err. */
static const struct mp_run *read_run(const char *text)
{
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "a.yaml", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    if (mp_run_source_object(&source, "a.yaml", value, &err) != MEMPLAN_STATUS_OK)
        return NULL;
    return mp_run_resolve(&source, &err);
}

START_TEST(defaults_follow_model_and_card)
{
    const struct mp_run *const run = read_run("{model: gpt2, gpu: H200-141G}");
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->batch, 1);
    ck_assert_int_eq(run->seq, 1024);
    ck_assert_int_eq(run->precision, MP_PRECISION_AMP_BF16);
    ck_assert_int_eq(run->attention, MP_ATTENTION_SDPA);
    ck_assert_int_eq(run->checkpoint, MP_CHECKPOINT_NONE);
    ck_assert_int_eq(run->optimizer, MP_OPTIMIZER_ADAMW_FOREACH);
    ck_assert_int_eq(run->accumulate, 1);
    ck_assert_int_eq(run->iterations, 0);
    ck_assert(!run->init_cpu && !run->tf32 && !run->zero_grad_keep);
    ck_assert_str_eq(run->allocator_conf, "");
    ck_assert_str_eq(run->profile->name, "hf");
    ck_assert_uint_eq(run->n_warnings, 0);
    ck_assert_uint_eq(run->given, UINT64_C(1) << MP_KEY_MODEL | UINT64_C(1) << MP_KEY_GPU);
}
END_TEST

START_TEST(seq_is_at_most_2048_by_default)
{
    ck_assert_int_eq(read_run("{model: llama3.2-1b, gpu: H200-141G}")->seq, 2048);
    ck_assert_int_eq(read_run("{model: bert-base, gpu: H200-141G}")->seq, 512);
    ck_assert_int_eq(read_run("{model: {model_type: llama}, gpu: H200-141G}")->seq, 2048);
}
END_TEST

START_TEST(cards_without_bfloat16_get_fp16_by_default)
{
    ck_assert_int_eq(read_run("{model: gpt2, gpu: T4-16G}")->precision, MP_PRECISION_AMP_FP16);
    const struct mp_run *const run = read_run("{model: gpt2, gpu: T4-16G, precision: bf16}");
    ck_assert_int_eq(run->precision, MP_PRECISION_BF16);
    ck_assert_uint_eq(run->n_warnings, 1);
    ck_assert_ptr_nonnull(strstr(run->warnings[0], "bfloat16"));
}
END_TEST

START_TEST(every_key_is_read)
{
    const struct mp_run *const run = read_run(
        "{model: gpt-1.3b, gpu: h200-141g, framework: hf, batch: 4, seq: 777, pad_to: 8, "
        "precision: fp32, tf32: true,\n"
        " attention: eager, checkpoint: {layers: [5, 1, 5]}, optimizer: sgd-momentum, accumulate: "
        "3, iterations: 2,\n"
        " clip_grad_norm: true, zero_grad: keep, release_outputs: true, retain_losses: true, "
        "attention_mask: true,\n"
        " use_cache: true, empty_cache_each_step: true, allocator_conf: 'max_split_size_mb:128',\n"
        " allocator_limit_bytes: 17179869184, init_device: cpu, used: 1GiB, _note: ignored}");
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_str_eq(run->gpu->name, "H200-141G");
    ck_assert_int_eq(run->batch, 4);
    ck_assert_int_eq(run->seq, 784);
    ck_assert_int_eq(run->precision, MP_PRECISION_FP32);
    ck_assert_int_eq(run->attention, MP_ATTENTION_EAGER);
    ck_assert_int_eq(run->checkpoint, MP_CHECKPOINT_LAYERS);
    ck_assert_uint_eq(run->checkpoint_layers.n, 2);
    ck_assert_int_eq(run->checkpoint_layers.layers[0], 1);
    ck_assert_int_eq(run->checkpoint_layers.layers[1], 5);
    ck_assert_int_eq(run->optimizer, MP_OPTIMIZER_SGD_MOMENTUM);
    ck_assert_int_eq(run->accumulate, 3);
    ck_assert_int_eq(run->iterations, 2);
    ck_assert(run->tf32 && run->clip_grad_norm && run->zero_grad_keep && run->release_outputs &&
              run->retain_losses);
    ck_assert(run->use_cache && run->empty_cache_each_step && run->init_cpu);
    ck_assert_int_eq(run->attention_mask, MP_MASK_ONES);
    ck_assert_str_eq(run->allocator_conf, "max_split_size_mb:128");
    ck_assert_uint_eq(run->allocator_limit_bytes, UINT64_C(17179869184));
    ck_assert_uint_eq(run->used_bytes, MP_GIB);
}
END_TEST

static const struct {
    const char *text;
    enum mp_attention_mask mask;
} masks[] = {{"false", MP_MASK_NONE}, {"true", MP_MASK_ONES}, {"padded", MP_MASK_PADDED}};

START_TEST(attention_masks)
{
    char text[96];
    (void)snprintf(text, sizeof text, "{model: gpt2, gpu: H200-141G, attention_mask: %s}",
                   masks[_i].text);
    ck_assert_int_eq(read_run(text)->attention_mask, masks[_i].mask);
}
END_TEST

START_TEST(lengths_are_padded_and_the_longest_is_seq)
{
    const struct mp_run *const run =
        read_run("{model: gpt-1.3b, gpu: H200-141G, seq_lengths: [512, 2000, 777], pad_to: 64}");
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_uint_eq(run->n_seq_lengths, 3);
    ck_assert_int_eq(run->seq_lengths[0], 512);
    ck_assert_int_eq(run->seq_lengths[1], 2048);
    ck_assert_int_eq(run->seq_lengths[2], 832);
    ck_assert_int_eq(run->seq, 2048);
}
END_TEST

/* What is wrong, and what the message must say: place, key, value or way out. */
static const struct {
    const char *text;
    enum memplan_status status;
    const char *says[3];
} mistakes[] = {
    {"{model: gpt2}", MEMPLAN_STATUS_INPUT, {"gpu: missing", "memplan list gpus"}},
    {"{gpu: H200-141G}", MEMPLAN_STATUS_INPUT, {"model: missing", "config.json"}},
    {"{model: gtp2, gpu: H200-141G}",
     MEMPLAN_STATUS_INPUT,
     {"'gtp2'", "did you mean 'gpt2'", "memplan list models"}},
    {"{model: gpt2, gpu: H200}", MEMPLAN_STATUS_INPUT, {"'H200'", "memplan list gpus"}},
    {"{model: ./no/such.json, gpu: H200-141G}",
     MEMPLAN_STATUS_INPUT,
     {"model", "./no/such.json", "No such file"}},
    {"{model: /tmp/, gpu: H200-141G}", MEMPLAN_STATUS_INPUT, {"/tmp/", "directory"}},
    {"{model: 3, gpu: H200-141G}", MEMPLAN_STATUS_INPUT, {"model: 3"}},
    {"{model: '', gpu: H200-141G}", MEMPLAN_STATUS_INPUT, {"model: empty"}},
    {"{model: {n_layer: 2}, gpu: H200-141G}",
     MEMPLAN_STATUS_INPUT,
     {"a.yaml: model", "model_type: missing"}},
    {"{model: {model_type: [1]}, gpu: H200-141G}", MEMPLAN_STATUS_INPUT, {"model_type: a list"}},
    {"{model: gpt2, gpu: H200-141G, framework: jax}", MEMPLAN_STATUS_INPUT, {"framework", "'jax'"}},
    {"{model: gpt2, gpu: H200-141G, batchs: 4}",
     MEMPLAN_STATUS_INPUT,
     {"a.yaml:1:31", "'batchs'", "'batch'"}},
    {"{model: gpt2, gpu: H200-141G, zzzzzzz: 4}",
     MEMPLAN_STATUS_INPUT,
     {"'zzzzzzz'", "known are model, gpu"}},
    {"{batch: 0}", MEMPLAN_STATUS_INPUT, {"a.yaml:1:9: batch: 0", "1 to 2147483647"}},
    {"{batch: -1}", MEMPLAN_STATUS_INPUT, {"batch: -1"}},
    {"{batch: 2147483648}", MEMPLAN_STATUS_INPUT, {"batch: 2147483648"}},
    {"{batch: 99999999999999999999999}", MEMPLAN_STATUS_INPUT, {"batch: 1e+23"}},
    {"{batch: 1.5}", MEMPLAN_STATUS_INPUT, {"batch: 1.5"}},
    {"{batch: four}", MEMPLAN_STATUS_INPUT, {"batch: \"four\""}},
    {"{batch: 4.0}", MEMPLAN_STATUS_INPUT, {"batch: 4.0 is not an integer"}},
    {"{batch: [4]}", MEMPLAN_STATUS_INPUT, {"batch: a list"}},
    {"{seq: 2147483648}", MEMPLAN_STATUS_INPUT, {"seq: 2147483648"}},
    {"{seq: 0}", MEMPLAN_STATUS_INPUT, {"seq: 0"}},
    {"{seq_lengths: []}", MEMPLAN_STATUS_INPUT, {"seq_lengths: an empty list"}},
    {"{seq_lengths: [4, 0]}", MEMPLAN_STATUS_INPUT, {"1:19: seq_lengths: 0"}},
    {"{seq_lengths: 4}", MEMPLAN_STATUS_INPUT, {"seq_lengths: 4 is not a list"}},
    {"{model: gpt2, gpu: H200-141G, seq: 1025}",
     MEMPLAN_STATUS_INPUT,
     {"a.yaml:1:36: seq: 1025", "1024 positions", "'gpt2'"}},
    {"{model: gpt2, gpu: H200-141G, seq: 1020, pad_to: 500}", MEMPLAN_STATUS_INPUT, {"seq: 1500"}},
    {"{model: llama3-8b, gpu: H200-141G, seq: 2147483647, pad_to: 2147483646}",
     MEMPLAN_STATUS_INPUT,
     {"pad_to"}},
    {"{precision: bf61}",
     MEMPLAN_STATUS_INPUT,
     {"precision: \"bf61\"", "fp32, bf16, fp16, amp-bf16 or amp-fp16"}},
    {"{tf32: 1}", MEMPLAN_STATUS_INPUT, {"tf32: 1 is neither true nor false"}},
    {"{tf32: yes}", MEMPLAN_STATUS_INPUT, {"tf32: \"yes\" is neither true nor false"}},
    {"{attention: flash}", MEMPLAN_STATUS_INPUT, {"attention: \"flash\"", "sdpa or eager"}},
    {"{attention_mask: 1}", MEMPLAN_STATUS_INPUT, {"attention_mask: 1", "padded"}},
    {"{checkpoint: half}", MEMPLAN_STATUS_INPUT, {"checkpoint: \"half\"", "full-reentrant"}},
    {"{checkpoint: {layer: [1]}}", MEMPLAN_STATUS_INPUT, {"'checkpoint.layer'", "'layers'"}},
    {"{checkpoint: {layers: [-1]}}", MEMPLAN_STATUS_INPUT, {"checkpoint.layers: -1"}},
    {"{checkpoint: {layers: all}}", MEMPLAN_STATUS_INPUT, {"checkpoint.layers: \"all\""}},
    {"{checkpoint: {}}", MEMPLAN_STATUS_INPUT, {"checkpoint.layers: missing"}},
    {"{checkpoint: {layers: [1], every: 2}}", MEMPLAN_STATUS_INPUT, {"give one of layers, every"}},
    {"{checkpoint: {attention: some}}", MEMPLAN_STATUS_INPUT, {"checkpoint.attention: \"some\"", "all"}},
    {"{checkpoint: {mlp: {layer: [1]}}}", MEMPLAN_STATUS_INPUT, {"'checkpoint.mlp.layer'", "'layers'"}},
    {"{offload: [a]}", MEMPLAN_STATUS_INPUT, {"offload: \"a\" is not an integer"}},
    {"{offload: yes}", MEMPLAN_STATUS_INPUT, {"offload: \"yes\" is no choice", "{every: N}"}},
    {"{model: gpt2, gpu: H200-141G, offload: [12]}", MEMPLAN_STATUS_INPUT, {"blocks are 0 to 11"}},
    {"{model: gpt2, gpu: H200-141G, checkpoint: {mlp: {first: 13}}}",
     MEMPLAN_STATUS_INPUT,
     {"checkpoint.mlp.first", "has 12 blocks"}},
    {"{model: gpt2, gpu: H200-141G, checkpoint: {first: 2, mlp: [1]}}",
     MEMPLAN_STATUS_INPUT,
     {"block 1 is recomputed as a whole", "out of mlp"}},
    {"{model: gpt2, gpu: H200-141G, checkpoint: {mlp: [3]}, offload: {every: 3}}",
     MEMPLAN_STATUS_INPUT,
     {"offload: block 3 is in checkpoint too"}},
    {"{model: gpt2, gpu: H200-141G, checkpoint: full, offload: all}",
     MEMPLAN_STATUS_INPUT,
     {"offload: with checkpoint: full"}},
    {"{model: gpt2, gpu: H200-141G, checkpoint: {attention: all}, use_cache: true}",
     MEMPLAN_STATUS_INPUT,
     {"use_cache", "twice"}},
    {"{model: gpt2, gpu: H200-141G, offload: all, framework: hf-trainer}",
     MEMPLAN_STATUS_INPUT,
     {"offload", "hf-trainer"}},
    {"{model: gpt2, gpu: H200-141G, framework: hf-trainer, deepspeed: {zero_optimization: {stage: 2}}}",
     MEMPLAN_STATUS_INPUT,
     {"deepspeed: not supported with framework hf-trainer"}},
    {"{model: gpt2, gpu: H200-141G, checkpoint: {layers: [12]}}",
     MEMPLAN_STATUS_INPUT,
     {"a.yaml:1:43: checkpoint.layers: 12", "blocks are 0 to 11"}},
    {"{optimizer: adam}", MEMPLAN_STATUS_INPUT, {"optimizer: \"adam\"", "adamw-foreach"}},
    {"{accumulate: 0}", MEMPLAN_STATUS_INPUT, {"accumulate: 0"}},
    {"{iterations: -1}", MEMPLAN_STATUS_INPUT, {"iterations: -1"}},
    {"{zero_grad: none}", MEMPLAN_STATUS_INPUT, {"zero_grad: \"none\"", "set_to_none or keep"}},
    {"{allocator_conf: 'max_split:3'}", MEMPLAN_STATUS_INPUT, {"allocator_conf", "max_split"}},
    {"{allocator_conf: 3}", MEMPLAN_STATUS_INPUT, {"allocator_conf: 3 is not a string"}},
    {"{allocator_limit_bytes: 80G}",
     MEMPLAN_STATUS_INPUT,
     {"allocator_limit_bytes", "80GiB", "80GB"}},
    {"{allocator_limit_bytes: -1}", MEMPLAN_STATUS_INPUT, {"allocator_limit_bytes: -1"}},
    {"{used: 5EiB}", MEMPLAN_STATUS_INPUT, {"used: \"5EiB\" is more than 1 PiB"}},
    {"{init_device: gpu}", MEMPLAN_STATUS_INPUT, {"init_device: \"gpu\"", "cuda or cpu"}},
    {"{lora: 8}", MEMPLAN_STATUS_INPUT, {"lora: 8 is not an object"}},
    {"{lora: {rnak: 8}}", MEMPLAN_STATUS_INPUT, {"'lora.rnak'", "'rank'"}},
    {"{lora: {rank: 0}}", MEMPLAN_STATUS_INPUT, {"lora.rank: 0 is not an integer from 1 to 2147483647"}},
    {"{data_parallel: fsdp}", MEMPLAN_STATUS_INPUT, {"data_parallel: \"fsdp\"", "fsdp2"}},
    {"{world: 0}", MEMPLAN_STATUS_INPUT, {"world: 0"}},
    {"{ddp: {bucket_cap: 25}}", MEMPLAN_STATUS_INPUT, {"'ddp.bucket_cap'", "'bucket_cap_mb'"}},
    {"{ddp: {bucket_cap_mb: -25}}",
     MEMPLAN_STATUS_INPUT,
     {"ddp.bucket_cap_mb: -25 is not a number from 0 up"}},
    {"{fsdp: {mixed_precision: bf16}}", MEMPLAN_STATUS_INPUT, {"fsdp.mixed_precision: \"bf16\""}},
    {"{model: gpt2, gpu: H200-141G, world: 2}", MEMPLAN_STATUS_INPUT, {"a.yaml:1:38: world: 2", "data_parallel"}},
    {"{lora: {rank: 8}}", MEMPLAN_STATUS_INPUT, {"lora.targets: missing", "q_proj"}},
    {"{lora: {targets: []}}", MEMPLAN_STATUS_INPUT, {"lora.targets: an empty list"}},
    {"{lora: {targets: [q_proj, 3]}}", MEMPLAN_STATUS_INPUT, {"lora.targets: 3 is not the name"}},
    {"{lora: {targets: q_proj, dropout: 1}}", MEMPLAN_STATUS_INPUT, {"lora.dropout: 1 is not a probability"}},
    {"{model: vit-base, gpu: H200-141G, seq: 512}",
     MEMPLAN_STATUS_INPUT,
     {"seq", "197 positions", "patch_size"}},
    {"{model: gpt2, gpu: H200-141G, data_parallel: deepspeed-zero2, precision: amp-bf16}",
     MEMPLAN_STATUS_UNSUPPORTED,
     {"precision: \"amp-bf16\" is not supported with DeepSpeed"}},
    {"{model: gpt2, gpu: H200-141G, world: 2, deepspeed: {zero_optimization: {stage: 2}, train_batch_size: 7, "
     "train_micro_batch_size_per_gpu: 2}}",
     MEMPLAN_STATUS_INPUT,
     {"train_batch_size 7 is not 2 (micro-batch) x 1 (accumulation) x 2 (ranks)"}},
    {"{model: gpt2, gpu: H200-141G, world: 2, deepspeed: {zero_optimization: {stage: 2}, train_batch_size: 8, "
     "gradient_accumulation_steps: 3}}",
     MEMPLAN_STATUS_INPUT,
     {"train_batch_size 8 is not 1 (micro-batch) x 3 (accumulation) x 2 (ranks)"}},
    {"[model, gpt2]", MEMPLAN_STATUS_INPUT, {"a.yaml", "not a list"}},
    {"null", MEMPLAN_STATUS_INPUT, {"a.yaml: empty"}},
    {"{batch: 0, seq: x, tf32: 7, nope: 1, used: 80G}",
     MEMPLAN_STATUS_INPUT,
     {"batch: 0", "seq: \"x\"", "used"}},
};

START_TEST(mistakes_are_told)
{
    ck_assert_msg(read_run(mistakes[_i].text) == NULL, "%s was accepted", mistakes[_i].text);
    ck_assert_msg(err.status == mistakes[_i].status, "%s: status %d", mistakes[_i].text,
                  (int)err.status);
    for (size_t i = 0; i < MP_ARRAY_LEN(mistakes[_i].says) && mistakes[_i].says[i] != NULL; i++)
        ck_assert_msg(strstr(err.text, mistakes[_i].says[i]) != NULL, "%s: no '%s' in: %s",
                      mistakes[_i].text, mistakes[_i].says[i], err.text);
    ck_assert_msg(strchr(err.text, '\n') == NULL, "%s", err.text);
}
END_TEST

START_TEST(a_long_list_of_mistakes_is_cut_not_overrun)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_strbuf_addstr(&text, "{");
    for (int i = 0; i < 200; i++)
        mp_strbuf_addf(&text, "unknown_key_number_%d: 1, ", i);
    mp_strbuf_addstr(&text, "batch: 1}");
    ck_assert_ptr_null(read_run(mp_strbuf_text(&text)));
    ck_assert_uint_lt(strlen(err.text), sizeof err.text);
    ck_assert_str_eq(err.text + strlen(err.text) - 4, " ...");
    mp_strbuf_release(&text);
}
END_TEST

/* What of train_batch_size = micro-batch x accumulation x ranks is left open, on 2 ranks. */
static const struct {
    const char *deepspeed, *keys;
    int64_t batch, accumulate;
} batches[] = {
    {"train_batch_size: 12, train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 3", "", 2, 3},
    {"train_batch_size: 12, train_micro_batch_size_per_gpu: 2", "", 2, 3},
    {"train_batch_size: 12, gradient_accumulation_steps: 3", "", 2, 3},
    {"train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 3", "", 2, 3},
    {"train_batch_size: 12", "", 6, 1},
    {"train_micro_batch_size_per_gpu: 2", "", 2, 1},
    {"train_batch_size: auto", "", 1, 1},
    {"train_batch_size: 12, train_micro_batch_size_per_gpu: 2", "batch: 4,", 4, 1},
    {"train_batch_size: 12", "accumulate: 2,", 3, 2},
    {"train_batch_size: 7, train_micro_batch_size_per_gpu: 2", "batch: 4, accumulate: 5,", 4, 5},
};

START_TEST(deepspeeds_batches_follow_from_each_other)
{
    char text[300];
    (void)snprintf(text, sizeof text, "{model: gpt2, gpu: H200-141G, world: 2, %s deepspeed: {zero_optimization: {stage: 2}, %s}}",
                   batches[_i].keys, batches[_i].deepspeed);
    const struct mp_run *const run = read_run(text);
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->batch, batches[_i].batch);
    ck_assert_int_eq(run->accumulate, batches[_i].accumulate);
}
END_TEST

START_TEST(null_is_not_given)
{
    const struct mp_run *const run =
        read_run("{model: gpt2, gpu: H200-141G, batch: null, allocator_conf: ~}");
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert(!mp_run_is_given(run, MP_KEY_BATCH));
    ck_assert_int_eq(run->batch, 1);
}
END_TEST

START_TEST(rotary_models_warn_beyond_their_positions)
{
    const struct mp_run *const run = read_run("{model: tinyllama-1.1b, gpu: H200-141G, seq: 4096}");
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_uint_eq(run->n_warnings, 1);
    ck_assert_ptr_nonnull(strstr(run->warnings[0], "2048 positions"));
}
END_TEST

/* The same value through a flag's text. */
static const struct {
    const char *key, *text;
    enum memplan_status status;
    const char *shown; /* mp_run_value_text() */
} texts[] = {
    {"batch", "4", MEMPLAN_STATUS_OK, "4"},
    {"batch", "-4", MEMPLAN_STATUS_INPUT, NULL},
    {"batch", "", MEMPLAN_STATUS_INPUT, NULL},
    {"batch", "4 # four", MEMPLAN_STATUS_OK, "4"},
    {"seq_lengths", "512,777", MEMPLAN_STATUS_OK, "512,777"},
    {"seq_lengths", "[512, 777]", MEMPLAN_STATUS_OK, "512,777"},
    {"seq_lengths", "512,x", MEMPLAN_STATUS_INPUT, NULL},
    {"precision", "amp-fp16", MEMPLAN_STATUS_OK, "amp-fp16"},
    {"precision", "true", MEMPLAN_STATUS_INPUT, NULL},
    {"tf32", "true", MEMPLAN_STATUS_OK, "true"},
    {"tf32", "false", MEMPLAN_STATUS_OK, "false"},
    {"tf32", "1", MEMPLAN_STATUS_INPUT, NULL},
    {"checkpoint", "full", MEMPLAN_STATUS_OK, "full"},
    {"checkpoint", "{layers: [2, 0]}", MEMPLAN_STATUS_OK, "layers 0,2"},
    {"checkpoint", "{attention: [1, 0], layers: [2]}", MEMPLAN_STATUS_OK, "layers 2, attention 0,1"},
    {"checkpoint", "{mlp: {first: 2}}", MEMPLAN_STATUS_OK, "mlp 0,1"},
    {"offload", "{every: 6}", MEMPLAN_STATUS_OK, "0,6"},
    {"offload", "none", MEMPLAN_STATUS_OK, ""},
    {"attention_mask", "padded", MEMPLAN_STATUS_OK, "padded"},
    {"allocator_conf", "expandable_segments:True", MEMPLAN_STATUS_OK, "expandable_segments:True"},
    {"allocator_conf", "", MEMPLAN_STATUS_OK, ""},
    {"allocator_limit_bytes", "16GiB", MEMPLAN_STATUS_OK, "17179869184"},
    {"allocator_limit_bytes", "17179869184", MEMPLAN_STATUS_OK, "17179869184"},
    {"used", "1GiB", MEMPLAN_STATUS_OK, "1073741824"},
    {"used", "1G", MEMPLAN_STATUS_INPUT, NULL},
    {"iterations", "3", MEMPLAN_STATUS_OK, "3"},
    {"iterations", "{a: [", MEMPLAN_STATUS_INPUT, NULL},
    {"zero_grad", "keep", MEMPLAN_STATUS_OK, "keep"},
    {"btach", "4", MEMPLAN_STATUS_INPUT, NULL},
};

START_TEST(flags_are_read)
{
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    ck_assert_int_eq(mp_run_source_text(&source, "model", "--model", "gpt2", &err),
                     MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_run_source_text(&source, "gpu", "--gpu", "A100-80G", &err),
                     MEMPLAN_STATUS_OK);
    const enum memplan_status status =
        mp_run_source_text(&source, texts[_i].key, "--flag", texts[_i].text, &err);
    ck_assert_msg(status == texts[_i].status, "%s '%s': %s", texts[_i].key, texts[_i].text,
                  err.text);
    ck_assert_int_eq(err.status, status);
    if (status != MEMPLAN_STATUS_OK) {
        ck_assert_msg(strncmp(err.text, "--flag", 6) == 0, "%s", err.text);
        return;
    }
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    struct mp_strbuf shown = MP_STRBUF_INIT;
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        if (strcmp(mp_run_key_text((enum mp_run_key)key), texts[_i].key) == 0)
            mp_run_value_text(run, (enum mp_run_key)key, &shown);
    }
    ck_assert_str_eq(mp_strbuf_text(&shown), texts[_i].shown);
    mp_strbuf_release(&shown);
}
END_TEST

START_TEST(later_sources_override)
{
    struct mp_run_source source;
    static const char file[] = "{model: gpt2, gpu: H200-141G, seq: 512, batch: 2}";
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "a.yaml", file, strlen(file), &err);
    ck_assert_int_eq(mp_run_source_object(&source, "a.yaml", value, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_run_source_text(&source, "batch", "--batch", "8", &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_run_source_text(&source, "seq_lengths", "--seq-lengths", "64,128", &err),
                     MEMPLAN_STATUS_OK);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->batch, 8);
    ck_assert_int_eq(run->seq, 128);
    ck_assert_uint_eq(run->n_seq_lengths, 2);
}
END_TEST

START_TEST(an_empty_file_says_so)
{
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    ck_assert_int_eq(mp_run_source_file(&source, "/dev/null", &err), MEMPLAN_STATUS_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "/dev/null: empty"));
    ck_assert_int_eq(mp_run_source_file(&source, "/nonexistent/run.yaml", &err),
                     MEMPLAN_STATUS_INPUT);
    ck_assert_int_eq(mp_run_source_file(&source, "/", &err), MEMPLAN_STATUS_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "directory"));
}
END_TEST

START_TEST(a_run_like_another_shares_its_files)
{
    const struct mp_run *const first = read_run("{model: gpt2, gpu: H200-141G}");
    struct mp_run_source source;
    mp_run_source_init(&source, &arena);
    source.like = first;
    source.max_batch = true;
    ck_assert_int_eq(mp_run_source_text(&source, "model", "--model", "gpt2-xl", &err),
                     MEMPLAN_STATUS_OK);
    ck_assert_int_eq(mp_run_source_text(&source, "gpu", "--gpu", "H200-141G", &err),
                     MEMPLAN_STATUS_OK);
    const struct mp_run *const second = mp_run_resolve(&source, &err);
    ck_assert_ptr_nonnull(second);
    ck_assert_ptr_eq(second->gpu, first->gpu);
    ck_assert_ptr_eq(second->profile, first->profile);
    ck_assert_ptr_ne(second->model, first->model);
    ck_assert_int_eq(mp_model_layers(second->model), 48);
    ck_assert(second->max_batch && !first->max_batch);
}
END_TEST

START_TEST(what_was_assumed_is_listed)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    const struct mp_run *const run =
        read_run("{model: gpt2, gpu: H200-141G, batch: 4, clip_grad_norm: false}");
    mp_run_describe_assumed(run, &text);
    ck_assert_str_eq(
        mp_strbuf_text(&text),
        "framework hf, seq 1024, precision amp-bf16, attention sdpa, checkpoint none, "
        "optimizer adamw-foreach, accumulate 1, iterations until memory repeats, zero_grad "
        "set_to_none, "
        "init_device cuda; off: tf32, release_outputs, retain_losses, attention_mask, use_cache, "
        "empty_cache_each_step");
    mp_strbuf_release(&text);
}
END_TEST

static void write_run(const struct mp_run *run, struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 0);
    mp_run_write_json(run, &w, NULL);
}

static const char *const round_trips[] = {
    "{model: gpt2, gpu: H200-141G}",
    "{model: {model_type: gpt2, n_layer: 2, n_inner: null, attn_pdrop: 0.1}, gpu: T4-16G, "
    "seq_lengths: [5, 9], pad_to: 4}",
    "{model: gpt2, gpu: T4-16G, checkpoint: {layers: [3, 1]}, attention_mask: padded, used: 1GiB, "
    "zero_grad: keep}",
    "{model: gpt2, gpu: T4-16G, checkpoint: {layers: [1], attention: [0], mlp: {every: 4}}, offload: [2]}",
    "{model: gpt2, gpu: T4-16G, checkpoint: {attention: all}}",
    "{model: gpt2, gpu: T4-16G, checkpoint: full-reentrant, allocator_conf: "
    "'expandable_segments:True', init_device: cpu,"
    " allocator_limit_bytes: 4GiB, attention_mask: true, optimizer: none, iterations: 4}",
};

START_TEST(a_written_run_reads_back_the_same)
{
    struct mp_strbuf once = MP_STRBUF_INIT, twice = MP_STRBUF_INIT;
    const struct mp_run *const run = read_run(round_trips[_i]);
    ck_assert_msg(run != NULL, "%s", err.text);
    write_run(run, &once);
    const struct mp_run *const again = read_run(mp_strbuf_text(&once));
    ck_assert_msg(again != NULL, "%s", err.text);
    write_run(again, &twice);
    ck_assert_str_eq(mp_strbuf_text(&once), mp_strbuf_text(&twice));
    mp_strbuf_release(&once);
    mp_strbuf_release(&twice);
}
END_TEST

START_TEST(every_key_has_a_help_text)
{
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        const struct mp_run_key_info *const info = mp_run_key_info((enum mp_run_key)key);
        ck_assert_msg(info->help != NULL && info->group != NULL, "%s",
                      mp_run_key_text((enum mp_run_key)key));
    }
}
END_TEST

START_TEST(exhausted_memory_is_an_error_at_every_allocation)
{
    static const char text[] =
        "{model: gpt2, gpu: H200-141G, seq_lengths: [8, 16], checkpoint: {layers: [0]}}";
    for (uint64_t n = 1;; n++) {
        struct mp_run_source source;
        struct mp_arena own;
        struct memplan_error failure = {MEMPLAN_STATUS_OK, ""};
        const struct mp_run *run = NULL;
        mp_arena_init(&own);
        (void)mp_alloc_fail_after(n);
        mp_run_source_init(&source, &own);
        const struct mp_value *const value =
            mp_yaml_parse(&own, "a.yaml", text, strlen(text), &failure);
        if (value != NULL &&
            mp_run_source_object(&source, "a.yaml", value, &failure) == MEMPLAN_STATUS_OK)
            run = mp_run_resolve(&source, &failure);
        const uint64_t made = mp_alloc_fail_after(0);
        mp_arena_release(&own);
        if (made < n) { /* the n-th allocation never came */
            ck_assert_msg(run != NULL, "%s", failure.text);
            ck_assert_uint_gt(n, 3);
            return;
        }
        if (run == NULL)
            ck_assert_msg(failure.status == MEMPLAN_STATUS_NOMEM, "allocation %d: %s", (int)n,
                          failure.text);
    }
}
END_TEST

Suite *suite_spec_run(void)
{
    Suite *const suite = suite_create("spec_run");
    TCase *const tc = tcase_create("run");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_test(tc, defaults_follow_model_and_card);
    tcase_add_test(tc, seq_is_at_most_2048_by_default);
    tcase_add_test(tc, cards_without_bfloat16_get_fp16_by_default);
    tcase_add_test(tc, every_key_is_read);
    tcase_add_loop_test(tc, attention_masks, 0, (int)MP_ARRAY_LEN(masks));
    tcase_add_test(tc, lengths_are_padded_and_the_longest_is_seq);
    tcase_add_loop_test(tc, mistakes_are_told, 0, (int)MP_ARRAY_LEN(mistakes));
    tcase_add_test(tc, a_long_list_of_mistakes_is_cut_not_overrun);
    tcase_add_loop_test(tc, deepspeeds_batches_follow_from_each_other, 0, (int)MP_ARRAY_LEN(batches));
    tcase_add_test(tc, null_is_not_given);
    tcase_add_test(tc, rotary_models_warn_beyond_their_positions);
    tcase_add_loop_test(tc, flags_are_read, 0, (int)MP_ARRAY_LEN(texts));
    tcase_add_test(tc, later_sources_override);
    tcase_add_test(tc, an_empty_file_says_so);
    tcase_add_test(tc, a_run_like_another_shares_its_files);
    tcase_add_test(tc, what_was_assumed_is_listed);
    tcase_add_loop_test(tc, a_written_run_reads_back_the_same, 0, (int)MP_ARRAY_LEN(round_trips));
    tcase_add_test(tc, every_key_has_a_help_text);
    tcase_add_test(tc, exhausted_memory_is_an_error_at_every_allocation);
    suite_add_tcase(suite, tc);
    return suite;
}
