/* SPDX-License-Identifier: MIT */
/*
 * Program files (`fit --program`), JSON Lines: a header, then operations and memory events in
 * order.
 *
 *     {"schema_version": 1, "run": {…}, "profile": {…}, "gpu": {…}, "steps": 3, "predicted": {…}}
 *     {"alloc": 17, "bytes": 3072, "stream": 0, "category": "activations"}
 *     {"op": "add", "layer": 0, "phase": "it0.mb0.fwd", "inputs": [TENSOR, null],
 *      "outputs": [TENSOR], "attributes": {"number": 1}}
 *     {"free": 17}   {"mark": "it0.mb0.fwd"}   {"empty_cache": true}   {"record_stream": 17, "stream": 1}
 *
 * TENSOR: {"storage": 17, "offset": 0, "shape": [2, 3], "strides": [3, 1], "dtype": "float32"};
 * offset and strides in elements, storage 0: no bytes. A mark ends its phase. "name" stands on
 * parameter records, whose "index" is the place in model.parameters(). What the driver does by
 * itself is not in the file: it belongs to the card that was planned for.
 */
#ifndef MP_REPORT_PROGRAM_H
#define MP_REPORT_PROGRAM_H

#include "base/value.h"
#include "plan/evaluate.h"
#include "shadow/record.h"

#define MP_PROGRAM_SCHEMA_VERSION 1

/**
 * Simulate run (as many steps as it asks for, else until the allocator's state repeats) and append
 * its program to *out.
 */
enum memplan_status mp_report_program(const struct mp_run *run, struct mp_strbuf *out,
                                      struct memplan_error *err);

struct mp_program_file {
    const struct mp_value *header;
    struct mp_program program; /* with operations; texts in the arena */
    uint64_t *bytes;           /* of the storages, by id; in the arena */
    struct mp_arena arena;
};
/**
 * Read what mp_report_program() wrote. Checked: ids count up, only live storages are freed and
 * used, no tensor leaves its storage. IO, INPUT (with the line) or NOMEM. On failure *file needs no
 * release.
 */
enum memplan_status mp_program_file_read(struct mp_program_file *file, const char *path,
                                         struct memplan_error *err);
enum memplan_status mp_program_file_parse(struct mp_program_file *file, const char *origin,
                                          const char *text, size_t length,
                                          struct memplan_error *err);
void mp_program_file_release(struct mp_program_file *file);

/** Input or output number i of an operation, NULL where there is none. */
const struct mp_op_tensor *mp_op_input(const struct mp_program *p, const struct mp_op_record *op,
                                       uint32_t i);
const struct mp_op_tensor *mp_op_output(const struct mp_program *p, const struct mp_op_record *op,
                                        uint32_t i);
const struct mp_attribute *mp_op_attribute(const struct mp_program *p,
                                           const struct mp_op_record *op, const char *key);
/** Its value, or what stands in for it when there is none. */
double mp_op_number(const struct mp_program *p, const struct mp_op_record *op, const char *key,
                    double fallback);
int64_t mp_op_integer(const struct mp_program *p, const struct mp_op_record *op, const char *key,
                      int64_t fallback);
const char *mp_op_text(const struct mp_program *p, const struct mp_op_record *op, const char *key,
                       const char *fallback);

#endif
