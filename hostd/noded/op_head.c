// SPDX-License-Identifier: Apache-2.0
// Heads with memory: capturing a virtual machine, and loading what was captured. Each operation
// says what it lets hostd do at most; arguments were checked by ops.c.
//
// Theory of operation. A QEMU's memory is a private mapping of a base that nobody writes to
// (qemu_ram.c): what the guest changed is that process's anonymous pages, and QEMU's migration
// stream, which leaves that memory out, is the devices' state and little else. A capture is
//   prepare   a new object with reflinks of kernel, initrd, the base's memory and page table; the
//             guest's disk is written out; QEMU gets a pipe
//   pause     QEMU's `migrate` stops the guest and writes its state into the pipe until its end;
//   the
//             disk is reflinked and the changed pages are copied; `cont`
//   finish    vm.state and, last, meta with the checksums: an object without a meta is no head
// and a load is the same backwards, into a QEMU that waits on the same base. Neither parses what
// comes from QEMU but for the monitor's answers: state and pages are bytes.
//
// A record says that a capture is under way. When this process ends within one, the next one
// cancels QEMU's migration and lets the guest go on, before it serves anybody; the new object has
// no meta, and hostd removes it. A load that was not finished leaves a record that says so, too.
#include "hostd/noded/op_impl.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/noded/domain_xml.h"
#include "hostd/noded/fill.h"
#include "hostd/noded/head.h"
#include "hostd/noded/memory.h"
#include "hostd/noded/pool.h"
#include "hostd/noded/record.h"
#include "hostd/noded/vm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PIPE_BYTES (1 << 20)
#define STATE_STEP (1u << 20)
#define STATE_MAX  (256u << 20)
#define STATE_MSEC 20000 /* QEMU gives or takes its state within this, or hangs */
/* What QEMU can write with nobody reading: the smallest pipe and its own buffer. */
#define STUCK_PIPE  4096
#define STUCK_BYTES (STUCK_PIPE + 32768)

#define QMP_GETFD  "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"head\"}}"
#define QMP_STATUS "{\"execute\":\"query-status\"}"
#define QMP_CAPS                                                                                                                                     \
    "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":[{\"capability\":"                                                    \
    "\"x-ignore-shared\",\"state\":true}]}}"
#define QMP_SAVE_CAPS                                                                                                                                \
    "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":[{\"capability\":"                                                    \
    "\"x-ignore-shared\",\"state\":true},{\"capability\":\"pause-before-switchover\",\"state\":"                                                     \
    "true}"                                                                                                                                          \
    "]}}"
#define QMP_GO_ON     "{\"execute\":\"migrate-continue\",\"arguments\":{\"state\":\"pre-switchover\"}}"
#define QMP_SPEED     "{\"execute\":\"migrate-set-parameters\",\"arguments\":{\"max-bandwidth\":1099511627776}}"
#define QMP_SAVE      "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"fd:head\"}}"
#define QMP_LOAD      "{\"execute\":\"migrate-incoming\",\"arguments\":{\"uri\":\"fd:head\"}}"
#define QMP_MIGRATION "{\"execute\":\"query-migrate\"}"
#define QMP_CANCEL    "{\"execute\":\"migrate_cancel\"}"
#define QMP_STOP      "{\"execute\":\"stop\"}"
#define QMP_CONT      "{\"execute\":\"cont\"}"

/* Steps and how long each took, for the log. */
struct trace {
    uint64_t started, last;
    char text[256];
    size_t len;
};

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void trace_start(struct trace *t)
{
    *t = (struct trace){.started = now()};
    t->last = t->started;
}

static void trace_step(struct trace *t, const char *name)
{
    uint64_t at = now();
    str_append(t->text, sizeof t->text, &t->len, " %s=%llu", name, (unsigned long long)((at - t->last) / 1000));
    t->last = at;
}

static int qmp(struct vm_session *s, const char *command, struct err *e)
{
    return vms_qmp(s, command, -1, NULL, NULL, 0, e);
}

int op_head_prepare(const struct node *n, uint64_t id, struct err *e)
{
    struct vm_session *s = NULL;
    int rc = vms_session_open(n->vms, "prepare", id, &s, e);
    if (rc == 0)
        rc = qmp(s, QMP_CAPS, e);
    vms_session_close(s);
    return rc;
}

/* A pipe, one end of which goes to QEMU under the name "head". *ret is the other end. */
static int give_pipe(struct vm_session *s, int qemu_end, int *ret, struct err *e)
{
    int p[2];
    if (pipe2(p, O_CLOEXEC) < 0)
        return err_sys(e, "make a pipe");
    fcntl(p[1], F_SETPIPE_SZ, PIPE_BYTES); /* a smaller one is slower, no more */
    int rc = vms_qmp(s, QMP_GETFD, p[qemu_end], NULL, NULL, 0, e);
    close(p[qemu_end]);
    if (rc < 0)
        close(p[!qemu_end]);
    else
        *ret = p[!qemu_end];
    return rc;
}

/* QEMU says how its migration ended. */
static int check_migration(struct vm_session *s, uint64_t id, const char *what, struct err *e)
{
    char status[32] = "";
    int rc = vms_qmp(s, QMP_MIGRATION, -1, "\"status\":", status, sizeof status, e);
    if (rc == 0 && strcmp(status, "completed") != 0)
        rc = err_set(e, EIO, "%s sandbox %012llx: QEMU says that its state is %s", what, (unsigned long long)id, status[0] ? status : "not known");
    return rc;
}

/* ---- what a capture left ---- */

static bool in_progress(const char *migration)
{
    static const char *const states[] = {"setup", "active", "pre-switchover", "device", "cancelling"};
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strcmp(migration, states[i]) == 0)
            return true;
    return false;
}

/* Ends QEMU's migration, which lets a guest go on that ran before, and sees to that. */
static int mend(struct vm_session *s, uint64_t id, bool ran, struct err *e)
{
    char status[32] = "";
    uint64_t end = now() + STATE_MSEC * 1000000ull;
    for (bool cancelled = false;; cancelled = true) {
        int rc = vms_qmp(s, QMP_MIGRATION, -1, "\"status\":", status, sizeof status, e);
        if (rc < 0)
            return rc;
        if (!in_progress(status))
            break;
        if (now() > end)
            return err_set(e, ETIMEDOUT, "sandbox %012llx: its QEMU does not end a capture", (unsigned long long)id);
        if (!cancelled)
            qmp(s, QMP_CANCEL, NULL);
        poll(NULL, 0, 2);
    }
    int rc = vms_qmp(s, QMP_STATUS, -1, "\"status\":", status, sizeof status, e);
    return rc < 0 || !ran || strcmp(status, "running") == 0 ? rc : qmp(s, QMP_CONT, e);
}

int op_head_mend(const struct node *n, uint64_t id, struct err *e)
{
    struct record r;
    struct vm_session *s = NULL;
    if (record_read(n->channels, id, &r, NULL) < 0 || r.capture == RECORD_NO_CAPTURE)
        return 0;
    log_info("sandbox %012llx was in a capture when space-noded ended; it goes on", (unsigned long long)id);
    int rc = vms_session_open(n->vms, "mend", id, &s, e);
    if (rc == 0)
        rc = mend(s, id, r.capture == RECORD_CAPTURE_RUNNING, e);
    vms_session_close(s);
    r.capture = RECORD_NO_CAPTURE;
    return rc < 0 ? rc : record_write(n->channels, id, &r, e);
}

/* ---- capture ---- */

struct capture {
    struct node *node;
    struct pool_object from, to;
    struct vm_session *vm;
    struct record record;
    bool ran;
    int source_disk, disk, ram, meta, state, pipe;
    uint8_t *bytes;           /* the devices' state */
    size_t len, room, before; /* `before` of them before QEMU was stuck */
    pthread_t thread;         /* waits for QEMU's answer to go on */
    bool threaded;
    int went_on, wake[2];
    struct err go_on_err;
    bool resumed;
    uint64_t stopped, pause; /* when, how long: nanoseconds */
    uint64_t pages, written;
    struct trace trace;
};

static void capture_close(struct capture *c)
{
    cleanup_close(&c->source_disk);
    cleanup_close(&c->disk);
    cleanup_close(&c->ram);
    cleanup_close(&c->meta);
    cleanup_close(&c->state);
    cleanup_close(&c->pipe);
    cleanup_close(&c->wake[0]);
    cleanup_close(&c->wake[1]);
    free(c->bytes);
    vms_session_close(c->vm);
}

#define AUTO_CAPTURE __attribute__((cleanup(capture_close)))

static int make_files(struct capture *c, struct err *e)
{
    static const enum noded_file shared[] = {NODED_KERNEL, NODED_INITRD, NODED_RAM};
    const struct pool *p = c->node->pool;
    int rc = pool_file_open(p, c->to, NODED_META, true, &c->meta, e); /* first: half_made() */
    for (size_t i = 0; i < sizeof shared / sizeof shared[0] && rc == 0; i++)
        rc = pool_file_clone(p, c->from, c->to, shared[i], e);
    if (rc == 0)
        rc = pool_file_open(p, c->from, NODED_DISK, false, &c->source_disk, e);
    if (rc == 0)
        rc = pool_file_open(p, c->to, NODED_DISK, true, &c->disk, e);
    if (rc == 0)
        rc = pool_file_open(p, c->to, NODED_RAM, true, &c->ram, e);
    return rc < 0 ? rc : pool_file_open(p, c->to, NODED_STATE, true, &c->state, e);
}

/* What a capture left whose space-noded was killed: a meta, of which the header was never written.
 */
static bool half_made(const struct pool *p, struct pool_object o)
{
    char magic[8] = {0};
    AUTO_CLOSE int fd = -1;
    return pool_file_open(p, o, NODED_META, false, &fd, NULL) == 0 && pread(fd, magic, sizeof magic, 0) >= 0 &&
           memcmp(magic, "\0\0\0\0\0\0\0", 8) == 0;
}

/* hostd asks again for what it got no answer to. */
static int make_object(const struct pool *p, struct pool_object o, struct err *e)
{
    int rc = pool_create(p, o, e);
    if (rc != -EEXIST || !half_made(p, o))
        return rc;
    rc = pool_delete(p, o, e);
    return rc < 0 ? rc : pool_create(p, o, e);
}

/* The base's, which the sandbox's object has a copy of. */
static int make_table(struct capture *c, struct err *e)
{
    AUTO_CLOSE int base = -1;
    if (head_id_none(&c->record.base))
        return head_start_table(c->meta, -1, c->record.target.length, e);
    int rc = pool_file_open(c->node->pool, c->from, NODED_META, false, &base, e);
    if (rc < 0)
        return rc;
    struct head_id has = head_id_of(base);
    if (!head_id_equal(&has, &c->record.base))
        return err_set(e, EBADMSG,
                       "capture sandbox %012llx: its object is not the one that its memory came "
                       "from: stop it and start it again",
                       (unsigned long long)c->from.id);
    return head_start_table(c->meta, base, c->record.target.length, e);
}

/* A guest that was paused, and captured so, cannot be saved again before it ran: QEMU's rule. */
static int leave_postmigrate(struct capture *c, struct err *e)
{
    vms_expect(c->node->vms, c->from.id, 1, 1);
    int rc = qmp(c->vm, QMP_CONT, e);
    return rc < 0 ? rc : qmp(c->vm, QMP_STOP, e);
}

static int look_at_guest(struct capture *c, struct err *e)
{
    char status[32];
    int rc = vms_qmp(c->vm, QMP_STATUS, -1, "\"status\":", status, sizeof status, e);
    if (rc < 0)
        return rc;
    c->ran = strcmp(status, "running") == 0;
    if (strcmp(status, "inmigrate") == 0)
        return err_set(e, EBUSY, "capture sandbox %012llx: it waits to be loaded", (unsigned long long)c->from.id);
    return strcmp(status, "postmigrate") == 0 ? leave_postmigrate(c, e) : 0;
}

static int capture_prepare(struct capture *c, struct err *e)
{
    int rc = make_files(c, e);
    if (rc == 0)
        rc = make_table(c, e);
    trace_step(&c->trace, "files");
    if (rc == 0 && fdatasync(c->source_disk) < 0)
        rc = err_sys(e, "write out the disk of sandbox %012llx", (unsigned long long)c->from.id);
    trace_step(&c->trace, "sync");
    if (rc == 0)
        rc = look_at_guest(c, e);
    if (rc == 0)
        rc = qmp(c->vm, QMP_SAVE_CAPS, e);
    if (rc == 0)
        rc = qmp(c->vm, QMP_SPEED, e);
    if (rc == 0)
        rc = give_pipe(c->vm, 1, &c->pipe, e);
    if (rc == 0 && pipe2(c->wake, O_CLOEXEC) < 0)
        rc = err_sys(e, "make a pipe");
    trace_step(&c->trace, "qemu");
    return rc;
}

static int grow(struct capture *c)
{
    if (c->room - c->len >= STATE_STEP)
        return 0;
    uint8_t *more = c->room < STATE_MAX ? realloc(c->bytes, c->room + STATE_STEP * 2) : NULL;
    if (!more)
        return -ENOMEM;
    c->bytes = more;
    c->room += STATE_STEP * 2;
    return 0;
}

/* Reads what is there, waiting at most `msec` for it. 1: there was something; 0: not; -EPIPE: QEMU
 * closed the pipe. */
static int read_some(struct capture *c, int msec)
{
    struct pollfd p = {.fd = c->pipe, .events = POLLIN};
    int rc = grow(c);
    if (rc < 0)
        return rc;
    int ready = poll(&p, 1, msec);
    if (ready <= 0)
        return ready < 0 && errno != EINTR ? -errno : 0;
    ssize_t n = read(c->pipe, c->bytes + c->len, c->room - c->len);
    if (n <= 0)
        return n == 0 ? -EPIPE : errno == EINTR ? 0 : -errno;
    c->len += (size_t)n;
    return 1;
}

static int state_fail(const struct capture *c, int rc, struct err *e)
{
    return err_set(e, -rc, "capture sandbox %012llx: read the state from QEMU: %s", (unsigned long long)c->from.id, strerror(-rc));
}

/* The guest is stopped, and QEMU waits; what it has written so far is read. */
static int wait_stopped(struct capture *c, struct err *e)
{
    char status[32] = "";
    uint64_t end = now() + STATE_MSEC * 1000000ull;
    while (strcmp(status, "pre-switchover") != 0) {
        int rc = read_some(c, 0);
        if (rc >= 0)
            rc = vms_qmp(c->vm, QMP_MIGRATION, -1, "\"status\":", status, sizeof status, e);
        else
            return state_fail(c, rc, e);
        if (rc < 0)
            return rc;
        if (strcmp(status, "failed") == 0 || strcmp(status, "cancelled") == 0)
            return state_fail(c, -EIO, e);
        if (now() > end)
            return state_fail(c, -ETIMEDOUT, e);
    }
    int rc;
    while ((rc = read_some(c, 0)) > 0)
        ;
    return rc < 0 ? state_fail(c, rc, e) : 0;
}

static void *go_on(void *arg)
{
    struct capture *c = arg;
    c->went_on = qmp(c->vm, QMP_GO_ON, &c->go_on_err);
    if (c->went_on < 0) {
        cleanup_close(&c->wake[1]); /* nothing will come */
        c->wake[1] = -1;
    }
    return NULL;
}

/* QEMU goes on into its devices' state, and is stuck there. It may answer the command only when it
 * has that behind it: so another thread waits for the answer, and nobody uses the connection until
 * go_on_finish. */
static int wait_stuck(struct capture *c, struct err *e)
{
    struct pollfd p[] = {{.fd = c->pipe, .events = POLLIN}, {.fd = c->wake[0], .events = POLLIN}};
    int ready;
    if (fcntl(c->pipe, F_SETPIPE_SZ, STUCK_PIPE) < 0)
        return err_sys(e, "make the pipe to QEMU small");
    c->before = c->len;
    int error = pthread_create(&c->thread, NULL, go_on, c);
    if (error)
        return err_set(e, error, "capture: no thread: %s", strerror(error));
    c->threaded = true;
    do
        ready = poll(p, 2, STATE_MSEC);
    while (ready < 0 && errno == EINTR);
    if (ready > 0 && p[0].revents)
        return 0;
    return state_fail(c, ready < 0 ? -errno : ready == 0 ? -ETIMEDOUT : -EIO, e);
}

/* The pipe is empty or closed: QEMU answers. */
static int go_on_finish(struct capture *c, struct err *e)
{
    if (!c->threaded)
        return 0;
    pthread_join(c->thread, NULL);
    c->threaded = false;
    return c->went_on < 0 ? err_set(e, c->go_on_err.code, "%s", c->go_on_err.msg) : 0;
}

/* The rest of the state. */
static int read_rest(struct capture *c, struct err *e)
{
    uint64_t end = now() + STATE_MSEC * 1000000ull;
    int rc;
    fcntl(c->pipe, F_SETPIPE_SZ, PIPE_BYTES);
    while ((rc = read_some(c, STATE_MSEC)) >= 0)
        if (now() > end)
            return state_fail(c, -ETIMEDOUT, e);
    if (rc != -EPIPE)
        return state_fail(c, rc, e);
    if (c->len - c->before <= STUCK_BYTES)
        return err_set(e, EIO, "capture sandbox %012llx: its state is so small that QEMU may have gone on", (unsigned long long)c->from.id);
    return 0;
}

/* The pages are copied: the guest may run on, and its QEMU finish. */
static int let_go(void *user, struct err *e)
{
    struct capture *c = user;
    trace_step(&c->trace, "memory");
    int rc = read_rest(c, e);
    trace_step(&c->trace, "state");
    if (rc == 0)
        rc = go_on_finish(c, e);
    if (rc == 0 && c->ran) {
        rc = qmp(c->vm, QMP_CONT, e);
        c->resumed = rc == 0;
        c->pause = now() - c->stopped;
    }
    trace_step(&c->trace, "cont");
    return rc;
}

/* All that must be of one instant. */
static int take_all(struct capture *c, struct err *e)
{
    int rc = qmp(c->vm, QMP_SAVE, e);
    trace_step(&c->trace, "migrate");
    if (rc == 0)
        rc = wait_stopped(c, e);
    trace_step(&c->trace, "stop");
    if (rc == 0)
        rc = wait_stuck(c, e);
    trace_step(&c->trace, "stuck");
    if (rc == 0)
        rc = pool_clone(c->source_disk, c->disk, c->to, NODED_DISK, e);
    trace_step(&c->trace, "disk");
    if (rc == 0)
        rc = memory_save(c->node->memory, &c->record.target, c->ram, c->meta, HEAD_PAGE, let_go, c, &c->pages, &c->written, e);
    trace_step(&c->trace, "write");
    return rc;
}

/* Closing the pipe frees a QEMU that is stuck. */
static void go_on_anyway(struct capture *c)
{
    struct err why = {0};
    cleanup_close(&c->pipe);
    c->pipe = -1;
    go_on_finish(c, &why);
    if (mend(c->vm, c->from.id, c->ran, &why) < 0)
        log_error("after a failed capture: %s; it may stay paused", why.msg);
}

static int remember_capture(struct capture *c, enum record_capture what, struct err *e)
{
    c->record.capture = what;
    return record_write(c->node->channels, c->from.id, &c->record, e);
}

static int capture_pause(struct capture *c, struct err *e)
{
    struct err why = {0};
    if (c->ran)
        vms_expect(c->node->vms, c->from.id, 1, 1);
    int rc = remember_capture(c, c->ran ? RECORD_CAPTURE_RUNNING : RECORD_CAPTURE_PAUSED, e);
    c->stopped = now();
    if (rc == 0)
        rc = take_all(c, e);
    if (rc < 0 && !c->resumed) {
        go_on_anyway(c);
        if (c->ran)
            vms_expect(c->node->vms, c->from.id, -1, -1); /* what may not come is not waited for */
    }
    if (remember_capture(c, RECORD_NO_CAPTURE, &why) < 0)
        log_warn("%s", why.msg);
    return rc;
}

static int write_state(const struct capture *c, struct err *e)
{
    for (size_t done = 0; done < c->len;) {
        ssize_t n = pwrite(c->state, c->bytes + done, c->len - done, (off_t)done);
        if (n < 0)
            return err_sys(e, "write vm.state");
        done += (size_t)n;
    }
    return 0;
}

static int capture_finish(struct capture *c, struct err *e)
{
    struct head_meta m = {.created = (uint64_t)time(NULL),
                          .memory = c->record.target.length,
                          .vcpus = c->record.vcpus,
                          .accel = c->record.accel,
                          .state_bytes = c->len,
                          .base = c->record.base,
                          .machine = DOMAIN_MACHINE,
                          .cpu = DOMAIN_CPU,
                          .devices = DOMAIN_DEVICES};
    int rc = check_migration(c->vm, c->from.id, "capture", e);
    if (rc == 0)
        rc = write_state(c, e);
    if (rc == 0)
        rc = head_id_new(&m.id, e);
    if (rc < 0)
        return rc;
    off_t disk = lseek(c->disk, 0, SEEK_END);
    m.disk_bytes = disk < 0 ? 0 : (uint64_t)disk;
    m.state = head_sum_of(c->bytes, c->len);
    vms_qemu_version(c->node->vms, m.qemu);
    rc = head_finish_meta(c->meta, &m, e);
    trace_step(&c->trace, "finish");
    return rc;
}

static int capture(struct capture *c, struct err *e)
{
    int rc = capture_prepare(c, e);
    if (rc == 0)
        rc = capture_pause(c, e);
    return rc < 0 ? rc : capture_finish(c, e);
}

/* Copies a sandbox of this instance, memory included, as an object that QEMU's users cannot read.
 */
int op_vm_capture(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)ret_fd;
    AUTO_CAPTURE struct capture c = {.node = n,
                                     .from = {NODED_SANDBOX, q->id2},
                                     .to = {(enum noded_kind)q->kind, q->id},
                                     .source_disk = -1,
                                     .disk = -1,
                                     .ram = -1,
                                     .meta = -1,
                                     .state = -1,
                                     .pipe = -1,
                                     .wake = {-1, -1}};
    trace_start(&c.trace);
    int rc = vms_session_open(n->vms, "capture", q->id2, &c.vm, e);
    if (rc == 0)
        rc = record_read(n->channels, q->id2, &c.record, e);
    if (rc == 0)
        rc = fill_refuse(n->pool, c.from, "capture", e);
    if (rc == 0)
        rc = make_object(n->pool, c.to, e);
    if (rc < 0)
        return rc;
    trace_step(&c.trace, "create");
    rc = capture(&c, e);
    if (rc < 0) {
        struct err why = {0};
        if (pool_delete(n->pool, c.to, &why) < 0)
            log_warn("after a failed capture: %s", why.msg);
    }
    log_info("capture of sandbox %012llx: result=%d pause_usec=%llu state=%zu pages=%llu "
             "written=%llu usec:%s",
             (unsigned long long)q->id2, rc, (unsigned long long)c.pause / 1000, c.len, (unsigned long long)c.pages, (unsigned long long)c.written,
             c.trace.text);
    rep->capture.pause_nsec = c.pause;
    rep->capture.changed_bytes = c.written * HEAD_PAGE;
    rep->capture.state_bytes = c.len;
    return rc;
}

/* ---- load ---- */

static int check_machine(const struct head *h, uint64_t id, uint64_t memory, uint32_t vcpus, struct err *e)
{
    if (h->m.memory == memory && h->m.vcpus == vcpus)
        return 0;
    return err_set(e, EINVAL,
                   "load %012llx into sandbox %012llx: it has %llu MiB of memory and %u processors, "
                   "the sandbox %llu MiB and %u",
                   (unsigned long long)h->object.id, (unsigned long long)id, (unsigned long long)h->m.memory >> 20, h->m.vcpus,
                   (unsigned long long)memory >> 20, vcpus);
}

static int check_host(const struct node *n, const struct head *h, uint32_t accel, struct err *e)
{
    char qemu[32];
    vms_qemu_version(n->vms, qemu);
    return head_check_host(h, accel, qemu, e);
}

int op_head_open(const struct node *n, const struct noded_request *q, struct head *out, struct err *e)
{
    struct pool_object o = {(enum noded_kind)q->kind2, q->id2};
    int rc = head_open(n->pool, o, out, e);
    if (rc == 0)
        rc = check_host(n, out, q->accel, e);
    if (rc == 0)
        rc = check_machine(out, q->id, q->memory, q->vcpus, e);
    return rc < 0 || (q->flags & NODED_FILLING) ? rc : head_check_ram(n->heads, out, e);
}

struct load {
    struct node *node;
    uint64_t id;
    struct vm_session *vm;
    struct record record;
    struct head head;
    bool own_memory; /* the head is the base itself */
    uint8_t *bytes;
    size_t len;
    int pipe;
    uint64_t pages;
    struct trace trace;
};

static void load_close(struct load *l)
{
    head_close(&l->head);
    cleanup_close(&l->pipe);
    free(l->bytes);
    vms_session_close(l->vm);
}

#define AUTO_LOAD __attribute__((cleanup(load_close)))

static int load_check(struct load *l, const struct noded_request *q, struct err *e)
{
    struct pool_object o = {(enum noded_kind)q->kind2, q->id2};
    int rc = vms_session_open(l->node->vms, "load", l->id, &l->vm, e);
    if (rc == 0)
        rc = record_read(l->node->channels, l->id, &l->record, e);
    if (rc == 0 && l->record.phase != RECORD_WAITS)
        rc = err_set(e, EBUSY, "load sandbox %012llx: its QEMU does not wait to be loaded", (unsigned long long)l->id);
    if (rc == 0)
        rc = head_open(l->node->pool, o, &l->head, e);
    if (rc == 0)
        rc = check_host(l->node, &l->head, l->record.accel, e);
    if (rc == 0)
        rc = check_machine(&l->head, l->id, l->record.target.length, l->record.vcpus, e);
    if (rc < 0)
        return rc;
    l->own_memory = head_id_equal(&l->head.m.id, &l->record.base);
    if (!l->own_memory && !head_id_equal(&l->head.m.base, &l->record.base))
        return err_set(e, EINVAL, "load %012llx into sandbox %012llx: its QEMU waits on another base", (unsigned long long)q->id2,
                       (unsigned long long)l->id);
    return head_read_state(&l->head, &l->bytes, &l->len, e);
}

static int load_disk(struct load *l, struct err *e)
{
    struct pool_object o = {NODED_SANDBOX, l->id};
    AUTO_CLOSE int from = -1, to = -1;
    int rc = pool_file_open(l->node->pool, l->head.object, NODED_DISK, false, &from, e);
    if (rc == 0)
        rc = pool_file_open(l->node->pool, o, NODED_DISK, true, &to, e);
    return rc < 0 ? rc : pool_clone(from, to, o, NODED_DISK, e);
}

/* 0 when QEMU closed its end after it took all; a pipe without a reader is an error to poll. */
static int feed(int pipe, const uint8_t *bytes, size_t len)
{
    for (size_t done = 0;;) {
        struct pollfd p = {.fd = pipe, .events = done < len ? POLLOUT : 0};
        int ready = poll(&p, 1, STATE_MSEC);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return ready < 0 ? -errno : -ETIMEDOUT;
        if (p.revents & POLLERR)
            return done < len ? -EPIPE : 0;
        ssize_t n = write(pipe, bytes + done, len - done);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
}

static int load_state(struct load *l, struct err *e)
{
    int rc = give_pipe(l->vm, 0, &l->pipe, e);
    if (rc < 0)
        return rc;
    fcntl(l->pipe, F_SETFL, O_NONBLOCK);
    rc = qmp(l->vm, QMP_LOAD, e);
    trace_step(&l->trace, "qemu");
    if (rc < 0)
        return rc;
    rc = feed(l->pipe, l->bytes, l->len);
    trace_step(&l->trace, "state");
    if (rc < 0)
        return err_set(e, -rc, "load sandbox %012llx: QEMU does not take the state: %s", (unsigned long long)l->id, strerror(-rc));
    return check_migration(l->vm, l->id, "load", e);
}

static int set_phase(struct load *l, enum record_phase phase, struct err *e)
{
    l->record.phase = phase;
    return record_write(l->node->channels, l->id, &l->record, e);
}

static int load(struct load *l, const struct noded_request *q, struct err *e)
{
    int rc = set_phase(l, RECORD_LOADS, e);
    if (rc == 0 && !(q->flags & NODED_OWN_DISK))
        rc = load_disk(l, e);
    if (rc == 0 && (q->flags & NODED_FILLING))
        rc = fill_begin(l->node->pool, l->id, FILL_DISK, e);
    trace_step(&l->trace, "disk");
    if (rc == 0 && !l->own_memory)
        rc = memory_load(l->node->memory, &l->record.target, l->head.ram, l->head.meta, HEAD_PAGE, &l->pages, e);
    trace_step(&l->trace, "memory");
    if (rc == 0)
        rc = load_state(l, e);
    trace_step(&l->trace, "check");
    if (rc < 0)
        return rc;
    vms_expect(l->node->vms, l->id, 0, 1);
    rc = qmp(l->vm, QMP_CONT, e);
    if (rc < 0)
        vms_expect(l->node->vms, l->id, 0, -1);
    trace_step(&l->trace, "cont");
    return rc < 0 ? rc : set_phase(l, RECORD_RUNS, e);
}

/* Lets a QEMU that hostd started go on from a head of the pool, which fits its own memory. */
int op_vm_load(struct node *n, const struct noded_request *q, struct noded_reply *rep, int *ret_fd, struct err *e)
{
    (void)rep, (void)ret_fd;
    AUTO_LOAD struct load l = {.node = n, .id = q->id, .head = HEAD_INIT, .pipe = -1};
    trace_start(&l.trace);
    int rc = load_check(&l, q, e);
    trace_step(&l.trace, "open");
    if (rc == 0)
        rc = load(&l, q, e);
    log_info("load of sandbox %012llx: result=%d state=%zu pages=%llu usec:%s", (unsigned long long)q->id, rc, l.len, (unsigned long long)l.pages,
             l.trace.text);
    return rc;
}
