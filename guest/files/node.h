// SPDX-License-Identifier: Apache-2.0
// What a fid of the root file system stands for: an inode, held by a descriptor or by its file handle.
#ifndef SPACE_GUEST_FILES_NODE_H
#define SPACE_GUEST_FILES_NODE_H

#include "9p/link.h"
#include "9p/server.h"

#include <stdbool.h>
#include <sys/stat.h>

/* Descriptors kept for nodes that are not open. Each pins an inode in the guest's memory. */
#define NODE_FDS_MAX 1024u

struct files {
    int top;             /* the root directory, open for reading */
    dev_t dev;           /* of the root, and of everything below it */
    ino_t ino;
    struct p9_link used; /* struct node.used, least recently used first */
    unsigned n_used;
    char *buf;           /* P9_MSIZE_MAX bytes for one reply */
};

struct handle {
    int type;
    unsigned len; /* 0: none */
    unsigned char bytes[16];
};

struct node {
    struct p9_link used;
    int fd;      /* O_PATH, -1 when given up: opened again by handle */
    int io;      /* opened by the client, -1 */
    int flags;   /* of io: P9_* */
    mode_t type; /* S_IFMT bits; an inode never changes them */
    struct handle self, parent;
    char *name;  /* in the parent when it was walked to; NULL when that is not known */
    struct dir_buffer *dir;
    struct xattr *xattr; /* a fid of Txattrwalk or Txattrcreate */
};

/* Takes over `fd` (also on failure). NULL when out of memory. */
struct node *node_create(struct files *fs, int fd, mode_t mode);
/* A second one for the same inode, not opened. NULL with errno. */
struct node *node_clone(struct files *fs, struct node *n);
void node_destroy(struct files *fs, struct node *n);

/*
 * A descriptor of the inode, borrowed until the second next call of node_fd. -1 with errno: ESTALE when the inode is gone. It may
 * be an O_PATH one.
 */
int node_fd(struct files *fs, struct node *n);

/* The path of node_fd below /proc/self/fd, which is the working directory, for calls that take no O_PATH descriptor. -1 with errno. */
int node_path(struct files *fs, struct node *n, char out[16]);

/* Its file handle, found on first use; NULL when the file system has none. */
const struct handle *node_handle(struct files *fs, struct node *n);

/* Remembers where it was walked to, for Trename and Tremove. Failing only costs those. */
void node_set_parent(struct node *n, int dirfd, const char *name, size_t len);

/*
 * The directory in which the node lies under its name, checked to be so still: a descriptor that the caller closes, and the borrowed name. -1 with
 * errno: ESTALE when it was renamed or removed meanwhile, EOPNOTSUPP when its parent is not known.
 */
int node_open_parent(struct files *fs, struct node *n, const char **name);

/* Opens the inode anew with real O_* flags. -1 with errno: ENXIO for what is neither a file nor a directory, ELOOP for a symlink. */
int node_reopen(struct files *fs, struct node *n, int flags);

struct p9_qid node_qid(const struct stat *st);

/* A name of a message as a string. False when it can be no name in a directory. */
bool node_name(struct p9_str s, char out[P9_NAME_MAX + 1]);

#endif
