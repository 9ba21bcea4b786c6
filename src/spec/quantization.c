/* SPDX-License-Identifier: MIT */
/* Reads quantization_config as transformers does (quantizers/auto.py, utils/quantization_config.py). */
#include "spec/quantization.h"

#define NONE_INSTEAD "quantization: none to plan with weights in the run's precision"

static const struct mp_value *stored(const struct mp_model *model)
{
    const struct mp_value *const value = mp_value_get(model->config, "quantization_config");
    return value != NULL && value->kind != MP_NULL ? value : NULL;
}

bool mp_quantization_is_stored(const struct mp_model *model)
{
    return stored(model) != NULL;
}

static bool is_true(const struct mp_value *object, const char *key)
{
    const struct mp_value *const value = mp_value_get(object, key);
    return value != NULL && value->kind == MP_BOOLEAN && value->as.boolean;
}

static const char *text_of(const struct mp_value *object, const char *key, const char *fallback)
{
    const struct mp_value *const value = mp_value_get(object, key);
    return value != NULL && value->kind == MP_STRING ? value->as.string.text : fallback;
}

/* Older files do not name the method where it is bitsandbytes. */
static const char *method_of(const struct mp_value *config)
{
    const bool bitsandbytes = mp_value_get(config, "load_in_4bit") != NULL || mp_value_get(config, "load_in_8bit") != NULL;
    return text_of(config, "quant_method", bitsandbytes ? "bitsandbytes" : "unknown");
}

static const char *compute_type(enum mp_precision precision)
{
    switch (precision) {
    case MP_PRECISION_FP32: return "float32";
    case MP_PRECISION_FP16:
    case MP_PRECISION_AMP_FP16: return "float16";
    case MP_PRECISION_BF16:
    case MP_PRECISION_AMP_BF16: break;
    }
    return "bfloat16";
}

/* The head stays as it is, as by default; parts that no text model has are named in many files. */
static bool skips_only_the_head(const struct mp_value *config)
{
    static const char *const harmless[] = {"lm_head", "multi_modal_projector", "merger", "modality_projection", "vision_tower"};
    const struct mp_value *const list = mp_value_get(config, "llm_int8_skip_modules");
    bool head = false;
    if (list == NULL || list->kind == MP_NULL)
        return true;
    for (size_t i = 0; list->kind == MP_ARRAY && i < list->as.array.length; i++) {
        const struct mp_value *const item = list->as.array.items[i];
        bool known = false;
        for (size_t k = 0; item->kind == MP_STRING && k < MP_ARRAY_LEN(harmless); k++)
            known = known || strcmp(item->as.string.text, harmless[k]) == 0;
        if (!known)
            return false;
        head = head || strcmp(item->as.string.text, "lm_head") == 0;
    }
    return head;
}

/* What of a bitsandbytes configuration is not as simulated: its key, or NULL. */
static const char *different_key(const struct mp_value *config, const struct mp_run *run)
{
    if (is_true(config, "load_in_8bit"))
        return "load_in_8bit";
    if (strcmp(text_of(config, "bnb_4bit_quant_type", "fp4"), "nf4") != 0)
        return "bnb_4bit_quant_type";
    if (!is_true(config, "bnb_4bit_use_double_quant"))
        return "bnb_4bit_use_double_quant";
    if (strcmp(text_of(config, "bnb_4bit_quant_storage", "uint8"), "uint8") != 0)
        return "bnb_4bit_quant_storage";
    if (strcmp(text_of(config, "bnb_4bit_compute_dtype", "float32"), compute_type(run->precision)) != 0)
        return "bnb_4bit_compute_dtype";
    return skips_only_the_head(config) ? NULL : "llm_int8_skip_modules";
}

bool mp_quantization_apply_stored(struct mp_problems *problems, struct mp_run *run)
{
    const struct mp_value *const config = stored(run->model);
    const bool given = mp_run_is_given(run, MP_KEY_QUANTIZATION);
    if (config == NULL || (given && run->quantization == MP_QUANTIZATION_NONE))
        return false;
    const char *const method = method_of(config);
    if (config->kind != MP_OBJECT || strcmp(method, "bitsandbytes") != 0) {
        mp_problems_add(problems, config, "quantization_config", "weights quantised with %.40s are not simulated; give " NONE_INSTEAD,
                        method);
        return false;
    }
    if (given || (!is_true(config, "load_in_4bit") && !is_true(config, "load_in_8bit")))
        return false;
    const char *const different = different_key(config, run);
    if (different != NULL)
        mp_problems_add(problems, config, "quantization_config",
                        "%s: only nf4 with double quantisation, uint8 storage, products in the run's precision (%s) and all linear layers "
                        "but lm_head is simulated; give " NONE_INSTEAD,
                        different, compute_type(run->precision));
    else if (run->lora == NULL)
        mp_problems_add(problems, config, "quantization_config", "4-bit weights are not trained themselves; give lora, or " NONE_INSTEAD);
    else
        run->quantization = MP_QUANTIZATION_NF4;
    return run->quantization == MP_QUANTIZATION_NF4;
}
