/* SPDX-License-Identifier: MIT */
/* Reads grids: which values are lists, what ranges hold, whether each value is one that its key takes. */
#include "plan/grid.h"

#include <inttypes.h>

#include "base/units.h"
#include "base/yaml.h"
#include "spec/problems.h"

enum { AXIS_MAX = 65536, CONDITIONS_MAX = 64 };

struct reader {
    struct mp_grid *grid;
    struct mp_problems problems;
    bool no_memory;
};

static int key_index(const char *text)
{
    for (int key = 0; key < MP_RUN_KEYS; key++)
        if (strcmp(mp_run_key_text((enum mp_run_key)key), text) == 0)
            return key;
    return -1;
}

bool mp_grid_is_inner_key(enum mp_run_key key)
{
    switch (key) {
    case MP_KEY_GPU:
    case MP_KEY_USED:
    case MP_KEY_ALLOCATOR_LIMIT_BYTES:
    case MP_KEY_PRECISION:
    case MP_KEY_OPTIMIZER: return true;
    default: return false;
    }
}

static bool is_bytes_key(enum mp_run_key key) { return key == MP_KEY_USED || key == MP_KEY_ALLOCATOR_LIMIT_BYTES; }

static bool is_number_key(enum mp_run_key key)
{
    switch (key) {
    case MP_KEY_BATCH:
    case MP_KEY_SEQ:
    case MP_KEY_PAD_TO:
    case MP_KEY_ACCUMULATE:
    case MP_KEY_ITERATIONS:
    case MP_KEY_WORLD:
    case MP_KEY_GPUS_PER_NODE: return true;
    default: return is_bytes_key(key);
    }
}

/* Keys whose values are of more than one kind. */
static bool takes_mixed_kinds(enum mp_run_key key)
{
    return key == MP_KEY_CHECKPOINT || key == MP_KEY_OFFLOAD || key == MP_KEY_ATTENTION_MASK || key == MP_KEY_MODEL || is_bytes_key(key);
}

static void *allocate(struct reader *r, size_t count, size_t size)
{
    void *const p = mp_arena_calloc(r->grid->arena, count, size);
    r->no_memory |= p == NULL;
    return p;
}

/* ---- ranges ---- */

static bool read_bound(struct reader *r, enum mp_run_key key, const struct mp_value *range, const char *name, int64_t low, int64_t *out)
{
    const struct mp_value *const value = mp_value_get(range, name);
    char path[64];
    (void)snprintf(path, sizeof path, "%s.%s", mp_run_key_text(key), name);
    if (value == NULL) {
        mp_problems_add(&r->problems, range, path, "missing; a range is {from: 1, to: 32, step: 1} or {from: 1, to: 32, times: 2}");
        return false;
    }
    if (is_bytes_key(key) && value->kind == MP_STRING) {
        struct memplan_error own = {0};
        uint64_t bytes;
        if (mp_bytes_parse(value->as.string.text, &bytes, &own) == MEMPLAN_STATUS_OK && bytes <= INT64_MAX) {
            *out = (int64_t)bytes;
            return true;
        }
        mp_problems_add(&r->problems, value, path, "%s", own.text);
        return false;
    }
    return mp_problems_integer(&r->problems, path, value, low, INT64_MAX / 2, out);
}

static void check_range_keys(struct reader *r, enum mp_run_key key, const struct mp_value *range)
{
    static const char *const known[] = {"from", "to", "step", "times"};
    for (size_t i = 0; i < range->as.object.length; i++) {
        size_t k = 0;
        while (k < MP_ARRAY_LEN(known) && strcmp(range->as.object.members[i].key, known[k]) != 0)
            k++;
        if (k == MP_ARRAY_LEN(known))
            mp_problems_add_unknown(&r->problems, &range->as.object.members[i], mp_run_key_text(key), known, MP_ARRAY_LEN(known));
    }
}

struct range {
    int64_t from, to, by;
    bool times;
};

static bool read_range(struct reader *r, enum mp_run_key key, const struct mp_value *value, struct range *range)
{
    const int before = r->problems.n;
    const char *const name = mp_run_key_text(key);
    check_range_keys(r, key, value);
    range->times = mp_value_get(value, "times") != NULL;
    if (range->times && mp_value_get(value, "step") != NULL)
        mp_problems_add(&r->problems, value, name, "a range has step or times, not both");
    read_bound(r, key, value, "from", 0, &range->from);
    read_bound(r, key, value, "to", 0, &range->to);
    read_bound(r, key, value, range->times ? "times" : "step", range->times ? 2 : 1, &range->by);
    if (r->problems.n == before && range->from > range->to)
        mp_problems_add(&r->problems, value, name, "an empty range: from %" PRId64 " is above to %" PRId64, range->from, range->to);
    if (r->problems.n == before && range->times && range->from == 0)
        mp_problems_add(&r->problems, value, name, "a range from 0 never grows by times; use step");
    return r->problems.n == before;
}

/* The next value; false past the end. */
static bool advance(const struct range *range, int64_t *at)
{
    int64_t next;
    const bool over = range->times ? __builtin_mul_overflow(*at, range->by, &next) : __builtin_add_overflow(*at, range->by, &next);
    if (over || next > range->to)
        return false;
    *at = next;
    return true;
}

static void add_range(struct reader *r, struct mp_axis *axis, const struct mp_value *value)
{
    struct range range;
    size_t n = 1;
    if (!read_range(r, axis->key, value, &range))
        return;
    for (int64_t at = range.from; n <= AXIS_MAX && advance(&range, &at);)
        n++;
    if (n > AXIS_MAX) {
        mp_problems_add(&r->problems, value, mp_run_key_text(axis->key), "a range of more than %d values", AXIS_MAX);
        return;
    }
    struct mp_value *const numbers = allocate(r, n, sizeof *numbers);
    const struct mp_value **const values = allocate(r, n, sizeof *values);
    if (!numbers || !values)
        return;
    int64_t at = range.from;
    for (size_t i = 0; i < n; i++, (void)advance(&range, &at)) {
        numbers[i] = (struct mp_value){.kind = MP_INT, .line = value->line, .column = value->column, .as.integer = at};
        values[i] = &numbers[i];
    }
    axis->values = values;
    axis->n = n;
}

/* ---- lists ---- */

static bool same_scalar(const struct mp_value *a, const struct mp_value *b)
{
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case MP_NULL: return true;
    case MP_BOOLEAN: return a->as.boolean == b->as.boolean;
    case MP_INT: return a->as.integer == b->as.integer;
    case MP_STRING: return strcmp(a->as.string.text, b->as.string.text) == 0;
    default: return false;
    }
}

static void check_element(struct reader *r, enum mp_run_key key, const struct mp_value *list, size_t i)
{
    const struct mp_value *const *const items = list->as.array.items;
    char shown[MP_VALUE_SHOW_MAX];
    const struct mp_value *first = NULL;
    for (size_t k = 0; k < i && !first; k++)
        first = items[k]->kind != MP_NULL ? items[k] : NULL;
    if (first && items[i]->kind != MP_NULL && first->kind != items[i]->kind && !takes_mixed_kinds(key))
        mp_problems_add(&r->problems, items[i], mp_run_key_text(key), "%s in a list that begins with %s; give values of one kind",
                        mp_value_kind_text(items[i]->kind), mp_value_kind_text(first->kind));
    for (size_t k = 0; k < i; k++) {
        if (!same_scalar(items[k], items[i]))
            continue;
        mp_problems_add(&r->problems, items[i], mp_run_key_text(key), "%s stands twice", mp_value_show(items[i], shown));
        return;
    }
}

static void add_list(struct reader *r, struct mp_axis *axis, const struct mp_value *list)
{
    const size_t n = list->as.array.length;
    const char *const name = mp_run_key_text(axis->key);
    if (n == 0 || n > 4096) {
        mp_problems_add(&r->problems, list, name,
                        n ? "a list of more than 4096 values; give a range"
                          : "an empty list; give at least one value");
        return;
    }
    const struct mp_value **const values = allocate(r, n, sizeof *values);
    if (!values)
        return;
    for (size_t i = 0; i < n; i++) {
        check_element(r, axis->key, list, i);
        values[i] = list->as.array.items[i]->kind == MP_NULL ? NULL : list->as.array.items[i];
    }
    axis->values = values;
    axis->n = n;
}

/* A list of numbers is one value of seq_lengths; a list of lists are several. */
static bool is_axis(enum mp_run_key key, const struct mp_value *value)
{
    if (value->kind == MP_OBJECT)
        return is_number_key(key);
    if (value->kind != MP_ARRAY || key != MP_KEY_SEQ_LENGTHS)
        return value->kind == MP_ARRAY;
    for (size_t i = 0; i < value->as.array.length; i++)
        if (value->as.array.items[i]->kind == MP_ARRAY)
            return true;
    return false;
}

/* ---- keys ---- */

/* Give one value to the reader of run specs, which knows what the key takes. */
static void check_value(struct reader *r, const struct mp_member *member, const struct mp_value *value, struct mp_run_source *into)
{
    const struct mp_member one = {member->key, member->line, member->column, value};
    const struct mp_value object = {.kind = MP_OBJECT, .line = member->line, .column = member->column, .as.object = {&one, 1}};
    struct memplan_error own = {0};
    struct mp_run_source scratch;
    mp_run_source_init(&scratch, r->grid->arena);
    const enum memplan_status status = mp_run_source_object(into ? into : &scratch, r->grid->origin, &object, &own);
    if (status == MEMPLAN_STATUS_NOMEM) {
        r->no_memory = true;
    } else if (status) {
        /* it begins with the file's name, which the first problem has already */
        const size_t skip = strlen(r->grid->origin);
        const bool named = r->problems.n > 0 && strncmp(own.text, r->grid->origin, skip) == 0;
        if (r->problems.err && r->problems.n > 0 && strlen(r->problems.err->text) + strlen(own.text) + 3 < sizeof r->problems.err->text) {
            struct memplan_error all = {0};
            mp_error_set(&all, MEMPLAN_STATUS_INPUT, "%s; %s", r->problems.err->text, own.text + (named ? skip + 1 : 0));
            *r->problems.err = all;
        } else if (r->problems.err && r->problems.n == 0) {
            *r->problems.err = own;
        }
        r->problems.n++;
    }
}

static void read_key(struct reader *r, enum mp_run_key key, const struct mp_member *member)
{
    struct mp_grid *const grid = r->grid;
    if (!is_axis(key, member->value)) {
        check_value(r, member, member->value, &grid->fixed);
        return;
    }
    struct mp_axis *const axis = &grid->axes[grid->n_axes];
    const int before = r->problems.n;
    *axis = (struct mp_axis){.key = key};
    if (member->value->kind == MP_OBJECT)
        add_range(r, axis, member->value);
    else
        add_list(r, axis, member->value);
    for (size_t i = 0; i < axis->n && r->problems.n == before; i++)
        if (axis->values[i])
            check_value(r, member, axis->values[i], NULL);
    grid->n_axes++;
}

/* ---- conditions ---- */

/* A key that the grid gives, as its number. */
static int where_key(void *context, const char *word)
{
    const struct mp_grid *const grid = context;
    const int key = key_index(word);
    if (key < 0)
        return -1;
    for (size_t i = 0; i < grid->n_axes; i++)
        if ((int)grid->axes[i].key == key)
            return key;
    return grid->fixed.values[key] ? key : -1;
}

static bool is_text(const struct mp_value *value, const char *word)
{
    return value && value->kind == MP_STRING && strcmp(value->as.string.text, word) == 0;
}

static bool where_text(void *context, const char *word)
{
    const struct mp_grid *const grid = context;
    if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0)
        return true;
    for (int key = 0; key < MP_RUN_KEYS; key++) {
        const char *const values = mp_run_key_info((enum mp_run_key)key)->values;
        if ((values && mp_choice_index(values, word, strlen(word)) >= 0) || is_text(grid->fixed.values[key], word))
            return true;
    }
    for (size_t i = 0; i < grid->n_axes; i++)
        for (size_t k = 0; k < grid->axes[i].n; k++)
            if (is_text(grid->axes[i].values[k], word))
                return true;
    return false;
}

static void add_condition(struct reader *r, const struct mp_value *value)
{
    struct mp_grid *const grid = r->grid;
    struct memplan_error own = {0};
    char shown[MP_VALUE_SHOW_MAX];
    if (value->kind != MP_STRING) {
        mp_problems_add(&r->problems, value, "where",
                        "%s is not a condition such as \"batch * seq <= 65536\"",
                        mp_value_show(value, shown));
        return;
    }
    const struct mp_where_names names = {where_key, where_text, grid};
    const struct mp_where *const where = mp_where_parse(grid->arena, value->as.string.text, "where", &names, &own);
    if (where)
        grid->where[grid->n_where++] = where;
    else if (own.status == MEMPLAN_STATUS_NOMEM)
        r->no_memory = true;
    else
        mp_problems_add(&r->problems, value, NULL, "%s", own.text);
}

static void read_where(struct reader *r, const struct mp_value *value)
{
    const bool list = value->kind == MP_ARRAY;
    const size_t n = list ? value->as.array.length : 1;
    if (n > CONDITIONS_MAX) {
        mp_problems_add(&r->problems, value, "where", "more than %d conditions", CONDITIONS_MAX);
        return;
    }
    r->grid->where = allocate(r, n + 1, sizeof(struct mp_where *));
    for (size_t i = 0; i < n && r->grid->where; i++)
        add_condition(r, list ? value->as.array.items[i] : value);
}

/* ---- the whole ---- */

/* Numbers of points: inner axes fastest, then the file's order from its end. */
static void count_points(struct reader *r, const struct mp_value *object)
{
    struct mp_grid *const grid = r->grid;
    uint64_t n = 1;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = grid->n_axes; i-- > 0;) {
            struct mp_axis *const axis = &grid->axes[i];
            if (mp_grid_is_inner_key(axis->key) != (pass == 0))
                continue;
            axis->stride = n;
            if (!mp_mul_u64(n, axis->n, &n) || n > MP_GRID_MAX_POINTS) {
                mp_problems_add(&r->problems, mp_value_get(object, mp_run_key_text(axis->key)), mp_run_key_text(axis->key),
                                "with it the grid has more than %" PRIu64 " points; give fewer values", MP_GRID_MAX_POINTS);
                return;
            }
        }
        if (pass == 0)
            grid->n_inner = n;
    }
    grid->n_points = n;
    grid->n_groups = n / grid->n_inner;
}

static uint64_t hash_bytes(uint64_t hash, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void hash_grid(struct reader *r, const struct mp_value *object)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct mp_json_writer w;
    mp_json_init(&w, &text, 0);
    mp_json_value(&w, NULL, object);
    r->grid->hash = hash_bytes(UINT64_C(0xcbf29ce484222325), mp_strbuf_text(&text), text.len);
    r->no_memory |= text.failed;
    mp_strbuf_release(&text);
}

static void read_members(struct reader *r, const struct mp_value *object)
{
    const struct mp_value *where = NULL;
    int64_t limit = 0;
    for (size_t i = 0; i < object->as.object.length && !r->no_memory; i++) {
        const struct mp_member *const member = &object->as.object.members[i];
        const int key = key_index(member->key);
        if (strcmp(member->key, "where") == 0)
            where = member->value;
        else if (strcmp(member->key, "limit") == 0)
            (void)mp_problems_integer(&r->problems, "limit", member->value, 1, INT64_MAX, &limit);
        else if (key >= 0 && member->value->kind != MP_NULL)
            read_key(r, (enum mp_run_key)key, member);
        else if (key < 0 && member->key[0] != '_') {
            const char *known[MP_RUN_KEYS + 2] = {[MP_RUN_KEYS] = "where", [MP_RUN_KEYS + 1] = "limit"};
            for (int k = 0; k < MP_RUN_KEYS; k++)
                known[k] = mp_run_key_text((enum mp_run_key)k);
            mp_problems_add_unknown(&r->problems, member, "", known, MP_ARRAY_LEN(known));
        }
    }
    r->grid->limit = (uint64_t)limit;
    if (where && where->kind != MP_NULL)
        read_where(r, where);
    if (r->problems.n == 0)
        count_points(r, object);
}

struct mp_grid *mp_grid_parse(struct mp_arena *arena, const char *origin, const struct mp_value *value, struct memplan_error *err)
{
    struct memplan_error own = {0};
    struct mp_grid *const grid = mp_arena_alloc(arena, sizeof *grid);
    struct reader r = {.grid = grid, .no_memory = grid == NULL};
    mp_problems_init(&r.problems, origin, &own);
    if (grid) {
        grid->arena = arena;
        grid->origin = mp_arena_strdup(arena, origin);
        r.no_memory = grid->origin == NULL;
        mp_run_source_init(&grid->fixed, arena);
        if (value->kind != MP_OBJECT)
            mp_problems_add(&r.problems, value, NULL, "a grid is an object with keys such as model, gpu and batch, not %s",
                            mp_value_kind_text(value->kind));
        else
            read_members(&r, value);
    }
    if (!r.no_memory && r.problems.n == 0)
        hash_grid(&r, value);
    if (!r.no_memory && r.problems.n == 0)
        return grid;
    if (r.no_memory)
        mp_error_set(&own, MEMPLAN_STATUS_NOMEM, "out of memory while reading the grid");
    if (err)
        *err = own;
    return NULL;
}

struct mp_grid *mp_grid_read(struct mp_arena *arena, const char *path, struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct mp_grid *grid = NULL;
    if (mp_spec_read_file(path, &text, err) == MEMPLAN_STATUS_OK) {
        const struct mp_value *const value = mp_yaml_parse(arena, path, mp_strbuf_text(&text), text.len, err);
        grid = value ? mp_grid_parse(arena, path, value, err) : NULL;
    }
    mp_strbuf_release(&text);
    return grid;
}

/* ---- points ---- */

void mp_grid_values(const struct mp_grid *grid, uint64_t point, const struct mp_value **values)
{
    memcpy(values, grid->fixed.values, sizeof grid->fixed.values);
    for (size_t i = 0; i < grid->n_axes; i++) {
        const struct mp_axis *const axis = &grid->axes[i];
        values[axis->key] = axis->values[point / axis->stride % axis->n];
    }
}

bool mp_grid_keeps(const struct mp_grid *grid, uint64_t point)
{
    const struct mp_value *values[MP_RUN_KEYS];
    if (grid->n_where == 0)
        return true;
    mp_grid_values(grid, point, values);
    for (size_t i = 0; i < grid->n_where; i++)
        if (!mp_where_holds(grid->where[i], values))
            return false;
    return true;
}

void mp_grid_source(const struct mp_grid *grid, uint64_t point, struct mp_run_source *source)
{
    mp_grid_values(grid, point, source->values);
    for (int key = 0; key < MP_RUN_KEYS; key++)
        source->origins[key] = source->values[key] ? grid->origin : NULL;
    source->kinds_vary = false;
    for (size_t i = 0; i < grid->n_axes; i++)
        source->kinds_vary = source->kinds_vary || grid->axes[i].key == MP_KEY_DATA_PARALLEL;
}

void mp_grid_value_text(const struct mp_value *value, struct mp_strbuf *out)
{
    struct mp_json_writer w;
    if (!value)
        return;
    if (value->kind == MP_STRING) {
        mp_strbuf_addstr(out, value->as.string.text);
        return;
    }
    mp_json_init(&w, out, 0);
    mp_json_value(&w, NULL, value);
}
