/* SPDX-License-Identifier: MIT */
/* A model from a run: its family found and configured, built, and fed. */
#include "arch/arch.h"
#include "arch/lora.h"

static enum mp_dtype parameter_dtype(enum mp_precision precision)
{
    return precision == MP_PRECISION_BF16   ? MP_BF16
           : precision == MP_PRECISION_FP16 ? MP_F16
                                            : MP_F32;
}

static enum memplan_status check_options(const struct mp_net *net, struct memplan_error *err)
{
    const struct mp_run *const run = net->run;
    const char *const type = net->family->model_type;
    if (net->family->eager_only && run->attention != MP_ATTENTION_EAGER &&
        mp_run_is_given(run, MP_KEY_ATTENTION))
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "attention: %s has no sdpa attention; give eager or leave it out",
                            type);
    if (net->family->no_mask && run->attention_mask != MP_MASK_NONE)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "attention_mask: not supported for %s; leave it out", type);
    if (net->family->no_cache && run->use_cache)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "use_cache: not supported for %s; leave it out", type);
    if (net->family->no_trainer && run->trainer)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "framework: the Trainer is not supported for %s; give hf", type);
    if (run->quantization != MP_QUANTIZATION_NONE && net->family->no_nf4)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "quantization: not supported for %s; leave it out", type);
    if (run->experts == MP_EXPERTS_EAGER && !net->family->has_experts)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "experts: %s has none; leave it out", type);
    for (int part = 0; part < MP_PARTS; part++)
        if (run->recompute[part].n > 0 && !net->family->has_part[part])
            return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                                "checkpoint.%s: not supported for %s; recompute whole blocks with layers",
                                mp_block_part_text((enum mp_block_part)part), type);
    if ((run->loss == MP_LOSS_CHUNKED && net->family->own_loss) ||
        (run->loss == MP_LOSS_FUSED && !net->family->fused_loss))
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "loss: \"%s\" is not supported for %s; leave it out",
                            mp_loss_text(run->loss), type);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_net_open(struct mp_net *net, const struct mp_run *run,
                                struct mp_arena *arena, struct memplan_error *err)
{
    *net = (struct mp_net){.run = run,
                           .dtype = parameter_dtype(run->precision),
                           .family = mp_family_find(run->model, err)};
    if (!net->family)
        return err->status;
    if (check_options(net, err) != MEMPLAN_STATUS_OK)
        return err->status;
    net->attention = net->family->eager_only ? MP_ATTENTION_EAGER : run->attention;
    struct mp_config c;
    mp_config_open(&c, run->model, err);
    net->config = net->family->configure(arena, &c);
    if (!net->config)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while reading the model");
    return c.n_problems ? err->status : MEMPLAN_STATUS_OK;
}

/* Of all norms of the model: under one of three names in config.json, or the default of the family's configuration class. */
static double norm_epsilon(const struct mp_net *net)
{
    static const char *const keys[] = {"layer_norm_epsilon", "layer_norm_eps", "rms_norm_eps"};
    double epsilon;
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        if (mp_value_number(mp_value_get(net->run->model->config, keys[i]), &epsilon))
            return epsilon;
    return strcmp(net->family->model_type, "bert") == 0   ? 1e-12
           : strcmp(net->family->model_type, "gpt2") == 0 ? 1e-5
                                                          : 1e-6;
}

void mp_net_build(struct mp_runtime *rt, struct mp_net *net)
{
    rt->norm_eps = norm_epsilon(net);
    net->family->build(rt, net);
    if (net->run->lora)
        mp_lora_wrap(rt, net);
    for (int i = 0; i < net->n_parameters; i++)
        mp_record(rt, "parameter", MP_NO_TENSORS, MP_TENSORS(net->parameters[i]),
                  MP_ATTRIBUTES(mp_integer("index", i), mp_text("name", net->parameters[i]->name),
                                mp_boolean("trained", net->parameters[i]->requires_grad)));
}

void mp_net_load(struct mp_runtime *rt, const struct mp_net *net, int64_t batch, int64_t seq,
                 struct mp_inputs *in)
{
    rt->category = MP_CATEGORY_INPUT;
    *in = (struct mp_inputs){.batch = batch, .seq = seq, .loss = net->run->loss};
    if (net->family->load) {
        net->family->load(rt, net, in);
    } else {
        in->input_ids = mp_take(rt, mp_empty(rt, MP_SHAPE(batch, seq), MP_I64));
        mp_record(rt, "input", MP_NO_TENSORS, MP_TENSORS(in->input_ids),
                  MP_ATTRIBUTES(mp_text("kind", "token_ids")));
        in->labels = in->input_ids;
    }
    mp_driver_event(rt, MP_DRIVER_FIRST_KERNEL, 0); /* random tokens, after a model from the host */
    rt->category = MP_CATEGORY_TEMPORARY;
}
