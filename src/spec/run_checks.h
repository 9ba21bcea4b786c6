/* SPDX-License-Identifier: MIT */
/* Checks of a whole run, once model, card and ranks are known. */
#ifndef MP_RUN_CHECKS_H
#define MP_RUN_CHECKS_H

#include "spec/run_reader.h"

/** Problems and warnings of keys that do not go together, or not with model or card. */
void mp_run_check(struct mp_run_reader *r);

#endif
