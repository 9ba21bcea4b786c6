/* SPDX-License-Identifier: MIT */
/* The rules: what figures, tracebacks, words and tables each say, and what they must not say. */
#include "doctor/causes.h"
#include "doctor/recording.h"

#include "suites.h"

struct diagnosis {
    struct mp_arena arena;
    struct mp_doctor_case *c;
    size_t n;
    struct mp_verdict verdicts[MP_CAUSES];
};

static void diagnose(struct diagnosis *d, const char *text)
{
    mp_arena_init(&d->arena);
    d->c = mp_arena_alloc(&d->arena, sizeof *d->c);
    ck_assert_ptr_nonnull(d->c);
    ck_assert(mp_doctor_case_init(d->c, &d->arena, text, strlen(text)));
    d->n = mp_doctor_rank(d->c, d->verdicts);
}

static int score_of(const struct diagnosis *d, enum mp_cause cause)
{
    int score = 0;
    for (size_t i = 0; i < d->c->n_evidence; i++) {
        score += d->c->evidence[i].cause == cause ? d->c->evidence[i].weight : 0;
    }
    return score;
}

#define OLD(total, allocated, free, reserved)                                                      \
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; " total                 \
    " total capacity; " allocated " already allocated; " free " free; " reserved                   \
    " reserved in total by PyTorch)"

static const struct {
    const char *name, *text;
    enum mp_cause first;
} rules[] = {
    {"two thirds of the card are somebody else's",
     OLD("11.78 GiB", "46.62 MiB", "12.38 MiB", "58.00 MiB"), MP_CAUSE_OTHER_PROCESS},
    {"a named process holds most of the card",
     "Tried to allocate 260.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 60.31 MiB is "
     "free. Process 9 has 71.97 GiB memory in "
     "use. Including non-PyTorch memory, this process has 7.05 GiB memory in use. Of the allocated "
     "memory 1.51 GiB is allocated by "
     "PyTorch, and 205.02 MiB is reserved by PyTorch but unallocated.",
     MP_CAUSE_OTHER_PROCESS},
    {"seven alike contexts",
     "Tried to allocate 572.00 MiB. GPU 0 has a total capacity of 39.49 GiB of which 21.31 MiB is "
     "free. Process 1 has 614.00 MiB memory in "
     "use. Process 2 has 614.00 MiB memory in use. Process 3 has 614.00 MiB memory in use. "
     "Including non-PyTorch memory, this process "
     "has 37.60 GiB memory in use. Of the allocated memory 36.04 GiB is allocated by PyTorch, and "
     "321.37 MiB is reserved by PyTorch but "
     "unallocated.",
     MP_CAUSE_CONTEXT},
    {"half of reserved is in pieces",
     "Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 23.69 GiB of which 100.00 MiB is "
     "free. Including non-PyTorch memory, this "
     "process has 23.50 GiB memory in use. Of the allocated memory 12.00 GiB is allocated by "
     "PyTorch, and 11.00 GiB is reserved by "
     "PyTorch but unallocated.",
     MP_CAUSE_FRAGMENTATION},
    {"the cap is reached",
     "Tried to allocate 50.00 MiB (GPU 0; 11.93 GiB total capacity; 4.56 GiB already allocated; "
     "6.90 GiB free; 4.77 GiB allowed; 4.74 GiB "
     "reserved in total by PyTorch)",
     MP_CAUSE_MEMORY_LIMIT},
    {"more than an exabyte", "CUDA out of memory. Tried to allocate more than 1EB memory.",
     MP_CAUSE_NOT_MEMORY},
    {"the host's allocator",
     "DefaultCPUAllocator: can't allocate memory: you tried to allocate 1178729664 bytes.",
     MP_CAUSE_HOST_MEMORY},
    {"pinning",
     "  File \"a.py\", line 217, in pin_memory\n    return tensor.pin_memory()\nRuntimeError: CUDA "
     "error: out of memory",
     MP_CAUSE_HOST_MEMORY},
    {"NCCL's allocation", "NCCL WARN Failed to CUDA calloc async 1920 bytes", MP_CAUSE_NCCL},
    {"NCCL in a container without shared memory",
     "transport/shm.cc:114 NCCL WARN Cuda failure 'out of memory'\nError: failed to extend "
     "/dev/shm/nccl-abc: no space left, shm too small",
     MP_CAUSE_HOST_MEMORY},
    {"the optimizer's first step",
     "Traceback (most recent call last):\n  File \"t.py\", line 3, in <module>\n    "
     "optimizer.step()\n  File \"/x/torch/optim/adamw.py\", line "
     "124, in _init_group\n    state[\"exp_avg_sq\"] = "
     "torch.zeros_like(p)\ntorch.OutOfMemoryError: CUDA out of memory.",
     MP_CAUSE_OPTIMIZER_STATE},
    {"the loss",
     "Traceback (most recent call last):\n  File \"/x/modeling_llama.py\", line 1100, in forward\n "
     "   logits = logits.float()\n"
     "torch.OutOfMemoryError: CUDA out of memory.",
     MP_CAUSE_LOGITS},
    {"attention",
     "Traceback (most recent call last):\n  File \"/x/modeling.py\", line 200, in forward\n    "
     "attn_weights = torch.matmul(q, k)\n"
     "RuntimeError: CUDA out of memory.",
     MP_CAUSE_ACTIVATIONS},
    {"moving the model",
     "Traceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n    "
     "model.to(device)\n  File \"/x/module.py\", line 797, in "
     "_apply\n    param_applied = fn(param)\ntorch.cuda.OutOfMemoryError: CUDA out of memory.",
     MP_CAUSE_MODEL_TOO_LARGE},
    {"saving a sharded model",
     "[rank7]: Traceback (most recent call last):\n[rank7]:   File "
     "\"/x/torch/distributed/fsdp/_state_dict_utils.py\", line 303, in "
     "_full_pre_state_dict_hook\n[rank7]: torch.OutOfMemoryError: CUDA out of memory.",
     MP_CAUSE_CHECKPOINT_IO},
    {"joining predictions",
     "Traceback (most recent call last):\n  File \"/x/trainer.py\", line 2515, in "
     "evaluation_loop\n    preds_host = nested_concat(preds_host, "
     "logits)\nRuntimeError: CUDA out of memory.",
     MP_CAUSE_EVALUATION},
    {"a leak in words",
     "CUDA out of memory after 3 epochs. The memory keeps growing with every iteration, I "
     "append(loss) to a list.",
     MP_CAUSE_LEAK},
    {"accumulation in words",
     "gradient accumulation steps 8 increases GPU memory until OOM, 1 works",
     MP_CAUSE_ACCUMULATION},
    {"a model named by its size",
     "vLLM serving of Llama-13B: Tried to allocate 136.00 MiB (GPU 0; 15.89 GiB total capacity; "
     "15.53 GiB already allocated; 84.12 MiB free; "
     "15.53 GiB reserved in total by PyTorch)",
     MP_CAUSE_MODEL_TOO_LARGE},
    {"one tensor larger than the card",
     "Tried to allocate 64.00 GiB (GPU 0; 7.93 GiB total capacity; 1.00 GiB already allocated; "
     "6.20 GiB free; 1.02 GiB reserved in total by "
     "PyTorch)",
     MP_CAUSE_ACTIVATIONS},
    {"nothing to go by", "RuntimeError: CUDA out of memory.", MP_CAUSE_UNKNOWN},
    {"full of its own tensors, without a traceback",
     OLD("11.17 GiB", "10.60 GiB", "0.50 MiB", "10.70 GiB"), MP_CAUSE_ACTIVATIONS},
    {"no out-of-memory text at all", "loss 0.31", MP_CAUSE_UNKNOWN},
    {"nothing but that it trains", "CUDA out of memory when I train it", MP_CAUSE_ACTIVATIONS},
    {"nothing but that it serves", "CUDA out of memory in inference", MP_CAUSE_ACTIVATIONS},
    {"a small request of a job that serves",
     "CUDA out of memory in inference. Tried to allocate 20.00 MiB (GPU 0; 6.00 GiB total "
     "capacity; 5.10 GiB already allocated; 0 bytes free; 5.12 GiB reserved in total by PyTorch)",
     MP_CAUSE_MODEL_TOO_LARGE},
    {"a large request of a job that serves",
     "CUDA out of memory in inference. Tried to allocate 1.20 GiB (GPU 0; 6.00 GiB total "
     "capacity; 4.60 GiB already allocated; 0 bytes free; 4.62 GiB reserved in total by PyTorch)",
     MP_CAUSE_ACTIVATIONS},
    {"one request as large as all weights",
     "I finetune a 7B model: CUDA out of memory. Tried to allocate 25.10 GiB (GPU 0; 79.15 GiB "
     "total capacity; 52.00 GiB already allocated; 20.00 GiB free; 52.60 GiB reserved in total by "
     "PyTorch)",
     MP_CAUSE_OPTIMIZER_STATE},
    {"pieces that would barely have been enough",
     "I train with batch_size=64. CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.76 GiB "
     "total capacity; 7.60 GiB already allocated; 0.10 GiB free; 9.60 GiB reserved in total by "
     "PyTorch)",
     MP_CAUSE_ACTIVATIONS},
    {"the size of a picture", "It fails with images of 1920x1080: CUDA out of memory.",
     MP_CAUSE_ACTIVATIONS},
    {"a driver's error before any step",
     "Traceback (most recent call last):\n  File \"t.py\", line 9, in <module>\n    "
     "x = torch.zeros(2).cuda()\nRuntimeError: CUDA error: out of memory",
     MP_CAUSE_OTHER_PROCESS},
    {"frames without a heading, behind the message",
     "RuntimeError: CUDA out of memory.\n  File \"t.py\", line 3, in main\n    "
     "trainer.fit(x)\n  File \"/x/torch/optim/adam.py\", line 90, in step\n    "
     "state['exp_avg'] = torch.zeros_like(p)\n",
     MP_CAUSE_OPTIMIZER_STATE},
    {"the runtime's own frames, innermost first",
     "RuntimeError: CUDA out of memory.\nframe #0: c10::Error::Error\nframe #1: "
     "at::native::log_softmax\nframe #2: conv2d\nframe #3: main\n",
     MP_CAUSE_LOGITS},
    {"the log's last line before the traceback",
     "Epoch 1: loss 0.2\nRunning Evaluation\nTraceback (most recent call last):\n  File "
     "\"t.py\", line 9, in <module>\n    main()\nRuntimeError: CUDA out of memory.",
     MP_CAUSE_EVALUATION},
    {"a replay buffer on the card",
     "The agent has a replay buffer. CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 10.76 "
     "GiB total capacity; 9.80 GiB already allocated; 1.00 MiB free; 9.90 GiB reserved in total by "
     "PyTorch)",
     MP_CAUSE_LEAK},
    {"full but for a context, on a small card", OLD("4.00 GiB", "2.88 GiB", "0.60 MiB", "2.95 GiB"),
     MP_CAUSE_ACTIVATIONS},
    {"Python's own error", "    x = np.empty(shape)\nMemoryError", MP_CAUSE_HOST_MEMORY},
    {"the launcher's word for a kill", "[ERROR] ['python', '-u'] exits with return code = -9",
     MP_CAUSE_HOST_MEMORY},
    {"a layer named in a constructor",
     "Traceback (most recent call last):\n  File \"/x/llama.py\", line 103, in __init__\n    "
     "self.attn = LlamaAttention(config)\ntorch.cuda.OutOfMemoryError: CUDA out of memory.",
     MP_CAUSE_MODEL_TOO_LARGE},
    {"the same layer in a step",
     "Traceback (most recent call last):\n  File \"/x/llama.py\", line 103, in forward\n    x = "
     "self.attention(x)\ntorch.cuda.OutOfMemoryError: CUDA out of memory.",
     MP_CAUSE_ACTIVATIONS},
    {"boxes and anchors",
     "Traceback (most recent call last):\n  File \"/x/assigner.py\", line 72, in assign\n    "
     "overlaps = bbox_overlaps(bboxes, gt_bboxes)\nRuntimeError: CUDA error: out of memory",
     MP_CAUSE_ACTIVATIONS},
    {"after an epoch, where validation starts",
     "CUDA out of memory after 1 epoch. When validation starts, it runs out of memory.",
     MP_CAUSE_EVALUATION},
    {"resumed, not too large", "CUDA out of memory when I load the model to resume training",
     MP_CAUSE_CHECKPOINT_IO},
    {"a late failure with long inputs",
     "CUDA out of memory after some steps. There are long sequences, max_length is 4096.",
     MP_CAUSE_ACTIVATIONS},
    {"a late failure", "CUDA out of memory after some steps.", MP_CAUSE_LEAK},
    {"a hint about fragmentation, nothing to defragment",
     "where do I set max_split_size_mb? " OLD("6.00 GiB", "5.18 GiB", "0 bytes", "5.29 GiB"),
     MP_CAUSE_ACTIVATIONS},
    {"DeepSpeed's flat pieces",
     "deepspeed, training of a 13B model: CUDA out of memory. Tried to allocate 12.94 GiB (GPU 1; "
     "79.35 GiB total capacity; 77.65 GiB already allocated; 316.12 MiB free; 77.66 GiB reserved "
     "in "
     "total by PyTorch)",
     MP_CAUSE_OPTIMIZER_STATE},
    {"full training on too few cards", "full fine-tuning of a 72B model on 4*A100 80G: OOM",
     MP_CAUSE_MODEL_TOO_LARGE},
};

START_TEST(a_rule_leads_to_its_cause)
{
    struct diagnosis d;
    diagnose(&d, rules[_i].text);
    ck_assert_msg(d.verdicts[0].cause == rules[_i].first, "%s: %s, not %s", rules[_i].name,
                  mp_cause_name(d.verdicts[0].cause), mp_cause_name(rules[_i].first));
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(confidences_are_shares)
{
    struct diagnosis d;
    diagnose(&d, rules[_i].text);
    double sum = 0;
    for (size_t i = 0; i < d.n; i++) {
        ck_assert_double_gt(d.verdicts[i].confidence, 0);
        ck_assert_ptr_nonnull(d.verdicts[i].evidence);
        sum += d.verdicts[i].confidence;
    }
    ck_assert_double_le(sum, 1 + 1e-9);
    for (size_t i = d.verdicts[0].cause == MP_CAUSE_UNKNOWN ? 2 : 1; i < d.n; i++) {
        ck_assert_int_ge(d.verdicts[i - 1].score, d.verdicts[i].score);
    }
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(fragmentation_is_excluded_when_all_pieces_together_are_too_small)
{
    struct diagnosis d;
    diagnose(&d, "Tried to allocate 9.33 GiB (GPU 0; 10.76 GiB total capacity; 5.17 GiB already "
                 "allocated; 1.48 GiB free; "
                 "8.28 GiB reserved in total by PyTorch)");
    ck_assert_int_lt(score_of(&d, MP_CAUSE_FRAGMENTATION), 0);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(the_hint_in_every_message_is_no_evidence)
{
    struct diagnosis d;
    diagnose(&d, "Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which "
                 "15.69 MiB is free. Including non-PyTorch "
                 "memory, this process has 23.57 GiB memory in use. Of the allocated memory 22.90 "
                 "GiB is allocated by PyTorch, and 10.35 MiB is "
                 "reserved by PyTorch but unallocated. If reserved but unallocated memory is large "
                 "try setting "
                 "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See "
                 "documentation for Memory Management  "
                 "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)");
    ck_assert_int_le(score_of(&d, MP_CAUSE_FRAGMENTATION), 0);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(settings_and_library_code_are_no_words_of_the_reporter)
{
    struct diagnosis d;
    diagnose(
        &d,
        "training arguments:\n  resume_from_checkpoint=None,\n  per_device_eval_batch_size=8,\n  "
        "pin_memory=True,\n"
        "  max_length: 512\n  \"gradient_accumulation_steps\": 4,\n--save_model True "
        "--validation_file x\n"
        "  File \"/usr/lib/python3.8/site-packages/torch/tensor.py\", line 245, in backward\n"
        "    torch.autograd.backward(self, gradient, retain_graph, create_graph, inputs=inputs)\n"
        "RuntimeError: CUDA out of memory.");
    ck_assert_int_eq(score_of(&d, MP_CAUSE_CHECKPOINT_IO), 0);
    ck_assert_int_eq(score_of(&d, MP_CAUSE_EVALUATION), 0);
    ck_assert_int_eq(score_of(&d, MP_CAUSE_HOST_MEMORY), 0);
    ck_assert_int_eq(score_of(&d, MP_CAUSE_ACCUMULATION), 0);
    ck_assert_int_eq(score_of(&d, MP_CAUSE_LEAK), 0);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(context_lines_of_boxed_tracebacks_are_passed_over)
{
    struct diagnosis d;
    diagnose(&d, "Traceback (most recent call last)\n"
                 "\xE2\x94\x82 /x/train.py:12 in step\n"
                 "\xE2\x94\x82   11 \xE2\x94\x82   optimizer.step()\n"
                 "\xE2\x94\x82 \xE2\x9D\xB1 12 \xE2\x94\x82   x = F.conv2d(x, w)\n"
                 "\xE2\x94\x82   13 \xE2\x94\x82   optimizer.step()\n"
                 "OutOfMemoryError: CUDA out of memory.");
    ck_assert_int_eq(score_of(&d, MP_CAUSE_OPTIMIZER_STATE), 0);
    ck_assert_int_gt(score_of(&d, MP_CAUSE_ACTIVATIONS), 0);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(what_is_merely_common_gives_way)
{
    struct diagnosis d;
    diagnose(&d, "CUDA out of memory when I train it");
    ck_assert_int_eq(score_of(&d, MP_CAUSE_ACTIVATIONS), 2);
    mp_evidence_drop_common(d.c);
    ck_assert_int_eq(score_of(&d, MP_CAUSE_ACTIVATIONS), 0);
    mp_arena_release(&d.arena);
}
END_TEST

/* A case from bytes, of which the request is the second line. */
static void check_unwrapped(const char *name, const char *bytes, size_t n)
{
    struct mp_arena arena;
    mp_arena_init(&arena);
    struct mp_doctor_case *const c = mp_arena_alloc(&arena, sizeof *c);
    ck_assert_ptr_nonnull(c);
    ck_assert(mp_doctor_case_init(c, &arena, bytes, n));
    ck_assert_msg(c->message.requested.known, "%s: no request is read", name);
    ck_assert_uint_eq(c->message.requested.bytes, 2 * MP_GIB);
    ck_assert_msg(c->message.line == 1, "%s: line %zu", name, (size_t)c->message.line);
    mp_arena_release(&arena);
}

START_TEST(utf_16_of_either_order_is_undone)
{
    static const char text[] = "log\nTried to allocate 2.00 GiB";
    const bool big = _i != 0;
    char wide[2 * sizeof text + 8];
    size_t n = 0;
    /* a byte order mark, a pair of surrogates */
    memcpy(wide, big ? "\xFE\xFF\xD8\x3D\xDE\x00" : "\xFF\xFE\x3D\xD8\x00\xDE", 6);
    n = 6;
    for (size_t i = 0; i + 1 < sizeof text; i++) {
        wide[n++] = big ? '\0' : text[i];
        wide[n++] = big ? text[i] : '\0';
    }
    wide[n++] = '\n'; /* half a unit */
    check_unwrapped(big ? "big-endian" : "little-endian", wide, n);
}
END_TEST

static const struct {
    const char *name, *text;
} wrapped[] = {
    {"a notebook", "{\"cells\": [{\"outputs\": [{\"traceback\": [\"x\\n\", "
                   "\"CUDA out of memory. Tried to allocate 2.00\\u00a0GiB\\n\"]}]}], "
                   "\"nbformat\": 4}"},
    {"a notebook that is cut in an escape", "{\"cells\": [\"a\\nTried to allocate 2.00 GiB\\u12"},
    {"a web page", "a &amp; b\nTried&nbsp;to allocate 2.00 GiB &gt; &lt; &no; &"},
};

START_TEST(wrappings_are_undone)
{
    check_unwrapped(wrapped[_i].name, wrapped[_i].text, strlen(wrapped[_i].text));
}
END_TEST

START_TEST(of_several_messages_the_first_complete_one_is_taken)
{
    struct diagnosis d;
    diagnose(&d, "CUDA out of memory. Tried to allocate 9.00 GiB\n" /* a title */
             OLD("23.70 GiB", "22.00 GiB", "1.54 MiB",
                 "22.47 GiB") "\n" OLD("11.17 GiB", "10.60 GiB", "0.50 MiB", "10.70 GiB") "\n");
    ck_assert_uint_eq(d.c->message.line, 1);
    ck_assert_uint_eq(d.c->message.n_found, 3);
    ck_assert_uint_eq(d.c->message.requested.bytes, 20 * MP_MIB);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(words_of_one_cause_are_capped)
{
    struct diagnosis d;
    diagnose(&d, "CUDA out of memory. memory leak, keeps increasing, grows every step, gradually, "
                 "slowly, after 3 epochs, "
                 "after a while, append(loss), loss += loss, retain_graph, more and more");
    ck_assert_int_le(score_of(&d, MP_CAUSE_LEAK), 7);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(a_summary_alone_is_read)
{
    struct diagnosis d;
    diagnose(&d, "|                  PyTorch CUDA memory summary, device ID 0                 |\n"
                 "|            CUDA OOMs: 1            |        cudaMalloc retries: 12        |\n"
                 "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n"
                 "| Allocated memory      |   1062 MiB |   4877 MiB |  89299 MiB |  88237 MiB |\n"
                 "|       from large pool |   1048 MiB |   4865 MiB |  89263 MiB |  88215 MiB |\n"
                 "| GPU reserved memory   |  12420 MiB |  12420 MiB |  16924 MiB |   4504 MiB |\n"
                 "| Non-releasable memory |   9000 MiB |   9000 MiB |  16924 MiB |   4504 MiB |\n");
    ck_assert_int_eq(d.c->message.format, MP_OOM_SUMMARY);
    ck_assert_uint_eq(d.c->message.reserved.bytes, 12420 * MP_MIB);
    ck_assert_uint_eq(d.c->summary.allocated_peak.bytes, 4877 * MP_MIB);
    ck_assert_uint_eq(d.c->summary.retries.bytes, 12);
    ck_assert_int_eq(d.verdicts[0].cause, MP_CAUSE_FRAGMENTATION);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(nvidia_smi_rows_are_read)
{
    struct diagnosis d;
    diagnose(&d,
             "| N/A   36C    P0    41W / 300W |  12799MiB / 16280MiB |      0%      Default |\n"
             "|    0   N/A  N/A   2695172      C   python                          11167MiB |\n"
             "|    0   N/A  N/A   2695173      C   python                            871MiB |\n"
             "|    0   N/A  N/A   2695174      C   python                            871MiB |\n");
    ck_assert_uint_eq(d.c->smi.n_gpus, 1);
    ck_assert_uint_eq(d.c->smi.gpus[0].used_bytes, 12799 * MP_MIB);
    ck_assert_uint_eq(d.c->smi.n_processes, 3);
    ck_assert_uint_eq(d.c->smi.n_small_on_gpu0, 2);
    ck_assert_int_gt(score_of(&d, MP_CAUSE_CONTEXT), 0);
    mp_arena_release(&d.arena);
}
END_TEST

/* ---- recordings ---- */

static struct mp_history_entry entry(int action, uint64_t address, uint64_t bytes)
{
    return (struct mp_history_entry){.address = address, .bytes = bytes, .action = (uint8_t)action};
}

/* Steps that allocate and free 16 tensors of 8 MiB each and keep `kept` bytes. */
static struct mp_doctor_recording record(size_t steps, uint64_t kept)
{
    static struct mp_history_entry entries[40000];
    size_t n = 0;
    for (size_t step = 0; step < steps; step++) {
        for (uint64_t i = 1; i <= 16; i++) {
            entries[n++] = entry(MP_ALLOCATOR_ALLOC, i, 8 * MP_MIB);
        }
        for (uint64_t i = 1; i <= 16; i++) {
            entries[n++] = entry(MP_ALLOCATOR_FREE_COMPLETED, i, 8 * MP_MIB);
        }
        if (kept > 0) {
            entries[n++] = entry(MP_ALLOCATOR_ALLOC, 1000 + step, kept);
        }
    }
    const struct mp_history history = {.entries = entries, .n_entries = n};
    struct mp_doctor_recording r;
    mp_doctor_recording_read(&r, &history);
    return r;
}

START_TEST(a_rising_floor_is_a_leak)
{
    struct diagnosis d;
    diagnose(&d, "");
    const struct mp_doctor_recording leak = record(400, MP_MIB);
    mp_evidence_recording(d.c, &leak);
    ck_assert_int_ge(score_of(&d, MP_CAUSE_LEAK), 5);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(an_even_floor_is_none)
{
    struct diagnosis d;
    diagnose(&d, "");
    const struct mp_doctor_recording even = record(400, 0);
    mp_evidence_recording(d.c, &even);
    ck_assert_int_lt(score_of(&d, MP_CAUSE_LEAK), 0);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(pieces_in_a_snapshot_are_fragmentation)
{
    static struct mp_history_block blocks[] = {
        {0, 300 * MP_MIB, 300 * MP_MIB, MP_HISTORY_INACTIVE},
        {1, 400 * MP_MIB, 400 * MP_MIB, MP_HISTORY_ACTIVE},
        {2, 300 * MP_MIB, 300 * MP_MIB, MP_HISTORY_INACTIVE}};
    static struct mp_history_segment segment = {
        .bytes = 1000 * MP_MIB, .first_block = 0, .n_blocks = 3};
    static struct mp_history_entry failure;
    failure = entry(MP_ALLOCATOR_OOM, 2 * MP_MIB, 500 * MP_MIB);
    const struct mp_history history = {.entries = &failure,
                                       .n_entries = 1,
                                       .has_segments = true,
                                       .segments = &segment,
                                       .n_segments = 1,
                                       .blocks = blocks,
                                       .n_blocks = 3};
    struct mp_doctor_recording r;
    struct diagnosis d;
    diagnose(&d, "");
    mp_doctor_recording_read(&r, &history);
    ck_assert_uint_eq(r.largest_free_bytes, 300 * MP_MIB);
    ck_assert_uint_eq(r.unallocated_bytes, 600 * MP_MIB);
    ck_assert_uint_eq(r.failed_bytes, 500 * MP_MIB);
    mp_evidence_recording(d.c, &r);
    ck_assert_int_ge(score_of(&d, MP_CAUSE_FRAGMENTATION), 5);
    mp_arena_release(&d.arena);
}
END_TEST

START_TEST(names_are_read_back)
{
    for (int i = 0; i < MP_CAUSES; i++) {
        const char *const name = mp_cause_name((enum mp_cause)i);
        ck_assert_int_eq(mp_cause_parse(name, strlen(name)), i);
    }
    ck_assert_int_eq(mp_cause_parse("nothing", 7), MP_CAUSES);
}
END_TEST

START_TEST(a_long_log_is_read_around_its_failure)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    for (int i = 0; i < 60000; i++) {
        mp_strbuf_addf(&sb, "step %d loss 0.1\n", i);
    }
    mp_strbuf_addstr(&sb, "memory keeps growing\nRuntimeError: CUDA out of memory. Tried to "
                          "allocate 20.00 MiB (GPU 0; 23.70 GiB total "
                          "capacity; 22.00 GiB already allocated; 1.54 MiB free; 22.47 GiB "
                          "reserved in total by PyTorch)\n");
    struct diagnosis d;
    diagnose(&d, sb.data);
    ck_assert_uint_eq(d.c->message.line, 60001);
    ck_assert_int_gt(score_of(&d, MP_CAUSE_LEAK), 0);
    mp_strbuf_release(&sb);
    mp_arena_release(&d.arena);
}
END_TEST

Suite *suite_doctor_causes(void)
{
    Suite *const suite = suite_create("doctor_causes");
    TCase *const tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, a_rule_leads_to_its_cause, 0, (int)MP_ARRAY_LEN(rules));
    tcase_add_loop_test(tcase, confidences_are_shares, 0, (int)MP_ARRAY_LEN(rules));
    tcase_add_test(tcase, fragmentation_is_excluded_when_all_pieces_together_are_too_small);
    tcase_add_test(tcase, the_hint_in_every_message_is_no_evidence);
    tcase_add_test(tcase, settings_and_library_code_are_no_words_of_the_reporter);
    tcase_add_test(tcase, context_lines_of_boxed_tracebacks_are_passed_over);
    tcase_add_test(tcase, what_is_merely_common_gives_way);
    tcase_add_loop_test(tcase, utf_16_of_either_order_is_undone, 0, 2);
    tcase_add_loop_test(tcase, wrappings_are_undone, 0, (int)MP_ARRAY_LEN(wrapped));
    tcase_add_test(tcase, of_several_messages_the_first_complete_one_is_taken);
    tcase_add_test(tcase, words_of_one_cause_are_capped);
    tcase_add_test(tcase, a_summary_alone_is_read);
    tcase_add_test(tcase, nvidia_smi_rows_are_read);
    tcase_add_test(tcase, a_rising_floor_is_a_leak);
    tcase_add_test(tcase, an_even_floor_is_none);
    tcase_add_test(tcase, pieces_in_a_snapshot_are_fragmentation);
    tcase_add_test(tcase, names_are_read_back);
    tcase_add_test(tcase, a_long_log_is_read_around_its_failure);
    suite_add_tcase(suite, tcase);
    return suite;
}
