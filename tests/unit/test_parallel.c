/* SPDX-License-Identifier: MIT */
/*
 * Data parallelism against recordings: every allocation and free of 32 labelled logs and of 60 logs
 * of options, in order and on its stream, and every phase of 23 measured runs. tests/data/parallel
 * has them; its README tells where they come from.
 */
#include <check.h>
#include <inttypes.h>

#include "base/file.h"
#include "base/json.h"
#include "memory/ledger.h"
#include "plan/advice.h"
#include "plan/rank_kinds.h"
#include "spec/measured.h"
#include "small_run.h"
#include "suites.h"
#include "train/job.h"

#define DATA "tests/data/parallel/"

static const struct mp_run *resolve(struct mp_arena *arena, const char *id,
                                    const struct mp_value *run)
{
    struct memplan_error err = {0};
    struct mp_run_source source;
    mp_run_source_init(&source, arena);
    enum memplan_status status = mp_run_source_object(&source, id, run, &err);
    const struct mp_run *resolved =
        status == MEMPLAN_STATUS_OK ? mp_run_resolve(&source, &err) : NULL;
    ck_assert_msg(resolved != NULL, "%s: %s", id, err.text);
    return resolved;
}

/* A run from JSON text. */
static const struct mp_run *run_of(struct mp_arena *arena, const char *text)
{
    struct memplan_error err = {0};
    const struct mp_value *value = mp_json_parse(arena, "test", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    return resolve(arena, "test", value);
}

/* ---- logs: "# {head}", "+ID BYTES sSTREAM", "-ID" ---- */

struct log_reader {
    struct mp_strbuf text;
    const char *at;
};

static void open_logs(struct log_reader *r, const char *path)
{
    struct memplan_error err = {0};
    *r = (struct log_reader){.text = MP_STRBUF_INIT};
    ck_assert_msg(mp_file_read(path, 0, &r->text, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    r->at = mp_strbuf_text(&r->text);
}

/* The head of the next log; NULL at the end. */
static const struct mp_value *next_log(struct log_reader *r, struct mp_arena *arena)
{
    struct memplan_error err = {0};
    if (*r->at == '\0')
        return NULL;
    ck_assert_msg(r->at[0] == '#', "a log begins with '#', not '%.20s'", r->at);
    const size_t length = strcspn(r->at, "\n");
    const struct mp_value *head = mp_json_parse(arena, "log", r->at + 2, length - 2, &err);
    ck_assert_msg(head != NULL, "%s", err.text);
    r->at += length + 1;
    return head;
}

struct line {
    char kind; /* '+', '-', or 0 at the end of the log */
    uint32_t id;
    uint64_t bytes;
    unsigned stream;
};

static struct line next_line(struct log_reader *r)
{
    struct line line = {0};
    char *end;
    if (*r->at != '+' && *r->at != '-')
        return line;
    line.kind = *r->at;
    line.id = (uint32_t)strtoul(r->at + 1, &end, 10);
    if (line.kind == '+') {
        line.bytes = strtoull(end + 1, &end, 10);
        line.stream = (unsigned)strtoul(end + 2, &end, 10);
    }
    ck_assert_msg(*end == '\n', "damaged line '%.30s'", r->at);
    r->at = end + 1;
    return line;
}

/* ---- comparing ---- */

#define MAX_FREES   4096
#define MAX_STREAMS 8

struct frees {
    uint32_t ids[MAX_FREES];
    size_t n;
};

static int compare_ids(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Frees between two allocations: their order makes no difference to the allocator. */
static bool same_frees(struct frees *a, struct frees *b)
{
    qsort(a->ids, a->n, sizeof a->ids[0], compare_ids);
    qsort(b->ids, b->n, sizeof b->ids[0], compare_ids);
    const bool same =
        a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof a->ids[0]) == 0);
    a->n = b->n = 0;
    return same;
}

static const struct mp_event *next_event(const struct mp_program *p, uint32_t *at, uint64_t least)
{
    while (*at < p->n_events) {
        const struct mp_event *e = &p->events[(*at)++];
        if ((e->kind == MP_EVENT_ALLOC || e->kind == MP_EVENT_FREE) && e->bytes >= least)
            return e;
    }
    return NULL;
}

/* The program's ids as the log counts them. */
static uint32_t *number_ids(const struct mp_program *p, uint64_t least)
{
    uint32_t *numbers = calloc(p->n_allocs + 1, sizeof *numbers), n = 0;
    ck_assert_ptr_nonnull(numbers);
    for (uint32_t i = 0; i < p->n_events; i++)
        if (p->events[i].kind == MP_EVENT_ALLOC && p->events[i].bytes >= least)
            numbers[p->events[i].id] = ++n;
    return numbers;
}

/* Streams are numbered by first use in both; each must stand for one of the other. */
static bool same_stream(unsigned *of_log, unsigned stream, unsigned predicted)
{
    ck_assert_uint_lt(stream, MAX_STREAMS);
    if (of_log[stream] == UINT32_MAX)
        of_log[stream] = predicted;
    return of_log[stream] == predicted;
}

/* least: smaller allocations are in the log of none of the two, and ids count the others. */
static void compare_log(const char *id, struct log_reader *r, const struct mp_program *p, uint64_t least)
{
    static struct frees recorded, predicted;
    unsigned streams[MAX_STREAMS];
    uint32_t at = 0, *const numbers = number_ids(p, least);
    memset(streams, 0xff, sizeof streams);
    recorded.n = predicted.n = 0;
    for (struct line line = next_line(r);; line = next_line(r)) {
        for (; line.kind == '-'; line = next_line(r)) {
            ck_assert_uint_lt(recorded.n, MAX_FREES);
            recorded.ids[recorded.n++] = line.id;
        }
        const struct mp_event *e = next_event(p, &at, least);
        for (; e != NULL && e->kind == MP_EVENT_FREE; e = next_event(p, &at, least)) {
            ck_assert_uint_lt(predicted.n, MAX_FREES);
            predicted.ids[predicted.n++] = numbers[e->id];
        }
        ck_assert_msg(same_frees(&recorded, &predicted),
                      "%s: frees differ before allocation %" PRIu32, id, line.id);
        if (line.kind == '\0' || e == NULL) {
            ck_assert_msg(line.kind == '\0' && e == NULL,
                          "%s: one of the two ends after allocation %" PRIu32, id, line.id);
            free(numbers);
            return;
        }
        ck_assert_msg(line.id == numbers[e->id] && line.bytes == e->bytes,
                      "%s: allocation %" PRIu32 " has %" PRIu64 " bytes, predicted %" PRIu64
                      " (%s)",
                      id, line.id, line.bytes, e->bytes, e->op);
        ck_assert_msg(same_stream(streams, line.stream, e->stream),
                      "%s: allocation %" PRIu32 " is on another stream than predicted", id,
                      line.id);
    }
}

/* ---- the recorder's loop of labelled logs ---- */

struct loop {
    const struct mp_run *run;
    struct mp_job job; /* its net, optimizer and wrapper */
};

static void one_iteration(struct mp_runtime *rt, struct mp_job *job, const struct mp_inputs *in)
{
    struct mp_outputs out = {0}, old = job->out;
    struct mp_autocast outer;
    mp_autocast_enter(rt, &outer, job->run->precision == MP_PRECISION_AMP_BF16, MP_BF16);
    mp_parallel_before_forward(rt, &job->parallel, 0);
    job->net.family->forward(rt, &job->net, in, &out);
    mp_parallel_after_forward(rt, &job->parallel, &out);
    out.loss = mp_take(rt, out.loss);
    out.logits = mp_take(rt, out.logits);
    job->out = out;
    mp_outputs_release(rt, &old);
    mp_autocast_exit(rt, &outer);
    struct mp_tensor *previous = job->loss;
    job->loss = mp_tensor_ref(out.loss);
    mp_tensor_unref(rt, previous);
    mp_backward(rt, job->loss);
    mp_parallel_clip_grad_norm(rt, &job->parallel);
    mp_optimizer_step(rt, &job->optimizer);
    mp_zero_grad(rt, job->parallel.parameters, job->parallel.n_parameters);
}

/* The recorder held the model's parameters in a list while it wrapped the model. */
static void wrap_while_held(struct mp_runtime *rt, struct mp_job *job)
{
    const int n = job->net.n_parameters;
    struct mp_storage **held = mp_runtime_alloc(rt, (size_t)n * sizeof(struct mp_storage *));
    for (int i = 0; i < n; i++) {
        held[i] = job->net.parameters[i]->storage;
        held[i]->refs++;
    }
    mp_parallel_wrap(rt, &job->parallel, job->run, &job->net);
    for (int i = n - 1; i >= 0; i--)
        mp_storage_unref(rt, held[i]);
}

static void labelled_loop(struct mp_runtime *rt, void *context)
{
    struct mp_job *job = &((struct loop *)context)->job;
    const struct mp_run *run = job->run;
    mp_process_group_open(rt, run);
    job->net.family->build(rt, &job->net);
    wrap_while_held(rt, job);
    mp_optimizer_init(rt, &job->optimizer, run->optimizer, job->parallel.optimized,
                      job->parallel.n_optimized);
    struct mp_tensor *ids = mp_take(rt, mp_empty(rt, MP_SHAPE(run->batch, run->seq), MP_I64));
    const struct mp_inputs in = {
        .input_ids = ids, .labels = ids, .batch = run->batch, .seq = run->seq};
    for (int i = 0; i < 2; i++)
        one_iteration(rt, job, &in);
}

static void check_labelled(const struct mp_run *run, const char *id, struct log_reader *r)
{
    static struct loop loop;
    struct memplan_error err = {0};
    struct mp_program program;
    mp_program_init(&program);
    loop.run = run;
    enum memplan_status status = mp_job_open(&loop.job, run, &program, &err);
    if (status == MEMPLAN_STATUS_OK)
        status = mp_runtime_protect(&loop.job.rt, labelled_loop, &loop);
    ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s: %s", id, err.text);
    compare_log(id, r, &program, 0);
    mp_job_close(&loop.job);
    mp_program_release(&program);
}

START_TEST(labelled_logs_event_by_event)
{
    struct log_reader r;
    struct mp_arena arena;
    mp_arena_init(&arena);
    open_logs(&r, DATA "labelled.txt.gz");
    int n = 0;
    for (const struct mp_value *head; (head = next_log(&r, &arena)) != NULL; n++) {
        const char *id = mp_value_get(head, "id")->as.string.text;
        check_labelled(resolve(&arena, id, mp_value_get(head, "run")), id, &r);
    }
    ck_assert_int_eq(n, 32);
    mp_strbuf_release(&r.text);
    mp_arena_release(&arena);
}
END_TEST

/* ---- the measured loop ---- */

static void run_job(const struct mp_run *run, const char *id, struct mp_program *program)
{
    static struct mp_job job;
    struct memplan_error err = {0};
    mp_program_init(program);
    enum memplan_status status = mp_job_open(&job, run, program, &err);
    if (status == MEMPLAN_STATUS_OK)
        status = mp_job_build(&job);
    for (int64_t i = 0; status == MEMPLAN_STATUS_OK && i < run->iterations; i++)
        status = mp_job_step(&job);
    ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s: %s", id, err.text);
    mp_job_close(&job);
}

static int64_t integer(const struct mp_value *head, const char *key)
{
    const struct mp_value *value = mp_value_get(head, key);
    return value != NULL ? value->as.integer : 0;
}

START_TEST(logs_of_options_event_by_event)
{
    struct log_reader r;
    struct mp_arena arena;
    mp_arena_init(&arena);
    open_logs(&r, DATA "options.txt.gz");
    int n = 0;
    for (const struct mp_value *head; (head = next_log(&r, &arena)) != NULL; n++) {
        const char *id = mp_value_get(head, "id")->as.string.text;
        struct mp_run run = *resolve(&arena, id, mp_value_get(head, "run"));
        run.rank = integer(head, "rank");
        run.ddp.lingers = (int)integer(head, "lingers");
        struct mp_program program;
        run_job(&run, id, &program);
        compare_log(id, &r, &program, 0);
        mp_program_release(&program);
    }
    ck_assert_int_eq(n, 60);
    mp_strbuf_release(&r.text);
    mp_arena_release(&arena);
}
END_TEST

/* DeepSpeed's scalars of a step are not modelled one by one: they are left out. */
START_TEST(logs_of_engines_event_by_event)
{
    struct log_reader r;
    struct mp_arena arena;
    mp_arena_init(&arena);
    open_logs(&r, DATA "engines.txt.gz");
    int n = 0;
    for (const struct mp_value *head; (head = next_log(&r, &arena)) != NULL; n++) {
        const char *id = mp_value_get(head, "id")->as.string.text;
        struct mp_program program;
        run_job(resolve(&arena, id, mp_value_get(head, "run")), id, &program);
        compare_log(id, &r, &program, 704);
        mp_program_release(&program);
    }
    ck_assert_int_eq(n, 14);
    mp_strbuf_release(&r.text);
    mp_arena_release(&arena);
}
END_TEST

/* ---- measured runs ---- */

static bool phases_agree(const struct mp_program *p, const struct mp_measured *m)
{
    if (p->n_phases != m->n_phases)
        return false;
    for (size_t i = 0; i < m->n_phases; i++) {
        const struct mp_phase *phase = &p->phases[i];
        if (strcmp(phase->name, m->phases[i].phase) != 0 ||
            (int64_t)phase->requested_bytes != m->phases[i].requested ||
            (int64_t)phase->requested_peak_bytes != m->phases[i].requested_peak)
            return false;
    }
    return true;
}

/* One of the outcomes that timing decides between. */
static bool some_outcome_agrees(const struct mp_run *run, const char *id,
                                const struct mp_measured *m)
{
    const int outcomes = run->parallel == MP_PARALLEL_FSDP2 ? 1 : 3;
    bool agrees = false;
    for (int lingers = 0; lingers < outcomes && !agrees; lingers++) {
        struct mp_run other = *run;
        struct mp_program program;
        other.ddp.lingers = lingers;
        run_job(&other, id, &program);
        agrees = phases_agree(&program, m);
        mp_program_release(&program);
    }
    return agrees;
}

static bool within(uint64_t predicted, int64_t measured, int64_t per_cent)
{
    const int64_t difference = (int64_t)predicted - measured;
    return (difference < 0 ? -difference : difference) * 100 <= measured * per_cent;
}

struct tally {
    int n, requested_exact, allocated_exact, reserved_exact, reserved_close, device_close, phases;
};

static void check_measured(const struct mp_run *run, const char *id, const struct mp_measured *m,
                           struct tally *tally)
{
    struct memplan_error err = {0};
    struct mp_evaluation e;
    ck_assert_msg(some_outcome_agrees(run, id, m), "%s: phases differ in every outcome", id);
    ck_assert_msg(mp_evaluate(run, NULL, &e, &err) == MEMPLAN_STATUS_OK, "%s: %s", id, err.text);
    const bool point = (int64_t)e.requested_bytes == m->requested_bytes;
    ck_assert_msg(point || (int64_t)e.upper.requested_bytes == m->requested_bytes,
                  "%s: requested is neither outcome", id);
    ck_assert_msg(e.upper.requested_bytes >= e.requested_bytes &&
                      e.upper.reserved_bytes >= e.reserved_bytes,
                  "%s: upper is below the point", id);
    ck_assert_msg(e.upper.differs || e.upper.reserved_bytes == e.reserved_bytes,
                  "%s: upper differs, but does not say so", id);
    const bool lower = within(e.reserved_bytes, m->reserved_bytes, 1);
    tally->n++;
    tally->reserved_exact += (int64_t)e.reserved_bytes == m->reserved_bytes ||
                             (int64_t)e.upper.reserved_bytes == m->reserved_bytes;
    tally->reserved_close += lower || within(e.upper.reserved_bytes, m->reserved_bytes, 1);
    tally->device_close +=
        within(lower ? e.device_used_bytes : e.upper.device_used_bytes, m->device_used_bytes, 1);
    mp_evaluation_release(&e);
}

typedef void check_line(const struct mp_run *run, const char *id, const struct mp_measured *m,
                        struct tally *tally);

static void check_file(const char *path, check_line *check, struct tally *tally)
{
    struct memplan_error err = {0};
    struct mp_arena arena;
    mp_arena_init(&arena);
    struct mp_measured_reader *reader = mp_measured_open(path, &err);
    ck_assert_msg(reader != NULL, "%s", err.text);
    for (;;) {
        struct mp_measured_line line;
        bool end;
        const enum memplan_status status = mp_measured_next(reader, &arena, &line, &end, &err);
        if (end)
            break;
        ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s", err.text);
        check(resolve(&arena, line.id, line.run), line.id, line.measured, tally);
    }
    mp_measured_close(reader);
    mp_arena_release(&arena);
}

START_TEST(runs_on_two_gpus)
{
    struct tally tally = {0};
    check_file(DATA "h200-two-ranks.jsonl", check_measured, &tally);
    ck_assert_int_eq(tally.n, 12);
    ck_assert_int_ge(tally.reserved_exact, 11);
    ck_assert_int_eq(tally.reserved_close, 12);
    ck_assert_int_eq(tally.device_close, 12);
}
END_TEST

START_TEST(runs_of_many_ranks_without_communication)
{
    struct tally tally = {0};
    check_file(DATA "h200-fsdp-ranks.jsonl", check_measured, &tally);
    ck_assert_int_eq(tally.n, 11);
    ck_assert_int_eq(tally.reserved_exact, 11);
    ck_assert_int_eq(tally.device_close, 11);
}
END_TEST

/* ---- addresses of segments ---- */

struct segments {
    uint64_t bytes[512], address[512];
    size_t n;
};

static void note_segment(void *context, const struct mp_allocator_note *note)
{
    struct segments *s = context;
    if (note->action != MP_ALLOCATOR_SEGMENT_ALLOC)
        return;
    ck_assert_uint_lt(s->n, MP_ARRAY_LEN(s->bytes));
    s->bytes[s->n] = note->bytes;
    s->address[s->n++] = note->address;
}

/* Small pool: its segments have one size, which no segment of the large pool has. */
static bool is_small(uint64_t segment_bytes)
{
    return segment_bytes == 2 * MP_MIB;
}

/* The first line is the head, then "BYTES ADDRESS" of each segment. */
static void read_segments(struct log_reader *r, struct segments *s)
{
    for (char *end; *r->at != '\0'; r->at = end + 1, s->n++) {
        s->bytes[s->n] = strtoull(r->at, &end, 10);
        s->address[s->n] = strtoull(end + 1, &end, 16);
    }
}

/*
 * The allocator breaks ties between blocks of a pool by address, so it is their order that must be right: of every two segments of a
 * pool the same one lies lower.
 */
static const struct {
    const char *file;
    size_t n;
} segment_files[] = {{"segments.txt", 178}, {"segments-two-ranks.txt", 128}};

START_TEST(segments_lie_in_the_drivers_order)
{
    static struct segments recorded, predicted;
    char path[256];
    struct log_reader r;
    struct mp_arena arena;
    struct memplan_error err = {0};
    struct mp_evaluation e;
    const struct mp_evaluate_options options = {.observer = note_segment, .observer_context = &predicted, .one_outcome = true};
    mp_arena_init(&arena);
    snprintf(path, sizeof path, "%s%s", DATA, segment_files[_i].file);
    open_logs(&r, path);
    const struct mp_value *head = next_log(&r, &arena);
    const struct mp_run *run = resolve(&arena, "segments", mp_value_get(head, "run"));
    read_segments(&r, &recorded);
    ck_assert_msg(mp_evaluate(run, &options, &e, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_uint_eq(recorded.n, segment_files[_i].n);
    ck_assert_uint_eq(predicted.n, recorded.n);
    for (size_t i = 0; i < recorded.n; i++) {
        ck_assert_uint_eq(predicted.bytes[i], recorded.bytes[i]);
        for (size_t k = 0; k < i; k++)
            ck_assert_msg(is_small(recorded.bytes[k]) != is_small(recorded.bytes[i]) ||
                              (predicted.address[k] < predicted.address[i]) ==
                                  (recorded.address[k] < recorded.address[i]),
                          "segments %zu and %zu lie the other way round", k, i);
    }
    mp_evaluation_release(&e);
    mp_strbuf_release(&r.text);
    mp_arena_release(&arena);
}
END_TEST

/* DeepSpeed's scalars of a step are not modelled one by one, but their peaks are. */
static void check_deepspeed(const struct mp_run *run, const char *id, const struct mp_measured *m,
                            struct tally *tally)
{
    struct memplan_error err = {0};
    struct mp_evaluation e;
    struct mp_program program;
    run_job(run, id, &program);
    tally->n++;
    tally->phases += phases_agree(&program, m);
    mp_program_release(&program);
    ck_assert_msg(mp_evaluate(run, NULL, &e, &err) == MEMPLAN_STATUS_OK, "%s: %s", id, err.text);
    ck_assert_msg(within(e.requested_bytes, m->requested_bytes, 1),
                  "%s: requested %" PRIu64 " is not %" PRId64, id, e.requested_bytes,
                  m->requested_bytes);
    ck_assert_msg(within(e.allocated_bytes, m->allocated_bytes, 1),
                  "%s: allocated %" PRIu64 " is not %" PRId64, id, e.allocated_bytes,
                  m->allocated_bytes);
    tally->requested_exact += (int64_t)e.requested_bytes == m->requested_bytes;
    tally->allocated_exact += (int64_t)e.allocated_bytes == m->allocated_bytes;
    tally->reserved_exact += (int64_t)e.reserved_bytes == m->reserved_bytes;
    mp_evaluation_release(&e);
}

START_TEST(runs_of_deepspeed)
{
    struct tally tally = {0};
    check_file("validate/results/h200-deepspeed.jsonl", check_deepspeed, &tally);
    ck_assert_int_eq(tally.n, 76);
    ck_assert_int_eq(tally.requested_exact, 76);
    ck_assert_int_ge(tally.allocated_exact, 75);
    ck_assert_int_eq(tally.reserved_exact, 76);
    ck_assert_int_eq(tally.phases, 76);
}
END_TEST

/* ---- ds_config.json ---- */

static const struct {
    const char *config, *problem; /* problem NULL: accepted */
    int stage;
    int64_t reduce_bucket_size;
    bool overlap_comm;
} configs[] = {
    {"{\"zero_optimization\": {\"stage\": 2}}", NULL, 2, 500000000, false},
    {"{\"zero_optimization\": {\"stage\": 3}}", NULL, 3, 500000000, true},
    {"{\"zero_optimization\": {\"stage\": 1, \"reduce_bucket_size\": 2e8}}", NULL, 1, 200000000,
     false},
    {"{\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\", \"overlap_comm\": "
     "false}}",
     NULL, 3, 500000000, false},
    {"{\"zero_optimization\": {\"stage\": 2, \"allgather_partitions\": true}, \"steps_per_print\": "
     "10}",
     NULL, 2, 500000000, false},
    {"{\"bf16\": {\"enabled\": true}}", "zero_optimization.stage: missing", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 4}}", "zero_optimization.stage", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": -1}}",
     "reduce_bucket_size: -1 is not a number of elements", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}}",
     "zero_quantized_weights: not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 1}, \"bf16\": {\"enabled\": true}, \"fp16\": "
     "{\"enabled\": true}}",
     "bf16 is enabled too", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 1}, \"optimizer\": {\"type\": \"Lamb\"}}",
     "optimizer.type", 0, 0, false},
    {"[]", "not the object", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 0}}", "use data_parallel: ddp", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2}, \"tensor_parallel\": {\"autotp_size\": 4}}",
     "tensor_parallel.autotp_size: not here yet", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 3}, \"sequence_parallel_size\": 2}",
     "sequence_parallel_size: not here yet", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2, \"reduce_bucketsize\": 5}}", "did you mean 'reduce_bucket_size'", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2, \"nonsense\": 5}}", "DeepSpeed refuses it too", 0, 0, false},
    {"{\"zero_optimisation\": {\"stage\": 2}}", "did you mean 'zero_optimization'", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2, \"reduce_scatter\": false}}", "reduce_scatter: false is not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2, \"zenflow\": {}}}", "zenflow: not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 3, \"leaf_module\": {\"classes\": []}}}", "leaf_module: not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 3, \"stage3_module_granularity_threshold\": 4000}}", "granularity_threshold: not supported", 0, 0,
      false},
    {"{\"zero_optimization\": {\"stage\": 2}, \"amp\": {\"enabled\": true, \"opt_level\": \"O1\"}}", "amp.enabled: not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2}, \"torch_autocast\": {\"enabled\": true}}", "torch_autocast.enabled: not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 4}}", "mics_shard_size: not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.3}}}",
     "zero_optimization.offload_optimizer.ratio: not supported", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 2}, \"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp32\"}",
     "communication_data_type: \"fp32\" is not supported with weights in bf16", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 1}, \"bf16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
     "data_types.grad_accum_dtype: \"fp32\" is not supported with weights in bf16", 0, 0, false},
    {"{\"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": -1, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 1.0}}, \"bf16\": "
     "{\"enabled\": true}, \"amp\": {\"enabled\": false}, \"communication_data_type\": \"bf16\", \"data_types\": {\"grad_accum_dtype\": "
     "\"bf16\"}}",
     NULL, 3, 500000000, true},
    {"{\"zero_optimization\": {\"stage\": 2}, \"communication_data_type\": \"fp32\", \"data_types\": {\"grad_accum_dtype\": null}}", NULL, 2, 500000000,
     false},
    {"{ // ours, \"really\"\n\"zero_optimization\": {\"stage\": 3, # three\n\"overlap_comm\": false,}, /* \"aio\": {},\n */"
     " \"aio\": {}, \"url\": \"http://x/#y,}\",\n}",
     NULL, 3, 500000000, false},
    {"{\"zero_optimization\": {\"stage\": 2, \"cpu_offload\": true}, \"bfloat16\": {\"enabled\": "
     "true}, \"tensor_parallel\": {\"autotp_size\": 1}}",
     NULL, 2, 500000000, false},
};

START_TEST(reads_deepspeed_configurations)
{
    struct mp_arena arena;
    struct memplan_error err = {0};
    struct mp_deepspeed_options o;
    char text[512];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text, "%s", configs[_i].config);
    mp_deepspeed_plain_json(text, strlen(text));
    const struct mp_value *value = mp_json_parse(&arena, "ds.json", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s: %s", text, err.text);
    const enum memplan_status status = mp_deepspeed_options_read(&o, "ds.json", value, &err);
    if (configs[_i].problem != NULL) {
        ck_assert_msg(status != MEMPLAN_STATUS_OK, "%s is accepted", text);
        ck_assert_msg(strstr(err.text, configs[_i].problem) != NULL, "%s: %s", text, err.text);
    } else {
        ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s: %s", text, err.text);
        ck_assert_int_eq(o.stage, configs[_i].stage);
        ck_assert_int_eq(o.reduce_bucket_size, configs[_i].reduce_bucket_size);
        ck_assert_int_eq(o.overlap_comm, configs[_i].overlap_comm);
    }
    mp_arena_release(&arena);
}
END_TEST

/* Files as they are found, with "auto" wherever transformers fills in. */
static const struct {
    const char *name;
    int stage;
    int64_t batch, accumulate, reduce_bucket, prefetch_bucket, persistence;
    enum mp_precision precision;
    bool offload_optimizer, offload_param;
} files[] = {
    {"zero2-auto.json", 2, 1, 1, INT64_C(2048) * 2048, 50000000, 100000, MP_PRECISION_BF16, false, false},
    {"zero3-offload-auto.json", 3, 8, 1, INT64_C(2048) * 2048, 3774873, 20480, MP_PRECISION_BF16, true, false},
    {"zero3-sizes.json", 3, 2, 4, 500000000, 500000000, 1000000, MP_PRECISION_FP16, true, true},
    {"zero2-old.json", 2, 4, 2, 50000000, 50000000, 100000, MP_PRECISION_FP16, true, false},
};

START_TEST(reads_files_as_they_are_found)
{
    struct mp_arena arena;
    struct memplan_error err = {0};
    struct mp_run_source source;
    char path[128];
    mp_arena_init(&arena);
    (void)snprintf(path, sizeof path, "tests/data/deepspeed/%s", files[_i].name);
    mp_run_source_init(&source, &arena);
    const char *const texts[][2] = {{"model", "llama3.2-1b"}, {"gpu", "H200-141G"}, {"world", "8"}, {"deepspeed", path}};
    for (size_t i = 0; i < MP_ARRAY_LEN(texts); i++)
        ck_assert_msg(mp_run_source_text(&source, texts[i][0], "--flag", texts[i][1], &err) == MEMPLAN_STATUS_OK,
                      "%s: %s", path, err.text);
    const struct mp_run *run = mp_run_resolve(&source, &err);
    ck_assert_msg(run != NULL, "%s: %s", path, err.text);
    ck_assert_int_eq(run->deepspeed.stage, files[_i].stage);
    ck_assert_int_eq(run->batch, files[_i].batch);
    ck_assert_int_eq(run->accumulate, files[_i].accumulate);
    ck_assert_int_eq(run->deepspeed.reduce_bucket_size, files[_i].reduce_bucket);
    ck_assert_int_eq(run->deepspeed.prefetch_bucket_size, files[_i].prefetch_bucket);
    ck_assert_int_eq(run->deepspeed.persistence_threshold, files[_i].persistence);
    ck_assert_int_eq(run->precision, files[_i].precision);
    ck_assert_int_eq(run->deepspeed.offload_optimizer, files[_i].offload_optimizer);
    ck_assert_int_eq(run->deepspeed.offload_param, files[_i].offload_param);
    mp_arena_release(&arena);
}
END_TEST

/* ---- rules alone ---- */

struct runtime_test {
    struct mp_runtime rt;
    struct mp_program program;
    struct memplan_error err;
    struct mp_gpu gpu;
};

static void start(struct runtime_test *t)
{
    *t = (struct runtime_test){.gpu = {.sms = 132, .threads_per_sm = 2048}};
    mp_program_init(&t->program);
    mp_runtime_init(&t->rt, &t->gpu, &t->program, &t->err);
}

static void stop(struct runtime_test *t)
{
    mp_runtime_release(&t->rt);
    mp_program_release(&t->program);
}

static const struct {
    const char *what;
    uint64_t limits[2];
    int n_limits;
    bool by_first;
    int64_t sizes[6]; /* elements; negative: bf16 */
    int n, n_buckets, bucket_of[6];
} bucket_cases[] = {
    {"all in one", {UINT64_MAX}, 1, true, {10, 20, 30}, 3, 1, {0, 0, 0}},
    {"closed when the limit is reached", {100}, 1, true, {10, 20, 30, 40}, 4, 3, {0, 0, 1, 2}},
    {"one that overshoots stays in", {100}, 1, true, {10, 1000, 1}, 3, 2, {0, 0, 1}},
    {"another limit after the first", {4, 1000}, 2, false, {1, 100, 200, 1}, 4, 3, {0, 1, 1, 2}},
    {"one open bucket per type", {UINT64_MAX}, 1, true, {1, -1, 2, -2}, 4, 2, {0, 1, 0, 1}},
    {"numbered when they close", {8}, 1, false, {1, -4, 1}, 3, 2, {1, 0, 1}},
    {"numbered by their first tensor", {8}, 1, true, {1, -4, 1}, 3, 2, {0, 1, 0}},
    {"nothing to assign", {8}, 1, true, {0}, 0, 0, {0}},
};

START_TEST(tensors_fill_buckets_in_order)
{
    struct runtime_test t;
    struct mp_tensor *tensors[6];
    int bucket_of[6] = {0};
    start(&t);
    for (int i = 0; i < bucket_cases[_i].n; i++) {
        const int64_t size = bucket_cases[_i].sizes[i];
        tensors[i] = mp_take(
            &t.rt, mp_empty(&t.rt, MP_SHAPE(size < 0 ? -size : size), size < 0 ? MP_BF16 : MP_F32));
    }
    const int n =
        mp_assign_buckets(&t.rt, tensors, bucket_cases[_i].n, bucket_cases[_i].limits,
                          bucket_cases[_i].n_limits, bucket_cases[_i].by_first, bucket_of);
    ck_assert_msg(n == bucket_cases[_i].n_buckets, "%s: %d buckets", bucket_cases[_i].what, n);
    for (int i = 0; i < bucket_cases[_i].n; i++)
        ck_assert_msg(bucket_of[i] == bucket_cases[_i].bucket_of[i],
                      "%s: tensor %d is in bucket %d", bucket_cases[_i].what, i, bucket_of[i]);
    stop(&t);
}
END_TEST

START_TEST(zero1_gives_the_largest_to_who_has_least)
{
    static const int64_t sizes[] = {5, 9, 1, 7, 3};
    static const int64_t of_rank_0[] = {9, 3, 1};
    struct runtime_test t;
    struct mp_tensor *tensors[5], *mine[5];
    start(&t);
    for (int i = 0; i < 5; i++)
        tensors[i] = mp_take(&t.rt, mp_empty(&t.rt, MP_SHAPE(sizes[i]), MP_F32));
    ck_assert_int_eq(mp_zero1_partition(&t.rt, tensors, 5, 2, 1, mine), 2); /* 7, 5 */
    const int n = mp_zero1_partition(&t.rt, tensors, 5, 2, 0, mine);
    ck_assert_int_eq(n, 3);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(mp_numel(mine[i]), of_rank_0[i]);
    ck_assert_int_eq(mp_zero1_fullest_rank(&t.rt, tensors, 5, 2), 0);
    stop(&t);
}
END_TEST

/* ---- what each way of sharing does to a job ---- */

#define TINY                                                                                       \
    "{\"model\": {\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_embd\": 256, \"n_head\": 4, "      \
    "\"vocab_size\": 5003, \"n_positions\": 64}, \"gpu\": \"H200-141G\", \"batch\": 1, "           \
    "\"seq\": 64, \"precision\": \"bf16\", \"iterations\": 3"

static uint64_t peak_of(const char *options, int64_t rank)
{
    struct mp_arena arena;
    struct mp_program program;
    mp_arena_init(&arena);
    char text[1024];
    (void)snprintf(text, sizeof text, TINY "%s}", options);
    struct mp_run run = *run_of(&arena, text);
    run.rank = rank;
    run_job(&run, options, &program);
    const uint64_t peak = program.peak_bytes;
    mp_program_release(&program);
    mp_arena_release(&arena);
    return peak;
}

/* The peak of the first is above that of the second. */
#define DEEPSPEED(stage, more)                                                                     \
    ", \"world\": 8, \"deepspeed\": {\"zero_optimization\": {\"stage\": " stage                    \
    ", \"reduce_bucket_size\": 1000000" more "}}"
static const struct {
    const char *more, *less;
} orders[] = {
    {DEEPSPEED("2", ""), DEEPSPEED("2", ", \"offload_optimizer\": {\"device\": \"cpu\"}")},
    {DEEPSPEED("3", ", \"contiguous_gradients\": true"),
     DEEPSPEED("3", ", \"contiguous_gradients\": false")},
    {", \"data_parallel\": \"ddp\", \"world\": 8", ""},
    {", \"data_parallel\": \"ddp\", \"world\": 8",
     ", \"data_parallel\": \"ddp\", \"world\": 8, \"ddp\": {\"gradient_as_bucket_view\": true}"},
    {", \"data_parallel\": \"ddp\", \"world\": 8", ", \"data_parallel\": \"zero1\", \"world\": 8"},
    {", \"data_parallel\": \"zero1\", \"world\": 2",
     ", \"data_parallel\": \"zero1\", \"world\": 8"},
    {", \"data_parallel\": \"zero1\", \"world\": 8",
     ", \"data_parallel\": \"fsdp2\", \"world\": 8"},
    {", \"data_parallel\": \"fsdp2\", \"world\": 2",
     ", \"data_parallel\": \"fsdp2\", \"world\": 8"},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8, \"fsdp\": {\"reshard_after_forward\": false}",
     ", \"data_parallel\": \"fsdp2\", \"world\": 8"},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8",
     ", \"data_parallel\": \"fsdp2\", \"world\": 8, \"fsdp\": {\"offload\": true}"},
    {", \"data_parallel\": \"ddp\", \"world\": 8, \"ddp\": {\"compression\": \"fp16\"}",
     ", \"data_parallel\": \"ddp\", \"world\": 8"},
};

START_TEST(sharing_more_takes_less)
{
    const uint64_t more = peak_of(orders[_i].more, 0), less = peak_of(orders[_i].less, 0);
    ck_assert_msg(more > less, "%s: %" PRIu64 ", %s: %" PRIu64, orders[_i].more, more,
                  orders[_i].less, less);
}
END_TEST

START_TEST(no_rank_holds_more_than_the_first_under_fsdp2)
{
    const char *const options = ", \"data_parallel\": \"fsdp2\", \"world\": 7, \"gpus_per_node\": "
                                "7, \"optimizer\": \"sgd-momentum\"";
    const uint64_t first = peak_of(options, 0);
    for (int64_t rank = 1; rank < 7; rank++)
        ck_assert_uint_le(peak_of(options, rank), first);
}
END_TEST

/* 6.76e9 fp32 gradients over 32 ranks are 0.79 GiB; a shard is never less than its part of the whole, nor a row more per parameter. */
START_TEST(shards_add_up)
{
    for (int64_t world = 1; world <= 64; world *= 2) {
        struct mp_arena arena;
        struct mp_program program;
        char text[1024];
        mp_arena_init(&arena);
        (void)snprintf(text, sizeof text,
                       TINY ", \"data_parallel\": \"fsdp2\", \"world\": %" PRId64
                            ", \"collectives\": \"none\"}",
                       world);
        const struct mp_run *run = run_of(&arena, text);
        run_job(run, "shards", &program);
        const uint64_t whole = program.phases[0].requested_bytes,
                       shard = program.phases[1].requested_bytes;
        const uint64_t rows =
            UINT64_C(3 * 12 + 4) * 4 * 256 * 2; /* one more row of each parameter at most */
        ck_assert_msg(shard * (uint64_t)world >= whole && shard <= whole / (uint64_t)world + rows,
                      "%" PRId64 " ranks: %" PRIu64 " of %" PRIu64 " bytes", world, shard, whole);
        mp_program_release(&program);
        mp_arena_release(&arena);
    }
}
END_TEST

/* ---- wrong answers that are known from elsewhere ---- */

#define LLAMA_7B                                                                                   \
    "{\"model\": \"llama2-7b\", \"gpu\": \"H200-141G\", \"batch\": 1, \"iterations\": 2, \"world\": 32"

/* Live bytes of a category at the end of a phase. */
static uint64_t category_at(const struct mp_program *p, const char *phase, enum mp_category category)
{
    struct mp_arena arena;
    struct memplan_error err = {0};
    uint32_t i = 0;
    while (i < p->n_phases && strcmp(p->phases[i].name, phase) != 0)
        i++;
    ck_assert_msg(i < p->n_phases, "no phase %s", phase);
    mp_arena_init(&arena);
    const struct mp_ledger *ledger = mp_ledger_at(p, p->phases[i].event, &arena, &err);
    ck_assert_ptr_nonnull(ledger);
    const uint64_t bytes = ledger->by_category[category];
    mp_arena_release(&arena);
    return bytes;
}

static void evaluate_whole(struct mp_arena *arena, const char *text, struct mp_evaluation *e)
{
    const struct mp_evaluate_options options = {.keep_tags = true, .one_outcome = true};
    struct memplan_error err = {0};
    ck_assert_msg(mp_evaluate(run_of(arena, text), &options, e, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
}

/* Gradients of 6.74e9 parameters in fp32 are 25.1 GiB; a rank of 32 keeps its share, and the rest of parameters that cross its bounds. */
START_TEST(a_shard_of_the_gradients_is_not_all_of_them)
{
    static const char *const stages[] = {"deepspeed-zero2", "deepspeed-zero3"};
    const double whole = 4 * 6738415616.0, share = whole / 32, largest = 4 * 32000 * 4096.0;
    struct mp_arena arena;
    struct mp_evaluation e;
    char text[512];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text, LLAMA_7B ", \"seq\": 128, \"precision\": \"fp32\", \"data_parallel\": \"%s\"}", stages[_i]);
    evaluate_whole(&arena, text, &e);
    const double kept = (double)category_at(&e.program, "it0.mb0.bwd", MP_CATEGORY_GRADIENT);
    ck_assert_msg(kept >= share && kept <= share + 2 * largest, "%.2f GiB of gradients", kept / 1073741824);
    if (_i == 1)
        ck_assert_double_eq_tol(kept / 1073741824, 0.784, 0.001);
    mp_evaluation_release(&e);
    mp_arena_release(&arena);
}
END_TEST

/* BERT's head has a bias that only a tied decoder uses. */
#define UNTIED "{\"model\": {\"model_type\": \"bert\", \"num_hidden_layers\": 1, \"tie_word_embeddings\": false}, \"gpu\": \"H200-141G\", "

static const struct {
    const char *keys, *told;
} unused[] = {
    {"\"ddp\": {}", "1 of 28 parameters get no gradient, 'cls.predictions.bias'"},
    {"\"ddp\": {\"find_unused_parameters\": true}", NULL},
};

START_TEST(ddp_does_not_go_on_without_a_gradient)
{
    struct mp_arena arena;
    struct mp_evaluation e;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    const struct mp_evaluate_options options = {.keep_tags = false};
    char text[256];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text, "%s\"batch\": 2, \"seq\": 64, \"world\": 2, \"data_parallel\": \"ddp\", %s}", UNTIED, unused[_i].keys);
    const enum memplan_status status = mp_evaluate(small_run(&arena, text), &options, &e, &err);
    if (unused[_i].told == NULL) {
        ck_assert_msg(status == MEMPLAN_STATUS_OK, "%s", err.text);
        mp_evaluation_release(&e);
    } else {
        ck_assert_int_eq(status, MEMPLAN_STATUS_INPUT);
        ck_assert_msg(strstr(err.text, unused[_i].told) != NULL, "%s", err.text);
    }
    mp_arena_release(&arena);
}
END_TEST

/* bf16 weights and fp32 masters of a rank of 32 are 6 bytes for each of its parameters: divided once, not by 32 twice. */
START_TEST(stage_3_divides_parameters_once)
{
    struct mp_arena arena;
    struct mp_evaluation e;
    mp_arena_init(&arena);
    evaluate_whole(&arena, LLAMA_7B ", \"seq\": 2048, \"precision\": \"bf16\", \"data_parallel\": \"deepspeed-zero3\"}", &e);
    const double parameters = (double)category_at(&e.program, "wrap", MP_CATEGORY_PARAMETER), share = 6 * 6738415616.0 / 32;
    ck_assert_msg(parameters >= share && parameters < 1.02 * share, "%.0f bytes of parameters", parameters);
    /* and there is more to a job than its shares: one like it was predicted at 0.49 GB and took 14 to 21 */
    ck_assert_uint_gt(e.requested_bytes, UINT64_C(14000000000));
    ck_assert_uint_lt(e.requested_bytes, UINT64_C(21000000000));
    mp_evaluation_release(&e);
    mp_arena_release(&arena);
}
END_TEST

static const char *const recomputed[] = {
    "\"model\": \"gpt2\", \"batch\": 4, \"seq\": 1024",
    "\"model\": \"gpt2\", \"batch\": 1, \"seq\": 64",
    "\"model\": \"bert-base\", \"batch\": 8, \"seq\": 512",
    "\"model\": \"llama3.2-1b\", \"batch\": 2, \"seq\": 2048, \"precision\": \"bf16\"",
    "\"model\": \"llama3.2-1b\", \"batch\": 2, \"seq\": 512, \"data_parallel\": \"fsdp2\", \"world\": 8",
};

static uint64_t peak_with(const char *run, const char *checkpoint)
{
    struct mp_arena arena;
    struct mp_evaluation e;
    char text[512];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text, "{%s, \"gpu\": \"H200-141G\", \"iterations\": 2, \"checkpoint\": %s}", run, checkpoint);
    evaluate_whole(&arena, text, &e);
    const uint64_t peak = e.requested_bytes;
    mp_evaluation_release(&e);
    mp_arena_release(&arena);
    return peak;
}

START_TEST(full_recomputation_never_takes_more_than_selective)
{
    const char *const run = recomputed[_i];
    const uint64_t full = peak_with(run, "\"full\""), half = peak_with(run, "{\"layers\": [0, 2, 4, 6, 8]}");
    ck_assert_msg(full <= half, "%s: %" PRIu64 " is more than %" PRIu64, run, full, half);
}
END_TEST

static const struct mp_phase_peaks *phase_of(const struct mp_evaluation *e, const char *name)
{
    for (size_t i = 0; i < e->n_phases; i++)
        if (strcmp(e->phases[i].name, name) == 0)
            return &e->phases[i];
    ck_abort_msg("no phase %s", name);
    return NULL;
}

/* State is made in the first step while gradients and temporaries live: with a short sequence nothing later takes more. */
START_TEST(the_first_step_of_the_optimizer_can_be_the_peak)
{
    struct mp_arena arena;
    struct mp_evaluation e;
    mp_arena_init(&arena);
    evaluate_whole(&arena, "{\"model\": \"gpt2\", \"gpu\": \"H200-141G\", \"batch\": 1, \"seq\": 64, \"precision\": \"fp32\", \"iterations\": 3}", &e);
    ck_assert_uint_eq(phase_of(&e, "it0.opt")->requested_peak_bytes, e.requested_bytes);
    ck_assert_uint_lt(phase_of(&e, "it0.mb0.bwd")->requested_peak_bytes, e.requested_bytes);
    mp_evaluation_release(&e);
    mp_arena_release(&arena);
}
END_TEST

/* From the second micro-batch on gradients live beside activations: the peak is their sum, not the larger of them. */
START_TEST(activations_and_gradients_coexist)
{
    static const char *const shared[] = {"", ", \"data_parallel\": \"ddp\", \"world\": 2",
                                         ", \"data_parallel\": \"fsdp2\", \"world\": 2"};
    struct mp_arena arena;
    struct mp_evaluation e;
    char text[512];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text,
                   "{\"model\": \"gpt2\", \"gpu\": \"H200-141G\", \"batch\": 4, \"seq\": 512, \"precision\": \"bf16\", \"accumulate\": 2, "
                   "\"release_outputs\": true, \"iterations\": 1%s}",
                   shared[_i]);
    evaluate_whole(&arena, text, &e);
    const uint64_t gradients = category_at(&e.program, "it0.mb0.bwd", MP_CATEGORY_GRADIENT);
    ck_assert_uint_gt(gradients, 100000000);
    ck_assert_uint_ge(phase_of(&e, "it0.mb1.fwd")->requested_peak_bytes, phase_of(&e, "it0.mb0.fwd")->requested_peak_bytes + gradients);
    mp_evaluation_release(&e);
    mp_arena_release(&arena);
}
END_TEST

/* ---- ranks ---- */

static const struct {
    const char *options, *first, *second; /* the kinds of ranks, the worst first; NULL: there is one kind */
} kinds[] = {
    {", \"data_parallel\": \"ddp\", \"world\": 8", "0-7", NULL},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8", "0-6", "7"},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8, \"fsdp\": {\"replicas\": 2}", "0-2, 4-6", "3, 7"},
    {", \"data_parallel\": \"zero1\", \"world\": 2", "0", "1"},
    {", \"data_parallel\": \"deepspeed-zero3\", \"world\": 8", "0-7", NULL},
};

START_TEST(ranks_that_hold_the_same_are_one_kind)
{
    struct mp_arena arena;
    struct memplan_error err = {0};
    struct mp_rank_kinds ranks;
    char text[1024];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text, TINY "%s}", kinds[_i].options);
    const struct mp_run *run = run_of(&arena, text);
    ck_assert_msg(mp_rank_kinds_evaluate(run, &arena, &ranks, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    int64_t n = 0;
    for (size_t i = 0; i < ranks.n; i++) {
        n += ranks.kinds[i].n;
        ck_assert(ranks.kinds[i].fits);
        ck_assert(i == 0 || ranks.kinds[i].device_used_bytes <= ranks.kinds[i - 1].device_used_bytes);
    }
    ck_assert_int_eq(n, run->world);
    ck_assert_uint_eq(ranks.n, kinds[_i].second != NULL ? 2 : 1);
    ck_assert_str_eq(ranks.kinds[0].ranks, kinds[_i].first);
    if (kinds[_i].second != NULL)
        ck_assert_str_eq(ranks.kinds[1].ranks, kinds[_i].second);
    mp_arena_release(&arena);
}
END_TEST

/* ---- advice ---- */

static const struct {
    const char *options, *what, *setting; /* setting NULL: is not offered */
    int saves;                            /* its sign; 0: any */
    bool fp32;                            /* not bf16 */
} offers[] = {
    {", \"data_parallel\": \"ddp\", \"world\": 8", "gradients as views of the buckets", "--ddp '{gradient_as_bucket_view: true}'", 1, false},
    {", \"data_parallel\": \"ddp\", \"world\": 8, \"ddp\": {\"gradient_as_bucket_view\": true}", "gradients as views of the buckets", NULL, 0, false},
    {", \"data_parallel\": \"ddp\", \"world\": 8, \"ddp\": {\"static_graph\": true}", "small buckets",
     "--ddp '{bucket_cap_mb: 5, static_graph: true}'", 0, false},
    {", \"data_parallel\": \"ddp\", \"world\": 8", "gradients compressed for the all-reduce",
     "--ddp '{compression: fp16}'", -1, true},
    {", \"data_parallel\": \"ddp\", \"world\": 8", "reduce-scatter and all-gather, not all-reduce", "--data-parallel fsdp2", 1, false},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8", "all-reduce, not reduce-scatter and all-gather", "--data-parallel ddp", -1, false},
    {", \"data_parallel\": \"ddp\", \"world\": 8", "optimizer state spread over the ranks", "--data-parallel zero1", 1, false},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8, \"fsdp\": {\"reshard_after_forward\": false}", "reshard after forward, or not",
     "--fsdp '{reshard_after_forward: true}'", 1, false},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8", "bf16 in forward and backward",
     "--fsdp '{mixed_precision: true}'", 1, true},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8", "weights, gradients or state on the host", "--fsdp '{offload: true}'", 0, false},
    {", \"data_parallel\": \"ddp\", \"world\": 8", "ZeRO stage 2", "--data-parallel deepspeed-zero2 --precision bf16", 0, false},
    {"", "ZeRO stage 2", NULL, 0, false},
    {"", "small buckets", NULL, 0, false},
};

START_TEST(advises_ways_to_share)
{
    struct mp_arena arena;
    struct memplan_error err = {0};
    struct mp_advice advice[MP_MAX_ADVICE];
    const struct mp_advice *found = NULL;
    struct mp_evaluation e;
    size_t n;
    char text[1024];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text, TINY "%s}", offers[_i].options);
    struct mp_run run = *run_of(&arena, text);
    if (offers[_i].fp32)
        run.precision = MP_PRECISION_FP32;
    ck_assert_msg(mp_evaluate(&run, NULL, &e, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert_msg(mp_advise(&e, advice, &n, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    for (size_t i = 0; i < n; i++)
        if (strcmp(advice[i].what, offers[_i].what) == 0)
            found = &advice[i];
    ck_assert_msg((found != NULL) == (offers[_i].setting != NULL), "%s: %s", offers[_i].options, offers[_i].what);
    if (found != NULL) {
        ck_assert_str_eq(found->setting, offers[_i].setting);
        ck_assert_msg(offers[_i].saves == 0 || (found->saves_bytes > 0) == (offers[_i].saves > 0), "%s saves %" PRId64, found->what,
                      found->saves_bytes);
    }
    mp_evaluation_release(&e);
    mp_arena_release(&arena);
}
END_TEST

static const struct {
    const char *options, *text;
} refused[] = {
    {", \"world\": 2", "2 ranks need data_parallel"},
    {", \"data_parallel\": \"ddp\", \"world\": 12", "12 ranks do not fill hosts of 8"},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8, \"fsdp\": {\"replicas\": 3}",
     "3 does not divide 8 ranks"},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8, \"fsdp\": {\"reshard_after_forward\": 3}",
     "3 does not divide the 8 ranks"},
    {", \"data_parallel\": \"fsdp2\", \"world\": 8, \"fsdp\": {\"reshard_after_forward\": \"yes\"}",
     "is not true, false or a number of ranks"},
    {", \"data_parallel\": \"ddp\", \"ddp\": {\"compression\": \"int8\"}", "ddp.compression"},
    {", \"data_parallel\": \"ddp\", \"ddp\": {\"static\": true}", "static_graph"},
    {", \"data_parallel\": \"deepspeed-zero1\", \"deepspeed\": {\"zero_optimization\": {\"stage\": "
     "2}}",
     "is not stage 2"},
    {", \"ddp\": {\"static_graph\": true}", "ddp: only with data_parallel: ddp or zero1, not \"none\"; set that, or leave this out"},
    {", \"data_parallel\": \"fsdp2\", \"ddp\": {\"no_sync\": true}", "ddp: only with data_parallel: ddp or zero1, not \"fsdp2\""},
    {", \"data_parallel\": \"ddp\", \"fsdp\": {\"offload\": true}", "fsdp: only with data_parallel: fsdp2, not \"ddp\""},
    {", \"fsdp\": {\"offload\": false}", "fsdp: only with data_parallel: fsdp2"},
    {", \"collectives\": \"none\"", "collectives: only with data_parallel, not \"none\""},
    {", \"tensor_parallel\": 2", "tensor_parallel: not here yet; ranks share the work by data_parallel only"},
    {", \"pipeline_parallel\": 2", "pipeline_parallel: not here yet"},
    {", \"context_parallel\": 2", "context_parallel: not here yet"},
    {", \"expert_parallel\": 2", "expert_parallel: not here yet"},
};

START_TEST(refuses_what_cannot_be)
{
    struct mp_arena arena;
    struct memplan_error err = {0};
    struct mp_run_source source;
    char text[1024];
    mp_arena_init(&arena);
    (void)snprintf(text, sizeof text, TINY "%s}", refused[_i].options);
    const struct mp_value *value = mp_json_parse(&arena, "run", text, strlen(text), &err);
    mp_run_source_init(&source, &arena);
    const bool ok = mp_run_source_object(&source, "run", value, &err) == MEMPLAN_STATUS_OK &&
                    mp_run_resolve(&source, &err) != NULL;
    ck_assert_msg(!ok && err.status == MEMPLAN_STATUS_INPUT, "%s is accepted", refused[_i].options);
    ck_assert_msg(strstr(err.text, refused[_i].text) != NULL, "%s: %s", refused[_i].options,
                  err.text);
    mp_arena_release(&arena);
}
END_TEST

Suite *suite_parallel(void)
{
    Suite *const suite = suite_create("parallel");
    TCase *const rules = tcase_create("rules"), *const recordings = tcase_create("recordings");
    tcase_add_loop_test(rules, tensors_fill_buckets_in_order, 0, (int)MP_ARRAY_LEN(bucket_cases));
    tcase_add_test(rules, zero1_gives_the_largest_to_who_has_least);
    tcase_add_loop_test(rules, sharing_more_takes_less, 0, (int)MP_ARRAY_LEN(orders));
    tcase_add_test(rules, no_rank_holds_more_than_the_first_under_fsdp2);
    tcase_add_test(rules, shards_add_up);
    tcase_add_loop_test(rules, reads_deepspeed_configurations, 0, (int)MP_ARRAY_LEN(configs));
    tcase_add_loop_test(rules, refuses_what_cannot_be, 0, (int)MP_ARRAY_LEN(refused));
    tcase_add_loop_test(rules, reads_files_as_they_are_found, 0, (int)MP_ARRAY_LEN(files));
    tcase_add_loop_test(rules, ranks_that_hold_the_same_are_one_kind, 0, (int)MP_ARRAY_LEN(kinds));
    tcase_add_loop_test(rules, advises_ways_to_share, 0, (int)MP_ARRAY_LEN(offers));
    suite_add_tcase(suite, rules);
    TCase *const wrong = tcase_create("wrong answers");
    tcase_set_timeout(wrong, 60);
    tcase_add_loop_test(wrong, a_shard_of_the_gradients_is_not_all_of_them, 0, 2);
    tcase_add_loop_test(wrong, ddp_does_not_go_on_without_a_gradient, 0, (int)MP_ARRAY_LEN(unused));
    tcase_add_test(wrong, stage_3_divides_parameters_once);
    tcase_add_loop_test(wrong, full_recomputation_never_takes_more_than_selective, 0, (int)MP_ARRAY_LEN(recomputed));
    tcase_add_test(wrong, the_first_step_of_the_optimizer_can_be_the_peak);
    tcase_add_loop_test(wrong, activations_and_gradients_coexist, 0, 3);
    suite_add_tcase(suite, wrong);
    tcase_set_timeout(recordings, 60);
    tcase_add_test(recordings, labelled_logs_event_by_event);
    tcase_add_test(recordings, logs_of_options_event_by_event);
    tcase_add_test(recordings, logs_of_engines_event_by_event);
    tcase_add_test(recordings, runs_on_two_gpus);
    tcase_add_test(recordings, runs_of_deepspeed);
    tcase_add_test(recordings, runs_of_many_ranks_without_communication);
    tcase_add_loop_test(recordings, segments_lie_in_the_drivers_order, 0, MP_ARRAY_LEN(segment_files));
    suite_add_tcase(suite, recordings);
    return suite;
}
