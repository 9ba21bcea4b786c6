/* SPDX-License-Identifier: MIT */
/* How many malloc and free events of recorded training runs the allocator takes per second, on one
 * core. */
#include <inttypes.h>
#include <time.h>

#include "memory/history.h"

enum { ROUNDS = 100 };

static const char *const runs[] = {
    "tests/data/traces/m-001-gpt2-124m.txt.gz",     "tests/data/traces/m-014-tinyllama-1.1b.txt.gz",
    "tests/data/traces/m-019-gpt2-124m.txt.gz",     "tests/data/traces/m-120-gpt2-355m.txt.gz",
    "tests/data/traces/m-131-gpt2-355m-exp.txt.gz",
};

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One whole run in a new allocator; the number of events. */
static uint64_t play(const struct mp_history *h, const struct mp_allocator_conf *conf,
                     struct mp_block **blocks)
{
    const struct mp_allocator_options options = {.conf = *conf};
    struct mp_allocator *a = mp_allocator_new(&options, NULL);
    uint64_t n = 0;
    for (size_t i = 0; a && i < h->n_entries; i++) {
        const struct mp_history_entry *e = &h->entries[i];
        if (e->action == MP_ALLOCATOR_ALLOC) {
            blocks[e->id] = mp_allocator_malloc(a, e->bytes, e->stream, e->id);
            n++;
        } else if (e->action == MP_ALLOCATOR_FREE_REQUESTED) {
            mp_allocator_release(a, blocks[e->id]);
            n++;
        }
    }
    mp_allocator_free(a);
    return n;
}

static int measure(const char *path)
{
    struct mp_history h = {0};
    struct mp_allocator_conf conf;
    struct memplan_error err = {.status = MEMPLAN_STATUS_OK};
    if (mp_history_read(&h, path, -1, &err) != MEMPLAN_STATUS_OK ||
        mp_allocator_conf_parse(h.conf, 0, &conf, &err) != MEMPLAN_STATUS_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    struct mp_block **blocks = calloc(h.n_ids ? h.n_ids : 1, sizeof(struct mp_block *));
    double best = 1e9;
    uint64_t n = 0;
    for (int i = 0; blocks && i < ROUNDS; i++) {
        const double start = seconds();
        n = play(&h, &conf, blocks);
        best = MP_MIN(best, seconds() - start);
    }
    printf("%-48s %8" PRIu64 " events %6.1f ns/event %6.1f M/s\n", path, n, best * 1e9 / (double)n,
           (double)n / best / 1e6);
    free(blocks);
    mp_history_release(&h);
    return 0;
}

int main(void)
{
    int status = 0;
    for (size_t i = 0; i < MP_ARRAY_LEN(runs); i++)
        status |= measure(runs[i]);
    return status;
}
