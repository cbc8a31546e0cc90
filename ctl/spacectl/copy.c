// SPDX-License-Identifier: Apache-2.0
// Copying files and trees: see copy.h.
#include "spacectl/copy.h"

#include "base/cleanup.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK (1u << 20)
#define BLOCK (1u << 17)

static int write_at(int out, const char *data, size_t len, off_t at)
{
    while (len) {
        ssize_t n = pwrite(out, data, len, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        data += n;
        len -= (size_t)n;
        at += n;
    }
    return 0;
}

/* A block of zeros is left a hole: what comes from a file system that cannot tell its holes would
 * else fill the disk. */
static bool is_zero(const char *buf, size_t len)
{
    return len && buf[0] == 0 && memcmp(buf, buf + 1, len - 1) == 0;
}

static int write_sparse(int out, const char *buf, size_t len, off_t at)
{
    for (size_t pos = 0; pos < len; pos += BLOCK) {
        size_t part = len - pos < BLOCK ? len - pos : BLOCK;
        int rc = is_zero(buf + pos, part) ? 0 : write_at(out, buf + pos, part, at + (off_t)pos);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Copies [*at, end), less when the file ends before. *at moves; 1 at the end of the file, 0, or
 * -errno (*what says doing what). */
static int copy_range(int in, int out, off_t *at, off_t end, char *buf, const char **what)
{
    while (*at < end) {
        size_t want = end - *at < (off_t)CHUNK ? (size_t)(end - *at) : CHUNK;
        ssize_t n = pread(in, buf, want, *at);
        if (n < 0 && errno == EINTR)
            continue;
        *what = "reading";
        if (n < 0)
            return -errno;
        if (n == 0)
            return 1;
        *what = "writing";
        int rc = write_sparse(out, buf, (size_t)n, *at);
        if (rc < 0)
            return rc;
        *at += n;
    }
    return 0;
}

/* The next range that holds data, at or behind `at`. False when there is none up to the end of the
 * file. */
static bool next_data(int in, off_t at, off_t *start, off_t *end)
{
    *start = lseek(in, at, SEEK_DATA);
    if (*start < 0 && errno == ENXIO)
        return false;
    *end = *start < 0 ? -1 : lseek(in, *start, SEEK_HOLE);
    if (*start < 0 || *end < 0) { /* a file system that knows no holes */
        *start = at;
        *end = LLONG_MAX;
    }
    return true;
}

/* Holes at the end leave the file short. */
static int extend(int out, off_t size, const char **what)
{
    struct stat st;
    *what = "writing";
    if (fstat(out, &st) < 0 || (st.st_size < size && ftruncate(out, size) < 0))
        return -errno;
    return 0;
}

int copy_data(int in, int out, const char *name, struct err *e)
{
    AUTO_FREE char *buf = malloc(CHUNK);
    struct stat st;
    const char *what = "reading";
    off_t at = 0, start, end;
    int rc = buf ? 0 : -ENOMEM;
    if (rc == 0 && fstat(in, &st) < 0)
        rc = -errno;
    posix_fadvise(in, 0, 0, POSIX_FADV_SEQUENTIAL);
    if (rc == 0 && st.st_size == 0) /* generated files say 0 and hold something */
        rc = copy_range(in, out, &at, LLONG_MAX, buf, &what);
    while (rc == 0 && st.st_size && next_data(in, at, &start, &end)) {
        at = start;
        rc = copy_range(in, out, &at, end, buf, &what);
    }
    if (rc >= 0)
        rc = extend(out, at > st.st_size ? at : st.st_size, &what);
    return rc < 0 ? err_set(e, -rc, "%s %s: %s", what, name, strerror(-rc)) : 0;
}

struct copier {
    struct copy_report *report;
    char path[PATH_MAX]; /* of what is being copied, for messages */
    mode_t umask;
};

static void complain(struct copier *c, const char *what, int code)
{
    fprintf(stderr, "spacectl: cannot %s %s: %s\n", what, c->path, strerror(code));
    c->report->failed++;
}

static void copy_file_at(struct copier *c, int from, int to, const char *name)
{
    struct stat st;
    struct err e = {0};
    AUTO_CLOSE int in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) < 0) {
        complain(c, "read", errno);
        return;
    }
    if (!S_ISREG(st.st_mode)) {
        complain(c, "read", ESTALE); /* it was a regular file a moment ago */
        return;
    }
    AUTO_CLOSE int out = openat(to, name, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, st.st_mode & 0777);
    if (out < 0) {
        complain(c, "write the copy of", errno);
        return;
    }
    if (copy_data(in, out, c->path, &e) < 0) {
        fprintf(stderr, "spacectl: %s\n", e.msg);
        c->report->failed++;
    }
}

static void copy_link_at(struct copier *c, int from, int to, const char *name)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(from, name, target, sizeof target - 1);
    if (n < 0) {
        complain(c, "read the link", errno);
        return;
    }
    target[n] = 0;
    if (symlinkat(target, to, name) == 0)
        return;
    struct stat st;
    bool replace = errno == EEXIST && fstatat(to, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISDIR(st.st_mode) && unlinkat(to, name, 0) == 0;
    if (!replace || symlinkat(target, to, name) < 0)
        complain(c, "make the copy of the link", errno);
}

static int copy_children(struct copier *c, int from, int to, int depth, struct err *e);

static int copy_dir_at(struct copier *c, int from, int to, const char *name, int depth, struct err *e)
{
    struct stat st;
    AUTO_CLOSE int in = openat(from, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (in < 0 || fstat(in, &st) < 0) {
        complain(c, "open", errno);
        return 0;
    }
    /* Writable while it is filled; its own mode comes last. */
    bool made = mkdirat(to, name, (st.st_mode & 0777) | 0700) == 0;
    AUTO_CLOSE int out = made || errno == EEXIST ? openat(to, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC) : -1;
    if (out < 0) {
        complain(c, "make the copy of", errno);
        return 0;
    }
    int rc = copy_children(c, in, out, depth + 1, e);
    if (made && (st.st_mode & 0700) != 0700)
        fchmod(out, st.st_mode & 0777 & ~c->umask);
    return rc;
}

static int copy_entry(struct copier *c, int from, int to, const char *name, int depth, struct err *e)
{
    struct stat st;
    if (fstatat(from, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        complain(c, "stat", errno);
    else if (S_ISDIR(st.st_mode))
        return copy_dir_at(c, from, to, name, depth, e);
    else if (S_ISREG(st.st_mode))
        copy_file_at(c, from, to, name);
    else if (S_ISLNK(st.st_mode))
        copy_link_at(c, from, to, name);
    else {
        fprintf(stderr, "spacectl: skipped %s: neither file, directory nor link\n", c->path);
        c->report->skipped++;
    }
    return 0;
}

static int copy_children(struct copier *c, int from, int to, int depth, struct err *e)
{
    if (depth > COPY_DEPTH_MAX)
        return err_set(e, ELOOP, "%s: more than %d levels deep", c->path, COPY_DEPTH_MAX);
    int dup_fd = fcntl(from, F_DUPFD_CLOEXEC, 0);
    DIR *dir = dup_fd < 0 ? NULL : fdopendir(dup_fd);
    if (!dir) {
        if (dup_fd >= 0)
            close(dup_fd);
        return err_sys(e, "cannot list %s", c->path);
    }
    size_t base = strlen(c->path);
    const struct dirent *entry;
    int rc = 0;
    while (rc == 0 && (errno = 0, entry = readdir(dir))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        snprintf(c->path + base, sizeof c->path - base, "/%s", entry->d_name);
        rc = copy_entry(c, from, to, entry->d_name, depth, e);
        c->path[base] = 0;
    }
    if (rc == 0 && errno)
        complain(c, "list", errno);
    closedir(dir);
    return rc;
}

int copy_tree(int from, int to, const char *name, struct copy_report *report, struct err *e)
{
    struct copier c = {.report = report, .umask = umask(0)};
    umask(c.umask);
    snprintf(c.path, sizeof c.path, "%s", name);
    return copy_children(&c, from, to, 0, e);
}
