/* SPDX-License-Identifier: MIT */
/* Reads GPU files, and asks nvidia-smi for `auto`. */
#include "spec/gpu.h"

#include <inttypes.h>
#include <strings.h>

#include "base/json.h"
#include "base/subprocess.h"
#include "base/units.h"
#include "spec/problems.h"
#include "spec/shipped.h"

/* No card has more; it keeps sums of such numbers far from overflow. */
#define BYTES_MAX (INT64_C(1) << 50)

static const char *const provenances = "measured|reported|derived|vendor";

static const char *const gpu_keys[] = {
    "name",
    "product",
    "compute_capability",
    "sms",
    "threads_per_sm",
    "total_bytes",
    "context_bytes",
    "unavailable_bytes",
    "cublas_workspace_bytes",
    "cublaslt_workspace_bytes",
    "bf16",
    "cudnn_attention_first",
    "flash_attention",
    "efficient_attention",
    "rates",
    "reported_names",
};
static const char *const fact_keys[] = {"value", "low", "high", "provenance", "note"};
static const char *const set_keys[] = {"fused", "plain"}; /* enum mp_kernel_set */

const char *mp_provenance_text(enum mp_provenance provenance)
{
    static const char *const texts[] = {"measured", "reported", "derived", "vendor"};
    return (size_t)provenance < MP_ARRAY_LEN(texts) ? texts[provenance] : "?";
}

static void check_keys(struct mp_problems *problems, const char *prefix,
                       const struct mp_value *object, const char *const *known, size_t n_known)
{
    for (size_t i = 0; i < object->as.object.length; i++) {
        const struct mp_member *const member = &object->as.object.members[i];
        bool is_known = member->key[0] == '_';
        for (size_t k = 0; k < n_known; k++)
            is_known = is_known || strcmp(known[k], member->key) == 0;
        if (!is_known)
            mp_problems_add_unknown(problems, member, prefix, known, n_known);
    }
}

static uint64_t read_bound(struct mp_problems *problems, const char *key,
                           const struct mp_value *value, uint64_t fallback, int64_t high)
{
    int64_t bound = 0;
    if (value != NULL && mp_problems_integer(problems, key, value, 0, high, &bound))
        return (uint64_t)bound;
    return fallback;
}

static struct mp_fact read_fact(struct mp_problems *problems, const char *key,
                                const struct mp_value *value, int64_t low, int64_t high)
{
    struct mp_fact fact = {.provenance = MP_REPORTED, .note = ""};
    int64_t number = low;
    char shown[MP_VALUE_SHOW_MAX];
    const struct mp_value *n = value;
    if (value->kind == MP_OBJECT) {
        check_keys(problems, key, value, fact_keys, MP_ARRAY_LEN(fact_keys));
        n = mp_value_get(value, "value");
    } else if (value->kind != MP_INT) {
        mp_problems_add(problems, value, key,
                        "%s is neither an integer nor {\"value\": N, \"provenance\": ...}",
                        mp_value_show(value, shown));
        return fact;
    }
    if (n == NULL)
        mp_problems_add(problems, value, key,
                        "has no value; give {\"value\": N, \"provenance\": ...}");
    else
        (void)mp_problems_integer(problems, key, n, low, high, &number);
    fact.value = fact.low = fact.high = (uint64_t)number;
    if (value->kind != MP_OBJECT)
        return fact;
    fact.low = read_bound(problems, key, mp_value_get(value, "low"), fact.value, high);
    fact.high = read_bound(problems, key, mp_value_get(value, "high"), fact.value, high);
    if (problems->n == 0 && (fact.low > fact.value || fact.high < fact.value))
        mp_problems_add(problems, value, key,
                        "%" PRIu64 " is not between low %" PRIu64 " and high %" PRIu64, fact.value,
                        fact.low, fact.high);
    const struct mp_value *const provenance = mp_value_get(value, "provenance");
    int index = MP_REPORTED;
    if (provenance == NULL)
        mp_problems_add(problems, value, key,
                        "has no provenance; say measured, reported, derived or vendor");
    else
        (void)mp_problems_choice(problems, key, provenance, provenances, &index);
    fact.provenance = (enum mp_provenance)index;
    const struct mp_value *const note = mp_value_get(value, "note");
    if (note != NULL)
        (void)mp_problems_string(problems, key, note, &fact.note);
    return fact;
}

/* A fact that must be there. */
static struct mp_fact require_fact(struct mp_problems *problems, const struct mp_value *gpu,
                                   const char *key, int64_t low, int64_t high)
{
    const struct mp_value *const value = mp_value_get(gpu, key);
    if (value != NULL)
        return read_fact(problems, key, value, low, high);
    mp_problems_add(problems, NULL, key, "missing; give {\"value\": N, \"provenance\": ...}");
    return (struct mp_fact){.value = 1, .low = 1, .high = 1, .note = ""};
}

static void read_sets(struct mp_problems *problems, const struct mp_value *gpu, const char *key,
                      struct mp_fact facts[MP_KERNEL_SETS])
{
    const struct mp_value *const sets = mp_value_get(gpu, key);
    for (int i = 0; i < MP_KERNEL_SETS; i++)
        facts[i].note = "";
    if (sets == NULL || sets->kind != MP_OBJECT) {
        mp_problems_add(problems, sets, key, "%s; give {\"fused\": ..., \"plain\": ...}",
                        sets == NULL ? "missing" : "not an object");
        return;
    }
    check_keys(problems, key, sets, set_keys, MP_ARRAY_LEN(set_keys));
    for (int i = 0; i < MP_KERNEL_SETS; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s.%s", key, set_keys[i]);
        const struct mp_value *const value = mp_value_get(sets, set_keys[i]);
        if (value != NULL)
            facts[i] = read_fact(problems, name, value, 0, BYTES_MAX);
        else
            mp_problems_add(problems, sets, name,
                            "missing; give {\"value\": N, \"provenance\": ...}");
    }
}

/* "9.0" as 90, "12.1" as 121. */
static int read_capability(struct mp_problems *problems, const struct mp_value *gpu)
{
    const char *const key = "compute_capability";
    const struct mp_value *const value = mp_value_get(gpu, key);
    const char *text = NULL;
    if (value == NULL)
        mp_problems_add(problems, NULL, key,
                        "missing; give major and minor as a string, such as \"9.0\"");
    if (value == NULL || !mp_problems_string(problems, key, value, &text))
        return 0;
    int major = 0, minor = 0, used = 0;
    if (strlen(text) <= 4 && sscanf(text, "%2d.%1d%n", &major, &minor, &used) == 2 &&
        text[used] == '\0' && major >= 3 && minor >= 0)
        return major * 10 + minor;
    mp_problems_add(problems, value, key, "\"%.20s\" is not major and minor, such as \"9.0\"",
                    text);
    return 0;
}

static bool read_flag(struct mp_problems *problems, const struct mp_value *gpu, const char *key,
                      bool fallback)
{
    const struct mp_value *const value = mp_value_get(gpu, key);
    bool flag = fallback;
    if (value != NULL)
        (void)mp_problems_bool(problems, key, value, &flag);
    return flag;
}

static const char *read_text(struct mp_problems *problems, const struct mp_value *gpu,
                             const char *key, const char *fallback)
{
    const struct mp_value *const value = mp_value_get(gpu, key);
    const char *text = fallback;
    if (value != NULL)
        (void)mp_problems_string(problems, key, value, &text);
    return text;
}

static struct mp_fact workspace(struct mp_problems *problems, const struct mp_value *gpu,
                                const char *key, uint64_t fallback, const char *note)
{
    const struct mp_value *const value = mp_value_get(gpu, key);
    if (value != NULL)
        return read_fact(problems, key, value, 0, BYTES_MAX);
    return (struct mp_fact){.value = fallback,
                            .low = fallback,
                            .high = fallback,
                            .provenance = MP_DERIVED,
                            .note = note};
}

/* What kernels exist and what libraries ask for follows from the compute capability. */
static void read_kernels(struct mp_problems *problems, const struct mp_value *value,
                         struct mp_gpu *gpu)
{
    const int cc = gpu->compute_capability;
    gpu->cublas_workspace_bytes =
        workspace(problems, value, "cublas_workspace_bytes",
                  cc == 90 ? UINT64_C(33554432) : UINT64_C(8519680),
                  "PyTorch 2.11: 32 MiB on 9.0, 4096 KiB x 2 + 16 KiB x 8 elsewhere");
    gpu->cublaslt_workspace_bytes = workspace(problems, value, "cublaslt_workspace_bytes", MP_MIB,
                                              "PyTorch's default of 1024 KiB");
    gpu->bf16 = read_flag(problems, value, "bf16", cc >= 80);
    gpu->cudnn_attention_first =
        read_flag(problems, value, "cudnn_attention_first", cc == 90 || cc == 100 || cc == 103);
    gpu->flash_attention = read_flag(problems, value, "flash_attention", cc >= 80);
    gpu->efficient_attention = read_flag(problems, value, "efficient_attention", cc >= 50);
}

static void check_capacity(struct mp_problems *problems, const struct mp_gpu *gpu)
{
    for (int i = 0; i < MP_KERNEL_SETS; i++) {
        if (gpu->unavailable_bytes[i].high >= gpu->total_bytes.value)
            mp_problems_add(problems, NULL, "unavailable_bytes",
                            "%" PRIu64 " leaves nothing of total_bytes %" PRIu64,
                            gpu->unavailable_bytes[i].high, gpu->total_bytes.value);
    }
}

/* Rates of one object; those of `nested` are objects by element type. */
static void check_rate_object(struct mp_problems *problems, const char *prefix,
                              const struct mp_value *object, const char *const *known,
                              size_t n_known, const char *nested)
{
    check_keys(problems, prefix, object, known, n_known);
    for (size_t i = 0; i < object->as.object.length; i++) {
        const struct mp_member *const member = &object->as.object.members[i];
        char name[96];
        (void)snprintf(name, sizeof name, "%s.%.60s", prefix, member->key);
        if (member->key[0] != '_' && strcmp(member->key, nested) != 0)
            (void)read_fact(problems, name, member->value, 1, INT64_MAX);
    }
}

static void check_rates(struct mp_problems *problems, const struct mp_value *rates)
{
    static const char *const known[] = {"flops_per_s", "memory_bytes_per_s", "host_bytes_per_s",
                                        "nvlink_bytes_per_s"};
    static const char *const types[] = {"fp32", "tf32", "bf16", "fp16"};
    const struct mp_value *const flops = mp_value_get(rates, "flops_per_s");
    if (rates != NULL && rates->kind != MP_OBJECT)
        mp_problems_add(problems, rates, "rates", "not an object");
    else if (rates != NULL)
        check_rate_object(problems, "rates", rates, known, MP_ARRAY_LEN(known), "flops_per_s");
    if (flops != NULL && flops->kind != MP_OBJECT)
        mp_problems_add(problems, flops, "rates.flops_per_s", "not an object");
    else if (flops != NULL)
        check_rate_object(problems, "rates.flops_per_s", flops, types, MP_ARRAY_LEN(types), "");
}

static void check_names(struct mp_problems *problems, const struct mp_value *names)
{
    bool ok = names == NULL || names->kind == MP_ARRAY;
    for (size_t i = 0; ok && names != NULL && i < names->as.array.length; i++)
        ok = names->as.array.items[i]->kind == MP_STRING;
    if (!ok)
        mp_problems_add(problems, names, "reported_names", "not a list of strings");
}

const struct mp_gpu *mp_gpu_parse(struct mp_arena *arena, const char *origin,
                                  const struct mp_value *value, struct memplan_error *err)
{
    struct mp_problems problems;
    mp_problems_init(&problems, origin, err);
    if (value->kind != MP_OBJECT) {
        mp_problems_add(&problems, value, NULL, "a GPU is an object, not %s",
                        mp_value_kind_text(value->kind));
        return NULL;
    }
    struct mp_gpu *const gpu = mp_arena_alloc(arena, sizeof *gpu);
    char *const source = mp_arena_strdup(arena, origin);
    if (gpu == NULL || source == NULL) {
        (void)mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return NULL;
    }
    gpu->source = source;
    check_keys(&problems, "", value, gpu_keys, MP_ARRAY_LEN(gpu_keys));
    gpu->name = read_text(&problems, value, "name", source);
    gpu->product = read_text(&problems, value, "product", gpu->name);
    gpu->compute_capability = read_capability(&problems, value);
    gpu->sms = (uint32_t)require_fact(&problems, value, "sms", 1, 4096).value;
    gpu->threads_per_sm =
        (uint32_t)require_fact(&problems, value, "threads_per_sm", 32, 8192).value;
    gpu->total_bytes = require_fact(&problems, value, "total_bytes", 1, BYTES_MAX);
    read_sets(&problems, value, "context_bytes", gpu->context_bytes);
    read_sets(&problems, value, "unavailable_bytes", gpu->unavailable_bytes);
    read_kernels(&problems, value, gpu);
    gpu->rates = mp_value_get(value, "rates");
    check_rates(&problems, gpu->rates);
    gpu->reported_names = mp_value_get(value, "reported_names");
    check_names(&problems, gpu->reported_names);
    if (problems.n == 0)
        check_capacity(&problems, gpu);
    return problems.n == 0 ? gpu : NULL;
}

const struct mp_gpu *mp_gpu_read(struct mp_arena *arena, const char *name_or_path,
                                 struct memplan_error *err)
{
    struct mp_shipped_value found;
    if (strcasecmp(name_or_path, "auto") == 0)
        return mp_gpu_detect(arena, MP_GPU_DETECT_MS, err);
    if (mp_shipped_load(arena, "gpus", "gpu", name_or_path, &found, err) != MEMPLAN_STATUS_OK)
        return NULL;
    return mp_gpu_parse(arena, found.origin, found.value, err);
}

double mp_gpu_rate(const struct mp_gpu *gpu, const char *path)
{
    const struct mp_value *value = gpu->rates;
    for (const char *c = path; value != NULL;) {
        char key[64];
        const size_t n = strcspn(c, ".");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, c);
        value = mp_value_get(value, key);
        if (c[n] == '\0')
            break;
        c += n + 1;
    }
    double rate = 0.0;
    if (value != NULL && value->kind == MP_OBJECT)
        value = mp_value_get(value, "value");
    return value != NULL && mp_value_number(value, &rate) ? rate : 0.0;
}

static void no_card(struct memplan_error *err)
{
    (void)mp_error_set(err, MEMPLAN_STATUS_INPUT,
                       "gpu: auto: nvidia-smi reports no card here; name one of 'memplan list gpus'");
}

/* Standard output of nvidia-smi; false with *err when it has none or does not end. */
static bool ask_nvidia_smi(int limit_ms, char *out, size_t size, struct memplan_error *err)
{
    static char program[] = "nvidia-smi";
    static char query[] = "--query-gpu=name,memory.total,memory.reserved";
    static char format[] = "--format=csv,noheader,nounits";
    char *const argv[] = {program, query, format, NULL};
    const enum mp_subprocess_end end = mp_subprocess_ask(argv, limit_ms, out, size);
    if (end == MP_SUBPROCESS_FAILED)
        no_card(err);
    else if (end == MP_SUBPROCESS_TIMED_OUT)
        (void)mp_error_set(err, MEMPLAN_STATUS_INPUT,
                           "gpu: auto: nvidia-smi did not answer within %g s (does the driver hang?); name one of 'memplan list gpus'",
                           limit_ms / 1000.0);
    return end == MP_SUBPROCESS_ANSWERED;
}

struct detected {
    char name[128];
    uint64_t total_bytes, reserved_bytes;
};

/* "NVIDIA H200, 143771, 615\n..." */
static bool parse_detected(const char *text, struct detected *out)
{
    long long total_mib = 0, reserved_mib = 0;
    const int n = sscanf(text, "%127[^,], %lld, %lld", out->name, &total_mib, &reserved_mib);
    if (n < 2 || total_mib < 1 || total_mib > (INT64_C(1) << 30))
        return false;
    out->total_bytes = (uint64_t)total_mib * MP_MIB;
    out->reserved_bytes = n == 3 && reserved_mib > 0 && reserved_mib < total_mib
                              ? (uint64_t)reserved_mib * MP_MIB
                              : 0;
    return true;
}

static bool is_called(const struct mp_gpu *gpu, const char *name)
{
    for (size_t i = 0; gpu->reported_names != NULL && i < gpu->reported_names->as.array.length;
         i++) {
        if (strcasecmp(gpu->reported_names->as.array.items[i]->as.string.text, name) == 0)
            return true;
    }
    return false;
}

/* Two cards can share a name and differ in size (Tesla V100-SXM2): the size within 10 % decides
 * too. */
static bool matches(const struct mp_gpu *gpu, const struct detected *card)
{
    const uint64_t tenth = gpu->total_bytes.value / 10;
    return is_called(gpu, card->name) && card->total_bytes > gpu->total_bytes.value - tenth &&
           card->total_bytes < gpu->total_bytes.value + tenth;
}

static const struct mp_gpu *with_capacity(struct mp_arena *arena, const struct mp_gpu *gpu,
                                          const struct detected *card, struct memplan_error *err)
{
    struct mp_gpu *const own = mp_arena_alloc(arena, sizeof *own);
    if (own == NULL) {
        (void)mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
        return NULL;
    }
    *own = *gpu;
    /* Without a reserved figure (old drivers show the total that PyTorch sees) the smaller of both
     * is on the safe side. */
    const uint64_t total = card->total_bytes - card->reserved_bytes;
    const uint64_t known = gpu->total_bytes.value;
    if (gpu->total_bytes.provenance == MP_MEASURED &&
        MP_MAX(total, known) - MP_MIN(total, known) <= 2 * MP_MIB)
        return own; /* nvidia-smi counts whole MiB, the file knows the bytes */
    own->total_bytes = (struct mp_fact){.value = total,
                                        .low = MP_MIN(total, gpu->total_bytes.low),
                                        .high = MP_MAX(total, gpu->total_bytes.high),
                                        .provenance = MP_REPORTED,
                                        .note = "nvidia-smi: memory.total - memory.reserved"};
    if (card->reserved_bytes == 0)
        own->total_bytes.value = MP_MIN(total, gpu->total_bytes.value);
    return own;
}

const struct mp_gpu *mp_gpu_detect(struct mp_arena *arena, int limit_ms, struct memplan_error *err)
{
    char text[4096];
    struct detected card = {.total_bytes = 0};
    if (!ask_nvidia_smi(limit_ms, text, sizeof text, err))
        return NULL;
    if (!parse_detected(text, &card)) {
        no_card(err);
        return NULL;
    }
    size_t n = 0;
    const struct mp_shipped *const files = mp_shipped_all(&n);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(files[i].kind, "gpus") != 0)
            continue;
        const struct mp_gpu *const gpu = mp_gpu_read(arena, files[i].name, err);
        if (gpu == NULL)
            return NULL;
        if (matches(gpu, &card))
            return with_capacity(arena, gpu, &card, err);
    }
    (void)mp_error_set(err, MEMPLAN_STATUS_INPUT,
                       "gpu: auto: no shipped file describes '%s'; write one (see 'memplan list "
                       "gpus') and give its path",
                       card.name);
    return NULL;
}
