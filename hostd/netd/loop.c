// SPDX-License-Identifier: Apache-2.0
// The event loop: see loop.h.
#include "hostd/netd/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define BATCH 256

struct grave {
    struct grave *next;
    void *memory;
};

struct loop {
    int epoll;
    uint64_t now;
    struct grave *graves;
    struct epoll_event events[BATCH];
    int count, at; /* of this batch */
};

static void look_at_clock(struct loop *l)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    l->now = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

struct loop *loop_create(void)
{
    struct loop *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    look_at_clock(l);
    return l;
}

int loop_watch(struct loop *l, struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events | EPOLLET, .data.ptr = w};
    return epoll_ctl(l->epoll, EPOLL_CTL_ADD, w->fd, &e) < 0 ? -errno : 0;
}

int loop_change(struct loop *l, struct watch *w, uint32_t events)
{
    struct epoll_event e = {.events = events | EPOLLET, .data.ptr = w};
    return epoll_ctl(l->epoll, EPOLL_CTL_MOD, w->fd, &e) < 0 ? -errno : 0;
}

void loop_forget(struct loop *l, struct watch *w)
{
    if (w->fd < 0)
        return;
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, w->fd, NULL);
    for (int i = l->at; i < l->count; i++)
        if (l->events[i].data.ptr == w)
            l->events[i].data.ptr = NULL;
}

void loop_bury(struct loop *l, void *memory)
{
    struct grave *g = malloc(sizeof *g);
    if (!g)
        return; /* a leak is better than what would follow */
    *g = (struct grave){l->graves, memory};
    l->graves = g;
}

static void empty_graves(struct loop *l)
{
    for (struct grave *g = l->graves, *next; g; g = next) {
        next = g->next;
        free(g->memory);
        free(g);
    }
    l->graves = NULL;
}

int loop_step(struct loop *l, int msec)
{
    l->count = epoll_wait(l->epoll, l->events, BATCH, msec);
    look_at_clock(l);
    if (l->count < 0) {
        l->count = 0;
        return errno == EINTR ? 0 : -errno;
    }
    for (l->at = 0; l->at < l->count;) {
        struct epoll_event *e = &l->events[l->at++];
        struct watch *w = e->data.ptr;
        if (w)
            w->ready(w, e->events);
    }
    l->count = l->at = 0;
    empty_graves(l);
    return 0;
}

uint64_t loop_now(const struct loop *l)
{
    return l->now;
}
