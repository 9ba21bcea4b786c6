/* SPDX-License-Identifier: MIT */
/*
 * How long one operation of the shadow run keeps the device and the host busy.
 *
 *     device = start + max(flops / rate of its shape, bytes / bandwidth, elements / rate of its kind)
 *     host   = what a call costs Python and PyTorch before the kernel is in the queue
 *
 * Every constant is a measurement of single operators on an H200 (validate/results/h200-rates.jsonl) as a share of the data sheet;
 * other cards are taken to reach the same shares of theirs. Host constants are those of the machine it stood in.
 */
#ifndef MP_KERNELS_H
#define MP_KERNELS_H

#include "shadow/record.h"
#include "spec/run.h"

/* What the card achieves, per second. */
struct mp_rates {
    double half_flops, fp32_flops, tf32_flops; /* data sheet, tensor cores for half and tf32 */
    double memory_bytes;                       /* read and written, of kernels that do nothing else */
    double elements;                           /* of element-wise kernels that read each element by itself */
    double host_bytes, link_bytes, network_bytes; /* one direction */
};

/** From the GPU file. INPUT: it has none. */
enum memplan_status mp_rates_read(const struct mp_gpu *gpu, struct mp_rates *rates, struct memplan_error *err);

/** Records that stand for no kernel. */
bool mp_is_free(const char *op);

/** Seconds on the device, alone. */
double mp_device_seconds(const struct mp_rates *rates, const struct mp_run *run, const struct mp_program *p, const struct mp_op_record *op);
/** Seconds of the host. backward: the operation belongs to a backward pass. */
double mp_host_seconds(const struct mp_run *run, const struct mp_op_record *op, bool backward);
/** An operator of the forward pass that a backward pass runs again. What nodes run themselves is not among these. */
bool mp_is_recomputed(const char *op);
/** Seconds of the host for the checkpoints of a block, at its forward or when it runs again. */
double mp_checkpoint_seconds(const struct mp_run *run, int layer, bool again);
/** Whether the host waits for the device there. */
static inline bool mp_waits(const struct mp_op_record *op) { return op->op[0] == 't' && strcmp(op->op, "to_host") == 0; }

/* An optimizer's update of one parameter: passes over its bytes, and host seconds. */
struct mp_update_cost {
    double passes, host_s;
    bool listed; /* the host goes through all parameters before the first kernel */
};
struct mp_update_cost mp_update_cost(const struct mp_run *run);

#endif
