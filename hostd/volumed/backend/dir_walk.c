// SPDX-License-Identifier: Apache-2.0
// Walks the folders of the directory backend: lists objects in the order of their names, finds temporary files that nobody writes any more.
//
// Theory of operation. Names are ordered by strcmp over the whole name, '/' included: so a folder is sorted among its siblings as if its name
// ended in '/' ("a-b" before "a/c"). A folder is read whole, sorted, and walked, the deepest first; what cannot hold names of the page is not
// read. Folders and files that vanish meanwhile are skipped: a list that others change while it is made has what was there all the time.
#include "base/cleanup.h"
#include "hostd/volumed/backend/dir_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DEPTH_MAX (BACKEND_NAME_MAX / 2 + 1)

struct entries {
    char **names; /* folders end in '/' */
    size_t count, size;
};

struct walk {
    struct backend_op *op;
    struct page page;
    char path[BACKEND_NAME_MAX + 2]; /* of the folder, "" or ending in '/' */
    /* Called for each file; 0 to go on, 1 to end the walk. */
    int (*file)(struct walk *w, int folder, const char *name);
};

static void entries_free(struct entries *l)
{
    for (size_t i = 0; i < l->count; i++)
        free(l->names[i]);
    free(l->names);
}

static int entries_add(struct entries *l, const char *name, bool folder)
{
    size_t len = strlen(name);
    if (l->count == l->size) {
        size_t n = l->size ? l->size * 2 : 64;
        char **names = reallocarray(l->names, n, sizeof *names);
        if (!names)
            return -1;
        l->names = names;
        l->size = n;
    }
    char *copy = malloc(len + 2);
    if (!copy)
        return -1;
    memcpy(copy, name, len);
    strcpy(copy + len, folder ? "/" : "");
    l->names[l->count++] = copy;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool is_folder(int fd, const struct dirent *d)
{
    struct stat st;
    if (d->d_type != DT_UNKNOWN)
        return d->d_type == DT_DIR;
    return fstatat(fd, d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* `fd` stays the caller's. */
static int entries_read(int fd, struct entries *out)
{
    int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = own < 0 ? NULL : fdopendir(own);
    int rc = 0;
    if (!dir) {
        if (own >= 0)
            close(own);
        return -1;
    }
    errno = 0;
    for (struct dirent *d; rc == 0 && (d = readdir(dir));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0)
            rc = entries_add(out, d->d_name, is_folder(fd, d));
    if (errno)
        rc = -1;
    int code = errno;
    closedir(dir);
    errno = code;
    if (out->count)
        qsort(out->names, out->count, sizeof *out->names, by_name);
    return rc;
}

/* Whether names that begin with w->path may begin with the prefix and come after `after`. */
static bool worth_reading(const struct walk *w)
{
    const char *prefix = w->op->r.name, *after = w->op->r.after;
    size_t len = strlen(w->path), plen = strlen(prefix);
    if (strncmp(w->path, prefix, len < plen ? len : plen) != 0)
        return false;
    return strncmp(w->path, after, len) >= 0;
}

static int walk_folder(struct walk *w, int fd, unsigned depth);

static int walk_entry(struct walk *w, int fd, const char *name, unsigned depth)
{
    size_t len = strlen(w->path), n = strlen(name);
    int rc = 0;
    if (name[n - 1] != '/')
        return w->file(w, fd, name);
    if (name[0] == '.' || len + n > BACKEND_NAME_MAX || depth == DEPTH_MAX)
        return 0;
    strcpy(w->path + len, name);
    if (worth_reading(w)) {
        AUTO_CLOSE int folder = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        rc = folder >= 0 ? walk_folder(w, folder, depth + 1) : errno == ENOENT ? 0 : -1;
    }
    w->path[len] = 0;
    return rc;
}

/* 0, 1 when `file` ended it, -1 with errno. */
static int walk_folder(struct walk *w, int fd, unsigned depth)
{
    struct entries l = {0};
    int rc = entries_read(fd, &l);
    for (size_t i = 0; rc == 0 && i < l.count; i++) {
        if (atomic_load(&w->op->cancelled)) {
            errno = ECANCELED;
            rc = -1;
        } else {
            rc = walk_entry(w, fd, l.names[i], depth);
        }
    }
    int code = errno;
    entries_free(&l);
    errno = code;
    return rc;
}

static void walk_failed(struct backend_op *op, const char *verb)
{
    int code = errno == ECANCELED || errno == EACCES || errno == ENOMEM ? errno : EIO;
    op_fail(op, code, "%s %s: %s", verb, op->backend->description, strerror(errno));
}

/* ---- list ---- */

static int list_file(struct walk *w, int folder, const char *name)
{
    char full[sizeof w->path + NAME_MAX];
    struct backend_op *op = w->op;
    struct stat st;
    if (name[0] == '.')
        return 0;
    strcpy(full, w->path);
    strncat(full, name, NAME_MAX);
    if (strncmp(full, op->r.name, strlen(op->r.name)) != 0 || strcmp(full, op->r.after) <= 0 || !backend_name_valid(full, false))
        return 0;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (w->page.count == op->r.max) {
        op->result.more = true;
        return 1;
    }
    return page_add(&w->page, full, (uint64_t)st.st_size, st.st_mtime) < 0 ? -1 : 0;
}

void dir_list(int root, struct backend_op *op)
{
    struct walk w = {.op = op, .file = list_file};
    if (walk_folder(&w, root, 0) < 0)
        walk_failed(op, "list");
    else
        page_end(&w.page, op);
    page_free(&w.page);
}

/* ---- sweep ---- */

static int sweep_file(struct walk *w, int folder, const char *name)
{
    struct stat st;
    if (strncmp(name, ".put-", 5) != 0)
        return 0;
    AUTO_CLOSE int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (st.st_mtime + (int64_t)w->op->r.older > time(NULL) || flock(fd, LOCK_EX | LOCK_NB) < 0)
        return 0;
    if (unlinkat(folder, name, 0) == 0)
        w->op->result.count++;
    return 0;
}

void dir_sweep(int root, struct backend_op *op)
{
    struct walk w = {.op = op, .file = sweep_file};
    if (op->r.older > INT32_MAX)
        op->r.older = INT32_MAX;
    if (walk_folder(&w, root, 0) < 0)
        walk_failed(op, "sweep");
}
