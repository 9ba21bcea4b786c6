/* SPDX-License-Identifier: MIT */
/*
 * YAML in. The only file that sees libyaml.
 *
 * The types of JSON with YAML 1.2 core scalars: true/false, null/~, integers, floats; everything
 * else, and everything quoted, is a string ("no" and "on" stay strings). Anchors and aliases are
 * allowed up to a limit of expanded nodes; an alias is the very value of its anchor. Tags, merge
 * keys, several documents, infinities, duplicate keys, and integers with leading zeros, which YAML
 * 1.1 takes for octal, are refused. JSON is valid YAML, so this
 * reads JSON too.
 */
#ifndef MP_YAML_H
#define MP_YAML_H

#include "base/value.h"

#define MP_YAML_MAX_DEPTH 64
#define MP_YAML_MAX_NODES 1000000

const struct mp_value *mp_yaml_parse(struct mp_arena *arena, const char *origin, const char *text,
                                     size_t length, struct memplan_error *err);

#endif
