/* SPDX-License-Identifier: MIT */
/*
 * The three commands of memplan-validate. Each prints its table and, with -o, writes JSON; the
 * result is an exit status.
 */
#ifndef VALIDATE_COMMANDS_H
#define VALIDATE_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/json.h"
#include "device.h"

enum { EXIT_YES = 0, EXIT_NO = 1, EXIT_USAGE = 2, EXIT_WORLD = 3 };

struct arguments {
    const char *command, *program, *output, *weights, *losses, *start, *name;
    uint64_t cap_bytes, leave_bytes;
    bool check, quick, plain, no_progress;
};

int command_probe(const struct arguments *a);
int command_replay(const struct arguments *a);
int command_train(const struct arguments *a);

/** "memplan-validate COMMAND: TEXT" on stderr; the exit status. */
int complain(const char *command, const char *text, int status);
int complain_error(const char *command, const struct memplan_error *err);
/** Versions, driver, date and card: members of the object that is open. */
void write_where(struct mp_json_writer *w, const struct device_facts *facts,
                 const struct arguments *a);
/** out to the file of -o, if there is one. */
int write_output(const struct arguments *a, const struct mp_strbuf *out);

#endif
