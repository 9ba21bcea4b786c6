/* SPDX-License-Identifier: MIT */
/* What all commands share: the table of commands, messages, exit statuses, colour, and `memplan
 * help`. */
#include "cli/cli.h"

#include <unistd.h>

#include "base/table.h"
#include "base/units.h"

int mp_exit_status(enum memplan_status status)
{
    switch (status) {
    case MEMPLAN_STATUS_OK: return MP_EXIT_YES;
    case MEMPLAN_STATUS_INPUT:
    case MEMPLAN_STATUS_RANGE:
    case MEMPLAN_STATUS_UNSUPPORTED: return MP_EXIT_USAGE;
    case MEMPLAN_STATUS_NOMEM:
    case MEMPLAN_STATUS_IO:
    case MEMPLAN_STATUS_SOLVER:
    default: return MP_EXIT_WORLD;
    }
}

static void print_message(const char *command, const char *kind, const char *text)
{
    struct mp_strbuf safe = MP_STRBUF_INIT;
    mp_text_escape(&safe, text);
    (void)fprintf(stderr, "memplan%s%s: %s%s\n", command != NULL ? " " : "",
                  command != NULL ? command : "", kind,
                  safe.failed ? "out of memory" : mp_strbuf_text(&safe));
    mp_strbuf_release(&safe);
}

int mp_cli_fail(const char *command, const struct memplan_error *err)
{
    print_message(command, "", err->text);
    return mp_exit_status(err->status);
}

void mp_cli_warn(const char *command, const char *text)
{
    print_message(command, "warning: ", text);
}

bool mp_cli_color(enum mp_color color, FILE *stream)
{
    if (color != MP_COLOR_AUTO)
        return color == MP_COLOR_ALWAYS;
    const char *const no_color = getenv("NO_COLOR");
    const char *const term = getenv("TERM");
    if (no_color != NULL && no_color[0] != '\0')
        return false;
    if (term == NULL || strcmp(term, "dumb") == 0)
        return false;
    return isatty(fileno(stream)) == 1;
}

static const struct mp_cli_entry all_entries[] = {
#define X(name) {#name, mp_cmd_##name, &mp_command_##name},
    MP_CLI_COMMAND_MAP(X)
#undef X
};

const struct mp_cli_entry *mp_cli_entries(size_t *n)
{
    *n = MP_ARRAY_LEN(all_entries);
    return all_entries;
}

const struct mp_cli_entry *mp_cli_find(const char *name)
{
    for (size_t i = 0; i < MP_ARRAY_LEN(all_entries); i++) {
        if (all_entries[i].run != NULL && strcmp(all_entries[i].name, name) == 0)
            return &all_entries[i];
    }
    return NULL;
}

const struct mp_command mp_command_help = {
    .name = "help",
    .operands = "[COMMAND]",
    .sentence = "explain memplan or one of its commands",
    .examples = {"memplan help", "memplan help fit"},
    .max_operands = 1,
};

static int print_overview(void)
{
    (void)fputs("usage: memplan COMMAND [OPTION...] [FILE...]\n"
                "Plan the GPU memory of Transformer training, to the byte, without a GPU.\n\n"
                "Commands:\n",
                stdout);
    for (size_t i = 0; i < MP_ARRAY_LEN(all_entries); i++) {
        if (all_entries[i].run != NULL)
            (void)printf("  %-12s%s\n", all_entries[i].name,
                         all_entries[i].command != NULL ? all_entries[i].command->sentence : "");
    }
    (void)fputs("\nOther:\n"
                "  --version   print the version and what was built in\n"
                "  --help      print this text; 'memplan COMMAND --help' explains a command\n\n"
                "Examples:\n"
                "  memplan fit --gpu A100-80G --model gpt-1.3b\n"
                "  memplan list gpus\n\n"
                "Exit status:\n"
                "  0 yes or done\n"
                "  1 a sound question answered no: does not fit, outside tolerance\n"
                "  2 wrong usage or input\n"
                "  3 the world failed: files, memory, devices\n",
                stdout);
    return MP_EXIT_YES;
}

int mp_cmd_help(int argc, char **argv)
{
    struct mp_operands operands = {0};
    int status = MP_EXIT_YES;
    if (mp_options_parse(&mp_command_help, argc, argv, NULL, NULL, &operands, &status) ==
        MP_OPTIONS_DONE)
        return status;
    if (operands.n == 0)
        return print_overview();
    const struct mp_cli_entry *const entry = mp_cli_find(operands.items[0]);
    if (entry == NULL)
        return mp_options_usage_error(NULL, "unknown command '%.80s'", operands.items[0]);
    char help[] = "--help";
    char *const arguments[] = {operands.items[0], help, NULL};
    return entry->run(2, (char **)(uintptr_t)arguments);
}
