// SPDX-License-Identifier: Apache-2.0
// The connection to space-hostd: see conn.h.
//
// Theory of operation. States: down (a retry timer runs), greeting (connected, Tversion sent, a timer guards the answer), up.
// Every failure leads to down. Messages are collected while the loop handles events and handed to the socket together just
// before it sleeps, so that a pipelined walk, getattr and open are one system call here and one wake-up there.
#include "spacefs/conn.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "loop/stream.h"
#include "spacefs/fs.h"
#include "spacefs/task.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#define RETRY_MIN_MSEC 20u
#define RETRY_MAX_MSEC 250u
#define GREETING_MSEC  2000u
#define GAVE_UP_SIZE   1024u
#define GAVE_UP_MSEC   50u /* between two requests of one system call */

enum conn_state { CONN_DOWN, CONN_GREETING, CONN_UP };

struct waiter {
    struct waiter *next, **link;
    struct task *task;
};

struct conn {
    struct fs *fs;
    struct sockaddr_un addr;
    void (*changed)(struct fs *fs, bool up);
    enum conn_state state;
    struct p9_client *client;
    struct stream *stream;
    uv_timer_t timer;   /* retry when down, guard when greeting */
    uv_async_t pending; /* the client has callbacks to make */
    unsigned backoff;
    unsigned closing; /* handles whose close callback is to come */
    struct waiter *waiters;
    struct {
        pid_t tid;
        uint64_t at;
    } gave_up[GAVE_UP_SIZE]; /* threads that waited in vain, a ring */
    unsigned gave_up_next;
};

static void start_connecting(struct conn *c);

static void transport_send(void *user, void *buf, size_t len)
{
    struct conn *c = user;
    if (c->stream)
        stream_send(c->stream, buf, len);
    else
        free(buf);
}

static void on_pending(uv_async_t *h)
{
    struct conn *c = h->data;
    p9_client_run_pending(c->client);
}

static void client_wake(void *user)
{
    struct conn *c = user;
    uv_async_send(&c->pending);
}

static void on_retry(uv_timer_t *h)
{
    start_connecting(h->data);
}

/* Back to down, whatever the state; calls in flight end as lost. */
static void drop(struct conn *c, const char *why)
{
    bool was_up = c->state == CONN_UP;
    if (c->state == CONN_DOWN)
        return;
    c->state = CONN_DOWN;
    if (was_up)
        log_warn("connection to space-hostd lost: %s", why);
    else
        log_debug("cannot greet space-hostd: %s", why);
    stream_close(c->stream);
    c->stream = NULL;
    uv_timer_start(&c->timer, on_retry, c->backoff, 0);
    p9_client_disconnected(c->client);
    if (was_up && c->changed)
        c->changed(c->fs, false);
}

static void on_input(void *user, const void *buf, size_t len)
{
    struct conn *c = user;
    int rc = p9_client_input(c->client, buf, len);
    if (rc < 0)
        drop(c, strerror(-rc));
}

static void on_closed(void *user, int err)
{
    drop(user, err ? strerror(-err) : "it closed");
}

static void on_greeting_late(uv_timer_t *h)
{
    drop(h->data, "no answer to Tversion");
}

static void wake_waiters(struct conn *c)
{
    for (struct waiter *w = c->waiters, *next; w; w = next) {
        next = w->next;
        task_wake(w->task, w, 0);
    }
}

static void on_ready(void *user, int err, const struct p9_msg *r)
{
    struct conn *c = user;
    if (c->state != CONN_GREETING)
        return;
    if (err < 0 || !r) {
        if (err != -ECONNRESET)
            drop(c, strerror(-err));
        return;
    }
    c->state = CONN_UP;
    c->backoff = RETRY_MIN_MSEC;
    uv_timer_stop(&c->timer);
    log_info("connected to space-hostd at %s", c->addr.sun_path);
    if (c->changed)
        c->changed(c->fs, true);
    wake_waiters(c);
}

static int connect_socket(const struct conn *c)
{
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&c->addr, sizeof c->addr) < 0)
        return -errno;
    return steal_fd(&fd);
}

static void start_connecting(struct conn *c)
{
    static const struct stream_ops ops = {.input = on_input, .closed = on_closed};
    int fd = connect_socket(c);
    if (fd >= 0)
        c->stream = stream_open(c->fs->loop, fd, &ops, c);
    c->backoff = c->backoff * 2 > RETRY_MAX_MSEC ? RETRY_MAX_MSEC : c->backoff * 2;
    if (!c->stream) {
        uv_timer_start(&c->timer, on_retry, c->backoff, 0);
        return;
    }
    struct p9_transport transport = {.user = c, .send = transport_send};
    c->state = CONN_GREETING;
    uv_timer_start(&c->timer, on_greeting_late, GREETING_MSEC, 0);
    p9_client_connect(c->client, &transport, P9_MSIZE_MAX, on_ready, c);
}

struct conn *conn_create(struct fs *fs, const char *path, void (*changed)(struct fs *fs, bool up))
{
    struct conn *c = calloc(1, sizeof *c);
    if (!c || !(c->client = p9_client_create()))
        abort();
    c->fs = fs;
    c->changed = changed;
    c->backoff = RETRY_MIN_MSEC;
    c->addr.sun_family = AF_UNIX;
    strncpy(c->addr.sun_path, path, sizeof c->addr.sun_path - 1);
    uv_timer_init(fs->loop, &c->timer);
    uv_async_init(fs->loop, &c->pending, on_pending);
    c->timer.data = c->pending.data = c;
    p9_client_set_wake(c->client, client_wake, c);
    start_connecting(c);
    return c;
}

static void on_handle_closed(uv_handle_t *h)
{
    struct conn *c = h->data;
    if (--c->closing)
        return;
    free(c);
}

void conn_destroy(struct conn *c)
{
    if (!c)
        return;
    c->changed = NULL;
    c->state = CONN_DOWN;
    stream_close(c->stream);
    c->stream = NULL;
    p9_client_destroy(c->client);
    c->closing = 2;
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
    uv_close((uv_handle_t *)&c->pending, on_handle_closed);
}

bool conn_is_up(const struct conn *c)
{
    return c->state == CONN_UP;
}

struct p9_client *conn_client(struct conn *c)
{
    return c->client;
}

uint32_t conn_generation(const struct conn *c)
{
    return p9_client_generation(c->client);
}

static bool has_given_up(const struct conn *c, pid_t tid)
{
    uint64_t now = uv_now(c->fs->loop);
    for (unsigned i = 0; tid && i < GAVE_UP_SIZE; i++)
        if (c->gave_up[i].tid == tid && now < c->gave_up[i].at + GAVE_UP_MSEC)
            return true;
    return false;
}

static int give_up(struct conn *c, pid_t tid)
{
    unsigned i = c->gave_up_next++ % GAVE_UP_SIZE;
    c->gave_up[i].tid = tid;
    c->gave_up[i].at = uv_now(c->fs->loop);
    return -EIO;
}

int conn_wait(struct conn *c, struct task *t)
{
    uint64_t now = uv_now(c->fs->loop);
    if (c->state == CONN_UP)
        return 0;
    if (!t->deadline)
        t->deadline = has_given_up(c, t->tid) ? now : now + CONN_WAIT_MSEC;
    while (c->state != CONN_UP) {
        struct waiter w = {.task = t, .next = c->waiters, .link = &c->waiters};
        now = uv_now(c->fs->loop);
        if (now >= t->deadline)
            return give_up(c, t->tid);
        if (w.next)
            w.next->link = &w.next;
        c->waiters = &w;
        int rc = task_wait_msec(t, &w, t->deadline - now);
        *w.link = w.next;
        if (w.next)
            w.next->link = w.link;
        if (rc == -EINTR)
            return rc;
    }
    return 0;
}
