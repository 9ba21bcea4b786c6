/* SPDX-License-Identifier: MIT */
/* Reads a Hugging Face config.json: the object and its model_type here, single keys for the
 * families. */
#include "spec/model.h"

#include <stdarg.h>

#include "spec/shipped.h"

#define SIZE_MAX_VALUE INT64_C(2147483647)

const struct mp_model *mp_model_parse(struct mp_arena *arena, const char *name, const char *origin,
                                      const struct mp_value *value, struct memplan_error *err)
{
    struct mp_problems problems;
    char shown[MP_VALUE_SHOW_MAX];
    mp_problems_init(&problems, origin, err);
    const struct mp_value *const type = mp_value_get(value, "model_type");
    if (value->kind != MP_OBJECT)
        mp_problems_add(&problems, value, NULL, "a model is an object as in a config.json, not %s",
                        mp_value_show(value, shown));
    else if (type == NULL)
        mp_problems_add(&problems, value, "model_type",
                        "missing; name the family, such as \"model_type\": \"gpt2\"");
    else if (type->kind != MP_STRING || type->as.string.length == 0)
        mp_problems_add(&problems, type, "model_type",
                        "%s is not the name of a family, such as \"gpt2\"",
                        mp_value_show(type, shown));
    if (problems.n > 0)
        return NULL;
    struct mp_model *const model = mp_arena_alloc(arena, sizeof *model);
    if (model != NULL) {
        model->name = mp_arena_strdup(arena, name);
        model->origin = mp_arena_strdup(arena, origin);
        model->model_type = type->as.string.text;
        model->config = value;
    }
    if (model == NULL || model->name == NULL || model->origin == NULL) {
        (void)mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return NULL;
    }
    return model;
}

const struct mp_model *mp_model_read(struct mp_arena *arena, const char *name_or_path,
                                     struct memplan_error *err)
{
    struct mp_shipped_value found;
    if (mp_shipped_load(arena, "models", "model", name_or_path, &found, err) != MEMPLAN_STATUS_OK)
        return NULL;
    return mp_model_parse(arena, found.name, found.origin, found.value, err);
}

/* First of the '|'-separated keys that is present, null included; *name, when wanted, is that key
 * (else the first). */
static const struct mp_value *find(const struct mp_value *object, const char *keys, char *name,
                                   size_t size)
{
    const char *c = keys;
    bool first = true;
    for (;;) {
        char key[64];
        const size_t n = strcspn(c, "|");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, c);
        const struct mp_value *const value = mp_value_get(object, key);
        if (name != NULL && (first || value != NULL))
            (void)snprintf(name, size, "%s", key);
        if (value != NULL || c[n] == '\0')
            return value;
        first = false;
        c += n + 1;
    }
}

int64_t mp_model_integer(const struct mp_model *model, const char *keys)
{
    const struct mp_value *value = find(model->config, keys, NULL, 0);
    if (value == NULL)
        value = find(mp_value_get(model->config, "text_config"), keys, NULL, 0);
    return value != NULL && value->kind == MP_INT && value->as.integer > 0 ? value->as.integer : 0;
}

int64_t mp_model_layers(const struct mp_model *model)
{
    const int64_t layers = mp_model_integer(model, "num_hidden_layers|n_layer|num_layers");
    if (strcmp(model->model_type, "t5") != 0)
        return layers;
    const int64_t decoder = mp_model_integer(model, "num_decoder_layers"); /* counted on after the encoder's */
    return layers + (decoder > 0 ? decoder : layers);
}

int64_t mp_model_fixed_seq(const struct mp_model *model)
{
    if (strcmp(model->model_type, "vit") != 0)
        return 0;
    const int64_t image = mp_model_integer(model, "image_size"), patch = mp_model_integer(model, "patch_size");
    const int64_t side = MP_MAX((image > 0 ? image : 224) / (patch > 0 ? patch : 16), 1);
    return side < INT32_MAX ? side * side + 1 : 0;
}

int64_t mp_model_positions(const struct mp_model *model, bool *table)
{
    /* positions: transformers' default where the file has no number. reserved: rows in front of the
     * first position (RoBERTa counts from padding_idx + 1). opt's table has two more rows than it
     * says. */
    static const struct {
        const char *model_type;
        int64_t positions, reserved;
    } tables[] = {
        {"gpt2", 1024, 0},       {"bert", 512, 0},         {"roberta", 512, 2},
        {"xlm-roberta", 512, 2}, {"camembert", 512, 2},    {"distilbert", 512, 0},
        {"electra", 512, 0},     {"openai-gpt", 512, 0},   {"opt", 2048, 0},
        {"gpt_neo", 2048, 0},    {"gpt_bigcode", 1024, 0},
    };
    int64_t positions =
        mp_model_integer(model, "max_position_embeddings|n_positions|n_ctx|max_seq_len|max_"
                                "sequence_length|seq_length|max_seq_length");
    int64_t reserved = 0;
    bool learned = false;
    for (size_t i = 0; i < MP_ARRAY_LEN(tables); i++) {
        if (strcmp(tables[i].model_type, model->model_type) == 0) {
            learned = true;
            reserved = tables[i].reserved;
            positions = positions > 0 ? positions : tables[i].positions;
        }
    }
    if (table != NULL)
        *table = learned;
    if (mp_model_fixed_seq(model) > 0)
        positions = mp_model_fixed_seq(model);
    if (positions == 0)
        positions = 2048;
    return MP_MAX(positions - reserved, 1);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

const char *mp_model_other_head(const struct mp_model *model, const char **planned)
{
    static const struct {
        const char *model_type, *head;
    } heads[] = {{"gpt2", "LMHeadModel"},      {"bert", "ForMaskedLM"},       {"roberta", "ForMaskedLM"},
                 {"t5", "ForConditionalGeneration"}, {"vit", "ForImageClassification"}};
    const struct mp_value *const list = mp_value_get(model->config, "architectures");
    const char *other = NULL;
    *planned = "ForCausalLM";
    for (size_t i = 0; i < MP_ARRAY_LEN(heads); i++)
        if (strcmp(heads[i].model_type, model->model_type) == 0)
            *planned = heads[i].head;
    for (size_t i = 0; list != NULL && list->kind == MP_ARRAY && i < list->as.array.length; i++) {
        const struct mp_value *const item = list->as.array.items[i];
        if (item->kind == MP_STRING && ends_with(item->as.string.text, *planned))
            return NULL;
        if (item->kind == MP_STRING && other == NULL)
            other = item->as.string.text;
    }
    return other;
}

void mp_config_open(struct mp_config *c, const struct mp_model *model, struct memplan_error *err)
{
    *c = (struct mp_config){.model = model, .err = err};
    mp_problems_init(&c->problems, model->origin, err);
}

void mp_config_problem(struct mp_config *c, const char *key, const char *format, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    mp_problems_add(&c->problems, find(c->model->config, key, NULL, 0), key, "%s", text);
    c->n_problems = c->problems.n;
}

static int64_t read_size(struct mp_config *c, const char *keys, int64_t fallback, bool null_allowed)
{
    char key[64];
    int64_t size = fallback > 0 ? fallback : 1;
    const struct mp_value *const value = find(c->model->config, keys, key, sizeof key);
    if (value == NULL || (value->kind == MP_NULL && null_allowed)) {
        if (value == NULL && fallback == 0 && !null_allowed)
            mp_problems_add(&c->problems, NULL, key,
                            "missing; give an integer from 1 to 2147483647");
        else
            size = fallback;
    } else {
        (void)mp_problems_integer(&c->problems, key, value, 1, SIZE_MAX_VALUE, &size);
    }
    c->n_problems = c->problems.n;
    return size;
}

int64_t mp_config_size(struct mp_config *c, const char *key, int64_t fallback)
{
    return read_size(c, key, fallback, false);
}

int64_t mp_config_size_or_null(struct mp_config *c, const char *key, int64_t fallback)
{
    return read_size(c, key, fallback, true);
}

double mp_config_number(struct mp_config *c, const char *keys, double fallback)
{
    char key[64];
    char shown[MP_VALUE_SHOW_MAX];
    double number = fallback;
    const struct mp_value *const value = find(c->model->config, keys, key, sizeof key);
    if (value != NULL && !mp_value_number(value, &number))
        mp_problems_add(&c->problems, value, key, "%s is not a number",
                        mp_value_show(value, shown));
    c->n_problems = c->problems.n;
    return number;
}

double mp_config_probability(struct mp_config *c, const char *keys, double fallback)
{
    char key[64];
    char shown[MP_VALUE_SHOW_MAX];
    double number = fallback;
    const struct mp_value *const value = find(c->model->config, keys, key, sizeof key);
    if (value != NULL && (!mp_value_number(value, &number) || !(number >= 0.0 && number < 1.0))) {
        mp_problems_add(&c->problems, value, key, "%s is not a probability from 0 to below 1",
                        mp_value_show(value, shown));
        number = fallback;
    }
    c->n_problems = c->problems.n;
    return number;
}

bool mp_config_bool(struct mp_config *c, const char *keys, bool fallback)
{
    char key[64];
    bool answer = fallback;
    const struct mp_value *const value = find(c->model->config, keys, key, sizeof key);
    if (value != NULL && value->kind != MP_NULL)
        (void)mp_problems_bool(&c->problems, key, value, &answer);
    c->n_problems = c->problems.n;
    return answer;
}

int mp_config_choice(struct mp_config *c, const char *keys, const char *choices, int fallback)
{
    char key[64];
    int index = fallback;
    const struct mp_value *const value = find(c->model->config, keys, key, sizeof key);
    if (value != NULL)
        (void)mp_problems_choice(&c->problems, key, value, choices, &index);
    c->n_problems = c->problems.n;
    return index;
}

bool mp_config_has(const struct mp_config *c, const char *key)
{
    const struct mp_value *const value = find(c->model->config, key, NULL, 0);
    return value != NULL && value->kind != MP_NULL;
}
