/* SPDX-License-Identifier: MIT */
/*
 * Random run specs: the folded peak and the unfolded stream are those of the whole run, and a replay on any card says what an
 * evaluation says. A failure prints the seed and the spec; SEED=n in the environment runs only that one.
 */
#include "base/yaml.h"
#include "plan/fold.h"
#include "random_spec.h"
#include "suites.h"

enum { RUNS = 150 };

static bool check(const char *spec, bool *folded, struct memplan_error *err)
{
    struct mp_arena arena;
    struct mp_run_source source;
    struct mp_fold fold = {0};
    struct mp_fold_scratch scratch = {0};
    struct mp_requests whole = {0}, unfolded = {0};
    struct mp_replayer replayer = {0};
    struct mp_verdict v;
    struct mp_evaluation e;
    mp_arena_init(&arena);
    mp_run_source_init(&source, &arena);
    const struct mp_value *const value = mp_yaml_parse(&arena, "spec", spec, strlen(spec), err);
    const struct mp_run *run = NULL;
    if (value && mp_run_source_object(&source, "spec", value, err) == MEMPLAN_STATUS_OK)
        run = mp_run_resolve(&source, err);
    bool ok = run && mp_requests_record(&whole, run, err) == MEMPLAN_STATUS_OK &&
              mp_fold_record(&fold, &scratch, run, mp_fold_model(run->model, &arena), err) == MEMPLAN_STATUS_OK &&
              mp_fold_expand(&fold, &unfolded, err) == MEMPLAN_STATUS_OK &&
              mp_requests_replay(&unfolded, run, &replayer, NULL, 0, &v, err) == MEMPLAN_STATUS_OK && mp_evaluate(run, NULL, &e, err) == MEMPLAN_STATUS_OK;
    if (ok) {
        *folded = fold.folded;
        ok = fold.peak_bytes == whole.peak_bytes && mp_requests_equal(&whole, &unfolded);
        if (!ok)
            (void)snprintf(err->text, sizeof err->text, "the folded run is another");
        else if (v.fits != e.fits || v.requested_bytes != e.requested_bytes || v.allocated_bytes != e.allocated_bytes ||
                 v.reserved_bytes != e.reserved_bytes || v.device_used_bytes != e.device_used_bytes) {
            ok = false;
            (void)snprintf(err->text, sizeof err->text, "the replay says something else than the evaluation");
        } else if (e.fits && fold.peak_bytes != e.requested_bytes) {
            ok = false;
            (void)snprintf(err->text, sizeof err->text, "the folded peak is not the evaluation's");
        }
        mp_evaluation_release(&e);
    }
    mp_fold_release(&fold);
    mp_fold_scratch_release(&scratch);
    mp_requests_release(&whole);
    mp_requests_release(&unfolded);
    mp_replayer_release(&replayer);
    mp_arena_release(&arena);
    return ok;
}

START_TEST(folding_changes_nothing)
{
    const char *const only = getenv("SEED");
    int n_folded = 0, n = 0;
    for (uint64_t seed = 1; seed <= RUNS; seed++) {
        struct mp_strbuf spec = MP_STRBUF_INIT;
        struct memplan_error err = {0};
        uint64_t state = seed * 7919;
        bool folded = false;
        if (only && strtoull(only, NULL, 10) != seed)
            continue;
        random_spec(&state, NULL, &spec);
        ck_assert_msg(check(mp_strbuf_text(&spec), &folded, &err), "seed %llu: %s\n%s", (unsigned long long)seed, err.text, mp_strbuf_text(&spec));
        n_folded += folded;
        n++;
        mp_strbuf_release(&spec);
    }
    ck_assert_msg(only || n_folded == n, "%d of %d were folded", n_folded, n);
}
END_TEST

Suite *suite_fold_random(void)
{
    Suite *const suite = suite_create("fold_random");
    TCase *const tc = tcase_create("fold_random");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, folding_changes_nothing);
    suite_add_tcase(suite, tc);
    return suite;
}
