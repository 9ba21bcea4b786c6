/* SPDX-License-Identifier: MIT */
/*
 * Raw specs: key -> value from files, objects and flags, the later over the earlier. A value is
 * read into a scratch run when it comes in, so that all problems of a file stand in one message.
 */
#include "spec/run.h"

#include "base/units.h"
#include "base/yaml.h"
#include "spec/run_value.h"

void mp_run_source_init(struct mp_run_source *source, struct mp_arena *arena)
{
    *source = (struct mp_run_source){.arena = arena};
}

static void source_set(struct mp_run_source *source, enum mp_run_key key, const char *origin,
                       const struct mp_value *value)
{
    source->values[key] = value;
    source->origins[key] = origin;
    /* The later of the two ways to say how long sequences are replaces the earlier one. */
    const enum mp_run_key other = key == MP_KEY_SEQ ? MP_KEY_SEQ_LENGTHS : MP_KEY_SEQ;
    if ((key == MP_KEY_SEQ || key == MP_KEY_SEQ_LENGTHS) && source->origins[other] != origin)
        source->values[other] = NULL;
}

/* Ways to share a model that the planner does not know. */
#define NOT_HERE_YET "not here yet; ranks share the work by data_parallel only"
static bool is_other_parallelism(const char *key)
{
    static const char *const keys[] = {"tensor_parallel", "pipeline_parallel", "context_parallel",
                                       "expert_parallel", "sequence_parallel"};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

enum memplan_status mp_run_source_object(struct mp_run_source *source, const char *origin,
                                         const struct mp_value *object, struct memplan_error *err)
{
    struct mp_run scratch = {.batch = 1};
    struct mp_run_reader r = {.arena = source->arena, .run = &scratch};
    const char *const kept = mp_arena_strdup(source->arena, origin);
    if (kept == NULL)
        return mp_reader_no_memory(err);
    mp_problems_init(&r.problems, kept, err);
    if (object->kind == MP_NULL)
        mp_problems_add(&r.problems, NULL, NULL, "empty; give at least model and gpu");
    else if (object->kind != MP_OBJECT)
        mp_problems_add(&r.problems, object, NULL,
                        "a run is an object with keys such as model and gpu, not %s",
                        mp_value_kind_text(object->kind));
    if (r.problems.n > 0)
        return mp_problems_status(&r.problems);
    for (size_t i = 0; i < object->as.object.length; i++) {
        const struct mp_member *const member = &object->as.object.members[i];
        const int key = mp_run_key_index(member->key);
        if (key < 0) {
            if (is_other_parallelism(member->key))
                mp_problems_add(&r.problems, member->value, member->key, NOT_HERE_YET);
            else if (strcmp(member->key, "compile") == 0 ||
                     strcmp(member->key, "torch_compile") == 0)
                mp_problems_add(&r.problems, member->value, member->key,
                                "torch.compile is not simulated; leave it out to plan eager mode");
            else if (member->key[0] != '_')
                mp_problems_add_unknown(&r.problems, member, "", mp_run_key_texts(), MP_RUN_KEYS);
            continue;
        }
        if (member->value->kind == MP_NULL)
            continue;
        mp_run_value_read(&r, (enum mp_run_key)key, member->value);
        source_set(source, (enum mp_run_key)key, kept, member->value);
    }
    return r.no_memory ? mp_reader_no_memory(err) : mp_problems_status(&r.problems);
}

enum memplan_status mp_run_source_file(struct mp_run_source *source, const char *path,
                                       struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    enum memplan_status status = mp_spec_read_file(path, &text, err);
    if (status == MEMPLAN_STATUS_OK && strspn(mp_strbuf_text(&text), " \t\r\n") == text.len) {
        status =
            mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: empty; give at least model and gpu", path);
    } else if (status == MEMPLAN_STATUS_OK) {
        struct memplan_error own = {0};
        const struct mp_value *const value =
            mp_yaml_parse(source->arena, path, mp_strbuf_text(&text), text.len, &own);
        if (value != NULL) {
            status = mp_run_source_object(source, path, value, err);
        } else {
            status = own.status;
            if (err != NULL)
                *err = own;
        }
    }
    mp_strbuf_release(&text);
    return status;
}

/* Keys whose text is taken as it stands; the others are read as YAML, so that numbers, switches and
 * objects become what they are. */
static bool is_text_key(enum mp_run_key key)
{
    switch (key) {
    case MP_KEY_MODEL:
    case MP_KEY_GPU:
    case MP_KEY_FRAMEWORK:
    case MP_KEY_PRECISION:
    case MP_KEY_ATTENTION:
    case MP_KEY_OPTIMIZER:
    case MP_KEY_LOSS:
    case MP_KEY_EXPERTS:
    case MP_KEY_QUANTIZATION:
    case MP_KEY_ZERO_GRAD:
    case MP_KEY_ALLOCATOR_CONF:
    case MP_KEY_ALLOCATOR_LIMIT_BYTES:
    case MP_KEY_INIT_DEVICE:
    case MP_KEY_USED:
    case MP_KEY_DATA_PARALLEL:
    case MP_KEY_COLLECTIVES:
    case MP_KEY_DEEPSPEED: return true;
    default: return false;
    }
}

static const struct mp_value *string_value(struct mp_arena *arena, const char *text,
                                           struct memplan_error *err)
{
    struct mp_value *const value = mp_arena_alloc(arena, sizeof *value);
    char *const copy = mp_arena_strdup(arena, text);
    if (value == NULL || copy == NULL) {
        (void)mp_reader_no_memory(err);
        return NULL;
    }
    value->kind = MP_STRING;
    value->as.string.text = copy;
    value->as.string.length = strlen(copy);
    return value;
}

/* A text on the command line has no lines and columns worth telling. */
static const struct mp_value *parse_text(struct mp_arena *arena, const char *origin,
                                         const char *text, struct memplan_error *err)
{
    const struct mp_value *const parsed = mp_yaml_parse(arena, origin, text, strlen(text), err);
    if (parsed == NULL)
        return NULL;
    struct mp_value *const value = mp_arena_alloc(arena, sizeof *value);
    if (value == NULL) {
        (void)mp_reader_no_memory(err);
        return NULL;
    }
    *value = *parsed;
    value->line = value->column = 0;
    return value;
}

static const struct mp_value *text_value(struct mp_arena *arena, enum mp_run_key key,
                                         const char *origin, const char *text,
                                         struct memplan_error *err)
{
    if (is_text_key(key) && !(key == MP_KEY_MODEL && text[0] == '{'))
        return string_value(arena, text, err);
    if (text[strspn(text, " \t")] == '\0') {
        (void)mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: empty; give a value", origin);
        return NULL;
    }
    if (key == MP_KEY_SEQ_LENGTHS && text[0] != '[') {
        char *const list = mp_arena_printf(arena, "[%s]", text);
        if (list == NULL) {
            (void)mp_reader_no_memory(err);
            return NULL;
        }
        return parse_text(arena, origin, list, err);
    }
    return parse_text(arena, origin, text, err);
}

enum memplan_status mp_run_source_text(struct mp_run_source *source, const char *key,
                                       const char *origin, const char *text,
                                       struct memplan_error *err)
{
    const int index = mp_run_key_index(key);
    if (index < 0 && is_other_parallelism(key))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: " NOT_HERE_YET, origin);
    if (index < 0) {
        const char *const closest = mp_closest(key, mp_run_key_texts(), MP_RUN_KEYS);
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s: unknown key '%.80s'%s%s%s", origin, key,
                            closest != NULL ? ", did you mean '" : "",
                            closest != NULL ? closest : "", closest != NULL ? "'?" : "");
    }
    struct mp_run scratch = {.batch = 1};
    struct mp_run_reader r = {.arena = source->arena, .run = &scratch};
    const char *const kept = mp_arena_strdup(source->arena, origin);
    if (kept == NULL)
        return mp_reader_no_memory(err);
    struct memplan_error own = {0};
    const struct mp_value *const value =
        text_value(source->arena, (enum mp_run_key)index, kept, text, &own);
    if (value == NULL) {
        if (err != NULL)
            *err = own;
        return own.status;
    }
    mp_problems_init(&r.problems, kept, err);
    if (value->kind != MP_NULL)
        mp_run_value_read(&r, (enum mp_run_key)index, value);
    source_set(source, (enum mp_run_key)index, kept, value->kind == MP_NULL ? NULL : value);
    return r.no_memory ? mp_reader_no_memory(err) : mp_problems_status(&r.problems);
}
