// SPDX-License-Identifier: Apache-2.0
// The queue in front of every backend.
//
// Theory of operation. A request waits in one of two queues, runs in the implementation, and is done: then `done` is called and it is freed.
// All moves are made by one function, pump, which an async handle calls from the loop: so nothing that a caller does (start, cancel,
// destroy, from its own callbacks or coroutines) re-enters the implementation or the caller. An invalid request goes straight to the
// done list. A cancelled one that waits does too; one that runs is told to the implementation once, and ends when that lets go of the buffers.
#include "hostd/volumed/backend/backend_impl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static bool name_byte(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

bool backend_name_valid(const char *name, bool prefix)
{
    size_t total = strlen(name), component = 0;
    if (total > BACKEND_NAME_MAX || (!prefix && !total))
        return false;
    for (const char *p = name; *p; p++) {
        if (*p == '/' ? !component : !name_byte(*p) || (!component && strchr("._-", *p)))
            return false;
        component = *p == '/' ? 0 : component + 1;
        if (component > BACKEND_COMPONENT_MAX)
            return false;
    }
    return prefix || (component && strncmp(name, BACKEND_OWN_PREFIX, strlen(BACKEND_OWN_PREFIX)) != 0);
}

/* ---- one operation ---- */

int op_fail(struct backend_op *op, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    op->result.rc = -code;
    op->result.e.code = code;
    vsnprintf(op->result.e.msg, sizeof op->result.e.msg, fmt, ap);
    va_end(ap);
    return -code;
}

static int check_put(struct backend_op *op)
{
    const struct backend_request *r = &op->r;
    if (r->iov_count > BACKEND_IOV_MAX)
        return op_fail(op, EINVAL, "put %s: %zu buffers, at most %u go", r->name, r->iov_count, BACKEND_IOV_MAX);
    for (size_t i = 0; i < r->iov_count; i++) {
        if (r->iov[i].iov_len > BACKEND_SIZE_MAX - op->length)
            return op_fail(op, EFBIG, "put %s: over %llu bytes", r->name, (unsigned long long)BACKEND_SIZE_MAX);
        op->length += r->iov[i].iov_len;
    }
    return 0;
}

static int check(struct backend_op *op)
{
    struct backend_request *r = &op->r;
    bool named = r->verb == BACKEND_PUT || r->verb == BACKEND_GET || r->verb == BACKEND_STAT || r->verb == BACKEND_DELETE;
    if (op->backend->closing)
        return op_fail(op, ECANCELED, "%s is being closed", op->backend->description);
    if (r->verb > BACKEND_CHECK)
        return op_fail(op, EINVAL, "there is no verb %d", (int)r->verb);
    if (strlen(r->name) > BACKEND_NAME_MAX)
        return op_fail(op, ENAMETOOLONG, "names of objects have at most %u bytes", BACKEND_NAME_MAX);
    if (named && !backend_name_valid(r->name, false))
        return op_fail(op, EINVAL, "'%s' is not an object's name", r->name);
    if (!backend_name_valid(r->name, true) || !backend_name_valid(r->after, true))
        return op_fail(op, EINVAL, "'%s' or '%s' is not the beginning of an object's name", r->name, r->after);
    if (r->max > BACKEND_PAGE_MAX)
        return op_fail(op, EINVAL, "a page has at most %u objects", BACKEND_PAGE_MAX);
    if (r->verb == BACKEND_GET && r->offset > INT64_MAX - r->size)
        return op_fail(op, EINVAL, "get %s: the offset is out of bounds", r->name);
    return r->verb == BACKEND_PUT ? check_put(op) : 0;
}

static void op_free(struct backend_op *op)
{
    free((void *)(uintptr_t)op->r.name);
    free((void *)(uintptr_t)op->r.after);
    free((void *)(uintptr_t)op->r.iov);
    free(op->memory);
    free(op);
}

/* A few bytes: without them nothing goes on anyway. */
static void *must(void *p)
{
    if (!p)
        abort();
    return p;
}

static struct iovec *copy_iov(const struct backend_request *r)
{
    size_t n = r->verb == BACKEND_PUT && r->iov_count <= BACKEND_IOV_MAX ? r->iov_count : 0;
    struct iovec *iov = must(calloc(n + 1, sizeof *iov));
    if (n)
        memcpy(iov, r->iov, n * sizeof *iov);
    return iov;
}

static void kick(struct backend *b)
{
    uv_async_send(&b->kick);
}

struct backend_op *backend_start(struct backend *b, const struct backend_request *r)
{
    struct backend_op *op = must(calloc(1, sizeof *op));
    op->backend = b;
    op->r = *r;
    op->r.name = must(strdup(r->name ? r->name : ""));
    op->r.after = must(strdup(r->after ? r->after : ""));
    op->r.iov = copy_iov(r);
    if (!op->r.max)
        op->r.max = BACKEND_PAGE_MAX;
    if (check(op) < 0) {
        op->state = OP_DONE;
        TAILQ_INSERT_TAIL(&b->done, op, link);
    } else {
        op->state = OP_WAITS;
        TAILQ_INSERT_TAIL(&b->waiting[r->flags & BACKEND_URGENT ? 0 : 1], op, link);
        b->stats.waiting++;
    }
    uv_ref((uv_handle_t *)&b->kick);
    kick(b);
    return op;
}

void backend_cancel(struct backend_op *op)
{
    atomic_store(&op->cancelled, true);
    kick(op->backend);
}

static void leave_queue(struct backend_op *op)
{
    struct backend *b = op->backend;
    TAILQ_REMOVE(&b->waiting[op->r.flags & BACKEND_URGENT ? 0 : 1], op, link);
    b->stats.waiting--;
}

static void count(struct backend_op *op)
{
    struct backend_stats *s = &op->backend->stats;
    int rc = op->result.rc;
    s->requests++;
    if (rc != 0 && rc != -ENOENT && rc != -EEXIST && rc != -ECANCELED)
        s->failures++;
}

void backend_finish(struct backend_op *op)
{
    struct backend *b = op->backend;
    TAILQ_REMOVE(&b->running, op, link);
    b->stats.running--;
    op->state = OP_DONE;
    TAILQ_INSERT_TAIL(&b->done, op, link);
    kick(b);
}

/* ---- the pump ---- */

static void cancel_waiting(struct backend *b, struct op_list *list)
{
    struct backend_op *next;
    for (struct backend_op *op = TAILQ_FIRST(list); op; op = next) {
        next = TAILQ_NEXT(op, link);
        if (!op->cancelled)
            continue;
        leave_queue(op);
        op_fail(op, ECANCELED, "cancelled before it began");
        op->state = OP_DONE;
        TAILQ_INSERT_TAIL(&b->done, op, link);
    }
}

/* One at a time: `cancel` may end others. */
static bool cancel_running(struct backend *b)
{
    struct backend_op *op;
    TAILQ_FOREACH(op, &b->running, link)
    if (op->cancelled && !op->cancel_told) {
        op->cancel_told = true;
        b->class->cancel(op);
        return true;
    }
    return false;
}

/* Urgent ones have room of their own: half as much again. */
static struct backend_op *next_waiting(struct backend *b)
{
    struct backend_op *op = TAILQ_FIRST(&b->waiting[0]);
    if (op)
        return b->stats.running < b->flight + (b->flight + 1) / 2 ? op : NULL;
    return b->stats.running < b->flight ? TAILQ_FIRST(&b->waiting[1]) : NULL;
}

static void start_waiting(struct backend *b)
{
    for (struct backend_op *op; (op = next_waiting(b));) {
        leave_queue(op);
        op->state = OP_RUNS;
        TAILQ_INSERT_TAIL(&b->running, op, link);
        b->stats.running++;
        b->class->start(op);
    }
}

static void answer_done(struct backend *b)
{
    struct backend_op *op;
    while ((op = TAILQ_FIRST(&b->done))) {
        TAILQ_REMOVE(&b->done, op, link);
        count(op);
        op->r.done(op->r.user, &op->result);
        op_free(op);
    }
}

static bool idle(const struct backend *b)
{
    return TAILQ_EMPTY(&b->waiting[0]) && TAILQ_EMPTY(&b->waiting[1]) && TAILQ_EMPTY(&b->running) && TAILQ_EMPTY(&b->done);
}

static void pump(uv_async_t *async)
{
    struct backend *b = async->data;
    cancel_waiting(b, &b->waiting[0]);
    cancel_waiting(b, &b->waiting[1]);
    while (cancel_running(b))
        ;
    start_waiting(b);
    answer_done(b);
    if (!idle(b))
        return;
    uv_unref((uv_handle_t *)&b->kick);
    if (b->closing && !b->destroyed) {
        b->destroyed = true;
        b->class->destroy(b);
    }
}

/* ---- life ---- */

int backend_init(struct backend *b, uv_loop_t *loop, const struct backend_class *class, unsigned flight)
{
    b->class = class;
    b->loop = loop;
    b->flight = flight;
    b->stats.limit = flight;
    TAILQ_INIT(&b->waiting[0]);
    TAILQ_INIT(&b->waiting[1]);
    TAILQ_INIT(&b->running);
    TAILQ_INIT(&b->done);
    int rc = uv_async_init(loop, &b->kick, pump);
    if (rc < 0)
        return rc;
    b->kick.data = b;
    uv_unref((uv_handle_t *)&b->kick);
    return 0;
}

void backend_destroy(struct backend *b, void (*closed)(void *user), void *user)
{
    struct backend_op *op;
    b->closing = true;
    b->closed = closed;
    b->closed_user = user;
    TAILQ_FOREACH(op, &b->waiting[0], link)
    op->cancelled = true;
    TAILQ_FOREACH(op, &b->waiting[1], link)
    op->cancelled = true;
    TAILQ_FOREACH(op, &b->running, link)
    op->cancelled = true;
    uv_ref((uv_handle_t *)&b->kick);
    kick(b);
}

static void kick_closed(uv_handle_t *h)
{
    struct backend *b = h->data;
    void (*closed)(void *) = b->closed;
    void *user = b->closed_user;
    free(b);
    if (closed)
        closed(user);
}

void backend_gone(struct backend *b)
{
    uv_close((uv_handle_t *)&b->kick, kick_closed);
}

unsigned backend_features(const struct backend *b)
{
    return b->features;
}

struct backend_stats backend_stats(const struct backend *b)
{
    return b->stats;
}

const char *backend_describe(const struct backend *b)
{
    return b->description;
}

/* ---- pages of a list ---- */

int page_add(struct page *p, const char *name, uint64_t size, int64_t modified)
{
    size_t len = strlen(name) + 1;
    if (p->count == p->objects_size) {
        size_t n = p->objects_size ? p->objects_size * 2 : 64;
        struct backend_object *o = reallocarray(p->objects, n, sizeof *o);
        if (!o)
            return -ENOMEM;
        p->objects = o;
        p->objects_size = n;
    }
    if (p->names_size - p->names_len < len) {
        size_t n = p->names_size * 2 + len + 4096;
        char *names = realloc(p->names, n);
        if (!names)
            return -ENOMEM;
        p->names = names;
        p->names_size = n;
    }
    p->objects[p->count++] = (struct backend_object){.name = (const char *)(uintptr_t)p->names_len, .size = size, .modified = modified};
    memcpy(p->names + p->names_len, name, len);
    p->names_len += len;
    return 0;
}

/* One block: the objects, and their names behind them. */
int page_end(struct page *p, struct backend_op *op)
{
    size_t head = p->count * sizeof *p->objects;
    char *block = malloc(head + p->names_len + 1);
    if (!block)
        return op_fail(op, ENOMEM, "list %s: out of memory", op->r.name);
    struct backend_object *objects = (void *)block;
    for (size_t i = 0; i < p->count; i++) {
        objects[i] = p->objects[i];
        objects[i].name = block + head + (uintptr_t)p->objects[i].name;
    }
    if (p->names_len)
        memcpy(block + head, p->names, p->names_len);
    op->memory = block;
    op->result.objects = objects;
    op->result.count = p->count;
    page_free(p);
    return 0;
}

void page_free(struct page *p)
{
    free(p->objects);
    free(p->names);
    *p = (struct page){0};
}
