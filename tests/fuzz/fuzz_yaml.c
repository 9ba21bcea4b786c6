/* SPDX-License-Identifier: MIT */
/* The YAML reader. */
#include "base/yaml.h"

#include "round_trip.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    return round_trip(mp_yaml_parse, bytes, length);
}
