// SPDX-License-Identifier: Apache-2.0
// A connected stream socket on a libuv loop: whole malloc'ed buffers out, bytes in, backpressure both ways.
// The program must ignore SIGPIPE.
#ifndef SPACE_LOOP_STREAM_H
#define SPACE_LOOP_STREAM_H

#include <stddef.h>
#include <uv.h>

struct stream;

struct stream_ops {
    void (*input)(void *user, const void *buf, size_t len); /* bytes arrived */
    void (*sent)(void *user, size_t len);                   /* handed to the kernel; may be NULL; may run inside stream_send */
    /* The peer closed (err 0) or it failed (-errno). Called at most once, never inside stream_send; then call stream_close. */
    void (*closed)(void *user, int err);
};

/* Takes ownership of `fd` (closed even on failure). Reading starts at once. NULL with errno when libuv refuses. */
struct stream *stream_open(uv_loop_t *loop, int fd, const struct stream_ops *ops, void *user);

/* Queues a malloc'ed buffer; ownership passes. Small ones are written when the loop is about to wait, large ones at once. Signature fits p9_transport.send. */
void stream_send(void *stream, void *buf, size_t len);

/* Stops and restarts reading. */
void stream_pause(struct stream *s);
void stream_resume(struct stream *s);

/* Drops what is queued, closes; no callback follows. The memory goes by itself. NULL is fine. */
void stream_close(struct stream *s);

#endif
