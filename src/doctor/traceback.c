/* SPDX-License-Identifier: MIT */
/*
 * The traceback around the message. Two things are read from it: the operation that failed (the
 * innermost line that a rule knows) and the phase the program was in (any line). Context lines of
 * boxed and notebook tracebacks, which only surround the failing line, are passed over.
 */
#include "doctor/evidence.h"

#define MAX_LINES_BACK 220

struct rule {
    const char *words; /* in the plain text of a line */
    enum mp_cause cause;
    int weight;
    const char *reason;
};

/* Operations that name a cause. The innermost line with a match decides; in one line, the first
 * row. */
static const struct rule operations[] = {
    {"pin_memory(", MP_CAUSE_HOST_MEMORY, 6, "failed while pinning host memory"},
    {"in pin_memory", MP_CAUSE_HOST_MEMORY, 6, "failed while pinning host memory"},
    {"share_memory", MP_CAUSE_HOST_MEMORY, 4, "failed in shared host memory"},
    {"nested_concat", MP_CAUSE_EVALUATION, 7, "predictions of evaluation are joined on the card"},
    {"pad_across_processes", MP_CAUSE_EVALUATION, 6,
     "predictions of evaluation are gathered on the card"},
    {"compute_metrics", MP_CAUSE_EVALUATION, 6, "failed in the metrics of evaluation"},
    {"_init_group", MP_CAUSE_OPTIMIZER_STATE, 6, "the optimizer was creating its state"},
    {"exp_avg", MP_CAUSE_OPTIMIZER_STATE, 6, "failed on Adam's moments"},
    {"zeros_like(p", MP_CAUSE_OPTIMIZER_STATE, 6, "the optimizer was creating its state"},
    {"momentum_buffer", MP_CAUSE_OPTIMIZER_STATE, 6, "the optimizer was creating its momentum"},
    {"_multi_tensor_", MP_CAUSE_OPTIMIZER_STATE, 6, "failed in the optimizer's foreach update"},
    {"initialize_optimizer_states", MP_CAUSE_OPTIMIZER_STATE, 7,
     "DeepSpeed was creating the optimizer's state"},
    {"fp32_groups", MP_CAUSE_OPTIMIZER_STATE, 6, "the optimizer was making fp32 master weights"},
    {"fp32_partitioned_groups", MP_CAUSE_OPTIMIZER_STATE, 6,
     "the optimizer was making fp32 master weights"},
    {"_setup_for_real_optimizer", MP_CAUSE_OPTIMIZER_STATE, 6,
     "DeepSpeed was building its optimizer"},
    {"_configure_zero_optimizer", MP_CAUSE_OPTIMIZER_STATE, 5,
     "DeepSpeed was building its optimizer"},
    {"master_params", MP_CAUSE_OPTIMIZER_STATE, 4, "the optimizer was making fp32 master weights"},
    {"optimizer.step(", MP_CAUSE_OPTIMIZER_STATE, 6, "failed in the optimizer step"},
    {"optim.step(", MP_CAUSE_OPTIMIZER_STATE, 6, "failed in the optimizer step"},
    {"scaler.step(", MP_CAUSE_OPTIMIZER_STATE, 5, "failed in the optimizer step"},
    {"/torch/optim/", MP_CAUSE_OPTIMIZER_STATE, 5, "failed in torch.optim"},
    {"\\torch\\optim\\", MP_CAUSE_OPTIMIZER_STATE, 5, "failed in torch.optim"},
    {"bitsandbytes/optim", MP_CAUSE_OPTIMIZER_STATE, 5, "failed in the optimizer"},
    {"_full_pre_state_dict", MP_CAUSE_CHECKPOINT_IO, 7,
     "FSDP was gathering the whole state to save it"},
    {"_full_post_state_dict", MP_CAUSE_CHECKPOINT_IO, 7,
     "FSDP was gathering the whole state to save it"},
    {"_state_dict_utils", MP_CAUSE_CHECKPOINT_IO, 6, "FSDP was gathering state to save or load it"},
    {"optim_state_dict", MP_CAUSE_CHECKPOINT_IO, 6, "the optimizer's state was being gathered"},
    {"_broadcast_state_dict", MP_CAUSE_CHECKPOINT_IO, 6, "a state dict was being distributed"},
    {"_cuda_deserialize", MP_CAUSE_CHECKPOINT_IO, 5,
     "torch.load puts the checkpoint back on the card it was saved from"},
    {"persistent_load", MP_CAUSE_CHECKPOINT_IO, 5,
     "torch.load puts the checkpoint back on the card it was saved from"},
    {"restore_location", MP_CAUSE_CHECKPOINT_IO, 5,
     "torch.load puts the checkpoint back on the card it was saved from"},
    {"torch/serialization.py", MP_CAUSE_CHECKPOINT_IO, 5, "failed in torch.load or torch.save"},
    {"torch\\serialization.py", MP_CAUSE_CHECKPOINT_IO, 5, "failed in torch.load or torch.save"},
    {"optimizer.load_state_dict", MP_CAUSE_CHECKPOINT_IO, 6,
     "the optimizer's saved state was being loaded"},
    {"load_optimizer", MP_CAUSE_CHECKPOINT_IO, 6, "the optimizer's saved state was being loaded"},
    {"state_dict entry", MP_CAUSE_CHECKPOINT_IO, 6, "FSDP was copying its state to save it"},
    {"failed to clone() tensor", MP_CAUSE_CHECKPOINT_IO, 6,
     "FSDP was copying its state to save it"},
    {"dump_checkpoint", MP_CAUSE_CHECKPOINT_IO, 6, "failed while saving"},
    {"consolidate_state_dict", MP_CAUSE_CHECKPOINT_IO, 6,
     "the sharded state was being gathered to save it"},
    {"save_model_and_optimizer", MP_CAUSE_CHECKPOINT_IO, 6, "failed while saving"},
    {"_save_to_state_dict", MP_CAUSE_CHECKPOINT_IO, 6, "failed while saving"},
    {"save_checkpoint(", MP_CAUSE_CHECKPOINT_IO, 6, "failed while saving"},
    {"save_pretrained(", MP_CAUSE_CHECKPOINT_IO, 5, "failed while saving"},
    {"save_model(", MP_CAUSE_CHECKPOINT_IO, 5, "failed while saving"},
    {"torch.save(", MP_CAUSE_CHECKPOINT_IO, 6, "failed while saving"},
    {"set_module_tensor_to_device", MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being loaded"},
    {"_load_state_dict_into_meta_model", MP_CAUSE_MODEL_TOO_LARGE, 6,
     "the weights were being loaded"},
    {"_load_state_dict_into_model", MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being loaded"},
    {"caching_allocator_warmup", MP_CAUSE_MODEL_TOO_LARGE, 6,
     "room for all weights was being reserved"},
    {"_load_pretrained_model", MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being loaded"},
    {"from_pretrained(", MP_CAUSE_MODEL_TOO_LARGE, 5, "the model was being loaded"},
    {"dispatch_model", MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being placed"},
    {"load_checkpoint_in_model", MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being loaded"},
    {"initialize_model(", MP_CAUSE_MODEL_TOO_LARGE, 6, "the model was being built on the card"},
    {"_initialize_affine_weight", MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being created"},
    {"parameter(torch.", MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being created"},
    {"create_weights", MP_CAUSE_MODEL_TOO_LARGE, 6, "the weights were being created"},
    {"param_applied = fn(", MP_CAUSE_MODEL_TOO_LARGE, 5,
     "the weights were being moved to the card"},
    {"param.data = fn(", MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being moved to the card"},
    {"lambda t: t.cuda(", MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being moved to the card"},
    {"return t.to(", MP_CAUSE_MODEL_TOO_LARGE, 5, "the weights were being moved to the card"},
    {"model.to(", MP_CAUSE_MODEL_TOO_LARGE, 5, "the model was being moved to the card"},
    {"model.cuda(", MP_CAUSE_MODEL_TOO_LARGE, 5, "the model was being moved to the card"},
    {"model.half(", MP_CAUSE_MODEL_TOO_LARGE, 4, "the model was being converted"},
    {"nn.conv", MP_CAUSE_MODEL_TOO_LARGE, 3, "the model was being built on the card"},
    {"nn.linear(", MP_CAUSE_MODEL_TOO_LARGE, 3, "the model was being built on the card"},
    {"nn.embedding(", MP_CAUSE_MODEL_TOO_LARGE, 3, "the model was being built on the card"},
    {"_init_param_handle", MP_CAUSE_MODEL_TOO_LARGE, 4, "FSDP was sharding the model"},
    {"flatten_tensors", MP_CAUSE_MODEL_TOO_LARGE, 4, "the weights were being flattened"},
    {"merge_and_unload", MP_CAUSE_MODEL_TOO_LARGE, 5,
     "adapters were being merged into the weights"},
    {"initialize_kv_cache", MP_CAUSE_MODEL_TOO_LARGE, 3, "the key-value cache was being reserved"},
    {"allocate_kv_cache", MP_CAUSE_MODEL_TOO_LARGE, 3, "the key-value cache was being reserved"},
    {"cross_entropy", MP_CAUSE_LOGITS, 6, "failed in the loss over the vocabulary"},
    {"crossentropyloss", MP_CAUSE_LOGITS, 6, "failed in the loss over the vocabulary"},
    {"logits.float()", MP_CAUSE_LOGITS, 7, "the logits were being copied to fp32"},
    {"logits = logits.", MP_CAUSE_LOGITS, 6, "the logits were being copied"},
    {"shift_logits", MP_CAUSE_LOGITS, 6, "the shifted copy of the logits was being made"},
    {"lm_head(", MP_CAUSE_LOGITS, 6, "failed in the output layer over the vocabulary"},
    {"output.float()", MP_CAUSE_LOGITS, 4, "the output was being copied to fp32"},
    {"log_softmax", MP_CAUSE_LOGITS, 5, "failed in the softmax over the vocabulary"},
    {"logprobs", MP_CAUSE_LOGITS, 5, "failed on log-probabilities over the vocabulary"},
    {"log_probs", MP_CAUSE_LOGITS, 5, "failed on log-probabilities over the vocabulary"},
    {"init_process_group", MP_CAUSE_NCCL, 4, "failed while the communicator was being made"},
    {"_verify_param", MP_CAUSE_NCCL, 3, "failed in DDP's first collective"},
    {"barrier(", MP_CAUSE_NCCL, 3, "failed in a collective"},
    {"all_reduce(", MP_CAUSE_NCCL, 3, "failed in a collective"},
    {"all_to_all", MP_CAUSE_NCCL, 3, "failed in a collective"},
    {"_cuda_init", MP_CAUSE_OTHER_PROCESS, 4,
     "not even a context could be made: the card was full before the program began"},
    {"_lazy_init", MP_CAUSE_OTHER_PROCESS, 4,
     "not even a context could be made: the card was full before the program began"},
    {"_cuda_setdevice", MP_CAUSE_OTHER_PROCESS, 4,
     "not even a context could be made: the card was full before the program began"},
    {"cuctxcreate", MP_CAUSE_OTHER_PROCESS, 4,
     "not even a context could be made: the card was full before the program began"},
    {"thcgeneral", MP_CAUSE_OTHER_PROCESS, 4,
     "not even a context could be made: the card was full before the program began"},
    {"autograd.grad(", MP_CAUSE_ACTIVATIONS, 3, "failed in the backward pass"},
};

/* Operations that say little by themselves: some tensor of a step. Used when nothing above is met.
 */
static const struct rule steps[] = {
    {"attn_weights", MP_CAUSE_ACTIVATIONS, 4,
     "failed on the attention matrix, which grows with the square of the length"},
    {"attention_scores", MP_CAUSE_ACTIVATIONS, 4,
     "failed on the attention matrix, which grows with the square of the length"},
    {"attention_probs", MP_CAUSE_ACTIVATIONS, 4,
     "failed on the attention matrix, which grows with the square of the length"},
    {"bbox_overlaps", MP_CAUSE_ACTIVATIONS, 4,
     "failed on the overlaps of boxes and anchors, which grow with the objects of an image"},
    {"iou_calculator", MP_CAUSE_ACTIVATIONS, 4,
     "failed on the overlaps of boxes and anchors, which grow with the objects of an image"},
    {"box_iou", MP_CAUSE_ACTIVATIONS, 4,
     "failed on the overlaps of boxes and anchors, which grow with the objects of an image"},
    {"pairwise_iou", MP_CAUSE_ACTIVATIONS, 4,
     "failed on the overlaps of boxes and anchors, which grow with the objects of an image"},
    {"softmax(", MP_CAUSE_ACTIVATIONS, 4, "failed in a softmax of the forward pass"},
    {"scaled_dot_product", MP_CAUSE_ACTIVATIONS, 4, "failed in attention"},
    {"to_dense_adj", MP_CAUSE_ACTIVATIONS, 5,
     "failed on a dense adjacency matrix, which grows with the square of the nodes"},
    {"einsum(", MP_CAUSE_ACTIVATIONS, 4, "failed in the forward pass"},
    {"attention", MP_CAUSE_ACTIVATIONS, 3, "failed in attention"},
    {"conv1d", MP_CAUSE_ACTIVATIONS, 4, "failed in a convolution"},
    {"conv2d", MP_CAUSE_ACTIVATIONS, 4, "failed in a convolution"},
    {"conv3d", MP_CAUSE_ACTIVATIONS, 4, "failed in a convolution"},
    {"conv_transpose", MP_CAUSE_ACTIVATIONS, 4, "failed in a convolution"},
    {"_conv_forward", MP_CAUSE_ACTIVATIONS, 4, "failed in a convolution"},
    {"batch_norm", MP_CAUSE_ACTIVATIONS, 4, "failed in a normalisation"},
    {"group_norm", MP_CAUSE_ACTIVATIONS, 4, "failed in a normalisation"},
    {"layer_norm", MP_CAUSE_ACTIVATIONS, 4, "failed in a normalisation"},
    {"vae.decode", MP_CAUSE_ACTIVATIONS, 4, "failed while decoding the image"},
    {"vae_decode", MP_CAUSE_ACTIVATIONS, 4, "failed while decoding the image"},
    {"decode_first_stage", MP_CAUSE_ACTIVATIONS, 4, "failed while decoding the image"},
    {"interpolate(", MP_CAUSE_ACTIVATIONS, 4, "failed while resizing an image or a map"},
    {"relu(", MP_CAUSE_ACTIVATIONS, 4, "failed in an activation function"},
    {"gelu(", MP_CAUSE_ACTIVATIONS, 4, "failed in an activation function"},
    {"silu(", MP_CAUSE_ACTIVATIONS, 4, "failed in an activation function"},
    {"act_fn(", MP_CAUSE_ACTIVATIONS, 4, "failed in an activation function"},
    {"dropout(", MP_CAUSE_ACTIVATIONS, 4, "failed in dropout"},
    {"max_pool", MP_CAUSE_ACTIVATIONS, 4, "failed in pooling"},
    {"cudnn_rnn", MP_CAUSE_ACTIVATIONS, 4, "failed in a recurrent layer"},
    {"_vf.lstm", MP_CAUSE_ACTIVATIONS, 4, "failed in a recurrent layer"},
    {"f.linear(", MP_CAUSE_ACTIVATIONS, 3, "failed in a linear layer"},
    {"torch.matmul(", MP_CAUSE_ACTIVATIONS, 4, "failed in a matrix product"},
    {"torch.bmm(", MP_CAUSE_ACTIVATIONS, 4, "failed in a matrix product"},
    {"torch.cat(", MP_CAUSE_ACTIVATIONS, 3, "failed while joining tensors"},
    {"torch.stack(", MP_CAUSE_ACTIVATIONS, 3, "failed while joining tensors"},
    {".backward(", MP_CAUSE_ACTIVATIONS, 4, "failed in the backward pass"},
    {"run_backward", MP_CAUSE_ACTIVATIONS, 4, "failed in the backward pass"},
    {"/comm.py", MP_CAUSE_ACTIVATIONS, 3, "DataParallel gathers outputs on the first card"},
    {"in forward", MP_CAUSE_ACTIVATIONS, 3, "failed in the forward pass"},
    {"forward(", MP_CAUSE_ACTIVATIONS, 3, "failed in the forward pass"},
};

/* A step's operation, named in a constructor. */
static const struct rule building = {"", MP_CAUSE_MODEL_TOO_LARGE, 4, "the model was being built"};

/* The phase: anywhere in the traceback. */
static const struct rule phases[] = {
    {"in evaluate", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"self.evaluate(", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"evaluate(model", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"evaluation_loop", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"prediction_step", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"prediction_loop", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"validation_step", MP_CAUSE_EVALUATION, 5, "the traceback runs through validation"},
    {"run_sanity", MP_CAUSE_EVALUATION, 4,
     "the traceback runs through the validation before training"},
    {"in validate", MP_CAUSE_EVALUATION, 5, "the traceback runs through validation"},
    {"in validation", MP_CAUSE_EVALUATION, 5, "the traceback runs through validation"},
    {"validate(", MP_CAUSE_EVALUATION, 4, "the traceback runs through validation"},
    {"in val_", MP_CAUSE_EVALUATION, 4, "the traceback runs through validation"},
    {"in run_eval", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"in eval_", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {".evaluate(", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"compute_validation", MP_CAUSE_EVALUATION, 5, "the traceback runs through validation"},
    {"after_train_epoch", MP_CAUSE_EVALUATION, 4,
     "the traceback runs through a hook after the epoch, usually evaluation"},
    {"single_gpu_test", MP_CAUSE_EVALUATION, 5, "the traceback runs through a test"},
    {"multi_gpu_test", MP_CAUSE_EVALUATION, 5, "the traceback runs through a test"},
    {"inference_on_dataset", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"_validation(", MP_CAUSE_EVALUATION, 5, "the traceback runs through validation"},
    {"_evaluation(", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"run_validation", MP_CAUSE_EVALUATION, 5, "the traceback runs through validation"},
    {"test_step", MP_CAUSE_EVALUATION, 4, "the traceback runs through a test"},
    {"val_epoch", MP_CAUSE_EVALUATION, 5, "the traceback runs through validation"},
    {"in do_eval", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"do_eval(", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"in evaluation", MP_CAUSE_EVALUATION, 5, "the traceback runs through evaluation"},
    {"in test_epoch", MP_CAUSE_EVALUATION, 4, "the traceback runs through a test after training"},
    {"in test\n", MP_CAUSE_EVALUATION, 4, "the traceback runs through a test"},
    {"in val\n", MP_CAUSE_EVALUATION, 4, "the traceback runs through validation"},
    {"in eval\n", MP_CAUSE_EVALUATION, 4, "the traceback runs through evaluation"},
    {"in valid\n", MP_CAUSE_EVALUATION, 4, "the traceback runs through validation"},
    {"eval_loss =", MP_CAUSE_EVALUATION, 4, "the traceback runs through evaluation"},
    {"val_loss =", MP_CAUSE_EVALUATION, 4, "the traceback runs through validation"},
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
};

/* The last heading within reach before the line `to`; without one, a few dozen lines. */
static struct region region_before(const struct mp_doctor_text *text, size_t to)
{
    const size_t reach = to > MAX_LINES_BACK ? to - MAX_LINES_BACK : 0;
    for (size_t i = to; i-- > reach;) {
        if (line_has(text, i, "traceback (most recent call last)") ||
            line_has(text, i, "traceback (most recent call last")) {
            return (struct region){i, to, true};
        }
    }
    return (struct region){to > 60 ? to - 60 : 0, to, false};
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
            return (struct region){heading, i, true};
        }
    }
    return (struct region){heading, MP_MIN(reach, heading + MAX_LINES_BACK), heading < reach};
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
    struct region r = {text->n_lines, text->n_lines, false};
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
    for (size_t i = r.to; i-- > r.from;) {
        if (is_context_line(text, i)) {
            continue;
        }
        for (size_t k = 0; k < n; k++) {
            if (line_has(text, i, rules[k].words)) {
                *line = i;
                return &rules[k];
            }
        }
    }
    return NULL;
}

static void add(struct mp_doctor_case *c, const struct rule *rule, int weight, size_t line)
{
    mp_evidence_add(c, rule->cause, MP_EVIDENCE_FRAME, weight, line + 1, "%s", rule->reason);
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
        uint64_t done = 0;
        for (; p < bar && done < UINT64_C(1000000000000); p++) {
            done = done * 10 + (uint64_t)(*p - '0');
        }
        const char *const bytes = mp_doctor_find(bar, n - (size_t)(bar - begin), "mb/s");
        if (bytes == NULL && mp_doctor_find(begin, n, "loading") == NULL &&
            mp_doctor_find(begin, n, "download") == NULL &&
            mp_doctor_find(begin, n, "map") == NULL &&
            mp_doctor_find(begin, n, "example") == NULL) {
            *line = i;
            return done;
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

void mp_evidence_traceback(struct mp_doctor_case *c)
{
    const struct mp_doctor_text *const text = &c->text;
    /* a report without a message may still end in a traceback */
    const bool stated = c->message.format != MP_OOM_NONE && c->message.format != MP_OOM_OTHER;
    const size_t at = stated ? c->message.line : text->n_lines - 1;
    struct region r = region_before(text, MP_MIN(at + 1, text->n_lines));
    if (!r.traceback || !has_frames(text, r)) {
        const struct region after = region_after(text, at);
        const struct region anywhere = region_of_frames(text);
        if (after.traceback) {
            r = after;
        } else if (anywhere.traceback && !has_frames(text, r)) {
            r = anywhere;
        }
    }
    by_compiled_tensor(c, r);
    size_t line = 0;
    const struct rule *phase = innermost(text, r, phases, MP_ARRAY_LEN(phases), &line);
    if (phase != NULL) {
        add(c, phase, phase->weight, line);
    }
    const struct rule *rule = innermost(text, r, operations, MP_ARRAY_LEN(operations), &line);
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
        const bool pasted = !r.traceback && line != at && !has_frames(text, r);
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
