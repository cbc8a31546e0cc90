// SPDX-License-Identifier: Apache-2.0
// Directory listings of the root file system (see files_backend.h).
//
// Offsets are the file system's own (ext4: a hash of the name), which stay valid while entries come
// and go. What getdents gave and the last reply had no room for is kept, so that going on where it
// ended needs no seek.
#include "guest/files_backend.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DIR_BUF (32u * 1024)

struct entry { /* struct linux_dirent64 */
    uint64_t ino;
    int64_t off;
    uint16_t reclen;
    uint8_t type;
    char name[];
};

struct files_dir {
    uint64_t next; /* the offset that buf[at] continues from */
    size_t at, len;
    _Alignas(8) char buf[DIR_BUF];
};

void files_dir_free(struct files_dir *d)
{
    free(d);
}

/* Goes to an offset that a client gave. */
static int seek(struct file *f, uint64_t offset)
{
    struct files_dir *d = f->dir;
    if (d && d->next == offset)
        return 0;
    if (!d) {
        f->dir = d = malloc(sizeof *d);
        if (!d)
            return -ENOMEM;
    }
    d->at = d->len = 0;
    d->next = offset;
    return offset > INT64_MAX || lseek(f->io, (off_t)offset, SEEK_SET) < 0 ? -EINVAL : 0;
}

/* The next entry, NULL at the end, or an error in *rc. */
static const struct entry *peek(struct file *f, int *rc)
{
    struct files_dir *d = f->dir;
    if (d->at == d->len) {
        long n = syscall(SYS_getdents64, f->io, d->buf, sizeof d->buf);
        d->at = 0;
        d->len = n > 0 ? (size_t)n : 0;
        *rc = n < 0 ? -errno : 0;
        if (n <= 0)
            return NULL;
    }
    return (const struct entry *)(const void *)(d->buf + d->at);
}

static int list(struct file *f, void *buf, size_t size, size_t *len)
{
    const struct entry *e;
    int rc = 0;
    while ((e = peek(f, &rc))) {
        struct p9_dirent d = {.offset = (uint64_t)e->off, .type = e->type, .name = p9_str_of(e->name)};
        d.qid = (struct p9_qid){.type = e->type == DT_DIR ? P9_QTDIR : e->type == DT_LNK ? P9_QTSYMLINK : P9_QTFILE, .path = e->ino};
        if (p9_dirent_pack(buf, size, len, &d) < 0)
            return *len ? 0 : -EINVAL; /* as getdents says of a buffer that is too small */
        f->dir->at += e->reclen;
        f->dir->next = (uint64_t)e->off;
    }
    return *len ? 0 : rc;
}

void files_readdir(struct p9_request *r)
{
    struct files_backend *b = r->user;
    struct file *f = files_of(r->fid);
    struct p9_msg m = {0};
    size_t len = 0;
    int rc = f->io < 0 ? -EBADF : !S_ISDIR(f->mode) ? -ENOTDIR : seek(f, r->t->Treaddir.offset);
    if (rc == 0)
        rc = list(f, b->buf, r->t->Treaddir.count, &len);
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    m.Rreaddir.data.p = b->buf;
    m.Rreaddir.data.len = (uint32_t)len;
    p9_reply(r, &m);
}
