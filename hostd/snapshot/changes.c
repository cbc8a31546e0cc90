// SPDX-License-Identifier: Apache-2.0
// Lists of changed files: see changes.h.
//
// Theory of operation. One coroutine: the browser of the newer snapshot is started, and given the ranges in which space-noded says that the two images differ, some
// hundred thousand at a time; then it is read until its end. space-hostd sees numbers and lines of text, and looks into neither image.
#include "hostd/snapshot/changes.h"

#include "base/cleanup.h"
#include "hostd/noded_client.h"
#include "hostd/snapshot/browser.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TEXT_MAX  (16u << 20)
#define TEXTS_MAX (64u << 20) /* of all lists that somebody has open */
#define READS_MAX (1u << 20)  /* then the browser makes fun of us */
#define CHUNK     (64u << 10) /* of a message */
#define PAIRS     1024u       /* of one message */

void changes_unref(struct changes *c)
{
    if (!c || --c->refs)
        return;
    c->now->space->changes_bytes -= c->len;
    free(c->text);
    snapshot_unref(c->now);
    snapshot_unref(c->before);
    free(c);
}

static int add_text(struct changes *c, const char *p, size_t len, struct err *e)
{
    if (len == 0 || (len == 1 && p[0] == '\n')) /* the end, or it is still looking */
        return 0;
    if (c->len + len > TEXT_MAX)
        return err_set(e, E2BIG, "more than %u MiB of names have changed", TEXT_MAX >> 20);
    if (c->now->space->changes_bytes + len > TEXTS_MAX)
        return err_set(e, EAGAIN, "lists of changes that are open hold %u MiB of names together; try again later", TEXTS_MAX >> 20);
    if (c->len + len > c->room) {
        c->room = (c->len + len) * 2;
        c->text = realloc(c->text, c->room);
        if (!c->text)
            abort();
    }
    memcpy(c->text + c->len, p, len);
    c->len += len;
    c->now->space->changes_bytes += len;
    return 0;
}

/* ---- one message ---- */

struct step {
    struct co *co;
    struct changes *c;
    struct err *e;
    size_t got;
    int rc;
};

static void step_done(void *user, int err, const struct p9_msg *r)
{
    struct step *st = user;
    st->rc = err;
    if (err == 0 && r->type == P9_Rread) {
        st->got = r->Rread.data.len;
        st->rc = add_text(st->c, (const char *)r->Rread.data.p, st->got, st->e);
    }
    co_wake(st->co, 0);
}

/* The browser with this serial number, unless it has ended. */
static struct browser *still(const struct changes *c, uint64_t serial)
{
    return browser_ready(c->now) && browser_serial(c->now->browser) == serial ? c->now->browser : NULL;
}

static int send_message(struct changes *c, uint64_t serial, struct p9_msg *m, size_t *got, struct err *e)
{
    struct step st = {.co = co_self(c->now->space->co), .c = c, .e = e};
    struct browser *b = still(c, serial);
    if (b) {
        p9_client_call(browser_client(b), m, step_done, &st);
        co_wait_uncancellable(c->now->space->co);
    }
    if (got)
        *got = st.got;
    if (b && st.rc == 0)
        return 0;
    return e->code ? -e->code : err_set(e, EIO, "the file system of snapshot '%s' cannot be read", c->now->row.name);
}

/* ---- ranges ---- */

static int send_ranges(struct changes *c, uint64_t serial, uint32_t fid, int fd, uint64_t *at, struct err *e)
{
    struct noded_range in[PAIRS];
    ssize_t n;
    while ((n = read(fd, in, sizeof in)) > 0) {
        uint64_t out[PAIRS][2];
        size_t count = (size_t)n / sizeof in[0];
        for (size_t i = 0; i < count; i++) {
            out[i][0] = in[i].offset;
            out[i][1] = in[i].length;
        }
        struct p9_msg m = {.type = P9_Twrite};
        m.Twrite.fid = fid;
        m.Twrite.offset = *at;
        m.Twrite.data = (struct p9_data){(const uint8_t *)out, (uint32_t)(count * sizeof out[0])};
        int rc = send_message(c, serial, &m, NULL, e);
        if (rc < 0)
            return rc;
        *at += count * sizeof out[0];
    }
    return n < 0 ? err_sys(e, "read ranges") : 0;
}

static int compare(struct changes *c, uint64_t serial, uint32_t fid, struct err *e)
{
    struct noded_request req = {.op = NODED_FILE_COMPARE,
                                .kind = NODED_SNAPSHOT,
                                .id = (uint64_t)c->now->row.id,
                                .kind2 = NODED_SNAPSHOT,
                                .id2 = (uint64_t)c->before->row.id,
                                .file = NODED_DISK,
                                .flags = NODED_RANGES};
    struct noded_reply rep;
    uint64_t at = 0;
    int rc;
    do {
        AUTO_CLOSE int fd = -1;
        rc = noded_call(c->now->space, &req, &rep, &fd, e);
        if (rc == 0)
            rc = send_ranges(c, serial, fid, fd, &at, e);
        req.size = rep.extents.next;
    } while (rc == 0 && req.size);
    return rc;
}

/* ---- all of it ---- */

static int map(struct changes *c, uint64_t serial, uint32_t fid, struct err *e)
{
    struct p9_msg m = {.type = P9_Txattrwalk};
    size_t got = 1;
    m.Txattrwalk.fid = browser_root(c->now->browser);
    m.Txattrwalk.newfid = fid;
    m.Txattrwalk.name = (struct p9_str){"space.changes", 13};
    int rc = send_message(c, serial, &m, NULL, e);
    if (rc == 0)
        rc = compare(c, serial, fid, e);
    unsigned reads = 0;
    for (uint64_t at = 0; rc == 0 && got; at += got) {
        if (c->refs == 1) /* nobody wants it any more */
            return err_set(e, ECANCELED, "the list was closed");
        if (++reads > READS_MAX)
            return err_set(e, EIO, "the file system of snapshot '%s' has no end", c->now->row.name);
        m = (struct p9_msg){.type = P9_Tread};
        m.Tread.fid = fid;
        m.Tread.offset = at;
        m.Tread.count = CHUNK;
        rc = send_message(c, serial, &m, &got, e);
    }
    return rc;
}

/* browser_start may be done at once. */
struct start {
    struct waiter w;
    struct co *co; /* once it waits */
    struct err *e;
    bool done;
    int rc;
};

static void started(struct waiter *w, int rc, const struct err *e)
{
    struct start *st = (struct start *)(void *)w;
    st->done = true;
    st->rc = rc;
    if (rc < 0 && e)
        *st->e = *e;
    if (st->co)
        co_wake(st->co, 0);
}

static int start_browser(struct changes *c, struct err *e)
{
    struct space *s = c->now->space;
    struct start st = {.w.done = started, .e = e};
    browser_start(c->now, &st.w);
    if (!st.done) {
        st.co = co_self(s->co);
        co_wait_uncancellable(s->co);
    }
    return st.rc;
}

static int run(struct changes *c, struct err *e)
{
    int rc = browser_ready(c->now) ? 0 : start_browser(c, e);
    if (rc == 0 && !browser_ready(c->now))
        rc = err_set(e, EIO, "the file system of snapshot '%s' cannot be read", c->now->row.name);
    if (rc < 0)
        return rc;
    uint64_t serial = browser_serial(c->now->browser);
    struct p9_client *client = browser_client(c->now->browser);
    uint32_t fid = p9_client_fid_alloc(client), generation = p9_client_generation(client);
    browser_hold(c->now->browser, 1);
    rc = map(c, serial, fid, e);
    struct browser *b = still(c, serial);
    if (b) {
        p9_client_clunk(browser_client(b), generation, fid);
        browser_hold(b, -1);
    }
    return rc;
}

static void work(void *arg)
{
    struct changes *c = arg;
    c->now->loads++; /* not removed meanwhile by the schedule */
    c->before->loads++;
    c->rc = run(c, &c->error);
    c->now->loads--;
    c->before->loads--;
    c->done = true;
    wait_done_all(&c->waiters, c->rc, c->rc < 0 ? &c->error : NULL);
    changes_unref(c);
}

struct changes *changes_start(struct snapshot *now, struct snapshot *before)
{
    struct changes *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->refs = 2;
    c->now = snapshot_ref(now);
    c->before = snapshot_ref(before);
    co_spawn(now->space->co, work, c);
    return c;
}
