/* SPDX-License-Identifier: MIT */
/* Reads ds_config.json with the defaults of DeepSpeed 0.19 (deepspeed/runtime/zero/config.py). */
#include "spec/deepspeed.h"

#include "base/units.h"
#include "spec/problems.h"

#define COUNT_MAX INT64_C(1000000000000000)

/* The end of the comment that begins here; `at` itself if none does. */
static size_t end_of_comment(const char *text, size_t at, size_t length)
{
    const bool block = at + 1 < length && text[at] == '/' && text[at + 1] == '*';
    const bool line = text[at] == '#' || (at + 1 < length && text[at] == '/' && text[at + 1] == '/');
    if (line)
        while (at < length && text[at] != '\n')
            at++;
    for (size_t i = at + 2; block && i + 1 < length; i++)
        if (text[i] == '*' && text[i + 1] == '/')
            return i + 2;
    return at;
}

void mp_deepspeed_plain_json(char *text, size_t length)
{
    size_t comma = length; /* the last comma, if nothing but space has followed it */
    bool quoted = false;
    for (size_t i = 0; i < length; i++) {
        const size_t end = quoted ? i : end_of_comment(text, i, length);
        for (; i < end; i++)
            text[i] = text[i] == '\n' ? '\n' : ' ';
        if (i == length)
            break;
        if (text[i] == '"')
            quoted = !quoted;
        else if (quoted && text[i] == '\\')
            i++;
        else if (!quoted && (text[i] == '}' || text[i] == ']') && comma < length)
            text[comma] = ' ';
        if (!quoted && text[i] == ',')
            comma = i;
        else if (i < length && strchr(" \t\r\n", text[i]) == NULL)
            comma = length;
    }
}

void mp_deepspeed_options_init(struct mp_deepspeed_options *o, int stage)
{
    *o = (struct mp_deepspeed_options){
        .stage = stage,
        .overlap_comm = stage == 3,
        .contiguous_gradients = true,
        .memory_efficient_linear = true,
        .reduce_bucket_size = 500000000,
        .allgather_bucket_size = 500000000,
        .prefetch_bucket_size = 50000000,
        .max_live_parameters = 1000000000,
        .max_reuse_distance = 1000000000,
        .persistence_threshold = 100000,
        .sub_group_size = 1000000000,
    };
}

void mp_deepspeed_options_fill(struct mp_deepspeed_options *o, int64_t hidden_size)
{
    if (o->auto_reduce_bucket)
        o->reduce_bucket_size = hidden_size * hidden_size;
    if (o->auto_prefetch_bucket)
        o->prefetch_bucket_size = (int64_t)(0.9 * (double)hidden_size * (double)hidden_size);
    if (o->auto_persistence)
        o->persistence_threshold = 10 * hidden_size;
}

static bool is_auto(const struct mp_value *value)
{
    return value != NULL && value->kind == MP_STRING && strcmp(value->as.string.text, "auto") == 0;
}

static bool is_given(const struct mp_value *value)
{
    return value != NULL && value->kind != MP_NULL && !is_auto(value);
}

/* A count may be written 5e8. */
static void read_count(struct mp_problems *problems, const struct mp_value *part, const char *key,
                       const char *name, int64_t *out)
{
    const struct mp_value *const value = mp_value_get(part, key);
    char shown[MP_VALUE_SHOW_MAX];
    double number;
    if (!is_given(value))
        return;
    if (mp_value_number(value, &number) && number >= 0 && number <= (double)COUNT_MAX)
        *out = (int64_t)number;
    else
        mp_problems_add(problems, value, name, "%s is not a number of elements",
                        mp_value_show(value, shown));
}

static void read_switch(struct mp_problems *problems, const struct mp_value *part, const char *key,
                        const char *name, bool *out)
{
    const struct mp_value *const value = mp_value_get(part, key);
    if (is_given(value))
        (void)mp_problems_bool(problems, name, value, out);
}

static const struct mp_value *object(struct mp_problems *problems, const struct mp_value *part,
                                     const char *key)
{
    const struct mp_value *const value = mp_value_get(part, key);
    char shown[MP_VALUE_SHOW_MAX];
    if (!is_given(value))
        return NULL;
    if (value->kind == MP_OBJECT)
        return value;
    mp_problems_add(problems, value, key, "%s is not an object", mp_value_show(value, shown));
    return NULL;
}

/* {"device": "cpu"}; "none" is nothing. */
static bool is_offloaded(struct mp_problems *problems, const struct mp_value *zero, const char *key)
{
    const struct mp_value *const part = object(problems, zero, key);
    const struct mp_value *const device = part != NULL ? mp_value_get(part, "device") : NULL;
    return is_given(device) && device->kind == MP_STRING &&
           strcmp(device->as.string.text, "none") != 0;
}

static void read_zero(struct mp_deepspeed_options *o, struct mp_problems *problems,
                      const struct mp_value *zero)
{
    static const struct {
        const char *key, *name;
        size_t offset;
    } counts[] = {
#define COUNT(key, field)                                                                          \
    {key, "zero_optimization." key, offsetof(struct mp_deepspeed_options, field)}
        COUNT("reduce_bucket_size", reduce_bucket_size),
        COUNT("allgather_bucket_size", allgather_bucket_size),
        COUNT("stage3_prefetch_bucket_size", prefetch_bucket_size),
        COUNT("stage3_max_live_parameters", max_live_parameters),
        COUNT("stage3_max_reuse_distance", max_reuse_distance),
        COUNT("stage3_param_persistence_threshold", persistence_threshold),
        COUNT("sub_group_size", sub_group_size),
#undef COUNT
    };
    for (size_t i = 0; i < MP_ARRAY_LEN(counts); i++)
        read_count(problems, zero, counts[i].key, counts[i].name,
                   (int64_t *)(void *)((char *)o + counts[i].offset));
    read_switch(problems, zero, "overlap_comm", "zero_optimization.overlap_comm", &o->overlap_comm);
    read_switch(problems, zero, "contiguous_gradients", "zero_optimization.contiguous_gradients",
                &o->contiguous_gradients);
    read_switch(problems, zero, "memory_efficient_linear", "zero_optimization.memory_efficient_linear",
                &o->memory_efficient_linear);
    o->offload_optimizer = is_offloaded(problems, zero, "offload_optimizer");
    o->offload_param = is_offloaded(problems, zero, "offload_param");
    /* as it was written before 0.3.16 */
    read_switch(problems, zero, "cpu_offload", "zero_optimization.cpu_offload", &o->offload_optimizer);
    o->auto_reduce_bucket = is_auto(mp_value_get(zero, "reduce_bucket_size"));
    o->auto_prefetch_bucket =
        o->stage == 3 && is_auto(mp_value_get(zero, "stage3_prefetch_bucket_size"));
    o->auto_persistence =
        o->stage == 3 && is_auto(mp_value_get(zero, "stage3_param_persistence_threshold"));
}

static void read_stage(struct mp_deepspeed_options *o, struct mp_problems *problems,
                       const struct mp_value *zero)
{
    const struct mp_value *const value = zero != NULL ? mp_value_get(zero, "stage") : NULL;
    int64_t stage = 0;
    if (!is_given(value))
        mp_problems_add(problems, value, "zero_optimization.stage", "%s; give 1, 2 or 3", is_auto(value) ? "\"auto\" is not filled in by transformers" : "missing");
    else if (value->kind == MP_INT && value->as.integer == 0)
        mp_problems_add(problems, value, "zero_optimization.stage",
                        "0 shares nothing; use data_parallel: ddp without the file");
    else
        (void)mp_problems_integer(problems, "zero_optimization.stage", value, 1, 3, &stage);
    mp_deepspeed_options_init(o, (int)stage);
}

static void read_optimizer(struct mp_deepspeed_options *o, struct mp_problems *problems,
                           const struct mp_value *config)
{
    const struct mp_value *const optimizer = object(problems, config, "optimizer");
    if (optimizer == NULL)
        return;
    const struct mp_value *const type = mp_value_get(optimizer, "type"), *const params = object(
                                                                             problems, optimizer,
                                                                             "params");
    char shown[MP_VALUE_SHOW_MAX];
    o->has_optimizer = true;
    if (!is_given(type) || type->kind != MP_STRING ||
        (strcmp(type->as.string.text, "AdamW") != 0 && strcmp(type->as.string.text, "Adam") != 0))
        mp_problems_add(problems, type, "optimizer.type", "%s is not modelled; Adam and AdamW are",
                        type ? mp_value_show(type, shown) : "none");
    if (params != NULL)
        read_switch(problems, params, "torch_adam", "optimizer.params.torch_adam", &o->torch_adam);
}

/* Kinds of parallelism beside data parallelism. */
static enum memplan_status refuse_other_parallelism(const char *origin,
                                                    const struct mp_value *config,
                                                    struct memplan_error *err)
{
    static const struct {
        const char *part, *key, *name;
    } sizes[] = {{"tensor_parallel", "autotp_size", "tensor_parallel.autotp_size"},
                 {NULL, "sequence_parallel_size", "sequence_parallel_size"}};
    for (size_t i = 0; i < MP_ARRAY_LEN(sizes); i++) {
        const struct mp_value *const part =
            sizes[i].part != NULL ? mp_value_get(config, sizes[i].part) : config;
        const struct mp_value *const value =
            part != NULL && part->kind == MP_OBJECT ? mp_value_get(part, sizes[i].key) : NULL;
        if (value != NULL && value->kind == MP_INT && value->as.integer > 1)
            return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                                "%s: %s: not here yet, data parallelism is; leave it out", origin,
                                sizes[i].name);
    }
    return MEMPLAN_STATUS_OK;
}

/* What DeepSpeed knows: it refuses other members of zero_optimization, and passes over others beside it (runtime/zero/config.py). */
static const char *const zero_keys[] = {
    "stage", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "use_multi_rank_bucket_allreduce", "allgather_partitions",
    "allgather_bucket_size", "overlap_comm", "compute_grad_norm", "load_from_fp32_weights", "elastic_checkpoint", "offload_param",
    "offload_optimizer", "zenflow", "sub_group_size", "cpu_offload_param", "cpu_offload_use_pin_memory", "cpu_offload",
    "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold", "stage3_model_persistence_threshold",
    "stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save", "stage3_module_granularity_threshold", "stage3_use_all_reduce_for_fetch_params",
    "stage3_allgather_sequential", "ignore_unused_parameters", "legacy_stage1", "round_robin_gradients", "parameter_alignment",
    "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients",
    "mics_shard_size", "mics_hierarchical_params_gather", "memory_efficient_linear", "pipeline_loading_checkpoint",
    "override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks", "save_muon_momentum_buffer_in_memory", "leaf_module"};
static const char *const top_keys[] = {"zero_optimization", "optimizer", "train_batch_size", "train_micro_batch_size_per_gpu",
                                       "gradient_accumulation_steps", "gradient_clipping", "tensor_parallel",
                                       "sequence_parallel_size"};

static bool is_known(const char *key, const char *const *known, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, known[i]) == 0)
            return true;
    return false;
}

static void check_keys(struct mp_problems *problems, const struct mp_value *config, const struct mp_value *zero)
{
    for (size_t i = 0; zero != NULL && i < zero->as.object.length; i++) {
        const struct mp_member *const member = &zero->as.object.members[i];
        const char *const meant = mp_closest(member->key, zero_keys, MP_ARRAY_LEN(zero_keys));
        if (!is_known(member->key, zero_keys, MP_ARRAY_LEN(zero_keys)))
            mp_problems_add(problems, member->value, "zero_optimization", "unknown key '%.60s', %s%s%s", member->key,
                            meant != NULL ? "did you mean '" : "DeepSpeed refuses it too; leave it out", meant != NULL ? meant : "",
                            meant != NULL ? "'?" : "");
    }
    for (size_t i = 0; i < config->as.object.length; i++) { /* only what is nearly one of those that matter */
        const struct mp_member *const member = &config->as.object.members[i];
        const char *const meant = mp_closest(member->key, top_keys, MP_ARRAY_LEN(top_keys));
        if (meant != NULL && strcmp(meant, member->key) != 0)
            mp_problems_add_unknown(problems, member, "", top_keys, MP_ARRAY_LEN(top_keys));
    }
}

/* What changes memory, and how is not known here. */
static enum memplan_status refuse(const char *origin, const struct mp_value *zero,
                                  struct memplan_error *err)
{
    static const struct {
        const char *key;
        bool refused;
    } switches[] = {{"zero_quantized_weights", true},         {"zero_quantized_gradients", true},
                    {"round_robin_gradients", true},          {"parameter_alignment", true},
                    {"reduce_scatter", false},                {"stage3_use_all_reduce_for_fetch_params", true},
                    {"stage3_allgather_sequential", true},    {"zero_quantized_nontrainable_weights", true}};
    static const struct {
        const char *key;
        int64_t without; /* the largest number that means no */
    } numbers[] = {{"zero_hpz_partition_size", 1}, {"stage3_module_granularity_threshold", 0}};
    static const char *const objects[] = {"zenflow", "leaf_module"};
    for (size_t i = 0; i < MP_ARRAY_LEN(switches); i++) {
        const struct mp_value *const value = mp_value_get(zero, switches[i].key);
        if (value != NULL && value->kind == MP_BOOLEAN && value->as.boolean == switches[i].refused)
            return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                                "%s: zero_optimization.%s: %snot supported; leave it out", origin,
                                switches[i].key, switches[i].refused ? "" : "false is ");
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(objects); i++)
        if (is_given(mp_value_get(zero, objects[i])))
            return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "%s: zero_optimization.%s: not supported; leave it out", origin, objects[i]);
    for (size_t i = 0; i < MP_ARRAY_LEN(numbers); i++) {
        const struct mp_value *const value = mp_value_get(zero, numbers[i].key);
        if (value != NULL && value->kind == MP_INT && value->as.integer > numbers[i].without)
            return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "%s: zero_optimization.%s: not supported; leave it out", origin,
                                numbers[i].key);
    }
    return MEMPLAN_STATUS_OK;
}

/* Weights of autocast, shards of some ranks only, optimizers on both sides: other allocations than those that are simulated. */
static enum memplan_status refuse_switched_on(const char *origin, const struct mp_value *config, const struct mp_value *zero,
                                              struct memplan_error *err)
{
    const struct {
        const struct mp_value *whole;
        const char *part, *key, *name;
        double low, high; /* numbers that are nothing new */
    } switches[] = {{config, "amp", "enabled", "amp.enabled", 0, 0},
                    {config, "torch_autocast", "enabled", "torch_autocast.enabled", 0, 0},
                    {zero, NULL, "mics_shard_size", "zero_optimization.mics_shard_size", -1, 0},
                    {zero, "offload_optimizer", "ratio", "zero_optimization.offload_optimizer.ratio", 1, 1}};
    for (size_t i = 0; i < MP_ARRAY_LEN(switches); i++) {
        const struct mp_value *const part = switches[i].part != NULL ? mp_value_get(switches[i].whole, switches[i].part) : switches[i].whole;
        const struct mp_value *const value = part != NULL && part->kind == MP_OBJECT ? mp_value_get(part, switches[i].key) : NULL;
        double number;
        if (value != NULL && ((value->kind == MP_BOOLEAN && value->as.boolean) ||
                              (mp_value_number(value, &number) && (number < switches[i].low || number > switches[i].high))))
            return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "%s: %s: not supported; leave it out", origin, switches[i].name);
    }
    return MEMPLAN_STATUS_OK;
}

/* Gradients are reduced and added up in the type of the weights, unless a file says otherwise. */
static enum memplan_status refuse_other_types(const struct mp_deepspeed_options *o, const char *origin, const struct mp_value *config,
                                              struct memplan_error *err)
{
    const char *const type = o->half_bf16 ? "bf16" : o->half_fp16 ? "fp16" : "fp32", *const torch = o->half_bf16 ? "bfloat16" : o->half_fp16 ? "float16" : "float32";
    const struct mp_value *const types = mp_value_get(config, "data_types");
    const struct {
        const char *name;
        const struct mp_value *value;
    } given[] = {{"communication_data_type", mp_value_get(config, "communication_data_type")},
                 {"data_types.grad_accum_dtype", types != NULL && types->kind == MP_OBJECT ? mp_value_get(types, "grad_accum_dtype") : NULL}};
    for (size_t i = 0; i < MP_ARRAY_LEN(given) && !o->auto_half; i++) {
        char shown[MP_VALUE_SHOW_MAX];
        if (!is_given(given[i].value))
            continue;
        if (given[i].value->kind != MP_STRING ||
            (strcmp(given[i].value->as.string.text, type) != 0 && strcmp(given[i].value->as.string.text, torch) != 0))
            return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "%s: %s: %s is not supported with weights in %s; leave it out", origin, given[i].name,
                                mp_value_show(given[i].value, shown), type);
    }
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_deepspeed_options_read(struct mp_deepspeed_options *o, const char *origin,
                                              const struct mp_value *config,
                                              struct memplan_error *err)
{
    struct mp_problems problems;
    mp_problems_init(&problems, origin, err);
    mp_deepspeed_options_init(o, 0);
    if (config->kind != MP_OBJECT) {
        mp_problems_add(&problems, config, NULL, "not the object of a ds_config.json");
        return mp_problems_status(&problems);
    }
    const struct mp_value *const zero = object(&problems, config, "zero_optimization");
    read_stage(o, &problems, zero);
    if (zero != NULL)
        read_zero(o, &problems, zero);
    check_keys(&problems, config, zero);
    read_optimizer(o, &problems, config);
    const struct mp_value *const bf16 = object(
        &problems, config, mp_value_get(config, "bf16") != NULL ? "bf16" : "bfloat16");
    const struct mp_value *const fp16 = object(&problems, config, "fp16");
    if (bf16 != NULL)
        read_switch(&problems, bf16, "enabled", "bf16.enabled", &o->half_bf16);
    if (fp16 != NULL)
        read_switch(&problems, fp16, "enabled", "fp16.enabled", &o->half_fp16);
    o->auto_half = (bf16 != NULL && is_auto(mp_value_get(bf16, "enabled"))) ||
                   (fp16 != NULL && is_auto(mp_value_get(fp16, "enabled")));
    read_count(&problems, config, "train_micro_batch_size_per_gpu",
               "train_micro_batch_size_per_gpu", &o->micro_batch);
    read_count(&problems, config, "gradient_accumulation_steps", "gradient_accumulation_steps",
               &o->accumulate);
    read_count(&problems, config, "train_batch_size", "train_batch_size", &o->train_batch);
    if (o->half_bf16 && o->half_fp16)
        mp_problems_add(&problems, NULL, "fp16.enabled", "bf16 is enabled too; keep one");
    if (problems.n > 0)
        return mp_problems_status(&problems);
    enum memplan_status status = refuse_other_parallelism(origin, config, err);
    if (status == MEMPLAN_STATUS_OK)
        status = refuse(origin, zero, err);
    if (status == MEMPLAN_STATUS_OK)
        status = refuse_switched_on(origin, config, zero, err);
    return status != MEMPLAN_STATUS_OK ? status : refuse_other_types(o, origin, config, err);
}
