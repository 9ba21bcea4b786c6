/* SPDX-License-Identifier: MIT */
/* The points of a grid, group by group, on several threads; every row has its place, so the order of work does not show. */
#include "plan/sweep.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>

#include "plan/fold.h"
#include "train/job.h"

const char *mp_decided_text(enum mp_decided decided)
{
    static const char *const texts[] = {
#define X(name, text) text,
        MP_DECIDED_MAP(X)
#undef X
    };
    return texts[decided];
}

/* ---- models and cards ---- */

/* A run of one model on one card, from which points take the files that were read. */
struct mp_sweep_base {
    const struct mp_run *run;
    const struct mp_model *shorter; /* for folding; NULL: cannot be */
};

static const enum mp_run_key base_keys[] = {MP_KEY_MODEL, MP_KEY_GPU, MP_KEY_FRAMEWORK};

static const struct mp_axis *axis_of(const struct mp_grid *grid, enum mp_run_key key)
{
    for (size_t i = 0; i < grid->n_axes; i++)
        if (grid->axes[i].key == key)
            return &grid->axes[i];
    return NULL;
}

static size_t base_index(const struct mp_grid *grid, uint64_t point)
{
    size_t index = 0;
    for (size_t i = 0; i < MP_ARRAY_LEN(base_keys); i++) {
        const struct mp_axis *const axis = axis_of(grid, base_keys[i]);
        if (axis)
            index = index * axis->n + point / axis->stride % axis->n;
    }
    return index;
}

static size_t count_bases(const struct mp_grid *grid)
{
    size_t n = 1;
    for (size_t i = 0; i < MP_ARRAY_LEN(base_keys); i++) {
        const struct mp_axis *const axis = axis_of(grid, base_keys[i]);
        n *= axis ? axis->n : 1;
    }
    return n;
}

/* The values of base number `index`. */
static void base_values(const struct mp_grid *grid, size_t index, struct mp_run_source *source)
{
    for (size_t i = MP_ARRAY_LEN(base_keys); i-- > 0;) {
        const enum mp_run_key key = base_keys[i];
        const struct mp_axis *const axis = axis_of(grid, key);
        source->values[key] = axis ? axis->values[index % axis->n] : grid->fixed.values[key];
        source->origins[key] = grid->origin;
        if (axis)
            index /= axis->n;
    }
}

static enum memplan_status read_bases(struct mp_sweep *sweep, struct memplan_error *err)
{
    const struct mp_model *read = NULL, *shorter = NULL;
    sweep->n_bases = count_bases(sweep->grid);
    sweep->bases = mp_arena_calloc(&sweep->arena, sweep->n_bases, sizeof *sweep->bases);
    if (!sweep->bases)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while reading models and cards");
    for (size_t i = 0; i < sweep->n_bases; i++) {
        struct mp_sweep_base *const base = &sweep->bases[i];
        struct mp_run_source source;
        mp_run_source_init(&source, &sweep->arena);
        base_values(sweep->grid, i, &source);
        source.like = i ? sweep->bases[i - 1].run : NULL;
        base->run = mp_run_resolve(&source, err);
        if (!base->run) {
            if (err->status == MEMPLAN_STATUS_INPUT && strstr(err->text, sweep->grid->origin) == NULL)
                mp_error_prefix(err, "%s", sweep->grid->origin);
            return err->status;
        }
        if (base->run->model != read)
            shorter = mp_fold_model(base->run->model, &sweep->arena);
        read = base->run->model;
        base->shorter = shorter;
    }
    return MEMPLAN_STATUS_OK;
}

uint64_t mp_sweep_card_bytes(const struct mp_sweep *sweep, uint64_t point)
{
    return sweep->bases[base_index(sweep->grid, point)].run->gpu->total_bytes.value;
}

/* ---- which points there are ---- */

static bool keeps_all(const struct mp_grid *grid) { return grid->n_where == 0; }

/* Points of the group that count, at most `left`; the last of those ends the grid. */
static uint64_t count_group(struct mp_sweep *sweep, uint64_t group, uint64_t left)
{
    const struct mp_grid *const grid = sweep->grid;
    const uint64_t first = group * grid->n_inner;
    uint64_t n = 0;
    if (keeps_all(grid) && grid->n_inner < left)
        return grid->n_inner;
    for (uint64_t c = 0; c < grid->n_inner; c++) {
        n += mp_grid_keeps(grid, first + c);
        if (n == left) {
            sweep->end_point = first + c + 1;
            return n;
        }
    }
    return n;
}

/* Walk the whole grid once: how many points there are, where the limit cuts, which rows each group of the shard has. */
static enum memplan_status number_rows(struct mp_sweep *sweep, struct memplan_error *err)
{
    const struct mp_grid *const grid = sweep->grid;
    const uint64_t limit = grid->limit ? grid->limit : UINT64_MAX;
    const uint64_t n_groups = sweep->end_group - sweep->first_group;
    uint64_t n_before = 0; /* kept points before the shard */
    sweep->offsets = mp_arena_calloc(&sweep->arena, n_groups + 1, sizeof *sweep->offsets);
    if (!sweep->offsets)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory for %" PRIu64 " groups of points", n_groups);
    sweep->end_point = grid->n_points;
    for (uint64_t group = 0; group <= grid->n_groups; group++) {
        if (group == sweep->first_group)
            n_before = sweep->n_kept;
        if (group >= sweep->first_group && group <= sweep->end_group)
            sweep->offsets[group - sweep->first_group] = sweep->n_kept - n_before;
        if (group < grid->n_groups && sweep->n_kept < limit)
            sweep->n_kept += count_group(sweep, group, limit - sweep->n_kept);
    }
    sweep->n_rows = sweep->offsets[n_groups];
    return MEMPLAN_STATUS_OK;
}

static uint64_t hash_text(uint64_t hash, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3); /* FNV-1a */
    return hash;
}

/* The grid's text says names; what stands in the files behind them counts too, and so does who simulates. */
static void name_grid(struct mp_sweep *sweep)
{
    uint64_t hash = hash_text(sweep->grid->hash, memplan_version(), strlen(memplan_version()));
    for (size_t i = 0; i < sweep->n_bases; i++) {
        const struct mp_run *const run = sweep->bases[i].run;
        struct mp_strbuf text = MP_STRBUF_INIT;
        struct mp_json_writer w;
        mp_json_init(&w, &text, 0);
        mp_json_value(&w, NULL, run->model->config);
        mp_strbuf_addf(&text, " %d %" PRIu32 " %" PRIu32 " %" PRIu64, run->gpu->compute_capability, run->gpu->sms, run->gpu->threads_per_sm,
                       run->gpu->total_bytes.value);
        for (int set = 0; set < MP_KERNEL_SETS; set++)
            mp_strbuf_addf(&text, " %" PRIu64 " %" PRIu64, run->gpu->unavailable_bytes[set].value, run->gpu->context_bytes[set].value);
        hash = hash_text(hash, mp_strbuf_text(&text), text.len);
        mp_strbuf_release(&text);
    }
    (void)snprintf(sweep->tag, sizeof sweep->tag, "%" PRIu64 "-%016" PRIx64, sweep->n_kept, hash);
}

__extension__ typedef unsigned __int128 product; /* of two counts */

/* floor(n * part / parts), part at most parts. */
static uint64_t share_begin(uint64_t n, uint64_t part, uint64_t parts)
{
    const product whole = (product)n * part;
    return (uint64_t)(whole / parts);
}

enum memplan_status mp_sweep_open(struct mp_sweep *sweep, const struct mp_grid *grid, int64_t shard, int64_t n_shards,
                                  struct memplan_error *err)
{
    *sweep = (struct mp_sweep){.grid = grid};
    mp_arena_init(&sweep->arena);
    /* Contiguous groups: no group is torn apart. */
    sweep->first_group = share_begin(grid->n_groups, (uint64_t)shard - 1, (uint64_t)n_shards);
    sweep->end_group = share_begin(grid->n_groups, (uint64_t)shard, (uint64_t)n_shards);
    enum memplan_status status = read_bases(sweep, err);
    if (!status)
        status = number_rows(sweep, err);
    if (!status) {
        name_grid(sweep);
        sweep->rows = mp_malloc((sweep->n_rows + 1) * sizeof *sweep->rows);
        if (!sweep->rows)
            status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory for %" PRIu64 " points", sweep->n_rows);
        else
            memset(sweep->rows, 0, (sweep->n_rows + 1) * sizeof *sweep->rows);
    }
    if (status)
        mp_sweep_release(sweep);
    return status;
}

void mp_sweep_release(struct mp_sweep *sweep)
{
    for (uint32_t i = 0; i < sweep->n_errors; i++)
        free((void *)(uintptr_t)sweep->errors[i]);
    free(sweep->errors);
    free(sweep->rows);
    mp_arena_release(&sweep->arena);
    *sweep = (struct mp_sweep){0};
}

/* ---- rows ---- */

/* Rows of the points [first of group, point). */
static uint64_t rows_before(const struct mp_sweep *sweep, uint64_t group, uint64_t point)
{
    uint64_t n = 0;
    for (uint64_t p = group * sweep->grid->n_inner; p < point; p++)
        n += mp_grid_keeps(sweep->grid, p);
    return n;
}

struct mp_sweep_row *mp_sweep_row(struct mp_sweep *sweep, uint64_t point)
{
    const uint64_t group = point / sweep->grid->n_inner;
    if (group < sweep->first_group || group >= sweep->end_group || point >= sweep->end_point || !mp_grid_keeps(sweep->grid, point))
        return NULL;
    return &sweep->rows[sweep->offsets[group - sweep->first_group] + rows_before(sweep, group, point)];
}

bool mp_sweep_set_error(struct mp_sweep *sweep, struct mp_sweep_row *row, const char *text)
{
    if (sweep->n_errors == sweep->cap_errors) {
        const uint32_t wanted = sweep->cap_errors * 2 + 16;
        const char **const errors = mp_realloc(sweep->errors, wanted * sizeof *errors);
        if (!errors)
            return false;
        sweep->errors = errors;
        sweep->cap_errors = wanted;
    }
    char *const copy = mp_malloc(strlen(text) + 1);
    if (!copy)
        return false;
    memcpy(copy, text, strlen(text) + 1);
    row->error = sweep->n_errors;
    row->decided = MP_DECIDED_ERROR;
    sweep->errors[sweep->n_errors++] = copy;
    return true;
}

void mp_sweep_each(const struct mp_sweep *sweep, mp_sweep_visit *visit, void *context)
{
    const struct mp_sweep_row *row = sweep->rows;
    const uint64_t end = MP_MIN(sweep->end_group * sweep->grid->n_inner, sweep->end_point);
    for (uint64_t point = sweep->first_group * sweep->grid->n_inner; point < end; point++)
        if (mp_grid_keeps(sweep->grid, point) && !visit(context, point, row++))
            return;
}

/* ---- one group ---- */

/* A point of the group at hand. */
struct candidate {
    const struct mp_run *run; /* NULL: decided already */
    const struct mp_model *shorter;
    struct mp_sweep_row *row;
    uint64_t structure;
    size_t stream; /* which of the worker's streams */
};

struct crew;

/* A structure of runs that was met before. */
struct checked {
    uint64_t structure;
    bool good; /* folding gave what the whole run gave */
    struct mp_known_steps *steps; /* owned */
};

/* What cards that agree ask for: a fold, and what they answer to the questions of its run. */
struct stream {
    size_t fold;
    size_t sizes; /* in the worker's */
    uint64_t peak_bytes;
};

/* What one thread works with; memory is kept from group to group. */
struct worker {
    struct crew *crew;
    pthread_t thread;
    bool leads; /* the calling thread: it reports */
    struct mp_arena arena;
    struct candidate *candidates; /* n_inner */
    size_t n_candidates;
    struct mp_fold *folds; /* the group's */
    size_t n_folds, cap_folds;
    struct stream *streams; /* of the group's folds */
    size_t n_streams, cap_streams;
    uint64_t *sizes;
    size_t n_sizes, cap_sizes;
    struct mp_companion *companions; /* of the replay at hand */
    size_t n_companions, cap_companions;
    struct mp_fold_scratch scratch;
    struct mp_requests requests, full;
    struct mp_replayer replayer;
    struct checked *checked;
    size_t n_checked, cap_checked;
    struct memplan_error err;
};

struct crew {
    struct mp_sweep *sweep;
    const struct mp_sweep_options *options;
    atomic_uint_fast64_t next_group, n_done;
    atomic_bool failed;
    pthread_mutex_t lock; /* of the sweep's errors */
};

static bool fail(struct worker *w)
{
    atomic_store(&w->crew->failed, true);
    return false;
}

static bool out_of_memory(struct worker *w)
{
    mp_error_set(&w->err, MEMPLAN_STATUS_NOMEM, "out of memory while sweeping");
    return fail(w);
}

/* The point is not a run that can be simulated. */
static bool set_error(struct worker *w, struct candidate *c, const struct memplan_error *why)
{
    if (why->status == MEMPLAN_STATUS_NOMEM)
        return out_of_memory(w);
    (void)pthread_mutex_lock(&w->crew->lock);
    const bool ok = mp_sweep_set_error(w->crew->sweep, c->row, why->text);
    (void)pthread_mutex_unlock(&w->crew->lock);
    c->run = NULL;
    return ok || out_of_memory(w);
}

static void set_row(struct candidate *c, const struct mp_verdict *v, enum mp_decided decided)
{
    *c->row = (struct mp_sweep_row){v->requested_bytes, v->allocated_bytes, v->reserved_bytes, v->device_used_bytes, 0, (uint8_t)decided,
                                    v->fits};
    c->run = NULL;
}

/* The long way, for runs whose steps never become the same, or with several ranks. */
static bool evaluate(struct worker *w, struct candidate *c)
{
    struct mp_evaluation e;
    struct memplan_error why = {0};
    if (mp_evaluate(c->run, NULL, &e, &why))
        return set_error(w, c, &why);
    const struct mp_verdict v = {.fits = e.fits,
                                 .requested_bytes = e.requested_bytes,
                                 .allocated_bytes = e.allocated_bytes,
                                 .reserved_bytes = e.reserved_bytes,
                                 .device_used_bytes = e.device_used_bytes};
    set_row(c, &v, MP_DECIDED_REPLAY);
    mp_evaluation_release(&e);
    return true;
}

/* ---- is folding right for this kind of run? ---- */

/* What shapes the events of a run, sizes aside: every value that the grid gives but those that are sizes, or the card's. */
static uint64_t structure_of(const struct mp_value *const *values, const struct mp_run *run)
{
    const uint64_t parts[] = {(uint64_t)run->precision, (uint64_t)MP_MIN(run->accumulate, 3), (uint64_t)MP_MIN(run->iterations, 4),
                              (uint64_t)run->gpu->compute_capability};
    uint64_t hash = hash_text(UINT64_C(0xcbf29ce484222325), (const char *)parts, sizeof parts);
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        const bool sizes = key == MP_KEY_BATCH || key == MP_KEY_SEQ || key == MP_KEY_ACCUMULATE || key == MP_KEY_ITERATIONS;
        const bool card = key == MP_KEY_GPU || key == MP_KEY_USED || key == MP_KEY_ALLOCATOR_LIMIT_BYTES || key == MP_KEY_ALLOCATOR_CONF;
        const uintptr_t value = (uintptr_t)values[key]; /* lives as long as the grid */
        if (!sizes && !card)
            hash = hash_text(hash, (const char *)&value, sizeof value);
    }
    return hash;
}

static struct checked *find_checked(const struct worker *w, uint64_t structure)
{
    for (size_t i = 0; i < w->n_checked; i++)
        if (w->checked[i].structure == structure)
            return &w->checked[i];
    return NULL;
}

/* A new entry; NULL without memory. */
static struct checked *add_checked(struct worker *w, uint64_t structure)
{
    if (w->n_checked == w->cap_checked) {
        const size_t wanted = w->cap_checked * 2 + 64;
        struct checked *const bigger = mp_realloc(w->checked, wanted * sizeof *bigger);
        if (!bigger)
            return NULL;
        w->checked = bigger;
        w->cap_checked = wanted;
    }
    struct mp_known_steps *const steps = mp_malloc(sizeof *steps);
    if (!steps)
        return NULL;
    *steps = (struct mp_known_steps){0};
    w->checked[w->n_checked] = (struct checked){structure, true, steps};
    return &w->checked[w->n_checked++];
}

/* The first point of every structure is run both ways. */
static enum memplan_status check(struct worker *w, struct mp_fold *fold, const struct candidate *c, struct checked *checked,
                                 struct memplan_error *why)
{
    checked->good = false;
    if (!fold->folded)
        return MEMPLAN_STATUS_OK;
    enum memplan_status status = mp_requests_record(&w->full, c->run, why);
    if (!status)
        status = mp_fold_expand(fold, &w->requests, why);
    if (status)
        return status;
    checked->good = mp_requests_equal(&w->full, &w->requests);
    return checked->good ? MEMPLAN_STATUS_OK : mp_fold_record(fold, &w->scratch, c->run, NULL, why);
}

static enum memplan_status record(struct worker *w, struct mp_fold *fold, const struct candidate *c, struct memplan_error *why)
{
    struct checked *checked = find_checked(w, c->structure);
    const bool is_new = checked == NULL;
    if (is_new)
        checked = add_checked(w, c->structure);
    if (!checked)
        return mp_error_set(why, MEMPLAN_STATUS_NOMEM, "out of memory");
    fold->recorded.known = is_new ? NULL : checked->steps;
    const enum memplan_status status = mp_fold_record(fold, &w->scratch, c->run, checked->good ? c->shorter : NULL, why);
    if (status && is_new) { /* nothing was learnt: the next point tries anew */
        free(checked->steps);
        w->n_checked--;
    }
    return status || !is_new ? status : check(w, fold, c, checked, why);
}

/* ---- streams of the group ---- */

/* Room for n items; what is new is zero. */
static bool reserve(void **items, size_t *cap, size_t n, size_t size)
{
    if (n <= *cap)
        return true;
    const size_t wanted = n + n / 2 + 8;
    char *const bigger = mp_realloc(*items, wanted * size);
    if (!bigger)
        return false;
    memset(bigger + *cap * size, 0, (wanted - *cap) * size);
    *items = bigger;
    *cap = wanted;
    return true;
}

static struct mp_fold *next_fold(struct worker *w)
{
    return reserve((void **)&w->folds, &w->cap_folds, w->n_folds + 1, sizeof *w->folds) ? &w->folds[w->n_folds] : NULL;
}

/* The stream of the fold with the n sizes that stand behind the worker's, which are kept if it is a new one. */
static bool find_stream(struct worker *w, size_t fold, size_t n, size_t *found)
{
    const uint64_t *const sizes = w->sizes + w->n_sizes;
    size_t at = 0;
    while (at < w->n_streams && (w->streams[at].fold != fold || memcmp(w->sizes + w->streams[at].sizes, sizes, n * sizeof *sizes) != 0))
        at++;
    *found = at;
    if (at < w->n_streams)
        return true;
    if (!reserve((void **)&w->streams, &w->cap_streams, at + 1, sizeof *w->streams))
        return false;
    mp_fold_resize(&w->folds[fold], sizes);
    w->streams[w->n_streams++] = (struct stream){fold, w->n_sizes, w->folds[fold].peak_bytes};
    w->n_sizes += n;
    return true;
}

/* The fold that was recorded last: one that was there before, or a new one. */
static size_t keep_fold(struct worker *w)
{
    size_t fold = 0;
    while (fold < w->n_folds && !mp_fold_equal(&w->folds[fold], &w->folds[w->n_folds]))
        fold++;
    w->n_folds += fold == w->n_folds;
    return fold;
}

/* The job of candidate i is run once for all whose cards would have taken it the same way; they get their streams. */
static bool record_alike(struct worker *w, size_t i)
{
    struct candidate *const c = w->candidates;
    const struct mp_run *const run = c[i].run;
    struct mp_fold *const recorded = next_fold(w);
    struct memplan_error why = {0};
    if (!recorded)
        return out_of_memory(w);
    const enum memplan_status status = record(w, recorded, &c[i], &why);
    const struct mp_card_log *const card = &recorded->recorded.card;
    const size_t fold = status ? 0 : keep_fold(w), n = mp_card_log_sizes(card);
    if (!reserve((void **)&w->sizes, &w->cap_sizes, w->n_sizes + (n + 1) * w->n_candidates, sizeof *w->sizes))
        return out_of_memory(w);
    for (size_t k = i; k < w->n_candidates; k++) {
        if (!c[k].run || c[k].stream != SIZE_MAX || c[k].run->precision != run->precision || c[k].run->optimizer != run->optimizer ||
            (!mp_card_log_agrees(card, c[k].run->gpu, w->sizes + w->n_sizes) && k != i))
            continue;
        if (status ? !set_error(w, &c[k], &why) : !mp_requests_suffice(&recorded->recorded, run) && !evaluate(w, &c[k]))
            return false;
        if (c[k].run && !find_stream(w, fold, n, &c[k].stream))
            return out_of_memory(w);
    }
    return true;
}

static bool record_streams(struct worker *w)
{
    struct candidate *const c = w->candidates;
    w->n_folds = w->n_streams = w->n_sizes = 0;
    for (size_t i = 0; i < w->n_candidates; i++) {
        if (!c[i].run)
            continue;
        if (!mp_requests_applies(c[i].run) ? !evaluate(w, &c[i]) : c[i].stream == SIZE_MAX && !record_alike(w, i))
            return false;
    }
    return true;
}

/* ---- verdicts ---- */

/* The most that the allocator could take, whichever kernels are loaded. */
static uint64_t most_available(const struct mp_run *run)
{
    return MP_MAX(mp_requests_available(run, 0), mp_requests_available(run, 1u << MP_KERNEL_CUDNN));
}

static uint64_t least_available(const struct mp_run *run)
{
    return MP_MIN(mp_requests_available(run, 0), mp_requests_available(run, 1u << MP_KERNEL_CUDNN));
}

static void decide_folded(struct worker *w, size_t stream)
{
    const uint64_t peak = w->streams[stream].peak_bytes;
    for (size_t i = 0; i < w->n_candidates; i++) {
        struct candidate *const c = &w->candidates[i];
        if (!c->run || c->stream != stream || peak <= most_available(c->run))
            continue;
        *c->row = (struct mp_sweep_row){.requested_bytes = peak, .decided = MP_DECIDED_FOLDED};
        c->run = NULL;
    }
}

/* The undecided candidate of the stream (of any of the fold's when there is none) whose card gives most; NULL: none left. */
static struct candidate *largest(struct worker *w, size_t fold, size_t stream)
{
    struct candidate *best = NULL;
    const unsigned kernels = w->folds[fold].recorded.kernels;
    for (size_t i = 0; i < w->n_candidates; i++) {
        struct candidate *const c = &w->candidates[i];
        if (c->run && (stream == SIZE_MAX ? w->streams[c->stream].fold == fold : c->stream == stream) &&
            (!best || mp_requests_available(c->run, kernels) > mp_requests_available(best->run, kernels)))
            best = c;
    }
    return best;
}

/* Settings under which the card's size reaches into more than the question whether it gives. */
static bool size_matters(const struct mp_run *run)
{
    return strstr(run->allocator_conf, "expandable_segments") || strstr(run->allocator_conf, "garbage_collection") ||
           strstr(run->allocator_conf, "per_process_memory_fraction");
}

static bool same_card(const struct mp_run *a, const struct mp_run *b)
{
    return a->used_bytes == b->used_bytes && a->allocator_limit_bytes == b->allocator_limit_bytes &&
           mp_evaluate_expected_kernels(a) == mp_evaluate_expected_kernels(b) && a->gpu->total_bytes.value == b->gpu->total_bytes.value &&
           a->gpu->unavailable_bytes[MP_KERNELS_FUSED].value == b->gpu->unavailable_bytes[MP_KERNELS_FUSED].value &&
           a->gpu->unavailable_bytes[MP_KERNELS_PLAIN].value == b->gpu->unavailable_bytes[MP_KERNELS_PLAIN].value;
}

/* Would run's card have said yes to all that v, which no card said no to, took? */
static bool would_give(const struct mp_verdict *v, const struct mp_run *run)
{
    if (v->refused || size_matters(run))
        return false;
    struct mp_run whole = *run; /* the limit counts reserved bytes, the card whole pages */
    whole.allocator_limit_bytes = 0;
    return v->device_peak_bytes <= least_available(&whole) &&
           (run->allocator_limit_bytes == 0 || v->reserved_bytes <= run->allocator_limit_bytes);
}

static uint64_t context_bytes(const struct mp_run *run, unsigned kernels)
{
    return run->gpu->context_bytes[kernels >> MP_KERNEL_CUDNN & 1u ? MP_KERNELS_FUSED : MP_KERNELS_PLAIN].value;
}

/* The verdict of another card that gives the same answers. */
static struct mp_verdict on_card(const struct mp_verdict *v, const struct mp_run *run, unsigned kernels)
{
    struct mp_verdict same = *v;
    same.device_used_bytes = v->reserved_bytes + context_bytes(run, kernels) + run->used_bytes;
    return same;
}

/* v is the stream's on the card of c: it holds for c, and for other cards that would have given the same answers. */
static void decide_stream(struct worker *w, struct candidate *c, const struct mp_verdict *v)
{
    const struct mp_run *const run = c->run;
    const unsigned kernels = w->folds[w->streams[c->stream].fold].recorded.kernels;
    const size_t stream = c->stream;
    set_row(c, v, MP_DECIDED_REPLAY);
    for (size_t i = 0; i < w->n_candidates; i++) {
        struct candidate *const other = &w->candidates[i];
        if (!other->run || other->stream != stream || !(same_card(run, other->run) || would_give(v, other->run)))
            continue;
        const struct mp_verdict same = on_card(v, other->run, kernels);
        set_row(other, &same, MP_DECIDED_SAME_STREAM);
    }
}

/* The fold's other streams that are still wanted; false without memory. */
static bool find_companions(struct worker *w, const struct candidate *c, size_t fold)
{
    w->n_companions = 0;
    if (!reserve((void **)&w->companions, &w->cap_companions, w->n_streams, sizeof *w->companions))
        return false;
    for (size_t i = 0; i < w->n_streams; i++)
        if (w->streams[i].fold == fold && i != c->stream && largest(w, fold, i))
            w->companions[w->n_companions++] = (struct mp_companion){.sizes = w->sizes + w->streams[i].sizes, .stream = i};
    return true;
}

/* A companion went through v's replay to its end. */
static void decide_companion(struct worker *w, size_t fold, const struct mp_companion *companion, const struct mp_verdict *v)
{
    struct candidate *const c = largest(w, fold, companion->stream);
    if (!companion->went_along || !would_give(v, c->run))
        return;
    struct mp_verdict own = on_card(v, c->run, w->folds[fold].recorded.kernels);
    own.requested_bytes = companion->peaks.requested_bytes;
    own.allocated_bytes = companion->peaks.allocated_bytes;
    decide_stream(w, c, &own);
}

/* All streams of a fold on all cards that they may fit. */
static bool replay_fold(struct worker *w, size_t fold)
{
    size_t expanded = SIZE_MAX; /* stream */
    for (struct candidate *c = largest(w, fold, SIZE_MAX); c; c = largest(w, fold, SIZE_MAX)) {
        struct mp_verdict v;
        enum memplan_status status = MEMPLAN_STATUS_OK;
        if (c->stream != expanded) {
            mp_fold_resize(&w->folds[fold], w->sizes + w->streams[c->stream].sizes);
            status = mp_fold_expand(&w->folds[fold], &w->requests, &w->err);
            expanded = c->stream;
        }
        if (!find_companions(w, c, fold))
            return out_of_memory(w);
        if (!status)
            status = mp_requests_replay(&w->requests, c->run, &w->replayer, w->companions, w->n_companions, &v, &w->err);
        if (status)
            return w->err.status == MEMPLAN_STATUS_NOMEM ? fail(w) : set_error(w, c, &w->err);
        decide_stream(w, c, &v);
        for (size_t i = 0; i < w->n_companions; i++)
            decide_companion(w, fold, &w->companions[i], &v);
    }
    return true;
}

/* ---- groups ---- */

/* The points of the group that are not decided yet. */
static bool find_candidates(struct worker *w, uint64_t group)
{
    struct mp_sweep *const sweep = w->crew->sweep;
    const struct mp_grid *const grid = sweep->grid;
    struct mp_sweep_row *next = &sweep->rows[sweep->offsets[group - sweep->first_group]];
    w->n_candidates = 0;
    for (uint64_t point = group * grid->n_inner; point < MP_MIN((group + 1) * grid->n_inner, sweep->end_point); point++) {
        if (!mp_grid_keeps(grid, point))
            continue;
        struct candidate *const c = &w->candidates[w->n_candidates];
        const struct mp_sweep_base *const base = &sweep->bases[base_index(grid, point)];
        struct mp_run_source source;
        struct memplan_error why = {0};
        *c = (struct candidate){.shorter = base->shorter, .row = next, .stream = SIZE_MAX};
        next++;
        if (c->row->decided)
            continue;
        mp_run_source_init(&source, &w->arena);
        mp_grid_source(grid, point, &source);
        source.like = base->run;
        c->run = mp_run_resolve(&source, &why);
        c->structure = c->run ? structure_of(source.values, c->run) : 0;
        if (!c->run && !set_error(w, c, &why))
            return false;
        w->n_candidates++;
    }
    return true;
}

static bool run_group(struct worker *w, uint64_t group)
{
    const struct mp_arena_mark mark = mp_arena_mark(&w->arena);
    bool ok = find_candidates(w, group) && record_streams(w);
    for (size_t stream = 0; ok && stream < w->n_streams; stream++)
        decide_folded(w, stream);
    for (size_t fold = 0; ok && fold < w->n_folds; fold++)
        ok = replay_fold(w, fold);
    mp_arena_rewind(&w->arena, mark);
    return ok;
}

/* ---- threads ---- */

static void *work(void *context)
{
    struct worker *const w = context;
    struct crew *const crew = w->crew;
    const struct mp_sweep *const sweep = crew->sweep;
    while (!atomic_load(&crew->failed) && !(crew->options->stop && *crew->options->stop)) {
        const uint64_t group = atomic_fetch_add(&crew->next_group, 1);
        if (group >= sweep->end_group || !run_group(w, group))
            break;
        const uint64_t at = group - sweep->first_group;
        const uint64_t done = atomic_fetch_add(&crew->n_done, sweep->offsets[at + 1] - sweep->offsets[at]);
        if (w->leads && crew->options->progress)
            crew->options->progress(crew->options->context, done);
    }
    return NULL;
}

static void worker_release(struct worker *w)
{
    for (size_t i = 0; i < w->cap_folds; i++)
        mp_fold_release(&w->folds[i]);
    free(w->folds);
    free(w->streams);
    free(w->sizes);
    free(w->companions);
    mp_fold_scratch_release(&w->scratch);
    mp_requests_release(&w->requests);
    mp_requests_release(&w->full);
    mp_replayer_release(&w->replayer);
    for (size_t i = 0; i < w->n_checked; i++)
        free(w->checked[i].steps);
    free(w->checked);
    free(w->candidates);
    mp_arena_release(&w->arena);
}

static bool worker_init(struct worker *w, struct crew *crew)
{
    *w = (struct worker){.crew = crew};
    mp_arena_init(&w->arena);
    w->candidates = mp_malloc((size_t)crew->sweep->grid->n_inner * sizeof *w->candidates);
    return w->candidates != NULL;
}

/* The calling thread is the first worker. */
static enum memplan_status run_crew(struct crew *crew, struct worker *workers, int n, struct memplan_error *err)
{
    int n_ready = 0, n_started = 1;
    while (n_ready < n && worker_init(&workers[n_ready], crew))
        n_ready++;
    if (n_ready < n)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory for %d threads", n);
    workers[0].leads = true;
    while (n_started < n && pthread_create(&workers[n_started].thread, NULL, work, &workers[n_started]) == 0)
        n_started++; /* with fewer it takes longer */
    work(&workers[0]);
    for (int i = 1; i < n_started; i++)
        (void)pthread_join(workers[i].thread, NULL);
    for (int i = 0; i < n; i++)
        if (workers[i].err.status)
            return mp_error_set(err, workers[i].err.status, "%s", workers[i].err.text);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_sweep_run(struct mp_sweep *sweep, const struct mp_sweep_options *options, bool *finished,
                                 struct memplan_error *err)
{
    struct crew crew = {.sweep = sweep, .options = options};
    const int n = (int)MP_MAX(1, MP_MIN((uint64_t)MP_MAX(options->jobs, 1), sweep->end_group - sweep->first_group));
    struct worker *const workers = mp_malloc((size_t)n * sizeof *workers);
    if (!workers)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory for %d threads", n);
    memset(workers, 0, (size_t)n * sizeof *workers);
    atomic_init(&crew.next_group, sweep->first_group);
    atomic_init(&crew.n_done, 0);
    atomic_init(&crew.failed, false);
    (void)pthread_mutex_init(&crew.lock, NULL);
    const enum memplan_status status = run_crew(&crew, workers, n, err);
    for (int i = 0; i < n; i++)
        worker_release(&workers[i]);
    free(workers);
    (void)pthread_mutex_destroy(&crew.lock);
    *finished = atomic_load(&crew.n_done) == sweep->n_rows;
    return status;
}
