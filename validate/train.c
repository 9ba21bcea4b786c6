/* SPDX-License-Identifier: MIT */
/*
 * `memplan-validate train`: the program for real. Memory as in replay, and every operation is run
 * between its requests.
 *
 * Compared: memory per phase with the prediction; with --check every operation's results with a
 * float64 reference; with --losses the loss of every micro-batch with the one that PyTorch recorded
 * from the same weights and tokens.
 *
 * A data-parallel program (data_parallel: ddp) runs as one process per GPU. Rank r of n takes batches
 * r, n + r, 2 n + r, …: together they train as one process does that accumulates n micro-batches, so
 * that its losses are those to compare with.
 */
#include "commands.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "check.h"
#include "collective.h"
#include "ranks.h"

static const double loss_tolerance = 1e-4;

struct training {
    const struct arguments *a;
    struct device_facts facts;
    struct mp_program_file file;
    struct mp_arena arena;           /* of the losses file */
    const struct mp_value *expected; /* its losses; NULL: none */
    struct mp_strbuf weights;
    struct memory memory;
    struct executor executor;
    struct check check;
    double *losses; /* one per micro-batch; malloc'ed */
    size_t n_losses, cap_losses;
};

/* ---- what it starts from ---- */

static enum memplan_status read_losses(struct training *t, struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    if (!t->a->losses)
        return MEMPLAN_STATUS_OK;
    enum memplan_status status = mp_file_read(t->a->losses, 0, &text, err);
    if (!status) {
        const struct mp_value *value =
            mp_json_parse(&t->arena, t->a->losses, mp_strbuf_text(&text), text.len, err);
        t->expected = mp_value_get(value, "losses");
        t->executor.tokens = mp_value_get(value, "tokens");
        if (!value)
            status = err->status;
        else if (!t->expected || t->expected->kind != MP_ARRAY || !t->executor.tokens)
            status = mp_error_set(
                err, MEMPLAN_STATUS_INPUT,
                "%s: lists 'losses' and 'tokens' are needed; train_reference.py writes them",
                t->a->losses);
    }
    mp_strbuf_release(&text);
    return status;
}

static enum memplan_status read_weights(struct training *t, struct memplan_error *err)
{
    if (!t->a->weights)
        return MEMPLAN_STATUS_OK;
    const enum memplan_status status =
        mp_file_read(t->a->weights, UINT64_C(16) * MP_GIB, &t->weights, err);
    if (status)
        return status;
    t->executor.weights = (const float *)(const void *)t->weights.data; /* malloc'ed: aligned */
    t->executor.n_weights = t->weights.len / sizeof(float);
    return MEMPLAN_STATUS_OK;
}

/* ---- what others can start from ---- */

struct start {
    struct mp_strbuf weights, tokens; /* float32 values; JSON */
    struct mp_json_writer w;
};

static enum memplan_status add_weights(const struct training *t, struct start *start,
                                       const struct mp_op_tensor *p, struct memplan_error *err)
{
    const struct k_tensor k = executor_tensor(&t->executor, p);
    const uint64_t size = mp_dtype_bytes((enum mp_dtype)p->dtype),
                   bytes = t->file.bytes[p->storage], n = bytes / size;
    unsigned char *raw = malloc(bytes);
    if (!raw)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory on the host");
    const int failed = device_to_host(raw, (uint64_t)(uintptr_t)k.data, bytes);
    for (uint64_t i = 0; i < n && !failed; i++) {
        const float value = (float)check_value(raw + i * size, (enum mp_dtype)p->dtype);
        mp_strbuf_add(&start->weights, &value, sizeof value);
    }
    free(raw);
    return failed ? mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error()) : MEMPLAN_STATUS_OK;
}

static enum memplan_status add_tokens(const struct training *t, struct start *start,
                                      const struct mp_op_tensor *p, struct memplan_error *err)
{
    const uint64_t bytes = t->file.bytes[p->storage];
    int64_t *ids = malloc(bytes);
    if (!ids)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory on the host");
    const int failed =
        device_to_host(ids, (uint64_t)(uintptr_t)executor_tensor(&t->executor, p).data, bytes);
    mp_json_array(&start->w, NULL);
    for (uint64_t i = 0; i < bytes / sizeof *ids && !failed; i++)
        mp_json_int(&start->w, NULL, ids[i]);
    mp_json_end_array(&start->w);
    free(ids);
    return failed ? mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error()) : MEMPLAN_STATUS_OK;
}

static enum memplan_status start_op(struct training *t, struct start *start, uint32_t index,
                                    struct memplan_error *err)
{
    const struct mp_program *p = &t->file.program;
    const struct mp_op_record *op = &p->ops[index];
    const enum memplan_status status = executor_run(&t->executor, index, err);
    if (status)
        return status;
    if (strcmp(op->op, "parameter") == 0)
        return add_weights(t, start, mp_op_output(p, op, 0), err);
    if (strcmp(op->op, "input") == 0 && strcmp(mp_op_text(p, op, "kind", ""), "token_ids") == 0)
        return add_tokens(t, start, mp_op_output(p, op, 0), err);
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status run_start(struct training *t, struct start *start,
                                     struct memplan_error *err)
{
    const struct mp_program *p = &t->file.program;
    for (uint32_t i = 0; i < p->n_events && !t->memory.outcome.oom; i++) {
        const struct mp_event *e = &p->events[i];
        const enum memplan_status status = e->kind == MP_EVENT_OP
                                               ? start_op(t, start, e->id, err)
                                               : memory_event(&t->memory, i, err);
        if (status)
            return status;
        if (e->kind == MP_EVENT_MARK && strcmp(p->phases[e->id].name, "data") == 0)
            return MEMPLAN_STATUS_OK;
    }
    return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                        "%s: the program has no phase 'data', or no room for it", t->a->program);
}

static enum memplan_status write_start(struct training *t, struct memplan_error *err)
{
    struct start start = {.weights = MP_STRBUF_INIT, .tokens = MP_STRBUF_INIT};
    struct mp_strbuf path = MP_STRBUF_INIT;
    mp_json_init(&start.w, &start.tokens, 0);
    mp_json_object(&start.w, NULL);
    mp_json_array(&start.w, "tokens");
    enum memplan_status status = run_start(t, &start, err);
    mp_json_end_array(&start.w);
    mp_json_end_object(&start.w);
    mp_strbuf_addch(&start.tokens, '\n');
    mp_strbuf_addf(&path, "%s.weights", t->a->start);
    if (!status && (path.failed || start.weights.failed || start.tokens.failed))
        status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory on the host");
    if (!status)
        status = mp_file_write(path.data, start.weights.data, start.weights.len, err);
    mp_strbuf_reset(&path);
    mp_strbuf_addf(&path, "%s.tokens.json", t->a->start);
    if (!status)
        status = mp_file_write(path.data, start.tokens.data, start.tokens.len, err);
    mp_strbuf_release(&path);
    mp_strbuf_release(&start.weights);
    mp_strbuf_release(&start.tokens);
    return status;
}

/* ---- the run ---- */

static enum memplan_status note_loss(struct training *t, const struct mp_op_record *op,
                                     struct memplan_error *err)
{
    const struct mp_op_tensor *loss = mp_op_output(&t->file.program, op, 0);
    unsigned char value[8];
    if (strcmp(op->op, "nll_loss") != 0)
        return MEMPLAN_STATUS_OK;
    if (device_to_host(value, (uint64_t)(uintptr_t)executor_tensor(&t->executor, loss).data,
                       mp_dtype_bytes((enum mp_dtype)loss->dtype)))
        return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
    if (t->n_losses == t->cap_losses) {
        const size_t wanted = t->cap_losses ? 2 * t->cap_losses : 64;
        double *losses = realloc(t->losses, wanted * sizeof *losses);
        if (!losses)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory on the host");
        t->losses = losses;
        t->cap_losses = wanted;
    }
    t->losses[t->n_losses++] = check_value(value, (enum mp_dtype)loss->dtype);
    return MEMPLAN_STATUS_OK;
}

/* Under --check memory comes as NaN, so that what is read before it is written shows. */
static enum memplan_status poison(struct training *t, const struct mp_event *e,
                                  struct memplan_error *err)
{
    if (t->a->check && device_memset(memory_address(&t->memory, e->id), 0xff, e->bytes))
        return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
    t->executor.written[e->id] = false;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status run_op(struct training *t, uint32_t index, struct memplan_error *err)
{
    const enum memplan_status status =
        t->a->check ? check_run(&t->check, index, err) : executor_run(&t->executor, index, err);
    return status ? status : note_loss(t, &t->file.program.ops[index], err);
}

static enum memplan_status run_events(struct training *t, struct mp_progress *progress,
                                      struct memplan_error *err)
{
    const struct mp_program *p = &t->file.program;
    for (uint32_t i = 0; i < p->n_events && !t->memory.outcome.oom; i++) {
        const struct mp_event *e = &p->events[i];
        mp_progress_update(progress, i);
        enum memplan_status status =
            e->kind == MP_EVENT_OP ? run_op(t, e->id, err) : memory_event(&t->memory, i, err);
        if (!status && e->kind == MP_EVENT_ALLOC && !t->memory.outcome.oom)
            status = poison(t, e, err);
        if (status)
            return status;
    }
    return memory_finish(&t->memory, err);
}

static enum memplan_status run(struct training *t, struct memplan_error *err)
{
    struct mp_progress progress;
    mp_progress_start(&progress, "train", t->file.program.n_events,
                      !t->a->no_progress && ranks()->rank == 0);
    const enum memplan_status status = run_events(t, &progress, err);
    mp_progress_end(&progress);
    if (!status && t->memory.outcome.oom && ranks()->world > 1) /* the others wait for this one */
        return mp_error_set(err, MEMPLAN_STATUS_IO, "out of memory at event %" PRIu32,
                            t->memory.outcome.oom_event);
    return status;
}

/* ---- the report ---- */

static double relative(uint64_t predicted, uint64_t measured)
{
    return measured ? 100 * ((double)predicted - (double)measured) / (double)measured : 0;
}

static const struct mp_value *predicted_phase(const struct training *t, uint32_t i, const char *key)
{
    const struct mp_value *phases = header_value(&t->file, "predicted.phases");
    return phases && phases->kind == MP_ARRAY && i < phases->as.array.length
               ? mp_value_get(phases->as.array.items[i], key)
               : NULL;
}
static uint64_t predicted_bytes(const struct training *t, uint32_t i, const char *key)
{
    const struct mp_value *v = predicted_phase(t, i, key);
    return v && v->kind == MP_INT ? (uint64_t)v->as.integer : 0;
}

struct verdict {
    struct outcome same; /* replayed at the same addresses */
    bool memory, ops, losses;
    double worst_loss;
    uint64_t predicted_used;
};

/* What a rank tells the first one. */
struct rank_result {
    bool memory, ops, losses;
    double worst_loss, first_loss, last_loss;
    uint64_t allocated, reserved, used;
};

static bool compare_losses(const struct training *t, double *worst)
{
    const size_t world = (size_t)ranks()->world, rank = (size_t)ranks()->rank;
    *worst = 0;
    if (!t->expected || t->memory.outcome.oom)
        return true;
    if (t->expected->as.array.length != t->n_losses * world)
        return false;
    for (size_t i = 0; i < t->n_losses; i++) {
        double expected;
        if (!mp_value_number(t->expected->as.array.items[i * world + rank], &expected))
            return false;
        const double difference = fabs(expected - t->losses[i]);
        if (!(difference <= *worst))
            *worst = difference;
    }
    return *worst <= loss_tolerance;
}

/* Other precisions than fp32 round differently: their losses are shown, not judged. */
static bool judged(const struct training *t)
{
    return strcmp(header_text(&t->file, "run.precision"), "fp32") == 0;
}

/* What the card loses beside the allocator: the probe's context, and between ranks NCCL. */
static uint64_t outside(const struct training *t)
{
    const uint64_t context = header_uint(&t->file, "gpu.context_bytes"),
                   together = header_uint(&t->file, "predicted.context_bytes");
    return header_uint(&t->file, "gpu.unavailable_bytes") +
           (together > context ? together - context : 0);
}

static enum memplan_status judge(const struct training *t, struct verdict *v,
                                 struct memplan_error *err)
{
    const struct outcome *o = &t->memory.outcome;
    const enum memplan_status status = memory_predict(
        &t->file, t->a->cap_bytes, 0, t->memory.segments, t->memory.n_segments, &v->same, err);
    if (status)
        return status;
    v->memory = o->oom == v->same.oom && (!o->oom || o->oom_event == v->same.oom_event) &&
                o->requested == v->same.requested && o->allocated == v->same.allocated &&
                o->reserved == v->same.reserved;
    v->ops = check_passed(&t->check);
    v->losses = compare_losses(t, &v->worst_loss) || !judged(t);
    v->predicted_used = outside(t) + header_uint(&t->file, "predicted.reserved_bytes");
    return MEMPLAN_STATUS_OK;
}

static void print_phases(const struct training *t)
{
    const struct outcome *o = &t->memory.outcome;
    const uint64_t context = outside(t);
    (void)printf("  %-14s %15s %9s %15s %9s %15s %9s\n", "phase", "allocated", "error", "reserved",
                 "error", "card", "error");
    for (uint32_t i = 0; i < o->n_phases; i++) {
        const struct phase_result *m = &o->phases[i];
        if (i >= 8 && i + 4 < o->n_phases)
            continue;
        (void)printf(
            "  %-14s %15" PRIu64 " %+7.3f %% %15" PRIu64 " %+7.3f %% %15" PRIu64 " %+7.3f %%\n",
            m->name, m->allocated_peak,
            relative(predicted_bytes(t, i, "allocated_peak"), m->allocated_peak), m->reserved_peak,
            relative(predicted_bytes(t, i, "reserved_peak"), m->reserved_peak), m->device_peak,
            relative(context + predicted_bytes(t, i, "reserved_peak"), m->device_peak));
    }
}

static void print_ops(const struct check *c)
{
    for (size_t i = 0; i < c->n_rows; i++) {
        const struct check_row *row = &c->rows[i];
        (void)printf("  %-46s %-9s %6" PRIu64 " results, worst %.2e%s\n", row->op,
                     mp_dtype_name((enum mp_dtype)row->dtype), row->n, row->worst,
                     row->passed ? "" : "  FAILED");
    }
}

static void print_report(const struct training *t, const struct verdict *v)
{
    const struct outcome *o = &t->memory.outcome;
    (void)printf("%s: %" PRIu64 " operations on %s\n", t->a->program, t->executor.ops,
                 t->facts.name);
    print_phases(t);
    (void)printf("  requested %s, allocated %s, reserved %s at the driver's addresses\n",
                 o->requested == v->same.requested ? "equal" : "NOT equal",
                 o->allocated == v->same.allocated ? "equal" : "NOT equal",
                 o->reserved == v->same.reserved ? "equal" : "NOT equal");
    (void)printf("  card at its peak %" PRIu64 " bytes, predicted %" PRIu64 " (%+.3f %%)\n",
                 t->memory.peak_used, v->predicted_used,
                 relative(v->predicted_used, t->memory.peak_used));
    if (t->a->check)
        print_ops(&t->check);
    if (t->n_losses)
        (void)printf("  losses of %zu micro-batches, first %.6f, last %.6f\n", t->n_losses,
                     t->losses[0], t->losses[t->n_losses - 1]);
    if (t->expected)
        (void)printf("  PyTorch's losses differ by at most %.2e%s\n", v->worst_loss,
                     judged(t) ? (v->losses ? "" : "  FAILED") : " (not judged: not fp32)");
    if (o->oom)
        (void)printf("  OUT OF MEMORY at event %" PRIu32 "%s\n", o->oom_event,
                     v->memory ? ", as predicted" : "");
}

static void print_ranks(const struct training *t, const struct rank_result *all)
{
    (void)printf("  %-6s %15s %15s %15s  %-9s %-18s %s\n", "rank", "allocated", "reserved", "card",
                 "memory", "losses", t->expected ? "PyTorch's differ by" : "");
    for (int i = 0; i < ranks()->world; i++) {
        (void)printf("  %-6d %15" PRIu64 " %15" PRIu64 " %15" PRIu64 "  %-9s %.6f, %.6f", i,
                     all[i].allocated, all[i].reserved, all[i].used,
                     all[i].memory ? "equal" : "NOT equal", all[i].first_loss, all[i].last_loss);
        if (t->expected)
            (void)printf(" %.2e%s", all[i].worst_loss, all[i].losses ? "" : "  FAILED");
        (void)printf("%s\n", all[i].ops ? "" : "  operations FAILED");
    }
}

static void write_phases(struct mp_json_writer *w, const struct training *t)
{
    const struct outcome *o = &t->memory.outcome;
    mp_json_array(w, "phases");
    for (uint32_t i = 0; i < o->n_phases; i++) {
        mp_json_object(w, NULL);
        mp_json_string(w, "phase", o->phases[i].name);
        mp_json_uint(w, "requested_peak", o->phases[i].requested_peak);
        mp_json_uint(w, "allocated_peak", o->phases[i].allocated_peak);
        mp_json_uint(w, "reserved_peak", o->phases[i].reserved_peak);
        mp_json_uint(w, "device_peak", o->phases[i].device_peak);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

static void write_ops(struct mp_json_writer *w, const struct check *c)
{
    mp_json_array(w, "operations");
    for (size_t i = 0; i < c->n_rows; i++) {
        mp_json_object(w, NULL);
        mp_json_string(w, "op", c->rows[i].op);
        mp_json_string(w, "dtype", mp_dtype_name((enum mp_dtype)c->rows[i].dtype));
        mp_json_uint(w, "results", c->rows[i].n);
        mp_json_double(w, "worst_relative_error", c->rows[i].worst);
        mp_json_bool(w, "passed", c->rows[i].passed);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

static void write_losses(struct mp_json_writer *w, const struct training *t,
                         const struct verdict *v)
{
    mp_json_array(w, "losses");
    for (size_t i = 0; i < t->n_losses; i++)
        mp_json_double(w, NULL, t->losses[i]);
    mp_json_end_array(w);
    if (!t->expected)
        return;
    mp_json_value(w, "pytorch_losses", t->expected);
    mp_json_double(w, "worst_loss_difference", v->worst_loss);
}

static void write_kernels(struct mp_json_writer *w)
{
    const struct k_launches *launches;
    const int n = k_launches(&launches);
    mp_json_object(w, "kernel_launches");
    for (int i = 0; i < n; i++)
        mp_json_uint(w, launches[i].kernel, launches[i].n);
    mp_json_end_object(w);
}

static void write_ranks(struct mp_json_writer *w, const struct rank_result *all)
{
    mp_json_array(w, "ranks");
    for (int i = 0; i < ranks()->world; i++) {
        mp_json_object(w, NULL);
        mp_json_int(w, "rank", i);
        mp_json_uint(w, "allocated_bytes", all[i].allocated);
        mp_json_uint(w, "reserved_bytes", all[i].reserved);
        mp_json_uint(w, "device_used_bytes", all[i].used);
        mp_json_bool(w, "equal_at_same_addresses", all[i].memory);
        mp_json_double(w, "first_loss", all[i].first_loss);
        mp_json_double(w, "last_loss", all[i].last_loss);
        mp_json_double(w, "worst_loss_difference", all[i].worst_loss);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
}

static int write_report(const struct training *t, const struct verdict *v,
                        const struct rank_result *all)
{
    const struct outcome *o = &t->memory.outcome;
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_json_writer w;
    mp_json_init(&w, &out, 0);
    mp_json_object(&w, NULL);
    write_where(&w, &t->facts, t->a);
    mp_json_string(&w, "program", t->a->program);
    mp_json_value(&w, "run", header_value(&t->file, "run"));
    mp_json_uint(&w, "operations_run", t->executor.ops);
    mp_json_bool(&w, "equal_at_same_addresses", v->memory);
    mp_json_object(&w, "measured");
    mp_json_bool(&w, "oom", o->oom);
    mp_json_uint(&w, "requested_bytes", o->requested);
    mp_json_uint(&w, "allocated_bytes", o->allocated);
    mp_json_uint(&w, "reserved_bytes", o->reserved);
    mp_json_uint(&w, "device_idle_bytes", t->memory.idle_used);
    mp_json_uint(&w, "device_used_bytes", t->memory.peak_used);
    write_phases(&w, t);
    mp_json_end_object(&w);
    mp_json_uint(&w, "predicted_device_used_bytes", v->predicted_used);
    mp_json_value(&w, "predicted", header_value(&t->file, "predicted"));
    if (t->a->check)
        write_ops(&w, &t->check);
    write_losses(&w, t, v);
    write_kernels(&w);
    if (ranks()->world > 1)
        write_ranks(&w, all);
    mp_json_end_object(&w);
    mp_strbuf_addch(&out, '\n');
    const int status = write_output(t->a, &out);
    mp_strbuf_release(&out);
    return status;
}

/* ---- the command ---- */

static struct rank_result own_result(const struct training *t, const struct verdict *v)
{
    return (struct rank_result){
        .memory = v->memory,
        .ops = v->ops,
        .losses = v->losses,
        .worst_loss = v->worst_loss,
        .first_loss = t->n_losses ? t->losses[0] : 0,
        .last_loss = t->n_losses ? t->losses[t->n_losses - 1] : 0,
        .allocated = t->memory.outcome.allocated,
        .reserved = t->memory.outcome.reserved,
        .used = t->memory.peak_used,
    };
}

/* The first rank speaks for all. */
static int report(const struct training *t, const struct verdict *v)
{
    const int world = ranks()->world;
    const struct rank_result own = own_result(t, v);
    struct rank_result *const all = calloc((size_t)world, sizeof *all);
    if (!all)
        return ranks_abort(complain(t->a->command, "out of memory on the host", EXIT_WORLD));
    ranks_gather(&own, all, sizeof own);
    bool good = !t->memory.outcome.oom || t->a->cap_bytes;
    for (int i = 0; i < world; i++)
        good = good && all[i].memory && all[i].ops && all[i].losses;
    int status = EXIT_YES;
    if (ranks()->rank == 0) {
        print_report(t, v);
        if (world > 1)
            print_ranks(t, all);
        status = write_report(t, v, all);
    }
    free(all);
    return status ? status : good ? EXIT_YES : EXIT_NO;
}

static int conclude(struct training *t)
{
    struct verdict v = {.memory = false};
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    if (judge(t, &v, &err))
        return ranks_abort(complain_error(t->a->command, &err));
    const int status = report(t, &v);
    outcome_release(&v.same);
    return status;
}

static bool reduces(const struct training *t)
{
    return strcmp(header_text(&t->file, "run.data_parallel"), "ddp") == 0 &&
           strcmp(header_text(&t->file, "run.collectives"), "none") != 0;
}

/* Are there as many processes as the program has ranks? */
static enum memplan_status check_ranks(const struct training *t, struct memplan_error *err)
{
    const char *const kind = header_text(&t->file, "run.data_parallel");
    const int world = ranks()->world,
              wanted = reduces(t) ? (int)header_uint(&t->file, "run.world") : 1;
    if (*kind && strcmp(kind, "none") != 0 && strcmp(kind, "ddp") != 0)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "data_parallel: %s has no kernels between ranks, only ddp has; replay "
                            "runs the program's memory",
                            kind);
    if (world == wanted)
        return t->a->start && world > 1
                   ? mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                  "--start: one process writes it; start it without mpirun")
                   : MEMPLAN_STATUS_OK;
    return mp_error_set(
        err, MEMPLAN_STATUS_INPUT,
        "the program is for %d rank%s, and %d process%s started; a build with MPI=1 runs it with "
        "`mpirun -n %d memplan-validate train`",
        wanted, wanted == 1 ? "" : "s", world, world == 1 ? " was" : "es were", wanted);
}

static enum memplan_status read_inputs(struct training *t, struct memplan_error *err)
{
    const enum memplan_status status = read_losses(t, err);
    return status ? status : read_weights(t, err);
}

static enum memplan_status open_card(struct training *t, struct memplan_error *err)
{
    if (device_open(&t->facts, ranks()->local) || k_gemm_open() || k_warm())
        return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
    enum memplan_status status = memory_room(&t->file, t->a->cap_bytes, err);
    if (!status)
        status = memory_open(&t->memory, &t->file, t->a->cap_bytes, err);
    if (!status)
        status = executor_open(&t->executor, &t->memory, err);
    t->executor.plain = t->a->plain;
    return status ? status : read_inputs(t, err);
}

/* All ranks come this far, or none goes on: each that has a reason says it. */
static int open_together(struct training *t)
{
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    enum memplan_status status = mp_program_file_read(&t->file, t->a->program, &err);
    if (!status)
        status = check_ranks(t, &err);
    if (!status)
        status = open_card(t, &err);
    const int result = status ? complain_error(t->a->command, &err) : EXIT_YES;
    return ranks_all(!status) || status ? result : EXIT_WORLD;
}

static int train(struct training *t)
{
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    int result = open_together(t);
    if (result)
        return result;
    check_init(&t->check, &t->executor);
    if (reduces(t) && collective_open())
        return ranks_abort(complain(t->a->command, device_error(), EXIT_WORLD));
    if (t->a->start ? write_start(t, &err) : run(t, &err))
        return ranks_abort(complain_error(t->a->command, &err));
    result = t->a->start ? EXIT_YES : conclude(t);
    if (collective_close())
        return ranks_abort(complain(t->a->command, device_error(), EXIT_WORLD));
    return result;
}

int command_train(const struct arguments *a)
{
    struct training t = {.a = a, .weights = MP_STRBUF_INIT};
    mp_arena_init(&t.arena);
    const int status = train(&t);
    check_release(&t.check);
    executor_close(&t.executor);
    memory_close(&t.memory);
    k_gemm_close();
    device_close();
    mp_strbuf_release(&t.weights);
    mp_arena_release(&t.arena);
    free(t.losses);
    mp_program_file_release(&t.file);
    return status;
}
