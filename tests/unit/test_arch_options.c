/* SPDX-License-Identifier: MIT */
/*
 * Every family under every kind of option: it runs, every event is sound, and the second and third step end with the same
 * memory, so nothing that a step makes outlives it unseen.
 */
#include <check.h>
#include <stdlib.h>

#include "base/yaml.h"
#include "suites.h"
#include "train/job.h"

static const char *const models[] = {
    "model_type: gpt2, n_embd: 64, n_head: 4, n_layer: 2, vocab_size: 300, n_positions: 64",
    "model_type: bert, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, vocab_size: "
    "300, "
    "intermediate_size: 96, max_position_embeddings: 64",
    "model_type: roberta, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, "
    "vocab_size: 300, intermediate_size: 96, max_position_embeddings: 66",
    "model_type: opt, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, vocab_size: "
    "300, "
    "ffn_dim: 96, max_position_embeddings: 64, word_embed_proj_dim: 32, do_layer_norm_before: "
    "false",
    "model_type: gpt_neox, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, "
    "vocab_size: 300, intermediate_size: 96, hidden_dropout: 0.1, use_parallel_residual: false",
    "model_type: llama, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, attention_bias: true, mlp_bias: "
    "true",
    "model_type: mistral, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, sliding_window: 16",
    "model_type: qwen2, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, use_sliding_window: true, "
    "sliding_window: 16, max_window_layers: 1",
    "model_type: qwen3, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 4, head_dim: "
    "32, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, tie_word_embeddings: true",
    "model_type: phi3, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, resid_pdrop: 0.1, "
    "partial_rotary_factor: 0.5, sliding_window: 16",
    "model_type: gemma2, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "head_dim: 16, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, sliding_window: 16",
    "model_type: starcoder2, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, residual_dropout: 0.1, "
    "embedding_dropout: 0.1, attention_dropout: 0.1",
    "model_type: gpt_neo, hidden_size: 64, num_heads: 4, num_layers: 2, vocab_size: 300, "
    "max_position_embeddings: 64, attention_types: [[[global, local], 1]]",
    "model_type: t5, d_model: 64, num_heads: 4, d_kv: 16, d_ff: 96, num_layers: 2, vocab_size: "
    "300, "
    "feed_forward_proj: gated-gelu, tie_word_embeddings: false, num_decoder_layers: 1",
    "model_type: mixtral, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, num_local_experts: 4",
    "model_type: qwen3_moe, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, moe_intermediate_size: 48, "
    "num_experts: 8, num_experts_per_tok: 2, mlp_only_layers: [0]",
    "model_type: deepseek_v3, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, "
    "vocab_size: 300, intermediate_size: 96, moe_intermediate_size: 48, n_routed_experts: 8, "
    "num_experts_per_tok: 2, n_group: 2, topk_group: 1, first_k_dense_replace: 1, q_lora_rank: "
    "null, "
    "kv_lora_rank: 32, qk_nope_head_dim: 16, qk_rope_head_dim: 16, v_head_dim: 16",
    "model_type: vit, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, "
    "intermediate_size: 96, image_size: 32, patch_size: 8, hidden_dropout_prob: 0.1",
};

static const char *const options[] = {
    "precision: fp32",
    "precision: bf16, optimizer: adafactor, accumulate: 2",
    "precision: amp-fp16, clip_grad_norm: true, optimizer: adamw-fused, zero_grad: keep",
    "precision: amp-bf16, checkpoint: full",
    "precision: amp-bf16, checkpoint: full-reentrant, release_outputs: true",
    "precision: bf16, checkpoint: {layers: [1]}, init_device: cpu",
    "precision: bf16, attention: eager",
    "precision: amp-bf16, attention: eager, checkpoint: full",
    "precision: bf16, attention_mask: true",
    "precision: amp-bf16, attention_mask: padded",
    "precision: fp32, attention_mask: padded, attention: eager",
    "precision: amp-bf16, use_cache: true",
    "precision: bf16, lora: {targets: all-linear, rank: 4, dropout: 0.1}",
    "precision: amp-bf16, lora: {targets: all-linear, rank: 4}, checkpoint: full",
    "framework: hf-trainer, training_arguments: {bf16: true, eval_strategy: steps, eval_steps: 1}",
    "framework: hf-trainer, attention_mask: padded, training_arguments: {fp16: true, "
    "gradient_checkpointing: true, gradient_accumulation_steps: 2}",
    "precision: amp-fp16, optimizer: adamw-8bit, lora: {targets: all-linear}",
    "precision: amp-bf16, loss: chunked, release_outputs: true",
    "precision: bf16, loss: fused, accumulate: 2",
    "precision: amp-fp16, loss: fused, lora: {targets: all-linear}",
    "precision: amp-fp16, optimizer: muon, clip_grad_norm: true",
    "precision: bf16, quantization: nf4, lora: {targets: all-linear, rank: 4, dropout: 0.1}",
    "precision: amp-fp16, quantization: nf4, checkpoint: full, lora: {targets: all-linear}",
    "precision: bf16, experts: eager, expert_imbalance: 1.5",
    "precision: amp-bf16, experts: eager, checkpoint: full",
    "framework: hf-trainer, training_arguments: {fp16: true, gradient_accumulation_steps: 2}",
};

static struct mp_job job;

/* Every id is allocated once, in order, and freed at most once after that. */
static void check_events(const struct mp_program *p, const char *what)
{
    bool *const live = calloc((size_t)p->n_allocs + 1, sizeof *live);
    uint32_t next = 1;
    for (uint32_t i = 0; i < p->n_events; i++) {
        const struct mp_event *const e = &p->events[i];
        if (e->kind == MP_EVENT_ALLOC) {
            ck_assert_msg(e->id == next && e->bytes > 0, "%s: allocation %u", what,
                          (unsigned)e->id);
            live[next++] = true;
        } else if (e->kind == MP_EVENT_FREE) {
            ck_assert_msg(live[e->id], "%s: %u is freed but not live", what, (unsigned)e->id);
            live[e->id] = false;
        }
    }
    free(live);
}

static void check_steady(const struct mp_program *p, const char *what)
{
    uint64_t ends[3] = {0, 0, 0};
    for (uint32_t i = 0; i < p->n_phases; i++)
        if (strncmp(p->phases[i].name, "it", 2) == 0)
            ends[p->phases[i].name[2] - '0'] = p->phases[i].requested_bytes;
    ck_assert_msg(ends[1] == ends[2], "%s: %llu bytes after step 1, %llu after step 2", what,
                  (unsigned long long)ends[1], (unsigned long long)ends[2]);
}

static void run(const char *model, const char *option)
{
    char text[700];
    struct mp_arena arena;
    struct mp_run_source source;
    struct mp_program program;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    mp_arena_init(&arena);
    mp_program_init(&program);
    (void)snprintf(text, sizeof text, "{gpu: H200-141G, batch: 2, %s%s, model: {%s}}",
                   strstr(model, "vit") != NULL ? "" : "seq: 32, ", option, model);
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "run", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    ck_assert_msg(mp_run_source_object(&source, "run", value, &err) == MEMPLAN_STATUS_OK, "%s",
                  err.text);
    const struct mp_run *const resolved = mp_run_resolve(&source, &err);
    ck_assert_msg(resolved != NULL, "%s: %s", text, err.text);
    enum memplan_status status = mp_job_open(&job, resolved, &program, &err);
    if (status == MEMPLAN_STATUS_OK)
        status = mp_job_build(&job);
    for (int i = 0; status == MEMPLAN_STATUS_OK && i < 3; i++)
        status = mp_job_step(&job);
    ck_assert_msg(status == MEMPLAN_STATUS_OK || status == MEMPLAN_STATUS_UNSUPPORTED, "%s: %s",
                  text, err.text);
    if (status == MEMPLAN_STATUS_OK) {
        check_events(&program, text);
        check_steady(&program, text);
    }
    mp_job_close(&job);
    mp_program_release(&program);
    mp_arena_release(&arena);
}

START_TEST(a_family_runs_under_every_option)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(options); i++)
        run(models[_i], options[i]);
}
END_TEST

START_TEST(the_table_has_every_family)
{
    for (const struct mp_family *const *f = mp_families(); *f != NULL; f++) {
        char start[64];
        bool found = false;
        const int length = snprintf(start, sizeof start, "model_type: %s,", (*f)->model_type);
        for (size_t i = 0; i < MP_ARRAY_LEN(models) && !found; i++)
            found = strncmp(models[i], start, (size_t)length) == 0;
        ck_assert_msg(found, "%s", (*f)->model_type);
    }
}
END_TEST

Suite *suite_arch_options(void)
{
    Suite *const suite = suite_create("arch_options");
    TCase *const tcase = tcase_create("options");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, the_table_has_every_family);
    tcase_add_loop_test(tcase, a_family_runs_under_every_option, 0, (int)MP_ARRAY_LEN(models));
    suite_add_tcase(suite, tcase);
    return suite;
}
