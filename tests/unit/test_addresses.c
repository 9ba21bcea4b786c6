/* SPDX-License-Identifier: MIT */
/*
 * Every block of whole recorded runs: in which segment it lay, and where in it. Blocks are chosen by the addresses of their segments,
 * so this holds only while segments are taken when the card's were, and lie in the card's order.
 */
#include <check.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/json.h"
#include "plan/evaluate.h"
#include "suites.h"

#define TRACES "validate/results/traces"

/* Segments are numbered in the order in which they were taken. */
struct place {
    enum mp_allocator_action action;
    uint32_t segment;
    uint64_t offset, bytes;
};

struct layout {
    struct place *places;
    size_t n, capacity;
    struct {
        uint64_t address;
        uint32_t number;
    } live[4096];
    size_t n_live;
    uint32_t n_segments;
    bool expandable; /* no segments to speak of */
};

static void add_place(struct layout *l, struct place place)
{
    if (l->n == l->capacity) {
        l->capacity = l->capacity > 0 ? 2 * l->capacity : 4096;
        l->places = realloc(l->places, l->capacity * sizeof *l->places);
        ck_assert_ptr_nonnull(l->places);
    }
    l->places[l->n++] = place;
}

/* The live segment that begins highest at or below address. */
static size_t segment_of(const struct layout *l, uint64_t address)
{
    size_t found = l->n_live;
    for (size_t i = 0; i < l->n_live; i++)
        if (l->live[i].address <= address &&
            (found == l->n_live || l->live[i].address > l->live[found].address))
            found = i;
    return found;
}

static void note(struct layout *l, enum mp_allocator_action action, uint64_t address,
                 uint64_t bytes)
{
    l->expandable = l->expandable || action == MP_ALLOCATOR_SEGMENT_MAP;
    if (l->expandable)
        return;
    if (action == MP_ALLOCATOR_SEGMENT_ALLOC) {
        ck_assert_uint_lt(l->n_live, MP_ARRAY_LEN(l->live));
        l->live[l->n_live].address = address;
        l->live[l->n_live++].number = l->n_segments++;
    } else if (action != MP_ALLOCATOR_SEGMENT_FREE && action != MP_ALLOCATOR_ALLOC) {
        return;
    }
    const size_t i = segment_of(l, address);
    ck_assert_uint_lt(i, l->n_live);
    add_place(l, (struct place){action, l->live[i].number, address - l->live[i].address, bytes});
    if (action == MP_ALLOCATOR_SEGMENT_FREE)
        l->live[i] = l->live[--l->n_live];
}

static void observe(void *context, const struct mp_allocator_note *n)
{
    note(context, n->action, n->address, n->bytes);
}

/* "ACTION ADDRESS BYTES …" */
static void read_line(struct layout *l, const char *line)
{
    char word[20];
    uint64_t address = 0, bytes = 0;
    if (sscanf(line, "%19s %" SCNx64 " %" SCNu64, word, &address, &bytes) != 3)
        return;
    for (int action = 0; action < MP_ALLOCATOR_ACTION_COUNT; action++)
        if (strcmp(word, mp_allocator_action_text((enum mp_allocator_action)action)) == 0)
            note(l, (enum mp_allocator_action)action, address, bytes);
}

/* Runs on one GPU as it is, without a cap, which goes on after a failure. */
static bool is_plain(const struct mp_value *config)
{
    const struct mp_value *const run = mp_value_get(config, "run");
    return mp_value_get(config, "setting") == NULL && mp_value_get(run, "data_parallel") == NULL &&
           mp_value_get(run, "allocator_limit_bytes") == NULL;
}

enum verdict { NOT_COMPARED, SAME, DIFFERENT };

static bool is_same(const struct layout *a, const struct layout *b, size_t *first)
{
    const size_t n = MP_MIN(a->n, b->n);
    for (*first = 0; *first < n; ++*first) {
        const struct place *const x = &a->places[*first], *const y = &b->places[*first];
        if (x->action != y->action || x->segment != y->segment || x->offset != y->offset ||
            x->bytes != y->bytes)
            return false;
    }
    return a->n == b->n;
}

static enum verdict compare(const char *path)
{
    static struct layout recorded, predicted;
    struct mp_strbuf text = MP_STRBUF_INIT;
    struct memplan_error err = {0};
    struct mp_arena arena;
    struct mp_run_source source;
    struct mp_evaluation e;
    enum verdict verdict = NOT_COMPARED;
    const struct mp_evaluate_options options = {
        .every_step = true, .observer = observe, .observer_context = &predicted};
    recorded = predicted = (struct layout){0};
    mp_arena_init(&arena);
    ck_assert_msg(mp_file_read(path, 0, &text, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    const char *line = strchr(text.data, '\n');
    const struct mp_value *const config =
        mp_json_parse(&arena, path, text.data + 9, (size_t)(line - text.data) - 9, &err);
    ck_assert_msg(config != NULL, "%s", err.text);
    for (; is_plain(config) && line != NULL && line[1] != '\0'; line = strchr(line + 1, '\n'))
        read_line(&recorded, line + 1);
    if (is_plain(config) && !recorded.expandable) {
        size_t first;
        mp_run_source_init(&source, &arena);
        ck_assert_int_eq(mp_run_source_object(&source, path, mp_value_get(config, "run"), &err),
                         MEMPLAN_STATUS_OK);
        const struct mp_run *const run = mp_run_resolve(&source, &err);
        ck_assert_msg(run != NULL, "%s: %s", path, err.text);
        ck_assert_int_eq(mp_evaluate(run, &options, &e, &err), MEMPLAN_STATUS_OK);
        verdict = is_same(&recorded, &predicted, &first) ? SAME : DIFFERENT;
        if (verdict == DIFFERENT)
            printf("  %s: other from the %zuth of %zu on\n", path, first, recorded.n);
        mp_evaluation_release(&e);
    }
    free(recorded.places);
    free(predicted.places);
    mp_arena_release(&arena);
    mp_strbuf_release(&text);
    return verdict;
}

/* What is different is known: pages of code that come earlier or later, gaps that models made on the host leave. */
START_TEST(blocks_lie_where_the_card_had_them)
{
    unsigned count[3] = {0};
    char path[300];
    DIR *const directory = opendir(TRACES);
    const struct dirent *entry;
    ck_assert_ptr_nonnull(directory);
    while ((entry = readdir(directory)) != NULL) {
        (void)snprintf(path, sizeof path, TRACES "/%s", entry->d_name);
        if (strstr(entry->d_name, ".txt.gz") != NULL)
            count[compare(path)]++;
    }
    closedir(directory);
    printf("  %u runs have every block in its place, %u have not\n", count[SAME], count[DIFFERENT]);
    ck_assert_uint_ge(count[SAME] + count[DIFFERENT], 200);
    ck_assert_uint_ge(count[SAME], 200);
}
END_TEST

Suite *suite_addresses(void)
{
    Suite *const suite = suite_create("addresses");
    TCase *const tc = tcase_create("addresses");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, blocks_lie_where_the_card_had_them);
    suite_add_tcase(suite, tc);
    return suite;
}
