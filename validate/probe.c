/* SPDX-License-Identifier: MIT */
/*
 * `memplan-validate probe`: a GPU file of this card, for `memplan fit --gpu FILE`.
 *
 * Context and unavailable bytes are those of this program ready to train, for programs that it runs
 * itself. What PyTorch's kernels add is in the shipped GPU files, where it was measured.
 */
#include "probe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "ranks.h"

static const struct probe_stage *stage(const struct probe_result *r, const char *name)
{
    for (int i = 0; i < r->n_stages; i++)
        if (strcmp(r->stages[i].name, name) == 0)
            return &r->stages[i];
    return NULL;
}

static double rate(const struct probe_result *r, const char *name)
{
    for (int i = 0; i < r->n_rates; i++)
        if (strcmp(r->rates[i].name, name) == 0)
            return r->rates[i].per_second;
    return 0;
}

/* ---- the GPU file ---- */

static void write_fact(struct mp_json_writer *w, const char *key, uint64_t value, const char *note)
{
    mp_json_object(w, key);
    mp_json_uint(w, "value", value);
    mp_json_string(w, "provenance", "measured");
    mp_json_string(w, "note", note);
    mp_json_end_object(w);
}

static void write_both(struct mp_json_writer *w, const char *key, uint64_t value, const char *note)
{
    mp_json_object(w, key);
    write_fact(w, "fused", value, note);
    write_fact(w, "plain", value, note);
    mp_json_end_object(w);
}

static void write_memory(struct mp_json_writer *w, const struct probe_result *r,
                         const struct device_facts *facts)
{
    const struct probe_stage *before = stage(r, "before the context"),
                             *ready = stage(r, "ready to train");
    char note[200];
    (void)snprintf(note, sizeof note,
                   "memplan-validate probe: its kernels and cuBLAS loaded, driver %s",
                   facts->driver_release);
    write_fact(w, "total_bytes", facts->total_bytes, "cudaMemGetInfo");
    const bool nvml =
        before && ready && before->nvml_bytes && ready->nvml_bytes > before->nvml_bytes;
    if (ready)
        write_both(w, "context_bytes",
                   nvml ? ready->nvml_bytes - before->nvml_bytes : ready->used_bytes, note);
    if (ready)
        write_both(w, "unavailable_bytes", ready->used_bytes, note);
}

static void write_rate(struct mp_json_writer *w, const char *key, double per_second,
                       const char *note)
{
    if (per_second > 0)
        write_fact(w, key, (uint64_t)per_second, note);
}

static void write_rates(struct mp_json_writer *w, const struct probe_result *r)
{
    const double to = rate(r, "host to card, pinned, bytes"),
                 from = rate(r, "card to host, pinned, bytes");
    if (!r->n_rates)
        return;
    mp_json_object(w, "rates");
    mp_json_object(w, "flops_per_s");
    write_rate(w, "fp32", rate(r, "product fp32 8192, operations"), "cuBLAS, 8192 x 8192 x 8192");
    write_rate(w, "tf32", rate(r, "product tf32 8192, operations"), "cuBLAS, 8192 x 8192 x 8192");
    write_rate(w, "bf16", rate(r, "product bf16 8192, operations"), "cuBLAS, 8192 x 8192 x 8192");
    write_rate(w, "fp16", rate(r, "product fp16 8192, operations"), "cuBLAS, 8192 x 8192 x 8192");
    mp_json_end_object(w);
    write_rate(w, "memory_bytes_per_s", rate(r, "memory: copy on the card, bytes read and written"),
               "copy of 1 GiB, bytes read and written");
    write_rate(w, "host_bytes_per_s", MP_MIN(to, from),
               "256 MiB of pinned memory, the slower direction");
    mp_json_end_object(w);
}

/* Everything that was seen; keys with an underscore are comments to memplan. */
static void write_log(struct mp_json_writer *w, const struct probe_result *r,
                      const struct device_facts *facts, const struct arguments *a)
{
    mp_json_object(w, "_probe");
    write_where(w, facts, a);
    mp_json_string(w, "method",
                   "free memory by cudaMemGetInfo and NVML after each stage; rates: median between "
                   "events after warming up");
    mp_json_int(w, "gpus", r->gpus);
    mp_json_array(w, "stages");
    for (int i = 0; i < r->n_stages; i++) {
        mp_json_object(w, NULL);
        mp_json_string(w, "stage", r->stages[i].name);
        mp_json_uint(w, "used_bytes", r->stages[i].used_bytes);
        mp_json_uint(w, "nvml_used_bytes", r->stages[i].nvml_bytes);
        if (r->stages[i].most_bytes) {
            mp_json_uint(w, "least_of_all_ranks_bytes", r->stages[i].least_bytes);
            mp_json_uint(w, "most_of_all_ranks_bytes", r->stages[i].most_bytes);
        }
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
    mp_json_array(w, "cudamalloc");
    for (int i = 0; i < r->n_places; i++) {
        mp_json_object(w, NULL);
        mp_json_uint(w, "bytes", r->places[i].bytes);
        mp_json_uint(w, "address", r->places[i].address);
        mp_json_uint(w, "taken_bytes", r->places[i].taken_bytes);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
    mp_json_array(w, "rates");
    for (int i = 0; i < r->n_rates; i++) {
        mp_json_object(w, NULL);
        mp_json_string(w, "what", r->rates[i].name);
        mp_json_double(w, "per_second", r->rates[i].per_second);
        mp_json_double(w, "milliseconds", r->rates[i].milliseconds);
        mp_json_end_object(w);
    }
    mp_json_end_array(w);
    mp_json_int(w, "nccl_version", r->nccl_version);
    if (r->n_ranks) {
        mp_json_int(w, "nccl_ranks", r->n_ranks);
        mp_json_string(w, "nccl_started_by", ranks()->world > 1 ? "mpirun" : "one process");
    }
    if (r->nccl_note[0])
        mp_json_string(w, "nccl_note", r->nccl_note);
    mp_json_end_object(w);
}

/* "NVIDIA H200" with 140 GiB: H200-140G */
static void default_name(const struct device_facts *facts, char *name, size_t size)
{
    const char *product = strncmp(facts->name, "NVIDIA ", 7) == 0 ? facts->name + 7 : facts->name;
    (void)snprintf(name, size, "%s-%" PRIu64 "G", product,
                   (facts->total_bytes + MP_GIB / 2) / MP_GIB);
    for (char *c = name; *c; c++)
        if (*c == ' ')
            *c = '-';
}

static int write_file(const struct probe_result *r, const struct device_facts *facts,
                      const struct arguments *a)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    struct mp_json_writer w;
    char name[280], capability[16];
    default_name(facts, name, sizeof name);
    (void)snprintf(capability, sizeof capability, "%d.%d", facts->compute_capability / 10,
                   facts->compute_capability % 10);
    mp_json_init(&w, &out, 2);
    mp_json_object(&w, NULL);
    mp_json_string(&w, "name", a->name ? a->name : name);
    mp_json_string(&w, "product", facts->name);
    mp_json_string(&w, "compute_capability", capability);
    write_fact(&w, "sms", (uint64_t)facts->sms, "cudaGetDeviceProperties");
    write_fact(&w, "threads_per_sm", (uint64_t)facts->threads_per_sm, "cudaGetDeviceProperties");
    write_memory(&w, r, facts);
    write_rates(&w, r);
    write_log(&w, r, facts, a);
    mp_json_end_object(&w);
    mp_strbuf_addch(&out, '\n');
    const int status = write_output(a, &out);
    mp_strbuf_release(&out);
    return status;
}

/* ---- the table ---- */

static void print(const struct probe_result *r, const struct device_facts *facts)
{
    uint64_t last = 0;
    (void)printf("%s, driver %s, %" PRIu64 " bytes\n", facts->name, facts->driver_release,
                 facts->total_bytes);
    (void)printf("  %-36s %16s %14s %16s\n", "stage", "used", "added", "used by NVML");
    for (int i = 0; i < r->n_stages; i++) {
        const struct probe_stage *s = &r->stages[i];
        (void)printf("  %-36s %16" PRIu64 " %+14" PRId64 " %16" PRIu64, s->name, s->used_bytes,
                     (int64_t)(s->used_bytes - last), s->nvml_bytes);
        if (s->least_bytes != s->most_bytes)
            (void)printf("  (%" PRIu64 " to %" PRIu64 " over the ranks)", s->least_bytes,
                         s->most_bytes);
        (void)printf("\n");
        last = s->used_bytes;
    }
    for (int i = 0; i < r->n_rates; i++)
        (void)printf("  %-64s %12.4g a second\n", r->rates[i].name, r->rates[i].per_second);
    if (r->nccl_version)
        (void)printf("  NCCL %d.%d.%d, %d rank%s, started by %s\n", r->nccl_version / 10000,
                     r->nccl_version / 100 % 100, r->nccl_version % 100, r->n_ranks,
                     r->n_ranks == 1 ? "" : "s", ranks()->world > 1 ? "mpirun" : "one process");
    else if (r->nccl_note[0])
        (void)printf("  NCCL: %s\n", r->nccl_note);
}

int command_probe(const struct arguments *a)
{
    struct probe_result r;
    struct device_facts facts;
    const int failed = probe_measure(&r, &facts, a->quick);
    if (failed == PROBE_OTHERS_FAILED)
        return EXIT_WORLD;
    if (failed) {
        const int status = complain(a->command, device_error(), EXIT_WORLD);
        return failed == PROBE_FAILED_TOGETHER ? status : ranks_abort(status);
    }
    int status = EXIT_YES;
    if (ranks()->rank == 0) {
        print(&r, &facts);
        status = write_file(&r, &facts, a);
    }
    device_close();
    return status;
}
