/* SPDX-License-Identifier: MIT */
/* TrainingArguments: what transformers' Trainer is told, turned into keys of a run. */
#include "spec/training_arguments.h"

#define SIZE_MAX_VALUE INT64_C(2147483647)

struct arguments {
    struct mp_problems *problems;
    const struct mp_value *value;
};

static const struct mp_value *find(const struct arguments *a, const char *key)
{
    const struct mp_value *const value = mp_value_get(a->value, key);
    return value != NULL && value->kind != MP_NULL ? value : NULL;
}

static const char *full_name(const char *key, char *name, size_t size)
{
    (void)snprintf(name, size, "training_arguments.%s", key);
    return name;
}

static bool read_flag(const struct arguments *a, const char *key)
{
    char name[80];
    bool flag = false;
    const struct mp_value *const value = find(a, key);
    if (value != NULL)
        (void)mp_problems_bool(a->problems, full_name(key, name, sizeof name), value, &flag);
    return flag;
}

static int64_t read_size(const struct arguments *a, const char *key, int64_t low, int64_t fallback)
{
    char name[80];
    int64_t size = fallback;
    const struct mp_value *const value = find(a, key);
    if (value != NULL)
        (void)mp_problems_integer(a->problems, full_name(key, name, sizeof name), value, low,
                                  SIZE_MAX_VALUE, &size);
    return size;
}

static const char *read_text(const struct arguments *a, const char *key, const char *fallback)
{
    char name[80];
    const char *text = fallback;
    const struct mp_value *const value = find(a, key);
    if (value != NULL)
        (void)mp_problems_string(a->problems, full_name(key, name, sizeof name), value, &text);
    return text;
}

/* ---- what is not simulated ---- */

static bool is_on(const struct mp_value *value)
{
    double number = 0.0;
    if (value == NULL || (value->kind == MP_BOOLEAN && !value->as.boolean))
        return false;
    if (value->kind == MP_STRING)
        return value->as.string.length > 0;
    if (value->kind == MP_ARRAY)
        return value->as.array.length > 0;
    return !mp_value_number(value, &number) || number > 0.0;
}

static void refuse_unsupported(const struct arguments *a)
{
    static const char *const unsupported[] = {"torch_compile",
                                              "deepspeed",
                                              "fsdp",
                                              "use_liger_kernel",
                                              "label_smoothing_factor",
                                              "torch_empty_cache_steps",
                                              "bf16_full_eval",
                                              "fp16_full_eval",
                                              "neftune_noise_alpha"};
    char name[80];
    for (size_t i = 0; i < MP_ARRAY_LEN(unsupported); i++)
        if (is_on(find(a, unsupported[i])))
            mp_problems_add(a->problems, find(a, unsupported[i]),
                            full_name(unsupported[i], name, sizeof name),
                            "not supported; leave it out to plan without it");
}

/* ---- optimizer, precision, checkpointing, evaluation ---- */

static enum mp_optimizer read_optimizer(const struct arguments *a)
{
    static const struct {
        const char *name;
        enum mp_optimizer kind;
    } known[] = {{"adamw_torch_fused", MP_OPTIMIZER_ADAMW_FUSED},
                 {"adamw_torch", MP_OPTIMIZER_ADAMW_FOREACH},
                 {"sgd", MP_OPTIMIZER_SGD}};
    const char *const name = read_text(a, "optim", known[0].name);
    for (size_t i = 0; i < MP_ARRAY_LEN(known); i++)
        if (strcmp(name, known[i].name) == 0)
            return known[i].kind;
    mp_problems_add(a->problems, find(a, "optim"), "training_arguments.optim",
                    "\"%.40s\" is not supported; adamw_torch_fused, adamw_torch and sgd are", name);
    return known[0].kind;
}

static void read_precision(const struct arguments *a, struct mp_trainer_options *out,
                           struct mp_run *run)
{
    const bool bf16 = read_flag(a, "bf16"), fp16 = read_flag(a, "fp16");
    if (bf16 && fp16)
        mp_problems_add(a->problems, find(a, "fp16"), "training_arguments.fp16",
                        "true, and so is bf16; give one of them");
    out->amp = bf16 ? MP_AMP_BF16 : fp16 ? MP_AMP_FP16 : MP_AMP_NONE;
    if (!mp_run_is_given(run, MP_KEY_PRECISION))
        run->precision = MP_PRECISION_FP32;
    if (run->precision == MP_PRECISION_AMP_BF16 || run->precision == MP_PRECISION_AMP_FP16) {
        out->amp = run->precision == MP_PRECISION_AMP_BF16 ? MP_AMP_BF16 : MP_AMP_FP16;
        run->precision = MP_PRECISION_FP32; /* of the weights */
    }
}

/* Does the run leave this to the argument? Then it counts as given where the argument is. */
static bool is_left_to(const struct arguments *a, const char *argument, enum mp_run_key key,
                       struct mp_run *run)
{
    if (mp_run_is_given(run, key))
        return false;
    if (find(a, argument) != NULL)
        run->given |= UINT64_C(1) << (unsigned)key;
    return true;
}

static void read_checkpointing(const struct arguments *a, struct mp_run *run)
{
    const struct arguments kwargs = {a->problems, find(a, "gradient_checkpointing_kwargs")};
    if (!is_left_to(a, "gradient_checkpointing", MP_KEY_CHECKPOINT, run) ||
        !read_flag(a, "gradient_checkpointing"))
        return;
    run->checkpoint = kwargs.value != NULL && read_flag(&kwargs, "use_reentrant")
                          ? MP_CHECKPOINT_FULL_REENTRANT
                          : MP_CHECKPOINT_FULL;
}

static void read_evaluation(const struct arguments *a, struct mp_trainer_options *out,
                            const struct mp_run *run)
{
    const char *const key =
        find(a, "eval_strategy") != NULL ? "eval_strategy" : "evaluation_strategy";
    const bool on = strcmp(read_text(a, key, "no"), "no") != 0;
    const int64_t logging = read_size(a, "logging_steps", 1, 500);
    out->logging_steps = logging;
    out->eval_batch = read_size(a, "per_device_eval_batch_size", 1, run->batch);
    out->eval_steps = on ? read_size(a, "eval_steps", 1, logging) : 0;
    /* Not an argument of transformers: how many samples there are to evaluate, which memory hardly depends on. */
    out->eval_samples = read_size(a, "eval_samples", 1, 4 * out->eval_batch);
}

void mp_training_arguments_apply(struct mp_problems *problems, const struct mp_value *value,
                                 struct mp_trainer_options *out, struct mp_run *run)
{
    const struct arguments a = {problems, value};
    refuse_unsupported(&a);
    read_precision(&a, out, run);
    read_checkpointing(&a, run);
    if (is_left_to(&a, "per_device_train_batch_size", MP_KEY_BATCH, run))
        run->batch = read_size(&a, "per_device_train_batch_size", 1, 8);
    if (is_left_to(&a, "gradient_accumulation_steps", MP_KEY_ACCUMULATE, run))
        run->accumulate = read_size(&a, "gradient_accumulation_steps", 1, 1);
    if (is_left_to(&a, "optim", MP_KEY_OPTIMIZER, run))
        run->optimizer = read_optimizer(&a);
    if (is_left_to(&a, "tf32", MP_KEY_TF32, run))
        run->tf32 = read_flag(&a, "tf32");
    read_evaluation(&a, out, run);
    run->clip_grad_norm = true; /* max_grad_norm: 0 measures the norm all the same */
    run->init_cpu = true;
}
