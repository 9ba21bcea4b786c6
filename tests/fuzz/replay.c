/* SPDX-License-Identifier: MIT */
/*
 * Stands in for libFuzzer: feeds files, and the files of folders, to a fuzz target once. A crash
 * ends the program; the test runner then counts a failure.
 */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "base/strbuf.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static int n_passed, n_failed;

static void replay_file(const char *path)
{
    FILE *const file = fopen(path, "rb");
    struct mp_strbuf content = MP_STRBUF_INIT;
    char block[4096];
    size_t n = 0;
    if (!file) {
        printf("failed: %s: %s\n", path, strerror(errno));
        n_failed++;
        return;
    }
    while ((n = fread(block, 1, sizeof(block), file)) > 0)
        mp_strbuf_add(&content, block, n);
    fclose(file);
    /* an exact copy, so that reading beyond the end is seen */
    uint8_t *const bytes = malloc(content.len ? content.len : 1);
    if (bytes && content.len)
        memcpy(bytes, content.data, content.len);
    if (bytes && !content.failed && LLVMFuzzerTestOneInput(bytes, content.len) == 0)
        n_passed++;
    else
        n_failed++;
    free(bytes);
    mp_strbuf_release(&content);
}

static void replay_folder(const char *path)
{
    DIR *const folder = opendir(path);
    const struct dirent *entry = NULL;
    if (!folder) {
        printf("failed: %s: %s\n", path, strerror(errno));
        n_failed++;
        return;
    }
    while ((entry = readdir(folder))) {
        if (entry->d_name[0] == '.')
            continue;
        struct mp_strbuf name = MP_STRBUF_INIT;
        mp_strbuf_addf(&name, "%s/%s", path, entry->d_name);
        replay_file(mp_strbuf_text(&name));
        mp_strbuf_release(&name);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode))
            replay_folder(argv[i]);
        else
            replay_file(argv[i]);
    }
    printf("%d passed, %d failed, 0 skipped\n", n_passed, n_failed);
    return n_failed ? 1 : 0;
}
