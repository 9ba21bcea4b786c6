/* SPDX-License-Identifier: MIT */
/* Any bytes as a config.json, read the way a family reads it: sizes stay in their range, problems
 * come with a text. */
#include "base/json.h"
#include "spec/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void read_keys(const struct mp_model *model)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_config c;
    bool table = false;
    mp_config_open(&c, model, &err);
    const int64_t size = mp_config_size(&c, "n_embd|hidden_size", 0);
    const int64_t inner = mp_config_size_or_null(&c, "n_inner", 4);
    const double dropout = mp_config_probability(&c, "attn_pdrop", 0.1);
    const int act = mp_config_choice(&c, "activation_function|hidden_act", "gelu|gelu_new|silu", 1);
    (void)mp_config_number(&c, "rope_theta", 1e4);
    (void)mp_config_bool(&c, "tie_word_embeddings", true);
    require(size >= 0 && size <= INT32_MAX && inner >= 1 && inner <= INT32_MAX);
    require(dropout >= 0.0 && dropout < 1.0);
    require(act >= 0 && act <= 2);
    require((c.n_problems > 0) == (err.status == MEMPLAN_STATUS_INPUT));
    require(mp_model_positions(model, &table) >= 1 && mp_model_layers(model) >= 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    arena.limit_bytes = 256 * MP_MIB;
    const struct mp_value *const value =
        mp_json_parse(&arena, "input", (const char *)bytes, length, &err);
    const struct mp_model *const model =
        value == NULL ? NULL : mp_model_parse(&arena, "model", "input", value, &err);
    if (model != NULL)
        read_keys(model);
    else
        require(err.status != MEMPLAN_STATUS_OK && err.text[0] != '\0');
    mp_arena_release(&arena);
    return 0;
}
