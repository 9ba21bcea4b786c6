/* SPDX-License-Identifier: MIT */
/* Adapters on a frozen base, which may be in 4 bits. */
#ifndef MP_RUN_ADAPTERS_H
#define MP_RUN_ADAPTERS_H

#include "spec/run_reader.h"

/** lora: an object. */
void mp_run_adapters_read(struct mp_run_reader *r, const struct mp_value *value);
/** quantization, from the run or from the model's file, against the other keys. */
void mp_run_adapters_check(struct mp_run_reader *r);

#endif
