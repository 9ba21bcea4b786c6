/* SPDX-License-Identifier: MIT */
/* Files: plain and gzip, damaged and oversized, written as a whole. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/arena.h"
#include "base/units.h"
#include "suites.h"

static char folder[] = "/tmp/memplan-test-XXXXXX";
static char path[64];
static struct memplan_error err;

static void make_folder(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/file", folder);
}

static void remove_folder(void)
{
    unlink(path);
    ck_assert_msg(rmdir(folder) == 0, "something was left behind in %s", folder);
}

static void put_raw(const void *bytes, size_t n)
{
    FILE *const file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, n, file), n);
    ck_assert_int_eq(fclose(file), 0);
}

static void put_gzip(const char *mode, const void *bytes, size_t n)
{
    gzFile const gz = gzopen(path, mode);
    ck_assert_ptr_nonnull(gz);
    ck_assert_int_eq(gzwrite(gz, bytes, (unsigned)n), (int)n);
    ck_assert_int_eq(gzclose(gz), Z_OK);
}

static off_t file_size(void)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_size;
}

static enum memplan_status get(uint64_t limit_bytes, struct mp_strbuf *out)
{
    return mp_file_read(path, limit_bytes, out, &err);
}

START_TEST(reads_plain_files)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    put_raw("a\0b\n", 4);
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(out.len, 4);
    ck_assert_mem_eq(out.data, "a\0b\n", 5);
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_OK); /* appends */
    ck_assert_uint_eq(out.len, 8);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(reads_empty_files)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    put_raw("", 0);
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(mp_strbuf_text(&out), "");
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(unpacks_gzip_of_several_members)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    put_gzip("wb", "first,", 6);
    put_gzip("ab", "second", 6);
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(mp_strbuf_text(&out), "first,second");
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(a_cut_gzip_is_refused)
{
    static char text[5000];
    struct mp_strbuf out = MP_STRBUF_INIT;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i % 251);
    put_gzip("wb", text, sizeof(text));
    const off_t size = file_size();
    for (off_t cut = 1; cut < 12; cut += 2) {
        ck_assert_int_eq(truncate(path, size - cut), 0);
        mp_strbuf_reset(&out);
        ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_INPUT);
        ck_assert_ptr_nonnull(strstr(err.text, "ends too early"));
        ck_assert_ptr_nonnull(strstr(err.text, path));
    }
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(a_damaged_gzip_is_refused)
{
    static char text[5000];
    struct mp_strbuf out = MP_STRBUF_INIT;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * i % 251);
    put_gzip("wb", text, sizeof(text));
    FILE *const file = fopen(path, "r+b");
    ck_assert_int_eq(fseek(file, -6, SEEK_END), 0); /* inside the checksum */
    const int c = fgetc(file);
    ck_assert_int_eq(fseek(file, -6, SEEK_END), 0);
    fputc(c ^ 1, file);
    fclose(file);
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_INPUT);
    ck_assert_ptr_nonnull(strstr(err.text, "damaged gzip"));
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(a_gzip_bomb_ends_at_the_limit)
{
    static const char zeros[1 << 20];
    struct mp_strbuf out = MP_STRBUF_INIT;
    gzFile const gz = gzopen(path, "wb9");
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(gzwrite(gz, zeros, sizeof(zeros)), (int)sizeof(zeros));
    gzclose(gz);
    ck_assert_int_lt((int)file_size(), 100000);
    ck_assert_int_eq(get(3 * MP_MIB, &out), MEMPLAN_STATUS_RANGE);
    ck_assert_ptr_nonnull(strstr(err.text, "holds more than 3.00 MiB"));
    ck_assert_uint_le(out.len, 3 * MP_MIB);
    mp_strbuf_reset(&out);
    ck_assert_int_eq(get(20 * MP_MIB, &out), MEMPLAN_STATUS_OK);
    ck_assert_uint_eq(out.len, 20 * MP_MIB);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(the_limit_is_inclusive)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    put_raw("12345", 5);
    ck_assert_int_eq(get(5, &out), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(get(4, &out), MEMPLAN_STATUS_RANGE);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(missing_files_and_folders_are_io_errors)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "No such file"));
    ck_assert_int_eq(mp_file_read(folder, 0, &out, &err), MEMPLAN_STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "it is a directory"));
    ck_assert_int_eq(mp_file_read(folder, 0, &out, NULL), MEMPLAN_STATUS_IO);
    ck_assert_int_eq(mp_file_write(folder, "x", 1, &err), MEMPLAN_STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "it is a directory"));
    ck_assert_int_eq(mp_file_write("/nonexistent/x", "x", 1, &err), MEMPLAN_STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "cannot write '/nonexistent/x'"));
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(reads_standard_input)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    put_gzip("wb", "piped", 5);
    const int fd = open(path, O_RDONLY);
    ck_assert_int_eq(dup2(fd, STDIN_FILENO), STDIN_FILENO);
    close(fd);
    ck_assert_int_eq(mp_file_read("-", 0, &out, &err), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(mp_strbuf_text(&out), "piped");
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(writes_and_replaces)
{
    struct mp_strbuf out = MP_STRBUF_INIT;
    ck_assert_int_eq(mp_file_write(path, "one", 3, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(mp_file_write(path, "second", 6, &err), MEMPLAN_STATUS_OK);
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0640);
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(mp_strbuf_text(&out), "second");
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(a_link_stays_a_link)
{
    char link_path[80];
    struct stat st;
    struct mp_strbuf out = MP_STRBUF_INIT;
    snprintf(link_path, sizeof(link_path), "%s/link", folder);
    put_raw("old", 3);
    ck_assert_int_eq(symlink(path, link_path), 0);
    ck_assert_int_eq(mp_file_write(link_path, "new", 3, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(lstat(link_path, &st), 0);
    ck_assert(S_ISLNK(st.st_mode));
    ck_assert_int_eq(get(0, &out), MEMPLAN_STATUS_OK);
    ck_assert_str_eq(mp_strbuf_text(&out), "new");
    unlink(link_path);
    mp_strbuf_release(&out);
}
END_TEST

START_TEST(devices_are_written_in_place)
{
    struct stat st;
    ck_assert_int_eq(mp_file_write("/dev/null", "x", 1, &err), MEMPLAN_STATUS_OK);
    ck_assert_int_eq(stat("/dev/null", &st), 0);
    ck_assert(S_ISCHR(st.st_mode));
}
END_TEST

START_TEST(a_full_device_is_an_io_error)
{
    struct stat st;
    if (stat("/dev/full", &st) != 0)
        return;
    ck_assert_int_eq(mp_file_write("/dev/full", "x", 1, &err), MEMPLAN_STATUS_IO);
    ck_assert_ptr_nonnull(strstr(err.text, strerror(ENOSPC)));
}
END_TEST

START_TEST(reads_in_blocks)
{
    char text[10];
    put_gzip("wb", "0123456789abcdef", 16);
    struct mp_reader *const reader = mp_reader_open(path, &err);
    ck_assert_ptr_nonnull(reader);
    ck_assert_int_eq(mp_reader_read(reader, text, 10, &err), 10);
    ck_assert_mem_eq(text, "0123456789", 10);
    ck_assert_int_eq(mp_reader_read(reader, text, 10, &err), 6);
    ck_assert_mem_eq(text, "abcdef", 6);
    ck_assert_int_eq(mp_reader_read(reader, text, 10, &err), 0);
    mp_reader_close(reader);
    mp_reader_close(NULL);
}
END_TEST

START_TEST(every_failing_allocation_is_reported)
{
    static char text[600000];
    memset(text, 'x', sizeof(text));
    put_raw(text, sizeof(text));
    for (uint64_t n = 1;; n++) {
        struct memplan_error problem = {MEMPLAN_STATUS_OK, ""};
        struct mp_strbuf out = MP_STRBUF_INIT;
        mp_alloc_fail_after(n);
        const enum memplan_status status = mp_file_read(path, 0, &out, &problem);
        mp_alloc_fail_after(0);
        mp_strbuf_release(&out);
        ck_assert_int_eq(problem.status, status);
        if (status == MEMPLAN_STATUS_OK) {
            ck_assert_uint_gt(n, 3);
            break;
        }
        ck_assert_int_eq(status, MEMPLAN_STATUS_NOMEM);
    }
    mp_alloc_fail_after(1);
    ck_assert_int_eq(mp_file_write(path, "x", 1, &err), MEMPLAN_STATUS_NOMEM);
    ck_assert_int_eq((int)file_size(), (int)sizeof(text));
}
END_TEST

Suite *suite_base_file(void)
{
    Suite *const suite = suite_create("base_file");
    TCase *const tc = tcase_create("file");
    tcase_add_checked_fixture(tc, make_folder, remove_folder);
    tcase_add_test(tc, reads_plain_files);
    tcase_add_test(tc, reads_empty_files);
    tcase_add_test(tc, unpacks_gzip_of_several_members);
    tcase_add_test(tc, a_cut_gzip_is_refused);
    tcase_add_test(tc, a_damaged_gzip_is_refused);
    tcase_add_test(tc, a_gzip_bomb_ends_at_the_limit);
    tcase_add_test(tc, the_limit_is_inclusive);
    tcase_add_test(tc, missing_files_and_folders_are_io_errors);
    tcase_add_test(tc, reads_standard_input);
    tcase_add_test(tc, writes_and_replaces);
    tcase_add_test(tc, a_link_stays_a_link);
    tcase_add_test(tc, devices_are_written_in_place);
    tcase_add_test(tc, a_full_device_is_an_io_error);
    tcase_add_test(tc, reads_in_blocks);
    tcase_add_test(tc, every_failing_allocation_is_reported);
    suite_add_tcase(suite, tc);
    return suite;
}
