// SPDX-License-Identifier: Apache-2.0
// Attributes: getattr, setattr, access, readlink, statfs.
#include "spacefs/ops.h"

#include "spacefs/attr.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/gesture.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

/* --- getattr --- */

/* Takes an open file of a guest, or directory, of the same user to work on, for it may have no name any more; `writes`: a writable one. */
static void prefer_open(struct req *r, bool writes)
{
    if (!node_is_guest(r->node) && r->node->format != S_IFDIR)
        return;
    for (struct handle *h = r->node->handles; h && !r->handle; h = h->next)
        if (h->uid == r->uid && (!writes || handle_writes(h)))
            r->handle = handle_ref(h);
}

/* The fid to ask about the request's file: an open file's own, else the node's. What prefer_open took may be closed at any wait. */
static int attr_fid(struct req *r, struct fid_ref **ref, uint32_t *fid)
{
    int rc;
    *ref = NULL;
    if (r->handle && !r->handle->released) {
        rc = handle_own_fid(&r->task, r->handle, fid);
        if (!r->handle->released)
            return rc;
    }
    rc = fid_get(&r->task, r->node, r->uid, ref);
    if (rc == 0)
        *fid = (*ref)->fid;
    return rc;
}

static int getattr_once(struct req *r, struct p9_Rgetattr *out)
{
    struct fid_ref *ref;
    struct p9_msg m = {.type = P9_Tgetattr}, reply;
    int rc = attr_fid(r, &ref, &m.Tgetattr.fid);
    m.Tgetattr.mask = P9_GETATTR_ALL;
    if (rc == 0)
        rc = call_run(&r->task, &m, &reply);
    if (rc == 0)
        *out = reply.Rgetattr;
    return fid_finish(&r->task, ref, rc);
}

static void reply_attr(struct req *r, const struct p9_Rgetattr *a)
{
    struct stat st;
    attr_seen(r->node, a);
    attr_to_stat(a, &st);
    gesture_shown(r, r->node, &st);
    request_attr(r, r->node, &st);
}

static void getattr(struct req *r)
{
    struct p9_Rgetattr a = {0};
    int rc;
    do
        rc = getattr_once(r, &a);
    while (task_again(&r->task, &rc));
    if (rc < 0)
        request_error(r, rc);
    else
        reply_attr(r, &a);
}

/* Attributes that need no question: a swallowed file's, and those that an opening fixed. */
static bool known_attr(struct fs *fs, struct node *n, const struct fuse_file_info *fi, struct stat *st)
{
    struct handle *h = fi && fi->fh ? (struct handle *)(uintptr_t)fi->fh : n->handles;
    (void)fs;
    if (n->kind == NODE_SWALLOWED) {
        attr_of_swallowed(n, st);
        return true;
    }
    if (!h || !h->attr_fixed)
        return false;
    *st = h->attr;
    return true;
}

void ops_getattr(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(fuse);
    struct stat st;
    if (known_attr(fs, node_of(fs, ino), fi, &st)) {
        fuse_reply_attr(fuse, &st, 0);
        return;
    }
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    prefer_open(r, false);
    request_run(r, getattr);
}

/* --- setattr --- */

static void fill_setattr(const struct req *r, struct p9_Tsetattr *s)
{
    static const struct {
        int fuse;
        uint32_t p9;
    } map[] = {
        {FUSE_SET_ATTR_MODE, P9_SETATTR_MODE},
        {FUSE_SET_ATTR_UID, P9_SETATTR_UID},
        {FUSE_SET_ATTR_GID, P9_SETATTR_GID},
        {FUSE_SET_ATTR_SIZE, P9_SETATTR_SIZE},
        {FUSE_SET_ATTR_ATIME, P9_SETATTR_ATIME | P9_SETATTR_ATIME_SET},
        {FUSE_SET_ATTR_MTIME, P9_SETATTR_MTIME | P9_SETATTR_MTIME_SET},
        {FUSE_SET_ATTR_ATIME_NOW, P9_SETATTR_ATIME},
        {FUSE_SET_ATTR_MTIME_NOW, P9_SETATTR_MTIME},
    };
    int to_set = r->to_set; /* "now" comes with the plain bit; it must win */
    if (to_set & FUSE_SET_ATTR_ATIME_NOW)
        to_set &= ~FUSE_SET_ATTR_ATIME;
    if (to_set & FUSE_SET_ATTR_MTIME_NOW)
        to_set &= ~FUSE_SET_ATTR_MTIME;
    for (size_t i = 0; i < sizeof map / sizeof *map; i++)
        if (to_set & map[i].fuse)
            s->valid |= map[i].p9;
    s->mode = r->attr.st_mode & 07777;
    s->uid = r->attr.st_uid;
    s->gid = r->attr.st_gid;
    s->size = (uint64_t)r->attr.st_size;
    s->atime_sec = (uint64_t)r->attr.st_atim.tv_sec;
    s->atime_nsec = (uint64_t)r->attr.st_atim.tv_nsec;
    s->mtime_sec = (uint64_t)r->attr.st_mtim.tv_sec;
    s->mtime_nsec = (uint64_t)r->attr.st_mtim.tv_nsec;
}

static int setattr_once(struct req *r)
{
    struct fid_ref *ref;
    struct p9_msg m = {.type = P9_Tsetattr};
    fill_setattr(r, &m.Tsetattr);
    int rc = attr_fid(r, &ref, &m.Tsetattr.fid);
    if (rc == 0 && m.Tsetattr.valid)
        rc = task_once(call_run(&r->task, &m, NULL));
    r->task.fs->changes++;
    return fid_finish(&r->task, ref, rc);
}

static void setattr(struct req *r)
{
    struct p9_Rgetattr a = {0};
    int rc;
    do
        rc = setattr_once(r);
    while (task_again(&r->task, &rc));
    while (rc == 0 && (rc = getattr_once(r, &a)) < 0 && task_again(&r->task, &rc))
        rc = 0;
    if (rc < 0)
        request_error(r, rc);
    else
        reply_attr(r, &a);
}

void ops_setattr(fuse_req_t fuse, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(fuse);
    struct node *n = node_of(fs, ino);
    struct stat st;
    if (n->kind == NODE_SWALLOWED) {
        attr_of_swallowed(n, &st);
        fuse_reply_attr(fuse, &st, 0);
        return;
    }
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    r->attr = *attr;
    r->to_set = gesture_copied(n) ? 0 : to_set; /* what cp -a carries over says nothing about a new object's attribute */
    prefer_open(r, (to_set & FUSE_SET_ATTR_SIZE) != 0);
    request_run(r, setattr);
}

/* --- access --- */

static bool has_group(fuse_req_t fuse, gid_t primary, gid_t gid)
{
    gid_t list[256];
    if (primary == gid)
        return true;
    int n = fuse_req_getgroups(fuse, 256, list);
    for (int i = 0; i < n && i < 256; i++)
        if (list[i] == gid)
            return true;
    return false;
}

/* What access(2) would say; space-hostd decides for itself when the time comes. */
static bool may(struct req *r, const struct stat *st)
{
    unsigned want = (unsigned)r->flags & 7u;
    unsigned bits = st->st_mode & 7u;
    if (r->uid == 0 || node_holds_guest(r->node)) /* an owner is root in the guest */
        return !(want & 1u) || S_ISDIR(st->st_mode) || (st->st_mode & 0111);
    if (st->st_uid == r->uid)
        bits = st->st_mode >> 6 & 7u;
    else if (has_group(r->fuse, r->gid, st->st_gid))
        bits = st->st_mode >> 3 & 7u;
    return (want & ~bits) == 0;
}

static void access_(struct req *r)
{
    struct p9_Rgetattr a = {0};
    struct stat st;
    int rc;
    do
        rc = getattr_once(r, &a);
    while (task_again(&r->task, &rc));
    attr_to_stat(&a, &st);
    request_error(r, rc < 0 ? rc : may(r, &st) ? 0 : -EACCES);
}

void ops_access(fuse_req_t fuse, fuse_ino_t ino, int mask)
{
    struct req *r;
    if (!(mask & 7) || node_of(fuse_req_userdata(fuse), ino)->kind == NODE_SWALLOWED) {
        fuse_reply_err(fuse, 0);
        return;
    }
    r = request_create(fuse, ino);
    if (!r)
        return;
    r->flags = mask;
    request_run(r, access_);
}

/* --- readlink, statfs --- */

/* One question about the request's node that may be repeated; the reply's strings are valid until the next wait. */
static int ask(struct req *r, struct p9_msg *m, uint32_t *fid_field, struct p9_msg *reply)
{
    int rc;
    do {
        struct fid_ref *ref;
        rc = fid_get(&r->task, r->node, r->uid, &ref);
        if (rc == 0) {
            *fid_field = ref->fid;
            rc = call_run(&r->task, m, reply);
        }
        rc = fid_finish(&r->task, ref, rc);
    } while (task_again(&r->task, &rc));
    return rc;
}

static void readlink_(struct req *r)
{
    struct p9_msg m = {.type = P9_Treadlink}, reply;
    int rc = ask(r, &m, &m.Treadlink.fid, &reply);
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    const struct p9_str *s = &reply.Rreadlink.target;
    r->owned = malloc(s->len + 1u);
    if (!r->owned || s->len >= 4096) {
        request_error(r, r->owned ? -ENAMETOOLONG : -ENOMEM);
        return;
    }
    memcpy(r->owned, s->s, s->len);
    r->owned[s->len] = '\0';
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    fuse_reply_readlink(fuse, r->owned);
}

void ops_readlink(fuse_req_t fuse, fuse_ino_t ino)
{
    struct req *r = request_create(fuse, ino);
    if (r)
        request_run(r, readlink_);
}

static void statfs_(struct req *r)
{
    struct p9_msg m = {.type = P9_Tstatfs}, reply;
    int rc = ask(r, &m, &m.Tstatfs.fid, &reply);
    if (rc < 0) {
        request_error(r, rc);
        return;
    }
    const struct p9_Rstatfs *s = &reply.Rstatfs;
    struct statvfs v = {
        .f_bsize = s->bsize ? s->bsize : 4096,
        .f_frsize = s->bsize ? s->bsize : 4096,
        .f_blocks = s->blocks,
        .f_bfree = s->bfree,
        .f_bavail = s->bavail,
        .f_files = s->files,
        .f_ffree = s->ffree,
        .f_favail = s->ffree,
        .f_namemax = s->namelen ? s->namelen : P9_NAME_MAX,
    };
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    fuse_reply_statfs(fuse, &v);
}

void ops_statfs(fuse_req_t fuse, fuse_ino_t ino)
{
    struct req *r;
    struct node *n = node_of(fuse_req_userdata(fuse), ino);
    r = request_create(fuse, 0);
    if (!r)
        return;
    r->node = node_ref(n->kind == NODE_SWALLOWED ? n->parent : n);
    request_run(r, statfs_);
}
