/* SPDX-License-Identifier: MIT */
/* Output that is too long to hold: written beside its place piece by piece, and renamed at the end. */
#include "report/sweep.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

struct mp_sink {
    FILE *file;
    char *aside; /* NULL: written as it is */
    char path[];
};

static bool is_special(const char *path)
{
    struct stat st;
    return strcmp(path, "-") == 0 || (stat(path, &st) == 0 && !S_ISREG(st.st_mode));
}

static bool open_aside(struct mp_sink *sink)
{
    const size_t size = strlen(sink->path) + 32;
    sink->aside = mp_malloc(size);
    if (!sink->aside)
        return false;
    (void)snprintf(sink->aside, size, "%s.%ld.part", sink->path, (long)getpid());
    sink->file = fopen(sink->aside, "wb");
    return sink->file != NULL;
}

struct mp_sink *mp_sink_open(const char *path, struct memplan_error *err)
{
    if (!path)
        path = "-";
    struct mp_sink *const sink = mp_malloc(sizeof *sink + strlen(path) + 1);
    if (!sink) {
        mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory opening '%s'", path);
        return NULL;
    }
    sink->aside = NULL;
    memcpy(sink->path, path, strlen(path) + 1);
    errno = 0;
    if (strcmp(path, "-") == 0)
        sink->file = stdout;
    else if (is_special(path))
        sink->file = fopen(path, "wb");
    else if (!open_aside(sink))
        sink->file = NULL;
    if (sink->file)
        return sink;
    mp_error_set(err, MEMPLAN_STATUS_IO, "cannot write '%s': %s", path, errno ? strerror(errno) : "out of memory");
    free(sink->aside);
    free(sink);
    return NULL;
}

static enum memplan_status failed(struct mp_sink *sink, struct memplan_error *err)
{
    return mp_error_set(err, MEMPLAN_STATUS_IO, "cannot write '%s': %s", strcmp(sink->path, "-") == 0 ? "standard output" : sink->path,
                        strerror(errno));
}

enum memplan_status mp_sink_put(struct mp_sink *sink, struct mp_strbuf *text, struct memplan_error *err)
{
    if (text->failed)
        return mp_error_set(err, MEMPLAN_STATUS_NOMEM, "out of memory while writing");
    if (text->len > 0 && fwrite(text->data, 1, text->len, sink->file) != text->len)
        return failed(sink, err);
    mp_strbuf_reset(text);
    return MEMPLAN_STATUS_OK;
}

enum memplan_status mp_sink_close(struct mp_sink *sink, enum memplan_status status, struct memplan_error *err)
{
    const bool standard = sink->file == stdout;
    if (!status && fflush(sink->file) != 0)
        status = failed(sink, err);
    if (!status && sink->aside && fsync(fileno(sink->file)) != 0)
        status = failed(sink, err);
    if (!standard && fclose(sink->file) != 0 && !status)
        status = failed(sink, err);
    if (sink->aside && !status && rename(sink->aside, sink->path) != 0)
        status = failed(sink, err);
    if (sink->aside && status)
        (void)remove(sink->aside);
    free(sink->aside);
    free(sink);
    return status;
}
