// SPDX-License-Identifier: Apache-2.0
// Attributes of the root file system's objects (see files_backend.h).
#include "guest/files_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#define GETATTR_BTIME 0x0800u
#define GETATTR_GEN   0x1000u

/* ext4's file handles are an inode number and its generation: works for objects of any type,
 * without opening them. */
static bool generation(const struct file *f, uint64_t *out)
{
    struct {
        struct file_handle h;
        uint32_t words[32];
    } handle = {.h.handle_bytes = sizeof handle.words};
    int mount;
    if (name_to_handle_at(f->path, "", &handle.h, &mount, AT_EMPTY_PATH) < 0 || handle.h.handle_type != 1 || handle.h.handle_bytes != 8)
        return false;
    *out = handle.words[1];
    return true;
}

static struct stat stat_of(const struct statx *x)
{
    return (struct stat){.st_ino = x->stx_ino, .st_mode = x->stx_mode, .st_mtim = {x->stx_mtime.tv_sec, x->stx_mtime.tv_nsec}};
}

void files_getattr(struct p9_request *r)
{
    const struct file *f = files_of(r->fid);
    struct p9_msg m = {0};
    struct p9_Rgetattr *a = &m.Rgetattr;
    struct statx x;
    if (statx(f->path, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &x) < 0) {
        p9_fail(r, errno);
        return;
    }
    struct stat st = stat_of(&x);
    a->valid = P9_GETATTR_BASIC;
    a->qid = files_qid(&st);
    a->mode = x.stx_mode;
    a->uid = x.stx_uid;
    a->gid = x.stx_gid;
    a->nlink = x.stx_nlink;
    a->rdev = makedev(x.stx_rdev_major, x.stx_rdev_minor);
    a->size = x.stx_size;
    a->blksize = x.stx_blksize;
    a->blocks = x.stx_blocks;
    a->atime_sec = (uint64_t)x.stx_atime.tv_sec;
    a->atime_nsec = x.stx_atime.tv_nsec;
    a->mtime_sec = (uint64_t)x.stx_mtime.tv_sec;
    a->mtime_nsec = x.stx_mtime.tv_nsec;
    a->ctime_sec = (uint64_t)x.stx_ctime.tv_sec;
    a->ctime_nsec = x.stx_ctime.tv_nsec;
    if (x.stx_mask & STATX_BTIME) {
        a->valid |= GETATTR_BTIME;
        a->btime_sec = (uint64_t)x.stx_btime.tv_sec;
        a->btime_nsec = x.stx_btime.tv_nsec;
    }
    if ((r->t->Tgetattr.mask & GETATTR_GEN) && generation(f, &a->gen))
        a->valid |= GETATTR_GEN;
    p9_reply(r, &m);
}

static int set_times(const struct file *f, const struct p9_Tsetattr *t)
{
    struct timespec ts[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_nsec = UTIME_OMIT}};
    if (t->atime_nsec >= 1000000000 || t->mtime_nsec >= 1000000000)
        return -EINVAL;
    if (t->valid & P9_SETATTR_ATIME_SET)
        ts[0] = (struct timespec){(time_t)t->atime_sec, (long)t->atime_nsec};
    else if (t->valid & P9_SETATTR_ATIME)
        ts[0].tv_nsec = UTIME_NOW;
    if (t->valid & P9_SETATTR_MTIME_SET)
        ts[1] = (struct timespec){(time_t)t->mtime_sec, (long)t->mtime_nsec};
    else if (t->valid & P9_SETATTR_MTIME)
        ts[1].tv_nsec = UTIME_NOW;
    return utimensat(f->path, "", ts, AT_EMPTY_PATH) < 0 ? -errno : 0;
}

static int set_size(const struct file *f, uint64_t size)
{
    char link[32];
    if (size > INT64_MAX)
        return -EFBIG;
    if (!S_ISREG(f->mode))
        return S_ISDIR(f->mode) ? -EISDIR : -EINVAL;
    return truncate(files_link(f, link), (off_t)size) < 0 ? -errno : 0;
}

static int set_owner(const struct file *f, const struct p9_Tsetattr *t)
{
    uid_t uid = t->valid & P9_SETATTR_UID ? t->uid : (uid_t)-1;
    gid_t gid = t->valid & P9_SETATTR_GID ? t->gid : (gid_t)-1;
    return fchownat(f->path, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int set_mode(const struct file *f, mode_t mode)
{
    char link[32];
    if (S_ISLNK(f->mode))
        return -EOPNOTSUPP;
    return chmod(files_link(f, link), mode & 07777) < 0 ? -errno : 0;
}

/* In the order of what may undo what: a change of owner clears set-id bits, a change of size sets
 * times. */
void files_setattr(struct p9_request *r)
{
    const struct p9_Tsetattr *t = &r->t->Tsetattr;
    const struct file *f = files_of(r->fid);
    int rc = f->xattr ? -EBADF : 0;
    if (rc == 0 && (t->valid & P9_SETATTR_SIZE))
        rc = set_size(f, t->size);
    if (rc == 0 && (t->valid & (P9_SETATTR_UID | P9_SETATTR_GID)))
        rc = set_owner(f, t);
    if (rc == 0 && (t->valid & P9_SETATTR_MODE))
        rc = set_mode(f, t->mode);
    if (rc == 0 && (t->valid & (P9_SETATTR_ATIME | P9_SETATTR_MTIME | P9_SETATTR_ATIME_SET | P9_SETATTR_MTIME_SET)))
        rc = set_times(f, t);
    files_reply(r, rc);
}

void files_statfs(struct p9_request *r)
{
    const struct files_backend *b = r->user;
    struct p9_msg m = {0};
    struct statfs s;
    if (fstatfs(b->tree, &s) < 0) {
        p9_fail(r, errno);
        return;
    }
    m.Rstatfs = (struct p9_Rstatfs){.type = (uint32_t)s.f_type,
                                    .bsize = (uint32_t)s.f_bsize,
                                    .blocks = s.f_blocks,
                                    .bfree = s.f_bfree,
                                    .bavail = s.f_bavail,
                                    .files = s.f_files,
                                    .ffree = s.f_ffree,
                                    .namelen = (uint32_t)s.f_namelen};
    m.Rstatfs.fsid = (uint64_t)(uint32_t)s.f_fsid.__val[1] << 32 | (uint32_t)s.f_fsid.__val[0];
    p9_reply(r, &m);
}

void files_readlink(struct p9_request *r)
{
    char target[PATH_MAX];
    struct p9_msg m = {0};
    ssize_t n = readlinkat(files_of(r->fid)->path, "", target, sizeof target);
    if (n < 0) {
        p9_fail(r, errno == ENOENT ? EINVAL : errno); /* the kernel's word for "no symlink" here */
        return;
    }
    m.Rreadlink.target = (struct p9_str){target, (uint16_t)n};
    p9_reply(r, &m);
}
