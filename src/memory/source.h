/* SPDX-License-Identifier: MIT */
/* Bytes in order, from a file (plain or gzip) or from memory, with the offset messages name. */
#ifndef MP_SOURCE_H
#define MP_SOURCE_H

#include "base/file.h"

#define MP_SOURCE_BUFFER_BYTES 65536

struct mp_source {
    const char *origin;       /* in messages */
    struct mp_reader *reader; /* NULL: everything is in the buffer already */
    const uint8_t *at, *end;
    uint64_t consumed; /* before the current buffer */
    const uint8_t *start;
    struct memplan_error *err;
    bool failed; /* reading failed; *err says why */
    uint8_t buffer[MP_SOURCE_BUFFER_BYTES];
};

/** reader stays the caller's. err is where failed reads are reported. */
void mp_source_init_reader(struct mp_source *source, const char *origin, struct mp_reader *reader,
                           struct memplan_error *err);
void mp_source_init_memory(struct mp_source *source, const char *origin, const void *bytes,
                           size_t length, struct memplan_error *err);
/** Have at least one byte at source->at; false at the end or after a failure. */
bool mp_source_fill(struct mp_source *source);
/** Copy n bytes out (to NULL: skip them); false when there are fewer. */
bool mp_source_take(struct mp_source *source, void *out, uint64_t n);

static inline uint64_t mp_source_offset(const struct mp_source *source)
{
    return source->consumed + (uint64_t)(source->at - source->start);
}

/** The next byte, or -1. */
static inline int mp_source_byte(struct mp_source *source)
{
    if (source->at == source->end && !mp_source_fill(source))
        return -1;
    return *source->at++;
}

/** The next byte without taking it, or -1. */
static inline int mp_source_peek(struct mp_source *source)
{
    if (source->at == source->end && !mp_source_fill(source))
        return -1;
    return *source->at;
}

#endif
