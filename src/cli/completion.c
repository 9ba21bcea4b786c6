/* SPDX-License-Identifier: MIT */
/* `memplan completion`: scripts for three shells, written from the same tables that parse the
 * options. */
#include "cli/cli.h"
#include "spec/shipped.h"

const struct mp_command mp_command_completion = {
    .name = "completion",
    .operands = "bash|zsh|fish",
    .operand_values = "bash|zsh|fish",
    .sentence = "print the completion script of a shell",
    .examples = {"source <(memplan completion bash)",
                 "memplan completion fish > ~/.config/fish/completions/memplan.fish"},
    .min_operands = 1,
    .max_operands = 1,
};

/* "a|b" as "a b". */
static void add_words(struct mp_strbuf *out, const char *values)
{
    for (const char *c = values; *c != '\0'; c++)
        mp_strbuf_addch(out, *c == '|' ? ' ' : *c);
}

static void add_shipped(struct mp_strbuf *out, const char *kind)
{
    size_t n = 0;
    const struct mp_shipped *const files = mp_shipped_all(&n);
    bool first = true;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(files[i].kind, kind) == 0) {
            mp_strbuf_addf(out, "%s%s", first ? "" : " ", files[i].name);
            first = false;
        }
    }
}

/* Words that the option's argument may be; empty: anything, so files are proposed. */
static void add_argument_words(struct mp_strbuf *out, const struct mp_option_view *view)
{
    if (view->run_key == MP_KEY_MODEL)
        add_shipped(out, "models");
    else if (view->run_key == MP_KEY_FRAMEWORK)
        add_shipped(out, "frameworks");
    else if (view->run_key == MP_KEY_GPU) {
        mp_strbuf_addstr(out, "auto ");
        add_shipped(out, "gpus");
    } else if (view->values != NULL) {
        add_words(out, view->values);
    }
}

/* Text inside single quotes of a shell. */
static void add_quoted(struct mp_strbuf *out, const char *text)
{
    mp_strbuf_addch(out, '\'');
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            mp_strbuf_addstr(out, "'\\''");
        else
            mp_strbuf_addch(out, *text);
    }
    mp_strbuf_addch(out, '\'');
}

typedef void visit_option(struct mp_strbuf *out, const struct mp_command *command,
                          const struct mp_option_view *view);

/* Options that help shows. */
static void each_option(struct mp_strbuf *out, const struct mp_command *command,
                        visit_option *visit)
{
    struct mp_option_view view;
    for (size_t i = 0; i < mp_options_count(command); i++) {
        mp_options_view(command, i, &view);
        if (view.group != NULL)
            visit(out, command, &view);
    }
}

static bool is_built(const struct mp_cli_entry *entry)
{
    return entry->run != NULL && entry->command != NULL;
}

static void add_command_names(struct mp_strbuf *out)
{
    size_t n = 0;
    const struct mp_cli_entry *const entries = mp_cli_entries(&n);
    for (size_t i = 0; i < n; i++) {
        if (is_built(&entries[i]))
            mp_strbuf_addf(out, "%s ", entries[i].name);
    }
}

/* ---- bash ---- */

static void bash_value(struct mp_strbuf *out, const struct mp_command *command,
                       const struct mp_option_view *view)
{
    if (view->argument == NULL || view->optional)
        return;
    struct mp_strbuf words = MP_STRBUF_INIT;
    add_argument_words(&words, view);
    if (words.len > 0)
        mp_strbuf_addf(out,
                       "    '%s --%s') mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\"); "
                       "compopt -o default; "
                       "return ;;\n",
                       command->name, view->name, mp_strbuf_text(&words));
    else
        mp_strbuf_addf(out, "    '%s --%s') compopt -o default; return ;;\n", command->name,
                       view->name);
    mp_strbuf_release(&words);
}

static void bash_name(struct mp_strbuf *out, const struct mp_command *command,
                      const struct mp_option_view *view)
{
    (void)command;
    mp_strbuf_addf(out, "--%s ", view->name);
}

static void write_bash(struct mp_strbuf *out)
{
    size_t n = 0;
    const struct mp_cli_entry *const entries = mp_cli_entries(&n);
    mp_strbuf_addstr(out,
                     "# bash completion of memplan\n"
                     "_memplan() {\n"
                     "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                     "    local command=${COMP_WORDS[1]}\n"
                     "    COMPREPLY=()\n"
                     "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                     "        mapfile -t COMPREPLY < <(compgen -W '");
    add_command_names(out);
    mp_strbuf_addstr(
        out,
        "--version --help' -- \"$cur\")\n        return\n    fi\n    case \"$command $prev\" in\n");
    for (size_t i = 0; i < n; i++) {
        if (is_built(&entries[i]))
            each_option(out, entries[i].command, bash_value);
    }
    mp_strbuf_addstr(out, "    esac\n    local words=\n    case $command in\n");
    for (size_t i = 0; i < n; i++) {
        if (!is_built(&entries[i]))
            continue;
        mp_strbuf_addf(out, "    %s) words='", entries[i].name);
        each_option(out, entries[i].command, bash_name);
        if (entries[i].command->operand_values != NULL)
            add_words(out, entries[i].command->operand_values);
        mp_strbuf_addstr(out, "' ;;\n");
    }
    mp_strbuf_addstr(out, "    esac\n"
                          "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
                          "    case $cur in -*) ;; *) compopt -o default ;; esac\n"
                          "}\n"
                          "complete -F _memplan memplan\n");
}

/* ---- zsh ---- */

/* Brackets and colons divide an _arguments spec. */
static void add_zsh_text(struct mp_strbuf *out, const char *text)
{
    struct mp_strbuf escaped = MP_STRBUF_INIT;
    for (; *text != '\0'; text++) {
        if (strchr("[]:\\", *text) != NULL)
            mp_strbuf_addch(&escaped, '\\');
        if (*text == '\'')
            mp_strbuf_addstr(&escaped, "'\\''");
        else
            mp_strbuf_addch(&escaped, *text);
    }
    mp_strbuf_addstr(out, mp_strbuf_text(&escaped));
    mp_strbuf_release(&escaped);
}

static void zsh_option(struct mp_strbuf *out, const struct mp_command *command,
                       const struct mp_option_view *view)
{
    (void)command;
    mp_strbuf_addf(out, "            '--%s%s[", view->name,
                   view->argument == NULL ? ""
                   : view->optional       ? "=-"
                                          : "=");
    add_zsh_text(out, view->help);
    mp_strbuf_addch(out, ']');
    if (view->argument != NULL) {
        struct mp_strbuf words = MP_STRBUF_INIT;
        add_argument_words(&words, view);
        mp_strbuf_addf(out, "%s:", view->optional ? "::" : ":");
        add_zsh_text(out, view->argument);
        if (words.len > 0 && strstr(view->argument, "FILE") == NULL)
            mp_strbuf_addf(out, "(%s)", mp_strbuf_text(&words));
        else if (words.len > 0)
            mp_strbuf_addf(out, "{_alternative \"names\\:name\\:(%s)\" \"files\\:file\\:_files\"}",
                           mp_strbuf_text(&words));
        else
            mp_strbuf_addstr(out, "_files");
        mp_strbuf_release(&words);
    }
    mp_strbuf_addstr(out, "' \\\n");
}

static void write_zsh(struct mp_strbuf *out)
{
    size_t n = 0;
    const struct mp_cli_entry *const entries = mp_cli_entries(&n);
    mp_strbuf_addstr(out, "#compdef memplan\n"
                          "_memplan() {\n"
                          "    local -a commands\n"
                          "    commands=(\n");
    for (size_t i = 0; i < n; i++) {
        if (!is_built(&entries[i]))
            continue;
        mp_strbuf_addf(out, "        '%s:", entries[i].name);
        add_zsh_text(out, entries[i].command->sentence);
        mp_strbuf_addstr(out, "'\n");
    }
    mp_strbuf_addstr(out, "    )\n"
                          "    if (( CURRENT == 2 )); then\n"
                          "        _describe command commands\n"
                          "        return\n"
                          "    fi\n"
                          "    shift words; (( CURRENT-- ))\n"
                          "    case $words[1] in\n");
    for (size_t i = 0; i < n; i++) {
        if (!is_built(&entries[i]))
            continue;
        mp_strbuf_addf(out, "    %s)\n        _arguments \\\n", entries[i].name);
        each_option(out, entries[i].command, zsh_option);
        if (entries[i].command->operand_values != NULL) {
            mp_strbuf_addstr(out, "            '*:operand:(");
            add_words(out, entries[i].command->operand_values);
            mp_strbuf_addstr(out, ")'\n        ;;\n");
        } else {
            mp_strbuf_addstr(out, "            '*:file:_files'\n        ;;\n");
        }
    }
    mp_strbuf_addstr(out, "    esac\n}\ncompdef _memplan memplan\n");
}

/* ---- fish ---- */

static void fish_option(struct mp_strbuf *out, const struct mp_command *command,
                        const struct mp_option_view *view)
{
    mp_strbuf_addf(out, "complete -c memplan -n '__fish_seen_subcommand_from %s' -l %s",
                   command->name, view->name);
    if (view->short_name != 0)
        mp_strbuf_addf(out, " -s %c", view->short_name);
    if (view->argument != NULL && !view->optional) {
        struct mp_strbuf words = MP_STRBUF_INIT;
        add_argument_words(&words, view);
        mp_strbuf_addstr(out,
                         strstr(view->argument, "FILE") != NULL || words.len == 0 ? " -r" : " -x");
        if (words.len > 0)
            mp_strbuf_addf(out, " -a '%s'", mp_strbuf_text(&words));
        mp_strbuf_release(&words);
    }
    mp_strbuf_addstr(out, " -d ");
    add_quoted(out, view->help);
    mp_strbuf_addch(out, '\n');
}

static void write_fish(struct mp_strbuf *out)
{
    size_t n = 0;
    const struct mp_cli_entry *const entries = mp_cli_entries(&n);
    mp_strbuf_addstr(out, "# fish completion of memplan\n");
    for (size_t i = 0; i < n; i++) {
        if (!is_built(&entries[i]))
            continue;
        mp_strbuf_addf(out, "complete -c memplan -n __fish_use_subcommand -f -a %s -d ",
                       entries[i].name);
        add_quoted(out, entries[i].command->sentence);
        mp_strbuf_addch(out, '\n');
    }
    for (size_t i = 0; i < n; i++) {
        if (!is_built(&entries[i]))
            continue;
        each_option(out, entries[i].command, fish_option);
        if (entries[i].command->operand_values == NULL)
            continue;
        mp_strbuf_addf(out, "complete -c memplan -n '__fish_seen_subcommand_from %s' -f -a '",
                       entries[i].name);
        add_words(out, entries[i].command->operand_values);
        mp_strbuf_addstr(out, "'\n");
    }
}

int mp_cmd_completion(int argc, char **argv)
{
    static const struct {
        const char *shell;
        void (*write)(struct mp_strbuf *out);
    } shells[] = {{"bash", write_bash}, {"zsh", write_zsh}, {"fish", write_fish}};
    struct mp_operands operands = {0};
    int status = MP_EXIT_YES;
    if (mp_options_parse(&mp_command_completion, argc, argv, NULL, NULL, &operands, &status) ==
        MP_OPTIONS_DONE)
        return status;
    for (size_t i = 0; i < MP_ARRAY_LEN(shells); i++) {
        if (strcmp(shells[i].shell, operands.items[0]) != 0)
            continue;
        struct mp_strbuf out = MP_STRBUF_INIT;
        shells[i].write(&out);
        (void)fwrite(mp_strbuf_text(&out), 1, out.len, stdout);
        const struct memplan_error err = {.status = MEMPLAN_STATUS_NOMEM, .text = "out of memory"};
        status = out.failed ? mp_cli_fail("completion", &err) : MP_EXIT_YES;
        mp_strbuf_release(&out);
        return status;
    }
    return mp_options_usage_error("completion", "'%.80s' is not one of bash, zsh or fish",
                                  operands.items[0]);
}
