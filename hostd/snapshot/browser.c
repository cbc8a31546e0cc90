// SPDX-License-Identifier: Apache-2.0
// Sessions with the browsers of snapshots: see browser.h.
//
// Theory of operation. A browser goes ASKING (space-noded is asked for the image, read-only) -> VERSION (space-browsed was given it
// over a new connection, which is the session from then on) -> ATTACHING -> READY, or FAILED when the attach says that the image
// cannot be read. A FAILED one stays for a while, so that who asks again is told without a new process. When the connection
// closes or the protocol is broken, the browser is gone: a crafted image may have taken its process with it. The next use starts
// another one, but not within RETRY_MSEC of such an end. All end by themselves when nobody uses them.
#include "hostd/snapshot/browser.h"

#include "base/log.h"
#include "hostd/noded_client.h"
#include "loop/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define TICK_MSEC  1000u
#define RETRY_MSEC 1000u

enum browser_state { BROWSER_ASKING, BROWSER_VERSION, BROWSER_ATTACHING, BROWSER_READY, BROWSER_FAILED };

struct browser {
    struct browser *next; /* in space.browsers */
    struct space *space;
    struct snapshot *snapshot; /* NULL once closed */
    enum browser_state state;
    struct stream *stream;
    struct p9_client *client;
    uv_async_t wake;
    uv_timer_t tick;
    uint64_t serial, used; /* uv_now */
    uint32_t root;
    unsigned open;  /* files */
    bool progress;  /* something arrived since the last tick */
    unsigned quiet; /* ticks with calls in flight and nothing arriving */
    unsigned refs;  /* handles, and the request to space-noded */
    struct wait_list waiters;
    struct err why; /* it failed */
};

static void unref(struct browser *b)
{
    if (--b->refs)
        return;
    p9_client_destroy(b->client);
    free(b);
}

static void handle_closed(uv_handle_t *h)
{
    unref(h->data);
}

void browser_close(struct browser *b)
{
    struct err e = {0};
    if (!b || !b->snapshot)
        return;
    struct browser **p = &b->space->browsers;
    while (*p != b)
        p = &(*p)->next;
    *p = b->next;
    b->space->browser_count--;
    struct snapshot *sn = b->snapshot;
    sn->browser = NULL;
    sn->readers--;
    b->snapshot = NULL;
    if (b->stream)
        stream_close(b->stream);
    b->stream = NULL;
    p9_client_disconnected(b->client);
    err_set(&e, EIO, "the file system of this snapshot cannot be read: its reader ended");
    wait_done_all(&b->waiters, -EIO, b->why.code ? &b->why : &e);
    uv_close((uv_handle_t *)&b->wake, handle_closed);
    uv_close((uv_handle_t *)&b->tick, handle_closed);
    snapshot_unref(sn);
}

/* From a callback of the client, which must not be destroyed there: the next tick does it. */
static void give_up(struct browser *b, int code, const char *why)
{
    if (b->state == BROWSER_FAILED || !b->snapshot)
        return;
    b->state = BROWSER_FAILED;
    err_set(&b->why, code, "read the file system of snapshot '%s': %s", b->snapshot->row.name, why);
    wait_done_all(&b->waiters, -code, &b->why);
}

/* ---- the session ---- */

static void attached(void *user, int err, const struct p9_msg *r)
{
    struct browser *b = user;
    (void)r;
    if (err < 0) {
        if (err != -ECONNRESET)
            give_up(b, EIO, "the image holds no file system that can be read (space-browsed's log says more)");
        return;
    }
    b->state = BROWSER_READY;
    wait_done_all(&b->waiters, 0, NULL);
}

static void version_done(void *user, int err, const struct p9_msg *r)
{
    struct browser *b = user;
    struct p9_msg m = {.type = P9_Tattach};
    (void)r;
    if (err < 0) {
        if (err != -ECONNRESET)
            give_up(b, EIO, "its reader speaks no 9P2000.L");
        return;
    }
    b->state = BROWSER_ATTACHING;
    b->root = p9_client_fid_alloc(b->client);
    if (b->root == 0) /* number 0 stays reserved: it means "none" in struct guest_fid */
        b->root = p9_client_fid_alloc(b->client);
    m.Tattach.fid = b->root;
    m.Tattach.afid = P9_NOFID;
    m.Tattach.n_uname = P9_NONUNAME;
    p9_client_call(b->client, &m, attached, b);
}

/* It ended, or has to, though somebody may want it. */
static void lost(struct browser *b, const char *how)
{
    log_warn("the reader of snapshot %012" PRIx64 " %s", (uint64_t)b->snapshot->row.id, how);
    b->snapshot->browser_ended = uv_now(b->space->loop);
    browser_close(b);
}

static void input(void *user, const void *buf, size_t len)
{
    struct browser *b = user;
    b->progress = true;
    if (p9_client_input(b->client, buf, len) < 0)
        lost(b, "broke the protocol");
}

static void closed(void *user, int err)
{
    (void)err;
    lost(user, "ended by itself");
}

/* ---- the start ---- */

/* A connection to space-browsed, which has been given the image; or -1. */
static int hand_over(const struct space *s, int image)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    char byte = 0;
    struct iovec iov = {&byte, 1};
    union {
        struct cmsghdr head;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {.space = {0}};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%s/browsed.sock", s->config.run);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof image)};
    memcpy(CMSG_DATA(&control.head), &image, sizeof image);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof addr) == 0 && sendmsg(fd, &m, MSG_NOSIGNAL) == 1)
        return fd;
    int code = errno;
    if (fd >= 0)
        close(fd);
    errno = code;
    return -1;
}

static void image_came(void *user, const struct noded_reply *rep, int image, bool repeated)
{
    static const struct stream_ops ops = {input, NULL, closed};
    struct browser *b = user;
    char why[128];
    (void)repeated;
    if (b->snapshot && rep->error < 0) {
        give_up(b, -rep->error, rep->sentence);
    } else if (b->snapshot) {
        int fd = hand_over(b->space, image);
        snprintf(why, sizeof why, "space-browsed is away (%s)", strerror(errno));
        b->stream = fd < 0 ? NULL : stream_open(b->space->loop, fd, &ops, b);
        if (b->stream) {
            struct p9_transport t = {b->stream, stream_send};
            b->state = BROWSER_VERSION;
            p9_client_connect(b->client, &t, P9_MSIZE_MAX, version_done, b);
        } else {
            give_up(b, EIO, why);
        }
    }
    if (image >= 0)
        close(image);
    unref(b);
}

static void wake_fired(uv_async_t *a)
{
    struct browser *b = a->data;
    p9_client_run_pending(b->client);
}

static void wake_client(void *user)
{
    uv_async_send(&((struct browser *)user)->wake);
}

static void tick(uv_timer_t *t)
{
    struct browser *b = t->data;
    bool waiting = b->stream && p9_client_calls(b->client) > 0;
    uint64_t idle = uv_now(t->loop) - b->used;
    b->quiet = waiting && !b->progress ? b->quiet + 1 : 0;
    b->progress = false;
    if (b->quiet >= BROWSER_MUTE_SEC)
        lost(b, "is silent");
    else if (!waiting && b->state != BROWSER_ASKING && (!b->open || b->state == BROWSER_FAILED) && idle > BROWSER_IDLE_SEC * 1000u)
        browser_close(b);
}

static struct browser *create(struct snapshot *sn)
{
    struct space *s = sn->space;
    struct browser *b = calloc(1, sizeof *b);
    if (!b || !(b->client = p9_client_create()))
        abort();
    b->space = s;
    b->snapshot = snapshot_ref(sn);
    b->serial = ++s->guest_serial;
    b->used = uv_now(s->loop);
    b->refs = 2;
    b->next = s->browsers;
    s->browsers = b;
    s->browser_count++;
    sn->browser = b;
    sn->readers++;
    uv_async_init(s->loop, &b->wake, wake_fired);
    uv_timer_init(s->loop, &b->tick);
    b->wake.data = b->tick.data = b;
    uv_timer_start(&b->tick, tick, TICK_MSEC, TICK_MSEC);
    p9_client_set_wake(b->client, wake_client, b);
    return b;
}

/* Room for one more. False when all are in use. */
static bool make_room(struct space *s)
{
    struct browser *oldest = NULL;
    if (s->browser_count < BROWSERS_MAX)
        return true;
    for (struct browser *b = s->browsers; b; b = b->next)
        if (!b->open && b->state >= BROWSER_READY && p9_client_calls(b->client) == 0 && (!oldest || b->used < oldest->used))
            oldest = b;
    browser_close(oldest);
    return oldest != NULL;
}

void browser_start(struct snapshot *sn, struct waiter *w)
{
    struct noded_request req = {.op = NODED_FILE_OPEN, .kind = NODED_SNAPSHOT, .id = (uint64_t)sn->row.id, .file = NODED_DISK};
    struct err e = {0};
    struct browser *b = sn->browser;
    if (b && b->state == BROWSER_FAILED) {
        w->done(w, -b->why.code, &b->why);
    } else if (b && b->state == BROWSER_READY) {
        w->done(w, 0, NULL);
    } else if (b) {
        wait_add(&b->waiters, w);
    } else if (sn->browser_ended && uv_now(sn->space->loop) - sn->browser_ended < RETRY_MSEC) {
        w->done(w, err_set(&e, EIO, "the file system of this snapshot cannot be read: its reader has just ended"), &e);
    } else if (!make_room(sn->space)) {
        w->done(w, err_set(&e, EAGAIN, "the files of %u snapshots are in use; try again later", BROWSERS_MAX), &e);
    } else {
        b = create(sn);
        wait_add(&b->waiters, w);
        b->refs++;
        noded_send(sn->space->noded, &req, image_came, b);
    }
}

bool browser_ready(const struct snapshot *sn)
{
    return sn->browser && sn->browser->state == BROWSER_READY;
}

struct p9_client *browser_client(struct browser *b)
{
    b->used = uv_now(b->space->loop);
    return b->client;
}

uint32_t browser_root(const struct browser *b)
{
    return b->root;
}

uint64_t browser_serial(const struct browser *b)
{
    return b->serial;
}

void browser_hold(struct browser *b, int change)
{
    b->open += (unsigned)change;
    b->used = uv_now(b->space->loop);
}
