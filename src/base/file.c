/* SPDX-License-Identifier: MIT */
/*
 * Files through zlib, which passes plain content along and unpacks gzip.
 *
 * A reader owns a descriptor inside a gzFile. zlib reports a gzip stream that ends early only by
 * gzerror() after the last bytes were delivered, so every short read asks for it.
 */
#define _XOPEN_SOURCE 700 /* realpath */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/arena.h"
#include "base/units.h"

enum { block_bytes = 256 * 1024 };

struct mp_reader {
    gzFile gz;
    char path[]; /* for messages */
};

static bool is_standard(const char *path)
{
    return strcmp(path, "-") == 0;
}

static int open_input(const char *path, struct memplan_error *err)
{
    const int fd = is_standard(path) ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) {
        mp_error_set(err, MEMPLAN_STATUS_IO, "cannot open '%s': %s", path, strerror(errno));
        return -1;
    }
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        close(fd);
        mp_error_set(err, MEMPLAN_STATUS_IO, "cannot read '%s': it is a directory", path);
        return -1;
    }
    return fd;
}

struct mp_reader *mp_reader_open(const char *path, struct memplan_error *err)
{
    const int fd = open_input(path, err);
    if (fd < 0)
        return NULL;
    const char *const name = is_standard(path) ? "standard input" : path;
    struct mp_reader *const reader = mp_malloc(sizeof(*reader) + strlen(name) + 1);
    gzFile const gz = reader ? gzdopen(fd, "rb") : NULL;
    if (!gz) {
        close(fd);
        free(reader);
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory opening '%s'", name);
        return NULL;
    }
    gzbuffer(gz, block_bytes / 2);
    reader->gz = gz;
    memcpy(reader->path, name, strlen(name) + 1);
    return reader;
}

static int64_t read_failed(struct mp_reader *reader, struct memplan_error *err)
{
    int code = Z_OK;
    const char *const text = gzerror(reader->gz, &code);
    switch (code) {
    case Z_ERRNO:
        mp_error_set(err, MEMPLAN_STATUS_IO, "cannot read '%s': %s", reader->path, strerror(errno));
        break;
    case Z_MEM_ERROR:
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory reading '%s'", reader->path);
        break;
    case Z_BUF_ERROR:
        mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%s' is a gzip file that ends too early",
                     reader->path);
        break;
    default:
        mp_error_set(err, MEMPLAN_STATUS_INPUT, "'%s' is a damaged gzip file: %s", reader->path,
                     text);
        break;
    }
    return -1;
}

int64_t mp_reader_read(struct mp_reader *reader, void *buffer, size_t size,
                       struct memplan_error *err)
{
    const unsigned wanted = (unsigned)MP_MIN(size, (size_t)1 << 30);
    const int got = gzread(reader->gz, buffer, wanted);
    int code = Z_OK;
    if (got >= 0 && (unsigned)got < wanted)
        gzerror(reader->gz, &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
        return read_failed(reader, err);
    return got;
}

void mp_reader_close(struct mp_reader *reader)
{
    if (!reader)
        return;
    gzclose_r(reader->gz);
    free(reader);
}

static enum memplan_status too_large(const struct mp_reader *reader, uint64_t limit_bytes,
                                     struct memplan_error *err)
{
    struct mp_strbuf limit = MP_STRBUF_INIT;
    mp_bytes_format(&limit, limit_bytes);
    mp_error_set(err, MEMPLAN_STATUS_RANGE, "'%s' holds more than %s", reader->path,
                 mp_strbuf_text(&limit));
    mp_strbuf_release(&limit);
    return MEMPLAN_STATUS_RANGE;
}

/* Blocks go through a buffer of their own, so that *out never holds more than the limit. */
static enum memplan_status read_all(struct mp_reader *reader, uint64_t limit_bytes, char *block,
                                    struct mp_strbuf *out, struct memplan_error *err)
{
    uint64_t total = 0;
    for (;;) {
        struct memplan_error problem = {MEMPLAN_STATUS_OK, ""};
        const int64_t got = mp_reader_read(reader, block, block_bytes, &problem);
        if (got < 0)
            return mp_error_set(err, problem.status, "%s", problem.text);
        if (got == 0)
            return MEMPLAN_STATUS_OK;
        total += (uint64_t)got;
        if (total > limit_bytes)
            return too_large(reader, limit_bytes, err);
        mp_strbuf_add(out, block, (size_t)got);
        if (out->failed)
            return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory reading '%s'",
                                reader->path);
    }
}

enum memplan_status mp_file_read(const char *path, uint64_t limit_bytes, struct mp_strbuf *out,
                                 struct memplan_error *err)
{
    struct memplan_error problem = {MEMPLAN_STATUS_OK, ""};
    struct mp_reader *const reader = mp_reader_open(path, &problem);
    if (!reader)
        return mp_error_set(err, problem.status, "%s", problem.text);
    char *const block = mp_malloc(block_bytes);
    const enum memplan_status status =
        block ? read_all(reader, limit_bytes ? limit_bytes : MP_GIB, block, out, err)
              : mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory reading '%s'", path);
    free(block);
    mp_reader_close(reader);
    return status;
}

static bool write_all(int fd, const void *bytes, size_t length)
{
    const char *at = bytes;
    while (length > 0) {
        const ssize_t written = write(fd, at, MP_MIN(length, (size_t)1 << 30));
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return false;
        at += written;
        length -= (size_t)written;
    }
    return true;
}

static enum memplan_status cannot_write(const char *path, struct memplan_error *err)
{
    const enum memplan_status status = errno == ENOMEM ? MEMPLAN_STATUS_NOMEM : MEMPLAN_STATUS_IO;
    return mp_error_set(err, status, "cannot write '%s': %s", path, strerror(errno));
}

/* Standard output, devices and pipes: there is nothing to rename. */
static enum memplan_status write_through(const char *path, const void *bytes, size_t length,
                                         struct memplan_error *err)
{
    const bool standard = is_standard(path);
    const int fd = standard ? dup(STDOUT_FILENO) : open(path, O_WRONLY | O_CLOEXEC);
    const char *const name = standard ? "standard output" : path;
    if (fd < 0)
        return cannot_write(name, err);
    const bool written = write_all(fd, bytes, length);
    const int reason = errno;
    const bool closed = close(fd) == 0;
    if (!written)
        errno = reason;
    return written && closed ? MEMPLAN_STATUS_OK : cannot_write(name, err);
}

/*
 * A new file beside path; its name is left in *name. Another writer may have taken one of the
 * names.
 */
static int open_aside(const char *path, struct mp_strbuf *name)
{
    for (int attempt = 0; attempt < 100; attempt++) {
        mp_strbuf_reset(name);
        mp_strbuf_addf(name, "%s.%ld-%d.tmp", path, (long)getpid(), attempt);
        if (name->failed) {
            errno = ENOMEM;
            return -1;
        }
        const int fd = open(mp_strbuf_text(name), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

static bool fill_and_close(int fd, mode_t mode, const void *bytes, size_t length)
{
    const bool filled =
        write_all(fd, bytes, length) && (!mode || fchmod(fd, mode) == 0) && fsync(fd) == 0;
    const int reason = errno;
    const bool closed = close(fd) == 0;
    if (!filled)
        errno = reason;
    return filled && closed;
}

/* The file takes its name only when every byte has arrived; until then the old one stands. */
static enum memplan_status write_aside(const char *path, mode_t mode, const void *bytes,
                                       size_t length, struct memplan_error *err)
{
    struct mp_strbuf name = MP_STRBUF_INIT;
    enum memplan_status status = MEMPLAN_STATUS_OK;
    const int fd = open_aside(path, &name);
    if (fd < 0) {
        status = cannot_write(path, err);
    } else if (!fill_and_close(fd, mode, bytes, length) ||
               rename(mp_strbuf_text(&name), path) != 0) {
        status = cannot_write(path, err);
        unlink(mp_strbuf_text(&name));
    }
    mp_strbuf_release(&name);
    return status;
}

enum memplan_status mp_file_write(const char *path, const void *bytes, size_t length,
                                  struct memplan_error *err)
{
    struct stat st;
    if (is_standard(path))
        return write_through(path, bytes, length, err);
    if (stat(path, &st) != 0)
        return write_aside(path, 0, bytes, length, err);
    if (S_ISDIR(st.st_mode))
        return mp_error_set(err, MEMPLAN_STATUS_IO, "cannot write '%s': it is a directory", path);
    if (!S_ISREG(st.st_mode))
        return write_through(path, bytes, length, err);
    char *const target = realpath(path, NULL); /* a link stays a link */
    if (!target)
        return cannot_write(path, err);
    const enum memplan_status status = write_aside(target, st.st_mode & 0777, bytes, length, err);
    free(target);
    return status;
}

/* The folder that will hold the file. */
static bool folder_is_writable(const char *path)
{
    struct mp_strbuf folder = MP_STRBUF_INIT;
    const char *const slash = strrchr(path, '/');
    if (slash)
        mp_strbuf_add(&folder, path, (size_t)(slash - path) + 1);
    else
        mp_strbuf_addstr(&folder, ".");
    if (folder.failed)
        errno = ENOMEM;
    const bool writable = !folder.failed && access(mp_strbuf_text(&folder), W_OK | X_OK) == 0;
    mp_strbuf_release(&folder);
    return writable;
}

enum memplan_status mp_file_check_writable(const char *path, struct memplan_error *err)
{
    struct stat st;
    const bool exists = stat(path, &st) == 0;
    if (is_standard(path))
        return MEMPLAN_STATUS_OK;
    if (exists && S_ISDIR(st.st_mode))
        return mp_error_set(err, MEMPLAN_STATUS_IO, "cannot write '%s': it is a directory", path);
    if (exists && !S_ISREG(st.st_mode))
        return access(path, W_OK) == 0 ? MEMPLAN_STATUS_OK : cannot_write(path, err);
    char *const target = exists ? realpath(path, NULL) : NULL; /* a link is written where it leads */
    const bool writable = folder_is_writable(target ? target : path);
    const int reason = errno;
    free(target);
    errno = reason;
    return writable ? MEMPLAN_STATUS_OK : cannot_write(path, err);
}
