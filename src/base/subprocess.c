/* SPDX-License-Identifier: MIT */
/*
 * A program's standard output through a pipe. poll() bounds the wait for the pipe, and since a program may close its output and
 * go on running, the wait for its end is bounded too. The program leads a process group: a script that is killed takes along
 * what it waits for, which would keep the pipe open.
 */
#include "base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A process that a driver holds does not even hear SIGKILL; it is left to init then. */
enum { KILL_GRACE_MS = 1000 };

static int64_t now_ms(void)
{
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int left_ms(int64_t deadline_ms)
{
    return (int)MP_MAX(deadline_ms - now_ms(), 0);
}

static bool spawn(char *const argv[], const int ends[2], pid_t *pid)
{
    char *const environment[] = {NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return false;
    if (posix_spawnattr_init(&attributes) != 0) {
        (void)posix_spawn_file_actions_destroy(&actions);
        return false;
    }
    const bool spawned = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0) == 0 &&
                         posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO) == 0 &&
                         posix_spawn_file_actions_addclose(&actions, ends[0]) == 0 &&
                         posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0) == 0 &&
                         posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP) == 0 &&
                         posix_spawnp(pid, argv[0], &actions, &attributes, argv, environment) == 0;
    (void)posix_spawnattr_destroy(&attributes);
    (void)posix_spawn_file_actions_destroy(&actions);
    return spawned;
}

/* Until the end of the output; false when the deadline comes first. */
static bool read_output(int end, int64_t deadline_ms, char *out, size_t size)
{
    char rest[512] = {0};
    size_t used = 0;
    for (;;) {
        struct pollfd ready = {.fd = end, .events = POLLIN};
        const int n_ready = poll(&ready, 1, left_ms(deadline_ms));
        if (n_ready == 0)
            return false;
        if (n_ready < 0 && errno != EINTR)
            return true;
        if (n_ready < 0)
            continue;
        const size_t room = size - 1 - used;
        const ssize_t n = read(end, room > 0 ? out + used : rest, room > 0 ? room : sizeof rest);
        if (n == 0 || (n < 0 && errno != EINTR))
            return true;
        if (n > 0 && room > 0)
            used += (size_t)n;
        out[used] = '\0';
    }
}

/* False when the process still runs at the deadline. POSIX has no wait with a limit: look, sleep a little, look again. */
static bool wait_for(pid_t pid, int64_t deadline_ms, int *status)
{
    for (int pause_ms = 1;; pause_ms = MP_MIN(2 * pause_ms, 50)) {
        const pid_t ended = waitpid(pid, status, WNOHANG);
        if (ended == pid || (ended < 0 && errno != EINTR))
            return true;
        if (left_ms(deadline_ms) == 0)
            return false;
        (void)poll(NULL, 0, MP_MIN(pause_ms, left_ms(deadline_ms)));
    }
}

enum mp_subprocess_end mp_subprocess_ask(char *const argv[], int limit_ms, char *out, size_t size)
{
    const int64_t deadline_ms = now_ms() + limit_ms;
    int ends[2], status = -1;
    pid_t pid = -1;
    out[0] = '\0';
    if (pipe(ends) != 0)
        return MP_SUBPROCESS_FAILED;
    const bool spawned = spawn(argv, ends, &pid);
    (void)close(ends[1]);
    const bool ended = spawned && read_output(ends[0], deadline_ms, out, size) && wait_for(pid, deadline_ms, &status);
    (void)close(ends[0]);
    if (!spawned)
        return MP_SUBPROCESS_FAILED;
    if (!ended) {
        (void)kill(-pid, SIGKILL);
        (void)wait_for(pid, now_ms() + KILL_GRACE_MS, &status);
        return MP_SUBPROCESS_TIMED_OUT;
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? MP_SUBPROCESS_ANSWERED : MP_SUBPROCESS_FAILED;
}
