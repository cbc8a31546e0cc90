// SPDX-License-Identifier: Apache-2.0
// Connections to TCP ports of a guest: see ports.h.
//
// Theory of operation. An opened ports/NAME/PORT owns a fid of /tcp/PORT in the guest's control session. Each direction has a buffer here and at most one
// call in flight there: what the guest has is read ahead as long as there is room, what programs write is taken as long as there is room, and sent on. So a
// request that is flushed loses and repeats nothing, and a guest (or program) that does not read makes the other side wait. Pieces are the smaller the more
// connections a sandbox has: what they have in flight together stays below FLIGHT_MAX, so that a freeze or a job does not queue behind megabytes.
//
// A connection belongs to one session with the agent: when that ends (a stop, a load, a suspend) so does the connection, ECONNRESET for everybody. A paused
// sandbox keeps its connections: they stand still, and a write is use, which wakes it. What the guest answers is bounded by lib/9p (never more than asked
// for); an answer that makes no sense ends the connection.
//
// The memory of a connection lives as long as its open file, the calls that point to it, and its timer, which ends an opening that the guest does not
// answer, and a connection that nobody has open any more and whose last bytes the guest does not take.
#include "hostd/tree/ports.h"

#include "base/str.h"
#include "hostd/guest/guest.h"
#include "hostd/lifecycle/idle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_MAX  (128u * 1024) /* of each direction */
#define PIECE_MAX   65536u
#define PIECE_MIN   4096u
#define FLIGHT_MAX  (1u << 20)
#define OPEN_MSEC   30000u
#define LINGER_MSEC 30000u

struct half {
    char *p; /* BUFFER_MAX bytes while there is something in it */
    size_t at, len;
    struct p9_call *call; /* in flight */
    struct wait_list waiters;
};

struct port {
    unsigned refs;
    struct sandbox *sandbox;
    struct caller *caller;    /* who opened it */
    uint64_t serial;          /* of the connection to the agent, */
    uint32_t generation, fid; /* its session, and our fid there */
    int ended;                /* an errno once the connection is gone */
    bool open;                /* the guest accepted */
    bool closed;              /* no file is open any more */
    bool at_end;              /* the guest sends no more */
    bool shut, shut_told;     /* neither do we */
    struct half in, out;
    struct p9_request *opening;
    uv_timer_t *timer;
};

uint16_t ports_parse(const char *name)
{
    uint64_t n;
    if (name[0] < '1' || name[0] > '9' || str_parse_u64(name, UINT16_MAX, &n) < 0)
        return 0;
    return (uint16_t)n;
}

/* ---- memory ---- */

static void unref(struct port *p)
{
    if (--p->refs)
        return;
    p->sandbox->ports--;
    sandbox_unref(p->sandbox);
    caller_unref(p->caller);
    free(p->in.p);
    free(p->out.p);
    free(p);
}

static void timer_closed(uv_handle_t *h)
{
    free(h);
}

static void timer_stop(struct port *p)
{
    uv_timer_t *t = p->timer;
    p->timer = NULL;
    if (!t)
        return;
    uv_close((uv_handle_t *)t, timer_closed);
    unref(p);
}

/* Fires once; a started timer is started anew. */
static void timer_start(struct port *p, uv_timer_cb fire, uint64_t msec)
{
    if (!p->timer) {
        p->timer = calloc(1, sizeof *p->timer);
        if (!p->timer)
            abort();
        uv_timer_init(p->sandbox->space->loop, p->timer);
        p->timer->data = p;
        p->refs++;
    }
    uv_timer_start(p->timer, fire, msec, 0);
}

static void half_add(struct half *h, const void *data, size_t len)
{
    if (!h->p && !(h->p = malloc(BUFFER_MAX)))
        abort();
    if (h->at + h->len + len > BUFFER_MAX) {
        memmove(h->p, h->p + h->at, h->len);
        h->at = 0;
    }
    memcpy(h->p + h->at + h->len, data, len);
    h->len += len;
}

static void half_take(struct half *h, size_t len)
{
    h->at += len;
    h->len -= len;
    if (h->len)
        return;
    free(h->p);
    h->p = NULL;
    h->at = 0;
}

/* ---- the guest's side ---- */

/* The session that the connection belongs to; NULL when it is over. */
static struct p9_client *client_of(const struct port *p)
{
    struct guest *g = p->sandbox->guest;
    if (!g || guest_serial(g) != p->serial || !guest_ready(g, GUEST_CONTROL))
        return NULL;
    struct p9_client *c = guest_client(g, GUEST_CONTROL);
    return p9_client_generation(c) == p->generation ? c : NULL;
}

static void pump_in(struct port *p);
static void pump_out(struct port *p);

/* Gives the guest's end back, once. */
static void hang_up(struct port *p)
{
    struct p9_client *c = client_of(p);
    if (p->in.call)
        p9_call_cancel(p->in.call);
    if (p->out.call)
        p9_call_cancel(p->out.call);
    if (c && p->fid)
        p9_client_clunk(c, p->generation, p->fid);
    p->fid = 0;
    timer_stop(p);
}

static void end(struct port *p, int code)
{
    if (p->ended)
        return;
    p->refs++;
    p->ended = code;
    hang_up(p);
    wait_done_all(&p->in.waiters, 0, NULL); /* they look by themselves */
    wait_done_all(&p->out.waiters, 0, NULL);
    unref(p);
}

static size_t piece(const struct port *p)
{
    size_t share = FLIGHT_MAX / (p->sandbox->ports ? p->sandbox->ports : 1);
    return share > PIECE_MAX ? PIECE_MAX : share < PIECE_MIN ? PIECE_MIN : share;
}

static struct p9_call *call(struct port *p, struct p9_msg *m, p9_callback *cb)
{
    struct p9_client *c = client_of(p);
    if (!c) {
        end(p, ECONNRESET);
        return NULL;
    }
    p->refs++;
    return p9_client_call(c, m, cb, p);
}

static void came(void *user, int err, const struct p9_msg *r)
{
    struct port *p = user;
    p->in.call = NULL;
    if (p->closed || p->ended) {
        unref(p);
        return;
    }
    if (err < 0) {
        end(p, ECONNRESET);
    } else if (r->Rread.data.len == 0) {
        p->at_end = true;
    } else {
        idle_used(p->sandbox);
        half_add(&p->in, r->Rread.data.p, r->Rread.data.len);
        pump_in(p);
    }
    wait_done_all(&p->in.waiters, 0, NULL);
    unref(p);
}

static void pump_in(struct port *p)
{
    struct p9_msg m = {.type = P9_Tread};
    if (p->in.call || !p->open || p->at_end || p->ended || p->closed || p->in.len + piece(p) > BUFFER_MAX)
        return;
    m.Tread.fid = p->fid;
    m.Tread.count = (uint32_t)piece(p);
    p->in.call = call(p, &m, came);
}

static void went(void *user, int err, const struct p9_msg *r)
{
    struct port *p = user;
    p->out.call = NULL;
    if (p->ended) {
        unref(p);
        return;
    }
    if (err < 0 || r->Rwrite.count == 0) {
        end(p, ECONNRESET);
    } else {
        half_take(&p->out, r->Rwrite.count);
        pump_out(p);
        wait_done_all(&p->out.waiters, 0, NULL);
    }
    unref(p);
}

static void shut_told(void *user, int err, const struct p9_msg *r)
{
    struct port *p = user;
    (void)err;
    (void)r;
    unref(p);
}

static void tell_shut(struct port *p)
{
    struct p9_msg m = {.type = P9_Tsetattr};
    m.Tsetattr.fid = p->fid;
    m.Tsetattr.valid = P9_SETATTR_SIZE;
    p->shut_told = true;
    call(p, &m, shut_told);
}

static void pump_out(struct port *p)
{
    struct p9_msg m = {.type = P9_Twrite};
    if (p->out.call || p->ended)
        return;
    if (p->out.len) {
        m.Twrite.fid = p->fid;
        m.Twrite.data.p = p->out.p + p->out.at;
        m.Twrite.data.len = (uint32_t)(p->out.len < piece(p) ? p->out.len : piece(p));
        p->out.call = call(p, &m, went);
    } else if (p->closed) {
        end(p, ECONNRESET);
    } else if (p->shut && !p->shut_told) {
        tell_shut(p);
    }
}

/* ---- opening ---- */

static struct p9_request *take_opening(struct port *p)
{
    struct p9_request *r = p->opening;
    p->opening = NULL;
    fid_of(r->fid)->caller->waiting--;
    r->cancel = NULL;
    r->aux = NULL;
    return r;
}

static void open_failed(struct port *p, int code, const char *sentence)
{
    struct p9_request *r = take_opening(p);
    struct tree_fid *f = fid_of(r->fid);
    timer_stop(p);
    free(f->open);
    f->open = NULL;
    fail_errno(r, f, code, sentence);
}

static void open_cancel(struct p9_request *r)
{
    struct port *p = r->aux;
    take_opening(p);
    timer_stop(p);
    free(fid_of(r->fid)->open);
    fid_of(r->fid)->open = NULL;
    p9_fail(r, EINTR);
}

static void open_too_late(uv_timer_t *t)
{
    open_failed(t->data, ETIMEDOUT, "the guest does not answer");
}

/* What the guest says is the reason may be anything. */
static void refused(struct port *p, int code)
{
    switch (code) {
    case ECONNREFUSED: open_failed(p, ECONNREFUSED, "nothing in the sandbox listens on this port"); break;
    case ETIMEDOUT: open_failed(p, ETIMEDOUT, "who listens on this port in the sandbox does not accept connections"); break;
    case ENOENT: open_failed(p, EOPNOTSUPP, "the agent in this sandbox's memory is older than ports/: stop and start the sandbox"); break;
    default: open_failed(p, EIO, "the sandbox's agent could not connect to this port");
    }
}

static void accepted(struct port *p)
{
    struct p9_request *r = take_opening(p);
    struct p9_msg m = {0};
    timer_stop(p);
    p->open = true;
    fid_of(r->fid)->open->port = p;
    p->refs++;
    pump_in(p);
    m.Rlopen.qid = node_qid(space_of(r), &fid_of(r->fid)->node);
    p9_reply(r, &m);
}

static void connected(void *user, int err, const struct p9_msg *r)
{
    struct port *p = user;
    (void)r;
    if (!p->opening) { /* it was flushed, or took too long */
        p->ended = ECONNRESET;
        hang_up(p);
    } else if (err < 0) {
        hang_up(p);
        refused(p, -err);
    } else {
        accepted(p);
    }
    unref(p);
}

/* The sandbox runs. */
static void open_go(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct sandbox *sb = f->node.sandbox;
    struct port *p = calloc(1, sizeof *p);
    char number[8];
    if (!p)
        abort();
    snprintf(number, sizeof number, "%u", f->node.port);
    const char *path[] = {"tcp", number};
    *p = (struct port){.refs = 1, .sandbox = sandbox_ref(sb), .caller = caller_ref(f->caller), .serial = guest_serial(sb->guest), .opening = r};
    p->generation = p9_client_generation(guest_client(sb->guest, GUEST_CONTROL));
    sb->ports++;
    r->aux = p;
    r->cancel = open_cancel;
    f->caller->waiting++;
    timer_start(p, open_too_late, OPEN_MSEC);
    p->fid = guest_open_file(sb->guest, path, 2, P9_RDWR, connected, p);
}

static unsigned ports_of_owner(const struct space *s, int64_t owner)
{
    unsigned count = 0;
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&s->sandboxes, n));) {
        const struct sandbox *sb = hmap_entry(n, struct sandbox, by_id);
        count += sb->row.owner == owner ? sb->ports : 0;
    }
    return count;
}

void ports_open(struct p9_request *r, struct tree_fid *f)
{
    struct sandbox *sb = f->node.sandbox;
    int code = 0;
    const char *why = NULL;
    if (!caller_may_write(f->caller, sb->row.owner, sb->row.gid, sb->row.mode)) {
        code = EACCES;
        why = "you may read this sandbox but not connect to it";
    } else if (sb->ports >= PORTS_SANDBOX_MAX || (sb->ports && ports_of_owner(sb->space, sb->row.owner) >= PORTS_OWNER_MAX)) {
        code = EMFILE;
        why = "too many connections to this sandbox, or this owner's, are open";
    }
    if (!code) {
        guest_gate(r, sb, open_go);
        return;
    }
    free(f->open);
    f->open = NULL;
    fail_errno(r, f, code, why);
}

/* ---- reading and writing ---- */

/* Waits for something new on that side, unless the program would rather not. */
static void wait_on(struct p9_request *r, struct tree_fid *f, struct half *h, void (*again)(struct p9_request *r))
{
    if (f->open->flags & P9_NONBLOCK)
        p9_fail(r, EAGAIN);
    else
        wait_add(&h->waiters, &pending_new(r, again)->w);
}

static void read_again(struct p9_request *r)
{
    ports_read(r, fid_of(r->fid));
}

void ports_read(struct p9_request *r, struct tree_fid *f)
{
    struct port *p = f->open->port;
    if (!p->in.len && p->ended) {
        p9_fail(r, p->ended);
        return;
    }
    if (!p->in.len && !p->at_end) {
        wait_on(r, f, &p->in, read_again);
        return;
    }
    size_t n = p->in.len < r->t->Tread.count ? p->in.len : r->t->Tread.count;
    char *answer = malloc(P9_IOHDR + n + 1);
    if (!answer)
        abort();
    if (n) {
        memcpy(answer + P9_IOHDR, p->in.p + p->in.at, n);
        half_take(&p->in, n);
        pump_in(p);
    }
    p9_reply_data(r, answer, answer + P9_IOHDR, (uint32_t)n);
}

static void write_go(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct port *p = f->open->port;
    const struct p9_data *d = &r->t->Twrite.data;
    struct p9_msg m = {0};
    if (p->ended || p->shut) {
        p9_fail(r, p->ended ? p->ended : EPIPE);
        return;
    }
    size_t room = BUFFER_MAX - p->out.len, n = d->len < room ? d->len : room;
    if (!room) {
        wait_on(r, f, &p->out, write_go);
        return;
    }
    if (n)
        half_add(&p->out, d->p, n);
    idle_used(p->sandbox);
    pump_out(p);
    m.Rwrite.count = (uint32_t)n;
    p9_reply(r, &m);
}

void ports_write(struct p9_request *r, struct tree_fid *f)
{
    const struct port *p = f->open->port;
    if (p->ended || p->shut)
        p9_fail(r, p->ended ? p->ended : EPIPE);
    else
        guest_gate(r, p->sandbox, write_go);
}

void ports_shut(struct p9_request *r, struct tree_fid *f)
{
    struct port *p = f->open->port;
    p->shut = true;
    wait_done_all(&p->out.waiters, 0, NULL);
    pump_out(p);
    reply_empty(r);
}

static void linger_over(uv_timer_t *t)
{
    end(t->data, ECONNRESET);
}

void ports_close(struct port *p)
{
    if (!p)
        return;
    p->closed = true;
    if (!p->ended && (p->out.len || p->out.call))
        timer_start(p, linger_over, LINGER_MSEC);
    pump_out(p);
    unref(p);
}
