/* SPDX-License-Identifier: MIT */
/* A job's words: collectives, algorithms, parts, fabrics and versions by name, and what a card's name says of its wiring. */
#include <ctype.h>
#include <strings.h>

#include "base/units.h"
#include "memory/nccl.h"

const char *mp_nccl_collective_text(enum mp_nccl_collective collective)
{
    static const char *const texts[] = {
#define X(name, text) text,
        MP_NCCL_COLLECTIVE_MAP(X)
#undef X
    };
    return texts[collective];
}

const char *mp_nccl_algorithm_text(enum mp_nccl_algorithm algorithm)
{
    static const char *const texts[] = {
#define X(name, text) text,
        MP_NCCL_ALGORITHM_MAP(X)
#undef X
    };
    return texts[algorithm];
}

const char *mp_nccl_part_text(enum mp_nccl_part_id part)
{
    static const char *const texts[] = {
#define X(name, text) text,
        MP_NCCL_PART_MAP(X)
#undef X
    };
    return texts[part];
}

static const char *const fabric_texts[] = {
#define X(name, text) text,
    MP_NCCL_FABRIC_MAP(X)
#undef X
};

const char *mp_nccl_fabric_text(enum mp_nccl_fabric fabric)
{
    return fabric_texts[fabric];
}

enum memplan_status mp_nccl_fabric_parse(const char *text, enum mp_nccl_fabric *fabric,
                                         struct memplan_error *err)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(fabric_texts); i++)
        if (strcmp(text, fabric_texts[i]) == 0) {
            *fabric = (enum mp_nccl_fabric)i;
            return MEMPLAN_STATUS_OK;
        }
    return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                        "'%s' is no fabric; nvswitch, nvlink-direct, nvlink-bridge and pcie are known", text);
}

enum memplan_status mp_nccl_collective_parse(const char *text, enum mp_nccl_collective *collective,
                                             struct memplan_error *err)
{
    char plain[32]; /* "All_Reduce" -> "allreduce" */
    size_t n = 0;
    for (const char *p = text; *p != '\0' && n + 1 < sizeof plain; p++)
        if (*p != '_' && *p != '-')
            plain[n++] = (char)tolower((unsigned char)*p);
    plain[n] = '\0';
    const char *texts[MP_NCCL_COLLECTIVES];
    for (int i = 0; i < MP_NCCL_COLLECTIVES; i++) {
        texts[i] = mp_nccl_collective_text((enum mp_nccl_collective)i);
        if (strcmp(plain, texts[i]) == 0) {
            *collective = (enum mp_nccl_collective)i;
            return MEMPLAN_STATUS_OK;
        }
    }
    const char *closest = mp_closest(plain, texts, MP_NCCL_COLLECTIVES);
    if (closest != NULL)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%.40s' is no collective; did you mean '%s'?", text,
                            closest);
    return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                        "'%.40s' is no collective; allreduce, allgather, reducescatter, broadcast, reduce, "
                        "sendrecv, alltoall, gather and scatter are known",
                        text);
}

enum memplan_status mp_nccl_version_parse(const char *text, int *version, struct memplan_error *err)
{
    unsigned part[3] = {0, 0, 0};
    size_t n = 0;
    const char *p = text;
    for (;;) {
        char *end;
        const unsigned long value = strtoul(p, &end, 10);
        if (end == p || !isdigit((unsigned char)*p) || value > 99999 || n == MP_ARRAY_LEN(part))
            return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%s' is no NCCL version; write it like 2.28.9", text);
        part[n++] = (unsigned)value;
        p = end;
        if (*p != '.')
            break;
        p++;
    }
    /* "2.28.9+cuda13.0" in logs */
    if (*p != '\0' && *p != '+')
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%s' is no NCCL version; write it like 2.28.9", text);
    const unsigned code = n == 1 ? part[0] : part[0] * 10000 + part[1] * 100 + part[2];
    if (part[1] > 99 || part[2] > 99 || code < MP_NCCL_VERSION_OLDEST || code > MP_NCCL_VERSION_NEWEST)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "NCCL version '%s': 2.18 to 2.30 are known", text);
    *version = (int)code;
    return MEMPLAN_STATUS_OK;
}

/* ---- cards ---- */

static bool contains(const char *text, const char *word)
{
    for (const size_t n = strlen(word); *text != '\0'; text++)
        if (strncasecmp(text, word, n) == 0)
            return true;
    return false;
}

/* The wiring in which a card is usually sold; a job may say otherwise. */
static void wire_card(struct mp_nccl_job *job, const char *gpu, int compute_capability)
{
    const bool pcie = contains(gpu, "PCIE");
    job->fabric = MP_NCCL_FABRIC_PCIE;
    job->nvlinks = 0;
    if (contains(gpu, "H100-NVL") || contains(gpu, "H200-NVL")) {
        job->fabric = MP_NCCL_FABRIC_BRIDGE;
        job->nvlinks = 12;
    } else if (pcie) {
        return;
    } else if (contains(gpu, "A100") || contains(gpu, "A800")) {
        job->fabric = MP_NCCL_FABRIC_NVSWITCH;
        job->nvlinks = 12;
    } else if (compute_capability == 90 || compute_capability == 100 || compute_capability == 103) {
        job->fabric = MP_NCCL_FABRIC_NVSWITCH;
        job->nvlinks = 18;
    } else if (contains(gpu, "V100")) {
        job->fabric = MP_NCCL_FABRIC_NVSWITCH;
        job->nvlinks = 6;
    }
}

static bool geforce(const char *gpu)
{
    static const char *const words[] = {"RTX-20", "RTX-30", "RTX-40", "RTX-50", "RTX20", "RTX30", "RTX40",
                                        "RTX50",  "GTX",    "TITAN",  "GeForce"};
    /* RTX 5000 and RTX 4000 Ada are workstation cards: four digits ending in 000 */
    if (contains(gpu, "000"))
        return false;
    for (size_t i = 0; i < MP_ARRAY_LEN(words); i++)
        if (contains(gpu, words[i]))
            return true;
    return false;
}

void mp_nccl_job_init(struct mp_nccl_job *job, const char *gpu, int compute_capability, uint32_t nodes,
                      uint32_t ranks_per_node)
{
    *job = (struct mp_nccl_job){.version = MP_NCCL_VERSION_DEFAULT,
                                .compute_capability = compute_capability,
                                .nodes = nodes,
                                .ranks_per_node = ranks_per_node,
                                .net_gbit = compute_capability >= 90 ? 400 : 200,
                                .consumer = geforce(gpu),
                                .grace = strncasecmp(gpu, "GB", 2) == 0 || strncasecmp(gpu, "GH", 2) == 0,
                                .parent_stride = 1};
    wire_card(job, gpu, compute_capability);
}
