// SPDX-License-Identifier: Apache-2.0
// The copy gesture: see gesture.h.
//
// Theory of operation. DESIGN 2 makes `cp -r templates/T sandboxes/X`, `cp -r sandboxes/A sandboxes/X` and their like the way to create, fork and
// publish. But a new object's directory is full from the start, and every copying program creates its files anew; GNU cp with
// O_EXCL, which the kernel itself refuses when the lookup succeeds. So while a process copies, it (and nobody else) is shown the new
// directory as empty, and what it writes is collected:
//
//   mkdir X by a process P          record FRESH: P is known by its process id and start time (FUSE names a thread)
//   P lists A                       remembered for a while: tells a copier whose threads share the work from threads that have nothing to do with each other
//   P opens A/f for reading         the handle is put on the list of sources
//   P looks up X/f, A/f being open  -> ENOENT. Nothing is held for it: a program may look without copying
//   P creates X/f                   The first time: opens X/#copy, which makes hostd hold X: COLLECTING. Carried attributes (copy.c) are
//                                   opened on hostd, which collects what is written; everything else is a file that exists only
//                                   here and swallows what is written
//   commit                          "commit" is written to #copy: COMMITTING, COMMITTED when sent, DONE when answered
//
// The commit is due once `head` was written and: every carried attribute of A has arrived and nothing of X is open any more; or P
// ended; or nothing happened for 50 ms with nothing open; or somebody opens something of X, whose open is sent after it. P ending
// before its head gives #copy up, and hostd removes X. In DONE later files of P are still swallowed, so that no order of copying
// fails. Invariants: there is at most one record for a directory; a record that is not FRESH holds #copy or has given it up; everything
// shown differently is shown so to P only. A touch by another process that spacefs sees ends a FRESH record; one that only
// hostd sees makes the open of #copy fail with EBUSY, which ends it too.
//
// Programs that stat and unlink the destination before they open the source (Node) find X full; their unlinks succeed and do
// nothing, as long as nobody used X: then an unlink is EPERM as in every control directory. The disk images of a snapshot that is being copied are empty to the copier: what it would read it could only drop.
#include "spacefs/gesture.h"

#include "spacefs/attr.h"
#include "spacefs/conn.h"
#include "spacefs/copy.h"
#include "spacefs/fid.h"
#include "spacefs/ops.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* A close waits for its commit, unkillably, no longer than this. */
#define FLUSH_WAIT_MSEC 100u
/* A copier goes on to the first file of a directory that it listed sooner than this. */
#define LISTED_MSEC 2000u

/* --- who and what --- */

static bool is_copyable(const struct node *n)
{
    return n && ((n->kind == NODE_OBJECT && (n->tree == TREE_SANDBOXES || n->tree == TREE_TEMPLATES)) || n->kind == NODE_SNAPSHOT);
}

static bool may_be_target(const struct node *parent)
{
    return (parent->kind == NODE_TREE && (parent->tree == TREE_SANDBOXES || parent->tree == TREE_TEMPLATES)) ||
           (parent->kind == NODE_OBJECT && parent->tree == TREE_SNAPSHOTS);
}

static bool is_asker(const struct req *r, const struct copy *c)
{
    struct proc_id id;
    return r->uid == c->uid && proc_identify(r->tid, &id) == 0 && proc_same(&id, &c->maker);
}

/* Files that a program holds open of many objects at once, to watch them, though it copies nothing. */
static bool is_watched(const char *name)
{
    return !strcmp(name, "state") || !strcmp(name, "stats") || !strcmp(name, "error");
}

static bool is_image(const char *name)
{
    return !strcmp(name, "disk.raw") || !strcmp(name, "ram.raw");
}

static bool is_opener(const struct handle *h, const struct proc_id *p)
{
    return h->opener.tgid ? proc_same(&h->opener, p) : proc_has_thread(p, h->opener_tid);
}

void gesture_listed(struct req *r)
{
    struct fs *fs = r->task.fs;
    if (is_copyable(r->node))
        fs->listings[fs->listing_count++ % LISTINGS_MAX] = (struct listing){r->node->qid_path, uv_now(fs->loop) + LISTED_MSEC, r->tid};
}

/* Has a thread of the process that made c->dir listed the directory `source` just now? */
static bool has_listed(const struct copy *c, const struct node *source)
{
    for (unsigned i = 0; i < LISTINGS_MAX; i++) {
        const struct listing *l = &c->fs->listings[i];
        if (l->path == source->qid_path && uv_now(c->fs->loop) < l->until && proc_has_thread(&c->maker, l->tid))
            return true;
    }
    return false;
}

/*
 * The open source `name` of another object that the maker of `c` holds, when thread `tid` asks. What another thread holds is a source only for a program that
 * listed the object's directory, as each does that copies it: many threads may each make an object from the `head` of the same one.
 */
static struct handle *held_source(const struct copy *c, const char *name, pid_t tid)
{
    for (struct handle *h = c->fs->sources; h; h = h->next_source)
        if (h->node->parent != c->dir && !strcmp(h->node->name, name) && is_opener(h, &c->maker) &&
            (h->opener_tid == tid || h->node->parent == c->source || has_listed(c, h->node->parent)))
            return h;
    return NULL;
}

/*
 * May the gesture begin with `source`? The program that made X may have another object's `state` open to watch it when it looks at the
 * one of X; that is no copy. One that copies has something else of that object open first, or, with many threads, as well.
 */
static bool may_begin(const struct copy *c, const struct handle *source)
{
    if (!is_watched(source->node->name))
        return true;
    for (const struct handle *h = c->fs->sources; h; h = h->next_source)
        if (h->node->parent == source->node->parent && !is_watched(h->node->name) && is_opener(h, &c->maker))
            return true;
    return false;
}

void gesture_maker(struct req *r)
{
    if (!may_be_target(r->node) || proc_identify(r->tid, &r->maker) < 0)
        r->maker = (struct proc_id){0};
}

void gesture_made(struct req *r, struct node *dir)
{
    if (r->maker.tgid && !copy_find(r->task.fs, dir))
        copy_create(r->task.fs, dir, r->uid, &r->maker);
}

/* --- lookup --- */

static void reply_name(struct req *r, const struct copy_name *n)
{
    request_entry(r, n->node, &n->st);
}

bool gesture_lookup(struct req *r)
{
    struct copy *c = r->task.fs->copies ? copy_find(r->task.fs, r->node) : NULL;
    if (!c || (!copy_name_find(c, r->name) && !held_source(c, r->name, r->tid)) || !is_asker(r, c))
        return false;
    copy_ref(c);
    int rc = copy_wait(&r->task, c, COPY_OPENING, 0); /* two threads of the copier may come at once */
    struct copy_name *n = rc == 0 ? copy_name_find(c, r->name) : NULL;
    struct handle *source = rc == 0 && !n ? held_source(c, r->name, r->tid) : NULL;
    if (n && n->node->kind == NODE_SWALLOWED && c->state != COPY_COLLECTING)
        n = NULL; /* copied: P sees what is there really */
    bool mine = !c->ended && (n || (source && (c->state != COPY_FRESH || may_begin(c, source))));
    if (rc < 0) {
        request_error(r, rc);
    } else if (mine && n) {
        reply_name(r, n);
    } else if (mine) {
        copy_progress(c);
        request_error(r, -ENOENT);
    }
    copy_unref(c);
    return rc < 0 || mine;
}

void gesture_shown(struct req *r, const struct node *n, struct stat *st)
{
    if (!r->task.fs->copies || n->kind != NODE_CONTROL || !is_image(n->name))
        return;
    for (const struct copy *c = r->task.fs->copies; c; c = c->next)
        if (c->source == n->parent && c->state == COPY_COLLECTING && is_asker(r, c)) {
            st->st_size = 0;
            st->st_blocks = 0;
            return;
        }
}

/* --- open --- */

int gesture_open(struct req *r)
{
    struct copy *c = r->task.fs->copies && r->node->parent ? copy_find(r->task.fs, r->node->parent) : NULL;
    if (!c)
        return 0;
    if (c->state == COPY_FRESH) {
        if ((r->flags & O_ACCMODE) != O_RDONLY || !is_asker(r, c))
            copy_end(c);
        return 0;
    }
    if (c->state == COPY_COLLECTING && c->head_written)
        copy_commit(c);
    if ((c->state == COPY_COMMITTED || c->state == COPY_DONE) && is_asker(r, c))
        copy_end(c); /* the copier goes on to use what it made */
    else if (c->state == COPY_COMMITTING)
        return copy_wait(&r->task, c, COPY_COMMITTING, 0);
    return 0;
}

void gesture_opened(struct req *r, struct handle *h)
{
    struct fs *fs = r->task.fs;
    const struct copy *c = fs->copies;
    if (handle_writes(h) || !is_copyable(h->node->parent))
        return;
    while (c && c->uid != r->uid)
        c = c->next;
    if (c && proc_identify(r->tid, &h->opener) < 0) /* its threads may be gone when it comes to the copy */
        h->opener.tgid = 0;
    h->opener_tid = r->tid;
    h->next_source = fs->sources;
    h->link_source = &fs->sources;
    if (h->next_source)
        h->next_source->link_source = &h->next_source;
    fs->sources = h;
    if (gesture_skips(h))
        h->attr.st_size = h->attr.st_blocks = 0;
}

bool gesture_skips(const struct handle *h)
{
    if (!h->link_source || !is_image(h->node->name))
        return false;
    for (const struct copy *c = h->fs->copies; c; c = c->next)
        if (c->source == h->node->parent && c->state == COPY_COLLECTING && is_opener(h, &c->maker))
            return true;
    return false;
}

bool gesture_open_swallowed(struct req *r)
{
    struct opening none = {0};
    struct node *n = r->node;
    if (n->kind != NODE_SWALLOWED)
        return false;
    struct copy *c = n->copy;
    if (c && c->head_written && (r->flags & O_ACCMODE) == O_RDONLY && gesture_open(r) == 0)
        c = NULL; /* P copied and now reads what it made (gesture_open saw to the commit) */
    struct handle *h = c && c->state == COPY_COLLECTING ? handle_create(r->task.fs, n, r->uid, r->flags, &none) : NULL;
    if (!h) { /* the copy is over: let the kernel look what is there really */
        request_error(r, -ESTALE);
        return true;
    }
    h->copy = c;
    c->open++;
    ops_reply_open(r, h);
    return true;
}

/* --- create --- */

static void take_into_copy(struct copy *c, struct handle *h)
{
    h->copy = c;
    h->node->copy = c;
    c->open++;
}

static void reply_created(struct req *r, struct copy *c, struct node *n, struct handle *h, const struct stat *st)
{
    if (!copy_name_add(c, r->name, n, st)) {
        handle_unref(r->task.fs, h);
        node_unref(r->task.fs, n);
        request_error(r, -EPERM);
        return;
    }
    take_into_copy(c, h);
    copy_progress(c);
    ops_reply_create(r, n, h, st);
}

static void create_swallowed(struct req *r, struct copy *c)
{
    struct fs *fs = r->task.fs;
    struct opening none = {0};
    struct node *n = node_swallowed(fs, r->node, r->name);
    struct handle *h = n ? handle_create(fs, n, r->uid, r->flags, &none) : NULL;
    struct stat st;
    if (!h) {
        node_unref(fs, n);
        request_error(r, -ENOMEM);
        return;
    }
    n->uid = r->uid;
    n->gid = r->gid;
    attr_of_swallowed(n, &st);
    reply_created(r, c, n, h, &st);
}

/* A carried attribute: opened on hostd, which collects it. -ENOENT when X has no such attribute. */
static int create_carried(struct req *r, struct copy *c)
{
    struct fs *fs = r->task.fs;
    struct found f = {0};
    struct opening o;
    struct stat st;
    int rc = ops_walk_child(&r->task, r->node, r->uid, r->name, &f);
    if (rc < 0)
        return rc;
    struct node *n = ops_take_found(r, r->node, r->name, &f);
    if (!n)
        return -ENOMEM;
    uint32_t flags = handle_p9_flags(r->flags & ~(O_CREAT | O_EXCL));
    rc = handle_open_node(&r->task, n, r->uid, flags, OPENING_ATTR, &o);
    struct handle *h = rc == 0 ? handle_create(fs, n, r->uid, r->flags, &o) : NULL;
    if (!h) {
        if (rc == 0)
            fid_clunk(fs, o.fid.generation, o.fid.fid);
        node_unref(fs, n);
        return rc < 0 ? rc : -ENOMEM;
    }
    attr_to_stat(&o.attr, &h->attr);
    h->attr_fixed = true;
    attr_to_stat(&o.attr, &st);
    if (c->state == COPY_COLLECTING) {
        reply_created(r, c, n, h, &st);
    } else { /* ended while we walked */
        handle_unref(fs, h);
        node_unref(fs, n);
        rc = -ESTALE;
    }
    return rc;
}

bool gesture_create(struct req *r)
{
    struct copy *c = r->task.fs->copies ? copy_find(r->task.fs, r->node) : NULL;
    struct handle *source = c && c->state == COPY_FRESH ? held_source(c, r->name, r->tid) : NULL;
    if (!c || (c->state == COPY_FRESH && !source) || copy_name_find(c, r->name) || !is_asker(r, c))
        return false;
    copy_ref(c);
    if (source && copy_begin(&r->task, c, source->node->parent) < 0) {
        copy_unref(c);
        return false; /* hostd knows of a touch: it is an object like any other */
    }
    int rc = copy_wait(&r->task, c, COPY_OPENING, 0);
    if (rc == 0 && c->ended)
        rc = -ESTALE;
    if (rc == 0)
        rc = c->state == COPY_COLLECTING && copy_carried(r->name) ? create_carried(r, c) : -ENOENT;
    if (rc == -ENOENT)
        create_swallowed(r, c);
    else if (rc < 0)
        request_error(r, rc);
    copy_unref(c);
    return true;
}

bool gesture_unlink(struct req *r)
{
    struct copy *c = r->task.fs->copies ? copy_find(r->task.fs, r->node) : NULL;
    if (!c || !is_asker(r, c))
        return false;
    copy_ref(c);
    bool held = c->state == COPY_OPENING || c->state == COPY_COLLECTING || c->state == COPY_COMMITTING;
    bool mine = held || copy_ask_untouched(&r->task, c) == 0; /* else hostd answers as for every attribute */
    if (mine) {
        copy_name_remove(c, r->name);
        copy_progress(c);
        request_error(r, 0);
    }
    copy_unref(c);
    return mine;
}

bool gesture_copied(const struct node *n)
{
    return n->copy != NULL;
}

/* --- write and close --- */

void gesture_wrote(struct handle *h)
{
    if (!h->copy)
        return;
    if (!strcmp(h->node->name, "head"))
        h->copy->head_written = true;
    copy_progress(h->copy);
}

void gesture_swallowed(struct handle *h)
{
    if (h->copy)
        copy_progress(h->copy);
}

int gesture_flush(struct req *r, struct handle *h)
{
    struct copy *c = h->copy;
    if (!c || c->open != 1 || !copy_completes(c, copy_carried(h->node->name)))
        return 0;
    copy_ref(c);
    copy_commit(c);
    int rc = copy_wait(&r->task, c, COPY_COMMITTING, 0);
    if (rc == 0)
        rc = copy_wait(&r->task, c, COPY_COMMITTED, FLUSH_WAIT_MSEC);
    rc = rc == 0 ? c->result : 0; /* too slow to report here: X's `error` will tell */
    copy_unref(c);
    return rc;
}

void gesture_released(struct handle *h)
{
    struct copy *c = h->copy;
    if (h->link_source) {
        *h->link_source = h->next_source;
        if (h->next_source)
            h->next_source->link_source = h->link_source;
        h->link_source = NULL;
    }
    if (!c)
        return;
    h->copy = NULL;
    c->open--;
    c->arrived |= copy_carried(h->node->name);
    copy_progress(c);
}

void gesture_disconnected(struct fs *fs)
{
    while (fs->copies)
        copy_end(fs->copies);
}
