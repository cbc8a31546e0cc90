// SPDX-License-Identifier: Apache-2.0
// A stream socket as a libuv pipe: see stream.h.
//
// Small buffers are gathered and written together when the loop is about to wait: the messages that
// one turn of the loop makes reach the peer in one piece, which saves both sides a system call and
// a wake-up each. Larger ones go to the kernel at once as long as nothing is queued; what it does
// not take is queued with libuv, in order. The read buffer is part of the stream: only the pages that reads really
// fill are backed by memory.
#include "loop/stream.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define READ_SIZE   (128u * 1024)
#define SMALL       4096u        /* gathered up to this size, */
#define GATHER_SIZE (32u * 1024) /* until this many are there */

struct stream {
    uv_pipe_t pipe;
    struct stream_ops ops;
    void *user;
    bool closed;   /* by stream_close */
    bool reported; /* ops.closed was called */
    bool paused;
    char *in;       /* READ_SIZE bytes */
    uv_idle_t idle; /* active while `gathered` holds something */
    char *gathered; /* GATHER_SIZE bytes */
    size_t gathered_len;
    int handles; /* open ones */
};

struct pending_write {
    uv_write_t req;
    struct stream *stream;
    void *buf;
    size_t len; /* that this request still hands over */
};

static uv_stream_t *handle_of(struct stream *s)
{
    return (uv_stream_t *)&s->pipe;
}

static void report_closed(struct stream *s, int err)
{
    if (s->closed || s->reported)
        return;
    s->reported = true;
    uv_read_stop(handle_of(s));
    s->ops.closed(s->user, err);
}

static void on_alloc(uv_handle_t *h, size_t suggested, uv_buf_t *buf)
{
    struct stream *s = h->data;
    (void)suggested;
    *buf = uv_buf_init(s->in, READ_SIZE);
}

static void on_read(uv_stream_t *h, ssize_t n, const uv_buf_t *buf)
{
    struct stream *s = h->data;
    if (s->closed || n == 0)
        return;
    if (n > 0)
        s->ops.input(s->user, buf->base, (size_t)n);
    else
        report_closed(s, n == UV_EOF ? 0 : (int)n);
}

static void on_written(uv_write_t *req, int status)
{
    struct pending_write *w = req->data;
    struct stream *s = w->stream;
    size_t len = w->len;
    free(w->buf);
    free(w);
    if (s->closed)
        return;
    if (status < 0)
        report_closed(s, status);
    else if (s->ops.sent)
        s->ops.sent(s->user, len);
}

static void on_handle_closed(uv_handle_t *h)
{
    struct stream *s = h->data;
    if (--s->handles > 0)
        return;
    free(s->gathered);
    free(s->in);
    free(s);
}

static void on_idle(uv_idle_t *h);

struct stream *stream_open(uv_loop_t *loop, int fd, const struct stream_ops *ops, void *user)
{
    struct stream *s = calloc(1, sizeof *s);
    char *in = malloc(READ_SIZE), *gathered = malloc(GATHER_SIZE);
    int rc = UV_ENOMEM;
    if (s && in && gathered)
        rc = uv_pipe_init(loop, &s->pipe, 0);
    if (rc < 0) {
        close(fd);
        free(gathered);
        free(in);
        free(s);
        errno = -rc;
        return NULL;
    }
    s->pipe.data = s;
    s->ops = *ops;
    s->user = user;
    s->in = in;
    s->gathered = gathered;
    s->handles = 2;
    uv_idle_init(loop, &s->idle); /* cannot fail */
    s->idle.data = s;
    rc = uv_pipe_open(&s->pipe, fd);
    if (rc < 0)
        close(fd);
    else
        rc = uv_read_start(handle_of(s), on_alloc, on_read);
    if (rc < 0) {
        stream_close(s);
        errno = -rc;
        return NULL;
    }
    return s;
}

/* Hands a malloc'ed buffer to the kernel, or to libuv's queue. */
static void write_now(struct stream *s, void *buf, size_t len)
{
    uv_buf_t b = uv_buf_init(buf, (unsigned)len);
    size_t done = 0;
    if (uv_stream_get_write_queue_size(handle_of(s)) == 0) {
        int n = uv_try_write(handle_of(s), &b, 1);
        done = n > 0 ? (size_t)n : 0; /* an error shows again in uv_write, whose callback may report it */
    }
    if (done == len) {
        free(buf);
        if (s->ops.sent)
            s->ops.sent(s->user, len);
        return;
    }
    struct pending_write *w = malloc(sizeof *w);
    if (!w)
        abort(); /* a hole in the byte stream must not happen, and nobody could be told */
    *w = (struct pending_write){.stream = s, .buf = buf, .len = len};
    w->req.data = w;
    b.base += done;
    b.len -= done;
    if (uv_write(&w->req, handle_of(s), &b, 1, on_written) < 0) {
        free(buf); /* the handle is broken for good: the read side reports it */
        free(w);
        stream_resume(s);
    }
}

static void flush(struct stream *s)
{
    uv_idle_stop(&s->idle);
    size_t len = s->gathered_len;
    char *buf = len ? malloc(len) : NULL;
    if (!len)
        return;
    if (!buf)
        abort(); /* as in write_now */
    memcpy(buf, s->gathered, len);
    s->gathered_len = 0;
    write_now(s, buf, len);
}

static void on_idle(uv_idle_t *h)
{
    flush(h->data);
}

void stream_send(void *stream, void *buf, size_t len)
{
    struct stream *s = stream;
    if (s->closed || s->reported || !len) {
        free(buf);
        return;
    }
    if (len > SMALL || s->gathered_len + len > GATHER_SIZE)
        flush(s);
    if (len > SMALL) {
        write_now(s, buf, len);
        return;
    }
    if (!s->gathered_len)
        uv_idle_start(&s->idle, on_idle);
    memcpy(s->gathered + s->gathered_len, buf, len);
    s->gathered_len += len;
    free(buf);
}

void stream_pause(struct stream *s)
{
    s->paused = true;
    uv_read_stop(handle_of(s));
}

void stream_resume(struct stream *s)
{
    s->paused = false;
    if (!s->closed && !s->reported)
        uv_read_start(handle_of(s), on_alloc, on_read); /* when reading already: UV_EALREADY, fine */
}

void stream_close(struct stream *s)
{
    if (!s || s->closed)
        return;
    s->closed = true;
    uv_close((uv_handle_t *)&s->idle, on_handle_closed);
    uv_close((uv_handle_t *)&s->pipe, on_handle_closed);
}
