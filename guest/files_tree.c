// SPDX-License-Identifier: Apache-2.0
// Making, renaming and removing objects of the root file system (see files_backend.h).
#include "guest/files_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/sysmacros.h>
#include <unistd.h>

/* Of what was just made; it may be gone again. */
static int qid_at(const struct file *dir, const char *name, struct p9_qid *out)
{
    struct stat st;
    if (fstatat(dir->path, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    *out = files_qid(&st);
    return 0;
}

void files_mkdir(struct p9_request *r)
{
    const struct p9_Tmkdir *t = &r->t->Tmkdir;
    const struct file *dir = files_of(r->fid);
    char name[P9_NAME_MAX + 1];
    struct p9_msg m = {0};
    files_name(t->name, name);
    setfsgid(t->gid);
    int rc = mkdirat(dir->path, name, t->mode & 07777) < 0 ? -errno : 0;
    setfsgid(0);
    if (rc == 0)
        rc = qid_at(dir, name, &m.Rmkdir.qid);
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &m);
}

void files_mknod(struct p9_request *r)
{
    const struct p9_Tmknod *t = &r->t->Tmknod;
    const struct file *dir = files_of(r->fid);
    char name[P9_NAME_MAX + 1];
    struct p9_msg m = {0};
    files_name(t->name, name);
    if (S_ISDIR(t->mode) || S_ISLNK(t->mode)) {
        p9_fail(r, EINVAL);
        return;
    }
    setfsgid(t->gid);
    int rc = mknodat(dir->path, name, t->mode & (S_IFMT | 07777), makedev(t->major, t->minor)) < 0 ? -errno : 0;
    setfsgid(0);
    if (rc == 0)
        rc = qid_at(dir, name, &m.Rmknod.qid);
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &m);
}

void files_symlink(struct p9_request *r)
{
    const struct p9_Tsymlink *t = &r->t->Tsymlink;
    const struct file *dir = files_of(r->fid);
    char name[P9_NAME_MAX + 1], target[PATH_MAX];
    struct p9_msg m = {0};
    if (t->target.len == 0 || t->target.len >= sizeof target) {
        p9_fail(r, t->target.len ? ENAMETOOLONG : ENOENT);
        return;
    }
    memcpy(target, t->target.s, t->target.len);
    target[t->target.len] = 0;
    files_name(t->name, name);
    setfsgid(t->gid);
    int rc = symlinkat(target, dir->path, name) < 0 ? -errno : 0;
    setfsgid(0);
    if (rc == 0)
        rc = qid_at(dir, name, &m.Rsymlink.qid);
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &m);
}

void files_link_to(struct p9_request *r)
{
    char name[P9_NAME_MAX + 1];
    files_name(r->t->Tlink.name, name);
    files_reply(r, linkat(files_of(r->fid)->path, "", files_of(r->dirfid)->path, name, AT_EMPTY_PATH) < 0 ? -errno : 0);
}

void files_renameat(struct p9_request *r)
{
    char from[P9_NAME_MAX + 1], to[P9_NAME_MAX + 1];
    files_name(r->t->Trenameat.oldname, from);
    files_name(r->t->Trenameat.newname, to);
    files_reply(r, renameat(files_of(r->fid)->path, from, files_of(r->dirfid)->path, to) < 0 ? -errno : 0);
}

void files_unlinkat(struct p9_request *r)
{
    const struct p9_Tunlinkat *t = &r->t->Tunlinkat;
    char name[P9_NAME_MAX + 1];
    if (t->flags & ~(uint32_t)P9_UNLINKAT_REMOVEDIR) {
        p9_fail(r, EINVAL);
        return;
    }
    files_name(t->name, name);
    files_reply(r, unlinkat(files_of(r->fid)->path, name, t->flags ? AT_REMOVEDIR : 0) < 0 ? -errno : 0);
}
