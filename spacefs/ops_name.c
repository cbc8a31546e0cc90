// SPDX-License-Identifier: Apache-2.0
// Names: mkdir, mknod, symlink, link, unlink, rmdir, rename.
//
// None of these may be repeated after a lost connection (a second mkdir would say EEXIST about its own work): what was in flight
// ends with EIO, and whoever asks sees what became of it.
#include "spacefs/ops.h"

#include "spacefs/fid.h"
#include "spacefs/gesture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1u
#endif

/* The guest's files belong to the guest's root, whoever of the host makes them. */
static uint32_t gid_for(const struct req *r, const struct node *dir)
{
    return node_holds_guest(dir) ? 0 : r->gid;
}

/*
 * Sends `m`, which names a directory by *dir_field and maybe a second node by *other_field, as often as it was not sent.
 */
static int send_named(struct req *r, struct p9_msg *m, uint32_t *dir_field, uint32_t *other_field)
{
    int rc;
    do {
        struct fid_ref *dir, *other = NULL;
        rc = fid_get(&r->task, r->node, r->uid, &dir);
        if (rc == 0 && other_field)
            rc = fid_get(&r->task, r->node2, r->uid, &other);
        if (rc == 0) {
            *dir_field = dir->fid;
            if (other_field)
                *other_field = other->fid;
            r->task.fs->changes++;
            rc = task_once(call_run(&r->task, m, NULL));
            r->task.fs->changes++;
        }
        rc = fid_finish(&r->task, other, rc);
        rc = fid_finish(&r->task, dir, rc);
    } while (task_again(&r->task, &rc));
    return rc;
}

/* Replies with the entry that a successful operation made. */
static void reply_made(struct req *r, int rc)
{
    if (rc < 0)
        request_error(r, rc);
    else
        ops_reply_child(r, r->node, r->name);
}

static void mkdir_(struct req *r)
{
    struct p9_msg m = {.type = P9_Tmkdir};
    struct p9_Tmkdir *t = &m.Tmkdir;
    *t = (struct p9_Tmkdir){.name = p9_str_of(r->name), .mode = r->mode & 07777, .gid = gid_for(r, r->node)};
    gesture_maker(r);
    reply_made(r, send_named(r, &m, &t->dfid, NULL));
}

void ops_mkdir(fuse_req_t fuse, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct req *r = request_create(fuse, parent);
    if (!r || !request_name(r, r->name, name))
        return;
    r->mode = mode;
    request_run(r, mkdir_);
}

static void mknod_(struct req *r)
{
    struct p9_msg m = {.type = P9_Tmknod};
    struct p9_Tmknod *t = &m.Tmknod;
    *t =
        (struct p9_Tmknod){.name = p9_str_of(r->name), .mode = r->mode, .major = major(r->rdev), .minor = minor(r->rdev), .gid = gid_for(r, r->node)};
    reply_made(r, send_named(r, &m, &t->dfid, NULL));
}

void ops_mknod(fuse_req_t fuse, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
    struct req *r = request_create(fuse, parent);
    if (!r || !request_name(r, r->name, name))
        return;
    r->mode = mode;
    r->rdev = rdev;
    request_run(r, mknod_);
}

static void symlink_(struct req *r)
{
    struct p9_msg m = {.type = P9_Tsymlink};
    struct p9_Tsymlink *t = &m.Tsymlink;
    *t = (struct p9_Tsymlink){.name = p9_str_of(r->name), .target = p9_str_of(r->owned), .gid = gid_for(r, r->node)};
    reply_made(r, send_named(r, &m, &t->fid, NULL));
}

void ops_symlink(fuse_req_t fuse, const char *target, fuse_ino_t parent, const char *name)
{
    struct req *r = request_create(fuse, parent);
    if (!r || !request_name(r, r->name, name))
        return;
    r->owned = strdup(target);
    if (r->owned)
        request_run(r, symlink_);
    else
        request_abandon(r, -ENOMEM);
}

static void link_(struct req *r)
{
    struct p9_msg m = {.type = P9_Tlink};
    m.Tlink.name = p9_str_of(r->name);
    reply_made(r, send_named(r, &m, &m.Tlink.dfid, &m.Tlink.fid));
}

void ops_link(fuse_req_t fuse, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    struct req *r = request_create(fuse, parent);
    if (!r || !request_name(r, r->name, name))
        return;
    r->node2 = node_ref(node_of(r->task.fs, ino));
    request_run(r, link_);
}

static void unlink_(struct req *r)
{
    struct p9_msg m = {.type = P9_Tunlinkat};
    m.Tunlinkat.name = p9_str_of(r->name);
    m.Tunlinkat.flags = (uint32_t)r->flags;
    if (!r->flags && gesture_unlink(r))
        return;
    int rc = send_named(r, &m, &m.Tunlinkat.dirfid, NULL);
    request_error(r, rc);
}

void ops_unlink(fuse_req_t fuse, fuse_ino_t parent, const char *name)
{
    struct req *r = request_create(fuse, parent);
    if (r && request_name(r, r->name, name))
        request_run(r, unlink_);
}

void ops_rmdir(fuse_req_t fuse, fuse_ino_t parent, const char *name)
{
    struct req *r = request_create(fuse, parent);
    if (!r || !request_name(r, r->name, name))
        return;
    r->flags = P9_UNLINKAT_REMOVEDIR;
    request_run(r, unlink_);
}

/* 9P has no RENAME_NOREPLACE: looks first. The kernel has looked too, so only a guest can come in between. */
static int check_target_free(struct req *r)
{
    struct found f = {0};
    int rc;
    do
        rc = ops_walk_child(&r->task, r->node2, r->uid, r->name2, &f);
    while (task_again(&r->task, &rc));
    if (rc == 0)
        fid_clunk(r->task.fs, f.generation, f.fid);
    return rc == 0 ? -EEXIST : rc == -ENOENT ? 0 : rc;
}

static void rename_(struct req *r)
{
    struct p9_msg m = {.type = P9_Trenameat};
    m.Trenameat.oldname = p9_str_of(r->name);
    m.Trenameat.newname = p9_str_of(r->name2);
    int rc = r->flags ? check_target_free(r) : 0;
    if (rc == 0)
        rc = send_named(r, &m, &m.Trenameat.olddirfid, &m.Trenameat.newdirfid);
    if (rc == 0)
        node_moved(r->task.fs, r->node, r->name, r->node2, r->name2);
    request_error(r, rc);
}

void ops_rename(fuse_req_t fuse, fuse_ino_t parent, const char *name, fuse_ino_t to, const char *to_name, unsigned flags)
{
    struct req *r;
    if (flags & ~(unsigned)RENAME_NOREPLACE) {
        fuse_reply_err(fuse, EINVAL);
        return;
    }
    r = request_create(fuse, parent);
    if (!r || !request_name(r, r->name, name) || !request_name(r, r->name2, to_name))
        return;
    r->flags = (int)flags;
    r->node2 = node_ref(node_of(r->task.fs, to));
    request_run(r, rename_);
}
