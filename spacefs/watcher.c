// SPDX-License-Identifier: Apache-2.0
// Reading `events` on behalf of pollers: see watcher.h.
#include "spacefs/watcher.h"

#include "base/log.h"
#include "base/str.h"
#include "spacefs/conn.h"
#include "spacefs/fid.h"
#include "spacefs/ops.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_  8192u /* a longer line wakes everybody */
#define READ_SIZE  65536u
#define RETRY_MSEC 500u

struct watch {
    struct watch *next, **link;
    struct watcher *watcher;
    uint64_t object_id;
    void (*changed)(void *user);
    void *user;
};

struct subscriber {
    struct subscriber *next;
    struct task *task;
};

/* Alive as long as its task runs; ends itself when its last watch went. */
struct watcher {
    struct task task; /* first */
    struct watcher *next, **link;
    uint32_t uid;
    struct watch *watches;
    struct subscriber *waiting;
    bool subscribed, again, stopping;
    char line[LINE_MAX_];
    size_t len;
};

/* The 12 hex digits after "id":" in a line of JSON; 0 when there are none. */
static uint64_t id_in(const char *line, size_t len)
{
    static const char key[] = "\"id\":";
    const char *p = memmem(line, len, key, sizeof key - 1);
    const char *end = line + len;
    uint64_t id;
    if (!p)
        return 0;
    p += sizeof key - 1;
    while (p < end && (*p == ' ' || *p == '"'))
        p++;
    return end - p >= 12 && str_parse_id(p, 12, &id) == 0 ? id : 0;
}

static void tell(struct watcher *w, uint64_t id, bool all)
{
    for (struct watch *x = w->watches, *next; x; x = next) {
        next = x->next;
        if (all || x->object_id == id)
            x->changed(x->user);
    }
}

static void take_events(struct watcher *w, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (data[i] == '\n') {
            tell(w, id_in(w->line, w->len), w->len == sizeof w->line);
            w->len = 0;
        } else if (w->len < sizeof w->line) {
            w->line[w->len++] = data[i];
        }
    }
}

static void wake_subscribers(struct watcher *w)
{
    for (struct subscriber *s = w->waiting, *next; s; s = next) {
        next = s->next;
        task_wake(s->task, s, 0);
    }
}

static int open_events(struct task *t, uint32_t uid, struct opened *out)
{
    struct fs *fs = t->fs;
    struct found f = {.keep = true};
    struct p9_msg m = {.type = P9_Tlopen};
    int rc = ops_walk_child(t, fs->top, uid, "events", &f);
    if (rc < 0)
        return rc;
    m.Tlopen = (struct p9_Tlopen){.fid = f.fid, .flags = P9_RDONLY};
    rc = call_run(t, &m, NULL);
    if (rc < 0)
        fid_clunk(fs, f.generation, f.fid);
    *out = (struct opened){.fid = f.fid, .generation = f.generation};
    return rc;
}

/* Reads events until something fails. */
static int follow(struct watcher *w)
{
    struct task *t = &w->task;
    struct opened events;
    uint64_t offset = 0;
    int rc = open_events(t, w->uid, &events);
    if (rc < 0)
        return rc;
    w->len = 0;
    w->subscribed = true;
    if (w->again)
        tell(w, 0, true);
    w->again = true;
    wake_subscribers(w);
    while (rc == 0) {
        struct p9_msg m = {.type = P9_Tread}, reply;
        m.Tread = (struct p9_Tread){.fid = events.fid, .offset = offset, .count = READ_SIZE};
        rc = call_run(t, &m, &reply);
        if (rc == 0 && !reply.Rread.data.len)
            rc = -EPIPE;
        if (rc == 0) {
            offset += reply.Rread.data.len;
            take_events(w, reply.Rread.data.p, reply.Rread.data.len);
        }
    }
    w->subscribed = false;
    fid_clunk(t->fs, events.generation, events.fid);
    return rc;
}

static void run(struct task *t)
{
    struct watcher *w = (struct watcher *)t;
    while (!w->stopping) {
        t->deadline = 0;
        t->resends = 0;
        int rc = conn_wait(t->fs->conn, t);
        if (rc == 0)
            rc = follow(w);
        if (w->stopping)
            break;
        if (rc > TASK_LOST && rc != -EIO)
            log_debug("reading events of uid %u: %s", w->uid, strerror(-rc));
        if (rc != TASK_LOST && rc != TASK_UNSENT)
            task_sleep(t, RETRY_MSEC);
    }
    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    task_finish(t);
    free(w);
}

static struct watcher *watcher_of(struct fs *fs, uint32_t uid)
{
    struct watcher *w = fs->watchers;
    while (w && (w->uid != uid || w->stopping))
        w = w->next;
    if (w)
        return w;
    w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->uid = uid;
    w->next = fs->watchers;
    w->link = &fs->watchers;
    if (w->next)
        w->next->link = &w->next;
    fs->watchers = w;
    return w;
}

struct watch *watch_start(struct fs *fs, uint32_t uid, uint64_t object_id, void (*changed)(void *user), void *user)
{
    struct watch *x = calloc(1, sizeof *x);
    struct watcher *w = x ? watcher_of(fs, uid) : NULL;
    if (!w) {
        free(x);
        return NULL;
    }
    *x = (struct watch){.watcher = w, .object_id = object_id, .changed = changed, .user = user};
    x->next = w->watches;
    x->link = &w->watches;
    if (x->next)
        x->next->link = &x->next;
    w->watches = x;
    if (!w->task.fn)
        task_start(fs, &w->task, run);
    return x;
}

int watch_wait(struct task *t, struct watch *x)
{
    struct watcher *w = x->watcher;
    if (w->subscribed)
        return 0;
    struct subscriber s = {.next = w->waiting, .task = t}, **q;
    w->waiting = &s;
    int rc = task_wait_msec(t, &s, CONN_WAIT_MSEC);
    for (q = &w->waiting; *q != &s; q = &(*q)->next)
        ;
    *q = s.next;
    return rc == -ETIMEDOUT ? -EIO : rc;
}

void watch_stop(struct watch *x)
{
    if (!x)
        return;
    struct watcher *w = x->watcher;
    *x->link = x->next;
    if (x->next)
        x->next->link = x->link;
    free(x);
    if (w->watches || w->stopping)
        return;
    w->stopping = true;
    task_interrupt(&w->task);
}
