// SPDX-License-Identifier: Apache-2.0
// Steps of coroutines: see task.h.
#include "hostd/volumed/store/task.h"

#include <errno.h>
#include <stdlib.h>

/* ---- threads ---- */

struct thread {
    uv_work_t work;
    struct co *co;
    void (*fn)(void *arg);
    void *arg;
    bool done, waiting;
};

static void thread_work(uv_work_t *w)
{
    struct thread *t = w->data;
    t->fn(t->arg);
}

static void thread_done(uv_work_t *w, int status)
{
    struct thread *t = w->data;
    (void)status; /* nobody cancels it */
    t->done = true;
    co_wake(t->co, 0);
}

void task_thread(struct co_sched *s, void (*fn)(void *arg), void *arg)
{
    struct thread t = {.co = co_self(s), .fn = fn, .arg = arg};
    t.work.data = &t;
    if (uv_queue_work(co_loop(s), &t.work, thread_work, thread_done) < 0)
        abort();
    while (!t.done)
        co_wait_uncancellable(s);
}

/* ---- side by side ---- */

struct each {
    struct co_sched *sched;
    struct task_event ended;
    size_t count, next;
    unsigned running;
    int (*fn)(void *user, size_t i, struct err *e);
    void *user;
    int rc;
    struct err *e;
    struct co *workers[64];
};

struct worker {
    struct each *each;
    unsigned place;
};

static void worker_main(void *arg)
{
    struct worker *w = arg;
    struct each *x = w->each;
    struct err e = {0};
    x->workers[w->place] = co_self(x->sched);
    while (x->rc == 0 && x->next < x->count) {
        int rc = x->fn(x->user, x->next++, &e);
        if (rc < 0 && x->rc == 0) {
            x->rc = rc;
            if (x->e)
                *x->e = e;
        }
    }
    x->workers[w->place] = NULL;
    x->running--;
    free(w);
    task_set(&x->ended);
}

static void abort_workers(struct each *x)
{
    if (x->rc == 0)
        x->rc = err_set(x->e, ECANCELED, "cancelled");
    for (size_t i = 0; i < sizeof x->workers / sizeof *x->workers; i++)
        if (x->workers[i])
            co_abort(x->workers[i]);
}

int task_each(struct co_sched *s, size_t count, unsigned width, int (*fn)(void *user, size_t i, struct err *e), void *user, struct err *e)
{
    struct each *x = calloc(1, sizeof *x); /* too large for this stack */
    if (!x)
        return err_set(e, ENOMEM, "out of memory");
    *x = (struct each){.sched = s, .ended = {.sched = s}, .count = count, .fn = fn, .user = user, .e = e};
    for (unsigned i = 0; i < width && i < count && i < sizeof x->workers / sizeof *x->workers; i++) {
        struct worker *w = calloc(1, sizeof *w);
        if (!w)
            abort();
        *w = (struct worker){x, i};
        x->running++;
        co_spawn(s, worker_main, w);
    }
    while (x->running > 0)
        if (task_wait(&x->ended, x->rc == -ECANCELED) < 0)
            abort_workers(x);
    int rc = x->rc;
    free(x);
    return rc;
}

/* ---- events ---- */

void task_set(struct task_event *ev)
{
    ev->set = true;
    if (ev->waiter)
        co_wake(ev->waiter, 0);
}

int task_wait(struct task_event *ev, bool deaf)
{
    int rc = 0;
    ev->waiter = co_self(ev->sched);
    while (!ev->set && rc == 0) {
        rc = deaf ? co_wait_uncancellable(ev->sched) : co_wait(ev->sched);
        if (deaf)
            rc = 0;
    }
    ev->waiter = NULL;
    if (!ev->set)
        return rc;
    ev->set = false;
    return 0;
}

/* ---- pools ---- */

struct task_turn {
    struct task_turn *next;
    struct task_event event;
    bool mine;
};

void task_pool_init(struct task_pool *p, struct co_sched *s, unsigned count)
{
    *p = (struct task_pool){.sched = s, .free = count};
    p->last = &p->first;
}

static void leave(struct task_pool *p, struct task_turn *t)
{
    struct task_turn **at = &p->first;
    while (*at && *at != t)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = t->next;
    if (p->last == &t->next)
        p->last = at;
}

int task_pool_take(struct task_pool *p)
{
    struct task_turn t = {.event = {.sched = p->sched}};
    if (p->free > 0 && !p->first) {
        p->free--;
        return 0;
    }
    *p->last = &t;
    p->last = &t.next;
    int rc = task_wait(&t.event, false);
    if (rc < 0 && t.mine)
        task_pool_give(p);
    else if (rc < 0)
        leave(p, &t);
    return rc;
}

void task_pool_give(struct task_pool *p)
{
    struct task_turn *t = p->first;
    if (!t) {
        p->free++;
        return;
    }
    p->first = t->next;
    if (!p->first)
        p->last = &p->first;
    t->mine = true;
    task_set(&t->event);
}
