/* SPDX-License-Identifier: MIT */
/* Finds what repeats in a run of four blocks, adds it up for any number of them, and writes it out. */
#include "plan/fold.h"

#include "arch/arch.h"
#include "train/job.h"

enum { FIRST = 0, SECOND = 1, THIRD = 2, LAST = MP_FOLD_BLOCKS - 1 };

void mp_fold_release(struct mp_fold *f)
{
    mp_requests_release(&f->recorded);
    free(f->parts);
    free(f->births);
    *f = (struct mp_fold){0};
}

void mp_fold_scratch_release(struct mp_fold_scratch *scratch)
{
    mp_program_release(&scratch->program);
    free(scratch->units);
    *scratch = (struct mp_fold_scratch){0};
}

/* ---- the short model ---- */

/* Keys of configurations whose blocks are not all the same, or that count blocks in more than one place. */
static bool has_uneven_blocks(const struct mp_value *config)
{
    static const char *const keys[] = {
        "layer_types", "sliding_window_pattern", "attention_types", "attention_layers", "mlp_only_layers", "decoder_sparse_step",
        "first_k_dense_replace", "full_attention_interval", "no_rope_layers", "global_attn_every_n_layers", "encoder_layers",
        "decoder_layers", "num_decoder_layers", "text_config", "vision_config", "layers_block_type", "attn_layer_period",
        "num_hidden_groups"};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        const struct mp_value *const value = mp_value_get(config, keys[i]);
        if (value != NULL && value->kind != MP_NULL)
            return true;
    }
    const struct mp_value *const sliding = mp_value_get(config, "use_sliding_window");
    return sliding != NULL && sliding->kind == MP_BOOLEAN && sliding->as.boolean;
}

static bool counts_blocks(const char *key)
{
    return strcmp(key, "num_hidden_layers") == 0 || strcmp(key, "n_layer") == 0 || strcmp(key, "num_layers") == 0 ||
           strcmp(key, "n_layers") == 0;
}

/* The configuration with every count of blocks replaced; NULL when it has none. */
static const struct mp_value *shorten(const struct mp_value *config, struct mp_arena *arena)
{
    const size_t n = config->as.object.length;
    struct mp_value *const count = mp_arena_alloc(arena, sizeof *count), *const copy = mp_arena_alloc(arena, sizeof *copy);
    struct mp_member *const members = mp_arena_calloc(arena, n, sizeof *members);
    bool found = false;
    if (!count || !copy || !members)
        return NULL;
    *count = (struct mp_value){.kind = MP_INT, .as.integer = MP_FOLD_BLOCKS};
    for (size_t i = 0; i < n; i++) {
        members[i] = config->as.object.members[i];
        if (!counts_blocks(members[i].key))
            continue;
        members[i].value = count;
        found = true;
    }
    *copy = *config;
    copy->as.object.members = members;
    return found ? copy : NULL;
}

/* Number of blocks as the family counts them; 0: not a configuration that it takes. */
static int64_t n_blocks(const struct mp_model *model, struct mp_arena *arena)
{
    struct memplan_error ignored = {0};
    struct mp_config c;
    const struct mp_family *const family = mp_family_find(model, &ignored);
    if (!family)
        return 0;
    mp_config_open(&c, model, &ignored);
    const void *const config = family->configure(arena, &c);
    return config && c.n_problems == 0 ? family->n_blocks(config) : 0;
}

const struct mp_model *mp_fold_model(const struct mp_model *model, struct mp_arena *arena)
{
    if (has_uneven_blocks(model->config) || n_blocks(model, arena) <= MP_FOLD_BLOCKS)
        return NULL;
    struct mp_model *const shorter = mp_arena_alloc(arena, sizeof *shorter);
    const struct mp_value *const config = shorten(model->config, arena);
    if (!shorter || !config)
        return NULL;
    *shorter = *model;
    shorter->config = config;
    return n_blocks(shorter, arena) == MP_FOLD_BLOCKS ? shorter : NULL;
}

/* ---- which block a request belongs to ---- */

static bool is_request(const struct mp_event *e)
{
    return e->kind == MP_EVENT_ALLOC || e->kind == MP_EVENT_FREE || e->kind == MP_EVENT_EMPTY_CACHE || e->kind == MP_EVENT_DRIVER;
}

static bool reserve(void **array, uint32_t *capacity, uint32_t n, size_t size)
{
    if (n <= *capacity)
        return true;
    const uint32_t wanted = n + n / 2 + 64;
    void *const bigger = mp_realloc(*array, wanted * size);
    if (!bigger)
        return false;
    *array = bigger;
    *capacity = wanted;
    return true;
}


/*
 * units[]: block of each request of the recorded stream. What dies outside the blocks goes with the block that made it, unless it
 * dies right after a block has run, as its input does when the output takes its name: then it goes with that block.
 */
static void find_units(struct mp_fold *f, const struct mp_fold_scratch *scratch)
{
    uint32_t n = 0;
    int running = -1; /* the block whose last request was the one before */
    for (uint32_t i = 0; i < scratch->program.n_events && n < f->recorded.n_requests; i++) {
        const struct mp_event *const e = &scratch->program.events[i];
        const bool frees = e->kind == MP_EVENT_FREE;
        int unit = e->unit;
        if (e->kind == MP_EVENT_ALLOC)
            f->births[e->id].block = unit;
        const int born = frees ? f->births[e->id].block : -1;
        if (unit < 0 && running >= 0 && born >= 0 && running - born <= 1 && born - running <= 1)
            unit = running;
        else if (unit < 0 && born >= 0)
            unit = born;
        else
            running = unit;
        if (is_request(e))
            scratch->units[n++] = (int16_t)unit;
    }
}

/* ---- parts ---- */

static bool is_step_end(const struct mp_requests *s, uint32_t at)
{
    bool is = at == s->build_end;
    for (int i = 0; i < s->n_steps; i++)
        is |= at == s->steps[i].end;
    return is;
}

/* End of the stretch of one unit that begins at `first`. */
static uint32_t stretch_end(const struct mp_fold *f, const int16_t *units, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < f->recorded.n_requests && units[end] == units[first] && !is_step_end(&f->recorded, end))
        end++;
    return end;
}

/* A pass that begins at `first`: all blocks, one after the other, up or down. */
static bool find_pass(const struct mp_fold *f, const int16_t *units, uint32_t first, struct mp_fold_part *part)
{
    const int16_t unit = units[first];
    if (unit != FIRST && unit != LAST)
        return false;
    *part = (struct mp_fold_part){.pass = true, .backwards = unit == LAST};
    part->first[0] = first;
    for (int n = 0; n < MP_FOLD_BLOCKS; n++) {
        const uint32_t at = part->first[n];
        if (at >= f->recorded.n_requests || units[at] != (part->backwards ? LAST - n : n) ||
            (n > 0 && is_step_end(&f->recorded, at)))
            return false;
        part->first[n + 1] = stretch_end(f, units, at);
    }
    return true;
}

static int block_of(const struct mp_fold_part *part, int n) { return !part->pass ? -1 : part->backwards ? LAST - n : n; }

/* Storages made in each stretch of the part, and where they were made. */
static void note_births(struct mp_fold *f, uint32_t index)
{
    struct mp_fold_part *const part = &f->parts[index];
    for (int n = 0; n < (part->pass ? MP_FOLD_BLOCKS : 1); n++) {
        for (uint32_t i = part->first[n]; i < part->first[n + 1]; i++) {
            const struct mp_request *const q = &f->recorded.requests[i];
            if (q->kind == MP_EVENT_ALLOC)
                f->births[q->id] = (struct mp_fold_birth){index, block_of(part, n), ++part->n_ids[n]};
        }
    }
}

static bool find_parts(struct mp_fold *f, const int16_t *units)
{
    f->n_parts = 0;
    for (uint32_t at = 0; at < f->recorded.n_requests;) {
        if (!reserve((void **)&f->parts, &f->cap_parts, f->n_parts + 1, sizeof *f->parts))
            return false;
        struct mp_fold_part *const part = &f->parts[f->n_parts];
        if (!find_pass(f, units, at, part)) {
            const int16_t unit = units[at];
            if (unit == SECOND || unit == THIRD)
                return false; /* an inner block does something that its neighbour does not */
            *part = (struct mp_fold_part){.first = {at, stretch_end(f, units, at)}};
        }
        at = part->first[part->pass ? MP_FOLD_BLOCKS : 1];
        note_births(f, f->n_parts++);
    }
    return true;
}

/* ---- do inner blocks repeat each other? ---- */

/* The second and the third block free the same: made by the same stretch of the same, or of the neighbouring block. */
static bool same_free(const struct mp_fold *f, const struct mp_request *a, const struct mp_request *b)
{
    const struct mp_fold_birth *const x = &f->births[a->id], *const y = &f->births[b->id];
    const int32_t from = x->block - SECOND;
    if (x->part != y->part || x->block < 0 || y->block - THIRD != from || from < -1 || from > 1)
        return false;
    return from != 0 || x->nth == y->nth;
}

static bool inner_blocks_repeat(const struct mp_fold *f, const struct mp_fold_part *part)
{
    const int second = part->backwards ? LAST - SECOND : SECOND, third = part->backwards ? LAST - THIRD : THIRD;
    const struct mp_request *const a = &f->recorded.requests[part->first[second]];
    const struct mp_request *const b = &f->recorded.requests[part->first[third]];
    const uint32_t n = part->first[second + 1] - part->first[second];
    if (part->first[third + 1] - part->first[third] != n)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].kind != b[i].kind || a[i].bytes != b[i].bytes || a[i].stream != b[i].stream ||
            a[i].tag != b[i].tag || (a[i].kind != MP_EVENT_ALLOC && a[i].kind != MP_EVENT_FREE))
            return false;
        if (a[i].kind == MP_EVENT_FREE && !same_free(f, &a[i], &b[i]))
            return false;
    }
    return true;
}

/* What the first and the last block free is their own, their neighbour's, or made outside. */
static bool outer_block_is_local(const struct mp_fold *f, const struct mp_fold_part *part, int n)
{
    const int block = block_of(part, n);
    for (uint32_t i = part->first[n]; i < part->first[n + 1]; i++) {
        const struct mp_request *const q = &f->recorded.requests[i];
        if (q->kind != MP_EVENT_FREE)
            continue;
        const int32_t born = f->births[q->id].block;
        if (born >= 0 && born != block && born != block + (block == FIRST ? 1 : -1))
            return false;
    }
    return true;
}

/* Outside the blocks only the first and the last one's storages may die. */
static bool outside_is_simple(const struct mp_fold *f, const struct mp_fold_part *part)
{
    for (uint32_t i = part->first[0]; i < part->first[1]; i++) {
        const struct mp_request *const q = &f->recorded.requests[i];
        const int32_t born = q->kind == MP_EVENT_FREE ? f->births[q->id].block : -1;
        if (born == SECOND || born == THIRD)
            return false;
    }
    return true;
}

static bool repeats(const struct mp_fold *f)
{
    for (uint32_t i = 0; i < f->n_parts; i++) {
        const struct mp_fold_part *const part = &f->parts[i];
        if (part->pass ? !inner_blocks_repeat(f, part) || !outer_block_is_local(f, part, 0) || !outer_block_is_local(f, part, LAST)
                       : !outside_is_simple(f, part))
            return false;
    }
    return true;
}

/* ---- the peak ---- */

struct sum {
    int64_t live, peak;
};

/* Requests [first, end), `times` times in a row. */
static void add_requests(struct sum *sum, const struct mp_request *requests, uint32_t first, uint32_t end, int64_t times)
{
    int64_t live = 0, peak = 0;
    for (uint32_t i = first; i < end; i++) {
        live += requests[i].kind == MP_EVENT_ALLOC  ? (int64_t)requests[i].bytes
                : requests[i].kind == MP_EVENT_FREE ? -(int64_t)requests[i].bytes
                                                    : 0;
        peak = MP_MAX(peak, live);
    }
    const int64_t highest_start = sum->live + (live > 0 ? (times - 1) * live : 0);
    sum->peak = MP_MAX(sum->peak, highest_start + peak);
    sum->live += times * live;
}

static uint64_t folded_peak(const struct mp_fold *f)
{
    struct sum sum = {0, 0};
    const struct mp_request *const q = f->recorded.requests;
    for (uint32_t i = 0; i < f->n_parts; i++) {
        const struct mp_fold_part *const part = &f->parts[i];
        add_requests(&sum, q, part->first[0], part->first[1], 1);
        if (!part->pass)
            continue;
        add_requests(&sum, q, part->first[1], part->first[2], f->n_blocks - 2);
        add_requests(&sum, q, part->first[LAST], part->first[LAST + 1], 1);
    }
    return (uint64_t)sum.peak;
}

static uint64_t whole_peak(const struct mp_requests *s)
{
    struct sum sum = {0, 0};
    add_requests(&sum, s->requests, 0, s->n_requests, 1);
    return (uint64_t)sum.peak;
}

/* ---- recording ---- */

/* Sizes that depend on the number of blocks, or blocks that the run tells apart. */
static bool may_fold(const struct mp_run *run)
{
    return run->checkpoint != MP_CHECKPOINT_LAYERS && !mp_run_treats_blocks(run) &&
           !run->clip_grad_norm;
}

static enum memplan_status record(struct mp_fold *f, struct mp_program *program, const struct mp_run *run, struct memplan_error *err)
{
    program->n_events = program->n_phases = program->n_allocs = 0;
    program->live_bytes = program->peak_bytes = program->peak_since_mark_bytes = 0;
    return mp_requests_record_program(&f->recorded, run, program, err);
}

static uint64_t hash_requests(const struct mp_requests *s)
{
    uint64_t hash = s->n_requests;
    for (uint32_t i = 0; i < s->n_requests; i++) {
        const struct mp_request *const q = &s->requests[i];
        hash = (hash ^ (q->tag ? q->tag : q->bytes) ^ (uint64_t)q->id << 32 ^ (uint64_t)q->kind << 24) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

static enum memplan_status record_all(struct mp_fold *f, struct mp_program *program, const struct mp_run *run, struct memplan_error *err)
{
    const enum memplan_status status = record(f, program, run, err);
    f->folded = false;
    f->peak_bytes = f->recorded.peak_bytes;
    f->hash = status ? 0 : hash_requests(&f->recorded);
    return status;
}

/* What was learnt of the short run's steps is not true of the whole's. */
static enum memplan_status record_whole(struct mp_fold *f, struct mp_program *program, const struct mp_run *run, struct memplan_error *err)
{
    f->recorded.known = NULL;
    return record_all(f, program, run, err);
}

enum memplan_status mp_fold_record(struct mp_fold *f, struct mp_fold_scratch *scratch,
                                   const struct mp_run *run, const struct mp_model *shorter,
                                   struct memplan_error *err)
{
    if (!shorter || !may_fold(run))
        return record_all(f, &scratch->program, run, err);
    struct mp_run few = *run;
    few.model = shorter;
    const enum memplan_status status = record(f, &scratch->program, &few, err);
    if (status)
        return status;
    if (!reserve((void **)&f->births, &f->cap_births, scratch->program.n_allocs + 1, sizeof *f->births) ||
        !reserve((void **)&scratch->units, &scratch->cap_units, f->recorded.n_requests + 1, sizeof *scratch->units))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while folding");
    f->n_blocks = mp_model_layers(run->model);
    find_units(f, scratch);
    if (f->n_blocks <= MP_FOLD_BLOCKS || !find_parts(f, scratch->units) || !repeats(f))
        return record_whole(f, &scratch->program, run, err);
    f->folded = true;
    f->peak_bytes = folded_peak(f);
    f->hash = hash_requests(&f->recorded);
    return MEMPLAN_STATUS_OK;
}

bool mp_fold_equal(const struct mp_fold *a, const struct mp_fold *b)
{
    return a->hash == b->hash && a->folded == b->folded && (!a->folded || a->n_blocks == b->n_blocks) &&
           mp_requests_equal_but_for_card(&a->recorded, &b->recorded);
}

void mp_fold_resize(struct mp_fold *f, const uint64_t *sizes)
{
    for (uint32_t i = 0; i < f->recorded.n_requests; i++) {
        struct mp_request *const q = &f->recorded.requests[i];
        if (q->tag)
            q->bytes = sizes[q->tag - 1];
    }
    if (f->folded)
        f->peak_bytes = folded_peak(f);
    else
        f->peak_bytes = f->recorded.peak_bytes = whole_peak(&f->recorded);
}

/* ---- writing it out ---- */

struct writer {
    const struct mp_fold *f;
    struct mp_request *out;
    uint32_t n_ids;
};

/* Id in the whole stream of the nth storage that a part made in block number `block` (-1: outside). */
static uint32_t long_id(const struct mp_fold *f, const struct mp_fold_part *part, int64_t block, uint32_t nth)
{
    if (!part->pass)
        return part->long_id + nth;
    const int64_t n = part->backwards ? f->n_blocks - 1 - block : block;
    return part->long_id + (n ? part->n_ids[0] + (uint32_t)(n - 1) * part->n_ids[1] : 0) + nth;
}

/* Block numbers of the short run, counted from the nearer end. */
static int64_t long_block(const struct mp_fold *f, int32_t block) { return block <= SECOND ? block : f->n_blocks - MP_FOLD_BLOCKS + block; }

/* Write requests [first, end) as those of block number `at` (-1: outside); they were recorded in block `block`. */
static void write(struct writer *w, uint32_t first, uint32_t end, int64_t at, int block)
{
    const struct mp_fold *const f = w->f;
    for (uint32_t i = first; i < end; i++) {
        struct mp_request q = f->recorded.requests[i];
        if (q.kind == MP_EVENT_ALLOC) {
            q.id = ++w->n_ids;
        } else if (q.kind == MP_EVENT_FREE) {
            const struct mp_fold_birth *const born = &f->births[q.id];
            const int64_t in = born->block < 0 || at < 0 ? long_block(f, born->block) : at + born->block - block;
            q.id = long_id(f, &f->parts[born->part], in, born->nth);
        }
        *w->out++ = q;
    }
}

/* An inner block with inner neighbours: what it frees of the block after it is told by the second, of the one before by the third. */
static void write_inner(struct writer *w, uint32_t second, uint32_t third, uint32_t n, int64_t at)
{
    const struct mp_fold *const f = w->f;
    for (uint32_t i = 0; i < n; i++) {
        struct mp_request q = f->recorded.requests[third + i];
        if (q.kind == MP_EVENT_ALLOC) {
            q.id = ++w->n_ids;
        } else {
            const struct mp_fold_birth *const born = &f->births[q.id];
            const int32_t from = born->block - THIRD;
            const uint32_t nth = from > 0 ? f->births[f->recorded.requests[second + i].id].nth : born->nth;
            q.id = long_id(f, &f->parts[born->part], at + from, nth);
        }
        *w->out++ = q;
    }
}

static void write_pass(struct writer *w, const struct mp_fold_part *part)
{
    const int64_t n = w->f->n_blocks;
    const int second = part->backwards ? LAST - SECOND : SECOND, third = part->backwards ? LAST - THIRD : THIRD;
    const uint32_t length = part->first[second + 1] - part->first[second];
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = part->backwards ? n - 1 - i : i;
        if (at == 0 || at == n - 1) {
            const int k = i == 0 ? 0 : LAST;
            write(w, part->first[k], part->first[k + 1], at, at == 0 ? FIRST : LAST);
        } else if (at == 1) {
            write(w, part->first[second], part->first[second + 1], at, SECOND);
        } else if (at == n - 2) {
            write(w, part->first[third], part->first[third + 1], at, THIRD);
        } else {
            write_inner(w, part->first[second], part->first[third], length, at);
        }
    }
}

static uint64_t n_long_requests(const struct mp_fold *f)
{
    uint64_t n = f->recorded.n_requests;
    for (uint32_t i = 0; i < f->n_parts; i++)
        if (f->parts[i].pass)
            n += (uint64_t)(f->n_blocks - MP_FOLD_BLOCKS) * (f->parts[i].first[2] - f->parts[i].first[1]);
    return n;
}

static enum memplan_status copy(const struct mp_requests *from, struct mp_requests *to, struct memplan_error *err)
{
    if (!mp_requests_reserve(to, from->n_requests))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while unfolding");
    memcpy(to->requests, from->requests, from->n_requests * sizeof *to->requests);
    memcpy(to->steps, from->steps, sizeof to->steps);
    to->n_requests = from->n_requests;
    to->build_end = from->build_end;
    to->build_end_id = from->build_end_id;
    to->n_steps = from->n_steps;
    to->steady = from->steady;
    to->kernels = from->kernels;
    to->peak_bytes = from->peak_bytes;
    return MEMPLAN_STATUS_OK;
}

/* Step ends fall on ends of parts. */
static void note_ends(const struct mp_fold *f, struct mp_requests *s, uint32_t recorded_end, uint32_t n_requests, uint32_t n_ids)
{
    if (recorded_end == f->recorded.build_end) {
        s->build_end = n_requests;
        s->build_end_id = n_ids;
    }
    for (int i = 0; i < s->n_steps; i++)
        if (recorded_end == f->recorded.steps[i].end)
            s->steps[i] = (struct mp_requests_step){n_requests, n_ids};
}

enum memplan_status mp_fold_expand(const struct mp_fold *f, struct mp_requests *s, struct memplan_error *err)
{
    if (!f->folded)
        return copy(&f->recorded, s, err);
    const uint64_t n = n_long_requests(f);
    if (n > UINT32_MAX / 2 || !mp_requests_reserve(s, (uint32_t)n))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while unfolding");
    struct writer w = {f, s->requests, 0};
    s->n_requests = (uint32_t)n;
    s->n_steps = f->recorded.n_steps;
    s->steady = f->recorded.steady;
    s->kernels = f->recorded.kernels;
    s->peak_bytes = f->peak_bytes;
    for (uint32_t i = 0; i < f->n_parts; i++) {
        struct mp_fold_part *const part = &f->parts[i];
        part->long_id = w.n_ids;
        if (part->pass)
            write_pass(&w, part);
        else
            write(&w, part->first[0], part->first[1], -1, -1);
        note_ends(f, s, part->first[part->pass ? MP_FOLD_BLOCKS : 1], (uint32_t)(w.out - s->requests), w.n_ids);
    }
    return MEMPLAN_STATUS_OK;
}
