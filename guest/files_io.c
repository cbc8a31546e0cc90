// SPDX-License-Identifier: Apache-2.0
// Contents and locks of the root file system's files (see files_backend.h).
#include "guest/files_backend.h"
#include "guest/ring.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
/* Where going around the cache begins to pay: each such call costs a transaction or a request to
 * the disk, and waits for it. */
#define DIRECT_MIN (128u * 1024)

/* Replies above this are read to a buffer of their own, which is sent as it is. */
#define COPY_MAX (16u * 1024)

/* ---- reading ---- */

/* pread or pwrite that go around the cache. The descriptor is nobody else's. */
static ssize_t direct(int fd, void *buf, const void *data, size_t len, off_t offset)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) < 0)
        return -1;
    ssize_t n = buf ? pread(fd, buf, len, offset) : pwrite(fd, data, len, offset);
    fcntl(fd, F_SETFL, flags);
    return n;
}

/* What is in memory comes from there, and the rest, if it is much, from the disk. `buf` begins a
 * page. */
static ssize_t read_large(int fd, uint8_t *buf, size_t count, off_t offset)
{
    struct iovec part = {buf, count};
    ssize_t n = preadv2(fd, &part, 1, offset, RWF_NOWAIT);
    size_t have = n > 0 ? (size_t)n : 0, left = count - have;
    if (n == 0 || left == 0)
        return n;
    if (left >= DIRECT_MIN && have % PAGE == 0 && offset % PAGE == 0) {
        n = direct(fd, buf + have, NULL, left - left % PAGE, offset + (off_t)have);
        have += n > 0 ? (size_t)n : 0;
        left = count - have;
        if (n == 0 || left < PAGE)
            return (ssize_t)have; /* a caller that wants the rest asks once more */
    }
    n = pread(fd, buf + have, left, offset + (off_t)have);
    return n < 0 && have == 0 ? n : (ssize_t)have + (n > 0 ? n : 0);
}

static void reply_copied(struct p9_request *r, const void *data, ssize_t n)
{
    struct p9_msg m = {0};
    if (n < 0) {
        p9_fail(r, errno);
        return;
    }
    m.Rread.data.p = data;
    m.Rread.data.len = (uint32_t)n;
    p9_reply(r, &m);
}

static void read_file(struct p9_request *r, int fd, size_t count, off_t offset)
{
    const struct files_backend *b = r->user;
    if (count <= COPY_MAX) {
        reply_copied(r, b->buf, pread(fd, b->buf, count, offset));
        return;
    }
    uint8_t *owner = malloc(2 * PAGE + count); /* aligned_alloc finds no freed block of its own again: the heap would grow */
    if (!owner) {
        p9_fail(r, ENOMEM);
        return;
    }
    uint8_t *data = owner + 2 * PAGE - (uintptr_t)owner % PAGE;
    ssize_t n = read_large(fd, data, count, offset);
    if (n > (ssize_t)COPY_MAX) {
        p9_reply_data(r, owner, data, (uint32_t)n);
        return;
    }
    reply_copied(r, data, n); /* a large buffer of little data must not wait in the queue */
    free(owner);
}

void files_read(struct p9_request *r)
{
    const struct file *f = files_of(r->fid);
    if (f->xattr)
        files_xattr_read(r);
    else if (f->io < 0 || r->t->Tread.offset > INT64_MAX)
        p9_fail(r, f->io < 0 ? EBADF : EINVAL);
    else
        read_file(r, f->io, r->t->Tread.count, (off_t)r->t->Tread.offset);
}

/* ---- waiting for the disk ---- */

struct sync_wait {
    struct p9_request *r;
    struct ring_op *op;
    struct p9_msg reply;
};

static void sync_done(void *user, int rc)
{
    struct sync_wait *w = user;
    if (rc < 0)
        p9_fail(w->r, -rc);
    else
        p9_reply(w->r, &w->reply);
    free(w);
}

static void sync_cancel(struct p9_request *r)
{
    struct sync_wait *w = r->aux;
    ring_forget(w->op);
    free(w);
    p9_fail(r, EINTR);
}

/* Answers with `reply` once the file is on the disk. `fd` passes. */
static void sync_and_reply(struct p9_request *r, int fd, bool datasync, const struct p9_msg *reply)
{
    const struct files_backend *b = r->user;
    struct sync_wait *w = malloc(sizeof *w);
    if (!w || fd < 0) {
        p9_fail(r, !w ? ENOMEM : EMFILE);
        if (fd >= 0)
            close(fd);
        free(w);
        return;
    }
    *w = (struct sync_wait){.r = r, .reply = *reply};
    w->op = ring_fsync(b->ring, fd, datasync, sync_done, w);
    if (!w->op) {
        p9_fail(r, errno);
        free(w);
        return;
    }
    r->aux = w;
    r->cancel = sync_cancel;
}

void files_fsync(struct p9_request *r)
{
    const struct file *f = files_of(r->fid);
    char link[32];
    int fd = -1;
    if (f->io >= 0)
        fd = fcntl(f->io, F_DUPFD_CLOEXEC, 0);
    else if (S_ISREG(f->mode) || S_ISDIR(f->mode))
        fd = open(files_link(f, link), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        p9_fail(r, f->io >= 0 ? errno : EBADF);
    else
        sync_and_reply(r, fd, r->t->Tfsync.datasync != 0, &(struct p9_msg){0});
}

/* ---- writing ---- */

enum files_sync files_sync_of(uint32_t flags)
{
    return (flags & P9_SYNC) == P9_SYNC ? FILES_SYNC_ALL : flags & P9_DSYNC ? FILES_SYNC_DATA : FILES_SYNC_NONE;
}

/* The whole pages at the beginning of data that makes the file longer: how many bytes went, 0 for
 * "the usual way". */
static size_t write_extending(int fd, const uint8_t *data, size_t len, off_t offset)
{
    struct stat st;
    len -= len % PAGE;
    if (len < DIRECT_MIN || offset % PAGE || (uintptr_t)data % PAGE || fstat(fd, &st) < 0 || st.st_size > offset || (fcntl(fd, F_GETFL) & O_APPEND))
        return 0;
    ssize_t n = direct(fd, NULL, data, len, offset);
    return n > 0 ? (size_t)n : 0;
}

/* All of it or what there was room for; -1 and errno when that is nothing. */
static ssize_t write_file(int fd, const uint8_t *data, size_t len, off_t offset)
{
    size_t done = write_extending(fd, data, len, offset);
    while (done < len) {
        ssize_t n = pwrite(fd, data + done, len - done, offset + (off_t)done);
        if (n == 0)
            errno = EIO;
        if (n <= 0)
            return done ? (ssize_t)done : -1;
        done += (size_t)n;
    }
    return (ssize_t)done;
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
    ssize_t n = write_file(f->io, t->data.p, t->data.len, (off_t)t->offset);
    m.Rwrite.count = n < 0 ? 0 : (uint32_t)n;
    if (n < 0)
        p9_fail(r, errno);
    else if (f->sync == FILES_SYNC_NONE)
        p9_reply(r, &m);
    else
        sync_and_reply(r, fcntl(f->io, F_DUPFD_CLOEXEC, 0), f->sync == FILES_SYNC_DATA, &m);
}

/* ---- locks ---- */

static int lock_range(uint8_t type, uint64_t start, uint64_t length, struct flock *out)
{
    static const short types[] = {F_RDLCK, F_WRLCK, F_UNLCK};
    if (type >= sizeof types / sizeof *types || start > INT64_MAX || length > INT64_MAX - start)
        return -EINVAL;
    *out = (struct flock){.l_type = types[type], .l_whence = SEEK_SET, .l_start = (off_t)start, .l_len = (off_t)length};
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
    m.Rgetlock.type = lock.l_type == F_RDLCK ? P9_LOCK_RDLCK : lock.l_type == F_WRLCK ? P9_LOCK_WRLCK : P9_LOCK_UNLCK;
    m.Rgetlock.start = (uint64_t)lock.l_start;
    m.Rgetlock.length = (uint64_t)lock.l_len;
    m.Rgetlock.proc_id = lock.l_pid > 0 ? (uint32_t)lock.l_pid : t->proc_id;
    m.Rgetlock.client_id = t->client_id;
    p9_reply(r, &m);
}
