/* SPDX-License-Identifier: MIT */
/* One process. */
#include "ranks.h"

#include <string.h>

const struct ranks *ranks(void)
{
    static const struct ranks alone = {.rank = 0, .world = 1, .local = 0, .n_local = 1};
    return &alone;
}

void ranks_open(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
}
bool ranks_all(bool mine)
{
    return mine;
}
void ranks_first(void *data, size_t bytes)
{
    (void)data;
    (void)bytes;
}
void ranks_gather(const void *mine, void *all, size_t bytes)
{
    memcpy(all, mine, bytes);
}
void ranks_sum(double *values, size_t n)
{
    (void)values;
    (void)n;
}
int ranks_close(int status)
{
    return status;
}
int ranks_abort(int status)
{
    return status;
}
