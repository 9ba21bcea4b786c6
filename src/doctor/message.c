/* SPDX-License-Identifier: MIT */
/*
 * How it works: in the squeezed text every figure stands between two known words
 * ("…totalcapacityof23.69gibofwhich…",
 * "(gpu0;23.70gibtotalcapacity;…"). So the reader finds where a message begins, walks over the
 * sizes behind it and asks of each what stands before and after; no clause has to be complete, in
 * order or present.
 */
#include "doctor/message.h"

#include "base/units.h"

static const struct {
    const char *name, *text;
} formats[] = {
#define X(id, name, text) {name, text},
    MP_OOM_FORMAT_MAP(X)
#undef X
};

const char *mp_oom_format_name(enum mp_oom_format format)
{
    return formats[format].name;
}

const char *mp_oom_format_text(enum mp_oom_format format)
{
    return formats[format].text;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool starts_with(const char *at, const char *end, const char *word)
{
    const size_t n = strlen(word);
    return (size_t)(end - at) >= n && memcmp(at, word, n) == 0;
}

static bool ends_with(const char *begin, const char *at, const char *word)
{
    const size_t n = strlen(word);
    return (size_t)(at - begin) >= n && memcmp(at - n, word, n) == 0;
}

/* PyTorch's kB, MB and GB of 1.x are binary, too; other frameworks' are at most 7 % off, and these
 * figures are rounded anyway. */
static const struct {
    const char *name;
    unsigned shift;
} units[] = {
    {"bytes", 0}, {"byte", 0}, {"kib", 10}, {"mib", 20}, {"gib", 30},
    {"tib", 40},  {"kb", 10},  {"mb", 20},  {"gb", 30},  {"tb", 40},
};

/* Digits, thousands separators and a fraction of up to nine digits: value = *whole + *fraction /
 * *scale. */
static const char *number_read(const char *at, const char *end, uint64_t *whole, uint64_t *fraction,
                               uint64_t *scale, bool *absurd)
{
    *whole = 0;
    *fraction = 0;
    *scale = 1;
    *absurd = false;
    if (at >= end || !is_digit(*at)) {
        return NULL;
    }
    for (; at < end; at++) {
        const bool thousands = *at == ',' && end - at > 3 && is_digit(at[1]) && is_digit(at[2]) &&
                               is_digit(at[3]) && (end - at == 4 || !is_digit(at[4]));
        if (thousands) {
            continue;
        }
        if (!is_digit(*at)) {
            break;
        }
        uint64_t next;
        if (!mp_mul_u64(*whole, 10, &next) || !mp_add_u64(next, (uint64_t)(*at - '0'), &next)) {
            *absurd = true;
        } else {
            *whole = next;
        }
    }
    if (end - at > 1 && *at == '.' && is_digit(at[1])) {
        for (at++; at < end && is_digit(*at); at++) {
            if (*scale < UINT64_C(1000000000)) {
                *fraction = *fraction * 10 + (uint64_t)(*at - '0');
                *scale *= 10;
            }
        }
    }
    return at;
}

bool mp_oom_size_read(const char **at, const char *end, uint64_t *bytes)
{
    uint64_t whole, fraction, scale;
    bool absurd;
    const char *p = number_read(*at, end, &whole, &fraction, &scale, &absurd);
    if (p == NULL) {
        return false;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(units); i++) {
        if (!starts_with(p, end, units[i].name)) {
            continue;
        }
        const uint64_t unit = UINT64_C(1) << units[i].shift;
        uint64_t value;
        /* fraction < 10^9 and a unit of 2^40 do not fit 64 bits together: 2^30 first, then what is
         * left over */
        const uint64_t low = MP_MIN(unit, MP_GIB), high = unit / low;
        const uint64_t product = fraction * low;
        const uint64_t part = product / scale * high + (product % scale * high + scale / 2) / scale;
        if (absurd || !mp_mul_u64(whole, unit, &value) || !mp_add_u64(value, part, &value)) {
            value = UINT64_MAX;
        }
        *bytes = value;
        *at = p + strlen(units[i].name);
        return true;
    }
    return false;
}

/* ---- the allocator's message ---- */

enum field {
    REQUESTED,
    CAPACITY,
    FREE,
    ALLOCATED,
    RESERVED,
    UNALLOCATED,
    ALLOWED,
    PRIVATE_POOL,
    IN_USE,
    CACHED,
    FIELDS
};

/* What stands before or after a size tells which one it is; the first row that fits decides. */
static const struct {
    const char *before, *after;
    enum field field;
} clauses[] = {
    {"totalcapacityof", NULL, CAPACITY},
    {"totalcapactyof", NULL, CAPACITY},
    {"hastotal", NULL, CAPACITY},
    {NULL, "totalcapac", CAPACITY},
    {"ofwhich", NULL, FREE},
    {NULL, "memoryinuse", IN_USE},
    {NULL, "alreadyallocated", ALLOCATED},
    {NULL, "reservedintotal", RESERVED},
    {NULL, "isreservedby", UNALLOCATED},
    {NULL, "allocatedinprivatepools", PRIVATE_POOL},
    {NULL, "isallocatedby", ALLOCATED},
    {"oftheallocatedmemory", NULL, ALLOCATED},
    {NULL, "allowed", ALLOWED},
    {NULL, "cached", CACHED},
    {NULL, "isfree", FREE},
    {NULL, "free", FREE},
};

/* A figure that no clause follows within this many bytes is the end of the message. */
#define CLAUSE_REACH  400
#define MESSAGE_REACH 12000

static const char request_words[] = "triedtoallocate";

struct reader {
    const char *begin, *end; /* of the squeezed text */
    struct mp_oom_message *m;
    bool has[FIELDS];
    size_t n_fields;
};

static struct mp_oom_bytes *field_of(struct mp_oom_message *m, enum field field)
{
    switch (field) {
    case REQUESTED: return &m->requested;
    case CAPACITY: return &m->capacity;
    case FREE: return &m->free;
    case ALLOCATED: return &m->allocated;
    case RESERVED: return &m->reserved;
    case UNALLOCATED: return &m->unallocated;
    case ALLOWED: return &m->allowed;
    case PRIVATE_POOL: return &m->private_pool;
    case CACHED:
    case IN_USE:
    case FIELDS: break;
    }
    return NULL;
}

static void take(struct reader *r, enum field field, uint64_t bytes)
{
    if (r->has[field]) {
        return;
    }
    r->has[field] = true;
    r->n_fields++;
    if (field == CACHED) {
        /* 1.0 to 1.4: `cached` counts what the allocator holds without using it, later `reserved`
         * counts both */
        r->m->unallocated = (struct mp_oom_bytes){true, bytes};
        return;
    }
    *field_of(r->m, field) = (struct mp_oom_bytes){true, bytes};
}

/* "process123has15.25gibmemoryinuse", "thisprocesshas…": at points at the size. */
static void take_process(struct reader *r, const char *at, uint64_t bytes)
{
    struct mp_oom_message *const m = r->m;
    if (ends_with(r->begin, at, "thisprocesshas")) {
        if (bytes == UINT64_MAX) {
            m->nvml_absurd = true;
        } else if (!m->this_process.known) {
            m->this_process = (struct mp_oom_bytes){true, bytes};
            r->n_fields++;
        }
        return;
    }
    if (!ends_with(r->begin, at, "has")) {
        return;
    }
    const char *p = at - strlen("has");
    uint64_t pid = 0, place = 1;
    while (p > r->begin && is_digit(p[-1]) && place <= UINT64_C(1000000000000)) {
        p--;
        pid += (uint64_t)(*p - '0') * place;
        place *= 10;
    }
    if (place == 1 || !ends_with(r->begin, p, "process")) {
        return;
    }
    if (bytes == UINT64_MAX) {
        m->nvml_absurd = true;
    } else if (m->n_processes < MP_OOM_MAX_PROCESSES) {
        m->processes[m->n_processes++] = (struct mp_oom_process){pid, bytes};
        r->n_fields++;
    }
}

/* The device in "(gpu0;" or "gpu0hasa…". */
static void take_device(struct reader *r, const char *at)
{
    if (r->m->device_known || !starts_with(at, r->end, "gpu")) {
        return;
    }
    const char *p = at + 3;
    uint32_t device = 0;
    size_t digits = 0;
    while (p < r->end && is_digit(*p) && digits < 4) {
        device = device * 10 + (uint32_t)(*p - '0');
        digits++;
        p++;
    }
    if (digits > 0 && (starts_with(p, r->end, ";") || starts_with(p, r->end, "has"))) {
        r->m->device_known = true;
        r->m->device = device;
    }
}

/* One size of a message: true when a clause claims it. */
static bool take_size(struct reader *r, const char *at, const char *after, uint64_t bytes)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(clauses); i++) {
        const bool fits = clauses[i].before != NULL ? ends_with(r->begin, at, clauses[i].before)
                                                    : starts_with(after, r->end, clauses[i].after);
        if (!fits) {
            continue;
        }
        if (clauses[i].field == IN_USE) {
            take_process(r, at, bytes);
        } else if (bytes != UINT64_MAX) {
            take(r, clauses[i].field, bytes);
        }
        return true;
    }
    return false;
}

/* Walk over the sizes from at on; returns where the message ends. */
static const char *read_clauses(struct reader *r, const char *at, const char *limit)
{
    const char *last = at;
    while (at < limit && at - last < CLAUSE_REACH) {
        if (*at == 'g') {
            take_device(r, at);
        }
        /* the full stop of a sentence may touch the number, the point of another number must not */
        const bool inside =
            at > r->begin &&
            (is_digit(at[-1]) || (at[-1] == '.' && at - r->begin > 1 && is_digit(at[-2])));
        const bool number = is_digit(*at) && !inside;
        const char *after = at;
        uint64_t bytes;
        if (number && mp_oom_size_read(&after, limit, &bytes) && take_size(r, at, after, bytes)) {
            last = after;
            at = after;
            continue;
        }
        at++;
    }
    return last;
}

static enum mp_oom_format torch_format(const struct reader *r, const char *begin, const char *end)
{
    const size_t n = (size_t)(end - begin);
    if (mp_doctor_find(begin, n, "totalcapactyof") != NULL) {
        return MP_OOM_TORCH_2_1;
    }
    if (mp_doctor_find(begin, n, "totalcapacityof") != NULL ||
        mp_doctor_find(begin, n, "ofwhich") != NULL || r->has[UNALLOCATED] ||
        r->m->this_process.known || r->m->n_processes > 0) {
        return MP_OOM_TORCH_2_2;
    }
    if (r->has[CACHED]) {
        return MP_OOM_TORCH_1_0;
    }
    if (r->has[RESERVED] || r->has[CAPACITY]) {
        /* the hint follows the closing parenthesis at once; `>>` may have been escaped */
        const size_t reach = MP_MIN((size_t)(r->end - end), (size_t)80);
        return mp_doctor_find(end, reach, "ifreservedmemory") != NULL ? MP_OOM_TORCH_1_10
                                                                      : MP_OOM_TORCH_1_5;
    }
    return MP_OOM_TORCH_SHORT;
}

/* The message at `at`, which points behind "tried to allocate" or at the first clause of a cut one.
 */
static size_t read_torch(struct mp_oom_message *m, const struct mp_doctor_text *text,
                         const char *at)
{
    struct reader r = {.begin = text->squeezed, .end = text->squeezed + text->squeezed_len, .m = m};
    const char *const begin = at;
    *m = (struct mp_oom_message){.format = MP_OOM_TORCH_SHORT};
    uint64_t bytes;
    if (ends_with(r.begin, at, request_words)) {
        while (at < r.end && (*at == ':' || *at == '=' || *at == '~')) {
            at++;
        }
        if (starts_with(at, r.end, "about")) {
            at += 5;
        }
        if (mp_oom_size_read(&at, r.end, &bytes) && bytes != UINT64_MAX) {
            take(&r, REQUESTED, bytes);
        }
    }
    const size_t left = MP_MIN((size_t)(r.end - at), (size_t)MESSAGE_REACH);
    const char *const next = mp_doctor_find(at, left, request_words);
    const char *const end = read_clauses(&r, at, next != NULL ? next : at + left);
    m->format = torch_format(&r, begin, MP_MAX(begin, end));
    m->begin = (size_t)(begin - r.begin);
    m->end = (size_t)(end - r.begin);
    m->line = mp_doctor_text_squeezed_line(text, m->begin);
    return r.n_fields;
}

/* Is the "tried to allocate" before `at` the CPU allocator's? */
static bool is_host_request(const struct mp_doctor_text *text, const char *at)
{
    const size_t back = MP_MIN((size_t)(at - text->squeezed), (size_t)90);
    return mp_doctor_find(at - back, back, "cpuallocator") != NULL ||
           mp_doctor_find(at - back, back, "notenoughmemory:you") != NULL ||
           mp_doctor_find(at - back, back, "can'tallocatememory") != NULL;
}

/*
 * The message to speak about: the first complete one. A title or a cut line in front of it, with
 * nothing but the request, gives way; when none is complete, the first that states a request
 * stands.
 */
static void read_torch_messages(struct mp_oom_message *m, const struct mp_doctor_text *text)
{
    const char *const end = text->squeezed + text->squeezed_len;
    const char *at = text->squeezed;
    size_t best_fields = 0;
    uint32_t n_found = 0;
    while ((at = mp_doctor_find(at, (size_t)(end - at), request_words)) != NULL) {
        at += strlen(request_words);
        struct mp_oom_message candidate;
        if (is_host_request(text, at) || starts_with(at, end, "morethan1eb")) {
            continue;
        }
        const size_t fields = read_torch(&candidate, text, at);
        if (!candidate.requested.known && fields == 0) {
            continue;
        }
        n_found++;
        const bool complete = candidate.requested.known && fields >= 4;
        if (best_fields == 0 || (complete && best_fields < 4)) {
            *m = candidate;
            best_fields = fields;
        }
    }
    m->n_found = n_found;
}

/* A message whose beginning is missing: the first clause words of the text lead to it. */
static void read_headless(struct mp_oom_message *m, const struct mp_doctor_text *text)
{
    static const char *const marks[] = {"totalcapac",           "alreadyallocated",
                                        "reservedintotalby",    "isreservedbypytorch",
                                        "isallocatedbypytorch", "non-pytorchmemory"};
    const char *first = NULL;
    for (size_t i = 0; i < MP_ARRAY_LEN(marks); i++) {
        const char *const at = mp_doctor_find(text->squeezed, text->squeezed_len, marks[i]);
        if (at != NULL && (first == NULL || at < first)) {
            first = at;
        }
    }
    if (first == NULL) {
        return;
    }
    const size_t back = MP_MIN((size_t)(first - text->squeezed), (size_t)40);
    struct mp_oom_message candidate;
    if (read_torch(&candidate, text, first - back) > 0) {
        candidate.n_found = 1;
        *m = candidate;
    }
}

/* ---- all others ---- */

/* Behind `words` (or before, for sizes that precede) stands a size or a bare number of bytes. */
static bool size_behind(const char *begin, const char *end, const char *words, uint64_t *bytes)
{
    const char *at = mp_doctor_find(begin, (size_t)(end - begin), words);
    if (at == NULL) {
        return false;
    }
    at += strlen(words);
    while (at < end && (*at == ':' || *at == '(' || *at == '=')) {
        at++;
    }
    return mp_oom_size_read(&at, end, bytes) && *bytes != UINT64_MAX;
}

static void read_malloc_async(struct mp_oom_message *m, const char *at, const char *end)
{
    static const struct {
        const char *words;
        size_t offset;
    } rows[] = {
        {"currentlyallocated", offsetof(struct mp_oom_message, allocated)},
        {"requested", offsetof(struct mp_oom_message, requested)},
        {"devicelimit", offsetof(struct mp_oom_message, capacity)},
        {"free(accordingtocuda)", offsetof(struct mp_oom_message, free)},
        {"user-suppliedmemoryfraction)", offsetof(struct mp_oom_message, allowed)},
    };
    end = MP_MIN(end, at + MP_MIN((size_t)(end - at), (size_t)600));
    for (size_t i = 0; i < MP_ARRAY_LEN(rows); i++) {
        uint64_t bytes;
        if (size_behind(at, end, rows[i].words, &bytes)) {
            struct mp_oom_bytes *const field =
                (struct mp_oom_bytes *)(void *)((char *)m + rows[i].offset);
            *field = (struct mp_oom_bytes){true, bytes};
        }
    }
}

static void read_mps(struct mp_oom_message *m, const char *at, const char *end)
{
    uint64_t bytes;
    end = MP_MIN(end, at + MP_MIN((size_t)(end - at), (size_t)400));
    if (size_behind(at, end, "mpsallocated", &bytes)) {
        m->allocated = (struct mp_oom_bytes){true, bytes};
    }
    if (size_behind(at, end, "maxallowed", &bytes)) {
        m->allowed = (struct mp_oom_bytes){true, bytes};
    }
    if (size_behind(at, end, request_words, &bytes)) {
        m->requested = (struct mp_oom_bytes){true, bytes};
    }
}

static void read_prelog(struct mp_oom_message *m, const char *at, const char *end)
{
    uint64_t bytes;
    end = MP_MIN(end, at + MP_MIN((size_t)(end - at), (size_t)300));
    if (size_behind(at, end, "whiletryingtoallocate", &bytes)) {
        m->requested = (struct mp_oom_bytes){true, bytes};
    }
    if (size_behind(at, end, "(free", &bytes)) {
        m->free = (struct mp_oom_bytes){true, bytes};
    }
    if (size_behind(at, end, ",total", &bytes)) {
        m->capacity = (struct mp_oom_bytes){true, bytes};
    }
}

/* Words that give away a kind of failure. Where a size follows, `size` tells behind which words
 * (NULL: none). */
static const struct {
    const char *words;
    enum mp_oom_format format;
    const char *size;
} marks[] = {
    {"morethan1eb", MP_OOM_OVER_1EB, NULL},
    {"wouldexceedallowedmemory", MP_OOM_MALLOC_ASYNC, NULL},
    {"allocationondevice", MP_OOM_MALLOC_ASYNC, NULL},
    {"mpsbackendoutofmemory", MP_OOM_MPS, NULL},
    {"memoryallocationfailedwithoomondevice", MP_OOM_PRELOG, NULL},
    {"failedtocudacallocasync", MP_OOM_NCCL, "failedtocudacallocasync"},
    {"failedtocudacalloc", MP_OOM_NCCL, "failedtocudacalloc"},
    {"failedtocudamalloc", MP_OOM_NCCL, "failedtocudamalloc"},
    {"ncclwarncudafailure'outofmemory'", MP_OOM_NCCL, NULL},
    {"ncclwarncudafailure2'outofmemory'", MP_OOM_NCCL, NULL},
    {"cudafailure'outofmemory'", MP_OOM_NCCL, NULL},
    {"cudafailure2'outofmemory'", MP_OOM_NCCL, NULL},
    {"cublas_status_alloc_failed", MP_OOM_CUBLAS, NULL},
    {"cudnn_status_alloc_failed", MP_OOM_CUBLAS, NULL},
    {"cusolver_status_alloc_failed", MP_OOM_CUBLAS, NULL},
    {"cufft_alloc_failed", MP_OOM_CUBLAS, NULL},
    {"cusparse_status_alloc_failed", MP_OOM_CUBLAS, NULL},
    {"curand_status_allocation_failed", MP_OOM_CUBLAS, NULL},
    {"cpuallocator:can'tallocatememory", MP_OOM_HOST, request_words},
    {"cpuallocator:notenoughmemory", MP_OOM_HOST, request_words},
    {"notenoughmemory:youtriedtoallocate", MP_OOM_HOST, request_words},
    {"foranarraywithshape", MP_OOM_HOST, "unabletoallocate"},
    {"cannotallocatememory", MP_OOM_HOST, NULL},
    {"std::bad_alloc", MP_OOM_HOST, NULL},
    {"cudahostalloc", MP_OOM_HOST, NULL},
    {"cachinghostallocator", MP_OOM_HOST, NULL},
    {"rayoutofmemory", MP_OOM_HOST, NULL},
    {"insufficientsharedmemory", MP_OOM_HOST, NULL},
    {"outofsharedmemory(shm)", MP_OOM_HOST, NULL},
    {"oom-kill", MP_OOM_HOST, NULL},
    {"out-of-memory:killed", MP_OOM_HOST, NULL},
    {"outofmemory:killed", MP_OOM_HOST, NULL},
    {"thcudacheckfail", MP_OOM_THC, NULL},
    {"cudaruntimeerror(2)", MP_OOM_THC, NULL},
    {"cudaerror:outofmemory", MP_OOM_CUDA_ERROR, NULL},
    {"hiperror:outofmemory", MP_OOM_CUDA_ERROR, NULL},
    {"cudaerrormemoryallocation", MP_OOM_CUDA_ERROR, NULL},
    {"hiperroroutofmemory", MP_OOM_CUDA_ERROR, NULL},
    {"cudadrivererror:outofmemory", MP_OOM_CUDA_ERROR, NULL},
    {"oomwhenallocatingtensor", MP_OOM_OTHER, NULL},
    {"outofmemorywhiletryingtoallocate", MP_OOM_OTHER, "outofmemorywhiletryingtoallocate"},
    {"ranoutofmemorytryingtoallocate", MP_OOM_OTHER, "ranoutofmemorytryingtoallocate"},
    {"cudamallocfailed:outofmemory", MP_OOM_OTHER, "allocating"},
    {"outofmemoryerrorongpu", MP_OOM_OTHER, "cannotallocate"},
    {"cuda_error_out_of_memory", MP_OOM_CUDA_ERROR, "failedtoallocate"},
    {"failedtoallocatememoryforrequestedbufferofsize", MP_OOM_OTHER, NULL},
    {"couldnotallocatetensorwith", MP_OOM_OTHER, "couldnotallocatetensorwith"},
    {"cudaoutofmemory", MP_OOM_TORCH_SHORT, NULL},
    {"cudaoom", MP_OOM_TORCH_SHORT, NULL},
    {"hipoutofmemory", MP_OOM_TORCH_SHORT, NULL},
    {"xpuoutofmemory", MP_OOM_TORCH_SHORT, NULL},
    {"outofmemoryerror", MP_OOM_TORCH_SHORT, NULL},
    {"runoutofmemory", MP_OOM_TORCH_SHORT, NULL},
    {"outofmemory", MP_OOM_OTHER, NULL},
    {"out-of-memory", MP_OOM_OTHER, NULL},
    {"memoryisnotenough", MP_OOM_OTHER, NULL},
    {"outofmemerror", MP_OOM_OTHER, NULL},
    {"outofcudamemory", MP_OOM_OTHER, NULL},
    {"outofgpumemory", MP_OOM_OTHER, NULL},
    {"outofvram", MP_OOM_OTHER, NULL},
    {"notenoughvram", MP_OOM_OTHER, NULL},
    {"notenoughgpumemory", MP_OOM_OTHER, NULL},
    {"insufficientvram", MP_OOM_OTHER, NULL},
    {"insufficientmemory", MP_OOM_OTHER, NULL},
    {"memoryoverflow", MP_OOM_OTHER, NULL},
    {"insufficientgpumemory", MP_OOM_OTHER, NULL},
    {"cudamemoryerror", MP_OOM_TORCH_SHORT, NULL},
    {"\xE7\x88\x86\xE6\x98\xBE\xE5\xAD\x98", MP_OOM_OTHER, NULL}, /* bursts the GPU's memory */
    {"\xE6\x98\xBE\xE5\xAD\x98\xE4\xB8\x8D\xE8\xB6\xB3", MP_OOM_OTHER,
     NULL}, /* not enough GPU memory */
    {"\xE5\x86\x85\xE5\xAD\x98\xE6\xBA\xA2\xE5\x87\xBA", MP_OOM_OTHER, NULL}, /* memory overflows */
    {"\xE6\x98\xBE\xE5\xAD\x98\xE6\xBA\xA2\xE5\x87\xBA", MP_OOM_OTHER,
     NULL}, /* GPU memory overflows */
};

/* THCudaCheck stands for any CUDA error; only error 2 is memory. */
static bool is_memory(size_t mark, const char *at, const char *end)
{
    if (strcmp(marks[mark].words, "cudaoom") == 0) {
        return !starts_with(at, end, "cudaooms:"); /* a row of memory_summary() */
    }
    if (strcmp(marks[mark].words, "thcudacheckfail") != 0) {
        return true;
    }
    const size_t reach = MP_MIN((size_t)(end - at), (size_t)300);
    return mp_doctor_find(at, reach, "error=2:outofmemory") != NULL ||
           mp_doctor_find(at, reach, "outofmemory") != NULL;
}

/* "failed to allocate 17.79G (19104890880 bytes)": the exact count in parentheses wins. */
static bool read_stated(const char *at, const char *end, const char *words, uint64_t *bytes)
{
    const char *const found = mp_doctor_find(at, (size_t)(end - at), words);
    if (found == NULL) {
        return false;
    }
    const char *p = found + strlen(words);
    const char *const limit = p + MP_MIN((size_t)(end - p), (size_t)40);
    if (size_behind(found, end, words, bytes)) {
        return true;
    }
    while (p < limit && *p != '(') {
        p++;
    }
    p += p < limit;
    return mp_oom_size_read(&p, limit, bytes) && *bytes != UINT64_MAX;
}

/* The first mark of the list that the text holds gives the format, unless the allocator's own
 * message was read already. */
static void read_marks(struct mp_oom_message *m, const struct mp_doctor_text *text)
{
    const char *const begin = text->squeezed, *const end = begin + text->squeezed_len;
    for (size_t i = 0; i < MP_ARRAY_LEN(marks); i++) {
        const char *const at = mp_doctor_find(begin, text->squeezed_len, marks[i].words);
        if (at == NULL || !is_memory(i, at, end)) {
            continue;
        }
        m->seen |= UINT32_C(1) << marks[i].format;
        if (m->format != MP_OOM_NONE) {
            continue;
        }
        m->format = marks[i].format;
        m->begin = (size_t)(at - begin);
        m->end = m->begin + strlen(marks[i].words);
        m->line = mp_doctor_text_squeezed_line(text, m->begin);
        uint64_t bytes;
        switch (m->format) {
        case MP_OOM_MALLOC_ASYNC: read_malloc_async(m, at, end); break;
        case MP_OOM_MPS: read_mps(m, at, end); break;
        case MP_OOM_PRELOG: read_prelog(m, at, end); break;
        default: {
            const char *const back = at - MP_MIN((size_t)(at - begin), (size_t)160);
            const char *const reach = at + MP_MIN((size_t)(end - at), (size_t)260);
            if (marks[i].size != NULL && read_stated(back, reach, marks[i].size, &bytes)) {
                m->requested = (struct mp_oom_bytes){true, bytes};
            }
            break;
        }
        }
    }
}

/* "512.\xE2\x80\x94mib", "5.81g": what copying and other programs make of a size. */
static bool loose_size_read(const char *at, const char *end, uint64_t *bytes)
{
    static const struct {
        char letter;
        unsigned shift;
    } letters[] = {{'k', 10}, {'m', 20}, {'g', 30}, {'t', 40}};
    uint64_t whole, fraction, scale;
    bool absurd;
    at += at < end && (*at == ':' || *at == '(' || *at == '=');
    const char *exact = at;
    if (mp_oom_size_read(&exact, end, bytes)) {
        return *bytes != UINT64_MAX;
    }
    at = number_read(at, end, &whole, &fraction, &scale, &absurd);
    if (at == NULL || absurd) {
        return false;
    }
    for (int i = 0; i < 8 && at < end && (*at == '.' || *at == '-' || (unsigned char)*at >= 0x80);
         i++) {
        at++;
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(letters) && at < end; i++) {
        if (*at != letters[i].letter) {
            continue;
        }
        const uint64_t unit = UINT64_C(1) << letters[i].shift;
        const bool ends = at + 1 < end && (at[1] < 'a' || at[1] > 'z' || at[1] == 'b' ||
                                           starts_with(at + 1, end, "ib"));
        const uint64_t part = fraction * (unit >> 10) / scale * 1024;
        return ends && mp_mul_u64(whole, unit, bytes) && mp_add_u64(*bytes, part, bytes);
    }
    return false;
}

/* A request that stands apart from the words that gave the format. */
static void read_request_elsewhere(struct mp_oom_message *m, const struct mp_doctor_text *text)
{
    static const char *const words[] = {request_words, "tryingtoallocate", "attemptingtoallocate",
                                        "failedtoallocate", "unabletoallocate"};
    const char *const begin = text->squeezed, *const end = begin + text->squeezed_len;
    for (size_t i = 0; i < MP_ARRAY_LEN(words) && !m->requested.known; i++) {
        const char *at = begin;
        while ((at = mp_doctor_find(at, (size_t)(end - at), words[i])) != NULL) {
            uint64_t bytes;
            at += strlen(words[i]);
            const char *const exact = memchr(at, '(', MP_MIN((size_t)(end - at), (size_t)16));
            const char *p = exact != NULL ? exact + 1 : at;
            if ((exact != NULL && mp_oom_size_read(&p, end, &bytes) && bytes != UINT64_MAX) ||
                loose_size_read(at, end, &bytes)) {
                m->requested = (struct mp_oom_bytes){true, bytes};
                break;
            }
        }
    }
}

/* The exact byte count of the log line that 2.12 writes before its message, when both mean the same
 * request. */
static void refine_by_prelog(struct mp_oom_message *m, const struct mp_doctor_text *text)
{
    const char *const end = text->squeezed + text->squeezed_len;
    const char *const at =
        mp_doctor_find(text->squeezed, text->squeezed_len, "memoryallocationfailedwithoomondevice");
    struct mp_oom_message exact = {0};
    if (at == NULL || !m->requested.known || m->format == MP_OOM_PRELOG) {
        return;
    }
    read_prelog(&exact, at, end);
    if (!exact.requested.known) {
        return;
    }
    const uint64_t a = exact.requested.bytes, b = m->requested.bytes;
    if (MP_MAX(a, b) - MP_MIN(a, b) <= MP_MAX(a, b) / 100 + 2 * MP_MIB) {
        m->requested = exact.requested;
    }
}

/* ---- what follows from the figures ---- */

static void set(struct mp_oom_bytes *field, uint64_t bytes)
{
    if (!field->known) {
        *field = (struct mp_oom_bytes){true, bytes};
    }
}

/*
 * In a container the driver knows this process under the host's process id, so it appears as
 * `Process N`. It is the one that can hold what this allocator reserved: the smallest that is large
 * enough.
 */
static void find_self(struct mp_oom_message *m)
{
    if (m->this_process.known || !m->reserved.known || m->reserved.bytes == 0 ||
        m->n_processes == 0) {
        return;
    }
    const uint64_t tolerance = 12 * MP_MIB; /* three figures of two decimals in GiB */
    size_t self = m->n_processes;
    for (size_t i = 0; i < m->n_processes; i++) {
        if (m->processes[i].bytes + tolerance >= m->reserved.bytes &&
            (self == m->n_processes || m->processes[i].bytes < m->processes[self].bytes)) {
            self = i;
        }
    }
    if (self == m->n_processes) {
        return;
    }
    m->self_by_size = true;
    m->self_pid = m->processes[self].pid;
    m->this_process = (struct mp_oom_bytes){true, m->processes[self].bytes};
    for (size_t i = self + 1; i < m->n_processes; i++) {
        m->processes[i - 1] = m->processes[i];
    }
    m->n_processes--;
}

uint64_t mp_oom_message_others(const struct mp_oom_message *m)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n_processes; i++) {
        if (!mp_add_u64(sum, m->processes[i].bytes, &sum)) {
            return UINT64_MAX;
        }
    }
    return sum;
}

static void derive(struct mp_oom_message *m)
{
    uint64_t sum;
    if (m->allocated.known && m->unallocated.known &&
        mp_add_u64(m->allocated.bytes, m->unallocated.bytes, &sum)) {
        set(&m->reserved, sum);
    }
    if (m->allocated.known && m->reserved.known && m->reserved.bytes >= m->allocated.bytes) {
        set(&m->unallocated, m->reserved.bytes - m->allocated.bytes);
    }
    find_self(m);
    if (m->this_process.known && m->reserved.known) {
        /* "0 bytes" for the own process: the driver did not tell */
        if (m->this_process.bytes > 0) {
            set(&m->outside, m->this_process.bytes > m->reserved.bytes
                                 ? m->this_process.bytes - m->reserved.bytes
                                 : 0);
        }
        return;
    }
    if (m->capacity.known && m->free.known && m->reserved.known &&
        mp_add_u64(m->free.bytes, m->reserved.bytes, &sum) && sum <= m->capacity.bytes) {
        const uint64_t rest = m->capacity.bytes - sum, others = mp_oom_message_others(m);
        set(&m->outside, rest > others ? rest - others : 0);
        m->outside_is_everyone = true;
    }
}

/* NVIDIA cards under Linux print less than their nominal size; whole even numbers of GiB
 * (15.99, 16.00) are Windows' figures. */
static bool is_windows_capacity(uint64_t bytes)
{
    const uint64_t step = 2 * MP_GIB, slack = 16 * MP_MIB;
    return bytes <= 48 * MP_GIB && (bytes + slack) % step <= 2 * slack && bytes > slack;
}

static bool has(const struct mp_doctor_text *text, const char *words)
{
    return mp_doctor_find(text->plain, text->plain_len, words) != NULL;
}

/* "OOM" as a word of its own: the only sign in many reports. */
static void read_abbreviation(struct mp_oom_message *m, const struct mp_doctor_text *text)
{
    const char *const begin = text->plain, *const end = begin + text->plain_len;
    for (const char *at = begin; (at = mp_doctor_find(at, (size_t)(end - at), "oom")) != NULL;
         at += 3) {
        const bool begins = at == begin || !((at[-1] >= 'a' && at[-1] <= 'z') || at[-1] == '_');
        const char *behind = at + 3;
        behind += end - behind >= 1 && *behind == 's'; /* "it OOMs" */
        const bool ends = behind == end || !((*behind >= 'a' && *behind <= 'z') || *behind == '_');
        if (begins && ends) {
            m->format = MP_OOM_OTHER;
            m->line = mp_doctor_text_plain_line(text, (size_t)(at - begin));
            return;
        }
    }
}

void mp_oom_message_read(struct mp_oom_message *m, const struct mp_doctor_text *text)
{
    *m = (struct mp_oom_message){.format = MP_OOM_NONE};
    read_torch_messages(m, text);
    if (m->format == MP_OOM_NONE || m->n_found == 0) {
        read_headless(m, text);
    }
    read_marks(m, text);
    if (m->format == MP_OOM_NONE) {
        read_abbreviation(m, text);
    }
    if (m->format != MP_OOM_NONE) {
        m->seen |= UINT32_C(1) << m->format;
    }
    if (m->format != MP_OOM_NONE && !m->requested.known) {
        read_request_elsewhere(m, text);
    }
    refine_by_prelog(m, text);
    m->hip = mp_doctor_find(text->squeezed, text->squeezed_len, "hipoutofmemory") != NULL;
    m->windows = has(text, "c:\\") || has(text, "d:\\") || has(text, "e:\\") ||
                 has(text, "windows") || has(text, "wsl") || has(text, "\\site-packages\\") ||
                 (m->capacity.known && !m->hip && is_windows_capacity(m->capacity.bytes));
    derive(m);
}
