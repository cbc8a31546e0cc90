// SPDX-License-Identifier: Apache-2.0
// Attributes of files of the root file system, and of the file system itself.
#include "guest/files/handlers.h"
#include "guest/files/node.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { VALID_BTIME = 0x800, VALID_GEN = 0x1000 };

/* ext4's handles are inode and generation (FILEID_INO32_GEN); others hold no generation that we know. */
static bool generation(struct files *fs, struct node *n, uint64_t *out)
{
    const struct handle *h = node_handle(fs, n);
    uint32_t gen;
    if (!h || h->type != 1 || h->len != 8)
        return false;
    memcpy(&gen, h->bytes + 4, sizeof gen);
    *out = gen;
    return true;
}

static void fill_times(struct p9_Rgetattr *a, const struct statx *x)
{
    a->atime_sec = (uint64_t)x->stx_atime.tv_sec;
    a->atime_nsec = x->stx_atime.tv_nsec;
    a->mtime_sec = (uint64_t)x->stx_mtime.tv_sec;
    a->mtime_nsec = x->stx_mtime.tv_nsec;
    a->ctime_sec = (uint64_t)x->stx_ctime.tv_sec;
    a->ctime_nsec = x->stx_ctime.tv_nsec;
    if (x->stx_mask & STATX_BTIME) {
        a->btime_sec = (uint64_t)x->stx_btime.tv_sec;
        a->btime_nsec = x->stx_btime.tv_nsec;
        a->valid |= VALID_BTIME;
    }
}

static struct p9_qid qid_of(const struct statx *x)
{
    struct stat st = {.st_mode = x->stx_mode, .st_ino = x->stx_ino};
    st.st_mtim.tv_sec = x->stx_mtime.tv_sec;
    st.st_mtim.tv_nsec = x->stx_mtime.tv_nsec;
    return node_qid(&st);
}

void files_getattr(struct p9_request *r)
{
    struct files *fs = r->user;
    struct node *n = r->fid->aux;
    struct statx x;
    struct p9_msg m = {0};
    struct p9_Rgetattr *a = &m.Rgetattr;
    int fd = node_fd(fs, n);
    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &x) < 0) {
        p9_fail(r, errno);
        return;
    }
    a->valid = P9_GETATTR_BASIC;
    a->qid = qid_of(&x);
    a->mode = x.stx_mode;
    a->uid = x.stx_uid;
    a->gid = x.stx_gid;
    a->nlink = x.stx_nlink;
    a->rdev = makedev(x.stx_rdev_major, x.stx_rdev_minor);
    a->size = x.stx_size;
    a->blksize = x.stx_blksize;
    a->blocks = x.stx_blocks;
    fill_times(a, &x);
    if (r->t->Tgetattr.mask & VALID_GEN && generation(fs, n, &a->gen))
        a->valid |= VALID_GEN;
    p9_reply(r, &m);
}

/* ---- setattr ---- */

static int set_owner(int fd, const struct p9_Tsetattr *t)
{
    uid_t uid = t->valid & P9_SETATTR_UID ? t->uid : (uid_t)-1;
    gid_t gid = t->valid & P9_SETATTR_GID ? t->gid : (gid_t)-1;
    return fchownat(fd, "", uid, gid, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW);
}

static int set_size(struct files *fs, struct node *n, uint64_t size)
{
    if (!S_ISREG(n->type)) {
        errno = S_ISDIR(n->type) ? EISDIR : EINVAL;
        return -1;
    }
    if (size > INT64_MAX) {
        errno = EFBIG;
        return -1;
    }
    if (n->io >= 0 && (n->flags & P9_ACCMODE) != P9_RDONLY)
        return ftruncate(n->io, (off_t)size);
    int fd = node_reopen(fs, n, O_WRONLY);
    if (fd < 0)
        return -1;
    int rc = ftruncate(fd, (off_t)size), code = errno;
    close(fd);
    errno = code;
    return rc;
}

static struct timespec time_of(uint32_t valid, uint32_t touch, uint32_t set, uint64_t sec, uint64_t nsec)
{
    if (!(valid & touch))
        return (struct timespec){.tv_nsec = UTIME_OMIT};
    if (!(valid & set))
        return (struct timespec){.tv_nsec = UTIME_NOW};
    return (struct timespec){.tv_sec = (time_t)sec, .tv_nsec = nsec < 1000000000 ? (long)nsec : 0};
}

static int set_times(int fd, const struct p9_Tsetattr *t)
{
    struct timespec ts[2] = {
        time_of(t->valid, P9_SETATTR_ATIME, P9_SETATTR_ATIME_SET, t->atime_sec, t->atime_nsec),
        time_of(t->valid, P9_SETATTR_MTIME, P9_SETATTR_MTIME_SET, t->mtime_sec, t->mtime_nsec),
    };
    return utimensat(fd, "", ts, AT_EMPTY_PATH);
}

/* Owner first, as it takes set-id bits away; times last, as the others move them. */
static int apply(struct files *fs, struct node *n, const struct p9_Tsetattr *t)
{
    char path[16];
    int fd = node_fd(fs, n);
    if (fd < 0 || node_path(fs, n, path) < 0)
        return -1;
    if (t->valid & (P9_SETATTR_UID | P9_SETATTR_GID) && set_owner(fd, t) < 0)
        return -1;
    if (t->valid & P9_SETATTR_MODE && chmod(path, t->mode & 07777) < 0)
        return -1;
    if (t->valid & P9_SETATTR_SIZE && set_size(fs, n, t->size) < 0)
        return -1;
    if (t->valid & (P9_SETATTR_ATIME | P9_SETATTR_MTIME) && set_times(fd, t) < 0)
        return -1;
    return 0;
}

void files_setattr(struct p9_request *r)
{
    struct node *n = r->fid->aux;
    if (n->xattr)
        p9_fail(r, EBADF);
    else if (apply(r->user, n, &r->t->Tsetattr) < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){0});
}

void files_statfs(struct p9_request *r)
{
    struct files *fs = r->user;
    struct statfs s;
    struct p9_msg m = {0};
    uint64_t id;
    if (fstatfs(fs->top, &s) < 0) {
        p9_fail(r, errno);
        return;
    }
    _Static_assert(sizeof s.f_fsid == sizeof id, "the id is 64 bits");
    memcpy(&id, &s.f_fsid, sizeof id);
    m.Rstatfs = (struct p9_Rstatfs){
        .type = (uint32_t)s.f_type, .bsize = (uint32_t)s.f_bsize, .blocks = s.f_blocks, .bfree = s.f_bfree, .bavail = s.f_bavail,
        .files = s.f_files, .ffree = s.f_ffree, .fsid = id, .namelen = (uint32_t)s.f_namelen,
    };
    p9_reply(r, &m);
}
