// SPDX-License-Identifier: Apache-2.0
// Small files, whole: see file.h.
#include "hostd/credd/file.h"

#include "base/cleanup.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int sync_folder(const char *path, struct err *e)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    slash[slash == folder] = 0;
    AUTO_CLOSE int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 || fsync(fd) < 0 ? err_sys(e, "write %s to the disk", folder) : 0;
}

static int write_all(int fd, const char *bytes, size_t len)
{
    while (len) {
        ssize_t n = write(fd, bytes, len);
        if (n < 0)
            return -errno;
        bytes += n;
        len -= (size_t)n;
    }
    return 0;
}

int file_replace(const char *path, const void *bytes, size_t len, mode_t mode, struct err *e)
{
    char fresh[PATH_MAX];
    if (snprintf(fresh, sizeof fresh, "%s.new", path) >= (int)sizeof fresh)
        return err_set(e, ENAMETOOLONG, "%s is too long", path);
    unlink(fresh);
    AUTO_CLOSE int fd = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    int rc = fd < 0 ? -errno : write_all(fd, bytes, len);
    if (rc == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0 || rename(fresh, path) < 0))
        rc = -errno;
    if (rc < 0) {
        unlink(fresh);
        return err_set(e, -rc, "write %s: %s", path, strerror(-rc));
    }
    return sync_folder(path, e);
}

int file_remove(const char *path, struct err *e)
{
    if (unlink(path) < 0 && errno != ENOENT)
        return err_sys(e, "remove %s", path);
    return sync_folder(path, e);
}
