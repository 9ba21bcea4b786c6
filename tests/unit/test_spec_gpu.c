/* SPDX-License-Identifier: MIT */
/* GPU files: what a number says of itself, what a short file leaves out, mistakes, the shipped
 * cards, and `auto`. */
#include "spec/gpu.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/file.h"
#include "spec/profile.h"
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

static const struct mp_gpu *read_gpu(const char *text)
{
    const struct mp_value *const value = mp_json_parse(&arena, "g.json", text, strlen(text), &err);
    ck_assert_msg(value != NULL, "%s", err.text);
    return mp_gpu_parse(&arena, "g.json", value, &err);
}

#define CARD "\"name\": \"mine\", \"sms\": 30, \"threads_per_sm\": 1536"
#define BYTES                                                                                      \
    "\"total_bytes\": 12000000000, \"context_bytes\": {\"fused\": 300, \"plain\": 200}, "          \
    "\"unavailable_bytes\": {\"fused\": 310, \"plain\": 210}"
#define CAPABILITY "\"compute_capability\": \"8.6\""

/* What is left out follows from the compute capability. */
static const struct {
    const char *capability;
    int number;
    bool bf16, cudnn_first, flash;
    uint64_t cublas;
} capabilities[] = {
    {"7.0", 70, false, false, false, 8519680}, {"7.5", 75, false, false, false, 8519680},
    {"8.0", 80, true, false, true, 8519680},   {"8.6", 86, true, false, true, 8519680},
    {"8.9", 89, true, false, true, 8519680},   {"9.0", 90, true, true, true, 33554432},
    {"10.0", 100, true, true, true, 8519680},  {"10.3", 103, true, true, true, 8519680},
    {"12.0", 120, true, false, true, 8519680},
};

START_TEST(kernels_follow_the_compute_capability)
{
    char text[512];
    (void)snprintf(text, sizeof text, "{" CARD ", \"compute_capability\": \"%s\", " BYTES "}",
                   capabilities[_i].capability);
    const struct mp_gpu *const gpu = read_gpu(text);
    ck_assert_msg(gpu != NULL, "%s", err.text);
    ck_assert_int_eq(gpu->compute_capability, capabilities[_i].number);
    ck_assert_int_eq(gpu->bf16, capabilities[_i].bf16);
    ck_assert_int_eq(gpu->cudnn_attention_first, capabilities[_i].cudnn_first);
    ck_assert_int_eq(gpu->flash_attention, capabilities[_i].flash);
    ck_assert(gpu->efficient_attention);
    ck_assert_uint_eq(gpu->cublas_workspace_bytes.value, capabilities[_i].cublas);
    ck_assert_int_eq(gpu->cublas_workspace_bytes.provenance, MP_DERIVED);
    ck_assert_uint_eq(gpu->cublaslt_workspace_bytes.value, 1048576);
    ck_assert_int_eq(gpu->total_bytes.provenance, MP_REPORTED);
    ck_assert_uint_eq(gpu->context_bytes[MP_KERNELS_PLAIN].value, 200);
    ck_assert_uint_eq(gpu->unavailable_bytes[MP_KERNELS_FUSED].value, 310);
}
END_TEST

START_TEST(a_fact_has_range_provenance_and_note)
{
    const struct mp_gpu *const gpu = read_gpu(
        "{" CARD ", " CAPABILITY
        ", \"total_bytes\": {\"value\": 1000, \"low\": 900, \"high\": 1100, "
        "\"provenance\": \"measured\", \"note\": \"here\"}, \"context_bytes\": {\"fused\": 3, "
        "\"plain\": 2}, "
        "\"unavailable_bytes\": {\"fused\": 3, \"plain\": 2}, \"bf16\": false, \"_note\": \"x\", "
        "\"rates\": {\"flops_per_s\": {\"bf16\": {\"value\": 5, \"provenance\": \"vendor\"}}, "
        "\"memory_bytes_per_s\": 7}}");
    ck_assert_msg(gpu != NULL, "%s", err.text);
    ck_assert_uint_eq(gpu->total_bytes.low, 900);
    ck_assert_uint_eq(gpu->total_bytes.value, 1000);
    ck_assert_uint_eq(gpu->total_bytes.high, 1100);
    ck_assert_int_eq(gpu->total_bytes.provenance, MP_MEASURED);
    ck_assert_str_eq(gpu->total_bytes.note, "here");
    ck_assert(!gpu->bf16);
    ck_assert_double_eq(mp_gpu_rate(gpu, "flops_per_s.bf16"), 5.0);
    ck_assert_double_eq(mp_gpu_rate(gpu, "memory_bytes_per_s"), 7.0);
    ck_assert_double_eq(mp_gpu_rate(gpu, "flops_per_s.fp64"), 0.0);
    ck_assert_double_eq(mp_gpu_rate(gpu, "nvlink_bytes_per_s"), 0.0);
}
END_TEST

static const struct {
    const char *text;
    const char *says[3];
} mistakes[] = {
    {"[1]", {"g.json", "not a list"}},
    {"{}", {"compute_capability: missing", "sms: missing", "total_bytes: missing"}},
    {"{" CARD ", " CAPABILITY ", " BYTES ", \"sm\": 3}", {"unknown key 'sm'", "'sms'"}},
    {"{" CARD ", \"compute_capability\": 8.6, " BYTES "}",
     {"compute_capability: 8.6 is not a string"}},
    {"{" CARD ", \"compute_capability\": \"eight\", " BYTES "}",
     {"\"eight\" is not major and minor"}},
    {"{" CARD ", \"compute_capability\": \"8.66\", " BYTES "}",
     {"\"8.66\" is not major and minor"}},
    {"{" CARD ", \"compute_capability\": \"-8.6\", " BYTES "}",
     {"\"-8.6\" is not major and minor"}},
    {"{" CARD ", " CAPABILITY ", " BYTES ", \"bf16\": 1}", {"bf16: 1 is neither true nor false"}},
    {"{" CARD ", " CAPABILITY ", \"total_bytes\": -1}",
     {"total_bytes: -1", "context_bytes: missing"}},
    {"{" CARD ", " CAPABILITY ", \"total_bytes\": \"24GiB\"}",
     {"total_bytes: \"24GiB\" is neither an integer nor"}},
    {"{" CARD ", " CAPABILITY ", \"total_bytes\": {\"value\": 5}}",
     {"total_bytes: has no provenance"}},
    {"{" CARD ", " CAPABILITY ", \"total_bytes\": {\"provenance\": \"vendor\"}}",
     {"total_bytes: has no value"}},
    {"{" CARD ", " CAPABILITY ", \"total_bytes\": {\"value\": 5, \"provenance\": \"guessed\"}}",
     {"\"guessed\" is not one of measured, reported, derived or vendor"}},
    {"{" CARD ", " CAPABILITY
     ", \"total_bytes\": {\"value\": 5, \"proof\": 1, \"provenance\": \"vendor\"}}",
     {"unknown key 'total_bytes.proof'"}},
    {"{" CARD ", " CAPABILITY ", \"context_bytes\": {\"fused\": 5}}",
     {"context_bytes.plain: missing"}},
    {"{" CARD ", " CAPABILITY ", \"context_bytes\": 5}", {"context_bytes: not an object"}},
    {"{" CARD ", " CAPABILITY
     ", \"total_bytes\": 310, \"context_bytes\": {\"fused\": 3, \"plain\": 2}, "
     "\"unavailable_bytes\": {\"fused\": 310, \"plain\": 2}}",
     {"unavailable_bytes: 310 leaves nothing of total_bytes 310"}},
    {"{" CARD ", " CAPABILITY ", " BYTES ", \"rates\": {\"flops\": 3}}",
     {"unknown key 'rates.flops'", "'flops_per_s'"}},
    {"{" CARD ", " CAPABILITY ", " BYTES ", \"rates\": {\"flops_per_s\": {\"bf16\": 0}}}",
     {"rates.flops_per_s.bf16: 0"}},
    {"{" CARD ", " CAPABILITY ", " BYTES ", \"rates\": 3}", {"rates: not an object"}},
    {"{" CARD ", " CAPABILITY ", " BYTES ", \"reported_names\": [3]}",
     {"reported_names: not a list of strings"}},
};

START_TEST(mistakes_are_told)
{
    ck_assert_msg(read_gpu(mistakes[_i].text) == NULL, "%s was accepted", mistakes[_i].text);
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
    for (size_t i = 0; i < MP_ARRAY_LEN(mistakes[_i].says) && mistakes[_i].says[i] != NULL; i++)
        ck_assert_msg(strstr(err.text, mistakes[_i].says[i]) != NULL, "no '%s' in: %s",
                      mistakes[_i].says[i], err.text);
}
END_TEST

START_TEST(a_point_outside_its_range_is_refused)
{
    ck_assert_ptr_null(read_gpu("{" CARD ", " CAPABILITY
                                ", \"total_bytes\": {\"value\": 5, \"low\": 6, \"provenance\": "
                                "\"vendor\"}}"));
    ck_assert_msg(strstr(err.text, "5 is not between low 6 and high 5") != NULL, "%s", err.text);
}
END_TEST

/* SMs, compute capability and the class's nominal size: what identifies a card. */
static const struct {
    const char *name;
    uint32_t sms, threads_per_sm;
    int capability;
    uint64_t nominal_gb; /* the card never has more */
} shipped[] = {
    {"A100-40G", 108, 2048, 80, 43},     {"A100-80G", 108, 2048, 80, 86},
    {"H100-80G", 132, 2048, 90, 86},     {"H200-141G", 132, 2048, 90, 151},
    {"B200-180G", 148, 2048, 100, 193},  {"L4-24G", 58, 1536, 89, 26},
    {"L40S-48G", 142, 1536, 89, 52},     {"A10G-24G", 80, 1536, 86, 26},
    {"A6000-48G", 84, 1536, 86, 52},     {"V100-16G", 80, 2048, 70, 17},
    {"V100-32G", 80, 2048, 70, 35},      {"T4-16G", 40, 1024, 75, 17},
    {"RTX3090-24G", 82, 1536, 86, 26},   {"RTX4090-24G", 128, 1536, 89, 26},
    {"RTX5090-32G", 170, 1536, 120, 35},
};

START_TEST(shipped_cards_are_complete)
{
    const struct mp_gpu *const gpu = mp_gpu_read(&arena, shipped[_i].name, &err);
    ck_assert_msg(gpu != NULL, "%s", err.text);
    ck_assert_str_eq(gpu->name, shipped[_i].name);
    ck_assert_uint_eq(gpu->sms, shipped[_i].sms);
    ck_assert_uint_eq(gpu->threads_per_sm, shipped[_i].threads_per_sm);
    ck_assert_int_eq(gpu->compute_capability, shipped[_i].capability);
    const double gb = (double)gpu->total_bytes.value / 1e9;
    ck_assert_double_le(gb, (double)shipped[_i].nominal_gb);
    ck_assert_double_ge(gb, 0.85 * (double)shipped[_i].nominal_gb);
    ck_assert_uint_le(gpu->total_bytes.low, gpu->total_bytes.value);
    for (int i = 0; i < MP_KERNEL_SETS; i++) {
        ck_assert_uint_ge(gpu->unavailable_bytes[i].value, gpu->context_bytes[i].value);
        ck_assert_uint_ge(gpu->unavailable_bytes[i].high, gpu->context_bytes[i].high);
    }
    ck_assert_uint_ge(gpu->context_bytes[MP_KERNELS_FUSED].value,
                      gpu->context_bytes[MP_KERNELS_PLAIN].value);
    ck_assert_int_eq(gpu->bf16, shipped[_i].capability >= 80);
    ck_assert_double_gt(mp_gpu_rate(gpu, "memory_bytes_per_s"), 1e11);
    ck_assert_double_gt(mp_gpu_rate(gpu, "host_bytes_per_s"), 1e10);
    ck_assert_double_gt(mp_gpu_rate(gpu, "flops_per_s.fp16"), mp_gpu_rate(gpu, "flops_per_s.fp32"));
    ck_assert_double_gt(mp_gpu_rate(gpu, "flops_per_s.fp32"), 1e12);
    ck_assert_uint_gt(gpu->reported_names->as.array.length, 0);
}
END_TEST

START_TEST(every_shipped_card_is_in_the_table)
{
    size_t n = 0, n_gpus = 0;
    const struct mp_shipped *const files = mp_shipped_all(&n);
    for (size_t i = 0; i < n; i++)
        n_gpus += strcmp(files[i].kind, "gpus") == 0;
    ck_assert_uint_eq(n_gpus, MP_ARRAY_LEN(shipped));
}
END_TEST

START_TEST(the_h200_is_as_measured)
{
    const struct mp_gpu *const gpu = mp_gpu_read(&arena, "h200-141g", &err);
    ck_assert_msg(gpu != NULL, "%s", err.text);
    ck_assert_uint_eq(gpu->total_bytes.value, UINT64_C(150109880320));
    ck_assert_uint_eq(gpu->context_bytes[MP_KERNELS_FUSED].value, 794820608);
    ck_assert_uint_eq(gpu->context_bytes[MP_KERNELS_PLAIN].value, 778043392);
    ck_assert_uint_eq(gpu->unavailable_bytes[MP_KERNELS_FUSED].value, 804061184);
    ck_assert_uint_eq(gpu->unavailable_bytes[MP_KERNELS_PLAIN].value, 787283968);
    ck_assert_uint_eq(gpu->cublas_workspace_bytes.value, 33554432);
    ck_assert_int_eq(gpu->total_bytes.provenance, MP_MEASURED);
}
END_TEST

/* What a stand-in for nvidia-smi prints, and what `auto` makes of it. */
static const struct {
    const char *prints;
    const char *name; /* NULL: INPUT, with says */
    uint64_t total_bytes;
    const char *says;
} detections[] = {
    {"NVIDIA H200, 143771, 616", "H200-141G", UINT64_C(150109880320),
     NULL}, /* measured: the file knows the bytes */
    {"Tesla T4, 15360, 458", "T4-16G", UINT64_C(14902) * MP_MIB, NULL},
    {"Tesla V100-SXM2-32GB, 32768, 285", "V100-32G", UINT64_C(32483) * MP_MIB, NULL},
    {"Tesla V100-SXM2-16GB, 16160, [N/A]", "V100-16G", UINT64_C(16130) * MP_MIB, NULL},
    {"NVIDIA GeForce RTX 4090, 24564, 347\nTesla T4, 15360, 458", "RTX4090-24G",
     UINT64_C(24217) * MP_MIB, NULL},
    {"NVIDIA GeForce GT 710, 2048, 10", NULL, 0, "'NVIDIA GeForce GT 710'"},
    {"Tesla T4, 40000, 10", NULL, 0, "'Tesla T4'"},
    {"No devices were found", NULL, 0, "memplan list gpus"},
    {"", NULL, 0, "memplan list gpus"},
};

/* mp_gpu_detect() with a script as nvidia-smi. */
static const struct mp_gpu *detect(const char *script, int limit_ms)
{
    char folder[] = "/tmp/memplan-test-XXXXXX";
    char path[64];
    struct mp_strbuf text = MP_STRBUF_INIT;
    ck_assert_ptr_nonnull(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/nvidia-smi", folder);
    mp_strbuf_addf(&text, "#!/bin/sh\n%s\n", script);
    ck_assert_int_eq(mp_file_write(path, text.data, text.len, &err), MEMPLAN_STATUS_OK);
    mp_strbuf_release(&text);
    ck_assert_int_eq(chmod(path, 0700), 0);
    ck_assert_int_eq(setenv("PATH", folder, 1), 0);
    const struct mp_gpu *const gpu = mp_gpu_detect(&arena, limit_ms, &err);
    (void)unlink(path);
    (void)rmdir(folder);
    return gpu;
}

START_TEST(detects_the_card)
{
    char script[128];
    (void)snprintf(script, sizeof script, "echo '%s'", detections[_i].prints);
    const struct mp_gpu *const gpu = detect(script, MP_GPU_DETECT_MS);
    if (detections[_i].name != NULL) {
        ck_assert_msg(gpu != NULL, "%s", err.text);
        ck_assert_str_eq(gpu->name, detections[_i].name);
        ck_assert_uint_eq(gpu->total_bytes.value, detections[_i].total_bytes);
    } else {
        ck_assert_ptr_null(gpu);
        ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
        ck_assert_msg(strstr(err.text, detections[_i].says) != NULL, "%s", err.text);
    }
}
END_TEST

START_TEST(an_nvidia_smi_that_hangs_is_given_up)
{
    ck_assert_ptr_null(detect("/bin/sleep 30", 100));
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, "did not answer within 0.1 s") != NULL, "%s", err.text);
}
END_TEST

START_TEST(without_nvidia_smi_auto_says_so)
{
    ck_assert_int_eq(setenv("PATH", "/nonexistent", 1), 0);
    ck_assert_ptr_null(mp_gpu_read(&arena, "auto", &err));
    ck_assert_int_eq(err.status, MEMPLAN_STATUS_INPUT);
    ck_assert_msg(strstr(err.text, "nvidia-smi") != NULL, "%s", err.text);
}
END_TEST

START_TEST(profiles_name_their_versions)
{
    const struct mp_profile *const profile = mp_profile_read(&arena, "hf", &err);
    ck_assert_msg(profile != NULL, "%s", err.text);
    ck_assert_str_eq(profile->torch, "2.11.0");
    ck_assert_int_eq(profile->torch_version, 211);
    ck_assert_ptr_null(mp_profile_read(&arena, "fh", &err));
    ck_assert_msg(strstr(err.text, "memplan list frameworks") != NULL, "%s", err.text);
    ck_assert_ptr_null(mp_profile_read(&arena, "/dev/null", &err));
}
END_TEST

Suite *suite_spec_gpu(void)
{
    Suite *const suite = suite_create("spec_gpu");
    TCase *const tc = tcase_create("gpu");
    tcase_add_checked_fixture(tc, setup, teardown);
    tcase_add_loop_test(tc, kernels_follow_the_compute_capability, 0,
                        (int)MP_ARRAY_LEN(capabilities));
    tcase_add_test(tc, a_fact_has_range_provenance_and_note);
    tcase_add_loop_test(tc, mistakes_are_told, 0, (int)MP_ARRAY_LEN(mistakes));
    tcase_add_test(tc, a_point_outside_its_range_is_refused);
    tcase_add_loop_test(tc, shipped_cards_are_complete, 0, (int)MP_ARRAY_LEN(shipped));
    tcase_add_test(tc, every_shipped_card_is_in_the_table);
    tcase_add_test(tc, the_h200_is_as_measured);
    tcase_add_loop_test(tc, detects_the_card, 0, (int)MP_ARRAY_LEN(detections));
    tcase_add_test(tc, an_nvidia_smi_that_hangs_is_given_up);
    tcase_add_test(tc, without_nvidia_smi_auto_says_so);
    tcase_add_test(tc, profiles_name_their_versions);
    suite_add_tcase(suite, tc);
    return suite;
}
