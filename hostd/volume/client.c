// SPDX-License-Identifier: Apache-2.0
// Connection to space-volumed: see client.h.
#include "hostd/volume/client.h"

#include "base/cleanup.h"
#include "base/hmap.h"
#include "base/log.h"
#include "ipc/packet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AWAY_MSEC  5000u /* how long calls wait for a space-volumed that is gone */
#define RETRY_MSEC 50u

struct volumed_call {
    struct hmap_node node; /* by tag */
    struct volumed_request req;
    struct volumed_hooks hooks;
    int fds[PACKET_FDS];
    unsigned fd_count;
    bool sent; /* on this connection */
    bool cancelled;
};

struct volumed {
    uv_loop_t *loop;
    char path[108];
    int fd;
    uv_poll_t *poll;
    uv_timer_t *retry, *away;
    struct hmap calls;
    uint64_t next_tag;
    struct volumed_call *hello; /* in flight on this connection */
    bool greeted;
};

static void try_connect(uv_timer_t *t);
static void readable(uv_poll_t *p, int status, int events);

/* ---- calls ---- */

static void free_call(struct volumed_call *c)
{
    for (unsigned i = 0; i < c->fd_count; i++)
        close(c->fds[i]);
    free(c);
}

static void finish(struct volumed *v, struct volumed_call *c, const struct volumed_reply *rep, int fd)
{
    hmap_remove(&v->calls, &c->node);
    if (v->hello == c)
        v->hello = NULL;
    c->hooks.done(c->hooks.user, rep, fd);
    free_call(c);
}

static void fail(struct volumed *v, struct volumed_call *c, int code, const char *sentence)
{
    struct volumed_reply rep = {.error = -code, .tag = c->req.tag};
    snprintf(rep.sentence, sizeof rep.sentence, "%s", sentence);
    finish(v, c, &rep, -1);
}

static void fail_all(uv_timer_t *t)
{
    struct volumed *v = t->data;
    char sentence[256];
    uint64_t last = v->next_tag; /* callbacks may make new calls: those wait on */
    snprintf(sentence, sizeof sentence, "space-volumed does not answer at %.90s: is it running? (spacectl doctor)", v->path);
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&v->calls, it));)
        if (it->key <= last) {
            fail(v, hmap_entry(it, struct volumed_call, node), ENOTCONN, sentence);
            it = NULL; /* the map changed */
        }
}

/* ---- the wire ---- */

static int transmit(struct volumed *v, struct volumed_call *c)
{
    int rc = packet_send(v->fd, &(struct iovec){&c->req, sizeof c->req}, 1, c->fds, c->fd_count);
    c->sent = rc > 0;
    return c->sent ? 0 : -EAGAIN; /* a broken connection is seen by who reads it */
}

static void watch(struct volumed *v, bool writable)
{
    uv_poll_start(v->poll, UV_READABLE | (writable ? UV_WRITABLE : 0), readable);
}

static void end_cancelled(struct volumed *v);

/* What has not been sent on this connection; EAGAIN leaves the rest for the next writable moment. */
static void transmit_all(struct volumed *v)
{
    bool rest = false;
    end_cancelled(v);
    for (struct hmap_node *it = NULL; !rest && (it = hmap_iterate(&v->calls, it));) {
        struct volumed_call *c = hmap_entry(it, struct volumed_call, node);
        rest = !c->sent && transmit(v, c) < 0;
    }
    watch(v, rest);
}

static int receive(struct volumed *v, struct volumed_reply *rep, int *fd)
{
    ssize_t got = packet_receive(v->fd, rep, sizeof *rep, fd);
    if (got <= 0)
        return (int)got;
    rep->sentence[sizeof rep->sentence - 1] = 0;
    if (got == (ssize_t)sizeof *rep)
        return 1;
    cleanup_close(fd);
    return -EPROTO;
}

static void dispatch(struct volumed *v, const struct volumed_reply *rep, int fd)
{
    struct hmap_node *it = hmap_find(&v->calls, rep->tag);
    struct volumed_call *c = it ? hmap_entry(it, struct volumed_call, node) : NULL;
    if (c && rep->event == VOLUMED_REPLY) {
        finish(v, c, rep, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
    if (c && rep->event == VOLUMED_PROGRESS && c->hooks.progress)
        c->hooks.progress(c->hooks.user, rep->progress.done, rep->progress.total);
}

/* ---- the connection ---- */

static void poll_closed(uv_handle_t *h)
{
    free(h);
}

static void drop_connection(struct volumed *v)
{
    if (!v->poll)
        return;
    uv_poll_stop(v->poll);
    uv_close((uv_handle_t *)v->poll, poll_closed);
    v->poll = NULL;
    close(v->fd);
    v->fd = -1;
    v->greeted = false;
    if (v->hello) {
        hmap_remove(&v->calls, &v->hello->node);
        free_call(v->hello);
        v->hello = NULL;
    }
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&v->calls, it));)
        hmap_entry(it, struct volumed_call, node)->sent = false;
}

/* A call that was to be cancelled before it was sent. */
static void end_cancelled(struct volumed *v)
{
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&v->calls, it));) {
        struct volumed_call *c = hmap_entry(it, struct volumed_call, node);
        if (!c->cancelled || c->sent)
            continue;
        fail(v, c, ECANCELED, "cancelled");
        it = NULL; /* the map changed */
    }
}

/* What depends on another call's tag is of no use on a new connection. */
static void end_dependent(struct volumed *v)
{
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&v->calls, it));) {
        struct volumed_call *c = hmap_entry(it, struct volumed_call, node);
        if (c->req.op != VOLUMED_CANCEL && c->req.op != VOLUMED_FETCH)
            continue;
        fail(v, c, ESRCH, "space-volumed went away meanwhile");
        it = NULL;
    }
}

static void lost(struct volumed *v)
{
    log_warn("space-volumed went away; waiting for it");
    drop_connection(v);
    uv_timer_start(v->away, fail_all, AWAY_MSEC, 0);
    uv_timer_start(v->retry, try_connect, RETRY_MSEC, 0);
    end_dependent(v);
    end_cancelled(v);
}

static void readable(uv_poll_t *p, int status, int events)
{
    struct volumed *v = p->data;
    (void)events;
    struct volumed_reply rep;
    int fd, rc = status < 0 ? status : 0;
    while (rc >= 0 && v->poll == p && (rc = receive(v, &rep, &fd)) > 0)
        dispatch(v, &rep, fd);
    if (rc < 0 && v->poll == p)
        lost(v);
    else if (v->poll == p && v->greeted)
        transmit_all(v);
}

static void hello_done(void *user, const struct volumed_reply *rep, int fd)
{
    struct volumed *v = user;
    if (fd >= 0)
        close(fd);
    if (rep->error == -EPROTO)
        log_error("space-volumed: %s", rep->sentence);
    v->greeted = rep->error == 0;
}

static struct volumed_call *add_call(struct volumed *v, const struct volumed_request *req, const struct volumed_hooks *hooks)
{
    struct volumed_call *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->req = *req;
    c->req.version = VOLUMED_VERSION;
    c->req.tag = ++v->next_tag;
    c->hooks = *hooks;
    hmap_insert(&v->calls, &c->node, c->req.tag);
    return c;
}

static void try_connect(uv_timer_t *t)
{
    struct volumed *v = t->data;
    int fd = packet_connect(v->path);
    v->poll = fd < 0 ? NULL : calloc(1, sizeof *v->poll);
    if (!v->poll) {
        if (fd >= 0)
            close(fd);
        uv_timer_start(v->retry, try_connect, RETRY_MSEC, 0);
        return;
    }
    v->fd = fd;
    uv_poll_init(v->loop, v->poll, fd);
    v->poll->data = v;
    watch(v, false);
    uv_timer_stop(v->away);
    v->hello = add_call(v, &(struct volumed_request){.op = VOLUMED_HELLO}, &(struct volumed_hooks){.done = hello_done, .user = v});
    transmit(v, v->hello); /* everything else follows its answer */
}

int volumed_open(uv_loop_t *loop, const char *run, struct volumed **out, struct err *e)
{
    struct volumed *v = calloc(1, sizeof *v);
    uv_timer_t *retry = calloc(1, sizeof *retry), *away = calloc(1, sizeof *away);
    if (!v || !retry || !away) {
        free(v);
        free(retry);
        free(away);
        return err_set(e, ENOMEM, "connect to space-volumed: out of memory");
    }
    v->loop = loop;
    v->fd = -1;
    v->retry = retry;
    v->away = away;
    snprintf(v->path, sizeof v->path, "%.63s/volumed.sock", run);
    uv_timer_init(loop, v->retry);
    uv_timer_init(loop, v->away);
    v->retry->data = v->away->data = v;
    uv_timer_start(v->away, fail_all, AWAY_MSEC, 0);
    *out = v;
    try_connect(v->retry);
    return 0;
}

void volumed_close(struct volumed *v)
{
    if (!v)
        return;
    drop_connection(v);
    uv_timer_stop(v->retry);
    uv_timer_stop(v->away);
    uv_close((uv_handle_t *)v->retry, poll_closed);
    uv_close((uv_handle_t *)v->away, poll_closed);
    for (struct hmap_node *it; (it = hmap_iterate(&v->calls, NULL));) {
        hmap_remove(&v->calls, it);
        free_call(hmap_entry(it, struct volumed_call, node));
    }
    hmap_finish(&v->calls);
    free(v);
}

bool volumed_up(const struct volumed *v)
{
    return v->greeted;
}

/* ---- for callers ---- */

struct volumed_call *volumed_send(struct volumed *v, const struct volumed_request *req, const int *fds, unsigned fd_count,
                                  const struct volumed_hooks *hooks)
{
    struct volumed_call *c = add_call(v, req, hooks);
    for (unsigned i = 0; i < fd_count && i < PACKET_FDS; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            break; /* volumed says what is missing */
        c->fds[c->fd_count++] = fd;
    }
    if (v->greeted && transmit(v, c) < 0)
        watch(v, true);
    else if (!v->poll && !uv_is_active((uv_handle_t *)v->away))
        uv_timer_start(v->away, fail_all, AWAY_MSEC, 0);
    return c;
}

uint64_t volumed_tag(const struct volumed_call *c)
{
    return c->req.tag;
}

static void cancel_done(void *user, const struct volumed_reply *rep, int fd)
{
    (void)user, (void)rep;
    if (fd >= 0)
        close(fd);
}

void volumed_cancel(struct volumed *v, struct volumed_call *c)
{
    if (c->cancelled)
        return;
    c->cancelled = true;
    if (c->sent)
        volumed_send(v, &(struct volumed_request){.op = VOLUMED_CANCEL, .tag2 = c->req.tag}, NULL, 0, &(struct volumed_hooks){.done = cancel_done});
}

struct step {
    struct co *co;
    struct volumed_reply rep;
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
    int fd;
    bool done, waiting;
};

static void step_done(void *user, const struct volumed_reply *rep, int fd)
{
    struct step *st = user;
    st->rep = *rep;
    st->fd = fd;
    st->done = true;
    if (st->waiting)
        co_wake(st->co, 0);
}

static void step_progress(void *user, uint64_t done, uint64_t total)
{
    const struct step *st = user;
    if (st->progress)
        st->progress(st->user, done, total);
}

int volumed_run(struct co_sched *s, struct volumed *v, const struct volumed_request *req, const int *fds, unsigned fd_count,
                void (*progress)(void *user, uint64_t done, uint64_t total), void *user, struct volumed_reply *rep, int *fd, struct err *e)
{
    struct step st = {.co = co_self(s), .progress = progress, .user = user, .fd = -1};
    struct volumed_call *c = volumed_send(v, req, fds, fd_count, &(struct volumed_hooks){.done = step_done, .progress = step_progress, .user = &st});
    st.waiting = true;
    if (co_wait(s) == -ECANCELED && !st.done) {
        volumed_cancel(v, c);
        co_wait_uncancellable(s);
    }
    if (fd)
        *fd = st.fd;
    else if (st.fd >= 0)
        close(st.fd);
    if (rep)
        *rep = st.rep;
    if (st.rep.error < 0)
        return err_set(e, -st.rep.error, "%s", st.rep.sentence[0] ? st.rep.sentence : strerror(-st.rep.error));
    return 0;
}
