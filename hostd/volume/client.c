// SPDX-License-Identifier: Apache-2.0
// Connection to space-volumed: see client.h.
#include "hostd/volume/client.h"

#include "base/cleanup.h"
#include "base/hmap.h"
#include "base/log.h"
#include "ipc/client.h"

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
    char path[108];
    struct client *client;
    uv_timer_t *away;
    struct hmap calls;
    uint64_t next_tag;
    struct volumed_call *hello; /* in flight on this connection */
    bool greeted;
};

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
    c->sent = client_send(v->client, &(struct iovec){&c->req, sizeof c->req}, 1, c->fds, c->fd_count) > 0;
    return c->sent ? 0 : -EAGAIN;
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

/* What has not been sent on this connection; EAGAIN leaves the rest for the next writable moment. */
static void transmit_all(struct volumed *v)
{
    end_cancelled(v);
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&v->calls, it));) {
        struct volumed_call *c = hmap_entry(it, struct volumed_call, node);
        if (!c->sent && transmit(v, c) < 0)
            return;
    }
}

static void on_packet(void *user, void *bytes, size_t size, int fd)
{
    struct volumed *v = user;
    struct volumed_reply *rep = bytes;
    AUTO_CLOSE int theirs = fd;
    if (size != sizeof *rep) {
        client_hang_up(v->client);
        return;
    }
    rep->sentence[sizeof rep->sentence - 1] = 0;
    struct hmap_node *it = hmap_find(&v->calls, rep->tag);
    struct volumed_call *c = it ? hmap_entry(it, struct volumed_call, node) : NULL;
    if (c && rep->event == VOLUMED_REPLY)
        finish(v, c, rep, steal_fd(&theirs));
    else if (c && rep->event == VOLUMED_PROGRESS && c->hooks.progress)
        c->hooks.progress(c->hooks.user, rep->progress.done, rep->progress.total);
}

static void on_ready(void *user)
{
    struct volumed *v = user;
    if (v->greeted)
        transmit_all(v);
}

/* ---- the connection ---- */

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

static void on_down(void *user)
{
    struct volumed *v = user;
    log_warn("space-volumed went away; waiting for it");
    v->greeted = false;
    if (v->hello) {
        hmap_remove(&v->calls, &v->hello->node);
        free_call(v->hello);
        v->hello = NULL;
    }
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&v->calls, it));)
        hmap_entry(it, struct volumed_call, node)->sent = false;
    uv_timer_start(v->away, fail_all, AWAY_MSEC, 0);
    end_dependent(v);
    end_cancelled(v);
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

static void on_up(void *user)
{
    struct volumed *v = user;
    uv_timer_stop(v->away);
    v->hello = add_call(v, &(struct volumed_request){.op = VOLUMED_HELLO}, &(struct volumed_hooks){.done = hello_done, .user = v});
    transmit(v, v->hello); /* everything else follows its answer */
}

int volumed_open(uv_loop_t *loop, const char *run, struct volumed **out, struct err *e)
{
    static const struct client_ops ops = {.packet_max = sizeof(struct volumed_reply),
                                          .takes_fds = true,
                                          .up = on_up,
                                          .packet = on_packet,
                                          .ready = on_ready,
                                          .down = on_down,
                                          .retry_msec = RETRY_MSEC};
    struct volumed *v = calloc(1, sizeof *v);
    uv_timer_t *away = calloc(1, sizeof *away);
    if (v) {
        snprintf(v->path, sizeof v->path, "%.63s/volumed.sock", run);
        v->client = client_open(loop, v->path, &ops, v);
    }
    if (!v || !away || !v->client) {
        if (v && v->client)
            client_close(v->client);
        free(v);
        free(away);
        return err_set(e, ENOMEM, "connect to space-volumed: out of memory");
    }
    v->away = away;
    uv_timer_init(loop, v->away);
    v->away->data = v;
    uv_timer_start(v->away, fail_all, AWAY_MSEC, 0);
    *out = v;
    return 0;
}

static void away_closed(uv_handle_t *h)
{
    free(h);
}

void volumed_close(struct volumed *v)
{
    if (!v)
        return;
    client_close(v->client);
    uv_close((uv_handle_t *)v->away, away_closed);
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
    if (v->greeted)
        transmit(v, c);
    else if (!client_is_up(v->client) && !uv_is_active((uv_handle_t *)v->away))
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
