// SPDX-License-Identifier: Apache-2.0
// A job's standard input: see input.h.
#include "guest/input.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct pending_write {
    struct p9_link link;
    struct p9_request *r;
    struct input *in;
    uint32_t at;
};

static void watch(struct input *in, bool on)
{
    if (in->watching == on || in->watch.fd < 0)
        return;
    in->watching = on;
    if (on)
        poll_watch_start(in->loop, &in->watch, EPOLLOUT);
    else
        poll_watch_stop(in->loop, &in->watch);
}

static void close_output(struct input *in)
{
    watch(in, false);
    if (in->watch.fd >= 0)
        close(in->watch.fd);
    in->watch.fd = -1;
}

static void answer(struct pending_write *w, int code)
{
    struct p9_request *r = w->r;
    struct p9_msg m = {0};
    m.Rwrite.count = w->at;
    p9_link_remove(&w->link);
    free(w);
    if (code)
        p9_fail(r, code);
    else
        p9_reply(r, &m);
}

/* One write's bytes: 1 done, 0 the pipe is full, or -errno. */
static int write_some(struct input *in, struct pending_write *w)
{
    const struct p9_data *d = &w->r->t->Twrite.data;
    while (w->at < d->len) {
        ssize_t n = write(in->watch.fd, (const char *)d->p + w->at, d->len - w->at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN ? 0 : -EPIPE;
        w->at += (uint32_t)n;
    }
    return 1;
}

static void fail_all(struct input *in)
{
    close_output(in);
    while (!p9_link_empty(&in->writes))
        answer(p9_link_entry(in->writes.next, struct pending_write, link), EPIPE);
}

static void at_eof(struct input *in)
{
    static const char end_of_input = 4; /* ^D, the terminal's default VEOF */
    if (!in->terminal)
        close_output(in);
    else if (write(in->watch.fd, &end_of_input, 1) == 1)
        in->eof = false;
}

static void run(struct input *in)
{
    while (!p9_link_empty(&in->writes)) {
        struct pending_write *w = p9_link_entry(in->writes.next, struct pending_write, link);
        int rc = write_some(in, w);
        if (rc == 0)
            break;
        if (rc < 0) {
            fail_all(in);
            return;
        }
        answer(w, 0);
    }
    if (in->eof && p9_link_empty(&in->writes))
        at_eof(in);
    watch(in, !p9_link_empty(&in->writes) || in->eof);
}

static void input_ready(struct poll_watch *w, uint32_t events)
{
    (void)events;
    run((struct input *)(void *)((char *)w - offsetof(struct input, watch)));
}

void input_init(struct input *in, struct poll_loop *l, int fd, bool terminal)
{
    *in = (struct input){.loop = l, .watch = {fd, input_ready}, .terminal = terminal};
    p9_link_init(&in->writes);
}

static void write_cancel(struct p9_request *r)
{
    struct pending_write *w = r->aux;
    struct input *in = w->in;
    answer(w, w->at ? 0 : EINTR);
    run(in);
}

void input_write(struct input *in, struct p9_request *r)
{
    struct pending_write *w = in->watch.fd >= 0 && (in->terminal || !in->eof) ? malloc(sizeof *w) : NULL;
    if (!w) {
        p9_fail(r, EPIPE);
        return;
    }
    *w = (struct pending_write){.r = r, .in = in};
    p9_link_append(&in->writes, &w->link);
    r->aux = w;
    r->cancel = write_cancel;
    if (in->writes.next == &w->link)
        run(in);
}

void input_eof(struct input *in)
{
    if (in->watch.fd < 0)
        return;
    in->eof = true;
    run(in);
}

void input_finish(struct input *in)
{
    fail_all(in);
}
