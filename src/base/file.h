/* SPDX-License-Identifier: MIT */
/* Whole files: read with a limit (gzip is unpacked on the way), written aside and renamed. */
#ifndef MP_FILE_H
#define MP_FILE_H

#include "base/error.h"
#include "base/strbuf.h"

/**
 * Append the content of path ("-": standard input) to *out, unpacked if it is gzip. limit_bytes
 * bounds the unpacked size (0: 1 GiB). Errors: IO (missing, unreadable, a directory), RANGE (too
 * large), INPUT (damaged gzip). The message names the path.
 */
enum memplan_status mp_file_read(const char *path, uint64_t limit_bytes, struct mp_strbuf *out,
                                 struct memplan_error *err);

/**
 * Write path as a whole: a temporary file beside it is written, flushed and renamed. "-" (standard
 * output), devices and pipes are written as they are.
 */
enum memplan_status mp_file_write(const char *path, const void *bytes, size_t length,
                                  struct memplan_error *err);

/** Whether mp_file_write() could write path, as far as that can be told without doing it: before long work. IO with the reason. */
enum memplan_status mp_file_check_writable(const char *path, struct memplan_error *err);

/**
 * Incremental reader of lines or blocks, plain or gzip, for files larger than memory should hold.
 */
struct mp_reader;
struct mp_reader *mp_reader_open(const char *path, struct memplan_error *err);
/** Bytes read, 0 at the end, -1 with *err. */
int64_t mp_reader_read(struct mp_reader *reader, void *buffer, size_t size,
                       struct memplan_error *err);
void mp_reader_close(struct mp_reader *reader);

#endif
