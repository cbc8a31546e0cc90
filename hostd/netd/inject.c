// SPDX-License-Identifier: Apache-2.0
// Connections to hosts that have a credential: see inject.h.
//
// Theory of operation. relay.c asks here for each TLS connection whose name it has verified, before
// it sends a byte of it on. The question goes to space-credd by a packet with a random number as
// its tag; a space-credd that is away is connected to anew at every tick, and asked again all that
// was not answered. What is not answered within relay.c's time is refused there: not knowing is no
// reason to let something pass.
//
// The same random number, with the sandbox's id, goes to HAProxy in the PROXY header, and HAProxy
// says it again in the header of each connection that it opens towards the server. That is all that
// it can say: where such a connection goes is the address that relay.c pinned and allowed for the
// guest's own connection, and it ends with that.
#include "hostd/netd/inject.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "hostd/netd/netd.h"
#include "hostd/netd/proxy.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define GREETINGS_MAX 256         /* connections of HAProxy's that have not said yet what they are */
#define GREETING_MSEC 10000u      /* it says so at once */
#define GUEST_ADDRESS 0xc0000002u /* 192.0.0.2: hostd/noded/net_wire.h */

/* HAProxy has connected and its header is not there yet. */
struct greeting {
    struct watch watch;
    struct injector *injector;
    uint64_t until;
    size_t len;
    uint8_t bytes[PROXY_MAX];
};

struct injector {
    struct netd *netd;
    uid_t user; /* HAProxy's */
    struct watch out;
    struct watch credd;     /* fd -1: away */
    struct hmap injections; /* by token */
    struct greeting greetings[GREETINGS_MAX];
};

struct injection {
    struct hmap_node by_token;
    struct injector *injector;
    struct relay *relay;
    inject_done *done; /* NULL: answered */
    uint64_t sandbox;
    uint32_t slot;
    uint16_t port;
    bool asked; /* space-credd may remember it */
    bool ended;
    char name[INJECT_NAME_SIZE];
};

static void address_of(const struct netd *n, const char *name, struct sockaddr_un *out)
{
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(out->sun_path, sizeof out->sun_path, "%s/" INJECT_DIR "/%s", n->config.run, name);
}

static int dial(const struct netd *n, const char *name, int type)
{
    struct sockaddr_un to;
    address_of(n, name, &to);
    int fd = socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    int rc = -errno;
    close(fd);
    return rc;
}

/* ---- space-credd ---- */

static void credd_lost(struct injector *j)
{
    loop_forget(j->netd->loop, &j->credd);
    close(j->credd.fd);
    j->credd.fd = -1;
}

static void send_ask(struct injector *j, struct injection *i)
{
    struct inject_ask q = {.version = INJECT_VERSION, .port = i->port, .tag = i->by_token.key, .sandbox = i->sandbox};
    if (!i->ended)
        memcpy(q.name, i->name, sizeof q.name);
    if (j->credd.fd >= 0 && send(j->credd.fd, &q, sizeof q, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        credd_lost(j); /* gone, or it reads nothing: all is asked again */
    i->asked = j->credd.fd >= 0;
}

static void connect_credd(struct injector *j)
{
    if (j->credd.fd >= 0)
        return;
    int fd = dial(j->netd, INJECT_ASK, SOCK_SEQPACKET);
    if (fd < 0)
        return;
    j->credd.fd = fd;
    if (loop_watch(j->netd->loop, &j->credd, EPOLLIN | EPOLLRDHUP) < 0) {
        close(fd);
        j->credd.fd = -1;
        return;
    }
    for (struct hmap_node *it = NULL; j->credd.fd >= 0 && (it = hmap_iterate(&j->injections, it));) {
        struct injection *i = hmap_entry(it, struct injection, by_token);
        send_ask(j, i); /* answered ones, too: it has to know what is there */
    }
}

/* What could not be answered. */
static void ask_again(struct injector *j)
{
    for (struct hmap_node *it = NULL; j->credd.fd >= 0 && (it = hmap_iterate(&j->injections, it));) {
        struct injection *i = hmap_entry(it, struct injection, by_token);
        if (i->done)
            send_ask(j, i);
    }
}

static struct injection *find(const struct injector *j, uint64_t token)
{
    struct hmap_node *it = hmap_find(&j->injections, token);
    return it ? hmap_entry(it, struct injection, by_token) : NULL;
}

static void take_answer(struct injector *j, struct inject_answer *a)
{
    struct injection *i = find(j, a->tag);
    if (!i || !i->done || a->verdict == INJECT_WAIT)
        return; /* its connection ended meanwhile; or it is asked again, below */
    inject_done *done = i->done;
    a->sentence[sizeof a->sentence - 1] = 0;
    i->done = NULL;
    i->slot = a->slot;
    i->asked = a->verdict != INJECT_PASS;
    if (a->verdict == INJECT_SLOT && a->slot >= INJECT_SLOTS)
        done(i->relay, INJECT_REFUSE, "space-credd named no slot");
    else
        done(i->relay, a->verdict, a->sentence);
}

static void credd_ready(struct watch *w, uint32_t events)
{
    struct injector *j = (struct injector *)(void *)((char *)w - offsetof(struct injector, credd));
    (void)events;
    while (w->fd >= 0) {
        struct inject_answer a;
        ssize_t n = recv(w->fd, &a, sizeof a, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            if (errno == EAGAIN)
                return;
        } else if (n != (ssize_t)sizeof a || a.version != INJECT_VERSION) {
            credd_lost(j);
        } else {
            take_answer(j, &a);
        }
    }
}

struct injection *inject_ask(struct netd *n, struct relay *r, uint64_t sandbox, const char *name, uint16_t port, inject_done *done)
{
    struct injector *j = n->injector;
    struct injection *i = calloc(1, sizeof *i);
    uint64_t token;
    if (!i || strlen(name) >= sizeof i->name || getrandom(&token, sizeof token, 0) != (ssize_t)sizeof token) {
        free(i);
        return NULL;
    }
    i->injector = j;
    i->relay = r;
    i->done = done;
    i->sandbox = sandbox;
    i->port = port;
    strcpy(i->name, name);
    hmap_insert(&j->injections, &i->by_token, token);
    if (j->credd.fd >= 0)
        send_ask(j, i);
    if (j->credd.fd < 0)
        connect_credd(j);
    return i;
}

void inject_end(struct injection *i)
{
    if (!i)
        return;
    i->ended = true;
    if (i->asked)
        send_ask(i->injector, i);
    hmap_remove(&i->injector->injections, &i->by_token);
    free(i);
}

/* ---- to HAProxy ---- */

int inject_connect(const struct injection *i)
{
    char name[16];
    snprintf(name, sizeof name, INJECT_IN, i->slot);
    return dial(i->injector->netd, name, SOCK_STREAM);
}

static void write_id(const struct injection *i, char out[INJECT_ID_LEN + 1])
{
    snprintf(out, INJECT_ID_LEN + 1, INJECT_ID_FORMAT, (unsigned long long)i->sandbox, (unsigned long long)i->by_token.key);
}

size_t inject_header(const struct injection *i, uint32_t address, uint8_t *out)
{
    char id[INJECT_ID_LEN + 1];
    write_id(i, id);
    return proxy_write(&(struct proxy_header){.source = GUEST_ADDRESS, .address = address, .port = i->port, .name = i->name, .id = id}, out);
}

/* ---- from HAProxy ---- */

static void drop_greeting(struct greeting *g)
{
    if (g->watch.fd < 0)
        return;
    loop_forget(g->injector->netd->loop, &g->watch);
    close(g->watch.fd);
    g->watch.fd = -1;
}

/* Whose connection it says it is; a token that we never gave away names none. */
static struct injection *named(const struct injector *j, const uint8_t *header, size_t len)
{
    char id[INJECT_ID_LEN + 1], ours[INJECT_ID_LEN + 1];
    unsigned long long sandbox, token;
    if (proxy_read_id(header, len, id) < 0 || sscanf(id, "%12llx.%16llx", &sandbox, &token) != 2)
        return NULL;
    struct injection *i = find(j, token);
    if (!i || i->done)
        return NULL;
    write_id(i, ours);
    return strcmp(id, ours) == 0 ? i : NULL;
}

static void greeted(struct greeting *g)
{
    struct injection *i = named(g->injector, g->bytes, g->len);
    if (!i) {
        drop_greeting(g); /* its guest's connection ended meanwhile */
        return;
    }
    loop_forget(g->injector->netd->loop, &g->watch);
    relay_join(i->relay, steal_fd(&g->watch.fd));
}

static void greeting_ready(struct watch *w, uint32_t events)
{
    struct greeting *g = (struct greeting *)(void *)w;
    (void)events;
    for (;;) {
        /* Not a byte more than the header: what follows is for the server. */
        size_t want = g->len < PROXY_HEAD ? PROXY_HEAD : proxy_size(g->bytes);
        if (want && want == g->len && g->len >= PROXY_HEAD) {
            greeted(g);
            return;
        }
        ssize_t n = want ? recv(w->fd, g->bytes + g->len, want - g->len, MSG_DONTWAIT) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0) {
            drop_greeting(g);
            return;
        }
        g->len += (size_t)n;
    }
}

static bool from_haproxy(const struct injector *j, int fd)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && (peer.uid == j->user || peer.uid == 0);
}

static struct greeting *free_greeting(struct injector *j)
{
    for (int i = 0; i < GREETINGS_MAX; i++)
        if (j->greetings[i].watch.fd < 0)
            return &j->greetings[i];
    return NULL;
}

static void out_ready(struct watch *w, uint32_t events)
{
    struct injector *j = (struct injector *)(void *)((char *)w - offsetof(struct injector, out));
    int fd;
    (void)events;
    while ((fd = accept4(w->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct greeting *g = from_haproxy(j, fd) ? free_greeting(j) : NULL;
        if (!g) {
            close(fd);
            continue;
        }
        g->watch.fd = fd;
        g->len = 0;
        g->until = loop_now(j->netd->loop) + GREETING_MSEC;
        if (loop_watch(j->netd->loop, &g->watch, EPOLLIN | EPOLLRDHUP) < 0)
            drop_greeting(g);
    }
}

/* ---- life ---- */

bool inject_is_on(const struct netd *n)
{
    return n->injector != NULL;
}

void inject_tick(struct netd *n)
{
    struct injector *j = n->injector;
    if (!j)
        return;
    for (int i = 0; i < GREETINGS_MAX; i++)
        if (j->greetings[i].watch.fd >= 0 && j->greetings[i].until < loop_now(n->loop))
            drop_greeting(&j->greetings[i]);
    if (j->credd.fd < 0)
        connect_credd(j);
    else
        ask_again(j);
}

static int listen_out(struct injector *j, const struct passwd *pw, struct err *e)
{
    struct sockaddr_un at;
    address_of(j->netd, "", &at);
    if ((mkdir(at.sun_path, 0755) < 0 && errno != EEXIST) || chmod(at.sun_path, 0755) < 0)
        return err_sys(e, "make %s", at.sun_path);
    address_of(j->netd, INJECT_OUT, &at);
    unlink(at.sun_path);
    j->out = (struct watch){socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), out_ready};
    mode_t old = umask(0177);
    int rc = j->out.fd < 0 ? -1 : bind(j->out.fd, (struct sockaddr *)&at, sizeof at);
    umask(old);
    if (rc < 0 || chown(at.sun_path, pw->pw_uid, pw->pw_gid) < 0 || listen(j->out.fd, 1024) < 0)
        return err_sys(e, "listen on %s", at.sun_path);
    rc = loop_watch(j->netd->loop, &j->out, EPOLLIN);
    return rc < 0 ? err_set(e, -rc, "listen on %s: %s", at.sun_path, strerror(-rc)) : 0;
}

int inject_open(struct netd *n, struct err *e)
{
    if (!n->config.inject)
        return 0;
    struct injector *j = calloc(1, sizeof *j);
    const struct passwd *pw = getpwnam(n->config.inject_user);
    if (!j)
        return err_set(e, ENOMEM, "out of memory");
    if (!pw) {
        free(j);
        return err_set(e, ENOENT, "there is no user '%s' (config `inject_user`)", n->config.inject_user);
    }
    j->netd = n;
    j->user = pw->pw_uid;
    j->credd = (struct watch){-1, credd_ready};
    for (int i = 0; i < GREETINGS_MAX; i++)
        j->greetings[i] = (struct greeting){.watch = {-1, greeting_ready}, .injector = j};
    n->injector = j;
    return listen_out(j, pw, e);
}
