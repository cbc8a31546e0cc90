// SPDX-License-Identifier: Apache-2.0
// root/NAME, snapshots/NAME/SNAP/files and below: requests passed on to who serves these files, and its answers, which are hostile input, checked and
// translated.
//
// Theory of operation. Files are served by a session with the guest of a sandbox, or with the browser of a snapshot. A fid here owns a fid in that session;
// root/NAME and files themselves stand for the session's root, whichever session that is, so they survive stops, loads and renewals, while fids below are void
// with their session (ESTALE; the kernel then looks the path up again). Every request first passes the gate: the sandbox must run (or is resumed), the snapshot
// be ready and its browser started. A flushed request is answered at once, whatever the other side does. What comes back is taken apart and built
// anew: qids are hashed with an object's id (file_owner), names that no directory can hold are dropped, symlink targets are rewritten so that they cannot lead
// out of that root.
#include "hostd/browse/qid.h"
#include "hostd/guest/guest.h"
#include "hostd/snapshot/browser.h"
#include "hostd/tree/symlink.h"
#include "hostd/tree/tree.h"
#include "hostd/volume/volume.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- who serves ---- */

struct files {
    struct p9_client *client;
    uint32_t root;
    uint64_t serial;
};

/* The session behind a node, also one that is being renewed; false when there is none. */
static bool files_of(const struct node *n, struct files *out)
{
    struct guest *g = n->kind == NODE_GUEST ? n->sandbox->guest : NULL;
    if (g)
        *out = (struct files){guest_client(g, GUEST_FILES), guest_root(g, GUEST_FILES), guest_serial(g)};
    else if (n->kind == NODE_FILES && browser_ready(n->snapshot))
        *out = (struct files){browser_client(n->snapshot->browser), browser_root(n->snapshot->browser), browser_serial(n->snapshot->browser)};
    else
        return false;
    return true;
}

static bool same_files(const struct node *a, const struct node *b)
{
    return a->kind == b->kind && a->sandbox == b->sandbox && a->snapshot == b->snapshot;
}

/* Of renames that change depths; a snapshot has none. */
static uint32_t epoch_of(const struct node *n)
{
    return n->kind == NODE_GUEST ? n->sandbox->rename_epoch : 0;
}

/* A request that waits for an answer of the other side. The request may go first. */
struct forward {
    struct p9_request *r; /* NULL once flushed */
    struct p9_call *call;
    void (*done)(struct forward *fw, const struct p9_msg *reply); /* success only; answers r */
    struct node node;                                             /* whose files; references of its own */
    struct p9_client *client;
    uint64_t serial;
    uint32_t generation;
    /* walk, xattrwalk, lopen and lcreate of the root: the fid being made */
    uint32_t newfid, depth;
    uint16_t names;        /* asked of it */
    struct p9_qids before; /* of the control directories walked first */
    bool kept;             /* newfid belongs to a tree fid now */
    uint32_t clunked;      /* a fid that this call gives back */
};

/* ---- the gate ---- */

struct gate_pending {
    struct waiter w;
    struct p9_request *r;
    struct node node;
    void (*then)(struct p9_request *r);
};

static void gate_cancel(struct p9_request *r);
static void gate_done(struct waiter *w, int rc, const struct err *e);

static struct gate_pending *gate_wait(struct p9_request *r, const struct node *n, void (*then)(struct p9_request *r))
{
    struct gate_pending *g = calloc(1, sizeof *g);
    if (!g)
        abort();
    *g = (struct gate_pending){.w.done = gate_done, .r = r, .then = then};
    node_copy(&g->node, n);
    r->aux = g;
    r->cancel = gate_cancel;
    fid_of(r->fid)->caller->waiting++;
    return g;
}

static void gate_refuse(struct gate_pending *g, int code, const char *sentence)
{
    struct err e = {0};
    gate_done(&g->w, err_set(&e, code, "%s", sentence), &e);
}

/* A session that is being renewed is waited for: its end was not this request's. */
static void gate_open_guest(struct p9_request *r, const struct node *n, void (*then)(struct p9_request *r))
{
    struct guest *guest = n->sandbox->guest;
    if (guest && guest_ready(guest, GUEST_FILES)) {
        then(r);
        return;
    }
    struct gate_pending *g = gate_wait(r, n, then);
    if (!guest || !guest_await_files(guest, &g->w))
        gate_refuse(g, EIO, "the guest does not answer");
}

static void gate_open_snapshot(struct p9_request *r, const struct node *n, void (*then)(struct p9_request *r))
{
    struct snapshot *sn = n->snapshot;
    struct err e = {0};
    int rc = volume_key(sn->space, sn->row.owner, &e);
    if (rc < 0) {
        fail(r, fid_of(r->fid), rc, &e);
        return;
    }
    if (browser_ready(sn)) {
        then(r);
        return;
    }
    struct gate_pending *g = gate_wait(r, n, then);
    if (sn->gone)
        gate_refuse(g, ESTALE, "this snapshot is gone");
    else if (sn->row.state == ARTIFACT_CREATING)
        wait_add(&sn->ready, &g->w);
    else if (sn->row.state == ARTIFACT_STORED)
        volume_fetch(sn, &g->w);
    else if (sn->row.state != ARTIFACT_READY)
        gate_refuse(g, EIO, sn->row.error[0] ? sn->row.error : "this snapshot has no image");
    else
        browser_start(sn, &g->w);
}

static void gate_open(struct p9_request *r, const struct node *n, void (*then)(struct p9_request *r))
{
    (n->kind == NODE_FILES ? gate_open_snapshot : gate_open_guest)(r, n, then);
}

static void gate_done(struct waiter *w, int rc, const struct err *e)
{
    struct gate_pending g = *(struct gate_pending *)(void *)w;
    free(w);
    fid_of(g.r->fid)->caller->waiting--;
    g.r->cancel = NULL;
    g.r->aux = NULL;
    if (rc < 0)
        fail(g.r, fid_of(g.r->fid), rc, e);
    else
        gate_open(g.r, &g.node, g.then);
    node_clear(&g.node);
}

static void gate_cancel(struct p9_request *r)
{
    struct gate_pending *g = r->aux;
    wait_remove(&g->w);
    fid_of(r->fid)->caller->waiting--;
    node_clear(&g->node);
    free(g);
    p9_fail(r, EINTR);
}

void guest_gate(struct p9_request *r, struct sandbox *sb, void (*then)(struct p9_request *r))
{
    struct tree_fid *f = fid_of(r->fid);
    const struct node n = {.kind = NODE_GUEST, .sandbox = sb};
    if (!caller_may_read(f->caller, sb->row.owner, sb->row.gid, sb->row.mode)) { /* its mode or group changed since the walk */
        fail_errno(r, f, EACCES, "this sandbox is not yours to use any more");
        return;
    }
    if (sandbox_state(sb) == SANDBOX_RUNNING && sb->guest && sb->row.touched) {
        gate_open(r, &n, then);
        return;
    }
    struct gate_pending *g = gate_wait(r, &n, then);
    /* a crawl by root over everyone's sandboxes wakes nothing */
    sandbox_touch(sb, f->caller->uid != 0 || sb->row.owner == 0, &g->w);
}

static void gate(struct p9_request *r, const struct node *n, void (*then)(struct p9_request *r))
{
    struct tree_fid *f = fid_of(r->fid);
    if (n->kind == NODE_GUEST)
        guest_gate(r, n->sandbox, then);
    else if (!node_visible(n, f->caller))
        fail_errno(r, f, EACCES, "this snapshot is not yours to use any more");
    else
        gate_open(r, n, then);
}

/* ---- forwarding ---- */

static void forward_cancel(struct p9_request *r)
{
    struct forward *fw = r->aux;
    fw->r = NULL;
    fid_of(r->fid)->caller->waiting--;
    if (fw->call)
        p9_call_cancel(fw->call);
    p9_fail(r, EINTR);
}

static void forward_done(void *user, int err, const struct p9_msg *reply)
{
    struct forward *fw = user;
    struct p9_request *r = fw->r;
    fw->call = NULL;
    if (r) {
        fid_of(r->fid)->caller->waiting--;
        r->cancel = NULL;
        r->aux = NULL;
        if (err < 0)
            p9_fail(r, err == -ECONNRESET || err == -ENOTCONN ? EIO : -err);
        else
            fw->done(fw, reply);
    }
    struct files now;
    bool same = files_of(&fw->node, &now) && now.serial == fw->serial;
    if (fw->newfid && !fw->kept && same)
        p9_client_clunk(now.client, fw->generation, fw->newfid); /* a clunk of what was not made does no harm */
    if (fw->clunked && same)
        p9_client_fid_free(now.client, fw->clunked);
    node_clear(&fw->node);
    free(fw);
}

/* The session is there: the gate was passed. */
static struct forward *forward_new(struct p9_request *r, const struct node *n, void (*done)(struct forward *, const struct p9_msg *))
{
    struct files now;
    struct forward *fw = calloc(1, sizeof *fw);
    if (!fw || !files_of(n, &now))
        abort();
    fw->r = r;
    fw->done = done;
    node_copy(&fw->node, n);
    fw->client = now.client;
    fw->serial = now.serial;
    return fw;
}

static void forward_send(struct forward *fw, struct p9_msg *m)
{
    fw->r->aux = fw;
    fw->r->cancel = forward_cancel;
    fid_of(fw->r->fid)->caller->waiting++;
    fw->generation = p9_client_generation(fw->client);
    fw->call = p9_client_call(fw->client, m, forward_done, fw);
}

/* The other side's fid behind `f`, or 0 when its session is gone (the request was answered then). */
static uint32_t guest_fid(struct p9_request *r, struct tree_fid *f)
{
    struct files now;
    bool there = files_of(&f->node, &now);
    if (there && f->guest.fid && f->guest.session == now.serial && f->guest.generation == p9_client_generation(now.client))
        return f->guest.fid;
    if (there && f->guest.root && !f->guest.fid)
        return now.root;
    p9_fail(r, f->guest.opened ? EIO : ESTALE);
    return 0;
}

void guest_fid_release(struct tree_fid *f)
{
    struct files now;
    if (!f->guest.fid || !files_of(&f->node, &now) || now.serial != f->guest.session)
        return;
    p9_client_clunk(now.client, f->guest.generation, f->guest.fid);
    if (f->node.kind == NODE_FILES && f->guest.opened)
        browser_hold(f->node.snapshot->browser, -1);
}

/*
 * With whose id a number of a file system is hashed. A file keeps its inode number over all snapshots of a sandbox, as backup programs read
 * one again whose number is another. Directories and files with several names have their own in each snapshot: programs that are given two
 * snapshots at once take what has one number for one thing, `diff -r` and `cp -a` directories, all that keep hard links a file.
 */
static uint64_t file_owner(const struct node *n, uint64_t path)
{
    if (n->kind == NODE_FILES)
        return (uint64_t)(path & BROWSE_QID_OWN ? n->snapshot->row.id : n->snapshot->row.sandbox);
    return (uint64_t)n->sandbox->row.id;
}

static struct p9_qid translate(const struct space *s, const struct node *n, struct p9_qid q)
{
    q.type &= P9_QTDIR | P9_QTSYMLINK;
    q.path = space_qid(s, n->kind, file_owner(n, q.path), q.path, 0);
    return q;
}

static void done_empty(struct forward *fw, const struct p9_msg *reply)
{
    (void)reply;
    reply_empty(fw->r);
}

static struct p9_qid qid_of(struct forward *fw, struct p9_qid q)
{
    return translate(space_of(fw->r), &fw->node, q);
}

/* ---- walk ---- */

/* Where in the tree the other side's part of a walk begins; references pass. False when it does not lead there. */
static bool resolve(struct p9_request *r, uint16_t *first, struct p9_qids *before, struct node *out)
{
    struct tree_fid *f = fid_of(r->fid);
    const struct p9_names *names = &r->t->Twalk.names;
    struct node at, next;
    char name[P9_NAME_MAX + 1];
    node_copy(&at, &f->node);
    before->n = 0;
    for (*first = 0; !node_is_served(&at) && *first < names->n; (*first)++) {
        snprintf(name, sizeof name, "%.*s", (int)names->v[*first].len, names->v[*first].s);
        if (node_lookup(space_of(r), f->caller, &at, name, &next) < 0)
            break;
        node_clear(&at);
        at = next;
        before->v[before->n++] = node_qid(space_of(r), &at);
    }
    *out = at;
    if (node_is_served(&at))
        return true;
    node_clear(out);
    return false;
}

static void walked(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_request *r = fw->r;
    const struct p9_qids *got = &reply->Rwalk.qids;
    struct p9_msg m = {0};
    m.Rwalk.qids = fw->before;
    for (uint16_t i = 0; i < got->n; i++) /* the client checked: no more than asked */
        m.Rwalk.qids.v[m.Rwalk.qids.n++] = qid_of(fw, got->v[i]);
    if (got->n == fw->names) {
        struct guest_fid g = {
            .fid = fw->newfid, .generation = fw->generation, .session = fw->serial, .depth = fw->depth, .epoch = epoch_of(&fw->node)};
        fw->kept = true;
        tree_install_guest(r, &fw->node, &g);
    } else if (m.Rwalk.qids.n == 0) {
        p9_fail(r, ENOENT);
        return;
    }
    p9_reply(r, &m);
}

static void walk_go(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct p9_msg m = {.type = P9_Twalk};
    struct files now;
    struct node n;
    uint16_t first;
    struct p9_qids before;
    if (!resolve(r, &first, &before, &n) || !files_of(&n, &now)) {
        node_clear(&n);
        p9_fail(r, ENOENT);
        return;
    }
    uint32_t from = node_is_served(&f->node) ? guest_fid(r, f) : now.root;
    if (from) {
        struct forward *fw = forward_new(r, &n, walked);
        fw->before = before;
        fw->names = m.Twalk.names.n = (uint16_t)(r->t->Twalk.names.n - first);
        fw->depth = (node_is_served(&f->node) ? f->guest.depth : 0) + fw->names;
        fw->newfid = p9_client_fid_alloc(now.client);
        for (uint16_t i = 0; i < fw->names; i++)
            m.Twalk.names.v[i] = r->t->Twalk.names.v[first + i];
        m.Twalk.fid = from;
        m.Twalk.newfid = fw->newfid;
        forward_send(fw, &m);
    }
    node_clear(&n);
}

/* 0 or the errno that refuses it. */
static int check_name(struct p9_str name)
{
    if (name.len > P9_NAME_MAX)
        return ENAMETOOLONG;
    return p9_str_eq(name, "..") || p9_str_eq(name, ".") || !name.len || memchr(name.s, '/', name.len) ? EINVAL : 0;
}

void guest_fs_walk(struct p9_request *r)
{
    uint16_t first;
    struct p9_qids before;
    struct node n;
    bool leads = resolve(r, &first, &before, &n);
    int code = leads ? 0 : ENOENT;
    for (uint16_t i = first; code == 0 && i < r->t->Twalk.names.n; i++)
        code = check_name(r->t->Twalk.names.v[i]);
    if (code)
        p9_fail(r, code);
    else
        gate(r, &n, walk_go);
    if (leads)
        node_clear(&n);
}

/* ---- open, create ---- */

static void ignore(void *user, int err, const struct p9_msg *r)
{
    (void)user;
    (void)err;
    (void)r;
}

/* A fid that opens must be the request's own: root/NAME gets a clone of the session's root first (sent in the same burst). */
static uint32_t own_fid(struct p9_request *r, struct tree_fid *f, struct forward *fw)
{
    uint32_t fid = guest_fid(r, f);
    if (!fid || f->guest.fid)
        return fid;
    struct p9_client *c = fw->client;
    struct p9_msg m = {.type = P9_Twalk};
    fw->newfid = p9_client_fid_alloc(c);
    m.Twalk.fid = fid;
    m.Twalk.newfid = fw->newfid;
    p9_client_call(c, &m, ignore, NULL);
    return fw->newfid;
}

static void keep_own_fid(struct forward *fw)
{
    struct tree_fid *f = fid_of(fw->r->fid);
    if (f->node.kind == NODE_FILES && !f->guest.opened)
        browser_hold(f->node.snapshot->browser, 1);
    f->guest.opened = true;
    if (!fw->newfid)
        return;
    fw->kept = true;
    f->guest.fid = fw->newfid;
    f->guest.generation = fw->generation;
    f->guest.session = fw->serial;
}

static void opened(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = {0};
    keep_own_fid(fw);
    m.Rlopen.qid = qid_of(fw, reply->Rlopen.qid);
    p9_reply(fw->r, &m);
}

static void created(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = {0};
    struct tree_fid *f = fid_of(fw->r->fid);
    keep_own_fid(fw);
    f->guest.root = false;
    f->guest.depth++;
    m.Rlcreate.qid = qid_of(fw, reply->Rlcreate.qid);
    p9_reply(fw->r, &m);
}

static void open_go(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    bool create = r->t->type == P9_Tlcreate;
    struct forward *fw = forward_new(r, &f->node, create ? created : opened);
    struct p9_msg m = *r->t;
    uint32_t fid = own_fid(r, f, fw);
    if (!fid) {
        node_clear(&fw->node);
        free(fw);
        return;
    }
    if (create)
        m.Tlcreate.fid = fid;
    else
        m.Tlopen.fid = fid;
    forward_send(fw, &m);
}

void guest_fs_lopen(struct p9_request *r)
{
    gate(r, &fid_of(r->fid)->node, open_go);
}

void guest_fs_lcreate(struct p9_request *r)
{
    gate(r, &fid_of(r->fid)->node, open_go);
}

/* ---- attributes ---- */

static void got_attr(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = *reply;
    if (!(m.Rgetattr.mode & S_IFMT) || m.Rgetattr.size > INT64_MAX || m.Rgetattr.mtime_nsec > 999999999 || m.Rgetattr.atime_nsec > 999999999 ||
        m.Rgetattr.ctime_nsec > 999999999) {
        p9_fail(fw->r, EIO);
        return;
    }
    m.Rgetattr.valid &= P9_GETATTR_BASIC;
    m.Rgetattr.mode &= 0177777;
    m.Rgetattr.qid = qid_of(fw, m.Rgetattr.qid);
    m.Rgetattr.gen = m.Rgetattr.data_version = m.Rgetattr.btime_sec = m.Rgetattr.btime_nsec = 0;
    p9_reply(fw->r, &m);
}

/* ---- reading directories ---- */

static void got_entries(struct forward *fw, const struct p9_msg *reply)
{
    const struct p9_data *d = &reply->Rreaddir.data;
    struct p9_msg m = {0};
    struct p9_dirent e;
    size_t pos = 0, out = 0;
    int rc;
    char *buf = malloc(d->len ? d->len : 1);
    if (!buf)
        abort();
    while ((rc = p9_dirent_unpack(d->p, d->len, &pos, &e)) == 1) {
        if (!e.name.len || e.name.len > P9_NAME_MAX || memchr(e.name.s, '/', e.name.len))
            continue; /* no directory can hold that name: the guest lies */
        e.qid = qid_of(fw, e.qid);
        p9_dirent_pack(buf, d->len, &out, &e);
    }
    m.Rreaddir.data = (struct p9_data){buf, (uint32_t)out};
    if (rc < 0)
        p9_fail(fw->r, EIO);
    else
        p9_reply(fw->r, &m);
    free(buf);
}

/* ---- symlinks ---- */

static void got_target(struct forward *fw, const struct p9_msg *reply)
{
    struct tree_fid *f = fid_of(fw->r->fid);
    struct p9_msg m = {0};
    char target[4096];
    if (f->guest.epoch != epoch_of(&fw->node)) {
        p9_fail(fw->r, ESTALE); /* a directory changed its depth: this fid's is not sure any more; the path is looked up again */
        return;
    }
    if (!symlink_rewrite(reply->Rreadlink.target.s, reply->Rreadlink.target.len, f->guest.depth ? f->guest.depth - 1 : 0, target, sizeof target)) {
        p9_fail(fw->r, ENAMETOOLONG);
        return;
    }
    m.Rreadlink.target = p9_str_of(target);
    p9_reply(fw->r, &m);
}

/* ---- answers that carry a qid ---- */

static void made_symlink(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = {0};
    m.Rsymlink.qid = qid_of(fw, reply->Rsymlink.qid);
    p9_reply(fw->r, &m);
}

static void made_node(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = {0};
    m.Rmknod.qid = qid_of(fw, reply->Rmknod.qid);
    p9_reply(fw->r, &m);
}

static void made_dir(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = {0};
    m.Rmkdir.qid = qid_of(fw, reply->Rmkdir.qid);
    p9_reply(fw->r, &m);
}

static void xattr_begun(struct forward *fw, const struct p9_msg *reply)
{
    (void)reply;
    fid_of(fw->r->fid)->guest.sets_xattr = true;
    reply_empty(fw->r);
}

static void done_copy(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = *reply;
    p9_reply(fw->r, &m);
}

static void done_write(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = *reply;
    if (m.Rwrite.count > fw->r->t->Twrite.data.len)
        p9_fail(fw->r, EIO);
    else
        p9_reply(fw->r, &m);
}

/* ---- messages with one fid: a table ---- */

static const struct {
    size_t fid; /* offset of the fid in struct p9_msg */
    void (*done)(struct forward *, const struct p9_msg *);
} passed[P9_TYPE_MAX] = {
    [P9_Tread] = {offsetof(struct p9_msg, Tread.fid), done_copy},
    [P9_Twrite] = {offsetof(struct p9_msg, Twrite.fid), done_write},
    [P9_Treaddir] = {offsetof(struct p9_msg, Treaddir.fid), got_entries},
    [P9_Tgetattr] = {offsetof(struct p9_msg, Tgetattr.fid), got_attr},
    [P9_Tsetattr] = {offsetof(struct p9_msg, Tsetattr.fid), done_empty},
    [P9_Tmkdir] = {offsetof(struct p9_msg, Tmkdir.dfid), made_dir},
    [P9_Tunlinkat] = {offsetof(struct p9_msg, Tunlinkat.dirfid), done_empty},
    [P9_Tsymlink] = {offsetof(struct p9_msg, Tsymlink.fid), made_symlink},
    [P9_Tmknod] = {offsetof(struct p9_msg, Tmknod.dfid), made_node},
    [P9_Treadlink] = {offsetof(struct p9_msg, Treadlink.fid), got_target},
    [P9_Tstatfs] = {offsetof(struct p9_msg, Tstatfs.fid), done_copy},
    [P9_Tfsync] = {offsetof(struct p9_msg, Tfsync.fid), done_empty},
    [P9_Tlock] = {offsetof(struct p9_msg, Tlock.fid), done_copy},
    [P9_Tgetlock] = {offsetof(struct p9_msg, Tgetlock.fid), done_copy},
    [P9_Txattrcreate] = {offsetof(struct p9_msg, Txattrcreate.fid), xattr_begun},
};

static void pass_go(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct p9_msg m = *r->t;
    uint32_t fid = guest_fid(r, f);
    if (!fid)
        return;
    struct forward *fw = forward_new(r, &f->node, passed[m.type].done);
    memcpy((char *)&m + passed[m.type].fid, &fid, sizeof fid);
    uint32_t most = p9_client_iounit(fw->client); /* a guest may have agreed to less than we have */
    if (m.type == P9_Twrite && m.Twrite.data.len > most)
        m.Twrite.data.len = most;
    else if (m.type == P9_Tread && m.Tread.count > most)
        m.Tread.count = most;
    else if (m.type == P9_Treaddir && m.Treaddir.count > most)
        m.Treaddir.count = most;
    forward_send(fw, &m);
}

/* An attribute is set by the clunk of its fid, and may fail then: this clunk is waited for. */
void guest_fs_clunk(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct p9_msg m = {.type = P9_Tclunk};
    struct files now;
    if (!files_of(&f->node, &now) || (f->node.kind == NODE_GUEST && !guest_ready(f->node.sandbox->guest, GUEST_FILES))) {
        p9_fail(r, EIO);
        return;
    }
    m.Tclunk.fid = guest_fid(r, f);
    if (!m.Tclunk.fid)
        return;
    struct forward *fw = forward_new(r, &f->node, done_empty);
    fw->clunked = m.Tclunk.fid;
    f->guest.fid = 0;
    forward_send(fw, &m);
}

void guest_fs_pass(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    const struct p9_msg *xattr = r->t->type == P9_Tread && f->open ? r->t : NULL;
    struct p9_msg m = {0};
    if (xattr) { /* a raw symlink target, below */
        uint64_t at = xattr->Tread.offset < f->open->text.len ? xattr->Tread.offset : f->open->text.len;
        m.Rread.data.p = f->open->text.p + at;
        m.Rread.data.len = (uint32_t)(f->open->text.len - at < xattr->Tread.count ? f->open->text.len - at : xattr->Tread.count);
        p9_reply(r, &m);
        return;
    }
    gate(r, &f->node, pass_go);
}

/* ---- messages with two fids ---- */

static void two_go(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid), *d = fid_of(r->dirfid);
    struct p9_msg m = *r->t;
    if (!same_files(&f->node, &d->node)) {
        p9_fail(r, EXDEV);
        return;
    }
    uint32_t fid = guest_fid(r, f), dir = fid ? guest_fid(r, d) : 0;
    if (!dir)
        return;
    uint32_t none = 0, *epoch = f->node.kind == NODE_GUEST ? &f->node.sandbox->rename_epoch : &none;
    if (m.type == P9_Tlink) {
        m.Tlink.fid = fid;
        m.Tlink.dfid = dir;
    } else if (m.type == P9_Trename) {
        m.Trename.fid = fid;
        m.Trename.dfid = dir;
        *epoch += f->guest.depth != d->guest.depth + 1;
    } else {
        m.Trenameat.olddirfid = fid;
        m.Trenameat.newdirfid = dir;
        *epoch += f->guest.depth != d->guest.depth;
    }
    forward_send(forward_new(r, &f->node, done_empty), &m);
}

void guest_fs_two(struct p9_request *r)
{
    gate(r, &fid_of(r->fid)->node, two_go);
}

/* ---- xattrs ---- */

/* The raw target of a symlink, as an attribute. VFS lets no one read user.* of a symlink, so through a mount it is security.space.target. */
static bool is_raw_target(struct p9_str name)
{
    return p9_str_eq(name, "user.space.target") || p9_str_eq(name, "security.space.target");
}

static void got_raw_target(struct forward *fw, const struct p9_msg *reply)
{
    tree_install_value(fw->r, &fw->node, reply->Rreadlink.target);
}

static void xattr_walked(struct forward *fw, const struct p9_msg *reply)
{
    struct p9_msg m = *reply;
    struct guest_fid g = {.fid = fw->newfid, .generation = fw->generation, .session = fw->serial, .opened = true};
    if (m.Rxattrwalk.size > 1u << 20) {
        p9_fail(fw->r, E2BIG);
        return;
    }
    fw->kept = true;
    if (fw->node.kind == NODE_FILES)
        browser_hold(fw->node.snapshot->browser, 1);
    tree_install_guest(fw->r, &fw->node, &g);
    p9_reply(fw->r, &m);
}

static void xattrwalk_go(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct p9_msg m = *r->t;
    uint32_t fid = guest_fid(r, f);
    if (!fid)
        return;
    struct forward *fw;
    if (is_raw_target(m.Txattrwalk.name)) {
        m = (struct p9_msg){.type = P9_Treadlink};
        m.Treadlink.fid = fid;
        fw = forward_new(r, &f->node, got_raw_target);
    } else {
        fw = forward_new(r, &f->node, xattr_walked);
        fw->newfid = p9_client_fid_alloc(fw->client);
        m.Txattrwalk.fid = fid;
        m.Txattrwalk.newfid = fw->newfid;
    }
    forward_send(fw, &m);
}

void guest_fs_xattrwalk(struct p9_request *r)
{
    gate(r, &fid_of(r->fid)->node, xattrwalk_go);
}
