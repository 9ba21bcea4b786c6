/* SPDX-License-Identifier: MIT */
/* The JSON reader. */
#include "round_trip.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    return round_trip(mp_json_parse, bytes, length);
}
