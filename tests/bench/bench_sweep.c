/* SPDX-License-Identifier: MIT */
/*
 * How fast one core folds and replays the points of a grid, and whether they are what `fit` says.
 *
 *     build/release/bench/bench_sweep [GRID [POINTS [SEED]]]      configs/grids/million.yaml 1000 1
 */
#include <inttypes.h>
#include <malloc.h>
#include <time.h>

#include "plan/fold.h"
#include "plan/sweep.h"

/* Processor time: others may use the machine, too. */
static double now_s(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct tally {
    double fold_s, unfold_s, replay_s, evaluate_s;
    uint64_t n, n_folded, n_replays, n_equal, n_requests;
};

/* The folded part of one point, its replay, and the evaluation that both must agree with. */
static void measure(const struct mp_run *run, const struct mp_model *shorter, struct mp_fold *fold, struct mp_fold_scratch *scratch,
                    struct mp_requests *requests,
                    struct mp_replayer *replayer, struct tally *t)
{
    struct memplan_error err = {0};
    struct mp_verdict v;
    struct mp_evaluation e;
    const double start = now_s();
    if (mp_fold_record(fold, scratch, run, shorter, &err))
        return;
    const double folded = now_s();
    const enum memplan_status unfolding = mp_fold_expand(fold, requests, &err);
    const double unfolded = now_s();
    if (unfolding || mp_requests_replay(requests, run, replayer, NULL, 0, &v, &err))
        return;
    const double replayed = now_s();
    if (mp_evaluate(run, NULL, &e, &err))
        return;
    t->evaluate_s += now_s() - replayed;
    t->fold_s += folded - start;
    t->unfold_s += unfolded - folded;
    t->replay_s += replayed - unfolded;
    t->n++;
    t->n_folded += fold->folded;
    t->n_requests += requests->n_requests;
    t->n_equal += v.fits == e.fits && v.requested_bytes == e.requested_bytes && v.allocated_bytes == e.allocated_bytes &&
                  v.reserved_bytes == e.reserved_bytes && v.device_used_bytes == e.device_used_bytes &&
                  (fold->peak_bytes <= e.available_bytes || !e.fits);
    mp_evaluation_release(&e);
}

int main(int argc, char **argv)
{
    const char *const path = argc > 1 ? argv[1] : "configs/grids/million.yaml";
    const uint64_t wanted = argc > 2 ? strtoull(argv[2], NULL, 10) : 1000;
    uint64_t state = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    struct mp_arena arena, point_arena;
    struct memplan_error err = {0};
    struct tally t = {0};
    struct mp_fold fold = {0};
    struct mp_fold_scratch scratch = {0};
    struct mp_requests requests = {0};
    struct mp_replayer replayer = {0};
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
    (void)mallopt(M_TRIM_THRESHOLD, 512 << 20);
    mp_arena_init(&arena);
    mp_arena_init(&point_arena);
    const struct mp_grid *const grid = mp_grid_read(&arena, path, &err);
    if (!grid) {
        (void)fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    for (uint64_t i = 0; i < wanted; i++) {
        struct mp_run_source source;
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const uint64_t point = (state >> 16) % grid->n_points;
        mp_run_source_init(&source, &point_arena);
        mp_grid_source(grid, point, &source);
        const struct mp_run *const run = mp_run_resolve(&source, &err);
        if (run && mp_requests_applies(run)) {
            const struct mp_model *const shorter = mp_fold_model(run->model, &point_arena);
            measure(run, shorter, &fold, &scratch, &requests, &replayer, &t);
        }
        mp_arena_rewind(&point_arena, (struct mp_arena_mark){0});
    }
    const double n = (double)(t.n ? t.n : 1);
    (void)printf("%" PRIu64 " points, %" PRIu64 " folded, %" PRIu64 " as fit says\n", t.n, t.n_folded, t.n_equal);
    (void)printf("fold      %8.1f us  %9.0f /s\n", t.fold_s / n * 1e6, n / t.fold_s);
    (void)printf("unfold    %8.1f us  %9.0f /s\n", t.unfold_s / n * 1e6, n / t.unfold_s);
    (void)printf("replay    %8.1f us  %9.0f /s  (%.0f requests recorded)\n", t.replay_s / n * 1e6, n / t.replay_s, (double)t.n_requests / n);
    (void)printf("evaluate  %8.1f us  %9.0f /s\n", t.evaluate_s / n * 1e6, n / t.evaluate_s);
    mp_fold_release(&fold);
    mp_fold_scratch_release(&scratch);
    mp_requests_release(&requests);
    mp_replayer_release(&replayer);
    mp_arena_release(&point_arena);
    mp_arena_release(&arena);
    return t.n_equal == t.n ? 0 : 1;
}
