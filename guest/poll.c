// SPDX-License-Identifier: Apache-2.0
// The event loop: see poll.h. Timers are few (a handful), so a list without order is enough.
#include "guest/poll.h"

#include <errno.h>
#include <time.h>

int poll_init(struct poll_loop *l)
{
    p9_link_init(&l->timers);
    l->batch_n = l->batch_at = 0;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    return l->epoll < 0 ? -errno : 0;
}

static int control(struct poll_loop *l, int op, struct poll_watch *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};
    return epoll_ctl(l->epoll, op, w->fd, &ev) < 0 ? -errno : 0;
}

int poll_watch_start(struct poll_loop *l, struct poll_watch *w, uint32_t events)
{
    return control(l, EPOLL_CTL_ADD, w, events);
}

int poll_watch_set(struct poll_loop *l, struct poll_watch *w, uint32_t events)
{
    return control(l, EPOLL_CTL_MOD, w, events);
}

void poll_watch_stop(struct poll_loop *l, struct poll_watch *w)
{
    control(l, EPOLL_CTL_DEL, w, 0);
    for (int i = l->batch_at; i < l->batch_n; i++)
        if (l->batch[i].data.ptr == w)
            l->batch[i].data.ptr = NULL;
}

uint64_t poll_now(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void poll_timer_start(struct poll_loop *l, struct poll_timer *t, uint64_t msec)
{
    poll_timer_stop(t);
    t->due = poll_now() + msec;
    p9_link_append(&l->timers, &t->link);
}

void poll_timer_stop(struct poll_timer *t)
{
    if (t->link.next)
        p9_link_remove(&t->link);
}

bool poll_timer_started(const struct poll_timer *t)
{
    return t->link.next && t->link.next != &t->link;
}

static int timeout(struct poll_loop *l)
{
    uint64_t now = poll_now(), least = UINT64_MAX;
    for (struct p9_link *i = l->timers.next; i != &l->timers; i = i->next) {
        const struct poll_timer *t = p9_link_entry(i, struct poll_timer, link);
        if (t->due < least)
            least = t->due;
    }
    if (least == UINT64_MAX)
        return -1;
    if (least <= now)
        return 0;
    return least - now > 60000 ? 60000 : (int)(least - now);
}

static void run_timers(struct poll_loop *l)
{
    struct p9_link due;
    uint64_t now = poll_now();
    p9_link_init(&due);
    for (struct p9_link *i = l->timers.next, *next; i != &l->timers; i = next) {
        next = i->next;
        if (p9_link_entry(i, struct poll_timer, link)->due <= now) {
            p9_link_remove(i);
            p9_link_append(&due, i);
        }
    }
    while (!p9_link_empty(&due)) {
        struct poll_timer *t = p9_link_entry(due.next, struct poll_timer, link);
        p9_link_remove(&t->link);
        t->fire(t);
    }
}

void poll_step(struct poll_loop *l)
{
    l->batch_n = epoll_wait(l->epoll, l->batch, POLL_BATCH, timeout(l));
    for (l->batch_at = 0; l->batch_at < l->batch_n;) {
        struct epoll_event ev = l->batch[l->batch_at++];
        struct poll_watch *w = ev.data.ptr;
        if (w)
            w->ready(w, ev.events);
    }
    l->batch_n = l->batch_at = 0;
    run_timers(l);
}
