/* SPDX-License-Identifier: MIT */
/* Adapters on a frozen base (lora), and a base in 4 bits (quantization). */
#include "spec/run_adapters.h"

#include "spec/quantization.h"

/* One name, or a list of names. */
static void read_lora_targets(struct mp_run_reader *r, const struct mp_value *value,
                              struct mp_lora *lora)
{
    const struct mp_value *const *const items =
        value->kind == MP_STRING ? &value : value->as.array.items;
    const size_t n = value->kind == MP_STRING ? 1 : value->as.array.length;
    const char **const targets = mp_arena_calloc(r->arena, n + 1, sizeof *targets);
    char shown[MP_VALUE_SHOW_MAX];
    if (targets == NULL) {
        r->no_memory = true;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (items[i]->kind == MP_STRING && items[i]->as.string.length > 0)
            targets[i] = items[i]->as.string.text;
        else
            mp_problems_add(&r->problems, items[i], "lora.targets",
                            "%s is not the name of a layer, such as q_proj",
                            mp_value_show(items[i], shown));
    }
    if (n == 0)
        mp_problems_add(&r->problems, value, "lora.targets",
                        "an empty list; give at least one layer, such as q_proj");
    lora->targets = targets;
    lora->n_targets = n;
}

void mp_run_adapters_read(struct mp_run_reader *r, const struct mp_value *value)
{
    static const struct mp_reader_member keys[] = {
        {"rank", MP_INT}, {"targets", MP_ARRAY}, {"alpha", MP_DOUBLE}, {"dropout", MP_DOUBLE}};
    const int before = r->problems.n;
    mp_reader_object(r, MP_KEY_LORA, value, keys, MP_ARRAY_LEN(keys));
    if (r->problems.n > before)
        return;
    struct mp_lora *const lora = mp_arena_alloc(r->arena, sizeof *lora);
    if (lora == NULL) {
        r->no_memory = true;
        return;
    }
    lora->rank = mp_reader_get_integer(value, "rank", 8);
    lora->alpha = mp_reader_get_number(value, "alpha", 16);
    lora->dropout = mp_reader_get_number(value, "dropout", 0);
    const struct mp_value *const dropout = mp_value_get(value, "dropout");
    char shown[MP_VALUE_SHOW_MAX];
    if (lora->dropout >= 1)
        mp_problems_add(&r->problems, dropout, "lora.dropout",
                        "%s is not a probability from 0 to below 1", mp_value_show(dropout, shown));
    const struct mp_value *const targets = mp_value_get(value, "targets");
    if (targets == NULL)
        mp_problems_add(&r->problems, value, "lora.targets",
                        "missing; name layers, such as [q_proj, v_proj]");
    else
        read_lora_targets(r, targets, lora);
    r->run->lora = lora;
}

void mp_run_adapters_check(struct mp_run_reader *r)
{
    struct mp_run *const run = r->run;
    if (r->problems.n == 0)
        r->problems.origin = run->model->origin;
    if (mp_quantization_apply_stored(&r->problems, run))
        mp_reader_warn(r, "quantization nf4 from the model's quantization_config; weights that are "
                          "stored in 4 bits load with less than is "
                          "predicted for the phase 'model', where they are quantised");
    if (r->problems.n == 0)
        r->problems.origin = NULL;
    if (run->quantization == MP_QUANTIZATION_NONE)
        return;
    mp_reader_refuse_beside(r, "quantization", mp_quantization_text(run->quantization));
    if (run->lora == NULL)
        mp_problems_add(&r->problems, NULL, "quantization",
                        "4-bit weights are not trained themselves; give lora");
    if (mp_run_is_given(run, MP_KEY_INIT_DEVICE) && !run->init_cpu)
        mp_problems_add(&r->problems, NULL, "init_device",
                        "weights are quantised on their way from the host; leave it out");
    run->init_cpu = true;
}
