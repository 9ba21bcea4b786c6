/* SPDX-License-Identifier: MIT */
/*
 * Two passes. The first replays the program through the allocator and picks the moments; the second walks the events alone, keeps count
 * of the live storages by kind, and notes the largest ones at each moment that was picked.
 */
#include "report/timeline.h"

uint64_t mp_timeline_requested(const struct mp_timeline_sample *sample)
{
    uint64_t total = 0;
    for (int i = 0; i < MP_CATEGORY_COUNT; i++)
        total += sample->live_bytes[i];
    return total;
}

/* ---- which events, which phases ---- */

/* The step that a phase belongs to: "it3.opt" is 3; building the model counts as step 0. */
static int64_t step_of(const char *phase) { return strncmp(phase, "it", 2) == 0 ? strtol(phase + 2, NULL, 10) : 0; }

static const struct mp_phase *phase_at(const struct mp_program *p, uint32_t event)
{
    for (uint32_t i = 0; i < p->n_phases; i++)
        if (p->phases[i].event >= event)
            return &p->phases[i];
    return NULL;
}

/* The last step in which a phase reached what no phase before it had. */
static int64_t last_rising_step(const struct mp_evaluation *e)
{
    uint64_t allocated = 0, reserved = 0;
    int64_t last = 0;
    for (size_t i = 0; i < e->n_phases; i++) {
        const struct mp_phase_peaks *phase = &e->phases[i];
        if (phase->allocated_peak_bytes > allocated || phase->reserved_peak_bytes > reserved)
            last = step_of(phase->name);
        allocated = MP_MAX(allocated, phase->allocated_peak_bytes);
        reserved = MP_MAX(reserved, phase->reserved_peak_bytes);
    }
    return last;
}

/* Show the steps up to the one that reaches the last peak, and two at least; of a job that dies everything. */
static uint32_t choose_end(const struct mp_evaluation *e, int64_t *steps)
{
    const struct mp_program *p = &e->program;
    const int64_t last = MP_MAX(last_rising_step(e), 1);
    uint32_t end = 0;
    *steps = 0;
    if (e->oom) {
        const struct mp_phase *phase = phase_at(p, e->oom_event);
        *steps = phase ? step_of(phase->name) + (strncmp(phase->name, "it", 2) == 0) : 0;
        return e->oom_event + 1;
    }
    for (uint32_t i = 0; i < p->n_phases; i++) {
        const int64_t step = step_of(p->phases[i].name);
        if (step > last)
            break;
        end = p->phases[i].event + 1;
        if (strncmp(p->phases[i].name, "it", 2) == 0)
            *steps = step + 1;
    }
    return end ? end : p->n_events;
}

static bool list_phases(const struct mp_program *p, struct mp_timeline *t, struct mp_arena *arena)
{
    uint32_t first = 0;
    t->phases = mp_arena_calloc(arena, (size_t)p->n_phases + 1, sizeof *t->phases);
    if (!t->phases)
        return false;
    for (uint32_t i = 0; i < p->n_phases && first < t->n_events; i++) {
        const uint32_t end = MP_MIN(p->phases[i].event + 1, t->n_events);
        t->phases[t->n_phases++] = (struct mp_timeline_phase){p->phases[i].name, first, end};
        first = end;
    }
    if (first < t->n_events)
        t->phases[t->n_phases++] = (struct mp_timeline_phase){"after the last phase", first, t->n_events};
    return true;
}

/* ---- thinning ---- */

/* Stretches of events; those of one phase are equally long. When there are too many phases, the stretches cross them. */
struct stretches {
    const struct mp_timeline *timeline;
    uint32_t most;      /* how many there may be */
    bool by_phase;
    size_t phase;       /* of the stretch at hand */
    uint32_t length, end;
};

static uint32_t stretch_length(const struct stretches *s, uint32_t events)
{
    const struct mp_timeline *t = s->timeline;
    const uint64_t spare = s->by_phase ? s->most - (uint32_t)t->n_phases : s->most - 1;
    /* Half of what can be spent is the same for every phase, so that short ones can be zoomed into. */
    const uint64_t n = s->by_phase ? 1 + spare / 2 / t->n_phases + spare / 2 * events / t->n_events : 1 + spare;
    return (uint32_t)((events + n - 1) / n);
}

static void stretches_init(struct stretches *s, const struct mp_timeline *timeline)
{
    *s = (struct stretches){.timeline = timeline, .most = MP_TIMELINE_MAX_SAMPLES * 2 / 7};
    if (timeline->n_events <= MP_TIMELINE_MAX_SAMPLES) { /* nothing to leave out */
        s->length = 1;
        return;
    }
    s->by_phase = timeline->n_phases <= s->most / 2;
    if (!s->by_phase)
        s->length = stretch_length(s, timeline->n_events);
}

/* Whether event begins a stretch; to be asked for one event after the other. */
static bool stretch_begins(struct stretches *s, uint32_t event)
{
    const struct mp_timeline *t = s->timeline;
    while (s->phase + 1 < t->n_phases && event >= t->phases[s->phase].end)
        s->phase++;
    if (event < s->end)
        return false;
    const struct mp_timeline_phase *phase = &t->phases[s->phase];
    if (s->by_phase && event == phase->first)
        s->length = stretch_length(s, phase->end - phase->first);
    s->end = event + s->length;
    if (s->by_phase)
        s->end = MP_MIN(s->end, phase->end);
    return true;
}

struct storage {
    uint64_t bytes;
    enum mp_category category;
};

struct thinning {
    const struct mp_evaluation *e;
    struct mp_timeline *timeline;
    struct stretches stretches;
    struct storage *storages; /* by id */
    struct mp_timeline_sample now, highest, lowest, most_reserved;
    bool pending;      /* the three hold something */
};

static void keep(struct mp_timeline *t, const struct mp_timeline_sample *sample)
{
    if (t->n_samples && t->samples[t->n_samples - 1].event == sample->event)
        return;
    t->samples[t->n_samples++] = *sample;
}

/* Append the extremes of the stretch that ends, in order of time, and where it ends a phase its last state, with which the next begins. */
static void end_stretch(struct thinning *th)
{
    const struct mp_timeline_sample *order[] = {&th->highest, &th->lowest, &th->most_reserved};
    for (int i = 0; th->pending && i < 3; i++) {
        for (int k = 2; k > i; k--)
            if (order[k]->event < order[k - 1]->event) {
                const struct mp_timeline_sample *later = order[k - 1];
                order[k - 1] = order[k];
                order[k] = later;
            }
        keep(th->timeline, order[i]);
    }
    if (th->pending && th->stretches.by_phase && th->now.event + 1 == th->timeline->phases[th->now.phase].end)
        keep(th->timeline, &th->now);
    th->pending = false;
}

static void follow(struct thinning *th, const struct mp_event *event)
{
    uint64_t *live = th->now.live_bytes;
    if (event->kind == MP_EVENT_ALLOC) {
        th->storages[event->id] = (struct storage){event->bytes, (enum mp_category)event->category};
        live[event->category] += event->bytes;
    } else if (event->kind == MP_EVENT_FREE) {
        live[th->storages[event->id].category] -= event->bytes;
    } else if (event->kind == MP_EVENT_TAG) {
        struct storage *storage = &th->storages[event->id];
        live[storage->category] -= storage->bytes;
        storage->category = (enum mp_category)event->category;
        live[storage->category] += storage->bytes;
    }
}

static bool visit(void *context, const struct mp_evaluation_moment *moment)
{
    struct thinning *th = context;
    const struct mp_event *event = &th->e->program.events[moment->event];
    uint64_t unused;
    if (stretch_begins(&th->stretches, moment->event))
        end_stretch(th);
    if (!moment->failed)
        follow(th, event);
    th->now.event = moment->event;
    th->now.phase = (uint32_t)th->stretches.phase;
    th->now.layer = event->layer;
    th->now.op = event->op ? event->op : "";
    th->now.allocated_bytes = moment->allocated_bytes;
    mp_allocator_current(moment->allocator, &unused, &th->now.reserved_bytes);
    if (!th->pending || th->now.allocated_bytes > th->highest.allocated_bytes)
        th->highest = th->now;
    if (!th->pending || th->now.allocated_bytes < th->lowest.allocated_bytes)
        th->lowest = th->now;
    if (!th->pending || th->now.reserved_bytes > th->most_reserved.reserved_bytes)
        th->most_reserved = th->now;
    th->pending = true;
    if (moment->failed) { /* where it dies is kept beside the extremes of its stretch */
        end_stretch(th);
        keep(th->timeline, &th->now);
    }
    return moment->event + 1 < th->timeline->n_events;
}

static enum memplan_status pick_moments(const struct mp_evaluation *e, struct mp_timeline *t, struct mp_arena *arena,
                                        struct memplan_error *err)
{
    struct thinning *th = mp_arena_alloc(arena, sizeof *th);
    t->samples = mp_arena_calloc(arena, MP_TIMELINE_MAX_SAMPLES + 1, sizeof *t->samples);
    if (!th || !t->samples)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing the timeline");
    th->e = e;
    th->timeline = t;
    th->storages = mp_arena_calloc(arena, (size_t)e->program.n_allocs + 1, sizeof *th->storages);
    if (!th->storages)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing the timeline");
    stretches_init(&th->stretches, t);
    const enum memplan_status status = mp_evaluation_replay(e, visit, th, err);
    end_stretch(th);
    return status;
}

static void find_peaks(const struct mp_evaluation *e, struct mp_timeline *t)
{
    for (size_t i = 0; i < t->n_samples; i++) {
        if (t->samples[i].allocated_bytes > t->samples[t->peak].allocated_bytes)
            t->peak = i;
        if (t->samples[i].reserved_bytes > t->samples[t->reserved_peak].reserved_bytes)
            t->reserved_peak = i;
    }
    if (e->oom && t->n_samples)
        t->peak = t->n_samples - 1;
}

/* ---- the largest storages ---- */

/* Live storages counted by kind, in an open hash table that grows. */
struct census {
    struct census_entry {
        struct mp_timeline_kind kind;
        uint32_t n;
        uint32_t listed; /* 1 + index into the timeline's kinds; 0: not there yet */
    } *entries;
    uint32_t n, capacity; /* entries are dense; slots hold 1 + index */
    uint32_t *slots;
    uint32_t n_slots;
};

static uint64_t hash_kind(const struct mp_timeline_kind *kind)
{
    uint64_t hash = UINT64_C(1469598103934665603) ^ kind->bytes ^ (uint64_t)kind->category << 56; /* FNV-1a */
    for (const char *c = kind->op; *c; c++)
        hash = (hash ^ (unsigned char)*c) * UINT64_C(1099511628211);
    return hash ^ hash >> 29;
}

static bool same_kind(const struct mp_timeline_kind *a, const struct mp_timeline_kind *b)
{
    return a->bytes == b->bytes && a->category == b->category && strcmp(a->op, b->op) == 0;
}

static uint32_t *find_slot(const struct census *c, const struct mp_timeline_kind *kind)
{
    uint64_t at = hash_kind(kind);
    while (c->slots[at % c->n_slots] && !same_kind(&c->entries[c->slots[at % c->n_slots] - 1].kind, kind))
        at++;
    return &c->slots[at % c->n_slots];
}

static bool grow_census(struct census *c)
{
    const uint32_t capacity = c->capacity ? c->capacity * 2 : 256;
    struct census_entry *entries = mp_realloc(c->entries, capacity * sizeof *entries);
    if (!entries)
        return false;
    c->entries = entries;
    uint32_t *slots = mp_malloc(2 * (size_t)capacity * sizeof *slots);
    if (!slots)
        return false;
    free(c->slots);
    memset(slots, 0, 2 * (size_t)capacity * sizeof *slots);
    c->slots = slots;
    c->n_slots = 2 * capacity;
    c->capacity = capacity;
    for (uint32_t i = 0; i < c->n; i++)
        *find_slot(c, &c->entries[i].kind) = i + 1;
    return true;
}

/* Index of the kind; UINT32_MAX: out of memory. */
static uint32_t census_of(struct census *c, const struct mp_timeline_kind *kind)
{
    if (c->n == c->capacity && !grow_census(c))
        return UINT32_MAX;
    uint32_t *slot = find_slot(c, kind);
    if (!*slot) {
        c->entries[c->n] = (struct census_entry){.kind = *kind};
        *slot = ++c->n;
    }
    return *slot - 1;
}

static bool census_follow(struct census *c, const struct mp_event *event, uint32_t *kind_of)
{
    uint32_t *index = &kind_of[event->id];
    if (event->kind == MP_EVENT_ALLOC) {
        const struct mp_timeline_kind kind = {(enum mp_category)event->category, event->op ? event->op : "", event->bytes};
        *index = census_of(c, &kind);
        if (*index != UINT32_MAX)
            c->entries[*index].n++;
    } else if (event->kind == MP_EVENT_FREE) {
        c->entries[*index].n--;
    } else if (event->kind == MP_EVENT_TAG) {
        struct mp_timeline_kind kind = c->entries[*index].kind;
        kind.category = (enum mp_category)event->category;
        c->entries[*index].n--;
        *index = census_of(c, &kind);
        if (*index != UINT32_MAX)
            c->entries[*index].n++;
    } else {
        return true;
    }
    return *index != UINT32_MAX;
}

static void note_largest(struct census *c, struct mp_timeline *t, struct mp_timeline_sample *sample)
{
    uint32_t top[MP_TIMELINE_LARGEST];
    uint8_t n = 0;
    for (uint32_t i = 0; i < c->n; i++) {
        uint8_t at = n;
        if (!c->entries[i].n)
            continue;
        while (at > 0 && c->entries[top[at - 1]].kind.bytes < c->entries[i].kind.bytes)
            at--;
        if (at == MP_TIMELINE_LARGEST)
            continue;
        n = (uint8_t)MP_MIN(n + 1, MP_TIMELINE_LARGEST);
        memmove(&top[at + 1], &top[at], (size_t)(n - 1 - at) * sizeof top[0]);
        top[at] = i;
    }
    for (uint8_t i = 0; i < n; i++) {
        struct census_entry *entry = &c->entries[top[i]];
        if (!entry->listed) {
            t->kinds[t->n_kinds++] = entry->kind;
            entry->listed = (uint32_t)t->n_kinds;
        }
        sample->largest[i].kind = entry->listed - 1;
        sample->largest[i].n = entry->n;
    }
    sample->n_largest = n;
}

static bool take_census(const struct mp_evaluation *e, struct mp_timeline *t, struct census *c, uint32_t *kind_of)
{
    const struct mp_program *p = &e->program;
    size_t next = 0;
    for (uint32_t i = 0; i < t->n_events && next < t->n_samples; i++) {
        const bool failed = e->oom && i == e->oom_event;
        if (!failed && !census_follow(c, &p->events[i], kind_of))
            return false;
        if (t->samples[next].event == i)
            note_largest(c, t, &t->samples[next++]);
    }
    return true;
}

static enum memplan_status find_largest(const struct mp_evaluation *e, struct mp_timeline *t, struct mp_arena *arena,
                                        struct memplan_error *err)
{
    struct census c = {0};
    uint32_t *kind_of = mp_arena_calloc(arena, (size_t)e->program.n_allocs + 1, sizeof *kind_of);
    t->kinds = mp_arena_calloc(arena, t->n_samples * MP_TIMELINE_LARGEST + 1, sizeof *t->kinds);
    const bool done = kind_of && t->kinds && take_census(e, t, &c, kind_of);
    free(c.entries);
    free(c.slots);
    return done ? MEMPLAN_STATUS_OK : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing the timeline");
}

const struct mp_timeline *mp_timeline_new(const struct mp_evaluation *e, struct mp_arena *arena, struct memplan_error *err)
{
    struct mp_timeline *t = mp_arena_alloc(arena, sizeof *t);
    if (t)
        t->n_events = choose_end(e, &t->steps);
    if (!t || !list_phases(&e->program, t, arena)) {
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while drawing the timeline");
        return NULL;
    }
    if (pick_moments(e, t, arena, err))
        return NULL;
    find_peaks(e, t);
    return find_largest(e, t, arena, err) ? NULL : t;
}
