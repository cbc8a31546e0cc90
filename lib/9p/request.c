// SPDX-License-Identifier: Apache-2.0
// Requests of a 9P session: binding fids, ordering, replies, flush.
//
// Theory of operation. A request is taken from the wire, enters the tag table, and is bound to the
// fids that it names (bind.c), for which it may have to wait. Then its handler is called, once.
//
// A started request ends only by its reply. Its effect on fids (install, opened, gone) happens
// there, then the flushes that wait for it are answered, in order. A flush of a request that has
// not started drops that request. A flush of a flush waits like a flush of anything else.
//
// An orphan is a request that the session forgot (Tversion, destroy): it keeps its fids until it
// ends, and changes nothing.
//
// Handlers never run inside handlers: what becomes ready while one is on the stack is run by the
// outermost caller.
#include "9p/copy.h"
#include "9p/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLACK 4096u

static struct request *of(struct p9_request *r)
{
    return (struct request *)r;
}

static void cut_count(struct request *r)
{
    uint32_t room = r->pub.server->msize - P9_IOHDR;
    uint32_t *count = r->msg.type == P9_Tread ? &r->msg.Tread.count : r->msg.type == P9_Treaddir ? &r->msg.Treaddir.count : NULL;
    if (count && *count > room)
        *count = room;
}

/* Binds and calls the handler. The request may be gone afterwards. */
static void start(struct request *r)
{
    p9_handler *handler = r->pub.server->backend->on[r->msg.type];
    int rc = p9_bind_fids(r);
    if (rc == P9_BIND_WAITS)
        return;
    r->started = true;
    if (rc < 0) {
        p9_fail(&r->pub, -rc);
    } else if (handler) {
        cut_count(r);
        handler(&r->pub);
    } else if (r->msg.type == P9_Tclunk) {
        p9_reply(&r->pub, &(struct p9_msg){0});
    } else {
        p9_fail(&r->pub, EOPNOTSUPP);
    }
}

void p9_request_run_ready(struct p9_server *s)
{
    while (!p9_link_empty(&s->ready)) {
        struct request *r = p9_link_entry(s->ready.next, struct request, wait);
        p9_link_remove(&r->wait);
        start(r);
    }
}

/* ---- the end of a request ---- */

/* Takes the request out of every table and frees it. */
static void discard(struct request *r)
{
    struct p9_server *s = r->pub.server;
    if (!r->orphan)
        hmap_remove(&s->tags, &r->node);
    p9_bind_release(r);
    p9_link_remove(&r->all);
    p9_link_remove(&r->wait);
    while (!p9_link_empty(&r->flushes)) /* only when all are forgotten: else they were answered */
        p9_link_remove(r->flushes.next);
    s->requests--;
    s->held -= r->frame.len;
    p9_framer_recycle(&s->framer, &r->frame);
    free(r);
}

/* Of a request that no handler has seen yet: what it reserved goes as well. */
static void discard_waiting(struct request *r)
{
    p9_bind_abandon(r);
    discard(r);
}

/* Answers the Tflush requests in `flushes`, and those that wait for them. Not recursive: a client
 * may chain 65,000. */
static void answer_flushes(struct p9_server *s, struct p9_link *flushes)
{
    while (!p9_link_empty(flushes)) {
        struct request *f = p9_link_entry(flushes->next, struct request, wait);
        p9_server_send(s, &(struct p9_msg){.type = P9_Rflush, .tag = f->msg.tag}, NULL);
        p9_link_splice(flushes, &f->flushes);
        discard(f);
    }
}

/* Sends the reply (already checked), applies it, frees the request. `data_owner`: see
 * p9_server_send. */
static void finish(struct request *r, struct p9_msg *reply, void *data_owner)
{
    struct p9_server *s = r->pub.server;
    bool wanted = p9_server_wants_input(s);
    struct p9_link flushes;
    p9_link_init(&flushes);
    p9_server_enter(s);
    if (!r->orphan) {
        reply->tag = r->msg.tag;
        p9_server_send(s, reply, data_owner);
        data_owner = NULL;
        p9_bind_apply(r, reply);
        p9_link_splice(&flushes, &r->flushes);
    }
    free(data_owner);
    discard(r);
    answer_flushes(s, &flushes);
    p9_server_leave_reply(s, wanted);
}

/* A handler's mistake becomes an error to the client, never a broken session. 0 or a positive
 * errno. */
static int check_reply(const struct request *r, const struct p9_msg *m)
{
    size_t size = p9_encoded_size(m);
    switch (r->msg.type) {
    case P9_Twalk:
        if (m->Rwalk.qids.n > r->msg.Twalk.names.n)
            return EIO;
        if (m->Rwalk.qids.n == 0 && r->msg.Twalk.names.n > 0)
            return ENOENT; /* an Rwalk without qids would say that the walk was a clone */
        break;
    case P9_Tread:
        if (m->Rread.data.len > r->msg.Tread.count)
            return EIO;
        break;
    case P9_Treaddir:
        if (m->Rreaddir.data.len > r->msg.Treaddir.count)
            return EIO;
        break;
    default: break;
    }
    if (!size)
        return EIO;
    return size > r->pub.server->msize ? EMSGSIZE : 0;
}

void p9_reply(struct p9_request *pub, struct p9_msg *m)
{
    struct request *r = of(pub);
    m->type = (uint8_t)(r->msg.type + 1);
    int code = r->orphan ? 0 : check_reply(r, m);
    if (code)
        p9_fail(pub, code);
    else
        finish(r, m, NULL);
}

void p9_reply_data(struct p9_request *pub, void *owner, void *data, uint32_t len)
{
    struct request *r = of(pub);
    struct p9_msg m = {.type = P9_Rread, .Rread.data = {data, len}};
    int code = r->orphan ? 0 : r->msg.type == P9_Tread ? check_reply(r, &m) : EIO;
    if (code) {
        free(owner);
        p9_fail(pub, code);
    } else {
        finish(r, &m, owner);
    }
}

void p9_fail(struct p9_request *pub, int code)
{
    struct p9_msg m = {.type = P9_Rlerror, .Rlerror.ecode = code > 0 ? (uint32_t)code : EIO};
    finish(of(pub), &m, NULL);
}

/* ---- flush and cancel ---- */

static void cancel(struct request *r)
{
    if (r->pub.cancelled || !r->started)
        return;
    r->pub.cancelled = true;
    if (r->pub.cancel)
        r->pub.cancel(&r->pub);
}

static void flush(struct request *f)
{
    struct p9_server *s = f->pub.server;
    struct hmap_node *n = hmap_find(&s->tags, f->msg.Tflush.oldtag);
    struct request *old = n ? hmap_entry(n, struct request, node) : NULL;
    if (old && old != f && (old->started || old->msg.type == P9_Tflush)) {
        p9_link_append(&old->flushes, &f->wait);
        cancel(old); /* may answer both */
        return;
    }
    if (old && old != f)
        discard_waiting(old);
    struct p9_link one;
    p9_link_init(&one);
    p9_link_append(&one, &f->wait);
    answer_flushes(s, &one);
}

void p9_request_orphan_all(struct p9_server *s)
{
    struct p9_link todo;
    p9_link_init(&todo);
    /* All are orphans before the first cancel runs: a cancel may answer others, and those answers
     * must go nowhere either. */
    while (!p9_link_empty(&s->active)) {
        struct request *r = p9_link_entry(s->active.next, struct request, all);
        if (!r->started) {
            discard_waiting(r);
            continue;
        }
        hmap_remove(&s->tags, &r->node);
        r->orphan = true;
        p9_link_remove(&r->all);
        p9_link_append(&todo, &r->all);
    }
    while (!p9_link_empty(&todo)) {
        struct request *r = p9_link_entry(todo.next, struct request, all);
        p9_link_remove(&r->all);
        p9_link_append(&s->orphans, &r->all);
        cancel(r);
    }
}

/* ---- from the wire ---- */

/*
 * A request that owns its message's bytes: handlers keep pointers into them until they reply. A
 * buffer much larger than the message is not kept, or many small requests could hold many large
 * buffers.
 */
static struct request *create(struct p9_server *s, struct p9_frame *frame)
{
    bool keep = frame->owned && frame->cap - frame->len <= MAX_SLACK;
    size_t inline_size = keep ? 0 : frame->len;
    struct request *r = malloc(sizeof *r + inline_size);
    if (!r) {
        p9_framer_recycle(&s->framer, frame);
        return NULL;
    }
    memset(r, 0, offsetof(struct request, msg));
    r->pub.server = s;
    r->pub.user = s->user;
    r->pub.t = &r->msg;
    r->gated = NULL;
    r->started = r->orphan = false;
    if (keep) {
        r->frame = *frame;
    } else {
        p9_copy(r->copy, frame->p, inline_size);
        r->frame = (struct p9_frame){.p = r->copy, .len = inline_size};
        p9_framer_recycle(&s->framer, frame);
    }
    p9_link_init(&r->all);
    p9_link_init(&r->wait);
    p9_link_init(&r->flushes);
    return r;
}

/* Enters the request into the session, unless the message is one that no client may send now. */
static int admit(struct p9_server *s, struct request *r)
{
    if (p9_decode(r->frame.p, r->frame.len, &r->msg) < 0 || r->msg.type % 2 != 0)
        return -EBADMSG;
    if (r->msg.type == P9_Tversion)
        return 0;
    if (!s->msize || r->msg.tag == P9_NOTAG || hmap_find(&s->tags, r->msg.tag))
        return -EBADMSG;
    hmap_insert(&s->tags, &r->node, r->msg.tag);
    p9_link_append(&s->active, &r->all);
    s->requests++;
    s->held += r->frame.len;
    return 0;
}

int p9_request_take(struct p9_server *s, struct p9_frame *frame)
{
    struct request *r = create(s, frame);
    if (!r)
        return -ENOMEM;
    int rc = admit(s, r);
    if (rc < 0 || r->msg.type == P9_Tversion) {
        if (rc == 0)
            p9_server_version(s, &r->msg);
        p9_framer_recycle(&s->framer, &r->frame);
        free(r);
    } else if (r->msg.type == P9_Tflush) {
        flush(r);
    } else {
        start(r);
    }
    return rc;
}
