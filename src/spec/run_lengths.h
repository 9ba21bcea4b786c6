/* SPDX-License-Identifier: MIT */
/* How long sequences are, in tokens or positions. */
#ifndef MP_RUN_LENGTHS_H
#define MP_RUN_LENGTHS_H

#include "spec/run_reader.h"

/** seq_lengths: a list of lengths. */
void mp_run_lengths_read(struct mp_run_reader *r, const struct mp_value *value);
/** seq where it was not given, all lengths rounded up to pad_to; a problem or a warning past the
 * model's positions. */
void mp_run_lengths_resolve(struct mp_run_reader *r);

#endif
