/* SPDX-License-Identifier: MIT */
/* One buffer, refilled when it is empty. */
#include "memory/source.h"

void mp_source_init_reader(struct mp_source *source, const char *origin, struct mp_reader *reader,
                           struct memplan_error *err)
{
    source->origin = origin;
    source->reader = reader;
    source->start = source->at = source->end = source->buffer;
    source->consumed = 0;
    source->err = err;
    source->failed = false;
}

void mp_source_init_memory(struct mp_source *source, const char *origin, const void *bytes,
                           size_t length, struct memplan_error *err)
{
    mp_source_init_reader(source, origin, NULL, err);
    source->start = source->at = bytes;
    source->end = source->at + length;
}

bool mp_source_fill(struct mp_source *source)
{
    if (source->at < source->end)
        return true;
    if (!source->reader || source->failed)
        return false;
    source->consumed += (uint64_t)(source->at - source->start);
    const int64_t n =
        mp_reader_read(source->reader, source->buffer, sizeof(source->buffer), source->err);
    source->failed = n < 0;
    source->start = source->at = source->buffer;
    source->end = source->buffer + (n > 0 ? n : 0);
    return n > 0;
}

bool mp_source_take(struct mp_source *source, void *out, uint64_t n)
{
    uint8_t *to = out;
    while (n > 0) {
        if (!mp_source_fill(source))
            return false;
        const uint64_t here = MP_MIN(n, (uint64_t)(source->end - source->at));
        if (to) {
            memcpy(to, source->at, (size_t)here);
            to += here;
        }
        source->at += here;
        n -= here;
    }
    return true;
}
