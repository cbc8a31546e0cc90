// SPDX-License-Identifier: Apache-2.0
// Temporary directories: see scratch.h.
#include "spacectl/scratch.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_NAME_MAX 400 /* leaves room for the names in it */

int scratch_create(struct scratch *out, struct err *e)
{
    const char *parent = getenv("TMPDIR");
    if (!parent || !*parent)
        parent = "/var/tmp";
    if (strlen(parent) > DIR_NAME_MAX - 32) {
        out->path[0] = 0;
        return err_set(e, ENAMETOOLONG, "TMPDIR is too long: %s", parent);
    }
    snprintf(out->path, sizeof out->path, "%s/spacectl-XXXXXX", parent);
    if (!mkdtemp(out->path)) {
        out->path[0] = 0;
        return err_sys(e, "cannot make a temporary directory in %s", parent);
    }
    return 0;
}

void scratch_path(const struct scratch *s, const char *name, char out[SCRATCH_PATH_MAX])
{
    snprintf(out, SCRATCH_PATH_MAX, "%.*s/%.64s", DIR_NAME_MAX, s->path, name);
}

int scratch_file(const struct scratch *s, const char *name, struct err *e)
{
    char path[SCRATCH_PATH_MAX];
    scratch_path(s, name, path);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return fd < 0 ? err_sys(e, "cannot make %s", path) : fd;
}

void scratch_first_line(const struct scratch *s, const char *name, char *out, unsigned size)
{
    char path[SCRATCH_PATH_MAX];
    scratch_path(s, name, path);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, out, size - 1);
    out[n < 0 ? 0 : n] = 0;
    out[strcspn(out, "\n")] = 0;
}

static void remove_children(int parent, const char *name, dev_t device)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == EACCES && fchmodat(parent, name, 0700, 0) == 0) /* a tar may hold directories without permissions */
        fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (!dir || fstat(fd, &st) < 0 || st.st_dev != device) {
        if (dir)
            closedir(dir);
        else if (fd >= 0)
            close(fd);
        return;
    }
    fchmod(fd, 0700);
    const struct dirent *entry;
    while ((entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (unlinkat(fd, entry->d_name, 0) < 0 && (errno == EISDIR || errno == EPERM)) {
            remove_children(fd, entry->d_name, device);
            unlinkat(fd, entry->d_name, AT_REMOVEDIR);
        }
    }
    closedir(dir);
}

void scratch_destroy(struct scratch *s)
{
    struct stat st;
    if (!s->path[0])
        return;
    if (lstat(s->path, &st) == 0)
        remove_children(AT_FDCWD, s->path, st.st_dev);
    rmdir(s->path);
    s->path[0] = 0;
}
