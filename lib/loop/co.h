// SPDX-License-Identifier: Apache-2.0
// Stackful coroutines on one thread, so that an operation with many asynchronous steps reads from top to bottom.
//
// Theory of operation. A coroutine runs on a stack of its own until it waits; waiting switches back to whoever resumed it
// (the event loop, in the end). Whoever completes the wait calls co_wake, which switches in at once when called from the
// loop's stack, and from another coroutine queues it (a coroutine never runs inside another). A wait may be abandoned from
// outside by co_abort: the current wait, and every later one, returns -ECANCELED, so that the operation unwinds.
#ifndef SPACE_LOOP_CO_H
#define SPACE_LOOP_CO_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct co;
struct co_sched;

/* One scheduler a loop. NULL when out of memory. Destroy only when no coroutine is alive. */
struct co_sched *co_sched_create(uv_loop_t *loop);
void co_sched_destroy(struct co_sched *s);
uv_loop_t *co_loop(const struct co_sched *s);

/* Runs fn(arg) as a coroutine, at once when called from the loop's stack, else soon. Its memory goes when fn returns. Aborts the program
 * when no stack can be mapped: a host without 64 KiB is beyond help. */
struct co *co_spawn(struct co_sched *s, void (*fn)(void *arg), void *arg);

/* The coroutine that runs now, NULL on the loop's stack. */
struct co *co_self(struct co_sched *s);

/*
 * Waits until co_wake(self, result) and returns its result; -ECANCELED when aborted. One party is responsible for the wake.
 * co_wait_uncancellable ignores aborts: for a wait whose other side holds pointers into this stack.
 */
int co_wait(struct co_sched *s);
int co_wait_uncancellable(struct co_sched *s);

/* Ends the wait of `c` with `result`. Must match exactly one wait in progress; a wake of a coroutine that an abort woke already is ignored
 * only by whoever forgot it, so cancel your side when co_wait returns -ECANCELED. */
void co_wake(struct co *c, int result);

/* From now on every cancellable wait of `c` returns -ECANCELED at once. */
void co_abort(struct co *c);
bool co_aborted(const struct co *c);

/* co_wait with a deadline: -ETIMEDOUT after `msec` milliseconds. A wake that comes later is the caller's to prevent. */
int co_wait_msec(struct co_sched *s, uint64_t msec);

/* Waits `msec` milliseconds. 0, or -ECANCELED. */
int co_sleep(struct co_sched *s, uint64_t msec);

#endif
