// SPDX-License-Identifier: Apache-2.0
// Treaddir: see dir.h.
//
// Offsets are the file system's own cookies (d_off), which ext4 keeps stable for a directory that does not change. The kernel's entries are buffered, as
// one of its reads seldom fills just one of ours; the buffer is thrown away when the client goes on elsewhere than where it stands.
#include "guest/files/dir.h"

#include "guest/files/node.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DIR_BUFFER (32u * 1024)

struct dir_buffer {
    uint64_t next; /* the offset that the entry at `at` continues */
    size_t at, len;
    _Alignas(struct dirent64) char bytes[DIR_BUFFER];
};

static uint8_t qid_type(unsigned char d_type)
{
    return d_type == DT_DIR ? P9_QTDIR : d_type == DT_LNK ? P9_QTSYMLINK : P9_QTFILE;
}

/* Puts the buffer where `offset` continues. 0 or -errno. */
static int seek_to(struct node *n, uint64_t offset)
{
    if (!n->dir) {
        n->dir = malloc(sizeof *n->dir);
        if (!n->dir)
            return -ENOMEM;
        n->dir->at = n->dir->len = 0;
        n->dir->next = UINT64_MAX;
    }
    if (n->dir->next == offset)
        return 0;
    n->dir->at = n->dir->len = 0;
    n->dir->next = UINT64_MAX;
    if (offset > INT64_MAX || lseek(n->io, (off_t)offset, SEEK_SET) < 0)
        return -EINVAL;
    n->dir->next = offset;
    return 0;
}

/* The next entry, NULL at the end, with *err set on failure. */
static const struct dirent64 *peek(struct node *n, int *err)
{
    struct dir_buffer *d = n->dir;
    if (d->at >= d->len) {
        ssize_t got = getdents64(n->io, d->bytes, sizeof d->bytes);
        if (got <= 0) {
            *err = got < 0 ? errno : 0;
            return NULL;
        }
        d->at = 0;
        d->len = (size_t)got;
    }
    return (const struct dirent64 *)(const void *)(d->bytes + d->at);
}

static void skip(struct dir_buffer *d, const struct dirent64 *e)
{
    d->next = (uint64_t)e->d_off;
    d->at += e->d_reclen;
}

void dir_readdir(struct p9_request *r)
{
    struct files *fs = r->user;
    struct node *n = r->fid->aux;
    const struct dirent64 *e;
    size_t pos = 0;
    int err = 0;
    if (n->io < 0 || !S_ISDIR(n->type)) {
        p9_fail(r, n->io < 0 ? EBADF : ENOTDIR);
        return;
    }
    int rc = seek_to(n, r->t->Treaddir.offset);
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    while ((e = peek(n, &err))) {
        struct p9_dirent out = {.qid = {qid_type(e->d_type), 0, e->d_ino}, .offset = (uint64_t)e->d_off, .type = e->d_type, .name = p9_str_of(e->d_name)};
        if (p9_dirent_pack(fs->buf, r->t->Treaddir.count, &pos, &out) < 0) {
            err = pos ? 0 : EINVAL; /* room for not even one */
            break;
        }
        skip(n->dir, e);
    }
    if (err && !pos) {
        p9_fail(r, err);
        return;
    }
    struct p9_msg m = {0};
    m.Rreaddir.data = (struct p9_data){fs->buf, (uint32_t)pos};
    p9_reply(r, &m);
}

void dir_destroy(struct dir_buffer *d)
{
    free(d);
}
