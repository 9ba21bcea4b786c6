/* SPDX-License-Identifier: MIT */
/*
 * How fast a verdict is: evaluations in one thread, the command from cold, and the memory of the largest
 * model. Times are printed beside what they should be; nothing fails. PROGRAM is the command (./memplan).
 */
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "plan/judge.h"

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Others may use the machine, too. */
static double processor_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_fit: %s\n", what);
    exit(1);
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- in the library ---- */

static const struct mp_run *make_run(const char *model, const char *gpu, struct mp_arena *arena)
{
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_run_source source;
    mp_run_source_init(&source, arena);
    if (mp_run_source_text(&source, "model", "bench", model, &err) != MEMPLAN_STATUS_OK ||
        mp_run_source_text(&source, "gpu", "bench", gpu, &err) != MEMPLAN_STATUS_OK)
        die(err.text);
    const struct mp_run *const run = mp_run_resolve(&source, &err);
    if (run == NULL)
        die(err.text);
    return run;
}

/* From spec to verdict, with all that `fit` and `compare` tell beside it. */
static void bench_evaluations(const char *model, const char *gpu, const char *target)
{
    enum { AT_LEAST = 20 };
    const double seconds = 1;
    const double start = processor_s();
    uint32_t n_events = 0;
    int64_t steps = 0;
    int n = 0;
    for (; n < AT_LEAST || processor_s() - start < seconds; n++) {
        struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
        struct mp_arena arena = {0};
        struct mp_evaluation e;
        if (mp_evaluate(make_run(model, gpu, &arena), NULL, &e, &err) != MEMPLAN_STATUS_OK)
            die(err.text);
        n_events = e.program.n_events;
        steps = e.steps;
        mp_evaluation_release(&e);
        mp_arena_release(&arena);
    }
    printf("  %-12s on %-10s %8.0f evaluations/s%s (%u events written, %lld steps replayed)\n", model, gpu,
           (double)n / (processor_s() - start), target, n_events, (long long)steps);
}

/* From spec to verdict and nothing else: as advice (folds: and as a search for the largest batch) gets it. */
static void bench_verdicts(const char *model, const char *gpu, bool folds, const char *target)
{
    enum { AT_LEAST = 20 };
    const double seconds = 1;
    struct memplan_error err = {MEMPLAN_STATUS_OK, ""};
    struct mp_arena arena = {0};
    struct mp_judge judge;
    int n = 0;
    mp_judge_init(&judge, folds ? make_run(model, gpu, &arena) : NULL);
    const double start = processor_s();
    for (; n < AT_LEAST || processor_s() - start < seconds; n++) {
        struct mp_arena spec_arena = {0};
        struct mp_verdict v;
        const struct mp_run *const run = make_run(model, gpu, &spec_arena);
        if (mp_judge_hear(&judge, run, &err) != MEMPLAN_STATUS_OK || mp_judge_verdict(&judge, run, &v, &err) != MEMPLAN_STATUS_OK)
            die(err.text);
        mp_arena_release(&spec_arena);
    }
    printf("  %-12s on %-10s %8.0f verdicts/s%s, %s\n", model, gpu, (double)n / (processor_s() - start), target,
           folds ? "folded" : "run in full");
    mp_judge_release(&judge);
    mp_arena_release(&arena);
}

/* ---- the command ---- */

/* Seconds that one call takes, and the most memory it held, in MiB. */
struct cost {
    double seconds, mib;
};

/* In a process of its own, whose children are only this one: the largest child is the one asked about. */
static struct cost run_command(char *const *argv)
{
    struct cost cost = {0, 0};
    int ends[2];
    if (pipe(ends) != 0)
        die("no pipe");
    const pid_t keeper = fork();
    if (keeper == 0) {
        const double start = now_s();
        const pid_t child = fork();
        if (child == 0) {
            const int null = open("/dev/null", O_WRONLY);
            dup2(null, STDOUT_FILENO);
            dup2(null, STDERR_FILENO);
            execv(argv[0], argv);
            _exit(127);
        }
        int status = 0;
        struct rusage usage;
        if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) > 1)
            _exit(1);
        cost.seconds = now_s() - start;
        getrusage(RUSAGE_CHILDREN, &usage);
        cost.mib = (double)usage.ru_maxrss / 1024;
        _exit(write(ends[1], &cost, sizeof cost) == (ssize_t)sizeof cost ? 0 : 1);
    }
    int status = 1;
    close(ends[1]);
    const bool got = read(ends[0], &cost, sizeof cost) == (ssize_t)sizeof cost;
    close(ends[0]);
    if (keeper < 0 || waitpid(keeper, &status, 0) < 0 || status != 0 || !got)
        die("the command could not be run; build it first, or set PROGRAM");
    return cost;
}

static void bench_command(const char *model, const char *gpu, bool advice, const char *target)
{
    enum { CALLS = 15 };
    const char *const path = getenv("PROGRAM");
    char program[4096], arguments[4][64];
    double seconds[CALLS], mib = 0;
    snprintf(program, sizeof program, "%s%s", path == NULL || strchr(path, '/') == NULL ? "./" : "", path == NULL ? "memplan" : path);
    snprintf(arguments[0], sizeof arguments[0], "fit");
    snprintf(arguments[1], sizeof arguments[1], "--model=%s", model);
    snprintf(arguments[2], sizeof arguments[2], "--gpu=%s", gpu);
    snprintf(arguments[3], sizeof arguments[3], "--no-advice");
    char *const argv[] = {program, arguments[0], arguments[1], arguments[2], advice ? NULL : arguments[3], NULL};
    for (int i = 0; i < CALLS; i++) {
        const struct cost cost = run_command(argv);
        seconds[i] = cost.seconds;
        mib = MP_MAX(mib, cost.mib);
    }
    qsort(seconds, CALLS, sizeof *seconds, compare_doubles);
    printf("  fit --model %-9s --gpu %-9s%-12s %6.1f ms, at best %.1f ms; %.1f MiB%s\n", model, gpu, advice ? "" : " --no-advice",
           1e3 * seconds[CALLS / 2], 1e3 * seconds[0], mib, target);
}

int main(void)
{
    /* as the command's main(): freed memory is kept */
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 30);
    (void)mallopt(M_TRIM_THRESHOLD, 512 << 20);
    printf("evaluations in one thread, from spec to verdict, by processor time:\n");
    bench_evaluations("gpt-1.3b", "A100-80G", ", to reach 1000");
    bench_evaluations("gpt-1.3b", "H200-141G", "");
    bench_evaluations("gpt2", "H200-141G", "");
    bench_evaluations("llama3-8b", "H200-141G", "");
    bench_evaluations("gpt-175b", "H200-141G", "");
    bench_verdicts("gpt-1.3b", "A100-80G", false, ", to reach 1000");
    bench_verdicts("gpt-1.3b", "A100-80G", true, ", to reach 1000");
    printf("the command, cold (median of 15):\n");
    bench_command("gpt-1.3b", "A100-80G", false, "; to reach 10 ms");
    bench_command("gpt-1.3b", "A100-80G", true, "; to reach 40 ms");
    bench_command("gpt-175b", "H200-141G", false, "; to reach 64 MiB");
    bench_command("gpt-175b", "H200-141G", true, "; to reach 64 MiB");
    return 0;
}
