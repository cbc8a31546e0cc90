// SPDX-License-Identifier: Apache-2.0
// One FUSE request: its arguments, copied, the task that works on it, and its one reply.
#ifndef SPACEFS_REQUEST_H
#define SPACEFS_REQUEST_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "9p/codec.h"
#include "spacefs/handle.h"
#include "spacefs/node.h"
#include "spacefs/proc.h"
#include "spacefs/task.h"

/* How long an interrupt waits for an operation that normally ends by itself: a program's SIGCHLD or SIGALRM must not make its stat
 * fail with EINTR, yet what hangs ends within a second. */
#define REQUEST_GRACE_MSEC 400u

struct req {
    struct task task; /* first: the coroutine's argument */
    fuse_req_t fuse;  /* NULL once replied */
    uint32_t uid, gid;
    pid_t tid; /* thread that asks; 0 when from a foreign pid namespace */
    void (*op)(struct req *r);
    struct node *node, *node2; /* referenced */
    struct handle *handle;     /* referenced */
    char name[P9_NAME_MAX + 1], name2[P9_NAME_MAX + 1];
    char *owned;          /* a copy of data, a target or a value; freed with the request */
    const char *borrowed; /* data to write: valid until the first wait */
    size_t size;
    size_t plain_size; /* what was written, when it is sealed now (seal.h); else 0 */
    off_t off;
    uint64_t lock_owner;
    int flags;
    mode_t mode;
    dev_t rdev;
    int to_set;
    int whence; /* SEEK_DATA, SEEK_HOLE */
    struct stat attr;
    struct flock lock;
    bool sleeps; /* F_SETLKW, LOCK without LOCK_NB */
    struct fuse_pollhandle *poll_handle;
    struct proc_id maker; /* gesture.c: who makes a directory that could become a copy's target */
};

/*
 * A request on node `ino` (0: none). NULL when its user has too many in flight or there is no memory: answered then.
 * request_run starts it.
 */
struct req *request_create(fuse_req_t fuse, fuse_ino_t ino);
void request_run(struct req *r, void (*op)(struct req *r));

/* Answers a request that was not started, and frees it. */
void request_abandon(struct req *r, int rc);

/* Copies a name; false, and the request is answered and gone, when it is too long. */
bool request_name(struct req *r, char out[P9_NAME_MAX + 1], const char *name);
void request_handle(struct req *r, const struct fuse_file_info *fi);

static inline struct fs *request_fs(const struct req *r)
{
    return fuse_req_userdata(r->fuse);
}

/* Replies. Exactly one, by the operation; the request lives on until the operation returns. */
void request_error(struct req *r, int rc); /* 0 or negative errno */
void request_attr(struct req *r, const struct node *n, const struct stat *st);
/* Counts the kernel's lookup of `n`. */
void request_entry(struct req *r, struct node *n, const struct stat *st);

#endif
