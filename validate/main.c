/* SPDX-License-Identifier: MIT */
/*
 * memplan-validate: is memplan right on this card? Reads programs that `memplan fit --program`
 * wrote, and runs them.
 *
 * Exit status: 0 as predicted, 1 not as predicted, 2 bad usage or input, 3 the world failed (no
 * GPU, no room, no file).
 */
#include "commands.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/units.h"
#include "ranks.h"

static const char help[] =
    "Usage: memplan-validate probe [-o FILE] [--name NAME] [--quick]\n"
    "       memplan-validate replay PROGRAM [--cap BYTES] [--leave BYTES] [-o FILE]\n"
    "       memplan-validate train PROGRAM [--weights FILE] [--losses FILE] [--check] [-o FILE]\n"
    "       memplan-validate train PROGRAM --start PREFIX\n"
    "\n"
    "Runs what memplan predicted on the first GPU. Programs come from `memplan fit --program "
    "FILE`.\n"
    "Started by mpirun (a build with MPI=1), probe and train run on one GPU per process.\n"
    "\n"
    "  probe            measure the card: what a process costs, how fast it is; -o writes a GPU "
    "file\n"
    "  replay           ask the driver for the memory that the program asks for\n"
    "  train            run the program's operations, too\n"
    "\n"
    "  -o FILE          write the result as JSON\n"
    "  --name NAME      name of the card in the GPU file (default: after the product)\n"
    "  --quick          probe: only what a process costs\n"
    "  --cap BYTES      limit of the allocator, such as 4GiB\n"
    "  --leave BYTES    fill the card first, until this much is left\n"
    "  --weights FILE   start from these parameters (float32, in the order of model.parameters())\n"
    "  --losses FILE    token ids and losses to compare with, from train_reference.py\n"
    "  --start PREFIX   write what training starts from, to PREFIX.weights and PREFIX.tokens.json, "
    "and stop\n"
    "  --no-progress    no progress line on a terminal\n"
    "  --plain-products matrix products by a kernel of its own, not cuBLAS\n"
    "  --check          compare every operation with a float64 reference on the host\n";

int complain(const char *command, const char *text, int status)
{
    if (ranks()->world > 1)
        (void)fprintf(stderr, "memplan-validate %s: rank %d: %s\n", command, ranks()->rank, text);
    else
        (void)fprintf(stderr, "memplan-validate %s: %s\n", command, text);
    return status;
}

int complain_error(const char *command, const struct memplan_error *err)
{
    const bool input = err->status == MEMPLAN_STATUS_INPUT || err->status == MEMPLAN_STATUS_RANGE ||
                       err->status == MEMPLAN_STATUS_UNSUPPORTED;
    return complain(command, err->text, input ? EXIT_USAGE : EXIT_WORLD);
}

void write_where(struct mp_json_writer *w, const struct device_facts *facts,
                 const struct arguments *a)
{
    char date[32] = "";
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        (void)strftime(date, sizeof date, "%Y-%m-%d", &utc);
    mp_json_string(w, "command", a->command);
    mp_json_string(w, "memplan", memplan_version());
    mp_json_string(w, "gpu", facts->name);
    mp_json_string(w, "driver", facts->driver_release);
    mp_json_int(w, "cuda_driver", facts->driver);
    mp_json_int(w, "cuda_runtime", facts->runtime);
    mp_json_string(w, "date", date);
}

int write_output(const struct arguments *a, const struct mp_strbuf *out)
{
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    if (out->failed)
        return complain(a->command, "out of memory while writing the result", EXIT_WORLD);
    if (a->output && mp_file_write(a->output, out->data, out->len, &err))
        return complain_error(a->command, &err);
    return EXIT_YES;
}

static int usage(const char *text)
{
    if (ranks()->rank == 0) /* all ranks got the same arguments */
        (void)fprintf(stderr, "memplan-validate: %s\nTry 'memplan-validate --help'.\n", text);
    return EXIT_USAGE;
}

/* An option with its value: where it goes. */
static const char **text_target(struct arguments *a, const char *option)
{
    if (strcmp(option, "-o") == 0 || strcmp(option, "--output") == 0)
        return &a->output;
    if (strcmp(option, "--weights") == 0)
        return &a->weights;
    if (strcmp(option, "--losses") == 0)
        return &a->losses;
    if (strcmp(option, "--start") == 0)
        return &a->start;
    return strcmp(option, "--name") == 0 ? &a->name : NULL;
}

static uint64_t *bytes_target(struct arguments *a, const char *option)
{
    if (strcmp(option, "--cap") == 0)
        return &a->cap_bytes;
    return strcmp(option, "--leave") == 0 ? &a->leave_bytes : NULL;
}

/* 0, or an exit status with the message printed. */
static int parse(struct arguments *a, int argc, char **argv)
{
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            a->command = "help";
            return 0;
        }
        const char **const text = text_target(a, argv[i]);
        uint64_t *const bytes = bytes_target(a, argv[i]);
        if ((text || bytes) && i + 1 == argc)
            return usage("an option at the end lacks its value");
        if (text)
            *text = argv[++i];
        else if (bytes && mp_bytes_parse(argv[++i], bytes, &err))
            return usage(err.text);
        else if (bytes)
            continue;
        else if (strcmp(argv[i], "--check") == 0)
            a->check = true;
        else if (strcmp(argv[i], "--quick") == 0)
            a->quick = true;
        else if (strcmp(argv[i], "--plain-products") == 0)
            a->plain = true;
        else if (strcmp(argv[i], "--no-progress") == 0)
            a->no_progress = true;
        else if (argv[i][0] != '-' && !a->program)
            a->program = argv[i];
        else
            return usage("unknown option or more than one program");
    }
    return 0;
}

static int run(int argc, char **argv)
{
    struct arguments a = {.command = argc > 1 ? argv[1] : ""};
    const bool asked = argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    const int status = asked ? 0 : parse(&a, argc, argv);
    if (status)
        return status;
    if (asked || strcmp(a.command, "help") == 0)
        return ranks()->rank == 0 && printf("%s", help) < 0 ? EXIT_WORLD : EXIT_YES;
    if (strcmp(a.command, "probe") == 0)
        return command_probe(&a);
    if (strcmp(a.command, "replay") != 0 && strcmp(a.command, "train") != 0)
        return usage("probe, replay or train is needed");
    if (!a.program)
        return usage("a program file is needed; memplan fit --program writes one");
    return a.command[0] == 'r' ? command_replay(&a) : command_train(&a);
}

int main(int argc, char **argv)
{
    ranks_open(&argc, &argv);
    return ranks_close(run(argc, argv));
}
