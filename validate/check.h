/* SPDX-License-Identifier: MIT */
/* Operation by operation: the kernel's results against the float64 reference on the same inputs. */
#ifndef VALIDATE_CHECK_H
#define VALIDATE_CHECK_H

#include "execute.h"
#include "reference.h"

/* The worst result of an operation, in one element type. */
struct check_row {
    const char *op;
    int dtype;    /* of the result */
    uint64_t n;   /* results compared */
    double worst; /* |kernel - reference| / |reference|, both as Euclidean norms over the tensor */
    uint32_t index; /* of the operation it was seen in */
    bool passed;
};

struct check {
    struct executor *x;
    struct check_row *rows; /* malloc'ed */
    size_t n_rows, cap_rows;
    struct dense *in, *out, *measured; /* of the operation at hand */
};

void check_init(struct check *c, struct executor *x);
void check_release(struct check *c);
/** The number behind the bytes of an element. */
double check_value(const unsigned char *bytes, enum mp_dtype dtype);
/** Run the operation and compare. */
enum memplan_status check_run(struct check *c, uint32_t index, struct memplan_error *err);
bool check_passed(const struct check *c);

#endif
