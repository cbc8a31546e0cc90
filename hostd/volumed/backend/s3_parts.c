// SPDX-License-Identifier: Apache-2.0
// Large objects, put in parts at the same time: begun, each part put, completed; or aborted, so that nothing of it stays on the server's disks.
//
// Theory of operation. The operation's coroutine begins the upload and starts workers, coroutines which take one part after the other until none is
// left or one failed. It then completes the upload, or aborts it: the abort runs in a coroutine of its own, since this one may have been cancelled,
// and tries for a few seconds only. What is left even then, a sweep finds.
#include "hostd/volumed/backend/s3_impl.h"

#include "base/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX         10000u
#define ABORT_PATIENCE_MS 5000u

struct upload {
    struct s3 *s;
    struct backend_op *op;
    struct co *co;               /* of the operation */
    char id[3 * S3_KEY_MAX + 1]; /* encoded */
    uint64_t part_size;
    unsigned parts, next, workers;
    char (*etags)[sizeof((struct http_reply *)0)->etag];
    struct co **co_workers; /* NULL when it ended */
    int rc;
    struct err e; /* of the first that failed */
};

/* ---- parts ---- */

static int check_part(struct s3 *s, struct s3_call *c, struct err *e)
{
    if (c->x.reply.etag[0])
        return 0;
    return err_set(e, EBADMSG, "%s in %s: the answer has no ETag", c->what, s->base.description);
}

static int put_part(struct upload *u, unsigned i, struct err *e)
{
    char what[BACKEND_NAME_MAX + 64], query[3 * S3_KEY_MAX + 64], sha256[S3_SHA256_SIZE];
    const struct backend_op *op = u->op;
    uint64_t offset = i * u->part_size, left = op->length - offset;
    snprintf(what, sizeof what, "put %s, part %u of %u", op->r.name, i + 1, u->parts);
    snprintf(query, sizeof query, "partNumber=%u&uploadId=%s", i + 1, u->id);
    struct s3_call c = {.what = what,
                        .method = "PUT",
                        .name = op->r.name,
                        .query = query,
                        .body = op->r.iov,
                        .body_count = op->r.iov_count,
                        .offset = offset,
                        .length = left < u->part_size ? left : u->part_size,
                        .sha256 = sha256,
                        .urgent = op->r.flags & BACKEND_URGENT,
                        .check = check_part};
    int rc = s3_sha256(u->s, c.body, c.body_count, c.offset, c.length, &op->cancelled, sha256);
    if (rc < 0)
        return err_set(e, -rc, "%s: its hash: %s", what, strerror(-rc));
    rc = s3_call(u->s, &c, e);
    strcpy(u->etags[i], c.x.reply.etag);
    s3_call_end(&c);
    return rc == -ENOENT ? err_set(e, EIO, "%s in %s: the upload was aborted by somebody else", what, u->s->base.description) : rc;
}

struct worker {
    struct upload *u;
    unsigned number;
};

static void work(void *arg)
{
    struct worker w = *(struct worker *)arg;
    struct upload *u = w.u;
    free(arg);
    while (u->rc == 0 && u->next < u->parts) {
        struct err e = {0};
        int rc = put_part(u, u->next++, &e);
        if (rc < 0 && u->rc == 0) {
            u->rc = rc;
            u->e = e;
        }
    }
    u->co_workers[w.number] = NULL;
    u->workers--;
    co_wake(u->co, 0);
}

static void stop_workers(struct upload *u, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (u->co_workers[i])
            co_abort(u->co_workers[i]);
}

/* Waits for all of them; the first failure, or a cancel, stops the others. */
static int run_workers(struct upload *u)
{
    unsigned count = u->s->window.most < u->parts ? u->s->window.most : u->parts;
    u->co_workers = calloc(count, sizeof(struct co *));
    if (!u->co_workers)
        return err_set(&u->e, ENOMEM, "put %s: out of memory", u->op->r.name);
    for (unsigned i = 0; i < count; i++) {
        struct worker *w = malloc(sizeof *w);
        if (!w)
            break;
        *w = (struct worker){u, i};
        u->workers++;
        u->co_workers[i] = co_spawn(u->s->sched, work, w); /* from a coroutine: begins later */
    }
    if (!u->workers)
        return err_set(&u->e, ENOMEM, "put %s: out of memory", u->op->r.name);
    while (u->workers) {
        if (co_wait(u->s->sched) == -ECANCELED && u->rc == 0)
            u->rc = err_set(&u->e, ECANCELED, "put %s: cancelled", u->op->r.name);
        if (u->rc < 0)
            break;
    }
    if (u->workers)
        stop_workers(u, count);
    while (u->workers)
        co_wait_uncancellable(u->s->sched);
    return u->rc;
}

/* ---- begin, complete, abort ---- */

static int check_begin(struct s3 *s, struct s3_call *c, struct err *e)
{
    if (s3_xml_upload_id(c->x.text ? c->x.text : "", c->x.text_len, c->user))
        return 0;
    return err_set(e, EBADMSG, "%s in %s: the answer names no upload", c->what, s->base.description);
}

static int begin(struct upload *u, const struct s3_mark *mark, struct err *e)
{
    char what[BACKEND_NAME_MAX + 32], id[S3_KEY_MAX + 1];
    snprintf(what, sizeof what, "begin to put %s in parts", u->op->r.name);
    struct s3_call c = {.what = what,
                        .method = "POST",
                        .name = u->op->r.name,
                        .query = "uploads=",
                        .headers = {{S3_HEADER_PUT, mark->put}, {S3_HEADER_SHA256, mark->sha256}},
                        .headers_count = 2,
                        .check = check_begin,
                        .user = id};
    int rc = s3_call(u->s, &c, e);
    s3_call_end(&c);
    return rc < 0 ? rc : s3_encode(id, S3_ENCODE_ALL, u->id, sizeof u->id);
}

/* A server may begin with 200 and only then find that it fails. */
static int check_complete(struct s3 *s, struct s3_call *c, struct err *e)
{
    struct s3_error error;
    const char *text = c->x.text ? c->x.text : "";
    if (s3_xml_completed(text, c->x.text_len))
        return 0;
    if (s3_xml_error(text, c->x.text_len, &error))
        return err_set(e, EIO, "%s in %s: %s: %s", c->what, s->base.description, error.code, error.message);
    return err_set(e, EIO, "%s in %s: the answer does not say that it is complete", c->what, s->base.description);
}

/* Bounded: 10,000 parts of less than 200 bytes. */
static char *list_of_parts(const struct upload *u, size_t *ret_len)
{
    size_t size = 128 + u->parts * 200ul, at = 0;
    char *xml = malloc(size);
    if (!xml)
        return NULL;
    str_append(xml, size, &at, "<CompleteMultipartUpload>");
    for (unsigned i = 0; i < u->parts; i++)
        str_append(xml, size, &at, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", i + 1, u->etags[i]);
    str_append(xml, size, &at, "</CompleteMultipartUpload>");
    *ret_len = at;
    return xml;
}

static int complete(struct upload *u, const struct s3_mark *mark, struct err *e)
{
    char what[BACKEND_NAME_MAX + 32], query[3 * S3_KEY_MAX + 64], xml_sha256[S3_SHA256_SIZE];
    struct iovec xml = {0};
    xml.iov_base = list_of_parts(u, &xml.iov_len);
    int rc = xml.iov_base ? s3_sha256(u->s, &xml, 1, 0, xml.iov_len, NULL, xml_sha256) : -ENOMEM;
    snprintf(what, sizeof what, "complete %s", u->op->r.name);
    snprintf(query, sizeof query, "uploadId=%s", u->id);
    struct s3_call c = {.what = what,
                        .method = "POST",
                        .name = u->op->r.name,
                        .query = query,
                        .headers = {{"content-type", "application/xml"}},
                        .headers_count = 1,
                        .body = &xml,
                        .body_count = 1,
                        .length = xml.iov_len,
                        .sha256 = xml_sha256,
                        .check = check_complete};
    rc = rc < 0 ? err_set(e, -rc, "%s: %s", what, strerror(-rc)) : s3_call(u->s, &c, e);
    s3_call_end(&c);
    free(xml.iov_base);
    if (rc < 0 && rc != -ECANCELED && s3_is_ours(u->s, u->op->r.name, mark))
        return 0; /* an earlier try completed it, unseen */
    return rc == -ENOENT ? err_set(e, EIO, "%s in %s: the upload was aborted by somebody else", what, u->s->base.description) : rc;
}

struct abort {
    struct s3 *s;
    struct co *waiter;
    const char *name, *upload;
    bool ended;
    int rc;
    struct err e;
};

static void abort_upload(void *arg)
{
    struct abort *a = arg;
    char what[BACKEND_NAME_MAX + 32], *query = malloc(3 * S3_KEY_MAX + 64);
    snprintf(what, sizeof what, "abort the upload of %s", a->name);
    struct s3_call c = {.what = what, .method = "DELETE", .name = a->name, .query = query, .patience_ms = ABORT_PATIENCE_MS};
    if (query)
        snprintf(query, 3 * S3_KEY_MAX + 64, "uploadId=%s", a->upload);
    a->rc = query ? s3_call(a->s, &c, &a->e) : err_set(&a->e, ENOMEM, "%s: out of memory", what);
    s3_call_end(&c);
    free(query);
    a->ended = true;
    co_wake(a->waiter, 0);
}

static int abort_encoded(struct s3 *s, const char *name, const char *upload, struct err *e)
{
    struct abort a = {.s = s, .waiter = co_self(s->sched), .name = name, .upload = upload};
    co_spawn(s->sched, abort_upload, &a);
    while (!a.ended)
        co_wait_uncancellable(s->sched);
    if (a.rc < 0 && a.rc != -ENOENT)
        *e = a.e;
    return a.rc == -ENOENT ? 0 : a.rc;
}

int s3_abort_upload(struct s3 *s, const char *name, const char *upload, struct err *e)
{
    char id[3 * S3_KEY_MAX + 1];
    int rc = s3_encode(upload, S3_ENCODE_ALL, id, sizeof id);
    return rc < 0 ? err_set(e, -rc, "the id of an upload is too long") : abort_encoded(s, name, id, e);
}

static int upload(struct upload *u, const struct s3_mark *mark, struct err *e)
{
    struct err ignored = {0};
    int rc = begin(u, mark, e);
    if (rc < 0)
        return rc;
    rc = run_workers(u);
    if (rc < 0)
        *e = u->e;
    else
        rc = complete(u, mark, e);
    if (rc < 0)
        abort_encoded(u->s, u->op->r.name, u->id, &ignored);
    return rc;
}

int s3_put_parts(struct s3 *s, struct backend_op *op, const struct s3_mark *mark, struct err *e)
{
    struct upload *u = calloc(1, sizeof *u);
    if (!u)
        return err_set(e, ENOMEM, "put %s: out of memory", op->r.name);
    *u = (struct upload){.s = s, .op = op, .co = co_self(s->sched), .part_size = s->part_size};
    if (u->part_size * PARTS_MAX < op->length)
        u->part_size = (op->length + PARTS_MAX - 1) / PARTS_MAX;
    u->parts = (unsigned)((op->length + u->part_size - 1) / u->part_size);
    u->etags = calloc(u->parts, sizeof *u->etags);
    int rc = u->etags ? upload(u, mark, e) : err_set(e, ENOMEM, "put %s: out of memory", op->r.name);
    free(u->co_workers);
    free(u->etags);
    free(u);
    return rc;
}
