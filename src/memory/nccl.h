/* SPDX-License-Identifier: MIT */
/*
 * NCCL: device memory that one rank's communicators take, at creation and after their collectives.
 *
 * One job describes one process group; what it takes does not depend on any other group unless it shares a parent's
 * resources (`parent`). Several groups: predict each and add.
 *
 *     struct mp_nccl_job job;
 *     mp_nccl_job_init(&job, "H200-141G", 90, 1, 8);
 *     job.collectives = MP_NCCL_BIT(MP_NCCL_ALLREDUCE);
 *     status = mp_nccl_predict(&job, &result, err);   // result.init_bytes, .low_bytes, .high_bytes, .parts
 *
 * Depends only on base: any part of the planner may ask. Sizes follow NCCL 2.28.9 (see docs/nccl.md), with the
 * differences of 2.18 to 2.30 that change device memory.
 */
#ifndef MP_NCCL_H
#define MP_NCCL_H

#include "base/arena.h"
#include "base/error.h"

#define MP_NCCL_MAX_CHANNELS 64
#define MP_NCCL_MAX_NODES 65536
#define MP_NCCL_MAX_RANKS_PER_NODE 256
#define MP_NCCL_VERSION_OLDEST 21800
#define MP_NCCL_VERSION_NEWEST 23099
#define MP_NCCL_VERSION_DEFAULT 22809
#define MP_NCCL_BIT(i) (1u << (unsigned)(i))

/** What the application calls; the first five run an algorithm, the others are sends and receives. */
#define MP_NCCL_COLLECTIVE_MAP(X)                                                                  \
    X(ALLREDUCE, "allreduce")                                                                      \
    X(ALLGATHER, "allgather")                                                                      \
    X(REDUCESCATTER, "reducescatter")                                                              \
    X(BROADCAST, "broadcast")                                                                      \
    X(REDUCE, "reduce")                                                                            \
    X(SENDRECV, "sendrecv")                                                                        \
    X(ALLTOALL, "alltoall")                                                                        \
    X(GATHER, "gather")                                                                            \
    X(SCATTER, "scatter")
enum mp_nccl_collective {
#define X(name, text) MP_NCCL_##name,
    MP_NCCL_COLLECTIVE_MAP(X)
#undef X
    MP_NCCL_COLLECTIVES
};
#define MP_NCCL_TUNED_COLLECTIVES 5 /* ALLREDUCE .. REDUCE */
const char *mp_nccl_collective_text(enum mp_nccl_collective collective);
/** "all_reduce", "AllReduce", "allreduce"; an unknown word: INPUT, names the closest. */
enum memplan_status mp_nccl_collective_parse(const char *text, enum mp_nccl_collective *collective,
                                             struct memplan_error *err);

/** How a collective moves data; each has connections of its own. */
#define MP_NCCL_ALGORITHM_MAP(X)                                                                   \
    X(RING, "Ring")                                                                                \
    X(TREE, "Tree")                                                                                \
    X(NVLS, "NVLS")                                                                                \
    X(NVLS_TREE, "NVLSTree")                                                                       \
    X(PAT, "PAT")
enum mp_nccl_algorithm {
#define X(name, text) MP_NCCL_ALGORITHM_##name,
    MP_NCCL_ALGORITHM_MAP(X)
#undef X
    MP_NCCL_ALGORITHMS
};
const char *mp_nccl_algorithm_text(enum mp_nccl_algorithm algorithm);

/** Where the bytes of a communicator are; a result has one entry each, zero or not. */
#define MP_NCCL_PART_MAP(X)                                                                        \
    X(TABLES, "channel tables")                                                                    \
    X(NVLS_TABLES, "NVLS tables")                                                                  \
    X(RING, "ring connections")                                                                    \
    X(TREE, "tree connections")                                                                    \
    X(NVLS_TREE, "NVLS tree connections")                                                          \
    X(PAT, "PAT connections")                                                                      \
    X(NVLS_BUFFERS, "NVLS buffers")                                                                \
    X(PEERS, "send/recv peers")                                                                    \
    X(POOLS, "send/recv network pools")
enum mp_nccl_part_id {
#define X(name, text) MP_NCCL_PART_##name,
    MP_NCCL_PART_MAP(X)
#undef X
    MP_NCCL_PARTS
};
const char *mp_nccl_part_text(enum mp_nccl_part_id part);

/** How the GPUs of a node are wired. */
#define MP_NCCL_FABRIC_MAP(X)                                                                      \
    X(NVSWITCH, "nvswitch")                                                                        \
    X(DIRECT, "nvlink-direct")                                                                     \
    X(BRIDGE, "nvlink-bridge")                                                                     \
    X(PCIE, "pcie")
enum mp_nccl_fabric {
#define X(name, text) MP_NCCL_FABRIC_##name,
    MP_NCCL_FABRIC_MAP(X)
#undef X
    MP_NCCL_FABRICS
};
const char *mp_nccl_fabric_text(enum mp_nccl_fabric fabric);
enum memplan_status mp_nccl_fabric_parse(const char *text, enum mp_nccl_fabric *fabric,
                                         struct memplan_error *err);

/** Between two ranks of a node. AUTO: from fabric and environment. EITHER: P2P or SHM, whichever is possible there. */
enum mp_nccl_transport {
    MP_NCCL_TRANSPORT_AUTO,
    MP_NCCL_TRANSPORT_P2P,
    MP_NCCL_TRANSPORT_SHM,
    MP_NCCL_TRANSPORT_NET,
    MP_NCCL_TRANSPORT_EITHER
};

enum mp_nccl_switch { MP_NCCL_DEFAULT, MP_NCCL_OFF, MP_NCCL_ON };

/** NCCL_* variables that change device memory. All zero: none is set. */
struct mp_nccl_env {
    uint64_t buff_bytes, ll_buff_bytes, ll128_buff_bytes;                    /* 0: default */
    uint64_t nvls_chunk_bytes, net_chunk_bytes, nvl_chunk_bytes, pci_chunk_bytes;
    uint32_t min_channels, max_channels, min_ctas, max_ctas;                 /* 0: not set */
    uint32_t min_p2p_channels, max_p2p_channels, channels_per_net_peer, nvls_channels;
    enum mp_nccl_switch p2p, shm, nvls, cumem, runtime_connect, split_share, pxn, p2p_read, p2p_copy,
        shm_copy, shared_net_buffers, gdr, pat;
    bool algorithms_given, simple_excluded; /* NCCL_ALGO is set; NCCL_PROTO without Simple */
    uint32_t algorithms[MP_NCCL_TUNED_COLLECTIVES]; /* bits of enum mp_nccl_algorithm */
};

/**
 * Apply one "NAME=VALUE". Names that NCCL has but that leave device memory alone are accepted; names whose effect is
 * not modelled are UNSUPPORTED; unknown names are INPUT and name the closest; values are checked as NCCL reads them.
 */
enum memplan_status mp_nccl_env_set(struct mp_nccl_env *env, const char *assignment,
                                    struct memplan_error *err);

/** Channels of a communicator, as in NCCL's line "24 coll channels, ... 32 p2p channels per peer". */
struct mp_nccl_channels {
    uint32_t coll, nvls, p2p, p2p_per_peer;
};

struct mp_nccl_job {
    /* where it runs */
    int version;            /* 22809 is 2.28.9 */
    int compute_capability; /* 90 for 9.0 */
    enum mp_nccl_fabric fabric;
    uint32_t nvlinks;       /* per GPU; DIRECT and BRIDGE: per pair of GPUs */
    bool consumer;          /* a GeForce card: no peer access over PCIe */
    bool grace;             /* Arm host: doubles the network chunk from 2.29 */
    uint32_t net_gbit;      /* of the one network card per GPU */
    bool sockets;           /* no GPUDirect RDMA: network buffers are host memory */
    enum mp_nccl_switch nvls; /* multicast: DEFAULT is on where the hardware has it */
    enum mp_nccl_transport transport;
    struct mp_nccl_env env;
    /* the group */
    uint32_t nodes, ranks_per_node;
    uint32_t collectives;   /* bits of enum mp_nccl_collective used so far; 0: only created */
    uint32_t sendrecv_peers; /* peers each rank sends to and receives from with SENDRECV; 0: its two neighbours */
    uint32_t algorithms;    /* bits known to be in use; 0: what the tuner may choose for `collectives` */
    bool channels_given;
    struct mp_nccl_channels channels; /* when given, as a log shows them */
    bool rank_given;        /* only this rank is asked about, not the smallest and the largest */
    uint32_t rank;
    /* a split of `parent` that shares its resources (splitShare set on both): which parent's ranks it has */
    const struct mp_nccl_job *parent; /* NULL: a communicator of its own */
    uint32_t parent_stride; /* distance of neighbouring ranks in the parent; 1: consecutive */
};

/** Defaults of a card by name and compute capability: wiring, network card, Grace. */
void mp_nccl_job_init(struct mp_nccl_job *job, const char *gpu, int compute_capability, uint32_t nodes,
                      uint32_t ranks_per_node);

/** "2.28.9", "2.28", "22809" to 22809; outside 2.18 to 2.30: UNSUPPORTED. */
enum memplan_status mp_nccl_version_parse(const char *text, int *version, struct memplan_error *err);

struct mp_nccl_part {
    uint64_t init_bytes, low_bytes, high_bytes;
};

/**
 * Bytes of one rank. init: after creation (the rank with most). low: the smallest outcome over ranks and over the
 * algorithms the tuner may pick; high: the rank with most after every one of them was used. mean: over ranks, at high.
 * parts[] adds up to init_bytes, low_bytes and high_bytes.
 */
struct mp_nccl_result {
    uint32_t ranks;
    struct mp_nccl_channels channels;
    uint32_t algorithms; /* bits: used in the high outcome */
    bool lazy;           /* connections are made at first use */
    uint64_t init_low_bytes, init_bytes, low_bytes, high_bytes, mean_bytes;
    uint64_t host_bytes; /* pinned host memory at high: a budget of its own, in no sum */
    struct mp_nccl_part parts[MP_NCCL_PARTS];
};

enum memplan_status mp_nccl_predict(const struct mp_nccl_job *job, struct mp_nccl_result *result,
                                    struct memplan_error *err);

/** What the library takes once per process (loaded kernels), given all collectives of all its groups. */
uint64_t mp_nccl_process_bytes(uint32_t collectives);

/* What a log of NCCL_DEBUG=INFO says of one process: its communicators, ready to be predicted. */
struct mp_nccl_log_comm {
    struct mp_nccl_job job;
    uint32_t rank, ranks;
    bool connected;  /* some connection or "Connected ..." line was seen */
    uint64_t nvls_bytes; /* nvlsTotalSize as printed; 0: no such line */
};
struct mp_nccl_log {
    const char *process; /* "host:pid [device]" of the process with most communicators */
    size_t n_processes;
    bool version_found;
    int version;
    const struct mp_nccl_log_comm *comms; /* of that process, in order of creation */
    size_t n_comms;
};

/**
 * Read a log. `base` gives what a log does not say (card, wiring); version, channels, transports, NCCL_* variables and
 * the algorithms in use come from the log. Not a log, or one that ends before a communicator exists: INPUT.
 */
enum memplan_status mp_nccl_log_parse(struct mp_arena *arena, const char *origin, const char *text, size_t length,
                                      const struct mp_nccl_job *base, struct mp_nccl_log *log,
                                      struct memplan_error *err);

#endif
