/* SPDX-License-Identifier: MIT */
/*
 * What NCCL_DEBUG=INFO prints, as jobs to predict.
 *
 *     host:4015:4066 [0] NCCL INFO comm 0x8ec0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
 *     host:4015:4066 [0] NCCL INFO 16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer
 *     host:4015:4066 [0] NCCL INFO Channel 00/0 : 9[1] -> 0[0] [receive] via NET/IB/0/GDRDMA
 *     host:4015:4066 [0] NCCL INFO Connected all rings, use ring PXN 0 GDR 1
 *
 * Lines about connections do not name their communicator: they belong to the one their thread spoke of last or, at
 * run time, to the newest one of their process in which the rank fits. All ranks usually write into one file; the
 * process with most communicators is the one that is read out.
 */
#include <ctype.h>

#include "memory/nccl.h"

#define BUCKETS 4096
#define MAX_COMMS 65536
#define MAX_RANKS (1u << 20)

struct comm {
    struct comm *older; /* of the process */
    struct mp_nccl_log_comm out;
    char handle[32]; /* "0x8ec0" */
    uint32_t nodes, local_ranks;
    bool channels_seen, p2p, shm, net_local, net, gdr, ipc, read_mode;
    uint64_t chunk_bytes;
    uint8_t *peers; /* bit per rank, two planes: sent to, received from */
    uint32_t n_sent, n_received;
};

struct process {
    struct process *chain, *next; /* in the bucket; in order of appearance */
    const char *name;
    struct comm *newest;
    size_t n_comms;
};

struct reader {
    struct mp_arena *arena;
    const struct mp_nccl_job *base;
    struct process *buckets[BUCKETS], *first, *last;
    size_t n_processes, n_comms;
    struct mp_nccl_env env;
    bool version_found, info_found;
    int version;
    bool out_of_memory;
};

/* ---- scanning ---- */

/* The text after `word` if it begins with it, else NULL. */
static const char *after(const char *text, const char *word)
{
    const size_t n = strlen(word);
    return strncmp(text, word, n) == 0 ? text + n : NULL;
}

/* The text after the first `word` anywhere in it, else NULL. */
static const char *find_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    return at != NULL ? at + strlen(word) : NULL;
}

/* A decimal number at *at, which moves behind it. */
static bool scan_number(const char **at, uint64_t *value)
{
    const char *p = *at;
    uint64_t v = 0;
    if (!isdigit((unsigned char)*p))
        return false;
    for (; isdigit((unsigned char)*p); p++) {
        if (v > UINT64_MAX / 10 - 1)
            return false;
        v = 10 * v + (uint64_t)(*p - '0');
    }
    *at = p;
    *value = v;
    return true;
}

/* The number behind `word`, which must not exceed most. */
static bool number_after(const char *text, const char *word, uint64_t most, uint32_t *value)
{
    const char *at = find_after(text, word);
    uint64_t v;
    if (at == NULL || !scan_number(&at, &v) || v > most)
        return false;
    *value = (uint32_t)v;
    return true;
}

/* The number that stands before `word`: "24 coll channels". */
static bool number_before(const char *text, const char *word, uint32_t *value)
{
    const char *end = strstr(text, word), *start = end;
    uint64_t v;
    if (end == NULL)
        return false;
    while (start > text && isdigit((unsigned char)start[-1]))
        start--;
    if (!scan_number(&start, &v) || v > MP_NCCL_MAX_CHANNELS)
        return false;
    *value = (uint32_t)v;
    return true;
}

/* ---- processes and communicators ---- */

static uint32_t hash_text(const char *text, size_t n)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 16777619u;
    return h;
}

/* "host:pid" and "[device]" out of "... host:pid:tid [device] NCCL INFO". */
static const char *process_name(struct reader *r, const char *line, size_t head)
{
    while (head > 0 && line[head - 1] == ' ')
        head--;
    size_t device = head;
    if (head == 0 || line[head - 1] != ']')
        return NULL;
    while (device > 0 && line[device - 1] != '[')
        device--;
    if (device < 2)
        return NULL;
    size_t end = device - 1, start;
    while (end > 0 && line[end - 1] == ' ')
        end--;
    start = end;
    while (start > 0 && line[start - 1] != ' ')
        start--;
    /* drop the thread: behind the last colon */
    size_t colon = end;
    while (colon > start && line[colon - 1] != ':')
        colon--;
    if (colon <= start + 1)
        return NULL;
    const char *const name = mp_arena_printf(r->arena, "%.*s [%.*s]", (int)(colon - 1 - start), line + start,
                                             (int)(head - 1 - device), line + device);
    if (name == NULL)
        r->out_of_memory = true;
    return name;
}

static struct process *find_process(struct reader *r, const char *name)
{
    struct process **bucket = &r->buckets[hash_text(name, strlen(name)) % BUCKETS];
    for (struct process *p = *bucket; p != NULL; p = p->chain)
        if (strcmp(p->name, name) == 0)
            return p;
    struct process *p = mp_arena_alloc(r->arena, sizeof *p);
    if (p == NULL) {
        r->out_of_memory = true;
        return NULL;
    }
    p->name = name;
    p->chain = *bucket;
    *bucket = p;
    if (r->last != NULL)
        r->last->next = p;
    else
        r->first = p;
    r->last = p;
    r->n_processes++;
    return p;
}

static struct comm *comm_by_handle(struct reader *r, struct process *p, const char *handle, size_t n)
{
    char text[sizeof p->newest->handle];
    (void)snprintf(text, sizeof text, "%.*s", (int)MP_MIN(n, sizeof text - 1), handle);
    for (struct comm *c = p->newest; c != NULL; c = c->older)
        if (strcmp(c->handle, text) == 0)
            return c;
    if (r->n_comms == MAX_COMMS)
        return NULL;
    struct comm *c = mp_arena_alloc(r->arena, sizeof *c);
    if (c == NULL) {
        r->out_of_memory = true;
        return NULL;
    }
    (void)snprintf(c->handle, sizeof c->handle, "%s", text);
    c->out.job = *r->base;
    c->older = p->newest;
    p->newest = c;
    p->n_comms++;
    r->n_comms++;
    return c;
}

/* The newest communicator in which `rank` sits and `peer` can exist. */
static struct comm *comm_of_rank(struct process *p, uint64_t rank, uint64_t peer)
{
    for (struct comm *c = p->newest; c != NULL; c = c->older)
        if (c->out.ranks != 0 && c->out.rank == rank && peer < c->out.ranks)
            return c;
    return NULL;
}

/* ---- lines ---- */

/* "... comm 0x8ec0 rank 0 nRanks 16 nNodes 2 localRanks 8 ..." and the older "nranks 16 cudaDev 0". */
static void read_comm_line(struct reader *r, struct process *p, const char *message)
{
    const char *handle = find_after(message, "comm 0x");
    uint32_t rank, ranks;
    if (handle == NULL || !number_after(handle, " rank ", MAX_RANKS, &rank))
        return;
    if (!number_after(handle, " nRanks ", MAX_RANKS, &ranks) && !number_after(handle, " nranks ", MAX_RANKS, &ranks))
        return;
    if (strstr(handle, "Destroy") != NULL || strstr(handle, "DESTROY") != NULL || strstr(handle, "Abort") != NULL ||
        rank >= ranks)
        return;
    struct comm *c = comm_by_handle(r, p, handle, strcspn(handle, " "));
    if (c == NULL)
        return;
    c->out.rank = rank;
    c->out.ranks = ranks;
    (void)number_after(handle, " nNodes ", MP_NCCL_MAX_NODES, &c->nodes);
    (void)number_after(handle, " localRanks ", MP_NCCL_MAX_RANKS_PER_NODE, &c->local_ranks);
}

static void read_channels_line(struct process *p, const char *message)
{
    struct comm *c = p->newest;
    struct mp_nccl_channels channels = {0, 0, 0, 0};
    /* the newest whose channels are not known yet: creation is sequential within a process */
    while (c != NULL && c->channels_seen)
        c = c->older;
    if (c == NULL || !number_before(message, " coll channels", &channels.coll) ||
        !number_before(message, " p2p channels,", &channels.p2p) ||
        !number_before(message, " p2p channels per peer", &channels.p2p_per_peer))
        return;
    (void)number_before(message, " nvls channels", &channels.nvls);
    c->out.job.channels = channels;
    c->out.job.channels_given = c->channels_seen = true;
}

static void mark_peer(struct reader *r, struct comm *c, uint64_t peer, bool send)
{
    const size_t plane = (c->out.ranks + 7) / 8;
    if (c->peers == NULL) {
        c->peers = mp_arena_calloc(r->arena, 2, plane);
        if (c->peers == NULL) {
            r->out_of_memory = true;
            return;
        }
    }
    uint8_t *byte = &c->peers[(send ? 0 : plane) + peer / 8];
    const uint8_t bit = (uint8_t)(1u << (peer % 8));
    if ((*byte & bit) == 0) {
        *byte |= bit;
        *(send ? &c->n_sent : &c->n_received) += 1;
    }
}

/* "Channel 00/1 : 0[0] -> 3[3] [send] via NET/IB/0/GDRDMA": index 1 is send/recv, 0 or none is collective. */
static void read_connection_line(struct reader *r, struct process *p, const char *message)
{
    uint64_t channel, index = 0, from, to;
    const char *at = after(message, "Channel ");
    const char *via = find_after(message, " via ");
    if (at == NULL || via == NULL || !scan_number(&at, &channel))
        return;
    if (*at == '/') {
        at++;
        if (!scan_number(&at, &index))
            return;
    }
    if ((at = after(at, " : ")) == NULL || !scan_number(&at, &from) || *at != '[' ||
        (at = find_after(at, "] -> ")) == NULL || !scan_number(&at, &to) || *at != '[')
        return;
    const bool receive = strstr(at, "[receive]") != NULL;
    struct comm *c = receive ? comm_of_rank(p, to, from) : comm_of_rank(p, from, to);
    if (c == NULL)
        return;
    c->out.connected |= index == 0;
    if (index == 1)
        mark_peer(r, c, receive ? from : to, !receive);
    if (after(via, "P2P") != NULL) {
        c->p2p = true;
        c->ipc |= after(via, "P2P/IPC") != NULL;
        c->read_mode |= strstr(via, "/read") != NULL;
    } else if (after(via, "SHM") != NULL) {
        c->shm = true;
    } else if (after(via, "NET") != NULL) {
        c->net = true;
        c->gdr |= strstr(via, "GDRDMA") != NULL;
    }
}

static void read_connected_line(struct process *p, const char *message)
{
    static const struct {
        const char *text;
        enum mp_nccl_algorithm algorithm;
    } lines[] = {{"Connected all rings", MP_NCCL_ALGORITHM_RING},
                 {"Connected all trees", MP_NCCL_ALGORITHM_TREE},
                 {"Connected NVLS tree", MP_NCCL_ALGORITHM_NVLS_TREE},
                 {"Connected binomial trees", MP_NCCL_ALGORITHM_PAT}};
    for (size_t i = 0; i < MP_ARRAY_LEN(lines); i++) {
        if (after(message, lines[i].text) == NULL)
            continue;
        /* the newest that does not have it yet */
        for (struct comm *c = p->newest; c != NULL; c = c->older) {
            if (c->out.job.algorithms & MP_NCCL_BIT(lines[i].algorithm))
                continue;
            c->out.job.algorithms |= MP_NCCL_BIT(lines[i].algorithm);
            c->out.connected = true;
            return;
        }
    }
}

/* "NVLS comm 0x.. headRank 0 nHeads 8 ... nvlsTotalSize 268435456" */
static void read_nvls_line(struct reader *r, struct process *p, const char *message)
{
    const char *handle = after(message, "NVLS comm 0x"), *total = find_after(message, "nvlsTotalSize ");
    uint64_t bytes;
    if (handle == NULL || total == NULL || !scan_number(&total, &bytes))
        return;
    struct comm *c = comm_by_handle(r, p, handle, strcspn(handle, " "));
    if (c != NULL) {
        c->out.nvls_bytes = bytes;
        c->out.job.algorithms |= MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS);
    }
}

/* "NCCL_BUFFSIZE set by environment to 8388608." */
static void read_env_line(struct reader *r, const char *message)
{
    char assignment[160];
    const char *value = find_after(message, " set by environment to ");
    if (value == NULL || after(message, "NCCL_") == NULL)
        return;
    size_t n = strcspn(value, " ");
    if (n > 0 && value[n - 1] == '.')
        n--;
    (void)snprintf(assignment, sizeof assignment, "%.*s=%.*s", (int)MP_MIN(strcspn(message, " "), (size_t)60), message,
                   (int)MP_MIN(n, (size_t)80), value);
    /* what is not modelled shows in the channels that the log prints */
    (void)mp_nccl_env_set(&r->env, assignment, NULL);
}

static void read_version(struct reader *r, const char *line)
{
    char text[16];
    const char *at = find_after(line, "NCCL version ");
    if (at == NULL || r->version_found)
        return;
    (void)snprintf(text, sizeof text, "%.*s", (int)MP_MIN(strspn(at, "0123456789."), sizeof text - 1), at);
    r->version_found = mp_nccl_version_parse(text, &r->version, NULL) == MEMPLAN_STATUS_OK;
}

static void read_line(struct reader *r, const char *line)
{
    read_version(r, line);
    const char *info = strstr(line, "NCCL INFO ");
    if (info == NULL)
        return;
    r->info_found = true;
    const struct mp_arena_mark mark = mp_arena_mark(r->arena);
    const char *message = info + strlen("NCCL INFO "), *name = process_name(r, line, (size_t)(info - line));
    read_env_line(r, message);
    if (name == NULL)
        return;
    const size_t before = r->n_processes;
    struct process *p = find_process(r, name);
    if (p == NULL)
        return;
    if (r->n_processes == before)
        mp_arena_rewind(r->arena, mark); /* the name was known */
    uint32_t chunk;
    if (after(message, "Channel ") != NULL)
        read_connection_line(r, p, message);
    else if (after(message, "Connected ") != NULL)
        read_connected_line(p, message);
    else if (after(message, "NVLS comm ") != NULL)
        read_nvls_line(r, p, message);
    else if (strstr(message, " p2p channels per peer") != NULL)
        read_channels_line(p, message);
    else if (number_after(message, "P2P Chunksize set to ", UINT32_MAX, &chunk) && p->newest != NULL)
        p->newest->chunk_bytes = chunk;
    else
        read_comm_line(r, p, message);
}

/* ---- results ---- */

static bool usable(const struct comm *c)
{
    return c->channels_seen && c->out.ranks != 0 && c->out.job.channels.coll != 0 && c->out.job.channels.p2p != 0 &&
           c->out.job.channels.p2p_per_peer != 0 &&
           c->out.job.channels.p2p_per_peer <= c->out.job.channels.p2p;
}

static size_t n_usable(const struct process *p)
{
    size_t n = 0;
    for (const struct comm *c = p->newest; c != NULL; c = c->older)
        n += usable(c);
    return n;
}

/* Nodes and ranks per node; old versions do not print them. */
static bool place_group(const struct comm *c, struct mp_nccl_job *job)
{
    const uint32_t ranks = c->out.ranks, per_node = job->ranks_per_node;
    if (c->nodes != 0 && c->local_ranks != 0) {
        job->nodes = c->nodes;
        job->ranks_per_node = c->local_ranks;
    } else if (!c->net && ranks <= MP_NCCL_MAX_RANKS_PER_NODE) {
        job->nodes = 1;
        job->ranks_per_node = ranks;
    } else if (per_node != 0 && ranks % per_node == 0 && ranks / per_node <= MP_NCCL_MAX_NODES) {
        job->nodes = ranks / per_node;
    } else {
        return false;
    }
    return true;
}

static void settle_transports(const struct comm *c, struct mp_nccl_job *job)
{
    if (c->p2p && c->shm)
        job->transport = MP_NCCL_TRANSPORT_EITHER;
    else if (c->p2p)
        job->transport = MP_NCCL_TRANSPORT_P2P;
    else if (c->shm)
        job->transport = MP_NCCL_TRANSPORT_SHM;
    else if (c->net && job->nodes == 1)
        job->transport = MP_NCCL_TRANSPORT_NET;
    if (c->net) {
        job->sockets = !c->gdr;
        if (c->gdr)
            job->env.gdr = MP_NCCL_ON;
    }
    if (c->p2p && job->env.p2p_read == MP_NCCL_DEFAULT)
        job->env.p2p_read = c->read_mode ? MP_NCCL_ON : MP_NCCL_OFF;
    if (c->ipc && job->env.cumem == MP_NCCL_DEFAULT)
        job->env.cumem = MP_NCCL_OFF; /* peers are mapped the old way */
}

static void settle_use(const struct comm *c, struct mp_nccl_job *job)
{
    if (job->algorithms == 0 && c->out.connected)
        job->algorithms = MP_NCCL_BIT(MP_NCCL_ALGORITHM_RING);
    const uint32_t peers = MP_MAX(c->n_sent, c->n_received);
    job->collectives = 0;
    if (peers != 0 && peers + 1 >= c->out.ranks)
        job->collectives = MP_NCCL_BIT(MP_NCCL_ALLTOALL);
    else if (peers != 0)
        job->collectives = MP_NCCL_BIT(MP_NCCL_SENDRECV);
    job->sendrecv_peers = peers;
    job->rank_given = true;
    job->rank = c->out.rank;
    if (c->chunk_bytes != 0)
        job->env.net_chunk_bytes = job->env.nvl_chunk_bytes = job->env.pci_chunk_bytes = c->chunk_bytes;
}

static enum memplan_status finish(const struct reader *r, const char *origin, const struct process *p,
                                  struct mp_nccl_log *log, struct memplan_error *err)
{
    const size_t n = n_usable(p);
    struct mp_nccl_log_comm *out = mp_arena_calloc(r->arena, n, sizeof *out);
    if (out == NULL)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", origin);
    size_t at = n;
    for (const struct comm *c = p->newest; c != NULL; c = c->older) {
        if (!usable(c))
            continue;
        struct mp_nccl_log_comm *const target = &out[--at];
        *target = c->out;
        target->job.env = r->env;
        target->job.version = r->version_found ? r->version : r->base->version;
        if (!place_group(c, &target->job))
            return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                "%s: the log does not say how its %u ranks are spread over nodes; give "
                                "--gpus-per-node",
                                origin, c->out.ranks);
        settle_transports(c, &target->job);
        settle_use(c, &target->job);
    }
    *log = (struct mp_nccl_log){.process = p->name,
                                .n_processes = r->n_processes,
                                .version_found = r->version_found,
                                .version = r->version_found ? r->version : r->base->version,
                                .comms = out,
                                .n_comms = n};
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_nccl_log_parse(struct mp_arena *arena, const char *origin, const char *text, size_t length,
                                      const struct mp_nccl_job *base, struct mp_nccl_log *log,
                                      struct memplan_error *err)
{
    struct reader *r = mp_arena_alloc(arena, sizeof *r);
    char *copy = mp_arena_alloc(arena, length + 1);
    if (r == NULL || copy == NULL)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", origin);
    memcpy(copy, text, length);
    copy[length] = '\0';
    r->arena = arena;
    r->base = base;
    r->env = base->env;
    for (size_t at = 0; at < length;) {
        char *const end = memchr(copy + at, '\n', length - at);
        const size_t next = end != NULL ? (size_t)(end - copy) + 1 : length;
        if (end != NULL)
            *end = '\0';
        read_line(r, copy + at);
        at = next;
    }
    if (r->out_of_memory)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "%s: out of memory", origin);
    if (!r->info_found)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "%s: no 'NCCL INFO' line; run the job with NCCL_DEBUG=INFO and give what it prints",
                            origin);
    const struct process *most = NULL;
    for (const struct process *p = r->first; p != NULL; p = p->next)
        if (n_usable(p) > (most != NULL ? n_usable(most) : 0))
            most = p;
    if (most == NULL)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "%s: no communicator was created in it: 'coll channels' and 'nranks' lines are missing; "
                            "run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,P2P,NET,NVLS",
                            origin);
    return finish(r, origin, most, log, err);
}
