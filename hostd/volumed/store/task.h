// SPDX-License-Identifier: Apache-2.0
// Steps of coroutines: blocking work on a thread, many of the same kind side by side, waiting for one of several things.
#ifndef SPACE_VOLUMED_TASK_H
#define SPACE_VOLUMED_TASK_H

#include "base/err.h"
#include "loop/co.h"

#include <stdbool.h>
#include <stddef.h>

/* Runs fn(arg) in libuv's pool and waits for it, whatever happens. */
void task_thread(struct co_sched *s, void (*fn)(void *arg), void *arg);

/* Calls fn(user, i, e) for 0 <= i < count in `width` coroutines, waits for all. The first failure ends it: its rc and sentence are returned. Aborts are passed on. */
int task_each(struct co_sched *s, size_t count, unsigned width, int (*fn)(void *user, size_t i, struct err *e), void *user, struct err *e);

/* Something that one coroutine waits for, and others (on the loop) set. */
struct task_event {
    struct co_sched *sched;
    struct co *waiter;
    bool set;
};
void task_set(struct task_event *ev);
/* Until it is set, which this takes back. -ECANCELED when aborted (and `deaf` is false). */
int task_wait(struct task_event *ev, bool deaf);

/* A number of things of which coroutines take one each; first come, first served. */
struct task_pool {
    struct co_sched *sched;
    unsigned free;
    struct task_turn *first, **last; /* who waits */
};
void task_pool_init(struct task_pool *p, struct co_sched *s, unsigned count);
int task_pool_take(struct task_pool *p); /* 0, -ECANCELED */
void task_pool_give(struct task_pool *p);

#endif
