/* SPDX-License-Identifier: MIT */
/*
 * Commands: one file per command, each with
 *
 *     const struct mp_command mp_command_fit = {...};           what help and completion say, the
 * options int mp_cmd_fit(int argc, char **argv);                    argv[0] is the command's name;
 * returns the exit status
 *
 * and a line in MP_CLI_COMMAND_MAP. The symbols are weak, so that a build without a command's file
 * links and does not list it. Only main.c exits.
 */
#ifndef MP_CLI_H
#define MP_CLI_H

#include "cli/options.h"

/* In the order of `memplan help`. */
#define MP_CLI_COMMAND_MAP(X)                                                                      \
    X(fit)                                                                                         \
    X(sweep) X(merge) X(plan) X(compare) X(replay) X(diagnose) X(nccl) X(validate) X(list) X(completion)    \
        X(help)

#define X(name)                                                                                    \
    __attribute__((weak)) int mp_cmd_##name(int argc, char **argv);                                \
    extern __attribute__((weak)) const struct mp_command mp_command_##name;
MP_CLI_COMMAND_MAP(X)
#undef X

/* Exit statuses. */
enum mp_exit {
    MP_EXIT_YES = 0,   /* done, fits */
    MP_EXIT_NO = 1,    /* a sound question answered no */
    MP_EXIT_USAGE = 2, /* usage or input */
    MP_EXIT_WORLD = 3, /* I/O, memory, solver, device */
};

/** INPUT, RANGE and UNSUPPORTED are the user's to repair (2), NOMEM, IO and SOLVER the world's (3).
 */
int mp_exit_status(enum memplan_status status);

/** "memplan fit: TEXT" on stderr, control characters escaped. command may be NULL. Returns
 * mp_exit_status(). */
int mp_cli_fail(const char *command, const struct memplan_error *err);
/** Likewise "memplan fit: warning: TEXT"; for what the user should know. */
void mp_cli_warn(const char *command, const char *text);

/** --color=auto|always|never for that stream: auto is a terminal, NO_COLOR empty and TERM not
 * "dumb". */
enum mp_color { MP_COLOR_AUTO, MP_COLOR_ALWAYS, MP_COLOR_NEVER };
bool mp_cli_color(enum mp_color color, FILE *stream);

/** Commands that this build has: the n-th, NULL after the last. */
struct mp_cli_entry {
    const char *name;
    int (*run)(int argc, char **argv);
    const struct mp_command *command; /* NULL when the file has none */
};
const struct mp_cli_entry *mp_cli_entries(size_t *n);
const struct mp_cli_entry *mp_cli_find(const char *name);

#endif
