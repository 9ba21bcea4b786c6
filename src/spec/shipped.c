/* SPDX-License-Identifier: MIT */
/* Looks up the files that travel inside the program. */
#include "spec/shipped.h"

#include <strings.h>
#include <sys/stat.h>

#include "base/json.h"
#include "base/units.h"
#include "spec/problems.h"

const struct mp_shipped *mp_shipped_all(size_t *n)
{
    *n = mp_shipped_table_len;
    return mp_shipped_table;
}

const struct mp_shipped *mp_shipped_find(const char *kind, const char *name)
{
    for (size_t i = 0; i < mp_shipped_table_len; i++) {
        const struct mp_shipped *const file = &mp_shipped_table[i];
        if (strcmp(file->kind, kind) == 0 && strcasecmp(file->name, name) == 0)
            return file;
    }
    return NULL;
}

const char *mp_shipped_closest(const char *kind, const char *name)
{
    const char *candidates[256];
    size_t n = 0;
    for (size_t i = 0; i < mp_shipped_table_len && n < MP_ARRAY_LEN(candidates); i++) {
        if (strcmp(mp_shipped_table[i].kind, kind) == 0)
            candidates[n++] = mp_shipped_table[i].name;
    }
    return mp_closest(name, candidates, n);
}

/* A name that looks like a file is read as one, so that a mistyped path is called a path. */
static bool looks_like_path(const char *name)
{
    const size_t length = strlen(name);
    if (strchr(name, '/') != NULL || strcmp(name, "-") == 0)
        return true;
    if (length > 5 && strcmp(name + length - 5, ".json") == 0)
        return true;
    struct stat st;
    return stat(name, &st) == 0;
}

static enum memplan_status load_file(struct mp_arena *arena, const char *what, const char *path,
                                     struct mp_shipped_value *out, struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    enum memplan_status status = mp_spec_read_file(path, &text, err);
    if (status == MEMPLAN_STATUS_OK) {
        struct memplan_error own = {0};
        out->name = out->origin = mp_arena_strdup(arena, path);
        out->value = mp_json_parse(arena, path, mp_strbuf_text(&text), text.len, &own);
        status = out->value == NULL ? own.status : MEMPLAN_STATUS_OK;
        if (out->value == NULL && err != NULL)
            *err = own;
        else if (out->name == NULL)
            status = mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    } else {
        mp_error_prefix(err, "%s", what);
    }
    mp_strbuf_release(&text);
    return status;
}

enum memplan_status mp_shipped_load(struct mp_arena *arena, const char *kind, const char *what,
                                    const char *name_or_path, struct mp_shipped_value *out,
                                    struct memplan_error *err)
{
    const struct mp_shipped *const file = mp_shipped_find(kind, name_or_path);
    if (file == NULL && looks_like_path(name_or_path))
        return load_file(arena, what, name_or_path, out, err);
    if (file == NULL) {
        const char *const closest = mp_shipped_closest(kind, name_or_path);
        return mp_error_set(
            err, MEMPLAN_STATUS_INPUT,
            "%s: '%.200s' is neither a shipped name nor a file%s%s%s; see 'memplan list %s'", what,
            name_or_path, closest != NULL ? ", did you mean '" : "", closest != NULL ? closest : "",
            closest != NULL ? "'?" : "", kind);
    }
    struct memplan_error own = {0};
    out->name = file->name;
    out->origin = mp_arena_printf(arena, "%s/%s.json", kind, file->name);
    out->value = out->origin == NULL
                     ? NULL
                     : mp_json_parse(arena, out->origin, file->text, file->length, &own);
    if (out->value != NULL)
        return MEMPLAN_STATUS_OK;
    if (out->origin == NULL)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    if (err != NULL)
        *err = own;
    return own.status;
}
