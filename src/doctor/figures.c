/* SPDX-License-Identifier: MIT */
/*
 * What the figures alone say. T total, F free, R reserved by the failing allocator, Y allocated, U
 * reserved but unallocated, a the request (PyTorch prints the segment it asked the driver for).
 * cudaMalloc fails when F < a, so the question is who has the rest: T = F + R + own memory outside
 * the allocator + other processes.
 */
#include "doctor/evidence.h"

#include "base/units.h"

/* "1.94 GiB" in a buffer of the arena. */
static const char *gib(struct mp_doctor_case *c, uint64_t bytes)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_bytes_format(&sb, bytes);
    const char *const text = mp_arena_strdup(c->arena, mp_strbuf_text(&sb));
    mp_strbuf_release(&sb);
    return text != NULL ? text : "?";
}

static double frac(uint64_t part, uint64_t whole)
{
    return whole > 0 ? (double)part / (double)whole : 0;
}

static size_t message_line(const struct mp_doctor_case *c)
{
    return c->message.line + 1;
}

#define COMMON_CARD  80e9 /* bytes */
#define DESKTOP_PART 12   /* of a card: half a GiB of 6 */

#define FIGURE(c, cause, weight, ...)                                                              \
    mp_evidence_add(c, MP_CAUSE_##cause, MP_EVIDENCE_FIGURE, weight, message_line(c), __VA_ARGS__)

/* The failing line builds, loads or moves the model: nothing of a step is on the card yet. */
static bool is_early(const struct mp_doctor_case *c)
{
    for (size_t i = 0; i < c->n_evidence; i++) {
        const struct mp_evidence *const e = &c->evidence[i];
        if (e->kind == MP_EVIDENCE_FRAME && e->cause == MP_CAUSE_MODEL_TOO_LARGE) {
            return true;
        }
    }
    return false;
}

/* Kinds of text that name the cause, or leave few. */
static void by_format(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    switch (m->format) {
    case MP_OOM_OVER_1EB:
        /* checked before the allocator runs: only a wrong size computation asks for 2^60 bytes */
        FIGURE(c, NOT_MEMORY, 10,
               "a request of more than 1 EB is a size computed wrongly, or a corrupt input");
        break;
    case MP_OOM_HOST:
        FIGURE(c, HOST_MEMORY, 10, "the text comes from a host allocator, not from the GPU's");
        break;
    case MP_OOM_NCCL:
        if (mp_doctor_find(c->text.plain, c->text.plain_len, "transport/shm") != NULL ||
            mp_doctor_find(c->text.plain, c->text.plain_len, "/dev/shm") != NULL) {
            /* the same words from its shared-memory transport mean the host */
            FIGURE(c, HOST_MEMORY, 8, "NCCL failed in shared host memory: /dev/shm is too small");
            FIGURE(c, NCCL, 3, "NCCL's own allocation failed");
            break;
        }
        /* a few bytes are the last drop: who filled the card is another question */
        FIGURE(c, NCCL, m->requested.known && m->requested.bytes < MP_MIB ? 5 : 7,
               "NCCL's own allocation failed: it takes memory from the driver, outside PyTorch's "
               "allocator");
        break;
    case MP_OOM_CUBLAS:
        /* cublasCreate asks the driver for a few MiB: it fails when the allocator holds the whole
         * card */
        FIGURE(c, ACTIVATIONS, 2,
               "a library handle found no driver memory: the allocator had taken it all");
        FIGURE(c, CONTEXT, 1, "a library handle is memory outside the allocator");
        FIGURE(c, NOT_MEMORY, 2,
               "cublasCreate also fails after an earlier error, such as an index out of range");
        break;
    case MP_OOM_CUDA_ERROR:
        /* raised by the runtime or driver, not by the allocator: context creation, pinned memory, a
         * full card */
        FIGURE(c, OTHER_PROCESS, 2, "a driver call, not the allocator, ran out of memory");
        if (is_early(c)) {
            FIGURE(c, OTHER_PROCESS, 4,
                   "it failed before any step: the card was full when the program began");
        }
        FIGURE(c, HOST_MEMORY, 1, "pinning host memory reports the same error");
        break;
    default: break;
    }
}

/* More was free than was asked, beyond what the driver keeps back. */
static bool had_room(const struct mp_oom_message *m)
{
    return m->free.known && m->requested.known &&
           m->free.bytes > m->requested.bytes + m->requested.bytes / 8 + 16 * MP_MIB;
}

/* The cause that the failing line names, MP_CAUSE_UNKNOWN when it names none or just some step. */
static enum mp_cause cause_of_frame(const struct mp_doctor_case *c)
{
    for (size_t i = 0; i < c->n_evidence; i++) {
        const struct mp_evidence *const e = &c->evidence[i];
        if (e->kind == MP_EVIDENCE_FRAME && e->weight >= 4 && e->cause != MP_CAUSE_ACTIVATIONS &&
            e->cause != MP_CAUSE_LEAK) {
            return e->cause;
        }
    }
    return MP_CAUSE_UNKNOWN;
}

/* A cap: set_per_process_memory_fraction, or a slice that is smaller than the card. */
static void by_limit(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    if (!m->requested.known) {
        return;
    }
    const uint64_t a = m->requested.bytes;
    if (m->allowed.known && m->reserved.known && m->reserved.bytes + a > m->allowed.bytes) {
        const bool room = !m->free.known || m->free.bytes >= a;
        FIGURE(c, MEMORY_LIMIT, room ? 10 : 5,
               "reserved %s plus the request %s exceed the %s allowed", gib(c, m->reserved.bytes),
               gib(c, a), gib(c, m->allowed.bytes));
        return;
    }
    if (m->capacity.known && had_room(m)) {
        /* Linux: a limiter below the driver's figures, or somebody gave memory back meanwhile.
         * Windows: commit limit of the host. */
        if (m->windows || m->hip) {
            FIGURE(c, HOST_MEMORY, m->windows ? 4 : 3,
                   "%s were free, more than the request of %s: on Windows and on GPUs that "
                   "share the host's memory the host's limits count",
                   gib(c, m->free.bytes), gib(c, a));
            FIGURE(c, MEMORY_LIMIT, 3, "%s were free, more than the request of %s",
                   gib(c, m->free.bytes), gib(c, a));
        } else {
            FIGURE(c, MEMORY_LIMIT, 4,
                   "%s were free, more than the request of %s: something limits this process below "
                   "the card",
                   gib(c, m->free.bytes), gib(c, a));
            FIGURE(c, OTHER_PROCESS, 2,
                   "%s were free when the text was written: memory may have come back in between",
                   gib(c, m->free.bytes));
        }
    }
}

/* What a context with its kernels may take on a card of this size: reported 0.2 to 1.6 GiB
 * (docs/memory-model.md), older ones most. */
static uint64_t context_allowance(const struct mp_oom_message *m)
{
    /* before 2.1 no kernel was loaded lazily: 0.6 to 1.6 GiB; the desktop of Windows takes a share,
     * too */
    const bool eager = m->format == MP_OOM_TORCH_1_0 || m->format == MP_OOM_TORCH_1_5 ||
                       m->format == MP_OOM_TORCH_1_10;
    const uint64_t least = m->windows || eager ? 1126 * MP_MIB : 614 * MP_MIB;
    return MP_MIN(2 * MP_GIB, MP_MAX(least, m->capacity.bytes / 14));
}

/* Older texts, or no process of its own named: everything that is neither free nor reserved here.
 */
static void by_rest(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    if (!m->outside_is_everyone || !m->outside.known || !m->capacity.known) {
        return;
    }
    const uint64_t total = m->capacity.bytes, allowance = context_allowance(m);
    if (m->outside.bytes <= allowance) {
        if (m->outside.bytes > 0 && m->requested.known && frac(m->outside.bytes, total) > 0.02) {
            FIGURE(c, OTHER_PROCESS, -3,
                   "%s outside the allocator is what a context takes: nobody else is on the card",
                   gib(c, m->outside.bytes));
        }
        return;
    }
    const uint64_t excess = m->outside.bytes - allowance;
    const double share = frac(excess, total);
    int weight = share >= 0.5 ? 9 : share >= 0.25 ? 7 : share >= 0.1 ? 5 : 1;
    if (excess < MP_GIB) {
        weight = MP_MIN(weight, 1); /* on a small card a desktop, or more libraries than usual */
    }
    if (had_room(m)) {
        weight = MP_MIN(weight, 1); /* whatever others hold, enough was left */
    }
    const bool bounded =
        m->windows && m->free.known && m->free.bytes == 0; /* WDDM reports no free memory */
    if (bounded) {
        weight = weight > 4 ? 4 : weight;
        FIGURE(
            c, HOST_MEMORY, 1,
            "0 bytes free although only %s are reserved here: Windows and WSL limit by other means",
            gib(c, m->reserved.bytes));
    }
    if (c->distributed && excess < 8 * MP_GIB && share < 0.2) {
        FIGURE(c, NCCL, 3, "%s are outside the allocator in a job of several processes",
               gib(c, m->outside.bytes));
        FIGURE(c, CONTEXT, 2,
               "%s are outside the allocator: contexts of other ranks on this card count",
               gib(c, m->outside.bytes));
        weight = MP_MIN(weight, 2);
    }
    FIGURE(c, OTHER_PROCESS, weight,
           "%s of %s are neither free nor reserved here; a context takes at most about %s of them",
           gib(c, m->outside.bytes), gib(c, total), gib(c, allowance));
}

/* Newer texts name the processes. */
static void by_processes(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    const uint64_t others = mp_oom_message_others(m);
    if (m->n_processes == 0 || !m->capacity.known) {
        return;
    }
    const uint64_t total = m->capacity.bytes;
    uint64_t least = UINT64_MAX, most = 0;
    for (size_t i = 0; i < m->n_processes; i++) {
        least = MP_MIN(least, m->processes[i].bytes);
        most = MP_MAX(most, m->processes[i].bytes);
    }
    const bool needed = m->requested.known && m->free.known && m->requested.bytes > m->free.bytes;
    const bool enough = needed && m->requested.bytes - m->free.bytes <= others;
    const bool alike = m->n_processes >= 2 && most <= least + least / 2;
    if (alike && least >= 150 * MP_MIB && most <= 2560 * MP_MIB) {
        /* the same few hundred MiB several times: ranks that opened a context on a card that is not
         * theirs */
        FIGURE(c, CONTEXT, enough ? 7 : 4,
               "%zu other processes hold about %s each: bare contexts on this card", m->n_processes,
               gib(c, most));
        FIGURE(c, OTHER_PROCESS, enough ? 3 : 1, "other processes hold %s", gib(c, others));
        return;
    }
    const double share = frac(others, total);
    int weight = share >= 0.5 ? 9 : share >= 0.2 ? 7 : share >= 0.08 ? 5 : share >= 0.03 ? 3 : 1;
    if (needed && !enough) {
        weight = MP_MIN(weight, 3); /* alone on the card it would have failed as well */
    }
    FIGURE(c, OTHER_PROCESS, weight, "%zu other process%s hold%s %s of the card's %s%s",
           m->n_processes, m->n_processes == 1 ? "" : "es", m->n_processes == 1 ? "s" : "",
           gib(c, others), gib(c, total),
           enough ? "; without them the request would have fitted" : "");
}

/* This process, outside its allocator: context, libraries, NCCL. */
static void by_own_context(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    if (!m->outside.known || m->outside_is_everyone || !m->capacity.known) {
        return;
    }
    const uint64_t bytes = m->outside.bytes;
    if (bytes > 2 * MP_GIB) {
        if (c->distributed) {
            FIGURE(c, NCCL, bytes > 4 * MP_GIB ? 5 : 4,
                   "%s of this process are outside the allocator: context and NCCL", gib(c, bytes));
        } else {
            /* it is what is missing only if the request would have fitted without it */
            const bool short_of = m->requested.known && m->free.known &&
                                  m->requested.bytes > m->free.bytes &&
                                  m->requested.bytes - m->free.bytes > bytes;
            FIGURE(
                c, CONTEXT, short_of ? 1 : 4,
                "%s of this process are outside the allocator: context, libraries, other runtimes",
                gib(c, bytes));
        }
    } else if (bytes > MP_GIB && c->distributed) {
        FIGURE(c, NCCL, 1, "%s of this process are outside the allocator", gib(c, bytes));
    } else if (m->reserved.known && bytes > m->reserved.bytes &&
               frac(bytes, m->capacity.bytes) > 0.05) {
        FIGURE(c, CONTEXT, 2, "%s outside the allocator is more than the allocator holds",
               gib(c, bytes));
    }
    /* T = F + this process + named others + what no process is named for (another container, the
     * display) */
    uint64_t sum = mp_oom_message_others(m);
    if (m->this_process.known && m->free.known && mp_add_u64(sum, m->this_process.bytes, &sum) &&
        mp_add_u64(sum, m->free.bytes, &sum) && sum < m->capacity.bytes) {
        const uint64_t unnamed = m->capacity.bytes - sum;
        if (unnamed > MP_GIB && frac(unnamed, m->capacity.bytes) > 0.04) {
            FIGURE(c, OTHER_PROCESS, frac(unnamed, m->capacity.bytes) > 0.25 ? 7 : 4,
                   "%s are in use that belong to no process named: another container, or a process "
                   "that has just ended",
                   gib(c, unnamed));
        }
    }
}

/* The article's 20 % rule, and the question that decides: would the request have fitted without
 * fragmentation? */
static void by_fragmentation(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    if (!m->unallocated.known || !m->reserved.known || !m->requested.known ||
        m->reserved.bytes == 0) {
        return;
    }
    const uint64_t u = m->unallocated.bytes, a = m->requested.bytes;
    const uint64_t room = u + (m->free.known ? m->free.bytes : 0);
    const double share = frac(u, m->reserved.bytes);
    if (room < a) {
        FIGURE(c, FRAGMENTATION, -4,
               "%s reserved but unallocated and what is free are less than the request: "
               "no defragmentation would have helped",
               gib(c, u));
        return;
    }
    /* a margin that a few small allocations would eat is no remedy */
    if (u < 64 * MP_MIB || share < 0.05) {
        FIGURE(c, FRAGMENTATION, -3,
               "only %s reserved but unallocated: there is little to defragment", gib(c, u));
        return;
    }
    /* of the reports in which room was left, few had a shortage that defragmentation cured */
    int weight = share >= 0.35 ? 4 : share >= 0.2 ? 3 : share >= 0.1 ? 1 : 0;
    if (share >= 0.2 && u / 2 >= a) {
        weight += 2; /* the pieces hold the request twice over: arithmetic leaves little else */
    }
    if (room < a + a / 2) {
        weight = MP_MAX(weight - 2, 0); /* it would barely have been enough */
    }
    if (m->capacity.known && frac(u, m->capacity.bytes) < 0.02) {
        weight = 0; /* two per cent of the card are not what is missing */
    }
    FIGURE(c, FRAGMENTATION, weight,
           "%s (%.0f %% of reserved) lie in pieces; together with free memory they exceed the "
           "request of %s",
           gib(c, u), 100 * share, gib(c, a));
}

/* The request is what all parameters take in half or single precision; names of models round their
 * size. */
static bool is_all_weights(const struct mp_doctor_case *c)
{
    const double ratio = (double)c->message.requested.bytes / (c->n_params_1e9 * 1e9);
    return c->n_params_1e9 >= 1 && ((ratio > 1.9 && ratio < 2.3) || (ratio > 3.8 && ratio < 4.6));
}

/* One request that is large against the card: a single tensor of a step, not a sum of many. */
static void by_request(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    if (m->requested.known && !m->capacity.known && m->requested.bytes > 96 * MP_GIB &&
        (m->format == MP_OOM_TORCH_SHORT || m->format == MP_OOM_TORCH_2_2)) {
        /* without a capacity: 96 GiB is more than all but the largest cards have, 288 GiB more than
         * any */
        FIGURE(c, ACTIVATIONS, m->requested.bytes > 288 * MP_GIB ? 6 : 4,
               "a single tensor of %s is larger than most cards: input, batch or sequence is too "
               "large",
               gib(c, m->requested.bytes));
        return;
    }
    if (m->requested.known && !m->capacity.known && m->requested.bytes >= MP_GIB &&
        m->format != MP_OOM_HOST && m->format != MP_OOM_OVER_1EB && !c->flat_buffers) {
        FIGURE(c, ACTIVATIONS, 2, "a single tensor of %s is seldom a layer's weights",
               gib(c, m->requested.bytes));
        return;
    }
    if (!m->requested.known || !m->capacity.known || m->allowed.known || had_room(m)) {
        return;
    }
    const double share = frac(m->requested.bytes, m->capacity.bytes);
    const enum mp_cause frame = cause_of_frame(c);
    if (frame == MP_CAUSE_EVALUATION && !c->training && share >= 0.2) {
        FIGURE(c, ACTIVATIONS, share >= 1 ? 6 : 3, "a single tensor of %s is %.0f %% of the card",
               gib(c, m->requested.bytes), 100 * share);
        return; /* a program that does nothing but test */
    }
    if (frame != MP_CAUSE_UNKNOWN && frame != MP_CAUSE_LOGITS) {
        return; /* the failing line says what that tensor is */
    }
    const enum mp_cause cause = frame == MP_CAUSE_LOGITS ? MP_CAUSE_LOGITS : MP_CAUSE_ACTIVATIONS;
    const size_t line = message_line(c);
    if (share >= 1 && m->reserved.known && m->reserved.bytes == 0) {
        /* the very first allocation: no step has run */
        FIGURE(c, ACTIVATIONS, 3, "a single tensor of %s exceeds the whole card",
               gib(c, m->requested.bytes));
        FIGURE(c, MEMORY_LIMIT, 2, "the process sees a card of %s and holds nothing yet",
               gib(c, m->capacity.bytes));
    } else if (c->training && frame == MP_CAUSE_UNKNOWN && is_all_weights(c)) {
        FIGURE(
            c, OPTIMIZER_STATE, 5,
            "a single tensor of %s is as large as all weights: gradients or optimizer state in one "
            "buffer",
            gib(c, m->requested.bytes));
    } else if (c->flat_buffers && frame == MP_CAUSE_UNKNOWN && c->n_params_1e9 > 0 &&
               (double)m->requested.bytes >= c->n_params_1e9 * 1e9 * 2 / 4) {
        FIGURE(c, OPTIMIZER_STATE, 5,
               "a single tensor of %s, a quarter of the weights or more: DeepSpeed keeps gradients "
               "and optimizer state in such pieces",
               gib(c, m->requested.bytes));
    } else if (share >= 1) {
        mp_evidence_add(
            c, cause, MP_EVIDENCE_FIGURE, 6, line,
            "a single tensor of %s exceeds the whole card: input, batch or sequence is too large",
            gib(c, m->requested.bytes));
    } else if (share >= 0.05) {
        mp_evidence_add(c, cause, MP_EVIDENCE_FIGURE,
                        share >= 0.2   ? 4
                        : share >= 0.1 ? 3
                                       : 2,
                        line, "a single tensor of %s is %.0f %% of the card",
                        gib(c, m->requested.bytes), 100 * share);
    }
}

/* The share of the card that the job's tensors fill. What a context takes was never to be had, nor
 * was a desktop's share of a small card. */
static double share_allocated(const struct mp_oom_message *m)
{
    const double share = frac(m->allocated.bytes, m->capacity.bytes);
    if (!m->outside.known || m->outside.bytes >= m->capacity.bytes || m->n_processes > 0 ||
        had_room(m) || m->outside.bytes > context_allowance(m) + m->capacity.bytes / DESKTOP_PART) {
        return share;
    }
    const double left = frac(m->allocated.bytes, m->capacity.bytes - m->outside.bytes);
    return left > 0.85 ? left : share;
}

#define FILLS "the job's own tensors fill %.0f %% of what was to be had of the card"

struct parts {
    int activations, weights; /* points */
    const char *reason;
};

/* A job that does not train holds weights, which come in many pieces, and one large tensor at a
 * time: the size of the request tells which it was. */
static struct parts parts_without_training(const struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    const double share = m->requested.known ? frac(m->requested.bytes, m->capacity.bytes) : -1;
    if (share < 0 || !(c->inference || c->pictures)) {
        return (struct parts){c->inference ? 1 : 2,
                              c->inference || (share >= 0 && share < 0.01) ? 2 : 1, ""};
    }
    return share < 0.01   ? (struct parts){2, 4, ", and the request was small: a piece of weights"}
           : share < 0.03 ? (struct parts){2, 2, ""}
                          : (struct parts){3, 1, ""};
}

/* The job's own tensors fill the card: which, only the traceback and the words can tell. */
static void by_allocated(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    if (!m->allocated.known || !m->capacity.known) {
        return;
    }
    const double share = share_allocated(m);
    const enum mp_cause frame = cause_of_frame(c);
    if (share >= 0.75 && frame != MP_CAUSE_UNKNOWN && frame != MP_CAUSE_OTHER_PROCESS) {
        mp_evidence_add(c, frame, MP_EVIDENCE_FIGURE, 1, message_line(c), FILLS, 100 * share);
        FIGURE(c, OTHER_PROCESS, -2, FILLS, 100 * share);
        return;
    }
    if (share > 1.02) {
        FIGURE(c, ACTIVATIONS, c->training ? 3 : 1,
               "allocated exceeds the card: Windows lends system memory, slowly");
        FIGURE(c, MODEL_TOO_LARGE, 1, "allocated %s exceed the card's %s",
               gib(c, m->allocated.bytes), gib(c, m->capacity.bytes));
    } else if (share >= 0.75) {
        const struct parts p = parts_without_training(c);
        FIGURE(c, ACTIVATIONS, c->training ? 3 : p.activations, FILLS, 100 * share);
        FIGURE(c, MODEL_TOO_LARGE, c->training ? 1 : p.weights, FILLS "%s", 100 * share, p.reason);
        FIGURE(c, OTHER_PROCESS, -2, FILLS, 100 * share);
    } else if (m->reserved.known && frac(m->reserved.bytes, m->capacity.bytes) >= 0.75) {
        FIGURE(c, OTHER_PROCESS, -1, "the job's own allocator holds %s", gib(c, m->reserved.bytes));
        if (frame == MP_CAUSE_UNKNOWN &&
            frac(m->reserved.bytes - MP_MIN(m->allocated.bytes, m->reserved.bytes),
                 m->reserved.bytes) < 0.2) {
            FIGURE(c, ACTIVATIONS, 2, "the job's own allocator holds %s of the card's %s",
                   gib(c, m->reserved.bytes), gib(c, m->capacity.bytes));
        }
    }
}

/* The weights alone: 2 bytes each in half precision; training with Adam 16 (weights, gradients, two
 * moments in fp32 or mixed). */
static void by_model_size(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    const double total = m->capacity.known ? (double)m->capacity.bytes : c->nominal_gb * 1e9;
    if (c->n_params_1e9 > 0 && total <= 0 &&
        c->n_params_1e9 * 1e9 * c->bytes_per_weight > COMMON_CARD) {
        FIGURE(c, MODEL_TOO_LARGE, 2,
               "%.3g billion parameters of %g bytes do not fit any one of the common cards",
               c->n_params_1e9, c->bytes_per_weight);
    }
    if (c->n_params_1e9 <= 0 || total <= 0) {
        return;
    }
    const double weights = c->n_params_1e9 * 1e9 * c->bytes_per_weight,
                 adam = c->n_params_1e9 * 16e9;
    const bool sharded = c->distributed && !c->single_card;
    if (c->training && c->n_cards > 1 && c->full && adam > 0.85 * total * c->n_cards) {
        FIGURE(
            c, MODEL_TOO_LARGE, 4,
            "%.3g billion parameters take %.0f GB with gradients and Adam's state, %u cards have "
            "%.0f GB",
            c->n_params_1e9, adam / 1e9, c->n_cards, total * c->n_cards / 1e9);
        FIGURE(c, OPTIMIZER_STATE, 3, "Adam's state for %.3g billion parameters is %.0f GB in fp32",
               c->n_params_1e9, c->n_params_1e9 * 8);
    } else if (weights >= 0.85 * total) {
        FIGURE(c, MODEL_TOO_LARGE, sharded ? 2 : 4,
               "%.3g billion parameters of %g bytes take %.0f GB, the card has %.0f GB",
               c->n_params_1e9, c->bytes_per_weight, weights / 1e9, total / 1e9);
    } else if (c->training && !c->adapters && adam > total) {
        FIGURE(c, MODEL_TOO_LARGE, sharded ? 1 : 3,
               "%.3g billion parameters take %.0f GB with gradients and Adam's state",
               c->n_params_1e9, adam / 1e9);
        FIGURE(c, OPTIMIZER_STATE, sharded ? 1 : 3,
               "Adam's state for %.3g billion parameters is %.0f GB in fp32", c->n_params_1e9,
               c->n_params_1e9 * 8);
    }
}

static void by_summary(struct mp_doctor_case *c)
{
    const struct mp_doctor_summary *const s = &c->summary;
    if (!s->found || !s->allocated.known || !s->reserved.known || s->reserved.bytes == 0) {
        return;
    }
    const size_t line = s->line + 1;
    if ((!c->message.unallocated.known || c->message.format == MP_OOM_SUMMARY) &&
        s->reserved.bytes > s->allocated.bytes) {
        const uint64_t u = s->reserved.bytes - s->allocated.bytes;
        const double share = frac(u, s->reserved.bytes);
        if (share >= 0.2 && u >= 64 * MP_MIB) {
            mp_evidence_add(c, MP_CAUSE_FRAGMENTATION, MP_EVIDENCE_FIGURE, share >= 0.35 ? 5 : 3,
                            line, "the summary shows %s (%.0f %%) reserved but not allocated",
                            gib(c, u), 100 * share);
        }
    }
    if (s->non_releasable.known && frac(s->non_releasable.bytes, s->reserved.bytes) >= 0.2) {
        mp_evidence_add(c, MP_CAUSE_FRAGMENTATION, MP_EVIDENCE_FIGURE, 2, line,
                        "the summary shows %s in free parts of segments that are in use",
                        gib(c, s->non_releasable.bytes));
    }
    if (s->retries.known && s->retries.bytes >= 10) {
        mp_evidence_add(c, MP_CAUSE_FRAGMENTATION, MP_EVIDENCE_FIGURE, 1, line,
                        "the allocator had to give its cache back and retry %llu times",
                        (unsigned long long)s->retries.bytes);
    }
}

static void by_smi(struct mp_doctor_case *c)
{
    const struct mp_doctor_smi *const smi = &c->smi;
    if (!smi->found) {
        return;
    }
    if (smi->n_small_on_gpu0 >= 2) {
        mp_evidence_add(
            c, MP_CAUSE_CONTEXT, MP_EVIDENCE_FIGURE, smi->n_small_on_gpu0 >= 3 ? 6 : 4,
            smi->line + 1,
            "nvidia-smi shows %zu processes with about %s each on GPU 0: contexts of other ranks",
            smi->n_small_on_gpu0, gib(c, smi->small_bytes));
    }
    /* the table is usually taken after the crash: what is in use then is not the crashed job's */
    for (size_t i = 0; i < smi->n_gpus; i++) {
        if (frac(smi->gpus[i].used_bytes, smi->gpus[i].total_bytes) >= 0.5) {
            mp_evidence_add(c, MP_CAUSE_OTHER_PROCESS, MP_EVIDENCE_FIGURE,
                            smi->n_processes == 0 ? 4 : 2, smi->line + 1,
                            "nvidia-smi shows %s of %s in use%s", gib(c, smi->gpus[i].used_bytes),
                            gib(c, smi->gpus[i].total_bytes),
                            smi->n_processes == 0 ? ", by no process it names" : "");
            break;
        }
    }
}

void mp_evidence_figures(struct mp_doctor_case *c)
{
    by_format(c);
    by_limit(c);
    by_rest(c);
    by_processes(c);
    by_own_context(c);
    by_fragmentation(c);
    by_request(c);
    by_allocated(c);
    by_model_size(c);
    by_summary(c);
    by_smi(c);
}
