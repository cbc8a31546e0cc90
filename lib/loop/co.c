// SPDX-License-Identifier: Apache-2.0
// Coroutines by ucontext: see co.h.
#include "loop/co.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#define FIBER_START(save, bottom, size) __sanitizer_start_switch_fiber(save, bottom, size)
#define FIBER_FINISH(save, b, s)        __sanitizer_finish_switch_fiber(save, b, s)
#else
#define FIBER_START(save, bottom, size) ((void)0)
#define FIBER_FINISH(save, b, s)        ((void)0)
#endif

#define STACK_SIZE (256u * 1024) /* touched pages only are backed */
#define GUARD_SIZE 4096u

enum co_state { CO_RUNNING, CO_WAITING, CO_QUEUED, CO_DONE };

struct co {
    struct co_sched *sched;
    struct co *next; /* in the ready queue */
    void (*fn)(void *);
    void *arg;
    ucontext_t context;
    void *stack;
    void *fake_stack;
    enum co_state state;
    bool cancellable, aborted;
    int result;
};

struct co_sched {
    uv_async_t async;
    ucontext_t main;
    void *main_fake_stack;
    const void *main_bottom;
    size_t main_size;
    struct co *current;
    struct co *ready, **ready_tail;
};

static void run_ready(uv_async_t *async);

struct co_sched *co_sched_create(uv_loop_t *loop)
{
    struct co_sched *s = calloc(1, sizeof *s);
    if (!s || uv_async_init(loop, &s->async, run_ready) < 0) {
        free(s);
        return NULL;
    }
    s->async.data = s;
    s->ready_tail = &s->ready;
    uv_unref((uv_handle_t *)&s->async);
    return s;
}

static void sched_closed(uv_handle_t *h)
{
    free(h->data);
}

void co_sched_destroy(struct co_sched *s)
{
    if (s)
        uv_close((uv_handle_t *)&s->async, sched_closed);
}

uv_loop_t *co_loop(const struct co_sched *s)
{
    return s->async.loop;
}

struct co *co_self(struct co_sched *s)
{
    return s->current;
}

/* Back to the loop's stack. */
static void switch_out(struct co *c)
{
    struct co_sched *s = c->sched;
    FIBER_START(c->state == CO_DONE ? NULL : &c->fake_stack, s->main_bottom, s->main_size);
    swapcontext(&c->context, &s->main);
    FIBER_FINISH(c->fake_stack, &s->main_bottom, &s->main_size);
}

static void trampoline(unsigned hi, unsigned lo)
{
    struct co *c = (struct co *)((uintptr_t)hi << 32 | lo);
    FIBER_FINISH(NULL, &c->sched->main_bottom, &c->sched->main_size);
    c->fn(c->arg);
    c->state = CO_DONE;
    switch_out(c);
}

static void switch_in(struct co *c)
{
    struct co_sched *s = c->sched;
    s->current = c;
    c->state = CO_RUNNING;
    FIBER_START(&s->main_fake_stack, (char *)c->stack + GUARD_SIZE, STACK_SIZE);
    swapcontext(&s->main, &c->context);
    FIBER_FINISH(s->main_fake_stack, NULL, NULL);
    s->current = NULL;
    if (c->state == CO_DONE) {
        munmap(c->stack, GUARD_SIZE + STACK_SIZE);
        free(c);
    }
}

static void make_ready(struct co *c)
{
    struct co_sched *s = c->sched;
    if (!s->current) {
        switch_in(c);
        return;
    }
    c->state = CO_QUEUED;
    c->next = NULL;
    *s->ready_tail = c;
    s->ready_tail = &c->next;
    uv_async_send(&s->async);
}

static void run_ready(uv_async_t *async)
{
    struct co_sched *s = async->data;
    while (s->ready) {
        struct co *c = s->ready;
        s->ready = c->next;
        if (!s->ready)
            s->ready_tail = &s->ready;
        switch_in(c);
    }
}

struct co *co_spawn(struct co_sched *s, void (*fn)(void *arg), void *arg)
{
    struct co *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->stack = mmap(NULL, GUARD_SIZE + STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->stack == MAP_FAILED || mprotect(c->stack, GUARD_SIZE, PROT_NONE) < 0)
        abort();
    c->sched = s;
    c->fn = fn;
    c->arg = arg;
    getcontext(&c->context);
    c->context.uc_stack.ss_sp = (char *)c->stack + GUARD_SIZE;
    c->context.uc_stack.ss_size = STACK_SIZE;
    uintptr_t p = (uintptr_t)c;
    makecontext(&c->context, (void (*)(void))trampoline, 2, (unsigned)(p >> 32), (unsigned)p);
    make_ready(c);
    return c;
}

static int wait_common(struct co_sched *s, bool cancellable)
{
    struct co *c = s->current;
    if (cancellable && c->aborted)
        return -ECANCELED;
    c->cancellable = cancellable;
    c->state = CO_WAITING;
    switch_out(c);
    return c->result;
}

int co_wait(struct co_sched *s)
{
    return wait_common(s, true);
}

int co_wait_uncancellable(struct co_sched *s)
{
    return wait_common(s, false);
}

void co_wake(struct co *c, int result)
{
    if (c->state != CO_WAITING)
        return;
    c->result = result;
    make_ready(c);
}

void co_abort(struct co *c)
{
    c->aborted = true;
    if (c->state == CO_WAITING && c->cancellable)
        co_wake(c, -ECANCELED);
}

bool co_aborted(const struct co *c)
{
    return c->aborted;
}

static void timer_fired(uv_timer_t *t)
{
    co_wake(t->data, -ETIMEDOUT);
}

static void timer_closed(uv_handle_t *h)
{
    free(h);
}

int co_wait_msec(struct co_sched *s, uint64_t msec)
{
    uv_timer_t *t = calloc(1, sizeof *t);
    if (!t)
        abort();
    uv_timer_init(s->async.loop, t);
    t->data = s->current;
    uv_timer_start(t, timer_fired, msec, 0);
    int rc = co_wait(s);
    uv_timer_stop(t);
    uv_close((uv_handle_t *)t, timer_closed);
    return rc;
}

int co_sleep(struct co_sched *s, uint64_t msec)
{
    int rc = co_wait_msec(s, msec);
    return rc == -ETIMEDOUT ? 0 : rc;
}
