/* SPDX-License-Identifier: MIT */
/*
 * The processes of one job. Started by mpirun, one for each GPU (ranks_mpi.c, built with MPI=1); else this one alone (ranks_alone.c).
 *
 * MPI carries addresses, verdicts and host data; gradients go through collective.h. A rank that fails while others may be waiting for
 * it ends the whole job (ranks_abort()), so that nobody waits for ever.
 */
#ifndef VALIDATE_RANKS_H
#define VALIDATE_RANKS_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ranks {
    int rank, world;
    int local, n_local; /* among those of this host */
};

/** Before anything else. */
void ranks_open(int *argc, char ***argv);
/** Before ranks_open(): one rank of one. */
const struct ranks *ranks(void);
/** Do all ranks say so? Each has to ask. */
bool ranks_all(bool mine);
/** The first rank's data, for all. */
void ranks_first(void *data, size_t bytes);
/** all[world]: everybody's data, at every rank. */
void ranks_gather(const void *mine, void *all, size_t bytes);
/** Sums over all ranks, in place. */
void ranks_sum(double *values, size_t n);
/** At the end of all ranks; returns status. */
int ranks_close(int status);
/** At the end of this one, whatever the others are doing: does not return where there are others. */
int ranks_abort(int status);

#ifdef __cplusplus
}
#endif

#endif
