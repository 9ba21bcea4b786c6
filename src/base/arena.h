/* SPDX-License-Identifier: MIT */
/*
 * Arena: blocks that live together and die together. One arena per request; a release ends it.
 *
 * Not thread-safe: an arena belongs to one thread. Under AddressSanitizer memory that was not
 * handed out is poisoned; with the environment variable MEMPLAN_ARENA=malloc every block is a
 * malloc of its own, so that valgrind sees single blocks.
 */
#ifndef MP_ARENA_H
#define MP_ARENA_H

#include "base/common.h"

struct mp_arena_chunk;

/** All zero is an empty arena. */
struct mp_arena {
    struct mp_arena_chunk *chunk; /* newest first */
    struct mp_arena_chunk *spare; /* left by a rewind for the next round of a loop */
    size_t used;                  /* bytes handed out of the newest chunk */
    uint64_t total_bytes;         /* held from the system */
    uint64_t limit_bytes;         /* 0: none; beyond it allocation fails */
    bool single_blocks;           /* MEMPLAN_ARENA=malloc, decided at the first allocation */
};

/** A place in the arena to rewind to; everything allocated after it is gone then. */
struct mp_arena_mark {
    struct mp_arena_chunk *chunk;
    size_t used;
};

/** An empty arena; the caller ends it with mp_arena_release(), which frees every block at once. */
void mp_arena_init(struct mp_arena *arena);
void mp_arena_release(struct mp_arena *arena);

/**
 * Zeroed, 16-byte aligned; NULL when memory (or the limit) is exhausted. size 0 gives a pointer.
 */
void *mp_arena_alloc(struct mp_arena *arena, size_t size);
/** count * size with overflow check. */
void *mp_arena_calloc(struct mp_arena *arena, size_t count, size_t size);
char *mp_arena_strdup(struct mp_arena *arena, const char *text);
char *mp_arena_strndup(struct mp_arena *arena, const char *text, size_t n);
char *mp_arena_printf(struct mp_arena *arena, const char *format, ...) MP_PRINTF(2, 3);

/** Everything allocated after the mark is given back by the rewind; what came before it stays. */
struct mp_arena_mark mp_arena_mark(const struct mp_arena *arena);
void mp_arena_rewind(struct mp_arena *arena, struct mp_arena_mark mark);

/**
 * Fault injection for tests: the n-th allocation from now on (1 = the next), of any arena or of
 * mp_malloc/mp_realloc, fails once; 0 switches it off. Thread-local. Returns how many allocations
 * there were since the last call. The environment variable MEMPLAN_FAIL_ALLOC=n does the same for a
 * command.
 */
uint64_t mp_alloc_fail_after(uint64_t n);

/** malloc and realloc that take part in fault injection; free with free(). NULL when exhausted. */
void *mp_malloc(size_t size);
void *mp_realloc(void *old, size_t size);

/**
 * Fault injection on behalf of a library that allocates by itself: false = act as if that failed.
 */
bool mp_alloc_permitted(void);

#endif
