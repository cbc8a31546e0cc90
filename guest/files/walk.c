// SPDX-License-Identifier: Apache-2.0
// Attach, walk and clunk of the root file system.
//
// A walk takes one component at a time, never follows a symlink and never leaves the mount: the served tree is a private clone of the root's mount alone, so
// there is nothing above or beside it to be reached, not even through `..`.
#include "guest/files/handlers.h"
#include "guest/files/node.h"
#include "guest/files/xattr.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

void files_attach(struct p9_request *r)
{
    struct files *fs = r->user;
    struct stat st;
    struct p9_msg m = {0};
    struct p9_str name = r->t->Tattach.aname;
    if (name.len && !p9_str_eq(name, "root") && !p9_str_eq(name, "/")) {
        p9_fail(r, ENOENT);
        return;
    }
    int fd = openat(fs->top, ".", O_PATH | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        p9_fail(r, code);
        return;
    }
    r->fid->aux = node_create(fs, fd, st.st_mode);
    if (!r->fid->aux) {
        p9_fail(r, ENOMEM);
        return;
    }
    m.Rattach.qid = node_qid(&st);
    p9_reply(r, &m);
}

/* `..` of the root is the root. */
static int open_up(const struct files *fs, int dir)
{
    struct stat st;
    if (fstat(dir, &st) < 0)
        return -1;
    if (st.st_ino == fs->ino && st.st_dev == fs->dev)
        return openat(fs->top, ".", O_PATH | O_CLOEXEC);
    return openat(dir, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

static int open_below(int dir, const char *name)
{
    struct open_how how = {.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV};
    return (int)syscall(SYS_openat2, dir, name, &how, sizeof how);
}

/* One component: its O_PATH descriptor, or -1 with errno. */
static int step(const struct files *fs, int dir, struct p9_str s)
{
    char name[P9_NAME_MAX + 1];
    if (!node_name(s, name)) {
        errno = s.len > P9_NAME_MAX ? ENAMETOOLONG : ENOENT;
        return -1;
    }
    if (!strcmp(name, "."))
        return openat(dir, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return strcmp(name, "..") ? open_below(dir, name) : open_up(fs, dir);
}

static bool is_dots(struct p9_str s)
{
    return p9_str_eq(s, ".") || p9_str_eq(s, "..");
}

/* Walks the names from `at` (borrowed); the last descriptor reached, which the caller owns, or -1 with errno and qids->n names done. */
static int walk_names(const struct files *fs, int at, const struct p9_names *names, struct p9_qids *qids, struct node *last, mode_t *mode)
{
    int fd = -1;
    for (uint16_t i = 0; i < names->n; i++) {
        struct stat st;
        int dir = fd >= 0 ? fd : at, next = step(fs, dir, names->v[i]);
        if (next >= 0 && fstat(next, &st) == 0) {
            qids->v[qids->n++] = node_qid(&st);
            *mode = st.st_mode;
            if (i + 1 == names->n && !is_dots(names->v[i]))
                node_set_parent(last, dir, names->v[i].s, names->v[i].len);
        } else {
            int code = errno;
            if (next >= 0)
                close(next);
            next = -1;
            errno = code;
        }
        int code = errno;
        if (fd >= 0)
            close(fd);
        errno = code;
        fd = next;
        if (fd < 0)
            return -1;
    }
    return fd;
}

static void walk_clone(struct p9_request *r)
{
    struct p9_msg m = {0};
    if (r->newfid != r->fid) {
        r->newfid->aux = node_clone(r->user, r->fid->aux);
        if (!r->newfid->aux) {
            p9_fail(r, errno);
            return;
        }
    }
    p9_reply(r, &m);
}

void files_walk(struct p9_request *r)
{
    struct files *fs = r->user;
    struct node *n = r->fid->aux, where = {0};
    const struct p9_names *names = &r->t->Twalk.names;
    struct p9_msg m = {0};
    mode_t mode = 0;
    if (n->xattr) {
        p9_fail(r, EBADF);
        return;
    }
    if (names->n == 0) {
        walk_clone(r);
        return;
    }
    int at = node_fd(fs, n), fd = at < 0 ? -1 : walk_names(fs, at, names, &m.Rwalk.qids, &where, &mode);
    if (fd < 0) {
        int code = errno;
        if (m.Rwalk.qids.n)
            p9_reply(r, &m);
        else
            p9_fail(r, code);
        return;
    }
    struct node *found = node_create(fs, fd, mode);
    if (!found) {
        free(where.name);
        p9_fail(r, ENOMEM);
        return;
    }
    found->parent = where.parent;
    found->name = where.name;
    if (r->newfid == r->fid)
        node_destroy(fs, n);
    r->newfid->aux = found;
    p9_reply(r, &m);
}

void files_clunk(struct p9_request *r)
{
    int rc = xattr_apply(r->user, r->fid->aux);
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &(struct p9_msg){0});
}

void files_fid_free(void *user, struct p9_fid *fid)
{
    node_destroy(user, fid->aux);
}
