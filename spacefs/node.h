// SPDX-License-Identifier: Apache-2.0
// What the kernel knows a name by: the table of FUSE nodes, each (parent, name, qid.path).
#ifndef SPACEFS_NODE_H
#define SPACEFS_NODE_H

#include "9p/codec.h"
#include "spacefs/fs.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

struct copy;
struct fid_ref;
struct handle;
struct lock;

/* What a node is decides how it is cached, opened and walked to. It follows from parent and name alone. */
enum node_kind {
    NODE_TOP,       /* /space */
    NODE_TREE,      /* /space/sandboxes and the other directories and files directly in it */
    NODE_OBJECT,    /* a directory that has an id: sandboxes/A root/A proc/A templates/T snapshots/A */
    NODE_SNAPSHOT,  /* snapshots/A/S: has an id too */
    NODE_CONTROL,   /* everything else outside of those */
    NODE_GUEST,     /* below root/A or snapshots/A/S/files: the guest's files */
    NODE_SWALLOWED, /* a file that a copying program made in a new object and that exists here only (gesture.c) */
};

enum node_tree { TREE_OTHER, TREE_SANDBOXES, TREE_TEMPLATES, TREE_SNAPSHOTS, TREE_ROOT, TREE_PROC, TREE_PORTS };

struct node {
    struct hmap_node by_name;
    struct node *parent; /* holds a reference; NULL for the top */
    char *name;
    uint64_t lookups; /* the kernel's count */
    unsigned refs;    /* ours: children, requests, handles */
    enum node_kind kind;
    enum node_tree tree;
    uint64_t qid_path;
    uint64_t object_id; /* 48 bits for objects, else 0: re-walks go by it, not by the name */
    mode_t format;      /* S_IFMT bits */
    struct fid_ref *fids;
    struct handle *handles; /* open ones, newest first */
    struct lock *locks;     /* lock.c */
    uint64_t size;          /* as last seen */
    struct timespec mtime;
    uint64_t no_capability_until; /* uv_now until which security.capability is known to be absent */
    pid_t lent_to;                /* thread that was last shown this file, which may be about to open it */
    uint64_t lent_until;
    pid_t retried;     /* thread that was last told to look this file up again */
    struct copy *copy; /* the copy in progress that made this file; gesture.c's, not counted */
    uint32_t uid, gid; /* of a swallowed file */
};

/* True for files whose text is fixed when they are opened, streams and everything else that is not the guest's. */
static inline bool node_is_control(const struct node *n)
{
    return n->kind != NODE_GUEST;
}

/* True below root/NAME and below files/ of a snapshot. */
static inline bool node_is_guest(const struct node *n)
{
    return n->kind == NODE_GUEST;
}

/* True for the images of a snapshot: large, and the same as long as they are open. */
static inline bool node_is_image(const struct node *n)
{
    return n->kind == NODE_CONTROL && n->tree == TREE_SNAPSHOTS && (!strcmp(n->name, "disk.raw") || !strcmp(n->name, "ram.raw"));
}

/* True for ports/NAME/PORT: each opening is a connection of its own. */
static inline bool node_is_port(const struct node *n)
{
    return n->kind == NODE_CONTROL && n->tree == TREE_PORTS;
}

/* True for directories whose children are the guest's files, or were when a snapshot was taken. */
static inline bool node_holds_guest(const struct node *n)
{
    return n->kind == NODE_GUEST || (n->kind == NODE_OBJECT && n->tree == TREE_ROOT) ||
           (n->kind == NODE_CONTROL && n->parent->kind == NODE_SNAPSHOT && !strcmp(n->name, "files"));
}

/* Makes the root node (FUSE's number 1), which is never freed before node_finish. */
void node_init(struct fs *fs);
/* Frees every node that is left; the kernel has gone. */
void node_finish(struct fs *fs);

/* FUSE numbers and nodes; `ino` comes from the kernel, which only names what it was given and did not forget. */
struct node *node_of(struct fs *fs, uint64_t ino);
uint64_t node_ino(const struct fs *fs, const struct node *n);

struct node *node_ref(struct node *n);
/* NULL is fine. Frees the node, and gives up its fids, when nobody knows it any more. */
void node_unref(struct fs *fs, struct node *n);

/* The kernel forgot `count` lookups. */
void node_forget(struct fs *fs, struct node *n, uint64_t count);

/*
 * The node for what thread `tid`'s lookup of `name` found, with a reference for the caller. An existing one when parent, name, qid and type are
 * the same, except that a control file somebody has open, or whose writes may block and that another thread looked up a moment
 * ago, gets a fresh node: the kernel holds a node's lock while a write waits, and the size it shows for an open file belongs to
 * that opening (DESIGN 2). NULL when out of memory.
 */
struct node *node_get(struct fs *fs, struct node *parent, const char *name, const struct p9_qid *qid, mode_t format, pid_t tid);

/* The nodes that are known by this name, which may mean something else by now. NULL at the end. */
struct node *node_known(struct fs *fs, const struct node *parent, const char *name);
struct node *node_known_next(const struct node *n);

/* A node that exists here only: fresh inode number, never found by node_get. NULL when out of memory. */
struct node *node_swallowed(struct fs *fs, struct node *parent, const char *name);

/* After a rename on the server: all nodes known as (from, name) are (to, to_name) now. */
void node_moved(struct fs *fs, struct node *from, const char *name, struct node *to, const char *to_name);

/* The nearest node at or above `n` that is an object, for snapshots the snapshot; NULL above them. */
struct node *node_object(struct node *n);

#endif
