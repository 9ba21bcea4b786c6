/* SPDX-License-Identifier: MIT */
/* The families that exist: one line each. */
#include "arch/arch.h"
#include "base/strbuf.h"

#define FAMILIES(X)                                                                                                                       \
    X(bert) X(deepseek_v3) X(gemma2) X(gpt2) X(gpt_neo) X(gpt_neox) X(llama) X(mistral) X(mixtral) X(opt) X(phi3) X(qwen2) X(qwen3)        \
    X(qwen3_moe) X(roberta) X(starcoder2) X(t5) X(vit)

#define X(name) extern const struct mp_family mp_family_##name;
FAMILIES(X)
#undef X

const struct mp_family *const *mp_families(void)
{
    static const struct mp_family *const families[] = {
#define X(name) &mp_family_##name,
        FAMILIES(X)
#undef X
            NULL,
    };
    return families;
}

static void unsupported(const struct mp_model *model, struct memplan_error *err)
{
    struct mp_strbuf known = MP_STRBUF_INIT;
    for (const struct mp_family *const *f = mp_families(); *f; f++)
        mp_strbuf_addf(&known, "%s%s", known.len ? ", " : "", (*f)->model_type);
    mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "%s: model_type: '%s' is not supported; supported: %s", model->origin, model->model_type,
                 mp_strbuf_text(&known));
    mp_strbuf_release(&known);
}

const struct mp_family *mp_family_find(const struct mp_model *model, struct memplan_error *err)
{
    for (const struct mp_family *const *f = mp_families(); *f; f++)
        if (strcmp((*f)->model_type, model->model_type) == 0)
            return *f;
    unsupported(model, err);
    return NULL;
}
