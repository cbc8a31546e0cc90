// SPDX-License-Identifier: Apache-2.0
// Lists of parties that wait for something to happen once: 9P requests and coroutines alike.
#ifndef SPACE_HOSTD_WAIT_H
#define SPACE_HOSTD_WAIT_H

#include "base/err.h"
#include "loop/co.h"

#include <stddef.h>

struct waiter {
    struct waiter *next, **prev; /* prev is NULL while not listed */
    /* Called once, unlisted already. `rc` 0 or -errno; `e` has the sentence when rc < 0 (may be NULL). */
    void (*done)(struct waiter *w, int rc, const struct err *e);
};

struct wait_list {
    struct waiter *first;
};

static inline void wait_add(struct wait_list *l, struct waiter *w)
{
    struct waiter **p = &l->first;
    while (*p)
        p = &(*p)->next;
    w->next = NULL;
    w->prev = p;
    *p = w;
}

/* Unlists; a no-op when not listed. */
static inline void wait_remove(struct waiter *w)
{
    if (!w->prev)
        return;
    *w->prev = w->next;
    if (w->next)
        w->next->prev = w->prev;
    w->prev = NULL;
}

/* Ends every waiter that is listed now; ones added meanwhile by their callbacks stay. */
static inline void wait_done_all(struct wait_list *l, int rc, const struct err *e)
{
    struct wait_list now = *l;
    l->first = NULL;
    if (now.first)
        now.first->prev = &now.first;
    while (now.first) {
        struct waiter *w = now.first;
        wait_remove(w);
        w->done(w, rc, e);
    }
}

/* A coroutine as a waiter. */
struct co_waiter {
    struct waiter w;
    struct co *co;
    struct err *e; /* gets the sentence; may be NULL */
};

static inline void co_waiter_done(struct waiter *w, int rc, const struct err *e)
{
    struct co_waiter *c = (struct co_waiter *)(void *)w;
    if (rc < 0 && e && c->e)
        *c->e = *e;
    co_wake(c->co, rc);
}

static inline struct co_waiter co_waiter_of(struct co_sched *s, struct err *e)
{
    return (struct co_waiter){.w.done = co_waiter_done, .co = co_self(s), .e = e};
}

/* Waits until the list is ended, at most `msec` milliseconds (0: without a limit). What wait_done_all was given, -ECANCELED, -ETIMEDOUT. */
static inline int wait_in_list(struct co_sched *s, struct wait_list *l, uint64_t msec)
{
    struct co_waiter c = co_waiter_of(s, NULL);
    wait_add(l, &c.w);
    int rc = msec ? co_wait_msec(s, msec) : co_wait(s);
    wait_remove(&c.w);
    return rc;
}

#endif
