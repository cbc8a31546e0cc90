// SPDX-License-Identifier: Apache-2.0
// What a request does to fids: binding, order, effect.
//
// Theory of operation. A fid that an attach, walk, open or clunk in flight is about to change has a
// *gate*, that request; a request that names a gated fid is put on the fid's waiting list, and
// tried again when the gate opens. While it waits it holds at most the fid that it is going to
// install, gated, so that whatever follows on that number waits as well; it takes that first. So
// requests wait for earlier ones only, and there is no deadlock. Lists are in order of arrival, and
// requests that come out of one and find a new gate go behind that in the same order.
#include "9p/session.h"

#include <errno.h>
#include <string.h>

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
    [P9_Txattrwalk] = {.fid = AT(Txattrwalk, fid), .newfid = AT(Txattrwalk, newfid), .effect = E_INSTALL},
    [P9_Tlopen] = {.fid = AT(Tlopen, fid), .effect = E_OPEN},
    [P9_Tlcreate] = {.fid = AT(Tlcreate, fid), .name = AT(Tlcreate, name), .effect = E_OPEN},
    [P9_Txattrcreate] = {.fid = AT(Txattrcreate, fid), .effect = E_SHAPE},
    [P9_Tclunk] = {.fid = AT(Tclunk, fid), .effect = E_CLUNK},
    [P9_Tremove] = {.fid = AT(Tremove, fid), .effect = E_CLUNK},
    [P9_Tstatfs] = {.fid = AT(Tstatfs, fid)},
    [P9_Tsymlink] = {.fid = AT(Tsymlink, fid), .name = AT(Tsymlink, name)},
    [P9_Tmknod] = {.fid = AT(Tmknod, dfid), .name = AT(Tmknod, name)},
    [P9_Trename] = {.fid = AT(Trename, fid), .dirfid = AT(Trename, dfid), .name = AT(Trename, name)},
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

static const void *at(const struct p9_msg *m, uint16_t offset)
{
    return (const char *)m + offset;
}

static uint32_t number_at(const struct p9_msg *m, uint16_t offset)
{
    return *(const uint32_t *)at(m, offset);
}

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
    return P9_BIND_WAITS;
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

static int bind_all(struct request *r)
{
    const struct rule *rule = &rules[r->msg.type];
    struct fid *fid, *dirfid;
    bool in_place = rule->fid && rule->newfid && number_at(&r->msg, rule->fid) == number_at(&r->msg, rule->newfid);
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

int p9_bind_fids(struct request *r)
{
    int rc = check_before_binding(r);
    return rc == 0 ? bind_all(r) : rc;
}

static bool walk_is_complete(const struct request *r, const struct p9_msg *reply)
{
    return r->msg.type != P9_Twalk || reply->Rwalk.qids.n == r->msg.Twalk.names.n;
}

void p9_bind_apply(struct request *r, const struct p9_msg *reply)
{
    bool ok = reply->type != P9_Rlerror;
    struct fid *f = r->gated;
    if (!f)
        return;
    switch ((enum effect)rules[r->msg.type].effect) {
    case E_INSTALL:
        if (&f->pub == r->pub.newfid && r->pub.newfid == r->pub.fid)
            break; /* in place: the handler changed it or did not */
        if (!ok || !walk_is_complete(r, reply))
            p9_fids_drop(r->pub.server, f);
        break;
    case E_OPEN: f->pub.opened = ok; break;
    case E_CLUNK: p9_fids_drop(r->pub.server, f); break;
    case E_SHAPE:
    case E_NONE: break;
    }
}

void p9_bind_release(struct request *r)
{
    struct p9_server *s = r->pub.server;
    if (r->gated) {
        r->gated->gate = NULL;
        p9_link_splice(&s->ready, &r->gated->waiting);
        r->gated = NULL;
    }
    p9_fids_unref(s, (struct fid *)r->pub.fid);
    p9_fids_unref(s, (struct fid *)r->pub.dirfid);
    p9_fids_unref(s, (struct fid *)r->pub.newfid);
}

void p9_bind_abandon(struct request *r)
{
    if (r->gated)
        p9_fids_drop(r->pub.server, r->gated);
}
