/* SPDX-License-Identifier: MIT */
/* Any text as allocator settings, for every release: refused with a message, or settings that the
 * allocator works with. */
#include <assert.h>

#include "base/arena.h"
#include "memory/allocator.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void use(const struct mp_allocator_conf *conf, mp_torch_version torch)
{
    const struct mp_allocator_options options = {
        .conf = *conf, .torch = torch, .limit_bytes = 4 * MP_GIB};
    struct mp_allocator *a = mp_allocator_new(&options, NULL);
    static const uint64_t sizes[] = {1, 700, MP_MIB + 1, 11 * MP_MIB, 100 * MP_MIB};
    for (size_t i = 0; a && i < MP_ARRAY_LEN(sizes); i++) {
        struct mp_block *block = mp_allocator_malloc(a, sizes[i], 0, 0);
        assert(!block || block->size >= sizes[i]);
        if (block && i % 2)
            mp_allocator_release(a, block);
    }
    assert(!a || mp_allocator_check(a, NULL));
    mp_allocator_free(a);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static const mp_torch_version versions[] = {113, 201, 209, 211};
    char *text = mp_malloc(length + 1);
    if (!text)
        return 0;
    memcpy(text, bytes, length);
    text[length] = '\0';
    for (size_t i = 0; i < MP_ARRAY_LEN(versions); i++) {
        struct mp_allocator_conf conf;
        struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
        if (mp_allocator_conf_parse(text, versions[i], &conf, &err) == MEMPLAN_STATUS_OK)
            use(&conf, versions[i]);
        else
            assert(err.text[0] != '\0');
    }
    free(text);
    return 0;
}
