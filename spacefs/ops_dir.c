// SPDX-License-Identifier: Apache-2.0
// Lookups, forgets and directory listings.
#include "spacefs/ops.h"

#include "9p/client.h"
#include "spacefs/attr.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/gesture.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Entries fetched at once: 10,000 names are about five round trips. */
#define READDIR_CHUNK (64u * 1024)

/* --- lookup --- */

int ops_walk_child(struct task *t, struct node *parent, uint32_t uid, const char *name, struct found *out)
{
    struct fs *fs = t->fs;
    struct fid_ref *ref;
    int rc = fid_get(t, parent, uid, &ref);
    if (rc < 0)
        return rc;
    /* What a known name leads to has its fid already, most likely: then this one is only to look, and its clunk need not wait. */
    const struct node *known = node_known(fs, parent, name);
    bool only_look = known && !out->keep && fid_is_valid(fs, known, uid);
    out->fid = fid_alloc(fs);
    out->generation = conn_generation(fs->conn);
    struct p9_msg walk = {.type = P9_Twalk}, getattr = {.type = P9_Tgetattr};
    walk.Twalk = (struct p9_Twalk){.fid = ref->fid, .newfid = out->fid, .names = {.n = 1, .v = {p9_str_of(name)}}};
    getattr.Tgetattr = (struct p9_Tgetattr){.fid = out->fid, .mask = P9_GETATTR_ALL};
    struct call *walking = call_start(t, &walk);
    struct call *attr = call_start(t, &getattr);
    if (only_look) /* goes with the same message */
        fid_clunk(fs, out->generation, out->fid);
    rc = call_wait(walking);
    if (rc == 0 && walking->reply.Rwalk.qids.n != 1)
        rc = -ENOENT;
    if (rc == 0)
        rc = call_wait(attr);
    if (rc == 0)
        out->attr = attr->reply.Rgetattr;
    call_end(attr);
    call_end(walking);
    rc = fid_finish(t, ref, rc);
    if (rc < 0 && !only_look)
        fid_clunk(fs, out->generation, out->fid);
    if (only_look)
        out->generation = 0;
    return rc;
}

struct node *ops_take_found(struct req *r, struct node *parent, const char *name, const struct found *f)
{
    struct fs *fs = r->task.fs;
    struct node *n = node_get(fs, parent, name, &f->attr.qid, f->attr.mode & S_IFMT, r->tid);
    if (!n) {
        fid_clunk(fs, f->generation, f->fid);
        return NULL;
    }
    attr_seen(n, &f->attr);
    fid_adopt(fs, n, r->uid, f->fid, f->generation);
    return n;
}

static void reply_found(struct req *r, struct node *parent, const char *name, const struct found *f)
{
    struct fs *fs = r->task.fs;
    struct node *n = ops_take_found(r, parent, name, f);
    struct stat st;
    if (!n) {
        request_error(r, -ENOMEM);
        return;
    }
    attr_to_stat(&f->attr, &st);
    if (r->maker.tgid)
        gesture_made(r, n);
    fid_remember(fs, n, r->uid, &st);
    gesture_shown(r, n, &st);
    request_entry(r, n, &st);
    node_unref(fs, n);
}

void ops_reply_child(struct req *r, struct node *parent, const char *name)
{
    struct found f = {0};
    int rc;
    bool shrunk = false;
    do {
        rc = ops_walk_child(&r->task, parent, r->uid, name, &f);
        if (rc == -ENFILE && !shrunk) {
            shrunk = true;
            fid_shrink(r->task.fs);
            rc = ops_walk_child(&r->task, parent, r->uid, name, &f);
        }
    } while (task_again(&r->task, &rc));
    if (rc < 0)
        request_error(r, rc);
    else
        reply_found(r, parent, name, &f);
}

static void lookup(struct req *r)
{
    /* Names that begin with '#' are between spacefs and space-hostd. */
    if (r->name[0] == '#' && !node_holds_guest(r->node)) {
        request_error(r, -ENOENT);
        return;
    }
    if (!gesture_lookup(r))
        ops_reply_child(r, r->node, r->name);
}

static bool answer_from_memory(fuse_req_t fuse, struct node *parent, const char *name)
{
    struct fs *fs = fuse_req_userdata(fuse);
    const struct stat *st;
    struct node *n = fid_recall(fs, parent, name, fuse_req_ctx(fuse)->uid, &st);
    if (!n)
        return false;
    struct fuse_entry_param e = {.ino = node_ino(fs, n), .generation = 1, .attr = *st};
    n->lookups++;
    if (fuse_reply_entry(fuse, &e) == -ENOENT)
        node_forget(fs, n, 1);
    return true;
}

void ops_lookup(fuse_req_t fuse, fuse_ino_t parent, const char *name)
{
    struct node *dir = node_of(fuse_req_userdata(fuse), parent);
    if (!node_holds_guest(dir) && answer_from_memory(fuse, dir, name))
        return;
    struct req *r = request_create(fuse, parent);
    if (r && request_name(r, r->name, name))
        request_run(r, lookup);
}

void ops_forget(fuse_req_t fuse, fuse_ino_t ino, uint64_t count)
{
    struct fs *fs = fuse_req_userdata(fuse);
    node_forget(fs, node_of(fs, ino), count);
    fuse_reply_none(fuse);
}

void ops_forget_multi(fuse_req_t fuse, size_t count, struct fuse_forget_data *forgets)
{
    struct fs *fs = fuse_req_userdata(fuse);
    for (size_t i = 0; i < count; i++)
        node_forget(fs, node_of(fs, forgets[i].ino), forgets[i].nlookup);
    fuse_reply_none(fuse);
}

/* --- listings --- */

static void reply_opendir(struct req *r, struct opening *o)
{
    struct fs *fs = r->task.fs;
    struct handle *h = handle_create(fs, r->node, r->uid, r->flags, o);
    struct fuse_file_info fi = {.fh = (uintptr_t)h};
    if (!h) {
        fid_clunk(fs, o->fid.generation, o->fid.fid);
        request_error(r, -ENOMEM);
        return;
    }
    gesture_listed(r);
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    if (fuse_reply_open(fuse, &fi) == -ENOENT)
        handle_unref(fs, h);
}

static void opendir_(struct req *r)
{
    struct opening o;
    int rc;
    do
        rc = handle_open_node(&r->task, r->node, r->uid, P9_RDONLY | P9_DIRECTORY, 0, &o);
    while (task_again(&r->task, &rc));
    if (rc < 0)
        request_error(r, rc);
    else
        reply_opendir(r, &o);
}

void ops_opendir(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    r->flags = fi->flags;
    request_run(r, opendir_);
}

/* Fetches what follows `offset` into the handle. */
static int fetch_entries(struct task *t, struct handle *h, uint64_t offset)
{
    uint32_t fid, count = p9_client_iounit(conn_client(t->fs->conn));
    int rc = handle_own_fid(t, h, &fid);
    if (rc < 0)
        return rc;
    struct p9_msg m = {.type = P9_Treaddir}, reply;
    m.Treaddir = (struct p9_Treaddir){.fid = fid, .offset = offset, .count = count < READDIR_CHUNK ? count : READDIR_CHUNK};
    rc = call_run(t, &m, &reply);
    if (rc < 0)
        return rc;
    const struct p9_data *d = &reply.Rreaddir.data;
    char *entries = malloc(d->len + 1u);
    if (!entries)
        return -ENOMEM;
    memcpy(entries, d->p, d->len);
    free(h->entries);
    h->entries = entries;
    h->entries_len = d->len;
    h->entries_pos = 0;
    h->entries_offset = offset;
    return 0;
}

/* True for names that the kernel would take as the end of everything. */
static bool is_bad_name(const struct p9_str *name)
{
    return !name->len || name->len > P9_NAME_MAX || memchr(name->s, '/', name->len);
}

/* Appends the next entries of the handle's buffer; returns the bytes used. */
static size_t pack_entries(struct req *r, struct handle *h, char *buf, size_t size)
{
    size_t used = 0;
    while (h->entries_pos < h->entries_len) {
        struct p9_dirent d;
        size_t pos = h->entries_pos;
        char name[P9_NAME_MAX + 1];
        if (p9_dirent_unpack(h->entries, h->entries_len, &pos, &d) <= 0) {
            h->entries_pos = h->entries_len; /* malformed: nothing more can be told from it */
            break;
        }
        if (!is_bad_name(&d.name)) {
            struct stat st = {.st_ino = d.qid.path, .st_mode = (mode_t)DTTOIF(d.type)};
            memcpy(name, d.name.s, d.name.len);
            name[d.name.len] = '\0';
            size_t need = fuse_add_direntry(r->fuse, buf + used, size - used, name, &st, (off_t)d.offset);
            if (need > size - used)
                break;
            used += need;
        }
        h->entries_pos = pos;
        h->entries_offset = d.offset;
    }
    return used;
}

static void readdir_(struct req *r)
{
    struct handle *h = r->handle;
    int rc = 0;
    char *buf = r->owned = malloc(r->size);
    size_t used = 0;
    if (!buf) {
        request_error(r, -ENOMEM);
        return;
    }
    /* A rewound directory is read anew; a buffer of names that are all bad is no end. */
    uint64_t offset = (uint64_t)r->off;
    bool have = offset && h->entries_offset == offset && h->entries_pos < h->entries_len;
    while (rc == 0 && !used) {
        if (!have) {
            do
                rc = fetch_entries(&r->task, h, offset);
            while (task_again(&r->task, &rc));
            if (rc < 0 || !h->entries_len)
                break;
        }
        used = pack_entries(r, h, buf, r->size);
        if (!used && h->entries_pos < h->entries_len)
            break; /* a name larger than the kernel's buffer does not exist */
        have = false;
        if (h->entries_offset == offset)
            break;
        offset = h->entries_offset;
    }
    if (rc < 0) {
        /* One that was removed while it is open has no names any more, as in any file system. A guest's is stale when its machine began anew. */
        request_error(r, rc == -ESTALE && node_is_control(r->node) ? -ENOENT : rc);
        return;
    }
    fuse_req_t fuse = r->fuse;
    r->fuse = NULL;
    fuse_reply_buf(fuse, buf, used);
}

void ops_readdir(fuse_req_t fuse, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
    struct req *r = request_create(fuse, ino);
    if (!r)
        return;
    r->size = size;
    r->off = off;
    request_handle(r, fi);
    request_run(r, readdir_);
}

void ops_releasedir(fuse_req_t fuse, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fs *fs = fuse_req_userdata(fuse);
    struct handle *h = (struct handle *)(uintptr_t)fi->fh;
    (void)ino;
    handle_release(fs, h);
    handle_unref(fs, h);
    fuse_reply_err(fuse, 0);
}

static void fsyncdir(struct req *r)
{
    uint32_t fid;
    int rc;
    do {
        rc = handle_own_fid(&r->task, r->handle, &fid);
        struct p9_msg m = {.type = P9_Tfsync};
        m.Tfsync = (struct p9_Tfsync){.fid = fid, .datasync = (uint32_t)r->flags};
        if (rc == 0)
            rc = task_once(call_run(&r->task, &m, NULL));
    } while (task_again(&r->task, &rc));
    request_error(r, rc);
}

void ops_fsyncdir(fuse_req_t fuse, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    struct req *r;
    if (node_is_control(node_of(fuse_req_userdata(fuse), ino))) {
        fuse_reply_err(fuse, 0);
        return;
    }
    r = request_create(fuse, ino);
    if (!r)
        return;
    request_handle(r, fi);
    r->flags = datasync;
    request_run(r, fsyncdir);
}
