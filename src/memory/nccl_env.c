/* SPDX-License-Identifier: MIT */
/*
 * NCCL_* variables: a table of those that change device memory, and lists of those that leave it alone or whose
 * effect is not modelled, so that a misspelt name is never taken for one without effect.
 */
#include <ctype.h>
#include <stddef.h>
#include <strings.h>

#include "base/units.h"
#include "memory/nccl.h"

enum kind {
    BYTES,      /* uint64_t, 1 to 2^31 - 1: NCCL keeps sizes in an int */
    COUNT,      /* uint32_t, 1 to 64 */
    ON_OFF,     /* 0: off, else on */
    OFF_ON,     /* 0: on, else off: the variable disables something */
    ALGORITHMS, /* NCCL_ALGO */
    PROTOCOLS,  /* NCCL_PROTO */
    P2P_LEVEL,  /* LOC or 0: no peer access */
    GDR_LEVEL,  /* likewise: no GPUDirect RDMA */
    NETWORK,    /* NCCL_NET: Socket means no GPUDirect RDMA */
};

#define AT(field) offsetof(struct mp_nccl_env, field)

static const struct {
    const char *name; /* without NCCL_ */
    enum kind kind;
    size_t target;
} variables[] = {
    {"BUFFSIZE", BYTES, AT(buff_bytes)},
    {"LL_BUFFSIZE", BYTES, AT(ll_buff_bytes)},
    {"LL128_BUFFSIZE", BYTES, AT(ll128_buff_bytes)},
    {"NVLS_CHUNKSIZE", BYTES, AT(nvls_chunk_bytes)},
    {"P2P_NET_CHUNKSIZE", BYTES, AT(net_chunk_bytes)},
    {"P2P_NVL_CHUNKSIZE", BYTES, AT(nvl_chunk_bytes)},
    {"P2P_PCI_CHUNKSIZE", BYTES, AT(pci_chunk_bytes)},
    {"MIN_NCHANNELS", COUNT, AT(min_channels)},
    {"MAX_NCHANNELS", COUNT, AT(max_channels)},
    {"MIN_NRINGS", COUNT, AT(min_channels)},
    {"MAX_NRINGS", COUNT, AT(max_channels)},
    {"MIN_CTAS", COUNT, AT(min_ctas)},
    {"MAX_CTAS", COUNT, AT(max_ctas)},
    {"MIN_P2P_NCHANNELS", COUNT, AT(min_p2p_channels)},
    {"MAX_P2P_NCHANNELS", COUNT, AT(max_p2p_channels)},
    {"NCHANNELS_PER_NET_PEER", COUNT, AT(channels_per_net_peer)},
    {"NVLS_NCHANNELS", COUNT, AT(nvls_channels)},
    {"P2P_DISABLE", OFF_ON, AT(p2p)},
    {"P2P_LEVEL", P2P_LEVEL, AT(p2p)},
    {"SHM_DISABLE", OFF_ON, AT(shm)},
    {"NVLS_ENABLE", ON_OFF, AT(nvls)},
    {"CUMEM_ENABLE", ON_OFF, AT(cumem)},
    {"RUNTIME_CONNECT", ON_OFF, AT(runtime_connect)},
    {"COMM_SPLIT_SHARE_RESOURCES", ON_OFF, AT(split_share)},
    {"PXN_DISABLE", OFF_ON, AT(pxn)},
    {"P2P_PXN_LEVEL", ON_OFF, AT(pxn)},
    {"P2P_READ_ENABLE", ON_OFF, AT(p2p_read)},
    {"P2P_USE_CUDA_MEMCPY", ON_OFF, AT(p2p_copy)},
    {"SHM_USE_CUDA_MEMCPY", ON_OFF, AT(shm_copy)},
    {"NET_SHARED_BUFFERS", ON_OFF, AT(shared_net_buffers)},
    {"NET_GDR_LEVEL", GDR_LEVEL, AT(gdr)},
    {"NET", NETWORK, AT(gdr)},
    {"IB_DISABLE", OFF_ON, AT(gdr)},
    {"PAT_ENABLE", ON_OFF, AT(pat)},
    {"ALGO", ALGORITHMS, AT(algorithms)},
    {"PROTO", PROTOCOLS, AT(simple_excluded)},
};

/* Device memory is the same with and without. */
static const char *const neutral[] = {
    "ALLOC_P2P_NET_LL_BUFFERS", "ASYNC_ERROR_HANDLING", "BLOCKING_WAIT", "BUFFER_REGISTER", "CHECKS_DISABLE",
    "CHECK_POINTERS", "COMM_BLOCKING", "COMM_ID", "CONF_FILE", "CONNECT_ROUND_MAX_PEERS", "CROSS_NIC",
    "CUMEM_HOST_ENABLE", "DEBUG", "DEBUG_FILE", "DEBUG_SUBSYS", "DEBUG_TIMESTAMP_FORMAT", "DEBUG_TIMESTAMP_LEVELS",
    "DMABUF_ENABLE", "GRAPH_DUMP_FILE", "GRAPH_HELPER_DISABLE", "GRAPH_MIXING_SUPPORT", "HOSTID", "IB_ADAPTIVE_ROUTING",
    "IB_AR_THRESHOLD", "IB_CUDA_SUPPORT", "IB_GID_INDEX", "IB_HCA", "IB_MERGE_NICS", "IB_MERGE_VFS",
    "IB_PCI_RELAXED_ORDERING", "IB_PKEY", "IB_QPS_PER_CONNECTION", "IB_RETRY_CNT", "IB_RETURN_ASYNC_EVENTS",
    "IB_ROCE_VERSION_NUM", "IB_SL", "IB_SPLIT_DATA_ON_QPS", "IB_TC", "IB_TIMEOUT", "IB_USE_INLINE",
    "IGNORE_CPU_AFFINITY", "IGNORE_DISABLED_P2P", "LAUNCH_MODE", "LAUNCH_ORDER_IMPLICIT", "LL128_NTHREADS",
    "LOCAL_REGISTER", "NET_PLUGIN", "NSOCKS_PERTHREAD", "NTHREADS", "NVLSTREE_MAX_CHUNKSIZE", "NVTX_DISABLE",
    "OOB_NET_ENABLE", "OOB_NET_IFNAME", "P2P_DIRECT_DISABLE", "P2P_LL_THRESHOLD", "PROFILER_PLUGIN",
    "PROGRESS_APPENDOP_FREQ", "RAS_ADDR", "RAS_ENABLE", "RAS_TIMEOUT_FACTOR", "SET_STACK_SIZE", "SET_THREAD_NAME",
    "SOCKET_FAMILY", "SOCKET_IFNAME", "SOCKET_NTHREADS", "SOCKET_POLL_TIMEOUT_MSEC", "SOCKET_RETRY_CNT",
    "SOCKET_RETRY_SLEEP_MSEC", "THREAD_THRESHOLDS", "TOPO_DUMP_FILE", "TUNER_PLUGIN", "UID_STAGGER_RATE",
    "UID_STAGGER_THRESHOLD", "WIN_ENABLE", "WORK_FIFO_BYTES",
};

/* They change channels or buffers in ways that a table cannot foresee. */
static const char *const unmodelled[] = {
    "COLLNET_ENABLE", "CTA_POLICY", "GDRCOPY_ENABLE", "GDRCOPY_FLUSH_ENABLE", "GIN_ENABLE", "GRAPH_FILE",
    "MNNVL_ENABLE", "NET_DISABLE_INTRA", "NET_FORCE_MERGE", "NET_GDR_READ", "NETDEVS_POLICY", "NVB_DISABLE",
    "SYM_CTAS", "TOPO_FILE", "TUNER_CONFIG_FILE", "WORK_ARGS_BYTES",
};

static bool in_list(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

static enum memplan_status unknown_variable(const char *name, struct memplan_error *err)
{
    const char *all[MP_ARRAY_LEN(variables) + MP_ARRAY_LEN(neutral) + MP_ARRAY_LEN(unmodelled)];
    size_t n = 0;
    for (size_t i = 0; i < MP_ARRAY_LEN(variables); i++)
        all[n++] = variables[i].name;
    for (size_t i = 0; i < MP_ARRAY_LEN(neutral); i++)
        all[n++] = neutral[i];
    for (size_t i = 0; i < MP_ARRAY_LEN(unmodelled); i++)
        all[n++] = unmodelled[i];
    const char *closest = mp_closest(strncmp(name, "NCCL_", 5) == 0 ? name + 5 : name, all, n);
    if (closest != NULL)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%.80s' is no variable of NCCL; did you mean 'NCCL_%s'?",
                            name, closest);
    return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%.80s' is no variable of NCCL", name);
}

/* NCCL reads numbers with strtoll, base 0, and takes the default when text follows. */
static enum memplan_status parse_number(const char *name, const char *text, int64_t low, int64_t high,
                                        int64_t *value, struct memplan_error *err)
{
    char *end;
    const long long number = strtoll(text, &end, 0);
    if (end == text || *end != '\0' || isspace((unsigned char)*text))
        return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                            "NCCL_%s: '%.40s' is no plain integer; NCCL knows no units, write 8388608 for 8 MiB",
                            name, text);
    if (number < low || number > high)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "NCCL_%s: %lld is outside %lld to %lld", name, number,
                            (long long)low, (long long)high);
    *value = number;
    return MEMPLAN_STATUS_OK;
}

/* One name of a list, ending at a separator; -1 when none of the words fits. */
static int word_index(const char *text, size_t length, const char *const *words, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strlen(words[i]) == length && strncasecmp(text, words[i], length) == 0)
            return (int)i;
    return -1;
}

/* NCCL's own order; CollNet is known but never picked without its plugin. */
static const char *const algorithm_words[] = {"Tree", "Ring", "CollNetDirect", "CollNetChain",
                                              "NVLS", "NVLSTree", "PAT"};
static const uint32_t algorithm_bits[] = {
    MP_NCCL_BIT(MP_NCCL_ALGORITHM_TREE), MP_NCCL_BIT(MP_NCCL_ALGORITHM_RING), 0, 0,
    MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS), MP_NCCL_BIT(MP_NCCL_ALGORITHM_NVLS_TREE),
    MP_NCCL_BIT(MP_NCCL_ALGORITHM_PAT)};
static const char *const protocol_words[] = {"LL", "LL128", "Simple"};
#define SIMPLE_BIT MP_NCCL_BIT(2)

/* "Ring,Tree" or "^NVLS" of length n into bits of the words; *bad is the word that does not fit. */
static bool parse_words(const char *text, size_t n, const char *const *words, size_t n_words, uint32_t *bits,
                        const char **bad)
{
    const bool all_but = n > 0 && text[0] == '^';
    uint32_t named = 0;
    for (size_t at = all_but ? 1 : 0; at <= n;) {
        size_t length = 0;
        while (at + length < n && text[at + length] != ',')
            length++;
        const int index = word_index(text + at, length, words, n_words);
        if (index < 0 && length > 0) {
            *bad = text + at;
            return false;
        }
        if (index >= 0)
            named |= MP_NCCL_BIT(index);
        at += length + 1;
    }
    *bits = all_but ? ~named & (MP_NCCL_BIT(n_words) - 1) : named;
    return true;
}

static enum memplan_status bad_word(const char *name, const char *word, const char *known, struct memplan_error *err)
{
    return mp_error_set(err, MEMPLAN_STATUS_INPUT, "NCCL_%s: '%.*s' is none of %s", name,
                        (int)MP_MIN(strcspn(word, ",;:"), (size_t)40), word, known);
}

/* "Ring", "^NVLS", "allreduce:tree;broadcast:ring". */
static enum memplan_status set_algorithms(struct mp_nccl_env *env, const char *value, struct memplan_error *err)
{
    static const char known[] = "Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree, PAT";
    for (size_t i = 0; i < MP_NCCL_TUNED_COLLECTIVES; i++)
        env->algorithms[i] = UINT32_MAX;
    for (const char *entry = value;; entry++) {
        const size_t length = strcspn(entry, ";");
        const char *colon = memchr(entry, ':', length);
        const char *list = colon != NULL ? colon + 1 : entry;
        if (colon == NULL && entry != value)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT,
                                "NCCL_ALGO: every entry but the first needs a collective and a colon");
        uint32_t words = 0, bits = 0;
        const char *bad;
        if (!parse_words(list, length - (size_t)(list - entry), algorithm_words, MP_ARRAY_LEN(algorithm_words),
                         &words, &bad))
            return bad_word("ALGO", bad, known, err);
        for (size_t i = 0; i < MP_ARRAY_LEN(algorithm_words); i++)
            if (words & MP_NCCL_BIT(i))
                bits |= algorithm_bits[i];
        const char *functions[MP_NCCL_TUNED_COLLECTIVES];
        for (int i = 0; i < MP_NCCL_TUNED_COLLECTIVES; i++)
            functions[i] = mp_nccl_collective_text((enum mp_nccl_collective)i);
        const int only = colon == NULL ? -1
                                       : word_index(entry, (size_t)(colon - entry), functions,
                                                    MP_NCCL_TUNED_COLLECTIVES);
        if (colon != NULL && only < 0)
            return bad_word("ALGO", entry, "allreduce, allgather, reducescatter, broadcast, reduce", err);
        for (int i = 0; i < MP_NCCL_TUNED_COLLECTIVES; i++)
            if (only < 0 || only == i)
                env->algorithms[i] = bits;
        env->algorithms_given = true;
        entry += length;
        if (*entry == '\0')
            return MEMPLAN_STATUS_OK;
    }
}

/* All protocols always have their buffers; only algorithms that need Simple fall away with it. */
static enum memplan_status set_protocols(struct mp_nccl_env *env, const char *value, struct memplan_error *err)
{
    uint32_t bits = 0;
    const char *bad, *colon = strrchr(value, ':');
    if (!parse_words(colon != NULL ? colon + 1 : value, strlen(colon != NULL ? colon + 1 : value), protocol_words,
                     MP_ARRAY_LEN(protocol_words), &bits, &bad))
        return bad_word("PROTO", bad, "LL, LL128, Simple", err);
    env->simple_excluded = colon == NULL && (bits & SIMPLE_BIT) == 0;
    return MEMPLAN_STATUS_OK;
}

static void set_level(enum mp_nccl_switch *target, const char *value)
{
    if (strcmp(value, "0") == 0 || strcasecmp(value, "LOC") == 0)
        *target = MP_NCCL_OFF;
}

static enum memplan_status set_variable(struct mp_nccl_env *env, size_t index, const char *value,
                                        struct memplan_error *err)
{
    const char *name = variables[index].name;
    void *const target = (char *)env + variables[index].target;
    int64_t number = 0;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    switch (variables[index].kind) {
    case BYTES:
        status = parse_number(name, value, 1, INT32_MAX, &number, err);
        if (status == MEMPLAN_STATUS_OK)
            *(uint64_t *)target = (uint64_t)number;
        return status;
    case COUNT:
        status = parse_number(name, value, 1, MP_NCCL_MAX_CHANNELS, &number, err);
        if (status == MEMPLAN_STATUS_OK)
            *(uint32_t *)target = (uint32_t)number;
        return status;
    case ON_OFF:
    case OFF_ON:
        status = parse_number(name, value, -2, 2, &number, err);
        if (status == MEMPLAN_STATUS_OK && number >= 0) {
            const bool on = (number != 0) == (variables[index].kind == ON_OFF);
            /* "not disabled" is what happens anyway */
            if (!on || variables[index].kind == ON_OFF)
                *(enum mp_nccl_switch *)target = on ? MP_NCCL_ON : MP_NCCL_OFF;
        }
        return status;
    case ALGORITHMS:
        return set_algorithms(env, value, err);
    case PROTOCOLS:
        return set_protocols(env, value, err);
    case P2P_LEVEL:
    case GDR_LEVEL:
        set_level(target, value);
        return MEMPLAN_STATUS_OK;
    case NETWORK:
        if (strcasecmp(value, "Socket") == 0)
            *(enum mp_nccl_switch *)target = MP_NCCL_OFF;
        return MEMPLAN_STATUS_OK;
    }
    return status;
}

enum memplan_status mp_nccl_env_set(struct mp_nccl_env *env, const char *assignment, struct memplan_error *err)
{
    char name[64];
    const size_t length = strcspn(assignment, "=");
    if (assignment[length] != '=' || length == 0)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%.80s' is no NAME=VALUE", assignment);
    (void)snprintf(name, sizeof name, "%.*s", (int)MP_MIN(length, sizeof name - 1), assignment);
    if (strncmp(name, "NCCL_", 5) != 0)
        return unknown_variable(name, err);
    const char *const plain = name + 5, *const value = assignment + length + 1;
    for (size_t i = 0; i < MP_ARRAY_LEN(variables); i++)
        if (strcmp(plain, variables[i].name) == 0)
            return set_variable(env, i, value, err);
    if (in_list(plain, neutral, MP_ARRAY_LEN(neutral)))
        return MEMPLAN_STATUS_OK;
    if (in_list(plain, unmodelled, MP_ARRAY_LEN(unmodelled)))
        return mp_error_set(err, MEMPLAN_STATUS_UNSUPPORTED,
                            "%s: its effect on memory depends on the machine and is not modelled; give the channels "
                            "that NCCL_DEBUG=INFO prints instead",
                            name);
    return unknown_variable(name, err);
}
