// SPDX-License-Identifier: Apache-2.0
// Requests of a backend in a coroutine: see backend_co.h.
#include "hostd/volumed/backend/backend_co.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct waiter {
    struct co *co;
    struct backend_result result;
    struct backend_page *page; /* where a list goes; may be NULL */
    bool answered;
};

/* The borrowed block, copied with its names. */
static int copy_page(const struct backend_result *r, struct backend_page *out)
{
    size_t head = r->count * sizeof *r->objects, names = 0, at;
    for (size_t i = 0; i < r->count; i++)
        names += strlen(r->objects[i].name) + 1;
    char *block = malloc(head + names + 1);
    if (!block)
        return -ENOMEM;
    out->objects = (void *)block;
    out->count = r->count;
    out->more = r->more;
    at = head;
    for (size_t i = 0; i < r->count; i++) {
        size_t len = strlen(r->objects[i].name) + 1;
        out->objects[i] = r->objects[i];
        out->objects[i].name = memcpy(block + at, r->objects[i].name, len);
        at += len;
    }
    return 0;
}

static void answered(void *user, const struct backend_result *r)
{
    struct waiter *w = user;
    w->result = *r;
    w->result.objects = NULL;
    if (r->rc == 0 && w->page && copy_page(r, w->page) < 0)
        w->result.rc = err_set(&w->result.e, ENOMEM, "no memory for a list of %zu objects", r->count);
    w->answered = true;
    co_wake(w->co, w->result.rc);
}

static void run(struct co_sched *s, struct backend *b, const struct backend_request *r, struct waiter *w)
{
    struct backend_request copy = *r;
    w->co = co_self(s);
    copy.done = answered;
    copy.user = w;
    struct backend_op *op = backend_start(b, &copy);
    if (co_wait(s) == -ECANCELED && !w->answered) {
        backend_cancel(op);
        co_wait_uncancellable(s);
    }
}

int backend_run_co(struct co_sched *s, struct backend *b, const struct backend_request *r, struct backend_result *out, struct err *e)
{
    struct waiter w = {0};
    run(s, b, r, &w);
    if (out)
        *out = w.result;
    if (e && w.result.rc < 0)
        *e = w.result.e;
    return w.result.rc;
}

int backend_list_co(struct co_sched *s, struct backend *b, const char *prefix, const char *after, struct backend_page *out, struct err *e)
{
    struct waiter w = {.page = out};
    *out = (struct backend_page){0};
    run(s, b, &(struct backend_request){.verb = BACKEND_LIST, .name = prefix, .after = after}, &w);
    if (e && w.result.rc < 0)
        *e = w.result.e;
    return w.result.rc;
}
