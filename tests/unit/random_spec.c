/* SPDX-License-Identifier: MIT */
/* Small models of several families under whatever settings reach into memory. */
#include "random_spec.h"

#include <stdio.h>
#include <string.h>

uint64_t random_below(uint64_t *state, uint64_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % n;
}

static const char *pick(uint64_t *state, const char *const *from, size_t n) { return from[random_below(state, n)]; }
#define PICK(state, ...) pick(state, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

const char *random_card(uint64_t *s) { return PICK(s, "T4-16G", "V100-16G", "L4-24G", "A100-40G", "RTX5090-32G", "H100-80G", "B200-180G"); }

static void add_model(uint64_t *s, struct mp_strbuf *out)
{
    char kv[48] = "";
    const int layers = 5 + (int)random_below(s, 9), heads = 1 << random_below(s, 4), width = heads * 8 * (1 + (int)random_below(s, 12));
    const char *const type = PICK(s, "gpt2", "bert", "llama", "qwen2", "qwen3", "mistral");
    mp_strbuf_addf(out, "model: {model_type: %s, vocab_size: %d, ", type, 1000 + (int)random_below(s, 60000));
    if (strcmp(type, "bert") != 0)
        (void)snprintf(kv, sizeof kv, "num_key_value_heads: %d, ", random_below(s, 2) ? 1 : heads);
    if (strcmp(type, "gpt2") == 0)
        mp_strbuf_addf(out, "n_layer: %d, n_embd: %d, n_head: %d, n_positions: 2048, attn_pdrop: %s, resid_pdrop: %s}\n", layers, width, heads,
                       PICK(s, "0.0", "0.1"), PICK(s, "0.0", "0.1"));
    else
        mp_strbuf_addf(out, "num_hidden_layers: %d, hidden_size: %d, num_attention_heads: %d, intermediate_size: %d, %smax_position_embeddings: 2048%s}\n",
                       layers, width, heads, 64 * (1 + (int)random_below(s, 40)),
                       kv, random_below(s, 2) ? ", tie_word_embeddings: true" : "");
}

void random_spec(uint64_t *s, const char *gpu, struct mp_strbuf *out)
{
    add_model(s, out);
    mp_strbuf_addf(out, "gpu: %s\nbatch: %d\nseq: %d\n", gpu ? gpu : random_card(s), 1 + (int)random_below(s, 24), 1 + (int)random_below(s, 1500));
    mp_strbuf_addf(out, "precision: %s\ncheckpoint: %s\noptimizer: %s\nattention: %s\n", PICK(s, "fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"),
                   PICK(s, "none", "full", "full-reentrant"),
                   PICK(s, "adamw-foreach", "adamw-fused", "adamw-forloop", "sgd", "sgd-momentum", "adafactor", "none"), PICK(s, "sdpa", "eager"));
    mp_strbuf_addf(out, "accumulate: %d\niterations: %d\n", 1 + (int)random_below(s, 3), (int)random_below(s, 5));
    mp_strbuf_addf(out, "zero_grad: %s\nrelease_outputs: %s\nattention_mask: %s\nuse_cache: %s\ninit_device: %s\n", PICK(s, "set_to_none", "keep"),
                   PICK(s, "false", "true"), PICK(s, "false", "true", "padded"), PICK(s, "false", "false", "true"), PICK(s, "cuda", "cpu"));
    if (random_below(s, 4) == 0)
        mp_strbuf_addf(out, "allocator_conf: \"%s\"\n", PICK(s, "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"));
    if (random_below(s, 3) == 0)
        mp_strbuf_addf(out, "allocator_limit_bytes: %dMiB\n", 64 + (int)random_below(s, 4000));
}
