/* SPDX-License-Identifier: MIT */
/*
 * The traceback around the message. Two things are read from it: the operation that failed (the
 * innermost line that a rule knows) and the phase the program was in (any line). Context lines of
 * boxed and notebook tracebacks, which only surround the failing line, are passed over.
 */
#include "doctor/evidence.h"

#include <assert.h>

#define MAX_LINES_BACK 220

struct rule {
    enum mp_cause cause;
    int weight;
    const char *reason;
    const char *words; /* alternatives, any of them in the plain text of a line: "a|b|c" */
};

/* Operations that name a cause. The innermost line with a match decides; in one line, the first
 * row. */
static const struct rule operations[] = {
    {MP_CAUSE_HOST_MEMORY, 6, "failed while pinning host memory", "pin_memory(|in pin_memory"},
    {MP_CAUSE_HOST_MEMORY, 4, "failed in shared host memory", "share_memory"},
    {MP_CAUSE_EVALUATION, 7, "predictions of evaluation are joined on the card", "nested_concat"},
    {MP_CAUSE_EVALUATION, 6, "predictions of evaluation are gathered on the card",
     "pad_across_processes"},
    {MP_CAUSE_EVALUATION, 6, "failed in the metrics of evaluation", "compute_metrics"},
    {MP_CAUSE_OPTIMIZER_STATE, 6, "the optimizer was creating its state",
     "_init_group|zeros_like(p"},
    {MP_CAUSE_OPTIMIZER_STATE, 6, "failed on Adam's moments", "exp_avg"},
    {MP_CAUSE_OPTIMIZER_STATE, 6, "the optimizer was creating its momentum", "momentum_buffer"},
    {MP_CAUSE_OPTIMIZER_STATE, 6, "failed in the optimizer's foreach update", "_multi_tensor_"},
    {MP_CAUSE_OPTIMIZER_STATE, 7, "DeepSpeed was creating the optimizer's state",
     "initialize_optimizer_states"},
    {MP_CAUSE_OPTIMIZER_STATE, 6, "the optimizer was making fp32 master weights",
     "fp32_groups|fp32_partitioned_groups"},
    {MP_CAUSE_OPTIMIZER_STATE, 6, "DeepSpeed was building its optimizer",
     "_setup_for_real_optimizer"},
    {MP_CAUSE_OPTIMIZER_STATE, 5, "DeepSpeed was building its optimizer",
     "_configure_zero_optimizer"},
    {MP_CAUSE_OPTIMIZER_STATE, 4, "the optimizer was making fp32 master weights", "master_params"},
    {MP_CAUSE_OPTIMIZER_STATE, 6, "failed in the optimizer step",
     "optimizer.step(|optim.step(|optimizer'].step("},
    {MP_CAUSE_OPTIMIZER_STATE, 5, "failed in the optimizer step", "scaler.step("},
    {MP_CAUSE_OPTIMIZER_STATE, 5, "failed in torch.optim", "/torch/optim/|\\torch\\optim\\"},
    {MP_CAUSE_OPTIMIZER_STATE, 5, "failed in the optimizer", "/optim/|bitsandbytes/optim"},
    {MP_CAUSE_CHECKPOINT_IO, 7, "FSDP was gathering the whole state to save it",
     "_full_pre_state_dict|_full_post_state_dict"},
    {MP_CAUSE_CHECKPOINT_IO, 6, "FSDP was gathering state to save or load it", "_state_dict_utils"},
    {MP_CAUSE_CHECKPOINT_IO, 6, "the optimizer's state was being gathered", "optim_state_dict"},
    {MP_CAUSE_CHECKPOINT_IO, 6, "a state dict was being distributed", "_broadcast_state_dict"},
    {MP_CAUSE_CHECKPOINT_IO, 5, "torch.load puts the checkpoint back on the card it was saved from",
     "_cuda_deserialize|persistent_load|restore_location"},
    {MP_CAUSE_CHECKPOINT_IO, 5, "failed in torch.load or torch.save",
     "torch/serialization.py|torch\\serialization.py|torch.load("},
    {MP_CAUSE_CHECKPOINT_IO, 6, "the optimizer's saved state was being loaded",
     "optimizer.load_state_dict|load_optimizer"},
    {MP_CAUSE_CHECKPOINT_IO, 6, "FSDP was copying its state to save it",
     "state_dict entry|failed to clone() tensor"},
    {MP_CAUSE_CHECKPOINT_IO, 6, "failed while saving",
     "dump_checkpoint|save_model_and_optimizer|_save_to_state_dict|save_checkpoint(|"
     "torch.save("},
    {MP_CAUSE_CHECKPOINT_IO, 6, "the sharded state was being gathered to save it",
     "consolidate_state_dict|zero3_consolidated|save_16bit_model|get_fp32_state_dict"},
    {MP_CAUSE_CHECKPOINT_IO, 5, "failed while saving", "save_pretrained(|save_model("},
    {MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being loaded",
     "set_module_tensor_to_device|_load_state_dict_into_meta_model|"
     "_load_state_dict_into_model|_load_pretrained_model"},
    {MP_CAUSE_MODEL_TOO_LARGE, 6, "room for all weights was being reserved",
     "caching_allocator_warmup"},
    {MP_CAUSE_MODEL_TOO_LARGE, 5, "the model was being loaded", "from_pretrained("},
    {MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being placed", "dispatch_model"},
    {MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being loaded", "load_checkpoint_in_model"},
    {MP_CAUSE_MODEL_TOO_LARGE, 6, "the model was being built on the card", "initialize_model("},
    {MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being created",
     "_initialize_affine_weight|parameter(torch.|create_weights"},
    {MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being moved to the card",
     "param_applied = fn(|param.data = fn(|lambda t: t.cuda(|return t.to("},
    {MP_CAUSE_MODEL_TOO_LARGE, 5, "the model was being moved to the card", "model.to(|model.cuda("},
    {MP_CAUSE_MODEL_TOO_LARGE, 4, "the model was being converted", "model.half("},
    {MP_CAUSE_MODEL_TOO_LARGE, 3, "the model was being built on the card",
     "nn.conv|nn.linear(|nn.embedding("},
    {MP_CAUSE_MODEL_TOO_LARGE, 4, "FSDP was sharding the model", "_init_param_handle"},
    {MP_CAUSE_MODEL_TOO_LARGE, 4, "the weights were being flattened", "flatten_tensors"},
    {MP_CAUSE_MODEL_TOO_LARGE, 6, "the shards of all weights were being gathered on one card",
     "gatheredparameters|summon_full_params"},
    {MP_CAUSE_MODEL_TOO_LARGE, 5, "adapters were being merged into the weights",
     "merge_and_unload"},
    {MP_CAUSE_MODEL_TOO_LARGE, 3, "the key-value cache was being reserved",
     "initialize_kv_cache|allocate_kv_cache"},
    {MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being quantized while they were loaded",
     "int8params|params4bit|quantize_4bit"},
    {MP_CAUSE_MODEL_TOO_LARGE, 4, "the model was being loaded", "load_model("},
    {MP_CAUSE_MODEL_TOO_LARGE, 4, "a second copy of the model was being made", "deepcopy("},
    {MP_CAUSE_MODEL_TOO_LARGE, 4, "DDP was making its gradient buckets",
     "dist.reducer(|_ddp_init_helper"},
    {MP_CAUSE_ACTIVATIONS, 3, "failed in a loss that knows no vocabulary",
     "binary_cross_entropy|bce_with_logits|bceloss|l1_loss|mse_loss"},
    {MP_CAUSE_LOGITS, 6, "failed in the loss over the vocabulary",
     "cross_entropy|crossentropyloss"},
    {MP_CAUSE_LOGITS, 7, "the logits were being copied to fp32", "logits.float()"},
    {MP_CAUSE_LOGITS, 6, "the logits were being copied", "logits = logits."},
    {MP_CAUSE_LOGITS, 6, "the shifted copy of the logits was being made", "shift_logits"},
    {MP_CAUSE_LOGITS, 6, "failed in the output layer over the vocabulary", "lm_head("},
    {MP_CAUSE_LOGITS, 4, "the output was being copied to fp32", "output.float()"},
    {MP_CAUSE_LOGITS, 5, "failed in the softmax over the vocabulary", "log_softmax"},
    {MP_CAUSE_LOGITS, 5, "failed on log-probabilities over the vocabulary",
     "logprobs|log_probs|batch_logps|entropy_from_logits"},
    {MP_CAUSE_NCCL, 4, "failed while the communicator was being made", "init_process_group"},
    {MP_CAUSE_NCCL, 3, "failed in DDP's first collective", "_verify_param"},
    {MP_CAUSE_NCCL, 3, "failed in a collective", "barrier(|all_reduce(|all_to_all"},
    {MP_CAUSE_OTHER_PROCESS, 4,
     "not even a context could be made: the card was full before the program began",
     "_cuda_init|_lazy_init|_cuda_setdevice|cuctxcreate|thcgeneral"},
    {MP_CAUSE_ACTIVATIONS, 3, "failed in the backward pass", "autograd.grad("},
};

/* Operations that say little by themselves: some tensor of a step. Used when nothing above is met.
 */
static const struct rule steps[] = {
    {MP_CAUSE_ACTIVATIONS, 4,
     "failed on the attention matrix, which grows with the square of the length",
     "attn_weights|attention_scores|attention_probs"},
    {MP_CAUSE_ACTIVATIONS, 4,
     "failed on the overlaps of boxes and anchors, which grow with the objects of an image",
     "bbox_overlaps|iou_calculator|box_iou|pairwise_iou"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in a softmax of the forward pass", "softmax("},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in attention", "scaled_dot_product"},
    {MP_CAUSE_ACTIVATIONS, 5,
     "failed on a dense adjacency matrix, which grows with the square of the nodes",
     "to_dense_adj"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in the forward pass", "einsum("},
    {MP_CAUSE_ACTIVATIONS, 3, "failed in attention", "attention"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in a convolution",
     "conv1d|conv2d|conv3d|conv_transpose|_conv_forward"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in a normalisation", "batch_norm|group_norm|layer_norm"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed while decoding the image",
     "vae.decode|vae_decode|decode_first_stage"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed while resizing an image or a map",
     "interpolate(|grid_sample|upsample|unfold("},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in an activation function", "relu(|gelu(|silu(|act_fn("},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in dropout", "dropout("},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in pooling", "max_pool"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in a recurrent layer", "cudnn_rnn|_vf.lstm"},
    {MP_CAUSE_ACTIVATIONS, 3, "failed in a linear layer", "f.linear("},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in a matrix product", "torch.matmul(|torch.bmm("},
    {MP_CAUSE_ACTIVATIONS, 2, "failed while joining tensors", "torch.cat(|torch.stack("},
    {MP_CAUSE_ACTIVATIONS, 4, "failed in the backward pass", ".backward(|run_backward"},
    {MP_CAUSE_ACTIVATIONS, 3, "DataParallel gathers outputs on the first card", "/comm.py"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed on a matrix of all pairs", "cdist(|pairwise_dist|affinity"},
    {MP_CAUSE_ACTIVATIONS, 4, "failed on the keys and values, which grow with the length",
     "past_key_value|repeat_kv|key_states = torch.cat"},
    {MP_CAUSE_ACTIVATIONS, 3, "failed in the forward pass", "in forward|forward("},
};

/* A step's operation, named in a constructor. */
static const struct rule building = {MP_CAUSE_MODEL_TOO_LARGE, 4, "the model was being built", ""};

/* The phase: anywhere in the traceback. */
static const struct rule phases[] = {
    {MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation",
     "in evaluate|self.evaluate(|evaluate(model|evaluation_loop|prediction_step|"
     "prediction_loop|in run_eval|in eval_|.evaluate(|inference_on_dataset|_evaluation(|"
     "in do_eval|do_eval(|in evaluation"},
    {MP_CAUSE_EVALUATION, 5, "the traceback runs through validation",
     "validation_step|in validate|in validation|compute_validation|_validation(|"
     "run_validation|val_epoch|log_validation|trainer.validate("},
    {MP_CAUSE_EVALUATION, 4, "the traceback runs through the validation before training",
     "run_sanity"},
    {MP_CAUSE_EVALUATION, 4, "the traceback runs through validation",
     "validate(|in val_|in val\n|in valid\n|val_loss ="},
    {MP_CAUSE_EVALUATION, 4,
     "the traceback runs through a hook after the epoch, usually evaluation", "after_train_epoch"},
    {MP_CAUSE_EVALUATION, 5, "the traceback runs through a test",
     "single_gpu_test|multi_gpu_test|trainer.test("},
    {MP_CAUSE_EVALUATION, 4, "the traceback runs through a test", "test_step|in test\n"},
    {MP_CAUSE_EVALUATION, 4, "the traceback runs through a test after training", "in test_epoch"},
    {MP_CAUSE_EVALUATION, 4, "the traceback runs through evaluation", "in eval\n|eval_loss ="},
};

/* What the log says just before the failure: its last lines name what had begun. */
static const struct rule log_phases[] = {
    {MP_CAUSE_EVALUATION, 4, "the log was in evaluation when it failed",
     "running validation|running evaluation|running prediction|validating:|evaluating:|"
     "validation:|evaluation:|testing:|validation dataloader|testing dataloader|"
     "sanity checking|start validation|start evaluation"},
    {MP_CAUSE_CHECKPOINT_IO, 4, "the log was saving when it failed",
     "saving model checkpoint|saving checkpoint|saving state|saving the model|"
     "saving model|saved checkpoint"},
    {MP_CAUSE_MODEL_TOO_LARGE, 3, "the log was loading weights when it failed",
     "loading checkpoint shards|loading safetensors|loading weights|loading pipeline"},
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *line_begin(const struct mp_doctor_text *text, size_t line)
{
    return text->plain + text->plain_line[line];
}

static size_t line_length(const struct mp_doctor_text *text, size_t line)
{
    return text->plain_line[line + 1] - text->plain_line[line];
}

static bool line_has(const struct mp_doctor_text *text, size_t line, const char *words)
{
    return mp_doctor_find(line_begin(text, line), line_length(text, line), words) != NULL;
}

/* Does the line hold one of the alternatives of a rule? */
static bool line_fits(const struct mp_doctor_text *text, size_t line, const char *words)
{
    const char *const begin = line_begin(text, line);
    const size_t n = line_length(text, line);
    while (*words != '\0') {
        const size_t length = strcspn(words, "|");
        char word[64] = "";
        assert(length < sizeof word);
        memcpy(word, words, length);
        if (mp_doctor_find(begin, n, word) != NULL) {
            return true;
        }
        words += length + (words[length] == '|');
    }
    return false;
}

/* The arrow with which a box marks the failing line. */
static bool is_marked(const struct mp_doctor_text *text, size_t line)
{
    const char *const raw = text->raw + text->raw_line[line];
    return mp_doctor_find(raw, text->raw_line[line + 1] - text->raw_line[line], "\xE2\x9D\xB1") !=
           NULL;
}

/* A numbered source line without an arrow: context of a boxed ("│   376 │  code") or notebook (" 11
 * code") traceback. */
static bool is_context_line(const struct mp_doctor_text *text, size_t line)
{
    const char *const begin = line_begin(text, line);
    const size_t n = line_length(text, line);
    size_t at = 0, digits = 0;
    while (at < n && begin[at] == ' ') {
        at++;
    }
    while (at < n && is_digit(begin[at])) {
        at++;
        digits++;
    }
    if (digits == 0 || digits > 6 || at >= n || begin[at] != ' ') {
        return false;
    }
    return !is_marked(text, line);
}

struct region {
    size_t from, to; /* lines, to excluded */
    bool traceback;  /* a heading was found */
    bool upside;     /* the innermost frame stands first: Lua, C++ */
};

/* The last heading within reach before the line `to`; without one, a few dozen lines. */
static struct region region_before(const struct mp_doctor_text *text, size_t to)
{
    const size_t reach = to > MAX_LINES_BACK ? to - MAX_LINES_BACK : 0;
    for (size_t i = to; i-- > reach;) {
        if (line_has(text, i, "traceback (most recent call last")) {
            return (struct region){i, to, true, false};
        }
    }
    return (struct region){to > 60 ? to - 60 : 0, to, false, false};
}

/* Jupyter and title-first reports: the traceback follows the message we speak about. */
static struct region region_after(const struct mp_doctor_text *text, size_t from)
{
    const size_t reach = MP_MIN(text->n_lines, from + 4 * (size_t)MAX_LINES_BACK);
    size_t heading = reach;
    for (size_t i = from; i < reach; i++) {
        if (line_has(text, i, "traceback (most recent call last")) {
            heading = i; /* the last one is the failure proper, after "during handling of …" */
        } else if (heading < reach &&
                   (line_has(text, i, "out of memory") || line_has(text, i, "outofmemory"))) {
            return (struct region){heading, i, true, false};
        }
    }
    return (struct region){heading, MP_MIN(reach, heading + MAX_LINES_BACK), heading < reach,
                           false};
}

/* Lua's `stack traceback:` and the runtime's `frame #0:` follow the message, innermost first. */
static struct region region_upside(const struct mp_doctor_text *text, size_t from)
{
    const size_t reach = MP_MIN(text->n_lines, from + 12);
    for (size_t i = from; i < reach; i++) {
        if (line_has(text, i, "stack traceback:") || line_has(text, i, "frame #0:")) {
            return (struct region){from, MP_MIN(text->n_lines, i + 40), true, true};
        }
    }
    return (struct region){from, from, false, true};
}

/* `file "x.py", line 3, in f` of Python, `x.py:3 in f` in a box. */
static bool is_frame(const struct mp_doctor_text *text, size_t line)
{
    if (line_has(text, line, "file \"") && line_has(text, line, "line ")) {
        return true;
    }
    const size_t n = line_length(text, line);
    const char *const begin = line_begin(text, line);
    const char *at = mp_doctor_find(begin, n, ".py:");
    if (at == NULL) {
        return false;
    }
    at += 4;
    const char *const digits = at;
    while (at < begin + n && is_digit(*at)) {
        at++;
    }
    return at > digits && (size_t)(begin + n - at) >= 4 && memcmp(at, " in ", 4) == 0;
}

/* Frames without a heading: from the first to the last of the text, when there are at least two, or
 * one in a box. */
static struct region region_of_frames(const struct mp_doctor_text *text)
{
    struct region r = {text->n_lines, text->n_lines, false, false};
    size_t n = 0;
    for (size_t i = 0; i < text->n_lines; i++) {
        if (is_frame(text, i) || is_marked(text, i)) {
            r.from = MP_MIN(r.from, i);
            r.to = MP_MIN(i + 10, text->n_lines); /* a box shows lines around the failing one */
            n++;
        }
    }
    r.from = r.to > MAX_LINES_BACK ? MP_MAX(r.from, r.to - MAX_LINES_BACK) : r.from;
    r.traceback = n >= 2;
    return r;
}

static bool has_frames(const struct mp_doctor_text *text, struct region r)
{
    for (size_t i = r.from; i < r.to; i++) {
        if (line_has(text, i, ".py") || line_has(text, i, "file \"")) {
            return true;
        }
    }
    /* pytest names the file behind the message */
    for (size_t i = r.to; i < MP_MIN(r.to + 4, text->n_lines); i++) {
        if (line_has(text, i, ".py:") && line_has(text, i, "error")) {
            return true;
        }
    }
    return false;
}

/* The code line of a constructor, or the frame that names one: what it mentions is built there, not
 * run. */
static bool is_constructor(const struct mp_doctor_text *text, size_t line)
{
    return line_has(text, line, "in __init__") ||
           (line > 0 && is_frame(text, line - 1) && line_has(text, line - 1, "in __init__"));
}

/* The innermost line that a row of the table matches; NULL when none does. */
static const struct rule *innermost(const struct mp_doctor_text *text, struct region r,
                                    const struct rule *rules, size_t n, size_t *line)
{
    for (size_t step = 0; step < r.to - r.from; step++) {
        const size_t i = r.upside ? r.from + step : r.to - 1 - step;
        if (is_context_line(text, i)) {
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            if (line_fits(text, i, rules[k].words)) {
                *line = i;
                return &rules[k];
            }
        }
    }
    return NULL;
}

/* An optimizer may run the step itself, as a closure: what failed within that is no failure of the
 * optimizer. */
static struct region without_closures(const struct mp_doctor_text *text, struct region r)
{
    for (size_t i = r.to; i-- > r.from && !r.upside;) {
        if (line_has(text, i, "closure(")) {
            r.from = i + 1;
        }
    }
    return r;
}

static void add(struct mp_doctor_case *c, const struct rule *rule, int weight, size_t line)
{
    mp_evidence_add(c, rule->cause, MP_EVIDENCE_FRAME, weight, line + 1, "%s", rule->reason);
}

/* The digits at `at`, saturated. */
static uint64_t number_at(const char *at, const char *end)
{
    uint64_t value = 0;
    for (; at < end && is_digit(*at) && value < UINT64_C(1000000000000); at++) {
        value = value * 10 + (uint64_t)(*at - '0');
    }
    return value;
}

/* Progress bars ("123/4567 [") and counters before the failure: how many steps were done. 0 when
 * unknown or none. */
static uint64_t steps_done(const struct mp_doctor_text *text, size_t to, size_t *line)
{
    const size_t from = to > MAX_LINES_BACK ? to - MAX_LINES_BACK : 0;
    for (size_t i = to; i-- > from;) {
        const char *const begin = line_begin(text, i);
        const size_t n = line_length(text, i);
        const char *at = begin, *bar = NULL;
        /* a terminal's carriage returns put many states of one bar in a line: the last counts */
        while ((at = mp_doctor_find(at, n - (size_t)(at - begin), "/")) != NULL) {
            const char *p = at + 1;
            while (p < begin + n && is_digit(*p)) {
                p++;
            }
            /* "123/4567 [00:12<…" on a terminal, "[ 123/4567 00:12 < …" in a notebook */
            const bool terminal = p > at + 1 && p + 1 < begin + n && p[0] == ' ' && p[1] == '[';
            const bool notebook = p > at + 1 && p + 3 < begin + n && p[0] == ' ' &&
                                  is_digit(p[1]) &&
                                  mp_doctor_find(p, (size_t)(begin + n - p), " < ") != NULL;
            if ((terminal || notebook) && at > begin && is_digit(at[-1])) {
                bar = at;
            }
            at++;
        }
        if (bar == NULL) {
            continue;
        }
        const char *p = bar;
        while (p > begin && is_digit(p[-1])) {
            p--;
        }
        const uint64_t done = number_at(p, bar), total = number_at(bar + 1, begin + n);
        const bool bytes = mp_doctor_find(bar, n - (size_t)(bar - begin), "mb/s") != NULL;
        if (!bytes && !line_fits(text, i, "loading|download|map|example|reading|cach")) {
            *line = i;
            return done < total ? done : 0; /* a loop that ended is not what failed */
        }
    }
    return 0;
}

#define VOCABULARY                                                                                 \
    30000 /* no hidden size is that large; the vocabularies of language models are  \
                          */

/* `empty_strided_cuda((s10, 1, 76032), …)` of compiled code: the last dimension of the tensor that
 * failed. 0 when there is none. */
static uint64_t last_dimension(const struct mp_doctor_text *text, size_t line)
{
    const char *const begin = line_begin(text, line), *const end = begin + line_length(text, line);
    const char *at = mp_doctor_find(begin, (size_t)(end - begin), "empty_strided_cuda((");
    if (at == NULL) {
        return 0;
    }
    uint64_t last = 0;
    for (at += 20; at < end && *at != ')'; at++) {
        if (*at == ',') {
            last = 0;
        } else if (is_digit(*at) && last < UINT64_C(1000000000000)) {
            last = last * 10 + (uint64_t)(*at - '0');
        } else if (*at != ' ') {
            last = 0; /* a symbol or a product */
        }
    }
    return last;
}

static void by_compiled_tensor(struct mp_doctor_case *c, struct region r)
{
    for (size_t i = r.to; i-- > r.from;) {
        const uint64_t last = last_dimension(&c->text, i);
        if (last >= VOCABULARY) {
            mp_evidence_add(c, MP_CAUSE_LOGITS, MP_EVIDENCE_FRAME, 5, i + 1,
                            "the tensor's last dimension, %llu, is a vocabulary's size",
                            (unsigned long long)last);
        }
        if (last > 0) {
            return;
        }
    }
}

/* A traceback that has lost its heading ends in the message: frames stand right before it. */
static bool ends_in_message(const struct mp_doctor_text *text, size_t at)
{
    for (size_t i = at > 8 ? at - 8 : 0; i < at; i++) {
        if (is_frame(text, i)) {
            return true;
        }
    }
    return false;
}

/* Frames without a heading right behind the message. */
static struct region region_behind(const struct mp_doctor_text *text, size_t at)
{
    struct region r = {at, at, false, false};
    for (size_t i = at + 1; i < MP_MIN(text->n_lines, r.to + 4); i++) {
        if (is_frame(text, i)) {
            r.to = MP_MIN(i + 2, text->n_lines);
            r.traceback = true;
        }
        if (r.to - at > MAX_LINES_BACK) {
            break;
        }
    }
    return r;
}

/* Where to look: the traceback that ends in the message, one that follows it, any. */
static struct region find_region(const struct mp_doctor_text *text, size_t at)
{
    const struct region before = region_before(text, MP_MIN(at + 1, text->n_lines));
    if ((before.traceback && has_frames(text, before)) || ends_in_message(text, at)) {
        return before;
    }
    const struct region upside = region_upside(text, at);
    if (upside.traceback) {
        return upside;
    }
    const struct region after = region_after(text, at);
    if (after.traceback) {
        return after;
    }
    const struct region anywhere = region_of_frames(text);
    if (anywhere.traceback && !has_frames(text, before)) {
        return anywhere;
    }
    const struct region behind = region_behind(text, at);
    return behind.traceback ? behind : before;
}

#define LOG_LINES 10

/* The last words of the log before the traceback, or before the message where there is none. */
static void by_log(struct mp_doctor_case *c, struct region r, size_t at)
{
    size_t line = 0;
    const size_t to = r.traceback && !r.upside ? r.from : at;
    const struct region last = {to > LOG_LINES ? to - LOG_LINES : 0, to, false, false};
    const struct rule *const rule =
        innermost(&c->text, last, log_phases, MP_ARRAY_LEN(log_phases), &line);
    if (rule != NULL) {
        add(c, rule, rule->weight, line);
    }
}

void mp_evidence_traceback(struct mp_doctor_case *c)
{
    const struct mp_doctor_text *const text = &c->text;
    /* a report without a message may still end in a traceback */
    const bool stated = c->message.format != MP_OOM_NONE && c->message.format != MP_OOM_OTHER;
    const size_t at = stated ? c->message.line : text->n_lines - 1;
    const struct region r = find_region(text, at);
    by_compiled_tensor(c, r);
    size_t line = 0;
    const struct rule *phase = innermost(text, r, phases, MP_ARRAY_LEN(phases), &line);
    if (phase != NULL) {
        add(c, phase, phase->weight, line);
    } else {
        by_log(c, r, at);
    }
    const struct region inner = without_closures(text, r);
    const struct rule *rule = innermost(text, inner, operations, MP_ARRAY_LEN(operations), &line);
    if (rule == NULL) {
        rule = innermost(text, r, steps, MP_ARRAY_LEN(steps), &line);
        if (rule != NULL && is_constructor(text, line)) {
            rule = &building;
        }
    }
    if (rule != NULL) {
        /* in evaluation the same line would hold less: the phase is the better explanation; pasted
         * code is no traceback */
        const bool doubtful = phase != NULL && rule->cause != phase->cause;
        const bool cut =
            stated && line < at && at - line <= 3; /* the end of one is all that was kept */
        const bool pasted = !r.traceback && line != at && !cut && !has_frames(text, r);
        add(c, rule,
            pasted     ? (rule->weight + 2) / 3
            : doubtful ? (rule->weight + 1) / 2
                       : rule->weight,
            line);
    }
    /* how long the job had run */
    const uint64_t done = steps_done(text, MP_MIN(MP_MAX(at + 1, r.from), text->n_lines), &line);
    if (done >= 30) {
        mp_evidence_add(c, MP_CAUSE_LEAK, MP_EVIDENCE_FRAME, 2, line + 1,
                        "%llu steps had gone well before: memory grew, or a longer input came",
                        (unsigned long long)done);
        mp_evidence_add(c, MP_CAUSE_ACTIVATIONS, MP_EVIDENCE_FRAME, 1, line + 1,
                        "%llu steps had gone well before", (unsigned long long)done);
    }
}
