// SPDX-License-Identifier: Apache-2.0
// space-netd's questions: see haproxy.h and ipc/inject.h.
//
// What was answered with a slot stays known, by its token, until space-netd says that the connection ended, or hangs up: HAProxy gets secrets for those
// connections and no other. A space-netd that comes back, or finds us anew, tells all that there are.
#include "base/hmap.h"
#include "base/log.h"
#include "hostd/credd/credd.h"
#include "hostd/credd/find.h"
#include "hostd/credd/haproxy.h"
#include "ipc/conn.h"
#include "ipc/inject.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define CLIENTS_MAX 4u
#define TOKENS_MAX  16384u
#define OUTPUT_MAX  1024u

struct haproxy_asks {
    struct credd *credd;
    struct haproxy *haproxy;
    uv_poll_t poll;
    int fd;
    struct hmap tokens;
    unsigned clients;
};

struct client {
    struct haproxy_asks *asks;
};

struct token {
    struct hmap_node by_token;
    struct client *client;
    uint64_t sandbox;
    uint16_t port;
    char name[INJECT_NAME_SIZE];
};

/* A question whose certificate is being made. */
struct question {
    struct conn *conn;
    uint64_t tag;
};

static struct token *find(const struct haproxy_asks *a, uint64_t key)
{
    struct hmap_node *n = hmap_find(&a->tokens, key);
    return n ? hmap_entry(n, struct token, by_token) : NULL;
}

static void forget(struct haproxy_asks *a, struct token *t)
{
    hmap_remove(&a->tokens, &t->by_token);
    free(t);
}

static bool remember(struct client *c, const struct inject_ask *q)
{
    struct token *t = find(c->asks, q->tag);
    if (!t && c->asks->tokens.count < TOKENS_MAX && (t = calloc(1, sizeof *t)))
        hmap_insert(&c->asks->tokens, &t->by_token, q->tag);
    if (!t)
        return false;
    t->client = c;
    t->sandbox = q->sandbox;
    t->port = (uint16_t)q->port;
    memcpy(t->name, q->name, sizeof t->name);
    return true;
}

static void answer(struct conn *c, uint64_t tag, enum inject_verdict verdict, uint32_t slot, const char *sentence)
{
    struct inject_answer a = {.version = INJECT_VERSION, .verdict = verdict, .tag = tag, .slot = slot};
    strncpy(a.sentence, sentence, sizeof a.sentence - 1);
    conn_reply(c, &a, -1);
}

static void prepared(void *user, int rc, uint32_t slot, const char *sentence)
{
    struct question *q = user;
    answer(q->conn, q->tag, rc < 0 ? INJECT_REFUSE : INJECT_SLOT, slot, sentence);
    conn_unref(q->conn);
    free(q);
}

static void request(void *user, struct conn *conn, const void *bytes, int *fds, unsigned fd_count)
{
    struct client *c = user;
    const struct credd *credd = c->asks->credd;
    struct inject_ask ask;
    uint32_t tenant;
    (void)fds;
    (void)fd_count;
    memcpy(&ask, bytes, sizeof ask);
    if (ask.version != INJECT_VERSION || !memchr(ask.name, 0, sizeof ask.name) || ask.port > 65535) {
        conn_close(conn);
        return;
    }
    if (!ask.name[0]) { /* the connection ended */
        struct token *t = find(c->asks, ask.tag);
        if (t && t->client == c)
            forget(c->asks, t);
        answer(conn, ask.tag, INJECT_PASS, 0, "");
        return;
    }
    if (finder_owner(credd->finder, ask.sandbox, &tenant) < 0) {
        answer(conn, ask.tag, INJECT_WAIT, 0, "");
        return;
    }
    if (!cred_wants(credd, ask.sandbox, ask.name, (uint16_t)ask.port)) {
        answer(conn, ask.tag, INJECT_PASS, 0, "");
        return;
    }
    struct question *q = remember(c, &ask) ? malloc(sizeof *q) : NULL;
    if (!q) {
        answer(conn, ask.tag, INJECT_REFUSE, 0, "too many connections are decrypted");
        return;
    }
    *q = (struct question){conn, ask.tag};
    conn_ref(conn);
    haproxy_prepare(c->asks->haproxy, tenant, ask.name, prepared, q);
}

static void closed(void *user, struct conn *conn)
{
    struct client *c = user;
    struct haproxy_asks *a = c->asks;
    (void)conn;
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&a->tokens, it));) {
        struct token *t = hmap_entry(it, struct token, by_token);
        if (t->client == c) {
            forget(a, t);
            it = NULL; /* the map changed */
        }
    }
    a->clients--;
    free(c);
}

static void acceptable(uv_poll_t *p, int status, int events)
{
    static const struct conn_ops ops = {.request_size = sizeof(struct inject_ask),
                                        .reply_size = sizeof(struct inject_answer),
                                        .output_max = OUTPUT_MAX,
                                        .request = request,
                                        .closed = closed};
    struct haproxy_asks *a = p->data;
    int fd;
    (void)events;
    while (status >= 0 && (fd = accept4(a->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct client *c = a->clients < CLIENTS_MAX ? calloc(1, sizeof *c) : NULL;
        if (!c) {
            close(fd);
            continue;
        }
        c->asks = a;
        a->clients++;
        struct conn *conn = conn_open(a->credd->loop, fd, &ops, c);
        if (!conn) {
            a->clients--;
            free(c);
        }
    }
}

bool haproxy_asks_find(const struct haproxy_asks *a, uint64_t token, struct grant *out)
{
    const struct token *t = find(a, token);
    if (t)
        *out = (struct grant){t->sandbox, t->port, t->name};
    return t;
}

struct haproxy_asks *haproxy_asks_open(struct credd *c, struct haproxy *h, int fd)
{
    struct haproxy_asks *a = calloc(1, sizeof *a);
    if (!a)
        return NULL;
    a->credd = c;
    a->haproxy = h;
    a->fd = fd;
    a->poll.data = a;
    if (uv_poll_init(c->loop, &a->poll, fd) < 0 || uv_poll_start(&a->poll, UV_READABLE, acceptable) < 0) {
        free(a);
        return NULL;
    }
    return a;
}
