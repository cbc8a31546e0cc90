// SPDX-License-Identifier: Apache-2.0
// Fids per (node, uid): see fid.h.
//
// Theory of operation. A fid_ref is a cache entry: losing it costs a walk, nothing else. A walk starts at the nearest ancestor whose fid for
// this uid is valid on this connection, else at a new attach, which is simply the fid of the top node. An object (a directory
// with an id) is walked to as #ID from its own parent, whatever its name is now; below it names are walked, and the qid at the
// end must be the node's. Two tasks may walk to the same node at once; the second to arrive clunks its own.
#include "spacefs/fid.h"

#include "9p/client.h"
#include "spacefs/conn.h"
#include "spacefs/task.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fid_memory {
    struct stat st;
    uint64_t until; /* uv_now */
    uint64_t changes;
};

#define REWALKS_MAX 3u    /* a rename has two directories */
#define SHRINK_SCAN 4096u /* pinned entries that one search for a victim passes by */

static uint64_t ref_key(const struct node *n, uint32_t uid)
{
    return ((uint64_t)(uintptr_t)n ^ (uint64_t)uid << 40) * 0x9e3779b97f4a7c15ull;
}

uint32_t fid_alloc(struct fs *fs)
{
    return p9_client_fid_alloc(conn_client(fs->conn));
}

void fid_clunk(struct fs *fs, uint32_t generation, uint32_t fid)
{
    p9_client_clunk(conn_client(fs->conn), generation, fid);
}

static struct fid_ref *find(struct fs *fs, const struct node *n, uint32_t uid)
{
    for (struct hmap_node *h = hmap_find(&fs->fids, ref_key(n, uid)); h; h = hmap_find_next(h)) {
        struct fid_ref *r = hmap_entry(h, struct fid_ref, by_node);
        if (r->node == n && r->uid == uid)
            return r;
    }
    return NULL;
}

static bool is_valid(struct fs *fs, const struct fid_ref *r)
{
    return r && conn_is_up(fs->conn) && r->generation == conn_generation(fs->conn);
}

bool fid_is_valid(struct fs *fs, const struct node *n, uint32_t uid)
{
    return is_valid(fs, find(fs, n, uid));
}

static void unlink_recent(struct fs *fs, struct fid_ref *r)
{
    *(r->newer ? &r->newer->older : &fs->fid_new) = r->older;
    *(r->older ? &r->older->newer : &fs->fid_old) = r->newer;
}

static void link_recent(struct fs *fs, struct fid_ref *r)
{
    r->newer = NULL;
    r->older = fs->fid_new;
    *(fs->fid_new ? &fs->fid_new->newer : &fs->fid_old) = r;
    fs->fid_new = r;
}

static void ref_free(struct fs *fs, struct fid_ref *r)
{
    struct fid_ref **p = &r->node->fids;
    while (*p != r)
        p = &(*p)->sibling;
    *p = r->sibling;
    unlink_recent(fs, r);
    hmap_remove(&fs->fids, &r->by_node);
    fid_clunk(fs, r->generation, r->fid);
    free(r->memory);
    free(r);
}

static void shrink_to(struct fs *fs, size_t limit)
{
    unsigned passed = 0;
    for (struct fid_ref *r = fs->fid_old, *newer; r && fs->fids.count > limit && passed < SHRINK_SCAN; r = newer) {
        newer = r->newer;
        if (r->pins)
            passed++;
        else
            ref_free(fs, r);
    }
}

void fid_shrink(struct fs *fs)
{
    shrink_to(fs, fs->fids.count - fs->fids.count / 4);
}

void fid_adopt(struct fs *fs, struct node *n, uint32_t uid, uint32_t fid, uint32_t generation)
{
    struct fid_ref *r = find(fs, n, uid);
    if (is_valid(fs, r) || generation != conn_generation(fs->conn)) {
        fid_clunk(fs, generation, fid);
        return;
    }
    if (r) { /* of an earlier connection: its number is void */
        r->fid = fid;
        r->generation = generation;
        return;
    }
    r = calloc(1, sizeof *r);
    if (!r) {
        fid_clunk(fs, generation, fid);
        return;
    }
    *r = (struct fid_ref){.node = n, .uid = uid, .fid = fid, .generation = generation, .sibling = n->fids};
    n->fids = r;
    hmap_insert(&fs->fids, &r->by_node, ref_key(n, uid));
    link_recent(fs, r);
    r->pins++;
    shrink_to(fs, FID_MAX);
    r->pins--;
}

static bool is_object(const struct node *n)
{
    return n->kind == NODE_OBJECT || n->kind == NODE_SNAPSHOT;
}

void fid_remember(struct fs *fs, struct node *n, uint32_t uid, const struct stat *st)
{
    struct fid_ref *r = is_object(n) ? find(fs, n, uid) : NULL;
    if (!r || (!r->memory && !(r->memory = malloc(sizeof *r->memory))))
        return;
    *r->memory = (struct fid_memory){.st = *st, .until = uv_now(fs->loop) + FID_MEMORY_MSEC, .changes = fs->changes};
}

struct node *fid_recall(struct fs *fs, struct node *parent, const char *name, uint32_t uid, const struct stat **ret_st)
{
    for (struct node *n = node_known(fs, parent, name); n && is_object(n); n = node_known_next(n)) {
        const struct fid_ref *r = find(fs, n, uid);
        if (!is_valid(fs, r) || !r->memory || r->memory->changes != fs->changes || uv_now(fs->loop) >= r->memory->until)
            continue;
        *ret_st = &r->memory->st;
        return n;
    }
    return NULL;
}

struct fid_ref *fid_pin(struct fs *fs, struct node *n, uint32_t uid)
{
    struct fid_ref *r = find(fs, n, uid);
    if (r)
        r->pins++;
    return r;
}

void fid_put(struct fid_ref *r)
{
    if (r)
        r->pins--;
}

/* No fid of this user on the way down to `n`, from the guest's root on, is any good. */
static void void_way(struct fs *fs, struct node *n, uint32_t uid)
{
    for (; node_is_guest(n); n = n->parent) {
        struct fid_ref *r = find(fs, n, uid);
        if (!r)
            continue;
        fid_clunk(fs, r->generation, r->fid);
        r->generation = 0;
    }
}

int fid_finish(struct task *t, struct fid_ref *r, int rc)
{
    fid_put(r);
    if (rc == -ESTALE)
        t->fs->changes++; /* the kernel looks the path up again, and must not be told what is remembered */
    if (!r || rc != -ESTALE || !node_is_guest(r->node) || t->rewalks >= REWALKS_MAX)
        return rc;
    t->rewalks++;
    void_way(t->fs, r->node, r->uid);
    return TASK_STALE;
}

void fid_drop_all(struct fs *fs, struct node *n)
{
    while (n->fids)
        ref_free(fs, n->fids);
}

/* --- walking --- */

static int attach(struct task *t, uint32_t uid)
{
    struct fs *fs = t->fs;
    uint32_t fid = fid_alloc(fs), generation = conn_generation(fs->conn);
    struct p9_msg m = {.type = P9_Tattach};
    m.Tattach = (struct p9_Tattach){.fid = fid, .afid = P9_NOFID, .n_uname = uid};
    struct p9_msg reply;
    int rc = call_run(t, &m, &reply);
    if (rc < 0) {
        fid_clunk(fs, generation, fid);
        return rc;
    }
    fs->top->qid_path = reply.Rattach.qid.path;
    fid_adopt(fs, fs->top, uid, fid, generation);
    return 0;
}

/* The way from (below) an ancestor with a valid fid down to a node. */
struct way {
    struct fid_ref *from; /* pinned */
    struct node **nodes;  /* referenced, from below `from` to the node */
    size_t count;
};

static int way_finish(struct task *t, struct way *w, int rc)
{
    rc = fid_finish(t, w->from, rc);
    for (size_t i = 0; i < w->count; i++)
        node_unref(t->fs, w->nodes[i]);
    free(w->nodes);
    return rc;
}

static int way_find(struct task *t, struct node *n, uint32_t uid, struct way *w)
{
    struct fs *fs = t->fs;
    size_t depth = 0;
    for (struct node *p = n; p; p = p->parent)
        depth++;
    w->nodes = calloc(depth, sizeof(struct node *));
    if (!w->nodes)
        return -ENOMEM;
    struct node *p = n;
    for (; p != fs->top && !is_valid(fs, find(fs, p, uid)); p = p->parent)
        w->count++;
    size_t i = w->count;
    for (struct node *q = n; q != p; q = q->parent)
        w->nodes[--i] = node_ref(q);
    if (p == fs->top && !is_valid(fs, find(fs, p, uid))) {
        int rc = attach(t, uid);
        if (rc < 0)
            return rc;
    }
    w->from = fid_pin(fs, p, uid);
    return is_valid(fs, w->from) ? 0 : TASK_UNSENT;
}

/* One Twalk of up to P9_WALK_MAX steps. Returns how many nodes it took or a negative error; all must be found. */
static int walk_some(struct task *t, uint32_t from, uint32_t to, struct node *const *nodes, size_t count, uint64_t *path)
{
    char ids[P9_WALK_MAX][16];
    struct p9_msg m = {.type = P9_Twalk}, reply;
    uint16_t n = (uint16_t)(count < P9_WALK_MAX ? count : P9_WALK_MAX);
    m.Twalk.fid = from;
    m.Twalk.newfid = to;
    m.Twalk.names.n = n;
    for (uint16_t i = 0; i < n; i++) {
        const char *name = nodes[i]->name;
        if (nodes[i]->object_id) {
            snprintf(ids[i], sizeof ids[i], "#%012llx", (unsigned long long)(nodes[i]->object_id & 0xffffffffffffull));
            name = ids[i];
        }
        m.Twalk.names.v[i] = p9_str_of(name);
    }
    int rc = call_run(t, &m, &reply);
    if (rc < 0)
        return rc == -ENOENT ? -ESTALE : rc;
    if (reply.Rwalk.qids.n != n)
        return -ESTALE;
    *path = reply.Rwalk.qids.v[n - 1].path;
    return n;
}

static int walk_way(struct task *t, const struct way *w, uint32_t fid)
{
    uint32_t from = w->from->fid;
    uint64_t path = 0;
    for (size_t done = 0; done < w->count;) {
        int rc = walk_some(t, from, fid, w->nodes + done, w->count - done, &path);
        if (rc < 0)
            return rc;
        done += (size_t)rc;
        from = fid;
    }
    return path == w->nodes[w->count - 1]->qid_path ? 0 : -ESTALE;
}

static int walk_to(struct task *t, struct node *n, uint32_t uid)
{
    struct fs *fs = t->fs;
    struct way w = {0};
    int rc = way_find(t, n, uid, &w);
    if (rc == 0 && w.count) {
        uint32_t fid = fid_alloc(fs), generation = conn_generation(fs->conn);
        rc = walk_way(t, &w, fid);
        if (rc == 0)
            fid_adopt(fs, n, uid, fid, generation);
        else
            fid_clunk(fs, generation, fid);
    }
    return way_finish(t, &w, rc);
}

int fid_get(struct task *t, struct node *n, uint32_t uid, struct fid_ref **out)
{
    struct fs *fs = t->fs;
    struct fid_ref *r;
    *out = NULL;
    if (n->kind == NODE_SWALLOWED)
        return -ESTALE;
    for (int tries = 0; !is_valid(fs, r = find(fs, n, uid)); tries++) {
        int rc = conn_is_up(fs->conn) ? walk_to(t, n, uid) : TASK_UNSENT;
        if (rc == -ENFILE && tries == 0)
            fid_shrink(fs);
        else if (rc < 0 && rc != TASK_STALE)
            return rc;
        else if (tries > 4) /* there is no memory to keep it */
            return -ENOMEM;
    }
    r->pins++;
    unlink_recent(fs, r);
    link_recent(fs, r);
    *out = r;
    return 0;
}
