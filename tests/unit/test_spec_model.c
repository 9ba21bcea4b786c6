/* SPDX-License-Identifier: MIT */
/* Models: config.json as found in the wild, keys with defaults, and the shipped files. */
#include "spec/model.h"

#include "base/json.h"
#include "spec/shipped.h"
#include "suites.h"

static struct mp_arena arena;
static struct memplan_error err;

static void setup(void)
{
    mp_arena_init(&arena);
    err = (struct memplan_error){MEMPLAN_STATUS_OK, ""};
}

static void teardown(void)
{
    mp_arena_release(&arena);
}

static const struct mp_model *read_model(const char *text)
{
    const struct mp_value *const value =
        mp_json_parse(&arena, "config.json", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    return mp_model_parse(&arena, "model", "config.json", value, &err);
}

static struct mp_config open_config(const char *text)
{
    struct mp_config c;
    const struct mp_model *const model = read_model(text);
    ck_assert_msg(model != NULL, "%s", err.text);
    mp_config_open(&c, model, &err);
    return c;
}

static const struct {
    const char *config, *other, *planned;
} classes[] = {
    {"{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"]}", NULL, "ForCausalLM"},
    {"{\"model_type\": \"llama\", \"architectures\": [\"LlamaForSequenceClassification\"]}", "LlamaForSequenceClassification",
     "ForCausalLM"},
    {"{\"model_type\": \"bert\", \"architectures\": [\"BertModel\"]}", "BertModel", "ForMaskedLM"},
    {"{\"model_type\": \"bert\", \"architectures\": [\"BertForPreTraining\", \"BertForMaskedLM\"]}", NULL, "ForMaskedLM"},
    {"{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"]}", NULL, "LMHeadModel"},
    {"{\"model_type\": \"gpt2\", \"architectures\": null}", NULL, "LMHeadModel"},
    {"{\"model_type\": \"vit\", \"architectures\": []}", NULL, "ForImageClassification"},
    {"{\"model_type\": \"t5\", \"architectures\": [3, \"T5EncoderModel\"]}", "T5EncoderModel", "ForConditionalGeneration"},
};

START_TEST(another_head_is_noticed)
{
    const char *planned = NULL;
    const struct mp_model *const model = read_model(classes[_i].config);
    ck_assert_pstr_eq(mp_model_other_head(model, &planned), classes[_i].other);
    ck_assert_str_eq(planned, classes[_i].planned);
}
END_TEST

/* A size: the config's other members, the fallback, the expected answer; a problem names says. */
static const struct {
    const char *members;
    int64_t fallback;
    bool null_allowed;
    int64_t size;
    const char *says;
} sizes[] = {
    {"\"n_embd\": 768", 0, false, 768, NULL},
    {"\"hidden_size\": 512", 0, false, 512, NULL},
    {"\"n_embd\": 768, \"hidden_size\": 512", 0, false, 768, NULL},
    {"\"x\": 1", 12, false, 12, NULL},
    {"\"x\": 1", 0, false, 1, "n_embd: missing"},
    {"\"n_embd\": null", 12, true, 12, NULL},
    {"\"n_embd\": null", 12, false, 12, "n_embd: null is not an integer from 1 to 2147483647"},
    {"\"n_embd\": 0", 12, false, 12, "n_embd: 0"},
    {"\"n_embd\": -3", 12, true, 12, "n_embd: -3"},
    {"\"n_embd\": 2147483647", 12, false, 2147483647, NULL},
    {"\"n_embd\": 2147483648", 12, false, 12, "n_embd: 2147483648"},
    {"\"hidden_size\": 1e300", 12, false, 12, "hidden_size: 1e+300"},
    {"\"n_embd\": 1.5", 12, false, 12, "n_embd: 1.5"},
    {"\"n_embd\": \"768\"", 12, false, 12, "n_embd: \"768\""},
    {"\"n_embd\": true", 12, false, 12, "n_embd: true"},
    {"\"n_embd\": [768]", 12, false, 12, "n_embd: a list"},
};

START_TEST(reads_sizes)
{
    char text[128];
    (void)snprintf(text, sizeof text, "{\"model_type\": \"gpt2\", %s}", sizes[_i].members);
    struct mp_config c = open_config(text);
    const int64_t size = sizes[_i].null_allowed
                             ? mp_config_size_or_null(&c, "n_embd|hidden_size", sizes[_i].fallback)
                             : mp_config_size(&c, "n_embd|hidden_size", sizes[_i].fallback);
    ck_assert_int_eq(size, sizes[_i].size);
    ck_assert_int_eq(c.n_problems, sizes[_i].says != NULL);
    if (sizes[_i].says != NULL) {
        ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
        ck_assert_msg(strstr(err.text, sizes[_i].says) != NULL, "%s", err.text);
        ck_assert_msg(strncmp(err.text, "config.json", 11) == 0, "%s", err.text);
    } else {
        ck_assert_int_eq(err.status, MEMPLAN_STATUS_OK);
    }
}
END_TEST

START_TEST(reads_other_kinds)
{
    struct mp_config c = open_config(
        "{\"model_type\": \"bert\", \"p\": 0, \"q\": 0.1, \"theta\": 10000, \"tie\": false,"
        " \"nothing\": null, \"act\": \"silu\"}");
    ck_assert_double_eq(mp_config_probability(&c, "p", 0.5), 0.0);
    ck_assert_double_eq(mp_config_probability(&c, "q", 0.5), 0.1);
    ck_assert_double_eq(mp_config_probability(&c, "r", 0.5), 0.5);
    ck_assert_double_eq(mp_config_number(&c, "theta", 1.0), 10000.0);
    ck_assert(!mp_config_bool(&c, "tie", true));
    ck_assert(mp_config_bool(&c, "nothing", true));
    ck_assert(mp_config_bool(&c, "absent", true));
    ck_assert_int_eq(mp_config_choice(&c, "act", "gelu|silu", 0), 1);
    ck_assert_int_eq(mp_config_choice(&c, "absent", "gelu|silu", 0), 0);
    ck_assert(mp_config_has(&c, "act") && !mp_config_has(&c, "nothing") &&
              !mp_config_has(&c, "absent"));
    ck_assert_int_eq(c.n_problems, 0);
}
END_TEST

START_TEST(problems_are_listed_together)
{
    struct mp_config c = open_config(
        "{\"model_type\": \"bert\", \"p\": 1.0, \"tie\": 1, \"act\": \"swish9\", \"heads\": 5}");
    ck_assert_double_eq(mp_config_probability(&c, "p", 0.5), 0.5);
    ck_assert(mp_config_bool(&c, "tie", true));
    ck_assert_int_eq(mp_config_choice(&c, "act", "gelu|silu", 0), 0);
    mp_config_problem(&c, "heads", "%d does not divide %d", 5, 768);
    ck_assert_int_eq(c.n_problems, 4);
    static const char *const says[] = {
        "p: 1.0 is not a probability", "; ", "tie: 1 is neither true nor false",
        "act: \"swish9\" is not one of gelu or silu", "heads: 5 does not divide 768"};
    for (size_t i = 0; i < MP_ARRAY_LEN(says); i++)
        ck_assert_msg(strstr(err.text, says[i]) != NULL, "no '%s' in: %s", says[i], err.text);
}
END_TEST

static const struct {
    const char *text;
    int64_t positions;
    bool table;
} positions[] = {
    {"{\"model_type\": \"gpt2\", \"n_positions\": 2048}", 2048, true},
    {"{\"model_type\": \"gpt2\"}", 1024, true},
    {"{\"model_type\": \"bert\"}", 512, true},
    {"{\"model_type\": \"roberta\", \"max_position_embeddings\": 514}", 512, true},
    {"{\"model_type\": \"llama\", \"max_position_embeddings\": 131072}", 131072, false},
    {"{\"model_type\": \"llama\"}", 2048, false},
    {"{\"model_type\": \"llama\", \"max_position_embeddings\": \"many\"}", 2048, false},
    {"{\"model_type\": \"mpt\", \"max_seq_len\": 77}", 77, false},
    {"{\"model_type\": \"gemma3\", \"text_config\": {\"max_position_embeddings\": 99}}", 99, false},
};

START_TEST(finds_the_longest_position)
{
    bool table = !positions[_i].table;
    ck_assert_int_eq(mp_model_positions(read_model(positions[_i].text), &table),
                     positions[_i].positions);
    ck_assert_int_eq(table, positions[_i].table);
}
END_TEST

START_TEST(names_and_origins)
{
    const struct mp_model *const model = mp_model_read(&arena, "GPT2-XL", &err);
    ck_assert_msg(model != NULL, "%s", err.text);
    ck_assert_str_eq(model->name, "gpt2-xl");
    ck_assert_str_eq(model->origin, "models/gpt2-xl.json");
    ck_assert_str_eq(model->model_type, "gpt2");
    ck_assert_int_eq(mp_model_layers(model), 48);
}
END_TEST

/* Facts of the published files: layers, hidden size, heads, key-value heads, vocabulary, and
 * parameters by their own arithmetic. */
static const struct {
    const char *name, *model_type;
    int64_t layers, hidden, heads, kv_heads, vocabulary, inner;
    uint64_t parameters; /* as the model cards and papers count them, weights of tied heads once */
} shipped[] = {
    {"gpt2", "gpt2", 12, 768, 12, 12, 50257, 3072, 124439808},
    {"gpt2-medium", "gpt2", 24, 1024, 16, 16, 50257, 4096, 354823168},
    {"gpt2-large", "gpt2", 36, 1280, 20, 20, 50257, 5120, 774030080},
    {"gpt2-xl", "gpt2", 48, 1600, 25, 25, 50257, 6400, 1557611200},
    {"gpt-1.3b", "gpt2", 24, 2048, 16, 16, 50257, 8192, 1315723264},
    {"gpt-2.7b", "gpt2", 32, 2560, 32, 32, 50257, 10240, 2651553280},
    {"gpt-6.7b", "gpt2", 32, 4096, 32, 32, 50257, 16384, 0},
    {"gpt-13b", "gpt2", 40, 5120, 40, 40, 50257, 20480, 0},
    {"gpt-175b", "gpt2", 96, 12288, 96, 96, 50257, 49152, 0},
    {"bert-base", "bert", 12, 768, 12, 12, 30522, 3072, 0},
    {"bert-large", "bert", 24, 1024, 16, 16, 30522, 4096, 0},
    {"tinyllama-1.1b", "llama", 22, 2048, 32, 4, 32000, 5632, 1100048384},
    {"llama2-7b", "llama", 32, 4096, 32, 32, 32000, 11008, 6738415616},
    {"llama2-13b", "llama", 40, 5120, 40, 40, 32000, 13824, 13015864320},
    {"llama2-70b", "llama", 80, 8192, 64, 8, 32000, 28672, 68976648192},
    {"llama3-8b", "llama", 32, 4096, 32, 8, 128256, 14336, 8030261248},
    {"llama3-70b", "llama", 80, 8192, 64, 8, 128256, 28672, 70553706496},
    {"llama3.2-1b", "llama", 16, 2048, 32, 8, 128256, 8192, 1235814400},
    {"llama3.2-3b", "llama", 28, 3072, 24, 8, 128256, 8192, 3212749824},
    {"mistral-7b", "mistral", 32, 4096, 32, 8, 32000, 14336, 7241732096},
    {"qwen2-0.5b", "qwen2", 24, 896, 14, 2, 151936, 4864, 494032768},
    {"qwen2-1.5b", "qwen2", 28, 1536, 12, 2, 151936, 8960, 1543714304},
    {"qwen2-7b", "qwen2", 28, 3584, 28, 4, 152064, 18944, 7615616512},
    {"qwen3-0.6b", "qwen3", 28, 1024, 16, 8, 151936, 3072, 596049920},
    {"qwen3-1.7b", "qwen3", 28, 2048, 16, 8, 151936, 6144, 1720574976},
    {"qwen3-8b", "qwen3", 36, 4096, 32, 8, 151936, 12288, 8190735360},
    {"qwen3-30b-a3b", "qwen3_moe", 48, 2048, 32, 4, 151936, 6144, 0},
    {"mixtral-8x7b", "mixtral", 32, 4096, 32, 8, 32000, 14336, 0},
    {"phi3-mini", "phi3", 32, 3072, 32, 32, 32064, 8192, 0},
    {"gemma2-2b", "gemma2", 26, 2304, 8, 4, 256000, 9216, 0},
    {"starcoder2-3b", "starcoder2", 30, 3072, 24, 2, 49152, 12288, 0},
    {"pythia-1.4b", "gpt_neox", 24, 2048, 16, 16, 50304, 8192, 0},
    {"gpt-neo-1.3b", "gpt_neo", 24, 2048, 16, 16, 50257, 8192, 0},
    {"opt-1.3b", "opt", 24, 2048, 32, 32, 50272, 8192, 0},
    {"roberta-base", "roberta", 12, 768, 12, 12, 50265, 3072, 0},
    {"t5-base", "t5", 24, 768, 12, 12, 32128, 3072, 0},
    {"vit-base", "vit", 12, 768, 12, 12, 0, 3072, 0},
};

static bool is_tied(const struct mp_model *model)
{
    const struct mp_value *const tied = mp_value_get(model->config, "tie_word_embeddings");
    ck_assert(tied != NULL && tied->kind == MP_BOOLEAN);
    return tied->as.boolean;
}

/* Blocks of attention (with biases in gpt2, on q, k, v in qwen2) and feed-forward, norms,
 * embeddings, head. */
static uint64_t count_parameters(const struct mp_model *model)
{
    const uint64_t layers = (uint64_t)mp_model_layers(model),
                   h = (uint64_t)mp_model_integer(model, "n_embd|hidden_size");
    const uint64_t heads = (uint64_t)mp_model_integer(model, "n_head|num_attention_heads");
    const uint64_t vocabulary = (uint64_t)mp_model_integer(model, "vocab_size");
    if (strcmp(model->model_type, "gpt2") == 0)
        return layers * (12 * h * h + 13 * h) +
               (vocabulary + (uint64_t)mp_model_positions(model, NULL)) * h + 2 * h;
    const uint64_t inner = (uint64_t)mp_model_integer(model, "intermediate_size");
    const uint64_t given = (uint64_t)mp_model_integer(model, "head_dim");
    const uint64_t d = given > 0 ? given : h / heads;
    const uint64_t kv = (uint64_t)mp_model_integer(model, "num_key_value_heads");
    uint64_t block = 2 * h * heads * d + 2 * h * kv * d + 3 * h * inner + 2 * h;
    if (strcmp(model->model_type, "qwen2") == 0)
        block += heads * d + 2 * kv * d;
    if (strcmp(model->model_type, "qwen3") == 0)
        block += 2 * d;
    return layers * block + h + vocabulary * h * (is_tied(model) ? 1 : 2);
}

START_TEST(shipped_models_are_as_published)
{
    const struct mp_model *const model = mp_model_read(&arena, shipped[_i].name, &err);
    ck_assert_msg(model != NULL, "%s", err.text);
    ck_assert_str_eq(model->model_type, shipped[_i].model_type);
    ck_assert_int_eq(mp_model_layers(model), shipped[_i].layers);
    ck_assert_int_eq(mp_model_integer(model, "n_embd|hidden_size|d_model"), shipped[_i].hidden);
    ck_assert_int_eq(mp_model_integer(model, "n_head|num_attention_heads|num_heads"), shipped[_i].heads);
    const int64_t kv = mp_model_integer(model, "num_key_value_heads");
    ck_assert_int_eq(kv > 0 ? kv : shipped[_i].heads, shipped[_i].kv_heads);
    ck_assert_int_eq(mp_model_integer(model, "vocab_size"), shipped[_i].vocabulary);
    const int64_t inner = mp_model_integer(model, "intermediate_size|ffn_dim|d_ff");
    ck_assert_int_eq(inner > 0 ? inner : 4 * shipped[_i].hidden, shipped[_i].inner);
    ck_assert_ptr_nonnull(mp_value_get(model->config, "_source"));
    if (shipped[_i].parameters > 0)
        ck_assert_uint_eq(count_parameters(model), shipped[_i].parameters);
}
END_TEST

START_TEST(every_shipped_model_is_in_the_table)
{
    size_t n = 0, n_models = 0;
    const struct mp_shipped *const files = mp_shipped_all(&n);
    for (size_t i = 0; i < n; i++)
        n_models += strcmp(files[i].kind, "models") == 0;
    ck_assert_uint_eq(n_models, MP_ARRAY_LEN(shipped));
}
END_TEST

Suite *suite_spec_model(void)
{
    Suite *const suite = suite_create("spec_model");
    TCase *const tc = tcase_create("model");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, reads_sizes, 0, (int)MP_ARRAY_LEN(sizes));
    tcase_add_test(tc, reads_other_kinds);
    tcase_add_test(tc, problems_are_listed_together);
    tcase_add_loop_test(tc, finds_the_longest_position, 0, (int)MP_ARRAY_LEN(positions));
    tcase_add_test(tc, names_and_origins);
    tcase_add_loop_test(tc, shipped_models_are_as_published, 0, (int)MP_ARRAY_LEN(shipped));
    tcase_add_test(tc, every_shipped_model_is_in_the_table);
    tcase_add_loop_test(tc, another_head_is_noticed, 0, (int)MP_ARRAY_LEN(classes));
    suite_add_tcase(suite, tc);
    return suite;
}
