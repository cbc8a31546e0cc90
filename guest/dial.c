// SPDX-License-Identifier: Apache-2.0
// A connection to a TCP port of the guest: see dial.h.
//
// Connecting, a read and a write wait for the socket by themselves; it is watched for what is
// waited for, and not at all when nothing is, since a socket that was hung up is always ready.
#include "guest/dial.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECT_MSEC 10000u
#define PIECE        65536u /* bytes of a read at most */

struct dial {
    unsigned refs; /* an answer may end the fid, and so the connection, while we work on it */
    struct poll_loop *loop;
    struct poll_watch watch; /* fd -1: none */
    bool watching;
    struct poll_timer deadline;
    unsigned place; /* of `places`, being tried */
    uint16_t port;
    struct p9_qid qid;
    struct p9_request *opening, *reading, *writing;
};

static const int places[] = {AF_INET, AF_INET6};
#define PLACES (sizeof places / sizeof places[0])

static void drop(struct dial *d)
{
    if (d->watching)
        poll_watch_stop(d->loop, &d->watch);
    d->watching = false;
    if (d->watch.fd >= 0)
        close(d->watch.fd);
    d->watch.fd = -1;
}

static void rewatch(struct dial *d)
{
    uint32_t events = (d->reading ? (uint32_t)EPOLLIN : 0) | (d->writing || d->opening ? (uint32_t)EPOLLOUT : 0);
    if (d->watch.fd < 0)
        return;
    if (!events && d->watching)
        poll_watch_stop(d->loop, &d->watch);
    else if (events && d->watching)
        poll_watch_set(d->loop, &d->watch, events);
    else if (events)
        poll_watch_start(d->loop, &d->watch, events);
    d->watching = events != 0;
}

static void unref(struct dial *d)
{
    if (--d->refs == 0)
        free(d);
}

/* Takes the request out of its place; it is to be answered. */
static struct p9_request *take(struct p9_request **place)
{
    struct p9_request *r = *place;
    *place = NULL;
    r->cancel = NULL;
    return r;
}

/* ---- connecting ---- */

static void opened(struct dial *d, int code)
{
    struct p9_request *r = take(&d->opening);
    struct p9_msg m = {0};
    poll_timer_stop(&d->deadline);
    if (code) {
        drop(d);
        p9_fail(r, code);
        return;
    }
    rewatch(d);
    m.Rlopen.qid = d->qid;
    p9_reply(r, &m);
}

/* 0, EINPROGRESS, or what went wrong. */
static int try_place(struct dial *d)
{
    int one = 1;
    int family = places[d->place];
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons(d->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons(d->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const struct sockaddr *to = family == AF_INET ? (const struct sockaddr *)&four : (const struct sockaddr *)&six;
    d->watch.fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (d->watch.fd < 0)
        return errno;
    setsockopt(d->watch.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return connect(d->watch.fd, to, family == AF_INET ? sizeof four : sizeof six) < 0 ? errno : 0;
}

/* Goes on from `code`, what the place that was tried last said. The first one's word counts. */
static void go_on(struct dial *d, int code)
{
    int first = code;
    while (code && code != EINPROGRESS) {
        drop(d);
        if (first != ECONNREFUSED || d->place + 1 == PLACES) {
            opened(d, first);
            return;
        }
        d->place++;
        code = try_place(d);
        if (d->place + 1 == PLACES && code && code != EINPROGRESS)
            code = first;
    }
    if (code)
        rewatch(d);
    else
        opened(d, 0);
}

static void connect_done(struct dial *d)
{
    int code = 0;
    socklen_t size = sizeof code;
    if (getsockopt(d->watch.fd, SOL_SOCKET, SO_ERROR, &code, &size) < 0)
        code = errno;
    go_on(d, code && d->place ? ECONNREFUSED : code);
}

static void too_late(struct poll_timer *t)
{
    struct dial *d = (struct dial *)(void *)((char *)t - offsetof(struct dial, deadline));
    opened(d, ETIMEDOUT);
}

static void open_cancel(struct p9_request *r)
{
    opened(r->aux, EINTR);
}

/* ---- reading and writing ---- */

static bool is_again(void)
{
    return errno == EAGAIN || errno == EINTR;
}

static void try_read(struct dial *d)
{
    static char buf[PIECE];
    uint32_t count = d->reading->t->Tread.count;
    struct p9_msg m = {0};
    ssize_t n = recv(d->watch.fd, buf, count < PIECE ? count : PIECE, 0);
    if (n < 0 && is_again())
        return;
    struct p9_request *r = take(&d->reading);
    m.Rread.data.p = buf;
    m.Rread.data.len = n < 0 ? 0 : (uint32_t)n;
    if (n < 0)
        p9_fail(r, ECONNRESET);
    else
        p9_reply(r, &m);
}

static void try_write(struct dial *d)
{
    const struct p9_data *data = &d->writing->t->Twrite.data;
    struct p9_msg m = {0};
    ssize_t n = send(d->watch.fd, data->p, data->len, MSG_NOSIGNAL);
    if (n < 0 && is_again())
        return;
    int code = errno;
    struct p9_request *r = take(&d->writing);
    m.Rwrite.count = n < 0 ? 0 : (uint32_t)n;
    if (n < 0)
        p9_fail(r, code == EPIPE ? EPIPE : ECONNRESET);
    else
        p9_reply(r, &m);
}

static void ready(struct poll_watch *w, uint32_t events)
{
    struct dial *d = (struct dial *)(void *)((char *)w - offsetof(struct dial, watch));
    (void)events;
    if (d->opening) {
        connect_done(d);
        return;
    }
    d->refs++;
    if (d->reading)
        try_read(d);
    if (d->writing)
        try_write(d);
    rewatch(d);
    unref(d);
}

static void read_cancel(struct p9_request *r)
{
    struct dial *d = r->aux;
    take(&d->reading);
    rewatch(d);
    p9_fail(r, EINTR);
}

static void write_cancel(struct p9_request *r)
{
    struct dial *d = r->aux;
    take(&d->writing);
    rewatch(d);
    p9_fail(r, EINTR);
}

/* May `r` wait at `place`? Else it is answered. */
static bool may_wait(struct dial *d, struct p9_request **place, struct p9_request *r, void (*cancel)(struct p9_request *))
{
    if (d->watch.fd < 0 || *place) {
        p9_fail(r, d->watch.fd < 0 ? EBADF : EBUSY);
        return false;
    }
    *place = r;
    r->aux = d;
    r->cancel = cancel;
    return true;
}

void dial_read(struct dial *d, struct p9_request *r)
{
    if (!may_wait(d, &d->reading, r, read_cancel))
        return;
    try_read(d);
    rewatch(d);
}

void dial_write(struct dial *d, struct p9_request *r)
{
    if (!may_wait(d, &d->writing, r, write_cancel))
        return;
    try_write(d);
    rewatch(d);
}

void dial_shut(struct dial *d)
{
    if (d->watch.fd >= 0)
        shutdown(d->watch.fd, SHUT_WR);
}

/* ---- from open to close ---- */

struct dial *dial_open(struct poll_loop *l, uint16_t port, struct p9_qid qid, struct p9_request *r)
{
    struct dial *d = calloc(1, sizeof *d);
    if (!d) {
        p9_fail(r, ENOMEM);
        return NULL;
    }
    *d = (struct dial){.refs = 1, .loop = l, .watch = {-1, ready}, .deadline.fire = too_late, .port = port, .qid = qid, .opening = r};
    r->aux = d;
    r->cancel = open_cancel;
    poll_timer_start(l, &d->deadline, CONNECT_MSEC);
    go_on(d, try_place(d));
    return d;
}

void dial_close(struct dial *d)
{
    if (!d)
        return;
    drop(d);
    poll_timer_stop(&d->deadline);
    unref(d);
}
