/* SPDX-License-Identifier: MIT */
/* The parts of the public API that need no run: version and status texts. */
#include "memplan.h"

const char *memplan_version(void)
{
    return "0.1.0";
}

const char *memplan_status_text(enum memplan_status status)
{
    switch (status) {
#define X(name, text)                                                                              \
    case MEMPLAN_STATUS_##name: return text;
        MEMPLAN_STATUS_MAP(X)
#undef X
    }
    return "unknown status";
}
