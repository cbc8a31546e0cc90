// SPDX-License-Identifier: Apache-2.0
// FUSE requests: see request.h.
#include "spacefs/request.h"

#include "spacefs/attr.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct user {
    struct hmap_node by_uid;
    unsigned requests;
};

static struct user *user_find(struct fs *fs, uint32_t uid)
{
    struct hmap_node *h = hmap_find(&fs->users, uid);
    return h ? hmap_entry(h, struct user, by_uid) : NULL;
}

/* Counts one more request of `uid`; false when it has enough. */
static bool admit(struct fs *fs, uint32_t uid)
{
    struct user *u = user_find(fs, uid);
    if (fs->requests >= FS_REQUESTS_MAX || (u && u->requests >= FS_REQUESTS_UID_MAX))
        return false;
    if (!u) {
        u = calloc(1, sizeof *u);
        if (!u)
            return false;
        hmap_insert(&fs->users, &u->by_uid, uid);
    }
    u->requests++;
    fs->requests++;
    return true;
}

static void leave(struct fs *fs, uint32_t uid)
{
    struct user *u = user_find(fs, uid);
    fs->requests--;
    if (--u->requests)
        return;
    hmap_remove(&fs->users, &u->by_uid);
    free(u);
}

struct req *request_create(fuse_req_t fuse, fuse_ino_t ino)
{
    struct fs *fs = fuse_req_userdata(fuse);
    const struct fuse_ctx *ctx = fuse_req_ctx(fuse);
    struct req *r = NULL;
    if (admit(fs, ctx->uid) && !(r = calloc(1, sizeof *r)))
        leave(fs, ctx->uid);
    if (!r) {
        fuse_reply_err(fuse, EAGAIN);
        return NULL;
    }
    r->task.fs = fs;
    r->task.grace_msec = REQUEST_GRACE_MSEC;
    r->fuse = fuse;
    r->uid = ctx->uid;
    r->gid = ctx->gid;
    r->tid = r->task.tid = ctx->pid;
    if (ino)
        r->node = node_ref(node_of(fs, ino));
    return r;
}

static void destroy(struct req *r)
{
    struct fs *fs = r->task.fs;
    handle_unref(fs, r->handle);
    node_unref(fs, r->node);
    node_unref(fs, r->node2);
    leave(fs, r->uid);
    free(r->owned);
    free(r);
}

static void on_interrupt(fuse_req_t fuse, void *data)
{
    struct req *r = data;
    (void)fuse;
    task_interrupt(&r->task);
}

static void run(struct task *t)
{
    struct req *r = (struct req *)t;
    r->op(r);
    if (r->fuse)
        request_error(r, -EIO); /* an operation that forgets its reply must not hang its caller */
    task_finish(t);
    destroy(r);
}

void request_run(struct req *r, void (*op)(struct req *r))
{
    r->op = op;
    fuse_req_interrupt_func(r->fuse, on_interrupt, r);
    task_start(r->task.fs, &r->task, run);
}

void request_abandon(struct req *r, int rc)
{
    request_error(r, rc);
    destroy(r);
}

bool request_name(struct req *r, char out[P9_NAME_MAX + 1], const char *name)
{
    size_t len = strlen(name);
    if (len > P9_NAME_MAX) {
        request_abandon(r, -ENAMETOOLONG);
        return false;
    }
    memcpy(out, name, len + 1);
    return true;
}

void request_handle(struct req *r, const struct fuse_file_info *fi)
{
    r->handle = fi && fi->fh ? handle_ref((struct handle *)(uintptr_t)fi->fh) : NULL;
    if (fi) {
        r->flags = fi->flags;
        r->lock_owner = fi->lock_owner;
    }
}

void request_error(struct req *r, int rc)
{
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    fuse_reply_err(fuse, rc <= TASK_LOST ? EIO : rc == -ENOSYS ? EOPNOTSUPP : -rc);
}

void request_attr(struct req *r, const struct node *n, const struct stat *st)
{
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    fuse_reply_attr(fuse, st, attr_timeout(n));
}

void request_entry(struct req *r, struct node *n, const struct stat *st)
{
    struct fs *fs = r->task.fs;
    fuse_req_t fuse = r->fuse;
    struct fuse_entry_param e = {
        .ino = node_ino(fs, n),
        .generation = 1,
        .attr = *st,
        .attr_timeout = attr_timeout(n),
        .entry_timeout = attr_name_timeout(n),
    };
    r->fuse = NULL;
    n->lookups++;
    if (fuse_reply_entry(fuse, &e) == -ENOENT)
        node_forget(fs, n, 1); /* the kernel had given the request up */
}
