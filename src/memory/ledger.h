/* SPDX-License-Identifier: MIT */
/*
 * The ledger: what the live bytes are made of at one moment of a program. Parts always add up to the whole.
 */
#ifndef MP_LEDGER_H
#define MP_LEDGER_H

#include "base/arena.h"
#include "shadow/program.h"

/* Live bytes of one kind: same category, layer and operation. */
struct mp_ledger_row {
    enum mp_category category;
    int layer;      /* -1: outside the blocks */
    const char *op; /* operation or parameter that asked for them */
    uint64_t bytes;
    uint32_t n;     /* storages */
};

struct mp_ledger {
    uint64_t total_bytes;
    uint64_t by_category[MP_CATEGORY_COUNT];
    struct mp_ledger_row *rows; /* largest first */
    size_t n_rows;
    const char *phase;          /* in which the moment lies */
    const struct mp_event *event; /* the moment: state after this event */
};

/**
 * State after event number `event` (before it, if it is an allocation that failed: pass event - 1).
 * Lives in the arena; NULL with *err: NOMEM.
 */
const struct mp_ledger *mp_ledger_at(const struct mp_program *program, uint32_t event, struct mp_arena *arena, struct memplan_error *err);

/** Rows of a category folded over layers: one per operation, largest first; at most max. Returns how many. */
size_t mp_ledger_by_op(const struct mp_ledger *ledger, enum mp_category category, struct mp_ledger_row *out, size_t max);
/** Bytes of a category per layer: out[layer + 1], out[0] outside the blocks. n: length of out. */
void mp_ledger_by_layer(const struct mp_ledger *ledger, enum mp_category category, uint64_t *out, size_t n);
/** Highest layer number that has live bytes; -1: none. */
int mp_ledger_last_layer(const struct mp_ledger *ledger);

#endif
