// SPDX-License-Identifier: Apache-2.0
// netd's event loop: epoll, edge-triggered, on one thread.
//
// A watch is embedded in what it belongs to. It is told of each change of readiness once, so its
// owner remembers what is ready and goes on until EAGAIN. Memory of an owner that ends inside a
// callback is freed by loop_bury, after the batch of events that may still name it.
#ifndef SPACE_NETD_LOOP_H
#define SPACE_NETD_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

struct loop;

struct watch {
    int fd; /* -1: not watched */
    void (*ready)(struct watch *w, uint32_t events);
};

struct loop *loop_create(void);
/* 0 or -errno. */
int loop_watch(struct loop *l, struct watch *w, uint32_t events);
int loop_change(struct loop *l, struct watch *w, uint32_t events);
/* No callback follows. Does not close. */
void loop_forget(struct loop *l, struct watch *w);
/* free() later. */
void loop_bury(struct loop *l, void *memory);

/* One batch: waits `msec` at most. 0 or -errno. */
int loop_step(struct loop *l, int msec);

/* Milliseconds of CLOCK_MONOTONIC when the batch began. */
uint64_t loop_now(const struct loop *l);

#endif
