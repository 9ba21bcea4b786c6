/* SPDX-License-Identifier: MIT */
/* The reader of out-of-memory texts: every format, every number, whatever was done to the text on
 * its way. */
#include "base/strbuf.h"
#include "doctor/message.h"

#include "suites.h"

#define NONE   UINT64_MAX /* the text does not give it */
#define MIB(x) ((uint64_t)((x)*1048576.0 + 0.5))
#define GIB(x) ((uint64_t)((x)*1073741824.0 + 0.5))

static const char modern[] =
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 29.39 GiB. GPU 3 has a total "
    "capacity of 139.81 GiB of which "
    "19.41 GiB is free. Process 1990324 has 3.23 GiB memory in use. Including non-PyTorch memory, "
    "this process has 117.07 GiB "
    "memory in use. Of the allocated memory 92.06 GiB is allocated by PyTorch, and 20.79 GiB is "
    "reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)";

static const struct {
    const char *name, *text, *format;
    uint64_t requested, capacity, free, this_process, allocated, reserved, unallocated;
} texts[] = {
    {"0.4",
     "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of "
     "memory",
     "thc", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"0.4 python",
     "RuntimeError: cuda runtime error (2) : out of memory at "
     "/pytorch/aten/src/THC/generic/THCStorage.cu:58",
     "thc", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"another cuda error",
     "THCudaCheck FAIL file=THCGeneral.cpp line=51 error=38 : no CUDA-capable device is detected",
     "none", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"1.0",
     "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 7.93 GiB total "
     "capacity; 6.19 GiB already allocated; "
     "340.00 MiB free; 551.04 MiB cached)",
     "torch-1.0", MIB(512), GIB(7.93), MIB(340), NONE, GIB(6.19), GIB(6.19) + MIB(551.04),
     MIB(551.04)},
    {"1.3 inactive",
     "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 10.76 GiB total "
     "capacity; 9.50 GiB already allocated; "
     "2.56 MiB free; 40.00 MiB cached; 12.00 MiB inactive)",
     "torch-1.0", MIB(20), GIB(10.76), MIB(2.56), NONE, GIB(9.50), GIB(9.50) + MIB(40), MIB(40)},
    {"1.5",
     "RuntimeError: CUDA out of memory. Tried to allocate 1.93 GiB (GPU 0; 23.70 GiB total "
     "capacity; 15.29 GiB already allocated; "
     "1.54 GiB free; 20.47 GiB reserved in total by PyTorch)",
     "torch-1.5", GIB(1.93), GIB(23.70), GIB(1.54), NONE, GIB(15.29), GIB(20.47),
     GIB(20.47) - GIB(15.29)},
    {"1.10",
     "RuntimeError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 47.54 GiB total "
     "capacity; 194.45 MiB already allocated; "
     "4.88 MiB free; 686.00 MiB reserved in total by PyTorch) If reserved memory is >> allocated "
     "memory try setting "
     "max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and "
     "PYTORCH_CUDA_ALLOC_CONF",
     "torch-1.10", MIB(2), GIB(47.54), MIB(4.88), NONE, MIB(194.45), MIB(686),
     MIB(686) - MIB(194.45)},
    {"1.10, escaped for a web page",
     "CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 47.54 GiB total capacity; 194.45 MiB "
     "already allocated; 0 bytes free; "
     "686.00 MiB reserved in total by PyTorch) If reserved memory is &gt;&gt; allocated memory try "
     "setting max_split_size_mb",
     "torch-1.10", MIB(2), GIB(47.54), 0, NONE, MIB(194.45), MIB(686), MIB(686) - MIB(194.45)},
    {"2.1",
     "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has a "
     "total capacty of 4.00 GiB of which "
     "41.56 MiB is free. Including non-PyTorch memory, this process has 3.44 GiB memory in use. Of "
     "the allocated memory 2.58 GiB is "
     "allocated by PyTorch, and 1.90 MiB is reserved by PyTorch but unallocated.",
     "torch-2.1", MIB(32), GIB(4), MIB(41.56), GIB(3.44), GIB(2.58), GIB(2.58) + MIB(1.90),
     MIB(1.90)},
    {"2.2 to 2.12", modern, "torch-2.2", GIB(29.39), GIB(139.81), GIB(19.41), GIB(117.07),
     GIB(92.06), GIB(92.06) + GIB(20.79), GIB(20.79)},
    {"HIP",
     "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total "
     "capacity of 15.24 GiB of which 15.09 "
     "GiB is free. Of the allocated memory 0 bytes is allocated by PyTorch, and 0 bytes is "
     "reserved by PyTorch but unallocated.",
     "torch-2.2", GIB(16), GIB(15.24), GIB(15.09), NONE, 0, 0, 0},
    {"private pools",
     "Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of which 514.19 MiB is "
     "free. Process 562167 has 15.25 GiB "
     "memory in use. Of the allocated memory 13.73 GiB is allocated by PyTorch, with 46.00 MiB "
     "allocated in private pools (e.g., CUDA "
     "Graphs), and 736.86 MiB is reserved by PyTorch but unallocated.",
     "torch-2.2", MIB(546), GIB(15.77), MIB(514.19), GIB(15.25), GIB(13.73),
     GIB(13.73) + MIB(736.86), MIB(736.86)},
    {"over 1 EB", "CUDA out of memory. Tried to allocate more than 1EB memory.", "over-1eb", NONE,
     NONE, NONE, NONE, NONE, NONE, NONE},
    {"cudaMallocAsync",
     "torch.OutOfMemoryError: Allocation on device 5 would exceed allowed memory. (out of "
     "memory)\nCurrently allocated     : 54.14 "
     "GiB\nRequested               : 686.41 MiB\nDevice limit            : 79.35 GiB\nFree "
     "(according to CUDA): 27.19 MiB\n"
     "PyTorch limit (set by user-supplied memory fraction)\n                        : "
     "17179869184.00 GiB",
     "cuda-malloc-async", MIB(686.41), GIB(79.35), MIB(27.19), NONE, GIB(54.14), NONE, NONE},
    {"2.12's log line",
     "memory allocation failed with OOM on device 0 while trying to allocate 31556894720 bytes "
     "(free: 20843331584, "
     "total: 150109880320).",
     "torch-prelog", UINT64_C(31556894720), NONE, NONE, NONE, NONE, NONE, NONE},
    {"MPS",
     "RuntimeError: MPS backend out of memory (MPS allocated: 9.02 GB, other allocations: 1.20 MB, "
     "max allowed: 9.07 GB). Tried to "
     "allocate 102.40 MB on private pool.",
     "torch", MIB(102.40), NONE, NONE, NONE, NONE, NONE, NONE},
    {"cublas",
     "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
     "cublas", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"nccl",
     "node:2134736:2285781 [0] include/alloc.h:185 NCCL WARN Failed to CUDA calloc async 6291456 "
     "bytes",
     "nccl", UINT64_C(6291456), NONE, NONE, NONE, NONE, NONE, NONE},
    {"nccl without a size",
     "node:1:2 [0] include/alloc.h:178 NCCL WARN Cuda failure 2 'out of memory'", "nccl", NONE,
     NONE, NONE, NONE, NONE, NONE, NONE},
    {"driver",
     "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
     "cuda-error", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"host, Linux",
     "RuntimeError: [enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate "
     "memory: you tried to allocate "
     "1178729664 bytes. Error code 12 (Cannot allocate memory)",
     "host", UINT64_C(1178729664), NONE, NONE, NONE, NONE, NONE, NONE},
    {"host, Windows",
     "RuntimeError: [enforce fail at C:\\b\\alloc_cpu.cpp:81] data. DefaultCPUAllocator: not "
     "enough memory: you tried to allocate "
     "1981808640 bytes.",
     "host", UINT64_C(1981808640), NONE, NONE, NONE, NONE, NONE, NONE},
    {"numpy",
     "numpy.core._exceptions.MemoryError: Unable to allocate 3.20 GiB for an array with shape "
     "(20000, 21475) and data type "
     "float64",
     "host", GIB(3.20), NONE, NONE, NONE, NONE, NONE, NONE},
    {"TensorFlow",
     "failed to allocate 17.79G (19104890880 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of "
     "memory",
     "cuda-error", UINT64_C(19104890880), NONE, NONE, NONE, NONE, NONE, NONE},
    {"Paddle",
     "Out of memory error on GPU 0. Cannot allocate 2.000244MB memory on GPU 0, 11.000000GB memory "
     "has been allocated and available "
     "memory is only 0.000000B.",
     "other", UINT64_C(2097408), NONE, NONE, NONE, NONE, NONE, NONE},
    {"XLA", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.", "other",
     UINT64_C(2147483648), NONE, NONE, NONE, NONE, NONE, NONE},
    {"llama.cpp",
     "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 12345.50 MiB on device 0: cudaMalloc "
     "failed: out of memory",
     "other", MIB(12345.50), NONE, NONE, NONE, NONE, NONE, NONE},
    {"nothing", "Epoch 3: loss 0.31", "none", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"empty", "", "none", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"only the end",
     "GiB total capacity; 79.11 MiB already allocated; 3.62 MiB free; 86.00 MiB reserved in total "
     "by PyTorch)",
     "torch-1.5", NONE, NONE, MIB(3.62), NONE, MIB(79.11), MIB(86), MIB(86) - MIB(79.11)},
    {"a title, then the message",
     "CUDA out of memory. Tried to allocate 350.00 MiB. GPU 0 has a total capacity of 23.68 GiB of "
     "which 212.81\n\nLog:\n"
     "CUDA out of memory. Tried to allocate 350.00 MiB. GPU 0 has a total capacity of 23.68 GiB of "
     "which 212.81 MiB is free. "
     "Including non-PyTorch memory, this process has 23.20 GiB memory in use. Of the allocated "
     "memory 22.50 GiB is allocated by "
     "PyTorch, and 300.00 MiB is reserved by PyTorch but unallocated.",
     "torch-2.2", MIB(350), GIB(23.68), MIB(212.81), GIB(23.20), GIB(22.50), GIB(22.50) + MIB(300),
     MIB(300)},
    {"the self line says zero",
     "Tried to allocate 1.88 GiB. GPU 3 has a total capacity of 21.96 GiB of which 1.29 GiB is "
     "free. Including non-PyTorch memory, this "
     "process has 0 bytes memory in use. Of the allocated memory 19.02 GiB is allocated by "
     "PyTorch, and 1.32 GiB is reserved by "
     "PyTorch but unallocated.",
     "torch-2.2", GIB(1.88), GIB(21.96), GIB(1.29), 0, GIB(19.02), GIB(19.02) + GIB(1.32),
     GIB(1.32)},
    {"a fraction lost in copying", "CUDA out of memory. Tried to allocate 512.\xE2\x80\x94 MiB",
     "torch", MIB(512), NONE, NONE, NONE, NONE, NONE, NONE},
    {"one letter for the unit, the count behind it",
     "failed to allocate 890.06M (933298432 bytes) from device: HIP_ERROR_OutOfMemory", "other",
     933298432, NONE, NONE, NONE, NONE, NONE, NONE},
    {"one letter for the unit",
     "RESOURCE_EXHAUSTED: Out of memory. Attempting to allocate 5.50G. That was not possible.",
     "other", MIB(5632), NONE, NONE, NONE, NONE, NONE, NONE},
    {"the size stands where the words are repeated",
     "DefaultCPUAllocator: not enough memory\n\nRuntimeError: [enforce fail] . "
     "DefaultCPUAllocator: not enough memory: you tried to allocate 141557760 bytes.",
     "host", 141557760, NONE, NONE, NONE, NONE, NONE, NONE},
    {"a verb", "the server OOMs when it starts", "other", NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    {"cuda in between", "failed because of out of CUDA memory", "other", NONE, NONE, NONE, NONE,
     NONE, NONE, NONE},
    {"allocation on device", "torch.OutOfMemoryError: Allocation on device", "cuda-malloc-async",
     NONE, NONE, NONE, NONE, NONE, NONE, NONE},
};

static struct mp_oom_message read_bytes(const char *text, size_t length)
{
    struct mp_arena arena;
    struct mp_doctor_text prepared;
    struct mp_oom_message m;
    mp_arena_init(&arena);
    ck_assert(mp_doctor_text_init(&prepared, &arena, text, length));
    mp_oom_message_read(&m, &prepared);
    mp_arena_release(&arena);
    return m;
}

static struct mp_oom_message read_text(const char *text)
{
    return read_bytes(text, strlen(text));
}

static void expect(const char *name, const char *what, struct mp_oom_bytes got, uint64_t want)
{
    ck_assert_msg(got.known == (want != NONE), "%s: %s is %s", name, what,
                  got.known ? "read, but not there" : "not read");
    ck_assert_msg(!got.known || got.bytes == want, "%s: %s is %llu, not %llu", name, what,
                  (unsigned long long)got.bytes, (unsigned long long)want);
}

static void expect_row(int i, const struct mp_oom_message *m)
{
    ck_assert_msg(strcmp(mp_oom_format_name(m->format), texts[i].format) == 0,
                  "%s: format %s, not %s", texts[i].name, mp_oom_format_name(m->format),
                  texts[i].format);
    expect(texts[i].name, "requested", m->requested, texts[i].requested);
    expect(texts[i].name, "capacity", m->capacity, texts[i].capacity);
    expect(texts[i].name, "free", m->free, texts[i].free);
    expect(texts[i].name, "this process", m->this_process, texts[i].this_process);
    expect(texts[i].name, "allocated", m->allocated, texts[i].allocated);
    expect(texts[i].name, "reserved", m->reserved, texts[i].reserved);
    expect(texts[i].name, "unallocated", m->unallocated, texts[i].unallocated);
}

START_TEST(reads_every_format)
{
    const struct mp_oom_message m = read_text(texts[_i].text);
    expect_row(_i, &m);
}
END_TEST

/* Wrapped at a column, even in the middle of a number's unit, with something in front of every
 * line. */
static char *wrapped(const char *text, size_t columns, const char *prefix)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    mp_strbuf_addstr(&sb, prefix);
    for (size_t i = 0; text[i] != '\0'; i++) {
        if (i > 0 && i % columns == 0) {
            mp_strbuf_addch(&sb, '\n');
            mp_strbuf_addstr(&sb, prefix);
        }
        mp_strbuf_addch(&sb, text[i]);
    }
    return mp_strbuf_detach(&sb);
}

static const char *const prefixes[] = {
    "",
    "    ",
    "[rank3]: ",
    "[default0]:",
    "E       ",
    "> ",
    "\xE2\x94\x82 ",
    "2023-07-04 17:31:27,755 ",
    "10.0.0.7: ",
    "worker-12: ",
    "(RayTrainWorker pid=123, ip=10.0.0.1) ",
    "\033[31m",
    "[2021-06-23 02:08:42,649] ",
};

START_TEST(wrapping_and_prefixes_do_not_matter)
{
    for (size_t columns = 7; columns < 90; columns += 6) {
        for (size_t p = 0; p < MP_ARRAY_LEN(prefixes); p++) {
            char *const text = wrapped(modern, columns, prefixes[p]);
            ck_assert_ptr_nonnull(text);
            const struct mp_oom_message m = read_text(text);
            ck_assert_msg(m.requested.known && m.requested.bytes == GIB(29.39) &&
                              m.capacity.known && m.capacity.bytes == GIB(139.81) &&
                              m.unallocated.known && m.unallocated.bytes == GIB(20.79) &&
                              m.n_processes == 1 && m.this_process.known &&
                              m.this_process.bytes == GIB(117.07),
                          "columns %zu, prefix '%s'", columns, prefixes[p]);
            free(text);
        }
    }
}
END_TEST

START_TEST(a_cut_message_gives_what_it_still_has)
{
    const size_t n = strlen(modern);
    for (size_t end = 0; end <= n; end++) {
        const struct mp_oom_message m = read_bytes(modern, end);
        ck_assert_msg(!m.requested.known || m.requested.bytes == GIB(29.39), "cut at %zu", end);
        ck_assert_msg(!m.capacity.known || m.capacity.bytes == GIB(139.81), "cut at %zu", end);
        ck_assert_msg(!m.allocated.known || m.allocated.bytes == GIB(92.06), "cut at %zu", end);
    }
    for (size_t begin = 0; begin < n; begin++) {
        if (begin > 0 &&
            (modern[begin - 1] == '.' || (modern[begin - 1] >= '0' && modern[begin - 1] <= '9'))) {
            continue; /* half a number is another number */
        }
        const struct mp_oom_message m = read_bytes(modern + begin, n - begin);
        ck_assert_msg(!m.requested.known || m.requested.bytes == GIB(29.39), "begun at %zu", begin);
        ck_assert_msg(!m.unallocated.known || m.unallocated.bytes == GIB(20.79), "begun at %zu",
                      begin);
    }
}
END_TEST

START_TEST(processes_are_told_apart)
{
    const struct mp_oom_message m = read_text(modern);
    ck_assert_uint_eq(m.n_processes, 1);
    ck_assert_uint_eq(m.processes[0].pid, 1990324);
    ck_assert_uint_eq(m.processes[0].bytes, GIB(3.23));
    ck_assert(m.device_known);
    ck_assert_uint_eq(m.device, 3);
    ck_assert(m.outside.known);
    ck_assert(!m.outside_is_everyone);
    ck_assert_uint_eq(m.outside.bytes, GIB(117.07) - GIB(92.06) - GIB(20.79));
}
END_TEST

START_TEST(a_container_pid_is_this_process)
{
    const struct mp_oom_message m =
        read_text("Tried to allocate 158.00 MiB. GPU 0 has a total capacity of 23.69 GiB of which "
                  "15.69 MiB is free. Process 21422 has 22.57 "
                  "GiB memory in use. Process 77 has 1.00 GiB memory in use. Of the allocated "
                  "memory 21.14 GiB is allocated by PyTorch, and "
                  "910.35 MiB is reserved by PyTorch but unallocated.");
    ck_assert(m.self_by_size);
    ck_assert_uint_eq(m.self_pid, 21422);
    ck_assert_uint_eq(m.this_process.bytes, GIB(22.57));
    ck_assert_uint_eq(m.n_processes, 1);
    ck_assert_uint_eq(m.processes[0].pid, 77);
}
END_TEST

START_TEST(an_absurd_size_is_no_number)
{
    const struct mp_oom_message m =
        read_text("Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 "
                  "bytes is free. Including non-PyTorch memory, "
                  "this process has 17179869184.00 GiB memory in use. Of the allocated memory "
                  "13.67 GiB is allocated by PyTorch, and 9.62 MiB "
                  "is reserved by PyTorch but unallocated.");
    ck_assert(!m.this_process.known);
    ck_assert(m.nvml_absurd);
    ck_assert(!m.outside.known);
    ck_assert(m.windows);
}
END_TEST

START_TEST(zero_for_the_own_process_says_nothing_about_the_context)
{
    const struct mp_oom_message m =
        read_text("Tried to allocate 1.88 GiB. GPU 3 has a total capacity of 21.96 GiB of which "
                  "1.29 GiB is free. Including non-PyTorch memory, "
                  "this process has 0 bytes memory in use. Of the allocated memory 19.02 GiB is "
                  "allocated by PyTorch, and 1.32 GiB is "
                  "reserved by PyTorch but unallocated.");
    ck_assert(m.this_process.known);
    ck_assert(!m.outside.known);
}
END_TEST

START_TEST(the_cap_is_read)
{
    const struct mp_oom_message old =
        read_text("Tried to allocate 50.00 MiB (GPU 0; 11.93 GiB total capacity; 4.56 GiB already "
                  "allocated; 6.90 GiB free; 4.77 GiB allowed; "
                  "4.74 GiB reserved in total by PyTorch)");
    ck_assert(old.allowed.known);
    ck_assert_uint_eq(old.allowed.bytes, GIB(4.77));
    const struct mp_oom_message new =
        read_text("Tried to allocate 40.00 MiB. GPU 0 has a total capacity of 139.81 GiB of which "
                  "138.00 GiB is free. Including non-PyTorch "
                  "memory, this process has 1.50 GiB memory in use. 64.00 MiB allowed; Of the "
                  "allocated memory 40.00 MiB is allocated by "
                  "PyTorch, and 0 bytes is reserved by PyTorch but unallocated.");
    ck_assert(new.allowed.known);
    ck_assert_uint_eq(new.allowed.bytes, MIB(64));
    ck_assert_uint_eq(new.allocated.bytes, MIB(40));
}
END_TEST

START_TEST(the_log_line_of_2_12_makes_the_request_exact)
{
    const struct mp_oom_message m =
        read_text("memory allocation failed with OOM on device 0 while trying to allocate "
                  "31557943296 bytes (free: 20843331584, total: "
                  "150109880320).\nCUDA out of memory. Tried to allocate 29.39 GiB. GPU 0 has a "
                  "total capacity of 139.81 GiB of which 19.41 "
                  "GiB is free.");
    ck_assert_str_eq(mp_oom_format_name(m.format), "torch-2.2");
    ck_assert_uint_eq(m.requested.bytes, UINT64_C(31557943296));
}
END_TEST

START_TEST(many_ranks_are_one_message)
{
    struct mp_strbuf sb = MP_STRBUF_INIT;
    for (int i = 0; i < 8; i++) {
        mp_strbuf_addf(&sb, "[rank%d]: %s\n", i, modern);
    }
    const struct mp_oom_message m = read_bytes(sb.data, sb.len);
    mp_strbuf_release(&sb);
    ck_assert_uint_eq(m.n_found, 8);
    ck_assert_uint_eq(m.requested.bytes, GIB(29.39));
    ck_assert_uint_eq(m.line, 0);
}
END_TEST

START_TEST(utf_16_logs_are_readable)
{
    char wide[2 * sizeof modern + 2];
    size_t n = 0;
    wide[n++] = (char)0xFF;
    wide[n++] = (char)0xFE;
    for (size_t i = 0; i + 1 < sizeof modern; i++) {
        wide[n++] = modern[i];
        wide[n++] = '\0';
    }
    const struct mp_oom_message m = read_bytes(wide, n);
    ck_assert(m.requested.known);
    ck_assert_uint_eq(m.requested.bytes, GIB(29.39));
}
END_TEST

static const struct {
    const char *text;
    bool ok;
    uint64_t bytes;
} sizes[] = {
    {"512bytes", true, 512},
    {"1.50kib", true, 1536},
    {"2.00mib", true, 2097152},
    {"1,024.00mib", true, MIB(1024)},
    {"0bytes", true, 0},
    {"2.5tib", true, UINT64_C(2748779069440)},
    {"1gb", true, GIB(1)},
    {"17179869184.00gib", true, UINT64_MAX},
    {"99999999999999999999999gib", true, UINT64_MAX},
    {"0.123456789123gib", true, UINT64_C(132560718)},
    {"2.00", false, 0},
    {"gib", false, 0},
    {"", false, 0},
    {".5gib", false, 0},
    {"5.gib", false, 0},
};

START_TEST(reads_sizes)
{
    const char *at = sizes[_i].text;
    const char *const end = at + strlen(at);
    uint64_t bytes = 0;
    ck_assert_msg(mp_oom_size_read(&at, end, &bytes) == sizes[_i].ok, "'%s'", sizes[_i].text);
    if (sizes[_i].ok) {
        ck_assert_msg(bytes == sizes[_i].bytes, "'%s' gave %llu", sizes[_i].text,
                      (unsigned long long)bytes);
        ck_assert_ptr_eq(at, end);
    }
}
END_TEST

Suite *suite_doctor_message(void)
{
    Suite *const suite = suite_create("doctor_message");
    TCase *const tcase = tcase_create("core");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, reads_every_format, 0, (int)MP_ARRAY_LEN(texts));
    tcase_add_loop_test(tcase, reads_sizes, 0, (int)MP_ARRAY_LEN(sizes));
    tcase_add_test(tcase, wrapping_and_prefixes_do_not_matter);
    tcase_add_test(tcase, a_cut_message_gives_what_it_still_has);
    tcase_add_test(tcase, processes_are_told_apart);
    tcase_add_test(tcase, a_container_pid_is_this_process);
    tcase_add_test(tcase, an_absurd_size_is_no_number);
    tcase_add_test(tcase, zero_for_the_own_process_says_nothing_about_the_context);
    tcase_add_test(tcase, the_cap_is_read);
    tcase_add_test(tcase, the_log_line_of_2_12_makes_the_request_exact);
    tcase_add_test(tcase, many_ranks_are_one_message);
    tcase_add_test(tcase, utf_16_logs_are_readable);
    suite_add_tcase(suite, tcase);
    return suite;
}
