/* SPDX-License-Identifier: MIT */
/* What is done to single blocks: recomputed, in whole or in parts, or kept on the host. */
#ifndef MP_RUN_BLOCKS_H
#define MP_RUN_BLOCKS_H

#include "spec/run_reader.h"

/** {layers: [2, 0]} and its like, {attention: all}, {mlp: [1]}. */
void mp_run_blocks_read_checkpoint(struct mp_run_reader *r, const struct mp_value *value);
void mp_run_blocks_read_offload(struct mp_run_reader *r, const struct mp_value *value);
/** Which blocks of the model these are; no block is treated in two ways. */
void mp_run_blocks_resolve(struct mp_run_reader *r);
/** What transformers has no switch for is measured with a loop of one's own, whole weights and
 * torch's own wrappers. */
void mp_run_blocks_check(struct mp_run_reader *r);

#endif
