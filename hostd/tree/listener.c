// SPDX-License-Identifier: Apache-2.0
// Accepting connections: see serve.h.
#include "hostd/tree/serve.h"

#include "base/log.h"
#include "hostd/tree/tree.h"
#include "loop/stream.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define CONNECTIONS_MAX        256u /* in all; a few for each uid that is not spacefs */
#define CONNECTIONS_OF_ONE_UID 16u

struct connection {
    struct connection *next;
    struct session *session;
    struct listener *listener;
    struct stream *stream;
    struct p9_server *server;
    bool paused;
};

struct listener {
    struct space *space;
    uv_poll_t poll;
    int fd;
    uint32_t speaker; /* uid of spacefs */
    unsigned count;
    struct connection *connections;
};

static unsigned count_of(const struct listener *l, uint32_t uid)
{
    unsigned n = 0;
    for (const struct connection *c = l->connections; c; c = c->next)
        n += c->session->peer_uid == uid;
    return n;
}

static void drop(struct connection *c)
{
    struct connection **p = &c->listener->connections;
    while (*p != c)
        p = &(*p)->next;
    *p = c->next;
    c->listener->count--;
    stream_close(c->stream);
    p9_server_destroy(c->server);
    session_unref(c->session);
    free(c);
}

static void check_flow(struct connection *c)
{
    bool wants = p9_server_wants_input(c->server);
    if (wants == !c->paused)
        return;
    c->paused = !wants;
    if (wants)
        stream_resume(c->stream);
    else
        stream_pause(c->stream);
}

static void resume(void *user)
{
    check_flow(user);
}

static void input(void *user, const void *buf, size_t len)
{
    struct connection *c = user;
    int rc = p9_server_input(c->server, buf, len);
    if (rc < 0) {
        log_warn("a client of uid %u broke the protocol (%s): disconnected", c->session->peer_uid, strerror(-rc));
        drop(c);
        return;
    }
    check_flow(c);
}

static void sent(void *user, size_t len)
{
    struct connection *c = user;
    p9_server_sent(c->server, len);
    check_flow(c);
}

static void closed(void *user, int err)
{
    (void)err;
    drop(user);
}

static void accept_one(struct listener *l, int fd)
{
    static const struct stream_ops ops = {input, sent, closed};
    struct ucred cred;
    socklen_t size = sizeof cred;
    struct connection *c = calloc(1, sizeof *c);
    struct session *session = calloc(1, sizeof *session);
    bool known = c && session && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) == 0;
    bool trusted = known && (cred.uid == l->speaker || cred.uid == 0); /* spacefs and root always get in */
    if (!known || (!trusted && (l->count >= CONNECTIONS_MAX || count_of(l, cred.uid) >= CONNECTIONS_OF_ONE_UID))) {
        close(fd);
        free(session);
        free(c);
        return;
    }
    c->listener = l;
    *session = (struct session){1, l->space, cred.uid, cred.uid == 0 || cred.uid == l->speaker};
    c->session = session;
    c->stream = stream_open(l->space->loop, fd, &ops, c);
    struct p9_transport transport = {c->stream, stream_send};
    c->server = c->stream ? p9_server_create(&tree_backend, &transport, NULL, session) : NULL;
    if (!c->server) {
        stream_close(c->stream);
        free(session);
        free(c);
        return;
    }
    p9_server_set_resume(c->server, resume, c);
    c->next = l->connections;
    l->connections = c;
    l->count++;
}

static void acceptable(uv_poll_t *p, int status, int events)
{
    struct listener *l = p->data;
    (void)events;
    int fd;
    while (status == 0 && (fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
        accept_one(l, fd);
}

int serve_open(struct space *s, struct listener **out, struct err *e)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    struct listener *l = calloc(1, sizeof *l);
    struct passwd *pw = getpwnam(s->config.user);
    if (!l || !pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `user`)", s->config.user);
    l->space = s;
    l->speaker = pw->pw_uid;
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/hostd.sock", s->config.run);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    unlink(addr.sun_path);
    if (l->fd < 0 || bind(l->fd, (struct sockaddr *)&addr, sizeof addr) < 0 || chmod(addr.sun_path, 0666) < 0 || listen(l->fd, 64) < 0)
        return err_sys(e, "listen on %s", addr.sun_path);
    uv_poll_init(s->loop, &l->poll, l->fd);
    l->poll.data = l;
    uv_poll_start(&l->poll, UV_READABLE, acceptable);
    *out = l;
    return 0;
}

void serve_close(struct listener *l)
{
    if (!l)
        return;
    while (l->connections)
        drop(l->connections);
    uv_poll_stop(&l->poll);
    close(l->fd);
}
