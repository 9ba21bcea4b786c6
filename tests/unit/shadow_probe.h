/* SPDX-License-Identifier: MIT */
/*
 * A runtime for tests, whose events are read as text: "+96" allocates 96 bytes, "-2" frees what the
 * second allocation made. Only what happens between probe_begin() and probe_end() is numbered and
 * shown, as validate/operators.py does it.
 */
#ifndef MP_TEST_SHADOW_PROBE_H
#define MP_TEST_SHADOW_PROBE_H

#include "shadow/ops.h"

#define PROBE_SPANS 8

struct probe {
    struct mp_runtime rt; /* first: capturing nodes find the probe by it */
    struct mp_gpu gpu;    /* a copy that the test may change */
    struct mp_program program;
    struct memplan_error err;
    struct mp_arena arena;
    struct {
        uint32_t from, to;
    } spans[PROBE_SPANS];
    int n_spans;
    struct mp_tensor *captured[MP_MAX_INPUTS]; /* gradients that arrived, owned */
    int n_captured;
};

/** A runtime on a shipped card. The probe must not move. */
void probe_open(struct probe *p, const char *gpu);
void probe_close(struct probe *p);
/** Make the workspaces of both threads, so that products do not show them. */
void probe_warm(struct probe *p);

void probe_begin(struct probe *p);
void probe_end(struct probe *p);
/** Events of span number `span` (from 0); allocations are numbered through all spans. */
const char *probe_text(struct probe *p, int span);
/** The same with each run of frees in ascending order: no allocation lies between them. */
const char *probe_sorted(struct probe *p, const char *events);

/** An owned tensor that is no leaf: what backward finds for it is kept (torch.autograd.grad). */
struct mp_tensor *probe_input(struct probe *p, struct mp_tensor *t);
/** An owned parameter: a leaf that requires grad. */
struct mp_tensor *probe_leaf(struct probe *p, struct mp_shape shape, enum mp_dtype dtype);
/** An owned tensor without grad. */
struct mp_tensor *probe_tensor(struct probe *p, struct mp_shape shape, enum mp_dtype dtype);
/** Backward from out with a gradient of its own layout, which stays alive. Not numbered. */
void probe_backward(struct probe *p, struct mp_tensor *out);

#endif
