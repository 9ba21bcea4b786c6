/* SPDX-License-Identifier: MIT */
/* Both tables are read line by line from the plain text; a row that does not fit is passed over. */
#include "doctor/summary.h"

#include "base/units.h"

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static const char *skip_blanks(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '|')) {
        at++;
    }
    return at;
}

static const char *read_count(const char *at, const char *end, uint64_t *value)
{
    *value = 0;
    const char *const begin = at;
    while (at < end && is_digit(*at) && at - begin < 18) {
        *value = *value * 10 + (uint64_t)(*at++ - '0');
    }
    return at > begin ? at : NULL;
}

/* "1062 mb", "5893 mib", "0 b": a cell; at is moved behind it. */
static bool read_cell(const char **at, const char *end, struct mp_oom_bytes *out)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"kib", 10}, {"mib", 20}, {"gib", 30}, {"tib", 40}, {"kb", 10},
                 {"mb", 20},  {"gb", 30},  {"tb", 40},  {"b", 0}};
    uint64_t value;
    const char *p = skip_blanks(*at, end);
    p = read_count(p, end, &value);
    if (p == NULL) {
        return false;
    }
    p = skip_blanks(p, end);
    for (size_t i = 0; i < MP_ARRAY_LEN(units); i++) {
        const size_t n = strlen(units[i].name);
        if ((size_t)(end - p) >= n && memcmp(p, units[i].name, n) == 0) {
            if (mp_mul_u64(value, UINT64_C(1) << units[i].shift, &value)) {
                *out = (struct mp_oom_bytes){true, value};
            }
            *at = p + n;
            return true;
        }
    }
    return false;
}

static void read_row(const char *line, const char *end, const char *name,
                     struct mp_oom_bytes *current, struct mp_oom_bytes *peak)
{
    const char *at = mp_doctor_find(line, (size_t)(end - line), name);
    struct mp_oom_bytes first = {0}, second = {0};
    if (at == NULL) {
        return;
    }
    at += strlen(name);
    if (!read_cell(&at, end, &first) || !read_cell(&at, end, &second)) {
        return;
    }
    *current = first;
    if (peak != NULL) {
        *peak = second;
    }
}

static void read_counter(const char *line, const char *end, const char *name,
                         struct mp_oom_bytes *out)
{
    const char *at = mp_doctor_find(line, (size_t)(end - line), name);
    uint64_t value;
    if (at == NULL) {
        return;
    }
    at = skip_blanks(at + strlen(name), end);
    if (read_count(at, end, &value) != NULL) {
        *out = (struct mp_oom_bytes){true, value};
    }
}

void mp_doctor_summary_read(struct mp_doctor_summary *s, const struct mp_doctor_text *text)
{
    *s = (struct mp_doctor_summary){0};
    for (size_t i = 0; i < text->n_lines; i++) {
        const char *const line = text->plain + text->plain_line[i];
        const char *const end = text->plain + text->plain_line[i + 1];
        const size_t n = (size_t)(end - line);
        if (mp_doctor_find(line, n, "pytorch cuda memory summary") != NULL) {
            struct mp_oom_bytes device = {0};
            *s = (struct mp_doctor_summary){.found = true, .line = i};
            read_counter(line, end, "device id", &device);
            s->device = device.known && device.bytes < UINT32_MAX ? (uint32_t)device.bytes : 0;
            continue;
        }
        if (!s->found) {
            continue;
        }
        read_counter(line, end, "cuda ooms:", &s->ooms);
        read_counter(line, end, "cudamalloc retries:", &s->retries);
        read_row(line, end, "allocated memory ", &s->allocated, &s->allocated_peak);
        read_row(line, end, "requested memory ", &s->requested, &s->requested_peak);
        read_row(line, end, "gpu reserved memory ", &s->reserved, &s->reserved_peak);
        read_row(line, end, "non-releasable memory ", &s->non_releasable, NULL);
    }
}

/* "12799mib / 16280mib" */
static bool read_usage(const char *line, const char *end, uint64_t *used, uint64_t *total)
{
    const char *const slash = mp_doctor_find(line, (size_t)(end - line), "mib /");
    if (slash == NULL) {
        return false;
    }
    const char *begin = slash;
    while (begin > line && is_digit(begin[-1])) {
        begin--;
    }
    const char *p = skip_blanks(slash + strlen("mib /"), end);
    if (read_count(begin, slash, used) == NULL || read_count(p, end, total) == NULL ||
        *used > UINT64_C(1) << 40 || *total > UINT64_C(1) << 40) {
        return false;
    }
    *used *= MP_MIB;
    *total *= MP_MIB;
    return true;
}

/* "0 n/a n/a 2695173 c python 871mib": GPU and bytes of a process row. */
static bool read_process(const char *line, const char *end, uint64_t *gpu, uint64_t *bytes)
{
    const char *at = skip_blanks(line, end);
    at = read_count(at, end, gpu);
    if (at == NULL || at >= end || *at != ' ') {
        return false;
    }
    const char *const kind = mp_doctor_find(at, (size_t)(end - at), " c ");
    if (kind == NULL) {
        return false;
    }
    const char *const unit = mp_doctor_find(kind, (size_t)(end - kind), "mib");
    if (unit == NULL) {
        return false;
    }
    const char *begin = unit;
    while (begin > kind && is_digit(begin[-1])) {
        begin--;
    }
    if (read_count(begin, unit, bytes) == NULL || *bytes > UINT64_C(1) << 40) {
        return false;
    }
    *bytes *= MP_MIB;
    return true;
}

void mp_doctor_smi_read(struct mp_doctor_smi *smi, const struct mp_doctor_text *text)
{
    const uint64_t context_most =
        1400 *
        MP_MIB; /* largest bare context reported: 1227 MiB (Ampere, 2021), eager loading aside */
    *smi = (struct mp_doctor_smi){0};
    for (size_t i = 0; i < text->n_lines; i++) {
        const char *const line = text->plain + text->plain_line[i];
        const char *const end = text->plain + text->plain_line[i + 1];
        uint64_t a, b;
        bool used = false;
        if (read_usage(line, end, &a, &b)) {
            used = true;
            if (smi->n_gpus < MP_SMI_MAX_GPUS) {
                smi->gpus[smi->n_gpus].used_bytes = a;
                smi->gpus[smi->n_gpus++].total_bytes = b;
            }
        } else if (read_process(line, end, &a, &b)) {
            used = true;
            smi->n_processes++;
            if (a == 0 && b <= context_most) {
                smi->n_small_on_gpu0++;
                smi->small_bytes = b;
            }
        }
        if (used && !smi->found) {
            smi->found = true;
            smi->line = i;
        }
    }
}
