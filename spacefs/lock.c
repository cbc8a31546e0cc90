// SPDX-License-Identifier: Apache-2.0
// Locks: see lock.h.
//
// Theory of operation. The guest keeps open file description locks, one description per opened fid. POSIX locks belong to (process,
// file), flock locks to an open file; so each lock owner on a node, and each handle that called flock, gets a fid opened for
// locking only, and giving the lock up for good is its clunk. 9P has no waiting lock: a blocked one is asked for again, with
// growing pauses, until it is had or a signal comes. Locks die with the connection. Their owner then gets EIO from reading and
// writing until it closes the file: it must not go on as if it still excluded others.
#include "spacefs/lock.h"

#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#define RETRY_MIN_MSEC 10u
#define RETRY_MAX_MSEC 500u

struct lock {
    struct lock *next;     /* node->locks */
    uint64_t owner;        /* POSIX: the kernel's owner; flock: 0 */
    struct handle *handle; /* flock: whose; POSIX: NULL */
    uint32_t uid;
    struct opened fid;
    bool held; /* something was locked since it was opened */
};

static bool is_lost(struct fs *fs, const struct lock *l)
{
    return l->held && (!conn_is_up(fs->conn) || l->fid.generation != conn_generation(fs->conn));
}

static struct lock *find(struct node *n, const struct handle *h, uint64_t owner)
{
    for (struct lock *l = n->locks; l; l = l->next)
        if (l->handle == h && l->owner == owner)
            return l;
    return NULL;
}

static void drop(struct fs *fs, struct node *n, struct lock *l)
{
    struct lock **p = &n->locks;
    while (*p != l)
        p = &(*p)->next;
    *p = l->next;
    if (l->fid.generation)
        fid_clunk(fs, l->fid.generation, l->fid.fid);
    free(l);
}

void lock_release_owner(struct fs *fs, struct node *n, uint64_t owner)
{
    struct lock *l = n->locks ? find(n, NULL, owner) : NULL;
    if (l)
        drop(fs, n, l);
}

void lock_release_handle(struct fs *fs, struct handle *h)
{
    struct lock *l = h->node->locks ? find(h->node, h, 0) : NULL;
    if (l)
        drop(fs, h->node, l);
}

int lock_check(struct fs *fs, struct handle *h, uint64_t owner)
{
    for (const struct lock *l = h->node->locks; l; l = l->next)
        if ((l->handle ? l->handle == h : l->owner == owner) && is_lost(fs, l))
            return -EIO;
    return 0;
}

/* The fid that this request's locks live on, opened when needed: for both, else as the file is. */
static int lock_fid(struct req *r, struct handle *h, uint64_t owner, uint32_t *fid)
{
    struct fs *fs = r->task.fs;
    struct node *n = r->node;
    struct lock *l = find(n, h, owner);
    if (l && is_lost(fs, l))
        return -EIO;
    if (!l || l->fid.generation != conn_generation(fs->conn)) {
        struct opening o;
        int rc = handle_open_node(&r->task, n, r->handle->uid, P9_RDWR, 0, &o);
        if (rc == -EACCES || rc == -EPERM || rc == -EROFS || rc == -ETXTBSY)
            rc = handle_open_node(&r->task, n, r->handle->uid, (uint32_t)(r->handle->flags & O_ACCMODE), 0, &o);
        if (rc < 0)
            return rc;
        l = find(n, h, owner); /* another thread of the owner may have been here meanwhile */
        if (!l && (l = calloc(1, sizeof *l))) {
            *l = (struct lock){.next = n->locks, .owner = owner, .handle = h, .uid = r->handle->uid};
            n->locks = l;
        }
        if (!l || l->fid.generation == conn_generation(fs->conn))
            fid_clunk(fs, o.fid.generation, o.fid.fid);
        else
            l->fid = o.fid;
        if (!l)
            return -ENOMEM;
    }
    *fid = l->fid.fid;
    return 0;
}

static void range_of(const struct flock *f, uint64_t *start, uint64_t *length)
{
    *start = (uint64_t)f->l_start;
    *length = (uint64_t)f->l_len; /* 0: to the end, in 9P as here */
}

static uint8_t type_of(const struct flock *f)
{
    return f->l_type == F_RDLCK ? P9_LOCK_RDLCK : f->l_type == F_WRLCK ? P9_LOCK_WRLCK : P9_LOCK_UNLCK;
}

/* One Tlock. Returns its status, or a task error. */
static int lock_once(struct req *r, struct handle *h, uint64_t owner)
{
    struct p9_msg m = {.type = P9_Tlock}, reply;
    m.Tlock = (struct p9_Tlock){.type = type_of(&r->lock),
                                .flags = r->sleeps ? P9_LOCK_FLAGS_BLOCK : 0,
                                .proc_id = (uint32_t)r->lock.l_pid,
                                .client_id = p9_str_of("spacefs")};
    range_of(&r->lock, &m.Tlock.start, &m.Tlock.length);
    int rc = lock_fid(r, h, owner, &m.Tlock.fid);
    if (rc == 0)
        rc = task_once(call_run(&r->task, &m, &reply));
    if (rc < 0)
        return rc;
    struct lock *l = find(r->node, h, owner);
    if (reply.Rlock.status == P9_LOCK_SUCCESS && l && r->lock.l_type != F_UNLCK)
        l->held = true;
    return reply.Rlock.status;
}

static int lock_until_had(struct req *r, struct handle *h, uint64_t owner)
{
    for (unsigned pause = RETRY_MIN_MSEC;; pause = pause * 2 < RETRY_MAX_MSEC ? pause * 2 : RETRY_MAX_MSEC) {
        int rc;
        do
            rc = lock_once(r, h, owner);
        while (task_again(&r->task, &rc));
        if (rc < 0 || rc == P9_LOCK_SUCCESS)
            return rc;
        if (rc == P9_LOCK_ERROR)
            return -ENOLCK;
        if (!r->sleeps)
            return -EAGAIN;
        rc = task_sleep(&r->task, pause);
        if (rc < 0)
            return rc;
    }
}

static void setlk(struct req *r)
{
    struct lock *l = find(r->node, NULL, r->lock_owner);
    if (!l && r->lock.l_type == F_UNLCK) {
        request_error(r, 0); /* it has none */
        return;
    }
    request_error(r, lock_until_had(r, NULL, r->lock_owner));
}

static void flock_(struct req *r)
{
    struct fs *fs = r->task.fs;
    if (r->lock.l_type == F_UNLCK) {
        lock_release_handle(fs, r->handle);
        request_error(r, 0);
        return;
    }
    request_error(r, lock_until_had(r, r->handle, 0));
}

static struct req *lock_request(fuse_req_t fuse, fuse_ino_t ino, const struct fuse_file_info *fi)
{
    if (!node_is_guest(node_of(fuse_req_userdata(fuse), ino))) {
        fuse_reply_err(fuse, 0); /* nothing to exclude anybody from */
        return NULL;
    }
    struct req *r = request_create(fuse, ino);
    if (r)
        request_handle(r, fi);
    return r;
}

void ops_setlk(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock, int sleeps)
{
    struct req *r = lock_request(fuse, ino, fi);
    if (!r)
        return;
    r->lock = *lock;
    r->sleeps = sleeps != 0;
    r->task.grace_msec = 0;
    request_run(r, setlk);
}

void ops_flock(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, int op)
{
    struct req *r = lock_request(fuse, ino, fi);
    if (!r)
        return;
    int what = op & ~LOCK_NB;
    r->lock.l_type = what == LOCK_SH ? F_RDLCK : what == LOCK_EX ? F_WRLCK : F_UNLCK;
    r->sleeps = !(op & LOCK_NB);
    r->task.grace_msec = 0;
    request_run(r, flock_);
}

static int getlk_once(struct req *r, struct flock *out)
{
    struct p9_msg m = {.type = P9_Tgetlock}, reply;
    m.Tgetlock = (struct p9_Tgetlock){.type = type_of(&r->lock), .proc_id = (uint32_t)r->lock.l_pid, .client_id = p9_str_of("spacefs")};
    range_of(&r->lock, &m.Tgetlock.start, &m.Tgetlock.length);
    int rc = lock_fid(r, NULL, r->lock_owner, &m.Tgetlock.fid);
    if (rc == 0)
        rc = call_run(&r->task, &m, &reply);
    if (rc < 0)
        return rc;
    const struct p9_Rgetlock *g = &reply.Rgetlock;
    *out = (struct flock){.l_type = g->type == P9_LOCK_RDLCK   ? F_RDLCK
                                    : g->type == P9_LOCK_WRLCK ? F_WRLCK
                                                               : F_UNLCK,
                          .l_whence = SEEK_SET,
                          .l_start = (off_t)g->start,
                          .l_len = (off_t)g->length,
                          .l_pid = (pid_t)g->proc_id};
    return 0;
}

static void getlk(struct req *r)
{
    struct flock out = {0};
    int rc;
    do
        rc = getlk_once(r, &out);
    while (task_again(&r->task, &rc));
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    fuse_reply_lock(fuse, &out);
}

void ops_getlk(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *lock)
{
    if (!node_is_guest(node_of(fuse_req_userdata(fuse), ino))) {
        struct flock none = {.l_type = F_UNLCK};
        fuse_reply_lock(fuse, &none);
        return;
    }
    struct req *r = lock_request(fuse, ino, fi);
    if (!r)
        return;
    r->lock = *lock;
    request_run(r, getlk);
}
