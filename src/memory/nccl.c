/* SPDX-License-Identifier: MIT */
/*
 * Device memory of one rank's communicator, part by part.
 *
 * NCCL rounds every device allocation, even four bytes, to 2 MiB, so counting allocations matters as much as counting
 * bytes. A communicator starts as tables, about 6 MiB a channel. Buffers appear when an algorithm or a peer is first used, one
 * per connection, sized by protocol and transport and never by message, model or number of tensors:
 *
 *     peer over NVLink    send 4 KiB                      receive 4 KiB + LL + LL128 + Simple    2 + 10 MiB
 *     peer over network   send LL128 + Simple             receive LL + LL128 + Simple           10 + 10 MiB
 *
 * File names in comments are NCCL's own, of version 2.28.9.
 */
#include "memory/nccl.h"

#include <math.h>

#include "memory/nccl_tuner.h"

#define GRANULARITY (2 * MP_MIB)
#define STEPS 8                       /* include/device.h: NCCL_STEPS */
#define SHARED_STEPS 16               /* transport/net.cc: NCCL_SHARED_STEPS */
#define SYNC_BYTES 4096               /* ncclSendMem and ncclRecvMem */
#define PEER_BYTES 608                /* ncclDevChannelPeer */
#define DEVICE_COMM_BYTES 23648       /* ncclKernelCommAndChannels */
/* work FIFO, two sets of profiler counters, struct ncclComm; without /dev/shm of the process's proxy */
#define HOST_BYTES (UINT64_C(1048576) + 2 * 65536 + 1082968)
#define DEFAULT_LL_BYTES UINT64_C(524288)     /* 8 lines x 512 threads x 8 steps x 16 B */
#define DEFAULT_LL128_BYTES UINT64_C(4915200) /* 120 elements x 640 threads x 8 steps x 8 B */
#define DEFAULT_SIMPLE_BYTES UINT64_C(4194304)
#define DEFAULT_NVLS_CHUNK_BYTES UINT64_C(131072)

static uint64_t up(uint64_t bytes)
{
    return (bytes + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
}

/* ---- sizes ---- */

/* Bytes of one direction of a connection, by where the peer is. */
struct buffers {
    uint64_t p2p_send, p2p_recv;       /* transport/p2p.cc: p2pSendSetup, p2pRecvSetup */
    uint64_t net_send, net_recv;       /* transport/net.cc: sendProxyConnect, recvProxyConnect */
    uint64_t shm_send;                 /* transport/shm.cc; only with a copy engine */
    uint64_t unshared_net;             /* send/recv over network without the pool, each direction */
    uint64_t pool;                     /* transport/net.cc: sharedNetBuffersInit */
    uint64_t nvls;                     /* transport/nvls.cc: ncclNvlsBufferSetup */
    uint64_t ll, all_protocols;        /* as host memory has them, not rounded */
};

static uint64_t or_default(uint64_t value, uint64_t fallback)
{
    return value != 0 ? value : fallback;
}

/* init.cc: computeBuffSizes. */
static uint64_t p2p_chunk(const struct mp_nccl_plan *plan, uint64_t simple)
{
    const struct mp_nccl_job *job = plan->job;
    const bool nvlink = plan->transport == MP_NCCL_TRANSPORT_P2P && job->fabric != MP_NCCL_FABRIC_PCIE;
    uint64_t chunk;
    if (job->nodes > 1) {
        chunk = or_default(job->env.net_chunk_bytes, 131072);
        if (job->version >= 22900 && job->grace && job->compute_capability >= 100)
            chunk *= 2;
    } else if (nvlink || plan->ranks == 1) {
        chunk = or_default(job->env.nvl_chunk_bytes, 524288);
    } else {
        chunk = or_default(job->env.pci_chunk_bytes, 131072);
    }
    return chunk * STEPS > simple ? simple / STEPS : chunk;
}

static uint64_t nvls_buffer(const struct mp_nccl_plan *plan, uint64_t simple)
{
    const int version = plan->job->version;
    const uint64_t heads = plan->job->ranks_per_node;
    const uint64_t chunked = STEPS * or_default(plan->job->env.nvls_chunk_bytes, DEFAULT_NVLS_CHUNK_BYTES);
    uint64_t channels = plan->channels.nvls, bytes = chunked;
    if (version < 22200) {
        bytes = (version < 22100 ? simple : chunked) + GRANULARITY; /* flags lay behind each buffer */
        channels = plan->nvls_table_channels;
    }
    return up(channels * 2 * bytes * heads);
}

static struct buffers buffer_sizes(const struct mp_nccl_plan *plan)
{
    const struct mp_nccl_env *env = &plan->job->env;
    const uint64_t ll = or_default(env->ll_buff_bytes, DEFAULT_LL_BYTES);
    const uint64_t ll128 = or_default(env->ll128_buff_bytes, DEFAULT_LL128_BYTES);
    const uint64_t simple = or_default(env->buff_bytes, DEFAULT_SIMPLE_BYTES);
    struct buffers b = {.ll = ll, .all_protocols = ll + ll128 + simple};
    if (plan->read_mode) { /* the sender keeps the data, the receiver fetches it */
        b.p2p_send = up(SYNC_BYTES + simple);
        b.p2p_recv = up(SYNC_BYTES + ll + ll128);
    } else {
        b.p2p_send = up(SYNC_BYTES);
        b.p2p_recv = up(SYNC_BYTES + ll + ll128 + simple);
    }
    if (env->p2p_copy == MP_NCCL_ON)
        b.p2p_send += up(simple);
    if (env->shm_copy == MP_NCCL_ON)
        b.shm_send = up(simple);
    if (plan->gdr) {
        b.net_send = up(ll128 + simple);
        b.net_recv = up(ll + ll128 + simple);
        b.unshared_net = up(ll128 + simple);
    }
    b.pool = up(plan->channels.p2p * SHARED_STEPS * p2p_chunk(plan, simple));
    if (plan->nvls)
        b.nvls = nvls_buffer(plan, simple);
    return b;
}

/* ---- tables ---- */

static uint32_t top_ranks(const struct mp_nccl_job *job)
{
    while (job->parent != NULL)
        job = job->parent;
    return job->nodes * job->ranks_per_node;
}

/* channel.cc: initChannel; init.cc: devCommSetup. Without cuMem the tables share a few 2 MiB slabs of the driver. */
static uint64_t table_bytes(const struct mp_nccl_plan *plan)
{
    const struct mp_nccl_job *job = plan->job;
    if (!plan->cumem)
        return 0;
    const uint64_t channels =
        MP_MAX(plan->channels.coll, MP_MAX(plan->channels.p2p, plan->channels.nvls));
    const uint64_t ranks = plan->ranks;
    const uint64_t peers = job->parent != NULL ? 0 : up(PEER_BYTES * (uint64_t)top_ranks(job));
    const uint64_t pointers = up(8 * (ranks + 1 + job->ranks_per_node));
    const uint64_t rank_table = job->version >= 22300 ? up(4 * ranks) : 0;
    return channels * (peers + pointers + up(4 * ranks)) + up(DEVICE_COMM_BYTES) + rank_table;
}

static bool shares_nvls(const struct mp_nccl_plan *plan)
{
    const struct mp_nccl_job *job = plan->job;
    return job->parent != NULL && job->parent->ranks_per_node == job->ranks_per_node;
}

/* channel.cc: initNvlsChannel; transport/nvls.cc: ncclNvlsSetup. */
static uint64_t nvls_table_bytes(const struct mp_nccl_plan *plan)
{
    if (!plan->nvls || !plan->cumem || shares_nvls(plan))
        return 0;
    const uint64_t heads = plan->job->ranks_per_node;
    const uint64_t credits =
        plan->job->version >= 22200 ? up(128 * (uint64_t)plan->nvls_table_channels * heads) : 0;
    return plan->nvls_table_channels * up(PEER_BYTES * heads) + credits;
}

/* ---- connections ---- */

/* One outcome of one rank. */
struct outcome {
    uint64_t parts[MP_NCCL_PARTS];
    uint64_t total;
    uint64_t host; /* pinned memory of connections, a budget of its own */
};

static enum mp_nccl_part_id part_of(enum mp_nccl_algorithm algorithm)
{
    switch (algorithm) {
    case MP_NCCL_ALGORITHM_TREE:
        return MP_NCCL_PART_TREE;
    case MP_NCCL_ALGORITHM_NVLS_TREE:
        return MP_NCCL_PART_NVLS_TREE;
    case MP_NCCL_ALGORITHM_PAT:
        return MP_NCCL_PART_PAT;
    default:
        return MP_NCCL_PART_RING;
    }
}

/* high: a wiring that allows peer access or host memory takes the one that costs device memory. */
static enum mp_nccl_transport transport_of(const struct mp_nccl_plan *plan, bool net, bool high)
{
    const enum mp_nccl_transport transport = net ? MP_NCCL_TRANSPORT_NET : plan->transport;
    if (transport == MP_NCCL_TRANSPORT_EITHER)
        return high ? MP_NCCL_TRANSPORT_P2P : MP_NCCL_TRANSPORT_SHM;
    return transport;
}

static uint64_t connection_bytes(const struct mp_nccl_plan *plan, const struct buffers *b,
                                 const struct mp_nccl_connection *c, bool high)
{
    switch (transport_of(plan, c->net, high)) {
    case MP_NCCL_TRANSPORT_NET:
        return c->send ? b->net_send : b->net_recv;
    case MP_NCCL_TRANSPORT_SHM:
        return c->send ? b->shm_send : 0;
    default:
        return c->send ? b->p2p_send : b->p2p_recv;
    }
}

/* Pinned host memory of a connection: where the device has no buffer, the host has it. */
static uint64_t connection_host_bytes(const struct mp_nccl_plan *plan, const struct buffers *b,
                                      const struct mp_nccl_connection *c, bool high)
{
    switch (transport_of(plan, c->net, high)) {
    case MP_NCCL_TRANSPORT_NET:
        if (!plan->gdr)
            return 2 * SYNC_BYTES + b->all_protocols;
        return 2 * SYNC_BYTES + (c->send ? b->ll : 0);
    case MP_NCCL_TRANSPORT_SHM:
        return c->send ? SYNC_BYTES : SYNC_BYTES + b->all_protocols;
    default:
        return 0;
    }
}

/* A parent whose connections a split reuses, and how the split's ranks lie in it. */
struct sharing {
    const struct mp_nccl_plan *parent; /* NULL: nothing is shared */
    uint32_t algorithms;               /* that the parent has connected */
    uint32_t base, stride;             /* rank i of the split is base + i * stride in the parent */
};

static bool parent_has(const struct mp_nccl_connection *list, size_t n, uint32_t peer, bool send)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].peer == peer && list[i].send == send)
            return true;
    return false;
}

static void add_connections(const struct mp_nccl_plan *plan, const struct buffers *b, uint32_t rank,
                            uint32_t algorithms, bool high, const struct sharing *sharing,
                            struct outcome *outcome)
{
    struct mp_nccl_connection own[MP_NCCL_MAX_CONNECTIONS], theirs[MP_NCCL_MAX_CONNECTIONS];
    const uint32_t channels = MP_MAX(plan->channels.coll, plan->nvls_table_channels);
    for (uint32_t channel = 0; channel < channels; channel++) {
        const size_t n = mp_nccl_connections(plan, rank, channel, algorithms, own);
        size_t n_theirs = 0;
        if (sharing->parent != NULL)
            n_theirs = mp_nccl_connections(sharing->parent, sharing->base + rank * sharing->stride, channel,
                                           sharing->algorithms, theirs);
        for (size_t i = 0; i < n; i++) {
            if (parent_has(theirs, n_theirs, sharing->base + own[i].peer * sharing->stride, own[i].send))
                continue;
            outcome->parts[part_of(own[i].algorithm)] += connection_bytes(plan, b, &own[i], high);
            outcome->host += connection_host_bytes(plan, b, &own[i], high);
        }
    }
}

/* ---- sends and receives ---- */

/* Peers of one rank by place, both directions. */
struct peers {
    uint32_t local_send, local_recv;
    uint32_t net_send, net_recv;
};

static void widen(struct peers *p, struct peers q)
{
    p->local_send = MP_MAX(p->local_send, q.local_send);
    p->local_recv = MP_MAX(p->local_recv, q.local_recv);
    p->net_send = MP_MAX(p->net_send, q.net_send);
    p->net_recv = MP_MAX(p->net_recv, q.net_recv);
}

/*
 * Who a rank sends to and receives from. root: the rank that gathers or scatters. at_edge: of a pipeline whose
 * neighbour is on another node.
 */
static struct peers peers_of(const struct mp_nccl_job *job, uint32_t collectives, bool root, bool at_edge)
{
    const uint32_t r = job->ranks_per_node, local = r - 1, net = (job->nodes - 1) * r;
    struct peers p = {0, 0, 0, 0};
    if (collectives & MP_NCCL_BIT(MP_NCCL_ALLTOALL))
        widen(&p, (struct peers){local, local, net, net});
    if (collectives & MP_NCCL_BIT(MP_NCCL_GATHER))
        widen(&p, root ? (struct peers){0, local, 0, net} : (struct peers){local > 0, 0, local == 0, 0});
    if (collectives & MP_NCCL_BIT(MP_NCCL_SCATTER))
        widen(&p, root ? (struct peers){local, 0, net, 0} : (struct peers){0, local > 0, 0, local == 0});
    if (collectives & MP_NCCL_BIT(MP_NCCL_SENDRECV)) {
        const uint32_t wanted = job->sendrecv_peers != 0 ? job->sendrecv_peers : 2;
        const uint32_t total = MP_MIN(wanted, local + net);
        const uint32_t far = at_edge && net > 0 ? MP_MAX(1, total - MP_MIN(local, total))
                                                : total - MP_MIN(local, total);
        widen(&p, (struct peers){total - far, total - far, far, far});
    }
    if (job->nodes == 1)
        p.net_send = p.net_recv = 0;
    return p;
}

static void add_peers(const struct mp_nccl_plan *plan, const struct buffers *b, const struct peers *p, bool high,
                      struct outcome *outcome)
{
    const uint64_t k = plan->channels.p2p_per_peer;
    uint32_t net_send = p->net_send, net_recv = p->net_recv;
    if (plan->transport == MP_NCCL_TRANSPORT_NET) {
        net_send += p->local_send;
        net_recv += p->local_recv;
    } else {
        const struct mp_nccl_connection send = {.send = true}, recv = {.send = false};
        outcome->parts[MP_NCCL_PART_PEERS] += k * (p->local_send * connection_bytes(plan, b, &send, high) +
                                                   p->local_recv * connection_bytes(plan, b, &recv, high));
        outcome->host += k * (p->local_send * connection_host_bytes(plan, b, &send, high) +
                              p->local_recv * connection_host_bytes(plan, b, &recv, high));
    }
    outcome->host += 2 * SYNC_BYTES * k * ((uint64_t)net_send + net_recv);
    if (!plan->gdr && plan->job->env.shared_net_buffers != MP_NCCL_OFF)
        outcome->host += b->pool * ((net_send != 0) + (uint64_t)(net_recv != 0));
    if (!plan->gdr || (net_send == 0 && net_recv == 0))
        return;
    if (plan->job->env.shared_net_buffers == MP_NCCL_OFF) {
        outcome->parts[MP_NCCL_PART_PEERS] += k * ((uint64_t)net_send + net_recv) * b->unshared_net;
        return;
    }
    /* with PXN a GPU sends for its node's other ranks too, each with a pool of its own */
    const uint64_t hosted = net_send == 0 ? 0 : plan->pxn ? plan->job->ranks_per_node : 1;
    const uint64_t pools = hosted + (net_recv != 0);
    outcome->parts[MP_NCCL_PART_POOLS] = MP_MAX(outcome->parts[MP_NCCL_PART_POOLS], pools * b->pool);
}

/* ---- outcomes ---- */

struct prediction {
    const struct mp_nccl_plan *plan;
    struct buffers buffers;
    uint32_t eager;                /* algorithms connected at creation */
    uint32_t choices[MP_NCCL_TUNED_COLLECTIVES];
    uint32_t all;                  /* every algorithm that may come into use */
    uint32_t parent_all, parent_least; /* of a sharing parent */
    const struct mp_nccl_plan *parent;
};

static void add_fixed(const struct prediction *p, struct outcome *o)
{
    o->parts[MP_NCCL_PART_TABLES] = table_bytes(p->plan);
    o->parts[MP_NCCL_PART_NVLS_TABLES] = nvls_table_bytes(p->plan);
    if (!p->plan->lazy && p->plan->job->parent == NULL) /* init.cc: the proxy is given its pool at once */
        o->parts[MP_NCCL_PART_POOLS] = p->buffers.pool;
}

/* Add what `algorithms` need on `rank`, then total. */
static void finish_outcome(const struct prediction *p, uint32_t rank, uint32_t algorithms, bool high,
                           const struct sharing *sharing, struct outcome *o)
{
    const uint32_t nvls =
        MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS) | MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS_TREE);
    add_connections(p->plan, &p->buffers, rank, algorithms, high, sharing, o);
    if ((algorithms & nvls) && !(shares_nvls(p->plan) && (sharing->algorithms & nvls)))
        o->parts[MP_NCCL_PART_NVLS_BUFFERS] = p->buffers.nvls;
    o->total = 0;
    for (size_t i = 0; i < MP_NCCL_PARTS; i++)
        o->total += o->parts[i];
}

static struct outcome init_outcome(const struct prediction *p, uint32_t rank, bool high,
                                   const struct sharing *sharing)
{
    struct outcome o = {{0}, 0, 0};
    add_fixed(p, &o);
    finish_outcome(p, rank, p->eager, high, sharing, &o);
    return o;
}

static struct outcome used_outcome(const struct prediction *p, uint32_t rank, uint32_t algorithms, bool high,
                                   bool root, const struct sharing *sharing)
{
    struct outcome o = {{0}, 0, 0};
    add_fixed(p, &o);
    uint32_t collectives = p->plan->job->collectives;
    if (sharing->parent != NULL && (sharing->parent->job->collectives & MP_NCCL_BIT(MP_NCCL_ALLTOALL)))
        collectives &= MP_NCCL_BIT(MP_NCCL_TUNED_COLLECTIVES) - 1; /* the parent has all peers already */
    const struct peers peers = peers_of(p->plan->job, collectives, root, high);
    add_peers(p->plan, &p->buffers, &peers, high, &o);
    finish_outcome(p, rank, algorithms | p->eager, high, sharing, &o);
    return o;
}

/* A subset with which every collective finds an algorithm, and no smaller one does. */
static bool suffices(const struct prediction *p, uint32_t subset)
{
    for (size_t i = 0; i < MP_NCCL_TUNED_COLLECTIVES; i++)
        if (p->choices[i] != 0 && (p->choices[i] & subset) == 0)
            return false;
    return true;
}

static bool least(const struct prediction *p, uint32_t subset)
{
    if (!suffices(p, subset))
        return false;
    for (uint32_t bit = 1; bit <= subset; bit <<= 1)
        if ((subset & bit) && suffices(p, subset & ~bit))
            return false;
    return true;
}

/* Root and other ranks of a gather differ; elsewhere both are the same. */
static struct outcome low_outcome(const struct prediction *p, uint32_t rank, const struct sharing *sharing)
{
    struct outcome best = {{0}, UINT64_MAX, 0};
    if (p->plan->job->algorithms != 0) {
        for (int root = 0; root < 2; root++) {
            const struct outcome o = used_outcome(p, rank, p->all, false, root != 0, sharing);
            if (o.total < best.total)
                best = o;
        }
        return best;
    }
    for (uint32_t subset = 0; subset <= p->all; subset++) {
        if ((subset & ~p->all) != 0 || !least(p, subset))
            continue;
        for (int root = 0; root < 2; root++) {
            const struct outcome o = used_outcome(p, rank, subset, false, root != 0, sharing);
            if (o.total < best.total)
                best = o;
        }
    }
    return best;
}

static struct outcome high_outcome(const struct prediction *p, uint32_t rank, const struct sharing *sharing)
{
    const struct outcome leaf = used_outcome(p, rank, p->all, true, false, sharing);
    const struct outcome root = used_outcome(p, rank, p->all, true, true, sharing);
    return root.total > leaf.total ? root : leaf;
}

/* Extremes over ranks, kept as whole outcomes so that parts add up. */
struct extremes {
    struct outcome init, low, high;
    uint64_t init_low;
    double high_sum;
    bool any;
};

static void consider_rank(const struct prediction *p, uint32_t rank, uint32_t weight, uint32_t base,
                          struct extremes *e)
{
    const uint32_t stride = p->plan->job->parent_stride;
    const struct sharing rich = {p->parent, p->parent_all, base, stride};
    const struct sharing poor = {p->parent, p->parent_least, base, stride};
    const struct outcome init = init_outcome(p, rank, true, &poor);
    const uint64_t init_low = init_outcome(p, rank, false, &rich).total;
    const struct outcome low = low_outcome(p, rank, &rich), high = high_outcome(p, rank, &poor);
    if (!e->any || init.total > e->init.total)
        e->init = init;
    if (!e->any || init_low < e->init_low)
        e->init_low = init_low;
    if (!e->any || low.total < e->low.total)
        e->low = low;
    if (!e->any || high.total > e->high.total)
        e->high = high;
    e->high_sum += (double)high.total * weight;
    e->any = true;
}

/* Shapes of nodes seen so far: large clusters consist of a few. */
#define MAX_SHAPES 512
struct shapes {
    struct mp_nccl_node_shape shape[MAX_SHAPES];
    uint32_t node[MAX_SHAPES], weight[MAX_SHAPES];
    size_t n;
};

static void collect_shapes(const struct mp_nccl_plan *plan, struct shapes *shapes)
{
    shapes->n = 0;
    for (uint32_t node = 0; node < plan->job->nodes; node++) {
        const struct mp_nccl_node_shape s = mp_nccl_node_shape(plan, node);
        size_t i = 0;
        while (i < shapes->n &&
               (shapes->shape[i].words[0] != s.words[0] || shapes->shape[i].words[1] != s.words[1]))
            i++;
        if (i < shapes->n) {
            shapes->weight[i]++;
        } else if (shapes->n < MAX_SHAPES) {
            shapes->shape[i] = s;
            shapes->node[i] = node;
            shapes->weight[i] = 1;
            shapes->n++;
        }
    }
}

static void consider_all(const struct prediction *p, struct extremes *e)
{
    struct shapes shapes;
    const struct mp_nccl_job *job = p->plan->job;
    const uint32_t r = job->ranks_per_node;
    if (job->rank_given && job->rank < p->plan->ranks) {
        consider_rank(p, job->rank, p->plan->ranks, 0, e);
        return;
    }
    collect_shapes(p->plan, &shapes);
    for (size_t i = 0; i < shapes.n; i++)
        for (uint32_t gpu = 0; gpu < r; gpu++)
            consider_rank(p, shapes.node[i] * r + gpu, shapes.weight[i], 0, e);
}

/* Every split of a parent: the ranks of different splits meet different neighbours in the parent. */
static void consider_splits(const struct prediction *p, struct extremes *e)
{
    const uint32_t stride = p->plan->job->parent_stride, block = stride * p->plan->ranks;
    for (uint32_t start = 0; start + block <= p->parent->ranks; start += block)
        for (uint32_t offset = 0; offset < stride; offset++)
            for (uint32_t rank = 0; rank < p->plan->ranks; rank++)
                consider_rank(p, rank, 1, start + offset, e);
}

static enum memplan_status collect_choices(struct prediction *p, struct memplan_error *err)
{
    const struct mp_nccl_job *job = p->plan->job;
    p->all = job->algorithms;
    for (int i = 0; i < MP_NCCL_TUNED_COLLECTIVES; i++) {
        if (!(job->collectives & MP_NCCL_BIT(i)))
            continue;
        const enum memplan_status status =
            mp_nccl_choices(p->plan, (enum mp_nccl_collective)i, &p->choices[i], err);
        if (status != MEMPLAN_STATUS_OK)
            return status;
        p->all |= p->choices[i];
    }
    p->eager = mp_nccl_eager_algorithms(p->plan);
    return MEMPLAN_STATUS_OK;
}

/* What the parent has connected when the split comes: at most everything, at least one choice. */
static enum memplan_status collect_parent(struct prediction *p, struct mp_nccl_plan *parent,
                                          struct memplan_error *err)
{
    const struct mp_nccl_job *job = p->plan->job;
    if (job->parent == NULL)
        return MEMPLAN_STATUS_OK;
    enum memplan_status status = mp_nccl_plan_init(parent, job->parent, err);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    const uint64_t span = (uint64_t)job->parent_stride * p->plan->ranks;
    if (job->parent_stride == 0 || span > parent->ranks || parent->ranks % span != 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "split: %u ranks at distance %u do not divide the parent's %u", p->plan->ranks,
                            job->parent_stride, parent->ranks);
    struct prediction theirs = {.plan = parent};
    status = collect_choices(&theirs, err);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    p->parent = parent;
    p->parent_all = theirs.all | theirs.eager;
    p->parent_least = theirs.eager;
    for (uint32_t subset = 0; subset <= theirs.all; subset++)
        if ((subset & ~theirs.all) == 0 && least(&theirs, subset)) {
            p->parent_least |= job->parent->algorithms != 0 ? theirs.all : subset;
            break;
        }
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_nccl_predict(const struct mp_nccl_job *job, struct mp_nccl_result *result,
                                    struct memplan_error *err)
{
    struct mp_nccl_plan plan, parent;
    enum memplan_status status = mp_nccl_plan_init(&plan, job, err);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    struct prediction p = {.plan = &plan};
    p.buffers = buffer_sizes(&plan);
    status = collect_choices(&p, err);
    if (status == MEMPLAN_STATUS_OK)
        status = collect_parent(&p, &parent, err);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    struct extremes e = {.any = false};
    if (p.parent != NULL)
        consider_splits(&p, &e);
    else
        consider_all(&p, &e);
    *result = (struct mp_nccl_result){.ranks = plan.ranks,
                                      .channels = plan.channels,
                                      .algorithms = p.all | p.eager,
                                      .lazy = plan.lazy,
                                      .init_low_bytes = e.init_low,
                                      .init_bytes = e.init.total,
                                      .low_bytes = e.low.total,
                                      .high_bytes = e.high.total,
                                      .host_bytes = HOST_BYTES + e.high.host};
    const double counted = p.parent != NULL ? parent.ranks : plan.ranks;
    result->mean_bytes = (uint64_t)llround(e.high_sum / counted);
    for (size_t i = 0; i < MP_NCCL_PARTS; i++)
        result->parts[i] =
            (struct mp_nccl_part){e.init.parts[i], e.low.parts[i], e.high.parts[i]};
    return MEMPLAN_STATUS_OK;
}

/*
 * Kernels that CUDA loads on first use, and the library's own state. Measured on H200 with NCCL 2.28.3, CUDA 13.0
 * (tests/data/nccl/nccl-h200.jsonl): 192 MiB with the first communicator, 186 with the first collective, 4 with the first
 * broadcast, 58 with the first send or receive, 248 if that comes before any collective.
 */
uint64_t mp_nccl_process_bytes(uint32_t collectives)
{
    const uint32_t tuned = MP_NCCL_BIT(MP_NCCL_TUNED_COLLECTIVES) - 1;
    const bool any_tuned = (collectives & tuned) != 0, any_peers = (collectives & ~tuned) != 0;
    uint64_t mib = 192;
    if (any_peers)
        mib += 248; /* loads what the others would */
    else if (any_tuned)
        mib += collectives & MP_NCCL_BIT(MP_NCCL_BROADCAST) ? 190 : 186;
    return mib * MP_MIB;
}
