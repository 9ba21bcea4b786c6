/* SPDX-License-Identifier: MIT */
/*
 * Random run specs: the folded peak and the unfolded stream are those of the whole run, and a replay on any card says what an
 * evaluation says. A failure prints the seed and the spec; SEED=n in the environment runs only that one.
 */
#include "base/yaml.h"
#include "plan/fold.h"
#include "suites.h"

enum { RUNS = 150 };

static uint64_t next(uint64_t *state, uint64_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (*state >> 33) % n;
}

static const char *pick(uint64_t *state, const char *const *from, size_t n) { return from[next(state, n)]; }
#define PICK(state, ...) pick(state, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

static void add_model(uint64_t *s, struct mp_strbuf *out)
{
    char kv[48] = "";
    const int layers = 5 + (int)next(s, 9), heads = 1 << next(s, 4), width = heads * 8 * (1 + (int)next(s, 12));
    const char *const type = PICK(s, "gpt2", "bert", "llama", "qwen2", "qwen3", "mistral");
    mp_strbuf_addf(out, "model: {model_type: %s, vocab_size: %d, ", type, 1000 + (int)next(s, 60000));
    if (strcmp(type, "bert") != 0)
        (void)snprintf(kv, sizeof kv, "num_key_value_heads: %d, ", next(s, 2) ? 1 : heads);
    if (strcmp(type, "gpt2") == 0)
        mp_strbuf_addf(out, "n_layer: %d, n_embd: %d, n_head: %d, n_positions: 2048, attn_pdrop: %s, resid_pdrop: %s}\n", layers, width, heads,
                       PICK(s, "0.0", "0.1"), PICK(s, "0.0", "0.1"));
    else
        mp_strbuf_addf(out, "num_hidden_layers: %d, hidden_size: %d, num_attention_heads: %d, intermediate_size: %d, %smax_position_embeddings: 2048%s}\n",
                       layers, width, heads, 64 * (1 + (int)next(s, 40)),
                       kv, next(s, 2) ? ", tie_word_embeddings: true" : "");
}

static void make_spec(uint64_t *s, struct mp_strbuf *out)
{
    add_model(s, out);
    mp_strbuf_addf(out, "gpu: %s\nbatch: %d\nseq: %d\n", PICK(s, "T4-16G", "V100-16G", "L4-24G", "A100-40G", "RTX5090-32G", "H100-80G", "B200-180G"),
                   1 + (int)next(s, 24), 1 + (int)next(s, 1500));
    mp_strbuf_addf(out, "precision: %s\ncheckpoint: %s\noptimizer: %s\nattention: %s\n", PICK(s, "fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"),
                   PICK(s, "none", "full", "full-reentrant"),
                   PICK(s, "adamw-foreach", "adamw-fused", "adamw-forloop", "sgd", "sgd-momentum", "adafactor", "none"), PICK(s, "sdpa", "eager"));
    mp_strbuf_addf(out, "accumulate: %d\niterations: %d\n", 1 + (int)next(s, 3), (int)next(s, 5));
    mp_strbuf_addf(out, "zero_grad: %s\nrelease_outputs: %s\nattention_mask: %s\nuse_cache: %s\ninit_device: %s\n", PICK(s, "set_to_none", "keep"),
                   PICK(s, "false", "true"), PICK(s, "false", "true", "padded"), PICK(s, "false", "false", "true"), PICK(s, "cuda", "cpu"));
    if (next(s, 4) == 0)
        mp_strbuf_addf(out, "allocator_conf: \"%s\"\n", PICK(s, "expandable_segments:True", "max_split_size_mb:64", "roundup_power2_divisions:4"));
    if (next(s, 3) == 0)
        mp_strbuf_addf(out, "allocator_limit_bytes: %dMiB\n", 64 + (int)next(s, 4000));
}

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
              mp_requests_replay(&unfolded, run, &replayer, &v, err) == MEMPLAN_STATUS_OK && mp_evaluate(run, NULL, &e, err) == MEMPLAN_STATUS_OK;
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
        make_spec(&state, &spec);
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
