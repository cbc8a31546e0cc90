// SPDX-License-Identifier: Apache-2.0
// Contents and locks of the root file system's files (see files_backend.h).
#include "guest/files_backend.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

void files_read(struct p9_request *r)
{
    struct files_backend *b = r->user;
    const struct file *f = files_of(r->fid);
    struct p9_msg m = {0};
    if (f->xattr) {
        files_xattr_read(r);
        return;
    }
    if (f->io < 0 || r->t->Tread.offset > INT64_MAX) {
        p9_fail(r, f->io < 0 ? EBADF : EINVAL);
        return;
    }
    ssize_t n = pread(f->io, b->buf, r->t->Tread.count, (off_t)r->t->Tread.offset);
    if (n < 0) {
        p9_fail(r, errno);
        return;
    }
    m.Rread.data.p = b->buf;
    m.Rread.data.len = (uint32_t)n;
    p9_reply(r, &m);
}

void files_write(struct p9_request *r)
{
    const struct file *f = files_of(r->fid);
    const struct p9_Twrite *t = &r->t->Twrite;
    struct p9_msg m = {0};
    if (f->xattr) {
        files_xattr_write(r);
        return;
    }
    if (f->io < 0 || t->offset > INT64_MAX) {
        p9_fail(r, f->io < 0 ? EBADF : EFBIG);
        return;
    }
    while (m.Rwrite.count < t->data.len) {
        ssize_t n = pwrite(f->io, (const char *)t->data.p + m.Rwrite.count,
                           t->data.len - m.Rwrite.count, (off_t)(t->offset + m.Rwrite.count));
        if (n <= 0 && m.Rwrite.count == 0) {
            p9_fail(r, n < 0 ? errno : EIO);
            return;
        }
        if (n <= 0)
            break;
        m.Rwrite.count += (uint32_t)n;
    }
    p9_reply(r, &m);
}

void files_fsync(struct p9_request *r)
{
    const struct file *f = files_of(r->fid);
    char link[32];
    int fd = f->io, rc;
    if (fd < 0) {
        fd = S_ISREG(f->mode) || S_ISDIR(f->mode)
                 ? open(files_link(f, link), O_RDONLY | O_NONBLOCK | O_CLOEXEC)
                 : -1;
        if (fd < 0) {
            p9_fail(r, EBADF);
            return;
        }
    }
    rc = (r->t->Tfsync.datasync ? fdatasync(fd) : fsync(fd)) < 0 ? -errno : 0;
    if (fd != f->io)
        close(fd);
    files_reply(r, rc);
}

static int lock_range(uint8_t type, uint64_t start, uint64_t length, struct flock *out)
{
    static const short types[] = {F_RDLCK, F_WRLCK, F_UNLCK};
    if (type >= sizeof types / sizeof *types || start > INT64_MAX || length > INT64_MAX - start)
        return -EINVAL;
    *out = (struct flock){.l_type = types[type],
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)start,
                          .l_len = (off_t)length};
    return 0;
}

void files_lock(struct p9_request *r)
{
    const struct p9_Tlock *t = &r->t->Tlock;
    const struct file *f = files_of(r->fid);
    struct p9_msg m = {0};
    struct flock lock;
    int rc = f->io < 0 ? -EBADF : lock_range(t->type, t->start, t->length, &lock);
    if (rc == 0 && fcntl(f->io, F_OFD_SETLK, &lock) < 0)
        rc = -errno;
    if (rc == -EAGAIN || rc == -EACCES) {
        m.Rlock.status = P9_LOCK_BLOCKED;
        rc = 0;
    }
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &m);
}

void files_getlock(struct p9_request *r)
{
    const struct p9_Tgetlock *t = &r->t->Tgetlock;
    const struct file *f = files_of(r->fid);
    struct p9_msg m = {0};
    struct flock lock;
    int rc = f->io < 0 ? -EBADF : lock_range(t->type, t->start, t->length, &lock);
    if (rc == 0 && fcntl(f->io, F_OFD_GETLK, &lock) < 0)
        rc = -errno;
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    m.Rgetlock.type = lock.l_type == F_RDLCK   ? P9_LOCK_RDLCK
                      : lock.l_type == F_WRLCK ? P9_LOCK_WRLCK
                                               : P9_LOCK_UNLCK;
    m.Rgetlock.start = (uint64_t)lock.l_start;
    m.Rgetlock.length = (uint64_t)lock.l_len;
    m.Rgetlock.proc_id = lock.l_pid > 0 ? (uint32_t)lock.l_pid : t->proc_id;
    m.Rgetlock.client_id = t->client_id;
    p9_reply(r, &m);
}
