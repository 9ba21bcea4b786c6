/* SPDX-License-Identifier: MIT */
/*
 * Processes that mpirun (or another launcher that speaks PMI) has started. Without one MPI stays untouched: the same program runs alone.
 * MPI's own failures end the job, which is its default.
 */
#include <mpi.h>

#include "ranks.h"

#include <stdlib.h>
#include <string.h>

static struct ranks all = {.rank = 0, .world = 1, .local = 0, .n_local = 1};
static bool open;

const struct ranks *ranks(void)
{
    return &all;
}

static bool launched(void)
{
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++)
        if (getenv(marks[i]))
            return true;
    return false;
}

void ranks_open(int *argc, char ***argv)
{
    MPI_Comm host;
    if (!launched())
        return;
    (void)MPI_Init(argc, argv);
    open = true;
    (void)MPI_Comm_rank(MPI_COMM_WORLD, &all.rank);
    (void)MPI_Comm_size(MPI_COMM_WORLD, &all.world);
    (void)MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, all.rank, MPI_INFO_NULL, &host);
    (void)MPI_Comm_rank(host, &all.local);
    (void)MPI_Comm_size(host, &all.n_local);
    (void)MPI_Comm_free(&host);
}

bool ranks_all(bool mine)
{
    int said = mine, everybody = mine;
    if (open)
        (void)MPI_Allreduce(&said, &everybody, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return everybody;
}

void ranks_first(void *data, size_t bytes)
{
    if (open)
        (void)MPI_Bcast(data, (int)bytes, MPI_BYTE, 0, MPI_COMM_WORLD);
}

void ranks_gather(const void *mine, void *everybody, size_t bytes)
{
    if (open)
        (void)MPI_Allgather(mine, (int)bytes, MPI_BYTE, everybody, (int)bytes, MPI_BYTE,
                            MPI_COMM_WORLD);
    else
        memcpy(everybody, mine, bytes);
}

void ranks_sum(double *values, size_t n)
{
    enum { MOST = 1 << 24 }; /* a count is an int */
    for (size_t i = 0; open && i < n; i += MOST)
        (void)MPI_Allreduce(MPI_IN_PLACE, values + i, (int)(n - i < MOST ? n - i : MOST),
                            MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

int ranks_close(int status)
{
    if (open)
        (void)MPI_Finalize();
    open = false;
    return status;
}

int ranks_abort(int status)
{
    if (open && all.world > 1)
        (void)MPI_Abort(MPI_COMM_WORLD, status);
    return status;
}
