/* SPDX-License-Identifier: MIT */
/* `memplan nccl`: device memory of NCCL communicators, planned from a machine or read from a log. */
#include <ctype.h>
#include <inttypes.h>

#include "base/file.h"
#include "base/json.h"
#include "base/table.h"
#include "base/units.h"
#include "cli/cli.h"
#include "memory/nccl.h"

#define SCHEMA_VERSION 1
#define MAX_GROUPS 64

struct nccl_options {
    const char *gpu, *groups, *collectives, *algorithms, *version, *channels, *fabric, *log;
    int64_t nodes, gpus_per_node, net_gbit, peers;
    struct mp_option_list env;
    int nvls;
    bool json;
};

static const struct mp_option options[] = {
    {.name = "gpu", .argument = "NAME", .kind = MP_OPTION_STRING, .target = offsetof(struct nccl_options, gpu),
     .group = "Machine", .help = "card, as in 'memplan list gpus', a file or auto"},
    {.name = "nodes", .argument = "N", .kind = MP_OPTION_INT, .target = offsetof(struct nccl_options, nodes),
     .group = "Machine", .help = "nodes (default: 1)", .low = 1, .high = MP_NCCL_MAX_NODES},
    {.name = "gpus-per-node", .argument = "N", .kind = MP_OPTION_INT,
     .target = offsetof(struct nccl_options, gpus_per_node), .group = "Machine",
     .help = "GPUs of the job in each node (default: 8)", .low = 1, .high = MP_NCCL_MAX_RANKS_PER_NODE},
    {.name = "fabric", .argument = "KIND", .kind = MP_OPTION_STRING, .target = offsetof(struct nccl_options, fabric),
     .group = "Machine",
     .help = "wiring in a node (default: the card's); KIND:N has N NVLinks per GPU, direct and bridge per pair",
     .values = "nvswitch|nvlink-direct|nvlink-bridge|pcie"},
    {.name = "net-gbit", .argument = "N", .kind = MP_OPTION_INT, .target = offsetof(struct nccl_options, net_gbit),
     .group = "Machine", .help = "Gbit/s of each GPU's network card (default: 400, before Hopper 200)", .low = 1,
     .high = 100000},
    {.name = "nvls", .argument = "WHEN", .kind = MP_OPTION_CHOICE, .target = offsetof(struct nccl_options, nvls),
     .group = "Machine", .help = "multicast in the NVSwitch; auto is on from Hopper (default: auto)",
     .values = "auto|off|on"},
    {.name = "groups", .argument = "LIST", .kind = MP_OPTION_STRING, .target = offsetof(struct nccl_options, groups),
     .group = "Job",
     .help = "process groups NAME[:SIZE], outermost first, one without SIZE takes the rest; 'world' is all ranks; "
             "NAME:SIZE/N puts N ranks on a node (default: world)"},
    {.name = "collectives", .argument = "LIST", .kind = MP_OPTION_STRING,
     .target = offsetof(struct nccl_options, collectives), .group = "Job",
     .help = "calls made so far, of every group, or GROUP=CALL+CALL: allreduce, allgather, reducescatter, broadcast, "
             "reduce, sendrecv, alltoall, gather, scatter (default: none)"},
    {.name = "algorithms", .argument = "LIST", .kind = MP_OPTION_STRING,
     .target = offsetof(struct nccl_options, algorithms), .group = "Job",
     .help = "algorithms known to be in use, as in NCCL_ALGO; then LOW and HIGH only differ by rank"},
    {.name = "peers", .argument = "N", .kind = MP_OPTION_INT, .target = offsetof(struct nccl_options, peers),
     .group = "Job", .help = "peers of sendrecv, each way (default: 2)", .low = 1, .high = 1 << 24},
    {.name = "env", .argument = "NAME=VALUE", .kind = MP_OPTION_LIST, .target = offsetof(struct nccl_options, env),
     .group = "Library", .help = "an NCCL variable; may be repeated"},
    {.name = "nccl-version", .argument = "V", .kind = MP_OPTION_STRING,
     .target = offsetof(struct nccl_options, version), .group = "Library",
     .help = "2.18 to 2.30 (default: 2.28.9)"},
    {.name = "channels", .argument = "C,P,K[,N]", .kind = MP_OPTION_STRING,
     .target = offsetof(struct nccl_options, channels), .group = "Library",
     .help = "collective, p2p, p2p per peer and NVLS channels, when known"},
    {.name = "log", .argument = "FILE", .kind = MP_OPTION_STRING, .target = offsetof(struct nccl_options, log),
     .group = "Input", .help = "output of NCCL_DEBUG=INFO: predict from what the job really chose"},
    {.name = "json", .kind = MP_OPTION_FLAG, .target = offsetof(struct nccl_options, json), .group = "Output",
     .help = "print JSON"},
};

const struct mp_command mp_command_nccl = {
    .name = "nccl",
    .sentence = "predict the device memory of NCCL communicators",
    .options = options,
    .n_options = MP_ARRAY_LEN(options),
    .examples = {"memplan nccl --gpu H200-141G --groups dp,tp:2 --collectives allreduce",
                 "memplan nccl --log nccl.log"},
};

/* A group with its answer. */
struct group {
    const char *name;
    struct mp_nccl_job job;
    struct mp_nccl_result result;
    uint64_t size;
    uint64_t stride;  /* distance of its ranks in the world */
    bool mesh;        /* one of the dimensions, not an extra group */
    uint64_t log_nvls_bytes;
};

struct report {
    struct mp_arena arena;
    struct mp_nccl_job base;
    const char *gpu;    /* NULL: from a log without --gpu */
    const char *source; /* of the log's process, or NULL */
    struct group groups[MAX_GROUPS];
    size_t n_groups, n_left_out;
    uint64_t process_bytes, low_bytes, high_bytes;
};

/* ---- the machine ---- */

static enum memplan_status read_fabric(const char *text, struct mp_nccl_job *job, struct memplan_error *err)
{
    char name[32];
    const size_t n = strcspn(text, ":");
    (void)snprintf(name, sizeof name, "%.*s", (int)MP_MIN(n, sizeof name - 1), text);
    enum memplan_status status = mp_nccl_fabric_parse(name, &job->fabric, err);
    if (status == MEMPLAN_STATUS_OK && text[n] == ':') {
        int64_t links = 0;
        status = mp_integer_parse(text + n + 1, false, &links, err);
        if (status == MEMPLAN_STATUS_OK && (links < 1 || links > 64))
            status = mp_error_set(err, MEMPLAN_STATUS_RANGE, "%" PRId64 " NVLinks: 1 to 64 are possible", links);
        if (status == MEMPLAN_STATUS_OK)
            job->nvlinks = (uint32_t)links;
    } else if (status == MEMPLAN_STATUS_OK && job->nvlinks == 0 && job->fabric != MP_NCCL_FABRIC_PCIE) {
        status = mp_error_set(err, MEMPLAN_STATUS_INPUT, "this card has no NVLinks of its own; write %s:N with their "
                              "number", name);
    }
    if (status != MEMPLAN_STATUS_OK)
        mp_error_prefix(err, "--fabric");
    return status;
}

static enum memplan_status read_channels(const char *text, struct mp_nccl_job *job, struct memplan_error *err)
{
    int64_t numbers[4] = {0, 0, 0, 0};
    size_t n = 0;
    for (const char *at = text;; at++) {
        char word[24];
        const size_t length = strcspn(at, ",");
        (void)snprintf(word, sizeof word, "%.*s", (int)MP_MIN(length, sizeof word - 1), at);
        if (n == 4 || mp_integer_parse(word, false, &numbers[n], NULL) != MEMPLAN_STATUS_OK || numbers[n] < 0 ||
            numbers[n] > MP_NCCL_MAX_CHANNELS)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                "--channels: '%.60s': write collective, p2p, p2p per peer and NVLS channels, like "
                                "24,32,32,16",
                                text);
        n++;
        at += length;
        if (*at == '\0')
            break;
    }
    if (n < 3)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--channels: '%.60s': at least three numbers, like 24,32,32",
                            text);
    job->channels_given = true;
    job->channels = (struct mp_nccl_channels){.coll = (uint32_t)numbers[0], .p2p = (uint32_t)numbers[1],
                                              .p2p_per_peer = (uint32_t)numbers[2], .nvls = (uint32_t)numbers[3]};
    return MEMPLAN_STATUS_OK;
}

/* The words of NCCL_ALGO, without its entries per collective. */
static enum memplan_status read_algorithms(const char *list, struct mp_nccl_job *job, struct memplan_error *err)
{
    struct mp_nccl_env env = {0};
    char assignment[128];
    (void)snprintf(assignment, sizeof assignment, "NCCL_ALGO=%.100s", list);
    const enum memplan_status status = mp_nccl_env_set(&env, assignment, err);
    if (status != MEMPLAN_STATUS_OK)
        mp_error_prefix(err, "--algorithms");
    job->algorithms = env.algorithms[MP_NCCL_ALLREDUCE];
    return status;
}

static enum memplan_status set_env(struct mp_nccl_env *env, const char *assignment, struct memplan_error *err)
{
    const enum memplan_status status = mp_nccl_env_set(env, assignment, err);
    if (status != MEMPLAN_STATUS_OK)
        mp_error_prefix(err, "--env");
    return status;
}

static enum memplan_status read_machine(const struct nccl_options *o, struct report *report, struct memplan_error *err)
{
    struct mp_nccl_job *job = &report->base;
    const uint32_t nodes = (uint32_t)o->nodes, per_node = (uint32_t)o->gpus_per_node;
    if (o->gpu != NULL) {
        const struct mp_gpu *gpu = mp_gpu_read(&report->arena, o->gpu, err);
        if (gpu == NULL)
            return err->status;
        report->gpu = gpu->name;
        mp_nccl_job_init(job, gpu->name, gpu->compute_capability, nodes, per_node);
    } else if (o->log != NULL) {
        mp_nccl_job_init(job, "H100-80G", 90, nodes, per_node); /* only the order of GPUs in a node depends on it */
    } else {
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "which card? give --gpu NAME, or --log FILE");
    }
    enum memplan_status status = MEMPLAN_STATUS_OK;
    if (o->fabric != NULL)
        status = read_fabric(o->fabric, job, err);
    if (status == MEMPLAN_STATUS_OK && o->channels != NULL)
        status = read_channels(o->channels, job, err);
    if (status == MEMPLAN_STATUS_OK && o->version != NULL)
        status = mp_nccl_version_parse(o->version, &job->version, err);
    for (size_t i = 0; i < o->env.n && status == MEMPLAN_STATUS_OK; i++)
        status = set_env(&job->env, o->env.items[i], err);
    if (status == MEMPLAN_STATUS_OK && o->algorithms != NULL)
        status = read_algorithms(o->algorithms, job, err);
    if (o->net_gbit != 0)
        job->net_gbit = (uint32_t)o->net_gbit;
    job->nvls = o->nvls == 0 ? MP_NCCL_DEFAULT : o->nvls == 1 ? MP_NCCL_OFF : MP_NCCL_ON;
    job->sendrecv_peers = (uint32_t)o->peers;
    return status;
}

/* ---- groups ---- */

static bool name_char(char c)
{
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

/* "tp:8" or "pp:4/1" or "dp". per_node 0: not said. */
static enum memplan_status read_group(struct report *report, const char *item, size_t length, uint64_t *per_node,
                                      struct memplan_error *err)
{
    size_t n = 0;
    while (n < length && name_char(item[n]))
        n++;
    const char *rest = mp_arena_strndup(&report->arena, item + n, length - n);
    struct group *g = &report->groups[report->n_groups];
    *g = (struct group){.name = mp_arena_strndup(&report->arena, item, n), .job = report->base, .mesh = true};
    if (rest == NULL || g->name == NULL)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    *per_node = 0;
    bool good = n > 0;
    if (good && rest[0] == ':') {
        char *end;
        good = isdigit((unsigned char)rest[1]);
        g->size = strtoull(rest + 1, &end, 10);
        if (good && *end == '/') {
            good = isdigit((unsigned char)end[1]);
            *per_node = strtoull(end + 1, &end, 10);
            good = good && *per_node > 0;
        }
        good = good && *end == '\0' && g->size > 0 && g->size <= (UINT64_C(1) << 24);
    } else if (rest[0] != '\0') {
        good = false;
    }
    if (!good)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "--groups: '%.*s' is no NAME, NAME:SIZE or NAME:SIZE/RANKS_PER_NODE",
                            (int)MP_MIN(length, (size_t)60), item);
    for (size_t i = 0; i < report->n_groups; i++)
        if (strcmp(report->groups[i].name, g->name) == 0)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--groups: '%s' stands there twice", g->name);
    return MEMPLAN_STATUS_OK;
}

/* A group that says itself how its ranks lie. */
static enum memplan_status place_extra(struct group *g, uint64_t per_node, const struct mp_nccl_job *base,
                                       struct memplan_error *err)
{
    g->mesh = false;
    g->stride = 0;
    if (per_node > base->ranks_per_node || g->size % per_node != 0 || g->size / per_node > base->nodes)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "--groups: '%s': %" PRIu64 " ranks with %" PRIu64 " on a node do not fit %u nodes of %u",
                            g->name, g->size, per_node, base->nodes, base->ranks_per_node);
    g->job.nodes = (uint32_t)(g->size / per_node);
    g->job.ranks_per_node = (uint32_t)per_node;
    return MEMPLAN_STATUS_OK;
}

/* How many ranks of a mesh dimension share a node, from their distance. */
static enum memplan_status place_dimension(struct group *g, const struct mp_nccl_job *base, struct memplan_error *err)
{
    const uint64_t on_node = base->ranks_per_node;
    uint64_t per_node = 0;
    if (g->stride % on_node == 0 || g->size == 1)
        per_node = 1;
    else if (g->stride < on_node && on_node % g->stride == 0 &&
             ((on_node / g->stride) % g->size == 0 || g->size % (on_node / g->stride) == 0))
        per_node = MP_MIN(g->size, on_node / g->stride);
    if (per_node == 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "--groups: '%s': %" PRIu64 " ranks at distance %" PRIu64 " do not spread evenly over nodes "
                            "of %u; write %s:%" PRIu64 "/RANKS_PER_NODE",
                            g->name, g->size, g->stride, base->ranks_per_node, g->name, g->size);
    g->job.nodes = (uint32_t)(g->size / per_node);
    g->job.ranks_per_node = (uint32_t)per_node;
    return MEMPLAN_STATUS_OK;
}

/* Sizes and distances of the mesh, the innermost dimension last: as in a device mesh. */
static enum memplan_status lay_out_mesh(struct report *report, struct memplan_error *err)
{
    const uint64_t world = (uint64_t)report->base.nodes * report->base.ranks_per_node;
    uint64_t product = 1;
    struct group *rest = NULL;
    for (size_t i = 0; i < report->n_groups; i++) {
        struct group *g = &report->groups[i];
        if (!g->mesh)
            continue;
        if (g->size == 0 && rest != NULL)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                "--groups: '%s' and '%s' both take the rest; give one of them a size", rest->name,
                                g->name);
        if (g->size == 0)
            rest = g;
        else if (!mp_mul_u64(product, g->size, &product))
            return mp_error_set(err, MEMPLAN_STATUS_RANGE, "--groups: sizes are too large");
    }
    if (world % product != 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "--groups: sizes multiply to %" PRIu64 ", which does not divide the %" PRIu64 " ranks",
                            product, world);
    if (rest != NULL)
        rest->size = world / product;
    uint64_t stride = 1;
    for (size_t i = report->n_groups; i-- > 0;) {
        struct group *g = &report->groups[i];
        if (!g->mesh)
            continue;
        g->stride = stride;
        stride *= g->size;
        const enum memplan_status status = place_dimension(g, &report->base, err);
        if (status != MEMPLAN_STATUS_OK)
            return status;
    }
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status read_groups(const char *list, struct report *report, struct memplan_error *err)
{
    for (const char *at = list;; at++) {
        const size_t length = strcspn(at, ",");
        uint64_t per_node = 0;
        if (report->n_groups == MAX_GROUPS)
            return mp_error_set(err, MEMPLAN_STATUS_RANGE, "--groups: more than %d", MAX_GROUPS);
        enum memplan_status status = read_group(report, at, length, &per_node, err);
        struct group *g = &report->groups[report->n_groups];
        if (status == MEMPLAN_STATUS_OK && per_node != 0) {
            status = place_extra(g, per_node, &report->base, err);
        } else if (status == MEMPLAN_STATUS_OK && strcmp(g->name, "world") == 0 && g->size == 0) {
            g->mesh = false;
            g->size = (uint64_t)report->base.nodes * report->base.ranks_per_node;
            g->stride = 1;
        }
        if (status != MEMPLAN_STATUS_OK)
            return status;
        report->n_groups++;
        at += length;
        if (*at == '\0')
            break;
    }
    return lay_out_mesh(report, err);
}

/* ---- collectives ---- */

static enum memplan_status read_calls(const char *text, size_t length, uint32_t *calls, struct memplan_error *err)
{
    for (size_t at = 0; at <= length;) {
        char word[48];
        size_t n = 0;
        while (at + n < length && text[at + n] != '+')
            n++;
        (void)snprintf(word, sizeof word, "%.*s", (int)MP_MIN(n, sizeof word - 1), text + at);
        enum mp_nccl_collective call;
        const enum memplan_status status = mp_nccl_collective_parse(word, &call, err);
        if (status != MEMPLAN_STATUS_OK) {
            mp_error_prefix(err, "--collectives");
            return status;
        }
        *calls |= MP_NCCL_BIT(call);
        at += n + 1;
    }
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status read_collectives(const char *list, struct report *report, struct memplan_error *err)
{
    for (const char *at = list;; at++) {
        const size_t length = strcspn(at, ",");
        const char *equals = memchr(at, '=', length);
        const size_t skip = equals != NULL ? (size_t)(equals - at) + 1 : 0;
        uint32_t calls = 0;
        const enum memplan_status status = read_calls(at + skip, length - skip, &calls, err);
        if (status != MEMPLAN_STATUS_OK)
            return status;
        bool any = false;
        for (size_t i = 0; i < report->n_groups; i++) {
            struct group *g = &report->groups[i];
            if (equals != NULL && !(strlen(g->name) == skip - 1 && strncmp(g->name, at, skip - 1) == 0))
                continue;
            g->job.collectives |= calls;
            any = true;
        }
        if (!any)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT, "--collectives: '%.*s' is no group of --groups",
                                (int)MP_MIN(skip - 1, (size_t)60), at);
        at += length;
        if (*at == '\0')
            return MEMPLAN_STATUS_OK;
    }
}

/* With NCCL_COMM_SPLIT_SHARE_RESOURCES=1 groups are splits of the one that has all ranks, if there is one. */
static void share_resources(struct report *report)
{
    const uint64_t world = (uint64_t)report->base.nodes * report->base.ranks_per_node;
    const struct group *parent = NULL;
    if (report->base.env.split_share != MP_NCCL_ON || report->base.channels_given)
        return;
    for (size_t i = 0; i < report->n_groups && parent == NULL; i++)
        if (report->groups[i].size == world)
            parent = &report->groups[i];
    if (parent == NULL) {
        mp_cli_warn("nccl", "NCCL_COMM_SPLIT_SHARE_RESOURCES=1 shares nothing: no group has all ranks; add 'world'");
        return;
    }
    for (size_t i = 0; i < report->n_groups; i++) {
        struct group *g = &report->groups[i];
        if (g == parent || g->stride == 0)
            continue;
        g->job.parent = &parent->job;
        g->job.parent_stride = (uint32_t)g->stride;
    }
}

static enum memplan_status plan_groups(const struct nccl_options *o, struct report *report, struct memplan_error *err)
{
    enum memplan_status status = read_groups(o->groups != NULL ? o->groups : "world", report, err);
    if (status == MEMPLAN_STATUS_OK && o->collectives != NULL)
        status = read_collectives(o->collectives, report, err);
    if (status == MEMPLAN_STATUS_OK)
        share_resources(report);
    return status;
}

/* ---- a log ---- */

static enum memplan_status read_log(const struct nccl_options *o, struct report *report, struct memplan_error *err)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct mp_nccl_log log;
    if (o->groups != NULL || o->collectives != NULL || o->channels != NULL || o->algorithms != NULL)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "--log: groups, collectives, algorithms and channels come from the log; leave those options "
                            "out");
    enum memplan_status status = mp_file_read(o->log, 0, &text, err);
    if (status == MEMPLAN_STATUS_IO)
        status = err->status = MEMPLAN_STATUS_INPUT; /* the user named it */
    if (status == MEMPLAN_STATUS_OK)
        status = mp_nccl_log_parse(&report->arena, o->log, mp_strbuf_text(&text), text.len, &report->base, &log, err);
    mp_strbuf_release(&text);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    if (!log.version_found)
        mp_cli_warn("nccl", "the log does not say which NCCL; set NCCL_DEBUG=VERSION too, or give --nccl-version");
    else if (o->version != NULL && report->base.version != log.version)
        mp_cli_warn("nccl", "--nccl-version is not the version of the log, which counts");
    report->base.version = log.version;
    report->source = log.process;
    for (size_t i = 0; i < log.n_comms; i++) {
        if (report->n_groups == MAX_GROUPS) {
            report->n_left_out = log.n_comms - MAX_GROUPS;
            return mp_error_set(err, MEMPLAN_STATUS_RANGE, "%s: %zu communicators in one process, %d can be shown",
                                o->log, log.n_comms, MAX_GROUPS);
        }
        struct group *g = &report->groups[report->n_groups++];
        *g = (struct group){.name = mp_arena_printf(&report->arena, "comm%zu", i),
                            .job = log.comms[i].job,
                            .size = log.comms[i].ranks,
                            .log_nvls_bytes = log.comms[i].nvls_bytes};
        if (g->name == NULL)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    }
    return MEMPLAN_STATUS_OK;
}

/* ---- the answer ---- */

static enum memplan_status predict_all(struct report *report, struct memplan_error *err)
{
    uint32_t calls = 0;
    for (size_t i = 0; i < report->n_groups; i++) {
        struct group *g = &report->groups[i];
        const enum memplan_status status = mp_nccl_predict(&g->job, &g->result, err);
        if (status != MEMPLAN_STATUS_OK)
            return status;
        calls |= g->job.collectives | (g->job.algorithms != 0 ? MP_NCCL_BIT(MP_NCCL_ALLREDUCE) : 0);
        report->low_bytes += g->result.low_bytes;
        report->high_bytes += g->result.high_bytes;
    }
    report->process_bytes = mp_nccl_process_bytes(calls);
    report->low_bytes += report->process_bytes;
    report->high_bytes += report->process_bytes;
    return MEMPLAN_STATUS_OK;
}

static void write_json(const struct report *report, struct mp_strbuf *out)
{
    struct mp_json_writer w;
    mp_json_init(&w, out, 2);
    mp_json_object(&w, NULL);
    mp_json_uint(&w, "schema_version", SCHEMA_VERSION);
    mp_json_array(&w, "groups");
    for (size_t i = 0; i < report->n_groups; i++) {
        const struct group *g = &report->groups[i];
        const struct mp_nccl_result *r = &g->result;
        mp_json_object(&w, NULL);
        mp_json_string(&w, "name", g->name);
        mp_json_uint(&w, "ranks", r->ranks);
        mp_json_object(&w, "channels");
        mp_json_uint(&w, "collective", r->channels.coll);
        mp_json_uint(&w, "nvls", r->channels.nvls);
        mp_json_uint(&w, "p2p", r->channels.p2p);
        mp_json_uint(&w, "p2p_per_peer", r->channels.p2p_per_peer);
        mp_json_end_object(&w);
        mp_json_uint(&w, "init_bytes", r->init_bytes);
        mp_json_uint(&w, "after_use_low_bytes", r->low_bytes);
        mp_json_uint(&w, "after_use_high_bytes", r->high_bytes);
        mp_json_array(&w, "parts");
        for (int p = 0; p < MP_NCCL_PARTS; p++) {
            mp_json_object(&w, NULL);
            mp_json_string(&w, "name", mp_nccl_part_text((enum mp_nccl_part_id)p));
            mp_json_uint(&w, "init_bytes", r->parts[p].init_bytes);
            mp_json_uint(&w, "low_bytes", r->parts[p].low_bytes);
            mp_json_uint(&w, "high_bytes", r->parts[p].high_bytes);
            mp_json_end_object(&w);
        }
        mp_json_end_array(&w);
        mp_json_end_object(&w);
    }
    mp_json_end_array(&w);
    mp_json_uint(&w, "process_bytes", report->process_bytes);
    mp_json_uint(&w, "rank_bytes", report->high_bytes);
    mp_json_end_object(&w);
    mp_strbuf_addch(out, '\n');
}

static void bytes_cell(struct mp_table *table, uint64_t bytes)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    if (bytes == 0)
        mp_strbuf_addstr(&text, "0");
    else
        mp_bytes_format(&text, bytes);
    mp_table_cell(table, "%s", mp_strbuf_text(&text));
    mp_strbuf_release(&text);
}

static void write_head(const struct report *report, struct mp_strbuf *out)
{
    mp_strbuf_addf(out, "NCCL %d.%d.%d", report->base.version / 10000, report->base.version / 100 % 100,
                   report->base.version % 100);
    if (report->source != NULL)
        mp_strbuf_addf(out, " as logged by %s\n\n", report->source);
    else
        mp_strbuf_addf(out, " on %u x %u %s\n\n", report->base.nodes, report->base.ranks_per_node, report->gpu);
}

static void ranks_cell(struct mp_table *table, const struct group *g)
{
    mp_table_cell(table, "%u", g->result.ranks);
    mp_table_cell(table, "%u x %u", g->job.nodes, g->job.ranks_per_node);
}

static bool write_groups(const struct report *report, struct mp_strbuf *out)
{
    static const char *const titles[] = {"GROUP", "RANKS", "NODES",   "COLL", "NVLS",
                                         "P2P",   "PEER",  "AT INIT", "LOW",  "HIGH"};
    struct mp_table *const table = mp_table_new("lrlrrrrrrr");
    if (table == NULL)
        return false;
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    for (size_t i = 0; i < report->n_groups; i++) {
        const struct group *g = &report->groups[i];
        mp_table_cell(table, "%s", g->name);
        ranks_cell(table, g);
        mp_table_cell(table, "%u", g->result.channels.coll);
        mp_table_cell(table, "%u", g->result.channels.nvls);
        mp_table_cell(table, "%u", g->result.channels.p2p);
        mp_table_cell(table, "%u", g->result.channels.p2p_per_peer);
        bytes_cell(table, g->result.init_bytes);
        bytes_cell(table, g->result.low_bytes);
        bytes_cell(table, g->result.high_bytes);
    }
    mp_table_write(table, out, 0);
    mp_table_free(table);
    return true;
}

static bool write_parts(const struct report *report, struct mp_strbuf *out)
{
    struct mp_table *const table = mp_table_new("llrrr");
    if (table == NULL)
        return false;
    static const char *const titles[] = {"GROUP", "PART", "AT INIT", "LOW", "HIGH"};
    for (size_t i = 0; i < MP_ARRAY_LEN(titles); i++)
        mp_table_cell(table, "%s", titles[i]);
    for (size_t i = 0; i < report->n_groups; i++)
        for (int p = 0; p < MP_NCCL_PARTS; p++) {
            const struct mp_nccl_part part = report->groups[i].result.parts[p];
            if (part.init_bytes == 0 && part.low_bytes == 0 && part.high_bytes == 0)
                continue;
            mp_table_cell(table, "%s", report->groups[i].name);
            mp_table_cell(table, "%s", mp_nccl_part_text((enum mp_nccl_part_id)p));
            bytes_cell(table, part.init_bytes);
            bytes_cell(table, part.low_bytes);
            bytes_cell(table, part.high_bytes);
        }
    uint64_t init = mp_nccl_process_bytes(0);
    for (size_t i = 0; i < report->n_groups; i++)
        init += report->groups[i].result.init_bytes;
    mp_table_cell(table, "once");
    mp_table_cell(table, "loaded kernels (as on H200)");
    bytes_cell(table, mp_nccl_process_bytes(0));
    bytes_cell(table, report->process_bytes);
    bytes_cell(table, report->process_bytes);
    mp_table_rule(table);
    mp_table_cell(table, "rank");
    mp_table_cell(table, "%s", "");
    bytes_cell(table, init);
    bytes_cell(table, report->low_bytes);
    bytes_cell(table, report->high_bytes);
    mp_table_write(table, out, 0);
    mp_table_free(table);
    return true;
}

static void write_notes(const struct report *report, struct mp_strbuf *out)
{
    uint64_t host = 0;
    for (size_t i = 0; i < report->n_groups; i++) {
        const struct group *g = &report->groups[i];
        host += g->result.host_bytes;
        if (g->log_nvls_bytes != 0 && g->log_nvls_bytes != g->result.parts[MP_NCCL_PART_NVLS_BUFFERS].high_bytes)
            mp_strbuf_addf(out, "\n%s: the log says %" PRIu64 " bytes of NVLS buffers\n", g->name, g->log_nvls_bytes);
    }
    mp_strbuf_addstr(out, "\nPinned host memory beside it: ");
    mp_bytes_format(out, host);
    mp_strbuf_addstr(out, report->source != NULL
                              ? "\nLOW and HIGH differ where the log does not tell peer access from host memory\n"
                              : "\nLOW is the smallest rank with the algorithms that cost least, HIGH the largest rank "
                                "with all that\nthe tuner may pick\n");
}

static enum memplan_status answer(const struct nccl_options *o, struct report *report, struct mp_strbuf *out,
                                  struct memplan_error *err)
{
    enum memplan_status status = read_machine(o, report, err);
    if (status == MEMPLAN_STATUS_OK)
        status = o->log != NULL ? read_log(o, report, err) : plan_groups(o, report, err);
    if (status == MEMPLAN_STATUS_OK)
        status = predict_all(report, err);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    bool written = true;
    if (o->json) {
        write_json(report, out);
    } else {
        write_head(report, out);
        written = write_groups(report, out);
        mp_strbuf_addch(out, '\n');
        written = written && write_parts(report, out);
        write_notes(report, out);
    }
    if (!written || out->failed)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory");
    return MEMPLAN_STATUS_OK;
}

int mp_cmd_nccl(int argc, char **argv)
{
    struct nccl_options o = {.nodes = 1, .gpus_per_node = 8};
    struct mp_operands operands = {0};
    int exit_status = MP_EXIT_YES;
    if (mp_options_parse(&mp_command_nccl, argc, argv, &o, NULL, &operands, &exit_status) == MP_OPTIONS_DONE)
        return exit_status;
    struct memplan_error err = {0};
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct report *const report = mp_malloc(sizeof *report);
    enum memplan_status status = MEMPLAN_STATUS_NOMEM;
    if (report == NULL) {
        (void)mp_error_set(&err, MEMPLAN_STATUS_NOMEM, "out of memory");
    } else {
        *report = (struct report){.n_groups = 0};
        mp_arena_init(&report->arena);
        status = answer(&o, report, &out, &err);
        mp_arena_release(&report->arena);
        free(report);
    }
    if (status == MEMPLAN_STATUS_OK)
        (void)fputs(mp_strbuf_text(&out), stdout);
    mp_strbuf_release(&out);
    return status == MEMPLAN_STATUS_OK ? MP_EXIT_YES : mp_cli_fail("nccl", &err);
}
