/* SPDX-License-Identifier: MIT */
/*
 * What a log was wrapped in before it was pasted: UTF-16, the JSON of a notebook, the entities of a
 * web page. Undone, the text reads as it was printed.
 */
#ifndef MP_DOCTOR_DECODE_H
#define MP_DOCTOR_DECODE_H

#include "base/arena.h"

/**
 * Undo the wrappings that *text (*length bytes) shows, into the arena; without any, *text stays the
 * caller's. The lines of a notebook are those of its outputs. Bytes that are malformed are kept or
 * dropped, never an error. False when the arena is exhausted.
 */
bool mp_doctor_decode(struct mp_arena *arena, const char **text, size_t *length);

#endif
