/* SPDX-License-Identifier: MIT */
/* `memplan diagnose`: an out-of-memory text, a memory_summary() table, a snapshot, or several at
 * once; what it was and what helps. */
#include "base/file.h"
#include "cli/cli.h"
#include "doctor/report.h"
#include "memory/ledger.h"
#include "memory/replay.h"
#include "plan/evaluate.h"

#define TEXT_LIMIT_BYTES (256 * MP_MIB)
/* A cap that no job reaches: the allocator then shows what the job would reserve if the card were
 * large enough. */
#define NO_LIMIT "1125899906842624"

struct diagnose_options {
    bool json;
    const char *snapshot;
};

static const struct mp_option options[] = {
    {.name = "snapshot",
     .argument = "FILE",
     .kind = MP_OPTION_STRING,
     .target = offsetof(struct diagnose_options, snapshot),
     .group = "Input",
     .help = "allocator snapshot (pickle or JSON) or trace of the same run"},
    {.name = "json",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct diagnose_options, json),
     .group = "Output",
     .help = "print JSON"},
};

const struct mp_command mp_command_diagnose = {
    .name = "diagnose",
    .operands = "[FILE|-]",
    .sentence = "say why a job ran out of memory, and what would help",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .takes_run = true,
    .examples = {"memplan diagnose train.log",
                 "memplan diagnose train.log --run run.yaml --snapshot oom.pickle"},
    .exits = NULL,
    .min_operands = 0,
    .max_operands = 1,
};

/* ---- what would another setting do: the stated job simulated, or the recorded history replayed
 * ---- */

struct job {
    struct mp_arena *arena;
    const struct mp_run_source *source;
    bool has_run;                     /* source describes a job */
    const struct mp_history *history; /* NULL: none */
    uint64_t
        capacity_bytes; /* at which the recorded history failed; 0: it did not, or does not say */
};

/* The stated run with one change and one cap (NULL: as stated); NULL with *err. */
static const struct mp_run *changed_run(const struct job *job, const char *change,
                                        const char *limit, struct memplan_error *err)
{
    struct mp_run_source source = *job->source;
    if (change != NULL) {
        const size_t n = strcspn(change, "=");
        char key[64];
        if (change[n] == '\0' || n >= sizeof key) {
            mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%s' is no change of a run", change);
            return NULL;
        }
        memcpy(key, change, n);
        key[n] = '\0';
        if (mp_run_source_text(&source, key, "remedy", change + n + 1, err) != MEMPLAN_STATUS_OK) {
            return NULL;
        }
    }
    if (limit != NULL && mp_run_source_text(&source, "allocator_limit_bytes", "remedy", limit,
                                            err) != MEMPLAN_STATUS_OK) {
        return NULL;
    }
    return mp_run_resolve(&source, err);
}

static bool simulate(const struct job *job, const char *change, uint64_t *reserved_bytes,
                     bool *fits)
{
    struct memplan_error err = {0};
    struct mp_evaluation e;
    const struct mp_run *const unbounded = changed_run(job, change, NO_LIMIT, &err);
    const struct mp_run *const stated = changed_run(job, change, NULL, &err);
    if (unbounded == NULL || stated == NULL ||
        mp_evaluate(unbounded, NULL, &e, &err) != MEMPLAN_STATUS_OK) {
        return false;
    }
    *reserved_bytes = e.reserved_bytes;
    mp_evaluation_release(&e);
    return mp_fits(stated, fits, &err) == MEMPLAN_STATUS_OK;
}

/* The recorded requests under another PYTORCH_CUDA_ALLOC_CONF (NULL: the recorded one). */
static bool replay(const struct job *job, const char *conf, uint64_t *reserved_bytes, bool *fits)
{
    struct memplan_error err = {0};
    struct mp_replay_result result;
    struct mp_replay_options replay_options = {.torch = MP_TORCH_DEFAULT};
    if (mp_allocator_conf_parse(conf != NULL ? conf : job->history->conf, MP_TORCH_DEFAULT,
                                &replay_options.conf, &err) != MEMPLAN_STATUS_OK ||
        mp_replay_run(job->history, &replay_options, &result, &err) != MEMPLAN_STATUS_OK) {
        return false;
    }
    *reserved_bytes = result.stats.reserved_bytes[MP_STAT_ALL].peak;
    *fits = true;
    if (job->capacity_bytes > 0) {
        replay_options.capacity_bytes = job->capacity_bytes;
        if (mp_replay_run(job->history, &replay_options, &result, &err) != MEMPLAN_STATUS_OK) {
            return false;
        }
        *fits = !result.oom;
    }
    return true;
}

/* A recording of the very run answers for the allocator's settings; everything else needs the job.
 */
static bool fit(void *context, const char *change, uint64_t *reserved_bytes, bool *fits)
{
    static const char conf_key[] = "allocator_conf=";
    const struct job *const job = context;
    const bool settings = change != NULL && strncmp(change, conf_key, sizeof conf_key - 1) == 0;
    if (job->has_run) {
        return simulate(job, change, reserved_bytes, fits);
    }
    return (change == NULL || settings) &&
           replay(job, change != NULL ? change + sizeof conf_key - 1 : NULL, reserved_bytes, fits);
}

static enum mp_cause cause_of_category(int category)
{
    switch (category) {
    case MP_CATEGORY_PARAMETER:
    case MP_CATEGORY_GRADIENT: return MP_CAUSE_MODEL_TOO_LARGE;
    case MP_CATEGORY_OPTIMIZER_STATE: return MP_CAUSE_OPTIMIZER_STATE;
    case MP_CATEGORY_ACTIVATION: return MP_CAUSE_ACTIVATIONS;
    case MP_CATEGORY_LOGITS: return MP_CAUSE_LOGITS;
    case MP_CATEGORY_COMMUNICATION: return MP_CAUSE_NCCL;
    default: return MP_CAUSE_UNKNOWN;
    }
}

static void add_components(struct mp_doctor_simulation *simulation, const struct mp_evaluation *e,
                           struct mp_arena *arena, struct memplan_error *err)
{
    const struct mp_ledger *const ledger = mp_ledger_at(&e->program, e->peak_event, arena, err);
    for (int i = 0; ledger != NULL && i < MP_CATEGORY_COUNT; i++) {
        size_t at = simulation->n_components;
        if (ledger->by_category[i] == 0 || at == MP_DOCTOR_COMPONENTS) {
            continue;
        }
        while (at > 0 && simulation->components[at - 1].bytes < ledger->by_category[i]) {
            simulation->components[at] = simulation->components[at - 1];
            at--;
        }
        simulation->components[at] = (struct mp_doctor_component){
            mp_category_text((enum mp_category)i), ledger->by_category[i], cause_of_category(i)};
        simulation->n_components++;
    }
}

/* What the stated job needs; a status and *err when it cannot be simulated. */
static enum memplan_status predict(struct mp_doctor_simulation *simulation, const struct job *job,
                                   struct memplan_error *err)
{
    struct mp_evaluation e;
    const struct mp_evaluate_options evaluate_options = {.keep_tags = true};
    const struct mp_run *const unbounded = changed_run(job, NULL, NO_LIMIT, err);
    const struct mp_run *const stated =
        unbounded != NULL ? changed_run(job, NULL, NULL, err) : NULL;
    if (stated == NULL) {
        return err->status;
    }
    enum memplan_status status = mp_evaluate(unbounded, &evaluate_options, &e, err);
    if (status != MEMPLAN_STATUS_OK) {
        return status;
    }
    simulation->job_known = true;
    simulation->allocated_bytes = e.allocated_bytes;
    simulation->reserved_bytes = e.reserved_bytes;
    simulation->context_bytes = e.context_bytes;
    simulation->context_high_bytes = e.context_high_bytes;
    add_components(simulation, &e, job->arena, err);
    mp_evaluation_release(&e);
    status = err->status;
    return status == MEMPLAN_STATUS_OK ? mp_fits(stated, &simulation->fits, err) : status;
}

/* ---- reading and answering ---- */

struct input {
    struct mp_strbuf text;
    struct mp_history history;
    bool has_history;
};

static bool is_pickle(const struct mp_strbuf *text)
{
    return text->len >= 2 && (unsigned char)text->data[0] == 0x80 &&
           (unsigned char)text->data[1] <= 5;
}

/* The user named the file: that it cannot be read is an error of the command line. */
static enum memplan_status named_by_user(enum memplan_status status, struct memplan_error *err)
{
    if (status == MEMPLAN_STATUS_IO) {
        err->status = MEMPLAN_STATUS_INPUT;
    }
    return status == MEMPLAN_STATUS_IO ? MEMPLAN_STATUS_INPUT : status;
}

static enum memplan_status read_input(struct input *in, const char *path, const char *snapshot,
                                      struct memplan_error *err)
{
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (path != NULL) {
        status = named_by_user(mp_file_read(path, TEXT_LIMIT_BYTES, &in->text, err), err);
        if (status == MEMPLAN_STATUS_OK && is_pickle(&in->text) && snapshot == NULL) {
            status = mp_history_parse(&in->history, path, in->text.data, in->text.len, -1, err);
            in->has_history = status == MEMPLAN_STATUS_OK;
            mp_strbuf_reset(&in->text);
        }
    }
    if (status == MEMPLAN_STATUS_OK && snapshot != NULL) {
        status = named_by_user(mp_history_read(&in->history, snapshot, -1, err), err);
        in->has_history = status == MEMPLAN_STATUS_OK;
    }
    return status;
}

/* Everything that one answer holds together; lives in the arena. */
struct answer {
    struct mp_doctor_case c;
    struct mp_doctor_recording recording;
    struct mp_doctor_simulation simulation;
    struct mp_diagnosis diagnosis;
};

static void add_recording(struct answer *a, const struct input *in, struct job *job)
{
    mp_doctor_recording_read(&a->recording, &in->history);
    mp_evidence_recording(&a->c, &a->recording);
    a->diagnosis.recording = &a->recording;
    job->history = &in->history;
    if (a->recording.failed && a->recording.peak_reserved_bytes > 0) {
        job->capacity_bytes = a->recording.peak_reserved_bytes + a->recording.free_bytes;
    }
    if (a->c.message.format == MP_OOM_NONE) {
        a->c.message.format = MP_OOM_SNAPSHOT;
    }
}

static enum memplan_status diagnose(const struct input *in, struct answer *a, struct job *job,
                                    struct memplan_error *err)
{
    struct mp_diagnosis *const d = &a->diagnosis;
    if (!mp_doctor_case_init(&a->c, job->arena, mp_strbuf_text(&in->text), in->text.len)) {
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    }
    if (in->has_history) {
        add_recording(a, in, job);
    }
    if (job->has_run) {
        struct memplan_error problem = {0};
        const enum memplan_status status = predict(&a->simulation, job, &problem);
        if (status != MEMPLAN_STATUS_OK && status != MEMPLAN_STATUS_UNSUPPORTED) {
            *err = problem;
            return status;
        }
        if (status == MEMPLAN_STATUS_UNSUPPORTED) {
            mp_error_prefix(&problem, "the job is not simulated");
            mp_cli_warn("diagnose", problem.text);
            job->has_run = false;
        } else {
            mp_evidence_prediction(&a->c, &a->simulation);
        }
    }
    if (job->has_run || job->history != NULL) {
        a->simulation.context = job;
        a->simulation.fit = fit;
        d->simulation = &a->simulation;
    }
    d->c = &a->c;
    d->n_verdicts = mp_doctor_rank(&a->c, d->verdicts);
    d->n_fixes = mp_doctor_fixes(&a->c, d->verdicts, d->n_verdicts, d->simulation, d->fixes);
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status answer(const struct diagnose_options *chosen, const char *path,
                                  const struct mp_run_source *source, struct mp_arena *arena,
                                  struct memplan_error *err)
{
    struct input in = {.text = MP_STRBUF_INIT};
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct job job = {
        .arena = arena, .source = source, .has_run = source->values[MP_KEY_MODEL] != NULL};
    struct answer *const a = mp_arena_alloc(arena, sizeof *a);
    enum memplan_status status = a != NULL
                                     ? read_input(&in, path, chosen->snapshot, err)
                                     : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    if (status == MEMPLAN_STATUS_OK) {
        status = diagnose(&in, a, &job, err);
    }
    if (status == MEMPLAN_STATUS_OK) {
        if (chosen->json) {
            mp_diagnosis_json(&a->diagnosis, &out);
        } else {
            mp_diagnosis_text(&a->diagnosis, &out);
        }
        if (out.failed) {
            status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        } else {
            (void)fputs(mp_strbuf_text(&out), stdout);
        }
    }
    mp_strbuf_release(&out);
    mp_strbuf_release(&in.text);
    mp_history_release(&in.history);
    return status;
}

int mp_cmd_diagnose(int argc, char **argv)
{
    struct diagnose_options chosen = {.json = false};
    struct mp_operands operands = {0};
    struct mp_run_source source;
    struct mp_arena arena;
    struct memplan_error err = {0};
    int exit_status = MP_EXIT_YES;
    mp_arena_init(&arena);
    mp_run_source_init(&source, &arena);
    if (mp_options_parse(&mp_command_diagnose, argc, argv, &chosen, &source, &operands,
                         &exit_status) == MP_OPTIONS_GO) {
        const char *const path = operands.n > 0            ? operands.items[0]
                                 : chosen.snapshot == NULL ? "-"
                                                           : NULL;
        if (answer(&chosen, path, &source, &arena, &err) != MEMPLAN_STATUS_OK) {
            exit_status = mp_cli_fail("diagnose", &err);
        }
    }
    mp_arena_release(&arena);
    return exit_status;
}
