/* SPDX-License-Identifier: MIT */
/* Any bytes as a run file: what resolves is written as JSON, and that must resolve to the same
 * JSON. No file is opened. */
#include "base/yaml.h"
#include "spec/run.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* Names could be paths: only shipped ones are read. */
static const struct mp_run *resolve(struct mp_run_source *source, struct memplan_error *err)
{
    if (source->values[MP_KEY_MODEL] == NULL || source->values[MP_KEY_MODEL]->kind != MP_OBJECT)
        require(mp_run_source_text(source, "model", "--model", "gpt2", err) == MEMPLAN_STATUS_OK);
    require(mp_run_source_text(source, "gpu", "--gpu", "T4-16G", err) == MEMPLAN_STATUS_OK);
    require(mp_run_source_text(source, "framework", "--framework", "hf", err) == MEMPLAN_STATUS_OK);
    return mp_run_resolve(source, err);
}

static void check_round_trip(struct mp_arena *arena, const struct mp_run *run)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_strbuf texts[2] = {MP_STRBUF_INIT, MP_STRBUF_INIT};
    struct mp_run_source source;
    for (int i = 0; i < 2; i++) {
        struct mp_json_writer w;
        mp_json_init(&w, &texts[i], 0);
        mp_run_write_json(run, &w, NULL);
        const struct mp_value *const value =
            mp_json_parse(arena, "output", texts[i].data, texts[i].len, &err);
        require(value != NULL);
        mp_run_source_init(&source, arena);
        require(mp_run_source_object(&source, "output", value, &err) == MEMPLAN_STATUS_OK);
        run = resolve(&source, &err);
        require(run != NULL);
    }
    require(strcmp(mp_strbuf_text(&texts[0]), mp_strbuf_text(&texts[1])) == 0);
    mp_strbuf_reset(&texts[0]);
    mp_run_describe_assumed(run, &texts[0]);
    mp_strbuf_release(&texts[0]);
    mp_strbuf_release(&texts[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct mp_run_source source;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    arena.limit_bytes = 256 * MP_MIB;
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value =
        mp_yaml_parse(&arena, "input", (const char *)bytes, length, &err);
    if (value != NULL && mp_run_source_object(&source, "input", value, &err) == MEMPLAN_STATUS_OK) {
        const struct mp_run *const run = resolve(&source, &err);
        if (run != NULL)
            check_round_trip(&arena, run);
        else
            require(err.status != MEMPLAN_STATUS_OK);
    } else {
        require(err.status != MEMPLAN_STATUS_OK);
    }
    mp_arena_release(&arena);
    return 0;
}
