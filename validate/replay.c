/* SPDX-License-Identifier: MIT */
/*
 * `memplan-validate replay`: the memory of a job, from the real driver.
 *
 * Every block is written as a whole. Compared: reserved and allocated bytes with the same program
 * replayed at the addresses that the driver gave (must be equal), with the prediction of `fit`
 * (which had to guess the addresses), the card's memory by cudaMemGetInfo, and the request that
 * finds no room.
 */
#include "commands.h"

#include <inttypes.h>
#include <stdio.h>

#include "memory.h"
#include "ranks.h"

/* A block's pattern: wherever two blocks overlap, one of them would find the other's. */
static int pattern(uint32_t id)
{
    return (int)(id * 37u + 1u) & 0xff;
}

enum { LOOK_EVERY = 61 }; /* a read waits for the card: not every block */

static int write_block(const struct memory *m, const struct mp_event *e)
{
    return device_memset(memory_address(m, e->id), pattern(e->id), e->bytes);
}

static int look_at_block(const struct memory *m, const struct mp_event *e)
{
    unsigned char ends[2];
    if (e->id % LOOK_EVERY)
        return 0;
    const uint64_t address = memory_address(m, e->id), bytes = m->file->bytes[e->id];
    if (device_to_host(&ends[0], address, 1) || device_to_host(&ends[1], address + bytes - 1, 1))
        return -1;
    if (ends[0] != pattern(e->id) || ends[1] != pattern(e->id))
        return device_fail("storage %" PRIu32 " does not hold what was written to it", e->id);
    return 0;
}

static enum memplan_status run(struct memory *m, struct mp_progress *progress,
                               struct memplan_error *err)
{
    const struct mp_program *p = &m->file->program;
    for (uint32_t i = 0; i < p->n_events; i++) {
        const struct mp_event *e = &p->events[i];
        mp_progress_update(progress, i);
        if (e->kind == MP_EVENT_FREE && look_at_block(m, e))
            return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
        const enum memplan_status status = memory_event(m, i, err);
        if (status)
            return status;
        if (m->outcome.oom)
            break;
        if (e->kind == MP_EVENT_ALLOC && write_block(m, e))
            return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
    }
    return memory_finish(m, err);
}

/* Take memory until `leave` bytes are left, so that the card itself refuses. 0: nothing taken. */
static int fill_card(uint64_t leave, uint64_t *ballast)
{
    uint64_t free_bytes, total_bytes;
    *ballast = 0;
    if (device_memory(&free_bytes, &total_bytes))
        return -1;
    if (leave == 0)
        return 0;
    if (leave >= free_bytes)
        return device_fail("--leave: only %" PRIu64 " bytes of the card are free", free_bytes);
    *ballast = device_malloc((free_bytes - leave) / (2 * MP_MIB) * (2 * MP_MIB));
    return *ballast ? 0 : device_fail("--leave: the card could not be filled");
}

static bool same_outcome(const struct outcome *a, const struct outcome *b)
{
    if (a->oom != b->oom || (a->oom && a->oom_event != b->oom_event) ||
        a->n_phases != b->n_phases || a->reserved != b->reserved || a->allocated != b->allocated ||
        a->requested != b->requested)
        return false;
    for (uint32_t i = 0; i < a->n_phases; i++)
        if (a->phases[i].reserved_peak != b->phases[i].reserved_peak ||
            a->phases[i].allocated_peak != b->phases[i].allocated_peak)
            return false;
    return true;
}

static void print_row(const char *what, uint64_t measured, uint64_t predicted)
{
    const double error =
        measured ? 100.0 * ((double)predicted - (double)measured) / (double)measured : 0;
    (void)printf("  %-34s %18" PRIu64 " %18" PRIu64 "  %+9.4f %%\n", what, measured, predicted,
                 error);
}

static void write_outcome(struct mp_json_writer *w, const char *key, const struct outcome *o)
{
    mp_json_object(w, key);
    mp_json_bool(w, "oom", o->oom);
    if (o->oom)
        mp_json_uint(w, "oom_event", o->oom_event);
    mp_json_uint(w, "requested_bytes", o->requested);
    mp_json_uint(w, "allocated_bytes", o->allocated);
    mp_json_uint(w, "reserved_bytes", o->reserved);
    mp_json_end_object(w);
}

struct comparison {
    const struct memory *real;
    const struct outcome *same_addresses;
    uint64_t free_bytes; /* of the card before the job */
    bool equal;
};

static int report(const struct arguments *a, const struct device_facts *facts,
                  const struct mp_program_file *file, const struct comparison *c)
{
    const struct outcome *o = &c->real->outcome;
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_json_writer w;
    (void)printf("%s: %" PRIu32 " requests on %s, %zu segments\n", a->program,
                 file->program.n_allocs, facts->name, c->real->n_segments);
    (void)printf("  %-34s %18s %18s  %11s\n", "", "measured", "predicted", "error");
    print_row("requested, same addresses", o->requested, c->same_addresses->requested);
    print_row("allocated, same addresses", o->allocated, c->same_addresses->allocated);
    print_row("reserved, same addresses", o->reserved, c->same_addresses->reserved);
    if (!a->cap_bytes && !a->leave_bytes) {
        print_row("allocated, as fit predicts", o->allocated,
                  header_uint(file, "predicted.allocated_bytes"));
        print_row("reserved, as fit predicts", o->reserved,
                  header_uint(file, "predicted.reserved_bytes"));
    }
    print_row("card: taken by segments", c->real->peak_used - c->real->idle_used,
              c->same_addresses->reserved);
    if (o->oom || c->same_addresses->oom)
        (void)printf("  out of memory at event             %18" PRIu32 " %18" PRIu32 "\n",
                     o->oom ? o->oom_event : 0,
                     c->same_addresses->oom ? c->same_addresses->oom_event : 0);
    (void)printf("  %s\n", c->equal ? "equal to the byte, phase for phase" : "NOT as predicted");
    mp_json_init(&w, &out, 0);
    mp_json_object(&w, NULL);
    write_where(&w, facts, a);
    mp_json_string(&w, "program", a->program);
    mp_json_value(&w, "run", header_value(file, "run"));
    if (a->cap_bytes)
        mp_json_uint(&w, "cap_bytes", a->cap_bytes);
    if (a->leave_bytes)
        mp_json_uint(&w, "leave_bytes", a->leave_bytes);
    mp_json_uint(&w, "free_bytes", c->free_bytes);
    mp_json_bool(&w, "equal", c->equal);
    mp_json_uint(&w, "requests", file->program.n_allocs);
    mp_json_uint(&w, "segments", c->real->n_segments);
    mp_json_uint(&w, "device_idle_bytes", c->real->idle_used);
    mp_json_uint(&w, "device_peak_bytes", c->real->peak_used);
    write_outcome(&w, "measured", o);
    write_outcome(&w, "predicted_same_addresses", c->same_addresses);
    mp_json_value(&w, "predicted", header_value(file, "predicted"));
    mp_json_end_object(&w);
    mp_strbuf_addch(&out, '\n');
    const int status = write_output(a, &out);
    mp_strbuf_release(&out);
    return status ? status : c->equal ? EXIT_YES : EXIT_NO;
}

static int compare(const struct arguments *a, const struct device_facts *facts, struct memory *m)
{
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    struct outcome same;
    struct comparison c = {.real = m, .same_addresses = &same};
    uint64_t total_bytes;
    if (device_memory(&c.free_bytes, &total_bytes))
        return complain(a->command, device_error(), EXIT_WORLD);
    struct mp_progress progress;
    mp_progress_start(&progress, "replay", m->file->program.n_events, !a->no_progress);
    const enum memplan_status status = run(m, &progress, &err);
    mp_progress_end(&progress);
    if (status)
        return complain_error(a->command, &err);
    const uint64_t capacity = a->leave_bytes ? c.free_bytes : 0;
    if (memory_predict(m->file, a->cap_bytes, capacity, m->segments, m->n_segments, &same, &err))
        return complain_error(a->command, &err);
    c.equal = same_outcome(&m->outcome, &same);
    const int result = report(a, facts, m->file, &c);
    outcome_release(&same);
    return result;
}

int command_replay(const struct arguments *a)
{
    struct mp_program_file file;
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    struct device_facts facts;
    struct memory m;
    uint64_t ballast;
    int status;
    if (ranks()->world > 1)
        return complain(a->command, "it runs on one GPU; start it without mpirun", EXIT_USAGE);
    if (mp_program_file_read(&file, a->program, &err))
        return complain_error(a->command, &err);
    if (device_open(&facts, 0) || fill_card(a->leave_bytes, &ballast)) {
        status = complain(a->command, device_error(), EXIT_WORLD);
    } else {
        m = (struct memory){.file = NULL};
        status = (!a->leave_bytes && memory_room(&file, a->cap_bytes, &err)) ||
                         memory_open(&m, &file, a->cap_bytes, &err)
                     ? complain_error(a->command, &err)
                     : compare(a, &facts, &m);
        memory_close(&m);
        if (ballast)
            device_free(ballast);
        device_close();
    }
    mp_program_file_release(&file);
    return status;
}
