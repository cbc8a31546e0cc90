// SPDX-License-Identifier: Apache-2.0
// Disks and memory that arrive while their machine runs. See fill.h.
//
// Theory of operation. A coroutine for each file has space-volumed download it into the object that QEMU has open, and when that fails does it again, for as long as it
// takes: what was done is in the bits beside the file, which no process's end touches. Meanwhile QEMU's threads come to the socket, one connection for each
// request to a part that is not there. Each becomes a VOLUMED_FETCH of the download in progress, which volumed does before all else; one that follows the one before
// also has what comes next fetched. A request that fails is made again until GIVE_UP_MSEC have passed, or FAIL_MSEC when the download itself fails; then the guest is
// paused: by QEMU, which is told so, when it was about its disk. Who waits for memory stands still already, and goes on waiting: there the sandbox is `paused` because we say so. The
// first thing of that file that arrives afterwards resumes it.
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
#define AGAIN_MSEC   500u /* after a download that failed, and up to */
#define LATEST_MSEC  5000u
#define HURRY_MSEC   200u /* at once when QEMU waits, but for this */
#define AHEAD_BYTES  FILL_WANT

static const struct {
    const char *name;
    enum noded_file artifact;
    uint32_t port, bits_port; /* of NODED_VM_FILL */
} files[FILL_FILES] = {
    [FILL_DISK] = {"disk", NODED_DISK, NODED_FILL_DISK, NODED_FILL_DISK_BITS},
    [FILL_MEMORY] = {"memory", NODED_RAM, NODED_FILL_MEMORY, NODED_FILL_MEMORY_BITS},
};

/* Bytes of a file that a thread of QEMU's waits for. */
struct want {
    struct want *next;
    struct fill *fill;
    struct part *part; /* NULL: not read yet */
    uv_poll_t *poll;   /* NULL: nobody waits any more */
    int fd;
    uint64_t offset, length, began;
    bool failed; /* once: from then on its first chunk alone */
    struct volumed_call *call;
};

/* A file that arrives. */
struct part {
    struct fill *fill;
    enum fill_file what;
    struct co *co;
    int file, bits;
    uint64_t size;
    struct volumed_call *call; /* the download in progress */
    struct volumed_reply rep;
    bool waits; /* the coroutine, for that */
    uint64_t done, total, fetched;
    uint64_t followed, ahead; /* where the last want ended, and what was fetched beyond one */
    uint64_t hungry;          /* uv_now since when a want of it was not served; 0: none */
    bool complete;
    bool revoked;           /* the tenant's key, when the download last failed */
    bool failing;           /* since something last arrived, */
    char why[200];          /* and why */
    bool stalled;           /* and the guest is paused because of that */
    struct wait_list hurry; /* the coroutine, between two downloads */
};

struct fill {
    struct space *space;
    struct snapshot *snapshot;
    struct sandbox *sandbox; /* NULL: a machine's, as yet */
    uint64_t object, began;
    bool stopped, held;
    struct part part[FILL_FILES];
    int listener;
    bool opening; /* it, just now */
    uv_poll_t *poll;
    uv_timer_t *timer;
    struct want *wants;
    unsigned want_count;
    bool refused; /* QEMU was told that a part of its disk cannot be had, and has not said yet that it paused the guest */
    struct wait_list ended;
};

static bool is_complete(const struct fill *f)
{
    return f->part[FILL_DISK].complete && f->part[FILL_MEMORY].complete;
}

static void handle_closed(uv_handle_t *h)
{
    free(h);
}

static void tell(const struct fill *f, const char *state, const struct part *p)
{
    const struct snapshot *sn = f->snapshot;
    struct event_scope scope = {sn->row.owner, sn->row.gid, sn->row.mode};
    uint64_t done, total, fetched = f->part[FILL_DISK].fetched + f->part[FILL_MEMORY].fetched;
    fill_progress(f, &done, &total);
    event_emit(f->space, &scope, "fill", (uint64_t)sn->row.sandbox, f->sandbox ? f->sandbox->row.name : sn->row.sandbox_name,
               ",\"state\":\"%s\",\"file\":\"%s\",\"done_bytes\":%" PRIu64 ",\"total_bytes\":%" PRIu64 ",\"fetched_bytes\":%" PRIu64
               ",\"msec\":%" PRIu64,
               state, p ? files[p->what].name : "all", done, total, fetched, (uv_hrtime() - f->began) / 1000000);
}

/* ---- the store, and what the guest notices of it ---- */

static void say_why(struct part *p)
{
    struct sandbox *sb = p->fill->sandbox;
    if (!sb)
        return;
    sandbox_set_error(sb, "the %s of '%s' is still arriving from the store: %s. %s by itself when that works again", files[p->what].name,
                      sb->row.name, p->why,
                      p->stalled ? "It is paused, since it needs a part of it, and goes on" : "What it needs of it waits, and goes on");
    sandbox_save(sb, NULL);
}

static void fails(struct part *p, const char *why)
{
    bool new = !p->failing || strcmp(p->why, why) != 0;
    str_copy(p->why, sizeof p->why, why);
    if (!p->failing)
        tell(p->fill, "failing", p);
    p->failing = true;
    if (!new)
        return;
    log_warn("the %s of object %012" PRIx64 " does not arrive: %s", files[p->what].name, p->fill->object, why);
    say_why(p);
}

static void goes_on(struct part *p)
{
    struct fill *f = p->fill;
    struct sandbox *sb = f->sandbox;
    struct part *other = &f->part[!p->what];
    bool stalled = p->stalled;
    if (p->failing)
        tell(f, "goes-on", p);
    p->hungry = 0;
    bool said = p->failing || stalled; /* stalled perhaps before a start of space-hostd, whose error is still there */
    p->failing = p->revoked = p->stalled = false;
    if (said && sb && other->failing) {
        say_why(other);
    } else if (said && sb && !other->stalled) {
        sb->row.error[0] = 0;
        sandbox_save(sb, NULL);
    }
    if (stalled && sb && !other->stalled && sandbox_state(sb) == SANDBOX_PAUSED)
        op_submit(sb, op_new(OP_RESUME), false, NULL);
}

void fill_say_why(struct sandbox *sb)
{
    for (unsigned i = 0; sb->fill && i < FILL_FILES; i++)
        if (sb->fill->part[i].failing)
            say_why(&sb->fill->part[i]);
}

/* Which of the two it was is not known any more: the first thing that arrives tries. */
void fill_was_stalled(struct sandbox *sb)
{
    for (unsigned i = 0; i < FILL_FILES; i++)
        sb->fill->part[i].stalled = !sb->fill->part[i].complete;
}

bool fill_is_stalled(const struct sandbox *sb)
{
    return sb->fill && (sb->fill->part[FILL_DISK].stalled || sb->fill->part[FILL_MEMORY].stalled);
}

bool fill_stalled(struct sandbox *sb)
{
    struct fill *f = sb->fill;
    if (!f || !f->refused)
        return false;
    f->refused = false;
    f->part[FILL_DISK].stalled = true;
    say_why(&f->part[FILL_DISK]);
    return true;
}

/* A processor of the guest's stands still, or QEMU does. */
static void starves(struct part *p)
{
    struct sandbox *sb = p->fill->sandbox;
    if (!sb || sandbox_state(sb) != SANDBOX_RUNNING)
        return;
    p->stalled = true;
    say_why(p);
    sandbox_set_state(sb, SANDBOX_PAUSED, "a part of its memory does not arrive");
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
        goes_on(w->part);
    w->failed = rep->error < 0;
    if (rep->error == 0 || !w->poll)
        want_answer(w, 0); /* else the timer asks again */
    fill_free(f);
}

static struct volumed_request fetch_of(const struct part *p, uint64_t offset, uint64_t length)
{
    return (struct volumed_request){.op = VOLUMED_FETCH, .tag2 = volumed_tag(p->call), .offset = offset, .length = length};
}

static void want_ask(struct want *w)
{
    struct part *p = w->part;
    if (!p)
        return;
    if (!p->call)
        wait_done_all(&p->hurry, 0, NULL);
    if (!p->call || w->call)
        return;
    uint64_t chunk = VOLUMED_CHUNK - w->offset % VOLUMED_CHUNK, length = w->failed && w->length > chunk ? chunk : w->length;
    struct volumed_request req = fetch_of(p, w->offset, length);
    w->call = volumed_send(w->fill->space->volume->conn, &req, NULL, 0, &(struct volumed_hooks){.done = want_done, .user = w});
}

static void ahead_done(void *user, const struct volumed_reply *rep, int fd)
{
    (void)user, (void)rep;
    if (fd >= 0)
        close(fd);
}

/* A guest that reads on will read on. */
static void fetch_ahead(struct part *p, const struct want *w)
{
    uint64_t end = w->offset + w->length, from = end > p->ahead ? end : p->ahead;
    bool follows = w->offset <= p->followed + VOLUMED_CHUNK && end > p->followed;
    p->followed = end;
    if (!follows)
        p->ahead = 0;
    if (!follows || !p->call || from >= p->size || from > end + AHEAD_BYTES)
        return;
    uint64_t length = p->size - from < AHEAD_BYTES ? p->size - from : AHEAD_BYTES;
    struct volumed_request req = fetch_of(p, from, length);
    volumed_send(p->fill->space->volume->conn, &req, NULL, 0, &(struct volumed_hooks){.done = ahead_done});
    p->ahead = from + length;
}

/* Of its disk: QEMU can be told. */
static void disk_late(struct want *w, bool late)
{
    if (late)
        want_answer(w, -EIO);
    else
        want_ask(w);
}

static void memory_late(struct want *w, bool late)
{
    want_ask(w);
    if (late)
        starves(w->part);
}

static void tick(uv_timer_t *t)
{
    struct fill *f = t->data;
    uint64_t now = uv_now(f->space->loop);
    for (struct want *w = f->wants, *next; w; w = next) {
        struct part *p = w->part;
        next = w->next;
        if (!w->poll || !p)
            continue;
        p->hungry = p->hungry ? p->hungry : now;
        uint64_t waited = now - (p->what == FILL_MEMORY ? p->hungry : w->began);
        if (waited > GIVE_UP_MSEC && !p->failing)
            fails(p, "the object store does not answer");
        (p->what == FILL_MEMORY ? memory_late : disk_late)(w, waited > (p->failing ? FAIL_MSEC : GIVE_UP_MSEC));
    }
    if (!f->wants)
        uv_timer_stop(t);
}

static bool is_good(const struct fill *f, const struct fill_want *q)
{
    uint64_t size = q->file < FILL_FILES ? f->part[q->file].size : 0;
    return q->version == FILL_VERSION && q->length && q->length <= FILL_WANT && q->offset < size && q->length <= size - q->offset;
}

static void want_readable(uv_poll_t *poll, int status, int events)
{
    struct want *w = poll->data;
    struct fill *f = w->fill;
    struct fill_want q;
    (void)events;
    ssize_t n = status < 0 ? 0 : recv(w->fd, &q, sizeof q, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return;
    if (n != (ssize_t)sizeof q || w->part || !is_good(f, &q)) { /* it ended, or gave up; or it is none of ours */
        want_leave(w);
        return;
    }
    w->part = &f->part[q.file];
    w->offset = q.offset;
    w->length = q.length;
    if (w->part->complete) {
        want_answer(w, 0);
        return;
    }
    if (!w->part->hungry)
        w->part->hungry = w->began;
    want_ask(w);
    fetch_ahead(w->part, w);
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
    struct part *p = user;
    if (fd >= 0)
        close(fd);
    p->call = NULL;
    p->rep = *rep;
    if (p->waits)
        co_wake(p->co, 0);
}

static void download_progress(void *user, uint64_t done, uint64_t total)
{
    struct part *p = user;
    p->done = done;
    p->total = total;
    if (!p->fill->stopped)
        goes_on(p);
}

static int download(struct part *p, struct err *e)
{
    const struct fill *f = p->fill;
    struct volume *v = f->space->volume;
    struct artifact *a = artifact_find(v, NODED_SNAPSHOT, (uint64_t)f->snapshot->row.id, files[p->what].artifact);
    if (!a)
        return err_set(e, ENOENT, "the %s of snapshot '%s' is not in the store any more", files[p->what].name, f->snapshot->row.name);
    struct volumed_request req = {.op = VOLUMED_DOWNLOAD,
                                  .flags = VOLUMED_FILL,
                                  .object = artifact_ref(a->row.tenant, a->row.name),
                                  .base = artifact_ref(VOLUME_TEMPLATES, a->row.base)};
    const int fds[] = {p->file, p->bits};
    a->busy = true;
    p->call = volumed_send(v->conn, &req, fds, 2, &(struct volumed_hooks){.done = download_done, .progress = download_progress, .user = p});
    p->waits = true;
    if (co_wait(f->space->co) == -ECANCELED && p->call) {
        volumed_cancel(v->conn, p->call);
        co_wait_uncancellable(f->space->co);
    }
    p->waits = false;
    a->busy = false;
    p->fetched += p->rep.error == 0 ? p->rep.download.fetched_bytes : 0;
    return p->rep.error < 0 ? err_set(e, -p->rep.error, "%s", p->rep.sentence) : 0;
}

static int open_one(const struct fill *f, uint32_t port, int *fd, struct err *e)
{
    struct noded_request q = {.op = NODED_VM_FILL, .kind = NODED_SANDBOX, .id = f->object, .port = port};
    return *fd >= 0 ? 0 : noded_call(f->space, &q, NULL, fd, e);
}

/* Each one takes the place of the one before, so there must be one only. Without a QEMU nobody asks. */
static int open_socket(struct fill *f, struct err *e)
{
    int fd = -1;
    if (f->listener >= 0 || f->opening)
        return 0;
    f->opening = true;
    int rc = open_one(f, NODED_FILL_SOCKET, &fd, e);
    f->opening = false;
    if (rc == -ESRCH)
        return 0;
    if (rc == 0 && f->stopped) {
        close(fd);
        rc = -ECANCELED;
    }
    if (rc < 0)
        return rc;
    f->listener = fd;
    f->poll = calloc(1, sizeof *f->poll);
    if (!f->poll || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || uv_poll_init(f->space->loop, f->poll, fd) < 0)
        return err_set(e, ENOMEM, "listen to a QEMU: out of memory");
    f->poll->data = f;
    uv_poll_start(f->poll, UV_READABLE, on_accept);
    return 0;
}

/* -EINVAL: it is complete, or was never missing. */
static int open_all(struct part *p, struct err *e)
{
    int rc = open_one(p->fill, files[p->what].port, &p->file, e);
    if (rc == 0)
        rc = open_one(p->fill, files[p->what].bits_port, &p->bits, e);
    if (rc < 0)
        return rc;
    off_t size = lseek(p->file, 0, SEEK_END);
    p->size = size > 0 ? (uint64_t)size : 0;
    return open_socket(p->fill, e);
}

static int finish(const struct part *p, struct err *e)
{
    struct noded_request q = {.op = NODED_VM_FILLED, .kind = NODED_SANDBOX, .id = p->fill->object, .port = p->what};
    return noded_call(p->fill->space, &q, NULL, NULL, e);
}

static int fetch(struct part *p, struct err *e)
{
    int rc = open_all(p, e);
    if (rc == -EINVAL) {
        *e = (struct err){0};
        return 0;
    }
    if (rc == 0)
        rc = download(p, e);
    return rc == 0 ? finish(p, e) : rc;
}

/* As often as it takes. */
static void fetch_all(struct part *p)
{
    struct fill *f = p->fill;
    uint64_t pause = AGAIN_MSEC;
    while (!f->stopped) {
        struct err e = {0};
        uint64_t before = p->done;
        int rc = fetch(p, &e);
        p->complete = rc == 0;
        if (f->stopped || p->complete)
            return;
        fails(p, e.msg[0] ? e.msg : strerror(-rc));
        p->revoked = rc == -EKEYREVOKED;
        if (p->revoked)
            wait_done_all(&f->ended, rc, &e);
        pause = p->done > before ? AGAIN_MSEC : pause;
        if (co_sleep(f->space->co, HURRY_MSEC) < 0 || wait_in_list(f->space->co, &p->hurry, pause) == -ECANCELED)
            return;
        pause = pause * 2 < LATEST_MSEC ? pause * 2 : LATEST_MSEC;
    }
}

/* ---- begin and end ---- */

static void close_wants(struct fill *f, const struct part *p)
{
    for (struct want *w = f->wants, *next; w; w = next) {
        next = w->next;
        if (w->poll && (!p || w->part == p))
            want_answer(w, 0); /* it looks at the bits again */
    }
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
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
    close_fd(&f->listener);
}

/* When its coroutines have ended, nobody has it, and no request is under way. */
static void fill_free(struct fill *f)
{
    if (f->part[FILL_DISK].co || f->part[FILL_MEMORY].co || !f->stopped || f->wants || f->held)
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
    struct part *p = arg;
    struct fill *f = p->fill;
    fetch_all(p);
    p->co = NULL;
    if (p->complete) {
        p->done = p->total;
        goes_on(p);
    }
    close_wants(f, p);
    close_fd(&p->file);
    close_fd(&p->bits);
    if (is_complete(f) && !f->stopped) {
        tell(f, "complete", NULL);
        close_wants(f, NULL);
        close_handles(f);
        if (f->sandbox)
            settle(f);
    }
    fill_free(f);
}

static void begin(struct fill *f, enum fill_file what)
{
    f->part[what].co = co_spawn(f->space->co, work, &f->part[what]);
}

struct fill *fill_start(struct space *s, uint64_t object, struct snapshot *sn, bool memory)
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
    f->listener = -1;
    for (enum fill_file i = FILL_DISK; i < FILL_FILES; i++)
        f->part[i] = (struct part){.fill = f, .what = i, .file = -1, .bits = -1};
    uv_timer_init(s->loop, f->timer);
    f->timer->data = f;
    tell(f, "begun", NULL);
    if (memory)
        begin(f, FILL_MEMORY);
    else
        f->part[FILL_MEMORY].complete = true;
    return f;
}

void fill_start_disk(struct fill *f)
{
    begin(f, FILL_DISK);
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
    close_wants(f, NULL);
    close_handles(f);
    f->held = true; /* a coroutine may end at once */
    for (unsigned i = 0; i < FILL_FILES; i++)
        if (f->part[i].co)
            co_abort(f->part[i].co);
    f->held = false;
    fill_free(f);
}

void fill_give(struct fill *f, struct sandbox *sb)
{
    sb->fill = f;
    if (!f)
        return;
    f->sandbox = sb;
    if (!is_complete(f))
        return;
    settle(f);
    fill_free(f);
}

int fill_wait(struct sandbox *sb, struct err *e)
{
    struct fill *f = sb->fill;
    for (unsigned i = 0; f && i < FILL_FILES; i++)
        if (f->part[i].revoked)
            return err_set(e, EKEYREVOKED, "%s", f->part[i].why);
    return f ? volume_wait(sb->space, &f->ended, e) : 0;
}

const char *fill_why(const struct fill *f)
{
    for (unsigned i = 0; f && i < FILL_FILES; i++)
        if (f->part[i].failing)
            return f->part[i].why;
    return "";
}

void fill_progress(const struct fill *f, uint64_t *done, uint64_t *total)
{
    *done = *total = 0;
    for (unsigned i = 0; i < FILL_FILES; i++) {
        *done += f->part[i].done;
        *total += f->part[i].total;
    }
}
