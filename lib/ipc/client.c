// SPDX-License-Identifier: Apache-2.0
// A connection that comes back by itself: see client.h.
#include "ipc/client.h"

#include "base/str.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

struct client {
    uv_loop_t *loop;
    char path[108];
    const struct client_ops *ops;
    void *user;
    uv_poll_t *poll; /* NULL: not connected */
    int fd;
    uv_timer_t *retry;
    _Alignas(max_align_t) unsigned char in[]; /* packet_max, and a NUL */
};

static void handle_closed(uv_handle_t *h)
{
    free(h);
}

static void disconnect(struct client *c)
{
    if (!c->poll)
        return;
    uv_poll_stop(c->poll);
    uv_close((uv_handle_t *)c->poll, handle_closed);
    c->poll = NULL;
    close(c->fd);
}

static void try_connect(uv_timer_t *t);

void client_hang_up(struct client *c)
{
    if (!c->poll)
        return;
    disconnect(c);
    uv_timer_start(c->retry, try_connect, c->ops->retry_msec, 0);
    c->ops->down(c->user);
}

static void on_poll(uv_poll_t *p, int status, int events);

static void watch(struct client *c, int events)
{
    uv_poll_start(c->poll, UV_READABLE | events, on_poll);
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    struct client *c = p->data;
    ssize_t size = status;
    while (size >= 0 && c->poll == p) {
        int fd = -1;
        size = packet_receive(c->fd, c->in, c->ops->packet_max, c->ops->takes_fds ? &fd : NULL);
        if (size == 0)
            break;
        if (size > 0) {
            c->in[size] = 0;
            c->ops->packet(c->user, c->in, (size_t)size, fd);
        }
    }
    if (c->poll != p)
        return;
    if (size < 0) {
        client_hang_up(c);
        return;
    }
    if (events & UV_WRITABLE)
        watch(c, 0);
    if (c->ops->ready)
        c->ops->ready(c->user);
}

static void try_connect(uv_timer_t *t)
{
    struct client *c = t->data;
    int fd = packet_connect(c->path);
    uv_poll_t *poll = fd < 0 ? NULL : calloc(1, sizeof *poll);
    if (!poll || uv_poll_init(c->loop, poll, fd) < 0) {
        free(poll);
        if (fd >= 0)
            close(fd);
        uv_timer_start(c->retry, try_connect, c->ops->retry_msec, 0);
        return;
    }
    c->fd = fd;
    c->poll = poll;
    poll->data = c;
    watch(c, 0);
    c->ops->up(c->user);
}

struct client *client_open(uv_loop_t *loop, const char *path, const struct client_ops *ops, void *user)
{
    struct client *c = calloc(1, sizeof *c + ops->packet_max + 1);
    uv_timer_t *retry = calloc(1, sizeof *retry);
    if (!c || !retry) {
        free(c);
        free(retry);
        return NULL;
    }
    c->loop = loop;
    str_copy(c->path, sizeof c->path, path);
    c->ops = ops;
    c->user = user;
    c->retry = retry;
    uv_timer_init(loop, retry);
    retry->data = c;
    uv_timer_start(retry, try_connect, 0, 0);
    return c;
}

void client_close(struct client *c)
{
    disconnect(c);
    uv_close((uv_handle_t *)c->retry, handle_closed);
    free(c);
}

bool client_is_up(const struct client *c)
{
    return c->poll;
}

int client_send(struct client *c, const struct iovec *parts, unsigned part_count, const int *fds, unsigned fd_count)
{
    if (!c->poll)
        return -ENOTCONN;
    int rc = packet_send(c->fd, parts, part_count, fds, fd_count);
    if (rc == 0)
        watch(c, UV_WRITABLE);
    return rc; /* a broken connection is seen by who reads it */
}
