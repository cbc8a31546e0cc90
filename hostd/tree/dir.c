// SPDX-License-Identifier: Apache-2.0
// Directories: listing, and making, removing and renaming what they hold.
#include "base/cleanup.h"
#include "base/str.h"
#include "hostd/cluster/cluster.h"
#include "hostd/tree/tree.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- listing ---- */

/* The whole listing is made at open, so that it is exact whatever happens meanwhile. Each entry: qid, type and name, as in Rreaddir; `offset` counts entries. */
struct lister {
    struct space *space;
    struct text *out;
    uint64_t count;
};

static void append(struct lister *l, const char *name, struct p9_qid qid)
{
    struct p9_dirent d = {.qid = qid, .offset = ++l->count, .type = qid.type == P9_QTDIR ? DT_DIR : DT_REG, .name = p9_str_of(name)};
    size_t room = strlen(name) + 32;
    l->out->p = realloc(l->out->p, l->out->len + room);
    if (!l->out->p)
        abort();
    p9_dirent_pack(l->out->p, l->out->len + room, &l->out->len, &d);
}

static void emit(void *user, const char *name, const struct node *n)
{
    struct lister *l = user;
    append(l, name, node_qid(l->space, n));
}

void open_dir(struct p9_request *r, struct tree_fid *f)
{
    struct lister l = {space_of(r), &f->open->text, 0};
    append(&l, ".", node_qid(space_of(r), &f->node));
    append(&l, "..", node_qid(space_of(r), &f->node));
    node_list(space_of(r), f->caller, &f->node, emit, &l);
}

void dir_readdir(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct p9_msg m = {0};
    struct p9_dirent d;
    size_t pos = 0, start = 0;
    if (node_is_served(&f->node)) {
        guest_fs_pass(r);
        return;
    }
    if (!f->open || !node_is_dir(&f->node)) {
        p9_fail(r, EBADF);
        return;
    }
    while (pos < f->open->text.len && p9_dirent_unpack(f->open->text.p, f->open->text.len, &pos, &d) == 1 && d.offset <= r->t->Treaddir.offset)
        start = pos;
    if (pos == start)
        pos = f->open->text.len; /* past the end */
    size_t end = start;
    for (pos = start;
         pos < f->open->text.len && p9_dirent_unpack(f->open->text.p, f->open->text.len, &pos, &d) == 1 && pos - start <= r->t->Treaddir.count;)
        end = pos;
    m.Rreaddir.data.p = f->open->text.p + start;
    m.Rreaddir.data.len = (uint32_t)(end - start);
    p9_reply(r, &m);
}

/* ---- making and removing ---- */

static char *name_of(struct p9_str s)
{
    return strndup(s.s, s.len);
}

static void reply_mkdir(struct p9_request *r, struct tree_fid *f, const struct node *made)
{
    struct p9_msg m = {0};
    m.Rmkdir.qid = node_qid(f->session->space, made);
    p9_reply(r, &m);
}

static void mkdir_sandbox(struct p9_request *r, struct tree_fid *f, const char *name)
{
    struct err e = {0};
    struct node made = {.kind = NODE_SANDBOX};
    int rc = sandbox_create(space_of(r), f->caller, name, &made.sandbox, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_mkdir(r, f, &made);
}

static void mkdir_template(struct p9_request *r, struct tree_fid *f, const char *name)
{
    struct err e = {0};
    struct node made = {.kind = NODE_TEMPLATE};
    int rc = template_create(space_of(r), f->caller, name, &made.template, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_mkdir(r, f, &made);
}

static bool may_change(struct p9_request *r, struct tree_fid *f)
{
    const struct sandbox *sb = f->node.sandbox;
    struct err e = {0};
    bool may = caller_may_write(f->caller, sb->row.owner, sb->row.gid, sb->row.mode);
    if (may && sandbox_is_here(sb))
        return true;
    if (may)
        fail(r, f, cluster_refuse(sb, &e), &e);
    else
        fail_errno(r, f, EACCES, "you may read this but not change it");
    return false;
}

static void mkdir_snapshot(struct p9_request *r, struct tree_fid *f, const char *name)
{
    struct err e = {0};
    struct node made = f->node;
    if (!f->node.sandbox) {
        fail_errno(r, f, EPERM, "the sandbox of these snapshots is gone");
        return;
    }
    if (!may_change(r, f))
        return;
    made.kind = NODE_SNAPSHOT;
    int rc = snapshot_create(f->node.sandbox, name, &made.snapshot, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_mkdir(r, f, &made);
}

static void mkdir_job(struct p9_request *r, struct tree_fid *f, const char *name)
{
    struct err e = {0};
    struct node made = f->node;
    if (!may_change(r, f))
        return;
    made.kind = NODE_JOB;
    int rc = job_create(f->node.sandbox, name, &made.job, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_mkdir(r, f, &made);
}

void dir_mkdir(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    if (node_is_served(&f->node)) {
        guest_fs_pass(r);
        return;
    }
    AUTO_FREE char *name = name_of(r->t->Tmkdir.name);
    if (!name)
        p9_fail(r, ENOMEM);
    else if (node_gone(&f->node))
        p9_fail(r, ENOENT);
    else if (f->node.kind == NODE_SANDBOXES)
        mkdir_sandbox(r, f, name);
    else if (f->node.kind == NODE_TEMPLATES)
        mkdir_template(r, f, name);
    else if (f->node.kind == NODE_SNAPSHOTS_OF)
        mkdir_snapshot(r, f, name);
    else if (f->node.kind == NODE_PROC)
        mkdir_job(r, f, name);
    else if (f->node.kind == NODE_SCOPE)
        credentials_mkdir(r, f, name);
    else
        fail_errno(r, f, EPERM, "directories are made in sandboxes/, templates/, snapshots/NAME/, proc/NAME/ and credentials/SCOPE/");
}

/* Of a machine that is not coming back. */
static void forget_node(struct p9_request *r, struct tree_fid *f, struct node_entry *entry)
{
    struct err e = {0};
    int rc = f->caller->uid ? err_set(&e, EACCES, "nodes are root's") : cluster_forget(space_of(r), entry, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_empty(r);
}

static void remove_node(struct p9_request *r, struct tree_fid *f, struct node *n)
{
    struct err e = {0};
    int rc = 0;
    if (n->kind == NODE_NODE) {
        forget_node(r, f, n->entry);
        return;
    }
    int64_t owner = n->template ? n->template->row.owner : n->snapshot ? n->snapshot->row.owner : n->sandbox->row.owner;
    bool ok = n->kind == NODE_JOB ? caller_may_write(f->caller, owner, n->sandbox->row.gid, n->sandbox->row.mode) : caller_owns(f->caller, owner);
    if (!ok)
        rc = err_set(&e, EACCES, "only its owner removes it");
    else if (n->kind == NODE_SANDBOX)
        rc = sandbox_destroy(n->sandbox, &e);
    else if (n->kind == NODE_TEMPLATE)
        rc = template_destroy(n->template, &e);
    else if (n->kind == NODE_SNAPSHOT && !snapshot_is_here(n->snapshot))
        rc = err_set(&e, EREMOTE, "snapshot '%s' belongs to node %s: remove it there", n->snapshot->row.name,
                     cluster_name(space_of(r), n->snapshot->row.node));
    else if (n->kind == NODE_SNAPSHOT && snapshot_is_pinned(n->snapshot))
        rc = err_set(&e, EBUSY, "sandbox '%s' is suspended to snapshot '%s': resume it, or remove the sandbox", n->snapshot->row.sandbox_name,
                     n->snapshot->row.name);
    else if (n->kind == NODE_SNAPSHOT)
        snapshot_destroy(n->snapshot);
    else
        job_destroy(n->job);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_empty(r);
}

void dir_unlinkat(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid);
    struct node n;
    if (node_is_served(&f->node)) {
        guest_fs_pass(r);
        return;
    }
    AUTO_FREE char *name = name_of(r->t->Tunlinkat.name);
    int rc = name ? node_lookup(space_of(r), f->caller, &f->node, name, &n) : -ENOMEM;
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    bool thing = n.kind == NODE_SANDBOX || n.kind == NODE_TEMPLATE || n.kind == NODE_SNAPSHOT || n.kind == NODE_JOB || n.kind == NODE_NODE;
    if (!node_is_dir(&n))
        p9_fail(r, r->t->Tunlinkat.flags & P9_UNLINKAT_REMOVEDIR ? ENOTDIR : EPERM); /* as in cgroupfs; `rm -r` is not how things end */
    else if (!(r->t->Tunlinkat.flags & P9_UNLINKAT_REMOVEDIR))
        p9_fail(r, EISDIR);
    else if (n.kind == NODE_CREDENTIAL)
        credentials_rmdir(r, f, n.credential);
    else if (!thing)
        fail_errno(r, f, EPERM, "this directory comes and goes with its sandbox: rmdir sandboxes/NAME");
    else
        remove_node(r, f, &n);
    node_clear(&n);
}

/* ---- renaming ---- */

static void rename_sandbox(struct p9_request *r, struct tree_fid *f, struct sandbox *sb, struct p9_str to)
{
    struct err e = {0};
    AUTO_FREE char *name = name_of(to);
    int rc = !name                                    ? -ENOMEM
             : !caller_owns(f->caller, sb->row.owner) ? err_set(&e, EACCES, "only its owner renames it")
                                                      : sandbox_rename(sb, name, &e);
    if (rc < 0)
        fail(r, f, rc, &e);
    else
        reply_empty(r);
}

void dir_renameat(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid), *to = fid_of(r->dirfid);
    struct node n;
    if (node_is_served(&f->node) && node_is_served(&to->node)) {
        guest_fs_two(r);
        return;
    }
    if (node_is_served(&f->node) || node_is_served(&to->node) || f->node.kind != to->node.kind) {
        p9_fail(r, EXDEV);
        return;
    }
    AUTO_FREE char *name = name_of(r->t->Trenameat.oldname);
    int rc = name ? node_lookup(space_of(r), f->caller, &f->node, name, &n) : -ENOMEM;
    if (rc < 0) {
        p9_fail(r, -rc);
        return;
    }
    if (n.kind != NODE_SANDBOX)
        fail_errno(r, f, EPERM, "only sandboxes/NAME is renamed; its other trees follow");
    else
        rename_sandbox(r, f, n.sandbox, r->t->Trenameat.newname);
    node_clear(&n);
}

void dir_rename(struct p9_request *r)
{
    struct tree_fid *f = fid_of(r->fid), *to = fid_of(r->dirfid);
    if (node_is_served(&f->node) && node_is_served(&to->node))
        guest_fs_two(r);
    else if (f->node.kind == NODE_SANDBOX && to->node.kind == NODE_SANDBOXES)
        rename_sandbox(r, f, f->node.sandbox, r->t->Trename.name);
    else
        fail_errno(r, f, EPERM, "only sandboxes/NAME is renamed; its other trees follow");
}
