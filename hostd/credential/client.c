// SPDX-License-Identifier: Apache-2.0
// The connection to space-credd: see client.h.
#include "hostd/credential/client.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "ipc/client.h"

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
    struct client *client;
    bool greeted;
    uint64_t tag;
    struct call *calls, **last; /* in the order in which they were made; some are answered before others */
    struct credd_hooks hooks;
};

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
static int transmit(struct credd *c, struct call *call)
{
    AUTO_CLOSE int fd = payload_fd(call);
    if (fd == -2)
        return -ENOMEM;
    int rc = client_send(c->client, &(struct iovec){&call->q, sizeof call->q}, 1, &fd, fd >= 0);
    call->sent = rc > 0;
    return rc;
}

static void on_down(void *user)
{
    struct credd *c = user;
    const struct credd_reply rep = away();
    if (c->greeted)
        log_warn("space-credd went away; waiting for it");
    c->greeted = false;
    while (c->calls)
        finish(c, c->calls, &rep, "", 0);
}

static void transmit_all(void *user)
{
    struct credd *c = user;
    int rc = 1;
    for (struct call *call = c->calls; call && rc > 0; call = call->next)
        rc = call->sent ? 1 : transmit(c, call);
    if (rc < 0)
        client_hang_up(c->client);
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

static void on_packet(void *user, void *bytes, size_t size, int fd)
{
    struct credd *c = user;
    struct credd_reply *rep = bytes;
    AUTO_CLOSE int theirs = fd;
    size_t len;
    if (size != sizeof *rep || rep->version != CREDD_VERSION) {
        client_hang_up(c->client);
        return;
    }
    struct call *call = c->calls;
    while (call && call->q.tag != rep->tag)
        call = call->next;
    if (!call)
        return;
    AUTO_FREE char *came = read_fd(theirs, &len);
    rep->sentence[sizeof rep->sentence - 1] = 0;
    finish(c, call, rep, came ? came : "", len);
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

static void on_up(void *user)
{
    add(user, &(struct credd_request){.op = CREDD_HELLO, .field = 1}, NULL, 0, hello_done, user); /* all else follows its answer */
}

int credd_open(uv_loop_t *loop, const char *run, const struct credd_hooks *hooks, struct credd **out, struct err *e)
{
    static const struct client_ops ops = {.packet_max = sizeof(struct credd_reply),
                                          .takes_fds = true,
                                          .up = on_up,
                                          .packet = on_packet,
                                          .ready = transmit_all,
                                          .down = on_down,
                                          .retry_msec = RETRY_MSEC};
    char path[108];
    struct credd *c = calloc(1, sizeof *c);
    snprintf(path, sizeof path, "%.63s/credd.sock", run);
    if (!c || !(c->client = client_open(loop, path, &ops, c))) {
        free(c);
        return err_set(e, ENOMEM, "connect to space-credd: out of memory");
    }
    c->hooks = *hooks;
    c->last = &c->calls;
    *out = c;
    return 0;
}

bool credd_up(const struct credd *c)
{
    return c->greeted;
}
