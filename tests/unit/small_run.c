/* SPDX-License-Identifier: MIT */
/* Specs from YAML text, and one small model per family. */
#include "small_run.h"

#include <check.h>

#include "base/strbuf.h"
#include "base/yaml.h"

static const char *const heads[SMALL_FAMILIES] = {
    "{model: {model_type: gpt2, n_layer: 2, n_embd: 64, n_head: 4, n_positions: 64, vocab_size: 101}, ",
    "{model: {model_type: bert, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4,"
    " intermediate_size: 128, max_position_embeddings: 64, vocab_size: 101}, ",
    "{model: {model_type: llama, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4,"
    " num_key_value_heads: 2, intermediate_size: 96, max_position_embeddings: 64, vocab_size: 101}, ",
    "{model: {model_type: mistral, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4,"
    " num_key_value_heads: 2, intermediate_size: 96, max_position_embeddings: 64, vocab_size: 101}, ",
    "{model: {model_type: qwen2, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4,"
    " num_key_value_heads: 2, intermediate_size: 96, max_position_embeddings: 64, vocab_size: 101}, ",
    "{model: {model_type: qwen3, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, head_dim: 16,"
    " num_key_value_heads: 2, intermediate_size: 96, max_position_embeddings: 64, vocab_size: 101}, ",
};

const char *small_run_head(size_t family)
{
    return heads[family];
}

const struct mp_run *small_run(struct mp_arena *arena, const char *yaml)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_run_source source;
    mp_run_source_init(&source, arena);
    const struct mp_value *const value = mp_yaml_parse(arena, "run", yaml, strlen(yaml), &err);
    ck_assert_msg(value != NULL, "%s: %s", yaml, err.text);
    ck_assert_msg(mp_run_source_object(&source, "run", value, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s: %s", yaml, err.text);
    return run;
}

const struct mp_run *small_family_run(struct mp_arena *arena, size_t family, const char *keys)
{
    struct mp_strbuf yaml = MP_STRBUF_INIT;
    mp_strbuf_addstr(&yaml, heads[family]);
    if (strstr(keys, "gpu:") == NULL)
        mp_strbuf_addstr(&yaml, "gpu: H200-141G, ");
    mp_strbuf_addf(&yaml, "%s}", keys);
    const struct mp_run *const run = small_run(arena, mp_strbuf_text(&yaml));
    mp_strbuf_release(&yaml);
    return run;
}

void small_evaluate(const struct mp_run *run, bool keep_tags, struct mp_evaluation *e)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    const struct mp_evaluate_options options = {.keep_tags = keep_tags};
    ck_assert_msg(mp_evaluate(run, &options, e, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
}
