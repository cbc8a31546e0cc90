// SPDX-License-Identifier: Apache-2.0
// The server: see server.h. A request is a job, which is a coroutine; it is aborted when its client hangs up or cancels it.
#include "hostd/volumed/server.h"

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "hostd/volumed/store/download.h"
#include "hostd/volumed/store/gc.h"
#include "hostd/volumed/store/upload.h"
#include "ipc/conns.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CLIENTS_MAX 16u
#define OUTPUT_MAX  (CONN_REQUESTS_MAX + 64u) /* answers that a client may leave unread beyond what the socket holds */

struct server {
    struct store *store;
    struct conns *clients;
    struct job *jobs;
    struct task_pool collecting; /* one at a time */
    bool stopping;
    uv_timer_t drain;
    void (*stopped)(void *user);
    void *stopped_user;
};

struct job {
    struct job *next;
    struct server *server;
    struct conn *conn;
    const struct op *op;
    struct co *co;
    struct volumed_request q;
    struct volumed_reply rep;
    int fds[CONN_FDS], out; /* out: goes with the answer */
    unsigned fd_count;
    struct download *download; /* that fetches may ask */
    bool ended;
    struct task_event *fetchers[CONN_REQUESTS_MAX]; /* of other jobs that wait for `download` or the end */
    unsigned fetcher_count;
    struct err err;
};

enum op_fields {
    F_OBJECT = 1, /* tenant and id */
    F_TENANT = 2, /* tenant, no id */
    F_ANY = 4,    /* tenant or none, no id */
    F_BASE = 8,
    F_PARENT = 16,
    F_FILE = 32,
    F_SIZE = 64,
    F_RANGE = 128,
    F_TAG2 = 256,
};

struct op {
    const char *name;
    unsigned fields, flags; /* enum op_fields; those of enum volumed_flags that it knows */
    unsigned fds_min, fds_max;
    int (*run)(struct job *j);
};

/* ---- operations ---- */

static void progress(void *user, uint64_t done, uint64_t total)
{
    struct job *j = user;
    struct volumed_reply ev = {.version = VOLUMED_VERSION, .event = VOLUMED_PROGRESS, .tag = j->q.tag, .progress = {done, total}};
    conn_progress(j->conn, &ev);
}

static int op_hello(struct job *j)
{
    str_copy(j->rep.hello.store, sizeof j->rep.hello.store, backend_describe(j->server->store->backend));
    return 0;
}

static int op_repair(struct job *j)
{
    struct upload_request r = {.tenant = j->q.object.tenant,
                               .base = j->q.base,
                               .file = j->q.file,
                               .size = j->q.size,
                               .fd = j->fd_count ? j->fds[0] : -1,
                               .ranges = j->fd_count > 1 ? j->fds[1] : -1,
                               .repair = true,
                               .progress = progress,
                               .user = j};
    memcpy(r.id, j->q.object.id, sizeof r.id);
    return upload_run(j->server->store, &r, &j->rep, &j->err);
}

static int op_upload(struct job *j)
{
    struct upload_request r = {.tenant = j->q.object.tenant,
                               .base = j->q.base,
                               .file = j->q.file,
                               .size = j->q.size,
                               .fd = j->fds[0],
                               .ranges = j->fd_count > 1 ? j->fds[1] : -1,
                               .progress = progress,
                               .user = j};
    memcpy(r.id, j->q.object.id, sizeof r.id);
    memcpy(r.parent, j->q.parent.id, sizeof r.parent);
    if (j->q.parent.tenant[0] && strcmp(j->q.parent.tenant, j->q.object.tenant) != 0)
        return err_set(&j->err, EINVAL, "the parent is of another tenant");
    return upload_run(j->server->store, &r, &j->rep, &j->err);
}

static void fetchable(void *user, struct download *d)
{
    struct job *j = user;
    j->download = d;
    j->ended = !d;
    for (unsigned i = 0; i < j->fetcher_count; i++)
        task_set(j->fetchers[i]);
}

static int download(struct job *j, unsigned flags)
{
    struct download_request r = {.tenant = j->q.object.tenant,
                                 .base = j->q.base,
                                 .flags = flags,
                                 .fd = j->fd_count ? j->fds[0] : -1,
                                 .bits = j->fd_count > 1 ? j->fds[1] : -1,
                                 .progress = progress,
                                 .fetchable = fetchable,
                                 .user = j};
    memcpy(r.id, j->q.object.id, sizeof r.id);
    return download_run(j->server->store, &r, &j->rep, &j->err);
}

static int op_download(struct job *j)
{
    if ((j->q.flags & VOLUMED_FILL) ? j->fd_count != 2 || j->q.flags != VOLUMED_FILL : j->fd_count != 1)
        return err_set(&j->err, EINVAL, "download: a file, and of one that is filled its bits");
    return download(j, j->q.flags & VOLUMED_HAVE ? DOWNLOAD_HAVE : 0);
}

static int op_verify(struct job *j)
{
    return download(j, DOWNLOAD_VERIFY | (j->q.flags & VOLUMED_READ_ALL ? 0 : DOWNLOAD_NO_CHUNKS));
}

static struct job *find_job(const struct job *of)
{
    for (struct job *j = of->server->jobs; j; j = j->next)
        if (j->conn == of->conn && j->q.tag == of->q.tag2 && j != of)
            return j;
    return NULL;
}

static int op_fetch(struct job *j)
{
    struct task_event ev = {.sched = j->server->store->co};
    struct job *target;
    int rc = 0;
    /* Until its manifest is read. */
    while ((target = find_job(j)) && target->q.op == VOLUMED_DOWNLOAD && !target->download && !target->ended && rc == 0) {
        if (target->fetcher_count == CONN_REQUESTS_MAX)
            return err_set(&j->err, EAGAIN, "too many fetches wait for that download");
        target->fetchers[target->fetcher_count++] = &ev;
        rc = task_wait(&ev, false);
        if (!(target = find_job(j)))
            break;
        for (unsigned i = 0; i < target->fetcher_count; i++)
            if (target->fetchers[i] == &ev)
                target->fetchers[i] = target->fetchers[--target->fetcher_count];
    }
    if (rc < 0)
        return err_set(&j->err, ECANCELED, "cancelled");
    if (!target || target->q.op != VOLUMED_DOWNLOAD || !target->download)
        return err_set(&j->err, ESRCH, "there is no such download");
    return download_fetch(target->download, j->q.offset, j->q.length, &j->err);
}

static int op_cancel(struct job *j)
{
    struct job *target = find_job(j);
    if (!target)
        return err_set(&j->err, ESRCH, "there is no such request");
    co_abort(target->co);
    return 0;
}

static int op_delete(struct job *j)
{
    struct object_id id = store_id(j->q.object.id);
    return store_delete(j->server->store, j->q.object.tenant, OBJECT_MANIFEST, &id, &j->err);
}

/* An answer that is a file. */
static int open_out(struct job *j)
{
    j->out = memfd_create("space-volumed", MFD_CLOEXEC);
    return j->out < 0 ? err_sys(&j->err, "make a file for the answer") : 0;
}

static int op_list(struct job *j)
{
    int rc = open_out(j);
    return rc < 0 ? rc : list_run(j->server->store, j->q.object.tenant, j->out, &j->err);
}

/* Calls `one` for the tenant that was named, or for all. A tenant that fails is told, and the others' turn comes nevertheless. */
static int each_tenant(struct job *j, int (*one)(struct job *j, const char *tenant, struct err *e))
{
    char tenant[KEYS_TENANT_MAX + 1] = "";
    struct err e = {0};
    int rc, failed = 0;
    if (j->q.object.tenant[0])
        return one(j, j->q.object.tenant, &j->err);
    while ((rc = store_next_tenant(j->server->store, tenant, &e)) == 0) {
        e.msg[0] = 0;
        rc = one(j, tenant, &e);
        if (rc == -ECANCELED)
            return err_set(&j->err, ECANCELED, "cancelled");
        if (rc < 0 && failed == 0)
            failed = err_set(&j->err, -rc, "tenant %s: %s", tenant, e.msg);
        if (rc < 0)
            log_warn("%s of tenant %s: %s", j->op->name, tenant, e.msg);
    }
    return rc == -ENOENT ? failed : err_set(&j->err, -rc, "%s", e.msg);
}

/* Of a tenant whose key is gone nothing can be told apart any more: it stays as it is, and is no failure when all tenants are meant. */
static int collect_one(struct job *j, const char *tenant, struct err *e)
{
    int rc = gc_run(j->server->store, tenant, &j->rep, e);
    return rc == -EKEYREVOKED && !j->q.object.tenant[0] ? 0 : rc;
}

static int op_gc(struct job *j)
{
    struct store *s = j->server->store;
    if (task_pool_take(&j->server->collecting) < 0)
        return err_set(&j->err, ECANCELED, "cancelled");
    int rc = each_tenant(j, collect_one);
    if (rc == 0)
        rc = backend_run_co(s->co, s->backend, &(struct backend_request){.verb = BACKEND_SWEEP, .older = s->stale_s}, NULL, &j->err);
    j->rep.gc.replaced = s->replaced;
    s->replaced = 0;
    task_pool_give(&j->server->collecting);
    return rc;
}

/* One whose key is gone cannot be checked, which is no failure when all tenants are meant. */
static int check_one(struct job *j, const char *tenant, struct err *e)
{
    int rc = fsck_run(j->server->store, tenant, j->q.flags, j->out, &j->rep, e);
    if (rc != -EKEYREVOKED || j->q.object.tenant[0])
        return rc;
    dprintf(j->out, "tenant %s: was not checked: %s\n", tenant, e->msg);
    return 0;
}

static int op_fsck(struct job *j)
{
    int rc = open_out(j);
    if (rc == 0)
        rc = each_tenant(j, check_one);
    if (rc == 0 && j->rep.fsck.wrong)
        rc = err_set(&j->err, EBADMSG, "%llu things are wrong, %llu artifacts are affected", (unsigned long long)j->rep.fsck.wrong,
                     (unsigned long long)j->rep.fsck.affected);
    return rc;
}

static int stat_one(struct job *j, const char *tenant, struct err *e)
{
    return stat_run(j->server->store, tenant, &j->rep, e);
}

static int op_stat(struct job *j)
{
    return each_tenant(j, stat_one);
}

_Static_assert(sizeof((struct volumed_reply *)0)->key.wrapped_by == KEYS_TENANT_MAX + 16, "keys_wrapped_by");

static int op_key(struct job *j)
{
    unsigned flags = j->q.flags;
    enum session_change change = flags & VOLUMED_KEY_REVOKE   ? SESSION_REVOKE
                                 : flags & VOLUMED_KEY_ROTATE ? SESSION_ROTATE
                                 : flags & VOLUMED_KEY_CLOSE  ? SESSION_CLOSE
                                 : flags & VOLUMED_KEY_FORGET ? SESSION_FORGET
                                 : flags & VOLUMED_KEY_FRESH  ? SESSION_FRESH
                                 : flags & VOLUMED_KEY_HOLD   ? SESSION_HOLD
                                                              : SESSION_LOOK;
    const struct keys *keys = j->server->store->keys;
    if (flags & (flags - 1))
        return err_set(&j->err, EINVAL, "one of rotate, revoke, close, fresh, hold and forget");
    j->rep.key.own = keys_own(keys, j->q.object.tenant);
    j->rep.key.policy = (uint32_t)keys_policy(keys, j->q.object.tenant);
    j->rep.key.unpacked = (uint32_t)keys_unpacked(keys, j->q.object.tenant);
    if (change == SESSION_HOLD && !j->rep.key.own)
        change = SESSION_FRESH;
    if (change == SESSION_CLOSE && !j->rep.key.own) /* nothing is encrypted */
        change = SESSION_REVOKE;
    return session_change_key(j->server->store, j->q.object.tenant, change, j->rep.key.id, j->rep.key.wrapped_by, &j->err);
}

static const struct op ops[] = {
    [VOLUMED_HELLO] = {"hello", 0, 0, 0, 0, op_hello},
    [VOLUMED_UPLOAD] = {"upload", F_OBJECT | F_BASE | F_PARENT | F_FILE | F_SIZE, 0, 1, 2, op_upload},
    [VOLUMED_DOWNLOAD] = {"download", F_OBJECT | F_BASE, VOLUMED_HAVE | VOLUMED_FILL, 1, 2, op_download},
    [VOLUMED_FETCH] = {"fetch", F_RANGE | F_TAG2, 0, 0, 0, op_fetch},
    [VOLUMED_CANCEL] = {"cancel", F_TAG2, 0, 0, 0, op_cancel},
    [VOLUMED_VERIFY] = {"verify", F_OBJECT, VOLUMED_READ_ALL, 0, 0, op_verify},
    [VOLUMED_DELETE] = {"delete", F_OBJECT, 0, 0, 0, op_delete},
    [VOLUMED_LIST] = {"list", F_TENANT, 0, 0, 0, op_list},
    [VOLUMED_GC] = {"gc", F_ANY, 0, 0, 0, op_gc},
    [VOLUMED_FSCK] = {"fsck", F_ANY, VOLUMED_READ_ALL | VOLUMED_MEND, 0, 0, op_fsck},
    [VOLUMED_STAT] = {"stat", F_ANY, 0, 0, 0, op_stat},
    [VOLUMED_REPAIR] = {"repair", F_OBJECT | F_BASE | F_FILE | F_SIZE, 0, 0, 2, op_repair},
    [VOLUMED_KEY] = {"key", F_TENANT,
                     VOLUMED_KEY_ROTATE | VOLUMED_KEY_REVOKE | VOLUMED_KEY_FRESH | VOLUMED_KEY_HOLD | VOLUMED_KEY_FORGET | VOLUMED_KEY_CLOSE, 0, 0,
                     op_key},
};

/* ---- what a request may say ---- */

static bool zeros(const void *p, size_t n)
{
    const uint8_t *b = p;
    for (size_t i = 0; i < n; i++)
        if (b[i])
            return false;
    return true;
}

static bool tenant_valid(const struct volumed_ref *r)
{
    size_t n = strnlen(r->tenant, sizeof r->tenant);
    return n > 0 && n <= VOLUMED_TENANT_MAX && str_name_valid(r->tenant, n) && zeros(r->tenant + n, sizeof r->tenant - n);
}

static bool ref_valid(const struct volumed_ref *r)
{
    return tenant_valid(r) && !zeros(r->id, sizeof r->id);
}

static bool object_valid(const struct op *o, const struct volumed_ref *r)
{
    if (o->fields & F_OBJECT)
        return ref_valid(r);
    if (o->fields & F_TENANT || (o->fields & F_ANY && r->tenant[0]))
        return tenant_valid(r) && zeros(r->id, sizeof r->id);
    return zeros(r, sizeof *r);
}

static bool request_valid(const struct op *o, const struct volumed_request *q, unsigned fd_count)
{
    static const struct {
        unsigned field;
        size_t offset, size;
    } plain[] = {{F_FILE, offsetof(struct volumed_request, file), sizeof q->file},
                 {F_SIZE, offsetof(struct volumed_request, size), sizeof q->size},
                 {F_RANGE, offsetof(struct volumed_request, offset), sizeof q->offset + sizeof q->length},
                 {F_TAG2, offsetof(struct volumed_request, tag2), sizeof q->tag2},
                 {F_BASE, offsetof(struct volumed_request, base), sizeof q->base},
                 {F_PARENT, offsetof(struct volumed_request, parent), sizeof q->parent}};
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (!(o->fields & plain[i].field) && !zeros((const char *)q + plain[i].offset, plain[i].size))
            return false;
    return (q->flags & ~o->flags) == 0 && q->tag != 0 && object_valid(o, &q->object) && (zeros(&q->base, sizeof q->base) || ref_valid(&q->base)) &&
           (zeros(&q->parent, sizeof q->parent) || ref_valid(&q->parent)) && fd_count >= o->fds_min && fd_count <= o->fds_max;
}

/* ---- jobs ---- */

static void check_drained(struct server *s);

static void job_end(struct job *j, int rc)
{
    struct server *s = j->server;
    struct job **at = &s->jobs;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    j->ended = true;
    for (unsigned i = 0; i < j->fetcher_count; i++)
        task_set(j->fetchers[i]);
    j->rep.version = VOLUMED_VERSION;
    j->rep.event = VOLUMED_REPLY;
    j->rep.tag = j->q.tag;
    j->rep.error = rc;
    if (rc < 0) {
        str_copy(j->rep.sentence, sizeof j->rep.sentence, j->err.msg);
        log_info("%s of tenant %s: %s", j->op ? j->op->name : "request", j->q.object.tenant[0] ? j->q.object.tenant : "-", j->err.msg);
    }
    conn_reply(j->conn, &j->rep, j->out);
    conn_unref(j->conn);
    for (unsigned i = 0; i < j->fd_count; i++)
        close(j->fds[i]);
    free(j);
    check_drained(s);
}

static void job_main(void *arg)
{
    struct job *j = arg;
    j->co = co_self(j->server->store->co);
    int rc = j->op->run(j);
    if (rc < 0 && !j->err.msg[0])
        err_set(&j->err, -rc, "%s", strerror(-rc));
    job_end(j, rc < 0 ? rc : 0);
}

static int judge(const struct conn *c, const struct volumed_request *q, unsigned fd_count, const struct op **ret_op, struct err *e)
{
    const struct op *o = q->op < sizeof ops / sizeof *ops && ops[q->op].run ? &ops[q->op] : NULL;
    *ret_op = o;
    if (q->version != VOLUMED_VERSION)
        return err_set(e, EPROTO, "this space-volumed speaks version %u, not %u: install both daemons from one build", VOLUMED_VERSION, q->version);
    if (!conn_greeted(c) && q->op != VOLUMED_HELLO)
        return err_set(e, EPROTO, "the first request must be hello");
    if (!o)
        return err_set(e, EOPNOTSUPP, "there is no operation %u", q->op);
    if (!request_valid(o, q, fd_count))
        return err_set(e, EINVAL, "%s: a field has a value that it must not have", o->name);
    return 0;
}

static void on_request(void *user, struct conn *c, const void *request, int *fds, unsigned fd_count)
{
    struct server *s = user;
    const struct volumed_request *q = request;
    struct job *j = calloc(1, sizeof *j);
    if (!j)
        abort(); /* a new process starts with less */
    j->server = s;
    j->conn = c;
    conn_ref(c);
    j->q = *q;
    j->out = -1;
    memcpy(j->fds, fds, fd_count * sizeof *fds);
    j->fd_count = fd_count;
    j->next = s->jobs;
    s->jobs = j;
    int rc = judge(c, q, fd_count, &j->op, &j->err);
    if (rc < 0) {
        memset(&j->q.object, 0, sizeof j->q.object);
        job_end(j, rc);
        return;
    }
    conn_set_greeted(c);
    co_spawn(s->store->co, job_main, j);
}

static void on_closed(void *user, struct conn *c)
{
    struct server *s = user;
    for (struct job *j = s->jobs, *next; j; j = next) {
        next = j->next;
        if (j->conn == c && j->co)
            co_abort(j->co);
    }
}

/* ---- begin and end ---- */

struct server *server_create(struct store *store, int fd, uid_t user, struct err *e)
{
    static const struct conn_ops conn_ops = {.request_size = sizeof(struct volumed_request),
                                             .reply_size = sizeof(struct volumed_reply),
                                             .output_max = OUTPUT_MAX,
                                             .takes_fds = true,
                                             .request = on_request,
                                             .closed = on_closed};
    struct server *s = calloc(1, sizeof *s);
    if (!s || !(s->clients = conns_open(store->loop, fd, user, CLIENTS_MAX, &conn_ops, s))) {
        free(s);
        err_set(e, ENOMEM, "open the socket: out of memory");
        return NULL;
    }
    s->store = store;
    task_pool_init(&s->collecting, store->co, 1);
    uv_timer_init(store->loop, &s->drain);
    s->drain.data = s;
    return s;
}

static void drain_tick(uv_timer_t *t)
{
    struct server *s = t->data;
    if (s->jobs || s->store->background)
        return;
    uv_timer_stop(t);
    s->stopped(s->stopped_user);
}

static void check_drained(struct server *s)
{
    if (s->stopping)
        uv_timer_start(&s->drain, drain_tick, 0, 20); /* what is deleted in the background may follow */
}

void server_stop(struct server *s, void (*stopped)(void *user), void *user)
{
    s->stopping = true;
    s->stopped = stopped;
    s->stopped_user = user;
    conns_close(s->clients);
    check_drained(s);
}
