// SPDX-License-Identifier: Apache-2.0
// What the whole of spacefs shares: one mount, its loop, its connection to space-hostd and its tables.
#ifndef SPACEFS_FS_H
#define SPACEFS_FS_H

#include "base/config.h"
#include "base/hmap.h"
#include "loop/co.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct conn;
struct copy;
struct fid_ref;
struct fuse_session;
struct handle;
struct node;
struct session;
struct task;
struct watcher;
struct worker;

/* Requests under way, of everyone and of one uid. hostd's session takes 16,384 at once and then reads nothing more; below that
 * one user's blocked reads are that user's only. */
#define FS_REQUESTS_MAX     14000u
#define FS_REQUESTS_UID_MAX 4096u

/* Directories that threads listed: of how many that is remembered. */
#define LISTINGS_MAX 64u
struct listing {
    uint64_t path;  /* of the directory's qid */
    uint64_t until; /* uv_now */
    pid_t tid;
};

struct fs {
    struct config config;
    uv_loop_t *loop;
    struct co_sched *co;
    struct conn *conn;
    struct fuse_session *session;
    struct session *poller; /* session.c */
    int mount_fd;           /* /dev/fuse */
    uint32_t init_offered;  /* by the kernel: FUSE_... of linux/fuse.h */
    bool init_answered;

    /* node.c */
    struct node *top;
    struct hmap nodes;  /* by parent and name */
    uint64_t synthetic; /* inode numbers given to files that exist here only */
    uint64_t changes;   /* made to control files through this mount: older answers are not remembered (fid.h) */

    /* fid.c */
    struct hmap fids;                  /* by node and uid */
    struct fid_ref *fid_new, *fid_old; /* most and least recently used */

    /* task.c */
    struct task *tasks; /* all that are alive */
    struct worker *idle_workers;
    unsigned idle_count;
    struct task *interrupted;
    uv_timer_t interrupt_timer;

    /* request.c */
    struct hmap users; /* requests in flight by uid */
    unsigned requests;

    unsigned handles; /* handle.c: all there are */

    /* poll.c */
    struct watcher *watchers;

    /* gesture.c */
    struct copy *copies;
    unsigned copy_count;
    struct handle *sources;                /* attributes that are open for reading */
    struct listing listings[LISTINGS_MAX]; /* the last ones, in a ring */
    unsigned listing_count;
};

#endif
