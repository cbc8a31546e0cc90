// SPDX-License-Identifier: Apache-2.0
// The connection to libvirtd and the events that it brings. Operations on domains: vm.c. See vm.h.
//
// Theory of operation. One thread owns a connection that only brings events: it connects,
// subscribes, runs libvirt's event loop until the connection closes, and connects again. What it
// learns goes into a list under the lock and wakes the loop (uv_async), which runs the hooks: so
// hooks see a connection's `connected` before any of its events. The thread may hang in a connect
// to a libvirtd that is stopped: then there is no connection, and nothing else waits for it.
//
// Operations use connections of their own, one for each that is in progress, kept for the next one.
// No connection is ever used by two threads at a time, nor by a thread and the timer of keepalives:
// in libvirt before 10.3 (Debian 12 has 9.0) that ends in a jump through a stack frame that is gone
// (CVE-2024-4418; seen here). So only the connection for events has keepalives. When it is lost,
// the others are not used again: a generation that is not the current one marks them.
#include "hostd/noded/vm_impl.h"

#include "base/log.h"
#include "base/str.h"
#include "hostd/noded/queue.h"

#include <errno.h>
#include <libvirt/virterror.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEEPALIVE_SEC   5
#define KEEPALIVE_COUNT 3u
#define RETRY_MSEC      250

enum note_kind { NOTE_EVENT, NOTE_CONNECTED, NOTE_TRIED };

struct note {
    struct note *next;
    enum note_kind kind;
    uint64_t id;
    enum noded_vm_event what;
};

/* Events that are not to be told: vms_expect. */
struct expected {
    uint64_t id; /* 0: free */
    int paused, resumed;
};

#define EXPECTED_MAX 64u

struct vms {
    const char *uri, *prefix;
    struct vms_hooks hooks;
    uv_async_t async;
    pthread_t thread;
    bool closed;          /* the connection for events is gone; the thread's */
    pthread_mutex_t lock; /* for what follows */
    bool up;              /* there is a connection for events */
    uint32_t generation;  /* of it */
    virConnectPtr idle[QUEUE_THREADS];
    uint32_t idle_count;
    char qemu[32];
    struct expected expected[EXPECTED_MAX];
    struct note *first, **last;
};

/* ---- from the thread to the loop ---- */

static void post(struct vms *v, enum note_kind kind, uint64_t id, enum noded_vm_event what)
{
    struct note *n = calloc(1, sizeof *n);
    if (!n)
        abort(); /* a lost event is a lost sandbox; a new process asks libvirt for everything */
    n->kind = kind;
    n->id = id;
    n->what = what;
    pthread_mutex_lock(&v->lock);
    *v->last = n;
    v->last = &n->next;
    pthread_mutex_unlock(&v->lock);
    uv_async_send(&v->async);
}

static void deliver(uv_async_t *a)
{
    struct vms *v = a->data;
    pthread_mutex_lock(&v->lock);
    struct note *n = v->first;
    v->first = NULL;
    v->last = &v->first;
    pthread_mutex_unlock(&v->lock);
    while (n) {
        struct note *next = n->next;
        if (n->kind == NOTE_EVENT)
            v->hooks.event(v->hooks.user, n->id, n->what);
        else if (n->kind == NOTE_CONNECTED)
            v->hooks.connected(v->hooks.user);
        else
            v->hooks.tried(v->hooks.user);
        free(n);
        n = next;
    }
}

/* ---- events ---- */

/* What a lifecycle event means for hostd; 0: nothing. */
static enum noded_vm_event translate(int event, int detail)
{
    switch (event) {
    case VIR_DOMAIN_EVENT_STOPPED:
        return detail == VIR_DOMAIN_EVENT_STOPPED_CRASHED || detail == VIR_DOMAIN_EVENT_STOPPED_FAILED ? NODED_VM_CRASHED : NODED_VM_GONE;
    case VIR_DOMAIN_EVENT_CRASHED: return NODED_VM_GUEST_PANIC;
    case VIR_DOMAIN_EVENT_SUSPENDED: return detail == VIR_DOMAIN_EVENT_SUSPENDED_IOERROR ? NODED_VM_IO_ERROR : NODED_VM_PAUSED;
    case VIR_DOMAIN_EVENT_RESUMED: return NODED_VM_RESUMED;
    default: return 0;
    }
}

/* With the lock. The entry of `id`, or a free one, or NULL. */
static struct expected *find_expected(struct vms *v, uint64_t id)
{
    struct expected *room = NULL;
    for (uint32_t i = 0; i < EXPECTED_MAX; i++) {
        if (v->expected[i].id == id)
            return &v->expected[i];
        if (!v->expected[i].id)
            room = &v->expected[i];
    }
    return room;
}

void vms_expect(struct vms *v, uint64_t id, int paused, int resumed)
{
    pthread_mutex_lock(&v->lock);
    struct expected *x = find_expected(v, id);
    if (x) { /* else they are told, which is no harm */
        x->id = id;
        x->paused = x->paused + paused > 0 ? x->paused + paused : 0;
        x->resumed = x->resumed + resumed > 0 ? x->resumed + resumed : 0;
        if (!x->paused && !x->resumed)
            x->id = 0;
    }
    pthread_mutex_unlock(&v->lock);
}

/* Takes an event that was expected, or all of them when the domain ended. */
static bool take_expected(struct vms *v, uint64_t id, enum noded_vm_event what)
{
    bool taken = false;
    pthread_mutex_lock(&v->lock);
    struct expected *x = find_expected(v, id);
    if (x && x->id == id) {
        int *count = what == NODED_VM_PAUSED ? &x->paused : &x->resumed;
        if (what == NODED_VM_GONE || what == NODED_VM_CRASHED)
            x->id = 0;
        else if ((what == NODED_VM_PAUSED || what == NODED_VM_RESUMED) && *count)
            taken = (*count)--;
        if (!x->paused && !x->resumed)
            x->id = 0;
        if (!x->id)
            *x = (struct expected){0};
    }
    pthread_mutex_unlock(&v->lock);
    return taken;
}

static void on_lifecycle(virConnectPtr conn, virDomainPtr dom, int event, int detail, void *opaque)
{
    struct vms *v = opaque;
    uint64_t id = vms_id(v, dom);
    enum noded_vm_event what = translate(event, detail);
    (void)conn;
    log_debug("libvirt: domain %s, event %d, detail %d", virDomainGetName(dom), event, detail);
    if (id && what && !take_expected(v, id, what))
        post(v, NOTE_EVENT, id, what);
}

/* Inside virEventRunDefaultImpl. */
static void on_close(virConnectPtr conn, int reason, void *opaque)
{
    struct vms *v = opaque;
    (void)conn;
    (void)reason;
    v->closed = true;
}

/* ---- the thread ---- */

static virConnectPtr try_connect(struct vms *v, int *ret_events)
{
    virConnectPtr conn = virConnectOpen(v->uri);
    if (!conn)
        return NULL;
    v->closed = false;
    *ret_events = -1;
    if (virConnectRegisterCloseCallback(conn, on_close, v, NULL) == 0 && virConnectSetKeepAlive(conn, KEEPALIVE_SEC, KEEPALIVE_COUNT) >= 0)
        *ret_events = virConnectDomainEventRegisterAny(conn, NULL, VIR_DOMAIN_EVENT_ID_LIFECYCLE, VIR_DOMAIN_EVENT_CALLBACK(on_lifecycle), v, NULL);
    if (*ret_events >= 0)
        return conn;
    virConnectUnregisterCloseCallback(conn, on_close);
    virConnectClose(conn);
    return NULL;
}

static void set_up(struct vms *v, virConnectPtr conn)
{
    unsigned long version = 0;
    virConnectGetVersion(conn, &version);
    pthread_mutex_lock(&v->lock);
    v->up = true;
    v->generation++;
    if (version)
        snprintf(v->qemu, sizeof v->qemu, "%lu.%lu.%lu", version / 1000000, version / 1000 % 1000, version % 1000);
    pthread_mutex_unlock(&v->lock);
}

static void set_down(struct vms *v)
{
    virConnectPtr idle[QUEUE_THREADS];
    pthread_mutex_lock(&v->lock);
    v->up = false;
    memset(v->expected, 0, sizeof v->expected); /* they may be lost */
    uint32_t count = v->idle_count;
    memcpy(idle, v->idle, sizeof idle);
    v->idle_count = 0;
    pthread_mutex_unlock(&v->lock);
    while (count)
        virConnectClose(idle[--count]);
}

static void serve(struct vms *v, virConnectPtr conn, int events)
{
    set_up(v, conn);
    log_info("connected to libvirt at %s", v->uri);
    post(v, NOTE_CONNECTED, 0, 0);
    post(v, NOTE_TRIED, 0, 0);
    while (!v->closed && virEventRunDefaultImpl() == 0)
        ;
    set_down(v);
    log_warn("the connection to libvirt at %s is lost; virtual machines run on", v->uri);
    virConnectDomainEventDeregisterAny(conn, events);
    virConnectUnregisterCloseCallback(conn, on_close);
    virConnectClose(conn);
}

static void *thread_main(void *arg)
{
    struct vms *v = arg;
    bool told = false;
    for (;;) {
        int events;
        virConnectPtr conn = try_connect(v, &events);
        if (conn) {
            told = false;
            serve(v, conn, events);
            continue;
        }
        if (!told) {
            const virError *why = virGetLastError();
            log_warn("connect to libvirt at %s: %s; trying again until it is there", v->uri, why && why->message ? why->message : "failed");
            post(v, NOTE_TRIED, 0, 0);
        }
        told = true;
        nanosleep(&(struct timespec){0, RETRY_MSEC * 1000000L}, NULL);
    }
    return NULL;
}

/* libvirt would print every error; ours are returned. */
static void ignore_error(void *user, virErrorPtr error)
{
    (void)user;
    (void)error;
}

int vms_open(uv_loop_t *loop, const char *uri, const char *prefix, const struct vms_hooks *hooks, struct vms **out, struct err *e)
{
    struct vms *v = calloc(1, sizeof *v);
    if (!v)
        return err_set(e, ENOMEM, "start with libvirt: out of memory");
    v->uri = uri;
    v->prefix = prefix;
    v->hooks = *hooks;
    v->last = &v->first;
    pthread_mutex_init(&v->lock, NULL);
    virSetErrorFunc(NULL, ignore_error);
    if (virInitialize() < 0 || virEventRegisterDefaultImpl() < 0) {
        free(v);
        return err_set(e, EIO, "start libvirt's client library: %s", virGetLastErrorMessage());
    }
    uv_async_init(loop, &v->async, deliver);
    v->async.data = v;
    int rc = pthread_create(&v->thread, NULL, thread_main, v);
    if (rc != 0) {
        uv_close((uv_handle_t *)&v->async, NULL); /* `v` stays: main ends now */
        return err_set(e, rc, "start a thread for libvirt: %s", strerror(rc));
    }
    pthread_detach(v->thread);
    *out = v;
    return 0;
}

void vms_close(struct vms *v)
{
    if (v)
        uv_close((uv_handle_t *)&v->async, NULL);
}

/* ---- for vm.c ---- */

int vms_take(struct vms *v, const char *what, uint64_t id, struct vms_use *u, struct err *e)
{
    pthread_mutex_lock(&v->lock);
    bool up = v->up;
    u->generation = v->generation;
    if (up && v->idle_count)
        u->conn = v->idle[--v->idle_count];
    pthread_mutex_unlock(&v->lock);
    u->v = v;
    if (up && !u->conn)
        u->conn = virConnectOpen(v->uri);
    if (u->conn)
        return 0;
    return err_set(e, ENOTCONN, "%s sandbox %012llx: libvirt does not answer at %s; is libvirtd running?", what, (unsigned long long)id, v->uri);
}

void vms_give(struct vms_use *u)
{
    if (!u->conn)
        return;
    bool alive = virConnectIsAlive(u->conn) == 1;
    pthread_mutex_lock(&u->v->lock);
    bool keep = alive && u->v->up && u->generation == u->v->generation && u->v->idle_count < QUEUE_THREADS;
    if (keep)
        u->v->idle[u->v->idle_count++] = u->conn;
    pthread_mutex_unlock(&u->v->lock);
    if (!keep)
        virConnectClose(u->conn);
}

int vms_fail(const struct vms_use *u, const char *what, uint64_t id, struct err *e)
{
    char text[256];
    const virError *why = virGetLastError();
    int code = why ? why->code : VIR_ERR_OK;
    str_copy(text, sizeof text, why && why->message ? why->message : "libvirt gives no reason");
    if (code == VIR_ERR_NO_DOMAIN)
        return err_set(e, ESRCH, "%s sandbox %012llx: it has no virtual machine", what, (unsigned long long)id);
    if (virConnectIsAlive(u->conn) != 1) /* forgets the error */
        return err_set(e, ENOTCONN, "%s sandbox %012llx: the connection to libvirt at %s was lost meanwhile", what, (unsigned long long)id,
                       u->v->uri);
    int posix = code == VIR_ERR_NO_MEMORY ? ENOMEM : code == VIR_ERR_OPERATION_TIMEOUT ? ETIMEDOUT : EIO;
    return err_set(e, posix, "%s sandbox %012llx: %s", what, (unsigned long long)id, text);
}

void vms_name(const struct vms *v, uint64_t id, char out[64])
{
    snprintf(out, 64, "%s-%012llx", v->prefix, (unsigned long long)id);
}

uint64_t vms_id(const struct vms *v, virDomainPtr dom)
{
    const char *name = virDomainGetName(dom);
    size_t len = strlen(v->prefix);
    uint64_t id = 0;
    if (!name || strncmp(name, v->prefix, len) != 0 || name[len] != '-' || str_parse_id(name + len + 1, strlen(name + len + 1), &id) < 0)
        return 0;
    return id;
}

bool vms_up(struct vms *v)
{
    pthread_mutex_lock(&v->lock);
    bool up = v->up;
    pthread_mutex_unlock(&v->lock);
    return up;
}

void vms_qemu_version(struct vms *v, char out[32])
{
    pthread_mutex_lock(&v->lock);
    str_copy(out, 32, v->qemu);
    pthread_mutex_unlock(&v->lock);
}
