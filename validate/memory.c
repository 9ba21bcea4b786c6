/* SPDX-License-Identifier: MIT */
/* The allocator on the real card, and the same program replayed without it. */
#include "memory.h"

#include <inttypes.h>
#include <string.h>

#include "base/json.h"
#include "device.h"

/* ---- the header ---- */

const struct mp_value *header_value(const struct mp_program_file *file, const char *path)
{
    const struct mp_value *v = file->header;
    char key[64];
    while (v && *path) {
        const size_t n = strcspn(path, ".");
        if (n >= sizeof key)
            return NULL;
        memcpy(key, path, n);
        key[n] = '\0';
        v = mp_value_get(v, key);
        path += n + (path[n] == '.');
    }
    return v;
}

uint64_t header_uint(const struct mp_program_file *file, const char *path)
{
    const struct mp_value *v = header_value(file, path);
    return v && v->kind == MP_INT && v->as.integer > 0 ? (uint64_t)v->as.integer : 0;
}

const char *header_text(const struct mp_program_file *file, const char *path)
{
    const struct mp_value *v = header_value(file, path);
    return v && v->kind == MP_STRING ? v->as.string.text : "";
}

enum memplan_status memory_options(const struct mp_program_file *file, uint64_t limit_bytes,
                                   struct mp_allocator_options *options, struct memplan_error *err)
{
    *options = (struct mp_allocator_options){
        .torch = (mp_torch_version)header_uint(file, "profile.torch_version"),
        .limit_bytes = limit_bytes ? limit_bytes : header_uint(file, "run.allocator_limit_bytes"),
        .total_bytes = header_uint(file, "gpu.total_bytes"),
    };
    const enum memplan_status status = mp_allocator_conf_parse(
        header_text(file, "run.allocator_conf"), options->torch, &options->conf, err);
    if (!status && options->conf.expandable_segments)
        return mp_error_set(
            err, MEMPLAN_STATUS_UNSUPPORTED,
            "allocator_conf: expandable_segments needs the driver's virtual memory calls, "
            "which are not used here; leave it out");
    return status;
}

/* ---- what both ways of running share ---- */

void outcome_release(struct outcome *o)
{
    free(o->phases);
    *o = (struct outcome){.oom = false};
}

static enum memplan_status no_memory(struct memplan_error *err)
{
    return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory on the host");
}

static void end_phase(struct outcome *o, struct mp_allocator *a, const char *name,
                      uint64_t device_peak)
{
    const struct mp_allocator_peaks peaks = mp_allocator_take_peaks(a);
    struct phase_result *phase = &o->phases[o->n_phases++];
    *phase = (struct phase_result){.requested_peak = peaks.requested_bytes,
                                   .allocated_peak = peaks.allocated_bytes,
                                   .reserved_peak = peaks.reserved_bytes,
                                   .device_peak = device_peak};
    (void)snprintf(phase->name, sizeof phase->name, "%s", name);
}

static void take_peaks(struct outcome *o, const struct mp_allocator *a)
{
    const struct mp_allocator_stats *stats = mp_allocator_stats(a);
    o->requested = stats->requested_bytes[MP_STAT_ALL].peak;
    o->allocated = stats->allocated_bytes[MP_STAT_ALL].peak;
    o->reserved = stats->reserved_bytes[MP_STAT_ALL].peak;
}

/* One event. False: out of memory. */
static bool apply(const struct mp_program *p, uint32_t index, struct mp_allocator *a,
                  struct mp_block **blocks, struct outcome *o, uint64_t device_peak)
{
    const struct mp_event *e = &p->events[index];
    switch ((enum mp_event_kind)e->kind) {
    case MP_EVENT_ALLOC:
        blocks[e->id] = mp_allocator_malloc(a, e->bytes, e->stream, e->id);
        if (!blocks[e->id]) {
            o->oom = true;
            o->oom_event = index;
        }
        return !o->oom;
    case MP_EVENT_FREE: mp_allocator_release(a, blocks[e->id]); return true;
    case MP_EVENT_MARK: end_phase(o, a, p->phases[e->id].name, device_peak); return true;
    case MP_EVENT_EMPTY_CACHE: mp_allocator_empty_cache(a); return true;
    case MP_EVENT_RECORD_STREAM:
        mp_allocator_record_stream(a, blocks[e->id], e->stream);
        return true;
    case MP_EVENT_TAG:
    case MP_EVENT_DRIVER:
    case MP_EVENT_OP: return true;
    }
    return true;
}

/* ---- on the card ---- */

static void note_used(struct memory *m)
{
    uint64_t free_bytes, total_bytes;
    if (device_memory(&free_bytes, &total_bytes)) {
        m->failed = true;
        return;
    }
    m->peak_used = MP_MAX(m->peak_used, total_bytes - free_bytes);
    m->phase_used = MP_MAX(m->phase_used, total_bytes - free_bytes);
}

static uint64_t allocate_segment(void *context, uint64_t bytes)
{
    struct memory *m = context;
    if (m->n_segments == m->cap_segments) {
        const size_t wanted = m->cap_segments ? 2 * m->cap_segments : 256;
        uint64_t *segments = mp_realloc(m->segments, wanted * sizeof *segments);
        if (!segments) {
            m->failed = true;
            return 0;
        }
        m->segments = segments;
        m->cap_segments = wanted;
    }
    const uint64_t address = device_malloc(bytes);
    if (!address)
        return 0;
    m->segments[m->n_segments++] = address;
    note_used(m);
    return address;
}

static void release_segment(void *context, uint64_t address, uint64_t bytes)
{
    struct memory *m = context;
    (void)bytes;
    m->failed |= device_wait() != 0; /* kernels may still be at work on it */
    device_free(address);
    m->failed |= device_broken() != 0;
}

enum memplan_status memory_room(const struct mp_program_file *file, uint64_t limit_bytes,
                                struct memplan_error *err)
{
    const uint64_t limit =
                       limit_bytes ? limit_bytes : header_uint(file, "run.allocator_limit_bytes"),
                   reserved = header_uint(file, "predicted.reserved_bytes"),
                   needed = limit ? MP_MIN(limit, reserved) : reserved,
                   context = header_uint(file, "gpu.unavailable_bytes");
    const struct mp_value *oom = header_value(file, "predicted.oom");
    uint64_t free_bytes, total_bytes;
    if (device_memory(&free_bytes, &total_bytes))
        return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
    if (oom && oom->kind == MP_BOOLEAN && oom->as.boolean && !limit)
        return mp_error_set(
            err, MEMPLAN_STATUS_IO,
            "the job does not fit on %s: so fit predicts; --cap BYTES runs it up to "
            "the request that fails",
            header_text(file, "gpu.name"));
    if (needed <= free_bytes)
        return MEMPLAN_STATUS_OK;
    if (needed + context > total_bytes)
        return mp_error_set(err, MEMPLAN_STATUS_IO,
                            "the card is too small: it has %" PRIu64
                            " bytes, the job needs %" PRIu64 " and %" PRIu64
                            " for the process; plan it for this card (fit --gpu), "
                            "or --cap BYTES runs it up to the request that fails",
                            total_bytes, needed, context);
    return mp_error_set(err, MEMPLAN_STATUS_IO,
                        "other processes fill the card: the job needs %" PRIu64 " bytes, %" PRIu64
                        " of %" PRIu64
                        " are free; wait for them or choose another card (CUDA_VISIBLE_DEVICES)",
                        needed, free_bytes, total_bytes);
}

enum memplan_status memory_open(struct memory *m, const struct mp_program_file *file,
                                uint64_t limit_bytes, struct memplan_error *err)
{
    struct mp_allocator_options options;
    const struct mp_program *p = &file->program;
    *m = (struct memory){.file = file};
    const enum memplan_status status = memory_options(file, limit_bytes, &options, err);
    if (status)
        return status;
    options.placement = (struct mp_placement){.kind = MP_PLACE_CALLBACK,
                                              .allocate = allocate_segment,
                                              .release = release_segment,
                                              .context = m};
    m->blocks = calloc((size_t)p->n_allocs + 1, sizeof(struct mp_block *));
    m->outcome.phases = calloc((size_t)p->n_phases + 1, sizeof *m->outcome.phases);
    if (!m->blocks || !m->outcome.phases)
        return no_memory(err);
    note_used(m);
    m->idle_used = m->peak_used;
    m->allocator = mp_allocator_new(&options, err);
    if (m->failed)
        return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
    return m->allocator ? MEMPLAN_STATUS_OK : err->status;
}

void memory_close(struct memory *m)
{
    mp_allocator_free(m->allocator);
    free(m->blocks);
    free(m->segments);
    outcome_release(&m->outcome);
    *m = (struct memory){.file = NULL};
}

enum memplan_status memory_event(struct memory *m, uint32_t index, struct memplan_error *err)
{
    const bool mark = m->file->program.events[index].kind == MP_EVENT_MARK;
    if (mark)
        note_used(m);
    (void)apply(&m->file->program, index, m->allocator, m->blocks, &m->outcome, m->phase_used);
    if (mark) {
        m->phase_used = 0;
        note_used(m);
    }
    if (m->failed || device_broken())
        return mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error());
    return mp_allocator_failed(m->allocator) ? no_memory(err) : MEMPLAN_STATUS_OK;
}

enum memplan_status memory_finish(struct memory *m, struct memplan_error *err)
{
    take_peaks(&m->outcome, m->allocator);
    return device_wait() ? mp_error_set(err, MEMPLAN_STATUS_IO, "%s", device_error())
                         : MEMPLAN_STATUS_OK;
}

/* ---- without it ---- */

enum memplan_status memory_predict(const struct mp_program_file *file, uint64_t limit_bytes,
                                   uint64_t capacity_bytes, const uint64_t *addresses,
                                   size_t n_addresses, struct outcome *o, struct memplan_error *err)
{
    struct mp_allocator_options options;
    const struct mp_program *p = &file->program;
    *o = (struct outcome){.oom = false};
    enum memplan_status status = memory_options(file, limit_bytes, &options, err);
    if (status)
        return status;
    options.capacity_bytes = capacity_bytes;
    options.placement = (struct mp_placement){
        .kind = MP_PLACE_RECORDED, .recorded = addresses, .n_recorded = n_addresses};
    struct mp_allocator *a = mp_allocator_new(&options, err);
    struct mp_block **blocks = calloc((size_t)p->n_allocs + 1, sizeof(struct mp_block *));
    o->phases = calloc((size_t)p->n_phases + 1, sizeof *o->phases);
    if (!a || !blocks || !o->phases) {
        status = a ? no_memory(err) : err->status;
    } else {
        for (uint32_t i = 0; i < p->n_events; i++)
            if (!apply(p, i, a, blocks, o, 0))
                break;
        take_peaks(o, a);
        if (mp_allocator_failed(a))
            status = no_memory(err);
    }
    mp_allocator_free(a);
    free(blocks);
    if (status)
        outcome_release(o);
    return status;
}
