// SPDX-License-Identifier: Apache-2.0
// Extended attributes of the root file system's objects (see files_backend.h).
//
// 9P2000.L has no message to remove an attribute: as Linux's client and spacefs do it, an empty
// value that must replace one (XATTR_REPLACE) removes it.
#include "guest/files_backend.h"

#include "9p/seek.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

struct files_xattr {
    bool writing;
    char name[P9_NAME_MAX + 1];
    uint32_t flags;
    size_t size, have;
    char *value;
};

void files_xattr_free(struct files_xattr *x)
{
    if (x)
        free(x->value);
    free(x);
}

/* lseek of an open file, as text (9p/seek.h). Reads and writes name their offsets: nobody minds the
 * file's own. */
static ssize_t seek(const struct file *f, int whence, uint64_t offset, char *buf, size_t size)
{
    off_t at = f->io < 0 ? -1 : lseek(f->io, (off_t)offset, whence);
    if (at < 0)
        return f->io < 0 ? -EBADF : -errno;
    return snprintf(buf, size, "%lld", (long long)at);
}

/* A value or, for an empty name, the list of names: its size or -errno. */
static ssize_t fetch(const struct file *f, const char *name, void *buf, size_t size)
{
    char link[32];
    uint64_t offset;
    int whence;
    if (p9_seek_parse(p9_str_of(name), &whence, &offset))
        return seek(f, whence, offset, buf, size);
    ssize_t n = *name ? getxattr(files_link(f, link), name, buf, size) : listxattr(files_link(f, link), buf, size);
    return n < 0 ? -errno : n;
}

static struct file *value_new(const struct file *of, const char *name, struct files_backend *b, ssize_t *size)
{
    *size = fetch(of, name, b->buf, FILES_XATTR_MAX);
    if (*size < 0)
        return NULL;
    struct file *f = files_file_new(-1, of->mode);
    struct files_xattr *x = calloc(1, sizeof *x);
    char *value = malloc(*size ? (size_t)*size : 1);
    if (!f || !x || !value) {
        if (f)
            files_file_free(f);
        free(x);
        free(value);
        *size = -ENOMEM;
        return NULL;
    }
    memcpy(value, b->buf, (size_t)*size);
    x->value = value;
    x->size = x->have = (size_t)*size;
    f->xattr = x;
    return f;
}

void files_xattrwalk(struct p9_request *r)
{
    const struct file *of = files_of(r->fid);
    char name[P9_NAME_MAX + 1];
    struct p9_msg m = {0};
    ssize_t size = 0;
    if (of->path < 0 || r->t->Txattrwalk.name.len > P9_NAME_MAX) {
        p9_fail(r, of->path < 0 ? EBADF : ERANGE);
        return;
    }
    struct file *f = value_new(of, files_name(r->t->Txattrwalk.name, name), r->user, &size);
    if (!f) {
        p9_fail(r, (int)-size);
        return;
    }
    r->newfid->aux = f;
    m.Rxattrwalk.size = (uint64_t)size;
    p9_reply(r, &m);
}

void files_xattrcreate(struct p9_request *r)
{
    const struct p9_Txattrcreate *t = &r->t->Txattrcreate;
    struct file *f = files_of(r->fid);
    int rc = f->xattr || f->io >= 0 ? -EBADF : t->size > FILES_XATTR_MAX ? -E2BIG : 0;
    if (rc == 0 && (t->name.len == 0 || t->name.len > P9_NAME_MAX))
        rc = -ERANGE;
    struct files_xattr *x = rc < 0 ? NULL : calloc(1, sizeof *x);
    char *value = rc < 0 ? NULL : malloc(t->size ? t->size : 1);
    if (rc == 0 && (!x || !value))
        rc = -ENOMEM;
    if (rc < 0) {
        free(x);
        free(value);
        p9_fail(r, -rc);
        return;
    }
    x->writing = true;
    x->flags = t->flags;
    x->size = t->size;
    x->value = value;
    files_name(t->name, x->name);
    f->xattr = x;
    files_reply(r, 0);
}

int files_xattr_commit(const struct file *f)
{
    const struct files_xattr *x = f->xattr;
    char link[32];
    if (!x->writing)
        return 0;
    if (x->have != x->size)
        return -EINVAL;
    files_link(f, link);
    int rc = x->size == 0 && x->flags == XATTR_REPLACE ? removexattr(link, x->name) : setxattr(link, x->name, x->value, x->size, (int)x->flags);
    return rc < 0 ? -errno : 0;
}

void files_xattr_read(struct p9_request *r)
{
    const struct files_xattr *x = files_of(r->fid)->xattr;
    struct p9_msg m = {0};
    size_t at = r->t->Tread.offset < x->size ? (size_t)r->t->Tread.offset : x->size, n = x->size - at;
    if (x->writing) {
        p9_fail(r, EBADF);
        return;
    }
    m.Rread.data.p = x->value + at;
    m.Rread.data.len = n < r->t->Tread.count ? (uint32_t)n : r->t->Tread.count;
    p9_reply(r, &m);
}

void files_xattr_write(struct p9_request *r)
{
    struct files_xattr *x = files_of(r->fid)->xattr;
    const struct p9_Twrite *t = &r->t->Twrite;
    struct p9_msg m = {0};
    if (!x->writing || t->offset != x->have || t->data.len > x->size - x->have) {
        p9_fail(r, x->writing ? EINVAL : EBADF);
        return;
    }
    memcpy(x->value + x->have, t->data.p, t->data.len);
    x->have += t->data.len;
    m.Rwrite.count = t->data.len;
    p9_reply(r, &m);
}
