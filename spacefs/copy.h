// SPDX-License-Identifier: Apache-2.0
// One directory that a process made and may be copying something into: its record, its commit and its end.
#ifndef SPACEFS_COPY_H
#define SPACEFS_COPY_H

#include "spacefs/handle.h"
#include "spacefs/proc.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

struct req;
struct task;

/* Makers watched at once; the one that made its directory first is forgotten first. */
#define COPIES_MAX 1024u
/* Names that one copy may make in its directory. */
#define COPY_NAMES_MAX 64u
/* A copy whose head arrived and that shows no sign of life commits after this time. */
#define COPY_IDLE_MSEC 50u

enum copy_state {
    COPY_FRESH,      /* made, untouched as far as we saw */
    COPY_OPENING,    /* the first create of the gesture opens #copy */
    COPY_COLLECTING, /* hostd holds the new object back */
    COPY_COMMITTING, /* the commit is about to be sent */
    COPY_COMMITTED,  /* sent: what anybody sends from now on comes after it */
    COPY_DONE,       /* committed, or the commit failed; late files are still swallowed */
};

/* A name that the copying process made in the directory. */
struct copy_name {
    struct copy_name *next;
    struct node *node; /* referenced */
    struct stat st;
    char name[];
};

struct copy_waiter {
    struct copy_waiter *next;
    struct task *task;
};

struct copy {
    struct copy *next, **link; /* fs->copies, newest first */
    struct fs *fs;
    unsigned refs;    /* the list, and tasks that work with it */
    bool ended;       /* off the list */
    struct node *dir; /* referenced */
    uint32_t uid;
    struct proc_id maker;
    bool maker_gone;
    enum copy_state state;
    struct node *source;        /* referenced; the object that is copied */
    struct opened fid;          /* #copy */
    unsigned expected, arrived; /* carried attributes, a bit each (copy_carried) */
    bool head_written;
    unsigned open; /* files in it that the copying process has open */
    int result;    /* of the commit */
    struct copy_name *names;
    unsigned name_count;
    struct copy_waiter *waiters;
    struct copy_watch *watch; /* the maker's end, and the idle timer */
};

/* Bit of an attribute that a copy carries over, 0 for others. */
unsigned copy_carried(const char *name);

/* A record for `dir`, just made by `maker`; none when the maker is gone or memory is out. */
void copy_create(struct fs *fs, struct node *dir, uint32_t uid, const struct proc_id *maker);

/* The record of a directory, NULL when there is none. */
struct copy *copy_find(struct fs *fs, const struct node *dir);

/* Forgets it: no gesture (any more) in this directory. Gives up #copy, so that hostd removes an uncommitted object. */
void copy_end(struct copy *c);

struct copy *copy_ref(struct copy *c);
void copy_unref(struct copy *c);

/*
 * FRESH to COLLECTING: opens #copy and learns which carried attributes `source` has. 0, or an error, and then the record has been
 * ended: hostd knows of a touch that we did not see.
 */
int copy_begin(struct task *t, struct copy *c, struct node *source);

/*
 * Asks hostd whether somebody used it: 0, -EBUSY when so (then the record has been ended), or another error. For a record that holds no
 * #copy.
 */
int copy_ask_untouched(struct task *t, struct copy *c);

/* Waits while it is in this state, at most `msec` (0: as long as it takes). 0, -ETIMEDOUT or -EINTR. */
int copy_wait(struct task *t, struct copy *c, enum copy_state state, uint64_t msec);

/* COLLECTING with a head: starts the commit, in a task of its own. */
void copy_commit(struct copy *c);

/* Something of the gesture happened: commits when all is there, else gives it COPY_IDLE_MSEC from now. */
void copy_progress(struct copy *c);

/* True when closing what is still open would complete it, with `closing` arrived. */
bool copy_completes(const struct copy *c, unsigned closing);

struct copy_name *copy_name_find(const struct copy *c, const char *name);
/* Takes a reference to the node. False when there are too many or memory is out. */
bool copy_name_add(struct copy *c, const char *name, struct node *n, const struct stat *st);
void copy_name_remove(struct copy *c, const char *name);

#endif
