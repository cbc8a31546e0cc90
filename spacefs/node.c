// SPDX-License-Identifier: Apache-2.0
// The table of FUSE nodes: see node.h.
#include "spacefs/node.h"

#include "spacefs/fid.h"

#include <stdlib.h>
#include <string.h>

#define FUSE_TOP 1u
/* From a lookup to the open that follows it. */
#define LENT_MSEC 20u

static uint64_t name_key(const struct node *parent, const char *name)
{
    uint64_t h = (uint64_t)(uintptr_t)parent * 0x9e3779b97f4a7c15ull; /* FNV-1a over the name, seeded by the parent */
    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3ull;
    return h ^ h >> 29;
}

static enum node_tree tree_of(const char *name)
{
    static const struct {
        const char *name;
        enum node_tree tree;
    } trees[] = {{"sandboxes", TREE_SANDBOXES}, {"templates", TREE_TEMPLATES}, {"snapshots", TREE_SNAPSHOTS},
                 {"root", TREE_ROOT},           {"proc", TREE_PROC},           {"ports", TREE_PORTS}};
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++)
        if (!strcmp(name, trees[i].name))
            return trees[i].tree;
    return TREE_OTHER;
}

static void classify(struct node *n, const struct node *parent)
{
    n->tree = parent->kind == NODE_TOP ? tree_of(n->name) : parent->tree;
    if (parent->kind == NODE_TOP)
        n->kind = NODE_TREE;
    else if (parent->kind == NODE_TREE)
        n->kind = n->tree == TREE_OTHER ? NODE_CONTROL : NODE_OBJECT;
    else if (node_holds_guest(parent))
        n->kind = NODE_GUEST;
    else if (parent->kind == NODE_OBJECT && n->tree == TREE_SNAPSHOTS)
        n->kind = NODE_SNAPSHOT;
    else
        n->kind = NODE_CONTROL;
}

void node_init(struct fs *fs)
{
    struct node *n = calloc(1, sizeof *n);
    if (!n || !(n->name = strdup("")))
        abort();
    n->kind = NODE_TOP;
    n->format = S_IFDIR;
    n->refs = 1;
    fs->top = n;
}

static void node_free(struct fs *fs, struct node *n)
{
    fid_drop_all(fs, n);
    free(n->name);
    free(n);
}

void node_finish(struct fs *fs)
{
    struct hmap_node *h;
    while ((h = hmap_iterate(&fs->nodes, NULL))) {
        struct node *n = hmap_entry(h, struct node, by_name);
        hmap_remove(&fs->nodes, h);
        node_free(fs, n);
    }
    node_free(fs, fs->top);
    hmap_finish(&fs->nodes);
}

struct node *node_of(struct fs *fs, uint64_t ino)
{
    return ino == FUSE_TOP ? fs->top : (struct node *)(uintptr_t)ino;
}

uint64_t node_ino(const struct fs *fs, const struct node *n)
{
    return n == fs->top ? FUSE_TOP : (uint64_t)(uintptr_t)n;
}

struct node *node_ref(struct node *n)
{
    n->refs++;
    return n;
}

/* Frees `n` and then every ancestor that only it kept. */
static void collect(struct fs *fs, struct node *n)
{
    while (n && n != fs->top && !n->refs && !n->lookups) {
        struct node *parent = n->parent;
        hmap_remove(&fs->nodes, &n->by_name);
        node_free(fs, n);
        parent->refs--;
        n = parent;
    }
}

void node_unref(struct fs *fs, struct node *n)
{
    if (!n)
        return;
    n->refs--;
    collect(fs, n);
}

void node_forget(struct fs *fs, struct node *n, uint64_t count)
{
    if (n == fs->top)
        return;
    n->lookups -= count < n->lookups ? count : n->lookups;
    collect(fs, n);
}

static struct node *create(struct node *parent, const char *name)
{
    struct node *n = calloc(1, sizeof *n);
    if (!n || !(n->name = strdup(name))) {
        free(n);
        return NULL;
    }
    n->parent = node_ref(parent);
    n->refs = 1;
    classify(n, parent);
    return n;
}

static bool is_same(const struct node *n, const struct node *parent, const char *name, const struct p9_qid *qid, mode_t format)
{
    return n->parent == parent && n->qid_path == qid->path && n->format == format && !strcmp(n->name, name);
}

/* Writes to these wait until something is done. */
static bool may_block(const struct node *n)
{
    static const char *const names[] = {"state", "head", "node", "stdin", "cmd", "value"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(n->name, names[i]))
            return true;
    return node_is_port(n);
}

/* Somebody works, or may be about to, with an opening of this very node: see node_get. */
static bool is_taken(const struct fs *fs, const struct node *n, pid_t tid)
{
    if (n->format != S_IFREG || !node_is_control(n))
        return false;
    return n->handles || (n->lent_to != tid && uv_now(fs->loop) < n->lent_until);
}

static void lend(const struct fs *fs, struct node *n, pid_t tid)
{
    if (n->format != S_IFREG || !node_is_control(n) || !may_block(n))
        return;
    n->lent_to = tid;
    n->lent_until = uv_now(fs->loop) + LENT_MSEC;
}

struct node *node_get(struct fs *fs, struct node *parent, const char *name, const struct p9_qid *qid, mode_t format, pid_t tid)
{
    uint64_t key = name_key(parent, name);
    for (struct hmap_node *h = hmap_find(&fs->nodes, key); h; h = hmap_find_next(h)) {
        struct node *n = hmap_entry(h, struct node, by_name);
        if (is_same(n, parent, name, qid, format) && !is_taken(fs, n, tid)) {
            lend(fs, n, tid);
            return node_ref(n);
        }
    }
    struct node *n = create(parent, name);
    if (!n)
        return NULL;
    n->qid_path = qid->path;
    n->format = format;
    lend(fs, n, tid);
    hmap_insert(&fs->nodes, &n->by_name, key);
    return n;
}

static struct node *known_from(struct hmap_node *h, const struct node *parent, const char *name)
{
    for (; h; h = hmap_find_next(h)) {
        struct node *n = hmap_entry(h, struct node, by_name);
        if (n->parent == parent && !strcmp(n->name, name))
            return n;
    }
    return NULL;
}

struct node *node_known(struct fs *fs, const struct node *parent, const char *name)
{
    return known_from(hmap_find(&fs->nodes, name_key(parent, name)), parent, name);
}

struct node *node_known_next(const struct node *n)
{
    return known_from(hmap_find_next(&n->by_name), n->parent, n->name);
}

struct node *node_swallowed(struct fs *fs, struct node *parent, const char *name)
{
    struct node *n = create(parent, name);
    if (!n)
        return NULL;
    n->kind = NODE_SWALLOWED;
    n->format = S_IFREG;
    n->qid_path = ~0ull >> 1 ^ fs->synthetic++;
    hmap_insert(&fs->nodes, &n->by_name, n->qid_path); /* not by its name: nobody is to find it */
    return n;
}

void node_moved(struct fs *fs, struct node *from, const char *name, struct node *to, const char *to_name)
{
    uint64_t key = name_key(from, name);
    struct hmap_node *h = hmap_find(&fs->nodes, key);
    while (h) {
        struct node *n = hmap_entry(h, struct node, by_name);
        char *copy;
        h = hmap_find_next(h);
        if (n->parent != from || strcmp(n->name, name) || !(copy = strdup(to_name)))
            continue;
        hmap_remove(&fs->nodes, &n->by_name);
        free(n->name);
        n->name = copy;
        n->parent = node_ref(to);
        node_unref(fs, from); /* never the last: the request holds one */
        hmap_insert(&fs->nodes, &n->by_name, name_key(to, to_name));
    }
}

struct node *node_object(struct node *n)
{
    while (n && n->kind != NODE_OBJECT && n->kind != NODE_SNAPSHOT)
        n = n->parent;
    return n;
}
