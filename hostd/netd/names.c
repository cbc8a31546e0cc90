// SPDX-License-Identifier: Apache-2.0
// Questions about names: see netd.h.
//
// A question goes on to the resolver only for a name that the guest's policy could allow, and then
// as one that this process makes: type A, lower case, nothing else of the guest's in it. All other
// types are answered with "no such record" from here, names that are not allowed with "no such
// name". The answer is made here, too, of addresses that the policy lets that name have; each is
// remembered (guest_pin) before the guest is told.
#include "hostd/netd/netd.h"

#include "base/log.h"
#include "hostd/netd/dns.h"

#include <ares.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TTL_MIN      5u
#define TTL_MAX      3600u
#define STREAM_MSEC  30000u
#define STREAMS_MAX  16u
#define SERVERS_MAX  16 /* sockets of the resolver library */
#define READ_AT_ONCE 32

struct server { /* a socket of c-ares */
    struct watch watch;
    struct names *names;
};

struct names {
    ares_channel channel;
    struct netd *netd;
    struct server servers[SERVERS_MAX];
};

/* A question that is with the resolver. */
struct query {
    struct netd *netd;
    uint64_t key; /* of the guest, which may go meanwhile */
    struct sockaddr_in from;
    struct dns_stream *stream; /* NULL: by UDP, or its connection ended */
    struct query *next;        /* of the stream's */
    struct dns_question question;
};

/* DNS over TCP: one question at a time, as far as it is answered. */
struct dns_stream {
    struct watch watch;
    struct guest *guest;
    struct dns_stream *next, **link;
    struct query *query;
    uint64_t until;
    bool running; /* stream_next is: no second one inside it */
    size_t have;
    uint8_t in[2 + DNS_MESSAGE_MAX];
};

/* ---- answers ---- */

static void stream_close(struct dns_stream *s)
{
    loop_forget(s->guest->netd->loop, &s->watch);
    close(s->watch.fd);
    s->watch.fd = -1;
    *s->link = s->next;
    if (s->next)
        s->next->link = s->link;
    if (s->query)
        s->query->stream = NULL;
    loop_bury(s->guest->netd->loop, s);
}

/* To whom it came from. */
static void send_answer(struct guest *g, const struct query *q, enum dns_code code, const struct dns_answer *answers, size_t count)
{
    uint8_t out[2 + DNS_MESSAGE_MAX];
    size_t len = dns_write_answer(&q->question, code, answers, count, out + 2);
    if (!q->stream) {
        sendto(g->udp.fd, out + 2, len, MSG_DONTWAIT | MSG_NOSIGNAL, (const struct sockaddr *)&q->from, sizeof q->from);
        return;
    }
    out[0] = (uint8_t)(len >> 8);
    out[1] = (uint8_t)len;
    if (send(q->stream->watch.fd, out, len + 2, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)(len + 2))
        stream_close(q->stream);
}

static void refuse(struct guest *g, const struct query *q, const char *why)
{
    char what[POLICY_NAME_MAX + 16];
    g->counts.names_denied++;
    snprintf(what, sizeof what, "dns %s", q->question.name[0] ? q->question.name : "?");
    guest_log(g, false, what, why);
    send_answer(g, q, DNS_NXDOMAIN, NULL, 0);
}

static void tell(struct guest *g, const struct query *q, const struct ares_addrttl *found, int count)
{
    struct dns_answer answers[DNS_ANSWERS_MAX];
    const char *name = q->question.name;
    char what[POLICY_NAME_MAX + 16], where[ADDRESS_TEXT_MAX], why[64];
    size_t n = 0;
    uint32_t hidden = 0;
    for (int i = 0; i < count && n < DNS_ANSWERS_MAX; i++) {
        uint32_t address = ntohl(found[i].ipaddr.s_addr);
        uint32_t ttl = found[i].ttl < 0 ? 0 : (uint32_t)found[i].ttl;
        if (!policy_may_be_at(g->policy, name, address)) {
            hidden = address;
            continue;
        }
        ttl = ttl < TTL_MIN ? TTL_MIN : ttl > TTL_MAX ? TTL_MAX : ttl;
        guest_pin(g, name, address, ttl);
        answers[n++] = (struct dns_answer){address, ttl};
    }
    if (!n && hidden) {
        struct range r;
        snprintf(why, sizeof why, "%s is %s", address_format(hidden, where), address_special(hidden, &r));
        refuse(g, q, why);
        return;
    }
    snprintf(what, sizeof what, "dns %s", name);
    snprintf(why, sizeof why, "%s%s", n ? address_format(answers[0].address, where) : "no address", n > 1 ? " and others" : "");
    guest_log(g, true, what, why);
    send_answer(g, q, DNS_OK, answers, n);
}

static void stream_next(struct dns_stream *s);

static void query_end(struct query *q, struct guest *g)
{
    struct dns_stream *s = q->stream;
    if (g)
        g->questions--;
    if (s) {
        s->query = NULL;
        stream_next(s);
    }
    free(q);
}

static void resolved(void *user, int status, int timeouts, unsigned char *answer, int len)
{
    struct query *q = user;
    struct guest *g = guest_find(q->netd, q->key);
    struct ares_addrttl found[64];
    int count = sizeof found / sizeof found[0];
    (void)timeouts;
    if (status == ARES_SUCCESS || status == ARES_ENODATA)
        status = answer ? ares_parse_a_reply(answer, len, NULL, found, &count) : status;
    if (g && status == ARES_SUCCESS && policy_may_resolve(g->policy, &g->above, q->question.name))
        tell(g, q, found, count);
    else if (g)
        send_answer(g, q, status == ARES_ENOTFOUND ? DNS_NXDOMAIN : status == ARES_ENODATA ? DNS_OK : DNS_SERVFAIL, NULL, 0);
    query_end(q, g);
}

/* ---- questions ---- */

/* Answers, or hands on; takes `q`, which counts as in flight. */
static void ask(struct guest *g, struct query *q)
{
    const struct dns_question *d = &q->question;
    g->counts.names++;
    g->counts_changed = true;
    if (d->dns_class != 1 || !d->name[0]) {
        refuse(g, q, "no host name");
    } else if (!policy_may_resolve(g->policy, &g->above, d->name)) {
        refuse(g, q, "no rule allows the name");
    } else if (d->type != DNS_A) {
        send_answer(g, q, DNS_OK, NULL, 0);
    } else {
        char name[POLICY_NAME_MAX + 2];
        snprintf(name, sizeof name, "%s", d->name);
        ares_query(g->netd->names->channel, name, 1, DNS_A, resolved, q);
        return;
    }
    query_end(q, g);
}

static void take(struct guest *g, const uint8_t *p, size_t len, const struct sockaddr_in *from, struct dns_stream *s)
{
    struct query *q = g->questions < GUEST_QUESTIONS && guest_may_begin(g) ? calloc(1, sizeof *q) : NULL;
    if (!q) {
        if (s)
            stream_close(s);
        return; /* it asks again, more slowly */
    }
    int code = dns_read_question(p, len, &q->question);
    q->netd = g->netd;
    q->key = g->key;
    q->stream = s;
    if (from)
        q->from = *from;
    g->questions++;
    if (s)
        s->query = q;
    if (code == DNS_OK) {
        ask(g, q);
        return;
    }
    if (code > 0)
        send_answer(g, q, (enum dns_code)code, NULL, 0);
    else if (s)
        stream_close(s);
    query_end(q, g);
}

void names_ready(struct guest *g)
{
    uint8_t in[4096];
    for (;;) {
        struct sockaddr_in from;
        socklen_t size = sizeof from;
        ssize_t n = recvfrom(g->udp.fd, in, sizeof in, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
        if (n < 0)
            return;
        take(g, in, (size_t)n, &from, NULL);
    }
}

/* ---- by TCP ---- */

/* As much as is there; the next question waits until the one before is answered. */
static void read_stream(struct dns_stream *s)
{
    while (s->watch.fd >= 0 && !s->query) {
        size_t want = s->have < 2 ? 2 : 2 + ((size_t)s->in[0] << 8 | s->in[1]);
        if (want > sizeof s->in) {
            stream_close(s);
            return;
        }
        if (s->have < want) {
            ssize_t n = recv(s->watch.fd, s->in + s->have, want - s->have, MSG_DONTWAIT);
            if (n < 0 && errno == EAGAIN)
                return;
            if (n <= 0) {
                stream_close(s);
                return;
            }
            s->have += (size_t)n;
            continue;
        }
        if (want == 2) {
            stream_close(s);
            return;
        }
        s->have = 0;
        take(s->guest, s->in + 2, want - 2, NULL, s);
    }
}

static void stream_next(struct dns_stream *s)
{
    if (s->running)
        return;
    s->running = true;
    read_stream(s);
    s->running = false;
}

static void stream_ready(struct watch *w, uint32_t events)
{
    struct dns_stream *s = (struct dns_stream *)(void *)w;
    (void)events;
    stream_next(s);
}

void names_stream(struct guest *g, int fd)
{
    unsigned count = 0;
    for (const struct dns_stream *s = g->streams; s; s = s->next)
        count++;
    struct dns_stream *s = count < STREAMS_MAX ? calloc(1, sizeof *s) : NULL;
    if (!s) {
        close(fd);
        return;
    }
    s->watch = (struct watch){fd, stream_ready};
    s->guest = g;
    s->until = loop_now(g->netd->loop) + STREAM_MSEC;
    s->next = g->streams;
    s->link = &g->streams;
    if (s->next)
        s->next->link = &s->next;
    g->streams = s;
    if (loop_watch(g->netd->loop, &s->watch, EPOLLIN | EPOLLRDHUP) < 0)
        stream_close(s);
    else
        stream_next(s);
}

void names_forget(struct guest *g)
{
    while (g->streams)
        stream_close(g->streams);
}

static void end_old_streams(struct guest *g)
{
    for (struct dns_stream *s = g->streams, *next; s; s = next) {
        next = s->next;
        if (!s->query && s->until < loop_now(g->netd->loop))
            stream_close(s);
    }
}

/* ---- the resolver ---- */

static void server_ready(struct watch *w, uint32_t events)
{
    struct server *s = (struct server *)(void *)w;
    int fd = w->fd;
    ares_process_fd(s->names->channel, events & (EPOLLIN | EPOLLERR | EPOLLHUP) ? fd : ARES_SOCKET_BAD, events & EPOLLOUT ? fd : ARES_SOCKET_BAD);
}

/* c-ares reads and writes until it would block, so that edges do. */
static void server_state(void *user, ares_socket_t fd, int readable, int writable)
{
    struct names *n = user;
    struct server *free_one = NULL, *s = NULL;
    for (int i = 0; i < SERVERS_MAX; i++) {
        if (n->servers[i].watch.fd == fd)
            s = &n->servers[i];
        else if (n->servers[i].watch.fd < 0)
            free_one = &n->servers[i];
    }
    uint32_t events = (readable ? (uint32_t)EPOLLIN : 0u) | (writable ? (uint32_t)EPOLLOUT : 0u);
    if (s && !events) {
        loop_forget(n->netd->loop, &s->watch);
        s->watch.fd = -1;
    } else if (s) {
        loop_change(n->netd->loop, &s->watch, events);
    } else if (free_one && events) {
        free_one->watch.fd = fd;
        if (loop_watch(n->netd->loop, &free_one->watch, events) < 0)
            free_one->watch.fd = -1;
    }
}

int names_open(struct netd *netd, struct err *e)
{
    struct names *n = calloc(1, sizeof *n);
    if (!n)
        return err_set(e, ENOMEM, "open the resolver: out of memory");
    n->netd = netd;
    for (int i = 0; i < SERVERS_MAX; i++) {
        n->servers[i].watch = (struct watch){-1, server_ready};
        n->servers[i].names = n;
    }
    struct ares_options o = {
        .flags = ARES_FLAG_NOSEARCH | ARES_FLAG_NOALIASES, .timeout = 2000, .tries = 2, .sock_state_cb = server_state, .sock_state_cb_data = n};
    int rc = ares_library_init(ARES_LIB_INIT_ALL);
    if (rc == ARES_SUCCESS)
        rc = ares_init_options(&n->channel, &o, ARES_OPT_FLAGS | ARES_OPT_TIMEOUTMS | ARES_OPT_TRIES | ARES_OPT_SOCK_STATE_CB);
    if (rc == ARES_SUCCESS && strcmp(netd->config.resolver, "system") != 0)
        rc = ares_set_servers_ports_csv(n->channel, netd->config.resolver);
    if (rc != ARES_SUCCESS)
        return err_set(e, EINVAL, "open the resolver (`resolver` in the configuration: %s): %s", netd->config.resolver, ares_strerror(rc));
    netd->names = n;
    return 0;
}

int names_wait(const struct netd *n, int msec)
{
    struct timeval most = {msec / 1000, msec % 1000 * 1000}, got;
    const struct timeval *t = ares_timeout(n->names->channel, &most, &got);
    return (int)(t->tv_sec * 1000 + (t->tv_usec + 999) / 1000);
}

void names_tick(struct netd *n)
{
    ares_process_fd(n->names->channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);
}

void names_sweep(struct netd *n)
{
    for (struct hmap_node *it = NULL; (it = hmap_iterate(&n->guests, it));)
        end_old_streams(hmap_entry(it, struct guest, by_key));
}
