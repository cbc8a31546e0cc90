// SPDX-License-Identifier: Apache-2.0
// space-hostd's side of netd: see netd.h and lib/ipc/netd.h.
//
// One client at a time: a space-hostd that starts again replaces the one that was there, once it
// has said hello (others only look whether we are there). Guests and their connections stay when it
// goes. What it does not read of events is dropped; a reply that it does not read ends the
// connection.
#include "hostd/netd/netd.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define FDS     2
#define KEY_MAX 0xffffffffffffull

#define PEERS_MAX 4

struct peer {
    struct watch watch;
    struct control *control;
};

struct control {
    struct netd *netd;
    struct watch listener;
    struct peer peers[PEERS_MAX];
    struct peer *client; /* who has said hello last; NULL: nobody */
    char in[sizeof(struct netd_message) + NETD_TEXT_MAX];
};

static void hang_up(struct peer *p)
{
    if (p->watch.fd < 0)
        return;
    loop_forget(p->control->netd->loop, &p->watch);
    close(p->watch.fd);
    p->watch.fd = -1;
    if (p->control->client == p)
        p->control->client = NULL;
}

/* ---- what is sent ---- */

static bool transmit(const struct peer *p, const struct netd_message *m, const char *text)
{
    struct iovec iov[2] = {{(void *)(uintptr_t)m, sizeof *m}, {(void *)(uintptr_t)text, m->len}};
    struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
    return p && p->watch.fd >= 0 && sendmsg(p->watch.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

static void reply(struct peer *p, const struct netd_message *q, int error, const char *text)
{
    struct netd_message m = {.version = NETD_VERSION, .op = NETD_REPLY, .tag = q->tag, .key = q->key, .error = error, .len = (uint32_t)strlen(text)};
    if (!transmit(p, &m, text))
        hang_up(p);
}

void control_decision(struct netd *n, const struct guest *g, bool allowed, const char *text)
{
    struct netd_message m = {
        .version = NETD_VERSION, .op = NETD_EVENT_DECISION, .key = g->key, .len = (uint32_t)strlen(text), .denied = !allowed, .counts = g->counts};
    transmit(n->control->client, &m, text);
}

void control_counts(struct netd *n, const struct guest *g)
{
    struct netd_message m = {.version = NETD_VERSION, .op = NETD_EVENT_COUNTS, .key = g->key, .counts = g->counts};
    transmit(n->control->client, &m, "");
}

/* ---- requests ---- */

static void hello(struct peer *p, const struct netd_message *q)
{
    struct control *c = p->control;
    char *text = NULL;
    size_t size = 0;
    if (q->version != NETD_VERSION) {
        reply(p, q, -EPROTO, "this space-netd speaks another version: install all daemons from one build");
        return;
    }
    FILE *f = open_memstream(&text, &size);
    for (struct hmap_node *it = NULL; f && (it = hmap_iterate(&c->netd->guests, it));)
        fprintf(f, "%012llx\n", (unsigned long long)it->key);
    if (!f || fclose(f) != 0 || size > NETD_TEXT_MAX) {
        reply(p, q, -E2BIG, "too many guests");
    } else {
        if (c->client && c->client != p)
            hang_up(c->client);
        c->client = p;
        reply(p, q, 0, text);
    }
    free(text);
}

static bool is_socket(int fd, int type)
{
    int got = 0, domain = 0;
    socklen_t size = sizeof got;
    return fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &got, &size) == 0 && got == type &&
           getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_INET;
}

static void add(struct peer *p, const struct netd_message *q, int fds[FDS])
{
    if (guest_find(p->control->netd, q->key)) {
        reply(p, q, -EEXIST, "the guest is there already");
        return;
    }
    if (!q->key || q->key > KEY_MAX || !is_socket(fds[0], SOCK_STREAM) || !is_socket(fds[1], SOCK_DGRAM)) {
        reply(p, q, -EINVAL, "a key and two sockets, TCP and UDP, were expected");
        return;
    }
    int rc = guest_add(p->control->netd, q->key, steal_fd(&fds[0]), steal_fd(&fds[1]));
    reply(p, q, rc, rc < 0 ? strerror(-rc) : "");
}

static void remove_guest(struct peer *p, const struct netd_message *q)
{
    struct guest *g = guest_find(p->control->netd, q->key);
    if (g)
        guest_remove(g);
    reply(p, q, 0, "");
}

static void set_policy(struct peer *p, const struct netd_message *q, const char *text)
{
    struct guest *g = guest_find(p->control->netd, q->key);
    struct err e = {0};
    if (!g) {
        reply(p, q, -ENOENT, "there is no such guest");
        return;
    }
    if (q->head > q->len || q->tenant > q->len - q->head || memchr(text, 0, q->len)) {
        reply(p, q, -EINVAL, "lines on what it belongs to, and two policies were expected");
        return;
    }
    const char *behind = text + q->head + q->tenant;
    AUTO_FREE char *belongs = strndup(text, q->head);
    AUTO_FREE char *tenant = strndup(text + q->head, q->tenant);
    AUTO_FREE char *own = strndup(behind, (size_t)(text + q->len - behind));
    if (!belongs || !tenant || !own)
        abort(); /* rather than go on with the old one */
    int rc = guest_set_policy(g, q->id, belongs, tenant, own, &e);
    reply(p, q, rc, rc < 0 ? e.msg : "");
}

static void handle(struct peer *p, const struct netd_message *q, const char *text, int fds[FDS])
{
    if (q->op == NETD_HELLO)
        hello(p, q);
    else if (p->control->client != p)
        hang_up(p);
    else if (q->op == NETD_ADD)
        add(p, q, fds);
    else if (q->op == NETD_REMOVE)
        remove_guest(p, q);
    else if (q->op == NETD_POLICY)
        set_policy(p, q, text);
    else
        reply(p, q, -EOPNOTSUPP, "there is no such operation");
}

/* 1 handled, 0 nothing there, -1 the end. */
static int receive(struct peer *p)
{
    struct control *c = p->control;
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(FDS * sizeof(int))];
    } control;
    struct netd_message q;
    struct iovec iov = {c->in, sizeof c->in};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int fds[FDS] = {-1, -1};
    ssize_t n = recvmsg(p->watch.fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR;
    const struct cmsghdr *h = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
    if (h && h->cmsg_level == SOL_SOCKET && h->cmsg_type == SCM_RIGHTS)
        memcpy(fds, CMSG_DATA(h), h->cmsg_len - CMSG_LEN(0));
    bool good = n >= (ssize_t)sizeof q && !(msg.msg_flags & MSG_TRUNC);
    if (good) {
        memcpy(&q, c->in, sizeof q);
        good = (size_t)n == sizeof q + q.len;
    }
    if (good)
        handle(p, &q, c->in + sizeof q, fds);
    cleanup_close(&fds[0]);
    cleanup_close(&fds[1]);
    return good ? 1 : -1;
}

static void peer_ready(struct watch *w, uint32_t events)
{
    struct peer *p = (struct peer *)(void *)w;
    int rc = 1;
    (void)events;
    while (p->watch.fd >= 0 && (rc = receive(p)) > 0)
        ;
    if (rc < 0 && p->control->client == p)
        log_info("space-hostd went away");
    if (rc < 0)
        hang_up(p);
}

/* ---- connections ---- */

static bool welcome(const struct netd *n, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == n->user || peer.uid == 0);
}

/* A place for one more; somebody who never said hello goes for it. */
static struct peer *free_peer(struct control *c)
{
    struct peer *silent = NULL;
    for (int i = 0; i < PEERS_MAX; i++) {
        if (c->peers[i].watch.fd < 0)
            return &c->peers[i];
        if (&c->peers[i] != c->client)
            silent = &c->peers[i];
    }
    hang_up(silent);
    return silent;
}

static void listener_ready(struct watch *w, uint32_t events)
{
    struct control *c = (struct control *)(void *)((char *)w - offsetof(struct control, listener));
    int fd;
    (void)events;
    while ((fd = accept4(c->listener.fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        if (!welcome(c->netd, fd)) {
            log_warn("a connection is refused: not from space-hostd");
            close(fd);
            continue;
        }
        struct peer *p = free_peer(c);
        p->watch.fd = fd;
        if (loop_watch(c->netd->loop, &p->watch, EPOLLIN | EPOLLRDHUP) < 0)
            hang_up(p);
    }
}

int control_open(struct netd *n, struct err *e)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    const struct passwd *pw = getpwnam(n->config.user);
    struct control *c = calloc(1, sizeof *c);
    if (!c)
        return err_set(e, ENOMEM, "open the socket: out of memory");
    if (!pw)
        return err_set(e, ENOENT, "there is no user '%s' (config `user`)", n->config.user);
    n->user = pw->pw_uid;
    c->netd = n;
    for (int i = 0; i < PEERS_MAX; i++)
        c->peers[i] = (struct peer){{-1, peer_ready}, c};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/netd.sock", n->config.run);
    unlink(addr.sun_path);
    c->listener = (struct watch){socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), listener_ready};
    mode_t old = umask(0177);
    int rc = c->listener.fd < 0 ? -1 : bind(c->listener.fd, (struct sockaddr *)&addr, sizeof addr);
    umask(old);
    if (rc < 0 || chown(addr.sun_path, pw->pw_uid, pw->pw_gid) < 0 || listen(c->listener.fd, 4) < 0)
        return err_sys(e, "listen on %s", addr.sun_path);
    n->control = c;
    rc = loop_watch(n->loop, &c->listener, EPOLLIN);
    return rc < 0 ? err_set(e, -rc, "listen on %s: %s", addr.sun_path, strerror(-rc)) : 0;
}
