/* SPDX-License-Identifier: MIT */
/* `memplan list`: the models, GPUs and framework profiles that travel inside the program. */
#include <inttypes.h>

#include "base/json.h"
#include "base/table.h"
#include "base/units.h"
#include "cli/cli.h"
#include "spec/shipped.h"

#define SCHEMA_VERSION 1

struct list_options {
    bool json;
};

static const struct mp_option options[] = {
    {.name = "json",
     .kind = MP_OPTION_FLAG,
     .target = offsetof(struct list_options, json),
     .group = "Output",
     .help = "print JSON"},
};

const struct mp_command mp_command_list = {
    .name = "list",
    .operands = "models|gpus|frameworks",
    .operand_values = "models|gpus|frameworks",
    .sentence = "list the models, GPUs and framework profiles that memplan ships",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .examples = {"memplan list models", "memplan list gpus --json"},
    .min_operands = 1,
    .max_operands = 1,
};

/* Writers of one kind: a row of the table, an object of the list. */
struct kind {
    const char *name;
    const char *columns; /* of the table */
    void (*head)(struct mp_table *table);
    enum memplan_status (*row)(struct mp_arena *arena, const struct mp_shipped *file,
                               struct mp_table *table, struct mp_json_writer *w,
                               struct memplan_error *err);
};

/* ---- models ---- */

static const char hidden_keys[] = "hidden_size|n_embd|d_model";
static const char heads_keys[] = "num_attention_heads|n_head|num_heads";

static void models_head(struct mp_table *table)
{
    static const char *const titles[] = {"NAME",  "FAMILY",   "LAYERS",     "HIDDEN",
                                         "HEADS", "KV HEADS", "VOCABULARY", "POSITIONS"};
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
}

static enum memplan_status models_row(struct mp_arena *arena, const struct mp_shipped *file,
                                      struct mp_table *table, struct mp_json_writer *w,
                                      struct memplan_error *err)
{
    const struct mp_model *const model = mp_model_read(arena, file->name, err);
    if (model == NULL)
        return err->status;
    const int64_t heads = mp_model_integer(model, heads_keys);
    const int64_t kv = mp_model_integer(model, "num_key_value_heads");
    const int64_t numbers[] = {mp_model_layers(model),
                               mp_model_integer(model, hidden_keys),
                               heads,
                               kv > 0 ? kv : heads,
                               mp_model_integer(model, "vocab_size"),
                               mp_model_positions(model, NULL)};
    static const char *const keys[] = {"layers",          "hidden_size", "attention_heads",
                                       "key_value_heads", "vocab_size",  "positions"};
    if (w != NULL) {
        mp_json_string(w, "model_type", model->model_type);
        for (size_t i = 0; i < MP_ARRAY_LEN(numbers); i++)
            mp_json_int(w, keys[i], numbers[i]);
        const struct mp_value *const source = mp_value_get(model->config, "_source");
        mp_json_string(w, "source",
                       source != NULL && source->kind == MP_STRING ? source->as.string.text : NULL);
        return MEMPLAN_STATUS_OK;
    }
    mp_table_cell(table, "%s", file->name);
    mp_table_cell(table, "%s", model->model_type);
    for (size_t i = 0; i < MP_ARRAY_LEN(numbers); i++)
        mp_table_cell(table, "%" PRId64, numbers[i]);
    return MEMPLAN_STATUS_OK;
}

/* ---- GPUs ---- */

static void gpus_head(struct mp_table *table)
{
    static const char *const titles[] = {"NAME",  "PRODUCT", "CAPABILITY",        "SMS",
                                         "TOTAL", "",        "OUTSIDE ALLOCATOR", ""};
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
}

static void bytes_cell(struct mp_table *table, const struct mp_fact *fact)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_bytes_format(&text, fact->value);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
    mp_table_cell(table, "%s", mp_provenance_text(fact->provenance));
    mp_strbuf_release(&text);
}

static void fact_json(struct mp_json_writer *w, const char *key, const struct mp_fact *fact)
{
    mp_json_object(w, key);
    mp_json_uint(w, "value", fact->value);
    mp_json_uint(w, "low", fact->low);
    mp_json_uint(w, "high", fact->high);
    mp_json_string(w, "provenance", mp_provenance_text(fact->provenance));
    mp_json_string(w, "note", fact->note);
    mp_json_end_object(w);
}

static void gpu_json(struct mp_json_writer *w, const struct mp_gpu *gpu)
{
    char capability[16];
    (void)snprintf(capability, sizeof capability, "%d.%d", gpu->compute_capability / 10,
                   gpu->compute_capability % 10);
    mp_json_string(w, "product", gpu->product);
    mp_json_string(w, "compute_capability", capability);
    mp_json_uint(w, "sms", gpu->sms);
    fact_json(w, "total_bytes", &gpu->total_bytes);
    mp_json_object(w, "context_bytes");
    fact_json(w, "fused", &gpu->context_bytes[MP_KERNELS_FUSED]);
    fact_json(w, "plain", &gpu->context_bytes[MP_KERNELS_PLAIN]);
    mp_json_end_object(w);
    mp_json_object(w, "unavailable_bytes");
    fact_json(w, "fused", &gpu->unavailable_bytes[MP_KERNELS_FUSED]);
    fact_json(w, "plain", &gpu->unavailable_bytes[MP_KERNELS_PLAIN]);
    mp_json_end_object(w);
    fact_json(w, "cublas_workspace_bytes", &gpu->cublas_workspace_bytes);
    mp_json_bool(w, "bf16", gpu->bf16);
}

static enum memplan_status gpus_row(struct mp_arena *arena, const struct mp_shipped *file,
                                    struct mp_table *table, struct mp_json_writer *w,
                                    struct memplan_error *err)
{
    const struct mp_gpu *const gpu = mp_gpu_read(arena, file->name, err);
    if (gpu == NULL)
        return err->status;
    if (w != NULL) {
        gpu_json(w, gpu);
        return MEMPLAN_STATUS_OK;
    }
    mp_table_cell(table, "%s", gpu->name);
    mp_table_cell(table, "%s", gpu->product);
    mp_table_cell(table, "%d.%d", gpu->compute_capability / 10, gpu->compute_capability % 10);
    mp_table_cell(table, "%" PRIu32, gpu->sms);
    bytes_cell(table, &gpu->total_bytes);
    bytes_cell(table, &gpu->unavailable_bytes[MP_KERNELS_FUSED]);
    return MEMPLAN_STATUS_OK;
}

/* ---- frameworks ---- */

static void frameworks_head(struct mp_table *table)
{
    mp_table_cell(table, "NAME");
    mp_table_cell(table, "VERSIONS");
}

static enum memplan_status frameworks_row(struct mp_arena *arena, const struct mp_shipped *file,
                                          struct mp_table *table, struct mp_json_writer *w,
                                          struct memplan_error *err)
{
    const struct mp_profile *const profile = mp_profile_read(arena, file->name, err);
    if (profile == NULL)
        return err->status;
    if (w != NULL) {
        mp_json_string(w, "description", profile->description);
        mp_json_string(w, "torch", profile->torch);
        mp_json_string(w, "transformers", profile->transformers);
        mp_json_string(w, "cuda", profile->cuda);
        mp_json_string(w, "cudnn", profile->cudnn);
        return MEMPLAN_STATUS_OK;
    }
    mp_table_cell(table, "%s", profile->name);
    mp_table_cell(table, "%s", profile->description);
    return MEMPLAN_STATUS_OK;
}

/* ---- the command ---- */

static const struct kind kinds[] = {
    {"models", "llrrrrrr", models_head, models_row},
    {"gpus", "llrrrlrl", gpus_head, gpus_row},
    {"frameworks", "ll", frameworks_head, frameworks_row},
};

static enum memplan_status write_rows(const struct kind *kind, struct mp_arena *arena,
                                      struct mp_table *table, struct mp_json_writer *w,
                                      struct memplan_error *err)
{
    size_t n = 0;
    const struct mp_shipped *const files = mp_shipped_all(&n);
    enum memplan_status status = MEMPLAN_STATUS_OK;
    for (size_t i = 0; i < n && status == MEMPLAN_STATUS_OK; i++) {
        if (strcmp(files[i].kind, kind->name) != 0)
            continue;
        if (w != NULL) {
            mp_json_object(w, NULL);
            mp_json_string(w, "name", files[i].name);
        }
        status = kind->row(arena, &files[i], table, w, err);
        if (w != NULL)
            mp_json_end_object(w);
    }
    return status;
}

static enum memplan_status write_table(const struct kind *kind, struct mp_arena *arena,
                                       struct mp_strbuf *out, struct memplan_error *err)
{
    struct mp_table *const table = mp_table_new(kind->columns);
    if (table == NULL)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    kind->head(table);
    const enum memplan_status status = write_rows(kind, arena, table, NULL, err);
    if (status == MEMPLAN_STATUS_OK)
        mp_table_write(table, out, 0);
    mp_table_free(table);
    return status;
}

static enum memplan_status write_json(const struct kind *kind, struct mp_arena *arena,
                                      struct mp_strbuf *out, struct memplan_error *err)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 2);
    mp_json_object(&w, NULL);
    mp_json_uint(&w, "schema_version", SCHEMA_VERSION);
    mp_json_array(&w, kind->name);
    const enum memplan_status status = write_rows(kind, arena, NULL, &w, err);
    mp_json_end_array(&w);
    mp_json_end_object(&w);
    mp_strbuf_addch(out, '\n');
    return status;
}

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(kinds); i++) {
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    }
    return NULL;
}

int mp_cmd_list(int argc, char **argv)
{
    struct list_options chosen = {.json = false};
    struct mp_operands operands = {0};
    int exit_status = MP_EXIT_YES;
    if (mp_options_parse(&mp_command_list, argc, argv, &chosen, NULL, &operands, &exit_status) ==
        MP_OPTIONS_DONE)
        return exit_status;
    const struct kind *const kind = find_kind(operands.items[0]);
    if (kind == NULL)
        return mp_options_usage_error("list", "'%.80s' is not one of models, gpus or frameworks",
                                      operands.items[0]);
    struct mp_arena arena;
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    mp_arena_init(&arena);
    enum memplan_status status =
        chosen.json ? write_json(kind, &arena, &out, &err) : write_table(kind, &arena, &out, &err);
    if (status == MEMPLAN_STATUS_OK && out.failed)
        status = mp_error_set(&err, MEMPLAN_STATUS_NOMEM, "out of memory");
    if (status == MEMPLAN_STATUS_OK)
        (void)fwrite(mp_strbuf_text(&out), 1, out.len, stdout);
    else
        exit_status = mp_cli_fail("list", &err);
    mp_strbuf_release(&out);
    mp_arena_release(&arena);
    return exit_status;
}
