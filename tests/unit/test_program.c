/* SPDX-License-Identifier: MIT */
/*
 * Program files: what is written can be read back, asks for the same memory, and is complete: every
 * operation reads live storages that an operation before it has written.
 */
#include "report/program.h"

#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;
static struct mp_strbuf text;
static struct mp_program_file file;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
    text = (struct mp_strbuf)MP_STRBUF_INIT;
    file = (struct mp_program_file){.header = NULL};
}

static void teardown(void)
{
    mp_program_file_release(&file);
    mp_strbuf_release(&text);
    mp_arena_release(&arena);
}

static const struct mp_run *run_of(const char *spec)
{
    struct mp_run_source source;
    const struct mp_value *value = mp_json_parse(&arena, "spec", spec, strlen(spec), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    mp_run_source_init(&source, &arena);
    ck_assert_msg(mp_run_source_object(&source, "spec", value, &err) == MEMPLAN_STATUS_OK, "%s",
                  err.text);
    const struct mp_run *run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    return run;
}

#define GPT2                                                                                       \
    "\"model\": {\"model_type\": \"gpt2\", \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 4, "        \
    "\"vocab_size\": 211, \"n_positions\": 64}"
#define GPT2_DRY                                                                                   \
    "\"model\": {\"model_type\": \"gpt2\", \"n_embd\": 64, \"n_layer\": 2, \"n_head\": 4, "        \
    "\"vocab_size\": 211, "                                                                        \
    "\"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}"
#define BERT                                                                                       \
    "\"model\": {\"model_type\": \"bert\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "        \
    "\"num_attention_heads\": 4, "                                                                 \
    "\"intermediate_size\": 128, \"vocab_size\": 211}"
#define LLAMA                                                                                      \
    "\"model\": {\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "       \
    "\"num_attention_heads\": 4, "                                                                 \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 128, \"vocab_size\": 211}"
#define ODD                                                                                        \
    "\"model\": {\"model_type\": \"llama\", \"hidden_size\": 60, \"num_hidden_layers\": 2, "       \
    "\"num_attention_heads\": 6, "                                                                 \
    "\"intermediate_size\": 128, \"vocab_size\": 211}"
#define QWEN3                                                                                      \
    "\"model\": {\"model_type\": \"qwen3\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "       \
    "\"num_attention_heads\": 4, \"head_dim\": 16, "                                               \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 128, \"vocab_size\": 211}"
#define MISTRAL                                                                                    \
    "\"model\": {\"model_type\": \"mistral\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "     \
    "\"num_attention_heads\": 4, "                                                                 \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 128, \"vocab_size\": 211, "                \
    "\"sliding_window\": 16}"

#define GPT2_DDP                                                                                   \
    GPT2 ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32, \"precision\": \"fp32\", "              \
         "\"data_parallel\": \"ddp\", \"world\": 2, \"iterations\": 3"

static const char *const specs[] = {
    "{" GPT2 ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32}",
    "{" GPT2
    ", \"gpu\": \"H200-141G\", \"seq\": 32, \"precision\": \"fp32\", \"attention\": \"eager\"}",
    "{" GPT2
    ", \"gpu\": \"A100-80G\", \"seq\": 32, \"precision\": \"bf16\", \"checkpoint\": \"full\"}",
    "{" GPT2_DRY ", \"gpu\": \"H200-141G\", \"seq\": 32, \"precision\": \"fp32\", \"accumulate\": "
                 "2, \"clip_grad_norm\": true}",
    "{" GPT2 ", \"gpu\": \"H200-141G\", \"seq\": 32, \"precision\": \"amp-fp16\", \"optimizer\": "
             "\"adamw-fused\"}",
    "{" GPT2 ", \"gpu\": \"H200-141G\", \"seq\": 32, \"precision\": \"amp-fp16\", "
             "\"clip_grad_norm\": true, \"zero_grad\": \"keep\"}",
    "{" GPT2 ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32, \"attention_mask\": \"padded\", "
             "\"optimizer\": \"sgd-momentum\"}",
    "{" GPT2 ", \"gpu\": \"H200-141G\", \"seq\": 32, \"checkpoint\": \"full-reentrant\", "
             "\"optimizer\": \"sgd\"}",
    "{" GPT2
    ", \"gpu\": \"H200-141G\", \"seq\": 32, \"use_cache\": true, \"optimizer\": \"adamw-forloop\"}",
    "{" GPT2 ", \"gpu\": \"H200-141G\", \"seq\": 32, \"lora\": {\"rank\": 4, \"targets\": "
             "[\"c_attn\"], \"dropout\": 0.1}}",
    "{" GPT2 ", \"gpu\": \"V100-32G\", \"seq\": 32, \"precision\": \"amp-fp16\"}",
    "{" BERT ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32}",
    "{" BERT ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32, \"attention\": \"eager\", "
             "\"attention_mask\": \"padded\"}",
    "{" BERT ", \"gpu\": \"H200-141G\", \"batch\": 130, \"seq\": 32, \"precision\": \"fp32\", "
             "\"optimizer\": \"adafactor\"}",
    "{" BERT ", \"gpu\": \"A100-80G\", \"seq\": 32, \"attention_mask\": true, \"checkpoint\": "
             "{\"layers\": [1]}}",
    "{" LLAMA ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32}",
    "{" LLAMA ", \"gpu\": \"H200-141G\", \"seq\": 32, \"precision\": \"fp32\", \"attention\": "
              "\"eager\", \"checkpoint\": \"full\"}",
    "{" LLAMA ", \"gpu\": \"A100-80G\", \"seq\": 32, \"precision\": \"bf16\"}",
    "{" LLAMA
    ", \"gpu\": \"H200-141G\", \"seq\": 32, \"precision\": \"fp32\", \"init_device\": \"cpu\"}",
    "{" LLAMA
    ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32, \"attention_mask\": \"padded\"}",
    "{" ODD ", \"gpu\": \"A100-80G\", \"seq\": 32}",
    "{" QWEN3 ", \"gpu\": \"H200-141G\", \"seq\": 33}",
    "{" MISTRAL ", \"gpu\": \"H200-141G\", \"seq\": 32}",
    "{" GPT2_DDP "}",
    "{" GPT2_DDP ", \"ddp\": {\"gradient_as_bucket_view\": true}, \"accumulate\": 2}",
    "{" GPT2_DDP ", \"ddp\": {\"static_graph\": true}, \"clip_grad_norm\": true}",
    "{" GPT2_DDP ", \"ddp\": {\"find_unused_parameters\": true, \"bucket_cap_mb\": 1}}",
    "{" GPT2_DDP ", \"ddp\": {\"no_sync\": true}, \"accumulate\": 2}",
    "{" GPT2_DDP ", \"ddp\": {\"compression\": \"fp16\"}}",
    "{" GPT2_DDP ", \"collectives\": \"none\"}",
    "{" BERT ", \"gpu\": \"H200-141G\", \"seq\": 32, \"data_parallel\": \"ddp\", \"world\": 2}",
    "{" LLAMA ", \"gpu\": \"H200-141G\", \"seq\": 32, \"data_parallel\": \"ddp\", \"world\": 2}",
    "{" LLAMA ", \"gpu\": \"H200-141G\", \"seq\": 32, \"data_parallel\": \"ddp\", \"world\": 2, "
             "\"init_device\": \"cpu\"}",
};

static void write_and_read(const char *spec)
{
    ck_assert_msg(mp_report_program(run_of(spec), &text, &err) == MEMPLAN_STATUS_OK, "%s",
                  err.text);
    ck_assert_msg(mp_program_file_parse(&file, "program", text.data, text.len, &err) ==
                      MEMPLAN_STATUS_OK,
                  "%s", err.text);
}

START_TEST(asks_for_the_same_memory)
{
    struct mp_evaluation e;
    write_and_read(specs[_i]);
    ck_assert_int_eq(mp_evaluate(run_of(specs[_i]), NULL, &e, &err), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(file.program.peak_bytes, e.requested_bytes);
    ck_assert_uint_ge(e.n_phases, file.program.n_phases);
    for (uint32_t i = 0; i < file.program.n_phases; i++) {
        ck_assert_str_eq(file.program.phases[i].name, e.phases[i].name);
        ck_assert_uint_eq(file.program.phases[i].requested_bytes, e.phases[i].requested_bytes);
        ck_assert_uint_eq(file.program.phases[i].requested_peak_bytes,
                          e.phases[i].requested_peak_bytes);
    }
    mp_evaluation_release(&e);
}
END_TEST

/* Tensors of the operation at hand, written or read. */
static void note(const struct mp_op_record *op, const struct mp_op_tensor *t, bool output,
                 bool *written)
{
    if (!t || !t->storage)
        return;
    if (output)
        written[t->storage] = true;
    ck_assert_msg(written[t->storage], "%s reads storage %u, which nothing has written", op->op,
                  t->storage);
}

START_TEST(reads_only_what_was_written)
{
    write_and_read(specs[_i]);
    const struct mp_program *p = &file.program;
    bool *written = mp_arena_calloc(&arena, p->n_allocs + 1, sizeof *written);
    ck_assert_uint_gt(p->n_ops, 100);
    for (uint32_t n = 0; n < p->n_ops; n++) {
        const struct mp_op_record *op = &p->ops[n];
        for (uint32_t i = 0; i < op->n_inputs; i++)
            note(op, mp_op_input(p, op, i), false, written);
        for (uint32_t i = 0; i < op->n_outputs; i++)
            note(op, mp_op_output(p, op, i), true, written);
    }
}
END_TEST

/* Every parameter that is trained is updated, and its gradient is the one that was computed. */
START_TEST(updates_every_parameter)
{
    write_and_read("{" GPT2 ", \"gpu\": \"H200-141G\", \"seq\": 32, \"iterations\": 2}");
    const struct mp_program *p = &file.program;
    int n_parameters = 0, n_updates = 0;
    for (uint32_t n = 0; n < p->n_ops; n++) {
        n_parameters += strcmp(p->ops[n].op, "parameter") == 0;
        n_updates += strcmp(p->ops[n].op, "adamw") == 0;
    }
    ck_assert_int_eq(n_parameters, 2 + 2 * 12 + 2);
    ck_assert_int_eq(n_updates, 2 * n_parameters);
}
END_TEST

static const struct mp_op_record *first_op(const char *name)
{
    const struct mp_program *p = &file.program;
    for (uint32_t n = 0; n < p->n_ops; n++)
        if (strcmp(p->ops[n].op, name) == 0)
            return &p->ops[n];
    return NULL;
}

START_TEST(attributes_are_the_real_ones)
{
    write_and_read("{" GPT2
                   ", \"gpu\": \"H200-141G\", \"batch\": 2, \"seq\": 32, \"iterations\": 1}");
    const struct mp_program *p = &file.program;
    const struct mp_op_record *attention = first_op("attention"), *norm = first_op("layer_norm"),
                              *dropout = first_op("dropout");
    ck_assert_double_eq(mp_op_number(p, attention, "scale", 0), 0.25);
    ck_assert_double_eq(mp_op_number(p, attention, "p", 0), 0.1);
    ck_assert_int_eq(mp_op_integer(p, attention, "causal", 0), 1);
    ck_assert_str_eq(mp_op_text(p, attention, "kernel", ""), "cudnn");
    ck_assert_double_eq(mp_op_number(p, norm, "eps", 0), 1e-5);
    ck_assert_double_eq(mp_op_number(p, dropout, "p", 0), 0.1);
    /* q, k, v are thirds of one row of 3 * 64 */
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_int_eq(mp_op_input(p, attention, i)->offset, 64 * (int64_t)i);
    ck_assert_int_eq(mp_op_input(p, attention, 0)->stride[2], 3 * 64);
}
END_TEST

/* What a checkpointed block drew at first, it draws again. */
START_TEST(recomputation_draws_the_same_numbers)
{
    write_and_read(
        "{" GPT2
        ", \"gpu\": \"H200-141G\", \"seq\": 32, \"iterations\": 1, \"checkpoint\": \"full\"}");
    const struct mp_program *p = &file.program;
    int n = 0;
    int64_t seeds[16];
    for (uint32_t i = 0; i < p->n_ops && n < 16; i++)
        if (strcmp(p->ops[i].op, "dropout") == 0 && p->ops[i].layer == 0)
            seeds[n++] = mp_op_integer(p, &p->ops[i], "seed", -1);
    ck_assert_int_ge(n, 3);
    ck_assert_int_eq(seeds[0], seeds[2]); /* the second run stops before its last one */
}
END_TEST

static int64_t elements(const struct mp_op_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->shape.n; i++)
        n *= t->shape.d[i];
    return n;
}

static const char *const reducing[] = {
    "{" GPT2_DDP "}",
    "{" GPT2_DDP ", \"ddp\": {\"gradient_as_bucket_view\": true}}",
    "{" GPT2_DDP ", \"ddp\": {\"static_graph\": true}}",
    "{" GPT2_DDP ", \"ddp\": {\"bucket_cap_mb\": 0.05}}",
    "{" GPT2_DDP ", \"ddp\": {\"no_sync\": true}, \"accumulate\": 2}",
};

/* Each step reduces as many elements as there are parameters, all of them before the optimizer. */
START_TEST(ddp_reduces_every_gradient)
{
    write_and_read(reducing[_i]);
    const struct mp_program *p = &file.program;
    int64_t parameters = 0, reduced = 0, broadcast = 0;
    int n_steps = 0;
    bool stepping = false;
    for (uint32_t n = 0; n < p->n_ops; n++) {
        const struct mp_op_record *op = &p->ops[n];
        const struct mp_op_tensor *first = mp_op_output(p, op, 0);
        const int64_t count = first ? elements(first) : 0;
        parameters += strcmp(op->op, "parameter") == 0 ? count : 0;
        broadcast += strcmp(op->op, "broadcast_") == 0 ? count : 0;
        if (strcmp(op->op, "all_reduce_") == 0) {
            stepping = false;
            reduced = parameters > 0 ? reduced + count : 0; /* the group's own comes first */
        } else if (strcmp(op->op, "adamw") == 0 && !stepping) {
            stepping = true;
            n_steps++;
            ck_assert_int_eq(reduced, n_steps * parameters);
        }
    }
    ck_assert_int_eq(n_steps, 3);
    ck_assert_int_eq(broadcast, parameters);
}
END_TEST

/* Gradients lie side by side in their bucket, and are all there when it is reduced. */
START_TEST(ddp_fills_its_buckets)
{
    write_and_read(reducing[_i]);
    const struct mp_program *p = &file.program;
    uint64_t *filled = mp_arena_calloc(&arena, p->n_allocs + 1, sizeof *filled);
    uint64_t *ends = mp_arena_calloc(&arena, p->n_allocs + 1, sizeof *ends);
    int n_reduced = 0;
    for (uint32_t n = 0; n < p->n_ops; n++) {
        const struct mp_op_record *op = &p->ops[n];
        const struct mp_op_tensor *t = mp_op_output(p, op, 0);
        if (strcmp(op->op, "mul") == 0 && mp_op_number(p, op, "number", 0) == 0.5 && t) {
            filled[t->storage] += (uint64_t)elements(t);
            ends[t->storage] =
                MP_MAX(ends[t->storage], (uint64_t)t->offset + (uint64_t)elements(t));
        } else if (strcmp(op->op, "all_reduce_") == 0 && filled[t->storage]) {
            ck_assert_uint_eq(filled[t->storage], (uint64_t)elements(t));
            ck_assert_uint_eq(ends[t->storage], (uint64_t)elements(t));
            filled[t->storage] = ends[t->storage] = 0;
            n_reduced++;
        }
    }
    ck_assert_int_ge(n_reduced, 3);
}
END_TEST

static const struct {
    const char *text, *message;
} bad[] = {
    {"", "empty"},
    {"{}\n", "schema_version"},
    {"{\"schema_version\": 2}\n", "another version"},
    {"{\"schema_version\": 1}\n{\"alloc\": 2, \"bytes\": 1, \"stream\": 0}\n", "program:2: alloc"},
    {"{\"schema_version\": 1}\n{\"alloc\": 1, \"bytes\": 0, \"stream\": 0}\n", "bytes"},
    {"{\"schema_version\": 1}\n{\"free\": 1}\n", "free"},
    {"{\"schema_version\": 1}\n{\"mark\": 7}\n", "mark"},
    {"{\"schema_version\": 1}\n[]\n", "no event"},
    {"{\"schema_version\": 1}\n{\"op\": \n", "line 2"},
    {"{\"schema_version\": 1}\n{\"op\": \"x\", \"inputs\": [{\"storage\": 1}], \"outputs\": []}\n",
     "dtype"},
    {"{\"schema_version\": 1}\n{\"alloc\": 1, \"bytes\": 8, \"stream\": 0}\n"
     "{\"op\": \"x\", \"inputs\": [], \"outputs\": [{\"storage\": 1, \"offset\": 1, \"shape\": "
     "[2], \"strides\": [1], \"dtype\": \"float32\"}]}\n",
     "beyond its storage"},
    {"{\"schema_version\": 1}\n"
     "{\"op\": \"x\", \"inputs\": [], \"outputs\": [{\"storage\": 1, \"offset\": 1, \"shape\": "
     "[2], \"strides\": [1], \"dtype\": \"float32\"}]}\n",
     "not live"},
};

START_TEST(refuses_with_the_reason)
{
    ck_assert_int_eq(
        mp_program_file_parse(&file, "program", bad[_i].text, strlen(bad[_i].text), &err),
        MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, bad[_i].message) != NULL, "%s", err.text);
}
END_TEST

Suite *suite_program(void)
{
    Suite *suite = suite_create("program");
    TCase *files = tcase_create("files");
    tcase_add_checked_fixture(files, setup, teardown);
    tcase_add_loop_test(files, asks_for_the_same_memory, 0, MP_ARRAY_LEN(specs));
    tcase_add_loop_test(files, reads_only_what_was_written, 0, MP_ARRAY_LEN(specs));
    tcase_add_test(files, updates_every_parameter);
    tcase_add_test(files, attributes_are_the_real_ones);
    tcase_add_test(files, recomputation_draws_the_same_numbers);
    tcase_add_loop_test(files, ddp_reduces_every_gradient, 0, MP_ARRAY_LEN(reducing));
    tcase_add_loop_test(files, ddp_fills_its_buckets, 0, MP_ARRAY_LEN(reducing));
    tcase_add_loop_test(files, refuses_with_the_reason, 0, MP_ARRAY_LEN(bad));
    suite_add_tcase(suite, files);
    return suite;
}
