/* SPDX-License-Identifier: MIT */
/* NCCL's choice of channels, and who is connected to whom: rings, trees, NVLS trees, PAT. Internal to src/memory/nccl*.c. */
#ifndef MP_NCCL_TOPOLOGY_H
#define MP_NCCL_TOPOLOGY_H

#include "memory/nccl.h"

/* A job with everything that follows from version, wiring and environment decided. */
struct mp_nccl_plan {
    const struct mp_nccl_job *job;
    uint32_t ranks;
    struct mp_nccl_channels channels;
    enum mp_nccl_transport transport; /* P2P, SHM, NET or EITHER, never AUTO */
    bool cumem, lazy, nvls, gdr, pxn, read_mode;
    uint32_t nvls_table_channels; /* channels with NVLS peers */
    /* the search's result that the connections follow */
    uint32_t base_channels;   /* after doubling; further channels repeat them */
    uint32_t search_channels; /* half of the doubled count: channel c and c + search_channels use the two trees */
    uint32_t orders;          /* distinct orders of a node's GPUs: search channel c uses order c mod orders */
    bool alternate;           /* rings leave by another card than they entered, and odd nodes swap pairs */
    bool balanced_tree;       /* a node's second GPU takes the first child */
};

enum memplan_status mp_nccl_plan_init(struct mp_nccl_plan *plan, const struct mp_nccl_job *job,
                                      struct memplan_error *err);

/* One direction to one peer on one channel. */
struct mp_nccl_connection {
    uint32_t peer;
    bool send, net;
    enum mp_nccl_algorithm algorithm; /* the first that asks for it */
};
#define MP_NCCL_MAX_CONNECTIONS 128 /* of one rank on one channel: ring 2, trees 2 x 6, PAT 4 per power of two */

/**
 * Connections that `rank` has on `channel` once `algorithms` (bits) are in use, each once. Returns how many were written
 * to out[MP_NCCL_MAX_CONNECTIONS].
 */
size_t mp_nccl_connections(const struct mp_nccl_plan *plan, uint32_t rank, uint32_t channel, uint32_t algorithms,
                           struct mp_nccl_connection *out);

/** A number that is equal for two nodes whose ranks have the same connections up to renaming of peers. */
struct mp_nccl_node_shape {
    uint64_t words[2];
};
struct mp_nccl_node_shape mp_nccl_node_shape(const struct mp_nccl_plan *plan, uint32_t node);

#endif
