// SPDX-License-Identifier: Apache-2.0
// poll(2) on control files: see poll.h.
//
// Theory of operation. Two kinds of file know waiting. A *stream* (events, stdout, stderr, wait) is ready when a read would return: so
// the first poll starts a read at the offset where the next one is expected, and keeps what it brings for that read. `state` is
// ready until its text was read, and again after a change. Changes are learnt from a watcher, one per uid, that reads the events of
// that uid as long as somebody polls: a line with an object's id marks the polled `state` handles of that object. What happened
// between an opening and the start of watching shows in the file's mtime, which is the time of the last transition. The next
// read from the start then shows the new text, though otherwise a text is fixed by its opening. A connection (ports/) is a stream; it can be written to
// until a write that must not wait found no room, and again after a write of nothing, which waits for room, was answered.
#include "spacefs/poll.h"

#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/ops.h"
#include "spacefs/watcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define READ_AHEAD_MAX 65536u

enum { READY = POLLIN | POLLRDNORM, ALWAYS = POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM };

struct joiner {
    struct joiner *next;
    struct task *task;
};

/* A wait for room to write. */
struct room {
    struct task task; /* first */
    struct handle *handle;
    bool none, waiting;
};

struct poll_state {
    struct task task; /* first: the read ahead */
    struct room room; /* of a connection */
    struct handle *handle;
    struct fuse_pollhandle *ph; /* whoever waits in poll(2) */
    /* streams */
    uint64_t offset; /* of data[0] */
    char *data;
    size_t len, used;
    int rc;       /* of the read */
    bool reading; /* the task runs */
    bool asked;   /* and has sent its request */
    bool done;    /* data, len and rc tell what is at offset */
    struct joiner *joiners;
    /* state */
    struct watch *watch;
    bool changed;
};

static bool is_stream(const struct handle *h)
{
    return node_is_control(h->node) && handle_is_stream(h->node) && (h->flags & O_ACCMODE) != O_WRONLY;
}

static bool is_state(const struct handle *h)
{
    struct node *o = h->node->parent;
    return h->node->kind == NODE_CONTROL && !strcmp(h->node->name, "state") && o && o->object_id;
}

static void set_waiter(struct poll_state *p, struct fuse_pollhandle *ph)
{
    if (p->ph)
        fuse_pollhandle_destroy(p->ph);
    p->ph = ph;
}

static void notify(struct poll_state *p)
{
    struct fuse_pollhandle *ph = p->ph;
    p->ph = NULL;
    if (!ph)
        return;
    fuse_lowlevel_notify_poll(ph);
    fuse_pollhandle_destroy(ph);
}

static struct poll_state *state_of(struct handle *h)
{
    if (!h->poll && (h->poll = calloc(1, sizeof *h->poll)))
        h->poll->handle = h->poll->room.handle = h;
    return h->poll;
}

/* --- streams --- */

static int read_ahead_once(struct poll_state *p)
{
    struct task *t = &p->task;
    struct p9_msg m = {.type = P9_Tread};
    m.Tread.offset = p->offset;
    m.Tread.count = READ_AHEAD_MAX;
    int rc = handle_fid(t, p->handle, false, &m.Tread.fid);
    if (rc < 0)
        return rc;
    struct call *c = call_start(t, &m);
    p->asked = true;
    rc = call_wait(c);
    const struct p9_data *d = &c->reply.Rread.data;
    if (rc == 0 && !(p->data = malloc(d->len + 1u)))
        rc = -ENOMEM;
    if (rc == 0) {
        memcpy(p->data, d->p, d->len);
        p->len = d->len;
        p->used = 0;
    }
    call_end(c);
    return rc;
}

static void read_ahead(struct task *t)
{
    struct poll_state *p = (struct poll_state *)t;
    struct fs *fs = t->fs;
    struct handle *h = p->handle;
    int rc;
    do
        rc = read_ahead_once(p);
    while (task_again(t, &rc));
    p->rc = rc <= TASK_LOST ? -EIO : rc;
    p->reading = false;
    p->done = true;
    task_finish(t);
    notify(p);
    for (struct joiner *j = p->joiners, *next; j; j = next) {
        next = j->next;
        task_wake(j->task, j, 0);
    }
    handle_unref(fs, h);
}

static void start_read_ahead(struct fs *fs, struct poll_state *p)
{
    handle_ref(p->handle);
    p->task = (struct task){.grace_msec = 0};
    p->offset = p->handle->next_offset;
    p->done = p->asked = false;
    p->reading = true;
    task_start(fs, &p->task, read_ahead);
}

static void discard(struct poll_state *p)
{
    free(p->data);
    p->data = NULL;
    p->len = p->used = 0;
    p->done = false;
}

static unsigned poll_stream(struct fs *fs, struct poll_state *p)
{
    if (p->done && p->offset + p->used != p->handle->next_offset && !handle_has_position(p->handle->node))
        discard(p); /* the reader went elsewhere */
    if (!p->done && !p->reading)
        start_read_ahead(fs, p);
    if (!p->done)
        return 0;
    if (p->rc < 0)
        return READY | POLLERR;
    return p->len > p->used ? READY : READY | POLLHUP;
}

/* --- room to write --- */

static int wait_for_room(struct task *t, struct handle *h)
{
    struct p9_msg m = {.type = P9_Twrite};
    m.Twrite.data.p = "";
    int rc = handle_fid(t, h, false, &m.Twrite.fid);
    return rc < 0 ? rc : call_run(t, &m, NULL);
}

/* An error ends the wait as well: the next write tells. */
static void room_found(struct task *t)
{
    struct room *room = (struct room *)t;
    struct handle *h = room->handle;
    struct fs *fs = t->fs;
    wait_for_room(t, h);
    room->none = room->waiting = false;
    task_finish(t);
    notify(h->poll);
    handle_unref(fs, h);
}

static unsigned poll_room(struct fs *fs, struct room *room)
{
    if (room->none && !room->waiting) {
        handle_ref(room->handle);
        room->task = (struct task){.grace_msec = 0};
        room->waiting = true;
        task_start(fs, &room->task, room_found);
    }
    return room->none ? 0 : POLLOUT | POLLWRNORM;
}

void poll_no_room(struct handle *h)
{
    struct poll_state *p = state_of(h);
    if (p)
        p->room.none = true;
}

static int join(struct task *t, struct poll_state *p)
{
    struct joiner j = {.next = p->joiners, .task = t}, **q;
    p->joiners = &j;
    int rc = task_wait(t, &j);
    for (q = &p->joiners; *q != &j; q = &(*q)->next)
        ;
    *q = j.next;
    return rc;
}

/* --- state --- */

/* Did it change between the opening and now? */
static int compare_mtime(struct req *r, struct poll_state *p)
{
    struct fid_ref *ref;
    struct p9_msg m = {.type = P9_Tgetattr}, reply;
    int rc = fid_get(&r->task, r->node, p->handle->uid, &ref);
    if (rc < 0)
        return rc;
    m.Tgetattr = (struct p9_Tgetattr){.fid = ref->fid, .mask = P9_GETATTR_BASIC};
    rc = call_run(&r->task, &m, &reply);
    fid_put(ref);
    if (rc < 0)
        return rc;
    const struct timespec *was = &p->handle->attr.st_mtim;
    if (reply.Rgetattr.mtime_sec != (uint64_t)was->tv_sec || reply.Rgetattr.mtime_nsec != (uint64_t)was->tv_nsec)
        p->changed = true;
    return 0;
}

static void on_change(void *user)
{
    struct poll_state *p = user;
    p->changed = true;
    notify(p);
}

static int start_watching(struct req *r, struct poll_state *p)
{
    int rc;
    p->watch = watch_start(r->task.fs, p->handle->uid, r->node->parent->object_id, on_change, p);
    if (!p->watch)
        return -ENOMEM;
    rc = watch_wait(&r->task, p->watch);
    while (rc == 0 && (rc = compare_mtime(r, p)) < 0 && task_again(&r->task, &rc))
        rc = 0;
    if (rc < 0 && p->watch) { /* the next poll must compare: it does not know what happened until then */
        watch_stop(p->watch);
        p->watch = NULL;
    }
    return rc;
}

static unsigned poll_text(const struct poll_state *p)
{
    if (p->changed)
        return READY | POLLPRI | POLLOUT | POLLWRNORM;
    return p->handle->was_read ? POLLOUT | POLLWRNORM : ALWAYS;
}

/* --- the operation --- */

static void reply_poll(struct req *r, unsigned events)
{
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    fuse_reply_poll(fuse, events);
}

static void poll_(struct req *r)
{
    struct poll_state *p = state_of(r->handle);
    struct fuse_pollhandle *ph = r->poll_handle;
    if (!p) {
        if (ph)
            fuse_pollhandle_destroy(ph);
        request_error(r, -ENOMEM);
        return;
    }
    if (ph)
        set_waiter(p, ph);
    if (is_stream(r->handle) || node_is_port(r->node)) {
        unsigned events = is_stream(r->handle) ? poll_stream(r->task.fs, p) : 0;
        reply_poll(r, events | (node_is_port(r->node) ? poll_room(r->task.fs, &p->room) : 0));
        return;
    }
    int rc = p->watch ? 0 : start_watching(r, p);
    if (rc < 0)
        request_error(r, rc);
    else
        reply_poll(r, poll_text(p));
}

void ops_poll(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi, struct fuse_pollhandle *ph)
{
    struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    struct req *r = NULL;
    if (!is_stream(h) && !is_state(h) && !node_is_port(h->node)) {
        fuse_reply_poll(fuse, ALWAYS);
    } else if ((r = request_create(fuse, ino))) {
        request_handle(r, fi);
        r->poll_handle = ph;
        request_run(r, poll_);
        return;
    }
    if (ph)
        fuse_pollhandle_destroy(ph);
}

/* --- what reads and releases need --- */

bool poll_wants_refresh(const struct handle *h, off_t off)
{
    return h->poll && h->poll->changed && off == 0;
}

/* A round trip on the handle's own fid. */
static int round_trip(struct task *t, struct handle *h)
{
    struct p9_msg m = {.type = P9_Tgetattr}, reply;
    m.Tgetattr.mask = P9_GETATTR_BASIC;
    int rc = handle_fid(t, h, false, &m.Tgetattr.fid);
    return rc < 0 ? rc : call_run(t, &m, &reply);
}

/*
 * Is there something to read without waiting? The read ahead blocks at hostd, which answers in order what it can answer at once: a
 * request that was sent after it and is answered before it says that there is nothing. The read ahead is sent by a task of its own, perhaps
 * only after a round trip of ours. 0 with the data in h->poll, -EAGAIN, or an error.
 */
static int look_now(struct task *t, struct handle *h)
{
    struct poll_state *p = state_of(h);
    if (!p)
        return -ENOMEM;
    for (int turn = 0; turn < 2; turn++) {
        if (p->done && p->rc < 0)
            discard(p); /* an earlier one that failed or was interrupted */
        if (!p->done && !p->reading)
            start_read_ahead(t->fs, p);
        for (bool behind = false; p->reading && !behind;) {
            behind = p->asked;
            int rc = round_trip(t, h);
            if (rc < 0)
                return rc;
        }
        if (p->reading)
            return -EAGAIN;
        if (p->done && p->rc >= 0)
            return 0;
    }
    return p->rc < 0 && p->rc != -EINTR ? p->rc : -EAGAIN;
}

int poll_before_read(struct task *t, struct handle *h, uint64_t off, size_t size, bool nonblock)
{
    struct poll_state *p = h->poll;
    if (p && p->changed && off == 0) {
        int rc;
        p->changed = false;
        do
            rc = handle_refresh(t, h);
        while (task_again(t, &rc));
        return rc;
    }
    if (nonblock && is_stream(h) && handle_has_position(h->node)) {
        int rc = look_now(t, h);
        if (rc < 0)
            return rc;
        p = h->poll;
    }
    while (p && p->reading && (p->offset == off || handle_has_position(h->node))) {
        int rc = nonblock ? -EAGAIN : join(t, p);
        if (rc < 0)
            return rc;
    }
    if (!p || !p->done || (p->offset + p->used != off && !handle_has_position(h->node)))
        return 0;
    if (p->len > p->used)
        return (int)(p->len - p->used < size ? p->len - p->used : size);
    discard(p); /* the end, or an error: let the read find out by itself */
    return 0;
}

void poll_written(struct handle *h)
{
    struct poll_state *p = h->poll;
    if (!p || !is_stream(h) || node_is_port(h->node))
        return;
    if (p->reading)
        task_interrupt(&p->task);
    discard(p);
}

const char *poll_data(const struct handle *h)
{
    return h->poll->data + h->poll->used;
}

void poll_consume(struct handle *h, size_t len)
{
    struct poll_state *p = h->poll;
    p->used += len;
    if (p->used == p->len)
        discard(p);
}

void poll_release(struct handle *h)
{
    struct poll_state *p = h->poll;
    if (!p)
        return;
    set_waiter(p, NULL);
    if (p->reading)
        task_interrupt(&p->task);
    if (p->room.waiting)
        task_interrupt(&p->room.task);
    watch_stop(p->watch);
    p->watch = NULL;
}

void poll_free(struct handle *h)
{
    if (!h->poll)
        return;
    discard(h->poll);
    free(h->poll);
    h->poll = NULL;
}
