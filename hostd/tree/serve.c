// SPDX-License-Identifier: Apache-2.0
// The 9P handlers of every session: attach, walk, open, read, write, attributes. What is below root/NAME goes on to guest_fs.c.
#include "hostd/tree/serve.h"

#include "9p/seek.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/lifecycle/net.h"
#include "hostd/lifecycle/tenant.h"
#include "hostd/noded_client.h"
#include "hostd/snapshot/account.h"
#include "hostd/snapshot/changes.h"
#include "hostd/tree/ports.h"
#include "hostd/tree/tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WRITE_MAX 65536u /* of a control file */

static bool is_guest(const struct p9_request *r)
{
    const struct tree_fid *f = fid_of(r->fid);
    return f && node_is_served(&f->node);
}

/* ---- fids ---- */

void session_unref(struct session *s)
{
    if (--s->refs == 0)
        free(s);
}

static struct tree_fid *tree_fid_new(struct session *session, struct caller *c)
{
    struct tree_fid *f = calloc(1, sizeof *f);
    if (!f)
        abort();
    f->session = session;
    session->refs++;
    f->caller = caller_ref(c);
    return f;
}

static void open_free(struct open_file *o)
{
    if (!o)
        return;
    free(o->text.p);
    free(o->written.p);
    changes_unref(o->changes);
    ports_close(o->port);
    if (o->fd >= 0)
        close(o->fd);
    free(o);
}

/* What was copied into and not committed goes. A snapshot was taken by its mkdir and stays. */
static void copy_closed(struct tree_fid *f)
{
    struct err e = {0};
    if (f->node.sandbox && !f->node.snapshot)
        sandbox_copy_release(f->node.sandbox);
    if (!f->node.template || !f->node.template->copying)
        return;
    f->node.template->copying = false;
    template_destroy(f->node.template, &e);
}

/* An accumulating attribute that was truncated and never written is emptied; the last close of stdin is its end. */
static void on_close(struct tree_fid *f)
{
    const struct attr *a = attr_of(&f->node);
    struct err e = {0};
    if (f->node.kind == NODE_COPY && f->open)
        copy_closed(f);
    if (f->node.snapshot && f->open && f->open->fd >= 0)
        f->node.snapshot->readers--;
    if (!a || !f->open || node_gone(&f->node))
        return;
    if (f->node.job && !strcmp(a->name, "stdin") && --f->node.job->stdin_opens == 0)
        job_stdin_eof(f->node.job);
    if (!(a->flags & ATTR_ACCUMULATE) || f->open->wrote || !(f->open->flags & P9_TRUNC))
        return;
    if (f->node.credential)
        credentials_emptied(f);
    else if (f->node.job)
        job_set(f->node.job, a->name, "", &e);
    else if (!strcmp(a->name, "labels") && (f->caller->uid == 0 || !strstr(f->node.sandbox->row.labels, "admin."))) {
        f->node.sandbox->row.labels[0] = 0;
        sandbox_save(f->node.sandbox, &e);
        net_kick(f->session->space);
    } else if (!strcmp(a->name, "egress") && !f->node.sandbox) {
        if (f->caller->may_create)
            tenant_set_egress(f->session->space, f->caller->uid, "", &e);
        net_kick(f->session->space);
    } else if (!strcmp(a->name, "egress")) {
        f->node.sandbox->row.egress[0] = 0;
        sandbox_save(f->node.sandbox, &e);
        net_kick(f->session->space);
    } else if (!strcmp(a->name, "idle")) {
        f->node.sandbox->row.idle[0] = 0;
        sandbox_save(f->node.sandbox, &e);
    }
}

static void tree_fid_free(void *user, struct p9_fid *fid)
{
    struct tree_fid *f = fid->aux;
    (void)user;
    on_close(f);
    guest_fid_release(f);
    open_free(f->open);
    node_clear(&f->node);
    caller_unref(f->caller);
    session_unref(f->session);
    free(f);
}

static void on_attach(struct p9_request *r)
{
    struct session *s = r->user;
    uint32_t uid = r->t->Tattach.n_uname;
    if (uid == P9_NONUNAME)
        uid = s->peer_uid;
    if (uid != s->peer_uid && !s->may_speak_for_others) {
        p9_fail(r, EPERM);
        return;
    }
    if (r->t->Tattach.aname.len && !p9_str_eq(r->t->Tattach.aname, "/")) {
        p9_fail(r, ENOENT);
        return;
    }
    struct caller *c = caller_create(s->space, uid);
    if (!c) {
        p9_fail(r, ENOMEM);
        return;
    }
    struct tree_fid *f = tree_fid_new(s, c);
    caller_unref(c);
    f->node.kind = NODE_ROOT;
    r->fid->aux = f;
    struct p9_msg m = {0};
    m.Rattach.qid = node_qid(s->space, &f->node);
    p9_reply(r, &m);
}

/* ---- walk ---- */

/* Installs the node that was walked to, in the new fid or in place of the old one. */
static void install(struct p9_request *r, struct node *n)
{
    struct tree_fid *old = fid_of(r->fid), *f = tree_fid_new(old->session, old->caller);
    f->node = *n;
    f->guest.root = node_is_served(n);
    if (r->newfid == r->fid) {
        struct p9_fid replaced = {.aux = old};
        tree_fid_free(r->user, &replaced);
    }
    r->newfid->aux = f;
}

void tree_install_guest(struct p9_request *r, const struct node *n, const struct guest_fid *g)
{
    struct node copy;
    node_copy(&copy, n);
    install(r, &copy);
    fid_of(r->newfid)->guest = *g;
}

void tree_install_value(struct p9_request *r, const struct node *n, struct p9_str value)
{
    struct node copy;
    struct p9_msg m = {0};
    node_copy(&copy, n);
    install(r, &copy);
    struct tree_fid *f = fid_of(r->newfid);
    f->guest.root = false;
    f->open = calloc(1, sizeof *f->open);
    if (!f->open)
        abort();
    f->open->fd = -1;
    text_add(&f->open->text, "%.*s", (int)value.len, value.s);
    m.Rxattrwalk.size = f->open->text.len;
    p9_reply(r, &m);
}

static void on_walk(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    const struct p9_names *names = &r->t->Twalk.names;
    struct p9_msg m = {0};
    struct node at;
    char name[P9_NAME_MAX + 1];
    if (node_is_served(&f->node) && (!f->guest.root || (names->n && !p9_str_eq(names->v[0], "..")))) {
        guest_fs_walk(r);
        return;
    }
    node_copy(&at, &f->node);
    for (uint16_t i = 0; i < names->n; i++) {
        struct node next;
        if (node_is_served(&at) && !p9_str_eq(names->v[i], "..")) {
            node_clear(&at);
            guest_fs_walk(r);
            return;
        }
        snprintf(name, sizeof name, "%.*s", (int)(names->v[i].len < P9_NAME_MAX ? names->v[i].len : P9_NAME_MAX), names->v[i].s);
        int rc = names->v[i].len > P9_NAME_MAX ? -ENAMETOOLONG : node_lookup(space_of(r), f->caller, &at, name, &next);
        if (rc < 0) {
            node_clear(&at);
            if (i == 0)
                p9_fail(r, -rc); /* a look-up that finds nothing is no failure to remember */
            else
                p9_reply(r, &m);
            return;
        }
        node_clear(&at);
        at = next;
        m.Rwalk.qids.v[m.Rwalk.qids.n++] = node_qid(space_of(r), &at);
    }
    install(r, &at);
    p9_reply(r, &m);
}

/* ---- open ---- */

static bool may_open(const struct tree_fid *f, uint32_t flags)
{
    uint32_t uid, gid, mode, access = flags & P9_ACCMODE;
    if (f->node.kind == NODE_COPY)
        return access == P9_WRONLY;
    node_rights(&f->node, &uid, &gid, &mode);
    if (node_is_dir(&f->node))
        return access == P9_RDONLY;
    /* who walked here may read; modes say which attributes can be read or written at all, root like everyone */
    return (access == P9_WRONLY || mode & 0400) && (access == P9_RDONLY || mode & 0200);
}

void tree_reply_open(struct p9_request *r)
{
    struct p9_msg m = {0};
    m.Rlopen.qid = node_qid(space_of(r), &fid_of(r->fid)->node);
    p9_reply(r, &m);
}

static void template_copy_hold(struct template *t)
{
    t->copying = true;
    t->row.state = ARTIFACT_CREATING; /* who wants to use it waits */
}

static void open_copy(struct p9_request *r, struct tree_fid *f)
{
    struct err e = {0};
    int rc = 0;
    if (!caller_owns(f->caller, f->node.sandbox ? f->node.sandbox->row.owner : f->node.template ? f->node.template->row.owner : 0))
        rc = err_set(&e, EACCES, "only its maker copies into it");
    else if (f->node.template && (f->node.template->copying || f->node.template->busy || f->node.template->row.state == ARTIFACT_READY))
        rc = err_set(&e, EBUSY, "template '%s' is in use or complete: a copy goes into a new one", f->node.template->row.name);
    else if (f->node.template)
        template_copy_hold(f->node.template);
    else if (!f->node.snapshot)
        rc = sandbox_copy_hold(f->node.sandbox, &e);
    if (rc < 0) {
        open_free(f->open);
        f->open = NULL;
        fail(r, f, rc, &e);
    } else {
        tree_reply_open(r);
    }
}

struct stats_wait {
    struct pending *pending;
    struct sandbox *sandbox;
};

static void stats_open(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    attr_of(&f->node)->read(f, &f->open->text);
    tree_reply_open(r);
}

static void stats_came(void *user, const struct noded_reply *rep, int fd, bool repeated)
{
    struct wait_list *l = user;
    (void)fd;
    (void)repeated;
    struct sandbox *sb = hmap_entry(l, struct sandbox, stats_waiters);
    if (rep->error == 0)
        sb->stats = (struct sandbox_stats){rep->stats.cpu_nsec, rep->stats.rss_bytes};
    wait_done_all(l, 0, NULL);
    sandbox_unref(sb);
}

/* stats are asked of libvirt at each open; the answer is a millisecond away. */
static void open_stats(struct p9_request *r, struct tree_fid *f)
{
    struct sandbox *sb = f->node.sandbox;
    struct noded_request req = {.op = NODED_VM_STATS, .kind = NODED_SANDBOX, .id = (uint64_t)sb->row.object};
    bool asked = sb->stats_waiters.first != NULL;
    wait_add(&sb->stats_waiters, &pending_new(r, stats_open)->w);
    if (asked)
        return;
    sandbox_ref(sb);
    noded_send(sb->space->noded, &req, stats_came, &sb->stats_waiters);
}

static void on_lopen(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    const struct attr *a = attr_of(&f->node);
    if (is_guest(r)) {
        guest_fs_lopen(r);
        return;
    }
    if (node_gone(&f->node) || !node_visible(&f->node, f->caller)) {
        p9_fail(r, ESTALE);
        return;
    }
    if (!may_open(f, r->t->Tlopen.flags)) {
        fail_errno(r, f, EACCES, node_is_dir(&f->node) ? "a directory opens for reading only" : "this file cannot be opened that way: see help/");
        return;
    }
    open_free(f->open);
    f->open = calloc(1, sizeof *f->open);
    if (!f->open)
        abort();
    f->open->fd = -1;
    f->open->flags = r->t->Tlopen.flags;
    f->open->cursor = events_last(space_of(r)->events);
    if (node_is_dir(&f->node)) {
        open_dir(r, f);
    } else if (f->node.kind == NODE_COPY) {
        open_copy(r, f);
        return;
    } else if (f->node.kind == NODE_PORT) {
        ports_open(r, f);
        return;
    } else if (a && a->flags & ATTR_RAW) {
        raw_open(r, f);
        return;
    } else if (f->node.kind == NODE_CREDENTIAL_FILE && !strcmp(a->name, "log")) {
        credentials_open_log(r, f);
        return;
    } else if (a && f->node.kind == NODE_SANDBOX_FILE && !strcmp(a->name, "stats") && f->node.sandbox->guest) {
        open_stats(r, f);
        return;
    } else if (f->node.kind == NODE_HELP_FILE) {
        char buf[160];
        const char *name;
        text_add(&f->open->text, "%s\n", help_text(f->node.index, &name, buf, sizeof buf));
    } else if (a && a->read) {
        a->read(f, &f->open->text);
    }
    if (f->node.job && a && !strcmp(a->name, "stdin"))
        f->node.job->stdin_opens++;
    if (a && a->flags & ATTR_ACCUMULATE && f->open->flags & P9_APPEND && f->open->text.len)
        text_add(&f->open->written, "%s", f->open->text.p);
    tree_reply_open(r);
}

/* ---- read and write ---- */

static void on_read(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct p9_msg m = {0};
    if (is_guest(r)) {
        guest_fs_pass(r);
        return;
    }
    const struct attr *a = attr_of(&f->node);
    if (!f->open || node_is_dir(&f->node) || (f->open->flags & P9_ACCMODE) == P9_WRONLY) {
        p9_fail(r, f->open && node_is_dir(&f->node) ? EISDIR : EBADF);
    } else if (f->open->port) {
        ports_read(r, f);
    } else if (a && a->flags & ATTR_STREAM) {
        stream_read(r, f);
    } else if (a && a->flags & ATTR_RAW && f->open->fd >= 0) {
        raw_read(r, f);
    } else {
        const struct text *t = &f->open->text;
        uint64_t at = r->t->Tread.offset < t->len ? r->t->Tread.offset : t->len;
        m.Rread.data.p = t->p ? t->p + at : "";
        m.Rread.data.len = (uint32_t)(t->len - at < r->t->Tread.count ? t->len - at : r->t->Tread.count);
        p9_reply(r, &m);
    }
}

static void commit_template(struct p9_request *r, struct tree_fid *f)
{
    struct template *t = f->node.template;
    if (t->copied.kind == REF_NONE) {
        fail_errno(r, f, EINVAL, "the copy brought no head");
        return;
    }
    t->copying = false;
    template_load(t, &t->copied, &pending_new(r, NULL)->w);
}

static void write_copy(struct p9_request *r, struct tree_fid *f, const char *value)
{
    if (strcmp(value, "commit") != 0)
        fail_errno(r, f, EINVAL, "#copy takes `commit`");
    else if (f->node.template)
        commit_template(r, f);
    else if (!f->node.snapshot)
        sandbox_copy_commit(f->node.sandbox, &pending_new(r, NULL)->w);
    else if (f->node.snapshot->row.state == ARTIFACT_CREATING)
        wait_add(&f->node.snapshot->ready, &pending_new(r, NULL)->w);
    else
        reply_write(r);
}

static void on_write(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    const struct p9_data *d = &r->t->Twrite.data;
    if (is_guest(r)) {
        guest_fs_pass(r);
        return;
    }
    const struct attr *a = attr_of(&f->node);
    if (!f->open || (f->open->flags & P9_ACCMODE) == P9_RDONLY) {
        p9_fail(r, EBADF);
        return;
    }
    if (node_gone(&f->node)) {
        p9_fail(r, ESTALE);
        return;
    }
    if (f->open->port) {
        ports_write(r, f);
        return;
    }
    if (a && a->flags & ATTR_RAW) {
        raw_write(r, f);
        return;
    }
    bool is_stdin = f->node.job && a && !strcmp(a->name, "stdin");
    if (!is_stdin && (d->len > WRITE_MAX || f->open->written.len + d->len > WRITE_MAX)) {
        fail_errno(r, f, E2BIG, "a write of more than 64 KiB");
        return;
    }
    if (is_stdin) { /* bytes as they are */
        a->write(r, f, NULL, 0);
        return;
    }
    struct text value = {0};
    f->open->wrote = true;
    if (a && a->flags & ATTR_ACCUMULATE) {
        text_add(&f->open->written, "%.*s", (int)d->len, (const char *)d->p);
        text_add(&value, "%s", f->open->written.p);
    } else {
        text_add(&value, "%.*s", (int)d->len, (const char *)d->p);
    }
    bool has_nul = memchr(d->p, 0, d->len) != NULL && !(f->node.job && a && !strcmp(a->name, "cmd"));
    char *trimmed = a && a->flags & ATTR_ACCUMULATE ? value.p : str_trim(value.p);
    if (has_nul)
        fail_errno(r, f, EINVAL, "a value with a NUL byte");
    else if (f->node.kind == NODE_COPY)
        write_copy(r, f, trimmed);
    else if (a && a->write)
        a->write(r, f, trimmed, strlen(trimmed));
    else
        p9_fail(r, EBADF);
    free(value.p);
}

/* ---- attributes ---- */

static void fill_times(struct p9_msg *m, const struct node *n)
{
    int64_t t = n->job        ? n->job->row.created
                : n->snapshot ? n->snapshot->row.created
                : n->template ? n->template->row.created
                : n->sandbox  ? n->sandbox->row.created
                              : 0;
    const struct attr *a = attr_of(n);
    if (n->kind == NODE_SANDBOX_FILE && a && !strcmp(a->name, "state"))
        t = n->sandbox->row.changed;
    m->Rgetattr.mtime_sec = m->Rgetattr.ctime_sec = m->Rgetattr.atime_sec = (uint64_t)(t / 1000000000);
    m->Rgetattr.mtime_nsec = m->Rgetattr.ctime_nsec = m->Rgetattr.atime_nsec = (uint64_t)(t % 1000000000);
}

/* Text attributes have the size that this open reads, or that an open now would. */
static uint64_t text_size(struct tree_fid *f, const struct attr *a)
{
    char buf[160];
    const char *name;
    if (f->open)
        return f->open->text.len;
    if (f->node.kind == NODE_HELP_FILE)
        return strlen(help_text(f->node.index, &name, buf, sizeof buf)) + 1;
    if (!a || !a->read)
        return 0;
    struct text t = {0};
    a->read(f, &t);
    free(t.p);
    return t.len;
}

static uint64_t object_id(const struct node *n)
{
    switch (n->kind) {
    case NODE_TEMPLATE: return (uint64_t)n->template->row.id;
    case NODE_SANDBOX:
    case NODE_GUEST:
    case NODE_PORTS_OF:
    case NODE_PROC: return (uint64_t)n->sandbox->row.id;
    case NODE_SNAPSHOTS_OF: return n->sandbox ? (uint64_t)n->sandbox->row.id : n->orphan;
    case NODE_SNAPSHOT: return (uint64_t)n->snapshot->row.id;
    default: return 0;
    }
}

static void on_getattr(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct p9_msg m = {0};
    if (is_guest(r) && !f->guest.root) {
        guest_fs_pass(r);
        return;
    }
    if (node_gone(&f->node) && !f->open) {
        p9_fail(r, ESTALE);
        return;
    }
    const struct attr *a = attr_of(&f->node);
    bool dir = node_is_dir(&f->node);
    uint32_t mode;
    node_rights(&f->node, &m.Rgetattr.uid, &m.Rgetattr.gid, &mode);
    m.Rgetattr.valid = P9_GETATTR_BASIC | 0x1000 /* gen */;
    m.Rgetattr.qid = node_qid(space_of(r), &f->node);
    m.Rgetattr.mode = mode | (dir ? S_IFDIR : S_IFREG);
    m.Rgetattr.nlink = dir ? 2 : 1;
    m.Rgetattr.blksize = 4096;
    m.Rgetattr.gen = object_id(&f->node);
    fill_times(&m, &f->node);
    struct stat st;
    if (a && a->flags & ATTR_RAW && f->open && fstat(f->open->fd, &st) == 0) {
        m.Rgetattr.size = (uint64_t)st.st_size;
        m.Rgetattr.blocks = (uint64_t)st.st_blocks;
    } else if (a && a->flags & ATTR_RAW && f->node.snapshot) {
        bool memory = !strcmp(a->name, "ram.raw");
        m.Rgetattr.size = (uint64_t)(memory ? f->node.snapshot->row.memory : f->node.snapshot->row.size);
        m.Rgetattr.blocks = account_held(f->node.snapshot, memory) / 512;
    } else if (!dir) {
        m.Rgetattr.size = text_size(f, a);
        m.Rgetattr.blocks = (m.Rgetattr.size + 511) / 512;
    }
    p9_reply(r, &m);
}

/* What a sandbox's rights are, its snapshots' are. */
static void snapshots_follow(struct sandbox *sb)
{
    for (struct hmap_node *n = NULL; (n = hmap_iterate(&sb->space->snapshots, n));) {
        struct snapshot *sn = hmap_entry(n, struct snapshot, by_id);
        if (sn->row.sandbox != sb->row.id)
            continue;
        sn->row.mode = sb->row.mode;
        sn->row.gid = sb->row.gid;
        db_save(sb->space->db, DB_SNAPSHOTS, &sn->row, NULL);
    }
}

/* chmod, chown and chgrp of sandboxes/NAME govern all of its trees. */
static int set_rights(struct tree_fid *f, const struct p9_Tsetattr *t, struct err *e)
{
    struct sandbox *sb = f->node.sandbox;
    if (!caller_owns(f->caller, sb->row.owner))
        return err_set(e, EPERM, "only the owner changes who may use it");
    if (!sandbox_is_here(sb))
        return cluster_refuse(sb, e);
    if (t->valid & P9_SETATTR_UID && (int64_t)t->uid != sb->row.owner)
        return err_set(e, EPERM, "a sandbox keeps its owner");
    if (t->valid & P9_SETATTR_MODE)
        sb->row.mode = 0700 | (t->mode & 0070);
    if (t->valid & P9_SETATTR_GID) {
        if (!caller_may_read(f->caller, -1, t->gid, 0050))
            return err_set(e, EPERM, "you are not in that group");
        sb->row.gid = t->gid;
    }
    snapshots_follow(sb);
    return sandbox_save(sb, e);
}

static void on_setattr(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    const struct p9_Tsetattr *t = &r->t->Tsetattr;
    const struct attr *a = attr_of(&f->node);
    struct err e = {0};
    if (is_guest(r) && !f->guest.root) {
        guest_fs_pass(r);
        return;
    }
    if (a && a->flags & ATTR_RAW && t->valid & P9_SETATTR_SIZE) {
        raw_truncate(r, f, t->size);
        return;
    }
    if (f->open && f->open->port && t->valid & P9_SETATTR_SIZE) {
        ports_shut(r, f);
        return;
    }
    int rc = 0;
    if (f->node.kind == NODE_SANDBOX && t->valid & (P9_SETATTR_MODE | P9_SETATTR_UID | P9_SETATTR_GID))
        rc = set_rights(f, t, &e);
    else if (!f->node.sandbox && !f->node.template && !f->node.snapshot && t->valid & ~(uint32_t)P9_SETATTR_SIZE)
        rc = err_set(&e, EPERM, "this belongs to the platform");
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_empty(r);
}

static void on_statfs(struct p9_request *r)
{
    struct space *s = space_of(r);
    struct p9_msg m = {0};
    struct err e = {0};
    if (is_guest(r) && !fid_of(r->fid)->guest.root) {
        guest_fs_pass(r);
        return;
    }
    admit_space(s, &e);          /* refreshes the figures */
    m.Rstatfs.type = 0x01021997; /* V9FS_MAGIC */
    m.Rstatfs.bsize = 4096;
    m.Rstatfs.blocks = s->pool_size / 4096;
    m.Rstatfs.bfree = m.Rstatfs.bavail = s->pool_free / 4096;
    m.Rstatfs.files = s->sandboxes.count;
    m.Rstatfs.namelen = P9_NAME_MAX;
    p9_reply(r, &m);
}

/* ---- what control trees have little of ---- */

static void on_lcreate(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct node existing;
    char name[P9_NAME_MAX + 1];
    if (is_guest(r)) {
        guest_fs_lcreate(r);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)r->t->Tlcreate.name.len, r->t->Tlcreate.name.s);
    if (node_lookup(space_of(r), f->caller, &f->node, name, &existing) == 0) {
        node_clear(&existing);
        p9_fail(r, EEXIST);
        return;
    }
    fail_errno(r, f, EPERM, "files cannot be made here: mkdir makes things, and each comes with its files");
}

#define GUEST_OR(handler_name, guest_handler, code)                                                                                                  \
    static void handler_name(struct p9_request *r)                                                                                                   \
    {                                                                                                                                                \
        if (is_guest(r))                                                                                                                             \
            guest_handler(r);                                                                                                                        \
        else                                                                                                                                         \
            p9_fail(r, code);                                                                                                                        \
    }
GUEST_OR(on_symlink, guest_fs_pass, EPERM)
GUEST_OR(on_link, guest_fs_two, EPERM)
GUEST_OR(on_mknod, guest_fs_pass, EPERM)
GUEST_OR(on_readlink, guest_fs_pass, EINVAL)
GUEST_OR(on_xattrcreate, guest_fs_pass, EOPNOTSUPP)

/* Control files have no attributes but the questions for the holes of an open image. */
static void on_xattrwalk(struct p9_request *r)
{
    int whence;
    uint64_t offset;
    struct tree_fid *f = fid_of(r->fid);
    if (is_guest(r))
        guest_fs_xattrwalk(r);
    else if (f->open && f->open->fd >= 0 && p9_seek_parse(r->t->Txattrwalk.name, &whence, &offset))
        raw_seek(r, f, whence, offset);
    else
        p9_fail(r, EOPNOTSUPP);
}

static void on_fsync(struct p9_request *r)
{
    if (is_guest(r))
        guest_fs_pass(r);
    else
        reply_empty(r);
}

static void on_lock(struct p9_request *r)
{
    struct p9_msg m = {0};
    if (is_guest(r)) {
        guest_fs_pass(r);
        return;
    }
    m.Rlock.status = P9_LOCK_SUCCESS; /* control files are whole per message: nothing to protect */
    p9_reply(r, &m);
}

static void on_getlock(struct p9_request *r)
{
    struct p9_msg m = {0};
    if (is_guest(r)) {
        guest_fs_pass(r);
        return;
    }
    m.Rgetlock.type = P9_LOCK_UNLCK;
    m.Rgetlock.start = r->t->Tgetlock.start;
    m.Rgetlock.length = r->t->Tgetlock.length;
    m.Rgetlock.client_id = r->t->Tgetlock.client_id;
    p9_reply(r, &m);
}

static void on_clunk(struct p9_request *r)
{
    const struct tree_fid *f = fid_of(r->fid);
    if (is_guest(r) && f->guest.sets_xattr)
        guest_fs_clunk(r);
    else
        reply_empty(r);
}

static void on_remove(struct p9_request *r)
{
    p9_fail(r, EOPNOTSUPP); /* clients of 9P2000.L use unlinkat */
}

static p9_handler *const handlers[P9_TYPE_MAX] = {
    [P9_Tattach] = on_attach,      [P9_Twalk] = on_walk,           [P9_Tlopen] = on_lopen,
    [P9_Tread] = on_read,          [P9_Twrite] = on_write,         [P9_Tgetattr] = on_getattr,
    [P9_Tsetattr] = on_setattr,    [P9_Tstatfs] = on_statfs,       [P9_Tlcreate] = on_lcreate,
    [P9_Tsymlink] = on_symlink,    [P9_Tlink] = on_link,           [P9_Tmknod] = on_mknod,
    [P9_Treadlink] = on_readlink,  [P9_Txattrwalk] = on_xattrwalk, [P9_Txattrcreate] = on_xattrcreate,
    [P9_Treaddir] = dir_readdir,   [P9_Tmkdir] = dir_mkdir,        [P9_Tunlinkat] = dir_unlinkat,
    [P9_Trenameat] = dir_renameat, [P9_Trename] = dir_rename,      [P9_Tfsync] = on_fsync,
    [P9_Tlock] = on_lock,          [P9_Tgetlock] = on_getlock,     [P9_Tremove] = on_remove,
    [P9_Tclunk] = on_clunk,
};

/* Does what is opened say, or depend on, in which state a sandbox is, before that was looked at? What a guest serves waits for more than that. */
static bool is_unknown(const struct p9_request *r, const struct tree_fid *f)
{
    return r->t->type == P9_Tlopen && f && f->node.sandbox && f->node.sandbox->unknown && !node_is_served(&f->node);
}

/* spacefs carries everyone's requests in one session: one user's waiting ones must not fill it. */
static void dispatch(struct p9_request *r)
{
    const struct tree_fid *f = fid_of(r->fid);
    if (f && f->caller->waiting >= CALLER_WAITING_MAX && r->t->type != P9_Tclunk)
        p9_fail(r, EAGAIN);
    else if (is_unknown(r, f))
        wait_add(&f->node.sandbox->known, &pending_new(r, dispatch)->w);
    else
        handlers[r->t->type](r);
}

#define D(type) [P9_##type] = dispatch
const struct p9_backend tree_backend = {
    .on = {D(Tattach),   D(Twalk),   D(Tlopen), D(Tread),     D(Twrite),     D(Tgetattr),     D(Tsetattr), D(Tstatfs), D(Tlcreate),
           D(Tsymlink),  D(Tlink),   D(Tmknod), D(Treadlink), D(Txattrwalk), D(Txattrcreate), D(Treaddir), D(Tmkdir),  D(Tunlinkat),
           D(Trenameat), D(Trename), D(Tfsync), D(Tlock),     D(Tgetlock),   D(Tremove),      D(Tclunk)},
    .fid_free = tree_fid_free,
};
#undef D
