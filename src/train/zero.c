/* SPDX-License-Identifier: MIT */
/*
 * torch.distributed.optim.ZeroRedundancyOptimizer: DDP whose optimizer state is spread over the ranks, parameter by parameter.
 *
 * A rank updates its own parameters, then broadcasts them in place: nothing is allocated for that.
 */
#include "train/parallel.h"

struct sized {
    int64_t elements;
    int index;
};

static int compare_sizes(const void *a, const void *b)
{
    const struct sized *x = a, *y = b;
    if (x->elements != y->elements)
        return x->elements < y->elements ? 1 : -1;
    return (x->index > y->index) - (x->index < y->index); /* Python's sort is stable */
}

/* order: parameters by size; rank_of[k]: who holds the k-th of them; elements[r]: how much rank r holds. */
static struct sized *partition(struct mp_runtime *rt, struct mp_tensor *const *parameters, int n,
                               int64_t world, int64_t *rank_of, int64_t *elements)
{
    struct sized *order = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *order);
    for (int i = 0; i < n; i++)
        order[i] = (struct sized){mp_numel(parameters[i]), i};
    qsort(order, (size_t)n, sizeof *order, compare_sizes);
    for (int i = 0; i < n; i++) {
        int64_t least = 0;
        for (int64_t r = 1; r < world; r++)
            if (elements[r] < elements[least])
                least = r;
        rank_of[i] = least;
        elements[least] += order[i].elements;
    }
    return order;
}

int mp_zero1_partition(struct mp_runtime *rt, struct mp_tensor *const *parameters, int n,
                       int64_t world, int64_t rank, struct mp_tensor **mine)
{
    int64_t *rank_of = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *rank_of);
    int64_t *elements = mp_runtime_alloc(rt, (size_t)world * sizeof *elements);
    int n_mine = 0;
    const struct sized *order = partition(rt, parameters, n, world, rank_of, elements);
    for (int i = 0; i < n; i++)
        if (rank_of[i] == rank)
            mine[n_mine++] = parameters[order[i].index];
    return n_mine;
}

int64_t mp_zero1_fullest_rank(struct mp_runtime *rt, struct mp_tensor *const *parameters, int n,
                              int64_t world)
{
    int64_t *rank_of = mp_runtime_alloc(rt, (size_t)MP_MAX(n, 1) * sizeof *rank_of);
    int64_t *elements = mp_runtime_alloc(rt, (size_t)world * sizeof *elements), fullest = 0;
    partition(rt, parameters, n, world, rank_of, elements);
    for (int64_t r = 1; r < world; r++)
        if (elements[r] > elements[fullest])
            fullest = r;
    return fullest;
}
