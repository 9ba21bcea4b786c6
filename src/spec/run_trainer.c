/* SPDX-License-Identifier: MIT */
/* framework hf-trainer: TrainingArguments beside the keys of a run. */
#include "spec/run_trainer.h"

#include "base/yaml.h"
#include "spec/training_arguments.h"

void mp_run_trainer_read(struct mp_run_reader *r, const struct mp_value *value)
{
    char shown[MP_VALUE_SHOW_MAX];
    const char *path = NULL;
    if (value->kind == MP_STRING)
        mp_reader_name(r, MP_KEY_TRAINING_ARGUMENTS, value, &path);
    else if (value->kind != MP_OBJECT)
        mp_problems_add(&r->problems, value, mp_reader_label(r, MP_KEY_TRAINING_ARGUMENTS),
                        "%s is not an object or a file that has one", mp_value_show(value, shown));
}

static const struct mp_value *read_arguments_file(struct mp_run_reader *r, const char *path)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error own = {0};
    const struct mp_value *value = NULL;
    if (mp_spec_read_file(path, &text, &own) == MEMPLAN_STATUS_OK)
        value = mp_yaml_parse(r->arena, path, mp_strbuf_text(&text), text.len, &own);
    mp_strbuf_release(&text);
    if (value == NULL)
        mp_problems_add(&r->problems, NULL, "training_arguments", "%s", own.text);
    else if (value->kind != MP_OBJECT)
        mp_problems_add(&r->problems, NULL, "training_arguments", "%s: not an object", path);
    else if (r->problems.n == 0)
        r->problems.origin = path;
    return value != NULL && value->kind == MP_OBJECT ? value : NULL;
}

/* Keys that describe a loop of one's own, or that are not simulated with the Trainer's. */
static void refuse_what_the_trainer_decides(struct mp_run_reader *r)
{
    const struct mp_run *const run = r->run;
    const struct {
        enum mp_run_key key;
        bool on;
    } keys[] = {{MP_KEY_DATA_PARALLEL, run->parallel != MP_PARALLEL_NONE},
                {MP_KEY_DEEPSPEED, run->deepspeed_value != NULL},
                {MP_KEY_SEQ_LENGTHS, run->n_seq_lengths > 0},
                {MP_KEY_ZERO_GRAD, run->zero_grad_keep},
                {MP_KEY_RELEASE_OUTPUTS, run->release_outputs},
                {MP_KEY_RETAIN_LOSSES, run->retain_losses},
                {MP_KEY_EMPTY_CACHE_EACH_STEP, run->empty_cache_each_step}};
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++)
        if (keys[i].on)
            mp_problems_add(&r->problems, NULL, mp_run_key_text(keys[i].key),
                            "not supported with framework hf-trainer");
}

void mp_run_trainer_apply(struct mp_run_reader *r)
{
    static const struct mp_value none = {.kind = MP_OBJECT};
    const struct mp_value *value = r->source->values[MP_KEY_TRAINING_ARGUMENTS];
    struct mp_run *const run = r->run;
    if (!run->profile->trainer) {
        (void)mp_reader_locate(r, MP_KEY_TRAINING_ARGUMENTS);
        if (value != NULL)
            mp_problems_add(&r->problems, value, mp_reader_label(r, MP_KEY_TRAINING_ARGUMENTS),
                            "only for framework hf-trainer");
        return;
    }
    refuse_what_the_trainer_decides(r);
    struct mp_trainer_options *const trainer = mp_arena_alloc(r->arena, sizeof *trainer);
    if (trainer == NULL) {
        r->no_memory = true;
        return;
    }
    (void)mp_reader_locate(r, MP_KEY_TRAINING_ARGUMENTS);
    if (value != NULL && value->kind == MP_STRING)
        value = read_arguments_file(r, value->as.string.text);
    else if (value == NULL)
        value = &none;
    if (value != NULL)
        mp_training_arguments_apply(&r->problems, value, trainer, run);
    run->trainer = trainer;
}
