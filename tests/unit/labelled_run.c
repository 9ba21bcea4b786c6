/* SPDX-License-Identifier: MIT */
/* A labelled log's own words for a configuration, translated; its loop, from
 * the library's pieces. */
#include "labelled_run.h"

#include "arch/arch.h"
#include "base/json.h"
#include "train/trainer.h"

/* ---- spec ---- */

static int64_t integer(const struct mp_value *config, const char *key, int64_t fallback)
{
    const struct mp_value *const v = mp_value_get(config, key);
    return v != NULL && v->kind == MP_INT ? v->as.integer : fallback;
}

static const char *text(const struct mp_value *config, const char *key, const char *fallback)
{
    const struct mp_value *const v = mp_value_get(config, key);
    return v != NULL && v->kind == MP_STRING ? v->as.string.text : fallback;
}

static bool flag(const struct mp_value *config, const char *key)
{
    const struct mp_value *const v = mp_value_get(config, key);
    return v != NULL && v->kind == MP_BOOLEAN && v->as.boolean;
}

/* A size of the log, under the names that families give it in config.json. */
static const struct {
    const char *key;
    const char *names[4];
} sizes[] = {
    {"layers", {"n_layer", "num_hidden_layers", "num_layers"}},
    {"hidden", {"n_embd", "hidden_size", "d_model", "word_embed_proj_dim"}},
    {"heads", {"n_head", "num_attention_heads", "num_heads"}},
    {"ffn", {"n_inner", "intermediate_size", "ffn_dim", "d_ff"}},
    {"vocab", {"vocab_size"}},
    {"kv_heads", {"num_key_value_heads"}},
    {"head_dim", {"head_dim", "d_kv"}},
    {"experts", {"num_local_experts", "num_experts"}},
    {"topk", {"num_experts_per_tok"}},
    {"moe_ffn", {"moe_intermediate_size"}},
};

static const char *const dropouts[] = {
    "resid_pdrop",    "embd_pdrop",        "attn_pdrop",
    "hidden_dropout", "attention_dropout", "attention_probs_dropout_prob",
    "dropout",        "dropout_rate",      "hidden_dropout_prob",
    "resid_dropout",  "embed_dropout",
};

static bool is_tied(const struct mp_value *config, const char *family)
{
    static const char *const tied[] = {"gpt2", "opt", "bert", "roberta", "gemma2", "t5"};
    for (size_t i = 0; i < MP_ARRAY_LEN(tied); i++)
        if (strcmp(family, tied[i]) == 0)
            return true;
    return flag(config, "tie");
}

static void write_attention_types(const struct mp_value *config, struct mp_json_writer *w)
{
    mp_json_array(w, "attention_types");
    mp_json_array(w, NULL);
    mp_json_array(w, NULL);
    mp_json_string(w, NULL, "global");
    mp_json_string(w, NULL, "local");
    mp_json_end_array(w);
    mp_json_int(w, NULL, integer(config, "layers", 2) / 2);
    mp_json_end_array(w);
    mp_json_end_array(w);
}

/* Keys of the log's own config, which may repeat one of ours: theirs wins. */
static bool is_extra(const struct mp_value *config, const char *key)
{
    return mp_value_get(mp_value_get(config, "extra"), key) != NULL;
}

static void write_extra(const struct mp_value *config, struct mp_json_writer *w)
{
    const struct mp_value *const extra = mp_value_get(config, "extra");
    for (size_t i = 0; extra != NULL && i < extra->as.object.length; i++)
        mp_json_value(w, extra->as.object.members[i].key, extra->as.object.members[i].value);
}

static void write_model(const struct mp_value *config, struct mp_json_writer *w)
{
    const char *const family = text(config, "family", "");
    const struct mp_value *const dropout = mp_value_get(config, "dropout");
    mp_json_object(w, "model");
    mp_json_string(w, "model_type", family);
    for (size_t i = 0; i < MP_ARRAY_LEN(sizes); i++) {
        const int64_t size = integer(config, sizes[i].key, 0);
        for (size_t k = 0; size > 0 && k < 4 && sizes[i].names[k] != NULL; k++)
            if (!is_extra(config, sizes[i].names[k]))
                mp_json_int(w, sizes[i].names[k], size);
    }
    const int64_t positions = integer(config, "max_pos", 256);
    mp_json_int(w, "n_positions", positions);
    mp_json_int(w, "max_position_embeddings", positions + (strcmp(family, "roberta") == 0 ? 2 : 0));
    for (size_t i = 0; dropout != NULL && i < MP_ARRAY_LEN(dropouts); i++)
        if (!is_extra(config, dropouts[i]))
            mp_json_value(w, dropouts[i], dropout);
    if (strcmp(family, "vit") == 0) {
        mp_json_int(w, "image_size", 112);
        mp_json_int(w, "num_labels", 10);
    }
    if (strcmp(family, "gpt_neo") == 0) {
        write_attention_types(config, w);
        mp_json_int(w, "window_size", 64);
    }
    if (!is_extra(config, "tie_word_embeddings"))
        mp_json_bool(w, "tie_word_embeddings", is_tied(config, family));
    write_extra(config, w);
    mp_json_end_object(w);
}

/* {"adamw_foreach": "adamw-foreach"}: their words, then ours */
static const char *translate(const char *word, const char *const (*table)[2], size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(word, table[i][0]) == 0)
            return table[i][1];
    return word;
}

/* Three steps; 64 evaluation samples are the recorder's choice. */
static void write_trainer(const struct mp_value *args, struct mp_json_writer *w)
{
    mp_json_string(w, "framework", "hf-trainer");
    mp_json_int(w, "iterations", 3);
    mp_json_object(w, "training_arguments");
    for (size_t i = 0; i < args->as.object.length; i++)
        mp_json_value(w, args->as.object.members[i].key, args->as.object.members[i].value);
    mp_json_int(w, "eval_samples", 64);
    mp_json_end_object(w);
}

static void write_options(const struct mp_value *config, struct mp_json_writer *w)
{
    static const char *const precisions[][2] = {{"amp_bf16", "amp-bf16"}, {"amp_fp16", "amp-fp16"}};
    static const char *const checkpoints[][2] = {{"nonreentrant", "full"},
                                                 {"reentrant", "full-reentrant"}};
    static const char *const optimizers[][2] = {{"adamw_foreach", "adamw-foreach"},
                                                {"adamw_fused", "adamw-fused"},
                                                {"adamw_for", "adamw-forloop"},
                                                {"sgd_momentum", "sgd-momentum"}};
    const struct mp_value *const layers = mp_value_get(config, "ckpt_layers");
    const char *const checkpoint = text(config, "ckpt", "none");
    mp_json_string(w, "precision", translate(text(config, "precision", "fp32"), precisions, 2));
    mp_json_string(w, "attention", text(config, "attn", "sdpa"));
    if (mp_value_get(config, "lora") != NULL)
        mp_json_value(w, "lora", mp_value_get(config, "lora"));
    if (flag(config, "padmask"))
        mp_json_string(w, "attention_mask", "padded");
    if (mp_value_get(config, "args") != NULL) { /* the rest is among them */
        write_trainer(mp_value_get(config, "args"), w);
        return;
    }
    if (layers != NULL && layers->kind == MP_ARRAY) {
        mp_json_object(w, "checkpoint");
        mp_json_value(w, "layers", layers);
        mp_json_end_object(w);
    } else {
        mp_json_string(w, "checkpoint", translate(checkpoint, checkpoints, 2));
    }
    mp_json_string(w, "optimizer", translate(text(config, "opt", "adamw_foreach"), optimizers, 4));
}

const struct mp_run *labelled_run(struct mp_arena *arena, const struct mp_value *config,
                                  struct memplan_error *err)
{
    struct mp_strbuf json = MP_STRBUF_INIT;
    struct mp_json_writer w;
    struct mp_run_source source;
    mp_json_init(&w, &json, 0);
    mp_json_object(&w, NULL);
    mp_json_string(&w, "gpu", "H200-141G");
    mp_json_int(&w, "batch", integer(config, "batch", 1));
    if (strcmp(text(config, "family", ""), "vit") != 0)
        mp_json_int(&w, "seq", integer(config, "seq", 1));
    write_model(config, &w);
    write_options(config, &w);
    mp_json_end_object(&w);
    const struct mp_value *const value =
        mp_json_parse(arena, "log", mp_strbuf_text(&json), json.len, err);
    mp_strbuf_release(&json);
    mp_run_source_init(&source, arena);
    if (value == NULL || mp_run_source_object(&source, "log", value, err) != MEMPLAN_STATUS_OK)
        return NULL;
    return mp_run_resolve(&source, err);
}

/* ---- loop ---- */

struct loop {
    struct mp_runtime rt;
    struct mp_net net;
    struct mp_inputs in;
    struct mp_outputs out;
    struct mp_tensor *loss;
    struct mp_optimizer_instance optimizer;
    struct mp_grad_scaler scaler;
};

static bool is_scaled(const struct loop *l)
{
    return l->net.run->precision == MP_PRECISION_AMP_FP16;
}

static void forward(struct mp_runtime *rt, struct loop *l)
{
    const enum mp_precision precision = l->net.run->precision;
    const bool amp = precision == MP_PRECISION_AMP_BF16 || is_scaled(l);
    struct mp_outputs out = {0}, old = l->out;
    struct mp_autocast outer;
    mp_autocast_enter(rt, &outer, amp, is_scaled(l) ? MP_F16 : MP_BF16);
    l->net.family->forward(rt, &l->net, &l->in, &out);
    out.loss = mp_take(rt, out.loss);
    out.logits = mp_take(rt, out.logits);
    out.hidden = mp_take(rt, out.hidden);
    l->out = out;
    mp_outputs_release(rt, &old);
    mp_autocast_exit(rt, &outer);
    mp_tensor_unref(rt, l->loss);
    l->loss = mp_tensor_ref(out.loss);
}

static void backward(struct mp_runtime *rt, struct loop *l)
{
    if (!is_scaled(l)) {
        mp_backward(rt, l->loss);
        return;
    }
    struct mp_tensor *const scaled = mp_take(rt, mp_scaler_scale(rt, &l->scaler, l->loss));
    mp_backward(rt, scaled);
    mp_tensor_unref(rt, scaled);
}

static void step(struct mp_runtime *rt, struct loop *l)
{
    struct mp_tensor **const parameters = l->net.parameters;
    const int n = l->net.n_parameters;
    if (is_scaled(l))
        mp_scaler_unscale(rt, &l->scaler);
    mp_clip_grad_norm(rt, parameters, n);
    if (is_scaled(l))
        mp_scaler_step(rt, &l->scaler, &l->optimizer);
    else
        mp_optimizer_step(rt, &l->optimizer);
    mp_zero_grad(rt, parameters, n);
}

static void run_trainer(struct mp_runtime *rt, struct loop *l)
{
    struct mp_trainer trainer;
    mp_trainer_begin(rt, &trainer, &l->net);
    for (int i = 0; i < 3; i++)
        mp_trainer_step(rt, &trainer);
    mp_trainer_end(rt, &trainer);
}

static void run_loop(struct mp_runtime *rt, void *context)
{
    struct loop *const l = context;
    const struct mp_run *const run = l->net.run;
    mp_net_build(rt, &l->net);
    if (run->trainer != NULL) {
        run_trainer(rt, l);
        return;
    }
    mp_optimizer_init(rt, &l->optimizer, run->optimizer, l->net.parameters, l->net.n_parameters);
    if (l->net.family->load != NULL) /* images: the recorder made token ids all the same */
        mp_take(rt, mp_empty(rt, MP_SHAPE(run->batch, 192), MP_I64));
    mp_net_load(rt, &l->net, run->batch, run->seq, &l->in);
    if (run->attention_mask != MP_MASK_NONE)
        l->in.attention_mask = mp_take(rt, mp_empty(rt, MP_SHAPE(run->batch, run->seq), MP_I64));
    for (int i = 0; i < 2; i++) {
        forward(rt, l);
        backward(rt, l);
        step(rt, l);
    }
}

enum memplan_status labelled_loop(const struct mp_run *run, struct mp_program *program,
                                  struct memplan_error *err)
{
    struct loop l = {.loss = NULL};
    mp_runtime_init(&l.rt, run->gpu, program, err);
    enum memplan_status status = mp_net_open(&l.net, run, &l.rt.arena, err);
    if (status == MEMPLAN_STATUS_OK)
        status = mp_runtime_protect(&l.rt, run_loop, &l);
    mp_runtime_release(&l.rt);
    return status;
}
