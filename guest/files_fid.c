// SPDX-License-Identifier: Apache-2.0
// Fids of the root file system: attach, walk, open, create (see files_backend.h).
#include "guest/files_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <unistd.h>

#define WALK_FLAGS (O_PATH | O_NOFOLLOW | O_CLOEXEC)

int files_backend_init(struct files_backend *b)
{
    b->buf = malloc(P9_MSIZE_MAX);
    return b->buf ? 0 : -ENOMEM;
}

struct file *files_file_new(int path, mode_t mode)
{
    struct file *f = calloc(1, sizeof *f);
    if (!f) {
        if (path >= 0)
            close(path);
        return NULL;
    }
    f->path = path;
    f->io = -1;
    f->mode = mode;
    return f;
}

void files_file_free(struct file *f)
{
    if (f->io >= 0)
        close(f->io);
    if (f->path >= 0)
        close(f->path);
    files_dir_free(f->dir);
    files_xattr_free(f->xattr);
    free(f);
}

const char *files_link(const struct file *f, char out[32])
{
    snprintf(out, 32, "self/fd/%d", f->path);
    return out;
}

const char *files_name(struct p9_str name, char out[P9_NAME_MAX + 1])
{
    memcpy(out, name.s, name.len);
    out[name.len] = 0;
    return out;
}

struct p9_qid files_qid(const struct stat *st)
{
    struct p9_qid q = {.path = st->st_ino};
    q.version = (uint32_t)st->st_mtim.tv_sec * 1000003u ^ (uint32_t)st->st_mtim.tv_nsec;
    q.type = S_ISDIR(st->st_mode) ? P9_QTDIR : S_ISLNK(st->st_mode) ? P9_QTSYMLINK : P9_QTFILE;
    return q;
}

void files_reply(struct p9_request *r, int rc)
{
    struct p9_msg m = {0};
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &m);
}

void files_attach(struct p9_request *r)
{
    const struct files_backend *b = r->user;
    struct p9_msg m = {0};
    struct stat st;
    if (!p9_str_eq(r->t->Tattach.aname, "root")) {
        p9_fail(r, ENOENT);
        return;
    }
    int fd = openat(b->tree, ".", WALK_FLAGS);
    if (fd < 0 || fstat(fd, &st) < 0) {
        files_reply(r, -errno);
        return;
    }
    r->fid->aux = files_file_new(fd, st.st_mode);
    m.Rattach.qid = files_qid(&st);
    if (r->fid->aux)
        p9_reply(r, &m);
    else
        p9_fail(r, ENOMEM);
}

/* One step; a descriptor or -errno. */
static int step(int from, struct p9_str name, struct stat *st)
{
    char text[P9_NAME_MAX + 1];
    if (name.len == 0 || name.len > P9_NAME_MAX)
        return name.len ? -ENAMETOOLONG : -ENOENT;
    if (memchr(name.s, '/', name.len) || p9_str_eq(name, "."))
        return -EINVAL;
    int fd = openat(from, files_name(name, text), WALK_FLAGS);
    if (fd < 0)
        return -errno;
    if (fstat(fd, st) < 0) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

/* All names: the last one's descriptor, or -errno with those before it in `qids`. */
static int walk(int from, mode_t *mode, const struct p9_names *names, struct p9_qids *qids)
{
    struct stat st;
    int at = fcntl(from, F_DUPFD_CLOEXEC, 0);
    if (at < 0)
        return -errno;
    while (qids->n < names->n) {
        int next = step(at, names->v[qids->n], &st);
        close(at);
        if (next < 0)
            return next;
        at = next;
        *mode = st.st_mode;
        qids->v[qids->n++] = files_qid(&st);
    }
    return at;
}

void files_walk(struct p9_request *r)
{
    struct file *from = files_of(r->fid);
    struct p9_msg m = {0};
    mode_t mode = from->mode;
    if (from->path < 0) {
        p9_fail(r, EBADF);
        return;
    }
    int fd = walk(from->path, &mode, &r->t->Twalk.names, &m.Rwalk.qids);
    if (fd < 0 && m.Rwalk.qids.n == 0) {
        p9_fail(r, -fd);
        return;
    }
    if (fd >= 0) {
        struct file *f = files_file_new(fd, mode);
        if (!f) {
            p9_fail(r, ENOMEM);
            return;
        }
        if (r->newfid == r->fid)
            files_file_free(from);
        r->newfid->aux = f;
    }
    p9_reply(r, &m);
}

static int real_flags(uint32_t flags)
{
    static const struct {
        uint32_t theirs;
        int ours;
    } map[] = {{P9_TRUNC, O_TRUNC}, {P9_APPEND, O_APPEND}, {P9_EXCL, O_EXCL}};
    int out = (int)(flags & P9_ACCMODE) | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        out |= flags & map[i].theirs ? map[i].ours : 0;
    return out;
}

static _Atomic uint32_t *handles_of(const void *user)
{
    return ((const struct files_backend *)user)->handles;
}

void files_lopen(struct p9_request *r)
{
    struct file *f = files_of(r->fid);
    struct p9_msg m = {0};
    struct stat st;
    char link[32];
    if (f->xattr || (!S_ISREG(f->mode) && !S_ISDIR(f->mode))) {
        p9_fail(r, f->xattr ? EBADF : S_ISLNK(f->mode) ? ELOOP : ENXIO);
        return;
    }
    f->io = open(files_link(f, link), real_flags(r->t->Tlopen.flags) & ~O_EXCL);
    if (f->io < 0 || fstat(f->io, &st) < 0) {
        files_reply(r, -errno);
        return;
    }
    f->sync = files_sync_of(r->t->Tlopen.flags);
    m.Rlopen.qid = files_qid(&st);
    ++*handles_of(r->user);
    p9_reply(r, &m);
}

/* What O_CREAT opened without O_EXCL may have been there before, as anything. */
static int create(const struct file *dir, const char *name, const struct p9_Tlcreate *t, struct stat *st)
{
    setfsgid(t->gid);
    int fd = openat(dir->path, name, real_flags(t->flags) | O_CREAT | O_NOFOLLOW, t->mode & 07777), rc = -errno;
    setfsgid(0);
    if (fd < 0)
        return rc;
    rc = fstat(fd, st) < 0 ? -errno : S_ISREG(st->st_mode) ? 0 : -ENXIO;
    if (rc == 0)
        return fd;
    close(fd);
    return rc;
}

void files_lcreate(struct p9_request *r)
{
    struct file *dir = files_of(r->fid);
    char name[P9_NAME_MAX + 1], link[32];
    struct p9_msg m = {0};
    struct stat st;
    int fd = create(dir, files_name(r->t->Tlcreate.name, name), &r->t->Tlcreate, &st);
    if (fd < 0) {
        p9_fail(r, -fd);
        return;
    }
    snprintf(link, sizeof link, "self/fd/%d", fd);
    int path = open(link, O_PATH | O_CLOEXEC);
    struct file *f = path < 0 ? NULL : files_file_new(path, st.st_mode);
    if (!f) {
        int code = path < 0 ? errno : ENOMEM;
        close(fd);
        p9_fail(r, code);
        return;
    }
    f->io = fd;
    f->sync = files_sync_of(r->t->Tlcreate.flags);
    files_file_free(dir);
    r->fid->aux = f;
    m.Rlcreate.qid = files_qid(&st);
    ++*handles_of(r->user);
    p9_reply(r, &m);
}

void files_clunk(struct p9_request *r)
{
    const struct file *f = files_of(r->fid);
    files_reply(r, f->xattr ? files_xattr_commit(f) : 0);
}

static void fid_free(void *user, struct p9_fid *f)
{
    if (f->opened)
        --*handles_of(user);
    files_file_free(f->aux);
}

const struct p9_backend *files_backend(void)
{
    static const struct p9_backend backend = {
        .on = {[P9_Tattach] = files_attach,
               [P9_Twalk] = files_walk,
               [P9_Tlopen] = files_lopen,
               [P9_Tlcreate] = files_lcreate,
               [P9_Tclunk] = files_clunk,
               [P9_Tread] = files_read,
               [P9_Twrite] = files_write,
               [P9_Tfsync] = files_fsync,
               [P9_Tlock] = files_lock,
               [P9_Tgetlock] = files_getlock,
               [P9_Treaddir] = files_readdir,
               [P9_Tgetattr] = files_getattr,
               [P9_Tsetattr] = files_setattr,
               [P9_Tstatfs] = files_statfs,
               [P9_Treadlink] = files_readlink,
               [P9_Txattrwalk] = files_xattrwalk,
               [P9_Txattrcreate] = files_xattrcreate,
               [P9_Tmkdir] = files_mkdir,
               [P9_Tmknod] = files_mknod,
               [P9_Tsymlink] = files_symlink,
               [P9_Tlink] = files_link_to,
               [P9_Trenameat] = files_renameat,
               [P9_Tunlinkat] = files_unlinkat},
        .fid_free = fid_free,
    };
    return &backend;
}

const struct p9_server_config *files_backend_config(void)
{
    static const struct p9_server_config config = {.max_fids = FILES_FIDS_MAX};
    return &config;
}
