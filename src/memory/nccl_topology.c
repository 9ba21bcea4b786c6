/* SPDX-License-Identifier: MIT */
/*
 * How many channels NCCL opens on a machine, and which ranks they connect.
 *
 * NCCL searches the machine for as many parallel paths as its links can feed at one of a few fixed speeds, doubles
 * what it found, and lays a ring and half of a double binary tree over each. The search is repeated here in closed
 * form for machines whose GPUs are all alike. Every rank's connections then follow by arithmetic, so the
 * differences between ranks are computed, not bounded.
 *
 *     node 0, order of channel 2 (reversed), node 1 (odd: order of channel 3)
 *     [2 1 0 7 6 5 4 3] -> [11 12 13 14 15 8 9 10] -> back to 2        a ring of 2 x 8 H200
 */
#include "memory/nccl_topology.h"

/* GB/s of one NVLink by compute capability (NCCL graph/topo.h). */
static double nvlink_speed(int compute_capability)
{
    if (compute_capability >= 100)
        return 40.1;
    if (compute_capability >= 90)
        return 20.6;
    if (compute_capability == 86)
        return 12.0;
    if (compute_capability >= 70)
        return 20.0;
    return 18.0;
}

/* The speeds that the search tries, fastest first (NCCL graph/search.cc). */
static const double intra_80[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
static const double intra_90[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
static const double intra_100[] = {90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18};
static const double inter_80[] = {48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 2.4, 1.2};
static const double inter_90[] = {48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2};
static const double inter_100[] = {96, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, 3, 2.4, 1.2};

struct speeds {
    const double *gb_per_s;
    size_t n;
};

static struct speeds search_speeds(int compute_capability, bool between_nodes)
{
    if (compute_capability >= 100)
        return between_nodes ? (struct speeds){inter_100, MP_ARRAY_LEN(inter_100)}
                             : (struct speeds){intra_100, MP_ARRAY_LEN(intra_100)};
    if (compute_capability >= 90)
        return between_nodes ? (struct speeds){inter_90, MP_ARRAY_LEN(inter_90)}
                             : (struct speeds){intra_90, MP_ARRAY_LEN(intra_90)};
    return between_nodes ? (struct speeds){inter_80, MP_ARRAY_LEN(inter_80)}
                         : (struct speeds){intra_80, MP_ARRAY_LEN(intra_80)};
}

static uint32_t channel_limit(int version)
{
    return version >= 22500 ? MP_NCCL_MAX_CHANNELS : 32;
}

static uint32_t power_of_two_above(uint32_t x)
{
    uint32_t p = 1;
    while (p < x)
        p *= 2;
    return p;
}

static bool wired_by_nvlink(const struct mp_nccl_job *job)
{
    return job->fabric != MP_NCCL_FABRIC_PCIE &&
           !(job->fabric == MP_NCCL_FABRIC_BRIDGE && job->ranks_per_node > 2);
}

/* GB/s between two GPUs of a node, and out of one GPU into all others. */
static double pair_bandwidth(const struct mp_nccl_job *job)
{
    return job->nvlinks * nvlink_speed(job->compute_capability);
}

static double gpu_bandwidth(const struct mp_nccl_job *job)
{
    const double pair = pair_bandwidth(job);
    return job->fabric == MP_NCCL_FABRIC_DIRECT ? pair * (job->ranks_per_node - 1) : pair;
}

/* What the search found: parallel paths and their speed. */
struct found {
    uint32_t paths;
    double gb_per_s;
};

/* NCCL graph/search.cc: ncclTopoDupChannels. */
static void duplicate_paths(struct found *f, const struct mp_nccl_job *job)
{
    const uint32_t most = channel_limit(job->version) / 2;
    if (f->gb_per_s < 25.0 || (job->compute_capability > 80 && f->gb_per_s < 50.0 && f->paths > 4))
        return;
    const uint32_t doubled = MP_MIN(2 * f->paths, most);
    if (doubled > f->paths)
        f->gb_per_s /= 2;
    f->paths = doubled;
}

/* One node: the fastest speed first; a slower one only if it moves more in all, and not below half the speed. */
static struct found search_node(const struct mp_nccl_job *job)
{
    const struct speeds speeds = search_speeds(job->compute_capability, false);
    const double pair = pair_bandwidth(job);
    const uint32_t ways = job->fabric == MP_NCCL_FABRIC_DIRECT ? job->ranks_per_node - 1 : 1;
    struct found best = {0, 0};
    for (size_t i = 0; i < speeds.n; i++) {
        const double speed = speeds.gb_per_s[i];
        if (speed > pair || (best.paths > 0 && speed < 0.49 * best.gb_per_s))
            continue;
        const uint32_t paths = MP_MIN((uint32_t)(pair / speed) * ways, channel_limit(job->version) / 2);
        if (paths * speed > best.paths * best.gb_per_s)
            best = (struct found){paths, speed};
    }
    return best;
}

/*
 * Several nodes, one network card per GPU: a ring through each card. Leaving by the card it entered costs a ring one
 * hop of NVLink more than leaving by the last GPU's own card, which is tried when NVLink is short (alternate).
 */
static struct found search_network(const struct mp_nccl_job *job, bool *alternate)
{
    const struct speeds speeds = search_speeds(job->compute_capability, true);
    const double card = job->net_gbit / 8.0, link = gpu_bandwidth(job);
    const uint32_t r = job->ranks_per_node;
    *alternate = false;
    for (size_t i = 0; i < speeds.n; i++) {
        const double speed = speeds.gb_per_s[i];
        if (speed > card)
            continue;
        if (r == 1 || r * speed <= link)
            return (struct found){r, speed};
        if (r % 2 == 0 && (r - 1) * speed <= link) {
            *alternate = true;
            return (struct found){r, speed};
        }
    }
    return (struct found){1, 0};
}

static uint32_t paths_without_nvlink(const struct mp_nccl_job *job, enum mp_nccl_transport transport)
{
    /* through host memory a card with PCIe 5 feeds two paths, others one; PCIe cards and sockets one */
    if (transport == MP_NCCL_TRANSPORT_SHM && job->compute_capability >= 90 &&
        job->fabric != MP_NCCL_FABRIC_PCIE)
        return 2;
    return 1;
}

static void search(struct mp_nccl_plan *plan)
{
    const struct mp_nccl_job *job = plan->job;
    const uint32_t most = channel_limit(job->version);
    struct found f;
    plan->orders = 1;
    if (plan->ranks == 1) {
        f = (struct found){most / 2, 0};
    } else if (job->nodes == 1) {
        if (plan->transport == MP_NCCL_TRANSPORT_P2P && wired_by_nvlink(job)) {
            f = search_node(job);
            duplicate_paths(&f, job);
        } else {
            f = (struct found){paths_without_nvlink(job, plan->transport), 0};
        }
    } else if (job->ranks_per_node == 1 ||
               (plan->transport == MP_NCCL_TRANSPORT_P2P && wired_by_nvlink(job))) {
        f = search_network(job, &plan->alternate);
        plan->orders = f.paths;
        duplicate_paths(&f, job);
    } else {
        f = (struct found){paths_without_nvlink(job, plan->transport), 0};
        plan->orders = f.paths;
    }
    f.paths = MP_MAX(1, MP_MIN(f.paths, most / 2));
    plan->search_channels = f.paths;
    plan->base_channels = 2 * f.paths;
    /* graph/connect.cc, ncclTopoPostset: few fast channels between nodes are doubled once more */
    const bool hopper = job->version >= 22500 ? job->compute_capability >= 90 : job->compute_capability == 90;
    const bool few = job->version >= 22000 ? plan->base_channels < 16 : 2 * plan->base_channels <= most;
    if (hopper && job->nodes > 1 && f.gb_per_s > 45.0 && few)
        plan->base_channels *= 2;
    plan->balanced_tree = job->nodes > 1 && job->ranks_per_node > 1 && job->compute_capability < 90;
}

static uint32_t nvls_channels(const struct mp_nccl_job *job)
{
    const struct mp_nccl_env *env = &job->env;
    uint32_t v = 16;
    if (job->compute_capability >= 100)
        v = job->nodes > 1 || job->version < 22700 ? 32 : 24;
    if (env->nvls_channels != 0)
        v = env->nvls_channels;
    if (env->max_ctas != 0)
        v = MP_MIN(v, env->max_ctas);
    return MP_MIN(MP_MAX(v, env->min_ctas), channel_limit(job->version));
}

/* graph/paths.cc, ncclTopoGetNchannels, for a peer on another node. */
static uint32_t channels_per_net_peer(const struct mp_nccl_job *job, uint32_t ranks, uint32_t p2p)
{
    if (job->env.channels_per_net_peer != 0)
        return job->env.channels_per_net_peer;
    if (job->version >= 22900)
        return MP_MAX(2, (job->net_gbit / 8 + 13) / 14);
    uint32_t k = 2;
    if (job->version >= 22000)
        while ((uint64_t)k * ranks > 4 * (uint64_t)p2p && k > 1)
            k /= 2;
    return k;
}

static void choose_p2p_channels(struct mp_nccl_plan *plan, const struct mp_nccl_channels *shared)
{
    const struct mp_nccl_job *job = plan->job;
    const struct mp_nccl_env *env = &job->env;
    uint32_t q = plan->channels.coll;
    if (env->max_p2p_channels != 0)
        q = MP_MIN(q, env->max_p2p_channels);
    q = MP_MAX(q, env->min_p2p_channels);
    if (shared != NULL)
        q = MP_MIN(q, shared->p2p);
    uint32_t k = q;
    if (job->ranks_per_node > 1) {
        const bool nvlink = plan->transport == MP_NCCL_TRANSPORT_P2P && wired_by_nvlink(job);
        k = MP_MIN(k, nvlink ? 2 * MP_MAX(1, job->nvlinks) : 2);
    }
    if (job->nodes > 1)
        k = MP_MIN(k, channels_per_net_peer(job, plan->ranks, q));
    plan->channels.p2p = MP_MIN(power_of_two_above(q), channel_limit(job->version));
    plan->channels.p2p_per_peer = MP_MIN(power_of_two_above(k), plan->channels.p2p);
}

static void choose_channels(struct mp_nccl_plan *plan, const struct mp_nccl_channels *shared)
{
    const struct mp_nccl_job *job = plan->job;
    const struct mp_nccl_env *env = &job->env;
    const uint32_t limit = channel_limit(job->version);
    uint32_t n = MP_MIN(plan->base_channels, limit);
    if (env->max_channels != 0)
        n = MP_MIN(n, env->max_channels);
    if (env->max_ctas != 0)
        n = MP_MIN(n, env->max_ctas);
    n = MP_MAX(n, MP_MIN(MP_MAX(env->min_channels, env->min_ctas), limit));
    if (shared != NULL)
        n = MP_MIN(n, shared->coll);
    const uint32_t v = plan->nvls ? nvls_channels(job) : 0;
    if (job->version >= 22000 && job->version < 22800)
        n = MP_MAX(n, v);
    plan->channels.coll = n;
    plan->channels.nvls = v;
    choose_p2p_channels(plan, shared);
}

/* ---- what is possible on this machine ---- */

static enum mp_nccl_transport choose_transport(const struct mp_nccl_job *job)
{
    const bool p2p = job->env.p2p != MP_NCCL_OFF, shm = job->env.shm != MP_NCCL_OFF;
    enum mp_nccl_transport t = job->transport;
    if (t == MP_NCCL_TRANSPORT_AUTO) {
        if (wired_by_nvlink(job))
            t = MP_NCCL_TRANSPORT_P2P;
        else
            t = job->consumer ? MP_NCCL_TRANSPORT_SHM : MP_NCCL_TRANSPORT_EITHER;
    }
    if (t == MP_NCCL_TRANSPORT_EITHER && (!p2p || !shm))
        t = p2p ? MP_NCCL_TRANSPORT_P2P : MP_NCCL_TRANSPORT_SHM;
    if (t == MP_NCCL_TRANSPORT_P2P && !p2p)
        t = MP_NCCL_TRANSPORT_SHM;
    if (t == MP_NCCL_TRANSPORT_SHM && !shm)
        t = MP_NCCL_TRANSPORT_NET;
    return t;
}

static bool nvls_possible(const struct mp_nccl_job *job, bool cumem)
{
    return job->fabric == MP_NCCL_FABRIC_NVSWITCH && job->compute_capability >= 90 &&
           job->ranks_per_node > 1 && job->nvls != MP_NCCL_OFF && job->env.nvls != MP_NCCL_OFF &&
           (cumem || job->version < 21900);
}

static enum memplan_status check_job(const struct mp_nccl_job *job, struct memplan_error *err)
{
    if (job->nodes == 0 || job->nodes > MP_NCCL_MAX_NODES)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "nodes: %u is outside 1 to %d", job->nodes,
                            MP_NCCL_MAX_NODES);
    if (job->ranks_per_node == 0 || job->ranks_per_node > MP_NCCL_MAX_RANKS_PER_NODE)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "GPUs per node: %u is outside 1 to %d",
                            job->ranks_per_node, MP_NCCL_MAX_RANKS_PER_NODE);
    if (job->version < MP_NCCL_VERSION_OLDEST || job->version > MP_NCCL_VERSION_NEWEST)
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED, "NCCL version %d: 2.18 to 2.30 are known",
                            job->version);
    if (job->channels_given &&
        (job->channels.coll == 0 || job->channels.coll > MP_NCCL_MAX_CHANNELS ||
         job->channels.nvls > MP_NCCL_MAX_CHANNELS || job->channels.p2p == 0 ||
         job->channels.p2p > MP_NCCL_MAX_CHANNELS || job->channels.p2p_per_peer == 0 ||
         job->channels.p2p_per_peer > job->channels.p2p))
        return mp_error_set(err, MEMPLAN_STATUS_RANGE,
                            "channels: %u,%u,%u,%u: collective, p2p and p2p per peer are 1 to %d, NVLS 0 to %d, "
                            "and per peer not above p2p",
                            job->channels.coll, job->channels.p2p, job->channels.p2p_per_peer,
                            job->channels.nvls, MP_NCCL_MAX_CHANNELS, MP_NCCL_MAX_CHANNELS);
    if (job->net_gbit == 0 || job->net_gbit > 100000)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "network card: %u Gbit/s is outside 1 to 100000",
                            job->net_gbit);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_nccl_plan_init(struct mp_nccl_plan *plan, const struct mp_nccl_job *job,
                                      struct memplan_error *err)
{
    const enum memplan_status status = check_job(job, err);
    if (status != MEMPLAN_STATUS_OK)
        return status;
    *plan = (struct mp_nccl_plan){.job = job, .ranks = job->nodes * job->ranks_per_node};
    plan->cumem = job->env.cumem == MP_NCCL_DEFAULT ? job->version >= 21900 : job->env.cumem == MP_NCCL_ON;
    plan->lazy = plan->cumem && job->version >= 22200 && job->env.runtime_connect != MP_NCCL_OFF;
    plan->transport = choose_transport(job);
    plan->nvls = job->channels_given ? job->channels.nvls > 0 : nvls_possible(job, plan->cumem);
    /* one node has no network card to talk to unless it is said to have one */
    plan->gdr = !job->sockets && (job->nodes > 1 ? job->env.gdr != MP_NCCL_OFF : job->env.gdr == MP_NCCL_ON);
    plan->pxn = job->env.pxn != MP_NCCL_OFF && wired_by_nvlink(job);
    plan->read_mode = job->env.p2p_read == MP_NCCL_ON ||
                      (job->env.p2p_read == MP_NCCL_DEFAULT && job->compute_capability == 80 &&
                       wired_by_nvlink(job));
    search(plan);
    if (job->channels_given) {
        plan->channels = job->channels;
    } else {
        struct mp_nccl_plan parent;
        if (job->parent != NULL) {
            const enum memplan_status parent_status = mp_nccl_plan_init(&parent, job->parent, err);
            if (parent_status != MEMPLAN_STATUS_OK)
                return parent_status;
        }
        choose_channels(plan, job->parent != NULL ? &parent.channels : NULL);
    }
    /* from 2.20 to 2.27 every collective channel had NVLS peers */
    plan->nvls_table_channels =
        plan->nvls && job->version >= 22000 && job->version < 22800 ? plan->channels.coll : plan->channels.nvls;
    return MEMPLAN_STATUS_OK;
}

/* ---- who talks to whom ---- */

#define NOBODY UINT32_MAX

/* A node's parent and children in one binary tree over nodes (NCCL graph/trees.cc). */
struct tree {
    uint32_t up, down[2];
    bool first_child; /* of its parent */
};

static struct tree binary_tree(uint32_t n, uint32_t node)
{
    struct tree t = {NOBODY, {NOBODY, NOBODY}, false};
    uint32_t bit = 1;
    while (bit < n && (bit & node) == 0)
        bit <<= 1;
    if (node == 0) {
        if (n > 1)
            t.down[1] = bit >> 1;
        return t;
    }
    t.up = (node ^ bit) | (bit << 1);
    if (t.up >= n)
        t.up = node ^ bit;
    t.first_child = node < t.up;
    uint32_t low = bit >> 1;
    if (low == 0)
        return t;
    t.down[0] = node - low;
    while (low != 0 && node + low >= n)
        low >>= 1;
    t.down[1] = low == 0 ? NOBODY : node + low;
    return t;
}

static uint32_t shifted(uint32_t node, uint32_t n)
{
    return node == NOBODY ? NOBODY : (node + 1) % n;
}

static uint32_t mirrored(uint32_t node, uint32_t n)
{
    return node == NOBODY ? NOBODY : n - 1 - node;
}

/* The second tree is the first one mirrored or, with an odd number of nodes, shifted: leaves become inner nodes. */
static struct tree double_tree(uint32_t n, uint32_t node, unsigned which)
{
    if (which == 0)
        return binary_tree(n, node);
    struct tree t = binary_tree(n, n % 2 == 1 ? (node + n - 1) % n : n - 1 - node);
    uint32_t (*const back)(uint32_t, uint32_t) = n % 2 == 1 ? shifted : mirrored;
    t.up = back(t.up, n);
    t.down[0] = back(t.down[0], n);
    t.down[1] = back(t.down[1], n);
    return t;
}

struct list {
    struct mp_nccl_connection *out;
    size_t n;
};

static void connect(struct list *list, const struct mp_nccl_plan *plan, uint32_t rank, uint32_t peer, bool send,
                    enum mp_nccl_algorithm algorithm)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->out[i].peer == peer && list->out[i].send == send)
            return;
    if (list->n == MP_NCCL_MAX_CONNECTIONS)
        return;
    const uint32_t r = plan->job->ranks_per_node;
    list->out[list->n++] = (struct mp_nccl_connection){
        .peer = peer, .send = send, .net = peer / r != rank / r, .algorithm = algorithm};
}

static void connect_both(struct list *list, const struct mp_nccl_plan *plan, uint32_t rank, uint32_t peer,
                         enum mp_nccl_algorithm algorithm)
{
    connect(list, plan, rank, peer, true, algorithm);
    connect(list, plan, rank, peer, false, algorithm);
}

/* Place i of an order that starts at GPU `first` and goes up or down, and the place of a GPU in it. */
static uint32_t gpu_at(uint32_t first, bool up, uint32_t i, uint32_t r)
{
    return up ? (first + i) % r : (first + r - i % r) % r;
}

static uint32_t place_of(uint32_t first, bool up, uint32_t gpu, uint32_t r)
{
    return up ? (gpu + r - first) % r : (first + r - gpu) % r;
}

/* A channel's ring through a node: where it enters, and which way round. */
struct ring_order {
    uint32_t first;
    bool up;
};

static struct ring_order ring_order(const struct mp_nccl_plan *plan, uint32_t order, uint32_t node)
{
    if (plan->job->nodes == 1)
        return (struct ring_order){0, true}; /* PCI order on every channel */
    if (!plan->alternate)
        return (struct ring_order){order, false};
    const uint32_t own = node % 2 == 1 ? order ^ 1u : order;
    return (struct ring_order){own, own % 2 == 1};
}

static void connect_ring(struct list *list, const struct mp_nccl_plan *plan, uint32_t rank, uint32_t order)
{
    const uint32_t r = plan->job->ranks_per_node, nodes = plan->job->nodes, node = rank / r;
    const struct ring_order own = ring_order(plan, order, node);
    const uint32_t place = place_of(own.first, own.up, rank % r, r);
    uint32_t next, previous;
    if (place + 1 < r) {
        next = node * r + gpu_at(own.first, own.up, place + 1, r);
    } else {
        const uint32_t next_node = (node + 1) % nodes;
        next = next_node * r + ring_order(plan, order, next_node).first;
    }
    if (place > 0) {
        previous = node * r + gpu_at(own.first, own.up, place - 1, r);
    } else {
        const uint32_t previous_node = (node + nodes - 1) % nodes;
        const struct ring_order other = ring_order(plan, order, previous_node);
        previous = previous_node * r + gpu_at(other.first, other.up, r - 1, r);
    }
    connect(list, plan, rank, next, true, MP_NCCL_ALGORITHM_RING);
    connect(list, plan, rank, previous, false, MP_NCCL_ALGORITHM_RING);
}

/* A chain through the node's GPUs; its head talks to other nodes, or its second GPU to the first child (balanced). */
static void connect_tree(struct list *list, const struct mp_nccl_plan *plan, uint32_t rank, uint32_t order,
                         unsigned which)
{
    const enum mp_nccl_algorithm tree = MP_NCCL_ALGORITHM_TREE;
    const uint32_t r = plan->job->ranks_per_node, node = rank / r;
    const uint32_t place = place_of(order, true, rank % r, r), second = gpu_at(order, true, 1, r);
    if (place > 0)
        connect_both(list, plan, rank, node * r + gpu_at(order, true, place - 1, r), tree);
    if (place + 1 < r)
        connect_both(list, plan, rank, node * r + gpu_at(order, true, place + 1, r), tree);
    const struct tree t = double_tree(plan->job->nodes, node, which);
    if (place == 0 && t.up != NOBODY)
        connect_both(list, plan, rank, t.up * r + (plan->balanced_tree && t.first_child ? second : order), tree);
    if (place == (plan->balanced_tree ? 1 : 0) && t.down[0] != NOBODY)
        connect_both(list, plan, rank, t.down[0] * r + order, tree);
    if (place == 0 && t.down[1] != NOBODY)
        connect_both(list, plan, rank, t.down[1] * r + order, tree);
}

/* GPUs with the same place in their nodes. */
static void connect_nvls_tree(struct list *list, const struct mp_nccl_plan *plan, uint32_t rank, unsigned which)
{
    const enum mp_nccl_algorithm nvls = MP_NCCL_ALGORITHM_NVLS_TREE;
    const uint32_t r = plan->job->ranks_per_node, node = rank / r, gpu = rank % r;
    const struct tree t = double_tree(plan->job->nodes, node, which);
    if (t.up != NOBODY)
        connect_both(list, plan, rank, t.up * r + gpu, nvls);
    for (size_t i = 0; i < 2; i++)
        if (t.down[i] != NOBODY)
            connect_both(list, plan, rank, t.down[i] * r + gpu, nvls);
}

static void connect_pat(struct list *list, const struct mp_nccl_plan *plan, uint32_t rank)
{
    for (uint32_t distance = 1; distance < plan->ranks; distance *= 2) {
        connect_both(list, plan, rank, (rank + distance) % plan->ranks, MP_NCCL_ALGORITHM_PAT);
        connect_both(list, plan, rank, (rank + plan->ranks - distance) % plan->ranks, MP_NCCL_ALGORITHM_PAT);
    }
}

size_t mp_nccl_connections(const struct mp_nccl_plan *plan, uint32_t rank, uint32_t channel, uint32_t algorithms,
                           struct mp_nccl_connection *out)
{
    struct list list = {out, 0};
    if (plan->ranks == 1)
        return 0;
    if (channel < plan->channels.coll) {
        const uint32_t half = channel % (2 * plan->search_channels) / plan->search_channels;
        const uint32_t searched = channel % plan->search_channels;
        const uint32_t order = plan->job->nodes == 1 ? 0 : searched % plan->orders % plan->job->ranks_per_node;
        if (algorithms & MP_NCCL_BIT(MP_NCCL_ALGORITHM_RING))
            connect_ring(&list, plan, rank, order);
        if (algorithms & MP_NCCL_BIT(MP_NCCL_ALGORITHM_TREE))
            connect_tree(&list, plan, rank, order, half);
    }
    if (channel < plan->nvls_table_channels && (algorithms & MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS_TREE)))
        connect_nvls_tree(&list, plan, rank, channel % 2);
    if (channel < plan->channels.coll && (algorithms & MP_NCCL_BIT(MP_NCCL_ALGORITHM_PAT)))
        connect_pat(&list, plan, rank);
    return list.n;
}

/* ---- nodes that look alike ---- */

#define SLOTS 8 /* next and previous node, then up and two children in both trees */

static bool power_of_two_apart(uint32_t a, uint32_t b, uint32_t n)
{
    const uint32_t forward = (b + n - a) % n, backward = (a + n - b) % n;
    return (forward & (forward - 1)) == 0 || (backward & (backward - 1)) == 0;
}

struct mp_nccl_node_shape mp_nccl_node_shape(const struct mp_nccl_plan *plan, uint32_t node)
{
    const uint32_t n = plan->job->nodes;
    uint32_t slot[SLOTS] = {(node + 1) % n, (node + n - 1) % n};
    struct mp_nccl_node_shape shape = {{0, 0}};
    shape.words[1] = (uint64_t)(node % 2) | (uint64_t)(slot[0] % 2) << 1 | (uint64_t)(slot[1] % 2) << 2;
    for (unsigned which = 0; which < 2; which++) {
        const struct tree t = double_tree(n, node, which);
        slot[2 + 3 * which] = t.up;
        slot[3 + 3 * which] = t.down[0];
        slot[4 + 3 * which] = t.down[1];
        shape.words[1] |= (uint64_t)t.first_child << (3 + which);
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        uint64_t code = SLOTS; /* nobody */
        if (slot[i] != NOBODY) {
            unsigned first = 0; /* the first slot with the same node: equal peers are counted once */
            while (slot[first] != slot[i])
                first++;
            code = first;
            if (power_of_two_apart(node, slot[i], n))
                shape.words[1] |= UINT64_C(1) << (8 + i);
        }
        shape.words[0] |= code << (4 * i);
    }
    return shape;
}
