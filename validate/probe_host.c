/* SPDX-License-Identifier: MIT */
/* There is nothing to probe without a GPU. */
#include "commands.h"

int command_probe(const struct arguments *a) { return complain(a->command, "this build has no GPU", EXIT_WORLD); }
