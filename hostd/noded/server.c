// SPDX-License-Identifier: Apache-2.0
// The server: see server.h.
//
// Theory of operation. A request becomes a job: checked at once, then worked on by the queue,
// answered when it is done or when its time is over, whichever is first, and written to the audit
// log. space-noded makes jobs of its own, too (without a client): it takes back what a domain that
// ended had (reap), and ends domains that hang or started too late. hostd hears that a domain is
// gone only after its reap, so that the uid is free by then; and hears RESYNC after everything that
// was taken was looked at again.
#include "hostd/noded/server.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/noded/audit.h"
#include "hostd/noded/ops.h"
#include "hostd/noded/queue.h"
#include "hostd/noded/slots.h"
#include "hostd/noded/vm.h"
#include "ipc/conns.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define CLIENTS_MAX 16u
#define OUTPUT_MAX  1024u /* replies and events that a client may leave unread beyond what the socket holds */
#define SOCKET_NAME "noded.sock"

struct server {
    uv_loop_t *loop;
    struct node *node;
    struct queue *queue;
    uid_t user;
    int fd;                /* -1: clients listens, or did */
    struct conns *clients; /* NULL: not yet, or not any more */
    bool stopping;
    uint32_t resync; /* reaps that the next RESYNC waits for */
    void (*stopped)(void *user);
    void *stopped_user;
};

struct job {
    struct task task;
    struct server *server;
    const struct op *op;
    struct conn *conn; /* NULL: our own */
    struct noded_request req;
    struct noded_reply rep;
    int fd, rc;
    struct err err;
    uint64_t started;         /* uv_hrtime */
    enum noded_vm_event then; /* of our own: to be told when it is done */
    bool resync;              /* of our own: counted in server.resync */
};

static void submit_own(struct server *s, const struct op *op, uint64_t id, enum noded_vm_event then, bool resync);
static void submit(struct server *s, const struct op *op, struct conn *c, const struct noded_request *q, enum noded_vm_event then, bool resync);
static void broadcast(struct server *s, const struct noded_reply *ev);

/* ---- answers ---- */

static void answer(struct conn *c, const struct noded_request *q, struct noded_reply *rep, int fd, int rc, const char *sentence)
{
    rep->version = NODED_VERSION;
    rep->event = NODED_REPLY;
    rep->tag = q->tag;
    rep->id = q->id;
    rep->error = rc;
    if (rc < 0)
        str_copy(rep->sentence, sizeof rep->sentence, sentence);
    conn_reply(c, rep, fd);
}

/* ---- jobs ---- */

static void job_work(struct task *t)
{
    struct job *j = (struct job *)(void *)t;
    j->rc = j->op->run(j->server->node, &j->req, &j->rep, &j->fd, &j->err);
}

static void job_expired(struct task *t)
{
    struct job *j = (struct job *)(void *)t;
    struct noded_reply rep = {0}; /* the job's own may be written to right now */
    char sentence[128];
    snprintf(sentence, sizeof sentence,
             "%s %012llx: no answer within %u s: its QEMU hangs (kill it), or libvirtd does "
             "(restart it)",
             j->op->name, (unsigned long long)j->req.id, j->op->limit_msec / 1000);
    audit(j->op->name, &j->req, -ETIMEDOUT, j->started, sentence);
    answer(j->conn, &j->req, &rep, -1, -ETIMEDOUT, sentence);
    conn_unref(j->conn);
    j->conn = NULL;
}

/* What was refused is taken back. */
static void undo(struct server *s, const struct job *j)
{
    bool any = j->op->undo->fields & OP_OBJECT;
    struct noded_request q = {.version = NODED_VERSION, .kind = any ? j->req.kind : NODED_SANDBOX, .id = j->req.id};
    submit(s, j->op->undo, NULL, &q, 0, false);
}

/* A job of our own is done. */
static void own_done(struct server *s, struct job *j)
{
    if (j->rc < 0)
        log_warn("%s %012llx: %s", j->op->name, (unsigned long long)j->req.id, j->err.msg);
    if (j->then) {
        struct noded_reply ev = {.version = NODED_VERSION, .event = NODED_EVENT_VM, .id = j->req.id, .vm_event = j->then};
        broadcast(s, &ev);
    }
    if (j->resync && --s->resync == 0) {
        struct noded_reply ev = {.version = NODED_VERSION, .event = NODED_EVENT_RESYNC};
        broadcast(s, &ev);
    }
}

static void job_done(struct task *t)
{
    struct job *j = (struct job *)(void *)t;
    struct server *s = j->server;
    if (j->conn) {
        audit(j->op->name, &j->req, j->rc, j->started, j->err.msg);
        answer(j->conn, &j->req, &j->rep, steal_fd(&j->fd), j->rc, j->err.msg);
        conn_unref(j->conn);
    } else if (!t->timed_out) {
        own_done(s, j);
    } else if (t->started) {
        log_info("audit: %s %012llx late result=%d usec=%llu", j->op->name, (unsigned long long)j->req.id, j->rc,
                 (unsigned long long)((uv_hrtime() - j->started) / 1000));
        if (j->rc == 0 && j->op->undo)
            undo(s, j);
    }
    cleanup_close(&j->fd);
    free(j);
    if (s->stopping && queue_count(s->queue) == 0)
        s->stopped(s->stopped_user);
}

static void submit(struct server *s, const struct op *op, struct conn *c, const struct noded_request *q, enum noded_vm_event then, bool resync)
{
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        abort(); /* a new process starts with less */
    j->task.key = op->ordered ? op_key(op, q) : 0;
    j->task.lane = op->lane;
    j->task.limit_msec = op->limit_msec;
    j->task.work = job_work;
    j->task.expired = job_expired;
    j->task.done = job_done;
    j->server = s;
    j->op = op;
    j->conn = c;
    if (c)
        conn_ref(c);
    j->req = *q;
    j->fd = -1;
    j->started = uv_hrtime();
    j->then = then;
    j->resync = resync;
    if (op->ends && queue_working(s->queue, j->task.key))
        submit_own(s, &op_interrupt, q->id, 0, false);
    queue_submit(s->queue, &j->task);
}

static void submit_own(struct server *s, const struct op *op, uint64_t id, enum noded_vm_event then, bool resync)
{
    struct noded_request q = {.version = NODED_VERSION, .kind = NODED_SANDBOX, .id = id};
    submit(s, op, NULL, &q, then, resync);
}

/* ---- clients ---- */

static void refuse(struct conn *c, const struct noded_request *q, const char *name, const struct err *e)
{
    struct noded_reply rep = {0};
    audit(name, q, -e->code, uv_hrtime(), e->msg);
    answer(c, q, &rep, -1, -e->code, e->msg);
}

static void on_request(void *user, struct conn *c, const void *request, int *fds, unsigned fd_count)
{
    struct server *s = user;
    const struct noded_request *q = request;
    (void)fds, (void)fd_count; /* it takes none */
    struct err e = {0};
    const struct op *op = op_find(q->op);
    if (q->version != NODED_VERSION)
        err_set(&e, EPROTO, "this space-noded speaks version %u, not %u: install both daemons from one build", NODED_VERSION, q->version);
    else if (!conn_greeted(c) && q->op != NODED_HELLO)
        err_set(&e, EPROTO, "the first request must be hello");
    else if (!op)
        err_set(&e, EOPNOTSUPP, "there is no operation %u", q->op);
    else if (op_check(op, s->node, q, &e) < 0)
        ;
    else if (op->needs_libvirt && !vms_up(s->node->vms))
        err_set(&e, ENOTCONN, "%s %012llx: libvirt does not answer at %s; is libvirtd running?", op->name, (unsigned long long)q->id,
                s->node->config.libvirt);
    else {
        conn_set_greeted(c);
        submit(s, op, c, q, 0, false);
        return;
    }
    refuse(c, q, op ? op->name : "?", &e);
}

static const struct conn_ops conn_ops = {
    .request_size = sizeof(struct noded_request), .reply_size = sizeof(struct noded_reply), .output_max = OUTPUT_MAX, .request = on_request};

static void broadcast(struct server *s, const struct noded_reply *ev)
{
    if (s->clients)
        conns_event(s->clients, ev);
}

/* ---- libvirt ---- */

void server_vm_event(void *server, uint64_t id, enum noded_vm_event what)
{
    struct server *s = server;
    struct noded_reply ev = {.version = NODED_VERSION, .event = NODED_EVENT_VM, .id = id, .vm_event = what};
    if (what == NODED_VM_GONE || what == NODED_VM_CRASHED)
        submit_own(s, &op_reap, id, what, false);
    else
        broadcast(s, &ev);
}

static void reap_holder(void *user, uint64_t id)
{
    struct server *s = user;
    s->resync++;
    submit_own(s, &op_reap, id, 0, true);
}

void server_vm_connected(void *server)
{
    struct server *s = server;
    struct noded_reply ev = {.version = NODED_VERSION, .event = NODED_EVENT_RESYNC};
    slots_each(s->node->slots, reap_holder, s);
    if (!s->resync)
        broadcast(s, &ev);
}

/* ---- life ---- */

static int bind_socket(int fd, int dir_fd, const char *run, uid_t user, struct err *e)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    snprintf(addr.sun_path, sizeof addr.sun_path, "%.63s/%s", run, SOCKET_NAME);
    if (unlinkat(dir_fd, SOCKET_NAME, 0) < 0 && errno != ENOENT)
        return err_sys(e, "remove the old %s", addr.sun_path);
    mode_t old = umask(0177); /* never open to anybody else, not even for a moment */
    int rc = bind(fd, (struct sockaddr *)&addr, sizeof addr);
    umask(old);
    if (rc < 0)
        return err_sys(e, "bind %s", addr.sun_path);
    if (fchownat(dir_fd, SOCKET_NAME, user, (gid_t)-1, AT_SYMLINK_NOFOLLOW) < 0)
        return err_sys(e, "give %s to uid %u", addr.sun_path, user);
    return 0;
}

int server_open(uv_loop_t *loop, struct node *node, int dir_fd, const char *run, uid_t user, struct server **out, struct err *e)
{
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, "make a socket");
    int rc = bind_socket(fd, dir_fd, run, user, e);
    if (rc < 0)
        return rc;
    struct server *s = calloc(1, sizeof *s);
    struct queue *q = s ? queue_create(loop) : NULL;
    if (!q) {
        free(s); /* a queue made in vain stays: main ends now */
        return err_set(e, ENOMEM, "open the socket: out of memory");
    }
    s->loop = loop;
    s->node = node;
    s->user = user;
    s->queue = q;
    s->fd = steal_fd(&fd);
    *out = s;
    return 0;
}

int server_listen(struct server *s, struct err *e)
{
    if (s->clients || s->stopping)
        return 0;
    if (listen(s->fd, CLIENTS_MAX) < 0)
        return err_sys(e, "listen on the socket");
    s->clients = conns_open(s->loop, s->fd, s->user, CLIENTS_MAX, &conn_ops, s);
    if (!s->clients)
        return err_set(e, ENOMEM, "listen on the socket: out of memory");
    s->fd = -1;
    log_info("ready");
    return 0;
}

void server_stop(struct server *s, void (*stopped)(void *user), void *user)
{
    s->stopping = true;
    s->stopped = stopped;
    s->stopped_user = user;
    if (s->clients)
        conns_close(s->clients);
    s->clients = NULL;
    cleanup_close(&s->fd);
    if (queue_count(s->queue) == 0)
        stopped(user);
}
