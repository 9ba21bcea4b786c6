/* SPDX-License-Identifier: MIT */
/*
 * memplan: analytical GPU-memory planner for Transformer training.
 *
 * The only installed header. A caller gives a run spec and reads the verdict:
 *
 *     struct memplan_error err = {0};
 *     char *json = memplan_fit_json("{\"model\": \"gpt2\", \"gpu\": \"A100-80G\"}", &err);
 *     puts(json ? json : err.text);
 *     free(json);
 *
 * All bytes are exact integers. The library never exits, never prints and keeps no global state:
 * two threads may evaluate different runs at the same time.
 */
#ifndef MEMPLAN_H
#define MEMPLAN_H

#include <stdint.h>

#if defined(__GNUC__)
#define MEMPLAN_API __attribute__((visibility("default")))
#else
#define MEMPLAN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define MEMPLAN_STATUS_MAP(X)                                                                      \
    X(OK, "success")                                                                               \
    X(INPUT, "invalid input")                                                                      \
    X(RANGE, "number out of range")                                                                \
    X(NOMEM, "out of memory")                                                                      \
    X(IO, "cannot read or write")                                                                  \
    X(UNSUPPORTED, "not supported")                                                                \
    X(SOLVER, "solver failed")

/** Outcome of a call. Everything but OK comes with a text in struct memplan_error. */
enum memplan_status {
#define X(name, text) MEMPLAN_STATUS_##name,
    MEMPLAN_STATUS_MAP(X)
#undef X
};

/**
 * The first thing that went wrong; untouched on success. The text is one line, without a full
 * stop.
 */
struct memplan_error {
    enum memplan_status status;
    char text[1024];
};

/**
 * Evaluate a run: JSON or YAML with the keys of a run file (`man memplan`). Returns the report of `memplan fit --json --no-advice`
 * (docs/report.md lists its keys), which the caller frees with free(), or NULL with *err filled in; err may be NULL. A job that does
 * not fit is a report, not an error.
 */
MEMPLAN_API char *memplan_fit_json(const char *run, struct memplan_error *err);

/** "1.0.0" */
MEMPLAN_API const char *memplan_version(void);

/** The text of a status, from MEMPLAN_STATUS_MAP. */
MEMPLAN_API const char *memplan_status_text(enum memplan_status status);

#ifdef __cplusplus
}
#endif

#endif
