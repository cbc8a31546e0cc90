// SPDX-License-Identifier: Apache-2.0
// The asynchronous 9P2000.L client.
//
// Theory of operation. A call owns a tag from p9_client_call until its reply, or, when it was
// cancelled, until Rflush: the server may still answer a flushed tag, so it must not be used again
// before. A call that cannot get a tag fails (the caller's own) or queues (Tflush and Tclunk of
// ours, which must reach the server).
//
// Callbacks run from p9_client_input, p9_client_disconnected, p9_client_run_pending, never from
// p9_client_call. Inside one, anything but destroy may be called, a new connection included:
// `epoch` tells the input loop that its bytes belong to the past.
//
// States of a call: IN_FLIGHT (has a tag, on the list `flying`), FAILED (on `failed`, its callback
// waits for a good moment), QUEUED (ours, on `queued`, waits for a tag).
#include "9p/client.h"

#include "9p/framer.h"
#include "9p/link.h"
#include "9p/numbers.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define RESERVED_TAGS 255u /* for Tflush and Tclunk of ours: 65,280 blocked calls can be cancelled */

enum call_state { IN_FLIGHT, FAILED, QUEUED };

struct p9_call {
    struct p9_client *client;
    p9_callback *cb;
    void *user;
    struct p9_link link;
    enum call_state state;
    int error;      /* FAILED: what the callback gets */
    uint32_t limit; /* most elements or bytes that the reply may hold */
    uint32_t fid;   /* Tclunk of ours */
    uint16_t tag;
    uint16_t victim; /* Tflush: the tag that it flushes */
    uint8_t type;
    bool cancelled;
};

struct p9_client {
    struct p9_transport transport;
    bool attached;   /* there is a transport to send to */
    bool negotiated; /* Rversion came */
    int broken;      /* -errno: the server broke the protocol on this connection */
    uint32_t epoch;  /* counts connects and disconnects */
    uint32_t generation, msize;
    struct p9_framer framer;
    void (*wake)(void *user);
    void *wake_user;

    struct p9_call *version; /* Tversion in flight */
    struct p9_tagset tags;   /* what is in flight */
    struct p9_link flying, failed, queued;
    struct p9_fidset fids;
};

struct p9_client *p9_client_create(void)
{
    struct p9_client *c = calloc(1, sizeof *c);
    if (!c)
        return NULL;
    p9_link_init(&c->flying);
    p9_link_init(&c->failed);
    p9_link_init(&c->queued);
    return c;
}

/* ---- calls ---- */

/* Most elements or bytes that a reply to `t` may bring. */
static uint32_t reply_limit(const struct p9_msg *t)
{
    switch (t->type) {
    case P9_Twalk: return t->Twalk.names.n;
    case P9_Tread: return t->Tread.count;
    case P9_Treaddir: return t->Treaddir.count;
    case P9_Twrite: return t->Twrite.data.len;
    default: return 0;
    }
}

/* A call never fails silently, and there is no way to tell of a failure to make one: out of memory
 * ends the program. */
static struct p9_call *new_call(struct p9_client *c, uint8_t type, p9_callback *cb, void *user)
{
    struct p9_call *call = calloc(1, sizeof *call);
    if (!call)
        abort();
    *call = (struct p9_call){.client = c, .type = type, .cb = cb, .user = user};
    p9_link_init(&call->link);
    return call;
}

static void move_to(struct p9_call *call, enum call_state state, struct p9_link *list)
{
    p9_link_remove(&call->link);
    call->state = state;
    p9_link_append(list, &call->link);
}

/* Hands out the result and frees the call, whose tag is settled already. */
static void complete(struct p9_call *call, int err, const struct p9_msg *r)
{
    p9_link_remove(&call->link);
    if (call->cb)
        call->cb(call->user, err, r);
    free(call);
}

/* The result comes later, from run_pending or input. */
static void fail_later(struct p9_call *call, int err)
{
    struct p9_client *c = call->client;
    bool first = p9_link_empty(&c->failed);
    call->error = err;
    move_to(call, FAILED, &c->failed);
    if (first && c->wake)
        c->wake(c->wake_user);
}

/* Encodes and sends; 0 or a negative errno, when nothing was sent. */
static int transmit(struct p9_client *c, const struct p9_msg *m)
{
    size_t size = p9_encoded_size(m);
    if (!size)
        return -EINVAL;
    if (size > c->msize)
        return -EMSGSIZE;
    void *buf = malloc(size);
    if (!buf)
        return -ENOMEM;
    p9_encode(m, buf, size);
    c->transport.send(c->transport.user, buf, size);
    return 0;
}

struct p9_call *p9_client_call(struct p9_client *c, struct p9_msg *t, p9_callback *cb, void *user)
{
    struct p9_call *call = new_call(c, t->type, cb, user);
    int rc = 0;
    call->limit = reply_limit(t);
    if (!c->negotiated || c->broken)
        rc = -ENOTCONN;
    else if (!p9_tagset_take(&c->tags, call, RESERVED_TAGS, &call->tag))
        rc = -EAGAIN;
    if (rc < 0) {
        fail_later(call, rc);
        return call;
    }
    t->tag = call->tag;
    rc = transmit(c, t);
    if (rc < 0) {
        p9_tagset_release(&c->tags, call->tag);
        fail_later(call, rc);
    } else {
        move_to(call, IN_FLIGHT, &c->flying);
    }
    return call;
}

/* Sends a Tflush or Tclunk of ours; false when there is no tag for it. */
static bool try_send_own(struct p9_client *c, struct p9_call *call)
{
    struct p9_msg m = {.type = call->type};
    if (!p9_tagset_take(&c->tags, call, 0, &call->tag))
        return false;
    m.tag = call->tag;
    if (call->type == P9_Tflush)
        m.Tflush.oldtag = call->victim;
    else
        m.Tclunk.fid = call->fid;
    move_to(call, IN_FLIGHT, &c->flying);
    if (transmit(c, &m) < 0)
        abort(); /* out of memory for 11 bytes */
    return true;
}

/* In order of the calls, at once or when tags are free again. */
static void send_own(struct p9_client *c, struct p9_call *call)
{
    if (!p9_link_empty(&c->queued) || !try_send_own(c, call))
        move_to(call, QUEUED, &c->queued);
}

static void send_queued(struct p9_client *c)
{
    while (!p9_link_empty(&c->queued))
        if (!try_send_own(c, p9_link_entry(c->queued.next, struct p9_call, link)))
            return;
}

void p9_call_cancel(struct p9_call *call)
{
    struct p9_client *c = call->client;
    if (call->cancelled || call->state != IN_FLIGHT || !c->negotiated || c->broken)
        return; /* the callback comes without our doing */
    call->cancelled = true;
    struct p9_call *flush = new_call(c, P9_Tflush, NULL, NULL);
    flush->victim = call->tag;
    send_own(c, flush);
}

/* ---- connection ---- */

/* Ends every call in flight. Calls made inside callbacks belong to what comes next. */
static void drop_connection(struct p9_client *c)
{
    struct p9_link dying;
    c->attached = c->negotiated = false;
    c->broken = 0;
    c->epoch++;
    p9_framer_finish(&c->framer);
    p9_link_init(&dying);
    if (c->version)
        p9_link_append(&dying, &c->version->link);
    c->version = NULL;
    p9_link_splice(&dying, &c->flying);
    p9_link_splice(&dying, &c->queued);
    p9_tagset_release_all(&c->tags);
    for (struct p9_link *l = dying.next; l != &dying; l = l->next)
        p9_link_entry(l, struct p9_call, link)->state = FAILED; /* a cancel inside a callback must not touch them */
    while (!p9_link_empty(&dying))
        complete(p9_link_entry(dying.next, struct p9_call, link), -ECONNRESET, NULL);
}

void p9_client_connect(struct p9_client *c, const struct p9_transport *transport, uint32_t msize, p9_callback *ready, void *user)
{
    struct p9_msg t = {.type = P9_Tversion, .tag = P9_NOTAG};
    do
        drop_connection(c);
    while (c->attached); /* a callback connected: this call is the one that counts */
    p9_fidset_renew(&c->fids);
    c->generation++;
    c->transport = *transport;
    c->attached = true;
    c->msize = msize < P9_MSIZE_MIN ? P9_MSIZE_MIN : msize > P9_MSIZE_MAX ? P9_MSIZE_MAX : msize;
    c->version = new_call(c, P9_Tversion, ready, user);
    t.Tversion = (struct p9_Tversion){.msize = c->msize, .version = p9_str_of(P9_VERSION)};
    if (transmit(c, &t) < 0)
        abort();
}

void p9_client_disconnected(struct p9_client *c)
{
    if (c->attached)
        drop_connection(c);
}

void p9_client_destroy(struct p9_client *c)
{
    if (!c)
        return;
    /* Callbacks may make calls, which fail, whose callbacks may make calls. */
    do {
        drop_connection(c);
        p9_client_run_pending(c);
    } while (c->attached || !p9_link_empty(&c->failed));
    p9_fidset_finish(&c->fids);
    p9_tagset_finish(&c->tags);
    free(c);
}

int p9_client_is_connected(const struct p9_client *c)
{
    return c->negotiated && !c->broken;
}

uint32_t p9_client_generation(const struct p9_client *c)
{
    return c->generation;
}

uint32_t p9_client_iounit(const struct p9_client *c)
{
    return c->msize > P9_IOHDR ? c->msize - P9_IOHDR : 0;
}

uint32_t p9_client_calls(const struct p9_client *c)
{
    return c->tags.cap - c->tags.n_free;
}

void p9_client_set_wake(struct p9_client *c, void (*wake)(void *user), void *user)
{
    c->wake = wake;
    c->wake_user = user;
}

void p9_client_run_pending(struct p9_client *c)
{
    struct p9_link batch; /* calls that fail inside callbacks wait for the next time: no endless
                             loop in here */
    p9_link_init(&batch);
    p9_link_splice(&batch, &c->failed);
    while (!p9_link_empty(&batch)) {
        struct p9_call *call = p9_link_entry(batch.next, struct p9_call, link);
        complete(call, call->error, NULL);
    }
}

/* ---- replies ---- */

static int version_reply(struct p9_client *c, const struct p9_msg *r)
{
    struct p9_call *call = c->version;
    if (!call || r->tag != P9_NOTAG)
        return -EPROTO;
    bool good =
        r->type == P9_Rversion && p9_str_eq(r->Rversion.version, P9_VERSION) && r->Rversion.msize >= P9_MSIZE_MIN && r->Rversion.msize <= c->msize;
    c->version = NULL;
    if (good) {
        c->msize = r->Rversion.msize;
        c->negotiated = true;
        complete(call, 0, r);
        return 0;
    }
    c->broken = -EPROTO;
    complete(call, -EPROTO, NULL);
    return -EPROTO;
}

/* The reply must be one that the call can have, and not bring more than was asked for. */
static bool reply_fits(const struct p9_call *call, const struct p9_msg *r)
{
    if (r->type == P9_Rlerror)
        return call->type != P9_Tflush;
    if (r->type != call->type + 1)
        return false;
    switch (r->type) {
    case P9_Rwalk: return r->Rwalk.qids.n <= call->limit;
    case P9_Rread: return r->Rread.data.len <= call->limit;
    case P9_Rreaddir: return r->Rreaddir.data.len <= call->limit;
    case P9_Rwrite: return r->Rwrite.count <= call->limit;
    default: return true;
    }
}

static int error_of(const struct p9_msg *r)
{
    if (r->type != P9_Rlerror)
        return 0;
    return r->Rlerror.ecode >= 1 && r->Rlerror.ecode <= 4095 ? -(int)r->Rlerror.ecode : -EIO;
}

static void flush_reply(struct p9_client *c, struct p9_call *flush)
{
    uint16_t victim_tag = flush->victim;
    struct p9_call *victim = p9_tagset_find(&c->tags, victim_tag);
    p9_tagset_release(&c->tags, flush->tag);
    p9_tagset_release(&c->tags, victim_tag);
    complete(flush, 0, NULL);
    send_queued(c);
    if (victim)
        complete(victim, -EINTR, NULL);
}

static int take_reply(struct p9_client *c, const struct p9_msg *r)
{
    if (!c->negotiated)
        return version_reply(c, r);
    struct p9_call *call = p9_tagset_find(&c->tags, r->tag);
    if (!call || !reply_fits(call, r))
        return -EPROTO;
    if (call->type == P9_Tflush) {
        flush_reply(c, call);
        return 0;
    }
    if (call->cancelled)
        p9_tagset_orphan(&c->tags, call->tag); /* the tag stays taken until Rflush */
    else
        p9_tagset_release(&c->tags, call->tag);
    send_queued(c);
    int err = error_of(r);
    complete(call, err, err ? NULL : r);
    return 0;
}

int p9_client_input(struct p9_client *c, const void *buf, size_t len)
{
    const uint8_t *p = buf;
    uint32_t epoch = c->epoch;
    int rc = c->attached ? c->broken : -ENOTCONN;
    while (rc == 0 && c->epoch == epoch) {
        struct p9_frame frame;
        struct p9_msg r;
        rc = p9_framer_next(&c->framer, &p, &len, c->msize, &frame);
        if (rc <= 0)
            break;
        rc = p9_decode(frame.p, frame.len, &r) < 0 ? -EPROTO : take_reply(c, &r);
        p9_framer_recycle(&c->framer, &frame);
    }
    if (c->epoch != epoch)
        rc = 0; /* a callback made another connection; these bytes are the old one's */
    else if (rc < 0 && rc != -ENOTCONN)
        rc = c->broken = rc == -ENOMEM ? rc : -EPROTO;
    p9_client_run_pending(c);
    return rc;
}

/* ---- fids ---- */

uint32_t p9_client_fid_alloc(struct p9_client *c)
{
    return p9_fidset_take(&c->fids);
}

void p9_client_fid_free(struct p9_client *c, uint32_t fid)
{
    p9_fidset_release(&c->fids, fid);
}

struct clunk {
    struct p9_client *client;
    uint32_t fid;
};

static void clunked(void *user, int err, const struct p9_msg *r)
{
    struct clunk *k = user;
    (void)err; /* the fid is gone whatever the answer is */
    (void)r;
    p9_client_fid_free(k->client, k->fid); /* of an older connection: a no-op */
    free(k);
}

void p9_client_clunk(struct p9_client *c, uint32_t generation, uint32_t fid)
{
    if (generation != c->generation || !c->negotiated || c->broken || fid == P9_NOFID)
        return;
    struct clunk *k = malloc(sizeof *k);
    if (!k)
        abort();
    *k = (struct clunk){.client = c, .fid = fid};
    struct p9_call *call = new_call(c, P9_Tclunk, clunked, k);
    call->fid = fid;
    send_own(c, call);
}
