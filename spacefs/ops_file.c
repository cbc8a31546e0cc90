// SPDX-License-Identifier: Apache-2.0
// Opening, creating and closing files.
#include "spacefs/ops.h"

#include "spacefs/attr.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/gesture.h"
#include "spacefs/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <stdlib.h>
#include <string.h>

/* --- open --- */

/*
 * Control files bypass the page cache, but for the images of snapshots, which programs such as tar read by 512 bytes. The guest's files use it, checked by mtime and size (FUSE_CAP_AUTO_INVAL_DATA) and kept over
 * a close; but not when opened for both: a shared writable mapping would leave dirty pages that sync(2) waits for, on a guest
 * that may never take them. The kernel refuses such a mapping of a file that bypasses the cache.
 */
static void set_caching(const struct node *n, int flags, struct fuse_file_info *fi)
{
    if (node_is_image(n)) { /* cached as long as it is open: within its first seconds a snapshot may become a checkpoint */
        fi->noflush = 1;
    } else if (node_is_control(n)) {
        fi->direct_io = 1;
        fi->noflush = (flags & O_ACCMODE) == O_RDONLY;
    } else if ((flags & O_ACCMODE) == O_RDWR) {
        fi->direct_io = 1;
    } else {
        fi->keep_cache = 1;
    }
}

/*
 * A connection has no position, and a thread that reads must not hold one that another thread needs to write: FOPEN_STREAM, which libfuse has no
 * name for. Closing it waits for nobody either, which a flush would (for the lock of a write that waits).
 */
static int reply_stream(fuse_req_t fuse, const struct handle *h)
{
    struct fuse_open_out out = {.fh = (uintptr_t)h, .open_flags = FOPEN_DIRECT_IO | FOPEN_STREAM | FOPEN_NOFLUSH};
    return fuse_reply_buf(fuse, (const char *)&out, sizeof out);
}

void ops_reply_open(struct req *r, struct handle *h)
{
    struct fs *fs = r->task.fs;
    struct fuse_file_info fi = {.fh = (uintptr_t)h};
    fuse_req_t fuse = r->fuse;
    set_caching(h->node, h->flags, &fi);
    r->fuse = NULL;
    if ((node_is_port(h->node) ? reply_stream(fuse, h) : fuse_reply_open(fuse, &fi)) == -ENOENT)
        handle_unref(fs, h); /* interrupted: there will be no release */
}

static struct handle *take_opening(struct req *r, struct node *n, struct opening *o, bool fixed)
{
    struct handle *h = handle_create(r->task.fs, n, r->uid, r->flags, o);
    if (!h) {
        fid_clunk(r->task.fs, o->fid.generation, o->fid.fid);
        free(o->text);
        request_error(r, -ENOMEM);
        return NULL;
    }
    if (fixed) {
        attr_to_stat(&o->attr, &h->attr);
        attr_seen(n, &o->attr);
        h->attr_fixed = true;
    }
    return h;
}

static unsigned wanted_with_open(const struct req *r)
{
    const struct node *n = r->node;
    if (node_is_guest(n))
        return 0;
    if ((r->flags & O_ACCMODE) == O_RDONLY && n->size && n->size <= HANDLE_TEXT_MAX && !handle_is_stream(n))
        return OPENING_ATTR | OPENING_TEXT;
    return OPENING_ATTR;
}

/*
 * A second writer must not share the node of one that may be blocked in the kernel, holding the node's lock. Lookups give a taken
 * node out no more, but two may have looked before either opened: ESTALE makes the kernel look again, once per thread.
 */
static bool must_look_again(struct req *r)
{
    struct node *n = r->node;
    if (node_is_guest(n) || (r->flags & O_ACCMODE) == O_RDONLY || n->retried == r->tid)
        return false;
    for (const struct handle *h = n->handles; h; h = h->next)
        if (handle_writes(h)) {
            n->retried = r->tid;
            return true;
        }
    return false;
}

static void open_(struct req *r)
{
    struct node *n = r->node;
    struct opening o;
    int rc;
    if (must_look_again(r)) {
        request_error(r, -ESTALE);
        return;
    }
    if (gesture_open_swallowed(r))
        return;
    if (handle_has_position(n))
        r->flags &= ~O_NONBLOCK;
    if ((rc = gesture_open(r)) < 0) {
        request_error(r, rc);
        return;
    }
    do {
        rc = handle_open_node(&r->task, n, r->uid, handle_p9_flags(r->flags & ~(O_CREAT | O_EXCL)), wanted_with_open(r), &o);
        if (node_is_guest(n) && (r->flags & O_TRUNC))
            rc = task_once(rc);
    } while (task_again(&r->task, &rc));
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    struct handle *h = take_opening(r, n, &o, node_is_control(n));
    if (!h)
        return;
    gesture_opened(r, h);
    ops_reply_open(r, h);
}

void ops_open(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    r->flags = fi->flags;
    request_run(r, open_);
}

/* --- create --- */

struct created {
    struct opening opening;
    struct p9_qid qid;
};

/* Clone of the directory, Tlcreate, Tgetattr: one round trip. */
static int create_once(struct req *r, struct created *out)
{
    struct task *t = &r->task;
    struct fid_ref *ref;
    int rc = fid_get(t, r->node, r->uid, &ref);
    if (rc < 0)
        return rc;
    uint32_t fid = fid_alloc(t->fs), generation = conn_generation(t->fs->conn);
    struct p9_msg walk = {.type = P9_Twalk}, create = {.type = P9_Tlcreate}, getattr = {.type = P9_Tgetattr};
    walk.Twalk.fid = ref->fid;
    walk.Twalk.newfid = fid;
    create.Tlcreate = (struct p9_Tlcreate){.fid = fid,
                                           .name = p9_str_of(r->name),
                                           .flags = handle_p9_flags(r->flags | O_CREAT),
                                           .mode = r->mode & 07777,
                                           .gid = node_holds_guest(r->node) ? 0 : r->gid};
    getattr.Tgetattr = (struct p9_Tgetattr){.fid = fid, .mask = P9_GETATTR_BASIC};
    struct call *walking = call_start(t, &walk);
    struct call *creating = call_start(t, &create);
    struct call *attr = call_start(t, &getattr);
    rc = call_wait(walking);
    if (rc == 0)
        rc = call_wait(creating);
    rc = rc == TASK_UNSENT ? rc : task_once(rc);
    if (rc == 0)
        rc = task_once(call_wait(attr));
    if (rc == 0) {
        out->opening.fid = (struct opened){.fid = fid, .generation = generation};
        out->opening.attr = attr->reply.Rgetattr;
        out->qid = attr->reply.Rgetattr.qid;
    }
    call_end(attr);
    call_end(creating);
    call_end(walking);
    rc = fid_finish(t, ref, rc);
    if (rc < 0)
        fid_clunk(t->fs, generation, fid);
    return rc;
}

void ops_reply_create(struct req *r, struct node *n, struct handle *h, const struct stat *st)
{
    struct fs *fs = r->task.fs;
    struct fuse_file_info fi = {.fh = (uintptr_t)h};
    struct fuse_entry_param e = {.ino = node_ino(fs, n), .generation = 1, .attr = *st, .attr_timeout = attr_timeout(n)};
    fuse_req_t fuse = r->fuse;
    set_caching(n, h->flags, &fi);
    r->fuse = NULL;
    n->lookups++;
    if (fuse_reply_create(fuse, &e, &fi) == -ENOENT) {
        handle_unref(fs, h);
        node_forget(fs, n, 1);
    }
    node_unref(fs, n);
}

static void open_existing(struct req *r)
{
    struct found f;
    struct opening o;
    struct stat st;
    int rc;
    do {
        f = (struct found){0};
        rc = ops_walk_child(&r->task, r->node, r->uid, r->name, &f);
    } while (task_again(&r->task, &rc));
    struct node *n = rc < 0 ? NULL : ops_take_found(r, r->node, r->name, &f);
    if (n)
        rc = handle_open_node(&r->task, n, r->uid, handle_p9_flags(r->flags & ~O_CREAT), OPENING_ATTR, &o);
    if (!n || rc < 0) {
        node_unref(r->task.fs, n);
        request_error(r, rc < 0 ? rc : -ENOMEM);
        return;
    }
    struct handle *h = take_opening(r, n, &o, true);
    if (!h) {
        node_unref(r->task.fs, n);
        return;
    }
    attr_to_stat(&o.attr, &st);
    ops_reply_create(r, n, h, &st);
}

static void create(struct req *r)
{
    struct fs *fs = r->task.fs;
    struct created c = {0};
    int rc;
    if (gesture_create(r))
        return;
    do
        rc = create_once(r, &c);
    while (task_again(&r->task, &rc));
    if (rc == -EEXIST && !(r->flags & O_EXCL) && !node_holds_guest(r->node)) {
        open_existing(r); /* the kernel had been told that it does not exist, for a copy that was none */
        return;
    }
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    struct node *n = node_get(fs, r->node, r->name, &c.qid, c.opening.attr.mode & S_IFMT, r->tid);
    if (!n) {
        fid_clunk(fs, c.opening.fid.generation, c.opening.fid.fid);
        request_error(r, -ENOMEM);
        return;
    }
    struct handle *h = take_opening(r, n, &c.opening, node_is_control(n));
    struct stat st;
    if (!h) {
        node_unref(fs, n);
        return;
    }
    attr_seen(n, &c.opening.attr);
    attr_to_stat(&c.opening.attr, &st);
    ops_reply_create(r, n, h, &st);
}

void ops_create(fuse_req_t fuse, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
    struct req *r = request_create(fuse, parent);
    if (!r || !request_name(r, r->name, name))
        return;
    r->mode = mode;
    r->flags = fi->flags;
    request_run(r, create);
}

/* --- close --- */

static void flush(struct req *r)
{
    request_error(r, gesture_flush(r, r->handle));
}

/* The kernel waits for the answer unkillably, so it comes at once; only the last close of a copy has something to report. */
void ops_flush(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(fuse);
    struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    lock_release_owner(fs, node_of(fs, ino), fi->lock_owner);
    if (!h->copy) {
        fuse_reply_err(fuse, 0);
        return;
    }
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    request_run(r, flush);
}

void ops_release(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(fuse);
    struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    (void)ino;
    gesture_released(h);
    handle_release(fs, h);
    handle_unref(fs, h);
    fuse_reply_err(fuse, 0);
}

static void fsync_(struct req *r)
{
    int rc;
    do {
        struct p9_msg m = {.type = P9_Tfsync};
        m.Tfsync.datasync = (uint32_t)(r->to_set != 0);
        rc = handle_own_fid(&r->task, r->handle, &m.Tfsync.fid);
        if (rc == 0)
            rc = task_once(call_run(&r->task, &m, NULL));
    } while (task_again(&r->task, &rc));
    request_error(r, rc);
}

void ops_fsync(fuse_req_t fuse, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct req *r;
    if (node_is_control(node_of(fuse_req_userdata(fuse), ino))) {
        fuse_reply_err(fuse, 0);
        return;
    }
    r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    r->to_set = datasync;
    request_run(r, fsync_);
}
