/* SPDX-License-Identifier: MIT */
/* Random run specs, from a seed, for properties that hold for all of them. */
#ifndef MP_TEST_RANDOM_SPEC_H
#define MP_TEST_RANDOM_SPEC_H

#include <stdint.h>

#include "base/strbuf.h"

/** A number below n. */
uint64_t random_below(uint64_t *state, uint64_t n);
const char *random_card(uint64_t *state);
/** YAML of a run; gpu NULL: any card. */
void random_spec(uint64_t *state, const char *gpu, struct mp_strbuf *out);

#endif
