/* SPDX-License-Identifier: MIT */
/* LoRA: which layers get adapters, what stays frozen, what a step keeps. */
#include <check.h>

#include "base/yaml.h"
#include "suites.h"
#include "train/job.h"

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
    mp_job_close(&job);
    mp_program_release(&program);
    mp_arena_release(&arena);
}

#define TINY                                                                                       \
    "hidden_size: 64, num_attention_heads: 4, num_hidden_layers: 2, "                              \
    "intermediate_size: 96, vocab_size: 512"

static enum memplan_status start(const char *lora)
{
    char text[400];
    struct mp_run_source source;
    (void)snprintf(text, sizeof text,
                   "{gpu: H200-141G, seq: 32, precision: bf16, model: "
                   "{model_type: llama, " TINY "}, lora: %s}",
                   lora);
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "run", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    ck_assert_msg(mp_run_source_object(&source, "run", value, &err) == MEMPLAN_STATUS_OK, "%s",
                  err.text);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s", err.text);
    ck_assert_msg(mp_job_open(&job, run, &program, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    return mp_job_build(&job);
}

static int count_trained(void)
{
    int n = 0;
    for (int i = 0; i < job.net.n_parameters; i++)
        n += job.net.parameters[i]->requires_grad;
    return n;
}

/* Two matrices per adapted layer, in each of two blocks. */
static const struct {
    const char *lora;
    int layers_per_block;
} targets[] = {
    {"{targets: [q_proj, v_proj], rank: 4}", 2},
    {"{targets: q_proj}", 1},
    {"{targets: [self_attn.o_proj]}", 1},
    {"{targets: [proj, up_proj]}", 1}, /* a name ends in a target only after a dot */
    {"{targets: all-linear}", 7},
};

START_TEST(layers_are_adapted_by_name)
{
    ck_assert_msg(start(targets[_i].lora) == MEMPLAN_STATUS_OK, "%s: %s", targets[_i].lora,
                  err.text);
    ck_assert_int_eq(count_trained(), 2 * 2 * targets[_i].layers_per_block);
}
END_TEST

START_TEST(a_target_that_names_nothing_is_told)
{
    ck_assert_int_eq(start("{targets: [c_attn]}"), MEMPLAN_STATUS_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "'c_attn' is not the name of a linear layer"));
}
END_TEST

START_TEST(adapters_are_float32_and_follow_their_layer)
{
    ck_assert_int_eq(start("{targets: [q_proj], rank: 4}"), MEMPLAN_STATUS_OK);
    struct mp_tensor *const *const p = job.net.parameters;
    /* embedding, q_proj, A, B, k_proj, … */
    ck_assert_int_eq(p[1]->dtype, MP_BF16);
    ck_assert(!p[1]->requires_grad && p[2]->requires_grad && p[3]->requires_grad &&
              !p[4]->requires_grad);
    ck_assert_int_eq(p[2]->dtype, MP_F32);
    ck_assert_int_eq(mp_dim(p[2], 0), 4);
    ck_assert_int_eq(mp_dim(p[2], 1), 64);
    ck_assert_int_eq(mp_dim(p[3], 0), 64);
    ck_assert_int_eq(mp_dim(p[3], 1), 4);
}
END_TEST

static uint64_t live_bytes_of(enum mp_category category)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < program.n_events; i++) {
        const struct mp_event *const e = &program.events[i];
        if (e->kind == MP_EVENT_ALLOC && e->category == category)
            bytes += e->bytes;
    }
    return bytes;
}

START_TEST(only_adapters_have_gradients_and_state)
{
    ck_assert_int_eq(start("{targets: [q_proj], rank: 4}"), MEMPLAN_STATUS_OK);
    ck_assert_msg(mp_job_step(&job) == MEMPLAN_STATUS_OK, "%s", err.text);
    const uint64_t adapters = 2 * (4 * 64 + 64 * 4) * sizeof(float);
    ck_assert_uint_eq(live_bytes_of(MP_CATEGORY_OPTIMIZER_STATE), 2 * adapters);
    for (int i = 0; i < job.optimizer.n_parameters; i++)
        ck_assert((job.optimizer.state[i].tensors[0] != NULL) ==
                  job.optimizer.parameters[i]->requires_grad);
}
END_TEST

Suite *suite_arch_lora(void)
{
    Suite *const suite = suite_create("arch_lora");
    TCase *const tcase = tcase_create("lora");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, layers_are_adapted_by_name, 0, (int)MP_ARRAY_LEN(targets));
    tcase_add_test(tcase, a_target_that_names_nothing_is_told);
    tcase_add_test(tcase, adapters_are_float32_and_follow_their_layer);
    tcase_add_test(tcase, only_adapters_have_gradients_and_state);
    suite_add_tcase(suite, tcase);
    return suite;
}
