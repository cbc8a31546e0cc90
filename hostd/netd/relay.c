// SPDX-License-Identifier: Apache-2.0
// Connections of guests: see netd.h.
//
// Theory of operation. A connection is accepted in the guest's namespace; the kernel tells where
// the guest wanted to go. The decision on that address and port (guest_decide) comes first: a
// refused one is reset before a packet leaves the host. Then netd connects, to that very address,
// and both ends are joined:
//
//   - server to client: bytes are moved by splice(2) from the start;
//   - client to server: the first bytes are held until `sniff` knows what they are. When they name
//   a
//     host, that must be one that the guest was told is at this address, and the policy must allow
//     it: else the connection is reset, with nothing of it sent on. There is no time after which
//     unread bytes pass. From then on bytes are spliced, too.
//
// A TLS connection whose name has a credential (inject.h) goes to HAProxy in place of the server,
// with a header before what was held; the socket that was connected to the server waits for
// HAProxy's way out, which is a relay of its own (relay_join): to the same address, by the same
// decision, ended with the first.
//
// Each direction borrows a pipe only while bytes are in it. What the kernel lets a user have in
// pipes is limited, and a guest whose servers stand still keeps the pipes that it has: so they are
// small, but for a few for each guest, which go to who moves much. A direction that ends is shut
// down on the other side; when both ended, or one failed, all is closed; a failure is passed on as
// a reset. Sockets are watched once, by edges; what is ready is remembered here.
#include "hostd/netd/netd.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "hostd/netd/proxy.h"
#include "hostd/netd/sniff.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter_ipv4.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ALL_RELAYS     8000u
#define ACCEPT_AT_ONCE 64
#define CONNECT_MSEC   30000u
#define SNIFF_MSEC     10000u     /* from the first byte until it is known what it is */
#define HALF_MSEC      120000u    /* of the other direction, when one has ended */
#define MOVE_BYTES     (1u << 20) /* at once */
#define CARRY_BYTES    8192       /* smaller pieces are not worth a pipe; the smallest one holds as much */
#define MOVE_ROUNDS    16         /* in a row, then others get their turn */
#define PIPES_KEPT     32         /* of each size */
#define BIG_MOVED      (1u << 20) /* bytes after which a direction is given a big pipe, */
#define BIG_MAX        4          /* of which a guest has so many at once */
#define ASK_MSEC       5000u      /* until it is known whether there is a credential */
#define INNER_MAX      128u       /* HAProxy's connections for one of the guest's */

enum { CLIENT, SERVER };

struct end {
    struct watch watch;
    struct relay *relay;
    bool readable, writable;
    bool local; /* HAProxy's: such a socket tells of room at each read, so it is asked only for lack
                   of it */
    bool hung;  /* there is an end behind what is to be read */
};

/* From one end to the other. */
struct flow {
    int pipe[2]; /* -1: none borrowed */
    bool big;
    size_t full; /* bytes in it */
    uint64_t moved;
    bool ended; /* no more to read, */
    bool shut;  /* and the other side knows */
    bool bulk;  /* much came at once: by the pipe, until little comes */
};

struct relay {
    struct end end[2];
    struct flow flow[2]; /* by where it comes from */
    struct guest *guest;
    struct relay *next, **link;
    uint32_t address;
    uint16_t port;
    bool connected, dead;
    bool sniffed;  /* nothing is held any more */
    uint8_t *held; /* SNIFF_MAX bytes, of which: */
    size_t held_len, held_sent;
    uint64_t deadline; /* 0: none */
    struct decision decision;
    char name[POLICY_NAME_MAX + 1];
    struct injection *injection; /* it was asked about; NULL: nothing to do with credentials */
    bool asking;
    int upstream;        /* connected to the server, for the first of `inner`; -1: none */
    struct relay *outer; /* this one is HAProxy's, on behalf of that */
    unsigned inner;      /* those whose `outer` this is */
};

/* ---- pipes ---- */

static struct {
    int pipe[PIPES_KEPT][2];
    unsigned count;
} spare[2]; /* small, big */

static bool borrow(struct relay *r, int from)
{
    static const int bytes[2] = {64 << 10, 1 << 20};
    struct flow *f = &r->flow[from];
    if (f->pipe[0] >= 0)
        return true;
    f->big = f->moved >= BIG_MOVED && r->guest->big_pipes < BIG_MAX;
    if (spare[f->big].count) {
        memcpy(f->pipe, spare[f->big].pipe[--spare[f->big].count], sizeof f->pipe);
    } else if (pipe2(f->pipe, O_NONBLOCK | O_CLOEXEC) < 0) {
        f->pipe[0] = f->pipe[1] = -1;
        return false;
    } else {
        fcntl(f->pipe[1], F_SETPIPE_SZ, bytes[f->big]); /* if there is room for it */
    }
    r->guest->big_pipes += f->big;
    return true;
}

/* Only empty ones are kept: what is in one is a guest's. */
static void give_back(struct relay *r, int from)
{
    struct flow *f = &r->flow[from];
    if (f->pipe[0] < 0)
        return;
    r->guest->big_pipes -= f->big;
    if (!f->full && spare[f->big].count < PIPES_KEPT) {
        memcpy(spare[f->big].pipe[spare[f->big].count++], f->pipe, sizeof f->pipe);
    } else {
        close(f->pipe[0]);
        close(f->pipe[1]);
    }
    f->pipe[0] = f->pipe[1] = -1;
}

/* ---- ends ---- */

/* Closing `fd` resets the connection, also when this process dies: what was cut off must not look
 * complete to who reads it. */
static void set_reset(int fd, bool resets)
{
    const struct linger l = {resets, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}

static void reset_fd(int fd)
{
    set_reset(fd, true);
    close(fd);
}

static void finish(struct relay *r, bool reset);

/* What belongs to a connection that HAProxy had a part in. */
static void finish_injection(struct relay *r)
{
    inject_end(r->injection);
    r->injection = NULL;
    cleanup_close(&r->upstream);
    r->upstream = -1;
    if (r->outer)
        r->outer->inner--;
    for (struct relay *i = r->guest->relays; r->inner && i;) {
        struct relay *it = i;
        i = i->next;
        if (it->outer == r)
            finish(it, true);
    }
}

/* With a reset on both sides, unless both directions had ended. */
static void finish(struct relay *r, bool reset)
{
    struct netd *n = r->guest->netd;
    if (r->dead)
        return;
    r->dead = true;
    finish_injection(r);
    for (int i = 0; i < 2; i++) {
        loop_forget(n->loop, &r->end[i].watch);
        if (r->end[i].watch.fd >= 0) {
            set_reset(r->end[i].watch.fd, reset);
            close(r->end[i].watch.fd);
        }
        r->end[i].watch.fd = -1;
        give_back(r, i);
    }
    *r->link = r->next;
    if (r->next)
        r->next->link = r->link;
    r->guest->counts.open -= !r->outer;
    r->guest->counts_changed = true;
    n->relays--;
    free(r->held);
    loop_bury(n->loop, r);
}

static void log_relay(struct relay *r, bool allowed, const char *why)
{
    char what[POLICY_NAME_MAX + 64], where[ADDRESS_TEXT_MAX];
    snprintf(what, sizeof what, "tcp %s%s%s:%u", r->name, r->name[0] ? " at " : "", address_format(r->address, where), r->port);
    guest_log(r->guest, allowed, what, why);
}

static void refuse(struct relay *r, const char *why)
{
    r->guest->counts.denied++;
    log_relay(r, false, why);
    finish(r, true);
}

/* ---- moving bytes ---- */

static void count(struct relay *r, int from, size_t n)
{
    if (r->outer)
        return; /* they are the guest's once */
    if (from == CLIENT)
        r->guest->counts.sent_bytes += n;
    else
        r->guest->counts.received_bytes += n;
    r->guest->counts_changed = true;
}

/* Into the pipe; false: the connection is over. */
static bool fill(struct relay *r, int from)
{
    struct flow *f = &r->flow[from];
    struct end *in = &r->end[from];
    ssize_t n = splice(in->watch.fd, NULL, f->pipe[1], NULL, MOVE_BYTES, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    f->bulk = n >= CARRY_BYTES || (f->bulk && n < 0);
    if (n > 0)
        f->full += (size_t)n;
    else if (n == 0)
        f->ended = true;
    else if (errno == EAGAIN)
        in->readable = false;
    else if (errno != EINTR)
        return false;
    return true;
}

/* There is no room for more: an event will tell of it. */
static void blocked(struct relay *r, struct end *e)
{
    e->writable = false;
    if (e->local)
        loop_change(r->guest->netd->loop, &e->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

static int watch_end(struct relay *r, struct end *e, bool local)
{
    e->local = e->writable = local;
    return loop_watch(r->guest->netd->loop, &e->watch, EPOLLIN | EPOLLRDHUP | (local ? 0 : EPOLLOUT));
}

/* Sends what it can, the rest into the pipe. */
static bool pass_on(struct relay *r, int from, const uint8_t *bytes, size_t len)
{
    struct flow *f = &r->flow[from];
    struct end *out = &r->end[!from];
    ssize_t n = out->writable ? send(out->watch.fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
    if (n < 0 && errno != EAGAIN && errno != EINTR)
        return false;
    if (n < 0 && errno == EAGAIN)
        blocked(r, out);
    if (n < 0)
        n = 0;
    count(r, from, (size_t)n);
    if ((size_t)n == len)
        return true;
    f->full = len - (size_t)n;
    return borrow(r, from) && write(f->pipe[1], bytes + n, f->full) == (ssize_t)f->full;
}

/* Small pieces, as of requests and answers, are read and written: that is cheaper than a pipe. */
static bool carry(struct relay *r, int from)
{
    static uint8_t bytes[CARRY_BYTES];
    struct flow *f = &r->flow[from];
    struct end *in = &r->end[from];
    ssize_t n = recv(in->watch.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        in->readable = false;
    if (n < 0)
        return errno == EAGAIN || errno == EINTR;
    f->ended = n == 0;
    f->bulk = n == (ssize_t)sizeof bytes;
    if (!f->bulk && !in->hung)
        in->readable = false; /* that was all: more is told by an event */
    return n == 0 || pass_on(r, from, bytes, (size_t)n);
}

static bool drain(struct relay *r, int from)
{
    struct flow *f = &r->flow[from];
    struct end *out = &r->end[!from];
    ssize_t n = splice(f->pipe[0], NULL, out->watch.fd, NULL, f->full, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
    if (n > 0) {
        f->full -= (size_t)n;
        f->moved += (size_t)n;
        count(r, from, (size_t)n);
    } else if (n < 0 && errno == EAGAIN) {
        blocked(r, out);
    } else if (n == 0 || errno != EINTR) {
        return false;
    }
    return true;
}

/* What was held goes before what is still in the socket. */
static bool send_held(struct relay *r)
{
    struct end *out = &r->end[SERVER];
    while (r->held_sent < r->held_len && out->writable) {
        ssize_t n = send(out->watch.fd, r->held + r->held_sent, r->held_len - r->held_sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            blocked(r, out);
        else if (n < 0 && errno != EINTR)
            return false;
        else if (n > 0)
            r->held_sent += (size_t)n, count(r, CLIENT, (size_t)n);
    }
    if (r->held_sent == r->held_len) {
        free(r->held);
        r->held = NULL;
    }
    return true;
}

/* ---- first bytes ---- */

static bool by_name(const struct relay *r)
{
    return r->decision.by == POLICY_BY_NAME;
}

/* The name that the client speaks of instead of the one it asked for, if that may be, too. */
static bool name_allowed(struct relay *r, const struct sniffed *s)
{
    struct decision d;
    char name[POLICY_NAME_MAX + 1];
    const struct destination to = {s->name, r->address, true, r->port};
    uint32_t address;
    if (address_parse(s->name, strlen(s->name), &address))
        return !by_name(r) && address == r->address;
    if (by_name(r))
        return guest_decide(r->guest, r->address, r->port, s->name, name, &d) && (!s->ech || d.ech);
    policy_decide(r->guest->policy, &r->guest->above, &to, &d);
    return d.line == 0 || d.allowed;
}

/* NULL: it may pass. */
static const char *objection(struct relay *r, enum sniff kind, const struct sniffed *s)
{
    if (kind == SNIFF_RAW)
        return NULL;
    if (kind == SNIFF_BAD)
        return by_name(r) ? "its beginning cannot be read" : NULL;
    if (by_name(r) && s->tunnel)
        return "a tunnel: the names in it cannot be seen";
    if (by_name(r) && !s->has_name)
        return kind == SNIFF_TLS ? "TLS without a server name" : "HTTP without a host";
    if (by_name(r) && s->ech && !r->decision.ech)
        return "TLS that hides the server's name (ECH)";
    if (s->has_name && !name_allowed(r, s))
        return "it speaks of another name";
    return NULL;
}

/* ---- credentials ---- */

static bool is_told(void *user, const char *name)
{
    return strcmp(user, name) == 0;
}

/* Only names that the guest was told are at this address: those netd has verified itself. */
static bool may_inject(struct relay *r, struct sniffed *s)
{
    return inject_is_on(r->guest->netd) && s->has_name && !s->ech && guest_names(r->guest, r->address, is_told, s->name);
}

/* The first bytes for HAProxy: a header, and what was held. */
static bool hold_header(struct relay *r)
{
    uint8_t *all = malloc(PROXY_MAX + r->held_len);
    if (!all)
        return false;
    size_t n = inject_header(r->injection, r->address, all);
    memcpy(all + n, r->held, r->held_len);
    free(r->held);
    r->held = all;
    r->held_len += n;
    return true;
}

/* Its other end is HAProxy from now on. 0 or -errno. */
static int turn_to_haproxy(struct relay *r)
{
    struct end *out = &r->end[SERVER];
    const struct flow *back = &r->flow[SERVER];
    int fd = back->ended || back->full ? -ECONNRESET : inject_connect(r->injection);
    if (fd < 0)
        return fd;
    loop_forget(r->guest->netd->loop, &out->watch);
    r->upstream = out->watch.fd;
    *out = (struct end){.watch = {fd, out->watch.ready}, .relay = r};
    int rc = watch_end(r, out, true);
    return rc < 0 ? rc : hold_header(r) ? 0 : -ENOMEM;
}

static void pump(struct relay *r);

static void answered(struct relay *r, enum inject_verdict verdict, const char *sentence)
{
    char why[320];
    int rc = 0;
    r->asking = false;
    r->deadline = 0;
    if (verdict == INJECT_SLOT && (rc = turn_to_haproxy(r)) == 0) {
        log_relay(r, true, "it is decrypted: there is a credential for it");
    } else if (verdict != INJECT_PASS) {
        snprintf(why, sizeof why, "there is a credential for it, and %s%s", rc < 0 ? "HAProxy does not answer: " : "",
                 rc < 0 ? strerror(-rc) : sentence);
        refuse(r, why);
        return;
    } else {
        inject_end(r->injection);
        r->injection = NULL;
    }
    r->sniffed = true;
    pump(r);
}

static void ask(struct relay *r, const char *name)
{
    r->asking = true;
    r->deadline = loop_now(r->guest->netd->loop) + ASK_MSEC;
    r->injection = inject_ask(r->guest->netd, r, r->guest->id, name, r->port, answered);
    if (!r->injection)
        refuse(r, "out of memory");
}

static void judge(struct relay *r, enum sniff kind, struct sniffed *s)
{
    char why[POLICY_NAME_MAX + 96];
    const char *objects = objection(r, kind, s);
    if (objects) {
        snprintf(why, sizeof why, "%s%s%s", objects, s->has_name ? ": " : "", s->has_name ? s->name : "");
        refuse(r, why);
        return;
    }
    if (s->has_name && by_name(r))
        snprintf(r->name, sizeof r->name, "%s", s->name); /* a change of policy looks at this one */
    r->deadline = 0;
    if (kind == SNIFF_TLS && may_inject(r, s))
        ask(r, s->name);
    else
        r->sniffed = true;
}

/* Reads until it is known what it is. False: the connection is over. */
static bool read_first(struct relay *r)
{
    struct end *in = &r->end[CLIENT];
    struct sniffed s;
    while (!r->sniffed && !r->asking && !r->dead && in->readable && !r->flow[CLIENT].ended) {
        if (!r->held && !(r->held = malloc(SNIFF_MAX)))
            return false;
        ssize_t n = recv(in->watch.fd, r->held + r->held_len, SNIFF_MAX - r->held_len, MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN) {
            in->readable = false;
            break;
        }
        if (n < 0)
            return false;
        if (n == 0)
            r->flow[CLIENT].ended = true;
        if (!r->held_len && n > 0)
            r->deadline = loop_now(r->guest->netd->loop) + SNIFF_MSEC;
        r->held_len += (size_t)n;
        enum sniff kind = sniff(r->held, r->held_len, &s);
        if (kind != SNIFF_MORE)
            judge(r, kind, &s);
        else if (n == 0 && r->held_len) /* less than that is no request of anything */
            judge(r, SNIFF_BAD, &s);
        else if (n == 0)
            r->sniffed = true;
    }
    return true;
}

/* ---- the state of a connection ---- */

static bool flow_moves(struct relay *r, int from)
{
    struct flow *f = &r->flow[from];
    bool held = r->asking || (from == CLIENT && (!r->sniffed || r->held));
    return !held && !f->shut && ((f->full && r->end[!from].writable) || (!f->full && (f->ended || r->end[from].readable)));
}

/* One step of a direction; false: the connection is over. */
static bool step(struct relay *r, int from)
{
    struct flow *f = &r->flow[from];
    if (!f->full && !f->ended && !f->bulk) {
        if (!carry(r, from))
            return false;
    } else if (!f->full && !f->ended) {
        if (!borrow(r, from) || !fill(r, from))
            return false;
    }
    if (f->full)
        return r->end[!from].writable ? drain(r, from) : true;
    give_back(r, from);
    if (f->ended && !f->shut) {
        shutdown(r->end[!from].watch.fd, SHUT_WR);
        f->shut = true;
        r->deadline = loop_now(r->guest->netd->loop) + HALF_MSEC;
    }
    return true;
}

static void pump(struct relay *r)
{
    bool good = true;
    if (!r->connected || r->dead)
        return;
    for (int round = 0; good && round < MOVE_ROUNDS; round++) {
        if (!r->sniffed)
            good = read_first(r);
        if (r->dead)
            return;
        if (good && r->sniffed && r->held)
            good = send_held(r);
        bool moves = false;
        for (int from = 0; good && from < 2; from++)
            if (flow_moves(r, from)) {
                moves = true;
                good = step(r, from);
            }
        if (good && !moves)
            break;
    }
    if (!good)
        finish(r, true);
    else if (guest_is_spent(r->guest))
        refuse(r, "its limit of bytes is reached");
    else if (r->flow[CLIENT].shut && r->flow[SERVER].shut)
        finish(r, false);
    else if (flow_moves(r, CLIENT) || flow_moves(r, SERVER)) /* again, after the others */
        loop_change(r->guest->netd->loop, &r->end[CLIENT].watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

static void established(struct relay *r)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(r->end[SERVER].watch.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error) {
        log_relay(r, true, strerror(error));
        finish(r, true);
        return;
    }
    r->connected = true;
    r->deadline = 0;
    pump(r);
}

static void end_ready(struct watch *w, uint32_t events)
{
    struct end *end = (struct end *)(void *)w;
    struct relay *r = end->relay;
    if (r->dead)
        return;
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        end->readable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        end->hung = true;
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        end->writable = true;
    if (end->local && events & EPOLLOUT)
        loop_change(r->guest->netd->loop, &end->watch, EPOLLIN | EPOLLRDHUP);
    if (!r->connected && end == &r->end[SERVER] && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP)))
        established(r);
    else if (!r->connected && end == &r->end[CLIENT] && (events & (EPOLLERR | EPOLLHUP)))
        finish(r, true); /* it gave up waiting */
    else
        pump(r);
}

/* ---- begin ---- */

static int connect_to(const struct netd *n, uint32_t address, uint16_t port)
{
    const int on = 1, idle = 60;
    const struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(address)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    if (n->congestion[0])
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, n->congestion, (socklen_t)strlen(n->congestion));
    set_reset(fd, true);
    if (connect(fd, (const struct sockaddr *)&to, sizeof to) < 0 && errno != EINPROGRESS) {
        int rc = -errno;
        close(fd);
        return rc;
    }
    return fd;
}

static void enlist(struct relay *r)
{
    struct guest *g = r->guest;
    r->next = g->relays;
    r->link = &g->relays;
    if (r->next)
        r->next->link = &r->next;
    g->relays = r;
    g->counts.open += !r->outer;
    g->netd->relays++;
}

/* Takes `fd`, the client's end. NULL: out of memory. */
static struct relay *create(struct guest *g, int fd, uint32_t address, uint16_t port, struct relay *outer)
{
    struct relay *r = calloc(1, sizeof *r);
    if (!r) {
        reset_fd(fd);
        return NULL;
    }
    r->guest = g;
    r->address = address;
    r->port = port;
    r->outer = outer;
    r->upstream = -1;
    for (int i = 0; i < 2; i++) {
        r->end[i] = (struct end){.watch = {-1, end_ready}, .relay = r};
        r->flow[i].pipe[0] = r->flow[i].pipe[1] = -1;
    }
    r->end[CLIENT].watch.fd = fd;
    enlist(r);
    return r;
}

/* Its other end is `fd`, or -errno. */
static void join(struct relay *r, int fd)
{
    r->end[SERVER].watch.fd = fd;
    int rc = fd;
    if (rc >= 0)
        rc = watch_end(r, &r->end[SERVER], false);
    if (rc >= 0)
        rc = watch_end(r, &r->end[CLIENT], r->outer);
    if (rc < 0) {
        log_relay(r, true, strerror(-rc));
        finish(r, true);
    }
}

static void begin(struct guest *g, int fd, uint32_t address, uint16_t port)
{
    const int on = 1;
    struct relay *r = create(g, fd, address, port, NULL);
    if (!r)
        return;
    if (g->counts.open > guest_limits(g).connections || g->netd->relays > ALL_RELAYS) {
        refuse(r, "too many connections are open");
        return;
    }
    if (guest_is_spent(g)) {
        refuse(r, "its limit of bytes is reached");
        return;
    }
    if (!guest_decide(g, address, port, NULL, r->name, &r->decision)) {
        char why[sizeof r->decision.rule + sizeof r->decision.why + 64];
        policy_explain(&r->decision, why, sizeof why);
        refuse(r, r->decision.why[0] ? r->decision.why : why);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    set_reset(fd, true);
    join(r, connect_to(g->netd, address, port));
    if (r->dead)
        return;
    r->deadline = loop_now(g->netd->loop) + CONNECT_MSEC;
    g->counts.allowed++;
    char why[192];
    snprintf(why, sizeof why, "line %u: %s", r->decision.line, r->decision.rule);
    log_relay(r, true, why);
}

void relay_join(struct relay *outer, int fd)
{
    struct guest *g = outer->guest;
    struct relay *r = NULL;
    if (outer->inner >= INNER_MAX || g->netd->relays > ALL_RELAYS)
        close(fd);
    else
        r = create(g, fd, outer->address, outer->port, outer);
    if (!r)
        return;
    outer->inner++;
    r->decision = outer->decision;
    memcpy(r->name, outer->name, sizeof r->name);
    r->sniffed = true; /* HAProxy's words, not the guest's */
    r->connected = outer->upstream >= 0;
    r->deadline = r->connected ? 0 : loop_now(g->netd->loop) + CONNECT_MSEC;
    join(r, r->connected ? steal_fd(&outer->upstream) : connect_to(g->netd, r->address, r->port));
}

/* Where the guest wanted to go, before the rules of its namespace sent it here. */
static bool destination_of(int fd, uint32_t *address, uint16_t *port)
{
    struct sockaddr_in to;
    socklen_t size = sizeof to;
    if (getsockopt(fd, SOL_IP, SO_ORIGINAL_DST, &to, &size) < 0)
        return false;
    *address = ntohl(to.sin_addr.s_addr);
    *port = ntohs(to.sin_port);
    return true;
}

void relay_ready(struct guest *g)
{
    uint32_t address;
    uint16_t port;
    int fd, i;
    for (i = 0; i < ACCEPT_AT_ONCE && (fd = accept4(g->tcp.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0; i++) {
        if (!destination_of(fd, &address, &port)) {
            reset_fd(fd);
        } else if (!guest_may_begin(g)) {
            g->counts.denied++;
            guest_log(g, false, "tcp", "too many connections a second");
            reset_fd(fd);
        } else if (port == 53) {
            names_stream(g, fd);
        } else {
            begin(g, fd, address, port);
        }
    }
    if (i == ACCEPT_AT_ONCE)
        loop_change(g->netd->loop, &g->tcp, EPOLLIN); /* there may be more */
    else
        g->starved = errno != EAGAIN;
}

/* ---- later ---- */

static bool still_allowed(struct relay *r)
{
    char name[POLICY_NAME_MAX + 1];
    struct decision d;
    if (by_name(r) || r->name[0]) {
        const struct destination to = {r->name, r->address, true, r->port};
        policy_decide(r->guest->policy, &r->guest->above, &to, &d);
    } else {
        guest_decide(r->guest, r->address, r->port, NULL, name, &d);
    }
    if (d.allowed && d.by == r->decision.by)
        r->decision = d;
    return d.allowed && d.by == r->decision.by;
}

void relay_review(struct guest *g, bool all)
{
    for (struct relay *r = g->relays, *next; r; r = next) {
        next = r->next;
        if (all)
            finish(r, true);
        else if (!still_allowed(r))
            refuse(r, "the policy changed");
    }
}

void relay_tick(struct guest *g)
{
    if (g->starved)
        relay_ready(g);
    uint64_t now = loop_now(g->netd->loop);
    for (struct relay *r = g->relays, *next; r; r = next) {
        next = r->next;
        if (!r->deadline || r->deadline > now)
            continue;
        if (!r->connected)
            log_relay(r, true, "no answer");
        else if (!r->sniffed)
            log_relay(r, false,
                      r->asking ? "whether there is a credential for it is not known: space-credd "
                                  "does not answer"
                                : "its beginning came too slowly");
        finish(r, true);
    }
}
