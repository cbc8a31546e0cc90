// SPDX-License-Identifier: Apache-2.0
// One file of the directory backend: written, read, removed.
//
// Theory of operation. A put writes a temporary file in the folder where the object will be, `.put-` and random digits, syncs it, renames it,
// and syncs every folder from there up to the root: whether a folder was made by this put or by another that has not synced it yet cannot be told, and
// syncing a clean one costs nothing. The temporary lies in the same folder since Landlock refuses renames between folders. Its
// writer holds a lock (flock) on it: what a sweep can lock, nobody writes any more. A delete removes folders that it left empty; a put whose
// folder vanishes under it makes it again.
#include "base/cleanup.h"
#include "hostd/volumed/backend/dir_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WRITE_MAX ((size_t)4 << 20) /* between two looks at `cancelled` */
#define TRIES     16                /* of a put against deletes that remove its folder */

static bool store_is_gone(int root)
{
    struct stat st;
    return fstat(root, &st) < 0 || st.st_nlink == 0;
}

static int fail_errno(int root, struct backend_op *op, const char *verb)
{
    int code = errno;
    if (code == ENOENT && store_is_gone(root))
        return op_fail(op, ENODEV, "%s %s: %s was removed", verb, op->r.name, op->backend->description);
    switch (code) {
    case EDQUOT: code = ENOSPC; break;
    case EPERM:
    case EROFS: code = EACCES; break;
    case ENOENT: return op_fail(op, ENOENT, "%s %s: there is no such object in %s", verb, op->r.name, op->backend->description);
    case EACCES:
    case ENOSPC:
    case EEXIST:
    case ECANCELED: break;
    default: code = EIO;
    }
    return op_fail(op, code, "%s %s in %s: %s", verb, op->r.name, op->backend->description, strerror(errno));
}

/* Beneath `root`, through no symlink. */
static int open_beneath(int root, const char *path, int flags)
{
    struct open_how how = {.flags = (unsigned)flags | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

/* The part before the last '/', "." when there is none; ret_base is what follows. */
static void split(const char *name, char folder[BACKEND_NAME_MAX + 1], const char **ret_base)
{
    const char *slash = strrchr(name, '/');
    size_t len = slash ? (size_t)(slash - name) : 0;
    memcpy(folder, name, len);
    folder[len] = 0;
    if (!len)
        strcpy(folder, ".");
    *ret_base = slash ? slash + 1 : name;
}

/* ---- put ---- */

static int make_folders(int root, const char *folder)
{
    char path[BACKEND_NAME_MAX + 1];
    if (strcmp(folder, ".") == 0)
        return 0;
    for (size_t i = 0;; i++) {
        if (folder[i] && folder[i] != '/')
            continue;
        memcpy(path, folder, i);
        path[i] = 0;
        if (mkdirat(root, path, 0700) < 0 && errno != EEXIST)
            return -1;
        if (!folder[i])
            return 0;
    }
}

/* From `folder` up to and with the root. */
static int sync_folders(int root, const char *folder)
{
    char path[BACKEND_NAME_MAX + 1];
    strcpy(path, folder);
    while (strcmp(path, ".") != 0) {
        AUTO_CLOSE int fd = open_beneath(root, path, O_RDONLY | O_DIRECTORY);
        if (fd < 0 || fsync(fd) < 0)
            return -1;
        char *slash = strrchr(path, '/');
        if (slash)
            *slash = 0;
        else
            strcpy(path, ".");
    }
    return fsync(root);
}

static int write_some(int fd, const char *p, size_t len)
{
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return -1;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

static int write_all(int fd, const struct backend_op *op)
{
    for (size_t i = 0; i < op->r.iov_count; i++) {
        const char *p = op->r.iov[i].iov_base;
        for (size_t left = op->r.iov[i].iov_len; left;) {
            size_t n = left < WRITE_MAX ? left : WRITE_MAX;
            if (atomic_load(&op->cancelled)) {
                errno = ECANCELED;
                return -1;
            }
            if (write_some(fd, p, n) < 0)
                return -1;
            p += n;
            left -= n;
        }
    }
    return fsync(fd);
}

static int open_temporary(int folder, char name[32])
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return -1;
    snprintf(name, 32, ".put-%016llx", (unsigned long long)random);
    int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        unlinkat(folder, name, 0); /* a sweep was faster: it removes it */
        close(fd);
        return -1;
    }
    return fd;
}

static int rename_into_place(int folder, const char *from, const char *to, unsigned flags)
{
    if (!(flags & BACKEND_IF_ABSENT))
        return renameat(folder, from, folder, to);
    int rc = renameat2(folder, from, folder, to, RENAME_NOREPLACE);
    if (rc == 0 || errno != EINVAL)
        return rc;
    if (linkat(folder, from, folder, to, 0) < 0) /* a file system without RENAME_NOREPLACE */
        return -1;
    return unlinkat(folder, from, 0);
}

static int put_once(int root, struct backend_op *op)
{
    char folder_name[BACKEND_NAME_MAX + 1], temporary[32];
    const char *base;
    split(op->r.name, folder_name, &base);
    if (make_folders(root, folder_name) < 0)
        return -1;
    AUTO_CLOSE int folder = open_beneath(root, folder_name, O_RDONLY | O_DIRECTORY);
    AUTO_CLOSE int fd = folder < 0 ? -1 : open_temporary(folder, temporary);
    if (fd < 0)
        return -1;
    if (write_all(fd, op) < 0 || rename_into_place(folder, temporary, base, op->r.flags) < 0) {
        int code = errno;
        unlinkat(folder, temporary, 0);
        errno = code;
        return -1;
    }
    return sync_folders(root, folder_name);
}

void dir_put(int root, struct backend_op *op)
{
    if ((op->r.flags & BACKEND_IF_ABSENT) && faccessat(root, op->r.name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST; /* before all of it is written in vain */
        fail_errno(root, op, "put");
        return;
    }
    for (int i = 0; i < TRIES; i++) {
        if (put_once(root, op) == 0)
            return;
        if (errno != ENOENT && errno != EAGAIN) /* its folder was removed, or its temporary file taken by a sweep */
            break;
    }
    fail_errno(root, op, "put");
}

/* ---- get, stat, delete ---- */

static int open_object(int root, struct backend_op *op, const char *verb, struct stat *st)
{
    int fd = open_beneath(root, op->r.name, O_RDONLY | O_NOCTTY | O_NONBLOCK);
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP || errno == EXDEV))
        errno = ENOENT;
    if (fd < 0)
        return fail_errno(root, op, verb);
    if (fstat(fd, st) == 0 && S_ISREG(st->st_mode))
        return fd;
    close(fd);
    errno = ENOENT;
    return fail_errno(root, op, verb);
}

void dir_get(int root, struct backend_op *op)
{
    struct stat st;
    AUTO_CLOSE int fd = open_object(root, op, "get", &st);
    if (fd < 0)
        return;
    op->result.total = (uint64_t)st.st_size;
    while (op->result.got < op->r.size) {
        size_t left = op->r.size - op->result.got, want = left < WRITE_MAX ? left : WRITE_MAX;
        if (atomic_load(&op->cancelled)) {
            errno = ECANCELED;
            fail_errno(root, op, "get");
            return;
        }
        ssize_t n = pread(fd, (char *)op->r.buf + op->result.got, want, (off_t)(op->r.offset + op->result.got));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            fail_errno(root, op, "get");
        if (n <= 0)
            return;
        op->result.got += (size_t)n;
    }
}

void dir_stat(int root, struct backend_op *op)
{
    struct stat st;
    AUTO_CLOSE int fd = open_object(root, op, "look up", &st);
    if (fd < 0)
        return;
    op->result.total = (uint64_t)st.st_size;
    op->result.modified = st.st_mtime;
}

/* Best effort: a folder that is not empty stays. */
static void remove_empty_folders(int root, char *folder)
{
    while (strcmp(folder, ".") != 0 && unlinkat(root, folder, AT_REMOVEDIR) == 0) {
        char *slash = strrchr(folder, '/');
        if (slash)
            *slash = 0;
        else
            strcpy(folder, ".");
    }
}

void dir_delete(int root, struct backend_op *op)
{
    char folder_name[BACKEND_NAME_MAX + 1];
    const char *base;
    split(op->r.name, folder_name, &base);
    AUTO_CLOSE int folder = open_beneath(root, folder_name, O_RDONLY | O_DIRECTORY);
    if ((folder < 0 || unlinkat(folder, base, 0) < 0 || fsync(folder) < 0) && errno != ENOENT && errno != ENOTDIR && errno != EISDIR) {
        fail_errno(root, op, "delete");
        return;
    }
    remove_empty_folders(root, folder_name);
}

/* Writes and removes a file, as a put would. */
void dir_check(int root, struct backend_op *op)
{
    char name[32];
    if (store_is_gone(root)) {
        op_fail(op, ENODEV, "%s was removed", op->backend->description);
        return;
    }
    AUTO_CLOSE int fd = open_temporary(root, name);
    if (fd < 0 || unlinkat(root, name, 0) < 0)
        op_fail(op, errno == ENOSPC ? ENOSPC : EACCES, "write in %s: %s", op->backend->description, strerror(errno));
}
