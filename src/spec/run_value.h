/* SPDX-License-Identifier: MIT */
/* Reads one key of a run, whichever it is. */
#ifndef MP_RUN_VALUE_H
#define MP_RUN_VALUE_H

#include "spec/run_reader.h"

/** The value of key into r->run; problems where it is none. */
void mp_run_value_read(struct mp_run_reader *r, enum mp_run_key key, const struct mp_value *value);

#endif
