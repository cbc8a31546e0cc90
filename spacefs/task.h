// SPDX-License-Identifier: Apache-2.0
// One asynchronous activity: a coroutine, the 9P calls that it has in flight, and its interruption.
#ifndef SPACEFS_TASK_H
#define SPACEFS_TASK_H

#include "9p/codec.h"
#include "spacefs/fs.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Results of calls that no server sends (they are no errno): the connection went while the call was in flight, or was not
 * there when it should have been sent, or the fid it named was void and has to be walked to again. Operations that may be repeated do so (task_again); nobody else ever sees these numbers.
 */
enum { TASK_LOST = -10001, TASK_UNSENT = -10002, TASK_STALE = -10003 };

/* A call that was interrupted and gets no answer even to its Tflush is left to itself after this time. */
#define TASK_DETACH_MSEC 300u

struct call;

/* Embedded in what the activity is about. Zero-initialise, set `grace_msec`, then task_start. */
struct task {
    struct fs *fs;
    struct co *co;
    void (*fn)(struct task *t);
    struct call *calls;      /* started and not ended */
    const void *waiting_for; /* identifies the wait in progress */
    bool interrupted;        /* from now on waits end with -EINTR */
    bool interrupt_wanted;   /* becomes interrupted when interrupt_at is reached */
    bool detached;           /* TASK_DETACH_MSEC is over as well */
    unsigned grace_msec;     /* an interrupt takes effect after this time: what ends soon anyway is not disturbed */
    uint64_t interrupt_at;
    pid_t tid;         /* thread that waits for the result, 0 when none or unknown */
    uint64_t deadline; /* of waiting for space-hostd (conn_wait); 0: did not wait yet */
    unsigned resends, rewalks;
    struct task *next, **link;                         /* fs->tasks */
    struct task *next_interrupted, **link_interrupted; /* fs->interrupted */
};

/* Runs fn(t) as a coroutine, at once up to its first wait. `t` must live until fn returns; fn may free it as its last act, after
 * task_finish. */
void task_start(struct fs *fs, struct task *t, void (*fn)(struct task *t));

/* Frees the coroutines that wait for work; no task may be alive. */
void task_end_workers(struct fs *fs);

/* Ends the bookkeeping of a task; called by its fn last. All calls must have been ended. */
void task_finish(struct task *t);

/* A signal came for whoever waits for this task: after grace_msec its calls are flushed and its waits end with -EINTR. Never
 * runs the task: that happens from the loop. */
void task_interrupt(struct task *t);

/* Waits until task_wake(t, object, rc), whose rc it returns, or -EINTR. */
int task_wait(struct task *t, const void *object);

/* The same with a deadline: -ETIMEDOUT after `msec`. */
int task_wait_msec(struct task *t, const void *object, uint64_t msec);

/* Waits `msec`. 0 or -EINTR. */
int task_sleep(struct task *t, uint64_t msec);

/* Ends the wait for `object`; does nothing when `t` waits for something else. */
void task_wake(struct task *t, const void *object, int rc);

/* One 9P call of a task. Valid from call_start to call_end. */
struct call {
    struct task *task; /* NULL once the task does not want it any more */
    struct p9_call *p9;
    int rc;
    bool done;
    unsigned refs;
    /* Valid when call_wait returned 0. Strings and data are copies when the answer came before call_wait, else borrowed from
     * the connection until the task waits again. */
    struct p9_msg reply;
    void *copy;
    struct call *next, **link;
};

/* Sends `m` (data is copied). Calls may be pipelined. Never NULL; an interrupted task's call ends with -EINTR unsent. */
struct call *call_start(struct task *t, struct p9_msg *m);

/* 0, the server's negative errno, -EINTR, TASK_LOST, TASK_UNSENT. May be called again. */
int call_wait(struct call *c);

/* Gives the call up: flushes it when still in flight, frees it. NULL is fine. */
void call_end(struct call *c);

/* call_start, call_wait and call_end in one; `out` (may be NULL) gets the reply, with borrowed data as above. */
int call_run(struct task *t, struct p9_msg *m, struct p9_msg *out);

/*
 * True when an operation that may be repeated ended with *rc TASK_LOST, TASK_UNSENT or TASK_STALE and the connection is up: repeat it.
 * Else false, and *rc is a negative errno or 0. A request that takes the server down with it is not sent a third time.
 */
bool task_again(struct task *t, int *rc);

/* For operations that must not be repeated: what was never sent may be, what was lost in flight is -EIO. */
int task_once(int rc);

#endif
