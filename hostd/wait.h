// SPDX-License-Identifier: Apache-2.0
// Lists of parties that wait for something to happen once: 9P requests and coroutines alike.
#ifndef SPACE_HOSTD_WAIT_H
#define SPACE_HOSTD_WAIT_H

#include "base/err.h"

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

#endif
