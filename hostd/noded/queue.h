// SPDX-License-Identifier: Apache-2.0
// Blocking work on threads: in order for each object, bounded for each lane, answered in time
// whatever hangs.
//
// Everything but `work` happens on the loop's thread. A lane has threads of its own (in effect: the
// lanes together are as many as libuv's thread pool), so that operations that hang in one lane
// never delay another.
#ifndef SPACE_NODED_QUEUE_H
#define SPACE_NODED_QUEUE_H

#include "base/hmap.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

enum lane {
    LANE_POOL, /* the pool only */
    LANE_VM,   /* talks to libvirt */
    LANE_END,  /* ends virtual machines, which frees what hangs in LANE_VM */
    LANE_COUNT
};

#define QUEUE_THREADS 16 /* of all lanes */

/* Embedded in whatever is to be done; the queue owns it from queue_submit until `done`. */
struct task {
    /* Set by the submitter. */
    uint64_t key; /* tasks of one key run one after another, in order; 0: not ordered */
    enum lane lane;
    uint32_t limit_msec;             /* from submission; 0: none */
    void (*work)(struct task *t);    /* on a thread. Never called when the time was over before its turn came */
    void (*expired)(struct task *t); /* the time is over: answer now. At most once, before `done`.
                                        NULL when limit_msec is 0 */
    void (*done)(struct task *t);    /* the last call: free it */
    /* The queue's. */
    bool started, timed_out;
    struct queue *queue;
    struct task *next_of_key, *next_of_lane;
    uv_work_t work_req;
    uint64_t deadline;
    struct task *timer_prev, *timer_next;
};

struct queue;

/* NULL when out of memory. main() must have set UV_THREADPOOL_SIZE to QUEUE_THREADS. */
struct queue *queue_create(uv_loop_t *loop);
/* Only when idle. */
void queue_destroy(struct queue *q);

void queue_submit(struct queue *q, struct task *t);

/* A task of this key is being worked on. */
bool queue_working(const struct queue *q, uint64_t key);

/* Tasks that are not done. */
uint32_t queue_count(const struct queue *q);

#endif
