// SPDX-License-Identifier: Apache-2.0
// Asynchronous activities: see task.h.
//
// Theory of operation. A task waits for exactly one thing at a time, named by an address (`waiting_for`), so a late wake for
// something it no longer waits for is recognised and dropped. An interrupt passes three stages, moved by one timer that runs only
// while some task is being interrupted: wanted (grace: lookups and the like finish within it and the program never sees EINTR),
// interrupted (Tflush for calls, -EINTR for other waits), detached (the server does not even answer the flush: the task goes
// on with -EINTR and the call's memory waits for the answer alone). A call has two owners, the task and the 9P client.
#include "spacefs/task.h"

#include "9p/client.h"
#include "spacefs/conn.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define INTERRUPT_TICK_MSEC 20u
#define RESENDS_MAX         2u
#define IDLE_WORKERS        32u

/* A coroutine that runs one task after the other: making its stack costs more than most requests. */
struct worker {
    struct worker *next; /* fs->idle_workers */
    struct fs *fs;
    struct co *co;
    struct task *task;
};

static void work(void *arg)
{
    struct worker *w = arg;
    struct fs *fs = w->fs;
    for (;;) {
        w->task->fn(w->task);
        w->task = NULL;
        if (fs->idle_count >= IDLE_WORKERS)
            break;
        w->co = co_self(fs->co);
        w->next = fs->idle_workers;
        fs->idle_workers = w;
        fs->idle_count++;
        co_wait_uncancellable(fs->co);
        if (!w->task)
            break;
    }
    free(w);
}

void task_end_workers(struct fs *fs)
{
    while (fs->idle_workers) {
        struct worker *w = fs->idle_workers;
        fs->idle_workers = w->next;
        fs->idle_count--;
        co_wake(w->co, 0);
    }
}

static void run(struct fs *fs, struct task *t)
{
    struct worker *w = fs->idle_workers;
    if (w) {
        fs->idle_workers = w->next;
        fs->idle_count--;
        w->task = t;
        co_wake(w->co, 0);
        return;
    }
    w = calloc(1, sizeof *w);
    if (!w)
        abort();
    w->fs = fs;
    w->task = t;
    co_spawn(fs->co, work, w);
}

void task_start(struct fs *fs, struct task *t, void (*fn)(struct task *t))
{
    t->fs = fs;
    t->fn = fn;
    t->next = fs->tasks;
    t->link = &fs->tasks;
    if (t->next)
        t->next->link = &t->next;
    fs->tasks = t;
    run(fs, t);
}

void task_finish(struct task *t)
{
    *t->link = t->next;
    if (t->next)
        t->next->link = t->link;
    if (!t->link_interrupted)
        return;
    *t->link_interrupted = t->next_interrupted;
    if (t->next_interrupted)
        t->next_interrupted->link_interrupted = t->link_interrupted;
}

/* --- waiting --- */

int task_wait(struct task *t, const void *object)
{
    if (t->interrupted)
        return -EINTR;
    t->co = co_self(t->fs->co);
    t->waiting_for = object;
    return co_wait_uncancellable(t->fs->co);
}

void task_wake(struct task *t, const void *object, int rc)
{
    if (t->waiting_for != object)
        return;
    t->waiting_for = NULL;
    co_wake(t->co, rc);
}

struct timeout {
    uv_timer_t timer;
    struct task *task;
    const void *object;
};

static void on_timeout(uv_timer_t *h)
{
    struct timeout *to = h->data;
    task_wake(to->task, to->object, -ETIMEDOUT);
}

static void on_timeout_closed(uv_handle_t *h)
{
    free(h->data);
}

int task_wait_msec(struct task *t, const void *object, uint64_t msec)
{
    struct timeout *to = calloc(1, sizeof *to);
    if (!to)
        return -ENOMEM;
    to->task = t;
    to->object = object;
    to->timer.data = to;
    uv_timer_init(t->fs->loop, &to->timer);
    uv_timer_start(&to->timer, on_timeout, msec, 0);
    int rc = task_wait(t, object);
    uv_close((uv_handle_t *)&to->timer, on_timeout_closed);
    return rc;
}

int task_sleep(struct task *t, uint64_t msec)
{
    int rc = task_wait_msec(t, &msec, msec);
    return rc == -ETIMEDOUT ? 0 : rc;
}

/* --- interruption --- */

static bool waits_for_call(const struct task *t)
{
    for (const struct call *c = t->calls; c; c = c->next)
        if (c == t->waiting_for)
            return true;
    return false;
}

static void interrupt_now(struct task *t)
{
    if (!t->interrupted) {
        t->interrupted = true;
        for (struct call *c = t->calls; c; c = c->next)
            if (!c->done)
                p9_call_cancel(c->p9);
    } else {
        t->detached = true;
    }
    if (t->waiting_for && (t->detached || !waits_for_call(t)))
        task_wake(t, t->waiting_for, -EINTR);
}

static void on_interrupt_tick(uv_timer_t *h)
{
    struct fs *fs = h->data;
    uint64_t now = uv_now(fs->loop);
    bool more;
    do { /* a task that runs may change the list: start over after each */
        more = false;
        for (struct task *t = fs->interrupted; t; t = t->next_interrupted) {
            if (t->detached || now < t->interrupt_at)
                continue;
            t->interrupt_at = now + TASK_DETACH_MSEC;
            more = true;
            interrupt_now(t);
            break;
        }
    } while (more);
    if (!fs->interrupted)
        uv_timer_stop(h);
}

void task_interrupt(struct task *t)
{
    struct fs *fs = t->fs;
    if (t->interrupt_wanted)
        return;
    t->interrupt_wanted = true;
    t->interrupt_at = uv_now(fs->loop) + t->grace_msec;
    t->next_interrupted = fs->interrupted;
    t->link_interrupted = &fs->interrupted;
    if (t->next_interrupted)
        t->next_interrupted->link_interrupted = &t->next_interrupted;
    fs->interrupted = t;
    if (!t->grace_msec || !uv_is_active((uv_handle_t *)&fs->interrupt_timer))
        uv_timer_start(&fs->interrupt_timer, on_interrupt_tick, t->grace_msec ? INTERRUPT_TICK_MSEC : 0, INTERRUPT_TICK_MSEC);
}

/* --- calls --- */

static void call_unref(struct call *c)
{
    if (--c->refs)
        return;
    free(c->copy);
    free(c);
}

static void copy_data(struct call *c)
{
    const void *from = NULL;
    size_t len = 0;
    if (c->reply.type == P9_Rread || c->reply.type == P9_Rreaddir) {
        from = c->reply.Rread.data.p;
        len = c->reply.Rread.data.len;
    } else if (c->reply.type == P9_Rreadlink) {
        from = c->reply.Rreadlink.target.s;
        len = c->reply.Rreadlink.target.len;
    }
    if (!len)
        return;
    c->copy = malloc(len);
    if (!c->copy) {
        c->rc = -ENOMEM;
        return;
    }
    memcpy(c->copy, from, len);
    if (c->reply.type == P9_Rreadlink)
        c->reply.Rreadlink.target.s = c->copy;
    else
        c->reply.Rread.data.p = c->copy;
}

_Static_assert(offsetof(struct p9_msg, Rread.data) == offsetof(struct p9_msg, Rreaddir.data), "one copy for both");

static void on_reply(void *user, int err, const struct p9_msg *r)
{
    struct call *c = user;
    struct task *t = c->task;
    c->done = true;
    c->p9 = NULL;
    c->rc = err;
    if (t) {
        if (r)
            c->reply = *r;
        else if (err == 0)
            c->rc = -EIO;
        if (err < 0 && !conn_is_up(t->fs->conn))
            c->rc = err == -EINTR ? -EINTR : TASK_LOST;
        if (t->waiting_for != c && c->rc == 0)
            copy_data(c);
        task_wake(t, c, 0);
    }
    call_unref(c);
}

static struct call *call_create(struct task *t)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->task = t;
    c->refs = 1;
    c->next = t->calls;
    c->link = &t->calls;
    if (c->next)
        c->next->link = &c->next;
    t->calls = c;
    return c;
}

struct call *call_start(struct task *t, struct p9_msg *m)
{
    struct call *c = call_create(t);
    if (t->interrupted || !conn_is_up(t->fs->conn)) {
        c->done = true;
        c->rc = t->interrupted ? -EINTR : TASK_UNSENT;
        return c;
    }
    c->refs++;
    c->p9 = p9_client_call(conn_client(t->fs->conn), m, on_reply, c);
    return c;
}

int call_wait(struct call *c)
{
    if (c->done)
        return c->rc;
    /* An interrupted task still waits here, for the answer to the flush; only a detached one does not. */
    struct task *t = c->task;
    if (t->detached)
        return -EINTR;
    t->co = co_self(t->fs->co);
    t->waiting_for = c;
    int rc = co_wait_uncancellable(t->fs->co);
    return c->done ? c->rc : rc;
}

void call_end(struct call *c)
{
    if (!c)
        return;
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    if (!c->done)
        p9_call_cancel(c->p9);
    c->task = NULL;
    call_unref(c);
}

int call_run(struct task *t, struct p9_msg *m, struct p9_msg *out)
{
    struct call *c = call_start(t, m);
    int rc = call_wait(c);
    if (rc == 0 && out)
        *out = c->reply;
    call_end(c);
    return rc;
}

bool task_again(struct task *t, int *rc)
{
    if (*rc != TASK_LOST && *rc != TASK_UNSENT && *rc != TASK_STALE)
        return false;
    if (*rc == TASK_LOST && ++t->resends > RESENDS_MAX) {
        *rc = -EIO;
        return false;
    }
    int waited = conn_wait(t->fs->conn, t);
    if (waited < 0)
        *rc = waited;
    return waited == 0;
}

int task_once(int rc)
{
    return rc == TASK_LOST ? -EIO : rc;
}
