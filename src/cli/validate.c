/* SPDX-License-Identifier: MIT */
/*
 * `memplan validate`: hands its arguments to memplan-validate, the program that speaks to the GPU.
 *
 * It is looked for where memplan itself lies, under validate/ there (a source tree) and under
 * ../libexec/memplan/; never in the current folder, never on the path.
 */
#include <errno.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "cli/cli.h"

static const char *const places[] = {"memplan-validate", "validate/memplan-validate",
                                     "../libexec/memplan/memplan-validate"};

const struct mp_command mp_command_validate = {
    .name = "validate",
    .operands = "probe|replay|train [ARGUMENT...]",
    .operand_values = "probe|replay|train",
    .sentence = "run a predicted job on this machine's GPU, and compare",
    .examples = {"memplan validate probe -o this-card.json",
                 "memplan validate train job.jsonl --check"},
    .exits = "  0 as predicted\n  1 not as predicted\n",
    .min_operands = 1,
    .max_operands = -1,
};

/* The folder of the running program, with its slash; false where the system does not say. */
static bool own_folder(struct mp_strbuf *folder)
{
    char path[4096];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return false;
    path[length] = '\0';
    const char *const slash = strrchr(path, '/');
    if (slash == NULL)
        return false;
    mp_strbuf_add(folder, path, (size_t)(slash - path) + 1);
    return !folder->failed;
}

/* Only returns when there is no such program, or it does not start. */
static int start(char **argv, struct memplan_error *err)
{
    struct mp_strbuf folder = MP_STRBUF_INIT, path = MP_STRBUF_INIT;
    int reason = ENOENT;
    const bool known = own_folder(&folder);
    for (size_t i = 0; known && i < MP_ARRAY_LEN(places) && reason == ENOENT; i++) {
        mp_strbuf_reset(&path);
        mp_strbuf_addf(&path, "%s%s", mp_strbuf_text(&folder), places[i]);
        if (path.failed)
            break;
        (void)execv(path.data, argv);
        reason = errno;
    }
    if (reason == ENOENT || reason == ENOTDIR)
        mp_error_set(err, MEMPLAN_STATUS_IO,
                     "memplan-validate is not built; `make validate` builds it where the CUDA "
                     "Toolkit is installed");
    else
        mp_error_set(err, MEMPLAN_STATUS_IO, "memplan-validate does not start: %s",
                     strerror(reason));
    mp_strbuf_release(&folder);
    mp_strbuf_release(&path);
    return mp_cli_fail("validate", err);
}

int mp_cmd_validate(int argc, char **argv)
{
    struct mp_operands operands;
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    int exit_status;
    /* Only what stands before the first word is memplan's own: --help. */
    const int own = argc < 2 || argv[1][0] == '-' ? argc : 2;
    if (mp_options_parse(&mp_command_validate, own, argv, NULL, NULL, &operands, &exit_status) ==
        MP_OPTIONS_DONE)
        return exit_status;
    if (mp_choice_index("probe|replay|train", operands.items[0], strlen(operands.items[0])) < 0)
        return mp_options_usage_error("validate", "'%.40s' is not one of probe, replay or train", operands.items[0]);
    return start(argv, &err);
}
