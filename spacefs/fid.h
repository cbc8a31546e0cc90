// SPDX-License-Identifier: Apache-2.0
// The fids that stand for nodes, one per (node, uid): walked when first needed, walked again after a reconnect, bounded.
#ifndef SPACEFS_FID_H
#define SPACEFS_FID_H

#include "spacefs/node.h"

#include <stdint.h>

struct task;

/* Fids kept for nodes; the least recently used go first. hostd's session has room for 65,536, open files included. */
#define FID_MAX 16384u

/* Where a node is on the server, as one user sees it. */
struct fid_ref {
    struct hmap_node by_node;
    struct node *node;
    uint32_t uid;
    uint32_t fid, generation;
    unsigned pins;                 /* users of the fid right now, and open handles */
    struct fid_memory *memory;     /* of an object: what its name's last lookup said */
    struct fid_ref *sibling;       /* node->fids */
    struct fid_ref *newer, *older; /* fs->fid_new ... fid_old */
};

/*
 * A fid for `n` walked under `uid`'s attach, valid until fid_put; waits for the walk when there is none yet. Anchors are ids,
 * so a name that means something else by now gives -ESTALE. TASK_LOST and TASK_UNSENT: the connection went, ask again.
 */
int fid_get(struct task *t, struct node *n, uint32_t uid, struct fid_ref **out);
/* NULL is fine. */
void fid_put(struct fid_ref *r);

/*
 * fid_put after an operation on the fid that ended with `rc`, which is returned; except that -ESTALE for a guest's file becomes
 * TASK_STALE a few times: the guest's session is another one by now, and the file may well be there when it is walked to anew.
 */
int fid_finish(struct task *t, struct fid_ref *r, int rc);

/* Keeps `fid`, just walked to `n`, as (n, uid)'s fid, or clunks it when there already is one. */
void fid_adopt(struct fs *fs, struct node *n, uint32_t uid, uint32_t fid, uint32_t generation);

/* True when fid_get would not have to wait. */
bool fid_is_valid(struct fs *fs, const struct node *n, uint32_t uid);

/*
 * The names of objects are looked up with every path, and almost never change: an answer is remembered for FID_MEMORY_MSEC, for its user alone, until
 * anything in control trees is changed through this mount. What others change shows that much later.
 */
#define FID_MEMORY_MSEC 10u
void fid_remember(struct fs *fs, struct node *n, uint32_t uid, const struct stat *st);
/* The object that `name` is remembered to be, and its attributes; NULL when that must be asked. */
struct node *fid_recall(struct fs *fs, struct node *parent, const char *name, uint32_t uid, const struct stat **ret_st);

/* Keeps the fid of (n, uid), if there is one now, until fid_put: an open file's node must not lose its place. May be NULL. */
struct fid_ref *fid_pin(struct fs *fs, struct node *n, uint32_t uid);

/* `n` goes: clunks what it has. */
void fid_drop_all(struct fs *fs, struct node *n);

/* Gives up a quarter of what is kept, least recently used first: the server said it has no room. */
void fid_shrink(struct fs *fs);

/* A fid number, and the clunk of a fid of this connection that belongs to nobody. */
uint32_t fid_alloc(struct fs *fs);
void fid_clunk(struct fs *fs, uint32_t generation, uint32_t fid);

#endif
