// SPDX-License-Identifier: Apache-2.0
// The directory backend: each request is one piece of blocking work in libuv's pool (dir_file.c, dir_walk.c).
#include "hostd/volumed/backend/dir_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FLIGHT_DEFAULT 4

struct backend_dir {
    struct backend base;
    int root;
};

static void (*const work[])(int root, struct backend_op *op) = {
    [BACKEND_PUT] = dir_put,       [BACKEND_GET] = dir_get,     [BACKEND_STAT] = dir_stat,   [BACKEND_LIST] = dir_list,
    [BACKEND_DELETE] = dir_delete, [BACKEND_SWEEP] = dir_sweep, [BACKEND_CHECK] = dir_check,
};

/* In a thread. */
static void run(uv_work_t *w)
{
    struct backend_op *op = w->data;
    work[op->r.verb](((struct backend_dir *)op->backend)->root, op);
}

static void ran(uv_work_t *w, int status)
{
    struct backend_op *op = w->data;
    struct backend_stats *s = &op->backend->stats;
    if (status < 0)
        op_fail(op, ECANCELED, "cancelled before it began");
    if (op->result.rc == 0) {
        s->sent += op->length;
        s->received += op->result.got;
    }
    backend_finish(op);
}

static void start(struct backend_op *op)
{
    op->work.data = op;
    op->backend->stats.tries++;
    int rc = uv_queue_work(op->backend->loop, &op->work, run, ran);
    if (rc == 0)
        return;
    op_fail(op, EIO, "start a thread: %s", uv_strerror(rc));
    backend_finish(op);
}

static void cancel(struct backend_op *op)
{
    uv_cancel((uv_req_t *)&op->work); /* or it sees `cancelled` */
}

static void destroy(struct backend *b)
{
    close(((struct backend_dir *)b)->root);
    backend_gone(b);
}

struct backend *backend_dir_create(uv_loop_t *loop, const struct backend_dir_options *o, struct err *e)
{
    static const struct backend_class class = {start, cancel, destroy};
    struct backend_dir *d = calloc(1, sizeof *d);
    if (!d) {
        err_set(e, ENOMEM, "no memory for a backend");
        return NULL;
    }
    d->root = open(o->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (d->root < 0) {
        err_sys(e, "open the object store %s", o->path);
        free(d);
        return NULL;
    }
    int rc = backend_init(&d->base, loop, &class, o->flight ? o->flight : FLIGHT_DEFAULT);
    if (rc < 0) {
        err_set(e, -rc, "watch the object store %s: %s", o->path, strerror(-rc));
        close(d->root);
        free(d);
        return NULL;
    }
    d->base.features = BACKEND_CONDITIONAL | BACKEND_LOCAL;
    snprintf(d->base.description, sizeof d->base.description, "directory %s", o->path);
    return &d->base;
}
