/* SPDX-License-Identifier: MIT */
/*
 * Operation records as kernels: which kernel an operation is, and which tensors and numbers it
 * takes.
 */
#ifndef VALIDATE_EXECUTE_H
#define VALIDATE_EXECUTE_H

#include "kernels.h"
#include "memory.h"

struct executor {
    struct memory *memory;
    const struct mp_program *program;
    bool *written; /* by storage id: something has been written to it */
    bool tf32;
    bool plain; /* no cuBLAS */
    const float
        *weights; /* of all parameters, one after another; NULL: as the program initialises them */
    uint64_t n_weights, next_weight;
    const struct mp_value *tokens; /* list of lists, one per batch that is loaded; NULL: drawn */
    uint32_t n_inputs;             /* batches loaded so far */
    uint64_t ops;                  /* run so far */
};

enum memplan_status executor_open(struct executor *x, struct memory *m, struct memplan_error *err);
void executor_close(struct executor *x);
/** Run operation number `index`. UNSUPPORTED: it has no kernel. IO: the card failed. */
enum memplan_status executor_run(struct executor *x, uint32_t index, struct memplan_error *err);
/** The tensor as a kernel takes it. */
struct k_tensor executor_tensor(const struct executor *x, const struct mp_op_tensor *t);

#endif
