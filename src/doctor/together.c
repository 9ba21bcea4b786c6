/* SPDX-License-Identifier: MIT */
/*
 * What was observed, seen together: one observation explains another, and where all are silent, what
 * most failures of the kind come from.
 */
#include "doctor/evidence.h"

#define TOGETHER(c, cause, weight, line, ...)                                                      \
    mp_evidence_add(c, cause, MP_EVIDENCE_FIGURE, weight, line, __VA_ARGS__)

#define STRONG 6 /* beside this much evidence, what is merely common is no second opinion */

static int sum(const struct mp_doctor_case *c, enum mp_cause cause)
{
    int points = 0;
    for (size_t i = 0; i < c->n_evidence; i++) {
        points += c->evidence[i].cause == cause ? c->evidence[i].weight : 0;
    }
    return points;
}

/* Points that words with `part` in them gave a cause; *line: where the first stands. */
static int word_points(const struct mp_doctor_case *c, enum mp_cause cause, const char *part,
                       size_t *line)
{
    int points = 0;
    for (size_t i = 0; i < c->n_evidence; i++) {
        const struct mp_evidence *const e = &c->evidence[i];
        if (e->cause == cause && e->kind == MP_EVIDENCE_WORD && e->weight > 0 &&
            mp_doctor_find(e->text, strlen(e->text), part) != NULL) {
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
    const bool large_tensors = c->training || c->pictures || !c->inference;
    if (large_tensors && activations >= 0 && activations < 2) {
        TOGETHER(c, MP_CAUSE_ACTIVATIONS, 2 - activations, 0,
                 "most %s that run out of memory do so over one step's activations",
                 c->training   ? "training jobs"
                 : c->pictures ? "imaging jobs"
                               : "jobs");
    } else if (!large_tensors && weights >= 0 && weights < 2) {
        TOGETHER(c, MP_CAUSE_MODEL_TOO_LARGE, 2 - weights, 0,
                 "most inference jobs that run out of memory do so over their weights");
    }
}

void mp_evidence_together(struct mp_doctor_case *c)
{
    end_of_epoch(c);
    resumed(c);
    late_input(c);
    base_rate(c);
}
