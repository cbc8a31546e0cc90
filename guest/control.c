// SPDX-License-Identifier: Apache-2.0
// The tree on space.0: see control.h.
//
// A fid is a node: one of the table's kinds, and for those below /jobs/ID the job, which it keeps
// alive. What `info` and `activity` say is made when they are opened or read from their start, so
// that several reads fit together.
#include "guest/control.h"

#include "base/str.h"
#include "guest/agent.h"
#include "guest/ctl.h"
#include "guest/dial.h"
#include "guest/report.h"
#include "guest/spawn.h"
#include "guest/trust.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define QID_JOB_SHIFT 5 /* a job's qids are its id + 1, a port's its number, and the kind's number */

enum kind {
    TOP,
    INFO,
    CTL,
    ACTIVITY,
    FILES,
    SPAWN,
    TRUST,
    TCP,
    TCP_PORT,
    JOBS,
    JOB,
    JOB_STDIN,
    JOB_EOF,
    JOB_STDOUT,
    JOB_STDERR,
    JOB_WAIT,
    JOB_SIGNAL,
    JOB_TTY,
    KINDS
};

/* What a path leads to. */
struct place {
    enum kind kind;
    struct job *job; /* for kinds from JOB on; a node's is a reference */
    uint16_t port;   /* TCP_PORT */
};

struct node {
    struct place at;
    char *text;        /* of an opened INFO or ACTIVITY */
    struct dial *dial; /* of an opened TCP_PORT */
};

static void reply_text(struct p9_request *r, const char *text)
{
    size_t n = strlen(text), at = r->t->Tread.offset < n ? (size_t)r->t->Tread.offset : n;
    struct p9_msg m = {0};
    m.Rread.data.p = text + at;
    m.Rread.data.len = (uint32_t)(n - at < r->t->Tread.count ? n - at : r->t->Tread.count);
    p9_reply(r, &m);
}

static void reply_written(struct p9_request *r, int rc)
{
    struct p9_msg m = {0};
    m.Rwrite.count = r->t->Twrite.data.len;
    if (rc < 0)
        p9_fail(r, -rc);
    else
        p9_reply(r, &m);
}

static char *make_text(struct agent *a, enum kind kind);

/* ---- one function a kind and direction ---- */

/* Made anew at every read from the start, so that who asks often need open it only once. */
static void read_text(struct agent *a, struct node *n, struct p9_request *r)
{
    char *text = r->t->Tread.offset == 0 ? make_text(a, n->at.kind) : NULL;
    if (text) {
        free(n->text);
        n->text = text;
    }
    reply_text(r, n->text);
}

static void read_output(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)a;
    stream_read(&n->at.job->output[n->at.kind == JOB_STDERR], r);
}

static void read_wait(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)a;
    job_wait(n->at.job, r);
}

static void read_ends(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)n;
    ends_read(&a->files_ends, r);
}

static void write_ctl(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)n;
    ctl_write(a, r);
}

static void write_spawn(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)n;
    if (power_going(&a->power))
        p9_fail(r, ESHUTDOWN);
    else
        jobs_spawn(&a->jobs, r);
}

static void write_trust(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)n;
    trust_write(a, r);
}

static void write_stdin(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)a;
    input_write(&n->at.job->input, r);
}

static void write_eof(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)a;
    input_eof(&n->at.job->input);
    reply_written(r, 0);
}

static void write_signal(struct agent *a, struct node *n, struct p9_request *r)
{
    const struct p9_data *d = &r->t->Twrite.data;
    char text[16] = "";
    uint64_t sig;
    (void)a;
    if (d->len < sizeof text)
        memcpy(text, d->p, d->len);
    reply_written(r, str_parse_u64(str_trim(text), 1000, &sig) < 0 ? -EINVAL : job_signal(n->at.job, (int)sig));
}

static void read_port(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)a;
    dial_read(n->dial, r);
}

static void write_port(struct agent *a, struct node *n, struct p9_request *r)
{
    (void)a;
    dial_write(n->dial, r);
}

static void write_tty(struct agent *a, struct node *n, struct p9_request *r)
{
    const struct p9_data *d = &r->t->Twrite.data;
    unsigned short columns, rows;
    int rc = spawn_parse_size(d->p, d->len, &columns, &rows);
    (void)a;
    reply_written(r, rc < 0 ? rc : job_resize(n->at.job, columns, rows));
}

static const struct {
    const char *name; /* NULL: named by number */
    enum kind parent;
    mode_t mode;
    void (*read)(struct agent *a, struct node *n, struct p9_request *r);
    void (*write)(struct agent *a, struct node *n, struct p9_request *r);
    char *(*text)(struct agent *a);
} kinds[KINDS] = {
    [TOP] = {"/", TOP, S_IFDIR | 0500, NULL, NULL, NULL},
    [INFO] = {"info", TOP, S_IFREG | 0400, read_text, NULL, report_info},
    [CTL] = {"ctl", TOP, S_IFREG | 0200, NULL, write_ctl, NULL},
    [ACTIVITY] = {"activity", TOP, S_IFREG | 0400, read_text, NULL, report_activity},
    [FILES] = {"files", TOP, S_IFREG | 0400, read_ends, NULL, NULL},
    [SPAWN] = {"spawn", TOP, S_IFREG | 0200, NULL, write_spawn, NULL},
    [TRUST] = {"trust", TOP, S_IFREG | 0200, NULL, write_trust, NULL},
    [TCP] = {"tcp", TOP, S_IFDIR | 0500, NULL, NULL, NULL},
    [TCP_PORT] = {NULL, TCP, S_IFREG | 0600, read_port, write_port, NULL},
    [JOBS] = {"jobs", TOP, S_IFDIR | 0700, NULL, NULL, NULL},
    [JOB] = {NULL, JOBS, S_IFDIR | 0500, NULL, NULL, NULL},
    [JOB_STDIN] = {"stdin", JOB, S_IFREG | 0200, NULL, write_stdin, NULL},
    [JOB_EOF] = {"eof", JOB, S_IFREG | 0200, NULL, write_eof, NULL},
    [JOB_STDOUT] = {"stdout", JOB, S_IFREG | 0400, read_output, NULL, NULL},
    [JOB_STDERR] = {"stderr", JOB, S_IFREG | 0400, read_output, NULL, NULL},
    [JOB_WAIT] = {"wait", JOB, S_IFREG | 0400, read_wait, NULL, NULL},
    [JOB_SIGNAL] = {"signal", JOB, S_IFREG | 0200, NULL, write_signal, NULL},
    [JOB_TTY] = {"tty", JOB, S_IFREG | 0200, NULL, write_tty, NULL},
};

static char *make_text(struct agent *a, enum kind kind)
{
    return kinds[kind].text(a);
}

/* ---- nodes ---- */

static struct node *node_of(const struct p9_fid *f)
{
    return f->aux;
}

static struct p9_qid qid_of(const struct place *p)
{
    uint64_t number = p->kind >= JOB ? p->job->id + 1 : p->kind == TCP_PORT ? p->port : 0;
    return (struct p9_qid){.type = S_ISDIR(kinds[p->kind].mode) ? P9_QTDIR : P9_QTFILE, .path = number << QID_JOB_SHIFT | p->kind};
}

static struct node *node_new(const struct place *p)
{
    struct node *n = calloc(1, sizeof *n);
    if (!n)
        return NULL;
    n->at = *p;
    if (p->job)
        job_ref(p->job);
    return n;
}

static void node_free(struct node *n)
{
    if (n->at.job)
        job_unref(n->at.job);
    free(n->text);
    dial_close(n->dial);
    free(n);
}

static bool number_of(struct p9_str name, uint64_t max, uint64_t *out)
{
    char text[24];
    if (name.len >= sizeof text)
        return false;
    memcpy(text, name.s, name.len);
    text[name.len] = 0;
    return str_parse_u64(text, max, out) == 0;
}

static struct job *find_job(struct agent *a, struct p9_str name)
{
    uint64_t id;
    return number_of(name, SPAWN_ID_MAX, &id) ? jobs_find(&a->jobs, id) : NULL;
}

/* One step down or up. */
static bool step(struct agent *a, struct place *p, struct p9_str name)
{
    uint64_t port;
    if (p9_str_eq(name, "..")) {
        p->kind = kinds[p->kind].parent;
        p->job = p->kind >= JOB ? p->job : NULL;
        return true;
    }
    if (p->kind == JOBS) {
        p->job = find_job(a, name);
        p->kind = JOB;
        return p->job != NULL;
    }
    if (p->kind == TCP) {
        p->kind = TCP_PORT;
        if (!number_of(name, UINT16_MAX, &port) || !port)
            return false;
        p->port = (uint16_t)port;
        return true;
    }
    for (enum kind k = INFO; k < KINDS; k++)
        if (kinds[k].name && kinds[k].parent == p->kind && p9_str_eq(name, kinds[k].name)) {
            p->kind = k;
            return true;
        }
    return false;
}

/* ---- messages ---- */

static void on_attach(struct p9_request *r)
{
    struct p9_msg m = {0};
    if (!p9_str_eq(r->t->Tattach.aname, "control")) {
        p9_fail(r, ENOENT);
        return;
    }
    const struct place top = {.kind = TOP};
    r->fid->aux = node_new(&top);
    m.Rattach.qid = qid_of(&top);
    if (r->fid->aux)
        p9_reply(r, &m);
    else
        p9_fail(r, ENOMEM);
}

static void on_walk(struct p9_request *r)
{
    const struct p9_names *names = &r->t->Twalk.names;
    struct place at = node_of(r->fid)->at;
    struct p9_msg m = {0};
    while (m.Rwalk.qids.n < names->n && step(r->user, &at, names->v[m.Rwalk.qids.n]))
        m.Rwalk.qids.v[m.Rwalk.qids.n++] = qid_of(&at);
    if (m.Rwalk.qids.n == names->n) {
        struct node *n = node_new(&at);
        if (!n) {
            p9_fail(r, ENOMEM);
            return;
        }
        if (r->newfid == r->fid)
            node_free(r->fid->aux);
        r->newfid->aux = n;
    }
    p9_reply(r, &m);
}

static int check_open(const struct node *n, uint32_t flags)
{
    uint32_t access = flags & P9_ACCMODE;
    if (S_ISDIR(kinds[n->at.kind].mode))
        return access == P9_RDONLY ? 0 : EISDIR;
    if ((access != P9_WRONLY && !kinds[n->at.kind].read) || (access != P9_RDONLY && !kinds[n->at.kind].write))
        return EACCES;
    return 0;
}

static void on_lopen(struct p9_request *r)
{
    struct node *n = node_of(r->fid);
    struct p9_msg m = {0};
    int code = check_open(n, r->t->Tlopen.flags);
    if (code == 0 && kinds[n->at.kind].text && !(n->text = kinds[n->at.kind].text(r->user)))
        code = ENOMEM;
    if (code) {
        p9_fail(r, code);
        return;
    }
    m.Rlopen.qid = qid_of(&n->at);
    if (n->at.kind != TCP_PORT) {
        p9_reply(r, &m);
        return;
    }
    dial_close(n->dial); /* of an opening that failed */
    struct agent *a = r->user;
    n->dial = dial_open(&a->loop, n->at.port, m.Rlopen.qid, r);
}

static void on_read(struct p9_request *r)
{
    struct node *n = node_of(r->fid);
    if (!r->fid->opened || !kinds[n->at.kind].read)
        p9_fail(r, r->fid->opened ? EISDIR : EBADF);
    else
        kinds[n->at.kind].read(r->user, n, r);
}

static void on_write(struct p9_request *r)
{
    struct node *n = node_of(r->fid);
    if (!r->fid->opened || !kinds[n->at.kind].write)
        p9_fail(r, EBADF);
    else
        kinds[n->at.kind].write(r->user, n, r);
}

static void on_getattr(struct p9_request *r)
{
    struct node *n = node_of(r->fid);
    struct p9_msg m = {0};
    m.Rgetattr.valid = P9_GETATTR_BASIC;
    m.Rgetattr.qid = qid_of(&n->at);
    m.Rgetattr.mode = kinds[n->at.kind].mode;
    m.Rgetattr.nlink = 1;
    m.Rgetattr.blksize = 4096;
    p9_reply(r, &m);
}

/* Offsets are a kind's number, or for jobs their id + 1, in ascending order of what is listed. */
struct listing {
    char *buf;
    size_t size, len;
};

static bool list_one(struct listing *l, enum kind kind, const struct job *j, uint64_t offset)
{
    char name[24];
    snprintf(name, sizeof name, "%" PRIu64, j ? j->id : 0);
    const struct place at = {.kind = kind, .job = (struct job *)(uintptr_t)j};
    struct p9_dirent d = {.qid = qid_of(&at), .offset = offset, .type = S_ISDIR(kinds[kind].mode) ? DT_DIR : DT_REG};
    d.name = p9_str_of(kinds[kind].name ? kinds[kind].name : name);
    return p9_dirent_pack(l->buf, l->size, &l->len, &d) == 0;
}

/* The job with the least id above `after`; n is at most JOBS_MAX. */
static struct job *next_job(struct jobs *js, uint64_t after, bool first)
{
    struct job *best = NULL;
    for (struct p9_link *i = js->all.next; i != &js->all; i = i->next) {
        struct job *j = p9_link_entry(i, struct job, all);
        if (j->state != JOB_STARTING && (first || j->id > after) && (!best || j->id < best->id))
            best = j;
    }
    return best;
}

static void list(struct agent *a, const struct node *n, uint64_t offset, struct listing *l)
{
    if (n->at.kind == JOBS) {
        struct job *j = next_job(&a->jobs, offset - 1, offset == 0);
        while (j && list_one(l, JOB, j, j->id + 1))
            j = next_job(&a->jobs, j->id, false);
        return;
    }
    for (uint64_t k = offset + 1; k < KINDS; k++)
        if (kinds[k].parent == n->at.kind && k != JOB && k != TCP_PORT && !list_one(l, (enum kind)k, n->at.job, k))
            return;
}

static void on_readdir(struct p9_request *r)
{
    const struct node *n = node_of(r->fid);
    struct listing l = {.size = r->t->Treaddir.count};
    struct p9_msg m = {0};
    if (!r->fid->opened || !S_ISDIR(kinds[n->at.kind].mode)) {
        p9_fail(r, r->fid->opened ? ENOTDIR : EBADF);
        return;
    }
    l.buf = malloc(l.size ? l.size : 1);
    if (!l.buf) {
        p9_fail(r, ENOMEM);
        return;
    }
    list(r->user, n, r->t->Treaddir.offset, &l);
    m.Rreaddir.data.p = l.buf;
    m.Rreaddir.data.len = (uint32_t)l.len;
    p9_reply(r, &m);
    free(l.buf);
}

static void on_unlinkat(struct p9_request *r)
{
    struct p9_msg m = {0};
    if (node_of(r->fid)->at.kind != JOBS) {
        p9_fail(r, EPERM);
        return;
    }
    struct job *j = find_job(r->user, r->t->Tunlinkat.name);
    if (!j) {
        p9_fail(r, ENOENT);
        return;
    }
    job_forget(j);
    p9_reply(r, &m);
}

/* A size of 0 comes before writes of programs that open with O_TRUNC. For a connection it says that
 * nothing more will be written. */
static void on_setattr(struct p9_request *r)
{
    struct p9_msg m = {0};
    struct node *n = node_of(r->fid);
    if (n->dial && r->fid->opened && r->t->Tsetattr.valid & P9_SETATTR_SIZE)
        dial_shut(n->dial);
    if (r->t->Tsetattr.valid & (P9_SETATTR_MODE | P9_SETATTR_UID | P9_SETATTR_GID))
        p9_fail(r, EPERM);
    else
        p9_reply(r, &m);
}

static void on_fsync(struct p9_request *r)
{
    struct p9_msg m = {0};
    p9_reply(r, &m);
}

static void fid_free(void *user, struct p9_fid *f)
{
    (void)user;
    node_free(f->aux);
}

const struct p9_backend *control_backend(void)
{
    static const struct p9_backend backend = {
        .on = {[P9_Tattach] = on_attach,
               [P9_Twalk] = on_walk,
               [P9_Tlopen] = on_lopen,
               [P9_Tread] = on_read,
               [P9_Twrite] = on_write,
               [P9_Tgetattr] = on_getattr,
               [P9_Treaddir] = on_readdir,
               [P9_Tunlinkat] = on_unlinkat,
               [P9_Tsetattr] = on_setattr,
               [P9_Tfsync] = on_fsync},
        .fid_free = fid_free,
    };
    return &backend;
}
