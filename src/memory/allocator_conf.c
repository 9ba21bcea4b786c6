/* SPDX-License-Identifier: MIT */
/*
 * PYTORCH_CUDA_ALLOC_CONF, read by the rules of the release that would read it.
 *
 *     max_split_size_mb:128,roundup_power2_divisions:[256:1,512:2,>:8]
 *     key────────────── ───                           MiB─┘ └─divisions
 *
 * Keys separated by commas, blanks ignored, booleans exactly True or False. One table has every key
 * with the releases that know it; its functions check the value as CUDAAllocatorConfig
 * (AcceleratorAllocatorConfig since 2.9) does. Keys that only concern pinned host memory or locks
 * are checked for form and otherwise ignored.
 */
#include <ctype.h>
#include <errno.h>

#include "base/strbuf.h"
#include "base/units.h"
#include "memory/allocator.h"

#define TEXT_MAX 4096
#define LARGE_SEGMENT_MB UINT64_C(20)
#define OWN_SEGMENT_MB UINT64_C(10)

/* What is being read: text without blanks, cut into pieces as the work goes on. */
struct parse {
    mp_torch_version torch;
    struct mp_allocator_conf *conf;
    struct memplan_error *err;
};

enum memplan_status mp_torch_version_parse(const char *text, mp_torch_version *torch,
                                           struct memplan_error *err)
{
    char *end = NULL;
    const long major = isdigit((unsigned char)text[0]) ? strtol(text, &end, 10) : -1;
    const char *rest = end && *end == '.' ? end + 1 : "";
    const long minor = isdigit((unsigned char)rest[0]) ? strtol(rest, &end, 10) : -1;
    const bool ended =
        end && (*end == '\0' || *end == '.' || *end == '+' || isalpha((unsigned char)*end));
    const bool known = (major == 1 && minor == 13) || (major == 2 && minor >= 0 && minor <= 12);
    if (!ended || !known)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "torch version '%.40s': not known; use 1.13 or 2.0 to 2.12", text);
    *torch = (mp_torch_version)(major * 100 + minor);
    return MEMPLAN_STATUS_OK;
}

void mp_allocator_conf_init(struct mp_allocator_conf *conf, mp_torch_version torch)
{
    (void)torch; /* defaults are the same in all releases; before a key existed its default was a
                    constant */
    *conf = (struct mp_allocator_conf){
        .max_split_bytes = UINT64_MAX,
        .max_non_split_rounding_bytes = LARGE_SEGMENT_MB * MP_MIB,
        .large_segment_bytes = LARGE_SEGMENT_MB * MP_MIB,
        .roundup_bypass_bytes = UINT64_MAX,
    };
}

/* ---- values ---- */

static enum memplan_status bad_value(const struct parse *p, const char *key, const char *value,
                                     const char *way_out)
{
    return mp_error_set(p->err, MEMPLAN_STATUS_INPUT, "allocator conf: %s: '%.60s' %s", key, value,
                        way_out);
}

static bool read_uint(const char *text, uint64_t *value)
{
    if (!isdigit((unsigned char)text[0]))
        return false;
    char *end = NULL;
    errno = 0;
    const unsigned long long v = strtoull(text, &end, 10);
    *value = v;
    return errno == 0 && *end == '\0';
}

static bool read_real(const char *text, double *value)
{
    if (!isdigit((unsigned char)text[0]) && text[0] != '.')
        return false;
    char *end = NULL;
    *value = strtod(text, &end);
    return *end == '\0';
}

static bool read_megabytes(const char *text, uint64_t *bytes)
{
    uint64_t mb = 0;
    if (!read_uint(text, &mb))
        return false;
    *bytes = mb > UINT64_MAX / MP_MIB ? UINT64_MAX : mb * MP_MIB;
    return true;
}

static bool is_power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

/* ---- keys ---- */

static enum memplan_status set_max_split(const struct parse *p, const char *key, const char *value)
{
    uint64_t bytes = 0;
    const uint64_t least =
        p->torch <= 200 ? (LARGE_SEGMENT_MB + 1) * MP_MIB : p->conf->large_segment_bytes;
    if (!read_megabytes(value, &bytes) || bytes < least)
        return bad_value(p, key, value,
                         p->torch <= 200
                             ? "is no size in MiB above 20"
                             : "is no size in MiB of at least large_segment_size_mb (20)");
    p->conf->max_split_bytes = bytes;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_max_non_split(const struct parse *p, const char *key,
                                             const char *value)
{
    uint64_t bytes = 0;
    if (!read_megabytes(value, &bytes) || bytes < p->conf->large_segment_bytes)
        return bad_value(p, key, value, "is no size in MiB of at least large_segment_size_mb (20)");
    p->conf->max_non_split_rounding_bytes = MP_MIN(bytes, UINT64_C(1) << 60);
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_large_segment(const struct parse *p, const char *key,
                                             const char *value)
{
    uint64_t bytes = 0;
    if (!read_megabytes(value, &bytes) || bytes <= OWN_SEGMENT_MB * MP_MIB ||
        bytes > UINT64_C(1) << 40)
        return bad_value(p, key, value, "is no size in MiB above 10");
    if (p->conf->max_non_split_rounding_bytes == p->conf->large_segment_bytes)
        p->conf->max_non_split_rounding_bytes = bytes; /* its default follows */
    p->conf->large_segment_bytes = bytes;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_gc(const struct parse *p, const char *key, const char *value)
{
    double threshold = 0;
    if (!read_real(value, &threshold) || !(threshold > 0 && threshold < 1))
        return bad_value(p, key, value, "is not between 0 and 1");
    p->conf->garbage_collection_threshold = threshold;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_bypass(const struct parse *p, const char *key, const char *value)
{
    if (!read_megabytes(value, &p->conf->roundup_bypass_bytes))
        return bad_value(p, key, value, "is no size in MiB");
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_fraction(const struct parse *p, const char *key, const char *value)
{
    double fraction = 0;
    if (!read_real(value, &fraction) || !(fraction >= 0 && fraction <= 1))
        return bad_value(p, key, value, "is not between 0 and 1");
    p->conf->per_process_memory_fraction = fraction;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status read_bool(const struct parse *p, const char *key, const char *value,
                                     bool *out)
{
    const bool yes = strcmp(value, "True") == 0;
    if (!yes && strcmp(value, "False") != 0)
        return bad_value(p, key, value, "is neither True nor False");
    *out = yes;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_expandable(const struct parse *p, const char *key, const char *value)
{
    return read_bool(p, key, value, &p->conf->expandable_segments);
}

static enum memplan_status check_bool(const struct parse *p, const char *key, const char *value)
{
    bool ignored = false;
    return read_bool(p, key, value, &ignored);
}

static enum memplan_status check_uint(const struct parse *p, const char *key, const char *value)
{
    uint64_t ignored = 0;
    return read_uint(value, &ignored) ? MEMPLAN_STATUS_OK
                                      : bad_value(p, key, value, "is no whole number");
}

static enum memplan_status set_backend(const struct parse *p, const char *key, const char *value)
{
    p->conf->backend_async = strcmp(value, "cudaMallocAsync") == 0;
    if (!p->conf->backend_async && strcmp(value, "native") != 0)
        return bad_value(p, key, value, "is neither native nor cudaMallocAsync");
    return MEMPLAN_STATUS_OK;
}

/* One "size:divisions" of a list; *last is the bucket of the one before, -1 at the start. */
static enum memplan_status set_division(const struct parse *p, const char *key, char *item,
                                        int *last)
{
    char *colon = strchr(item, ':');
    uint64_t size = 0, divisions = 0;
    if (!colon)
        return bad_value(p, key, item, "is not size:divisions");
    *colon = '\0';
    if (!read_uint(colon + 1, &divisions) || (divisions && !is_power_of_two(divisions)) ||
        divisions > UINT32_MAX)
        return bad_value(p, key, colon + 1, "is no power of two");
    uint32_t *buckets = p->conf->roundup_divisions;
    if (strcmp(item, ">") == 0) {
        /* the older parser overwrote the last bucket that was named */
        for (int i = MP_MAX(*last + (p->torch >= 209), 0); i < 16; i++)
            buckets[i] = (uint32_t)divisions;
        *last = 15;
        return MEMPLAN_STATUS_OK;
    }
    if (!read_uint(item, &size) || !is_power_of_two(size))
        return bad_value(p, key, item, "is no power of two of MiB");
    const int bucket = MP_MIN(63 - __builtin_clzll(size), 15);
    for (int i = 0; *last < 0 && i < bucket; i++)
        buckets[i] = (uint32_t)divisions;
    buckets[bucket] = (uint32_t)divisions;
    *last = bucket;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_roundup(const struct parse *p, const char *key, char *value)
{
    if (value[0] != '[') {
        uint64_t divisions = 0;
        if (!read_uint(value, &divisions) || !is_power_of_two(divisions) || divisions > UINT32_MAX)
            return bad_value(p, key, value, "is no power of two");
        for (int i = 0; i < 16; i++)
            p->conf->roundup_divisions[i] = (uint32_t)divisions;
        return MEMPLAN_STATUS_OK;
    }
    if (p->torch <= 200)
        return bad_value(p, key, value, "is a list, which torch 2.1 and later read");
    int last = -1;
    for (char *item = value + 1; item;) {
        char *end = strpbrk(item, ",]");
        const bool more = *end == ',';
        *end = '\0';
        const enum memplan_status status = set_division(p, key, item, &last);
        if (status != MEMPLAN_STATUS_OK)
            return status;
        item = more ? end + 1 : NULL;
    }
    return MEMPLAN_STATUS_OK;
}

typedef enum memplan_status set_value(const struct parse *p, const char *key, const char *value);

/* The releases that know a key; roundup_power2_divisions has a list and is read apart. */
static const struct conf_key {
    const char *name;
    mp_torch_version since, until;
    set_value *set;
} keys[] = {
    {"max_split_size_mb", 109, 999, set_max_split},
    {"max_non_split_rounding_mb", 206, 999, set_max_non_split},
    {"large_segment_size_mb", 211, 999, set_large_segment},
    {"garbage_collection_threshold", 112, 999, set_gc},
    {"roundup_power2_divisions", 112, 999, NULL},
    {"roundup_bypass_threshold_mb", 112, 200, set_bypass},
    {"expandable_segments", 201, 999, set_expandable},
    {"per_process_memory_fraction", 210, 999, set_fraction},
    {"backend", 200, 999, set_backend},
    {"release_lock_on_cudamalloc", 201, 999, check_bool},
    {"graph_capture_record_stream_reuse", 210, 999, check_bool},
    {"pinned_use_cuda_host_register", 201, 999, check_bool},
    {"pinned_num_register_threads", 201, 999, check_uint},
    {"pinned_use_background_threads", 206, 999, check_bool},
    {"pinned_reserve_segment_size_mb", 211, 999, check_uint},
};

/* near: a known key like it, or NULL */
static void refuse_key(const struct parse *p, const char *name, const char *near)
{
    const char *assigned = strchr(name, '=');
    if (near) {
        mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                     "allocator conf: unknown key '%.60s'; did you mean '%s'?", name, near);
    } else if (assigned && strncmp(name, "PYTORCH_", 8) == 0) {
        mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                     "allocator conf: unknown key '%.60s'; give what stands behind '%.*s='", name,
                     (int)MP_MIN(assigned - name, 60), name);
    } else {
        struct mp_strbuf known = MP_STRBUF_INIT;
        for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
            if (p->torch >= keys[i].since && p->torch <= keys[i].until)
                mp_strbuf_addf(&known, "%s%s", known.len ? ", " : "", keys[i].name);
        }
        mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                     "allocator conf: unknown key '%.60s'; known are %s", name,
                     mp_strbuf_text(&known));
        mp_strbuf_release(&known);
    }
}

static const struct conf_key *find_key(const struct parse *p, const char *name)
{
    const char *names[MP_ARRAY_LEN(keys)];
    for (size_t i = 0; i < MP_ARRAY_LEN(keys); i++) {
        names[i] = keys[i].name;
        if (strcmp(keys[i].name, name) != 0)
            continue;
        if (p->torch >= keys[i].since && p->torch <= keys[i].until)
            return &keys[i];
        const mp_torch_version known = p->torch < keys[i].since ? keys[i].since : keys[i].until;
        mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                     "allocator conf: %s: torch %d.%d does not know it; torch %d.%d and %s do",
                     name, p->torch / 100, p->torch % 100, known / 100, known % 100,
                     p->torch < keys[i].since ? "later" : "earlier");
        return NULL;
    }
    refuse_key(p, name, mp_closest(name, names, MP_ARRAY_LEN(keys)));
    return NULL;
}

/* The comma that ends a setting, outside brackets; false for brackets that do not close. */
static bool find_end(char *text, char **end)
{
    bool inside = false;
    char *c = text;
    for (; *c && (inside || *c != ','); c++) {
        if (*c == '[' ? inside : *c == ']' && !inside)
            return false;
        inside = *c == '[' || (inside && *c != ']');
        if (*c == ']' && c[1] != ',' && c[1] != '\0')
            return false;
    }
    *end = c;
    return !inside;
}

static enum memplan_status parse_setting(const struct parse *p, char *setting)
{
    char *value = strchr(setting, ':');
    if (!value)
        return mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                            "allocator conf: '%.60s' is not key:value", setting);
    *value++ = '\0';
    const struct conf_key *key = find_key(p, setting);
    if (!key)
        return MEMPLAN_STATUS_INPUT;
    return key->set ? key->set(p, setting, value) : set_roundup(p, setting, value);
}

static enum memplan_status parse_text(const struct parse *p, char *text)
{
    while (*text) {
        char *end = NULL;
        if (!find_end(text, &end))
            return mp_error_set(p->err, MEMPLAN_STATUS_INPUT,
                                "allocator conf: '%.60s': brackets do not match", text);
        const bool more = *end == ',';
        *end = '\0';
        const enum memplan_status status =
            *text ? parse_setting(p, text) : MEMPLAN_STATUS_OK; /* an empty one is passed over */
        if (status != MEMPLAN_STATUS_OK)
            return status;
        text = more ? end + 1 : end;
    }
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_allocator_conf_parse(const char *text, mp_torch_version torch,
                                            struct mp_allocator_conf *conf,
                                            struct memplan_error *err)
{
    char copy[TEXT_MAX];
    size_t n = 0;
    struct mp_allocator_conf read;
    const struct parse p = {torch ? torch : MP_TORCH_DEFAULT, &read, err};
    mp_allocator_conf_init(&read, p.torch);
    for (const char *c = text ? text : ""; *c; c++) {
        if (isspace((unsigned char)*c))
            continue;
        if (n + 1 == sizeof(copy))
            return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                "allocator conf: longer than %zu characters", sizeof(copy) - 1);
        copy[n++] = *c;
    }
    copy[n] = '\0';
    const enum memplan_status status = parse_text(&p, copy);
    if (status == MEMPLAN_STATUS_OK)
        *conf = read;
    return status;
}
