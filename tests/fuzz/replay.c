// SPDX-License-Identifier: Apache-2.0
// Runs a fuzz target over every file of the directories in argv, so that a corpus is an ordinary
// test.
#include "fuzz/target.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

/* An exact-size copy: sanitizers see a read past its end. */
static int replay(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) < 0) {
        perror(path);
        exit(1);
    }
    long size = ftell(f);
    uint8_t *data = malloc((size_t)size + 1);
    rewind(f);
    if (size < 0 || !data || fread(data, 1, (size_t)size, f) != (size_t)size) {
        perror(path);
        exit(1);
    }
    fclose(f);
    data = realloc(data, size ? (size_t)size : 1);
    fprintf(stderr, "%s\n", path); /* the last one printed is the one that failed */
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    return 1;
}

static int replay_directory(const char *dir)
{
    DIR *d = opendir(dir);
    int files = 0;
    if (!d) {
        perror(dir);
        exit(1);
    }
    for (struct dirent *e; (e = readdir(d));) {
        char path[4096];
        if (e->d_name[0] == '.')
            continue;
        if ((size_t)snprintf(path, sizeof path, "%s/%s", dir, e->d_name) >= sizeof path)
            exit(1);
        files += replay(path);
    }
    closedir(d);
    return files;
}

int main(int argc, char **argv)
{
    int files = 0;
    for (int i = 1; i < argc; i++)
        files += replay_directory(argv[i]);
    fprintf(stderr, "%d files replayed\n", files);
    return files == 0;
}
