/* SPDX-License-Identifier: MIT */
/* Operation records: growing arrays in the program, an OP event for each. */
#include "shadow/record.h"

#include "shadow/ops.h"

/* Room for n more entries. */
static void *reserve(struct mp_runtime *rt, void *array, uint32_t *capacity, uint32_t used,
                     size_t n, size_t size)
{
    if (*capacity - used >= n)
        return array;
    uint32_t wanted = *capacity ? *capacity : 1024;
    while (wanted - used < n && wanted <= UINT32_MAX / 2)
        wanted *= 2;
    void *bigger = wanted - used < n ? NULL : mp_realloc(array, wanted * size);
    if (!bigger)
        mp_raise(rt, MEMPLAN_STATUS_NOMEM, "out of memory while recording operations");
    *capacity = wanted;
    return bigger;
}

static void add_tensors(struct mp_runtime *rt, int n, struct mp_tensor *const *tensors)
{
    struct mp_program *p = rt->program;
    p->op_tensors = reserve(rt, p->op_tensors, &p->cap_op_tensors, p->n_op_tensors, (size_t)n,
                            sizeof *p->op_tensors);
    for (int i = 0; i < n; i++) {
        const struct mp_tensor *t = tensors[i];
        struct mp_op_tensor *out = &p->op_tensors[p->n_op_tensors++];
        *out = (struct mp_op_tensor){0};
        if (!t)
            continue;
        *out = (struct mp_op_tensor){.storage = t->storage->id,
                                     .present = true,
                                     .dtype = t->dtype,
                                     .offset = t->offset,
                                     .shape = t->shape};
        memcpy(out->stride, t->stride, sizeof out->stride);
    }
}

void mp_record_op(struct mp_runtime *rt, const char *op, int n_inputs,
                  struct mp_tensor *const *inputs, int n_outputs, struct mp_tensor *const *outputs,
                  int n_attributes, const struct mp_attribute *attributes)
{
    struct mp_program *p = rt->program;
    p->ops = reserve(rt, p->ops, &p->cap_ops, p->n_ops, 1, sizeof *p->ops);
    p->op_attributes = reserve(rt, p->op_attributes, &p->cap_op_attributes, p->n_op_attributes,
                               (size_t)n_attributes, sizeof *p->op_attributes);
    p->ops[p->n_ops] =
        (struct mp_op_record){op, (int16_t)rt->layer, (uint32_t)n_inputs, (uint32_t)n_outputs,
                              0,  p->n_op_tensors,    p->n_op_attributes};
    for (int i = 0; i < n_attributes; i++) /* without key: none */
        if (attributes[i].key) {
            p->op_attributes[p->n_op_attributes++] = attributes[i];
            p->ops[p->n_ops].n_attributes++;
        }
    add_tensors(rt, n_inputs, inputs);
    add_tensors(rt, n_outputs, outputs);
    mp_op_event(rt, p->n_ops++);
}

struct mp_attribute mp_workspace_attribute(const struct mp_runtime *rt, bool lt)
{
    const struct mp_storage *workspace = rt->workspace[rt->thread][lt ? 1 : 0];
    return mp_integer("workspace", workspace ? workspace->id : 0);
}

void mp_record_fill(struct mp_runtime *rt, struct mp_tensor *t, double value)
{
    mp_record(rt, "fill", MP_NO_TENSORS, MP_TENSORS(t), MP_ATTRIBUTES(mp_number("value", value)));
}

void mp_record_copy(struct mp_runtime *rt, const char *op, struct mp_tensor *from,
                    struct mp_tensor *to)
{
    mp_record(rt, op, MP_TENSORS(from), MP_TENSORS(to), MP_NO_ATTRIBUTES);
}

void mp_program_release_ops(struct mp_program *program)
{
    free(program->ops);
    free(program->op_tensors);
    free(program->op_attributes);
}
