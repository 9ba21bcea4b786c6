/* SPDX-License-Identifier: MIT */
/*
 * Options of a command as one table, from which parsing, --help and completion come.
 *
 *     struct fit_options { bool json; const char *output; };
 *     static const struct mp_option options[] = {
 *         {"json", 0, NULL, MP_OPTION_FLAG, offsetof(struct fit_options, json), "Output", "print
 * JSON", NULL},
 *         {"output", 'o', "FILE", MP_OPTION_STRING, offsetof(struct fit_options, output), "Output",
 * "write to FILE", NULL},
 *     };
 *     const struct mp_command mp_command_fit = {.name = "fit", .options = options, .n_options = 2,
 * .takes_run = true, ...};
 *
 * A command that takes a run (takes_run) has the options of all run keys before its own, and --run
 * FILE; they go into a mp_run_source: files first, in order, then flags over them.
 */
#ifndef MP_OPTIONS_H
#define MP_OPTIONS_H

#include "base/error.h"
#include "base/strbuf.h"
#include "spec/run.h"

enum mp_option_kind {
    MP_OPTION_FLAG,   /* bool: true */
    MP_OPTION_STRING, /* const char *: the last one given */
    MP_OPTION_OUTPUT, /* const char *: a file to write, which no other output and no input may be */
    MP_OPTION_INT,    /* int64_t, in [low, high] */
    MP_OPTION_BYTES,  /* uint64_t: "1GiB" */
    MP_OPTION_NUMBER, /* double, in [low, high] */
    MP_OPTION_CHOICE, /* int: index in values */
    MP_OPTION_LIST,   /* struct mp_option_list: every one given, in order */
};

#define MP_OPTION_LIST_MAX 64
struct mp_option_list {
    const char *items[MP_OPTION_LIST_MAX];
    size_t n;
};

struct mp_option {
    const char *name;     /* long name without dashes */
    char short_name;      /* 0: none */
    const char *argument; /* "FILE" in help; NULL for FLAG */
    enum mp_option_kind kind;
    size_t target;      /* offsetof in the command's options struct */
    const char *group;  /* heading in help; options of a group stand together */
    const char *help;   /* with unit and default */
    const char *values; /* '|'-separated: CHOICE's words, or what completion proposes */
    int64_t low, high;  /* INT and NUMBER; both 0: any */
};

struct mp_command {
    const char *name;
    const char *operands; /* "FILE...", NULL: none */
    const char
        *operand_values;  /* '|'-separated: what completion proposes as operand; NULL: files */
    const char *sentence; /* one sentence, lower case, no full stop */
    const struct mp_option *options;
    size_t n_options;
    bool takes_run; /* run keys and --run */
    const char *examples[2];
    const char *exits;              /* lines before the common ones, of 2 and 3; NULL: "0 done" */
    const char *more_exits;         /* lines after them: what else 2 and 3 mean */
    int min_operands, max_operands; /* max -1: any number */
};

/** What the command line said beside the targets. */
struct mp_operands {
    char **items; /* into argv */
    int n;
};

enum mp_options_result { MP_OPTIONS_GO, MP_OPTIONS_DONE };

/**
 * Parse argv (argv[0] is the command's name) into the options struct at target, whose defaults the
 * caller has set. source: for commands that take a run. GO: carry on. DONE: return *exit_status at
 * once; help was printed, or an error with its "try" line.
 */
enum mp_options_result mp_options_parse(const struct mp_command *command, int argc, char **argv,
                                        void *target, struct mp_run_source *source,
                                        struct mp_operands *operands, int *exit_status);

/** The text of --help, at most 80 columns. */
void mp_options_help(const struct mp_command *command, struct mp_strbuf *out);

/** A usage error: "memplan fit: TEXT" and the "try" line on stderr; returns MP_EXIT_USAGE. */
int mp_options_usage_error(const char *command, const char *format, ...) MP_PRINTF(2, 3);

/** All options of a command, run keys, --run and --help included, in the order of help: for
 * completion and checks. */
struct mp_option_view {
    char name[40];
    char short_name;
    const char *argument; /* NULL: none */
    bool optional;        /* the argument may be left out (and is given with =) */
    const char *group, *help, *values, *fallback;
    int run_key; /* enum mp_run_key, or -1 */
    int own;     /* index in command->options, or -1 */
};
size_t mp_options_count(const struct mp_command *command);
void mp_options_view(const struct mp_command *command, size_t index, struct mp_option_view *view);

#endif
