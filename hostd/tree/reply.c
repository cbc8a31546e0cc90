// SPDX-License-Identifier: Apache-2.0
// Answering requests: failures with their sentence, waiting steps, paths.
#include "base/log.h"
#include "base/str.h"
#include "hostd/tree/tree.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void text_add(struct text *t, const char *fmt, ...)
{
    char *more;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&more, fmt, ap);
    va_end(ap);
    char *p = n < 0 ? NULL : realloc(t->p, t->len + (size_t)n + 1);
    if (!p)
        abort();
    memcpy(p + t->len, more, (size_t)n + 1);
    free(more);
    t->p = p;
    t->len += (size_t)n;
}

static const char *sandbox_name(const struct node *n, char orphan[32])
{
    if (n->sandbox)
        return n->sandbox->row.name;
    snprintf(orphan, 32, "~%012" PRIx64, n->orphan);
    return orphan;
}

char *node_path(const struct tree_fid *f, char *out, size_t size)
{
    const struct node *n = &f->node;
    const struct attr *a = attr_of(n);
    const char *file = n->kind == NODE_COPY    ? "#copy"
                       : n->kind == NODE_FILES ? (f->guest.root ? "files" : "files/...")
                       : a                     ? a->name
                                               : "",
               *slash = file[0] ? "/" : "";
    char orphan[32];
    switch (n->kind) {
    case NODE_TEMPLATES: str_copy(out, size, "templates"); break;
    case NODE_SANDBOXES: str_copy(out, size, "sandboxes"); break;
    case NODE_SNAPSHOTS: str_copy(out, size, "snapshots"); break;
    case NODE_GUESTS: str_copy(out, size, "root"); break;
    case NODE_PROCS: str_copy(out, size, "proc"); break;
    case NODE_PORTS: str_copy(out, size, "ports"); break;
    case NODE_PORTS_OF: snprintf(out, size, "ports/%s", sandbox_name(n, orphan)); break;
    case NODE_PORT: snprintf(out, size, "ports/%s/%u", sandbox_name(n, orphan), n->port); break;
    case NODE_HELP:
    case NODE_HELP_FILE: str_copy(out, size, "help"); break;
    case NODE_SNAPSHOTS_OF: snprintf(out, size, "snapshots/%s", sandbox_name(n, orphan)); break;
    case NODE_GUEST: snprintf(out, size, "root/%s%s", sandbox_name(n, orphan), f->guest.root ? "" : "/..."); break;
    case NODE_PROC: snprintf(out, size, "proc/%s", sandbox_name(n, orphan)); break;
    case NODE_CREDENTIALS: str_copy(out, size, "credentials"); break;
    default:
        if (n->scope)
            credentials_path(f->caller, n, file, out, size);
        else if (n->template)
            snprintf(out, size, "templates/%s%s%s", n->template->row.name, slash, file);
        else if (n->job)
            snprintf(out, size, "proc/%s/%s%s%s", sandbox_name(n, orphan), n->job->row.name, slash, file);
        else if (n->snapshot)
            snprintf(out, size, "snapshots/%s/%s%s%s", sandbox_name(n, orphan), n->snapshot->row.name, slash, file);
        else if (n->sandbox)
            snprintf(out, size, "sandboxes/%s%s%s", n->sandbox->row.name, slash, file);
        else
            str_copy(out, size, file[0] ? file : "/");
    }
    return out;
}

void fail(struct p9_request *r, struct tree_fid *f, int rc, const struct err *e)
{
    char path[512];
    int code = rc < 0 ? -rc : EIO;
    if (code == ECANCELED)
        code = EBUSY; /* another operation took its place */
    if (f && f->caller && code != EINTR)
        failure_record(space_of(r), f->caller->uid, node_path(f, path, sizeof path), code, e && e->msg[0] ? e->msg : strerror(code));
    p9_fail(r, code);
}

void fail_errno(struct p9_request *r, struct tree_fid *f, int code, const char *sentence)
{
    struct err e = {0};
    fail(r, f, err_set(&e, code, "%s", sentence), &e);
}

void reply_write(struct p9_request *r)
{
    struct p9_msg m = {0};
    m.Rwrite.count = r->t->Twrite.data.len;
    p9_reply(r, &m);
}

void reply_empty(struct p9_request *r)
{
    struct p9_msg m = {0};
    p9_reply(r, &m);
}

static void pending_done(struct waiter *w, int rc, const struct err *e)
{
    struct pending *p = (struct pending *)(void *)w;
    struct p9_request *r = p->r;
    void (*then)(struct p9_request *) = p->then;
    free(p);
    fid_of(r->fid)->caller->waiting--;
    r->cancel = NULL;
    r->aux = NULL;
    if (rc < 0)
        fail(r, fid_of(r->fid), rc, e);
    else
        then(r);
}

/* The wish stays recorded and goes on; only nobody waits for it any more. */
static void pending_cancel(struct p9_request *r)
{
    struct pending *p = r->aux;
    wait_remove(&p->w);
    free(p);
    fid_of(r->fid)->caller->waiting--;
    p9_fail(r, EINTR);
}

struct pending *pending_new(struct p9_request *r, void (*then)(struct p9_request *r))
{
    struct pending *p = calloc(1, sizeof *p);
    if (!p)
        abort();
    *p = (struct pending){.w.done = pending_done, .r = r, .then = then ? then : reply_write};
    r->aux = p;
    r->cancel = pending_cancel;
    fid_of(r->fid)->caller->waiting++;
    return p;
}

void pending_fail(struct pending *p, int rc, const struct err *e)
{
    wait_remove(&p->w);
    pending_done(&p->w, rc, e);
}

struct waiter *pending_write(struct p9_request *r, struct tree_fid *f)
{
    if (f->open && f->open->flags & P9_NONBLOCK) {
        reply_write(r);
        return NULL;
    }
    return &pending_new(r, NULL)->w;
}
