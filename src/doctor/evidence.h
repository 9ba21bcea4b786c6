/* SPDX-License-Identifier: MIT */
/*
 * Evidence: one observation, the cause it speaks for (or against), how strongly, and where it
 * stands in the text.
 *
 * Weights are points on one scale, the same for figures, tracebacks and words:
 *
 *     10  the text says so itself (a cap is named, a size is absurd)
 *      7  arithmetic leaves little else (two thirds of the card belong to somebody else)
 *      5  the failing line or a plain statement of the reporter
 *      3  usual companion of the cause
 *      1  hint; decides only between equals
 *
 * Negative points are for what arithmetic excludes. No weight depends on a single case, and every
 * rule carries its reason.
 */
#ifndef MP_DOCTOR_EVIDENCE_H
#define MP_DOCTOR_EVIDENCE_H

#include "doctor/message.h"
#include "doctor/summary.h"

/* name in JSON, in a sentence */
#define MP_CAUSE_MAP(X)                                                                            \
    X(OTHER_PROCESS, "other_process", "another process holds the card's memory")                   \
    X(CONTEXT, "context", "CUDA contexts and loaded kernels outside the allocator")                \
    X(NCCL, "nccl", "communication buffers")                                                       \
    X(ACCUMULATION, "accumulation", "gradient accumulation that keeps graphs or copies")           \
    X(LEAK, "leak", "memory that grows with every step")                                           \
    X(ACTIVATIONS, "activations", "activations of one step: batch, sequence or image too large")   \
    X(LOGITS, "logits", "logits and the loss over a large vocabulary")                             \
    X(OPTIMIZER_STATE, "optimizer_state", "optimizer state, created at the first step")            \
    X(FRAGMENTATION, "fragmentation", "reserved memory in pieces that the request does not fit")   \
    X(MODEL_TOO_LARGE, "model_too_large",                                                          \
      "the weights alone (with what training adds) exceed the card")                               \
    X(CHECKPOINT_IO, "checkpoint_io", "a second copy while saving or loading a checkpoint")        \
    X(EVALUATION, "evaluation", "evaluation: graphs or predictions kept, a larger batch")          \
    X(MEMORY_LIMIT, "memory_limit", "a limit below the card's memory")                             \
    X(HOST_MEMORY, "host_memory", "host memory, pinned memory or shared memory")                   \
    X(NOT_MEMORY, "not_memory", "not a shortage of memory")                                        \
    X(UNKNOWN, "unknown", "the text does not tell")

enum mp_cause {
#define X(id, name, text) MP_CAUSE_##id,
    MP_CAUSE_MAP(X)
#undef X
        MP_CAUSES
};

const char *mp_cause_name(enum mp_cause cause);
const char *mp_cause_text(enum mp_cause cause);
/** By JSON name; MP_CAUSES when there is none. */
enum mp_cause mp_cause_parse(const char *name, size_t length);

enum mp_evidence_kind {
    MP_EVIDENCE_FIGURE,
    MP_EVIDENCE_FRAME,
    MP_EVIDENCE_WORD,
    MP_EVIDENCE_COMMON /* nothing was observed: it is what most failures of the kind come from */
};

struct mp_evidence {
    enum mp_cause cause;
    enum mp_evidence_kind kind;
    int weight;
    size_t line;      /* 1-based; 0: the message as a whole */
    const char *text; /* one sentence without a full stop */
};

#define MP_EVIDENCE_MAX 256

/** All that was read and observed; lives in the arena. */
struct mp_doctor_case {
    struct mp_arena *arena;
    struct mp_doctor_text text;
    struct mp_oom_message message;
    struct mp_doctor_summary summary;
    struct mp_doctor_smi smi;
    bool distributed;  /* several processes work together: ranks, torchrun, NCCL, DeepSpeed, FSDP */
    bool single_card;  /* the text says so */
    bool flat_buffers; /* DeepSpeed: gradients and state lie in a few large tensors */
    bool full;         /* all parameters are trained */
    bool adapters;     /* LoRA and the like: what is trained is small */
    bool batch_one;    /* the batch is 1: no step is smaller */
    unsigned n_cards;  /* "8xA100", "4 * A800"; 0: not said */
    bool training, inference; /* what the text says the job does; both may be unknown */
    bool detection;           /* of objects in images */
    bool speech;              /* recordings, each of its own length */
    bool pictures;           /* it makes or reads images: its tensors, not its weights, are large */
    double n_params_1e9;     /* largest model size named ("13b"); 0: none */
    unsigned nominal_gb;     /* of a card the text names; 0: none */
    double bytes_per_weight; /* as far as the text says: 4, 2 (also when it does not), 1 or 0.5 */
    size_t n_evidence;
    struct mp_evidence evidence[MP_EVIDENCE_MAX];
};

/** Add one observation; silently drops it when the list is full or memory is exhausted. line is
 * 1-based, 0 for none. */
void mp_evidence_add(struct mp_doctor_case *c, enum mp_cause cause, enum mp_evidence_kind kind,
                     int weight, size_t line, const char *format, ...) MP_PRINTF(6, 7);

/** Drop what is merely common: something better is known. */
void mp_evidence_drop_common(struct mp_doctor_case *c);

/** For the order in which evidence is told: by weight, what is merely common last; of equal ones,
 * words last. */
int mp_evidence_rank(const struct mp_evidence *evidence);

/** Rules on the figures of the message and the tables (figures.c). */
void mp_evidence_figures(struct mp_doctor_case *c);
/** Rules on the traceback around the message (traceback.c). */
void mp_evidence_traceback(struct mp_doctor_case *c);
/** Rules on the words around it (words.c); also fills distributed, training, inference, pictures,
 * n_params_1e9. */
void mp_evidence_words(struct mp_doctor_case *c);
/** Rules on what all others observed together (together.c); call it last. */
void mp_evidence_together(struct mp_doctor_case *c);

#endif
