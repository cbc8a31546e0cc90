// SPDX-License-Identifier: Apache-2.0
// HAProxy's agent: see haproxy.h, spoe.h.
//
// A few connections, each with many requests in flight. A request names the connection that space-netd handed over; for which sandbox and host that is comes from what
// space-netd told us, and HAProxy's own words on the host must agree. Answers are put together in one wiped buffer and given to the kernel at once: a HAProxy
// that does not read loses its connection, and with it the requests.
//
// Requests come several at a time when there are many, so what is answered while they are read goes out together, once all of them are: HAProxy wakes once.
#include "base/log.h"
#include "hostd/credd/credd.h"
#include "hostd/credd/haproxy.h"
#include "hostd/credd/spoe.h"

#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#define CONNECTIONS_MAX 64u
#define METHOD_MAX      32u
#define FRAME_SIZE      (SPOE_LENGTH + SPOE_FRAME_MAX)
#define ANSWERS_SIZE    (2 * FRAME_SIZE) /* what waits, and one more */

/* Answers of HTTP to a guest whose request cannot be served. */
#define STATUS_FORBIDDEN   403u
#define STATUS_TOO_MANY    429u
#define STATUS_UNAVAILABLE 503u

struct haproxy_spoe {
    struct credd *credd;
    struct haproxy *haproxy;
    uv_poll_t poll;
    int fd;
    unsigned connections;
    uint8_t *answers; /* locked memory: ANSWERS_SIZE, of which: */
    size_t len;
    struct connection *to; /* whose they are */
};

struct connection {
    struct haproxy_spoe *spoe;
    uv_poll_t poll;
    int fd; /* -1: closed */
    unsigned refs;
    bool greeted, reading;
    size_t frame_max, len;
    uint8_t in[SPOE_LENGTH + SPOE_FRAME_MAX];
};

/* A request whose answer is awaited. */
struct use {
    struct connection *connection;
    uint64_t stream, frame;
    char name[256], method[METHOD_MAX];
};

static void unref(struct connection *c)
{
    if (--c->refs == 0)
        free(c);
}

static void poll_closed(uv_handle_t *h)
{
    unref(h->data);
}

static void hang_up(struct connection *c)
{
    if (c->fd < 0)
        return;
    uv_poll_stop(&c->poll);
    close(c->fd);
    c->fd = -1;
    c->spoe->connections--;
    uv_close((uv_handle_t *)&c->poll, poll_closed);
}

/* ---- answers ---- */

static void flush(struct haproxy_spoe *s)
{
    struct connection *c = s->to;
    bool sent = s->len == 0 || c->fd < 0 || send(c->fd, s->answers, s->len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)s->len;
    sodium_memzero(s->answers, s->len);
    s->len = 0;
    if (sent)
        return;
    log_warn("HAProxy does not read its answers: hanging up");
    hang_up(c);
}

/* Room for one frame, behind those that wait. */
static struct spoe_writer writer_for(struct connection *c)
{
    struct haproxy_spoe *s = c->spoe;
    if (s->to != c || s->len > ANSWERS_SIZE - FRAME_SIZE)
        flush(s);
    s->to = c;
    return (struct spoe_writer){.buf = s->answers + s->len, .size = FRAME_SIZE};
}

static void transmit(struct connection *c, const struct spoe_writer *w)
{
    c->spoe->len += w->len;
    if (w->bad)
        hang_up(c);
    if (w->bad || !c->reading)
        flush(c->spoe);
}

static uint32_t status_of(enum cred_verdict v)
{
    switch (v) {
    case CRED_FOUND: return 0;
    case CRED_NONE: /* it was removed since: the next connection is not decrypted */
    case CRED_NO_VALUE:
    case CRED_EXPIRED: return STATUS_FORBIDDEN;
    case CRED_RATE: return STATUS_TOO_MANY;
    case CRED_NO_SANDBOX:
    case CRED_AWAY:
    case CRED_NO_AUDIT: break;
    }
    return STATUS_UNAVAILABLE;
}

static void write_refusal(struct spoe_writer *w, const struct use *u, uint32_t status, const char *reason)
{
    sodium_memzero(w->buf, w->len);
    *w = (struct spoe_writer){.buf = w->buf, .size = w->size};
    spoe_ack_begin(w, u->stream, u->frame);
    spoe_ack_number(w, "status", status);
    spoe_ack_text(w, "reason", reason, strnlen(reason, 300));
    spoe_ack_end(w);
}

/* For the two headers that nearly all hosts take HAProxy has rules of its own, and one variable says all; others cost it more. */
static const char *variable_of(const struct cred_answer *a)
{
    if (a->place == CRED_QUERY)
        return NULL;
    return strcasecmp(a->name, "Authorization") == 0 ? "authorization" : strcasecmp(a->name, "X-Api-Key") == 0 ? "api_key" : NULL;
}

static void write_found(struct spoe_writer *w, const struct use *u, const struct cred_answer *a)
{
    const char *variable = variable_of(a), *place = a->place == CRED_QUERY ? "query" : "header";
    spoe_ack_begin(w, u->stream, u->frame);
    if (!variable) {
        spoe_ack_text(w, "place", place, strlen(place));
        spoe_ack_text(w, "name", a->name, strlen(a->name));
    }
    spoe_ack_text(w, variable ? variable : "value", a->value, a->len);
    spoe_ack_end(w);
}

static void refuse(const struct use *u, uint32_t status, const char *reason)
{
    struct spoe_writer w = writer_for(u->connection);
    write_refusal(&w, u, status, reason);
    transmit(u->connection, &w);
}

static void found(void *user, const struct cred_answer *a)
{
    struct use *u = user;
    struct connection *c = u->connection;
    struct spoe_writer w = writer_for(c);
    if (a->verdict == CRED_FOUND)
        write_found(&w, u, a);
    if (a->verdict == CRED_FOUND && (w.bad || w.len > c->frame_max + SPOE_LENGTH))
        write_refusal(&w, u, STATUS_UNAVAILABLE, "the credential's value is too long to be injected");
    else if (a->verdict != CRED_FOUND)
        write_refusal(&w, u, status_of(a->verdict), a->verdict == CRED_NONE ? "its credential was removed: connect again" : a->reason);
    transmit(c, &w);
    unref(c);
    free(u);
}

/* ---- requests ---- */

static bool is(struct spoe_text t, const char *text)
{
    return t.len == strlen(text) && memcmp(t.s, text, t.len) == 0;
}

static void notify(struct connection *c, const struct spoe_frame *f)
{
    struct grant grant;
    struct use *u = calloc(1, sizeof *u);
    if (!u) {
        hang_up(c);
        return;
    }
    *u = (struct use){.connection = c, .stream = f->stream, .frame = f->frame};
    if (!haproxy_grant(c->spoe->haproxy, f->id.s, f->id.len, &grant) || !is(f->name, grant.name) || f->port != grant.port) {
        refuse(u, STATUS_UNAVAILABLE, "space-netd knows of no such connection: connect again");
        free(u);
        return;
    }
    snprintf(u->name, sizeof u->name, "%s", grant.name);
    for (size_t i = 0; i < f->method.len && i < METHOD_MAX - 1; i++)
        u->method[i] = f->method.s[i] > ' ' && f->method.s[i] < 0x7f ? f->method.s[i] : '?';
    c->refs++;
    cred_inject(c->spoe->credd, &(struct cred_query){grant.sandbox, u->name, grant.port, u->method}, found, u);
}

static void say_goodbye(struct connection *c, uint32_t status, const char *message)
{
    struct spoe_writer w = writer_for(c);
    spoe_write_disconnect(&w, status, message);
    transmit(c, &w);
    flush(c->spoe);
    hang_up(c);
}

static void greet(struct connection *c, const struct spoe_frame *f)
{
    if (!f->version_known || f->frame_max < SPOE_FRAME_MIN) {
        say_goodbye(c, 8, "another version of the protocol");
        return;
    }
    struct spoe_writer w = writer_for(c);
    c->greeted = true;
    c->frame_max = f->frame_max < SPOE_FRAME_MAX ? (size_t)f->frame_max : SPOE_FRAME_MAX;
    spoe_write_hello(&w, c->frame_max);
    transmit(c, &w);
    if (f->healthcheck) {
        flush(c->spoe);
        hang_up(c);
    }
}

static void take_frame(struct connection *c, const uint8_t *bytes, size_t len)
{
    struct spoe_frame f;
    if (spoe_read(bytes, len, &f) < 0 || (f.type == SPOE_HAPROXY_HELLO) == c->greeted) {
        log_warn("HAProxy sent a frame that is none: hanging up");
        say_goodbye(c, 99, "not understood");
    } else if (f.type == SPOE_HAPROXY_HELLO) {
        greet(c, &f);
    } else if (f.type == SPOE_NOTIFY) {
        notify(c, &f);
    } else {
        say_goodbye(c, 0, "normal");
    }
}

static size_t length_at(const uint8_t *p)
{
    return (size_t)p[0] << 24 | (size_t)p[1] << 16 | (size_t)p[2] << 8 | p[3];
}

/* All whole frames of what is there. */
static void take_frames(struct connection *c)
{
    size_t at = 0;
    while (c->fd >= 0 && c->len - at >= SPOE_LENGTH) {
        size_t n = length_at(c->in + at);
        if (n > SPOE_FRAME_MAX) {
            say_goodbye(c, 3, "too long");
            return;
        }
        if (c->len - at < SPOE_LENGTH + n)
            break;
        take_frame(c, c->in + at + SPOE_LENGTH, n);
        at += SPOE_LENGTH + n;
    }
    c->len -= at;
    memmove(c->in, c->in + at, c->len);
}

static void readable(uv_poll_t *p, int status, int events)
{
    struct connection *c = p->data;
    (void)events;
    c->refs++;
    c->reading = true;
    while (c->fd >= 0) {
        ssize_t n = status < 0 ? 0 : recv(c->fd, c->in + c->len, sizeof c->in - c->len, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n <= 0) {
            hang_up(c);
            break;
        }
        bool all = (size_t)n < sizeof c->in - c->len; /* the next look at it costs more than another event */
        c->len += (size_t)n;
        take_frames(c);
        if (all)
            break;
    }
    c->reading = false;
    flush(c->spoe);
    unref(c);
}

static void acceptable(uv_poll_t *p, int status, int events)
{
    struct haproxy_spoe *s = p->data;
    int fd;
    (void)events;
    while (status >= 0 && (fd = accept4(s->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct connection *c = s->connections < CONNECTIONS_MAX ? calloc(1, sizeof *c) : NULL;
        if (!c || uv_poll_init(s->credd->loop, &c->poll, fd) < 0) {
            free(c);
            close(fd);
            continue;
        }
        c->spoe = s;
        c->fd = fd;
        c->refs = 1;
        c->poll.data = c;
        s->connections++;
        uv_poll_start(&c->poll, UV_READABLE, readable);
    }
}

int haproxy_spoe_open(struct credd *c, struct haproxy *h, int fd)
{
    struct haproxy_spoe *s = calloc(1, sizeof *s);
    if (!s || !(s->answers = sodium_malloc(ANSWERS_SIZE))) {
        free(s);
        return -ENOMEM;
    }
    s->credd = c;
    s->haproxy = h;
    s->fd = fd;
    s->poll.data = s;
    int rc = uv_poll_init(c->loop, &s->poll, fd);
    return rc < 0 ? rc : uv_poll_start(&s->poll, UV_READABLE, acceptable);
}
