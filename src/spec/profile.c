/* SPDX-License-Identifier: MIT */
/* Reads a framework profile. */
#include "spec/profile.h"

#include "spec/problems.h"
#include "spec/shipped.h"

const struct mp_profile *mp_profile_read(struct mp_arena *arena, const char *name_or_path,
                                         struct memplan_error *err)
{
    static const char *const known[] = {"name", "description", "torch",        "transformers",
                                        "cuda", "cudnn",       "torch_version", "loop"};
    struct mp_shipped_value found;
    if (mp_shipped_load(arena, "frameworks", "framework", name_or_path, &found, err) !=
        MEMPLAN_STATUS_OK)
        return NULL;
    struct mp_problems problems;
    mp_problems_init(&problems, found.origin, err);
    struct mp_profile *const profile = mp_arena_alloc(arena, sizeof *profile);
    if (profile == NULL) {
        (void)mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return NULL;
    }
    if (found.value->kind != MP_OBJECT) {
        mp_problems_add(&problems, found.value, NULL, "a framework profile is an object, not %s",
                        mp_value_kind_text(found.value->kind));
        return NULL;
    }
    const char **const texts[] = {&profile->name,         &profile->description, &profile->torch,
                                  &profile->transformers, &profile->cuda,        &profile->cudnn};
    for (size_t i = 0; i < MP_ARRAY_LEN(texts); i++) {
        const struct mp_value *const value = mp_value_get(found.value, known[i]);
        if (value == NULL)
            mp_problems_add(&problems, found.value, known[i], "missing; give a string");
        else
            (void)mp_problems_string(&problems, known[i], value, texts[i]);
    }
    int64_t version = 0;
    const struct mp_value *const torch_version = mp_value_get(found.value, "torch_version");
    if (torch_version == NULL)
        mp_problems_add(&problems, found.value, "torch_version",
                        "missing; give major * 100 + minor, such as 211");
    else
        (void)mp_problems_integer(&problems, "torch_version", torch_version, 113, 999, &version);
    profile->torch_version = (int)version;
    const struct mp_value *const loop = mp_value_get(found.value, "loop");
    int kind = 0;
    if (loop != NULL)
        (void)mp_problems_choice(&problems, "loop", loop, "script|trainer|validate", &kind);
    profile->trainer = kind == 1;
    profile->validate = kind == 2;
    for (size_t i = 0; i < found.value->as.object.length; i++) {
        const struct mp_member *const member = &found.value->as.object.members[i];
        bool is_known = member->key[0] == '_';
        for (size_t k = 0; k < MP_ARRAY_LEN(known); k++)
            is_known = is_known || strcmp(known[k], member->key) == 0;
        if (!is_known)
            mp_problems_add_unknown(&problems, member, "", known, MP_ARRAY_LEN(known));
    }
    return problems.n == 0 ? profile : NULL;
}
