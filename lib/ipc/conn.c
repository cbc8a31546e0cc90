// SPDX-License-Identifier: Apache-2.0
// A client's connection: see conn.h.
#include "ipc/conn.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "ipc/packet.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct packet {
    struct packet *next;
    int fd;
    unsigned char bytes[]; /* reply_size of them */
};

struct conn {
    const struct conn_ops *ops;
    void *user;
    uv_poll_t poll;
    int fd; /* -1: closed */
    uint32_t refs, requests, queued;
    bool greeted;
    struct packet *first, **last; /* what the socket had no room for */
};

static void on_poll(uv_poll_t *p, int status, int events);

static void update(struct conn *c)
{
    int events = (c->requests < CONN_REQUESTS_MAX ? UV_READABLE : 0) | (c->first ? UV_WRITABLE : 0) | UV_DISCONNECT;
    if (c->fd >= 0)
        uv_poll_start(&c->poll, events, on_poll);
}

static void poll_closed(uv_handle_t *h)
{
    conn_unref(h->data);
}

void conn_ref(struct conn *c)
{
    c->refs++;
}

void conn_unref(struct conn *c)
{
    if (--c->refs == 0)
        free(c);
}

static void packet_free(struct packet *p)
{
    cleanup_close(&p->fd);
    free(p);
}

void conn_close(struct conn *c)
{
    if (c->fd < 0)
        return;
    uv_poll_stop(&c->poll);
    close(c->fd);
    c->fd = -1;
    for (struct packet *p = c->first, *next; p; p = next) {
        next = p->next;
        packet_free(p);
    }
    c->first = NULL;
    c->ops->closed(c->user, c);
    uv_close((uv_handle_t *)&c->poll, poll_closed);
}

struct conn *conn_open(uv_loop_t *loop, int fd, const struct conn_ops *ops, void *user)
{
    struct conn *c = calloc(1, sizeof *c);
    if (!c || ops->request_size > CONN_REQUEST_SIZE_MAX || uv_poll_init(loop, &c->poll, fd) < 0) {
        close(fd);
        free(c);
        return NULL;
    }
    c->ops = ops;
    c->user = user;
    c->fd = fd;
    c->refs = 1; /* the poll handle's */
    c->last = &c->first;
    c->poll.data = c;
    update(c);
    return c;
}

/* 1 sent, 0 no room now, -errno. */
static int transmit(const struct conn *c, const void *packet, int fd)
{
    struct iovec iov = {(void *)(uintptr_t)packet, c->ops->reply_size};
    return packet_send(c->fd, &iov, 1, &fd, fd >= 0);
}

/* Takes `fd`. */
static void queue_packet(struct conn *c, const void *packet, int fd)
{
    struct packet *p = c->queued < c->ops->output_max ? malloc(sizeof *p + c->ops->reply_size) : NULL;
    if (!p) {
        log_warn("a client does not read its answers: hanging up");
        cleanup_close(&fd);
        conn_close(c);
        return;
    }
    memcpy(p->bytes, packet, c->ops->reply_size);
    p->next = NULL;
    p->fd = fd;
    *c->last = p;
    c->last = &p->next;
    c->queued++;
    update(c);
}

/* Takes `fd`. */
static void send_packet(struct conn *c, const void *packet, int fd)
{
    int rc = c->fd < 0 ? -EPIPE : c->first ? 0 : transmit(c, packet, fd);
    if (rc == 0) {
        queue_packet(c, packet, fd);
        return;
    }
    cleanup_close(&fd);
    if (rc < 0)
        conn_close(c);
}

void conn_reply(struct conn *c, const void *reply, int fd)
{
    c->requests--;
    send_packet(c, reply, fd);
    update(c);
}

void conn_event(struct conn *c, const void *event)
{
    if (c->greeted)
        send_packet(c, event, -1);
}

void conn_progress(struct conn *c, const void *event)
{
    if (c->fd >= 0 && !c->first && transmit(c, event, -1) < 0)
        conn_close(c);
}

static void flush(struct conn *c)
{
    while (c->first) {
        struct packet *p = c->first;
        int rc = transmit(c, p->bytes, p->fd);
        if (rc < 0)
            conn_close(c);
        if (rc <= 0)
            return;
        c->first = p->next;
        if (!c->first)
            c->last = &c->first;
        c->queued--;
        packet_free(p);
    }
    update(c);
}

static unsigned take_fds(struct msghdr *msg, int fds[CONN_FDS])
{
    unsigned count = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(msg); h; h = CMSG_NXTHDR(msg, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
            if (count < CONN_FDS)
                fds[count++] = fd;
            else
                close(fd);
        }
    }
    return count;
}

/* One packet. False: nothing more to read now. */
static bool receive(struct conn *c)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(CONN_FDS * sizeof(int))];
    } control;
    _Alignas(max_align_t) unsigned char request[CONN_REQUEST_SIZE_MAX];
    char excess;
    size_t size = c->ops->request_size;
    struct iovec iov[] = {{request, size}, {&excess, 1}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    if (c->ops->takes_fds) { /* without room for them the kernel drops them */
        msg.msg_control = &control;
        msg.msg_controllen = sizeof control;
    }
    int fds[CONN_FDS];
    ssize_t got = recvmsg(c->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    unsigned count = got > 0 ? take_fds(&msg, fds) : 0;
    bool cut = c->ops->takes_fds && (msg.msg_flags & MSG_CTRUNC);
    if (got == (ssize_t)size && !cut) {
        c->requests++;
        c->ops->request(c->user, c, request, fds, count);
        return true;
    }
    while (count > 0)
        close(fds[--count]);
    if (got > 0)
        log_warn("a client sent a packet that is no request: hanging up");
    conn_close(c);
    return false;
}

static void on_poll(uv_poll_t *p, int status, int events)
{
    struct conn *c = p->data;
    conn_ref(c);
    if (status < 0)
        conn_close(c);
    if (c->fd >= 0 && (events & UV_WRITABLE))
        flush(c);
    if (events & (UV_READABLE | UV_DISCONNECT))
        while (c->fd >= 0 && c->requests < CONN_REQUESTS_MAX && receive(c))
            ;
    if (c->fd >= 0 && (events & UV_DISCONNECT) && c->requests >= CONN_REQUESTS_MAX)
        conn_close(c); /* nobody is left to answer */
    update(c);
    conn_unref(c);
}

bool conn_greeted(const struct conn *c)
{
    return c->greeted;
}

void conn_set_greeted(struct conn *c)
{
    c->greeted = true;
}
