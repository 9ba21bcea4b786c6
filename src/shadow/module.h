/* SPDX-License-Identifier: MIT */
/*
 * Calls of nn.Modules, for wrappers that hook into each of them (DeepSpeed's stage 3).
 *
 *     before_forward ──> forward ──> after_forward                          as the model runs
 *     before_backward    when the gradient of its result is complete        a node behind the result
 *     after_backward     when the gradient of its input is complete         a node before the input, which must want one
 *
 * Without such hooks nothing is added to the graph. A module without parameters is MP_MODULE(): it has no node before its input,
 * for nothing happens there. What is done where for every family: tests/data/modules.jsonl, from transformers' own. An operator on parameters that stands in no module counts as one.
 */
#ifndef MP_MODULE_H
#define MP_MODULE_H

#include "shadow/runtime.h"

enum mp_module_kind { MP_MODULE_CONTAINER, MP_MODULE_EMBEDDING, MP_MODULE_NORM, MP_MODULE_LINEAR, MP_MODULE_OTHER };
#define MP_MODULE_PARAMETERS 4

/* Tied weights belong to several modules: kind and first parameter tell them apart. */
struct mp_module {
    enum mp_module_kind kind;
    int n_parameters;
    struct mp_tensor *parameters[MP_MODULE_PARAMETERS];
};

/* One call of a module that has parameters. */
struct mp_module_call {
    struct mp_module module;
    struct mp_frame frame;
    struct mp_tensor *x;
    int *n_inputs; /* that have no gradient yet */
    bool watched;
};

/** Does anybody want to know of modules? */
static inline bool mp_watches_modules(const struct mp_runtime *rt) { return rt->hooks && rt->hooks->before_forward; }

/** module(x) begins; weight and bias (or NULL) are its parameters. Returns x as forward() gets it. */
struct mp_tensor *mp_module_begin(struct mp_runtime *rt, struct mp_module_call *call, enum mp_module_kind kind, struct mp_tensor *weight,
                                  struct mp_tensor *bias, struct mp_tensor *x);
/** One more input of the call that wants a gradient: the module is done in backward when all of them have theirs. Returns it as forward() gets it. */
struct mp_tensor *mp_module_input(struct mp_runtime *rt, const struct mp_module_call *call, struct mp_tensor *x);
/** One more result of the call, after it has ended. Returns it as the caller gets it. */
struct mp_tensor *mp_module_output(struct mp_runtime *rt, const struct mp_module_call *call, struct mp_tensor *result);
/** It ends. Returns its result as the caller gets it, floating. */
struct mp_tensor *mp_module_end(struct mp_runtime *rt, struct mp_module_call *call, struct mp_tensor *result);

/**
 * Likewise with parameters that the caller has put into `module`: one that is watched as a whole, modules below it and all, but for
 * those between mp_child_begin() and mp_child_end().
 */
struct mp_tensor *mp_module_begin_as(struct mp_runtime *rt, struct mp_module_call *call, const struct mp_module *module, struct mp_tensor *x);

/** Around a module below one that is under way: it is watched too. What stands outside of these is the outer module's own. */
static inline void mp_child_begin(struct mp_runtime *rt, const struct mp_module_call *call) { rt->leaf -= call->watched; }
static inline void mp_child_end(struct mp_runtime *rt, const struct mp_module_call *call) { rt->leaf += call->watched; }

/** A module without parameters begins; it ends with this result, NULL where that is no tensor. Returns it, floating. */
void mp_container_begin(struct mp_runtime *rt);
struct mp_tensor *mp_container_end(struct mp_runtime *rt, struct mp_tensor *result);
/** One more result of a module without parameters that is watched. */
struct mp_tensor *mp_container_output(struct mp_runtime *rt, struct mp_tensor *result);

/** An operator outside of modules works on these tensors; likewise a node in backward. Does nothing unless parameters are among them. */
void mp_use_begin(struct mp_runtime *rt, int n, struct mp_tensor *const *tensors, bool backward);
void mp_use_end(struct mp_runtime *rt, int n, struct mp_tensor *const *tensors, bool backward);

#endif
