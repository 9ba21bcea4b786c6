/* SPDX-License-Identifier: MIT */
/*
 * A small autograd: nodes, saved tensors, and the engine that runs them backwards.
 *
 * An operator that must be differentiated does, in this order (PyTorch's VariableType does the same):
 *
 *     struct mp_node *n = mp_node_new(rt, &mul_backward, 2, (struct mp_tensor *[]){a, b});   // takes a sequence number
 *     mp_save(rt, n, b); mp_save(rt, n, a);                                                  // inputs, before the kernel
 *     out = …                                                                                // the kernel
 *     mp_save_output(rt, n, out);                                                            // results, after it
 *     mp_track(rt, n, out);                                                                  // out.grad_fn = n
 *
 * mp_node_new() returns NULL when nothing requires grad (or grad mode is off); the other calls accept that.
 */
#ifndef MP_AUTOGRAD_H
#define MP_AUTOGRAD_H

#include "shadow/record.h"
#include "shadow/runtime.h"

#define MP_MAX_INPUTS 6
#define MP_MAX_SAVED 8
#define MP_MAX_OUTPUTS 8

struct mp_recompute;
struct mp_host_copy;

/** What a kind of node does in backward. */
struct mp_node_type {
    const char *name; /* "MmBackward0" */
    /**
     * grads: one per output of the operator, NULL where none arrived; owned by the engine.
     * out: one per input, to be filled with floating or borrowed tensors; NULL where mp_needs_input() is false.
     */
    void (*backward)(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor **grads, struct mp_tensor **out);
};

struct mp_edge {
    struct mp_node *node; /* owned; NULL: this input needs no gradient */
    int output_nr;
};

/* A saved variable: the tensor itself, a place in a checkpoint that can be computed again, or a copy on the host. */
struct mp_saved {
    struct mp_tensor *tensor;
    struct mp_recompute *recompute;
    int slot;
    struct mp_host_copy *host;
};

/* Shape and type of an output: gradients are summed and cast to it. */
struct mp_meta {
    struct mp_shape shape;
    uint8_t dtype;
};

/* Gradient buffers of a node while an engine runs; nested engines stack up. */
struct mp_task {
    struct mp_task *outer;
    uint32_t engine; /* whose */
    int dependencies;
    struct mp_tensor *grads[MP_MAX_OUTPUTS];
};

struct mp_node {
    int32_t refs;
    int16_t layer;
    uint8_t n_inputs, n_saved, n_outputs;
    bool in_module; /* of a module that has parameters: shadow/module.h */
    const struct mp_node_type *type;
    uint64_t sequence_nr;
    struct mp_edge inputs[MP_MAX_INPUTS];
    struct mp_saved saved[MP_MAX_SAVED];
    struct mp_meta output, *others; /* most operators have one; others: of those with more, from output 1 on */
    struct mp_tensor *variable;           /* AccumulateGrad: the leaf, owned */
    struct mp_tensor *held[MP_MAX_SAVED]; /* saved tensors, unpacked, while backward runs */
    struct mp_task *task;
    void (*before)(struct mp_runtime *rt, void *context); /* pre-hook */
    void *before_context;

    /* attributes of the operator; which ones are used depends on the type */
    struct mp_shape shape;                /* mostly the input's */
    int64_t stride[MP_MAX_DIMS];
    struct mp_shape shape2;
    int64_t stride2[MP_MAX_DIMS];
    int64_t arg[2];
    double number, scale;                 /* factor, exponent, probability; scale of attention */
    int perm[MP_MAX_DIMS];
    uint8_t dtype;
    struct mp_checkpoint_call *call;      /* reentrant checkpoint */
};

struct mp_node *mp_node_new(struct mp_runtime *rt, const struct mp_node_type *type, int n, struct mp_tensor *const *inputs);
/** Will operators on these tensors be recorded? */
bool mp_needs_grad(const struct mp_runtime *rt, int n, struct mp_tensor *const *inputs);
void mp_save(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *input);
void mp_save_output(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *output);
void mp_track(struct mp_runtime *rt, struct mp_node *n, struct mp_tensor *output);
/** Shape and type of output i. */
static inline const struct mp_meta *mp_node_output(const struct mp_node *n, int i) { return i ? &n->others[i - 1] : &n->output; }
/** An output that gets no gradient of its own (indices): only its place is recorded. */
void mp_track_none(struct mp_runtime *rt, struct mp_node *n);
static inline bool mp_needs_input(const struct mp_node *n, int i) { return n && n->inputs[i].node; }
static inline struct mp_tensor *mp_saved_tensor(const struct mp_node *n, int i) { return n->held[i]; }
void mp_node_unref(struct mp_runtime *rt, struct mp_node *n);

/** loss.backward(): the root gradient is allocated, lives until the end. */
void mp_backward(struct mp_runtime *rt, struct mp_tensor *loss);
/** Run the graph from the given roots; grads are borrowed. The backward thread takes over for the time. */
/** Record a node's own kernel: the gradients that arrived, then what it saved. */
void mp_record_node(struct mp_runtime *rt, const struct mp_node *n, struct mp_tensor **grads, struct mp_tensor **out, int n_attributes,
                    const struct mp_attribute *attributes);
void mp_engine_run(struct mp_runtime *rt, int n, struct mp_tensor *const *roots, struct mp_tensor *const *grads);

/** Sum t down to a shape it was broadcast from; t itself when nothing is to do. */
struct mp_tensor *mp_sum_to(struct mp_runtime *rt, struct mp_tensor *t, const struct mp_shape *shape);

/* Saved-tensor hooks (torch.autograd.graph.saved_tensors_hooks). The innermost is asked for every saved tensor. */
struct mp_saved_hook {
    struct mp_saved_hook *up;
    /* *stop: nothing after this tensor is needed (early stop of a recomputation) */
    struct mp_saved (*pack)(struct mp_runtime *rt, struct mp_saved_hook *hook, struct mp_tensor *t, bool *stop);
};
/** checkpoint.c: the tensor behind a packed place (owned by the caller), and letting go of a place. */
struct mp_tensor *mp_recompute_unpack(struct mp_runtime *rt, struct mp_saved *saved);
void mp_recompute_drop(struct mp_runtime *rt, struct mp_saved *saved);
/** offload.c: from here on saved tensors go to the host, until rt->saved_hook = hook->up. */
void mp_host_hook_open(struct mp_runtime *rt, struct mp_saved_hook *hook);
/** The copy on its way back to the device, owned by the caller. */
struct mp_tensor *mp_host_unpack(struct mp_runtime *rt, const struct mp_host_copy *copy);
/** A reentrant checkpoint's closure dies with its node. */
void mp_checkpoint_call_free(struct mp_runtime *rt, struct mp_checkpoint_call *call);

#endif
