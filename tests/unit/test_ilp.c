/* SPDX-License-Identifier: MIT */
/* The integer program: equal to trying everything on small instances, never worse than greedy, solved for the largest. */
#include "plan/ilp.h"

#include <math.h>

#include "suites.h"

enum { MAX_LAYERS = 96, MAX_CHOICES = 5, MAX_INSTANTS = 100 };

struct instance {
    double cost_s[MAX_LAYERS * MAX_CHOICES];
    uint64_t bytes[MAX_LAYERS * MAX_CHOICES * MAX_INSTANTS];
    uint64_t room[MAX_INSTANTS];
    struct mp_ilp_problem p;
};

static uint64_t next(uint64_t *state, uint64_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % n;
}

/* Layers save less the more time it takes; what is kept is held until the layer's own backward. share: of what all together take. */
static void make(struct instance *in, uint64_t seed, int n_layers, int n_choices, double share, bool even)
{
    uint64_t state = seed;
    const int n_instants = n_layers + 2;
    in->p = (struct mp_ilp_problem){n_layers, n_choices, n_instants, in->cost_s, in->bytes, in->room, 0};
    uint64_t total = 0;
    for (int l = 0; l < n_layers; l++) {
        uint64_t held = (64 + (even ? 100 : next(&state, 400))) << 20;
        for (int c = 0; c < n_choices; c++) {
            const double cost = c == 0 ? 0 : (double)(c * 100 + (even ? 0 : (int)next(&state, 150))) * 1e-5;
            in->cost_s[l * n_choices + c] = next(&state, 12) == 0 && c > 0 && !even ? INFINITY : cost;
            const uint64_t peak = held + ((even ? 7 : next(&state, 50)) << 20);
            for (int t = 0; t < n_instants; t++)
                in->bytes[(l * n_choices + c) * n_instants + t] = t <= 1 || l < n_layers + 1 - t ? held : l == n_layers + 1 - t ? peak : 0;
            if (c == 0)
                total += held;
            held = held / 4 * (1 + (even ? 1 : next(&state, 3)));
            if (c > 0 && held > in->bytes[(l * n_choices + c) * n_instants])
                held = in->bytes[(l * n_choices + c) * n_instants] / 2;
        }
    }
    for (int t = 0; t < n_instants; t++)
        in->room[t] = (uint64_t)(share * (double)total) + (next(&state, 20) << 20);
}

static double try_everything(const struct mp_ilp_problem *p)
{
    int choice[MAX_LAYERS] = {0};
    double best = INFINITY, cost;
    for (;;) {
        int l = 0;
        if (mp_ilp_fits(p, choice, &cost) && cost < best)
            best = cost;
        while (l < p->n_layers && ++choice[l] == p->n_choices)
            choice[l++] = 0;
        if (l == p->n_layers)
            return best;
    }
}

static struct instance in;

#if MP_HAVE_GLPK
START_TEST(equals_trying_everything)
{
    int choice[MAX_LAYERS], n_feasible = 0, n_infeasible = 0;
    for (uint64_t seed = 1; seed <= 120; seed++) {
        struct mp_ilp_solution s;
        struct memplan_error err = {0};
        uint64_t state = seed * 31;
        double cost = 0;
        make(&in, seed, 2 + (int)next(&state, 7), 2 + (int)next(&state, 4), 0.15 + 0.08 * (double)next(&state, 11), next(&state, 4) == 0);
        ck_assert_msg(mp_ilp_solve(&in.p, choice, &s, &err) == MEMPLAN_STATUS_OK, "seed %llu: %s", (unsigned long long)seed, err.text);
        const double best = try_everything(&in.p);
        ck_assert_msg(s.feasible == (bool)isfinite(best), "seed %llu", (unsigned long long)seed);
        ck_assert_msg(s.optimal, "seed %llu", (unsigned long long)seed);
        n_feasible += s.feasible;
        n_infeasible += !s.feasible;
        if (!s.feasible)
            continue;
        ck_assert_msg(mp_ilp_fits(&in.p, choice, &cost), "seed %llu", (unsigned long long)seed);
        ck_assert_msg(fabs(cost - best) <= 1e-9 && fabs(s.cost_s - best) <= 1e-9 && s.bound_s <= best + 1e-9, "seed %llu: %g, best %g",
                      (unsigned long long)seed, cost, best);
    }
    ck_assert_int_gt(n_feasible, 20);
    ck_assert_int_gt(n_infeasible, 5);
}
END_TEST

START_TEST(is_never_worse_than_greedy)
{
    int choice[MAX_LAYERS], greedy[MAX_LAYERS], n_better = 0;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct mp_ilp_solution s;
        struct memplan_error err = {0};
        double greedy_s;
        make(&in, seed * 977, 24, 4, 0.35 + 0.02 * (double)(seed % 10), false);
        ck_assert_msg(mp_ilp_solve(&in.p, choice, &s, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
        if (!mp_ilp_greedy(&in.p, greedy, &greedy_s))
            continue;
        ck_assert(s.feasible);
        ck_assert_msg(s.cost_s <= greedy_s + 1e-12, "seed %llu: %g, greedy %g", (unsigned long long)seed, s.cost_s, greedy_s);
        n_better += s.cost_s < greedy_s - 1e-9;
    }
    ck_assert_int_gt(n_better, 0);
}
END_TEST

/* Large and uneven: optimal, well before the time limit cuts it off. */
START_TEST(solves_96_layers_with_5_choices)
{
    int choice[MAX_LAYERS];
    struct mp_ilp_solution s;
    struct memplan_error err = {0};
    make(&in, (uint64_t)(_i + 1) * 4241, MAX_LAYERS, MAX_CHOICES, 0.3 + 0.1 * _i, _i == 3);
    ck_assert_msg(mp_ilp_solve(&in.p, choice, &s, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert(s.feasible);
    ck_assert_msg(s.optimal, "cost %g, bound %g", s.cost_s, s.bound_s);
}
END_TEST

/*
 * Blocks of a model save about the same, but not quite: telling them apart one by one would take for ever. Counted in nodes, since a
 * clock says little on a busy machine.
 */
START_TEST(nearly_equal_layers_need_few_nodes)
{
    int choice[MAX_LAYERS];
    struct mp_ilp_solution s;
    struct memplan_error err = {0};
    const int n_layers = 24 + 24 * (_i % 3), n_choices = _i < 3 ? 2 : 5;
    make(&in, 11, n_layers, n_choices, (n_choices == 2 ? 0.6 : 0.1) + 0.065 * _i, true);
    for (int l = 0; l < n_layers; l++)
        for (int c = 0; c < n_choices; c++)
            for (int t = 0; t < in.p.n_instants; t++)
                in.bytes[(l * n_choices + c) * in.p.n_instants + t] +=
                    in.bytes[(l * n_choices + c) * in.p.n_instants + t] ? (uint64_t)(l * 4096 + c * 512) : 0;
    ck_assert_msg(mp_ilp_solve(&in.p, choice, &s, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    ck_assert(s.feasible && s.optimal);
    ck_assert_msg(s.n_nodes <= 300, "%lld nodes for %d layers", (long long)s.n_nodes, n_layers);
}
END_TEST

START_TEST(refuses_what_is_no_program)
{
    int choice[1];
    struct mp_ilp_solution s;
    struct memplan_error err = {0};
    const struct mp_ilp_problem none = {0, 1, 1, in.cost_s, in.bytes, in.room, 0};
    ck_assert_int_eq(mp_ilp_solve(&none, choice, &s, &err), MEMPLAN_STATUS_RANGE);
}
END_TEST

#else
START_TEST(says_what_is_missing)
{
    int choice[2];
    struct mp_ilp_solution s;
    struct memplan_error err = {0};
    make(&in, 1, 2, 2, 1, true);
    ck_assert_int_eq(mp_ilp_solve(&in.p, choice, &s, &err), MEMPLAN_STATUS_SOLVER);
    ck_assert_msg(strstr(err.text, "GLPK") != NULL, "%s", err.text);
}
END_TEST
#endif

Suite *suite_ilp(void)
{
    Suite *const suite = suite_create("ilp");
    TCase *const tc = tcase_create("ilp");
    tcase_set_timeout(tc, 120);
#if MP_HAVE_GLPK
    tcase_add_test(tc, equals_trying_everything);
    tcase_add_test(tc, is_never_worse_than_greedy);
    tcase_add_loop_test(tc, solves_96_layers_with_5_choices, 0, 6);
    tcase_add_loop_test(tc, nearly_equal_layers_need_few_nodes, 0, 6);
    tcase_add_test(tc, refuses_what_is_no_program);
#else
    tcase_add_test(tc, says_what_is_missing);
#endif
    suite_add_tcase(suite, tc);
    return suite;
}
