/* SPDX-License-Identifier: MIT */
/*
 * The integer program behind a plan: one choice for every layer, the least added time, within the memory at every instant.
 *
 *     minimise   sum over layers of cost[layer][choice]
 *     such that  each layer has one choice, and at every instant
 *                sum over layers of bytes[layer][choice][instant] <= room[instant]
 *
 * The only file that sees GLPK; a build without it has everything but mp_ilp_solve().
 */
#ifndef MP_ILP_H
#define MP_ILP_H

#include "base/error.h"

#define MP_ILP_TIME_S 10 /* the best plan by then, with its gap */

struct mp_ilp_problem {
    int n_layers, n_choices, n_instants;
    const double *cost_s;    /* [layer][choice] >= 0; infinite: not a choice of that layer */
    const uint64_t *bytes;   /* [layer][choice][instant] */
    const uint64_t *room;    /* [instant] */
    int limit_ms;            /* of one call of the solver; 0: MP_ILP_TIME_S */
};

struct mp_ilp_solution {
    bool feasible;   /* false: proven that no choice fits */
    bool optimal;    /* proven */
    double cost_s;   /* of choice[] */
    double bound_s;  /* no choice costs less; minus infinity: nothing was proven */
    int64_t n_nodes; /* subproblems that were branched into, all calls of the solver together */
};

/** choice: n_layers indices. UNSUPPORTED without GLPK, SOLVER when it fails, NOMEM. */
enum memplan_status mp_ilp_solve(const struct mp_ilp_problem *p, int *choice, struct mp_ilp_solution *solution, struct memplan_error *err);

/**
 * What one would do by hand: from the cheapest choice of every layer on, take the change that saves most bytes per second where memory
 * is short, until it fits. False: it ends without fitting.
 */
bool mp_ilp_greedy(const struct mp_ilp_problem *p, int *choice, double *cost_s);

/** Whether the choices fit at every instant, exactly; *cost_s gets what they cost. */
bool mp_ilp_fits(const struct mp_ilp_problem *p, const int *choice, double *cost_s);

#endif
