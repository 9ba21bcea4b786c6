/* SPDX-License-Identifier: MIT */
/*
 * A bump pointer in chunks that come zeroed from calloc.
 *
 *     chunk (newest)                      chunk before it
 *     | header | block | block | free |   | header | block ... block | left over |
 *                              ^ arena->used
 *
 * An allocation moves `used`; nothing is cleared then, because memory beyond `used` is zero
 * already: it comes from calloc, and a rewind clears what it takes back. The largest chunk that a
 * rewind drops is kept as a spare, so that a search loop which marks and rewinds reaches the system
 * only once.
 */
#include "base/arena.h"

#include <stdalign.h>
#include <stdarg.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MP_ASAN 1
#endif
#endif
#if !defined(MP_ASAN) && defined(__SANITIZE_ADDRESS__)
#define MP_ASAN 1
#endif

#ifdef MP_ASAN
#include <sanitizer/asan_interface.h>
#define POISON(p, n) ASAN_POISON_MEMORY_REGION((p), (n))
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
enum { gap_bytes = 16 }; /* between blocks, so that running over the end of one is seen */
#else
#define POISON(p, n) ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
enum { gap_bytes = 0 };
#endif

enum { alignment = 16, chunk_min_bytes = 64 * 1024, chunk_max_bytes = 4 * 1024 * 1024 };

struct mp_arena_chunk {
    alignas(16) struct mp_arena_chunk *older;
    size_t capacity;
    size_t used; /* when a newer chunk was put on top */
};

/* Counting of allocations for fault injection. The first allocation of a thread is looked at in any
   case, because the environment has not been read by then. */
static _Thread_local struct {
    uint64_t n_allocations;
    uint64_t fail_at;
    bool asked;
} injection = {0, 1, false};

static bool injected_failure(void)
{
    if (injection.asked)
        return true;
    injection.asked = true;
    const char *const text = getenv("MEMPLAN_FAIL_ALLOC");
    injection.fail_at = text ? strtoull(text, NULL, 10) : 0;
    return injection.fail_at == injection.n_allocations;
}

static inline bool allocation_fails(void)
{
    return ++injection.n_allocations == injection.fail_at && injected_failure();
}

uint64_t mp_alloc_fail_after(uint64_t n)
{
    const uint64_t n_allocations = injection.n_allocations;
    injection.n_allocations = 0;
    injection.fail_at = n;
    injection.asked = true;
    return n_allocations;
}

bool mp_alloc_permitted(void)
{
    return !allocation_fails();
}

void *mp_malloc(size_t size)
{
    return allocation_fails() ? NULL : malloc(size ? size : 1);
}

void *mp_realloc(void *old, size_t size)
{
    return allocation_fails() ? NULL : realloc(old, size ? size : 1);
}

static inline unsigned char *chunk_bytes(struct mp_arena_chunk *chunk)
{
    return (unsigned char *)(chunk + 1);
}

void mp_arena_init(struct mp_arena *arena)
{
    *arena = (struct mp_arena){0};
}

static void chunk_free(struct mp_arena *arena, struct mp_arena_chunk *chunk)
{
    arena->total_bytes -= sizeof(*chunk) + chunk->capacity;
    UNPOISON(chunk_bytes(chunk), chunk->capacity);
    free(chunk);
}

void mp_arena_release(struct mp_arena *arena)
{
    while (arena->chunk) {
        struct mp_arena_chunk *const older = arena->chunk->older;
        chunk_free(arena, arena->chunk);
        arena->chunk = older;
    }
    if (arena->spare)
        chunk_free(arena, arena->spare);
    const uint64_t limit_bytes = arena->limit_bytes;
    *arena = (struct mp_arena){.limit_bytes = limit_bytes};
}

static bool within_limit(const struct mp_arena *arena, size_t capacity)
{
    const uint64_t bytes = arena->total_bytes + sizeof(struct mp_arena_chunk) + capacity;
    return !arena->limit_bytes || bytes <= arena->limit_bytes;
}

static size_t chunk_capacity(const struct mp_arena *arena, size_t needed)
{
    if (arena->single_blocks)
        return needed;
    const size_t doubled = arena->chunk ? arena->chunk->capacity * 2 : chunk_min_bytes;
    const size_t usual = MP_MIN(MP_MAX(doubled, (size_t)chunk_min_bytes), (size_t)chunk_max_bytes);
    const size_t capacity = MP_MAX(needed, usual);
    return within_limit(arena, capacity) ? capacity : needed;
}

static struct mp_arena_chunk *chunk_new(struct mp_arena *arena, size_t needed)
{
    if (arena->spare && arena->spare->capacity >= needed) {
        struct mp_arena_chunk *const spare = arena->spare;
        arena->spare = NULL;
        return spare;
    }
    const size_t capacity = chunk_capacity(arena, needed);
    if (!within_limit(arena, capacity) && arena->spare) {
        chunk_free(arena, arena->spare);
        arena->spare = NULL;
    }
    if (!within_limit(arena, capacity))
        return NULL;
    struct mp_arena_chunk *const chunk = calloc(1, sizeof(*chunk) + capacity);
    if (!chunk)
        return NULL;
    chunk->capacity = capacity;
    arena->total_bytes += sizeof(*chunk) + capacity;
    POISON(chunk_bytes(chunk), capacity);
    return chunk;
}

/* A block that does not fit the newest chunk goes to a new one. */
static void *alloc_in_new_chunk(struct mp_arena *arena, size_t size)
{
    if (!arena->chunk) {
        const char *const mode = getenv("MEMPLAN_ARENA");
        arena->single_blocks = mode && strcmp(mode, "malloc") == 0;
    }
    if (size > SIZE_MAX / 2)
        return NULL;
    const size_t step =
        arena->single_blocks ? size : (size + gap_bytes + alignment - 1) & ~(size_t)(alignment - 1);
    struct mp_arena_chunk *const chunk = chunk_new(arena, step);
    if (!chunk)
        return NULL;
    if (arena->chunk)
        arena->chunk->used = arena->used;
    chunk->older = arena->chunk;
    arena->chunk = chunk;
    arena->used = step;
    UNPOISON(chunk_bytes(chunk), size);
    return chunk_bytes(chunk);
}

static inline void *alloc(struct mp_arena *arena, size_t size)
{
    if (allocation_fails())
        return NULL;
    size += !size;
    const size_t room = arena->chunk ? arena->chunk->capacity - arena->used : 0;
    if (size > room)
        return alloc_in_new_chunk(arena, size);
    const size_t step = (size + gap_bytes + alignment - 1) & ~(size_t)(alignment - 1);
    if (step > room)
        return alloc_in_new_chunk(arena, size);
    unsigned char *const block = chunk_bytes(arena->chunk) + arena->used;
    arena->used += step;
    UNPOISON(block, size);
    return block;
}

void *mp_arena_alloc(struct mp_arena *arena, size_t size)
{
    return alloc(arena, size);
}

void *mp_arena_calloc(struct mp_arena *arena, size_t count, size_t size)
{
    if (size && count > SIZE_MAX / size)
        return NULL;
    return alloc(arena, count * size);
}

char *mp_arena_strndup(struct mp_arena *arena, const char *text, size_t n)
{
    const char *const end = memchr(text, '\0', n);
    const size_t length = end ? (size_t)(end - text) : n;
    char *const copy = alloc(arena, length + 1);
    if (copy)
        memcpy(copy, text, length);
    return copy;
}

char *mp_arena_strdup(struct mp_arena *arena, const char *text)
{
    return mp_arena_strndup(arena, text, strlen(text));
}

char *mp_arena_printf(struct mp_arena *arena, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    const int length = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (length < 0)
        return NULL;
    char *const text = alloc(arena, (size_t)length + 1);
    if (!text)
        return NULL;
    va_start(ap, format);
    vsnprintf(text, (size_t)length + 1, format, ap);
    va_end(ap);
    return text;
}

struct mp_arena_mark mp_arena_mark(const struct mp_arena *arena)
{
    return (struct mp_arena_mark){arena->chunk, arena->used};
}

/* Zero again what was handed out: the promise that memory beyond `used` is zero. */
static void chunk_clear(struct mp_arena_chunk *chunk, size_t from, size_t to)
{
    UNPOISON(chunk_bytes(chunk) + from, to - from);
    memset(chunk_bytes(chunk) + from, 0, to - from);
    POISON(chunk_bytes(chunk) + from, to - from);
}

static void drop_newest_chunk(struct mp_arena *arena)
{
    struct mp_arena_chunk *const chunk = arena->chunk;
    const size_t used = arena->used;
    arena->chunk = chunk->older;
    arena->used = chunk->older ? chunk->older->used : 0;
    if (arena->single_blocks || (arena->spare && arena->spare->capacity >= chunk->capacity)) {
        chunk_free(arena, chunk);
        return;
    }
    if (arena->spare)
        chunk_free(arena, arena->spare);
    chunk_clear(chunk, 0, used);
    arena->spare = chunk;
}

void mp_arena_rewind(struct mp_arena *arena, struct mp_arena_mark mark)
{
    while (arena->chunk && arena->chunk != mark.chunk)
        drop_newest_chunk(arena);
    if (!arena->chunk || arena->used == mark.used)
        return;
    chunk_clear(arena->chunk, mark.used, arena->used);
    arena->used = mark.used;
}
