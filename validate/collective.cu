/* SPDX-License-Identifier: MIT */
/* One communicator of all ranks. */
#include "collective.h"

#include <dlfcn.h>

#include "device.h"
#include "nccl_calls.h"
#include "ranks.h"

/* ---- the library ---- */

template <typename F> static bool find(void *library, const char *name, F *function)
{
    *function = (F)dlsym(library, name);
    return *function != NULL;
}

const struct nccl *nccl_open(void)
{
    static struct nccl n;
    int (*version)(int *);
    if (n.version)
        return &n;
    void *const library = dlopen("libnccl.so.2", RTLD_NOW);
    if (!library) {
        (void)device_fail("libnccl.so.2 was not found; install NCCL, or name its folder in "
                          "LD_LIBRARY_PATH");
        return NULL;
    }
    if (!find(library, "ncclGetVersion", &version) ||
        !find(library, "ncclGetUniqueId", &n.get_id) ||
        !find(library, "ncclCommInitRank", &n.init_rank) ||
        !find(library, "ncclAllReduce", &n.all_reduce) ||
        !find(library, "ncclBroadcast", &n.broadcast) ||
        !find(library, "ncclCommDestroy", &n.destroy) ||
        !find(library, "ncclGroupStart", &n.group_start) ||
        !find(library, "ncclGroupEnd", &n.group_end) ||
        !find(library, "ncclGetErrorString", &n.text) || version(&n.version)) {
        n.version = 0;
        (void)device_fail("libnccl.so.2 lacks a call; NCCL 2.4 or later is needed");
        return NULL;
    }
    return &n;
}

int nccl_check(int status, const char *what)
{
    return status == 0 ? 0 : device_fail("NCCL: %s: %s", what, nccl_open()->text(status));
}

/* ---- the communicator ---- */

static void *comm;

int collective_open(void)
{
    const struct nccl *const n = nccl_open();
    const struct ranks *const r = ranks();
    struct nccl_id id = {};
    const int failed =
        n ? r->rank == 0 && nccl_check(n->get_id(&id), "making an address for the ranks") : -1;
    if (!ranks_all(!failed))
        return failed ? -1 : device_fail("another rank has no NCCL");
    ranks_first(&id, sizeof id);
    return nccl_check(n->init_rank(&comm, r->world, id, r->rank), "making a communicator");
}

int collective_close(void)
{
    void *const closed = comm;
    comm = NULL;
    return closed ? nccl_check(nccl_open()->destroy(closed), "closing a communicator") : 0;
}

static int64_t elements(const struct k_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->n; i++)
        n *= t->shape[i];
    return n;
}

/* Elements side by side? Sizes of one may have any stride. */
static bool dense(const struct k_tensor *t)
{
    int64_t step = 1;
    for (int i = t->n - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != step)
            return false;
        step *= t->shape[i];
    }
    return true;
}

static int dtype_of(const struct k_tensor *t)
{
    return t->dtype == K_F32    ? NCCL_FLOAT32
           : t->dtype == K_F16  ? NCCL_FLOAT16
           : t->dtype == K_BF16 ? NCCL_BFLOAT16
                                : -1;
}

int collective_all_reduce(const struct k_tensor *t)
{
    const int type = dtype_of(t);
    if (!comm || !dense(t) || type < 0)
        return device_fail("all_reduce: no communicator, or a tensor that NCCL does not take");
    return nccl_check(
        nccl_open()->all_reduce(t->data, t->data, (size_t)elements(t), type, NCCL_SUM, comm, NULL),
        "an all-reduce");
}

int collective_broadcast(const struct k_tensor *t)
{
    static const int size[] = {1, 1, 4, 8, 2, 2, 4}; /* enum k_dtype */
    if (!comm || !dense(t))
        return device_fail("broadcast: no communicator, or a tensor that NCCL does not take");
    return nccl_check(nccl_open()->broadcast(t->data, t->data,
                                             (size_t)elements(t) * (size_t)size[t->dtype],
                                             NCCL_INT8, 0, comm, NULL),
                      "a broadcast");
}
