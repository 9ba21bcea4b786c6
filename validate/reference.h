/* SPDX-License-Identifier: MIT */
/*
 * Every operation once more, on the host, in float64: what a kernel's result is compared with.
 *
 * Tensors are dense, in the order of their shape. The formulas are written down a second time, not
 * shared with the kernels.
 */
#ifndef VALIDATE_REFERENCE_H
#define VALIDATE_REFERENCE_H

#include "report/program.h"

struct dense {
    bool present;
    int dtype;
    int n;
    int64_t shape[MP_MAX_DIMS];
    int64_t count;
    double *v; /* count values */
};

/**
 * Fill the values of out from those of in. measured: the kernel's own outputs, for what is random:
 * its mask decides. False: this operation has no reference (random numbers, inputs) or its tensors
 * do not go together.
 */
bool reference_run(const struct mp_program *p, const struct mp_op_record *op,
                   const struct dense *in, const struct dense *measured, struct dense *out);

#endif
