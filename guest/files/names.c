// SPDX-License-Identifier: Apache-2.0
// Messages that make, move and remove names in directories of the root file system.
#include "guest/files/handlers.h"
#include "guest/files/node.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* The directory of a request and the name in it; -1 with errno. */
static int directory(struct p9_request *r, struct p9_fid *fid, struct p9_str s, char name[P9_NAME_MAX + 1])
{
    struct node *d = fid->aux;
    if (d->xattr) {
        errno = EBADF;
        return -1;
    }
    if (!node_name(s, name)) { /* the library has refused these already */
        errno = EINVAL;
        return -1;
    }
    return node_fd(r->user, d);
}

static void answer(struct p9_request *r, int rc)
{
    if (rc < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){0});
}

/* After a node was made: gives it the group (and mode bits that this may have cut), and its qid. 0, or -1 with errno and nothing left behind. */
static int finish_new(int dir, const char *name, uint32_t gid, uint32_t mode, struct p9_qid *qid)
{
    struct stat st;
    int rc = 0;
    if (gid != UINT32_MAX)
        rc = fchownat(dir, name, (uid_t)-1, gid, AT_SYMLINK_NOFOLLOW);
    if (rc == 0 && mode & (S_ISUID | S_ISGID) && !S_ISLNK(mode))
        rc = fchmodat(dir, name, mode & 07777, 0);
    if (rc == 0)
        rc = fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW);
    if (rc == 0) {
        *qid = node_qid(&st);
        return 0;
    }
    int code = errno;
    unlinkat(dir, name, S_ISDIR(mode) ? AT_REMOVEDIR : 0);
    errno = code;
    return -1;
}

void files_mkdir(struct p9_request *r)
{
    const struct p9_Tmkdir *t = &r->t->Tmkdir;
    char name[P9_NAME_MAX + 1];
    struct p9_msg m = {0};
    int dir = directory(r, r->fid, t->name, name);
    if (dir < 0 || mkdirat(dir, name, t->mode & 07777) < 0 || finish_new(dir, name, t->gid, (t->mode & 07777) | S_IFDIR, &m.Rmkdir.qid) < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &m);
}

void files_mknod(struct p9_request *r)
{
    const struct p9_Tmknod *t = &r->t->Tmknod;
    char name[P9_NAME_MAX + 1];
    struct p9_msg m = {0};
    int dir = directory(r, r->fid, t->name, name);
    if (dir < 0 || mknodat(dir, name, t->mode, makedev(t->major, t->minor)) < 0 || finish_new(dir, name, t->gid, t->mode, &m.Rmknod.qid) < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &m);
}

void files_symlink(struct p9_request *r)
{
    const struct p9_Tsymlink *t = &r->t->Tsymlink;
    char name[P9_NAME_MAX + 1], target[PATH_MAX];
    struct p9_msg m = {0};
    if (t->target.len == 0 || t->target.len >= sizeof target) {
        p9_fail(r, t->target.len ? ENAMETOOLONG : ENOENT);
        return;
    }
    memcpy(target, t->target.s, t->target.len);
    target[t->target.len] = 0;
    int dir = directory(r, r->fid, t->name, name);
    if (dir < 0 || symlinkat(target, dir, name) < 0 || finish_new(dir, name, t->gid, S_IFLNK, &m.Rsymlink.qid) < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &m);
}

void files_readlink(struct p9_request *r)
{
    char target[PATH_MAX];
    struct node *n = r->fid->aux;
    struct p9_msg m = {0};
    if (!S_ISLNK(n->type)) {
        p9_fail(r, EINVAL);
        return;
    }
    int fd = node_fd(r->user, n);
    ssize_t len = fd < 0 ? -1 : readlinkat(fd, "", target, sizeof target);
    if (len < 0) {
        p9_fail(r, errno);
        return;
    }
    m.Rreadlink.target = (struct p9_str){target, (uint16_t)len};
    p9_reply(r, &m);
}

void files_link(struct p9_request *r)
{
    char name[P9_NAME_MAX + 1];
    int dir = directory(r, r->dirfid, r->t->Tlink.name, name);
    int fd = dir < 0 ? -1 : node_fd(r->user, r->fid->aux);
    answer(r, fd < 0 ? -1 : linkat(fd, "", dir, name, AT_EMPTY_PATH));
}

void files_renameat(struct p9_request *r)
{
    const struct p9_Trenameat *t = &r->t->Trenameat;
    char old[P9_NAME_MAX + 1], new[P9_NAME_MAX + 1];
    int from = directory(r, r->fid, t->oldname, old);
    int to = from < 0 ? -1 : directory(r, r->dirfid, t->newname, new);
    answer(r, to < 0 ? -1 : renameat(from, old, to, new));
}

void files_rename(struct p9_request *r)
{
    const struct p9_Trename *t = &r->t->Trename;
    struct node *n = r->fid->aux;
    const char *old;
    char new[P9_NAME_MAX + 1];
    int from = node_open_parent(r->user, n, &old), rc = -1, code;
    if (from < 0) {
        p9_fail(r, errno);
        return;
    }
    int to = directory(r, r->dirfid, t->name, new);
    if (to >= 0)
        rc = renameat(from, old, to, new);
    code = errno;
    if (rc == 0)
        node_set_parent(n, to, new, t->name.len);
    close(from);
    errno = code;
    answer(r, rc);
}

void files_unlinkat(struct p9_request *r)
{
    const struct p9_Tunlinkat *t = &r->t->Tunlinkat;
    char name[P9_NAME_MAX + 1];
    if (t->flags & ~(uint32_t)P9_UNLINKAT_REMOVEDIR) {
        p9_fail(r, EINVAL);
        return;
    }
    int dir = directory(r, r->fid, t->name, name);
    answer(r, dir < 0 ? -1 : unlinkat(dir, name, t->flags ? AT_REMOVEDIR : 0));
}

void files_remove(struct p9_request *r)
{
    struct node *n = r->fid->aux;
    const char *name;
    int dir = node_open_parent(r->user, n, &name);
    if (dir < 0) {
        p9_fail(r, errno);
        return;
    }
    int rc = unlinkat(dir, name, S_ISDIR(n->type) ? AT_REMOVEDIR : 0), code = errno;
    close(dir);
    errno = code;
    answer(r, rc);
}
