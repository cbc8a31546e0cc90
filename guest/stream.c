// SPDX-License-Identifier: Apache-2.0
// A job's output: see stream.h. The ring's index is the offset modulo its size, a power of two that
// grows with need.
#include "guest/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/*
 * A stream that had little is left alone for a while after it was read. A writer of small pieces
 * would otherwise be interrupted, and a message sent, for each of them; now the pipe collects. What
 * comes after a silence goes out at once, and who fills the pipe is never made to wait.
 */
#define REST_MSEC  2
#define REST_BELOW (32u * 1024)

struct pending_read {
    struct p9_link link;
    struct p9_request *r;
};

static void read_cancel(struct p9_request *r)
{
    struct pending_read *p = r->aux;
    p9_link_remove(&p->link);
    free(p);
    p9_fail(r, EINTR);
}

static void answer(struct p9_request *r, const void *p, size_t n)
{
    struct p9_msg m = {0};
    m.Rread.data.p = p;
    m.Rread.data.len = (uint32_t)n;
    p9_reply(r, &m);
}

/* Answers if it can be answered now. */
static bool try_read(struct stream *s, struct p9_request *r)
{
    uint64_t at = r->t->Tread.offset;
    if (at < s->base || at > s->end) {
        p9_fail(r, ERANGE);
        return true;
    }
    if (at == s->end) {
        if (s->watch.fd >= 0)
            return false;
        answer(r, NULL, 0);
        return true;
    }
    size_t from = (size_t)at & (s->cap - 1), n = (size_t)(s->end - at);
    if (n > s->cap - from)
        n = s->cap - from;
    if (n > r->t->Tread.count)
        n = r->t->Tread.count;
    answer(r, s->ring + from, n);
    return true;
}

static void answer_waiting(struct stream *s)
{
    struct p9_link all;
    p9_link_init(&all);
    p9_link_splice(&all, &s->reads);
    while (!p9_link_empty(&all)) {
        struct pending_read *p = p9_link_entry(all.next, struct pending_read, link);
        struct p9_request *r = p->r;
        p9_link_remove(&p->link);
        r->cancel = NULL;
        r->aux = NULL;
        if (try_read(s, r)) {
            free(p);
            continue;
        }
        r->aux = p;
        r->cancel = read_cancel;
        p9_link_append(&s->reads, &p->link);
    }
}

static void grow(struct stream *s)
{
    size_t cap = s->cap ? s->cap * 2 : STREAM_SMALL;
    char *ring = s->cap && s->budget->used + cap - s->cap > s->budget->max ? NULL : malloc(cap);
    if (!ring)
        return;
    s->budget->used += cap - s->cap;
    for (uint64_t at = s->base; at < s->end;) {
        size_t from = (size_t)at & (s->cap - 1), n = (size_t)(s->end - at);
        size_t to = (size_t)at & (cap - 1);
        n = n < s->cap - from ? n : s->cap - from;
        n = n < cap - to ? n : cap - to;
        memcpy(ring + to, s->ring + from, n);
        at += n;
    }
    free(s->ring);
    s->ring = ring;
    s->cap = cap;
}

static void close_input(struct stream *s)
{
    poll_timer_stop(&s->rest);
    if (s->watching)
        poll_watch_stop(s->loop, &s->watch);
    s->watching = false;
    if (s->watch.fd >= 0)
        close(s->watch.fd);
    s->watch.fd = -1;
}

static void watch(struct stream *s, bool on)
{
    if (s->watching == on || s->watch.fd < 0)
        return;
    s->watching = on;
    if (on)
        poll_watch_start(s->loop, &s->watch, EPOLLIN);
    else
        poll_watch_stop(s->loop, &s->watch);
}

/* One read into the ring: > 0 bytes, 0 ring full, else -EAGAIN or -EPIPE for the end. */
static ssize_t fill(struct stream *s)
{
    if (s->end - s->base == s->cap && s->cap < STREAM_MAX)
        grow(s);
    size_t room = s->cap - (size_t)(s->end - s->base);
    if (room == 0)
        return 0;
    size_t at = (size_t)s->end & (s->cap - 1);
    ssize_t n = read(s->watch.fd, s->ring + at, room < s->cap - at ? room : s->cap - at);
    if (n > 0) {
        s->end += (uint64_t)n;
        return n;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? -EAGAIN : -EPIPE;
}

bool stream_drain(struct stream *s)
{
    ssize_t n = 1;
    if (s->watch.fd < 0)
        return true;
    while (n > 0)
        n = fill(s);
    if (n == -EPIPE)
        close_input(s);
    watch(s, n != 0);
    answer_waiting(s);
    return n != 0;
}

static void stream_ready(struct poll_watch *w, uint32_t events)
{
    struct stream *s = (struct stream *)(void *)((char *)w - offsetof(struct stream, watch));
    (void)events;
    uint64_t before = s->end;
    bool empty = stream_drain(s);
    if (s->watching && s->end - before < REST_BELOW) {
        watch(s, false);
        poll_timer_start(s->loop, &s->rest, REST_MSEC);
    }
    if (empty && s->drained)
        s->drained(s->user);
}

static void rest_over(struct poll_timer *t)
{
    watch((struct stream *)(void *)((char *)t - offsetof(struct stream, rest)), true);
}

void stream_init(struct stream *s, struct poll_loop *l, struct stream_budget *budget, int fd)
{
    *s = (struct stream){.loop = l, .budget = budget, .watch = {fd, stream_ready}, .rest.fire = rest_over};
    p9_link_init(&s->reads);
    watch(s, true);
}

void stream_read(struct stream *s, struct p9_request *r)
{
    uint64_t at = r->t->Tread.offset;
    if (at > s->base && at <= s->end) {
        s->base = at;
        if (!poll_timer_started(&s->rest))
            watch(s, true);
    }
    if (try_read(s, r))
        return;
    struct pending_read *p = malloc(sizeof *p);
    if (!p) {
        p9_fail(r, ENOMEM);
        return;
    }
    *p = (struct pending_read){.r = r};
    p9_link_append(&s->reads, &p->link);
    r->aux = p;
    r->cancel = read_cancel;
}

uint64_t stream_mark(const struct stream *s)
{
    int n = 0;
    if (s->watch.fd >= 0 && ioctl(s->watch.fd, FIONREAD, &n) < 0)
        n = 0;
    return s->end + (uint64_t)n;
}

void stream_finish(struct stream *s)
{
    close_input(s);
    s->drained = NULL;
    answer_waiting(s);
    free(s->ring);
    s->budget->used -= s->cap;
    s->ring = NULL;
    s->cap = 0;
    s->base = s->end;
}
