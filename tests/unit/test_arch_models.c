/* SPDX-License-Identifier: MIT */
/* Shipped models have the parameters their cards say, and impossible
 * configurations are told. */
#include <check.h>

#include "arch/arch.h"
#include "base/yaml.h"
#include "suites.h"

/* ---- parameter counts ---- */

/* As model cards and safetensors indices state them; tied weights count once.
 */
static const struct {
    const char *model;
    int64_t parameters;
} counts[] = {
    {"gpt2", 124439808},           {"bert-base", 109514298},
    {"roberta-base", 124697433},   {"opt-1.3b", 1315758080},
    {"pythia-1.4b", 1414647808},   {"phi3-mini", 3821079552},
    {"gemma2-2b", 2614341888},     {"t5-base", 222903552},
    {"mixtral-8x7b", 46702792704}, {"qwen3-30b-a3b", 30532122624},
    {"gpt-neo-1.3b", 1315575808},  {"starcoder2-3b", 3030371328},
    {"vit-base", 86567656},        {"llama2-7b", 6738415616},
    {"mistral-7b", 7241732096},
};

struct built {
    struct mp_arena arena;
    struct memplan_error err;
    struct mp_program program;
    struct mp_runtime rt;
    struct mp_net net;
};

static void build_net(struct mp_runtime *rt, void *net)
{
    mp_net_build(rt, net);
}

/* A run from YAML text. */
static const struct mp_run *read_run(struct built *b, const char *text)
{
    struct mp_run_source source;
    *b = (struct built){.rt = {.n_temporaries = 0}};
    mp_arena_init(&b->arena);
    mp_program_init(&b->program);
    mp_run_source_init(&source, &b->arena);
    const struct mp_value *const value =
        mp_yaml_parse(&b->arena, "run", text, strlen(text), &b->err);
    ck_assert_msg(value != NULL, "%s", b->err.text);
    if (mp_run_source_object(&source, "run", value, &b->err) != MEMPLAN_STATUS_OK)
        return NULL;
    return mp_run_resolve(&source, &b->err);
}

static enum memplan_status build(struct built *b, const struct mp_run *run)
{
    mp_runtime_init(&b->rt, run->gpu, &b->program, &b->err);
    const enum memplan_status status = mp_net_open(&b->net, run, &b->rt.arena, &b->err);
    return status == MEMPLAN_STATUS_OK ? mp_runtime_protect(&b->rt, build_net, &b->net) : status;
}

static void drop(struct built *b)
{
    mp_runtime_release(&b->rt);
    mp_program_release(&b->program);
    mp_arena_release(&b->arena);
}

START_TEST(a_shipped_model_has_the_published_parameters)
{
    static struct built b;
    char text[96];
    int64_t n = 0;
    (void)snprintf(text, sizeof text, "{model: %s, gpu: H200-141G}", counts[_i].model);
    const struct mp_run *const run = read_run(&b, text);
    ck_assert_msg(run != NULL, "%s", b.err.text);
    ck_assert_msg(build(&b, run) == MEMPLAN_STATUS_OK, "%s: %s", counts[_i].model, b.err.text);
    for (int i = 0; i < b.net.n_parameters; i++)
        n += mp_numel(b.net.parameters[i]);
    ck_assert_msg(n == counts[_i].parameters, "%s: %lld parameters, published %lld",
                  counts[_i].model, (long long)n, (long long)counts[_i].parameters);
    drop(&b);
}
END_TEST

/* ---- configurations ---- */

static const struct {
    const char *model; /* members of the config */
    const char *told;  /* part of the message; NULL: it builds */
} configs[] = {
    {"model_type: opt, hidden_size: 100, num_attention_heads: 3",
     "3 does not divide hidden_size 100"},
    {"model_type: opt, word_embed_proj_dim: 512, hidden_size: 768, "
     "do_layer_norm_before: false",
     NULL},
    {"model_type: gpt_neox, rotary_pct: 0", "rotary_pct: gives 0 rotated of 96 elements"},
    {"model_type: gpt_neox, use_parallel_residual: false, num_hidden_layers: 2", NULL},
    {"model_type: phi3, partial_rotary_factor: 2", "partial_rotary_factor"},
    {"model_type: gemma2, num_attention_heads: 8, num_key_value_heads: 3", "3 does not divide"},
    {"model_type: mixtral, num_local_experts: 4, num_experts_per_tok: 5", "5 of 4 experts"},
    {"model_type: mixtral, output_router_logits: true", "output_router_logits: true"},
    {"model_type: qwen3_moe, num_hidden_layers: 4, decoder_sparse_step: 2, "
     "mlp_only_layers: [1]",
     NULL},
    {"model_type: gpt_neo, num_layers: 3, attention_types: [[[global], 2]]", "2 of 3 layers"},
    {"model_type: deepseek_v3, n_routed_experts: 10, n_group: 4", "4 does not divide 10 routed"},
    {"model_type: deepseek_v3, n_routed_experts: 8, n_group: 8", "smaller than 2"},
    {"model_type: deepseek_v3, q_lora_rank: null, num_hidden_layers: 4", NULL},
    {"model_type: t5, feed_forward_proj: gated-gelu, tie_word_embeddings: "
     "false",
     NULL},
    {"model_type: t5, feed_forward_proj: tanh", "feed_forward_proj"},
    {"model_type: vit, image_size: 8, patch_size: 16", "16 is larger than image_size 8"},
    {"model_type: starcoder2, num_attention_heads: 5", "5 does not divide hidden_size"},
};

START_TEST(a_config_builds_or_is_told)
{
    static struct built b;
    char text[256];
    (void)snprintf(text, sizeof text, "{gpu: H200-141G, model: {%s}}", configs[_i].model);
    const struct mp_run *const run = read_run(&b, text);
    ck_assert_msg(run != NULL, "%s: %s", configs[_i].model, b.err.text);
    const enum memplan_status status = build(&b, run);
    if (configs[_i].told == NULL) {
        ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s: %s", configs[_i].model, b.err.text);
    } else {
        ck_assert_msg(status == MEMPLAN_STATUS_INPUT, "%s: %s", configs[_i].model, b.err.text);
        ck_assert_msg(strstr(b.err.text, configs[_i].told) != NULL, "%s", b.err.text);
    }
    drop(&b);
}
END_TEST

/* ---- options a family does not have ---- */

static const struct {
    const char *run;
    const char *told;
} options[] = {
    {"model: gpt-neo-1.3b, attention: sdpa", "gpt_neo has no sdpa attention"},
    {"model: gpt-neo-1.3b, use_cache: true", "use_cache: not supported for gpt_neo"},
    {"model: t5-base, attention_mask: true", "attention_mask: not supported for t5"},
    {"model: vit-base, attention_mask: padded", "attention_mask: not supported for vit"},
    {"model: vit-base, framework: hf-trainer", "the Trainer is not supported for vit"},
    {"model: t5-base, loss: chunked", "loss: \"chunked\" is not supported for t5"},
};

START_TEST(an_option_that_a_family_lacks_is_told)
{
    static struct built b;
    char text[128];
    (void)snprintf(text, sizeof text, "{gpu: H200-141G, %s}", options[_i].run);
    const struct mp_run *const run = read_run(&b, text);
    ck_assert_msg(run != NULL, "%s", b.err.text);
    ck_assert_int_eq(build(&b, run), MEMPLAN_STATUS_UNSUPPORTED);
    ck_assert_msg(strstr(b.err.text, options[_i].told) != NULL, "%s", b.err.text);
    drop(&b);
}
END_TEST

START_TEST(the_sequence_of_images_follows_from_the_model)
{
    static struct built b;
    const struct mp_run *const run =
        read_run(&b, "{gpu: H200-141G, model: {model_type: vit, image_size: 384, "
                     "patch_size: 32}}");
    ck_assert_msg(run != NULL, "%s", b.err.text);
    ck_assert_int_eq(run->seq, 12 * 12 + 1);
    drop(&b);
}
END_TEST

Suite *suite_arch_models(void)
{
    Suite *const suite = suite_create("arch_models");
    TCase *const tcase = tcase_create("models");
    tcase_add_loop_test(tcase, a_shipped_model_has_the_published_parameters, 0,
                        (int)MP_ARRAY_LEN(counts));
    tcase_add_loop_test(tcase, a_config_builds_or_is_told, 0, (int)MP_ARRAY_LEN(configs));
    tcase_add_loop_test(tcase, an_option_that_a_family_lacks_is_told, 0,
                        (int)MP_ARRAY_LEN(options));
    tcase_add_test(tcase, the_sequence_of_images_follows_from_the_model);
    suite_add_tcase(suite, tcase);
    return suite;
}
