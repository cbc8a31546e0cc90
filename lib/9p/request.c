// SPDX-License-Identifier: Apache-2.0
// Requests of a 9P session: binding fids, ordering, replies, flush.
//
// Theory of operation. A request is taken from the wire, enters the tag table, and is bound to the
// fids that it names. A fid that an attach, walk, open or clunk in flight is about to change has a
// *gate*, that request; a request that names a gated fid is put on the fid's waiting list, and
// tried again when the gate opens. While it waits it holds at most the fid that it is going to
// install, gated, so that whatever follows on that number waits as well; it takes that first. So
// requests wait for earlier ones only, and there is no deadlock. Lists are in order of arrival, and
// requests that come out of one and find a new gate go behind that in the same order.
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
#include "9p/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLACK 4096u

enum effect {
    E_NONE,
    E_INSTALL, /* puts a new fid (or changes fid in place) */
    E_OPEN,    /* opens fid */
    E_SHAPE,   /* turns fid into something else: later requests must see that */
    E_CLUNK,   /* fid is gone afterwards */
};

/* Which fields of a T-message name fids and new file names; offsets in struct p9_msg, 0 = none (a
 * message has `type` there). */
struct rule {
    uint16_t fid, newfid, dirfid;
    uint16_t name, name2;
    uint8_t effect; /* enum effect */
};

#define AT(M, f) offsetof(struct p9_msg, M.f)

static const struct rule rules[P9_TYPE_MAX] = {
    [P9_Tauth] = {.newfid = AT(Tauth, afid), .effect = E_INSTALL},
    [P9_Tattach] = {.newfid = AT(Tattach, fid), .effect = E_INSTALL},
    [P9_Twalk] = {.fid = AT(Twalk, fid), .newfid = AT(Twalk, newfid), .effect = E_INSTALL},
    [P9_Txattrwalk] = {.fid = AT(Txattrwalk, fid),
                       .newfid = AT(Txattrwalk, newfid),
                       .effect = E_INSTALL},
    [P9_Tlopen] = {.fid = AT(Tlopen, fid), .effect = E_OPEN},
    [P9_Tlcreate] = {.fid = AT(Tlcreate, fid), .name = AT(Tlcreate, name), .effect = E_OPEN},
    [P9_Txattrcreate] = {.fid = AT(Txattrcreate, fid), .effect = E_SHAPE},
    [P9_Tclunk] = {.fid = AT(Tclunk, fid), .effect = E_CLUNK},
    [P9_Tremove] = {.fid = AT(Tremove, fid), .effect = E_CLUNK},
    [P9_Tstatfs] = {.fid = AT(Tstatfs, fid)},
    [P9_Tsymlink] = {.fid = AT(Tsymlink, fid), .name = AT(Tsymlink, name)},
    [P9_Tmknod] = {.fid = AT(Tmknod, dfid), .name = AT(Tmknod, name)},
    [P9_Trename] = {.fid = AT(Trename, fid),
                    .dirfid = AT(Trename, dfid),
                    .name = AT(Trename, name)},
    [P9_Treadlink] = {.fid = AT(Treadlink, fid)},
    [P9_Tgetattr] = {.fid = AT(Tgetattr, fid)},
    [P9_Tsetattr] = {.fid = AT(Tsetattr, fid)},
    [P9_Treaddir] = {.fid = AT(Treaddir, fid)},
    [P9_Tfsync] = {.fid = AT(Tfsync, fid)},
    [P9_Tlock] = {.fid = AT(Tlock, fid)},
    [P9_Tgetlock] = {.fid = AT(Tgetlock, fid)},
    [P9_Tlink] = {.fid = AT(Tlink, fid), .dirfid = AT(Tlink, dfid), .name = AT(Tlink, name)},
    [P9_Tmkdir] = {.fid = AT(Tmkdir, dfid), .name = AT(Tmkdir, name)},
    [P9_Trenameat] = {.fid = AT(Trenameat, olddirfid),
                      .dirfid = AT(Trenameat, newdirfid),
                      .name = AT(Trenameat, oldname),
                      .name2 = AT(Trenameat, newname)},
    [P9_Tunlinkat] = {.fid = AT(Tunlinkat, dirfid), .name = AT(Tunlinkat, name)},
    [P9_Tread] = {.fid = AT(Tread, fid)},
    [P9_Twrite] = {.fid = AT(Twrite, fid)},
};

/* Outcomes of binding beside 0 and negative errno. */
enum { WAITS = 1 };

static struct request *of(struct p9_request *r)
{
    return (struct request *)r;
}

static const void *at(const struct p9_msg *m, uint16_t offset)
{
    return (const char *)m + offset;
}

static uint32_t number_at(const struct p9_msg *m, uint16_t offset)
{
    return *(const uint32_t *)at(m, offset);
}

/* ---- binding ---- */

static int check_name(const struct p9_msg *m, uint16_t offset)
{
    if (!offset)
        return 0;
    const struct p9_str *s = at(m, offset);
    if (p9_str_eq(*s, "") || p9_str_eq(*s, ".") || p9_str_eq(*s, "..") || memchr(s->s, '/', s->len))
        return -EINVAL;
    return s->len > P9_NAME_MAX ? -ENAMETOOLONG : 0;
}

static struct p9_fid *hold(struct fid *f)
{
    if (!f)
        return NULL;
    p9_fids_ref(f);
    return &f->pub;
}

static void set_gate(struct request *r, struct fid *f)
{
    r->gated = f;
    f->gate = r;
}

static int wait_for(struct fid *f, struct request *r)
{
    p9_link_append(&f->waiting, &r->wait);
    return WAITS;
}

/* Looks up the fid that the message names at `offset`. */
static int bind_existing(struct request *r, uint16_t offset, struct fid **out)
{
    *out = NULL;
    if (!offset)
        return 0;
    struct fid *f = p9_fids_find(r->pub.server, number_at(&r->msg, offset));
    if (!f)
        return -EBADF;
    if (f->gate)
        return wait_for(f, r);
    *out = f;
    return 0;
}

/* Takes the number of the fid that the request is to make, with a gate in front of it. */
static int reserve(struct request *r, uint32_t id)
{
    struct p9_server *s = r->pub.server;
    struct fid *f = p9_fids_find(s, id);
    if (f && f->gate)
        return wait_for(f, r);
    if (f || id == P9_NOFID)
        return -EBADF;
    if (s->fids.count >= s->config.max_fids)
        return -ENFILE;
    f = p9_fids_add(s, id);
    if (!f)
        return -ENOMEM;
    r->pub.newfid = hold(f);
    set_gate(r, f);
    return 0;
}

static int check_before_binding(const struct request *r)
{
    const struct rule *rule = &rules[r->msg.type];
    int rc = check_name(&r->msg, rule->name);
    if (rc == 0)
        rc = check_name(&r->msg, rule->name2);
    if (rc == 0 && r->msg.type == P9_Tauth && !r->pub.server->backend->on[P9_Tauth])
        rc = -ENOENT; /* what clients expect where no authentication is needed */
    return rc;
}

/* Moving an opened fid would change what its reads and writes mean. */
static bool may_change(const struct request *r, const struct fid *f, bool in_place)
{
    if (!f->pub.opened)
        return true;
    if (in_place)
        return r->msg.type == P9_Twalk && r->msg.Twalk.names.n == 0;
    return rules[r->msg.type].effect != E_OPEN;
}

/* 0: bound, gate set. WAITS: on a fid's list, to be tried again. Negative: refused; what was
 * reserved goes with the reply. */
static int bind(struct request *r)
{
    const struct rule *rule = &rules[r->msg.type];
    struct fid *fid, *dirfid;
    bool in_place = rule->fid && rule->newfid &&
                    number_at(&r->msg, rule->fid) == number_at(&r->msg, rule->newfid);
    int rc = 0;
    if (rule->newfid && !in_place && !r->gated)
        rc = reserve(r, number_at(&r->msg, rule->newfid));
    if (rc == 0)
        rc = bind_existing(r, rule->fid, &fid);
    if (rc == 0)
        rc = bind_existing(r, rule->dirfid, &dirfid);
    if (rc != 0)
        return rc;
    if (fid && !may_change(r, fid, in_place))
        return -EBADF;
    r->pub.dirfid = hold(dirfid);
    if (in_place)
        r->pub.newfid = hold(fid);
    if (rule->fid) {
        r->pub.fid = hold(fid);
    } else { /* attach: the new fid is the request's fid */
        r->pub.fid = r->pub.newfid;
        r->pub.newfid = NULL;
    }
    if (rule->effect != E_NONE && !r->gated)
        set_gate(r, fid);
    return 0;
}

static void cut_count(struct request *r)
{
    uint32_t room = r->pub.server->msize - P9_IOHDR;
    uint32_t *count = r->msg.type == P9_Tread      ? &r->msg.Tread.count
                      : r->msg.type == P9_Treaddir ? &r->msg.Treaddir.count
                                                   : NULL;
    if (count && *count > room)
        *count = room;
}

/* Binds and calls the handler. The request may be gone afterwards. */
static void start(struct request *r)
{
    p9_handler *handler = r->pub.server->backend->on[r->msg.type];
    int rc = check_before_binding(r);
    if (rc == 0)
        rc = bind(r);
    if (rc == WAITS)
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

static bool walk_is_complete(const struct request *r, const struct p9_msg *reply)
{
    return r->msg.type != P9_Twalk || reply->Rwalk.qids.n == r->msg.Twalk.names.n;
}

/* What the reply does to the gated fid. */
static void apply_effect(struct request *r, const struct p9_msg *reply)
{
    bool ok = reply->type != P9_Rlerror;
    struct fid *f = r->gated;
    switch ((enum effect)rules[r->msg.type].effect) {
    case E_INSTALL:
        if (&f->pub == r->pub.newfid && r->pub.newfid == r->pub.fid)
            break; /* in place: the handler changed it or did not */
        if (!ok || !walk_is_complete(r, reply))
            p9_fids_drop(r->pub.server, f);
        break;
    case E_OPEN:
        f->pub.opened = ok;
        break;
    case E_CLUNK:
        p9_fids_drop(r->pub.server, f);
        break;
    case E_SHAPE:
    case E_NONE:
        break;
    }
}

static void open_gate(struct request *r)
{
    if (!r->gated)
        return;
    r->gated->gate = NULL;
    p9_link_splice(&r->pub.server->ready, &r->gated->waiting);
    r->gated = NULL;
}

/* Takes the request out of every table and frees it. */
static void discard(struct request *r)
{
    struct p9_server *s = r->pub.server;
    if (!r->orphan)
        hmap_remove(&s->tags, &r->node);
    open_gate(r);
    p9_fids_unref(s, (struct fid *)r->pub.fid);
    p9_fids_unref(s, (struct fid *)r->pub.dirfid);
    p9_fids_unref(s, (struct fid *)r->pub.newfid);
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
    if (r->gated)
        p9_fids_drop(r->pub.server, r->gated);
    discard(r);
}

/* Answers the Tflush requests in `flushes`, and those that wait for them. Not recursive: a client
 * may chain 65,000. */
static void answer_flushes(struct p9_server *s, struct p9_link *flushes)
{
    while (!p9_link_empty(flushes)) {
        struct request *f = p9_link_entry(flushes->next, struct request, wait);
        p9_server_send(s, &(struct p9_msg){.type = P9_Rflush, .tag = f->msg.tag});
        p9_link_splice(flushes, &f->flushes);
        discard(f);
    }
}

/* Sends the reply (already checked), applies it, frees the request. */
static void finish(struct request *r, struct p9_msg *reply)
{
    struct p9_server *s = r->pub.server;
    bool wanted = p9_server_wants_input(s);
    struct p9_link flushes;
    p9_link_init(&flushes);
    p9_server_enter(s);
    if (!r->orphan) {
        reply->tag = r->msg.tag;
        p9_server_send(s, reply);
        if (r->gated)
            apply_effect(r, reply);
        p9_link_splice(&flushes, &r->flushes);
    }
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
    default:
        break;
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
        finish(r, m);
}

void p9_fail(struct p9_request *pub, int code)
{
    struct p9_msg m = {.type = P9_Rlerror, .Rlerror.ecode = code > 0 ? (uint32_t)code : EIO};
    finish(of(pub), &m);
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
        memcpy(r->copy, frame->p, inline_size);
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
