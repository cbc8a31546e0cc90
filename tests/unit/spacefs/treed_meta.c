// SPDX-License-Identifier: Apache-2.0
// The test server: attributes, names, extended attributes, locks. See treed.h.
#include "unit/spacefs/treed.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *const attributes[][2] = {
    {"id", "id\n"},   {"origin", "none\n"}, {"owner", "root\n"}, {"created", "now\n"},   {"memory", "256M\n"},
    {"vcpus", "1\n"}, {"egress", ""},       {"keep", ""},        {"idle", "never\n"},    {"wake", "auto\n"},
    {"labels", ""},   {"stats", "cpu 1\n"}, {"error", ""},       {"state", "running\n"}, {"head", "sandbox/x@1\n"},
};

/* --- attributes --- */

void treed_on_getattr(struct p9_request *r)
{
    const struct treed *d = treed_of(r);
    const struct file *f = treed_file_of(r);
    struct stat st;
    if ((f->fd >= 0 ? fstat(f->fd, &st) : lstat(f->path, &st)) < 0) {
        p9_fail(r, errno);
        return;
    }
    struct p9_msg m = {0};
    m.Rgetattr = (struct p9_Rgetattr){.valid = P9_GETATTR_BASIC,
                                      .qid = treed_qid_of(d, f->path, &st),
                                      .mode = st.st_mode,
                                      .uid = st.st_uid,
                                      .gid = st.st_gid,
                                      .nlink = st.st_nlink,
                                      .rdev = st.st_rdev,
                                      .size = (uint64_t)st.st_size,
                                      .blksize = 4096,
                                      .blocks = (uint64_t)st.st_blocks,
                                      .atime_sec = (uint64_t)st.st_atim.tv_sec,
                                      .atime_nsec = (uint64_t)st.st_atim.tv_nsec,
                                      .mtime_sec = (uint64_t)st.st_mtim.tv_sec,
                                      .mtime_nsec = (uint64_t)st.st_mtim.tv_nsec,
                                      .ctime_sec = (uint64_t)st.st_ctim.tv_sec,
                                      .ctime_nsec = (uint64_t)st.st_ctim.tv_nsec};
    if (!treed_is_guest(d, f->path) && S_ISREG(st.st_mode))
        m.Rgetattr.size = treed_is_stream(treed_base_of(f->path)) ? 0 : f->text ? f->len : m.Rgetattr.size;
    if (treed_is_object(d, f->path))
        m.Rgetattr.gen = st.st_ino;
    p9_reply(r, &m);
}

static void set_times(const struct p9_Tsetattr *s, struct timespec t[2])
{
    t[0].tv_nsec = !(s->valid & P9_SETATTR_ATIME) ? UTIME_OMIT : UTIME_NOW;
    t[1].tv_nsec = !(s->valid & P9_SETATTR_MTIME) ? UTIME_OMIT : UTIME_NOW;
    if (s->valid & P9_SETATTR_ATIME_SET)
        t[0] = (struct timespec){(time_t)s->atime_sec, (long)s->atime_nsec};
    if (s->valid & P9_SETATTR_MTIME_SET)
        t[1] = (struct timespec){(time_t)s->mtime_sec, (long)s->mtime_nsec};
}

void treed_on_setattr(struct p9_request *r)
{
    const struct p9_Tsetattr *s = &r->t->Tsetattr;
    const struct file *f = treed_file_of(r);
    struct timespec t[2];
    int rc = 0;
    if (!treed_is_guest(treed_of(r), f->path)) {
        p9_reply(r, &(struct p9_msg){0});
        return;
    }
    char fdpath[64];
    snprintf(fdpath, sizeof fdpath, "/proc/self/fd/%d", f->fd);
    const char *path = f->fd >= 0 ? fdpath : f->path;
    int link = f->fd >= 0 ? 0 : AT_SYMLINK_NOFOLLOW;
    set_times(s, t);
    if (rc == 0 && s->valid & (P9_SETATTR_UID | P9_SETATTR_GID))
        rc = fchownat(AT_FDCWD, path, s->valid & P9_SETATTR_UID ? s->uid : (uid_t)-1, s->valid & P9_SETATTR_GID ? s->gid : (gid_t)-1, link);
    if (rc == 0 && s->valid & P9_SETATTR_MODE)
        rc = chmod(path, s->mode);
    if (rc == 0 && s->valid & P9_SETATTR_SIZE)
        rc = f->fd >= 0 ? ftruncate(f->fd, (off_t)s->size) : truncate(path, (off_t)s->size);
    if (rc == 0 && s->valid & (P9_SETATTR_ATIME | P9_SETATTR_MTIME))
        rc = utimensat(AT_FDCWD, path, t, link);
    if (rc < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){0});
}

void treed_on_statfs(struct p9_request *r)
{
    struct statvfs v;
    struct p9_msg m = {0};
    statvfs(treed_file_of(r)->path, &v);
    m.Rstatfs = (struct p9_Rstatfs){.bsize = (uint32_t)v.f_bsize,
                                    .blocks = v.f_blocks,
                                    .bfree = v.f_bfree,
                                    .bavail = v.f_bavail,
                                    .files = v.f_files,
                                    .ffree = v.f_ffree,
                                    .namelen = 255};
    p9_reply(r, &m);
}

void treed_on_readlink(struct p9_request *r)
{
    char target[PATH_MAX];
    ssize_t n = readlink(treed_file_of(r)->path, target, sizeof target);
    if (n < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){.Rreadlink.target = {target, (uint16_t)n}});
}

/* --- names --- */

static void answer(struct p9_request *r, int rc, const char *path)
{
    struct p9_msg m = {0};
    struct stat st;
    if (rc < 0) {
        p9_fail(r, errno);
        return;
    }
    if (path && lstat(path, &st) == 0)
        m.Rmkdir.qid = treed_qid_of(treed_of(r), path, &st);
    p9_reply(r, &m); /* Rsymlink and Rmknod look the same */
}

static void fill_object(const struct treed *d, const char *path)
{
    char name[PATH_MAX + 32], guest[PATH_MAX + 32];
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        snprintf(name, sizeof name, "%s/%s", path, attributes[i][0]);
        FILE *f = fopen(name, "w");
        fputs(attributes[i][1], f);
        fclose(f);
    }
    snprintf(guest, sizeof guest, "%s/root/%s", d->dir, treed_base_of(path));
    mkdir(guest, 0755);
}

void treed_on_mkdir(struct p9_request *r)
{
    char path[PATH_MAX];
    treed_child_path(r, r->fid, &r->t->Tmkdir.name, path);
    int rc = mkdir(path, r->t->Tmkdir.mode);
    if (rc == 0 && treed_is_under(treed_of(r), path, "sandboxes"))
        fill_object(treed_of(r), path);
    answer(r, rc, path);
}

void treed_on_unlinkat(struct p9_request *r)
{
    char path[PATH_MAX], command[PATH_MAX + 16];
    int rc;
    treed_child_path(r, r->fid, &r->t->Tunlinkat.name, path);
    bool guest = treed_is_guest(treed_of(r), path);
    if (!guest && r->t->Tunlinkat.flags) {
        snprintf(command, sizeof command, "rm -rf '%s'", path);
        rc = system(command) ? -1 : 0;
    } else if (!guest) {
        errno = EPERM;
        rc = -1;
    } else {
        rc = unlinkat(AT_FDCWD, path, r->t->Tunlinkat.flags ? AT_REMOVEDIR : 0);
    }
    answer(r, rc, NULL);
}

void treed_on_renameat(struct p9_request *r)
{
    char from[PATH_MAX], to[PATH_MAX];
    treed_child_path(r, r->fid, &r->t->Trenameat.oldname, from);
    treed_child_path(r, r->dirfid, &r->t->Trenameat.newname, to);
    if (!treed_is_guest(treed_of(r), to) && access(to, F_OK) == 0) {
        p9_fail(r, EEXIST);
        return;
    }
    answer(r, rename(from, to), NULL);
}

void treed_on_symlink(struct p9_request *r)
{
    char path[PATH_MAX], target[PATH_MAX];
    treed_child_path(r, r->fid, &r->t->Tsymlink.name, path);
    snprintf(target, sizeof target, "%.*s", (int)r->t->Tsymlink.target.len, r->t->Tsymlink.target.s);
    answer(r, symlink(target, path), path);
}

void treed_on_mknod(struct p9_request *r)
{
    const struct p9_Tmknod *t = &r->t->Tmknod;
    char path[PATH_MAX];
    treed_child_path(r, r->fid, &t->name, path);
    answer(r, mknod(path, t->mode, makedev(t->major, t->minor)), path);
}

void treed_on_link(struct p9_request *r)
{
    char path[PATH_MAX];
    treed_child_path(r, r->dirfid, &r->t->Tlink.name, path);
    answer(r, link(treed_file_of(r)->path, path), NULL);
}

/* --- extended attributes, locks --- */

void treed_on_xattrwalk(struct p9_request *r)
{
    const struct p9_str *name = &r->t->Txattrwalk.name;
    struct file *f = treed_file_copy(treed_file_of(r));
    /* what is said of holes is what a test has set: space.seek.data.0 is the file's user.space.seek.data.0 */
    const char *prefix = name->len > 6 && !memcmp(name->s, "space.", 6) ? "user." : "";
    snprintf(f->xattr, sizeof f->xattr, "%s%.*s", prefix, (int)name->len, name->s);
    f->kind = K_XATTR_GET;
    f->text = malloc(65536);
    ssize_t n = name->len ? lgetxattr(f->path, f->xattr, f->text, 65536) : llistxattr(f->path, f->text, 65536);
    if (n < 0) {
        p9_fail(r, errno);
        close(f->where);
        free(f->text);
        free(f);
        return;
    }
    f->len = (size_t)n;
    r->newfid->aux = f;
    p9_reply(r, &(struct p9_msg){.Rxattrwalk.size = f->len});
}

void treed_on_xattrcreate(struct p9_request *r)
{
    const struct p9_Txattrcreate *t = &r->t->Txattrcreate;
    struct file *f = treed_file_of(r);
    if (t->size > 65536) {
        p9_fail(r, E2BIG);
        return;
    }
    snprintf(f->xattr, sizeof f->xattr, "%.*s", (int)t->name.len, t->name.s);
    f->kind = K_XATTR_SET;
    f->xattr_flags = (int)t->flags;
    f->size = t->size;
    f->text = malloc(t->size + 1);
    p9_reply(r, &(struct p9_msg){0});
}

void treed_on_clunk(struct p9_request *r)
{
    const struct file *f = treed_file_of(r);
    int rc = 0;
    if (f->kind == K_XATTR_SET && !f->size && f->xattr_flags == XATTR_REPLACE)
        rc = lremovexattr(f->path, f->xattr);
    else if (f->kind == K_XATTR_SET)
        rc = lsetxattr(f->path, f->xattr, f->text, f->size, f->xattr_flags);
    answer(r, rc, NULL);
}

static void fill_flock(uint8_t type, uint64_t start, uint64_t length, struct flock *out)
{
    *out = (struct flock){.l_type = type == P9_LOCK_RDLCK   ? F_RDLCK
                                    : type == P9_LOCK_WRLCK ? F_WRLCK
                                                            : F_UNLCK,
                          .l_start = (off_t)start,
                          .l_len = (off_t)length};
}

void treed_on_lock(struct p9_request *r)
{
    const struct p9_Tlock *t = &r->t->Tlock;
    struct flock l;
    fill_flock(t->type, t->start, t->length, &l);
    int rc = fcntl(treed_file_of(r)->fd, F_OFD_SETLK, &l);
    if (rc < 0 && errno != EAGAIN)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){.Rlock.status = (uint8_t)(rc < 0) /* P9_LOCK_BLOCKED */});
}

void treed_on_getlock(struct p9_request *r)
{
    const struct p9_Tgetlock *t = &r->t->Tgetlock;
    struct flock l;
    fill_flock(t->type, t->start, t->length, &l);
    if (fcntl(treed_file_of(r)->fd, F_OFD_GETLK, &l) < 0) {
        p9_fail(r, errno);
        return;
    }
    uint8_t type = l.l_type == F_UNLCK ? P9_LOCK_UNLCK : (uint8_t)(l.l_type == F_WRLCK);
    p9_reply(r, &(struct p9_msg){.Rgetlock = {.type = type, .start = (uint64_t)l.l_start, .length = (uint64_t)l.l_len, .client_id = t->client_id}});
}
