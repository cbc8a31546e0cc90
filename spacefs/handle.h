// SPDX-License-Identifier: Apache-2.0
// Open files and directories: their fids, what was read ahead of them, and their reopening after a reconnect.
#ifndef SPACEFS_HANDLE_H
#define SPACEFS_HANDLE_H

#include "9p/codec.h"
#include "spacefs/node.h"
#include "spacefs/proc.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct copy;
struct fid_ref;
struct poll_state;
struct task;

/* Attributes up to this size are read together with their opening: their text is fixed by it anyway. */
#define HANDLE_TEXT_MAX 16384u

/* A fid opened on the server; fid is meaningless unless `generation` is the connection's. */
struct opened {
    uint32_t fid, generation;
};

struct handle {
    struct fs *fs;
    struct node *node; /* referenced */
    uint32_t uid;      /* who opened it; everything goes by this */
    int flags;         /* of the open, host's numbers */
    unsigned refs;     /* the kernel's until release, and tasks that work with it */
    bool released;
    struct opened fid[2]; /* [1]: the non-blocking one, for a handle whose O_NONBLOCK was changed by fcntl */
    struct fid_ref *pin;
    struct handle *next; /* node->handles */

    struct stat attr; /* of the opening; meaningful when attr_fixed */
    bool attr_fixed;
    char *text; /* the whole content, when read at open */
    size_t text_len;
    uint64_t next_offset; /* behind the last byte read: where a stream's next read is expected */
    bool was_read;
    uint64_t data_at; /* where SEEK_DATA last found data, + 1; 0: it was not asked */

    /* A directory's entries read last, as Rreaddir had them. */
    char *entries;
    size_t entries_len, entries_pos;
    uint64_t entries_offset; /* what a READDIR that continues at entries_pos asks for */

    struct poll_state *poll; /* poll.c: once somebody polled */

    struct copy *copy; /* gesture.c: this file was made in a copy */
    /* gesture.c: on the list fs->sources, with who opened it; the process is known when it had made something by then */
    struct handle *next_source, **link_source;
    struct proc_id opener;
    pid_t opener_tid;
};

/* Open flags of this host as 9P's. Creation and truncation are kept, O_DIRECT and the like dropped. */
uint32_t handle_p9_flags(int flags);

static inline bool handle_writes(const struct handle *h)
{
    return (h->flags & 3) != 0;
}

/* Streams block, and have size 0 for ever. */
bool handle_is_stream(const struct node *n);

/*
 * True for `events` and connections: reads go on where the last one on the same fid ended, whatever offset they name. So it has one fid, which blocks, and
 * non-blocking reads go through the read ahead of poll.c.
 */
bool handle_has_position(const struct node *n);

/* Result of node_open. */
struct opening {
    struct opened fid;
    struct p9_Rgetattr attr; /* when asked for */
    char *text;              /* when asked for and all of it came; the caller's to free */
    size_t text_len;
};

enum { OPENING_ATTR = 1, OPENING_TEXT = 2 };

/* Opens `n` as `uid` on a new fid: walk, lopen, getattr and read in one round trip. 0 or a task error; nothing is left open then. */
int handle_open_node(struct task *t, struct node *n, uint32_t uid, uint32_t p9_flags, unsigned want, struct opening *out);

/* A handle of one reference, linked to its node. NULL when out of memory. Takes over fid (and text) of `o`. */
struct handle *handle_create(struct fs *fs, struct node *n, uint32_t uid, int flags, struct opening *o);

struct handle *handle_ref(struct handle *h);
/* Closes with the last reference. NULL is fine. */
void handle_unref(struct fs *fs, struct handle *h);

/* The kernel's release: no longer open, though tasks may still hold it. Clunks its fids at once. */
void handle_release(struct fs *fs, struct handle *h);

/* Its fid on this connection, reopened if the connection is another one by now: same flags without creation and truncation. */
int handle_fid(struct task *t, struct handle *h, bool nonblock, uint32_t *fid);

/* handle_fid as the file was opened. */
int handle_own_fid(struct task *t, struct handle *h, uint32_t *fid);

/* True when handle_fid would not have to wait. */
bool handle_is_ready(struct fs *fs, const struct handle *h, bool nonblock);

/* Replaces the handle's text by what is there now (a change was polled for). 0 or a task error. */
int handle_refresh(struct task *t, struct handle *h);

#endif
