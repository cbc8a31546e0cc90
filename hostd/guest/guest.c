// SPDX-License-Identifier: Apache-2.0
// The guest channel: see guest.h.
//
// Theory of operation. Each port goes CLOSED -> PREAMBLE -> VERSION -> ATTACHING -> READY. In PREAMBLE everything but the echo of our nonce is
// thrown away, up to a bound (a rolled-back guest may still have old replies in its queue). A protocol error in any later state is final: the
// guest is hostile or broken, and `lost` is told. Silence on the files port while calls are in flight renews that port alone: close, connect,
// preamble; the calls in flight end with ECONNRESET. So does the end of the agent's files server, of which a read that is always in flight on the control port
// tells (once a tick at most: a guest may say so as often as it likes). The control port is never renewed by silence: its calls carry their own deadlines.
#include "hostd/guest/guest.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/noded_client.h"
#include "loop/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define PREAMBLE_LEN 38
#define DISCARD_MAX  (64u << 20) /* bytes thrown away before the echo: more is a flood */
#define TICK_MSEC    1000u
#define RENEW_MSEC   3000u        /* how long requests wait for a session that is being renewed */
#define ENDS_UNKNOWN (1ull << 62) /* no guest's number */
#define GUEST_MSIZE  P9_MSIZE_MAX /* as large as our own sessions': whole writes pass */

enum port_state { PORT_CLOSED, PORT_PREAMBLE, PORT_VERSION, PORT_ATTACHING, PORT_READY };

struct port {
    struct guest *guest;
    enum guest_port number;
    enum port_state state;
    struct stream *stream;
    struct p9_client *client;
    uv_async_t *wake;
    char preamble[PREAMBLE_LEN + 1];
    size_t matched, discarded;
    uint32_t root;
    bool progress;  /* something arrived since the last tick */
    unsigned quiet; /* ticks with calls in flight and nothing arriving */
};

struct guest {
    struct space *space;
    uint64_t object, serial;
    struct guest_hooks hooks;
    struct port port[2];
    uv_timer_t tick;
    struct co *opener; /* guest_connect's coroutine while it waits */
    bool closed, lost;
    int lost_code;
    char why[256];
    unsigned refs;          /* handles and calls that still point here */
    struct wait_list ready; /* requests that wait for the files session */
    uint64_t renewed;       /* uv_now when its renewal began */
    uint32_t ends_fid;      /* /files of the agent; P9_NOFID: it has none */
    uint64_t ends;          /* how often its files server ended */
    bool ends_asked;        /* a read is in flight */
    uint32_t ctl_fid;
    char info[512];
};

static void port_open(struct port *p);

static void unref(struct guest *g)
{
    if (--g->refs == 0)
        free(g);
}

static void tell_lost(uv_timer_t *t)
{
    struct guest *g = t->data;
    if (g->opener) {
        struct co *opener = g->opener;
        g->opener = NULL;
        co_wake(opener, -g->lost_code);
    } else {
        g->hooks.lost(g->hooks.user, g->lost_code, g->why);
    }
}

/* The end of this guest, told once and from the loop: we may be inside a callback of the client that the owner is going to destroy. */
static void lose(struct guest *g, const char *why, int code)
{
    if (g->closed || g->lost)
        return;
    g->lost = true;
    g->lost_code = code;
    snprintf(g->why, sizeof g->why, "%s", why);
    uv_timer_start(&g->tick, tell_lost, 0, 0);
}

static void check_open(struct guest *g)
{
    if (!g->opener || g->port[0].state != PORT_READY || g->port[1].state != PORT_READY)
        return;
    struct co *opener = g->opener;
    g->opener = NULL;
    co_wake(opener, 0);
}

static void attached(void *user, int err, const struct p9_msg *r)
{
    struct port *p = user;
    (void)r;
    if (err < 0) {
        if (err != -ECONNRESET)
            lose(p->guest, "the guest's agent refused the attach", EPROTO);
        return;
    }
    p->state = PORT_READY;
    check_open(p->guest);
    if (p->number == GUEST_FILES)
        wait_done_all(&p->guest->ready, 0, NULL);
}

static void version_done(void *user, int err, const struct p9_msg *r)
{
    struct port *p = user;
    (void)r;
    if (err < 0) {
        if (err != -ECONNRESET)
            lose(p->guest, "the guest's agent speaks no 9P2000.L", EPROTO);
        return;
    }
    p->state = PORT_ATTACHING;
    p->root = p9_client_fid_alloc(p->client);
    if (p->root == 0) /* number 0 stays reserved: it means "none" in struct guest_fid */
        p->root = p9_client_fid_alloc(p->client);
    struct p9_msg m = {.type = P9_Tattach};
    m.Tattach.fid = p->root;
    m.Tattach.afid = P9_NOFID;
    m.Tattach.uname = p9_str_of("root");
    m.Tattach.aname = p9_str_of(p->number == GUEST_CONTROL ? "control" : "root");
    m.Tattach.n_uname = 0;
    p9_client_call(p->client, &m, attached, p);
}

/* Looks for the echo; returns how many bytes belong to it or before, or -1 for a flood. */
static long find_echo(struct port *p, const char *buf, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        if (buf[i] == p->preamble[p->matched])
            p->matched++;
        else
            p->matched = buf[i] == p->preamble[0];
        if (p->matched == PREAMBLE_LEN)
            return (long)i + 1;
    }
    p->discarded += len;
    return p->discarded > DISCARD_MAX ? -1 : (long)len;
}

static void input(void *user, const void *buf, size_t len)
{
    struct port *p = user;
    if (p->guest->lost)
        return;
    p->progress = true;
    if (p->state == PORT_PREAMBLE) {
        long used = find_echo(p, buf, len);
        if (used < 0) {
            lose(p->guest, "the guest flooded its channel", EPROTO);
            return;
        }
        if (p->matched < PREAMBLE_LEN)
            return;
        p->state = PORT_VERSION;
        struct p9_transport t = {p->stream, stream_send};
        p9_client_connect(p->client, &t, GUEST_MSIZE, version_done, p);
        buf = (const char *)buf + used;
        len -= (size_t)used;
    }
    if (len && p9_client_input(p->client, buf, len) < 0)
        lose(p->guest, "the guest broke the protocol on its channel", EPROTO);
}

static void port_closed(void *user, int err)
{
    struct port *p = user;
    (void)err;
    lose(p->guest, "the guest's channel closed", ECONNREFUSED);
}

static void port_drop(struct port *p)
{
    if (p->stream)
        stream_close(p->stream);
    p->stream = NULL;
    p->state = PORT_CLOSED;
    p9_client_disconnected(p->client);
}

static void new_nonce(struct port *p)
{
    unsigned char raw[15];
    if (getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw)
        abort();
    memcpy(p->preamble, "SPACE1 ", 7);
    for (int i = 0; i < 15; i++)
        snprintf(p->preamble + 7 + 2 * i, 3, "%02x", raw[i]);
    p->preamble[PREAMBLE_LEN - 1] = '\n';
}

static void went_on(void *user, const struct noded_reply *rep, int fd, bool repeated)
{
    struct guest *g = user;
    (void)repeated;
    if (fd >= 0)
        close(fd);
    if (rep->error < 0)
        lose(g, rep->sentence, -rep->error);
    unref(g);
}

/* The machine goes on when both ports are open. */
static void go_on(struct guest *g)
{
    struct noded_request req = {.op = NODED_VM_RESUME, .kind = NODED_SANDBOX, .id = g->object};
    if (!g->hooks.stands_still || !g->port[0].stream || !g->port[1].stream)
        return;
    g->hooks.stands_still = false;
    g->refs++;
    noded_send(g->space->noded, &req, went_on, g);
}

static void channel_opened(void *user, const struct noded_reply *rep, int fd, bool repeated)
{
    static const struct stream_ops ops = {input, NULL, port_closed};
    struct port *p = user;
    struct guest *g = p->guest;
    (void)repeated;
    if (g->closed || fd < 0) {
        if (fd >= 0)
            close(fd);
        if (!g->closed)
            lose(g, rep->sentence, rep->error ? -rep->error : EIO);
        unref(g);
        return;
    }
    p->stream = stream_open(g->space->loop, fd, &ops, p);
    if (!p->stream) {
        lose(g, "the guest's channel could not be opened", EIO);
        unref(g);
        return;
    }
    new_nonce(p);
    p->state = PORT_PREAMBLE;
    p->matched = p->discarded = 0;
    stream_send(p->stream, strndup(p->preamble, PREAMBLE_LEN), PREAMBLE_LEN);
    go_on(g);
    unref(g);
}

static void port_open(struct port *p)
{
    struct noded_request req = {.op = NODED_CHANNEL_OPEN, .kind = NODED_SANDBOX, .id = p->guest->object, .port = p->number};
    p->guest->refs++;
    noded_send(p->guest->space->noded, &req, channel_opened, p);
}

static void fail_waiting(struct guest *g)
{
    struct err e = {0};
    err_set(&e, EIO, "the guest does not answer");
    wait_done_all(&g->ready, -EIO, &e);
}

static void renew_files(struct guest *g)
{
    struct port *p = &g->port[GUEST_FILES];
    p->quiet = 0;
    if (!p->stream || g->lost)
        return; /* on its way already */
    g->renewed = uv_now(g->space->loop);
    port_drop(p);
    port_open(p);
}

/* The agent's answer of how often its files server ended. */
static void ends_told(void *user, int err, const struct p9_msg *r)
{
    struct guest *g = user;
    char text[24] = "";
    uint64_t n;
    g->ends_asked = false;
    if (err == 0 && r->Rread.data.len < sizeof text)
        memcpy(text, r->Rread.data.p, r->Rread.data.len);
    if (err < 0 || str_parse_u64(str_trim(text), ENDS_UNKNOWN - 1, &n) < 0) {
        g->ends_fid = err == -ECONNRESET ? g->ends_fid : P9_NOFID; /* silence is noticed without it */
    } else if (!g->closed && n != g->ends) {
        bool ended = g->ends != ENDS_UNKNOWN;
        g->ends = n;
        if (ended) {
            log_warn("the files server of guest %012" PRIx64 " ended: its session is renewed", g->object);
            renew_files(g);
        }
    }
    unref(g);
}

static void ask_ends(struct guest *g)
{
    struct p9_msg m = {.type = P9_Tread};
    if (g->ends_asked || g->ends_fid == P9_NOFID)
        return;
    m.Tread.fid = g->ends_fid;
    m.Tread.offset = g->ends;
    m.Tread.count = 23;
    g->ends_asked = true;
    g->refs++;
    p9_client_call(g->port[GUEST_CONTROL].client, &m, ends_told, g);
}

static void tick(uv_timer_t *t)
{
    struct guest *g = t->data;
    struct port *p = &g->port[GUEST_FILES];
    ask_ends(g);
    if (g->ready.first && uv_now(g->space->loop) - g->renewed > RENEW_MSEC)
        fail_waiting(g);
    bool waiting = p->state == PORT_READY && p9_client_calls(p->client) > 0;
    p->quiet = waiting && !p->progress ? p->quiet + 1 : 0;
    p->progress = false;
    if (p->quiet < GUEST_MUTE_SEC)
        return;
    log_warn("guest %012" PRIx64 " was silent for %d s: its files session is renewed", g->object, GUEST_MUTE_SEC);
    renew_files(g);
}

static void wake_fired(uv_async_t *a)
{
    struct port *p = a->data;
    p9_client_run_pending(p->client);
}

static void wake_client(void *user)
{
    uv_async_send(((struct port *)user)->wake);
}

static void wake_closed(uv_handle_t *h)
{
    free(h);
}

static void timer_closed(uv_handle_t *h)
{
    struct guest *g = h->data;
    for (int i = 0; i < 2; i++)
        p9_client_destroy(g->port[i].client);
    unref(g);
}

static void port_init(struct guest *g, enum guest_port number)
{
    struct port *p = &g->port[number];
    p->guest = g;
    p->number = number;
    p->client = p9_client_create();
    p->wake = calloc(1, sizeof *p->wake);
    if (!p->client || !p->wake)
        abort();
    uv_async_init(g->space->loop, p->wake, wake_fired);
    p->wake->data = p;
    p9_client_set_wake(p->client, wake_client, p);
}

void guest_close(struct guest *g)
{
    if (!g || g->closed)
        return;
    g->closed = true;
    for (int i = 0; i < 2; i++) {
        port_drop(&g->port[i]);
        uv_close((uv_handle_t *)g->port[i].wake, wake_closed);
    }
    uv_close((uv_handle_t *)&g->tick, timer_closed);
    fail_waiting(g);
}

void guest_set_hooks(struct guest *g, const struct guest_hooks *hooks)
{
    g->hooks = *hooks;
}

/* ---- calls from coroutines ---- */

/* On the heap: a mute guest may answer long after the caller gave up. */
struct step {
    struct guest *guest;
    struct co *co; /* NULL when given up */
    bool finished;
    char data[512];
    size_t len;
};

static void step_done(void *user, int err, const struct p9_msg *r)
{
    struct step *st = user;
    if (err == 0 && r && r->type == P9_Rread) {
        st->len = r->Rread.data.len < sizeof st->data - 1 ? r->Rread.data.len : sizeof st->data - 1;
        memcpy(st->data, r->Rread.data.p, st->len);
    }
    if (st->co) {
        st->finished = true;
        co_wake(st->co, err);
        return;
    }
    unref(st->guest);
    free(st);
}

static struct step *step_new(struct guest *g)
{
    struct step *st = calloc(1, sizeof *st);
    if (!st)
        abort();
    st->guest = g;
    st->co = co_self(g->space->co);
    g->refs++;
    return st;
}

/* Waits for step_done; on a timeout or abort the step is left to it, and `c` (may be NULL) flushed. */
static int step_wait(struct step *st, struct p9_call *c, uint64_t msec, char *text, size_t size)
{
    struct guest *g = st->guest;
    int rc = co_wait_msec(g->space->co, msec);
    if (!st->finished) {
        st->co = NULL;
        if (c)
            p9_call_cancel(c);
        return rc;
    }
    if (rc == 0 && text)
        snprintf(text, size, "%.*s", (int)st->len, st->data);
    unref(g);
    free(st);
    return rc;
}

/* One call on the control port. A reply of Rread is copied to `text`. */
static int call(struct guest *g, struct p9_msg *m, uint64_t msec, char *text, size_t size)
{
    struct step *st = step_new(g);
    return step_wait(st, p9_client_call(g->port[GUEST_CONTROL].client, m, step_done, st), msec, text, size);
}

/* Several messages sent at once whose first error counts. A hostile guest may answer in any order. */
struct batch {
    int pending, err;
    p9_callback *cb;
    void *user;
};

static void batch_part(void *user, int err, const struct p9_msg *r)
{
    struct batch *b = user;
    if (b->err == 0)
        b->err = err;
    if (--b->pending > 0)
        return;
    b->cb(b->user, b->err, b->err ? NULL : r);
    free(b);
}

static struct batch *batch_new(int pending, p9_callback *cb, void *user)
{
    struct batch *b = calloc(1, sizeof *b);
    if (!b)
        abort();
    *b = (struct batch){pending, 0, cb, user};
    return b;
}

static uint32_t batch_open(struct guest *g, const char *const *path, uint16_t n, uint32_t flags, struct batch *b)
{
    struct port *p = &g->port[GUEST_CONTROL];
    struct p9_msg m = {.type = P9_Twalk};
    uint32_t fid = p9_client_fid_alloc(p->client);
    m.Twalk.fid = p->root;
    m.Twalk.newfid = fid;
    m.Twalk.names.n = n;
    for (uint16_t i = 0; i < n; i++)
        m.Twalk.names.v[i] = p9_str_of(path[i]);
    p9_client_call(p->client, &m, batch_part, b);
    m = (struct p9_msg){.type = P9_Tlopen};
    m.Tlopen.fid = fid;
    m.Tlopen.flags = flags;
    p9_client_call(p->client, &m, batch_part, b);
    return fid;
}

uint32_t guest_open_file(struct guest *g, const char *const *path, uint16_t n, uint32_t flags, p9_callback *cb, void *user)
{
    return batch_open(g, path, n, flags, batch_new(2, cb, user));
}

void guest_put(struct guest *g, const char *const *path, uint16_t n, const void *data, uint32_t len, p9_callback *cb, void *user)
{
    struct p9_client *c = g->port[GUEST_CONTROL].client;
    struct batch *b = batch_new(3, cb, user);
    uint32_t fid = batch_open(g, path, n, P9_WRONLY, b);
    struct p9_msg m = {.type = P9_Twrite};
    m.Twrite.fid = fid;
    m.Twrite.data.p = data;
    m.Twrite.data.len = len;
    p9_client_call(c, &m, batch_part, b);
    p9_client_clunk(c, p9_client_generation(c), fid);
}

int guest_ctl(struct guest *g, uint64_t msec, const char *fmt, ...)
{
    char line[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= sizeof line)
        return -EMSGSIZE;
    struct p9_msg m = {.type = P9_Twrite};
    m.Twrite.fid = g->ctl_fid;
    m.Twrite.data.p = line;
    m.Twrite.data.len = (uint32_t)n;
    return call(g, &m, msec, NULL, 0);
}

static int open_file(struct guest *g, const char *name, uint32_t flags, uint32_t *fid, uint64_t msec)
{
    struct step *st = step_new(g);
    *fid = guest_open_file(g, &name, 1, flags, step_done, st);
    return step_wait(st, NULL, msec, NULL, 0);
}

/* A short text file of the control tree. */
static int read_text(struct guest *g, const char *name, uint64_t msec, char *text, size_t size)
{
    uint32_t fid = P9_NOFID;
    struct p9_msg m = {.type = P9_Tread};
    struct p9_client *c = g->port[GUEST_CONTROL].client;
    uint32_t generation = p9_client_generation(c);
    int rc = open_file(g, name, P9_RDONLY, &fid, msec);
    m.Tread.fid = fid;
    m.Tread.count = (uint32_t)size - 1;
    if (rc == 0)
        rc = call(g, &m, msec, text, size);
    if (!g->closed)
        p9_client_clunk(c, generation, fid);
    return rc;
}

int guest_activity(struct guest *g, uint64_t msec, char *text, size_t size)
{
    g->refs++; /* it may be closed while we wait */
    int rc = g->closed ? -ECONNRESET : read_text(g, "activity", msec, text, size);
    unref(g);
    return rc;
}

static void nothing(void *user, int err, const struct p9_msg *r)
{
    (void)user;
    (void)err;
    (void)r;
}

void guest_job_remove(struct guest *g, uint64_t id)
{
    struct p9_client *c = g->port[GUEST_CONTROL].client;
    char name[24];
    snprintf(name, sizeof name, "%" PRIu64, id);
    struct p9_msg m = {.type = P9_Twalk};
    uint32_t fid = p9_client_fid_alloc(c);
    m.Twalk.fid = g->port[GUEST_CONTROL].root;
    m.Twalk.newfid = fid;
    m.Twalk.names.n = 1;
    m.Twalk.names.v[0] = p9_str_of("jobs");
    p9_client_call(c, &m, nothing, NULL);
    m = (struct p9_msg){.type = P9_Tunlinkat};
    m.Tunlinkat.dirfid = fid;
    m.Tunlinkat.name = p9_str_of(name);
    p9_client_call(c, &m, nothing, NULL);
    p9_client_clunk(c, p9_client_generation(c), fid);
}

int guest_write(struct guest *g, const char *name, const void *data, uint32_t len, uint64_t msec)
{
    if (g->closed)
        return -ECONNRESET;
    struct step *st = step_new(g);
    guest_put(g, &name, 1, data, len, step_done, st);
    return step_wait(st, NULL, msec, NULL, 0);
}

int guest_run(struct guest *g, uint64_t msec, uint64_t id, const void *record, uint32_t len)
{
    char number[24], end[96];
    snprintf(number, sizeof number, "%" PRIu64, id);
    const char *spawn[] = {"spawn"}, *wait[] = {"jobs", number, "wait"};
    struct p9_client *c = g->port[GUEST_CONTROL].client;
    struct step *st = step_new(g);
    guest_put(g, spawn, 1, record, len, step_done, st);
    int rc = step_wait(st, NULL, msec, NULL, 0);
    if (rc < 0)
        return rc;
    st = step_new(g);
    uint32_t fid = guest_open_file(g, wait, 3, P9_RDONLY, step_done, st);
    rc = step_wait(st, NULL, msec, NULL, 0);
    struct p9_msg m = {.type = P9_Tread};
    m.Tread.fid = fid;
    m.Tread.count = sizeof end - 1;
    if (rc == 0)
        rc = call(g, &m, msec, end, sizeof end);
    if (g->closed)
        return rc < 0 ? rc : -ECONNRESET;
    p9_client_clunk(c, p9_client_generation(c), fid);
    guest_job_remove(g, id);
    return rc;
}

/* After both ports are ready: the /ctl fid, what the agent says of itself, and a first question for ends of its files server. */
static int introduce(struct guest *g, uint64_t msec)
{
    static const char *const files = "files";
    int rc = open_file(g, "ctl", P9_WRONLY, &g->ctl_fid, msec);
    if (rc == 0)
        rc = read_text(g, "info", msec, g->info, sizeof g->info);
    if (rc < 0)
        return rc;
    /* an agent of before has no such file: the read fails then, too */
    g->ends_fid = guest_open_file(g, &files, 1, P9_RDONLY, nothing, NULL);
    ask_ends(g);
    return 0;
}

static const char *waits_for(const struct port *p)
{
    static const char *const what[] = {[PORT_CLOSED] = "not open",
                                       [PORT_PREAMBLE] = "no echo",
                                       [PORT_VERSION] = "no version",
                                       [PORT_ATTACHING] = "not attached",
                                       [PORT_READY] = "ready"};
    return what[p->state];
}

int guest_connect(struct space *s, uint64_t object, const struct guest_hooks *hooks, uint64_t msec, struct guest **out, struct err *e)
{
    struct guest *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(e, ENOMEM, "connect to the guest: out of memory");
    g->space = s;
    g->object = object;
    g->serial = ++s->guest_serial;
    g->hooks = *hooks;
    g->refs = 2; /* the timer's, and ours */
    g->ends = ENDS_UNKNOWN;
    g->ends_fid = P9_NOFID;
    uv_timer_init(s->loop, &g->tick);
    g->tick.data = g;
    uv_timer_start(&g->tick, tick, TICK_MSEC, TICK_MSEC);
    port_init(g, GUEST_CONTROL);
    port_init(g, GUEST_FILES);
    port_open(&g->port[GUEST_CONTROL]);
    port_open(&g->port[GUEST_FILES]);
    g->opener = co_self(s->co);
    int rc = co_wait_msec(s->co, msec);
    g->opener = NULL;
    if (rc == 0)
        rc = introduce(g, 5000);
    if (rc == -ETIMEDOUT)
        err_set(e, -rc, "connect to the guest's agent: it did not answer in time (its ports: %s, %s)", waits_for(&g->port[GUEST_CONTROL]),
                waits_for(&g->port[GUEST_FILES]));
    else if (rc < 0)
        err_set(e, -rc, "connect to the guest's agent: %s", strerror(-rc));
    if (rc < 0) {
        guest_close(g);
        unref(g);
        return rc;
    }
    g->refs--;
    *out = g;
    return 0;
}

struct p9_client *guest_client(struct guest *g, enum guest_port port)
{
    return g->port[port].client;
}

uint32_t guest_root(struct guest *g, enum guest_port port)
{
    return g->port[port].root;
}

uint64_t guest_serial(const struct guest *g)
{
    return g->serial;
}

bool guest_ready(struct guest *g, enum guest_port port)
{
    return !g->closed && g->port[port].state == PORT_READY;
}

bool guest_await_files(struct guest *g, struct waiter *w)
{
    if (g->closed || g->lost || guest_ready(g, GUEST_FILES) || uv_now(g->space->loop) - g->renewed > RENEW_MSEC)
        return false;
    wait_add(&g->ready, w);
    return true;
}

const char *guest_info(struct guest *g)
{
    return g->info;
}
