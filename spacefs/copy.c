// SPDX-License-Identifier: Apache-2.0
// Records of copies: see copy.h; the theory of operation is in gesture.c.
#include "spacefs/copy.h"

#include "base/log.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/task.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The order is of no importance; head must be the first. */
static const char *const carried[] = {"head", "memory", "vcpus", "egress", "keep", "idle", "wake", "labels"};
#define CARRIED (sizeof carried / sizeof *carried)

unsigned copy_carried(const char *name)
{
    for (unsigned i = 0; i < CARRIED; i++)
        if (!strcmp(name, carried[i]))
            return 1u << i;
    return 0;
}

/* --- names --- */

struct copy_name *copy_name_find(const struct copy *c, const char *name)
{
    struct copy_name *n = c->names;
    while (n && strcmp(n->name, name))
        n = n->next;
    return n;
}

bool copy_name_add(struct copy *c, const char *name, struct node *node, const struct stat *st)
{
    size_t len = strlen(name) + 1;
    struct copy_name *n = c->name_count < COPY_NAMES_MAX ? malloc(sizeof *n + len) : NULL;
    if (!n)
        return false;
    n->node = node_ref(node);
    n->st = *st;
    memcpy(n->name, name, len);
    n->next = c->names;
    c->names = n;
    c->name_count++;
    return true;
}

static void forget_name(struct copy *c, struct copy_name *n)
{
    for (struct handle *h = n->node->handles; h; h = h->next)
        if (h->copy == c)
            h->copy = NULL;
    n->node->copy = NULL;
    node_unref(c->fs, n->node);
    free(n);
    c->name_count--;
}

void copy_name_remove(struct copy *c, const char *name)
{
    struct copy_name **p = &c->names;
    while (*p && strcmp((*p)->name, name))
        p = &(*p)->next;
    struct copy_name *n = *p;
    if (!n)
        return;
    *p = n->next;
    forget_name(c, n);
}

/* --- the maker's end and the idle timer --- */

struct copy_watch {
    uv_poll_t exit;
    uv_timer_t idle;
    int pidfd;
    struct copy *copy; /* NULL when closing */
    unsigned closing;
};

static void on_maker_gone(uv_poll_t *h, int status, int events)
{
    struct copy_watch *w = h->data;
    struct copy *c = w->copy;
    (void)status;
    (void)events;
    uv_poll_stop(h);
    if (!c)
        return;
    c->maker_gone = true;
    if (c->state == COPY_COLLECTING && c->head_written)
        copy_commit(c);
    else if (c->state != COPY_COMMITTING && c->state != COPY_COMMITTED)
        copy_end(c); /* before its head: hostd removes it */
}

static void on_idle(uv_timer_t *h)
{
    struct copy_watch *w = h->data;
    if (w->copy && w->copy->state == COPY_COLLECTING && w->copy->head_written && !w->copy->open)
        copy_commit(w->copy);
}

static void on_watch_closed(uv_handle_t *h)
{
    struct copy_watch *w = h->data;
    if (--w->closing)
        return;
    close(w->pidfd);
    free(w);
}

static void watch_end(struct copy_watch *w)
{
    w->copy = NULL;
    w->closing = 2;
    uv_close((uv_handle_t *)&w->exit, on_watch_closed);
    uv_close((uv_handle_t *)&w->idle, on_watch_closed);
}

/* NULL when the maker is gone, or a new process has its number already. */
static struct copy_watch *watch_begin(struct fs *fs, struct copy *c)
{
    struct proc_id now;
    int fd = proc_open(&c->maker);
    struct copy_watch *w = fd < 0 ? NULL : calloc(1, sizeof *w);
    if (!w || proc_identify(c->maker.tgid, &now) < 0 || !proc_same(&now, &c->maker) || uv_poll_init(fs->loop, &w->exit, fd) < 0) {
        if (fd >= 0)
            close(fd);
        free(w);
        return NULL;
    }
    w->pidfd = fd;
    w->copy = c;
    uv_timer_init(fs->loop, &w->idle);
    w->exit.data = w->idle.data = w;
    uv_poll_start(&w->exit, UV_READABLE, on_maker_gone);
    return w;
}

/* --- records --- */

struct copy *copy_find(struct fs *fs, const struct node *dir)
{
    struct copy *c = fs->copies;
    while (c && c->dir != dir)
        c = c->next;
    return c;
}

static void forget_oldest(struct fs *fs)
{
    struct copy *oldest = NULL;
    for (struct copy *c = fs->copies; c; c = c->next)
        if (c->state == COPY_FRESH || c->state == COPY_DONE)
            oldest = c;
    if (oldest)
        copy_end(oldest);
}

void copy_create(struct fs *fs, struct node *dir, uint32_t uid, const struct proc_id *maker)
{
    if (fs->copy_count >= COPIES_MAX)
        forget_oldest(fs);
    struct copy *c = fs->copy_count < COPIES_MAX ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return;
    c->fs = fs;
    c->maker = *maker;
    c->watch = watch_begin(fs, c);
    if (!c->watch) {
        free(c);
        return;
    }
    c->refs = 1;
    c->dir = node_ref(dir);
    c->uid = uid;
    c->next = fs->copies;
    c->link = &fs->copies;
    if (c->next)
        c->next->link = &c->next;
    fs->copies = c;
    fs->copy_count++;
}

struct copy *copy_ref(struct copy *c)
{
    c->refs++;
    return c;
}

void copy_unref(struct copy *c)
{
    if (--c->refs)
        return;
    node_unref(c->fs, c->dir);
    node_unref(c->fs, c->source);
    free(c);
}

static void give_up_fid(struct copy *c)
{
    if (c->fid.generation)
        fid_clunk(c->fs, c->fid.generation, c->fid.fid);
    c->fid.generation = 0;
}

static void wake_waiters(struct copy *c)
{
    for (struct copy_waiter *w = c->waiters, *next; w; w = next) {
        next = w->next;
        task_wake(w->task, w, 0);
    }
}

void copy_end(struct copy *c)
{
    if (c->ended)
        return;
    c->ended = true;
    c->fs->changes++;
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    c->fs->copy_count--;
    give_up_fid(c);
    while (c->names) {
        struct copy_name *n = c->names;
        c->names = n->next;
        forget_name(c, n);
    }
    watch_end(c->watch);
    c->watch = NULL;
    c->state = COPY_DONE;
    wake_waiters(c);
    copy_unref(c);
}

int copy_wait(struct task *t, struct copy *c, enum copy_state state, uint64_t msec)
{
    int rc = 0;
    copy_ref(c);
    while (rc == 0 && c->state == state) {
        struct copy_waiter w = {.next = c->waiters, .task = t}, **p;
        c->waiters = &w;
        rc = msec ? task_wait_msec(t, &w, msec) : task_wait(t, &w);
        for (p = &c->waiters; *p != &w; p = &(*p)->next)
            ;
        *p = w.next;
    }
    copy_unref(c);
    return rc;
}

/* --- begin --- */

static int open_copy(struct task *t, struct copy *c)
{
    struct fs *fs = t->fs;
    struct fid_ref *ref;
    int rc = fid_get(t, c->dir, c->uid, &ref);
    if (rc < 0)
        return rc;
    uint32_t fid = fid_alloc(fs), generation = conn_generation(fs->conn);
    struct p9_msg walk = {.type = P9_Twalk}, lopen = {.type = P9_Tlopen};
    walk.Twalk = (struct p9_Twalk){.fid = ref->fid, .newfid = fid, .names = {.n = 1, .v = {p9_str_of("#copy")}}};
    /* the commit is to answer when it is recorded, not when the object runs */
    lopen.Tlopen = (struct p9_Tlopen){.fid = fid, .flags = P9_WRONLY | P9_NONBLOCK};
    struct call *walking = call_start(t, &walk);
    struct call *opening = call_start(t, &lopen);
    rc = call_wait(walking);
    if (rc == 0)
        rc = call_wait(opening);
    call_end(opening);
    call_end(walking);
    fid_put(ref);
    if (rc < 0)
        fid_clunk(fs, generation, fid);
    else
        c->fid = (struct opened){.fid = fid, .generation = generation};
    return rc;
}

int copy_ask_untouched(struct task *t, struct copy *c)
{
    struct fs *fs = t->fs;
    struct fid_ref *ref;
    copy_ref(c);
    int rc = fid_get(t, c->dir, c->uid, &ref);
    if (rc == 0) {
        uint32_t fid = fid_alloc(fs), generation = conn_generation(fs->conn);
        struct p9_msg walk = {.type = P9_Twalk};
        walk.Twalk = (struct p9_Twalk){.fid = ref->fid, .newfid = fid, .names = {.n = 1, .v = {p9_str_of("#copy")}}};
        rc = call_run(t, &walk, NULL);
        fid_clunk(fs, generation, fid);
        fid_put(ref);
    }
    if (rc == -EBUSY)
        copy_end(c);
    copy_unref(c);
    return rc;
}

/* Which of the carried attributes are there in the source: a walk for each, all at once. */
static int learn_expected(struct task *t, struct copy *c)
{
    struct fs *fs = t->fs;
    struct call *calls[CARRIED];
    uint32_t fids[CARRIED], generation = conn_generation(fs->conn);
    struct fid_ref *ref;
    int rc = fid_get(t, c->source, c->uid, &ref);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < CARRIED; i++) {
        struct p9_msg m = {.type = P9_Twalk};
        fids[i] = fid_alloc(fs);
        m.Twalk = (struct p9_Twalk){.fid = ref->fid, .newfid = fids[i], .names = {.n = 1, .v = {p9_str_of(carried[i])}}};
        calls[i] = call_start(t, &m);
    }
    for (unsigned i = 0; i < CARRIED; i++) {
        int found = call_wait(calls[i]);
        if (found == 0 && calls[i]->reply.Rwalk.qids.n == 1)
            c->expected |= 1u << i;
        else if (found == TASK_LOST || found == TASK_UNSENT || found == -EINTR)
            rc = found;
        call_end(calls[i]);
        fid_clunk(fs, generation, fids[i]);
    }
    fid_put(ref);
    return rc;
}

int copy_begin(struct task *t, struct copy *c, struct node *source)
{
    copy_ref(c);
    c->state = COPY_OPENING;
    c->source = node_ref(source);
    int rc = open_copy(t, c);
    if (rc == 0)
        rc = learn_expected(t, c);
    if (rc == 0 && c->ended)
        rc = -ESTALE;
    if (rc < 0) {
        copy_end(c);
        give_up_fid(c); /* it may have been opened after the end */
    } else {
        c->state = COPY_COLLECTING;
        wake_waiters(c);
    }
    if (rc == 0 && c->maker_gone)
        copy_end(c);
    copy_unref(c);
    return rc;
}

/* --- commit --- */

struct commit {
    struct task task; /* first */
    struct copy *copy;
};

static void commit(struct task *t)
{
    struct commit *k = (struct commit *)t;
    struct copy *c = k->copy;
    struct p9_msg m = {.type = P9_Twrite};
    m.Twrite = (struct p9_Twrite){.fid = c->fid.fid, .data = {.p = "commit", .len = 6}};
    bool lost = c->fid.generation != conn_generation(t->fs->conn);
    struct call *sending = lost ? NULL : call_start(t, &m);
    c->state = COPY_COMMITTED;
    t->fs->changes++;
    wake_waiters(c);
    int rc = lost ? -EIO : call_wait(sending);
    call_end(sending);
    c->result = rc <= TASK_LOST ? -EIO : rc;
    c->state = COPY_DONE;
    give_up_fid(c);
    log_debug("copy into %s committed: %s", c->dir->name, strerror(-c->result));
    wake_waiters(c);
    if (c->maker_gone)
        copy_end(c);
    task_finish(t);
    copy_unref(c);
    free(k);
}

void copy_commit(struct copy *c)
{
    struct commit *k = calloc(1, sizeof *k);
    if (!k) {
        copy_end(c);
        return;
    }
    c->state = COPY_COMMITTING;
    k->copy = copy_ref(c);
    task_start(c->fs, &k->task, commit);
}

bool copy_completes(const struct copy *c, unsigned closing)
{
    return c->state == COPY_COLLECTING && c->head_written && ((c->arrived | closing) & c->expected) == c->expected;
}

void copy_progress(struct copy *c)
{
    if (c->ended || c->state != COPY_COLLECTING)
        return;
    if (!c->open && copy_completes(c, 0))
        copy_commit(c);
    else
        uv_timer_start(&c->watch->idle, on_idle, COPY_IDLE_MSEC, 0);
}
