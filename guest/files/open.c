// SPDX-License-Identifier: Apache-2.0
// Opened files of the root file system: open, create, read, write, fsync.
#include "guest/files/handlers.h"
#include "guest/files/node.h"
#include "guest/files/xattr.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* Flags of a message as this kernel's. What is not listed (O_CREAT, O_NONBLOCK, O_DIRECT, O_NOATIME, O_LARGEFILE …) is ours to decide. */
static int open_flags(uint32_t flags)
{
    static const struct {
        uint32_t p9;
        int native;
    } table[] = {{P9_TRUNC, O_TRUNC},   {P9_APPEND, O_APPEND},       {P9_DSYNC, O_DSYNC},
                 {P9_SYNC, O_SYNC},     {P9_DIRECTORY, O_DIRECTORY}};
    int out = (int)(flags & P9_ACCMODE);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if ((flags & table[i].p9) == table[i].p9)
            out |= table[i].native;
    return out;
}

/* The client's fid is the opened file from now on; the anchor is not needed any more. */
static void opened(struct files *fs, struct node *n, int io, uint32_t flags)
{
    struct node anchor = *n;
    n->io = io;
    n->flags = (int)flags;
    if (anchor.fd < 0)
        return;
    node_handle(fs, n);
    p9_link_remove(&n->used);
    fs->n_used--;
    close(anchor.fd);
    n->fd = -1;
}

void files_lopen(struct p9_request *r)
{
    struct files *fs = r->user;
    struct node *n = r->fid->aux;
    struct stat st;
    struct p9_msg m = {0};
    if (n->xattr) {
        p9_fail(r, EBADF);
        return;
    }
    int io = node_reopen(fs, n, open_flags(r->t->Tlopen.flags));
    if (io < 0 || fstat(io, &st) < 0) {
        int code = errno;
        if (io >= 0)
            close(io);
        p9_fail(r, code);
        return;
    }
    opened(fs, n, io, r->t->Tlopen.flags);
    m.Rlopen.qid = node_qid(&st);
    p9_reply(r, &m);
}

/* ---- create ---- */

/* The owner group that the client names, and the mode, which a change of owner may have cut. */
static int give_group(int fd, uint32_t gid, uint32_t mode)
{
    if (gid == UINT32_MAX)
        return 0;
    if (fchown(fd, (uid_t)-1, gid) < 0)
        return -1;
    return mode & (S_ISUID | S_ISGID) ? fchmod(fd, mode & 07777) : 0;
}

/* Opens what has the name already; anything but a file would be opened by looking at it. */
static int open_existing(struct files *fs, int dir, const char *name, int flags, struct node **out)
{
    struct stat st;
    int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        int code = errno;
        if (fd >= 0)
            close(fd);
        errno = code;
        return -1;
    }
    *out = node_create(fs, fd, st.st_mode);
    if (!*out)
        return -1;
    if (S_ISDIR(st.st_mode)) {
        errno = EISDIR;
        return -1;
    }
    return node_reopen(fs, *out, flags);
}

static int create_new(struct files *fs, int dir, const struct p9_Tlcreate *t, const char *name, int flags, struct node **out)
{
    int fd = openat(dir, name, flags | O_CREAT | O_EXCL | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, t->mode & 07777);
    if (fd < 0)
        return -1;
    if (give_group(fd, t->gid, t->mode) < 0) {
        int code = errno;
        unlinkat(dir, name, 0);
        close(fd);
        errno = code;
        return -1;
    }
    int anchor = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    *out = anchor < 0 ? NULL : node_create(fs, anchor, S_IFREG);
    if (!*out) {
        close(fd);
        return -1;
    }
    return fd;
}

void files_lcreate(struct p9_request *r)
{
    struct files *fs = r->user;
    struct node *d = r->fid->aux, *n = NULL;
    const struct p9_Tlcreate *t = &r->t->Tlcreate;
    char name[P9_NAME_MAX + 1];
    struct stat st;
    struct p9_msg m = {0};
    int dir = d->xattr ? -1 : node_fd(fs, d), flags = open_flags(t->flags), io = -1;
    if (d->xattr)
        errno = EBADF;
    else if (dir >= 0 && !node_name(t->name, name))
        errno = EINVAL; /* the library has refused these already */
    else if (dir >= 0) {
        io = create_new(fs, dir, t, name, flags & ~O_TRUNC, &n);
        if (io < 0 && errno == EEXIST && !(t->flags & P9_EXCL))
            io = open_existing(fs, dir, name, flags, &n);
    }
    if (io < 0 || fstat(io, &st) < 0) {
        int code = errno;
        node_destroy(fs, n);
        if (io >= 0)
            close(io);
        p9_fail(r, code);
        return;
    }
    node_set_parent(n, dir, name, t->name.len);
    opened(fs, n, io, t->flags);
    node_destroy(fs, d);
    r->fid->aux = n;
    m.Rlcreate.qid = node_qid(&st);
    p9_reply(r, &m);
}

/* ---- bytes ---- */

void files_read(struct p9_request *r)
{
    struct files *fs = r->user;
    const struct node *n = r->fid->aux;
    struct p9_msg m = {0};
    if (n->xattr) {
        xattr_read(r);
        return;
    }
    ssize_t got = -1;
    errno = EBADF;
    if (n->io >= 0)
        got = pread(n->io, fs->buf, r->t->Tread.count, (off_t)(r->t->Tread.offset & INT64_MAX));
    if (got < 0) {
        p9_fail(r, errno);
        return;
    }
    m.Rread.data = (struct p9_data){fs->buf, (uint32_t)got};
    p9_reply(r, &m);
}

void files_write(struct p9_request *r)
{
    const struct node *n = r->fid->aux;
    const struct p9_data *d = &r->t->Twrite.data;
    uint64_t at = r->t->Twrite.offset;
    struct p9_msg m = {0};
    uint32_t done = 0;
    if (n->xattr) {
        xattr_write(r);
        return;
    }
    if (n->io < 0 || at > INT64_MAX) {
        p9_fail(r, n->io < 0 ? EBADF : EFBIG);
        return;
    }
    while (done < d->len) {
        ssize_t put = pwrite(n->io, (const char *)d->p + done, d->len - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && !done) {
            p9_fail(r, errno);
            return;
        }
        if (put <= 0)
            break; /* what could be written is said; the error comes with the next write */
        done += (uint32_t)put;
    }
    m.Rwrite.count = done;
    p9_reply(r, &m);
}

void files_fsync(struct p9_request *r)
{
    const struct node *n = r->fid->aux;
    int rc = -1;
    errno = EBADF;
    if (n->io >= 0)
        rc = r->t->Tfsync.datasync ? fdatasync(n->io) : fsync(n->io);
    if (rc < 0)
        p9_fail(r, errno);
    else
        p9_reply(r, &(struct p9_msg){0});
}
