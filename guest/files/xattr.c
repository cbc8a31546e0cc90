// SPDX-License-Identifier: Apache-2.0
// Extended attributes: see xattr.h. A value is at most 64 KiB (Linux's XATTR_SIZE_MAX), so a fid holds it whole.
#include "guest/files/xattr.h"

#include "guest/files/node.h"

#include <errno.h>
#include <limits.h>
#include <linux/limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

struct xattr {
    bool writing;
    int flags;   /* XATTR_CREATE, XATTR_REPLACE */
    size_t size; /* of the value */
    size_t have; /* written so far; they come in order */
    char name[XATTR_NAME_MAX + 1];
    char *value;
};

static bool take_name(struct p9_str s, char out[XATTR_NAME_MAX + 1])
{
    if (s.len > XATTR_NAME_MAX)
        return false;
    memcpy(out, s.s, s.len);
    out[s.len] = 0;
    return true;
}

void xattr_destroy(struct xattr *x)
{
    if (!x)
        return;
    free(x->value);
    free(x);
}

static struct xattr *create(const char *name, size_t size)
{
    struct xattr *x = calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->value = malloc(size ? size : 1);
    if (!x->value) {
        free(x);
        return NULL;
    }
    x->size = size;
    memcpy(x->name, name, strlen(name) + 1);
    return x;
}

/* The value, or the list of names when `name` is empty; NULL with errno. */
static struct xattr *fetch(struct files *fs, struct node *n, const char *name)
{
    char path[16];
    if (node_path(fs, n, path) < 0)
        return NULL;
    ssize_t len = *name ? getxattr(path, name, fs->buf, XATTR_SIZE_MAX) : listxattr(path, fs->buf, XATTR_LIST_MAX);
    if (len < 0)
        return NULL;
    struct xattr *x = create(name, (size_t)len);
    if (x)
        memcpy(x->value, fs->buf, (size_t)len);
    else
        errno = ENOMEM;
    return x;
}

void xattr_walk(struct p9_request *r)
{
    struct files *fs = r->user;
    struct node *n = r->fid->aux;
    char name[XATTR_NAME_MAX + 1];
    if (n->xattr || r->newfid == r->fid || !take_name(r->t->Txattrwalk.name, name)) {
        p9_fail(r, n->xattr || r->newfid == r->fid ? EBADF : ERANGE);
        return;
    }
    struct xattr *x = fetch(fs, n, name);
    struct node *c = x ? node_clone(fs, n) : NULL;
    if (!c) {
        int code = errno;
        xattr_destroy(x);
        p9_fail(r, code);
        return;
    }
    c->xattr = x;
    r->newfid->aux = c;
    struct p9_msg m = {0};
    m.Rxattrwalk.size = x->size;
    p9_reply(r, &m);
}

void xattr_create(struct p9_request *r)
{
    struct node *n = r->fid->aux;
    char name[XATTR_NAME_MAX + 1];
    int code = 0;
    if (n->xattr || n->io >= 0)
        code = EBADF;
    else if (!r->t->Txattrcreate.name.len || !take_name(r->t->Txattrcreate.name, name))
        code = ERANGE;
    else if (r->t->Txattrcreate.size > XATTR_SIZE_MAX)
        code = E2BIG;
    else if (r->t->Txattrcreate.flags & ~(uint32_t)(XATTR_CREATE | XATTR_REPLACE))
        code = EINVAL;
    struct xattr *x = code ? NULL : create(name, (size_t)r->t->Txattrcreate.size);
    if (!x) {
        p9_fail(r, code ? code : ENOMEM);
        return;
    }
    x->writing = true;
    x->flags = (int)r->t->Txattrcreate.flags;
    n->xattr = x;
    p9_reply(r, &(struct p9_msg){0});
}

void xattr_read(struct p9_request *r)
{
    const struct xattr *x = ((struct node *)r->fid->aux)->xattr;
    uint64_t at = r->t->Tread.offset;
    struct p9_msg m = {0};
    if (x->writing) {
        p9_fail(r, EBADF);
        return;
    }
    if (at < x->size) {
        size_t n = x->size - (size_t)at;
        m.Rread.data = (struct p9_data){x->value + at, (uint32_t)(n < r->t->Tread.count ? n : r->t->Tread.count)};
    }
    p9_reply(r, &m);
}

void xattr_write(struct p9_request *r)
{
    struct xattr *x = ((struct node *)r->fid->aux)->xattr;
    const struct p9_data *d = &r->t->Twrite.data;
    if (!x->writing || r->t->Twrite.offset != x->have || d->len > x->size - x->have) {
        p9_fail(r, x->writing ? EINVAL : EBADF);
        return;
    }
    memcpy(x->value + x->have, d->p, d->len);
    x->have += d->len;
    struct p9_msg m = {0};
    m.Rwrite.count = d->len;
    p9_reply(r, &m);
}

int xattr_apply(struct files *fs, struct node *n)
{
    const struct xattr *x = n->xattr;
    char path[16];
    if (!x || !x->writing)
        return 0;
    if (x->have < x->size)
        return -EINVAL;
    if (node_path(fs, n, path) < 0)
        return -errno;
    /* Linux's client removes an attribute by replacing it with nothing */
    bool removal = x->size == 0 && x->flags == XATTR_REPLACE;
    int rc = removal ? removexattr(path, x->name) : setxattr(path, x->name, x->value, x->size, x->flags);
    return rc < 0 ? -errno : 0;
}
