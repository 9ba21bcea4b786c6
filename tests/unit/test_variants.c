/* SPDX-License-Identifier: MIT */
/*
 * Losses without logits, 4-bit weights, eager experts, muon, scaled rotary embeddings: sizes
 * derived by hand from the libraries' sources, and what is refused.
 */
#include <check.h>

#include "arch/experts.h"
#include "arch/nf4.h"
#include "base/yaml.h"
#include "suites.h"
#include "train/job.h"

#define GPT2                                                                                       \
    "{model_type: gpt2, n_embd: 64, n_head: 4, n_layer: 2, vocab_size: 1000, n_positions: 64}"
#define LLAMA                                                                                      \
    "{model_type: llama, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "        \
    "num_hidden_layers: 2, vocab_size: 1000, intermediate_size: 96}"
#define MIXTRAL                                                                                    \
    "{model_type: mixtral, hidden_size: 64, num_attention_heads: 4, num_key_value_heads: 2, "      \
    "num_hidden_layers: 2, vocab_size: 300, intermediate_size: 96, num_local_experts: 4}"

static struct mp_job job;
static struct mp_arena arena;
static struct mp_program program;
static struct memplan_error err;

static void setup(void)
{
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
    mp_arena_init(&arena);
    mp_program_init(&program);
}

static void teardown(void)
{
    mp_program_release(&program);
    mp_arena_release(&arena);
}

static const struct mp_run *resolve(const char *model, const char *keys)
{
    char text[900];
    struct mp_run_source source;
    (void)snprintf(text, sizeof text, "{gpu: H200-141G, %s%s, model: %s}",
                   strstr(keys, "batch:") != NULL ? "" : "batch: 2, seq: 24, ", keys, model);
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "run", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    if (mp_run_source_object(&source, "run", value, &err) != MEMPLAN_STATUS_OK)
        return NULL;
    return mp_run_resolve(&source, &err);
}

/* Build, and so many steps. */
static const struct mp_run *run_steps(const char *model, const char *keys, int steps)
{
    const struct mp_run *const run = resolve(model, keys);
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_msg(mp_job_open(&job, run, &program, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_int_eq(mp_job_build(&job), MEMPLAN_STATUS_OK);
    for (int i = 0; i < steps; i++)
        ck_assert_msg(mp_job_step(&job) == MEMPLAN_STATUS_OK, "%s", err.text);
    return run;
}

static int count_allocs(uint64_t bytes)
{
    int n = 0;
    for (uint32_t i = 0; i < program.n_events; i++)
        n += program.events[i].kind == MP_EVENT_ALLOC && program.events[i].bytes == bytes;
    return n;
}

/* ---- fused loss ---- */

/* The comments of fused_linear_cross_entropy_forward: BT 16384, V 32000, H 4096 -> factor 8, chunk
 * 2048. */
static const struct {
    int64_t rows, hidden, vocabulary, chunk;
} chunks[] = {
    {16384, 4096, 32000, 2048}, /* 16384 / 8 */
    {576, 256, 50021, 4},       /* factor 196: 2.94 -> 3 -> 4 */
    {2048, 2048, 128256, 64},   /* factor 63: 32.5 -> 33 -> 64 */
    {100, 4096, 1000, 100},     /* factor 1: 128, but no more than there are */
    {1, 64, 1000, 1},
};

START_TEST(chunks_follow_ligers_budget)
{
    ck_assert_int_eq(mp_fused_loss_chunk(chunks[_i].rows, chunks[_i].hidden, chunks[_i].vocabulary),
                     chunks[_i].chunk);
}
END_TEST

/* 48 rows, V 1000, H 64: factor 16, 3 -> 4 rows to a chunk, 8,000 bytes of bf16 logits for all of
 * them. */
START_TEST(a_fused_loss_has_one_chunk_of_logits)
{
    run_steps(LLAMA, "precision: bf16, loss: fused", 1);
    ck_assert_int_eq(count_allocs(UINT64_C(4) * 1000 * 2), 1);
    ck_assert_int_eq(count_allocs(UINT64_C(48) * 1000 * 2), 0);
    ck_assert_int_eq(count_allocs(UINT64_C(48) * 1000 * 4), 0);
    mp_job_close(&job);
}
END_TEST

/* Under autocast the head, 128,000 bytes in bf16, is cast for each of 12 chunks, and once for the
 * cache. */
START_TEST(a_fused_loss_casts_the_head_for_each_chunk)
{
    run_steps(LLAMA, "precision: amp-bf16, loss: fused", 1);
    ck_assert_int_eq(count_allocs(UINT64_C(1000) * 64 * 2), 12 + 1);
    mp_job_close(&job);
}
END_TEST

/* Adapters alone are trained: the frozen head gets no gradient. */
START_TEST(a_frozen_head_has_no_gradient)
{
    run_steps(LLAMA, "precision: bf16, loss: fused", 1);
    const int trained = count_allocs(UINT64_C(1000) * 64 * 2);
    mp_job_close(&job);
    mp_program_release(&program);
    mp_program_init(&program);
    run_steps(LLAMA, "precision: bf16, loss: fused, lora: {targets: q_proj}", 1);
    ck_assert_int_lt(count_allocs(UINT64_C(1000) * 64 * 2), trained);
    mp_job_close(&job);
}
END_TEST

/* ---- chunked loss ---- */

/* 48 rows in 8 chunks of 6, 24,000 bytes in float32: logits and log-probabilities, both once more
 * when they are computed again, and two gradients; never 48 rows at once. */
START_TEST(a_chunked_loss_has_an_eighth_of_the_logits)
{
    run_steps(LLAMA, "precision: fp32, loss: chunked", 1);
    ck_assert_int_eq(count_allocs(UINT64_C(48) * 1000 * 4), 0);
    ck_assert_int_eq(count_allocs(UINT64_C(6) * 1000 * 4), 8 * (2 + 2 + 2));
    mp_job_close(&job);
}
END_TEST

/* 65 rows: chunks of 9, the last one of 2. */
START_TEST(the_last_chunk_is_shorter)
{
    run_steps(LLAMA, "precision: fp32, loss: chunked, batch: 1, seq: 65", 1);
    ck_assert_int_eq(count_allocs(UINT64_C(9) * 1000 * 4), 7 * 6);
    ck_assert_int_eq(count_allocs(UINT64_C(2) * 1000 * 4), 6);
    mp_job_close(&job);
}
END_TEST

/* ---- 4-bit weights ---- */

/* q_proj, 64 x 64 in bf16: 8,192 bytes pass; 64 maxima, one nested maximum (Params4bit._quantize).
 */
START_TEST(a_weight_is_quantised_on_its_way)
{
    static const struct {
        bool alloc;
        uint64_t bytes;
    } expected[] = {
        {true, 8192},                          /* the weight, as it comes */
        {true, 256},                           /* a float32 maximum per 64 elements */
        {true, 2048},                          /* two elements to a byte */
        {true, 64},                            /* 16 levels */
        {true, 64},                            /* their absolute values */
        {true, 4},                             /* the largest */
        {false, 64},  {false, 4},   {true, 4}, /* mean of the maxima */
        {true, 256},                           /* maxima without it */
        {true, 1024},                          /* map of 256 values, made once */
        {true, 4},                             /* a maximum per 256 maxima */
        {true, 64},                            /* a byte per maximum */
        {true, 1024},                          /* the map, copied for this weight */
        {false, 256}, {false, 256}, {false, 8192},
    };
    run_steps(LLAMA, "precision: bf16, quantization: nf4, lora: {targets: q_proj}", 0);
    uint32_t at = 0;
    while (program.events[at].kind != MP_EVENT_ALLOC || program.events[at].bytes != 8192)
        at++;
    for (size_t i = 0; i < MP_ARRAY_LEN(expected); i++, at++) {
        while (program.events[at].kind == MP_EVENT_DRIVER)
            at++;
        ck_assert_int_eq(program.events[at].kind,
                         expected[i].alloc ? MP_EVENT_ALLOC : MP_EVENT_FREE);
        ck_assert_uint_eq(program.events[at].bytes, expected[i].bytes);
    }
    mp_job_close(&job);
}
END_TEST

/* gate_proj, 96 x 64: backward dequantises 12,288 bytes with 96 maxima, forward takes the fused
 * kernel (48 rows are more than the 32 that it takes: the weight is dequantised there too). */
START_TEST(backward_dequantises_in_the_weights_type)
{
    run_steps(LLAMA, "precision: bf16, quantization: nf4, lora: {targets: q_proj}, iterations: 1",
              1);
    int dequantised = 0;
    for (uint32_t i = 0; i < program.n_events; i++)
        dequantised += program.events[i].kind == MP_EVENT_ALLOC &&
                       program.events[i].bytes == 96 * 64 * 2 &&
                       strcmp(program.events[i].op, "MatMul4BitBackward") == 0;
    /* gate, up and down of both layers, down's being 64 x 96 */
    ck_assert_int_eq(dequantised, 6);
    mp_job_close(&job);
}
END_TEST

static struct mp_gpu card(int compute_capability, uint32_t sms)
{
    struct mp_gpu gpu = {.compute_capability = compute_capability};
    gpu.sms = sms;
    return gpu;
}

/* _gemm_4bit_use_custom_cuda of bitsandbytes 0.50.2 */
static const struct {
    int capability;
    uint32_t sms;
    enum mp_dtype dtype;
    int64_t out, in, rows;
} fused_rows[] = {
    {90, 132, MP_BF16, 4096, 4096, 4},   /* 64 blocks: square below three quarters of a wave */
    {90, 132, MP_BF16, 14336, 4096, 32}, /* 224 blocks: one wave */
    {90, 132, MP_BF16, 28672, 4096, 64}, /* 448: three waves */
    {90, 132, MP_BF16, 256, 256, 32},    /* small weight, a quarter of a wave */
    {90, 132, MP_BF16, 3072, 768, 320},  /* small and short, 48 blocks: more than a third of a wave
                                          */
    {90, 132, MP_BF16, 2048, 512, 512},  /* 32 blocks: less */
    {90, 132, MP_F32, 4096, 4096, 7},    {90, 132, MP_BF16, 4096, 4100, 0}, /* no multiple of 64 */
    {80, 108, MP_BF16, 4096, 4096, 4}, /* 64 of 108 blocks, square */
    {80, 108, MP_BF16, 14336, 4096, 64}, {89, 128, MP_BF16, 4096, 4096, 8},
    {89, 128, MP_BF16, 11008, 4096, 64}, {75, 40, MP_F16, 4096, 4096, 64},
    {75, 40, MP_BF16, 4096, 4096, 7},    {70, 80, MP_F16, 4096, 4096, 7},
};

START_TEST(few_rows_take_the_fused_kernel)
{
    const struct mp_gpu gpu = card(fused_rows[_i].capability, fused_rows[_i].sms);
    ck_assert_int_eq(
        mp_nf4_fused_rows(&gpu, fused_rows[_i].dtype, fused_rows[_i].out, fused_rows[_i].in),
        fused_rows[_i].rows);
}
END_TEST

/* ---- experts one by one ---- */

START_TEST(rows_add_up_whatever_the_imbalance)
{
    static const double imbalances[] = {1, 1.1, 1.5, 3, 1000};
    for (size_t k = 0; k < MP_ARRAY_LEN(imbalances); k++) {
        int64_t sum = 0, busiest = 0;
        for (int64_t i = 0; i < 7; i++) {
            const int64_t rows = mp_expert_rows(1000, 500, 7, imbalances[k], i);
            sum += rows;
            busiest = MP_MAX(busiest, rows);
        }
        ck_assert_int_eq(sum, 1000);
        ck_assert_int_le(busiest, 500);
        ck_assert((double)busiest <= imbalances[k] * 1000 / 7 + 1);
    }
    ck_assert_int_eq(mp_expert_rows(1000, 500, 7, 1.5, 6), 214);  /* 1.5 * 142.86 */
    ck_assert_int_eq(mp_expert_rows(1000, 500, 7, 1000, 6), 500); /* no token twice */
}
END_TEST

START_TEST(a_bound_holds_for_balanced_routing)
{
    run_steps(MIXTRAL, "precision: bf16, experts: eager", 2);
    mp_mark(&job.rt, "end");
    const uint64_t balanced = program.peak_bytes;
    mp_job_close(&job);
    mp_program_release(&program);
    mp_program_init(&program);
    const struct mp_run *const run =
        run_steps(MIXTRAL, "precision: bf16, experts: eager, expert_imbalance: 1.5", 2);
    mp_mark(&job.rt, "end");
    ck_assert_uint_ge(program.peak_bytes, balanced);
    ck_assert_uint_eq(run->n_warnings, 1);
    ck_assert_ptr_nonnull(strstr(run->warnings[0], "bound"));
    mp_job_close(&job);
}
END_TEST

static const struct {
    const char *model, *keys, *claim;
} claims[] = {
    {LLAMA, "precision: bf16", "Exact for"},
    {MIXTRAL, "precision: bf16", "Exact for"},
    {MIXTRAL, "experts: eager", "For balanced routing, with"},
    {MIXTRAL, "experts: eager, expert_imbalance: 1.5",
     "A bound for requested bytes, for at most 1.5 times the mean of tokens on an expert, with"},
};

START_TEST(a_report_says_what_its_figures_are)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    const struct mp_run *const run = resolve(claims[_i].model, claims[_i].keys);
    ck_assert_ptr_nonnull(run);
    mp_run_describe_claim(run, &text);
    ck_assert_str_eq(mp_strbuf_text(&text), claims[_i].claim);
    mp_strbuf_release(&text);
}
END_TEST

START_TEST(balanced_routing_is_said)
{
    const struct mp_run *const run = resolve(MIXTRAL, "experts: eager");
    ck_assert_ptr_nonnull(run);
    ck_assert_uint_eq(run->n_warnings, 1);
    ck_assert_ptr_nonnull(strstr(run->warnings[0], "balanced routing"));
}
END_TEST

/* ---- muon ---- */

START_TEST(muon_has_hidden_matrices_and_adamw_the_rest)
{
    run_steps(GPT2, "precision: bf16, optimizer: muon", 1);
    const struct mp_optimizer_instance *const muon = &job.optimizer, *const rest = muon->next;
    ck_assert_int_eq(muon->n_parameters, 2 * 4); /* c_attn, c_proj, c_fc, c_proj */
    ck_assert_ptr_nonnull(rest);
    ck_assert_int_eq(muon->n_parameters + rest->n_parameters, job.net.n_parameters);
    for (int i = 0; i < muon->n_parameters; i++) {
        ck_assert_int_eq(muon->parameters[i]->shape.n, 2);
        ck_assert_ptr_nonnull(muon->state[i].tensors[0]);
        ck_assert_ptr_null(muon->state[i].tensors[1]);
    }
    ck_assert_str_eq(rest->parameters[0]->name, "wte");
    ck_assert_str_eq(rest->parameters[1]->name, "wpe");
    mp_job_close(&job);
}
END_TEST

/* ---- quantization_config of a config.json ---- */

#define STORED(config)                                                                             \
    "{model_type: llama, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, "          \
    "vocab_size: 1000, intermediate_size: 96, quantization_config: " config "}"
#define NF4 "load_in_4bit: true, bnb_4bit_quant_type: nf4, bnb_4bit_use_double_quant: true"

static const struct {
    const char *config, *keys;
    const char *refusal; /* NULL: taken */
    enum mp_quantization quantization;
} stored[] = {
    {"{quant_method: bitsandbytes, " NF4 ", bnb_4bit_compute_dtype: bfloat16, bnb_4bit_quant_storage: uint8}",
     "lora: {targets: q_proj}", NULL, MP_QUANTIZATION_NF4},
    {"{" NF4 ", bnb_4bit_compute_dtype: float16, llm_int8_skip_modules: [lm_head, merger]}",
     "precision: fp16, lora: {targets: q_proj}", NULL, MP_QUANTIZATION_NF4},
    {"{" NF4 "}", "precision: fp32, lora: {targets: q_proj}", NULL, MP_QUANTIZATION_NF4},
    {"{" NF4 ", bnb_4bit_compute_dtype: bfloat16}", "precision: bf16", "give lora, or quantization: none", 0},
    {"{" NF4 "}", "lora: {targets: q_proj}", "bnb_4bit_compute_dtype", 0},
    {"{load_in_4bit: true, bnb_4bit_quant_type: nf4, bnb_4bit_compute_dtype: bfloat16}", "lora: {targets: q_proj}",
     "bnb_4bit_use_double_quant", 0},
    {"{load_in_4bit: true}", "lora: {targets: q_proj}", "bnb_4bit_quant_type", 0},
    {"{load_in_8bit: true}", "lora: {targets: q_proj}", "load_in_8bit", 0},
    {"{" NF4 ", bnb_4bit_compute_dtype: bfloat16, llm_int8_skip_modules: [lm_head, model.layers.1.mlp]}",
     "lora: {targets: q_proj}", "llm_int8_skip_modules", 0},
    {"{" NF4 ", bnb_4bit_compute_dtype: bfloat16, llm_int8_skip_modules: []}", "lora: {targets: q_proj}",
     "llm_int8_skip_modules", 0},
    {"{quant_method: fp8, weight_block_size: [128, 128]}", "batch: 1", "quantised with fp8", 0},
    {"{quant_method: gptq, bits: 4}", "quantization: nf4, lora: {targets: q_proj}", "quantised with gptq", 0},
    {"{bits: 4, group_size: 64}", "batch: 1", "quantised with unknown", 0},
    {"[1]", "batch: 1", "quantization_config", 0},
    {"{quant_method: fp8}", "quantization: none", NULL, MP_QUANTIZATION_NONE},
    {"null", "batch: 1", NULL, MP_QUANTIZATION_NONE},
    {"{load_in_4bit: false, load_in_8bit: false}", "batch: 1", NULL, MP_QUANTIZATION_NONE},
    {"{load_in_4bit: true}", "quantization: nf4, lora: {targets: q_proj}", NULL, MP_QUANTIZATION_NF4},
};

START_TEST(a_stored_quantization_is_never_passed_over)
{
    char model[700];
    (void)snprintf(model, sizeof model, STORED("%s"), stored[_i].config);
    const struct mp_run *const run = resolve(model, stored[_i].keys);
    if (stored[_i].refusal != NULL) {
        ck_assert_ptr_null(run);
        ck_assert_msg(strstr(err.text, stored[_i].refusal) != NULL, "%s", err.text);
        return;
    }
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_eq(run->quantization, stored[_i].quantization);
    const bool assumed = run->quantization == MP_QUANTIZATION_NF4 && !mp_run_is_given(run, MP_KEY_QUANTIZATION);
    ck_assert_uint_eq(run->n_warnings, assumed);
}
END_TEST

/* ---- what is refused ---- */

static const struct {
    const char *model, *keys, *text;
} refused[] = {
    {LLAMA, "quantization: nf4", "give lora"},
    {LLAMA, "quantization: nf4, lora: {targets: q_proj}, init_device: cuda", "init_device"},
    {LLAMA, "quantization: nf4, lora: {targets: q_proj}, data_parallel: ddp, world: 2",
     "data_parallel: ddp"},
    {LLAMA, "framework: hf-trainer, loss: chunked", "hf-trainer"},
    {LLAMA, "optimizer: muon, data_parallel: fsdp2, world: 2", "muon"},
    {LLAMA, "expert_imbalance: 1.5", "experts: eager"},
    {MIXTRAL, "experts: eager, expert_imbalance: 0.5", "from 1 (balanced)"},
    {LLAMA, "torch_compile: true", "torch.compile is not simulated"},
    {LLAMA, "compile: true", "torch.compile is not simulated"},
    {LLAMA, "loss: liger", "full, chunked or fused"},
};

START_TEST(what_is_not_simulated_is_refused)
{
    ck_assert_ptr_null(resolve(refused[_i].model, refused[_i].keys));
    ck_assert_msg(strstr(err.text, refused[_i].text) != NULL, "%s", err.text);
}
END_TEST

static const struct {
    const char *model, *keys, *text;
} unsupported[] = {
    {GPT2, "loss: fused", "loss: \"fused\" is not supported for gpt2"},
    {LLAMA, "experts: eager", "experts: llama has none"},
    {"{model_type: llama, hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 1, "
     "rope_scaling: {type: ntk}}",
     "precision: bf16", "rope_type 'ntk' is not one of"},
};

START_TEST(a_family_says_what_it_has_not)
{
    const struct mp_run *const run = resolve(unsupported[_i].model, unsupported[_i].keys);
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_int_ne(mp_job_open(&job, run, &program, &err), MEMPLAN_STATUS_OK);
    ck_assert_msg(strstr(err.text, unsupported[_i].text) != NULL, "%s", err.text);
    mp_job_close(&job);
}
END_TEST

/* A run that is written is read back the same. */
START_TEST(variants_survive_writing)
{
    static const char *const keys[] = {"loss: chunked, optimizer: muon",
                                       "quantization: nf4, lora: {targets: [q_proj]}", "quantization: none"};
    static const char *const models[] = {LLAMA, LLAMA, STORED("{quant_method: fp8}")};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        struct mp_strbuf first = MP_STRBUF_INIT, second = MP_STRBUF_INIT;
        struct mp_json_writer w;
        struct mp_run_source source;
        const struct mp_run *run = resolve(models[i], keys[i]);
        ck_assert_msg(run != NULL, "%s", err.text);
        mp_json_init(&w, &first, 0);
        mp_run_write_json(run, &w, NULL);
        mp_run_source_init(&source, &arena);
        const struct mp_value *const value =
            mp_json_parse(&arena, "run", mp_strbuf_text(&first), first.len, &err);
        ck_assert_int_eq(mp_run_source_object(&source, "run", value, &err), MEMPLAN_STATUS_OK);
        run = mp_run_resolve(&source, &err);
        ck_assert_msg(run != NULL, "%s", err.text);
        mp_json_init(&w, &second, 0);
        mp_run_write_json(run, &w, NULL);
        ck_assert_str_eq(mp_strbuf_text(&first), mp_strbuf_text(&second));
        mp_strbuf_release(&first);
        mp_strbuf_release(&second);
    }
}
END_TEST

Suite *suite_variants(void)
{
    Suite *const suite = suite_create("variants");
    TCase *const tcase = tcase_create("sizes"), *const refusals = tcase_create("refusals");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, chunks_follow_ligers_budget, 0, (int)MP_ARRAY_LEN(chunks));
    tcase_add_test(tcase, a_fused_loss_has_one_chunk_of_logits);
    tcase_add_test(tcase, a_fused_loss_casts_the_head_for_each_chunk);
    tcase_add_test(tcase, a_frozen_head_has_no_gradient);
    tcase_add_test(tcase, a_chunked_loss_has_an_eighth_of_the_logits);
    tcase_add_test(tcase, the_last_chunk_is_shorter);
    tcase_add_test(tcase, a_weight_is_quantised_on_its_way);
    tcase_add_test(tcase, backward_dequantises_in_the_weights_type);
    tcase_add_loop_test(tcase, few_rows_take_the_fused_kernel, 0, (int)MP_ARRAY_LEN(fused_rows));
    tcase_add_test(tcase, rows_add_up_whatever_the_imbalance);
    tcase_add_test(tcase, a_bound_holds_for_balanced_routing);
    tcase_add_test(tcase, balanced_routing_is_said);
    tcase_add_loop_test(tcase, a_report_says_what_its_figures_are, 0, (int)MP_ARRAY_LEN(claims));
    tcase_add_test(tcase, muon_has_hidden_matrices_and_adamw_the_rest);
    suite_add_tcase(suite, tcase);
    tcase_add_checked_fixture(refusals, setup, teardown);
    tcase_add_loop_test(refusals, a_stored_quantization_is_never_passed_over, 0, (int)MP_ARRAY_LEN(stored));
    tcase_add_loop_test(refusals, what_is_not_simulated_is_refused, 0, (int)MP_ARRAY_LEN(refused));
    tcase_add_loop_test(refusals, a_family_says_what_it_has_not, 0, (int)MP_ARRAY_LEN(unsupported));
    tcase_add_test(refusals, variants_survive_writing);
    suite_add_tcase(suite, refusals);
    return suite;
}
