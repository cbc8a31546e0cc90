// SPDX-License-Identifier: Apache-2.0
// Connection to space-noded: see noded_client.h.
#include "hostd/noded_client.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "ipc/client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define AWAY_MSEC  5000u /* how long calls wait for a noded that is gone */
#define RETRY_MSEC 50u

struct call {
    struct hmap_node node; /* by tag */
    struct noded_request req;
    noded_callback *cb;
    void *user;
    bool sent;     /* on this connection */
    bool repeated; /* was sent on an earlier one, too */
};

struct noded {
    struct space *space;
    struct noded_hooks hooks;
    char path[108];
    struct client *client;
    uv_timer_t away;
    struct hmap calls;
    uint64_t next_tag;
    struct call *hello; /* in flight on this connection */
};

static void finish(struct noded *n, struct call *c, const struct noded_reply *rep, int fd)
{
    hmap_remove(&n->calls, &c->node);
    c->cb(c->user, rep, fd, c->repeated);
    free(c);
}

static void fail_call(struct noded *n, struct call *c)
{
    struct noded_reply rep = {.error = -ENOTCONN};
    snprintf(rep.sentence, sizeof rep.sentence, "space-noded does not answer at %.90s: is it running? (spacectl doctor)", n->path);
    finish(n, c, &rep, -1);
}

static void fail_all(uv_timer_t *t)
{
    struct noded *n = t->data;
    uint64_t last = n->next_tag; /* callbacks may make new calls: those wait on */
    struct hmap_node *it = NULL;
    while ((it = hmap_iterate(&n->calls, it)))
        if (it->key <= last) {
            fail_call(n, hmap_entry(it, struct call, node));
            it = NULL; /* the map changed */
        }
}

static int transmit(struct noded *n, struct call *c)
{
    c->sent = client_send(n->client, &(struct iovec){&c->req, sizeof c->req}, 1, NULL, 0) > 0;
    return c->sent ? 0 : -EAGAIN;
}

/* Sends what has not been sent on this connection; EAGAIN leaves the rest for the next writable moment. */
static void transmit_all(struct noded *n)
{
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&n->calls, it));) {
        struct call *c = hmap_entry(it, struct call, node);
        if (!c->sent && transmit(n, c) < 0)
            return;
    }
}

static void on_packet(void *user, void *bytes, size_t size, int fd)
{
    struct noded *n = user;
    struct noded_reply *rep = bytes;
    AUTO_CLOSE int theirs = fd;
    if (size != sizeof *rep) {
        client_hang_up(n->client);
        return;
    }
    rep->sentence[sizeof rep->sentence - 1] = 0;
    if (rep->event != NODED_REPLY) {
        n->hooks.event(n->hooks.user, rep);
        return;
    }
    struct hmap_node *it = hmap_find(&n->calls, rep->tag);
    if (it)
        finish(n, hmap_entry(it, struct call, node), rep, steal_fd(&theirs));
}

static void on_ready(void *user)
{
    struct noded *n = user;
    if (!n->hello)
        transmit_all(n);
}

static void on_down(void *user)
{
    struct noded *n = user;
    log_warn("space-noded went away; waiting for it");
    if (n->hello) {
        hmap_remove(&n->calls, &n->hello->node);
        free(n->hello);
        n->hello = NULL;
    }
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&n->calls, it));) {
        struct call *c = hmap_entry(it, struct call, node);
        c->repeated = c->repeated || c->sent;
        c->sent = false;
    }
    uv_timer_start(&n->away, fail_all, AWAY_MSEC, 0);
}

static void hello_done(void *user, const struct noded_reply *rep, int fd, bool repeated)
{
    struct noded *n = user;
    (void)repeated;
    n->hello = NULL;
    if (fd >= 0)
        close(fd);
    if (rep->error == -EPROTO)
        log_error("space-noded: %s", rep->sentence);
    if (rep->error < 0)
        return;
    n->space->host_memory = rep->node.memory;
    n->space->host_cpus = rep->node.cpus;
    str_copy(n->space->host_qemu, sizeof n->space->host_qemu, rep->node.qemu);
    str_copy(n->space->host_kernel, sizeof n->space->host_kernel, rep->node.host_kernel);
    str_copy(n->space->host_cpu, sizeof n->space->host_cpu, rep->node.cpu_model);
    transmit_all(n);
    n->hooks.connected(n->hooks.user);
}

static struct call *add_call(struct noded *n, const struct noded_request *req, noded_callback *cb, void *user)
{
    struct call *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->req = *req;
    c->req.version = NODED_VERSION;
    c->req.tag = ++n->next_tag;
    c->cb = cb;
    c->user = user;
    hmap_insert(&n->calls, &c->node, c->req.tag);
    return c;
}

static void on_up(void *user)
{
    struct noded *n = user;
    uv_timer_stop(&n->away);
    n->hello = add_call(n, &(struct noded_request){.op = NODED_HELLO}, hello_done, n);
    transmit(n, n->hello); /* everything else follows its answer */
}

int noded_open(struct space *s, const struct noded_hooks *hooks, struct noded **out, struct err *e)
{
    static const struct client_ops ops = {.packet_max = sizeof(struct noded_reply),
                                          .takes_fds = true,
                                          .up = on_up,
                                          .packet = on_packet,
                                          .ready = on_ready,
                                          .down = on_down,
                                          .retry_msec = RETRY_MSEC};
    struct noded *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(e, ENOMEM, "connect to space-noded: out of memory");
    n->space = s;
    n->hooks = *hooks;
    snprintf(n->path, sizeof n->path, "%s/noded.sock", s->config.run);
    n->client = client_open(s->loop, n->path, &ops, n);
    if (!n->client) {
        free(n);
        return err_set(e, ENOMEM, "connect to space-noded: out of memory");
    }
    uv_timer_init(s->loop, &n->away);
    n->away.data = n;
    uv_timer_start(&n->away, fail_all, AWAY_MSEC, 0);
    *out = n;
    return 0;
}

void noded_send(struct noded *n, const struct noded_request *req, noded_callback *cb, void *user)
{
    struct call *c = add_call(n, req, cb, user);
    bool up = client_is_up(n->client);
    if (up && !n->hello)
        transmit(n, c);
    else if (!up && !uv_is_active((uv_handle_t *)&n->away))
        uv_timer_start(&n->away, fail_all, AWAY_MSEC, 0);
}

struct step {
    struct co *co;
    struct noded_reply rep;
    int fd;
    bool repeated;
};

static void step_done(void *user, const struct noded_reply *rep, int fd, bool repeated)
{
    struct step *st = user;
    st->rep = *rep;
    st->fd = fd;
    st->repeated = repeated;
    co_wake(st->co, 0);
}

int noded_call(struct space *s, const struct noded_request *req, struct noded_reply *rep, int *fd, struct err *e)
{
    struct step st = {.co = co_self(s->co)};
    noded_send(s->noded, req, step_done, &st);
    co_wait_uncancellable(s->co);
    if (st.rep.error == -EEXIST && st.repeated && req->op != NODED_VM_CAPTURE) /* of which half may be there */
        st.rep.error = 0;
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
