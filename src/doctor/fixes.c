/* SPDX-License-Identifier: MIT */
/* A table of remedies; simulation measures and sifts them. */
#include "doctor/fixes.h"

#include "base/units.h"

/* Causes beyond this many, or far behind the first, get no remedies: a long list helps nobody. */
#define CAUSES_TREATED 3

static const struct {
    enum mp_cause cause;
    const char *what;
    const char *setting;
    const char *change;  /* of the run spec, for simulation; NULL: outside its reach */
    bool only_simulated; /* offered only when simulation shows that it helps */
} remedies[] = {
    {MP_CAUSE_OTHER_PROCESS, "see who is on the card, then end that process or take a free card",
     "nvidia-smi --query-compute-apps=gpu_uuid,pid,used_memory "
     "--format=csv\nCUDA_VISIBLE_DEVICES=N",
     NULL, false},
    {MP_CAUSE_OTHER_PROCESS, "processes that nvidia-smi does not list: what has the device open",
     "fuser -v /dev/nvidia*", NULL, false},

    {MP_CAUSE_CONTEXT,
     "bind each rank to its card before the first CUDA call, so that it opens no context elsewhere",
     "torch.cuda.set_device(local_rank)\n"
     "torch.distributed.init_process_group(\"nccl\", device_id=torch.device(\"cuda\", local_rank))",
     NULL, false},
    {MP_CAUSE_CONTEXT, "load checkpoints and pin memory without touching the first card",
     "torch.load(path, map_location=\"cpu\")", NULL, false},
    {MP_CAUSE_CONTEXT, "load kernels when they are first used", "CUDA_MODULE_LOADING=LAZY", NULL,
     false},

    {MP_CAUSE_NCCL, "leave room for the communicator: cap the allocator below the card",
     "torch.cuda.set_per_process_memory_fraction(0.95)", NULL, false},
    {MP_CAUSE_NCCL,
     "give the cache back before the first collective of a kind, which allocates its buffers",
     "torch.cuda.empty_cache()", NULL, false},
    {MP_CAUSE_NCCL, "switch NVLS buffers off, or use fewer channels",
     "NCCL_NVLS_ENABLE=0\nNCCL_MAX_NCHANNELS=8", NULL, false},

    {MP_CAUSE_ACCUMULATION,
     "run backward in every micro-batch, so that only gradients are kept between them",
     "(loss / accumulation_steps).backward()", NULL, false},
    {MP_CAUSE_ACCUMULATION, "drop outputs and loss of a micro-batch before the next begins",
     "del outputs, loss", "release_outputs=true", false},
    {MP_CAUSE_ACCUMULATION, "add up numbers, not graphs", "total += loss.item()",
     "retain_losses=false", false},
    {MP_CAUSE_ACCUMULATION, "let gradients go between steps",
     "optimizer.zero_grad(set_to_none=True)", "zero_grad=set_to_none", false},

    {MP_CAUSE_LEAK, "keep numbers, not tensors with their graphs",
     "total_loss += loss.item()\nlosses.append(loss.detach().cpu())", "retain_losses=false", false},
    {MP_CAUSE_LEAK, "free the graph after backward",
     "loss.backward()  # without retain_graph=True, create_graph=True", NULL, false},
    {MP_CAUSE_LEAK, "see which line holds what grows",
     "torch.cuda.memory._record_memory_history()\ntorch.cuda.memory._dump_snapshot(\"oom.pickle\")"
     "\n"
     "memplan diagnose --snapshot oom.pickle",
     NULL, false},

    {MP_CAUSE_ACTIVATIONS, "recompute activations in backward",
     "model.gradient_checkpointing_enable()", "checkpoint=full", false},
    {MP_CAUSE_ACTIVATIONS, "a smaller micro-batch; accumulate to keep the batch", "batch 1",
     "batch=1", false},
    {MP_CAUSE_ACTIVATIONS, "attention that does not store its matrix",
     "attn_implementation=\"sdpa\"", "attention=sdpa", false},
    {MP_CAUSE_ACTIVATIONS, "mixed precision", "torch.autocast(\"cuda\", dtype=torch.bfloat16)",
     "precision=amp-bf16", false},
    {MP_CAUSE_ACTIVATIONS, "drop outputs and loss before the next step begins", "del outputs, loss",
     "release_outputs=true", true},

    {MP_CAUSE_LOGITS, "compute the loss in pieces, or fused with the output layer",
     "TrainingArguments(use_liger_kernel=True)", NULL, false},
    {MP_CAUSE_LOGITS, "compute only the logits that are needed", "model(..., logits_to_keep=1)",
     NULL, false},
    {MP_CAUSE_LOGITS, "a smaller micro-batch: logits grow with batch x length x vocabulary",
     "batch 1", "batch=1", false},
    {MP_CAUSE_LOGITS, "drop outputs and loss before the next step begins", "del outputs, loss",
     "release_outputs=true", false},

    {MP_CAUSE_OPTIMIZER_STATE, "an update without temporary copies",
     "torch.optim.AdamW(params, fused=True)", "optimizer=adamw-fused", false},
    {MP_CAUSE_OPTIMIZER_STATE, "state in 8 bits", "TrainingArguments(optim=\"adamw_bnb_8bit\")",
     NULL, false},
    {MP_CAUSE_OPTIMIZER_STATE, "state of factored second moments", "torch.optim.Adafactor(params)",
     "optimizer=adafactor", false},
    {MP_CAUSE_OPTIMIZER_STATE, "shard the state over the ranks",
     "FSDP: torch.distributed.fsdp.fully_shard(model); DeepSpeed: \"zero_optimization\": "
     "{\"stage\": 2}",
     NULL, false},
    {MP_CAUSE_OPTIMIZER_STATE, "train adapters instead of all weights",
     "peft.get_peft_model(model, LoraConfig(r=16))", NULL, false},

    {MP_CAUSE_FRAGMENTATION,
     "segments that grow instead of pieces of fixed size (PyTorch 2.1 and later)",
     "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "allocator_conf=expandable_segments:True",
     false},
    {MP_CAUSE_FRAGMENTATION, "inputs padded to a few lengths, the longest first",
     "DataCollatorWithPadding(tokenizer, pad_to_multiple_of=128)", NULL, false},
    {MP_CAUSE_FRAGMENTATION, "keep large blocks whole",
     "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128", "allocator_conf=max_split_size_mb:128", true},
    {MP_CAUSE_FRAGMENTATION, "round sizes so that blocks fit again",
     "PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:8",
     "allocator_conf=roundup_power2_divisions:8", true},

    {MP_CAUSE_MODEL_TOO_LARGE, "weights of fewer bits",
     "AutoModelForCausalLM.from_pretrained(name, "
     "torch_dtype=torch.bfloat16)\nBitsAndBytesConfig(load_in_4bit=True)",
     "precision=bf16", false},
    {MP_CAUSE_MODEL_TOO_LARGE, "spread the weights over cards or into host memory",
     "from_pretrained(name, device_map=\"auto\")  # "
     "inference\ntorch.distributed.fsdp.fully_shard(model)  # training",
     NULL, false},
    {MP_CAUSE_MODEL_TOO_LARGE, "see what the job needs and which card or layout holds it",
     "memplan fit --run run.yaml", NULL, false},

    {MP_CAUSE_CHECKPOINT_IO, "read the checkpoint into host memory and drop it after loading",
     "checkpoint = torch.load(path, "
     "map_location=\"cpu\")\nmodel.load_state_dict(checkpoint[\"model\"])\ndel checkpoint",
     NULL, false},
    {MP_CAUSE_CHECKPOINT_IO, "save shards, or gather the whole state on the host of one rank only",
     "StateDictType.SHARDED_STATE_DICT\nFullStateDictConfig(offload_to_cpu=True, rank0_only=True)",
     NULL, false},

    {MP_CAUSE_EVALUATION, "evaluate without graphs", "with torch.inference_mode():", NULL, false},
    {MP_CAUSE_EVALUATION, "move predictions to the host, keep what the metric needs",
     "TrainingArguments(eval_accumulation_steps=1, per_device_eval_batch_size=1)\n"
     "Trainer(preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1))",
     NULL, false},

    {MP_CAUSE_MEMORY_LIMIT, "raise or remove the limit",
     "torch.cuda.set_per_process_memory_fraction(1.0)\n"
     "PYTORCH_CUDA_ALLOC_CONF without per_process_memory_fraction",
     NULL, false},
    {MP_CAUSE_MEMORY_LIMIT, "see which slice of the card this process was given", "nvidia-smi -L",
     NULL, false},

    {MP_CAUSE_HOST_MEMORY, "do not pin, or pin less",
     "DataLoader(..., pin_memory=False)\n\"offload_optimizer\": {\"pin_memory\": false}", NULL,
     false},
    {MP_CAUSE_HOST_MEMORY, "give the container and its workers more host memory",
     "docker run --shm-size=16g --ulimit memlock=-1", NULL, false},
    {MP_CAUSE_HOST_MEMORY,
     "Windows: a larger page file; WSL: more memory in %UserProfile%\\.wslconfig",
     "[wsl2]\nmemory=48GB\nswap=32GB", NULL, false},

    {MP_CAUSE_NOT_MEMORY, "find the call that really failed: lengths and indices of that batch",
     "CUDA_LAUNCH_BLOCKING=1", NULL, false},

    {MP_CAUSE_UNKNOWN, "record what the allocator does and ask again",
     "torch.cuda.memory._record_memory_history()\ntorch.cuda.memory._dump_snapshot(\"oom.pickle\")"
     "\n"
     "memplan diagnose --snapshot oom.pickle",
     NULL, false},
    {MP_CAUSE_UNKNOWN, "tell what the job is, so that every component can be predicted",
     "memplan diagnose message.txt --model NAME --gpu NAME --batch N --seq N", NULL, false},
};

static const char *gib(struct mp_doctor_case *c, uint64_t bytes)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_bytes_format(&sb, bytes);
    const char *const text = mp_arena_strdup(c->arena, mp_strbuf_text(&sb));
    mp_strbuf_release(&sb);
    return text != NULL ? text : "?";
}

void mp_evidence_prediction(struct mp_doctor_case *c, const struct mp_doctor_simulation *simulation)
{
    const struct mp_oom_message *const m = &c->message;
    if (simulation->job_known) {
        mp_evidence_drop_common(c);
    }
    if (simulation->job_known && m->allocated.known) {
        const uint64_t predicted = simulation->allocated_bytes, found = m->allocated.bytes;
        const uint64_t margin =
            predicted / 20 + 64 * MP_MIB; /* rounding of the text, and what a batch may differ */
        if (found > predicted + margin) {
            mp_evidence_add(c, MP_CAUSE_LEAK, MP_EVIDENCE_FIGURE,
                            found > predicted + predicted / 4 ? 7 : 4, m->line + 1,
                            "%s are allocated, the stated job peaks at %s: something is kept that "
                            "it does not need",
                            gib(c, found), gib(c, predicted));
        } else {
            mp_evidence_add(c, MP_CAUSE_LEAK, MP_EVIDENCE_FIGURE, -4, m->line + 1,
                            "%s allocated are no more than the stated job needs (%s)",
                            gib(c, found), gib(c, predicted));
        }
    }
    if (simulation->job_known && m->outside.known) {
        const uint64_t expected = MP_MAX(simulation->context_bytes, simulation->context_high_bytes),
                       found = m->outside.bytes;
        if (found > expected + 256 * MP_MIB) {
            const enum mp_cause cause =
                m->outside_is_everyone ? MP_CAUSE_OTHER_PROCESS : MP_CAUSE_CONTEXT;
            const uint64_t excess = found - expected,
                           capacity = m->capacity.known ? m->capacity.bytes : 16 * MP_GIB;
            const int weight = excess > capacity / 10 ? 6 : excess > capacity / 25 ? 4 : 2;
            mp_evidence_add(c, cause, MP_EVIDENCE_FIGURE, weight, m->line + 1,
                            "%s are outside the allocator; context and communication of the stated "
                            "job explain %s of them",
                            gib(c, found), gib(c, expected));
        } else {
            mp_evidence_add(c, MP_CAUSE_OTHER_PROCESS, MP_EVIDENCE_FIGURE,
                            m->outside_is_everyone ? -3 : 0, m->line + 1,
                            "%s outside the allocator are what the stated job takes there",
                            gib(c, found));
        }
    }
    for (size_t i = 0; simulation->job_known && !simulation->fits && i < simulation->n_components;
         i++) {
        const struct mp_doctor_component *const part = &simulation->components[i];
        const double share = simulation->allocated_bytes > 0
                                 ? (double)part->bytes / (double)simulation->allocated_bytes
                                 : 0;
        if (part->cause != MP_CAUSE_UNKNOWN && share >= 0.3) {
            mp_evidence_add(c, part->cause, MP_EVIDENCE_FIGURE, share >= 0.5 ? 4 : 3, 0,
                            "%s are %s, %.0f %% of what the stated job needs at its peak",
                            part->name, gib(c, part->bytes), 100 * share);
        }
    }
    if (simulation->job_known && !simulation->fits && m->allocated.known) {
        mp_evidence_add(c, MP_CAUSE_OTHER_PROCESS, MP_EVIDENCE_FIGURE, -3, m->line + 1,
                        "the stated job does not fit this card even alone");
    }
}

/* What the text itself tells: memory of others comes back when they leave. */
static void saves_by_text(const struct mp_doctor_case *c, struct mp_fix *fix)
{
    const struct mp_oom_message *const m = &c->message;
    const bool ending = fix->cause == MP_CAUSE_OTHER_PROCESS;
    const bool binding = fix->cause == MP_CAUSE_CONTEXT && m->n_processes > 1 &&
                         strstr(fix->setting, "set_device") != NULL;
    if ((ending || binding) && m->n_processes > 0) {
        fix->saves_known = true;
        fix->saves_bytes = mp_oom_message_others(m);
    }
}

/* Ask the simulation; false: it is no better, or cannot be told and must be. */
static bool simulate(const struct mp_doctor_simulation *simulation, const char *change,
                     bool only_simulated, uint64_t baseline_bytes, struct mp_fix *fix)
{
    uint64_t reserved_bytes = 0;
    bool fits = false;
    if (simulation == NULL || simulation->fit == NULL || change == NULL || baseline_bytes == 0 ||
        !simulation->fit(simulation->context, change, &reserved_bytes, &fits)) {
        return !only_simulated;
    }
    if (reserved_bytes >= baseline_bytes) {
        return false;
    }
    fix->simulated = true;
    fix->fits = fits;
    fix->saves_known = true;
    fix->saves_bytes = baseline_bytes - reserved_bytes;
    return true;
}

static bool is_listed(const struct mp_fix *fixes, size_t n, const char *setting)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(fixes[i].setting, setting) == 0) {
            return true;
        }
    }
    return false;
}

/* Simulated remedies of a cause stand in the order of what they save. */
static void sort_by_savings(struct mp_fix *fixes, size_t begin, size_t end)
{
    for (size_t i = begin + 1; i < end; i++) {
        const struct mp_fix moved = fixes[i];
        size_t at = i;
        while (at > begin && moved.simulated &&
               (!fixes[at - 1].simulated || fixes[at - 1].saves_bytes < moved.saves_bytes)) {
            fixes[at] = fixes[at - 1];
            at--;
        }
        fixes[at] = moved;
    }
}

size_t mp_doctor_fixes(const struct mp_doctor_case *c, const struct mp_verdict *verdicts,
                       size_t n_verdicts, const struct mp_doctor_simulation *simulation,
                       struct mp_fix *fixes)
{
    uint64_t baseline_bytes = 0;
    bool baseline_fits = false;
    if (simulation != NULL && simulation->fit != NULL &&
        !simulation->fit(simulation->context, NULL, &baseline_bytes, &baseline_fits)) {
        baseline_bytes = 0;
    }
    size_t n = 0;
    for (size_t v = 0; v < n_verdicts && v < CAUSES_TREATED; v++) {
        const size_t begin = n;
        if (v > 0 && verdicts[v].score * 3 < verdicts[0].score) {
            break;
        }
        for (size_t i = 0; i < MP_ARRAY_LEN(remedies) && n < MP_FIXES_MAX; i++) {
            if (remedies[i].cause != verdicts[v].cause ||
                is_listed(fixes, n, remedies[i].setting)) {
                continue;
            }
            struct mp_fix fix = {.cause = remedies[i].cause,
                                 .what = remedies[i].what,
                                 .setting = remedies[i].setting};
            saves_by_text(c, &fix);
            if (simulate(simulation, remedies[i].change, remedies[i].only_simulated, baseline_bytes,
                         &fix)) {
                fixes[n++] = fix;
            }
        }
        sort_by_savings(fixes, begin, n);
    }
    return n;
}
