/* SPDX-License-Identifier: MIT */
/* Public reports (tests/data/oom): every figure is read, and the true cause is found as often as
 * promised. */
#include <dirent.h>

#include "base/file.h"
#include "doctor/causes.h"

#include "suites.h"

#define FOLDER       "tests/data/oom"
#define REPORTS_MOST 1200

struct report {
    char name[128];
    struct mp_strbuf file;
    const char *head, *body; /* of the file; the head ends with a line feed and a NUL */
};

struct half {
    unsigned told, first, first_two;
};

static unsigned hash(const char *text)
{
    unsigned h = 2166136261U ^ 20261129U; /* FNV-1a with the seed of the split */
    for (; *text != '\0'; text++) {
        h = (h ^ (unsigned char)*text) * 16777619U;
    }
    return (h >> 16) ^ h;
}

static size_t find_reports(struct report *reports)
{
    DIR *const folder = opendir(FOLDER);
    size_t n = 0;
    ck_assert_msg(folder != NULL, "run from the top of the source tree: no folder '%s'", FOLDER);
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        const size_t length = strlen(entry->d_name);
        if (length < 5 || length >= sizeof reports[n].name ||
            strcmp(entry->d_name + length - 4, ".txt") != 0) {
            continue;
        }
        ck_assert_uint_lt(n, REPORTS_MOST);
        memcpy(reports[n++].name, entry->d_name, length + 1);
    }
    closedir(folder);
    return n;
}

static void open_report(struct report *report)
{
    char path[256];
    struct memplan_error err = {0};
    (void)snprintf(path, sizeof path, "%s/%s", FOLDER, report->name);
    report->file = (struct mp_strbuf)MP_STRBUF_INIT;
    ck_assert_msg(mp_file_read(path, 0, &report->file, &err) == MEMPLAN_STATUS_OK, "%s", err.text);
    char *const rule = strstr(report->file.data, "\n---\n");
    ck_assert_msg(rule != NULL, "%s: no rule between head and text", report->name);
    rule[1] = '\0';
    report->head = report->file.data;
    report->body = rule + 5;
}

/* "key: value" of the head into value; false when there is none. */
static bool head_value(const struct report *report, const char *key, char *value, size_t size)
{
    const size_t n = strlen(key);
    for (const char *line = report->head; *line != '\0'; line = strchr(line, '\n') + 1) {
        if (strncmp(line, key, n) == 0 && line[n] == ':' && line[n + 1] == ' ') {
            const size_t length = MP_MIN(strcspn(line + n + 2, "\n"), size - 1);
            memcpy(value, line + n + 2, length);
            value[length] = '\0';
            return true;
        }
    }
    return false;
}

static void check_figure(const struct report *report, const char *key, struct mp_oom_bytes got)
{
    char value[64], squeezed[64];
    size_t n = 0;
    uint64_t want = 0;
    if (!head_value(report, key, value, sizeof value)) {
        return;
    }
    if (strcmp(value, "none") == 0) {
        ck_assert_msg(!got.known, "%s: %s is read, but not there", report->name, key);
        return;
    }
    for (const char *c = value; *c != '\0'; c++) {
        if (*c != ' ') {
            squeezed[n++] = *c >= 'A' && *c <= 'Z' ? (char)(*c - 'A' + 'a') : *c;
        }
    }
    const char *at = squeezed;
    ck_assert_msg(mp_oom_size_read(&at, squeezed + n, &want), "%s: '%s' is no size", report->name,
                  value);
    ck_assert_msg(got.known, "%s: %s is not read", report->name, key);
    ck_assert_msg(got.bytes == want, "%s: %s is %llu, not %llu", report->name, key,
                  (unsigned long long)got.bytes, (unsigned long long)want);
}

static void check_figures(const struct report *report, const struct mp_oom_message *m)
{
    char value[64];
    ck_assert(head_value(report, "format", value, sizeof value));
    ck_assert_msg(strcmp(value, mp_oom_format_name(m->format)) == 0, "%s: format %s, not %s",
                  report->name, mp_oom_format_name(m->format), value);
    check_figure(report, "requested", m->requested);
    check_figure(report, "capacity", m->capacity);
    check_figure(report, "free", m->free);
    check_figure(report, "this", m->this_process);
    check_figure(report, "allocated", m->allocated);
    check_figure(report, "reserved", m->reserved);
    check_figure(report, "unallocated", m->unallocated);
    check_figure(report, "allowed", m->allowed);
    check_figure(report, "private", m->private_pool);
    if (head_value(report, "others", value, sizeof value)) {
        ck_assert_msg((size_t)strtoul(value, NULL, 10) == m->n_processes,
                      "%s: %zu other processes, not %s", report->name, m->n_processes, value);
    }
}

/* Is the cause one of the words of the list? */
static bool is_listed(const char *list, enum mp_cause cause)
{
    const char *const name = mp_cause_name(cause);
    const size_t n = strlen(name);
    for (const char *at = strstr(list, name); at != NULL; at = strstr(at + 1, name)) {
        if ((at == list || at[-1] == ' ') && (at[n] == ' ' || at[n] == '\0')) {
            return true;
        }
    }
    return false;
}

static void count(const struct report *report, const struct mp_verdict *verdicts, size_t n,
                  struct half *half)
{
    char told[16], causes[128];
    ck_assert(head_value(report, "told", told, sizeof told));
    ck_assert(head_value(report, "cause", causes, sizeof causes));
    if (strcmp(told, "yes") != 0) {
        return;
    }
    half->told++;
    half->first += is_listed(causes, verdicts[0].cause);
    half->first_two +=
        is_listed(causes, verdicts[0].cause) || (n > 1 && is_listed(causes, verdicts[1].cause));
}

static void diagnose(struct report *report, struct half halves[2])
{
    struct mp_arena arena;
    struct mp_verdict verdicts[MP_CAUSES];
    mp_arena_init(&arena);
    open_report(report);
    struct mp_doctor_case *const c = mp_arena_alloc(&arena, sizeof *c);
    ck_assert_ptr_nonnull(c);
    ck_assert(mp_doctor_case_init(c, &arena, report->body, strlen(report->body)));
    check_figures(report, &c->message);
    const size_t n = mp_doctor_rank(c, verdicts);
    ck_assert_uint_ge(n, 1);
    count(report, verdicts, n, &halves[hash(report->name) & 1U]);
    mp_strbuf_release(&report->file);
    mp_arena_release(&arena);
}

START_TEST(figures_are_read_and_causes_are_found)
{
    static struct report reports[REPORTS_MOST];
    struct half halves[2] = {{0, 0, 0}, {0, 0, 0}};
    const size_t n = find_reports(reports);
    ck_assert_uint_ge(n, 100);
    for (size_t i = 0; i < n; i++) {
        diagnose(&reports[i], halves);
    }
    for (size_t i = 0; i < MP_ARRAY_LEN(halves); i++) {
        const struct half *const h = &halves[i];
        ck_assert_uint_ge(h->told, 30);
        ck_assert_msg(h->first * 100 >= h->told * 75, "%s: true cause first in %u of %u",
                      i == 0 ? "first half" : "second half", h->first, h->told);
        ck_assert_msg(h->first_two * 100 >= h->told * 90,
                      "%s: true cause among the first two in %u of %u",
                      i == 0 ? "first half" : "second half", h->first_two, h->told);
    }
}
END_TEST

Suite *suite_doctor_corpus(void)
{
    Suite *const suite = suite_create("doctor_corpus");
    TCase *const tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, figures_are_read_and_causes_are_found);
    suite_add_tcase(suite, tcase);
    return suite;
}
