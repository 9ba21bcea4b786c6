/* SPDX-License-Identifier: MIT */
/*
 * One table per command. Every option of a command, whether it is a run key, its own or --help, has
 * an index; getopt_long returns OPTION_BASE + index, and the view of that index says what to do.
 */
#include "cli/options.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/table.h"
#include "base/units.h"
#include "cli/cli.h"
#include "spec/problems.h"

enum { option_base = 256, max_options = 128, help_column = 28, help_width = 80 };

/* ---- the table seen as one ---- */

static size_t n_run_options(const struct mp_command *command)
{
    return command->takes_run ? (size_t)MP_RUN_KEYS + 1 : 0; /* and --run */
}

size_t mp_options_count(const struct mp_command *command)
{
    return n_run_options(command) + command->n_options + 1; /* and --help */
}

static void view_run_key(enum mp_run_key key, struct mp_option_view *view)
{
    const struct mp_run_key_info *const info = mp_run_key_info(key);
    (void)snprintf(view->name, sizeof view->name, "%s", mp_run_key_text(key));
    for (char *c = view->name; *c != '\0'; c++) {
        if (*c == '_')
            *c = '-';
    }
    view->run_key = (int)key;
    view->argument = info->argument != NULL ? info->argument : "true|false";
    view->optional = info->argument == NULL;
    view->group = info->later ? NULL : info->group;
    view->help = info->help;
    view->values = info->values;
    view->fallback = info->argument != NULL ? info->fallback : NULL;
}

void mp_options_view(const struct mp_command *command, size_t index, struct mp_option_view *view)
{
    *view = (struct mp_option_view){.run_key = -1, .own = -1};
    const size_t n_run = n_run_options(command);
    if (n_run > 0 && index == 0) {
        (void)snprintf(view->name, sizeof view->name, "run");
        view->argument = "FILE";
        view->group = "Run spec (flags override the file; its keys are the flags' names)";
        view->help = "read the run from FILE, YAML or JSON; - is standard input";
    } else if (index < n_run) {
        view_run_key((enum mp_run_key)(index - 1), view);
    } else if (index < n_run + command->n_options) {
        const struct mp_option *const option = &command->options[index - n_run];
        (void)snprintf(view->name, sizeof view->name, "%s", option->name);
        view->short_name = option->short_name;
        view->argument = option->argument;
        view->group = option->group;
        view->help = option->help;
        view->values = option->values;
        view->own = (int)(index - n_run);
    } else {
        (void)snprintf(view->name, sizeof view->name, "help");
        view->short_name = 'h';
        view->group = "Other";
        view->help = "print this text";
    }
}

/* ---- help ---- */

/* Words of text from column on, wrapped before help_width; the first word follows what stands on
 * the line already. */
static void wrap(struct mp_strbuf *out, const char *text, size_t column, size_t at)
{
    bool first = true;
    while (*text != '\0') {
        const size_t n = strcspn(text, " ");
        if (!first && at + 1 + n > help_width) {
            mp_strbuf_addch(out, '\n');
            mp_strbuf_pad(out, ' ', column);
            at = column;
        } else if (!first) {
            mp_strbuf_addch(out, ' ');
            at++;
        }
        mp_strbuf_add(out, text, n);
        at += n;
        first = false;
        text += n + (text[n] == ' ');
    }
    mp_strbuf_addch(out, '\n');
}

static void add_label(struct mp_strbuf *out, const struct mp_option_view *view)
{
    if (view->short_name != 0)
        mp_strbuf_addf(out, "  -%c, --%s", view->short_name, view->name);
    else
        mp_strbuf_addf(out, "      --%s", view->name);
    if (view->argument == NULL)
        return;
    if (!view->optional)
        mp_strbuf_addf(out, " %s", view->argument);
    else if (view->values != NULL && strcmp(view->values, "false|true") != 0)
        mp_strbuf_addf(out, "[=%s]", strrchr(view->values, '|') + 1);
}

static void add_option(struct mp_strbuf *out, const struct mp_option_view *view)
{
    struct mp_strbuf label = MP_STRBUF_INIT;
    struct mp_strbuf text = MP_STRBUF_INIT;
    add_label(&label, view);
    mp_strbuf_addstr(&text, view->help);
    if (view->values != NULL && view->argument != NULL && !view->optional) {
        mp_strbuf_addstr(&text, ": ");
        mp_choice_list(&text, view->values, "or");
    }
    if (view->fallback != NULL)
        mp_strbuf_addf(&text, " (default: %s)", view->fallback);
    mp_strbuf_addstr(out, mp_strbuf_text(&label));
    size_t at = label.len;
    if (at + 2 > help_column) {
        mp_strbuf_addch(out, '\n');
        at = 0;
    }
    mp_strbuf_pad(out, ' ', help_column - at);
    wrap(out, mp_strbuf_text(&text), help_column, help_column);
    mp_strbuf_release(&label);
    mp_strbuf_release(&text);
}

/* Groups in the order of their first option, each with all of its options. */
static void add_groups(struct mp_strbuf *out, const struct mp_command *command)
{
    const size_t n = mp_options_count(command);
    for (size_t i = 0; i < n; i++) {
        struct mp_option_view leader, view;
        bool seen = false;
        mp_options_view(command, i, &leader);
        if (leader.group == NULL)
            continue;
        for (size_t k = 0; k < i && !seen; k++) {
            mp_options_view(command, k, &view);
            seen = view.group != NULL && strcmp(view.group, leader.group) == 0;
        }
        if (seen)
            continue;
        mp_strbuf_addf(out, "\n%s:\n", leader.group);
        for (size_t k = i; k < n; k++) {
            mp_options_view(command, k, &view);
            if (view.group != NULL && strcmp(view.group, leader.group) == 0)
                add_option(out, &view);
        }
    }
}

void mp_options_help(const struct mp_command *command, struct mp_strbuf *out)
{
    mp_strbuf_addf(out, "usage: memplan %s [OPTION...]%s%s\n", command->name,
                   command->operands != NULL ? " " : "",
                   command->operands != NULL ? command->operands : "");
    struct mp_strbuf sentence = MP_STRBUF_INIT;
    mp_strbuf_addf(&sentence, "%s.", command->sentence);
    if (sentence.len > 0 && sentence.data[0] >= 'a' && sentence.data[0] <= 'z')
        sentence.data[0] = (char)(sentence.data[0] - 'a' + 'A');
    wrap(out, mp_strbuf_text(&sentence), 0, 0);
    mp_strbuf_release(&sentence);
    add_groups(out, command);
    if (command->examples[0] != NULL)
        mp_strbuf_addstr(out, "\nExamples:\n");
    for (size_t i = 0; i < MP_ARRAY_LEN(command->examples) && command->examples[i] != NULL; i++)
        mp_strbuf_addf(out, "  %s\n", command->examples[i]);
    mp_strbuf_addstr(out, "\nExit status:\n");
    mp_strbuf_addstr(out, command->exits != NULL ? command->exits : "  0 done\n");
    mp_strbuf_addstr(out,
                     "  2 wrong usage or input\n  3 the world failed: files, memory, devices\n");
    mp_strbuf_addstr(out, command->more_exits != NULL ? command->more_exits : "");
}

/* ---- parsing ---- */

static int usage_error_text(const char *command, const char *text)
{
    const struct memplan_error err = {.status = MEMPLAN_STATUS_INPUT, .text = ""};
    struct memplan_error own = err;
    (void)snprintf(own.text, sizeof own.text, "%s", text);
    (void)mp_cli_fail(command, &own);
    (void)fprintf(stderr, "try 'memplan%s%s --help'\n", command != NULL ? " " : "",
                  command != NULL ? command : "");
    return MP_EXIT_USAGE;
}

int mp_options_usage_error(const char *command, const char *format, ...)
{
    char text[sizeof((struct memplan_error *)0)->text];
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return usage_error_text(command, text);
}

struct tables {
    struct mp_option_view views[max_options];
    struct option longs[max_options + 1];
    char shorts[2 * max_options + 3];
    size_t n;
};

static void build_tables(const struct mp_command *command, struct tables *t)
{
    t->n = MP_MIN(mp_options_count(command), (size_t)max_options);
    size_t s = 0;
    t->shorts[s++] = ':'; /* a missing argument is told apart */
    for (size_t i = 0; i < t->n; i++) {
        struct mp_option_view *const view = &t->views[i];
        mp_options_view(command, i, view);
        t->longs[i] = (struct option){.name = view->name, .val = option_base + (int)i};
        t->longs[i].has_arg = view->argument == NULL ? no_argument
                              : view->optional       ? optional_argument
                                                     : required_argument;
        if (view->short_name != 0) {
            t->shorts[s++] = view->short_name;
            if (view->argument != NULL)
                t->shorts[s++] = ':';
        }
    }
    t->shorts[s] = '\0';
    t->longs[t->n] = (struct option){.name = NULL};
}

/* Options whose name begins with the same letters: "--opt" could be several. */
static void list_ambiguous(const struct tables *t, const char *name, size_t length,
                           struct mp_strbuf *out)
{
    for (size_t i = 0; i < t->n; i++) {
        if (length > 0 && strncmp(t->views[i].name, name, length) == 0)
            mp_strbuf_addf(out, "%s--%s", out->len == 0 ? "" : ", ", t->views[i].name);
    }
}

static int unknown_option(const struct mp_command *command, const struct tables *t,
                          const char *argument)
{
    struct mp_strbuf ambiguous = MP_STRBUF_INIT;
    const char *names[max_options];
    char name[64];
    const size_t length = strcspn(argument + 2, "=");
    (void)snprintf(name, sizeof name, "%.*s", (int)MP_MIN(length, sizeof name - 1), argument + 2);
    list_ambiguous(t, name, strlen(name), &ambiguous);
    for (size_t i = 0; i < t->n; i++)
        names[i] = t->views[i].name;
    const char *const closest = mp_closest(name, names, t->n);
    const char *const parallel = strstr(name, "-parallel");
    int status;
    if (command->takes_run && parallel != NULL && parallel[strlen("-parallel")] == '\0')
        status = mp_options_usage_error(
            command->name, "--%s: not here yet; ranks share the work by --data-parallel only", name);
    else if (ambiguous.len > 0)
        status = mp_options_usage_error(command->name, "option '--%s' is ambiguous; it could be %s",
                                        name, mp_strbuf_text(&ambiguous));
    else if (closest != NULL)
        status = mp_options_usage_error(
            command->name, "unknown option '--%s', did you mean '--%s'?", name, closest);
    else
        status = mp_options_usage_error(command->name, "unknown option '--%s'", name);
    mp_strbuf_release(&ambiguous);
    return status;
}

/* getopt_long said '?' or ':'. */
static int wrong_option(const struct mp_command *command, const struct tables *t, int code,
                        char **argv)
{
    const bool is_long = optopt >= option_base;
    const char *const name = is_long ? t->views[optopt - option_base].name : NULL;
    if (code == ':' && is_long)
        return mp_options_usage_error(command->name, "option '--%s' needs %s", name,
                                      t->views[optopt - option_base].argument);
    if (code == ':')
        return mp_options_usage_error(command->name, "option '-%c' needs an argument", optopt);
    if (is_long)
        return mp_options_usage_error(command->name, "option '--%s' takes no value", name);
    if (optopt != 0)
        return mp_options_usage_error(command->name, "unknown option '-%c'", optopt);
    return unknown_option(command, t, argv[optind - 1]);
}

/* A value that is wrong says so with the option's name in front. */
static int wrong_value(const struct mp_command *command, const struct memplan_error *err)
{
    if (mp_exit_status(err->status) == MP_EXIT_WORLD)
        return mp_cli_fail(command->name, err);
    return usage_error_text(command->name, err->text);
}

static enum memplan_status set_number(const struct mp_option *option, const char *text, void *place,
                                      struct memplan_error *err)
{
    const bool any = option->low == 0 && option->high == 0;
    if (option->kind == MP_OPTION_INT) {
        int64_t value = 0;
        const enum memplan_status status = mp_integer_parse(text, false, &value, err);
        if (status == MEMPLAN_STATUS_OK && !any && (value < option->low || value > option->high))
            return mp_error_set(err, MEMPLAN_STATUS_INPUT, "%s is not from %" PRId64 " to %" PRId64,
                                text, option->low, option->high);
        if (status == MEMPLAN_STATUS_OK)
            *(int64_t *)place = value;
        return status;
    }
    char *end = NULL;
    const double value = strtod(text, &end);
    const bool in_range = any || (value >= (double)option->low && value <= (double)option->high);
    if (end == text || *end != '\0' || value != value || !in_range)
        return mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%.40s' is not a number%s", text,
                            any ? "" : " in the range of this option");
    *(double *)place = value;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_choice(const struct mp_option *option, const char *text, int *place,
                                      struct memplan_error *err)
{
    const int index = mp_choice_index(option->values, text, strlen(text));
    if (index < 0) {
        struct mp_strbuf list = MP_STRBUF_INIT;
        mp_choice_list(&list, option->values, "or");
        (void)mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%.40s' is not one of %s", text,
                           mp_strbuf_text(&list));
        mp_strbuf_release(&list);
        return MEMPLAN_STATUS_INPUT;
    }
    *place = index;
    return MEMPLAN_STATUS_OK;
}

static enum memplan_status set_own(const struct mp_option *option, const char *text, void *target,
                                   struct memplan_error *err)
{
    void *const place = (char *)target + option->target;
    switch (option->kind) {
    case MP_OPTION_FLAG: *(bool *)place = true; return MEMPLAN_STATUS_OK;
    case MP_OPTION_STRING:
    case MP_OPTION_OUTPUT: *(const char **)place = text; return MEMPLAN_STATUS_OK;
    case MP_OPTION_INT:
    case MP_OPTION_NUMBER: return set_number(option, text, place, err);
    case MP_OPTION_BYTES: return mp_bytes_parse(text, place, err);
    case MP_OPTION_CHOICE: return set_choice(option, text, place, err);
    case MP_OPTION_LIST: {
        struct mp_option_list *const list = place;
        if (list->n == MP_OPTION_LIST_MAX)
            return mp_error_set(err, MEMPLAN_STATUS_INPUT, "given more than %d times",
                                MP_OPTION_LIST_MAX);
        list->items[list->n++] = text;
        return MEMPLAN_STATUS_OK;
    }
    default: return MEMPLAN_STATUS_OK;
    }
}

/* Run keys wait until the files have been read, whatever their order on the command line. */
struct pending {
    const char *texts[MP_RUN_KEYS];
    struct mp_option_list files;
};

/* Run keys that replace each other: of two flags neither is the later one. */
static int check_lengths(const struct mp_command *command, const struct pending *pending)
{
    if (pending->texts[MP_KEY_SEQ] == NULL || pending->texts[MP_KEY_SEQ_LENGTHS] == NULL)
        return MP_EXIT_YES;
    return mp_options_usage_error(command->name, "--seq and --seq-lengths replace each other; give one of them");
}

static int apply_run(const struct mp_command *command, const struct pending *pending,
                     const struct tables *t, struct mp_run_source *source)
{
    struct memplan_error err = {0};
    if (check_lengths(command, pending) != MP_EXIT_YES)
        return MP_EXIT_USAGE;
    for (size_t i = 0; i < pending->files.n; i++) {
        if (mp_run_source_file(source, pending->files.items[i], &err) != MEMPLAN_STATUS_OK)
            return mp_cli_fail(command->name, &err);
    }
    for (size_t i = 0; i < t->n; i++) {
        const struct mp_option_view *const view = &t->views[i];
        if (view->run_key < 0 || pending->texts[view->run_key] == NULL)
            continue;
        char origin[48];
        (void)snprintf(origin, sizeof origin, "--%s", view->name);
        if (mp_run_source_text(source, mp_run_key_text((enum mp_run_key)view->run_key), origin,
                               pending->texts[view->run_key], &err) != MEMPLAN_STATUS_OK)
            return wrong_value(command, &err);
    }
    return MP_EXIT_YES;
}

static int check_operands(const struct mp_command *command, const struct mp_operands *operands)
{
    if (operands->n > command->max_operands && command->max_operands >= 0)
        return mp_options_usage_error(command->name, "unexpected argument '%.200s'",
                                      operands->items[command->max_operands]);
    if (operands->n < command->min_operands)
        return mp_options_usage_error(command->name, "missing argument: %s",
                                      command->operands != NULL ? command->operands : "FILE");
    return MP_EXIT_YES;
}

/* Whether writing both names would write one file. Devices such as /dev/null take any number of outputs. */
static bool same_file(const char *a, const char *b)
{
    struct stat of_a, of_b;
    const bool a_exists = strcmp(a, "-") != 0 && stat(a, &of_a) == 0, b_exists = strcmp(b, "-") != 0 && stat(b, &of_b) == 0;
    if (a_exists && b_exists)
        return S_ISREG(of_a.st_mode) && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
    return strcmp(a, b) == 0;
}

/* The file that an option writes, or NULL: it is no output, or not given. */
static const char *output_of(const struct mp_option *option, const void *target)
{
    return option->kind == MP_OPTION_OUTPUT ? *(const char *const *)((const char *)target + option->target) : NULL;
}

/* An output that is also read. Standard input and standard output are two things. */
static int check_not_read(const struct mp_command *command, const char *name, const char *path, const char *input)
{
    if (input == NULL || strcmp(path, "-") == 0 || !same_file(path, input))
        return MP_EXIT_YES;
    return mp_options_usage_error(command->name, "--%s would overwrite '%.200s', which is read; give another file", name, input);
}

static int check_inputs(const struct mp_command *command, const char *name, const char *path, const struct pending *pending,
                        const struct mp_operands *operands)
{
    int status = MP_EXIT_YES;
    for (int i = 0; i < operands->n && status == MP_EXIT_YES; i++)
        status = check_not_read(command, name, path, operands->items[i]);
    for (size_t i = 0; i < pending->files.n && status == MP_EXIT_YES; i++)
        status = check_not_read(command, name, path, pending->files.items[i]);
    for (int key = 0; key < MP_RUN_KEYS && status == MP_EXIT_YES; key++) {
        const char *const argument = mp_run_key_info((enum mp_run_key)key)->argument;
        if (argument != NULL && strstr(argument, "FILE") != NULL)
            status = check_not_read(command, name, path, pending->texts[key]);
    }
    return status;
}

/* Where the report goes. */
static const char *report_output(const struct mp_command *command, const void *target)
{
    for (size_t i = 0; i < command->n_options; i++) {
        const char *const path = output_of(&command->options[i], target);
        if (path != NULL && strcmp(command->options[i].name, "output") == 0)
            return path;
    }
    return "-";
}

/* Before any work: every output has a file of its own, none is read, and all can be written. */
static int check_outputs(const struct mp_command *command, const void *target, const struct pending *pending,
                         const struct mp_operands *operands)
{
    const char *const report = report_output(command, target);
    int status = MP_EXIT_YES;
    for (size_t i = 0; i < command->n_options && status == MP_EXIT_YES; i++) {
        const char *const path = output_of(&command->options[i], target), *const name = command->options[i].name;
        if (path == NULL)
            continue;
        if (path != report && same_file(path, report))
            return mp_options_usage_error(command->name, "--%s and the report would both go to %s; give it another file", name,
                                          strcmp(path, "-") == 0 ? "standard output" : path);
        for (size_t k = 0; k < i; k++) {
            const char *const other = output_of(&command->options[k], target);
            if (other != NULL && same_file(path, other))
                return mp_options_usage_error(command->name, "--%s and --%s would both go to %s; give each a file of its own",
                                              command->options[k].name, name, strcmp(path, "-") == 0 ? "standard output" : path);
        }
        status = check_inputs(command, name, path, pending, operands);
        struct memplan_error err = {0};
        if (status == MP_EXIT_YES && mp_file_check_writable(path, &err) != MEMPLAN_STATUS_OK)
            status = mp_cli_fail(command->name, &err);
    }
    return status;
}

static int print_help(const struct mp_command *command)
{
    struct mp_strbuf text = MP_STRBUF_INIT;
    mp_options_help(command, &text);
    (void)fputs(mp_strbuf_text(&text), stdout);
    const bool failed = text.failed;
    mp_strbuf_release(&text);
    return failed ? MP_EXIT_WORLD : MP_EXIT_YES;
}

/* One option; *done when the command is over. */
static int take_option(const struct mp_command *command, const struct mp_option_view *view,
                       void *target, struct pending *pending, bool *done)
{
    struct memplan_error err = {0};
    if (view->own >= 0) {
        if (set_own(&command->options[view->own], optarg, target, &err) == MEMPLAN_STATUS_OK)
            return MP_EXIT_YES;
        mp_error_prefix(&err, "--%s", view->name);
        return wrong_value(command, &err);
    }
    if (view->run_key >= 0) {
        pending->texts[view->run_key] = optarg != NULL ? optarg : "true";
        return MP_EXIT_YES;
    }
    if (strcmp(view->name, "help") == 0) {
        *done = true;
        return print_help(command);
    }
    if (pending->files.n == MP_OPTION_LIST_MAX)
        return mp_options_usage_error(command->name, "more than %d files with --run",
                                      MP_OPTION_LIST_MAX);
    pending->files.items[pending->files.n++] = optarg;
    return MP_EXIT_YES;
}

/* Index of the option that getopt_long found by its short name. */
static size_t find_short(const struct tables *t, int code)
{
    size_t i = 0;
    while (i + 1 < t->n && t->views[i].short_name != code)
        i++;
    return i;
}

enum mp_options_result mp_options_parse(const struct mp_command *command, int argc, char **argv,
                                        void *target, struct mp_run_source *source,
                                        struct mp_operands *operands, int *exit_status)
{
    struct tables t;
    struct pending pending = {.texts = {NULL}};
    bool done = false;
    build_tables(command, &t);
    opterr = 0;
    optind = 0; /* glibc: begin anew, also after another command line */
    *exit_status = MP_EXIT_YES;
    int code;
    while ((code = getopt_long(argc, argv, t.shorts, t.longs, NULL)) != -1) {
        if (code == '?' || code == ':')
            *exit_status = wrong_option(command, &t, code, argv);
        else
            *exit_status = take_option(
                command,
                &t.views[code >= option_base ? (size_t)(code - option_base) : find_short(&t, code)],
                target, &pending, &done);
        if (done || *exit_status != MP_EXIT_YES)
            return MP_OPTIONS_DONE;
    }
    operands->items = argv + optind;
    operands->n = argc - optind;
    *exit_status = check_operands(command, operands);
    if (*exit_status == MP_EXIT_YES)
        *exit_status = check_outputs(command, target, &pending, operands);
    if (*exit_status == MP_EXIT_YES && source != NULL)
        *exit_status = apply_run(command, &pending, &t, source);
    return *exit_status == MP_EXIT_YES ? MP_OPTIONS_GO : MP_OPTIONS_DONE;
}
