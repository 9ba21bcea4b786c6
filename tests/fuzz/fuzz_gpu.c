/* SPDX-License-Identifier: MIT */
/* Any bytes as a GPU file: what is accepted can be planned with. */
#include "base/json.h"
#include "spec/gpu.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void check(const struct mp_fact *fact)
{
    require(fact->low <= fact->value && fact->value <= fact->high && fact->note != NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct mp_arena arena = {0};
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    arena.limit_bytes = 256 * MP_MIB;
    const struct mp_value *const value =
        mp_json_parse(&arena, "input", (const char *)bytes, length, &err);
    const struct mp_gpu *const gpu =
        value == NULL ? NULL : mp_gpu_parse(&arena, "input", value, &err);
    if (gpu != NULL) {
        require(gpu->sms >= 1 && gpu->compute_capability >= 30);
        check(&gpu->total_bytes);
        for (int i = 0; i < MP_KERNEL_SETS; i++) {
            check(&gpu->context_bytes[i]);
            check(&gpu->unavailable_bytes[i]);
            require(gpu->unavailable_bytes[i].high < gpu->total_bytes.value);
        }
        require(mp_gpu_rate(gpu, "flops_per_s.bf16") >= 0.0);
    } else {
        require(err.status != MEMPLAN_STATUS_OK && err.text[0] != '\0');
    }
    mp_arena_release(&arena);
    return 0;
}
