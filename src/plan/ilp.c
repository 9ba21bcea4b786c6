/* SPDX-License-Identifier: MIT */
/*
 * Solved by GLPK's branch and cut. Its messages are caught, its arguments checked before (it aborts on a bad index), its memory and
 * that of a failure given back through glp_free_env(). Layers that are the same in every respect are counted, not told apart: their
 * choices are integers, which takes away the symmetry that branching would drown in.
 *
 * Blocks of a model cost the same, but take the same only nearly, and each is alone at the instant of its own backward. So the first
 * program is a smaller one, in which layers that cost the same all take what the least of them takes: it has a handful of integers,
 * and no choice of the real program costs less. Its counts are then dealt out to the layers in every order of the choices. Where one
 * fits, that is the answer, proven; else a little room is taken away and the smaller program asked again, and GLPK gets the real one
 * for what is left of the gap.
 */
#include "plan/ilp.h"

#include <math.h>

#include "base/arena.h"

#if MP_HAVE_GLPK
#include <glpk.h>
#include <setjmp.h>
#endif

static double cost_of(const struct mp_ilp_problem *p, int layer, int choice) { return p->cost_s[layer * p->n_choices + choice]; }

static uint64_t bytes_of(const struct mp_ilp_problem *p, int layer, int choice, int instant)
{
    return p->bytes[((size_t)layer * (size_t)p->n_choices + (size_t)choice) * (size_t)p->n_instants + (size_t)instant];
}

bool mp_ilp_fits(const struct mp_ilp_problem *p, const int *choice, double *cost_s)
{
    bool fits = true;
    *cost_s = 0;
    for (int l = 0; l < p->n_layers; l++)
        *cost_s += cost_of(p, l, choice[l]);
    for (int t = 0; t < p->n_instants && fits; t++) {
        uint64_t sum = 0;
        for (int l = 0; l < p->n_layers; l++)
            if (__builtin_add_overflow(sum, bytes_of(p, l, choice[l], t), &sum))
                return false;
        fits = sum <= p->room[t];
    }
    return fits && isfinite(*cost_s);
}

/* ---- greedy ---- */

/* Bytes over the room, all instants together, when `layer` changes from one choice to another; sums: bytes at each instant now. */
static double excess(const struct mp_ilp_problem *p, const double *sums, int layer, int from, int to)
{
    double over = 0;
    for (int t = 0; t < p->n_instants; t++) {
        const double bytes = sums[t] - (double)bytes_of(p, layer, from, t) + (double)bytes_of(p, layer, to, t);
        if (bytes > (double)p->room[t])
            over += bytes - (double)p->room[t];
    }
    return over;
}

static int cheapest(const struct mp_ilp_problem *p, int layer)
{
    int best = 0;
    for (int c = 1; c < p->n_choices; c++)
        if (cost_of(p, layer, c) < cost_of(p, layer, best))
            best = c;
    return best;
}

struct change {
    int layer, choice;
    double rate, then;
};

/* The change that takes away most per second; layer -1: none does. */
static struct change best_change(const struct mp_ilp_problem *p, const int *choice, const double *sums, double now)
{
    struct change best = {-1, 0, 0, 0};
    for (int l = 0; l < p->n_layers; l++) {
        for (int c = 0; c < p->n_choices; c++) {
            const double more_s = cost_of(p, l, c) - cost_of(p, l, choice[l]);
            if (c == choice[l] || !isfinite(more_s))
                continue;
            const double then = excess(p, sums, l, choice[l], c);
            const double rate = (now - then) / (more_s > 1e-12 ? more_s : 1e-12);
            if (then < now && rate > best.rate)
                best = (struct change){l, c, rate, then};
        }
    }
    return best;
}

bool mp_ilp_greedy(const struct mp_ilp_problem *p, int *choice, double *cost_s)
{
    double *const sums = mp_malloc((size_t)p->n_instants * sizeof *sums);
    for (int t = 0; sums && t < p->n_instants; t++)
        sums[t] = 0;
    for (int l = 0; l < p->n_layers; l++) {
        choice[l] = cheapest(p, l);
        for (int t = 0; sums && t < p->n_instants; t++)
            sums[t] += (double)bytes_of(p, l, choice[l], t);
    }
    for (double now = sums ? excess(p, sums, 0, choice[0], choice[0]) : 0; now > 0;) {
        const struct change change = best_change(p, choice, sums, now);
        if (change.layer < 0)
            break;
        for (int t = 0; t < p->n_instants; t++)
            sums[t] += (double)bytes_of(p, change.layer, change.choice, t) - (double)bytes_of(p, change.layer, choice[change.layer], t);
        choice[change.layer] = change.choice;
        now = change.then;
    }
    free(sums);
    return mp_ilp_fits(p, choice, cost_s);
}

#if MP_HAVE_GLPK

/* ---- GLPK ---- */

enum { MAX_COLUMNS = 1000000 };

/* Layers with the same costs and bytes are one group with a count; a column is how many of them take a choice. */
struct program {
    const struct mp_ilp_problem *p;
    int *group;      /* of each layer */
    int *first;      /* layer of each group */
    int *count;
    int n_groups;
    int *column;     /* [group][choice]: number in GLPK, 0: not a choice */
    int n_columns;
    double unit_s, unit_bytes; /* GLPK likes numbers around one */
    double less_room;          /* share of the room that is not given, where an answer was over it by a hair */
    int limit_ms;
};

static bool same_layer(const struct mp_ilp_problem *p, int a, int b)
{
    const size_t n = (size_t)p->n_choices * (size_t)p->n_instants;
    for (int c = 0; c < p->n_choices; c++) {
        const double x = cost_of(p, a, c), y = cost_of(p, b, c);
        if (!(x <= y && x >= y))
            return false;
    }
    return memcmp(&p->bytes[(size_t)a * n], &p->bytes[(size_t)b * n], n * sizeof *p->bytes) == 0;
}

static bool find_groups(struct program *m, struct mp_arena *arena)
{
    const struct mp_ilp_problem *const p = m->p;
    const size_t layers = (size_t)p->n_layers;
    m->group = mp_arena_calloc(arena, layers, sizeof(int));
    m->first = mp_arena_calloc(arena, layers, sizeof(int));
    m->count = mp_arena_calloc(arena, layers, sizeof(int));
    m->column = mp_arena_calloc(arena, layers * (size_t)p->n_choices, sizeof(int));
    if (!m->group || !m->first || !m->count || !m->column)
        return false;
    for (int l = 0; l < p->n_layers; l++) {
        int g = 0;
        while (g < m->n_groups && !same_layer(p, m->first[g], l))
            g++;
        if (g == m->n_groups)
            m->first[m->n_groups++] = l;
        m->group[l] = g;
        m->count[g]++;
    }
    for (int g = 0; g < m->n_groups; g++)
        for (int c = 0; c < p->n_choices; c++)
            if (isfinite(cost_of(p, m->first[g], c)))
                m->column[g * p->n_choices + c] = ++m->n_columns;
    return true;
}

static void choose_units(struct program *m)
{
    const struct mp_ilp_problem *const p = m->p;
    m->unit_s = 0;
    m->unit_bytes = 1;
    for (int i = 0; i < p->n_layers * p->n_choices; i++)
        if (isfinite(p->cost_s[i]) && p->cost_s[i] > m->unit_s)
            m->unit_s = p->cost_s[i];
    if (!(m->unit_s > 0))
        m->unit_s = 1;
    for (size_t i = 0; i < (size_t)p->n_layers * (size_t)p->n_choices * (size_t)p->n_instants; i++)
        if ((double)p->bytes[i] > m->unit_bytes)
            m->unit_bytes = (double)p->bytes[i];
}

static void add_columns(const struct program *m, glp_prob *lp)
{
    glp_add_cols(lp, m->n_columns);
    for (int g = 0; g < m->n_groups; g++) {
        for (int c = 0; c < m->p->n_choices; c++) {
            const int j = m->column[g * m->p->n_choices + c];
            if (!j)
                continue;
            glp_set_col_kind(lp, j, GLP_IV);
            glp_set_col_bnds(lp, j, GLP_DB, 0, m->count[g]);
            glp_set_obj_coef(lp, j, cost_of(m->p, m->first[g], c) / m->unit_s);
        }
    }
}

/* Every layer of the group has one choice. */
static void add_group_rows(const struct program *m, glp_prob *lp, int *index, double *value)
{
    glp_add_rows(lp, m->n_groups);
    for (int g = 0; g < m->n_groups; g++) {
        int n = 0;
        for (int c = 0; c < m->p->n_choices; c++) {
            if (!m->column[g * m->p->n_choices + c])
                continue;
            index[++n] = m->column[g * m->p->n_choices + c];
            value[n] = 1;
        }
        glp_set_row_bnds(lp, g + 1, GLP_FX, m->count[g], m->count[g]);
        glp_set_mat_row(lp, g + 1, n, index, value);
    }
}

/* Whether every choice takes at least as much at instant b as at a, and b has no more room: then b says it all. */
static bool is_implied(const struct program *m, int a, int b)
{
    if (m->p->room[b] > m->p->room[a])
        return false;
    bool same = m->p->room[b] == m->p->room[a];
    for (int g = 0; g < m->n_groups; g++) {
        for (int c = 0; c < m->p->n_choices; c++) {
            const uint64_t x = bytes_of(m->p, m->first[g], c, a), y = bytes_of(m->p, m->first[g], c, b);
            if (m->column[g * m->p->n_choices + c] && x > y)
                return false;
            same &= x == y;
        }
    }
    return !same || b < a; /* of equal ones the first stays */
}

/* The choice of a group that takes most at that instant. */
static uint64_t most_bytes(const struct program *m, int group, int instant)
{
    uint64_t most = 0;
    for (int c = 0; c < m->p->n_choices; c++)
        if (m->column[group * m->p->n_choices + c])
            most = MP_MAX(most, bytes_of(m->p, m->first[group], c, instant));
    return most;
}

static uint64_t saving(const struct program *m, int group, int choice, int instant)
{
    return most_bytes(m, group, instant) - bytes_of(m->p, m->first[group], choice, instant);
}

/*
 * What an instant is short of, counted in pieces: with any piece size, rounding every saving up and the need up leaves all answers
 * that fit. Blocks of a model save about the same, so that one piece is a block, and the count says how many it takes; without it
 * branching tells equal blocks apart for ever.
 */
static void add_count_row(const struct program *m, glp_prob *lp, int instant, double need, double piece, int *index, double *value)
{
    const struct mp_ilp_problem *const p = m->p;
    int n = 0;
    for (int g = 0; g < m->n_groups; g++) {
        for (int c = 0; c < p->n_choices; c++) {
            const double pieces = ceil((double)saving(m, g, c, instant) / piece * (1 - 1e-12));
            if (!m->column[g * p->n_choices + c] || !(pieces > 0))
                continue;
            index[++n] = m->column[g * p->n_choices + c];
            value[n] = pieces;
        }
    }
    const int row = glp_add_rows(lp, 1);
    glp_set_row_bnds(lp, row, GLP_LO, ceil(need / piece * (1 - 1e-9)), 0);
    glp_set_mat_row(lp, row, n, index, value);
}

/* A piece for each choice that saves about the same in every group where it saves anything; uneven ones branch well by themselves. */
static void add_count_rows(const struct program *m, glp_prob *lp, int instant, int *index, double *value)
{
    const struct mp_ilp_problem *const p = m->p;
    double need = -(double)p->room[instant];
    for (int g = 0; g < m->n_groups; g++)
        need += (double)m->count[g] * (double)most_bytes(m, g, instant);
    if (!(need > 0))
        return;
    for (int c = 0; c < p->n_choices; c++) {
        uint64_t most = 0, least = UINT64_MAX;
        for (int g = 0; g < m->n_groups; g++) {
            const uint64_t saved = m->column[g * p->n_choices + c] ? saving(m, g, c, instant) : 0;
            most = MP_MAX(most, saved);
            least = saved ? MP_MIN(least, saved) : least;
        }
        if (most > 0 && most - least <= most / 16)
            add_count_row(m, lp, instant, need, (double)most, index, value);
    }
}

static void add_memory_rows(const struct program *m, glp_prob *lp, int *index, double *value)
{
    const struct mp_ilp_problem *const p = m->p;
    for (int t = 0; t < p->n_instants; t++) {
        bool implied = false;
        for (int other = 0; other < p->n_instants && !implied; other++)
            implied = other != t && is_implied(m, t, other);
        if (implied)
            continue;
        int n = 0;
        for (int g = 0; g < m->n_groups; g++) {
            for (int c = 0; c < p->n_choices; c++) {
                const uint64_t bytes = bytes_of(p, m->first[g], c, t);
                if (!m->column[g * p->n_choices + c] || !bytes)
                    continue;
                index[++n] = m->column[g * p->n_choices + c];
                value[n] = (double)bytes / m->unit_bytes;
            }
        }
        const int row = glp_add_rows(lp, 1);
        glp_set_row_bnds(lp, row, GLP_UP, 0, (double)p->room[t] / m->unit_bytes * (1 - m->less_room));
        glp_set_mat_row(lp, row, n, index, value);
        add_count_rows(m, lp, t, index, value);
    }
}

/* Layers take the counted choices in order; the largest room for rounding is checked by the caller, in whole bytes. */
static void read_choice(const struct program *m, glp_prob *lp, int *choice)
{
    const int n = m->p->n_choices;
    for (int g = 0; g < m->n_groups; g++) {
        int c = 0, left = 0;
        for (int l = 0; l < m->p->n_layers; l++) {
            if (m->group[l] != g)
                continue;
            while (left == 0 && c < n) {
                left = m->column[g * n + c] ? (int)floor(glp_mip_col_val(lp, m->column[g * n + c]) + 0.5) : 0;
                c++;
            }
            choice[l] = left > 0 ? c - 1 : cheapest(m->p, l);
            left -= left > 0;
        }
    }
}

static int silence(void *info, const char *text)
{
    (void)info;
    (void)text;
    return 1;
}

struct guard {
    jmp_buf jump;
};

static void on_abort(void *info) { longjmp(((struct guard *)info)->jump, 1); }

struct search {
    double bound;
    int n_nodes;
};

/* Keeps the best bound for when time runs out, and how far the search has come. */
static void note_search(glp_tree *tree, void *info)
{
    struct search *const search = info;
    const int best = glp_ios_best_node(tree);
    if (best)
        search->bound = glp_ios_node_bound(tree, best);
    glp_ios_tree_size(tree, NULL, NULL, &search->n_nodes);
}

static enum memplan_status run_glpk(const struct program *m, int *choice, struct mp_ilp_solution *s, int *index, double *value,
                                    struct memplan_error *err)
{
    glp_iocp how;
    struct search search = {-INFINITY, 0};
    glp_prob *const lp = glp_create_prob();
    glp_set_obj_dir(lp, GLP_MIN);
    add_columns(m, lp);
    add_group_rows(m, lp, index, value);
    add_memory_rows(m, lp, index, value);
    glp_init_iocp(&how);
    how.presolve = GLP_ON;
    how.msg_lev = GLP_MSG_OFF;
    how.tm_lim = m->limit_ms;
    how.cov_cuts = how.gmi_cuts = how.mir_cuts = GLP_ON;
    how.br_tech = GLP_BR_PCH;
    how.bt_tech = GLP_BT_BLB;
    how.cb_func = note_search;
    how.cb_info = &search;
    const int code = glp_intopt(lp, &how), status = glp_mip_status(lp);
    enum memplan_status result = MEMPLAN_STATUS_OK;
    if (code != 0 && code != GLP_ENOPFS && code != GLP_ENODFS && code != GLP_ETMLIM && code != GLP_EMIPGAP)
        result = mp_error_set(err, MEMPLAN_STATUS_SOLVER, "GLPK could not solve the program for %d layers (code %d)", m->p->n_layers, code);
    s->optimal = code == 0 && status == GLP_OPT;
    s->feasible = status == GLP_OPT || status == GLP_FEAS;
    if (s->feasible)
        read_choice(m, lp, choice);
    s->bound_s = s->optimal ? glp_mip_obj_val(lp) * m->unit_s : search.bound * m->unit_s;
    s->n_nodes += search.n_nodes;
    if (code == GLP_ENOPFS || code == GLP_ENODFS || (code == 0 && status == GLP_NOFEAS))
        s->optimal = true; /* proven: nothing fits */
    glp_delete_prob(lp);
    return result;
}

/* An abort inside GLPK comes back here; its memory goes with the environment. */
static enum memplan_status guarded(const struct program *m, int *choice, struct mp_ilp_solution *s, int *index, double *value,
                                   struct memplan_error *err)
{
    struct guard guard;
    volatile enum memplan_status status = MEMPLAN_STATUS_SOLVER;
    glp_term_hook(silence, NULL);
    glp_error_hook(on_abort, &guard);
    if (setjmp(guard.jump) == 0)
        status = run_glpk(m, choice, s, index, value, err);
    else
        mp_error_set(err, MEMPLAN_STATUS_SOLVER, "GLPK stopped with an error of its own");
    glp_error_hook(NULL, NULL);
    glp_free_env();
    return status;
}

/*
 * GLPK lets an answer through that is over the room by a few parts in 10^7. Then it is asked again with that much less; the first
 * bound stands, and where the second answer meets it, it is the best one all the same.
 */
static enum memplan_status solve_exactly(struct program *m, int *choice, struct mp_ilp_solution *s, int *index, double *value,
                                         struct memplan_error *err)
{
    enum { TRIES = 4 };
    double bound_s = -INFINITY;
    bool proven = false;
    for (int i = 0; i < TRIES; i++) {
        const enum memplan_status status = guarded(m, choice, s, index, value, err);
        if (status)
            return status;
        if (i == 0) {
            bound_s = s->bound_s;
            proven = s->optimal;
        }
        if (!s->feasible || mp_ilp_fits(m->p, choice, &s->cost_s))
            break;
        s->feasible = false;
        m->less_room = m->less_room > 0 ? m->less_room * 4 : 5e-7;
    }
    s->bound_s = bound_s;
    s->optimal = proven && (s->feasible || m->less_room <= 0);
    return MEMPLAN_STATUS_OK;
}

/* Time may end it early: whoever is better and fits, wins. */
static void settle(const struct mp_ilp_problem *p, int *choice, const int *other, bool other_fits,
                   double other_s, struct mp_ilp_solution *s)
{
    if (other_fits && (!s->feasible || other_s < s->cost_s)) {
        memcpy(choice, other, (size_t)p->n_layers * sizeof *choice);
        s->cost_s = other_s;
        s->feasible = true;
    }
    s->optimal = s->feasible ? s->cost_s <= s->bound_s * (1 + 1e-9) + 1e-12 : s->optimal;
    if (s->optimal && s->feasible)
        s->bound_s = s->cost_s;
}

static enum memplan_status solve_program(const struct mp_ilp_problem *p, int limit_ms, struct mp_arena *arena, int *choice,
                                         struct mp_ilp_solution *s, struct memplan_error *err)
{
    struct program m = {.p = p, .limit_ms = limit_ms};
    if (!find_groups(&m, arena))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while solving");
    choose_units(&m);
    int *const index = mp_arena_calloc(arena, (size_t)m.n_columns + 1, sizeof *index);
    double *const value = mp_arena_calloc(arena, (size_t)m.n_columns + 1, sizeof *value);
    if (!index || !value)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while solving");
    return solve_exactly(&m, choice, s, index, value, err);
}

static int limit_of(const struct mp_ilp_problem *p) { return p->limit_ms > 0 ? p->limit_ms : MP_ILP_TIME_S * 1000; }

/* ---- the smaller program ---- */

static bool same_costs(const struct mp_ilp_problem *p, int a, int b)
{
    for (int c = 0; c < p->n_choices; c++) {
        const double x = cost_of(p, a, c), y = cost_of(p, b, c);
        if (isfinite(x) != isfinite(y) || (isfinite(x) && fabs(x - y) > 1e-12 * fabs(x)))
            return false;
    }
    return true;
}

/* Layers that cost the same, by the first of them. The last layer is alone: the rest is still held when its backward runs. */
static void find_classes(const struct mp_ilp_problem *p, int *class)
{
    for (int l = 0; l < p->n_layers; l++) {
        class[l] = l;
        for (int other = 0; other < l && class[l] == l && l + 1 < p->n_layers; other++)
            if (class[other] == other && same_costs(p, other, l))
                class[l] = other;
    }
}

/* The problem in which every layer takes what the least of its class does, in a room of its own. False without memory. */
static bool relax(const struct mp_ilp_problem *p, const int *class, struct mp_arena *arena, struct mp_ilp_problem *relaxed, uint64_t *room)
{
    const size_t row = (size_t)p->n_choices * (size_t)p->n_instants, layers = (size_t)p->n_layers;
    uint64_t *const bytes = mp_arena_calloc(arena, layers * row, sizeof *bytes);
    double *const cost_s = mp_arena_calloc(arena, layers * (size_t)p->n_choices, sizeof *cost_s);
    if (!bytes || !cost_s)
        return false;
    memcpy(bytes, p->bytes, layers * row * sizeof *bytes);
    memcpy(room, p->room, (size_t)p->n_instants * sizeof *room);
    for (size_t l = 0; l < layers; l++) {
        uint64_t *const least = &bytes[(size_t)class[l] * row];
        for (size_t i = 0; i < row; i++)
            least[i] = MP_MIN(least[i], p->bytes[l * row + i]);
    }
    for (size_t l = 0; l < layers; l++) {
        if (class[l] != (int)l)
            memcpy(&bytes[l * row], &bytes[(size_t)class[l] * row], row * sizeof *bytes);
        memcpy(&cost_s[l * (size_t)p->n_choices], &p->cost_s[class[l] * p->n_choices], (size_t)p->n_choices * sizeof *cost_s);
    }
    *relaxed = *p;
    relaxed->bytes = bytes;
    relaxed->room = room;
    relaxed->cost_s = cost_s;
    return true;
}

/* Bytes over the room at the worst instant; 0: it fits. */
static uint64_t worst_excess(const struct mp_ilp_problem *p, const int *choice)
{
    uint64_t worst = 0;
    for (int t = 0; t < p->n_instants; t++) {
        uint64_t sum = 0;
        for (int l = 0; l < p->n_layers; l++)
            sum += bytes_of(p, l, choice[l], t);
        worst = sum > p->room[t] ? MP_MAX(worst, sum - p->room[t]) : worst;
    }
    return worst;
}

/* Each class's choices go to its layers in the order of the choices. */
static void deal(const struct mp_ilp_problem *p, const int *class, const int *counted, const int *order, int *choice)
{
    for (int first = 0; first < p->n_layers; first++) {
        if (class[first] != first)
            continue;
        int layer = first;
        for (int i = 0; i < p->n_choices; i++) {
            for (int l = first; l < p->n_layers; l++) {
                if (class[l] != first || counted[l] != order[i])
                    continue;
                while (class[layer] != first)
                    layer++;
                choice[layer++] = order[i];
            }
        }
    }
}

static bool next_order(int *order, int n)
{
    int i = n - 2, k = n - 1;
    while (i >= 0 && order[i] > order[i + 1])
        i--;
    if (i < 0)
        return false;
    while (order[k] < order[i])
        k--;
    for (int a = i, b = k, first = 1; a < b; first = 0) {
        const int kept = order[a];
        order[a] = order[b];
        order[b] = kept;
        a = first ? i + 1 : a + 1;
        b = first ? n - 1 : b - 1;
    }
    return true;
}

enum { MAX_ORDERED = 6 }; /* 720 orders */

/* The order that is least over the room; what it is over by. */
static uint64_t arrange(const struct mp_ilp_problem *p, const int *class, const int *counted, int *tried, int *choice)
{
    int order[MAX_ORDERED];
    uint64_t least = worst_excess(p, counted);
    memcpy(choice, counted, (size_t)p->n_layers * sizeof *choice);
    for (int i = 0; i < MAX_ORDERED; i++)
        order[i] = i;
    if (p->n_choices > MAX_ORDERED)
        return least;
    do {
        deal(p, class, counted, order, tried);
        const uint64_t excess = worst_excess(p, tried);
        if (excess < least) {
            least = excess;
            memcpy(choice, tried, (size_t)p->n_layers * sizeof *choice);
        }
    } while (least > 0 && next_order(order, p->n_choices));
    return least;
}

/*
 * The smaller program, until its counts can be dealt out. *s: the answer, with the bound of the first program, which had all the room;
 * infeasible where nothing could be dealt out, and proven so where even the smaller program has no answer.
 */
static enum memplan_status solve_counts(const struct mp_ilp_problem *p, struct mp_arena *arena, int *choice, struct mp_ilp_solution *s,
                                        struct memplan_error *err)
{
    enum { TRIES = 8 };
    const size_t layers = (size_t)p->n_layers;
    int *const class = mp_arena_calloc(arena, 3 * layers, sizeof *class), *const counted = class ? class + layers : NULL;
    uint64_t *const room = mp_arena_calloc(arena, (size_t)p->n_instants, sizeof *room);
    struct mp_ilp_problem relaxed;
    if (!class || !room)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while solving");
    find_classes(p, class);
    if (!relax(p, class, arena, &relaxed, room))
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while solving");
    for (int i = 0; i < TRIES; i++) {
        struct mp_ilp_solution now = {.bound_s = -INFINITY, .n_nodes = 0};
        const enum memplan_status status = solve_program(&relaxed, limit_of(p), arena, counted, &now, err);
        if (status)
            return status;
        s->n_nodes += now.n_nodes;
        if (i == 0) {
            s->bound_s = now.bound_s;
            s->optimal = now.optimal && !now.feasible;
        }
        if (!now.feasible)
            return MEMPLAN_STATUS_OK;
        const uint64_t excess = arrange(p, class, counted, counted + layers, choice);
        if (excess == 0) {
            s->feasible = mp_ilp_fits(p, choice, &s->cost_s);
            return MEMPLAN_STATUS_OK;
        }
        for (int t = 0; t < p->n_instants; t++)
            room[t] -= MP_MIN(room[t], excess);
    }
    return MEMPLAN_STATUS_OK;
}

/* ---- the whole ---- */

#define SMALL_GAP    0.005 /* not worth more than */
#define SMALL_GAP_MS 200

enum memplan_status mp_ilp_solve(const struct mp_ilp_problem *p, int *choice, struct mp_ilp_solution *s, struct memplan_error *err)
{
    struct mp_arena arena;
    double greedy_s = 0;
    *s = (struct mp_ilp_solution){.bound_s = -INFINITY};
    if (p->n_layers < 1 || p->n_choices < 1 || p->n_instants < 1 || p->n_layers > MAX_COLUMNS / p->n_choices)
        return mp_error_set(err, MEMPLAN_STATUS_RANGE, "%d layers with %d choices are no program to solve", p->n_layers, p->n_choices);
    mp_arena_init(&arena);
    int *const other = mp_arena_calloc(&arena, (size_t)p->n_layers, sizeof(int));
    enum memplan_status status = other ? solve_counts(p, &arena, choice, s, err)
                                       : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while solving");
    if (!status && !(s->optimal && !s->feasible)) {
        const bool greedy_fits = mp_ilp_greedy(p, other, &greedy_s);
        settle(p, choice, other, greedy_fits, greedy_s, s);
    }
    if (!status && !s->optimal) {
        struct mp_ilp_solution real = {.bound_s = -INFINITY};
        const int limit_ms = limit_of(p);
        const bool close = s->feasible && s->cost_s - s->bound_s <= SMALL_GAP * s->cost_s;
        status = solve_program(p, close ? SMALL_GAP_MS : limit_ms, &arena, other, &real, err);
        s->n_nodes += real.n_nodes;
        s->bound_s = MP_MAX(s->bound_s, real.bound_s);
        s->optimal = real.optimal && !real.feasible;
        if (!status)
            settle(p, choice, other, real.feasible, real.cost_s, s);
    }
    mp_arena_release(&arena);
    return status;
}

#else

enum memplan_status mp_ilp_solve(const struct mp_ilp_problem *p, int *choice, struct mp_ilp_solution *s, struct memplan_error *err)
{
    (void)p;
    (void)choice;
    *s = (struct mp_ilp_solution){.bound_s = -INFINITY};
    return mp_error_set(err, MEMPLAN_STATUS_SOLVER, "this build has no GLPK, which plans need; install libglpk-dev and build again");
}

#endif
