// SPDX-License-Identifier: Apache-2.0
// Waiting for the disk without a thread: fsync through io_uring, for a program with one loop.
#ifndef SPACE_GUEST_RING_H
#define SPACE_GUEST_RING_H

#include "guest/poll.h"

#include <stdbool.h>

#define RING_MAX 1024u /* fsyncs at once */

struct io_uring_sqe;
struct io_uring_cqe;
struct ring_op;

struct ring {
    struct poll_watch watch;
    uint32_t *sq_tail, *cq_head, *cq_tail;
    uint32_t sq_mask, cq_mask;
    uint32_t *array;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    unsigned busy; /* ops in flight */
};

/* 0 or a negative errno. Called from the loop, once. */
typedef void ring_done(void *user, int rc);

/* 0 or -errno. Lives as long as the program. */
int ring_init(struct ring *r, struct poll_loop *l);

/*
 * Syncs a file, or with `datasync` what fdatasync does; `fd` passes and is closed at the end, in
 * any case. NULL and errno when nothing was started and `done` is not called: EAGAIN for RING_MAX
 * in flight, ENOMEM.
 */
struct ring_op *ring_fsync(struct ring *r, int fd, bool datasync, ring_done *done, void *user);

/* Legal until `done` was called, which then is not: the sync itself goes on. */
void ring_forget(struct ring_op *op);

#endif
