/* SPDX-License-Identifier: MIT */
/* Ranks that share the work: the kind of data parallelism, its options, and what a DeepSpeed file
 * says beside the run. */
#include "spec/run_parallel.h"

#include <inttypes.h>

#include "base/units.h"

#define RANKS_MAX             1048576
#define GPUS_PER_NODE_DEFAULT 8

/* ---- keys ---- */

static void read_ddp(struct mp_run_reader *r, const struct mp_value *value)
{
    static const struct mp_reader_member keys[] = {
        {"bucket_cap_mb", MP_DOUBLE}, {"gradient_as_bucket_view", MP_BOOLEAN},
        {"static_graph", MP_BOOLEAN}, {"find_unused_parameters", MP_BOOLEAN},
        {"no_sync", MP_BOOLEAN},      {"compression", MP_STRING}};
    struct mp_ddp_options *const ddp = &r->run->ddp;
    const struct mp_value *const cap = mp_value_get(value, "bucket_cap_mb");
    const struct mp_value *const compression = mp_value_get(value, "compression");
    mp_reader_object(r, MP_KEY_DDP, value, keys, MP_ARRAY_LEN(keys));
    if (cap != NULL && mp_value_number(cap, &ddp->bucket_cap_mb) && ddp->bucket_cap_mb > 1 << 20)
        mp_problems_add(&r->problems, cap, "ddp.bucket_cap_mb", "more than 1 TiB");
    ddp->gradient_as_bucket_view = mp_reader_get_bool(value, "gradient_as_bucket_view");
    ddp->static_graph = mp_reader_get_bool(value, "static_graph");
    ddp->find_unused_parameters = mp_reader_get_bool(value, "find_unused_parameters");
    ddp->no_sync = mp_reader_get_bool(value, "no_sync");
    if (compression != NULL && compression->kind == MP_STRING) {
        int index = 0;
        (void)mp_problems_choice(&r->problems, "ddp.compression", compression, "none|fp16|bf16",
                                 &index);
        ddp->compression = (enum mp_compression)index;
    }
}

static void read_fsdp(struct mp_run_reader *r, const struct mp_value *value)
{
    static const struct mp_reader_member keys[] = {{"reshard_after_forward", MP_NULL},
                                                   {"mixed_precision", MP_BOOLEAN},
                                                   {"offload", MP_BOOLEAN},
                                                   {"replicas", MP_INT}};
    struct mp_fsdp_options *const fsdp = &r->run->fsdp;
    const struct mp_value *const reshard = mp_value_get(value, "reshard_after_forward");
    mp_reader_object(r, MP_KEY_FSDP, value, keys, MP_ARRAY_LEN(keys));
    fsdp->keep_unsharded = reshard != NULL && reshard->kind == MP_BOOLEAN && !reshard->as.boolean;
    fsdp->reshard_to = mp_reader_get_integer(value, "reshard_after_forward", 0);
    fsdp->mixed_precision = mp_reader_get_bool(value, "mixed_precision");
    fsdp->offload = mp_reader_get_bool(value, "offload");
    fsdp->replicas = mp_reader_get_integer(value, "replicas", 1);
}

/* The object itself, or the path of a file. */
static void read_deepspeed(struct mp_run_reader *r, const struct mp_value *value)
{
    struct memplan_error own = {0};
    struct mp_strbuf text = MP_STRBUF_INIT;
    const struct mp_value *config = value;
    const char *path = "deepspeed";
    r->run->deepspeed_value = value;
    if (value->kind == MP_STRING) {
        path = value->as.string.text;
        config = NULL;
        if (mp_spec_read_file(path, &text, &own) == MEMPLAN_STATUS_OK) {
            mp_deepspeed_plain_json(text.data, text.len);
            config = mp_json_parse(r->arena, path, mp_strbuf_text(&text), text.len, &own);
        }
    }
    if (config != NULL)
        (void)mp_deepspeed_options_read(&r->run->deepspeed, path, config, &own);
    mp_strbuf_release(&text);
    if (own.status != MEMPLAN_STATUS_OK)
        mp_problems_add(&r->problems, value, mp_reader_label(r, MP_KEY_DEEPSPEED), "%s", own.text);
}

void mp_run_parallel_read(struct mp_run_reader *r, enum mp_run_key key,
                          const struct mp_value *value)
{
    struct mp_run *const run = r->run;
    if (key == MP_KEY_DATA_PARALLEL)
        run->parallel = (enum mp_parallel_kind)mp_reader_choice(r, key, value);
    else if (key == MP_KEY_COLLECTIVES)
        run->no_collectives = mp_reader_choice(r, key, value) == 1;
    else if (key == MP_KEY_DDP)
        read_ddp(r, value);
    else if (key == MP_KEY_FSDP)
        read_fsdp(r, value);
    else if (key == MP_KEY_DEEPSPEED)
        read_deepspeed(r, value);
    else
        mp_reader_integer(r, key, value, 1, RANKS_MAX,
                          key == MP_KEY_WORLD ? &run->world : &run->gpus_per_node);
}

/* ---- what DeepSpeed's file and the run say together ---- */

bool mp_run_parallel_is_deepspeed(enum mp_parallel_kind kind)
{
    return kind == MP_PARALLEL_DEEPSPEED_ZERO1 || kind == MP_PARALLEL_DEEPSPEED_ZERO2 ||
           kind == MP_PARALLEL_DEEPSPEED_ZERO3;
}

/*
 * train_batch_size = micro-batch x accumulation x ranks: what the file leaves open follows, as in
 * deepspeed/runtime/config.py, and DeepSpeed does not start unless they agree. A batch of the run
 * stands over the file's.
 */
static void join_batches(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    const struct mp_deepspeed_options *const o = &run->deepspeed;
    const bool own_batch = mp_run_is_given(run, MP_KEY_BATCH);
    int64_t batch = own_batch ? run->batch : o->micro_batch;
    int64_t accumulate = mp_run_is_given(run, MP_KEY_ACCUMULATE) ? run->accumulate : o->accumulate;
    if (accumulate == 0)
        accumulate =
            o->train_batch > 0 && batch > 0 ? MP_MAX(o->train_batch / batch / run->world, 1) : 1;
    if (batch == 0)
        batch = MP_MAX(o->train_batch / accumulate / run->world, 1);
    run->batch = batch;
    run->accumulate = MP_MIN(accumulate, MP_ACCUMULATE_MAX);
    uint64_t samples = 0;
    const bool whole = mp_mul_u64((uint64_t)batch, (uint64_t)accumulate, &samples) &&
                       mp_mul_u64(samples, (uint64_t)run->world, &samples);
    if (!own_batch && o->train_batch > 0 && (!whole || samples != (uint64_t)o->train_batch))
        mp_problems_add(&r->problems, NULL, "deepspeed",
                        "train_batch_size %" PRId64 " is not %" PRId64 " (micro-batch) x %" PRId64
                        " (accumulation) x %" PRId64 " (ranks)",
                        o->train_batch, batch, accumulate, run->world);
}

/* The stage from either side; batch, accumulation, type and optimizer as DeepSpeed's file has them.
 * */
static void join_deepspeed(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    struct mp_deepspeed_options *const o = &run->deepspeed;
    const int stage = mp_run_parallel_is_deepspeed(run->parallel)
                          ? (int)run->parallel - MP_PARALLEL_DEEPSPEED_ZERO1 + 1
                          : 0;
    if (stage == 0 && o->stage == 0)
        return;
    if (run->parallel != MP_PARALLEL_NONE && stage != o->stage && o->stage != 0)
        mp_problems_add(&r->problems, NULL, "data_parallel",
                        "\"%s\" is not stage %d of the deepspeed file",
                        mp_parallel_text(run->parallel), o->stage);
    if (o->stage == 0)
        mp_deepspeed_options_init(o, stage);
    run->parallel = (enum mp_parallel_kind)(MP_PARALLEL_DEEPSPEED_ZERO1 + o->stage - 1);
    join_batches(r);
    const int64_t hidden = mp_model_integer(run->model, "hidden_size|n_embd|d_model");
    if (hidden > 0)
        mp_deepspeed_options_fill(o, hidden);
    if (!mp_run_is_given(run, MP_KEY_PRECISION) && o->auto_half && !o->half_fp16 && !o->half_bf16)
        mp_problems_add(&r->problems, NULL, "precision",
                        "\"auto\" in the deepspeed file is for the Trainer to fill in; give fp32, "
                        "bf16 or fp16");
    if (!mp_run_is_given(run, MP_KEY_PRECISION))
        run->precision = o->half_fp16   ? MP_PRECISION_FP16
                         : o->half_bf16 ? MP_PRECISION_BF16
                                        : MP_PRECISION_FP32;
    if (!mp_run_is_given(run, MP_KEY_OPTIMIZER) && o->has_optimizer)
        run->optimizer = o->torch_adam ? MP_OPTIMIZER_ADAMW_FOREACH : MP_OPTIMIZER_ADAMW_FUSED;
}

/* ---- ranks ---- */

/* Options of one kind of data parallelism, given for another or for none: they would change
 * nothing. */
static void refuse_idle_options(struct mp_run_reader *r)
{
    const struct mp_run *const run = r->run;
    const struct {
        enum mp_run_key key;
        bool idle;
        const char *kinds; /* that have it; "": any */
    } options[] = {
        {MP_KEY_DDP, run->parallel != MP_PARALLEL_DDP && run->parallel != MP_PARALLEL_ZERO1,
         ": ddp or zero1"},
        {MP_KEY_FSDP, run->parallel != MP_PARALLEL_FSDP2, ": fsdp2"},
        {MP_KEY_COLLECTIVES, run->parallel == MP_PARALLEL_NONE && run->no_collectives, ""},
    };
    for (size_t i = 0; i < MP_ARRAY_LEN(options); i++) {
        const enum mp_run_key key = options[i].key;
        const struct mp_value *const value = r->source->values[key];
        const bool empty = value == NULL || value->kind == MP_NULL ||
                           (value->kind == MP_OBJECT && value->as.object.length == 0);
        if (!options[i].idle || empty || !mp_run_is_given(run, key))
            continue;
        (void)mp_reader_locate(r, key);
        mp_problems_add(&r->problems, value, mp_reader_label(r, key),
                        "only with data_parallel%s, not \"%s\"; set that, or leave this out",
                        options[i].kinds, mp_parallel_text(run->parallel));
    }
}

/* Ranks, hosts, and who shares what. */
void mp_run_parallel_resolve(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    join_deepspeed(r);
    if (!r->source->kinds_vary)
        refuse_idle_options(r);
    if (!mp_run_is_given(run, MP_KEY_GPUS_PER_NODE))
        run->gpus_per_node = MP_MIN(run->world, GPUS_PER_NODE_DEFAULT);
    const struct mp_value *at = mp_reader_locate(r, MP_KEY_WORLD);
    if (run->parallel == MP_PARALLEL_NONE && run->world > 1)
        mp_problems_add(&r->problems, at, mp_reader_label(r, MP_KEY_WORLD),
                        "%" PRId64 " ranks need data_parallel: ddp, zero1 or fsdp2", run->world);
    if (run->world % run->gpus_per_node != 0)
        mp_problems_add(&r->problems, at, mp_reader_label(r, MP_KEY_WORLD),
                        "%" PRId64 " ranks do not fill hosts of %" PRId64 "; give gpus_per_node",
                        run->world, run->gpus_per_node);
    at = mp_reader_locate(r, MP_KEY_FSDP);
    if (run->world % run->fsdp.replicas != 0)
        mp_problems_add(&r->problems, at, "fsdp.replicas",
                        "%" PRId64 " does not divide %" PRId64 " ranks", run->fsdp.replicas,
                        run->world);
    else if (run->fsdp.reshard_to > 0 &&
             run->world / run->fsdp.replicas % run->fsdp.reshard_to != 0)
        mp_problems_add(&r->problems, at, "fsdp.reshard_after_forward",
                        "%" PRId64 " does not divide the %" PRId64 " ranks that share the weights",
                        run->fsdp.reshard_to, run->world / run->fsdp.replicas);
}

/* What this release does not simulate. */
bool mp_run_parallel_is_simulated(const struct mp_run *run, struct memplan_error *err)
{
    const bool amp =
        run->precision == MP_PRECISION_AMP_BF16 || run->precision == MP_PRECISION_AMP_FP16;
    if (!mp_run_parallel_is_deepspeed(run->parallel))
        return true;
    if (amp)
        (void)mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                           "precision: \"%s\" is not supported with DeepSpeed; bf16, fp16 and "
                           "fp32 are",
                           mp_precision_text(run->precision));
    else if (run->lora != NULL)
        (void)mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                           "lora: not supported with DeepSpeed; leave it out");
    else
        return true;
    return false;
}
