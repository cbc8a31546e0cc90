// SPDX-License-Identifier: Apache-2.0
// The clients of a daemon: see conns.h.
#include "ipc/conns.h"

#include "base/log.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

struct conns {
    uv_loop_t *loop;
    uv_poll_t poll;
    int fd;
    uid_t user;
    const struct conn_ops *theirs;
    struct conn_ops ops; /* theirs, by way of us */
    void *data;
    unsigned max;
    struct conn *conn[];
};

static void on_request(void *user, struct conn *c, const void *request, int *fds, unsigned fd_count)
{
    struct conns *s = user;
    s->theirs->request(s->data, c, request, fds, fd_count);
}

static void on_closed(void *user, struct conn *c)
{
    struct conns *s = user;
    for (unsigned i = 0; i < s->max; i++)
        if (s->conn[i] == c)
            s->conn[i] = NULL;
    if (s->theirs->closed)
        s->theirs->closed(s->data, c);
}

/* Of the right user, and there is a place for it. */
static struct conn **welcome(struct conns *s, int fd)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return NULL;
    if (peer.uid != s->user && peer.uid != 0) {
        log_warn("audit: refused pid %d of uid %u: only uid %u and root may connect", peer.pid, peer.uid, s->user);
        return NULL;
    }
    for (unsigned i = 0; i < s->max; i++)
        if (!s->conn[i])
            return &s->conn[i];
    log_warn("refused pid %d: %u clients are connected already", peer.pid, s->max);
    return NULL;
}

static void on_accept(uv_poll_t *p, int status, int events)
{
    struct conns *s = p->data;
    (void)status, (void)events;
    int fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    struct conn **place = fd >= 0 ? welcome(s, fd) : NULL;
    if (place)
        *place = conn_open(s->loop, fd, &s->ops, s);
    else if (fd >= 0)
        close(fd);
}

struct conns *conns_open(uv_loop_t *loop, int fd, uid_t user, unsigned max, const struct conn_ops *ops, void *data)
{
    struct conns *s = calloc(1, sizeof *s + max * sizeof s->conn[0]);
    if (!s || uv_poll_init(loop, &s->poll, fd) < 0) {
        free(s);
        return NULL;
    }
    s->loop = loop;
    s->fd = fd;
    s->user = user;
    s->theirs = ops;
    s->ops = *ops;
    s->ops.request = on_request;
    s->ops.closed = on_closed;
    s->data = data;
    s->max = max;
    s->poll.data = s;
    uv_poll_start(&s->poll, UV_READABLE, on_accept);
    return s;
}

static void poll_closed(uv_handle_t *h)
{
    free(h->data);
}

void conns_close(struct conns *s)
{
    uv_poll_stop(&s->poll);
    close(s->fd);
    for (unsigned i = 0; i < s->max; i++)
        if (s->conn[i])
            conn_close(s->conn[i]);
    uv_close((uv_handle_t *)&s->poll, poll_closed);
}

void conns_event(struct conns *s, const void *event)
{
    for (unsigned i = 0; i < s->max; i++)
        if (s->conn[i])
            conn_event(s->conn[i], event);
}
