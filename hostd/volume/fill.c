// SPDX-License-Identifier: Apache-2.0
// Disks that arrive while their machine runs. See fill.h.
//
// Theory of operation. A coroutine for each has space-volumed download the disk into the object that QEMU has open, and when that fails does it again, for as long as it
// takes: what was done is in the bits beside the disk, which no process's end touches. Meanwhile QEMU's threads come to the socket, one connection for each
// request to a part that is not there. Each becomes a VOLUMED_FETCH of the download in progress, which volumed does before all else; one that follows the one before
// also has what comes next fetched. A request that fails is made again until GIVE_UP_MSEC have passed, or FAIL_MSEC when the download itself fails; then QEMU is
// told so, which pauses the guest. The first thing that arrives afterwards resumes it.
//
// The sandbox's row says `suspended` until the last byte is there: whatever ends the machine before gives the sandbox back to the snapshot that is in the store.
#include "hostd/volume/fill.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/lifecycle/lifecycle.h"
#include "hostd/volume/volume_impl.h"
#include "ipc/fill.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define WANTS_MAX    128u
#define GIVE_UP_MSEC 20000u
#define FAIL_MSEC    2000u
#define TICK_MSEC    200u
#define AGAIN_MSEC   500u  /* after a download that failed, and up to */
#define LATEST_MSEC  5000u
#define HURRY_MSEC   200u  /* at once when QEMU waits, but for this */
#define AHEAD_BYTES  FILL_WANT

/* A part of the disk that a thread of QEMU's waits for. */
struct want {
    struct want *next;
    struct fill *fill;
    uv_poll_t *poll; /* NULL: nobody waits any more */
    int fd;
    bool known; /* offset and length were read */
    uint64_t offset, length, began;
    struct volumed_call *call;
};

struct fill {
    struct space *space;
    struct snapshot *snapshot;
    struct sandbox *sandbox; /* NULL: a machine's, as yet */
    struct co *co;
    uint64_t object, began, size;
    bool stopped, complete;
    int disk, bits, listener;
    uv_poll_t *poll;
    uv_timer_t *timer;
    struct volumed_call *call; /* the download in progress */
    struct volumed_reply rep;
    bool waits; /* the coroutine, for that */
    uint64_t done, total, fetched;
    struct want *wants;
    unsigned want_count;
    uint64_t followed, ahead; /* where the last want ended, and what was fetched beyond one */
    bool revoked;             /* the tenant's key, when the download last failed */
    bool failing;             /* since something last arrived, */
    char why[200];            /* and why */
    bool refused;             /* QEMU was told that a part cannot be had, */
    bool stalled;             /* and has paused the guest */
    struct wait_list hurry;   /* the coroutine, between two downloads */
    struct wait_list ended;
};

static void handle_closed(uv_handle_t *h)
{
    free(h);
}

static void tell(const struct fill *f, const char *state)
{
    const struct snapshot *sn = f->snapshot;
    struct event_scope scope = {sn->row.owner, sn->row.gid, sn->row.mode};
    event_emit(f->space, &scope, "fill", (uint64_t)sn->row.sandbox, f->sandbox ? f->sandbox->row.name : sn->row.sandbox_name,
               ",\"state\":\"%s\",\"done_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64 ",\"fetched_bytes\":%" PRIu64 ",\"msec\":%" PRIu64, state, f->done, f->total, f->fetched,
               (uv_hrtime() - f->began) / 1000000);
}

/* ---- the store, and what the guest notices of it ---- */

static void say_why(struct fill *f)
{
    if (!f->sandbox)
        return;
    sandbox_set_error(f->sandbox, "the disk of '%s' is still arriving from the store: %s. %s by itself when that works again", f->sandbox->row.name, f->why,
                      f->stalled ? "It is paused, since it needs a part of it, and goes on" : "What it needs of it waits, and goes on");
    sandbox_save(f->sandbox, NULL);
}

static void fails(struct fill *f, const char *why)
{
    bool new = !f->failing || strcmp(f->why, why) != 0;
    str_copy(f->why, sizeof f->why, why);
    if (!f->failing)
        tell(f, "failing");
    f->failing = true;
    if (!new)
        return;
    log_warn("the disk of object %012" PRIx64 " does not arrive: %s", f->object, why);
    say_why(f);
}

static void goes_on(struct fill *f)
{
    struct sandbox *sb = f->sandbox;
    if (f->failing)
        tell(f, "goes-on");
    if ((f->failing || f->stalled) && sb) { /* stalled perhaps before a start of space-hostd, whose error is still there */
        sb->row.error[0] = 0;
        sandbox_save(sb, NULL);
    }
    f->failing = f->revoked = false;
    if (f->stalled && sb && sandbox_state(sb) == SANDBOX_PAUSED)
        op_submit(sb, op_new(OP_RESUME), false, NULL);
    f->stalled = false;
}

void fill_was_stalled(struct sandbox *sb)
{
    sb->fill->stalled = true;
}

bool fill_is_stalled(const struct sandbox *sb)
{
    return sb->fill && sb->fill->stalled;
}

bool fill_stalled(struct sandbox *sb)
{
    struct fill *f = sb->fill;
    if (!f || !f->refused)
        return false;
    f->refused = false;
    f->stalled = true;
    say_why(f);
    return true;
}

/* ---- what QEMU waits for ---- */

static void want_free(struct want *w)
{
    struct want **at = &w->fill->wants;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    w->fill->want_count--;
    free(w);
}

/* Nobody waits any more; the request to space-volumed, if there is one, has the rest of its life. */
static void want_leave(struct want *w)
{
    if (w->poll) {
        uv_poll_stop(w->poll);
        uv_close((uv_handle_t *)w->poll, handle_closed);
        close(w->fd);
    }
    w->poll = NULL;
    if (!w->call)
        want_free(w);
}

static void want_answer(struct want *w, int error)
{
    struct fill_answer a = {.version = FILL_VERSION, .error = error};
    if (w->poll && send(w->fd, &a, sizeof a, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        log_debug("a QEMU did not wait for its disk: %s", strerror(errno));
    if (error < 0)
        w->fill->refused = true;
    want_leave(w);
}

static void fill_free(struct fill *f);

static void want_done(void *user, const struct volumed_reply *rep, int fd)
{
    struct want *w = user;
    struct fill *f = w->fill;
    if (fd >= 0)
        close(fd);
    w->call = NULL;
    if (rep->error == 0 && !f->stopped)
        goes_on(f);
    if (rep->error == 0 || !w->poll)
        want_answer(w, 0); /* else the timer asks again */
    fill_free(f);
}

static struct volumed_request fetch_of(const struct fill *f, uint64_t offset, uint64_t length)
{
    return (struct volumed_request){.op = VOLUMED_FETCH, .tag2 = volumed_tag(f->call), .offset = offset, .length = length};
}

static void want_ask(struct want *w)
{
    struct fill *f = w->fill;
    if (!f->call)
        wait_done_all(&f->hurry, 0, NULL);
    if (!f->call || w->call || !w->known)
        return;
    struct volumed_request req = fetch_of(f, w->offset, w->length);
    w->call = volumed_send(f->space->volume->conn, &req, NULL, 0, &(struct volumed_hooks){.done = want_done, .user = w});
}

static void ahead_done(void *user, const struct volumed_reply *rep, int fd)
{
    (void)user, (void)rep;
    if (fd >= 0)
        close(fd);
}

/* A guest that reads on will read on. */
static void fetch_ahead(struct fill *f, const struct want *w)
{
    uint64_t end = w->offset + w->length, from = end > f->ahead ? end : f->ahead;
    bool follows = w->offset <= f->followed + VOLUMED_CHUNK && end > f->followed;
    f->followed = end;
    if (!follows)
        f->ahead = 0;
    if (!follows || !f->call || from >= f->size || from > end + AHEAD_BYTES)
        return;
    uint64_t length = f->size - from < AHEAD_BYTES ? f->size - from : AHEAD_BYTES;
    struct volumed_request req = fetch_of(f, from, length);
    volumed_send(f->space->volume->conn, &req, NULL, 0, &(struct volumed_hooks){.done = ahead_done});
    f->ahead = from + length;
}

static void tick(uv_timer_t *t)
{
    struct fill *f = t->data;
    uint64_t now = uv_now(f->space->loop);
    for (struct want *w = f->wants, *next; w; w = next) {
        next = w->next;
        bool late = w->poll && now - w->began > GIVE_UP_MSEC;
        if (!w->poll)
            continue;
        if (late && !f->failing)
            fails(f, "the object store does not answer");
        if (late || (f->failing && now - w->began > FAIL_MSEC))
            want_answer(w, -EIO);
        else
            want_ask(w);
    }
    if (!f->wants)
        uv_timer_stop(t);
}

static void want_readable(uv_poll_t *p, int status, int events)
{
    struct want *w = p->data;
    struct fill *f = w->fill;
    struct fill_want q;
    (void)events;
    ssize_t n = status < 0 ? 0 : recv(w->fd, &q, sizeof q, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    bool good = n == (ssize_t)sizeof q && !w->known && q.version == FILL_VERSION && q.length && q.length <= FILL_WANT && q.offset < f->size && q.length <= f->size - q.offset;
    if (!good) { /* it ended, or gave up; or it is none of ours */
        want_leave(w);
        return;
    }
    w->known = true;
    w->offset = q.offset;
    w->length = q.length;
    want_ask(w);
    fetch_ahead(f, w);
    if (!uv_is_active((uv_handle_t *)f->timer))
        uv_timer_start(f->timer, tick, TICK_MSEC, TICK_MSEC);
}

static void on_accept(uv_poll_t *p, int status, int events)
{
    struct fill *f = p->data;
    (void)status, (void)events;
    int fd = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct want *w = f->want_count < WANTS_MAX ? calloc(1, sizeof *w) : NULL;
    uv_poll_t *poll = w ? calloc(1, sizeof *poll) : NULL;
    if (!poll || uv_poll_init(f->space->loop, poll, fd) < 0) {
        free(poll);
        free(w);
        close(fd); /* it comes again */
        return;
    }
    *w = (struct want){.next = f->wants, .fill = f, .poll = poll, .fd = fd, .began = uv_now(f->space->loop)};
    f->wants = w;
    f->want_count++;
    poll->data = w;
    uv_poll_start(poll, UV_READABLE, want_readable);
}

/* ---- the download ---- */

static void download_done(void *user, const struct volumed_reply *rep, int fd)
{
    struct fill *f = user;
    if (fd >= 0)
        close(fd);
    f->call = NULL;
    f->rep = *rep;
    if (f->waits)
        co_wake(f->co, 0);
}

static void download_progress(void *user, uint64_t done, uint64_t total)
{
    struct fill *f = user;
    f->done = done;
    f->total = total;
    if (!f->stopped)
        goes_on(f);
}

static int download(struct fill *f, struct err *e)
{
    struct volume *v = f->space->volume;
    struct artifact *a = artifact_find(v, NODED_SNAPSHOT, (uint64_t)f->snapshot->row.id, NODED_DISK);
    if (!a)
        return err_set(e, ENOENT, "the disk of snapshot '%s' is not in the store any more", f->snapshot->row.name);
    struct volumed_request req = {.op = VOLUMED_DOWNLOAD, .flags = VOLUMED_FILL, .object = artifact_ref(a->row.tenant, a->row.name),
                                  .base = artifact_ref(VOLUME_TEMPLATES, a->row.base)};
    const int fds[] = {f->disk, f->bits};
    a->busy = true;
    f->call = volumed_send(v->conn, &req, fds, 2, &(struct volumed_hooks){.done = download_done, .progress = download_progress, .user = f});
    f->waits = true;
    if (co_wait(f->space->co) == -ECANCELED && f->call) {
        volumed_cancel(v->conn, f->call);
        co_wait_uncancellable(f->space->co);
    }
    f->waits = false;
    a->busy = false;
    f->fetched += f->rep.error == 0 ? f->rep.download.fetched_bytes : 0;
    return f->rep.error < 0 ? err_set(e, -f->rep.error, "%s", f->rep.sentence) : 0;
}

static int open_one(const struct fill *f, uint32_t port, int *fd, struct err *e)
{
    struct noded_request q = {.op = NODED_VM_FILL, .kind = NODED_SANDBOX, .id = f->object, .port = port};
    return *fd >= 0 ? 0 : noded_call(f->space, &q, NULL, fd, e);
}

/* -EINVAL: it is complete, and only the row does not say so. Without a QEMU nobody asks. */
static int open_all(struct fill *f, struct err *e)
{
    int rc = open_one(f, 0, &f->disk, e);
    if (rc == 0)
        rc = open_one(f, 1, &f->bits, e);
    if (rc == 0)
        rc = open_one(f, 2, &f->listener, e);
    if (rc < 0 || f->poll)
        return rc == -ESRCH ? 0 : rc;
    off_t size = lseek(f->disk, 0, SEEK_END);
    f->size = size > 0 ? (uint64_t)size : 0;
    f->poll = calloc(1, sizeof *f->poll);
    if (!f->poll || fcntl(f->listener, F_SETFL, O_NONBLOCK) < 0 || uv_poll_init(f->space->loop, f->poll, f->listener) < 0)
        return err_set(e, ENOMEM, "listen to a QEMU: out of memory");
    f->poll->data = f;
    uv_poll_start(f->poll, UV_READABLE, on_accept);
    return 0;
}

static int finish(struct fill *f, struct err *e)
{
    struct noded_request q = {.op = NODED_VM_FILLED, .kind = NODED_SANDBOX, .id = f->object};
    return noded_call(f->space, &q, NULL, NULL, e);
}

/* As often as it takes. */
static void fetch_all(struct fill *f)
{
    uint64_t pause = AGAIN_MSEC;
    while (!f->stopped) {
        struct err e = {0};
        uint64_t before = f->done;
        int rc = open_all(f, &e);
        if (rc == -EINVAL)
            e = (struct err){0};
        else if (rc == 0)
            rc = download(f, &e);
        if (rc == 0 || (rc == -EINVAL && !e.code))
            rc = finish(f, &e);
        f->complete = rc == 0;
        if (f->stopped || f->complete)
            return;
        fails(f, e.msg[0] ? e.msg : strerror(-rc));
        f->revoked = rc == -EKEYREVOKED;
        if (f->revoked)
            wait_done_all(&f->ended, rc, &e);
        pause = f->done > before ? AGAIN_MSEC : pause;
        if (co_sleep(f->space->co, HURRY_MSEC) < 0 || wait_in_list(f->space->co, &f->hurry, pause) == -ECANCELED)
            return;
        pause = pause * 2 < LATEST_MSEC ? pause * 2 : LATEST_MSEC;
    }
}

/* ---- begin and end ---- */

static void close_wants(struct fill *f)
{
    for (struct want *w = f->wants, *next; w; w = next) {
        next = w->next;
        if (w->poll)
            want_answer(w, 0); /* it looks at the bits again */
    }
}

static void close_handles(struct fill *f)
{
    if (f->poll) {
        uv_poll_stop(f->poll);
        uv_close((uv_handle_t *)f->poll, handle_closed);
        f->poll = NULL;
    }
    if (f->timer) {
        uv_timer_stop(f->timer);
        uv_close((uv_handle_t *)f->timer, handle_closed);
        f->timer = NULL;
    }
    int *fds[] = {&f->listener, &f->disk, &f->bits};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (*fds[i] >= 0) {
            close(*fds[i]);
            *fds[i] = -1;
        }
}

/* When its coroutine has ended, nobody has it, and no request is under way. */
static void fill_free(struct fill *f)
{
    if (f->co || !f->stopped || f->wants)
        return;
    f->snapshot->loads--;
    snapshot_unref(f->snapshot);
    free(f);
}

/* The sandbox is as if it had never been away. */
static void settle(struct fill *f)
{
    struct sandbox *sb = f->sandbox;
    sb->fill = NULL;
    f->sandbox = NULL;
    f->stopped = true;
    sb->row.suspended = 0;
    sandbox_save(sb, NULL);
    wait_done_all(&f->ended, 0, NULL);
    if (sb->row.disk > f->snapshot->row.size) { /* that was asked for meanwhile */
        struct err e = {0};
        if (sandbox_grow(sb, (uint64_t)sb->row.disk, NULL, &e) < 0)
            log_warn("%s", e.msg);
    }
}

static void work(void *arg)
{
    struct fill *f = arg;
    tell(f, "begun");
    fetch_all(f);
    f->co = NULL;
    if (f->complete) {
        f->done = f->total;
        goes_on(f);
        tell(f, "complete");
    }
    close_wants(f);
    close_handles(f);
    if (f->complete && f->sandbox)
        settle(f);
    fill_free(f);
}

struct fill *fill_start(struct space *s, uint64_t object, struct snapshot *sn)
{
    struct fill *f = calloc(1, sizeof *f);
    if (f)
        f->timer = calloc(1, sizeof *f->timer);
    if (!f || !f->timer)
        abort();
    f->space = s;
    f->snapshot = snapshot_ref(sn);
    sn->loads++;
    f->object = object;
    f->began = uv_hrtime();
    f->disk = f->bits = f->listener = -1;
    uv_timer_init(s->loop, f->timer);
    f->timer->data = f;
    f->co = co_spawn(s->co, work, f);
    return f;
}

void fill_stop(struct fill **at)
{
    struct fill *f = *at;
    struct err e = {0};
    *at = NULL;
    if (!f)
        return;
    f->stopped = true;
    f->sandbox = NULL;
    err_set(&e, ECANCELED, "its machine has ended");
    wait_done_all(&f->ended, -ECANCELED, &e);
    if (f->co)
        co_abort(f->co);
    else
        fill_free(f);
}

void fill_give(struct fill *f, struct sandbox *sb)
{
    sb->fill = f;
    if (!f)
        return;
    f->sandbox = sb;
    if (!f->complete)
        return;
    settle(f);
    fill_free(f);
}

int fill_wait(struct sandbox *sb, struct err *e)
{
    if (sb->fill && sb->fill->revoked)
        return err_set(e, EKEYREVOKED, "%s", sb->fill->why);
    return sb->fill ? volume_wait(sb->space, &sb->fill->ended, e) : 0;
}

const char *fill_why(const struct fill *f)
{
    return f && f->failing ? f->why : "";
}

void fill_progress(const struct fill *f, uint64_t *done, uint64_t *total)
{
    *done = f->done;
    *total = f->total;
}
