/* SPDX-License-Identifier: MIT */
/*
 * What was observed, seen together: one observation explains another, and where all are silent, what
 * most failures of the kind come from.
 */
#include "doctor/evidence.h"

#define TOGETHER(c, cause, weight, line, ...)                                                      \
    mp_evidence_add(c, cause, MP_EVIDENCE_FIGURE, weight, line, __VA_ARGS__)

#define COMMON(c, cause, weight, ...)                                                              \
    mp_evidence_add(c, cause, MP_EVIDENCE_COMMON, weight, 0, __VA_ARGS__)

#define TOLD    3 /* points of words and frames */
#define CERTAIN 7
#define PRIOR   2 /* for the commonest cause, where nothing else is told */
#define STRONG  6 /* beside this much evidence, what is merely common is no second opinion */

static int sum(const struct mp_doctor_case *c, enum mp_cause cause)
{
    int points = 0;
    for (size_t i = 0; i < c->n_evidence; i++) {
        points += c->evidence[i].cause == cause ? c->evidence[i].weight : 0;
    }
    return points;
}

/* Points that words with `part` in them ("": all words) gave a cause; *line: where the first stands. */
static int word_points(const struct mp_doctor_case *c, enum mp_cause cause, const char *part,
                       size_t *line)
{
    int points = 0;
    for (size_t i = 0; i < c->n_evidence; i++) {
        const struct mp_evidence *const e = &c->evidence[i];
        if (e->cause == cause && e->kind == MP_EVIDENCE_WORD && e->weight > 0 &&
            (part[0] == '\0' || mp_doctor_find(e->text, strlen(e->text), part) != NULL)) {
            *line = points == 0 ? e->line : *line;
            points += e->weight;
        }
    }
    return points;
}

/* "After the first epoch" is a leak's story, unless something else happens there. */
static void end_of_epoch(struct mp_doctor_case *c)
{
    size_t line = 0;
    const int points = word_points(c, MP_CAUSE_LEAK, "epoch", &line);
    if (points == 0) {
        return;
    }
    if (sum(c, MP_CAUSE_EVALUATION) >= 3) {
        TOGETHER(c, MP_CAUSE_LEAK, -points, line, "evaluation runs at the end of an epoch");
    } else if (sum(c, MP_CAUSE_CHECKPOINT_IO) >= 3) {
        TOGETHER(c, MP_CAUSE_LEAK, -points, line, "checkpoints are saved at the end of an epoch");
    }
}

/* Whoever resumes loads a model that had fitted. */
static void resumed(struct mp_doctor_case *c)
{
    size_t line = 0, ignored = 0;
    if (word_points(c, MP_CAUSE_CHECKPOINT_IO, "resum", &line) > 0) {
        TOGETHER(c, MP_CAUSE_MODEL_TOO_LARGE,
                 -word_points(c, MP_CAUSE_MODEL_TOO_LARGE, "load", &ignored), line,
                 "what is resumed had fitted before");
    }
    if (sum(c, MP_CAUSE_CHECKPOINT_IO) >= 4) {
        TOGETHER(c, MP_CAUSE_OPTIMIZER_STATE,
                 -(word_points(c, MP_CAUSE_OPTIMIZER_STATE, "optimizer state", &ignored) + 1) / 2,
                 line, "the optimizer's state is what a checkpoint holds");
    }
}

/* Many models, one after the other: what the first trial loaded, the next could load. */
static void earlier_trial(struct mp_doctor_case *c)
{
    size_t line = 0;
    const int trials = word_points(c, MP_CAUSE_LEAK, "trial", &line) +
                       word_points(c, MP_CAUSE_LEAK, "search", &line);
    const int model = sum(c, MP_CAUSE_MODEL_TOO_LARGE);
    if (trials >= TOLD && model > 1) {
        TOGETHER(c, MP_CAUSE_MODEL_TOO_LARGE, -(model + 1) / 2, line,
                 "an earlier trial had loaded it");
    }
}

/* What grows while a model is evaluated is kept by the evaluation. */
static void kept_by_evaluation(struct mp_doctor_case *c)
{
    size_t line = 0;
    const int leak = word_points(c, MP_CAUSE_LEAK, "", &line);
    if (sum(c, MP_CAUSE_EVALUATION) >= 4 && leak > 1) {
        TOGETHER(c, MP_CAUSE_LEAK, -(leak + 1) / 2, line, "it grows during evaluation");
    }
}

/* Memory that is not released when a program was stopped belongs to a process, not to a tensor. */
static void left_by_process(struct mp_doctor_case *c)
{
    size_t line = 0;
    const int stopped = word_points(c, MP_CAUSE_OTHER_PROCESS, "ctrl", &line) +
                        word_points(c, MP_CAUSE_OTHER_PROCESS, "cancel", &line) +
                        word_points(c, MP_CAUSE_OTHER_PROCESS, "interrupt", &line);
    const int kept = word_points(c, MP_CAUSE_LEAK, "free", &line) +
                     word_points(c, MP_CAUSE_LEAK, "releas", &line);
    if (stopped > 0 && kept > 0) {
        TOGETHER(c, MP_CAUSE_LEAK, -kept, line, "what a stopped program left belongs to a process");
    }
}

/* Samples that differ much: the one that takes most comes at any time, and the cache keeps what it
 * took, which looks like growth. */
static void late_sample(struct mp_doctor_case *c)
{
    size_t line = 0;
    const int leak = word_points(c, MP_CAUSE_LEAK, "", &line);
    if (!(c->detection || c->speech) || !c->training || leak < 2) {
        return;
    }
    const char *const most = c->detection ? "images with more objects" : "longer recordings";
    TOGETHER(c, MP_CAUSE_LEAK, -(leak + 1) / 2, line, "%s take more memory, and come at any time",
             most);
    TOGETHER(c, MP_CAUSE_ACTIVATIONS, 3, line, "%s take more memory", most);
}

/* The smallest step does not fit, and nothing says that its one sample is long or large. */
static void smallest_step(struct mp_doctor_case *c)
{
    size_t line = 0;
    const int size = word_points(c, MP_CAUSE_ACTIVATIONS, "len", &line) +
                     word_points(c, MP_CAUSE_ACTIVATIONS, "long", &line) +
                     word_points(c, MP_CAUSE_ACTIVATIONS, "image", &line) +
                     word_points(c, MP_CAUSE_ACTIVATIONS, "token", &line) +
                     word_points(c, MP_CAUSE_ACTIVATIONS, "size of", &line);
    if (!c->batch_one || !c->training || size >= 2 || c->detection || c->speech || c->pictures ||
        c->message.format == MP_OOM_CUDA_ERROR || sum(c, MP_CAUSE_ACTIVATIONS) >= STRONG) {
        return;
    }
    TOGETHER(c, MP_CAUSE_MODEL_TOO_LARGE, 2, 0, "a batch of 1 does not fit: the rest are weights");
    TOGETHER(
        c, MP_CAUSE_OPTIMIZER_STATE, c->adapters ? 0 : 2, 0,
        "a batch of 1 does not fit: the rest are weights, gradients and the optimizer's state");
    TOGETHER(c, MP_CAUSE_ACTIVATIONS, -1, 0, "the batch is 1");
}

/* Who kills: a launcher the ranks that are left when the card refused a request, else the kernel when
 * the host's memory ends. */
static void killed(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    size_t line = 0;
    const int points = word_points(c, MP_CAUSE_HOST_MEMORY, "kill", &line);
    if (points > 0 && m->capacity.known && m->format != MP_OOM_HOST) {
        TOGETHER(c, MP_CAUSE_HOST_MEMORY, -points, line, "it is the card that ran out");
    } else if (points > 0 && (m->format == MP_OOM_NONE || m->format == MP_OOM_OTHER)) {
        TOGETHER(c, MP_CAUSE_HOST_MEMORY, 3, line,
                 "killed without a word of the card: the kernel does that when memory ends");
    }
}

/* Off-policy learners keep what they saw: in host memory, unless the card is what ran out. */
static void replay_on_card(struct mp_doctor_case *c)
{
    size_t line = 0;
    const int points = word_points(c, MP_CAUSE_HOST_MEMORY, "replay", &line);
    if (points > 0 && c->message.capacity.known && c->message.format != MP_OOM_HOST) {
        TOGETHER(c, MP_CAUSE_HOST_MEMORY, -points, line, "it is the card that ran out");
        TOGETHER(c, MP_CAUSE_LEAK, 4, line, "what is kept to be replayed grows with every step");
    }
}

/* WSL limits by other means than the card, and then reports no free memory or enough. */
static void full_card_of_wsl(struct mp_doctor_case *c)
{
    const struct mp_oom_message *const m = &c->message;
    size_t line = 0;
    const int points = word_points(c, MP_CAUSE_HOST_MEMORY, "wsl", &line);
    if (points > 1 && m->requested.known && m->free.known && m->free.bytes > 0 &&
        m->free.bytes < m->requested.bytes) {
        TOGETHER(c, MP_CAUSE_HOST_MEMORY, 1 - points, line, "the card itself was full");
    }
}

/* Inputs of varying length: the longest comes late, and so does the failure. */
static void late_input(struct mp_doctor_case *c)
{
    size_t line = 0, ignored = 0;
    const int late = word_points(c, MP_CAUSE_LEAK, "after", &line) +
                     word_points(c, MP_CAUSE_LEAK, "while", &line);
    const int length = word_points(c, MP_CAUSE_ACTIVATIONS, "len", &ignored) +
                       word_points(c, MP_CAUSE_ACTIVATIONS, "long", &ignored) +
                       word_points(c, MP_CAUSE_ACTIVATIONS, "gt", &ignored);
    if (late > 0 && length >= 2) {
        TOGETHER(c, MP_CAUSE_LEAK, -(late + 1) / 2, line, "a longer input explains a late failure");
        TOGETHER(c, MP_CAUSE_ACTIVATIONS, 2, line, "inputs vary: the longest may come late");
    }
}

/* Does a line of the traceback or the reporter's words name another cause, or figures leave no
 * other? */
static bool is_told_otherwise(const struct mp_doctor_case *c)
{
    int told[MP_CAUSES] = {0};
    for (size_t i = 0; i < c->n_evidence; i++) {
        const struct mp_evidence *const e = &c->evidence[i];
        told[e->cause] +=
            e->kind == MP_EVIDENCE_FRAME || e->kind == MP_EVIDENCE_WORD ? e->weight : 0;
    }
    for (int cause = 0; cause < MP_CAUSES; cause++) {
        if (cause != MP_CAUSE_ACTIVATIONS &&
            (told[cause] >= TOLD || sum(c, (enum mp_cause)cause) >= CERTAIN)) {
            return true;
        }
    }
    return false;
}

static bool any_evidence(const struct mp_doctor_case *c)
{
    for (size_t i = 0; i < c->n_evidence; i++) {
        if (c->evidence[i].weight > 0) {
            return true;
        }
    }
    return false;
}

/* What most jobs of a kind die of, as a hint that any evidence outweighs. */
static void base_rate(struct mp_doctor_case *c)
{
    for (int cause = 0; cause < MP_CAUSES; cause++) {
        if (sum(c, (enum mp_cause)cause) >= STRONG) {
            return;
        }
    }
    const enum mp_oom_format format = c->message.format;
    if (format == MP_OOM_NONE || format == MP_OOM_HOST || format == MP_OOM_NCCL ||
        format == MP_OOM_OVER_1EB || format == MP_OOM_SNAPSHOT) {
        return;
    }
    const int activations = sum(c, MP_CAUSE_ACTIVATIONS),
              weights = sum(c, MP_CAUSE_MODEL_TOO_LARGE);
    /* figures have told already */
    if (!c->training && weights >= 4) {
        return;
    }
    const bool large_tensors = c->training || c->pictures || !c->inference;
    const char *const jobs = c->training    ? "training jobs"
                             : c->pictures  ? "imaging jobs"
                             : c->inference ? "inference jobs"
                                            : "jobs";
    const int missing = activations >= 0 && activations < 2 ? 2 - activations : 0;
    const struct mp_oom_message *const m = &c->message;
    const bool piece = !c->training && m->requested.known && m->capacity.known &&
                       m->requested.bytes < m->capacity.bytes / 100; /* of the weights */
    const bool silent =
        format == MP_OOM_CUDA_ERROR || piece || is_told_otherwise(c) || !any_evidence(c);
    const int prior = activations >= 0 && !silent ? PRIOR : 0;
    COMMON(c, MP_CAUSE_ACTIVATIONS, missing + prior,
           "most %s that run out of memory do so over one step's activations", jobs);
    if (!large_tensors && weights >= 0 && weights < 2) {
        COMMON(c, MP_CAUSE_MODEL_TOO_LARGE, 2 - weights,
               "many inference jobs that run out of memory do so over their weights");
    }
}

void mp_evidence_together(struct mp_doctor_case *c)
{
    end_of_epoch(c);
    resumed(c);
    earlier_trial(c);
    kept_by_evaluation(c);
    left_by_process(c);
    killed(c);
    replay_on_card(c);
    full_card_of_wsl(c);
    late_input(c);
    late_sample(c);
    smallest_step(c);
    base_rate(c);
}
