// SPDX-License-Identifier: Apache-2.0
// The event loop of the guest's daemon: descriptors and timers on epoll, one thread.
#ifndef SPACE_GUEST_POLL_H
#define SPACE_GUEST_POLL_H

#include "9p/link.h"

#include <stdint.h>
#include <sys/epoll.h>

#define POLL_BATCH 32

/* A descriptor that is watched; embedded in its owner. The descriptor is the owner's to close,
 * after poll_watch_stop. */
struct poll_watch {
    int fd;
    void (*ready)(struct poll_watch *w, uint32_t events); /* EPOLL* bits */
};

/* Embedded in its owner; zero-initialised: not started. */
struct poll_timer {
    struct p9_link link;
    uint64_t due; /* CLOCK_MONOTONIC, milliseconds */
    void (*fire)(struct poll_timer *t);
};

struct poll_loop {
    int epoll;
    struct p9_link timers;
    struct epoll_event batch[POLL_BATCH];
    int batch_n, batch_at;
};

/* 0 or -errno. */
int poll_init(struct poll_loop *l);

/* Starts or changes watching for `events` (EPOLLERR and EPOLLHUP always come). 0 or -errno.
 * Callbacks may do anything, freeing the watch included. */
int poll_watch_start(struct poll_loop *l, struct poll_watch *w, uint32_t events);
int poll_watch_set(struct poll_loop *l, struct poll_watch *w, uint32_t events);
/* No callback comes after this. */
void poll_watch_stop(struct poll_loop *l, struct poll_watch *w);

/* Fires once, `msec` from now; a started timer is started anew. */
void poll_timer_start(struct poll_loop *l, struct poll_timer *t, uint64_t msec);
void poll_timer_stop(struct poll_timer *t);
bool poll_timer_started(const struct poll_timer *t);

/* Waits once and dispatches. */
void poll_step(struct poll_loop *l);

uint64_t poll_now(void);

#endif
