// SPDX-License-Identifier: Apache-2.0
// The connection to space-credd: see client.h.
#include "hostd/credential/client.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "ipc/packet.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RETRY_MSEC 200u

struct call {
    struct call *next;
    struct credd_request q;
    char *payload; /* malloc'ed; NULL: it is in q.text */
    size_t len;
    bool sent;
    credd_done *done;
    void *user;
};

struct credd {
    uv_loop_t *loop;
    char path[108];
    int fd;
    uv_poll_t *poll;
    uv_timer_t retry;
    bool greeted;
    uint64_t tag;
    struct call *calls, **last; /* in the order in which they were made; some are answered before others */
    struct credd_hooks hooks;
};

static void try_connect(uv_timer_t *t);
static void ready(uv_poll_t *p, int status, int events);

/* ---- calls ---- */

static void unlink_call(struct credd *c, struct call *call)
{
    struct call **at = &c->calls;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
    if (c->last == &call->next)
        c->last = at;
}

static void finish(struct credd *c, struct call *call, const struct credd_reply *rep, const char *bytes, size_t len)
{
    unlink_call(c, call);
    if (call->done)
        call->done(call->user, rep, bytes, len);
    free(call->payload);
    free(call);
}

static struct credd_reply away(void)
{
    struct credd_reply rep = {.error = -ENOTCONN};
    snprintf(rep.sentence, sizeof rep.sentence, "space-credd does not answer: is it running? (spacectl doctor)");
    return rep;
}

/* ---- the wire ---- */

/* The payload as a descriptor; -1: it is in the request. */
static int payload_fd(const struct call *call)
{
    if (!call->payload)
        return -1;
    int fd = memfd_create("space-hostd", MFD_CLOEXEC);
    if (fd >= 0 && write(fd, call->payload, call->len) == (ssize_t)call->len)
        return fd;
    cleanup_close(&fd);
    return -2;
}

/* 1 sent, 0 no room now, -errno. */
static int transmit(const struct credd *c, struct call *call)
{
    AUTO_CLOSE int fd = payload_fd(call);
    if (fd == -2)
        return -ENOMEM;
    int rc = packet_send(c->fd, &(struct iovec){&call->q, sizeof call->q}, 1, &fd, fd >= 0);
    call->sent = rc > 0;
    return rc;
}

static void poll_closed(uv_handle_t *h)
{
    free(h);
}

static void lost(struct credd *c)
{
    const struct credd_reply rep = away();
    if (!c->poll)
        return;
    if (c->greeted)
        log_warn("space-credd went away; waiting for it");
    uv_poll_stop(c->poll);
    uv_close((uv_handle_t *)c->poll, poll_closed);
    c->poll = NULL;
    close(c->fd);
    c->fd = -1;
    c->greeted = false;
    uv_timer_start(&c->retry, try_connect, RETRY_MSEC, 0);
    while (c->calls)
        finish(c, c->calls, &rep, "", 0);
}

static void transmit_all(struct credd *c)
{
    bool rest = false;
    for (struct call *call = c->calls; call && !rest; call = call->next) {
        int rc = call->sent ? 1 : transmit(c, call);
        if (rc < 0) {
            lost(c);
            return;
        }
        rest = rc == 0;
    }
    uv_poll_start(c->poll, UV_READABLE | (rest ? UV_WRITABLE : 0), ready);
}

/* What came along, malloc'ed, with a NUL. */
static char *read_fd(int fd, size_t *ret_len)
{
    struct stat st;
    *ret_len = 0;
    size_t size = fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0 ? (size_t)st.st_size : 0;
    char *bytes = malloc(size + 1);
    ssize_t n = bytes && size ? pread(fd, bytes, size, 0) : 0;
    if (bytes) {
        *ret_len = n > 0 ? (size_t)n : 0;
        bytes[*ret_len] = 0;
    }
    return bytes;
}

static void dispatch(struct credd *c, struct credd_reply *rep, int fd)
{
    size_t len;
    struct call *call = c->calls;
    while (call && call->q.tag != rep->tag)
        call = call->next;
    if (!call)
        return;
    AUTO_FREE char *bytes = read_fd(fd, &len);
    rep->sentence[sizeof rep->sentence - 1] = 0;
    finish(c, call, rep, bytes ? bytes : "", len);
}

/* 1 an answer, 0 nothing there now, -errno. */
static int receive(const struct credd *c, struct credd_reply *rep, int *fd)
{
    ssize_t got = packet_receive(c->fd, rep, sizeof *rep, fd);
    if (got <= 0)
        return (int)got;
    return got == (ssize_t)sizeof *rep && rep->version == CREDD_VERSION ? 1 : -EPROTO;
}

static void ready(uv_poll_t *p, int status, int events)
{
    struct credd *c = p->data;
    struct credd_reply rep;
    int rc = status < 0 ? status : 1;
    (void)events;
    while (c->poll == p && rc > 0) {
        int fd;
        rc = receive(c, &rep, &fd);
        if (rc > 0)
            dispatch(c, &rep, fd);
        cleanup_close(&fd);
    }
    if (c->poll == p && rc < 0)
        lost(c);
    else if (c->poll == p)
        transmit_all(c);
}

/* ---- the connection ---- */

static void hello_done(void *user, const struct credd_reply *rep, const char *bytes, size_t len)
{
    struct credd *c = user;
    if (rep->error < 0) {
        if (rep->error != -ENOTCONN)
            log_error("space-credd: %s", rep->sentence);
        return;
    }
    c->greeted = true;
    c->hooks.up(c->hooks.user, rep, bytes, len);
}

static void add(struct credd *c, const struct credd_request *q, const char *payload, size_t len, credd_done *done, void *user)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        abort();
    call->q = *q;
    call->q.version = CREDD_VERSION;
    call->q.tag = ++c->tag;
    call->done = done;
    call->user = user;
    if (payload && len < sizeof call->q.text) {
        memcpy(call->q.text, payload, len);
    } else if (payload) {
        if (!(call->payload = malloc(len)))
            abort();
        memcpy(call->payload, payload, len);
        call->len = len;
    }
    *c->last = call;
    c->last = &call->next;
    transmit_all(c);
}

void credd_send(struct credd *c, const struct credd_request *q, const char *payload, size_t len, credd_done *done, void *user)
{
    const struct credd_reply rep = away();
    if (c->greeted)
        add(c, q, payload, len, done, user);
    else if (done)
        done(user, &rep, "", 0);
}

static void try_connect(uv_timer_t *t)
{
    struct credd *c = t->data;
    int fd = packet_connect(c->path);
    c->poll = fd < 0 ? NULL : calloc(1, sizeof *c->poll);
    if (!c->poll) {
        cleanup_close(&fd);
        uv_timer_start(&c->retry, try_connect, RETRY_MSEC, 0);
        return;
    }
    c->fd = fd;
    uv_poll_init(c->loop, c->poll, fd);
    c->poll->data = c;
    add(c, &(struct credd_request){.op = CREDD_HELLO, .field = 1}, NULL, 0, hello_done, c); /* all else follows its answer */
}

int credd_open(uv_loop_t *loop, const char *run, const struct credd_hooks *hooks, struct credd **out, struct err *e)
{
    struct credd *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ENOMEM, "connect to space-credd: out of memory");
    c->loop = loop;
    c->fd = -1;
    c->hooks = *hooks;
    c->last = &c->calls;
    snprintf(c->path, sizeof c->path, "%.63s/credd.sock", run);
    uv_timer_init(loop, &c->retry);
    c->retry.data = c;
    *out = c;
    try_connect(&c->retry);
    return 0;
}

bool credd_up(const struct credd *c)
{
    return c->greeted;
}
