/* SPDX-License-Identifier: MIT */
/*
 * Operation records: what a kernel reads, writes and is told, beside the memory events around it.
 *
 * An operator records itself once its results exist and before anything that it used dies:
 *
 *     out = mp_empty(…);
 *     mp_record(rt, "layer_norm", MP_TENSORS(x, weight, bias), MP_TENSORS(out, mean, rstd),
 *               MP_ATTRIBUTES(mp_number("eps", eps)));
 *
 * Views record nothing: offset and strides of a tensor say what they did. A node of the graph
 * records its own name (the gradients, then the saved tensors), an operator inside it records
 * itself. Nothing is kept unless the program asks for operations (`fit --program`).
 */
#ifndef MP_RECORD_H
#define MP_RECORD_H

#include "shadow/runtime.h"

/** A tensor as a kernel sees it. */
struct mp_op_tensor {
    uint32_t
        storage; /* id of its ALLOC; 0: a tensor without bytes, or none at all (present false) */
    bool present;
    uint8_t dtype;  /* enum mp_dtype */
    int64_t offset; /* in elements, as strides are */
    struct mp_shape shape;
    int64_t stride[MP_MAX_DIMS];
};

enum mp_attribute_kind {
    MP_ATTRIBUTE_INT,
    MP_ATTRIBUTE_NUMBER,
    MP_ATTRIBUTE_TEXT,
    MP_ATTRIBUTE_BOOL
};

struct mp_attribute {
    const char *key; /* static or arena text, as the text value is */
    enum mp_attribute_kind kind;
    union {
        int64_t integer;
        double number;
        const char *text;
    } as;
};

/** One operation; its tensors and attributes stand in the program's arrays. */
struct mp_op_record {
    const char *op;
    int16_t layer; /* block index; -1: outside the blocks */
    uint32_t n_inputs, n_outputs, n_attributes;
    uint32_t first_tensor; /* inputs, then outputs */
    uint32_t first_attribute;
};

static inline struct mp_attribute mp_number(const char *key, double number)
{
    return (struct mp_attribute){key, MP_ATTRIBUTE_NUMBER, {.number = number}};
}
static inline struct mp_attribute mp_integer(const char *key, int64_t integer)
{
    return (struct mp_attribute){key, MP_ATTRIBUTE_INT, {.integer = integer}};
}
static inline struct mp_attribute mp_boolean(const char *key, bool boolean)
{
    return (struct mp_attribute){key, MP_ATTRIBUTE_BOOL, {.integer = boolean}};
}
static inline struct mp_attribute mp_text(const char *key, const char *text)
{
    return (struct mp_attribute){key, MP_ATTRIBUTE_TEXT, {.text = text}};
}

#define MP_ATTRIBUTES(...)                                                                         \
    (int)(sizeof((struct mp_attribute[]){__VA_ARGS__}) / sizeof(struct mp_attribute)),             \
        (struct mp_attribute[])                                                                    \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define MP_NO_TENSORS    0, NULL
#define MP_NO_ATTRIBUTES 0, NULL

/** Tensors may be NULL: their place stays. Raises without memory. */
void mp_record_op(struct mp_runtime *rt, const char *op, int n_inputs,
                  struct mp_tensor *const *inputs, int n_outputs, struct mp_tensor *const *outputs,
                  int n_attributes, const struct mp_attribute *attributes);
static inline bool mp_recording(const struct mp_runtime *rt)
{
    return rt->program->keep_ops;
}
/* A macro, so that its arguments are not evaluated when nobody listens. */
#define mp_record(rt, ...)                                                                         \
    do {                                                                                           \
        if (mp_recording(rt))                                                                      \
            mp_record_op(rt, __VA_ARGS__);                                                         \
    } while (0)

/** Workspace storage of this thread for the product at work, as an attribute. */
struct mp_attribute mp_workspace_attribute(const struct mp_runtime *rt, bool lt);
/** "fill" of a whole tensor, "copy" of one into another of the same shape. */
void mp_record_fill(struct mp_runtime *rt, struct mp_tensor *t, double value);
void mp_record_copy(struct mp_runtime *rt, const char *op, struct mp_tensor *from,
                    struct mp_tensor *to);

void mp_program_release_ops(struct mp_program *program);

#endif
