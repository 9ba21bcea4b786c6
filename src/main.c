/* SPDX-License-Identifier: MIT */
/* The command: finds the subcommand, checks that its output was written, and exits. */
#include <errno.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/units.h"
#include "cli/cli.h"

static int print_version(void)
{
#if defined(MP_HAVE_GLPK) && MP_HAVE_GLPK
    const char *const glpk = "yes";
#else
    const char *const glpk = "no";
#endif
    (void)printf("memplan %s\nGLPK: %s\n", memplan_version(), glpk);
    return MP_EXIT_YES;
}

static int unknown_command(const char *name)
{
    const char *names[64];
    size_t n_entries = 0, n = 0;
    const struct mp_cli_entry *const entries = mp_cli_entries(&n_entries);
    for (size_t i = 0; i < n_entries && n < MP_ARRAY_LEN(names); i++) {
        if (entries[i].run != NULL)
            names[n++] = entries[i].name;
    }
    const char *const closest = mp_closest(name, names, n);
    if (closest != NULL)
        return mp_options_usage_error(NULL, "unknown command '%.80s', did you mean '%s'?", name,
                                      closest);
    return mp_options_usage_error(NULL, "unknown command '%.80s'", name);
}

static int dispatch(int argc, char **argv)
{
    char help[] = "help";
    char *const help_arguments[] = {help, NULL};
    if (argc < 2)
        return mp_options_usage_error(NULL, "no command given");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return mp_cmd_help(1, (char **)(uintptr_t)help_arguments);
    if (strcmp(argv[1], "--version") == 0)
        return print_version();
    if (argv[1][0] == '-')
        return mp_options_usage_error(NULL, "unknown option '%.80s'", argv[1]);
    const struct mp_cli_entry *const entry = mp_cli_find(argv[1]);
    return entry != NULL ? entry->run(argc - 1, argv + 1) : unknown_command(argv[1]);
}

/* What was printed must have arrived: a full disk is a failure, not half an answer. */
static int finish(int status)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return status;
    (void)fprintf(stderr, "memplan: cannot write standard output: %s\n",
                  strerror(errno != 0 ? errno : EIO));
    return MP_EXIT_WORLD;
}

/*
 * One evaluation after another asks for the same few megabytes: kept in the process, they need not be mapped and cleared each time,
 * which is a third of the time of a sweep.
 */
static void keep_freed_memory(void)
{
#ifdef __GLIBC__
    enum { KEPT_BYTES = 256 << 20 };
    (void)mallopt(M_MMAP_THRESHOLD, KEPT_BYTES);
    (void)mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
#endif
}

int main(int argc, char **argv)
{
    keep_freed_memory();
    return finish(dispatch(argc, argv));
}
