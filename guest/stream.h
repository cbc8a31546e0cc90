// SPDX-License-Identifier: Apache-2.0
// A job's output: what it writes, kept until the client asks for what comes after it.
#ifndef SPACE_GUEST_STREAM_H
#define SPACE_GUEST_STREAM_H

#include "9p/server.h"
#include "guest/poll.h"

#define STREAM_SMALL 4096u
#define STREAM_MAX   (512u * 1024) /* kept unacknowledged; beyond it the job blocks */

/* Memory of all rings together. Beyond it they stay at STREAM_SMALL. */
struct stream_budget {
    size_t used, max;
};

struct stream {
    struct poll_loop *loop;
    struct stream_budget *budget;
    struct poll_watch watch; /* fd -1: closed, the stream ended */
    bool watching;
    struct poll_timer rest;
    char *ring;
    size_t cap;
    uint64_t base, end; /* offsets of what is kept */
    struct p9_link reads;
    /* Called when a terminal was read empty, and when the stream ended. May be NULL. */
    void (*drained)(void *user);
    void *user;
};

/* Takes over `fd` (non-blocking, readable); -1 for a stream that is at its end from the start. */
void stream_init(struct stream *s, struct poll_loop *l, struct stream_budget *budget, int fd);

/* Answers the Tread now or later. Its offset acknowledges all before it. */
void stream_read(struct stream *s, struct p9_request *r);

/* The offset up to which output has been written by now: what is kept and what lies in the pipe. */
uint64_t stream_mark(const struct stream *s);

/* Reads what there is; true when nothing was left, false when the ring is full before. */
bool stream_drain(struct stream *s);

/* Closes it, answers waiting reads with what is the end now, frees what is kept. */
void stream_finish(struct stream *s);

#endif
